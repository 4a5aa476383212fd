//! Bugs that can be put in on purpose, so that it is seen that tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// Writes and trims that overlap are under way at once (I3).
        OverlapsRace = "overlaps-race",
        /// A chunk is written to before its record in the store is committed (C2).
        ChunkUnregistered = "chunk-unregistered",
        /// A record that one of three members does not have is acknowledged (C1).
        AckTwoOfThree = "ack-two-of-three",
        /// What a chunk has is acknowledged, and the rest sent again, before the store names its length and members (C3).
        AckBeforeRecord = "ack-before-record",
        /// A chunk ends where its shortest member does (C4).
        SealShortest = "seal-shortest",
        /// A chunk ends before what was acknowledged, because who is there has no more (C4).
        DoubtIgnored = "doubt-ignored",
        /// A chunk's record names members that do not have all of it yet (C5).
        RecordBeforeCopy = "record-before-copy",
        /// A replica that returns is taken in as it is (C6).
        ReturnUntruncated = "return-untruncated",
        /// The number of a chunk that was not made is another's (C7).
        ChunkNumberReused = "chunk-number-reused",
        /// What an earlier life has sent something of is executed once more (I8).
        ParkedAgain = "parked-again",
        /// What a sealed chunk has of commands that were given up does not enter the index (I9).
        PrefixIgnored = "prefix-ignored",
        /// The first piece of a write makes it done, whatever becomes of the others (C1).
        PieceForgotten = "piece-forgotten",
    }
}
