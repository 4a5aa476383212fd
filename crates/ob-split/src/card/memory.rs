//! Card memory for what plans write: blocks of a few sizes, taken all at once or not at all.

use ob_memory::{Pool, Shared, Slice};

use super::config::PortConfig;
use super::dialect::BEFORE_MAX;
use crate::engine::TASK_MAX;
use crate::wire::{HEADER_LEN, MEMBERS_MAX};

/// Headers to each member, and what comes before a payload.
pub(super) const HEAD_LEN: usize = BEFORE_MAX + MEMBERS_MAX * HEADER_LEN;

/// What a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Memory for what comes before a payload, and headers.
    Head,
    /// So many bytes.
    Bytes(u32),
}

/// Parts that are being decompressed at a time. What has a block waits for an engine alone, so that they come back.
const SCRATCH_BLOCKS: usize = 8;

/// The pools of a port, from the shortest blocks to the longest.
pub(super) struct CardMemory {
    pools: Vec<Pool>,
    heads: Pool,
    /// What is decompressed lies there until it is copied to where it goes.
    scratch: Pool,
    /// No bytes.
    empty: Option<Shared>,
    /// Blocks of each pool that are left, while it is found out whether a plan could ever have what it needs.
    left: Vec<usize>,
}

impl CardMemory {
    pub(super) fn new(config: &PortConfig) -> Self {
        let mut classes = config.memory.clone();
        classes.sort_unstable();
        let pools = classes.iter().map(|(len, blocks)| Pool::new(*len as usize, *blocks as usize)).collect();
        let left = Vec::with_capacity(classes.len());
        let scratch = Pool::new(TASK_MAX, SCRATCH_BLOCKS);
        let empty = Pool::new(1, 1).take().map(|mut slice| {
            slice.truncate(0);
            slice.share()
        });
        Self { pools, heads: Pool::new(HEAD_LEN, config.heads as usize), scratch, empty, left }
    }

    /// No bytes, for who reads them.
    pub(super) fn empty(&self) -> Option<&Shared> {
        self.empty.as_ref()
    }

    /// A block for a part that is decompressed, if one is free.
    pub(super) fn take_scratch(&self) -> Option<Slice> {
        self.scratch.take()
    }

    /// A block that is so long, cut to that; or none now.
    pub(super) fn take(&self, need: Need) -> Option<Slice> {
        match need {
            Need::Head => self.heads.take(),
            Need::Bytes(len) => {
                let fits = |pool: &&Pool| pool.block_len() >= len as usize;
                let mut slice = self.pools.iter().filter(fits).find_map(Pool::take)?;
                slice.truncate(len as usize);
                Some(slice)
            }
        }
    }

    /// Whether all of this could be had at once, if nobody had anything: else waiting for it would never end.
    pub(super) fn could(&mut self, mut needs: impl Iterator<Item = Need>) -> bool {
        let Self { pools, heads, left, .. } = self;
        let mut heads = heads.blocks();
        left.clear();
        left.extend(pools.iter().map(Pool::blocks));
        needs.all(|need| match need {
            Need::Head => heads.checked_sub(1).is_some_and(|less| {
                heads = less;
                true
            }),
            Need::Bytes(len) => {
                let mut classes = pools.iter().zip(left.iter_mut());
                let class = classes.find(|(pool, blocks)| pool.block_len() >= len as usize && **blocks > 0);
                class.is_some_and(|(_, blocks)| {
                    *blocks -= 1;
                    true
                })
            }
        })
    }

    /// Changes when memory has come back.
    pub(super) fn returned(&self) -> u64 {
        let all = self.pools.iter().chain([&self.heads]);
        all.fold(0, |sum, pool| sum.wrapping_mul(0x1_0001).wrapping_add(u64::from(pool.returned())))
    }

    /// Blocks that somebody has.
    pub(super) fn blocks_out(&self) -> usize {
        self.pools.iter().chain([&self.heads, &self.scratch]).map(Pool::blocks_out).sum()
    }
}
