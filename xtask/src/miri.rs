//! `cargo xtask miri`: the homes of unsafe under Miri, which finds undefined behaviour.

use std::env;

use anyhow::Result;

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

/// One line of help.
pub const ABOUT: &str = "Run the homes of unsafe under Miri, which finds undefined behaviour";

/// The whole help.
pub const LONG_ABOUT: &str = "\
Run the homes of unsafe under Miri, which finds undefined behaviour.

Miri needs a nightly toolchain with the components `miri` and `rust-src`; they are installed through rustup when they
are missing. Where that is impossible the verb says SKIPPED, loudly, and succeeds.

MIRIFLAGS and PROPTEST_CASES are taken from the environment when they are set there.";

// Crates that call into the kernel (ob-io, ob-link) are not here: Miri does not know io_uring.
const PACKAGES: &[&str] = &["ob-memory", "ob-ring", "ob-table"];

// Tests that draw seeds or look at the clock need the outside world. Miri's emulation of weak memory fails an assertion
// of its own where words of a region are written both by atomic stores and by plain copies; loom has the orderings.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation";

// Miri is slower than the machine by orders of magnitude: a property needs few cases to touch every line.
const PROPERTY_CASES: &str = "4";

/// Runs the tests under Miri.
///
/// # Errors
/// When a test fails under Miri.
pub fn run(repository: &Repository) -> Result<Outcome> {
    if !is_ready(repository) && !install(repository) {
        return Ok(Outcome::skipped(
            "miri",
            "a nightly toolchain with miri and rust-src cannot be installed here",
        ));
    }
    let mut command = command::cargo(repository, &["+nightly", "miri", "test"]);
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    command.env("CARGO_TARGET_DIR", repository.target_folder("miri"));
    for (name, value) in [("MIRIFLAGS", FLAGS), ("PROPTEST_CASES", PROPERTY_CASES)] {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command::run(&mut command)?;
    Ok(Outcome::Done)
}

/// Miri is there, and so are the sources from which it builds a standard library for itself.
fn is_ready(repository: &Repository) -> bool {
    command::succeeds(&mut command::cargo(repository, &["+nightly", "miri", "setup"]))
}

fn install(repository: &Repository) -> bool {
    let attempts: [&[&str]; 2] = [
        &["component", "add", "miri", "rust-src", "--toolchain", "nightly"],
        // Where there is no nightly yet, or one that was released without Miri.
        &["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"],
    ];
    attempts.iter().any(|arguments| {
        command::run(&mut command::program(repository, "rustup", arguments)).is_ok() && is_ready(repository)
    })
}
