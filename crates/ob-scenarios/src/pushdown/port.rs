//! The way from a host's programs to its initiator: commands go out when the host has its turn, and who asked waits for the answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use ob_nvme::initiator::{Answer, Error, Queue, Request};
use ob_pushdown::client::{Command, CommandAnswer, Transport, TransportError};
use ob_wire_nvme::{CommandId, Status};

/// A host's port. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Port {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    out: VecDeque<(u64, Request)>,
    waiting: BTreeSet<u64>,
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
        if let Err(TransportError::Status { status, .. }) = &outcome {
            inner.aborted += u64::from(status.is(Status::ABORT_REQUESTED));
        }
        if inner.waiting.remove(&id) {
            inner.outcomes.insert(id, outcome);
        }
    }

    /// How many were given up since this was asked last.
    pub(super) fn take_aborted(&self) -> u64 {
        std::mem::take(&mut self.lock().aborted)
    }

    /// The host begins anew: nothing that was asked is answered any more.
    pub(super) fn broken(&self) {
        let mut inner = self.lock();
        inner.out.clear();
        for id in std::mem::take(&mut inner.waiting) {
            inner.outcomes.insert(id, Err(TransportError::Broken("the host died".to_owned())));
        }
    }

    /// Sends something, and waits for its answer.
    pub(super) async fn request(&self, request: Request) -> Result<CommandAnswer, TransportError> {
        let id = {
            let mut inner = self.lock();
            inner.next += 1;
            let id = inner.next;
            inner.waiting.insert(id);
            inner.out.push_back((id, request));
            id
        };
        std::future::poll_fn(|_| self.lock().outcomes.remove(&id).map_or(Poll::Pending, Poll::Ready)).await
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
        self.request(request).await
    }

    fn transfer_max(&self) -> usize {
        self.lock().transfer_max
    }

    fn exchange_max(&self) -> Option<usize> {
        self.lock().exchange_max
    }
}
