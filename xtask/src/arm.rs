//! `cargo xtask arm`: the cards' processors. Everything but the chores builds for aarch64, and rings and compiled programs hold there.

use std::env::consts::ARCH;
use std::process::Command;

use anyhow::Result;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{apt, command};

/// One line of help.
pub const ABOUT: &str =
    "Build for aarch64, the cards' processor, and test rings and compiled programs there under qemu";

/// The whole help.
pub const LONG_ABOUT: &str = "\
Build for aarch64, the cards' processor, and test rings and compiled programs there under qemu.

All that runs on a card or beside it is cross-built; the crates without system calls run their tests under qemu's user mode. Needs the
Rust target aarch64-unknown-linux-gnu (added through rustup), a cross linker with its C library, and qemu-user (both
installed through apt-get when they are missing and we are root). Where that is impossible the verb says SKIPPED,
loudly, and succeeds.";

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
const PACKAGES_OF_THE_SYSTEM: &[&str] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];

// Pure crates and rings: qemu's user mode does not know io_uring.
const RINGS: &[&str] = &[
    "test",
    "--package",
    "ob-memory",
    "--package",
    "ob-core",
    "--package",
    "ob-wire-link",
    "--package",
    "ob-ring",
];

// Of programs, compiled code and the vectors.
const PROGRAMS: &[&str] = &["test", "--package", "ob-ebpf", "--lib", "--test", "conformance"];

// The same without verifier and interpreter, which are the same on every processor, and take minutes in an emulator.
const COMPILED: &[&str] = &["test", "--package", "ob-ebpf", "--lib", "--", "compiler::"];
const VECTORS: &[&str] = &["test", "--package", "ob-ebpf", "--test", "conformance"];

/// Builds everything, tests what qemu can run.
///
/// # Errors
/// When the build or a test fails.
pub fn run(repository: &Repository) -> Result<Outcome> {
    if let Some(outcome) = lacks_something(repository, "arm") {
        return Ok(outcome);
    }
    build(repository, "build")?;
    test(repository, &[RINGS, PROGRAMS], &[])?;
    Ok(Outcome::Done)
}

/// Compiles everything, and links nothing: what is not run here need not be linked, for that takes as long as all the rest.
///
/// # Errors
/// When something does not compile.
pub fn check(repository: &Repository) -> Result<Outcome> {
    if let Some(outcome) = lacks_something(repository, "arm") {
        return Ok(outcome);
    }
    build(repository, "check")?;
    Ok(Outcome::Done)
}

/// The tests of [`run`], but of programs only those that depend on the processor, with fewer of those that chance makes.
///
/// # Errors
/// When a test fails.
pub fn emulate(repository: &Repository) -> Result<Outcome> {
    if let Some(outcome) = lacks_something(repository, "emulate") {
        return Ok(outcome);
    }
    test(repository, &[COMPILED, RINGS, VECTORS], &[PROGRAMS_BRIEFLY])?;
    Ok(Outcome::Done)
}

/// How many programs by chance are compiled and run by [`emulate`].
const PROGRAMS_BRIEFLY: (&str, &str) = ("OUTBOARD_BPF_CASES", "50");

fn lacks_something(repository: &Repository, step: &str) -> Option<Outcome> {
    if ARCH == "aarch64" {
        let reason = "this machine is an aarch64 itself: the step `test` has covered it";
        return Some(Outcome::skipped(step, reason));
    }
    prepare(repository).err().map(|missing| Outcome::skipped(step, &missing))
}

fn build(repository: &Repository, verb: &str) -> Result<()> {
    let mut build = cross_cargo(repository, &[verb, "--workspace", "--exclude", "xtask"]);
    // Nobody runs it, so neither speed nor the debugger's lines are worth the time.
    build.envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")]);
    command::run(&mut build)
}

/// Side by side: one of them is built while the other runs.
fn test(repository: &Repository, tests: &[&[&str]], variables: &[(&str, &str)]) -> Result<()> {
    command::side_by_side(tests, |tests| {
        command::run_quietly(cross_cargo(repository, tests).envs(variables.iter().copied()))
    })?;
    Ok(())
}

fn cross_cargo(repository: &Repository, arguments: &[&str]) -> Command {
    let mut command = command::cargo(repository, arguments);
    let runner = format!("{EMULATOR} -L /usr/aarch64-linux-gnu");
    command.env("CARGO_BUILD_TARGET", TARGET);
    // In a folder of its own, so that it need not wait for what others build, nor they for it.
    command.env("CARGO_TARGET_DIR", repository.target_folder("arm"));
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    command
}

/// Installs what is missing, or says what stays missing.
fn prepare(repository: &Repository) -> Result<(), String> {
    let add_target = &mut command::program(repository, "rustup", &["target", "add", TARGET]);
    command::run(add_target).map_err(|_| format!("rustup cannot add the target {TARGET}"))?;
    apt::install(repository, PACKAGES_OF_THE_SYSTEM, has_tools).map_err(|error| error.to_string())
}

fn has_tools() -> bool {
    command::is_installed(LINKER) && command::is_installed(EMULATOR)
}
