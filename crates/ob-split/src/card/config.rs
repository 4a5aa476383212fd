//! What a port may have at a time.

use std::time::Duration;

use ob_core::{Incarnation, LockId, TierId};

/// Limits of a port, and who its card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Which life of the card this is: the upper half of its gates.
    pub incarnation: Incarnation,
    /// Which tier.
    pub tier: TierId,
    /// What keeps its lives apart.
    pub lock: LockId,
    /// Bytes of the longest payload that its front gives.
    pub payload_max: u32,
    /// Messages that the host may have at a time; at most 65535.
    pub handles_max: u32,
    /// Plans that may be under way at a time, those included of which the host has not taken the completions.
    pub plans_max: u32,
    /// Channels at a time.
    pub channels_max: u16,
    /// Slots have numbers below this.
    pub slots_max: u16,
    /// Card memory for what plans write but records: bytes of a block, and how many there are.
    pub memory: Vec<(u32, u32)>,
    /// Blocks of 256 KiB for records: what engines compress, and what is retained.
    pub records: u32,
    /// Whether records stay there after they were sent, until their memory is needed.
    pub retains: bool,
    /// Messages to peers that may be made at a time: of each, what comes before its payload and its headers take 4 KiB.
    pub heads: u32,
    /// Requests of one channel that may be unanswered; further ones wait.
    pub requests_max: u32,
    /// Bytes of these.
    pub window_len: u64,
    /// Card memory that a host is given ahead, for what its engine tasks write: bytes of a piece, and how many. What is written there is a
    /// record, which keeps its block: there are half as many pieces as `records` at most.
    pub granted: Vec<(u32, u32)>,
    /// What peers may send that connect here; without it the host cannot listen.
    pub intake: Option<IntakeConfig>,
    /// How long after it has come a message that a host has left behind waits for another.
    pub hold: Duration,
    /// How long a message waits for others at most, so that the host is woken for all of them at once: while so many are under way that it
    /// is one of a few. Zero: the host is told of each as soon as it is there.
    pub gather: Duration,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            incarnation: Incarnation(1),
            tier: TierId(1),
            lock: LockId([0; 16]),
            payload_max: 1 << 20,
            handles_max: 1024,
            plans_max: 1024,
            channels_max: 64,
            slots_max: 4096,
            memory: vec![(4 << 10, 2048), (16 << 10, 512), (64 << 10, 512), (1 << 20, 16)],
            records: 64,
            retains: true,
            heads: 2048,
            requests_max: 256,
            window_len: 4 << 20,
            granted: Vec::new(),
            intake: None,
            hold: Duration::from_secs(20),
            gather: Duration::ZERO,
        }
    }
}

/// What peers may send that connect here. The longest payload is [`PortConfig::payload_max`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeConfig {
    /// Card memory for payloads, the port's own apart: bytes of a block, and how many there are. The longest block has room for the
    /// longest payload.
    pub memory: Vec<(u32, u32)>,
    /// For how long a peer may stand still amidst a message, or before answers that it does not take.
    pub stall: Duration,
    /// Messages of one peer of which the host was told and that no plan is about: while it has so many, no further one comes. For all peers
    /// together they are half of the handles at most, but one for each. (And while it has one, half of the blocks are for others.)
    pub idle_max: u32,
}

impl Default for IntakeConfig {
    fn default() -> Self {
        let memory = vec![(4 << 10, 512), (64 << 10, 256), (1 << 20, 16)];
        Self { memory, stall: Duration::from_secs(20), idle_max: 4 }
    }
}
