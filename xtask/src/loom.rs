//! `cargo xtask loom`: rings and table under every interleaving that loom can find.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

/// How many times loom may take the processor away from a thread within one execution.
///
/// Loom's authors find that two or three are enough for most bugs; each one more multiplies the time.
pub const PREEMPTIONS: usize = 3;

/// The variable through which loom itself takes the bound.
pub const PREEMPTIONS_VARIABLE: &str = "LOOM_MAX_PREEMPTIONS";

/// Test targets that hold loom models, each with its package.
pub const TESTS: &[(&str, &str)] = &[("ob-ring", "loom"), ("ob-table", "loom")];

/// Run the loom models: rings and table under every interleaving.
///
/// Builds with `--cfg loom`, in a target folder of its own, and runs the test targets that hold loom models.
/// The bound on preemptions makes it end; raise it for a longer campaign: `cargo xtask loom --preemptions 5`.
#[derive(Args)]
pub struct Arguments {
    /// How many times loom may preempt a thread within one execution; each one more multiplies the time.
    #[arg(long, value_name = "N", env = PREEMPTIONS_VARIABLE, default_value_t = PREEMPTIONS)]
    preemptions: usize,
    /// Arguments for the test programs, after `--`: a part of a test's name, `--nocapture`.
    #[arg(last = true, value_name = "ARGUMENT")]
    test_arguments: Vec<String>,
}

/// Runs all models.
///
/// # Errors
/// When one does not build or does not hold.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    for (package, test) in TESTS {
        let mut command = test_command(repository);
        command.args(["--package", package, "--test", test]);
        command.env(PREEMPTIONS_VARIABLE, arguments.preemptions.to_string());
        command.arg("--").args(&arguments.test_arguments);
        command::run(&mut command)?;
    }
    Ok(Outcome::Done)
}

/// The bound in CI, unless the environment has one: what takes three is left to campaigns, and to planted bugs, which end when they are found.
const PREEMPTIONS_IN_CI: usize = 2;

/// As `cargo xtask loom` without arguments, but bounded more narrowly.
///
/// # Errors
/// As [`run`].
pub fn run_in_ci(repository: &Repository) -> Result<Outcome> {
    let preemptions = match env::var(PREEMPTIONS_VARIABLE) {
        Ok(value) => {
            value.parse().with_context(|| format!("{PREEMPTIONS_VARIABLE}={value} is not a number"))?
        }
        Err(_) => PREEMPTIONS_IN_CI,
    };
    run(repository, &Arguments { preemptions, test_arguments: Vec::new() })
}

/// A `cargo test` with loom in place of the standard atomics.
#[must_use]
pub fn test_command(repository: &Repository) -> Command {
    let mut command = command::cargo(repository, &["test", "--release"]);
    let flags =
        env::var("RUSTFLAGS").map_or_else(|_| "--cfg loom".to_owned(), |flags| format!("{flags} --cfg loom"));
    command
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", repository.target_folder("loom"))
        // Models are exhaustive search: they need optimised code, but linking across crates buys nothing.
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    bound(&mut command);
    command
}

/// Bounds the models that a command runs, unless the environment does.
pub fn bound(command: &mut Command) {
    if env::var_os(PREEMPTIONS_VARIABLE).is_none() {
        command.env(PREEMPTIONS_VARIABLE, PREEMPTIONS.to_string());
    }
}
