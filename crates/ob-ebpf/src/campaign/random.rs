//! Numbers that look random and come from a seed, so that whatever is found can be found again.

/// A generator of numbers (SplitMix64: a counter, and a hash of it).
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        random.state = random.word();
        random
    }

    pub(super) fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, or 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.word()) * end as u128) >> 64) as usize
    }

    /// Once in so many times.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of some; the first if there is none to choose from.
    pub(super) fn of<T: Copy, const N: usize>(&mut self, some: [T; N]) -> T {
        some[self.below(N)]
    }

    /// A number, of those at which arithmetic goes wrong more often than of others.
    pub(super) fn number(&mut self) -> u64 {
        let edge = self.of([
            0,
            1,
            u64::from(u8::MAX),
            i32::MAX as u64,
            u64::from(u32::MAX),
            1 << 32,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
            64,
            4096,
        ]);
        match self.below(4) {
            0 => edge.wrapping_add(self.word() % 5).wrapping_sub(2),
            1 => self.word() % 80,
            2 => self.word() >> self.below(64),
            _ => edge,
        }
    }
}
