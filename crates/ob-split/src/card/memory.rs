//! Card memory for what plans write: blocks of a few sizes, taken all at once or not at all.

use ob_memory::{Pool, Slice};

use super::config::PortConfig;
use super::dialect::BEFORE_MAX;
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

/// The pools of a port, from the shortest blocks to the longest.
pub(super) struct CardMemory {
    pools: Vec<Pool>,
    heads: Pool,
}

impl CardMemory {
    pub(super) fn new(config: &PortConfig) -> Self {
        let mut classes = config.memory.clone();
        classes.sort_unstable();
        let pools = classes.iter().map(|(len, blocks)| Pool::new(*len as usize, *blocks as usize)).collect();
        Self { pools, heads: Pool::new(HEAD_LEN, config.heads as usize) }
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
    pub(super) fn could(&self, mut needs: impl Iterator<Item = Need>) -> bool {
        let mut heads = self.heads.blocks();
        let mut left: Vec<(usize, usize)> =
            self.pools.iter().map(|pool| (pool.block_len(), pool.blocks())).collect();
        needs.all(|need| match need {
            Need::Head => heads.checked_sub(1).is_some_and(|less| {
                heads = less;
                true
            }),
            Need::Bytes(len) => {
                let class = left.iter_mut().find(|(block, blocks)| *block >= len as usize && *blocks > 0);
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
        self.pools.iter().chain([&self.heads]).map(Pool::blocks_out).sum()
    }
}
