//! Plans under way: what they were posted with, their pieces, and their registers.

use ob_core::Token;
use ob_memory::{Shared, Slice};

use super::dialect::{Found, Message, Outcome, Parts, Place, Posted, Told};
use super::memory::Need;
use super::outbox::Answer;
use super::retained::{Before, Kept};
use crate::wire::{
    CompletionStatus, HEADER_LEN, Handle, PlanEntry, PlanId, REPLY_PAYLOAD_MAX, Register, STEPS_MAX, Slot,
    Step,
};

/// In place of a piece: the steps before and behind the pieces.
pub(super) const OUTER: u16 = u16::MAX;
/// Registers that a piece has of its own: 2 to 5, and 1 where that is not of its message.
const OWN: usize = 5;
/// The first of these.
const FIRST_OWN: u8 = 1;

/// Pieces that flights keep which are over, together: those of a long read in many small records are a quarter of a megabyte.
const SPARE_PIECES_MAX: usize = 8192;

/// A plan under way. One that is over finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlightKey {
    index: u16,
    generation: u32,
}

/// What an engine's task says whose it is.
pub(super) fn token_of(key: FlightKey, piece: u16) -> Token {
    Token(u64::from(key.generation) << 32 | u64::from(key.index) << 16 | u64::from(piece))
}

pub(super) fn of_token(token: Token) -> (FlightKey, u16) {
    let key = FlightKey { index: (token.0 >> 16) as u16, generation: (token.0 >> 32) as u32 };
    (key, token.0 as u16)
}

/// What a plan was posted with.
pub(super) struct Entry {
    plan: PlanId,
    pub(super) argument: u8,
    slot: Slot,
    pub(super) handle: Handle,
    arguments: Vec<u8>,
    pub(super) notes: Vec<u32>,
    pub(super) has_message: bool,
    pub(super) has_count: bool,
    header: [u8; HEADER_LEN],
    payload_len: u32,
    answer_len: u32,
}

/// Memory that a piece has.
#[derive(Default)]
pub(super) enum Memory {
    /// None.
    #[default]
    Nothing,
    /// Nothing is written there yet.
    Room(Slice),
    /// It is written, and may be read by many.
    Written(Shared),
}

/// What a piece waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing: it can go on.
    #[default]
    Nothing,
    /// An engine that has its task.
    Engine,
    /// An engine that takes tasks.
    EngineRoom,
    /// Memory to decompress into.
    ScratchRoom,
    /// Memory for a record.
    RecordRoom,
    /// Answers to what others have sent to the same chunk.
    ChunkRoom,
    /// The link, that moves bytes.
    Transfer,
    /// Answers.
    Merge,
    /// A reply, to be had from the nth channel of its place.
    Fetch(u8),
    /// Other pieces.
    Pieces,
    /// It is over.
    Over,
}

/// A piece of a plan, or what is around the pieces.
#[derive(Default)]
pub(super) struct Piece {
    /// The step that is next, or is being done.
    pub(super) at: u8,
    pub(super) doing: Doing,
    own: [Memory; OWN],
    /// For messages that are yet to be made.
    pub(super) heads: Vec<Slice>,
    /// What is decompressed lies there first.
    pub(super) scratch: Option<Slice>,
    /// Memory for what is fetched, while what was retained is in its place and is not decoded yet.
    pub(super) spare: Option<Slice>,
    /// Bytes of a record that it waits for room for, and whether it is next.
    pub(super) wants: usize,
    pub(super) is_next: bool,
    /// What came before the payload that was sent last, if it can be retained.
    pub(super) before: Option<Before>,
    /// What is retained if all goes well.
    pub(super) kept: Option<Kept>,
    /// What was retained was not what it should be.
    pub(super) is_kept_bad: bool,
    /// What is known of the bytes that were written or summed last.
    pub(super) found: Found,
    /// And of those of each register.
    founds: [Found; Register::END as usize],
    pub(super) parts: Parts,
    /// The part that is next to be decoded.
    pub(super) part: u32,
    /// Replies to what was sent that have not come.
    pub(super) awaited: u8,
    pub(super) good: u8,
    pub(super) bad: u8,
    pub(super) bad_members: u8,
    /// Which send it is whose replies are awaited: those of an earlier one, of which the first was enough, count for nothing.
    pub(super) round: u8,
    /// Something was sent whose replies no `Merge` has seen: it goes on to that, whatever becomes of the rest of the plan.
    pub(super) is_unmerged: bool,
    pub(super) fetch: Option<Fetch>,
    /// What of it has failed, and in which step.
    pub(super) failure: Option<(CompletionStatus, u8)>,
}

/// What is fetched: from where, and who has been asked.
pub(super) struct Fetch {
    /// By which step.
    pub(super) at: u8,
    pub(super) place: Place,
    pub(super) before: Shared,
    /// Memory for headers that are yet to be made.
    pub(super) headers: Slice,
    /// Which of the place's channels were asked, or need not be: bit n of the nth.
    pub(super) asked: u8,
    /// Who was asked last.
    pub(super) last: u8,
    pub(super) saw_bad: bool,
}

/// What a piece is given before it begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    Head,
    Own(Register),
}

/// A plan under way.
pub(super) struct Flight {
    pub(super) entry: Entry,
    steps: [Step; STEPS_MAX],
    steps_len: u8,
    /// The first step of the pieces, and their end.
    pub(super) body: Option<(u8, u8)>,
    pub(super) outer: Piece,
    pieces: Vec<Piece>,
    pub(super) count: u16,
    pub(super) running: u16,
    pub(super) told: Told,
    pub(super) failure: Option<(CompletionStatus, u8)>,
    /// Its host is gone: it ends, and nobody is told.
    pub(super) is_orphan: bool,
    /// The answer that it has decided.
    pub(super) answer: Option<Answer>,
    pub(super) reply: Vec<u8>,
    pub(super) needs: Vec<(u16, Purpose, Need)>,
    /// Memory of the host that register 1 is, and how long it is.
    pub(super) lent: Option<(Handle, u32)>,
}

struct Berth {
    generation: u32,
    /// Not there while its steps are done, or if nobody has it.
    flight: Option<Box<Flight>>,
    is_taken: bool,
}

/// The plans under way of a port.
pub(super) struct Flights {
    berths: Vec<Berth>,
    free: Vec<u16>,
    /// Flights that are over, whose memory is used again.
    #[expect(clippy::vec_box, reason = "they go to their berths as they are, and are long")]
    spare: Vec<Box<Flight>>,
    /// Pieces of these.
    spare_pieces: usize,
    flights_max: usize,
}

impl Entry {
    fn new() -> Self {
        Self {
            plan: PlanId(0),
            argument: 0,
            slot: Slot(0),
            handle: Handle(0),
            arguments: Vec::new(),
            notes: Vec::new(),
            has_message: false,
            has_count: false,
            header: [0; HEADER_LEN],
            payload_len: 0,
            answer_len: 0,
        }
    }

    pub(super) fn set(&mut self, entry: &PlanEntry<'_>, has_count: bool) {
        (self.plan, self.argument, self.slot, self.handle) =
            (entry.plan, entry.argument, entry.slot, entry.handle);
        self.arguments.clear();
        self.notes.clear();
        self.arguments.extend_from_slice(entry.arguments);
        (self.has_message, self.has_count) = (false, has_count);
        (self.payload_len, self.answer_len) = (0, 0);
    }

    pub(super) fn set_message(&mut self, header: &[u8; HEADER_LEN], payload_len: u32, answer_len: u32) {
        (self.has_message, self.header) = (true, *header);
        (self.payload_len, self.answer_len) = (payload_len, answer_len);
    }

    pub(super) fn posted(&self) -> Posted<'_> {
        Posted {
            plan: self.plan,
            argument: self.argument,
            slot: self.slot,
            handle: self.handle,
            arguments: &self.arguments,
            message: self.has_message.then_some(Message {
                header: &self.header,
                payload_len: self.payload_len,
                answer_len: self.answer_len,
            }),
            notes: &self.notes,
        }
    }
}

impl Piece {
    fn reset(&mut self) {
        let Self { heads, parts, .. } = std::mem::take(self);
        (self.heads, self.parts) = (heads, parts);
        self.heads.clear();
        self.parts.clear();
    }

    /// One of its own registers.
    pub(super) fn own_mut(&mut self, register: Register) -> Option<&mut Memory> {
        self.own.get_mut(usize::from(register.number().checked_sub(FIRST_OWN)?))
    }

    fn own(&self, register: Register) -> Option<&Memory> {
        self.own.get(usize::from(register.number().checked_sub(FIRST_OWN)?))
    }

    /// Gives it memory.
    pub(super) fn give(&mut self, purpose: Purpose, slice: Slice) {
        match purpose {
            Purpose::Head => self.heads.push(slice),
            Purpose::Own(register) => self.put(register, Memory::Room(slice)),
        }
    }

    /// What is written in one of its own registers.
    pub(super) fn written(&self, register: Register) -> Option<&Shared> {
        match self.own(register)? {
            Memory::Written(shared) => Some(shared),
            Memory::Nothing | Memory::Room(_) => None,
        }
    }

    /// Takes the memory of a register, to be written.
    pub(super) fn take_room(&mut self, register: Register) -> Option<Slice> {
        let own = self.own_mut(register)?;
        match std::mem::take(own) {
            Memory::Room(slice) => Some(slice),
            other => {
                *own = other;
                None
            }
        }
    }

    /// Something is known of a register's bytes.
    pub(super) fn know(&mut self, register: Register, found: Found) {
        self.found = found;
        if let Some(place) = self.founds.get_mut(usize::from(register.number())) {
            *place = found;
        }
    }

    fn known(&self, register: Register) -> Found {
        self.founds.get(usize::from(register.number())).copied().unwrap_or_default()
    }

    /// Bytes of memory that a register has, not written.
    pub(super) fn room_len(&self, register: Register) -> Option<usize> {
        match self.own(register)? {
            Memory::Room(slice) => Some(slice.len()),
            Memory::Nothing | Memory::Written(_) => None,
        }
    }

    pub(super) fn has_nothing(&self, register: Register) -> bool {
        matches!(self.own(register), Some(Memory::Nothing))
    }

    pub(super) fn put(&mut self, register: Register, memory: Memory) {
        if let Some(own) = self.own_mut(register) {
            *own = memory;
        }
    }

    /// Whether something of it is with engines or peers.
    pub(super) fn is_out(&self) -> bool {
        self.awaited > 0 || matches!(self.doing, Doing::Engine | Doing::Fetch(_) | Doing::Transfer)
    }

    /// Lets its memory go.
    pub(super) fn release(&mut self) {
        self.own = Default::default();
        self.heads.clear();
        (self.scratch, self.spare) = (None, None);
        self.kept = None;
        self.fetch = None;
    }
}

impl Flight {
    fn new() -> Self {
        Self {
            entry: Entry::new(),
            steps: [Step::EndEach; STEPS_MAX],
            steps_len: 0,
            body: None,
            outer: Piece::default(),
            pieces: Vec::new(),
            count: 0,
            running: 0,
            told: Told::Once,
            failure: None,
            is_orphan: false,
            answer: None,
            reply: Vec::new(),
            needs: Vec::new(),
            lent: None,
        }
    }

    pub(super) fn set_steps(&mut self, steps: &[Step]) {
        for (place, step) in self.steps.iter_mut().zip(steps) {
            *place = *step;
        }
        self.steps_len = steps.len().min(STEPS_MAX) as u8;
        let place_of = |wanted: Step| self.steps().iter().position(|step| *step == wanted);
        let body = place_of(Step::Each).zip(place_of(Step::EndEach));
        self.body = body.map(|(each, end)| (each as u8 + 1, end as u8));
    }

    pub(super) fn steps(&self) -> &[Step] {
        self.steps.get(..usize::from(self.steps_len)).unwrap_or_default()
    }

    /// Its pieces are so many.
    pub(super) fn set_count(&mut self, count: u16) {
        self.count = if self.body.is_some() { count } else { 0 };
        while self.pieces.len() < usize::from(self.count) {
            self.pieces.push(Piece::default());
        }
        let first = self.body.map_or(0, |(first, _)| first);
        for piece in self.pieces.iter_mut().take(usize::from(self.count)) {
            piece.reset();
            piece.at = first;
        }
        self.outer.reset();
        (self.running, self.failure) = (0, None);
        (self.is_orphan, self.answer, self.lent) = (false, None, None);
        self.reply.clear();
        self.needs.clear();
    }

    pub(super) fn piece_mut(&mut self, piece: u16) -> &mut Piece {
        if piece == OUTER {
            return &mut self.outer;
        }
        match self.pieces.get_mut(usize::from(piece)) {
            Some(piece) => piece,
            // There is none: every caller has the number from the flight itself.
            None => &mut self.outer,
        }
    }

    pub(super) fn piece(&self, piece: u16) -> &Piece {
        self.pieces.get(usize::from(piece)).filter(|_| piece != OUTER).unwrap_or(&self.outer)
    }

    /// What is known of the bytes that a piece reads in a register: its own, or what there was before the pieces.
    pub(super) fn known(&self, piece: u16, register: Register) -> Found {
        let own = self.piece(piece).known(register);
        if register == Register::PAYLOAD || self.piece(piece).written(register).is_some() {
            return own;
        }
        let outer = self.outer.known(register);
        Found { crc: own.crc.or(outer.crc), ..outer }
    }

    /// Where the steps of a piece end.
    pub(super) fn end_of(&self, piece: u16) -> u8 {
        match self.body {
            Some((_, end)) if piece != OUTER => end,
            _ => self.steps_len,
        }
    }

    /// The steps that a piece does, with their numbers.
    pub(super) fn steps_of(&self, piece: u16) -> impl Iterator<Item = (u8, Step)> + use<'_> {
        let body = self.body.unwrap_or((self.steps_len, self.steps_len));
        let steps = self.steps().iter().enumerate().map(|(at, step)| (at as u8, *step));
        steps.filter(move |(at, _)| (piece == OUTER) != (body.0..body.1).contains(at))
    }

    /// Whether memory of a register is not taken before it is written: that of a record, which waits for peers alone.
    pub(super) fn is_record(&self, step: Step, into: Register) -> bool {
        step.record(self.steps()) == Some(into)
    }

    /// What of it failed first.
    pub(super) fn fail(&mut self, piece: u16, status: CompletionStatus, step: u8) {
        let failure = Some((status, step));
        self.failure = self.failure.or(failure);
        let piece = self.piece_mut(piece);
        piece.failure = piece.failure.or(failure);
    }

    pub(super) fn is_over(&self) -> bool {
        self.outer.doing == Doing::Over && self.running == 0
    }

    /// How one of its completions reads.
    pub(super) fn outcome(&self, piece: u16) -> Outcome {
        let of = self.piece(piece);
        // What fails behind the pieces, an answer, is of all of them; and those that were not begun share why.
        let is_done = of.doing == Doing::Over && piece != OUTER;
        let failure = of.failure.or(if is_done { self.outer.failure } else { self.failure });
        let (status, step) = failure.unwrap_or((CompletionStatus::Good, 0));
        Outcome { status, step, bad_members: self.bad_members(piece), found: of.found }
    }

    fn bad_members(&self, piece: u16) -> u8 {
        match self.told {
            Told::Each => self.piece(piece).bad_members,
            Told::Once | Told::Reply => {
                let pieces = self.pieces.iter().take(usize::from(self.count));
                pieces.fold(self.outer.bad_members, |all, piece| all | piece.bad_members)
            }
        }
    }

    /// Keeps a reply for the completion that brings it along.
    pub(super) fn keep_reply(&mut self, header: &[u8; HEADER_LEN], payload: &[u8]) {
        self.reply.clear();
        self.reply.extend_from_slice(header);
        self.reply.extend_from_slice(payload.get(..REPLY_PAYLOAD_MAX).unwrap_or(payload));
    }

    pub(super) fn release(&mut self) {
        self.outer.release();
        self.pieces.iter_mut().take(usize::from(self.count)).for_each(Piece::release);
    }
}

impl Flights {
    pub(super) fn new(flights_max: u32) -> Self {
        let flights_max = (flights_max as usize).min(usize::from(u16::MAX));
        Self { berths: Vec::new(), free: Vec::new(), spare: Vec::new(), spare_pieces: 0, flights_max }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.berths.len() - self.free.len()
    }

    /// One that is to be filled, if there may be another.
    pub(super) fn begin(&mut self) -> Option<(FlightKey, Box<Flight>)> {
        let index = self.free.pop().or_else(|| {
            let is_within = self.berths.len() < self.flights_max;
            is_within.then(|| {
                self.berths.push(Berth { generation: 1, flight: None, is_taken: false });
                (self.berths.len() - 1) as u16
            })
        })?;
        let berth = self.berths.get_mut(usize::from(index))?;
        berth.is_taken = true;
        let flight = self.spare.pop().unwrap_or_else(|| Box::new(Flight::new()));
        self.spare_pieces -= flight.pieces.len();
        Some((FlightKey { index, generation: berth.generation }, flight))
    }

    /// Takes one out to do something with it; it is put back, or ended.
    pub(super) fn take(&mut self, key: FlightKey) -> Option<Box<Flight>> {
        let berth = self.berths.get_mut(usize::from(key.index))?;
        berth.flight.take_if(|_| berth.generation == key.generation)
    }

    pub(super) fn put(&mut self, key: FlightKey, flight: Box<Flight>) {
        if let Some(berth) = self.berths.get_mut(usize::from(key.index)) {
            berth.flight = Some(flight);
        }
    }

    pub(super) fn get_mut(&mut self, key: FlightKey) -> Option<&mut Flight> {
        let berth = self.berths.get_mut(usize::from(key.index))?;
        berth.flight.as_deref_mut().filter(|_| berth.generation == key.generation)
    }

    /// It is over: what it has is kept for another. It is counted until [`Flights::forget`].
    pub(super) fn end(&mut self, key: FlightKey, mut flight: Box<Flight>) {
        if let Some(berth) = self.berths.get_mut(usize::from(key.index)) {
            berth.generation = berth.generation.wrapping_add(1).max(1);
        }
        if self.spare_pieces + flight.pieces.len() > SPARE_PIECES_MAX {
            flight.pieces = Vec::new();
        }
        self.spare_pieces += flight.pieces.len();
        self.spare.push(flight);
    }

    /// Its host has its completions.
    pub(super) fn forget(&mut self, key: FlightKey) {
        if let Some(berth) = self.berths.get_mut(usize::from(key.index))
            && std::mem::take(&mut berth.is_taken)
        {
            self.free.push(key.index);
        }
    }

    /// All that are there.
    pub(super) fn keys(&self) -> Vec<FlightKey> {
        let of = |(index, berth): (usize, &Berth)| {
            berth.flight.as_ref().map(|_| FlightKey { index: index as u16, generation: berth.generation })
        };
        self.berths.iter().enumerate().filter_map(of).collect()
    }
}
