//! For programs without an executor of their own.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

enum Place<F: Future> {
    Running(Pin<Box<F>>),
    Done(F::Output),
}

/// Futures that run at once, and whose outcomes are taken in the order in which they began.
///
/// They are polled in [`InOrder::next`] alone; what they have asked a target for goes on meanwhile.
pub struct InOrder<F: Future> {
    places: VecDeque<Place<F>>,
}

impl<F: Future> Default for InOrder<F> {
    fn default() -> Self {
        Self { places: VecDeque::new() }
    }
}

impl<F: Future> InOrder<F> {
    /// Takes another one.
    pub fn begin(&mut self, future: F) {
        self.places.push_back(Place::Running(Box::pin(future)));
    }

    /// How many there are whose outcome was not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The outcome of the one that began first; `None` when there are no more.
    pub async fn next(&mut self) -> Option<F::Output> {
        poll_fn(|context| {
            for place in &mut self.places {
                if let Place::Running(future) = place
                    && let Poll::Ready(output) = future.as_mut().poll(context)
                {
                    *place = Place::Done(output);
                }
            }
            match self.places.pop_front() {
                None => Poll::Ready(None),
                Some(Place::Done(output)) => Poll::Ready(Some(output)),
                Some(running) => {
                    self.places.push_front(running);
                    Poll::Pending
                }
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn all_run_at_once_and_the_order_stays() {
        let log = RefCell::new(Vec::new());
        let counts_down = |name: char, steps: usize| {
            let log = &log;
            let mut left = steps;
            poll_fn(move |context| {
                if left == 0 {
                    log.borrow_mut().push(name);
                    return Poll::Ready(name);
                }
                left -= 1;
                context.waker().wake_by_ref();
                Poll::Pending
            })
        };
        let mut running = InOrder::default();
        for (name, steps) in [('a', 3), ('b', 0), ('c', 1)] {
            running.begin(counts_down(name, steps));
        }
        let taken = block_on(async {
            let mut taken = Vec::new();
            while let Some(name) = running.next().await {
                taken.push((name, running.len()));
            }
            taken
        });
        assert_eq!(taken, [('a', 2), ('b', 1), ('c', 0)]);
        assert_eq!(*log.borrow(), ['b', 'c', 'a'], "the slow one held up nobody");
        assert!(running.is_empty());
    }
}
