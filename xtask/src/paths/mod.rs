//! `cargo xtask paths`: what a request costs a half, in instructions, system calls, turns and allocations.
//!
//! ```text
//!   a card (and a host) ◀── requests of one kind ── outboard bench-path
//!     under callgrind, then under strace, each for few requests and for many ─▶ the difference, a request
//! ```
//!
//! The card does not poll here (`spin = 0`), and one request follows the other: the counts are those of the code, and not of the
//! machine. Starting and stopping cost the same each time, and fall out of the difference.

mod callgrind;
mod halves;
mod locked;
mod source;
mod strace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{command, program};
use callgrind::Profile;
use halves::{Counter, run_case};

/// Count what a request costs the card: instructions, turns of its loop, allocations and system calls, for each of the ways that
/// docs/paths.md follows.
///
/// Needs valgrind, strace and objdump, and builds outboard in release mode unless a program is given. The instructions are those of user code in
/// all threads of the half. Figures of one program differ by some percent from run to run, because a half may find two things to
/// do at once or one after the other; where a host attaches, by a tenth and, with few requests, by more.
#[derive(Args)]
pub struct Arguments {
    /// The program whose halves are counted, such as an older one.
    #[arg(long, value_name = "PROGRAM")]
    outboard: Option<PathBuf>,
    /// The program that asks; the one that is counted, without it.
    #[arg(long, value_name = "PROGRAM")]
    load: Option<PathBuf>,
    /// Only the cases whose names contain this.
    #[arg(long, default_value = "")]
    only: String,
    /// Count the host's half (of `read`, the application) and not the card; system calls only.
    #[arg(long)]
    host: bool,
    /// Requests of the longer run; the shorter one has a fifth of them.
    #[arg(long, default_value_t = 2000)]
    requests: u64,
    /// Functions to show for each case, those with the most instructions of their own first: as they were compiled, and as they
    /// are written in this repository, which means something for a program that was built from it.
    #[arg(long, default_value_t = 12)]
    functions: usize,
}

/// A way that a request goes.
struct Case {
    name: &'static str,
    /// What `outboard bench-path` is to ask for.
    kind: &'static str,
    has_host: bool,
    /// The configuration, beside what is the same for all.
    config: &'static str,
}

const EVERY_SECOND: &str = "[kv]\nlisten = \"127.0.0.1:0\"\ndurability = \"everysec\"\n";
const ALWAYS: &str = "[kv]\nlisten = \"127.0.0.1:0\"\ndurability = \"always\"\n";
const NO_STORE: &str = "[kv]\nenabled = false\n";

const CASES: &[Case] = &[
    Case { name: "get", kind: "get", has_host: true, config: EVERY_SECOND },
    Case { name: "set.everysec", kind: "set", has_host: true, config: EVERY_SECOND },
    Case { name: "set.always", kind: "set", has_host: true, config: ALWAYS },
    Case { name: "write.memory.capsule", kind: "write-in-capsule", has_host: false, config: NO_STORE },
    Case { name: "write.memory.solicited", kind: "write-solicited", has_host: false, config: NO_STORE },
    Case { name: "write.file.capsule", kind: "write-in-capsule", has_host: false, config: NO_STORE },
    Case { name: "write.file.solicited", kind: "write-solicited", has_host: false, config: NO_STORE },
    Case { name: "read", kind: "read", has_host: false, config: NO_STORE },
];

/// What one request costs.
#[derive(Default)]
struct Costs {
    profile: Option<Profile>,
    calls: BTreeMap<String, f64>,
}

/// Counts, and shows what came of it.
///
/// # Errors
/// When a tool is missing, or a half does not run.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    for tool in ["valgrind", "strace", "objdump"] {
        if !command::is_installed(tool) {
            bail!(
                "`{tool}` is not installed; `apt-get install valgrind strace binutils` has all that is needed"
            );
        }
    }
    let programs = Programs::find(repository, arguments)?;
    let cases: Vec<&Case> = CASES.iter().filter(|case| case.name.contains(&arguments.only)).collect();
    let mut all = Vec::new();
    for case in cases {
        if arguments.host && !case.has_host && case.kind != "read" {
            continue;
        }
        let costs = count(case, &programs, arguments)
            .with_context(|| format!("the case `{}` was not counted", case.name))?;
        show(repository, case, &costs, arguments.functions);
        all.push((case, costs));
    }
    summarize(&all);
    Ok(Outcome::Done)
}

/// The programs that run.
struct Programs {
    outboard: PathBuf,
    load: PathBuf,
    /// Where the first one has instructions that lock.
    locked: BTreeSet<u64>,
}

impl Programs {
    fn find(repository: &Repository, arguments: &Arguments) -> Result<Self> {
        let outboard = match &arguments.outboard {
            Some(program) => program.clone(),
            None => program::released(repository)?,
        };
        let outboard = outboard.canonicalize().with_context(|| format!("no `{}`", outboard.display()))?;
        let load = arguments.load.clone().unwrap_or_else(|| outboard.clone());
        let locked = if arguments.host { BTreeSet::new() } else { locked::addresses(&outboard)? };
        Ok(Self { outboard, load, locked })
    }

    fn profile(&self, text: &str) -> Profile {
        Profile::parse(text, &self.outboard.to_string_lossy(), &self.locked)
    }
}

/// Runs a case for few requests and for many, once for each tool.
fn count(case: &Case, programs: &Programs, arguments: &Arguments) -> Result<Costs> {
    let (few, many) = ((arguments.requests / 5).max(1), arguments.requests.max(2));
    let more = (many - few) as f64;
    let run = |counter, requests| run_case(case, programs, counter, arguments.host, requests);
    let calls = |requests| run(Counter::Strace, requests).and_then(|text| strace::parse(&text));
    let calls = strace::difference(&calls(few)?, &calls(many)?, more);
    let profile = if arguments.host {
        // Callgrind does not know how a host sleeps.
        None
    } else {
        let profile = |requests| run(Counter::Callgrind, requests).map(|text| programs.profile(&text));
        Some(profile(many)?.without(&profile(few)?))
    };
    let profile = profile.map(|profile| profile.divided_by(more));
    Ok(Costs { profile, calls })
}

fn show(repository: &Repository, case: &Case, costs: &Costs, functions: usize) {
    println!("\n{}", case.name);
    for (name, count) in costs.calls.iter().filter(|(_, count)| **count >= 0.01) {
        println!("  {count:8.2}  {name}");
    }
    for (name, cost) in costs.profile.iter().flat_map(|profile| profile.most(functions)) {
        println!("  {:8.0} own, {:8.0} in all, {:6.2} times  {name}", cost.own, cost.whole, cost.calls);
    }
    let Some(profile) = &costs.profile else { return };
    let mut written: Vec<_> = source::by_function(repository, profile.lines()).into_iter().collect();
    written.sort_by(|(_, one), (_, other)| other.instructions.total_cmp(&one.instructions));
    for ((file, function), cost) in written.into_iter().take(functions) {
        println!(
            "  {:8.0} of lines of `{function}`, {:5.2} of them lock, {file}",
            cost.instructions, cost.locked
        );
    }
}

fn summarize(all: &[(&Case, Costs)]) {
    println!("\n| a request of | instructions | of them lock | turns | allocations | system calls |");
    println!("|---|---|---|---|---|---|");
    for (case, costs) in all {
        let calls: f64 = costs.calls.values().sum();
        match &costs.profile {
            Some(profile) => println!(
                "| {} | {:.0} | {:.1} | {:.2} | {:.2} | {calls:.2} |",
                case.name,
                profile.instructions(),
                profile.locked(),
                profile.turns(),
                profile.allocations()
            ),
            None => println!("| {} | – | – | – | – | {calls:.2} |", case.name),
        }
    }
}
