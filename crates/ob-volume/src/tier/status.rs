//! How a tier is doing.

use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{Epoch, SegmentName, ServerId, VolumeId};

use super::chunks::TierChunk;
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

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStatus {
    /// Which.
    pub name: SegmentName,
    /// The epoch in which this tier has it; nothing while it does not.
    pub epoch: Option<Epoch>,
    /// Why it is not served, if it is not.
    pub trouble: Option<Trouble>,
    /// Whether writes are refused, because a chunk has lost a member.
    pub is_broken: bool,
    /// Its chunks.
    pub chunks: usize,
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
    pub(super) segments_broken: u64,
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
    /// Segments whose writes are refused.
    pub segments_broken: u64,
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
            plans: self.port.as_ref().map_or(0, |port| port.plans),
            index_reserved: self.index_reserved,
            commands_total: counts.commands,
            errors: counts.errors,
            withheld: counts.withheld,
            bad_members: counts.bad_members,
            chunks_opened: counts.chunks_opened,
            segments_broken: counts.segments_broken,
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
        let sum = |of: fn(&TierChunk) -> u64| segment.chunks.iter().map(of).sum();
        Some(SegmentStatus {
            name,
            epoch: segment.epoch().filter(|_| segment.standing == Standing::Owned),
            trouble,
            is_broken: segment.is_broken,
            chunks: segment.chunks.len(),
            mapped: segment.index.mapped(),
            written: sum(|chunk| chunk.blocks),
            stored_units: sum(|chunk| chunk.end.0.into()),
        })
    }
}
