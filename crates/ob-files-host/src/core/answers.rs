//! Answers come out of the rings and complete operations; when the lanes are over, the last ones do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use ob_ring::{Claimed, ReceiveError};
use ob_wire_link::files::{RESPONSE_LEN, ResponseHeader, SERVER_INFO_LEN};

use super::queues::Note;
use super::{GroupCore, Sink};
use crate::deliver::{Deliver, Finished, Payload};
use crate::error::{Error, Fault};
use crate::lane::{Lane, Life};
use crate::request::{RequestId, Sending, Step};
use crate::table::Held;

/// Most bytes of an answer's inline part that anybody looks at.
const INLINE_MAX: usize = RESPONSE_LEN + SERVER_INFO_LEN;
/// Answers that a thread takes from a lane before it looks at anything else.
const ANSWERS_IN_A_ROW: usize = 1024;

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
}
