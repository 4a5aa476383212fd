//! What the verifier knows at one place of a program: registers, the frames that can be reached, the data's least length.

use std::rc::Rc;

use crate::isa::{Register, Size, Width};
use crate::number::Number;
use crate::plant::{Bug, is_planted};
use crate::program::FRAME_LEN;
use crate::verifier::value::{Merging, Place, Pointer, Scalar, Value};
use crate::world::Region;

/// Bytes of a slot of the stack.
const SLOT_LEN: usize = 8;
/// All bytes of a slot.
const WHOLE: u8 = u8::MAX;

/// Eight bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A number or a pointer that was stored as a whole.
    Value(Value),
    /// Bytes of numbers, where the bits are set.
    Bytes(u8),
}

impl Slot {
    /// The bytes that are parts of numbers.
    fn bytes(&self) -> u8 {
        match self {
            Self::Value(Value::Number(_)) => WHOLE,
            Self::Value(_) => 0,
            Self::Bytes(bytes) => *bytes,
        }
    }

    fn merge(&self, other: &Self, merging: &Merging<'_>) -> Self {
        match (self, other) {
            (Self::Value(left), Self::Value(right)) => Self::Value(left.merge(right, merging)),
            _ => Self::Bytes(self.bytes() & other.bytes()),
        }
    }

    fn is_within(&self, own_min: u32, other: &Self) -> bool {
        match (self, other) {
            (Self::Value(own), Self::Value(other)) => own.is_within(own_min, other),
            // Of bytes nothing is known but that they are there.
            (_, Self::Bytes(bytes)) => self.bytes() & bytes == *bytes,
            (_, Self::Value(value)) => *value == Value::Uninitialised,
        }
    }
}

/// Why bytes of the stack cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Nothing was stored there.
    Uninitialised(i64),
    /// A part of a pointer is there, or all of it where numbers are needed.
    Pointer(i64),
}

/// A frame of the stack. Slots that are not there were never written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    slots: Vec<(u8, Slot)>,
}

/// Bytes of a frame, from an offset to its end that is not above 0, which is where the frame ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) begin: i64,
    pub(crate) end: i64,
}

impl Span {
    /// The slots that it touches, with the bytes of each.
    fn slots(self) -> impl Iterator<Item = (u8, u8)> {
        let len = FRAME_LEN as i64;
        // Clamped first: a pointer may have been moved anywhere.
        let at = |offset: i64| (offset.clamp(-len, 0) + len) as usize;
        let (begin, end) = (at(self.begin), at(self.end));
        let end = end.max(begin);
        (begin / SLOT_LEN..end.div_ceil(SLOT_LEN)).filter(move |_| begin < end).map(move |slot| {
            let first = begin.saturating_sub(slot * SLOT_LEN).min(SLOT_LEN);
            let behind = (end - slot * SLOT_LEN).min(SLOT_LEN);
            let bits = u16::from(WHOLE) >> (SLOT_LEN - (behind - first)) << first;
            (slot as u8, bits as u8)
        })
    }

    /// The slot that it is, if it is a whole one.
    fn whole_slot(self) -> Option<u8> {
        let is_whole = self.end - self.begin == SLOT_LEN as i64 && self.begin % SLOT_LEN as i64 == 0;
        is_whole.then(|| ((self.begin + FRAME_LEN as i64) / SLOT_LEN as i64) as u8)
    }
}

impl Frame {
    fn get(&self, slot: u8) -> Option<&Slot> {
        let at = self.slots.binary_search_by_key(&slot, |(at, _)| *at).ok()?;
        self.slots.get(at).map(|(_, slot)| slot)
    }

    fn set(&mut self, slot: u8, to: Slot) {
        match self.slots.binary_search_by_key(&slot, |(at, _)| *at) {
            Ok(at) => {
                if let Some((_, slot)) = self.slots.get_mut(at) {
                    *slot = to;
                }
            }
            Err(at) => self.slots.insert(at, (slot, to)),
        }
    }

    /// Stores a value. Pointers are stored in whole slots only.
    pub(crate) fn store(&mut self, span: Span, value: Value) {
        if let Some(slot) = span.whole_slot() {
            return self.set(slot, Slot::Value(value));
        }
        for (slot, bytes) in span.slots() {
            if is_planted(Bug::StaleSpill) && matches!(self.get(slot), Some(Slot::Value(_))) {
                continue;
            }
            let before = self.get(slot).map_or(0, Slot::bytes);
            self.set(slot, Slot::Bytes(before | bytes));
        }
    }

    /// Some bytes of a span may get another number.
    pub(crate) fn smudge(&mut self, span: Span) {
        if is_planted(Bug::SmudgeForgotten) {
            return;
        }
        for (slot, _) in span.slots() {
            if let Some(before) = self.get(slot) {
                let bytes = before.bytes();
                self.set(slot, Slot::Bytes(bytes));
            }
        }
    }

    /// What a load of a whole slot gives, if it holds a value.
    pub(crate) fn whole(&self, span: Span) -> Option<Value> {
        match self.get(span.whole_slot()?)? {
            Slot::Value(value) if *value != Value::Uninitialised => Some(*value),
            _ => None,
        }
    }

    /// What the lower bytes of a slot that holds a number are, if the span is those.
    pub(crate) fn lower(&self, span: Span, size: Size) -> Option<Scalar> {
        if span.begin % SLOT_LEN as i64 != 0 {
            return None;
        }
        match self.get(((span.begin + FRAME_LEN as i64) / SLOT_LEN as i64) as u8)? {
            Slot::Value(Value::Number(scalar)) if size == Size::B4 => {
                Some(Scalar::of(scalar.number.truncate(Width::W32)))
            }
            Slot::Value(Value::Number(scalar)) => {
                let kept = Number::loaded(size, false);
                let mask = Number::constant(*kept.unsigned_bounds().end());
                let number = Number::alu(crate::isa::AluOp::And, Width::W64, &scalar.number, &mask);
                Some(Scalar::of(number))
            }
            _ => None,
        }
    }

    /// Whether all bytes are parts of numbers.
    pub(crate) fn check_numbers(&self, span: Span) -> Result<(), Unreadable> {
        for (slot, bytes) in span.slots() {
            let found = self.get(slot);
            let missing = bytes & !found.map_or(0, Slot::bytes);
            if missing != 0 {
                let offset = i64::from(slot) * SLOT_LEN as i64 - FRAME_LEN as i64;
                let offset = offset + i64::from(missing.trailing_zeros());
                return Err(match found {
                    Some(Slot::Value(Value::Pointer(_))) => Unreadable::Pointer(offset),
                    _ => Unreadable::Uninitialised(offset),
                });
            }
        }
        Ok(())
    }

    /// The pointers in it, with their slots.
    pub(crate) fn pointers(&self) -> impl Iterator<Item = (u8, &Pointer)> {
        self.slots.iter().filter_map(|(at, slot)| match slot {
            Slot::Value(Value::Pointer(pointer)) => Some((*at, pointer)),
            _ => None,
        })
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.slots.iter_mut().filter_map(|(_, slot)| match slot {
            Slot::Value(value) => Some(value),
            Slot::Bytes(_) => None,
        })
    }

    fn values(&self) -> impl Iterator<Item = (u8, &Value)> {
        self.slots.iter().filter_map(|(at, slot)| match slot {
            Slot::Value(value) => Some((*at, value)),
            Slot::Bytes(_) => None,
        })
    }

    fn merge(&self, other: &Self, merging: &Merging<'_>) -> Self {
        let both =
            self.slots.iter().filter_map(|(at, slot)| Some((*at, slot.merge(other.get(*at)?, merging))));
        Self { slots: both.collect() }
    }

    fn has_slots_of(&self, other: &Self) -> bool {
        other.slots.iter().all(|(at, theirs)| match (self.get(*at), theirs) {
            (Some(Slot::Value(own)), Slot::Value(theirs)) => {
                *own != Value::Uninitialised || *theirs == Value::Uninitialised
            }
            (own, theirs) => own.map_or(0, Slot::bytes) & theirs.bytes() == theirs.bytes(),
        })
    }

    fn likeness(&self, other: &Self) -> i32 {
        let of_slots = self.slots.iter().map(|(at, slot)| match (slot, other.get(*at)) {
            (_, None) => -1,
            (Slot::Value(own), Some(Slot::Value(other))) => own.likeness(other),
            _ => 0,
        });
        let missing = other.slots.iter().filter(|(at, _)| self.get(*at).is_none()).count();
        of_slots.sum::<i32>() - missing as i32
    }

    fn is_within(&self, own_min: u32, other: &Self) -> bool {
        other.slots.iter().all(|(at, slot)| match self.get(*at) {
            Some(own) => own.is_within(own_min, slot),
            None => matches!(slot, Slot::Bytes(0) | Slot::Value(Value::Uninitialised)),
        })
    }
}

/// Sums that are kept; the oldest are forgotten.
const SUMS_MAX: usize = 16;

/// Two numbers, by their ids, whose sum is at most the data's length and so much more. This is what proves a range, an address and how
/// many bytes from there on, when its end was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sum {
    of: [u32; 2],
    at_most: i64,
}

/// What is known at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// All but `r10`.
    registers: [Value; Register::COUNT - 1],
    /// The function's own frame, and those of its callers, as far as they can be reached. Most states differ from the one
    /// that they come from in their registers only, and share these with it.
    frames: Rc<Vec<Option<Frame>>>,
    /// How many bytes of data there are at least.
    pub(crate) len_min: u32,
    sums: Vec<Sum>,
}

impl State {
    /// At the beginning of a function.
    pub(crate) fn new(len_min: u32) -> Self {
        let registers = [Value::Uninitialised; Register::COUNT - 1];
        Self { registers, frames: Rc::new(vec![Some(Frame::default())]), len_min, sums: Vec::new() }
    }

    pub(crate) fn get(&self, register: Register) -> Value {
        let frame_end = Value::Pointer(Pointer::to(Region::Stack));
        self.registers.get(register.index()).copied().unwrap_or(frame_end)
    }

    pub(crate) fn set(&mut self, register: Register, value: Value) {
        if let Some(place) = self.registers.get_mut(register.index()) {
            *place = value;
        }
    }

    pub(crate) fn frame(&self, place: Place) -> Option<&Frame> {
        self.frames.get(usize::from(place.frame))?.as_ref()
    }

    pub(crate) fn frame_mut(&mut self, place: Place) -> Option<&mut Frame> {
        self.frames_mut().get_mut(usize::from(place.frame))?.as_mut()
    }

    /// What it takes to keep it: slots of all frames, and one for the rest.
    pub(crate) fn size(&self) -> usize {
        1 + self.frames.iter().flatten().map(|frame| frame.slots.len()).sum::<usize>()
    }

    pub(crate) fn frames(&self) -> &[Option<Frame>] {
        &self.frames
    }

    pub(crate) fn frames_mut(&mut self) -> &mut Vec<Option<Frame>> {
        Rc::make_mut(&mut self.frames)
    }

    /// Changes every value.
    pub(crate) fn change_all(&mut self, change: impl FnMut(&mut Value)) {
        self.change_some(|_| true, change);
    }

    /// Changes the values that are to be changed.
    fn change_some(&mut self, is_meant: impl Fn(&Value) -> bool, mut change: impl FnMut(&mut Value)) {
        self.registers.iter_mut().filter(|value| is_meant(value)).for_each(&mut change);
        let has_meant = |frame: &Frame| frame.values().any(|(_, value)| is_meant(value));
        if self.frames.iter().flatten().any(has_meant) {
            let in_frames = self.frames_mut().iter_mut().flatten().flat_map(Frame::values_mut);
            in_frames.filter(|value| is_meant(value)).for_each(&mut change);
        }
    }

    /// The bound of a sum of two numbers, if they were compared as such.
    pub(crate) fn sum_at_most(&self, of: [u32; 2]) -> Option<i64> {
        let [left, right] = of;
        let is_it = |sum: &&Sum| sum.of == of || sum.of == [right, left];
        self.sums.iter().filter(is_it).map(|sum| sum.at_most).min()
    }

    /// A number is another less something, by `less` at least: sums with it are so much less.
    pub(crate) fn lessen_sums(&mut self, of: u32, id: u32, less: u64) {
        let Ok(less) = i64::try_from(less) else { return };
        let lessened = self.sums.iter().filter(|sum| sum.of.contains(&of)).map(|sum| Sum {
            of: sum.of.map(|known| if known == of { id } else { known }),
            at_most: sum.at_most.saturating_sub(less),
        });
        for sum in lessened.collect::<Vec<_>>() {
            self.add_sum(sum);
        }
    }

    fn add_sum(&mut self, sum: Sum) {
        if self.sums.len() == SUMS_MAX {
            self.sums.remove(0);
        }
        self.sums.push(sum);
    }

    /// Forgets what is of no use where ways meet: sums of numbers that nobody has, and which numbers are sums.
    pub(crate) fn forget_sums(&mut self) {
        let is_sum = |value: &Value| value.scalar().is_some_and(|scalar| scalar.sum.is_some());
        self.change_some(is_sum, |value| {
            if let Some(scalar) = value.scalar_mut() {
                scalar.sum = None;
            }
        });
        if !self.sums.is_empty() {
            let in_frames = self.frames.iter().flatten().flat_map(Frame::values).map(|(_, value)| value);
            let ids: Vec<u32> = self.registers.iter().chain(in_frames).map(Value::id).collect();
            self.sums.retain(|sum| sum.of.iter().all(|id| ids.contains(id)));
        }
    }

    /// Says more of a value, and of all that are the same.
    pub(crate) fn learn(&mut self, register: Register, learnt: &Value) {
        let id = learnt.id();
        if let Some(scalar) = learnt.scalar()
            && let Some(of) = scalar.sum
            && let Ok(at_most) = i64::try_from(scalar.bound(self.len_min))
        {
            self.add_sum(Sum { of, at_most });
        }
        self.set(register, *learnt);
        if id != 0 {
            let place = learnt.place();
            let is_same = |value: &Value| value.id() == id && (value.place() == place || place.is_none());
            self.change_some(is_same, |value| *value = *learnt);
        }
    }

    /// Forgets registers that are not read before they are written again.
    pub(crate) fn keep_only(&mut self, live: u16) {
        for (at, value) in self.registers.iter_mut().enumerate() {
            if live & (1 << at) == 0 {
                *value = Value::Uninitialised;
            }
        }
    }

    /// What holds in both, at least.
    pub(crate) fn merge(&self, other: &Self, thresholds: Option<&[u64]>, len_floor: u32) -> Self {
        let merging = Merging { own_min: self.len_min, other_min: other.len_min, thresholds };
        let mut registers = self.registers;
        for (own, other) in registers.iter_mut().zip(&other.registers) {
            *own = own.merge(other, &merging);
        }
        let frames = self.frames.iter().zip(&*other.frames);
        let frames = frames.map(|(own, other)| Some(own.as_ref()?.merge(other.as_ref()?, &merging)));
        let lowered = self.len_min.min(other.len_min);
        // A length that falls would fall on.
        let is_falling = thresholds.is_some() && lowered < self.len_min;
        let len_min = if is_falling { len_floor.min(lowered) } else { lowered };
        let sums = self.sums.iter().filter_map(|sum| {
            let at_most = sum.at_most.max(other.sum_at_most(sum.of)?);
            // What grows would grow on.
            (thresholds.is_none() || at_most == sum.at_most).then_some(Sum { at_most, ..*sum })
        });
        Self { registers, frames: Rc::new(frames.collect()), len_min, sums: sums.collect() }
    }

    /// Whether this is the next round of a loop whose rounds are counted: a register is a constant in both, and is greater here.
    pub(crate) fn counts_on_from(&self, before: &Self) -> bool {
        let constant = |value: &Value| match value {
            Value::Number(scalar) => scalar.number.as_constant(),
            Value::Uninitialised | Value::Pointer(_) => None,
        };
        let registers = self.registers.iter().zip(&before.registers);
        registers
            .filter_map(|(own, before)| constant(own).zip(constant(before)))
            .any(|(own, before)| own > before)
    }

    /// How alike two are: the less is lost by joining them, the more. What one has and the other has not is lost for good, and a constant
    /// often is what the program goes by.
    pub(crate) fn likeness(&self, other: &Self) -> i32 {
        let registers = self.registers.iter().zip(&other.registers).map(|(own, other)| own.likeness(other));
        let frames = self.frames.iter().zip(&*other.frames).map(|frames| match frames {
            (Some(own), Some(other)) => own.likeness(other),
            _ => 0,
        });
        registers.chain(frames).sum()
    }

    /// Whether each slot that has something there has something here. What a function leaves is known only of the slots that it was
    /// verified with.
    pub(crate) fn has_slots_of(&self, other: &Self) -> bool {
        self.frames.iter().zip(&*other.frames).all(|(own, other)| match (own, other) {
            (Some(own), Some(other)) => own.has_slots_of(other),
            (own, other) => own.is_some() == other.is_some(),
        })
    }

    /// Whether everything that may be here may be there: then nothing new can come of it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.len_min >= other.len_min
            && self
                .registers
                .iter()
                .zip(&other.registers)
                .all(|(own, other)| own.is_within(self.len_min, other))
            && self.frames.iter().zip(&*other.frames).all(|(own, other)| match (own, other) {
                (_, None) => true,
                (Some(own), Some(other)) => own.is_within(self.len_min, other),
                (None, Some(_)) => false,
            })
            && self.has_relations_of(other)
    }

    /// Whether values that are the same there are the same here.
    fn has_relations_of(&self, other: &Self) -> bool {
        // Ids there, each with that of the same place here.
        let registers = other.registers.iter().zip(&self.registers);
        let mut ids: Vec<(u32, u32)> = registers.map(|(theirs, own)| (theirs.id(), own.id())).collect();
        for (theirs, own) in other.frames.iter().zip(&*self.frames) {
            let (Some(theirs), Some(own)) = (theirs, own) else { continue };
            ids.extend(theirs.values().map(|(at, value)| match own.get(at) {
                Some(Slot::Value(own)) => (value.id(), own.id()),
                _ => (value.id(), 0),
            }));
        }
        ids.retain(|(theirs, _)| *theirs != 0);
        ids.sort_unstable();
        let are_related = |pair: &[(u32, u32)]| match pair {
            [(left, own), (right, other)] if left == right => own == other && *own != 0,
            _ => true,
        };
        if !ids.windows(2).all(are_related) {
            return false;
        }
        // A sum of numbers that nobody has says nothing.
        let own = |id: u32| {
            let at = ids.binary_search_by_key(&id, |(theirs, _)| *theirs).ok()?;
            ids.get(at).map(|(_, own)| *own)
        };
        other.sums.iter().all(|sum| match sum.of.map(own) {
            [Some(left), Some(right)] => {
                self.sum_at_most([left, right]).is_some_and(|most| most <= sum.at_most)
            }
            _ => true,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn at(begin: i64, len: i64) -> Span {
        Span { begin, end: begin + len }
    }

    #[test]
    fn spans_touch_the_slots_that_they_lie_in() {
        let slots = |begin, len| at(begin, len).slots().collect::<Vec<_>>();
        assert_eq!(slots(-8, 8), [(63, 0xff)]);
        assert_eq!(slots(-8, 1), [(63, 1)]);
        assert_eq!(slots(-1, 1), [(63, 0x80)]);
        assert_eq!(slots(-12, 8), [(62, 0xf0), (63, 0x0f)]);
        assert_eq!(slots(-512, 17), [(0, 0xff), (1, 0xff), (2, 1)]);
        assert_eq!(slots(-4, 0), []);
    }

    #[test]
    fn pointers_are_whole_or_nothing() {
        let mut frame = Frame::default();
        let pointer = Value::Pointer(Pointer::to(Region::Data));
        frame.store(at(-16, 8), pointer);
        assert_eq!(frame.whole(at(-16, 8)), Some(pointer));
        assert_eq!(frame.check_numbers(at(-16, 8)), Err(Unreadable::Pointer(-16)));
        assert_eq!(frame.whole(at(-12, 8)), None);
        frame.store(at(-16, 1), Value::ANY);
        assert_eq!(frame.whole(at(-16, 8)), None);
        assert_eq!(frame.check_numbers(at(-16, 1)), Ok(()));
        assert_eq!(frame.check_numbers(at(-16, 2)), Err(Unreadable::Uninitialised(-15)));
        frame.store(at(-24, 8), pointer);
        frame.smudge(at(-20, 1));
        assert_eq!(frame.whole(at(-24, 8)), None);
        assert_eq!(frame.check_numbers(at(-24, 1)), Err(Unreadable::Uninitialised(-24)));
    }

    #[test]
    fn what_was_stored_in_one_only_is_in_neither() {
        let merging = Merging { own_min: 0, other_min: 0, thresholds: None };
        let (mut left, mut right) = (Frame::default(), Frame::default());
        left.store(at(-8, 8), Value::Number(Scalar::constant(1)));
        right.store(at(-8, 8), Value::Number(Scalar::constant(3)));
        left.store(at(-16, 8), Value::ANY);
        let merged = left.merge(&right, &merging);
        assert_eq!(merged.whole(at(-8, 8)).unwrap().scalar().unwrap().greatest(), 3);
        assert!(merged.check_numbers(at(-16, 8)).is_err());
        assert!(left.is_within(0, &merged) && right.is_within(0, &merged) && !merged.is_within(0, &left));
    }
}
