//! Chunks of a segment: made on servers, agreed on in the store, and only then written to (C2).
//!
//! ```text
//!   Choosing ─ enough servers ─▶ Creating ─ all have it ─▶ Committing ─ in the store ─▶ open ─ no room ─▶ full
//!      ▲─────── one has not, later ──┘
//! ```

use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, Revision, SegmentName, Sequence, ServerId, Units};
use ob_format::volume::metadata::{Chunk, ChunkState, Members, Text};
use ob_format::volume::{ChunkKind, RECORDS_START};
use ob_split::wire::{ChannelId, MEMBERS_MAX, Set, SetWhat, Slot};
use ob_wire_nvme::Status;

use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::segments::Standing;
use super::servers::{channel_of, create_request};
use super::slots::Found;
use super::status::Trouble;
use super::store::{RETRY, Then};
use super::{PortNumber, TierAction};
use crate::metadata::{Expect, MetadataValue, Name};

/// How long a chunk waits for all the members that it should have, before it takes fewer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A chunk, as the tier has it.
#[derive(Debug)]
pub(super) struct TierChunk {
    pub(super) number: ChunkId,
    /// Servers by their places.
    pub(super) members: Vec<usize>,
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
    pub(super) last_sequence: Sequence,
}

impl TierChunk {
    /// Units that are left.
    pub(super) const fn room(&self) -> u32 {
        self.length.0.saturating_sub(self.posted.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpeningPhase {
    Choosing { again: Instant },
    Creating { left: usize, has_failed: bool },
    Committing,
}

/// A chunk that is being made.
#[derive(Debug)]
pub(super) struct Opening {
    since: Instant,
    phase: OpeningPhase,
    chunk: ChunkId,
    members: Vec<usize>,
}

/// Why no servers were chosen.
enum Unchosen {
    /// They are missing.
    Missing,
    /// They have no room.
    Full,
}

impl TierCore {
    /// The next chunk of a segment is to be made, unless that is under way.
    pub(super) fn open_chunk(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if segment.opening.is_none() && !segment.is_broken {
            let phase = OpeningPhase::Choosing { again: now };
            segment.opening = Some(Opening { since: now, phase, chunk: ChunkId(0), members: Vec::new() });
            self.continue_opening(now, name);
        }
    }

    pub(super) fn continue_all_openings(&mut self, now: Instant) {
        let opening = self.segments.iter().filter(|(_, segment)| segment.opening.is_some());
        let names: Vec<SegmentName> = opening.map(|(name, _)| *name).collect();
        for name in names {
            self.continue_opening(now, name);
        }
    }

    /// Openings that wait are tried again when it is time.
    pub(super) fn openings_due(&mut self, now: Instant) {
        if self.openings_next_due().is_some_and(|due| due <= now) {
            self.continue_all_openings(now);
        }
    }

    pub(super) fn openings_next_due(&self) -> Option<Instant> {
        let phases = self.segments.values().filter_map(|segment| segment.opening.as_ref());
        let due = phases.filter_map(|opening| match opening.phase {
            OpeningPhase::Choosing { again } => Some(again),
            _ => None,
        });
        due.min()
    }

    /// Chooses servers and asks them, if nothing is missing for it.
    pub(super) fn continue_opening(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get(&name) else { return };
        let Some(opening) = &segment.opening else { return };
        let is_choosing = matches!(opening.phase, OpeningPhase::Choosing { .. });
        let is_owned = segment.standing == Standing::Owned && !segment.is_committing && self.port.is_some();
        let (true, true, Some(record)) = (is_choosing, is_owned, segment.record) else { return };
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        if segment.next_chunk >= record.chunk_next.0 {
            return self.reserve_chunks(name);
        }
        let (number, is_patient) = (segment.next_chunk, now.since(opening.since) < PATIENCE);
        let length = Units::of_bytes(volume.chunk_len);
        let least = if is_patient { volume.replicas } else { volume.replicas_min };
        let chosen = self.choose(
            now,
            length,
            usize::from(volume.replicas),
            least.into(),
            volume.replicas_min.into(),
            number,
        );
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let members = match chosen {
            Ok(members) => members,
            Err(Unchosen::Missing) => {
                if let Some(opening) = &mut segment.opening {
                    opening.phase = OpeningPhase::Choosing { again: now + RETRY };
                }
                return;
            }
            Err(Unchosen::Full) => {
                segment.opening = None;
                return self.refuse_waiting(name, Status::CAPACITY_EXCEEDED.with_do_not_retry());
            }
        };
        segment.next_chunk += 1;
        let chunk = ChunkId(number);
        if let Some(opening) = &mut segment.opening {
            opening.phase = OpeningPhase::Creating { left: members.len(), has_failed: false };
            (opening.chunk, opening.members) = (chunk, members.clone());
        }
        let request = create_request(ChunkName::new(name, chunk), record.epoch, length, volume.block_len);
        for member in members {
            self.create(member, request, name, chunk);
        }
    }

    /// Servers for a chunk: as many domains as there are, those that have failed of late last.
    fn choose(
        &self,
        now: Instant,
        length: Units,
        most: usize,
        least: usize,
        replicas_min: usize,
        turn: u32,
    ) -> Result<Vec<usize>, Unchosen> {
        // One that has refused is asked again after a while: it says what is free only when it is asked for something.
        let has_room = |place: &usize| {
            let server = self.servers.get(*place);
            server.is_some_and(|server| {
                !server.is_full(now) && (server.full_until.is_some() || server.free >= length.bytes())
            })
        };
        let is_ready =
            |place: &usize| self.servers.get(*place).is_some_and(super::servers::ServerCore::is_ready);
        let ready: Vec<usize> = (0..self.servers.len()).filter(is_ready).collect();
        let full = ready.iter().filter(|place| !has_room(place)).count();
        // Refused for want of space only if that is what is wanting.
        if full > 0 && self.servers.len() - full < replicas_min {
            return Err(Unchosen::Full);
        }
        let mut candidates: Vec<usize> = ready.into_iter().filter(has_room).collect();
        if !candidates.is_empty() {
            let by = turn as usize % candidates.len();
            candidates.rotate_left(by);
        }
        candidates.sort_by_key(|place| self.servers.get(*place).is_some_and(|server| server.has_failed(now)));
        let domain = |place: usize| self.servers.get(place).and_then(|server| server.domain);
        let mut chosen: Vec<usize> = Vec::new();
        let mut domains: Vec<Option<Text<32>>> = Vec::new();
        for is_strict in [true, false] {
            for place in &candidates {
                let is_new = !domains.contains(&domain(*place)) || !is_strict;
                if chosen.len() < most.min(MEMBERS_MAX) && is_new && !chosen.contains(place) {
                    chosen.push(*place);
                    domains.push(domain(*place));
                }
            }
        }
        if chosen.len() >= least.max(1) { Ok(chosen) } else { Err(Unchosen::Missing) }
    }

    /// A server has made a chunk, or has not.
    pub(super) fn chunk_created(&mut self, now: Instant, name: SegmentName, chunk: ChunkId, is_good: bool) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(opening) = segment.opening.as_mut().filter(|opening| opening.chunk == chunk) else { return };
        let OpeningPhase::Creating { left, has_failed } = &mut opening.phase else { return };
        *left -= 1;
        *has_failed |= !is_good;
        if *left > 0 {
            return;
        }
        if *has_failed {
            // What the others have made nobody names.
            opening.phase = OpeningPhase::Choosing { again: now + RETRY };
            return;
        }
        opening.phase = OpeningPhase::Committing;
        let ids = opening.members.iter().filter_map(|place| self.servers.get(*place)?.id);
        let ids: Vec<ServerId> = ids.collect();
        let (Some(members), Some(epoch), Some(revision)) =
            (Members::new(&ids), segment.epoch(), segment.revision)
        else {
            return;
        };
        segment.is_committing = true;
        let record = Chunk {
            state: ChunkState::Open,
            kind: ChunkKind::Data,
            members,
            epoch,
            length: Units(0),
            last_sequence: Sequence(0),
            blocks: 0,
            records: 0,
            content_crc: 0,
            joining: None,
        };
        let others = vec![(self.config.keys.key(Name::Segment(name)), Expect::At(revision))];
        let value = MetadataValue::Chunk(record).encode();
        let key = Name::Chunk(ChunkName::new(name, chunk));
        self.commit(key, Expect::Absent, others, value, Then::Opened(name), None);
        if is_planted(Bug::ChunkUnregistered) {
            self.chunk_opened(name);
        }
    }

    /// The store names the chunk, or never will.
    pub(super) fn chunk_committed(&mut self, now: Instant, name: SegmentName, revision: Option<Revision>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        if revision.is_some() {
            self.chunk_opened(name);
        } else {
            segment.opening = None;
            segment.standing = Standing::Unserved(Trouble::Taken);
            self.counts.segments_lost += 1;
        }
        self.adopt(name);
        self.continue_opening(now, name);
        self.wake(name);
    }

    fn chunk_opened(&mut self, name: SegmentName) {
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(opening) = segment.opening.take() else { return };
        segment.open = Some(segment.chunks.len());
        segment.chunks.push(TierChunk {
            number: opening.chunk,
            members: opening.members,
            length: Units::of_bytes(volume.chunk_len),
            end: RECORDS_START,
            posted: RECORDS_START,
            changes: 0,
            live: 0,
            blocks: 0,
            last_sequence: Sequence(0),
        });
        self.counts.chunks_opened += 1;
        self.wake(name);
    }

    /// What is open and the card has not been told of stays as it is, if not all its members are there: nothing is under way to it,
    /// and what is written next goes to another.
    pub(super) fn close_if_memberless(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some((place, chunk)) = segment.open.and_then(|place| Some((place, segment.chunks.get(place)?)))
        else {
            return;
        };
        let is_ready =
            |member: &usize| self.servers.get(*member).is_some_and(super::servers::ServerCore::is_ready);
        if !self.slots.is_set((name, place)) && !chunk.members.iter().all(is_ready) {
            segment.open = None;
        }
    }

    /// A slot by which a plan names a chunk, one user more; nothing if there is none to spare, or nobody who has the chunk.
    pub(super) fn pin_chunk(&mut self, name: SegmentName, place: usize) -> Pinned {
        self.close_if_memberless(name);
        let Some(segment) = self.segments.get_mut(&name) else { return Pinned::NoMember };
        let is_open = segment.open == Some(place) && !segment.is_broken;
        let (Some(chunk), epoch) = (segment.chunks.get(place), segment.epoch()) else {
            return Pinned::NoMember;
        };
        let is_ready =
            |member: &&usize| self.servers.get(**member).is_some_and(super::servers::ServerCore::is_ready);
        let slot = match self.slots.pin((name, place)) {
            None => return Pinned::NoSlot,
            Some(Found::Set(slot)) => return Pinned::Yes(slot),
            Some(Found::New(slot)) => slot,
        };
        let mut channels = [ChannelId::default(); MEMBERS_MAX];
        let mut members = 0;
        for (channel, member) in channels.iter_mut().zip(chunk.members.iter().filter(is_ready)) {
            *channel = channel_of(*member);
            members += 1;
        }
        let has_enough = members > 0 && (!is_open || members == chunk.members.len());
        if !has_enough {
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
        self.actions.push_back(TierAction::Set { port: PortNumber(0), set });
        Pinned::Yes(slot)
    }

    /// All that wait for a chunk of a segment are told that there will be none.
    pub(super) fn refuse_waiting(&mut self, name: SegmentName, status: Status) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        for handle in segment.waiting.drain(..) {
            if let Some(command) = self.commands.get_mut(&handle.0) {
                command.fail(status);
            }
            self.ready.push_back(handle);
        }
    }

    /// Nothing is written to a segment any more.
    pub(super) fn break_segment(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if !segment.is_broken {
            segment.is_broken = true;
            segment.opening = None;
            self.counts.segments_broken += 1;
        }
        self.wake(name);
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
