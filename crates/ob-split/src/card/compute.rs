//! What plans have engines do, and what they decode.

use ob_core::{Refused, RefusedReason};
use ob_memory::{Slice, Source};

use super::dialect::{Dialect, Encoding, Found};
use super::flight::{Doing, Flight, FlightKey, Memory, of_token, token_of};
use super::front::Front;
use super::port::Port;
use super::records::BLOCK_LEN;
use super::run::{Went, number};
use crate::engine::{Effort, EngineDone, EngineError, EngineId, Engines, TASK_MAX, Task};
use crate::wire::{CompletionStatus, Otherwise, Register, Step};

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    pub(super) fn compress(
        &mut self,
        key: FlightKey,
        flight: &mut Flight,
        piece: u16,
        (from, into): (Register, Register),
        otherwise: Otherwise,
    ) -> Went {
        let argument = if flight.entry.has_count { Effort::DEFAULT.number() } else { flight.entry.argument };
        let Some(effort) = Effort::new(argument) else { return Went::Hostile };
        if effort == Effort::NONE {
            return match otherwise {
                Otherwise::Copy => self.take_as_it_is(flight, piece, from, into),
                Otherwise::Fail => Went::Failed(CompletionStatus::Engine),
            };
        }
        let Some(source) = self.source(flight, piece, from) else {
            return Went::Failed(CompletionStatus::Refused);
        };
        // An engine that fails for want of room does nothing else: it never needs as much.
        match self.record_tail(key, flight, piece, source.len()) {
            Ok(tail) => {
                self.submit(key, flight, piece, Task::Compress { effort, from: source.into(), into: tail })
            }
            Err(went) => went,
        }
    }

    /// Lends the end of a block to a piece, or it waits in line for one.
    fn record_tail(
        &mut self,
        key: FlightKey,
        flight: &mut Flight,
        piece: u16,
        len: usize,
    ) -> Result<Slice, Went> {
        if len > BLOCK_LEN {
            return Err(Went::Failed(CompletionStatus::Refused));
        }
        let of = flight.piece_mut(piece);
        let may_take = std::mem::take(&mut of.is_next) || self.record_line.is_empty();
        if may_take && let Some(tail) = self.records.lend(len) {
            return Ok(tail);
        }
        (of.doing, of.wants) = (Doing::RecordRoom, len);
        self.record_line.push_back((key, piece));
        Err(Went::Waits)
    }

    /// Memory for a record of just so many bytes, for which a piece waits in line.
    pub(super) fn record_room(
        &mut self,
        key: FlightKey,
        flight: &mut Flight,
        piece: u16,
        len: usize,
    ) -> Result<Slice, Went> {
        let tail = self.record_tail(key, flight, piece, len)?;
        self.records.give_back(tail, Some(len)).ok_or(Went::Failed(CompletionStatus::Refused))
    }

    /// Has those go on for whose records there is room, in their order.
    pub(super) fn take_record_room(&mut self) -> bool {
        let mut moved = false;
        if !self.record_line.is_empty() {
            self.records.look();
        }
        while self.budget.steps > 0
            && let Some((key, piece)) = self.record_line.front().copied()
        {
            let wants = self.flights.get_mut(key).map(|flight| flight.piece(piece).wants);
            if wants.is_some_and(|wants| !self.records.make_room(wants)) {
                break;
            }
            self.record_line.pop_front();
            let Some(mut flight) = self.flights.take(key) else { continue };
            moved = true;
            let of = flight.piece_mut(piece);
            (of.doing, of.is_next) = (Doing::Nothing, true);
            self.go_on(key, flight, piece);
        }
        moved
    }

    /// The bytes of a register are those of another as well: who reads them need not know that they are not shorter.
    fn take_as_it_is(&mut self, flight: &mut Flight, piece: u16, from: Register, into: Register) -> Went {
        let Some(source) = self.source(flight, piece, from) else {
            return Went::Failed(CompletionStatus::Refused);
        };
        let found = Found { len: source.len() as u32, ..flight.known(piece, from) };
        let of = flight.piece_mut(piece);
        of.know(into, found);
        of.put(into, Memory::Written(source));
        Went::On
    }

    /// Has an engine do a task that can do it: at once, if that is its way and the turn has something left for it. If none takes it now,
    /// its step is done once more when one has room.
    pub(super) fn submit(&mut self, key: FlightKey, flight: &mut Flight, piece: u16, mut task: Task) -> Went {
        if let Some(result) = self.do_at_once(&mut task) {
            let made = self.take_tail(task, &result);
            return self.task_over(flight, piece, made, result);
        }
        let mut is_busy = false;
        for id in 0..self.engines.list().len() {
            let able = |can: &crate::wire::Engine| can_do(can, &task);
            if !self.engines.list().get(id).is_some_and(able) {
                continue;
            }
            let Some(engine) = self.engines.engine(EngineId(id as u8)) else { continue };
            match engine.submit(token_of(key, piece), task) {
                Ok(()) => {
                    self.tasks += 1;
                    flight.piece_mut(piece).doing = Doing::Engine;
                    return Went::Waits;
                }
                Err(Refused { op, reason }) => {
                    task = op;
                    is_busy |= reason == RefusedReason::Busy;
                }
            }
        }
        self.put_back(flight, piece, task);
        if !is_busy {
            return Went::Failed(CompletionStatus::Engine);
        }
        flight.piece_mut(piece).doing = Doing::EngineRoom;
        self.engine_line.push_back((key, piece));
        Went::Waits
    }

    /// The memory of a task that nobody took goes back to where it came from.
    fn put_back(&mut self, flight: &mut Flight, piece: u16, task: Task) {
        match task {
            Task::Compress { into, .. } => _ = self.records.give_back(into, None),
            Task::Decompress { into, .. } => flight.piece_mut(piece).scratch = Some(into),
            Task::Checksum { .. } => {}
        }
    }

    /// What a task came to that an engine has done here and now.
    fn do_at_once(&mut self, task: &mut Task) -> Option<Result<u32, EngineError>> {
        if self.budget.bytes == 0 {
            return None;
        }
        let able = |can: &crate::wire::Engine| can_do(can, task);
        let id = self.engines.list().iter().position(able)?;
        self.engines.engine(EngineId(id as u8))?.at_once(task)
    }

    /// Takes what engines have done.
    pub(super) fn poll_engines(&mut self) -> bool {
        let mut moved = false;
        for id in 0..self.engines.list().len() {
            while self.tasks > 0 && self.budget.bytes > 0 {
                let engine = self.engines.engine(EngineId(id as u8));
                let Some(done) = engine.and_then(|engine| engine.poll(self.now)) else { break };
                self.tasks -= 1;
                moved = true;
                self.engine_done(done);
                // The next one writes where that has left off.
                self.take_record_room();
            }
        }
        while let Some((key, piece)) = self.scratch_line.front().copied() {
            let Some(flight) = self.flights.get_mut(key) else {
                self.scratch_line.pop_front();
                continue;
            };
            let Some(scratch) = self.memory.take_scratch() else { break };
            let of = flight.piece_mut(piece);
            (of.scratch, of.doing) = (Some(scratch), Doing::Nothing);
            self.scratch_line.pop_front();
            self.ready.push_back((key, piece));
            moved = true;
        }
        if moved || self.tasks == 0 {
            for _ in 0..self.engine_line.len() {
                let Some((key, piece)) = self.engine_line.pop_front() else { break };
                if let Some(flight) = self.flights.get_mut(key) {
                    flight.piece_mut(piece).doing = Doing::Nothing;
                    self.ready.push_back((key, piece));
                }
            }
        }
        moved
    }

    pub(super) fn note_engines_due(&mut self) {
        self.engines_due = None;
        for id in 0..self.engines.list().len() {
            let engine = self.engines.engine(EngineId(id as u8)).filter(|_| self.tasks > 0);
            let due = engine.and_then(|engine| engine.next_due());
            self.engines_due = self.engines_due.into_iter().chain(due).min();
        }
    }

    fn engine_done(&mut self, EngineDone { token, task, result }: EngineDone) {
        let (key, piece) = of_token(token);
        let (task, record) = self.take_tail(task, &result);
        let Some(mut flight) = self.flights.take(key) else { return };
        let at = flight.piece(piece).at;
        flight.piece_mut(piece).doing = Doing::Nothing;
        match self.task_over(&mut flight, piece, (task, record), result) {
            Went::On => flight.piece_mut(piece).at = at + 1,
            Went::Failed(status) => flight.fail(piece, status, at + 1),
            Went::Again | Went::Waits | Went::Hostile => {}
        }
        self.flights.put(key, flight);
        self.ready.push_back((key, piece));
    }

    /// What became of a task is what becomes of the step that it was of.
    fn task_over(
        &mut self,
        flight: &mut Flight,
        piece: u16,
        (task, record): (Option<Task>, Option<Slice>),
        result: Result<u32, EngineError>,
    ) -> Went {
        let at = usize::from(flight.piece(piece).at);
        let step = flight.steps().get(at).copied();
        match (task, step) {
            (Some(Task::Checksum { .. }), Some(Step::Checksum { of })) => {
                result.map_or(Went::Failed(CompletionStatus::Engine), |crc| {
                    let found = Found { crc: Some(crc), ..flight.known(piece, of) };
                    flight.piece_mut(piece).know(of, found);
                    Went::On
                })
            }
            (None, Some(Step::Compress { from, into, otherwise })) => {
                self.compressed(flight, piece, (from, into, otherwise), record, result)
            }
            (
                Some(Task::Decompress { from: compressed, into: scratch, .. }),
                Some(Step::Decode { from, into }),
            ) => {
                drop(compressed);
                self.decompressed(flight, piece, (from, into), scratch, result)
            }
            _ => Went::Failed(CompletionStatus::Engine),
        }
    }

    /// A task is over, and paid for. The tail that an engine had to compress into comes back, without the record that it has made.
    fn take_tail(&mut self, task: Task, result: &Result<u32, EngineError>) -> (Option<Task>, Option<Slice>) {
        self.spend(cost(&task));
        match task {
            Task::Compress { into: tail, .. } => {
                let len = result.as_ref().ok().map(|len| *len as usize);
                (None, self.records.give_back(tail, len))
            }
            task => (Some(task), None),
        }
    }

    fn compressed(
        &mut self,
        flight: &mut Flight,
        piece: u16,
        (from, register, otherwise): (Register, Register, Otherwise),
        record: Option<Slice>,
        result: Result<u32, EngineError>,
    ) -> Went {
        match (result, record) {
            // What the host was granted has no room for it.
            (Ok(len), Some(_))
                if register == Register::ANSWER && flight.lent.is_some_and(|(_, room)| len > room) =>
            {
                Went::Failed(CompletionStatus::Engine)
            }
            (Ok(len), Some(record)) => {
                let of = flight.piece_mut(piece);
                of.know(register, Found { len, encoding: Encoding::Lz4, crc: None });
                of.put(register, Memory::Written(record.share()));
                Went::On
            }
            (Err(EngineError::NoGain), _) if otherwise == Otherwise::Copy => {
                self.take_as_it_is(flight, piece, from, register)
            }
            _ => Went::Failed(CompletionStatus::Engine),
        }
    }

    /// Decodes part after part.
    pub(super) fn decode(
        &mut self,
        key: FlightKey,
        flight: &mut Flight,
        piece: u16,
        from: Register,
        into: Register,
    ) -> Went {
        let refused = CompletionStatus::Refused;
        if flight.is_record(Step::Decode { from, into }, into) && flight.piece(piece).has_nothing(into) {
            let len = self.dialect.memory(&flight.entry.posted(), number(piece), into);
            match self.record_room(key, flight, piece, len as usize) {
                Ok(room) => flight.piece_mut(piece).put(into, Memory::Room(room)),
                Err(went) => return went,
            }
        }
        let Some(source) = self.source(flight, piece, from) else { return Went::Failed(refused) };
        loop {
            let of = flight.piece(piece);
            let Some(part) = of.parts.as_slice().get(of.part as usize).copied() else { break };
            let Some((range, place)) = part.ranges() else { return Went::Failed(refused) };
            let (skip, take) = (part.skip as usize, part.take as usize);
            if part.encoding == Encoding::Lz4 {
                let Some(bytes) = source.part(range).filter(|_| part.decoded as usize <= TASK_MAX) else {
                    drop(source);
                    return self.fetch_again(flight, piece, from);
                };
                let scratch = flight.piece_mut(piece).scratch.take().or_else(|| self.memory.take_scratch());
                let Some(into) = scratch else {
                    flight.piece_mut(piece).doing = Doing::ScratchRoom;
                    self.scratch_line.push_back((key, piece));
                    return Went::Waits;
                };
                drop(source);
                let task = Task::Decompress { from: Source::from(bytes), into, len: part.decoded };
                return self.submit(key, flight, piece, task);
            }
            self.spend(take);
            let Some(place) = self.decode_place(flight, piece, into, place) else {
                return Went::Failed(refused);
            };
            match source.get(range.start + skip..range.start + skip + take) {
                Some(bytes) if part.encoding == Encoding::Plain => place.copy_from_slice(bytes),
                _ if part.encoding == Encoding::Zeros => place.fill(0),
                _ => return Went::Failed(refused),
            }
            flight.piece_mut(piece).part += 1;
        }
        self.decoded(flight, piece, into)
    }

    /// All parts are there.
    fn decoded(&mut self, flight: &mut Flight, piece: u16, into: Register) -> Went {
        let of = flight.piece_mut(piece);
        (of.scratch, of.spare) = (None, None);
        if into != Register::ANSWER {
            let of = flight.piece_mut(piece);
            let ends = of.parts.as_slice().iter().map(|part| part.into + part.take);
            let len = ends.max().unwrap_or(0);
            let Some(mut room) = of.take_room(into) else { return Went::Failed(CompletionStatus::Refused) };
            room.truncate(len as usize);
            of.know(into, Found { len, encoding: Encoding::Plain, crc: None });
            of.put(into, Memory::Written(room.share()));
        }
        Went::On
    }

    fn decompressed(
        &mut self,
        flight: &mut Flight,
        piece: u16,
        (fetched, register): (Register, Register),
        scratch: Slice,
        result: Result<u32, EngineError>,
    ) -> Went {
        let of = flight.piece(piece);
        let part = of.parts.as_slice().get(of.part as usize).copied();
        let is_whole = part.is_some_and(|part| result == Ok(part.decoded));
        let Some((part, (_, place))) =
            part.and_then(|part| Some((part, part.ranges()?))).filter(|_| is_whole)
        else {
            drop(scratch);
            return self.fetch_again(flight, piece, fetched);
        };
        let skip = part.skip as usize;
        let Some(place) = self.decode_place(flight, piece, register, place) else {
            return Went::Failed(CompletionStatus::Refused);
        };
        let Some(bytes) = scratch.get(skip..skip + place.len()) else {
            return Went::Failed(CompletionStatus::NotVerified);
        };
        place.copy_from_slice(bytes);
        let of = flight.piece_mut(piece);
        of.scratch = Some(scratch);
        of.part += 1;
        Went::Again
    }

    pub(super) fn decode_place<'a>(
        &'a mut self,
        flight: &'a mut Flight,
        piece: u16,
        into: Register,
        range: std::ops::Range<usize>,
    ) -> Option<&'a mut [u8]> {
        if into == Register::ANSWER {
            return self.answer_place(flight, range);
        }
        match flight.piece_mut(piece).own_mut(into)? {
            Memory::Room(room) => room.get_mut(range),
            Memory::Nothing | Memory::Written(_) => None,
        }
    }
}

/// What a task costs of a turn, in bytes that are copied meanwhile: the hardest efforts take milliseconds, so that one is a turn's work.
fn cost(task: &Task) -> usize {
    match task {
        Task::Compress { effort, from, .. } => {
            let weight = match effort.number() {
                0 | 1 => 2,
                2 => 4,
                3 => 16,
                _ => 64,
            };
            from.len() * weight
        }
        Task::Checksum { from, .. } => from.len(),
        Task::Decompress { len, .. } => *len as usize,
    }
}

fn can_do(engine: &crate::wire::Engine, task: &Task) -> bool {
    match task {
        Task::Compress { effort, from, .. } => {
            engine.compresses && effort.number() <= engine.efforts && from.len() <= engine.task_max as usize
        }
        Task::Decompress { len, .. } => engine.decompresses && *len <= engine.task_max,
        Task::Checksum { from, .. } => engine.sums && from.len() <= engine.task_max as usize,
    }
}
