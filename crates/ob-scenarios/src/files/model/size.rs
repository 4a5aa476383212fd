//! What the size of a file may be, while several requests change it at once.
//!
//! Every order in which the requests on their way can have taken effect is followed: a state is a size, and which of
//! them are in it. An answer throws out the states that it contradicts.

use std::collections::BTreeSet;

use super::Tick;

/// A request that changes a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A write that ends here.
    Reach(u64),
    /// A resize.
    Set(u64),
}

impl Change {
    fn apply(self, size: u64) -> u64 {
        match self {
            Self::Reach(end) => size.max(end),
            Self::Set(size) => size,
        }
    }
}

/// Whether a change took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Yes,
    No,
    Unknown,
}

/// The size of one file, now and before.
#[derive(Clone, Debug)]
pub(crate) struct Size {
    /// Sizes, and the changes on their way that are in them (a bit each).
    states: BTreeSet<(u64, u32)>,
    changes: Vec<Option<Change>>,
    /// From when on which sizes were possible.
    history: Vec<(Tick, BTreeSet<u64>)>,
}

impl Size {
    pub(crate) fn new(size: u64, now: Tick) -> Self {
        Self {
            states: BTreeSet::from([(size, 0)]),
            changes: Vec::new(),
            history: vec![(now, BTreeSet::from([size]))],
        }
    }

    /// Changes on their way.
    pub(crate) fn changing(&self) -> usize {
        self.changes.iter().flatten().count()
    }

    /// A change is sent; its slot.
    pub(crate) fn asked(&mut self, change: Change, now: Tick) -> usize {
        let slot = self.changes.iter().position(Option::is_none).unwrap_or_else(|| {
            self.changes.push(None);
            self.changes.len() - 1
        });
        self.changes[slot] = Some(change);
        self.close();
        self.note(now);
        slot
    }

    /// A change was answered. `false` if that cannot be.
    pub(crate) fn answered(&mut self, slot: usize, effect: Effect, now: Tick) -> bool {
        let bit = 1 << slot;
        let keeps = |mask: u32| match effect {
            Effect::Yes => mask & bit != 0,
            Effect::No => mask & bit == 0,
            Effect::Unknown => true,
        };
        self.states = self
            .states
            .iter()
            .filter(|(_, mask)| keeps(*mask))
            .map(|(size, mask)| (*size, mask & !bit))
            .collect();
        self.changes[slot] = None;
        self.note(now);
        !self.states.is_empty()
    }

    fn close(&mut self) {
        let mut new: Vec<(u64, u32)> = self.states.iter().copied().collect();
        while let Some((size, mask)) = new.pop() {
            for (slot, change) in self.changes.iter().enumerate() {
                let Some(change) = change.filter(|_| mask & 1 << slot == 0) else { continue };
                let state = (change.apply(size), mask | 1 << slot);
                if self.states.insert(state) {
                    new.push(state);
                }
            }
        }
    }

    fn note(&mut self, now: Tick) {
        let sizes = self.now();
        if self.history.last().is_none_or(|(_, last)| *last != sizes) {
            self.history.push((now, sizes));
        }
    }

    /// The sizes that are possible now.
    pub(crate) fn now(&self) -> BTreeSet<u64> {
        self.states.iter().map(|(size, _)| *size).collect()
    }

    /// The largest size that is possible now.
    pub(crate) fn largest(&self) -> u64 {
        self.states.iter().map(|(size, _)| *size).max().unwrap_or(0)
    }

    /// The sizes that were possible at a moment.
    pub(crate) fn at(&self, tick: Tick) -> &BTreeSet<u64> {
        let index = self.history.partition_point(|(from, _)| *from <= tick);
        &self.history[index.saturating_sub(1)].1
    }

    /// The sizes that were possible at some moment since.
    pub(crate) fn since(&self, tick: Tick) -> BTreeSet<u64> {
        let index = self.history.partition_point(|(from, _)| *from <= tick).saturating_sub(1);
        self.history[index..].iter().flat_map(|(_, sizes)| sizes.iter().copied()).collect()
    }

    /// The moments since then at which something changed.
    pub(crate) fn moments_since(&self, tick: Tick) -> impl Iterator<Item = Tick> + '_ {
        self.history.iter().map(|(from, _)| *from).filter(move |from| *from >= tick)
    }

    /// Forgets what was before.
    pub(crate) fn prune(&mut self, horizon: Tick) {
        let index = self.history.partition_point(|(from, _)| *from <= horizon).saturating_sub(1);
        self.history.drain(..index);
    }

    /// The size is known, and nothing is on its way.
    pub(crate) fn settle(&mut self, size: u64, now: Tick) {
        *self = Self::new(size, now);
    }

    /// Nothing is on its way, and somebody saw this size.
    pub(crate) fn learn(&mut self, size: u64, now: Tick) {
        if self.changing() == 0 && self.states.contains(&(size, 0)) {
            self.states = BTreeSet::from([(size, 0)]);
            self.note(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_at_once_take_effect_in_any_order() {
        let mut size = Size::new(0, 0);
        let reach = size.asked(Change::Reach(100), 1);
        let set = size.asked(Change::Set(10), 2);
        assert_eq!(size.now(), BTreeSet::from([0, 10, 100]));
        assert!(size.answered(set, Effect::Yes, 3));
        assert_eq!(size.now(), BTreeSet::from([10, 100]));
        assert!(size.answered(reach, Effect::Yes, 4));
        assert_eq!(
            size.now(),
            BTreeSet::from([10, 100]),
            "the write may have been cut off, or have come later"
        );
        size.learn(10, 5);
        assert_eq!(size.now(), BTreeSet::from([10]));
        assert_eq!(size.at(2), &BTreeSet::from([0, 10, 100]));
        assert_eq!(size.since(4), BTreeSet::from([10, 100]));
    }

    #[test]
    fn one_after_the_other_leaves_no_doubt() {
        let mut size = Size::new(7, 0);
        for (change, expected) in [(Change::Reach(5), 7), (Change::Set(3), 3), (Change::Reach(9), 9)] {
            let slot = size.asked(change, 1);
            assert!(size.answered(slot, Effect::Yes, 2));
            assert_eq!(size.now(), BTreeSet::from([expected]));
        }
        let slot = size.asked(Change::Set(1), 3);
        assert!(size.answered(slot, Effect::No, 4));
        assert_eq!(size.now(), BTreeSet::from([9]));
    }
}
