//! What becomes of a command: answered by `Control`, or on its way to a device or a service.

use ob_core::Instant;
use ob_wire_nvme::command::{AdminOpcode, DataDirection, FABRICS_OPCODE, FabricsKind, Fuse, IoOpcode};
use ob_wire_nvme::io::Abort;
use ob_wire_nvme::pdu::ADMIN_CAPSULE_DATA_MAX;
use ob_wire_nvme::{CommandId, DataPointer, QueueId, Status, SubmissionEntry};

use super::Target;
use super::associations::PendingAnswer;
use super::buffers::Loan;
use super::connection::{ConnectionKey, Data, FirstHalf};
use super::control::{QueueIdentity, Verdict};
use super::flight::{Flight, FlightKey, State, Work};
use super::io::{Io, IoKind, Place};
use super::receive::CapsuleData;
use crate::plant::{self, Bug};

/// A command in the moment of its arrival.
pub(super) struct Arrival<'a> {
    pub(super) key: ConnectionKey,
    pub(super) entry: &'a SubmissionEntry,
    pub(super) data: CapsuleData,
    pub(super) data_len: u32,
}

impl Target {
    /// Takes a command with what its capsule brought.
    pub(super) fn command(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        entry: &SubmissionEntry,
        data: CapsuleData,
        data_len: u32,
    ) {
        let Some(connection) = self.connection_mut(key) else { return };
        connection.advance_head();
        let command = entry.command();
        let queue = connection.queue.map(|queue| queue.identity);
        // Before anything can refuse it: a host that is answered at all sends no Keep Alive (TBKAS).
        if let Some(queue) = queue.filter(|_| !plant::is_planted(Bug::RefusedUnheard)) {
            self.control.heard(now, queue);
        }
        let Some(connection) = self.connection_mut(key) else { return };
        let is_conflict = connection.has_command(command) && !self.forget_event_request(key, command);
        let Some(connection) = self.connection_mut(key) else { return };
        if is_conflict {
            connection.respond(command, Status::COMMAND_ID_CONFLICT.with_do_not_retry(), 0);
            self.counts.failed += 1;
            return self.touch(key);
        }
        let is_io = entry.opcode != FABRICS_OPCODE
            && queue.is_some_and(|queue| queue.queue != QueueId::ADMIN)
            && !is_reservation(entry.opcode);
        let arrival = Arrival { key, entry, data, data_len };
        let result = match queue {
            Some(queue) if is_io => self.io_command(now, queue, arrival),
            _ => {
                self.abandon_fused(key);
                self.control_command(now, queue, arrival)
            }
        };
        match (result, queue) {
            (Err(status), _) => self.refuse(key, command, status),
            (Ok(()), Some(queue)) if plant::is_planted(Bug::RefusedUnheard) => {
                self.control.heard(now, queue);
            }
            (Ok(()), _) => {}
        }
    }

    /// Lets a command have the id of an Asynchronous Event Request, whose host has plainly given it up: SPDK's does so
    /// before it shuts a controller down, and uses the ids again.
    fn forget_event_request(&mut self, key: ConnectionKey, command: CommandId) -> bool {
        let queue =
            self.connection_mut(key).and_then(|connection| connection.queue).map(|queue| queue.identity);
        let is_forgotten = queue.is_some_and(|queue| self.control.forget_event_request(queue, command));
        if is_forgotten && let Some(connection) = self.connection_mut(key) {
            connection.remove_command(command);
        }
        is_forgotten
    }

    /// Answers a command that was never entered as under way.
    fn refuse(&mut self, key: ConnectionKey, command: CommandId, status: Status) {
        self.counts.failed += 1;
        if let Some(connection) = self.connection_mut(key) {
            connection.respond(command, status, 0);
        }
        self.touch(key);
    }

    fn control_command(
        &mut self,
        now: Instant,
        queue: Option<QueueIdentity>,
        arrival: Arrival<'_>,
    ) -> Result<(), Status> {
        self.counts.control_commands += 1;
        let Arrival { key, entry, data, data_len } = arrival;
        if queue.is_none() && !is_connect(entry) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry());
        }
        let direction = entry.direction();
        // Where there is no data, the pointer is reserved.
        let pointer = match direction {
            DataDirection::None => DataPointer::None,
            _ => entry.data_pointer(data_len)?,
        };
        let wants_data = direction == DataDirection::ToController;
        let controller = queue.map(|queue| queue.controller);
        let flight = || Flight {
            transfer_len: pointer.len(),
            ..Flight::new(key, controller, entry.command(), Work::Control(*entry))
        };
        match (wants_data, pointer) {
            (true, DataPointer::Transport { len }) => {
                if len > ADMIN_CAPSULE_DATA_MAX {
                    return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
                }
                self.enter_waiting(now, flight());
            }
            (true, DataPointer::InCapsule { offset, len }) => {
                let block = cut(data, offset, len as usize)?;
                self.run_control(now, key, queue, entry, &block.slice, len);
            }
            (_, pointer) => self.run_control(now, key, queue, entry, &[], pointer.len()),
        }
        Ok(())
    }

    /// Has `Control` answer a command whose data is there.
    fn run_control(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        queue: Option<QueueIdentity>,
        entry: &SubmissionEntry,
        data: &[u8],
        transfer_len: u32,
    ) {
        let Some(queue) = queue else { return self.connect(now, key, entry, data) };
        if !self.prove_later(key, queue, entry, data, transfer_len) {
            self.execute_control(now, key, queue, entry, data, transfer_len);
        }
    }

    /// The same for one that need not wait any more.
    pub(super) fn execute_control(
        &mut self,
        now: Instant,
        key: ConnectionKey,
        queue: QueueIdentity,
        entry: &SubmissionEntry,
        data: &[u8],
        transfer_len: u32,
    ) {
        let command = entry.command();
        let verdict = self.control.command(now, queue, entry, data, transfer_len);
        self.notice_proof(key, queue);
        if queue.queue == QueueId::ADMIN && entry.opcode == AdminOpcode::Abort.code() {
            // What it has aborted is answered before it (Base §5.1).
            self.handle_events(now);
            self.abort_foreign(queue.controller, Abort::parse(entry));
        }
        match verdict {
            Verdict::Done { result, status } => self.answer(key, command, status, result),
            Verdict::CloseAfter { result, status } => {
                self.answer(key, command, status, result);
                self.close_gently(now, key);
            }
            Verdict::Held => {
                if let Some(connection) = self.connection_mut(key) {
                    connection.remove_command(command);
                    connection.add_command(command, None);
                }
            }
            Verdict::Data { mut bytes, result } => {
                bytes.truncate(transfer_len as usize);
                self.answer_with(key, command, bytes, result);
            }
            Verdict::DataAfter { mut bytes, namespace, version } => {
                bytes.truncate(transfer_len as usize);
                let saved = vec![(namespace, version)];
                let pending = PendingAnswer::new(key, command, namespace);
                self.answer_later(PendingAnswer { saved, bytes, ..pending });
            }
            Verdict::DoneAfter { namespace, saved, drain, result, status } => {
                let pending = PendingAnswer::new(key, command, namespace);
                self.answer_later(PendingAnswer { saved, drain, result, status, ..pending });
            }
        }
    }

    /// Answers a command with what it asked for, if there is anything.
    pub(super) fn answer_with(
        &mut self,
        key: ConnectionKey,
        command: CommandId,
        bytes: Vec<u8>,
        result: u64,
    ) {
        if bytes.is_empty() {
            return self.answer(key, command, Status::SUCCESS, result);
        }
        if let Some(connection) = self.connection_mut(key) {
            connection.remove_command(command);
            connection.respond_with_data(command, Data::Owned(bytes), result);
        }
        self.relieve(key);
        self.touch(key);
    }

    fn io_command(&mut self, now: Instant, queue: QueueIdentity, arrival: Arrival<'_>) -> Result<(), Status> {
        let first = self.take_fused(&arrival)?;
        let (key, is_first) = (arrival.key, arrival.entry.fuse() == Ok(Fuse::First));
        let result = self.begin_io(now, queue, arrival, first);
        if result.is_err()
            && is_first
            && let Some(connection) = self.connection_mut(key)
        {
            connection.fused = Some(FirstHalf::Refused);
        }
        // The first half of a pair whose second could not even begin.
        if result.is_err()
            && let Some(first) = first
        {
            self.finish(first, Err(Status::ABORTED_FAILED_FUSED));
        }
        result
    }

    fn begin_io(
        &mut self,
        now: Instant,
        queue: QueueIdentity,
        arrival: Arrival<'_>,
        first: Option<FlightKey>,
    ) -> Result<(), Status> {
        let (key, entry) = (arrival.key, arrival.entry);
        let invalid_opcode = Status::INVALID_OPCODE.with_do_not_retry();
        if let Some(opcode) = self.config.foreign(entry.opcode) {
            // No opcode of a service is a half of a pair.
            let is_fused = first.is_some();
            return match is_fused {
                true => Err(Status::INVALID_FIELD.with_do_not_retry()),
                false => self.begin_vendor(now, queue, arrival, opcode),
            };
        }
        let opcode = IoOpcode::try_from(entry.opcode).map_err(|_| invalid_opcode)?;
        let nsid = entry.namespace().0;
        let namespace = self.control.namespace(queue.controller, nsid)?;
        let mut io = Io::parse(opcode, entry, namespace, self.config.transfer_len())?;
        self.control.admit(queue, namespace, io.access())?;
        if matches!(io.place, Place::Foreign(_)) && (io.kind == IoKind::Compare || first.is_some()) {
            return Err(invalid_opcode);
        }
        // A comparison is followed by a write and by nothing else (FUSES); neither half is executed then.
        if first.is_some() && io.kind != IoKind::Write {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        // A host that switched the cache off is promised that every write is durable.
        if namespace.volatile_cache
            && io.changes_data()
            && !self.control.volatile_cache_enabled(queue.controller)
        {
            io.is_durable = true;
        }
        self.counts.count_io(io.kind);
        self.control.count_io(queue.controller, io.count());
        if matches!(io.place, Place::Foreign(_)) {
            return self.begin_foreign(now, queue, arrival, io);
        }
        let mut flight = Flight::new(key, Some(queue.controller), entry.command(), Work::Io(io));
        match io.kind {
            IoKind::Verify => {
                flight.transfer_len = io.chunk_len() as u32;
                self.enter_waiting(now, flight);
                return Ok(());
            }
            IoKind::Flush | IoKind::WriteZeroes => {
                let flight = self.enter(flight);
                self.data_ready(now, flight);
                return Ok(());
            }
            _ => {}
        }
        self.arrange_data(now, arrival, flight, first)
    }

    /// Takes a command's data out of its capsule, or has it asked for; a read gets its buffer.
    fn arrange_data(
        &mut self,
        now: Instant,
        arrival: Arrival<'_>,
        mut flight: Flight,
        first: Option<FlightKey>,
    ) -> Result<(), Status> {
        let Arrival { key, entry, data, data_len } = arrival;
        let Work::Io(io) = flight.work else { return Ok(()) };
        let pointer = entry.data_pointer(data_len)?;
        let transfer_len = io.transfer_len(pointer.len() as usize)?;
        flight.transfer_len = transfer_len as u32;
        match (pointer, io.kind) {
            (DataPointer::InCapsule { .. }, IoKind::Read) => {
                return Err(Status::INVALID_SGL_TYPE.with_do_not_retry());
            }
            (DataPointer::InCapsule { offset, .. }, _) => {
                let loan = cut(data, offset, transfer_len)?;
                let Loan { slice, lease } = self.out_of_capsule(key, &io, first, loan)?;
                (flight.data, flight.lease) = (Some(slice), lease);
                let flight = self.enter_fused(now, flight, entry, first)?;
                self.data_ready(now, flight);
            }
            _ => {
                let flight = self.enter_fused(now, flight, entry, first)?;
                self.wait_for_buffer(now, key, flight);
            }
        }
        Ok(())
    }

    /// Copies data into a buffer for transfers that would keep a capsule's for long: connections that find none of those are not read
    /// from at all.
    fn out_of_capsule(
        &self,
        key: ConnectionKey,
        io: &Io,
        first: Option<FlightKey>,
        loan: Loan,
    ) -> Result<Loan, Status> {
        // The first half's data may lie behind the very capsule that finds no buffer.
        let is_awaiting = |first: &Flight| matches!(first.state, State::Buffer | State::Data(_));
        let must_leave = first.and_then(|first| self.flights.get(first)).is_some_and(is_awaiting);
        if io.kind != IoKind::Discard && !must_leave {
            return Ok(loan);
        }
        let holder = self.connection(key).map(|connection| &connection.holder);
        match holder.and_then(|holder| self.buffers.for_transfer(holder, loan.len())) {
            Some(mut copy) => {
                copy.copy_from_slice(&loan);
                Ok(copy)
            }
            None if must_leave => Err(Status::COMMAND_INTERRUPTED),
            // Devices will be done with it.
            None => Ok(loan),
        }
    }

    /// Enters a command as under way.
    pub(super) fn enter(&mut self, flight: Flight) -> FlightKey {
        let (connection, command) = (flight.connection, flight.command);
        let flight = self.flights.insert(flight);
        if let Some(connection) = self.connection_mut(connection) {
            connection.add_command(command, Some(flight));
        }
        flight
    }

    pub(super) fn enter_waiting(&mut self, now: Instant, flight: Flight) {
        let connection = flight.connection;
        let flight = self.enter(flight);
        self.wait_for_buffer(now, connection, flight);
    }

    /// A command has the data, or the buffer, that it needs.
    pub(super) fn data_ready(&mut self, now: Instant, key: FlightKey) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        let has_waited = flight.state != State::Buffer;
        if let Some(status) = flight.failed {
            return self.finish(key, Err(status));
        }
        match &flight.work {
            Work::Control(_) => self.control_ready(now, key),
            Work::Io(_) => {
                if has_waited && let Err(status) = self.check_again(key) {
                    return self.finish(key, Err(status));
                }
                self.begin(key);
            }
            Work::Foreign(_) => {
                if has_waited && let Err(status) = self.check_again(key) {
                    return self.finish(key, Err(status));
                }
                self.hand_out(key);
            }
        }
    }

    fn control_ready(&mut self, now: Instant, key: FlightKey) {
        let Some(flight) = self.flights.remove(key) else { return };
        let connection_key = flight.connection;
        let Work::Control(entry) = flight.work else { return };
        let Some(connection) = self.connection_mut(connection_key) else { return };
        let queue = connection.queue.map(|queue| queue.identity);
        let data = flight.data.as_deref().unwrap_or_default();
        self.run_control(now, connection_key, queue, &entry, data, flight.transfer_len);
    }
}

/// The part of a capsule's data that a command names.
pub(super) fn cut(data: CapsuleData, offset: u32, len: usize) -> Result<Loan, Status> {
    match data {
        CapsuleData::Unusable(status) => Err(status),
        CapsuleData::None => Err(Status::INVALID_SGL_LENGTH.with_do_not_retry()),
        CapsuleData::Loan(Loan { mut slice, lease }) => {
            let offset = offset as usize;
            if offset.checked_add(len).is_none_or(|end| end > slice.len()) {
                return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
            }
            if offset > 0 {
                // Devices want data that begins where the buffer does. No host is known to leave a gap.
                slice.copy_within(offset..offset + len, 0);
            }
            slice.truncate(len);
            Ok(Loan { slice, lease })
        }
    }
}

fn is_connect(entry: &SubmissionEntry) -> bool {
    entry.opcode == FABRICS_OPCODE && entry.fabrics_kind() == FabricsKind::Connect.code()
}

fn is_reservation(opcode: u8) -> bool {
    matches!(
        IoOpcode::try_from(opcode),
        Ok(IoOpcode::ReservationRegister
            | IoOpcode::ReservationReport
            | IoOpcode::ReservationAcquire
            | IoOpcode::ReservationRelease)
    )
}
