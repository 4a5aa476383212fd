//! The `outboard` program that other programs are to use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::repository::Repository;
use crate::{command, peers};

/// What a `cargo test --workspace` that names test targets has to name besides, so that what the plain one has left is taken.
///
/// Cargo has features on that somebody wants among the packages of the targets which are named. The binary and the chores want all that
/// anybody does; without them `syn` would be another one, and with it nearly everything be compiled once more.
pub const TESTS_OF_ALL_FEATURES: &[&str] = &["outboard-tests", "tidy"];

/// The program as the tests have it: built as `cargo test --workspace` builds it, and left by that if that was run before. The tests that
/// are named bring it along, and are not run.
///
/// # Errors
/// When it does not build.
pub fn of_the_tests(repository: &Repository) -> Result<PathBuf> {
    let mut command = command::cargo(repository, &["test", "--workspace", "--no-run"]);
    command.args(TESTS_OF_ALL_FEATURES.iter().flat_map(|test| ["--test", test]));
    command::run(&mut command)?;
    Ok(repository.target_folder("debug/outboard"))
}

/// What scenarios about storage functions run within a guest, each with where it goes: a program that checks them, `outboard` itself if it is
/// built, an object for it to load, RocksDB if it can be had, and the libraries that they need there.
///
/// # Errors
/// When it does not build.
pub fn for_guests(repository: &Repository, outboard: &Path) -> Result<Vec<(String, PathBuf)>> {
    // With the two programs that have all features on, as in `TESTS_OF_ALL_FEATURES`.
    let arguments = ["build", "--workspace", "--example", "agree", "--bin", "outboard", "--bin", "xtask"];
    command::run(&mut command::cargo(repository, &arguments))?;
    let mut programs = vec![("agree".to_owned(), repository.target_folder("debug/examples/agree"))];
    if outboard.is_file() {
        programs.push(("outboard".to_owned(), outboard.to_owned()));
    }
    let folder = repository.target_folder("kernel");
    match peers::build_rocksdb(repository, &folder) {
        Ok(()) => programs.push((peers::ROCKSDB.to_owned(), folder.join(peers::ROCKSDB))),
        Err(missing) => {
            println!(
                "\n!!!!!!!! NOT TESTED: lookups in RocksDB's databases from a guest: {missing:#} !!!!!!!!\n"
            );
        }
    }
    let mut files = BTreeMap::new();
    for (_, program) in &programs {
        let listed = command::capture(Command::new("ldd").arg(program))?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            // `name => path (address)`, or `path (address)` of the loader.
            let path = line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
            if let Some((path, name)) = path.as_ref().and_then(|path| Some((path, path.file_name()?))) {
                files.insert(format!("lib/{}", name.to_string_lossy()), path.canonicalize()?);
            }
        }
    }
    files.extend(programs);
    files.insert("count_lines.o".to_owned(), repository.root().join("examples/programs/count_lines.o"));
    Ok(files.into_iter().collect())
}

/// The program as it is released, which takes minutes to build.
///
/// # Errors
/// When it does not build.
pub fn released(repository: &Repository) -> Result<PathBuf> {
    command::run(&mut command::cargo(repository, &["build", "--release", "--package", "outboard"]))?;
    Ok(repository.target_folder("release/outboard"))
}
