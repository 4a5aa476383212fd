//! Timers: a binary heap that knows where each timer is, so that cancelling one leaves nothing behind.
//!
//! ```text
//!   slots:  [ at, place in heap, generation ] ...      TimerId = slot + generation
//!   heap:   [ slot of the earliest | ... ]
//! ```

use ob_core::Instant;

/// One timer of a reactor. Never means another timer later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    slot: u32,
    generation: u32,
}

struct Slot {
    at: Instant,
    generation: u32,
    /// Place in the heap; `None` while free.
    place: Option<u32>,
}

/// A bounded set of timers.
pub(crate) struct Timers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    heap: Vec<u32>,
}

impl Timers {
    pub(crate) fn new(capacity: u32) -> Self {
        let slots = (0..capacity)
            .map(|_| Slot { at: Instant::from_nanoseconds(0), generation: 0, place: None })
            .collect();
        Self { slots, free: (0..capacity).rev().collect(), heap: Vec::with_capacity(capacity as usize) }
    }

    /// Adds a timer; `None` when there is no room.
    pub(crate) fn set(&mut self, at: Instant) -> Option<TimerId> {
        let slot = self.free.pop()?;
        let place = self.heap.len();
        self.heap.push(slot);
        let entry = &mut self.slots[slot as usize];
        entry.at = at;
        entry.place = Some(place as u32);
        let id = TimerId { slot, generation: entry.generation };
        self.rise(place);
        Some(id)
    }

    /// Removes a timer; `false` when it has fired or was cancelled before.
    pub(crate) fn cancel(&mut self, id: TimerId) -> bool {
        let Some(slot) = self.slots.get(id.slot as usize) else { return false };
        let Some(place) = slot.place.filter(|_| slot.generation == id.generation) else { return false };
        self.remove(place as usize);
        true
    }

    /// When the earliest timer is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|slot| self.slots[*slot as usize].at)
    }

    /// Takes the earliest timer if it is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<TimerId> {
        let slot = *self.heap.first()?;
        let entry = &self.slots[slot as usize];
        if entry.at > now {
            return None;
        }
        let id = TimerId { slot, generation: entry.generation };
        self.remove(0);
        Some(id)
    }

    fn remove(&mut self, place: usize) {
        let slot = self.heap.swap_remove(place);
        let entry = &mut self.slots[slot as usize];
        entry.place = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        if place < self.heap.len() {
            self.note(place);
            self.rise(place);
            self.sink(place);
        }
    }

    fn at(&self, place: usize) -> Instant {
        self.slots[self.heap[place] as usize].at
    }

    fn note(&mut self, place: usize) {
        self.slots[self.heap[place] as usize].place = Some(place as u32);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.at(parent) <= self.at(place) {
                return;
            }
            self.swap(parent, place);
            place = parent;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let left = 2 * place + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let child = if right < self.heap.len() && self.at(right) < self.at(left) { right } else { left };
            if self.at(place) <= self.at(child) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanoseconds: u64) -> Instant {
        Instant::from_nanoseconds(nanoseconds)
    }

    #[test]
    fn fires_in_order_and_is_bounded() {
        let mut timers = Timers::new(3);
        let late = timers.set(at(30)).unwrap();
        let early = timers.set(at(10)).unwrap();
        let middle = timers.set(at(20)).unwrap();
        assert!(timers.set(at(1)).is_none());
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(30)), Some(early));
        assert!(timers.cancel(middle) && !timers.cancel(middle) && !timers.cancel(early));
        assert_eq!(timers.pop_due(at(30)), Some(late));
        assert_eq!((timers.pop_due(at(99)), timers.next()), (None, None));
    }

    proptest! {
        /// Against a plain list: same timers, same order of instants, cancelled ones never fire.
        #[test]
        fn behaves_like_a_sorted_list(steps in prop::collection::vec((0u8..3, 0u64..50, any::<prop::sample::Index>()), 1..200)) {
            let mut timers = Timers::new(16);
            let mut model: Vec<(Instant, TimerId)> = Vec::new();
            for (what, time, victim) in steps {
                match what {
                    0 => match timers.set(at(time)) {
                        Some(id) => model.push((at(time), id)),
                        None => prop_assert_eq!(model.len(), 16),
                    },
                    1 if !model.is_empty() => {
                        let (_, id) = model.swap_remove(victim.index(model.len()));
                        prop_assert!(timers.cancel(id));
                    }
                    _ => {
                        let earliest = model.iter().map(|(due, _)| *due).min();
                        prop_assert_eq!(timers.next(), earliest);
                        let fired = timers.pop_due(at(time));
                        prop_assert_eq!(fired.is_some(), earliest.is_some_and(|due| due <= at(time)));
                        if let Some(id) = fired {
                            let place = model.iter().position(|(_, other)| *other == id).unwrap();
                            prop_assert_eq!(Some(model.swap_remove(place).0), earliest);
                        }
                    }
                }
            }
        }
    }
}
