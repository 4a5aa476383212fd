//! Calls: of helpers, and of the program's own functions.

use crate::isa::Register;
use crate::number::Number;
use crate::plant::{Bug, is_planted};
use crate::verdict::{Bounds, Variant};
use crate::verifier::memory::Touched;
use crate::verifier::refusal::Why;
use crate::verifier::state::{Frame, State};
use crate::verifier::step::Next;
use crate::verifier::value::{Place, Pointer, Scalar, Value};
use crate::verifier::{Known, Verifier};
use crate::world::{Argument, Helper, Region, Returns};

const ARGUMENTS: [Register; 5] = [Register::R1, Register::R2, Register::R3, Register::R4, Register::R5];
/// Entries of a function that are kept apart, of one kind. Joined, they would no longer tell which slot a pointer to the stack is to, and
/// what a function writes through it would be lost.
const ENTRIES_MAX: usize = 64;

/// What tells variants of a function apart: which memory its arguments, and pointers in the frames that it can reach, point to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    function: usize,
    arguments: Vec<Option<Place>>,
    frames: Vec<(u8, u8, Place)>,
}

impl Verifier<'_> {
    pub(crate) fn call_helper(&mut self, at: usize, number: u32, state: &mut State) -> Result<(), Why> {
        let helper = Helper::of_number(number).filter(|helper| self.world.has(*helper));
        let signature = helper.ok_or(Why::NoHelper(number))?.signature();
        let mut registers = ARGUMENTS.into_iter().zip(signature.arguments).peekable();
        // All ranges are looked at before any of them is written.
        let mut written = Vec::new();
        while let Some((register, argument)) = registers.next() {
            match argument {
                Argument::Number | Argument::Len { .. } => {
                    Self::number(state, register)?;
                }
                Argument::Read | Argument::Write => {
                    let Some((len, Argument::Len { max })) = registers.peek() else { continue };
                    let len = Self::number(state, *len)?;
                    let is_write = *argument == Argument::Write;
                    let touched = self.range(state, at, register, &len, *max, is_write)?;
                    if is_write && touched.place.is_stack() {
                        written.push((touched, len.greatest().min((*max).into())));
                    }
                }
            }
        }
        for (touched, len) in written {
            if let Some(frame) = state.frame_mut(touched.place) {
                frame.smudge(touched.span(len));
            }
        }
        for register in ARGUMENTS {
            state.set(register, Value::Uninitialised);
        }
        let result = match signature.returns {
            Returns::Number { min, max } => Value::Number(Scalar::of(Number::signed(min..=max))),
            Returns::TableValueOrNull => {
                let offset = Scalar { id: self.fresh_id(), ..Scalar::constant(0) };
                Value::Pointer(Pointer { offset, is_nullable: true, ..Pointer::to(Region::TableValue) })
            }
        };
        state.set(Register::R0, result);
        Ok(())
    }

    /// A range that is handed to a helper.
    fn range(
        &mut self,
        state: &State,
        at: usize,
        register: Register,
        len: &Scalar,
        max: u32,
        is_write: bool,
    ) -> Result<Touched, Why> {
        let Pointer { place, offset, .. } = Self::pointer(state, register)?;
        if place.region == Region::Context {
            return Err(Why::HelperRegion { register, region: place.region });
        }
        if is_write && !place.region.is_writable() {
            return Err(Why::ReadOnly(place.region));
        }
        let most = len.greatest().min(max.into());
        let mut bounds = match place.region {
            Region::Stack => {
                let frame = state.frame(place).ok_or(Why::FrameUnknown)?;
                let certain = offset.number.as_constant();
                let begin = certain.ok_or_else(|| Why::StackOffset(offset.to_string()))? as i64;
                let is_inside =
                    begin >= -(crate::program::FRAME_LEN as i64) && begin.saturating_add(most as i64) <= 0;
                let touched = Touched { place, offset, bounds: Bounds::Proven };
                if !is_write {
                    frame.check_numbers(touched.span(most))?;
                }
                if is_inside { Bounds::Proven } else { Bounds::Checked }
            }
            Region::Data if state.sum_at_most([offset.id, len.id]).is_some_and(|most| most <= 0) => {
                Bounds::Proven
            }
            region => self.bounds(state.len_min, region, &offset, most),
        };
        if len.greatest() > max.into() {
            bounds = Bounds::Checked;
        }
        let touched = Touched { place, offset, bounds };
        self.note_access(at, Some(register), &touched, most)?;
        Ok(touched)
    }

    pub(crate) fn call_local(&mut self, at: usize, target: usize, state: &State) -> Result<Next, Why> {
        let function = self.program.function_at(target);
        let entry = self.entry(state, target)?;
        // To find its kind it is compared with some of the others.
        self.spend(entry.size() * (1 + self.kinds.len().checked_ilog2().unwrap_or(0) as usize));
        let kind = kind_of(function, &entry);
        let variant = self.variant(kind);
        self.note_call(at, variant)?;
        match self.exits_of(at, variant, entry) {
            Ok(exits) => Ok(Next::Returned(exits)),
            Err(refused) => {
                // It has been told already, in full, where it happened.
                self.refused.get_or_insert(refused);
                Err(Why::CallUnclear)
            }
        }
    }

    /// What a function finds: its arguments, and the frames that they reach.
    fn entry(&self, state: &State, target: usize) -> Result<State, Why> {
        let live = self.flow.arguments(target);
        let mut entry = State::new(state.len_min);
        for register in ARGUMENTS.into_iter().filter(|register| live & (1 << register.index()) != 0) {
            let value = state.get(register);
            if value == Value::Uninitialised {
                return Err(Why::Uninitialised(register));
            }
            entry.set(register, value);
        }
        let mut reached: Vec<Option<Frame>> = vec![None; state.frames().len()];
        let arguments = ARGUMENTS.into_iter().filter_map(|register| entry.get(register).place());
        let mut to_reach: Vec<Place> = arguments.filter(Place::is_stack).collect();
        while let Some(place) = to_reach.pop() {
            let Some(frame) = state.frame(place) else { continue };
            let Some(empty) = reached.get_mut(usize::from(place.frame)).filter(|known| known.is_none())
            else {
                continue;
            };
            *empty = Some(frame.clone());
            to_reach.extend(frame.pointers().map(|(_, pointer)| pointer.place).filter(Place::is_stack));
        }
        entry.frames_mut().extend(reached);
        // Frames are counted from the function's own, and nothing is the same as anything outside.
        entry.change_all(|value| {
            if let Value::Pointer(pointer) = value
                && pointer.place.is_stack()
            {
                pointer.place.frame += 1;
            }
            if let Some(scalar) = value.scalar_mut() {
                scalar.id = 0;
                scalar.sum = None;
            }
        });
        Ok(entry)
    }

    fn variant(&mut self, kind: Kind) -> usize {
        let function = kind.function;
        let next = self.variants.len();
        let variant = *self.kinds.entry(kind).or_insert(next);
        if variant == next {
            self.variants.push(Variant::new(function));
            self.known.push(Vec::new());
        }
        variant
    }

    /// What a function leaves, if it was verified with all that it may find now; or verifies it.
    fn exits_of(
        &mut self,
        at: usize,
        variant: usize,
        entry: State,
    ) -> Result<Vec<State>, Box<crate::verifier::Refused>> {
        let known = self.known.get(variant).into_iter().flatten();
        // Each may be compared twice, and joined.
        let size = 3 * known.map(|known| known.entry.size()).sum::<usize>();
        self.spend(size);
        let known = self.known.get(variant).into_iter().flatten();
        if let Some(known) =
            known.clone().find(|known| entry.is_within(&known.entry) && known.entry.has_slots_of(&entry))
        {
            return Ok(known.exits.clone());
        }
        let is_crowded = known.clone().count() >= ENTRIES_MAX;
        let entry = if is_crowded {
            let floor = self.program.data_len_min();
            known.fold(entry, |joined, known| known.entry.merge(&joined, Some(&self.thresholds), floor))
        } else {
            entry
        };
        self.calls.push((at, variant));
        let exits = self.function(variant, entry.clone());
        self.calls.pop();
        let exits = exits?;
        if let Some(known) = self.known.get_mut(variant) {
            if is_crowded {
                self.kept -= known.drain(..).map(|known| known.size()).sum::<usize>();
            }
            let more = Known { entry, exits: exits.clone() };
            self.kept += more.size();
            known.push(more);
        }
        Ok(exits)
    }

    /// Takes over what a function has left.
    pub(crate) fn returned(state: &mut State, mut exit: State) {
        exit.change_all(|value| {
            if let Value::Pointer(pointer) = value
                && pointer.place.is_stack()
            {
                let Some(frame) = pointer.place.frame.checked_sub(1) else {
                    // The function's own frame is gone.
                    *value = Value::Uninitialised;
                    return;
                };
                pointer.place.frame = if is_planted(Bug::FramesNotShifted) { frame + 1 } else { frame };
            }
            if let Some(scalar) = value.scalar_mut() {
                scalar.id = 0;
                scalar.sum = None;
            }
        });
        for register in ARGUMENTS {
            state.set(register, Value::Uninitialised);
        }
        state.set(Register::R0, exit.get(Register::R0));
        state.len_min = state.len_min.max(exit.len_min);
        let left = exit.frames_mut().drain(..).skip(1);
        for (own, left) in state.frames_mut().iter_mut().zip(left) {
            if left.is_some() {
                *own = left;
            }
        }
    }

    /// A function may return a number or a pointer that lives on; the program returns a number.
    pub(crate) fn check_exit(&self, state: &State) -> Result<(), Why> {
        let is_program = self.calls.is_empty();
        match state.get(Register::R0) {
            Value::Number(_) => Ok(()),
            Value::Uninitialised if is_program => Err(Why::Uninitialised(Register::R0)),
            Value::Uninitialised => Ok(()),
            Value::Pointer(_) if is_program => Err(Why::PointerReturned),
            Value::Pointer(pointer) if pointer.place.is_stack() && pointer.place.frame == 0 => {
                Err(Why::PointerReturned)
            }
            Value::Pointer(_) => Ok(()),
        }
    }
}

fn kind_of(function: usize, entry: &State) -> Kind {
    let arguments = ARGUMENTS.iter().map(|register| entry.get(*register).place()).collect();
    let frames = entry.frames().iter().enumerate().flat_map(|(at, frame)| {
        let pointers = frame.iter().flat_map(Frame::pointers);
        pointers.map(move |(slot, pointer)| (at as u8, slot, pointer.place))
    });
    Kind { function, arguments, frames: frames.collect() }
}
