//! Queues in one process that stand for a group's rings: for a tier that is a thread of the card, and for tests.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ob_ring::{AreaError, PushError, ReceiveError};

use super::ends::{HostEnds, Taken, Ticket};

/// How much the queues of a group hold.
#[derive(Clone, Copy, Debug)]
pub struct QueueSizes {
    /// Messages to the card.
    pub requests: usize,
    /// Messages from the card.
    pub responses: usize,
    /// Bytes of the card's area.
    pub card_area: usize,
    /// Bytes of the host's area.
    pub host_area: usize,
}

impl Default for QueueSizes {
    fn default() -> Self {
        Self { requests: 64, responses: 64, card_area: 0, host_area: 0 }
    }
}

/// The host's end.
pub struct QueueEnds(Arc<Queues>);

/// The card's end.
pub struct QueueCard(Arc<Queues>);

struct Queues {
    state: Mutex<State>,
    changed: Condvar,
    sizes: QueueSizes,
}

struct State {
    requests: VecDeque<Vec<u8>>,
    responses: VecDeque<Vec<u8>>,
    card_area: Vec<u8>,
    host_area: Vec<u8>,
    is_closed: bool,
    /// How often something changed that a host may wait for.
    bell: u32,
}

/// Both ends of queues of these sizes.
#[must_use]
pub fn queues(sizes: QueueSizes) -> (QueueEnds, QueueCard) {
    let state = State {
        requests: VecDeque::new(),
        responses: VecDeque::new(),
        card_area: vec![0; sizes.card_area],
        host_area: vec![0; sizes.host_area],
        is_closed: false,
        bell: 0,
    };
    let queues = Arc::new(Queues { state: Mutex::new(state), changed: Condvar::new(), sizes });
    (QueueEnds(Arc::clone(&queues)), QueueCard(queues))
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, mut state: MutexGuard<'_, State>) {
        state.bell = state.bell.wrapping_add(1);
        drop(state);
        self.changed.notify_all();
    }
}

/// The place of so many bytes in an area.
fn place(area_len: usize, at: u64, len: usize) -> Result<std::ops::Range<usize>, AreaError> {
    let start = usize::try_from(at).map_err(|_| AreaError::OutOfArea)?;
    let end = start.checked_add(len).filter(|end| *end <= area_len).ok_or(AreaError::OutOfArea)?;
    Ok(start..end)
}

impl HostEnds for QueueEnds {
    fn push(&mut self, message: &[u8]) -> Result<(), PushError> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(PushError::Closed);
        }
        if state.requests.len() >= self.0.sizes.requests {
            return Err(PushError::Retry);
        }
        state.requests.push_back(message.to_vec());
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Taken>, ReceiveError> {
        let mut state = self.0.lock();
        let Some(message) = state.responses.pop_front() else {
            return if state.is_closed { Err(ReceiveError::Closed) } else { Ok(None) };
        };
        for (place, byte) in into.iter_mut().zip(&message) {
            *place = *byte;
        }
        Ok(Some(Taken { inline_len: message.len(), payload_len: 0 }))
    }

    fn register(&mut self, wants_room: bool) -> Ticket {
        let bell = self.0.lock().bell;
        Ticket { responses: bell, room: wants_room.then_some(bell) }
    }

    fn sleep(&mut self, ticket: Ticket, within: Option<Duration>) {
        let state = self.0.lock();
        let is_quiet = |state: &mut State| state.bell == ticket.responses && !state.is_closed;
        match within {
            None => drop(self.0.changed.wait_while(state, is_quiet)),
            Some(within) => drop(self.0.changed.wait_timeout_while(state, within, is_quiet)),
        }
    }

    fn area_lens(&self) -> (u64, u64) {
        (self.0.sizes.card_area as u64, self.0.sizes.host_area as u64)
    }

    fn copy_out(&self, at: u64, into: &mut [u8]) -> Result<(), AreaError> {
        let state = self.0.lock();
        let place = place(state.card_area.len(), at, into.len())?;
        into.copy_from_slice(state.card_area.get(place).ok_or(AreaError::OutOfArea)?);
        if state.is_closed { Err(AreaError::Closed) } else { Ok(()) }
    }

    fn copy_in(&self, at: u64, from: &[u8]) -> Result<(), AreaError> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(AreaError::Closed);
        }
        let place = place(state.host_area.len(), at, from.len())?;
        state.host_area.get_mut(place).ok_or(AreaError::OutOfArea)?.copy_from_slice(from);
        Ok(())
    }
}

impl Drop for QueueEnds {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
    }
}

impl QueueCard {
    /// Sends a message to the host; `false`, and nothing, while the queue is full or the host is gone.
    #[must_use]
    pub fn send(&self, message: &[u8]) -> bool {
        let mut state = self.0.lock();
        let has_room = !state.is_closed && state.responses.len() < self.0.sizes.responses;
        if has_room {
            state.responses.push_back(message.to_vec());
            self.0.ring(state);
        }
        has_room
    }

    /// The host's next message.
    #[must_use]
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.0.lock();
        let message = state.requests.pop_front();
        if message.is_some() {
            self.0.ring(state);
        }
        message
    }

    /// Whether the group is over.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }

    /// Ends the group. What was sent before is still received.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        self.0.ring(state);
    }

    /// Writes to its own area, for the host to copy out.
    ///
    /// # Errors
    ///
    /// When the bytes do not fit.
    pub fn write_area(&self, at: u64, from: &[u8]) -> Result<(), AreaError> {
        let mut state = self.0.lock();
        let place = place(state.card_area.len(), at, from.len())?;
        state.card_area.get_mut(place).ok_or(AreaError::OutOfArea)?.copy_from_slice(from);
        Ok(())
    }

    /// Reads what the host has put into its area.
    ///
    /// # Errors
    ///
    /// When there are not so many bytes.
    pub fn read_area(&self, at: u64, into: &mut [u8]) -> Result<(), AreaError> {
        let state = self.0.lock();
        let place = place(state.host_area.len(), at, into.len())?;
        into.copy_from_slice(state.host_area.get(place).ok_or(AreaError::OutOfArea)?);
        Ok(())
    }
}

impl Drop for QueueCard {
    fn drop(&mut self) {
        self.close();
    }
}
