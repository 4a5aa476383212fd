//! Bugs that can be put in on purpose, so that it is seen that tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A commit is answered when the device has begun to take it, not when it is durable.
        MetadataUnflushed = "metadata-unflushed",
        /// Keys of sessions are still there when a store is opened.
        SessionsOutlive = "sessions-outlive",
        /// The last revision is not kept, so that revisions are given again.
        RevisionForgotten = "revision-forgotten",
        /// A lease lives if whoever is asked says so (L7).
        RenewedByAnybody = "renewed-by-anybody",
    }
}
