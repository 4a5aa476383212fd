//! How the application hears that an operation is done.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use ob_ring::Claimed;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::request::Value;

/// How the application wants to hear of an operation.
pub(crate) enum Deliver {
    /// As a [`Completion`] with this tag, from whoever polls next.
    Tag(u64),
    /// By a call.
    Callback(Callback),
    /// By a call that looks at the bytes in the ring.
    InPlace(InPlace),
    /// Through a future, or a thread that waits for this operation alone.
    Cell(Arc<Cell>),
}

/// Is called with what an operation did, and its buffer.
pub(crate) type Callback = Box<dyn FnOnce(Result<usize>, Buffer) + Send>;
/// Is called with the bytes of a read, where they lie.
pub(crate) type InPlace = Box<dyn FnOnce(Result<Payload<'_>>) + Send>;

/// A read or write that is done, or a flush.
#[derive(Debug)]
pub struct Completion {
    /// What the operation was submitted with.
    pub tag: u64,
    /// How many bytes it moved, or why it failed. A read is short only where the file ends.
    pub result: Result<usize>,
    /// The buffer it was submitted with.
    pub buffer: Buffer,
}

/// Bytes of a read, where they lie in the ring. Their space goes back to the card when this is dropped.
pub struct Payload<'a> {
    pub(crate) claimed: Claimed<'a>,
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Payload({} bytes)", self.len())
    }
}

impl Payload<'_> {
    /// How many bytes were read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.claimed.payload_len()
    }

    /// Whether none were.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from `offset` on; how many there were to copy. Fails with [`Error::CardGone`] if the card took them back
    /// meanwhile, because the attachment is over: then what is in the buffer is not what was read.
    pub fn copy(&self, offset: usize, into: &mut [u8]) -> Result<usize> {
        let len = self.claimed.payload(offset, into);
        self.claimed.check().map_err(|_| Error::CardGone)?;
        Ok(len)
    }
}

/// An operation that is done, but not yet told.
pub(crate) struct Finished {
    pub(crate) result: Result<Value>,
    pub(crate) buffer: Buffer,
    pub(crate) deliver: Deliver,
}

/// What an operation brought, for whoever waits for it alone.
pub(crate) struct Outcome {
    pub(crate) result: Result<Value>,
    pub(crate) buffer: Buffer,
}

/// What a transfer's value says; other operations move no bytes.
pub(crate) fn count_of(result: Result<Value>) -> Result<usize> {
    result.map(|value| match value {
        Value::Count(count) => count,
        _ => 0,
    })
}

/// Where an operation leaves its outcome for the one future or thread that waits for it.
#[derive(Default)]
pub(crate) struct Cell {
    state: Mutex<CellState>,
}

#[derive(Default)]
enum CellState {
    /// Nobody looked yet.
    #[default]
    Out,
    /// A task is to be woken.
    Awaited(Waker),
    /// A thread of the application takes completions out of the rings until this one is there.
    Pumped,
    Done(Outcome),
    Taken,
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cell whose operation failed before it began.
    pub(crate) fn failed(error: Error, buffer: Buffer) -> Arc<Self> {
        let outcome = Outcome { result: Err(error), buffer };
        Arc::new(Self { state: Mutex::new(CellState::Done(outcome)) })
    }

    /// Leaves the outcome. `true` if a thread sleeps on the rings for it, and must be woken.
    #[must_use]
    pub(crate) fn complete(&self, outcome: Outcome) -> bool {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, CellState::Done(outcome)) {
            CellState::Awaited(waker) => {
                drop(state);
                waker.wake();
                false
            }
            CellState::Pumped => true,
            CellState::Out | CellState::Done(_) | CellState::Taken => false,
        }
    }

    /// The outcome, if it is there.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut state = self.lock();
        if !matches!(*state, CellState::Done(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, CellState::Taken) {
            CellState::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(*self.lock(), CellState::Done(_))
    }

    /// The outcome, or this task is woken when it is there.
    pub(crate) fn take_or_wake(&self, waker: &Waker) -> Option<Outcome> {
        let mut state = self.lock();
        match &mut *state {
            CellState::Done(_) => match std::mem::replace(&mut *state, CellState::Taken) {
                CellState::Done(outcome) => Some(outcome),
                _ => None,
            },
            CellState::Awaited(before) => {
                before.clone_from(waker);
                None
            }
            CellState::Taken => None,
            CellState::Out | CellState::Pumped => {
                *state = CellState::Awaited(waker.clone());
                None
            }
        }
    }

    /// The outcome, or whoever leaves it rings the group's bell.
    pub(crate) fn take_or_ring(&self) -> Option<Outcome> {
        let mut state = self.lock();
        match &mut *state {
            CellState::Done(_) => match std::mem::replace(&mut *state, CellState::Taken) {
                CellState::Done(outcome) => Some(outcome),
                _ => None,
            },
            CellState::Taken => None,
            CellState::Out | CellState::Awaited(_) | CellState::Pumped => {
                *state = CellState::Pumped;
                None
            }
        }
    }
}
