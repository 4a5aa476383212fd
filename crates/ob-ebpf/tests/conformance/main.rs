//! Whether programs mean here what RFC 9669 says.
//!
//! Each program is interpreted, verified, and compiled with checks and without; all do the same ([`ways`]).
//!
//! - `tests/vectors/` has vectors of our own, written from the RFC: [`case`] and [`tables`] say how.
//! - The public suite (github.com/Alan-Jowett/bpf_conformance) is run where `OUTBOARD_BPF_CONFORMANCE` names a checkout of it:
//!   `OUTBOARD_BPF_CONFORMANCE=~/bpf_conformance cargo test -p ob-ebpf --test conformance -- --nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests say what they rely on by failing")]

mod case;
mod tables;
mod ways;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use case::{Case, Expected};
use ob_ebpf::isa::{Instruction, Wide};
use ways::{Ran, Tally, check, run_everywhere};

/// What of the public suite asks for what is not there, and why that is right.
const NOT_APPLICABLE: [(&str, &str); 2] = [
    ("call_unwind_fail", "helper 5 of that suite's own runtime; ours have other numbers"),
    ("callx", "calls through a register, which are refused when a program is decoded"),
];

fn check_all(cases: &[Case]) -> Tally {
    let (mut tally, mut failed) = (Tally::default(), Vec::new());
    // Compiling thousands of programs in an emulator takes minutes: on all processors at once.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checked: Vec<_> = std::thread::scope(|scope| {
        let part = |part: &'_ [Case]| part.iter().map(check).collect::<Vec<_>>();
        let parts = cases.chunks(cases.len().div_ceil(threads).max(1));
        let workers: Vec<_> = parts.map(|cases| scope.spawn(move || part(cases))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    for (case, checked) in cases.iter().zip(checked) {
        match checked {
            Ok(ran) => tally.add(&case.name, ran),
            Err(error) => failed.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(failed.is_empty(), "{} of {} fail:\n{}", failed.len(), cases.len(), failed.join("\n"));
    tally
}

fn ours() -> Vec<Case> {
    [
        tables::binary("arithmetic.txt", include_str!("../vectors/arithmetic.txt")),
        tables::unary("unary.txt", include_str!("../vectors/unary.txt")),
        tables::branches("branches.txt", include_str!("../vectors/branches.txt")),
        tables::atomics("atomics.txt", include_str!("../vectors/atomics.txt")),
        case::read_many("memory.txt", include_str!("../vectors/memory.txt")),
        case::read_many("control.txt", include_str!("../vectors/control.txt")),
    ]
    .concat()
}

#[test]
fn our_vectors_hold() {
    let tally = check_all(&ours());
    tally.print("vectors of our own");
    assert_eq!(tally.only_interpreted, [], "the verifier refuses what is right");
    assert_eq!(tally.stopped_and_refused, 9, "what no verified program does");
    assert_eq!(tally.nowhere, 6, "what is no program");
}

/// What an instruction is, without its registers and numbers.
fn kind_of(instruction: &Instruction) -> String {
    use ob_ebpf::isa::{Callee, Operand};
    let from = |operand: &Operand| match operand {
        Operand::Register(_) => "register",
        Operand::Immediate(_) => "immediate",
    };
    match instruction {
        Instruction::Alu { width, op, from: operand, .. } => format!("{op:?} {width:?} {}", from(operand)),
        Instruction::Move { width, from: operand, .. } => format!("Move {width:?} {}", from(operand)),
        Instruction::Branch { width, test, right, .. } => format!("{test:?} {width:?} {}", from(right)),
        Instruction::Store { size, from: operand, .. } => format!("Store {size:?} {}", from(operand)),
        Instruction::Negate { width, .. } => format!("Negate {width:?}"),
        Instruction::MoveSigned { width, size, .. } => format!("MoveSigned {width:?} {size:?}"),
        Instruction::Bytes { order, size, .. } => format!("{order:?} {size:?}"),
        Instruction::Load { size, is_signed, .. } => format!("Load {size:?} {is_signed}"),
        Instruction::Atomic { width, op, .. } => format!("Atomic {width:?} {op:?}"),
        Instruction::LoadWide { value: Wide::Number(_), .. } => "LoadWide number".into(),
        Instruction::LoadWide { value: Wide::ReadOnly(_), .. } => "LoadWide read-only".into(),
        Instruction::LoadWide { value: Wide::PerCall(_), .. } => "LoadWide per-call".into(),
        Instruction::Jump { .. } => "Jump".into(),
        Instruction::Call { callee: Callee::Local(_) } => "Call local".into(),
        Instruction::Call { callee: Callee::Helper(_) } => "Call helper".into(),
        Instruction::Exit => "Exit".into(),
    }
}

#[test]
fn our_vectors_have_every_instruction() {
    let mut kinds = BTreeSet::new();
    for program in ours().iter().filter_map(|case| case.program().ok()) {
        kinds.extend(program.instructions().iter().map(kind_of));
    }
    // 13 operations and a move, in both widths, with a register or an immediate; 11 tests likewise; 2 negations, 5 moves with a
    // sign, 3 orders of 3 sizes; 3 wide loads; 4 loads and 3 with a sign, 4 stores of either kind; 10 atomics in both widths;
    // jump, exit, and calls of both kinds.
    let expected = (13 + 1) * 4 + 11 * 4 + 2 + 5 + 9 + 3 + (4 + 3) + 4 * 2 + 10 * 2 + 4;
    assert_eq!(kinds.len(), expected, "{kinds:#?}");
}

/// The files of a folder of the suite.
fn files(folder: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = listed.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ext| ext == "data")).collect();
    paths.sort();
    paths
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn the_public_suite_holds() {
    let Some(checkout) = std::env::var_os("OUTBOARD_BPF_CONFORMANCE").map(PathBuf::from) else {
        ob_plant::not_tested("OUTBOARD_BPF_CONFORMANCE does not name a checkout of bpf_conformance");
        return;
    };
    let (mut tally, mut skipped, mut failed) = (Tally::default(), Vec::new(), Vec::new());
    for path in files(&checkout.join("tests")) {
        let name = stem(&path);
        if let Some((_, reason)) = NOT_APPLICABLE.iter().find(|(known, _)| *known == name) {
            skipped.push(format!("{name}: {reason}"));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        match case::read_one(&name, &text).and_then(|case| check_both_forms(&case)) {
            Ok(ran) => tally.add(&name, ran),
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    let mut refused = 0;
    for path in files(&checkout.join("negative")) {
        match check_refused(&path) {
            Ok(()) => refused += 1,
            Err(error) => failed.push(error),
        }
    }
    tally.print("public suite");
    println!("{refused} of those that are to fail do, and {} do not apply:", skipped.len());
    println!("{}", skipped.join("\n"));
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
    assert_eq!(tally.only_interpreted, [], "the verifier refuses what is right");
    assert!(tally.everywhere > 0 && refused > 0, "there is no suite in {}", checkout.display());
}

/// Where a case has a program as text and as bytes, both are run.
fn check_both_forms(case: &Case) -> Result<Ran, String> {
    let ran = check(case)?;
    if case.asm.is_some() && case.raw.is_some() {
        let as_text = check(&Case { raw: None, ..case.clone() })?;
        if as_text != ran {
            return Err(format!("as bytes {ran:?}, as text {as_text:?}"));
        }
    }
    Ok(ran)
}

/// A case that is to fail, each in its way: it is none, it has no program, its program is stopped, or gives another result.
fn check_refused(path: &Path) -> Result<(), String> {
    let name = stem(path);
    let read = case::read_one(&name, &fs::read_to_string(path).unwrap());
    if name.starts_with("unused-") {
        // The program is there, and what is wrong is what the name says.
        return match read?.program() {
            Err(error) if error.contains("means nothing here") => Ok(()),
            outcome => Err(format!("{name} is to be refused for an unused field: {outcome:?}")),
        };
    }
    let Ok((program, case)) = read.and_then(|case| Ok((case.program()?, case))) else { return Ok(()) };
    let (after, _) = run_everywhere(program, &case.memory).map_err(|error| format!("{name}: {error}"))?;
    match (after.outcome, case.expected) {
        (Ok(result), Expected::Result(expected)) if result != expected => Ok(()),
        (Ok(result), _) => Err(format!("{name} is to fail, and gives {result:#x}")),
        (Err(_), _) => Ok(()),
    }
}
