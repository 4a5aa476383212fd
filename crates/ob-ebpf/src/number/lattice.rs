//! Unions and meets of numbers, and what makes loops end.

use super::WordSet;
use super::bits::KnownBits;
use super::pieces::{Interval, Pieces};
use super::word::{Word, low_bits};
use crate::plant::{Bug, is_planted};

/// How many of the lowest bits may be known of what is being widened; between these, the lower count is taken.
const WIDENED_LOW_BITS: [u32; 8] = [12, 9, 6, 4, 3, 2, 1, 0];

impl<const BITS: u32> WordSet<BITS> {
    /// The words of either, and as few others as can be described.
    #[must_use]
    #[inline]
    pub fn join(&self, other: &Self) -> Self {
        let bits = self.bits.join(other.bits);
        let bits = if is_planted(Bug::JoinForgetsBits) { self.bits } else { bits };
        // All ends are words of either, so this is the normal form.
        Self { whole: self.whole.hull(other.whole), half: self.half.hull(other.half), bits }
    }

    /// The words of both; none if there are none.
    #[must_use]
    #[inline]
    pub fn meet(&self, other: &Self) -> Option<Self> {
        Self::normal(self.whole.meet(other.whole), self.half.meet(other.half), self.bits.meet(other.bits)?)
    }

    /// The words of either and more, so that a number that is widened again and again soon does not change any more.
    ///
    /// An end that moves goes on to the next of the thresholds, which are in ascending order without a sign, or where there is
    /// none to where the words of its sign, or of a half, end. Known bits that become unknown take most others along.
    #[must_use]
    pub fn widen(&self, newer: &Self, thresholds: &[u64]) -> Self {
        let joined = if is_planted(Bug::WidenedTooLittle) { *self } else { self.join(newer) };
        if joined == *self {
            return joined;
        }
        let short = thresholds.partition_point(|threshold| *threshold <= Self::HALF.mask());
        let of_half = thresholds.get(..short).unwrap_or_default();
        let stops = Stops { word: Self::WHOLE, half: Some(Self::HALF), thresholds };
        let half_stops = Stops { word: Self::HALF, half: None, thresholds: of_half };
        let bits =
            if joined.bits == self.bits { joined.bits } else { widened_bits(Self::WHOLE, joined.bits) };
        Self::normal(
            stops.widened(&self.whole, &joined.whole),
            half_stops.widened(&self.half, &joined.half),
            bits,
        )
        .unwrap_or(joined)
    }
}

fn widened_bits(word: Word, joined: KnownBits) -> KnownBits {
    let known = joined.unknown.trailing_zeros();
    let kept = WIDENED_LOW_BITS.into_iter().find(|count| *count <= known).unwrap_or(0);
    let kept = low_bits(kept);
    KnownBits { value: joined.value & kept, unknown: word.mask() & !kept }
}

/// Where ends that move stop.
struct Stops<'a> {
    word: Word,
    /// The lower half, if that is of interest: a number that is computed in it stays there.
    half: Option<Word>,
    thresholds: &'a [u64],
}

impl Stops<'_> {
    fn widened(&self, older: &Pieces, joined: &Pieces) -> Pieces {
        let any = Pieces::any(self.word);
        Pieces {
            positive: self.widened_piece(older.positive, joined.positive, any.positive),
            negative: self.widened_piece(older.negative, joined.negative, any.negative),
        }
    }

    /// A piece that was empty is taken as it is. What moves is an end that was there before.
    fn widened_piece(&self, older: Interval, joined: Interval, all: Interval) -> Interval {
        if older.is_empty() {
            return joined;
        }
        let low = if joined.low < older.low { self.down(joined.low, all) } else { joined.low };
        let high = if joined.high > older.high { self.up(joined.high, all) } else { joined.high };
        Interval::new(low, high)
    }

    fn down(&self, end: u64, all: Interval) -> u64 {
        let at = self.thresholds.partition_point(|threshold| *threshold <= end);
        let threshold = at.checked_sub(1).and_then(|at| self.thresholds.get(at)).copied();
        let least_of_half = self.half.map(|half| half.signed(half.sign()) as u64 & self.word.mask());
        let stops = [threshold, least_of_half];
        stops.into_iter().flatten().filter(|stop| *stop <= end).fold(all.low, u64::max)
    }

    fn up(&self, end: u64, all: Interval) -> u64 {
        let at = self.thresholds.partition_point(|threshold| *threshold < end);
        let threshold = self.thresholds.get(at).copied();
        let stops = [threshold, self.half.map(Word::body), self.half.map(Word::mask)];
        stops.into_iter().flatten().filter(|stop| *stop >= end).fold(all.high, u64::min)
    }
}
