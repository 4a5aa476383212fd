//! `cargo xtask ci`: everything CI does, in order, stopping at the first failure.

use std::fmt::Write as _;
use std::fs;
use std::process::{self, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{apt, arm, command, etcd, fuzz, kernel, loom, miri, peers, planted, readme, redis, sim, spdk};

/// Everything that CI does, in order.
///
/// Runs the steps one after the other, and beside them, at the lowest priority, those that only compute; stops at the first that fails. At the end
/// one line a step says ok, SKIPPED (this machine lacks something, and nothing is known) or failed, with its seconds. `.ci/run` calls
/// this verb and nothing else, so a green run here is a green run there.
#[derive(Args)]
pub struct Arguments {
    /// Run only this step; give it several times for several steps.
    #[arg(long, value_name = "STEP", value_parser = PossibleValuesParser::new(STEPS.iter().map(|step| step.name)))]
    only: Vec<String>,
    /// Run also those steps of whose subject nothing has changed in the last days of the history.
    #[arg(long)]
    all: bool,
    /// List the steps, and what each is for, and run nothing.
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    purpose: &'static str,
    run: fn(&Repository) -> Result<Outcome>,
    /// It only computes, in a target folder of its own: it is run beside the others, in the time of the processors that they leave.
    is_aside: bool,
    /// What it checks, if that is a part of the repository: where nothing of it has changed for [`DAYS_WATCHED`], it has been run on it already.
    subject: &'static [&'static str],
}

impl Step {
    const fn new(name: &'static str, purpose: &'static str, run: fn(&Repository) -> Result<Outcome>) -> Self {
        Self { name, purpose, run, is_aside: false, subject: &[] }
    }

    const fn of(mut self, subject: &'static [&'static str]) -> Self {
        self.subject = subject;
        self
    }

    /// Since when nothing has changed of what it checks, if that is long ago.
    fn unchanged(&self, repository: &Repository) -> Option<Outcome> {
        if self.subject.is_empty() {
            return None;
        }
        let days = repository.unchanged_for(self.subject)?.as_secs() / SECONDS_A_DAY;
        let reason = format!("nothing of it has changed for {days} days of the history: `--all` runs it");
        (days >= DAYS_WATCHED).then_some(Outcome::Unchanged(reason))
    }

    const fn aside(mut self) -> Self {
        self.is_aside = true;
        self
    }
}

const SECONDS_A_DAY: u64 = 24 * 60 * 60;

/// Steps that check a part of the repository are left out where that part is older than this, counted back from the newest commit. Every
/// change is tried by all that lands within these days.
const DAYS_WATCHED: u64 = 3;

/// Rings, table, and what they are made of: what loom and Miri run.
const SHARED_MEMORY: &[&str] = &[
    "crates/ob-plant",
    "crates/ob-memory",
    "crates/ob-core",
    "crates/ob-wire-link",
    "crates/ob-ring",
    "crates/ob-table",
    "xtask/src/loom.rs",
    "xtask/src/miri.rs",
];

/// What depends on the processor: rings, and compiled programs.
const OF_THE_PROCESSOR: &[&str] = &[
    "crates/ob-plant",
    "crates/ob-memory",
    "crates/ob-core",
    "crates/ob-wire-link",
    "crates/ob-ring",
    "crates/ob-ebpf",
    "xtask/src/arm.rs",
];

// Quick and often red first. What is run aside begins when the steps in front of it are over.
const STEPS: &[Step] = &[
    Step::new("fmt", "rustfmt agrees with every file", format),
    Step::new("clippy", "lock files are up to date, and no lint fires, in tests and benches too", clippy),
    Step::new("loom", "every interleaving of rings and table", loom::run_in_ci).aside().of(SHARED_MEMORY),
    Step::new(
        "fuzz",
        "the fuzz targets build, and find nothing in 5,000 inputs or three seconds",
        fuzz::run_briefly,
    )
    .aside(),
    Step::new("arm", "compiles for aarch64, the cards' processor", arm::check).aside(),
    Step::new("emulate", "rings and compiled programs hold on aarch64, under qemu", arm::emulate)
        .aside()
        .of(OF_THE_PROCESSOR),
    Step::new("miri", "no undefined behaviour in ob-memory, ob-ring and ob-table", miri::run)
        .aside()
        .of(SHARED_MEMORY),
    Step::new("test", "the test command that the README shows", test),
    Step::new("doc", "the documentation builds, private items too, with every link", document),
    Step::new("sim", "some seeds of every scenario of the simulator", sim::run),
    Step::new(
        "planted",
        "bugs put in on purpose are found by tests that are to find some",
        planted::run_in_ci,
    ),
    Step::new(
        "spdk",
        "SPDK's initiator uses the NVMe/TCP target, where SPDK is there",
        spdk::run_with_defaults,
    ),
    Step::new(
        "redis",
        "Redis' own programs and a Python library use the key-value store",
        redis::run_with_defaults,
    ),
    Step::new(
        "etcd",
        "the metadata store over a real etcd does as the one in memory, and one of two tiers over it may be killed",
        etcd::run,
    ),
    Step::new("kernel", "an unmodified Linux kernel uses the NVMe/TCP target", kernel::run_with_defaults),
];

fn format(repository: &Repository) -> Result<Outcome> {
    command::run(&mut command::cargo(repository, &["fmt", "--all", "--check"]))?;
    Ok(Outcome::Done)
}

/// What all steps together should take on two cores, so that people run them.
const MINUTES_WANTED: f64 = 30.0;

/// Packages that are no part of the workspace, with lock files of their own, which nobody would notice to be out of date.
const PACKAGES_APART: &[&str] = &["fuzz/Cargo.toml", "bench/programs/Cargo.toml"];

fn clippy(repository: &Repository) -> Result<Outcome> {
    for manifest in PACKAGES_APART {
        let arguments = ["update", "--workspace", "--locked", "--manifest-path", manifest];
        command::run(&mut command::cargo(repository, &arguments))?;
    }
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    command::run(&mut command::cargo(repository, &arguments))?;
    Ok(Outcome::Done)
}

/// What compiles the programs in C, to see whether the checked-in objects are stale: of the version that made them
/// (`crates/ob-ebpf/tests/recompile.rs`).
const COMPILER: &[&str] = &["clang-19", "llvm-strip-19"];
const COMPILER_PACKAGES: &[&str] = &["clang-19", "llvm-19"];

/// What makes file systems, on which extents are looked for (`crates/ob-passthrough/tests/mounted.rs`).
const FILE_SYSTEMS: &[&str] = &["mkfs.ext4", "mkfs.xfs"];
const FILE_SYSTEM_PACKAGES: &[&str] = &["e2fsprogs", "xfsprogs"];

/// All tests are run, whether compiler, RocksDB and file systems can be had or not: the few that want them say NOT TESTED by themselves.
fn test(repository: &Repository) -> Result<Outcome> {
    let has_compiler = || COMPILER.iter().all(|name| command::is_installed(name));
    if let Err(missing) = apt::install(repository, COMPILER_PACKAGES, has_compiler) {
        println!("\n!!!!!!!! NOT TESTED: whether objects of programs are stale: {missing} !!!!!!!!\n");
    }
    if let Err(missing) = peers::install_rocksdb(repository) {
        println!("\n!!!!!!!! NOT TESTED: whether RocksDB answers as its reader does: {missing} !!!!!!!!\n");
    }
    let has_file_systems = || FILE_SYSTEMS.iter().all(|name| command::is_installed(name));
    if let Err(missing) = apt::install(repository, FILE_SYSTEM_PACKAGES, has_file_systems) {
        println!(
            "\n!!!!!!!! NOT TESTED: whether extents are where file systems put them: {missing} !!!!!!!!\n"
        );
    }
    readme::run_test_command(repository)
}

fn document(repository: &Repository) -> Result<Outcome> {
    let arguments = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    command::run(command::cargo(repository, &arguments).env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(Outcome::Done)
}

/// Runs the chosen steps, all of them by default.
///
/// # Errors
/// When a step fails; the steps after it do not run.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    if arguments.list {
        for step in STEPS {
            println!("{:<8} {}", step.name, step.purpose);
        }
        return Ok(Outcome::Done);
    }
    let is_chosen =
        |step: &&Step| arguments.only.is_empty() || arguments.only.iter().any(|name| name == step.name);
    let chosen: Vec<&Step> = STEPS.iter().filter(is_chosen).collect();
    let start = Instant::now();
    let is_all = arguments.all || !arguments.only.is_empty();
    let unchanged = |step: &&Step| if is_all { None } else { step.unchanged(repository) };
    let left_out: Vec<Option<Outcome>> = chosen.iter().map(unchanged).collect();
    let reports = run_steps(repository, &chosen, left_out);
    print!("\n{}", summary(&chosen, &reports));
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    match processor_minutes() {
        Some(processors) => {
            println!("ci: in all {minutes:.1} minutes, and {processors:.1} of processors' time");
        }
        None => println!("ci: in all {minutes:.1} minutes"),
    }
    if minutes > MINUTES_WANTED {
        println!(
            "ci: TOO LONG: {MINUTES_WANTED} minutes are what two cores that do nothing else should take"
        );
    }
    let error_of = |report: Option<Report>| report?.result.err();
    if let Some((step, error)) =
        chosen.iter().zip(reports).find_map(|(step, report)| Some((step, error_of(report)?)))
    {
        return Err(error).with_context(|| {
            format!("step `{0}` failed; repeat with `cargo xtask ci --only {0}`", step.name)
        });
    }
    Ok(Outcome::Done)
}

/// What this process, and all that it has started and waited for, took of processors.
fn processor_minutes() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name come state and, ten fields on, the times by oneself and by children, in user mode and in the kernel.
    let times = text.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: f64 = times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    // Linux shows processes a hundred ticks a second, whatever it counts itself.
    Some(ticks / 100.0 / 60.0)
}

struct Report {
    result: Result<Outcome>,
    elapsed: Duration,
}

/// A report for each step that ran, or was left out. After a failure no further one is begun.
fn run_steps(
    repository: &Repository,
    steps: &[&Step],
    left_out: Vec<Option<Outcome>>,
) -> Vec<Option<Report>> {
    let report = |outcome| Report { result: Ok(outcome), elapsed: Duration::ZERO };
    let mut reports: Vec<Option<Report>> = left_out.into_iter().map(|outcome| outcome.map(report)).collect();
    let has_failed = AtomicBool::new(false);
    let goes_on = || !has_failed.load(Ordering::Relaxed);
    let note = |report: &Report| has_failed.fetch_or(report.result.is_err(), Ordering::Relaxed);
    thread::scope(|scope| {
        let (to_aside, aside) = mpsc::channel::<usize>();
        let (sender, from_aside) = mpsc::channel();
        scope.spawn(move || {
            for at in aside.into_iter().take_while(|_| goes_on()) {
                let done = run_aside(repository, steps[at]);
                note(&done.0);
                // It is taken for as long as this thread runs.
                let _ = sender.send((at, done));
            }
        });
        let show = |at: usize, (report, output): (Report, String)| {
            let (name, number, count) = (steps[at].name, at + 1, steps.len());
            println!("\n==== {name} ({number} of {count}), beside the others ====\n{output}");
            Some(report)
        };
        let are_all_aside = steps.iter().all(|step| step.is_aside);
        for at in (0..steps.len()).take_while(|_| goes_on()) {
            if reports[at].is_some() {
                continue;
            }
            if steps[at].is_aside && !are_all_aside {
                // Nobody hears it only when a step has failed.
                let _ = to_aside.send(at);
                continue;
            }
            let report = run_step(repository, steps[at], at + 1, steps.len());
            note(&report);
            reports[at] = Some(report);
            for (at, done) in from_aside.try_iter() {
                reports[at] = show(at, done);
            }
        }
        drop(to_aside);
        for (at, done) in from_aside {
            reports[at] = show(at, done);
        }
    });
    reports
}

fn run_step(repository: &Repository, step: &Step, number: usize, count: usize) -> Report {
    println!("\n==== {} ({number} of {count}): {} ====", step.name, step.purpose);
    let start = Instant::now();
    let result = (step.run)(repository);
    let elapsed = start.elapsed();
    println!("==== {}: {} after {:.1} s ====", step.name, verdict(&result), elapsed.as_secs_f64());
    Report { result, elapsed }
}

/// Runs a step as a program of its own, which has what the others leave of the processors; what it prints is kept.
fn run_aside(repository: &Repository, step: &Step) -> (Report, String) {
    let start = Instant::now();
    // What runs now, whatever is at its path by then: a step may have built xtask anew, with other features.
    let this_program = format!("/proc/{}/exe", process::id());
    let arguments = ["-n", "19", &this_program, "ci", "--only", step.name];
    let run =
        || -> Result<Output> { command::capture(&mut command::program(repository, "nice", &arguments)) };
    match run() {
        Err(error) => (Report { result: Err(error), elapsed: start.elapsed() }, String::new()),
        Ok(output) => {
            let text = [output.stderr, output.stdout].concat();
            let text = String::from_utf8_lossy(&text).into_owned();
            let result = match (output.status.success(), skipped_for(step, &text)) {
                (false, _) => Err(anyhow!("it ended with {}; what it printed is above", output.status)),
                (true, Some(reason)) => Ok(Outcome::Skipped(reason.to_owned())),
                (true, None) => Ok(Outcome::Done),
            };
            (Report { result, elapsed: start.elapsed() }, text)
        }
    }
}

/// What the summary of another run says a step was skipped for.
fn skipped_for<'a>(step: &Step, summary: &'a str) -> Option<&'a str> {
    let begin = format!("{} SKIPPED", line_of(step));
    let line = summary.lines().rev().find_map(|line| line.strip_prefix(begin.as_str()))?;
    Some(line.split_once(" s  ").map_or("", |(_, reason)| reason))
}

/// How a step's line of the summary begins.
fn line_of(step: &Step) -> String {
    format!("ci: {:<8}", step.name)
}

fn verdict(result: &Result<Outcome>) -> &'static str {
    match result {
        Ok(Outcome::Done) => "ok",
        Ok(Outcome::Skipped(_)) => "SKIPPED",
        Ok(Outcome::Unchanged(_)) => "left out",
        Err(_) => "failed",
    }
}

fn summary(steps: &[&Step], reports: &[Option<Report>]) -> String {
    let mut text = String::new();
    for (step, report) in steps.iter().zip(reports) {
        // Writing to a string cannot fail.
        let _ = match report {
            None => writeln!(text, "{} not run", line_of(step)),
            Some(report) => {
                let reason = match &report.result {
                    Ok(Outcome::Skipped(reason) | Outcome::Unchanged(reason)) => format!("  {reason}"),
                    Ok(Outcome::Done) | Err(_) => String::new(),
                };
                let seconds = report.elapsed.as_secs_f64();
                writeln!(text, "{} {:<8} {seconds:>7.1} s{reason}", line_of(step), verdict(&report.result))
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    const PASS: Step = Step::new("pass", "", |_| Ok(Outcome::Done));
    const SKIP: Step = Step::new("skip", "", |_| Ok(Outcome::Skipped("no tool".to_owned())));
    const FAIL: Step = Step::new("fail", "", |_| bail!("as planned"));

    #[test]
    fn the_first_failure_stops_the_run_and_the_summary_tells_all() {
        let old = Step::new("old", "", |_| bail!("it must not run"));
        let steps = [&PASS, &SKIP, &old, &FAIL, &PASS];
        let left_out = [None, None, Some(Outcome::Unchanged("since May".to_owned())), None, None];
        let reports = run_steps(&Repository::here().unwrap(), &steps, left_out.into());
        assert!(reports[4].is_none(), "the step after the failure must not run");
        let summary = summary(&steps, &reports);
        let lines: Vec<&str> = summary.lines().collect();
        assert!(lines[0].starts_with("ci: pass     ok"), "{summary}");
        assert!(lines[1].starts_with("ci: skip     SKIPPED") && lines[1].ends_with("no tool"), "{summary}");
        assert!(
            lines[2].starts_with("ci: old      left out") && lines[2].ends_with("since May"),
            "{summary}"
        );
        assert!(lines[3].starts_with("ci: fail     failed"), "{summary}");
        assert_eq!(lines[4], "ci: pass     not run");
        assert_eq!(skipped_for(&SKIP, &summary), Some("no tool"));
        assert_eq!(skipped_for(&PASS, &summary), None);
    }
}
