//! Known bugs that a test can switch on, to show that tests catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A host attaches whoever it is and wherever it comes from.
        AnybodyAttaches = "anybody-attaches",
    }
}
