//! Buckets that are chained to others where displacement finds no place (DDS §6.2).
//!
//! ```text
//!   hashed:    [ bucket ]──chain──▶[ overflow ]──chain──▶[ overflow ]──▶ 0
//!   unused:    first_unused ..= end          freed: free ──chain──▶[ ]──chain──▶ 0
//! ```

use crate::sync::Ordering;
use crate::table::{CHAIN_MAX, Table};

/// The overflow buckets that are not in use.
pub(crate) struct Overflow {
    /// Never used so far, from here to the end of the table.
    unused: u32,
    /// The index of the first one that is free again, and 1; or 0.
    free: u32,
    used: u64,
}

impl Overflow {
    pub(crate) fn new(table: &Table) -> Self {
        Self { unused: table.hashed, free: 0, used: 0 }
    }

    /// How many are in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Chains one more bucket, if there is one and the chain is not as long as it may be.
    pub(crate) fn link(&mut self, table: &Table, main: u32) -> Option<u32> {
        if table.chain(main).count() > CHAIN_MAX {
            return None;
        }
        let bucket = if self.free != 0 {
            let bucket = self.free - 1;
            self.free = table.bucket(bucket).chain.load(Ordering::Relaxed);
            bucket
        } else {
            let bucket = self.unused;
            if bucket as usize >= table.buckets.len() {
                return None;
            }
            self.unused += 1;
            bucket
        };
        let head = table.bucket(main);
        table.bucket(bucket).chain.store(head.chain.load(Ordering::Relaxed), Ordering::Release);
        head.chain.store(bucket + 1, Ordering::Release);
        self.used += 1;
        Some(bucket)
    }

    /// Takes an empty bucket out of a chain.
    pub(crate) fn unlink(&mut self, table: &Table, main: u32, bucket: u32) {
        let Some((_, before)) =
            table.chain(main).find(|(_, before)| before.chain.load(Ordering::Relaxed) == bucket + 1)
        else {
            return;
        };
        let gone = table.bucket(bucket);
        before.chain.store(gone.chain.load(Ordering::Relaxed), Ordering::Release);
        // Whoever is walking this chain must look again: the bucket may be part of another one before it gets there.
        let head = table.bucket(main);
        head.seq.store(head.seq.load(Ordering::Relaxed).wrapping_add(2), Ordering::Release);
        gone.chain.store(self.free, Ordering::Release);
        self.free = bucket + 1;
        self.used -= 1;
    }

    /// Takes all buckets, which are empty, out of a chain.
    pub(crate) fn unlink_all(&mut self, table: &Table, main: u32) {
        while let chained @ 1.. = table.bucket(main).chain.load(Ordering::Relaxed) {
            self.unlink(table, main, chained - 1);
        }
    }
}
