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
    build_and_test(repository, "build", &[RINGS, PROGRAMS])
}

/// The same, but what is not run is not linked either, for that takes as long as all the rest; and of programs only what depends on the
/// processor, with fewer of those that chance makes.
///
/// # Errors
/// As [`run`].
pub fn run_in_ci(repository: &Repository) -> Result<Outcome> {
    build_and_test(repository, "check", &[COMPILED, RINGS, VECTORS])
}

/// How many programs by chance are compiled and run where `build_and_test` only checks.
const PROGRAMS_BRIEFLY: (&str, &str) = ("OUTBOARD_BPF_CASES", "50");

fn build_and_test(repository: &Repository, verb: &str, tests: &[&[&str]]) -> Result<Outcome> {
    if ARCH == "aarch64" {
        return Ok(Outcome::skipped(
            "arm",
            "this machine is an aarch64 itself: the step `test` has covered it",
        ));
    }
    if let Err(missing) = prepare(repository) {
        return Ok(Outcome::skipped("arm", &missing));
    }
    let mut build = cross_cargo(repository, &[verb, "--workspace", "--exclude", "xtask"]);
    // Nobody runs it, so neither speed nor the debugger's lines are worth the time.
    build.envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")]);
    command::run(&mut build)?;
    // Side by side: one of them is built while the other runs.
    command::side_by_side(tests, |tests| {
        let mut command = cross_cargo(repository, tests);
        if verb == "check" {
            command.env(PROGRAMS_BRIEFLY.0, PROGRAMS_BRIEFLY.1);
        }
        command::run_quietly(&mut command)
    })?;
    Ok(Outcome::Done)
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
