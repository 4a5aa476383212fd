//! Bugs that can be put in on purpose, so that it is seen that tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A plan that fails stops its chunk though all members have what it has written.
        DurableStopped = "durable-stopped",
        /// A record is believed whatever its bytes are.
        RecordUnverified = "record-unverified",
    }
}
