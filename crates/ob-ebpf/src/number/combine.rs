//! What operations do to intervals.
//!
//! Operands come as pieces, so that within each interval the order with a sign is the order without, and each has one sign.
//! Results are intervals that may go around by way of zero; those are cut into pieces again.

use super::pieces::{Interval, Pieces};
use super::word::Word;
use crate::isa::AluOp;
use crate::plant::{Bug, is_planted};

/// The results of an operation that is no shift.
#[inline(always)]
pub(super) fn combined(word: Word, op: AluOp, left: &Pieces, right: &Pieces) -> Pieces {
    match op {
        // The lengths of two pieces together are less than all words.
        AluOp::Add => of_pairs(left, right, |seen, left, right| {
            seen.with_around(word, left.low.wrapping_add(right.low), left.high.wrapping_add(right.high))
        }),
        AluOp::Sub => of_pairs(left, right, |seen, left, right| {
            seen.with_around(word, left.low.wrapping_sub(right.high), left.high.wrapping_sub(right.low))
        }),
        AluOp::Mul => of_pairs(left, right, |seen, left, right| seen.hull(products(word, left, right))),
        AluOp::And => of_pairs(left, right, |seen, left, right| seen.with(word, left.and(word, right))),
        AluOp::Or => of_pairs(left, right, |seen, left, right| seen.with(word, left.or(right))),
        AluOp::Xor => {
            of_pairs(left, right, |seen, left, right| seen.with(word, exclusive_or(word, left, right)))
        }
        AluOp::Div => of_pairs(left, right, |seen, left, right| unsigned_quotients(word, seen, left, right)),
        AluOp::Mod => of_pairs(left, right, |seen, left, right| unsigned_remainders(word, seen, left, right)),
        AluOp::SignedDiv => {
            of_pairs(left, right, |seen, left, right| signed_quotients(word, seen, left, right))
        }
        AluOp::SignedMod => {
            of_pairs(left, right, |seen, left, right| signed_remainders(word, seen, left, right))
        }
        AluOp::ShiftLeft | AluOp::ShiftRight | AluOp::ShiftRightSigned => Pieces::any(word),
    }
}

#[inline(always)]
fn of_pairs(
    left: &Pieces,
    right: &Pieces,
    mut step: impl FnMut(Pieces, Interval, Interval) -> Pieces,
) -> Pieces {
    left.fold(Pieces::EMPTY, |seen, left| right.fold(seen, |seen, right| step(seen, left, right)))
}

/// The ends as numbers with a sign, as wide as a product of two of them.
fn signed_ends(word: Word, piece: Interval) -> (i128, i128) {
    (i128::from(word.signed(piece.low)), i128::from(word.signed(piece.high)))
}

/// The words that the numbers from the least to the greatest of some are, if those are not more than there are words.
fn around(word: Word, ends: [i128; 4]) -> Pieces {
    let [first, rest @ ..] = ends;
    let (low, high) = rest.iter().fold((first, first), |(low, high), end| (low.min(*end), high.max(*end)));
    if high - low > i128::from(word.mask()) {
        return Pieces::any(word);
    }
    Pieces::EMPTY.with_around(word, low as u64, high as u64)
}

fn products(word: Word, left: Interval, right: Interval) -> Pieces {
    let (a, b) = signed_ends(word, left);
    let (c, d) = signed_ends(word, right);
    around(word, [a * c, a * d, b * c, b * d])
}

/// The sign of the result is that of either operand. For the rest, `a ^ b` is at least their difference, and at most `a | b`.
fn exclusive_or(word: Word, left: Interval, right: Interval) -> Interval {
    let sign = (left.low ^ right.low) & word.sign();
    let body = |piece: Interval| Interval::new(piece.low & word.body(), piece.high & word.body());
    let (left, right) = (body(left), body(right));
    let least = left.low.saturating_sub(right.high).max(right.low.saturating_sub(left.high));
    Interval::new(least | sign, left.greatest_or(right) | sign)
}

/// The divisors other than zero.
fn without_zero(divisor: Interval) -> Interval {
    Interval::new(divisor.low.max(1), divisor.high)
}

fn has_zero(divisor: Interval) -> bool {
    divisor.low == 0 && !is_planted(Bug::ZeroDivisorForgotten)
}

/// Quotients of numbers of one sign by others than zero.
fn quotients(left: Interval, divisor: Interval) -> Interval {
    Interval::new(left.low / divisor.high, left.high / divisor.low)
}

/// Remainders of numbers of one sign by others than zero. If all quotients are the same, they are differences.
pub(super) fn remainders(left: Interval, divisor: Interval) -> Interval {
    let quotients = quotients(left, divisor);
    if quotients.low == quotients.high {
        let quotient = quotients.low;
        return Interval::new(left.low - quotient * divisor.high, left.high - quotient * divisor.low);
    }
    Interval::new(0, left.high.min(divisor.high - 1))
}

fn unsigned_quotients(word: Word, mut seen: Pieces, left: Interval, right: Interval) -> Pieces {
    if has_zero(right) {
        seen = seen.with(word, Interval::new(0, 0));
    }
    let divisor = without_zero(right);
    if divisor.is_empty() { seen } else { seen.with(word, quotients(left, divisor)) }
}

fn unsigned_remainders(word: Word, mut seen: Pieces, left: Interval, right: Interval) -> Pieces {
    if has_zero(right) {
        seen = seen.with(word, left);
    }
    let divisor = without_zero(right);
    if divisor.is_empty() { seen } else { seen.with(word, remainders(left, divisor)) }
}

/// How great the numbers of a piece are, and whether they are less than zero.
fn magnitudes(word: Word, piece: Interval) -> (Interval, bool) {
    if piece.low & word.sign() == 0 {
        return (piece, false);
    }
    let negated = |end: u64| end.wrapping_neg() & word.mask();
    (Interval::new(negated(piece.high), negated(piece.low)), true)
}

/// And the numbers of these magnitudes.
fn with_magnitudes(word: Word, seen: Pieces, magnitudes: Interval, is_negative: bool) -> Pieces {
    if is_negative {
        seen.with_around(word, magnitudes.high.wrapping_neg(), magnitudes.low.wrapping_neg())
    } else {
        seen.with(word, magnitudes)
    }
}

/// The least number divided by minus one is itself again, which is what its magnitude is as a word.
fn signed_quotients(word: Word, mut seen: Pieces, left: Interval, right: Interval) -> Pieces {
    if has_zero(right) {
        seen = seen.with(word, Interval::new(0, 0));
    }
    let (left, is_left_negative) = magnitudes(word, left);
    let (right, is_right_negative) = magnitudes(word, right);
    let divisor = without_zero(right);
    if divisor.is_empty() {
        return seen;
    }
    with_magnitudes(word, seen, quotients(left, divisor), is_left_negative != is_right_negative)
}

fn signed_remainders(word: Word, mut seen: Pieces, left: Interval, right: Interval) -> Pieces {
    if has_zero(right) {
        seen = seen.with(word, left);
    }
    let (left, is_negative) = magnitudes(word, left);
    let (right, _) = magnitudes(word, right);
    let divisor = without_zero(right);
    if divisor.is_empty() {
        return seen;
    }
    with_magnitudes(word, seen, remainders(left, divisor), is_negative)
}

/// How far is shifted, which is always less than the width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amounts {
    pub(super) least: u32,
    pub(super) most: u32,
}

impl Amounts {
    pub(super) const fn constant(amount: u32) -> Self {
        Self { least: amount, most: amount }
    }

    /// Shifting to the left multiplies.
    #[inline]
    pub(super) fn left(self, word: Word, pieces: &Pieces) -> Pieces {
        let Self { least, most } = self;
        pieces.fold(Pieces::EMPTY, |seen, piece| {
            let (low, high) = signed_ends(word, piece);
            seen.hull(around(word, [low << least, low << most, high << least, high << most]))
        })
    }

    #[inline]
    pub(super) fn right(self, word: Word, pieces: &Pieces) -> Pieces {
        pieces.fold(Pieces::EMPTY, |seen, piece| {
            seen.with(word, Interval::new(piece.low >> self.most, piece.high >> self.least))
        })
    }

    /// What is less than zero comes nearer to it the farther it is shifted, as what is greater does.
    #[inline]
    pub(super) fn right_signed(self, word: Word, pieces: &Pieces) -> Pieces {
        let Self { least, most } = self;
        let shifted = |end: u64, amount: u32| (word.signed(end) >> amount) as u64 & word.mask();
        let mut seen = Pieces::EMPTY;
        if !pieces.positive.is_empty() {
            let Interval { low, high } = pieces.positive;
            seen = seen.with(word, Interval::new(low >> most, high >> least));
        }
        if !pieces.negative.is_empty() {
            let Interval { low, high } = pieces.negative;
            seen = seen.with(word, Interval::new(shifted(low, least), shifted(high, most)));
        }
        seen
    }
}
