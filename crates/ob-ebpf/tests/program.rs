//! The shape of programs: what is refused before anybody looks at registers and memory, and what time costs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::common;

use std::sync::Arc;

use ob_ebpf::isa::{Callee, DecodeError, Decoded, Instruction, Undecodable};
use ob_ebpf::program::{
    FRAMES_MAX, FUNCTIONS_MAX, Function, Parts, Program, ProgramError, SECTION_LEN_MAX, SourceLine,
};
use ob_ebpf::text::assemble;
use proptest::prelude::*;

fn program(text: &str) -> Result<Program, ProgramError> {
    assemble(text).unwrap().program()
}

fn function(name: &str, begin: usize, end: usize) -> Function {
    Function { name: name.into(), begin, end }
}

#[test]
fn functions_begin_where_calls_go_and_where_names_are() {
    let text = "call helper\nexit\nhelper:\nr0 = 1 ll\nexit\n.type alone, @function\nalone:\nexit";
    let found = program(text).unwrap();
    let wanted = [function("function_0", 0, 2), function("helper", 2, 4), function("alone", 4, 5)];
    assert_eq!(found.functions(), wanted);
    assert_eq!((0..5).map(|at| found.function_at(at)).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
    assert_eq!((0..5).map(|at| found.slot(at)).collect::<Vec<_>>(), [0, 1, 2, 4, 5]);
    assert_eq!(found.slot(5), u32::MAX);
    assert_eq!(found.functions()[1].len(), 2);
    assert!(!found.functions()[1].is_empty());
}

#[test]
fn no_instructions_are_no_program() {
    let nothing = Program::new(Decoded::default(), Parts::default());
    let why = DecodeError { slot: 0, what: Undecodable::Empty };
    assert_eq!(nothing, Err(ProgramError::Undecodable(why)));
}

#[test]
fn jumps_stay_in_their_function() {
    let text = "call helper\ngoto inside\nhelper:\nr0 = 1\ninside: exit";
    assert_eq!(program(text), Err(ProgramError::JumpsOut { at: 1, target: 3 }));
    let text = "again: call helper\nexit\nhelper: if r1 == 0 goto again\nexit";
    assert_eq!(program(text), Err(ProgramError::JumpsOut { at: 2, target: 0 }));
}

#[test]
fn functions_do_not_end_where_the_next_one_begins() {
    let falls = |at, function: &str| Err(ProgramError::FallsThrough { at, function: function.into() });
    assert_eq!(program("r0 = 1"), falls(0, "function_0"));
    assert_eq!(program("call helper\nhelper: exit"), falls(0, "function_0"));
    assert_eq!(program("call helper\nexit\nhelper: if r1 == 0 goto helper"), falls(2, "helper"));
    assert!(program("again: goto again").is_ok());
}

#[test]
fn nothing_calls_itself() {
    let recursion = |at, function: &str| Err(ProgramError::Recursion { at, function: function.into() });
    assert_eq!(program("self: call self\nexit"), recursion(0, "self"));
    let text = "call one\nexit\none: call two\nexit\ntwo: call one\nexit";
    assert_eq!(program(text), recursion(4, "one"));
    // Nobody calls these two but each other.
    let text = "exit\none: call two\nexit\ntwo: call one\nexit";
    assert_eq!(program(text), recursion(3, "one"));
}

/// A chain of functions that call the next one, behind each other or the other way round.
fn chain(len: usize, is_reversed: bool) -> Result<Program, ProgramError> {
    let mut numbers: Vec<usize> = (1..len).collect();
    if is_reversed {
        numbers.reverse();
    }
    let mut text = String::from("call f1\nexit\n");
    for number in numbers {
        let call = if number + 1 < len { format!("call f{}\n", number + 1) } else { String::new() };
        text += &format!("f{number}: r0 = 0\n{call}exit\n");
    }
    program(&text)
}

#[test]
fn calls_are_as_deep_as_there_are_frames() {
    for is_reversed in [false, true] {
        assert!(chain(FRAMES_MAX, is_reversed).is_ok());
        assert!(matches!(chain(FRAMES_MAX + 1, is_reversed), Err(ProgramError::TooDeep { .. })));
    }
    // What was found to be deep by one way is deep by another as well.
    let text = "call f6\ncall f1\nexit\nf6: call f7\nexit\nf7: exit\nf1: call f2\nexit\nf2: call f3\nexit\nf3: call f4\nexit\n\
        f4: call f5\nexit\nf5: call f5b\nexit\nf5b: call f6\nexit";
    assert!(matches!(program(text), Err(ProgramError::TooDeep { .. })));
}

#[test]
fn many_ways_to_a_function_are_gone_once() {
    // Each calls the next one many times: by all ways that would be 40 to the power of 7.
    let mut text = String::new();
    for number in 0..FRAMES_MAX {
        text += &format!("f{number}:\n");
        for _ in 0..if number + 1 < FRAMES_MAX { 40 } else { 0 } {
            text += &format!("call f{}\n", number + 1);
        }
        text += "exit\n";
    }
    assert_eq!(program(&text).unwrap().functions().len(), FRAMES_MAX);
}

#[test]
fn functions_are_counted() {
    let many = |count: usize| {
        let calls: String = (1..count).map(|number| format!("call f{number}\n")).collect();
        let bodies: String = (1..count).map(|number| format!("f{number}: exit\n")).collect();
        program(&format!("{calls}exit\n{bodies}"))
    };
    assert!(many(FUNCTIONS_MAX).is_ok());
    assert_eq!(many(FUNCTIONS_MAX + 1), Err(ProgramError::Functions(FUNCTIONS_MAX + 1)));
}

#[test]
fn addresses_of_data_lie_in_it_or_just_behind() {
    assert!(program(".read_only 0011\nr1 = read_only + 2 ll\nexit").is_ok());
    let error = program(".read_only 0011\nexit\nr1 = read_only + 3 ll\nexit");
    assert_eq!(error, Err(ProgramError::Address { at: 1, offset: 3, len: 2 }));
    let error = program(".read_only 0011\nr1 = per_call + 1 ll\nexit");
    assert_eq!(error, Err(ProgramError::Address { at: 0, offset: 1, len: 0 }));
}

#[test]
fn data_has_its_limits() {
    let with = |read_only: usize, per_call: usize| {
        let mut assembled = assemble("exit").unwrap();
        assembled.parts.read_only = vec![0; read_only];
        assembled.parts.per_call = vec![0; per_call];
        assembled.program()
    };
    assert!(with(SECTION_LEN_MAX, SECTION_LEN_MAX).is_ok());
    let len = SECTION_LEN_MAX + 1;
    assert_eq!(with(len, 0), Err(ProgramError::Section { section: "read-only", len }));
    assert_eq!(with(0, len), Err(ProgramError::Section { section: "per-call", len }));
}

#[test]
fn bytes_alone_are_a_program() {
    let found = Program::from_bytes(&[0x95, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(found.instructions(), [Instruction::Exit]);
    assert!(matches!(Program::from_bytes(&[0xff; 8]), Err(ProgramError::Undecodable(_))));
}

#[test]
fn lines_go_on_until_the_next_one_or_the_function_s_end() {
    let mut assembled = assemble("call f\nr0 = 1\nr0 = 2\nexit\nf: exit").unwrap();
    let line = |line| SourceLine { file: Arc::from("a.c"), line, text: Arc::from("") };
    assembled.parts.lines = vec![(1, line(7)), (3, line(8))];
    let found = assembled.program().unwrap();
    let lines: Vec<_> = (0..5).map(|at| found.line(at).map(|line| line.line)).collect();
    assert_eq!(lines, [None, Some(7), Some(7), Some(8), None]);
}

/// Goes through a program by any way, and counts: never more instructions than were paid for.
fn walk(program: &Program, mut choices: impl Iterator<Item = bool>) -> Result<(), TestCaseError> {
    let mut paid = u64::from(program.entry_fuel());
    let mut frames = Vec::new();
    let mut at = 0;
    for executed in 1..5000u64 {
        prop_assert!(executed <= paid, "instruction {at} is the {executed}th, and {paid} were paid for");
        let instruction = program.instructions()[at];
        let next = match instruction {
            Instruction::Exit => match frames.pop() {
                Some(behind) => {
                    at = behind;
                    continue;
                }
                None => return Ok(()),
            },
            Instruction::Call { callee: Callee::Local(target) } => {
                frames.push(at + 1);
                prop_assert!(frames.len() < FRAMES_MAX);
                target
            }
            Instruction::Jump { target } => target,
            Instruction::Branch { target, .. } if choices.next().unwrap_or(false) => target,
            _ => at + 1,
        };
        paid += u64::from(program.fuel(at, next));
        at = next;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nobody_executes_more_than_was_paid_for(
        program in common::program(),
        choices in proptest::collection::vec(any::<bool>(), 64),
    ) {
        walk(&program, choices.iter().copied().cycle())?;
    }
}

#[test]
fn what_takes_longer_costs_more() {
    let cost = |line: &str| program(&format!("{line}\nr0 = 0\nexit")).unwrap().entry_fuel() - 2;
    assert_eq!(cost("r1 += r2"), 1);
    assert_eq!(cost("r1 = 5 ll"), 1);
    for line in ["r1 /= r2", "w1 /= 3", "r1 %= r2", "r1 s/= r2", "w1 s%= w2"] {
        assert_eq!(cost(line), 4, "{line}");
    }
    for line in ["lock *(u64 *)(r10 - 8) += r1", "r1 = atomic_fetch_or((u64 *)(r10 - 8), r1)"] {
        assert_eq!(cost(line), 8, "{line}");
    }
    // Around a loop and into a function as well.
    let text = "again:\nr1 /= r2\ncall inner\nif r1 != 0 goto again\nexit\ninner:\nlock *(u64 *)(r10 - 8) += r1\nexit";
    let found = program(text).unwrap();
    assert_eq!((found.fuel(2, 0), found.fuel(1, 4), found.entry_fuel()), (6, 9, 7));
}
