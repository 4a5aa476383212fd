//! What an instruction does to what is known.

use crate::isa::{AluOp, AtomicOp, Callee, Instruction, Operand, Register, Size, Wide, Width};
use crate::number::Number;
use crate::plant::{Bug, is_planted};
use crate::verifier::Verifier;
use crate::verifier::branch::{Comparison, Outcomes};
use crate::verifier::memory::Touch;
use crate::verifier::refusal::Why;
use crate::verifier::state::State;
use crate::verifier::value::{Pointer, Scalar, Value};
use crate::world::Region;

/// How it goes on.
pub(crate) enum Next {
    /// With the next instruction.
    Behind,
    /// Elsewhere.
    At(usize),
    /// Elsewhere, or with the next instruction.
    Either(usize, Box<Outcomes>),
    /// The function returns.
    Exit,
    /// With the next instruction, when the function that is called has left any of these.
    Returned(Vec<State>),
    /// It does not: there is no such instruction.
    Never,
}

impl Verifier<'_> {
    /// Takes a state over an instruction. One that is refused leaves the state as it was, so that it can be told.
    pub(crate) fn step(&mut self, at: usize, state: &mut State) -> Result<Next, Why> {
        let Some(instruction) = self.program.instructions().get(at).copied() else { return Ok(Next::Never) };
        match instruction {
            Instruction::Jump { target } => return Ok(Next::At(target)),
            Instruction::Branch { width, test, left, right, target } => {
                let comparison = Comparison { width, test, left, right };
                self.note_comparison(at, &comparison, state)?;
                return Ok(Next::Either(target, Box::new(comparison.outcomes(state)?)));
            }
            Instruction::Exit => {
                self.check_exit(state)?;
                return Ok(Next::Exit);
            }
            Instruction::Call { callee: Callee::Local(target) } => return self.call_local(at, target, state),
            _ => {}
        }
        self.compute(at, instruction, state)?;
        Ok(Next::Behind)
    }

    fn compute(&mut self, at: usize, instruction: Instruction, state: &mut State) -> Result<(), Why> {
        match instruction {
            Instruction::Alu { width, op, to, from } => self.alu(state, width, op, to, from)?,
            Instruction::Negate { width, to } => {
                let number = Self::number(state, to)?.number.negate(width);
                state.set(to, Value::Number(Scalar::of(number)));
            }
            Instruction::Move { width, to, from } => self.copy(state, width, to, from)?,
            Instruction::MoveSigned { width, size, to, from } => {
                let number = Self::number(state, from)?.number.sign_extend(width, size.bits());
                state.set(to, Value::Number(Scalar::of(number)));
            }
            Instruction::Bytes { order, size, to } => {
                let number = Self::number(state, to)?.number.bytes(order, size);
                state.set(to, Value::Number(Scalar::of(number)));
            }
            Instruction::LoadWide { to, value } => {
                let pointer = |region, offset: u32| {
                    let offset = Scalar::constant(offset.into());
                    Value::Pointer(Pointer { offset, ..Pointer::to(region) })
                };
                let value = match value {
                    Wide::Number(number) => Value::Number(Scalar::constant(number)),
                    Wide::ReadOnly(offset) => pointer(Region::ReadOnly, offset),
                    Wide::PerCall(offset) => pointer(Region::PerCall, offset),
                };
                state.set(to, value);
            }
            Instruction::Load { size, is_signed, to, base, offset } => {
                self.load(state, at, (size, is_signed), (to, base, offset))?;
            }
            Instruction::Store { size, base, offset, from } => {
                let stored = match from {
                    Operand::Register(register) => (Some(register), state.get(register)),
                    Operand::Immediate(immediate) => {
                        (None, Value::Number(Scalar::constant(i64::from(immediate) as u64)))
                    }
                };
                self.store(state, at, size, (base, offset), stored)?;
            }
            Instruction::Atomic { width, op, base, offset, from } => {
                self.atomic(state, at, (width, op), (base, offset), from)?;
            }
            Instruction::Call { callee: Callee::Helper(number) } => self.call_helper(at, number, state)?,
            Instruction::Call { .. }
            | Instruction::Jump { .. }
            | Instruction::Branch { .. }
            | Instruction::Exit => {}
        }
        Ok(())
    }

    fn operand(state: &State, from: Operand) -> Value {
        match from {
            Operand::Register(register) => state.get(register),
            Operand::Immediate(immediate) => Value::Number(Scalar::constant(i64::from(immediate) as u64)),
        }
    }

    fn alu(
        &mut self,
        state: &mut State,
        width: Width,
        op: AluOp,
        to: Register,
        from: Operand,
    ) -> Result<(), Why> {
        let (left, right) = (state.get(to), Self::operand(state, from));
        let len_min = state.len_min;
        let moved = |pointer: &Pointer, by: &Scalar, op| Pointer {
            offset: Scalar::alu(op, Width::W64, &pointer.offset, by, len_min),
            ..*pointer
        };
        let value = match (&left, &right) {
            (Value::Uninitialised, _) => return Err(Why::Uninitialised(to)),
            (_, Value::Uninitialised) => {
                let Operand::Register(from) = from else { return Err(Why::PointerArithmetic) };
                return Err(Why::Uninitialised(from));
            }
            (Value::Number(left), Value::Number(right)) => {
                let mut computed = Scalar::alu(op, width, left, right, len_min);
                if is_planted(Bug::RelationKept) {
                    computed.id = left.id;
                }
                Value::Number(computed)
            }
            (Value::Pointer(pointer), _) if pointer.is_nullable => return Err(Why::MayBeNull(to)),
            (Value::Pointer(pointer), Value::Number(by))
                if width == Width::W64 && matches!(op, AluOp::Add | AluOp::Sub) =>
            {
                Value::Pointer(moved(pointer, by, op))
            }
            (Value::Number(by), Value::Pointer(pointer))
                if width == Width::W64 && op == AluOp::Add && !pointer.is_nullable =>
            {
                Value::Pointer(moved(pointer, by, op))
            }
            (Value::Pointer(left), Value::Pointer(right))
                if width == Width::W64
                    && op == AluOp::Sub
                    && left.place == right.place
                    && !right.is_nullable =>
            {
                // It is as far as the pointer's offset where the other's is 0, but it is not that pointer.
                let distance = Scalar::alu(op, width, &left.offset, &right.offset, len_min);
                Value::Number(Scalar { id: 0, ..distance })
            }
            _ => return Err(Why::PointerArithmetic),
        };
        let mut value = value;
        if width == Width::W64
            && let (Some(left), Some(right), Some(result)) =
                (left.scalar(), right.scalar(), value.scalar_mut())
        {
            match op {
                AluOp::Add => self.relate_sum(state, (left, right), from, result),
                AluOp::Sub => self.relate_difference(state, (left, right), result),
                _ => {}
            }
        }
        state.set(to, value);
        Ok(())
    }

    /// A sum may be known to have a bound; or it may get one, which is then one of this sum.
    fn relate_sum(
        &mut self,
        state: &mut State,
        (left, right): (&Scalar, &Scalar),
        from: Operand,
        sum: &mut Scalar,
    ) {
        if let Some(by) = right.number.as_constant() {
            let less = (by as i64).unsigned_abs();
            if (by as i64) < 0 && left.least() >= less {
                self.relate_less(state, left, less, sum);
            }
            return;
        }
        let Operand::Register(register) = from else { return };
        let wraps = left.greatest().checked_add(right.greatest()).is_none();
        // Who has no id has no copy to be used with later.
        if wraps || left.id == 0 {
            return;
        }
        let mut right = *right;
        if right.id == 0 {
            right.id = self.fresh_id();
            let mut value = state.get(register);
            if let Some(scalar) = value.scalar_mut() {
                *scalar = right;
            }
            state.set(register, value);
        }
        let of = [left.id, right.id];
        sum.sum = Some(of);
        if let Some(at_most) = state.sum_at_most(of)
            && i128::from(at_most) < sum.bound(state.len_min)
        {
            *sum = sum.bounded(at_most.into(), state.len_min);
        }
    }

    fn relate_difference(
        &mut self,
        state: &mut State,
        (left, right): (&Scalar, &Scalar),
        difference: &mut Scalar,
    ) {
        if left.least() >= right.greatest() {
            self.relate_less(state, left, right.least(), difference);
        }
    }

    /// What is less than a number has a lesser sum with others.
    fn relate_less(&mut self, state: &mut State, number: &Scalar, less: u64, result: &mut Scalar) {
        if number.id != 0 && result.id == 0 {
            result.id = self.fresh_id();
            state.lessen_sums(number.id, result.id, less);
        }
    }

    /// A copy is the same as what it was copied from, as long as neither changes.
    fn copy(&mut self, state: &mut State, width: Width, to: Register, from: Operand) -> Result<(), Why> {
        let mut value = Self::operand(state, from);
        let Operand::Register(register) = from else {
            if let (Width::W32, Value::Number(scalar)) = (width, value) {
                value = Value::Number(scalar.truncate(state.len_min));
            }
            state.set(to, value);
            return Ok(());
        };
        match (&mut value, width) {
            (Value::Uninitialised, _) => return Err(Why::Uninitialised(register)),
            (Value::Pointer(_), Width::W32) => return Err(Why::NotANumber(register)),
            (Value::Number(scalar), Width::W32) => {
                let cut = scalar.truncate(state.len_min);
                if cut != *scalar {
                    state.set(to, Value::Number(Scalar { id: 0, ..cut }));
                    return Ok(());
                }
            }
            _ => {}
        }
        self.identify(&mut value);
        state.set(register, value);
        state.set(to, value);
        Ok(())
    }

    /// Gives a value that is about to be copied an id by which it is known as the same.
    pub(crate) fn identify(&mut self, value: &mut Value) {
        if let Some(scalar) = value.scalar_mut()
            && scalar.id == 0
            && scalar.number.as_constant().is_none_or(|_| scalar.is_length)
        {
            scalar.id = self.fresh_id();
        }
    }

    pub(crate) fn fresh_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn atomic(
        &mut self,
        state: &mut State,
        at: usize,
        (width, op): (Width, AtomicOp),
        (base, offset): (Register, i16),
        from: Register,
    ) -> Result<(), Why> {
        Self::number(state, from)?;
        if op == AtomicOp::CompareExchange {
            Self::number(state, Register::R0)?;
        }
        let size = if width == Width::W32 { Size::B4 } else { Size::B8 };
        let len = size.bytes() as u64;
        if Self::pointer(state, base)?.place.region == Region::Context {
            return Err(Why::ReadOnly(Region::Context));
        }
        let touched = self.touch(state, at, Touch { base, offset, len, is_write: true })?;
        if touched.place.is_stack() {
            let span = touched.span(len);
            let frame = state.frame_mut(touched.place).ok_or(Why::FrameUnknown)?;
            frame.check_numbers(span)?;
            if touched.is_certain() { frame.store(span, Value::ANY) } else { frame.smudge(span) }
        }
        let instruction = Instruction::Atomic { width, op, base, offset, from };
        if let Some(register) = instruction.written() {
            state.set(register, Value::Number(Scalar::of(Number::loaded(size, false))));
        }
        Ok(())
    }
}
