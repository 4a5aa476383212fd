//! How large a table is, and what it does when it is full.

use crate::memory::Bucket;

/// How large a table is, and what it does when it is full.
#[derive(Clone, Debug)]
pub struct TableConfig {
    /// Buckets, of five slots and 384 bytes each; at least two, and rounded down to an even number.
    pub buckets: u32,
    /// Further buckets for chains, where displacement finds no place.
    pub overflow: u32,
    /// What to do when there is no place for an entry.
    pub when_full: WhenFull,
    /// The hash's secret. Without one it is drawn at random, and nobody can aim at a bucket; tests give one.
    pub seed: Option<u64>,
}

impl TableConfig {
    /// The largest table in so many bytes; one bucket in 64 of it for chains.
    #[must_use]
    pub fn with_memory_max(bytes: u64) -> Self {
        let all = (bytes / size_of::<Bucket>() as u64).min(u64::from(MAX_BUCKETS)) as u32;
        let overflow = all / 64;
        Self { buckets: (all - overflow) & !1, overflow, when_full: WhenFull::Evict, seed: None }
    }

    /// Checks, and makes the number of buckets even.
    pub(crate) fn checked(mut self) -> Result<Self, ConfigError> {
        self.buckets &= !1;
        if self.buckets < 2 {
            return Err(ConfigError::TooSmall);
        }
        match self.buckets.checked_add(self.overflow) {
            Some(all) if all <= MAX_BUCKETS => Ok(self),
            _ => Err(ConfigError::TooLarge),
        }
    }
}

/// A bucket's index leaves room for one more value in 32 bits, and sums of two of them fit.
pub(crate) const MAX_BUCKETS: u32 = 1 << 31;

/// What to do when there is no place for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The entry is refused. Tombstones still make room.
    Refuse,
    /// The oldest entry in its two buckets goes.
    Evict,
}

/// Why there is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Fewer than two buckets.
    #[error("a table has at least two buckets, {} bytes", 2 * size_of::<Bucket>())]
    TooSmall,
    /// More buckets than can be numbered.
    #[error("a table has at most {MAX_BUCKETS} buckets, overflow included")]
    TooLarge,
    /// The system does not give so much.
    #[error("there is no memory for a table of {bytes} bytes")]
    Memory {
        /// How much was asked for.
        bytes: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_on_memory_holds() {
        for bytes in [768, 1000, 4096, 1 << 20, (1 << 30) + 17] {
            let config = TableConfig::with_memory_max(bytes).checked().unwrap();
            let taken = u64::from(config.buckets + config.overflow) * size_of::<Bucket>() as u64;
            assert!(taken <= bytes && taken + 2 * 384 > bytes - bytes % 384, "{bytes}: {config:?}");
        }
        assert_eq!(TableConfig::with_memory_max(767).checked().err(), Some(ConfigError::TooSmall));
        let many = TableConfig { buckets: MAX_BUCKETS, overflow: 1, ..TableConfig::with_memory_max(768) };
        assert_eq!(many.checked().err(), Some(ConfigError::TooLarge));
    }
}
