//! `cargo xtask miri`: memory, rings and table under Miri, which finds undefined behaviour.

use std::collections::BTreeSet;
use std::process::Command;
use std::{env, fs};

use anyhow::Result;

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

/// One line of help.
pub const ABOUT: &str = "Run memory, rings and table under Miri, which finds undefined behaviour";

/// The whole help.
pub const LONG_ABOUT: &str = "\
Run ob-memory, ob-ring and ob-table under Miri, which finds undefined behaviour.

Miri needs a nightly toolchain with the components `miri` and `rust-src`; they are installed through rustup when they
are missing. Where that is impossible the verb says SKIPPED, loudly, and succeeds.

MIRIFLAGS, PROPTEST_CASES and PROPTEST_RNG_ALGORITHM are taken from the environment when they are set there.";

// Why the other homes of unsafe are not here says UNCHECKED in tidy/unsafe_code.rs.
pub(crate) const PACKAGES: &[&str] = &["ob-memory", "ob-ring", "ob-table"];

// The test target that takes as long as all others together.
const LONGEST: &str = "threads";

// Tests that draw seeds or look at the clock need the outside world. Miri's emulation of weak memory fails an assertion
// of its own where words of a region are written both by atomic stores and by plain copies; loom has the orderings.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation";

// Miri is slower than the machine by orders of magnitude: a property needs few cases to touch every line.
const PROPERTY_CASES: &str = "4";

// Properties' numbers are drawn by proptest's simplest generator: the usual one is a cipher, and took Miri longer than what was tested.
const PROPERTY_GENERATOR: &str = "xs";

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
    command::run(test_command(repository).arg("--no-run"))?;
    // Miri uses one processor, whatever a test does: targets are run side by side.
    let tests = test_targets(repository)?;
    let mut targets: Vec<Vec<&str>> = tests.iter().map(|test| vec!["--test", test]).collect();
    targets.extend([vec!["--lib"], vec!["--doc"]]);
    // The longest first, so that none of them is alone at the end.
    targets.sort_by_key(|target| !target.contains(&LONGEST));
    command::side_by_side(&targets, |target| command::run_quietly(test_command(repository).args(target)))?;
    Ok(Outcome::Done)
}

/// Always of all packages: with fewer of them, what they depend on might have other features and be built once more.
fn test_command(repository: &Repository) -> Command {
    let mut command = command::cargo(repository, &["+nightly", "miri", "test"]);
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    command.env("CARGO_TARGET_DIR", repository.target_folder("miri"));
    // CI's, for compilers that optimise.
    command.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let variables = [
        ("MIRIFLAGS", FLAGS),
        ("PROPTEST_CASES", PROPERTY_CASES),
        ("PROPTEST_RNG_ALGORITHM", PROPERTY_GENERATOR),
    ];
    for (name, value) in variables {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    command
}

/// The names of the packages' test targets.
fn test_targets(repository: &Repository) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for package in PACKAGES {
        let folder = repository.root().join("crates").join(package).join("tests");
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
            }
        }
    }
    Ok(names)
}

/// Miri is there, and so are the sources from which it builds a standard library for itself.
fn is_ready(repository: &Repository) -> bool {
    let mut setup = command::cargo(repository, &["+nightly", "miri", "setup"]);
    command::succeeds(setup.env_remove("RUSTC_WORKSPACE_WRAPPER"))
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
