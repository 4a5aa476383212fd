//! Bugs that can be put in on purpose, so that it is seen that tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// Writes and trims that overlap are under way at once (I3).
        OverlapsRace = "overlaps-race",
        /// A chunk is written to before its record in the store is committed (C2).
        ChunkUnregistered = "chunk-unregistered",
        /// The first piece of a write makes it done, whatever becomes of the others (C1).
        PieceForgotten = "piece-forgotten",
    }
}
