//! Bugs that can be put in on purpose, so that it is seen that the tests find them (`cargo xtask planted`).
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature, in every build that people run, none can be.

/// The bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// What a lost association left on devices is not waited for.
    OrphansForgotten,
    /// Who overlaps what a lost association left on devices waits for ever, unless its host comes back for it.
    OrphansKept,
    /// Writes with FUA are answered when they are written, durable or not.
    ForceUnitAccessIgnored,
    /// Write Zeroes with FUA likewise.
    ZeroesNotForced,
    /// Reads with FUA are answered with what may still be lost.
    ReadsNotForced,
    /// A flush is answered without one.
    FlushAtOnce,
    /// Every comparison finds what it was given.
    CompareAlwaysEqual,
    /// The write of a fused pair goes on though the comparison failed.
    PairWritesAnyway,
    /// Others come between the halves of a fused pair.
    PairUnlocked,
    /// Data that was asked for is taken in any order.
    OffsetUnchecked,
    /// A namespace's reservations hold for nobody who has waited.
    AdmittedForEver,
    /// Reads for a service do not wait for those who have the range.
    ChainsPassRanges,
    /// What a lost association left with a service is not waited for.
    ServiceForgotten,
    /// Host and key of a registration have changed places where reservations are kept, in both directions alike.
    RegistrantFieldsSwapped,
    /// A queue that is connected anew does not wait for what its old connection left on devices.
    ReplacedNotAwaited,
    /// What a reset ended is heard of only after a Connect that came with it.
    ResetHeardLate,
    /// A shutdown is complete when it is noticed.
    ShutdownAtOnce,
    /// Commands that are refused are no signs of life.
    RefusedUnheard,
    /// Answers are none.
    AnswersUnheard,
    /// A host that has shut its controller down has to be heard of as before.
    LingeringWatched,
}

/// Whether this bug is on.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "orphans-forgotten" => Some(Bug::OrphansForgotten),
        "orphans-kept" => Some(Bug::OrphansKept),
        "fua-ignored" => Some(Bug::ForceUnitAccessIgnored),
        "zeroes-not-forced" => Some(Bug::ZeroesNotForced),
        "reads-not-forced" => Some(Bug::ReadsNotForced),
        "flush-at-once" => Some(Bug::FlushAtOnce),
        "compare-always-equal" => Some(Bug::CompareAlwaysEqual),
        "pair-writes-anyway" => Some(Bug::PairWritesAnyway),
        "pair-unlocked" => Some(Bug::PairUnlocked),
        "offset-unchecked" => Some(Bug::OffsetUnchecked),
        "admitted-for-ever" => Some(Bug::AdmittedForEver),
        "chains-pass-ranges" => Some(Bug::ChainsPassRanges),
        "service-forgotten" => Some(Bug::ServiceForgotten),
        "registrant-fields-swapped" => Some(Bug::RegistrantFieldsSwapped),
        "replaced-not-awaited" => Some(Bug::ReplacedNotAwaited),
        "reset-heard-late" => Some(Bug::ResetHeardLate),
        "shutdown-at-once" => Some(Bug::ShutdownAtOnce),
        "refused-unheard" => Some(Bug::RefusedUnheard),
        "answers-unheard" => Some(Bug::AnswersUnheard),
        "lingering-watched" => Some(Bug::LingeringWatched),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether this bug is on: it cannot be.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}
