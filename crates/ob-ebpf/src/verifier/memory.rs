//! Accesses to memory: where they go, and whether they stay inside.

use crate::isa::{Register, Size};
use crate::number::Number;
use crate::plant::{Bug, is_planted};
use crate::program::FRAME_LEN;
use crate::verdict::Bounds;
use crate::verifier::Verifier;
use crate::verifier::refusal::Why;
use crate::verifier::state::{Span, State, Unreadable};
use crate::verifier::value::{Place, Pointer, Scalar, Value};
use crate::world::{FieldKind, Region};

/// Bytes that an instruction touches.
#[derive(Clone, Copy)]
pub(crate) struct Touch {
    pub(crate) base: Register,
    pub(crate) offset: i16,
    pub(crate) len: u64,
    pub(crate) is_write: bool,
}

/// Where they are.
pub(crate) struct Touched {
    pub(crate) place: Place,
    /// From the region's first byte; on the stack, from the frame's end.
    pub(crate) offset: Scalar,
    pub(crate) bounds: Bounds,
}

impl Touched {
    /// The bytes of the frame that may be meant, for an access of so many.
    pub(crate) fn span(&self, len: u64) -> Span {
        let bounds = self.offset.number.signed_bounds();
        let begin = (*bounds.start()).max(-(FRAME_LEN as i64));
        let end = bounds.end().saturating_add(len as i64).min(0);
        Span { begin, end: end.max(begin) }
    }

    /// Whether it is known which bytes are meant.
    pub(crate) fn is_certain(&self) -> bool {
        self.offset.number.as_constant().is_some()
    }
}

impl From<Unreadable> for Why {
    fn from(unreadable: Unreadable) -> Self {
        match unreadable {
            Unreadable::Uninitialised(offset) => Self::StackUninitialised(offset),
            Unreadable::Pointer(offset) => Self::StackPointer(offset),
        }
    }
}

impl Verifier<'_> {
    pub(crate) fn pointer(state: &State, register: Register) -> Result<Pointer, Why> {
        match state.get(register) {
            Value::Uninitialised => Err(Why::Uninitialised(register)),
            Value::Number(_) => Err(Why::NotAPointer(register)),
            Value::Pointer(pointer) if pointer.is_nullable => Err(Why::MayBeNull(register)),
            Value::Pointer(pointer) => Ok(pointer),
        }
    }

    pub(crate) fn number(state: &State, register: Register) -> Result<Scalar, Why> {
        match state.get(register) {
            Value::Uninitialised => Err(Why::Uninitialised(register)),
            Value::Number(scalar) => Ok(scalar),
            Value::Pointer(_) => Err(Why::NotANumber(register)),
        }
    }

    /// Says where an access goes. If that has to be checked when it happens, what the check tells is known afterwards.
    pub(crate) fn touch(&mut self, state: &mut State, at: usize, touch: Touch) -> Result<Touched, Why> {
        let touched = self.locate(state, at, touch)?;
        self.learn_from_check(state, touch, &touched);
        Ok(touched)
    }

    /// Says where an access goes.
    fn locate(&mut self, state: &State, at: usize, touch: Touch) -> Result<Touched, Why> {
        let pointer = Self::pointer(state, touch.base)?;
        let place = pointer.place;
        let offset = pointer.offset.plus(touch.offset.into(), state.len_min);
        if touch.is_write && !place.region.is_writable() && place.region != Region::Context {
            return Err(Why::ReadOnly(place.region));
        }
        let bounds = match place.region {
            Region::Context => self.context_bounds(&offset, touch)?,
            Region::Stack => Self::stack_bounds(state, place, &offset, touch.len)?,
            region => self.bounds(state.len_min, region, &offset, touch.len),
        };
        let touched = Touched { place, offset, bounds };
        self.note_access(at, None, &touched, touch.len)?;
        Ok(touched)
    }

    /// Bytes of a region: exactly, or as many as the data has at most.
    pub(crate) fn region_len(&self, region: Region) -> u64 {
        match region {
            Region::Context => self.world.context_len() as u64,
            Region::Data => self.world.data_len_max.into(),
            Region::Scratch => self.world.scratch_len.into(),
            Region::Stack => FRAME_LEN as u64,
            Region::ReadOnly => self.program.read_only().len() as u64,
            Region::PerCall => self.program.per_call().len() as u64,
            Region::TableValue => self.world.table_value_len.into(),
        }
    }

    /// Whether `len` bytes at most from an offset on are in a region other than the stack.
    pub(crate) fn bounds(&self, len_min: u32, region: Region, offset: &Scalar, len: u64) -> Bounds {
        let end = u128::from(offset.greatest()) + u128::from(len);
        let is_inside = match region {
            Region::Data => {
                end <= len_min.into()
                    || offset.at_most.is_some_and(|at_most| i128::from(at_most) + i128::from(len) <= 0)
            }
            region => end <= u128::from(self.region_len(region)) + u128::from(is_planted(Bug::RangeOffByOne)),
        };
        if is_inside { Bounds::Proven } else { Bounds::Checked }
    }

    fn context_bounds(&self, offset: &Scalar, touch: Touch) -> Result<Bounds, Why> {
        let is_certain = offset.number.as_constant().is_some();
        let is_right = |offset: u64| {
            let field = usize::try_from(offset).ok().and_then(|offset| self.world.field(offset));
            field.is_some_and(|field| match field.kind {
                FieldKind::Result => true,
                FieldKind::Number => !touch.is_write,
                _ => !touch.is_write && is_certain,
            })
        };
        // Compilers make one store of several that end different ways: then each field that may be meant has to be right.
        let all = offset.least()..=offset.greatest();
        let are_right = touch.len == Size::B8.bytes() as u64
            && *all.end() < self.world.context_len() as u64
            && all.filter(|one| offset.number.contains(*one)).all(is_right);
        if are_right {
            return Ok(Bounds::Proven);
        }
        Err(Why::Context { offset: offset.to_string(), len: touch.len as usize, is_write: touch.is_write })
    }

    fn stack_bounds(state: &State, place: Place, offset: &Scalar, len: u64) -> Result<Bounds, Why> {
        if state.frame(place).is_none() {
            return Err(Why::FrameUnknown);
        }
        let bounds = offset.number.signed_bounds();
        let is_inside =
            *bounds.start() >= -(FRAME_LEN as i64) && bounds.end().saturating_add(len as i64) <= 0;
        if is_inside {
            return Ok(Bounds::Proven);
        }
        match offset.number.as_constant() {
            Some(offset) => Err(Why::StackBounds { offset: offset as i64, len }),
            None => Ok(Bounds::Checked),
        }
    }

    /// A check that has not failed has shown that the bytes are in the region.
    fn learn_from_check(&mut self, state: &mut State, touch: Touch, touched: &Touched) {
        let region = touched.place.region;
        if touched.bounds != Bounds::Checked || region == Region::Stack {
            return;
        }
        let Value::Pointer(pointer) = state.get(touch.base) else { return };
        let Some(last) = self.region_len(region).checked_sub(touch.len) else { return };
        let Some(number) = touched.offset.number.meet(&Number::unsigned(0..=last)) else { return };
        let inside = Scalar::of(number);
        let inside = match region {
            Region::Data => inside.bounded(-i128::from(touch.len), state.len_min),
            _ => inside,
        };
        let by = i64::from(touch.offset);
        let back = inside.plus(-by, state.len_min);
        let Some(number) = back.number.meet(&pointer.offset.number) else { return };
        let mut offset = Scalar { number, ..pointer.offset };
        let is_below = *pointer.offset.number.signed_bounds().start() < 0;
        let bound = -i128::from(touch.len) - i128::from(by);
        if region == Region::Data
            && (by <= 0 || !is_below)
            && !offset.is_length
            && bound < offset.bound(state.len_min)
        {
            offset = offset.bounded(bound, state.len_min);
        }
        if region == Region::Data {
            state.len_min = state.len_min.max(u32::try_from(touch.len).unwrap_or(0));
            if is_planted(Bug::CheckTellsTooMuch) {
                state.len_min += 1;
            }
        }
        self.spend(state.size());
        state.learn(touch.base, &Value::Pointer(Pointer { offset, ..pointer }));
    }

    pub(crate) fn load(
        &mut self,
        state: &mut State,
        at: usize,
        (size, is_signed): (Size, bool),
        (to, base, offset): (Register, Register, i16),
    ) -> Result<(), Why> {
        let len = size.bytes() as u64;
        let touched = self.touch(state, at, Touch { base, offset, len, is_write: false })?;
        let loaded = Value::Number(Scalar::of(Number::loaded(size, is_signed)));
        let value = match touched.place.region {
            Region::Context => self.field_value(state, &touched.offset),
            Region::Stack => self.stack_value(state, &touched, size, is_signed)?,
            Region::ReadOnly => self.constant_value(&touched, size, is_signed).unwrap_or(loaded),
            _ => loaded,
        };
        state.set(to, value);
        Ok(())
    }

    fn field_value(&self, state: &State, offset: &Scalar) -> Value {
        let field = offset.number.as_constant().and_then(|offset| self.world.field(offset as usize));
        match field.map(|field| field.kind) {
            Some(FieldKind::Data) => Value::Pointer(Pointer::to(Region::Data)),
            Some(FieldKind::Scratch) => Value::Pointer(Pointer::to(Region::Scratch)),
            Some(FieldKind::DataLen) => {
                let most = self.region_len(Region::Data);
                let number = Number::unsigned(state.len_min.into()..=most.max(state.len_min.into()));
                Value::Number(Scalar { at_most: Some(0), is_length: true, ..Scalar::of(number) })
            }
            Some(FieldKind::ScratchLen) => Value::Number(Scalar::constant(self.region_len(Region::Scratch))),
            Some(FieldKind::Number | FieldKind::Result) | None => Value::ANY,
        }
    }

    fn stack_value(
        &mut self,
        state: &mut State,
        touched: &Touched,
        size: Size,
        is_signed: bool,
    ) -> Result<Value, Why> {
        let frame = state.frame(touched.place).ok_or(Why::FrameUnknown)?;
        let span = touched.span(size.bytes() as u64);
        if touched.is_certain()
            && let Some(mut value) = frame.whole(span)
        {
            // What is learnt of the one holds for the other.
            let id = value.id();
            self.identify(&mut value);
            if value.id() != id
                && let Some(frame) = state.frame_mut(touched.place)
            {
                frame.store(span, value);
            }
            return Ok(value);
        }
        frame.check_numbers(span)?;
        let known = touched.is_certain().then(|| frame.lower(span, size)).flatten();
        Ok(Value::Number(match known {
            Some(scalar) if is_signed => {
                Scalar::of(scalar.number.sign_extend(crate::isa::Width::W64, size.bits()))
            }
            Some(scalar) => scalar,
            None => Scalar::of(Number::loaded(size, is_signed)),
        }))
    }

    /// A constant of the program, if it is known which.
    fn constant_value(&self, touched: &Touched, size: Size, is_signed: bool) -> Option<Value> {
        let offset = usize::try_from(touched.offset.number.as_constant()?).ok()?;
        let bytes = self.program.read_only().get(offset..offset.checked_add(size.bytes())?)?;
        let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let number = Number::constant(word);
        Some(Value::Number(Scalar::of(match is_signed {
            true => number.sign_extend(crate::isa::Width::W64, size.bits()),
            false => number,
        })))
    }

    pub(crate) fn store(
        &mut self,
        state: &mut State,
        at: usize,
        size: Size,
        (base, offset): (Register, i16),
        (from, mut value): (Option<Register>, Value),
    ) -> Result<(), Why> {
        let len = size.bytes() as u64;
        let touch = Touch { base, offset, len, is_write: true };
        let touched = self.locate(state, at, touch)?;
        let is_slot = touched.place.is_stack()
            && size == Size::B8
            && touched.offset.number.as_constant().is_some_and(|offset| offset % 8 == 0);
        match (value, from) {
            (Value::Uninitialised, Some(from)) => return Err(Why::Uninitialised(from)),
            (Value::Pointer(_), Some(from)) if !is_slot => return Err(Why::PointerStored(from)),
            _ => {}
        }
        self.learn_from_check(state, touch, &touched);
        if touched.place.is_stack() {
            if let Some(from) = from.filter(|_| is_slot) {
                self.identify(&mut value);
                state.set(from, value);
            }
            let span = touched.span(len);
            let frame = state.frame_mut(touched.place).ok_or(Why::FrameUnknown)?;
            if touched.is_certain() { frame.store(span, value) } else { frame.smudge(span) }
        }
        Ok(())
    }
}
