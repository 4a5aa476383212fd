//! What futures and the driver's thread have in common.
//!
//! ```text
//!   Command (future) ── incoming ──▶ driver ──▶ Session
//!        ▲                             │
//!        └──── operations, wakers ◀────┘
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use ob_wire_nvme::NamespaceId;
use rustix::event::{EventfdFlags, eventfd};

use super::error::Error;
use super::session::{Answer, Event, Facts, Queue, Request, RequestId};
use super::unflushed::{Unflushed, changed_by};

/// Admin commands that users have under way together.
const ADMIN_LIMIT: usize = 16;
/// Events that nobody took.
const EVENTS_MAX: usize = 64;

/// Where the initiator is.
#[derive(Clone, Debug)]
pub(super) enum State {
    Starting,
    /// There was an association; there may be none at the moment.
    Started(Facts),
    Over(Error),
}

/// Those who wait for something that concerns all of them.
#[derive(Default)]
struct Wakers(Vec<Waker>);

impl Wakers {
    fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    fn take(&mut self, into: &mut Vec<Waker>) {
        into.append(&mut self.0);
    }
}

/// Bounds the commands of a kind. Who finds no room waits in line.
#[derive(Default)]
struct Gate {
    limit: usize,
    taken: usize,
    line: BTreeMap<u64, Waker>,
}

impl Gate {
    fn may_enter(&self, ticket: Option<u64>) -> bool {
        let is_first = match ticket {
            None => self.line.is_empty(),
            Some(ticket) => self.line.first_key_value().is_none_or(|(first, _)| *first >= ticket),
        };
        is_first && self.taken < self.limit
    }

    /// Who is to look again, if there is room.
    fn next(&self) -> Option<Waker> {
        (self.taken < self.limit)
            .then(|| self.line.first_key_value().map(|(_, waker)| waker.clone()))
            .flatten()
    }
}

/// A command that was sent.
struct Operation {
    queue: Queue,
    /// What it changes and does not make durable.
    changes: Option<NamespaceId>,
    progress: Progress,
}

enum Progress {
    Running(Waker),
    /// Its future was dropped.
    Abandoned,
    Done(Result<Answer, Error>),
}

struct Inner {
    state: State,
    state_wakers: Wakers,
    incoming: VecDeque<(RequestId, Request)>,
    operations: HashMap<RequestId, Operation>,
    gates: [Gate; 2],
    next_id: u64,
    events: VecDeque<Event>,
    event_wakers: Wakers,
    unflushed: Unflushed,
    is_closing: bool,
    /// The driver sleeps, or is about to: whoever brings something rings.
    is_asleep: bool,
}

/// The state that all handles of an initiator share.
pub(super) struct Shared {
    inner: Mutex<Inner>,
    bell: OwnedFd,
}

fn gate(queue: Queue) -> usize {
    match queue {
        Queue::Admin => 0,
        Queue::Io => 1,
    }
}

impl Shared {
    pub(super) fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inner = Inner {
            state: State::Starting,
            state_wakers: Wakers::default(),
            incoming: VecDeque::new(),
            operations: HashMap::new(),
            gates: [Gate { limit: ADMIN_LIMIT, ..Gate::default() }, Gate::default()],
            next_id: 0,
            events: VecDeque::new(),
            event_wakers: Wakers::default(),
            unflushed: Unflushed::default(),
            is_closing: false,
            is_asleep: false,
        };
        Ok(Self { inner: Mutex::new(inner), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nobody panics with the lock held; if somebody did, the state would still be whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, mut inner: MutexGuard<'_, Inner>) {
        let is_asleep = std::mem::take(&mut inner.is_asleep);
        drop(inner);
        if is_asleep {
            // A bell that is full already has rung.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Waits for the association, or for the reason why there is none.
    pub(super) fn poll_started(&self, context: &Context<'_>) -> Poll<Result<Facts, Error>> {
        let mut inner = self.lock();
        match &inner.state {
            State::Starting => {
                inner.state_wakers.add(context.waker());
                Poll::Pending
            }
            State::Started(facts) => Poll::Ready(Ok(facts.clone())),
            State::Over(error) => Poll::Ready(Err(error.clone())),
        }
    }

    /// Waits for the end.
    pub(super) fn poll_over(&self, context: &Context<'_>) -> Poll<Error> {
        let mut inner = self.lock();
        if let State::Over(error) = &inner.state {
            return Poll::Ready(error.clone());
        }
        inner.state_wakers.add(context.waker());
        Poll::Pending
    }

    /// Waits for the next event; there is none after the end.
    pub(super) fn poll_event(&self, context: &Context<'_>) -> Poll<Option<Event>> {
        let mut inner = self.lock();
        if let Some(event) = inner.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if let State::Over(_) = inner.state {
            return Poll::Ready(None);
        }
        inner.event_wakers.add(context.waker());
        Poll::Pending
    }

    pub(super) fn facts(&self) -> Option<Facts> {
        match &self.lock().state {
            State::Started(facts) => Some(facts.clone()),
            State::Starting | State::Over(_) => None,
        }
    }

    /// The newest change that a flush which begins now is to make durable.
    pub(super) fn flush_begins(&self) -> u64 {
        self.lock().unflushed.flush_begins()
    }

    /// A flush that began then is done: how many losses of changes are known now.
    pub(super) fn flushed(&self, namespace: NamespaceId, begun: u64, association: u64) -> u64 {
        self.lock().unflushed.flushed(namespace, begun, association)
    }

    /// How many losses of changes are known.
    pub(super) fn losses(&self, namespace: NamespaceId) -> u64 {
        self.lock().unflushed.losses(namespace)
    }

    /// Asks for a clean end.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closing = true;
        self.ring(inner);
    }

    // What follows is the driver's.

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes what came in; whether the end was asked for.
    pub(super) fn take_incoming(&self, into: &mut VecDeque<(RequestId, Request)>) -> bool {
        let mut inner = self.lock();
        inner.is_asleep = false;
        into.append(&mut inner.incoming);
        inner.is_closing
    }

    /// Whether the driver may sleep: from now on whoever brings something rings.
    pub(super) fn fall_asleep(&self, knows_of_closing: bool) -> bool {
        let mut inner = self.lock();
        inner.is_asleep = inner.incoming.is_empty() && inner.is_closing == knows_of_closing;
        inner.is_asleep
    }

    /// Tells the outcomes to those who wait.
    pub(super) fn finish(&self, outcomes: impl IntoIterator<Item = (RequestId, Result<Answer, Error>)>) {
        let mut wakers = Vec::new();
        let mut inner = self.lock();
        for (id, outcome) in outcomes {
            let Some(operation) = inner.operations.get_mut(&id) else { continue };
            let queue = operation.queue;
            // Here and not by whoever waits: what was sent is executed, also if nobody waits any more.
            let change = operation.changes.zip(outcome.as_ref().ok().map(|answer| answer.association));
            match &operation.progress {
                Progress::Running(waker) => {
                    wakers.push(waker.clone());
                    operation.progress = Progress::Done(outcome);
                }
                Progress::Abandoned => {
                    inner.operations.remove(&id);
                }
                // The first outcome is the true one.
                Progress::Done(_) => continue,
            }
            let gate = &mut inner.gates[gate(queue)];
            gate.taken = gate.taken.saturating_sub(1);
            if let Some((namespace, association)) = change {
                inner.unflushed.changed(namespace, association);
            }
        }
        // The first in line is told, and tells the next when it has entered.
        wakers.extend(inner.gates.iter().filter_map(Gate::next));
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn tell(&self, event: Event) {
        let mut wakers = Vec::new();
        let mut inner = self.lock();
        if inner.events.len() < EVENTS_MAX {
            inner.events.push_back(event);
        } else if let Some(last) = inner.events.back_mut() {
            *last = Event::Missed;
        }
        inner.event_wakers.take(&mut wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The driver is gone: what it still owes fails.
    pub(super) fn abandon(&self) {
        let owed: Vec<RequestId> = self.lock().operations.keys().copied().collect();
        self.finish(owed.into_iter().map(|id| (id, Err(Error::Closed))));
        if !matches!(self.lock().state, State::Over(_)) {
            self.set_state(State::Over(Error::Closed));
        }
    }

    /// The association is there, or never will be.
    pub(super) fn set_state(&self, state: State) {
        let mut wakers = Vec::new();
        let mut inner = self.lock();
        if let State::Started(facts) = &state {
            // Without I/O queues a command gets as far as the session, which says so.
            let slots = usize::from(facts.queues) * usize::from(facts.depth);
            inner.gates[gate(Queue::Io)].limit = slots.max(1);
        }
        if let State::Over(_) = &state {
            inner.event_wakers.take(&mut wakers);
            for gate in &mut inner.gates {
                wakers.extend(std::mem::take(&mut gate.line).into_values());
            }
        }
        for gate in &inner.gates {
            wakers.extend(gate.next());
        }
        inner.state = state;
        inner.state_wakers.take(&mut wakers);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }
}

enum CommandState {
    /// Not sent: there was no room, or nobody has asked yet.
    Waiting {
        request: Box<Request>,
        ticket: Option<u64>,
    },
    Sent(RequestId),
    Over,
}

/// One command on its way. Dropped, it is executed all the same, once it was sent.
pub(super) struct Command {
    shared: Arc<Shared>,
    state: CommandState,
}

impl Command {
    pub(super) fn new(shared: &Arc<Shared>, request: Request) -> Self {
        let state = CommandState::Waiting { request: Box::new(request), ticket: None };
        Self { shared: Arc::clone(shared), state }
    }

    fn enter(&mut self, context: &Context<'_>) -> Poll<Result<Answer, Error>> {
        let CommandState::Waiting { request, ticket } = &mut self.state else { return Poll::Pending };
        let mut inner = self.shared.lock();
        if let State::Over(error) = &inner.state {
            let error = error.clone();
            drop(inner);
            self.state = CommandState::Over;
            return Poll::Ready(Err(error));
        }
        let id = inner.next_id;
        inner.next_id += 1;
        let queue = request.queue;
        let changes = if queue == Queue::Io { changed_by(&request.entry) } else { None };
        let gate = &mut inner.gates[gate(queue)];
        if !gate.may_enter(*ticket) {
            // Numbers rise, so the line is in the order of arrival.
            let ticket = *ticket.get_or_insert(id);
            gate.line.insert(ticket, context.waker().clone());
            return Poll::Pending;
        }
        if let Some(ticket) = ticket {
            gate.line.remove(ticket);
        }
        gate.taken += 1;
        let next = gate.next();
        let id = RequestId(id);
        let before = std::mem::replace(&mut self.state, CommandState::Sent(id));
        if let CommandState::Waiting { request, .. } = before {
            inner.incoming.push_back((id, *request));
        }
        let progress = Progress::Running(context.waker().clone());
        inner.operations.insert(id, Operation { queue, changes, progress });
        self.shared.ring(inner);
        if let Some(next) = next {
            next.wake();
        }
        Poll::Pending
    }
}

impl Future for Command {
    type Output = Result<Answer, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = match &self.state {
            CommandState::Waiting { .. } => return self.enter(context),
            CommandState::Sent(id) => *id,
            // Polled after its end, which nobody should do: it says what is true.
            CommandState::Over => return Poll::Ready(Err(Error::Closed)),
        };
        let mut inner = self.shared.lock();
        if let Some(Operation { progress: Progress::Running(waker), .. }) = inner.operations.get_mut(&id) {
            waker.clone_from(context.waker());
            return Poll::Pending;
        }
        let operation = inner.operations.remove(&id);
        drop(inner);
        self.state = CommandState::Over;
        Poll::Ready(match operation {
            Some(Operation { progress: Progress::Done(outcome), .. }) => outcome,
            _ => Err(Error::Closed),
        })
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        match &self.state {
            CommandState::Waiting { request, ticket: Some(ticket) } => {
                let gate = &mut inner.gates[gate(request.queue)];
                gate.line.remove(ticket);
                // The room may have been meant for the one that goes away.
                let next = gate.next();
                drop(inner);
                if let Some(next) = next {
                    next.wake();
                }
            }
            CommandState::Sent(id) => {
                let Some(operation) = inner.operations.get_mut(id) else { return };
                let before = std::mem::replace(&mut operation.progress, Progress::Abandoned);
                if let Progress::Done(_) = before {
                    inner.operations.remove(id);
                }
                // What belongs to somebody else is dropped where nothing is locked.
                drop(inner);
                drop(before);
            }
            CommandState::Waiting { ticket: None, .. } | CommandState::Over => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use ob_wire_nvme::{CommandId, ControllerId, NamespaceId, SubmissionEntry};

    use super::*;
    use crate::initiator::connection::Data;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn facts(depth: u16) -> Facts {
        Facts {
            controller: ControllerId(1),
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
            subsystem: String::new(),
            queues: 1,
            depth,
            transfer_max: 4096,
            capsule_data_max: 0,
            commands: 0,
            async_events: 0,
            write_zeroes_max: 0,
            deallocate_ranges_max: 1,
            deallocate_blocks_max: 1,
        }
    }

    fn flush(shared: &Arc<Shared>) -> (Command, Arc<Count>) {
        let request = Request {
            queue: Queue::Io,
            entry: SubmissionEntry::new(0, CommandId(0), NamespaceId(1)),
            data: Data::None,
            is_idempotent: true,
            may_be_short: false,
            expects: None,
        };
        (Command::new(shared, request), Arc::new(Count::default()))
    }

    fn poll(command: &mut Command, count: &Arc<Count>) -> Poll<Result<Answer, Error>> {
        let waker = Waker::from(Arc::clone(count));
        Pin::new(command).poll(&mut Context::from_waker(&waker))
    }

    fn sent(shared: &Shared) -> Vec<RequestId> {
        let mut incoming = VecDeque::new();
        shared.take_incoming(&mut incoming);
        incoming.into_iter().map(|(id, _)| id).collect()
    }

    fn answer() -> Result<Answer, Error> {
        Ok(Answer { association: 1, result: 1, data: Vec::new() })
    }

    fn woken(count: &Arc<Count>) -> usize {
        count.0.swap(0, Ordering::SeqCst)
    }

    #[test]
    fn room_goes_to_the_first_in_line_and_on_to_the_next_when_that_one_goes_away() {
        let shared = Arc::new(Shared::new().unwrap());
        shared.set_state(State::Started(facts(1)));
        let mut line: Vec<_> = (0..4).map(|_| flush(&shared)).collect();
        for (command, count) in &mut line {
            assert!(poll(command, count).is_pending());
        }
        let [first] = sent(&shared)[..] else { panic!("one slot") };
        shared.finish([(first, answer())]);
        assert_eq!(line.iter().map(|(_, count)| woken(count)).collect::<Vec<_>>(), [1, 1, 0, 0]);
        // The second was told that there is room, and goes away without a look.
        drop(line.remove(1));
        assert_eq!(line.iter().map(|(_, count)| woken(count)).collect::<Vec<_>>(), [0, 1, 0]);
        let [(one, one_count), (three, three_count), (four, four_count)] = &mut line[..] else { panic!() };
        // Nobody overtakes.
        let (mut late, late_count) = flush(&shared);
        assert!(poll(&mut late, &late_count).is_pending() && poll(four, four_count).is_pending());
        assert!(sent(&shared).is_empty());
        assert!(poll(three, three_count).is_pending());
        let [third] = sent(&shared)[..] else { panic!("one slot") };
        assert_eq!(poll(one, one_count), Poll::Ready(answer()));
        // A command that was sent keeps its slot, though nobody waits for it any more.
        line.remove(1);
        assert_eq!(line.iter().map(|(_, count)| woken(count)).sum::<usize>(), 0);
        shared.finish([(third, answer())]);
        assert_eq!(woken(&line[1].1), 1);
        assert!(shared.lock().operations.is_empty(), "nothing is left of what was dropped");
    }

    #[test]
    fn a_larger_limit_lets_the_line_in_and_the_end_tells_everybody() {
        let shared = Arc::new(Shared::new().unwrap());
        shared.set_state(State::Started(facts(1)));
        let mut line: Vec<_> = (0..4).map(|_| flush(&shared)).collect();
        for (command, count) in &mut line {
            assert!(poll(command, count).is_pending());
        }
        shared.set_state(State::Started(facts(3)));
        // Each that enters tells the next.
        for (command, count) in &mut line[1..3] {
            assert_eq!(woken(count), 1);
            assert!(poll(command, count).is_pending());
        }
        assert_eq!((sent(&shared).len(), woken(&line[3].1)), (3, 0));
        shared.abandon();
        for (command, count) in &mut line {
            assert!(woken(count) > 0);
            assert_eq!(poll(command, count), Poll::Ready(Err(Error::Closed)));
        }
    }
}
