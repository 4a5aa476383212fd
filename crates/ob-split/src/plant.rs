//! Bugs that can be put in on purpose, so that it is seen that tests find them (`cargo xtask planted`).

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A message that its peer gives up ends what was sent of it, before its members have answered.
        SentGivenUp = "sent-given-up",
        /// What waits for room at a channel is late before it is sent.
        QueueLate = "queue-late",
        /// What does not decompress ends its plan, though other members have it.
        DecodeUnretried = "decode-unretried",
        /// A gate is extended from the time of another preparation.
        ExtendedByAnother = "extended-by-another",
        /// No gate is ever closed, nor late.
        GateOpen = "gate-open",
        /// What is closed at one port of a card is open at the others.
        GateAlone = "gate-alone",
        /// What is retained is found by its slot, whatever that is set to.
        RetainedBySlot = "retained-by-slot",
        /// What is retained is found by where it was, whatever is there now.
        RetainedUnnamed = "retained-unnamed",
        /// What was sent is retained, whatever its peers said to it.
        RetainedEarly = "retained-early",
        /// What a host that is gone has left is not offered to the next one.
        ParkedForgotten = "parked-forgotten",
        /// An answer is given with bytes that nobody has written.
        AnswerUncovered = "answer-uncovered",
        /// The host is told that a peer is gone before it is told what that has said.
        GoneBeforeHeard = "gone-before-heard",
        /// Peers are read whose messages nobody awaits.
        ReadUnawaited = "read-unawaited",
        /// Messages of a peer come, however many of them the host does nothing with.
        IdleUnbounded = "idle-unbounded",
        /// Card memory of the host shows what was there before, where nothing was written.
        MemoryShown = "memory-shown",
    }
}
