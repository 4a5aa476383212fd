//! Runs a case in every way there is: interpreted, and compiled with checks of what is proven and without.

use std::sync::Arc;

use ob_ebpf::call::{ALIGNMENT, Call, NoLog, NoTable, Outcome};
use ob_ebpf::compiler::{self, compile};
use ob_ebpf::interpreter::Interpreter;
use ob_ebpf::program::Program;
use ob_ebpf::verifier::{self, verify};
use ob_ebpf::world::World;

use crate::case::{Case, Expected};

const FUEL: u32 = 10_000_000;

/// What was done with a case that is as it should be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// It is no program, as it should be.
    Nowhere,
    /// It was interpreted and stopped, and the verifier refuses it.
    StoppedAndRefused,
    /// It was interpreted and gave its result, but the verifier refuses it: for this reason.
    OnlyInterpreted(String),
    /// It was interpreted, and compiled twice, and all three did the same.
    Everywhere,
}

/// How many cases were run where.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) nowhere: usize,
    pub(crate) stopped_and_refused: usize,
    /// The names of the cases, and why.
    pub(crate) only_interpreted: Vec<(String, String)>,
    pub(crate) everywhere: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, name: &str, ran: Ran) {
        match ran {
            Ran::Nowhere => self.nowhere += 1,
            Ran::StoppedAndRefused => self.stopped_and_refused += 1,
            Ran::OnlyInterpreted(why) => self.only_interpreted.push((name.into(), why)),
            Ran::Everywhere => self.everywhere += 1,
        }
    }

    /// Says it.
    pub(crate) fn print(&self, whose: &str) {
        let Self { nowhere, stopped_and_refused, only_interpreted, everywhere } = self;
        println!(
            "{whose}: {everywhere} do the same interpreted, compiled, and compiled with all checks; {} are refused by the \
             verifier and only interpreted; {stopped_and_refused} are stopped by the interpreter and refused by the verifier, as \
             they should; {nowhere} are no programs, as they should",
            only_interpreted.len()
        );
        for (name, why) in only_interpreted {
            println!("  {name}: only interpreted: {why}");
        }
    }
}

/// What a run has left behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct After {
    pub(crate) outcome: Outcome,
    fuel: u32,
    memory: Vec<u8>,
}

/// Runs a program with a copy of memory.
fn run(memory: &[u8], way: impl FnOnce(&mut Call<'_>) -> Outcome) -> After {
    let mut room = vec![0; memory.len() + ALIGNMENT];
    let begin = room.as_ptr().align_offset(ALIGNMENT);
    let scratch = &mut room[begin..begin + memory.len()];
    scratch.copy_from_slice(memory);
    let mut call = Call { data: &[], scratch, context: &mut [], fuel: FUEL, table: &NoTable, log: &NoLog };
    let outcome = way(&mut call);
    After { outcome, fuel: call.fuel, memory: call.scratch.to_vec() }
}

/// Runs a program in every way. What came of it, and why the verifier refuses it, if it does.
pub(crate) fn run_everywhere(program: Program, memory: &[u8]) -> Result<(After, Result<(), String>), String> {
    let (program, world) = (Arc::new(program), World::raw(memory.len() as u32));
    let after = run(memory, |call| Interpreter::new().run(&program, &world, call));
    let accepted = match verify(&program, &world, verifier::Options::default()) {
        Ok(accepted) => accepted,
        Err(refused) => {
            return Ok((after, Err(format!("{} at {}", refused.why, refused.instruction))));
        }
    };
    for keep_checks in [false, true] {
        let compiled = compile(&accepted.verified, compiler::Options { keep_checks });
        let compiled = compiled.map_err(|error| format!("it does not compile: {error}"))?;
        let found = run(memory, |call| compiled.run(call));
        if found != after {
            let kept = if keep_checks { "with all checks" } else { "without checks of what is proven" };
            return Err(format!("interpreted it does {after:x?}, but compiled {kept} {found:x?}"));
        }
    }
    Ok((after, Ok(())))
}

/// Runs a case in every way; or why it is not as it should be.
pub(crate) fn check(case: &Case) -> Result<Ran, String> {
    let program = match (case.program(), &case.expected) {
        (Ok(program), _) => program,
        (Err(error), Expected::Error(said)) if error.contains(said) => return Ok(Ran::Nowhere),
        (Err(error), expected) => return Err(format!("expected {expected:x?}, got {error}")),
    };
    let (after, accepted) = run_everywhere(program, &case.memory)?;
    match (&case.expected, &after.outcome) {
        (Expected::Result(expected), Ok(result)) if expected == result => {}
        (Expected::Error(said), Err(error)) if error.to_string().contains(said) => {}
        (expected, outcome) => return Err(format!("expected {expected:x?}, got {outcome:x?}")),
    }
    if let Some(memory) = &case.memory_after
        && memory != &after.memory
    {
        return Err(format!("expected memory {memory:02x?}, got {:02x?}", after.memory));
    }
    Ok(match (accepted, after.outcome) {
        (Ok(()), _) => Ran::Everywhere,
        (Err(_), Err(_)) => Ran::StoppedAndRefused,
        (Err(why), Ok(_)) => Ran::OnlyInterpreted(why),
    })
}
