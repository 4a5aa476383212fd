//! What a tier does besides commands: looks at what servers tell, writes its index, and moves records. All of it is of no message.
//!
//! ```text
//!   LOOK   ─▶ READ, LIST or CHUNKS to one server ─▶ accept: sums are right ─▶ the card's area; the completion says how much
//!   INDEX  ─▶ the host's area ─▶ APPEND of a PAGE or ROOT to all members
//!   MOVE   ─▶ READ to one member after the other ─▶ accept: this record ─▶ APPEND of a MOVE to all members of another chunk
//! ```

use ob_core::{Lba, Sequence, Units};
use ob_format::volume::{
    Encoding as Stored, RECORD_HEADER_LEN, Record, RecordHeader, RecordKind, STORED_MAX,
};
use ob_split::card::{Area, Channels, Encoding, Found, Judgement, Part, Parts, Place, Posted, Reject, Words};
use ob_split::wire::{ChannelId, CompletionStatus, Header, Register};

use super::{REFUSED, Unplaced, VolumeDialect, answer_of, number_of};
use crate::plans::{Index, Look, Move, Run};
use crate::wire::{Answer, Reply, Request, is_summed};

/// What came of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    /// Bytes that go to the host.
    pub(super) len: u32,
    units: u16,
    word: u32,
    /// What the server has refused it with.
    refused: u16,
}

/// The record that is moved, as its source says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moving {
    version: Sequence,
    encoding: Encoding,
    crc: u32,
}

/// A part of a payload that goes on as it is, or decoded, from the front on.
const fn part_of(from: u32, stored: u32, encoding: Encoding, decoded: u32) -> Part {
    Part { from, stored, encoding, decoded, skip: 0, take: decoded, into: 0 }
}

/// The first record of what was read: where it lies, whole, and of the index. What clients have written stays on the card.
fn index_record(look: &Look, payload: &[u8]) -> Option<(RecordHeader, u32)> {
    let Request::Read { chunk, offset, .. } = look.request else { return None };
    let header = Record::decode(payload).ok()?.header;
    let is_index = matches!(header.kind, RecordKind::Page | RecordKind::Root);
    let has_room = header.blocks <= look.room && header.blocks <= STORED_MAX;
    (header.chunk == chunk && header.offset == offset && is_index && has_room)
        .then_some((header, header.blocks))
}

const fn encoding_of(encoding: Stored) -> Encoding {
    match encoding {
        Stored::None => Encoding::Plain,
        Stored::Lz4 => Encoding::Lz4,
    }
}

impl VolumeDialect {
    pub(super) fn place_look(&self, look: &Look) -> Result<Place, Reject> {
        if self.ungreeted.contains(&look.channel) {
            return Err(Reject::Ends(CompletionStatus::NoMember));
        }
        Ok(Place {
            channels: Channels::new(&[look.channel]).ok_or(REFUSED)?,
            first: 0,
            skipped: 0,
            before_len: 0,
            zeros: 0,
            reply_len_max: look.reply_len_max(),
            patience: self.patience.call,
        })
    }

    /// What a server tells is whole, and has right sums; or it is told why there is nothing.
    pub(super) fn accept_look(
        &mut self,
        number: u64,
        look: &Look,
        reply: Option<(ChannelId, &Header)>,
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        let Some((answer, _)) = reply.and_then(|(_, header)| answer_of(header)) else {
            return Judgement::Bad;
        };
        let len = payload.len() as u32;
        let (looked, part) = match answer {
            Answer::Refused { refusal, .. } => {
                let refused = Looked { refused: refusal.status(), ..Looked::default() };
                self.looked.insert(number, refused);
                return Judgement::Next;
            }
            Answer::Good(Reply::Read) if look.is_read() => {
                let Some((header, decoded)) = index_record(look, payload) else { return Judgement::Bad };
                let units = u16::try_from(header.units().0).unwrap_or(u16::MAX);
                let looked = Looked { len: decoded, units, word: header.lba.0, refused: 0 };
                let at = RECORD_HEADER_LEN as u32;
                (looked, part_of(at, header.stored, encoding_of(header.encoding), decoded))
            }
            Answer::Good(Reply::List { .. } | Reply::Chunks { .. }) if !is_summed(payload) => {
                return Judgement::Bad;
            }
            Answer::Good(Reply::List { next: Units(word) })
                if matches!(look.request, Request::List { .. }) =>
            {
                (Looked { len, word, ..Looked::default() }, part_of(0, len, Encoding::Plain, len))
            }
            Answer::Good(Reply::Chunks { has_more }) if matches!(look.request, Request::Chunks { .. }) => {
                let word = has_more.into();
                (Looked { len, word, ..Looked::default() }, part_of(0, len, Encoding::Plain, len))
            }
            Answer::Good(_) => return Judgement::Bad,
        };
        if !parts.push(part) {
            return Judgement::Bad;
        }
        self.looked.insert(number, looked);
        Judgement::Good
    }

    /// What the host is told of a look: how much it has, how long the record is, and what the reply's header says.
    pub(super) fn words_of_look(&mut self, number: u64, is_good: bool) -> Option<Words> {
        let looked = self.looked.remove(&number)?;
        let Looked { len, units, word, refused } = looked;
        Some(if is_good {
            Words { units, offset: len, word }
        } else {
            Words { units: refused, ..Words::default() }
        })
    }

    pub(super) fn area_of_look(&self, number: u64, look: &Look) -> Option<Area> {
        let len = self.looked.get(&number)?.len;
        Some(Area::new(look.at, len))
    }

    pub(super) fn place_index(
        &mut self,
        plan: &Posted<'_>,
        index: &Index,
        found: &Found,
        before: &mut [u8],
    ) -> Result<Place, Reject> {
        let record = Unplaced {
            kind: index.kind(),
            sequence: index.sequence,
            version: index.sequence,
            lba: Lba(index.page()),
            blocks: index.length,
            found: *found,
            ranges: None,
        };
        self.place_record(plan, 0, &record, before)
    }

    /// A move is placed twice: where its record is read, and where it goes.
    pub(super) fn place_move(
        &mut self,
        plan: &Posted<'_>,
        moved: &Move,
        found: &Found,
        before: &mut [u8],
    ) -> Result<Place, Reject> {
        if found.len == 0 {
            return self.place_read(None, run_of(moved));
        }
        let moving = self.moving.get(&number_of(plan, 0)).copied().ok_or(REFUSED)?;
        let found = match moved.cut {
            Some(_) => *found,
            None => Found { encoding: moving.encoding, crc: Some(moving.crc), ..*found },
        };
        // It was written before all that is written now.
        if moving.version >= moved.sequence {
            return Err(REFUSED);
        }
        let record = Unplaced {
            kind: RecordKind::Move,
            sequence: moved.sequence,
            version: moving.version,
            lba: moved.lba,
            blocks: moved.blocks,
            found,
            ranges: None,
        };
        self.place_record(plan, 0, &record, before)
    }

    /// The record that is to be moved: it, and no other.
    pub(super) fn accept_move(
        &mut self,
        number: u64,
        moved: &Move,
        reply: Option<(ChannelId, &Header)>,
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        let Some((_, header)) = reply else { return Judgement::Bad };
        let part = match self.verify(&run_of(moved), header, payload, moved.block_len) {
            Ok(part) => part,
            Err(judgement) => return judgement,
        };
        // It was verified just now.
        let Ok(record) = RecordHeader::decode(payload) else { return Judgement::Bad };
        let part = self.part_to_move(number, moved, &record, part.from);
        if part.is_some_and(|part| parts.push(part)) { Judgement::Good } else { Judgement::Bad }
    }

    /// What is moved of a record, whose payload begins there, if it is the one; it is remembered.
    pub(super) fn part_to_move(
        &mut self,
        number: u64,
        moved: &Move,
        record: &RecordHeader,
        from: u32,
    ) -> Option<Part> {
        let part = self.check_record(&run_of(moved), record, moved.block_len)?;
        let is_all = record.lba == moved.lba && record.blocks == moved.blocks;
        let part = match moved.cut {
            Some(_) => Part { from, ..part },
            None if !is_all => return None,
            // As it is stored, whatever that means.
            None => part_of(from, record.stored, Encoding::Plain, record.stored),
        };
        let (version, encoding, crc) = (record.version, encoding_of(record.encoding), record.payload_crc);
        self.moving.insert(number, Moving { version, encoding, crc });
        Some(part)
    }
}

/// A move reads what a read would.
pub(super) const fn run_of(moved: &Move) -> Run {
    let Move { from, place, units, lba, blocks, .. } = *moved;
    Run::Record { slot: from, place, units, lba, blocks }
}

/// Bytes of a register of a look.
pub(super) const fn memory_of_look(look: &Look, register: Register) -> u32 {
    if register.number() == 2 { look.reply_len_max() } else { look.room }
}

/// Bytes of a register of a move: the record is read, its payload goes on, or blocks of it.
pub(super) const fn memory_of_move(moved: &Move, register: Register) -> u32 {
    match (register.number(), moved.cut) {
        (2, _) => moved.units.0 * Units::LEN,
        (_, None) => (moved.units.0 - 1) * Units::LEN,
        (_, Some(_)) => moved.len(),
    }
}

/// What the host is told of a record that has its place, besides where that is: of the index how long its payload is.
pub(super) const fn word_of(kind: RecordKind, stored: u32, payload_crc: u32) -> u32 {
    match kind {
        RecordKind::Page | RecordKind::Root => stored,
        RecordKind::Write | RecordKind::Move | RecordKind::Trim => payload_crc,
    }
}
