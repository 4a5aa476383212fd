//! Bugs that can be put in on purpose, so that it is seen that the tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// What a lost association left on devices is not waited for.
        OrphansForgotten = "orphans-forgotten",
        /// Who overlaps what a lost association left on devices waits for ever, unless its host comes back for it.
        OrphansKept = "orphans-kept",
        /// Writes with FUA are answered when they are written, durable or not.
        ForceUnitAccessIgnored = "fua-ignored",
        /// Write Zeroes with FUA likewise.
        ZeroesNotForced = "zeroes-not-forced",
        /// Reads with FUA are answered with what may still be lost.
        ReadsNotForced = "reads-not-forced",
        /// A flush is answered without one.
        FlushAtOnce = "flush-at-once",
        /// Every comparison finds what it was given.
        CompareAlwaysEqual = "compare-always-equal",
        /// The write of a fused pair goes on though the comparison failed.
        PairWritesAnyway = "pair-writes-anyway",
        /// Others come between the halves of a fused pair.
        PairUnlocked = "pair-unlocked",
        /// Data that was asked for is taken in any order.
        OffsetUnchecked = "offset-unchecked",
        /// A namespace's reservations hold for nobody who has waited.
        AdmittedForEver = "admitted-for-ever",
        /// Reads for a service do not wait for those who have the range.
        ChainsPassRanges = "chains-pass-ranges",
        /// What a lost association left with a service is not waited for.
        ServiceForgotten = "service-forgotten",
        /// Host and key of a registration have changed places where reservations are kept, in both directions alike.
        RegistrantFieldsSwapped = "registrant-fields-swapped",
        /// A queue that is connected anew does not wait for what its old connection left on devices.
        ReplacedNotAwaited = "replaced-not-awaited",
        /// What a reset ended is heard of only after a Connect that came with it.
        ResetHeardLate = "reset-heard-late",
        /// A shutdown is complete when it is noticed.
        ShutdownAtOnce = "shutdown-at-once",
        /// Commands that are refused are no signs of life.
        RefusedUnheard = "refused-unheard",
        /// Answers are none.
        AnswersUnheard = "answers-unheard",
        /// A host that has shut its controller down has to be heard of as before.
        LingeringWatched = "lingering-watched",
    }
}
