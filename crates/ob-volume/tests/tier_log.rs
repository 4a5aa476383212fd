//! What servers have, as whoever replays it will see it: the pages that the head names, and what came after them.

use std::collections::BTreeMap;

use ob_core::{ChunkName, SegmentId, SegmentName, Sequence, Units, VolumeId};
use ob_format::volume::metadata::{ChunkState, Head};
use ob_format::volume::{ChunkKind, EntryState, Page, Record, RecordKind, Root, Slot, TrimRange};
use ob_volume::metadata::{MetadataValue, Name};

use crate::tier_rig::{Rig, value_of};

/// What nobody can find any more: something later must say what it is.
const NOWHERE: u64 = u64::MAX - 1;

/// The index of a segment as its head has it.
#[derive(Default)]
struct Loaded {
    head: Sequence,
    /// Of pages that were written, up to where all is in them.
    as_of: BTreeMap<u32, Sequence>,
    /// Blocks of the segment, and what they have.
    blocks: BTreeMap<u32, u64>,
}

impl Loaded {
    fn as_of(&self, lba: u32) -> Sequence {
        self.as_of.get(&(lba / 1024)).copied().unwrap_or(self.head)
    }
}

impl Rig {
    /// A record as one of the servers has it that a chunk's record names.
    fn record_at(&mut self, servers: &[usize], chunk: ChunkName, at: Units) -> Option<Vec<u8>> {
        let records = servers.iter().filter_map(|server| self.servers[*server].chunks.get(&chunk));
        records.filter_map(|replica| replica.records.get(&at)).next().cloned()
    }

    /// The pages of a head, and where the blocks on them are.
    fn load(&mut self, servers: &[usize], name: SegmentName, head: &Head) -> Loaded {
        self.check_index_chunk(ChunkName::new(name, head.chunk));
        let (mut root, mut at) = (Vec::new(), head.offset);
        while root.len() < head.length as usize {
            let chunk = ChunkName::new(name, head.chunk);
            let bytes = self.record_at(servers, chunk, at).expect("I6: a part of the root is nowhere");
            let record = Record::decode(&bytes).unwrap();
            assert_eq!(record.header.kind, RecordKind::Root);
            root.extend_from_slice(record.payload);
            at = Units(at.0 + record.header.units().0);
        }
        let root = Root::decode(&root).unwrap();
        assert_eq!((root.crc, root.summary.head_sequence), (head.crc, head.sequence));
        let slots: Vec<Option<Slot>> = root.slots().collect();
        let mut loaded = Loaded { head: head.sequence, ..Loaded::default() };
        for place in root.places() {
            let chunk = ChunkName::new(name, place.chunk);
            self.check_index_chunk(chunk);
            let bytes = self.record_at(servers, chunk, place.offset).expect("I6: a page is nowhere");
            let record = Record::decode(&bytes).unwrap();
            let page = Page::decode(record.payload).unwrap();
            assert_eq!((page.page, record.header.stored), (place.page, place.stored));
            assert!(page.as_of >= head.sequence, "the head is past a page");
            loaded.as_of.insert(page.page, page.as_of);
            for (number, entry) in page.entries().enumerate() {
                let EntryState::Mapped { offset, slot, .. } = entry.state() else { continue };
                let lba = page.page * 1024 + number as u32;
                // A chunk that has gone since is named by nothing that counts.
                let lies_in = slots.get(slot as usize).copied().flatten().map(|slot| slot.chunk);
                let value = lies_in.and_then(|chunk| self.block_in(servers, chunk, offset, lba));
                loaded.blocks.insert(lba, value.unwrap_or(NOWHERE));
            }
        }
        loaded
    }

    /// I6: what a head names is sealed, on all that its record names.
    fn check_index_chunk(&mut self, name: ChunkName) {
        let Some(MetadataValue::Chunk(chunk)) = self.stored(Name::Chunk(name)) else {
            panic!("I6: {name:?} is named by the head, and not in the store");
        };
        assert_eq!((chunk.state, chunk.kind), (ChunkState::Sealed, ChunkKind::Index), "I6: {name:?}");
    }

    fn block_in(&mut self, servers: &[usize], chunk: ChunkName, at: Units, lba: u32) -> Option<u64> {
        let MetadataValue::Chunk(record) = self.stored(Name::Chunk(chunk))? else { return None };
        if record.state == ChunkState::Dead {
            return None;
        }
        if !servers.iter().any(|server| self.servers[*server].chunks.contains_key(&chunk)) {
            return None;
        }
        let bytes = self.record_at(servers, chunk, at).expect("I7: a page means a record that there is not");
        let record = Record::decode(&bytes).unwrap();
        let block_len = self.block_len(chunk.volume).bytes() as usize;
        let number = lba.checked_sub(record.header.lba.0).expect("I7: a page means another record") as usize;
        let block = record.payload.chunks(block_len).nth(number);
        Some(value_of(block.expect("I7: a page means another record")))
    }

    /// All that servers have, put together by sequence behind the heads, must be what blocks are: so will whoever replays see it.
    pub(crate) fn check_log(&mut self, servers: &[usize]) {
        self.check_sealed();
        assert_eq!(self.replayed(servers), self.model);
    }

    /// What whoever replays finds.
    pub(crate) fn replayed(&mut self, servers: &[usize]) -> BTreeMap<VolumeId, Vec<u64>> {
        let mut replayed: BTreeMap<VolumeId, Vec<u64>> =
            self.model.iter().map(|(id, blocks)| (*id, vec![0; blocks.len()])).collect();
        let mut heads: BTreeMap<SegmentName, Loaded> = BTreeMap::new();
        let sizes: Vec<(VolumeId, usize)> = replayed.iter().map(|(id, blocks)| (*id, blocks.len())).collect();
        for (volume, blocks) in sizes {
            for segment in 0..blocks.div_ceil(1024) as u32 {
                let name = SegmentName { volume, segment: SegmentId(segment) };
                let Some(MetadataValue::Segment(record)) = self.stored(Name::Segment(name)) else { continue };
                let Some(head) = record.head else { continue };
                let loaded = self.load(servers, name, &head);
                for (lba, value) in &loaded.blocks {
                    replayed.get_mut(&volume).unwrap()[segment as usize * 1024 + *lba as usize] = *value;
                }
                heads.insert(name, loaded);
            }
        }
        let records = self.records_that_count(servers, &heads);
        for ((name, sequence), bytes) in records {
            let none = Loaded::default();
            let head = heads.get(&name).unwrap_or(&none);
            let record = Record::decode(&bytes).unwrap();
            let block_len = self.block_len(name.volume).bytes() as usize;
            let ranges: Vec<TrimRange> = record.trim_ranges().collect();
            let blocks = replayed.get_mut(&name.volume).unwrap();
            let (header, before) = (record.header, name.segment.0 as usize * 1024);
            let mut put = |lba: u32, value: u64| {
                if sequence > head.as_of(lba) {
                    blocks[before + lba as usize] = value;
                }
            };
            if matches!(header.kind, RecordKind::Write | RecordKind::Move) {
                for (at, block) in record.payload.chunks(block_len).enumerate() {
                    put(header.lba.0 + at as u32, value_of(block));
                }
            }
            for range in ranges {
                (range.lba.0..range.lba.0 + range.blocks).for_each(|lba| put(lba, 0));
            }
        }
        replayed
    }

    /// Records of data chunks that are not dead, and that the heads are not past, in their order.
    fn records_that_count(
        &mut self,
        servers: &[usize],
        heads: &BTreeMap<SegmentName, Loaded>,
    ) -> BTreeMap<(SegmentName, Sequence), Vec<u8>> {
        let mut records: BTreeMap<(SegmentName, Sequence), Vec<u8>> = BTreeMap::new();
        for server in servers {
            let names: Vec<_> = self.servers[*server].chunks.keys().copied().collect();
            for name in names {
                // What no record names is nowhere, and of a sealed chunk nothing behind its end.
                let Some(MetadataValue::Chunk(chunk)) = self.stored(Name::Chunk(name)) else { continue };
                let head = heads.get(&name.segment_name()).map_or(Sequence(0), |loaded| loaded.head);
                let is_past = chunk.state == ChunkState::Sealed && chunk.last_sequence <= head;
                if chunk.state == ChunkState::Dead || chunk.kind == ChunkKind::Index || is_past {
                    continue;
                }
                let end = if chunk.state == ChunkState::Sealed { chunk.length } else { Units(u32::MAX) };
                for bytes in self.servers[*server].chunks[&name].records.values() {
                    let Ok(record) = Record::decode(bytes) else { continue };
                    let (sequence, offset) = (record.header.sequence, record.header.offset);
                    if offset >= end {
                        continue;
                    }
                    let before = records.insert((name.segment_name(), sequence), bytes.clone());
                    assert!(before.is_none_or(|before| before == *bytes), "two records have one sequence");
                }
            }
        }
        records
    }
}
