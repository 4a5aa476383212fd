//! What holds of any program, and how fast it is.

use proptest::prelude::*;

use super::*;
use crate::interpreter::{Observer, Value};
use crate::isa::{AluOp, AtomicOp, Callee, Decoded, Instruction, Operand, Register, Size, Test, Wide, Width};
use crate::program::Parts;

/// Instructions of each of the two functions.
const LEN: usize = 24;

fn register() -> impl Strategy<Value = Register> {
    (0u8..11).prop_filter_map("a register", Register::new)
}

fn written() -> impl Strategy<Value = Register> {
    (0u8..10).prop_filter_map("a register", Register::new)
}

fn operand() -> impl Strategy<Value = Operand> {
    let number = prop_oneof![-16..16, Just(0), any::<i32>()];
    prop_oneof![register().prop_map(Operand::Register), number.prop_map(Operand::Immediate)]
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![3 => Just(Width::W64), 1 => Just(Width::W32)]
}

fn offset() -> impl Strategy<Value = i16> {
    prop_oneof![4 => (-9i16..9).prop_map(|word| word * 8), 1 => -520i16..520]
}

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![3 => Just(Size::B8), 1 => proptest::sample::select(&Size::ALL[..])]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let alu = proptest::sample::select(&AluOp::ALL[..]);
    let alu = prop_oneof![2 => Just(AluOp::Add), 1 => alu];
    let test = proptest::sample::select(&Test::ALL[..]);
    let atomic = prop_oneof![Just(AtomicOp::Add { fetch: true }), Just(AtomicOp::CompareExchange)];
    let atomic = (width(), atomic, register(), offset(), written());
    let helper = (0u32..8).prop_map(Callee::Helper);
    prop_oneof![
        3 => (width(), alu, written(), operand()).prop_map(|(width, op, to, from)| Instruction::Alu { width, op, to, from }),
        4 => (width(), written(), operand()).prop_map(|(width, to, from)| Instruction::Move { width, to, from }),
        1 => (written(), any::<u64>()).prop_map(|(to, number)| Instruction::LoadWide { to, value: Wide::Number(number) }),
        1 => (written(), 0u32..=16).prop_map(|(to, offset)| Instruction::LoadWide { to, value: Wide::PerCall(offset) }),
        4 => (size(), written(), register(), offset())
            .prop_map(|(size, to, base, offset)| Instruction::Load { size, is_signed: false, to, base, offset }),
        4 => (size(), register(), offset(), operand())
            .prop_map(|(size, base, offset, from)| Instruction::Store { size, base, offset, from }),
        1 => atomic.prop_map(|(width, op, base, offset, from)| Instruction::Atomic { width, op, base, offset, from }),
        2 => (width(), test, register(), operand(), 0..LEN)
            .prop_map(|(width, test, left, right, target)| Instruction::Branch { width, test, left, right, target }),
        1 => (0..LEN).prop_map(|target| Instruction::Jump { target }),
        1 => helper.prop_map(|callee| Instruction::Call { callee }),
        1 => Just(Instruction::Call { callee: Callee::Local(LEN) }),
        1 => Just(Instruction::Exit),
    ]
}

/// Something of every kind in registers, so that programs get somewhere.
const BEGIN: &str = "r2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 16)\nr4 = 8\nr5 = 1\nr0 = 0\nr6 = r1\nr7 = r10\nr8 = 3\nr9 = r3\nexit";

/// A program of two functions, of which the first calls the second.
fn any_program() -> impl Strategy<Value = Program> {
    let half = || proptest::collection::vec(instruction(), LEN - 1);
    (half(), half()).prop_map(|(first, second)| {
        let mut instructions = program(BEGIN).instructions().to_vec();
        instructions.pop();
        instructions.extend(first);
        instructions.truncate(LEN - 1);
        instructions.push(Instruction::Exit);
        instructions.extend(second.into_iter().map(|instruction| match instruction {
            Instruction::Call { callee: Callee::Local(_) } => Instruction::Exit,
            Instruction::Jump { target } => Instruction::Jump { target: target + LEN },
            Instruction::Branch { width, test, left, right, target } => {
                Instruction::Branch { width, test, left, right, target: target + LEN }
            }
            other => other,
        }));
        instructions.push(Instruction::Exit);
        let slots = (0..instructions.len() as u32).collect();
        let parts = Parts { per_call: vec![3; 16], ..Parts::default() };
        Program::new(Decoded { instructions, slots }, parts).unwrap()
    })
}

struct Count(u32);

impl Observer for Count {
    fn before(&mut self, _at: usize, _registers: &[Value; Register::COUNT], _fuel: u32) {
        self.0 += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// Whatever a program is, it ends, for no more instructions than it has paid for; and what it did before changes nothing.
    #[test]
    fn every_program_ends_and_ends_the_same(program in any_program(), fuel in 0u32..3000) {
        let begin = Rig { fuel, table: vec![(vec![0; 8], [1; 16])], ..Rig::default() };
        let (mut first, mut second) = (begin.clone(), begin.clone());
        let mut interpreter = Interpreter::new();
        let mut count = Count(0);
        let table = Table(&begin.table);
        let mut call = Call {
            data: &begin.data,
            scratch: &mut first.scratch,
            context: &mut first.context,
            fuel,
            table: &table,
            log: &begin.logged,
        };
        let outcome = interpreter.run_observed(&program, &WORLD, &mut call, &mut count);
        let left = call.fuel;
        prop_assert!(count.0 <= fuel - left, "{} instructions for {}", count.0, fuel - left);
        prop_assert_eq!(second.run_program(&mut interpreter, &program), outcome);
        prop_assert_eq!((second.fuel, second.scratch, second.context), (left, first.scratch, first.context));
        let is_unchanged = |field: usize| second.context[field] == begin.context[field];
        prop_assert!((0..5).all(is_unchanged), "only results are written");
    }
}

/// Run with `cargo test --release -p ob-ebpf speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    let loops = [
        ("arithmetic", "r0 = 0\nr3 = 100000\nagain:\nr0 += r3\nr0 ^= 5\nr3 += -1\nif r3 != 0 goto again\nexit", 4),
        (
            "memory",
            "r0 = 0\nr3 = 100000\nr2 = *(u64 *)(r1 + 0)\nagain:\n*(u64 *)(r10 - 8) = r3\nr4 = *(u64 *)(r10 - 8)
            r5 = *(u8 *)(r2 + 3)\nr0 += r5\nr3 += -1\nif r3 != 0 goto again\nexit",
            6,
        ),
        (
            "calls",
            "r6 = 100000\nagain:\ncall local f\nr6 += -1\nif r6 != 0 goto again\nexit\nf:\nr0 = 0\nexit",
            5,
        ),
    ];
    let mut interpreter = Interpreter::new();
    for (name, asm, instructions) in loops {
        let program = program(asm);
        let best = (0..10).map(|_| {
            let begin = std::time::Instant::now();
            Rig { fuel: u32::MAX, ..Rig::default() }.run_program(&mut interpreter, &program).unwrap();
            begin.elapsed()
        });
        let best = best.min().unwrap();
        println!(
            "{name}: {:.1} ns an instruction",
            best.as_nanos() as f64 / f64::from(instructions * 100_000)
        );
    }
    let program = program("r0 = 0\nexit");
    let mut rig = Rig { fuel: u32::MAX, ..Rig::default() };
    let begin = std::time::Instant::now();
    for _ in 0..1_000_000 {
        rig.run_program(&mut interpreter, &program).unwrap();
    }
    println!("an empty program: {:.1} ns", begin.elapsed().as_nanos() as f64 / 1e6);
}
