//! The rules of the house hold in this repository, so that `cargo test --workspace` says so too.

#![forbid(unsafe_code)]

use xtask::repository::Repository;
use xtask::tidy::{self, snapshot::Snapshot};

#[test]
fn the_repository_is_tidy() {
    let snapshot = Snapshot::take(&Repository::here().unwrap()).unwrap();
    let found: Vec<String> =
        tidy::violations(&snapshot).iter().map(|(check, found)| format!("{found} [{check}]")).collect();
    assert!(
        found.is_empty(),
        "the rules that `cargo xtask tidy --help` lists are broken:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_snapshot_is_not_empty() {
    // A walk that finds nothing would make every check pass.
    let snapshot = Snapshot::take(&Repository::here().unwrap()).unwrap();
    assert!(snapshot.texts.contains_key("xtask/tests/tidy.rs"));
    assert!(snapshot.texts.contains_key("CONTRIBUTING.md"));
    assert!(snapshot.packages.iter().any(|package| package.name == "xtask" && package.library.is_some()));
    assert!(!snapshot.paths.iter().any(|path| path.starts_with("target/debug")));
}
