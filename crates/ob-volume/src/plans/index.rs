//! `INDEX`: bytes of the host become a record of an index chunk.

use ob_core::{Sequence, layout};
use ob_format::volume::{PAGE_ENTRIES, PAGE_LEN, RecordKind, STORED_MAX};
use ob_split::wire::{Answers, Handle, Otherwise, PlanEntry, Register, Slot, Step};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{ANSWER, ArgumentsError, EFFORT_MAX, PostedPlan, check_sequence, id, scratch};

/// Bytes of the arguments.
pub(super) const INDEX_LEN: usize = 32;

layout!(IndexBody, INDEX_LEN, { sequence: U64, at: U64, length: U32, page: U32, kind: U32, reserved: U32 });

/// What a record of the index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexPart {
    /// A page.
    Page(u32),
    /// A part of the root.
    Root,
}

/// A record of an index chunk, whose bytes the host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// Which chunk.
    pub slot: Slot,
    /// How hard it is compressed; 0: it is stored as it is.
    pub effort: u8,
    /// Its place in the order of the segment.
    pub sequence: Sequence,
    /// Where in the host's area its bytes lie.
    pub at: u64,
    /// How many there are.
    pub length: u32,
    /// What it is.
    pub part: IndexPart,
}

impl Index {
    /// What an entry says; nothing if it has another length.
    pub(super) fn decode(entry: &PlanEntry<'_>) -> Option<Result<Self, &'static str>> {
        let body = IndexBody::ref_from_bytes(entry.arguments).ok()?;
        Some(Self::of(entry, body))
    }

    fn of(entry: &PlanEntry<'_>, body: &IndexBody) -> Result<Self, &'static str> {
        let (sequence, at, length) = (Sequence(body.sequence.get()), body.at.get(), body.length.get());
        check_sequence(sequence)?;
        if entry.argument > EFFORT_MAX || body.reserved.get() != 0 {
            return Err("an effort that it does not have");
        }
        let page = body.page.get();
        let part = match body.kind.get() {
            kind if kind == u32::from(RecordKind::Page.code()) => IndexPart::Page(page),
            kind if kind == u32::from(RecordKind::Root.code()) => IndexPart::Root,
            _ => return Err("a record that no index has"),
        };
        let is_whole = match part {
            IndexPart::Page(page) => length as usize == PAGE_LEN && page < u32::MAX / PAGE_ENTRIES as u32,
            IndexPart::Root => (1..=STORED_MAX).contains(&length) && page == 0,
        };
        if !is_whole || at.checked_add(length.into()).is_none() {
            return Err("bytes that no such record has");
        }
        Ok(Self { slot: entry.slot, effort: entry.argument, sequence, at, length, part })
    }

    /// What kind the record is of.
    #[must_use]
    pub const fn kind(&self) -> RecordKind {
        match self.part {
            IndexPart::Page(_) => RecordKind::Page,
            IndexPart::Root => RecordKind::Root,
        }
    }

    /// Which page it is, and 0 of a root.
    #[must_use]
    pub const fn page(&self) -> u32 {
        match self.part {
            IndexPart::Page(page) => page,
            IndexPart::Root => 0,
        }
    }
}

pub(super) fn steps() -> Vec<Step> {
    let from = scratch();
    let into = Register::new(3).unwrap_or(ANSWER);
    vec![
        Step::FromHost { into: from },
        Step::Compress { from, into, otherwise: Otherwise::Copy },
        Step::Checksum { of: into },
        Step::Send { payload: Some(into) },
        Step::Merge { answers: Answers::All },
    ]
}

/// Names, places and lengths of the arguments' fields.
#[cfg(test)]
pub(super) const FIELDS: &[(&str, usize, usize)] = IndexBody::FIELDS;

impl PostedPlan {
    /// A record of the index. The handle is the host's own, from [`HOST_HANDLES`](super::HOST_HANDLES) on.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn index(handle: Handle, index: &Index) -> Result<Self, ArgumentsError> {
        let body = IndexBody {
            sequence: index.sequence.0.into(),
            at: index.at.into(),
            length: index.length.into(),
            page: index.page().into(),
            kind: u32::from(index.kind().code()).into(),
            reserved: 0.into(),
        };
        let arguments = body.as_bytes().to_vec();
        Self { plan: id::INDEX, argument: index.effort, slot: index.slot, handle, arguments }.checked()
    }
}
