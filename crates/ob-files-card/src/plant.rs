//! Known bugs that a test can switch on, to show that the simulator catches them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// Free segments are given to files without being zeroed.
        SkipZeroing = "skip-zeroing",
        /// Freed segments are zeroed and given again before the frame that freed them is durable.
        ReuseBeforeDurable = "reuse-before-durable",
        /// A change of names is answered before its frame is written.
        AnswerBeforeLog = "answer-before-log",
        /// A write that makes a file longer does not log the new size.
        SizeNotLogged = "size-not-logged",
        /// What a rename replaces goes in one frame, and the new name comes in the next.
        RenameInTwoFrames = "rename-in-two-frames",
        /// Blocks that are written in part are read, changed and written back by several at once.
        UnlockedEdges = "unlocked-edges",
        /// The segments of a removed file are used again while requests are at them.
        GhostIgnored = "ghost-ignored",
        /// The cleaner does not write every node again.
        CleanerForgets = "cleaner-forgets",
        /// A flush is answered without flushing the device.
        FlushSkipped = "flush-skipped",
        /// Segments of a range that is zeroed are used again before the frame that freed them is durable.
        HoleReusedEarly = "hole-reused-early",
        /// What lies beyond a file's end is not tidied up before it grows.
        TailKept = "tail-kept",
        /// Resizing a file, or zeroing a part of it, does not make another version of it.
        ChangeUncounted = "change-uncounted",
        /// A durable write takes the flush of what the log says of its file for one of its own bytes.
        FlushAssumed = "flush-assumed",
        /// A file has a version while it is being changed.
        VersionWhileChanging = "version-while-changing",
    }
}
