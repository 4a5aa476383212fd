//! How a tier is doing.

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{ChunkName, Epoch, SegmentName, ServerId, Units, VolumeId};

use ob_format::volume::RECORDS_START;

use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::segments::Standing;
use super::space::Fullness;
use super::taking::TakingStatus;

/// Why something is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// A segment has a checkpoint.
    #[error("the segment has a checkpoint, which this version does not read")]
    NeedsReplay,
    /// There is no epoch for a segment any more, or no number for its chunks.
    #[error("the segment has changed hands too often")]
    Exhausted,
    /// The index of a segment has no room.
    #[error("the index of the segment does not fit into index_memory")]
    NoMemory,
    /// A chunk has what cannot be.
    #[error("a chunk of the segment has records that there cannot be")]
    Impossible,
    /// A segment is another owner's.
    #[error("another owner has the segment")]
    Taken,
    /// Chunk servers know of later epochs, or have records, that the store knows nothing of.
    #[error(
        "chunk servers have more of the segment than the metadata store knows of: it was exchanged, or brought back from a copy; bring the store back that the pool has had last"
    )]
    StoreBehind,
    /// The pool's record is another than a moment ago, or says another drift.
    #[error("the metadata store has another pool than before, or one with another clock_drift")]
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
    #[error(
        "it belongs to another pool: the metadata store is not the one that it was used with; bring that back, or give the server an empty data directory"
    )]
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
    /// A record that had rotted at a member was written over with what others have.
    Mended {
        /// Of which chunk.
        chunk: ChunkName,
        /// Where it begins.
        at: Units,
    },
    /// A member whose record could not be mended is none any more: the chunk gets another replica.
    Dropped {
        /// Of which chunk.
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
    /// Whether its blocks are looked up, as long as the lease lasts: not before it is known whom it belongs to since a session was lost.
    pub is_answered: bool,
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
    /// How far it is, if what an earlier life has written is still found out.
    pub taking: Option<TakingStatus>,
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
    pub(super) segments_taken: u64,
    pub(super) segments_released: u64,
    pub(super) sessions_lost: u64,
    pub(super) channels_lost: u64,
    pub(super) index_full: u64,
    pub(super) mistakes: u64,
    pub(super) checkpoints: u64,
    pub(super) checkpoints_given_up: u64,
    pub(super) heads_loaded: u64,
    pub(super) chunks_compacted: u64,
    pub(super) moves: u64,
    pub(super) moved_units: u64,
    pub(super) chunks_dead: u64,
    pub(super) chunks_deleted: u64,
    pub(super) strays_deleted: u64,
    pub(super) strays_kept: u64,
    pub(super) rotten_found: u64,
    pub(super) mended: u64,
    pub(super) mends_given_up: u64,
    pub(super) members_dropped: u64,
    pub(super) volumes_removed: u64,
}

/// How far replicas are that are made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildStatus {
    /// Bytes that were copied since something began to be missing.
    pub done: u64,
    /// Bytes that are still to be copied.
    pub left: u64,
    /// Bytes that were copied in a second, of late.
    pub rate: u64,
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
    /// Segments that were taken as an earlier life had left them.
    pub segments_taken: u64,
    /// Segments that were handed over to others that wanted them.
    pub segments_released: u64,
    /// Sessions that ended.
    pub sessions_lost: u64,
    /// Channels that ended, or were refused.
    pub channels_lost: u64,
    /// Writes for which the index had no memory (OB016).
    pub index_full: u64,
    /// Plans that should have been legal and were not.
    pub mistakes: u64,
    /// How full the pool is.
    pub fullness: Fullness,
    /// Checkpoints that were made.
    pub checkpoints: u64,
    /// Those that were given up.
    pub checkpoints_given_up: u64,
    /// Heads that segments which were taken began with.
    pub heads_loaded: u64,
    /// Chunks that were emptied by compaction.
    pub chunks_compacted: u64,
    /// Records that it has moved.
    pub moves: u64,
    /// Units of them.
    pub moved_units: u64,
    /// Chunks that were called dead.
    pub chunks_dead: u64,
    /// Those of them of which nothing is left.
    pub chunks_deleted: u64,
    /// Chunks that servers had and nobody named.
    pub strays_deleted: u64,
    /// Those that were never sealed, and may have what nobody else has.
    pub strays_kept: u64,
    /// Records that members did not have as they should.
    pub rotten_found: u64,
    /// Those of them that were written over with what others have.
    pub mended: u64,
    /// Those that nobody who was there could give, or that were not taken.
    pub mends_given_up: u64,
    /// Members that are none any more, because a record of theirs could not be mended.
    pub members_dropped: u64,
    /// Records that wait to be mended.
    pub mends_waiting: usize,
    /// What is missing, and is made anew.
    pub rebuild: RebuildStatus,
}

impl TierCore {
    /// How it is doing.
    #[must_use]
    pub fn status(&self) -> TierStatus {
        let counts = self.counts;
        let servers = self.servers.iter().filter(|server| !server.is_unplaced).map(|server| ServerStatus {
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
                + self.held_up()
                + self.segments.values().map(|segment| segment.waiting.len()).sum::<usize>(),
            plans: self.ports.values().map(|port| port.plans).sum(),
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
            segments_taken: counts.segments_taken,
            segments_released: counts.segments_released,
            sessions_lost: counts.sessions_lost,
            channels_lost: counts.channels_lost,
            index_full: counts.index_full,
            mistakes: counts.mistakes,
            fullness: self.fullness(),
            checkpoints: counts.checkpoints,
            checkpoints_given_up: counts.checkpoints_given_up,
            heads_loaded: counts.heads_loaded,
            chunks_compacted: counts.chunks_compacted,
            moves: counts.moves,
            moved_units: counts.moved_units,
            chunks_dead: counts.chunks_dead,
            chunks_deleted: counts.chunks_deleted,
            strays_deleted: counts.strays_deleted,
            strays_kept: counts.strays_kept,
            rotten_found: counts.rotten_found,
            mended: counts.mended,
            mends_given_up: counts.mends_given_up,
            members_dropped: counts.members_dropped,
            mends_waiting: self.mends_waiting(),
            rebuild: self.rebuild_status(),
        }
    }

    pub(super) fn segment_status(&self, name: SegmentName) -> Option<SegmentStatus> {
        let segment = self.segments.get(&name)?;
        let trouble = match segment.standing {
            Standing::Unserved(trouble) => Some(trouble),
            _ => None,
        };
        let count =
            |is: &dyn Fn(&TierChunk) -> bool| segment.chunks_there().filter(|chunk| is(chunk)).count();
        let sum = |of: fn(&TierChunk) -> u64| segment.chunks_there().map(of).sum();
        Some(SegmentStatus {
            name,
            epoch: segment.epoch().filter(|_| segment.standing == Standing::Owned),
            is_answered: segment.standing == Standing::Owned && !segment.wants_adoption,
            trouble,
            is_exhausted: segment.is_exhausted,
            chunks: segment.chunks_there().count(),
            closing: count(&|chunk| matches!(chunk.is, ChunkIs::Closing(_))),
            waiting: count(&|chunk| matches!(&chunk.is, ChunkIs::Closing(seal) if seal.is_stuck()))
                + self.lists_waiting(name),
            degraded: count(&|chunk| {
                let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. });
                is_sealed && chunk.length > RECORDS_START && self.is_degraded(name, chunk)
            }),
            unresolved: segment.chunks.iter().map(|chunk| chunk.unresolved.len()).sum(),
            taking: self.taking_status(name),
            mapped: segment.index.mapped(),
            written: sum(|chunk| chunk.blocks),
            stored_units: sum(|chunk| chunk.end.0.into()),
        })
    }
}
