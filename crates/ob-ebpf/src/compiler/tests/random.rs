//! Programs that nobody would write, run both ways.

use proptest::prelude::*;

use super::*;
use crate::isa::{AluOp, AtomicOp, ByteOrder, Operand, Size, Test, Wide, Width, encode};

/// Registers that programs compute with. The others hold the regions' addresses.
const FREE: [Register; 5] = [Register::R0, Register::R1, Register::R2, Register::R3, Register::R4];
/// Addresses of the scratch, of the data, and of what was found there.
const BASES: [Register; 3] = [Register::R6, Register::R7, Register::R8];

fn free() -> impl Strategy<Value = Register> + Clone {
    prop::sample::select(&FREE[..])
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::W32), Just(Width::W64)]
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![-4..70i32, any::<i32>()]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![free().prop_map(Operand::Register), number().prop_map(Operand::Immediate)]
}

fn place() -> impl Strategy<Value = (Register, i16)> {
    // Mostly inside; sometimes not, which ends the call.
    let inside = (prop::sample::select(&BASES[..2]), 0i16..57);
    let anywhere = (prop::sample::select(&BASES[..]), -4i16..70);
    let frame = (Just(Register::R10), (-64i16..-7).prop_map(|offset| offset & !7));
    prop_oneof![8 => inside, 1 => anywhere, 4 => frame]
}

fn atomic() -> impl Strategy<Value = AtomicOp> {
    prop_oneof![
        any::<bool>().prop_map(|fetch| AtomicOp::Add { fetch }),
        any::<bool>().prop_map(|fetch| AtomicOp::Or { fetch }),
        any::<bool>().prop_map(|fetch| AtomicOp::And { fetch }),
        any::<bool>().prop_map(|fetch| AtomicOp::Xor { fetch }),
        Just(AtomicOp::Exchange),
        Just(AtomicOp::CompareExchange),
    ]
}

/// An instruction; targets are put right later.
fn instruction() -> impl Strategy<Value = Instruction> {
    let size = || prop::sample::select(&Size::ALL[..]);
    let short = || prop::sample::select(&[Size::B2, Size::B4, Size::B8][..]);
    let order = prop::sample::select(&[ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap][..]);
    let test = prop::sample::select(&Test::ALL[..]);
    prop_oneof![
        8 => (width(), prop::sample::select(&AluOp::ALL[..]), free(), operand())
            .prop_map(|(width, op, to, from)| Instruction::Alu { width, op, to, from }),
        1 => (width(), free()).prop_map(|(width, to)| Instruction::Negate { width, to }),
        2 => (width(), free(), operand()).prop_map(|(width, to, from)| Instruction::Move { width, to, from }),
        1 => (prop::sample::select(&[Size::B1, Size::B2][..]), width(), free(), free())
            .prop_map(|(size, width, to, from)| Instruction::MoveSigned { width, size, to, from }),
        1 => (order, short(), free()).prop_map(|(order, size, to)| Instruction::Bytes { order, size, to }),
        1 => (free(), any::<u64>())
            .prop_map(|(to, number)| Instruction::LoadWide { to, value: Wide::Number(number) }),
        4 => (size(), any::<bool>(), free(), place()).prop_map(|(size, is_signed, to, (base, offset))| {
            Instruction::Load { size, is_signed: is_signed && size != Size::B8, to, base, offset }
        }),
        4 => (size(), operand(), place())
            .prop_map(|(size, from, (base, offset))| Instruction::Store { size, base, offset, from }),
        1 => (width(), atomic(), free(), place())
            .prop_map(|(width, op, from, (base, offset))| Instruction::Atomic { width, op, base, offset, from }),
        3 => (width(), test, free(), operand(), 0usize..64).prop_map(|(width, test, left, right, target)| {
            Instruction::Branch { width, test, left, right, target }
        }),
        1 => (0usize..64).prop_map(|target| Instruction::Jump { target }),
        1 => Just(Instruction::Call { callee: Callee::Local(0) }),
    ]
}

/// What a program begins with, so that random instructions find numbers in registers and in the frame.
fn prologue() -> Vec<Instruction> {
    let load =
        |to, offset| Instruction::Load { size: Size::B8, is_signed: false, to, base: Register::R1, offset };
    let mut instructions = vec![load(Register::R0, 0), load(Register::R7, 16), load(Register::R6, 32)];
    instructions.push(Instruction::Move {
        width: Width::W64,
        to: Register::R8,
        from: Operand::Register(Register::R6),
    });
    instructions.push(Instruction::Alu {
        width: Width::W64,
        op: AluOp::Add,
        to: Register::R8,
        from: Operand::Register(Register::R0),
    });
    instructions.extend(numbers());
    instructions
}

fn numbers() -> Vec<Instruction> {
    let set = |to, number| Instruction::Move { width: Width::W64, to, from: Operand::Immediate(number) };
    let mut instructions: Vec<_> =
        FREE.into_iter().zip([3, -5, 100, 1 << 20, -1]).map(|(to, number)| set(to, number)).collect();
    instructions.extend((1..=8).map(|slot| Instruction::Store {
        size: Size::B8,
        base: Register::R10,
        offset: -8 * slot,
        from: Operand::Immediate(slot.into()),
    }));
    instructions
}

/// A program of two functions. The second gets no addresses, and so has its frame only.
fn assemble_random(first: &[Instruction], second: &[Instruction]) -> Vec<Instruction> {
    let mut instructions = prologue();
    let first_body = instructions.len();
    // A call leaves no arguments, so numbers are put there again.
    let restore = || {
        FREE.into_iter().skip(1).map(|to| Instruction::Move {
            width: Width::W64,
            to,
            from: Operand::Immediate(9),
        })
    };
    let calls = first.iter().filter(|instruction| matches!(instruction, Instruction::Call { .. })).count();
    let second_begin = first_body + first.len() + 4 * calls + 1;
    for instruction in first {
        match *instruction {
            Instruction::Call { .. } => {
                instructions.push(Instruction::Call { callee: Callee::Local(second_begin) });
                instructions.extend(restore());
            }
            instruction => instructions.push(retarget(instruction, first_body, second_begin - first_body)),
        }
    }
    instructions.push(Instruction::Exit);
    instructions.extend(numbers());
    let second_body = instructions.len();
    for instruction in second {
        let is_elsewhere = match *instruction {
            Instruction::Load { base, .. }
            | Instruction::Store { base, .. }
            | Instruction::Atomic { base, .. } => base != Register::R10,
            Instruction::Call { .. } => true,
            _ => false,
        };
        if is_elsewhere {
            instructions.push(Instruction::Negate { width: Width::W64, to: Register::R2 });
        } else {
            instructions.push(retarget(*instruction, second_body, second.len() + 1));
        }
    }
    instructions.push(Instruction::Exit);
    instructions
}

fn retarget(instruction: Instruction, begin: usize, len: usize) -> Instruction {
    match instruction {
        Instruction::Jump { target } => Instruction::Jump { target: begin + target % len },
        Instruction::Branch { width, test, left, right, target } => {
            Instruction::Branch { width, test, left, right, target: begin + target % len }
        }
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn compiled_code_does_what_the_interpreter_does(
        first in prop::collection::vec(instruction(), 0..40),
        second in prop::collection::vec(instruction(), 0..20),
        offset in prop_oneof![0u64..70, any::<u64>()],
        fuel in prop_oneof![Just(5000u32), 0u32..1000],
        keep_checks in any::<bool>(),
    ) {
        let bytes = encode(&assemble_random(&first, &second)).unwrap();
        let program = Arc::new(Program::from_bytes(&bytes).unwrap());
        let setup = Setup { number: offset, fuel, options: Options { keep_checks }, ..Setup::new() };
        let (expected, verified) = observe(&program, &setup);
        if let Some(verified) = verified {
            let compiled = compile(&verified, setup.options).unwrap();
            prop_assert_eq!(call(&setup, |call| compiled.run(call)), expected);
        } else {
            // Only what writes to the data, which is not to be written, is refused here.
            let is_read_only = matches!(
                expected.outcome,
                Err(CallError::Fault(Fault { what: FaultKind::Unproven(_), .. }))
            );
            prop_assert!(is_read_only, "{:?}", expected.outcome);
        }
    }
}

/// More on request.
fn cases() -> u32 {
    std::env::var("OUTBOARD_BPF_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
}
