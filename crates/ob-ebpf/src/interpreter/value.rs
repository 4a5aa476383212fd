//! Values that know what they are.

use crate::call::{FaultKind, Violation};
use crate::isa::{AluOp, Test, Width};
use crate::world::Region;

/// Where a pointer points to: not an address, so that nothing can depend on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Into which memory.
    pub region: Region,
    /// On the stack, into which frame; else 0.
    pub frame: u8,
    /// On the stack, for which call that frame was; else 0. Another call may have the same frame later.
    pub activation: u32,
    /// How far from the region's first byte; on the stack, from the end of the frame. It may be anywhere, and is checked when
    /// it is used.
    pub offset: i64,
}

/// What a register or a slot of the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing that may be used.
    Uninitialised,
    /// A number.
    Number(u64),
    /// A pointer. It is never null: null is the number 0.
    Pointer(Pointer),
}

impl Pointer {
    /// The first byte of a region other than the stack.
    pub(super) fn to(region: Region) -> Self {
        Self { region, frame: 0, activation: 0, offset: 0 }
    }

    /// Moved by a number of bytes, modulo 2⁶⁴ as addresses are.
    pub(super) fn moved(self, by: i64) -> Self {
        Self { offset: self.offset.wrapping_add(by), ..self }
    }

    /// Whether both point into the same memory, so that they have something to do with each other.
    fn is_beside(&self, other: &Self) -> bool {
        (self.region, self.frame, self.activation) == (other.region, other.frame, other.activation)
    }
}

/// `left op right`, where one of them is a pointer at least.
pub(super) fn compute(width: Width, op: AluOp, left: Value, right: Value) -> Result<Value, FaultKind> {
    use Value::{Number, Pointer};
    Ok(match (width, op, left, right) {
        (Width::W64, AluOp::Add, Pointer(pointer), Number(number))
        | (Width::W64, AluOp::Add, Number(number), Pointer(pointer)) => Pointer(pointer.moved(number as i64)),
        (Width::W64, AluOp::Sub, Pointer(pointer), Number(number)) => {
            Pointer(pointer.moved((number as i64).wrapping_neg()))
        }
        (Width::W64, AluOp::Sub, Pointer(left), Pointer(right)) if left.is_beside(&right) => {
            Number(left.offset.wrapping_sub(right.offset) as u64)
        }
        _ => return Err(FaultKind::Unproven(Violation::PointerArithmetic)),
    })
}

/// Whether a test holds, where one of the operands is a pointer at least.
///
/// Pointers into the same memory are in the order of their offsets with a sign, whether the test has one or not. That is the order of
/// their addresses wherever the memory is, as long as these do not wrap around; and it does not depend on the place where they do.
pub(super) fn compare(width: Width, test: Test, left: Value, right: Value) -> Result<bool, FaultKind> {
    /// Numbers without a sign in the order of numbers with one.
    fn in_order(offset: i64) -> u64 {
        offset as u64 ^ (1 << 63)
    }
    match (width, test, left, right) {
        (Width::W64, Test::Equal, Value::Pointer(_), Value::Number(0))
        | (Width::W64, Test::Equal, Value::Number(0), Value::Pointer(_)) => Ok(false),
        (Width::W64, Test::NotEqual, Value::Pointer(_), Value::Number(0))
        | (Width::W64, Test::NotEqual, Value::Number(0), Value::Pointer(_)) => Ok(true),
        (Width::W64, test, Value::Pointer(left), Value::Pointer(right)) if left.is_beside(&right) => {
            match test {
                Test::AnyBit => Err(FaultKind::Unproven(Violation::PointerComparison)),
                Test::Greater | Test::GreaterOrEqual | Test::Less | Test::LessOrEqual => {
                    Ok(test.holds(width, left.offset as u64, right.offset as u64))
                }
                _ => Ok(test.holds(width, in_order(left.offset), in_order(right.offset))),
            }
        }
        _ => Err(FaultKind::Unproven(Violation::PointerComparison)),
    }
}
