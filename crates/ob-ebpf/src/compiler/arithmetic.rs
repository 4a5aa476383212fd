//! What is computed with registers. The definitions are [`AluOp::apply`], [`Test::holds`] and [`ByteOrder::apply`].

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};

use super::function::Translator;
use crate::isa::{AluOp, ByteOrder, Operand, Register, Size, Test, Width};
use crate::program::FRAME_LEN;
use crate::verdict::{Access, Bounds, Comparison};
use crate::world::Region;

/// The type of so many bytes.
pub(super) const fn type_of(size: Size) -> Type {
    match size {
        Size::B1 => I8,
        Size::B2 => I16,
        Size::B4 => I32,
        Size::B8 => I64,
    }
}

const fn type_of_width(width: Width) -> Type {
    match width {
        Width::W32 => I32,
        Width::W64 => I64,
    }
}

impl Translator<'_, '_> {
    pub(super) fn alu(&mut self, width: Width, op: AluOp, to: Register, from: Operand) {
        let left = self.get_narrow(width, to);
        let right = self.operand(width, from);
        let result = match op {
            AluOp::Add => self.builder.ins().iadd(left, right),
            AluOp::Sub => self.builder.ins().isub(left, right),
            AluOp::Mul => self.builder.ins().imul(left, right),
            AluOp::Div | AluOp::Mod => self.divide(width, op, left, right),
            AluOp::SignedDiv | AluOp::SignedMod => self.divide_signed(width, op, left, right),
            AluOp::Or => self.builder.ins().bor(left, right),
            AluOp::And => self.builder.ins().band(left, right),
            AluOp::Xor => self.builder.ins().bxor(left, right),
            // Cranelift takes amounts modulo the width, too.
            AluOp::ShiftLeft => self.builder.ins().ishl(left, right),
            AluOp::ShiftRight => self.builder.ins().ushr(left, right),
            AluOp::ShiftRightSigned => self.builder.ins().sshr(left, right),
        };
        self.set_wide(to, result);
    }

    /// Division by zero would trap: it is by one instead, and the result is put right.
    fn divide(&mut self, width: Width, op: AluOp, left: Value, right: Value) -> Value {
        let kind = type_of_width(width);
        let (zero, one) = (self.builder.ins().iconst(kind, 0), self.builder.ins().iconst(kind, 1));
        let is_zero = self.builder.ins().icmp(IntCC::Equal, right, zero);
        let divisor = self.builder.ins().select(is_zero, one, right);
        if op == AluOp::Div {
            let quotient = self.builder.ins().udiv(left, divisor);
            self.builder.ins().select(is_zero, zero, quotient)
        } else {
            let remainder = self.builder.ins().urem(left, divisor);
            self.builder.ins().select(is_zero, left, remainder)
        }
    }

    /// The same with signs, where the least number divided by -1 would trap as well. Division by -1 is negation.
    fn divide_signed(&mut self, width: Width, op: AluOp, left: Value, right: Value) -> Value {
        let kind = type_of_width(width);
        let (zero, one) = (self.builder.ins().iconst(kind, 0), self.builder.ins().iconst(kind, 1));
        let is_zero = self.builder.ins().icmp(IntCC::Equal, right, zero);
        let is_minus_one = self.builder.ins().icmp_imm_s(IntCC::Equal, right, -1);
        let either = self.builder.ins().bor(is_zero, is_minus_one);
        let divisor = self.builder.ins().select(either, one, right);
        if op == AluOp::SignedDiv {
            let quotient = self.builder.ins().sdiv(left, divisor);
            let negated = self.builder.ins().ineg(left);
            let quotient = self.builder.ins().select(is_minus_one, negated, quotient);
            self.builder.ins().select(is_zero, zero, quotient)
        } else {
            // By one, and by -1, nothing remains.
            let remainder = self.builder.ins().srem(left, divisor);
            self.builder.ins().select(is_zero, left, remainder)
        }
    }

    pub(super) fn negate(&mut self, width: Width, to: Register) {
        let value = self.get_narrow(width, to);
        let negated = self.builder.ins().ineg(value);
        self.set_wide(to, negated);
    }

    pub(super) fn move_to(&mut self, width: Width, to: Register, from: Operand) {
        let value = self.operand(width, from);
        self.set_wide(to, value);
    }

    pub(super) fn move_signed(&mut self, width: Width, size: Size, to: Register, from: Register) {
        if size.bits() >= width.bits() {
            return self.move_to(width, to, Operand::Register(from));
        }
        let value = self.get(from);
        let cut = self.builder.ins().ireduce(type_of(size), value);
        let extended = self.builder.ins().sextend(type_of_width(width), cut);
        self.set_wide(to, extended);
    }

    pub(super) fn turn_bytes(&mut self, order: ByteOrder, size: Size, to: Register) {
        let value = self.get(to);
        let cut = if size == Size::B8 { value } else { self.builder.ins().ireduce(type_of(size), value) };
        let turned = match order {
            ByteOrder::Little => cut,
            ByteOrder::Big | ByteOrder::Swap if size == Size::B1 => cut,
            ByteOrder::Big | ByteOrder::Swap => self.builder.ins().bswap(cut),
        };
        self.set_wide(to, turned);
    }

    /// Whether a test holds, as Cranelift's branches want it.
    pub(super) fn test(&mut self, width: Width, test: Test, left: Register, right: Operand) -> Value {
        let left = self.get_narrow(width, left);
        let right = self.operand(width, right);
        self.holds(test, left, right)
    }

    /// The same for pointers: by their offsets with a sign, whether the test has one or not.
    pub(super) fn compare(
        &mut self,
        comparison: Comparison,
        test: Test,
        left: Register,
        right: Operand,
    ) -> Value {
        let Comparison::Offsets { region, frame } = comparison else {
            return self.builder.ins().iconst(I8, i64::from(test == Test::NotEqual));
        };
        let mut begin = self.begin_of(Access { region, frame, bounds: Bounds::Proven });
        if region == Region::Stack {
            // There, offsets are counted from the frame's end.
            begin = self.builder.ins().iadd_imm_s(begin, FRAME_LEN as i64);
        }
        let (left, right) = (self.get(left), self.operand(Width::W64, right));
        let (left, right) = (self.builder.ins().isub(left, begin), self.builder.ins().isub(right, begin));
        let test = match test {
            Test::Above => Test::Greater,
            Test::AboveOrEqual => Test::GreaterOrEqual,
            Test::Below => Test::Less,
            Test::BelowOrEqual => Test::LessOrEqual,
            test => test,
        };
        self.holds(test, left, right)
    }

    fn holds(&mut self, test: Test, left: Value, right: Value) -> Value {
        let condition = match test {
            Test::AnyBit => return self.builder.ins().band(left, right),
            Test::Equal => IntCC::Equal,
            Test::NotEqual => IntCC::NotEqual,
            Test::Above => IntCC::UnsignedGreaterThan,
            Test::AboveOrEqual => IntCC::UnsignedGreaterThanOrEqual,
            Test::Below => IntCC::UnsignedLessThan,
            Test::BelowOrEqual => IntCC::UnsignedLessThanOrEqual,
            Test::Greater => IntCC::SignedGreaterThan,
            Test::GreaterOrEqual => IntCC::SignedGreaterThanOrEqual,
            Test::Less => IntCC::SignedLessThan,
            Test::LessOrEqual => IntCC::SignedLessThanOrEqual,
        };
        self.builder.ins().icmp(condition, left, right)
    }

    /// As much of a register as an operation works on.
    pub(super) fn get_narrow(&mut self, width: Width, register: Register) -> Value {
        let value = self.get(register);
        match width {
            Width::W32 => self.builder.ins().ireduce(I32, value),
            Width::W64 => value,
        }
    }

    /// A register gets a value; what is above becomes zero.
    pub(super) fn set_wide(&mut self, register: Register, value: Value) {
        let is_whole = self.builder.func.dfg.value_type(value) == I64;
        let value = if is_whole { value } else { self.builder.ins().uextend(I64, value) };
        self.set(register, value);
    }

    pub(super) fn operand(&mut self, width: Width, operand: Operand) -> Value {
        match (operand, width) {
            (Operand::Register(register), _) => self.get_narrow(width, register),
            (Operand::Immediate(number), Width::W64) => self.builder.ins().iconst(I64, i64::from(number)),
            // Cranelift wants what is above to be zero.
            (Operand::Immediate(number), Width::W32) => {
                self.builder.ins().iconst(I32, i64::from(number as u32))
            }
        }
    }
}
