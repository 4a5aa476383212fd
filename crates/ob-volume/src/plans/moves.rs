//! `MOVE` and `MOVE_CUT`: a record of one chunk, or the blocks of it that still count, become one at the end of another.

use ob_core::{BlockLen, Lba, Sequence, Units, layout};
use ob_format::volume::{CHUNK_UNITS_MAX, RECORD_UNITS_MAX, RECORDS_START, STORED_MAX};
use ob_split::wire::{Answers, Handle, Otherwise, PlanEntry, PlanId, Register, Slot, Step};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{ANSWER, ArgumentsError, EFFORT_MAX, PostedPlan, check_sequence, id, scratch};

/// Bytes of the arguments.
pub(super) const MOVE_LEN: usize = 32;

layout!(MoveBody, MOVE_LEN, {
    from: U16, units: U16, place: U32, lba: U32, blocks: U32, block_len: U32, reserved: U32, sequence: U64
});

/// Blocks that go from one chunk into another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// In which chunk they lie.
    pub from: Slot,
    /// At the end of which chunk they are to lie.
    pub to: Slot,
    /// Where their record begins.
    pub place: Units,
    /// How long it is, its header included.
    pub units: Units,
    /// The first of them, within the segment.
    pub lba: Lba,
    /// How many.
    pub blocks: u32,
    /// How long they are.
    pub block_len: BlockLen,
    /// Of the new record.
    pub sequence: Sequence,
    /// How hard they are compressed, if they are not all that the record has; nothing: they are, and it stays as it is stored.
    pub cut: Option<u8>,
}

impl Move {
    /// Bytes of the blocks.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.blocks * self.block_len.bytes()
    }

    /// Whether they are none: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    const fn plan(&self) -> PlanId {
        if self.cut.is_some() { id::MOVE_CUT } else { id::MOVE }
    }

    /// What an entry says; nothing if it has another length.
    pub(super) fn decode(entry: &PlanEntry<'_>) -> Option<Result<Self, &'static str>> {
        let body = MoveBody::ref_from_bytes(entry.arguments).ok()?;
        Some(Self::of(entry, body))
    }

    fn of(entry: &PlanEntry<'_>, body: &MoveBody) -> Result<Self, &'static str> {
        let cut = (entry.plan == id::MOVE_CUT).then_some(entry.argument);
        if entry.argument > if cut.is_some() { EFFORT_MAX } else { 0 } || body.reserved.get() != 0 {
            return Err("an effort that it does not have");
        }
        let (place, units) = (Units(body.place.get()), Units(body.units.get().into()));
        let ends_within = place.checked_add(units).is_some_and(|end| end <= CHUNK_UNITS_MAX);
        if units < Units(2) || units > RECORD_UNITS_MAX || place < RECORDS_START || !ends_within {
            return Err("a record that there cannot be");
        }
        let block_len = BlockLen::from_bytes(body.block_len.get()).ok_or("blocks of no length")?;
        let (lba, blocks) = (Lba(body.lba.get()), body.blocks.get());
        let is_whole = blocks > 0 && blocks <= STORED_MAX / block_len.bytes();
        if !is_whole || lba.0.checked_add(blocks).is_none() {
            return Err("blocks that no record has");
        }
        let (from, to) = (Slot(body.from.get()), entry.slot);
        if from == to {
            return Err("a move to where it comes from");
        }
        let sequence = Sequence(body.sequence.get());
        check_sequence(sequence)?;
        Ok(Self { from, to, place, units, lba, blocks, block_len, sequence, cut })
    }
}

/// What was fetched is verified; of a record that goes on whole its bytes stay as they are, and its checksum with them.
pub(super) fn steps(is_cut: bool) -> Vec<Step> {
    let from = scratch();
    let into = Register::new(3).unwrap_or(ANSWER);
    let pressed = Register::new(4).unwrap_or(ANSWER);
    let mut steps = vec![Step::Fetch { into: from }, Step::Decode { from, into }];
    let what = if is_cut { pressed } else { into };
    if is_cut {
        steps.push(Step::Compress { from: into, into: pressed, otherwise: Otherwise::Copy });
        steps.push(Step::Checksum { of: pressed });
    }
    steps.extend([
        Step::Send { payload: Some(what) },
        Step::Keep { what },
        Step::Merge { answers: Answers::All },
    ]);
    steps
}

/// Names, places and lengths of the arguments' fields.
#[cfg(test)]
pub(super) const FIELDS: &[(&str, usize, usize)] = MoveBody::FIELDS;

impl PostedPlan {
    /// A move. The handle is the host's own, from [`HOST_HANDLES`](super::HOST_HANDLES) on.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn move_record(handle: Handle, moved: &Move) -> Result<Self, ArgumentsError> {
        let plan = moved.plan();
        let units = u16::try_from(moved.units.0)
            .map_err(|_| ArgumentsError::Illegal { plan, what: "a record that there cannot be" })?;
        let body = MoveBody {
            from: moved.from.0.into(),
            units: units.into(),
            place: moved.place.0.into(),
            lba: moved.lba.0.into(),
            blocks: moved.blocks.into(),
            block_len: moved.block_len.bytes().into(),
            reserved: 0.into(),
            sequence: moved.sequence.0.into(),
        };
        let arguments = body.as_bytes().to_vec();
        Self { plan, argument: moved.cut.unwrap_or(0), slot: moved.to, handle, arguments }.checked()
    }
}
