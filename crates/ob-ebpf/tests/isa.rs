//! Instructions as bytes: every one of them, and everything that is none.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::common;

use std::collections::BTreeSet;

use ob_ebpf::isa::{
    self, Callee, EncodeError, INSTRUCTIONS_MAX, Instruction, Operand, Register, SLOT_LEN, Size, Test,
    Undecodable, Wide, Width,
};
use proptest::prelude::*;

/// Each instruction's bytes, as LLVM encodes them, and its text in both dialects.
const GOLDEN: &str = include_str!("golden/instructions.txt");

const EXIT: [u8; SLOT_LEN] = [0x95, 0, 0, 0, 0, 0, 0, 0];

fn golden() -> impl Iterator<Item = (Vec<u8>, &'static str, &'static str)> {
    GOLDEN.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut columns = line.split(" | ");
        let (hex, statement, mnemonic) =
            (columns.next().unwrap(), columns.next().unwrap(), columns.next().unwrap());
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
        (bytes.collect(), statement, mnemonic)
    })
}

/// With instructions around them that they can go to.
fn surrounded(bytes: &[u8]) -> Vec<u8> {
    [&EXIT, bytes, &EXIT, &EXIT, &EXIT].concat()
}

#[test]
fn each_instruction_has_the_bytes_that_llvm_gives_it() {
    let mut count = 0;
    for (bytes, statement, _) in golden() {
        let all = surrounded(&bytes);
        let decoded = isa::decode(&all).unwrap_or_else(|error| panic!("{statement}: {error}"));
        if statement.starts_with("gotol") {
            // The same jump has a shorter form, which is preferred.
            assert_eq!(decoded.instructions[1], Instruction::Jump { target: 4 });
            assert_eq!(isa::decode(&isa::encode(&decoded.instructions).unwrap()).unwrap(), decoded);
        } else {
            assert_eq!(isa::encode(&decoded.instructions).unwrap(), all, "{statement}");
        }
        count += 1;
    }
    assert_eq!(count, 156);
}

#[test]
fn each_instruction_is_read_from_both_dialects_and_written_in_one() {
    for (bytes, statement, mnemonic) in golden() {
        let wanted = isa::decode(&surrounded(&bytes)).unwrap();
        for text in [statement, mnemonic] {
            let text = format!("exit\n{text}\nexit\nexit\nexit\n");
            let assembled = ob_ebpf::text::assemble(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(assembled.decoded, wanted, "{text}");
        }
        let distance = |target: usize| format!("{:+}", target as i64 - 2);
        let printed = ob_ebpf::text::print_instruction(&wanted.instructions[1], &distance);
        assert_eq!(printed, statement.replace("gotol", "goto"));
    }
}

/// Whatever opcode can be decoded stands in the golden file.
#[test]
fn no_opcode_is_missing() {
    let golden: BTreeSet<u8> = golden().map(|(bytes, ..)| bytes[0]).collect();
    for opcode in 0..=u8::MAX {
        let slot = [opcode, 0, 0, 0, 0, 0, 0, 0];
        let is_known = match isa::decode(&[slot, [0; SLOT_LEN], EXIT].concat()) {
            Err(error) if error.slot == 0 => !matches!(
                error.what,
                Undecodable::Opcode(_) | Undecodable::Packet(_) | Undecodable::CallRegister
            ),
            _ => true,
        };
        assert_eq!(is_known, golden.contains(&opcode), "{opcode:#04x}");
    }
}

/// What is wrong with the first of these slots; the others are there to be gone to.
fn wrong(slot: [u8; SLOT_LEN]) -> Undecodable {
    let error = isa::decode(&[slot, EXIT, EXIT].concat()).unwrap_err();
    assert_eq!(error.slot, 0, "{error}");
    error.what
}

#[test]
fn what_is_no_instruction_is_refused_with_the_reason() {
    let decode = |bytes: &[u8]| isa::decode(bytes).unwrap_err();
    assert_eq!((decode(&[]).slot, decode(&[]).what), (0, Undecodable::Empty));
    let cut = decode(&[&EXIT[..], &[0; 7]].concat());
    assert_eq!((cut.slot, cut.what), (1, Undecodable::Cut));
    let wide = decode(&[0x18, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!((wide.slot, wide.what), (0, Undecodable::Cut));
    let long = decode(&EXIT.repeat(INSTRUCTIONS_MAX + 1));
    assert_eq!((long.slot, long.what), (INSTRUCTIONS_MAX, Undecodable::TooLong));
    // So long that it is not even looked at.
    assert_eq!(decode(&[0xff; (2 * INSTRUCTIONS_MAX + 1) * SLOT_LEN]).what, Undecodable::TooLong);
    assert!(isa::decode(&EXIT.repeat(INSTRUCTIONS_MAX)).is_ok());

    assert_eq!(wrong([0xff, 0, 0, 0, 0, 0, 0, 0]), Undecodable::Opcode(0xff));
    for opcode in [0x20, 0x28, 0x30, 0x40, 0x48, 0x50] {
        assert_eq!(wrong([opcode, 0, 0, 0, 0, 0, 0, 0]), Undecodable::Packet(opcode));
    }
    assert_eq!(wrong([0x8d, 0, 0, 0, 0, 0, 0, 0]), Undecodable::CallRegister);
    assert_eq!(wrong([0xb7, 11, 0, 0, 0, 0, 0, 0]), Undecodable::Register(11));
    assert_eq!(wrong([0xbf, 0xf0, 0, 0, 0, 0, 0, 0]), Undecodable::Register(15));
    assert_eq!(wrong([0x05, 0, 9, 0, 0, 0, 0, 0]), Undecodable::Target(10));
    assert_eq!(wrong([0x05, 0, 0xfe, 0xff, 0, 0, 0, 0]), Undecodable::Target(-1));
    assert_eq!(wrong([0x85, 0x10, 0, 0, 0, 0, 0, 0x80]), Undecodable::Target(1 + i64::from(i32::MIN)));
}

#[test]
fn nobody_goes_into_the_middle_of_a_wide_instruction() {
    let jump = [0x05, 0, 1, 0, 0, 0, 0, 0];
    let error = isa::decode(&[jump, [0x18, 0, 0, 0, 0, 0, 0, 0], [0; 8], EXIT].concat()).unwrap_err();
    assert_eq!((error.slot, error.what), (0, Undecodable::Target(2)));
}

#[test]
fn the_frame_s_end_cannot_be_written() {
    for opcode in [0x07, 0x0f, 0x87, 0xb7, 0xbf, 0x04, 0x18, 0x79, 0x91] {
        assert_eq!(wrong_two([opcode, 0x0a, 0, 0, 0, 0, 0, 0]), Undecodable::FrameWritten, "{opcode:#04x}");
    }
    assert_eq!(wrong([0xd4, 0x0a, 0, 0, 16, 0, 0, 0]), Undecodable::FrameWritten);
    // An exchange with it would write it; an addition without fetching only reads it, and comparing writes r0.
    assert_eq!(wrong([0xdb, 0xa1, 0, 0, 0xe1, 0, 0, 0]), Undecodable::FrameWritten);
    assert_eq!(wrong([0xdb, 0xa1, 0, 0, 0x01, 0, 0, 0]), Undecodable::FrameWritten);
    for code in [0x00, 0xf1] {
        assert!(isa::decode(&[[0xdb, 0xa1, 0, 0, code, 0, 0, 0], EXIT].concat()).is_ok());
    }
}

/// The same, for what may be wide.
fn wrong_two(slot: [u8; SLOT_LEN]) -> Undecodable {
    isa::decode(&[slot, [0; SLOT_LEN], EXIT].concat()).unwrap_err().what
}

/// For each opcode: which fields it does not use, by setting them one by one.
#[test]
fn fields_that_are_not_used_are_zero() {
    for (bytes, statement, _) in golden() {
        let mut refused = BTreeSet::new();
        let fields: [(&str, &[(usize, u8)]); 4] = [
            ("destination", &[(1, 0x03)]),
            ("source", &[(1, 0x30)]),
            ("offset", &[(2, 5)]),
            ("immediate", &[(6, 9)]),
        ];
        for (field, changes) in fields {
            let mut bytes = bytes.clone();
            for (at, bits) in changes {
                bytes[*at] ^= bits;
            }
            if let Err(error) = isa::decode(&surrounded(&bytes)) {
                match error.what {
                    Undecodable::Field { field: named, .. } => {
                        assert_eq!(named, field, "{statement}");
                        refused.insert(field);
                    }
                    // It went elsewhere, which is a use.
                    Undecodable::Target(_) => {}
                    other => panic!("{statement}: {other}"),
                }
            }
        }
        let wanted: &[&str] = match bytes[0] {
            0x95 => &["destination", "immediate", "offset", "source"],
            0x05 => &["destination", "immediate", "source"],
            0x06 => &["destination", "offset", "source"],
            0x85 => &["destination", "offset", "source"],
            0x18 => &["offset", "source"],
            opcode => match opcode & 7 {
                1 => &["immediate"],
                2 => &["source"],
                // The immediate of an atomic operation is what it does.
                3 => &["immediate"],
                5 | 6 if opcode & 8 == 0 => &["source"],
                5 | 6 => &["immediate"],
                // Negation takes nothing; turning bytes says by the immediate how many.
                _ if matches!(opcode & 0xf0, 0x80 | 0xd0) => &["immediate", "offset", "source"],
                _ if opcode & 8 == 0 => &["offset", "source"],
                _ => &["immediate", "offset"],
            },
        };
        assert_eq!(refused, wanted.iter().copied().collect(), "{statement}");
    }
}

#[test]
fn values_of_fields_that_mean_nothing_are_named() {
    let field = |field, value| Undecodable::Field { field, value };
    assert_eq!(wrong_two([0x18, 0x20, 0, 0, 0, 0, 0, 0]), field("source", 2));
    assert_eq!(wrong_two([0x18, 0x60, 0, 0, 2, 0, 0, 0]), field("section", 2));
    assert_eq!(wrong([0x85, 0x20, 0, 0, 0, 0, 0, 0]), field("source", 2));
    assert_eq!(wrong([0xdb, 0x21, 0, 0, 0x60, 0, 0, 0]), field("immediate", 0x60));
    assert_eq!(wrong([0xd4, 0, 0, 0, 8, 0, 0, 0]), field("immediate", 8));
    assert_eq!(wrong([0xbc, 0, 32, 0, 0, 0, 0, 0]), field("offset", 32));
    assert_eq!(wrong([0xb7, 0, 8, 0, 0, 0, 0, 0]), field("offset", 8));
    assert_eq!(wrong([0x37, 0, 2, 0, 0, 0, 0, 0]), field("offset", 2));
    let second = |slot: [u8; SLOT_LEN]| {
        isa::decode(&[[0x18, 0, 0, 0, 0, 0, 0, 0], slot, EXIT].concat()).unwrap_err().what
    };
    assert_eq!(second([0x95, 0, 0, 0, 0, 0, 0, 0]), field("second opcode", 0x95));
    assert_eq!(second([0, 1, 0, 0, 0, 0, 0, 0]), field("destination", 1));
    assert_eq!(second([0, 0x10, 0, 0, 0, 0, 0, 0]), field("source", 1));
    assert_eq!(second([0, 0, 1, 0, 0, 0, 0, 0]), field("offset", 1));
}

#[test]
fn addresses_of_data_have_bytes_of_their_own() {
    let read_only =
        [Instruction::LoadWide { to: Register::R1, value: Wide::ReadOnly(0x0102) }, Instruction::Exit];
    let bytes = [0x18, 0x61, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0];
    assert_eq!(isa::encode(&read_only).unwrap()[..16], bytes);
    let per_call = [Instruction::LoadWide { to: Register::R1, value: Wide::PerCall(7) }, Instruction::Exit];
    let bytes = [0x18, 0x61, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0];
    assert_eq!(isa::encode(&per_call).unwrap()[..16], bytes);
}

#[test]
fn slots_are_counted_where_instructions_are_wide() {
    let wide = Instruction::LoadWide { to: Register::R0, value: Wide::Number(u64::MAX) };
    let call = Instruction::Call { callee: Callee::Local(3) };
    let instructions = [wide, call, Instruction::Exit, wide, Instruction::Exit];
    let bytes = isa::encode(&instructions).unwrap();
    assert_eq!(bytes.len(), 7 * SLOT_LEN);
    assert_eq!(bytes[16..24], [0x85, 0x10, 0, 0, 1, 0, 0, 0]);
    let decoded = isa::decode(&bytes).unwrap();
    assert_eq!(decoded.instructions, instructions);
    assert_eq!(decoded.slots, [0, 2, 3, 4, 6]);
}

#[test]
fn what_cannot_be_written_down_is_refused() {
    let exit = Instruction::Exit;
    let to = Register::R1;
    let illegal = [
        Instruction::Load { size: Size::B8, is_signed: true, to, base: to, offset: 0 },
        Instruction::Bytes { order: isa::ByteOrder::Big, size: Size::B1, to },
        Instruction::MoveSigned { width: Width::W32, size: Size::B4, to, from: to },
        Instruction::MoveSigned { width: Width::W64, size: Size::B8, to, from: to },
    ];
    for instruction in illegal {
        assert_eq!(isa::encode(&[exit, instruction]), Err(EncodeError::Illegal { at: 1 }));
    }
    assert_eq!(isa::encode(&[Instruction::Jump { target: 1 }]), Err(EncodeError::Target { at: 0 }));

    // A branch reaches 32767 slots, a jump any instruction.
    let wide = Instruction::LoadWide { to, value: Wide::Number(0) };
    let far = |first: Instruction, between: usize| {
        let mut all = vec![first];
        all.extend(std::iter::repeat_n(wide, between / 2));
        all.extend(std::iter::repeat_n(exit, between % 2 + 1));
        isa::encode(&all)
    };
    let target = |between: usize| 1 + between / 2 + between % 2;
    let branch = |between| Instruction::Branch {
        width: Width::W64,
        test: Test::Equal,
        left: to,
        right: Operand::Immediate(0),
        target: target(between),
    };
    assert!(far(branch(32767), 32767).is_ok());
    assert_eq!(far(branch(32768), 32768), Err(EncodeError::Target { at: 0 }));
    let bytes = far(Instruction::Jump { target: target(32768) }, 32768).unwrap();
    assert_eq!(bytes[..8], [0x06, 0, 0, 0, 0, 0x80, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_is_decoded(functions in common::functions()) {
        let instructions = functions.concat();
        let bytes = isa::encode(&instructions).unwrap();
        let decoded = isa::decode(&bytes).unwrap();
        prop_assert_eq!(&decoded.instructions, &instructions);
        let wide = instructions.iter().filter(|one| matches!(one, Instruction::LoadWide { .. })).count();
        prop_assert_eq!(bytes.len(), (instructions.len() + wide) * SLOT_LEN);
    }

    /// Any bytes: an error, or instructions whose bytes are these again.
    #[test]
    fn what_is_decoded_is_encoded(
        slots in proptest::collection::vec(
            (any::<u8>(), any::<u8>(), prop_oneof![3 => Just(0i16), 1 => -3..3i16, 1 => any::<i16>()],
             prop_oneof![3 => Just(0i32), 2 => -3..3i32, 1 => Just(16), 1 => any::<i32>()]), 1..6)
    ) {
        let mut bytes = Vec::new();
        for (opcode, registers, offset, immediate) in slots {
            bytes.extend([opcode, registers & 0x77]);
            bytes.extend(offset.to_le_bytes());
            bytes.extend(immediate.to_le_bytes());
        }
        if let Ok(decoded) = isa::decode(&bytes) {
            let again = isa::encode(&decoded.instructions).unwrap();
            prop_assert_eq!(&isa::decode(&again).unwrap(), &decoded);
            // Only the long form of a jump may have become the short one.
            let shortened = again.chunks(8).zip(bytes.chunks(8)).filter(|(new, old)| new != old);
            for (new, old) in shortened {
                prop_assert_eq!((new[0], old[0]), (0x05, 0x06));
            }
        }
    }
}
