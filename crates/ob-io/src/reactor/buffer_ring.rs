//! Buffers that lie ready for whatever arrives: the kernel takes the next one when it has bytes, not before.
//!
//! ```text
//!   Pool ─take─▶ [ entry entry entry … ] ─▶ kernel ─ completion names the buffer ─▶ Slice, now its receiver's
//!    ▲            the ring, read by the kernel                                        │
//!    └───────────────────────────────── drop ─────────────────────────────────────────┘
//! ```
//!
//! A buffer in the ring is owned by the ring; one that came back with bytes is owned by whoever got it, and a fresh
//! one takes its place.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use ob_memory::{PAGE, Pool, Slice};

pub(super) struct BufferRing {
    entries: NonNull<BufRingEntry>,
    layout: Layout,
    /// The number of entries, a power of two, less one.
    mask: u16,
    tail: u16,
    /// What the kernel may write, by the number that completions name it with.
    lent: Vec<Option<Slice>>,
    numbers_free: Vec<u16>,
    pool: Pool,
}

impl BufferRing {
    /// A ring of `count` buffers (rounded up to a power of two) with as many in reserve.
    pub(super) fn new(len: usize, count: u16) -> Self {
        let count = count.clamp(1, 1 << 14).next_power_of_two();
        let size = (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(PAGE);
        #[allow(clippy::expect_used)] // At most 256 KiB, a multiple of a page.
        let layout = Layout::from_size_align(size, PAGE).expect("a ring of buffers fits the address space");
        // SAFETY: the size is at least one page, so it is not zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let Some(entries) = NonNull::new(pointer.cast()) else { handle_alloc_error(layout) };
        let mut ring = Self {
            entries,
            layout,
            mask: count - 1,
            tail: 0,
            lent: (0..count).map(|_| None).collect(),
            numbers_free: (0..count).rev().collect(),
            pool: Pool::new(len, 2 * usize::from(count)),
        };
        ring.refill();
        ring
    }

    pub(super) fn address(&self) -> u64 {
        self.entries.as_ptr().expose_provenance() as u64
    }

    pub(super) fn count(&self) -> u16 {
        self.mask + 1
    }

    /// Lends the kernel as many buffers as there are, and have room.
    pub(super) fn refill(&mut self) {
        let before = self.tail;
        while !self.numbers_free.is_empty() {
            let Some(mut slice) = self.pool.take() else { break };
            let Some(number) = self.numbers_free.pop() else { break };
            let place = usize::from(self.tail & self.mask);
            // SAFETY: the place is within the allocation, whose zeros are a legal entry. The kernel reads entries
            // only up to the tail, which is moved below: there are as many numbers as entries and this one was
            // free, so the kernel has used up what stood here before. The tail's own word (the first entry's
            // reserved one) is not touched by these three.
            let entry = unsafe { &mut *self.entries.as_ptr().add(place) };
            entry.set_addr(slice.as_mut_ptr().expose_provenance() as u64);
            entry.set_len(u32::try_from(slice.len()).unwrap_or(u32::MAX));
            entry.set_bid(number);
            self.lent[usize::from(number)] = Some(slice);
            self.tail = self.tail.wrapping_add(1);
        }
        if self.tail != before {
            // SAFETY: the pointer is that of the ring's first entry, which is initialized, and gives the address of
            // its tail: aligned, alive as long as `self`, written by this thread alone and read by the kernel.
            let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries.as_ptr()).cast_mut()) };
            // What was written to the entries must be seen by whoever sees the tail.
            tail.store(self.tail, Ordering::Release);
        }
    }

    /// Takes the buffer that a completion names.
    pub(super) fn take(&mut self, number: u16) -> Option<Slice> {
        let slice = self.lent.get_mut(usize::from(number))?.take()?;
        self.numbers_free.push(number);
        Some(slice)
    }

    /// Whether the kernel has a buffer left, as far as its completions say.
    pub(super) fn has_lent(&self) -> bool {
        self.numbers_free.len() < self.lent.len()
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout; the owner drops a ring only after it was unregistered.
        unsafe { dealloc(self.entries.as_ptr().cast(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_lent_once_and_replaced_while_there_are_any() {
        let mut ring = BufferRing::new(4096, 3);
        assert_eq!((ring.count(), ring.tail), (4, 4), "rounded up, and full at once");
        let mut out: Vec<Slice> = (0..4).map(|number| ring.take(number).unwrap()).collect();
        assert!(ring.take(0).is_none() && ring.take(9).is_none(), "what is not lent cannot come back");
        assert!(!ring.has_lent());
        ring.refill();
        assert!(ring.has_lent() && ring.tail == 8);
        out.extend((0..4).map(|number| ring.take(number).unwrap()));
        let places: std::collections::HashSet<usize> = out.iter().map(Slice::start).collect();
        assert_eq!(places.len(), 8, "no two are the same memory");
        ring.refill();
        assert!(!ring.has_lent(), "all are out");
        out.pop();
        ring.refill();
        assert!(ring.has_lent() && ring.tail == 9);
    }
}
