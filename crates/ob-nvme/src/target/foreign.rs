//! Commands that somebody else answers: a service behind the target, such as storage functions or volumes.
//!
//! ```text
//!   vendor opcode, or namespace of a service
//!        │  admitted, data whole, nobody before it on its range
//!        ▼
//!   events ─▶ next_foreign ─▶ service ─┬─ lend ───────────▶ the connection's line for buffers ─────────┐
//!     ▲                                ├─ foreign_read ───▶ Io: ranges, admission, backlog ─▶ device ─┤
//!     │                                └─ foreign_done ───▶ answer ─▶ Output                          │
//!     └─ Command, Lent, Read, Aborted, Ended, ControllerEnded ◀────────────────────────────────────────┘
//! ```
//!
//! A queue out and calls in, like [`Target::next_device_op`] and [`Target::completed`]: nothing of a service runs while the
//! target does something, so a service decides how much it does before others have their turn. What it does not take is
//! bounded by what hosts may have under way and by the memory that is lent.
//!
//! A command that was handed out stays until [`Target::foreign_done`], whatever becomes of its connection: of one that ended
//! the service hears, nobody is answered, and if it is a write then who overlaps it goes on waiting, as with a device.

use std::collections::{BTreeSet, VecDeque};

use ob_core::Instant;
use ob_memory::Shared;
use ob_wire_nvme::command::DataDirection;
use ob_wire_nvme::io::Abort;
use ob_wire_nvme::{DataPointer, Status, SubmissionEntry};

use super::Target;
use super::buffers::{LOANS_MAX, Loan, Loans};
use super::config::ForeignOpcode;
use super::connection::{ConnectionKey, Data};
use super::control::{Access, ControllerKey, IoCount, NamespaceKey, QueueIdentity};
use super::dispatch::{Arrival, cut};
use super::flight::{Flight, FlightKey, State, Work};
use super::io::{Io, IoKind, Place};
use super::waiting::NotNow;
use crate::plant::{self, Bug};

/// A command that was handed out. Never used twice; one that is answered finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignKey(FlightKey);

impl ForeignKey {
    /// A number that no other command has at the same time, below the most that were ever under way at once: a place in a list.
    pub fn slot(self) -> usize {
        self.0.slot()
    }
}

/// A command for a service.
#[derive(Debug)]
pub struct ForeignCommand {
    /// What the target knows it by.
    pub key: ForeignKey,
    /// Who sent it.
    pub queue: QueueIdentity,
    /// As it came. Its data pointer says nothing that is not here.
    pub entry: SubmissionEntry,
    /// The namespace that it names, if it names one.
    pub namespace: Option<NamespaceKey>,
    /// The first byte there, of a command of the NVM command set that names blocks.
    pub offset: u64,
    /// How many bytes from there on; of Dataset Management 0, because its ranges are in the data.
    pub len: u64,
    /// It may be answered when it is durable and not before. With a cache that the host has switched off, every write is so.
    pub is_durable: bool,
    /// What the host sent along, all of it.
    pub data: Option<Loan>,
    /// How many bytes the host takes with the answer.
    pub answer_len_max: u32,
}

/// What a service hears, in the order in which it happened.
#[derive(Debug)]
pub enum ForeignEvent {
    /// A command, whose data is whole and which was admitted.
    Command(ForeignCommand),
    /// What [`Target::lend`] was asked for.
    Lent {
        /// For this command.
        key: ForeignKey,
        /// As they were asked for.
        loans: Loans,
    },
    /// A [`Target::foreign_read`] is over.
    Read {
        /// Of this command.
        key: ForeignKey,
        /// As it was asked for.
        nsid: u32,
        /// As it was asked for.
        offset: u64,
        /// The buffer, with what is on the device; or why there is nothing.
        result: Result<Loan, Status>,
    },
    /// The host does not want to wait for this command any longer. It is to be answered as soon as that can be, in whatever way.
    Aborted(ForeignKey),
    /// The connection of this command is gone, and nothing more is heard of its reads, nor of what it was to be lent. It has to be
    /// answered all the same when it is over: until then, others wait for the range of a write.
    Ended(ForeignKey),
    /// A controller that had commands here has ended. Nothing comes from it again: what a service keeps for it can go.
    ControllerEnded(ControllerKey),
}

/// What a command is answered with, besides a number.
#[derive(Debug)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// These bytes, sent from where they are.
    Loan(Loan),
    /// The same of memory that others read too.
    Shared(Shared),
}

/// Why no buffer is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LendError {
    /// One of them is longer than a buffer, or there are more of them than the target has for a command.
    #[error("the target has not so much for a command")]
    Never,
    /// The command waits for buffers already.
    #[error("the command was not lent what was asked for before")]
    Asked,
    /// The command is answered, or its connection is gone.
    #[error("nobody waits for the answer to this command")]
    Gone,
}

/// A read that was not begun.
#[derive(Debug)]
pub struct ReadRefused {
    /// What an ordinary read would have been answered with.
    pub status: Status,
    /// The buffer that it was to go to.
    pub into: Loan,
}

/// A command of a service, as a flight has it.
pub(super) struct Foreign {
    entry: SubmissionEntry,
    /// What it is, in a namespace of a service; nothing of a vendor's command.
    pub(super) io: Option<Io>,
    /// Bytes of the buffers that its service waits for.
    wanted: Option<[Option<u32>; LOANS_MAX]>,
    /// The host gives it up: the service was told, or is not to have it.
    is_aborted: bool,
}

impl Foreign {
    fn new(entry: &SubmissionEntry, io: Option<Io>) -> Self {
        Self { entry: *entry, io, wanted: None, is_aborted: false }
    }

    /// Bytes of the longest buffer that its service waits for.
    pub(super) fn wanted_len(&self) -> usize {
        self.wanted.iter().flatten().flatten().max().map_or(0, |len| *len as usize)
    }
}

/// What waits for the service.
#[derive(Default)]
pub(super) struct Handed {
    events: VecDeque<Event>,
    /// Controllers of which a service has had commands.
    controllers: BTreeSet<ControllerKey>,
    /// A command was answered, and what waits for its end was not looked at since.
    pub(super) has_ended: bool,
}

enum Event {
    Command(FlightKey),
    Lent { key: FlightKey, loans: Loans },
    Read { key: FlightKey, nsid: u32, offset: u64, result: Result<Loan, Status> },
    Aborted(FlightKey),
    Ended(FlightKey),
    ControllerEnded(ControllerKey),
}

impl Handed {
    /// Whether there is something to do: an event, or an end that others waited for.
    pub(super) fn can_go_on(&self) -> bool {
        !self.events.is_empty() || self.has_ended
    }

    /// A controller has ended, and none of its connections is left.
    pub(super) fn controller_ended(&mut self, controller: ControllerKey) {
        // Whoever has had a command takes events.
        if self.controllers.remove(&controller) {
            self.events.push_back(Event::ControllerEnded(controller));
        }
    }
}

impl Target {
    /// The next thing for a service to know. While there is one, [`Target::can_go_on`].
    pub fn next_foreign(&mut self) -> Option<ForeignEvent> {
        while let Some(event) = self.foreign.events.pop_front() {
            match event {
                Event::Command(key) => {
                    if let Some(command) = self.take_foreign(key) {
                        return Some(ForeignEvent::Command(command));
                    }
                }
                // What a command was lent, or has read, is nobody's once it is answered.
                Event::Lent { key, .. } | Event::Read { key, .. } | Event::Aborted(key)
                    if self.serving(ForeignKey(key)).is_none() => {}
                Event::Lent { key, loans } => {
                    return Some(ForeignEvent::Lent { key: ForeignKey(key), loans });
                }
                Event::Read { key, nsid, offset, result } => {
                    return Some(ForeignEvent::Read { key: ForeignKey(key), nsid, offset, result });
                }
                Event::Aborted(key) => return Some(ForeignEvent::Aborted(ForeignKey(key))),
                // The same of one that was answered, though its connection was gone.
                Event::Ended(key) if self.flights.get(key).is_none() => {}
                Event::Ended(key) => return Some(ForeignEvent::Ended(ForeignKey(key))),
                Event::ControllerEnded(controller) => {
                    return Some(ForeignEvent::ControllerEnded(controller));
                }
            }
        }
        None
    }

    /// Asks for buffers for reads or an answer. They come all at once, with [`ForeignEvent::Lent`], and are counted for the command's
    /// connection as every other of it: who waits stands in one line with the host's own commands there, which is served in its order.
    ///
    /// Whoever waits for a buffer must not keep others from theirs, so a service asks for all that a command needs in one
    /// call, and does not wait with what the command brought: it takes that out, or drops it, before. A connection that holds nothing is lent so much
    /// whatever its share is, and what cannot be lent to such a one is refused.
    pub fn lend(&mut self, key: ForeignKey, lens: &[usize]) -> Result<(), LendError> {
        if !self.buffers.can_lend(lens) {
            return Err(LendError::Never);
        }
        let flight = self.flights.get_mut(key.0).filter(|flight| flight.state == State::Service);
        let Some(Flight { connection, work: Work::Foreign(foreign), .. }) = flight else {
            return Err(LendError::Gone);
        };
        if foreign.wanted.is_some() {
            return Err(LendError::Asked);
        }
        let mut lens = lens.iter().map(|len| *len as u32);
        foreign.wanted = Some(std::array::from_fn(|_| lens.next()));
        let connection = *connection;
        self.wait_for_buffer(self.latest, connection, key.0);
        Ok(())
    }

    /// Lends what a service waits for, if there is enough of it.
    pub(super) fn lend_wanted(&mut self, key: FlightKey) -> Result<(), NotNow> {
        let Some(flight) = self.flights.get(key) else { return Ok(()) };
        let Work::Foreign(Foreign { wanted: Some(wanted), .. }) = &flight.work else { return Ok(()) };
        let Some(connection) = self.connection(flight.connection) else { return Ok(()) };
        match self.buffers.for_service(&connection.holder, wanted) {
            Ok(loans) => {
                self.foreign.events.push_back(Event::Lent { key, loans });
                if let Some(Flight { work: Work::Foreign(foreign), .. }) = self.flights.get_mut(key) {
                    foreign.wanted = None;
                }
                Ok(())
            }
            Err(given_back) => {
                // A block and a lease came back with each of these, which is no news to those who wait.
                self.fed_at = self.fed_at.map(|fed_at| fed_at + 2 * given_back);
                Err(NotNow::Buffer)
            }
        }
    }

    /// Reads blocks as an ordinary read on the command's queue would: it is admitted anew, waits for whoever has the range,
    /// and takes its turn on the device. [`ForeignEvent::Read`] follows, unless the command's connection ends before.
    pub fn foreign_read(
        &mut self,
        key: ForeignKey,
        nsid: u32,
        offset: u64,
        into: Loan,
    ) -> Result<(), ReadRefused> {
        match self.plan_read(key, nsid, offset, into.len() as u64) {
            Ok(mut flight) => {
                self.counts.foreign_reads += 1;
                (flight.data, flight.lease) = (Some(into.slice), into.lease);
                let read = self.flights.insert(flight);
                self.step(read);
                Ok(())
            }
            Err(status) => Err(ReadRefused { status, into }),
        }
    }

    /// Answers a command: with data where the host waits for some, never more than it takes, and with what goes into the two
    /// first double words of the completion. Of a connection that is gone it only says that the command is over. Reads of the
    /// command that are still under way are nobody's.
    pub fn foreign_done(&mut self, key: ForeignKey, result: Result<Answer, Status>, value: u64) {
        let Some(flight) = self.flights.get(key.0) else { return };
        match (&flight.work, flight.state) {
            (Work::Foreign(_), State::Orphan) => {
                self.foreign.has_ended = true;
                self.orphan_done(key.0);
            }
            (Work::Foreign(_), State::Service) => {
                self.foreign.has_ended = true;
                self.answer_foreign(key.0, result, value);
            }
            // It is no such command, or it was never handed out.
            _ => {}
        }
    }

    /// A command that a service has, and whose connection is there.
    fn serving(&self, key: ForeignKey) -> Option<&Flight> {
        let flight = self.flights.get(key.0)?;
        (matches!(flight.work, Work::Foreign(_)) && flight.state == State::Service).then_some(flight)
    }

    fn plan_read(&self, key: ForeignKey, nsid: u32, offset: u64, len: u64) -> Result<Flight, Status> {
        let gone = Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry();
        let flight = self.serving(key).ok_or(gone)?;
        let connection = self.connection(flight.connection).ok_or(gone)?;
        let queue = connection.queue.ok_or(gone)?.identity;
        let namespace = self.control.namespace(queue.controller, nsid)?;
        let io = Io::read(namespace, offset, len)?;
        self.control.admit(queue, namespace, Access::Read)?;
        Ok(Flight {
            owner: Some(key.0),
            ..Flight::new(flight.connection, Some(queue.controller), flight.command, Work::Io(io))
        })
    }

    /// Begins a command whose opcode is a service's.
    pub(super) fn begin_vendor(
        &mut self,
        now: Instant,
        queue: QueueIdentity,
        arrival: Arrival<'_>,
        opcode: ForeignOpcode,
    ) -> Result<(), Status> {
        self.admit_vendor(queue, arrival.entry)?;
        self.control.count_io(queue.controller, IoCount::Other);
        let work = Work::Foreign(Foreign::new(arrival.entry, None));
        let flight = Flight::new(arrival.key, Some(queue.controller), arrival.entry.command(), work);
        let pointer = pointer_of(&arrival)?;
        if pointer.len() > opcode.data_len_max() {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        // Both ways, the pointer is that of what the host sends, and how much it takes is for the service to know.
        let transfer_len = match arrival.entry.direction() {
            DataDirection::Both => opcode.data_len_max(),
            _ => pointer.len(),
        };
        self.arrange_foreign(now, arrival, pointer, Flight { transfer_len, ..flight })
    }

    /// Begins a command of the NVM command set in a namespace of a service.
    pub(super) fn begin_foreign(
        &mut self,
        now: Instant,
        queue: QueueIdentity,
        arrival: Arrival<'_>,
        io: Io,
    ) -> Result<(), Status> {
        let work = Work::Foreign(Foreign::new(arrival.entry, Some(io)));
        let flight = Flight::new(arrival.key, Some(queue.controller), arrival.entry.command(), work);
        let pointer = pointer_of(&arrival)?;
        let transfer_len = io.transfer_len(pointer.len() as usize)? as u32;
        self.arrange_foreign(now, arrival, pointer, Flight { transfer_len, ..flight })
    }

    fn arrange_foreign(
        &mut self,
        now: Instant,
        arrival: Arrival<'_>,
        pointer: DataPointer,
        mut flight: Flight,
    ) -> Result<(), Status> {
        match (arrival.entry.direction(), pointer) {
            (DataDirection::ToController, DataPointer::Transport { .. }) => self.enter_waiting(now, flight),
            (DataDirection::ToController | DataDirection::Both, DataPointer::InCapsule { offset, len }) => {
                let loan = cut(arrival.data, offset, len as usize)?;
                (flight.data, flight.lease) = (Some(loan.slice), loan.lease);
                let flight = self.enter(flight);
                self.data_ready(now, flight);
            }
            (_, DataPointer::InCapsule { .. }) | (DataDirection::Both, DataPointer::Transport { .. }) => {
                return Err(Status::INVALID_SGL_TYPE.with_do_not_retry());
            }
            _ => {
                let flight = self.enter(flight);
                self.data_ready(now, flight);
            }
        }
        Ok(())
    }

    /// A vendor's command may go on where a read could that names the same namespace; without a namespace, where the queue
    /// may be used at all.
    fn admit_vendor(&self, queue: QueueIdentity, entry: &SubmissionEntry) -> Result<(), Status> {
        match entry.namespace().0 {
            0 => self.control.admit_queue(queue),
            nsid => {
                let namespace = self.control.namespace(queue.controller, nsid)?;
                self.control.admit(queue, namespace, Access::Read)
            }
        }
    }

    /// Checks a vendor's command anew that has waited.
    pub(super) fn check_vendor(&self, connection: ConnectionKey, foreign: &Foreign) -> Result<(), Status> {
        let gone = Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry();
        let queue = self.connection(connection).and_then(|connection| connection.queue).ok_or(gone)?;
        self.admit_vendor(queue.identity, &foreign.entry)
    }

    /// Queues a command that has its data for the service, unless others have its range.
    pub(super) fn hand_out(&mut self, key: FlightKey) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        let Work::Foreign(foreign) = &flight.work else { return };
        if let Some(io) = &foreign.io
            && let (offset, len) = io.reach()
            && self.ranges.blocks(io.place, offset, len, &[key])
        {
            self.counts.waits_for_range += u64::from(flight.state != State::Range);
            flight.state = State::Range;
            return self.blocked.push_back(key);
        }
        self.counts.foreign += 1;
        flight.state = State::Queued;
        self.foreign.events.push_back(Event::Command(key));
    }

    fn take_foreign(&mut self, key: FlightKey) -> Option<ForeignCommand> {
        let flight = self.flights.get(key)?;
        let Work::Foreign(Foreign { entry, io, is_aborted, .. }) = &flight.work else { return None };
        if *is_aborted {
            self.finish(key, Err(Status::ABORT_REQUESTED));
            return None;
        }
        let (entry, io) = (*entry, *io);
        let queue = self.connection(flight.connection)?.queue?.identity;
        let namespace = match (io, entry.namespace().0) {
            (Some(io), _) => Some(io.namespace),
            (None, 0) => None,
            // It may have been removed since the command was admitted.
            (None, nsid) => match self.control.namespace(queue.controller, nsid) {
                Ok(namespace) => Some(namespace.key),
                Err(status) => {
                    self.finish(key, Err(status));
                    return None;
                }
            },
        };
        let flight = self.flights.get_mut(key)?;
        let is_answered = matches!(entry.direction(), DataDirection::ToHost | DataDirection::Both);
        flight.state = State::Service;
        self.foreign.controllers.insert(queue.controller);
        let lease = flight.lease.take();
        let data = flight.data.take().map(|slice| Loan { slice, lease });
        let answer_len_max = if is_answered { flight.transfer_len } else { 0 };
        Some(ForeignCommand {
            key: ForeignKey(key),
            queue,
            entry,
            namespace,
            offset: io.map_or(0, |io| io.offset),
            len: io.map_or(0, |io| io.len),
            is_durable: io.is_some_and(|io| io.is_durable),
            data,
            answer_len_max,
        })
    }

    /// A read for a service is over.
    pub(super) fn read_over(&mut self, owner: FlightKey, mut flight: Flight, result: Result<(), Status>) {
        let Work::Io(io) = &flight.work else { return };
        if self.serving(ForeignKey(owner)).is_none() {
            return;
        }
        let (nsid, offset) = (io.nsid, io.offset);
        let lease = flight.lease.take();
        let loan = flight.data.take().map(|slice| Loan { slice, lease });
        let result = result.and_then(|()| loan.ok_or(Status::INTERNAL_ERROR));
        self.foreign.events.push_back(Event::Read { key: owner, nsid, offset, result });
    }

    fn answer_foreign(&mut self, key: FlightKey, result: Result<Answer, Status>, value: u64) {
        let Some(flight) = self.flights.remove(key) else { return };
        let Work::Foreign(Foreign { entry, io, wanted, .. }) = &flight.work else { return };
        let command = flight.command;
        let result = result.and_then(|answer| match entry.direction() {
            DataDirection::ToHost | DataDirection::Both => {
                fit(answer, flight.transfer_len as usize, io.is_some())
            }
            _ => Ok(None),
        });
        match (&result, io, flight.controller) {
            (Err(status), Some(io), Some(controller)) => {
                self.record_error(flight.connection, controller, command, io, *status);
            }
            (Ok(_), Some(io), _) if io.kind == IoKind::Write => self.counts.bytes_written += io.len,
            _ => {}
        }
        self.counts.failed += u64::from(result.is_err());
        let Some(connection) = self.connection_mut(flight.connection) else { return };
        connection.remove_command(command);
        if wanted.is_some() {
            connection.waiting.retain(|waiting| *waiting != key);
            // Those behind it may have what it could not.
            self.fed_at = None;
        }
        let Some(connection) = self.connection_mut(flight.connection) else { return };
        let mut bytes_read = 0;
        match result {
            Ok(Some(data)) => {
                bytes_read = data.len();
                connection.respond_with_data(command, data, value);
            }
            Ok(None) => connection.respond(command, Status::SUCCESS, value),
            Err(status) => connection.respond(command, status, value),
        }
        self.counts.bytes_read += bytes_read as u64;
        self.note_answer(flight.connection);
        self.relieve(flight.connection);
        self.touch(flight.connection);
    }

    /// The host has sent Abort for a command of a service, which is told so once; one that it does not have yet it will not get.
    pub(super) fn abort_foreign(&mut self, controller: ControllerKey, abort: Abort) {
        let is_named =
            |identity: QueueIdentity| identity.controller == controller && identity.queue == abort.queue;
        for key in self.find_connections(is_named) {
            let Some(connection) = self.connection(key) else { continue };
            let Some(flight) = connection.flight_of(abort.command) else { continue };
            if let Some(Flight { work: Work::Foreign(foreign), state, .. }) = self.flights.get_mut(flight)
                && !std::mem::replace(&mut foreign.is_aborted, true)
                && *state == State::Service
            {
                self.foreign.events.push_back(Event::Aborted(flight));
            }
        }
    }

    /// The connection of a command that a service has is gone.
    pub(super) fn foreign_ended(&mut self, key: FlightKey) {
        self.foreign.events.push_back(Event::Ended(key));
    }

    /// Ends the reads of a connection that is gone, and forgets what its commands would have heard.
    pub(super) fn end_foreign(&mut self, connection: ConnectionKey) {
        for read in self.flights.reads_of(connection) {
            self.orphan(read);
        }
        let flights = &self.flights;
        let has_state =
            |key: &FlightKey, state| flights.get(*key).is_some_and(|flight| flight.state == state);
        self.foreign.events.retain(|event| match event {
            Event::Command(key) => has_state(key, State::Queued),
            Event::Lent { key, .. } | Event::Read { key, .. } | Event::Aborted(key) => {
                has_state(key, State::Service)
            }
            Event::Ended(_) | Event::ControllerEnded(_) => true,
        });
    }
}

/// Where a command's data is, if its opcode has any.
fn pointer_of(arrival: &Arrival<'_>) -> Result<DataPointer, Status> {
    match arrival.entry.direction() {
        DataDirection::None => Ok(DataPointer::None),
        _ => arrival.entry.data_pointer(arrival.data_len),
    }
}

/// What is sent of an answer to a host that takes so many bytes. In a namespace, it is told exactly what it asked for.
fn fit(answer: Answer, len: usize, is_exact: bool) -> Result<Option<Data>, Status> {
    let given = match &answer {
        Answer::Nothing => 0,
        Answer::Loan(loan) => loan.len(),
        Answer::Shared(shared) => shared.len(),
    };
    if is_exact && given != len {
        tracing::error!(given, len, "a service answered a read with another length");
        return Err(Status::INTERNAL_ERROR);
    }
    if given.min(len) == 0 {
        return Ok(None);
    }
    Ok(match answer {
        Answer::Nothing => None,
        Answer::Loan(Loan { mut slice, lease }) => {
            slice.truncate(len);
            Some(Data::Slice(slice, lease))
        }
        Answer::Shared(shared) => shared.part(0..given.min(len)).map(Data::Shared),
    })
}

/// Whether a read for a service has to wait for those who have its range, as all do.
pub(super) fn waits_for_range(flight: &Flight) -> bool {
    !(flight.owner.is_some() && plant::is_planted(Bug::ChainsPassRanges))
}

impl Io {
    /// A read for a service of so many bytes.
    fn read(namespace: &super::control::Namespace, offset: u64, len: u64) -> Result<Self, Status> {
        let Place::Device(_) = Place::of(namespace) else {
            return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
        };
        let block_len = u64::from(namespace.block_len);
        if len == 0 || !offset.is_multiple_of(block_len) || !len.is_multiple_of(block_len) {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        super::io::extent(namespace, offset / block_len, len / block_len)?;
        Ok(Self { offset, len, ..Self::new(IoKind::Read, namespace) })
    }

    /// The bytes of its namespace that it may change or look at: all of them, where its data names them.
    pub(super) fn reach(&self) -> (u64, u64) {
        match self.kind {
            IoKind::Discard => (0, u64::MAX),
            _ => (self.offset, self.len),
        }
    }
}
