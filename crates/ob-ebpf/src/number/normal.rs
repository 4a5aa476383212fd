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
    #[inline]
    pub(super) fn normal(whole: Pieces, half: Pieces, bits: KnownBits) -> Option<Self> {
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
        let below = half.varying() | (Self::WHOLE.mask() & !Self::HALF.mask());
        let bits = bits.with_known(below, half.span().low).with_known(whole.varying(), whole.span().low);
        Some(Self { whole, half, bits })
    }
}

/// Pieces whose ends have the known bits.
fn within_bits(word: Word, pieces: Pieces, bits: KnownBits) -> Pieces {
    let within = |piece: Interval| {
        if piece.is_empty() {
            return Interval::EMPTY;
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
    #[inline]
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
        let piece = self.half.iter().find(|piece| word <= piece.high)?;
        // The piece's end has the known bits: there is one.
        self.bits.lower(self.word).at_or_above(word.max(piece.low))
    }

    fn at_or_below(&self, word: u64) -> Option<u64> {
        let mask = self.whole.mask();
        let inverted =
            Self { half: self.half.inverted(self.word), bits: self.bits.inverted(self.whole), ..*self };
        inverted.at_or_above(!word & mask).map(|found| !found & mask)
    }

    /// The lower halves of those words that are in some pieces, whose ends are words of this.
    fn lower_halves(&self, whole: Pieces) -> Pieces {
        let shift = self.word.bits();
        let mask = self.word.mask();
        let mut seen = Pieces::EMPTY;
        for piece in whole.iter() {
            let (first, last) = (piece.low & mask, piece.high & mask);
            if piece.low >> shift == piece.high >> shift {
                seen = seen.hull(self.half.between(first, last));
            } else if first <= last || self.has_between(piece) {
                return self.half;
            } else {
                seen = seen.hull(self.half.between(first, mask)).hull(self.half.between(0, last));
            }
        }
        seen
    }

    /// Whether an upper half between those of the ends is possible, which then occurs with every lower half.
    fn has_between(&self, piece: Interval) -> bool {
        let shift = self.word.bits();
        let next = self.bits.above(shift).at_or_above((piece.low >> shift) + 1);
        next.is_some_and(|upper| upper < piece.high >> shift)
    }
}
