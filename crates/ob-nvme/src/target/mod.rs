//! The target: connections, controllers, namespaces.
//!
//! ```text
//!   received ─▶ receive ─▶ dispatch ─┬─▶ Control ──────────────────────────▶ answer ─▶ Output ─▶ transmit
//!               (PDUs,               ├─▶ io ─▶ next_device_op … completed ──▶   │
//!                payload)            │          (driver, device)                 │
//!                                    └─▶ foreign ─▶ next_foreign … foreign_done ─▶ │
//!                                                   (service)                    │
//!   pump: what waited for a buffer, a range, an event of Control ────────────────┘
//! ```
//!
//! [`Target`] owns all state. Its driver moves bytes and device operations, calls [`Target::pump`] after each round of
//! them, [`Target::prove`] once in a turn, and [`Target::tick`] when it is due. Nothing here blocks, allocates for a command
//! on an I/O queue, or copies payload, except what arrived in one receive together with its header.

mod associations;
mod backlog;
mod buffers;
mod config;
mod connection;
pub mod control;
mod counts;
mod dispatch;
mod flight;
mod foreign;
mod io;
mod proofs;
mod receive;
mod shares;
mod stream;
mod timers;
mod waiting;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use ob_core::{ConnectionAction, ConnectionId, DeviceOp, Instant, Token};
use ob_memory::ArenaSpan;
use ob_wire_nvme::Status;

pub use buffers::{LOANS_MAX, Loan, Loans, Ticket};
pub use config::{ForeignOpcode, TRANSFER_LEN_MIN, TargetConfig};
pub use connection::ConnectionKey;
pub use counts::TargetCounts;
pub use foreign::{Answer, ForeignCommand, ForeignEvent, ForeignKey, LendError, ReadRefused};

use associations::{PendingAnswer, PendingConnect};
use backlog::Backlog;
use buffers::Buffers;
use connection::Connection;
use control::{BackendId, Control, ControllerKey, NamespaceKey, Path, PortKey, SubsystemKey};
use flight::{FlightKey, Flights};
use foreign::Handed;
use io::Ranges;
use proofs::Proofs;

use crate::plant::{self, Bug};

/// Bytes offered for headers while large payload is on its way: what comes behind a header there is copied once.
const RECEIVE_LEN_IN_TRANSFER: usize = 8 << 10;

/// Bytes of payload that are received at a time: others are not to wait until a long one is there.
const PAYLOAD_LEN_A_RECEIVE: usize = 128 << 10;

/// A namespace whose reservations are to be saved: see [`Control::reservations`] and [`Target::reservations_saved`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationsChanged {
    /// Its subsystem.
    pub subsystem: SubsystemKey,
    /// Which.
    pub namespace: NamespaceKey,
    /// Its NSID.
    pub nsid: u32,
}

/// An NVMe/TCP target without its sockets and devices.
pub struct Target {
    config: TargetConfig,
    control: Control,
    buffers: Buffers,
    scratch: Vec<u8>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    flights: Flights,
    ranges: Ranges,
    /// Commands that wait for a range.
    blocked: VecDeque<FlightKey>,
    /// Whether a range was given back since those were looked at.
    ranges_freed: bool,
    /// Fused pairs that have their range and wait for those who were on it before, with the place of one of them.
    pairs: Vec<(FlightKey, usize)>,
    /// Connections with commands that wait for a buffer.
    hungry: VecDeque<ConnectionKey>,
    /// How many buffers had come back when those were looked at; nothing if they have to be looked at anyway.
    fed_at: Option<u64>,
    /// Whether what is served has changed since then.
    is_changed: bool,
    /// Connections that are held up for want of a buffer for a capsule's data.
    starving: VecDeque<ConnectionKey>,
    /// Connections whose reason to be held up may be gone.
    relieved: Vec<ConnectionKey>,
    /// How many writes of ended controllers are still on devices.
    orphans: BTreeMap<ControllerKey, u32>,
    connects: Vec<PendingConnect>,
    answers: Vec<PendingAnswer>,
    /// Whether one of them may wait no more, but for commands that have ended.
    are_answers_due: bool,
    proofs: Proofs,
    changed_reservations: VecDeque<ReservationsChanged>,
    /// Operations for devices.
    backlog: Backlog,
    /// What services have to hear.
    foreign: Handed,
    dirty: VecDeque<ConnectionKey>,
    actions: VecDeque<ConnectionAction>,
    sweep_at: Option<Instant>,
    /// The time as it was told last: devices and services tell none.
    latest: Instant,
    counts: TargetCounts,
}

struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

impl Target {
    /// A target without connections. What it serves is in `control`.
    pub fn new(config: TargetConfig, mut control: Control) -> Self {
        control.set_foreign_opcodes(config.foreign.iter().map(|foreign| foreign.opcode()).collect());
        control.set_transfer_shift(config.transfer_shift());
        Self {
            buffers: Buffers::new(&config, control.config().in_capsule_len),
            scratch: vec![0; config.receive_len.max(RECEIVE_LEN_IN_TRANSFER)],
            config,
            control,
            slots: Vec::new(),
            free: Vec::new(),
            flights: Flights::default(),
            ranges: Ranges::default(),
            blocked: VecDeque::new(),
            ranges_freed: false,
            pairs: Vec::new(),
            hungry: VecDeque::new(),
            fed_at: None,
            is_changed: false,
            starving: VecDeque::new(),
            relieved: Vec::new(),
            orphans: BTreeMap::new(),
            connects: Vec::new(),
            answers: Vec::new(),
            are_answers_due: false,
            proofs: Proofs::default(),
            changed_reservations: VecDeque::new(),
            backlog: Backlog::default(),
            foreign: Handed::default(),
            dirty: VecDeque::new(),
            actions: VecDeque::new(),
            sweep_at: None,
            latest: Instant::default(),
            counts: TargetCounts::default(),
        }
    }

    /// What is served.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// What is served, to be changed. [`Target::pump`] afterwards: hosts are told.
    pub fn control_mut(&mut self) -> &mut Control {
        // What waits may have to hear that it waits for nothing.
        (self.fed_at, self.is_changed) = (None, true);
        &mut self.control
    }

    /// Where payload lies, for registration with a reactor.
    pub fn arenas(&self) -> Vec<ArenaSpan> {
        self.buffers.arenas().collect()
    }

    /// Bytes of payload memory.
    pub fn memory(&self) -> usize {
        self.buffers.memory()
    }

    /// Bytes of buffers that commands and unsent answers hold. It looks at every buffer, so it is for tests and for people.
    pub fn memory_used(&self) -> usize {
        self.buffers.memory_used()
    }

    /// The numbers.
    pub fn counts(&self) -> TargetCounts {
        let connections = || self.slots.iter().filter_map(|slot| slot.connection.as_deref());
        let (controllers, hosts) = self.control.population();
        TargetCounts {
            controllers: controllers as u64,
            hosts: hosts as u64,
            namespaces: self.control.namespace_count() as u64,
            buffer_memory: self.buffers.memory() as u64,
            buffer_memory_used: self.memory_used() as u64,
            connections: connections().count() as u64,
            in_flight: self.flights.len() as u64,
            orphans: self.flights.orphans() as u64,
            in_service: self.flights.in_service() as u64,
            waiting_for_buffer: connections().map(|connection| connection.waiting.len() as u64).sum(),
            waiting_for_range: (self.blocked.len() + self.pairs.len()) as u64,
            waiting_for_proof: self.proofs.len() as u64,
            held_up: connections().filter(|connection| connection.stall.is_some()).count() as u64,
            ..self.counts
        }
    }

    /// [`Target::accept_from`] for peers without addresses, which are taken for one.
    pub fn accept(&mut self, now: Instant, net: ConnectionId, port: PortKey) -> Option<ConnectionKey> {
        self.accept_from(now, net, port.into())
    }

    /// Takes a new connection that came in on a port; `None` when there are too many: then it is to be closed. Where one
    /// of those that anybody could have can make room, that one is closed instead. The peer's address is whom its
    /// buffers are counted for until its host has proved who it is.
    pub fn accept_from(&mut self, now: Instant, net: ConnectionId, path: Path) -> Option<ConnectionKey> {
        if self.slots.len() - self.free.len() >= self.config.connections_max {
            self.counts.refused += 1;
            if !self.make_room(now) {
                return None;
            }
        }
        self.counts.accepted += 1;
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 1, connection: None });
            self.slots.len() as u32 - 1
        });
        self.arm(now);
        let slot = self.slots.get_mut(index as usize)?;
        let holder = self.buffers.connection_from(path.peer);
        let number = self.counts.accepted;
        let mut connection = Connection::new(net, path, holder, now, number);
        connection.stream.set_data_max(self.config.transfer_len() as u32);
        slot.connection = Some(Box::new(connection));
        Some(ConnectionKey { index, generation: slot.generation })
    }

    /// The peer has ended the connection, or it broke.
    pub fn ended(&mut self, now: Instant, key: ConnectionKey) {
        self.end(now, key);
    }

    /// The next operation for a device.
    pub fn next_device_op(&mut self) -> Option<(BackendId, Token, DeviceOp)> {
        let (backend, key, op) = self.backlog.next()?;
        if let Some(flight) = self.flights.get_mut(key) {
            flight.state = flight::State::Device;
        }
        Some((backend, key.token(), op))
    }

    /// Takes an operation back that its device had no room for. No other of that device is given out before
    /// [`Target::retry_devices`].
    pub fn put_back(&mut self, backend: BackendId, token: Token, op: DeviceOp) {
        let key = FlightKey::from_token(token);
        self.backlog.put_back(backend, key, op);
        if let Some(flight) = self.flights.get_mut(key) {
            flight.state = flight::State::Queued;
        }
    }

    /// Devices that had no room may have some now.
    pub fn retry_devices(&mut self) {
        self.backlog.retry();
    }

    /// Operations that no device has taken.
    pub fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// The next namespace whose reservations are to be saved.
    pub fn next_reservations_changed(&mut self) -> Option<ReservationsChanged> {
        self.changed_reservations.pop_front()
    }

    /// The next thing to do to a connection.
    pub fn next_action(&mut self) -> Option<ConnectionAction> {
        self.actions.pop_front()
    }

    /// The next connection with something to send.
    pub fn next_dirty(&mut self) -> Option<(ConnectionKey, ConnectionId)> {
        while let Some(key) = self.dirty.pop_front() {
            if let Some(connection) = self.connection_mut(key) {
                connection.is_dirty = false;
                return Some((key, connection.net));
            }
        }
        None
    }

    /// The network takes bytes again.
    pub fn writable(&mut self, key: ConnectionKey) {
        if self.connection(key).is_some() {
            self.touch(key);
        }
    }

    /// Fills `into` with what is to be sent, as far as it reaches; says how many of them.
    pub fn transmit<'a>(&'a self, key: ConnectionKey, into: &mut [IoSlice<'a>]) -> usize {
        self.connection(key).map_or(0, |connection| connection.output.gather(into))
    }

    /// So many bytes were sent; fewer than were offered, when the network takes no more now. Whether there is more.
    pub fn sent(&mut self, now: Instant, key: ConnectionKey, count: usize) -> bool {
        self.counts.bytes_sent += count as u64;
        let Some(unsent_max) = self.connection(key).map(|connection| self.unsent_max(connection)) else {
            return false;
        };
        let Some(connection) = self.connection_mut(key) else { return false };
        connection.output.sent(count);
        connection.taken(now, count);
        let is_done = connection.output.is_empty();
        if connection.stall == Some(connection::Stall::Unsent) && connection.unsent() < unsent_max / 2 {
            self.relieved.push(key);
        }
        if is_done {
            self.all_sent(key);
        } else {
            self.arm(now);
        }
        !is_done
    }

    /// Bytes of answers, besides payload, that a connection may leave unread before nothing more is read from it.
    fn unsent_max(&self, connection: &Connection) -> usize {
        if connection.may_transfer() { self.config.unsent_max } else { self.config.control_unsent_max }
    }

    fn all_sent(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connection(key)
            && connection.closing.is_some()
        {
            self.actions.push_back(ConnectionAction::Finish(connection.net));
        }
    }

    fn connection(&self, key: ConnectionKey) -> Option<&Connection> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.generation == key.generation { slot.connection.as_deref() } else { None }
    }

    fn connection_mut(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.connection.as_deref_mut() } else { None }
    }

    /// Notes that a connection has something to send.
    fn touch(&mut self, key: ConnectionKey) {
        if let Some(connection) = self.connection_mut(key)
            && !connection.is_dirty
        {
            connection.is_dirty = true;
            self.dirty.push_back(key);
        }
    }

    /// A command is answered late. A host that sees answers may send no Keep Alive for them (TBKAS): Linux counted every answer,
    /// until it took to those of commands that it had sent lately.
    fn note_answer(&mut self, key: ConnectionKey) {
        let queue = self.connection(key).and_then(|connection| connection.queue);
        if let Some(queue) = queue.filter(|_| !plant::is_planted(Bug::AnswersUnheard)) {
            self.control.heard(self.latest, queue.identity);
        }
    }

    /// Answers a command that was entered as under way, without data.
    fn answer(&mut self, key: ConnectionKey, command: ob_wire_nvme::CommandId, status: Status, result: u64) {
        self.counts.failed += u64::from(!status.is_success());
        let Some(connection) = self.connection_mut(key) else { return };
        connection.remove_command(command);
        connection.respond(command, status, result);
        self.relieve(key);
        self.touch(key);
    }

    /// A command of the connection is done: one that waits behind a full queue may go on.
    fn relieve(&mut self, key: ConnectionKey) {
        let is_held_up = |connection: &&Connection| connection.stall == Some(connection::Stall::QueueFull);
        if self.connection(key).filter(is_held_up).is_some() && !self.relieved.contains(&key) {
            self.relieved.push(key);
        }
    }
}
