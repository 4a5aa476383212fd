//! Changes a program a little: where a bound is right, it is wrong by one then, or taken of the wrong half.

use crate::campaign::generate::{Draft, register};
use crate::campaign::random::Random;
use crate::isa::{AluOp, Instruction, Operand, Register, Size, Test, Width};

/// Makes one change.
pub(super) fn mutate(random: &mut Random, draft: &mut Draft) {
    let len = draft.instructions.len();
    let at = random.below(len);
    match random.below(12) {
        0 => {
            draft.remove(at);
        }
        1 => {
            let other = random.below(len);
            if let (Some(mut copied), None) = (
                draft.instructions.get(other).copied(),
                draft.instructions.get(other).and_then(Instruction::target),
            ) {
                change(random, &mut copied);
                draft.insert(at, copied);
            }
        }
        2 => retarget(random, draft, at),
        _ => {
            // What can be changed in one way only is passed over in favour of what follows.
            let mut at = at;
            while at + 1 < len
                && matches!(draft.instructions.get(at), Some(Instruction::Exit | Instruction::Jump { .. }))
            {
                at += 1;
            }
            if let Some(instruction) = draft.instructions.get_mut(at) {
                change(random, instruction);
            }
        }
    }
}

impl Draft {
    /// Takes an instruction out. What went to it goes to the next.
    pub(super) fn remove(&mut self, at: usize) {
        if at < self.instructions.len() {
            self.instructions.remove(at);
            self.move_targets(|target| if target > at { target - 1 } else { target });
        }
    }

    fn insert(&mut self, at: usize, instruction: Instruction) {
        self.instructions.insert(at, instruction);
        self.move_targets(|target| if target > at { target + 1 } else { target });
    }

    fn move_targets(&mut self, moved: impl Fn(usize) -> usize) {
        use crate::isa::Callee;
        for instruction in &mut self.instructions {
            if let Instruction::Jump { target }
            | Instruction::Branch { target, .. }
            | Instruction::Call { callee: Callee::Local(target) } = instruction
            {
                *target = moved(*target);
            }
        }
    }
}

/// Has a jump go elsewhere: nearby, so that it stays in its function; into a loop, out of one, or back.
fn retarget(random: &mut Random, draft: &mut Draft, from: usize) {
    let len = draft.instructions.len();
    let jumps = |instruction: &Instruction| instruction.target().is_some();
    let Some(at) = (from..len).chain(0..from).find(|at| draft.instructions.get(*at).is_some_and(jumps))
    else {
        return;
    };
    let to = (at + random.below(17)).saturating_sub(8).min(len - 1);
    if let Some(Instruction::Jump { target } | Instruction::Branch { target, .. }) =
        draft.instructions.get_mut(at)
    {
        *target = to;
    }
}

fn change(random: &mut Random, instruction: &mut Instruction) {
    match instruction {
        Instruction::Alu { width, op, to, from } => match random.below(5) {
            0 => flip(width),
            1 => *op = random.of(AluOp::ALL),
            2 => change_written(random, to),
            _ => change_operand(random, from),
        },
        Instruction::Move { width, to, from } => match random.below(4) {
            0 => flip(width),
            1 => change_written(random, to),
            _ => change_operand(random, from),
        },
        Instruction::Branch { width, test, left, right, .. } => match random.below(6) {
            0 => flip(width),
            1 => *test = other_sign(*test),
            2 => *test = random.of(Test::ALL),
            3 => {
                if let Operand::Register(right) = right {
                    std::mem::swap(left, right);
                }
            }
            _ => change_operand(random, right),
        },
        Instruction::Load { size, to, offset, is_signed, .. } => match random.below(4) {
            0 => {
                *size = random.of(Size::ALL);
                *is_signed &= *size != Size::B8;
            }
            1 => change_written(random, to),
            2 => *is_signed = !*is_signed && *size != Size::B8,
            _ => change_offset(random, offset),
        },
        Instruction::Store { size, offset, from, .. } => match random.below(4) {
            0 => *size = random.of(Size::ALL),
            1 => change_operand(random, from),
            _ => change_offset(random, offset),
        },
        Instruction::Atomic { width, offset, .. } => match random.below(2) {
            0 => flip(width),
            _ => change_offset(random, offset),
        },
        Instruction::Negate { width, .. } => flip(width),
        Instruction::MoveSigned { from, .. } => change_written(random, from),
        Instruction::Bytes { to, .. } | Instruction::LoadWide { to, .. } => change_written(random, to),
        Instruction::Jump { .. } | Instruction::Call { .. } | Instruction::Exit => {}
    }
}

fn flip(width: &mut Width) {
    *width = if *width == Width::W32 { Width::W64 } else { Width::W32 };
}

fn change_written(random: &mut Random, to: &mut Register) {
    *to = register(random.below(10));
}

fn change_operand(random: &mut Random, operand: &mut Operand) {
    match operand {
        Operand::Register(from) => change_written(random, from),
        Operand::Immediate(number) if random.once_in(6) => *number = random.number() as i32,
        Operand::Immediate(number) => {
            *number = number.wrapping_add(random.of([-8, -4, -2, -1, -1, -1, 1, 1, 1, 2, 4, 8]));
        }
    }
}

fn change_offset(random: &mut Random, offset: &mut i16) {
    *offset = offset.wrapping_add(random.of([-8, -4, -1, 1, 4, 8]));
}

fn other_sign(test: Test) -> Test {
    match test {
        Test::Above => Test::Greater,
        Test::AboveOrEqual => Test::GreaterOrEqual,
        Test::Below => Test::Less,
        Test::BelowOrEqual => Test::LessOrEqual,
        Test::Greater => Test::Above,
        Test::GreaterOrEqual => Test::AboveOrEqual,
        Test::Less => Test::Below,
        Test::LessOrEqual => Test::BelowOrEqual,
        Test::Equal => Test::NotEqual,
        Test::NotEqual => Test::Equal,
        Test::AnyBit => Test::AnyBit,
    }
}
