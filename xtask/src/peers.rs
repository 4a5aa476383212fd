//! `cargo xtask peers`: what programs on the card are measured against, which is no part of the product.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

const MANIFEST: &str = "bench/programs/Cargo.toml";
const PROGRAM: &str = "program-peers";

/// Build what `outboard bench bpf --peers` measures against: native C, rbpf, wasmtime.
///
/// They are a package of their own, with their own lock file, so that nothing of it is built or tested with outboard. The first build takes
/// some minutes. Without a C compiler, native C is left out. Says in the end which program to give to `--peers`.
#[derive(Args)]
pub struct Arguments {
    /// Test them as well, and that what is checked in of theirs is what compilers make of the sources.
    #[arg(long)]
    test: bool,
}

/// Builds them.
///
/// # Errors
/// When they do not build, or a test fails.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    command::run(&mut command::cargo(
        repository,
        &["build", "--release", "--locked", "--manifest-path", MANIFEST],
    ))?;
    if arguments.test {
        command::run(&mut command::cargo(
            repository,
            &["test", "--release", "--locked", "--manifest-path", MANIFEST],
        ))?;
    }
    println!(
        "cargo run --release -- bench bpf --peers {}",
        target_directory(repository)?.join("release").join(PROGRAM).display()
    );
    Ok(Outcome::Done)
}

/// Where cargo puts what it builds of the package.
fn target_directory(repository: &Repository) -> Result<PathBuf> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--manifest-path", MANIFEST];
    let output = command::capture(&mut command::cargo(repository, &arguments))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let directory = metadata.get("target_directory").and_then(serde_json::Value::as_str);
    Ok(PathBuf::from(directory.context("cargo does not say where it builds the peers")?))
}
