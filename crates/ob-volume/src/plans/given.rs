//! `WRITE_GIVEN`: records whose payloads the host has made of what it took, or has had made, and gives back as they are to be stored.

use ob_core::{Sequence, layout};
use ob_format::volume::STORED_MAX;
use ob_split::card::Encoding;
use ob_split::wire::{Answers, Handle, PlanEntry, Slot, Step};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    ArgumentsError, COMMAND_BLOCKS_MAX, PAYLOAD_MAX, PIECE_LEN, Part, PostedPlan, check_sequence, count, id,
    scratch,
};

/// Bytes of the arguments before the pieces.
pub(super) const GIVEN_LEN: usize = 16;
/// Bytes of a piece.
pub(super) const EACH_GIVEN_LEN: usize = 16;
/// Most pieces of a plan: those of the longest payload.
pub const GIVEN_MAX: usize = (PAYLOAD_MAX / PIECE_LEN) as usize;

/// Bits of the encoding.
const LZ4: u32 = 1;
const BACK: u32 = 2;

layout!(GivenBody, GIVEN_LEN, { sequence: U64, first: U32, blocks: U32 });
layout!(GivenPieceBody, EACH_GIVEN_LEN, { at: U64, stored: U32, encoding: U32 });

/// A record's payload, as it lies in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenPiece {
    /// Where it begins.
    pub at: u64,
    /// How many bytes it has.
    pub stored: u32,
    /// Whether it is compressed, or as it was.
    pub is_lz4: bool,
    /// Whether it lies in the card's area, where the card has put it, or in the host's.
    pub is_back: bool,
}

/// Blocks of a message become records, whose payloads the host gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given<'a> {
    /// Of which chunk.
    pub slot: Slot,
    /// Of the first record. The others follow.
    pub sequence: Sequence,
    /// Which blocks of the message, if not all of them; then it is not answered either.
    pub part: Option<Part>,
    pieces: &'a [GivenPieceBody],
}

impl GivenPiece {
    /// How its bytes are to be read.
    #[must_use]
    pub const fn encoding(&self) -> Encoding {
        if self.is_lz4 { Encoding::Lz4 } else { Encoding::Plain }
    }

    fn of(body: &GivenPieceBody) -> Result<Self, &'static str> {
        let (at, stored) = (body.at.get(), body.stored.get());
        let encoding = body.encoding.get();
        if encoding & !(LZ4 | BACK) != 0 {
            return Err("an encoding that there is not");
        }
        let (is_lz4, is_back) = (encoding & LZ4 != 0, encoding & BACK != 0);
        if stored == 0 || stored > STORED_MAX || at.checked_add(stored.into()).is_none() {
            return Err("a payload that no record has");
        }
        Ok(Self { at, stored, is_lz4, is_back })
    }

    fn body(&self) -> GivenPieceBody {
        GivenPieceBody {
            at: self.at.into(),
            stored: self.stored.into(),
            encoding: (u32::from(self.is_lz4) * LZ4 + u32::from(self.is_back) * BACK).into(),
        }
    }
}

impl<'a> Given<'a> {
    /// Records of it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are none: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// One of its payloads.
    #[must_use]
    pub fn piece(&self, at: usize) -> Option<GivenPiece> {
        GivenPiece::of(self.pieces.get(at)?).ok()
    }

    /// What an entry says; nothing if it has another length.
    pub(super) fn decode(entry: &PlanEntry<'a>) -> Option<Result<Self, &'static str>> {
        let (body, pieces) = GivenBody::ref_from_prefix(entry.arguments).ok()?;
        let pieces = <[GivenPieceBody]>::ref_from_bytes(pieces).ok()?;
        if pieces.len() != usize::from(entry.argument) {
            return None;
        }
        Some(Self::of(entry, body, pieces))
    }

    fn of(
        entry: &PlanEntry<'a>,
        body: &GivenBody,
        pieces: &'a [GivenPieceBody],
    ) -> Result<Self, &'static str> {
        let sequence = Sequence(body.sequence.get());
        check_sequence(sequence)?;
        if pieces.is_empty() || pieces.len() > GIVEN_MAX {
            return Err("no pieces, or too many");
        }
        pieces.iter().try_for_each(|piece| GivenPiece::of(piece).map(|_| ()))?;
        let (first, blocks) = (body.first.get(), body.blocks.get());
        let is_part = entry.plan == id::WRITE_GIVEN_PART;
        let end = first.checked_add(blocks).filter(|end| *end <= COMMAND_BLOCKS_MAX);
        if end.is_none() || (blocks > 0) != is_part || (!is_part && first != 0) {
            return Err("blocks that no command has");
        }
        let part = is_part.then_some(Part { first, blocks });
        Ok(Self { slot: entry.slot, sequence, part, pieces })
    }
}

/// What the host gives is sent as it is.
pub(super) fn steps(is_part: bool) -> Vec<Step> {
    let into = scratch();
    let mut steps = vec![
        Step::Each,
        Step::FromHost { into },
        Step::Checksum { of: into },
        Step::Send { payload: Some(into) },
        Step::Keep { what: into },
        Step::Merge { answers: Answers::All },
        Step::EndEach,
    ];
    steps.extend((!is_part).then_some(Step::Answer { payload: None }));
    steps
}

/// Names, places and lengths of the arguments' fields.
#[cfg(test)]
pub(super) const FIELDS: &[(&str, usize, usize)] = GivenBody::FIELDS;
#[cfg(test)]
pub(super) const EACH_FIELDS: &[(&str, usize, usize)] = GivenPieceBody::FIELDS;

impl PostedPlan {
    /// Records of a message's blocks, whose payloads lie in the host's area.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn given(
        handle: Handle,
        slot: Slot,
        sequence: Sequence,
        part: Option<Part>,
        pieces: &[GivenPiece],
    ) -> Result<Self, ArgumentsError> {
        let plan = if part.is_some() { id::WRITE_GIVEN_PART } else { id::WRITE_GIVEN };
        let Part { first, blocks } = part.unwrap_or(Part { first: 0, blocks: 0 });
        let body = GivenBody { sequence: sequence.0.into(), first: first.into(), blocks: blocks.into() };
        let mut arguments = body.as_bytes().to_vec();
        for piece in pieces {
            arguments.extend_from_slice(piece.body().as_bytes());
        }
        Self { plan, argument: count(plan, pieces.len())?, slot, handle, arguments }.checked()
    }
}
