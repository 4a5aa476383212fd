//! The card fetches requests out of the request ring.

use ob_core::{Bell, Dma, DmaCompletion, DmaError, DmaOp, Refused, RefusedReason, Token};
use ob_memory::{ArenaSpan, Mirror};
use ob_wire_link::group::GroupSpec;
use ob_wire_link::ring::RingSpec;

use crate::RingError;
use crate::batch::{Batch, scan};
use crate::plant::{self, Bug};
use crate::single::{Armed, Role, Single, TOKEN_DATA, TOKEN_POINTERS, words_of};

/// Batches whose messages may be out at once.
const BATCHES_OUT: u32 = 1024;

/// The consuming end of a request ring.
///
/// ```text
///            step                complete: settled, something there
///   Idle ──────────▶ Pointers ───────────────────────────────▶ Idle (settled > head)
///    ▲                  │ nothing, or not settled                  │ step
///    │◀─────────────────┘                                          ▼
///    │◀────────────── complete: Batch, head moves ────────────── Data
///    │  arm                              complete: nothing there
///    └──────────▶ Pointers (arming) ───────────────────────────▶ Armed ── wake ──▶ Idle
/// ```
pub struct CardReceiver {
    single: Single,
    mirror: Mirror,
    state: State,
    /// Everything below this position is written by its producers.
    settled: u64,
    /// Bytes that the message at the head is known to need.
    needed: usize,
    /// The head moved since the last read of the pointers was submitted: producers may have gone to sleep before
    /// they saw it.
    sleepers_unseen: bool,
    /// The ticket is written, the read that must follow it is not submitted yet.
    ticketed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Pointers { arming: bool },
    Data,
    Armed,
    Closed,
}

/// What a finished transfer brought.
pub enum Received {
    /// Nothing to hand on.
    Nothing,
    /// Requests.
    Batch(Batch),
}

impl CardReceiver {
    /// The card's end of the ring `spec`. Its transfers carry tokens `base..base + 4`; `base` is a multiple of 4.
    pub fn new(spec: RingSpec, base: Token) -> Self {
        Self::with_mirror(spec, base, Mirror::new(spec.capacity() as usize, BATCHES_OUT))
    }

    /// The card's end of a group's request ring, or `None` if the system refuses the memory that requests are fetched into.
    pub fn of_group(spec: &GroupSpec, base: Token) -> Option<Self> {
        let mirror = Mirror::try_new(spec.request.capacity() as usize, BATCHES_OUT)?;
        Some(Self::with_mirror(spec.request, base, mirror))
    }

    fn with_mirror(spec: RingSpec, base: Token, mirror: Mirror) -> Self {
        Self {
            single: Single::new(spec, Role::Consumer, base),
            mirror,
            state: State::Idle,
            settled: 0,
            needed: 0,
            sleepers_unseen: false,
            ticketed: false,
        }
    }

    /// Submits the next transfer, if there is one to submit now. `true` if one was.
    pub fn step(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        if self.state == State::Closed {
            return Err(RingError::Closed);
        }
        let result = self.submit(dma);
        self.close_on_error(result)
    }

    fn submit(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        if !self.single.write_bound(dma)? || self.state != State::Idle {
            return Ok(false);
        }
        if self.head() < self.settled {
            // Where there is no room for what waits, those who wait for room in the ring are still looked for.
            return Ok(self.fetch(dma)? || (self.sleepers_unseen && self.look(dma)?));
        }
        self.look(dma)
    }

    /// Submits a read of the pointers: if the ticket is written, the one that must follow it.
    fn look(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let submitted = self.single.read_pointers(dma, self.ticketed || self.sleepers_unseen)?;
        if submitted {
            self.state = State::Pointers { arming: self.ticketed };
            (self.sleepers_unseen, self.ticketed) = (false, false);
        }
        Ok(submitted)
    }

    fn close_on_error<T>(&mut self, result: Result<T, RingError>) -> Result<T, RingError> {
        if result.is_err() {
            self.state = State::Closed;
        }
        result
    }

    /// Takes a finished transfer of this end.
    pub fn complete(&mut self, dma: &mut dyn Dma, completion: DmaCompletion) -> Result<Received, RingError> {
        if self.state == State::Closed {
            return Err(RingError::Closed);
        }
        let result = completion.result.map_err(RingError::Dma).and_then(|()| match completion.token.0 & 3 {
            TOKEN_POINTERS => self.complete_pointers(&completion),
            TOKEN_DATA => self.complete_data(dma, completion),
            _ => Ok(Received::Nothing),
        });
        self.close_on_error(result)
    }

    /// Gets ready to sleep: the first call writes the ticket and reads the pointers again; it is `Yes` when that
    /// read has completed and found nothing.
    pub fn arm(&mut self, dma: &mut dyn Dma) -> Result<Armed, RingError> {
        match self.state {
            State::Closed => Err(RingError::Closed),
            State::Armed => Ok(Armed::Yes),
            State::Pointers { .. } | State::Data => Ok(Armed::NotYet),
            State::Idle => {
                let result = self.arm_idle(dma);
                self.close_on_error(result)
            }
        }
    }

    fn arm_idle(&mut self, dma: &mut dyn Dma) -> Result<Armed, RingError> {
        if !self.single.write_bound(dma)? {
            return Ok(Armed::NotYet);
        }
        if self.is_stalled() && !self.sleepers_unseen {
            // Only a message given back will make room, and that wakes the reactor by itself.
            return Ok(Armed::Yes);
        }
        if self.head() < self.settled {
            self.submit(dma)?;
            return Ok(Armed::NotYet);
        }
        self.ticketed = self.ticketed || self.single.write_ticket(dma)?;
        if self.ticketed {
            self.look(dma)?;
        }
        Ok(Armed::NotYet)
    }

    /// A doorbell rang: look at the ring anew. Whoever rang has taken the ticket, so what is under way to arm with it
    /// must not end in sleep, even if it saw the ring before the ringer was done.
    pub fn wake(&mut self) {
        self.ticketed = false;
        match self.state {
            State::Armed => self.state = State::Idle,
            State::Pointers { .. } => self.state = State::Pointers { arming: false },
            State::Idle | State::Data | State::Closed => {}
        }
    }

    /// The link was cut and is back: those who sleep are looked for again, and rung for if they are there.
    pub fn link_restored(&mut self) {
        self.single.link_restored();
        self.sleepers_unseen = true;
        self.wake();
    }

    /// The bell to ring now, if host threads sleep for want of room that there is again.
    pub fn bell_due(&mut self) -> Option<Bell> {
        self.single.bell_due()
    }

    /// Whether the last look found requests that are not fetched yet.
    pub fn has_settled(&self) -> bool {
        self.state == State::Idle && self.head() < self.settled
    }

    /// Whether requests wait in the ring that have no room in the mirror until earlier ones are dropped.
    pub fn is_stalled(&mut self) -> bool {
        self.head() < self.settled && self.room() == 0
    }

    /// The mirror's memory, for registration with devices.
    pub fn arena(&self) -> ArenaSpan {
        self.mirror.arena()
    }

    fn head(&self) -> u64 {
        self.single.bound
    }

    /// How many bytes can be fetched now; 0 if not even the message at the head has room.
    fn room(&mut self) -> usize {
        let head = self.head();
        let settled = usize::try_from(self.settled - head).unwrap_or(usize::MAX);
        let room = self.mirror.available(head).min(settled);
        if room < self.needed { 0 } else { room }
    }

    fn fetch(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let head = self.head();
        let len = self.room().min(dma.largest_transfer() & !7);
        if len == 0 {
            return Ok(false);
        }
        let Some(into) = self.mirror.take(head, len) else { return Ok(false) };
        let from = self.single.address(self.single.spec.at(head));
        if plant::is_planted(Bug::HeadBeforeRead) {
            self.single.write_word(dma, ob_wire_link::ring::control::BOUND, head + len as u64)?;
        }
        match dma.submit(self.single.token(TOKEN_DATA), DmaOp::Read { from, into }) {
            Ok(()) => {
                self.state = State::Data;
                Ok(true)
            }
            Err(Refused { op, reason }) => {
                if let DmaOp::Read { into, .. } = op {
                    self.mirror.give_back(into);
                }
                match reason {
                    RefusedReason::Busy => Ok(false),
                    RefusedReason::Gone => Err(RingError::Dma(DmaError::LinkDown)),
                }
            }
        }
    }

    fn complete_pointers(&mut self, completion: &DmaCompletion) -> Result<Received, RingError> {
        let (State::Pointers { arming }, Some(words)) = (self.state, words_of(completion)) else {
            return Ok(Received::Nothing);
        };
        let settled = self.single.believe(words)?;
        if settled {
            self.settled = self.single.claim;
        }
        let nothing = self.settled == self.head();
        self.state = if arming && nothing { State::Armed } else { State::Idle };
        Ok(Received::Nothing)
    }

    fn complete_data(&mut self, dma: &mut dyn Dma, completion: DmaCompletion) -> Result<Received, RingError> {
        let (State::Data, DmaOp::Read { into: mut bytes, .. }) = (self.state, completion.op) else {
            return Ok(Received::Nothing);
        };
        self.state = State::Idle;
        let head = self.head();
        let to_wrap = self.single.spec.to_wrap(head);
        let more = (self.settled - head).min(to_wrap) - bytes.len() as u64;
        let scan = scan(&bytes, more, self.single.spec.message_max())
            .map_err(|(at, error)| RingError::Message { position: head + at as u64, error })?;
        if scan.needed > 0 {
            self.mirror.give_back(bytes.split_off(scan.whole));
        }
        self.needed = scan.needed;
        if scan.whole == 0 {
            return Ok(Received::Nothing);
        }
        // Only now may producers write over it: the copy is complete.
        self.single.advance(head + scan.whole as u64);
        self.sleepers_unseen = true;
        self.single.write_bound(dma)?;
        Ok(Received::Batch(Batch::new(bytes)))
    }
}
