//! Changes of a file's size that a loss of power could take back, and how to tell from its size that one was.

use super::content::OpNumber;
use super::size::Change;
use super::{NEVER, Tick};

#[derive(Clone, Copy, Debug)]
struct Entry {
    op: OpNumber,
    change: Change,
    asked: Tick,
    answered: Tick,
}

/// Writes and resizes of one file since everything was durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    entries: Vec<Entry>,
}

impl Recent {
    pub(crate) fn asked(&mut self, op: OpNumber, change: Change, now: Tick) {
        self.entries.push(Entry { op, change, asked: now, answered: NEVER });
    }

    /// It was answered, and took effect.
    pub(crate) fn answered(&mut self, op: OpNumber, now: Tick) {
        for entry in self.entries.iter_mut().filter(|entry| entry.op == op) {
            entry.answered = now;
        }
    }

    /// What was answered before is durable.
    pub(crate) fn prune(&mut self, durable_before: Tick) {
        let is_recent_resize =
            |entry: &&Entry| matches!(entry.change, Change::Set(_)) && entry.answered >= durable_before;
        let oldest = self.entries.iter().filter(is_recent_resize).map(|entry| entry.asked).min();
        let horizon = oldest.map_or(durable_before, |oldest| oldest.min(durable_before));
        self.entries.retain(|entry| entry.answered >= horizon);
    }

    /// Resizes that a crash took back if it left the file with this size: had they happened, it would have theirs, or
    /// that of a change which was not over before they were sent.
    pub(crate) fn taken_back(&self, size: u64, durable_before: Tick) -> Vec<OpNumber> {
        let leaves = |entry: &Entry, size: u64| match entry.change {
            Change::Reach(end) => end == size,
            Change::Set(set) => set == size,
        };
        let resizes = self
            .entries
            .iter()
            .filter(|entry| matches!(entry.change, Change::Set(_)) && entry.answered >= durable_before);
        let taken = resizes.filter(|resize| {
            let mut later = self.entries.iter().filter(|entry| entry.answered > resize.asked);
            !later.any(|entry| leaves(entry, size))
        });
        taken.map(|resize| resize.op).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write up to 100, then a resize to 10, then a write up to 50, each answered before the next was sent.
    fn recent() -> Recent {
        let mut recent = Recent::default();
        for (op, change) in [(1, Change::Reach(100)), (2, Change::Set(10)), (3, Change::Reach(50))] {
            recent.asked(op, change, u64::from(op) * 10);
            recent.answered(op, u64::from(op) * 10 + 1);
        }
        recent
    }

    #[test]
    fn the_old_size_tells_that_a_resize_was_taken_back() {
        assert_eq!(recent().taken_back(100, 0), [2]);
        assert!(recent().taken_back(10, 0).is_empty());
        assert!(recent().taken_back(50, 0).is_empty());
        assert!(recent().taken_back(100, 25).is_empty(), "it was durable");
    }

    #[test]
    fn a_write_beside_a_resize_explains_its_size() {
        let mut recent = recent();
        recent.asked(4, Change::Set(5), 40);
        recent.asked(5, Change::Reach(70), 41);
        recent.prune(45);
        assert!(recent.taken_back(70, 0).is_empty());
        assert_eq!(recent.taken_back(50, 0), [4], "the write before it was over");
    }
}
