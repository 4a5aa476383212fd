//! Which segments are free, and which of those can be given right away.
//!
//! ```text
//!              release              durable, nobody at it          zeroed          flushed
//!   in a file ─────────▶ waiting ─────────────────────────▶ free ─────────▶ blank ─────────▶ clean ──▶ in a file
//! ```
//!
//! Only clean segments are given to files (`docs/format/files.md`, "What order keeps"). To a user all of them but the
//! first state are free.

use std::collections::VecDeque;

use crate::map::Stretch;
use crate::plant::{self, Bug};

/// The free segments of a device.
#[derive(Debug)]
pub(crate) struct Space {
    /// A bit is set unless the segment is plainly free.
    taken: Vec<u64>,
    total: u32,
    /// Segments that files have.
    mapped: u32,
    /// Segments promised to writes that wait for them.
    promised: u32,
    /// Plainly free.
    free: u32,
    /// Released, with the frame that says so; ascending.
    waiting: VecDeque<(u64, Stretch)>,
    blank: Vec<Stretch>,
    clean: VecDeque<Stretch>,
    clean_count: u32,
    cursor: u32,
}

/// A segment that is used twice, or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotFree(pub(crate) u32);

impl Space {
    /// A device of `total` segments, all free.
    pub(crate) fn new(total: u32) -> Self {
        Self {
            taken: vec![0; (total as usize).div_ceil(64)],
            total,
            mapped: 0,
            promised: 0,
            free: total,
            waiting: VecDeque::new(),
            blank: Vec::new(),
            clean: VecDeque::new(),
            clean_count: 0,
            cursor: 0,
        }
    }

    /// While mounting: a file has these.
    pub(crate) fn occupy(&mut self, stretch: Stretch) -> Result<(), NotFree> {
        let end = stretch.start.checked_add(stretch.count).filter(|end| *end <= self.total);
        let Some(end) = end else { return Err(NotFree(stretch.start)) };
        for segment in stretch.start..end {
            if self.is_taken(segment) {
                return Err(NotFree(segment));
            }
            self.set(segment, true);
        }
        self.free -= stretch.count;
        self.mapped += stretch.count;
        Ok(())
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Segments that no file has.
    pub(crate) fn unmapped(&self) -> u32 {
        self.total - self.mapped
    }

    /// Promises segments to a write, or says that there are not so many.
    pub(crate) fn promise(&mut self, count: u32) -> bool {
        let enough = self.unmapped().saturating_sub(self.promised) >= count;
        self.promised += if enough { count } else { 0 };
        enough
    }

    /// Takes a promise back.
    pub(crate) fn forget_promise(&mut self, count: u32) {
        self.promised -= count;
    }

    /// Gives up to `most` consecutive clean segments that were promised, those from `near` on if they are there.
    pub(crate) fn take(&mut self, most: u32, near: Option<u32>) -> Option<Stretch> {
        let index = near.and_then(|near| self.clean.iter().position(|stretch| stretch.start == near));
        let index = index.unwrap_or(0);
        let stretch = self.clean.get_mut(index)?;
        let taken = Stretch { start: stretch.start, count: stretch.count.min(most) };
        stretch.start += taken.count;
        stretch.count -= taken.count;
        if stretch.count == 0 {
            self.clean.remove(index);
        }
        self.clean_count -= taken.count;
        self.mapped += taken.count;
        self.promised -= taken.count;
        Some(taken)
    }

    /// No file has these any more; a request may still be at them, see [`Space::release`].
    pub(crate) fn unmap(&mut self, stretch: Stretch) {
        self.mapped -= stretch.count;
    }

    /// Nobody is at these any more; they can be used again when the frame `sequence` is durable.
    pub(crate) fn release(&mut self, sequence: u64, stretch: Stretch) {
        if plant::is_planted(Bug::ReuseBeforeDurable) {
            return self.free_again(stretch);
        }
        let sequence = self.waiting.back().map_or(sequence, |(last, _)| sequence.max(*last));
        self.waiting.push_back((sequence, stretch));
    }

    /// All frames up to `sequence` are durable.
    pub(crate) fn durable(&mut self, sequence: u64) {
        while let Some((freed, stretch)) = self.waiting.front().copied()
            && freed <= sequence
        {
            self.waiting.pop_front();
            self.free_again(stretch);
        }
    }

    /// These are plainly free: they were waiting, or could not be zeroed.
    pub(crate) fn free_again(&mut self, stretch: Stretch) {
        for segment in stretch.start..stretch.start + stretch.count {
            self.set(segment, false);
        }
        self.free += stretch.count;
    }

    /// Up to `most` consecutive free segments, to be zeroed: those behind the last that were given, or the first there are.
    pub(crate) fn next_to_zero(&mut self, most: u32) -> Option<Stretch> {
        if self.free == 0 {
            return None;
        }
        let start = self.find_free(self.cursor).or_else(|| self.find_free(0))?;
        let mut count = 0;
        while count < most && start + count < self.total && !self.is_taken(start + count) {
            self.set(start + count, true);
            count += 1;
        }
        self.free -= count;
        self.cursor = start + count;
        Some(Stretch { start, count })
    }

    /// These are zero now, but that is not durable yet.
    pub(crate) fn zeroed(&mut self, stretch: Stretch) {
        self.blank.push(stretch);
    }

    /// A flush begins: what it will make clean.
    pub(crate) fn take_blank(&mut self) -> Vec<Stretch> {
        std::mem::take(&mut self.blank)
    }

    /// These are zero, durably.
    pub(crate) fn cleaned(&mut self, stretch: Stretch) {
        self.clean_count += stretch.count;
        match self.clean.back_mut() {
            Some(last) if last.start + last.count == stretch.start => last.count += stretch.count,
            _ => self.clean.push_back(stretch),
        }
    }

    pub(crate) fn clean_count(&self) -> u32 {
        self.clean_count
    }

    pub(crate) fn has_blank(&self) -> bool {
        !self.blank.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn has_free(&self) -> bool {
        self.free > 0
    }

    fn find_free(&self, from: u32) -> Option<u32> {
        let mut word_index = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        while let Some(word) = self.taken.get(word_index) {
            let free = !word & mask;
            if free != 0 {
                let segment = word_index as u32 * 64 + free.trailing_zeros();
                return (segment < self.total).then_some(segment);
            }
            (word_index, mask) = (word_index + 1, u64::MAX);
        }
        None
    }

    fn is_taken(&self, segment: u32) -> bool {
        self.taken[segment as usize / 64] >> (segment % 64) & 1 == 1
    }

    fn set(&mut self, segment: u32, taken: bool) {
        let bit = 1u64 << (segment % 64);
        let word = &mut self.taken[segment as usize / 64];
        *word = if taken { *word | bit } else { *word & !bit };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean_all(space: &mut Space) {
        while let Some(stretch) = space.next_to_zero(3) {
            space.zeroed(stretch);
        }
        for stretch in space.take_blank() {
            space.cleaned(stretch);
        }
    }

    #[test]
    fn a_segment_goes_once_round() {
        let mut space = Space::new(100);
        assert!(space.promise(100) && !space.promise(1));
        assert_eq!(space.take(5, None), None, "nothing is clean yet");
        clean_all(&mut space);
        let first = space.take(40, None).unwrap();
        assert_eq!(first, Stretch { start: 0, count: 40 });
        let near = space.take(70, Some(40)).unwrap();
        assert_eq!(near, Stretch { start: 40, count: 60 });
        assert_eq!(space.unmapped(), 0);
        space.unmap(first);
        assert_eq!(space.unmapped(), 40);
        space.release(7, first);
        space.durable(6);
        assert!(!space.has_free());
        space.durable(7);
        assert_eq!(space.next_to_zero(100), Some(first));
    }

    #[test]
    fn what_is_used_twice_is_found() {
        let mut space = Space::new(100);
        space.occupy(Stretch { start: 90, count: 10 }).unwrap();
        assert_eq!(space.occupy(Stretch { start: 80, count: 11 }), Err(NotFree(90)));
        assert_eq!(space.occupy(Stretch { start: 95, count: 6 }), Err(NotFree(95)));
        assert_eq!(space.occupy(Stretch { start: u32::MAX, count: 2 }), Err(NotFree(u32::MAX)));
    }
}
