//! Instructions and programs for property tests: all that the encoding has, and nothing else.

#![allow(dead_code, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

pub(crate) mod elf;

use ob_ebpf::isa::{
    self, AluOp, AtomicOp, ByteOrder, Callee, Instruction, Operand, Register, Size, Test, Wide, Width,
};
use ob_ebpf::program::{Parts, Program};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Bytes of read-only and of per-call data of the programs that are made here.
pub(crate) const DATA_LEN: usize = 70;

/// Any register but the one that cannot be written.
pub(crate) fn written() -> impl Strategy<Value = Register> {
    (0..10u8).prop_map(|number| Register::new(number).unwrap())
}

/// Any register.
pub(crate) fn register() -> impl Strategy<Value = Register> {
    (0..11u8).prop_map(|number| Register::new(number).unwrap())
}

fn width() -> impl Strategy<Value = Width> {
    select(vec![Width::W32, Width::W64])
}

fn immediate() -> impl Strategy<Value = i32> {
    prop_oneof![any::<i32>(), -3..3i32, Just(i32::MIN), Just(i32::MAX)]
}

fn offset() -> impl Strategy<Value = i16> {
    prop_oneof![any::<i16>(), -16..16i16, Just(i16::MIN), Just(i16::MAX)]
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![register().prop_map(Operand::Register), immediate().prop_map(Operand::Immediate)]
}

fn size() -> impl Strategy<Value = Size> {
    select(Size::ALL.to_vec())
}

fn atomic() -> impl Strategy<Value = AtomicOp> {
    let mut all = vec![AtomicOp::Exchange, AtomicOp::CompareExchange];
    for fetch in [false, true] {
        all.extend([
            AtomicOp::Add { fetch },
            AtomicOp::Or { fetch },
            AtomicOp::And { fetch },
            AtomicOp::Xor { fetch },
        ]);
    }
    select(all)
}

/// Any instruction. Targets are any number; [`program`] makes sense of them.
pub(crate) fn instruction() -> impl Strategy<Value = Instruction> {
    let wide = prop_oneof![
        any::<u64>().prop_map(Wide::Number),
        (0..=DATA_LEN as u32).prop_map(Wide::ReadOnly),
        (0..=DATA_LEN as u32).prop_map(Wide::PerCall),
    ];
    let signed = select(vec![
        (Width::W32, Size::B1),
        (Width::W32, Size::B2),
        (Width::W64, Size::B1),
        (Width::W64, Size::B2),
        (Width::W64, Size::B4),
    ]);
    let orders = select(vec![ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap]);
    prop_oneof![
        4 => (width(), select(AluOp::ALL.to_vec()), written(), operand())
            .prop_map(|(width, op, to, from)| Instruction::Alu { width, op, to, from }),
        1 => (width(), written()).prop_map(|(width, to)| Instruction::Negate { width, to }),
        2 => (width(), written(), operand())
            .prop_map(|(width, to, from)| Instruction::Move { width, to, from }),
        1 => (signed, written(), register())
            .prop_map(|((width, size), to, from)| Instruction::MoveSigned { width, size, to, from }),
        1 => (orders, select(vec![Size::B2, Size::B4, Size::B8]), written())
            .prop_map(|(order, size, to)| Instruction::Bytes { order, size, to }),
        2 => (written(), wide).prop_map(|(to, value)| Instruction::LoadWide { to, value }),
        2 => (size(), any::<bool>(), written(), register(), offset()).prop_map(
            |(size, is_signed, to, base, offset)| {
                let is_signed = is_signed && size != Size::B8;
                Instruction::Load { size, is_signed, to, base, offset }
            }
        ),
        2 => (size(), register(), offset(), operand())
            .prop_map(|(size, base, offset, from)| Instruction::Store { size, base, offset, from }),
        2 => (width(), atomic(), register(), offset(), written())
            .prop_map(|(width, op, base, offset, from)| Instruction::Atomic { width, op, base, offset, from }),
        1 => any::<u16>().prop_map(|target| Instruction::Jump { target: target.into() }),
        3 => (width(), select(Test::ALL.to_vec()), register(), operand(), any::<u16>()).prop_map(
            |(width, test, left, right, target)| {
                Instruction::Branch { width, test, left, right, target: target.into() }
            }
        ),
        1 => any::<u32>().prop_map(|helper| Instruction::Call { callee: Callee::Helper(helper) }),
        1 => any::<u16>().prop_map(|target| Instruction::Call { callee: Callee::Local(target.into()) }),
        1 => Just(Instruction::Exit),
    ]
}

/// Functions whose jumps stay within them, and which call those behind them.
pub(crate) fn functions() -> impl Strategy<Value = Vec<Vec<Instruction>>> {
    vec(vec(instruction(), 0..30), 1..5).prop_map(|mut functions| {
        let mut begins = vec![0];
        for function in &functions {
            begins.push(begins.last().unwrap() + function.len() + 1);
        }
        let count = functions.len();
        for (number, function) in functions.iter_mut().enumerate() {
            function.push(Instruction::Exit);
            let len = function.len();
            for instruction in function {
                match instruction {
                    Instruction::Jump { target } | Instruction::Branch { target, .. } => {
                        *target = begins[number] + *target % len;
                    }
                    Instruction::Call { callee } => {
                        if let Callee::Local(any) = *callee {
                            *callee = match count - number - 1 {
                                0 => Callee::Helper(any as u32),
                                behind => Callee::Local(begins[number + 1 + any % behind]),
                            };
                        }
                    }
                    _ => {}
                }
            }
        }
        functions
    })
}

/// A program whose shape is right, with names and data.
pub(crate) fn program() -> impl Strategy<Value = Program> {
    let data = || vec(any::<u8>(), DATA_LEN);
    (functions(), data(), data(), any::<u32>()).prop_map(|(functions, read_only, per_call, data_len_min)| {
        let mut names = Vec::new();
        let mut begin = 0;
        for (number, function) in functions.iter().enumerate() {
            names.push((begin, format!("part.{number}")));
            begin += function.len();
        }
        let bytes = isa::encode(&functions.concat()).unwrap();
        let parts = Parts { names, lines: Vec::new(), read_only, per_call, data_len_min };
        Program::new(isa::decode(&bytes).unwrap(), parts).unwrap()
    })
}
