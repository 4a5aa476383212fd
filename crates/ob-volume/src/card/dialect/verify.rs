//! Which records are believed (R3): the one that was asked for, whole, whoever gives it.

use ob_core::BlockLen;
use ob_format::volume::{
    Encoding as Stored, RECORD_HEADER_LEN, Record, RecordHeader, RecordKind, STORED_MAX,
};
use ob_split::card::{Encoding, Judgement, Name, Part, Parts, Posted};
use ob_split::wire::Header;

use super::blocks::place_of_run;
use super::maintenance::run_of;
use super::{VolumeDialect, answer_of, decode, judge_refusal, number_of};
use crate::plans::{Run, VolumePlan};
use crate::plant::{Bug, is_planted};
use crate::wire::{Answer, Reply};

impl VolumeDialect {
    /// What a read record is worth: it is the one that was asked for, whole, and has these blocks.
    pub(super) fn verify(
        &self,
        run: &Run,
        header: &Header,
        payload: &[u8],
        block_len: BlockLen,
    ) -> Result<Part, Judgement> {
        match answer_of(header) {
            Some((Answer::Good(Reply::Read), _)) => {}
            Some((Answer::Refused { refusal, .. }, _)) => return Err(judge_refusal(refusal)),
            Some(_) | None => return Err(Judgement::Bad),
        }
        // R3: nothing is answered that was not verified.
        let record = match is_planted(Bug::ChecksumUnchecked) {
            true => RecordHeader::decode(payload).map_err(|_| Judgement::Bad)?,
            false => Record::decode(payload).map_err(|_| Judgement::Bad)?.header,
        };
        let part = self.check_record(run, &record, block_len).filter(|_| payload.len() == record.len());
        part.ok_or(Judgement::Bad)
    }

    /// What is wanted of a record, if it is the one that was asked for, and has these blocks.
    pub(super) fn check_record(&self, run: &Run, record: &RecordHeader, block_len: BlockLen) -> Option<Part> {
        let Run::Record { slot, place, units, lba, blocks } = *run else { return None };
        let chunk = self.chunks.get(&slot)?;
        let is_it = record.chunk == chunk.name
            && record.offset == place
            && record.units() == units
            && matches!(record.kind, RecordKind::Write | RecordKind::Move);
        // Neither sum wraps: plans and records are checked for it.
        let has_blocks = record.lba <= lba && lba.0 + blocks <= record.lba.0 + record.blocks;
        let decoded = record.decoded_len(block_len).filter(|len| *len <= STORED_MAX);
        let (true, true, Some(decoded)) = (is_it, has_blocks, decoded) else { return None };
        Some(Part {
            from: RECORD_HEADER_LEN as u32,
            stored: record.stored,
            encoding: match record.encoding {
                Stored::None => Encoding::Plain,
                Stored::Lz4 => Encoding::Lz4,
            },
            decoded,
            skip: (lba.0 - record.lba.0) * block_len.bytes(),
            take: blocks * block_len.bytes(),
            into: 0,
        })
    }

    /// What was retained of a record is worth no more than what a server gives.
    pub(super) fn accept_retained(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        (before, payload): (&[u8], &[u8]),
        parts: &mut Parts,
    ) -> Judgement {
        let Some(header) = whole_record(before, payload) else { return Judgement::Bad };
        let part = match decode(plan) {
            Ok(VolumePlan::Read { first, runs, .. }) => {
                let run = runs.get(piece.into()).zip(place_of_run(plan, first, piece));
                run.and_then(|(run, (block_len, into))| {
                    let part = self.check_record(&run, &header, block_len)?;
                    Some(Part { from: 0, into, ..part })
                })
            }
            Ok(VolumePlan::Move(moved)) => self.part_to_move(number_of(plan, piece), &moved, &header, 0),
            _ => None,
        };
        if part.is_some_and(|part| parts.push(part)) { Judgement::Good } else { Judgement::Bad }
    }
}

/// The name of the record that a piece is about to fetch, if it fetches one that clients have written. What is copied or looked at is
/// to be what a certain server has.
pub(super) fn sought_record(plan: &Posted<'_>, piece: u16) -> Option<Name> {
    let run = match decode(plan).ok()? {
        VolumePlan::Read { runs, .. } => runs.get(piece.into())?,
        VolumePlan::Move(moved) => run_of(&moved),
        _ => return None,
    };
    let Run::Record { slot, place, .. } = run else { return None };
    Some(Name { slot, place: place.0 })
}

/// The header of a record that was retained, if it is whole: what was sent is still what lies there.
fn whole_record(before: &[u8], payload: &[u8]) -> Option<RecordHeader> {
    let header = RecordHeader::decode(before).ok()?;
    let is_whole = header.stored as usize == payload.len()
        && (crc32c::crc32c(payload) == header.payload_crc || is_planted(Bug::ChecksumUnchecked));
    is_whole.then_some(header)
}
