//! Chunks of a segment: what was written to them, who has them, and by which slot the card knows them.
//!
//! ```text
//!   opening ─▶ Open ─ no room, a member lost or slow ─▶ Closing (seal) ─ agreed on ─▶ Sealed ─ too few members ─▶ repair
//! ```

use std::ops::Range;

use ob_core::{ChunkId, ChunkName, Epoch, Instant, Revision, SegmentName, Sequence, ServerId, Units};
use ob_format::volume::metadata::{Chunk, ChunkState, Members};
use ob_format::volume::{ChunkKind, RECORDS_START};
use ob_split::wire::{ChannelId, Handle, MEMBERS_MAX, Set, SetWhat, Slot};

use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::MAIN;
use super::seal::Seal;
use super::servers::{ServerCore, channel_of};
use super::slots::Found;
use super::space::Dead;
use super::taking::ListSums;
use super::{PortNumber, TierAction};
use crate::plans::Part;

/// What is done with a chunk.
#[derive(Debug)]
pub(super) enum ChunkIs {
    /// It is written to, or could be.
    Open,
    /// Nothing is written to it any more, and where it ends is to be agreed on.
    Closing(Seal),
    /// It ends where it ends, with this CRC of its records.
    Sealed { content_crc: u32 },
    /// Nothing of it counts any more, and the store says so.
    Dead(Dead),
    /// There is none at this place.
    Gone,
}

/// A record that may be on some members and not on others: what becomes of it shows when its chunk is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unresolved {
    /// The command that it is of; or who keeps its blocks, if that is answered.
    pub(super) owner: Handle,
    /// Which blocks of the command.
    pub(super) part: Part,
    /// The same, within the segment.
    pub(super) blocks: Range<u32>,
    pub(super) sequence: Sequence,
    pub(super) offset: Units,
    pub(super) units: Units,
    pub(super) is_trim: bool,
}

/// A chunk, as the tier has it.
#[derive(Debug)]
pub(super) struct TierChunk {
    pub(super) number: ChunkId,
    pub(super) kind: ChunkKind,
    /// Which port writes to it, while it is open.
    pub(super) port: PortNumber,
    /// In which it was created.
    pub(super) epoch: Epoch,
    /// Of its record in the store.
    pub(super) revision: Revision,
    pub(super) is: ChunkIs,
    /// Servers by their places: those that its record names.
    pub(super) members: Vec<usize>,
    /// Those that may have something of it, and are not named.
    pub(super) strays: Vec<usize>,
    /// Those of these that could not be mended: what they have is made anew.
    pub(super) rotten: Vec<usize>,
    /// How long it may become; of a sealed one, how long it is.
    pub(super) length: Units,
    /// How far it is on all members.
    pub(super) end: Units,
    /// How far it is when all that is under way is there.
    pub(super) posted: Units,
    /// Plans under way that write to it.
    pub(super) changes: u32,
    /// Blocks that the index has there.
    pub(super) live: u64,
    /// Blocks that were written there.
    pub(super) blocks: u64,
    pub(super) records: u32,
    pub(super) last_sequence: Sequence,
    pub(super) unresolved: Vec<Unresolved>,
    /// It is of an earlier life, and was open then: how far it was acknowledged nobody knows here.
    pub(super) is_inherited: bool,
}

impl TierChunk {
    /// One that was made just now.
    pub(super) const fn new(
        number: ChunkId,
        kind: ChunkKind,
        epoch: Epoch,
        revision: Revision,
        members: Vec<usize>,
        length: Units,
    ) -> Self {
        Self {
            number,
            kind,
            port: MAIN,
            epoch,
            revision,
            is: ChunkIs::Open,
            members,
            strays: Vec::new(),
            rotten: Vec::new(),
            length,
            end: RECORDS_START,
            posted: RECORDS_START,
            changes: 0,
            live: 0,
            blocks: 0,
            records: 0,
            last_sequence: Sequence(0),
            unresolved: Vec::new(),
            is_inherited: false,
        }
    }

    /// One that the store has of an earlier life, and how long it may become.
    pub(super) fn found(
        number: ChunkId,
        revision: Revision,
        members: Vec<usize>,
        length: Units,
        record: &Chunk,
    ) -> Self {
        let mut chunk = Self::new(number, record.kind, record.epoch, revision, members, length);
        match record.state {
            ChunkState::Open => {
                chunk.is_inherited = true;
                return chunk;
            }
            ChunkState::Dead => {
                chunk.is = ChunkIs::Dead(Dead::default());
                return chunk;
            }
            ChunkState::Sealed => {}
        }
        chunk.is = ChunkIs::Sealed { content_crc: record.content_crc };
        (chunk.length, chunk.end, chunk.posted) = (record.length, record.length, record.length);
        (chunk.blocks, chunk.records) = (record.blocks.into(), record.records);
        chunk.last_sequence = record.last_sequence;
        chunk
    }

    /// What its record says, or is to say, of its list.
    pub(super) const fn sums(&self) -> ListSums {
        ListSums { records: self.records, blocks: self.blocks, last_sequence: self.last_sequence }
    }

    pub(super) const fn set_sums(&mut self, sums: ListSums) {
        (self.records, self.blocks, self.last_sequence) = (sums.records, sums.blocks, sums.last_sequence);
    }

    /// Whether its records are replayed, unless a head is past them.
    pub(super) const fn is_log(&self) -> bool {
        let is_there = !matches!(self.is, ChunkIs::Dead(_) | ChunkIs::Gone);
        is_there && matches!(self.kind, ChunkKind::Data)
    }

    /// Units that are left.
    pub(super) const fn room(&self) -> u32 {
        self.length.0.saturating_sub(self.posted.0)
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.is, ChunkIs::Open)
    }
}

impl TierCore {
    /// The members of a chunk that was written to are not all there, and nothing is under way to it: what is written next goes to another.
    pub(super) fn close_if_memberless(&mut self, now: Instant, name: SegmentName) {
        while let Some(place) = self.first_memberless(name) {
            self.close_chunk(now, name, place);
        }
    }

    fn first_memberless(&self, name: SegmentName) -> Option<usize> {
        let segment = self.segments.get(&name)?;
        let is_memberless = |port: PortNumber, place: usize| {
            let chunk = segment.chunks.get(place);
            chunk.is_some_and(|chunk| !chunk.members.iter().all(|member| self.is_ready_at(port, *member)))
        };
        let mut open = segment.open.iter();
        open.find(|(port, place)| is_memberless(**port, **place)).map(|(_, place)| *place)
    }

    /// The record of a chunk that these servers have, and that has so much; nothing if it is not known who all of them are.
    pub(super) fn record_of(
        &self,
        (state, kind, epoch): (ChunkState, ChunkKind, Epoch),
        members: &[usize],
        (length, content_crc): (Units, u32),
        sums: ListSums,
    ) -> Option<Chunk> {
        let ids: Vec<ServerId> = members.iter().filter_map(|member| self.servers.get(*member)?.id).collect();
        let members = Members::new(&ids).filter(|_| !ids.is_empty() && ids.len() == members.len())?;
        Some(Chunk {
            state,
            kind,
            members,
            epoch,
            length,
            last_sequence: sums.last_sequence,
            blocks: u32::try_from(sums.blocks).unwrap_or(u32::MAX),
            records: sums.records,
            content_crc,
            joining: None,
        })
    }

    /// The record of a sealed chunk, with these members.
    pub(super) fn sealed_record(&self, chunk: &TierChunk, members: &[usize]) -> Option<Chunk> {
        let ChunkIs::Sealed { content_crc } = chunk.is else { return None };
        let what = (ChunkState::Sealed, chunk.kind, chunk.epoch);
        self.record_of(what, members, (chunk.length, content_crc), chunk.sums())
    }

    /// What the store is to have of a chunk of which nothing counts any more.
    pub(super) fn dead_record(&self, chunk: &TierChunk) -> Option<Chunk> {
        // Who that is known has something of it matters no more to anybody.
        let known = |member: &usize| self.servers.get(*member).is_some_and(|server| server.id.is_some());
        let members: Vec<usize> = chunk.members.iter().copied().filter(known).collect();
        let (ends, sums) = match chunk.is {
            ChunkIs::Sealed { content_crc } => ((chunk.length, content_crc), chunk.sums()),
            _ => ((RECORDS_START, 0), ListSums::default()),
        };
        self.record_of((ChunkState::Dead, chunk.kind, chunk.epoch), &members, ends, sums)
    }

    /// Who of those that are there can be asked for what a sealed chunk has: its members, or, if there are none, others that have
    /// something of it (R5). What they give is compared with the chunk's record.
    pub(super) fn givers(&self, chunk: &TierChunk) -> Vec<usize> {
        let is_ready = |place: &usize| self.servers.get(*place).is_some_and(ServerCore::is_ready);
        let named: Vec<usize> = chunk.members.iter().copied().filter(is_ready).collect();
        if !named.is_empty() || is_planted(Bug::StrayUnasked) {
            return named;
        }
        chunk.strays.iter().copied().filter(is_ready).collect()
    }

    /// A slot by which a plan names a chunk, one user more; nothing if there is none to spare, or nobody who has the chunk.
    pub(super) fn pin_chunk(&mut self, port: PortNumber, name: SegmentName, place: usize) -> Pinned {
        let Some(segment) = self.segments.get(&name) else { return Pinned::NoMember };
        // Another port that writes to it has it as one to read.
        let is_its = |chunk: &TierChunk| chunk.is_open() && chunk.port == port;
        let is_open = segment.chunks.get(place).is_some_and(is_its);
        let (Some(chunk), epoch) = (segment.chunks.get(place), segment.epoch()) else {
            return Pinned::NoMember;
        };
        let Some(slots) = self.ports.get_mut(&port).map(|port| &mut port.slots) else {
            return Pinned::NoMember;
        };
        let slot = match slots.pin((name, place)) {
            None => return Pinned::NoSlot,
            Some(Found::Set(slot)) => return Pinned::Yes(slot),
            Some(Found::New(slot)) => slot,
        };
        let is_ready = |member: &&usize| self.is_ready_at(port, **member);
        let named = chunk.members.iter().filter(is_ready);
        // A place means one record for ever: who is not named may have it, too (R5).
        let asks_strays = !chunk.is_open() && !is_planted(Bug::StrayUnasked);
        let strays = chunk.strays.iter().filter(|_| asks_strays).filter(is_ready);
        let servers: Vec<usize> = named.clone().chain(strays).copied().take(MEMBERS_MAX).collect();
        let members = servers.len();
        let mut channels = [ChannelId::default(); MEMBERS_MAX];
        for (channel, server) in channels.iter_mut().zip(&servers) {
            *channel = channel_of(*server);
        }
        let has_named = named.count() == chunk.members.len();
        // What nobody of these has is nowhere.
        let has_all = members == chunk.members.len() + chunk.strays.len();
        if members == 0 || (is_open && !has_named) {
            // Nothing was said of it to the card.
            if let Some(port) = self.ports.get_mut(&port) {
                port.slots.forget(slot);
            }
            return Pinned::NoMember;
        }
        let set = Set {
            slot,
            what: if is_open { SetWhat::Append } else { SetWhat::ReadOnly },
            epoch,
            chunk: ChunkName::new(name, chunk.number),
            channels,
            members: members as u8,
            offset: chunk.end,
            length: chunk.length,
        };
        if let Some(port) = self.ports.get_mut(&port) {
            port.slots.set_members(slot, servers, has_all, is_open);
        }
        self.actions.push_back(TierAction::Set { port, set });
        Pinned::Yes(slot)
    }
}

/// Whether a plan may name a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pinned {
    Yes(Slot),
    /// Plans under way name all slots there are.
    NoSlot,
    /// No member is there; of one that is written to, not all are.
    NoMember,
}
