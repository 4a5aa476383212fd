//! `TAKE` and `PRESS`: a message's payload goes into the card's area, for placements whose payloads the host has; and bytes of that area
//! come back to the card, which compresses them into another place there.

use ob_core::layout;
use ob_split::wire::{Handle, Otherwise, PlanEntry, Register, Slot, Step};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{ANSWER, ArgumentsError, EFFORT_MAX, PIECE_LEN, PostedPlan, VolumePlan, id, scratch};

/// Bytes of the arguments.
pub(super) const TAKE_LEN: usize = 8;
pub(super) const PRESS_LEN: usize = 24;

layout!(TakeBody, TAKE_LEN, { offset: U32, length: U32 });
layout!(PressBody, PRESS_LEN, { at: U64, into: U64, length: U32, reserved: U32 });

/// Bytes that the card compresses for a host that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardPress {
    /// How hard, from 1 on.
    pub effort: u8,
    /// Where in the card's area they lie.
    pub at: u64,
    /// Where in that area there is room for what becomes of them, which is shorter.
    pub into: u64,
    /// How many there are.
    pub length: u32,
}

impl CardPress {
    /// What an entry says; nothing if it has another length.
    pub(super) fn decode(entry: &PlanEntry<'_>) -> Option<Result<Self, &'static str>> {
        let body = PressBody::ref_from_bytes(entry.arguments).ok()?;
        Some(Self::of(entry, body))
    }

    fn of(entry: &PlanEntry<'_>, body: &PressBody) -> Result<Self, &'static str> {
        let (effort, at, into, length) = (entry.argument, body.at.get(), body.into.get(), body.length.get());
        if !(1..=EFFORT_MAX).contains(&effort) || entry.slot.0 != 0 || body.reserved.get() != 0 {
            return Err("an effort that it does not have");
        }
        let ends = at.checked_add(length.into()).zip(into.checked_add(length.into()));
        if length == 0 || length > PIECE_LEN || ends.is_none() {
            return Err("bytes that no record has, or a place that there cannot be");
        }
        Ok(Self { effort, at, into, length })
    }
}

/// What an entry of `TAKE` says; nothing if it has another length.
pub(super) fn decode_take<'a>(entry: &PlanEntry<'a>) -> Option<Result<VolumePlan<'a>, &'static str>> {
    let body = TakeBody::ref_from_bytes(entry.arguments).ok()?;
    let (offset, length) = (body.offset.get(), body.length.get());
    if entry.argument != 0 || length == 0 || offset.checked_add(length).is_none() {
        return Some(Err("a place that there cannot be"));
    }
    Some(Ok(VolumePlan::Take { slot: entry.slot, offset, length }))
}

/// What does not shrink stays where it lies: then the plan fails in its second step.
pub(super) fn press_steps() -> Vec<Step> {
    let from = scratch();
    let into = Register::new(3).unwrap_or(ANSWER);
    vec![
        Step::FromHost { into: from },
        Step::Compress { from, into, otherwise: Otherwise::Fail },
        Step::ToHost { from: into },
    ]
}

/// Names, places and lengths of the arguments' fields.
#[cfg(test)]
pub(super) const TAKE_FIELDS: &[(&str, usize, usize)] = TakeBody::FIELDS;
#[cfg(test)]
pub(super) const PRESS_FIELDS: &[(&str, usize, usize)] = PressBody::FIELDS;

impl PostedPlan {
    /// A message's payload for the host, into a place of the card's area.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn take(handle: Handle, slot: Slot, offset: u32, length: u32) -> Result<Self, ArgumentsError> {
        let arguments = TakeBody { offset: offset.into(), length: length.into() }.as_bytes().to_vec();
        Self { plan: id::TAKE, argument: 0, slot, handle, arguments }.checked()
    }

    /// Bytes that a message's payload was are compressed by the card.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn press(handle: Handle, press: &CardPress) -> Result<Self, ArgumentsError> {
        let body = PressBody {
            at: press.at.into(),
            into: press.into.into(),
            length: press.length.into(),
            reserved: 0.into(),
        };
        let arguments = body.as_bytes().to_vec();
        Self { plan: id::PRESS, argument: press.effort, slot: Slot(0), handle, arguments }.checked()
    }
}
