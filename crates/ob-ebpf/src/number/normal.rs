//! The normal form of a number: every end of every interval is a word of the set.
//!
//! What makes this possible without iterating is that the least word of the set that is not below another can be found directly:
//! among the known bits by arithmetic, in the lower half by its two pieces, and in the word by its upper half, whose bits
//! are known or not, and its lower half, which is one of those that there are.

use super::WordSet;
use super::bits::KnownBits;
use super::pieces::{Interval, Pieces};
use super::word::Word;

impl<const BITS: u32> WordSet<BITS> {
    /// The number that some descriptions together say; none if no word fits all of them.
    #[inline(always)]
    pub(super) fn normal(whole: Pieces, half: Pieces, bits: KnownBits) -> Option<Self> {
        let span = whole.span();
        if whole.is_one() && (span.low ^ span.high) & Self::UPPER == 0 {
            return Self::normal_of_one_upper(span, half, bits);
        }
        Self::normal_of_many(whole, half, bits)
    }

    const UPPER: u64 = Self::WHOLE.mask() & !Self::HALF.mask();

    /// Words that have their upper half in common, as most numbers do: only the lower half is a question.
    #[inline(always)]
    fn normal_of_one_upper(span: Interval, half: Pieces, bits: KnownBits) -> Option<Self> {
        let (upper, mask) = (span.low & Self::UPPER, Self::HALF.mask());
        let bits_below = bits.lower(Self::HALF);
        let half = within_bits(Self::HALF, half.between(span.low & mask, span.high & mask), bits_below);
        if half.is_empty() || (bits.value ^ upper) & !bits.unknown & Self::UPPER != 0 {
            return None;
        }
        let span = half.span();
        let bits_below = bits_below.with_known(half.varying(), span.low);
        let piece = Interval::new(span.low | upper, span.high | upper);
        let whole = if upper & Self::WHOLE.sign() == 0 {
            Pieces { positive: piece, negative: Interval::EMPTY }
        } else {
            Pieces { positive: Interval::EMPTY, negative: piece }
        };
        Some(Self { whole, half, bits: KnownBits { value: bits_below.value | upper, ..bits_below } })
    }

    fn normal_of_many(whole: Pieces, half: Pieces, bits: KnownBits) -> Option<Self> {
        let half = within_bits(Self::HALF, half, bits.lower(Self::HALF));
        if half.is_empty() {
            return None;
        }
        let lattice = Lattice { whole: Self::WHOLE, word: Self::HALF, half, bits };
        let whole = Pieces {
            positive: lattice.tightened(whole.positive),
            negative: lattice.tightened(whole.negative),
        };
        if whole.is_empty() {
            return None;
        }
        let half = lattice.lower_halves(whole);
        // All ends are words of the set now, and stay so whatever else is learned of it.
        let below = half.varying() | Self::UPPER;
        let bits = bits.with_known(below, half.span().low).with_known(whole.varying(), whole.span().low);
        Some(Self { whole, half, bits })
    }
}

/// Pieces whose ends have the known bits.
#[inline(always)]
fn within_bits(word: Word, pieces: Pieces, bits: KnownBits) -> Pieces {
    let within = |piece: Interval| {
        if piece.is_empty() {
            return Interval::EMPTY;
        }
        if bits.contains(piece.low) && bits.contains(piece.high) {
            return piece;
        }
        match (bits.at_or_above(piece.low), bits.at_or_below(word, piece.high)) {
            (Some(low), Some(high)) if low <= high => Interval::new(low, high),
            _ => Interval::EMPTY,
        }
    };
    Pieces { positive: within(pieces.positive), negative: within(pieces.negative) }
}

/// The words with some known bits and a lower half among some.
#[derive(Clone, Copy)]
struct Lattice {
    whole: Word,
    /// The lower half.
    word: Word,
    /// With ends that have the known bits.
    half: Pieces,
    bits: KnownBits,
}

impl Lattice {
    fn contains(&self, word: u64) -> bool {
        self.bits.contains(word) && self.half.contains(word & self.word.mask())
    }

    /// The part of an interval whose ends are words of this.
    #[inline(always)]
    fn tightened(&self, piece: Interval) -> Interval {
        if piece.is_empty() {
            return Interval::EMPTY;
        }
        let mut tight = piece;
        if !self.contains(piece.low) {
            match self.at_or_above(piece.low) {
                Some(low) => tight.low = low,
                None => return Interval::EMPTY,
            }
        }
        if !self.contains(piece.high) {
            match self.at_or_below(piece.high) {
                Some(high) => tight.high = high,
                None => return Interval::EMPTY,
            }
        }
        if tight.is_empty() { Interval::EMPTY } else { tight }
    }

    #[cold]
    fn at_or_above(&self, word: u64) -> Option<u64> {
        let shift = self.word.bits();
        let uppers = self.bits.above(shift);
        let mut upper = word >> shift;
        if uppers.contains(upper) {
            if let Some(lower) = self.lower_at_or_above(word & self.word.mask()) {
                return Some(upper << shift | lower);
            }
            upper += 1;
            if upper > self.whole.mask() >> shift {
                return None;
            }
        }
        Some(uppers.at_or_above(upper)? << shift | self.half.span().low)
    }

    fn lower_at_or_above(&self, word: u64) -> Option<u64> {
        let Pieces { positive, negative } = self.half;
        let piece = if !positive.is_empty() && word <= positive.high {
            positive
        } else if !negative.is_empty() && word <= negative.high {
            negative
        } else {
            return None;
        };
        // The piece's end has the known bits: there is one.
        self.bits.lower(self.word).at_or_above(word.max(piece.low))
    }

    #[cold]
    fn at_or_below(&self, word: u64) -> Option<u64> {
        let mask = self.whole.mask();
        let inverted =
            Self { half: self.half.inverted(self.word), bits: self.bits.inverted(self.whole), ..*self };
        inverted.at_or_above(!word & mask).map(|found| !found & mask)
    }

    /// The lower halves of those words that are in some pieces, whose ends are words of this.
    #[inline(always)]
    fn lower_halves(&self, whole: Pieces) -> Pieces {
        let shift = self.word.bits();
        let mask = self.word.mask();
        whole.fold(Pieces::EMPTY, |seen, piece| {
            let (first, last) = (piece.low & mask, piece.high & mask);
            if piece.low >> shift == piece.high >> shift {
                seen.hull(self.half.between(first, last))
            } else if first <= last || self.has_between(piece) {
                // All of them, whatever else was seen.
                self.half
            } else {
                seen.hull(self.half.between(first, mask)).hull(self.half.between(0, last))
            }
        })
    }

    /// Whether an upper half between those of the ends is possible, which then occurs with every lower half.
    fn has_between(&self, piece: Interval) -> bool {
        let shift = self.word.bits();
        let next = self.bits.above(shift).at_or_above((piece.low >> shift) + 1);
        next.is_some_and(|upper| upper < piece.high >> shift)
    }
}
