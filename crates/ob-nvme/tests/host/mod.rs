//! A host on a simulated network: an admin queue, some I/O queues, commands in flight.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use ob_core::{ConnectionId, Net, NetEvent, Received};
use ob_sim::SimNet;
use ob_wire_nvme::command::{Fuse, IoOpcode};
use ob_wire_nvme::fabrics::{Connect, ConnectParties, Property, PropertyAccess};
use ob_wire_nvme::io::{BlockCommand, BlockRange, DatasetManagement};
use ob_wire_nvme::pdu::{
    DataAlignment, DataTransfer, Digests, Framing, IcRequest, Pdu, Progress, ReceiveRules, Role, digest,
    receive,
};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{
    CommandId, CompletionEntry, ControllerId, DataPointer, NamespaceId, QueueId, Status, SubmissionEntry,
};
use zerocopy::IntoBytes;

use crate::support;

/// A command that is over.
pub(crate) struct Event<Op> {
    pub(crate) op: Op,
    /// `None` when its connection is gone.
    pub(crate) status: Option<Status>,
    pub(crate) data: Vec<u8>,
}

struct Pending<Op> {
    op: Option<Op>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Connecting,
    Enabling,
    Ready,
}

struct Link<Op> {
    id: ConnectionId,
    queue: u16,
    stage: Stage,
    framing: Framing,
    inbox: Vec<u8>,
    outbox: VecDeque<u8>,
    pending: BTreeMap<u16, Pending<Op>>,
    next_command: u16,
}

/// A host's association, begun anew whenever it is lost.
pub(crate) struct Session<Op> {
    net: SimNet,
    address: SocketAddr,
    digests: Digests,
    queues: u16,
    controller: ControllerId,
    links: Vec<Link<Op>>,
    events: VecDeque<Event<Op>>,
}

impl<Op: Clone> Session<Op> {
    pub(crate) fn new(net: SimNet, address: SocketAddr, seed: u64, queues: u16) -> Self {
        let digests = Digests::from_bits(seed as u8);
        let controller = ControllerId::DYNAMIC;
        let (links, events) = (Vec::new(), VecDeque::new());
        Self { net, address, digests, queues, controller, links, events }
    }

    /// Gives everything up; the commands that nobody knows the end of.
    pub(crate) fn restart(&mut self) -> Vec<Op> {
        let mut lost = Vec::new();
        for link in self.links.drain(..) {
            self.net.close(link.id);
            lost.extend(link.pending.into_values().filter_map(|pending| pending.op));
        }
        self.controller = ControllerId::DYNAMIC;
        lost
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.links.len() == usize::from(self.queues) + 1
            && self.links.iter().all(|link| link.stage == Stage::Ready)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.links.iter().all(|link| link.pending.is_empty())
    }

    pub(crate) fn in_flight(&self, queue: usize) -> usize {
        self.links.get(queue + 1).map_or(0, |link| link.pending.len())
    }

    pub(crate) fn next_event(&mut self) -> Option<Event<Op>> {
        self.events.pop_front()
    }

    pub(crate) fn turn(&mut self) {
        while let Some(event) = self.net.poll() {
            match event {
                NetEvent::Connected(id) => {
                    let digests = self.digests;
                    if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
                        let request = IcRequest { alignment: DataAlignment::DWORD, digests, r2t_max: 1 };
                        link.outbox.extend(request.encode().iter());
                    }
                }
                // A connection that ends by itself ends the association.
                NetEvent::Closed { connection, .. }
                    if self.links.iter().any(|link| link.id == connection) =>
                {
                    let lost = self.restart();
                    let ended = |op| Event { op, status: None, data: Vec::new() };
                    self.events.extend(lost.into_iter().map(ended));
                }
                _ => {}
            }
        }
        self.grow();
        for index in 0..self.links.len() {
            self.receive(index);
            self.send(index);
        }
    }

    /// Connects the next queue, once those before are ready.
    fn grow(&mut self) {
        let is_settled = self.links.iter().all(|link| link.stage == Stage::Ready);
        if !is_settled || self.links.len() > usize::from(self.queues) {
            return;
        }
        let Ok(id) = self.net.connect(self.address) else { return };
        let digests = Digests::NONE;
        self.links.push(Link {
            id,
            queue: self.links.len() as u16,
            stage: Stage::Opening,
            framing: Framing { role: Role::Initiator, digests, alignment: DataAlignment::DWORD },
            inbox: Vec::new(),
            outbox: VecDeque::new(),
            pending: BTreeMap::new(),
            next_command: 0,
        });
    }

    fn send(&mut self, index: usize) {
        let link = &mut self.links[index];
        while !link.outbox.is_empty() {
            let (front, _) = link.outbox.as_slices();
            let Ok(sent) = self.net.send(link.id, front) else { return };
            if sent.0 == 0 {
                return;
            }
            link.outbox.drain(..sent.0);
        }
    }

    fn receive(&mut self, index: usize) {
        let mut bytes = [0; 4096];
        while let Ok(Received::Bytes(count)) = self.net.receive(self.links[index].id, &mut bytes) {
            self.links[index].inbox.extend_from_slice(&bytes[..count]);
        }
        while let Some((pdu, data)) = self.links[index].next_pdu() {
            self.handle(index, pdu, &data);
        }
    }

    fn handle(&mut self, index: usize, pdu: Pdu, data: &[u8]) {
        let (digests, controller) = (self.digests, self.controller);
        let link = &mut self.links[index];
        match pdu {
            Pdu::IcResponse(_) => {
                link.framing.digests = digests;
                link.stage = Stage::Connecting;
                link.connect(controller);
            }
            Pdu::Response(entry) if link.stage == Stage::Connecting => {
                assert_eq!(entry.status(), Status::SUCCESS, "Connect of queue {}", link.queue);
                if index == 0 {
                    self.controller = ControllerId(entry.result() as u16);
                    link.stage = Stage::Enabling;
                    let access =
                        PropertyAccess { property: Property::Configuration, value: Some(0x0046_0001) };
                    link.push(&access.encode(CommandId(1)), &[]);
                } else {
                    link.stage = Stage::Ready;
                }
            }
            Pdu::Response(_) if link.stage == Stage::Enabling => link.stage = Stage::Ready,
            Pdu::Response(entry) => self.finish(index, &entry),
            Pdu::Data(transfer) => {
                let pending = link.pending.get_mut(&transfer.command.0).expect("data of a command in flight");
                pending.incoming = data.to_vec();
                if transfer.is_success {
                    let entry = CompletionEntry::new(transfer.command, QueueId(0), 0, Status::SUCCESS, 0);
                    self.finish(index, &entry);
                }
            }
            Pdu::ReadyToTransfer(wanted) => {
                let data = link.pending[&wanted.command.0].outgoing.clone();
                assert_eq!((wanted.offset, wanted.len as usize), (0, data.len()));
                link.push_wanted(wanted.command, wanted.tag, &data);
            }
            other => panic!("the target said {other:?}"),
        }
    }

    fn finish(&mut self, index: usize, entry: &CompletionEntry) {
        let pending = self.links[index].pending.remove(&entry.command().0).expect("a command in flight");
        if let Some(op) = pending.op {
            self.events.push_back(Event { op, status: Some(entry.status()), data: pending.incoming });
        }
    }

    fn begin(&mut self, queue: usize, entry: &SubmissionEntry, data: &[u8], op: Option<Op>, outgoing: &[u8]) {
        let link = &mut self.links[queue + 1];
        let pending = Pending { op, outgoing: outgoing.to_vec(), incoming: Vec::new() };
        link.pending.insert(entry.command().0, pending);
        link.push(entry, data);
    }

    fn command_id(&mut self, queue: usize) -> CommandId {
        let link = &mut self.links[queue + 1];
        loop {
            link.next_command = link.next_command.wrapping_add(1);
            if !link.pending.contains_key(&link.next_command) {
                return CommandId(link.next_command);
            }
        }
    }

    pub(crate) fn read(&mut self, queue: usize, block: u64, blocks: u32, is_durable: bool, op: Op) {
        let command = self.command_id(queue);
        let pointer = DataPointer::Transport { len: blocks * support::BLOCK as u32 };
        let fields = BlockCommand {
            force_unit_access: is_durable,
            ..BlockCommand::new(NamespaceId(1), block, blocks)
        };
        let entry = fields.encode(IoOpcode::Read, command, pointer);
        self.begin(queue, &entry, &[], Some(op), &[]);
    }

    pub(crate) fn plain(
        &mut self,
        queue: usize,
        opcode: IoOpcode,
        block: u64,
        blocks: u32,
        is_durable: bool,
        op: Op,
    ) {
        let command = self.command_id(queue);
        let fields = BlockCommand {
            force_unit_access: is_durable,
            ..BlockCommand::new(NamespaceId(1), block, blocks)
        };
        self.begin(queue, &fields.encode(opcode, command, DataPointer::None), &[], Some(op), &[]);
    }

    /// Zeros for a run of blocks, which may be given back.
    pub(crate) fn zeroes(
        &mut self,
        queue: usize,
        (block, blocks): (u64, u32),
        durable: bool,
        back: bool,
        op: Op,
    ) {
        let command = self.command_id(queue);
        let fields = BlockCommand {
            force_unit_access: durable,
            deallocate: back,
            ..BlockCommand::new(NamespaceId(1), block, blocks)
        };
        let entry = fields.encode(IoOpcode::WriteZeroes, command, DataPointer::None);
        self.begin(queue, &entry, &[], Some(op), &[]);
    }

    pub(crate) fn write(
        &mut self,
        queue: usize,
        block: u64,
        data: &[u8],
        is_durable: bool,
        solicited: bool,
        op: Op,
    ) {
        let command = self.command_id(queue);
        let len = data.len() as u32;
        let blocks = len / support::BLOCK as u32;
        let fields = BlockCommand {
            force_unit_access: is_durable,
            ..BlockCommand::new(NamespaceId(1), block, blocks)
        };
        if solicited || len > 8192 {
            let entry = fields.encode(IoOpcode::Write, command, DataPointer::Transport { len });
            self.begin(queue, &entry, &[], Some(op), data);
        } else {
            let entry = fields.encode(IoOpcode::Write, command, DataPointer::InCapsule { offset: 0, len });
            self.begin(queue, &entry, data, Some(op), &[]);
        }
    }

    /// Deallocates a run of blocks, told as several ranges.
    pub(crate) fn discard(&mut self, queue: usize, ranges: &[(u64, u32)], op: Op) {
        let command = self.command_id(queue);
        let data: Vec<u8> = ranges
            .iter()
            .flat_map(|(start, blocks)| {
                BlockRange { start: *start, blocks: *blocks }.encode().as_bytes().to_vec()
            })
            .collect();
        let entry = DatasetManagement {
            namespace: NamespaceId(1),
            ranges: ranges.len(),
            deallocate: true,
            integral_write: false,
            integral_read: false,
        }
        .encode(command, DataPointer::InCapsule { offset: 0, len: data.len() as u32 });
        self.begin(queue, &entry, &data, Some(op), &[]);
    }

    pub(crate) fn compare(&mut self, queue: usize, block: u64, data: &[u8], solicited: bool, op: Op) {
        let (command, len) = (self.command_id(queue), data.len() as u32);
        let fields = BlockCommand::new(NamespaceId(1), block, len / support::BLOCK as u32);
        if solicited || len > 8192 {
            let entry = fields.encode(IoOpcode::Compare, command, DataPointer::Transport { len });
            self.begin(queue, &entry, &[], Some(op), data);
        } else {
            let entry = fields.encode(IoOpcode::Compare, command, DataPointer::InCapsule { offset: 0, len });
            self.begin(queue, &entry, data, Some(op), &[]);
        }
    }

    /// Writes `new` if the blocks hold `old`, in one: the comparison and the write are answered each.
    pub(crate) fn pair(&mut self, queue: usize, block: u64, old: &[u8], new: &[u8], ops: [Op; 2]) {
        let fields = BlockCommand::new(NamespaceId(1), block, (old.len() / support::BLOCK) as u32);
        let pointer = DataPointer::InCapsule { offset: 0, len: old.len() as u32 };
        let [first_op, second_op] = ops;
        let first = fields.encode(IoOpcode::Compare, self.command_id(queue), pointer).with_fuse(Fuse::First);
        self.begin(queue, &first, old, Some(first_op), &[]);
        let second = fields.encode(IoOpcode::Write, self.command_id(queue), pointer).with_fuse(Fuse::Second);
        self.begin(queue, &second, new, Some(second_op), &[]);
    }
}

impl<Op> Link<Op> {
    fn next_pdu(&mut self) -> Option<(Pdu, Vec<u8>)> {
        let rules = ReceiveRules {
            role: Role::Initiator,
            digests: self.framing.digests,
            alignment: DataAlignment::DWORD,
            capsule_data_max: 0,
            data_max: 1 << 20,
        };
        let Progress::Header(layout, pdu) = receive(&self.inbox, &rules).unwrap() else { return None };
        if self.inbox.len() < layout.total_len {
            return None;
        }
        let data = self.inbox[layout.data_at..layout.data_end()].to_vec();
        if layout.has_data_digest {
            assert_eq!(self.inbox[layout.data_end()..layout.total_len], digest(&data));
        }
        self.inbox.drain(..layout.total_len);
        Some((pdu, data))
    }

    fn push(&mut self, entry: &SubmissionEntry, data: &[u8]) {
        self.outbox.extend(self.framing.command(entry, data.len() as u32).iter());
        self.push_data(data);
    }

    fn push_data(&mut self, data: &[u8]) {
        self.outbox.extend(data);
        if self.framing.digests.data && !data.is_empty() {
            self.outbox.extend(digest(data));
        }
    }

    /// The data that was asked for, in two pieces.
    fn push_wanted(&mut self, command: CommandId, tag: ob_wire_nvme::TransferTag, data: &[u8]) {
        let mut offset = 0;
        for part in data.chunks(data.len().div_ceil(2).next_multiple_of(4)) {
            let len = part.len() as u32;
            let is_last = offset as usize + part.len() == data.len();
            let transfer = DataTransfer { command, tag, offset, len, is_last, is_success: false };
            self.outbox.extend(self.framing.data(&transfer).iter());
            self.push_data(part);
            offset += len;
        }
    }

    fn connect(&mut self, controller: ControllerId) {
        let connect = Connect {
            queue: QueueId(self.queue),
            queue_entries: 16,
            no_flow_control: self.queue % 2 == 1,
            keep_alive_ms: 0,
        };
        let parties = ConnectParties {
            host_id: [9; 16],
            controller,
            subsystem: Nqn::new(support::NQN).unwrap(),
            host: Nqn::new(support::HOST).unwrap(),
        };
        let pointer = DataPointer::InCapsule { offset: 0, len: 1024 };
        self.push(&connect.encode(CommandId(0), pointer), parties.encode().as_bytes());
    }
}
