//! What the verifier knows of a register or a slot of the stack.

use std::fmt;

use crate::isa::{AluOp, Width};
use crate::number::Number;
use crate::plant::{Bug, is_planted};
use crate::world::Region;

/// Bounds further from the data's length than this are of no use.
const BOUND_MAX: i128 = 1 << 32;

/// Offsets up to this cannot make an address wrap around.
const FAR: u64 = 1 << 32;

/// A number, with what is known of it beyond [`Number`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) number: Number,
    /// It is at most the data's length in this call plus so much, as numbers without a sign.
    pub(crate) at_most: Option<i64>,
    /// It is exactly that.
    pub(crate) is_length: bool,
    /// Those with the same, if it is not 0, are the same number.
    pub(crate) id: u32,
    /// It is the sum of the numbers with these, which does not wrap around. Known only until ways meet.
    pub(crate) sum: Option<[u32; 2]>,
}

impl Scalar {
    pub(crate) const ANY: Self = Self::of(Number::any());

    pub(crate) const fn of(number: Number) -> Self {
        Self { number, at_most: None, is_length: false, id: 0, sum: None }
    }

    pub(crate) fn constant(value: u64) -> Self {
        Self::of(Number::constant(value))
    }

    pub(crate) fn greatest(&self) -> u64 {
        *self.number.unsigned_bounds().end()
    }

    pub(crate) fn least(&self) -> u64 {
        *self.number.unsigned_bounds().start()
    }

    /// The bound by the data's length, where that is `len_min` at least; from the number's own if there is no other.
    pub(crate) fn bound(&self, len_min: u32) -> i128 {
        let own = i128::from(self.greatest()) - i128::from(len_min);
        self.at_most.map_or(own, |at_most| own.min(at_most.into()))
    }

    /// The same with another bound, if that says more than the number itself.
    #[must_use]
    pub(crate) fn bounded(self, bound: i128, len_min: u32) -> Self {
        let own = i128::from(self.greatest()) - i128::from(len_min);
        let at_most = (bound < own && bound.abs() <= BOUND_MAX).then_some(bound as i64);
        Self { at_most, is_length: self.is_length && at_most == self.at_most, ..self }
    }

    /// The sum with a number that is known.
    #[must_use]
    pub(crate) fn plus(&self, by: i64, len_min: u32) -> Self {
        if by == 0 {
            return *self;
        }
        let number = Number::alu(AluOp::Add, Width::W64, &self.number, &Number::constant(by as u64));
        let does_not_wrap = by >= 0 || self.least() >= by.unsigned_abs() || is_planted(Bug::WrappedBound);
        let bound =
            self.at_most.filter(|_| does_not_wrap).map(|at_most| i128::from(at_most) + i128::from(by));
        match bound {
            Some(bound) if self.is_length && bound.abs() <= BOUND_MAX => {
                Self { at_most: Some(bound as i64), is_length: true, ..Self::of(number) }
            }
            Some(bound) => Self::of(number).bounded(bound, len_min),
            None => Self::of(number),
        }
    }

    /// What an operation makes of two.
    pub(crate) fn alu(op: AluOp, width: Width, left: &Self, right: &Self, len_min: u32) -> Self {
        if width == Width::W64
            && let (AluOp::Add | AluOp::Sub, Some(by)) = (op, right.number.as_constant())
        {
            let by = by as i64;
            return left.plus(if op == AluOp::Sub { by.wrapping_neg() } else { by }, len_min);
        }
        if width == Width::W64
            && let (AluOp::Add, Some(by)) = (op, left.number.as_constant())
        {
            // It is another kind of value, as a rule: a pointer, at so many bytes as the number says.
            return Self { id: 0, sum: None, ..right.plus(by as i64, len_min) };
        }
        let number = Number::alu(op, width, &left.number, &right.number);
        if op == AluOp::Sub
            && width == Width::W64
            && left.is_length
            && right.at_most.is_some_and(|most| Some(most) <= left.at_most)
        {
            return left.without(right, number, len_min);
        }
        let (greatest_left, greatest_right) = (i128::from(left.greatest()), i128::from(right.greatest()));
        let (of_left, of_right) = (left.at_most.map(i128::from), right.at_most.map(i128::from));
        // Results modulo the width, and of lower halves, are never above those without a modulus.
        let bound = match op {
            AluOp::Add => {
                least(of_left.map(|left| left + greatest_right), of_right.map(|right| right + greatest_left))
            }
            AluOp::And => least(of_left, of_right),
            AluOp::ShiftRight | AluOp::Div | AluOp::Mod => of_left,
            AluOp::Sub if width == Width::W64 && left.least() >= right.greatest() => {
                of_left.map(|left| left - i128::from(right.least()))
            }
            _ => None,
        };
        bound.map_or(Self::of(number), |bound| Self::of(number).bounded(bound, len_min))
    }

    /// The difference from a number that is the data's length, or a part of it, of one that is not above it: that does not wrap around.
    fn without(&self, by: &Self, number: Number, len_min: u32) -> Self {
        let range = Number::unsigned(0..=self.greatest().saturating_sub(by.least()));
        let difference = Self::of(number.meet(&range).unwrap_or(number));
        let bound = self.at_most.map(|at_most| i128::from(at_most) - i128::from(by.least()));
        bound.map_or(difference, |bound| difference.bounded(bound, len_min))
    }

    /// The lower half, with zeroes above it.
    #[must_use]
    pub(crate) fn truncate(&self, len_min: u32) -> Self {
        if self.greatest() <= u64::from(u32::MAX) {
            return *self;
        }
        let cut = Self::of(self.number.truncate(Width::W32));
        self.at_most.map_or(cut, |at_most| cut.bounded(at_most.into(), len_min))
    }

    fn join(&self, own_min: u32, other: &Self, other_min: u32) -> Self {
        self.merged(own_min, other, other_min, self.number.join(&other.number))
    }

    fn widen(&self, own_min: u32, newer: &Self, newer_min: u32, thresholds: &[u64]) -> Self {
        let merged = self.merged(own_min, newer, newer_min, self.number.widen(&newer.number, thresholds));
        // What grows would grow on.
        let grows =
            merged.at_most.is_some() && self.at_most.is_none_or(|before| merged.at_most > Some(before));
        let at_most = merged.at_most.filter(|_| !(grows && self.at_most.is_some()));
        Self { at_most, ..merged }
    }

    fn merged(&self, own_min: u32, other: &Self, other_min: u32, number: Number) -> Self {
        let id = if self.id == other.id { self.id } else { 0 };
        let is_length = self.is_length && other.is_length && self.at_most == other.at_most;
        if is_length {
            return Self { at_most: self.at_most, is_length, id, ..Self::of(number) };
        }
        let bound = self.bound(own_min).max(other.bound(other_min));
        Self { id, ..Self::of(number).bounded(bound, own_min.min(other_min)) }
    }

    /// Whether everything that may be this may be the other.
    fn is_within(&self, own_min: u32, other: &Self) -> bool {
        let is_bounded = other.at_most.is_none_or(|at_most| self.bound(own_min) <= at_most.into());
        let is_length = !other.is_length || (self.is_length && self.at_most == other.at_most);
        self.number.is_subset_of(&other.number) && is_bounded && is_length
    }
}

fn least(left: Option<i128>, right: Option<i128>) -> Option<i128> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (left, right) => left.or(right),
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at_most {
            Some(at_most) if self.is_length => match at_most {
                0 => write!(f, "the data's length"),
                _ => write!(f, "the data's length{at_most:+}"),
            },
            Some(0) => write!(f, "{}, at most the data's length", self.number),
            Some(at_most) => write!(f, "{}, at most the data's length{at_most:+}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

/// The memory that a pointer points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) region: Region,
    /// On the stack, whose frame: 0 for the function's own, 1 for that of its caller, and so on.
    pub(crate) frame: u8,
}

impl Place {
    pub(crate) const fn of(region: Region) -> Self {
        Self { region, frame: 0 }
    }

    pub(crate) const fn is_stack(&self) -> bool {
        matches!(self.region, Region::Stack)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.region, self.frame) {
            (Region::Stack, 0) | (Region::Context | Region::Data | Region::Scratch, _) => {
                write!(f, "the {}", self.region.name())
            }
            (Region::Stack, 1) => write!(f, "the caller's stack"),
            (Region::Stack, frame) => write!(f, "the stack of the caller {frame} calls up"),
            (Region::TableValue, _) => write!(f, "a table value"),
            (Region::ReadOnly | Region::PerCall, _) => write!(f, "the program's {}", self.region.name()),
        }
    }
}

/// A pointer, or null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) place: Place,
    /// From the region's first byte; on the stack, from the end of the frame.
    pub(crate) offset: Scalar,
    pub(crate) is_nullable: bool,
}

impl Pointer {
    pub(crate) fn to(region: Region) -> Self {
        Self { place: Place::of(region), offset: Scalar::constant(0), is_nullable: false }
    }
}

/// What a register or a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Nothing that may be used.
    Uninitialised,
    Number(Scalar),
    Pointer(Pointer),
}

impl Value {
    pub(crate) const ANY: Self = Self::Number(Scalar::ANY);

    pub(crate) fn scalar(&self) -> Option<&Scalar> {
        match self {
            Self::Uninitialised => None,
            Self::Number(scalar) => Some(scalar),
            Self::Pointer(pointer) => Some(&pointer.offset),
        }
    }

    pub(crate) fn scalar_mut(&mut self) -> Option<&mut Scalar> {
        match self {
            Self::Uninitialised => None,
            Self::Number(scalar) => Some(scalar),
            Self::Pointer(pointer) => Some(&mut pointer.offset),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.scalar().map_or(0, |scalar| scalar.id)
    }

    /// Where it points to, if it does.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Self::Pointer(pointer) => Some(pointer.place),
            Self::Uninitialised | Self::Number(_) => None,
        }
    }

    pub(crate) fn merge(&self, other: &Self, merging: &Merging<'_>) -> Self {
        let merge = |left: &Scalar, right: &Scalar| match merging.thresholds {
            Some(thresholds) => left.widen(merging.own_min, right, merging.other_min, thresholds),
            None => left.join(merging.own_min, right, merging.other_min),
        };
        match (self, other) {
            (Self::Number(left), Self::Number(_)) if is_planted(Bug::MergeKeepsOne) => Self::Number(*left),
            (Self::Number(left), Self::Number(right)) => Self::Number(merge(left, right)),
            (Self::Pointer(left), Self::Pointer(right)) if left.place == right.place => {
                let offset = merge(&left.offset, &right.offset);
                let is_nullable = left.is_nullable || right.is_nullable;
                if is_nullable && offset.greatest() > FAR {
                    return Self::Uninitialised;
                }
                Self::Pointer(Pointer { place: left.place, offset, is_nullable })
            }
            // Null on one side, and a pointer that was found on the other.
            (Self::Pointer(pointer), Self::Number(null)) | (Self::Number(null), Self::Pointer(pointer))
                // Wherever the value lies, a pointer that is not moved far from it is not null itself.
                if null.number.as_constant() == Some(0)
                    && pointer.place.region == Region::TableValue
                    && pointer.offset.greatest() <= FAR =>
            {
                let offset = Scalar { id: 0, ..pointer.offset };
                Self::Pointer(Pointer { offset, is_nullable: true, ..*pointer })
            }
            _ => Self::Uninitialised,
        }
    }

    /// How alike two are; more, if less is lost by joining them.
    pub(crate) fn likeness(&self, other: &Self) -> i32 {
        match (self, other) {
            (Self::Number(own), Self::Number(other)) => {
                match (own.number.as_constant(), other.number.as_constant()) {
                    (Some(own), Some(other)) if own == other => 1,
                    (None, None) => 0,
                    _ => -1,
                }
            }
            (Self::Pointer(own), Self::Pointer(other)) if own.place == other.place => 0,
            (Self::Uninitialised, Self::Uninitialised) => 0,
            _ => -2,
        }
    }

    /// Whether everything that may be this may be the other.
    pub(crate) fn is_within(&self, own_min: u32, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Uninitialised) => true,
            (Self::Number(own), Self::Number(other)) => own.is_within(own_min, other),
            (Self::Pointer(own), Self::Pointer(other)) => {
                own.place == other.place
                    && (other.is_nullable || !own.is_nullable)
                    && own.offset.is_within(own_min, &other.offset)
            }
            (Self::Number(own), Self::Pointer(other)) => {
                other.is_nullable && own.number.as_constant() == Some(0) && other.offset.id == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uninitialised => write!(f, "nothing"),
            Self::Number(scalar) => write!(f, "{scalar}"),
            Self::Pointer(pointer) => {
                if pointer.is_nullable {
                    write!(f, "null or ")?;
                }
                write!(f, "a pointer to {} + ({})", pointer.place, pointer.offset)
            }
        }
    }
}

/// How two values are merged: the least length of the data on either side, and what stops bounds that keep growing, if they are to be
/// widened.
pub(crate) struct Merging<'a> {
    pub(crate) own_min: u32,
    pub(crate) other_min: u32,
    pub(crate) thresholds: Option<&'a [u64]>,
}
