//! Random numbers that are the same on every machine, for every run of a seed.

use std::ops::Range;
use std::time::Duration;

/// How likely something is, in millionths. A whole number, so that a plan can be compared and printed exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct PerMillion(pub u32);

impl PerMillion {
    /// Does not happen.
    pub const NEVER: Self = Self(0);
    /// Always happens.
    pub const ALWAYS: Self = Self(1_000_000);

    /// So many in a hundred.
    pub const fn percent(percent: u32) -> Self {
        Self(percent * 10_000)
    }
}

/// A stream of random numbers: xoshiro256**, seeded by splitmix64 (Blackman and Vigna).
///
/// A stream can be *forked* by a label. The child depends on the parent's seed and the label alone, not on what
/// was drawn before, so that one consumer more does not change what the others see.
#[derive(Clone, Debug)]
pub struct Rng {
    seed: u64,
    state: [u64; 4],
}

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut mixer = seed;
        Self { seed, state: [(); 4].map(|()| splitmix(&mut mixer)) }
    }

    /// The child stream of this label.
    pub fn fork(&self, label: &str) -> Self {
        let mut mixer = self.seed ^ 0x6f62_2d73_696d_2d31;
        for byte in label.bytes() {
            mixer = splitmix(&mut mixer) ^ u64::from(byte);
        }
        Self::new(splitmix(&mut mixer))
    }

    /// The child stream of this label and number: one of many of a kind.
    pub fn fork_numbered(&self, label: &str, number: u64) -> Self {
        let mut mixer = self.fork(label).seed ^ number;
        Self::new(splitmix(&mut mixer))
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A number below `limit`; 0 when there is none.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The high half of the product: the bias is at most `limit` in 2^64.
        ((u128::from(self.word()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in the range; its start when it is empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// An index of a sequence of `len`; 0 when it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Whether something this likely happens now.
    pub fn chance(&mut self, likely: PerMillion) -> bool {
        self.below(1_000_000) < u64::from(likely.0)
    }

    /// Whether something that happens once in `n` times happens now.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the items.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = self.index(items.len());
        items.get(index)
    }

    /// Puts the items into any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }

    /// A time in the range, each equally likely.
    pub fn duration(&mut self, range: Range<Duration>) -> Duration {
        Duration::from_nanos(self.range(nanoseconds(range.start)..nanoseconds(range.end)))
    }

    /// A time in the range, each order of magnitude equally likely: mostly short, now and then long.
    pub fn skewed(&mut self, range: Range<Duration>) -> Duration {
        let (start, width) =
            (nanoseconds(range.start), nanoseconds(range.end).saturating_sub(nanoseconds(range.start)));
        let bits = u64::from(u64::BITS - width.leading_zeros());
        let limit = 1u64.checked_shl(self.below(bits + 1) as u32).unwrap_or(u64::MAX).min(width);
        Duration::from_nanos(start + self.below(limit))
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_for_ever() {
        // The reference splitmix64 of seed 0 begins with these; xoshiro is built on them.
        let mut mixer = 0;
        assert_eq!(splitmix(&mut mixer), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix(&mut mixer), 0x6e78_9e6a_a1b9_65f4);
        let mut rng = Rng { seed: 0, state: [1, 2, 3, 4] };
        assert_eq!([rng.word(), rng.word(), rng.word()], [11520, 0, 1_509_978_240], "the published example");
    }

    #[test]
    fn a_fork_depends_on_its_label_and_not_on_what_was_drawn() {
        let mut parent = Rng::new(7);
        let mut before = parent.fork("disk");
        parent.word();
        assert_eq!(before.word(), parent.fork("disk").word());
        assert_ne!(parent.fork("disk").word(), parent.fork("net").word());
        assert_ne!(parent.fork_numbered("disk", 1).word(), parent.fork_numbered("disk", 2).word());
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..1000).map(|_| rng.range(5..9)).collect();
        assert!((5..9).all(|number| drawn.contains(&number)) && drawn.iter().all(|n| (5..9).contains(n)));
        assert_eq!((rng.below(0), rng.range(3..3), rng.choose::<u8>(&[])), (0, 3, None));
        let (low, high) = (Duration::from_nanos(10), Duration::from_nanos(1000));
        assert!((0..1000).all(|_| (low..high).contains(&rng.skewed(low..high))));
        assert!((0..1000).all(|_| (low..high).contains(&rng.duration(low..high))));
        assert!((0..100).all(|_| !rng.chance(PerMillion::NEVER) && rng.chance(PerMillion::ALWAYS)));
        let hits = (0..10_000).filter(|_| rng.chance(PerMillion::percent(10))).count();
        assert!((800..1200).contains(&hits), "{hits}");
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut rng = Rng::new(2);
        let mut items: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
