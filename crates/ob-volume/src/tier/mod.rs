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
//! A segment has an open chunk a port (`ports`). A chunk that is full, or has lost a member, is
//! closed: what it has is agreed on (`seal`), and what it lacks is sent to another. Replicas that are missing then are made anew
//! (`repair`). A segment that an earlier life has written is taken: its open chunks are sealed, and all are replayed (`taking`, `replay`).
//! Whatever ends the port ends all that is known of segments: they are taken anew when the next one opens.

mod admin;
mod areas;
mod behind;
mod checkpoint;
mod chunks;
mod command;
mod compact;
mod completions;
mod core;
mod cutting;
mod fates;
mod given;
mod handing;
mod history;
mod identities;
mod index;
mod leaving;
mod loading;
mod looks;
mod mend;
mod opening;
mod overlaps;
mod plant;
mod ports;
mod rebuilding;
mod removing;
mod repair;
mod replay;
mod seal;
mod segments;
mod servers;
mod slots;
mod space;
mod status;
mod store;
mod taking;
mod volumes;

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{PoolId, Token, VolumeId};
use ob_format::volume::metadata::{Text, Volume};
use ob_format::volume::{LayoutError, RECORD_UNITS_MAX, RECORDS_START};
use ob_split::ledger::SLOT_LEN;
use ob_split::wire::{Broken, Channel, ChannelIs, Completion, Gate, Handle, HeaderEntry, Set, Slot, Welcome};

use crate::metadata::{Keys, MetadataCompletion, MetadataOp, TRANSACTION_MAX};
use crate::plans::PostedPlan;

pub use admin::{
    AdminAnswer, AdminError, AdminRequest, NEW_CHUNK_LEN_MIN, NewVolume, OwnSegmentFacts, SegmentFacts,
    Ticket, VOLUME_LEN_MAX, VOLUMES_MAX, VolumeFacts, VolumeHealth,
};
pub use core::TierCore;
pub use given::{Placement, Press};
pub use leaving::LEAVES_WITHIN;
pub use looks::Looks;
pub use space::Fullness;
pub use status::{RebuildStatus, SegmentStatus, ServerStatus, ServerTrouble, TierNews, TierStatus, Trouble};
pub use taking::TakingStatus;

/// Blocks of a segment, where nothing else is said: 32 GiB, or 4 GiB of small blocks.
pub const SEGMENT_BLOCKS: u64 = 1 << 23;
/// Most ports of a tier.
pub const PORTS_MAX: u32 = 8;
/// Most commands that a port of a tier has.
pub const COMMANDS_MAX: usize = 1 << 16;

/// Which port of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortNumber(pub u32);

/// What a tier is told when it is made.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// What the pool is called if the store has none yet: a name that nobody else has. What the store says is what counts.
    pub pool: PoolId,
    /// Its keys in the metadata store.
    pub keys: Keys,
    /// Where the tier is reached, `,` between.
    pub addresses: Text<128>,
    /// Where chunk servers are.
    pub servers: Vec<SocketAddr>,
    /// Volumes that are made with the pool, if the store has none.
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
    /// Ports that there may be.
    pub ports: u32,
    /// Commands of a port at a time. It is granted no more receives than that.
    pub commands_max: usize,
    /// Slots of a port.
    pub slots_max: u16,
    /// Where payloads are made what is stored. The areas have [`Placement::area_lens`] at least.
    pub placement: Placement,
    /// Bytes of the area in which the card puts what servers tell at length, and of the one from which it takes the index.
    pub card_area: u64,
    /// The latter.
    pub host_area: u64,
    /// Blocks that are logged before a checkpoint begins, if the index has fewer.
    pub checkpoint_blocks: u64,
    /// Bytes of dead chunks that only wait for one, if they are half of what counts.
    pub checkpoint_dead: u64,
    /// Chunks that are sealed before one begins.
    pub checkpoint_chunks: u32,
    /// How many thousandths of a chunk's blocks are overwritten before it is compacted.
    pub compact_share: u32,
    /// Or how many of its blocks.
    pub compact_writes: u64,
    /// Bytes a second that compaction moves.
    pub compact_rate: u64,
    /// Changes of a segment before its next epoch begins: half of what there are sequences for.
    pub epoch_changes: u64,
    /// Whether the store's history is left alone, because others read it.
    pub keeps_history: bool,
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
            ports: 1,
            commands_max: 1024,
            slots_max: 4096,
            placement: Placement::Split,
            card_area: 2 << 20,
            host_area: 1 << 20,
            checkpoint_blocks: 65_536,
            checkpoint_dead: 256 << 20,
            checkpoint_chunks: 256,
            compact_share: 500,
            compact_writes: 16_384,
            compact_rate: 64 << 20,
            epoch_changes: 1 << 35,
            keeps_history: false,
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
            ((1..=PORTS_MAX).contains(&self.ports), "the number of ports"),
            (self.commands_max > 0 && self.commands_max <= COMMANDS_MAX, "the number of commands"),
            (self.slots_max > 1, "the number of slots"),
            (!self.hold.is_zero(), "how long commands are held"),
            (self.rebuild_rate > 0, "the rate of copying"),
            (self.compact_rate > 0, "the rate of compaction"),
            ((1..=1 << 35).contains(&self.epoch_changes), "the number of changes of an epoch"),
            ((1..=1000).contains(&self.compact_share), "the share that is compacted"),
            (self.card_area >= SLOT_LEN && self.host_area >= SLOT_LEN, "the areas"),
            (self.drift_ppm < 500_000, "the clocks' drift"),
            ((2000..=60_000).contains(&self.lease.as_millis()), "the lease"),
            (self.servers.len() < usize::from(ob_split::wire::ACCEPTED_FROM), "the number of chunk servers"),
            // Each is two keys of the commit that makes the pool.
            (self.volumes.len() < TRANSACTION_MAX / 2, "the number of volumes"),
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
    /// A port's group is over, and its gate with it, and so all ports.
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
        /// Header and payload of a peer's reply, of `CALL`; of `LOOK` the bytes that it brought ([`TierCore::brought`]).
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
    /// The card has noted the time of a preparation of its gate.
    Noted {
        /// Of which port.
        port: PortNumber,
        /// Which preparation.
        number: u64,
    },
    /// The metadata store has answered.
    Metadata(MetadataCompletion),
    /// An administrator asks.
    Administer {
        /// Which answer is his.
        ticket: Ticket,
        /// What he asks.
        request: AdminRequest,
    },
    /// The process ends: what it has is given back, until [`TierCore::has_left`].
    Leave,
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
    /// Make of a payload what is stored, and post the plan that writes it, in the order of what is posted.
    Press {
        /// By which port.
        port: PortNumber,
        /// What, and how.
        press: Press,
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
    /// Have the card's gate note the time, or stay open.
    Gate {
        /// Of which port.
        port: PortNumber,
        /// What it is to do.
        gate: Gate,
    },
    /// Put bytes into the host's area, before what is posted next.
    Upload {
        /// Of which port.
        port: PortNumber,
        /// Where.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Submit an operation to the metadata store. What it refuses for being busy is submitted again, later.
    Metadata(Token, MetadataOp),
    /// These volumes are served, and no others: their namespaces can be shown.
    Serve(Vec<(VolumeId, Volume)>),
    /// Something that people may want to know.
    Report(TierNews),
    /// What an administrator has asked is done, or is not.
    Tell {
        /// Whose answer it is.
        ticket: Ticket,
        /// What was done; or why nothing was.
        answer: Result<AdminAnswer, AdminError>,
    },
}

/// What cannot have happened. Whoever is told so closes the port: its card has lost its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// The first one is opened before others, which have its gate.
    #[error("port {} is not there, or is there already, or has another gate than the first", .0.0)]
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
