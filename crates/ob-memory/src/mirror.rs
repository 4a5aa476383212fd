//! The card's copy of a ring: same size, same positions, space reused in order.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::arena::{Arena, ArenaSpan, Slice};

/// Memory that mirrors a ring in the other half, position for position.
///
/// A batch fetched from ring positions `p..q` lands at the same offsets here, so whatever was aligned in the ring
/// is aligned in the mirror. Parts of a batch may be held for long (a device is writing from them); the space is
/// reused only when every part of every batch before it is gone. DDS §4.3 makes the buffer as large as the ring
/// and calls that enough; it is not once the ring's head moves before the device is done, so here space is
/// counted.
pub struct Mirror {
    arena: Arc<Arena>,
    capacity: usize,
    /// Batches out, oldest first.
    batches: VecDeque<Batch>,
    /// Lot of the next batch: lots are used round and round, as many as may be out at once.
    next_lot: u32,
    lots: u32,
}

struct Batch {
    lot: u32,
    start: u64,
    end: u64,
}

impl Mirror {
    /// A mirror of a ring of `capacity` bytes (a power of two), with at most `batches` batches out at once.
    pub fn new(capacity: usize, batches: u32) -> Self {
        Self::of(Arena::new(capacity, batches as usize, false), capacity, batches)
    }

    /// The same, or `None` if the system refuses the memory.
    pub fn try_new(capacity: usize, batches: u32) -> Option<Self> {
        Some(Self::of(Arena::try_new(capacity, batches as usize, false)?, capacity, batches))
    }

    fn of(arena: Arc<Arena>, capacity: usize, batches: u32) -> Self {
        assert!(capacity.is_power_of_two(), "a ring's capacity is a power of two");
        let out = VecDeque::with_capacity(batches as usize);
        Self { arena, capacity, batches: out, next_lot: 0, lots: batches }
    }

    /// How many bytes from `position` on can be taken now in one piece.
    pub fn available(&mut self, position: u64) -> usize {
        self.reclaim();
        if self.batches.len() == self.lots as usize {
            return 0;
        }
        let to_wrap = self.capacity - self.offset(position);
        let in_use = self.batches.front().map_or(0, |oldest| position.saturating_sub(oldest.start));
        to_wrap.min(self.capacity.saturating_sub(usize::try_from(in_use).unwrap_or(usize::MAX)))
    }

    /// Takes the mirror of ring positions `position..position + len`. Positions only go forward, except for what
    /// [`Mirror::give_back`] returned; `None` when the space is still held or would wrap.
    pub fn take(&mut self, position: u64, len: usize) -> Option<Slice> {
        if len == 0 || len > self.available(position) {
            return None;
        }
        if self.batches.back().is_some_and(|newest| position < newest.end) {
            return None;
        }
        let lot = self.next_lot;
        debug_assert!(self.arena.is_idle(lot), "lots are reused in the order they were given out");
        self.next_lot = (lot + 1) % self.lots;
        self.batches.push_back(Batch { lot, start: position, end: position + len as u64 });
        // SAFETY: `available` keeps the range within one lap of the oldest batch still out and this batch begins
        // at or after the newest one's end, so it overlaps no batch that is out; the lot is idle.
        Some(unsafe { self.arena.slice(lot, self.offset(position), len) })
    }

    /// Returns the end of the newest batch, so that its positions can be taken again: what is left of a batch
    /// that ended in the middle of a message. Anything else is simply dropped.
    pub fn give_back(&mut self, rest: Slice) {
        let Some(newest) = self.batches.back_mut() else { return };
        let length = (newest.end - newest.start) as usize;
        let batch_start = newest.start as usize & (self.capacity - 1);
        if !rest.lies_in(&self.arena, newest.lot) || rest.start() + rest.len() != batch_start + length {
            return;
        }
        // Owning the slice is the proof that nobody else holds these bytes.
        newest.end -= rest.len() as u64;
        let (lot, is_empty) = (newest.lot, newest.end == newest.start);
        drop(rest);
        // A batch of which nothing is left must not count as one: there are only so many, and they go in order.
        if is_empty && self.arena.is_idle(lot) {
            self.batches.pop_back();
            self.next_lot = lot;
        }
    }

    /// Whether nothing of the mirror is out.
    pub fn is_idle(&mut self) -> bool {
        self.reclaim();
        self.batches.is_empty()
    }

    /// Where the mirror lies, for registration.
    pub fn arena(&self) -> ArenaSpan {
        self.arena.span()
    }

    fn offset(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }

    fn reclaim(&mut self) {
        while self.batches.front().is_some_and(|oldest| self.arena.is_idle(oldest.lot)) {
            self.batches.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[cfg_attr(miri, ignore)] // Miri ends where a system refuses.
    fn memory_that_the_system_refuses_makes_no_mirror() {
        assert!(Mirror::try_new(1 << 62, 4).is_none());
        assert!(Mirror::try_new(4096, 4).is_some());
    }

    #[test]
    fn space_is_reused_only_when_every_part_is_gone() {
        let mut mirror = Mirror::new(4096, 4);
        let mut first = mirror.take(0, 3000).unwrap();
        let held = first.split_to(8);
        drop(first);
        assert_eq!(mirror.available(3000), 1096);
        let second = mirror.take(3000, 1096).unwrap();
        assert!(mirror.take(4096, 1).is_none(), "position 4096 lies where `held` is");
        drop(held);
        assert_eq!(mirror.available(4096), 3000);
        drop(second);
        assert!(mirror.is_idle());
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut mirror = Mirror::new(4096, 4);
        let mut batch = mirror.take(0, 1000).unwrap();
        let rest = batch.split_off(900);
        assert!(mirror.take(900, 10).is_none(), "still out");
        mirror.give_back(rest);
        let again = mirror.take(900, 100).unwrap();
        assert_eq!(again.start(), 900);
        assert_eq!(batch.len(), 900);
    }

    #[test]
    fn only_the_end_of_the_newest_batch_is_given_back() {
        let mut mirror = Mirror::new(4096, 4);
        let mut batch = mirror.take(0, 1000).unwrap();
        let front = batch.split_to(100);
        mirror.give_back(front);
        assert!(mirror.take(900, 10).is_none());
        assert!(mirror.take(1000, 10).is_some());
    }

    #[test]
    fn a_batch_that_is_given_back_whole_counts_no_more() {
        let mut mirror = Mirror::new(4096, 4);
        let oldest = mirror.take(0, 8).unwrap();
        for _ in 0..20 {
            let refused = mirror.take(8, 100).expect("one is out, of four");
            mirror.give_back(refused);
        }
        assert_eq!(mirror.take(8, 100).map(|batch| batch.start()), Some(8));
        drop(oldest);
        assert!(mirror.is_idle());
    }

    #[test]
    fn batches_out_are_bounded() {
        let mut mirror = Mirror::new(4096, 2);
        let held = [mirror.take(0, 8).unwrap(), mirror.take(8, 8).unwrap()];
        assert!(mirror.take(16, 8).is_none());
        drop(held);
        assert!(mirror.take(16, 8).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        /// Whatever is taken and dropped in whatever order, no two slices that are out share a byte.
        #[test]
        fn slices_out_never_overlap(steps in prop::collection::vec((0usize..600, 0usize..8, any::<bool>()), 1..60)) {
            let mut mirror = Mirror::new(4096, 8);
            let mut position = 0u64;
            let mut out: Vec<(u8, Slice)> = Vec::new();
            for (number, (len, victim, keep)) in steps.into_iter().enumerate() {
                let len = len.min(mirror.available(position));
                if let Some(mut slice) = mirror.take(position, len) {
                    position += len as u64;
                    let mark = number as u8;
                    slice.fill(mark);
                    out.push((mark, slice));
                }
                if position as usize & 4095 != 0 && mirror.available(position) == 0 {
                    position = position.next_multiple_of(4096);
                }
                if !keep && !out.is_empty() {
                    let (mark, slice) = out.swap_remove(victim % out.len());
                    prop_assert!(slice.iter().all(|byte| *byte == mark));
                }
            }
            for (mark, slice) in &out {
                prop_assert!(slice.iter().all(|byte| byte == mark));
            }
        }
    }
}
