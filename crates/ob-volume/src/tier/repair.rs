//! Replicas that are missing: sealed chunks get them anew, those with the fewest first, at a bounded rate.
//!
//! ```text
//!   a server that is not named and may have something: Stopping ─ its end ─▶ Copying ─ as long as the record says ─▶ Sealing ─▶ Committing
//!                                                        │ it does not fit                   ▲                 └▶ Checking ─┘     named
//!   one that has nothing:        Checking ─▶ Deleting ◀──┘──▶ Creating ──────────────────────┘
//! ```
//!
//! A replica that returns is cut or filled to the record exactly, sealed with its CRC, and looked at record by record as it lies on the device,
//! before it is named (C6). It goes, to be made anew, when the same was done with all that members have (R7); one that is broken and may not
//! go yet is set aside, and made anew where it is only if nobody else has room. When all members are there, what others have is discarded (R4).

use std::time::Duration;

use ob_core::{ChunkName, Instant, Revision, SegmentName, Units};
use ob_format::volume::RECORDS_START;

use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::retire_chunk;
use super::seal::Copied;
use super::segments::Standing;
use super::servers::{AVOIDED, CallFor, Errand, Outcome, ServerCore};
use super::slots::ChunkPlace;
use super::store::Then;
use super::{TierAction, TierNews};
use crate::metadata::{Expect, MetadataValue, Name};
use crate::wire::{Answer, CreateState, Refusal, Reply, Request};

/// How often it is looked for chunks that miss a replica.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a copy may fail before its replica is given up.
const FAILURES_MAX: u8 = 3;
/// How long a chunk is left alone of which a replica could not be made: others come first.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// A replica that is made anew.
#[derive(Debug)]
pub(super) struct Repair {
    chunk: ChunkPlace,
    attempt: u64,
    target: usize,
    phase: Phase,
    /// How far the target is.
    at: Units,
    /// Who is asked next for what it lacks, counted on; and who was asked last.
    source: usize,
    giver: usize,
    failures: u8,
    /// Whether what the target had was deleted already, because it did not fit.
    is_anew: bool,
    /// Whether what the target has is of this repair alone.
    is_own: bool,
    /// Members that stay beside it: the others are lost.
    kept: Vec<usize>,
    check: Check,
}

/// Whose records are looked at, one behind the other.
#[derive(Clone, Debug)]
struct Check {
    server: usize,
    /// Which is the next.
    at: Units,
    /// Members all of whose records are whole.
    sound: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Stopping,
    Deleting,
    Creating,
    Copying,
    /// The next copy is due then.
    Resting {
        until: Instant,
    },
    /// Records are looked at: those of the target before it is named, or those of members before it goes.
    Checking,
    /// The next of them are due then.
    CheckResting {
        until: Instant,
    },
    Sealing,
    Agreed,
    Committing,
}

impl Repair {
    /// Of which chunk.
    pub(super) const fn chunk(&self) -> ChunkPlace {
        self.chunk
    }

    /// How much of it the target has.
    pub(super) const fn copied(&self) -> Units {
        Units(self.at.0.saturating_sub(RECORDS_START.0))
    }
}

/// A chunk that misses a replica, and where that is to be.
struct Wanting {
    chunk: ChunkPlace,
    target: usize,
    is_stray: bool,
}

/// How long it is waited after so much was copied, or looked at: at most so much a second.
fn pause_of(at: Units, before: Units, rate: u64) -> Duration {
    let bytes = u64::from(at.0.saturating_sub(before.0)) * u64::from(Units::LEN);
    Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64)
}

impl TierCore {
    pub(super) fn repair_next_due(&self) -> Option<Instant> {
        match &self.repair {
            Some(Repair { phase: Phase::Resting { until } | Phase::CheckResting { until }, .. }) => {
                Some(*until)
            }
            Some(_) => None,
            None => self.repair_at,
        }
    }

    pub(super) fn repair_due(&mut self, now: Instant) {
        if self.repair_next_due().is_none_or(|due| due > now) {
            return;
        }
        match &self.repair {
            Some(Repair { phase: Phase::CheckResting { .. }, .. }) => return self.check_next(now),
            Some(_) => return self.copy_next(now),
            None => {}
        }
        self.discard_strays();
        self.repairs_left.retain(|_, until| *until > now);
        self.ask_untold();
        match self.most_wanting(now) {
            Some(wanting) => self.begin_repair(&wanting),
            None => {
                self.repair_at = self.is_any_wanting().then(|| now + LOOK_EVERY);
                if self.rebuild_left(now) == 0 {
                    self.rebuilding.end();
                }
            }
        }
    }

    /// Who was at a place is at another. A replica that is being made there is made anew, unless the store has it already.
    pub(super) fn rename_in_repair(&mut self, now: Instant, from: usize, to: usize) {
        let Some(repair) = &mut self.repair else { return };
        let is_its = |server: usize| server == from || server == to;
        let is_asked = is_its(repair.target) || is_its(repair.check.server);
        repair.check.sound.retain(|member| !is_its(*member));
        if repair.phase != Phase::Committing && is_asked {
            self.repair = None;
            self.repair_at = Some(now);
            return;
        }
        for place in repair.kept.iter_mut().chain([&mut repair.target]).filter(|place| **place == from) {
            *place = to;
        }
    }

    /// Nobody needs replicas of a chunk any more.
    pub(super) fn end_repair_of(&mut self, chunk: ChunkPlace) {
        self.forget_mends_of(|of| of == chunk);
        if self.repair.take_if(|repair| repair.chunk == chunk).is_some() {
            self.repair_at = Some(self.now);
        }
    }

    /// Nothing is known of a segment any more: places of its chunks are others' by now.
    pub(super) fn drop_repair_of(&mut self, name: SegmentName) {
        self.forget_mends_of(|of| of.0 == name);
        self.repairs_left.retain(|chunk, _| chunk.0 != name);
        if self.repair.take_if(|repair| repair.chunk.0 == name).is_some() {
            self.repair_at = Some(self.now);
        }
    }

    /// A commit that was waited for is over.
    pub(super) fn continue_repair(&mut self, now: Instant) {
        if self.repair.as_ref().is_some_and(|repair| repair.phase == Phase::Agreed) {
            self.commit_repair(now);
        }
    }

    pub(super) fn replicas(&self, name: SegmentName) -> usize {
        self.volumes.get(&name.volume).map_or(0, |served| usize::from(served.volume.replicas))
    }

    pub(super) fn sealed_chunks(&self) -> impl Iterator<Item = (ChunkPlace, &TierChunk)> {
        let owned = self.segments.iter().filter(|(_, segment)| segment.standing == Standing::Owned);
        let owned = owned.filter(|(name, _)| !self.is_handed_over(**name));
        let chunks = owned.flat_map(|(name, segment)| {
            segment.chunks.iter().enumerate().map(|(place, chunk)| ((*name, place), chunk))
        });
        // One without records is nothing that could be lost.
        chunks.filter(|(_, chunk)| matches!(chunk.is, ChunkIs::Sealed { .. }) && chunk.length > RECORDS_START)
    }

    fn is_any_wanting(&self) -> bool {
        self.sealed_chunks()
            .any(|((name, _), chunk)| self.is_degraded(name, chunk) || !chunk.strays.is_empty())
    }

    /// Whether fewer members of a sealed chunk are there than should be.
    pub(super) fn is_degraded(&self, name: SegmentName, chunk: &TierChunk) -> bool {
        chunk.members.iter().filter(|member| self.is_ready(**member)).count() < self.replicas(name)
    }

    /// Whether a server has been away for so long that what it has is made anew.
    pub(super) fn is_lost(&self, now: Instant, server: usize) -> bool {
        let away = self.servers.get(server).and_then(|server| server.away_since);
        away.is_some_and(|since| now.since(since) >= self.config.lost_after)
    }

    /// Members that are not lost.
    pub(super) fn kept_members(&self, now: Instant, chunk: &TierChunk) -> Vec<usize> {
        chunk.members.iter().copied().filter(|member| !self.is_lost(now, *member)).collect()
    }

    /// The chunk with the fewest replicas, of these the longest, for which there is somebody.
    fn most_wanting(&self, now: Instant) -> Option<Wanting> {
        let found = self.sealed_chunks().filter_map(|(place, chunk)| {
            let kept = self.kept_members(now, chunk).len();
            if kept >= self.replicas(place.0) || self.repairs_left.contains_key(&place) {
                return None;
            }
            let (target, is_stray) = self.target_for(now, place.0, chunk)?;
            // What nobody names may be all that is left (R4); and what somebody has already is not copied elsewhere.
            if !(is_stray || self.has_ready_member(chunk) && self.have_told(place.0)) {
                return None;
            }
            let rank = (kept, u32::MAX - chunk.length.0);
            Some((rank, Wanting { chunk: place, target, is_stray }))
        });
        found.min_by_key(|(rank, _)| *rank).map(|(_, wanting)| wanting)
    }

    fn is_ready(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(ServerCore::is_ready)
    }

    fn has_ready_member(&self, chunk: &TierChunk) -> bool {
        chunk.members.iter().any(|member| self.is_ready(*member))
    }

    /// Who is to have a replica: one that has something of it already; or another, when those will not come back.
    fn target_for(&self, now: Instant, name: SegmentName, chunk: &TierChunk) -> Option<(usize, bool)> {
        let can = |server: &usize| {
            self.servers.get(*server).is_some_and(|server| server.is_ready() && !server.has_failed(now))
        };
        let is_whole = |stray: &&usize| !chunk.rotten.contains(*stray);
        if let Some(stray) = chunk.strays.iter().filter(is_whole).copied().find(can) {
            return Some((stray, true));
        }
        // Who is away may come back with it. Who is there and fails, again and again, is not waited for.
        let may_give = |stray: &usize| {
            let fails = self.servers.get(*stray).is_some_and(|server| server.is_ready() && server.fails());
            !self.is_lost(now, *stray) && !fails
        };
        if chunk.strays.iter().filter(is_whole).any(may_give) {
            return None;
        }
        if let Some(place) = self.place_for(now, chunk) {
            return Some((place, false));
        }
        // One that is broken is made anew where it is, when there is nowhere else (R7).
        let broken = chunk.strays.iter().filter(|stray| !is_whole(stray)).copied().find(can);
        let may_go = self.are_all_there(name, chunk) && !is_planted(Bug::BrokenLeft);
        broken.filter(|_| may_go).map(|stray| (stray, true))
    }

    /// Whether all that are named are there, and are one less than there should be at most.
    fn are_all_there(&self, name: SegmentName, chunk: &TierChunk) -> bool {
        let are_enough = !chunk.members.is_empty() && chunk.members.len() + 1 >= self.replicas(name);
        are_enough && chunk.members.iter().all(|member| self.is_ready(*member))
    }

    /// A server that has nothing of a chunk, and room for it.
    pub(super) fn place_for(&self, now: Instant, chunk: &TierChunk) -> Option<usize> {
        let can = |place: &usize| {
            self.servers.get(*place).is_some_and(|server| {
                let has_room = server.free >= u64::from(chunk.length.0) * u64::from(Units::LEN);
                server.is_ready() && !server.has_failed(now) && !server.is_full(now) && has_room
            })
        };
        let has_none = |place: &usize| !chunk.members.contains(place) && !chunk.strays.contains(place);
        let domain = |place: usize| self.servers.get(place).and_then(|server| server.domain);
        let is_apart = |place: &usize| chunk.members.iter().all(|member| domain(*member) != domain(*place));
        let free = |place: &usize| self.servers.get(*place).map_or(0, |server| server.free);
        let others = (0..self.servers.len()).filter(|place| has_none(place) && can(place));
        others.max_by_key(|place| (is_apart(place), free(place)))
    }

    /// What is not named goes where all members are there and sealed (R4).
    fn discard_strays(&mut self) {
        let mut discarded = Vec::new();
        for ((name, place), chunk) in self.sealed_chunks() {
            // A stray may have what members have lost.
            if self.is_mended((name, place)) {
                continue;
            }
            let is_whole = chunk.members.len() >= self.replicas(name)
                && chunk.members.iter().all(|member| self.is_ready(*member));
            let is_whole = is_whole || is_planted(Bug::StrayDiscarded);
            if is_whole {
                let there = chunk.strays.iter().copied().filter(|stray| self.is_ready(*stray));
                discarded.extend(there.map(|stray| (name, place, stray)));
            }
        }
        for (name, place, stray) in discarded {
            let Some(segment) = self.segments.get_mut(&name) else { continue };
            let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get_mut(place)) else {
                continue;
            };
            chunk.strays.retain(|other| *other != stray);
            chunk.rotten.retain(|other| *other != stray);
            let of = ChunkName::new(name, chunk.number);
            retire_chunk(&mut self.ports, (name, place));
            self.delete(stray, of, epoch);
        }
    }

    fn begin_repair(&mut self, wanting: &Wanting) {
        self.last_attempt += 1;
        let (chunk, target) = (wanting.chunk, wanting.target);
        let phase = if wanting.is_stray { Phase::Stopping } else { Phase::Creating };
        let attempt = self.last_attempt;
        self.repair = Some(Repair {
            chunk,
            attempt,
            target,
            phase,
            at: RECORDS_START,
            source: 0,
            giver: target,
            failures: 0,
            is_anew: false,
            is_own: false,
            kept: Vec::new(),
            check: Check { server: target, at: RECORDS_START, sound: Vec::new() },
        });
        if !wanting.is_stray {
            return self.ask_create();
        }
        self.ask_stop();
    }

    /// What a request of the repair names.
    fn named(&self) -> Option<(Errand, usize, ChunkName, ob_core::Epoch, &TierChunk)> {
        let repair = self.repair.as_ref()?;
        let (name, place) = repair.chunk;
        let segment = self.segments.get(&name)?;
        let chunk = segment.chunks.get(place)?;
        let errand = Errand { segment: name, place, attempt: repair.attempt, is_repair: true };
        Some((errand, repair.target, ChunkName::new(name, chunk.number), segment.epoch()?, chunk))
    }

    fn ask_stop(&mut self) {
        let Some((errand, target, chunk, epoch, _)) = self.named() else { return };
        self.call(target, CallFor::Stop(errand), Request::Stop { chunk, epoch }, &[]);
    }

    fn ask_create(&mut self) {
        let Some((errand, target, name, epoch, chunk)) = self.named() else { return };
        let (length, chunk_kind) = (chunk.length, chunk.kind);
        let Some(volume) = self.volumes.get(&errand.segment.volume).map(|served| served.volume) else {
            return;
        };
        let request = Request::Create {
            chunk: name,
            epoch,
            length,
            block_len: volume.block_len,
            state: CreateState::Filling,
            kind: chunk_kind,
            may_use_reserve: false,
        };
        if let Some(repair) = &mut self.repair {
            (repair.phase, repair.at) = (Phase::Creating, RECORDS_START);
        }
        self.note_stray(errand, target);
        self.call(target, CallFor::CreateFilling(errand), request, &[]);
    }

    /// From now on a server may have something of the chunk.
    fn note_stray(&mut self, errand: Errand, target: usize) {
        let segment = self.segments.get_mut(&errand.segment);
        if let Some(chunk) = segment.and_then(|segment| segment.chunks.get_mut(errand.place))
            && !chunk.strays.contains(&target)
        {
            chunk.strays.push(target);
        }
    }

    /// The target has nothing of the chunk after all.
    fn forget_stray(&mut self, errand: Errand) {
        let Some(target) = self.repair_of(errand).map(|repair| repair.target) else { return };
        let segment = self.segments.get_mut(&errand.segment);
        if let Some(chunk) = segment.and_then(|segment| segment.chunks.get_mut(errand.place)) {
            chunk.strays.retain(|stray| *stray != target);
            chunk.rotten.retain(|stray| *stray != target);
        }
    }

    /// What the target has is broken, and may not go yet: others are made whole before it (R7).
    fn set_aside(&mut self, errand: Errand) {
        let target = self.repair_of(errand).map(|repair| repair.target);
        let Some(target) = target.filter(|_| !is_planted(Bug::BrokenWaitedFor)) else { return };
        let segment = self.segments.get_mut(&errand.segment);
        if let Some(chunk) = segment.and_then(|segment| segment.chunks.get_mut(errand.place))
            && !chunk.rotten.contains(&target)
        {
            chunk.rotten.push(target);
        }
    }

    fn repair_of(&mut self, errand: Errand) -> Option<&mut Repair> {
        self.repair.as_mut().filter(|repair| repair.attempt == errand.attempt)
    }

    /// It cannot go on; whoever wants a replica most is looked for anew, later.
    fn give_repair_up(&mut self, now: Instant, has_target_failed: bool) {
        let Some(repair) = self.repair.take() else { return };
        if has_target_failed && let Some(server) = self.servers.get_mut(repair.target) {
            server.fail(now);
        }
        // A server that comes changes that.
        self.repairs_left.insert(repair.chunk, now + LEFT_ALONE);
        self.repair_at = Some(now + LOOK_EVERY);
    }

    /// A server that was away tells what it has.
    pub(super) fn replica_stopped(&mut self, now: Instant, errand: Errand, outcome: &Outcome) {
        let Some(repair) = self.repair_of(errand) else { return };
        match outcome {
            Outcome::Answered(Answer::Good(Reply::Stop(end))) => {
                repair.at = end.end;
                if is_planted(Bug::ReturnUntruncated) {
                    repair.phase = Phase::Agreed;
                    return self.commit_repair(now);
                }
                self.copy_next(now);
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::NoChunk, .. }) => self.ask_create(),
            // It does something else just now.
            Outcome::Answered(Answer::Refused { refusal: Refusal::Busy, .. }) => {
                self.give_repair_up(now, false);
            }
            // It has something that it cannot read, or that is none of this chunk's.
            Outcome::Answered(_) if self.can_start_over() => self.start_over(now),
            Outcome::Answered(_) | Outcome::Failed => self.give_repair_up(now, true),
        }
    }

    /// Whether what the target has may go: once, and when all that are named are there, are one less than there should be at most, and none is
    /// known to lack a record.
    fn can_start_over(&self) -> bool {
        let Some((errand, .., chunk)) = self.named() else { return false };
        let of = (errand.segment, errand.place);
        let are_whole = self.are_all_there(of.0, chunk) && !self.is_mended(of);
        are_whole && self.repair.as_ref().is_some_and(|repair| !repair.is_anew)
    }

    /// It does not fit: what is there goes, and is made anew, if members have each record of it. What has rotted at all of them may be there.
    fn start_over(&mut self, now: Instant) {
        let (Some((.., chunk)), Some(repair)) = (self.named(), &self.repair) else { return };
        let unchecked = chunk.members.iter().copied().find(|member| !repair.check.sound.contains(member));
        if let Some(server) = unchecked.filter(|_| !is_planted(Bug::StartedUnchecked)) {
            return self.check_from(now, server);
        }
        if let Some(repair) = &mut self.repair {
            repair.is_anew = true;
        }
        self.delete_target();
    }

    /// What the target has goes.
    fn delete_target(&mut self) {
        let Some((errand, target, chunk, epoch, _)) = self.named() else { return };
        if let Some(repair) = &mut self.repair {
            repair.phase = Phase::Deleting;
        }
        self.call(target, CallFor::DeleteReplica(errand), Request::Delete { chunk, epoch }, &[]);
    }

    /// All records of a server are looked at.
    fn check_from(&mut self, now: Instant, server: usize) {
        if let Some(repair) = &mut self.repair {
            (repair.check.server, repair.check.at) = (server, RECORDS_START);
            self.check_next(now);
        }
    }

    /// The next records are looked at, or all were.
    fn check_next(&mut self, now: Instant) {
        let Some((errand, target, name, epoch, chunk)) = self.named() else {
            self.repair = None;
            return;
        };
        let length = chunk.length;
        let Some(repair) = &mut self.repair else { return };
        let Check { server, at, .. } = repair.check;
        repair.phase = Phase::Checking;
        if at < length {
            let request = Request::Check { chunk: name, epoch, offset: at };
            return self.call(server, CallFor::Check(errand), request, &[]);
        }
        if server == target {
            repair.phase = Phase::Agreed;
            return self.commit_repair(now);
        }
        repair.check.sound.push(server);
        // Meanwhile one may have gone, or have been found to lack something.
        if self.can_start_over() {
            self.start_over(now);
        } else {
            self.give_repair_up(now, false);
        }
    }

    /// A server has looked at records, or has not.
    pub(super) fn replica_checked(&mut self, now: Instant, errand: Errand, server: usize, outcome: &Outcome) {
        let rate = self.config.rebuild_rate;
        let Some(repair) = self.repair_of(errand) else { return };
        let (at, is_target) = (repair.check.at, server == repair.target);
        match outcome {
            Outcome::Answered(Answer::Good(Reply::Check { sound })) if *sound > at => {
                repair.check.at = *sound;
                let pause = pause_of(*sound, at, rate);
                repair.phase = Phase::CheckResting { until: now + pause };
                if pause.is_zero() {
                    self.check_next(now);
                }
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Damaged | Refusal::Medium, .. }) => {
                if is_target && self.can_start_over() {
                    return self.start_over(now);
                }
                if is_target {
                    self.set_aside(errand);
                } else {
                    self.note_rotten(now, (errand.segment, errand.place), server, at);
                }
                self.give_repair_up(now, false);
            }
            Outcome::Answered(_) | Outcome::Failed => self.give_repair_up(now, is_target),
        }
    }

    pub(super) fn replica_deleted(&mut self, now: Instant, errand: Errand, outcome: &Outcome) {
        if self.repair_of(errand).is_none() {
            return;
        }
        match outcome {
            Outcome::Answered(Answer::Good(Reply::Delete)) => {
                if let Some(repair) = &mut self.repair {
                    repair.failures = repair.failures.min(FAILURES_MAX - 1);
                }
                self.ask_create();
            }
            Outcome::Answered(_) | Outcome::Failed => self.give_repair_up(now, true),
        }
    }

    pub(super) fn replica_made(&mut self, now: Instant, errand: Errand, outcome: &Outcome) {
        if self.repair_of(errand).is_none() {
            return;
        }
        match outcome {
            Outcome::Answered(Answer::Good(Reply::Create { .. })) => {
                if let Some(repair) = &mut self.repair {
                    repair.is_own = true;
                }
                self.copy_next(now);
            }
            Outcome::Answered(Answer::Refused { refusal: Refusal::Full { free }, .. }) => {
                let target = self.repair.as_ref().and_then(|repair| self.servers.get_mut(repair.target));
                if let Some(server) = target {
                    (server.free, server.full_until) = (*free, Some(now + AVOIDED));
                }
                // It has nothing of it, and is not to be waited for.
                self.forget_stray(errand);
                self.give_repair_up(now, false);
            }
            Outcome::Answered(_) | Outcome::Failed => self.give_repair_up(now, true),
        }
    }

    /// The next units are copied, or there are no more.
    fn copy_next(&mut self, now: Instant) {
        let Some((errand, target, name, epoch, chunk)) = self.named() else {
            self.repair = None;
            return;
        };
        let length = chunk.length;
        // A place means one record for ever: what no member gives, others may (R5).
        let sources = chunk.members.iter().chain(&chunk.strays).copied();
        let sources: Vec<usize> =
            sources.filter(|source| *source != target && self.is_ready(*source)).collect();
        let Some(repair) = &mut self.repair else { return };
        if repair.at >= length {
            return self.ask_seal();
        }
        let Some(source) = sources.get(repair.source % sources.len().max(1)).copied() else {
            return self.give_repair_up(now, false);
        };
        (repair.phase, repair.giver) = (Phase::Copying, source);
        let at = repair.at;
        self.copy(errand, (source, target), name, epoch, at, length);
    }

    pub(super) fn replica_filled(&mut self, now: Instant, errand: Errand, copied: Copied) {
        let rate = self.config.rebuild_rate;
        let Some(repair) = self.repair_of(errand) else { return };
        let (before, giver) = (repair.at, repair.giver);
        if let Copied::To(durable) = copied {
            self.rebuilding.note(now, durable.0.saturating_sub(before.0));
        }
        let Some(repair) = self.repair_of(errand) else { return };
        match copied {
            Copied::To(durable) if durable > before => {
                repair.at = durable;
                if is_planted(Bug::JoinedEarly) {
                    repair.phase = Phase::Agreed;
                    return self.commit_repair(now);
                }
            }
            Copied::To(_) | Copied::NotTaken => repair.failures += 1,
            Copied::NotGiven { is_bad } => {
                repair.failures += 1;
                repair.source += 1;
                if is_bad {
                    self.note_rotten(now, (errand.segment, errand.place), giver, before);
                }
            }
        }
        let is_taken = !matches!(copied, Copied::NotGiven { .. });
        let Some(repair) = self.repair_of(errand) else { return };
        if repair.failures > FAILURES_MAX && is_taken && self.can_start_over() {
            // Its end is sealed already, and is another.
            return self.start_over(now);
        }
        let Some(repair) = self.repair_of(errand) else { return };
        if repair.failures > FAILURES_MAX {
            return self.give_repair_up(now, is_taken);
        }
        let pause = pause_of(repair.at, before, rate);
        repair.phase = Phase::Resting { until: now + pause };
        if pause.is_zero() {
            self.copy_next(now);
        }
    }

    fn ask_seal(&mut self) {
        let Some((errand, target, name, epoch, chunk)) = self.named() else { return };
        let ChunkIs::Sealed { content_crc } = chunk.is else { return };
        let request = Request::Seal { chunk: name, epoch, length: chunk.length, content_crc };
        if let Some(repair) = &mut self.repair {
            repair.phase = Phase::Sealing;
        }
        self.call(target, CallFor::Seal(errand), request, &[]);
    }

    pub(super) fn replica_sealed(&mut self, now: Instant, errand: Errand, outcome: &Outcome) {
        let Some(repair) = self.repair_of(errand) else { return };
        match outcome {
            Outcome::Answered(Answer::Good(Reply::Seal)) => {
                repair.phase = Phase::Agreed;
                let (target, is_own) = (repair.target, repair.is_own);
                if let Some(server) = self.servers.get_mut(target) {
                    server.do_well();
                }
                // What was copied just now was looked at on its way (R1). A server that has sealed it before compares numbers.
                if is_own || is_planted(Bug::ReturnUnchecked) {
                    self.commit_repair(now);
                } else {
                    self.check_from(now, target);
                }
            }
            Outcome::Answered(_) if repair.failures <= FAILURES_MAX => {
                // Once for each of these: what was copied may have been cut, or be another's end.
                repair.failures += 2;
                let is_own = repair.is_own;
                // What it had before may be the last good one (R4).
                if is_own {
                    self.delete_target();
                } else if self.can_start_over() {
                    self.start_over(now);
                } else {
                    self.give_repair_up(now, true);
                }
            }
            Outcome::Answered(_) | Outcome::Failed => self.give_repair_up(now, true),
        }
    }

    fn commit_repair(&mut self, now: Instant) {
        let Some(repair) = &self.repair else { return };
        let ((name, place), target) = (repair.chunk, repair.target);
        let Some(segment) = self.segments.get(&name) else { return self.give_repair_up(now, false) };
        let Some(revision) = segment.revision else { return self.give_repair_up(now, false) };
        if !segment.standing.is_held() && segment.standing != Standing::Committing {
            return self.give_repair_up(now, false);
        }
        if segment.is_committing || segment.standing != Standing::Owned {
            return;
        }
        let Some(chunk) = segment.chunks.get(place) else { return self.give_repair_up(now, false) };
        let kept = self.kept_members(now, chunk);
        let members: Vec<usize> = kept.iter().copied().chain([target]).collect();
        let Some(record) = self.sealed_record(chunk, &members) else {
            return self.give_repair_up(now, false);
        };
        let (expect, number) = (Expect::At(chunk.revision), chunk.number);
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.is_committing = true;
        }
        if let Some(repair) = &mut self.repair {
            (repair.phase, repair.kept) = (Phase::Committing, kept);
        }
        let others = vec![(self.config.keys.key(Name::Segment(name)), Expect::At(revision))];
        let value = MetadataValue::Chunk(record).encode();
        let key = Name::Chunk(ChunkName::new(name, number));
        self.commit(key, expect, others, value, Then::Repaired(name, place), None);
    }

    /// The store names the replica, or never will.
    pub(super) fn repair_committed(
        &mut self,
        now: Instant,
        name: SegmentName,
        place: usize,
        revision: Option<Revision>,
    ) {
        let repair = self.repair.take();
        self.repair_at = Some(now);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        match (revision, segment.chunks.get_mut(place), repair) {
            (Some(revision), Some(chunk), Some(repair)) => {
                chunk.revision = revision;
                chunk.strays.retain(|stray| *stray != repair.target);
                chunk.rotten.retain(|stray| *stray != repair.target);
                // What those have who were lost is nobody's any more; should they return, it goes.
                let lost = chunk.members.iter().copied().filter(|member| !repair.kept.contains(member));
                chunk.strays.extend(lost);
                chunk.members = repair.kept;
                chunk.members.push(repair.target);
                let news = TierNews::Repaired {
                    chunk: ChunkName::new(name, chunk.number),
                    members: chunk.members.len(),
                };
                self.actions.push_back(TierAction::Report(news));
                self.counts.replicas_made += 1;
                retire_chunk(&mut self.ports, (name, place));
            }
            (None, ..) => return self.segment_robbed(now, name),
            _ => {}
        }
        self.commit_over(now, name);
    }
}
