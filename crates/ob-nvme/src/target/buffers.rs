//! The memory that payload lies in: pools of a few sizes, made once.
//!
//! Data of capsules has a pool of its own. A connection that finds it empty stops reading, and what holds its buffers
//! waits for devices alone; solicited writes, which wait for bytes that may lie behind such a stop, never take from it.

use ob_memory::{ArenaSpan, Pool, Slice};
use ob_wire_nvme::pdu::ADMIN_CAPSULE_DATA_MAX;

use super::config::{TRANSFER_LEN_MAX, TargetConfig};

const SMALL_LEN: usize = 4 << 10;
const MIDDLE_LEN: usize = 16 << 10;

/// The pools.
pub(super) struct Buffers {
    capsules: Pool,
    /// By length of their blocks, the shortest first.
    transfers: [Pool; 3],
    compares: Pool,
}

impl Buffers {
    /// Capsules on I/O queues bring up to `capsule_data_max` bytes.
    pub(super) fn new(config: &TargetConfig, capsule_data_max: u32) -> Self {
        // Half of the memory is for the largest transfers, a quarter for each of the others.
        let blocks = |share: usize, len: usize| (config.transfer_memory / share / len).max(2);
        Self {
            capsules: Pool::new(
                capsule_data_max.max(ADMIN_CAPSULE_DATA_MAX) as usize,
                config.capsule_buffers.max(1),
            ),
            transfers: [
                Pool::new(SMALL_LEN, blocks(4, SMALL_LEN)),
                Pool::new(MIDDLE_LEN, blocks(4, MIDDLE_LEN)),
                Pool::new(TRANSFER_LEN_MAX, blocks(2, TRANSFER_LEN_MAX)),
            ],
            compares: Pool::new(TRANSFER_LEN_MAX, config.compares_max.max(1) * 2),
        }
    }

    /// A buffer for a capsule's data.
    pub(super) fn for_capsule(&self, len: usize) -> Option<Slice> {
        cut(&self.capsules, len)
    }

    /// A buffer for a read, or for a write that is asked for: of the shortest size that fits and has one left.
    pub(super) fn for_transfer(&self, len: usize) -> Option<Slice> {
        self.transfers.iter().filter(|pool| pool.block_len() >= len).find_map(|pool| cut(pool, len))
    }

    /// One of the two buffers of a comparison.
    pub(super) fn for_compare(&self, len: usize) -> Option<Slice> {
        cut(&self.compares, len)
    }

    /// Where they lie, for registration.
    pub(super) fn arenas(&self) -> impl Iterator<Item = ArenaSpan> {
        [&self.capsules, &self.compares].into_iter().chain(&self.transfers).map(Pool::arena)
    }

    /// Bytes of the blocks that are in use.
    pub(super) fn memory_used(&self) -> usize {
        let pools = [&self.capsules, &self.compares].into_iter().chain(&self.transfers);
        pools.map(|pool| pool.blocks_out() * pool.block_len()).sum()
    }

    /// Bytes of all of them.
    pub(super) fn memory(&self) -> usize {
        self.arenas().map(|arena| arena.len).sum()
    }
}

fn cut(pool: &Pool, len: usize) -> Option<Slice> {
    if len > pool.block_len() {
        return None;
    }
    let mut slice = pool.take()?;
    if len < slice.len() {
        // The rest of the block goes back together with what is used of it.
        drop(slice.split_off(len));
    }
    Some(slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_takes_the_shortest_that_fits_and_a_longer_one_when_those_are_out() {
        let config = TargetConfig { transfer_memory: 1 << 20, ..TargetConfig::default() };
        let buffers = Buffers::new(&config, 8192);
        let small: Vec<Slice> = std::iter::from_fn(|| buffers.for_transfer(512)).collect();
        assert_eq!(small.len(), 64 + 16 + 4, "every block of every size");
        assert_eq!(buffers.memory_used(), 64 * SMALL_LEN + 16 * MIDDLE_LEN + 4 * TRANSFER_LEN_MAX);
        assert!(small.iter().all(|slice| slice.len() == 512));
        drop(small);
        assert_eq!(buffers.memory_used(), 0);
        let large: Vec<Slice> = std::iter::from_fn(|| buffers.for_transfer(TRANSFER_LEN_MAX)).collect();
        assert_eq!(large.len(), 4);
        assert!(buffers.for_transfer(4096).is_some(), "the large ones leave the small ones alone");
        assert!(buffers.for_transfer(TRANSFER_LEN_MAX + 1).is_none());
    }
}
