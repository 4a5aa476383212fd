//! Known bugs that a test can switch on, to show that loom and the model catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub enum Bug {
        /// An invalidation stores its tombstone, whatever was there.
        PlainStore = "plain-store",
        /// An entry is evicted without raising the floor of its bucket.
        EvictionForgets = "eviction-forgets",
        /// A displaced entry has the state that it had before it was copied.
        MoveForgets = "move-forgets",
        /// An entry becomes valid without a look at the floors after it was published.
        FloorUnchecked = "floor-unchecked",
        /// An invalidation that found nothing raises the floor and is done.
        NoSecondLook = "no-second-look",
        /// An invalidation does not look again when the writer filled slots while it looked.
        MovedUnseen = "moved-unseen",
        /// A reader does not look whether the slot was written while it read.
        TornRead = "torn-read",
        /// An entry that was moved becomes valid without a look at the floors after it was published.
        MoveUnchecked = "move-unchecked",
        /// Keys that should be looked up at one instant are looked up one after the other.
        NotAtOnce = "not-at-once",
        /// An entry is admitted over a newer one.
        StaleReplaces = "stale-replaces",
        /// Removing an entry that lies in its second bucket leaves the slot taken.
        RemovedStays = "removed-stays",
        /// Lookups do not compare with the stamp of the last clearing.
        ClearedUnseen = "cleared-unseen",
        /// A lookup of several keys does not see a clearing between its two looks.
        ClearedBetween = "cleared-between",
    }
}
