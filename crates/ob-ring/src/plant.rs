//! Known bugs that a test can switch on, to show that loom, Miri or the simulator catch them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `dropped-fence`: a host thread does not fence between settling and looking whether the card sleeps.
    DroppedFence,
    /// `relaxed-publish`: a host thread publishes its message without release order.
    RelaxedPublish,
    /// `head-before-read`: the card frees ring space before it has read what lies there.
    HeadBeforeRead,
    /// `lost-doorbell`: a host thread takes the card's ticket but does not ring.
    LostDoorbell,
    /// `lost-bell`: the card publishes responses but does not ring those who sleep.
    LostBell,
    /// `tail-before-data`: the card publishes its tail before the data it covers.
    TailBeforeData,
    /// `message-before-bulk`: the card does not hold messages back until the bulk write before them is submitted.
    MessageBeforeBulk,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "dropped-fence" => Some(Bug::DroppedFence),
        "relaxed-publish" => Some(Bug::RelaxedPublish),
        "head-before-read" => Some(Bug::HeadBeforeRead),
        "lost-doorbell" => Some(Bug::LostDoorbell),
        "lost-bell" => Some(Bug::LostBell),
        "tail-before-data" => Some(Bug::TailBeforeData),
        "message-before-bulk" => Some(Bug::MessageBeforeBulk),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}
