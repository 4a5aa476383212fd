//! What a device with a volatile cache holds beside its medium.
//!
//! ```text
//!   block 7:   settled (durable)  ◀── flush ──  version 12, version 15, version 16 (written, not flushed)
//!                    └──────────── after a crash, any one of these ────────────┘
//! ```

use std::collections::BTreeMap;

pub(super) type Bytes = Box<[u8]>;

#[derive(Default)]
struct Block {
    /// What the medium is known to hold. Kept, so that a read that passed the medium before a flush reached it is
    /// not answered with what was there before.
    settled: Option<Bytes>,
    /// Written and not flushed, oldest first, each with the sequence number of its write.
    versions: Vec<(u64, Bytes)>,
}

/// The blocks that were written since the last crash.
pub(super) struct Overlay {
    block_len: usize,
    blocks: BTreeMap<u64, Block>,
    /// Number of the last write that took effect.
    sequence: u64,
}

impl Overlay {
    pub(super) fn new(block_len: u32) -> Self {
        Self { block_len: block_len as usize, blocks: BTreeMap::new(), sequence: 0 }
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// A write takes effect on those of its blocks that `lands` says.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8], mut lands: impl FnMut() -> bool) {
        self.sequence += 1;
        let first = offset / self.block_len as u64;
        for (number, block) in (first..).zip(bytes.chunks(self.block_len)) {
            if lands() {
                self.blocks.entry(number).or_default().versions.push((self.sequence, block.into()));
            }
        }
    }

    /// Corrects what was read from the medium.
    pub(super) fn patch(&self, offset: u64, into: &mut [u8]) {
        let first = offset / self.block_len as u64;
        for (number, part) in (first..).zip(into.chunks_mut(self.block_len)) {
            let Some(block) = self.blocks.get(&number) else { continue };
            let newest = block.versions.last().map(|(_, bytes)| bytes).or(block.settled.as_ref());
            if let Some(bytes) = newest {
                part.copy_from_slice(bytes);
            }
        }
    }

    /// What a flush has to bring to the medium: the newest version up to `sequence` of each block.
    pub(super) fn unflushed(&self, sequence: u64) -> Vec<(u64, Bytes)> {
        let newest = |block: &Block| {
            block
                .versions
                .iter()
                .rev()
                .find(|(number, _)| *number <= sequence)
                .map(|(_, bytes)| bytes.clone())
        };
        self.blocks.iter().filter_map(|(number, block)| Some((*number, newest(block)?))).collect()
    }

    /// The medium holds `bytes` now; versions up to `sequence` are history.
    pub(super) fn settle(&mut self, number: u64, bytes: Bytes, sequence: u64) {
        let block = self.blocks.entry(number).or_default();
        block.versions.retain(|(version, _)| *version > sequence);
        block.settled = Some(bytes);
    }

    /// Ends this life of the device: every version of every block that is not settled, by block.
    pub(super) fn crash(&mut self) -> BTreeMap<u64, Vec<Bytes>> {
        let blocks = std::mem::take(&mut self.blocks);
        let versions = |block: Block| block.versions.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>();
        let unsettled = blocks.into_iter().map(|(number, block)| (number, versions(block)));
        unsettled.filter(|(_, versions)| !versions.is_empty()).collect()
    }
}
