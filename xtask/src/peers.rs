//! `cargo xtask peers`: programs of other hands that benchmarks want, which are no part of the product.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{apt, command};

const MANIFEST: &str = "bench/programs/Cargo.toml";
/// What programs on the card are measured against.
pub const PROGRAMS: &str = "program-peers";
/// RocksDB itself, which writes what `bench pushdown` reads.
pub const ROCKSDB: &str = "rocksdb-peer";
const ROCKSDB_SOURCE: &str = "crates/ob-rocksdb/tests/peer/peer.cc";
const ROCKSDB_HEADER: &str = "/usr/include/rocksdb/db.h";
const ROCKSDB_PACKAGES: &[&str] = &["g++", "librocksdb-dev"];

/// Build what `outboard bench --peers` takes: native C, rbpf and wasmtime for `bpf`, RocksDB for `pushdown`.
///
/// The former are a package of their own, with their own lock file, so that nothing of it is built or tested with outboard. The first build takes
/// some minutes. Without a C compiler, native C is left out. RocksDB is that of the system (Debian: g++, librocksdb-dev), installed if that can be;
/// if not, it is left out, which is said. Says in the end which folder to give to `--peers`.
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
    let folder = target_directory(repository)?.join("release");
    if let Err(missing) = build_rocksdb(repository, &folder) {
        println!("peers: RocksDB is LEFT OUT: {missing:#}");
    }
    println!("cargo run --release -- bench bpf --peers {}", folder.display());
    println!("cargo run --release -- bench pushdown --peers {}", folder.display());
    Ok(Outcome::Done)
}

/// Installs RocksDB unless it is there.
///
/// # Errors
/// When it is not there afterwards; the text says what to install.
pub fn install_rocksdb(repository: &Repository) -> Result<()> {
    let is_there = || command::is_installed("g++") && Path::new(ROCKSDB_HEADER).exists();
    apt::install(repository, ROCKSDB_PACKAGES, is_there)
}

/// Compiles who talks to RocksDB, into this folder.
///
/// # Errors
/// When there is no RocksDB and none can be installed.
pub fn build_rocksdb(repository: &Repository, folder: &Path) -> Result<()> {
    install_rocksdb(repository)?;
    let mut compile = command::program(repository, "g++", &["-std=c++17", "-O2", "-Wall", ROCKSDB_SOURCE]);
    command::run(compile.arg("-lrocksdb").arg("-o").arg(folder.join(ROCKSDB)))
}

/// Where cargo puts what it builds of the package.
fn target_directory(repository: &Repository) -> Result<PathBuf> {
    let arguments = ["metadata", "--format-version", "1", "--no-deps", "--manifest-path", MANIFEST];
    let output = command::capture(&mut command::cargo(repository, &arguments))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let directory = metadata.get("target_directory").and_then(serde_json::Value::as_str);
    Ok(PathBuf::from(directory.context("cargo does not say where it builds the peers")?))
}
