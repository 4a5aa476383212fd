//! From a program to text, in the dialect of LLVM.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::token::is_word;
use super::{ALU_NAMES, ATOMIC_NAMES, SIZE_NAMES, TEST_NAMES};
use crate::isa::{AtomicOp, ByteOrder, Callee, Instruction, Operand, Register, Size, Wide, Width};
use crate::program::Program;
use crate::world::Helper;

/// What a listing has besides instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Source lines, as comments before the first instructions that they were compiled to.
    pub has_lines: bool,
    /// The program's data, without which the text is not the whole program.
    pub has_data: bool,
}

/// Bytes of data in a line.
const DATA_LINE: usize = 32;

/// Writes a program as text. With its data, what is assembled from it is the same program but for source lines, and for
/// names of functions that are no words.
#[must_use]
pub fn disassemble(program: &Program, listing: Listing) -> String {
    let names = names(program);
    let mut targets: BTreeSet<usize> =
        program.instructions().iter().filter_map(Instruction::target).collect();
    targets.retain(|target| !names.contains_key(target));
    let label = |at: usize| names.get(&at).cloned().unwrap_or_else(|| format!(".L{}", program.slot(at)));
    let mut text = String::new();
    if listing.has_data {
        if program.data_len_min() > 0 {
            push(&mut text, format_args!(".data_len_min {}\n", program.data_len_min()));
        }
        data(&mut text, ".read_only", program.read_only());
        data(&mut text, ".per_call", program.per_call());
    }
    let mut line_before = None;
    for (at, instruction) in program.instructions().iter().enumerate() {
        if names.contains_key(&at) {
            let name = label(at);
            let space = if text.is_empty() { "" } else { "\n" };
            push(&mut text, format_args!("{space}.type {name}, @function\n{name}:\n"));
            line_before = None;
        } else if targets.contains(&at) {
            push(&mut text, format_args!("{}:\n", label(at)));
        }
        if let Some(line) = program.line(at).filter(|line| listing.has_lines && line_before != Some(*line)) {
            line_before = Some(line);
            let remark = format!("{}:{}: {}", line.file, line.line, line.text.trim());
            push(&mut text, format_args!("    ; {}\n", in_a_line(&remark)));
        }
        push(&mut text, format_args!("    {}", print_instruction(instruction, &label)));
        match instruction {
            Instruction::Call { callee: Callee::Helper(number) } => {
                let name = Helper::of_number(*number).map_or("not known", |helper| helper.signature().name);
                push(&mut text, format_args!(" # {name}\n"));
            }
            _ => text.push('\n'),
        }
    }
    text
}

/// What others call something, or say of it: whatever it is, it stays within its line, and moves no cursor.
pub(crate) fn in_a_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// Writes one instruction; `label` says how what it goes to is called.
pub fn print_instruction(instruction: &Instruction, label: &dyn Fn(usize) -> String) -> String {
    Printed { instruction, label }.to_string()
}

/// Names of functions that are words, and each another.
fn names(program: &Program) -> BTreeMap<usize, String> {
    let mut taken = BTreeSet::new();
    let mut names = BTreeMap::new();
    for function in program.functions() {
        let mut name: String = function.name.chars().map(|c| if is_word(c) { c } else { '_' }).collect();
        // Labels within functions begin with a dot, numbers with a digit.
        if name.is_empty() || name.starts_with(|c: char| c == '.' || c.is_ascii_digit()) {
            name.insert(0, '_');
        }
        if super::cursor::is_register(&name) || !taken.insert(name.clone()) {
            // Where a function begins is its own, so that this ends with a name that nobody has.
            while !taken.insert(name.clone()) || super::cursor::is_register(&name) {
                push(&mut name, format_args!("_{}", function.begin));
            }
        }
        names.insert(function.begin, name);
    }
    names
}

fn data(text: &mut String, directive: &str, bytes: &[u8]) {
    for line in bytes.chunks(DATA_LINE) {
        text.push_str(directive);
        text.push(' ');
        for byte in line {
            push(text, format_args!("{byte:02x}"));
        }
        text.push('\n');
    }
}

fn push(text: &mut String, arguments: fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(arguments);
}

struct Printed<'a> {
    instruction: &'a Instruction,
    label: &'a dyn Fn(usize) -> String,
}

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.instruction {
            Instruction::Alu { width, op, to, from } => {
                let sign =
                    ALU_NAMES.iter().find(|(known, ..)| *known == op).map_or("?=", |(_, _, sign)| sign);
                write!(f, "{} {sign} {}", Named(to, width), Second(from, width))
            }
            Instruction::Negate { width, to } => write!(f, "{0} = -{0}", Named(to, width)),
            Instruction::Move { width, to, from } => {
                write!(f, "{} = {}", Named(to, width), Second(from, width))
            }
            Instruction::MoveSigned { width, size, to, from } => {
                write!(f, "{} = (s{}){}", Named(to, width), size.bits(), Named(from, width))
            }
            Instruction::Bytes { order, size, to } => {
                let name = match order {
                    ByteOrder::Little => "le",
                    ByteOrder::Big => "be",
                    ByteOrder::Swap => "bswap",
                };
                write!(f, "{to} = {name}{} {to}", size.bits())
            }
            Instruction::LoadWide { to, value } => match value {
                Wide::Number(number) => write!(f, "{to} = {number:#x} ll"),
                Wide::ReadOnly(offset) => write!(f, "{to} = read_only + {offset} ll"),
                Wide::PerCall(offset) => write!(f, "{to} = per_call + {offset} ll"),
            },
            Instruction::Load { size, is_signed, to, base, offset } => {
                write!(f, "{to} = *({} *)({})", type_name(size, is_signed), Address(base, offset))
            }
            Instruction::Store { size, base, offset, from } => {
                let from = Second(from, Width::W64);
                write!(f, "*({} *)({}) = {from}", type_name(size, false), Address(base, offset))
            }
            Instruction::Atomic { .. } => self.atomic(f),
            Instruction::Jump { target } => write!(f, "goto {}", (self.label)(target)),
            Instruction::Branch { width, test, left, right, target } => {
                let sign =
                    TEST_NAMES.iter().find(|(known, ..)| *known == test).map_or("?", |(_, _, sign)| sign);
                let (left, right) = (Named(left, width), Second(right, width));
                write!(f, "if {left} {sign} {right} goto {}", (self.label)(target))
            }
            Instruction::Call { callee: Callee::Helper(number) } => write!(f, "call {number}"),
            Instruction::Call { callee: Callee::Local(target) } => write!(f, "call {}", (self.label)(target)),
            Instruction::Exit => f.write_str("exit"),
        }
    }
}

impl Printed<'_> {
    fn atomic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instruction::Atomic { width, op, base, offset, from } = *self.instruction else { return Ok(()) };
        let (address, from) = (Address(base, offset), Named(from, width));
        let (bits, suffix) = if width == Width::W32 { (32, "32_32") } else { (64, "_64") };
        match op {
            AtomicOp::Exchange => write!(f, "{from} = xchg{suffix}({address}, {from})"),
            AtomicOp::CompareExchange => {
                let r0 = Named(Register::R0, width);
                write!(f, "{r0} = cmpxchg{suffix}({address}, {r0}, {from})")
            }
            _ => match ATOMIC_NAMES.iter().find(|(bare, fetched, ..)| *bare == op || *fetched == op) {
                Some((bare, _, _, sign)) if *bare == op => {
                    write!(f, "lock *(u{bits} *)({address}) {sign} {from}")
                }
                Some((_, _, name, _)) => {
                    write!(f, "{from} = atomic_fetch_{name}((u{bits} *)({address}), {from})")
                }
                None => f.write_str("?"),
            },
        }
    }
}

fn type_name(size: Size, is_signed: bool) -> &'static str {
    let names = SIZE_NAMES.iter().find(|(known, ..)| *known == size);
    names.map_or("?", |(_, _, unsigned, signed)| if is_signed { signed } else { unsigned })
}

/// A register, or its lower half.
#[derive(Clone, Copy)]
struct Named(Register, Width);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.1 == Width::W32 { 'w' } else { 'r' };
        write!(f, "{letter}{}", self.0.index())
    }
}

/// A second operand.
struct Second(Operand, Width);

impl fmt::Display for Second {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Operand::Register(register) => Named(register, self.1).fmt(f),
            Operand::Immediate(immediate) => immediate.fmt(f),
        }
    }
}

/// A base register, and what is added to it.
struct Address(Register, i16);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.1 < 0 { '-' } else { '+' };
        write!(f, "{} {sign} {}", self.0, self.1.unsigned_abs())
    }
}
