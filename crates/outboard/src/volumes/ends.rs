//! The host's end of a port, on the link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ob_io::doorbell;
use ob_link::HostGroup;
use ob_ring::{AreaError, Outgoing, PushError, ReceiveError};
use ob_split::host::{HostEnds, Taken, Ticket};

/// A group of the link, and a word that wakes who sleeps on it besides.
pub(super) struct GroupEnds<'a> {
    group: &'a HostGroup,
    wake: &'a AtomicU64,
    /// What the word showed when the thread registered.
    seen: u32,
}

impl<'a> GroupEnds<'a> {
    pub(super) fn new(group: &'a HostGroup, wake: &'a AtomicU64) -> Self {
        Self { group, wake, seen: 0 }
    }
}

impl HostEnds for GroupEnds<'_> {
    fn push(&mut self, message: &[u8]) -> Result<(), PushError> {
        self.group.sender.push(Outgoing { inline: message, payload: None })
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Taken>, ReceiveError> {
        let Some(claimed) = self.group.receiver.receive()? else { return Ok(None) };
        claimed.inline(into);
        claimed.check()?;
        Ok(Some(Taken { inline_len: claimed.inline_len(), payload_len: claimed.payload_len() }))
    }

    fn register(&mut self, wants_room: bool) -> Ticket {
        // The kernel compares the low half.
        self.seen = self.wake.load(Ordering::Acquire) as u32;
        let room = wants_room.then(|| self.group.sender.register_sleeper().bell);
        Ticket { responses: self.group.receiver.register_sleeper().bell, room }
    }

    fn sleep(&mut self, ticket: Ticket, within: Option<Duration>) {
        let responses = (self.group.receiver.bell(), ticket.responses);
        let wake = (self.wake, self.seen);
        match ticket.room {
            Some(room) => {
                let words = [responses, wake, (self.group.sender.bell(), room)];
                doorbell::futex_wait_any(&words, within)
            }
            None => doorbell::futex_wait_any(&[responses, wake], within),
        };
    }

    fn area_lens(&self) -> (u64, u64) {
        self.group.areas.as_ref().map_or((0, 0), |areas| (areas.card_len(), areas.host_len()))
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) -> Result<(), AreaError> {
        self.group.areas.as_ref().ok_or(AreaError::OutOfArea)?.copy_out(at, into)
    }

    fn copy_in(&self, at: u64, from: &[u8]) -> Result<(), AreaError> {
        self.group.areas.as_ref().ok_or(AreaError::OutOfArea)?.copy_in(at, from)
    }
}
