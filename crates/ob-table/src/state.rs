//! The two words that decide: a slot's state and a bucket's floor.

use crate::Stamp;

/// The state of a slot, as it stands in memory.
///
/// ```text
///   0                                free, or being filled: only the writer leaves this state
///   !(stamp << 1 | valid)            an entry; not valid: a tombstone
/// ```
///
/// The complement turns *newer* into *smaller*, so an invalidation is one `fetch_min`: it beats what is older than it, does
/// nothing to what is newer, and cannot bring a free slot to life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u64);

impl State {
    pub(crate) const FREE: Self = Self(0);

    #[inline]
    pub(crate) const fn valid(stamp: Stamp) -> Self {
        Self(!(stamp.number() << 1 | 1))
    }

    #[inline]
    pub(crate) const fn tombstone(stamp: Stamp) -> Self {
        Self(!(stamp.number() << 1))
    }

    #[inline]
    pub(crate) const fn is_free(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn is_valid(self) -> bool {
        self.0 & 1 == 0 && self.0 != 0
    }

    #[inline]
    pub(crate) const fn is_tombstone(self) -> bool {
        self.0 & 1 == 1
    }

    /// The stamp of an entry; nothing sensible for a free slot.
    #[inline]
    pub(crate) const fn stamp(self) -> Stamp {
        Stamp::from_word(!self.0 >> 1)
    }
}

/// The floor of a bucket, as it stands in memory: `stamp << 1 | hard`.
///
/// Nothing older than the floor is *admitted* to a bucket. What is there already stays, and can be moved; but what is older
/// than a *hard* floor is not valid any more once it was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor(pub(crate) u64);

impl Floor {
    pub(crate) const HARD: u64 = 1;

    #[inline]
    pub(crate) const fn hard(stamp: Stamp) -> Self {
        Self(stamp.number() << 1 | Self::HARD)
    }

    #[inline]
    pub(crate) const fn is_hard(self) -> bool {
        self.0 & Self::HARD == Self::HARD
    }

    #[inline]
    pub(crate) const fn stamp(self) -> Stamp {
        Stamp::from_word(self.0 >> 1)
    }

    /// As hard as before, at another stamp.
    #[inline]
    pub(crate) const fn at(self, stamp: Stamp) -> Self {
        Self(stamp.number() << 1 | self.0 & Self::HARD)
    }

    #[inline]
    pub(crate) const fn softened(self) -> Self {
        Self(self.0 & !Self::HARD)
    }

    /// Whether an entry of this stamp, moved to this bucket or from it, must stay invalid.
    #[inline]
    pub(crate) fn stops(self, stamp: Stamp) -> bool {
        self.is_hard() && stamp < self.stamp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(number: u64) -> Stamp {
        Stamp::new(number).unwrap()
    }

    #[test]
    fn newer_is_smaller_and_a_tombstone_is_older_than_the_entry_of_its_stamp() {
        let rising = [
            State::tombstone(Stamp::ZERO),
            State::valid(Stamp::ZERO),
            State::tombstone(stamp(1)),
            State::valid(stamp(1)),
            State::tombstone(Stamp::MAX),
            State::valid(Stamp::MAX),
        ];
        assert!(rising.windows(2).all(|pair| pair[0].0 > pair[1].0), "{rising:?}");
        for state in rising {
            assert!(!state.is_free() && state.0 > State::FREE.0);
            assert_ne!(state.is_valid(), state.is_tombstone());
        }
        assert!(!State::FREE.is_valid() && !State::FREE.is_tombstone());
        assert_eq!(
            (State::valid(Stamp::MAX).stamp(), State::tombstone(stamp(9)).stamp()),
            (Stamp::MAX, stamp(9))
        );
    }

    #[test]
    fn a_floor_stops_moves_only_when_it_is_hard() {
        let hard = Floor::hard(stamp(5));
        assert!(hard.stops(stamp(4)) && !hard.stops(stamp(5)) && !hard.softened().stops(stamp(4)));
        assert_eq!(hard.at(stamp(7)), Floor::hard(stamp(7)));
        assert_eq!(hard.softened().stamp(), stamp(5));
    }
}
