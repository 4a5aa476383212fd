//! What the interpreter does and what it stops. What instructions compute is in `tests/vectors`.

mod boundary;
mod helping;
mod pointers;
mod properties;

use std::cell::RefCell;

use crate::call::{Call, CallError, FaultKind, LogSink, Outcome, TableLookup, Violation};
use crate::interpreter::Interpreter;
use crate::program::Program;
use crate::text;
use crate::world::{Entry, Field, FieldKind, World};

const SCRATCH_LEN: usize = 64;
const FUEL: u32 = 100_000;

const fn field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, purpose: "tests" }
}

/// A hook with everything: its fields are at 0, 8, 16, 24, 32 and 40.
const WORLD: World = World {
    name: "test",
    entry: Entry::Context,
    fields: &[
        field("data", FieldKind::Data),
        field("data_len", FieldKind::DataLen),
        field("scratch", FieldKind::Scratch),
        field("scratch_len", FieldKind::ScratchLen),
        field("key", FieldKind::Number),
        field("answer", FieldKind::Result),
    ],
    scratch_len: SCRATCH_LEN as u32,
    data_len_max: 4096,
    table_value_len: 16,
    is_called_by_name: false,
};

/// What calls have besides their programs; and what is left there.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
struct Rig {
    scratch: [u8; SCRATCH_LEN],
    data: Vec<u8>,
    context: [u64; 6],
    fuel: u32,
    table: Vec<(Vec<u8>, [u8; 16])>,
    logged: RefCell<Vec<(u64, u64)>>,
}

impl Default for Rig {
    fn default() -> Self {
        Self {
            scratch: std::array::from_fn(|at| at as u8),
            data: (100..200).collect(),
            context: [0, 0, 0, 0, 7, 8],
            fuel: FUEL,
            table: Vec::new(),
            logged: RefCell::default(),
        }
    }
}

struct Table<'a>(&'a [(Vec<u8>, [u8; 16])]);

impl TableLookup for Table<'_> {
    fn lookup(&self, key: &[u8], value: &mut [u8]) -> bool {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.is_some_and(|(_, known)| {
            value.copy_from_slice(known);
            true
        })
    }
}

impl LogSink for RefCell<Vec<(u64, u64)>> {
    fn log(&self, first: u64, second: u64) {
        self.borrow_mut().push((first, second));
    }
}

impl Rig {
    fn run_program(&mut self, interpreter: &mut Interpreter, program: &Program) -> Outcome {
        let table = Table(&self.table);
        let mut call = Call {
            data: &self.data,
            scratch: &mut self.scratch,
            context: &mut self.context,
            fuel: self.fuel,
            table: &table,
            log: &self.logged,
        };
        let outcome = interpreter.run(program, &WORLD, &mut call);
        self.fuel = call.fuel;
        outcome
    }

    fn run(&mut self, asm: &str) -> Outcome {
        self.run_program(&mut Interpreter::new(), &program(asm))
    }
}

fn program(asm: &str) -> Program {
    text::assemble(asm).unwrap().program().unwrap()
}

/// What a program gives in a rig of its own.
fn run(asm: &str) -> Outcome {
    Rig::default().run(asm)
}

/// Why a program is stopped there.
fn fault(asm: &str) -> FaultKind {
    match run(asm) {
        Err(CallError::Fault(fault)) => fault.what,
        outcome => panic!("{outcome:?} of\n{asm}"),
    }
}

/// What it did that it may not.
fn violation(asm: &str) -> Violation {
    match fault(asm) {
        FaultKind::Unproven(violation) => violation,
        other => panic!("{other:?} of\n{asm}"),
    }
}
