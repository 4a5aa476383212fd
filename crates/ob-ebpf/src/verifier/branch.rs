//! What a branch tells of the values that it compares.

use crate::isa::{Operand, Register, Test, Width};
use crate::number::Number;
use crate::plant::{Bug, is_planted};
use crate::verifier::refusal::Why;
use crate::verifier::state::State;
use crate::verifier::value::{Pointer, Scalar, Value};

/// What is known when a test holds, and when it does not; nothing, where that cannot be.
pub(crate) type Outcomes = [Option<Learnt>; 2];

/// What one outcome of a test tells.
pub(crate) struct Learnt {
    left: (Register, Value),
    right: Option<(Register, Value)>,
    /// How long the data is at least.
    len_min: u32,
}

impl Learnt {
    /// Adds it to what is known.
    pub(crate) fn tell(&self, state: &mut State) {
        state.len_min = state.len_min.max(self.len_min);
        let (register, value) = &self.left;
        state.learn(*register, value);
        if let Some((register, value)) = &self.right {
            state.learn(*register, value);
        }
        if is_planted(Bug::NullCheckSpreads) && self.is_of_one_pointer() {
            state.change_all(|value| {
                if let Value::Pointer(pointer) = value {
                    pointer.is_nullable = false;
                }
            });
        }
    }

    fn is_of_one_pointer(&self) -> bool {
        self.right.is_none() && matches!(self.left.1, Value::Pointer(_))
    }
}

/// A comparison of a register with something.
#[derive(Clone, Copy)]
pub(crate) struct Comparison {
    pub(crate) width: Width,
    pub(crate) test: Test,
    pub(crate) left: Register,
    pub(crate) right: Operand,
}

impl Comparison {
    /// What is compared.
    pub(crate) fn operands(&self, state: &State) -> (Value, Value) {
        let right = match self.right {
            Operand::Register(register) => state.get(register),
            Operand::Immediate(immediate) => Value::Number(Scalar::constant(i64::from(immediate) as u64)),
        };
        (state.get(self.left), right)
    }

    /// First what is known when it holds.
    pub(crate) fn outcomes(&self, state: &State) -> Result<Outcomes, Why> {
        let (left, right) = self.operands(state);
        match (&left, &right) {
            (Value::Uninitialised, _) => Err(Why::Uninitialised(self.left)),
            (_, Value::Uninitialised) => {
                Err(self.of_right().map_or(Why::PointerComparison, Why::Uninitialised))
            }
            (Value::Number(left), Value::Number(right)) => Ok([true, false].map(|holds| {
                let (left, right) = self.numbers(state.len_min, left, right, holds)?;
                Some(self.learnt(Value::Number(left.0), Value::Number(right.0), left.1.max(right.1)))
            })),
            (Value::Pointer(pointer), Value::Number(null)) if self.is_null_test(null) => {
                Ok(self.null(self.left, pointer))
            }
            (Value::Number(null), Value::Pointer(pointer)) if self.is_null_test(null) => {
                let register = self.of_right().ok_or(Why::PointerComparison)?;
                Ok(self.null(register, pointer))
            }
            (Value::Pointer(left), Value::Pointer(right)) => self.pointers(state, left, right),
            _ => Err(Why::PointerComparison),
        }
    }

    fn of_right(&self) -> Option<Register> {
        match self.right {
            Operand::Register(register) => Some(register),
            Operand::Immediate(_) => None,
        }
    }

    fn is_null_test(&self, null: &Scalar) -> bool {
        self.width == Width::W64
            && matches!(self.test, Test::Equal | Test::NotEqual)
            && null.number.as_constant() == Some(0)
    }

    fn null(&self, register: Register, pointer: &Pointer) -> Outcomes {
        let told = |value: Value| Some(Learnt { left: (register, value), right: None, len_min: 0 });
        // A pointer is never null, wherever it was moved to; where its address might be, the verdict says so.
        let not_null = told(Value::Pointer(Pointer { is_nullable: false, ..*pointer }));
        // All that are the same pointer are the same null.
        let null = Value::Number(Scalar { id: pointer.offset.id, ..Scalar::constant(0) });
        let null = if pointer.is_nullable { told(null) } else { None };
        if self.test == Test::Equal { [null, not_null] } else { [not_null, null] }
    }

    fn pointers(&self, state: &State, left: &Pointer, right: &Pointer) -> Result<Outcomes, Why> {
        let register = self.of_right().ok_or(Why::PointerComparison)?;
        if left.place != right.place || self.width == Width::W32 || self.test == Test::AnyBit {
            return Err(Why::PointerComparison);
        }
        for (register, pointer) in [(self.left, left), (register, right)] {
            if pointer.is_nullable {
                return Err(Why::MayBeNull(register));
            }
        }
        // The order of pointers is that of their offsets with a sign.
        let test = match self.test {
            Test::Above => Test::Greater,
            Test::AboveOrEqual => Test::GreaterOrEqual,
            Test::Below => Test::Less,
            Test::BelowOrEqual => Test::LessOrEqual,
            test => test,
        };
        let comparison = Self { test, ..*self };
        Ok([true, false].map(|holds| {
            let (new_left, new_right) =
                comparison.numbers(state.len_min, &left.offset, &right.offset, holds)?;
            let len_min = new_left.1.max(new_right.1);
            let left = Value::Pointer(Pointer { offset: new_left.0, ..*left });
            let right = Value::Pointer(Pointer { offset: new_right.0, ..*right });
            Some(self.learnt(left, right, len_min))
        }))
    }

    fn learnt(&self, left: Value, right: Value, len_min: u32) -> Learnt {
        Learnt { left: (self.left, left), right: self.of_right().map(|register| (register, right)), len_min }
    }

    /// What is known of both numbers then, each with how long the data is at least; nothing if it cannot be.
    fn numbers(
        &self,
        len_min: u32,
        left: &Scalar,
        right: &Scalar,
        holds: bool,
    ) -> Option<((Scalar, u32), (Scalar, u32))> {
        let (new_left, new_right) =
            Number::refine(self.test, self.width, &left.number, &right.number, holds)?;
        let mut new_left = Scalar { number: new_left, ..*left };
        let mut new_right = Scalar { number: new_right, ..*right };
        let mut len = len_min;
        if self.is_of_whole_numbers(left, right) {
            // Which of them is not above the other, and by how much at least.
            let (left_first, right_first) = match (self.test, holds) {
                (Test::Equal, true) | (Test::NotEqual, false) => (Some(0), Some(0)),
                (Test::Below | Test::Less, true) | (Test::AboveOrEqual | Test::GreaterOrEqual, false) => {
                    (Some(1), None)
                }
                (Test::BelowOrEqual | Test::LessOrEqual, true) | (Test::Above | Test::Greater, false) => {
                    (Some(0), None)
                }
                (Test::Above | Test::Greater, true) | (Test::BelowOrEqual | Test::LessOrEqual, false) => {
                    (None, Some(1))
                }
                (Test::AboveOrEqual | Test::GreaterOrEqual, true) | (Test::Below | Test::Less, false) => {
                    (None, Some(0))
                }
                (Test::Equal, false) | (Test::NotEqual, true) | (Test::AnyBit, _) => (None, None),
            };
            if let Some(gap) = left_first {
                len = len.max(follow(&mut new_left, &new_right, gap, len_min));
            }
            if let Some(gap) = right_first {
                len = len.max(follow(&mut new_right, &new_left, gap, len_min));
            }
        }
        let of_lengths = [&new_left, &new_right].map(length_told).into_iter().fold(len, u32::max);
        Some(((new_left, of_lengths), (new_right, of_lengths)))
    }

    /// Whether what is compared are both numbers as they are, without a sign: their order is then that of what bounds them.
    fn is_of_whole_numbers(&self, left: &Scalar, right: &Scalar) -> bool {
        let is_signed =
            matches!(self.test, Test::Greater | Test::GreaterOrEqual | Test::Less | Test::LessOrEqual);
        let end = match (self.width, is_signed) {
            (Width::W64, false) => u64::MAX,
            (Width::W64, true) => i64::MAX as u64,
            (Width::W32, false) => u32::MAX.into(),
            (Width::W32, true) => i32::MAX as u64,
        };
        (left.greatest() <= end && right.greatest() <= end) || is_planted(Bug::HalvesCompared)
    }
}

/// One number is not above another, by `gap` at least: it has its bound. How long the data is at least then.
fn follow(lower: &mut Scalar, upper: &Scalar, gap: i64, len_min: u32) -> u32 {
    let Some(at_most) = upper.at_most else { return len_min };
    let bound = i128::from(at_most) - i128::from(gap);
    if !lower.is_length && bound < lower.bound(len_min) {
        *lower = lower.bounded(bound, len_min);
    }
    // The lower one is at most the data's length and the bound.
    let length = i128::from(lower.least()) - bound;
    u32::try_from(length.max(0)).unwrap_or(len_min)
}

/// How long the data is at least, if this number is its length.
fn length_told(scalar: &Scalar) -> u32 {
    let Some(at_most) = scalar.at_most.filter(|_| scalar.is_length) else { return 0 };
    let length = i128::from(scalar.least()) - i128::from(at_most);
    u32::try_from(length.max(0)).unwrap_or(0)
}
