//! The server's buffers: all the memory that others can make it use, taken when it starts.

use ob_core::Units;
use ob_format::volume::RECORD_UNITS_MAX;
use ob_memory::{ArenaSpan, Pool, Slice};

use super::config::ChunkServerConfig;
use crate::wire::RECORDS_MAX;

/// Buffers by what they are for, so that nothing waits for what waits for it.
pub(super) struct Memory {
    short_in: Pool,
    long_in: Pool,
    short_out: Pool,
    long_out: Pool,
    pub(super) batches: Pool,
    pub(super) jobs: Pool,
    /// One block for the ledger, which is written by one write at a time.
    pub(super) ledger: Pool,
}

/// Which of two buffers something needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Short,
    Long,
}

/// Parts of the buffers of a class that one connection may have.
const SHARES: usize = 4;

/// Bytes of a record with the blocks that it lies in.
fn short_len(block_len: usize) -> usize {
    RECORD_UNITS_MAX.bytes() as usize + 2 * block_len
}

fn long_len(block_len: usize) -> usize {
    RECORDS_MAX as usize + 2 * block_len
}

impl Memory {
    pub(super) fn new(config: &ChunkServerConfig, block_len: usize) -> Self {
        let short = || Pool::new(short_len(block_len), config.short_buffers.max(1));
        let long = |count: usize| Pool::new(long_len(block_len), count.max(1));
        Self {
            short_in: short(),
            long_in: long(config.long_buffers),
            short_out: short(),
            long_out: long(config.long_buffers),
            batches: long(config.batches),
            jobs: long(config.jobs),
            ledger: long(1),
        }
    }

    /// Which buffer so many bytes need.
    pub(super) fn class_of(&self, len: usize) -> Class {
        if len <= self.short_in.block_len() { Class::Short } else { Class::Long }
    }

    /// Buffers of a class that one connection may have at once, for what it sends and for what it reads; for each of the two.
    pub(super) fn share(&self, class: Class) -> u32 {
        let pool = match class {
            Class::Short => &self.short_in,
            Class::Long => &self.long_in,
        };
        (pool.blocks() / SHARES).max(1) as u32
    }

    /// A buffer for so many bytes that are received.
    pub(super) fn take_in(&self, len: u32) -> Option<Slice> {
        let pool = match self.class_of(len as usize) {
            Class::Short => &self.short_in,
            Class::Long => &self.long_in,
        };
        take(pool, len as usize)
    }

    /// Whether there is a buffer for what is received.
    pub(super) fn has_in(&self, class: Class) -> bool {
        match class {
            Class::Short => has_free(&self.short_in),
            Class::Long => has_free(&self.long_in),
        }
    }

    /// A buffer for so many bytes that are read.
    pub(super) fn take_out(&self, class: Class, len: usize) -> Option<Slice> {
        let pool = match class {
            Class::Short => &self.short_out,
            Class::Long => &self.long_out,
        };
        take(pool, len)
    }

    /// Where they lie.
    pub(super) fn arenas(&self) -> impl Iterator<Item = ArenaSpan> {
        [
            &self.short_in,
            &self.long_in,
            &self.short_out,
            &self.long_out,
            &self.batches,
            &self.jobs,
            &self.ledger,
        ]
        .map(Pool::arena)
        .into_iter()
    }
}

/// Whether there is one.
pub(super) fn has_free(pool: &Pool) -> bool {
    // Asked this way it takes the same time however many there are.
    pool.take().is_some()
}

fn take(pool: &Pool, len: usize) -> Option<Slice> {
    let mut slice = pool.take()?;
    slice.truncate(len);
    Some(slice)
}

/// The bytes of a unit as a length of memory.
pub(super) const UNIT_LEN: usize = Units::LEN as usize;
