//! Intervals of words.
//!
//! An unsigned and a signed interval together are two intervals of plain words, one without the sign's bit and one with it:
//!
//! ```text
//!   words       0 ............... 0x7f 0x80 ............... 0xff
//!   unsigned          5 ========================== 0xf0
//!   signed      =========== 0x20            0x90 ===============
//!   pieces            5 === 0x20            0x90 = 0xf0
//! ```
//!
//! Within a piece both orders are the same, so most operations need to be thought about once. A sum of two pieces cannot go all around.

use super::word::{Word, filled};

/// Words from one to another, both included; none if the first is above the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Interval {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Interval {
    /// No words; the neutral element of [`Self::hull`].
    pub(super) const EMPTY: Self = Self { low: u64::MAX, high: 0 };

    pub(super) const fn new(low: u64, high: u64) -> Self {
        Self { low, high }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.low > self.high
    }

    pub(super) const fn contains(&self, word: u64) -> bool {
        self.low <= word && word <= self.high
    }

    pub(super) const fn is_subset_of(&self, other: &Self) -> bool {
        self.is_empty() || (other.low <= self.low && self.high <= other.high)
    }

    pub(super) fn hull(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    pub(super) fn meet(self, other: Self) -> Self {
        let met = Self { low: self.low.max(other.low), high: self.high.min(other.high) };
        if met.is_empty() { Self::EMPTY } else { met }
    }

    fn inverted(self, word: Word) -> Self {
        if self.is_empty() { self } else { Self::new(!self.high & word.mask(), !self.low & word.mask()) }
    }

    /// The least `a | b`. Where one has a one and the other a zero that its interval allows to become a one, the lower bits of the
    /// latter can become zeroes.
    pub(super) fn least_or(self, other: Self) -> u64 {
        let (left, right) = (self.low, other.low);
        let raise_left = !left & right & filled(self.low ^ self.high);
        let raise_right = left & !right & filled(other.low ^ other.high);
        match (raise_left | raise_right).checked_ilog2() {
            None => left | right,
            Some(at) if raise_left >> at != 0 => ((left | 1 << at) & (u64::MAX << at)) | right,
            Some(at) => left | ((right | 1 << at) & (u64::MAX << at)),
        }
    }

    /// The greatest `a | b`. Where both have a one and one interval allows it to become a zero, the lower bits of that can become ones.
    pub(super) fn greatest_or(self, other: Self) -> u64 {
        let (left, right) = (self.high, other.high);
        let lower_left = left & right & filled(self.low ^ self.high);
        let lower_right = left & right & filled(other.low ^ other.high);
        // What is lowered is replaced by ones below, and the other one keeps the bit itself.
        match (lower_left | lower_right).checked_ilog2() {
            None => left | right,
            Some(at) => left | right | ((1 << at) - 1),
        }
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self::new(self.least_or(other), self.greatest_or(other))
    }

    pub(super) fn and(self, word: Word, other: Self) -> Self {
        self.inverted(word).or(other.inverted(word)).inverted(word)
    }
}

/// A set of words as two intervals, of those without and those with the sign's bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pieces {
    pub(super) positive: Interval,
    pub(super) negative: Interval,
}

impl Pieces {
    pub(super) const EMPTY: Self = Self { positive: Interval::EMPTY, negative: Interval::EMPTY };

    pub(super) const fn any(word: Word) -> Self {
        Self { positive: Interval::new(0, word.body()), negative: Interval::new(word.sign(), word.mask()) }
    }

    pub(super) fn constant(word: Word, value: u64) -> Self {
        Self::unsigned(word, value, value)
    }

    pub(super) fn unsigned(word: Word, low: u64, high: u64) -> Self {
        let span = Interval::new(low, high);
        let any = Self::any(word);
        Self { positive: span.meet(any.positive), negative: span.meet(any.negative) }
    }

    pub(super) fn signed(word: Word, low: i64, high: i64) -> Self {
        let mut pieces = Self::EMPTY;
        if high >= 0 {
            pieces.positive = Interval::new(low.max(0) as u64, high as u64);
        }
        if low < 0 {
            pieces.negative = Interval::new(low as u64 & word.mask(), high.min(-1) as u64 & word.mask());
        }
        pieces
    }

    /// Goes through the two, without those that are empty, in the order of words.
    #[inline(always)]
    pub(super) fn fold<T>(&self, first: T, mut step: impl FnMut(T, Interval) -> T) -> T {
        let mut folded = first;
        if !self.positive.is_empty() {
            folded = step(folded, self.positive);
        }
        if !self.negative.is_empty() {
            folded = step(folded, self.negative);
        }
        folded
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.positive.is_empty() && self.negative.is_empty()
    }

    /// Whether there is only one interval.
    pub(super) const fn is_one(&self) -> bool {
        self.positive.is_empty() || self.negative.is_empty()
    }

    pub(super) const fn contains(&self, word: u64) -> bool {
        self.positive.contains(word) || self.negative.contains(word)
    }

    pub(super) const fn is_subset_of(&self, other: &Self) -> bool {
        self.positive.is_subset_of(&other.positive) && self.negative.is_subset_of(&other.negative)
    }

    /// From the least to the greatest word.
    pub(super) fn span(&self) -> Interval {
        self.positive.hull(self.negative)
    }

    /// The least and the greatest word as numbers with a sign.
    pub(super) fn signed_span(&self, word: Word) -> (i64, i64) {
        let low = if self.negative.is_empty() { self.positive.low } else { self.negative.low };
        let high = if self.positive.is_empty() { self.negative.high } else { self.positive.high };
        (word.signed(low), word.signed(high))
    }

    pub(super) fn hull(self, other: Self) -> Self {
        Self { positive: self.positive.hull(other.positive), negative: self.negative.hull(other.negative) }
    }

    pub(super) fn meet(self, other: Self) -> Self {
        Self { positive: self.positive.meet(other.positive), negative: self.negative.meet(other.negative) }
    }

    /// Those from one word to another.
    pub(super) fn between(self, low: u64, high: u64) -> Self {
        let span = Interval::new(low, high);
        Self { positive: self.positive.meet(span), negative: self.negative.meet(span) }
    }

    /// Without a word, if it is an end; a hole within cannot be told.
    pub(super) fn without(self, word: u64) -> Self {
        let trimmed = |piece: Interval| match (piece.low == word, piece.high == word) {
            _ if piece.is_empty() => piece,
            (true, true) => Interval::EMPTY,
            (true, false) => Interval::new(piece.low + 1, piece.high),
            (false, true) => Interval::new(piece.low, piece.high - 1),
            (false, false) => piece,
        };
        Self { positive: trimmed(self.positive), negative: trimmed(self.negative) }
    }

    pub(super) fn inverted(self, word: Word) -> Self {
        Self { positive: self.negative.inverted(word), negative: self.positive.inverted(word) }
    }

    /// The bits below the first one in which two words of the set differ.
    pub(super) fn varying(&self) -> u64 {
        let span = self.span();
        filled(span.low ^ span.high)
    }

    /// And the words from one to another.
    #[inline(always)]
    pub(super) fn with(mut self, word: Word, span: Interval) -> Self {
        if span.low <= word.body() {
            self.positive = self.positive.hull(Interval::new(span.low, span.high.min(word.body())));
        }
        if span.high > word.body() {
            self.negative = self.negative.hull(Interval::new(span.low.max(word.sign()), span.high));
        }
        self
    }

    /// And the words from one to another, by way of zero if the first is above the last. What is above the width is cut off.
    #[inline(always)]
    pub(super) fn with_around(self, word: Word, low: u64, high: u64) -> Self {
        let (low, high) = (low & word.mask(), high & word.mask());
        if low <= high {
            self.with(word, Interval::new(low, high))
        } else {
            self.with(word, Interval::new(low, word.mask())).with(word, Interval::new(0, high))
        }
    }
}
