//! One call of a program: what a hook hands to whatever runs it, and what comes back.
//!
//! ```text
//!   hook ── Call { data, scratch, context, fuel, table, log } ──▶ interpreter or compiled code ──▶ Ok(result)
//!                │ check: lengths are what program and world say                               └─▶ Err(Refused | Fault)
//! ```
//!
//! The interpreter and compiled code take the same call and give the same outcome: the result or the fault, the fuel that is left,
//! and what is in the scratch and in the context. What a fault leaves behind in these is what the program wrote before it.
//!
//! # Fuel
//!
//! A call pays [`entry_fuel`](crate::program::Program::entry_fuel) before its first instruction,
//! [`fuel`](crate::program::Program::fuel) before a jump, a branch that is taken or a local call goes on elsewhere, and [`crate::helpers::fuel_of`] before a helper does anything. When less is left than is asked
//! for, the call ends with [`FaultKind::OutOfFuel`] at that instruction (the first one, at entry), and what is left stays.
//!
//! # Alignment
//!
//! Loads and stores may be at any address. Atomic operations have to be at a multiple of their width, counted from where the
//! region begins (a frame of the stack: from where it ends). The regions that a program can write to begin at multiples of
//! [`ALIGNMENT`] in memory, so that this is the same for a processor.

use thiserror::Error;

use crate::isa::Register;
use crate::world::{DATA_LEN_MAX, Helper, Region, World};

/// Where memory that a program can write to may begin: at multiples of this.
pub const ALIGNMENT: usize = 8;

/// What a hook gives for one call of a program.
pub struct Call<'a> {
    /// What the program is to look at.
    pub data: &'a [u8],
    /// What it reads and writes; of the world's length, and aligned to [`ALIGNMENT`].
    pub scratch: &'a mut [u8],
    /// The context, a word for each of the world's fields. Words of addresses and lengths are nobody's: a program sees there what
    /// `data` and `scratch` say.
    pub context: &'a mut [u64],
    /// What the call may cost; afterwards, what is left.
    pub fuel: u32,
    /// Where lookups go.
    pub table: &'a dyn TableLookup,
    /// Where the program's log goes.
    pub log: &'a dyn LogSink,
}

/// A table that programs look things up in.
pub trait TableLookup {
    /// Puts the whole value of a key into `value`, which has the world's `table_value_len` bytes; or leaves `value` as it is,
    /// and says `false`.
    fn lookup(&self, key: &[u8], value: &mut [u8]) -> bool;
}

/// A table in which nothing is found.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTable;

impl TableLookup for NoTable {
    fn lookup(&self, _key: &[u8], _value: &mut [u8]) -> bool {
        false
    }
}

/// What hears of the numbers that programs log.
pub trait LogSink {
    /// Hears of two. A sink that hears of too many may drop some, as [`SampledLog`](crate::sampled::SampledLog) does.
    fn log(&self, first: u64, second: u64);
}

impl<Sink: LogSink + ?Sized> LogSink for &Sink {
    fn log(&self, first: u64, second: u64) {
        (**self).log(first, second);
    }
}

/// A log that nobody reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLog;

impl LogSink for NoLog {
    fn log(&self, _first: u64, _second: u64) {}
}

/// What comes of a call: the program's result, or why there is none.
pub type Outcome = Result<u64, CallError>;

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// Nothing was run.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The program was stopped.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why a call is not begun: it does not fit the program or the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The program's author asks for more data.
    #[error("the data has {len} bytes, and the program asks for {min}")]
    DataTooShort {
        /// How many bytes there are.
        len: usize,
        /// How many the program asks for.
        min: u32,
    },
    /// The world promises less data.
    #[error("the data has {len} bytes, and {max} is the most")]
    DataTooLong {
        /// How many bytes there are.
        len: usize,
        /// The most.
        max: u32,
    },
    /// The scratch is not the world's.
    #[error("the scratch has {len} bytes instead of {expected}")]
    Scratch {
        /// How many bytes there are.
        len: usize,
        /// How many the world says.
        expected: u32,
    },
    /// The scratch begins in the middle of a word.
    #[error("the scratch does not begin at a multiple of {ALIGNMENT}")]
    ScratchMisaligned,
    /// The context is not the world's.
    #[error("the context has {len} fields instead of {expected}")]
    Context {
        /// How many words there are.
        len: usize,
        /// How many the world says.
        expected: usize,
    },
}

/// Where and why a program was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("instruction {at}: {what}")]
pub struct Fault {
    /// The instruction.
    pub at: usize,
    /// Why.
    pub what: FaultKind,
}

/// Why a program was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// The call would cost more than it was given.
    #[error("out of fuel")]
    OutOfFuel,
    /// A check of bounds has failed.
    #[error("{len} bytes at offset {offset} are not all in the {}", region.name())]
    OutOfBounds {
        /// Of which region.
        region: Region,
        /// Where, from the region's first byte; in a frame of the stack, from its end, where `r10` points to. The difference of
        /// two addresses modulo 2⁶⁴, with a sign.
        offset: i64,
        /// How many bytes were to be read or written.
        len: u32,
    },
    /// An atomic operation that is not at a multiple of its width. Its bytes are in the region.
    #[error("an atomic operation at offset {offset} of the {} is not aligned", region.name())]
    Misaligned {
        /// In which region.
        region: Region,
        /// Where, as above.
        offset: i64,
    },
    /// A helper was given a range that is longer than it takes.
    #[error("{} takes at most {max} bytes in r{}, and got {len}", helper.signature().name, argument + 1)]
    RangeTooLong {
        /// Which helper.
        helper: Helper,
        /// Which of its arguments, counted from 0.
        argument: u8,
        /// What it was.
        len: u64,
        /// The most.
        max: u32,
    },
    /// What no verified program does. Only the interpreter can tell, which needs nobody's word that a program is verified: a
    /// verified program that shows this has shown a fault of the verifier.
    #[error("not allowed: {0}")]
    Unproven(Violation),
    /// An access that was proven to be in bounds is not. Only compiled code that keeps its checks can tell, and it has shown a
    /// fault of the verifier.
    #[error("{len} bytes at offset {offset} are not all in the {}, but that was proven", region.name())]
    ProofBroken {
        /// Of which region.
        region: Region,
        /// Where, as above.
        offset: i64,
        /// How many bytes.
        len: u32,
    },
}

/// What a program did that it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// A register without a value was used.
    #[error("{0} has no value")]
    UninitialisedRegister(Register),
    /// A byte of the stack without a value was used.
    #[error("the stack has no value at r10{offset:+}")]
    UninitialisedStack {
        /// Where, from the end of its frame.
        offset: i64,
    },
    /// A pointer where there has to be a number.
    #[error("{0} is a pointer, and a number is needed")]
    PointerAsNumber(Register),
    /// A number where there has to be a pointer.
    #[error("{0} is a number, and a pointer is needed")]
    NumberAsPointer(Register),
    /// Arithmetic that pointers do not have.
    #[error("this cannot be computed with a pointer")]
    PointerArithmetic,
    /// A comparison that pointers do not have, or of pointers into different memory.
    #[error("these cannot be compared")]
    PointerComparison,
    /// A pointer was to be stored elsewhere than in a whole slot of the stack.
    #[error("a pointer cannot be stored there")]
    PointerStored,
    /// Bytes of a pointer were to be read.
    #[error("the stack holds a pointer at r10{offset:+}, which can only be read as a whole")]
    PointerBytes {
        /// Where, from the end of its frame.
        offset: i64,
    },
    /// A pointer was to be returned that would dangle, or leave the program.
    #[error("this pointer cannot be returned")]
    PointerReturned,
    /// A pointer into the frame of a function that has returned.
    #[error("a pointer into the frame of a function that has returned")]
    DeadFrame,
    /// Memory that cannot be written.
    #[error("the {} cannot be written", .0.name())]
    ReadOnly(Region),
    /// The context has no field there, or not one that can be accessed so.
    #[error("the context cannot be accessed so at offset {offset}")]
    ContextAccess {
        /// Where.
        offset: i64,
    },
    /// A helper that the world does not have.
    #[error("there is no helper {0}")]
    NoHelper(u32),
    /// Execution left the program.
    #[error("there is no such instruction")]
    NoInstruction,
    /// More frames than there are.
    #[error("calls are nested too deep")]
    TooDeep,
}

impl Call<'_> {
    /// Whether the call fits a program that asks for so much data, and a world; whatever runs programs asks this first.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub fn check(&self, data_len_min: u32, world: &World) -> Result<(), Refusal> {
        let (len, min) = (self.data.len(), data_len_min);
        if len < min as usize {
            return Err(Refusal::DataTooShort { len, min });
        }
        let max = world.data_len_max.min(DATA_LEN_MAX);
        if len > max as usize {
            return Err(Refusal::DataTooLong { len, max });
        }
        let (len, expected) = (self.scratch.len(), world.scratch_len);
        if len != expected as usize {
            return Err(Refusal::Scratch { len, expected });
        }
        if !self.scratch.as_ptr().addr().is_multiple_of(ALIGNMENT) && !self.scratch.is_empty() {
            return Err(Refusal::ScratchMisaligned);
        }
        let (len, expected) = (self.context.len(), world.fields.len());
        if len != expected {
            return Err(Refusal::Context { len, expected });
        }
        Ok(())
    }

    /// Pays for something.
    ///
    /// # Errors
    ///
    /// When less is left, which then stays.
    pub fn charge(&mut self, cost: u32) -> Result<(), FaultKind> {
        self.fuel = self.fuel.checked_sub(cost).ok_or(FaultKind::OutOfFuel)?;
        Ok(())
    }
}
