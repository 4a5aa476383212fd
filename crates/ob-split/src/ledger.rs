//! Slots of an area: which of its places are given out.
//!
//! Each half has a ledger for the area whose places it gives out: the host for its own, the card for its own. Places are of whole
//! slots; what takes several has them side by side, as one transfer wants them.

use std::ops::Range;

/// Bytes of a slot.
pub const SLOT_LEN: u64 = 64 << 10;

/// Which slots of an area are taken.
#[derive(Debug)]
pub struct Ledger {
    /// A bit for each slot: set if it is free.
    free: Vec<u64>,
    slots: u32,
    free_count: u32,
    /// Where the search begins: behind what was given out last.
    next: u32,
}

/// Slots that are taken, side by side. Whoever has them gives them back to the ledger.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "slots that are not given back are lost"]
pub struct Place {
    first: u32,
    count: u32,
}

impl Place {
    /// Where it begins in the area.
    #[must_use]
    pub fn offset(&self) -> u64 {
        u64::from(self.first) * SLOT_LEN
    }

    /// Bytes of it.
    #[must_use]
    pub fn space(&self) -> u64 {
        u64::from(self.count) * SLOT_LEN
    }
}

impl Ledger {
    /// All slots of an area of so many bytes are free. What is behind the last whole slot is never given out.
    #[must_use]
    pub fn new(area_len: u64) -> Self {
        let slots = u32::try_from(area_len / SLOT_LEN).unwrap_or(u32::MAX);
        let mut free = vec![u64::MAX; slots.div_ceil(64) as usize];
        if let Some(last) = free.last_mut().filter(|_| !slots.is_multiple_of(64)) {
            *last = (1 << (slots % 64)) - 1;
        }
        Self { free, slots, free_count: slots, next: 0 }
    }

    /// How many slots there are.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// How many of them are free.
    #[must_use]
    pub const fn free_slots(&self) -> u32 {
        self.free_count
    }

    /// Takes slots for so many bytes, at least one; `None` if so many are not free side by side.
    pub fn take(&mut self, len: u64) -> Option<Place> {
        let count =
            u32::try_from(len.div_ceil(SLOT_LEN).max(1)).ok().filter(|count| *count <= self.free_count)?;
        let first = self.run(self.next..self.slots, count).or_else(|| self.run(0..self.slots, count))?;
        for slot in first..first + count {
            self.mark(slot, false);
        }
        self.free_count -= count;
        self.next = (first + count) % self.slots;
        Some(Place { first, count })
    }

    /// Takes slots back.
    ///
    /// # Panics
    ///
    /// When they are not this ledger's: two transfers would share memory.
    #[expect(clippy::needless_pass_by_value, reason = "whoever gives a place back has it no more")]
    pub fn give_back(&mut self, place: Place) {
        for slot in place.first..place.first + place.count {
            assert!(slot < self.slots && !self.is_free(slot), "slot {slot} was not taken from this ledger");
            self.mark(slot, true);
        }
        self.free_count += place.count;
    }

    /// The first of so many free slots side by side.
    fn run(&self, among: Range<u32>, count: u32) -> Option<u32> {
        let (mut found, mut slot) = (0, among.start);
        while slot < among.end {
            if slot.is_multiple_of(64) && self.word(slot) == 0 {
                (found, slot) = (0, slot.saturating_add(64));
                continue;
            }
            found = if self.is_free(slot) { found + 1 } else { 0 };
            slot += 1;
            if found == count {
                return Some(slot - count);
            }
        }
        None
    }

    fn word(&self, slot: u32) -> u64 {
        self.free.get((slot / 64) as usize).copied().unwrap_or(0)
    }

    fn is_free(&self, slot: u32) -> bool {
        self.word(slot) >> (slot % 64) & 1 == 1
    }

    fn mark(&mut self, slot: u32, is_free: bool) {
        let Some(word) = self.free.get_mut((slot / 64) as usize) else { return };
        let bit = 1 << (slot % 64);
        *word = if is_free { *word | bit } else { *word & !bit };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn places_are_whole_slots_of_the_area() {
        let mut ledger = Ledger::new(3 * SLOT_LEN + 5);
        assert_eq!((ledger.slots(), ledger.free_slots()), (3, 3));
        let (one, two) = (ledger.take(0).unwrap(), ledger.take(SLOT_LEN + 1).unwrap());
        assert_eq!((one.offset(), one.space()), (0, SLOT_LEN));
        assert_eq!((two.offset(), two.space()), (SLOT_LEN, 2 * SLOT_LEN));
        assert_eq!(ledger.take(1), None);
        ledger.give_back(one);
        assert_eq!(ledger.take(SLOT_LEN + 1), None, "one is free");
        assert_eq!(ledger.take(SLOT_LEN).unwrap().offset(), 0);
    }

    #[test]
    fn an_area_without_slots_gives_nothing() {
        for len in [0, SLOT_LEN - 1] {
            assert_eq!(Ledger::new(len).take(0), None);
        }
    }

    #[test]
    #[should_panic(expected = "was not taken")]
    fn a_place_of_another_ledger_is_not_taken_back() {
        let place = Ledger::new(SLOT_LEN).take(1).unwrap();
        Ledger::new(SLOT_LEN).give_back(place);
    }

    proptest! {
        #[test]
        fn no_slot_is_given_out_twice_and_none_is_lost(
            slots in 1u64..200,
            steps in prop::collection::vec((any::<bool>(), 0u64..6, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut ledger = Ledger::new(slots * SLOT_LEN);
            let mut out: Vec<Place> = Vec::new();
            for (is_take, count, which) in steps {
                if is_take {
                    let free: Vec<bool> = (0..slots as u32)
                        .map(|slot| !out.iter().any(|place| (place.first..place.first + place.count).contains(&slot)))
                        .collect();
                    let wanted = count.max(1) as usize;
                    let is_there = free.windows(wanted).any(|run| run.iter().all(|free| *free));
                    let place = ledger.take(count * SLOT_LEN);
                    prop_assert_eq!(place.is_some(), is_there);
                    if let Some(place) = place {
                        let taken = place.first..place.first + place.count;
                        prop_assert!(taken.clone().all(|slot| free[slot as usize]));
                        prop_assert_eq!(u64::from(place.count), count.max(1));
                        out.push(place);
                    }
                } else if !out.is_empty() {
                    ledger.give_back(out.swap_remove(which.index(out.len())));
                }
                let taken: u32 = out.iter().map(|place| place.count).sum();
                prop_assert_eq!(u64::from(ledger.free_slots() + taken), slots);
            }
        }
    }
}
