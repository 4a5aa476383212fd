//! What was sent, and is kept for a while: found by its name, and gone when its memory is needed.
//!
//! ```text
//!   retain ─▶ ┌ oldest ─ … ─ newest ┐ ─▶ find: the table says which, and its name must be the one that is looked for
//!   evict  ◀─ └─────────────────────┘
//! ```
//!
//! The table forgets: of three names that fall together one is not found any more, and is fetched. Nothing is looked for in it when
//! something is evicted, as numbers of what is gone find nothing.

use std::collections::VecDeque;

use ob_core::{ChunkName, Epoch};
use ob_memory::Shared;

use super::dialect::KEPT_BEFORE_MAX;
use crate::plant::{Bug, is_planted};

/// Places of the table for each record that may be retained.
const PLACES_EACH: usize = 4;

/// By what a record is known: its chunk, in which epoch its owner had that, and where it lies there. As long as the same host decides,
/// that is never another record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) chunk: ChunkName,
    pub(super) epoch: Option<Epoch>,
    pub(super) place: u32,
}

/// A record that was sent.
pub(super) struct Kept {
    /// None: it is not to be found any more.
    pub(super) label: Option<Label>,
    pub(super) before: Before,
    /// The bytes that channels had as well.
    pub(super) payload: Shared,
}

/// What came before a payload when it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    bytes: [u8; KEPT_BEFORE_MAX],
    len: u8,
}

impl Default for Before {
    fn default() -> Self {
        Self { bytes: [0; KEPT_BEFORE_MAX], len: 0 }
    }
}

impl Before {
    /// These bytes; nothing if they are too many to be kept.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let mut before = Self { len: bytes.len() as u8, ..Self::default() };
        before.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(before)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// All that is retained.
pub(super) struct Retained {
    /// The oldest in front. It never grows.
    all: VecDeque<Kept>,
    most: usize,
    /// The number of the oldest; others follow, modulo 2³².
    first: u32,
    /// Numbers, by where their names fall: at one of two places beside each other.
    table: Box<[u32]>,
    bytes: u64,
}

impl Retained {
    /// At most so many records; none retains nothing.
    pub(super) fn new(most: usize) -> Self {
        let places = if most == 0 { 0 } else { (most * PLACES_EACH).next_power_of_two().max(2) };
        let table = vec![0; places].into_boxed_slice();
        Self { all: VecDeque::with_capacity(most), most, first: 0, table, bytes: 0 }
    }

    /// Whether anything is ever retained.
    pub(super) fn is_on(&self) -> bool {
        self.most > 0
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps one, in the place of the oldest if there are as many as may be.
    pub(super) fn retain(&mut self, kept: Kept) {
        if self.all.len() >= self.most && !self.evict() {
            return;
        }
        let number = self.first.wrapping_add(self.all.len() as u32);
        let Some(label) = kept.label else { return };
        let [one, other] = self.places_of(label);
        // The one that is gone, or was there before the other, makes room.
        let age = |place: usize| {
            let number = self.table.get(place).copied().unwrap_or_default();
            let index = number.wrapping_sub(self.first) as usize;
            if index < self.all.len() { index + 1 } else { 0 }
        };
        let place = if age(one) <= age(other) { one } else { other };
        if let Some(place) = self.table.get_mut(place) {
            *place = number;
        }
        self.bytes += kept.payload.len() as u64;
        self.all.push_back(kept);
    }

    /// The record of this name, if it is still there.
    pub(super) fn find(&self, label: Label) -> Option<&Kept> {
        self.index_of(label).and_then(|index| self.all.get(index))
    }

    /// The record of this name is not to be found again.
    pub(super) fn forget(&mut self, label: Label) {
        if let Some(kept) = self.index_of(label).and_then(|index| self.all.get_mut(index)) {
            kept.label = None;
        }
    }

    /// The oldest goes; whether there was one.
    pub(super) fn evict(&mut self) -> bool {
        let Some(kept) = self.all.pop_front() else { return false };
        self.first = self.first.wrapping_add(1);
        self.bytes -= kept.payload.len() as u64;
        true
    }

    pub(super) fn clear(&mut self) {
        while self.evict() {}
    }

    fn index_of(&self, label: Label) -> Option<usize> {
        let index = |place: usize| {
            let index = self.table.get(place)?.wrapping_sub(self.first) as usize;
            if is_planted(Bug::RetainedUnnamed) {
                return index.checked_rem(self.all.len());
            }
            self.all.get(index).filter(|kept| kept.label == Some(label)).map(|_| index)
        };
        self.places_of(label).into_iter().find_map(index)
    }

    fn places_of(&self, label: Label) -> [usize; 2] {
        let Label { chunk: ChunkName { volume, segment, chunk }, epoch, place } = label;
        let epoch = epoch.map_or(0, |epoch| u64::from(epoch.number()));
        let words =
            [volume.0, u64::from(segment.0) << 32 | u64::from(chunk.0), epoch << 32 | u64::from(place)];
        let mix = |mixed: u64, word: u64| {
            let mixed = (mixed ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed ^ mixed >> 32
        };
        let mixed = words.into_iter().fold(0, mix);
        let place = (mixed >> 32) as usize & self.table.len().wrapping_sub(1);
        [place, place ^ 1]
    }
}
