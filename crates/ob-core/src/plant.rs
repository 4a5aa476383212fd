//! Bugs that can be put in on purpose, so that it is seen that tests of those who use this find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A connection that has more than a turn takes of it is not received from in the next.
        RestUnread = "rest-unread",
        /// A connection that may go on is not received from.
        ResumeUnheard = "resume-unheard",
    }
}
