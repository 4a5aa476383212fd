//! What operations do to numbers.

use super::WordSet;
use super::bits::KnownBits;
use super::combine::{Amounts, combined, remainders};
use super::pieces::{Interval, Pieces};
use super::word::{Word, apply, low_bits};
use crate::isa::{AluOp, Width};
use crate::plant::{Bug, is_planted};

impl<const BITS: u32> WordSet<BITS> {
    /// All results of an operation.
    #[must_use]
    pub fn alu(op: AluOp, width: Width, left: &Self, right: &Self) -> Self {
        let (of_left, of_right) = (left.part(width), right.part(width));
        if let (Some(left), Some(right)) = (of_left.bits.as_constant(), of_right.bits.as_constant()) {
            return Self::constant(apply(op, Self::word(width).bits(), left, right));
        }
        if leaves(op, &of_left, &of_right) {
            return left.truncate(width);
        }
        // Each width is compiled for itself, since masks that are constants cost nothing.
        match width {
            Width::W64 => {
                let pieces = of_left.alu_pieces(Self::WHOLE, op, &of_right);
                let bits = of_left.alu_bits(Self::WHOLE, op, &of_right);
                Self::described(pieces, Self::lower_of(op, left, right, &pieces), bits)
            }
            Width::W32 => {
                let pieces = of_left.alu_pieces(Self::HALF, op, &of_right);
                let bits = of_left.alu_bits(Self::HALF, op, &of_right);
                if is_planted(Bug::UpperHalfKept) {
                    let bits = left.bits.join(right.bits).join(bits);
                    return Self::described(left.whole.hull(right.whole), pieces, bits);
                }
                Self::zero_extended(pieces, bits)
            }
        }
    }

    /// What the lower half of a result is known to be by the lower halves of the operands.
    #[inline(always)]
    fn lower_of(op: AluOp, left: &Self, right: &Self, result: &Pieces) -> Pieces {
        // Most numbers are short and of one sign, and then the interval of the whole word says the same.
        let is_short =
            |pieces: &Pieces| pieces.negative.is_empty() && pieces.positive.high <= Self::HALF.mask();
        if is_short(result) && left.half.is_one() && right.half.is_one() {
            return Pieces::any(Self::HALF);
        }
        match op {
            AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor => {
                let (left, right) = (left.part(Width::W32), right.part(Width::W32));
                left.alu_pieces(Self::HALF, op, &right)
            }
            AluOp::ShiftLeft => right.part(Width::W64).amounts(Self::WHOLE).left(Self::HALF, &left.half),
            _ => Pieces::any(Self::HALF),
        }
    }

    /// The numbers with the other sign.
    #[must_use]
    pub fn negate(&self, width: Width) -> Self {
        Self::alu(AluOp::Sub, width, &Self::constant(0), self)
    }
}

/// Whether an operation gives its left operand back.
fn leaves(op: AluOp, left: &Part, right: &Part) -> bool {
    match op {
        AluOp::ShiftLeft | AluOp::ShiftRight | AluOp::ShiftRightSigned => right.bits.as_constant() == Some(0),
        AluOp::Div | AluOp::SignedDiv => right.bits.as_constant() == Some(1),
        AluOp::Mod => {
            right.bits.as_constant() == Some(0) || left.pieces.span().high < right.pieces.span().low
        }
        AluOp::SignedMod => {
            let are_positive = left.pieces.negative.is_empty() && right.pieces.negative.is_empty();
            right.bits.as_constant() == Some(0)
                || (are_positive && left.pieces.positive.high < right.pieces.positive.low)
        }
        _ => false,
    }
}

/// What is known of a word, or of the lower half of one: no more than that is looked at here.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) pieces: Pieces,
    pub(super) bits: KnownBits,
}

impl Part {
    /// The lowest bits, extended by their sign: shifted up to where the sign is, and down again.
    pub(super) fn sign_extend(&self, word: Word, from_bits: u32) -> Self {
        if from_bits >= word.bits() {
            return *self;
        }
        let above = word.bits() - from_bits.max(1);
        let amounts = Amounts::constant(above);
        Self {
            pieces: amounts.right_signed(word, &amounts.left(word, &self.pieces)),
            bits: self.bits.shift_left(word, above).shift_right_signed(word, above),
        }
    }

    #[inline(always)]
    fn alu_pieces(&self, word: Word, op: AluOp, right: &Self) -> Pieces {
        match op {
            AluOp::ShiftLeft => right.amounts(word).left(word, &self.pieces),
            AluOp::ShiftRight => right.amounts(word).right(word, &self.pieces),
            AluOp::ShiftRightSigned => right.amounts(word).right_signed(word, &self.pieces),
            _ => combined(word, op, &self.pieces, &right.pieces),
        }
    }

    #[inline(always)]
    fn alu_bits(&self, word: Word, op: AluOp, right: &Self) -> KnownBits {
        let (left, by) = (self.bits, right.bits);
        match op {
            AluOp::Add => left.add(word, by),
            AluOp::Sub => left.sub(word, by),
            AluOp::Mul => left.mul(word, by),
            AluOp::And => left.and(by),
            AluOp::Or => left.or(by),
            AluOp::Xor => left.xor(by),
            AluOp::Mod | AluOp::SignedMod => left.remainder(word, by),
            AluOp::Div | AluOp::SignedDiv => match by.as_constant() {
                // A division of what has no sign by a power of two is a shift.
                Some(divisor)
                    if divisor.is_power_of_two()
                        && (op == AluOp::Div
                            || (self.pieces.negative.is_empty() && divisor != word.sign())) =>
                {
                    left.shift_right(divisor.trailing_zeros())
                }
                _ => KnownBits::any(word),
            },
            AluOp::ShiftLeft | AluOp::ShiftRight | AluOp::ShiftRightSigned => {
                let Amounts { least, most } = right.amounts(word);
                match op {
                    AluOp::ShiftLeft if least == most => left.shift_left(word, least),
                    AluOp::ShiftRight if least == most => left.shift_right(least),
                    AluOp::ShiftRightSigned if least == most => left.shift_right_signed(word, least),
                    // There are as many zeroes at the end as come in at least.
                    AluOp::ShiftLeft => {
                        KnownBits::zero_in(word, low_bits(left.possible().trailing_zeros() + least))
                    }
                    _ => KnownBits::any(word),
                }
            }
        }
    }

    /// How far is shifted by a number, which is taken modulo the width.
    #[inline(always)]
    fn amounts(&self, word: Word) -> Amounts {
        let span = self.pieces.span();
        let width = u64::from(word.bits());
        if span.high < width {
            return Amounts { least: span.low as u32, most: span.high as u32 };
        }
        let Interval { mut low, mut high } = remainders(span, Interval::new(width, width));
        if width.is_power_of_two() {
            low = low.max(self.bits.value & (width - 1));
            high = high.min(self.bits.possible() & (width - 1));
        }
        Amounts { least: low as u32, most: high as u32 }
    }
}
