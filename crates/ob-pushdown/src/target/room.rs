//! Who makes room: what was used least recently, and not for a while.
//!
//! A controller of a kernel's outlives the processes above it. What they close they close; what one has left behind that was killed nobody
//! closes before the controller ends. So at a limit, files and plans go of which nobody has made use for as long as a request may take.
//! Those that were used since stay, and who wants more is refused: a request does not lose its first file while it opens its last, and
//! clients that need more together than there may be do not take it from each other with every request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use ob_core::Instant;

/// Numbers that are forgotten already, beside as many as there are others.
const STALE_MAX: usize = 64;

/// The numbers of what there is, each with when it was used, or earlier: who makes use of something need not come here.
#[derive(Default)]
pub(super) struct Recency(BinaryHeap<Reverse<(Instant, u64)>>);

impl Recency {
    /// There is something new. `used` says when a number was used, if it is still something's.
    pub(super) fn insert(&mut self, number: u64, now: Instant, used: impl Fn(u64) -> Option<Instant>) {
        self.0.push(Reverse((now, number)));
        let live = |Reverse((_, number)): &Reverse<(Instant, u64)>| used(*number).is_some();
        // As many comings and goings are between two of these as it looks at numbers.
        if self.0.len() >= self.0.capacity() {
            self.0.retain(live);
            self.0.reserve(self.0.len() + STALE_MAX);
        }
    }

    /// Takes out what was used least recently, if that was at `until` or before. What is put in its place anew was used since, so that each
    /// use is paid for once.
    pub(super) fn take(&mut self, until: Instant, used: impl Fn(u64) -> Option<Instant>) -> Option<u64> {
        loop {
            let mut first = self.0.peek_mut()?;
            let Reverse((noted, number)) = *first;
            match used(number) {
                Some(used) if used > noted => *first = Reverse((used, number)),
                Some(_) if noted > until => return None,
                is_there => {
                    PeekMut::pop(first);
                    if is_there.is_some() {
                        return Some(number);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(second: u64) -> Instant {
        Instant::default() + Duration::from_secs(second)
    }

    proptest! {
        /// It is always the one that was used least recently, and of those the lowest; and no more is kept than there was at once.
        #[test]
        fn the_least_recently_used_goes(
            steps in prop::collection::vec((0_u8..4, 0_u64..20, 0_u64..8), 1..300),
        ) {
            let (mut recency, mut there, mut last) = (Recency::default(), BTreeMap::new(), 0);
            for (second, (what, which, age)) in (8..).zip(steps) {
                let known = there.keys().nth(which as usize).copied();
                match (what, known) {
                    (0, Some(number)) => _ = there.insert(number, at(second)),
                    (1, Some(number)) => _ = there.remove(&number),
                    (2, _) => {
                        let until = at(second - age);
                        let oldest = there.iter().map(|(number, used)| (*used, *number)).min();
                        let expected = oldest.filter(|(used, _)| *used <= until).map(|(_, number)| number);
                        prop_assert_eq!(recency.take(until, |number| there.get(&number).copied()), expected);
                        expected.inspect(|number| _ = there.remove(number));
                    }
                    _ => {
                        last += 1;
                        there.insert(last, at(second));
                        recency.insert(last, at(second), |number| there.get(&number).copied());
                    }
                }
            }
        }
    }

    #[test]
    fn what_comes_and_goes_is_not_kept() {
        let mut recency = Recency::default();
        for number in 0..100_000 {
            recency.insert(number, at(number), |other| (other + 10 > number).then(|| at(other)));
        }
        assert!(recency.0.capacity() < 1000, "{}", recency.0.capacity());
    }
}
