//! A target with a disk in memory, and a client that says exactly the bytes it is told to.

// Each test crate uses its own part of this, and none exports it.
#![allow(dead_code, unreachable_pub)]

use std::collections::VecDeque;
use std::io::{IoSlice, Read};
use std::net::IpAddr;
use std::time::Duration;

use ob_core::{ConnectionAction, ConnectionId, DeviceCompletion, DeviceError, DeviceOp, Instant, Token};
use ob_nvme::target::control::{
    AddressFamily, BackendId, Control, ControlConfig, NamespaceSpec, Path, PortKey, PortSpec, SubsystemKey,
    SubsystemSpec, TransportAddress,
};
use ob_nvme::target::{ConnectionKey, Target, TargetConfig};
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::fabrics::{Connect, ConnectParties, Property, PropertyAccess};
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::pdu::{
    DataAlignment, DataTransfer, Digests, Framing, IcRequest, Layout, Pdu, Progress, ReadyToTransfer,
    ReceiveRules, Role, Termination, digest, receive,
};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{
    CommandId, CompletionEntry, ControllerId, DataPointer, NamespaceId, QueueId, Status, SubmissionEntry,
};
use zerocopy::IntoBytes;

pub const BLOCK: usize = 512;
pub const BLOCKS: u64 = 4096;
pub const NQN: &str = "nqn.2026-01.example:one";
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// A device whose operations a test can hold back, reorder and fail.
pub struct Disk {
    pub bytes: Vec<u8>,
    /// Operations are kept until the test lets them go.
    pub is_held: bool,
    pub queue: VecDeque<(Token, DeviceOp)>,
    /// So many operations are taken at once.
    pub depth: usize,
    /// Fails the operations that are applied next.
    pub failures: VecDeque<DeviceError>,
    /// Names of the operations that were applied.
    pub log: Vec<&'static str>,
    /// Where in memory the last read landed.
    pub read_into: std::ops::Range<usize>,
}

impl Disk {
    fn new() -> Self {
        Self {
            bytes: vec![0; BLOCK * BLOCKS as usize],
            is_held: false,
            queue: VecDeque::new(),
            depth: usize::MAX,
            failures: VecDeque::new(),
            log: Vec::new(),
            read_into: 0..0,
        }
    }

    fn apply(&mut self, token: Token, mut op: DeviceOp) -> DeviceCompletion {
        if let Some(error) = self.failures.pop_front() {
            return DeviceCompletion { token, op, result: Err(error) };
        }
        let (offset, len) = op.extent().unwrap_or((0, 0));
        let range = &mut self.bytes[offset as usize..][..len as usize];
        self.log.push(match &mut op {
            DeviceOp::Read { into, .. } => {
                into.copy_from_slice(range);
                let begin = into.as_ptr().addr();
                self.read_into = begin..begin + into.len();
                "read"
            }
            DeviceOp::Write { from, durable, .. } => {
                range.copy_from_slice(from);
                if *durable { "durable write" } else { "write" }
            }
            DeviceOp::Flush => "flush",
            DeviceOp::Discard { .. } => {
                range.fill(0);
                "discard"
            }
            DeviceOp::WriteZeroes { .. } => {
                range.fill(0);
                "zeroes"
            }
        });
        DeviceCompletion { token, op, result: Ok(()) }
    }
}

/// The target and everything around it, in a time that stands still unless told.
pub struct Rig {
    pub target: Target,
    pub disk: Disk,
    pub now: Instant,
    pub subsystem: SubsystemKey,
    pub clients: Vec<ClientState>,
    /// Where new connections come from.
    pub peer: IpAddr,
}

/// One connection as its peer sees it.
pub struct ClientState {
    pub key: Option<ConnectionKey>,
    pub framing: Framing,
    /// Sent, and not taken by the target.
    pub outbox: VecDeque<u8>,
    /// Received from the target.
    pub inbox: Vec<u8>,
    /// Everything that the target has taken, if somebody wants to know.
    pub taken: Option<Vec<u8>>,
    /// Takes nothing from the target.
    pub is_deaf: bool,
    pub is_finished: bool,
    pub is_closed: bool,
    next_command: u16,
}

/// A connection of the rig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client(pub usize);

/// What the target said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub layout: Layout,
    pub pdu: Pdu,
    pub data: Vec<u8>,
}

pub fn control() -> (Control, SubsystemKey) {
    let mut control = Control::new(ControlConfig::default());
    let address = TransportAddress { family: AddressFamily::Ipv4, address: "10.0.0.1".into(), service: 4420 };
    control.add_port(PortSpec { port: PortKey(1), address, discovery_only: false }).unwrap();
    let subsystem = control.add_subsystem(SubsystemSpec::open(Nqn::new(NQN).unwrap(), "SN1")).unwrap();
    control.add_namespace(subsystem, &namespace(1, 7)).unwrap();
    (control, subsystem)
}

/// A namespace that is all of the disk; `uuid` makes it another one than the others.
pub fn namespace(nsid: u32, uuid: u8) -> NamespaceSpec {
    NamespaceSpec {
        nsid: Some(nsid),
        backing: BackendId(0).into(),
        blocks: BLOCKS,
        block_len: BLOCK as u32,
        uuid: [uuid; 16],
        nguid: [0; 16],
        volatile_cache: true,
        deallocated_reads_zero: false,
        deallocate_len: 0,
        ana_group: 1,
        read_only: false,
    }
}

impl Rig {
    pub fn new() -> Self {
        Self::with(TargetConfig::default())
    }

    pub fn with(config: TargetConfig) -> Self {
        let (control, subsystem) = control();
        Self::with_control(config, control, subsystem)
    }

    pub fn with_control(config: TargetConfig, control: Control, subsystem: SubsystemKey) -> Self {
        Self {
            target: Target::new(config, control),
            disk: Disk::new(),
            now: Instant::from_nanoseconds(1_000_000_000),
            subsystem,
            clients: Vec::new(),
            peer: IpAddr::from([10, 0, 0, 2]),
        }
    }

    pub fn client(&mut self) -> Client {
        let net = ConnectionId(self.clients.len() as u64);
        let path = Path { peer: self.peer, ..Path::from(PortKey(1)) };
        let key = self.target.accept_from(self.now, net, path);
        self.clients.push(ClientState {
            key,
            framing: Framing {
                role: Role::Initiator,
                digests: Digests::NONE,
                alignment: DataAlignment::DWORD,
            },
            outbox: VecDeque::new(),
            inbox: Vec::new(),
            taken: None,
            is_deaf: false,
            is_finished: false,
            is_closed: key.is_none(),
            next_command: 0,
        });
        Client(self.clients.len() - 1)
    }

    pub fn state(&mut self, client: Client) -> &mut ClientState {
        &mut self.clients[client.0]
    }

    /// Sends bytes, and lets everything happen that follows.
    pub fn send(&mut self, client: Client, bytes: &[u8]) {
        self.state(client).outbox.extend(bytes);
        self.run();
    }

    /// Ends the connection from the client's side, and lets everything happen that follows.
    pub fn hang_up(&mut self, client: Client) {
        self.hang_up_quietly(client);
        self.run();
    }

    /// The same without what follows.
    pub fn hang_up_quietly(&mut self, client: Client) {
        if let Some(key) = self.state(client).key.take() {
            self.target.ended(self.now, key);
        }
    }

    pub fn advance(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.target.tick(self.now);
        self.run();
    }

    /// Does everything that can be done.
    pub fn run(&mut self) {
        while self.deliver() | self.settle() {}
    }

    /// Does what can be done without another byte from a client; whether there was anything.
    pub fn settle(&mut self) -> bool {
        let mut did = false;
        self.target.pump(self.now);
        self.target.retry_devices();
        while let Some((backend, token, op)) = self.target.next_device_op() {
            assert_eq!(backend, BackendId(0), "nobody may reach another device");
            if self.disk.queue.len() >= self.disk.depth {
                self.target.put_back(backend, token, op);
                break;
            }
            did = true;
            self.disk.queue.push_back((token, op));
        }
        while !self.disk.is_held && !self.disk.queue.is_empty() {
            self.complete(0);
            did = true;
        }
        did |= self.collect();
        self.act();
        did | self.target.prove(self.now)
    }

    /// Lets one of the operations that are held go.
    pub fn complete(&mut self, index: usize) {
        let (token, op) = self.disk.queue.remove(index).unwrap();
        let completion = self.disk.apply(token, op);
        self.target.completed(completion);
    }

    /// Lets all operations go, those that follow too.
    pub fn release_disk(&mut self) {
        self.disk.is_held = false;
        self.run();
    }

    fn deliver(&mut self) -> bool {
        let mut did = false;
        for client in 0..self.clients.len() {
            while self.deliver_some(Client(client), usize::MAX) > 0 {
                self.target.pump(self.now);
                did = true;
            }
        }
        did
    }

    /// Has the target receive all that a client has sent, and do nothing else: what others send comes in the same round.
    pub fn deliver_only(&mut self, client: Client, bytes: &[u8]) {
        self.state(client).outbox.extend(bytes);
        while self.deliver_some(client, usize::MAX) > 0 {}
    }

    /// Lengths of the places of a client's next receive.
    pub fn places(&mut self, client: Client) -> Vec<usize> {
        let key = self.state(client).key.unwrap();
        self.target.receive_into(key).unwrap().iter().map(|place| place.len()).collect()
    }

    /// Has the target receive once, at most so many bytes; how many it took.
    pub fn deliver_some(&mut self, client: Client, count_max: usize) -> usize {
        let state = &mut self.clients[client.0];
        let (Some(key), false) = (state.key, state.outbox.is_empty()) else { return 0 };
        let Some(parts) = self.target.receive_into(key) else { return 0 };
        let mut count = 0;
        for part in parts {
            let len = part.len().min(state.outbox.len()).min(count_max - count);
            state.outbox.read_exact(&mut part[..len]).unwrap();
            if let Some(taken) = &mut state.taken {
                taken.extend_from_slice(&part[..len]);
            }
            count += len;
            if len < part.len() {
                break;
            }
        }
        self.target.received(self.now, key, count);
        count
    }

    /// Takes at most so many bytes of what the target has to send to a client; how many there were.
    pub fn take_some(&mut self, client: Client, count_max: usize) -> usize {
        let state = &mut self.clients[client.0];
        let Some(key) = state.key else { return 0 };
        let mut slices = [IoSlice::new(&[]); 4];
        let count = self.target.transmit(key, &mut slices);
        let bytes = slices[..count].iter().flat_map(|slice| slice.iter().copied());
        let before = state.inbox.len();
        state.inbox.extend(bytes.take(count_max));
        let count = state.inbox.len() - before;
        if count > 0 {
            self.target.sent(self.now, key, count);
        }
        count
    }

    fn collect(&mut self) -> bool {
        let mut did = false;
        while let Some((key, net)) = self.target.next_dirty() {
            let client = &mut self.clients[net.0 as usize];
            if client.is_deaf {
                self.target.sent(self.now, key, 0);
                continue;
            }
            did |= take_output(&mut self.target, self.now, key, client);
        }
        did
    }

    /// A client that was deaf listens again.
    pub fn listen_again(&mut self, client: Client) {
        let state = &mut self.clients[client.0];
        state.is_deaf = false;
        if let Some(key) = state.key {
            take_output(&mut self.target, self.now, key, state);
        }
        self.run();
    }

    fn act(&mut self) {
        while let Some(action) = self.target.next_action() {
            match action {
                ConnectionAction::Resume(..) => {}
                ConnectionAction::Finish(net) => self.clients[net.0 as usize].is_finished = true,
                ConnectionAction::Close(net) => {
                    let client = &mut self.clients[net.0 as usize];
                    client.is_closed = true;
                    client.key = None;
                }
            }
        }
    }

    /// The next thing that the target said, if there is one.
    pub fn next(&mut self, client: Client) -> Option<Message> {
        let state = self.state(client);
        let rules = ReceiveRules {
            role: Role::Initiator,
            digests: state.framing.digests,
            alignment: DataAlignment::DWORD,
            capsule_data_max: 0,
            data_max: 1 << 20,
        };
        let Progress::Header(layout, pdu) = receive(&state.inbox, &rules).unwrap() else { return None };
        assert!(state.inbox.len() >= layout.total_len, "a PDU came in part");
        let data = state.inbox[layout.data_at..layout.data_end()].to_vec();
        if layout.has_data_digest {
            assert_eq!(state.inbox[layout.data_end()..layout.total_len], digest(&data), "data digest");
        }
        state.inbox.drain(..layout.total_len);
        Some(Message { layout, pdu, data })
    }

    /// Everything it said.
    pub fn messages(&mut self, client: Client) -> Vec<Message> {
        std::iter::from_fn(|| self.next(client)).collect()
    }

    pub fn response(&mut self, client: Client) -> CompletionEntry {
        match self.next(client).expect("a response").pdu {
            Pdu::Response(entry) => entry,
            other => panic!("not a response: {other:?}"),
        }
    }

    pub fn solicitation(&mut self, client: Client) -> ReadyToTransfer {
        match self.next(client).expect("an R2T").pdu {
            Pdu::ReadyToTransfer(wanted) => wanted,
            other => panic!("not an R2T: {other:?}"),
        }
    }

    /// That the target gave the connection up, and why it said so.
    pub fn termination(&mut self, client: Client) -> Termination {
        let last = self.messages(client).pop().expect("a terminate request");
        assert!(self.state(client).is_finished, "the connection goes on");
        match last.pdu {
            Pdu::Termination(reason) => reason,
            other => panic!("not a terminate request: {other:?}"),
        }
    }

    pub fn command_id(&mut self, client: Client) -> CommandId {
        let state = self.state(client);
        state.next_command = state.next_command.wrapping_add(1);
        CommandId(state.next_command)
    }

    /// A command capsule's bytes.
    pub fn capsule(&mut self, client: Client, entry: &SubmissionEntry, data: &[u8]) -> Vec<u8> {
        let framing = self.state(client).framing;
        let mut bytes = framing.command(entry, data.len() as u32).to_vec();
        bytes.extend_from_slice(data);
        if framing.digests.data && !data.is_empty() {
            bytes.extend(digest(data));
        }
        bytes
    }

    /// An H2CData PDU's bytes.
    pub fn data_pdu(&mut self, client: Client, transfer: &DataTransfer, data: &[u8]) -> Vec<u8> {
        let framing = self.state(client).framing;
        let mut bytes = framing.data(transfer).to_vec();
        bytes.extend_from_slice(data);
        if framing.digests.data && !data.is_empty() {
            bytes.extend(digest(data));
        }
        bytes
    }

    pub fn submit(&mut self, client: Client, entry: &SubmissionEntry, data: &[u8]) {
        let bytes = self.capsule(client, entry, data);
        self.send(client, &bytes);
    }

    pub fn open(&mut self, digests: Digests) -> Client {
        let client = self.client();
        let request = IcRequest { alignment: DataAlignment::DWORD, digests, r2t_max: 1 };
        self.send(client, &request.encode());
        let Some(Message { pdu: Pdu::IcResponse(response), .. }) = self.next(client) else {
            panic!("no ICResp")
        };
        assert_eq!(response.digests, digests);
        self.state(client).framing.digests = digests;
        client
    }

    pub fn connect_as(&mut self, client: Client, queue: u16, wish: &Wish) -> CompletionEntry {
        self.submit_connect(client, queue, wish);
        self.response(client)
    }

    /// Sends a Connect, which may have to wait.
    pub fn submit_connect(&mut self, client: Client, queue: u16, wish: &Wish) {
        let bytes = self.connect_capsule(client, queue, wish);
        self.send(client, &bytes);
    }

    /// A Connect's bytes.
    pub fn connect_capsule(&mut self, client: Client, queue: u16, wish: &Wish) -> Vec<u8> {
        let command = self.command_id(client);
        let entry = Connect {
            queue: QueueId(queue),
            queue_entries: wish.entries,
            no_flow_control: wish.no_flow_control,
            keep_alive_ms: wish.keep_alive_ms,
        }
        .encode(command, DataPointer::InCapsule { offset: 0, len: 1024 });
        let data = ConnectParties {
            host_id: wish.host_id,
            controller: wish.controller,
            subsystem: Nqn::new(wish.subsystem).unwrap(),
            host: Nqn::new(wish.host).unwrap(),
        }
        .encode();
        self.capsule(client, &entry, data.as_bytes())
    }

    /// An admin queue whose controller is enabled; its CNTLID.
    pub fn admin(&mut self, digests: Digests) -> (Client, ControllerId) {
        self.admin_as(digests, &Wish::default())
    }

    pub fn admin_as(&mut self, digests: Digests, wish: &Wish) -> (Client, ControllerId) {
        let client = self.open(digests);
        let response = self.connect_as(client, 0, wish);
        assert_eq!(response.status(), Status::SUCCESS);
        self.enable(client);
        (client, ControllerId(response.result() as u16))
    }

    /// Sets CC.EN.
    pub fn enable(&mut self, client: Client) {
        let command = self.command_id(client);
        let property = Property::Configuration;
        let entry = PropertyAccess { property, value: Some(0x0046_0001) }.encode(command);
        self.submit(client, &entry, &[]);
        assert_eq!(self.response(client).status(), Status::SUCCESS);
    }

    /// An admin queue and an I/O queue.
    pub fn queues(&mut self, digests: Digests, no_flow_control: bool) -> (Client, Client) {
        let (admin, controller) = self.admin(digests);
        let io = self.io_queue(digests, controller, 1, no_flow_control);
        (admin, io)
    }

    pub fn io_queue(
        &mut self,
        digests: Digests,
        controller: ControllerId,
        queue: u16,
        no_flow_control: bool,
    ) -> Client {
        let io = self.open(digests);
        let wish = Wish { controller, no_flow_control, ..Wish::default() };
        let response = self.connect_as(io, queue, &wish);
        assert_eq!(response.status(), Status::SUCCESS);
        io
    }

    pub fn entry(
        &mut self,
        client: Client,
        opcode: IoOpcode,
        block: u64,
        blocks: u32,
        data: DataPointer,
    ) -> SubmissionEntry {
        let command = self.command_id(client);
        BlockCommand::new(NamespaceId(1), block, blocks).encode(opcode, command, data)
    }

    pub fn simple(&mut self, client: Client, opcode: IoOpcode, block: u64, blocks: u32) -> CompletionEntry {
        let entry = self.entry(client, opcode, block, blocks, DataPointer::None);
        self.submit(client, &entry, &[]);
        self.response(client)
    }

    /// Writes with the data in the capsule.
    pub fn write(&mut self, client: Client, block: u64, data: &[u8]) -> CompletionEntry {
        self.write_fused(client, block, data, IoOpcode::Write, Fuse::None);
        self.response(client)
    }

    /// Submits a command with data in its capsule.
    pub fn write_fused(
        &mut self,
        client: Client,
        block: u64,
        data: &[u8],
        opcode: IoOpcode,
        fuse: Fuse,
    ) -> CommandId {
        let blocks = (data.len() / BLOCK) as u32;
        let pointer = DataPointer::InCapsule { offset: 0, len: data.len() as u32 };
        let entry = self.entry(client, opcode, block, blocks, pointer).with_fuse(fuse);
        self.submit(client, &entry, data);
        entry.command()
    }

    /// Writes with data that the target asks for, in pieces of `piece` bytes.
    pub fn write_solicited(
        &mut self,
        client: Client,
        block: u64,
        data: &[u8],
        piece: usize,
    ) -> CompletionEntry {
        let pointer = DataPointer::Transport { len: data.len() as u32 };
        let entry = self.entry(client, IoOpcode::Write, block, (data.len() / BLOCK) as u32, pointer);
        self.submit(client, &entry, &[]);
        let wanted = self.solicitation(client);
        assert_eq!((wanted.command, wanted.offset, wanted.len as usize), (entry.command(), 0, data.len()));
        self.send_wanted(client, &wanted, data, piece);
        self.response(client)
    }

    pub fn send_wanted(&mut self, client: Client, wanted: &ReadyToTransfer, data: &[u8], piece: usize) {
        let mut offset = 0;
        for part in data.chunks(piece) {
            let transfer = DataTransfer {
                command: wanted.command,
                tag: wanted.tag,
                offset,
                len: part.len() as u32,
                is_last: offset as usize + part.len() == data.len(),
                is_success: false,
            };
            let bytes = self.data_pdu(client, &transfer, part);
            self.send(client, &bytes);
            offset += part.len() as u32;
        }
    }

    pub fn submit_read(&mut self, client: Client, block: u64, blocks: u32) -> CommandId {
        let pointer = DataPointer::Transport { len: blocks * BLOCK as u32 };
        let entry = self.entry(client, IoOpcode::Read, block, blocks, pointer);
        self.submit(client, &entry, &[]);
        entry.command()
    }

    /// Reads; a response of its own must follow unless the data said that all went well.
    pub fn read(&mut self, client: Client, block: u64, blocks: u32) -> Vec<u8> {
        let command = self.submit_read(client, block, blocks);
        let message = self.next(client).expect("data");
        let Pdu::Data(transfer) = message.pdu else { panic!("not data: {:?}", message.pdu) };
        assert_eq!((transfer.command, transfer.offset, transfer.is_last), (command, 0, true));
        if !transfer.is_success {
            assert_eq!(self.response(client).status(), Status::SUCCESS);
        }
        message.data
    }
}

/// What a Connect says.
pub struct Wish {
    pub entries: u32,
    pub no_flow_control: bool,
    /// KATO of an admin queue.
    pub keep_alive_ms: u32,
    pub host_id: [u8; 16],
    pub controller: ControllerId,
    pub subsystem: &'static str,
    pub host: &'static str,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            entries: 32,
            no_flow_control: false,
            keep_alive_ms: 0,
            host_id: [9; 16],
            controller: ControllerId::DYNAMIC,
            subsystem: NQN,
            host: HOST,
        }
    }
}

fn take_output(target: &mut Target, now: Instant, key: ConnectionKey, client: &mut ClientState) -> bool {
    let mut did = false;
    loop {
        let mut slices = [IoSlice::new(&[]); 4];
        let count = target.transmit(key, &mut slices);
        let len: usize = slices[..count].iter().map(|slice| slice.len()).sum();
        if len == 0 {
            return did;
        }
        did = true;
        slices[..count].iter().for_each(|slice| client.inbox.extend_from_slice(slice));
        target.sent(now, key, len);
    }
}

pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((index >> 8) as u8))
        .collect()
}
