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
//! exactly 2^32 rings to miss one. Whoever maps the word may write anything there at any time: that can wake a
//! waiter for nothing or let it sleep to its timeout, and never more.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Timespec};

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

/// Wakes every thread, of any process, that sleeps on `word`. Never blocks.
pub fn futex_wake_all(word: &AtomicU64) -> usize {
    futex::wake(low_half(word), futex::Flags::empty(), i32::MAX as u32).unwrap_or(0)
}

/// The half that the kernel compares.
fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: on little-endian machines the first four bytes of the word are its low half; they are aligned, live
    // as long as the word, and atomics may be shared. The reference goes only to the kernel, which reads it
    // atomically: loads and stores of two sizes on one word never meet inside this program.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

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

    #[test]
    fn nobody_to_wake_is_fine() {
        assert_eq!(futex_wake_all(&AtomicU64::new(3)), 0);
    }
}
