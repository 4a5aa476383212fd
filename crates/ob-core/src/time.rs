//! Time as the cores see it: a number that drivers and simulators hand in.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since some fixed moment of the clock that gave it. Never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant `nanoseconds` after the clock's origin.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", Duration::from_nanos(self.0))
    }
}

/// What time it is, by both clocks that there are. Somebody may set the one that people read, forwards or back, so nothing
/// waits by it but what was promised for a time of the day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For what takes time.
    pub instant: Instant,
    /// Milliseconds since 1970, for what expires.
    pub unix_ms: u64,
}

/// Where time comes from.
pub trait Clock {
    /// The time now.
    fn now(&self) -> Instant;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_instead_of_wrapping() {
        let late = Instant::from_nanoseconds(u64::MAX - 1);
        assert_eq!((late + Duration::from_secs(1)).nanoseconds(), u64::MAX);
        assert_eq!(Instant::from_nanoseconds(5) - late, Duration::ZERO);
    }
}
