//! Known bugs that a test can switch on, to show that tests and simulator catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub(crate) enum Bug {
        /// A request is in the stream before its keys are invalidated.
        InvalidateAfterForward = "invalidate-after-forward",
        /// A request is forwarded while one before it on its connection is still reading.
        ForwardPastRead = "forward-past-read",
        /// The card answers on connections that the host has not admitted.
        ServedUnadmitted = "served-unadmitted",
        /// What was started behind a request that goes to the host after all is answered by the card.
        FallbackAlone = "fallback-alone",
        /// The table is not emptied when the host has lost what was admitted.
        TableKept = "table-kept",
        /// The host's clock is taken for the card's own.
        ClockUnmeasured = "clock-unmeasured",
        /// A life begins behind the stamps that the card has given, whatever the host has seen.
        StampsReused = "stamps-reused",
        /// What stands behind a request that may change who the client is does not wait for its reply.
        StandingKept = "standing-kept",
        /// Who waits for room in the stream gets it before those that have waited longer.
        TurnsIgnored = "turns-ignored",
        /// Who needs less room in the stream passes by those that wait for more.
        PassedBy = "passed-by",
        /// More is read from a client and answered, however much it has not taken yet.
        NeverClogged = "never-clogged",
        /// Bytes of the host that are no frame are passed over, and the stream goes on.
        UndecodedIgnored = "undecoded-ignored",
    }
}
