//! What servers have, as whoever replays it will see it.

use std::collections::BTreeMap;

use ob_core::{Sequence, Units, VolumeId};
use ob_format::volume::metadata::ChunkState;
use ob_format::volume::{Record, RecordKind, TrimRange};
use ob_volume::metadata::{MetadataValue, Name};

use crate::tier_rig::{Rig, value_of};

impl Rig {
    /// All that servers have, put together by sequence, must be what blocks are: so will whoever replays see it.
    pub(crate) fn check_log(&mut self, servers: &[usize]) {
        self.check_sealed();
        let mut replayed: BTreeMap<VolumeId, Vec<u64>> =
            self.model.iter().map(|(id, blocks)| (*id, vec![0; blocks.len()])).collect();
        let mut records: BTreeMap<(VolumeId, u32, Sequence), Vec<u8>> = BTreeMap::new();
        for server in servers {
            let names: Vec<_> = self.servers[*server].chunks.keys().copied().collect();
            for name in names {
                // What no record names is nowhere, and of a sealed chunk nothing behind its end.
                let Some(MetadataValue::Chunk(chunk)) = self.stored(Name::Chunk(name)) else { continue };
                let end = if chunk.state == ChunkState::Sealed { chunk.length } else { Units(u32::MAX) };
                for bytes in self.servers[*server].chunks[&name].records.values() {
                    let Ok(record) = Record::decode(bytes) else { continue };
                    let (sequence, offset) = (record.header.sequence, record.header.offset);
                    if offset >= end {
                        continue;
                    }
                    let key = (name.volume, name.segment.0, sequence);
                    let before = records.insert(key, bytes.clone());
                    assert!(before.is_none_or(|before| before == *bytes), "two records have one sequence");
                }
            }
        }
        for ((id, segment, _), bytes) in records {
            let record = Record::decode(&bytes).unwrap();
            let block_len = self.block_len(id).bytes() as usize;
            let ranges: Vec<TrimRange> = record.trim_ranges().collect();
            let blocks = replayed.get_mut(&id).unwrap();
            let header = record.header;
            let first = segment as usize * 1024 + header.lba.0 as usize;
            for (at, block) in record.payload.chunks(block_len).enumerate() {
                if header.kind == RecordKind::Write {
                    blocks[first + at] = value_of(block);
                }
            }
            for range in ranges {
                let first = segment as usize * 1024 + range.lba.0 as usize;
                blocks[first..first + range.blocks as usize].fill(0);
            }
        }
        assert_eq!(replayed, self.model);
    }
}
