//! Which key comes next.

use ob_sim::Rng;

use crate::bench::talk::part;

/// How unevenly keys are asked for: YCSB's own.
const SKEW: f64 = 0.99;
/// A prime, to scatter the popular keys over all.
const SCATTER: u64 = 2_654_435_761;

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Distribution {
    /// All alike.
    Uniform,
    /// The n-th most popular key as often as 1/n, nearly.
    Zipfian,
    /// The n-th last key as often as 1/n, nearly.
    Latest,
}

impl Distribution {
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipfian => "zipfian",
            Self::Latest => "latest",
        }
    }
}

/// Keys, the same for every contender.
pub(in crate::bench) struct Keys {
    rng: Rng,
    count: u32,
    distribution: Distribution,
    /// Over the keys that there were at first.
    zipf: Option<Zipf>,
}

impl Keys {
    pub(in crate::bench) fn new(distribution: Distribution, count: u32, rng: Rng) -> Self {
        let zipf = (distribution != Distribution::Uniform).then(|| Zipf::new(count));
        Self { rng, count, distribution, zipf }
    }

    /// So many keys there are from now on, and no fewer than before. Zipfian draws go on over those of the beginning.
    pub(in crate::bench) fn grow(&mut self, count: u32) {
        self.count = self.count.max(count);
    }

    pub(in crate::bench) fn next(&mut self) -> u32 {
        let count = u64::from(self.count);
        let key = match &self.zipf {
            None => self.rng.below(count),
            Some(zipf) => {
                let rank = zipf.rank(part(&mut self.rng));
                match self.distribution {
                    Distribution::Latest => count - 1 - rank,
                    _ => (rank * SCATTER) % zipf.count as u64,
                }
            }
        };
        // Less than the count, which has 32 bits.
        key as u32
    }

    /// A number below a limit, for other choices.
    pub(in crate::bench) fn below(&mut self, limit: u64) -> u64 {
        self.rng.below(limit)
    }

    /// A number from 0 to 99, for other choices.
    pub(in crate::bench) fn percent(&mut self) -> u64 {
        self.rng.below(100)
    }
}

/// Ranks with a Zipfian distribution, drawn as Gray and others do it ("Quickly generating billion-record synthetic
/// databases", §3.2), and YCSB after them.
struct Zipf {
    count: f64,
    zeta: f64,
    second: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: u32) -> Self {
        let zeta: f64 = (1..=count).map(|rank| f64::from(rank).powf(-SKEW)).sum();
        let second = 1.0 + 0.5_f64.powf(SKEW);
        let count = f64::from(count);
        let eta = (1.0 - (2.0 / count).powf(1.0 - SKEW)) / (1.0 - second / zeta);
        Self { count, zeta, second, alpha: 1.0 / (1.0 - SKEW), eta }
    }

    fn rank(&self, part: f64) -> u64 {
        let scaled = part * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < self.second {
            1
        } else {
            let rank = self.count * (self.eta * (part - 1.0) + 1.0).powf(self.alpha);
            rank.min(self.count - 1.0) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u32 = 1000;
    const DRAWS: usize = 100_000;

    fn frequencies(distribution: Distribution) -> Vec<usize> {
        let mut keys = Keys::new(distribution, COUNT, Rng::new(5));
        let mut drawn = vec![0; COUNT as usize];
        for _ in 0..DRAWS {
            drawn[keys.next() as usize] += 1;
        }
        drawn
    }

    #[test]
    fn uniform_keys_are_all_alike() {
        let drawn = frequencies(Distribution::Uniform);
        assert!(drawn.iter().all(|times| (50..200).contains(times)), "{drawn:?}");
    }

    #[test]
    fn the_most_popular_of_zipfian_keys_are_as_popular_as_they_should_be() {
        let mut drawn = frequencies(Distribution::Zipfian);
        let zeta: f64 = (1..=COUNT).map(|rank| f64::from(rank).powf(-SKEW)).sum();
        drawn.sort_unstable_by(|left, right| right.cmp(left));
        for (rank, expected) in [(0, 1.0 / zeta), (1, 0.5_f64.powf(SKEW) / zeta)] {
            let share = drawn[rank] as f64 / DRAWS as f64;
            assert!((share / expected - 1.0).abs() < 0.05, "rank {rank}: {share}, not {expected}");
        }
        // Ten of a thousand get about two fifths of all.
        let top = drawn[..10].iter().sum::<usize>() as f64 / DRAWS as f64;
        assert!((0.33..0.47).contains(&top), "{top}");
        assert_ne!(frequencies(Distribution::Zipfian)[0], 0, "scattering leaves the first where it is");
    }

    #[test]
    fn the_latest_keys_are_the_most_popular_as_keys_come() {
        let mut keys = Keys::new(Distribution::Latest, COUNT, Rng::new(5));
        keys.grow(COUNT + 10);
        let mut drawn = vec![0; COUNT as usize + 10];
        for _ in 0..DRAWS {
            drawn[keys.next() as usize] += 1;
        }
        assert!(
            drawn[1009] > drawn[1008] && drawn[1008] > drawn[1000] && drawn[1000] > drawn[500],
            "{drawn:?}"
        );
        let mut keys = Keys::new(Distribution::Zipfian, COUNT, Rng::new(5));
        keys.grow(2 * COUNT);
        assert!((0..DRAWS).all(|_| keys.next() < COUNT), "those of the beginning stay where they are");
    }

    #[test]
    fn scattering_gives_every_rank_a_key_of_its_own() {
        for count in [1000_u64, 300_000, 1_000_000] {
            let keys: std::collections::BTreeSet<u64> =
                (0..count).map(|rank| (rank * SCATTER) % count).collect();
            assert_eq!(keys.len() as u64, count);
        }
    }
}
