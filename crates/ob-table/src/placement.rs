//! Where a key can be: two buckets, and a tag that tells most keys apart without looking at them.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::Key;
use crate::sync::SLOTS;

/// Bits of a tag: five of them fill one word.
const TAG_BITS: u32 = 12;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;

/// The lowest bit of each lane, and the highest.
const LOW: u64 = lanes(1);
const HIGH: u64 = lanes(1 << (TAG_BITS - 1));

const fn lanes(value: u64) -> u64 {
    let mut word = 0;
    let mut slot = 0;
    while slot < SLOTS {
        word |= value << (slot as u32 * TAG_BITS);
        slot += 1;
    }
    word
}

/// A tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u16);

/// Where a key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The primary bucket. (It and the other are not an array: written as two numbers and read as one, they would have each
    /// lookup wait for the memory of the one before.)
    pub(crate) first: u32,
    /// The other bucket, which is never the same.
    pub(crate) second: u32,
    pub(crate) tag: Tag,
}

impl Place {
    /// A place of no key, to begin with.
    pub(crate) const NOWHERE: Self = Self { first: 0, second: 0, tag: Tag(0) };

    /// Both buckets, the primary one first.
    pub(crate) fn buckets(&self) -> [u32; 2] {
        [self.first, self.second]
    }
}

/// Maps keys to places.
///
/// The other bucket follows from one bucket and the tag alone, `other = (sum(tag) - bucket) mod buckets`, so that the
/// writer displaces entries without looking at their keys. With an even number of buckets and odd sums the two differ.
#[derive(Clone)]
pub(crate) struct Placement {
    secret: SharedSeed,
    buckets: u32,
}

impl Placement {
    pub(crate) fn new(buckets: u32, seed: Option<u64>) -> Self {
        debug_assert!(buckets >= 2 && buckets.is_multiple_of(2));
        // The standard library's keys come from the system's random numbers.
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(buckets));
        Self { secret: SharedSeed::from_u64(seed), buckets }
    }

    #[inline(always)]
    pub(crate) fn place(&self, key: &Key) -> Place {
        let mut hasher = FoldHasher::with_seed(key.len().into(), &self.secret);
        // By words, and not by bytes of a length that differs from key to key. Behind the length they are all zero.
        let words = key.words();
        for word in &words[..key.words_in_use()] {
            hasher.write_u64(*word);
        }
        let hash = hasher.finish();
        let tag = Tag((hash & TAG_MASK) as u16);
        let first = scale(hash >> 32, self.buckets);
        Place { first, second: self.other(first, tag), tag }
    }

    /// The other bucket of a key that has this tag and can be in this bucket.
    #[inline(always)]
    pub(crate) fn other(&self, bucket: u32, tag: Tag) -> u32 {
        let mixed = (u64::from(tag.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sum = scale(mixed >> 32, self.buckets / 2) * 2 + 1;
        let other = sum + self.buckets - bucket;
        if other >= self.buckets { other - self.buckets } else { other }
    }
}

/// A number of 32 bits, scaled down to below `range`.
#[inline(always)]
fn scale(number: u64, range: u32) -> u32 {
    ((number * u64::from(range)) >> 32) as u32
}

impl Tag {
    /// The tag of a slot, out of a bucket's word of tags.
    #[inline]
    pub(crate) fn of(tags: u64, slot: usize) -> Self {
        Self((tags >> (slot as u32 * TAG_BITS) & TAG_MASK) as u16)
    }

    /// The word of tags with this one at a slot.
    #[inline]
    pub(crate) fn put(self, tags: u64, slot: usize) -> u64 {
        let shift = slot as u32 * TAG_BITS;
        tags & !(TAG_MASK << shift) | u64::from(self.0) << shift
    }

    /// The slot that an entry with this tag is put into, if it is free in one of its buckets.
    #[inline(always)]
    pub(crate) fn home(self) -> usize {
        (usize::from(self.0) * SLOTS) >> TAG_BITS
    }

    /// The slots that have this tag, and now and then one more above them.
    #[inline(always)]
    pub(crate) fn matches(self, tags: u64) -> Matches {
        let difference = tags ^ LOW.wrapping_mul(u64::from(self.0));
        // A lane of zero borrows, and shows in its highest bit; it can make the lane above look like one as well.
        Matches(difference.wrapping_sub(LOW) & !difference & HIGH)
    }
}

/// Slots, lowest first.
#[derive(Clone, Copy)]
pub(crate) struct Matches(u64);

impl Iterator for Matches {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = (self.0.trailing_zeros() / TAG_BITS) as usize;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_other_bucket_of_the_other_bucket_is_the_first(
            bytes in proptest::collection::vec(any::<u8>(), 1..=32),
            half in 1u32..=1 << 30,
            seed: u64,
        ) {
            let placement = Placement::new(half * 2, Some(seed));
            let Place { first, second, tag } = placement.place(&Key::new(&bytes).unwrap());
            prop_assert!(first < half * 2 && second < half * 2 && first != second);
            prop_assert_eq!((placement.other(first, tag), placement.other(second, tag)), (second, first));
        }

        #[test]
        fn every_slot_with_the_tag_is_found(tags in proptest::collection::vec(0u16..4096, SLOTS), wanted in 0u16..4096) {
            let mut word = u64::MAX;
            for (slot, tag) in tags.iter().enumerate() {
                word = Tag(*tag).put(word, slot);
                prop_assert_eq!(Tag::of(word, slot), Tag(*tag));
            }
            for wanted in tags.iter().copied().chain([wanted]) {
                let found: Vec<usize> = Tag(wanted).matches(word).collect();
                prop_assert!(found.iter().all(|slot| *slot < SLOTS));
                for (slot, tag) in tags.iter().enumerate() {
                    prop_assert!(*tag != wanted || found.contains(&slot));
                }
            }
        }
    }

    #[test]
    fn a_secret_moves_keys() {
        let key = Key::new(b"key").unwrap();
        let places: Vec<Place> = (0..8).map(|seed| Placement::new(1 << 20, Some(seed)).place(&key)).collect();
        assert!(places.windows(2).any(|pair| pair[0] != pair[1]));
        assert_eq!(Placement::new(1 << 20, Some(3)).place(&key), places[3]);
    }
}
