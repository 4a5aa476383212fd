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
        let elapsed = self.filled_at.get().map_or(BURST, |at| now.since(at).min(BURST));
        // At most ten milliseconds of a few cores: far from overflowing.
        let come = (u128::from(self.rate) * elapsed.as_nanos() / 1_000_000_000) as i64;
        // Time that has brought nothing yet counts on, or whoever asks often enough would wait for ever.
        if come > 0 {
            self.filled_at.set(Some(now));
        }
        self.left.set(self.left.get().saturating_add(come));
        self.left.get() > 0
    }

    /// When to ask again, for those who wait until a program may run: before then [`Self::admits`] says no. It may say no then,
    /// too, if more is owed than can be saved up at once; none if it never says yes.
    #[must_use]
    pub fn ready_at(&self, now: Instant) -> Option<Instant> {
        if self.left.get() > 0 {
            return Some(now);
        }
        if self.rate == 0 {
            return None;
        }
        let Some(filled_at) = self.filled_at.get() else { return Some(now) };
        let owed = 1 + self.left.get().unsigned_abs();
        let after = (u128::from(owed) * 1_000_000_000).div_ceil(u128::from(self.rate));
        let after = after.min(BURST.as_nanos()) as u64;
        Some(now.max(filled_at + Duration::from_nanos(after)))
    }

    /// Whether so much was spent beyond what there was that even what has to be done is not.
    #[must_use]
    pub fn is_overdrawn(&self) -> bool {
        let burst = (u128::from(self.rate) * BURST.as_nanos() / 1_000_000_000) as i64;
        self.left.get() < -burst
    }

    /// Whether it lets no less through than a new one would: what was spent has come back. A meter may be forgotten then, and not before, or
    /// whoever comes back would have it all at once.
    #[must_use]
    pub fn is_rested(&self, now: Instant) -> bool {
        let Some(filled_at) = self.filled_at.get() else { return self.left.get() >= 0 };
        let come = |time: Duration| (u128::from(self.rate) * time.as_nanos() / 1_000_000_000) as i128;
        i128::from(self.left.get()) + come(now.since(filled_at)) >= come(BURST)
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

    /// A meter to be asked without leaving a trace.
    fn twin(meter: &Meter) -> Meter {
        Meter { rate: meter.rate, left: meter.left.clone(), filled_at: meter.filled_at.clone() }
    }

    #[test]
    fn a_meter_says_when_it_admits_again_and_not_a_moment_too_late() {
        for share in [1, 10, 333, 500, 2000] {
            let (meter, mut now, mut waits) = (Meter::new(share), Instant::from_nanoseconds(5), 0);
            for call in 0..5_000 {
                let ready = meter.ready_at(now).unwrap();
                assert!(ready >= now);
                if ready > now {
                    let just_before = Instant::from_nanoseconds(ready.nanoseconds() - 1);
                    assert!(!twin(&meter).admits(|| just_before), "{share}: {call}");
                    waits += 1;
                }
                assert!(meter.admits(|| ready), "{share}: {call}");
                meter.spend((1 + call % 997) * share.min(100));
                now = ready + Duration::from_nanos(u64::from(call % 7));
            }
            assert!(waits > 100, "{share}: {waits}");
        }
    }

    #[test]
    fn what_is_owed_beyond_a_burst_is_waited_for_burst_by_burst() {
        let (meter, mut now, mut asked) = (Meter::new(500), Instant::from_nanoseconds(0), 0);
        assert!(meter.admits(|| now));
        meter.spend(50_000_000);
        while !meter.admits(|| now) {
            now = meter.ready_at(now).unwrap();
            asked += 1;
        }
        // 45 million are owed when what was saved up is gone, and a burst brings five.
        assert_eq!((asked, now), (10, Instant::from_nanoseconds(90_000_002)));
        assert_eq!(Meter::new(0).ready_at(now), None);
    }

    #[test]
    fn whoever_asks_all_the_time_gets_as_much_as_others() {
        let meter = Meter::new(1);
        let mut admitted = 0;
        // A unit a microsecond, and four looks in each.
        for nanosecond in (0..100_000_000).step_by(250) {
            if meter.admits(|| Instant::from_nanoseconds(nanosecond)) {
                meter.spend(10_000);
                admitted += 1;
            }
        }
        assert!((10..=11).contains(&admitted), "{admitted}");
    }

    #[test]
    fn who_begins_anew_when_rested_gets_no_more_than_who_stays() {
        for (share, fuel) in [(1, 10_000), (10, 300), (500, 50_000), (500, 7), (0, 1)] {
            let (mut meter, mut spent, mut begun) = (Meter::new(share), 0, 0);
            let microseconds = 400_000;
            for microsecond in 0..microseconds {
                let now = Instant::from_nanoseconds(microsecond * 1000);
                // As seldom as it takes to be rested now and then, and as much as there is then.
                if meter.is_rested(now) {
                    (meter, begun) = (Meter::new(share), begun + 1);
                    while meter.admits(|| now) {
                        meter.spend(fuel);
                        spent += u64::from(fuel);
                    }
                }
            }
            let allowed = u64::from(share) * (microseconds + 10_000) + u64::from(fuel) * begun.min(1);
            assert!(spent <= allowed, "{share}: {spent} of {allowed}");
            assert!(share == 0 || begun > 20, "{share}: {begun}");
        }
        assert!(Meter::new(500).is_rested(Instant::from_nanoseconds(0)), "one that is new is");
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
