//! One allocation, cut into slices that have one owner each.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::PAGE;

/// Marks the end of the list of free lots.
const NO_LOT: u32 = u32::MAX;

/// A lot is the unit in which an arena gives memory out and gets it back: it is free again when the last slice
/// cut from it is gone.
struct Lot {
    slices: AtomicU32,
    next_free: AtomicU32,
}

/// One page-aligned allocation with its lots.
pub(crate) struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    lots: Box<[Lot]>,
    /// Top of the stack of free lots in the low half, a count of pushes in the high half: without the count, a
    /// lot popped and pushed back between another thread's load and exchange would corrupt the stack.
    free: AtomicU64,
    /// Whether lots go back to the stack (a pool) or are looked at by their owner (a mirror).
    pooled: bool,
}

// SAFETY: the base pointer is owned by the arena alone; bytes behind it are only reached through slices, which
// overlap only where nobody writes any more, and the bookkeeping is atomic.
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` gives no access to the bytes.
unsafe impl Sync for Arena {}

/// Whole pages for so many bytes.
#[allow(clippy::expect_used)] // Sizes are bounded: by our own configuration, and by the budget that a host has.
fn layout_of(len: usize) -> Layout {
    Layout::from_size_align(len.max(1).next_multiple_of(PAGE), PAGE).expect("an arena fits the address space")
}

impl Arena {
    /// Allocates `len` zeroed bytes, rounded up to whole pages, with `lots` lots; the process ends if the system refuses them.
    pub(crate) fn new(len: usize, lots: usize, pooled: bool) -> Arc<Self> {
        Self::try_new(len, lots, pooled).unwrap_or_else(|| handle_alloc_error(layout_of(len)))
    }

    /// The same, or nothing if the system refuses the bytes.
    pub(crate) fn try_new(len: usize, lots: usize, pooled: bool) -> Option<Arc<Self>> {
        assert!(lots < NO_LOT as usize, "an arena has fewer than 2^32 lots");
        let layout = layout_of(len);
        // SAFETY: the layout's size is at least one page, so it is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let mut top = NO_LOT;
        let lots: Box<[Lot]> =
            (0..lots).map(|_| Lot { slices: AtomicU32::new(0), next_free: AtomicU32::new(NO_LOT) }).collect();
        if pooled {
            for (index, lot) in lots.iter().enumerate().rev() {
                lot.next_free.store(top, Ordering::Relaxed);
                top = index as u32;
            }
        }
        Some(Arc::new(Self { base, layout, lots, free: AtomicU64::new(u64::from(top)), pooled }))
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn span(&self) -> ArenaSpan {
        ArenaSpan { base: self.base.as_ptr().addr(), len: self.len() }
    }

    /// Whether no slice of this lot is left. Everything its holders did happened before a `true`.
    pub(crate) fn is_idle(&self, lot: u32) -> bool {
        self.lots[lot as usize].slices.load(Ordering::Acquire) == 0
    }

    /// Cuts the first slice of a lot.
    ///
    /// # Safety
    ///
    /// No other slice may cover any byte of `start..start + len` now or later, until this one is dropped; or none of
    /// those that do is ever written through.
    pub(crate) unsafe fn slice(self: &Arc<Self>, lot: u32, start: usize, len: usize) -> Slice {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()), "a slice lies in its arena");
        let before = self.lots[lot as usize].slices.fetch_add(1, Ordering::Relaxed);
        // A count that wrapped around would free what somebody holds. Only slices that are forgotten without being
        // dropped could ever get it there.
        assert!(before < u32::MAX / 2, "a lot has fewer than 2^31 slices");
        Slice { arena: Arc::clone(self), lot, start, len }
    }

    /// Takes a free lot off the stack.
    pub(crate) fn pop(&self) -> Option<u32> {
        let mut seen = self.free.load(Ordering::Acquire);
        loop {
            let top = seen as u32;
            if top == NO_LOT {
                return None;
            }
            let next = self.lots[top as usize].next_free.load(Ordering::Relaxed);
            let popped = seen & !u64::from(u32::MAX) | u64::from(next);
            match self.free.compare_exchange_weak(seen, popped, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => seen = now,
            }
        }
    }

    fn push(&self, lot: u32) {
        let mut seen = self.free.load(Ordering::Relaxed);
        loop {
            self.lots[lot as usize].next_free.store(seen as u32, Ordering::Relaxed);
            let pushed = (seen >> 32).wrapping_add(1) << 32 | u64::from(lot);
            match self.free.compare_exchange_weak(seen, pushed, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn release(&self, lot: u32) {
        if self.lots[lot as usize].slices.fetch_sub(1, Ordering::Release) == 1 && self.pooled {
            // Whoever takes the lot next must see everything its former holders did.
            fence(Ordering::Acquire);
            self.push(lot);
        }
    }

    /// A count of the lots that have gone back. Who sees another one than before finds the lot.
    pub(crate) fn returned(&self) -> u32 {
        (self.free.load(Ordering::Acquire) >> 32) as u32
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout; every slice holds an `Arc` of the arena, so none is
        // left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Where an arena lies in this process, so that a driver can register it with the kernel or with a DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSpan {
    /// Address of the first byte.
    pub base: usize,
    /// Length in bytes, whole pages.
    pub len: usize,
}

/// A run of registered memory with exactly one owner.
///
/// Reads like a `Box<[u8]>`, can be split and joined without copying, and goes back to its pool or mirror when
/// its last part is dropped.
pub struct Slice {
    arena: Arc<Arena>,
    lot: u32,
    start: usize,
    len: usize,
}

impl Slice {
    /// The arena this slice was cut from: which registered buffer a driver must name.
    pub fn arena(&self) -> ArenaSpan {
        self.arena.span()
    }

    /// Where in its arena the slice begins.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Cuts off and returns the first `at` bytes; `self` keeps the rest.
    ///
    /// # Panics
    ///
    /// When `at` is beyond the end.
    pub fn split_to(&mut self, at: usize) -> Slice {
        assert!(at <= self.len, "split at {at} of {}", self.len);
        // SAFETY: the first `at` bytes leave `self` in the next two lines, so no other slice covers them, or, in a `Shared`, none
        // that is ever written through.
        let front = unsafe { self.arena.slice(self.lot, self.start, at) };
        self.start += at;
        self.len -= at;
        front
    }

    /// Cuts off and returns everything from `at` on; `self` keeps the first `at` bytes.
    ///
    /// # Panics
    ///
    /// When `at` is beyond the end.
    pub fn split_off(&mut self, at: usize) -> Slice {
        let front = self.split_to(at);
        std::mem::replace(self, front)
    }

    /// Keeps the first `len` bytes, if there are more. The others are nobody's until the whole goes back.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Lets the first `count` bytes go, as [`Slice::truncate`] does with the last ones, and without counting anything.
    ///
    /// # Panics
    ///
    /// When there are fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len, "advance by {count} of {}", self.len);
        self.start += count;
        self.len -= count;
    }

    /// Joins two slices that lie side by side in one lot; gives both back where they do not.
    pub fn join(mut self, next: Slice) -> Result<Slice, (Slice, Slice)> {
        let adjacent = Arc::ptr_eq(&self.arena, &next.arena)
            && self.lot == next.lot
            && self.start + self.len == next.start;
        if !adjacent {
            return Err((self, next));
        }
        // What the next one covers is this one's from here on. It gives its count back, which is not the lot's last.
        self.len += next.len;
        Ok(self)
    }

    /// One more slice over a part of these bytes.
    ///
    /// # Safety
    ///
    /// Neither `self` nor what is returned may be written through from now on.
    pub(crate) unsafe fn alias(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies in its slice");
        // SAFETY: the caller promises that nobody writes there; the lot's count is not zero, because `self` is there.
        unsafe { self.arena.slice(self.lot, self.start + range.start, range.end - range.start) }
    }

    pub(crate) fn lies_in(&self, arena: &Arc<Arena>, lot: u32) -> bool {
        Arc::ptr_eq(&self.arena, arena) && self.lot == lot
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.arena.release(self.lot);
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the arena (checked when it was cut), is initialised (the arena is zeroed),
        // and belongs to this slice alone, so no one writes it while `&self` lives.
        unsafe { std::slice::from_raw_parts(self.arena.base.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for Slice {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` is the only way to these bytes now.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base.as_ptr().add(self.start), self.len) }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Slice({}..{})", self.start, self.start + self.len)
    }
}
