//! The machine's clocks.

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

/// `CLOCK_BOOTTIME`: it goes on while the machine is suspended, as the clocks of others do. Leases are counted on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        // As above.
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

    #[test]
    fn what_was_slept_through_counts_on_one_of_them() {
        let before = BootClock.now();
        let now = MonotonicClock.now();
        assert!(BootClock.now() >= before);
        assert!(BootClock.now() >= now, "monotonic time is boot time without what was slept through");
    }
}
