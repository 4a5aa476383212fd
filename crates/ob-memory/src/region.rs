//! Memory shared with the other half.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Arena;

/// A run of memory that the other half can read and write at any moment, whatever this half thinks.
///
/// There is no way to a reference into it. Words are reached by atomic operations; everything else is copied in
/// or out, once, and only the copy is believed.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the mapping or allocation alive.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the owner keeps the memory alive from any thread; words are atomic, and copies are ordered by the
// protocols built on top (or race with a hostile half, see `copy_out`).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Wraps memory that `owner` keeps alive.
    ///
    /// # Safety
    ///
    /// `base` must be valid for reads and writes of `len` bytes for as long as `owner` lives, aligned to 64
    /// bytes, and no reference into it may exist.
    pub unsafe fn from_raw(base: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(64), "a region is aligned to a cache line");
        Self { base, len, _owner: owner }
    }

    /// A zeroed region in this process's own memory: for tests, simulation, and the host's end of a `tcp` link.
    pub fn on_heap(len: usize) -> Self {
        let arena = Arena::new(len, 0, false);
        let base = arena.base();
        // SAFETY: the arena has no lots, so no slice of it can exist; it is page-aligned and kept by the owner.
        unsafe { Self::from_raw(base, len, arena) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `offset..offset + len` lies inside, whatever the numbers.
    #[inline]
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    /// Hints that the word at `offset` will be written soon: its cache line is fetched for writing while other work goes
    /// on. On processors where there is no such hint, nothing happens.
    #[inline]
    pub fn prefetch_for_write(&self, offset: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let word: *const AtomicU64 = self.word(offset);
            // SAFETY: a prefetch of any address is harmless, and this one lies in the region.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(word.cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = offset;
    }

    /// Loads the word at `offset`.
    #[inline]
    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    /// Stores the word at `offset`.
    #[inline]
    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    /// Adds to the word at `offset` and returns what was there. Only between threads of one half.
    #[inline]
    pub fn fetch_add(&self, offset: usize, value: u64, order: Ordering) -> u64 {
        self.word(offset).fetch_add(value, order)
    }

    /// Weak compare-and-exchange of the word at `offset`. Only between threads of one half.
    pub fn compare_exchange(
        &self,
        offset: usize,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.word(offset).compare_exchange_weak(current, new, success, failure)
    }

    /// Copies bytes out.
    ///
    /// The other half may be writing them at the same time. Then the copy holds some mixture of old and new
    /// bytes, which is why callers check what they copied and never look at the original again.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(self.contains(offset as u64, into.len() as u64), "copy of {} at {offset}", into.len());
        // SAFETY: in bounds, and `into` is ours and cannot overlap memory that is never lent out. A write by
        // the other process at the same time is outside this process; the copied bytes are plain integers, so
        // any mixture is a valid value.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), into.as_mut_ptr(), into.len());
        }
    }

    /// Copies bytes in.
    #[inline]
    #[cfg(not(miri))]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(self.contains(offset as u64, from.len() as u64), "copy of {} at {offset}", from.len());
        // SAFETY: as for `copy_out`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(offset), from.len()) }
    }

    /// Copies bytes in, whole words by atomic stores.
    ///
    /// A host thread may look at the first word of a message that another has claimed meanwhile, just as the card
    /// writes a new one there; it then throws away what it saw. Between two processes that is no business of this
    /// program's memory model. In a test, where both halves are threads, it would be a race, so Miri gets atomic
    /// stores to set against that one atomic load. Copies out stay plain: a race with one of those is a bug, and
    /// is found.
    #[cfg(miri)]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(self.contains(offset as u64, from.len() as u64), "copy of {} at {offset}", from.len());
        let edge = (8 - offset % 8) % 8;
        let (head, rest) = from.split_at(edge.min(from.len()));
        let words = rest.chunks_exact(8);
        let tail = words.remainder();
        for (at, bytes) in [(offset, head), (offset + from.len() - tail.len(), tail)] {
            // SAFETY: as for `copy_out`.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) }
        }
        for (index, word) in words.enumerate() {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            self.store(offset + head.len() + index * 8, u64::from_ne_bytes(value), Ordering::Relaxed);
        }
    }

    /// Address of the word at `offset`, for the kernel's futex calls.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && self.contains(offset as u64, 8), "word at {offset}");
        // SAFETY: in bounds and aligned (the base is, and the offset is a multiple of 8); the region outlives
        // the reference, and atomics may be shared with whoever else maps this memory.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_copies_see_the_same_bytes() {
        let region = Region::on_heap(4096);
        region.store(64, 0x0807_0605_0403_0201, Ordering::Release);
        let mut bytes = [0; 8];
        region.copy_out(64, &mut bytes);
        assert_eq!(bytes, 0x0807_0605_0403_0201u64.to_ne_bytes());
        region.copy_in(128, &[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(region.fetch_add(128, 4, Ordering::Relaxed), u64::from_ne_bytes([1, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn bounds_hold_for_any_numbers() {
        let region = Region::on_heap(4096);
        assert!(region.contains(0, 4096) && region.contains(4096, 0));
        assert!(!region.contains(1, 4096) && !region.contains(u64::MAX, 2) && !region.contains(2, u64::MAX));
    }

    #[test]
    #[should_panic(expected = "copy of 2")]
    fn a_copy_never_leaves_the_region() {
        let region = Region::on_heap(4096);
        region.copy_out(4095, &mut [0; 2]);
    }
}
