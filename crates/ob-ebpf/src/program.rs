//! A program as everything behind the loader sees it: instructions in functions, and the program's own data.

use std::sync::Arc;

use thiserror::Error;

use crate::isa::{self, AluOp, Callee, DecodeError, Decoded, Instruction, Undecodable, Wide};

/// Functions of a program.
pub const FUNCTIONS_MAX: usize = 256;
/// Frames on the stack at once: the program's own, and those of seven calls.
pub const FRAMES_MAX: usize = 8;
/// Bytes of a frame.
pub const FRAME_LEN: usize = 512;
/// Bytes of read-only and of per-call data, each.
pub const SECTION_LEN_MAX: usize = 64 << 10;

/// A function: consecutive instructions that are entered at the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// What its author called it; made up where that is not known.
    pub name: String,
    /// Its first instruction.
    pub begin: usize,
    /// Behind its last one.
    pub end: usize,
}

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: u32,
    /// The line's text, if the object has it.
    pub text: Arc<str>,
}

/// What a loader has found besides instructions.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Names of functions, by their first instructions.
    pub names: Vec<(usize, String)>,
    /// Source lines, by the first instructions that they were compiled to.
    pub lines: Vec<(usize, SourceLine)>,
    /// Read-only data.
    pub read_only: Vec<u8>,
    /// What per-call data is at the begin of each call.
    pub per_call: Vec<u8>,
    /// How many bytes of data there are at least in a call, as the program's author asks for.
    pub data_len_min: u32,
}

/// What a program's code needs of it when it runs: its data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) read_only: Vec<u8>,
    pub(crate) per_call: Vec<u8>,
    pub(crate) data_len_min: u32,
}

/// Fuel of an atomic operation, which has the core's writes reach the cache before it.
const ATOMIC_COST: u32 = 8;
/// Fuel of a division, or of what one leaves.
const DIVISION_COST: u32 = 4;

/// A program whose shape is right: every jump stays in its function, every function ends with a jump or an exit, calls do not
/// recurse. Nothing is known of its registers and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Vec<Instruction>,
    /// The slot in which each begins.
    slots: Vec<u32>,
    /// In the order of their instructions; the first is where the program begins.
    functions: Vec<Function>,
    lines: Vec<(usize, SourceLine)>,
    data: Arc<Data>,
    /// What all instructions before each cost, and all together.
    costs: Vec<u32>,
}

/// Why instructions are no program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// They are not even instructions.
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
    /// A jump into another function.
    #[error("instruction {at} jumps out of its function, to instruction {target}")]
    JumpsOut {
        /// Which.
        at: usize,
        /// Where to.
        target: usize,
    },
    /// What follows the last instruction is not the function's.
    #[error("instruction {at} is the last of {function}, and execution would go on behind it")]
    FallsThrough {
        /// Which.
        at: usize,
        /// Of which function.
        function: String,
    },
    /// A function that calls itself, directly or not.
    #[error("{function} calls itself, by instruction {at}")]
    Recursion {
        /// By which instruction.
        at: usize,
        /// Which function.
        function: String,
    },
    /// Calls within calls.
    #[error("calls are nested more than {} deep, at instruction {at}", FRAMES_MAX - 1)]
    TooDeep {
        /// The innermost.
        at: usize,
    },
    /// There are too many.
    #[error("there are {0} functions; {FUNCTIONS_MAX} is the most")]
    Functions(usize),
    /// An address behind the section.
    #[error("instruction {at} takes the address of byte {offset} of a section of {len}")]
    Address {
        /// Which.
        at: usize,
        /// Of which byte.
        offset: u32,
        /// Of how many.
        len: usize,
    },
    /// Too much data.
    #[error("the program's {section} data has {len} bytes; {SECTION_LEN_MAX} is the most")]
    Section {
        /// Which.
        section: &'static str,
        /// How many bytes.
        len: usize,
    },
}

impl Program {
    /// A program of bare instructions, without data and names.
    ///
    /// # Errors
    ///
    /// When they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProgramError> {
        Self::new(isa::decode(bytes)?, Parts::default())
    }

    /// A program of instructions and what belongs to them. It begins with the first instruction; functions begin there, and
    /// where calls go.
    ///
    /// # Errors
    ///
    /// When its shape is not right.
    pub fn new(decoded: Decoded, parts: Parts) -> Result<Self, ProgramError> {
        let Decoded { instructions, slots } = decoded;
        if instructions.is_empty() {
            return Err(DecodeError { slot: 0, what: Undecodable::Empty }.into());
        }
        for (section, bytes) in [("read-only", &parts.read_only), ("per-call", &parts.per_call)] {
            if bytes.len() > SECTION_LEN_MAX {
                return Err(ProgramError::Section { section, len: bytes.len() });
            }
        }
        let functions = functions(&instructions, &parts.names)?;
        let costs = costs(&instructions);
        let program = Self {
            instructions,
            slots,
            functions,
            lines: parts.lines,
            data: Arc::new(Data {
                read_only: parts.read_only,
                per_call: parts.per_call,
                data_len_min: parts.data_len_min,
            }),
            costs,
        };
        program.check_shape()?;
        program.check_calls()?;
        Ok(program)
    }

    /// Its instructions.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Its functions, in the order of their instructions. It begins with the first.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Its read-only data.
    #[must_use]
    pub fn read_only(&self) -> &[u8] {
        &self.data.read_only
    }

    /// What its per-call data is at the begin of each call.
    #[must_use]
    pub fn per_call(&self) -> &[u8] {
        &self.data.per_call
    }

    /// How many bytes of data there have to be in a call.
    #[must_use]
    pub fn data_len_min(&self) -> u32 {
        self.data.data_len_min
    }

    /// What outlives it, in its code.
    #[cfg(feature = "compiler")]
    pub(crate) fn data(&self) -> &Arc<Data> {
        &self.data
    }

    /// The slot in which an instruction begins, which is how disassemblers count.
    #[must_use]
    pub fn slot(&self, at: usize) -> u32 {
        self.slots.get(at).copied().unwrap_or(u32::MAX)
    }

    /// The number of the function that an instruction belongs to.
    #[must_use]
    pub fn function_at(&self, at: usize) -> usize {
        self.functions.partition_point(|function| function.begin <= at).saturating_sub(1)
    }

    /// The source line that an instruction was compiled from.
    #[must_use]
    pub fn line(&self, at: usize) -> Option<&SourceLine> {
        let behind = self.lines.partition_point(|(begin, _)| *begin <= at);
        let (begin, line) = self.lines.get(behind.checked_sub(1)?)?;
        (self.function_at(*begin) == self.function_at(at)).then_some(line)
    }

    /// Fuel that an instruction costs when it goes to `next`: a back-edge pays for what may be executed again because of it, a
    /// call for the function that is called. Together with [`Self::entry_fuel`] no more instructions are executed than were paid for.
    #[must_use]
    pub fn fuel(&self, at: usize, next: usize) -> u32 {
        match self.instructions.get(at) {
            Some(Instruction::Call { callee: Callee::Local(_) }) => {
                self.functions.get(self.function_at(next)).map_or(0, |function| self.cost_of(function))
            }
            _ if next <= at => self.cost_between(next, at + 1),
            _ => 0,
        }
    }

    /// Fuel that a call of the program costs in any case: for its first function, and for its per-call data, which is made anew.
    #[must_use]
    pub fn entry_fuel(&self) -> u32 {
        let function = self.functions.first().map_or(0, |function| self.cost_of(function));
        function + (self.per_call().len() / 8) as u32
    }

    fn cost_of(&self, function: &Function) -> u32 {
        self.cost_between(function.begin, function.end)
    }

    fn cost_between(&self, begin: usize, end: usize) -> u32 {
        let before = |at: usize| self.costs.get(at).copied().unwrap_or(0);
        before(end).saturating_sub(before(begin))
    }

    fn check_shape(&self) -> Result<(), ProgramError> {
        for function in &self.functions {
            for at in function.begin..function.end {
                let Some(instruction) = self.instructions.get(at) else { break };
                if let Some(target) = instruction.target()
                    && !(function.begin..function.end).contains(&target)
                {
                    return Err(ProgramError::JumpsOut { at, target });
                }
                if at + 1 == function.end && instruction.falls_through() {
                    return Err(ProgramError::FallsThrough { at, function: function.name.clone() });
                }
                let (offset, len) = match instruction {
                    Instruction::LoadWide { value: Wide::ReadOnly(offset), .. } => {
                        (*offset, self.read_only().len())
                    }
                    Instruction::LoadWide { value: Wide::PerCall(offset), .. } => {
                        (*offset, self.per_call().len())
                    }
                    _ => continue,
                };
                if offset as usize > len {
                    return Err(ProgramError::Address { at, offset, len });
                }
            }
        }
        Ok(())
    }

    /// Goes through what calls what, from the program's begin and from functions that nobody calls.
    fn check_calls(&self) -> Result<(), ProgramError> {
        // How deep calls go below a function, when that is known.
        let mut depths: Vec<Option<usize>> = vec![None; self.functions.len()];
        for first in 0..self.functions.len() {
            // Functions under way, each with the instruction to go on with and the deepest that was found below.
            let mut stack: Vec<(usize, usize, usize)> = Vec::new();
            let begin = |function: usize| (function, self.functions.get(function).map_or(0, |f| f.begin), 0);
            if depths.get(first).copied().flatten().is_none() {
                stack.push(begin(first));
            }
            while let Some((function, at, depth)) = stack.last_mut() {
                if self.functions.get(*function).is_none_or(|f| *at >= f.end) {
                    let (done, depth) = (*function, *depth);
                    if let Some(known) = depths.get_mut(done) {
                        *known = Some(depth);
                    }
                    stack.pop();
                    if let Some((_, _, above)) = stack.last_mut() {
                        *above = (*above).max(depth + 1);
                    }
                    continue;
                }
                let here = *at;
                *at += 1;
                let Some(Instruction::Call { callee: Callee::Local(target) }) = self.instructions.get(here)
                else {
                    continue;
                };
                let callee = self.function_at(*target);
                let below = depths.get(callee).copied().flatten();
                if let Some(below) = below {
                    *depth = (*depth).max(below + 1);
                }
                if stack.iter().any(|(under_way, ..)| *under_way == callee) {
                    let function = self.functions.get(callee).map_or_else(String::new, |f| f.name.clone());
                    return Err(ProgramError::Recursion { at: here, function });
                }
                if stack.len() + below.unwrap_or(0) >= FRAMES_MAX {
                    return Err(ProgramError::TooDeep { at: here });
                }
                if below.is_none() {
                    stack.push(begin(callee));
                }
            }
        }
        Ok(())
    }
}

impl Function {
    /// How many instructions it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.begin
    }

    /// A function has one instruction at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }
}

/// What an instruction costs. A unit is about a nanosecond; what takes processors longer costs more (`docs/bench/bpf.md`).
const fn cost(instruction: &Instruction) -> u32 {
    match instruction {
        Instruction::Atomic { .. } => ATOMIC_COST,
        Instruction::Alu { op: AluOp::Div | AluOp::SignedDiv | AluOp::Mod | AluOp::SignedMod, .. } => {
            DIVISION_COST
        }
        _ => 1,
    }
}

/// The sums of what instructions cost, from none to all. They are at most [`crate::isa::INSTRUCTIONS_MAX`] of them: far from overflowing.
fn costs(instructions: &[Instruction]) -> Vec<u32> {
    let sums = instructions.iter().scan(0, |sum, instruction| {
        *sum += cost(instruction);
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

fn functions(instructions: &[Instruction], names: &[(usize, String)]) -> Result<Vec<Function>, ProgramError> {
    let callees = instructions.iter().filter_map(|instruction| match instruction {
        Instruction::Call { callee: Callee::Local(target) } => Some(*target),
        _ => None,
    });
    let named = names.iter().map(|(begin, _)| *begin).filter(|begin| *begin < instructions.len());
    let mut begins: Vec<usize> = callees.chain(named).chain([0]).collect();
    begins.sort_unstable();
    begins.dedup();
    if begins.len() > FUNCTIONS_MAX {
        return Err(ProgramError::Functions(begins.len()));
    }
    let ends = begins.iter().skip(1).copied().chain([instructions.len()]);
    let name_of = |begin: usize| {
        let known = names.iter().find(|(named, _)| *named == begin);
        known.map_or_else(|| format!("function_{begin}"), |(_, name)| name.clone())
    };
    Ok(begins
        .iter()
        .zip(ends)
        .map(|(begin, end)| Function { name: name_of(*begin), begin: *begin, end })
        .collect())
}
