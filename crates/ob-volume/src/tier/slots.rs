//! Slots of the card: by which numbers plans name chunks, as long as a plan does.

use std::collections::BTreeMap;

use ob_core::SegmentName;
use ob_split::wire::Slot;

use super::plant::{Bug, is_planted};

/// A chunk, by its segment and its place among that segment's.
pub(super) type ChunkPlace = (SegmentName, usize);

#[derive(Debug)]
struct Held {
    chunk: ChunkPlace,
    /// Plans under way that name it, and one more while it is written to.
    users: u32,
    used: u64,
    /// Servers that it was set with, in their order.
    servers: Vec<usize>,
    /// Whether these are all that the chunk has.
    has_all: bool,
    /// Whether it is set anew when nobody uses it any more.
    is_stale: bool,
    /// Whether it is appended to: there may be no other at the same time.
    is_open: bool,
}

impl Held {
    const fn of(chunk: ChunkPlace) -> Self {
        let servers = Vec::new();
        Self { chunk, users: 0, used: 0, servers, has_all: false, is_stale: false, is_open: false }
    }
}

/// Which chunk each slot is set to.
#[derive(Debug)]
pub(super) struct Slots {
    max: u16,
    held: BTreeMap<Slot, Held>,
    of: BTreeMap<ChunkPlace, Slot>,
    clock: u64,
}

/// A slot for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has it already.
    Set(Slot),
    /// It gets it: the card is to be told.
    New(Slot),
}

impl Slots {
    /// None is set.
    pub(super) const fn new(max: u16) -> Self {
        Self { max, held: BTreeMap::new(), of: BTreeMap::new(), clock: 0 }
    }

    /// A slot for a chunk, with one user more; nothing if plans name all of them.
    pub(super) fn pin(&mut self, chunk: ChunkPlace) -> Option<Found> {
        self.clock += 1;
        let known = self.of.get(&chunk).copied();
        let slot = known.or_else(|| self.free())?;
        let held = self.held.entry(slot).or_insert(Held::of(chunk));
        if held.chunk != chunk {
            if self.of.get(&held.chunk) == Some(&slot) {
                self.of.remove(&held.chunk);
            }
            *held = Held::of(chunk);
        }
        self.of.insert(chunk, slot);
        held.users += 1;
        held.used = self.clock;
        Some(if known.is_some() { Found::Set(slot) } else { Found::New(slot) })
    }

    /// One that was never used, or that nobody has used for longest.
    fn free(&self) -> Option<Slot> {
        let count = self.held.len() as u16;
        if count < self.max {
            return Some(Slot(count));
        }
        let is_idle = |held: &Held| held.users == 0 || is_planted(Bug::SlotSetUnderPlan);
        let idle = self.held.iter().filter(|(_, held)| is_idle(held));
        idle.min_by_key(|(_, held)| held.used).map(|(slot, _)| *slot)
    }

    /// A user less.
    pub(super) fn unpin(&mut self, slot: Slot) {
        let Some(held) = self.held.get_mut(&slot) else { return };
        held.users = held.users.saturating_sub(1);
        if held.users == 0 && held.is_stale {
            self.forget(slot);
        }
    }

    /// Which servers it is set with, and whether these are all that have something of its chunk.
    pub(super) fn set_members(&mut self, slot: Slot, servers: Vec<usize>, has_all: bool, is_open: bool) {
        if let Some(held) = self.held.get_mut(&slot) {
            (held.servers, held.has_all, held.is_open) = (servers, has_all, is_open);
        }
    }

    /// Which servers it was set with.
    pub(super) fn servers(&self, slot: Slot) -> &[usize] {
        self.held.get(&slot).map_or(&[], |held| &held.servers)
    }

    /// How many members it was set with, if these are all that its chunk has.
    pub(super) fn all_members(&self, slot: Slot) -> Option<usize> {
        self.held.get(&slot).filter(|held| held.has_all).map(|held| held.servers.len())
    }

    /// Who uses it when nobody does any more sets it anew.
    pub(super) fn retire(&mut self, slot: Slot) {
        let Some(held) = self.held.get_mut(&slot) else { return };
        held.is_stale = true;
        // Who comes now gets another, however long this one is used.
        if !held.is_open && self.of.get(&held.chunk) == Some(&slot) {
            self.of.remove(&held.chunk);
        }
        if held.users == 0 {
            self.forget(slot);
        }
    }

    /// The same of a chunk's slot, if it has one.
    pub(super) fn retire_chunk(&mut self, chunk: ChunkPlace) {
        if let Some(slot) = self.of.get(&chunk).copied() {
            self.retire(slot);
        }
    }

    /// Whether plans under way name a chunk: its place is no other's.
    pub(super) fn is_named(&self, chunk: ChunkPlace) -> bool {
        let named = |held: &Held| held.chunk == chunk && held.users > 0;
        self.held.values().any(named)
    }

    /// It was not set after all.
    pub(super) fn forget(&mut self, slot: Slot) {
        if let Some(held) = self.held.get_mut(&slot) {
            if self.of.get(&held.chunk) == Some(&slot) {
                self.of.remove(&held.chunk);
            }
            // Nobody can mean it: a segment has fewer chunks.
            *held = Held::of((SegmentName::default(), usize::MAX));
        }
    }

    /// The same of all chunks of a segment.
    pub(super) fn retire_segment(&mut self, name: SegmentName) {
        let of = self.of.iter().filter(|((of, _), _)| *of == name);
        for slot in of.map(|(_, slot)| *slot).collect::<Vec<_>>() {
            self.retire(slot);
        }
    }

    /// What a slot is set to.
    pub(super) fn chunk(&self, slot: Slot) -> Option<ChunkPlace> {
        self.held.get(&slot).map(|held| held.chunk)
    }

    /// Whether there may be such a slot.
    pub(super) const fn has(&self, slot: Slot) -> bool {
        slot.0 < self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_plans_name_are_not_given_to_others() {
        let chunk = |place| (SegmentName::default(), place);
        let mut slots = Slots::new(2);
        assert_eq!(slots.pin(chunk(7)), Some(Found::New(Slot(0))));
        assert_eq!(slots.pin(chunk(7)), Some(Found::Set(Slot(0))));
        assert_eq!(slots.pin(chunk(8)), Some(Found::New(Slot(1))));
        assert_eq!(slots.pin(chunk(9)), None);
        slots.unpin(Slot(0));
        assert_eq!(slots.pin(chunk(9)), None, "one plan still names it");
        slots.unpin(Slot(0));
        slots.unpin(Slot(1));
        assert_eq!(slots.pin(chunk(9)), Some(Found::New(Slot(0))), "nobody has used it for longest");
        assert_eq!((slots.chunk(Slot(0)), slots.chunk(Slot(1))), (Some(chunk(9)), Some(chunk(8))));
        assert_eq!(slots.pin(chunk(7)), Some(Found::New(Slot(1))), "it has lost its slot");
        assert!(slots.has(Slot(1)) && !slots.has(Slot(2)));
    }
}
