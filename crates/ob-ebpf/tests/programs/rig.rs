//! Runs the programs of `examples/programs`, each call by interpreter and compiled code at once.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use ob_ebpf::call::{Call, NoLog, NoTable, Outcome};
use ob_ebpf::compiler::{self, Compiled};
use ob_ebpf::elf::{Entry, Object};
use ob_ebpf::hooks::{self, STORAGE, STORAGE_SCRATCH_LEN};
use ob_ebpf::interpreter::{Interpreter, Observer, Value};
use ob_ebpf::isa::Register;
use ob_ebpf::program::Program;
use ob_ebpf::verifier::{self, Accepted, Options};
use ob_ebpf::world::World;

pub(crate) const SCRATCH_LEN: usize = STORAGE_SCRATCH_LEN as usize;
pub(crate) const FUEL: u32 = 1 << 20;

/// A program, verified and compiled.
pub(crate) struct Rig {
    pub(crate) name: String,
    pub(crate) program: Arc<Program>,
    pub(crate) accepted: Accepted,
    /// As it is run: without checks of what is proven.
    pub(crate) compiled: Compiled,
    /// With them, as assertions.
    pub(crate) asserting: Compiled,
    checks: BTreeSet<usize>,
    touches: BTreeSet<usize>,
}

/// A request under way, as the card keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct Request {
    pub(crate) scratch: [u8; SCRATCH_LEN],
    pub(crate) context: [u64; 11],
}

/// What a program said after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Done,
    Next { file: u64, offset: u64, len: u64 },
    Failed(u64),
}

/// Accesses that were made, and those of them that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Executed {
    pub(crate) accesses: u64,
    pub(crate) checks: u64,
}

struct Counting<'a> {
    rig: &'a Rig,
    executed: Executed,
}

impl Observer for Counting<'_> {
    fn before(&mut self, at: usize, _: &[Value; Register::COUNT], _: u32) {
        self.executed.accesses += u64::from(self.rig.touches.contains(&at));
        self.executed.checks += u64::from(self.rig.checks.contains(&at));
    }
}

impl Rig {
    /// The only program of an object.
    pub(crate) fn new(name: &str) -> Self {
        let mut rigs = Self::all(name);
        assert_eq!(rigs.len(), 1, "{name} has several programs");
        rigs.remove(0)
    }

    /// All programs of an object, each for its hook.
    pub(crate) fn all(name: &str) -> Vec<Self> {
        let objects = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/programs");
        let bytes = std::fs::read(objects.join(format!("{name}.o"))).unwrap();
        let object = Object::parse(&bytes).unwrap();
        let rig = |entry: &Entry| {
            let world = hooks::ALL.into_iter().find(|world| world.name == entry.hook).unwrap();
            Self::of(&entry.name, object.program(Some(&entry.name)).unwrap(), world)
        };
        object.entries().iter().map(rig).collect()
    }

    fn of(name: &str, program: Program, world: &World) -> Self {
        let program = Arc::new(program);
        let accepted = verifier::verify(&program, world, Options::default())
            .unwrap_or_else(|refused| panic!("{name}: {refused}"));
        let compile = |keep_checks| {
            compiler::compile(&accepted.verified, compiler::Options { keep_checks })
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let (compiled, asserting) = (compile(false), compile(true));
        let variants = accepted.verified.variants().iter();
        let touches = variants.flat_map(|variant| {
            variant.accesses.keys().copied().chain(variant.ranges.keys().map(|(at, _)| *at))
        });
        let touches = touches.collect();
        let checks = accepted.checks.iter().map(|check| check.at).collect();
        Self { name: name.to_owned(), program, accepted, compiled, asserting, checks, touches }
    }

    /// Calls the program with what was read, by all that runs programs; they agree.
    pub(crate) fn call(&self, request: &mut Request, data: &[u8]) -> (Outcome, Executed) {
        let mut counting = Counting { rig: self, executed: Executed::default() };
        let (mut compiled, mut asserting) = (request.clone(), request.clone());
        let (outcome, fuel) = request.with_call(data, |call| {
            Interpreter::new().run_observed(&self.program, &STORAGE, call, &mut counting)
        });
        for (code, other) in [(&self.compiled, &mut compiled), (&self.asserting, &mut asserting)] {
            let found = other.with_call(data, |call| code.run(call));
            assert_eq!(found, (outcome, fuel));
            // The words of addresses and lengths are whoever's that runs it.
            assert_eq!((&other.scratch, &other.context[4..]), (&request.scratch, &request.context[4..]));
        }
        (outcome, counting.executed)
    }

    /// A call, and what the card makes of it.
    pub(crate) fn ask(&self, request: &mut Request, data: &[u8]) -> Said {
        let (outcome, _) = self.call(request, data);
        match outcome.unwrap_or_else(|error| panic!("{error}")) {
            0 if request.context[7] != 0 => Said::Done,
            0 => {
                let [.., file, offset, len] = request.context;
                Said::Next { file, offset, len }
            }
            failed => Said::Failed(failed),
        }
    }

    /// Runs a request over a file to its end. How many reads that took, and whether it was answered.
    pub(crate) fn request(&self, request: &mut Request, file: &[u8], begin: (u64, u64)) -> (u64, Said) {
        let (mut offset, mut len) = begin;
        for reads in 1..1000 {
            let end = offset.saturating_add(len).min(file.len() as u64);
            let data = file.get(offset as usize..end as usize).unwrap_or_default();
            request.context = [0, 0, 0, 0, 3, offset, reads, 0, 0, 0, 0];
            match self.ask(request, data) {
                Said::Next { file: 3, offset: next, len: next_len } => (offset, len) = (next, next_len),
                said => return (reads, said),
            }
        }
        panic!("the request does not end");
    }
}

impl Request {
    pub(crate) fn new() -> Self {
        Self { scratch: [0; SCRATCH_LEN], context: [0; 11] }
    }

    /// One whose scratch begins with numbers.
    pub(crate) fn of(words: &[u64]) -> Self {
        let mut request = Self::new();
        for (at, word) in words.iter().enumerate() {
            request.scratch[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        request
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.scratch[at * 8..at * 8 + 8].try_into().unwrap())
    }

    pub(crate) fn with_call(
        &mut self,
        data: &[u8],
        run: impl FnOnce(&mut Call<'_>) -> Outcome,
    ) -> (Outcome, u32) {
        let Self { scratch, context } = self;
        let mut call = Call { data, scratch, context, fuel: FUEL, table: &NoTable, log: &NoLog };
        let outcome = run(&mut call);
        (outcome, call.fuel)
    }
}
