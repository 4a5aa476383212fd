//! The machine's clock.

use ob_core::{Clock, Instant};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`: one origin for all processes of a machine (it is boot), so that instants taken by card and
/// host on one machine compare.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        let time = clock_gettime(ClockId::Monotonic);
        // Monotonic time is never negative, and 2^64 ns are 584 years of uptime.
        Instant::from_nanoseconds(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let mut last = MonotonicClock.now();
        for _ in 0..1000 {
            let now = MonotonicClock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(last.nanoseconds() > 0);
    }
}
