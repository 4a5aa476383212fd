//! The card puts responses into the response ring.

use std::collections::VecDeque;

use ob_core::{Bell, Dma, DmaCompletion, DmaError, DmaOp, Refused, RefusedReason, Token};
use ob_memory::{ArenaSpan, Pool, Slice};
use ob_wire_link::ring::{
    HEADER_LEN, Header, PAYLOAD_HEADER_LEN, PayloadWord, Placement, RingSpec, Shape, control,
};

use crate::RingError;
use crate::plant::{self, Bug};
use crate::single::{Armed, Role, Single, TOKEN_DATA, TOKEN_POINTERS, words_of};

/// Writes in flight at once.
const RUNS_MAX: usize = 64;

/// The producing end of a response ring, after DDS §4.3 and Figure 10.
///
/// ```text
///    freed            TailC (bound)      TailB (buffered)         TailA (allocated)
///  ───┬──────────────────┬──────────────────┬────────────────────────┬─────
///     │ host reads these │ DMA in flight    │ committed, or reserved │ free
///  ───┴──────────────────┴──────────────────┴────────────────────────┴─────
/// ```
///
/// A response's place is reserved before the operation behind it starts, so that a device fills it where the DMA
/// will send it from. Reservations are committed in any order and delivered in the order they were made.
pub struct CardSender {
    single: Single,
    staging: Pool,
    /// Staging memory that is free, in ring order.
    free: VecDeque<Slice>,
    /// TailA.
    allocated: u64,
    /// Reserved or committed, not yet submitted, oldest first.
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    first_entry: u64,
    /// TailB: what has been submitted ends here.
    buffered: u64,
    /// Writes submitted, oldest first; their memory is free again in this order.
    runs: VecDeque<Run>,
    /// What the host has given back ends here.
    freed: u64,
    look: Look,
    closed: bool,
}

/// The ordered read of the host's pointers: why one is due, and what the last one means.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    /// The bound moved since the last read was submitted: host threads may have gone to sleep before they saw it.
    sleepers_unseen: bool,
    /// Somebody was refused for want of room, and must be woken when there is some.
    room_wanted: bool,
    /// The ticket is written, the read that must follow it is not submitted yet.
    ticketed: bool,
    in_flight: Option<Purpose>,
    /// Whoever makes room from now on will ring.
    armed: bool,
}

/// What an ordered read was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Look,
    Arm,
}

struct Entry {
    /// The message's bytes, once committed.
    bytes: Option<Slice>,
}

struct Run {
    start: usize,
    bytes: Option<Slice>,
}

/// A place for one response.
#[derive(Debug)]
#[must_use = "a reservation that is never committed holds up every response behind it"]
pub struct Reservation {
    number: u64,
    front: Slice,
    rest: Slice,
    inline_len: u16,
    payload_offset: u32,
    span: u32,
    with_payload: bool,
    /// Where the payload goes; may be lent to a device and must be put back before the commit.
    pub payload: Option<Slice>,
}

/// Why there is no place for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Not now: the host must take some responses first.
    #[error("the response ring is full")]
    Full,
    /// Not ever.
    #[error("the response is larger than the ring's limit of {limit} bytes")]
    TooLarge {
        /// The most bytes that a message may span.
        limit: u32,
    },
}

impl CardSender {
    /// The card's end of the ring `spec`. Its transfers carry tokens `base..base + 4`; `base` is a multiple of 4.
    pub fn new(spec: RingSpec, base: Token) -> Self {
        let staging = Pool::new(spec.capacity() as usize, 1);
        let mut free = VecDeque::with_capacity(4);
        free.extend(staging.take().map(|mut whole| whole.split_to(spec.capacity() as usize)));
        Self {
            single: Single::new(spec, Role::Producer, base),
            staging,
            free,
            allocated: 0,
            entries: VecDeque::with_capacity(256),
            first_entry: 0,
            buffered: 0,
            runs: VecDeque::with_capacity(RUNS_MAX),
            freed: 0,
            look: Look::default(),
            closed: false,
        }
    }

    /// Reserves the place of a response.
    pub fn reserve(&mut self, shape: Shape) -> Result<Reservation, ReserveError> {
        let spec = self.single.spec;
        let placement = Placement::of(shape, self.allocated, &spec)
            .ok_or(ReserveError::TooLarge { limit: spec.message_max() })?;
        let used = self.allocated - self.freed + placement.total();
        if used > u64::from(spec.progress_max()) || !self.has_staging(placement) {
            self.look.room_wanted = true;
            return Err(ReserveError::Full);
        }
        self.look.room_wanted = false;
        if placement.skip > 0 {
            let mut skip = self.take_staging(placement.skip as usize).ok_or(ReserveError::Full)?;
            skip[..HEADER_LEN].copy_from_slice(&Header::Skip { span: placement.skip }.encode().to_le_bytes());
            self.entries.push_back(Entry { bytes: Some(skip) });
        }
        let mut front = self.take_staging(placement.span as usize).ok_or(ReserveError::Full)?;
        let mut rest = front.split_off(placement.payload_offset as usize);
        let payload = shape.payload.map(|(len, _)| rest.split_to(len as usize));
        self.entries.push_back(Entry { bytes: None });
        Ok(Reservation {
            number: self.first_entry + self.entries.len() as u64 - 1,
            front,
            rest,
            inline_len: shape.inline_len,
            payload_offset: placement.payload_offset,
            span: placement.span,
            with_payload: payload.is_some(),
            payload,
        })
    }

    /// Fills a reservation's inline part (cut to what was reserved), says how much of its payload counts, and
    /// releases it for delivery.
    pub fn commit(&mut self, mut reservation: Reservation, inline: &[u8], payload_len: u32) {
        let inline_len = inline.len().min(usize::from(reservation.inline_len)) as u16;
        let span = reservation.span;
        let head = if reservation.with_payload {
            let len = payload_len.min(reservation.payload.as_ref().map_or(0, |payload| payload.len() as u32));
            let word = PayloadWord { offset: reservation.payload_offset, len };
            reservation.front[..HEADER_LEN]
                .copy_from_slice(&Header::Payload { span, inline_len }.encode().to_le_bytes());
            reservation.front[HEADER_LEN..PAYLOAD_HEADER_LEN].copy_from_slice(&word.encode().to_le_bytes());
            PAYLOAD_HEADER_LEN
        } else {
            reservation.front[..HEADER_LEN]
                .copy_from_slice(&Header::Inline { span, inline_len }.encode().to_le_bytes());
            HEADER_LEN
        };
        reservation.front[head..head + usize::from(inline_len)]
            .copy_from_slice(&inline[..usize::from(inline_len)]);
        let mut bytes = reservation.front;
        for part in [reservation.payload, Some(reservation.rest)].into_iter().flatten() {
            bytes = join(bytes, part);
        }
        assert_eq!(bytes.len(), span as usize, "a reservation is committed with the payload it was given");
        let index = (reservation.number - self.first_entry) as usize;
        self.entries[index].bytes = Some(bytes);
    }

    /// Reserves and commits a response that is known already.
    pub fn push(&mut self, inline: &[u8]) -> Result<(), ReserveError> {
        let limit = self.single.spec.message_max();
        let inline_len = u16::try_from(inline.len()).map_err(|_| ReserveError::TooLarge { limit })?;
        let reservation = self.reserve(Shape { inline_len, payload: None })?;
        self.commit(reservation, inline, 0);
        Ok(())
    }

    /// The most bytes that a response may span, headers and padding included.
    pub fn message_max(&self) -> u32 {
        self.single.spec.message_max()
    }

    /// Whether committed responses wait for [`CardSender::step`].
    pub fn has_ready(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.bytes.is_some())
    }

    /// Submits what can be submitted: committed responses, the bound, the read of the host's pointers. `true` if
    /// anything was.
    pub fn step(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        if self.closed {
            return Err(RingError::Closed);
        }
        let result = self.submit(dma);
        self.closed |= result.is_err();
        result
    }

    fn submit(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let mut submitted = false;
        while self.runs.len() < RUNS_MAX && self.has_ready() && self.submit_run(dma)? {
            submitted = true;
        }
        self.look.sleepers_unseen |= self.buffered != self.single.bound;
        self.single.advance(self.buffered);
        if !self.single.write_bound(dma)? || self.look.in_flight.is_some() {
            return Ok(submitted);
        }
        let arming = self.look.room_wanted && !self.look.armed;
        if arming && !self.look.ticketed {
            self.look.ticketed = self.single.write_ticket(dma)?;
        }
        let due = self.look.sleepers_unseen || self.look.ticketed;
        if due && self.single.read_pointers(dma, true)? {
            let purpose = if self.look.ticketed { Purpose::Arm } else { Purpose::Look };
            self.look.in_flight = Some(purpose);
            (self.look.sleepers_unseen, self.look.ticketed) = (false, false);
            submitted = true;
        }
        Ok(submitted)
    }

    /// Takes a finished transfer of this end.
    pub fn complete(&mut self, completion: DmaCompletion) -> Result<(), RingError> {
        if self.closed {
            return Err(RingError::Closed);
        }
        let result = completion.result.map_err(RingError::Dma).and_then(|()| match completion.token.0 & 3 {
            TOKEN_POINTERS => self.complete_pointers(&completion),
            TOKEN_DATA => {
                self.recycle(completion);
                Ok(())
            }
            _ => Ok(()),
        });
        self.closed |= result.is_err();
        result
    }

    /// Whether the card may sleep as far as this end is concerned: everything is delivered, sleepers were looked for
    /// after that, and whoever makes room that is wanted will ring. [`CardSender::step`] brings that about.
    pub fn arm(&self) -> Armed {
        let delivered = self.runs.is_empty() && !self.has_ready() && self.single.is_bound_written();
        let seen = !self.look.sleepers_unseen && self.look.in_flight.is_none();
        let rings = !self.look.room_wanted || self.look.armed;
        if delivered && seen && rings { Armed::Yes } else { Armed::NotYet }
    }

    /// A doorbell rang. Whoever rang has taken the ticket, so what is under way to arm with it does not count.
    pub fn wake(&mut self) {
        (self.look.armed, self.look.ticketed) = (false, false);
        self.look.in_flight = self.look.in_flight.map(|_| Purpose::Look);
    }

    /// The link was cut and is back: those who sleep are looked for again, and rung for if they are there.
    pub fn link_restored(&mut self) {
        self.single.link_restored();
        self.look.sleepers_unseen = true;
        self.wake();
    }

    /// The bell to ring now, if host threads sleep and there are responses for them.
    pub fn bell_due(&mut self) -> Option<Bell> {
        if plant::is_planted(Bug::LostBell) {
            return None;
        }
        self.single.bell_due()
    }

    /// The staging memory, for registration with devices.
    pub fn arena(&self) -> ArenaSpan {
        self.staging.arena()
    }

    fn has_staging(&self, placement: Placement) -> bool {
        let front = self.free.front().map_or(0, |slice| slice.len());
        if placement.skip == 0 {
            return front >= placement.span as usize;
        }
        let second = self.free.get(1).map_or(0, |slice| slice.len());
        front == placement.skip as usize && second >= placement.span as usize
    }

    fn take_staging(&mut self, len: usize) -> Option<Slice> {
        let front = self.free.front_mut().filter(|slice| slice.len() >= len)?;
        let taken = front.split_to(len);
        if front.is_empty() {
            self.free.pop_front();
        }
        self.allocated += len as u64;
        Some(taken)
    }

    /// Joins committed entries from the front into one write, up to the end of the ring, a reservation still
    /// open, or the link's largest transfer.
    fn submit_run(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let limit = dma.largest_transfer();
        let mut run: Option<Slice> = None;
        let mut joined = 0u64;
        while let Some(bytes) = self.entries.front_mut().and_then(|entry| entry.bytes.take()) {
            match run.take() {
                None => run = Some(bytes),
                Some(sofar) if sofar.len() + bytes.len() <= limit => match sofar.join(bytes) {
                    Ok(longer) => run = Some(longer),
                    Err((sofar, bytes)) => {
                        self.entries[0].bytes = Some(bytes);
                        run = Some(sofar);
                        break;
                    }
                },
                Some(sofar) => {
                    self.entries[0].bytes = Some(bytes);
                    run = Some(sofar);
                    break;
                }
            }
            self.entries.pop_front();
            joined += 1;
        }
        self.first_entry += joined;
        let Some(from) = run else { return Ok(false) };
        let (start, len) = (from.start(), from.len() as u64);
        let to = self.single.address(self.single.spec.at(self.buffered));
        if plant::is_planted(Bug::TailBeforeData) {
            self.single.write_word(dma, control::BOUND, self.buffered + len)?;
        }
        match dma.submit(self.single.token(TOKEN_DATA), DmaOp::Write { from, to }) {
            Ok(()) => {
                self.runs.push_back(Run { start, bytes: None });
                self.buffered += len;
                Ok(true)
            }
            Err(Refused { op, reason }) => {
                if let DmaOp::Write { from, .. } = op {
                    // One entry again: its parts are committed all the same.
                    self.entries.push_front(Entry { bytes: Some(from) });
                    self.first_entry -= 1;
                }
                match reason {
                    RefusedReason::Busy => Ok(false),
                    RefusedReason::Gone => Err(RingError::Dma(DmaError::LinkDown)),
                }
            }
        }
    }

    fn complete_pointers(&mut self, completion: &DmaCompletion) -> Result<(), RingError> {
        let (Some(purpose), Some(words)) = (self.look.in_flight.take(), words_of(completion)) else {
            return Ok(());
        };
        let freed_before = self.freed;
        if self.single.believe(words)? {
            self.freed = self.single.claim;
        }
        if self.freed != freed_before {
            // Whoever wants room may have it now; if it is not enough, they will say so again.
            (self.look.room_wanted, self.look.armed) = (false, false);
        } else if purpose == Purpose::Arm {
            self.look.armed = true;
        }
        Ok(())
    }

    /// Gives the memory of a finished write back, in ring order.
    fn recycle(&mut self, completion: DmaCompletion) {
        let DmaOp::Write { from, .. } = completion.op else { return };
        let Some(run) = self.runs.iter_mut().find(|run| run.bytes.is_none() && run.start == from.start())
        else {
            return;
        };
        run.bytes = Some(from);
        while let Some(bytes) = self.runs.front_mut().and_then(|run| run.bytes.take()) {
            self.runs.pop_front();
            match self.free.pop_back() {
                None => self.free.push_back(bytes),
                Some(last) => match last.join(bytes) {
                    Ok(longer) => self.free.push_back(longer),
                    Err((last, bytes)) => self.free.extend([last, bytes]),
                },
            }
        }
    }
}

/// Joins parts of one reservation, which lie side by side unless the caller put a stranger's slice into it.
fn join(front: Slice, back: Slice) -> Slice {
    match front.join(back) {
        Ok(joined) => joined,
        Err((front, _)) => front,
    }
}
