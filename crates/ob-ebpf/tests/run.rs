//! What clang has compiled gives what the same computation gives in Rust.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::cell::RefCell;

use ob_ebpf::call::{Call, CallError, LogSink, NoTable, Refusal};
use ob_ebpf::elf::Object;
use ob_ebpf::helpers;
use ob_ebpf::interpreter::Interpreter;
use ob_ebpf::world::{Entry, Field, FieldKind, World};
use proptest::prelude::*;

const SCRATCH_LEN: usize = 64;

const fn field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, purpose: "tests" }
}

/// The context of `objects.h`.
const WORLD: World = World {
    name: "storage",
    entry: Entry::Context,
    fields: &[
        field("data", FieldKind::Data),
        field("data_len", FieldKind::DataLen),
        field("scratch", FieldKind::Scratch),
        field("scratch_len", FieldKind::ScratchLen),
        field("numbers[0]", FieldKind::Number),
        field("numbers[1]", FieldKind::Number),
        field("numbers[2]", FieldKind::Number),
        field("numbers[3]", FieldKind::Number),
    ],
    scratch_len: SCRATCH_LEN as u32,
    data_len_max: 4096,
    table_value_len: 0,
    is_called_by_name: false,
};

#[repr(C, align(8))]
struct Scratch([u8; SCRATCH_LEN]);

#[derive(Default)]
struct Log(RefCell<Vec<(u64, u64)>>);

impl LogSink for Log {
    fn log(&self, first: u64, second: u64) {
        self.0.borrow_mut().push((first, second));
    }
}

/// What came of a call.
struct Ran {
    outcome: Result<u64, CallError>,
    scratch: [u8; SCRATCH_LEN],
    logged: Vec<(u64, u64)>,
}

fn run(object: &[u8], entry: &str, data: &[u8], numbers: [u64; 4]) -> Ran {
    let program = Object::parse(object).unwrap().program(Some(entry)).unwrap();
    let mut scratch = Scratch([0; SCRATCH_LEN]);
    let log = Log::default();
    let [a, b, c, d] = numbers;
    let mut context = [0, 0, 0, 0, a, b, c, d];
    let mut call = Call {
        data,
        scratch: &mut scratch.0,
        context: &mut context,
        fuel: 1_000_000,
        table: &NoTable,
        log: &log,
    };
    let outcome = Interpreter::new().run(&program, &WORLD, &mut call);
    Ran { outcome, scratch: scratch.0, logged: log.0.into_inner() }
}

fn squares(left: u64, right: u64) -> u64 {
    left.wrapping_mul(left).wrapping_add(right.wrapping_mul(right))
}

fn narrow([left, right, ..]: [u64; 4]) -> u64 {
    let (mut left, right, mut sum, mut at) = (left as u32, right as u32, 0u32, 0);
    // The bound is computed anew each time, as the source says.
    while at < left & 31 {
        left = left.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if (left as i32) < right as i32 {
            sum = sum.wrapping_sub(left >> (at & 7));
        } else {
            sum ^= right / (left | 1);
        }
        at += 1;
    }
    sum.into()
}

fn version4(data: &[u8; 8], [a, b, c, d]: [u64; 4]) -> u64 {
    let half = i16::from_le_bytes([data[2], data[3]]);
    let word = i32::from_le_bytes([data[4], data[5], data[6], data[7]]);
    let mut sum = i64::from(i32::from(data[1] as i8).wrapping_add(half.into()).wrapping_add(word));
    // What the source leaves open, the instructions say: division by zero gives zero, and its remainder the dividend.
    sum = sum.wrapping_add((a as i64).checked_div(b as i64).unwrap_or(if b == 0 { 0 } else { a as i64 }));
    let (left, right) = (a as i32, b as i32);
    sum = sum.wrapping_add(if right == 0 { left } else { left.wrapping_rem(right) }.into());
    sum = sum.wrapping_add((c as i8).into());
    sum ^= d.swap_bytes() as i64;
    sum ^= i64::from((d as u32).swap_bytes());
    sum as u64
}

/// Numbers that are small as often as not.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..40, (0u64..40).prop_map(u64::wrapping_neg), Just(1 << 63), Just(1 << 31)]
}

proptest! {
    #[test]
    fn functions_call_functions(first in number(), data in any::<[u8; 4]>()) {
        let found = squares(first, 3).wrapping_add(1);
        let expected = found.wrapping_add(helpers::crc32c(0, &data)).wrapping_add(squares(found, 2));
        let ran = run(include_bytes!("objects/calls.o"), "calls", &data, [first, 0, 0, 0]);
        prop_assert_eq!(ran.outcome, Ok(expected));
    }

    #[test]
    fn arithmetic_of_32_bits_is_that_of_c(numbers in [number(), number(), number(), number()]) {
        let ran = run(include_bytes!("objects/narrow.o"), "narrow", &[], numbers);
        prop_assert_eq!(ran.outcome, Ok(narrow(numbers)));
    }

    #[test]
    fn what_came_with_version_4_is_that_of_c(data in any::<[u8; 8]>(), numbers in [number(), number(), number(), number()]) {
        let ran = run(include_bytes!("objects/version4.o"), "version4", &data, numbers);
        prop_assert_eq!(ran.outcome, Ok(version4(&data, numbers)));
        prop_assert_eq!(&ran.scratch[..5], &[77, 0, 0, 0, 0]);
    }

    #[test]
    fn constants_and_variables_are_there(first in number(), second in number(), is_name in any::<bool>(), is_card in any::<bool>()) {
        let mut data = [0; 64];
        if is_name {
            data[..8].copy_from_slice(b"outboard");
        }
        if is_card {
            data[8..12].copy_from_slice(b"card");
        }
        let prime = [2, 3, 5, 7, 11, 13, 17, 19][first as usize & 7];
        let expected = 7 + 0x1234 + prime + u64::from(is_name) + u64::from(is_card);
        let ran = run(include_bytes!("objects/data.o"), "data", &data, [first, second, 0, 0]);
        prop_assert_eq!(ran.outcome, Ok(expected));
    }

    #[test]
    fn entries_share_functions(first in number(), second in number()) {
        let object = include_bytes!("objects/entries.o");
        let sum = first.wrapping_add(second);
        let ran = run(object, "first", &[], [first, second, 0, 0]);
        prop_assert_eq!((ran.outcome, ran.logged), (Ok(sum.wrapping_add(1)), vec![]));
        let ran = run(object, "second", &[], [first, second, 0, 0]);
        prop_assert_eq!((ran.outcome, ran.logged), (Ok(sum.wrapping_add(2)), vec![(1, 2)]));
    }
}

#[test]
fn atomics_are_those_of_c() {
    let ran = run(include_bytes!("objects/atomics.o"), "atomics", &[], [0; 4]);
    // The word is 0, 1, 8 (of 1 ^ 9), 7, 8; the counter 0, 3; the flags 0, 5, 6.
    assert_eq!(ran.outcome, Ok(1 + 3 + 8 + 7 + 5));
    assert_eq!(ran.scratch[..9], [8, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_program_gets_the_data_that_it_asks_for_or_is_not_run() {
    let ran = run(include_bytes!("objects/data.o"), "data", &[0; 63], [0; 4]);
    assert_eq!(ran.outcome, Err(CallError::Refused(Refusal::DataTooShort { len: 63, min: 64 })));
}
