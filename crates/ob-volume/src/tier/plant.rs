//! Bugs that can be put in on purpose, so that it is seen that tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// The index says where a record lies though not all members have it (I1).
        IndexBeforeDurable = "index-before-durable",
        /// Writes and trims that overlap are under way at once (I3).
        OverlapsRace = "overlaps-race",
        /// A chunk is written to before its record in the store is committed (C2).
        ChunkUnregistered = "chunk-unregistered",
        /// A record that one of three members does not have is acknowledged (C1).
        AckTwoOfThree = "ack-two-of-three",
        /// What a chunk has is acknowledged, and the rest sent again, before the store names its length and members (C3).
        AckBeforeRecord = "ack-before-record",
        /// A chunk ends where its shortest member does (C4).
        SealShortest = "seal-shortest",
        /// How far a chunk goes is looked for at one member alone (C4).
        PrefixAlone = "prefix-alone",
        /// A chunk ends before what was acknowledged, because who is there has no more (C4).
        DoubtIgnored = "doubt-ignored",
        /// A chunk's record names members that do not have all of it yet (C5).
        RecordBeforeCopy = "record-before-copy",
        /// A replica that returns is taken in as it is (C6).
        ReturnUntruncated = "return-untruncated",
        /// The number of a chunk that was not made is another's (C7).
        ChunkNumberReused = "chunk-number-reused",
        /// A chunk dies of whose blocks the index has none since its volume was cut, and the head still has some (G7).
        CutDies = "cut-dies",
        /// Headers are looked up though a port may have older completions (I2).
        HeadersFirst = "headers-first",
        /// What an earlier life has sent something of is executed once more (I8).
        ParkedAgain = "parked-again",
        /// What a sealed chunk has of commands that were given up does not enter the index (I9).
        PrefixIgnored = "prefix-ignored",
        /// What became of a commit of which nobody knows is read, and it is not sent again (M1).
        UnknownReadOnly = "unknown-read-only",
        /// The lease counts from when the renewal was answered (L1).
        LeaseFromAnswer = "lease-from-answer",
        /// The owner looks blocks up though its lease is over (L2).
        LeaseUnchecked = "lease-unchecked",
        /// It does so for those that nobody has written, and answers flushes (L2).
        UnmappedUnleased = "unmapped-unleased",
        /// The clock that leases are counted on stands still while the machine sleeps (L8).
        ClockSleeps = "clock-sleeps",
        /// The clock is read before headers are taken, and they are judged by what it showed then (L10).
        ClockReadEarly = "clock-read-early",
        /// A tier on a copy of another's data directory takes itself for that one (L11).
        CopiedTier = "copied-tier",
        /// Whoever takes a segment answers while the one before may still answer (L3).
        TakeOverAtOnce = "take-over-at-once",
        /// How wrong clocks run is not waited for (L4).
        DriftForgotten = "drift-forgotten",
        /// The one before is waited for as long as this tier's own lease lasts, whatever the record says (L5).
        OwnLeaseLength = "own-lease-length",
        /// A segment is taken though the session of its owner goes on (L6).
        SessionUnlooked = "session-unlooked",
        /// A wait that is not over is not waited for by the next one (L12).
        WaitDropped = "wait-dropped",
        /// A store that knows less than chunk servers do is believed, and what it does not name goes.
        StoreBelieved = "store-believed",
        /// Who releases a segment answers for it until the store has said that it is released (L9).
        AnswersAfterRelease = "answers-after-release",
        /// Sequences of an epoch are not above all of earlier ones (I4).
        SequenceContinued = "sequence-continued",
        /// What a server has answered is taken for that of the one that is at its address now (C5).
        PlaceBelieved = "place-believed",
        /// A list that lacks records is believed.
        ListBelieved = "list-believed",
        /// A page says that it has what is under way (I5).
        AsOfTooNew = "as-of-too-new",
        /// A head says so (I5).
        HeadTooNew = "head-too-new",
        /// The head names what is not sealed (I6).
        HeadBeforePages = "head-before-pages",
        /// The place of a chunk is another's while a checkpoint is under way (I7).
        SlotReused = "slot-reused",
        /// A chunk is deleted before the store calls it dead (G1).
        DeleteBeforeRecord = "delete-before-record",
        /// A chunk is dead as soon as no block lies there, whatever the head is past (G2).
        GcIgnoresHead = "gc-ignores-head",
        /// A move does not wait for changes of its blocks (G3).
        MoveUnlocked = "move-unlocked",
        /// A segment is taken though its volume is not as it was known (S1).
        VolumeUncompared = "volume-uncompared",
        /// A head is written that does not go as far as what was cut off from its volume.
        CutReplayed = "cut-replayed",
        /// A volume that was cut may grow before all of it is trimmed (S1).
        CutForgotten = "cut-forgotten",
        /// A volume that a server tells of is gone, whatever the store says (G5).
        SweepTooEager = "sweep-too-eager",
        /// What a server had that was away is never swept (G4).
        DeadForgotten = "dead-forgotten",
        /// Chunks for clients use what is kept for maintenance (G6).
        ReserveEaten = "reserve-eaten",
        /// A server is a member before it has sealed (R2).
        JoinedEarly = "joined-early",
        /// A replica that nobody names is discarded before all members are there (R4).
        StrayDiscarded = "stray-discarded",
        /// What no member gives is asked of nobody else (R5).
        StrayUnasked = "stray-unasked",
        /// What servers have to tell of any segment is waited for before anything is copied.
        SweepOfAll = "sweep-of-all",
        /// A list that cannot be is believed when one member has told it.
        ImpossibleCounted = "impossible-counted",
        /// A replica that returns is named as it is if its server says that it is sealed so (C6).
        ReturnUnchecked = "return-unchecked",
        /// A replica that does not fit is made anew before it is known whether members have all of it (R7).
        StartedUnchecked = "started-unchecked",
        /// A replica that is broken stays so where there is nowhere else (R7).
        BrokenLeft = "broken-left",
        /// One that is broken and may not go yet keeps others from being made (R7).
        BrokenWaitedFor = "broken-waited-for",
        /// Where a block that records share cannot be read, the one that is mended is given up (R6).
        BesideForgotten = "beside-forgotten",
        /// Of members that have not all the longest alone is filled up (C4).
        LongestAlone = "longest-alone",
        /// A member that cannot be mended is none any more, though nobody else can be in its place.
        DroppedWithoutAnother = "dropped-without-another",
        /// A record that has rotted stays as it is.
        MendForgotten = "mend-forgotten",
        /// What a port's ring still had is done without, and the other ports go on (I2).
        PortLostAlone = "port-lost-alone",
        /// Blocks are trimmed in the index, and no record says so.
        TrimNotLogged = "trim-not-logged",
        /// What a write has left when its chunk was closed is not written to the next one.
        ResendLosesPiece = "resend-loses-piece",
        /// A server that was full once is full for ever.
        FullPoolStuck = "full-pool-stuck",
        /// That servers are missing is taken for want of space.
        FullForMissingServers = "full-for-missing-servers",
        /// A slot is set to another chunk while plans name it.
        SlotSetUnderPlan = "slot-set-under-plan",
        /// The first piece of a write makes it done, whatever becomes of the others (C1).
        PieceForgotten = "piece-forgotten",
    }
}
