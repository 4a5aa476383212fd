//! Checkpoints of a segment's index: all pages, while writes go on, then the root, and one commit that makes it the head.
//!
//! ```text
//!   Pages ─ all are on all members ─▶ Root, part behind part ─▶ Sealing ─ all index chunks are sealed ─▶ Committing ─▶ the head (I6)
//!     └─────────────── a member is lost, there is no room ───────────────┘──▶ given up: its chunks are nobody's, and go; later anew
//! ```
//!
//! `head_sequence` is taken first, and each page's `as_of` when it is looked at: both lie below whatever is under way then (I5). Places of
//! chunks that have gone are not used again meanwhile (I7).

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{ChunkName, Instant, Revision, SegmentName, Sequence, Units};
use ob_format::volume::metadata::{Class, Head};
use ob_format::volume::{
    ChunkKind, PAGE_LEN, PagePlace, Root, RootSummary, STORED_MAX, Slot as RootSlot, encode_page, encode_root,
};
use ob_split::wire::{Completion, CompletionStatus};

use super::areas::RecordFor;
use super::chunks::{ChunkIs, Pinned, TierChunk};
use super::core::TierCore;
use super::opening::OpenFor;
use super::plant::{Bug, is_planted};
use super::ports::MAIN;
use super::segments::{SegmentCore, Standing};
use super::space::Fullness;
use super::store::Then;
use crate::metadata::{Expect, MetadataValue, Name};
use crate::plans::IndexPart;

/// Pages that are under way at a time.
const PAGES_MAX: usize = 8;
/// How long after it was given up a checkpoint is begun anew.
const AGAIN: Duration = Duration::from_secs(5);

/// A checkpoint that is under way.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Answers to an earlier one are not heard.
    attempt: u64,
    /// Below every operation that was under way when it began.
    head_sequence: Sequence,
    phase: Phase,
    /// The next page that is looked at.
    next_page: u32,
    under_way: usize,
    pages: BTreeMap<u32, PagePlace>,
    /// The index chunk that is written to, and all of this checkpoint, by their places.
    open: Option<usize>,
    chunks: Vec<usize>,
    root: Vec<u8>,
    /// Bytes of the root that are written, and where its first part is.
    root_written: usize,
    root_at: Option<(usize, Units)>,
    is_given_up: bool,
    /// What was logged and sealed since the last one, when it began.
    logged: u64,
    sealed: u32,
    /// The generation of the volume beyond whose end it has nothing, if that is why it was begun.
    cut: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pages,
    Root,
    Sealing,
    Committing,
}

impl Checkpoint {
    /// Its index chunks, which are not nobody's.
    pub(super) fn chunks(&self) -> &[usize] {
        if self.is_given_up { &[] } else { &self.chunks }
    }
}

/// Units of a record of so many bytes.
const fn units_of(bytes: usize) -> u32 {
    1 + Units::of_bytes(bytes as u32).0
}

impl SegmentCore {
    /// A sequence for what changes no block.
    fn take_sequence(&mut self) -> Option<Sequence> {
        let sequence = Sequence::new(self.epoch()?, self.next_count)?;
        Sequence::new(self.epoch()?, self.next_count.checked_add(1)?)?;
        self.next_count += 1;
        Some(sequence)
    }

    /// The table of slots, as the root has it.
    fn root_slots(&self, name: SegmentName) -> Vec<Option<RootSlot>> {
        let slot = |chunk: &TierChunk| {
            let is_there =
                chunk.kind == ChunkKind::Data && !matches!(chunk.is, ChunkIs::Dead(_) | ChunkIs::Gone);
            is_there.then(|| RootSlot {
                chunk: ChunkName::new(name, chunk.number),
                live: u32::try_from(chunk.live).unwrap_or(u32::MAX),
                blocks: u32::try_from(chunk.blocks).unwrap_or(u32::MAX),
                last_sequence: chunk.last_sequence,
            })
        };
        self.chunks.iter().map(slot).collect()
    }
}

impl TierCore {
    /// Whether a checkpoint is under way, and places of chunks are not used again (I7).
    pub(super) fn is_checkpointed(&self, name: SegmentName) -> bool {
        self.checkpoints.contains_key(&name) && !is_planted(Bug::SlotReused)
    }

    /// Whether one of a segment is under way.
    pub(super) fn is_checkpoint_there(&self, name: SegmentName) -> bool {
        self.checkpoints.contains_key(&name)
    }

    /// Whether a checkpoint of a segment should begin.
    fn is_checkpoint_due(&self, now: Instant, name: SegmentName) -> bool {
        let Some(segment) = self.segments.get(&name).filter(|segment| segment.standing == Standing::Owned)
        else {
            return false;
        };
        if self.is_handed_over(name) {
            return false;
        }
        let head = segment.head_sequence();
        let is_held_back = self.checkpoint_again.is_some_and(|again| again > now);
        if is_held_back || !self.checkpoints.is_empty() {
            return false;
        }
        if self.cut_to_write(name).is_some() {
            return true;
        }
        // What the head says already is not said again.
        if segment.floor().is_none_or(|floor| floor <= head) {
            return false;
        }
        let units = |place: usize| segment.chunks.get(place).map_or(0, |chunk| chunk.length.bytes());
        let weight = |place: &usize| segment.is_dead_weight(*place);
        let waiting: u64 = (0..segment.chunks.len()).filter(weight).map(units).sum();
        let stored: u64 = segment.chunks_there().map(|chunk| chunk.end.bytes()).sum();
        let least = match self.fullness() {
            Fullness::Roomy => self.config.checkpoint_dead,
            Fullness::Short => self.config.checkpoint_dead / 16,
            Fullness::Full => 1,
        };
        let is_heavy = waiting >= least.max(1)
            && (waiting >= (stored - waiting) / 2 || self.fullness() == Fullness::Full);
        segment.space.logged >= segment.index.mapped().max(self.config.checkpoint_blocks)
            || segment.space.sealed >= self.config.checkpoint_chunks
            || is_heavy
    }

    /// Begins a checkpoint if one is due, or does what can be done of the one that is under way.
    pub(super) fn continue_checkpoint(&mut self, now: Instant, name: SegmentName) {
        if !self.checkpoints.contains_key(&name) {
            if !self.is_checkpoint_due(now, name) {
                return;
            }
            self.begin_checkpoint(name);
        }
        let is_owned = self.segments.get(&name).is_some_and(|segment| segment.standing == Standing::Owned);
        if !is_owned {
            return self.end_without_head(name);
        }
        self.look_for_lost_chunks(name);
        let Some(checkpoint) = self.checkpoints.get(&name) else { return };
        if checkpoint.is_given_up {
            if checkpoint.under_way == 0 && checkpoint.phase != Phase::Committing {
                self.end_without_head(name);
                self.checkpoint_again = Some(now + AGAIN);
            }
            return;
        }
        match checkpoint.phase {
            Phase::Pages => self.write_pages(now, name),
            Phase::Root => self.write_root(now, name),
            Phase::Sealing => self.commit_head(name),
            Phase::Committing => {}
        }
    }

    fn begin_checkpoint(&mut self, name: SegmentName) {
        let cut = self.cut_to_write(name);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        // Taken before any page is looked at: one that is empty now has everything up to here, and no more.
        let Some(head_sequence) = segment.floor() else { return };
        self.last_attempt += 1;
        let checkpoint = Checkpoint {
            attempt: self.last_attempt,
            head_sequence,
            phase: Phase::Pages,
            next_page: 0,
            under_way: 0,
            pages: BTreeMap::new(),
            open: None,
            chunks: Vec::new(),
            root: Vec::new(),
            root_written: 0,
            root_at: None,
            is_given_up: false,
            logged: std::mem::take(&mut segment.space.logged),
            sealed: std::mem::take(&mut segment.space.sealed),
            cut,
        };
        self.checkpoints.insert(name, checkpoint);
    }

    /// The head is what it was, and so is all that it is behind of.
    fn end_without_head(&mut self, name: SegmentName) {
        let Some(checkpoint) = self.checkpoints.remove(&name) else { return };
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.space.logged += checkpoint.logged;
            segment.space.sealed += checkpoint.sealed;
        }
    }

    /// What was begun is left as it is: its chunks are nobody's, and the head is what it was.
    pub(super) fn give_checkpoint_up(&mut self, name: SegmentName) {
        let Some(checkpoint) = self.checkpoints.get_mut(&name) else { return };
        if checkpoint.phase != Phase::Committing && !std::mem::replace(&mut checkpoint.is_given_up, true) {
            self.counts.checkpoints_given_up += 1;
        }
    }

    /// An index chunk that lost a member before it was whole has lost the checkpoint, and so has one that cannot be sealed: nobody needs it.
    fn look_for_lost_chunks(&mut self, name: SegmentName) {
        let Some(checkpoint) = self.checkpoints.get(&name) else { return };
        let Some(segment) = self.segments.get(&name) else { return };
        let is_open = |place: usize| segment.chunks.get(place).is_some_and(TierChunk::is_open);
        let is_writing = matches!(checkpoint.phase, Phase::Pages | Phase::Root);
        let is_stuck = |place: &usize| {
            let chunk = segment.chunks.get(*place);
            chunk.is_some_and(|chunk| matches!(&chunk.is, ChunkIs::Closing(seal) if seal.is_stuck()))
        };
        let is_sealing = checkpoint.phase == Phase::Sealing;
        if (is_writing && checkpoint.open.is_some_and(|place| !is_open(place)))
            || (is_sealing && checkpoint.chunks.iter().any(is_stuck))
        {
            self.give_checkpoint_up(name);
        }
    }

    /// The index chunk that is written to, with so much room. If there is none, one is made.
    fn index_chunk(&mut self, now: Instant, name: SegmentName, units: u32) -> Option<usize> {
        let checkpoint = self.checkpoints.get_mut(&name)?;
        let open = checkpoint.open;
        let segment = self.segments.get(&name)?;
        let room = |place: usize| segment.chunks.get(place).map_or(0, TierChunk::room);
        match open {
            Some(place) if room(place) >= units => return Some(place),
            // It has been written to the end.
            Some(place) if segment.chunks.get(place).is_some_and(|chunk| chunk.changes == 0) => {
                checkpoint.open = None;
                self.close_chunk(now, name, place);
            }
            Some(_) => return None,
            None => {}
        }
        self.open_chunk(now, name, OpenFor::Index);
        None
    }

    /// There is an index chunk for a checkpoint, or for nobody if that is over.
    pub(super) fn index_chunk_opened(&mut self, now: Instant, name: SegmentName, place: usize) {
        if let Some(checkpoint) = self.checkpoints.get_mut(&name).filter(|checkpoint| !checkpoint.is_given_up)
        {
            checkpoint.open = Some(place);
            checkpoint.chunks.push(place);
            self.continue_checkpoint(now, name);
        }
    }

    fn write_pages(&mut self, now: Instant, name: SegmentName) {
        loop {
            let Some(checkpoint) = self.checkpoints.get(&name) else { return };
            let Some(segment) = self.segments.get(&name) else { return };
            if checkpoint.under_way >= PAGES_MAX || !self.areas.has_upload() {
                return;
            }
            let Some((page, entries)) = segment.index.page_from(checkpoint.next_page) else { break };
            let as_of = if is_planted(Bug::AsOfTooNew) { segment.last_given() } else { segment.floor() };
            let Some(as_of) = as_of else { return };
            let mut bytes = [0; PAGE_LEN];
            if encode_page(page, as_of, entries, &mut bytes).is_err() {
                self.counts.mistakes += 1;
                return self.give_checkpoint_up(name);
            }
            if !self.write_record(now, name, IndexPart::Page(page), bytes.to_vec()) {
                return;
            }
            if let Some(checkpoint) = self.checkpoints.get_mut(&name) {
                checkpoint.next_page = page + 1;
            }
        }
        if self.checkpoints.get(&name).is_some_and(|checkpoint| checkpoint.under_way == 0) {
            self.make_root(now, name);
        }
    }

    /// All pages are written: the root says where.
    fn make_root(&mut self, now: Instant, name: SegmentName) {
        let Some(block_len) = self.volumes.get(&name.volume).map(|served| served.volume.block_len) else {
            return;
        };
        let Some(segment) = self.segments.get(&name) else { return };
        let Some(checkpoint) = self.checkpoints.get_mut(&name) else { return };
        let places: Vec<PagePlace> = checkpoint.pages.values().copied().collect();
        let head_sequence = match is_planted(Bug::HeadTooNew) {
            true => segment.last_given().unwrap_or(checkpoint.head_sequence),
            false => checkpoint.head_sequence,
        };
        checkpoint.head_sequence = head_sequence;
        // Blocks that were mapped meanwhile may be on pages that are not written.
        let most = places.len() as u64 * ob_format::volume::PAGE_ENTRIES as u64;
        let summary = RootSummary { block_len, head_sequence, mapped: segment.index.mapped().min(most) };
        match encode_root(&summary, &segment.root_slots(name), &places) {
            Ok(root) => (checkpoint.root, checkpoint.phase) = (root, Phase::Root),
            Err(_) => {
                self.counts.mistakes += 1;
                return self.give_checkpoint_up(name);
            }
        }
        self.write_root(now, name);
    }

    /// The next part of the root. They follow each other, so one is under way at a time, and all of them have room in one chunk.
    fn write_root(&mut self, now: Instant, name: SegmentName) {
        let Some(checkpoint) = self.checkpoints.get(&name) else { return };
        if checkpoint.under_way > 0 {
            return;
        }
        let (written, all) = (checkpoint.root_written, checkpoint.root.len());
        if written == all {
            return self.seal_index(now, name);
        }
        if written == 0 {
            let parts = all.div_ceil(STORED_MAX as usize);
            let units = units_of(all) + parts as u32;
            let chunk_units =
                self.volumes.get(&name.volume).map_or(0, |served| served.volume.chunk_len / Units::LEN);
            if units + ob_format::volume::RECORDS_START.0 > chunk_units {
                // Its volume should have been refused.
                return self.give_checkpoint_up(name);
            }
            if self.index_chunk(now, name, units).is_none() {
                return;
            }
        }
        let end = all.min(written + STORED_MAX as usize);
        let part = self.checkpoints.get(&name).and_then(|checkpoint| checkpoint.root.get(written..end));
        let Some(bytes) = part.map(<[u8]>::to_vec) else { return };
        self.write_record(now, name, IndexPart::Root, bytes);
    }

    /// Writes a record of the index, if there is room for it; else it is tried again when something has happened.
    fn write_record(&mut self, now: Instant, name: SegmentName, part: IndexPart, bytes: Vec<u8>) -> bool {
        let units = units_of(bytes.len());
        let Some(place) = self.index_chunk(now, name, units) else { return false };
        let slot = match self.pin_chunk(MAIN, name, place) {
            Pinned::Yes(slot) => slot,
            Pinned::NoSlot => return false,
            Pinned::NoMember => {
                self.give_checkpoint_up(name);
                return false;
            }
        };
        let class = self.volumes.get(&name.volume).map_or(Class::Plain, |served| served.volume.class);
        let effort = u8::from(class != Class::Plain);
        let Some(checkpoint) = self.checkpoints.get_mut(&name) else { return false };
        let Some(segment) = self.segments.get_mut(&name) else { return false };
        let attempt = checkpoint.attempt;
        let Some(sequence) = segment.take_sequence() else {
            self.unpin_main(slot);
            self.give_checkpoint_up(name);
            return false;
        };
        let record = RecordFor { chunk: (name, place), part, sequence, units, slot, attempt };
        if !self.index_record(record, effort, bytes) {
            self.unpin_main(slot);
            return false;
        }
        if let Some(checkpoint) = self.checkpoints.get_mut(&name) {
            checkpoint.under_way += 1;
        }
        let segment = self.segments.get_mut(&name);
        if let Some(chunk) = segment.and_then(|segment| segment.chunks.get_mut(place)) {
            chunk.changes += 1;
            chunk.posted = Units(chunk.posted.0 + units);
        }
        true
    }

    /// A record of the index is on all members, or is not.
    pub(super) fn index_written(&mut self, now: Instant, record: RecordFor, completion: &Completion) {
        let (name, place) = record.chunk;
        self.unpin_main(record.slot);
        self.ready.extend(self.slotless.drain(..));
        let mut is_good = completion.status == CompletionStatus::Good;
        let (offset, units) = (Units(completion.offset), Units(completion.units.into()));
        let segment = self.segments.get_mut(&name);
        let Some(segment) = segment.filter(|segment| segment.epoch() == record.sequence.epoch()) else {
            return;
        };
        let Some(chunk) = segment.chunks.get_mut(place) else { return };
        let number = chunk.number;
        chunk.changes = chunk.changes.saturating_sub(1);
        if is_good && offset.0.saturating_add(units.0) > chunk.posted.0 {
            // The card says what cannot be.
            self.counts.mistakes += 1;
            is_good = false;
        }
        if is_good {
            chunk.end = chunk.end.max(Units(offset.0.saturating_add(units.0)));
            chunk.records += 1;
            chunk.last_sequence = chunk.last_sequence.max(record.sequence);
            let rest = record.units.saturating_sub(units.0);
            chunk.posted = Units(chunk.posted.0.saturating_sub(rest)).max(chunk.end);
        }
        let checkpoint =
            self.checkpoints.get_mut(&name).filter(|checkpoint| checkpoint.attempt == record.attempt);
        if let Some(checkpoint) = checkpoint {
            checkpoint.under_way = checkpoint.under_way.saturating_sub(1);
            match record.part {
                _ if !is_good => {
                    self.give_checkpoint_up(name);
                    self.close_chunk(now, name, place);
                }
                IndexPart::Page(page) => {
                    let at = PagePlace { page, chunk: number, offset, stored: completion.word };
                    checkpoint.pages.insert(page, at);
                }
                IndexPart::Root => {
                    checkpoint.root_at.get_or_insert((place, offset));
                    checkpoint.root_written =
                        checkpoint.root.len().min(checkpoint.root_written + STORED_MAX as usize);
                }
            }
        }
        self.continue_seal(now, name, place);
        self.continue_space(now, name);
    }

    /// Everything is written: its chunks are sealed, and the head is committed when all of them are.
    fn seal_index(&mut self, now: Instant, name: SegmentName) {
        let Some(checkpoint) = self.checkpoints.get_mut(&name) else { return };
        checkpoint.phase = Phase::Sealing;
        let chunks = checkpoint.chunks.clone();
        if is_planted(Bug::HeadBeforePages) {
            return self.commit_head(name);
        }
        for place in chunks {
            self.close_chunk(now, name, place);
        }
        self.commit_head(name);
    }

    /// One commit makes the checkpoint the head, and what the last head named nobody's.
    fn commit_head(&mut self, name: SegmentName) {
        let Some(checkpoint) = self.checkpoints.get(&name) else { return };
        let Some(segment) = self.segments.get(&name) else { return };
        let is_sealed = |place: &usize| {
            let chunk = segment.chunks.get(*place);
            chunk.is_some_and(|chunk| matches!(chunk.is, ChunkIs::Sealed { .. }))
                || is_planted(Bug::HeadBeforePages)
        };
        if segment.is_committing || segment.wants_adoption || !checkpoint.chunks.iter().all(is_sealed) {
            return;
        }
        let (Some(revision), Some(record)) = (segment.revision, segment.record) else { return };
        let Some(head) = self.head_of(checkpoint, segment) else {
            self.counts.mistakes += 1;
            return self.give_checkpoint_up(name);
        };
        let generation = checkpoint.cut.unwrap_or(record.generation);
        let record = ob_format::volume::metadata::Segment { head: Some(head), generation, ..record };
        let key = |number| self.config.keys.key(Name::Chunk(ChunkName::new(name, number)));
        let new = checkpoint.chunks.iter().filter_map(|place| segment.chunks.get(*place));
        let keep = new.map(|chunk| (key(chunk.number), Expect::At(chunk.revision))).collect();
        let segment_key = self.config.keys.key(Name::Segment(name));
        let mut changes = vec![(segment_key, Expect::At(revision), Some(MetadataValue::Segment(record)))];
        changes.extend(self.dead_records(name, &segment.space.head_chunks));
        if let Some(checkpoint) = self.checkpoints.get_mut(&name) {
            checkpoint.phase = Phase::Committing;
        }
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.is_committing = true;
        }
        self.commit_all(changes, keep, Then::Headed(name, head));
    }

    fn head_of(&self, checkpoint: &Checkpoint, segment: &SegmentCore) -> Option<Head> {
        let (place, offset) = checkpoint.root_at?;
        Some(Head {
            sequence: checkpoint.head_sequence,
            chunk: segment.chunks.get(place)?.number,
            offset,
            length: u32::try_from(checkpoint.root.len()).ok()?,
            crc: Root::decode(&checkpoint.root).ok()?.crc,
        })
    }

    /// The store has the head, or never will.
    pub(super) fn head_committed(
        &mut self,
        now: Instant,
        name: SegmentName,
        head: Head,
        revision: Option<Revision>,
    ) {
        let checkpoint = self.checkpoints.remove(&name);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        match (revision, checkpoint) {
            (Some(revision), Some(checkpoint)) => {
                segment.revision = Some(revision);
                let cut = checkpoint.cut;
                segment.record.iter_mut().for_each(|record| {
                    record.head = Some(head);
                    record.generation = cut.unwrap_or(record.generation);
                });
                let old = std::mem::replace(&mut segment.space.head_chunks, checkpoint.chunks);
                self.counts.checkpoints += 1;
                if let Some(generation) = cut {
                    self.cut_written(name, generation);
                }
                self.note_dead(name, &old, revision);
            }
            _ => self.lose_segment(name),
        }
        self.commit_over(now, name);
    }
}
