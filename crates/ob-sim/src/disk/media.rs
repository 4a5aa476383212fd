//! Blocks: durable ones, and the versions above them that a loss of power may take.

use std::collections::BTreeMap;

use crate::Rng;

/// Order in which blocks were changed, across the whole disk.
pub(super) type Version = u64;

/// The durable bytes of a disk: what the next life starts from. Blocks never written are zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskImage {
    block_len: u32,
    capacity: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl DiskImage {
    /// An image of zeros.
    pub fn new(block_len: u32, capacity: u64) -> Self {
        Self { block_len, capacity, blocks: BTreeMap::new() }
    }

    /// Bytes of a block.
    pub fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Bytes of the disk.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The bytes of a block, by its number; `None` if it was never written.
    pub fn block(&self, number: u64) -> Option<&[u8]> {
        self.blocks.get(&number).map(Vec::as_slice)
    }
}

struct Volatile {
    version: Version,
    bytes: Vec<u8>,
    /// The operation that wrote it.
    write: u64,
    completed: bool,
}

/// An image, and what was written since and may be lost.
pub(super) struct Media {
    pub(super) image: DiskImage,
    volatile: BTreeMap<u64, Vec<Volatile>>,
    /// The blocks of each write that the caller does not know to be complete.
    blocks_of: BTreeMap<u64, Vec<u64>>,
    versions: Version,
}

impl Media {
    pub(super) fn new(image: DiskImage) -> Self {
        Self { image, volatile: BTreeMap::new(), blocks_of: BTreeMap::new(), versions: 0 }
    }

    pub(super) fn read(&self, block: u64, into: &mut [u8]) {
        let newest =
            self.volatile.get(&block).and_then(|versions| versions.last()).map(|newest| &newest.bytes);
        match newest.or_else(|| self.image.blocks.get(&block)) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => into.fill(0),
        }
    }

    pub(super) fn write(&mut self, block: u64, bytes: Vec<u8>, write: u64) {
        self.versions += 1;
        let volatile = Volatile { version: self.versions, bytes, write, completed: false };
        self.volatile.entry(block).or_default().push(volatile);
        self.blocks_of.entry(write).or_default().push(block);
    }

    /// The caller knows that this write is over, well or not.
    pub(super) fn completed_write(&mut self, write: u64, well: bool) {
        for block in self.blocks_of.remove(&write).unwrap_or_default() {
            for volatile in self.volatile.get_mut(&block).into_iter().flatten() {
                volatile.completed |= well && volatile.write == write;
            }
        }
    }

    /// The caller is gone, and with it every operation that was on its way: for whoever comes next, all that can be read
    /// is complete, and a flush makes it durable.
    pub(super) fn caller_lost(&mut self) {
        self.blocks_of.clear();
        self.volatile.values_mut().flatten().for_each(|volatile| volatile.completed = true);
    }

    /// The newest version of each block whose write the caller knows to be complete.
    pub(super) fn completed(&self) -> Vec<(u64, Version)> {
        let newest =
            |versions: &[Volatile]| versions.iter().rev().find(|one| one.completed).map(|one| one.version);
        self.volatile.iter().filter_map(|(block, versions)| Some((*block, newest(versions)?))).collect()
    }

    /// Makes one version of a block durable, unless a newer one is already.
    pub(super) fn settle(&mut self, block: u64, version: Version) {
        let Some(versions) = self.volatile.get_mut(&block) else { return };
        let older = versions.iter().take_while(|one| one.version <= version).count();
        if let Some(newest) = versions.drain(..older).next_back() {
            self.image.blocks.insert(block, newest.bytes);
        }
        if versions.is_empty() {
            self.volatile.remove(&block);
        }
    }

    /// Makes all that one write wrote durable.
    pub(super) fn make_durable(&mut self, write: u64) {
        for block in self.blocks_of.get(&write).cloned().unwrap_or_default() {
            let versions = self.volatile.get(&block).map_or(&[][..], Vec::as_slice);
            if let Some(version) = versions.iter().rev().find(|one| one.write == write).map(|one| one.version)
            {
                self.settle(block, version);
            }
        }
    }

    /// Of each block any version or none survives. How many blocks lost their newest bytes, and kept them.
    pub(super) fn lose_power(&mut self, rng: &mut Rng) -> (u64, u64) {
        let (mut lost, mut kept) = (0, 0);
        self.blocks_of.clear();
        for (block, mut versions) in std::mem::take(&mut self.volatile) {
            let survivor = rng.index(versions.len() + 1);
            if survivor == versions.len() {
                lost += 1;
                continue;
            }
            if survivor + 1 == versions.len() {
                kept += 1;
            } else {
                lost += 1;
            }
            self.image.blocks.insert(block, versions.swap_remove(survivor).bytes);
        }
        (lost, kept)
    }

    pub(super) fn flip_a_bit(&mut self, rng: &mut Rng) -> Option<u64> {
        let at = rng.index(self.image.blocks.len());
        let (block, bytes) = self.image.blocks.iter_mut().nth(at)?;
        let bit = rng.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        Some(*block)
    }

    /// Flips a bit of the byte that `pick` names in the first block, from a random one on; which block that was.
    pub(super) fn flip_where(
        &mut self,
        rng: &mut Rng,
        pick: &mut dyn FnMut(u64, &[u8]) -> Option<usize>,
    ) -> Option<u64> {
        let (block, byte) = self.find_where(rng, pick)?;
        let bit = 1 << rng.below(8);
        *self.image.blocks.get_mut(&block)?.get_mut(byte)? ^= bit;
        Some(block)
    }

    /// The first block at rest in which `pick` names something, from a random one on, and what that is.
    pub(super) fn find_where(
        &self,
        rng: &mut Rng,
        pick: &mut dyn FnMut(u64, &[u8]) -> Option<usize>,
    ) -> Option<(u64, usize)> {
        let first = self.image.blocks.keys().nth(rng.index(self.image.blocks.len())).copied()?;
        let at_rest = |block: &u64| !self.volatile.contains_key(block);
        let blocks = self.image.blocks.range(first..).chain(self.image.blocks.range(..first));
        let mut blocks = blocks.filter(|(block, _)| at_rest(block));
        blocks.find_map(|(block, bytes)| Some((*block, pick(*block, bytes)?)))
    }

    pub(super) fn blocks_held(&self) -> u64 {
        let unflushed = self.volatile.keys().filter(|block| !self.image.blocks.contains_key(block)).count();
        (self.image.blocks.len() + unflushed) as u64
    }

    pub(super) fn blocks_missing(&self, offset: u64, len: u64) -> u64 {
        let block_len = u64::from(self.image.block_len);
        let missing =
            |block: &u64| !self.image.blocks.contains_key(block) && !self.volatile.contains_key(block);
        (offset / block_len..(offset + len) / block_len).filter(missing).count() as u64
    }
}
