//! Operations begin: at once, or when there is room for them, those that came first before the others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::GroupCore;
use crate::deliver::{Cell, Deliver};
use crate::error::Error;
use crate::options::OUTSTANDING_MAX;
use crate::request::{Operation, RequestId, Sending, Value};

/// Operations that wait for room in a lane, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    notes: Mutex<VecDeque<Note>>,
    count: AtomicUsize,
}

pub(super) enum Note {
    /// Nothing of it was sent. It may wait so long for a card.
    Start(Box<Operation>, Option<Instant>),
    /// Parts of it were sent.
    GoOn(RequestId),
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Note>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn push(&self, note: Note) {
        let mut notes = self.lock();
        notes.push_back(note);
        self.count.store(notes.len(), Ordering::Release);
    }
}

impl GroupCore {
    /// Starts an operation, or hands it back.
    #[expect(clippy::result_large_err, reason = "an operation is handed back whole, without an allocation")]
    pub(crate) fn start(&self, operation: Operation) -> Result<(), (Operation, Error)> {
        let lane = operation.lane();
        if !self.has_room_for(&operation) {
            return Err((operation, Error::TooManyOutstanding));
        }
        if !self.queues[lane].is_empty() {
            // Whoever came first goes first, else a stream of small writes could keep a large one out for good.
            let is_open = self.current().is_some_and(|life| life.over().is_none());
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
        let life = self.lanes();
        let Some(life) = life.as_ref() else { return Err((operation, self.without_lanes())) };
        let lane = &life.lanes[operation.lane()];
        let mut held =
            self.table.insert(operation).map_err(|operation| (operation, Error::TooManyOutstanding))?;
        let id = held.id();
        let Some(operation) = held.operation() else { return Ok(None) };
        let sending = operation.send(id, lane.limits, |message| lane.push(message));
        let is_out = operation.is_out();
        if sending == Sending::Closed {
            // Nobody may be looking at the lanes.
            self.keeper.notice();
        }
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

    pub(super) fn queue(&self, lane: usize, note: Note) {
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
                let sending = operation.send(id, lane.limits, |message| lane.push(message));
                if sending == Sending::Closed {
                    self.keeper.notice();
                }
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
}
