//! Wakes threads of this process that sleep on a group's rings, when what they wait for comes from another thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ob_io::doorbell;

/// A word to sleep on. Ringing costs a system call only while somebody sleeps.
#[derive(Default)]
pub(crate) struct Bell {
    word: AtomicU64,
    sleepers: AtomicU32,
}

/// A thread that is about to sleep.
pub(crate) struct Sleeper<'a> {
    bell: &'a Bell,
    seen: u32,
}

impl Bell {
    /// Wakes every sleeper, and everybody who has registered and not looked since.
    pub(crate) fn ring(&self) {
        // The word first, then the count; a sleeper does it the other way round. So one of them sees the other.
        self.word.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            doorbell::futex_wake_all(&self.word);
        }
    }

    /// Registers this thread: look once more after this, then sleep while the word still is as it was.
    pub(crate) fn register(&self) -> Sleeper<'_> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.word.load(Ordering::SeqCst) as u32;
        Sleeper { bell: self, seen }
    }
}

impl<'a> Sleeper<'a> {
    /// The word, and what it was at registration.
    pub(crate) fn word(&self) -> (&'a AtomicU64, u32) {
        (&self.bell.word, self.seen)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.bell.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_ring_between_registering_and_sleeping_is_not_lost() {
        let bell = Bell::default();
        let sleeper = bell.register();
        bell.ring();
        let (word, seen) = sleeper.word();
        assert_eq!(doorbell::futex_wait_any(&[(word, seen)], None), doorbell::WaitResult::Changed);
    }

    #[test]
    fn sleepers_are_woken() {
        let (bell, done) = (Bell::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let sleeper = bell.register();
                        if done.load(Ordering::Acquire) {
                            return;
                        }
                        doorbell::futex_wait_any(&[sleeper.word()], None);
                    }
                });
            }
            done.store(true, Ordering::Release);
            bell.ring();
        });
        assert_eq!(bell.sleepers.load(Ordering::SeqCst), 0);
    }
}
