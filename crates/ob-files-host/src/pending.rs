//! An operation that is out, for whoever waits for it alone: a task, or a thread.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::core::{Keep, Look, WaitFor};
use crate::deliver::{Cell, Outcome};
use crate::group::Group;

/// An operation that is out. Await it, [`wait`](Pending::wait) for it, or drop it: it was started already and goes on
/// either way, with its buffer.
#[must_use = "what it brings is not known before it is awaited or waited for"]
pub struct Pending<T> {
    cell: Arc<Cell>,
    group: Group,
    convert: fn(&Group, Outcome) -> T,
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pending").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T> Pending<T> {
    pub(crate) fn new(cell: Arc<Cell>, group: Group, convert: fn(&Group, Outcome) -> T) -> Self {
        Self { cell, group, convert }
    }

    /// Whether it is done, as far as anybody has looked.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.cell.is_done()
    }

    /// What it brought, if it is done: looks, and never waits.
    pub fn try_wait(self) -> Result<T, Self> {
        self.group.core().pump(&mut Keep);
        match self.cell.take() {
            Some(outcome) => Ok((self.convert)(&self.group, outcome)),
            None => Err(self),
        }
    }

    /// Waits, asleep, until it is done. Takes completions of other operations along; in a group without a thread of its
    /// own ([`crate::Driver::Caller`]), and inside of a callback, callbacks of others run in here too.
    pub fn wait(self) -> T {
        let mut this = self;
        loop {
            match this.wait_until(None) {
                Ok(value) => return value,
                Err(again) => this = again,
            }
        }
    }

    /// As [`Pending::wait`], but not longer than `within`; then this is handed back, and still out.
    pub fn wait_for(self, within: Duration) -> Result<T, Self> {
        self.wait_until(Instant::now().checked_add(within))
    }

    fn wait_until(self, deadline: Option<Instant>) -> Result<T, Self> {
        let core = self.group.core();
        let outcome = if core.is_driven_elsewhere() {
            park(&self.cell, deadline)
        } else {
            core.sleep_until(deadline, || {
                if let Some(outcome) = self.cell.take_or_ring() {
                    return Look::Found(outcome);
                }
                let pumped = core.pump(&mut WaitFor(&self.cell));
                Look::new(self.cell.take(), pumped)
            })
        };
        match outcome {
            Some(outcome) => Ok((self.convert)(&self.group, outcome)),
            None => Err(self),
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        let core = this.group.core();
        if let Err(error) = core.drive() {
            // Nobody would ever wake this task.
            core.pump(&mut Keep);
            core.give_up(&this.cell, &error);
        }
        match this.cell.take_or_wake(context.waker()) {
            Some(outcome) => Poll::Ready((this.convert)(&this.group, outcome)),
            None => Poll::Pending,
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Parks this thread until the cell is filled by the group's own thread.
fn park(cell: &Cell, deadline: Option<Instant>) -> Option<Outcome> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Some(outcome) = cell.take_or_wake(&waker) {
            return Some(outcome);
        }
        match deadline {
            None => std::thread::park(),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                std::thread::park_timeout(left);
            }
        }
    }
}
