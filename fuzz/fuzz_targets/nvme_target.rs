//! Hosts that say anything to an NVMe/TCP target, in any pieces, while its device completes in any order or fails, time
//! goes by and namespaces come and go: nothing panics, no answer comes twice or unasked for, nobody reaches a device that
//! wants a secret first, and when all connections are gone nothing of them is left.

#![no_main]

#[path = "../../crates/ob-nvme/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use ob_core::DeviceError;
use ob_nvme::auth::{Secret, SecretSize};
use ob_nvme::target::TargetConfig;
use ob_nvme::target::control::{
    BackendId, HostPolicy, HostSecrets, HostSpec, NamespaceSpec, SubsystemKey, SubsystemSpec,
};
use ob_wire_nvme::fabrics::{Connect, ConnectParties};
use ob_wire_nvme::pdu::{
    DataAlignment, DataTransfer, Digests, IcRequest, Pdu, PduError, Progress, ReadyToTransfer, ReceiveRules,
    Role, digest, receive,
};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, QueueId, SubmissionEntry};
use support::{BLOCK, BLOCKS, Client, HOST, NQN, Rig, Wish};
use zerocopy::IntoBytes;

const GUARDED: &str = "nqn.2026-01.example:guarded";
const CONNECTIONS_MAX: usize = 8;
const STEPS_MAX: usize = 400;
/// Bytes of a PDU header that a digest covers, of a command and of data.
const HEADS: [usize; 2] = [72, 24];
const OPCODES: [u8; 20] = [
    0x00, 0x01, 0x01, 0x02, 0x02, 0x05, 0x05, 0x08, 0x09, 0x0C, 0x0D, 0x0E, 0x11, 0x15, 0x06, 0x0A, 0x18,
    0x7F, 0x7F, 0xC1,
];

/// What a real kernel sent.
static GOLDEN: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    macro_rules! golden {
        ($($name:literal),*) => {
            [$(include_str!(concat!("../../crates/ob-wire-nvme/tests/golden/host-", $name, ".hex"))),*]
        };
    }
    let texts = golden![
        "icreq", "icreq-digests", "connect-admin", "connect-io", "discovery-connect-admin",
        "discovery-get-log-discovery-1024-bytes-at-4096", "get-log-ana-16-bytes-at-8192",
        "get-log-effects-4096-bytes", "identify-controller", "identify-descriptors", "keep-alive",
        "property-set-cc-enable", "property-set-cc-shutdown", "set-features-07", "set-features-0b",
        "asynchronous-event-request", "deallocate", "read-8-blocks", "write-zeroes", "write-in-capsule",
        "write-by-request", "h2cdata-write-by-request", "auth-send-negotiate-authentication"
    ];
    let decode = |text: &&str| {
        let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
        (0..digits.len()).step_by(2).map(byte).collect()
    };
    texts.iter().map(decode).collect()
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let mut world = World::new(&mut script);
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        world.step(&mut script);
        world.rig.settle();
        let counts = world.rig.target.counts();
        assert!(counts.connections <= CONNECTIONS_MAX as u64);
        assert!(counts.waiting_for_range <= counts.in_flight, "what waits is a command: {counts:?}");
        assert!(counts.waiting_for_buffer <= counts.in_flight, "what waits is a command: {counts:?}");
    }
    world.come_to_rest();
    world.check_answers();
    world.end();
});

/// A connection as whoever watches the wire sees it.
#[derive(Default)]
struct Watch {
    digests: Digests,
    is_open: bool,
    /// The host broke the protocol, or ended the connection.
    is_over: bool,
    /// The target gave the connection up.
    is_given_up: bool,
    /// How many bytes of what the target took are looked at.
    taken: usize,
    submitted: BTreeMap<u16, u32>,
    answered: BTreeMap<u16, u32>,
    /// Commands that may be answered much later: asynchronous events, reservations.
    patient: u64,
    wanted: Vec<ReadyToTransfer>,
}

struct World {
    rig: Rig,
    watches: Vec<Watch>,
    controllers: Vec<ControllerId>,
    spare: NamespaceSpec,
    guarded: SubsystemKey,
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let config = TargetConfig {
            connections_max: CONNECTIONS_MAX,
            capsule_buffers: 3,
            transfer_memory: 64 << 10,
            connection_transfer_max: 48 << 10,
            transfers_max: 2,
            unsent_max: 512,
            receive_len: 4096,
            compares_max: 1,
            ..TargetConfig::default()
        };
        let mut rig = Rig::with(config);
        let spare = NamespaceSpec {
            nsid: Some(1),
            backing: BackendId(0).into(),
            blocks: BLOCKS,
            block_len: BLOCK as u32,
            uuid: [7; 16],
            nguid: [0; 16],
            volatile_cache: true,
            deallocated_reads_zero: false,
            deallocate_len: 0,
            ana_group: 1,
            read_only: false,
        };
        let control = rig.target.control_mut();
        let nqn = |name: &str| Nqn::new(name).expect("a name");
        let host = Secret::generate(SecretSize::Bytes32, None, &mut |bytes: &mut [u8]| bytes.fill(0xA5));
        let secrets = Some(HostSecrets { host, controller: None });
        let hosts = HostPolicy::Listed(vec![HostSpec { nqn: nqn(HOST), secrets }]);
        let guarded = SubsystemSpec { hosts, ..SubsystemSpec::open(nqn(GUARDED), "2") };
        let guarded = control.add_subsystem(guarded).expect("there is none of this name");
        let namespace = NamespaceSpec { backing: BackendId(9).into(), uuid: [9; 16], ..spare.clone() };
        control.add_namespace(guarded, &namespace).expect("there is none");
        let mut world =
            Self { rig, watches: Vec::new(), controllers: vec![ControllerId::DYNAMIC], spare, guarded };
        world.begin(script);
        world
    }

    /// Two honest associations, of one host or of two.
    fn begin(&mut self, script: &mut Script<'_>) {
        let setting = script.number();
        for number in 0..2_u8 {
            let digests = Digests::from_bits(setting >> (2 * number));
            let host_id = [if setting & 16 == 0 { 9 } else { 9 + number }; 16];
            if number == 1 && setting & 16 == 0 {
                break;
            }
            let entries = if setting & 64 == 0 { 32 } else { 3 };
            let no_flow_control = setting & 32 != 0;
            let wish = Wish { host_id, entries, no_flow_control, ..Wish::default() };
            let (_, controller) = self.rig.admin_as(digests, &wish);
            self.controllers.push(controller);
            let io = self.rig.open(digests);
            let response = self.rig.connect_as(io, 1, &Wish { controller, ..wish });
            assert!(response.status().is_success());
        }
        self.rig.disk.is_held = true;
        for client in 0..self.rig.clients.len() {
            let digests = self.rig.clients[client].framing.digests;
            self.watch(Client(client), Watch { digests, is_open: true, ..Watch::default() });
        }
    }

    fn watch(&mut self, client: Client, watch: Watch) {
        let state = self.rig.state(client);
        state.taken = Some(Vec::new());
        state.is_deaf = true;
        self.watches.push(watch);
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let action = script.number();
        let client = Client(usize::from(script.number()) % self.rig.clients.len());
        match action % 20 {
            0..=6 => {
                let bytes = self.command(client, script);
                self.send(client, bytes, script);
            }
            7 | 8 => {
                let bytes = self.data(client, script);
                self.send(client, bytes, script);
            }
            9 => {
                let bytes = GOLDEN[usize::from(script.number()) % GOLDEN.len()].clone();
                self.send(client, bytes, script);
            }
            10 => {
                let len = usize::from(script.number());
                let bytes = script.bytes(len);
                self.rig.state(client).outbox.extend(bytes);
            }
            11 => {
                self.rig.deliver_some(client, 1 + usize::from(script.number()) * 8);
            }
            12 => {
                self.rig.take_some(client, 1 + usize::from(script.number()) * 8);
                self.look(client);
            }
            13 => self.take_all(),
            14 | 15 => self.complete(script),
            16 => {
                self.rig.now = self.rig.now + Duration::from_millis(u64::from(script.number()) * 50);
                self.rig.target.tick(self.rig.now);
            }
            17 => self.administer(script),
            18 => self.open(client, script),
            _ => self.hang_up(client),
        }
    }

    fn hang_up(&mut self, client: Client) {
        if let Some(key) = self.rig.state(client).key.take() {
            self.rig.target.ended(self.rig.now, key);
        }
    }

    /// Puts bytes into a client's hands, perhaps spoilt, and has some of them delivered.
    fn send(&mut self, client: Client, mut bytes: Vec<u8>, script: &mut Script<'_>) {
        let how = script.number();
        if how & 1 != 0 {
            for _ in 0..1 + (how >> 6) {
                let (at, mask) = (usize::from(script.number()), script.number());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= mask;
                }
            }
        }
        // With a digest that fits what was spoilt, so that it is not all that is found.
        let head = HEADS[usize::from(how & 4 != 0)];
        if how & 2 != 0 && self.rig.state(client).framing.digests.header && bytes.len() >= head + 4 {
            let good = digest(&bytes[..head]);
            bytes[head..head + 4].copy_from_slice(&good);
        }
        if how & 8 != 0 {
            bytes.pop();
        }
        self.rig.state(client).outbox.extend(bytes);
        if how & 16 == 0 {
            while self.rig.deliver_some(client, usize::MAX) > 0 {}
        }
    }

    fn command(&mut self, client: Client, script: &mut Script<'_>) -> Vec<u8> {
        let shape = script.number();
        let opcode = OPCODES[usize::from(script.number()) % OPCODES.len()];
        let command = CommandId(u16::from(script.number() % 12));
        let mut entry = SubmissionEntry::new(opcode, command, NamespaceId(1));
        let blocks = 1 + u32::from(script.number() % 24);
        entry.dword10 = u32::from(script.number() % 40).into();
        entry.dword12 = (blocks - 1 | u32::from(shape & 128) << 23).into();
        if opcode == 0x09 {
            entry.dword10 = (blocks % 3).into();
            entry.dword11 = 4.into();
        }
        if !matches!(opcode, 0x00..=0x02 | 0x05 | 0x08 | 0x0C) || shape & 64 != 0 {
            entry.namespace = u32::from(script.number() % 8).into();
            entry.dword10 = script.word().into();
            entry.dword11 = script.word().into();
        }
        entry.flags |= if shape & 32 != 0 { script.number() & 3 } else { 0 };
        let len = match shape & 3 {
            3 => script.word(),
            _ => blocks * BLOCK as u32,
        };
        let in_capsule = len.min(8192) as usize;
        if shape & 4 == 0 {
            return self.rig.capsule(client, &entry.with_data(DataPointer::Transport { len }), &[]);
        }
        let entry = entry.with_data(DataPointer::InCapsule { offset: 0, len: in_capsule as u32 });
        // Small numbers, so that ranges of Dataset Management and keys of reservations mean something.
        let data = [shape >> 3 & 7, 0, 0, 0, 0, 0, 0, 0].repeat(in_capsule.div_ceil(8));
        self.rig.capsule(client, &entry, &data[..in_capsule])
    }

    /// Data that was asked for, or nearly.
    fn data(&mut self, client: Client, script: &mut Script<'_>) -> Vec<u8> {
        self.look(client);
        let how = script.number();
        let Some(wanted) = self.watches[client.0].wanted.pop() else { return Vec::new() };
        let half = if how & 1 == 0 { wanted.len } else { wanted.len / 2 / 4 * 4 };
        let mut bytes = Vec::new();
        for (offset, len) in [(0, half), (half, wanted.len - half)] {
            if len == 0 || (offset > 0 && how & 2 != 0) {
                continue;
            }
            let is_last = offset + len == wanted.len;
            let (command, tag) = (wanted.command, wanted.tag);
            let transfer = DataTransfer { command, tag, offset, len, is_last, is_success: false };
            bytes.extend(self.rig.data_pdu(client, &transfer, &vec![how; len as usize]));
        }
        if how & 4 != 0 {
            // To be sent once more.
            self.watches[client.0].wanted.push(wanted);
        }
        bytes
    }

    fn open(&mut self, near: Client, script: &mut Script<'_>) {
        let how = script.number();
        // A client whose connection is gone comes again.
        let client = self.rig.client();
        let digests = Digests::from_bits(how);
        self.watch(client, Watch::default());
        let queue = QueueId(u16::from(how >> 5));
        if how & 16 != 0 {
            return;
        }
        let request = IcRequest { alignment: DataAlignment::DWORD, digests, r2t_max: 1 };
        self.rig.state(client).outbox.extend(request.encode().iter());
        self.rig.state(client).framing.digests = digests;
        let controller = self.controllers[near.0 % self.controllers.len()];
        let controller = if queue == QueueId::ADMIN { ControllerId::DYNAMIC } else { controller };
        let subsystem = Nqn::new(if how & 4 == 0 { NQN } else { GUARDED }).expect("a name");
        let host = Nqn::new(HOST).expect("a name");
        let host_id = [9 + (how >> 3 & 1); 16];
        let parties = ConnectParties { host_id, controller, subsystem, host };
        let connect = Connect { queue, queue_entries: 8, no_flow_control: false, keep_alive_ms: 5000 };
        let entry = connect.encode(CommandId(77), DataPointer::InCapsule { offset: 0, len: 1024 });
        let bytes = self.rig.capsule(client, &entry, parties.encode().as_bytes());
        self.send(client, bytes, script);
    }

    fn complete(&mut self, script: &mut Script<'_>) {
        let (which, how) = (usize::from(script.number()), script.number());
        if self.rig.disk.queue.is_empty() {
            return;
        }
        let errors = [DeviceError::Io, DeviceError::NoSpace, DeviceError::Gone, DeviceError::Unsupported];
        if let Some(error) = errors.get(usize::from(how % 12)) {
            self.rig.disk.failures.push_back(*error);
        }
        self.rig.complete(which % self.rig.disk.queue.len());
    }

    fn administer(&mut self, script: &mut Script<'_>) {
        let (subsystem, how) = (self.rig.subsystem, script.number());
        let blocks = 1 + u64::from(how >> 2) * 16;
        let control = self.rig.target.control_mut();
        // Each may be refused, which is as good as any other outcome.
        let _ = match how % 4 {
            0 => control.remove_namespace(subsystem, 1).map(|_| ()),
            1 => control.add_namespace(subsystem, &self.spare).map(|_| ()),
            2 => control.resize_namespace(subsystem, 1, blocks),
            _ => control.set_read_only(subsystem, 1, how & 4 != 0),
        };
    }

    fn take_all(&mut self) {
        for client in 0..self.rig.clients.len() {
            while self.rig.take_some(Client(client), usize::MAX) > 0 {}
            self.look(Client(client));
        }
    }

    /// Reads what a connection carried since the last look.
    fn look(&mut self, client: Client) {
        let watch = &mut self.watches[client.0];
        let state = &mut self.rig.clients[client.0];
        watch.look_at_host(state.taken.as_deref().unwrap_or_default());
        let used = watch.look_at_target(&state.inbox);
        state.inbox.drain(..used);
    }

    /// Everything is delivered, completed, saved and taken.
    fn come_to_rest(&mut self) {
        for _ in 0..10_000 {
            let mut did = self.rig.settle();
            for client in 0..self.rig.clients.len() {
                while self.rig.deliver_some(Client(client), usize::MAX) > 0 {
                    did = true;
                }
                did |= self.rig.take_some(Client(client), usize::MAX) > 0;
                self.look(Client(client));
            }
            while !self.rig.disk.queue.is_empty() {
                self.rig.complete(0);
                did = true;
            }
            while let Some(changed) = self.rig.target.next_reservations_changed() {
                self.rig.target.reservations_saved(changed.namespace, u64::MAX);
                did = true;
            }
            if !did {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.rig.target.counts());
    }

    /// Who still has a connection has all its answers, except of what waits for something that a host owes.
    fn check_answers(&mut self) {
        let counts = self.rig.target.counts();
        let (mut open, mut patient) = (0, 0);
        for (state, watch) in self.rig.clients.iter().zip(&self.watches) {
            if state.key.is_some() && !state.is_finished && !watch.is_over {
                let sum = |counts: &BTreeMap<u16, u32>| counts.values().copied().map(u64::from).sum::<u64>();
                open += sum(&watch.submitted) - sum(&watch.answered);
                patient += watch.patient;
            }
        }
        if counts.held_up == 0 {
            assert!(open >= counts.in_flight, "{open} commands have no answer: {counts:?}");
            assert!(open <= counts.in_flight + patient, "{open} commands have no answer: {counts:?}");
        }
    }

    /// All connections go, and nothing is left; a host that comes now is served.
    fn end(mut self) {
        for client in 0..self.rig.clients.len() {
            self.hang_up(Client(client));
        }
        self.come_to_rest();
        let counts = self.rig.target.counts();
        let left = [counts.connections, counts.in_flight, counts.orphans, counts.held_up];
        assert_eq!(left, [0; 4], "{counts:?}");
        assert_eq!((counts.waiting_for_buffer, counts.waiting_for_range), (0, 0), "{counts:?}");
        assert_eq!(self.rig.target.memory_used(), 0, "buffers came back");
        assert_eq!(self.rig.target.control().controllers(), 0, "associations ended");
        assert_eq!(self.rig.target.control().namespaces(self.guarded).count(), 1);
        let control = self.rig.target.control_mut();
        let _ = control.remove_namespace(self.rig.subsystem, 1);
        control.add_namespace(self.rig.subsystem, &self.spare).expect("it was taken away");
        self.rig.disk.is_held = false;
        self.rig.disk.failures.clear();
        let (_, io) = self.rig.queues(Digests::BOTH, false);
        assert!(self.rig.write(io, 3, &[0x5A; BLOCK]).status().is_success());
        assert_eq!(self.rig.read(io, 3, 1), [0x5A; BLOCK]);
    }
}

impl Watch {
    fn rules(&self, role: Role) -> ReceiveRules {
        ReceiveRules {
            role,
            digests: self.digests,
            alignment: DataAlignment::DWORD,
            capsule_data_max: 8192,
            data_max: 128 << 10,
        }
    }

    /// Counts the commands that the target took.
    fn look_at_host(&mut self, taken: &[u8]) {
        while !self.is_over {
            let rest = &taken[self.taken..];
            let (layout, pdu) = match receive(rest, &self.rules(Role::Target)) {
                Ok(Progress::Header(layout, pdu)) if rest.len() >= layout.total_len => (layout, pdu),
                Ok(_) => return,
                Err(PduError { .. }) => {
                    self.is_over = true;
                    return;
                }
            };
            self.taken += layout.total_len;
            match pdu {
                Pdu::IcRequest(request) if !self.is_open => {
                    (self.is_open, self.digests) = (true, request.digests);
                }
                Pdu::Command(entry) if self.is_open => {
                    *self.submitted.entry(entry.command().0).or_default() += 1;
                    self.patient += u64::from(matches!(entry.opcode, 0x0C | 0x0D | 0x0E | 0x11 | 0x15));
                }
                Pdu::Data(_) if self.is_open => {}
                _ => self.is_over = true,
            }
        }
    }

    /// Checks what the target said; how many bytes of it were whole PDUs.
    fn look_at_target(&mut self, inbox: &[u8]) -> usize {
        let mut used = 0;
        loop {
            let rest = &inbox[used..];
            let mut rules = self.rules(Role::Initiator);
            rules.data_max = 1 << 20;
            let (layout, pdu) = match receive(rest, &rules) {
                Ok(Progress::Header(layout, pdu)) if rest.len() >= layout.total_len => (layout, pdu),
                Ok(_) => return used,
                Err(error) => panic!("the target says what no target may: {error}"),
            };
            assert!(!self.is_given_up, "nothing follows a terminate request: {pdu:?}");
            used += layout.total_len;
            match pdu {
                Pdu::Response(entry) => self.answer(entry.command()),
                Pdu::Data(transfer) if transfer.is_success => self.answer(transfer.command),
                Pdu::ReadyToTransfer(wanted) => self.wanted.push(wanted),
                Pdu::Termination(_) => self.is_given_up = true,
                _ => {}
            }
        }
    }

    fn answer(&mut self, command: CommandId) {
        let answered = self.answered.entry(command.0).or_default();
        *answered += 1;
        let submitted = self.submitted.get(&command.0).copied().unwrap_or(0);
        assert!(*answered <= submitted, "{command:?} has {answered} answers and was sent {submitted} times");
    }
}

/// What is left of the input.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn number(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        let bytes = [self.number(), self.number(), self.number(), self.number()];
        u32::from_le_bytes(bytes)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}
