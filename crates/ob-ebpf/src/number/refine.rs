//! What a branch tells of the numbers that it compares.

use super::WordSet;
use super::bits::KnownBits;
use super::pieces::Pieces;
use crate::isa::{Test, Width};
use crate::plant::{Bug, is_planted};

/// A test as one of few, in which the first operand is never the greater one.
enum Relation {
    Equal,
    NotEqual,
    AnyBit,
    NoBit,
    /// Without a sign; strictly, or not.
    Below(bool),
    /// With a sign; strictly, or not.
    Less(bool),
}

impl Relation {
    /// What a test that has held or not says, and whether it says it of the operands in the other order.
    const fn of(test: Test, holds: bool) -> (Self, bool) {
        match (test, holds) {
            (Test::Equal, true) | (Test::NotEqual, false) => (Self::Equal, false),
            (Test::NotEqual, true) | (Test::Equal, false) => (Self::NotEqual, false),
            (Test::AnyBit, true) => (Self::AnyBit, false),
            (Test::AnyBit, false) => (Self::NoBit, false),
            (Test::Below, true) | (Test::AboveOrEqual, false) => (Self::Below(true), false),
            (Test::BelowOrEqual, true) | (Test::Above, false) => (Self::Below(false), false),
            (Test::Above, true) | (Test::BelowOrEqual, false) => (Self::Below(true), true),
            (Test::AboveOrEqual, true) | (Test::Below, false) => (Self::Below(false), true),
            (Test::Less, true) | (Test::GreaterOrEqual, false) => (Self::Less(true), false),
            (Test::LessOrEqual, true) | (Test::Greater, false) => (Self::Less(false), false),
            (Test::Greater, true) | (Test::LessOrEqual, false) => (Self::Less(true), true),
            (Test::GreaterOrEqual, true) | (Test::Less, false) => (Self::Less(false), true),
        }
    }
}

impl<const BITS: u32> WordSet<BITS> {
    /// What is known of two numbers after a test of them has held, or has not; none if that cannot be.
    #[must_use]
    #[inline]
    pub fn refine(test: Test, width: Width, left: &Self, right: &Self, holds: bool) -> Option<(Self, Self)> {
        let (relation, is_turned) = Relation::of(test, holds);
        if is_turned {
            let (right, left) = Self::related(&relation, width, right, left)?;
            Some((left, right))
        } else {
            Self::related(&relation, width, left, right)
        }
    }

    #[inline]
    fn related(relation: &Relation, width: Width, left: &Self, right: &Self) -> Option<(Self, Self)> {
        let word = Self::word(width);
        match *relation {
            Relation::Equal => Self::equal(width, left, right),
            Relation::NotEqual => {
                let (of_left, of_right) = (left.part(width), right.part(width));
                let mut both = (*left, *right);
                if let Some(constant) = of_right.bits.as_constant() {
                    both.0 = left.with_pieces(width, of_left.pieces.without(constant))?;
                }
                if let Some(constant) = of_left.bits.as_constant() {
                    both.1 = right.with_pieces(width, of_right.pieces.without(constant))?;
                } else if is_planted(Bug::EndExcluded) {
                    both.1 = right.with_pieces(width, of_right.pieces.without(of_left.pieces.span().low))?;
                }
                Some(both)
            }
            Relation::AnyBit => Self::with_common_bits(width, left, right),
            Relation::NoBit => {
                let (of_left, of_right) = (left.part(width).bits, right.part(width).bits);
                Some((
                    left.with_known(KnownBits::zero_in(Self::WHOLE, of_right.value))?,
                    right.with_known(KnownBits::zero_in(Self::WHOLE, of_left.value))?,
                ))
            }
            Relation::Below(is_strict) => {
                let is_strict = is_strict || is_planted(Bug::BoundOffByOne);
                let (of_left, of_right) = (left.part(width).pieces, right.part(width).pieces);
                let step = u64::from(is_strict);
                let most = of_right.span().high.checked_sub(step)?;
                let least = of_left.span().low.checked_add(step)?;
                Some((
                    left.with_pieces(width, of_left.between(0, most))?,
                    right.with_pieces(width, of_right.between(least, word.mask()))?,
                ))
            }
            Relation::Less(is_strict) => {
                let (of_left, of_right) = (left.part(width).pieces, right.part(width).pieces);
                let (step, bottom, top) =
                    (i64::from(is_strict), word.signed(word.sign()), word.body() as i64);
                // Nothing is less than the least number, nor greater than the greatest.
                let most = of_right.signed_span(word).1.checked_sub(step).filter(|most| *most >= bottom)?;
                let least = of_left.signed_span(word).0.checked_add(step).filter(|least| *least <= top)?;
                Some((
                    left.with_pieces(width, of_left.meet(Pieces::signed(word, bottom, most)))?,
                    right.with_pieces(width, of_right.meet(Pieces::signed(word, least, top)))?,
                ))
            }
        }
    }

    #[inline]
    fn equal(width: Width, left: &Self, right: &Self) -> Option<(Self, Self)> {
        match width {
            Width::W64 => left.meet(right).map(|both| (both, both)),
            Width::W32 => {
                let pieces = left.half.meet(right.half);
                let of_both = |number: &Self, other: &Self| {
                    let known = other.bits.lower(Self::HALF);
                    let above = Self::WHOLE.mask() & !Self::HALF.mask();
                    let known = KnownBits { value: known.value, unknown: known.unknown | above };
                    Self::normal(number.whole, pieces, number.bits.meet(known)?)
                };
                Some((of_both(left, right)?, of_both(right, left)?))
            }
        }
    }

    /// At least one bit is one in both: neither is less than the lowest that can be, and if there is only one, both have it.
    #[inline]
    fn with_common_bits(width: Width, left: &Self, right: &Self) -> Option<(Self, Self)> {
        let (of_left, of_right) = (left.part(width), right.part(width));
        let common = of_left.bits.possible() & of_right.bits.possible();
        if common == 0 {
            return None;
        }
        let lowest = common & common.wrapping_neg();
        let with = |number: &Self, pieces: Pieces| {
            let number = number.with_pieces(width, pieces.between(lowest, Self::WHOLE.mask()))?;
            if common != lowest {
                return Some(number);
            }
            number.with_known(KnownBits { value: lowest, unknown: Self::WHOLE.mask() & !lowest })
        };
        Some((with(left, of_left.pieces)?, with(right, of_right.pieces)?))
    }

    /// The same with fewer words, in pieces of some width.
    #[inline]
    fn with_pieces(&self, width: Width, pieces: Pieces) -> Option<Self> {
        match width {
            Width::W64 if pieces == self.whole => Some(*self),
            Width::W32 if pieces == self.half => Some(*self),
            Width::W64 => Self::normal(pieces, self.half, self.bits),
            Width::W32 => Self::normal(self.whole, pieces, self.bits),
        }
    }

    #[inline]
    fn with_known(&self, bits: KnownBits) -> Option<Self> {
        let bits = self.bits.meet(bits)?;
        if bits == self.bits { Some(*self) } else { Self::normal(self.whole, self.half, bits) }
    }
}
