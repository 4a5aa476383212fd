//! From lines to a program: labels, functions and data.

use std::collections::{BTreeMap, HashMap};

use super::cursor::Cursor;
use super::statement::instruction;
use super::token::{Kind, Token, tokens};
use super::{AssembleError, Fault, Parsed, Target, Unreadable};
use crate::isa::{self, Callee, Decoded, EncodeError, INSTRUCTIONS_MAX, Instruction};
use crate::program::{Parts, Program, ProgramError};
use crate::world::Helper;

/// What was read.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// The instructions.
    pub decoded: Decoded,
    /// The names of functions, the data, and what the program asks for.
    pub parts: Parts,
}

impl Assembled {
    /// The program of it.
    ///
    /// # Errors
    ///
    /// When its shape is not right.
    pub fn program(self) -> Result<Program, ProgramError> {
        Program::new(self.decoded, self.parts)
    }
}

/// Reads a program.
///
/// # Errors
///
/// With the first place that cannot be read, or the first label that cannot be reached.
pub fn assemble(text: &str) -> Result<Assembled, AssembleError> {
    let mut assembly = Assembly::default();
    for (line, text) in (1..).zip(text.lines()) {
        assembly.read(line, text).map_err(|fault| at_line(line, fault))?;
    }
    assembly.finish()
}

fn at_line(line: usize, Fault { column, what }: Fault) -> AssembleError {
    AssembleError { line, column, what }
}

/// An instruction, and where it was written.
struct Placed<'a> {
    parsed: Parsed<'a>,
    line: usize,
    column: usize,
}

/// Where a label is set.
struct Label {
    /// The instruction that follows it.
    at: usize,
    line: usize,
}

/// What was read so far.
#[derive(Default)]
struct Assembly<'a> {
    placed: Vec<Placed<'a>>,
    labels: HashMap<&'a str, Label>,
    /// What is said to be a function, and where.
    functions: Vec<(&'a str, usize, usize)>,
    /// The first `exit`.
    exit: Option<usize>,
    parts: Parts,
}

impl<'a> Assembly<'a> {
    fn read(&mut self, line: usize, text: &'a str) -> Result<(), Fault> {
        let begin = text.len() - text.trim_ascii_start().len();
        let trimmed = text.trim_ascii_start();
        for (name, is_read_only) in [(".read_only", true), (".per_call", false)] {
            if let Some(digits) = trimmed.strip_prefix(name)
                && digits.starts_with(|c: char| c.is_ascii_whitespace())
            {
                let bytes = if is_read_only { &mut self.parts.read_only } else { &mut self.parts.per_call };
                return hex(digits, begin + name.len() + 1, bytes);
            }
        }
        let tokens = tokens(text)?;
        let mut tokens = tokens.as_slice();
        while let Some((label, rest)) = label(tokens) {
            tokens = rest;
            self.set(label, line)?;
        }
        let mut cursor = Cursor::new(tokens);
        let column = cursor.column();
        match cursor.peek() {
            None => Ok(()),
            Some(Kind::Word(word)) if word.starts_with('.') => self.directive(line, &mut cursor),
            Some(_) => {
                let parsed = instruction(&mut cursor)?;
                if self.placed.len() == INSTRUCTIONS_MAX {
                    return Err(Fault { column, what: Unreadable::TooLong });
                }
                if parsed.instruction == Instruction::Exit {
                    self.exit.get_or_insert(self.placed.len());
                }
                self.placed.push(Placed { parsed, line, column });
                Ok(())
            }
        }
    }

    fn set(&mut self, token: &Token<'a>, line: usize) -> Result<(), Fault> {
        // Disassemblers number their lines; nothing goes to such a label.
        let Kind::Word(label) = token.kind else { return Ok(()) };
        if let Some(Label { line, .. }) = self.labels.get(label) {
            let what = Unreadable::LabelTwice { label: label.into(), line: *line };
            return Err(Fault { column: token.column, what });
        }
        self.labels.insert(label, Label { at: self.placed.len(), line });
        Ok(())
    }

    fn directive(&mut self, line: usize, cursor: &mut Cursor<'a, '_>) -> Result<(), Fault> {
        let unknown = cursor.expected("an instruction, .type, .read_only, .per_call or .data_len_min");
        match cursor.word("a directive")? {
            ".data_len_min" => self.parts.data_len_min = cursor.unsigned("a length")?,
            ".type" => {
                let column = cursor.column();
                let name = cursor.word("a function's name")?;
                cursor.sign(",")?;
                cursor.sign("@")?;
                if !cursor.eat_word("function") {
                    return Err(cursor.expected("function"));
                }
                self.functions.push((name, line, column));
            }
            _ => return Err(unknown),
        }
        cursor.end()
    }

    fn finish(self) -> Result<Assembled, AssembleError> {
        let slots = slots(&self.placed);
        let mut instructions = Vec::with_capacity(self.placed.len());
        for (at, placed) in self.placed.iter().enumerate() {
            let resolved = self.resolved(at, &placed.parsed, &slots);
            instructions.push(resolved.map_err(|fault| at_line(placed.line, fault))?);
        }
        let mut parts = self.parts.clone();
        parts.names = self.names(&instructions)?;
        let decoded = self.checked(&instructions)?;
        Ok(Assembled { decoded, parts })
    }

    /// An instruction whose target is known.
    fn resolved(&self, at: usize, parsed: &Parsed<'a>, slots: &[i64]) -> Result<Instruction, Fault> {
        let mut instruction = parsed.instruction;
        let (Instruction::Jump { target }
        | Instruction::Branch { target, .. }
        | Instruction::Call { callee: Callee::Local(target) }) = &mut instruction
        else {
            return Ok(instruction);
        };
        match parsed.target {
            Some(Target::Relative(distance, column)) => {
                let slot = slots.get(at).map_or(0, |slot| slot + 1) + distance;
                let missing = Fault { column, what: Unreadable::Target(slot) };
                *target = slots.binary_search(&slot).map_err(|_| missing)?;
            }
            Some(Target::Label(label, column)) => {
                let exit = self.exit.filter(|_| label == "exit");
                if let Some(found) = self.labels.get(label).map(|label| label.at).or(exit) {
                    if found == self.placed.len() {
                        let expected = "an instruction behind the label";
                        return Err(Fault {
                            column,
                            what: Unreadable::Expected { expected, found: label.into() },
                        });
                    }
                    *target = found;
                    return Ok(instruction);
                }
                let helper = Helper::ALL.into_iter().find(|helper| helper.signature().name == label);
                match (instruction, helper) {
                    (Instruction::Call { .. }, Some(helper)) => {
                        return Ok(Instruction::Call { callee: Callee::Helper(helper.number()) });
                    }
                    _ => return Err(Fault { column, what: Unreadable::LabelMissing(label.into()) }),
                }
            }
            None => {}
        }
        Ok(instruction)
    }

    /// The names of what is called, and of what is said to be a function.
    fn names(&self, instructions: &[Instruction]) -> Result<Vec<(usize, String)>, AssembleError> {
        let mut names = BTreeMap::new();
        for (name, line, column) in &self.functions {
            let missing =
                || at_line(*line, Fault { column: *column, what: Unreadable::LabelMissing((*name).into()) });
            names.insert(self.labels.get(name).ok_or_else(missing)?.at, *name);
        }
        for (placed, instruction) in self.placed.iter().zip(instructions) {
            if let (Instruction::Call { callee: Callee::Local(target) }, Some(Target::Label(label, _))) =
                (instruction, placed.parsed.target)
            {
                names.entry(*target).or_insert(label);
            }
        }
        Ok(names.into_iter().map(|(at, name)| (at, name.into())).collect())
    }

    /// What decoding gives for the bytes, so that nothing comes from here that could not come as bytes.
    fn checked(&self, instructions: &[Instruction]) -> Result<Decoded, AssembleError> {
        let at_instruction = |at: usize, what: Unreadable| {
            let (line, column) = self.placed.get(at).map_or((1, 1), |placed| (placed.line, placed.column));
            AssembleError { line, column, what }
        };
        if instructions.is_empty() {
            return Err(at_instruction(0, Unreadable::Empty));
        }
        // The statements have been checked one by one, and the longest program is within reach of a branch: neither of the
        // two fails, and if one does, it is at least said.
        let illegal = |found| Unreadable::Expected { expected: "a legal instruction", found };
        let bytes = isa::encode(instructions).map_err(|error| {
            let (EncodeError::Target { at } | EncodeError::Illegal { at }) = error;
            at_instruction(at, illegal(error.to_string()))
        })?;
        isa::decode(&bytes).map_err(|error| at_instruction(error.slot, illegal(error.what.to_string())))
    }
}

/// The label that a line begins with, and what is behind it.
fn label<'a, 'b>(tokens: &'b [Token<'a>]) -> Option<(&'b Token<'a>, &'b [Token<'a>])> {
    match tokens {
        [label, colon, rest @ ..]
            if colon.kind == Kind::Sign(":") && !matches!(label.kind, Kind::Sign(_)) =>
        {
            Some((label, rest))
        }
        _ => None,
    }
}

/// The slot in which each instruction begins.
fn slots(placed: &[Placed<'_>]) -> Vec<i64> {
    let lens = placed.iter().map(|placed| match placed.parsed.instruction {
        Instruction::LoadWide { .. } => 2,
        _ => 1,
    });
    lens.scan(0, |next, len| {
        let slot = *next;
        *next += len;
        Some(slot)
    })
    .collect()
}

/// Appends bytes that are written as pairs of hexadecimal digits.
fn hex(digits: &str, column: usize, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    let wrong = |column, found: String| {
        let expected = "pairs of hexadecimal digits";
        Fault { column, what: Unreadable::Expected { expected, found } }
    };
    let mut upper = None;
    for (at, c) in digits.chars().enumerate() {
        if matches!(c, '#' | ';') {
            break;
        }
        if c.is_ascii_whitespace() {
            continue;
        }
        let digit = c.to_digit(16).ok_or_else(|| wrong(column + at, c.into()))? as u8;
        match upper.take() {
            None => upper = Some(digit),
            Some(upper) => bytes.push(upper << 4 | digit),
        }
    }
    if upper.is_some() {
        return Err(wrong(column + digits.len(), "a single digit".into()));
    }
    Ok(())
}
