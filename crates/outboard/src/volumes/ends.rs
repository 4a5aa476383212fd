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

/// Two words of each port, and the thread's own.
const WORDS_MAX: usize = 2 * ob_volume::tier::PORTS_MAX as usize + 1;
const _: () = assert!(WORDS_MAX <= doorbell::WORDS_MAX);

impl<'a> GroupEnds<'a> {
    /// Sleeps until something comes by any of these, or the thread is woken. It may return early.
    pub(super) fn sleep_on_all<'b>(all: impl Iterator<Item = (&'b Self, Ticket)>, within: Option<Duration>)
    where
        'a: 'b,
    {
        let mut words: Vec<(&AtomicU64, u32)> = Vec::with_capacity(WORDS_MAX);
        for (end, ticket) in all {
            if words.is_empty() {
                words.push((end.wake, end.seen));
            }
            words.push((end.group.receiver.bell(), ticket.responses));
            words.extend(ticket.room.map(|room| (end.group.sender.bell(), room)));
        }
        doorbell::futex_wait_any(&words, within);
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
        Self::sleep_on_all(std::iter::once((&*self, ticket)), within);
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
