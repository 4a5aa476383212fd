//! Plans: what the card does with a message without asking again.

use ob_core::layout;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// Most steps of a plan.
pub const STEPS_MAX: usize = 12;
/// Bytes of a step.
pub const STEP_LEN: usize = 8;
/// Bytes that every posted plan has: which one, effort or count, slot, handle.
pub const ENTRY_LEN_MIN: u8 = 8;

pub(super) const DEFINE_LEN: usize = 8;
/// What stands for no register.
pub(super) const NO_REGISTER: u8 = 255;

layout!(DefineBody, DEFINE_LEN, { plan: u8, steps: u8, entry_len: u8, each_len: u8, reserved: U32 });
layout!(StepBody, STEP_LEN, { step: u8, first: u8, second: u8, option: u8, reserved: U32 });
layout!(PlanBody, ENTRY_LEN_MIN as usize, { plan: u8, argument: u8, slot: U16, handle: U32 });

/// What names a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanId(pub u8);

/// Memory of a plan: 0 the message's payload, 1 its answer's, 2 to 5 what is taken when it is first written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(u8);

/// What becomes of bytes that compression does not make shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Otherwise {
    /// They are copied as they are.
    Copy,
    /// The plan fails.
    Fail,
}

/// Whose answers a merge awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answers {
    /// Of all channels that were sent to.
    All,
    /// Of one of them.
    First,
}

/// A step of a plan (`docs/split.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// What follows is done for each piece, side by side.
    Each,
    /// Up to here.
    EndEach,
    /// Compresses.
    Compress {
        /// What.
        from: Register,
        /// Into what.
        into: Register,
        /// What else, if it does not shrink.
        otherwise: Otherwise,
    },
    /// Copies as it is.
    Copy {
        /// What.
        from: Register,
        /// Into what.
        into: Register,
    },
    /// Computes a CRC32C.
    Checksum {
        /// Of what.
        of: Register,
    },
    /// Sends a message to each channel of its place.
    Send {
        /// With which payload, if it has one.
        payload: Option<Register>,
    },
    /// Awaits the answers to what was sent.
    Merge {
        /// Whose.
        answers: Answers,
    },
    /// Asks one channel after the other until an answer is accepted.
    Fetch {
        /// Where its payload goes.
        into: Register,
    },
    /// Decodes what was fetched.
    Decode {
        /// What.
        from: Register,
        /// Into what.
        into: Register,
    },
    /// Zeros.
    Zero {
        /// Into what.
        into: Register,
    },
    /// To the host's memory.
    ToHost {
        /// What.
        from: Register,
    },
    /// From the host's memory.
    FromHost {
        /// Into what.
        into: Register,
    },
    /// Retains what was sent.
    Keep {
        /// What.
        what: Register,
    },
    /// Answers the message's peer.
    Answer {
        /// With what, if with bytes.
        payload: Option<Register>,
    },
}

/// Why steps are no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There are none, or too many.
    #[error("a plan of {0} steps cannot be, it has 1 to {STEPS_MAX}")]
    Count(usize),
    /// A step that nobody knows, or with what it does not have.
    #[error("step {0} of the plan is none")]
    Unknown(usize),
    /// A step that cannot be where it is.
    #[error("step {step} of the plan cannot be there: {what}")]
    Step {
        /// The how manieth, from 0.
        step: usize,
        /// Why not.
        what: &'static str,
    },
    /// What was begun is not ended.
    #[error("the plan ends too early: {0}")]
    End(&'static str),
    /// An entry of it would be shorter than every one is.
    #[error("an entry of {0} bytes cannot be, it has {ENTRY_LEN_MIN} at least")]
    EntryLength(u8),
    /// There is a plan of this number.
    #[error("plan {} was defined before", .0.0)]
    Defined(PlanId),
}

/// Steps that make sense one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

/// A plan as the card knows it: its steps, and how long its entries are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    id: PlanId,
    plan: Plan,
    entry_len: u8,
    each_len: u8,
}

/// The plans that a host has defined.
#[derive(Debug, Default)]
pub struct Definitions {
    /// In the order of their numbers; at most 256.
    all: Vec<Definition>,
}

impl Register {
    /// Registers are below this.
    pub const END: u8 = 6;
    /// The message's payload.
    pub const PAYLOAD: Self = Self(0);
    /// Memory of the message's answer.
    pub const ANSWER: Self = Self(1);

    /// The register of this number, if there is one.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::END { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    const fn bit(self) -> u8 {
        1 << self.0
    }
}

pub(super) mod step {
    pub(crate) const EACH: u8 = 1;
    pub(crate) const END_EACH: u8 = 2;
    pub(crate) const COMPRESS: u8 = 3;
    pub(crate) const COPY: u8 = 4;
    pub(crate) const CHECKSUM: u8 = 5;
    pub(crate) const SEND: u8 = 6;
    pub(crate) const MERGE: u8 = 7;
    pub(crate) const FETCH: u8 = 8;
    pub(crate) const DECODE: u8 = 9;
    pub(crate) const ZERO: u8 = 10;
    pub(crate) const TO_HOST: u8 = 11;
    pub(crate) const FROM_HOST: u8 = 12;
    pub(crate) const KEEP: u8 = 13;
    pub(crate) const ANSWER: u8 = 14;
}

impl Step {
    /// Where it makes a record, as a step of these, if it does: in memory that is asked for then (`docs/split.md`).
    pub(crate) fn record(self, steps: &[Self]) -> Option<Register> {
        match self {
            Self::Compress { into, .. } => Some(into),
            Self::Decode { into, .. } | Self::FromHost { into } => {
                steps.contains(&Self::Keep { what: into }).then_some(into)
            }
            _ => None,
        }
    }

    fn encode(self) -> StepBody {
        let number = |register: Option<Register>| register.map_or(NO_REGISTER, |register| register.0);
        let (step, first, second, option) = match self {
            Self::Each => (step::EACH, 0, 0, 0),
            Self::EndEach => (step::END_EACH, 0, 0, 0),
            Self::Compress { from, into, otherwise } => {
                let option = match otherwise {
                    Otherwise::Copy => 1,
                    Otherwise::Fail => 2,
                };
                (step::COMPRESS, from.0, into.0, option)
            }
            Self::Copy { from, into } => (step::COPY, from.0, into.0, 0),
            Self::Checksum { of } => (step::CHECKSUM, of.0, 0, 0),
            Self::Send { payload } => (step::SEND, number(payload), 0, 0),
            Self::Merge { answers: Answers::All } => (step::MERGE, 0, 0, 1),
            Self::Merge { answers: Answers::First } => (step::MERGE, 0, 0, 2),
            Self::Fetch { into } => (step::FETCH, into.0, 0, 0),
            Self::Decode { from, into } => (step::DECODE, from.0, into.0, 0),
            Self::Zero { into } => (step::ZERO, into.0, 0, 0),
            Self::ToHost { from } => (step::TO_HOST, from.0, 0, 0),
            Self::FromHost { into } => (step::FROM_HOST, into.0, 0, 0),
            Self::Keep { what } => (step::KEEP, what.0, 0, 0),
            Self::Answer { payload } => (step::ANSWER, number(payload), 0, 0),
        };
        StepBody { step, first, second, option, reserved: 0.into() }
    }

    fn decode(body: &StepBody) -> Option<Self> {
        let first = Register::new(body.first);
        let second = Register::new(body.second);
        let optional = if body.first == NO_REGISTER { Some(None) } else { first.map(Some) };
        let step = match body.step {
            step::EACH => Self::Each,
            step::END_EACH => Self::EndEach,
            step::COMPRESS => {
                let otherwise = if body.option == 1 { Otherwise::Copy } else { Otherwise::Fail };
                Self::Compress { from: first?, into: second?, otherwise }
            }
            step::COPY => Self::Copy { from: first?, into: second? },
            step::CHECKSUM => Self::Checksum { of: first? },
            step::SEND => Self::Send { payload: optional? },
            step::MERGE => {
                Self::Merge { answers: if body.option == 1 { Answers::All } else { Answers::First } }
            }
            step::FETCH => Self::Fetch { into: first? },
            step::DECODE => Self::Decode { from: first?, into: second? },
            step::ZERO => Self::Zero { into: first? },
            step::TO_HOST => Self::ToHost { from: first? },
            step::FROM_HOST => Self::FromHost { into: first? },
            step::KEEP => Self::Keep { what: first? },
            step::ANSWER => Self::Answer { payload: optional? },
            _ => return None,
        };
        // What a step does not have is zero, and no option is like another.
        (step.encode() == *body).then_some(step)
    }
}

/// What is known of registers and of what is under way, from step to step.
#[derive(Clone, Copy, Default)]
struct Known {
    written: u8,
    fetched: u8,
    sent: u8,
    /// Registers that were sent: peers and the retained memory may still read them.
    held: u8,
    sends: u8,
}

/// Looks at steps in their order.
#[derive(Default)]
struct Checker {
    known: Known,
    /// What was known before the pieces, while they are looked at.
    outside: Option<Known>,
    has_pieces: bool,
    is_piece_empty: bool,
    is_answered: bool,
}

impl Checker {
    fn new() -> Self {
        Self { known: Known { written: Register::PAYLOAD.bit(), ..Known::default() }, ..Self::default() }
    }

    fn read(&self, register: Register) -> Result<(), &'static str> {
        // It is another's until all of it is written, and goes nowhere else.
        if register == Register::ANSWER {
            return Err("it reads the answer's memory, which only the answer does");
        }
        let is_written = self.known.written & register.bit() != 0;
        if is_written { Ok(()) } else { Err("it reads what was never written") }
    }

    fn write(&mut self, register: Register) -> Result<(), &'static str> {
        if register == Register::PAYLOAD {
            return Err("it writes the message's payload");
        }
        if self.known.held & register.bit() != 0 {
            return Err("it writes what was sent, and others may still read");
        }
        // Pieces run side by side: but for parts of the answer, each has registers of its own.
        let is_shared = self.outside.is_some_and(|outside| outside.written & register.bit() != 0);
        if is_shared && register != Register::ANSWER {
            return Err("it writes what all pieces read");
        }
        self.known.written |= register.bit();
        self.known.fetched &= !register.bit();
        self.known.sent &= !register.bit();
        Ok(())
    }

    fn turn(&mut self, from: Register, into: Register) -> Result<(), &'static str> {
        self.read(from)?;
        if from == into {
            return Err("it writes what it reads");
        }
        self.write(into)
    }

    fn step(&mut self, step: Step) -> Result<(), &'static str> {
        if self.is_answered {
            return Err("nothing follows the answer");
        }
        self.is_piece_empty &= matches!(step, Step::Each | Step::EndEach);
        match step {
            Step::Each | Step::EndEach => self.pieces(step),
            Step::Compress { from, into, .. } | Step::Copy { from, into } => self.turn(from, into),
            Step::Checksum { of } => self.read(of),
            Step::ToHost { from } => self.read(from),
            Step::Fetch { into } | Step::FromHost { into } if into == Register::ANSWER => {
                Err("it receives into the answer's memory, which only what was verified goes to")
            }
            Step::Zero { into } | Step::FromHost { into } => self.write(into),
            Step::Fetch { into } => {
                self.write(into)?;
                self.known.fetched |= into.bit();
                Ok(())
            }
            Step::Decode { from, .. } if self.known.fetched & from.bit() == 0 => {
                Err("it decodes what was not fetched")
            }
            Step::Decode { from, into } => self.turn(from, into),
            Step::Send { payload } => {
                if let Some(payload) = payload {
                    self.read(payload)?;
                    self.known.sent |= payload.bit();
                    self.known.held |= payload.bit();
                }
                self.known.sends += 1;
                Ok(())
            }
            Step::Merge { .. } if self.known.sends == 0 => {
                Err("nothing was sent whose answers it could await")
            }
            Step::Merge { .. } => {
                self.known.sends = 0;
                Ok(())
            }
            Step::Keep { what } if self.known.sent & what.bit() == 0 => {
                Err("it keeps what was not sent, and so has no name")
            }
            Step::Keep { .. } => Ok(()),
            Step::Answer { payload } => self.answer(payload),
        }
    }

    fn pieces(&mut self, step: Step) -> Result<(), &'static str> {
        if self.known.sends > 0 {
            return Err("answers are awaited before");
        }
        if step == Step::Each {
            if self.has_pieces {
                return Err("a plan has pieces once");
            }
            (self.has_pieces, self.is_piece_empty) = (true, true);
            self.outside = Some(self.known);
            // Parts and names of what was fetched and sent before are not each piece's.
            (self.known.fetched, self.known.sent) = (0, 0);
            return Ok(());
        }
        let Some(outside) = self.outside.take() else { return Err("no pieces were begun") };
        if self.is_piece_empty {
            return Err("nothing is done for each piece");
        }
        // Of what pieces have written only the answer is one thing.
        let answer = self.known.written & Register::ANSWER.bit();
        self.known = Known { written: outside.written | answer, ..outside };
        Ok(())
    }

    fn answer(&mut self, payload: Option<Register>) -> Result<(), &'static str> {
        if self.outside.is_some() || self.known.sends > 0 {
            return Err("something is still under way");
        }
        // Other plans may have written the answer's parts.
        if let Some(payload) = payload.filter(|payload| *payload != Register::ANSWER) {
            self.read(payload)?;
        }
        self.is_answered = true;
        Ok(())
    }

    fn end(&self) -> Result<(), PlanError> {
        if self.outside.is_some() {
            return Err(PlanError::End("its pieces are not ended"));
        }
        if self.known.sends > 0 {
            return Err(PlanError::End("nobody awaits the answers to what it sends"));
        }
        Ok(())
    }
}

impl Plan {
    /// Takes steps that make sense one behind the other.
    ///
    /// # Errors
    ///
    /// When they do not: a step reads what was never written, something is sent and its answers are not awaited, and the like.
    pub fn new(steps: Vec<Step>) -> Result<Self, PlanError> {
        if steps.is_empty() || steps.len() > STEPS_MAX {
            return Err(PlanError::Count(steps.len()));
        }
        let mut checker = Checker::new();
        for (number, step) in steps.iter().enumerate() {
            checker.step(*step).map_err(|what| PlanError::Step { step: number, what })?;
        }
        checker.end()?;
        // Whoever has one never waits for another, so that those who wait get what they wait for.
        let mut records = (0..).zip(&steps).filter(|(_, step)| step.record(&steps).is_some());
        if let Some((step, _)) = records.nth(1) {
            return Err(PlanError::Step { step, what: "it makes a second record, and a plan has one" });
        }
        Ok(Self { steps })
    }

    /// The steps.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl Definition {
    /// A plan under a number. An entry that posts it has `entry_len` bytes, and `each_len` more for each that its second byte
    /// counts; that byte is the effort if there are none.
    ///
    /// # Errors
    ///
    /// When no entry is so short.
    pub fn new(id: PlanId, plan: Plan, entry_len: u8, each_len: u8) -> Result<Self, PlanError> {
        if entry_len < ENTRY_LEN_MIN {
            return Err(PlanError::EntryLength(entry_len));
        }
        Ok(Self { id, plan, entry_len, each_len })
    }

    /// What names it.
    #[must_use]
    pub const fn id(&self) -> PlanId {
        self.id
    }

    /// What is done.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether the second byte of an entry counts something.
    #[must_use]
    pub const fn has_count(&self) -> bool {
        self.each_len > 0
    }

    /// Bytes of an entry with this second byte.
    #[must_use]
    pub fn entry_len(&self, argument: u8) -> usize {
        usize::from(self.entry_len) + usize::from(self.each_len) * usize::from(argument)
    }

    /// Appends its bytes.
    pub fn encode_into(&self, into: &mut Vec<u8>) {
        let body = DefineBody {
            plan: self.id.0,
            steps: self.plan.steps.len() as u8,
            entry_len: self.entry_len,
            each_len: self.each_len,
            reserved: 0.into(),
        };
        into.extend_from_slice(body.as_bytes());
        for step in &self.plan.steps {
            into.extend_from_slice(step.encode().as_bytes());
        }
    }

    /// Checks the bytes of a definition, all of them. There are never more steps than a plan may have, whatever they say.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DefineError> {
        let (body, rest) = DefineBody::ref_from_prefix(bytes).map_err(|_| DefineError::Length)?;
        if body.reserved != 0 {
            return Err(DefineError::Reserved(body.reserved.get()));
        }
        let count = usize::from(body.steps);
        if count > STEPS_MAX {
            return Err(PlanError::Count(count).into());
        }
        let bodies = <[StepBody]>::ref_from_bytes(rest).map_err(|_| DefineError::Length)?;
        if bodies.len() != count {
            return Err(DefineError::Length);
        }
        let steps = bodies.iter().enumerate();
        let steps = steps.map(|(number, body)| Step::decode(body).ok_or(PlanError::Unknown(number)));
        let plan = Plan::new(steps.collect::<Result<_, _>>()?)?;
        Ok(Self::new(PlanId(body.plan), plan, body.entry_len, body.each_len)?)
    }
}

/// Why bytes are no definition.
pub(super) enum DefineError {
    Length,
    Reserved(u32),
    Plan(PlanError),
}

impl From<PlanError> for DefineError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl Definitions {
    /// Nothing is defined.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a plan.
    ///
    /// # Errors
    ///
    /// When there is one of this number: plans under way may still be of it.
    pub fn define(&mut self, definition: Definition) -> Result<(), PlanError> {
        match self.all.binary_search_by_key(&definition.id, Definition::id) {
            Ok(_) => Err(PlanError::Defined(definition.id)),
            Err(place) => {
                self.all.insert(place, definition);
                Ok(())
            }
        }
    }

    /// The plan of this number.
    #[must_use]
    pub fn get(&self, id: PlanId) -> Option<&Definition> {
        let place = self.all.binary_search_by_key(&id, Definition::id).ok()?;
        self.all.get(place)
    }
}
