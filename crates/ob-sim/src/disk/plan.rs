//! How a disk behaves, and what it did.

use std::ops::Range;
use std::time::Duration;

use crate::PerMillion;

/// How a disk behaves. The default has no faults.
#[derive(Clone, Debug)]
pub struct DiskPlan {
    /// Bytes, a multiple of the block.
    pub capacity: u64,
    /// Bytes of a block.
    pub block_len: u32,
    /// Whether completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// Operations and completions held at once.
    pub depth: usize,
    /// How long an operation takes.
    pub latency: Range<Duration>,
    /// How often an operation is refused as if the queue were full (while another is in flight).
    pub busy: PerMillion,
    /// How often a read fails.
    pub read_error: PerMillion,
    /// How often a write, a discard or a write of zeros fails; some of its blocks may be changed all the same.
    pub write_error: PerMillion,
    /// How often a flush fails; some blocks may be durable all the same.
    pub flush_error: PerMillion,
    /// How often a flush says that it succeeded and did nothing. No storage can bear this: it is there to show
    /// that a checker finds it.
    pub flush_lies: PerMillion,
    /// Byte ranges in which every read fails.
    pub bad_to_read: Vec<Range<u64>>,
    /// Byte ranges in which every write fails.
    pub bad_to_write: Vec<Range<u64>>,
    /// How often a block is written to another place than it should.
    pub misdirected: PerMillion,
    /// How often an operation does its work and never completes, until [`super::SimDisk::unstick`].
    pub stuck: PerMillion,
    /// How often an operation is slow, and how many times slower.
    pub slow: PerMillion,
    /// How many times longer a slow operation takes.
    pub slow_factor: u32,
    /// What a discard does.
    pub discard: Discarding,
    /// Bytes that what backs the disk has; a write that needs more fails with `NoSpace`.
    pub space: Option<u64>,
}

/// What a disk does to the blocks of a discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarding {
    /// Each is zeros afterwards or what it was, as the contract has it.
    Either,
    /// All are zeros afterwards, as a hole of a file is.
    Zeroes,
    /// Nothing, and it says so.
    Unsupported,
}

impl Default for DiskPlan {
    fn default() -> Self {
        Self {
            capacity: 1 << 20,
            block_len: 512,
            volatile_cache: true,
            depth: 32,
            latency: Duration::from_micros(2)..Duration::from_micros(200),
            busy: PerMillion::NEVER,
            read_error: PerMillion::NEVER,
            write_error: PerMillion::NEVER,
            flush_error: PerMillion::NEVER,
            flush_lies: PerMillion::NEVER,
            bad_to_read: Vec::new(),
            bad_to_write: Vec::new(),
            misdirected: PerMillion::NEVER,
            stuck: PerMillion::NEVER,
            slow: PerMillion::NEVER,
            slow_factor: 100,
            discard: Discarding::Either,
            space: None,
        }
    }
}

/// What a disk did, so that a test can see that a fault was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Operations refused.
    pub busy: u64,
    /// Reads failed.
    pub read_errors: u64,
    /// Writes failed.
    pub write_errors: u64,
    /// Flushes failed.
    pub flush_errors: u64,
    /// Flushes that only said so.
    pub flush_lies: u64,
    /// Writes refused for want of space.
    pub no_space: u64,
    /// Operations that got stuck.
    pub stuck: u64,
    /// Operations that were slow.
    pub slow: u64,
    /// Blocks written to a wrong place.
    pub misdirected: u64,
    /// Bits flipped at rest.
    pub bits_flipped: u64,
    /// Writes in flight when power or process were lost.
    pub writes_cut: u64,
    /// Unflushed blocks that lost their newest bytes with the power.
    pub blocks_lost: u64,
    /// Unflushed blocks that kept them.
    pub blocks_kept: u64,
}
