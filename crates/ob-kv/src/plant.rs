//! Known bugs that a test can switch on, to show that the store's model test catches them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// `answer-before-durable`: answers leave before what they show is durable.
    AnswerBeforeDurable,
    /// `read-before-durable`: answers of reads leave before what they show is durable.
    ReadBeforeDurable,
    /// `compaction-drops-live`: compaction does not copy some records that are current.
    CompactionDropsLive,
    /// `compaction-copies-old`: compaction copies records that are not current.
    CompactionCopiesOld,
    /// `earlier-address-wins`: on recovery a record does not replace an earlier one of its key.
    EarlierAddressWins,
    /// `part-removed-early`: a part is removed before what replaces its records is durable.
    PartRemovedEarly,
    /// `settled-with-gaps`: a group counts as settled though one before it is not complete.
    SettledWithGaps,
    /// `life-written-ahead`: groups are written behind the first one of a life before that is durable.
    LifeWrittenAhead,
    /// `unlocked-change`: a request that waits for a read does not keep later ones off its key.
    UnlockedChange,
    /// `attests-locked`: keys are attested that a request waits to change.
    AttestsLocked,
    /// `attests-unsettled`: records are attested that are not in the settled part of the log.
    AttestsUnsettled,
    /// `removed-not-logged`: the removal of a key is not written to the log.
    RemovedNotLogged,
    /// `reserve-given-away`: values are appended where only compaction may.
    ReserveGivenAway,
    /// `removals-unbounded`: removals are appended where only compaction may.
    RemovalsUnbounded,
    /// `rounds-left-out`: compaction does not begin because removals have taken their room.
    RoundsLeftOut,
    /// `copies-scattered`: copies are written before they fill a group.
    CopiesScattered,
    /// `durable-early`: groups say that everything before them is durable.
    DurableEarly,
    /// `recovered-not-flushed`: what was recovered is taken for durable.
    RecoveredNotFlushed,
    /// `damage-is-the-end`: recovery takes damage for the log's end.
    DamageIsTheEnd,
    /// `not-revisited`: a store goes on with what it has in memory, whoever has written to its log meanwhile.
    NotRevisited,
    /// `life-unmarked`: a host that changes nothing leaves no mark in the log.
    LifeUnmarked,
    /// `file-unheard`: the log is written to before the card knows the file.
    FileUnheard,
    /// `no-margin`: the card answers for a key up to the moment at which it expires.
    NoMargin,
    /// `clock-untold`: the card is told the time when a life begins, and not again.
    ClockUntold,
    /// `answers-kept`: answers of an earlier life stay with the store, and leave it no room for the next one's meeting.
    AnswersKept,
    /// `stamp-in-two-groups`: what one request changes may lie in several groups.
    StampInTwoGroups,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "answer-before-durable" => Some(Bug::AnswerBeforeDurable),
        "read-before-durable" => Some(Bug::ReadBeforeDurable),
        "compaction-drops-live" => Some(Bug::CompactionDropsLive),
        "compaction-copies-old" => Some(Bug::CompactionCopiesOld),
        "earlier-address-wins" => Some(Bug::EarlierAddressWins),
        "part-removed-early" => Some(Bug::PartRemovedEarly),
        "settled-with-gaps" => Some(Bug::SettledWithGaps),
        "life-written-ahead" => Some(Bug::LifeWrittenAhead),
        "unlocked-change" => Some(Bug::UnlockedChange),
        "attests-locked" => Some(Bug::AttestsLocked),
        "attests-unsettled" => Some(Bug::AttestsUnsettled),
        "removed-not-logged" => Some(Bug::RemovedNotLogged),
        "reserve-given-away" => Some(Bug::ReserveGivenAway),
        "removals-unbounded" => Some(Bug::RemovalsUnbounded),
        "rounds-left-out" => Some(Bug::RoundsLeftOut),
        "copies-scattered" => Some(Bug::CopiesScattered),
        "durable-early" => Some(Bug::DurableEarly),
        "recovered-not-flushed" => Some(Bug::RecoveredNotFlushed),
        "damage-is-the-end" => Some(Bug::DamageIsTheEnd),
        "not-revisited" => Some(Bug::NotRevisited),
        "life-unmarked" => Some(Bug::LifeUnmarked),
        "file-unheard" => Some(Bug::FileUnheard),
        "no-margin" => Some(Bug::NoMargin),
        "clock-untold" => Some(Bug::ClockUntold),
        "answers-kept" => Some(Bug::AnswersKept),
        "stamp-in-two-groups" => Some(Bug::StampInTwoGroups),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}
