//! The plans of volumes (`docs/split.md`): what the host asks of the card with a few bytes, and what they mean.
//!
//! ```text
//!   TierCore ─ VolumePlan ─▶ encode ─▶ PostedPlan ══ PLANS ══▶ PlanEntry ─▶ VolumePlan::decode ─ VolumeDialect
//!   definitions(): what the card does for each, step by step
//! ```
//!
//! The layout of arguments is here and nowhere else. What `decode` gives holds only legal values; whether there is such a slot,
//! handle or channel is left to who knows them.

use ob_core::{BlockLen, Lba, Sequence, Units, layout};
use ob_format::volume::{CHUNK_UNITS_MAX, RECORD_UNITS_MAX, RECORDS_START, STORED_MAX, TrimRange};
use ob_split::wire::{
    Answers, ChannelId, Definition, ENTRY_LEN_MIN, HEADER_LEN, Handle, Header, Otherwise, Plan, PlanEntry,
    PlanError, PlanId, Register, Slot, Step,
};
use ob_wire_nvme::Status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::wire::MAGIC;

pub use copy::{COPY_BYTES_MAX, COPY_FETCH_STEP, Copy};
pub use given::{GIVEN_MAX, Given, GivenPiece};
pub use index::{Index, IndexPart};
pub use look::{LOOK_BYTES_MAX, LOOK_ENTRIES_MAX, LOOK_FETCH_STEP, Look};
pub use moves::Move;
pub use take::CardPress;

mod copy;
#[cfg(test)]
mod doc_tests;
mod given;
mod index;
mod look;
mod moves;
mod take;
#[cfg(test)]
mod tests;

/// Bytes of blocks that one record has at most: a write is cut into so many, from its first block on.
pub const PIECE_LEN: u32 = STORED_MAX;
/// Bytes of the longest payload of a command: 16 records, of one plan.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Most runs that a plan reads.
pub const RUNS_MAX: usize = 254;
/// Most ranges that a plan trims.
pub const RANGES_MAX: usize = 255;
/// Most blocks of a command.
pub const COMMAND_BLOCKS_MAX: u32 = 1 << 16;
/// Most efforts of compression.
pub const EFFORT_MAX: u8 = 4;
/// Where slots for payloads begin in both areas: what tiers look at, and write of their indexes, comes before them.
pub const TAKE_BASE: u64 = 4 << 20;
/// Bytes of a slot into which `TAKE` puts payloads, and of one from which what was made of them comes back. What is longer has several that
/// lie side by side.
pub const TAKE_SLOT_LEN: u64 = 128 << 10;
/// Handles from here on are the host's, for plans that are of no message.
pub const HOST_HANDLES: u32 = ob_split::wire::OF_HOST;

/// What stands between the beginning of an entry and what is counted.
const WRITE_LEN: usize = 8;
const PART_LEN: usize = 16;
const READ_PART_LEN: usize = 8;
const EACH_READ_LEN: usize = 16;
const EACH_TRIM_LEN: usize = 8;
/// Payloads of calls are counted in words.
const WORD_LEN: usize = 4;

layout!(WriteBody, WRITE_LEN, { sequence: U64 });
layout!(WritePartBody, PART_LEN, { sequence: U64, first: U32, blocks: U32 });
layout!(ReadPartBody, READ_PART_LEN, { first: U32, reserved: U32 });
layout!(RunBody, EACH_READ_LEN, { slot: U16, units: U16, blocks: U32, place: U32, lba: U32 });
layout!(RangeBody, EACH_TRIM_LEN, { lba: U32, blocks: U32 });
layout!(CallBody, HEADER_LEN, { header: [u8; HEADER_LEN] });

/// Numbers of plans.
pub mod id {
    use super::PlanId;

    /// Compressed records, and the answer.
    pub const WRITE: PlanId = PlanId(1);
    /// Records as they are, and the answer.
    pub const WRITE_RAW: PlanId = PlanId(2);
    /// Compressed records of some blocks.
    pub const WRITE_PART: PlanId = PlanId(3);
    /// Records as they are, of some blocks.
    pub const WRITE_RAW_PART: PlanId = PlanId(4);
    /// All runs, and the answer.
    pub const READ: PlanId = PlanId(5);
    /// Some runs.
    pub const READ_PART: PlanId = PlanId(6);
    /// A trim, and the answer.
    pub const TRIM: PlanId = PlanId(7);
    /// A trim.
    pub const TRIM_PART: PlanId = PlanId(8);
    /// An answer without bytes.
    pub const ANSWER: PlanId = PlanId(9);
    /// An answer with the bytes that parts have read.
    pub const ANSWER_READ: PlanId = PlanId(10);
    /// A request to a chunk server.
    pub const CALL: PlanId = PlanId(11);
    /// A message's payload into the host's area.
    pub const TAKE: PlanId = PlanId(12);
    /// Records of a chunk from one server to another.
    pub const COPY: PlanId = PlanId(13);
    /// What a chunk server tells at length into the card's area.
    pub const LOOK: PlanId = PlanId(14);
    /// Bytes of the host's area into an index chunk.
    pub const INDEX: PlanId = PlanId(15);
    /// A record of one chunk to the end of another.
    pub const MOVE: PlanId = PlanId(16);
    /// Some blocks of a record.
    pub const MOVE_CUT: PlanId = PlanId(17);
    /// Records whose payloads the host gives, and the answer.
    pub const WRITE_GIVEN: PlanId = PlanId(18);
    /// The same of some blocks.
    pub const WRITE_GIVEN_PART: PlanId = PlanId(19);
    /// A record of a chunk from one server over what has rotted at another.
    pub const MEND: PlanId = PlanId(20);
    /// Bytes of the card's area, compressed into another place there.
    pub const PRESS: PlanId = PlanId(21);

    /// Name and number of each.
    pub const ALL: &[(&str, PlanId)] = &[
        ("WRITE", WRITE),
        ("WRITE_RAW", WRITE_RAW),
        ("WRITE_PART", WRITE_PART),
        ("WRITE_RAW_PART", WRITE_RAW_PART),
        ("READ", READ),
        ("READ_PART", READ_PART),
        ("TRIM", TRIM),
        ("TRIM_PART", TRIM_PART),
        ("ANSWER", ANSWER),
        ("ANSWER_READ", ANSWER_READ),
        ("CALL", CALL),
        ("TAKE", TAKE),
        ("COPY", COPY),
        ("LOOK", LOOK),
        ("INDEX", INDEX),
        ("MOVE", MOVE),
        ("MOVE_CUT", MOVE_CUT),
        ("WRITE_GIVEN", WRITE_GIVEN),
        ("WRITE_GIVEN_PART", WRITE_GIVEN_PART),
        ("MEND", MEND),
        ("PRESS", PRESS),
    ];
}

/// Blocks of a command, counted from its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first.
    pub first: u32,
    /// How many, at least one.
    pub blocks: u32,
}

/// Blocks that follow each other, and where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// They are zeros.
    Zeros {
        /// How many, at least one.
        blocks: u32,
    },
    /// They lie in a record.
    Record {
        /// Of which chunk.
        slot: Slot,
        /// Where it begins.
        place: Units,
        /// How long it is, its header included.
        units: Units,
        /// The first of them, counted within the segment; the record says at which of its own it begins.
        lba: Lba,
        /// How many, at least one.
        blocks: u32,
    },
}

impl Run {
    /// Bytes of the card's memory that it takes, about: shorter ones get a block that is no shorter than this.
    pub(crate) fn memory(&self) -> u64 {
        const LEAST: u64 = 16 << 10;
        match self {
            Self::Zeros { .. } => 0,
            Self::Record { units, .. } => units.bytes().next_multiple_of(LEAST),
        }
    }
}

/// The runs of a plan, one at least, all of which are legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs<'a>(&'a [RunBody]);

/// The ranges of a plan, one at least, all of which are legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges<'a>(&'a [RangeBody]);

/// What is asked of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumePlan<'a> {
    /// Blocks of the message's payload become records at the end of a chunk, each of [`PIECE_LEN`] bytes but for the last.
    Write {
        /// Which chunk.
        slot: Slot,
        /// How hard they are compressed; 0: they are stored as they are.
        effort: u8,
        /// Of the first record. The others follow.
        sequence: Sequence,
        /// Which blocks of the message, if not all of them; then it is not answered either.
        part: Option<Part>,
    },
    /// Blocks are read into the answer, one run behind the other.
    Read {
        /// Which member of each run's chunk is asked first; nothing: whom the card likes.
        member: Option<u8>,
        /// At which block of the answer the first run begins, if it is one of several plans; then it is not answered either.
        first: Option<u32>,
        /// The runs.
        runs: Runs<'a>,
    },
    /// A record at the end of a chunk says that blocks are gone.
    Trim {
        /// Which chunk.
        slot: Slot,
        /// Of the record.
        sequence: Sequence,
        /// Whether something of the message remains, so that it is not answered.
        is_part: bool,
        /// Which blocks.
        ranges: Ranges<'a>,
    },
    /// The message's peer is answered.
    Answer {
        /// How.
        status: Status,
        /// Whether with what was read.
        has_bytes: bool,
    },
    /// A request goes to a chunk server, and its reply to the host.
    Call {
        /// To whom.
        channel: ChannelId,
        /// The request's header.
        header: &'a [u8; HEADER_LEN],
        /// Its payload, of whole words: as many bytes as the header says.
        payload: &'a [u8],
    },
    /// The message's payload goes to the host.
    Take {
        /// Into which slot of the card's area.
        slot: Slot,
        /// Where in it.
        offset: u32,
        /// How many bytes, at least one.
        length: u32,
    },
    /// The card compresses what the host has of a message.
    Press(CardPress),
    /// Blocks of the message become records, whose payloads the host gives.
    Given(Given<'a>),
    /// Whole records go from one chunk server to another, or one over what has rotted; the reply goes to the host.
    Copy(Copy),
    /// What a chunk server tells goes into the card's area.
    Look(Look),
    /// Bytes of the host's area become a record of the index.
    Index(Index),
    /// Blocks go from one chunk to another.
    Move(Move),
}

/// A plan as it is posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedPlan {
    /// Which.
    pub plan: PlanId,
    /// The effort; or how many of something there are.
    pub argument: u8,
    /// The chunk, or what else has a number.
    pub slot: Slot,
    /// The message, or the host's own.
    pub handle: Handle,
    /// The rest.
    pub arguments: Vec<u8>,
}

/// Why an entry is no plan of volumes, or cannot be posted. A host that posts such has its group closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// There is no such plan here.
    #[error("volumes have no plan {}", .0.0)]
    Unknown(PlanId),
    /// It is longer or shorter than such are.
    #[error("plan {} cannot have {available} bytes of arguments", .plan.0)]
    Length {
        /// Which plan.
        plan: PlanId,
        /// How many there are.
        available: usize,
    },
    /// It says what cannot be.
    #[error("plan {} cannot be: {what}", .plan.0)]
    Illegal {
        /// Which plan.
        plan: PlanId,
        /// What cannot be.
        what: &'static str,
    },
}

/// Records that a write of so many blocks is cut into.
#[must_use]
pub const fn pieces(blocks: u32, block_len: BlockLen) -> u32 {
    blocks.div_ceil(piece_blocks(block_len))
}

/// Blocks of a record that is full.
#[must_use]
pub const fn piece_blocks(block_len: BlockLen) -> u32 {
    PIECE_LEN / block_len.bytes()
}

const WHAT: Register = Register::PAYLOAD;
const ANSWER: Register = Register::ANSWER;

/// Register 2, which plans take when they need it.
fn scratch() -> Register {
    // There is one, which a test sees to: definitions are made there.
    Register::new(2).unwrap_or(ANSWER)
}

fn write_steps(is_raw: bool, is_part: bool) -> Vec<Step> {
    let into = scratch();
    let mut steps = vec![Step::Each];
    // What is stored as it is, is sent from where it was received: nobody writes there before the peers have it.
    let what = if is_raw { WHAT } else { into };
    steps.extend((!is_raw).then_some(Step::Compress { from: WHAT, into, otherwise: Otherwise::Copy }));
    steps.extend([
        Step::Checksum { of: what },
        Step::Send { payload: Some(what) },
        Step::Keep { what },
        Step::Merge { answers: Answers::All },
        Step::EndEach,
    ]);
    steps.extend((!is_part).then_some(Step::Answer { payload: None }));
    steps
}

fn read_steps(is_part: bool) -> Vec<Step> {
    let from = scratch();
    let mut steps =
        vec![Step::Each, Step::Fetch { into: from }, Step::Decode { from, into: ANSWER }, Step::EndEach];
    steps.extend((!is_part).then_some(Step::Answer { payload: Some(ANSWER) }));
    steps
}

fn trim_steps(is_part: bool) -> Vec<Step> {
    let mut steps = vec![Step::Send { payload: None }, Step::Merge { answers: Answers::All }];
    steps.extend((!is_part).then_some(Step::Answer { payload: None }));
    steps
}

/// What the host defines when it opens a port, in the order of their numbers.
///
/// # Errors
///
/// Never: a test sees to it that these are plans.
pub fn definitions() -> Result<Vec<Definition>, PlanError> {
    let define = |id: PlanId, steps: Vec<Step>, arguments: usize, each: usize| {
        Definition::new(id, Plan::new(steps)?, ENTRY_LEN_MIN + arguments as u8, each as u8)
    };
    Ok(vec![
        define(id::WRITE, write_steps(false, false), WRITE_LEN, 0)?,
        define(id::WRITE_RAW, write_steps(true, false), WRITE_LEN, 0)?,
        define(id::WRITE_PART, write_steps(false, true), PART_LEN, 0)?,
        define(id::WRITE_RAW_PART, write_steps(true, true), PART_LEN, 0)?,
        define(id::READ, read_steps(false), 0, EACH_READ_LEN)?,
        define(id::READ_PART, read_steps(true), READ_PART_LEN, EACH_READ_LEN)?,
        define(id::TRIM, trim_steps(false), WRITE_LEN, EACH_TRIM_LEN)?,
        define(id::TRIM_PART, trim_steps(true), WRITE_LEN, EACH_TRIM_LEN)?,
        define(id::ANSWER, vec![Step::Answer { payload: None }], 0, 0)?,
        define(id::ANSWER_READ, vec![Step::Answer { payload: Some(ANSWER) }], 0, 0)?,
        define(
            id::CALL,
            vec![Step::Send { payload: None }, Step::Merge { answers: Answers::First }],
            HEADER_LEN,
            WORD_LEN,
        )?,
        define(id::TAKE, vec![Step::ToHost { from: WHAT }], take::TAKE_LEN, 0)?,
        define(id::COPY, copy::steps(), copy::COPY_LEN, 0)?,
        define(id::LOOK, look::steps(), look::LOOK_LEN, 0)?,
        define(id::INDEX, index::steps(), index::INDEX_LEN, 0)?,
        define(id::MOVE, moves::steps(false), moves::MOVE_LEN, 0)?,
        define(id::MOVE_CUT, moves::steps(true), moves::MOVE_LEN, 0)?,
        define(id::WRITE_GIVEN, given::steps(false), given::GIVEN_LEN, given::EACH_GIVEN_LEN)?,
        define(id::WRITE_GIVEN_PART, given::steps(true), given::GIVEN_LEN, given::EACH_GIVEN_LEN)?,
        define(id::MEND, copy::steps(), copy::COPY_LEN, 0)?,
        define(id::PRESS, take::press_steps(), take::PRESS_LEN, 0)?,
    ])
}

impl Run {
    /// How many blocks.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        match *self {
            Self::Zeros { blocks } | Self::Record { blocks, .. } => blocks,
        }
    }

    fn body(&self) -> RunBody {
        let (slot, place, units, lba) = match *self {
            Self::Zeros { .. } => (Slot(0), Units(0), Units(0), Lba(0)),
            Self::Record { slot, place, units, lba, .. } => (slot, place, units, lba),
        };
        RunBody {
            slot: slot.0.into(),
            // What has more is refused by whoever looks at it.
            units: u16::try_from(units.0).unwrap_or(u16::MAX).into(),
            blocks: self.blocks().into(),
            place: place.0.into(),
            lba: lba.0.into(),
        }
    }

    fn of(body: &RunBody) -> Result<Self, &'static str> {
        let (blocks, place, units) =
            (body.blocks.get(), Units(body.place.get()), Units(body.units.get().into()));
        if blocks == 0 {
            return Err("a run of no blocks");
        }
        if units.0 == 0 {
            let is_empty = body.slot == 0 && place.0 == 0 && body.lba == 0;
            return if is_empty { Ok(Self::Zeros { blocks }) } else { Err("zeros that lie somewhere") };
        }
        // A record with a block in it has more than a header.
        let ends_within = place.checked_add(units).is_some_and(|end| end <= CHUNK_UNITS_MAX);
        if units < Units(2) || units > RECORD_UNITS_MAX || place < RECORDS_START || !ends_within {
            return Err("a record that there cannot be");
        }
        let lba = Lba(body.lba.get());
        if lba.0.checked_add(blocks).is_none() {
            return Err("blocks beyond all segments");
        }
        Ok(Self::Record { slot: Slot(body.slot.get()), place, units, lba, blocks })
    }
}

impl<'a> Runs<'a> {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// They, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Run> + use<'a> {
        // They were checked before; one that were not would be blocks that nobody waits for.
        self.0.iter().map(|body| Run::of(body).unwrap_or(Run::Zeros { blocks: 0 }))
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Run> {
        Run::of(self.0.get(at)?).ok()
    }

    /// All their blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.iter().map(|run| run.blocks()).sum()
    }

    fn check(bodies: &[RunBody], first: u32) -> Result<(), &'static str> {
        if bodies.is_empty() || bodies.len() > RUNS_MAX {
            return Err("no runs, or too many");
        }
        let mut end = first;
        for body in bodies {
            let blocks = Run::of(body)?.blocks();
            end = end.checked_add(blocks).ok_or("more blocks than a command has")?;
        }
        if end <= COMMAND_BLOCKS_MAX { Ok(()) } else { Err("more blocks than a command has") }
    }
}

impl<'a> Ranges<'a> {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// They, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TrimRange> + use<'a> {
        self.0.iter().map(|body| TrimRange { lba: Lba(body.lba.get()), blocks: body.blocks.get() })
    }

    fn check(bodies: &[RangeBody]) -> Result<(), &'static str> {
        if bodies.is_empty() {
            return Err("no ranges");
        }
        for body in bodies {
            let (lba, blocks) = (body.lba.get(), body.blocks.get());
            if blocks == 0 || lba.checked_add(blocks).is_none() {
                return Err("a range of no blocks, or beyond all segments");
            }
        }
        Ok(())
    }
}

impl<'a> VolumePlan<'a> {
    /// What an entry asks for.
    ///
    /// # Errors
    ///
    /// When it is no plan of volumes, or says what cannot be.
    pub fn decode(entry: &PlanEntry<'a>) -> Result<Self, ArgumentsError> {
        let plan_of = Self::decode_known(entry)?;
        let illegal = |what: &'static str| ArgumentsError::Illegal { plan: entry.plan, what };
        match &plan_of {
            Self::Read { first, runs, .. } => Runs::check(runs.0, first.unwrap_or(0)).map_err(illegal)?,
            Self::Trim { ranges, .. } => Ranges::check(ranges.0).map_err(illegal)?,
            _ => {}
        }
        Ok(plan_of)
    }

    /// What an entry asks for that [`VolumePlan::decode`] has taken before: what it counts is not looked at again.
    ///
    /// # Errors
    ///
    /// When it is no plan of volumes, or says what cannot be.
    pub fn decode_known(entry: &PlanEntry<'a>) -> Result<Self, ArgumentsError> {
        let plan = entry.plan;
        let length = ArgumentsError::Length { plan, available: entry.arguments.len() };
        let illegal = |what: &'static str| ArgumentsError::Illegal { plan, what };
        let counted = usize::from(entry.argument);
        match plan {
            id::WRITE | id::WRITE_RAW | id::WRITE_PART | id::WRITE_RAW_PART => {
                Self::decode_write(entry, length)
            }
            id::READ => Self::decode_read(entry, None, entry.arguments, length),
            id::READ_PART => {
                let (body, runs) = ReadPartBody::ref_from_prefix(entry.arguments).map_err(|_| length)?;
                if body.reserved != 0 {
                    return Err(illegal("reserved bytes that are not zero"));
                }
                Self::decode_read(entry, Some(body.first.get()), runs, length)
            }
            id::TRIM | id::TRIM_PART => {
                let (body, ranges) = WriteBody::ref_from_prefix(entry.arguments).map_err(|_| length)?;
                let ranges = <[RangeBody]>::ref_from_bytes(ranges).map_err(|_| length)?;
                if ranges.len() != counted {
                    return Err(length);
                }
                let (sequence, is_part) = (Sequence(body.sequence.get()), plan == id::TRIM_PART);
                check_sequence(sequence).map_err(illegal)?;
                Ok(Self::Trim { slot: entry.slot, sequence, is_part, ranges: Ranges(ranges) })
            }
            id::ANSWER | id::ANSWER_READ => {
                let is_plain = entry.argument == 0 && entry.arguments.is_empty();
                if !is_plain || entry.slot.0 > STATUS_MAX {
                    return Err(illegal("an answer that there is not"));
                }
                let status = Status::from_field(entry.slot.0 << 1);
                Ok(Self::Answer { status, has_bytes: plan == id::ANSWER_READ })
            }
            id::CALL => {
                let (header, payload) = entry.arguments.split_first_chunk::<HEADER_LEN>().ok_or(length)?;
                if payload.len() != counted * WORD_LEN {
                    return Err(length);
                }
                check_call(header, payload).map_err(illegal)?;
                check_channel(entry.slot).map_err(illegal)?;
                Ok(Self::Call { channel: ChannelId(entry.slot.0), header, payload })
            }
            id::TAKE => take::decode_take(entry).ok_or(length)?.map_err(illegal),
            id::PRESS => CardPress::decode(entry).ok_or(length)?.map(Self::Press).map_err(illegal),
            id::COPY | id::MEND => {
                check_channel(entry.slot).map_err(illegal)?;
                Copy::decode(entry).ok_or(length)?.map(Self::Copy).map_err(illegal)
            }
            id::LOOK => {
                check_channel(entry.slot).map_err(illegal)?;
                Look::decode(entry).ok_or(length)?.map(Self::Look).map_err(illegal)
            }
            id::INDEX => Index::decode(entry).ok_or(length)?.map(Self::Index).map_err(illegal),
            id::WRITE_GIVEN | id::WRITE_GIVEN_PART => {
                Given::decode(entry).ok_or(length)?.map(Self::Given).map_err(illegal)
            }
            id::MOVE | id::MOVE_CUT => Move::decode(entry).ok_or(length)?.map(Self::Move).map_err(illegal),
            _ => Err(ArgumentsError::Unknown(plan)),
        }
    }

    fn decode_write(entry: &PlanEntry<'_>, length: ArgumentsError) -> Result<Self, ArgumentsError> {
        let plan = entry.plan;
        let illegal = |what: &'static str| ArgumentsError::Illegal { plan, what };
        let (sequence, part) = if plan == id::WRITE || plan == id::WRITE_RAW {
            let body = WriteBody::ref_from_bytes(entry.arguments).map_err(|_| length)?;
            (body.sequence, None)
        } else {
            let body = WritePartBody::ref_from_bytes(entry.arguments).map_err(|_| length)?;
            (body.sequence, Some(Part { first: body.first.get(), blocks: body.blocks.get() }))
        };
        let is_raw = plan == id::WRITE_RAW || plan == id::WRITE_RAW_PART;
        if (entry.argument == 0) != is_raw || entry.argument > EFFORT_MAX {
            return Err(illegal("an effort that it does not have"));
        }
        let end = part.map(|part| (part.blocks, part.first.checked_add(part.blocks)));
        if end.is_some_and(|(blocks, end)| blocks == 0 || end.is_none_or(|end| end > COMMAND_BLOCKS_MAX)) {
            return Err(illegal("blocks that no command has"));
        }
        let sequence = Sequence(sequence.get());
        check_sequence(sequence).map_err(illegal)?;
        Ok(Self::Write { slot: entry.slot, effort: entry.argument, sequence, part })
    }

    fn decode_read(
        entry: &PlanEntry<'_>,
        first: Option<u32>,
        runs: &'a [u8],
        length: ArgumentsError,
    ) -> Result<Self, ArgumentsError> {
        let illegal = |what: &'static str| ArgumentsError::Illegal { plan: entry.plan, what };
        let runs = <[RunBody]>::ref_from_bytes(runs).map_err(|_| length)?;
        if runs.len() != usize::from(entry.argument) {
            return Err(length);
        }
        let member = match u8::try_from(entry.slot.0) {
            Ok(0) => None,
            Ok(number) if usize::from(number) <= ob_split::wire::MEMBERS_MAX => Some(number - 1),
            _ => return Err(illegal("a member that no chunk has")),
        };
        Ok(Self::Read { member, first, runs: Runs(runs) })
    }
}

/// The greatest status of a completion: fifteen bits.
const STATUS_MAX: u16 = u16::MAX >> 1;

fn check_sequence(sequence: Sequence) -> Result<(), &'static str> {
    if sequence.epoch().is_some() { Ok(()) } else { Err("a sequence of no epoch") }
}

fn check_channel(channel: Slot) -> Result<(), &'static str> {
    if channel.0 != 0 { Ok(()) } else { Err("no channel") }
}

fn check_call(header: &[u8; HEADER_LEN], payload: &[u8]) -> Result<(), &'static str> {
    let header = Header::decode(header, MAGIC).map_err(|_| "a header of no chunk server's protocol")?;
    if header.payload_len as usize == payload.len() { Ok(()) } else { Err("another payload than it says") }
}

/// How plans are made: each checks what `decode` would refuse, so that no group is closed for what its own host has sent.
impl PostedPlan {
    /// Records of a message's blocks. They are compressed by an effort above 0.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn write(
        handle: Handle,
        slot: Slot,
        effort: u8,
        sequence: Sequence,
        part: Option<Part>,
    ) -> Result<Self, ArgumentsError> {
        let plan = match (effort, part) {
            (0, None) => id::WRITE_RAW,
            (0, Some(_)) => id::WRITE_RAW_PART,
            (_, None) => id::WRITE,
            (_, Some(_)) => id::WRITE_PART,
        };
        let sequence = sequence.0.into();
        let arguments = match part {
            None => WriteBody { sequence }.as_bytes().to_vec(),
            Some(Part { first, blocks }) => {
                WritePartBody { sequence, first: first.into(), blocks: blocks.into() }.as_bytes().to_vec()
            }
        };
        Self { plan, argument: effort, slot, handle, arguments }.checked()
    }

    /// Runs of blocks. With `first` it is one of several plans of a message, and does not answer it.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn read(
        handle: Handle,
        member: Option<u8>,
        first: Option<u32>,
        runs: &[Run],
    ) -> Result<Self, ArgumentsError> {
        let plan = if first.is_some() { id::READ_PART } else { id::READ };
        let slot = Slot(member.map_or(0, |member| u16::from(member).saturating_add(1)));
        let mut arguments = Vec::with_capacity(READ_PART_LEN + runs.len() * EACH_READ_LEN);
        if let Some(first) = first {
            let part = ReadPartBody { first: first.into(), reserved: 0.into() };
            arguments.extend_from_slice(part.as_bytes());
        }
        for run in runs {
            arguments.extend_from_slice(run.body().as_bytes());
        }
        Self { plan, argument: count(plan, runs.len())?, slot, handle, arguments }.checked()
    }

    /// A trim. With `is_part` something of the message remains, and it is not answered.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn trim(
        handle: Handle,
        slot: Slot,
        sequence: Sequence,
        is_part: bool,
        ranges: &[TrimRange],
    ) -> Result<Self, ArgumentsError> {
        let plan = if is_part { id::TRIM_PART } else { id::TRIM };
        let mut arguments = WriteBody { sequence: sequence.0.into() }.as_bytes().to_vec();
        for range in ranges {
            let body = RangeBody { lba: range.lba.0.into(), blocks: range.blocks.into() };
            arguments.extend_from_slice(body.as_bytes());
        }
        Self { plan, argument: count(plan, ranges.len())?, slot, handle, arguments }.checked()
    }

    /// An answer: with what was read, or with its status alone.
    #[must_use]
    pub const fn answer(handle: Handle, status: Status, has_bytes: bool) -> Self {
        let plan = if has_bytes { id::ANSWER_READ } else { id::ANSWER };
        Self { plan, argument: 0, slot: Slot(status.bits()), handle, arguments: Vec::new() }
    }

    /// A request to a chunk server. The handle is the host's own, from [`HOST_HANDLES`] on.
    ///
    /// # Errors
    ///
    /// When no card would take it.
    pub fn call(
        handle: Handle,
        channel: ChannelId,
        header: &[u8; HEADER_LEN],
        payload: &[u8],
    ) -> Result<Self, ArgumentsError> {
        let (plan, available) = (id::CALL, HEADER_LEN + payload.len());
        if !payload.len().is_multiple_of(WORD_LEN) {
            return Err(ArgumentsError::Length { plan, available });
        }
        let argument = count(plan, payload.len() / WORD_LEN)?;
        let mut arguments = Vec::with_capacity(available);
        arguments.extend_from_slice(header);
        arguments.extend_from_slice(payload);
        Self { plan, argument, slot: Slot(channel.0), handle, arguments }.checked()
    }

    /// The entry of a `PLANS` message.
    #[must_use]
    pub fn entry(&self) -> PlanEntry<'_> {
        PlanEntry {
            plan: self.plan,
            argument: self.argument,
            slot: self.slot,
            handle: self.handle,
            arguments: &self.arguments,
        }
    }

    fn checked(self) -> Result<Self, ArgumentsError> {
        VolumePlan::decode(&self.entry())?;
        Ok(self)
    }
}

fn count(plan: PlanId, count: usize) -> Result<u8, ArgumentsError> {
    u8::try_from(count).map_err(|_| ArgumentsError::Illegal { plan, what: "more than a plan has" })
}
