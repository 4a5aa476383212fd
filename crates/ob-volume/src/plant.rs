//! Bugs that can be put in on purpose, so that it is seen that tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A chunk server answers an append when it has begun to write, not when the records are durable.
        AckBeforeDurable = "ack-before-durable",
        /// It takes appends of an epoch that is not the segment's highest.
        AppendUnfenced = "append-unfenced",
        /// It does not remember over its lives which epoch it has heard of, nor what was stopped.
        FenceForgotten = "fence-forgotten",
        /// It stops and seals chunks for an epoch that is not the segment's highest.
        SealUnfenced = "seal-unfenced",
        /// It deletes them.
        DeleteUnfenced = "delete-unfenced",
        /// It gives bytes of them.
        ReadUnfenced = "read-unfenced",
        /// It clears what lies behind the records that are filled in.
        FillWipes = "fill-wipes",
        /// It believes a new ledger before it is in the old one's place.
        LedgerBelievedEarly = "ledger-believed-early",
        /// It tells an end that lies in the device's memory only.
        FoundUnflushed = "found-unflushed",
        /// It lists by a directory that is of the chunk at another length.
        DirectoryUncompared = "directory-uncompared",
        /// It removes a chunk's file whose header has rotted, as if nobody had been told of it.
        HeaderRotRemoves = "header-rot-removes",
        /// It forgets what its ledger says of a chunk that cannot be read in one of its lives.
        LeftAloneForgotten = "left-alone-forgotten",
        /// It goes on with what an earlier connection of the same tier and port has sent.
        OldConnectionHeard = "old-connection-heard",
        /// It gives nothing of a read of many blocks of which one cannot be read.
        ReadAllOrNothing = "read-all-or-nothing",
        /// It writes a block that cannot be read with zeros where it was not sent what others have there.
        BlockGuessed = "block-guessed",
        /// Where a chunk has no directory, it does not know which record belongs to a place that cannot be read (R8).
        HeadersForgotten = "headers-forgotten",
        /// The card sends on what it copies without looking at it (R1).
        CopyUnverified = "copy-unverified",
        /// It answers what it has read without looking at its sum (R3).
        ChecksumUnchecked = "checksum-unchecked",
    }
}
