//! The memory that reads land in: pools of a few sizes, made once, so that a reactor can register them.

use ob_memory::{ArenaSpan, Pool, Slice};

/// Blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferClass {
    /// Bytes of a block.
    pub len: usize,
    /// How many there are.
    pub count: usize,
}

/// The pools, by length of their blocks, the shortest first.
pub(crate) struct Buffers {
    pools: Vec<Pool>,
}

impl Buffers {
    pub(crate) fn new(classes: &[BufferClass]) -> Self {
        let mut pools: Vec<Pool> =
            classes.iter().map(|class| Pool::new(class.len, class.count.max(1))).collect();
        pools.sort_by_key(Pool::block_len);
        Self { pools }
    }

    /// Bytes of the longest block.
    pub(crate) fn len_max(&self) -> usize {
        self.pools.last().map_or(0, Pool::block_len)
    }

    /// A buffer of the shortest size that fits and has one left.
    pub(crate) fn take(&self, len: usize) -> Option<Slice> {
        let mut slice = self.pools.iter().filter(|pool| pool.block_len() >= len).find_map(Pool::take)?;
        slice.truncate(len);
        Some(slice)
    }

    pub(crate) fn arenas(&self) -> impl Iterator<Item = ArenaSpan> {
        self.pools.iter().map(Pool::arena)
    }

    pub(crate) fn out(&self) -> usize {
        self.pools.iter().map(Pool::blocks_out).sum()
    }
}
