//! Liveness: somebody waits, and nobody gets on.
//!
//! Checkers of safety are content with a system that does nothing. A scenario therefore says when somebody got what he
//! had waited for, and looks after each of its turns how long ago that is, in virtual time. Standing still for longer than the
//! protocols need to get over a fault is a failure, and its text says who waits for what.

use std::time::Duration;

use ob_core::{Clock, Instant};

use crate::{Failure, SimClock};

/// Looks between two steps forward, whatever the clock says: time can stand still, too.
const LOOKS_MAX: u64 = 1_000_000;

/// When somebody got on last.
#[derive(Debug)]
pub struct Progress {
    clock: SimClock,
    still_max: Duration,
    made_at: Instant,
    looks: u64,
}

impl Progress {
    /// From now on something has to happen at least this often.
    pub fn new(clock: SimClock, still_max: Duration) -> Self {
        let made_at = clock.now();
        Self { clock, still_max, made_at, looks: 0 }
    }

    /// Somebody got on, or nobody waits.
    pub fn made(&mut self) {
        self.made_at = self.clock.now();
        self.looks = 0;
    }

    /// How long ago somebody got on.
    #[must_use]
    pub fn still(&self) -> Duration {
        self.clock.now().since(self.made_at)
    }

    /// Fails if nobody has got on for too long. `waiting` says who waits for what.
    pub fn check(&mut self, waiting: impl FnOnce() -> String) -> Result<(), Failure> {
        self.looks += 1;
        let still = self.still();
        if still > self.still_max {
            return Err(Failure::new(format!("nobody has got on for {still:?}; {}", waiting())));
        }
        if self.looks > LOOKS_MAX {
            let text = format!("nobody gets on, {LOOKS_MAX} turns within {still:?}; {}", waiting());
            return Err(Failure::new(text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn standing_still_for_too_long_is_a_failure_that_says_who_waits() {
        let clock = SimClock::new();
        let mut progress = Progress::new(clock.clone(), SECOND);
        let waiting = || "host 1 waits".to_owned();
        clock.advance_to(Instant::default() + SECOND);
        assert_eq!(progress.check(waiting), Ok(()));
        progress.made();
        clock.advance_to(Instant::default() + 2 * SECOND);
        assert_eq!(progress.check(waiting), Ok(()));
        clock.advance_to(Instant::default() + 3 * SECOND);
        let failure = progress.check(waiting).unwrap_err();
        assert_eq!(failure.what, "nobody has got on for 2s; host 1 waits");
        progress.made();
        assert_eq!(progress.check(waiting), Ok(()));
    }

    #[test]
    fn time_that_stands_still_is_no_excuse() {
        let mut progress = Progress::new(SimClock::new(), SECOND);
        let failed = (0..=LOOKS_MAX).find_map(|_| progress.check(String::new).err());
        assert!(failed.is_some_and(|failure| failure.what.contains("nobody gets on")));
    }
}
