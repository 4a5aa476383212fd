//! Known bugs that a test can switch on, to show that tests catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A host attaches whoever it is and wherever it comes from.
        AnybodyAttaches = "anybody-attaches",
        /// What a part of the card leaves for a host behind a turn is not sent before another turn.
        PartNotFollowed = "part-not-followed",
        /// The card thinks its rings ready for sleep although something was sent since they were.
        ReadinessKept = "readiness-kept",
        /// A service that found no room is not asked again when some came with the last transfer before a sleep.
        RoomUnasked = "room-unasked",
    }
}
