//! Known bugs that a test can switch on, to show that tests catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A host attaches whoever it is and wherever it comes from.
        AnybodyAttaches = "anybody-attaches",
        /// What a part of the card leaves for a host behind a turn is not sent before another turn.
        PartNotFollowed = "part-not-followed",
        /// Who sends for one group does not say that transfers have ended meanwhile, and the card sleeps as if they had not.
        EndUnsaid = "end-unsaid",
        /// A service that found no room is not asked again when some came with the last transfer before a sleep.
        RoomUnasked = "room-unasked",
    }
}
