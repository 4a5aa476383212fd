//! Replicas that are missing: sealed chunks get them anew, those with the fewest first, at a bounded rate.
//!
//! ```text
//!   a server that is not named and may have something: Stopping ─ its end ─▶ Copying ─ as long as the record says ─▶ Sealing ─▶ Committing
//!                                                        │ it does not fit                   ▲                                    named
//!   one that has nothing:                    Deleting ◀──┘──▶ Creating ──────────────────────┘
//! ```
//!
//! A replica that returns is cut or filled to the record exactly, and sealed with its CRC, before it is named (C6). When all members
//! are there, what others have is discarded (R4).

use std::time::Duration;

use ob_core::{ChunkName, Instant, Revision, SegmentName, ServerId, Units};
use ob_format::volume::metadata::{Chunk, ChunkState, Members};
use ob_format::volume::{ChunkKind, RECORDS_START};

use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::seal::Copied;
use super::segments::Standing;
use super::servers::{CallFor, Errand, Outcome, ServerCore};
use super::slots::ChunkPlace;
use super::status::Trouble;
use super::store::Then;
use super::{TierAction, TierNews};
use crate::metadata::{Expect, MetadataValue, Name};
use crate::wire::{Answer, CreateState, Refusal, Reply, Request};

/// How often it is looked for chunks that miss a replica.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a copy may fail before its replica is given up.
const FAILURES_MAX: u8 = 3;

/// A replica that is made anew.
#[derive(Debug)]
pub(super) struct Repair {
    chunk: ChunkPlace,
    attempt: u64,
    target: usize,
    phase: Phase,
    /// How far the target is.
    at: Units,
    /// Who is asked next for what it lacks.
    source: usize,
    failures: u8,
    /// Whether what the target had was deleted already, because it did not fit.
    is_anew: bool,
    /// Members that stay beside it: the others are lost.
    kept: Vec<usize>,
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
    Sealing,
    Agreed,
    Committing,
}

/// A chunk that misses a replica, and where that is to be.
struct Wanting {
    chunk: ChunkPlace,
    target: usize,
    is_stray: bool,
}

impl TierCore {
    pub(super) fn repair_next_due(&self) -> Option<Instant> {
        match &self.repair {
            Some(Repair { phase: Phase::Resting { until }, .. }) => Some(*until),
            Some(_) => None,
            None => self.repair_at,
        }
    }

    pub(super) fn repair_due(&mut self, now: Instant) {
        if self.repair_next_due().is_none_or(|due| due > now) {
            return;
        }
        if self.repair.is_some() {
            return self.copy_next(now);
        }
        self.discard_strays();
        match self.most_wanting(now) {
            Some(wanting) => self.begin_repair(&wanting),
            None => self.repair_at = self.is_any_wanting().then(|| now + LOOK_EVERY),
        }
    }

    /// The port is closed: what was asked is asked anew.
    pub(super) fn forget_repair(&mut self, now: Instant) {
        if self.repair.as_ref().is_some_and(|repair| repair.phase != Phase::Committing) {
            self.repair = None;
        }
        self.repair_at = Some(now);
    }

    /// A commit that was waited for is over.
    pub(super) fn continue_repair(&mut self, now: Instant) {
        if self.repair.as_ref().is_some_and(|repair| repair.phase == Phase::Agreed) {
            self.commit_repair(now);
        }
    }

    fn replicas(&self, name: SegmentName) -> usize {
        self.volumes.get(&name.volume).map_or(0, |served| usize::from(served.volume.replicas))
    }

    fn sealed_chunks(&self) -> impl Iterator<Item = (ChunkPlace, &TierChunk)> {
        let owned = self.segments.iter().filter(|(_, segment)| segment.standing == Standing::Owned);
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
    fn is_lost(&self, now: Instant, server: usize) -> bool {
        let away = self.servers.get(server).and_then(|server| server.away_since);
        away.is_some_and(|since| now.since(since) >= self.config.lost_after)
    }

    /// Members that are not lost.
    fn kept_members(&self, now: Instant, chunk: &TierChunk) -> Vec<usize> {
        chunk.members.iter().copied().filter(|member| !self.is_lost(now, *member)).collect()
    }

    /// The chunk with the fewest replicas, of these the longest, for which there is somebody.
    fn most_wanting(&self, now: Instant) -> Option<Wanting> {
        let found = self.sealed_chunks().filter_map(|(place, chunk)| {
            let kept = self.kept_members(now, chunk).len();
            if kept >= self.replicas(place.0) || !self.has_ready_member(chunk) {
                return None;
            }
            let (target, is_stray) = self.target_for(now, chunk)?;
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
    fn target_for(&self, now: Instant, chunk: &TierChunk) -> Option<(usize, bool)> {
        let can = |server: &usize| {
            self.servers.get(*server).is_some_and(|server| server.is_ready() && !server.has_failed(now))
        };
        if let Some(stray) = chunk.strays.iter().copied().find(can) {
            return Some((stray, true));
        }
        if chunk.strays.iter().any(|stray| !self.is_lost(now, *stray)) {
            return None;
        }
        let has_room = |place: &usize| {
            self.servers.get(*place).is_some_and(|server| {
                !server.is_full(now) && server.free >= u64::from(chunk.length.0) * u64::from(Units::LEN)
            })
        };
        let others = (0..self.servers.len()).filter(|place| !chunk.members.contains(place));
        let others = others.filter(|place| can(place) && has_room(place));
        let domain = |place: usize| self.servers.get(place).and_then(|server| server.domain);
        let is_apart = |place: &usize| chunk.members.iter().all(|member| domain(*member) != domain(*place));
        others
            .max_by_key(|place| (is_apart(place), self.servers.get(*place).map_or(0, |server| server.free)))
            .map(|place| (place, false))
    }

    /// What is not named goes where all members are there and sealed (R4).
    fn discard_strays(&mut self) {
        let mut discarded = Vec::new();
        for ((name, place), chunk) in self.sealed_chunks() {
            let is_whole = chunk.members.len() >= self.replicas(name)
                && chunk.members.iter().all(|member| self.is_ready(*member));
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
            let of = ChunkName::new(name, chunk.number);
            self.slots.retire_chunk((name, place));
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
            failures: 0,
            is_anew: false,
            kept: Vec::new(),
        });
        if wanting.is_stray { self.ask_stop() } else { self.ask_create() }
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
        let length = chunk.length;
        let Some(volume) = self.volumes.get(&errand.segment.volume).map(|served| served.volume) else {
            return;
        };
        let request = Request::Create {
            chunk: name,
            epoch,
            length,
            block_len: volume.block_len,
            state: CreateState::Filling,
            kind: ChunkKind::Data,
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

    fn repair_of(&mut self, errand: Errand) -> Option<&mut Repair> {
        self.repair.as_mut().filter(|repair| repair.attempt == errand.attempt)
    }

    /// It cannot go on; whoever wants a replica most is looked for anew, later.
    fn give_repair_up(&mut self, now: Instant, has_target_failed: bool) {
        let Some(repair) = self.repair.take() else { return };
        if has_target_failed && let Some(server) = self.servers.get_mut(repair.target) {
            server.fail(now);
        }
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
            // It has something that it cannot read, or that is none of this chunk's.
            Outcome::Answered(_) if self.can_start_over() => self.start_over(),
            Outcome::Answered(_) | Outcome::Failed => self.give_repair_up(now, true),
        }
    }

    /// Whether what the target has may go: once, and when all that are named are there.
    fn can_start_over(&mut self) -> bool {
        let Some((.., chunk)) = self.named() else { return false };
        let are_there = chunk.members.iter().all(|member| self.is_ready(*member));
        let Some(repair) = &mut self.repair else { return false };
        are_there && !std::mem::replace(&mut repair.is_anew, true)
    }

    /// It does not fit: what is there goes, and is made anew.
    fn start_over(&mut self) {
        let Some((errand, target, chunk, epoch, _)) = self.named() else { return };
        if let Some(repair) = &mut self.repair {
            repair.phase = Phase::Deleting;
        }
        self.call(target, CallFor::DeleteReplica(errand), Request::Delete { chunk, epoch }, &[]);
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
            Outcome::Answered(Answer::Good(Reply::Create { .. })) => self.copy_next(now),
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
        let sources: Vec<usize> =
            chunk.members.iter().copied().filter(|member| self.is_ready(*member)).collect();
        let Some(repair) = &mut self.repair else { return };
        if repair.at >= length {
            return self.ask_seal();
        }
        let Some(source) = sources.get(repair.source % sources.len().max(1)).copied() else {
            return self.give_repair_up(now, false);
        };
        repair.phase = Phase::Copying;
        let at = repair.at;
        self.copy(errand, (source, target), name, epoch, at, length);
    }

    pub(super) fn replica_filled(&mut self, now: Instant, errand: Errand, copied: Copied) {
        let rate = self.config.rebuild_rate;
        let Some(repair) = self.repair_of(errand) else { return };
        let before = repair.at;
        match copied {
            Copied::To(durable) if durable > before => repair.at = durable,
            Copied::To(_) | Copied::NotTaken => repair.failures += 1,
            Copied::NotGiven => {
                repair.failures += 1;
                repair.source += 1;
            }
        }
        if repair.failures > FAILURES_MAX && copied != Copied::NotGiven && self.can_start_over() {
            // Its end is sealed already, and is another.
            return self.start_over();
        }
        let Some(repair) = self.repair_of(errand) else { return };
        if repair.failures > FAILURES_MAX {
            return self.give_repair_up(now, copied != Copied::NotGiven);
        }
        // At most so much a second.
        let bytes = u64::from(repair.at.0.saturating_sub(before.0)) * u64::from(Units::LEN);
        let pause = Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64);
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
                let target = repair.target;
                if let Some(server) = self.servers.get_mut(target) {
                    server.do_well();
                }
                self.commit_repair(now);
            }
            Outcome::Answered(_) if repair.failures <= FAILURES_MAX => {
                // Once for each of these: what was copied may have been cut, or be another's end.
                repair.failures += 2;
                self.start_over();
            }
            Outcome::Answered(_) | Outcome::Failed => self.give_repair_up(now, true),
        }
    }

    fn commit_repair(&mut self, now: Instant) {
        let Some(repair) = &self.repair else { return };
        let ((name, place), target) = (repair.chunk, repair.target);
        let Some(segment) = self.segments.get(&name) else { return };
        let Some(revision) = segment.revision else { return };
        if segment.is_committing || segment.standing != Standing::Owned {
            return;
        }
        let Some(chunk) = segment.chunks.get(place) else { return };
        let ChunkIs::Sealed { content_crc } = chunk.is else { return };
        let kept = self.kept_members(now, chunk);
        let ids = kept.iter().chain([&target]).filter_map(|member| self.servers.get(*member)?.id);
        let ids: Vec<ServerId> = ids.collect();
        let Some(members) = Members::new(&ids) else { return };
        let record = Chunk {
            state: ChunkState::Sealed,
            kind: ChunkKind::Data,
            members,
            epoch: chunk.epoch,
            length: chunk.length,
            last_sequence: chunk.last_sequence,
            blocks: u32::try_from(chunk.blocks).unwrap_or(u32::MAX),
            records: chunk.records,
            content_crc,
            joining: None,
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
                self.slots.retire_chunk((name, place));
            }
            (None, ..) => {
                segment.standing = Standing::Unserved(Trouble::Taken);
                self.counts.segments_lost += 1;
            }
            _ => {}
        }
        self.commit_over(now, name);
    }
}
