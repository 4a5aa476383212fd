//! What volumes say to chunk servers, and what of their answers is believed.
//!
//! ```text
//!   WRITE  ─▶ place: the next units of the chunk, the record's header ─▶ APPEND to all members ─▶ judge: durable behind the record
//!   READ   ─▶ place: the record's members ─▶ READ to one after the other ─▶ accept: this record, whole, of this place, with these blocks
//!   TRIM   ─▶ as WRITE, of ranges
//!   CALL   ─▶ what the host says, to one server; the reply goes to the host
//!   COPY   ─▶ READ to one server ─▶ accept: whole records of this chunk ─▶ FILL to another; the reply goes to the host
//!   MEND   ─▶ as COPY, of one record ─▶ REPAIR
//!   LOOK, INDEX, MOVE: see `maintenance`
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use ob_core::{IdMap, Instant, Lba, Sequence, Units};
use ob_format::volume::{Encoding as Stored, RECORD_HEADER_LEN, RecordHeader, RecordKind};
use ob_split::card::{
    Area, Channels, Dialect, Encoding, Found, Judgement, Moved, Name, Outcome, Part as BytesPart, Parts,
    Pieces, Place, Posted, Reject, Told, Words,
};
use ob_split::wire::{
    Broken, ChannelId, CompletionStatus, Header, PlanEntry, REPLY_PAYLOAD_MAX, Register, Set, SetWhat, Slot,
};
use ob_wire_nvme::Status;

use super::chunk::{NoPlace, SetChunk};
use super::copy::{accept_copy, judge_refusal};
use crate::plans::{
    Copy, Given, Index, Move, PIECE_LEN, Part, Ranges, Run, TAKE_BASE, TAKE_SLOT_LEN, VolumePlan,
};
use crate::wire::{Answer, MAGIC, Reply, ReplyMessage, Request, RequestMessage};
use blocks::{Blocks, blocks_of_write, check_read, lba_of, piece_fits, pieces_of, place_of_run};
use maintenance::{Looked, Moving, memory_of_look, memory_of_move, word_of};
use verify::sought_record;

mod blocks;
mod maintenance;
mod verify;

/// Slots that are set at once.
const SLOTS_MAX: usize = 1 << 15;
/// Chunks whose end the host has not been told of yet; each is told of once, so there are no more than slots.
const BROKEN_MAX: usize = SLOTS_MAX;

/// How long chunk servers are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// With an append: a member that has not made it durable by then has failed.
    pub append: Duration,
    /// With a read: the next member is asked then.
    pub read: Duration,
    /// With anything else.
    pub call: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            append: Duration::from_secs(1),
            read: Duration::from_millis(200),
            call: Duration::from_secs(5),
        }
    }
}

/// The words of volumes, for a port.
#[derive(Debug, Default)]
pub struct VolumeDialect {
    patience: Patience,
    chunks: BTreeMap<Slot, SetChunk>,
    /// Chunks that are written to, by each channel of their members.
    writers: BTreeSet<(ChannelId, Slot)>,
    /// Channels that were gone and have not been greeted since: a chunk server hears nothing before that, and cuts who says it.
    ungreeted: BTreeSet<ChannelId>,
    /// Which member is asked first the next time: all have the same.
    turn: u8,
    /// Records under way, by their plan's handle and piece.
    placed: IdMap<u64, Placed>,
    /// Copies that were fetched, by their handle: how many bytes of them go on.
    fetched: IdMap<u64, u32>,
    /// What came of looks, by their handle.
    looked: IdMap<u64, Looked>,
    /// Records that were fetched to be moved, by the move's handle.
    moving: IdMap<u64, Moving>,
    /// Of reads under way, by their handle, the first run of which somebody gave what was wrong.
    rotten: IdMap<u64, u16>,
    broken: VecDeque<Broken>,
}

/// A record that has its place.
#[derive(Clone, Copy, Debug)]
struct Placed {
    slot: Slot,
    offset: Units,
    units: Units,
    /// What the host is told besides.
    word: u32,
}

const HOSTILE: Reject = Reject::Hostile;
const REFUSED: Reject = Reject::Ends(CompletionStatus::Refused);

impl VolumeDialect {
    /// A dialect without chunks.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self { patience, ..Self::default() }
    }

    fn forget(&mut self, slot: Slot) {
        if let Some(chunk) = self.chunks.remove(&slot) {
            for channel in chunk.written_over() {
                self.writers.remove(&(channel, slot));
            }
        }
    }

    fn stop(&mut self, slot: Slot, channel: ChannelId) {
        let broken = self.chunks.get_mut(&slot).and_then(|chunk| chunk.stop(channel));
        if self.broken.len() < BROKEN_MAX {
            self.broken.extend(broken);
        }
    }

    fn place_record(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        record: &Unplaced<'_>,
        before: &mut [u8],
    ) -> Result<Place, Reject> {
        let stored = record.found.len + record.ranges_len();
        let units = Units(1 + Units::of_bytes(stored).0);
        let ranges = before.get_mut(RECORD_HEADER_LEN..).ok_or(REFUSED)?;
        let payload_crc = record.put_ranges(ranges).or(record.found.crc).ok_or(REFUSED)?;
        let encoding = match record.found.encoding {
            Encoding::Plain => Stored::None,
            Encoding::Lz4 => Stored::Lz4,
            Encoding::Zeros => return Err(REFUSED),
        };
        // What has its place must go there, or nothing can behind it: all else that may fail comes before.
        let chunk = self.chunks.get_mut(&plan.slot).ok_or(HOSTILE)?;
        let place = chunk.take_place(units).map_err(|error| match error {
            NoPlace::ReadOnly => HOSTILE,
            NoPlace::Full => Reject::Ends(CompletionStatus::ChunkFull),
            NoPlace::Stopped => Reject::Ends(CompletionStatus::Broken),
        })?;
        let header = RecordHeader {
            chunk: chunk.name,
            offset: place.offset,
            sequence: record.sequence,
            version: record.version,
            lba: record.lba,
            blocks: record.blocks,
            stored,
            payload_crc,
            kind: record.kind,
            encoding,
            behind: place.behind,
        };
        let channels = chunk.members;
        let Ok(encoded) = header.encode() else {
            // Its place stays empty, and what comes behind it would never be taken.
            let first = channels.as_slice().first().copied().unwrap_or_default();
            self.stop(plan.slot, first);
            return Err(REFUSED);
        };
        before.get_mut(..RECORD_HEADER_LEN).ok_or(REFUSED)?.copy_from_slice(&encoded);
        let word = word_of(record.kind, stored, payload_crc);
        let placed = Placed { slot: plan.slot, offset: place.offset, units, word };
        self.placed.insert(number_of(plan, piece), placed);
        Ok(Place {
            channels,
            first: 0,
            skipped: 0,
            before_len: (RECORD_HEADER_LEN as u32 + record.ranges_len()) as u16,
            zeros: ((units.0 - 1) * Units::LEN - stored) as u8,
            reply_len_max: 0,
            patience: self.patience.append,
        })
    }

    /// Where a record of a message's blocks goes.
    fn place_write(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        (sequence, part): (Sequence, Option<Part>),
        found: Found,
        before: &mut [u8],
    ) -> Result<Place, Reject> {
        let blocks = blocks_of_write(plan, part)?;
        let piece_blocks = crate::plans::piece_blocks(blocks.block_len);
        let first = u32::from(piece) * piece_blocks;
        let sequence = Sequence(sequence.0 + u64::from(piece));
        let record = Unplaced {
            kind: RecordKind::Write,
            sequence,
            version: sequence,
            lba: Lba(self.lba_of(plan, &blocks)?.0 + first),
            blocks: blocks.count.saturating_sub(first).min(piece_blocks),
            found,
            ranges: None,
        };
        self.place_record(plan, piece, &record, before)
    }

    /// The first block of a write in its chunk's segment.
    fn lba_of(&self, plan: &Posted<'_>, blocks: &Blocks) -> Result<Lba, Reject> {
        lba_of(blocks, self.chunks.get(&plan.slot).ok_or(HOSTILE)?.name.segment)
    }

    fn place_read(&mut self, member: Option<u8>, run: Run) -> Result<Place, Reject> {
        let patience = self.patience.read;
        let Run::Record { slot, units, .. } = run else {
            // Nobody is asked for zeros.
            let channels = Channels::default();
            let place =
                Place { channels, first: 0, skipped: 0, before_len: 0, zeros: 0, reply_len_max: 0, patience };
            return Ok(place);
        };
        let chunk = self.chunks.get(&slot).ok_or(HOSTILE)?;
        let channels = chunk.members;
        let members = channels.as_slice();
        let away = members.iter().enumerate().filter(|(_, channel)| self.ungreeted.contains(channel));
        let skipped = away.fold(0u8, |mask, (at, _)| mask | 1 << at);
        if skipped.count_ones() as usize == members.len() {
            return Err(Reject::Ends(CompletionStatus::NoMember));
        }
        self.turn = self.turn.wrapping_add(1);
        // Of a chunk that has no such member it means nothing.
        let first = member.unwrap_or(self.turn) % members.len().max(1) as u8;
        let reply_len_max = units.0 * Units::LEN;
        Ok(Place { channels, first, skipped, before_len: 0, zeros: 0, reply_len_max, patience })
    }

    /// Where a copy goes. It is asked for twice: from where, and where to.
    fn place_copy(&mut self, number: u64, copy: &Copy, found: &Found) -> Result<Place, Reject> {
        let is_fetched = found.len > 0;
        if is_fetched {
            self.fetched.insert(number, found.len);
        }
        let channel = if is_fetched { copy.to } else { copy.from };
        if self.ungreeted.contains(&channel) {
            return Err(Reject::Ends(CompletionStatus::NoMember));
        }
        Ok(Place {
            channels: Channels::new(&[channel]).ok_or(HOSTILE)?,
            first: 0,
            skipped: 0,
            before_len: 0,
            zeros: 0,
            reply_len_max: if is_fetched { 0 } else { copy.len() },
            patience: self.patience.append,
        })
    }

    /// Checks all that a plan says, once.
    fn check(
        &self,
        plan: &Posted<'_>,
        volume_plan: &VolumePlan<'_>,
        notes: &mut Vec<u32>,
    ) -> Result<Pieces, Reject> {
        match *volume_plan {
            VolumePlan::Write { part, sequence, .. } => {
                let blocks = blocks_of_write(plan, part)?;
                self.lba_of(plan, &blocks)?;
                let count = pieces_of(&blocks)?;
                let last = sequence.count().checked_add(u64::from(count)).ok_or(HOSTILE)?;
                if last > Sequence::COUNT_END {
                    return Err(HOSTILE);
                }
                Ok(Pieces { count, told: Told::Each })
            }
            VolumePlan::Read { first, runs, .. } => {
                check_read(plan, first, &runs)?;
                // Of each run, how many blocks come before it.
                notes.extend(runs.iter().scan(0, |before, run| {
                    *before += run.blocks();
                    Some(*before - run.blocks())
                }));
                Ok(Pieces { count: runs.len() as u16, told: Told::Once })
            }
            VolumePlan::Trim { .. }
            | VolumePlan::Answer { .. }
            | VolumePlan::Look(_)
            | VolumePlan::Index(_)
            | VolumePlan::Move(_) => Ok(Pieces { count: 1, told: Told::Once }),
            VolumePlan::Call { .. } | VolumePlan::Copy(_) => Ok(Pieces { count: 1, told: Told::Reply }),
            VolumePlan::Given(given) => {
                let blocks = blocks_of_write(plan, given.part)?;
                self.lba_of(plan, &blocks)?;
                let count = pieces_of(&blocks)?;
                let last = given.sequence.count().checked_add(u64::from(count)).ok_or(HOSTILE)?;
                let fits = (0..count).all(|piece| piece_fits(&given, &blocks, piece));
                if usize::from(count) != given.len() || !fits || last > Sequence::COUNT_END {
                    return Err(HOSTILE);
                }
                Ok(Pieces { count, told: Told::Each })
            }
            VolumePlan::Take { .. } | VolumePlan::Press(_) if plan.message.is_some() => {
                Ok(Pieces { count: 1, told: Told::Once })
            }
            VolumePlan::Take { .. } | VolumePlan::Press(_) => Err(HOSTILE),
        }
    }
}

/// A record that has no place yet.
struct Unplaced<'a> {
    kind: RecordKind,
    sequence: Sequence,
    version: Sequence,
    lba: Lba,
    blocks: u32,
    found: Found,
    /// Of a trim of several.
    ranges: Option<Ranges<'a>>,
}

impl Unplaced<'_> {
    fn ranges_len(&self) -> u32 {
        self.ranges.map_or(0, |ranges| ranges.len() as u32 * 8)
    }

    /// Puts ranges behind the header; their checksum, if this is a trim.
    fn put_ranges(&self, into: &mut [u8]) -> Option<u32> {
        if self.kind != RecordKind::Trim {
            return None;
        }
        let mut bytes = into;
        let mut crc = 0;
        for range in self.ranges.iter().flat_map(Ranges::iter) {
            let (pair, rest) = std::mem::take(&mut bytes).split_first_chunk_mut::<8>()?;
            let (lba, blocks) = pair.split_at_mut(4);
            lba.copy_from_slice(&range.lba.0.to_le_bytes());
            blocks.copy_from_slice(&range.blocks.to_le_bytes());
            crc = crc32c::crc32c_append(crc, pair);
            bytes = rest;
        }
        Some(crc)
    }
}

/// A piece of a plan under way: no two have one number.
fn number_of(plan: &Posted<'_>, piece: u16) -> u64 {
    u64::from(plan.handle.0) << 16 | u64::from(piece)
}

const fn entry_of<'a>(plan: &Posted<'a>) -> PlanEntry<'a> {
    let Posted { plan, argument, slot, handle, arguments, .. } = *plan;
    PlanEntry { plan, argument, slot, handle, arguments }
}

/// What a plan says that was checked, or is about to be.
fn decode<'a>(plan: &Posted<'a>) -> Result<VolumePlan<'a>, Reject> {
    let entry = entry_of(plan);
    VolumePlan::decode_known(&entry).map_err(|_| HOSTILE)
}

/// What a chunk server says, if it is a reply of the protocol at all.
pub(super) fn answer_of(reply: &Header) -> Option<(Answer, u32)> {
    let message = ReplyMessage::decode(&reply.encode()).ok()?;
    Some((message.answer, message.payload_len))
}

impl Dialect for VolumeDialect {
    fn magic(&self) -> [u8; 2] {
        MAGIC
    }

    fn set(&mut self, set: &Set) -> Result<(), Reject> {
        if set.what == SetWhat::Forget {
            self.forget(set.slot);
            return Ok(());
        }
        let chunk = SetChunk::new(set).ok_or(HOSTILE)?;
        if self.chunks.len() >= SLOTS_MAX && !self.chunks.contains_key(&set.slot) {
            return Err(HOSTILE);
        }
        self.forget(set.slot);
        self.writers.extend(chunk.written_over().map(|channel| (channel, set.slot)));
        self.chunks.insert(set.slot, chunk);
        Ok(())
    }

    fn slots(&self, plan: &Posted<'_>, visit: &mut dyn FnMut(Slot)) {
        match decode(plan) {
            Ok(
                VolumePlan::Write { slot, .. }
                | VolumePlan::Trim { slot, .. }
                | VolumePlan::Given(Given { slot, .. })
                | VolumePlan::Index(Index { slot, .. }),
            ) => visit(slot),
            Ok(VolumePlan::Move(Move { from, to, .. })) => {
                visit(from);
                visit(to);
            }
            Ok(VolumePlan::Read { runs, .. }) => {
                for run in runs.iter() {
                    if let Run::Record { slot, .. } = run {
                        visit(slot);
                    }
                }
            }
            // What cannot be decoded is refused by `pieces`.
            Ok(
                VolumePlan::Answer { .. }
                | VolumePlan::Call { .. }
                | VolumePlan::Take { .. }
                | VolumePlan::Press(_)
                | VolumePlan::Look(_)
                | VolumePlan::Copy(_),
            )
            | Err(_) => {}
        }
    }

    fn pieces(&mut self, plan: &Posted<'_>, notes: &mut Vec<u32>) -> Result<Pieces, Reject> {
        let volume_plan = VolumePlan::decode(&entry_of(plan)).map_err(|_| HOSTILE)?;
        self.check(plan, &volume_plan, notes)
    }

    fn piece(&self, plan: &Posted<'_>, piece: u16) -> Range<u32> {
        let Ok(VolumePlan::Write { part, .. }) = decode(plan) else { return 0..0 };
        let Ok(blocks) = blocks_of_write(plan, part) else { return 0..0 };
        let end = blocks.from + blocks.count * blocks.block_len.bytes();
        let from = u32::from(piece).saturating_mul(PIECE_LEN).saturating_add(blocks.from).min(end);
        from..from.saturating_add(PIECE_LEN).min(end)
    }

    fn memory(&self, plan: &Posted<'_>, piece: u16, register: Register) -> u32 {
        match decode(plan) {
            Ok(VolumePlan::Read { runs, .. }) => match runs.get(piece.into()) {
                Some(Run::Record { units, .. }) => units.0 * Units::LEN,
                Some(Run::Zeros { .. }) | None => 0,
            },
            Ok(VolumePlan::Write { .. }) => self.piece(plan, piece).len() as u32,
            Ok(VolumePlan::Given(given)) => given.piece(piece.into()).map_or(0, |piece| piece.stored),
            Ok(VolumePlan::Copy(copy)) => copy.len(),
            Ok(VolumePlan::Look(look)) => memory_of_look(&look, register),
            Ok(VolumePlan::Index(index)) => index.length,
            Ok(VolumePlan::Press(press)) => press.length,
            Ok(VolumePlan::Move(moved)) => memory_of_move(&moved, register),
            _ => 0,
        }
    }

    fn kept(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        let placed = self.placed.get(&number_of(plan, piece))?;
        Some(Name { slot: placed.slot, place: placed.offset.0 })
    }

    fn sought(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        sought_record(plan, piece)
    }

    fn accept_kept(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        before: &[u8],
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        self.accept_retained(plan, piece, (before, payload), parts)
    }

    fn area(&self, plan: &Posted<'_>, piece: u16, moved: Moved) -> Option<Area> {
        match decode(plan).ok()? {
            VolumePlan::Look(look) => self.area_of_look(number_of(plan, piece), &look),
            VolumePlan::Index(index) => Some(Area::new(index.at, index.length)),
            VolumePlan::Take { slot, offset, length } => {
                let at = u64::from(slot.0) * TAKE_SLOT_LEN + u64::from(offset);
                Some(Area::new(TAKE_BASE + at, length))
            }
            VolumePlan::Given(given) => {
                let piece = given.piece(piece.into())?;
                Some(Area { is_back: piece.is_back, ..Area::new(piece.at, piece.stored) })
            }
            VolumePlan::Press(press) => Some(match moved {
                Moved::FromHost => Area { is_back: true, ..Area::new(press.at, press.length) },
                Moved::ToHost(len) => Area::new(press.into, len),
            }),
            _ => None,
        }
    }

    fn has_room(&self, plan: &Posted<'_>) -> bool {
        let chunk = match decode(plan) {
            Ok(
                VolumePlan::Write { slot, .. }
                | VolumePlan::Trim { slot, .. }
                | VolumePlan::Given(Given { slot, .. })
                | VolumePlan::Index(Index { slot, .. })
                | VolumePlan::Move(Move { to: slot, .. }),
            ) => self.chunks.get(&slot),
            _ => None,
        };
        chunk.is_none_or(SetChunk::has_room)
    }

    fn place(
        &mut self,
        _: Instant,
        plan: &Posted<'_>,
        piece: u16,
        found: &Found,
        before: &mut [u8],
    ) -> Result<Place, Reject> {
        match decode(plan)? {
            VolumePlan::Write { sequence, part, .. } => {
                self.place_write(plan, piece, (sequence, part), *found, before)
            }
            VolumePlan::Given(given) => {
                let of = given.piece(piece.into()).ok_or(HOSTILE)?;
                let found = Found { encoding: of.encoding(), ..*found };
                self.place_write(plan, piece, (given.sequence, given.part), found, before)
            }
            VolumePlan::Trim { sequence, ranges, .. } => {
                let single = ranges.iter().next().filter(|_| ranges.len() == 1);
                let record = Unplaced {
                    kind: RecordKind::Trim,
                    sequence,
                    version: sequence,
                    lba: single.map_or(Lba(0), |range| range.lba),
                    blocks: single.map_or(0, |range| range.blocks),
                    found: Found::default(),
                    ranges: single.is_none().then_some(ranges),
                };
                self.place_record(plan, piece, &record, before)
            }
            VolumePlan::Read { member, runs, .. } => {
                let run = runs.get(piece.into()).ok_or(HOSTILE)?;
                self.place_read(member, run)
            }
            VolumePlan::Call { channel, header, payload } => {
                let said = RequestMessage::decode(header);
                let is_greeting = said.is_ok_and(|said| matches!(said.request, Request::Hello { .. }));
                if !is_greeting && self.ungreeted.contains(&channel) {
                    // It was asked of the connection before.
                    return Err(Reject::Ends(CompletionStatus::NoMember));
                }
                before.get_mut(..payload.len()).ok_or(REFUSED)?.copy_from_slice(payload);
                Ok(Place {
                    channels: Channels::new(&[channel]).ok_or(HOSTILE)?,
                    first: 0,
                    skipped: 0,
                    before_len: payload.len() as u16,
                    zeros: 0,
                    reply_len_max: REPLY_PAYLOAD_MAX as u32,
                    patience: self.patience.call,
                })
            }
            VolumePlan::Copy(copy) => self.place_copy(number_of(plan, piece), &copy, found),
            VolumePlan::Look(look) => self.place_look(&look),
            VolumePlan::Index(index) => self.place_index(plan, &index, found, before),
            VolumePlan::Move(moved) => self.place_move(plan, &moved, found, before),
            VolumePlan::Answer { .. } | VolumePlan::Take { .. } | VolumePlan::Press(_) => Err(HOSTILE),
        }
    }

    fn header(&mut self, plan: &Posted<'_>, piece: u16, _: ChannelId) -> Header {
        self.request(plan, piece).unwrap_or(NOTHING)
    }

    fn judge(&mut self, plan: &Posted<'_>, piece: u16, channel: ChannelId, reply: &Header) -> Judgement {
        let answer = answer_of(reply);
        let Some(placed) = self.placed.get(&number_of(plan, piece)).copied() else {
            if let Some((Answer::Good(Reply::Hello { .. }), _)) = answer {
                self.ungreeted.remove(&channel);
            }
            // A call's reply is for the host, whatever it says; but it has to be one.
            return if answer.is_some() { Judgement::Good } else { Judgement::Bad };
        };
        let end = Units(placed.offset.0 + placed.units.0);
        let chunk = self.chunks.get_mut(&placed.slot);
        let judgement = match answer {
            Some((Answer::Good(Reply::Append { durable, .. }), 0)) => {
                let is_durable = chunk.is_some_and(|chunk| chunk.is_durable(channel, durable, end));
                if is_durable { Judgement::Good } else { Judgement::Bad }
            }
            Some((Answer::Refused { .. }, _)) => Judgement::Next,
            Some((Answer::Good(_), _)) | None => Judgement::Bad,
        };
        if judgement != Judgement::Good {
            self.stop(placed.slot, channel);
        }
        judgement
    }

    fn accept(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        reply: Option<(ChannelId, &Header)>,
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        let (first, runs) = match decode(plan) {
            Ok(VolumePlan::Read { first, runs, .. }) => (first, runs),
            Ok(VolumePlan::Copy(copy)) => return accept_copy(&copy, reply, payload, parts),
            Ok(VolumePlan::Look(look)) => {
                return self.accept_look(number_of(plan, piece), &look, reply, payload, parts);
            }
            Ok(VolumePlan::Move(moved)) => {
                return self.accept_move(number_of(plan, piece), &moved, reply, payload, parts);
            }
            _ => return Judgement::Bad,
        };
        let Some((block_len, into)) = place_of_run(plan, first, piece) else { return Judgement::Bad };
        let Some(run) = runs.get(piece.into()) else { return Judgement::Bad };
        let part = match (run, reply) {
            (Run::Zeros { blocks }, None) => BytesPart::zeros(into, blocks * block_len.bytes()),
            (Run::Record { .. }, Some((_, header))) => match self.verify(&run, header, payload, block_len) {
                Ok(part) => BytesPart { into, ..part },
                Err(judgement) => {
                    if judgement == Judgement::Bad {
                        self.rotten.entry(number_of(plan, 0)).or_insert(piece);
                    }
                    return judgement;
                }
            },
            _ => return Judgement::Bad,
        };
        if parts.push(part) { Judgement::Good } else { Judgement::Bad }
    }

    fn status(&self, plan: &Posted<'_>) -> u16 {
        match decode(plan) {
            Ok(VolumePlan::Answer { status, .. }) => status.bits(),
            Ok(_) => Status::SUCCESS.bits(),
            Err(_) => Status::INTERNAL_ERROR.bits(),
        }
    }

    fn may_answer(&self, _: Instant, _: &Posted<'_>) -> bool {
        // Plans have no deadline of their own yet: the port looks at the gate.
        true
    }

    fn words(&mut self, plan: &Posted<'_>, piece: u16, outcome: &Outcome) -> Words {
        let number = number_of(plan, piece);
        let went_well = outcome.status == CompletionStatus::Good;
        if let Some(words) = self.words_of_look(number, went_well) {
            return words;
        }
        if let Ok(VolumePlan::Press(_)) = decode(plan) {
            let offset = if went_well { outcome.found.len } else { 0 };
            return Words { offset, ..Words::default() };
        }
        let placed = self.placed.remove(&number);
        self.fetched.remove(&number);
        self.moving.remove(&number);
        let rotten = self.rotten.remove(&number).map_or(0, |run| run.saturating_add(1));
        let Some(placed) = placed else { return Words { units: rotten, ..Words::default() } };
        let is_good = matches!(outcome.status, CompletionStatus::Good | CompletionStatus::Withheld);
        let end = Units(placed.offset.0 + placed.units.0);
        let chunk = self.chunks.get(&placed.slot).filter(|_| !is_good);
        if let Some(chunk) = chunk.filter(|chunk| chunk.everywhere() < end) {
            // It is missing somewhere: behind it nothing can be appended to all members.
            let members = chunk.members.as_slice();
            let bad = usize::try_from(outcome.bad_members.trailing_zeros()).unwrap_or_default();
            let channel = members.get(bad).or_else(|| members.first()).copied();
            self.stop(placed.slot, channel.unwrap_or_default());
        }
        let units = u16::try_from(placed.units.0).unwrap_or(u16::MAX);
        Words { units, offset: placed.offset.0, word: placed.word }
    }

    fn channel_gone(&mut self, channel: ChannelId) {
        self.ungreeted.insert(channel);
        let mut from = Slot(0);
        // A chunk that has stopped need not hear of it again.
        while let Some((_, slot)) =
            self.writers.range((channel, from)..=(channel, Slot(u16::MAX))).next().copied()
        {
            self.writers.remove(&(channel, slot));
            self.stop(slot, channel);
            from = slot;
        }
    }

    fn next_broken(&mut self) -> Option<Broken> {
        self.broken.pop_front()
    }

    fn ended(&mut self) {
        self.chunks.clear();
        self.writers.clear();
        self.ungreeted.clear();
        self.placed.clear();
        self.fetched.clear();
        self.looked.clear();
        self.moving.clear();
        self.rotten.clear();
        self.broken.clear();
    }
}

/// What is sent where nothing can be: no server takes it. What was placed can always be asked for.
const NOTHING: Header =
    Header { magic: MAGIC, version: 0, kind: 0, status: 0, flags: 0, tag: 0, payload_len: 0, rest: [0; 40] };

impl VolumeDialect {
    fn request(&self, plan: &Posted<'_>, piece: u16) -> Option<Header> {
        let (request, payload_len) = match decode(plan).ok()? {
            // A move that has no place yet asks for its record.
            VolumePlan::Move(moved) if !self.placed.contains_key(&number_of(plan, piece)) => {
                let chunk = self.chunks.get(&moved.from)?;
                let len = moved.units.0 * Units::LEN;
                (Request::Read { chunk: chunk.name, epoch: chunk.epoch, offset: moved.place, len }, 0)
            }
            VolumePlan::Write { .. }
            | VolumePlan::Given(_)
            | VolumePlan::Trim { .. }
            | VolumePlan::Index(_)
            | VolumePlan::Move(_) => {
                let placed = self.placed.get(&number_of(plan, piece))?;
                let chunk = self.chunks.get(&placed.slot)?;
                let request =
                    Request::Append { chunk: chunk.name, epoch: chunk.epoch, offset: placed.offset };
                (request, placed.units.0 * Units::LEN)
            }
            VolumePlan::Read { runs, .. } => {
                let Run::Record { slot, place, units, .. } = runs.get(piece.into())? else { return None };
                let chunk = self.chunks.get(&slot)?;
                let len = units.0 * Units::LEN;
                (Request::Read { chunk: chunk.name, epoch: chunk.epoch, offset: place, len }, 0)
            }
            VolumePlan::Copy(copy) => match self.fetched.get(&number_of(plan, piece)).copied() {
                Some(len) => {
                    let (chunk, epoch, offset) = (copy.chunk, copy.epoch, copy.at);
                    let request = match copy.is_mend {
                        true => Request::Repair { chunk, epoch, offset },
                        false => Request::Fill { chunk, epoch, offset },
                    };
                    (request, len)
                }
                None => {
                    let (chunk, epoch, offset, len) = (copy.chunk, copy.epoch, copy.at, copy.len());
                    (Request::Read { chunk, epoch, offset, len }, 0)
                }
            },
            VolumePlan::Look(look) => (look.request, 0),
            VolumePlan::Call { header, .. } => return Header::decode(header, MAGIC).ok(),
            VolumePlan::Answer { .. } | VolumePlan::Take { .. } | VolumePlan::Press(_) => return None,
        };
        // The port puts in tag and length; this one checks that a server would take it.
        let encoded = RequestMessage { tag: 0, payload_len, request }.encode().ok()?;
        Header::decode(&encoded, MAGIC).ok()
    }
}

#[cfg(test)]
mod tests;
