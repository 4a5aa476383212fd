//! `cargo xtask ci`: everything CI does, in order, stopping at the first failure.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{apt, arm, command, fuzz, kernel, loom, miri, planted, readme, redis, sim, spdk, tidy};

/// Everything that CI does, in order.
///
/// Runs the steps one after the other and stops at the first that fails. At the end one line a step says ok,
/// SKIPPED (this machine lacks something, and nothing is known) or failed, with its seconds. `.ci/run` calls
/// this verb and nothing else, so a green run here is a green run there.
#[derive(Args)]
pub struct Arguments {
    /// Run only this step; give it several times for several steps.
    #[arg(long, value_name = "STEP", value_parser = PossibleValuesParser::new(STEPS.iter().map(|step| step.name)))]
    only: Vec<String>,
    /// List the steps, and what each is for, and run nothing.
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    purpose: &'static str,
    run: fn(&Repository) -> Result<Outcome>,
}

// Quick and often red first. The slow ones each build in a target folder of their own.
const STEPS: &[Step] = &[
    Step { name: "fmt", purpose: "rustfmt agrees with every file", run: format },
    Step { name: "clippy", purpose: "no lint of the workspace fires, in tests and benches too", run: clippy },
    Step { name: "test", purpose: "the test command that the README shows", run: test },
    Step {
        name: "doc",
        purpose: "the documentation builds, private items too, with every link",
        run: document,
    },
    Step {
        name: "tidy",
        purpose: "layering, unsafe, lengths, links: the rules of the house",
        run: tidy::run,
    },
    Step { name: "sim", purpose: "some seeds of every scenario of the simulator", run: sim::run },
    Step { name: "loom", purpose: "every interleaving of the lock-free code", run: loom::run_with_defaults },
    Step { name: "planted", purpose: "bugs put in on purpose are found", run: planted::run_in_ci },
    Step {
        name: "kernel",
        purpose: "an unmodified Linux kernel uses the NVMe/TCP target",
        run: kernel::run_with_defaults,
    },
    Step {
        name: "spdk",
        purpose: "SPDK's initiator uses the NVMe/TCP target, where SPDK is there",
        run: spdk::run_with_defaults,
    },
    Step {
        name: "redis",
        purpose: "Redis' own programs and a Python library use the key-value store",
        run: redis::run_with_defaults,
    },
    Step { name: "miri", purpose: "no undefined behaviour in the homes of unsafe", run: miri::run },
    Step {
        name: "fuzz",
        purpose: "the fuzz targets build, and find nothing in ten seconds",
        run: fuzz::run_briefly,
    },
    Step {
        name: "arm",
        purpose: "compiles for aarch64; rings and compiled programs hold there under qemu",
        run: arm::run_in_ci,
    },
];

fn format(repository: &Repository) -> Result<Outcome> {
    command::run(&mut command::cargo(repository, &["fmt", "--all", "--check"]))?;
    Ok(Outcome::Done)
}

fn clippy(repository: &Repository) -> Result<Outcome> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    command::run(&mut command::cargo(repository, &arguments))?;
    Ok(Outcome::Done)
}

/// What compiles the programs in C, to see whether the checked-in objects are stale: of the version that made them
/// (`crates/ob-ebpf/tests/recompile.rs`).
const COMPILER: &[&str] = &["clang-19", "llvm-strip-19"];
const COMPILER_PACKAGES: &[&str] = &["clang-19", "llvm-19"];

/// All tests are run, whether the compiler can be had or not: the few that want it say NOT TESTED by themselves.
fn test(repository: &Repository) -> Result<Outcome> {
    let has_compiler = || COMPILER.iter().all(|name| command::is_installed(name));
    if let Err(missing) = apt::install(repository, COMPILER_PACKAGES, has_compiler) {
        println!("\n!!!!!!!! NOT TESTED: whether objects of programs are stale: {missing} !!!!!!!!\n");
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
    let reports = run_steps(repository, &chosen);
    print!("\n{}", summary(&chosen, &reports));
    if let Some((step, error)) =
        chosen.iter().zip(reports).find_map(|(step, report)| Some((step, report.result.err()?)))
    {
        return Err(error).with_context(|| {
            format!("step `{0}` failed; repeat with `cargo xtask ci --only {0}`", step.name)
        });
    }
    Ok(Outcome::Done)
}

struct Report {
    result: Result<Outcome>,
    elapsed: Duration,
}

/// One report for each step that ran: the last one may be a failure, and then later steps have none.
fn run_steps(repository: &Repository, steps: &[&Step]) -> Vec<Report> {
    let mut reports = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!("\n==== {} ({} of {}): {} ====", step.name, index + 1, steps.len(), step.purpose);
        let start = Instant::now();
        let result = (step.run)(repository);
        let elapsed = start.elapsed();
        println!("==== {}: {} after {:.1} s ====", step.name, verdict(&result), elapsed.as_secs_f64());
        let failed = result.is_err();
        reports.push(Report { result, elapsed });
        if failed {
            break;
        }
    }
    reports
}

fn verdict(result: &Result<Outcome>) -> &'static str {
    match result {
        Ok(Outcome::Done) => "ok",
        Ok(Outcome::Skipped(_)) => "SKIPPED",
        Err(_) => "failed",
    }
}

fn summary(steps: &[&Step], reports: &[Report]) -> String {
    let mut text = String::new();
    for (index, step) in steps.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = match reports.get(index) {
            None => writeln!(text, "ci: {:<8} not run", step.name),
            Some(report) => {
                let reason = match &report.result {
                    Ok(Outcome::Skipped(reason)) => format!("  {reason}"),
                    Ok(Outcome::Done) | Err(_) => String::new(),
                };
                let seconds = report.elapsed.as_secs_f64();
                writeln!(text, "ci: {:<8} {:<8} {seconds:>7.1} s{reason}", step.name, verdict(&report.result))
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    const PASS: Step = Step { name: "pass", purpose: "", run: |_| Ok(Outcome::Done) };
    const SKIP: Step =
        Step { name: "skip", purpose: "", run: |_| Ok(Outcome::Skipped("no tool".to_owned())) };
    const FAIL: Step = Step { name: "fail", purpose: "", run: |_| bail!("as planned") };

    #[test]
    fn the_first_failure_stops_the_run_and_the_summary_tells_all() {
        let steps = [&PASS, &SKIP, &FAIL, &PASS];
        let reports = run_steps(&Repository::here().unwrap(), &steps);
        assert_eq!(reports.len(), 3, "the step after the failure must not run");
        let summary = summary(&steps, &reports);
        let lines: Vec<&str> = summary.lines().collect();
        assert!(lines[0].starts_with("ci: pass     ok"), "{summary}");
        assert!(lines[1].starts_with("ci: skip     SKIPPED") && lines[1].ends_with("no tool"), "{summary}");
        assert!(lines[2].starts_with("ci: fail     failed"), "{summary}");
        assert_eq!(lines[3], "ci: pass     not run");
    }
}
