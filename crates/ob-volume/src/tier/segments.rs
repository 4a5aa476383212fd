//! Segments: whether this tier may answer for them, by the store's agreement.
//!
//! ```text
//!   Wanted ─▶ Reading ─ no key ─▶ Committing(Take) ─────────────▶ Owned ─ new session ─▶ Committing(Adopt) ─▶ Owned ─▶ Releasing
//!                └─ an earlier life's ─▶ Committing(Win) ─▶ Taking ─┘
//! ```
//!
//! What an earlier life has written is taken by `taking`, and given to another tier that wants it by `handing`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use ob_core::{ChunkId, Epoch, Instant, Revision, SegmentName, Sequence, Units};
use ob_format::volume::metadata::{Segment, SegmentState as Held};
use ob_format::volume::{IndexEntry, RECORDS_START};
use ob_split::wire::Handle;
use ob_wire_nvme::Status;

use super::PortNumber;
use super::chunks::TierChunk;
use super::core::{Line, TierCore};
use super::handing::Wish;
use super::index::{Index, chunk_of};
use super::opening::{OpenFor, Opening};
use super::plant::{Bug, is_planted};
use super::space::Space;
use super::status::Trouble;
use super::store::{Phase, RETRY, Then};
use super::taking::Taking;
use crate::metadata::{Expect, MetadataValue, Name, Value};

/// How long after somebody else has a segment it is looked at again.
const ROBBED_AGAIN: Duration = Duration::from_secs(1);
/// Numbers of chunks that are reserved at a time (C7).
pub(super) const CHUNKS_RESERVED: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is to be read when the store is open.
    Wanted,
    Reading,
    /// A commit that makes it this tier's, or keeps it, is under way.
    Committing,
    /// It is this tier's, and what it has is found out.
    Taking,
    Owned,
    /// It is this tier's, its volume is being removed, and what it has goes.
    Emptying,
    /// It is nobody's as soon as the store hears of it, and may be so already (L9).
    Releasing,
    Unserved(Trouble),
}

impl Standing {
    /// Whether the store says that it is this tier's, so that its chunks may be changed.
    pub(super) const fn is_held(self) -> bool {
        matches!(self, Self::Taking | Self::Owned)
    }

    /// Whether chunks of it may be called dead.
    pub(super) const fn may_bury(self) -> bool {
        matches!(self, Self::Owned | Self::Emptying)
    }
}

/// A segment, as the tier has it.
#[derive(Debug)]
pub(super) struct SegmentCore {
    pub(super) standing: Standing,
    /// As it is in the store, or is being put there.
    pub(super) record: Option<Segment>,
    /// Of the store's record.
    pub(super) revision: Option<Revision>,
    /// A commit about one of its chunks, or a reservation of numbers, is under way: an adoption waits for it.
    pub(super) is_committing: bool,
    pub(super) wants_adoption: bool,
    pub(super) index: Index,
    /// How much of the memory its index has.
    pub(super) reserved: Option<u64>,
    /// By their slots in the index.
    pub(super) chunks: Vec<TierChunk>,
    /// Those that ports append to.
    pub(super) open: BTreeMap<PortNumber, usize>,
    pub(super) openings: BTreeMap<OpenFor, Opening>,
    pub(super) space: Space,
    /// The next number of a chunk, and the first that this owner could give.
    pub(super) next_chunk: u32,
    pub(super) first_chunk: u32,
    /// The next count of a sequence.
    pub(super) next_count: u64,
    /// Commands that wait for it, or for a chunk of it.
    pub(super) waiting: VecDeque<Handle>,
    /// Writes and trims under way.
    pub(super) changes: u32,
    /// There are no numbers for chunks any more: nothing is written.
    pub(super) is_exhausted: bool,
    /// When it is looked at again, after the store has said something else than was thought.
    pub(super) again: Option<Instant>,
    /// What an earlier life has written, while it is found out.
    pub(super) taking: Option<Taking>,
    /// Whether the store says that this tier wants it.
    pub(super) wish: Wish,
    /// The latest epoch that a server has told of: the store must know one as late, or it is not the store that it was.
    pub(super) told_epoch: u64,
    /// The greatest sequence that the store led to when it was taken.
    pub(super) found_last: Sequence,
    /// Since when it is answered for.
    pub(super) owned_since: Option<Instant>,
    /// When somebody has asked for it last.
    pub(super) asked_at: Instant,
}

impl SegmentCore {
    fn new() -> Self {
        Self {
            standing: Standing::Wanted,
            record: None,
            revision: None,
            is_committing: false,
            wants_adoption: false,
            index: Index::new(),
            reserved: None,
            chunks: Vec::new(),
            open: BTreeMap::new(),
            openings: BTreeMap::new(),
            space: Space::default(),
            next_chunk: 1,
            first_chunk: 1,
            next_count: 1,
            waiting: VecDeque::new(),
            changes: 0,
            is_exhausted: false,
            again: None,
            taking: None,
            wish: Wish::None,
            told_epoch: 0,
            found_last: Sequence(0),
            owned_since: None,
            asked_at: Instant::default(),
        }
    }

    /// The epoch in which it is owned.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.record.map(|record| record.epoch)
    }

    /// A plan will write so many units to a chunk, with so many sequences that follow each other; the first of them. There is none
    /// when the epoch has no more.
    pub(super) fn begin_change(&mut self, chunk: usize, units: u32, count: u32) -> Option<Sequence> {
        let epoch = if is_planted(Bug::SequenceContinued) { Epoch::FIRST } else { self.epoch()? };
        let next = self.next_count.checked_add(u64::from(count))?;
        let first = Sequence::new(epoch, self.next_count)?;
        Sequence::new(epoch, next)?;
        let chunk = self.chunks.get_mut(chunk)?;
        chunk.posted = chunk.posted.checked_add(Units(units))?;
        chunk.changes += 1;
        self.next_count = next;
        self.changes += 1;
        self.note_under_way(first);
        Some(first)
    }

    /// A record takes less than was reserved for it.
    pub(super) fn give_back(&mut self, chunk: usize, units: u32) {
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.posted = Units(chunk.posted.0.saturating_sub(units)).max(chunk.end);
        }
    }

    /// Nothing can be committed without a session.
    pub(super) const fn wait_for_session(&mut self) {
        if matches!(self.standing, Standing::Reading) {
            self.standing = Standing::Wanted;
        }
    }

    /// A plan that wrote to a chunk, with sequences from this one on, is over.
    pub(super) fn end_change(&mut self, chunk: usize, first: Sequence) {
        self.changes = self.changes.saturating_sub(1);
        self.note_over(first);
        let Some(chunk) = self.chunks.get_mut(chunk) else { return };
        chunk.changes = chunk.changes.saturating_sub(1);
        if chunk.changes == 0 {
            // What was thought to have no room may have had some.
            chunk.posted = chunk.end;
        }
    }

    /// A record is on all members of a chunk: its blocks lie there, or nowhere if it is a trim. `false` if no record can lie there.
    pub(super) fn apply(
        &mut self,
        blocks: Range<u32>,
        chunk: usize,
        sequence: Sequence,
        offset: Units,
        units: Units,
        is_trim: bool,
    ) -> bool {
        let Some(to) = self.chunks.get_mut(chunk) else { return false };
        let end = offset.checked_add(units).filter(|end| offset >= RECORDS_START && *end <= to.posted);
        let entry = if is_trim {
            Some(IndexEntry::UNMAPPED)
        } else {
            IndexEntry::mapped(offset, units, chunk as u32)
        };
        let (Some(end), Some(entry)) = (end, entry) else { return false };
        to.end = to.end.max(end);
        to.last_sequence = to.last_sequence.max(sequence);
        to.records += 1;
        let count = u64::from(blocks.end - blocks.start);
        self.space.logged += if is_trim { 1 } else { count };
        if !is_trim {
            (to.live, to.blocks) = (to.live + count, to.blocks + count);
        }
        let chunks = &mut self.chunks;
        self.index.put(blocks, entry, |was| {
            if let Some(from) = chunk_of(was).and_then(|from| chunks.get_mut(from)) {
                from.live -= 1;
            }
        });
        true
    }
}

/// Whether a command may go on with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Yes,
    /// It was put in line.
    Wait,
    No(Status),
}

impl TierCore {
    /// Whether this tier answers for a segment now. If it does not yet, the command waits in the segment's line.
    pub(super) fn own(&mut self, name: SegmentName, handle: Handle) -> Own {
        let is_handed_over = self.is_handed_over(name);
        let segment = self.segments.entry(name).or_insert_with(SegmentCore::new);
        segment.asked_at = self.now;
        let (standing, wants_adoption) = (segment.standing, segment.wants_adoption);
        match standing {
            // What a lost session owned may be anybody's, until the store says that it was kept.
            Standing::Owned if !wants_adoption && !is_handed_over => return Own::Yes,
            // Another may be idle by now, and is given back for it.
            Standing::Unserved(Trouble::NoMemory) if self.give_idle_back(name) => {
                self.look_at_wanted_again(self.now, name);
            }
            Standing::Unserved(_) => return Own::No(Status::NAMESPACE_NOT_READY),
            Standing::Wanted
            | Standing::Reading
            | Standing::Committing
            | Standing::Taking
            | Standing::Owned
            | Standing::Emptying
            | Standing::Releasing => {}
        }
        self.line_up(Line::Segment(name), handle);
        let is_fresh =
            |segment: &SegmentCore| segment.standing == Standing::Wanted && segment.again.is_none();
        let is_wanted = self.segments.get(&name).is_some_and(is_fresh);
        if is_wanted {
            self.want(name);
        }
        Own::Wait
    }

    fn want(&mut self, name: SegmentName) {
        if self.store.phase != Phase::Open || self.is_leaving() {
            return;
        }
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.standing = Standing::Reading;
            self.read_segment(name);
        }
    }

    /// The store was asked whether it has the segment's record.
    pub(super) fn segment_read(
        &mut self,
        now: Instant,
        name: SegmentName,
        found: Option<&(Value, Revision)>,
    ) {
        let is_open = self.store.phase == Phase::Open;
        let Some(segment) =
            self.segments.get_mut(&name).filter(|segment| segment.standing == Standing::Reading)
        else {
            return;
        };
        if !is_open {
            segment.standing = Standing::Wanted;
            return;
        }
        if let Some((value, revision)) = found {
            return self.segment_found(now, name, value, *revision);
        }
        if !self.is_served(name.volume) {
            // There is nothing to be emptied.
            return self.forget_segment(name);
        }
        self.put_segment(name, Expect::Absent, Then::Taken(name));
    }

    /// Makes a segment that has no record this tier's, or keeps one by a new session.
    fn put_segment(&mut self, name: SegmentName, expect: Expect, then: Then) {
        let (tier, gate, lock) = self.identity();
        let lease_ms = self.lease_ms();
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(tier_revision), Some(volume)) = (self.store.tier_revision, self.volumes.get(&name.volume))
        else {
            // The session is over: it is looked at again when there is another.
            segment.wait_for_session();
            return;
        };
        let before = segment.record;
        let record = Segment {
            state: Held::Owned,
            epoch: before.map_or(Epoch::FIRST, |before| before.epoch),
            lease_ms,
            owner: tier,
            session_revision: tier_revision,
            gate,
            chunk_next: before.map_or(ChunkId(1 + CHUNKS_RESERVED), |before| before.chunk_next),
            generation: before.map_or(volume.volume.generation, |before| before.generation),
            head: before.and_then(|before| before.head),
            lock,
            wait_ms: lease_ms,
        };
        segment.standing = Standing::Committing;
        segment.wants_adoption = false;
        segment.record = Some(record);
        let mut others = vec![
            (self.config.keys.key(Name::Tier(tier)), Expect::At(tier_revision)),
            // S1: nobody takes a segment of a volume that is being removed, or by an old size.
            (self.config.keys.key(Name::Volume(name.volume)), Expect::At(volume.revision)),
        ];
        if is_planted(Bug::VolumeUncompared) {
            others.pop();
        }
        let value = MetadataValue::Segment(record).encode();
        self.commit(Name::Segment(name), expect, others, value, then, None);
    }

    /// More numbers of chunks; the segment stays as it is meanwhile.
    pub(super) fn reserve_chunks(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name).filter(|segment| !segment.is_committing) else {
            return;
        };
        let (Some(record), Some(revision)) = (&mut segment.record, segment.revision) else { return };
        let Some(next) = record.chunk_next.0.checked_add(CHUNKS_RESERVED) else {
            segment.is_exhausted = true;
            return self.wake(name);
        };
        record.chunk_next = ChunkId(next);
        segment.is_committing = true;
        let value = MetadataValue::Segment(*record).encode();
        let (expect, then) = (Expect::At(revision), Then::Reserved(name));
        self.commit(Name::Segment(name), expect, Vec::new(), value, then, None);
    }

    /// A commit of the segment's record is over.
    pub(super) fn segment_put(
        &mut self,
        now: Instant,
        name: SegmentName,
        revision: Option<Revision>,
        there: Option<Revision>,
    ) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        let was_there = segment.revision.is_some();
        if segment.standing == Standing::Unserved(Trouble::StoreBehind) {
            // It stays so, whatever was under way.
            segment.revision = revision.or(segment.revision);
            return self.mark_behind(name);
        }
        match revision {
            Some(revision) => {
                segment.revision = Some(revision);
                segment.standing = Standing::Owned;
                segment.owned_since.get_or_insert(now);
            }
            None if was_there && there == segment.revision => {
                // Nobody has taken it: it was the session that is another by now.
                (segment.standing, segment.wants_adoption) = (Standing::Owned, true);
                segment.again = Some(now + RETRY);
            }
            // Only another owner can have changed it.
            None if was_there => return self.segment_robbed(now, name),
            None => {
                // The session, or the volume, is another by now; or somebody was first, which the next look shows.
                segment.record = None;
                segment.standing = Standing::Wanted;
                segment.again = Some(now + RETRY);
                return;
            }
        }
        // Whoever looked for replicas that are missing meanwhile has not looked here.
        self.repair_at.get_or_insert(now);
        self.commit_over(now, name);
    }

    /// Something of a segment was agreed on, or cannot be: what has waited for that goes on. Commands first: those that only read are
    /// not to be refused for want of a chunk.
    pub(super) fn commit_over(&mut self, now: Instant, name: SegmentName) {
        self.wake(name);
        self.adopt(name);
        self.continue_seals(now, name);
        self.continue_opening(now, name);
        self.continue_repair(now);
        self.continue_taking(now, name);
        self.continue_space(now, name);
        self.mark_behind(name);
    }

    /// Somebody else has the segment. What of it is under way comes to its end; then it is looked at as if it had never been known.
    pub(super) fn segment_robbed(&mut self, now: Instant, name: SegmentName) {
        self.counts.segments_lost += 1;
        self.take_anew(now, name);
    }

    /// A server knows a later epoch of a segment: somebody else has it, which the store knows, because it is asked first.
    pub(super) fn segment_stale(&mut self, now: Instant, name: SegmentName, known: Option<u64>) {
        if let Some(segment) = self.segments.get_mut(&name) {
            let own = segment.epoch().map_or(0, |epoch| u64::from(epoch.number()));
            segment.told_epoch = segment.told_epoch.max(known.unwrap_or(own + 1));
        }
        self.segment_robbed(now, name);
    }

    /// What is known of a segment does not count any more: it is taken again, in another epoch, when nothing of it is under way.
    pub(super) fn take_anew(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.standing = Standing::Unserved(Trouble::Taken);
        segment.taking = None;
        segment.again = Some(now + ROBBED_AGAIN);
        self.wake(name);
        self.continue_repair(now);
        // It may have had the memory that others wait for.
        self.continue_takings(now);
    }

    /// So many sequences of the epoch were given that the next one is to begin, long before there are none (I4).
    pub(super) fn end_epoch_in_time(&mut self, now: Instant, name: SegmentName) {
        if let Some(segment) = self.segments.get_mut(&name)
            && segment.next_count > self.config.epoch_changes
        {
            segment.again.get_or_insert(now);
        }
    }

    fn look_at_robbed(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if segment.changes > 0 {
            segment.again = Some(now + RETRY);
            return;
        }
        self.drop_segment(name);
        if !self.volumes.contains_key(&name.volume) {
            self.wake(name);
            return self.forget_segment(name);
        }
        self.want(name);
    }

    /// All that is known of a segment is forgotten, but for who waits for it.
    pub(super) fn drop_segment(&mut self, name: SegmentName) {
        self.give_unresolved_up(name);
        self.forget_asked(Some(name));
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let waiting = std::mem::take(&mut segment.waiting);
        let (reserved, wish, told_epoch) = (segment.reserved, segment.wish, segment.told_epoch);
        *segment = SegmentCore { waiting, reserved, wish, told_epoch, ..SegmentCore::new() };
        self.closing.retain(|(of, _)| *of != name);
        self.checkpoints.remove(&name);
        self.drop_repair_of(name);
        self.drop_cut(name);
        self.ports.values_mut().for_each(|port| port.slots.retire_segment(name));
    }

    /// The store has these: they are taken, so that what they miss is made anew though nobody asks for their blocks.
    pub(super) fn note_segment(&mut self, name: SegmentName) {
        self.segments.entry(name).or_insert_with(SegmentCore::new);
    }

    pub(super) fn segments_next_due(&self) -> Option<Instant> {
        self.segments.values().filter_map(|segment| segment.again).min()
    }

    /// Segments of which the store has said something else are looked at again.
    pub(super) fn segments_due(&mut self, now: Instant) {
        if self.segments_next_due().is_none_or(|due| due > now) {
            return;
        }
        let names: Vec<SegmentName> = self.segments.keys().copied().collect();
        for name in names {
            let Some(segment) = self.segments.get_mut(&name) else { continue };
            if segment.again.take_if(|again| *again <= now).is_none() {
                continue;
            }
            if matches!(
                segment.standing,
                Standing::Unserved(Trouble::Taken | Trouble::NoMemory | Trouble::Impossible)
            ) {
                self.look_at_robbed(now, name);
            } else if segment.next_count > self.config.epoch_changes && segment.standing == Standing::Owned {
                self.take_anew(now, name);
            } else if segment.standing == Standing::Wanted {
                self.want(name);
            } else {
                self.adopt(name);
            }
        }
    }

    /// A new session: what was owned is kept if nobody has taken it meanwhile, which its revision shows.
    pub(super) fn adopt_segments(&mut self) {
        let names: Vec<SegmentName> = self.segments.keys().copied().collect();
        for name in names {
            let Some(segment) = self.segments.get_mut(&name) else { continue };
            if !matches!(segment.standing, Standing::Unserved(_)) {
                segment.again = None;
            }
            match segment.standing {
                Standing::Wanted => self.want(name),
                // Somebody may have taken it meanwhile, and what was found out then does not count.
                Standing::Taking | Standing::Emptying => {
                    self.drop_segment(name);
                    self.want(name);
                }
                Standing::Owned | Standing::Committing => {
                    segment.wants_adoption = true;
                    self.adopt(name);
                }
                Standing::Reading | Standing::Releasing | Standing::Unserved(_) => {}
            }
        }
    }

    /// Keeps a segment, if that is to be and nothing else of it is being committed.
    pub(super) fn adopt(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let is_idle =
            segment.standing == Standing::Owned && !segment.is_committing && segment.again.is_none();
        let (true, true, Some(revision)) = (is_idle, segment.wants_adoption, segment.revision) else {
            return;
        };
        self.put_segment(name, Expect::At(revision), Then::Adopted(name));
    }

    /// Those that wait for a segment are looked at again.
    pub(super) fn wake(&mut self, name: SegmentName) {
        if let Some(segment) = self.segments.get_mut(&name) {
            self.ready.extend(segment.waiting.drain(..));
        }
    }
}
