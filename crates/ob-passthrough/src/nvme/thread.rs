//! A ring with a thread of its own, and futures for its commands.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::ring::{DEPTH_MAX, Reaped, Ring};
use super::{Command, Completion, PassthroughError};

type Outcome = Result<Completion, PassthroughError>;

/// Commands that wait for room in the ring, at most: more than a program has requests under way.
const WAITING_MAX: usize = 4096;

/// A generic device with a thread that submits and reaps, so that a command's future belongs to no executor. Any thread may submit.
/// Commands that the ring has no room for wait in line, and go to the kernel in the order in which they came.
///
/// Dropping it, or a future, waits for nothing and frees nothing that the kernel has: the thread goes on until everything in
/// flight is answered.
#[derive(Debug)]
pub struct RingPassthrough {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    bell: OwnedFd,
    /// Whether the thread sleeps, or is about to: then whoever has something for it rings.
    sleeps: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Command, Arc<Slot>)>,
    has_ended: bool,
}

impl Queue {
    /// Has a command wait for its turn; whether there is room for it.
    fn push(&mut self, command: Command, slot: &Arc<Slot>) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push_back((command, Arc::clone(slot)));
        }
        has_room
    }

    /// Those whose turn it is, if the ring has room for so many.
    fn take(&mut self, room: usize) -> VecDeque<(Command, Arc<Slot>)> {
        let rest = self.waiting.split_off(room.min(self.waiting.len()));
        std::mem::replace(&mut self.waiting, rest)
    }
}

/// Where a command's outcome is put, and who wants it.
#[derive(Debug, Default)]
struct Slot(Mutex<SlotState>);

#[derive(Debug, Default)]
struct SlotState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these, and their contents are whole at any time.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RingPassthrough {
    /// Opens a generic device (`/dev/ngXnY`) with room for `depth` commands in flight.
    pub fn open(path: &Path, depth: u32) -> Result<Self, PassthroughError> {
        Self::of(Ring::open(path, depth)?, depth)
    }

    /// Gives a ring a thread. Nothing may be in flight on it.
    fn of(ring: Ring, depth: u32) -> Result<Self, PassthroughError> {
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(PassthroughError::Os)?;
        let depth = depth.clamp(1, DEPTH_MAX) as usize;
        let shared = Arc::new(Shared { queue: Mutex::default(), bell, sleeps: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("ob-passthrough".to_owned());
        thread.spawn(move || drive(ring, depth, &of_thread)).map_err(|error| {
            PassthroughError::Os(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN))
        })?;
        Ok(Self { shared })
    }

    /// Sends a command. It is on its way when this returns, or in line; the future need not be polled for that. Where very many are in line
    /// it is refused.
    pub fn submit(&self, command: Command) -> Pending {
        let slot = Arc::new(Slot::default());
        let is_in_line = lock(&self.shared.queue).push(command, &slot);
        if is_in_line {
            self.shared.wake();
        } else {
            slot.fill(Err(PassthroughError::Full));
        }
        Pending(slot)
    }
}

impl Drop for RingPassthrough {
    fn drop(&mut self) {
        lock(&self.shared.queue).has_ended = true;
        self.shared.wake();
    }
}

impl Shared {
    fn wake(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst) {
            // Full is as good as rung.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Slot {
    fn fill(&self, outcome: Outcome) {
        let waker = {
            let mut state = lock(&self.0);
            state.outcome = Some(outcome);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The thread: submits what waits, sleeps in the kernel, hands out what has completed.
fn drive(mut ring: Ring, depth: usize, shared: &Shared) {
    let mut waiters: Vec<Option<Arc<Slot>>> = (0..depth).map(|_| None).collect();
    let mut is_watched = false;
    loop {
        if !is_watched {
            ring.watch_bell(&shared.bell);
            is_watched = true;
        }
        shared.sleeps.store(true, Ordering::SeqCst);
        // Looked at after `sleeps` is set: who comes later rings.
        let (taken, ends) = {
            let mut queue = lock(&shared.queue);
            let taken = queue.take(depth.saturating_sub(ring.in_flight()));
            (taken, queue.has_ended && queue.waiting.is_empty())
        };
        let has_new = !taken.is_empty();
        for (command, slot) in taken {
            match ring.submit(command) {
                Ok(token) => waiters[token.0 as usize] = Some(slot),
                Err(error) => slot.fill(Err(error)),
            }
        }
        if ends && ring.in_flight() == 0 {
            return;
        }
        // What was refused at once left nothing to wait for; new commands are worth a look before sleeping, at no extra call. Those
        // that the ring has no room for go on when something has completed.
        let wait = (!has_new || ring.in_flight() > 0).then_some(Duration::MAX);
        ring.turn(wait, &mut |reaped| match reaped {
            Reaped::Bell => {
                is_watched = false;
                let _ = rustix::io::read(&shared.bell, &mut [0; 8]);
            }
            Reaped::Command(token, outcome) => {
                if let Some(slot) = waiters[token.0 as usize].take() {
                    slot.fill(outcome);
                }
            }
        });
    }
}

/// A command on its way; a future of its completion.
#[derive(Debug)]
#[must_use = "the outcome of a command is all that tells whether it was executed"]
pub struct Pending(Arc<Slot>);

impl Pending {
    /// Waits for the completion on this thread.
    pub fn wait(mut self) -> Result<Completion, PassthroughError> {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut self).poll(&mut context) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = lock(&self.0.0);
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        let waker = context.waker();
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    // A test that cannot go on should say where.
    #![allow(clippy::unwrap_used)]

    use super::super::Data;
    use super::*;

    fn null(depth: u32) -> RingPassthrough {
        RingPassthrough::open(Path::new("/dev/null"), depth).unwrap()
    }

    #[test]
    fn many_threads_send_many_commands() {
        let passthrough = null(256);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for len in 1..200usize {
                        let sent = [len, 2 * len].map(|len| {
                            passthrough.submit(Command { data: Data::In(len), ..Command::new(2, 1) })
                        });
                        for (pending, len) in sent.into_iter().zip([len, 2 * len]) {
                            match pending.wait() {
                                Ok(completion) => assert_eq!(completion.data, vec![0; len]),
                                Err(error) => {
                                    assert!(matches!(error, PassthroughError::Unsupported(_)), "{error}");
                                }
                            }
                        }
                    }
                });
            }
        });
        assert!(lock(&passthrough.shared.queue).waiting.is_empty());
    }

    /// A hundred at once over a ring that has room for one: none is refused, and each is sent after those before it.
    #[test]
    fn what_a_ring_has_no_room_for_waits_in_line() {
        for depth in [1, 2, 7] {
            let passthrough = null(depth);
            let mut sent: Vec<_> = (0..100).map(|_| passthrough.submit(Command::new(0, 1))).collect();
            let last = sent.pop().unwrap().wait();
            assert_ne!(last, Err(PassthroughError::Full));
            let mut context = Context::from_waker(Waker::noop());
            let done = sent.iter_mut().map(|pending| match Pin::new(pending).poll(&mut context) {
                Poll::Ready(outcome) => {
                    assert_eq!(outcome, last);
                    1
                }
                Poll::Pending => 0,
            });
            assert!(done.sum::<u32>() + depth > 99, "the last was sent before others had been");
        }
    }

    #[test]
    fn a_line_is_bounded_and_in_order() {
        let mut queue = Queue::default();
        let slot = Arc::new(Slot::default());
        let command = |number: usize| Command::new(0, number as u32);
        for number in 0..WAITING_MAX {
            assert!(queue.push(command(number), &slot));
        }
        assert!(!queue.push(command(0), &slot), "it is as long as it may be");
        assert!(queue.take(0).is_empty(), "the ring is full");
        let mut number = 0;
        for room in [1, 128, WAITING_MAX] {
            assert!(number == 0 || queue.push(command(WAITING_MAX), &slot), "there is room again");
            let taken = queue.take(room);
            assert_eq!(taken.len(), room.min(WAITING_MAX + 2 - number));
            for (taken, _) in taken {
                assert_eq!(taken.nsid, number.min(WAITING_MAX) as u32);
                number += 1;
            }
        }
        assert!(queue.waiting.is_empty());
    }

    #[test]
    fn futures_outlive_the_handle_and_the_other_way_round() {
        let passthrough = null(64);
        let kept = passthrough.submit(Command::read(1, 0, 1, 512));
        drop(passthrough.submit(Command::read(1, 0, 1, 512)));
        let shared = Arc::downgrade(&passthrough.shared);
        drop(passthrough);
        assert_ne!(kept.wait(), Err(PassthroughError::Full));
        // The thread ends when it has nothing left to do.
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_wrong_command_is_told_by_its_future() {
        let wrong = null(4).submit(Command { data: Data::Out(vec![1]), ..Command::new(2, 1) });
        assert_eq!(wrong.wait(), Err(PassthroughError::Direction { opcode: 2 }));
    }
}
