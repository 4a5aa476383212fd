//! When to try again what has failed.

use std::time::{Duration, Instant};

/// Pauses between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// What held for so long was no failure of the attempt.
const HELD_MIN: Duration = Duration::from_secs(1);

/// When to try again what has failed: at once if it had held for a while, else after pauses that grow.
#[derive(Debug)]
pub(crate) struct Pace {
    pause: Duration,
    next: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause: PAUSE_MIN, next: None }
    }
}

impl Pace {
    /// It has failed, after it had held for so long.
    pub(crate) fn failed(&mut self, held: Duration) {
        if held >= HELD_MIN {
            *self = Self::default();
            return;
        }
        self.next = Instant::now().checked_add(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// How long to wait before the next attempt, if at all.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.next?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_something_holds() {
        let mut pace = Pace::default();
        assert_eq!(pace.left(Instant::now()), None);
        let pauses = [20, 40, 80, 160, 250, 250].map(Duration::from_millis);
        for pause in pauses {
            let before = Instant::now();
            pace.failed(Duration::ZERO);
            let after = Instant::now();
            assert!(pace.left(after).is_none_or(|left| left <= pause));
            assert!(pace.left(before).is_some_and(|left| left >= pause));
            assert_eq!(pace.left(after + pause), None);
        }
        pace.failed(HELD_MIN);
        assert_eq!(pace.left(Instant::now()), None);
        assert_eq!(pace.pause, PAUSE_MIN);
    }
}
