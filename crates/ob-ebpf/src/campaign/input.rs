//! Calls: data, context, scratch and tables at the edges of what a program compares with.

use std::cell::RefCell;
use std::fmt;

use crate::call::{ALIGNMENT, Call, LogSink, Outcome, TableLookup};
use crate::campaign::random::Random;
use crate::campaign::setting::SCRATCH_LEN_MAX;
use crate::interpreter::Interpreter;
use crate::isa::{Instruction, Operand};
use crate::program::Program;
use crate::world::World;

/// Bytes of data in most calls, at most: filling more of them takes longer than the call.
const DATA_LEN_MOST: usize = 4096;

/// One call, as what it is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    data_len: usize,
    /// What the bytes of the data and the scratch are.
    fill: Fill,
    /// What the fields of the context are, again and again.
    numbers: [u64; 4],
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
    /// What [`Machines::give`] was given, again and again.
    Given,
}

impl Input {
    pub(super) fn new(random: &mut Random, program: &Program, world: &World, number: usize) -> Self {
        let longest = world.data_len_max as usize;
        let usual = if random.once_in(16) { longest } else { longest.min(DATA_LEN_MOST) };
        let min = program.data_len_min() as usize;
        let constant = constant_of(random, program);
        let data_len = match (number, random.below(4)) {
            (0, _) => min,
            (_, 0) => min + random.below(20),
            (_, 1) => constant as usize,
            (_, 2) => (constant as usize).wrapping_add(random.below(19)).wrapping_sub(9),
            _ => usual - random.below(2) * random.below(usual),
        };
        let data_len = if data_len > longest { min + random.below(64) } else { data_len };
        let fill = match random.below(6) {
            0 => Fill::Zeroes,
            1 => Fill::Ones,
            2 => Fill::Small,
            _ => Fill::Random(random.word()),
        };
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = match random.below(3) {
                0 => constant_of(random, program).wrapping_add(random.below(3) as u64).wrapping_sub(1),
                1 => random.number(),
                _ => random.below(70) as u64,
            };
        }
        let found = random.of([0, 1, 1, 2, 0xff, 0xff]);
        let fuel = if random.once_in(8) { random.below(400) as u32 } else { 3000 };
        Self { data_len: data_len.max(min).min(longest), fill, numbers, found, fuel }
    }

    /// A call with the bytes that [`Machines::give`] was given as its data, or the first of them.
    pub(super) fn given(program: &Program, world: &World, len: usize) -> Self {
        let (min, longest) = (program.data_len_min() as usize, world.data_len_max as usize);
        let data_len = len.max(min).min(longest);
        Self { data_len, fill: Fill::Given, numbers: [len as u64, 0, 1, u64::MAX], found: 1, fuel: 3000 }
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

/// Something that a call asks or tells others.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    LookedUp(Vec<u8>),
    Logged(u64, u64),
}

/// Answers a call as its input says, and hears what it says.
struct Others<'a> {
    input: &'a Input,
    heard: &'a RefCell<Vec<Said>>,
}

impl TableLookup for Others<'_> {
    fn lookup(&self, key: &[u8], value: &mut [u8]) -> bool {
        self.heard.borrow_mut().push(Said::LookedUp(key.to_vec()));
        let sum = key.iter().fold(1u8, |sum, byte| sum.wrapping_add(*byte));
        let is_found = sum & self.input.found != 0;
        if is_found {
            value.fill(sum);
        }
        is_found
    }
}

impl LogSink for Others<'_> {
    fn log(&self, first: u64, second: u64) {
        self.heard.borrow_mut().push(Said::Logged(first, second));
    }
}

#[repr(align(8))]
struct Scratch([u8; SCRATCH_LEN_MAX]);
const _: () = assert!(align_of::<Scratch>().is_multiple_of(ALIGNMENT));

/// What comes of a call, and what it leaves.
#[cfg_attr(not(feature = "compiler"), allow(dead_code, reason = "only compiled code is compared"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effects {
    outcome: Outcome,
    fuel: u32,
    scratch: Vec<u8>,
    context: Vec<u64>,
    /// In this order.
    said: Vec<Said>,
}

/// What runs programs, and the memory that it runs them on.
pub(super) struct Machines {
    interpreter: Interpreter,
    given: Vec<u8>,
    data: Vec<u8>,
    scratch: Box<Scratch>,
    context: Vec<u64>,
    /// What the last call has left, and said.
    fuel: u32,
    heard: RefCell<Vec<Said>>,
}

impl Machines {
    pub(super) fn new() -> Self {
        Self {
            interpreter: Interpreter::new(),
            given: Vec::new(),
            data: Vec::new(),
            scratch: Box::new(Scratch([0; SCRATCH_LEN_MAX])),
            context: Vec::new(),
            fuel: 0,
            heard: RefCell::default(),
        }
    }

    /// What data of calls are made of that want it.
    pub(super) fn give(&mut self, bytes: &[u8]) {
        self.given.clear();
        self.given.extend_from_slice(bytes);
    }

    /// Makes a call of an input with whatever runs programs.
    pub(super) fn call(
        &mut self,
        world: &World,
        input: &Input,
        run: impl FnOnce(&mut Interpreter, &mut Call<'_>) -> Outcome,
    ) -> Outcome {
        if self.data.len() < input.data_len {
            self.data.resize(input.data_len, 0);
        }
        let data = self.data.get_mut(..input.data_len).unwrap_or_default();
        let scratch = self.scratch.0.get_mut(..world.scratch_len as usize).unwrap_or_default();
        fill(data, input.fill, &self.given);
        fill(scratch, input.fill, &self.given);
        // Nothing may depend on where there is no memory: an empty slice has a null address, nearly.
        let data = if data.is_empty() { &[][..] } else { &*data };
        self.context.clear();
        self.context.extend(input.numbers.iter().cycle().take(world.fields.len()));
        let context = &mut self.context;
        self.heard.get_mut().clear();
        let others = Others { input, heard: &self.heard };
        let mut call = Call { data, scratch, context, fuel: input.fuel, table: &others, log: &others };
        let outcome = run(&mut self.interpreter, &mut call);
        self.fuel = call.fuel;
        outcome
    }

    /// The same, with all that the call leaves.
    #[cfg_attr(not(feature = "compiler"), allow(dead_code, reason = "only compiled code is compared"))]
    pub(super) fn effects(
        &mut self,
        world: &World,
        input: &Input,
        run: impl FnOnce(&mut Interpreter, &mut Call<'_>) -> Outcome,
    ) -> Effects {
        let outcome = self.call(world, input, run);
        let scratch = self.scratch.0.get(..world.scratch_len as usize).unwrap_or_default().to_vec();
        Effects { outcome, fuel: self.fuel, scratch, context: self.context.clone(), said: self.heard.take() }
    }
}

fn fill(bytes: &mut [u8], fill: Fill, given: &[u8]) {
    match fill {
        Fill::Given => {
            let given = given.iter().chain([&0]).cycle();
            bytes.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
        }
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
