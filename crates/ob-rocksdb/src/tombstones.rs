//! Tombstones of ranges: everything from one key to another that was written before is gone.

use crate::error::ParseError;
use crate::keys::{InternalKey, Kind, Sequence};
use crate::plant::{Bug, is_planted};

/// One tombstone: the keys from `start` on and before `end` are gone, if older.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tombstone {
    /// The first key.
    pub start: Vec<u8>,
    /// The key at which it ends.
    pub end: Vec<u8>,
    /// When it was written.
    pub sequence: Sequence,
}

/// Where a table's tombstones hold. A compaction cuts a tombstone that spans several tables by the tables' bounds, but writes it whole:
/// what was behind a bound may since have become so old that it has no sequence number any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The table's first key and its number.
    smallest: (Vec<u8>, Sequence),
    /// Its last key and its number.
    largest: (Vec<u8>, Sequence),
    /// Whether the last key is where a tombstone ends, and so does not belong to the table.
    pub is_largest_outside: bool,
}

impl Bounds {
    /// The bounds that a table has in the manifest.
    ///
    /// # Errors
    /// When they are no internal keys.
    pub fn new(smallest: &[u8], largest: &[u8]) -> Result<Self, ParseError> {
        let (smallest, largest) = (InternalKey::parse(smallest)?, InternalKey::parse(largest)?);
        let is_largest_outside = largest.kind == Kind::RangeDeletion && largest.sequence == Sequence::MAX;
        let owned = |key: InternalKey<'_>| (key.user.to_vec(), key.sequence);
        Ok(Self { smallest: owned(smallest), largest: owned(largest), is_largest_outside })
    }

    /// The first user's key.
    #[must_use]
    pub fn smallest(&self) -> &[u8] {
        &self.smallest.0
    }

    /// The last user's key.
    #[must_use]
    pub fn largest(&self) -> &[u8] {
        &self.largest.0
    }

    /// Whether the table can have this user's key, as visible at a snapshot.
    #[must_use]
    pub fn contains(&self, user: &[u8], snapshot: Sequence) -> bool {
        user >= self.smallest()
            && (user < self.largest()
                || user == self.largest() && !self.is_largest_outside && self.largest.1 <= snapshot)
    }

    /// Whether the table's tombstones hold for an entry of any table.
    #[must_use]
    pub fn hold_for(&self, user: &[u8], sequence: Sequence) -> bool {
        let is_behind_smallest =
            user > self.smallest() || user == self.smallest() && sequence <= self.smallest.1;
        let is_before_largest = user < self.largest()
            || user == self.largest() && !self.is_largest_outside && sequence >= self.largest.1;
        is_behind_smallest && is_before_largest
    }
}

/// The tombstones of a table or a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstones {
    // By where they begin.
    all: Vec<Tombstone>,
    // How far those up to an index reach: a search backwards may stop where none of them reaches the key.
    reach: Vec<Vec<u8>>,
}

impl Tombstones {
    /// Puts them in order. Empty ranges are left out.
    #[must_use]
    pub fn new(mut all: Vec<Tombstone>) -> Self {
        all.retain(|tombstone| tombstone.start < tombstone.end);
        all.sort_unstable();
        let mut reach: Vec<Vec<u8>> = Vec::with_capacity(all.len());
        for tombstone in &all {
            let before = reach.last().filter(|before| **before > tombstone.end);
            reach.push(before.unwrap_or(&tombstone.end).clone());
        }
        Self { all, reach }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them, by where they begin.
    #[must_use]
    pub fn all(&self) -> &[Tombstone] {
        &self.all
    }

    /// The newest one that is visible at a snapshot and spans a key; 0 if none does.
    #[must_use]
    pub fn covering(&self, user: &[u8], snapshot: Sequence) -> Sequence {
        if is_planted(Bug::TombstonesIgnored) {
            return Sequence(0);
        }
        let behind = self.all.partition_point(|tombstone| tombstone.start[..] <= *user);
        let mut newest = Sequence(0);
        for (tombstone, reach) in self.all[..behind].iter().zip(&self.reach).rev() {
            if reach[..] <= *user {
                break;
            }
            if tombstone.end[..] > *user && tombstone.sequence <= snapshot {
                newest = newest.max(tombstone.sequence);
            }
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_newest_covering_one_is_found(
            list in prop::collection::vec((0..20_u8, 0..20_u8, 1..50_u64), 0..30),
            key in 0..20_u8,
            snapshot in 0..60_u64,
        ) {
            let all = list.iter().map(|(start, end, sequence)| {
                Tombstone { start: vec![*start], end: vec![*end], sequence: Sequence(*sequence) }
            });
            let tombstones = Tombstones::new(all.collect());
            let holds = |(start, end, sequence): &&(u8, u8, u64)| *start <= key && key < *end && *sequence <= snapshot;
            let expected = list.iter().filter(holds).map(|(_, _, sequence)| *sequence).max().unwrap_or(0);
            prop_assert_eq!(tombstones.covering(&[key], Sequence(snapshot)), Sequence(expected));
        }
    }

    #[test]
    fn bounds_cut() {
        let of = |user: &[u8], sequence, kind| crate::keys::encode(user, Sequence(sequence), kind);
        let inner = Bounds::new(&of(b"c", 5, Kind::Value), &of(b"m", 7, Kind::Value)).unwrap();
        assert!(inner.hold_for(b"c", Sequence(5)) && !inner.hold_for(b"c", Sequence(6)));
        assert!(inner.hold_for(b"m", Sequence(7)) && !inner.hold_for(b"m", Sequence(6)));
        assert!(!inner.hold_for(b"b", Sequence(0)) && !inner.hold_for(b"n", Sequence(0)));
        assert!(inner.contains(b"m", Sequence(7)) && !inner.contains(b"m", Sequence(6)));
        let outside =
            Bounds::new(&of(b"c", 5, Kind::Value), &of(b"m", Sequence::MAX.0, Kind::RangeDeletion)).unwrap();
        assert!(!outside.contains(b"m", Sequence::MAX) && !outside.hold_for(b"m", Sequence(9)));
        assert!(outside.contains(b"l", Sequence(0)));
    }
}
