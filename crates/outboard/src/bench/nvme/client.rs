//! One client thread with a core of its own: several queues, each a connection that is polled, as SPDK's own tool does it.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ob_nvme::initiator::{Completion, Connection, ConnectionConfig, DEPTH_MAX, Data, Payload, Submission};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::fabrics::{
    Capabilities, Connect, ConnectParties, ConnectResult, ControllerConfiguration, ControllerStatus,
    Property, PropertyAccess,
};
use ob_wire_nvme::feature::{FeatureId, QueueCounts, SetFeatures};
use ob_wire_nvme::identify::{Cns, Controller, IDENTIFY_LEN, Identify, Namespace};
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, QueueId, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

use super::target::SUBSYSTEM;
use crate::bench::BenchFailure;
use crate::bench::load::{Direction, Load, Measured, Places, Round, check};

/// Longer than any command takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Receives that one queue gets before the others have their turn.
const RECEIVES_A_TURN: usize = 8;
/// Slices that one send takes at most.
const SEND_SLICES: usize = 256;
/// Placeholder: the connection gives identifiers.
const COMMAND: CommandId = CommandId(0);
const NAMESPACE: NamespaceId = NamespaceId(1);
/// Bytes of a command while the namespace is filled.
const FILL_LEN: usize = 64 << 10;
/// Bytes that a queue receives at once, besides data: all that a deep queue may have.
const RECEIVE_LEN: usize = 256 << 10;
/// The same for a queue that only sits there.
const IDLE_RECEIVE_LEN: usize = 4 << 10;
/// The host that measures; those of a crowd count up from the next.
const HOST: u16 = 1;

/// How a client connects.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Shape {
    pub(in crate::bench) connections: usize,
    pub(in crate::bench) digests: bool,
}

/// One queue. Keys are numbers of slots.
pub(in crate::bench) struct Queue {
    stream: TcpStream,
    connection: Connection<usize>,
}

/// A host with a controller, its queues, and one namespace.
pub(in crate::bench) struct Client {
    admin: Queue,
    queues: Vec<Queue>,
    block_len: u64,
    bytes: u64,
    /// What belongs everywhere in the namespace, so that writes need no buffers of their own.
    image: Payload,
}

fn now() -> ob_core::Instant {
    ob_core::Clock::now(&ob_io::MonotonicClock)
}

impl Queue {
    fn open(
        address: SocketAddr,
        depth: usize,
        receive_len: usize,
        digests: bool,
    ) -> Result<Self, BenchFailure> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let config = ConnectionConfig {
            digests: Digests { header: digests, data: digests },
            depth: u16::try_from(depth).unwrap_or(DEPTH_MAX),
            receive_len,
            command_timeout: PATIENCE,
        };
        let mut queue = Self { stream, connection: Connection::new(config, now()) };
        let deadline = Instant::now() + PATIENCE;
        while !queue.connection.is_open() {
            queue.send()?;
            queue.receive()?;
            if Instant::now() > deadline {
                return Err("a connection was not answered".into());
            }
        }
        Ok(queue)
    }

    /// Takes what there is; whether there was anything.
    fn receive(&mut self) -> Result<bool, BenchFailure> {
        for attempt in 0..RECEIVES_A_TURN {
            let [direct, scratch] = self.connection.receive_into();
            let offered = direct.len() + scratch.len();
            let mut slices = [IoSliceMut::new(direct), IoSliceMut::new(scratch)];
            match self.stream.read_vectored(&mut slices) {
                Ok(0) => return Err("the target has closed a connection".into()),
                Ok(count) => {
                    self.connection.received(count);
                    if let Some(cause) = self.connection.ended() {
                        return Err(format!("a connection ended: {cause:?}").into());
                    }
                    if count < offered {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(attempt > 0),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Sends what there is, as far as the network takes it.
    fn send(&mut self) -> Result<(), BenchFailure> {
        while self.connection.has_output() {
            let mut slices = [IoSlice::new(&[]); SEND_SLICES];
            let count = self.connection.transmit(&mut slices);
            match self.stream.write_vectored(&slices[..count]) {
                Ok(count) => self.connection.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn submit(&mut self, slot: usize, entry: SubmissionEntry, data: Data) -> Result<(), BenchFailure> {
        let submission = Submission { key: slot, entry, data, may_be_short: false, is_patient: false };
        self.connection.submit(now(), submission).map_err(|_| "a queue has no room".into())
    }

    /// One command that has to succeed, waited for.
    pub(in crate::bench) fn call(
        &mut self,
        entry: SubmissionEntry,
        data: Data,
    ) -> Result<Completion<usize>, BenchFailure> {
        succeeded(self.ask(entry, data)?)
    }

    /// The same, however it ends.
    pub(in crate::bench) fn ask(
        &mut self,
        entry: SubmissionEntry,
        data: Data,
    ) -> Result<Completion<usize>, BenchFailure> {
        self.submit(0, entry, data)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.send()?;
            self.receive()?;
            if let Some(completion) = self.connection.next_completion() {
                return Ok(completion);
            }
            if Instant::now() > deadline {
                return Err("a command was not answered".into());
            }
        }
    }

    /// Several commands that are on their way at once, however they end; in their order.
    pub(in crate::bench) fn ask_all(
        &mut self,
        commands: Vec<(SubmissionEntry, Data)>,
    ) -> Result<Vec<Completion<usize>>, BenchFailure> {
        let count = commands.len();
        for (slot, (entry, data)) in commands.into_iter().enumerate() {
            self.submit(slot, entry, data)?;
        }
        let mut completions = Vec::with_capacity(count);
        let deadline = Instant::now() + PATIENCE;
        while completions.len() < count {
            self.send()?;
            self.receive()?;
            completions.extend(std::iter::from_fn(|| self.connection.next_completion()));
            if Instant::now() > deadline {
                return Err("a command was not answered".into());
            }
        }
        completions.sort_by_key(|completion| completion.key);
        Ok(completions)
    }

    fn property(&mut self, property: Property, value: Option<u64>) -> Result<u64, BenchFailure> {
        let entry = PropertyAccess { property, value }.encode(COMMAND);
        Ok(self.call(entry, Data::None)?.result)
    }

    fn identify(&mut self, structure: Cns, namespace: NamespaceId) -> Result<Vec<u8>, BenchFailure> {
        let entry = Identify::new(structure, namespace).encode(COMMAND);
        Ok(self.call(entry, Data::ToHost(IDENTIFY_LEN as u32))?.data)
    }

    fn connect(
        &mut self,
        host: u16,
        queue: u16,
        entries: u32,
        controller: ControllerId,
    ) -> Result<ControllerId, BenchFailure> {
        let mut host_id = [7; 16];
        host_id[..2].copy_from_slice(&host.to_le_bytes());
        let parties = ConnectParties {
            host_id,
            controller,
            subsystem: Nqn::new(SUBSYSTEM)?,
            host: Nqn::new(&format!("nqn.2026-11.io.outboard:bench-client-{host}"))?,
        };
        let connect = Connect {
            queue: QueueId(queue),
            queue_entries: entries,
            no_flow_control: queue != 0,
            keep_alive_ms: 0,
        };
        let payload = Payload::from(parties.encode().as_bytes());
        let len = payload.len() as u32;
        let entry = connect.encode(COMMAND, DataPointer::InCapsule { offset: 0, len });
        let completion = self.call(entry, Data::ToController(payload))?;
        Ok(ConnectResult::from_bits(completion.result as u32).controller)
    }
}

/// The admin queue's own.
impl Queue {
    /// Connects, and has the controller start.
    fn start(&mut self, host: u16) -> Result<ControllerId, BenchFailure> {
        let controller = self.connect(host, 0, 32, ControllerId::DYNAMIC)?;
        let enabled = ControllerConfiguration::enabled(ControllerConfiguration::COMMAND_SET_NVM);
        self.property(Property::Configuration, Some(u64::from(enabled.0)))?;
        let deadline = Instant::now() + PATIENCE;
        while !ControllerStatus::from_bits(self.property(Property::Status, None)? as u32).is_ready {
            if Instant::now() > deadline {
                return Err("the controller does not become ready".into());
            }
        }
        Ok(controller)
    }

    fn ask_for_queues(&mut self, count: u16) -> Result<(), BenchFailure> {
        let counts = QueueCounts { submission: count, completion: count };
        let set = SetFeatures {
            feature: FeatureId::NumberOfQueues.code(),
            is_saved: false,
            dword11: counts.bits(),
            dword12: 0,
            dword13: 0,
            namespace: NamespaceId::NONE,
        };
        self.call(set.encode(COMMAND), Data::None).map(|_| ())
    }
}

/// Hosts that are connected, and ask for nothing.
pub(in crate::bench) struct Crowd {
    _queues: Vec<Queue>,
}

impl Crowd {
    /// So many hosts with so many I/O queues each.
    pub(in crate::bench) fn connect(
        address: SocketAddr,
        hosts: u16,
        queues: u16,
    ) -> Result<Self, BenchFailure> {
        let mut all = Vec::new();
        for host in HOST + 1..=HOST + hosts {
            let mut admin = Queue::open(address, 1, IDLE_RECEIVE_LEN, false)?;
            let controller = admin.start(host)?;
            admin.ask_for_queues(queues)?;
            all.push(admin);
            for index in 1..=queues {
                let mut queue = Queue::open(address, 1, IDLE_RECEIVE_LEN, false)?;
                queue.connect(host, index, 32, controller)?;
                all.push(queue);
            }
        }
        Ok(Self { _queues: all })
    }
}

fn succeeded(completion: Completion<usize>) -> Result<Completion<usize>, BenchFailure> {
    if completion.status.is_success() {
        Ok(completion)
    } else {
        Err(format!("a command failed: {}", completion.status).into())
    }
}

impl Client {
    /// Connects, with room for `depth` commands in each queue if the target has it. `image` is what the namespace holds,
    /// or will after [`Client::fill`].
    pub(in crate::bench) fn connect(
        address: SocketAddr,
        shape: Shape,
        depth: usize,
        image: &Payload,
    ) -> Result<Self, BenchFailure> {
        let mut admin = Queue::open(address, 4, RECEIVE_LEN, shape.digests)?;
        let controller = admin.start(HOST)?;
        let capabilities = Capabilities::from_bits(admin.property(Property::Capabilities, None)?);
        let identity = admin.identify(Cns::Controller, NamespaceId::NONE)?;
        let identity = Controller::ref_from_bytes(&identity).map_err(|_| "no identity")?;
        let count = u16::try_from(shape.connections)?;
        admin.ask_for_queues(count)?;
        let namespace = admin.identify(Cns::Namespace, NAMESPACE)?;
        let namespace = Namespace::ref_from_bytes(&namespace).map_err(|_| "no identity of the namespace")?;
        let geometry = namespace.geometry().ok_or("the namespace is not there")?;
        let depth = depth.min(capabilities.queue_entries_max as usize - 1);
        let mut queues = Vec::new();
        for index in 1..=count {
            let mut queue = Queue::open(address, depth, RECEIVE_LEN, shape.digests)?;
            queue.connect(HOST, index, depth as u32 + 1, controller)?;
            queue.connection.set_capsule_data_max(identity.capsule_data_max());
            queues.push(queue);
        }
        let (block_len, bytes) = (u64::from(geometry.block_len()), geometry.bytes());
        let bytes = bytes.min(image.len() as u64);
        Ok(Self { admin, queues, block_len, bytes, image: image.clone() })
    }

    /// From now on no data goes with commands.
    pub(in crate::bench) fn expect_to_be_asked(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.connection.set_capsule_data_max(0));
    }

    pub(in crate::bench) fn first_queue(&mut self) -> Result<&mut Queue, BenchFailure> {
        self.queues.first_mut().ok_or_else(|| "there is no queue".into())
    }

    /// Bytes of a block of the namespace.
    pub(in crate::bench) fn block_len(&self) -> u64 {
        self.block_len
    }

    /// Writes the whole image.
    pub(in crate::bench) fn fill(&mut self) -> Result<(), BenchFailure> {
        let mut offset = 0;
        let mut out = 0;
        let deadline = Instant::now() + PATIENCE;
        while offset < self.bytes || out > 0 {
            let queue = self.queues.first_mut().ok_or("there is no queue")?;
            while offset < self.bytes && queue.connection.room() > 0 {
                let len = FILL_LEN.min((self.bytes - offset) as usize);
                let payload = self.image.part(offset as usize..offset as usize + len);
                let entry = block_command(IoOpcode::Write, offset, len, self.block_len);
                queue.submit(0, entry, Data::ToController(payload))?;
                offset += len as u64;
                out += 1;
            }
            queue.send()?;
            queue.receive()?;
            while let Some(completion) = queue.connection.next_completion() {
                succeeded(completion)?;
                out -= 1;
            }
            if Instant::now() > deadline {
                return Err("the namespace is not filled in time".into());
            }
        }
        Ok(())
    }

    /// Runs a load for so long, and checks everything that was read. `target` is the target's process.
    pub(in crate::bench) fn run(
        &mut self,
        load: Load,
        round: u64,
        time: Duration,
        target: u32,
    ) -> Result<Measured, BenchFailure> {
        self.run_mixed(load, u64::MAX, round, time, target)
    }

    /// The same, but each nth request goes the other way.
    pub(in crate::bench) fn run_mixed(
        &mut self,
        load: Load,
        other_each: u64,
        round: u64,
        time: Duration,
        target: u32,
    ) -> Result<Measured, BenchFailure> {
        let depth = self.queues.iter().map(|queue| queue.connection.room()).min().unwrap_or(0);
        let depth = depth.min(load.depth);
        let mut run = Run {
            load,
            other_each,
            block_len: self.block_len,
            image: self.image.clone(),
            places: Places::new(load, self.bytes, round),
            asked: vec![Asked::default(); depth * self.queues.len()],
            count: 0,
        };
        for (index, queue) in self.queues.iter_mut().enumerate() {
            for slot in index * depth..(index + 1) * depth {
                run.submit(queue, slot)?;
            }
        }
        // Once around before it counts.
        for queue in &mut self.queues {
            run.turn(queue, &mut |_| true)?;
        }
        let mut measured = Round::begin(run.asked.len(), time, Some(target))?;
        let mut last = Instant::now();
        loop {
            let mut completed = 0;
            for queue in &mut self.queues {
                completed += run.turn(queue, &mut |slot| measured.completed(slot))?;
            }
            if completed > 0 {
                last = Instant::now();
                if !measured.waited() {
                    break;
                }
            } else if last.elapsed() > PATIENCE {
                return Err("no command was answered in time".into());
            }
        }
        let measured = measured.end()?;
        while self.queues.iter().any(|queue| queue.connection.in_flight() > 0) {
            for queue in &mut self.queues {
                run.turn(queue, &mut |_| false)?;
            }
            if last.elapsed() > PATIENCE {
                return Err("no command was answered in time".into());
            }
        }
        Ok(measured)
    }

    /// A flush, waited for.
    pub(in crate::bench) fn flush(&mut self) -> Result<(), BenchFailure> {
        let queue = self.first_queue()?;
        let entry = SubmissionEntry::new(IoOpcode::Flush.code(), COMMAND, NAMESPACE);
        queue.call(entry, Data::None).map(|_| ())
    }

    /// Something is asked on the admin queue, so that nobody takes the client for dead.
    pub(in crate::bench) fn ping(&mut self) -> Result<(), BenchFailure> {
        self.admin.property(Property::Status, None).map(|_| ())
    }
}

pub(in crate::bench) fn block_command(
    opcode: IoOpcode,
    offset: u64,
    len: usize,
    block_len: u64,
) -> SubmissionEntry {
    let blocks = (len as u64 / block_len) as u32;
    let command = BlockCommand::new(NAMESPACE, offset / block_len, blocks);
    command.encode(opcode, COMMAND, DataPointer::Transport { len: len as u32 })
}

/// A load on its way.
struct Run {
    load: Load,
    /// Of so many, one goes the other way.
    other_each: u64,
    block_len: u64,
    image: Payload,
    places: Places,
    /// What each slot's command asks.
    asked: Vec<Asked>,
    /// Commands so far.
    count: u64,
}

#[derive(Clone, Copy, Default)]
struct Asked {
    offset: u64,
    is_read: bool,
}

impl Run {
    fn submit(&mut self, queue: &mut Queue, slot: usize) -> Result<(), BenchFailure> {
        let (offset, len) = (self.places.next(), self.load.len);
        self.count += 1;
        let is_other = self.count.is_multiple_of(self.other_each);
        let is_read = (self.load.direction == Direction::Read) != is_other;
        self.asked[slot] = Asked { offset, is_read };
        let at = offset as usize;
        let (opcode, data) = if is_read {
            (IoOpcode::Read, Data::ToHost(len as u32))
        } else {
            (IoOpcode::Write, Data::ToController(self.image.part(at..at + len)))
        };
        queue.submit(slot, block_command(opcode, offset, len, self.block_len), data)
    }

    /// Takes what one queue has, and asks for as much again where `goes_on` says so. How many were complete.
    fn turn(
        &mut self,
        queue: &mut Queue,
        goes_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<usize, BenchFailure> {
        let mut completed = 0;
        if queue.receive()? {
            while let Some(completion) = queue.connection.next_completion() {
                let Completion { key: slot, data, .. } = succeeded(completion)?;
                completed += 1;
                let Asked { offset, is_read } = self.asked[slot];
                if is_read {
                    check(&data, offset)?;
                }
                if goes_on(slot) {
                    self.submit(queue, slot)?;
                }
            }
        }
        queue.send()?;
        Ok(completed)
    }
}
