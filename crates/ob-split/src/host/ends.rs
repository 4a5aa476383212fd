//! What a port's host needs of a group: two rings, two areas, and a way to sleep.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ob_ring::{AreaError, HostAreas, HostReceiver, HostSender, Outgoing, PushError, ReceiveError};

/// The host's end of a port's group: rings ([`RingEnds`]), or queues in one process ([`QueueEnds`](super::QueueEnds)).
pub trait HostEnds {
    /// Puts a message into the request ring, or says why not. Never waits.
    ///
    /// # Errors
    ///
    /// [`PushError::Retry`] while the ring is full; all others are for good.
    fn push(&mut self, message: &[u8]) -> Result<(), PushError>;

    /// Takes the next message of the response ring, if there is one, and copies as much of it as there is room for. Never waits.
    ///
    /// # Errors
    ///
    /// When nothing will come any more.
    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Taken>, ReceiveError>;

    /// Registers this thread as about to sleep until something comes, and if `wants_room` until there is room to push. Whoever then
    /// has looked once more, and found nothing, may [`sleep`](Self::sleep).
    fn register(&mut self, wants_room: bool) -> Ticket;

    /// Sleeps until what was registered for may have come, at most so long. It may return early.
    fn sleep(&mut self, ticket: Ticket, within: Option<Duration>);

    /// Bytes of the card's area and of the host's.
    fn area_lens(&self) -> (u64, u64);

    /// Copies bytes out of the card's area: those that a message named.
    ///
    /// # Errors
    ///
    /// When they are not in the area, or the group is over: then what was copied means nothing.
    fn copy_out(&self, at: u64, into: &mut [u8]) -> Result<(), AreaError>;

    /// Copies bytes into the host's area; a message pushed afterwards may name them.
    ///
    /// # Errors
    ///
    /// When they do not fit into the area, or the group is over.
    fn copy_in(&self, at: u64, from: &[u8]) -> Result<(), AreaError>;
}

/// How long a message is that was taken: more than was copied, if there was no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes of its inline part.
    pub inline_len: usize,
    /// Bytes of its payload, which nobody copies: messages of this service have none.
    pub payload_len: usize,
}

/// A thread's registration to sleep: what the bells showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The bell of what comes.
    pub responses: u32,
    /// The bell of room, if that is wanted.
    pub room: Option<u32>,
}

/// How a thread sleeps while words are as expected: the kernel's futex, which a pure core does not call by itself.
pub trait Sleeper {
    /// Sleeps while the low half of each word is as expected, at most so long. It may return early.
    fn sleep(&self, words: &[(&AtomicU64, u32)], within: Option<Duration>);
}

impl<F: Fn(&[(&AtomicU64, u32)], Option<Duration>)> Sleeper for F {
    fn sleep(&self, words: &[(&AtomicU64, u32)], within: Option<Duration>) {
        self(words, within);
    }
}

/// The ends of a group's rings. Whoever makes one keeps the group itself for as long.
pub struct RingEnds<S> {
    sender: HostSender,
    receiver: HostReceiver,
    areas: Option<HostAreas>,
    sleeper: S,
}

impl<S: Sleeper> RingEnds<S> {
    /// The ends of a group, on which a thread sleeps by `sleeper`.
    pub const fn new(
        sender: HostSender,
        receiver: HostReceiver,
        areas: Option<HostAreas>,
        sleeper: S,
    ) -> Self {
        Self { sender, receiver, areas, sleeper }
    }

    /// The words that a ticket is about, and what they showed: a thread that has several ports sleeps on all of theirs at once. Without
    /// a wish for room both are the same.
    pub fn words(&self, ticket: Ticket) -> [(&AtomicU64, u32); 2] {
        let responses = (self.receiver.bell(), ticket.responses);
        let room = ticket.room.map_or(responses, |bell| (self.sender.bell(), bell));
        [responses, room]
    }
}

impl<S: Sleeper> HostEnds for RingEnds<S> {
    fn push(&mut self, message: &[u8]) -> Result<(), PushError> {
        self.sender.push(Outgoing { inline: message, payload: None })
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Taken>, ReceiveError> {
        let Some(claimed) = self.receiver.receive()? else { return Ok(None) };
        claimed.inline(into);
        claimed.check()?;
        Ok(Some(Taken { inline_len: claimed.inline_len(), payload_len: claimed.payload_len() }))
    }

    fn register(&mut self, wants_room: bool) -> Ticket {
        let room = wants_room.then(|| self.sender.register_sleeper().bell);
        Ticket { responses: self.receiver.register_sleeper().bell, room }
    }

    fn sleep(&mut self, ticket: Ticket, within: Option<Duration>) {
        let words = self.words(ticket);
        let count = if ticket.room.is_some() { 2 } else { 1 };
        self.sleeper.sleep(words.get(..count).unwrap_or(&words), within);
    }

    fn area_lens(&self) -> (u64, u64) {
        self.areas.as_ref().map_or((0, 0), |areas| (areas.card_len(), areas.host_len()))
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) -> Result<(), AreaError> {
        self.areas.as_ref().ok_or(AreaError::OutOfArea)?.copy_out(at, into)
    }

    fn copy_in(&self, at: u64, from: &[u8]) -> Result<(), AreaError> {
        self.areas.as_ref().ok_or(AreaError::OutOfArea)?.copy_in(at, from)
    }
}
