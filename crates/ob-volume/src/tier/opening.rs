//! Chunks that are made: on servers first, then agreed on in the store, and only then written to (C2).
//!
//! ```text
//!   Choosing ─ enough servers ─▶ Creating ─ all have it ─▶ Committing ─ in the store ─▶ open
//!      ▲── one has not: those that have it delete it, later ──┘
//! ```
//!
//! Servers that have failed of late come last. As long as there are not enough others, a chunk waits for them for a while, counted from
//! when that began and not from each chunk anew; then it has fewer members, if there are as many as there must be.

use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, Revision, SegmentName, ServerId, Units};
use ob_format::volume::ChunkKind;
use ob_format::volume::metadata::{Chunk, ChunkState, Members, Text, Volume};
use ob_split::wire::MEMBERS_MAX;
use ob_wire_nvme::Status;

use super::chunks::TierChunk;
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::segments::Standing;
use super::servers::create_request;
use super::status::Trouble;
use super::store::{RETRY, Then};
use crate::metadata::{Expect, MetadataValue, Name};

/// How long a chunk waits for all the members that it should have, before it takes fewer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after it was not made a chunk is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// What has become of a request to make a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Yes,
    No,
    /// Nobody has said.
    Perhaps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpeningPhase {
    Choosing { again: Instant },
    Creating,
    Committing,
}

/// A chunk that is being made.
#[derive(Debug)]
pub(super) struct Opening {
    phase: OpeningPhase,
    chunk: ChunkId,
    /// Servers by their places, and what each has made of it.
    members: Vec<(usize, Option<Made>)>,
}

/// Why no servers were chosen.
enum Unchosen {
    /// They are missing.
    Missing,
    /// They have no room.
    Full,
}

impl Opening {
    /// Whether all members have it, and only the store's word is missing.
    fn is_made(&self) -> bool {
        self.phase == OpeningPhase::Creating && self.members.iter().all(|(_, made)| *made == Some(Made::Yes))
    }

    /// Whether its record is on its way to the store.
    pub(super) fn is_committing(&self) -> bool {
        self.phase == OpeningPhase::Committing
    }
}

impl TierCore {
    /// The next chunk of a segment is to be made, unless that is under way.
    pub(super) fn open_chunk(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if segment.opening.is_none() && !segment.is_exhausted {
            let phase = OpeningPhase::Choosing { again: now };
            segment.opening = Some(Opening { phase, chunk: ChunkId(0), members: Vec::new() });
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
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let is_owned = segment.standing == Standing::Owned && !segment.is_committing && self.port.is_some();
        let (next_chunk, record) = (segment.next_chunk, segment.record);
        let Some(opening) = &mut segment.opening else { return };
        if opening.is_made() {
            return self.commit_chunk(name);
        }
        let is_choosing = matches!(opening.phase, OpeningPhase::Choosing { .. });
        let (true, true, Some(record)) = (is_choosing, is_owned, record) else { return };
        // Whatever comes of this, it is not looked at before.
        opening.phase = OpeningPhase::Choosing { again: now + RETRY };
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        if next_chunk >= record.chunk_next.0 {
            return self.reserve_chunks(name);
        }
        let chosen = self.choose(now, &volume, next_chunk);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let members = match chosen {
            Ok(members) => members,
            Err(Unchosen::Missing) => return,
            Err(Unchosen::Full) => {
                segment.opening = None;
                return self.refuse_changes(name, Status::CAPACITY_EXCEEDED.with_do_not_retry());
            }
        };
        let chunk = ChunkId(next_chunk);
        if !is_planted(Bug::ChunkNumberReused) {
            segment.next_chunk += 1;
        }
        let (phase, length) = (OpeningPhase::Creating, Units::of_bytes(volume.chunk_len));
        let asked = members.iter().map(|member| (*member, None)).collect();
        segment.opening = Some(Opening { phase, chunk, members: asked });
        let request = create_request(ChunkName::new(name, chunk), record.epoch, length, volume.block_len);
        for member in members {
            self.create(member, request, name, chunk);
        }
    }

    /// Servers for a chunk.
    fn choose(&mut self, now: Instant, volume: &Volume, turn: u32) -> Result<Vec<usize>, Unchosen> {
        let length = Units::of_bytes(volume.chunk_len);
        let (replicas, least) = (usize::from(volume.replicas), usize::from(volume.replicas_min).max(1));
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
        if full > 0 && self.servers.len() - full < least {
            return Err(Unchosen::Full);
        }
        let mut candidates: Vec<usize> = ready.into_iter().filter(has_room).collect();
        if !candidates.is_empty() {
            let by = turn as usize % candidates.len();
            candidates.rotate_left(by);
        }
        let has_failed =
            |place: &usize| self.servers.get(*place).is_some_and(|server| server.has_failed(now));
        candidates.sort_by_key(has_failed);
        let (all, good) = (candidates.len(), candidates.iter().filter(|place| !has_failed(place)).count());
        let is_patient = self.is_patient(now, good >= replicas);
        let taken = match () {
            () if good >= replicas => good,
            // As many as it should have, if those that have failed do better now.
            () if all >= replicas && (is_patient || good < least) => all,
            () if is_patient => return Err(Unchosen::Missing),
            () if good >= least => good,
            () if all >= least => all,
            () => return Err(Unchosen::Missing),
        };
        candidates.truncate(taken);
        Ok(self.apart(&candidates, replicas.min(MEMBERS_MAX)))
    }

    /// Whether servers that are missing are still waited for.
    fn is_patient(&mut self, now: Instant, has_enough: bool) -> bool {
        if has_enough {
            // Those that have failed and are to be tried again have not done better yet.
            if self.servers.iter().all(super::servers::ServerCore::is_sound) {
                self.short_since = None;
            }
            return true;
        }
        now.since(*self.short_since.get_or_insert(now)) < PATIENCE
    }

    /// So many of the candidates, of as many domains as there are.
    fn apart(&self, candidates: &[usize], most: usize) -> Vec<usize> {
        let domain = |place: usize| self.servers.get(place).and_then(|server| server.domain);
        let mut chosen: Vec<usize> = Vec::new();
        let mut domains: Vec<Option<Text<32>>> = Vec::new();
        for is_strict in [true, false] {
            for place in candidates {
                let is_new = !domains.contains(&domain(*place)) || !is_strict;
                if chosen.len() < most && is_new && !chosen.contains(place) {
                    chosen.push(*place);
                    domains.push(domain(*place));
                }
            }
        }
        chosen
    }

    /// A server has made a chunk, or has not.
    pub(super) fn chunk_created(
        &mut self,
        now: Instant,
        name: SegmentName,
        chunk: ChunkId,
        place: usize,
        made: Made,
    ) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(epoch) = segment.epoch() else { return };
        let opening = segment.opening.as_mut();
        let Some(opening) =
            opening.filter(|opening| opening.chunk == chunk && opening.phase == OpeningPhase::Creating)
        else {
            // It was given up meanwhile.
            if made != Made::No {
                self.delete(place, ChunkName::new(name, chunk), epoch);
            }
            return;
        };
        for (_, of) in opening.members.iter_mut().filter(|(member, _)| *member == place) {
            *of = Some(made);
        }
        if opening.members.iter().any(|(_, made)| made.is_none()) {
            return;
        }
        if opening.is_made() {
            return self.commit_chunk(name);
        }
        // Nobody will name it: those that have it, or may have, are to have its room again.
        opening.phase = OpeningPhase::Choosing { again: now + AGAIN };
        let members = std::mem::take(&mut opening.members);
        for (member, _) in members.into_iter().filter(|(_, made)| *made != Some(Made::No)) {
            self.delete(member, ChunkName::new(name, chunk), epoch);
        }
    }

    /// All members have the chunk: the store is told.
    fn commit_chunk(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (epoch, revision) = (segment.epoch(), segment.revision);
        let Some(opening) = &mut segment.opening else { return };
        if segment.is_committing || segment.standing != Standing::Owned {
            // Something else of the segment is being agreed on: it comes behind that.
            return;
        }
        opening.phase = OpeningPhase::Committing;
        let chunk = opening.chunk;
        let ids = opening.members.iter().filter_map(|(place, _)| self.servers.get(*place)?.id);
        let ids: Vec<ServerId> = ids.collect();
        let (Some(members), Some(epoch), Some(revision)) = (Members::new(&ids), epoch, revision) else {
            return;
        };
        segment.is_committing = true;
        for (place, _) in &opening.members {
            if let Some(server) = self.servers.get_mut(*place) {
                server.do_well();
            }
        }
        let record = Chunk {
            state: ChunkState::Open,
            kind: ChunkKind::Data,
            members,
            epoch,
            length: Units(0),
            last_sequence: ob_core::Sequence(0),
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
            self.chunk_opened(name, Revision(0));
        }
    }

    /// The store names the chunk, or never will.
    pub(super) fn chunk_committed(&mut self, now: Instant, name: SegmentName, revision: Option<Revision>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        match revision {
            Some(revision) => self.chunk_opened(name, revision),
            None => {
                segment.opening = None;
                segment.standing = Standing::Unserved(Trouble::Taken);
                self.counts.segments_lost += 1;
            }
        }
        self.commit_over(now, name);
    }

    fn chunk_opened(&mut self, name: SegmentName, revision: Revision) {
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(opening) = segment.opening.take() else { return };
        let Some(epoch) = segment.epoch() else { return };
        let members = opening.members.iter().map(|(member, _)| *member).collect();
        let length = Units::of_bytes(volume.chunk_len);
        segment.open = Some(segment.chunks.len());
        segment.chunks.push(TierChunk::new(opening.chunk, epoch, revision, members, length));
        self.counts.chunks_opened += 1;
        self.wake(name);
    }

    /// All that wait to change something in a segment are told that there will be no chunk for it.
    fn refuse_changes(&mut self, name: SegmentName, status: Status) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        for handle in std::mem::take(&mut segment.waiting) {
            if let Some(command) = self.commands.get_mut(&handle.0).filter(|command| command.is_change) {
                command.fail(status);
            }
            self.ready.push_back(handle);
        }
    }
}
