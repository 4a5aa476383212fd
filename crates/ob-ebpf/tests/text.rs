//! Programs as text: what is read, what is written, and what is said of what cannot be read.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::common;

use std::sync::Arc;

use ob_ebpf::isa::{
    self, Callee, Decoded, INSTRUCTIONS_MAX, Instruction, Operand, Register, Size, Wide, Width,
};
use ob_ebpf::program::{Parts, Program, SourceLine};
use ob_ebpf::text::{AssembleError, Listing, Unreadable, assemble, disassemble, print_instruction};
use ob_ebpf::world::Helper;
use proptest::prelude::*;

const WHOLE: Listing = Listing { has_lines: false, has_data: true };

fn instructions(text: &str) -> Vec<Instruction> {
    assemble(text).unwrap_or_else(|error| panic!("{text}: {error}")).decoded.instructions
}

/// The one instruction of a line.
fn one(line: &str) -> Instruction {
    instructions(&format!("{line}\nexit\nexit\nexit"))[0]
}

fn error(text: &str) -> AssembleError {
    assemble(text).expect_err(text)
}

/// Where something is wrong, and what is said of it.
fn said(text: &str) -> (usize, usize, String) {
    let error = error(text);
    (error.line, error.column, error.what.to_string())
}

#[test]
fn dialects_labels_and_comments_stand_side_by_side() {
    let text = "
        # a loop
        main: mov %r0, 0            ; to zero
        .again:   r0 += 1           // by one
        jlt %r0, 10, .again
        if r0 == 10 goto done
        1: ja done
    done: exit
    ";
    let left = Register::R0;
    let found = instructions(text);
    assert_eq!(found.len(), 6);
    let targets: Vec<_> = found.iter().map(Instruction::target).collect();
    assert_eq!(targets, [None, None, Some(1), Some(5), Some(5), None]);
    assert_eq!(found[0], Instruction::Move { width: Width::W64, to: left, from: Operand::Immediate(0) });
}

#[test]
fn distances_count_slots() {
    let found = instructions("goto +2\nr0 = 5 ll\nif r0 == 1 goto -3\nexit");
    assert_eq!(found[0], Instruction::Jump { target: 2 });
    assert_eq!(found[2].target(), Some(1));
    // A disassembler says where that is.
    assert_eq!(one("if r1 != 0x2 goto +0x1 <LBB0_2+0x8>").target(), Some(2));
    assert_eq!(error("goto +1\nr0 = 5 ll\nexit").what, Unreadable::Target(2));
    assert_eq!(error("goto -2\nexit").what, Unreadable::Target(-1));
}

#[test]
fn the_first_exit_has_a_name() {
    let found = instructions("jne %r0, %r1, exit\nmov %r0, 0\nexit\nexit");
    assert_eq!(found[0].target(), Some(2));
    // Unless the text gives it to another place.
    let found = instructions("jne %r0, %r1, exit\nexit\nexit: mov %r0, 0\nexit");
    assert_eq!(found[0].target(), Some(2));
}

#[test]
fn calls_go_to_helpers_and_functions() {
    let helper = |helper: Helper| Instruction::Call { callee: Callee::Helper(helper.number()) };
    assert_eq!(one("call 2"), helper(Helper::Copy));
    assert_eq!(one("call 0x2"), helper(Helper::Copy));
    assert_eq!(one("call helper 2"), helper(Helper::Copy));
    assert_eq!(one("call helper ob_copy"), helper(Helper::Copy));
    assert_eq!(one("call ob_crc32c"), helper(Helper::Crc32c));
    assert_eq!(one("call 4294967295"), Instruction::Call { callee: Callee::Helper(u32::MAX) });
    let local = |at| Instruction::Call { callee: Callee::Local(at) };
    assert_eq!(instructions("call local f\nexit\nf: exit")[0], local(2));
    assert_eq!(instructions("call local +1\nexit\nexit")[0], local(2));
    // Names of functions are not kept from the author.
    for name in ["local", "helper", "ob_copy", "exit", "lock"] {
        assert_eq!(instructions(&format!("call {name}\nexit\n{name}: exit"))[0], local(2), "{name}");
    }
    assert_eq!(error("call %r1").what, Unreadable::CallRegister);
    assert_eq!(error("callx r1").what, Unreadable::CallRegister);
    assert_eq!(error("call f\nexit").what, Unreadable::LabelMissing("f".into()));
}

#[test]
fn immediates_are_bits_in_hexadecimal_and_numbers_in_decimal() {
    let immediate = |text: &str| match one(text) {
        Instruction::Move { from: Operand::Immediate(immediate), .. } => immediate,
        other => panic!("{other:?}"),
    };
    assert_eq!(immediate("mov %r0, 0xffffffff"), -1);
    assert_eq!(immediate("r0 = 0x80000000"), i32::MIN);
    assert_eq!(immediate("r0 = -2147483648"), i32::MIN);
    assert_eq!(immediate("w0 = -0x1"), -1);
    let what = "an immediate";
    let min = i128::from(i32::MIN);
    let range = |number, max| Unreadable::Range { what, number, min, max };
    assert_eq!(error("r0 = 2147483648").what, range(1 << 31, i32::MAX.into()));
    assert_eq!(error("mov %r0, 0x100000000").what, range(1 << 32, u32::MAX.into()));
    assert_eq!(error("r0 = -2147483649").what, range(-(1 << 31) - 1, i32::MAX.into()));
    let wide = |text: &str| match one(text) {
        Instruction::LoadWide { value: Wide::Number(number), .. } => number,
        other => panic!("{other:?}"),
    };
    assert_eq!(wide("lddw %r0, 18446744073709551615"), u64::MAX);
    assert_eq!(wide("r0 = -1 ll"), u64::MAX);
    assert_eq!(wide("r0 = 0x10 ll"), 16);
    assert!(matches!(error("r0 = -18446744073709551615 ll").what, Unreadable::Range { .. }));
    assert_eq!(error("lddw %r0, 18446744073709551616").column, 11);
}

#[test]
fn offsets_have_sixteen_bits() {
    let offset = |text: &str| match one(text) {
        Instruction::Load { offset, .. } => offset,
        other => panic!("{other:?}"),
    };
    assert_eq!(offset("ldxb %r0, [%r1]"), 0);
    assert_eq!(offset("r0 = *(u8 *)(r1)"), 0);
    assert_eq!(offset("ldxb %r0, [%r1 + 0x7fff]"), i16::MAX);
    assert_eq!(offset("r0 = *(u8 *)(r1 - 32768)"), i16::MIN);
    assert!(matches!(error("r0 = *(u8 *)(r1 + 32768)").what, Unreadable::Range { .. }));
    assert!(matches!(error("stb [%r1-32769], 0").what, Unreadable::Range { .. }));
}

/// Compilers that know the lower halves of registers write them where it makes no difference.
#[test]
fn lower_halves_are_read_where_they_mean_the_same() {
    assert_eq!(one("w1 = *(u32 *)(r2 + 0)"), one("r1 = *(u32 *)(r2 + 0)"));
    assert_eq!(one("*(u8 *)(r2 + 0) = w1"), one("*(u8 *)(r2 + 0) = r1"));
    assert_eq!(one("lock *(u32 *)(r1 + 0) += r2"), one("lock *(u32 *)(r1 + 0) += w2"));
    for text in
        ["w1 = *(u64 *)(r2 + 0)", "w1 = *(s8 *)(r2 + 0)", "*(u64 *)(r2 + 0) = w1", "r1 = w2", "w1 += r2"]
    {
        assert!(matches!(error(text).what, Unreadable::Expected { .. }), "{text}");
    }
}

#[test]
fn data_and_its_addresses_are_text_too() {
    let assembled = assemble(
        ".data_len_min 16\n.read_only 00 ff1\t2 # three\n.read_only 03\n.per_call aa;\n\
         r1 = read_only + 2 ll\nr2 = per_call ll\nlddw %r3, per_call+0x1\nexit",
    )
    .unwrap();
    let value = |at: usize| match assembled.decoded.instructions[at] {
        Instruction::LoadWide { value, .. } => value,
        other => panic!("{other:?}"),
    };
    assert_eq!((value(0), value(1), value(2)), (Wide::ReadOnly(2), Wide::PerCall(0), Wide::PerCall(1)));
    let program = assembled.program().unwrap();
    assert_eq!((program.read_only(), program.per_call()), (&[0, 0xff, 0x12, 3][..], &[0xaa][..]));
    assert_eq!(program.data_len_min(), 16);
}

#[test]
fn errors_say_where_and_what_was_expected() {
    assert_eq!(
        said("r0 = 1\n  r0 * 2\nexit"),
        (2, 6, "expected an assignment, such as = or +=, found *".into())
    );
    assert_eq!(said("mov %r0 1"), (1, 9, "expected ,, found 1".into()));
    assert_eq!(said("mov %r0,"), (1, 9, "expected a number or a register, found the end of the line".into()));
    assert_eq!(said("exit 1"), (1, 6, "expected the end of the line, found 1".into()));
    assert_eq!(said("frob %r0"), (1, 1, "there is no instruction frob".into()));
    assert_eq!(said("lock nand [%r1], %r2"), (1, 6, "there is no instruction nand".into()));
    let registers = "they are r0 to r10, and w0 to w10 for their lower halves";
    assert_eq!(said("mov %r11, 1"), (1, 5, format!("there is no register r11; {registers}")));
    assert_eq!(said("r0 = r01"), (1, 6, format!("there is no register r01; {registers}")));
    assert_eq!(said("r10 = 1"), (1, 1, "r10 cannot be written".into()));
    assert_eq!(said("r0 = 1 é"), (1, 8, "the character 'é' means nothing here".into()));
    assert_eq!(said("r0 = -r1"), (1, 7, "expected the same register as before, found r1".into()));
    assert_eq!(said("r0 = be16 r1"), (1, 11, "expected the same register as before, found r1".into()));
    assert_eq!(said("ja nowhere"), (1, 4, "there is no label nowhere".into()));
    assert_eq!(said("a: exit\nb: a: exit"), (2, 4, "the label a is set already, in line 1".into()));
    assert_eq!(said("goto end\nend:"), (1, 6, "expected an instruction behind the label, found end".into()));
    assert_eq!(said(".type f, @function\nexit"), (1, 7, "there is no label f".into()));
    assert_eq!(
        said(".read_only 0"),
        (1, 13, "expected pairs of hexadecimal digits, found a single digit".into())
    );
    assert_eq!(said(" .per_call 0x"), (1, 13, "expected pairs of hexadecimal digits, found x".into()));
    assert_eq!(said("12ab"), (1, 1, "expected a number of 64 bits, found 12ab".into()));
    let writes = "expected an operation that writes the register on the left, found one that writes";
    assert_eq!(said("r1 = xchg_64(r2 + 0, r3)"), (1, 6, format!("{writes} r3")));
    assert_eq!(said("r0 = cmpxchg32_32(r2 + 0, w0, w3)"), (1, 6, format!("{writes} w0")));
    assert_eq!(
        said("lock *(u8 *)(r1 + 0) += r2"),
        (1, 6, "expected u32 or u64, found a type of 8 bits".into())
    );
    assert_eq!(said(""), (1, 1, "there are no instructions".into()));
}

#[test]
fn a_text_is_as_long_as_a_program() {
    assert!(assemble(&"exit\n".repeat(INSTRUCTIONS_MAX)).is_ok());
    let error = error(&"exit\n".repeat(INSTRUCTIONS_MAX + 1));
    assert_eq!((error.line, error.what), (INSTRUCTIONS_MAX + 1, Unreadable::TooLong));
}

#[test]
fn branches_reach_from_the_first_instruction_to_the_last() {
    let wide = "r1 = 1 ll\n".repeat(INSTRUCTIONS_MAX - 2);
    let found = instructions(&format!("if r1 == 0 goto end\n{wide}end: exit"));
    assert_eq!(found[0].target(), Some(INSTRUCTIONS_MAX - 1));
    let found = instructions(&format!("r0 = 1\n{wide}if r1 == 0 goto -32765"));
    assert_eq!(found[INSTRUCTIONS_MAX - 1].target(), Some(1));
}

#[test]
fn a_listing_shows_functions_labels_and_lines() {
    let text = "main: r1 = 0x7 ll\nagain: call add\nif r0 s< 5 goto again\ncall 6\ncall 77\nexit\nadd: r0 += r1\nexit\n";
    let mut assembled = assemble(&format!(".type main, @function\n{text}")).unwrap();
    let line = |line, text: &str| SourceLine { file: Arc::from("a.c"), line, text: Arc::from(text) };
    assembled.parts.lines = vec![(0, line(3, "\tint a =\n7;")), (2, line(4, "if (a)"))];
    assembled.parts.read_only = vec![0xab; 33];
    let program = assembled.program().unwrap();
    let wanted = "\
.type main, @function
main:
    ; a.c:3: int a = 7;
    r1 = 0x7 ll
.L2:
    call add
    ; a.c:4: if (a)
    if r0 s< 5 goto .L2
    call 6 # ob_log
    call 77 # not known
    exit

.type add, @function
add:
    r0 += r1
    exit
";
    assert_eq!(disassemble(&program, Listing { has_lines: true, has_data: false }), wanted);
    let whole = disassemble(&program, WHOLE);
    assert!(whole.starts_with(&format!(".read_only {}\n.read_only ab\n\n.type", "ab".repeat(32))), "{whole}");
}

#[test]
fn names_that_are_no_words_become_some() {
    let names = ["", "r1", "a b", "a_b", ".x", "7", "x\n exit\n", "ünter"];
    let mut instructions = vec![Instruction::Exit; names.len()];
    instructions.push(Instruction::Exit);
    let names = names.iter().enumerate().map(|(at, name)| (at, (*name).to_owned())).collect();
    let decoded = isa::decode(&isa::encode(&instructions).unwrap()).unwrap();
    let program = Program::new(decoded, Parts { names, ..Parts::default() }).unwrap();
    let again = assemble(&disassemble(&program, WHOLE)).unwrap().program().unwrap();
    assert_eq!(again.instructions(), program.instructions());
    let names: Vec<_> = again.functions().iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["_", "r1_1", "a_b", "a_b_3", "_.x", "_7", "x__exit_", "_nter"]);
}

#[test]
fn single_instructions_can_be_printed() {
    let load = Instruction::Load {
        size: Size::B2,
        is_signed: true,
        to: Register::R3,
        base: Register::R10,
        offset: -2,
    };
    assert_eq!(print_instruction(&load, &|_| String::new()), "r3 = *(s16 *)(r10 - 2)");
    assert_eq!(print_instruction(&Instruction::Jump { target: 7 }, &|at| format!("#{at}")), "goto #7");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(program in common::program()) {
        let text = disassemble(&program, WHOLE);
        let again = assemble(&text).map_err(|error| TestCaseError::fail(format!("{error} in\n{text}")))?;
        prop_assert_eq!(again.program().unwrap(), program);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\n]{0,80}") {
        let _ = assemble(&text);
    }

    /// Text of what instructions are made of, so that much of it is nearly right.
    #[test]
    fn nearly_right_text_is_read_or_refused(words in proptest::collection::vec(proptest::sample::select(vec![
        "r0", "w1", "%r2", "r10", "r99", "=", "+=", "s", ">>=", "-", "+", "*", "(", ")", "[", "]", ",", ":", "<", ">", "5", "0xffffffffffffffff",
        "u8", "s32", "u64", "if", "goto", "call", "local", "helper", "lock", "fetch", "add", "xchg", "xchg_64", "cmpxchg32_32",
        "atomic_fetch_or", "ll", "read_only", "per_call", "be16", "movsx864", "ldxdw", "stxb", "jeq", "exit", ".type", "@", "function",
        ".read_only", ".data_len_min", "é", "\n", "\n",
    ]), 0..24)) {
        let text = words.join(" ");
        if let Ok(assembled) = assemble(&text) {
            let Decoded { instructions, .. } = &assembled.decoded;
            prop_assert_eq!(&isa::decode(&isa::encode(instructions).unwrap()).unwrap(), &assembled.decoded);
        }
    }
}
