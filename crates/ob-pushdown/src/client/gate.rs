//! One at a time, without an executor's help.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use super::file::lock;

/// What one request does at a time, and the others wait for.
#[derive(Default)]
pub(super) struct Gate {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_taken: bool,
    waiting: Vec<Waker>,
}

/// Whoever has this is the one.
pub(super) struct Passage<'gate> {
    gate: &'gate Gate,
}

impl Gate {
    /// Waits until nobody else is within.
    pub(super) async fn enter(&self) -> Passage<'_> {
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if state.is_taken {
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            state.is_taken = true;
            Poll::Ready(())
        })
        .await;
        Passage { gate: self }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.gate.state);
        state.is_taken = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        // All of them: who is gone does not come, and the others look whether it is their turn.
        waiting.into_iter().for_each(Waker::wake);
    }
}
