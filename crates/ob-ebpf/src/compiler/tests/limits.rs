//! Programs as large as they may be.

use super::*;
use crate::compiler::{NESTED_MAX, OPTIMISED_MAX, STACK_LEN_MAX};
use crate::isa::INSTRUCTIONS_MAX;

/// A program of so many instructions that repeats what it is given.
fn repeated(begin: &str, body: impl Fn(usize) -> String, count: usize) -> Arc<Program> {
    let mut text = begin.to_owned();
    for at in 0..count {
        text.push_str(&body(at));
    }
    text.push_str("exit\n");
    program(&text)
}

fn check(program: &Arc<Program>, what: &str) {
    let setup = Setup { fuel: u32::MAX, ..Setup::new() };
    let (expected, verified) = observe(program, &setup);
    let begin = std::time::Instant::now();
    let compiled = compile(&verified.unwrap(), setup.options).unwrap();
    let took = begin.elapsed();
    println!(
        "{what}: {} instructions, {} bytes of code, {} of stack, {took:?}",
        program.instructions().len(),
        compiled.code_len(),
        compiled.stack_len()
    );
    assert_eq!(call(&setup, |call| compiled.run(call)), expected);
    assert!(compiled.stack_len() <= STACK_LEN_MAX);
}

const BEGIN: &str = "r6 = *(u64 *)(r1 + 32)\nr7 = *(u64 *)(r1 + 0)\nr0 = 0\n";

/// The longest program, and the longest function that is optimised.
const LENGTHS: [usize; 2] = [INSTRUCTIONS_MAX, OPTIMISED_MAX];

#[test]
fn the_longest_straight_lines_compile() {
    let body = |at: usize| format!("r0 += r7\nr0 *= {}\nr0 ^= {}\nr7 += r0\n", at | 1, at);
    for len in LENGTHS {
        check(&repeated(BEGIN, body, (len - 4) / 4), "a straight line");
    }
}

#[test]
fn programs_of_checked_accesses_compile() {
    let body = |at: usize| {
        format!("r1 = *(u8 *)(r6 + {})\n*(u8 *)(r6 + {}) = r0\nr0 += r1\n", at % 64, (at * 7) % 64)
    };
    for len in LENGTHS {
        check(&repeated(BEGIN, body, (len - 4) / 3), "checked accesses");
    }
}

#[test]
fn programs_of_branches_compile() {
    let body = |at: usize| format!("if r0 == {at} goto +1\nr0 += 1\n");
    for len in LENGTHS {
        check(&repeated(BEGIN, body, (len - 4) / 2), "branches ahead");
    }
}

#[test]
fn programs_of_loops_within_loops_compile() {
    let begin = format!("{BEGIN}r2 = 0\nr3 = 0\nr4 = 0\nr5 = 0\n");
    let body = |at: usize| {
        format!("r7 -= 1\nr{} += r7\nif r7 s> 100000 goto -{}\n", [0, 2, 3, 4, 5][at % 5], 3 * at + 3)
    };
    // As deep as may be, as deep as is optimised, and one deeper.
    for len in LENGTHS.into_iter().chain([3 * NESTED_MAX + 8, 3 * NESTED_MAX + 11]) {
        check(&repeated(&begin, body, (len - 8) / 3), "loops within loops");
    }
}

#[test]
fn programs_of_loops_one_behind_the_other_compile() {
    let body = |_| "r7 -= 1\nr0 += r7\nif r7 s> 100000 goto -3\n".to_owned();
    for len in LENGTHS {
        check(&repeated(BEGIN, body, (len - 4) / 3), "loops");
    }
}

#[test]
fn values_that_are_needed_again_far_away_do_not_fill_the_stack() {
    // An optimiser that remembers everything would keep thousands of sums.
    let body = |at: usize| format!("r1 = r7\nr1 *= {}\nr0 ^= r1\n", at % 1200 + 3);
    check(&repeated(BEGIN, body, 1300), "sums that come back");
}

#[test]
fn as_many_functions_as_there_may_be_compile() {
    let mut text = "r6 = r1\n".to_owned();
    for function in 0..200 {
        text.push_str(&format!("r1 = r6\ncall function_{function}\n"));
    }
    text.push_str("exit\n");
    for function in 0..200 {
        text.push_str(&format!("function_{function}:\nr0 = *(u64 *)(r1 + 0)\nr0 += {function}\nexit\n"));
    }
    check(&program(&text), "functions");
}

#[test]
fn small_functions_become_part_of_their_callers_until_that_is_enough() {
    let program = |calls: usize| {
        let mut text = "r6 = r1\n".to_owned();
        text.push_str(&"r1 = r6\ncall small\n".repeat(calls));
        text.push_str("exit\nsmall:\nr0 = *(u64 *)(r1 + 0)\n");
        text.push_str(&"r0 *= 5\nr0 ^= 77\n".repeat(40));
        text.push_str("exit\n");
        program(&text)
    };
    let code_len = |calls| {
        let setup = Setup { fuel: u32::MAX, ..Setup::new() };
        let (_, verified) = observe(&program(calls), &setup);
        compile(&verified.unwrap(), setup.options).unwrap().code_len()
    };
    check(&program(1000), "calls of a small function");
    // Ten calls are as many times the function. Of a thousand nearly all are calls.
    let (one, ten, thousand) = (code_len(1), code_len(10), code_len(1000));
    assert!(ten > 3 * one, "{one} {ten}");
    assert!(thousand < 50 * ten, "{ten} {thousand}");
}

#[test]
fn the_native_stack_of_eight_frames_is_counted() {
    let mut text = String::new();
    for depth in 1..8 {
        text.push_str(&format!("r1 = {depth}\ncall deeper_{depth}\nexit\ndeeper_{depth}:\n"));
    }
    text.push_str("r0 = r1\nexit");
    let deep = compile_observed(&text, &Setup::new());
    let flat = compile_observed("r0 = 1\nexit", &Setup::new());
    assert!(deep.stack_len() >= flat.stack_len() + 7 * 16, "{} {}", deep.stack_len(), flat.stack_len());
    check(&program(&text), "eight frames");
}

#[test]
fn variants_are_not_more_than_anyone_can_wait_for() {
    use crate::compiler::CompileError;
    use crate::verdict::Variant;

    let program = repeated("r0 = 0\n", |_| "r0 += 1\n".to_owned(), INSTRUCTIONS_MAX - 2);
    let verified = Verified::new(program, HOOK, vec![Variant::new(0); 5]);
    assert!(matches!(compile(&verified, Options::default()), Err(CompileError::TooLarge { .. })));
}

#[cfg(target_os = "linux")]
#[test]
fn code_is_executable_and_nothing_is_writable_besides() {
    let compiled = compile_observed("r0 = 1\nexit", &Setup::new());
    let begin = compiled.parts.code.first() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_code = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
        range.contains(&begin).then(|| rest.get(..4).unwrap_or_default().to_owned())
    });
    assert_eq!(of_code.as_deref(), Some("r-xp"));
    assert!(!maps.lines().any(|line| line.contains(" rwx")), "{maps}");
}
