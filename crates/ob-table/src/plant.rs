//! Known bugs that a test can switch on, to show that loom and the model catch them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `plain-store`: an invalidation stores its tombstone, whatever was there.
    PlainStore,
    /// `eviction-forgets`: an entry is evicted without raising the floor of its bucket.
    EvictionForgets,
    /// `move-forgets`: a displaced entry has the state that it had before it was copied.
    MoveForgets,
    /// `floor-unchecked`: an entry becomes valid without a look at the floors after it was published.
    FloorUnchecked,
    /// `no-second-look`: an invalidation that found nothing raises the floor and is done.
    NoSecondLook,
    /// `moved-unseen`: an invalidation does not look again when the writer filled slots while it looked.
    MovedUnseen,
    /// `torn-read`: a reader does not look whether the slot was written while it read.
    TornRead,
    /// `move-unchecked`: an entry that was moved becomes valid without a look at the floors after it was published.
    MoveUnchecked,
    /// `not-at-once`: keys that should be looked up at one instant are looked up one after the other.
    NotAtOnce,
    /// `stale-replaces`: an entry is admitted over a newer one.
    StaleReplaces,
    /// `removed-stays`: removing an entry that lies in its second bucket leaves the slot taken.
    RemovedStays,
    /// `cleared-unseen`: lookups do not compare with the stamp of the last clearing.
    ClearedUnseen,
    /// `cleared-between`: a lookup of several keys does not see a clearing between its two looks.
    ClearedBetween,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "plain-store" => Some(Bug::PlainStore),
        "eviction-forgets" => Some(Bug::EvictionForgets),
        "move-forgets" => Some(Bug::MoveForgets),
        "floor-unchecked" => Some(Bug::FloorUnchecked),
        "no-second-look" => Some(Bug::NoSecondLook),
        "moved-unseen" => Some(Bug::MovedUnseen),
        "torn-read" => Some(Bug::TornRead),
        "move-unchecked" => Some(Bug::MoveUnchecked),
        "not-at-once" => Some(Bug::NotAtOnce),
        "stale-replaces" => Some(Bug::StaleReplaces),
        "removed-stays" => Some(Bug::RemovedStays),
        "cleared-unseen" => Some(Bug::ClearedUnseen),
        "cleared-between" => Some(Bug::ClearedBetween),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}
