//! `cargo xtask fuzz`: parsers against hostile bytes.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

/// Fuzz one target of `fuzz/`, or all of them, as many at once as there are processors.
///
/// Needs a nightly toolchain; cargo-fuzz is installed when it is missing. A target begins with what `fuzz/seeds/` has for
/// it; what it has learnt stays in `fuzz/corpus/`, and an input that breaks it in `fuzz/artifacts/`, with the command that
/// repeats it in the output.
#[derive(Args)]
pub struct Arguments {
    /// The target; all targets when none is given. `cargo fuzz list` names them.
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// How long to fuzz each target.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
}

/// Fuzzes; a target ends at the first input that breaks it.
///
/// # Errors
/// When cargo-fuzz cannot be installed, a target does not build, or an input breaks it.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    if !repository.root().join("fuzz/Cargo.toml").is_file() {
        bail!("there is no fuzz/Cargo.toml, so there is nothing to fuzz");
    }
    install(repository)?;
    let known = targets(repository)?;
    let chosen = match &arguments.target {
        None => known,
        Some(target) if known.contains(target) => vec![target.clone()],
        Some(target) => bail!("no fuzz target is called `{target}`; there are: {}", known.join(", ")),
    };
    if let [target] = &chosen[..] {
        command::run(&mut fuzz(repository, target, RELEASE, &[seconds(arguments.seconds)])?)?;
    } else {
        run_together(repository, &chosen, RELEASE, &[seconds(arguments.seconds)])?;
    }
    Ok(Outcome::Done)
}

/// Builds all targets, then runs the chosen ones: each uses one processor, and finds what was built.
fn run_together(
    repository: &Repository,
    chosen: &[String],
    profile: &[&str],
    limits: &[String],
) -> Result<()> {
    command::run(command::cargo(repository, &["+nightly", "fuzz", "build"]).args(profile))?;
    let run = |target: &String| command::run_quietly(&mut fuzz(repository, target, profile, limits)?);
    command::side_by_side(chosen, run)?;
    Ok(())
}

fn install(repository: &Repository) -> Result<()> {
    if !command::succeeds(&mut command::cargo(repository, &["fuzz", "--version"])) {
        // It only starts other programs: to optimise it takes longer than it ever runs.
        command::run(&mut command::cargo(repository, &["install", "cargo-fuzz", "--locked", "--debug"]))?;
    }
    Ok(())
}

/// libFuzzer's option for how long a target is fuzzed.
fn seconds(seconds: u64) -> String {
    format!("-max_total_time={seconds}")
}

fn fuzz(repository: &Repository, target: &str, profile: &[&str], limits: &[String]) -> Result<Command> {
    let mut fuzz = command::cargo(repository, &["+nightly", "fuzz", "run"]);
    fuzz.args(profile).arg(target);
    let seeds = repository.root().join("fuzz/seeds").join(target);
    if seeds.is_dir() {
        // What is learnt goes to the first folder, so that the seeds stay as they are.
        let learnt = repository.root().join("fuzz/corpus").join(target);
        fs::create_dir_all(&learnt)?;
        fuzz.args([learnt, seeds]);
    }
    fuzz.arg("--").args(limits);
    Ok(fuzz)
}

/// Inputs that a target has when it is only to be seen that it builds and runs, and the seconds in which the slow ones have fewer.
const INPUTS_BRIEFLY: u64 = 5_000;
const SECONDS_BRIEFLY: u64 = 3;

// As cargo-fuzz calls the profiles of `fuzz/Cargo.toml`.
const RELEASE: &[&str] = &["--release"];
// Without the sanitizer of addresses, which doubles what is compiled: Miri looks at the memory that is raw.
const QUICKLY_BUILT: &[&str] = &["--dev", "--sanitizer", "none"];

/// Some inputs for each target: enough to see that they build and run.
///
/// # Errors
/// As [`run`].
pub fn run_briefly(repository: &Repository) -> Result<Outcome> {
    let has = |program: &str| command::succeeds(Command::new(program).arg("--version"));
    if !has("c++") || !command::succeeds(&mut command::cargo(repository, &["+nightly", "--version"])) {
        return Ok(Outcome::skipped(
            "fuzz",
            "a nightly toolchain and a C++ compiler are needed, for libFuzzer",
        ));
    }
    install(repository)?;
    let limits = [format!("-runs={INPUTS_BRIEFLY}"), seconds(SECONDS_BRIEFLY)];
    run_together(repository, &targets(repository)?, QUICKLY_BUILT, &limits)?;
    Ok(Outcome::Done)
}

fn targets(repository: &Repository) -> Result<Vec<String>> {
    let output = command::capture(&mut command::cargo(repository, &["+nightly", "fuzz", "list"]))?;
    if !output.status.success() {
        bail!("`cargo +nightly fuzz list` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let list = String::from_utf8(output.stdout).context("`cargo fuzz list` did not print text")?;
    Ok(list.lines().map(|line| line.trim().to_owned()).filter(|name| !name.is_empty()).collect())
}
