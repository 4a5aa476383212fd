//! Latencies in a histogram of constant size.

use std::time::Duration;

use hdrhistogram::Histogram;

// A minute is longer than any operation that counts as one.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

// Three digits: quantiles are exact to a thousandth of themselves.
const DIGITS: u8 = 3;

/// Latencies of many operations, from a nanosecond to a minute.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
        let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("legal bounds");
        Self { histogram }
    }

    /// Adds one. What is longer than a minute counts as a minute.
    pub fn record(&mut self, latency: Duration) {
        self.histogram.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so that everything fits.
        let _ = self.histogram.add(&other.histogram);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency, in microseconds, that the given part of them (0 to 1) does not exceed.
    #[must_use]
    pub fn quantile_us(&self, part: f64) -> f64 {
        self.histogram.value_at_quantile(part) as f64 / 1000.0
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_thousandth() {
        let mut latencies = Latencies::new();
        for microseconds in 1..=500 {
            latencies.record(Duration::from_micros(microseconds));
        }
        let mut more = Latencies::new();
        for microseconds in 501..=1000 {
            more.record(Duration::from_micros(microseconds));
        }
        latencies.merge(&more);
        assert_eq!(latencies.count(), 1000);
        assert!((latencies.quantile_us(0.5) / 500.0 - 1.0).abs() < 0.002);
        assert!((latencies.quantile_us(0.99) / 990.0 - 1.0).abs() < 0.002);
    }

    #[test]
    fn what_does_not_fit_counts_as_the_most() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::from_secs(3600));
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 2);
        assert!((latencies.quantile_us(1.0) / 60_000_000.0 - 1.0).abs() < 0.002);
    }
}
