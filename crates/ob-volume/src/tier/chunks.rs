//! Chunks of a segment: what was written to them, who has them, and by which slot the card knows them.
//!
//! ```text
//!   opening ─▶ Open ─ no room, a member lost or slow ─▶ Closing (seal) ─ agreed on ─▶ Sealed ─ too few members ─▶ repair
//! ```

use std::ops::Range;

use ob_core::{ChunkId, ChunkName, Epoch, Instant, Revision, SegmentName, Sequence, Units};
use ob_format::volume::RECORDS_START;
use ob_split::wire::{ChannelId, Handle, MEMBERS_MAX, Set, SetWhat, Slot};

use super::core::TierCore;
use super::seal::Seal;
use super::servers::{ServerCore, channel_of};
use super::slots::Found;
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
    /// In which it was created.
    pub(super) epoch: Epoch,
    /// Of its record in the store.
    pub(super) revision: Revision,
    pub(super) is: ChunkIs,
    /// Servers by their places: those that its record names.
    pub(super) members: Vec<usize>,
    /// Those that may have something of it, and are not named.
    pub(super) strays: Vec<usize>,
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
}

impl TierChunk {
    /// One that was made just now.
    pub(super) const fn new(
        number: ChunkId,
        epoch: Epoch,
        revision: Revision,
        members: Vec<usize>,
        length: Units,
    ) -> Self {
        Self {
            number,
            epoch,
            revision,
            is: ChunkIs::Open,
            members,
            strays: Vec::new(),
            length,
            end: RECORDS_START,
            posted: RECORDS_START,
            changes: 0,
            live: 0,
            blocks: 0,
            records: 0,
            last_sequence: Sequence(0),
            unresolved: Vec::new(),
        }
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
        let Some(segment) = self.segments.get(&name) else { return };
        let Some((place, chunk)) = segment.open.and_then(|place| Some((place, segment.chunks.get(place)?)))
        else {
            return;
        };
        let is_ready = |member: &usize| self.servers.get(*member).is_some_and(ServerCore::is_ready);
        if !chunk.members.iter().all(is_ready) {
            self.close_chunk(now, name, place);
        }
    }

    /// A slot by which a plan names a chunk, one user more; nothing if there is none to spare, or nobody who has the chunk.
    pub(super) fn pin_chunk(&mut self, name: SegmentName, place: usize) -> Pinned {
        let Some(segment) = self.segments.get(&name) else { return Pinned::NoMember };
        let is_open = segment.open == Some(place);
        let (Some(chunk), epoch) = (segment.chunks.get(place), segment.epoch()) else {
            return Pinned::NoMember;
        };
        let is_ready = |member: &&usize| self.servers.get(**member).is_some_and(ServerCore::is_ready);
        let slot = match self.slots.pin((name, place)) {
            None => return Pinned::NoSlot,
            Some(Found::Set(slot)) => return Pinned::Yes(slot),
            Some(Found::New(slot)) => slot,
        };
        let named = chunk.members.iter().filter(is_ready);
        // A place means one record for ever: who is not named may have it, too (R5).
        let strays = chunk.strays.iter().filter(|_| !is_open).filter(is_ready);
        let mut channels = [ChannelId::default(); MEMBERS_MAX];
        let mut members = 0;
        for (channel, member) in channels.iter_mut().zip(named.clone().chain(strays)) {
            *channel = channel_of(*member);
            members += 1;
        }
        let has_named = named.count() == chunk.members.len();
        // What nobody of these has is nowhere.
        let has_all = members == chunk.members.len() + chunk.strays.len();
        if members == 0 || (is_open && !has_named) {
            // Nothing was said of it to the card.
            self.slots.forget(slot);
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
        self.slots.set_members(slot, members, has_all);
        self.actions.push_back(TierAction::Set { port: PortNumber(0), set });
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
