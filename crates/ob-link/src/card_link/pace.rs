//! How often the card makes memory for groups: a decision from durations, without a clock.

use std::time::Duration;

use ob_core::Instant;

/// Each moment that making or giving back memory takes is one of so many, before more is made.
const SHARE: u32 = 10;

/// Keeps what all hosts wait for to a tenth of the card's time, and gives hosts their turns.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Nothing is made before.
    next: Instant,
    /// Whose turn it is.
    turn: usize,
}

impl Pace {
    /// When the next group may be opened.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Which of `count` hosts gets its wish now: the first from the one whose turn it is that `wishes`. None where none does, or it is too
    /// early. The host after it is next.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        count: usize,
        wishes: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if now < self.next {
            return None;
        }
        let chosen = (0..count).map(|turn| (self.turn + turn) % count).find(|index| wishes(*index))?;
        self.turn = chosen + 1;
        Some(chosen)
    }

    /// Making or giving back memory took from `started` to `ended`.
    pub(super) fn charge(&mut self, started: Instant, ended: Instant) {
        let took: Duration = ended - started;
        // What was given back while nothing might be made has used up a part of that rest, and has to be made up for too.
        self.next = self.next.max(started) + took * SHARE;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whenever the card asks and however long things take, at no moment has more than a tenth of the time gone into them.
        #[test]
        fn a_tenth_of_the_time_is_spent_and_no_more(
            steps in prop::collection::vec((0u64..50_000_000, 0u64..20_000_000, any::<bool>()), 1..200),
        ) {
            let (mut pace, mut now, mut spent) = (Pace::default(), Instant::default(), Duration::ZERO);
            let begin = now;
            for (pause, took, is_release) in steps {
                now = now + Duration::from_nanos(pause);
                // Memory of hosts that go is given back when they go, and counts too.
                if !is_release && pace.choose(now, 1, |_| true).is_none() {
                    prop_assert!(now < pace.next(), "it may be made, and is not");
                    continue;
                }
                if !is_release {
                    // Before this one is made, at most a tenth is gone.
                    prop_assert!(spent * 10 <= now - begin, "{spent:?} of {:?}", now - begin);
                }
                let ended = now + Duration::from_nanos(took);
                pace.charge(now, ended);
                (spent, now) = (spent + Duration::from_nanos(took), ended);
            }
            prop_assert!(spent * 10 <= pace.next().max(now) - begin);
        }
    }

    #[test]
    fn hosts_take_turns_whoever_wishes_most() {
        let (mut pace, now) = (Pace::default(), Instant::default());
        let mut granted = [0; 4];
        for _ in 0..30 {
            // Host 2 never wishes for anything; the others always do.
            let chosen = pace.choose(now, 4, |index| index != 2);
            chosen.into_iter().for_each(|index| granted[index] += 1);
        }
        assert_eq!(granted, [10, 10, 0, 10]);
        assert_eq!(pace.choose(now, 4, |_| false), None);
        assert_eq!(pace.choose(now, 0, |_| true), None, "there is nobody");
        // One that has left does not make others miss their turn.
        assert_eq!(pace.choose(now, 1, |_| true), Some(0));
    }
}
