//! Programs' logs at the rate of people.
//!
//! ```text
//!   program ─ ob_log ─▶ SampledLog ──┬─▶ sink, while there is credit
//!                        ▲ clock     └─▶ counted as dropped
//! ```
//!
//! A program may log in every call, and a card makes a million of those a second. What comes through here is few enough for a card's
//! own log, and what does not is counted.

use std::cell::Cell;
use std::time::Duration;

use crate::call::LogSink;

/// What a line costs, and what a second earns for each line that it may have.
const LINE: u64 = 1_000_000_000;

/// How much is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Lines a second, in the long run.
    pub lines_per_second: u32,
    /// Lines at once, after a while without any; at least one is.
    pub burst: u32,
}

/// Lets through to another sink as much as a [`Rate`] allows: in any time at most the burst, and as many more as the rate gives for that time.
/// It belongs to one thread, as a reactor does.
#[derive(Debug)]
pub struct SampledLog<Sink, Clock> {
    sink: Sink,
    clock: Clock,
    rate: Rate,
    bucket: Cell<Bucket>,
    dropped: Cell<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// What can be spent on lines.
    credit: u64,
    /// When it was as much.
    at: Duration,
}

impl<Sink: LogSink, Clock: Fn() -> Duration> SampledLog<Sink, Clock> {
    /// Begins with a whole burst. The clock says how long ago some moment is, always the same one.
    #[must_use]
    pub fn new(sink: Sink, clock: Clock, rate: Rate) -> Self {
        let at = clock();
        let log =
            Self { sink, clock, rate, bucket: Cell::new(Bucket { credit: 0, at }), dropped: Cell::new(0) };
        log.bucket.set(Bucket { credit: log.credit_max(), at });
        log
    }

    /// Lines that were not let through so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    fn credit_max(&self) -> u64 {
        u64::from(self.rate.burst.max(1)) * LINE
    }

    /// Whether there is credit for a line, which is spent then.
    fn is_let_through(&self) -> bool {
        let Bucket { credit, at } = self.bucket.get();
        // A clock that goes back earns nothing, and nothing twice when it comes forward again.
        let now = (self.clock)().max(at);
        let elapsed = u64::try_from((now - at).as_nanos()).unwrap_or(u64::MAX);
        let earned = elapsed.saturating_mul(self.rate.lines_per_second.into());
        let credit = credit.saturating_add(earned).min(self.credit_max());
        let left = credit.checked_sub(LINE);
        self.bucket.set(Bucket { credit: left.unwrap_or(credit), at: now });
        left.is_some()
    }
}

impl<Sink: LogSink, Clock: Fn() -> Duration> LogSink for SampledLog<Sink, Clock> {
    fn log(&self, first: u64, second: u64) {
        if self.is_let_through() {
            self.sink.log(first, second);
        } else {
            self.dropped.set(self.dropped.get().saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Lines(RefCell<Vec<(u64, u64)>>);

    impl LogSink for Lines {
        fn log(&self, first: u64, second: u64) {
            self.0.borrow_mut().push((first, second));
        }
    }

    /// Logs at these milliseconds; when lines were let through, and how many were not.
    fn let_through(rate: Rate, times: impl IntoIterator<Item = u64>) -> (Vec<u64>, u64) {
        let (lines, now) = (Lines::default(), Cell::new(Duration::ZERO));
        let log = SampledLog::new(&lines, || now.get(), rate);
        for time in times {
            now.set(Duration::from_millis(time));
            log.log(time, time + 1);
        }
        let dropped = log.dropped();
        let lines = lines.0.borrow();
        assert!(lines.iter().all(|(first, second)| first + 1 == *second));
        (lines.iter().map(|(first, _)| *first).collect(), dropped)
    }

    #[test]
    fn a_burst_is_let_through_and_then_the_rate() {
        let rate = Rate { lines_per_second: 10, burst: 3 };
        let (lines, dropped) = let_through(rate, 0..1000);
        assert_eq!(lines, [0, 1, 2, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
        assert_eq!(dropped, 1000 - 12);
    }

    #[test]
    fn credit_does_not_grow_beyond_a_burst() {
        let rate = Rate { lines_per_second: 10, burst: 2 };
        let (lines, dropped) = let_through(rate, [0, 0, 0, 100_000, 100_000, 100_000, 100_099, 100_100]);
        assert_eq!((lines, dropped), (vec![0, 0, 100_000, 100_000, 100_100], 3));
    }

    #[test]
    fn a_rate_that_a_second_cannot_be_divided_by_is_kept() {
        let rate = Rate { lines_per_second: 7, burst: 2 };
        assert_eq!(let_through(rate, 0..=10_000).0.len(), 2 + 70);
        // The last of them is due a moment later.
        assert_eq!(let_through(rate, 1..=10_000).0.len(), 2 + 69);
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing() {
        let rate = Rate { lines_per_second: 1, burst: 1 };
        let (lines, dropped) = let_through(rate, [5000, 0, 5000, 0, 5999, 6000]);
        assert_eq!((lines, dropped), (vec![5000, 6000], 4));
    }

    #[test]
    fn rates_at_the_edges() {
        let none = Rate { lines_per_second: 0, burst: 0 };
        assert_eq!(let_through(none, [0, 1, u64::MAX / 2]), (vec![0], 2), "one line, and no other ever");
        let all = Rate { lines_per_second: u32::MAX, burst: u32::MAX };
        assert_eq!(let_through(all, (0..100).map(|_| u64::MAX / 2)).1, 0);
    }
}
