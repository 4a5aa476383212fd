//! What chunks hold that nothing counts of any more: they are called dead, deleted, and forgotten, so that their servers have the room
//! again (`docs/volumes-safety.md`, "Compaction and garbage").
//!
//! ```text
//!   Sealed ─ no block lives there, the head is past it (G2) ─▶ commit dead (G1) ─▶ Dead ─ DELETE to all that are there ─▶ commit: no key ─▶ Gone
//!      ▲ an index chunk that no head names ──────────────────────▶                         (G4: the others are swept when they return)
//! ```
//!
//! The place of a chunk that is gone is another's, but not while a checkpoint is under way (I7), and not while a plan names it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Epoch, Instant, Revision, SegmentName, Sequence, Units};
use ob_format::volume::{ChunkKind, Entry, RECORDS_START, RecordKind};

use super::PortNumber;
use super::areas::{LookFor, Looked, Stray};
use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::retire_chunk;
use super::segments::{SegmentCore, Standing};
use super::servers::{CallFor, Errand, Outcome, ServerCore};
use super::status::Trouble;
use super::store::Then;
use crate::metadata::{Change, Expect, Key, MetadataValue, Name};
use crate::plans::LOOK_ENTRIES_MAX;
use crate::wire::{Answer, ReplicaState, Reply, Request, decode_chunks, decode_entries};

/// How often it is looked for what is to be done.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long nothing is appended to an open chunk before it is sealed, so that it promises no space; and when space is short.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_SHORT: Duration = Duration::from_secs(5);
/// Most chunks that one commit is about; beside their segment's key they are compared and changed.
const BATCH_MAX: usize = 32;
/// How often those that are there are asked to delete what is dead, and do not.
const DELETES_MAX: u8 = 5;
/// How often servers are asked what they have, besides when they return.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// And while nobody who is named gives what is needed.
const SWEEP_STUCK: Duration = Duration::from_secs(10);
/// How often one may not tell it before nobody waits for that.
const SWEEP_FAILURES_MAX: u8 = 3;

/// How far it is known what a server has. It is asked in a chain of requests, and in one at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sweep {
    /// In which round it is being asked.
    asked: Option<u64>,
    /// The last round in which it has told all.
    done: Option<u64>,
    /// How often it has not.
    failures: u8,
}

impl Sweep {
    /// Whether nobody waits for what it tells: it does not.
    const fn is_silent(&self) -> bool {
        self.failures >= SWEEP_FAILURES_MAX
    }
}

/// How full the pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fullness {
    /// There is room.
    #[default]
    Roomy,
    /// Four fifths are used, or promised.
    Short,
    /// A chunk for clients was refused for want of space.
    Full,
}

/// What a segment knows of its space.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Operations under way that have a sequence: of the first of each, and how many have it.
    under_way: BTreeSet<Sequence>,
    /// The chunks that compaction fills, and trims of other ports when there is no other.
    pub(super) maintenance: BTreeMap<PortNumber, usize>,
    /// Whether a chunk for clients was refused for want of space.
    pub(super) is_full: bool,
    /// Chunks that a commit under way is about, by their places.
    committing: Vec<usize>,
    /// Open chunks as they were when they were looked at last, and since when they are so.
    idle: BTreeMap<usize, (Units, Instant)>,
    /// Blocks that were logged since the last checkpoint, and chunks that were sealed.
    pub(super) logged: u64,
    pub(super) sealed: u32,
    /// Index chunks that the head names, by their places.
    pub(super) head_chunks: Vec<usize>,
    /// The first round in which servers tell what they have of it.
    pub(super) sweep_round: u64,
}

/// A chunk that is dead: what is left to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dead {
    /// Who was asked to delete it, and has not answered.
    asked: Vec<usize>,
    /// Whether everybody who could be reached was asked.
    is_asked: bool,
    /// Whether somebody who is there has not deleted it, and how often that was so.
    is_left: bool,
    tries: u8,
}

impl SegmentCore {
    /// An operation has its sequences, from this one on.
    pub(super) fn note_under_way(&mut self, first: Sequence) {
        self.space.under_way.insert(first);
    }

    pub(super) fn note_over(&mut self, first: Sequence) {
        self.space.under_way.remove(&first);
    }

    /// A sequence below every operation that is under way, or of which nobody knows yet whether it counts (I5).
    pub(super) fn floor(&self) -> Option<Sequence> {
        let epoch = self.epoch()?;
        let next = Sequence::new(epoch, self.next_count)?;
        let unresolved = self.chunks.iter().flat_map(|chunk| &chunk.unresolved).map(|record| record.sequence);
        let under_way = self.space.under_way.first().copied();
        let least = unresolved.chain(under_way).min().unwrap_or(next).min(next);
        Some(Sequence(least.0 - 1))
    }

    /// The last sequence that was given to anything.
    pub(super) fn last_given(&self) -> Option<Sequence> {
        let next = Sequence::new(self.epoch()?, self.next_count)?;
        Some(Sequence(next.0 - 1))
    }

    /// What the head is past.
    pub(super) fn head_sequence(&self) -> Sequence {
        let head = self.record.and_then(|record| record.head);
        head.map_or(Sequence(0), |head| head.sequence)
    }

    /// A place for a chunk: one that is free, if places may be used again.
    pub(super) fn put_chunk(
        &mut self,
        chunk: TierChunk,
        may_reuse: bool,
        is_free: impl Fn(usize) -> bool,
    ) -> usize {
        let gone = |chunk: &TierChunk| matches!(chunk.is, ChunkIs::Gone);
        let mut places = self.chunks.iter().enumerate().filter(|(_, chunk)| gone(chunk)).map(|(at, _)| at);
        let place = places.find(|place| is_free(*place)).filter(|_| may_reuse);
        match place.and_then(|place| Some((place, self.chunks.get_mut(place)?))) {
            Some((place, free)) => {
                *free = chunk;
                place
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() - 1
            }
        }
    }

    /// Chunks that are somewhere.
    pub(super) fn chunks_there(&self) -> impl Iterator<Item = &TierChunk> {
        self.chunks.iter().filter(|chunk| !matches!(chunk.is, ChunkIs::Gone))
    }

    /// Whether nothing counts any more of what a data chunk has, now and for whoever replays (G2).
    fn is_garbage(&self, place: usize) -> bool {
        let Some(chunk) = self.chunks.get(place) else { return false };
        self.is_dead_weight(place)
            && (chunk.last_sequence <= self.head_sequence() || is_planted(Bug::GcIgnoresHead))
    }

    /// Whether there is something at a place, and nothing of it is being agreed on.
    fn is_there(&self, place: usize) -> bool {
        let is_there = |chunk: &TierChunk| !matches!(chunk.is, ChunkIs::Dead(_) | ChunkIs::Gone);
        self.chunks.get(place).is_some_and(is_there) && !self.space.committing.contains(&place)
    }

    /// Whether no block lies in a data chunk, of which everything is known.
    pub(super) fn is_dead_weight(&self, place: usize) -> bool {
        self.chunks.get(place).is_some_and(|chunk| {
            let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. }) && chunk.kind == ChunkKind::Data;
            is_sealed && chunk.live == 0 && chunk.changes == 0 && chunk.unresolved.is_empty()
        }) && !self.space.committing.contains(&place)
    }
}

impl TierCore {
    /// The port is closed: nothing that was under way is heard of again.
    pub(super) fn forget_space(&mut self) {
        self.forget_areas();
        self.checkpoints.clear();
        self.compaction = None;
        self.movers.clear();
        self.moves_ready.clear();
        self.left_alone.clear();
        (self.space_at, self.sweep_at) = (None, None);
    }

    /// How full the pool is, by what its servers say.
    pub(super) fn fullness(&self) -> Fullness {
        if self.segments.values().any(|segment| segment.space.is_full) {
            return Fullness::Full;
        }
        let ready = self.servers.iter().filter(|server| server.is_ready());
        let (free, all) = ready.fold((0u64, 0u64), |(free, all), server| {
            (free.saturating_add(server.free), all.saturating_add(server.capacity))
        });
        if free < all / 5 { Fullness::Short } else { Fullness::Roomy }
    }

    pub(super) const fn space_next_due(&self) -> Option<Instant> {
        self.space_at
    }

    /// It is looked whether something is to be done.
    pub(super) fn space_due(&mut self, now: Instant) {
        if self.space_at.is_some_and(|at| at > now) {
            return;
        }
        self.space_at = Some(now + LOOK_EVERY);
        if self.sweep_at.is_none_or(|at| at <= now) {
            self.sweep_at = Some(now + SWEEP_EVERY);
            self.sweep_all();
        }
        let names: Vec<SegmentName> = self.segments.keys().copied().collect();
        for name in names {
            self.seal_idle(now, name);
            self.continue_space(now, name);
        }
        self.continue_compaction(now);
    }

    /// What of a segment's space can go on goes on.
    pub(super) fn continue_space(&mut self, now: Instant, name: SegmentName) {
        if !self.is_connected() {
            return;
        }
        self.continue_checkpoint(now, name);
        self.bury(name);
        self.delete_dead(name);
        self.erase(name);
        self.end_segment(name);
    }

    /// Open chunks that nobody writes to are sealed.
    fn seal_idle(&mut self, now: Instant, name: SegmentName) {
        let patience = if self.fullness() == Fullness::Roomy { IDLE } else { IDLE_SHORT };
        let Some(segment) =
            self.segments.get_mut(&name).filter(|segment| segment.standing == Standing::Owned)
        else {
            return;
        };
        let open = segment.chunks.iter().enumerate().filter(|(_, chunk)| chunk.is_open());
        // Chunks of a checkpoint are its own to seal.
        let open = open.filter(|(_, chunk)| chunk.kind == ChunkKind::Data && chunk.changes == 0);
        let ends: BTreeMap<usize, Units> = open.map(|(place, chunk)| (place, chunk.end)).collect();
        let before = std::mem::take(&mut segment.space.idle);
        let mut idle = Vec::new();
        for (place, end) in ends {
            let since = before.get(&place).filter(|(was, _)| *was == end).map_or(now, |(_, since)| *since);
            segment.space.idle.insert(place, (end, since));
            if now.since(since) >= patience {
                idle.push(place);
            }
        }
        for place in idle {
            self.close_chunk(now, name, place);
        }
    }

    /// Commits that chunks are dead of which nothing counts any more.
    fn bury(&mut self, name: SegmentName) {
        let repaired = self.repair.as_ref().map(super::repair::Repair::chunk);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if segment.is_committing || !segment.standing.may_bury() || segment.wants_adoption {
            return;
        }
        let is_emptied = segment.standing == Standing::Emptying;
        // G7: what was cut off is in the head, and in no record that would take it out of there again.
        let is_cut = self.cuts.is_under_way(name) && !is_planted(Bug::CutDies);
        let Some(revision) = segment.revision else { return };
        let orphans =
            self.checkpoints.get(&name).map(super::checkpoint::Checkpoint::chunks).unwrap_or_default();
        let is_orphan = |place: usize, chunk: &TierChunk| {
            let is_there = matches!(chunk.is, ChunkIs::Open | ChunkIs::Sealed { .. } | ChunkIs::Closing(_));
            chunk.kind == ChunkKind::Index
                && is_there
                && chunk.changes == 0
                && !orphans.contains(&place)
                && !segment.space.head_chunks.contains(&place)
        };
        let dead: Vec<usize> = (0..segment.chunks.len())
            .filter(|place| repaired != Some((name, *place)))
            .filter(|place| {
                let is_orphan = segment.chunks.get(*place).is_some_and(|chunk| is_orphan(*place, chunk));
                is_orphan
                    || (segment.is_garbage(*place) && !is_cut)
                    || (is_emptied && segment.is_there(*place))
            })
            .take(BATCH_MAX)
            .collect();
        if dead.is_empty() {
            return;
        }
        if is_planted(Bug::DeleteBeforeRecord) {
            self.delete_all(name, &dead);
        }
        let changes = self.dead_records(name, &dead);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = true;
        segment.space.committing = dead;
        let keep = vec![(self.config.keys.key(Name::Segment(name)), Expect::At(revision))];
        self.commit_all(changes, keep, Then::Buried(name));
    }

    /// What the store is to have of chunks that are dead: each key, what it is compared with, and its value.
    pub(super) fn dead_records(
        &self,
        name: SegmentName,
        places: &[usize],
    ) -> Vec<(Key, Expect, Option<MetadataValue>)> {
        let Some(segment) = self.segments.get(&name) else { return Vec::new() };
        let records = places.iter().filter_map(|place| {
            let chunk = segment.chunks.get(*place)?;
            let key = self.config.keys.key(Name::Chunk(ChunkName::new(name, chunk.number)));
            let record = self.dead_record(chunk)?;
            Some((key, Expect::At(chunk.revision), Some(MetadataValue::Chunk(record))))
        });
        records.collect()
    }

    /// The store calls chunks dead, or never will.
    pub(super) fn buried(&mut self, now: Instant, name: SegmentName, revision: Option<Revision>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        let places = std::mem::take(&mut segment.space.committing);
        match revision {
            Some(revision) => self.note_dead(name, &places, revision),
            None => self.lose_segment(name),
        }
        self.commit_over(now, name);
    }

    /// The store says something else than this tier: somebody else has the segment.
    pub(super) fn lose_segment(&mut self, name: SegmentName) {
        self.checkpoints.remove(&name);
        self.segment_robbed(self.now, name);
    }

    /// From now on nobody needs these.
    pub(super) fn note_dead(&mut self, name: SegmentName, places: &[usize], revision: Revision) {
        for place in places {
            retire_chunk(&mut self.ports, (name, *place));
            self.closing.remove(&(name, *place));
            self.end_repair_of((name, *place));
            let Some(chunk) = self.segments.get_mut(&name).and_then(|segment| segment.chunks.get_mut(*place))
            else {
                continue;
            };
            chunk.is = ChunkIs::Dead(Dead::default());
            chunk.revision = revision;
            self.counts.chunks_dead += 1;
        }
        self.delete_dead(name);
    }

    /// Asks those that have something of chunks that are dead to delete it.
    fn delete_dead(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get(&name) else { return };
        let unasked = |chunk: &TierChunk| matches!(&chunk.is, ChunkIs::Dead(dead) if !dead.is_asked);
        let places =
            segment.chunks.iter().enumerate().filter(|(_, chunk)| unasked(chunk)).map(|(place, _)| place);
        let places: Vec<usize> = places.collect();
        if segment.standing.may_bury() {
            self.delete_all(name, &places);
        }
    }

    fn delete_all(&mut self, name: SegmentName, places: &[usize]) {
        for place in places {
            let Some(segment) = self.segments.get_mut(&name) else { return };
            let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get_mut(*place)) else {
                return;
            };
            let of = ChunkName::new(name, chunk.number);
            let is_ready = |server: &usize| self.servers.get(*server).is_some_and(ServerCore::is_ready);
            let there: Vec<usize> =
                chunk.members.iter().chain(&chunk.strays).copied().filter(is_ready).collect();
            if let ChunkIs::Dead(dead) = &mut chunk.is {
                let tries = dead.tries;
                *dead = Dead { asked: there.clone(), is_asked: true, is_left: false, tries };
            }
            for server in there {
                let errand = Errand { segment: name, place: *place, attempt: 0, is_repair: false };
                self.call(
                    server,
                    CallFor::DeleteDead(errand, of.chunk),
                    Request::Delete { chunk: of, epoch },
                    &[],
                );
            }
        }
    }

    /// A server has deleted what is dead, or has not. One that is there is asked again; others are swept when they return (G4).
    pub(super) fn dead_deleted(
        &mut self,
        now: Instant,
        (errand, chunk): (Errand, ChunkId),
        server: usize,
        outcome: &Outcome,
    ) {
        let is_there = self.servers.get(server).is_some_and(ServerCore::is_ready);
        let Some(segment) = self.segments.get_mut(&errand.segment) else { return };
        let Some(of) = segment.chunks.get_mut(errand.place).filter(|of| of.number == chunk) else { return };
        let ChunkIs::Dead(dead) = &mut of.is else { return };
        if let Some(known) = outcome.stale() {
            return self.segment_stale(now, errand.segment, Some(known));
        }
        let is_deleted = matches!(outcome, Outcome::Answered(Answer::Good(Reply::Delete)));
        dead.is_left |= !is_deleted && is_there;
        dead.asked.retain(|asked| *asked != server);
        if !dead.asked.is_empty() {
            return;
        }
        // One that never does is swept as well, every ten minutes, and does not keep the key until then.
        if dead.is_left && dead.tries < DELETES_MAX {
            (dead.is_asked, dead.tries) = (false, dead.tries + 1);
            self.space_at = Some(self.space_at.map_or(now + LOOK_EVERY, |at| at.min(now + LOOK_EVERY)));
        } else {
            self.erase(errand.segment);
        }
    }

    /// Takes the keys of chunks out of the store that everybody who is there has deleted.
    fn erase(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if segment.is_committing || !segment.standing.may_bury() || segment.wants_adoption {
            return;
        }
        let Some(revision) = segment.revision else { return };
        let is_done = |chunk: &TierChunk| matches!(&chunk.is, ChunkIs::Dead(dead) if dead.is_asked && dead.asked.is_empty());
        let done =
            segment.chunks.iter().enumerate().filter(|(_, chunk)| is_done(chunk)).map(|(place, _)| place);
        let done: Vec<usize> = done.take(BATCH_MAX).collect();
        if done.is_empty() {
            return;
        }
        let keys = done.iter().filter_map(|place| segment.chunks.get(*place)).map(|chunk| {
            let key = self.config.keys.key(Name::Chunk(ChunkName::new(name, chunk.number)));
            (key, Expect::At(chunk.revision), None)
        });
        let changes = keys.collect();
        segment.is_committing = true;
        segment.space.committing = done;
        let keep = vec![(self.config.keys.key(Name::Segment(name)), Expect::At(revision))];
        self.commit_all(changes, keep, Then::Erased(name));
    }

    /// The store has nothing of chunks any more, or never will have less.
    pub(super) fn erased(&mut self, now: Instant, name: SegmentName, is_done: bool) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        let places = std::mem::take(&mut segment.space.committing);
        if is_done {
            for place in places {
                let Some(chunk) = segment.chunks.get_mut(place) else { continue };
                chunk.is = ChunkIs::Gone;
                self.counts.chunks_deleted += 1;
            }
        } else {
            self.lose_segment(name);
        }
        self.commit_over(now, name);
    }

    /// What an earlier life has left of a segment on servers, and nobody names, goes.
    pub(super) fn sweep_soon(&mut self, now: Instant, name: SegmentName) {
        self.sweep_again(now);
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.space.sweep_round = self.sweep_round;
        }
    }

    /// What servers told before was of other segments, or of volumes that were there.
    pub(super) fn sweep_again(&mut self, now: Instant) {
        self.sweep_round += 1;
        self.sweep_at = self.sweep_at.map(|at| at.min(now + LOOK_EVERY));
        self.space_at.get_or_insert(now);
    }

    /// Nobody who is named gives what a segment that is taken needs: somebody else may have it (R5).
    pub(super) fn sweep_for_strays(&mut self, now: Instant) {
        self.sweep_at = self.sweep_at.map(|at| at.min(now + SWEEP_STUCK));
        self.space_at.get_or_insert(now);
    }

    /// Every server that is there is asked what it has.
    fn sweep_all(&mut self) {
        for server in 0..self.servers.len() {
            self.sweep(server);
        }
    }

    /// A server is asked what it has of the segments that this tier owns: strays go (G4).
    pub(super) fn sweep(&mut self, server: usize) {
        // Whoever has no segment finds what is left of volumes that are gone.
        let is_open = self.is_listed && self.trouble().is_none();
        let is_ready = self.servers.get(server).is_some_and(ServerCore::is_ready);
        if !is_open || !is_ready || is_planted(Bug::DeadForgotten) {
            return;
        }
        let round = self.sweep_round;
        let of = self.servers.get_mut(server).filter(|server| server.sweep.asked.is_none());
        if let Some(of) = of {
            of.sweep.asked = Some(round);
            self.ask_chunks((server, round), ChunkName::default());
        }
    }

    fn ask_chunks(&mut self, (server, round): (usize, u64), after: ChunkName) {
        let request = Request::Chunks { after, is_of_segment: false, most: LOOK_ENTRIES_MAX };
        self.look(server, LookFor::Sweep(round), request);
    }

    /// Servers that have not told what they have of all segments are asked.
    pub(super) fn ask_untold(&mut self) {
        let round = Some(self.sweep_round);
        let owes = |server: &ServerCore| server.sweep.done < round && !server.sweep.is_silent();
        let owing = self.servers.iter().enumerate().filter(|(_, server)| server.is_ready() && owes(server));
        for place in owing.map(|(place, _)| place).collect::<Vec<_>>() {
            self.sweep(place);
        }
    }

    /// Whether all that are there have told what they have of a segment: nothing of it is copied elsewhere before that which a server
    /// has already (R4), whatever others have to tell of segments that were taken later. Who does not say is not waited for.
    pub(super) fn have_told(&self, name: SegmentName) -> bool {
        let Some(segment) = self.segments.get(&name) else { return false };
        let is_of_all = is_planted(Bug::SweepOfAll);
        let round = Some(if is_of_all { self.sweep_round } else { segment.space.sweep_round });
        let has_told = |server: &ServerCore| server.sweep.done >= round || server.sweep.is_silent();
        self.servers.iter().filter(|server| server.is_ready()).all(has_told) || is_planted(Bug::DeadForgotten)
    }

    /// A server has told all that it has, or has not.
    fn end_sweep(&mut self, (place, round): (usize, u64), has_told: bool) {
        let latest = self.sweep_round;
        let Some(server) = self.servers.get_mut(place) else { return };
        let sweep = &mut server.sweep;
        sweep.asked.take_if(|asked| *asked == round);
        if has_told {
            (sweep.done, sweep.failures) = (sweep.done.max(Some(round)), 0);
        } else {
            sweep.failures = sweep.failures.saturating_add(1);
        }
        if has_told && round < latest {
            // Segments were taken meanwhile.
            self.sweep(place);
        }
        // What it has told may be all that a copy has waited for.
        self.repair_at = Some(self.now);
    }

    /// A server tells what it has. What no record names is nobody's: its segment is this tier's, and it is not making it.
    pub(super) fn replicas_told(&mut self, _: Instant, of: (usize, u64), looked: Looked<'_>) {
        let server = of.0;
        let Looked::Brought { bytes, word, .. } = looked else { return self.end_sweep(of, false) };
        let Ok(lines) = decode_chunks(bytes) else { return self.end_sweep(of, false) };
        let mut last = None;
        for line in lines {
            last = Some(line.chunk);
            let name = line.chunk.segment_name();
            if !self.volumes.contains_key(&name.volume) {
                self.stray_of_unknown(server, line.chunk);
                continue;
            }
            self.note_returned(name, line.chunk.chunk, server);
            let Some(epoch) = self.sweeps(name, line.chunk.chunk, line.epoch) else { continue };
            if self.was_never_given(name, &line) {
                self.found_behind(name);
                continue;
            }
            let (is_judged, is_sealed) = (line.end > RECORDS_START, line.state == ReplicaState::Sealed);
            if !is_judged || self.is_dead(line.chunk) || is_planted(Bug::StoreBelieved) {
                self.counts.strays_deleted += 1;
                self.delete(server, line.chunk, epoch);
            } else {
                let stray = Stray { chunk: line.chunk, end: line.end, is_sealed };
                self.ask_stray(server, stray, epoch, RECORDS_START);
            }
        }
        match last.filter(|_| word == 1) {
            Some(last) => self.ask_chunks(of, last),
            None => self.end_sweep(of, true),
        }
    }

    /// Whether the store calls a chunk dead.
    fn is_dead(&self, chunk: ChunkName) -> bool {
        let mut chunks = self.segments.get(&chunk.segment_name()).into_iter().flat_map(|of| &of.chunks);
        chunks.any(|of| of.number == chunk.chunk && matches!(of.is, ChunkIs::Dead(_)))
    }

    /// What a replica has that nobody names. If it is sealed, and that is later than all that the store led to when the segment was taken, then
    /// the store has forgotten what it was told, and what it says of the segment is of another time: nothing more goes, and nothing is answered,
    /// before somebody has looked. One that was never sealed is kept, until what the store leads to is later.
    pub(super) fn stray_told(&mut self, server: usize, stray: Stray, looked: Looked<'_>) {
        let Stray { chunk, end, is_sealed } = stray;
        let name = chunk.segment_name();
        let Looked::Brought { bytes, word, .. } = looked else { return };
        let Ok(entries) = decode_entries(bytes) else { return };
        let segment = self.segments.get(&name).filter(|segment| segment.standing == Standing::Owned);
        let Some((epoch, segment)) = segment.and_then(|of| Some((of.epoch()?, of))) else { return };
        let (found, given) = (segment.found_last, segment.last_given().unwrap_or_default());
        let is_unknown = |entry: &Entry| {
            let is_data = matches!(entry.kind, RecordKind::Write | RecordKind::Trim | RecordKind::Move);
            // Of this epoch nothing is later than what this owner has given.
            let most = if entry.sequence.epoch() == Some(epoch) { given } else { found };
            is_data && entry.sequence > most
        };
        let is_unknown = { entries }.any(|entry| is_unknown(&entry));
        let next = Units(word);
        if is_unknown && is_sealed {
            self.found_behind(name);
        } else if is_unknown {
            // A member that was lost before its chunk was sealed may have what was never acknowledged, and is then the only one that has.
            self.counts.strays_kept += 1;
        } else if next < end {
            self.ask_stray(server, stray, epoch, next);
        } else {
            self.counts.strays_deleted += 1;
            self.delete(server, chunk, epoch);
        }
    }

    fn ask_stray(&mut self, server: usize, stray: Stray, epoch: Epoch, from: Units) {
        let (chunk, to) = (stray.chunk, stray.end);
        let request = Request::List { chunk, epoch, from, to, most: LOOK_ENTRIES_MAX };
        self.look(server, LookFor::Stray(stray), request);
    }

    /// A server has something of a sealed chunk that does not name it: it is taken in, or discarded when all members are there (R4).
    fn note_returned(&mut self, name: SegmentName, number: ChunkId, server: usize) {
        let Some(segment) = self.segments.get_mut(&name).filter(|segment| segment.standing.is_held()) else {
            return;
        };
        let chunks = segment.chunks.iter_mut().enumerate();
        let mut sealed = chunks.filter(|(_, chunk)| matches!(chunk.is, ChunkIs::Sealed { .. }));
        let Some((place, chunk)) = sealed.find(|(_, chunk)| chunk.number == number) else { return };
        if !chunk.members.contains(&server) && !chunk.strays.contains(&server) {
            chunk.strays.push(server);
            retire_chunk(&mut self.ports, (name, place));
            self.repair_at.get_or_insert(self.now);
        }
    }

    /// Whether a chunk that a server has is to go: its segment is owned here, nobody names it, and nobody is making it.
    fn sweeps(&self, name: SegmentName, number: ChunkId, created: Epoch) -> Option<Epoch> {
        let segment = self.segments.get(&name).filter(|segment| segment.standing == Standing::Owned)?;
        let epoch = segment.epoch()?;
        let is_made = segment.openings.values().any(|opening| opening.is_of(number));
        // Who was away when a dead one was deleted has it still, and its key goes without waiting for them.
        let counts = |chunk: &TierChunk| chunk.number == number && !matches!(chunk.is, ChunkIs::Dead(_));
        let is_named = segment.chunks_there().any(counts);
        (!is_made && !is_named && created <= epoch).then_some(epoch)
    }

    /// Several keys are changed at once, all compared: the first one tells whether it was this commit.
    pub(super) fn commit_all(
        &mut self,
        changes: Vec<(Key, Expect, Option<MetadataValue>)>,
        keep: Vec<(Key, Expect)>,
        then: Then,
    ) {
        let mut compare = Vec::with_capacity(changes.len() + keep.len());
        let mut change = Vec::with_capacity(changes.len());
        for (key, expect, value) in changes {
            compare.push((key.clone(), expect));
            change.push(match value.map(|value| value.encode()) {
                None => Change::Delete { key },
                Some(Ok(value)) => Change::Put { key, value, session: None },
                Some(Err(_)) => return self.fail(Trouble::Value),
            });
        }
        compare.extend(keep);
        self.commit_changes(compare, change, then);
    }
}
