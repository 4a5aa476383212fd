//! Programs as text: [`assemble()`] reads it, [`disassemble`] writes it.
//!
//! ```text
//!   text ─▶ tokens of a line ─┬─▶ statement: r0 += 1         (what LLVM prints)    ─┬─▶ labels resolved ─▶ Assembled ─▶ Program
//!                             └─▶ mnemonic:  add %r0, 1      (the public test files) ┘
//!   Program ─▶ disassemble ─▶ the first of the two, with labels, names and data; assembled again it is the same program
//! ```
//!
//! Both dialects may stand in one text. `#`, `;` and `//` begin comments. Relative targets are counted in slots of eight bytes, as the
//! encoding does. Where no label `exit` is set, it is the first `exit`. Besides instructions there are:
//!
//! | line | meaning |
//! |---|---|
//! | `name:` | the next instruction can be reached by this name |
//! | `.type name, @function` | a function begins there; what calls go to is one in any case |
//! | `.read_only 00ff12` | more bytes of read-only data, whose address is `r1 = read_only + 2 ll` |
//! | `.per_call 00ff12` | the same for per-call data, `r1 = per_call + 2 ll` |
//! | `.data_len_min 16` | how many bytes of data the program asks for at least |

mod assemble;
mod cursor;
mod mnemonic;
mod print;
mod statement;
mod token;

pub use assemble::{Assembled, assemble};
pub(crate) use print::in_a_line;
pub use print::{Listing, disassemble, print_instruction};

use thiserror::Error;

use crate::isa::{AluOp, AtomicOp, INSTRUCTIONS_MAX, Instruction, Size, Test};

/// Why text is no program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {what}")]
pub struct AssembleError {
    /// The line, counted from 1.
    pub line: usize,
    /// The character of the line, counted from 1.
    pub column: usize,
    /// What is wrong there.
    pub what: Unreadable,
}

/// What is wrong with a place in the text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// Something else should stand there.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What would be right.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A character that has no place in a program.
    #[error("the character {0:?} means nothing here")]
    Character(char),
    /// No such instruction.
    #[error("there is no instruction {0}")]
    Mnemonic(String),
    /// No such register.
    #[error("there is no register {0}; they are r0 to r10, and w0 to w10 for their lower halves")]
    Register(String),
    /// `r10` is where the frame ends.
    #[error("r10 cannot be written")]
    FrameWritten,
    /// A call whose target is in a register.
    #[error("calls through a register are not supported; call a function by its name")]
    CallRegister,
    /// A number that the encoding has no room for.
    #[error("{number} is out of range: {what} is between {min} and {max}")]
    Range {
        /// What it is.
        what: &'static str,
        /// The number.
        number: i128,
        /// The least.
        min: i128,
        /// The greatest.
        max: i128,
    },
    /// A label that is not set anywhere.
    #[error("there is no label {0}")]
    LabelMissing(String),
    /// A label that is set more than once.
    #[error("the label {label} is set already, in line {line}")]
    LabelTwice {
        /// Which.
        label: String,
        /// Where it was set first.
        line: usize,
    },
    /// A relative target where there is none.
    #[error("it goes to slot {0}, where no instruction begins")]
    Target(i64),
    /// There are too many.
    #[error("there are more than {INSTRUCTIONS_MAX} instructions")]
    TooLong,
    /// There are none.
    #[error("there are no instructions")]
    Empty,
}

/// What is wrong within a line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    column: usize,
    what: Unreadable,
}

/// A line that holds an instruction; where it goes to is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parsed<'a> {
    instruction: Instruction,
    target: Option<Target<'a>>,
}

impl From<Instruction> for Parsed<'_> {
    fn from(instruction: Instruction) -> Self {
        Self { instruction, target: None }
    }
}

/// Where a jump or a call goes to, as text says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target<'a> {
    /// To a label, which is mentioned in this column.
    Label(&'a str, usize),
    /// So many slots behind the next one, as this column says.
    Relative(i64, usize),
}

/// Operations, as the two dialects have them.
const ALU_NAMES: [(AluOp, &str, &str); 13] = [
    (AluOp::Add, "add", "+="),
    (AluOp::Sub, "sub", "-="),
    (AluOp::Mul, "mul", "*="),
    (AluOp::Div, "div", "/="),
    (AluOp::SignedDiv, "sdiv", "s/="),
    (AluOp::Mod, "mod", "%="),
    (AluOp::SignedMod, "smod", "s%="),
    (AluOp::Or, "or", "|="),
    (AluOp::And, "and", "&="),
    (AluOp::Xor, "xor", "^="),
    (AluOp::ShiftLeft, "lsh", "<<="),
    (AluOp::ShiftRight, "rsh", ">>="),
    (AluOp::ShiftRightSigned, "arsh", "s>>="),
];

/// Tests, as the two dialects have them.
const TEST_NAMES: [(Test, &str, &str); 11] = [
    (Test::Equal, "jeq", "=="),
    (Test::NotEqual, "jne", "!="),
    (Test::AnyBit, "jset", "&"),
    (Test::Above, "jgt", ">"),
    (Test::AboveOrEqual, "jge", ">="),
    (Test::Below, "jlt", "<"),
    (Test::BelowOrEqual, "jle", "<="),
    (Test::Greater, "jsgt", "s>"),
    (Test::GreaterOrEqual, "jsge", "s>="),
    (Test::Less, "jslt", "s<"),
    (Test::LessOrEqual, "jsle", "s<="),
];

/// Sizes: the suffix of the mnemonics, and the type that LLVM writes, without and with a sign.
const SIZE_NAMES: [(Size, &str, &str, &str); 4] = [
    (Size::B1, "b", "u8", "s8"),
    (Size::B2, "h", "u16", "s16"),
    (Size::B4, "w", "u32", "s32"),
    (Size::B8, "dw", "u64", "s64"),
];

/// Operations on memory that can be fetched: without and with it, their mnemonic, and how LLVM assigns them.
const ATOMIC_NAMES: [(AtomicOp, AtomicOp, &str, &str); 4] = [
    (AtomicOp::Add { fetch: false }, AtomicOp::Add { fetch: true }, "add", "+="),
    (AtomicOp::Or { fetch: false }, AtomicOp::Or { fetch: true }, "or", "|="),
    (AtomicOp::And { fetch: false }, AtomicOp::And { fetch: true }, "and", "&="),
    (AtomicOp::Xor { fetch: false }, AtomicOp::Xor { fetch: true }, "xor", "^="),
];
