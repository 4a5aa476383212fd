//! Records that a request has to read: each once, and a few at a time.
//!
//! ```text
//!   keys not in memory ─▶ Reads::of ─▶ left ── at most READS_AT_ONCE ──▶ the device ──▶ slots ──▶ copies
//!                            │                                                                  ▲
//!                            └── a record that was named before: the slot that will have it ────┘
//! ```
//!
//! A request of a few megabytes can name a million keys, or one a million times.
//!
//! Records are read in the order of their addresses. So a part stays until what a request has in it was read, though most of that
//! is not asked for yet: only the oldest part is ever removed, and not while it is read. As long as something is left, something
//! at a lower address is under way, in the same part or in an older one, which has to go first.

use std::collections::VecDeque;

use super::Store;
use super::slots::Slot;
use super::tasks::ReadUse;

/// Reads of one request that are under way at a time: the rest of the device is for others.
const READS_AT_ONCE: usize = 64;

/// A record that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// For which of the request's keys.
    pub(crate) slot: usize,
    pub(crate) address: u64,
    /// How much to read.
    pub(crate) len: usize,
}

/// What a request reads.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// What is not asked for yet, in the order of addresses.
    left: VecDeque<Missing>,
    /// How many are under way.
    out: usize,
    /// Slots that get what another one has got.
    copies: Vec<(usize, usize)>,
    /// Bytes of all records.
    len: usize,
}

impl Reads {
    /// Reads every record once, however often it is missing.
    pub(crate) fn of(mut missing: Vec<Missing>) -> Self {
        let mut reads = Self::default();
        // Nothing but this order keeps the parts that are left from being removed.
        if missing.len() > 1 {
            missing.sort_unstable_by_key(|missing| (missing.address, missing.slot));
        }
        for missing in missing {
            match reads.left.back().filter(|last| last.address == missing.address) {
                Some(first) => reads.copies.push((missing.slot, first.slot)),
                None => {
                    reads.len += missing.len;
                    reads.left.push_back(missing);
                }
            }
        }
        reads
    }

    /// Bytes of memory that they take.
    pub(crate) fn memory_len(&self) -> usize {
        self.len + self.left.len() * size_of::<Missing>() + self.copies.len() * size_of::<(usize, usize)>()
    }

    /// One more is done; whether all are.
    pub(crate) fn done(&mut self) -> bool {
        self.out -= 1;
        self.out == 0 && self.left.is_empty()
    }

    /// Gives every slot what was read for it.
    pub(crate) fn fill(&self, slots: &mut [Slot]) {
        for (slot, first) in &self.copies {
            let read = slots.get(*first).and_then(Slot::of_another);
            if let (Some(slot), Some(read)) = (slots.get_mut(*slot), read) {
                *slot = read;
            }
        }
    }
}

impl Store {
    /// Asks for what a task has to read, as much as it may at a time.
    pub(super) fn read_more(&mut self, id: u64) {
        let Some(reads) = self.tasks.get_mut(&id).map(|task| &mut task.reads) else { return };
        while reads.out < READS_AT_ONCE
            && let Some(Missing { slot, address, len }) = reads.left.pop_front()
        {
            let token = self.log.read(address, len);
            self.reads.insert(token, ReadUse::Slot { task: id, slot, address });
            reads.out += 1;
            self.stats.records_read += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_once_however_often_it_is_named() {
        let missing = |slot, address| Missing { slot, address, len: 100 };
        let reads =
            Reads::of(vec![missing(0, 80), missing(2, 40), missing(3, 80), missing(5, 40), missing(6, 80)]);
        assert_eq!(reads.left, [missing(2, 40), missing(0, 80)]);
        assert_eq!(reads.copies, [(5, 2), (3, 0), (6, 0)]);
        assert_eq!(reads.len, 200);
    }
}
