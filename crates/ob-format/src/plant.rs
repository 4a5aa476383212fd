//! Bugs that can be put in on purpose: formats that changed without another version, in both directions alike, so that a
//! build finds whatever it has written itself (`cargo xtask planted`).
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// `node-fields-swapped`: parent and size of a file's record have changed places.
    NodeFieldsSwapped,
    /// `record-fields-swapped`: stamp and time of a record of the key-value log have changed places.
    RecordFieldsSwapped,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "node-fields-swapped" => Some(Bug::NodeFieldsSwapped),
        "record-fields-swapped" => Some(Bug::RecordFieldsSwapped),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: it cannot be.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}

/// Two numbers, or the same two the other way round where the bug is planted.
pub(crate) fn swapped_if<T>(bug: Bug, pair: (T, T)) -> (T, T) {
    if is_planted(bug) { (pair.1, pair.0) } else { pair }
}
