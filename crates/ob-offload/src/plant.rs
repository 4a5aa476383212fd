//! Known bugs that a test can switch on, to show that tests and simulator catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// What was read is sent without a look whether it is what the table meant.
        UncheckedRead = "unchecked-read",
        /// Records are admitted when their write is taken, not when the log is settled.
        AdmittedAtSubmission = "admitted-at-submission",
        /// Of a write that has more records than a turn admits, the rest is not admitted.
        WriteCut = "write-cut",
        /// What the host reads is not invalidated.
        ReadUnseen = "read-unseen",
        /// A request that changes every key leaves the table as it is.
        FlushKeeps = "flush-keeps",
        /// Files and records of a host that is gone count for the next one.
        EarlierLifeKept = "earlier-life-kept",
        /// A request for several keys is answered though only some are there.
        PartlyAnswered = "partly-answered",
        /// What a program has planned is checked by the one that came after it.
        OutdatedCheck = "outdated-check",
    }
}
