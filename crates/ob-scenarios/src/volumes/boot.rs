//! A tier's clock: it runs at a rate of its own, within what leases allow for.

use ob_core::Instant;

const PPM: u128 = 1_000_000;

/// A clock that is wrong all the time by the same share.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriftClock {
    /// Millionths of its own time in a second.
    rate: u128,
    offset: u64,
}

impl DriftClock {
    /// One that is ahead by so much, and gains so many millionths, or loses them.
    pub(super) fn new(gains_ppm: i64, offset: u64) -> Self {
        let rate = 1_000_000_i64.saturating_add(gains_ppm).max(1);
        Self { rate: rate.unsigned_abs().into(), offset }
    }

    /// What it shows.
    pub(super) fn shows(&self, now: Instant) -> Instant {
        let own = u128::from(now.nanoseconds()) * self.rate / PPM;
        Instant::from_nanoseconds(own as u64 + self.offset)
    }

    /// When it shows that, or more.
    pub(super) fn when(&self, shows: Instant) -> Instant {
        let own = u128::from(shows.nanoseconds().saturating_sub(self.offset));
        Instant::from_nanoseconds((own * PPM).div_ceil(self.rate) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_due_when_the_clock_shows_it() {
        for gains in [-200_000, -1, 0, 1, 7, 200_000] {
            let clock = DriftClock::new(gains, 5_000);
            for due in [5_000, 5_001, 77_777, 1_000_000_007, 3_600_000_000_000] {
                let due = Instant::from_nanoseconds(due);
                let when = clock.when(due);
                assert!(clock.shows(when) >= due, "{gains} {due:?}");
            }
        }
        let slow = DriftClock::new(-10_000, 0);
        assert_eq!(slow.shows(Instant::from_nanoseconds(1_000_000)), Instant::from_nanoseconds(990_000));
    }
}
