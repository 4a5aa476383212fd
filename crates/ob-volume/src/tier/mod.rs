//! The tier's decisions: whose blocks lie where, what the card is to do, what the metadata store is to agree to.
//!
//! ```text
//!   Header ─▶ commands ─▶ overlaps ─▶ segments: owned? index ─▶ chunks: open? ─▶ Post(plan)
//!   Done ───▶ commands ─▶ index, answers                          ▲
//!   Channel ▶ servers: HELLO, CREATE (calls) ─────────────────────┘
//!   Metadata ▶ store: session, lease, segments, chunks
//! ```
//!
//! [`TierCore`] is told what happened ([`TierEvent`]) and asked what to do ([`TierAction`]); it opens no socket and reads no clock.
//! Its driver gives it all completions of a round before any header (`docs/volumes-safety.md`, I2).
//!
//! Of what `docs/volumes.md` says this version has one port, effort 0, one open chunk a segment, and no replay: a segment that was
//! written in an earlier life is not served. A chunk that is full, or has lost a member, is closed: what it has is agreed on (`seal`),
//! and what it lacks is sent to another. Replicas that are missing then are made anew (`repair`).

mod chunks;
mod command;
mod completions;
mod core;
mod fates;
mod index;
mod opening;
mod overlaps;
mod plant;
mod repair;
mod seal;
mod segments;
mod servers;
mod slots;
mod status;
mod store;

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{PoolId, Token, VolumeId};
use ob_format::volume::metadata::{Text, Volume};
use ob_format::volume::{LayoutError, RECORD_UNITS_MAX, RECORDS_START};
use ob_split::wire::{Broken, Channel, ChannelIs, Completion, Handle, HeaderEntry, Set, Slot, Welcome};

use crate::metadata::{Keys, MetadataCompletion, MetadataOp};
use crate::plans::PostedPlan;

pub use core::TierCore;
pub use status::{SegmentStatus, ServerStatus, ServerTrouble, TierNews, TierStatus, Trouble};

/// Blocks of a segment, where nothing else is said: 32 GiB, or 4 GiB of small blocks.
pub const SEGMENT_BLOCKS: u64 = 1 << 23;
/// Most commands that a tier has.
pub const COMMANDS_MAX: usize = 1 << 16;

/// Which port of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortNumber(pub u32);

/// What a tier is told when it is made.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// The pool.
    pub pool: PoolId,
    /// Its keys in the metadata store.
    pub keys: Keys,
    /// Where the tier is reached, `,` between.
    pub addresses: Text<128>,
    /// Where chunk servers are.
    pub servers: Vec<SocketAddr>,
    /// Volumes that are made if the store does not have them.
    pub volumes: Vec<(VolumeId, Volume)>,
    /// How long the lease is.
    pub lease: Duration,
    /// How wrong a clock may run, in millionths.
    pub drift_ppm: u32,
    /// How long a command waits for what is not there.
    pub hold: Duration,
    /// How long a server is silent before its replicas are made anew elsewhere.
    pub lost_after: Duration,
    /// Bytes a second that are copied to make replicas anew.
    pub rebuild_rate: u64,
    /// Bytes of the index.
    pub index_memory: u64,
    /// Commands at a time. The port is granted no more receives than that.
    pub commands_max: usize,
    /// Slots of the card.
    pub slots_max: u16,
}

/// Why a tier cannot be as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierConfigError {
    /// A volume cannot be.
    #[error("{volume} cannot be: {error}")]
    Volume {
        /// Which.
        volume: VolumeId,
        /// Why not.
        error: LayoutError,
    },
    /// A chunk of a volume has no room for a record.
    #[error("chunks of {0} are too short: a record of 64 KiB has no room in them")]
    ChunkLen(VolumeId),
    /// Two volumes have one number, namespace or name.
    #[error("{0} is there twice: by its number, its namespace or its name")]
    Twice(VolumeId),
    /// A number is out of its range.
    #[error("{0} is out of its range")]
    Range(&'static str),
}

impl TierConfig {
    /// What most tiers are told.
    #[must_use]
    pub fn new(
        pool: PoolId,
        keys: Keys,
        addresses: Text<128>,
        servers: Vec<SocketAddr>,
        volumes: Vec<(VolumeId, Volume)>,
    ) -> Self {
        Self {
            pool,
            keys,
            addresses,
            servers,
            volumes,
            lease: Duration::from_secs(3),
            drift_ppm: 10_000,
            hold: Duration::from_secs(20),
            lost_after: Duration::from_secs(300),
            rebuild_rate: 64 << 20,
            index_memory: 1 << 30,
            commands_max: 1024,
            slots_max: 4096,
        }
    }

    /// Whether there can be such a tier.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self) -> Result<(), TierConfigError> {
        for (place, (id, volume)) in self.volumes.iter().enumerate() {
            volume.encode().map_err(|error| TierConfigError::Volume { volume: *id, error })?;
            if u64::from(volume.chunk_len) < (RECORDS_START.bytes() + RECORD_UNITS_MAX.bytes()) {
                return Err(TierConfigError::ChunkLen(*id));
            }
            let is_same = |(other_id, other): &(VolumeId, Volume)| {
                other_id == id || other.namespace == volume.namespace || other.name == volume.name
            };
            if id.0 == 0 || self.volumes.iter().take(place).any(is_same) {
                return Err(TierConfigError::Twice(*id));
            }
        }
        let ranges = [
            (self.commands_max > 0 && self.commands_max <= COMMANDS_MAX, "the number of commands"),
            (self.slots_max > 1, "the number of slots"),
            (!self.hold.is_zero(), "how long commands are held"),
            (self.rebuild_rate > 0, "the rate of copying"),
            (self.drift_ppm < 500_000, "the clocks' drift"),
            ((2000..=60_000).contains(&self.lease.as_millis()), "the lease"),
            (self.servers.len() < usize::from(ob_split::wire::ACCEPTED_FROM), "the number of chunk servers"),
        ];
        match ranges.into_iter().find(|(is_within, _)| !is_within) {
            Some((_, what)) => Err(TierConfigError::Range(what)),
            None => Ok(()),
        }
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub enum TierEvent<'a> {
    /// A port has a welcome, and knows the plans of [`crate::plans::definitions`].
    PortOpened {
        /// Which.
        port: PortNumber,
        /// What its card is, and what it allows.
        welcome: Welcome,
    },
    /// A port's group is over, and its gate with it.
    PortClosed {
        /// Which.
        port: PortNumber,
    },
    /// A command has come.
    Header {
        /// By which port.
        port: PortNumber,
        /// Its 64 bytes.
        header: HeaderEntry,
    },
    /// A piece of a plan is over.
    Done {
        /// Of which port.
        port: PortNumber,
        /// How it went.
        completion: Completion,
        /// Header and payload of a peer's reply, of `CALL`.
        reply: Option<&'a [u8]>,
    },
    /// How a channel is.
    Channel {
        /// Of which port.
        port: PortNumber,
        /// How.
        is: ChannelIs,
    },
    /// A chunk's writer has stopped.
    Broken {
        /// Of which port.
        port: PortNumber,
        /// Which.
        broken: Broken,
    },
    /// The metadata store has answered.
    Metadata(MetadataCompletion),
    /// Nothing but time.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierAction {
    /// Post a plan. There is room for it: no more are under way than the welcome says.
    Post {
        /// By which port.
        port: PortNumber,
        /// The plan.
        plan: PostedPlan,
    },
    /// Tell the card of a chunk.
    Set {
        /// By which port.
        port: PortNumber,
        /// Of which.
        set: Set,
    },
    /// Connect a channel, or close it.
    Channel {
        /// Of which port.
        port: PortNumber,
        /// Which, and what it is to do.
        channel: Channel,
    },
    /// Submit an operation to the metadata store. What it refuses for being busy is submitted again, later.
    Metadata(Token, MetadataOp),
    /// A volume is served: its namespace can be shown.
    Serve(VolumeId, Volume),
    /// Something that people may want to know.
    Report(TierNews),
}

/// What cannot have happened. Whoever is told so closes the port: its card has lost its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// This version has one port.
    #[error("port {} is not there, or is there already", .0.0)]
    Port(PortNumber),
    /// A command with a handle that another has, or that is not the card's to give.
    #[error("a command cannot have {0:?}")]
    Handle(Handle),
    /// A command more than was granted.
    #[error("more than {0} commands at a time")]
    Commands(usize),
    /// A completion of nothing that was posted.
    #[error("no plan about {0:?} is under way")]
    NotPosted(Handle),
    /// A completion of what was posted, which says what cannot be.
    #[error("the completion of {handle:?} cannot be: {what}")]
    Completion {
        /// Of which plan.
        handle: Handle,
        /// What cannot be.
        what: &'static str,
    },
    /// A chunk that no slot was set to.
    #[error("there is no {0:?}")]
    Slot(Slot),
    /// A channel that nobody has asked for.
    #[error("channel {0} was not asked for")]
    Channel(u16),
    /// The store has answered what nobody has asked.
    #[error("nobody has asked the metadata store what it answers: {0:?}")]
    Metadata(Token),
}
