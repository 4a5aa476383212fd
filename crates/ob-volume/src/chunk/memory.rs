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

    /// A buffer for so many bytes that are received.
    pub(super) fn take_in(&self, len: u32) -> Option<Slice> {
        take(&self.short_in, &self.long_in, len as usize)
    }

    /// A buffer for so many bytes that are read.
    pub(super) fn take_out(&self, len: usize) -> Option<Slice> {
        take(&self.short_out, &self.long_out, len)
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

fn take(short: &Pool, long: &Pool, len: usize) -> Option<Slice> {
    let fits = |pool: &Pool| len <= pool.block_len();
    let mut slice = if fits(short) { short.take() } else { long.take() }?;
    slice.truncate(len);
    Some(slice)
}

/// The bytes of a unit as a length of memory.
pub(super) const UNIT_LEN: usize = Units::LEN as usize;
