//! How a tier is doing.

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{ChunkName, Epoch, SegmentName, ServerId, Units, VolumeId};

use ob_format::volume::RECORDS_START;

use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::segments::Standing;

/// Why something is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// A segment was written in an earlier life.
    #[error("the segment was written in an earlier life of the tier, and this version does not replay")]
    NeedsReplay,
    /// A segment is another owner's.
    #[error("another owner has the segment")]
    Taken,
    /// The pool's record is another's, or says another drift.
    #[error("the metadata store has another pool, or one with another clock_drift")]
    OtherPool,
    /// A volume cannot be made.
    #[error("{0} cannot be made: its number or its name is another's")]
    OtherVolume(VolumeId),
    /// A value cannot be read.
    #[error("the metadata store has a value that this outboard cannot read")]
    Value,
    /// The store refuses what it is asked.
    #[error("the metadata store is damaged, or refuses what it is asked")]
    Store,
}

/// Why a chunk server cannot be used, though it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerTrouble {
    /// It is another pool's.
    #[error("it belongs to another pool")]
    WrongPool,
    /// At its address is another one than before.
    #[error("another server is at its address now")]
    WrongServer,
    /// It is at two addresses.
    #[error("another address leads to the same server")]
    Twice,
    /// It speaks other versions of the protocol.
    #[error("it speaks another version of the chunk protocol")]
    Version,
    /// It knows the greatest number that a connection can have.
    #[error("it knows a later connection than there can be")]
    Session,
    /// It says what it should not.
    #[error("it does not answer a greeting as chunk servers do")]
    Other,
}

/// Something that people may want to know, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierNews {
    /// A server cannot be used.
    ServerRefused {
        /// Where it is.
        address: SocketAddr,
        /// Why not.
        trouble: ServerTrouble,
    },
    /// A chunk stays as it is from now on.
    Sealed {
        /// Which.
        chunk: ChunkName,
        /// How long it is.
        length: Units,
        /// How many servers have it.
        members: usize,
        /// Records of which nobody knew before whether they count.
        resolved: usize,
    },
    /// A chunk has a replica more.
    Repaired {
        /// Which.
        chunk: ChunkName,
        /// How many servers have it now.
        members: usize,
    },
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStatus {
    /// Which.
    pub name: SegmentName,
    /// The epoch in which this tier has it; nothing while it does not.
    pub epoch: Option<Epoch>,
    /// Why it is not served, if it is not.
    pub trouble: Option<Trouble>,
    /// Whether writes are refused, because there are no numbers for chunks any more.
    pub is_exhausted: bool,
    /// Its chunks.
    pub chunks: usize,
    /// Those of them that are being sealed.
    pub closing: usize,
    /// Those of these that wait for a server (OB015).
    pub waiting: usize,
    /// Sealed ones with fewer replicas than they should have (OB010).
    pub degraded: usize,
    /// Records of which nobody knows yet whether they count.
    pub unresolved: usize,
    /// Blocks that are mapped.
    pub mapped: u64,
    /// Blocks that were written to its chunks.
    pub written: u64,
    /// Units of its chunks, of one member each.
    pub stored_units: u64,
}

/// A chunk server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Where it is.
    pub address: SocketAddr,
    /// Who it is, once it has said so.
    pub server: Option<ServerId>,
    /// Whether it is connected and greeted.
    pub is_ready: bool,
    /// Whether it comes last when servers are chosen, because it has failed, or does not say that it is there.
    pub has_failed: bool,
    /// Whether it has said that it has no room.
    pub is_full: bool,
    /// Why it cannot be used, if it has said so.
    pub trouble: Option<ServerTrouble>,
    /// Bytes that it said are free.
    pub free: u64,
}

/// What a tier has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) commands: u64,
    pub(super) errors: u64,
    pub(super) withheld: u64,
    pub(super) bad_members: u64,
    pub(super) chunks_opened: u64,
    pub(super) chunks_broken: u64,
    pub(super) chunks_sealed: u64,
    pub(super) replicas_made: u64,
    pub(super) reads_again: u64,
    pub(super) servers_silent: u64,
    pub(super) segments_lost: u64,
    pub(super) sessions_lost: u64,
    pub(super) channels_lost: u64,
    pub(super) index_full: u64,
    pub(super) mistakes: u64,
}

/// How a tier is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierStatus {
    /// Whether anything is answered.
    pub is_open: bool,
    /// Why nothing ever will be, if so.
    pub trouble: Option<Trouble>,
    /// What is left of the lease.
    pub lease_left: Duration,
    /// Volumes that are served.
    pub volumes: usize,
    /// Its segments.
    pub segments: Vec<SegmentStatus>,
    /// Its chunk servers.
    pub servers: Vec<ServerStatus>,
    /// Commands that are not answered.
    pub commands: usize,
    /// Places in the lines where commands wait; some of them may be of commands that were answered.
    pub lined_up: usize,
    /// Plans under way.
    pub plans: u32,
    /// Bytes that the index may have for the segments that were written to.
    pub index_reserved: u64,
    /// Commands since the beginning.
    pub commands_total: u64,
    /// Of these, answered with an error.
    pub errors: u64,
    /// Answers that the gate did not let out at first.
    pub withheld: u64,
    /// Members that gave bytes which were wrong.
    pub bad_members: u64,
    /// Chunks that were made.
    pub chunks_opened: u64,
    /// Chunks whose writers have stopped, because a member was lost or slow.
    pub chunks_broken: u64,
    /// Chunks that were sealed.
    pub chunks_sealed: u64,
    /// Replicas that were made anew, or taken in again.
    pub replicas_made: u64,
    /// Reads that were tried again, because not all members had answered.
    pub reads_again: u64,
    /// Servers that were given up because they did not answer.
    pub servers_silent: u64,
    /// Segments that somebody else has taken.
    pub segments_lost: u64,
    /// Sessions that ended.
    pub sessions_lost: u64,
    /// Channels that ended, or were refused.
    pub channels_lost: u64,
    /// Writes for which the index had no memory (OB016).
    pub index_full: u64,
    /// Plans that should have been legal and were not.
    pub mistakes: u64,
}

impl TierCore {
    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> TierStatus {
        let counts = self.counts;
        let servers = self.servers.iter().map(|server| ServerStatus {
            address: server.address,
            server: server.id,
            is_ready: server.is_ready(),
            has_failed: server.has_failed(self.now),
            is_full: server.is_full(self.now),
            trouble: server.trouble,
            free: server.free,
        });
        TierStatus {
            is_open: self.store.is_leased(self.now),
            trouble: self.trouble(),
            lease_left: self.store.lease_left(self.now),
            volumes: self.volumes.len(),
            segments: self.segments.keys().filter_map(|name| self.segment_status(*name)).collect(),
            servers: servers.collect(),
            commands: self.commands(),
            lined_up: self.unleased.len()
                + self.slotless.len()
                + self.memberless.len()
                + self.segments.values().map(|segment| segment.waiting.len()).sum::<usize>(),
            plans: self.port.as_ref().map_or(0, |port| port.plans),
            index_reserved: self.index_reserved,
            commands_total: counts.commands,
            errors: counts.errors,
            withheld: counts.withheld,
            bad_members: counts.bad_members,
            chunks_opened: counts.chunks_opened,
            chunks_broken: counts.chunks_broken,
            chunks_sealed: counts.chunks_sealed,
            replicas_made: counts.replicas_made,
            reads_again: counts.reads_again,
            servers_silent: counts.servers_silent,
            segments_lost: counts.segments_lost,
            sessions_lost: counts.sessions_lost,
            channels_lost: counts.channels_lost,
            index_full: counts.index_full,
            mistakes: counts.mistakes,
        }
    }

    fn segment_status(&self, name: SegmentName) -> Option<SegmentStatus> {
        let segment = self.segments.get(&name)?;
        let trouble = match segment.standing {
            Standing::Unserved(trouble) => Some(trouble),
            _ => None,
        };
        let count = |is: &dyn Fn(&TierChunk) -> bool| segment.chunks.iter().filter(|chunk| is(chunk)).count();
        let sum = |of: fn(&TierChunk) -> u64| segment.chunks.iter().map(of).sum();
        Some(SegmentStatus {
            name,
            epoch: segment.epoch().filter(|_| segment.standing == Standing::Owned),
            trouble,
            is_exhausted: segment.is_exhausted,
            chunks: segment.chunks.len(),
            closing: count(&|chunk| matches!(chunk.is, ChunkIs::Closing(_))),
            waiting: count(&|chunk| matches!(&chunk.is, ChunkIs::Closing(seal) if seal.is_stuck())),
            degraded: count(&|chunk| {
                let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. });
                is_sealed && chunk.length > RECORDS_START && self.is_degraded(name, chunk)
            }),
            unresolved: segment.chunks.iter().map(|chunk| chunk.unresolved.len()).sum(),
            mapped: segment.index.mapped(),
            written: sum(|chunk| chunk.blocks),
            stored_units: sum(|chunk| chunk.end.0.into()),
        })
    }
}
