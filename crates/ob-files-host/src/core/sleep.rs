//! A thread that waits: it looks, registers with everything that could have news, looks once more, and sleeps.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use ob_io::doorbell;

use super::{GroupCore, Pumped};
use crate::lane::Life;

/// Words that a thread may sleep on: the group's own bell, and two of each lane.
const WORDS: usize = 5 + BESIDE;
/// Words of others that a thread may sleep on beside a group's own.
pub(crate) const BESIDE: usize = 3;
const _: () = assert!(WORDS <= doorbell::WORDS_MAX);

/// What a thread found that may go to sleep.
pub(crate) enum Look<T> {
    /// What it waits for.
    Found(T),
    /// Not that, but there may be more to look at.
    Again,
    /// Nothing.
    Nothing,
}

impl<T> Look<T> {
    pub(crate) fn new(found: Option<T>, pumped: Pumped) -> Self {
        match found {
            Some(value) => Self::Found(value),
            None if pumped.more => Self::Again,
            None => Self::Nothing,
        }
    }
}

impl GroupCore {
    /// Calls `look` until it finds something, asleep in between until the card has answered, made room that is wanted, or
    /// another thread has rung. `None` when the time is up.
    pub(crate) fn sleep_until<T>(
        &self,
        deadline: Option<Instant>,
        look: impl FnMut() -> Look<T>,
    ) -> Option<T> {
        self.sleep_beside(deadline, look, || [None; BESIDE])
    }

    /// As [`GroupCore::sleep_until`], and `beside` registers this thread with whatever else could have news for it.
    pub(crate) fn sleep_beside<'w, T>(
        &self,
        deadline: Option<Instant>,
        mut look: impl FnMut() -> Look<T>,
        mut beside: impl FnMut() -> [Option<(&'w AtomicU64, u32)>; BESIDE],
    ) -> Option<T> {
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let spin_end = (!self.options.spin.is_zero()).then(|| Instant::now() + self.options.spin);
        loop {
            match look() {
                Look::Found(value) => return Some(value),
                Look::Again if is_late() => return None,
                Look::Again => continue,
                Look::Nothing => {}
            }
            if spin_end.is_some_and(|end| Instant::now() < end) && !is_late() {
                std::hint::spin_loop();
                continue;
            }
            let sleeper = self.bell.register();
            let life = self.current();
            let mut words = [sleeper.word(); WORDS];
            let mut count = life.as_ref().map_or(1, |life| self.register_with_card(life, &mut words));
            for word in beside().into_iter().flatten() {
                words[count] = word;
                count += 1;
            }
            // Once more between registering and sleeping: what came before anybody saw us is found here.
            match look() {
                Look::Found(value) => return Some(value),
                Look::Again => continue,
                Look::Nothing => {}
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            doorbell::futex_wait_any(&words[..count], left);
        }
    }

    /// Registers this thread as about to sleep with every ring that could have news for it; how many words to sleep on.
    fn register_with_card<'a>(&self, life: &'a Life, words: &mut [(&'a AtomicU64, u32); WORDS]) -> usize {
        let mut count = 1;
        for (lane, queue) in life.lanes.iter().zip(&self.queues) {
            let receiver = &lane.group.receiver;
            words[count] = (receiver.bell(), receiver.register_sleeper().bell);
            count += 1;
            if !queue.is_empty() {
                let sender = &lane.group.sender;
                words[count] = (sender.bell(), sender.register_sleeper().bell);
                count += 1;
            }
        }
        count
    }
}
