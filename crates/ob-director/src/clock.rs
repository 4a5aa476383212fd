//! What the card knows of the host's clock.
//!
//! ```text
//!   card:  request s forwarded at c ─────┐                       ┌──▶ the host's clock is before the card's by h - c at most
//!                                        ▼                       │
//!   host:                                s received … looks: h ─▶ CLOCK(s, h)
//! ```
//!
//! The host looks at its clock after it has received `s`, so not before `c` by the card's clock. How long the way took makes the
//! difference look greater than it is, never less: the card calls keys over that the host may still have, and not the other
//! way round.

use std::collections::VecDeque;

use crate::plant::{Bug, is_planted};

/// Requests whose time is remembered, and how many milliseconds lie between them at least.
const SENT_MAX: usize = 64;
const SENT_EVERY_MS: u64 = 4;

/// What is known of the clock of the host that is there, or was there last.
#[derive(Debug, Default)]
pub(crate) struct HostClock {
    /// Stamps, and when they were sent.
    sent: VecDeque<(u64, u64)>,
    /// Below zero if it is behind: a card whose clock was set back goes on before those of others for the rest of its life.
    ahead_ms: Option<i64>,
}

impl HostClock {
    /// Another host is there, which knows of stamps up to this one.
    pub(crate) fn begin(&mut self, last: u64, now_ms: u64) {
        self.ahead_ms = None;
        self.sent.clear();
        self.sent.push_back((last, now_ms));
    }

    /// A request goes to the host.
    pub(crate) fn sent(&mut self, stamp: u64, now_ms: u64) {
        if self.sent.back().is_some_and(|(_, at)| at + SENT_EVERY_MS > now_ms) {
            return;
        }
        // The first stays: a host that is far behind is compared with it, which makes its clock look further ahead than it is.
        if self.sent.len() == SENT_MAX {
            self.sent.remove(1);
        }
        self.sent.push_back((stamp, now_ms));
    }

    /// The host says what time it was for it when it had received a request.
    pub(crate) fn told(&mut self, stamp: u64, host_ms: u64) {
        let received = self.sent.partition_point(|(sent, _)| *sent <= stamp);
        // What was sent before the last that it had received says less. One that lies between two
        // that are remembered counts as the earlier.
        self.sent.drain(..received.saturating_sub(1));
        if received > 0
            && let Some((_, at)) = self.sent.front()
        {
            // What no clock says leaves no key that expires to the card.
            let ahead = i64::try_from(i128::from(host_ms) - i128::from(*at)).unwrap_or(i64::MAX);
            self.ahead_ms = Some(ahead);
        }
    }

    pub(crate) fn ahead_ms(&self) -> Option<i64> {
        self.ahead_ms
    }

    /// The latest time that it can be for the host. As long as it has not said anything, it may be any.
    pub(crate) fn latest(&self, now_ms: u64) -> u64 {
        if is_planted(Bug::ClockUnmeasured) {
            return now_ms;
        }
        self.ahead_ms.map_or(u64::MAX, |ahead| now_ms.saturating_add_signed(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_far_behind_is_believed_when_its_clock_jumps() {
        let mut clock = HostClock::default();
        clock.begin(0, 1000);
        // It has received the first request, and many more are on their way.
        for stamp in 1..=1000 {
            clock.sent(stamp, 1000 + stamp * SENT_EVERY_MS);
        }
        clock.told(1, 1010);
        let before = clock.ahead_ms().unwrap();
        clock.told(2, 11_010);
        assert!(clock.ahead_ms().unwrap() >= before + 9_990, "{:?} after {before}", clock.ahead_ms());
        assert!(clock.sent.len() <= SENT_MAX);
    }

    #[test]
    fn a_host_that_is_behind_is_reckoned_with_as_it_is() {
        let mut clock = HostClock::default();
        assert_eq!(clock.latest(5000), u64::MAX);
        clock.begin(0, 5000);
        clock.told(0, 1400);
        assert_eq!((clock.ahead_ms(), clock.latest(5100)), (Some(-3600), 1500));
        clock.told(0, 5007);
        assert_eq!((clock.ahead_ms(), clock.latest(5100)), (Some(7), 5107));
        // Times that cannot be harm nobody.
        clock.told(0, u64::MAX);
        assert!(clock.latest(5100) > u64::MAX / 2);
        clock.told(0, 0);
        assert_eq!(clock.latest(4000), 0);
    }
}
