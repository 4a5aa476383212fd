//! Waking a reactor from other threads of the same process.
//!
//! ```text
//!   AWAKE ──reactor goes to sleep──▶ SLEEPING ──wake(): writes the eventfd──▶ NOTIFIED
//!     │                                                                          ▲ │
//!     └──────────────wake(): no system call──────────────────────────────────────┘ │
//!     ◀──────────────────────────── reactor takes the notice ──────────────────────┘
//! ```
//!
//! The eventfd is the reactor's own and never leaves the process: somebody who held it could fill it up, or keep
//! the reactor from sleeping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
const NOTIFIED: u32 = 2;

/// Wakes one reactor; may be cloned and sent anywhere in the process, and outlive the reactor.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: AtomicU32,
    bell: OwnedFd,
}

impl Waker {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { shared: Arc::new(Shared { state: AtomicU32::new(AWAKE), bell }) })
    }

    /// Makes the reactor's current or next turn return with [`crate::Event::Woken`]. What this thread wrote before
    /// is visible there. Many wakes may become one event.
    pub fn wake(&self) {
        // Acquire and release: the notice carries what was written before it, and two wakers that find each
        // other's notice pass on both.
        if self.shared.state.swap(NOTIFIED, Ordering::AcqRel) == SLEEPING {
            // The counter would have to be at its end for this to fail, and then the reactor is being woken.
            let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
        }
    }

    /// Announces sleep; `false` when there is a notice, and sleeping would be wrong.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.shared.state.compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Takes the notice, if there is one, and ends sleep.
    pub(crate) fn take_notice(&self) -> bool {
        if self.shared.state.load(Ordering::Relaxed) == AWAKE {
            return false;
        }
        self.shared.state.swap(AWAKE, Ordering::AcqRel) == NOTIFIED
    }

    /// Empties the eventfd, so that a new watch on it does not fire for wakes of the past.
    pub(crate) fn drain(&self) {
        let _ = rustix::io::read(&self.shared.bell, &mut [0u8; 8]);
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_taken_once_and_forbids_sleep() {
        let waker = Waker::new().unwrap();
        assert!(!waker.take_notice());
        waker.wake();
        waker.wake();
        assert!(!waker.prepare_sleep());
        assert!(waker.take_notice());
        assert!(!waker.take_notice());
        assert!(waker.prepare_sleep());
        waker.clone().wake();
        assert!(waker.take_notice());
        let mut count = [0; 8];
        assert_eq!(
            rustix::io::read(&waker.shared.bell, &mut count),
            Ok(8),
            "a sleeper is woken by the eventfd"
        );
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}
