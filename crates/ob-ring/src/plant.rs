//! Known bugs that a test can switch on, to show that loom, Miri or the simulator catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub enum Bug {
        /// A host thread does not fence between settling and looking whether the card sleeps.
        DroppedFence = "dropped-fence",
        /// A host thread publishes its message without release order.
        RelaxedPublish = "relaxed-publish",
        /// The card frees ring space before it has read what lies there.
        HeadBeforeRead = "head-before-read",
        /// A host thread takes the card's ticket but does not ring.
        LostDoorbell = "lost-doorbell",
        /// The card publishes responses but does not ring those who sleep.
        LostBell = "lost-bell",
        /// The card never looks for those who sleep beside what it has published quietly.
        QuietForgotten = "quiet-forgotten",
        /// The card publishes its tail before the data it covers.
        TailBeforeData = "tail-before-data",
        /// The card does not hold messages back until the bulk write before them is submitted.
        MessageBeforeBulk = "message-before-bulk",
    }
}
