//! Known bugs that a test can switch on, to show that tests catch them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// `anybody-attaches`: a host attaches whoever it is and wherever it comes from.
    AnybodyAttaches,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "anybody-attaches" => Some(Bug::AnybodyAttaches),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}
