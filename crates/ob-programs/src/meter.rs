//! A tenant's share of a core, counted in fuel.

use std::cell::Cell;
use std::time::Duration;

use ob_core::Instant;

/// Fuel of a whole core in a second: a unit is about a nanosecond.
const CORE_FUEL: u64 = 1_000_000_000;
/// How much time's share may be saved up, and used at once.
const BURST: Duration = Duration::from_millis(10);

/// Lets programs run while their tenant has fuel left, which comes back with time.
///
/// The clock is asked only when all is used: a program that stays below its share costs a subtraction a call.
#[derive(Debug)]
pub struct Meter {
    /// Fuel that comes in a second.
    rate: u64,
    left: Cell<i64>,
    filled_at: Cell<Option<Instant>>,
}

impl Meter {
    /// A meter of so many thousandths of a core.
    #[must_use]
    pub fn new(share: u32) -> Self {
        let rate = CORE_FUEL / 1000 * u64::from(share);
        Self { rate, left: Cell::new(0), filled_at: Cell::new(None) }
    }

    /// Whether a program may run.
    pub fn admits(&self, now: impl FnOnce() -> Instant) -> bool {
        if self.left.get() > 0 {
            return true;
        }
        let now = now();
        let elapsed = self.filled_at.replace(Some(now)).map_or(BURST, |at| now.since(at).min(BURST));
        // At most ten milliseconds of a few cores: far from overflowing.
        let come = (u128::from(self.rate) * elapsed.as_nanos() / 1_000_000_000) as i64;
        self.left.set(self.left.get().saturating_add(come));
        self.left.get() > 0
    }

    /// Whether so much was spent beyond what there was that even what has to be done is not.
    #[must_use]
    pub fn is_overdrawn(&self) -> bool {
        let burst = (u128::from(self.rate) * BURST.as_nanos() / 1_000_000_000) as i64;
        self.left.get() < -burst
    }

    /// Takes what a call has cost.
    pub fn spend(&self, fuel: u32) {
        self.left.set(self.left.get().saturating_sub(i64::from(fuel)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of so much fuel, one each microsecond, that were admitted in a second.
    fn admitted(share: u32, fuel: u32) -> u64 {
        let meter = Meter::new(share);
        let mut admitted = 0;
        for microsecond in 0..1_000_000 {
            if meter.admits(|| Instant::from_nanoseconds(microsecond * 1000)) {
                meter.spend(fuel);
                admitted += 1;
            }
        }
        admitted
    }

    #[test]
    fn a_tenant_gets_its_share_and_a_burst_and_no_more() {
        // A quarter of a core: 250 million units a second, and what was saved up at first.
        let (got, due) = (admitted(250, 1000), 250_000 + 2_500);
        assert!((due - 20..=due + 20).contains(&got), "{got} instead of {due}");
        // Calls that cost more than was left are paid for by those that come later.
        let (got, due) = (admitted(250, 50_000), 5_000 + 50);
        assert!((due - 5..=due + 5).contains(&got), "{got} instead of {due}");
        assert_eq!(admitted(1000, 100), 1_000_000, "below the share nothing is refused");
        assert_eq!(admitted(0, 100), 0);
    }

    #[test]
    fn what_is_saved_up_is_bounded() {
        let meter = Meter::new(1000);
        assert!(!meter.is_overdrawn());
        assert!(meter.admits(|| Instant::from_nanoseconds(0)));
        meter.spend(u32::MAX);
        let hour = Instant::from_nanoseconds(3_600_000_000_000);
        assert!(meter.is_overdrawn() && !meter.admits(|| hour), "an hour of rest pays for ten milliseconds");
    }
}
