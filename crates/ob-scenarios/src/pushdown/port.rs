//! The way from a host's programs to its initiator: commands go out when the host has its turn, and who asked waits for the answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use ob_nvme::initiator::{Answer, Error, Queue, Request};
use ob_pushdown::client::{Command, CommandAnswer, Transport, TransportError};
use ob_wire_nvme::{CommandId, Status};

use super::crowd::seam;

/// A host's port. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Port {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    out: VecDeque<(u64, Request)>,
    waiting: BTreeMap<u64, Option<Waker>>,
    /// Commands whose answers nobody waits for any more, and those answers.
    abandoned: BTreeSet<u64>,
    late: VecDeque<(u64, CommandAnswer)>,
    /// How often something came in between: a command without an answer, or given up.
    losses: u64,
    outcomes: BTreeMap<u64, Result<CommandAnswer, TransportError>>,
    transfer_max: usize,
    exchange_max: Option<usize>,
    /// Commands that were answered as given up.
    aborted: u64,
}

impl Port {
    pub(super) fn new(transfer_max: usize, exchange_max: Option<usize>) -> Self {
        let inner = Inner { transfer_max, exchange_max, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes out next.
    pub(super) fn next_out(&self) -> Option<(u64, Request)> {
        self.lock().out.pop_front()
    }

    /// Requests that nobody has answered.
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// An answer has come.
    pub(super) fn answered(&self, id: u64, outcome: Result<Answer, Error>) {
        let outcome = match outcome {
            Ok(answer) => Ok(CommandAnswer { result: answer.result, data: answer.data }),
            Err(Error::Command { status, result }) => Err(TransportError::Status { status, result }),
            Err(error) => Err(TransportError::Broken(error.to_string())),
        };
        let mut inner = self.lock();
        match &outcome {
            Err(TransportError::Status { status, .. }) if status.is(Status::ABORT_REQUESTED) => {
                inner.aborted += 1;
                inner.losses += 1;
            }
            Err(TransportError::Broken(_)) => inner.losses += 1,
            _ => {}
        }
        inner.over(id, outcome);
    }

    /// The last command that was sent.
    pub(super) fn last(&self) -> u64 {
        self.lock().next
    }

    /// How often something came in between.
    pub(super) fn losses(&self) -> u64 {
        self.lock().losses
    }

    /// A keeper is gone, who may not have told what he was about to.
    pub(super) fn lose(&self) {
        self.lock().losses += 1;
    }

    /// An answer that nobody waits for any more.
    pub(super) fn next_late(&self) -> Option<(u64, CommandAnswer)> {
        self.lock().late.pop_front()
    }

    /// How many were given up since this was asked last.
    pub(super) fn take_aborted(&self) -> u64 {
        std::mem::take(&mut self.lock().aborted)
    }

    /// The host begins anew: nothing that was asked is answered any more.
    pub(super) fn broken(&self) {
        let mut inner = self.lock();
        inner.out.clear();
        inner.losses += 1;
        inner.abandoned.clear();
        let waiting: Vec<u64> = inner.waiting.keys().copied().collect();
        for id in waiting {
            inner.over(id, Err(TransportError::Broken("the host died".to_owned())));
        }
    }

    /// Sends something, and waits for its answer.
    pub(super) async fn request(&self, request: Request) -> Result<CommandAnswer, TransportError> {
        let id = {
            let mut inner = self.lock();
            inner.next += 1;
            let id = inner.next;
            inner.waiting.insert(id, None);
            inner.out.push_back((id, request));
            id
        };
        let _waiting = Waiting { port: self, id };
        std::future::poll_fn(|context| {
            let mut inner = self.lock();
            if let Some(outcome) = inner.outcomes.remove(&id) {
                return Poll::Ready(outcome);
            }
            inner.waiting.insert(id, Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

impl Inner {
    fn over(&mut self, id: u64, outcome: Result<CommandAnswer, TransportError>) {
        if self.abandoned.remove(&id) {
            self.late.extend(outcome.ok().map(|answer| (id, answer)));
        } else if let Some(waker) = self.waiting.remove(&id) {
            self.outcomes.insert(id, outcome);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// Somebody waits for an answer, or gives up.
struct Waiting<'port> {
    port: &'port Port,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut inner = self.port.lock();
        if inner.waiting.remove(&self.id).is_some() {
            inner.abandoned.insert(self.id);
        }
        inner.outcomes.remove(&self.id);
    }
}

impl Transport for Port {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        let Command { function, namespace, data } = command;
        let entry = function.encode(CommandId(0), namespace);
        let request = Request {
            queue: Queue::Io,
            entry,
            data: data.into(),
            is_idempotent: true,
            may_be_short: true,
            expects: None,
        };
        seam();
        let answer = self.request(request).await;
        seam();
        answer
    }

    fn transfer_max(&self) -> usize {
        self.lock().transfer_max
    }

    fn exchange_max(&self) -> Option<usize> {
        self.lock().exchange_max
    }
}
