//! What write-ahead logs have that no table has yet: the writer's memory, read from its logs.
//!
//! Each time that the logs were followed, what is new becomes a chunk; chunks never change. Small ones are put together as they become
//! many, so that a log costs about the logarithm of its length in chunks, whatever the steps in which it was read.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::keys::{Kind, Sequence};
use crate::lookup::{Entry, Finding};
use crate::plant::{Bug, is_planted};
use crate::tombstones::{Tombstone, Tombstones};
use crate::write_batch::Write;

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) sequence: Sequence,
    pub(crate) kind: Kind,
    pub(crate) value: Vec<u8>,
}

/// Entries of one log, by key, newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunk {
    records: Vec<Record>,
    tombstones: Tombstones,
}

impl Chunk {
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// The first record whose key is not before `user`.
    pub(crate) fn seek(&self, user: &[u8]) -> usize {
        self.records.partition_point(|record| record.key[..] < *user)
    }

    fn merged(older: &Self, newer: &Self) -> Self {
        let mut records = [&older.records[..], &newer.records].concat();
        records.sort_by(|left, right| by_key(left).cmp(&by_key(right)));
        let tombstones = Tombstones::new([older.tombstones.all(), newer.tombstones.all()].concat());
        Self { records, tombstones }
    }

    fn len(&self) -> usize {
        self.records.len() + self.tombstones.all().len()
    }
}

fn by_key(record: &Record) -> (&[u8], Reverse<Sequence>) {
    (&record.key, Reverse(record.sequence))
}

/// Collects the writes of one column family from one log.
#[derive(Debug, Default)]
pub(crate) struct ChunkBuilder {
    records: Vec<Record>,
    tombstones: Vec<Tombstone>,
    bytes: usize,
}

impl ChunkBuilder {
    pub(crate) fn push(&mut self, write: &Write<'_>) {
        let (key, value) = (write.key.to_vec(), write.value.to_vec());
        // What an entry costs beside its bytes, roughly.
        self.bytes += key.len() + value.len() + 64;
        match write.kind {
            Kind::RangeDeletion => {
                self.tombstones.push(Tombstone { start: key, end: value, sequence: write.sequence });
            }
            kind => self.records.push(Record { key, sequence: write.sequence, kind, value }),
        }
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn build(mut self) -> Chunk {
        self.records.sort_by(|left, right| by_key(left).cmp(&by_key(right)));
        Chunk { records: self.records, tombstones: Tombstones::new(self.tombstones) }
    }
}

/// What logs have for one column family; oldest chunk first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    chunks: Vec<(u64, usize, Arc<Chunk>)>,
}

impl Memory {
    /// Adds what was read from a log.
    pub(crate) fn add(&mut self, log: u64, builder: ChunkBuilder) {
        let bytes = builder.bytes();
        self.chunks.push((log, bytes, Arc::new(builder.build())));
        while let [.., (older_log, older_bytes, older), (newer_log, newer_bytes, newer)] = &self.chunks[..]
            && older_log == newer_log
            && older.len() <= 2 * newer.len()
        {
            let merged = (*older_log, older_bytes + newer_bytes, Arc::new(Chunk::merged(older, newer)));
            self.chunks.truncate(self.chunks.len() - 2);
            self.chunks.push(merged);
        }
    }

    /// Forgets logs whose content has gone into tables.
    pub(crate) fn forget_before(&mut self, log: u64) {
        self.chunks.retain(|(number, ..)| *number >= log);
    }

    /// Bytes that it takes, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(|(_, bytes, _)| bytes).sum()
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.chunks.iter().filter(|_| !is_planted(Bug::LogsIgnored)).map(|(_, _, chunk)| chunk)
    }

    /// The newest tombstone that spans a key.
    pub(crate) fn covering(&self, user: &[u8], snapshot: Sequence) -> Sequence {
        let all = self.chunks().map(|chunk| chunk.tombstones.covering(user, snapshot));
        all.max().unwrap_or(Sequence(0))
    }

    /// What the logs know of a key.
    pub(crate) fn find(&self, user: &[u8], snapshot: Sequence) -> Finding {
        let mut entries: Vec<Entry> = Vec::new();
        for chunk in self.chunks() {
            let records = chunk.records[chunk.seek(user)..].iter().take_while(|record| record.key == user);
            let visible = records.filter(|record| record.sequence <= snapshot);
            entries.extend(visible.map(|record| Entry {
                sequence: record.sequence,
                kind: record.kind,
                value: record.value.clone(),
            }));
        }
        entries.sort_by_key(|entry| Reverse(entry.sequence));
        let end = entries.iter().position(|entry| entry.kind != Kind::Merge);
        entries.truncate(end.map_or(entries.len(), |end| end + 1));
        Finding { entries, covering: self.covering(user, snapshot) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(sequence: u64, kind: Kind, key: &'static [u8], value: &'static [u8]) -> Write<'static> {
        Write { family: 0, sequence: Sequence(sequence), kind, key, value }
    }

    fn filled(steps: usize) -> Memory {
        let writes = [
            write(1, Kind::Value, b"a", b"1"),
            write(2, Kind::Merge, b"a", b"2"),
            write(3, Kind::Value, b"b", b"3"),
            write(4, Kind::RangeDeletion, b"a", b"b"),
            write(5, Kind::Merge, b"a", b"5"),
        ];
        let mut memory = Memory::default();
        for part in writes.chunks(steps) {
            let mut builder = ChunkBuilder::default();
            part.iter().for_each(|write| builder.push(write));
            memory.add(9, builder);
        }
        memory
    }

    #[test]
    fn steps_do_not_matter() {
        for steps in 1..=5 {
            let memory = filled(steps);
            let found = memory.find(b"a", Sequence::MAX);
            let sequences: Vec<u64> = found.entries.iter().map(|entry| entry.sequence.0).collect();
            assert_eq!((sequences, found.covering), (vec![5, 2, 1], Sequence(4)));
            let earlier = memory.find(b"a", Sequence(2));
            assert_eq!((earlier.entries.len(), earlier.covering), (2, Sequence(0)));
            assert!(memory.chunks().count() <= 3, "{steps}");
        }
        let mut memory = filled(1);
        memory.forget_before(10);
        assert_eq!(memory.find(b"b", Sequence::MAX), Finding::default());
    }
}
