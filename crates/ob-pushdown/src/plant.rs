//! Bugs that can be put in on purpose, so that it is seen that the tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A chain goes on over a card's file that has changed.
        VersionsIgnored = "chain-versions-ignored",
        /// A file that was read earlier in a chain is not looked at again at its end.
        LastLookSkipped = "chain-last-look-skipped",
        /// A map that was replaced or closed is read by all the same.
        WithdrawnMapRead = "withdrawn-map-read",
        /// Any version of a map will do.
        MapVersionUnchecked = "map-version-unchecked",
        /// What others had in the scratch is left there.
        ScratchNotCleared = "scratch-not-cleared",
        /// Numbers are looked up in everybody's files.
        FilesOfAnybody = "files-of-anybody",
        /// What a host has spent of its share is forgotten when its last controller is gone.
        ShareForgotten = "share-forgotten",
        /// A client believes what came back though the file changed meanwhile.
        AfterCheckSkipped = "after-check-skipped",
        /// A client maps files that it holds no lease on. (`cargo xtask kernel pushdown` plants it in a guest.)
        LeaseSkipped = "lease-skipped",
        /// A map is made before the lease is taken under which it is to be true.
        MapBeforeLease = "map-before-lease",
        /// A keeper of maps lets writers go on, and does not tell the target that a map has ended.
        MapNotWithdrawn = "map-not-withdrawn",
        /// A keeper of maps that leaves takes files along that wait for it.
        LeavesWaiting = "leaves-waiting",
        /// A tree's range or aggregate that takes several requests is believed though the file became another one between them.
        RangesMixed = "ranges-mixed",
        /// What a table's tombstones span is found all the same.
        TombstonesForgotten = "pushed-tombstones-forgotten",
        /// A lookup at a snapshot sees what was written later.
        SnapshotForgotten = "pushed-snapshot-forgotten",
    }
}
