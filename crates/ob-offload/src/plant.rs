//! Known bugs that a test can switch on, to show that tests and simulator catch them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// `unchecked-read`: what was read is sent without a look whether it is what the table meant.
    UncheckedRead,
    /// `admitted-at-submission`: records are admitted when their write is taken, not when the log is settled.
    AdmittedAtSubmission,
    /// `read-unseen`: what the host reads is not invalidated.
    ReadUnseen,
    /// `flush-keeps`: a request that changes every key leaves the table as it is.
    FlushKeeps,
    /// `earlier-life-kept`: files and records of a host that is gone count for the next one.
    EarlierLifeKept,
    /// `partly-answered`: a request for several keys is answered though only some are there.
    PartlyAnswered,
    /// `outdated-check`: what a program has planned is checked by the one that came after it.
    OutdatedCheck,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "unchecked-read" => Some(Bug::UncheckedRead),
        "admitted-at-submission" => Some(Bug::AdmittedAtSubmission),
        "read-unseen" => Some(Bug::ReadUnseen),
        "flush-keeps" => Some(Bug::FlushKeeps),
        "earlier-life-kept" => Some(Bug::EarlierLifeKept),
        "partly-answered" => Some(Bug::PartlyAnswered),
        "outdated-check" => Some(Bug::OutdatedCheck),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}
