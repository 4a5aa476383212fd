//! What is known of each bit of a word.

use super::word::{Word, low_bits};
use crate::plant::{Bug, is_planted};

/// Which bits of a word are known, and what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KnownBits {
    /// The known bits that are one. A bit that is not known is zero here.
    pub value: u64,
    /// The bits that are not known.
    pub unknown: u64,
}

impl KnownBits {
    pub(super) const fn constant(value: u64) -> Self {
        Self { value, unknown: 0 }
    }

    pub(super) const fn any(word: Word) -> Self {
        Self { value: 0, unknown: word.mask() }
    }

    /// Some bits are zero, and nothing is known of the others.
    pub(super) const fn zero_in(word: Word, zero: u64) -> Self {
        Self { value: 0, unknown: word.mask() & !zero }
    }

    /// Whether a word has the bits that are known.
    #[must_use]
    pub const fn contains(&self, word: u64) -> bool {
        (word ^ self.value) & !self.unknown == 0
    }

    /// The bits that may be one; the greatest word.
    #[must_use]
    pub const fn possible(&self) -> u64 {
        self.value | self.unknown
    }

    pub(super) const fn as_constant(self) -> Option<u64> {
        if self.unknown == 0 { Some(self.value) } else { None }
    }

    /// The lower bits of a word.
    pub(super) const fn lower(self, word: Word) -> Self {
        Self { value: self.value & word.mask(), unknown: self.unknown & word.mask() }
    }

    /// The bits above some lower ones.
    pub(super) const fn above(self, count: u32) -> Self {
        Self { value: self.value >> count, unknown: self.unknown >> count }
    }

    pub(super) const fn is_subset_of(&self, other: &Self) -> bool {
        self.unknown & !other.unknown == 0 && (self.value ^ other.value) & !other.unknown == 0
    }

    pub(super) const fn join(self, other: Self) -> Self {
        let unknown = self.unknown | other.unknown | (self.value ^ other.value);
        Self { value: self.value & !unknown, unknown }
    }

    pub(super) const fn meet(self, other: Self) -> Option<Self> {
        if (self.value ^ other.value) & !self.unknown & !other.unknown != 0 {
            return None;
        }
        Some(Self { value: self.value | other.value, unknown: self.unknown & other.unknown })
    }

    /// With the bits outside of a mask known to be those of a word, which must not contradict what was known.
    pub(super) const fn with_known(self, unknown: u64, word: u64) -> Self {
        Self { value: self.value | (word & self.unknown & !unknown), unknown: self.unknown & unknown }
    }

    /// Without what is known of some bits.
    pub(super) const fn forgotten(self, bits: u64) -> Self {
        Self { value: self.value & !bits, unknown: self.unknown | bits }
    }

    /// The words that the inverted words of this are.
    pub(super) const fn inverted(self, word: Word) -> Self {
        Self { value: !self.possible() & word.mask(), unknown: self.unknown }
    }

    /// The least word of the set that is not below another.
    pub(super) const fn at_or_above(self, word: u64) -> Option<u64> {
        let wrong = (word ^ self.value) & !self.unknown;
        if wrong == 0 {
            return Some(word);
        }
        let below = u64::MAX >> wrong.leading_zeros();
        let highest_wrong = below ^ (below >> 1);
        if self.value & highest_wrong != 0 {
            // That bit must be one, which makes the word greater; what is below it can be as little as there is.
            return Some((word & !below) | (self.value & below));
        }
        // That bit must be zero, which makes the word less: another one above must become one in exchange.
        let candidates = self.unknown & !word & !below;
        if candidates == 0 {
            return None;
        }
        let raised = candidates & candidates.wrapping_neg();
        Some((word & !(raised | (raised - 1))) | raised | (self.value & (raised - 1)))
    }

    /// The greatest word of the set that is not above another.
    pub(super) const fn at_or_below(self, word: Word, of: u64) -> Option<u64> {
        match self.inverted(word).at_or_above(!of & word.mask()) {
            Some(found) => Some(!found & word.mask()),
            None => None,
        }
    }
}

/// What operations do to known bits.
impl KnownBits {
    /// Between the least and the greatest sum, a bit differs where a carry may come or not.
    pub(super) fn add(self, word: Word, other: Self) -> Self {
        let base = self.value.wrapping_add(other.value);
        let most = base.wrapping_add(self.unknown).wrapping_add(other.unknown);
        let carried = if is_planted(Bug::CarryForgotten) { 0 } else { base ^ most };
        let unknown = (carried | self.unknown | other.unknown) & word.mask();
        Self { value: base & !unknown & word.mask(), unknown }
    }

    pub(super) const fn sub(self, word: Word, other: Self) -> Self {
        let base = self.value.wrapping_sub(other.value);
        let borrowed = base.wrapping_add(self.unknown) ^ base.wrapping_sub(other.unknown);
        let unknown = (borrowed | self.unknown | other.unknown) & word.mask();
        Self { value: base & !unknown & word.mask(), unknown }
    }

    /// The lower bits of a product follow from the lower bits of the factors, and each zero at the end of one factor shifts what
    /// is not known of the other one up.
    pub(super) const fn mul(self, word: Word, other: Self) -> Self {
        match (self.as_constant(), other.as_constant()) {
            (_, Some(factor)) if factor.is_power_of_two() => {
                return self.shift_left(word, factor.trailing_zeros());
            }
            (Some(factor), _) if factor.is_power_of_two() => {
                return other.shift_left(word, factor.trailing_zeros());
            }
            _ => {}
        }
        let by_left = self.unknown.trailing_zeros() + other.possible().trailing_zeros();
        let by_right = other.unknown.trailing_zeros() + self.possible().trailing_zeros();
        let known = low_bits(if by_left < by_right { by_left } else { by_right }) & word.mask();
        let product = self.value.wrapping_mul(other.value);
        Self { value: product & known, unknown: word.mask() & !known }
    }

    /// A remainder has the lower bits of the dividend, as many as the divisor has zeroes at its end.
    pub(super) const fn remainder(self, word: Word, divisor: Self) -> Self {
        let kept = low_bits(divisor.possible().trailing_zeros());
        Self { value: self.value & kept, unknown: (self.unknown | !kept) & word.mask() }
    }

    pub(super) const fn and(self, other: Self) -> Self {
        let value = self.value & other.value;
        Self { value, unknown: self.possible() & other.possible() & !value }
    }

    pub(super) const fn or(self, other: Self) -> Self {
        let value = self.value | other.value;
        Self { value, unknown: (self.unknown | other.unknown) & !value }
    }

    pub(super) const fn xor(self, other: Self) -> Self {
        let unknown = self.unknown | other.unknown;
        Self { value: (self.value ^ other.value) & !unknown, unknown }
    }

    pub(super) const fn shift_left(self, word: Word, amount: u32) -> Self {
        Self { value: (self.value << amount) & word.mask(), unknown: (self.unknown << amount) & word.mask() }
    }

    pub(super) const fn shift_right(self, amount: u32) -> Self {
        Self { value: self.value >> amount, unknown: self.unknown >> amount }
    }

    /// The sign, known or not, comes in from above.
    pub(super) const fn shift_right_signed(self, word: Word, amount: u32) -> Self {
        Self {
            value: (word.signed(self.value) >> amount) as u64 & word.mask(),
            unknown: (word.signed(self.unknown) >> amount) as u64 & word.mask(),
        }
    }
}
