//! Completions that are due: told at once to whoever takes them, or kept for a thread that asks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::GroupCore;
use crate::deliver::{Cell, Completion, Deliver, Finished, Outcome, count_of};
use crate::error::Error;
use crate::request::{Operation, Value};

/// Completions that a thread found which was not asked for them.
#[derive(Default)]
pub(super) struct Ready {
    waiting: Mutex<Waiting>,
    pub(super) count: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    completions: VecDeque<Completion>,
    calls: VecDeque<Finished>,
}

impl Ready {
    fn change<R>(&self, change: impl FnOnce(&mut Waiting) -> R) -> R {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut waiting);
        self.count.store(waiting.completions.len() + waiting.calls.len(), Ordering::Release);
        result
    }
}

/// What a thread that takes answers does with completions by tag.
pub(crate) trait Sink {
    /// Whether it takes another one.
    fn has_room(&self) -> bool;

    fn take(&mut self, core: &GroupCore, completion: Completion);

    /// Whether whoever has this sink waits for what goes into this cell, and sees it without being woken.
    fn waits_for(&self, cell: &Arc<Cell>) -> bool {
        let _ = cell;
        false
    }
}

/// Gives so many of them to the application, and keeps the others.
pub(crate) struct Give<F> {
    pub(crate) room: usize,
    pub(crate) to: F,
}

impl<F: FnMut(Completion)> Sink for Give<F> {
    fn has_room(&self) -> bool {
        self.room > 0
    }

    fn take(&mut self, core: &GroupCore, completion: Completion) {
        match self.room.checked_sub(1) {
            Some(room) => {
                self.room = room;
                (self.to)(completion);
            }
            None => Keep.take(core, completion),
        }
    }
}

/// Keeps them for a thread that asks.
pub(crate) struct Keep;

impl Sink for Keep {
    fn has_room(&self) -> bool {
        false
    }

    fn take(&mut self, core: &GroupCore, completion: Completion) {
        core.ready.change(|waiting| waiting.completions.push_back(completion));
        core.bell.ring();
    }
}

/// Keeps all of them, for a thread that waits for one cell.
pub(crate) struct WaitFor<'a>(pub(crate) &'a Arc<Cell>);

impl Sink for WaitFor<'_> {
    fn has_room(&self) -> bool {
        Keep.has_room()
    }

    fn take(&mut self, core: &GroupCore, completion: Completion) {
        Keep.take(core, completion);
    }

    fn waits_for(&self, cell: &Arc<Cell>) -> bool {
        Arc::ptr_eq(self.0, cell)
    }
}

impl GroupCore {
    /// Tells the application, on this thread.
    pub(super) fn deliver(&self, finished: Finished, sink: &mut impl Sink) {
        let Finished { result, buffer, deliver } = finished;
        match deliver {
            Deliver::Tag(tag) => sink.take(self, Completion { tag, result: count_of(result), buffer }),
            Deliver::Callback(call) => call(count_of(result), buffer),
            Deliver::InPlace(call) => call(Err(result.err().unwrap_or(Error::CardGone))),
            Deliver::Cell(cell) => {
                // A waiter that has just completed its own operation would only ring for itself.
                if cell.complete(Outcome { result, buffer }) && !sink.waits_for(&cell) {
                    self.bell.ring();
                }
            }
        }
    }

    /// Completes an operation without running the application's code on this thread.
    pub(crate) fn finish(&self, operation: Operation, result: Result<Value, Error>) {
        self.hand_over(operation.into_finished(result));
    }

    pub(super) fn hand_over(&self, finished: Finished) {
        match finished.deliver {
            Deliver::Tag(_) | Deliver::Cell(_) => self.deliver(finished, &mut Keep),
            Deliver::Callback(_) | Deliver::InPlace(_) => {
                self.ready.change(|waiting| waiting.calls.push_back(finished));
                self.bell.ring();
                // The group's thread may have looked for the last time.
                if self.has_ended() {
                    self.run_calls();
                }
            }
        }
    }

    pub(super) fn take_ready(&self, sink: &mut impl Sink) -> usize {
        if self.ready.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut taken = 0;
        while let Some(finished) = self.ready.change(|waiting| waiting.calls.pop_front()) {
            self.deliver(finished, sink);
            taken += 1;
        }
        taken + self.take_completions(sink)
    }

    fn take_completions(&self, sink: &mut impl Sink) -> usize {
        let mut taken = 0;
        while sink.has_room()
            && let Some(completion) = self.ready.change(|waiting| waiting.completions.pop_front())
        {
            sink.take(self, completion);
            taken += 1;
        }
        taken
    }

    /// Runs the callbacks that nobody has run yet, on this thread.
    pub(super) fn run_calls(&self) {
        // A callback that panics must not take the others with it.
        while std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.take_ready(&mut Keep))).is_err() {
            tracing::error!("a completion callback panicked");
        }
    }
}
