//! Taking a segment that an earlier life, or another tier, has written (`docs/volumes-safety.md`).
//!
//! ```text
//!   Reading ─ a record ─▶ its owner is looked at ─▶ commit: the next epoch ─▶ Listing its chunks ─▶ Fencing those who have something
//!      ▲ somebody was first ◀────────────────────────┘                                                │
//!      │                                        Owned ◀─ Waiting (L3) ◀─ all is sealed and applied ◀─ Replaying
//!      └─ whatever ends the port begins anew
//! ```
//!
//! Nothing of the segment is answered meanwhile: its commands wait in line. What is read is read anew at each attempt, so it can end at
//! any point, and the next attempt, of whoever it is, begins with a higher epoch.

mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, Revision, SegmentName, Sequence, Units};
use ob_format::volume::metadata::{Chunk, Segment, SegmentState as Held};
use ob_format::volume::{Entry, RECORDS_START, RecordKind};

use super::areas::{LookFor, Looked};
use super::chunks::{ChunkIs, TierChunk};
use super::core::TierCore;
use super::handing::Wish;
use super::loading::Loading;
use super::plant::{Bug, is_planted};
use super::replay::Replay;
use super::segments::{CHUNKS_RESERVED, Standing};
use super::servers::{CallFor, Errand, Outcome, ServerCore};
use super::status::Trouble;
use super::store::Then;
use crate::metadata::{Expect, Key, KeyValue, MetadataValue, Name, Value};
use crate::plans::LOOK_ENTRIES_MAX;
use crate::wire::{Request, decode_entries};

/// How long servers that have something of the segment are waited for before it is fenced at the others.
const FENCE_WITHIN: Duration = Duration::from_secs(1);
/// How long after nobody has told a chunk's records they are asked for again.
const LIST_AGAIN: Duration = Duration::from_secs(1);
/// How long nothing was given of a segment before others have their turn; and how often they look.
const STUCK_AFTER: Duration = Duration::from_secs(10);
const TURN_EVERY: Duration = Duration::from_secs(1);
/// How long after there was no memory for its index a segment is looked at again.
const MEMORY_AGAIN: Duration = Duration::from_secs(5);
/// How long after all have told what cannot be it is looked again whether they still do.
const IMPOSSIBLE_AGAIN: Duration = Duration::from_secs(60);
/// How many chunks are listed at a time.
const LISTS_MAX: usize = 8;
/// What drift is counted in.
const PPM: u128 = 1_000_000;

/// A segment that is being taken.
#[derive(Debug)]
pub(super) struct Taking {
    phase: Phase,
    /// Answers to an earlier attempt are not heard.
    attempt: u64,
    /// Before that nothing is answered (L3); nothing: there is nobody to wait for.
    serve_at: Option<Instant>,
    pub(super) replay: Replay,
    /// The head, if there is one, until it is there.
    pub(super) loading: Option<Loading>,
    /// Chunks that are not applied, by their places.
    missing: BTreeSet<usize>,
    lists: BTreeMap<usize, List>,
    /// When something of it was given last.
    pub(super) moved: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Listing,
    Fencing {
        until: Instant,
        /// Who has been asked, and has not answered; nothing: nobody was asked yet.
        asked: Option<BTreeSet<usize>>,
    },
    /// Another segment is being replayed: one at a time has the memory for it.
    Fenced {
        again: Instant,
    },
    Loading,
    Replaying,
    Waiting,
}

impl Taking {
    /// Whether it waits for servers that are away, and others need not wait for it.
    fn is_stuck(&self, now: Instant) -> bool {
        now.since(self.moved) >= STUCK_AFTER
    }

    /// Whether its chunks are still being listed.
    pub(super) const fn is_listing(&self) -> bool {
        matches!(self.phase, Phase::Listing)
    }

    /// Whether what has been applied to each block is kept in mind.
    pub(super) const fn is_replayed(&self) -> bool {
        matches!(self.phase, Phase::Loading | Phase::Replaying)
    }

    /// Whether as many lists are under way as may be.
    fn is_full(&self) -> bool {
        self.lists.values().filter(|list| list.again.is_none()).count() >= LISTS_MAX
    }
}

/// The list of a chunk, as far as it is there.
#[derive(Debug)]
struct List {
    attempt: u64,
    /// Whom it is asked of, among the members that are there.
    source: usize,
    /// Who is asked for it now.
    asked: usize,
    /// Who has told it with what cannot be.
    impossible: Vec<usize>,
    /// When it is begun anew, if nobody gave it.
    again: Option<Instant>,
    length: Units,
    next: Units,
    entries: Vec<Entry>,
}

impl List {
    /// Whether this can be what follows: records lie behind each other without a gap, so that whoever leaves one out is not believed.
    fn may_go_on(&self, next: Units, entries: &[Entry]) -> bool {
        if is_planted(Bug::ListBelieved) {
            return next > self.next;
        }
        let mut before = self.entries.last();
        let follow = entries.iter().all(|entry| {
            let at = before.map_or(RECORDS_START, Entry::end);
            // Another range of the same trim has the same place.
            let is_same = before.is_some_and(|before| entry.offset < at && before.may_precede(entry));
            before = Some(entry);
            entry.offset == at || is_same
        });
        let ends_there = entries.last().is_some_and(|last| last.end() == next);
        follow && ends_there && next <= self.length
    }
}

/// What a chunk's record says of its list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListSums {
    pub(super) records: u32,
    pub(super) blocks: u64,
    pub(super) last_sequence: Sequence,
}

impl ListSums {
    fn of(entries: &[Entry]) -> Self {
        let mut sums = Self::default();
        for entry in entries {
            sums.records += 1;
            if matches!(entry.kind, RecordKind::Write | RecordKind::Move) {
                sums.blocks += u64::from(entry.blocks);
            }
            sums.last_sequence = sums.last_sequence.max(entry.sequence);
        }
        sums
    }
}

/// How far a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakingStatus {
    /// Chunks whose records are applied.
    pub applied: usize,
    /// All of them, as far as they are known.
    pub chunks: usize,
}

impl TierCore {
    /// The store has a record of the segment.
    pub(super) fn segment_found(&mut self, _: Instant, name: SegmentName, value: &Value, revision: Revision) {
        let found = MetadataValue::decode(&Name::Segment(name), value.bytes());
        let Ok(MetadataValue::Segment(found)) = found else { return self.unserve(name, Trouble::Value) };
        let told = self.segments.get(&name).map_or(0, |segment| segment.told_epoch);
        if u64::from(found.epoch.number()) < told && !is_planted(Bug::StoreBelieved) {
            // Who raised it had its commit answered before: this is not the store that has answered it.
            self.unserve(name, Trouble::StoreBehind);
            return self.put_behind(name, &found, revision);
        }
        if found.state == Held::Behind {
            return self.unserve(name, Trouble::StoreBehind);
        }
        let (tier, ..) = self.identity();
        if found.state == Held::Released {
            return self.read_wanter(name, found, revision);
        }
        if found.owner == tier {
            return self.put_taken(name, &found, revision, None);
        }
        self.read_owner(name, found, revision);
    }

    pub(super) fn unserve(&mut self, name: SegmentName, trouble: Trouble) {
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.standing = Standing::Unserved(trouble);
            segment.taking = None;
            segment.again = match trouble {
                // Others may be handed over, which makes room.
                Trouble::NoMemory => Some(self.now + MEMORY_AGAIN),
                // What members tell may be mended, or another be among them.
                Trouble::Impossible => Some(self.now + IMPOSSIBLE_AGAIN),
                _ => None,
            };
        }
        self.wake(name);
        // It may have had the memory that others wait for.
        self.continue_takings(self.now);
    }

    /// Who owned the segment is there, or is not (L6).
    pub(super) fn owner_read(
        &mut self,
        now: Instant,
        name: SegmentName,
        found: &Segment,
        revision: Revision,
        owner: Option<Revision>,
    ) {
        if owner == Some(found.session_revision) && !is_planted(Bug::SessionUnlooked) {
            // It lives. It may hand it over, or its session may end; so it is looked at again.
            return self.owner_lives(now, name);
        }
        let key = self.config.keys.key(Name::Tier(found.owner));
        let expect = owner.map_or(Expect::Absent, Expect::At);
        self.put_taken(name, found, revision, Some((key, expect)));
    }

    /// Commits that the segment is this tier's, in the next epoch.
    pub(super) fn put_taken(
        &mut self,
        name: SegmentName,
        found: &Segment,
        revision: Revision,
        owner: Option<(Key, Expect)>,
    ) {
        if !self.is_removing(name.volume) && !self.reserve_index(name) {
            // What is taken for what it misses can wait.
            if self.is_asked_for(name) && self.give_idle_back(name) {
                return self.look_at_wanted_again(self.now, name);
            }
            // Others can have it who have room.
            return self.unserve(name, Trouble::NoMemory);
        }
        let (tier, gate, lock) = self.identity();
        let lease_ms = self.lease_ms();
        let (Some(tier_revision), Some(served)) = (self.store.tier_revision, self.volumes.get(&name.volume))
        else {
            if let Some(segment) = self.segments.get_mut(&name) {
                segment.wait_for_session();
            }
            return;
        };
        let volume_revision = served.revision;
        let next = found.chunk_next.0.checked_add(CHUNKS_RESERVED);
        let (Some(epoch), Some(chunk_next)) = (found.epoch.next(), next) else {
            return self.unserve(name, Trouble::Exhausted);
        };
        // A tier need not wait for itself: the gate by which its last life answered is closed. A wait that was not over is handed on (L12).
        let is_over = found.state == Held::Owned || is_planted(Bug::WaitDropped);
        let is_same = found.lock == lock || is_planted(Bug::CopiedTier);
        let is_own = is_over && found.owner == tier && is_same;
        let wait = (found.state != Held::Released && !is_own).then_some(found.wait_ms);
        let wait = wait.map(|wait| if is_planted(Bug::OwnLeaseLength) { lease_ms } else { wait });
        let record = Segment {
            state: if wait.is_some() { Held::Taken } else { Held::Owned },
            epoch,
            lease_ms,
            owner: tier,
            session_revision: tier_revision,
            gate,
            chunk_next: ChunkId(chunk_next),
            lock,
            wait_ms: lease_ms.max(wait.unwrap_or(0)),
            ..*found
        };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.standing = Standing::Committing;
        segment.record = Some(record);
        (segment.next_chunk, segment.first_chunk) = (found.chunk_next.0, found.chunk_next.0);
        segment.wants_adoption = false;
        let mut others = vec![
            (self.config.keys.key(Name::Tier(tier)), Expect::At(tier_revision)),
            // S1: nobody takes a segment of a volume that is being removed, or by an old size.
            (self.config.keys.key(Name::Volume(name.volume)), Expect::At(volume_revision)),
        ];
        if is_planted(Bug::VolumeUncompared) {
            others.pop();
        }
        others.extend(owner);
        let wait_ms = wait.unwrap_or(0);
        self.commit_taking(name, revision, record, others, Then::Won { name, wait_ms });
    }

    /// The segment is this tier's, or somebody was first.
    pub(super) fn segment_won(
        &mut self,
        now: Instant,
        name: SegmentName,
        wait_ms: u32,
        revision: Option<Revision>,
    ) {
        let Some(revision) = revision else {
            // The session, the volume or the owner is another by now; the next look shows what is.
            return self.look_at_wanted_again(now, name);
        };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.wish = Wish::None;
        segment.revision = Some(revision);
        segment.standing = Standing::Taking;
        // L3, counted from the answer to the commit, on a clock that may run fast.
        let drift_ppm = if is_planted(Bug::DriftForgotten) { 0 } else { self.config.drift_ppm };
        let wait = u128::from(wait_ms) * (PPM + u128::from(drift_ppm)) / PPM;
        let serve_at = (wait > 0).then(|| now + Duration::from_millis(wait as u64 + 1));
        let serve_at = serve_at.filter(|_| !is_planted(Bug::TakeOverAtOnce));
        self.last_attempt += 1;
        let attempt = self.last_attempt;
        if let Some(segment) = self.segments.get_mut(&name) {
            let head = segment.record.and_then(|record| record.head);
            segment.taking = Some(Taking {
                phase: Phase::Listing,
                attempt,
                serve_at,
                // What a page does not say is as of the head.
                replay: Replay::since(segment.head_sequence()),
                loading: head.map(|head| Loading::new(attempt, head)),
                missing: BTreeSet::new(),
                lists: BTreeMap::new(),
                moved: now,
            });
        }
        self.list_chunks(name, attempt, None);
    }

    fn taking_mut(&mut self, name: SegmentName, attempt: u64) -> Option<&mut Taking> {
        let taking = self.segments.get_mut(&name)?.taking.as_mut()?;
        (taking.attempt == attempt).then_some(taking)
    }

    /// The store has told chunks of the segment.
    pub(super) fn chunks_listed(
        &mut self,
        now: Instant,
        (name, attempt): (SegmentName, u64),
        entries: Vec<KeyValue>,
        has_more: bool,
    ) {
        if self.taking_mut(name, attempt).is_none() {
            return;
        }
        let last = entries.last().map(|entry| entry.key.clone());
        for entry in entries {
            let of = self.config.keys.parse(&entry.key);
            let value = of.map(|of| MetadataValue::decode(&of, entry.value.bytes()));
            match (of, value) {
                (Some(Name::Chunk(chunk)), Some(Ok(MetadataValue::Chunk(record)))) => {
                    self.chunk_found(now, chunk, &record, entry.revision);
                }
                _ => return self.unserve(name, Trouble::Value),
            }
        }
        if has_more && last.is_some() {
            return self.list_chunks(name, attempt, last);
        }
        if self.is_removing(name.volume) {
            return self.begin_emptying(now, name);
        }
        if let Some(taking) = self.taking_mut(name, attempt) {
            taking.phase = Phase::Fencing { until: now + FENCE_WITHIN, asked: None };
        }
        self.continue_taking(now, name);
    }

    fn chunk_found(&mut self, now: Instant, chunk: ChunkName, record: &Chunk, revision: Revision) {
        let name = chunk.segment_name();
        let Some(length) =
            self.volumes.get(&name.volume).map(|served| Units::of_bytes(served.volume.chunk_len))
        else {
            return;
        };
        let members = record.members.servers().iter().map(|id| self.place_of(now, *id)).collect();
        let found = TierChunk::found(chunk.chunk, revision, members, length, record);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let head_sequence = segment.head_sequence();
        let Some(taking) = &mut segment.taking else { return };
        // What the head is past is on its pages.
        let is_past = matches!(found.is, ChunkIs::Sealed { .. }) && found.last_sequence <= head_sequence;
        if found.is_log() && !(is_past && segment.record.is_some_and(|record| record.head.is_some())) {
            taking.missing.insert(segment.chunks.len());
        }
        segment.chunks.push(found);
    }

    /// A server is there, or something else that segments that are taken may wait for.
    pub(super) fn continue_takings(&mut self, now: Instant) {
        let taken = self.segments.iter().filter(|(_, segment)| segment.taking.is_some());
        let names: Vec<SegmentName> = taken.map(|(name, _)| *name).collect();
        for name in names {
            self.continue_taking(now, name);
        }
    }

    pub(super) fn takings_next_due(&self) -> Option<Instant> {
        let taken = self.segments.values().filter(|segment| segment.standing == Standing::Taking);
        let due =
            taken.filter_map(|segment| segment.taking.as_ref()).filter_map(|taking| match &taking.phase {
                Phase::Fencing { until, .. } => Some(*until),
                Phase::Fenced { again } => Some(*again),
                // One that is whole makes room for the next.
                Phase::Replaying if taking.is_full() => None,
                Phase::Replaying => taking.lists.values().filter_map(|list| list.again).min(),
                Phase::Loading => taking.loading.as_ref().and_then(Loading::next_due),
                Phase::Waiting => taking.serve_at,
                Phase::Listing => None,
            });
        due.min()
    }

    pub(super) fn takings_due(&mut self, now: Instant) {
        if self.takings_next_due().is_some_and(|due| due <= now) {
            self.continue_takings(now);
        }
    }

    /// Does what can be done now.
    pub(super) fn continue_taking(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get(&name).filter(|segment| segment.standing == Standing::Taking)
        else {
            return;
        };
        let Some(taking) = &segment.taking else { return };
        match &taking.phase {
            Phase::Listing => {}
            Phase::Fencing { until, asked: None } => {
                let members: BTreeSet<usize> =
                    segment.chunks.iter().flat_map(|chunk| chunk.members.iter().copied()).collect();
                let is_ready = |place: &usize| self.servers.get(*place).is_some_and(ServerCore::is_ready);
                if *until <= now || members.iter().all(is_ready) {
                    let there: BTreeSet<usize> = members.into_iter().filter(is_ready).collect();
                    self.fence(now, name, &there);
                }
            }
            Phase::Fencing { until, asked: Some(asked) } => {
                if *until <= now || asked.is_empty() {
                    self.await_replay(now, name);
                }
            }
            Phase::Loading => {
                if self.continue_loading(now, name) {
                    self.begin_replay(now, name);
                }
            }
            Phase::Fenced { .. } => self.await_replay(now, name),
            Phase::Replaying => self.continue_lists(now, name),
            Phase::Waiting => self.serve_taken(now, name),
        }
    }

    /// F4: whoever is there hears no lower epoch any more.
    fn fence(&mut self, now: Instant, name: SegmentName, there: &BTreeSet<usize>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(epoch), Some(taking)) = (segment.epoch(), &mut segment.taking) else { return };
        let errand = Errand { segment: name, place: 0, attempt: taking.attempt, is_repair: false };
        taking.phase = Phase::Fencing { until: now + FENCE_WITHIN, asked: Some(there.clone()) };
        for server in there {
            self.call(*server, CallFor::Fence(errand), Request::Fence { segment: name, epoch }, &[]);
        }
        if there.is_empty() {
            self.continue_taking(now, name);
        }
    }

    /// A server has heard of the epoch, or has not answered.
    pub(super) fn fenced(&mut self, now: Instant, errand: Errand, server: usize, outcome: &Outcome) {
        let Some(taking) = self.taking_mut(errand.segment, errand.attempt) else { return };
        if let Some(known) = outcome.stale() {
            return self.segment_stale(now, errand.segment, Some(known));
        }
        if let Phase::Fencing { asked: Some(asked), .. } = &mut taking.phase {
            asked.remove(&server);
        }
        self.continue_taking(now, errand.segment);
    }

    fn await_replay(&mut self, now: Instant, name: SegmentName) {
        let is_replaying = |segment: &super::segments::SegmentCore| {
            segment.taking.as_ref().is_some_and(|taking| taking.is_replayed() && !taking.is_stuck(now))
        };
        if self.segments.values().any(is_replaying) {
            let segment = self.segments.get_mut(&name);
            if let Some(taking) = segment.and_then(|segment| segment.taking.as_mut()) {
                taking.phase = Phase::Fenced { again: now + TURN_EVERY };
            }
            return;
        }
        match self.replay_fits(name) {
            Some(true) => self.begin_loading(now, name),
            Some(false) => {
                self.give_index_back(name);
                self.unserve(name, Trouble::NoMemory);
            }
            None => {
                let segment = self.segments.get_mut(&name);
                if let Some(taking) = segment.and_then(|segment| segment.taking.as_mut()) {
                    taking.phase = Phase::Fenced { again: now + TURN_EVERY };
                }
            }
        }
    }

    /// What the head names comes first.
    fn begin_loading(&mut self, now: Instant, name: SegmentName) {
        if let Some(taking) = self.segments.get_mut(&name).and_then(|segment| segment.taking.as_mut()) {
            (taking.phase, taking.moved) = (Phase::Loading, now);
            self.continue_taking(now, name);
        }
    }

    fn begin_replay(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(taking) = &mut segment.taking else { return };
        (taking.phase, taking.loading) = (Phase::Replaying, None);
        // An index chunk that no head names is nobody's, however it ends.
        let open = segment.chunks.iter().enumerate().filter(|(_, chunk)| chunk.is_open() && chunk.is_log());
        let open: Vec<usize> = open.map(|(place, _)| place).collect();
        for place in open {
            // Where it ends is agreed on first; then it is listed, because its record is to say what it has.
            self.close_chunk(now, name, place);
        }
        self.continue_lists(now, name);
    }

    /// A server that was not there when segments were taken hears of their epochs (F4).
    pub(super) fn fence_again(&mut self, server: usize) {
        let has = |segment: &super::segments::SegmentCore| {
            let of =
                |chunk: &TierChunk| chunk.members.iter().chain(&chunk.strays).any(|member| *member == server);
            segment.standing.is_held() && segment.chunks.iter().any(of)
        };
        let held = self.segments.iter().filter(|(_, segment)| has(segment));
        let held: Vec<_> = held.filter_map(|(name, segment)| Some((*name, segment.epoch()?))).collect();
        for (name, epoch) in held {
            let errand = Errand { segment: name, place: 0, attempt: 0, is_repair: false };
            self.call(server, CallFor::Fence(errand), Request::Fence { segment: name, epoch }, &[]);
        }
    }

    /// If all chunks are sealed and applied, the index is there.
    fn replayed(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(taking) = segment.taking.as_mut().filter(|taking| taking.phase == Phase::Replaying) else {
            return;
        };
        let is_sealed = |chunk: &TierChunk| !chunk.is_log() || matches!(chunk.is, ChunkIs::Sealed { .. });
        if !taking.missing.is_empty() || segment.is_committing || !segment.chunks.iter().all(is_sealed) {
            return;
        }
        taking.phase = Phase::Waiting;
        let Some((index, live)) = std::mem::take(&mut taking.replay).finish(segment.chunks.len()) else {
            return self.unserve(name, Trouble::Impossible);
        };
        segment.index = index;
        for (chunk, live) in segment.chunks.iter_mut().zip(live) {
            // No block lies in the index, or in what is dead.
            if live > 0 && !chunk.is_log() {
                return self.unserve(name, Trouble::Impossible);
            }
            chunk.live = live;
        }
        self.serve_taken(now, name);
        // Another one may be waiting for the memory.
        self.continue_takings(now);
    }

    /// The wait is over: it is served from now on.
    fn serve_taken(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(taking) = &segment.taking else { return };
        if taking.serve_at.is_some_and(|at| now < at) {
            return;
        }
        segment.taking = None;
        segment.standing = Standing::Owned;
        segment.owned_since = Some(now);
        let last = segment.chunks.iter().map(|chunk| chunk.last_sequence).max().unwrap_or_default();
        segment.found_last = last.max(segment.head_sequence());
        // One that had to be waited for says so in the store until that is over.
        segment.wants_adoption |= segment.record.is_some_and(|record| record.state == Held::Taken);
        self.counts.segments_taken += 1;
        self.repair_at = Some(now);
        self.sweep_soon(now, name);
        self.commit_over(now, name);
    }

    /// How far a segment is that is being taken.
    pub(super) fn taking_status(&self, name: SegmentName) -> Option<TakingStatus> {
        let segment = self.segments.get(&name)?;
        let taking = segment.taking.as_ref()?;
        let chunks = segment.chunks.len();
        Some(TakingStatus { applied: chunks - taking.missing.len(), chunks })
    }
}
