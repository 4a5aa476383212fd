//! `COPY` and `MEND`: records of a chunk from one server to another, over the card alone.

use ob_core::{ChunkId, ChunkName, Epoch, SegmentId, Units, VolumeId, layout};
use ob_format::volume::{CHUNK_UNITS_MAX, RECORDS_START};
use ob_split::wire::{Answers, ChannelId, Handle, PlanEntry, PlanId, Register, Slot, Step};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{ANSWER, ArgumentsError, PostedPlan, id, scratch};

/// Bytes of the arguments.
pub(super) const COPY_LEN: usize = 32;
/// Bytes that one `COPY` moves at most: a record has room in them, and they in the blocks that cards have for records.
pub const COPY_BYTES_MAX: u32 = 72 << 10;
/// The step of both that asks the giver, as completions count them.
pub const COPY_FETCH_STEP: u32 = 1;

layout!(CopyBody, COPY_LEN, {
    volume: U64, segment: U32, chunk: U32, epoch: U32, at: U32, end: U32, to: U16, reserved: U16
});

/// Records of a chunk that one server has and another lacks; or one that has rotted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Who has them.
    pub from: ChannelId,
    /// Who lacks them.
    pub to: ChannelId,
    /// Which chunk.
    pub chunk: ChunkName,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// Where the first of them begins.
    pub at: Units,
    /// Where the last of them ends; what goes in one plan may be less.
    pub end: Units,
    /// Whether it is one record, which is written over what lies at its place.
    pub is_mend: bool,
}

impl Copy {
    const fn plan(&self) -> PlanId {
        if self.is_mend { id::MEND } else { id::COPY }
    }

    /// Bytes that are asked for at once: whole records are taken of them.
    #[must_use]
    pub const fn len(&self) -> u32 {
        let all = self.end.0.saturating_sub(self.at.0).saturating_mul(Units::LEN);
        if all < COPY_BYTES_MAX { all } else { COPY_BYTES_MAX }
    }

    /// Whether it is none: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What an entry says; nothing if it has another length.
    pub(super) fn decode(entry: &PlanEntry<'_>) -> Option<Result<Self, &'static str>> {
        let body = CopyBody::ref_from_bytes(entry.arguments).ok()?;
        if entry.argument != 0 {
            return Some(Err("a copy that is counted"));
        }
        Some(Self::of(entry.slot, body, entry.plan == id::MEND))
    }

    fn of(slot: Slot, body: &CopyBody, is_mend: bool) -> Result<Self, &'static str> {
        let chunk = ChunkName {
            volume: VolumeId(body.volume.get()),
            segment: SegmentId(body.segment.get()),
            chunk: ChunkId(body.chunk.get()),
        };
        let (at, end) = (Units(body.at.get()), Units(body.end.get()));
        let epoch = Epoch::new(body.epoch.get()).ok_or("an epoch that there is not")?;
        if at < RECORDS_START || at >= end || end > CHUNK_UNITS_MAX {
            return Err("units that no chunk has");
        }
        let (from, to) = (ChannelId(slot.0), ChannelId(body.to.get()));
        if from == to || to.0 == 0 || body.reserved.get() != 0 {
            return Err("a copy to nobody");
        }
        Ok(Self { from, to, chunk, epoch, at, end, is_mend })
    }
}

/// What is fetched is looked at record by record, and whole ones alone go on (R1).
pub(super) fn steps() -> Vec<Step> {
    let from = scratch();
    let into = Register::new(3).unwrap_or(ANSWER);
    let payload = Some(into);
    vec![
        Step::Fetch { into: from },
        Step::Decode { from, into },
        Step::Send { payload },
        Step::Merge { answers: Answers::First },
    ]
}

/// Names, places and lengths of the arguments' fields.
#[cfg(test)]
pub(super) const FIELDS: &[(&str, usize, usize)] = CopyBody::FIELDS;

impl PostedPlan {
    /// Records for a server that lacks them, or one that has rotted there. The handle is the host's own, from [`HOST_HANDLES`](super::HOST_HANDLES) on.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn copy(handle: Handle, copy: &Copy) -> Result<Self, ArgumentsError> {
        let body = CopyBody {
            volume: copy.chunk.volume.0.into(),
            segment: copy.chunk.segment.0.into(),
            chunk: copy.chunk.chunk.0.into(),
            epoch: copy.epoch.number().into(),
            at: copy.at.0.into(),
            end: copy.end.0.into(),
            to: copy.to.0.into(),
            reserved: 0.into(),
        };
        let (slot, arguments) = (Slot(copy.from.0), body.as_bytes().to_vec());
        Self { plan: copy.plan(), argument: 0, slot, handle, arguments }.checked()
    }
}
