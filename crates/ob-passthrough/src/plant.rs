//! The bugs that tests must find (`cargo xtask planted`).

ob_plant::plants! {
    /// What can be wrong with maps and leases.
    pub(crate) enum Bug {
        /// A partition's start is left out.
        PartitionForgotten = "partition-forgotten",
        /// Extents that touch in the file alone are joined.
        JoinedApart = "joined-apart",
        /// Space that was never written is taken for data.
        UnwrittenTaken = "unwritten-taken",
        /// Dirty pages are not written back before the map is made.
        NotSynced = "not-synced",
        /// The lease goes back to the kernel before its version has changed.
        ReleasedBeforeVersion = "released-before-version",
        /// The keeper does not wait for requests in flight.
        NoGrace = "no-grace",
    }
}
