//! Known mistakes that a test can switch on, to show that the comparison with RocksDB finds them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub enum Bug {
        /// Nothing is deleted by tombstones of ranges.
        TombstonesIgnored = "range-tombstones-ignored",
        /// A lookup ends with the first table whose range has the key, though the key is not in it.
        FirstTableEnds = "first-table-ends",
        /// A lookup in the past sees what was written since.
        SnapshotIgnored = "snapshot-ignored",
        /// What the write-ahead logs have is not seen.
        LogsIgnored = "logs-ignored",
        /// The value below merge operands is left out.
        BaseForgotten = "merge-base-forgotten",
        /// A filter's bits are looked up with the hash that xxHash has today.
        HashOfToday = "filter-hash-of-today",
    }
}
