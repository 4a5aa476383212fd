//! Chunks that are made: on servers first, then agreed on in the store, and only then written to (C2).
//!
//! ```text
//!   Choosing ─ enough servers ─▶ Creating ─ all have it ─▶ Committing ─ in the store ─▶ open
//!      ▲── one has not: those that have it delete it, later ──┘
//! ```
//!
//! Servers that have failed of late come last. As long as there are not enough others, a chunk waits for them for a while, counted from
//! when that began and not from each chunk anew; then it has fewer members, if there are as many as there must be.
//!
//! A segment may have one opened for each of what it is for: for what clients write, for maintenance, and for the index. The latter two may
//! use what is kept of the servers' space for them.

use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, Revision, SegmentName, Units};
use ob_format::volume::ChunkKind;
use ob_format::volume::metadata::{ChunkState, Text, Volume};
use ob_split::wire::MEMBERS_MAX;
use ob_wire_nvme::Status;

use super::PortNumber;
use super::chunks::TierChunk;
use super::command::{Command, What};
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::{MAIN, is_chunk_named, retire_chunk};
use super::segments::Standing;
use super::servers::ServerCore;
use super::servers::create_request;
use super::store::{RETRY, Then};
use super::taking::ListSums;
use crate::metadata::{Expect, MetadataValue, Name};

/// How long a chunk waits for all the members that it should have, before it takes fewer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after it was not made a chunk is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// What a chunk is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OpenFor {
    /// What clients write by a port.
    Client(PortNumber),
    /// What compaction moves by the first port, and trims of a port when there is no other.
    Maintenance(PortNumber),
    /// A checkpoint.
    Index,
}

impl OpenFor {
    const fn kind(self) -> ChunkKind {
        match self {
            Self::Client(_) | Self::Maintenance(_) => ChunkKind::Data,
            Self::Index => ChunkKind::Index,
        }
    }

    /// G6: clients may not.
    fn may_use_reserve(self) -> bool {
        !matches!(self, Self::Client(_)) || is_planted(Bug::ReserveEaten)
    }

    /// Who writes to it.
    const fn port(self) -> PortNumber {
        match self {
            Self::Client(port) | Self::Maintenance(port) => port,
            Self::Index => MAIN,
        }
    }
}

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

    /// Whether it is the chunk of this number that is made.
    pub(super) fn is_of(&self, chunk: ChunkId) -> bool {
        self.chunk == chunk && !matches!(self.phase, OpeningPhase::Choosing { .. })
    }

    /// Whether its record is on its way to the store.
    pub(super) fn is_committing(&self) -> bool {
        self.phase == OpeningPhase::Committing
    }
}

impl TierCore {
    /// The next chunk of a segment is to be made, unless that is under way.
    pub(super) fn open_chunk(&mut self, now: Instant, name: SegmentName, of: OpenFor) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if !segment.openings.contains_key(&of) && !segment.is_exhausted {
            let phase = OpeningPhase::Choosing { again: now };
            segment.openings.insert(of, Opening { phase, chunk: ChunkId(0), members: Vec::new() });
            self.continue_one(now, name, of);
        }
    }

    pub(super) fn continue_all_openings(&mut self, now: Instant) {
        let opening = self.segments.iter().filter(|(_, segment)| !segment.openings.is_empty());
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
        let phases = self.segments.values().flat_map(|segment| segment.openings.values());
        let due = phases.filter_map(|opening| match opening.phase {
            OpeningPhase::Choosing { again } => Some(again),
            _ => None,
        });
        due.min()
    }

    /// All that are made for a segment go on.
    pub(super) fn continue_opening(&mut self, now: Instant, name: SegmentName) {
        let segment = self.segments.get(&name);
        let all: Vec<OpenFor> =
            segment.into_iter().flat_map(|segment| segment.openings.keys().copied()).collect();
        for of in all {
            self.continue_one(now, name, of);
        }
    }

    /// Chooses servers and asks them, if nothing is missing for it.
    fn continue_one(&mut self, now: Instant, name: SegmentName, of: OpenFor) {
        let is_connected = self.is_connected();
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let is_owned = segment.standing == Standing::Owned && !segment.is_committing && is_connected;
        let (next_chunk, record) = (segment.next_chunk, segment.record);
        let Some(opening) = segment.openings.get_mut(&of) else { return };
        if opening.is_made() {
            return self.commit_chunk(name, of);
        }
        if !matches!(opening.phase, OpeningPhase::Choosing { .. }) {
            return;
        }
        // Whatever comes of this, it is not looked at before: nor while the segment waits for the store, which goes on with it.
        opening.phase = OpeningPhase::Choosing { again: now + RETRY };
        let (true, Some(record)) = (is_owned, record) else { return };
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        if next_chunk >= record.chunk_next.0 {
            return self.reserve_chunks(name);
        }
        let chosen = self.choose(now, &volume, next_chunk, of);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let members = match chosen {
            Ok(members) => members,
            Err(Unchosen::Missing) => return,
            Err(Unchosen::Full) => {
                segment.openings.remove(&of);
                return self.not_for_want_of_space(name, of);
            }
        };
        let chunk = ChunkId(next_chunk);
        if !is_planted(Bug::ChunkNumberReused) {
            segment.next_chunk += 1;
        }
        let (phase, length) = (OpeningPhase::Creating, Units::of_bytes(volume.chunk_len));
        let asked = members.iter().map(|member| (*member, None)).collect();
        segment.openings.insert(of, Opening { phase, chunk, members: asked });
        let request = create_request(
            (ChunkName::new(name, chunk), record.epoch),
            length,
            volume.block_len,
            of.kind(),
            of.may_use_reserve(),
        );
        for member in members {
            self.create(member, request, name, chunk);
        }
    }

    /// Who was at a place is at another: a chunk that is being made there is made anew, unless the store has it already.
    pub(super) fn rename_in_openings(&mut self, now: Instant, from: usize, to: usize) {
        for segment in self.segments.values_mut() {
            for opening in segment.openings.values_mut() {
                if opening.phase == OpeningPhase::Committing {
                    for (member, _) in opening.members.iter_mut().filter(|(member, _)| *member == from) {
                        *member = to;
                    }
                } else if opening.members.iter().any(|(member, _)| *member == from || *member == to) {
                    // What the others have made of it nobody names: it is swept.
                    opening.phase = OpeningPhase::Choosing { again: now + AGAIN };
                    opening.members.clear();
                }
            }
        }
    }

    /// Servers for a chunk.
    fn choose(
        &mut self,
        now: Instant,
        volume: &Volume,
        turn: u32,
        of: OpenFor,
    ) -> Result<Vec<usize>, Unchosen> {
        let length = Units::of_bytes(volume.chunk_len);
        let (replicas, least) = (usize::from(volume.replicas), usize::from(volume.replicas_min).max(1));
        // One that has refused is asked again after a while: it says what is free only when it is asked for something.
        let has_room = |place: &usize| {
            let server = self.servers.get(*place);
            let has_space = |server: &ServerCore| server.free >= length.bytes();
            server.is_some_and(|server| match of.may_use_reserve() {
                // What it has refused to others it may have kept for this.
                true => has_space(server),
                false if server.full_until.is_some() && is_planted(Bug::FullPoolStuck) => false,
                false => !server.is_full(now) && (server.full_until.is_some() || has_space(server)),
            })
        };
        let is_ready = |place: &usize| self.is_ready_at(of.port(), *place);
        let ready: Vec<usize> = (0..self.servers.len()).filter(is_ready).collect();
        let full = ready.iter().filter(|place| !has_room(place)).count();
        // Refused for want of space only if that is what is wanting.
        let are_missing = is_planted(Bug::FullForMissingServers) && ready.len() < least;
        if are_missing || full > 0 && self.servers_placed() - full < least {
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
        let mut openings = segment.openings.iter_mut();
        let found = openings
            .find(|(_, opening)| opening.chunk == chunk && opening.phase == OpeningPhase::Creating)
            .map(|(of, opening)| (*of, opening));
        let Some((purpose, opening)) = found else {
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
            return self.commit_chunk(name, purpose);
        }
        // Nobody will name it: those that have it, or may have, are to have its room again.
        opening.phase = OpeningPhase::Choosing { again: now + AGAIN };
        let members = std::mem::take(&mut opening.members);
        for (member, _) in members.into_iter().filter(|(_, made)| *made != Some(Made::No)) {
            self.delete(member, ChunkName::new(name, chunk), epoch);
        }
    }

    /// All members have the chunk: the store is told.
    fn commit_chunk(&mut self, name: SegmentName, of: OpenFor) {
        let Some(segment) = self.segments.get(&name) else { return };
        let (epoch, revision) = (segment.epoch(), segment.revision);
        let Some(opening) = segment.openings.get(&of) else { return };
        if segment.is_committing || segment.standing != Standing::Owned {
            // Something else of the segment is being agreed on: it comes behind that.
            return;
        }
        let chunk = opening.chunk;
        let members: Vec<usize> = opening.members.iter().map(|(place, _)| *place).collect();
        let record = epoch.and_then(|epoch| {
            let what = (ChunkState::Open, of.kind(), epoch);
            self.record_of(what, &members, (Units(0), 0), ListSums::default())
        });
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(record), Some(revision)) = (record, revision) else {
            // Somebody is another by now.
            segment.openings.remove(&of);
            return self.wake(name);
        };
        segment.is_committing = true;
        if let Some(opening) = segment.openings.get_mut(&of) {
            opening.phase = OpeningPhase::Committing;
        }
        for place in members {
            if let Some(server) = self.servers.get_mut(place) {
                server.do_well();
            }
        }
        let others = vec![(self.config.keys.key(Name::Segment(name)), Expect::At(revision))];
        let value = MetadataValue::Chunk(record).encode();
        let key = Name::Chunk(ChunkName::new(name, chunk));
        self.commit(key, Expect::Absent, others, value, Then::Opened(name), None);
        if is_planted(Bug::ChunkUnregistered) {
            self.chunk_opened(self.now, name, Revision(0));
        }
    }

    /// The store names the chunk, or never will.
    pub(super) fn chunk_committed(&mut self, now: Instant, name: SegmentName, revision: Option<Revision>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        match revision {
            Some(revision) => self.chunk_opened(now, name, revision),
            None => {
                segment.openings.clear();
                return self.segment_robbed(now, name);
            }
        }
        self.commit_over(now, name);
    }

    fn chunk_opened(&mut self, now: Instant, name: SegmentName, revision: Revision) {
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        let may_reuse = !self.is_checkpointed(name);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        // One thing of a segment is committed at a time.
        let committed = segment.openings.iter().find(|(_, opening)| opening.is_committing());
        let Some(of) = committed.map(|(of, _)| *of) else { return };
        let Some(opening) = segment.openings.remove(&of) else { return };
        let Some(epoch) = segment.epoch() else { return };
        let members = opening.members.iter().map(|(member, _)| *member).collect();
        let length = Units::of_bytes(volume.chunk_len);
        let chunk = TierChunk::new(opening.chunk, of.kind(), epoch, revision, members, length);
        let chunk = TierChunk { port: of.port(), ..chunk };
        let ports = &self.ports;
        let place = segment.put_chunk(chunk, may_reuse, |place| !is_chunk_named(ports, (name, place)));
        retire_chunk(&mut self.ports, (name, place));
        self.counts.chunks_opened += 1;
        match of {
            OpenFor::Client(port) => {
                segment.open.insert(port, place);
                segment.space.is_full = false;
            }
            OpenFor::Maintenance(port) => {
                segment.space.maintenance.insert(port, place);
                self.close_maintenance_but(now, name);
            }
            OpenFor::Index => self.index_chunk_opened(now, name, place),
        }
        self.wake(name);
        self.continue_compaction(now);
    }

    /// There is no space for a chunk: whoever waits to write is told. What trims need, and maintenance, is kept for them.
    fn not_for_want_of_space(&mut self, name: SegmentName, of: OpenFor) {
        match of {
            OpenFor::Client(port) => {
                if let Some(segment) = self.segments.get_mut(&name) {
                    segment.space.is_full = true;
                }
                self.space_at = Some(self.now);
                self.refuse_changes(name, port, What::Write);
            }
            OpenFor::Maintenance(port) => self.refuse_changes(name, port, What::Trim),
            OpenFor::Index => self.give_checkpoint_up(name),
        }
    }

    /// All that wait to write to a segment by a port are told that there will be no chunk for it, or those that wait to trim. (Another port may
    /// have a chunk, or get one.)
    fn refuse_changes(&mut self, name: SegmentName, port: PortNumber, what: What) {
        let status = Status::CAPACITY_EXCEEDED.with_do_not_retry();
        let Some(segment) = self.segments.get_mut(&name) else { return };
        for handle in std::mem::take(&mut segment.waiting) {
            let is_of_it =
                |command: &&mut Command| command.is_change && command.what == what && command.port == port;
            if let Some(command) = self.commands.get_mut(&handle.0).filter(is_of_it) {
                command.fail(status);
            }
            self.ready.push_back(handle);
        }
    }
}
