//! Known bugs that a test can switch on, to show that tests and simulator catch them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// `invalidate-after-forward`: a request is in the stream before its keys are invalidated.
    InvalidateAfterForward,
    /// `forward-past-read`: a request is forwarded while one before it on its connection is still reading.
    ForwardPastRead,
    /// `served-unadmitted`: the card answers on connections that the host has not admitted.
    ServedUnadmitted,
    /// `fallback-alone`: what was started behind a request that goes to the host after all is answered by the card.
    FallbackAlone,
    /// `table-kept`: the table is not emptied when the host has lost what was admitted.
    TableKept,
    /// `clock-unmeasured`: the host's clock is taken for the card's own.
    ClockUnmeasured,
    /// `stamps-reused`: a life begins behind the stamps that the card has given, whatever the host has seen.
    StampsReused,
    /// `standing-kept`: what stands behind a request that may change who the client is does not wait for its reply.
    StandingKept,
    /// `turns-ignored`: who waits for room in the stream gets it before those that have waited longer.
    TurnsIgnored,
    /// `passed-by`: who needs less room in the stream passes by those that wait for more.
    PassedBy,
    /// `never-clogged`: more is read from a client and answered, however much it has not taken yet.
    NeverClogged,
    /// `undecoded-ignored`: bytes of the host that are no frame are passed over, and the stream goes on.
    UndecodedIgnored,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "invalidate-after-forward" => Some(Bug::InvalidateAfterForward),
        "forward-past-read" => Some(Bug::ForwardPastRead),
        "served-unadmitted" => Some(Bug::ServedUnadmitted),
        "fallback-alone" => Some(Bug::FallbackAlone),
        "table-kept" => Some(Bug::TableKept),
        "clock-unmeasured" => Some(Bug::ClockUnmeasured),
        "stamps-reused" => Some(Bug::StampsReused),
        "standing-kept" => Some(Bug::StandingKept),
        "turns-ignored" => Some(Bug::TurnsIgnored),
        "passed-by" => Some(Bug::PassedBy),
        "never-clogged" => Some(Bug::NeverClogged),
        "undecoded-ignored" => Some(Bug::UndecodedIgnored),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}
