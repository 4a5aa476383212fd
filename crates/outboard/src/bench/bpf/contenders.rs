//! What is measured in this process: the search in Rust, and the program as it runs on a card.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use ob_ebpf::call::{Call, NoLog, NoTable, Outcome};
use ob_ebpf::compiler::{self, Compiled};
use ob_ebpf::elf::Object;
use ob_ebpf::hooks::{STORAGE, STORAGE_SCRATCH_LEN};
use ob_ebpf::interpreter::{Interpreter, Observer, Value};
use ob_ebpf::isa::{self, Instruction, Operand, Register, Width};
use ob_ebpf::program::Program;
use ob_ebpf::verifier::{self, Accepted, Options};

use super::BenchFailure;
use super::native::{Search, search_of};
use super::workload::{Query, Workload};
use crate::accounting::thread_cpu;

/// Bytes of a scratch.
pub(super) const SCRATCH_LEN: usize = STORAGE_SCRATCH_LEN as usize;
/// More than any of the calls needs.
const FUEL: u32 = 1 << 20;
/// What a search answers with that could not be run.
const NOT_RUN: u64 = u64::MAX;

/// The contenders of this process.
pub(super) const OWN: [&str; 4] = ["native_rust", "compiled", "compiled_checked", "interpreter"];

/// The context of the hook `storage`, a word for each field.
#[derive(Clone, Copy, Default)]
pub(super) struct Context([u64; STORAGE.fields.len()]);

impl Context {
    /// What the program has said: done, or the next read.
    fn said(&self) -> &[u64] {
        self.0.get(7..).unwrap_or_default()
    }

    /// Ends the request.
    pub(super) fn finish(&mut self) {
        self.0[7] = 1;
    }

    /// Asks for the next read of the same file.
    pub(super) fn read_next(&mut self, offset: u64, len: u64) {
        (self.0[8], self.0[9], self.0[10]) = (self.0[4], offset, len);
    }
}

/// A request under way.
#[repr(C, align(64))]
struct Request {
    scratch: [u8; SCRATCH_LEN],
    context: Context,
}

impl Request {
    fn new() -> Self {
        Self { scratch: [0; SCRATCH_LEN], context: Context::default() }
    }

    fn ask(&mut self, query: &Query) {
        self.scratch[..query.len()].copy_from_slice(query);
    }

    fn run(&mut self, data: &[u8], run: impl FnOnce(&mut Call<'_>) -> Outcome) -> u64 {
        let Self { scratch, context } = self;
        let mut call =
            Call { data, scratch, context: &mut context.0, fuel: FUEL, table: &NoTable, log: &NoLog };
        run(&mut call).unwrap_or(NOT_RUN)
    }
}

/// A program and everything in this process that does what it does.
pub(super) struct Contenders {
    program: Arc<Program>,
    accepted: Accepted,
    search: Search,
    compiled: Compiled,
    checked: Compiled,
}

impl Contenders {
    pub(super) fn new(workload: &Workload) -> Result<Self, BenchFailure> {
        let program = Arc::new(program_of(workload)?);
        let accepted = verifier::verify(&program, &STORAGE, Options::default())
            .map_err(|refused| format!("the program of {} is refused: {refused}", workload.name))?;
        let compile = |keep_checks| compiler::compile(&accepted.verified, compiler::Options { keep_checks });
        let (compiled, checked) = (compile(false)?, compile(true)?);
        Ok(Self { program, search: search_of(workload.name), compiled, checked, accepted })
    }

    /// A number that tells what a contender makes of all queries.
    pub(super) fn digest(&self, contender: &str, workload: &Workload) -> u64 {
        let mut digest = Digest::new();
        self.with(contender, &workload.data, |call| {
            for query in &workload.queries {
                let mut request = Request::new();
                request.ask(query);
                digest.add(&call(&mut request).to_le_bytes());
                request.context.said().iter().for_each(|word| digest.add(&word.to_le_bytes()));
                digest.add(request.scratch.get(..workload.answer_len).unwrap_or_default());
            }
        });
        digest.0
    }

    /// Processor time of so many laps over all queries.
    pub(super) fn measure(&self, contender: &str, workload: &Workload, laps: u32) -> Duration {
        match contender {
            "native_rust" => {
                let search = black_box(self.search);
                laps_of(workload, laps, |request| {
                    search(&workload.data, &mut request.scratch, &mut request.context)
                })
            }
            "interpreter" => {
                let mut interpreter = Interpreter::new();
                laps_of(workload, laps, |request| {
                    request.run(&workload.data, |call| interpreter.run(&self.program, &STORAGE, call))
                })
            }
            _ => {
                let code = if contender == "compiled" { &self.compiled } else { &self.checked };
                laps_of(workload, laps, |request| request.run(&workload.data, |call| code.run(call)))
            }
        }
    }

    /// The share of accesses to memory that are not checked, of those that the queries make.
    pub(super) fn checks_elided(&self, workload: &Workload) -> f64 {
        let mut counting = Counting { accepted: &self.accepted, accesses: 0, checks: 0 };
        let mut interpreter = Interpreter::new();
        for query in &workload.queries {
            let mut request = Request::new();
            request.ask(query);
            request.run(&workload.data, |call| {
                interpreter.run_observed(&self.program, &STORAGE, call, &mut counting)
            });
        }
        1.0 - counting.checks as f64 / counting.accesses.max(1) as f64
    }

    fn with(&self, contender: &str, data: &[u8], run: impl FnOnce(&mut dyn FnMut(&mut Request) -> u64)) {
        let mut interpreter = Interpreter::new();
        match contender {
            "native_rust" => {
                run(&mut |request| (self.search)(data, &mut request.scratch, &mut request.context));
            }
            "interpreter" => {
                run(&mut |request| request.run(data, |call| interpreter.run(&self.program, &STORAGE, call)));
            }
            "compiled" => run(&mut |request| request.run(data, |call| self.compiled.run(call))),
            _ => run(&mut |request| request.run(data, |call| self.checked.run(call))),
        }
    }
}

/// Asks all queries so many times over. Everything but the call is the same for all, and small: a query is copied in.
fn laps_of(workload: &Workload, laps: u32, mut call: impl FnMut(&mut Request) -> u64) -> Duration {
    let mut request = Request::new();
    let before = thread_cpu();
    for _ in 0..laps {
        for query in &workload.queries {
            request.ask(query);
            black_box(call(&mut request));
        }
    }
    thread_cpu() - before
}

fn program_of(workload: &Workload) -> Result<Program, BenchFailure> {
    if workload.object.is_empty() {
        let nothing = Instruction::Move { width: Width::W64, to: Register::R0, from: Operand::Immediate(0) };
        let bytes = isa::encode(&[nothing, Instruction::Exit])?;
        return Ok(Program::from_bytes(&bytes)?);
    }
    Ok(Object::parse(workload.object)?.program(None)?)
}

/// Counts accesses that are made, and those of them that are checked.
struct Counting<'a> {
    accepted: &'a Accepted,
    accesses: u64,
    checks: u64,
}

impl Observer for Counting<'_> {
    fn before(&mut self, at: usize, _: &[Value; Register::COUNT], _: u32) {
        let variants = self.accepted.verified.variants();
        let range_end = (at + 1, Register::R0);
        let ranges =
            |variant: &ob_ebpf::verdict::Variant| variant.ranges.range((at, Register::R0)..range_end).count();
        // An instruction is counted for the variant in which it touches most; it is in one of them.
        let touches =
            variants.iter().map(|variant| usize::from(variant.accesses.contains_key(&at)) + ranges(variant));
        self.accesses += touches.max().unwrap_or(0) as u64;
        self.checks += self.accepted.checks.iter().filter(|check| check.at == at).count() as u64;
    }
}

/// FNV-1a of 64 bits: the peers, which are another process, compute it too.
struct Digest(u64);

impl Digest {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
