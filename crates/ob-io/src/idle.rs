//! When a reactor spins, and when it sleeps.
//!
//! ```text
//!        event            spin time over, or more pollers than cores
//!   ┌──────────────▶ Spin ───────────────────────────────────────────▶ Sleep{until}
//!   │                 │ event (starts the spin time anew)                  │
//!   └─────────────────┴──────────────── doorbell, timer, completion ───────┘
//! ```
//!
//! No core burns when idle (invariant 6). Only an *event* starts the spin time: an operation in flight
//! does not, so a slow device costs no processor time.

use std::time::Duration;

use ob_core::Instant;
use rustix::thread::sched_getaffinity;

/// How long a reactor polls after its last event unless told otherwise: about what it costs to fall asleep and be
/// woken, a few times over.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);

/// Decides between polling and sleeping. Pure: it knows only the times it is told.
#[derive(Clone, Debug)]
pub struct IdlePolicy {
    spin: Duration,
    cores: usize,
    pollers: usize,
    /// Spinning ends here; `None` before the first event.
    spin_until: Option<Instant>,
}

/// What a reactor does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Look again at once.
    Spin,
    /// Sleep in the kernel, at the longest until the given instant.
    Sleep {
        /// The next timer, if there is one.
        until: Option<Instant>,
    },
}

impl IdlePolicy {
    /// A policy that polls for `spin` after an event (zero: never), on a machine that gives this process `cores`
    /// cores, where so many threads would poll if they could: both halves' reactors, busy clients of a benchmark. More
    /// of them than cores, and none polls: a spinning thread would only keep the one it waits for from running.
    pub fn new(spin: Duration, cores: usize, pollers: usize) -> Self {
        Self { spin, cores, pollers, spin_until: None }
    }

    /// There are so many of them now.
    pub fn set_pollers(&mut self, pollers: usize) {
        self.pollers = pollers;
    }

    /// An event happened (readiness, a completion, a message in a ring, a timer).
    pub fn on_event(&mut self, now: Instant) {
        self.spin_until = Some(now + self.spin);
    }

    /// What to do at `now`, with the next timer at `next_timer`.
    pub fn decide(&self, now: Instant, next_timer: Option<Instant>) -> Decision {
        if next_timer.is_some_and(|due| due <= now) {
            return Decision::Spin;
        }
        let may_spin = !self.spin.is_zero() && self.pollers <= self.cores;
        match self.spin_until {
            Some(until) if may_spin && now < until => Decision::Spin,
            _ => Decision::Sleep { until: next_timer },
        }
    }
}

/// How many cores this process may run on.
pub fn available_cores() -> usize {
    // A machine with more cores than the mask holds, or a sandbox without the call: one core is the answer that
    // never burns any.
    sched_getaffinity(None).map_or(1, |set| (set.count() as usize).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn at(microseconds: u64) -> Instant {
        Instant::from_nanoseconds(microseconds * US)
    }

    #[test]
    fn spins_only_for_a_while_after_an_event() {
        let mut policy = IdlePolicy::new(SPIN_DEFAULT, 2, 1);
        assert_eq!(policy.decide(at(0), None), Decision::Sleep { until: None }, "nothing has happened yet");
        policy.on_event(at(100));
        assert_eq!(policy.decide(at(100), None), Decision::Spin);
        assert_eq!(policy.decide(at(149), None), Decision::Spin);
        assert_eq!(policy.decide(at(150), None), Decision::Sleep { until: None });
        policy.on_event(at(160));
        assert_eq!(policy.decide(at(200), Some(at(900))), Decision::Spin);
        assert_eq!(policy.decide(at(210), Some(at(900))), Decision::Sleep { until: Some(at(900)) });
    }

    #[test]
    fn never_spins_with_more_pollers_than_cores() {
        let mut policy = IdlePolicy::new(SPIN_DEFAULT, 2, 3);
        policy.on_event(at(0));
        assert_eq!(policy.decide(at(1), None), Decision::Sleep { until: None });
        policy.set_pollers(2);
        assert_eq!(policy.decide(at(1), None), Decision::Spin);
    }

    #[test]
    fn zero_means_never() {
        let mut policy = IdlePolicy::new(Duration::ZERO, 64, 1);
        policy.on_event(at(5));
        assert_eq!(policy.decide(at(5), None), Decision::Sleep { until: None });
    }

    #[test]
    fn a_timer_that_is_due_is_not_slept_over() {
        let policy = IdlePolicy::new(Duration::ZERO, 1, 1);
        assert_eq!(policy.decide(at(5), Some(at(5))), Decision::Spin);
        assert_eq!(policy.decide(at(5), Some(at(6))), Decision::Sleep { until: Some(at(6)) });
    }

    #[test]
    fn a_process_has_at_least_one_core() {
        assert!(available_cores() >= 1);
    }
}
