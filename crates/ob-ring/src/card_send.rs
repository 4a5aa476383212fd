//! The card puts responses into the response ring.

use std::collections::VecDeque;

use ob_core::{Bell, Dma, DmaCompletion, DmaError, DmaOp, Refused, RefusedReason, Token};
use ob_memory::{ArenaSpan, Pool, Slice, Source};
use ob_wire_link::group::GroupSpec;
use ob_wire_link::ring::{
    HEADER_LEN, Header, PAYLOAD_HEADER_LEN, PayloadWord, Placement, RingSpec, Shape, control,
};

use crate::RingError;
use crate::bulk::{Bulk, BulkDone, BulkQueue, RefusedBulk};
use crate::plant::{self, Bug};
use crate::single::{Armed, Role, Single, TOKEN_BULK, TOKEN_DATA, TOKEN_POINTERS, words_of};

/// Writes in flight at once.
const WRITES_MAX: usize = 64;

/// The producing end of a response ring, after DDS §4.3 and Figure 10.
///
/// ```text
///   staging    │ waits for older memory │ DMA │ committed │ reserved, in any order with those │ free │
///                                          │        │
///                                          ▼        ▼  in the order of commits
///   ring       │ freed │ host reads these │ DMA in flight │ free, some of it promised │
///                      ▲                  ▲               ▲
///                  host's claim      TailC (bound)   TailB (buffered)
/// ```
///
/// A response's memory is reserved before the operation behind it starts, so that a device fills it where the DMA will
/// send it from; together reservations promise no more than the ring has room for. The paper delivers them in the order
/// they were made, so one slow read holds up every answer behind it. Here a response takes its place in the ring when it
/// is committed, and only memory is used again in the order in which it was reserved.
pub struct CardSender {
    single: Single,
    staging: Pool,
    /// Staging memory that is free, in the order in which it is used.
    free: VecDeque<Slice>,
    /// TailA: where the next reservation's memory begins, counted on like a ring's positions.
    allocated: u64,
    /// What is reserved, in the order of its memory, until that memory is free again.
    held: VecDeque<Held>,
    /// Committed and not yet submitted, in the order of commits.
    ready: VecDeque<Slice>,
    /// How many were committed, ever.
    committed: u64,
    /// Bytes that were committed, that were submitted, and that the host can see for certain, ever.
    committed_bytes: u64,
    submitted_bytes: u64,
    delivered_bytes: u64,
    /// Bounds whose writes are under way, and how many bytes were submitted before them.
    bounds: VecDeque<(u64, u64)>,
    /// Transfers between card memory and the group's areas.
    bulk: BulkQueue,
    /// Bytes of the ring that reserved and committed responses will take.
    promised: u64,
    /// TailB: what has been submitted ends here.
    buffered: u64,
    /// Writes in flight.
    writes: usize,
    /// What the host has given back ends here.
    freed: u64,
    look: Look,
    closed: bool,
    refused: bool,
}

/// The ordered read of the host's pointers: why one is due, and what the last one means.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    /// The bound moved since the last read was submitted: host threads may have gone to sleep before they saw it.
    sleepers_unseen: bool,
    /// What is committed and not submitted, or submitted and not shown, has to wake them; else only what is quiet.
    urgent: bool,
    /// The bound moved for what is quiet alone, and nobody has looked since.
    unheard: bool,
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

/// A piece of staging memory that is not free.
struct Held {
    start: usize,
    memory: Memory,
}

enum Memory {
    /// Reserved, committed or being sent.
    Out,
    /// Not needed any more, but memory before it is.
    Back(Slice),
    /// Being sent in one write with the piece before it, and comes back with that.
    Joined,
}

/// A place for one response.
#[derive(Debug)]
#[must_use = "the memory of a reservation that is never committed, and all behind it, is never used again"]
pub struct Reservation {
    front: Slice,
    /// What lies behind the payload, to the end of the span.
    rest: Option<Slice>,
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
    /// The card's end of the ring `spec`, in a group without areas. Its transfers carry tokens `base..base + 4`; `base`
    /// is a multiple of 4.
    pub fn new(spec: RingSpec, base: Token) -> Self {
        let staging = Pool::new(spec.capacity() as usize, 1);
        Self::with_staging(spec, base, staging, BulkQueue::none(spec.region))
    }

    /// The card's end of a group's response ring, and its way to the group's areas; `None` if the system refuses the memory that
    /// responses are made in. The tokens of bulk transfers have bits above the 35th besides.
    pub fn of_group(spec: &GroupSpec, base: Token) -> Option<Self> {
        let staging = Pool::try_new(spec.response.capacity() as usize, 1)?;
        Some(Self::with_staging(spec.response, base, staging, BulkQueue::new(spec)))
    }

    fn with_staging(spec: RingSpec, base: Token, staging: Pool, bulk: BulkQueue) -> Self {
        let mut free = VecDeque::with_capacity(4);
        free.extend(staging.take().map(|mut whole| whole.split_to(spec.capacity() as usize)));
        Self {
            single: Single::new(spec, Role::Producer, base),
            staging,
            free,
            allocated: 0,
            held: VecDeque::with_capacity(256),
            ready: VecDeque::with_capacity(256),
            committed: 0,
            committed_bytes: 0,
            submitted_bytes: 0,
            delivered_bytes: 0,
            bounds: VecDeque::with_capacity(64),
            bulk,
            promised: 0,
            buffered: 0,
            writes: 0,
            freed: 0,
            look: Look::default(),
            closed: false,
            refused: false,
        }
    }

    /// Reserves the place of a response.
    pub fn reserve(&mut self, shape: Shape) -> Result<Reservation, ReserveError> {
        let spec = self.single.spec;
        let placement = Placement::of(shape, self.allocated, &spec)
            .ok_or(ReserveError::TooLarge { limit: spec.message_max() })?;
        let used = self.buffered - self.freed + self.promised + u64::from(placement.span);
        if used > u64::from(spec.capacity()) || !self.has_staging(placement) {
            self.look.room_wanted = true;
            return Err(ReserveError::Full);
        }
        self.look.room_wanted = false;
        if placement.skip > 0 {
            let skip = self.take_staging(placement.skip as usize).ok_or(ReserveError::Full)?;
            self.held.push_back(Held { start: skip.start(), memory: Memory::Back(skip) });
        }
        let mut front = self.take_staging(placement.span as usize).ok_or(ReserveError::Full)?;
        self.held.push_back(Held { start: front.start(), memory: Memory::Out });
        self.promised += u64::from(placement.span);
        self.release();
        // Only what may be lent is cut off.
        let mut payload = shape.payload.map(|_| front.split_off(placement.payload_offset as usize));
        let rest = payload.as_mut().zip(shape.payload).and_then(|(payload, (len, _))| {
            let len = len as usize;
            (payload.len() > len).then(|| payload.split_off(len))
        });
        Ok(Reservation {
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
        for part in [reservation.payload, reservation.rest].into_iter().flatten() {
            bytes = join(bytes, part);
        }
        assert_eq!(bytes.len(), span as usize, "a reservation is committed with the payload it was given");
        self.ready.push_back(bytes);
        self.look.urgent = true;
        self.committed += 1;
        self.committed_bytes += u64::from(span);
    }

    /// Reserves and commits a response that is known already.
    pub fn push(&mut self, inline: &[u8]) -> Result<(), ReserveError> {
        let limit = self.single.spec.message_max();
        let inline_len = u16::try_from(inline.len()).map_err(|_| ReserveError::TooLarge { limit })?;
        let reservation = self.reserve(Shape { inline_len, payload: None })?;
        self.commit(reservation, inline, 0);
        Ok(())
    }

    /// Like [`CardSender::push`], but nobody is woken for it: a thread that sleeps finds it when something else wakes it, or when
    /// [`CardSender::rouse`] does, which is not to be put off for long.
    pub fn push_quietly(&mut self, inline: &[u8]) -> Result<(), ReserveError> {
        let was_urgent = self.look.urgent;
        self.push(inline)?;
        self.look.urgent = was_urgent;
        Ok(())
    }

    /// Whether something went out quietly that nobody may have heard.
    pub fn has_unheard(&self) -> bool {
        self.look.unheard
    }

    /// Has sleepers looked for now, for what went out quietly: the next [`CardSender::step`] does.
    pub fn rouse(&mut self) {
        let unheard = std::mem::take(&mut self.look.unheard);
        self.look.sleepers_unseen |= unheard && !plant::is_planted(Bug::QuietForgotten);
    }

    /// Moves bytes between card memory and an area of the group. A write takes effect before every message that is
    /// committed from now on is seen; a read holds no message back. Transfers complete in any order, each with
    /// [`crate::CardService::transferred`] under the tag it was given. One that fails closes nothing; whoever commits the
    /// message that names its bytes before that is known must be able to take it back.
    pub fn transfer(&mut self, tag: u64, bulk: Bulk) -> Result<(), RefusedBulk> {
        self.bulk.push(tag, bulk, self.committed)
    }

    /// How many more transfers would be taken now.
    pub fn transfer_room(&self) -> usize {
        self.bulk.room()
    }

    /// Ends the group: the host has said to the service what cannot be. The next [`CardSender::step`] tells the link.
    pub fn refuse(&mut self) {
        self.refused = true;
    }

    /// The most bytes that a response may span, headers and padding included.
    pub fn message_max(&self) -> u32 {
        self.single.spec.message_max()
    }

    /// Whether committed responses wait for [`CardSender::step`].
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() && !self.is_stuck() && self.unbarred() > 0
    }

    /// Whether the last reservation found no room.
    pub fn wants_room(&self) -> bool {
        self.look.room_wanted
    }

    /// Moves with every response and every transfer that goes out.
    pub fn sent(&self) -> u64 {
        self.buffered + self.bulk.started()
    }

    /// How much was committed so far. Once [`CardSender::delivered_bytes`] is as much, all of it is where the host can see it.
    pub fn committed_bytes(&self) -> u64 {
        self.committed_bytes
    }

    /// How much of what was committed lies in the host's memory, with the bound that shows it, and no transfer of it is under way
    /// any more.
    pub fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }

    /// How many responses from the front on have no bulk write before them that still waits.
    fn unbarred(&self) -> u64 {
        let first = self.committed - self.ready.len() as u64;
        self.bulk.messages_max().saturating_sub(first)
    }

    /// Whether the next response has to wait until the host has taken some: the end of the ring may cost more than was
    /// promised.
    fn is_stuck(&self) -> bool {
        let Some(next) = self.ready.front() else { return false };
        let (len, to_wrap) = (next.len() as u64, self.single.spec.to_wrap(self.buffered));
        let needed = if len > to_wrap { to_wrap + len } else { len };
        self.buffered - self.freed + needed > u64::from(self.single.spec.capacity())
    }

    /// Submits what can be submitted: committed responses, the bound, the read of the host's pointers. `true` if
    /// anything was.
    pub fn step(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        if self.closed {
            return Err(RingError::Closed);
        }
        if self.refused {
            self.closed = true;
            return Err(RingError::Refused);
        }
        let result = self.submit(dma);
        self.closed |= result.is_err();
        result
    }

    fn submit(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let submitted = self.submit_data(dma)?;
        if !self.publish(dma)? || self.look.in_flight.is_some() {
            return Ok(submitted);
        }
        Ok(self.submit_look(dma)? || submitted)
    }

    /// Submits responses and bulk in the order in which they were given.
    fn submit_data(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let mut submitted = false;
        loop {
            while self.writes < WRITES_MAX && self.has_ready() && self.submit_run(dma)? {
                submitted = true;
            }
            if !self.bulk.has_queued() {
                return Ok(submitted);
            }
            // Responses from before the bulk are seen without waiting for it.
            self.publish(dma)?;
            if !self.bulk.submit_next(dma, self.single.token(TOKEN_BULK))? {
                return Ok(submitted);
            }
            submitted = true;
        }
    }

    /// Lets the host see what was submitted. `false` if the link is busy.
    fn publish(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        if self.buffered != self.single.bound {
            if self.look.urgent {
                (self.look.sleepers_unseen, self.look.unheard) = (true, false);
            } else {
                self.look.unheard = !self.look.sleepers_unseen;
            }
            // What is ready may be what is urgent.
            self.look.urgent &= !self.ready.is_empty();
        }
        self.single.advance(self.buffered);
        let is_written = self.single.write_bound(dma)?;
        if is_written
            && self.bounds.back().map_or(self.delivered_bytes, |last| last.1) != self.submitted_bytes
        {
            self.bounds.push_back((self.single.bound, self.submitted_bytes));
        }
        Ok(is_written)
    }

    /// A bound is in the host's memory. Writes take effect in their order, so what it shows is there too.
    fn bound_written(&mut self, completion: &DmaCompletion) {
        let DmaOp::WriteWord { to, value } = completion.op else { return };
        if to != self.single.address(self.single.spec.word(control::BOUND)) {
            return;
        }
        while let Some((_, bytes)) = self.bounds.pop_front_if(|(bound, _)| *bound <= value) {
            self.delivered_bytes = bytes;
        }
    }

    fn submit_look(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let arming = (self.look.room_wanted || self.is_stuck()) && !self.look.armed;
        if arming && !self.look.ticketed {
            self.look.ticketed = self.single.write_ticket(dma)?;
        }
        let due = self.look.sleepers_unseen || self.look.ticketed;
        if due && self.single.read_pointers(dma, true)? {
            let purpose = if self.look.ticketed { Purpose::Arm } else { Purpose::Look };
            self.look.in_flight = Some(purpose);
            (self.look.sleepers_unseen, self.look.ticketed) = (false, false);
            return Ok(true);
        }
        Ok(false)
    }

    /// Takes a finished transfer of this end; one between card memory and an area is handed on.
    pub fn complete(&mut self, completion: DmaCompletion) -> Result<Option<BulkDone>, RingError> {
        if self.closed {
            return Err(RingError::Closed);
        }
        if completion.token.0 & 3 == TOKEN_BULK {
            return Ok(self.bulk.complete(completion));
        }
        let result = completion.result.map_err(RingError::Dma).and_then(|()| match completion.token.0 & 3 {
            TOKEN_POINTERS => self.complete_pointers(&completion),
            TOKEN_DATA => {
                self.recycle(completion);
                Ok(())
            }
            _ => {
                self.bound_written(&completion);
                Ok(())
            }
        });
        self.closed |= result.is_err();
        result.map(|()| None)
    }

    /// Whether the card may sleep as far as this end is concerned: everything is delivered, sleepers were looked for
    /// after that, and whoever makes room that is wanted will ring. [`CardSender::step`] brings that about.
    pub fn arm(&self) -> Armed {
        let delivered =
            self.writes == 0 && self.bulk.is_idle() && !self.has_ready() && self.single.is_bound_written();
        let seen = !self.look.sleepers_unseen && self.look.in_flight.is_none();
        let rings = !(self.look.room_wanted || self.is_stuck()) || self.look.armed;
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
        (self.look.sleepers_unseen, self.look.unheard) = (true, false);
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

    /// Sends committed responses from the front in one write: those that lie side by side, up to the end of the ring or
    /// the link's largest transfer.
    fn submit_run(&mut self, dma: &mut dyn Dma) -> Result<bool, RingError> {
        let to_wrap = self.single.spec.to_wrap(self.buffered);
        if self.ready.front().is_some_and(|next| next.len() as u64 > to_wrap) {
            let skip = Header::Skip { span: to_wrap as u32 }.encode();
            if !self.single.write_at(dma, self.single.spec.at(self.buffered), skip)? {
                return Ok(false);
            }
            self.buffered += to_wrap;
        }
        let Some(from) = self.next_run(dma.largest_transfer()) else { return Ok(false) };
        let len = from.len() as u64;
        let to = self.single.address(self.single.spec.at(self.buffered));
        if plant::is_planted(Bug::TailBeforeData) {
            self.single.write_word(dma, control::BOUND, self.buffered + len)?;
        }
        match dma.submit(self.single.token(TOKEN_DATA), DmaOp::Write { from: from.into(), to }) {
            Ok(()) => {
                self.writes += 1;
                self.promised -= len;
                self.buffered += len;
                self.submitted_bytes += len;
                Ok(true)
            }
            Err(Refused { op, reason }) => {
                if let DmaOp::Write { from: Source::Owned(from), .. } = op {
                    self.ready.push_front(from);
                }
                match reason {
                    RefusedReason::Busy => Ok(false),
                    RefusedReason::Gone => Err(RingError::Dma(DmaError::LinkDown)),
                }
            }
        }
    }

    /// Takes ready responses that can go in one write of at most so many bytes.
    fn next_run(&mut self, transfer_max: usize) -> Option<Slice> {
        let spec = self.single.spec;
        let room = u64::from(spec.capacity()) - (self.buffered - self.freed);
        let limit = transfer_max.min(room.min(spec.to_wrap(self.buffered)) as usize);
        let mut unbarred = self.unbarred();
        let mut run = self.ready.pop_front()?;
        while let Some(next) = self.ready.pop_front() {
            unbarred -= 1;
            let start = next.start();
            // Where no memory is free, the oldest lies right behind the newest, and must not come back with it.
            let is_oldest = self.held.front().is_some_and(|held| held.start == start);
            if is_oldest || unbarred == 0 || run.len() + next.len() > limit {
                self.ready.push_front(next);
                break;
            }
            match run.join(next) {
                Ok(longer) => {
                    run = longer;
                    self.keep(start, Memory::Joined);
                }
                Err((sofar, next)) => {
                    run = sofar;
                    self.ready.push_front(next);
                    break;
                }
            }
        }
        Some(run)
    }

    fn complete_pointers(&mut self, completion: &DmaCompletion) -> Result<(), RingError> {
        let (Some(purpose), Some(words)) = (self.look.in_flight.take(), words_of(completion)) else {
            return Ok(());
        };
        let freed_before = self.freed;
        if self.single.believe(words)? {
            self.freed = self.single.claim;
        }
        // Whoever has taken all of it has heard it.
        self.look.unheard &= self.freed != self.buffered;
        if self.freed != freed_before {
            // Whoever wants room may have it now; if it is not enough, they will say so again.
            (self.look.room_wanted, self.look.armed) = (false, false);
        } else if purpose == Purpose::Arm {
            self.look.armed = true;
        }
        Ok(())
    }

    /// Gives the memory of a finished write back.
    fn recycle(&mut self, completion: DmaCompletion) {
        // A run is the sender's own, and comes back as it went.
        let DmaOp::Write { from: Source::Owned(from), .. } = completion.op else { return };
        self.writes -= 1;
        self.keep(from.start(), Memory::Back(from));
        self.release();
    }

    /// Says what became of the piece of memory that begins at `start`.
    fn keep(&mut self, start: usize, memory: Memory) {
        let Some(oldest) = self.held.front().map(|held| held.start) else { return };
        let capacity = self.single.spec.capacity() as usize;
        let age = |start: usize| (start + capacity - oldest) % capacity;
        let index = self.held.partition_point(|held| age(held.start) < age(start));
        if let Some(held) = self.held.get_mut(index).filter(|held| held.start == start) {
            held.memory = memory;
        }
    }

    /// Frees memory that nothing before it keeps.
    fn release(&mut self) {
        while let Some(held) = self.held.pop_front() {
            let bytes = match held.memory {
                Memory::Out => {
                    self.held.push_front(held);
                    return;
                }
                Memory::Joined => continue,
                Memory::Back(bytes) => bytes,
            };
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
