//! What of the device is free, and what of that was promised.

use ob_wire_link::files::SpaceInfo;

use super::chunk::Chunk;
use crate::wire::ReplicaState;

/// The device's space.
#[derive(Debug, Default)]
pub(super) struct Space {
    segment_len: u64,
    capacity: u64,
    /// What no file has.
    unused: u64,
    /// What chunks may still take of it.
    promised: u64,
    /// Somebody has to ask the files what is left.
    pub(super) is_stale: bool,
    pub(super) is_asked: bool,
}

impl Space {
    pub(super) fn new(segment_len: u64) -> Self {
        Self { segment_len: segment_len.max(1), ..Self::default() }
    }

    /// What the files say.
    pub(super) fn told(&mut self, info: &SpaceInfo) {
        (self.capacity, self.unused) = (info.total, info.free);
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What neither chunks nor promises have.
    pub(super) fn free(&self) -> u64 {
        self.unused.saturating_sub(self.promised)
    }

    pub(super) fn used(&self) -> u64 {
        self.capacity.saturating_sub(self.unused)
    }

    /// Bytes that a file of so many takes.
    pub(super) fn taken_by(&self, len: u64) -> u64 {
        len.checked_next_multiple_of(self.segment_len).unwrap_or(u64::MAX)
    }

    /// What a chunk may still take.
    pub(super) fn promise_of(&self, chunk: &Chunk) -> u64 {
        if chunk.state == ReplicaState::Sealed {
            return 0;
        }
        let taken = if chunk.is_here { self.taken_by(chunk.end.bytes()) } else { 0 };
        self.taken_by(chunk.length.bytes()).saturating_sub(taken)
    }

    pub(super) fn promise(&mut self, len: u64) {
        self.promised = self.promised.saturating_add(len);
    }

    /// What the ledger may take when it is written anew is another length than before.
    pub(super) fn promise_again(&mut self, before: u64, after: u64) {
        self.promised = self.promised.saturating_sub(before).saturating_add(after);
        self.is_stale = true;
    }

    /// A chunk's promise is another one than before, because something of it was taken.
    pub(super) fn kept(&mut self, before: u64, after: u64) {
        self.promised = self.promised.saturating_sub(before).saturating_add(after);
        self.unused = self.unused.saturating_sub(before.saturating_sub(after));
    }

    /// A promise is over, and nothing was taken for it.
    pub(super) fn withdraw(&mut self, len: u64) {
        self.promised = self.promised.saturating_sub(len);
        self.is_stale = true;
    }
}
