//! Known bugs that a test can switch on, to show that the store's model test catches them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// Answers leave before what they show is durable.
        AnswerBeforeDurable = "answer-before-durable",
        /// Answers of reads leave before what they show is durable.
        ReadBeforeDurable = "read-before-durable",
        /// Compaction does not copy some records that are current.
        CompactionDropsLive = "compaction-drops-live",
        /// Compaction copies records that are not current.
        CompactionCopiesOld = "compaction-copies-old",
        /// On recovery a record does not replace an earlier one of its key.
        EarlierAddressWins = "earlier-address-wins",
        /// A part is removed before what replaces its records is durable.
        PartRemovedEarly = "part-removed-early",
        /// A group counts as settled though one before it is not complete.
        SettledWithGaps = "settled-with-gaps",
        /// Groups are written behind the first one of a life before that is durable.
        LifeWrittenAhead = "life-written-ahead",
        /// A request that waits for a read does not keep later ones off its key.
        UnlockedChange = "unlocked-change",
        /// Keys are attested that a request waits to change.
        AttestsLocked = "attests-locked",
        /// Records are attested that are not in the settled part of the log.
        AttestsUnsettled = "attests-unsettled",
        /// The removal of a key is not written to the log.
        RemovedNotLogged = "removed-not-logged",
        /// Values are appended where only compaction may.
        ReserveGivenAway = "reserve-given-away",
        /// Removals are appended where only compaction may.
        RemovalsUnbounded = "removals-unbounded",
        /// Compaction does not begin because removals have taken their room.
        RoundsLeftOut = "rounds-left-out",
        /// Copies are written before they fill a group.
        CopiesScattered = "copies-scattered",
        /// Groups say that everything before them is durable.
        DurableEarly = "durable-early",
        /// What was recovered is taken for durable.
        RecoveredNotFlushed = "recovered-not-flushed",
        /// Recovery takes damage for the log's end.
        DamageIsTheEnd = "damage-is-the-end",
        /// A store goes on with what it has in memory, whoever has written to its log meanwhile.
        NotRevisited = "not-revisited",
        /// What was complete behind a gap is not written again when the log is met again.
        GapLeft = "gap-left",
        /// A host that changes nothing leaves no mark in the log.
        LifeUnmarked = "life-unmarked",
        /// The log is written to before the card knows the file.
        FileUnheard = "file-unheard",
        /// The card answers for a key up to the moment at which it expires.
        NoMargin = "no-margin",
        /// The card is told the time when a life begins, and not again.
        ClockUntold = "clock-untold",
        /// Answers of an earlier life stay with the store, and leave it no room for the next one's meeting.
        AnswersKept = "answers-kept",
        /// What one request changes may lie in several groups.
        StampInTwoGroups = "stamp-in-two-groups",
    }
}
