//! The inside of a notification group: operations go out through the lanes, answers come back and complete them.
//!
//! ```text
//!   start ──▶ slot ──▶ request ring ──▶ card ──▶ response ring ──▶ pump ──▶ slot ──▶ tag, callback or future
//!     └─ no room ─▶ queue ──── room ───▲                             │
//!                                      └────── serve queues ─────────┘
//! ```
//!
//! Every thread of the application may do all of this at the same time. Locks are taken in this order: the change of
//! lanes, a queue, the lanes, a slot; none is held while code of the application runs. What starts the library's thread holds one alone.

mod sleep;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use ob_ring::{Claimed, ReceiveError};
use ob_wire_link::files::{RESPONSE_LEN, ResponseHeader, SERVER_INFO_LEN, ServerInfo};

use crate::bell::Bell;
use crate::deliver::{Cell, Completion, Deliver, Finished, Outcome, Payload, count_of};
use crate::error::{Error, Fault};
use crate::lane::{Lane, Life};
use crate::options::{Driver, GroupOptions, OUTSTANDING_MAX};
use crate::pace::Pace;
use crate::request::{Operation, RequestId, Sending, Step, Value};
use crate::table::{Held, Table};

pub(crate) use sleep::{BESIDE, Look};

/// Most bytes of an answer's inline part that anybody looks at.
const INLINE_MAX: usize = RESPONSE_LEN + SERVER_INFO_LEN;
/// Answers that a thread takes from a lane before it looks at anything else.
const ANSWERS_IN_A_ROW: usize = 1024;

/// What a group needs of its session.
pub(crate) trait Keeper: Send + Sync {
    /// The group lost its lanes, or an operation waits for a card: look after it.
    fn notice(&self);

    /// How long operations wait for a card to come back.
    fn patience(&self) -> Duration;
}

/// The inside of a notification group.
pub(crate) struct GroupCore {
    pub(crate) options: GroupOptions,
    keeper: Arc<dyn Keeper>,
    table: Table,
    life: RwLock<Option<Arc<Life>>>,
    /// Held while lanes end or begin: nothing that was sent on the old ones is left when there are new ones.
    changing: Mutex<()>,
    /// Threads that take an answer from a ring at this moment, and have not found its operation yet.
    settling: AtomicUsize,
    pace: Mutex<Pace>,
    queues: [Queue; 2],
    ready: Ready,
    bell: Bell,
    strays: AtomicU64,
    /// Held while the thread of the library is started.
    starting: Mutex<()>,
    is_driven: AtomicBool,
    /// The thread of the library that takes the answers.
    driver: OnceLock<ThreadId>,
    /// Nothing begins any more.
    stopped: AtomicBool,
    /// Everything that was out has been completed.
    ended: AtomicBool,
}

/// Operations that wait for room in a lane, oldest first.
#[derive(Default)]
struct Queue {
    notes: Mutex<VecDeque<Note>>,
    count: AtomicUsize,
}

enum Note {
    /// Nothing of it was sent. It may wait so long for a card.
    Start(Box<Operation>, Option<Instant>),
    /// Parts of it were sent.
    GoOn(RequestId),
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn push(&self, note: Note) {
        let mut notes = self.lock();
        notes.push_back(note);
        self.count.store(notes.len(), Ordering::Release);
    }
}

/// Completions that a thread found which was not asked for them.
#[derive(Default)]
struct Ready {
    waiting: Mutex<Waiting>,
    count: AtomicUsize,
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

/// Why lanes are over.
struct LaneOver(Error);

/// What taking answers has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pumped {
    /// Operations that were completed.
    pub(crate) completed: usize,
    /// There may be more answers: whoever wants to sleep must look again first.
    pub(crate) more: bool,
}

/// A thread takes an answer. It waits for nobody as long as it has this.
struct Settling<'a>(&'a AtomicUsize);

impl<'a> Settling<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl GroupCore {
    pub(crate) fn new(options: GroupOptions, keeper: Arc<dyn Keeper>) -> Self {
        Self {
            table: Table::new(options.outstanding),
            options,
            keeper,
            life: RwLock::new(None),
            changing: Mutex::new(()),
            settling: AtomicUsize::new(0),
            pace: Mutex::default(),
            queues: Default::default(),
            ready: Ready::default(),
            bell: Bell::default(),
            strays: AtomicU64::new(0),
            starting: Mutex::new(()),
            is_driven: AtomicBool::new(false),
            driver: OnceLock::new(),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// The lanes as they are now.
    pub(crate) fn current(&self) -> Option<Arc<Life>> {
        self.life.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn server(&self) -> Option<ServerInfo> {
        self.current().map(|life| life.server)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.table.count()
    }

    /// Answers that nobody asked for, so far.
    pub(crate) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// Goes on with these lanes.
    pub(crate) fn install(&self, life: Life) {
        {
            let _changing = self.changing();
            let mut current = self.life.write().unwrap_or_else(PoisonError::into_inner);
            if self.is_stopped() {
                return;
            }
            *current = Some(Arc::new(life));
        }
        self.serve_queues();
        self.bell.ring();
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often new lanes are tried.
    pub(crate) fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the group: its lanes are closed, what is out fails, and its thread ends once it has told everybody.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let life = self.life.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(life);
        self.table.take_all(|operation| self.finish(operation, Err(Error::Closed)));
        self.serve_queues();
        self.ended.store(true, Ordering::SeqCst);
        self.bell.ring();
        if !self.is_driven() {
            self.run_calls();
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Whether nothing comes any more that is not there already.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Runs the callbacks that nobody has run yet, on this thread.
    fn run_calls(&self) {
        // A callback that panics must not take the others with it.
        while std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.take_ready(&mut Keep))).is_err() {
            tracing::error!("a completion callback panicked");
        }
    }

    /// What a group without lanes says.
    fn without_lanes(&self) -> Error {
        if self.is_stopped() { Error::Closed } else { Error::Detached }
    }

    /// Starts an operation, or hands it back.
    #[expect(clippy::result_large_err, reason = "an operation is handed back whole, without an allocation")]
    pub(crate) fn start(&self, operation: Operation) -> Result<(), (Operation, Error)> {
        let lane = operation.lane();
        if !self.has_room_for(&operation) {
            return Err((operation, Error::TooManyOutstanding));
        }
        if !self.queues[lane].is_empty() {
            // Whoever came first goes first, else a stream of small writes could keep a large one out for good.
            let is_open = self.current().is_some_and(|life| !life.is_closed());
            let reason = if is_open { Error::RingFull } else { self.without_lanes() };
            return Err((operation, reason));
        }
        if let Some(id) = self.start_now(operation)? {
            self.queue(lane, Note::GoOn(id));
        }
        Ok(())
    }

    /// Completes an operation that the card is not needed for, or hands it back.
    #[expect(clippy::result_large_err, reason = "an operation is handed back whole, without an allocation")]
    pub(crate) fn complete(&self, operation: Operation, value: Value) -> Result<(), (Operation, Error)> {
        if self.is_stopped() {
            return Err((operation, Error::Closed));
        }
        if !self.has_room_for(&operation) {
            return Err((operation, Error::TooManyOutstanding));
        }
        self.finish(operation, Ok(value));
        Ok(())
    }

    /// Whether the application has taken enough of what is ready to be given more.
    fn has_room_for(&self, operation: &Operation) -> bool {
        // A future's outcome waits in the future itself, so it never depends on who polls the group.
        matches!(operation.deliver, Deliver::Cell(_))
            || self.ready.count.load(Ordering::Acquire) < self.options.outstanding
    }

    /// Starts an operation now, or as soon as there is room.
    pub(crate) fn start_or_wait(&self, operation: Operation) {
        let lane = operation.lane();
        let Err((operation, reason)) = self.start(operation) else { return };
        if self.queues[lane].count.load(Ordering::Acquire) >= OUTSTANDING_MAX {
            return self.finish(operation, Err(Error::TooManyOutstanding));
        }
        match reason {
            Error::RingFull | Error::TooManyOutstanding => {
                self.queue(lane, Note::Start(Box::new(operation), None));
            }
            Error::Detached if !self.keeper.patience().is_zero() => {
                let deadline = Instant::now().checked_add(self.keeper.patience());
                self.queue(lane, Note::Start(Box::new(operation), deadline));
                self.keeper.notice();
            }
            reason => self.finish(operation, Err(reason)),
        }
    }

    /// Puts an operation into a slot and sends it. If the ring had no room for all of it, its id comes back.
    #[expect(clippy::result_large_err, reason = "an operation is handed back whole, without an allocation")]
    fn start_now(&self, operation: Operation) -> Result<Option<RequestId>, (Operation, Error)> {
        let life = self.life.read().unwrap_or_else(PoisonError::into_inner);
        let Some(life) = life.as_ref() else { return Err((operation, self.without_lanes())) };
        let lane = &life.lanes[operation.lane()];
        let mut held =
            self.table.insert(operation).map_err(|operation| (operation, Error::TooManyOutstanding))?;
        let id = held.id();
        let Some(operation) = held.operation() else { return Ok(None) };
        let sending = operation.send(id, lane.limits, |message| lane.group.sender.push(message));
        let is_out = operation.is_out();
        let reason = match sending {
            Sending::Full if is_out => {
                operation.queued = true;
                return Ok(Some(id));
            }
            Sending::Done => return Ok(None),
            // What is out when the ring closes is completed when the lanes are found to be over.
            Sending::Closed | Sending::Failed(_) if is_out => return Ok(None),
            Sending::Closed => Error::Detached,
            Sending::Full => Error::RingFull,
            Sending::Failed(error) => error,
        };
        match held.take() {
            Some(operation) => Err((operation, reason)),
            None => Ok(None),
        }
    }

    fn queue(&self, lane: usize, note: Note) {
        let is_start = matches!(note, Note::Start(..));
        self.queues[lane].push(note);
        // Whoever takes the lanes away serves the queues once more after that. If it has, nobody else may look at what has
        // come since: there may never be lanes again. What was begun is completed by whoever took the lanes.
        if is_start && self.current().is_none() {
            self.serve_queues();
        }
        // Those who sleep must sleep on the request ring's bell too, from now on.
        self.bell.ring();
    }

    /// Sends what waits for room, as far as there is some.
    pub(crate) fn serve_queues(&self) {
        for queue in self.queues.iter().filter(|queue| !queue.is_empty()) {
            let mut failed = Vec::new();
            {
                let mut notes = queue.lock();
                while let Some(note) = notes.pop_front() {
                    if let Some(note) = self.serve(note, &mut failed) {
                        notes.push_front(note);
                        break;
                    }
                }
                queue.count.store(notes.len(), Ordering::Release);
            }
            for (operation, error) in failed {
                self.finish(operation, Err(error));
            }
        }
    }

    /// Serves one note; what is left of it.
    fn serve(&self, note: Note, failed: &mut Vec<(Operation, Error)>) -> Option<Note> {
        match note {
            Note::Start(operation, deadline) => match self.start_now(*operation) {
                Ok(begun) => begun.map(Note::GoOn),
                Err((operation, Error::RingFull | Error::TooManyOutstanding)) => {
                    Some(Note::Start(Box::new(operation), None))
                }
                Err((operation, Error::Detached)) if !self.keeper.patience().is_zero() => {
                    let deadline = deadline.or_else(|| Instant::now().checked_add(self.keeper.patience()));
                    Some(Note::Start(Box::new(operation), deadline))
                }
                Err(refused) => {
                    failed.push(refused);
                    None
                }
            },
            Note::GoOn(id) => {
                let life = self.current()?;
                let mut held = self.table.find(id)?;
                let operation = held.operation()?;
                let lane = &life.lanes[operation.lane()];
                let sending = operation.send(id, lane.limits, |message| lane.group.sender.push(message));
                operation.queued = sending == Sending::Full;
                operation.queued.then_some(note)
            }
        }
    }

    /// Ends operations that have waited for a card for too long; when the next ones will have.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut next = None;
        let patience = self.current().is_none().then(|| now.checked_add(self.keeper.patience())).flatten();
        for queue in self.queues.iter().filter(|queue| !queue.is_empty()) {
            let mut late = Vec::new();
            {
                let mut notes = queue.lock();
                for note in std::mem::take(&mut *notes) {
                    let Note::Start(operation, deadline) = note else {
                        notes.push_back(note);
                        continue;
                    };
                    let deadline = deadline.or(patience);
                    if deadline.is_some_and(|deadline| deadline <= now) {
                        late.push(operation);
                        continue;
                    }
                    next = next.into_iter().chain(deadline).min();
                    notes.push_back(Note::Start(operation, deadline));
                }
                queue.count.store(notes.len(), Ordering::Release);
            }
            for operation in late {
                self.finish(*operation, Err(Error::Detached));
            }
        }
        next
    }

    /// Takes what is in the response rings, completes operations, and uses the room that was made.
    pub(crate) fn pump(&self, sink: &mut impl Sink) -> Pumped {
        let mut pumped = Pumped { completed: self.take_ready(sink), more: false };
        if let Some(life) = self.current() {
            for lane in &life.lanes {
                if let Err(LaneOver(error)) = self.pump_lane(lane, sink, &mut pumped) {
                    self.life_over(&life, &error);
                    pumped.completed += self.take_ready(sink);
                    break;
                }
            }
        }
        self.serve_queues();
        pumped
    }

    fn pump_lane(&self, lane: &Lane, sink: &mut impl Sink, pumped: &mut Pumped) -> Result<(), LaneOver> {
        // So many in a row, so that a busy lane, or a card that makes answers up, does not keep a thread for good.
        for _ in 0..ANSWERS_IN_A_ROW {
            let settling = Settling::begin(&self.settling);
            match lane.group.receiver.receive() {
                Ok(None) => return Ok(()),
                Ok(Some(claimed)) => {
                    let finished = self.settle(lane, &claimed)?;
                    drop(settling);
                    if let Some(finished) = finished {
                        self.hand_answer(finished, claimed, sink);
                        pumped.completed += 1;
                    }
                }
                Err(ReceiveError::Closed) => return Err(LaneOver(Error::CardGone)),
                Err(ReceiveError::Corrupt(_) | ReceiveError::Pointers { .. }) => {
                    return Err(LaneOver(Error::Protocol(Fault::Ring)));
                }
            }
        }
        pumped.more = true;
        Ok(())
    }

    /// Tells of an operation that an answer has completed.
    fn hand_answer(&self, finished: Finished, claimed: Claimed<'_>, sink: &mut impl Sink) {
        match finished {
            Finished { deliver: Deliver::InPlace(call), result: Ok(_), .. } => call(Ok(Payload { claimed })),
            finished => {
                // The space goes back to the card before the application does whatever it does.
                drop(claimed);
                self.deliver(finished, sink);
            }
        }
    }

    /// What one answer means: the operation that it completed, if it did.
    fn settle(&self, lane: &Lane, claimed: &Claimed<'_>) -> Result<Option<Finished>, LaneOver> {
        let mut inline = [0; INLINE_MAX];
        let len = claimed.inline(&mut inline);
        let Some((response, rest)) = ResponseHeader::decode(&inline[..len]) else {
            return Err(LaneOver(Error::Protocol(Fault::Answer)));
        };
        let id = RequestId::from_wire(response.id);
        let Some(mut held) = self.table.find(id) else { return Ok(self.stray()) };
        let Some(operation) = held.operation() else { return Ok(self.stray()) };
        let result = match operation.answer(id.place(), &response, rest, claimed) {
            Step::Waiting => return Ok(None),
            Step::Stray => return Ok(self.stray()),
            Step::Done(result) => result,
            Step::Send => match self.send_on(lane, held) {
                None => return Ok(None),
                Some((again, error)) => {
                    held = again;
                    Err(error)
                }
            },
        };
        Ok(held.take().map(|operation| operation.into_finished(result)))
    }

    /// Sends what an operation has left. If that can never be, the operation comes back with the reason.
    fn send_on<'a>(&self, lane: &Lane, mut held: Held<'a>) -> Option<(Held<'a>, Error)> {
        let id = held.id();
        let operation = held.operation()?;
        match operation.send(id, lane.limits, |message| lane.group.sender.push(message)) {
            Sending::Failed(error) if !operation.is_out() => return Some((held, error)),
            Sending::Full if !operation.queued => {
                operation.queued = true;
                let lane = operation.lane();
                drop(held);
                self.queue(lane, Note::GoOn(id));
            }
            Sending::Done | Sending::Full | Sending::Closed | Sending::Failed(_) => {}
        }
        None
    }

    fn stray(&self) -> Option<Finished> {
        self.strays.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Tells the application, on this thread.
    fn deliver(&self, finished: Finished, sink: &mut impl Sink) {
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

    fn hand_over(&self, finished: Finished) {
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

    fn take_ready(&self, sink: &mut impl Sink) -> usize {
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

    /// These lanes are over: what was answered counts, everything else that was sent on them fails.
    pub(crate) fn life_over(&self, life: &Arc<Life>, error: &Error) {
        let mut finished = Vec::new();
        {
            let _changing = self.changing();
            {
                let mut current = self.life.write().unwrap_or_else(PoisonError::into_inner);
                if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, life)) {
                    return;
                }
                *current = None;
            }
            if *error == Error::CardGone {
                self.take_last_answers(life, &mut finished);
                // What others have just taken out of the rings counts as well: they are about to find its operations.
                while self.settling.load(Ordering::SeqCst) > 0 {
                    std::thread::yield_now();
                }
            }
            self.table.take_all(|operation| finished.push(operation.into_finished(Err(error.clone()))));
            self.pace().failed(life.opened.elapsed());
        }
        for finished in finished {
            self.hand_over(finished);
        }
        // What was not sent yet waits for the next lanes, if it may.
        self.serve_queues();
        self.bell.ring();
        self.keeper.notice();
    }

    /// What the card answered before it died was done.
    fn take_last_answers(&self, life: &Life, into: &mut Vec<Finished>) {
        for lane in &life.lanes {
            while let Ok(Some(claimed)) = lane.group.receiver.receive() {
                match self.settle(lane, &claimed) {
                    // The bytes cannot be kept in the ring until somebody looks at them.
                    Ok(Some(Finished { deliver: deliver @ Deliver::InPlace(_), buffer, .. })) => {
                        into.push(Finished { result: Err(Error::CardGone), buffer, deliver });
                    }
                    Ok(Some(finished)) => into.push(finished),
                    Ok(None) => {}
                    Err(LaneOver(_)) => break,
                }
            }
        }
    }

    /// Ends the operation that leaves its outcome here, whatever the card makes of it.
    pub(crate) fn give_up(&self, cell: &Arc<Cell>, error: &Error) {
        let is_it = |operation: &Operation| match &operation.deliver {
            Deliver::Cell(other) => Arc::ptr_eq(cell, other),
            _ => false,
        };
        let mut found = Vec::new();
        for queue in &self.queues {
            let mut notes = queue.lock();
            for note in std::mem::take(&mut *notes) {
                match note {
                    Note::Start(operation, _) if is_it(&operation) => found.push(*operation),
                    note => notes.push_back(note),
                }
            }
            queue.count.store(notes.len(), Ordering::Release);
        }
        self.table.take_those(is_it, |operation| found.push(operation));
        for operation in found {
            self.finish(operation, Err(error.clone()));
        }
    }

    /// Whether a thread of the library takes the answers.
    fn is_driven(&self) -> bool {
        self.is_driven.load(Ordering::SeqCst)
    }

    /// Whether another thread than this one takes the answers, so that this one may sleep until it has.
    pub(crate) fn is_driven_elsewhere(&self) -> bool {
        self.is_driven() && self.driver.get() != Some(&std::thread::current().id())
    }

    /// Starts the thread that takes the answers, if this group is to have one.
    pub(crate) fn drive(self: &Arc<Self>) -> Result<(), Error> {
        let thread = || std::thread::Builder::new().name("outboard-group".to_owned());
        self.drive_by(|core| thread().spawn(move || core.run()).map(drop))
    }

    fn drive_by(self: &Arc<Self>, start: impl FnOnce(Arc<Self>) -> io::Result<()>) -> Result<(), Error> {
        if self.options.driver == Driver::Caller || self.is_driven() {
            return Ok(());
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_driven() {
            return Ok(());
        }
        start(Arc::clone(self)).map_err(|error| {
            tracing::error!("cannot start the thread of a group: {error}");
            Error::System
        })?;
        // Not before there is a thread: who is told that there is one sleeps until that wakes it.
        self.is_driven.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn run(&self) {
        let _ = self.driver.set(std::thread::current().id());
        while !self.has_ended() {
            let turn = || {
                self.sleep_until(None, || {
                    let pumped = self.pump(&mut Keep);
                    Look::new((pumped.completed > 0 || self.has_ended()).then_some(()), pumped)
                });
            };
            // A callback that panics must not take every future of the group with it.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(turn)).is_err() {
                tracing::error!("a completion callback panicked");
            }
        }
        self.run_calls();
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
