//! Buckets in memory.
//!
//! ```text
//!   bucket, 384 bytes                           slot, 64 bytes
//!   ┌──────┬─────┬───────┬──────┬───────────┐   ┌────────────┬────────────┬─────────┐
//!   │ floor│ seq │ chain │ tags │ states[5] │   │ key[4]     │ item[3]    │ lengths │
//!   │ 8    │ 4   │ 4     │ 8    │ 40        │   │ 32         │ 24         │ 8       │
//!   ├──────┴─────┴───────┴──────┴───────────┤   └────────────┴────────────┴─────────┘
//!   │ slot 0 ... slot 4, a cache line each  │
//!   └───────────────────────────────────────┘
//! ```
//!
//! Everything is an atomic, so that a reader who looks at a slot while it is written sees a mixture and not undefined
//! behaviour. All zeroes is an empty bucket, which is why memory that the system hands out zeroed, and only when it is first
//! touched, needs no preparation.

use std::ops::Deref;

use crate::config::ConfigError;
use crate::placement::Tag;
use crate::state::State;
use crate::sync::{AtomicU32, AtomicU64, ITEM_WORDS, KEY_WORDS, Ordering, SLOTS};
use crate::{Item, Key};

/// Five slots, and what is common to them.
#[repr(C, align(64))]
pub(crate) struct Bucket {
    /// See [`crate::state::Floor`]. Not used in overflow buckets: the floor of the bucket that they are chained to counts.
    pub(crate) floor: AtomicU64,
    /// Counts up before a slot of the bucket, or of its chain, is filled, and again after. Not used in overflow buckets.
    pub(crate) seq: AtomicU32,
    /// The index of the next bucket of the chain, and 1; or 0.
    pub(crate) chain: AtomicU32,
    /// See [`Tag`].
    pub(crate) tags: AtomicU64,
    /// See [`State`].
    pub(crate) states: [AtomicU64; SLOTS],
    slots: [Slot; SLOTS],
}

#[repr(C, align(64))]
struct Slot {
    key: [AtomicU64; KEY_WORDS],
    item: [AtomicU64; ITEM_WORDS],
    /// The key's length, and the item's above it.
    lengths: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Bucket>() == 384 && size_of::<Slot>() == 64);
    assert!(
        offset_of!(Bucket, floor) == 0 && offset_of!(Bucket, seq) == 8 && offset_of!(Bucket, chain) == 12
    );
    assert!(
        offset_of!(Bucket, tags) == 16 && offset_of!(Bucket, states) == 24 && offset_of!(Bucket, slots) == 64
    );
    assert!(offset_of!(Slot, item) == 32 && offset_of!(Slot, lengths) == 56);
};

impl Bucket {
    #[inline(always)]
    pub(crate) fn state(&self, slot: usize, order: Ordering) -> State {
        State(self.states[slot].load(order))
    }

    /// Takes a slot's entry out. From now on nobody brings it back to life, and the writer may fill the slot.
    pub(crate) fn take_out(&self, slot: usize) -> State {
        State(self.states[slot].swap(State::FREE.0, Ordering::AcqRel))
    }

    /// Gives a free slot a state, and with it what was written there to the others.
    ///
    /// A store would do: nobody else leaves the free state. But an invalidator may just be putting *free* in the place of *free*,
    /// and loom, which does not know that nothing comes between the two halves of a read-modify-write, would take that for
    /// the newer one.
    pub(crate) fn publish(&self, slot: usize, state: State) {
        self.states[slot].swap(state.0, Ordering::AcqRel);
    }

    /// Makes an entry older than the tombstone into that tombstone; what was there before.
    #[inline]
    pub(crate) fn strike(&self, slot: usize, tombstone: State) -> State {
        if crate::plant::is_planted(crate::plant::Bug::PlainStore) {
            return State(self.states[slot].swap(tombstone.0, Ordering::AcqRel));
        }
        State(self.states[slot].fetch_min(tombstone.0, Ordering::AcqRel))
    }

    /// The tag that a slot has.
    #[inline]
    pub(crate) fn tag(&self, slot: usize) -> Tag {
        Tag::of(self.tags.load(Ordering::Acquire), slot)
    }

    /// Whether a slot has this key, as far as can be seen while it may be written.
    #[inline(always)]
    pub(crate) fn has_key(&self, slot: usize, key: &Key) -> bool {
        let slot = &self.slots[slot];
        let mut difference = u64::from(slot.lengths.load(Ordering::Relaxed) as u8 ^ key.len());
        for (stored, wanted) in slot.key.iter().zip(key.words()) {
            difference |= stored.load(Ordering::Relaxed) ^ wanted;
        }
        difference == 0
    }

    /// A slot's item, or a mixture of two while it is written.
    #[inline(always)]
    pub(crate) fn item(&self, slot: usize) -> Item {
        let slot = &self.slots[slot];
        let len = (slot.lengths.load(Ordering::Relaxed) >> 8) as u8;
        Item::from_words(std::array::from_fn(|word| slot.item[word].load(Ordering::Relaxed)), len)
    }

    /// A slot's key. Only the writer asks, so it is whole.
    pub(crate) fn key(&self, slot: usize) -> Key {
        let slot = &self.slots[slot];
        let len = slot.lengths.load(Ordering::Relaxed) as u8;
        Key::from_words(std::array::from_fn(|word| slot.key[word].load(Ordering::Relaxed)), len)
    }

    /// Writes a slot whose state is free. Only the writer does, between two counts of the sequence.
    pub(crate) fn write(&self, slot: usize, tag: Tag, key: &Key, item: &Item) {
        // Release, because an invalidator that sees the new tag must also see where the old entry went.
        self.tags.store(tag.put(self.tags.load(Ordering::Relaxed), slot), Ordering::Release);
        let slot = &self.slots[slot];
        for (word, value) in slot.key.iter().zip(key.words()) {
            word.store(value, Ordering::Relaxed);
        }
        for (word, value) in slot.item.iter().zip(item.words()) {
            word.store(value, Ordering::Relaxed);
        }
        slot.lengths.store(u64::from(key.len()) | u64::from(item.len()) << 8, Ordering::Relaxed);
    }

    /// Hints that a slot will be read soon.
    #[inline(always)]
    pub(crate) fn prefetch_slot(&self, slot: usize) {
        prefetch(&raw const self.slots[slot]);
    }

    /// Hints that the bucket will be looked at soon.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(&raw const self.floor);
    }
}

#[inline]
fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
    {
        // SAFETY: a prefetch of any address is harmless, and changes neither memory nor flags.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
        }
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri), not(loom))))]
    let _ = address;
}

/// All buckets of a table, in one allocation.
#[cfg(not(loom))]
pub(crate) struct Buckets {
    first: std::ptr::NonNull<Bucket>,
    count: usize,
    allocation: std::ptr::NonNull<u8>,
    layout: std::alloc::Layout,
}

// SAFETY: the memory belongs to this value alone, and buckets are made of atomics.
#[cfg(not(loom))]
unsafe impl Send for Buckets {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for Buckets {}

#[cfg(not(loom))]
impl Buckets {
    /// Tables of at least one large page begin at one: half of a random access is the walk through page tables.
    const LARGE_PAGE: usize = 2 << 20;

    pub(crate) fn new(count: u32) -> Result<Self, ConfigError> {
        use std::alloc::{Layout, alloc_zeroed};
        use std::ptr::NonNull;

        let failure = ConfigError::Memory { bytes: u64::from(count) * size_of::<Bucket>() as u64 };
        let count = count as usize;
        let len = count.checked_mul(size_of::<Bucket>()).ok_or(failure)?;
        let align = if len >= Self::LARGE_PAGE { Self::LARGE_PAGE } else { align_of::<Bucket>() };
        // Asked for a larger alignment the allocator would clear the memory by hand, and so touch all of it.
        let layout =
            len.checked_add(align).and_then(|len| Layout::from_size_align(len, 16).ok()).ok_or(failure)?;
        // SAFETY: the layout's size is not zero, since the alignment is part of it.
        let allocation = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(failure)?;
        let gap = allocation.addr().get().wrapping_neg() % align;
        // SAFETY: the gap is less than `align`, and the allocation has `len + align` bytes.
        let first = unsafe { allocation.add(gap) };
        advise_large_pages(first, len, align);
        Ok(Self { first: first.cast(), count, allocation, layout })
    }

    /// One of them.
    ///
    /// # Panics
    /// When there is no such bucket.
    // Not through the slice: Miri looks at every byte that a reference leads to whenever one is made.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> &Bucket {
        assert!((index as usize) < self.count, "there are {} buckets, and no number {index}", self.count);
        // SAFETY: as for the slice below, of which this is an element.
        unsafe { self.first.add(index as usize).as_ref() }
    }
}

#[cfg(all(not(loom), not(miri)))]
fn advise_large_pages(first: std::ptr::NonNull<u8>, len: usize, align: usize) {
    if align == Buckets::LARGE_PAGE {
        // SAFETY: the range lies in our own allocation, is aligned to pages at its start, and the advice changes no byte.
        // Without large pages the table is slower and nothing else, so a refusal does not matter.
        let _ = unsafe { rustix::mm::madvise(first.as_ptr().cast(), len, rustix::mm::Advice::LinuxHugepage) };
    }
}

#[cfg(all(not(loom), miri))]
fn advise_large_pages(_first: std::ptr::NonNull<u8>, _len: usize, _align: usize) {}

#[cfg(not(loom))]
impl Deref for Buckets {
    type Target = [Bucket];

    #[inline]
    fn deref(&self) -> &[Bucket] {
        // SAFETY: aligned, inside of the allocation that lives as long as `self`, and all zeroes at first, which is a legal
        // bucket; nothing ever refers to it mutably.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

#[cfg(not(loom))]
impl Drop for Buckets {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout; atomics need no drop.
        unsafe { std::alloc::dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

/// All buckets of a table; loom's atomics do not live in zeroed memory.
#[cfg(loom)]
pub(crate) struct Buckets(Box<[Bucket]>);

#[cfg(loom)]
impl Buckets {
    pub(crate) fn new(count: u32) -> Result<Self, ConfigError> {
        Ok(Self((0..count).map(|_| Bucket::empty()).collect()))
    }

    pub(crate) fn at(&self, index: u32) -> &Bucket {
        &self.0[index as usize]
    }
}

#[cfg(loom)]
impl Deref for Buckets {
    type Target = [Bucket];

    fn deref(&self) -> &[Bucket] {
        &self.0
    }
}

#[cfg(loom)]
impl Bucket {
    fn empty() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            floor: zero(),
            seq: AtomicU32::new(0),
            chain: AtomicU32::new(0),
            tags: zero(),
            states: std::array::from_fn(|_| zero()),
            slots: std::array::from_fn(|_| Slot {
                key: std::array::from_fn(|_| zero()),
                item: std::array::from_fn(|_| zero()),
                lengths: zero(),
            }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Name, offset and length of the fields in the tables of the document.
    fn documented() -> Vec<(&'static str, usize, usize)> {
        let rows = include_str!("../../../docs/table.md").lines().filter(|line| line.starts_with("| `"));
        let field = |line: &'static str| {
            let mut cells = line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`'));
            Some((cells.next()?, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?))
        };
        rows.filter_map(field).collect()
    }

    #[test]
    fn every_field_is_where_the_document_says() {
        use std::mem::offset_of;
        let bucket = [
            ("floor", offset_of!(Bucket, floor), size_of::<AtomicU64>()),
            ("seq", offset_of!(Bucket, seq), size_of::<AtomicU32>()),
            ("chain", offset_of!(Bucket, chain), size_of::<AtomicU32>()),
            ("tags", offset_of!(Bucket, tags), size_of::<AtomicU64>()),
            ("states", offset_of!(Bucket, states), size_of::<[AtomicU64; SLOTS]>()),
            ("slots", offset_of!(Bucket, slots), size_of::<[Slot; SLOTS]>()),
        ];
        let slot = [
            ("key", offset_of!(Slot, key), size_of::<[AtomicU64; KEY_WORDS]>()),
            ("item", offset_of!(Slot, item), size_of::<[AtomicU64; ITEM_WORDS]>()),
            ("lengths", offset_of!(Slot, lengths), size_of::<AtomicU64>()),
        ];
        assert_eq!(documented(), [&bucket[..], &slot[..]].concat());
    }

    #[test]
    fn buckets_are_aligned_and_empty() {
        for count in [1, 2, 7, if cfg!(miri) { 20 } else { 6000 }] {
            let buckets = Buckets::new(count).unwrap();
            assert_eq!((buckets.len(), (&raw const buckets[0]).addr() % 64), (count as usize, 0));
            for bucket in buckets.iter() {
                assert!((0..SLOTS).all(|slot| bucket.state(slot, Ordering::Relaxed).is_free()));
                assert_eq!(bucket.floor.load(Ordering::Relaxed), 0);
            }
        }
    }

    #[test]
    fn a_slot_gives_back_what_was_written() {
        let buckets = Buckets::new(2).unwrap();
        let (key, item) = (Key::new(b"the key").unwrap(), Item::new(b"the item").unwrap());
        let tag = Tag::of(0xabc, 0);
        buckets[1].write(3, tag, &key, &item);
        assert_eq!((buckets[1].key(3), buckets[1].item(3), buckets[1].tag(3)), (key, item, tag));
        assert!(buckets[1].has_key(3, &key) && !buckets[1].has_key(3, &Key::new(b"the keY").unwrap()));
        assert!(!buckets[1].has_key(3, &Key::new(b"the key\0").unwrap()), "the length counts");
        assert!(!buckets[1].has_key(2, &key) && !buckets[0].has_key(3, &key));
    }
}
