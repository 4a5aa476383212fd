//! The `outboard` program that other programs are to use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::repository::Repository;
use crate::{command, peers};

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

/// What scenarios about storage functions run within a guest, each with where it goes: a program that checks them, `outboard` itself if it is
/// built, an object for it to load, RocksDB if it can be had, and the libraries that they need there.
///
/// # Errors
/// When it does not build.
pub fn for_guests(repository: &Repository, outboard: &Path) -> Result<Vec<(String, PathBuf)>> {
    command::run(&mut command::cargo(repository, &["build", "--workspace", "--example", "agree"]))?;
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
