//! Answers come out of the rings and complete operations; when the lanes are over, the last ones do.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use ob_ring::{Claimed, ReceiveError};
use ob_wire_link::files::{CARD_INFO_LEN, RESPONSE_LEN, ResponseHeader};

use super::queues::Note;
use super::{GroupCore, Sink};
use crate::deliver::{Deliver, Finished, Payload};
use crate::error::{Error, Fault};
use crate::lane::{Lane, Life};
use crate::request::{Operation, RequestId, Sending, Step};

/// Most bytes of an answer's inline part that anybody looks at.
const INLINE_MAX: usize = RESPONSE_LEN + CARD_INFO_LEN;
/// Answers that a thread takes from a lane before it looks at anything else.
const ANSWERS_IN_A_ROW: usize = 1024;

/// Why lanes are over.
pub(super) struct LaneOver(pub(super) Error);

/// What taking answers has brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pumped {
    /// Operations that were completed.
    pub(crate) completed: usize,
    /// There may be more answers: whoever wants to sleep must look again first.
    pub(crate) more: bool,
}

/// What an answer has led to.
pub(super) enum Settled {
    /// Its operation is done.
    Done(Finished),
    /// There is no room for what its operation has left to send.
    Full(usize, RequestId),
    /// Nothing that anybody has to hear of.
    Nothing,
}

impl GroupCore {
    /// Takes what is in the response rings, completes operations, and uses the room that was made.
    pub(crate) fn pump(&self, sink: &mut impl Sink) -> Pumped {
        let mut pumped = Pumped { completed: self.take_ready(sink), more: false };
        if let Some(life) = self.with_news() {
            for lane in &life.lanes {
                if let Err(LaneOver(error)) = self.pump_lane(&life, lane, sink, &mut pumped) {
                    self.life_over(&life, &error);
                    pumped.completed += self.take_ready(sink);
                    break;
                }
            }
        }
        self.serve_queues();
        pumped
    }

    /// The lanes, if there is something to take from one of them.
    fn with_news(&self) -> Option<Arc<Life>> {
        let life = self.lanes();
        life.as_ref().filter(|life| life.lanes.iter().any(Lane::has_news)).cloned()
    }

    fn pump_lane(
        &self,
        life: &Arc<Life>,
        lane: &Lane,
        sink: &mut impl Sink,
        pumped: &mut Pumped,
    ) -> Result<(), LaneOver> {
        // So many in a row, so that a busy lane, or a card that makes answers up, does not keep a thread for good.
        for _ in 0..ANSWERS_IN_A_ROW {
            if !lane.has_news() {
                return Ok(());
            }
            if let Some(error @ Error::Protocol(_)) = lane.over() {
                return Err(LaneOver(error));
            }
            // As long as this thread has the lock, nobody ends the lanes: an answer that is out of its ring finds its operation.
            let current = self.lanes();
            if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, life)) {
                return Ok(());
            }
            let claimed = match lane.group.receiver.receive() {
                Ok(None) => return Ok(()),
                Ok(Some(claimed)) => claimed,
                Err(ReceiveError::Closed) => return Err(LaneOver(Error::CardGone)),
                Err(ReceiveError::Corrupt(_) | ReceiveError::Pointers { .. }) => {
                    return Err(LaneOver(Error::Protocol(Fault::Ring)));
                }
            };
            let settled = self.settle(lane, &claimed)?;
            // The same of one that is kept for another thread.
            let is_kept = !sink.has_room()
                && matches!(&settled, Settled::Done(Finished { deliver: Deliver::Tag(_), .. }));
            let current = Some(current).filter(|_| is_kept);
            match settled {
                Settled::Done(finished) => {
                    self.hand_answer(finished, claimed, sink);
                    pumped.completed += 1;
                }
                Settled::Full(lane, id) => self.queue(lane, Note::GoOn(id)),
                Settled::Nothing => {}
            }
            drop(current);
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

    /// What one answer means.
    pub(super) fn settle(&self, lane: &Lane, claimed: &Claimed<'_>) -> Result<Settled, LaneOver> {
        let mut inline = [0; INLINE_MAX];
        let len = claimed.inline(&mut inline);
        check(claimed)?;
        let Some((response, rest)) = ResponseHeader::decode(&inline[..len]) else {
            return Err(LaneOver(Error::Protocol(Fault::Answer)));
        };
        let id = RequestId::from_wire(response.id);
        let Some(mut held) = self.table.find(id) else { return Ok(self.stray()) };
        let whole = held.id();
        let Some(operation) = held.operation() else { return Ok(self.stray()) };
        let step = operation.answer(id.place(), &response, rest, claimed);
        // What was copied into the application's memory is not known to be the answer's before.
        check(claimed)?;
        let result = match step {
            Step::Waiting => return Ok(Settled::Nothing),
            Step::Stray => return Ok(self.stray()),
            Step::Done(result) => result,
            Step::Send => match send_on(lane, whole, operation) {
                Ok(settled) => return Ok(settled),
                Err(error) => Err(error),
            },
        };
        let operation = held.take();
        Ok(operation.map_or(Settled::Nothing, |operation| Settled::Done(operation.into_finished(result))))
    }

    fn stray(&self) -> Settled {
        self.strays.fetch_add(1, Ordering::Relaxed);
        Settled::Nothing
    }

    /// These lanes are over: what was answered counts, everything else that was sent on them fails.
    pub(crate) fn life_over(&self, life: &Arc<Life>, error: &Error) {
        let mut finished = Vec::new();
        {
            let _changing = self.changing();
            {
                // Those who have just taken an answer out of a ring are waited for here.
                let mut current = self.life.write().unwrap_or_else(PoisonError::into_inner);
                if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, life)) {
                    return;
                }
                *current = None;
            }
            if *error == Error::CardGone {
                self.take_last_answers(life, &mut finished);
            }
            self.table.take_all(|operation| finished.push(operation.into_finished(Err(error.clone()))));
            self.pace().failed(life.opened.elapsed());
            // A group that ends meanwhile says that nothing is left, when all of these are there to be taken.
            for finished in finished.extract_if(.., |finished| matches!(finished.deliver, Deliver::Tag(_))) {
                self.hand_over(finished);
            }
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
                    Ok(Settled::Done(Finished {
                        deliver: deliver @ Deliver::InPlace(_), buffer, ..
                    })) => {
                        into.push(Finished { result: Err(Error::CardGone), buffer, deliver });
                    }
                    Ok(Settled::Done(finished)) => into.push(finished),
                    // What is left of it can be sent to nobody.
                    Ok(Settled::Full(..) | Settled::Nothing) => {}
                    Err(LaneOver(_)) => break,
                }
            }
        }
    }
}

/// What was copied out of a ring that is no more is no answer.
fn check(claimed: &Claimed<'_>) -> Result<(), LaneOver> {
    claimed.check().map_err(|_| LaneOver(Error::CardGone))
}

/// Sends what an operation has left, or says why that can never be.
fn send_on(lane: &Lane, id: RequestId, operation: &mut Operation) -> Result<Settled, Error> {
    match operation.send(id, lane.limits, |message| lane.push(message)) {
        Sending::Failed(error) if !operation.is_out() => Err(error),
        Sending::Full if !operation.queued => {
            operation.queued = true;
            Ok(Settled::Full(operation.lane(), id))
        }
        Sending::Done | Sending::Full | Sending::Closed | Sending::Failed(_) => Ok(Settled::Nothing),
    }
}
