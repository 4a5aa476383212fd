//! Segments: whether this tier may answer for them, by the store's agreement.
//!
//! ```text
//!   Wanted ─▶ Reading ─ no key ─▶ Committing(Take) ─▶ Owned ─ new session or gate ─▶ Committing(Adopt) ─▶ Owned
//!                └─ written by an earlier life, or somebody else's ─▶ Unserved
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use ob_core::{ChunkId, Epoch, Instant, Revision, SegmentName, Sequence, Units};
use ob_format::volume::metadata::{Segment, SegmentState as Held};
use ob_format::volume::{IndexEntry, RECORDS_START};
use ob_split::wire::Handle;
use ob_wire_nvme::Status;

use super::chunks::TierChunk;
use super::core::{Line, TierCore};
use super::index::{Index, chunk_of};
use super::opening::Opening;
use super::status::Trouble;
use super::store::{Phase, RETRY, Then};
use crate::metadata::{Expect, MetadataValue, Name};

/// Numbers of chunks that are reserved at a time (C7).
pub(super) const CHUNKS_RESERVED: u32 = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is to be read when the store is open.
    Wanted,
    Reading,
    /// A commit that makes it this tier's, or keeps it, is under way.
    Committing,
    Owned,
    Unserved(Trouble),
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
    /// Whether its index has its share of the memory.
    pub(super) is_reserved: bool,
    /// By their slots in the index.
    pub(super) chunks: Vec<TierChunk>,
    /// The one that is appended to.
    pub(super) open: Option<usize>,
    pub(super) opening: Option<Opening>,
    /// The next number of a chunk.
    pub(super) next_chunk: u32,
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
}

impl SegmentCore {
    const fn new() -> Self {
        Self {
            standing: Standing::Wanted,
            record: None,
            revision: None,
            is_committing: false,
            wants_adoption: false,
            index: Index::new(),
            is_reserved: false,
            chunks: Vec::new(),
            open: None,
            opening: None,
            next_chunk: 1,
            next_count: 1,
            waiting: VecDeque::new(),
            changes: 0,
            is_exhausted: false,
            again: None,
        }
    }

    /// The epoch in which it is owned.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.record.map(|record| record.epoch)
    }

    /// A plan will write so many units to a chunk, with so many sequences that follow each other; the first of them. There is none
    /// when the epoch has no more.
    pub(super) fn begin_change(&mut self, chunk: usize, units: u32, count: u32) -> Option<Sequence> {
        let epoch = self.epoch()?;
        let next = self.next_count.checked_add(u64::from(count))?;
        let first = Sequence::new(epoch, self.next_count)?;
        Sequence::new(epoch, next)?;
        let chunk = self.chunks.get_mut(chunk)?;
        chunk.posted = chunk.posted.checked_add(Units(units))?;
        chunk.changes += 1;
        self.next_count = next;
        self.changes += 1;
        Some(first)
    }

    /// A record takes less than was reserved for it.
    pub(super) fn give_back(&mut self, chunk: usize, units: u32) {
        if let Some(chunk) = self.chunks.get_mut(chunk) {
            chunk.posted = Units(chunk.posted.0.saturating_sub(units)).max(chunk.end);
        }
    }

    /// Nobody hears of what servers were asked for. A commit is answered all the same.
    pub(super) fn forget_opening(&mut self) {
        if !self.opening.as_ref().is_some_and(Opening::is_committing) {
            self.opening = None;
        }
    }

    /// A plan that wrote to a chunk is over.
    pub(super) fn end_change(&mut self, chunk: usize) {
        self.changes -= 1;
        let Some(chunk) = self.chunks.get_mut(chunk) else { return };
        chunk.changes -= 1;
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
        let segment = self.segments.entry(name).or_insert_with(SegmentCore::new);
        match segment.standing {
            Standing::Owned => return Own::Yes,
            Standing::Unserved(_) => return Own::No(Status::NAMESPACE_NOT_READY),
            Standing::Wanted | Standing::Reading | Standing::Committing => {}
        }
        let is_wanted = segment.standing == Standing::Wanted && segment.again.is_none();
        self.line_up(Line::Segment(name), handle);
        if is_wanted {
            self.want(name);
        }
        Own::Wait
    }

    fn want(&mut self, name: SegmentName) {
        if self.store.phase != Phase::Open {
            return;
        }
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.standing = Standing::Reading;
            self.read_segment(name);
        }
    }

    /// The store was asked whether it has the segment's record.
    pub(super) fn segment_read(&mut self, name: SegmentName, is_there: bool) {
        let is_open = self.store.phase == Phase::Open;
        let Some(segment) =
            self.segments.get_mut(&name).filter(|segment| segment.standing == Standing::Reading)
        else {
            return;
        };
        if is_there {
            // It was written before, and its log would have to be replayed.
            segment.standing = Standing::Unserved(Trouble::NeedsReplay);
            return self.wake(name);
        }
        if !is_open {
            segment.standing = Standing::Wanted;
            return;
        }
        self.put_segment(name, Expect::Absent, Then::Taken(name));
    }

    /// Makes a segment this tier's, or keeps it so by a new session or gate.
    fn put_segment(&mut self, name: SegmentName, expect: Expect, then: Then) {
        let (tier, gate, lock) = self.identity();
        let lease_ms = self.lease_ms();
        let Some(tier_revision) = self.store.tier_revision else { return };
        let Some(volume) = self.volumes.get(&name.volume) else { return };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let before = segment.record;
        let record = Segment {
            state: Held::Owned,
            epoch: before.map_or(Epoch::FIRST, |before| before.epoch),
            lease_ms,
            owner: tier,
            session_revision: tier_revision,
            gate,
            chunk_next: before.map_or(ChunkId(1 + CHUNKS_RESERVED), |before| before.chunk_next),
            generation: volume.volume.generation,
            head: None,
            lock,
            wait_ms: lease_ms,
        };
        segment.standing = Standing::Committing;
        segment.wants_adoption = false;
        segment.record = Some(record);
        let others = vec![
            (self.config.keys.key(Name::Tier(tier)), Expect::At(tier_revision)),
            // S1: nobody takes a segment of a volume that is being removed, or by an old size.
            (self.config.keys.key(Name::Volume(name.volume)), Expect::At(volume.revision)),
        ];
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
        match revision {
            Some(revision) => {
                segment.revision = Some(revision);
                segment.standing = Standing::Owned;
            }
            None if was_there && there == segment.revision => {
                // Nobody has taken it: it was the session that is another by now.
                (segment.standing, segment.wants_adoption) = (Standing::Owned, true);
                segment.again = Some(now + RETRY);
            }
            None if was_there => {
                // Only another owner can have changed it.
                segment.standing = Standing::Unserved(Trouble::Taken);
                self.counts.segments_lost += 1;
            }
            None => {
                // The session, or the volume, is another by now; or somebody was first, which the next look shows.
                segment.record = None;
                segment.standing = Standing::Wanted;
                segment.again = Some(now + RETRY);
                return;
            }
        }
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
            if segment.standing == Standing::Wanted {
                self.want(name);
            } else {
                self.adopt(name);
            }
        }
    }

    /// A new session, or a new gate: what was owned is kept if nobody has taken it meanwhile, which its revision shows.
    pub(super) fn adopt_segments(&mut self) {
        let names: Vec<SegmentName> = self.segments.keys().copied().collect();
        for name in names {
            let Some(segment) = self.segments.get_mut(&name) else { continue };
            segment.again = None;
            match segment.standing {
                Standing::Wanted => self.want(name),
                Standing::Owned | Standing::Committing => {
                    segment.wants_adoption = true;
                    self.adopt(name);
                }
                Standing::Reading | Standing::Unserved(_) => {}
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
