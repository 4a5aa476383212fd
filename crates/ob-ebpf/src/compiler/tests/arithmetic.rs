//! Every operation, test and turn of bytes, over every pair of numbers that has ever been a bug.

use super::*;
use crate::isa::{AluOp, ByteOrder, Operand, Size, Test, Wide, Width};

/// Operands at which something changes, and a few of no importance.
const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    7,
    31,
    32,
    33,
    63,
    64,
    65,
    0x7f,
    0x80,
    0xff00,
    i32::MAX as u64,
    i32::MIN as u32 as u64,
    u32::MAX as u64,
    1 << 32,
    i32::MIN as i64 as u64,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
    u64::MAX - 1,
    0x0123_4567_89ab_cdef,
    0xfedc_ba98_7654_3210,
];
const WIDTHS: [Width; 2] = [Width::W32, Width::W64];

/// A program that takes its operands from the scratch, and puts its result there.
fn of_operation(operations: &[Instruction]) -> Compiled {
    let load =
        |to, offset| Instruction::Load { size: Size::B8, is_signed: false, to, base: Register::R1, offset };
    let mut instructions = vec![load(Register::R0, 0), load(Register::R2, 8)];
    instructions.extend_from_slice(operations);
    instructions.push(Instruction::Exit);
    let bytes = crate::isa::encode(&instructions).unwrap();
    let program = Arc::new(Program::from_bytes(&bytes).unwrap());
    let (_, verified) = observe(&program, &raw(0, 0));
    compile(&verified.unwrap(), Options { keep_checks: false }).unwrap()
}

fn raw(left: u64, right: u64) -> Setup {
    let scratch = [left.to_le_bytes(), right.to_le_bytes()].concat();
    Setup { world: World::raw(16), data: Vec::new(), scratch, ..Setup::new() }
}

fn compute(compiled: &Compiled, left: u64, right: u64) -> u64 {
    call(&raw(left, right), |call| compiled.run(call)).outcome.unwrap()
}

#[test]
fn operations_are_those_of_the_definition() {
    let (to, from) = (Register::R0, Operand::Register(Register::R2));
    for op in AluOp::ALL {
        for width in WIDTHS {
            let compiled = of_operation(&[Instruction::Alu { width, op, to, from }]);
            for left in NUMBERS {
                for right in NUMBERS {
                    let expected = op.apply(width, left, right);
                    let result = compute(&compiled, left, right);
                    assert_eq!(result, expected, "{op:?} {width:?} {left:#x} {right:#x}");
                }
            }
        }
    }
}

#[test]
fn operations_with_constants_are_those_of_the_definition() {
    let to = Register::R0;
    for op in AluOp::ALL {
        for width in WIDTHS {
            for right in [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 1000, -1, -2, i32::MAX, i32::MIN] {
                let from = Operand::Immediate(right);
                let compiled = of_operation(&[Instruction::Alu { width, op, to, from }]);
                for left in NUMBERS {
                    let expected = op.apply(width, left, i64::from(right) as u64);
                    let result = compute(&compiled, left, 0);
                    assert_eq!(result, expected, "{op:?} {width:?} {left:#x} {right:#x}");
                }
            }
        }
    }
}

#[test]
fn an_operation_of_a_register_with_itself_is_right() {
    let (to, from) = (Register::R0, Operand::Register(Register::R0));
    for op in AluOp::ALL {
        for width in WIDTHS {
            let compiled = of_operation(&[Instruction::Alu { width, op, to, from }]);
            for number in NUMBERS {
                assert_eq!(
                    compute(&compiled, number, 0),
                    op.apply(width, number, number),
                    "{op:?} {number:#x}"
                );
            }
        }
    }
}

#[test]
fn tests_are_those_of_the_definition() {
    for test in Test::ALL {
        for width in WIDTHS {
            let program = |right| {
                let branch = Instruction::Branch { width, test, left: Register::R0, right, target: 5 };
                let set = |number| Instruction::Move {
                    width: Width::W64,
                    to: Register::R0,
                    from: Operand::Immediate(number),
                };
                of_operation(&[branch, set(0), Instruction::Exit, set(1)])
            };
            let compiled = program(Operand::Register(Register::R2));
            for left in NUMBERS {
                for right in NUMBERS {
                    let expected = u64::from(test.holds(width, left, right));
                    assert_eq!(
                        compute(&compiled, left, right),
                        expected,
                        "{test:?} {width:?} {left:#x} {right:#x}"
                    );
                }
            }
            for right in [0, 1, -1, 64, i32::MAX, i32::MIN] {
                let compiled = program(Operand::Immediate(right));
                for left in NUMBERS {
                    let expected = u64::from(test.holds(width, left, i64::from(right) as u64));
                    assert_eq!(
                        compute(&compiled, left, 0),
                        expected,
                        "{test:?} {width:?} {left:#x} {right:#x}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_has_one_operand_is_that_of_the_definition() {
    let to = Register::R0;
    for width in WIDTHS {
        let negate = of_operation(&[Instruction::Negate { width, to }]);
        let move_to = of_operation(&[Instruction::Move { width, to, from: Operand::Register(Register::R0) }]);
        for number in NUMBERS {
            assert_eq!(compute(&negate, number, 0), AluOp::Sub.apply(width, 0, number));
            assert_eq!(compute(&move_to, number, 0), AluOp::Or.apply(width, number, 0));
        }
        for constant in [0, 1, -1, i32::MIN, i32::MAX] {
            let from = Operand::Immediate(constant);
            let compiled = of_operation(&[Instruction::Move { width, to, from }]);
            assert_eq!(compute(&compiled, 9, 9), AluOp::Or.apply(width, 0, i64::from(constant) as u64));
        }
        for size in [Size::B1, Size::B2, Size::B4].into_iter().filter(|size| size.bits() < width.bits()) {
            let compiled = of_operation(&[Instruction::MoveSigned { width, size, to, from: Register::R2 }]);
            for number in NUMBERS {
                let extended = match size {
                    Size::B1 => i64::from(number as i8),
                    Size::B2 => i64::from(number as i16),
                    _ => i64::from(number as i32),
                };
                assert_eq!(compute(&compiled, 5, number), AluOp::Or.apply(width, 0, extended as u64));
            }
        }
    }
    for order in [ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap] {
        for size in [Size::B2, Size::B4, Size::B8] {
            let compiled = of_operation(&[Instruction::Bytes { order, size, to }]);
            for number in NUMBERS {
                assert_eq!(compute(&compiled, number, 0), order.apply(size, number), "{order:?} {size:?}");
            }
        }
    }
    for number in NUMBERS {
        let compiled = of_operation(&[Instruction::LoadWide { to, value: Wide::Number(number) }]);
        assert_eq!(compute(&compiled, 1, 2), number);
    }
}
