//! The life of an I/O command from its data to its answer.

use ob_core::{DeviceCompletion, DeviceError, DeviceOp};
use ob_wire_nvme::io::BlockRange;
use ob_wire_nvme::{CommandId, Status};

use super::super::Target;
use super::super::backlog::Owner;
use super::super::connection::{ConnectionKey, Data};
use super::super::control::ControllerKey;
use super::super::flight::{FlightKey, State, Work};
use super::super::foreign::waits_for_range;
use super::{Io, IoKind, Place, extent};
use crate::plant::{self, Bug};

/// What is to be done next for a command.
enum Step {
    Submit(DeviceOp),
    Finish(Result<(), Status>),
}

impl Target {
    /// A device finished an operation that [`Target::next_device_op`] gave out.
    pub fn completed(&mut self, completion: DeviceCompletion) {
        let key = FlightKey::from_token(completion.token);
        let Some(flight) = self.flights.get_mut(key) else { return };
        let Work::Io(io) = &mut flight.work else { return };
        let Place::Device(backend) = io.place else { return };
        self.backlog.done(backend, key);
        let was_flush = matches!(completion.op, DeviceOp::Flush);
        let op_len = completion.op.extent().map_or(0, |(_, len)| len);
        match completion.op {
            DeviceOp::Read { into, .. } if io.kind == IoKind::Compare => flight.other = Some(into),
            DeviceOp::Read { into, .. } => flight.data = Some(into),
            DeviceOp::Write { from, .. } => flight.data = from.into_slice(),
            DeviceOp::Flush | DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => {}
        }
        if flight.state == State::Orphan {
            return self.orphan_done(key);
        }
        match completion.result {
            // Deallocation is advice: a device that cannot do it has taken it.
            Err(DeviceError::Unsupported) if io.kind == IoKind::Discard => {}
            // The zeros are not advice: they are written where space cannot be given back.
            Err(DeviceError::Unsupported) if io.kind == IoKind::WriteZeroes && io.deallocates => {
                io.deallocates = false;
                return self.step(key);
            }
            Err(error) => {
                let status = io.status(error);
                return self.device_failed(key, status);
            }
            Ok(()) => {}
        }
        let is_done = match io.kind {
            // What a host reads with FUA is durable when it gets it.
            IoKind::Read => {
                io.done = io.len;
                was_flush || !io.is_durable || plant::is_planted(Bug::ReadsNotForced)
            }
            IoKind::Write => true,
            IoKind::Flush | IoKind::Hint => true,
            IoKind::WriteZeroes => {
                io.done += op_len;
                let is_durable = io.is_durable && !plant::is_planted(Bug::ZeroesNotForced);
                was_flush || (io.done >= io.len && !is_durable)
            }
            IoKind::Discard => {
                io.part += op_len;
                false
            }
            IoKind::Verify => {
                io.done += if was_flush { 0 } else { op_len };
                was_flush || (io.done >= io.len && !io.is_durable)
            }
            IoKind::Compare if io.is_durable && !was_flush => {
                io.done = io.len;
                false
            }
            IoKind::Compare => return self.compared(key),
        };
        if is_done {
            self.finish_compared(key);
            self.finish(key, Ok(()));
        } else if let Err(status) = self.check_again(key) {
            // What it was admitted to has changed, and what is left of it is not to be done.
            self.device_failed(key, status);
        } else {
            self.step(key);
        }
    }

    /// Submits what a command needs next, unless others have its range.
    pub(in crate::target) fn step(&mut self, key: FlightKey) {
        match self.next_step(key) {
            Some(Step::Finish(result)) => self.finish(key, result),
            Some(Step::Submit(op)) => self.submit(key, op),
            None => {}
        }
    }

    fn submit(&mut self, key: FlightKey, op: DeviceOp) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        let Work::Io(io) = &flight.work else { return };
        let Place::Device(backend) = io.place else { return };
        if !self.ranges.is_empty()
            && waits_for_range(flight)
            && let Some((offset, len)) = op.extent()
            && self.ranges.blocks(io.place, offset, len, &[key, io.partner.unwrap_or(key)])
        {
            match op {
                DeviceOp::Read { into, .. } if io.kind == IoKind::Compare => flight.other = Some(into),
                DeviceOp::Read { into, .. } => flight.data = Some(into),
                DeviceOp::Write { from, .. } => flight.data = from.into_slice(),
                DeviceOp::Flush | DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => {}
            }
            // One that is tried again and has to go on waiting counts once.
            self.counts.waits_for_range += u64::from(flight.state != State::Range);
            flight.state = State::Range;
            self.blocked.push_back(key);
            return;
        }
        flight.state = State::Queued;
        let (connection, number) = (flight.connection, flight.number);
        let account = self.connection(connection).map(|connection| connection.holder.account());
        self.backlog.push(backend, Owner { key, account: account.unwrap_or_default(), number }, op);
    }

    fn next_step(&mut self, key: FlightKey) -> Option<Step> {
        let flight = self.flights.get_mut(key)?;
        let Work::Io(io) = &mut flight.work else { return None };
        let offset = io.offset;
        let op = match io.kind {
            IoKind::Read | IoKind::Verify | IoKind::Compare if io.len > 0 && io.done >= io.len => {
                DeviceOp::Flush
            }
            IoKind::Read => DeviceOp::Read { offset, into: flight.data.take()? },
            IoKind::Write => {
                let durable = io.is_durable && !plant::is_planted(Bug::ForceUnitAccessIgnored);
                DeviceOp::Write { offset, from: flight.data.take()?.into(), durable }
            }
            IoKind::Flush if plant::is_planted(Bug::FlushAtOnce) => return Some(Step::Finish(Ok(()))),
            IoKind::Flush => DeviceOp::Flush,
            // What is done is counted when it is: an operation that has to wait for its range is asked for again.
            IoKind::WriteZeroes if io.done < io.len => {
                let (offset, len) = io.part_from(io.done, self.config.zeroes_at_once);
                match io.deallocates {
                    true => DeviceOp::Discard { offset, len },
                    false => DeviceOp::WriteZeroes { offset, len },
                }
            }
            IoKind::WriteZeroes => DeviceOp::Flush,
            IoKind::Hint => return Some(Step::Finish(Ok(()))),
            IoKind::Verify => {
                let mut into = flight.data.take()?;
                into.truncate(io.chunk_len() as usize);
                DeviceOp::Read { offset: offset + io.done, into }
            }
            IoKind::Compare => {
                let len = io.len as usize;
                match flight.other.take().or_else(|| self.buffers.for_compare_too(len)) {
                    Some(into) => DeviceOp::Read { offset, into },
                    None => return Some(Step::Finish(Err(Status::COMMAND_INTERRUPTED))),
                }
            }
            IoKind::Discard => return self.next_range(key),
        };
        Some(Step::Submit(op))
    }

    /// The next range of Dataset Management, or the flush behind the last.
    fn next_range(&mut self, key: FlightKey) -> Option<Step> {
        let at_once = self.config.zeroes_at_once;
        let flight = self.flights.get_mut(key)?;
        let controller = flight.controller;
        let Work::Io(io) = &mut flight.work else { return None };
        let namespace = controller.map(|controller| self.control.namespace(controller, io.nsid))?;
        let data = flight.data.as_deref().unwrap_or_default();
        if io.len > 0 && io.part >= io.len {
            (io.done, io.part, io.len) = (io.done + 1, 0, 0);
        }
        if io.part > 0 {
            return Some(Step::Submit(io.next_discard(at_once)));
        }
        // Ranges without blocks are legal and say nothing.
        let count = io.ranges;
        let at = |index: u64| BlockRange::parse(data, index as usize).filter(|_| index < count);
        while at(io.done).is_some_and(|range| range.blocks == 0) {
            io.done += 1;
        }
        let range = at(io.done);
        let extent = match (range, namespace) {
            (None, _) => None,
            (Some(_), Err(status)) => Some(Err(status)),
            (Some(range), Ok(namespace)) => Some(extent(namespace, range.start, range.blocks.into())),
        };
        let op = match extent {
            Some(Err(status)) => return Some(Step::Finish(Err(status))),
            Some(Ok((offset, len))) => {
                (io.offset, io.len) = (offset, len);
                io.next_discard(at_once)
            }
            None if io.is_durable && !io.has_flushed => {
                io.has_flushed = true;
                DeviceOp::Flush
            }
            None => return Some(Step::Finish(Ok(()))),
        };
        Some(Step::Submit(op))
    }

    /// Answers a command and forgets it.
    pub(in crate::target) fn finish(&mut self, key: FlightKey, result: Result<(), Status>) {
        // A host that was asked for data may send it whatever becomes of the command: the answer comes after it.
        if let (Err(status), Some(flight)) = (result, self.flights.get_mut(key))
            && matches!(flight.state, State::Data(_))
            && flight.received < flight.transfer_len
        {
            flight.failed.get_or_insert(status);
            return;
        }
        let Some(mut flight) = self.flights.remove(key) else { return };
        self.ranges_freed |= !self.ranges.is_empty() && self.ranges.release(key);
        if let Some(owner) = flight.owner {
            return self.read_over(owner, flight, result);
        }
        if flight.state == State::Buffer
            && let Some(connection) = self.connection_mut(flight.connection)
        {
            // Half a pair may have failed while it stood in line.
            connection.waiting.retain(|waiting| *waiting != key);
        }
        let command = flight.command;
        let status = result.err().unwrap_or(Status::SUCCESS);
        let len = flight.transfer_len as usize;
        let is_read = matches!(&flight.work, Work::Io(io) if io.kind == IoKind::Read);
        if let (Some(io), Some(controller)) = (flight.work.io(), flight.controller) {
            if status.is_success() {
                self.counts.bytes_written += if io.kind == IoKind::Write { io.len } else { 0 };
            } else {
                self.record_error(flight.connection, controller, command, io, status);
            }
        }
        // What happens to one half of a pair happens to the other.
        if let Work::Io(Io { partner: Some(partner), .. }) = flight.work
            && !status.is_success()
        {
            self.finish(partner, Err(Status::ABORTED_FAILED_FUSED));
        }
        let data = flight.data.take().filter(|_| is_read && status.is_success());
        self.counts.failed += u64::from(!status.is_success());
        let Some(connection) = self.connection_mut(flight.connection) else { return };
        connection.remove_command(command);
        match data {
            Some(data) => {
                connection.respond_with_data(command, Data::Slice(data, flight.lease.take()), 0);
                self.counts.bytes_read += len as u64;
            }
            None => {
                connection.end_transfer(key);
                connection.respond(command, status, 0);
            }
        }
        self.note_answer(flight.connection);
        self.relieve(flight.connection);
        self.touch(flight.connection);
    }

    pub(in crate::target) fn record_error(
        &mut self,
        connection: ConnectionKey,
        controller: ControllerKey,
        command: CommandId,
        io: &Io,
        status: Status,
    ) {
        let queue = self.connection(connection).and_then(|connection| connection.queue);
        if let Some(queue) = queue.filter(|queue| queue.identity.controller == controller) {
            let block = io.offset / u64::from(io.block_len.max(1));
            self.control.record_error(queue.identity, command, status, io.nsid, block);
        }
    }

    /// Checks a command anew that has waited: what it was admitted to may have changed.
    pub(in crate::target) fn check_again(&self, key: FlightKey) -> Result<(), Status> {
        if plant::is_planted(Bug::AdmittedForEver) {
            return Ok(());
        }
        let gone = Status::INVALID_NAMESPACE.with_do_not_retry();
        let flight = self.flights.get(key).ok_or(gone)?;
        if let Work::Foreign(foreign) = &flight.work
            && foreign.io.is_none()
        {
            return self.check_vendor(flight.connection, foreign);
        }
        let Some(io) = flight.work.io() else { return Ok(()) };
        let queue = self.connection(flight.connection).and_then(|connection| connection.queue).ok_or(gone)?;
        let namespace = self.control.namespace(queue.identity.controller, io.nsid)?;
        if namespace.key != io.namespace {
            return Err(gone);
        }
        self.control.admit(queue.identity, namespace, io.access())?;
        if io.kind != IoKind::Discard && io.len > 0 {
            let block_len = u64::from(namespace.block_len);
            extent(namespace, io.offset / block_len, io.len / block_len)?;
        }
        Ok(())
    }

    /// An operation of a command whose connection is gone is done.
    pub(in crate::target) fn orphan_done(&mut self, key: FlightKey) {
        let Some(flight) = self.flights.remove(key) else { return };
        if !plant::is_planted(Bug::OrphansKept) || self.is_awaited(flight.controller) {
            self.ranges_freed |= self.ranges.release(key);
        }
        if let (Some(io), Some(controller)) = (flight.work.io(), flight.controller)
            && io.changes_data()
        {
            self.orphan_ended(controller);
        }
    }
}
