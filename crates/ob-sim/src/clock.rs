//! Virtual time.

use std::cell::Cell;
use std::rc::Rc;

use ob_core::{Clock, Instant};

/// A clock that stands still until it is told to go on. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Rc<Cell<Instant>>);

impl SimClock {
    /// A clock at its origin.
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on to `time`; a time that is past already changes nothing.
    pub fn advance_to(&self, time: Instant) {
        self.0.set(self.0.get().max(time));
    }
}

impl Clock for SimClock {
    fn now(&self) -> Instant {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_show_one_time_that_never_goes_back() {
        let clock = SimClock::new();
        let other = clock.clone();
        clock.advance_to(Instant::from_nanoseconds(5));
        clock.advance_to(Instant::from_nanoseconds(3));
        assert_eq!(other.now().nanoseconds(), 5);
    }
}
