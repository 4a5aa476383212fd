//! Sleeping on a word of memory that two processes map.
//!
//! ```text
//!   waiter                          ringer (maybe the other half)
//!   seen = word (low 32 bits)       word += 1
//!   nothing to do?                  futex_wake_all(word)
//!   futex_wait(word, seen) ─────────▶ returns at once if the word moved on
//! ```
//!
//! The kernel compares 32 bits, so the low half of a 64-bit word is used; a waiter would have to sleep through
//! exactly 2^32 rings to miss one. A thread that waits for several rings at once sleeps on all their words with
//! [`futex_wait_any`]. Whoever maps the word may write anything there at any time: that can wake a
//! waiter for nothing or let it sleep to its timeout, and never more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};
use rustix::time::{ClockId, clock_gettime};

#[cfg(not(target_endian = "little"))]
compile_error!("the low half of a doorbell word is its first four bytes only on little-endian machines");

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// Somebody woke the word (or the kernel woke us for nothing): look again.
    Woken,
    /// The word was not as expected when the kernel looked.
    Changed,
    /// The time is over.
    TimedOut,
}

/// Sleeps while the low 32 bits of `word` are `expected_low32`, until woken or for at most `timeout`.
///
/// A signal counts as [`WaitResult::Woken`]: every caller looks at its state again after a wake, and the caller,
/// not this function, knows what is left of its timeout.
pub fn futex_wait(word: &AtomicU64, expected_low32: u32, timeout: Option<Duration>) -> WaitResult {
    let timespec = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    // Shared, not private: the other half sleeps on its own mapping of the same page.
    match futex::wait(low_half(word), futex::Flags::empty(), expected_low32, timespec.as_ref()) {
        Err(Errno::AGAIN) => WaitResult::Changed,
        Err(Errno::TIMEDOUT) => WaitResult::TimedOut,
        // EINTR, and anything a hostile mapping could provoke (EFAULT of a page that is gone): look again. A
        // caller that loops without a timeout on a broken mapping finds the link closed by other means.
        Ok(()) | Err(_) => WaitResult::Woken,
    }
}

/// The most words that [`futex_wait_any`] sleeps on.
pub const WORDS_MAX: usize = 24;

/// Where the kernel cannot sleep on several words at once, a waiter looks at all of them so often.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Sleeps while the low 32 bits of each word are as expected, until one of them is woken or for at most `timeout`.
/// Of more than [`WORDS_MAX`] words the rest is not watched.
///
/// A signal counts as [`WaitResult::Woken`], as with [`futex_wait`]. A kernel before 5.16 sleeps on the first word
/// alone, and not for long at a time; that also ends as [`WaitResult::Woken`].
pub fn futex_wait_any(words: &[(&AtomicU64, u32)], timeout: Option<Duration>) -> WaitResult {
    let words = &words[..words.len().min(WORDS_MAX)];
    if let [(word, expected)] = words {
        return futex_wait(word, *expected, timeout);
    }
    let mut waits = [futex::Wait::new(); WORDS_MAX];
    for (wait, (word, expected)) in waits.iter_mut().zip(words) {
        wait.val = u64::from(*expected);
        wait.uaddr = futex::WaitPtr::new(low_half(word).as_ptr().cast());
        // Shared, not private, as above.
        wait.flags = futex::WaitFlags::SIZE_U32;
    }
    let deadline = timeout.map(deadline_after);
    let none = futex::WaitvFlags::empty();
    match futex::waitv(&waits[..words.len()], none, deadline.as_ref(), futex::ClockId::Monotonic) {
        Err(Errno::AGAIN) => WaitResult::Changed,
        Err(Errno::TIMEDOUT) => WaitResult::TimedOut,
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => wait_in_turns(words, timeout),
        Ok(_) | Err(_) => WaitResult::Woken,
    }
}

/// A moment of the monotonic clock: unlike [`futex_wait`], the kernel wants an absolute time here.
fn deadline_after(timeout: Duration) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    let nanoseconds = now.tv_nsec + i64::from(timeout.subsec_nanos());
    Timespec {
        tv_sec: now.tv_sec.saturating_add(seconds).saturating_add(nanoseconds / 1_000_000_000),
        tv_nsec: nanoseconds % 1_000_000_000,
    }
}

/// What is left where the kernel has no `futex_waitv`: a short sleep on one word, if none has moved on.
fn wait_in_turns(words: &[(&AtomicU64, u32)], timeout: Option<Duration>) -> WaitResult {
    let moved_on = |(word, expected): &(&AtomicU64, u32)| word.load(Ordering::Acquire) as u32 != *expected;
    if words.iter().any(moved_on) {
        return WaitResult::Changed;
    }
    let slice = timeout.map_or(LOOK_EVERY, |timeout| timeout.min(LOOK_EVERY));
    let Some((first, expected)) = words.first() else {
        std::thread::sleep(slice);
        return WaitResult::TimedOut;
    };
    match futex_wait(first, *expected, Some(slice)) {
        WaitResult::TimedOut if timeout.is_none_or(|timeout| timeout > slice) => WaitResult::Woken,
        result => result,
    }
}

/// Wakes every thread, of any process, that sleeps on `word`. Never blocks.
pub fn futex_wake_all(word: &AtomicU64) -> usize {
    futex::wake(low_half(word), futex::Flags::empty(), i32::MAX as u32).unwrap_or(0)
}

/// The half that the kernel compares.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: on little-endian machines the first four bytes of the word are its low half; they are aligned, live
    // as long as the word, and atomics may be shared. The reference goes only to the kernel, which reads it
    // atomically: loads and stores of two sizes on one word never meet inside this process.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_moved_on_is_not_slept_on() {
        let word = AtomicU64::new(0xdead_0000_0007);
        assert_eq!(futex_wait(&word, 6, None), WaitResult::Changed);
    }

    #[test]
    fn the_high_half_does_not_matter() {
        let word = AtomicU64::new(0xdead_0000_0007);
        assert_eq!(futex_wait(&word, 7, Some(Duration::from_millis(1))), WaitResult::TimedOut);
    }

    #[test]
    fn every_sleeper_wakes() {
        let word = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while word.load(Ordering::Acquire) == 0 {
                        futex_wait(&word, 0, None);
                    }
                });
            }
            word.store(1, Ordering::Release);
            futex_wake_all(&word);
        });
    }

    type WaitAny = fn(&[(&AtomicU64, u32)], Option<Duration>) -> WaitResult;

    // What the kernel does, and what is done where it cannot.
    const BOTH_WAYS: [WaitAny; 2] = [futex_wait_any, wait_in_turns];

    #[test]
    fn any_of_several_words_that_moved_on_is_seen() {
        let words = [AtomicU64::new(1), AtomicU64::new(0xdead_0000_0002), AtomicU64::new(3)];
        for wait_any in BOTH_WAYS {
            for moved in 0..words.len() {
                let mut expected = [1, 2, 3];
                expected[moved] += 1;
                let watched: Vec<_> = words.iter().zip(expected).collect();
                assert_eq!(wait_any(&watched, None), WaitResult::Changed, "word {moved}");
            }
        }
    }

    #[test]
    fn waiting_for_several_words_ends_with_its_time() {
        let words = [AtomicU64::new(1), AtomicU64::new(2)];
        let watched = [(&words[0], 1), (&words[1], 2)];
        for wait_any in BOTH_WAYS {
            assert_eq!(wait_any(&watched, Some(Duration::from_micros(100))), WaitResult::TimedOut);
        }
        assert_eq!(futex_wait_any(&watched[..1], Some(Duration::from_micros(100))), WaitResult::TimedOut);
        assert_eq!(futex_wait_any(&[], Some(Duration::from_micros(100))), WaitResult::TimedOut);
    }

    #[test]
    fn a_sleeper_on_several_words_is_woken_by_each() {
        for wait_any in BOTH_WAYS {
            for rung in 0..3 {
                let words = [const { AtomicU64::new(0) }; 3];
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while words[rung].load(Ordering::Acquire) == 0 {
                            let watched: Vec<_> = words.iter().map(|word| (word, 0)).collect();
                            wait_any(&watched, None);
                        }
                    });
                    words[rung].store(1, Ordering::Release);
                    futex_wake_all(&words[rung]);
                });
            }
        }
    }

    #[test]
    fn nobody_to_wake_is_fine() {
        assert_eq!(futex_wake_all(&AtomicU64::new(3)), 0);
    }
}
