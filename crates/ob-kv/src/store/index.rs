//! Where each key's record lies: 16 bytes a key, in segments that split.
//!
//! ```text
//!   key ─▶ SipHash-1-3, 128 bits, with the store's name ─▶ tag (64 bits) and mark (12 bits)
//!
//!   directory: the tag's upper bits ─▶ segment: 64 slots ─▶ slot: tag │ address, size class, mark, whether it expires
//! ```
//!
//! A key is known by 76 bits of a keyed hash, and its bytes are compared only where its record is read anyway. Among a thousand
//! million keys the odds that any two are taken for one are one in 150,000; nobody can look for such a pair without the name, which is a secret.
//!
//! A segment holds a contiguous range of tags. When it is full it becomes two, each with one half of the range, so growing never
//! touches more than 64 keys (and, every time that the number of segments has doubled, the directory). `SCAN` goes by tags in
//! their order, so that splits do not disturb it: its cursor is a tag.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

/// Slots of a segment.
const SLOTS: usize = 64;
/// A segment with so many keys is split, so that a search soon meets a free slot.
const SLOTS_USED_MAX: usize = 60;

/// Segments that are looked at in one step of a scan.
const SCANNED_SEGMENTS_MAX: usize = 4096;

const ADDRESS_BITS: u32 = 44;
const ADDRESS_UNIT: u64 = 8;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const EXPIRES: u64 = 1 << ADDRESS_BITS;
const CLASS_SHIFT: u32 = ADDRESS_BITS + 1;
const CLASS_MASK: u64 = (1 << 7) - 1;
const MARK_SHIFT: u32 = CLASS_SHIFT + 7;

/// How a key is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyHash {
    pub(crate) tag: u64,
    mark: u16,
}

impl KeyHash {
    /// The hash of a key.
    pub(crate) fn of(secret: &[u8; 16], key: &[u8]) -> Self {
        let mut hasher = SipHasher13::new_with_key(secret);
        hasher.write(key);
        let hash = hasher.finish128();
        // A slot that is 0 is free.
        Self { tag: hash.h1.max(1), mark: (hash.h2 >> 52) as u16 }
    }
}

/// Where a record lies, and what can be known of it without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Where the record begins in the log.
    pub(crate) address: u64,
    /// It is not longer than that; see [`rounded_len`].
    pub(crate) len_max: usize,
    /// Whether the key is gone some day.
    pub(crate) expires: bool,
}

/// What the index says of a record's length: the next of the lengths that it can tell apart, at most a quarter more.
pub(crate) fn rounded_len(len: usize) -> usize {
    class_len(class_of(len))
}

fn class_of(len: usize) -> u64 {
    let units = (len as u64).div_ceil(8).max(4);
    let exponent = units.ilog2() - 2;
    let mantissa = units.div_ceil(1 << exponent);
    // From 4 to 8; the last of these is the next power of two.
    u64::from(exponent) * 4 + (mantissa - 4)
}

fn class_len(class: u64) -> usize {
    let (exponent, mantissa) = (class / 4, 4 + class % 4);
    ((mantissa << exponent) * 8) as usize
}

#[derive(Clone, Copy, Default)]
struct Slot {
    tag: u64,
    word: u64,
}

struct Segment {
    /// How many of the tag's upper bits all of its keys share.
    depth: u32,
    used: usize,
    /// In a box, so that the list of segments can grow without moving them.
    slots: Box<[Slot; SLOTS]>,
}

impl Segment {
    fn new(depth: u32) -> Self {
        Self { depth, used: 0, slots: Box::new([Slot::default(); SLOTS]) }
    }

    /// The key's slot, or the free one where the search ended. Never called without a free slot.
    fn find(&self, hash: KeyHash) -> usize {
        let mut at = hash.tag as usize % SLOTS;
        for _ in 0..SLOTS {
            let slot = &self.slots[at];
            if slot.tag == 0 || (slot.tag == hash.tag && slot.word >> MARK_SHIFT == u64::from(hash.mark)) {
                return at;
            }
            at = (at + 1) % SLOTS;
        }
        at
    }

    fn insert(&mut self, slot: Slot) {
        let mut at = slot.tag as usize % SLOTS;
        while self.slots[at].tag != 0 {
            at = (at + 1) % SLOTS;
        }
        self.slots[at] = slot;
        self.used += 1;
    }

    /// Frees a slot, and moves those behind it up that a search would no longer reach.
    fn remove(&mut self, mut hole: usize) {
        self.slots[hole] = Slot::default();
        self.used -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) % SLOTS;
            let slot = self.slots[at];
            if slot.tag == 0 {
                return;
            }
            let home = slot.tag as usize % SLOTS;
            // Whether the hole lies on the way from its home to where it is.
            if (at + SLOTS - home) % SLOTS >= (at + SLOTS - hole) % SLOTS {
                self.slots[hole] = slot;
                self.slots[at] = Slot::default();
                hole = at;
            }
        }
    }
}

/// The index.
pub(crate) struct Index {
    /// Which segment the tags with these upper bits are in; there are two to the power of `depth`.
    directory: Vec<u32>,
    depth: u32,
    segments: Vec<Segment>,
    keys: u64,
    expiring: u64,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { directory: vec![0], depth: 0, segments: vec![Segment::new(0)], keys: 0, expiring: 0 }
    }

    /// How many keys there are.
    pub(crate) fn len(&self) -> u64 {
        self.keys
    }

    /// How many of them are gone some day.
    pub(crate) fn expiring(&self) -> u64 {
        self.expiring
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_len(&self) -> usize {
        let segment_len = size_of::<Segment>() + SLOTS * size_of::<Slot>();
        self.segments.len() * segment_len + self.directory.len() * size_of::<u32>()
    }

    /// Whether a new key needs more memory.
    pub(crate) fn would_grow(&self, hash: KeyHash) -> bool {
        self.segment(hash.tag).used >= SLOTS_USED_MAX
    }

    /// Where the key's record is. `begin` is where the log begins: addresses are kept without their upper bits.
    pub(crate) fn find(&self, hash: KeyHash, begin: u64) -> Option<Place> {
        let segment = self.segment(hash.tag);
        let slot = segment.slots[segment.find(hash)];
        (slot.tag != 0).then(|| place(slot.word, begin))
    }

    /// Says where the key's record is, and gives where it was.
    pub(crate) fn insert(&mut self, hash: KeyHash, new: Place, begin: u64) -> Option<Place> {
        let word = (new.address / ADDRESS_UNIT) & ADDRESS_MASK
            | if new.expires { EXPIRES } else { 0 }
            | class_of(new.len_max) << CLASS_SHIFT
            | u64::from(hash.mark) << MARK_SHIFT;
        loop {
            let number = self.number(hash.tag);
            let segment = &mut self.segments[number];
            let at = segment.find(hash);
            let slot = &mut segment.slots[at];
            if slot.tag != 0 {
                let old = place(slot.word, begin);
                slot.word = word;
                self.expiring = self.expiring + u64::from(new.expires) - u64::from(old.expires);
                return Some(old);
            }
            if segment.used < SLOTS_USED_MAX {
                segment.insert(Slot { tag: hash.tag, word });
                self.keys += 1;
                self.expiring += u64::from(new.expires);
                return None;
            }
            self.split(number, hash.tag);
        }
    }

    /// Forgets a key, and gives where its record was.
    pub(crate) fn remove(&mut self, hash: KeyHash, begin: u64) -> Option<Place> {
        let number = self.number(hash.tag);
        let segment = &mut self.segments[number];
        let at = segment.find(hash);
        let slot = segment.slots[at];
        if slot.tag == 0 {
            return None;
        }
        segment.remove(at);
        let old = place(slot.word, begin);
        self.keys -= 1;
        self.expiring -= u64::from(old.expires);
        Some(old)
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Hashes and records of up to about `count` keys whose tags are `cursor` or more, in the order of tags, and the cursor to
    /// go on with; 0 at the end.
    pub(crate) fn scan(
        &self,
        cursor: u64,
        count: usize,
        begin: u64,
        found: &mut Vec<(KeyHash, Place)>,
    ) -> u64 {
        let mut from = cursor;
        let mut slots = Vec::with_capacity(SLOTS);
        // Where many keys were removed, many segments are empty.
        for _ in 0..SCANNED_SEGMENTS_MAX {
            let segment = self.segment(from);
            slots.clear();
            slots.extend(segment.slots.iter().filter(|slot| slot.tag >= from && slot.tag != 0).copied());
            slots.sort_unstable_by_key(|slot| slot.tag);
            for (at, slot) in slots.iter().enumerate() {
                // Keys of one tag are never told apart by a cursor, and go together.
                let is_tag_over = at == 0 || slots[at - 1].tag != slot.tag;
                if found.len() >= count && is_tag_over {
                    return slot.tag;
                }
                let mark = (slot.word >> MARK_SHIFT) as u16;
                found.push((KeyHash { tag: slot.tag, mark }, place(slot.word, begin)));
            }
            let next = range_end(from, segment.depth);
            let Some(next) = next else { return 0 };
            if found.len() >= count {
                return next;
            }
            from = next;
        }
        from
    }

    fn number(&self, tag: u64) -> usize {
        self.directory[upper_bits(tag, self.depth)] as usize
    }

    fn segment(&self, tag: u64) -> &Segment {
        &self.segments[self.number(tag)]
    }

    /// Gives one half of a segment's range to a new one.
    fn split(&mut self, number: usize, tag: u64) {
        let depth = self.segments[number].depth;
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|segment| [*segment; 2]).collect();
            self.depth += 1;
        }
        let old = std::mem::replace(&mut self.segments[number], Segment::new(depth + 1));
        let new_number = self.segments.len();
        let mut new = Segment::new(depth + 1);
        for slot in old.slots.iter().filter(|slot| slot.tag != 0) {
            let is_upper = upper_bits(slot.tag, depth + 1) & 1 == 1;
            if is_upper { new.insert(*slot) } else { self.segments[number].insert(*slot) }
        }
        self.segments.push(new);
        // The entries of the directory that named the old segment are neighbours; the upper half of them changes.
        let width = 1_usize << (self.depth - depth);
        let first = upper_bits(tag, depth) << (self.depth - depth);
        self.directory[first + width / 2..first + width].fill(new_number as u32);
    }
}

fn upper_bits(tag: u64, count: u32) -> usize {
    if count == 0 { 0 } else { (tag >> (64 - count)) as usize }
}

/// The tag behind the range, with so many upper bits in common, that the tag is in; none behind the last range.
fn range_end(tag: u64, depth: u32) -> Option<u64> {
    let width = 1_u64.checked_shl(64 - depth)?;
    (tag & !(width - 1)).checked_add(width)
}

fn place(word: u64, begin: u64) -> Place {
    let base = begin / ADDRESS_UNIT;
    let beyond = (word & ADDRESS_MASK).wrapping_sub(base) & ADDRESS_MASK;
    Place {
        address: (base + beyond) * ADDRESS_UNIT,
        len_max: class_len(word >> CLASS_SHIFT & CLASS_MASK),
        expires: word & EXPIRES != 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const SECRET: [u8; 16] = *b"a secret of ours";

    fn hash(number: u64) -> KeyHash {
        KeyHash::of(&SECRET, &number.to_le_bytes())
    }

    fn at(address: u64) -> Place {
        Place { address, len_max: 40, expires: address.is_multiple_of(3) }
    }

    #[test]
    fn lengths_are_rounded_up_by_a_quarter_at_most() {
        for len in (1..2000).chain([4096, 65_536, (64 << 20) + 70_000]) {
            let rounded = rounded_len(len);
            assert!(rounded >= len && rounded <= (len + len / 4 + 8).max(32), "{len} {rounded}");
            assert_eq!(rounded_len(rounded), rounded);
            assert!(class_of(len) <= CLASS_MASK);
        }
    }

    #[test]
    fn addresses_come_back_however_far_the_log_has_grown() {
        let mut index = Index::new();
        let begin = (1 << 60) + 4096;
        index.insert(hash(1), at(begin + 800), begin);
        assert_eq!(index.find(hash(1), begin).map(|place| place.address), Some(begin + 800));
        let window = ADDRESS_UNIT << ADDRESS_BITS;
        index.insert(hash(1), at(begin + window - 8), begin);
        assert_eq!(index.find(hash(1), begin).map(|place| place.address), Some(begin + window - 8));
    }

    #[test]
    fn a_scan_finds_what_stays_while_segments_split() {
        let mut index = Index::new();
        for number in 0..500 {
            index.insert(hash(number), at(number * 8), 0);
        }
        let mut seen = BTreeMap::<u64, u32>::new();
        let (mut cursor, mut found, mut next) = (0, Vec::new(), 500);
        loop {
            found.clear();
            cursor = index.scan(cursor, 7, 0, &mut found);
            assert!(found.len() <= 7);
            for (_, place) in &found {
                *seen.entry(place.address / 8).or_default() += 1;
            }
            if cursor == 0 {
                break;
            }
            let end = (next + 100).min(4000);
            for number in next..end {
                index.insert(hash(number), at(number * 8), 0);
            }
            next = end;
        }
        for number in 0..500 {
            assert_eq!(seen.get(&number), Some(&1), "{number}");
        }
        assert!(index.segments.len() > 60);
    }

    proptest! {
        #[test]
        fn it_is_a_map(changes in prop::collection::vec((0_u64..300, prop::option::of(0_u64..1 << 30)), 0..2000)) {
            let mut index = Index::new();
            let mut model = BTreeMap::new();
            for (key, address) in changes {
                match address {
                    Some(address) => {
                        let old = index.insert(hash(key), at(address * 8), 0);
                        prop_assert_eq!(old, model.insert(key, at(address * 8)));
                    }
                    None => prop_assert_eq!(index.remove(hash(key), 0), model.remove(&key)),
                }
            }
            prop_assert_eq!(index.len(), model.len() as u64);
            prop_assert_eq!(index.expiring(), model.values().filter(|place| place.expires).count() as u64);
            for key in 0..300 {
                prop_assert_eq!(index.find(hash(key), 0), model.get(&key).copied());
            }
            let mut found = Vec::new();
            prop_assert_eq!(index.scan(0, usize::MAX, 0, &mut found), 0);
            let found: BTreeSet<u64> = found.iter().map(|(_, place)| place.address).collect();
            prop_assert_eq!(found, model.values().map(|place| place.address).collect::<BTreeSet<u64>>());
        }
    }
}
