//! Memory of both halves by name: on the card by handle, on the host by its place in the area. It goes back when its owner drops it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ledger::{Ledger, Place};
use crate::wire::Handle;

/// Where memory goes that was dropped, until the port gives it back.
#[derive(Clone, Default)]
pub(super) struct Returns(Arc<Mutex<Dropped>>);

#[derive(Default)]
struct Dropped {
    handles: Vec<Handle>,
    places: Vec<Place>,
}

impl Returns {
    fn lock(&self) -> MutexGuard<'_, Dropped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles that nobody has any more.
    pub(super) fn take_handles(&self, into: &mut Vec<Handle>) {
        into.append(&mut self.lock().handles);
    }

    /// Gives places back to the ledger that they are of.
    pub(super) fn settle_places(&self, ledger: &mut Ledger) {
        for place in self.lock().places.drain(..) {
            ledger.give_back(place);
        }
    }

    pub(super) fn card_memory(&self, handle: Handle, len: u32) -> CardMemory {
        CardMemory { handle, len, returns: self.clone() }
    }

    pub(super) fn host_memory(&self, place: Place, len: usize) -> HostMemory {
        HostMemory { place: Some(place), len, returns: self.clone() }
    }
}

/// Card memory that this host has: it was granted, or came with a message, which is then the message too. It goes back when this is
/// dropped and no plan about it is under way.
pub struct CardMemory {
    handle: Handle,
    len: u32,
    returns: Returns,
}

/// Bytes of card memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardRange {
    pub(super) handle: Handle,
    pub(super) offset: u32,
    pub(super) len: u32,
}

impl CardMemory {
    /// What names it to the card, and so in plans.
    #[must_use]
    pub const fn handle(&self) -> Handle {
        self.handle
    }

    /// Bytes of it.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none, as that of a message without payload.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some bytes of it, if it has them.
    #[must_use]
    pub fn range(&self, range: Range<u32>) -> Option<CardRange> {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= self.len)?;
        Some(CardRange { handle: self.handle, offset: range.start, len })
    }

    /// All bytes of it.
    #[must_use]
    pub const fn all(&self) -> CardRange {
        CardRange { handle: self.handle, offset: 0, len: self.len }
    }
}

impl CardRange {
    /// How many bytes they are.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether they are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for CardMemory {
    fn drop(&mut self) {
        self.returns.lock().handles.push(self.handle);
    }
}

impl fmt::Debug for CardMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CardMemory").field("handle", &self.handle).field("len", &self.len).finish()
    }
}

impl PartialEq for CardMemory {
    fn eq(&self, other: &Self) -> bool {
        (self.handle, self.len) == (other.handle, other.len)
    }
}

/// A piece of the host's area, which the card reads by `FromHost`. It goes back when this is dropped.
pub struct HostMemory {
    /// There is one until it is dropped.
    place: Option<Place>,
    len: usize,
    returns: Returns,
}

impl HostMemory {
    /// Where it begins in the host's area.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.place.as_ref().map_or(0, Place::offset)
    }

    /// Bytes of it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.returns.lock().places.push(place);
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HostMemory").field("offset", &self.offset()).field("len", &self.len).finish()
    }
}
