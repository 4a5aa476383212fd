//! The steps of plans.

use ob_memory::Shared;

use super::dialect::{Dialect, Encoding, Found, Reject};
use super::flight::{Doing, Flight, FlightKey, Memory, OUTER};
use super::front::Front;
use super::messages::Owner;
use super::outbox::{Answer, Bytes};
use super::peers::merge;
use super::port::{Hostile, Port};
use super::retained::Kept;
use crate::engine::{Engines, Task};
use crate::plant::{Bug, is_planted};
use crate::wire::{CompletionStatus, Register, Step};

/// What became of a step.
pub(super) enum Went {
    /// It is done.
    On,
    /// It is done once more, or what it waits for is there.
    Again,
    /// Something of it is under way.
    Waits,
    Failed(CompletionStatus),
    Hostile,
}

impl From<Reject> for Went {
    fn from(reject: Reject) -> Self {
        match reject {
            Reject::Hostile => Self::Hostile,
            Reject::Ends(status) => Self::Failed(status),
        }
    }
}

/// The number of a piece that the dialect knows.
pub(super) fn number(piece: u16) -> u16 {
    if piece == OUTER { 0 } else { piece }
}

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    /// Does steps of what can go on, as many as a turn may.
    pub(super) fn run_ready(&mut self) -> bool {
        let mut moved = false;
        while self.budget.steps > 0
            && self.budget.bytes > 0
            && let Some((key, piece)) = self.ready.pop_front()
        {
            moved = true;
            let Some(flight) = self.flights.take(key) else { continue };
            self.go_on(key, flight, piece);
        }
        moved
    }

    /// Does steps of a piece, as many as it can.
    pub(super) fn go_on(&mut self, key: FlightKey, mut flight: Box<Flight>, piece: u16) {
        self.advance(key, &mut flight, piece);
        if flight.is_over() {
            self.finish(key, flight);
        } else {
            self.flights.put(key, flight);
        }
    }

    fn advance(&mut self, key: FlightKey, flight: &mut Flight, piece: u16) {
        while flight.piece(piece).doing == Doing::Nothing && self.budget.steps > 0 {
            let at = flight.piece(piece).at;
            self.look_for_gone(flight, piece);
            let of = flight.piece(piece);
            let is_stopped = of.failure.is_some() || (flight.failure.is_some() && !of.is_unmerged);
            if is_stopped || flight.is_orphan || at >= flight.end_of(piece) {
                return self.piece_over(key, flight, piece);
            }
            let Some(step) = flight.steps().get(usize::from(at)).copied() else { return };
            self.budget.steps -= 1;
            match self.step(key, flight, piece, step) {
                Went::On => flight.piece_mut(piece).at = at + 1,
                Went::Again => {}
                Went::Waits => return,
                Went::Failed(status) => flight.fail(piece, status, at + 1),
                Went::Hostile => {
                    self.hostile = Some(Hostile::Arguments);
                    flight.fail(piece, CompletionStatus::Refused, at + 1);
                }
            }
        }
        if flight.piece(piece).doing == Doing::Nothing {
            self.ready.push_back((key, piece));
        }
    }

    /// Of a message that its peer has given up, nothing further is begun but a plan that only answers. What was sent is on its way to
    /// several peers, and half of it would be worse than all: it comes to its end, and the answer is what is left out.
    fn look_for_gone(&mut self, flight: &mut Flight, piece: u16) {
        let is_answer = matches!(flight.steps().first(), Some(Step::Answer { .. }));
        let of = flight.piece(piece);
        let (at, is_unmerged) = (of.at, of.is_unmerged && !is_planted(Bug::SentGivenUp));
        if flight.failure.is_some() || is_answer || is_unmerged || at >= flight.end_of(piece) {
            return;
        }
        let held = self.messages.get_mut(flight.entry.handle).filter(|_| flight.entry.has_message);
        if held.is_none_or(|held| !held.is_gone) {
            return;
        }
        let status = match flight.steps().get(usize::from(at)) {
            Some(Step::Answer { .. }) => CompletionStatus::Withheld,
            _ => CompletionStatus::GivenUp,
        };
        flight.fail(piece, status, at + 1);
    }

    /// A piece comes to its end when nothing of it is out any more.
    fn piece_over(&mut self, key: FlightKey, flight: &mut Flight, piece: u16) {
        let (failure, body) = (flight.failure, flight.body);
        let of = flight.piece_mut(piece);
        if of.is_out() {
            return;
        }
        // One that has done all of its steps went well, whatever has become of others.
        if piece != OUTER && of.at < body.map_or(0, |(_, end)| end) {
            of.failure = of.failure.or(failure);
        }
        of.doing = Doing::Over;
        let kept = of.kept.take();
        let went_well = of.failure.is_none() || is_planted(Bug::RetainedEarly);
        if let Some(kept) = kept.filter(|_| went_well && !flight.is_orphan) {
            self.records.retain(kept);
        }
        let of = flight.piece_mut(piece);
        if piece != OUTER {
            of.release();
            flight.running = flight.running.saturating_sub(1);
            if flight.running == 0 {
                flight.outer.at = body.map_or(0, |(_, end)| end + 1);
                flight.outer.doing = Doing::Nothing;
                self.ready.push_back((key, OUTER));
            }
        }
    }

    fn step(&mut self, key: FlightKey, flight: &mut Flight, piece: u16, step: Step) -> Went {
        match step {
            Step::Each => self.begin_pieces(key, flight),
            Step::EndEach => Went::On,
            Step::Compress { from, into, otherwise } => {
                self.compress(key, flight, piece, (from, into), otherwise)
            }
            Step::Copy { from, into } => self.copy(flight, piece, from, into),
            Step::Checksum { of } => match self.source(flight, piece, of) {
                Some(from) => {
                    let (from, seed) = (from.into(), self.dialect.seed(&flight.entry.posted()));
                    self.submit(key, flight, piece, Task::Checksum { from, seed })
                }
                None => Went::Failed(CompletionStatus::Refused),
            },
            Step::Send { payload } => self.send(key, flight, piece, payload),
            Step::Merge { answers } => merge(flight, piece, answers),
            Step::Fetch { into } => self.fetch(key, flight, piece, into),
            Step::Decode { from, into } => self.decode(key, flight, piece, from, into),
            Step::Zero { into } => self.zero(flight, piece, into),
            Step::Keep { what } => self.keep(flight, piece, what),
            Step::ToHost { from } => self.move_to_host(key, flight, piece, from),
            Step::FromHost { into } => self.move_from_host(key, flight, piece, into),
            Step::Answer { payload } => self.decide_answer(flight, payload),
        }
    }

    /// Remembers what was sent, to be retained when all have it.
    fn keep(&mut self, flight: &mut Flight, piece: u16, what: Register) -> Went {
        let before = flight.piece(piece).before.filter(|_| self.records.retains());
        let Some(before) = before else { return Went::On };
        let Some(name) = self.dialect.kept(&flight.entry.posted(), number(piece)) else { return Went::On };
        let label = self.slots.label(name.slot, name.place);
        let Some(source) = self.source(flight, piece, what) else {
            return Went::Failed(CompletionStatus::Refused);
        };
        // Those who wait for memory need it more than a copy does.
        if let Some(payload) = self.records.own_or_copy(source, self.record_line.is_empty()) {
            flight.piece_mut(piece).kept = Some(Kept { label, before, payload });
        }
        Went::On
    }

    fn begin_pieces(&mut self, key: FlightKey, flight: &mut Flight) -> Went {
        flight.running = flight.count;
        if flight.count == 0 {
            flight.outer.at = flight.body.map_or(0, |(_, end)| end + 1);
            return Went::Again;
        }
        flight.outer.doing = Doing::Pieces;
        self.ready.extend((0..flight.count).map(|piece| (key, piece)));
        Went::Waits
    }

    /// What a register has, for a piece to read.
    pub(super) fn source(&mut self, flight: &Flight, piece: u16, register: Register) -> Option<Shared> {
        if register == Register::PAYLOAD {
            let range = self.range_of(flight, piece)?;
            let held = self.messages.get_mut(flight.entry.handle)?;
            if held.payload.is_none() && matches!(held.owner, Owner::Peer(_)) {
                // A message without payload has an empty one.
                return self.memory.empty()?.part(range);
            }
            return held.payload.as_ref()?.part(range);
        }
        let own = flight.piece(piece).written(register);
        own.or_else(|| flight.outer.written(register)).cloned()
    }

    pub(super) fn copy(&mut self, flight: &mut Flight, piece: u16, from: Register, into: Register) -> Went {
        let Some(source) = self.source(flight, piece, from) else {
            return Went::Failed(CompletionStatus::Refused);
        };
        self.spend(source.len());
        if into == Register::ANSWER {
            let place = self.answer_place(flight, 0..source.len());
            let Some(place) = place else { return Went::Failed(CompletionStatus::Refused) };
            place.copy_from_slice(&source);
            return Went::On;
        }
        let found = Found { len: source.len() as u32, ..flight.known(piece, from) };
        let of = flight.piece_mut(piece);
        let room = of.take_room(into);
        let Some(mut room) = room.filter(|room| room.len() >= source.len()) else {
            return Went::Failed(CompletionStatus::Refused);
        };
        room.truncate(source.len());
        room.copy_from_slice(&source);
        of.know(into, found);
        of.put(into, Memory::Written(room.share()));
        Went::On
    }

    fn zero(&mut self, flight: &mut Flight, piece: u16, into: Register) -> Went {
        if into == Register::ANSWER {
            let len = flight.entry.posted().message.map_or(0, |message| message.answer_len as usize);
            self.spend(len);
            let place = self.answer_place(flight, 0..len);
            let Some(place) = place else { return Went::Failed(CompletionStatus::Refused) };
            place.fill(0);
            return Went::On;
        }
        let Some(mut room) = flight.piece_mut(piece).take_room(into) else {
            return Went::Failed(CompletionStatus::Refused);
        };
        self.spend(room.len());
        room.fill(0);
        let of = flight.piece_mut(piece);
        of.know(into, Found { len: room.len() as u32, encoding: Encoding::Plain, crc: None });
        of.put(into, Memory::Written(room.share()));
        Went::On
    }

    /// A part of the answer's memory, which is counted as written.
    pub(super) fn answer_place(
        &mut self,
        flight: &Flight,
        range: std::ops::Range<usize>,
    ) -> Option<&mut [u8]> {
        let held = self.messages.get_mut(flight.entry.handle)?;
        let place = held.answer.as_mut()?.get_mut(range.clone())?;
        held.written.add(range);
        Some(place)
    }

    /// Decides the answer, which leaves when the completion is delivered.
    fn decide_answer(&mut self, flight: &mut Flight, payload: Option<Register>) -> Went {
        let refused = Went::Failed(CompletionStatus::Refused);
        let posted = flight.entry.posted();
        let (status, handle) = (self.dialect.status(&posted), flight.entry.handle);
        let is_refusal = payload.is_none() && status != 0;
        let is_open = self.gate.is_open(self.lease_now()) || (is_refusal && self.gate.is_there());
        if !is_open || !self.dialect.may_answer(self.now, &posted) {
            return Went::Failed(CompletionStatus::Withheld);
        }
        let shared = match payload {
            Some(register) if register != Register::ANSWER => match self.source(flight, OUTER, register) {
                Some(shared) => Some(shared),
                None => return refused,
            },
            _ => None,
        };
        let Some(held) = self.messages.of_plan(handle) else { return refused };
        let with = match (payload, shared) {
            (Some(_), Some(shared)) => Some(Bytes::Shared(shared)),
            (Some(_), None) => {
                // What nobody has written is somebody else's, of before.
                if !held.written.is_whole(held.answer_len as usize) && !is_planted(Bug::AnswerUncovered) {
                    return refused;
                }
                let Some(slice) = held.answer.take() else { return refused };
                Some(Bytes::Own(slice))
            }
            (None, _) => None,
        };
        held.is_answered = true;
        flight.answer = Some(Answer { handle, status, with });
        Went::On
    }

    pub(super) fn spend(&mut self, bytes: usize) {
        self.budget.bytes = self.budget.bytes.saturating_sub(bytes);
    }
}
