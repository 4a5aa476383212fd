//! Why a program is refused, and what is told of it.

use std::fmt;

use crate::isa::Register;
use crate::program::{Program, SourceLine};
use crate::text;
use crate::world::Region;

/// A program is refused: where, why, how it got there, and what was known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The instruction.
    pub at: usize,
    /// Its text.
    pub instruction: String,
    /// What it was compiled from, if that is known.
    pub line: Option<SourceLine>,
    /// Why.
    pub why: Why,
    /// The branches on the way there from the beginning of the function, the last ones if there are many, each with whether it was taken.
    pub path: Vec<(usize, bool)>,
    /// What was known of each register that holds anything.
    pub registers: Vec<(Register, String)>,
    /// The functions that were called to get there, each with the instruction of the call.
    pub calls: Vec<(usize, String)>,
}

/// What a program does that it may not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A register without a value.
    #[error("{0} has no value here, on this path")]
    Uninitialised(Register),
    /// A number where an address is needed.
    #[error("{0} is a number; only pointers can be used as an address")]
    NotAPointer(Register),
    /// A pointer where a number is needed.
    #[error(
        "{0} is a pointer where a number is needed: addresses cannot leave the program, nor be computed with"
    )]
    NotANumber(Register),
    /// A pointer that may be null.
    #[error("{0} may be null; compare it with 0 first")]
    MayBeNull(Register),
    /// Arithmetic that pointers do not have.
    #[error(
        "this cannot be computed with a pointer; add and subtract whole 64-bit numbers, or subtract pointers into the same memory"
    )]
    PointerArithmetic,
    /// Pointers that have nothing to do with each other.
    #[error("these cannot be compared: only pointers into the same memory can, and with 0 for equality")]
    PointerComparison,
    /// A branch that compares what cannot be compared in the same way on all paths.
    #[error("this compares something else on another path; each comparison must have its own")]
    ComparisonUnclear,
    /// A pointer was to be stored elsewhere than in a slot of the stack.
    #[error("{0} is a pointer, which can be stored only in eight aligned bytes of the stack")]
    PointerStored(Register),
    /// A pointer was to be returned from the program, or one into the function's own frame.
    #[error("r0 is a pointer that cannot be returned")]
    PointerReturned,
    /// Bytes of the stack without a value.
    #[error("the stack has no value at r10{0:+}, on this path")]
    StackUninitialised(i64),
    /// A part of a pointer.
    #[error("the stack holds a pointer at r10{0:+}, which can only be read whole")]
    StackPointer(i64),
    /// Outside of the frame.
    #[error(
        "{len} bytes at offset {offset} are not in the frame, which has {} bytes below r10",
        crate::program::FRAME_LEN
    )]
    StackBounds {
        /// Where, from the end of the frame.
        offset: i64,
        /// How many bytes.
        len: u64,
    },
    /// A frame that is not there any more, or that cannot be reached.
    #[error("this pointer is into a frame that cannot be reached here")]
    FrameUnknown,
    /// An offset into the stack that is not known.
    #[error("the offset into the stack is not known ({0})")]
    StackOffset(String),
    /// Memory that cannot be written.
    #[error("the {} cannot be written", .0.name())]
    ReadOnly(Region),
    /// The context has no such field.
    #[error("the context has no field of {len} bytes at offset {offset} that can be {}", if *.is_write { "written" } else { "read" })]
    Context {
        /// Where, as far as it is known.
        offset: String,
        /// How many bytes.
        len: usize,
        /// Whether it was to be written.
        is_write: bool,
    },
    /// A helper that the hook does not have.
    #[error("this hook has no helper {0}")]
    NoHelper(u32),
    /// Memory that a helper cannot use.
    #[error("{register} points into the {}, which this helper cannot use", region.name())]
    HelperRegion {
        /// The argument.
        register: Register,
        /// The memory.
        region: Region,
    },
    /// Different memory on different paths.
    #[error("this goes to {0} on one path and to {1} on another; each access must have its own")]
    RegionUnclear(String, String),
    /// A function that is called with other memory on different paths.
    #[error(
        "the function is called here with pointers into other memory than on another path; call it twice"
    )]
    CallUnclear,
    /// A check that would be left.
    #[error("it cannot be shown that this stays inside its memory: {0}")]
    Unproven(String),
    /// The verifier's own limit.
    #[error("the program is too complex: after {0} steps it was not done")]
    TooComplex(u64),
    /// The verifier's time, where frames are full.
    #[error(
        "the program is too complex: more than {0} slots of the stack would have to be compared and copied"
    )]
    TooMuchToCompare(u64),
    /// The verifier's memory.
    #[error("the program is too complex: more than {0} slots of the stack would have to be kept in mind")]
    TooManyWays(usize),
}

/// How many branches of a path are told.
pub(crate) const PATH_MAX: usize = 16;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "instruction {}: {}", self.at, self.instruction)?;
        if let Some(line) = &self.line {
            writeln!(f, "  {}:{}: {}", line.file, line.line, line.text.trim())?;
        }
        writeln!(f, "{}", self.why)?;
        for (at, name) in &self.calls {
            writeln!(f, "  in {name}, called by instruction {at}")?;
        }
        if !self.path.is_empty() {
            let step = |(at, is_taken): &(usize, bool)| {
                format!("{at} {}", if *is_taken { "taken" } else { "not taken" })
            };
            let path: Vec<String> = self.path.iter().map(step).collect();
            writeln!(f, "the way there, by branches: {}", path.join(", "))?;
        }
        for (register, value) in &self.registers {
            writeln!(f, "  {register}: {value}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// The text of an instruction.
pub(crate) fn instruction_text(program: &Program, at: usize) -> String {
    let label = |target: usize| format!("instruction {target}");
    program.instructions().get(at).map_or_else(String::new, |found| text::print_instruction(found, &label))
}
