//! Compaction: what still counts of a sealed chunk most of which does not is moved to the end of another, so that the first can go.
//!
//! ```text
//!   choose: the emptiest ─▶ LIST, a part at a time ─▶ runs of blocks that still lie there ─▶ each waits for its blocks (I3, G3)
//!        ▲                                                                                       │ still there?
//!        └── no block is left: `space` buries it ◀── index, when all members have it ◀── MOVE ◀──┘
//! ```
//!
//! One chunk is compacted at a time, into the maintenance chunk of its segment, at a bounded rate. That chunk may use the reserve, as
//! trims may when there is no other (G6).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use ob_core::{BlockLen, ChunkName, Instant, Lba, SegmentName, Sequence, Units, VolumeId};
use ob_format::volume::metadata::Class;
use ob_format::volume::{ChunkKind, Entry, IndexEntry, RECORDS_START, RecordKind};
use ob_split::wire::{Completion, CompletionStatus, Handle, Slot};

use super::areas::{LookFor, Looked};
use super::chunks::{ChunkIs, Pinned, TierChunk, Unresolved};
use super::command::record_units;
use super::core::TierCore;
use super::fates::Keeper;
use super::opening::OpenFor;
use super::plant::{Bug, is_planted};
use super::ports::MAIN;
use super::segments::{SegmentCore, Standing};
use super::servers::{Call, CallFor, ServerCore};
use super::slots::ChunkPlace;
use super::space::Fullness;
use super::{PortNumber, TierError};
use crate::plans::{LOOK_ENTRIES_MAX, Move, Part, PostedPlan};
use crate::wire::{Request, decode_entries};

/// Moves under way, or waiting for their blocks.
const MOVES_MAX: usize = 8;
/// How often the list of a chunk, or a record of it, may not be had before another chunk is compacted.
const FAILURES_MAX: u8 = 3;
/// How long a chunk that could not be emptied is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(30);
/// How many sealed chunks of less than a quarter are compacted into one.
const SMALL_MAX: usize = 8;

/// A chunk that is compacted.
#[derive(Debug)]
pub(super) struct Compaction {
    /// Answers to an earlier one are not heard.
    attempt: u64,
    chunk: ChunkPlace,
    is_listing: bool,
    /// Where its list goes on.
    next: Units,
    queue: VecDeque<Piece>,
    under_way: usize,
    /// Who is asked next.
    source: usize,
    failures: u8,
    /// How often its list was gone through.
    passes: u8,
}

/// Blocks that follow each other and lie in one record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    blocks: Range<u32>,
    place: Units,
    units: Units,
    /// Whether they are all that the record has.
    is_whole: bool,
}

/// A piece that waits for its blocks, or has them.
#[derive(Debug)]
pub(super) struct Mover {
    attempt: u64,
    from: ChunkPlace,
    piece: Piece,
    posted: Option<PostedMove>,
}

#[derive(Clone, Copy, Debug)]
struct PostedMove {
    to: usize,
    sequence: Sequence,
    /// Units that were reserved.
    units: u32,
    pins: [Slot; 2],
}

impl SegmentCore {
    /// The runs of an entry's blocks that still lie in its record.
    fn live_runs(&self, chunk: usize, entry: &Entry) -> Vec<Piece> {
        let units = Units(entry.end().0.saturating_sub(entry.offset.0));
        let Some(mapped) = IndexEntry::mapped(entry.offset, units, chunk as u32) else { return Vec::new() };
        let Some(end) = entry.lba.0.checked_add(entry.blocks) else { return Vec::new() };
        let (mut runs, mut lba) = (Vec::new(), entry.lba.0);
        while lba < end {
            if self.index.get(lba) != mapped {
                lba += 1;
                continue;
            }
            let first = lba;
            while lba < end && self.index.get(lba) == mapped {
                lba += 1;
            }
            let is_whole = first == entry.lba.0 && lba == end;
            runs.push(Piece { blocks: first..lba, place: entry.offset, units, is_whole });
        }
        runs
    }

    /// Whether all blocks of a piece still lie there.
    fn has_piece(&self, chunk: usize, piece: &Piece) -> bool {
        let mapped = IndexEntry::mapped(piece.place, piece.units, chunk as u32);
        piece.blocks.clone().all(|lba| Some(self.index.get(lba)) == mapped)
    }
}

impl TierCore {
    pub(super) fn compaction_next_due(&self) -> Option<Instant> {
        self.compaction.as_ref().filter(|compaction| !compaction.queue.is_empty())?;
        self.compact_at.filter(|at| *at > self.now)
    }

    /// What can be done of compaction is done.
    pub(super) fn continue_compaction(&mut self, now: Instant) {
        if !self.is_connected() {
            return;
        }
        if self.compaction.is_none() && !self.begin_compaction(now) {
            return;
        }
        let Some(compaction) = &self.compaction else { return };
        let (name, place) = compaction.chunk;
        let is_its =
            |segment: &&SegmentCore| segment.standing == Standing::Owned && !self.is_handed_over(name);
        let segment = self.segments.get(&name).filter(is_its);
        let chunk = segment.and_then(|segment| segment.chunks.get(place));
        let is_there = chunk.is_some_and(|chunk| matches!(chunk.is, ChunkIs::Sealed { .. }));
        if !is_there || compaction.failures > FAILURES_MAX {
            return self.end_compaction(now);
        }
        if compaction.is_listing {
            return;
        }
        self.begin_moves(now);
        let Some(compaction) = &self.compaction else { return };
        if compaction.queue.is_empty() && compaction.under_way == 0 {
            self.list_on(now);
        }
    }

    /// Chooses a chunk.
    fn begin_compaction(&mut self, now: Instant) -> bool {
        self.left_alone.retain(|_, until| *until > now);
        let Some(chunk) = self.emptiest() else { return false };
        self.last_attempt += 1;
        self.compaction = Some(Compaction {
            attempt: self.last_attempt,
            chunk,
            is_listing: false,
            next: RECORDS_START,
            queue: VecDeque::new(),
            under_way: 0,
            source: 0,
            failures: 0,
            passes: 0,
        });
        true
    }

    /// The sealed chunk of which the least still counts, if that is little enough.
    fn emptiest(&self) -> Option<ChunkPlace> {
        let fullness = self.fullness();
        let share = match fullness {
            Fullness::Roomy => self.config.compact_share,
            Fullness::Short => self.config.compact_share / 2,
            Fullness::Full => 1,
        };
        let mut found: Vec<(u64, ChunkPlace)> = Vec::new();
        let owned = self.segments.iter().filter(|(_, segment)| segment.standing == Standing::Owned);
        for (name, segment) in owned.filter(|(name, _)| !self.is_handed_over(**name)) {
            let is_candidate = |place: usize, chunk: &TierChunk| {
                let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. }) && chunk.kind == ChunkKind::Data;
                is_sealed && chunk.live > 0 && !self.left_alone.contains_key(&(*name, place))
            };
            let chunks = segment.chunks.iter().enumerate();
            let chunks: Vec<(usize, &TierChunk)> =
                chunks.filter(|(place, chunk)| is_candidate(*place, chunk)).collect();
            let whole = self.volumes.get(&name.volume).map_or(0, |served| u64::from(served.volume.chunk_len));
            let is_small = |chunk: &TierChunk| chunk.length.bytes() < whole / 4;
            let has_many_small = chunks.iter().filter(|(_, chunk)| is_small(chunk)).count() >= SMALL_MAX;
            for (place, chunk) in chunks {
                let gone = chunk.blocks.saturating_sub(chunk.live);
                // What only those have that nobody names goes where it is named (R5).
                if self.is_orphaned(chunk) {
                    found.push((0, (*name, place)));
                    continue;
                }
                let is_due = gone * 1000 >= chunk.blocks * u64::from(share) && gone > 0
                    || gone >= self.config.compact_writes
                    || (has_many_small && is_small(chunk));
                if is_due {
                    found.push((chunk.live * 1000 / chunk.blocks.max(1), (*name, place)));
                }
            }
        }
        found.into_iter().min().map(|(_, place)| place)
    }

    /// Nothing more of a segment is moved.
    pub(super) fn end_compaction_of(&mut self, now: Instant, name: SegmentName) {
        if self.compaction.as_ref().is_some_and(|compaction| compaction.chunk.0 == name) {
            self.end_compaction(now);
        }
    }

    /// Whether all members of a chunk are lost, and another has something of it.
    fn is_orphaned(&self, chunk: &TierChunk) -> bool {
        let is_ready = |server: &usize| self.servers.get(*server).is_some_and(ServerCore::is_ready);
        chunk.members.iter().all(|member| self.is_lost(self.now, *member))
            && chunk.strays.iter().any(is_ready)
    }

    fn end_compaction(&mut self, now: Instant) {
        let Some(compaction) = self.compaction.take() else { return };
        let (name, place) = compaction.chunk;
        let live =
            self.segments.get(&name).and_then(|segment| segment.chunks.get(place)).map(|chunk| chunk.live);
        if live == Some(0) {
            self.counts.chunks_compacted += 1;
        } else {
            self.left_alone.insert(compaction.chunk, now + LEFT_ALONE);
        }
        self.continue_space(now, name);
    }

    /// Asks for the next part of the list; or all of it was gone through.
    fn list_on(&mut self, now: Instant) {
        let Some(compaction) = &mut self.compaction else { return };
        let (name, place) = compaction.chunk;
        let Some(segment) = self.segments.get(&name) else { return };
        let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get(place)) else { return };
        if compaction.next >= chunk.length {
            (compaction.next, compaction.passes) = (RECORDS_START, compaction.passes + 1);
            // Of those that are not named each may have something else.
            compaction.source += 1;
        }
        if chunk.live == 0 || compaction.passes > 1 {
            return self.end_compaction(now);
        }
        let (attempt, from, source) = (compaction.attempt, compaction.next, compaction.source);
        let (of, to, there) = (ChunkName::new(name, chunk.number), chunk.length, self.givers(chunk));
        let Some(server) = there.get(source % there.len().max(1)).copied() else {
            return self.end_compaction(now);
        };
        if let Some(compaction) = &mut self.compaction {
            compaction.is_listing = true;
        }
        let request = Request::List { chunk: of, epoch, from, to, most: LOOK_ENTRIES_MAX };
        self.look(server, LookFor::Compaction { attempt }, request);
    }

    /// A member has told records of the chunk, or has not.
    pub(super) fn chunk_listed(&mut self, now: Instant, attempt: u64, looked: Looked<'_>) {
        let Some(compaction) = self.compaction.as_mut().filter(|compaction| compaction.attempt == attempt)
        else {
            return;
        };
        compaction.is_listing = false;
        let (name, place) = compaction.chunk;
        let entries = match looked {
            Looked::Brought { bytes, word, .. } if Units(word) > compaction.next => {
                decode_entries(bytes).ok().map(|entries| (entries, Units(word)))
            }
            Looked::Brought { .. } | Looked::Stale | Looked::Failed => None,
        };
        match (entries, self.segments.get(&name)) {
            (Some((entries, next)), Some(segment)) => {
                compaction.next = next;
                let is_data = |entry: &Entry| matches!(entry.kind, RecordKind::Write | RecordKind::Move);
                let runs = entries.filter(is_data).flat_map(|entry| segment.live_runs(place, &entry));
                compaction.queue.extend(runs);
            }
            _ => {
                compaction.failures += 1;
                compaction.source += 1;
            }
        }
        self.continue_compaction(now);
    }

    /// The chunk that a port fills for maintenance, with room for so many units. If there is none, one is made.
    pub(super) fn maintenance_chunk(
        &mut self,
        now: Instant,
        name: SegmentName,
        port: PortNumber,
        units: u32,
    ) -> Option<usize> {
        let segment = self.segments.get(&name)?;
        if let Some(place) = segment.space.maintenance.get(&port).copied() {
            let chunk = segment.chunks.get(place)?;
            let is_ready = |member: &usize| self.is_ready_at(port, *member);
            if chunk.room() >= units && chunk.members.iter().all(is_ready) {
                return Some(place);
            }
            self.close_chunk(now, name, place);
        }
        self.close_maintenance_but(now, name);
        self.open_chunk(now, name, OpenFor::Maintenance(port));
        None
    }

    /// When only the reserve is left one maintenance chunk is open, whichever segment's, so that what others promise is there again (G6).
    pub(super) fn close_maintenance_but(&mut self, now: Instant, name: SegmentName) {
        if self.fullness() != Fullness::Full || is_planted(Bug::ReserveEaten) {
            return;
        }
        let others = self.segments.iter().filter(|(of, _)| **of != name);
        let others: Vec<ChunkPlace> = others
            .flat_map(|(of, segment)| segment.space.maintenance.values().map(|place| (*of, *place)))
            .collect();
        for (of, place) in others {
            self.close_chunk(now, of, place);
        }
    }

    /// Units that a piece takes at most.
    fn units_of(&self, volume: VolumeId, piece: &Piece) -> u32 {
        let block_len = self.block_len(volume);
        let cut = record_units(piece.blocks.end - piece.blocks.start, block_len);
        if piece.is_whole { piece.units.0 } else { cut }
    }

    fn block_len(&self, volume: VolumeId) -> BlockLen {
        self.volumes.get(&volume).map_or(BlockLen::Large, |served| served.volume.block_len)
    }

    /// As many moves begin as may be under way, and as the rate lets.
    fn begin_moves(&mut self, now: Instant) {
        loop {
            let Some(compaction) = &self.compaction else { return };
            let ((name, place), attempt) = (compaction.chunk, compaction.attempt);
            let Some(piece) = compaction.queue.front().cloned() else { return };
            if compaction.under_way >= MOVES_MAX || self.compact_at.is_some_and(|at| at > now) {
                return;
            }
            // Nobody's blocks are kept while a chunk is made.
            let units = self.units_of(name.volume, &piece);
            if self.maintenance_chunk(now, name, MAIN, units).is_none() {
                return;
            }
            self.spend_rate(now, units);
            let Some(compaction) = &mut self.compaction else { return };
            compaction.queue.pop_front();
            compaction.under_way += 1;
            let keeper = self.free_keeper();
            let blocks = self.volume_blocks(name, &piece.blocks);
            self.movers.insert(keeper.0, Mover { attempt, from: (name, place), piece, posted: None });
            let overlaps = self.overlaps.entry(name.volume).or_default();
            // G3: a move is a change as others are.
            if is_planted(Bug::MoveUnlocked) || overlaps.come(keeper, blocks) {
                self.post_move(now, keeper);
            }
        }
    }

    /// So much a second, and twice as much when space is short.
    fn spend_rate(&mut self, now: Instant, units: u32) {
        let rate = if self.fullness() == Fullness::Roomy { 1 } else { 2 } * self.config.compact_rate;
        let nanoseconds = u128::from(Units(units).bytes()) * 1_000_000_000 / u128::from(rate.max(1));
        let from = self.compact_at.map_or(now, |at| at.max(now));
        self.compact_at = Some(from + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)));
    }

    fn volume_blocks(&self, name: SegmentName, blocks: &Range<u32>) -> Range<u64> {
        let of = self.volumes.get(&name.volume).map_or(0, |served| served.volume.segment_blocks());
        let first = of * u64::from(name.segment.0);
        first + u64::from(blocks.start)..first + u64::from(blocks.end)
    }

    /// A move has its blocks: if they are still where they were, it is posted.
    pub(super) fn post_move(&mut self, now: Instant, keeper: Handle) {
        let Some(mover) = self.movers.get(&keeper.0).filter(|mover| mover.posted.is_none()) else { return };
        let ((name, place), piece) = (mover.from, mover.piece.clone());
        let segment = self.segments.get(&name).filter(|segment| segment.standing == Standing::Owned);
        let segment = segment.filter(|_| !self.is_handed_over(name));
        // What it moves is read only now.
        if !segment.is_some_and(|segment| segment.has_piece(place, &piece)) {
            return self.end_move(now, keeper, None);
        }
        let units = self.units_of(name.volume, &piece);
        let Some(to) = self.maintenance_chunk(now, name, MAIN, units) else {
            return self.end_move(now, keeper, Some(piece));
        };
        let Some(pins) = self.pin_both(name, place, to) else { return self.end_move(now, keeper, None) };
        let segment = self.segments.get_mut(&name);
        let sequence = segment.and_then(|segment| segment.begin_change(to, units, 1));
        let served = self.volumes.get(&name.volume).map(|served| served.volume);
        let (Some(sequence), Some(volume)) = (sequence, served) else {
            self.unpin_both(pins);
            return self.end_move(now, keeper, None);
        };
        let handle = self.free_call_handle();
        let effort = u8::from(volume.class != Class::Plain);
        let moved = Move {
            from: pins[0],
            to: pins[1],
            place: piece.place,
            units: piece.units,
            lba: Lba(piece.blocks.start),
            blocks: piece.blocks.end - piece.blocks.start,
            block_len: volume.block_len,
            sequence,
            cut: (!piece.is_whole).then_some(effort),
        };
        if let Some(mover) = self.movers.get_mut(&keeper.0) {
            mover.posted = Some(PostedMove { to, sequence, units, pins });
        }
        match PostedPlan::move_record(handle, &moved) {
            Ok(plan) => {
                let of = CallFor::Move(keeper);
                self.calls.insert(handle.0, Call { port: MAIN, server: usize::MAX, of });
                self.post_call(plan);
            }
            Err(_) => {
                self.counts.mistakes += 1;
                self.take_back(name, to, sequence);
                self.unpin_both(pins);
                self.end_move(now, keeper, None);
            }
        }
    }

    fn pin_both(&mut self, name: SegmentName, from: usize, to: usize) -> Option<[Slot; 2]> {
        let Pinned::Yes(first) = self.pin_chunk(MAIN, name, from) else { return None };
        match self.pin_chunk(MAIN, name, to) {
            Pinned::Yes(second) => Some([first, second]),
            Pinned::NoSlot | Pinned::NoMember => {
                self.unpin_main(first);
                None
            }
        }
    }

    fn unpin_both(&mut self, pins: [Slot; 2]) {
        pins.into_iter().for_each(|slot| self.unpin_main(slot));
        self.ready.extend(self.slotless.drain(..));
    }

    fn take_back(&mut self, name: SegmentName, to: usize, sequence: Sequence) {
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.end_change(to, sequence);
        }
    }

    /// A move is over, or was not begun: its blocks are free, and what has to be done anew is.
    fn end_move(&mut self, now: Instant, keeper: Handle, again: Option<Piece>) {
        let Some(mover) = self.movers.remove(&keeper.0) else { return };
        self.blocks_free(mover.from.0.volume, keeper);
        self.count_move(now, mover.attempt, again);
    }

    fn count_move(&mut self, _: Instant, attempt: u64, again: Option<Piece>) {
        if let Some(compaction) = self.compaction.as_mut().filter(|compaction| compaction.attempt == attempt)
        {
            compaction.under_way = compaction.under_way.saturating_sub(1);
            compaction.queue.extend(again);
        }
    }

    /// What a move that did not go well says of its source, or of the chunk where it was to go.
    fn look_after_move(
        &mut self,
        now: Instant,
        attempt: u64,
        (name, to): ChunkPlace,
        status: CompletionStatus,
        is_placed: bool,
    ) {
        match status {
            CompletionStatus::Good => {}
            // Nobody gives the record as it should be.
            CompletionStatus::NoMember | CompletionStatus::NotVerified if !is_placed => {
                if let Some(compaction) = self.compaction.as_mut().filter(|of| of.attempt == attempt) {
                    compaction.failures += 1;
                }
            }
            _ => self.close_chunk(now, name, to),
        }
    }

    /// A move's plan is over.
    pub(super) fn move_over(
        &mut self,
        now: Instant,
        keeper: Handle,
        completion: &Completion,
    ) -> Result<(), TierError> {
        let handle = completion.handle;
        let wrong = TierError::Completion { handle, what: "no move lies there" };
        let Some(mover) = self.movers.get(&keeper.0) else { return Ok(()) };
        let (Some(posted), (name, _)) = (mover.posted, mover.from) else { return Ok(()) };
        let (blocks, place, attempt) = (mover.piece.blocks.clone(), mover.piece.place, mover.attempt);
        let PostedMove { to, sequence, units: reserved, pins } = posted;
        let (offset, units) = (Units(completion.offset), Units(completion.units.into()));
        let is_good = completion.status == CompletionStatus::Good;
        let is_placed = units != Units(0);
        if is_good || (completion.status == CompletionStatus::NotVerified && !is_placed) {
            // Whom it was read from; where it goes, a bad one breaks the move.
            self.note_rotten_at(now, (MAIN, pins[0]), place, completion.bad_members);
        }
        self.unpin_both(pins);
        let segment = self.segments.get_mut(&name).filter(|segment| segment.epoch() == sequence.epoch());
        let Some(segment) = segment else {
            // It was taken anew meanwhile, and has it if the log has.
            self.end_move(now, keeper, None);
            return Ok(());
        };
        if units.0 > reserved || (is_good && !is_placed) {
            return Err(wrong);
        }
        if is_good {
            if !segment.apply(blocks.clone(), to, sequence, offset, units, false) {
                return Err(wrong);
            }
            self.counts.moves += 1;
            self.counts.moved_units += u64::from(units.0);
        } else if is_placed {
            let part = Part { first: 0, blocks: blocks.end - blocks.start };
            let record = Unresolved {
                owner: keeper,
                part,
                blocks: blocks.clone(),
                sequence,
                offset,
                units,
                is_trim: false,
            };
            let chunk = segment.chunks.get_mut(to).ok_or(wrong)?;
            let end = offset.checked_add(units).filter(|end| *end <= chunk.posted && offset >= RECORDS_START);
            end.ok_or(wrong)?;
            chunk.unresolved.push(record);
        }
        segment.give_back(to, reserved.saturating_sub(units.0));
        segment.end_change(to, sequence);
        self.look_after_move(now, attempt, (name, to), completion.status, is_placed);
        if is_placed && !is_good {
            // Its blocks are kept until it is known whether the record counts.
            self.movers.remove(&keeper.0);
            self.keepers.insert(keeper.0, Keeper::of_move(name.volume));
            self.close_chunk(now, name, to);
            self.count_move(now, attempt, None);
        } else {
            self.end_move(now, keeper, None);
        }
        self.continue_seal(now, name, to);
        self.continue_compaction(now);
        Ok(())
    }
}
