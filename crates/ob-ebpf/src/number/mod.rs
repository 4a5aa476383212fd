//! Numbers as the verifier knows them: sets of words.
//!
//! A [`Number`] is a set of 64-bit words as the meet of five descriptions, which sharpen each other:
//!
//! ```text
//!   unsigned interval ┐                                   ┌ unsigned interval
//!   signed interval   ┴─ of the word ── known bits ── of the lower half ─┴ signed interval
//! ```
//!
//! The two intervals of a width are kept as two *pieces*, one of words without and one of words with the sign's bit (see
//! `pieces`). After every operation a number is in its *normal form*: all ends of all intervals are words of the set, so that no
//! description says less than it could, and the empty set is never a number. That form is computed without iterating
//! (see `normal`).
//!
//! Everything is written for words of any even width, and tested on narrow ones against all their values. Nothing allocates.

mod alu;
mod bits;
mod combine;
mod display;
mod lattice;
mod normal;
mod pieces;
mod refine;
mod word;

use std::ops::RangeInclusive;

pub use bits::KnownBits;
pub use word::apply;

use crate::isa::{ByteOrder, Size, Width};
use alu::Part;
use pieces::Pieces;
use word::Word;

/// What is known of a register or a slot of the stack that holds a number.
pub type Number = WordSet<64>;

/// A set of words of `BITS` bits, which is never empty. Words are in the lower bits of a `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WordSet<const BITS: u32> {
    whole: Pieces,
    half: Pieces,
    bits: KnownBits,
}

impl<const BITS: u32> WordSet<BITS> {
    const WHOLE: Word = {
        assert!(
            BITS >= 4 && BITS <= 64 && BITS.is_multiple_of(2),
            "a word has halves, and their signs are not all of them"
        );
        Word::new(BITS)
    };
    const HALF: Word = Word::new(BITS / 2);

    /// All words.
    #[must_use]
    pub const fn any() -> Self {
        Self {
            whole: Pieces::any(Self::WHOLE),
            half: Pieces::any(Self::HALF),
            bits: KnownBits::any(Self::WHOLE),
        }
    }

    /// One word. Bits above the width are cut off.
    #[must_use]
    pub fn constant(value: u64) -> Self {
        let value = value & Self::WHOLE.mask();
        Self {
            whole: Pieces::constant(Self::WHOLE, value),
            half: Pieces::constant(Self::HALF, value & Self::HALF.mask()),
            bits: KnownBits::constant(value),
        }
    }

    /// The words from one end to the other, without a sign. Ends may be given in either order, so that no range is empty; those
    /// that are no words are moved to the next one, here and in the following.
    #[must_use]
    pub fn unsigned(range: RangeInclusive<u64>) -> Self {
        let (low, high) = ordered(&range);
        let mask = Self::WHOLE.mask();
        Self::described(
            Pieces::unsigned(Self::WHOLE, low.min(mask), high.min(mask)),
            Pieces::any(Self::HALF),
            KnownBits::any(Self::WHOLE),
        )
    }

    /// The words from one end to the other, with a sign.
    #[must_use]
    pub fn signed(range: RangeInclusive<i64>) -> Self {
        let (low, high) = signed_ends(Self::WHOLE, &range);
        Self::described(
            Pieces::signed(Self::WHOLE, low, high),
            Pieces::any(Self::HALF),
            KnownBits::any(Self::WHOLE),
        )
    }

    /// The words whose lower half is from one end to the other, without a sign.
    #[must_use]
    pub fn lower_unsigned(range: RangeInclusive<u64>) -> Self {
        let (low, high) = ordered(&range);
        let mask = Self::HALF.mask();
        Self::described(
            Pieces::any(Self::WHOLE),
            Pieces::unsigned(Self::HALF, low.min(mask), high.min(mask)),
            KnownBits::any(Self::WHOLE),
        )
    }

    /// The words whose lower half is from one end to the other, with a sign.
    #[must_use]
    pub fn lower_signed(range: RangeInclusive<i64>) -> Self {
        let (low, high) = signed_ends(Self::HALF, &range);
        Self::described(
            Pieces::any(Self::WHOLE),
            Pieces::signed(Self::HALF, low, high),
            KnownBits::any(Self::WHOLE),
        )
    }

    /// The words that have the bits of `value` wherever `unknown` has zeroes.
    #[must_use]
    pub fn with_bits(value: u64, unknown: u64) -> Self {
        let unknown = unknown & Self::WHOLE.mask();
        let bits = KnownBits { value: value & !unknown & Self::WHOLE.mask(), unknown };
        Self::described(Pieces::any(Self::WHOLE), Pieces::any(Self::HALF), bits)
    }

    /// What a load of some bytes may give, on a machine whose word has eight of them.
    #[must_use]
    pub fn loaded(size: Size, is_signed: bool) -> Self {
        let loaded = Word::new(size.bytes() as u32 * (BITS / 8).max(1));
        if loaded.bits() >= BITS {
            return Self::any();
        }
        if is_signed {
            Self::signed(loaded.signed(loaded.sign())..=loaded.body() as i64)
        } else {
            Self::unsigned(0..=loaded.mask())
        }
    }

    /// The one word that there is, if there is only one.
    #[must_use]
    pub const fn as_constant(&self) -> Option<u64> {
        self.bits.as_constant()
    }

    /// From the least to the greatest, without a sign.
    #[must_use]
    pub fn unsigned_bounds(&self) -> RangeInclusive<u64> {
        let span = self.whole.span();
        span.low..=span.high
    }

    /// From the least to the greatest, with a sign.
    #[must_use]
    pub fn signed_bounds(&self) -> RangeInclusive<i64> {
        let (low, high) = self.whole.signed_span(Self::WHOLE);
        low..=high
    }

    /// From the least to the greatest lower half, without a sign.
    #[must_use]
    pub fn lower_unsigned_bounds(&self) -> RangeInclusive<u64> {
        let span = self.half.span();
        span.low..=span.high
    }

    /// From the least to the greatest lower half, with a sign.
    #[must_use]
    pub fn lower_signed_bounds(&self) -> RangeInclusive<i64> {
        let (low, high) = self.half.signed_span(Self::HALF);
        low..=high
    }

    /// What is known of each bit.
    #[must_use]
    pub const fn known_bits(&self) -> KnownBits {
        self.bits
    }

    /// Whether a word is one of them.
    #[must_use]
    pub const fn contains(&self, word: u64) -> bool {
        self.whole.contains(word) && self.half.contains(word & Self::HALF.mask()) && self.bits.contains(word)
    }

    /// Whether all words of this are words of the other.
    #[must_use]
    pub const fn is_subset_of(&self, other: &Self) -> bool {
        self.whole.is_subset_of(&other.whole)
            && self.half.is_subset_of(&other.half)
            && self.bits.is_subset_of(&other.bits)
    }

    /// The lower half, with zeroes above it; or the number as it is.
    #[must_use]
    pub fn truncate(&self, width: Width) -> Self {
        match width {
            Width::W64 => *self,
            Width::W32 => Self::zero_extended(self.half, self.bits.lower(Self::HALF)),
        }
    }

    /// The lowest bits of a number, extended by their sign to a width, with zeroes above that. All bits if there are fewer.
    #[must_use]
    pub fn sign_extend(&self, width: Width, from_bits: u32) -> Self {
        let half = self.part(Width::W32).sign_extend(Self::HALF, from_bits);
        match width {
            Width::W32 => Self::zero_extended(half.pieces, half.bits),
            Width::W64 if from_bits >= BITS => *self,
            // A sign within the lower half: what is known of that is the most there is to know.
            Width::W64 if from_bits <= Self::HALF.bits() => {
                let (low, high) = half.pieces.signed_span(Self::HALF);
                let above = BITS - Self::HALF.bits();
                let bits = half.bits.shift_left(Self::WHOLE, above).shift_right_signed(Self::WHOLE, above);
                Self::described(Pieces::signed(Self::WHOLE, low, high), half.pieces, bits)
            }
            Width::W64 => {
                let whole = self.part(Width::W64).sign_extend(Self::WHOLE, from_bits);
                Self::described(whole.pieces, self.half, whole.bits)
            }
        }
    }

    /// The lowest bytes, turned or not, with zeroes above them. A word has eight bytes, however short they are.
    #[must_use]
    pub fn bytes(&self, order: ByteOrder, size: Size) -> Self {
        let digit = (BITS / 8).max(1);
        let count = size.bytes() as u32;
        let kept = match size {
            Size::B8 => *self,
            Size::B4 => self.truncate(Width::W32),
            _ => Self::alu(
                crate::isa::AluOp::And,
                Width::W64,
                self,
                &Self::constant(word::low_bits(count * digit)),
            ),
        };
        match order {
            ByteOrder::Little => kept,
            ByteOrder::Big | ByteOrder::Swap => {
                let turned = |word| turned(word, count, digit);
                let bits = KnownBits { value: turned(kept.bits.value), unknown: turned(kept.bits.unknown) };
                Self::described(Pieces::any(Self::WHOLE), Pieces::any(Self::HALF), bits)
            }
        }
    }

    /// What is known of as much of the word as is said.
    #[inline(always)]
    fn part(&self, width: Width) -> Part {
        match width {
            Width::W64 => Part { pieces: self.whole, bits: self.bits },
            Width::W32 => Part { pieces: self.half, bits: self.bits.lower(Self::HALF) },
        }
    }

    const fn word(width: Width) -> Word {
        match width {
            Width::W64 => Self::WHOLE,
            Width::W32 => Self::HALF,
        }
    }

    /// The normal form of what cannot be empty, since there are words that have led to it.
    #[inline(always)]
    fn described(whole: Pieces, half: Pieces, bits: KnownBits) -> Self {
        match Self::normal(whole, half, bits) {
            Some(number) => number,
            None => Self::any(),
        }
    }

    fn zero_extended(half: Pieces, bits: KnownBits) -> Self {
        let span = half.span();
        Self::described(Pieces::unsigned(Self::WHOLE, span.low, span.high), half, bits)
    }
}

fn ordered(range: &RangeInclusive<u64>) -> (u64, u64) {
    (*range.start().min(range.end()), *range.start().max(range.end()))
}

fn signed_ends(word: Word, range: &RangeInclusive<i64>) -> (i64, i64) {
    let (least, greatest) = (word.signed(word.sign()), word.body() as i64);
    let (start, end) = (range.start().min(range.end()), range.start().max(range.end()));
    ((*start).clamp(least, greatest), (*end).clamp(least, greatest))
}

/// A word's lowest bytes in the other order, where a byte has some number of bits.
fn turned(word: u64, count: u32, digit: u32) -> u64 {
    if digit == 8 {
        return word.swap_bytes() >> (64 - 8 * count);
    }
    (0..count).fold(0, |turned, at| (turned << digit) | ((word >> (at * digit)) & word::low_bits(digit)))
}
