//! Known bugs that a test can switch on, to show that the simulator catches them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// `skip-zeroing`: free segments are given to files without being zeroed.
    SkipZeroing,
    /// `reuse-before-durable`: freed segments are zeroed and given again before the frame that freed them is durable.
    ReuseBeforeDurable,
    /// `answer-before-log`: a change of names is answered before its frame is written.
    AnswerBeforeLog,
    /// `size-not-logged`: a write that makes a file longer does not log the new size.
    SizeNotLogged,
    /// `rename-in-two-frames`: what a rename replaces goes in one frame, and the new name comes in the next.
    RenameInTwoFrames,
    /// `unlocked-edges`: blocks that are written in part are read, changed and written back by several at once.
    UnlockedEdges,
    /// `ghost-ignored`: the segments of a removed file are used again while requests are at them.
    GhostIgnored,
    /// `cleaner-forgets`: the cleaner does not write every node again.
    CleanerForgets,
    /// `flush-skipped`: a flush is answered without flushing the device.
    FlushSkipped,
    /// `hole-reused-early`: segments of a range that is zeroed are used again before the frame that freed them is durable.
    HoleReusedEarly,
    /// `tail-kept`: what lies beyond a file's end is not tidied up before it grows.
    TailKept,
    /// `change-uncounted`: resizing a file, or zeroing a part of it, does not make another version of it.
    ChangeUncounted,
    /// `flush-assumed`: a durable write takes the flush of what the log says of its file for one of its own bytes.
    FlushAssumed,
    /// `version-while-changing`: a file has a version while it is being changed.
    VersionWhileChanging,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "skip-zeroing" => Some(Bug::SkipZeroing),
        "reuse-before-durable" => Some(Bug::ReuseBeforeDurable),
        "answer-before-log" => Some(Bug::AnswerBeforeLog),
        "size-not-logged" => Some(Bug::SizeNotLogged),
        "rename-in-two-frames" => Some(Bug::RenameInTwoFrames),
        "unlocked-edges" => Some(Bug::UnlockedEdges),
        "ghost-ignored" => Some(Bug::GhostIgnored),
        "cleaner-forgets" => Some(Bug::CleanerForgets),
        "flush-skipped" => Some(Bug::FlushSkipped),
        "hole-reused-early" => Some(Bug::HoleReusedEarly),
        "tail-kept" => Some(Bug::TailKept),
        "flush-assumed" => Some(Bug::FlushAssumed),
        "change-uncounted" => Some(Bug::ChangeUncounted),
        "version-while-changing" => Some(Bug::VersionWhileChanging),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_bug: Bug) -> bool {
    false
}
