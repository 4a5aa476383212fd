//! Calls: data, context, scratch and tables at the edges of what a program compares with.

use std::fmt;

use crate::call::{ALIGNMENT, Call, LogSink, NoLog, Outcome, TableLookup};
use crate::campaign::random::Random;
use crate::campaign::{FIELDS, WORLD};
use crate::interpreter::Interpreter;
use crate::isa::{Instruction, Operand};
use crate::program::Program;

const DATA_LEN: usize = WORLD.data_len_max as usize;
const SCRATCH_LEN: usize = WORLD.scratch_len as usize;
const _: () = assert!(SCRATCH_LEN.is_multiple_of(ALIGNMENT));

/// One call, as what it is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    data_len: usize,
    /// What the bytes of the data and the scratch are.
    fill: Fill,
    numbers: [u64; 3],
    /// Which keys are found: those whose bytes' sum has a bit of these.
    found: u8,
    fuel: u32,
}

#[derive(Clone, Copy, Debug)]
enum Fill {
    Zeroes,
    Ones,
    Small,
    Random(u64),
}

impl Input {
    pub(super) fn new(random: &mut Random, program: &Program, number: usize) -> Self {
        let min = program.data_len_min() as usize;
        let constant = constant_of(random, program);
        let data_len = match (number, random.below(4)) {
            (0, _) => min,
            (_, 0) => min + random.below(20),
            (_, 1) => constant as usize,
            (_, 2) => (constant as usize).wrapping_add(random.below(19)).wrapping_sub(9),
            _ => DATA_LEN - random.below(2) * random.below(DATA_LEN),
        };
        let data_len = if data_len > DATA_LEN { min + random.below(64) } else { data_len };
        let fill = match random.below(6) {
            0 => Fill::Zeroes,
            1 => Fill::Ones,
            2 => Fill::Small,
            _ => Fill::Random(random.word()),
        };
        let mut numbers = [0; 3];
        for number in &mut numbers {
            *number = match random.below(3) {
                0 => constant_of(random, program).wrapping_add(random.below(3) as u64).wrapping_sub(1),
                1 => random.number(),
                _ => random.below(70) as u64,
            };
        }
        let found = random.of([0, 1, 0xff, 0xff]);
        let fuel = if random.once_in(8) { random.below(400) as u32 } else { 3000 };
        Self { data_len: data_len.max(min).min(DATA_LEN), fill, numbers, found, fuel }
    }

    pub(super) fn data_len(&self) -> usize {
        self.data_len
    }
}

/// A number that the program compares or computes with.
fn constant_of(random: &mut Random, program: &Program) -> u64 {
    let instructions = program.instructions();
    for _ in 0..6 {
        if let Some(
            Instruction::Branch { right: Operand::Immediate(constant), .. }
            | Instruction::Alu { from: Operand::Immediate(constant), .. },
        ) = instructions.get(random.below(instructions.len()))
        {
            return i64::from(*constant) as u64;
        }
    }
    random.below(70) as u64
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data_len, fill, numbers, found, fuel } = self;
        write!(f, "{data_len} bytes of data ({fill:?}), numbers {numbers:x?}, found {found:#x}, fuel {fuel}")
    }
}

impl TableLookup for Input {
    fn lookup(&self, key: &[u8], value: &mut [u8]) -> bool {
        let sum = key.iter().fold(1u8, |sum, byte| sum.wrapping_add(*byte));
        let is_found = sum & self.found != 0;
        if is_found {
            value.fill(sum);
        }
        is_found
    }
}

impl LogSink for Input {
    fn log(&self, first: u64, second: u64) {
        NoLog.log(first, second);
    }
}

#[repr(align(8))]
struct Scratch([u8; SCRATCH_LEN]);

/// What comes of a call, and what it leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) outcome: Outcome,
    pub(super) fuel: u32,
    scratch: [u8; SCRATCH_LEN],
    /// Fields that are no addresses and no lengths.
    numbers: [u64; 3],
}

/// What runs programs, and the memory that it runs them on.
pub(super) struct Machines {
    pub(super) interpreter: Interpreter,
    data: Box<[u8; DATA_LEN]>,
    scratch: Box<Scratch>,
}

impl Machines {
    pub(super) fn new() -> Self {
        Self {
            interpreter: Interpreter::new(),
            data: Box::new([0; DATA_LEN]),
            scratch: Box::new(Scratch([0; SCRATCH_LEN])),
        }
    }

    /// Makes a call of an input with whatever runs programs.
    pub(super) fn call(
        &mut self,
        input: &Input,
        run: impl FnOnce(&mut Interpreter, &mut Call<'_>) -> Outcome,
    ) -> Effects {
        let data = self.data.get_mut(..input.data_len).unwrap_or_default();
        let scratch = &mut self.scratch.0;
        fill(data, input.fill);
        fill(scratch, input.fill);
        // Nothing may depend on where there is no memory: an empty slice has a null address, nearly.
        let data = if data.is_empty() { &[][..] } else { &*data };
        let mut context = [0; FIELDS.len()];
        let [first, second, result] = input.numbers;
        context[4..].copy_from_slice(&[first, second, result]);
        let mut call =
            Call { data, scratch, context: &mut context, fuel: input.fuel, table: input, log: input };
        let outcome = run(&mut self.interpreter, &mut call);
        let fuel = call.fuel;
        let [.., first, second, result] = context;
        Effects { outcome, fuel, scratch: *scratch, numbers: [first, second, result] }
    }
}

fn fill(bytes: &mut [u8], fill: Fill) {
    match fill {
        Fill::Zeroes => bytes.fill(0),
        Fill::Ones => bytes.fill(u8::MAX),
        Fill::Small => bytes.fill(3),
        Fill::Random(seed) => {
            let mut random = Random::new(seed);
            // Longer data repeats: what matters is that words differ.
            let (first, rest) = bytes.split_at_mut(bytes.len().min(512));
            for chunk in first.chunks_mut(8) {
                let word = random.word().to_le_bytes();
                for (to, from) in chunk.iter_mut().zip(word) {
                    *to = from;
                }
            }
            for chunk in rest.chunks_mut(512) {
                for (to, from) in chunk.iter_mut().zip(&*first) {
                    *to = *from;
                }
            }
        }
    }
}
