//! Which records are over when: keys that nobody looks at go at their time, without a read.
//!
//! ```text
//!   record with an expiry appended ─▶ add(expires, hash, address) ─▶ bucket of its second ─▶ due(now) ─▶ hash, address
//! ```
//!
//! An entry holds if the index still names its address: a record never changes, so if it is still the key's newest, the key is
//! over. Entries of records that were replaced stay until their time, and mean nothing then. The memory is bounded; a record for
//! which there is none left is noticed by whoever looks at it, by compaction, and by a walk through the index (`overdue`).

use std::collections::BTreeMap;

use super::index::KeyHash;

/// Milliseconds of a bucket.
const BUCKET_MS: u64 = 1024;
/// Bytes that an entry is counted as, and a bucket.
const ENTRY_LEN: usize = size_of::<(KeyHash, u64)>();
const BUCKET_LEN: usize = 96;

/// Records that are over some day.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    buckets: BTreeMap<u64, Vec<(KeyHash, u64)>>,
    entries: usize,
    len_max: usize,
    /// Whether a record found no room since the list was made.
    has_unlisted: bool,
}

impl Expiry {
    /// Takes this much memory at most.
    pub(crate) fn new(len_max: usize) -> Self {
        Self { len_max, ..Self::default() }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_len(&self) -> usize {
        self.entries * ENTRY_LEN + self.buckets.len() * BUCKET_LEN
    }

    /// Remembers a record; whether there was room.
    pub(crate) fn add(&mut self, expires: u64, hash: KeyHash, address: u64) -> bool {
        let has_room = self.memory_len() + ENTRY_LEN + BUCKET_LEN <= self.len_max;
        if has_room {
            self.buckets.entry(expires / BUCKET_MS).or_default().push((hash, address));
            self.entries += 1;
        }
        self.has_unlisted |= !has_room;
        has_room
    }

    /// Whether there may be records that it does not have.
    pub(crate) fn has_unlisted(&self) -> bool {
        self.has_unlisted
    }

    /// Forgets everything to be made anew, if so many records have room; whether that is so.
    pub(crate) fn relist(&mut self, count: u64) -> bool {
        // Each may have a bucket to itself.
        let len = count.saturating_mul((ENTRY_LEN + BUCKET_LEN) as u64);
        let has_room = len <= self.len_max as u64;
        if has_room {
            self.clear();
        }
        has_room
    }

    /// A record that is over.
    pub(crate) fn due(&mut self, now_ms: u64) -> Option<(KeyHash, u64)> {
        let mut first = self.buckets.first_entry().filter(|first| bucket_end(*first.key()) <= now_ms)?;
        let record = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        self.entries -= usize::from(record.is_some());
        record
    }

    /// When the next ones are over.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.buckets.first_key_value().map(|(bucket, _)| bucket_end(*bucket))
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.buckets.clear();
        self.entries = 0;
        self.has_unlisted = false;
    }
}

/// Whether a key is gone: its last millisecond has passed. Times are cut to milliseconds, so the one in which a key expires may have begun
/// before its client had got all the time that it had asked for.
pub(crate) fn is_over(expires: Option<u64>, now_ms: u64) -> bool {
    expires.is_some_and(|expires| expires < now_ms)
}

/// When everything in a bucket is over.
fn bucket_end(bucket: u64) -> u64 {
    bucket.saturating_add(1).saturating_mul(BUCKET_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u8) -> KeyHash {
        KeyHash::of(&[0; 16], &[number])
    }

    #[test]
    fn records_come_back_when_they_are_over_and_not_before() {
        let mut expiry = Expiry::new(1 << 20);
        for (number, expires) in [(1, 5000), (2, 1000), (3, u64::MAX), (4, 1001)] {
            assert!(expiry.add(expires, hash(number), u64::from(number)));
        }
        assert_eq!((expiry.due(1000), expiry.next_due()), (None, Some(1024)));
        let mut due = [expiry.due(1024).unwrap(), expiry.due(1024).unwrap()];
        due.sort_unstable_by_key(|(_, address)| *address);
        assert_eq!(due, [(hash(2), 2), (hash(4), 4)]);
        assert_eq!(expiry.due(5000), None);
        assert_eq!(expiry.due(5120), Some((hash(1), 1)));
        assert_eq!(expiry.memory_len(), ENTRY_LEN + BUCKET_LEN);
    }

    #[test]
    fn it_takes_no_more_memory_than_it_may() {
        let mut expiry = Expiry::new(1000);
        let added =
            (0..100).filter(|number| expiry.add(u64::from(*number) * 10_000, hash(*number), 0)).count();
        assert!(added > 3 && added < 20 && expiry.memory_len() <= 1000);
        expiry.clear();
        assert_eq!(expiry.memory_len(), 0);
    }
}
