//! The programs of `examples/programs`: that they are accepted, which checks are left, and that they compute what the same computation
//! in Rust does, on good data and on bad.
//!
//! `OB_BLESS=1 cargo test -p ob-ebpf --test programs verdicts` writes the verdicts anew. `cargo test --release -p ob-ebpf --test
//! programs -- --ignored --nocapture` tells what calls cost.

#![cfg(feature = "compiler")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod bench;
mod nodes;
mod rig;
mod rocksdb;

use std::fmt::Write;
use std::path::Path;

use rig::Rig;

/// Objects of one program, which is a storage function.
const PROGRAMS: [&str; 8] = [
    "bpfkv_get",
    "btree_search",
    "btree_search_rust",
    "count_lines",
    "fetch",
    "readings",
    "rocksdb_block",
    "rocksdb_get",
];
/// Those of several, for the hooks of offload. What they compute is tested where the functions are that they stand in for.
const OFFLOADS: [&str; 1] = ["kv_get"];

/// What the verifier says of a program, for people and for changes of the verifier to show up.
fn verdict(rig: &Rig) -> String {
    let name = &rig.name;
    let accepted = &rig.accepted;
    let (checks, accesses) = (accepted.verified.checks(), accepted.accesses);
    let instructions = rig.program.instructions().len();
    let variants = accepted.verified.variants().len();
    let mut text = format!(
        "{name}: {instructions} instructions, {variants} functions as they are called, {accesses} accesses, {checks} checked\n"
    );
    for check in &accepted.checks {
        let line = check.line.as_ref().map_or("", |line| line.text.trim());
        let argument = check.argument.map_or_else(String::new, |register| format!(" ({register})"));
        writeln!(text, "  {}{argument}, {}: {}", check.at, line, check.why).unwrap();
    }
    text
}

#[test]
fn verdicts_are_as_they_were() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/programs.txt");
    let rigs = PROGRAMS.into_iter().chain(OFFLOADS).flat_map(Rig::all);
    let text: String = rigs.map(|rig| verdict(&rig)).collect();
    if std::env::var_os("OB_BLESS").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap());
}

#[test]
fn programs_need_few_checks() {
    // That of `fetch` is whether as many bytes were read as it copies, of seven accesses in all.
    let percents = [0, 0, 0, 0, 15, 0, 30, 30];
    for (name, percent_max) in PROGRAMS.into_iter().zip(percents) {
        let rig = Rig::new(name);
        let (checks, accesses) = (rig.accepted.verified.checks(), rig.accepted.accesses);
        assert!(checks * 100 <= accesses * percent_max, "{name}: {checks} of {accesses} are checked");
    }
}
