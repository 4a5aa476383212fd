//! Compiled code against the interpreter: the same outcome, the same fuel left, the same memory afterwards.
//!
//! There is no verifier in these tests. Which region an access goes to is observed while the interpreter runs the program; so what is said of it
//! is true for this call, and whatever this call does not reach counts as never reached.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod arithmetic;
mod bench;
mod calls;
mod helpers;
mod jumps;
mod limits;
mod memory;
mod random;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Compiled, Options, compile};
use crate::call::{Call, CallError, Fault, FaultKind, LogSink, Outcome, TableLookup};
use crate::interpreter::{Interpreter, Observer, Value};
use crate::isa::{Callee, Instruction, Operand, Register};
use crate::program::Program;
use crate::text::assemble;
use crate::verdict::{Access, Bounds, Comparison, Verified};
use crate::world::{Argument, Entry, Field, FieldKind, Helper, Region, World};

const fn field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, purpose: "" }
}

/// A hook with everything that hooks have.
const HOOK: World = World {
    name: "test",
    entry: Entry::Context,
    fields: &[
        field("number", FieldKind::Number),
        field("result", FieldKind::Result),
        field("data", FieldKind::Data),
        field("data_len", FieldKind::DataLen),
        field("scratch", FieldKind::Scratch),
        field("scratch_len", FieldKind::ScratchLen),
    ],
    scratch_len: 64,
    data_len_max: 1 << 20,
    table_value_len: 24,
    is_called_by_name: false,
};

/// What a call is made with.
#[derive(Clone)]
struct Setup {
    world: World,
    data: Vec<u8>,
    scratch: Vec<u8>,
    number: u64,
    fuel: u32,
    bounds: Bounds,
    options: Options,
}

impl Setup {
    fn new() -> Self {
        Self {
            world: HOOK,
            data: (0..100).map(|at: u8| at.wrapping_mul(37) ^ 0xa5).collect(),
            scratch: (0..HOOK.scratch_len as u8).map(|at| at.wrapping_mul(59) ^ 0x5a).collect(),
            number: 7,
            fuel: 100_000,
            bounds: Bounds::Checked,
            options: Options { keep_checks: false },
        }
    }
}

/// What a call has left behind.
#[derive(Debug, PartialEq, Eq)]
struct After {
    outcome: Outcome,
    fuel: u32,
    scratch: Vec<u8>,
    context: Vec<u64>,
    log: Vec<(u64, u64)>,
}

/// A table of keys of any length, whose values are made of them.
struct Table;

impl TableLookup for Table {
    fn lookup(&self, key: &[u8], value: &mut [u8]) -> bool {
        let is_found = !key.is_empty() && key[0] != 0;
        if is_found {
            for (at, byte) in value.iter_mut().enumerate() {
                *byte = key[at % key.len()].wrapping_add(at as u8);
            }
        }
        is_found
    }
}

#[derive(Default)]
struct Log(RefCell<Vec<(u64, u64)>>);

impl LogSink for Log {
    fn log(&self, first: u64, second: u64) {
        self.0.borrow_mut().push((first, second));
    }
}

/// Makes a call of whatever runs programs.
fn call(setup: &Setup, run: impl FnOnce(&mut Call<'_>) -> Outcome) -> After {
    let log = Log::default();
    let mut words = vec![0u64; setup.scratch.len().div_ceil(8)];
    // The scratch has to be aligned.
    let scratch_bytes: &mut [u8] = bytes_of(&mut words);
    let scratch = scratch_bytes.get_mut(..setup.scratch.len()).unwrap();
    scratch.copy_from_slice(&setup.scratch);
    let mut context = vec![0; setup.world.fields.len()];
    if let Some(number) = context.first_mut() {
        *number = setup.number;
    }
    let mut call = Call {
        data: &setup.data,
        scratch,
        context: &mut context,
        fuel: setup.fuel,
        table: &Table,
        log: &log,
    };
    let outcome = run(&mut call);
    let (fuel, scratch) = (call.fuel, call.scratch.to_vec());
    After { outcome, fuel, scratch, context, log: log.0.into_inner() }
}

fn bytes_of(words: &mut [u64]) -> &mut [u8] {
    let len = size_of_val(words);
    // SAFETY: words are bytes, of any value, and borrowed for as long.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), len) }
}

/// Sees where accesses go.
struct Regions<'p> {
    program: &'p Program,
    bounds: Bounds,
    accesses: BTreeMap<usize, Access>,
    ranges: BTreeMap<(usize, Register), Access>,
    comparisons: BTreeMap<usize, Comparison>,
    /// Whether one instruction goes to different memory at different times.
    is_mixed: bool,
}

impl Regions<'_> {
    fn access(&self, registers: &[Value; Register::COUNT], register: Register) -> Option<Access> {
        let (Value::Pointer(own), Value::Pointer(pointer)) =
            (registers[Register::R10.index()], registers[register.index()])
        else {
            return None;
        };
        let frame = if pointer.activation == 0 { 0 } else { own.frame.checked_sub(pointer.frame)? };
        Some(Access { region: pointer.region, frame, bounds: self.bounds })
    }
}

impl Regions<'_> {
    fn comparison(
        &self,
        registers: &[Value; Register::COUNT],
        left: Register,
        right: Operand,
    ) -> Option<Comparison> {
        let Access { region, frame, .. } = self.access(registers, left)?;
        match right {
            Operand::Register(_) => Some(Comparison::Offsets { region, frame }),
            // What a lookup gives may have been null.
            Operand::Immediate(_) => (region != Region::TableValue).then_some(Comparison::NeverNull),
        }
    }
}

impl Observer for Regions<'_> {
    fn before(&mut self, at: usize, registers: &[Value; Register::COUNT], _fuel: u32) {
        match self.program.instructions()[at] {
            Instruction::Load { base, .. }
            | Instruction::Store { base, .. }
            | Instruction::Atomic { base, .. } => {
                if let Some(access) = self.access(registers, base) {
                    self.is_mixed |= *self.accesses.entry(at).or_insert(access) != access;
                }
            }
            Instruction::Call { callee: Callee::Helper(number) } => {
                let arguments =
                    Helper::of_number(number).map_or(&[][..], |helper| helper.signature().arguments);
                for (argument, register) in arguments.iter().zip(super::function::ARGUMENTS) {
                    if matches!(argument, Argument::Read | Argument::Write)
                        && let Some(access) = self.access(registers, register)
                    {
                        self.is_mixed |= *self.ranges.entry((at, register)).or_insert(access) != access;
                    }
                }
            }
            Instruction::Branch { left, right, .. } => {
                if let Some(comparison) = self.comparison(registers, left, right) {
                    self.is_mixed |= *self.comparisons.entry(at).or_insert(comparison) != comparison;
                }
            }
            _ => {}
        }
    }
}

/// Makes calls of a program by interpretation, and sees what a verifier would have to prove of it. `None` where no verdict covers
/// them.
fn observe_all(program: &Arc<Program>, setups: &[Setup]) -> (Vec<After>, Option<Verified>) {
    let Some(Setup { world, bounds, .. }) = setups.first().cloned() else { return (Vec::new(), None) };
    let mut regions = Regions {
        program,
        bounds,
        accesses: BTreeMap::new(),
        ranges: BTreeMap::new(),
        comparisons: BTreeMap::new(),
        is_mixed: false,
    };
    let mut interpreter = Interpreter::new();
    let mut observe =
        |setup| call(setup, |call| interpreter.run_observed(program, &world, call, &mut regions));
    let afters: Vec<After> = setups.iter().map(&mut observe).collect();
    let is_unproven = afters.iter().any(|after| {
        matches!(after.outcome, Err(CallError::Fault(Fault { what: FaultKind::Unproven(_), .. })))
    });
    let verified = (!is_unproven && !regions.is_mixed).then(|| {
        Verified::of_functions(
            Arc::clone(program),
            world,
            &regions.accesses,
            &regions.ranges,
            &regions.comparisons,
        )
    });
    (afters, verified)
}

/// The same for one call.
fn observe(program: &Arc<Program>, setup: &Setup) -> (After, Option<Verified>) {
    let (mut afters, verified) = observe_all(program, std::slice::from_ref(setup));
    (afters.remove(0), verified)
}

/// Makes calls of a program both ways, and holds the one to the other.
fn run_all(text: &str, setups: &[Setup]) -> Vec<After> {
    let (expected, verified) = observe_all(&program(text), setups);
    let verified = verified.unwrap_or_else(|| panic!("nobody would verify this: {expected:?}"));
    let compiled = compile(&verified, setups[0].options).unwrap();
    for (setup, expected) in setups.iter().zip(&expected) {
        assert_eq!(&call(setup, |call| compiled.run(call)), expected, "with {}: {text}", setup.number);
    }
    expected
}

/// The same for one call.
fn run(text: &str, setup: &Setup) -> After {
    run_all(text, std::slice::from_ref(setup)).remove(0)
}

/// Calls that differ in the context's number.
fn with_numbers(numbers: &[i64]) -> Vec<Setup> {
    numbers.iter().map(|number| Setup { number: *number as u64, ..Setup::new() }).collect()
}

fn program(text: &str) -> Arc<Program> {
    Arc::new(assemble(text).unwrap().program().unwrap())
}

/// A program of which every access is observed in one call, for other calls.
fn compile_observed(text: &str, setup: &Setup) -> Compiled {
    let (_, verified) = observe(&program(text), setup);
    compile(&verified.unwrap(), setup.options).unwrap()
}

fn fault(at: usize, what: FaultKind) -> Outcome {
    Err(Fault { at, what }.into())
}
