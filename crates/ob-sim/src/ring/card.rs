//! The card's half: echoes each request, holds some for a while, answers out of order where it may.

use std::collections::VecDeque;
use std::time::Duration;

use ob_core::{Clock, Dma, DmaCompletion, Doorbell, Instant, Token};
use ob_ring::{Armed, CardReceiver, CardSender, Message, Received, Reservation, ReserveError, RingError};
use ob_wire_link::ring::{RingSpec, Shape};

use super::content::{Content, Name, RESPONSE_LEN, Response};
use super::ledger::{Ledger, Violation};
use crate::{Failure, PerMillion, Rng, SimClock, SimDma};

const REQUEST: Token = Token(0);
const RESPONSE: Token = Token(4);

/// How the card behaves in one life of a group.
#[derive(Clone, Debug)]
pub(super) struct CardPlan {
    /// How often a turn looks at a ring anew though no doorbell rang.
    pub(super) looks_anew: PerMillion,
    /// The longest that a message or a reservation is held.
    pub(super) held_max: Duration,
    /// How often a turn leaves completions for the next.
    pub(super) leaves_completions: PerMillion,
    /// Looks at an empty request ring before the card gets ready to sleep.
    pub(super) looks_max: u32,
}

/// The card's end of one life of a group.
pub(super) struct Card {
    pub(super) dma: SimDma,
    receiver: CardReceiver,
    sender: CardSender,
    plan: CardPlan,
    clock: SimClock,
    rng: Rng,
    message_max: u32,
    /// Looks at the request ring since it last had something.
    looks: u32,
    /// Received, no place for their response yet.
    waiting: VecDeque<(Name, Message)>,
    /// Answered, memory not given back yet.
    held: Vec<(Instant, Message)>,
    /// Reserved, not committed yet.
    open: Vec<(Instant, Reservation, Name, u32)>,
    /// When the run was last told to wake it, if that is still to come.
    pub(super) wake_at: Option<Instant>,
}

/// Why a turn failed.
pub(super) enum Trouble {
    /// The ring gave itself up.
    Ring(RingError),
    /// The checker found something.
    Violation(Violation),
    /// A message without a name, or no room for one that must fit.
    Odd(String),
}

impl From<RingError> for Trouble {
    fn from(error: RingError) -> Self {
        Self::Ring(error)
    }
}

impl From<Violation> for Trouble {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Ring(error) => Self::new(format!("the card gave a ring up: {error}")),
            Trouble::Violation(violation) => Self::new(violation.to_string()),
            Trouble::Odd(what) => Self::new(what),
        }
    }
}

/// What the card wants after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another turn soon.
    Soon,
    /// A turn when something that has a time is due.
    At(Instant),
    /// Nothing but a doorbell.
    Doorbell,
}

impl Card {
    pub(super) fn new(
        dma: SimDma,
        (request, response): (RingSpec, RingSpec),
        plan: CardPlan,
        rng: Rng,
        clock: SimClock,
    ) -> Self {
        Self {
            dma,
            receiver: CardReceiver::new(request, REQUEST),
            sender: CardSender::new(response, RESPONSE),
            plan,
            clock,
            rng,
            message_max: request.message_max().min(response.message_max()),
            looks: 0,
            waiting: VecDeque::new(),
            held: Vec::new(),
            open: Vec::new(),
            wake_at: None,
        }
    }

    /// Runs one turn of the card's reactor.
    pub(super) fn turn(&mut self, doorbell: bool, ledger: &mut Ledger) -> Result<Next, Trouble> {
        if doorbell || self.rng.chance(self.plan.looks_anew) {
            self.receiver.wake();
            self.sender.wake();
            self.looks = 0;
        }
        let mut jobs = [0, 1, 2, 3, 4, 5];
        self.rng.shuffle(&mut jobs);
        let mut busy = false;
        for job in jobs {
            match job {
                0 => busy |= self.take_completions(ledger)?,
                1 => busy |= self.answer()?,
                2 => busy |= self.commit_due(ledger),
                3 => busy |= self.release_due(),
                4 => self.look()?,
                _ => drop(self.sender.step(&mut self.dma)?),
            }
            self.ring_bells()?;
        }
        if busy { Ok(Next::Soon) } else { self.rest() }
    }

    /// Looks at the request ring; after some looks in vain, gets ready to sleep instead.
    fn look(&mut self) -> Result<(), RingError> {
        if self.looks < self.plan.looks_max {
            if self.receiver.step(&mut self.dma)? {
                self.looks += 1;
            } else if self.dma.is_idle() {
                // It has no use for another look: it is stalled, or ready to sleep already.
                self.looks = self.plan.looks_max;
            }
            return Ok(());
        }
        let armed = self.receiver.arm(&mut self.dma)?;
        // Not ready and nothing under way: there is something to fetch after all.
        if armed == Armed::NotYet && self.dma.is_idle() {
            self.looks = 0;
        }
        Ok(())
    }

    /// Nothing moved: wait for what has a time, or sleep if both ends are ready for it.
    fn rest(&mut self) -> Result<Next, Trouble> {
        let held = self.held.iter().map(|held| held.0);
        let service_due = held.chain(self.open.iter().map(|open| open.0)).min();
        if self.dma.is_idle() {
            // A refused reservation says that space is wanted, and that must be said before the card sleeps.
            let answered = self.answer()?;
            let armed = self.looks == self.plan.looks_max
                && self.receiver.arm(&mut self.dma)? == Armed::Yes
                && self.sender.arm() == Armed::Yes;
            if answered || !armed {
                return Ok(self.dma.next_due().map_or(Next::Soon, Next::At));
            }
        }
        let due = [service_due, self.dma.next_due()].into_iter().flatten().min();
        Ok(due.map_or(Next::Doorbell, Next::At))
    }

    fn take_completions(&mut self, ledger: &mut Ledger) -> Result<bool, Trouble> {
        let mut any = false;
        while let Some(completion) = self.dma.poll() {
            any = true;
            self.complete(completion, ledger)?;
            self.ring_bells()?;
            if self.rng.chance(self.plan.leaves_completions) {
                break;
            }
        }
        Ok(any)
    }

    fn complete(&mut self, completion: DmaCompletion, ledger: &mut Ledger) -> Result<(), Trouble> {
        if completion.token.0 >= RESPONSE.0 {
            return Ok(self.sender.complete(completion).map(drop)?);
        }
        let Received::Batch(mut batch) = self.receiver.complete(&mut self.dma, completion)? else {
            return Ok(());
        };
        self.looks = 0;
        while let Some(message) = batch.take_next() {
            let Some(name) = Name::decode(&message.inline) else {
                return Err(Trouble::Odd("the card received a message without a name".into()));
            };
            let content = Content::of(name, self.message_max);
            let whole =
                *message.inline == content.inline && message.payload.as_deref() == content.payload_bytes();
            ledger.received(name, whole)?;
            self.waiting.push_back((name, message));
        }
        Ok(())
    }

    /// Reserves the responses of waiting requests, in their order, as far as there is room.
    fn answer(&mut self) -> Result<bool, Trouble> {
        let mut any = false;
        while let Some((name, message)) = self.waiting.front() {
            let payload = message.payload.as_ref().map(|bytes| {
                let align = Content::of(*name, self.message_max).payload.map_or(1, |(_, align)| align);
                (bytes.len() as u32, align)
            });
            let shape = Shape { inline_len: RESPONSE_LEN as u16, payload };
            let mut reservation = match self.sender.reserve(shape) {
                Ok(reservation) => reservation,
                Err(ReserveError::Full) => break,
                Err(error) => return Err(Trouble::Odd(error.to_string())),
            };
            let Some((name, message)) = self.waiting.pop_front() else { break };
            if let (Some(to), Some(from)) = (&mut reservation.payload, &message.payload) {
                to.copy_from_slice(from);
            }
            let payload_len = payload.map_or(0, |(len, _)| len);
            let (commit_at, release_at) = (self.later(), self.later());
            self.open.push((commit_at, reservation, name, payload_len));
            self.held.push((release_at, message));
            any = true;
        }
        Ok(any)
    }

    fn later(&mut self) -> Instant {
        self.clock.now() + self.rng.skewed(Duration::ZERO..self.plan.held_max)
    }

    /// Commits what is due, in any order: responses are to be taken in this order.
    fn commit_due(&mut self, ledger: &mut Ledger) -> bool {
        let now = self.clock.now();
        let (due, open): (Vec<_>, Vec<_>) = self.open.drain(..).partition(|open| open.0 <= now);
        self.open = open;
        let mut due = due;
        self.rng.shuffle(&mut due);
        let any = !due.is_empty();
        for (_, reservation, name, payload_len) in due {
            let response = Response { number: ledger.answered(name), name };
            self.sender.commit(reservation, &response.encode(), payload_len);
        }
        any
    }

    fn release_due(&mut self) -> bool {
        let (now, before) = (self.clock.now(), self.held.len());
        self.held.retain(|(at, _)| *at > now);
        self.held.len() < before
    }

    fn ring_bells(&mut self) -> Result<(), Trouble> {
        for bell in [self.receiver.bell_due(), self.sender.bell_due()].into_iter().flatten() {
            self.dma.ring(bell).map_err(RingError::Dma)?;
        }
        Ok(())
    }

    /// A word on what the card holds, for a person.
    pub(super) fn describe(&self) -> String {
        let (waiting, open) = (self.waiting.len(), self.open.len());
        format!("card: {waiting} wait for room, {open} reserved, transfers idle: {}", self.dma.is_idle())
    }
}
