//! The `outboard` program that other programs are to use.

use std::path::PathBuf;
use std::process::Command;

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

/// A program that checks storage functions from within a guest, and the libraries that it needs there, each with where it goes.
///
/// # Errors
/// When it does not build.
pub fn for_guests(repository: &Repository) -> Result<Vec<(String, PathBuf)>> {
    command::run(&mut command::cargo(repository, &["build", "--workspace", "--example", "agree"]))?;
    let program = repository.target_folder("debug/examples/agree");
    let listed = command::capture(Command::new("ldd").arg(&program))?;
    let mut files = Vec::new();
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        // `name => path (address)`, or `path (address)` of the loader.
        let path = line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
        if let Some((path, name)) = path.as_ref().and_then(|path| Some((path, path.file_name()?))) {
            files.push((format!("lib/{}", name.to_string_lossy()), path.canonicalize()?));
        }
    }
    files.push(("agree".to_owned(), program));
    Ok(files)
}

/// The program as it is released, which takes minutes to build.
///
/// # Errors
/// When it does not build.
pub fn released(repository: &Repository) -> Result<PathBuf> {
    command::run(&mut command::cargo(repository, &["build", "--release", "--package", "outboard"]))?;
    Ok(repository.target_folder("release/outboard"))
}
