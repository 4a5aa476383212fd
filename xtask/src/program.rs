//! The `outboard` program that other programs are to use.

use std::path::PathBuf;

use anyhow::Result;

use crate::command;
use crate::repository::Repository;

/// The program as the tests have it.
///
/// Built the way `cargo test --workspace` builds it, because only then what that has left can be taken: by itself the package
/// is compiled with fewer features of what it depends on, and most of that would be compiled once more. The test target
/// named here brings the program along, and is not run.
///
/// # Errors
/// When it does not build.
pub fn of_the_tests(repository: &Repository) -> Result<PathBuf> {
    let arguments = ["test", "--workspace", "--test", "outboard-tests", "--no-run"];
    command::run(&mut command::cargo(repository, &arguments))?;
    Ok(repository.target_folder("debug/outboard"))
}

/// The program as it is released, which takes minutes to build.
///
/// # Errors
/// When it does not build.
pub fn released(repository: &Repository) -> Result<PathBuf> {
    command::run(&mut command::cargo(repository, &["build", "--release", "--package", "outboard"]))?;
    Ok(repository.target_folder("release/outboard"))
}
