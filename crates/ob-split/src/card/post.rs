//! Plans that are posted: checked, given memory, begun, and ended.

use super::dialect::{Dialect, PIECES_MAX, Pieces, Reject, Told};
use super::flight::{Doing, Flight, FlightKey, OUTER, Purpose};
use super::front::Front;
use super::memory::Need;
use super::messages::Owner;
use super::outbox::{Bytes, Waiting};
use super::port::{Hostile, Port};
use crate::engine::Engines;
use crate::wire::{
    Completion, CompletionStatus, Definition, ENTRY_LEN_MIN, HEADER_LEN, PlanEntry, Register, Step,
};

/// The memory that a step needs besides what is there: of a register, and whether it makes a message.
fn writes(step: Step) -> Option<Register> {
    match step {
        Step::Compress { into, .. }
        | Step::Copy { into, .. }
        | Step::Fetch { into }
        | Step::Decode { into, .. }
        | Step::Zero { into }
        | Step::FromHost { into } => Some(into),
        _ => None,
    }
}

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    /// Takes a plan. (What is taken and then found to be impossible ends with the group.)
    pub(super) fn post(&mut self, entry: &PlanEntry<'_>, definition: &Definition) -> Result<(), Hostile> {
        let (key, mut flight) = self.flights.begin().ok_or(Hostile::Plans)?;
        flight.entry.set(entry, definition.has_count());
        flight.set_steps(definition.plan().steps());
        flight.set_count(0);
        // Whoever posts much has less of it done in this turn.
        self.budget.steps = self.budget.steps.saturating_sub(1 + entry.arguments.len() / 8);
        self.cross(entry.plan, usize::from(ENTRY_LEN_MIN) + entry.arguments.len());
        match self.check(&mut flight) {
            Ok(()) => {
                let waits_not = flight.failure.is_some() || flight.needs.is_empty();
                if waits_not || (self.line.is_empty() && self.give_memory(&mut flight)) {
                    self.ready.push_back((key, OUTER));
                } else {
                    self.line.push_back(key);
                }
                self.flights.put(key, flight);
                Ok(())
            }
            Err(hostile) => {
                self.flights.end(key, flight);
                self.flights.forget(key);
                Err(hostile)
            }
        }
    }

    fn check(&mut self, flight: &mut Flight) -> Result<(), Hostile> {
        let handle = flight.entry.handle;
        let is_answer = |step: &Step| matches!(step, Step::Answer { .. });
        if handle.is_of_host() {
            if flight.steps().iter().any(is_answer) {
                return Err(Hostile::Handle(handle.0));
            }
            if self.own.contains_key(&handle.0) {
                return Err(Hostile::Busy(handle.0));
            }
        } else {
            self.check_answers(handle, flight.steps())?;
            let held = self.messages.of_plan(handle).ok_or(Hostile::Handle(handle.0))?;
            if held.plans > 0 {
                return Err(Hostile::Busy(handle.0));
            }
            flight.entry.set_message(&held.header, held.payload_len, held.answer_len);
        }
        let (posted, slots) = (flight.entry.posted(), &mut self.slots);
        let mut unknown = None;
        self.dialect.slots(&posted, &mut |slot| {
            if unknown.is_none() && !slots.hold(slot) {
                unknown = Some(slot);
            }
        });
        if let Some(slot) = unknown {
            return Err(Hostile::Slot(slot.0));
        }
        let mut notes = Vec::new();
        std::mem::swap(&mut notes, &mut flight.entry.notes);
        let pieces = self.dialect.pieces(&flight.entry.posted(), &mut notes);
        flight.entry.notes = notes;
        let pieces = match pieces {
            Ok(pieces) if pieces.count <= PIECES_MAX => Ok(pieces),
            Ok(_) => Err(CompletionStatus::Refused),
            Err(Reject::Hostile) => return Err(Hostile::Arguments),
            Err(Reject::Ends(status)) => Err(status),
        };
        match pieces {
            Ok(Pieces { count, told }) => {
                flight.set_count(count);
                flight.told = told;
                self.lend(flight)?;
                self.find_needs(flight)?;
                if !self.memory.could(flight.needs.iter().map(|(.., need)| *need)) {
                    flight.fail(OUTER, CompletionStatus::Refused, 0);
                }
            }
            Err(status) => {
                flight.told = Told::Once;
                flight.fail(OUTER, status, 0);
            }
        }
        // From here on it is under way.
        match self.messages.get_mut(handle) {
            Some(held) => {
                held.plans += 1;
                if let Owner::Peer(key) = held.owner {
                    self.wires.idles(key, false);
                }
            }
            None => _ = self.own.insert(handle.0, ()),
        }
        if let Some(held) = flight.lent.and_then(|(handle, _)| self.messages.get_mut(handle)) {
            held.plans += 1;
        }
        Ok(())
    }

    /// Which memory all of its pieces take.
    fn find_needs(&self, flight: &mut Flight) -> Result<(), Hostile> {
        let mut needs = std::mem::take(&mut flight.needs);
        for piece in std::iter::once(OUTER).chain(0..flight.count) {
            let mut known = 0u8;
            for (_, step) in flight.steps_of(piece) {
                self.find_needs_of(flight, piece, step, &mut known, &mut needs).ok_or(Hostile::Arguments)?;
            }
        }
        flight.needs = needs;
        Ok(())
    }

    fn find_needs_of(
        &self,
        flight: &Flight,
        piece: u16,
        step: Step,
        known: &mut u8,
        needs: &mut Vec<(u16, Purpose, Need)>,
    ) -> Option<()> {
        let posted = flight.entry.posted();
        let number = if piece == OUTER { 0 } else { piece };
        let mut add = |purpose, need| needs.push((piece, purpose, need));
        if matches!(step, Step::Send { .. } | Step::Fetch { .. }) {
            add(Purpose::Head, Need::Head);
        }
        // Where the payload is read, the piece's bytes must be there.
        let from = match step {
            Step::Compress { from, .. }
            | Step::Copy { from, .. }
            | Step::Checksum { of: from }
            | Step::ToHost { from } => Some(from),
            Step::Send { payload } => payload,
            _ => None,
        };
        let mut payload_len = None;
        if from == Some(Register::PAYLOAD) {
            let range = self.range_of(flight, piece)?;
            payload_len = Some((range.end - range.start) as u32);
        }
        let Some(into) = writes(step).filter(|into| into.number() > Register::ANSWER.number()) else {
            return Some(());
        };
        let bit = 1 << into.number();
        if flight.is_record(step, into) {
            *known |= bit;
            return Some(());
        }
        if *known & bit == 0 {
            *known |= bit;
            let len = payload_len.filter(|_| matches!(step, Step::Copy { .. }));
            let len = len.unwrap_or_else(|| self.dialect.memory(&posted, number, into));
            add(Purpose::Own(into), Need::Bytes(len));
        }
        Some(())
    }

    /// Which bytes of the payload a piece has, if they are there.
    pub(super) fn range_of(&self, flight: &Flight, piece: u16) -> Option<std::ops::Range<usize>> {
        let posted = flight.entry.posted();
        let len = posted.message?.payload_len;
        let range =
            if piece == OUTER { self.dialect.payload(&posted) } else { self.dialect.piece(&posted, piece) };
        (range.start <= range.end && range.end <= len).then_some(range.start as usize..range.end as usize)
    }

    /// Gives a plan all of its memory, or none.
    fn give_memory(&self, flight: &mut Flight) -> bool {
        for at in 0..flight.needs.len() {
            let Some((piece, purpose, need)) = flight.needs.get(at).copied() else { break };
            let Some(slice) = self.memory.take(need) else {
                flight.release();
                return false;
            };
            flight.piece_mut(piece).give(purpose, slice);
        }
        true
    }

    /// Begins those of the line for which there is memory now.
    pub(super) fn take_memory(&mut self) -> bool {
        let mut moved = false;
        // What comes back while somebody asks is seen the next time.
        let returned = self.memory.returned();
        if std::mem::replace(&mut self.returned, returned) == returned {
            return false;
        }
        while let Some(key) = self.line.front().copied() {
            if let Some(mut flight) = self.flights.take(key) {
                let is_given = flight.is_orphan || self.give_memory(&mut flight);
                self.flights.put(key, flight);
                if !is_given {
                    break;
                }
                self.ready.push_back((key, OUTER));
            }
            self.line.pop_front();
            moved = true;
        }
        moved
    }

    /// The plans of a host that is gone come to their ends: what of them waits for nobody, at once.
    pub(super) fn end_orphans(&mut self) {
        self.line.clear();
        self.engine_line.clear();
        self.scratch_line.clear();
        self.record_line.clear();
        self.room_line.clear();
        self.transfers.clear();
        for key in self.flights.keys() {
            let Some(flight) = self.flights.get_mut(key) else { continue };
            // Those that have not begun will not.
            let begun = if flight.outer.doing == Doing::Pieces { flight.count } else { 0 };
            for piece in (0..begun).chain([OUTER]) {
                let of = flight.piece_mut(piece);
                // What was to be moved is gone with the link.
                let waits = matches!(
                    of.doing,
                    Doing::EngineRoom | Doing::ScratchRoom | Doing::RecordRoom | Doing::ChunkRoom
                );
                if waits || of.doing == Doing::Transfer {
                    of.doing = Doing::Nothing;
                }
                self.ready.push_back((key, piece));
            }
        }
    }

    /// A plan is over: the host is told, and its message answered then.
    pub(super) fn finish(&mut self, key: FlightKey, mut flight: Box<Flight>) {
        self.give_back_lent(&mut flight);
        flight.release();
        let handle = flight.entry.handle;
        if flight.entry.has_message
            && let Some(held) = self.messages.get_mut(handle)
        {
            held.plans = held.plans.saturating_sub(1);
            if let Owner::Peer(key) = held.owner
                && !held.is_answered
            {
                self.wires.idles(key, true);
            }
            if flight.is_orphan {
                // What it has written since is not what the next host has asked for.
                held.written.clear();
            }
            // Of an orphan the answer stays where it was.
            if let Some(answer) = flight.answer.take_if(|_| flight.is_orphan)
                && let Some(Bytes::Own(slice)) = answer.with
            {
                held.answer = Some(slice);
            }
        }
        if flight.is_orphan {
            self.left_at = Some(self.now);
            self.flights.end(key, flight);
            self.flights.forget(key);
            return;
        }
        self.own.remove(&handle.0);
        self.has_ended = true;
        let (posted, slots) = (flight.entry.posted(), &mut self.slots);
        self.dialect.slots(&posted, &mut |slot| slots.release(slot));
        self.complete(key, &mut flight);
        self.flights.end(key, flight);
        self.tell_broken();
    }

    fn complete(&mut self, key: FlightKey, flight: &mut Flight) {
        let pieces = if flight.told == Told::Each && flight.count > 0 { flight.count } else { 1 };
        let mut answer = flight.answer.take();
        for number in 0..pieces {
            let is_whole = flight.told != Told::Each || flight.count == 0;
            let outcome = flight.outcome(if is_whole { OUTER } else { number });
            let words = self.dialect.words(&flight.entry.posted(), number, &outcome);
            let is_last = number + 1 == pieces;
            let is_good = outcome.status == CompletionStatus::Good;
            let reply = self.outbox.take_reply(&mut flight.reply);
            let offset =
                reply.as_ref().map_or(words.offset, |reply| reply.len().saturating_sub(HEADER_LEN) as u32);
            let completion = Completion {
                handle: flight.entry.handle,
                status: outcome.status,
                has_more: !is_last,
                bad_members: outcome.bad_members,
                units: words.units,
                offset,
                word: if is_good { words.word } else { outcome.step.into() },
            };
            let last = is_last.then(|| (key, answer.take()));
            let plan = flight.entry.posted().plan;
            self.cross(plan, Completion::LEN + reply.as_ref().map_or(0, Vec::len));
            self.outbox.done.push_back(Waiting { completion, reply, last });
        }
    }
}
