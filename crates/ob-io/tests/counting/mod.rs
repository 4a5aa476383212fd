//! An allocator that counts, for tests that are alone in their process. Other crates' tests use this file too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator as it is; counting touches only this thread's own cells.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    ///
    /// As the trait says.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        LARGEST.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: passed on.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    ///
    /// As the trait says.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread has asked for memory so far.
pub(crate) fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

/// The most bytes that this thread has asked for at once, since this was asked last.
#[allow(dead_code, reason = "some count allocations alone")]
pub(crate) fn take_largest() -> usize {
    LARGEST.with(Cell::take)
}
