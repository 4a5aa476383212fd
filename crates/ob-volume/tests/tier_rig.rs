//! A card with chunk servers, and a metadata store, in memory: plans are done in any order, and what they do is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ob_core::{
    BlockLen, ChunkName, GateId, Incarnation, Instant, LockId, PoolId, Sequence, TierId, Token, Units,
    VolumeId,
};
use ob_format::volume::metadata::{Text, Volume};
use ob_format::volume::{Encoding, Record, RecordHeader, RecordKind, TrimRange};
use ob_split::wire::{
    Broken, Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat, Completion, CompletionStatus,
    Descriptor, Handle, HeaderEntry, Set, SetWhat, Welcome,
};
use ob_volume::metadata::{
    Keys, MemoryStore, MetadataAnswer, MetadataCompletion, MetadataError, MetadataOp, MetadataStore, Name,
};
use ob_volume::plans::{Given, GivenPiece, Part, PostedPlan, Run, VolumePlan, piece_blocks};
use ob_volume::tier::{
    AdminAnswer, AdminError, PortNumber, Ticket, TierAction, TierConfig, TierCore, TierEvent, TierNews,
};
use ob_volume::wire::RequestMessage;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};
use zerocopy::IntoBytes;

pub(crate) use crate::tier_dice::Dice;
use crate::tier_faults::slots_of;
use crate::tier_ports::{
    at_port, channel_at_port, channel_in_rig, port_of_channel, port_of_slot, slot_at_port, slot_in_rig,
};
use crate::tier_servers::Server;
pub(crate) use crate::tier_servers::volume;

pub(crate) const PORT: PortNumber = PortNumber(0);
pub(crate) const POOL: PoolId = PoolId([7; 16]);

pub(crate) fn config(volumes: Vec<(VolumeId, Volume)>, servers: u16) -> TierConfig {
    let servers = (0..servers).map(|server| SocketAddr::from((Ipv4Addr::LOCALHOST, 4440 + server))).collect();
    let keys = Keys::new("default").unwrap();
    TierConfig::new(POOL, keys, Text::new("127.0.0.1:4421").unwrap(), servers, volumes)
}

/// A chunk of a slot.
pub(crate) struct SetChunk {
    pub(crate) set: Set,
    pub(crate) next: Units,
    pub(crate) is_stopped: bool,
}

/// A command, as its initiator and the card see it.
pub(crate) struct Message {
    pub(crate) entry: SubmissionEntry,
    pub(crate) values: Vec<u64>,
    pub(crate) read: Vec<u64>,
    /// What each block of a read may be, as its initiator sees it.
    pub(crate) may_be: Vec<Vec<u64>>,
    pub(crate) length: u32,
    /// Whether something of it was sent to servers.
    pub(crate) was_sent: bool,
}

/// A record that has its place, and of which nobody has said yet whether it counts.
pub(crate) struct Undecided {
    pub(crate) sequence: Sequence,
    pub(crate) offset: Units,
    pub(crate) units: Units,
    /// The first block of the volume, and what all of them become.
    pub(crate) start: usize,
    pub(crate) values: Vec<u64>,
}

/// A plan under way.
pub(crate) struct Running {
    pub(crate) plan: PostedPlan,
    /// Of what has its place.
    pub(crate) placed: Option<Vec<Completion>>,
    reply: Vec<u8>,
    /// What each block was when it was looked up.
    pub(crate) expected: Vec<u64>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) handle: u32,
    pub(crate) status: Status,
    pub(crate) read: Vec<u64>,
}

pub(crate) struct Rig {
    pub(crate) tier: TierCore,
    pub(crate) store: MemoryStore,
    pub(crate) dice: Dice,
    pub(crate) now: Instant,
    pub(crate) servers: Vec<Server>,
    pub(crate) model: BTreeMap<VolumeId, Vec<u64>>,
    pub(crate) volumes: BTreeMap<VolumeId, Volume>,
    pub(crate) messages: BTreeMap<u32, Message>,
    pub(crate) answered: Vec<Answered>,
    /// Operations of the store that are under way.
    pub(crate) ops: Vec<(Token, MetadataOp)>,
    /// One in so many operations of the store has no answer at first.
    pub(crate) unknown: u64,
    pub(crate) is_store_silent: bool,
    /// The card has whims: chunks are full before they are, answers are withheld, nothing is as it should be at first.
    pub(crate) has_whims: bool,
    /// Records of the index stay under way, or the plan of a command.
    pub(crate) holds_index: bool,
    pub(crate) held: Option<u32>,
    /// Records that the card has memory for at once.
    pub(crate) runs_max: usize,
    /// How often a slot was set to another chunk.
    pub(crate) resets: usize,
    /// Which server is asked first for what it has.
    pub(crate) first_asked: usize,
    pub(crate) channels: BTreeMap<u16, usize>,
    pub(crate) slots: BTreeMap<u16, SetChunk>,
    pub(crate) running: Vec<Running>,
    pub(crate) channel_events: Vec<ChannelIs>,
    pub(crate) broken: Vec<Broken>,
    pub(crate) news: Vec<TierNews>,
    /// By chunk: records of which nobody has said whether they count.
    pub(crate) undecided: BTreeMap<ChunkName, Vec<Undecided>>,
    /// By chunk: the last record that is known to be everywhere, and so all before it.
    pub(crate) told: BTreeMap<ChunkName, Units>,
    /// Values of blocks that others have been written over.
    pub(crate) superseded: BTreeSet<u64>,
    /// Where the value of a block was written.
    pub(crate) written: BTreeMap<u64, Vec<(ChunkName, Units)>>,
    /// Numbers of chunks that servers were asked to make.
    pub(crate) asked: BTreeMap<(ChunkName, usize), usize>,
    pub(crate) posted: Vec<PostedPlan>,
    /// Ports of the host's own plans.
    pub(crate) calls_of: BTreeMap<u32, PortNumber>,
    /// By handle: where the card has left bytes that it was to compress, and how many.
    pub(crate) pressed: BTreeMap<u32, BTreeSet<(u64, u32)>>,
    /// Operations of lives that are over, which the store may come to.
    pub(crate) late: Vec<MetadataOp>,
    pub(crate) config: TierConfig,
    /// What the host gives its card to read.
    pub(crate) host_area: Vec<u8>,
    /// The gate: preparations that are not noted, the last one that is, and until when it is open.
    pub(crate) gates: Vec<u64>,
    pub(crate) noted: Option<(u64, Instant)>,
    pub(crate) open_until: Option<Instant>,
    /// Which tier it is, and whether it is on a copy of that one's data directory.
    pub(crate) number: u64,
    pub(crate) is_copy: bool,
    /// Others may have written since a block was looked up.
    pub(crate) is_shared: bool,
    /// Others may have made the volumes.
    pub(crate) accepts_volumes: bool,
    /// Volumes that are shown.
    pub(crate) served: BTreeSet<VolumeId>,
    /// What administrators were told.
    pub(crate) told_admin: Vec<(Ticket, Result<AdminAnswer, AdminError>)>,
    pub(crate) next_handle: u32,
    pub(crate) next_value: u64,
    gate: u64,
}

pub(crate) fn value_of(block: &[u8]) -> u64 {
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

impl Rig {
    pub(crate) fn new(config: TierConfig, seed: u64) -> Self {
        let volumes: BTreeMap<_, _> = config.volumes.iter().copied().collect();
        let model = volumes
            .iter()
            .map(|(id, volume)| (*id, vec![0; (volume.size / u64::from(volume.block_len.bytes())) as usize]));
        let model = model.collect();
        let servers = config.servers.iter().map(|_| Server::default()).collect();
        Self {
            tier: TierCore::new(config.clone()).unwrap(),
            config,
            late: Vec::new(),
            store: MemoryStore::new(),
            dice: Dice::new(seed),
            now: Instant::from_nanoseconds(1),
            servers,
            model,
            volumes,
            messages: BTreeMap::new(),
            answered: Vec::new(),
            ops: Vec::new(),
            unknown: u64::MAX,
            is_store_silent: false,
            has_whims: false,
            holds_index: false,
            held: None,
            runs_max: usize::MAX,
            resets: 0,
            first_asked: 0,
            channels: BTreeMap::new(),
            slots: BTreeMap::new(),
            running: Vec::new(),
            channel_events: Vec::new(),
            broken: Vec::new(),
            news: Vec::new(),
            undecided: BTreeMap::new(),
            told: BTreeMap::new(),
            superseded: BTreeSet::new(),
            written: BTreeMap::new(),
            asked: BTreeMap::new(),
            posted: Vec::new(),
            pressed: BTreeMap::new(),
            calls_of: BTreeMap::new(),
            host_area: Vec::new(),
            gates: Vec::new(),
            noted: None,
            open_until: None,
            number: 1,
            is_copy: false,
            is_shared: false,
            accepts_volumes: false,
            served: BTreeSet::new(),
            told_admin: Vec::new(),
            next_handle: 1,
            next_value: 1,
            gate: 1 << 32,
        }
    }

    pub(crate) fn welcome(&self) -> Welcome {
        Welcome {
            engines: 0,
            payload_max: 1 << 20,
            gate: GateId(self.gate),
            handles_max: 1024,
            plans_max: 12,
            parked: 0,
            channels_max: 16,
            tier: TierId(self.number),
            lock: LockId([self.number as u8 + 2 + 100 * u8::from(self.is_copy); 16]),
        }
    }

    pub(crate) fn tell(&mut self, event: TierEvent<'_>) {
        self.tier.handle(self.now, event).unwrap();
        self.obey();
    }

    pub(crate) fn open(&mut self) {
        self.gate += 1;
        (self.noted, self.open_until) = (None, None);
        self.gates.clear();
        let welcome = self.welcome();
        self.tell(TierEvent::PortOpened { port: PORT, welcome });
        self.open_others();
    }

    /// The group ends: the card forgets plans, slots and channels, and keeps messages.
    pub(crate) fn close(&mut self) {
        self.forget_card();
        self.tell(TierEvent::PortClosed { port: PORT });
    }

    pub(crate) fn forget_card(&mut self) {
        self.channels.clear();
        self.slots.clear();
        self.running.clear();
        self.channel_events.clear();
        self.broken.clear();
    }

    /// Does what the tier asks for, as far as that takes no time.
    fn obey(&mut self) {
        while let Some(action) = self.tier.next_action() {
            match action {
                TierAction::Post { port, plan } => {
                    let plan = self.lift(port, plan);
                    self.post(plan);
                }
                TierAction::Press { port, press } => {
                    let mut into = press.into;
                    let given = press.pieces.iter().map(|(_, len)| {
                        let at = into;
                        into += u64::from(*len);
                        GivenPiece { at, stored: *len, is_lz4: false, is_back: false }
                    });
                    let given: Vec<GivenPiece> = given.collect();
                    let plan = self.lift(port, press.plan(&given).unwrap());
                    self.post(plan);
                }
                TierAction::Set { port, mut set } => {
                    set.slot = slot_in_rig(port, set.slot);
                    for channel in &mut set.channels[..usize::from(set.members)] {
                        channel.0 = channel_in_rig(port, channel.0);
                    }
                    self.set(set);
                }
                TierAction::Channel { port, mut channel } => {
                    channel.channel.0 = channel_in_rig(port, channel.channel.0);
                    self.channel(channel);
                }
                TierAction::Upload { at, bytes, .. } => self.upload(at, &bytes),
                TierAction::Gate { gate, .. } => self.gate(gate),
                TierAction::Metadata(token, op) => self.ops.push((token, op)),
                TierAction::Serve(volumes) => {
                    for (id, volume) in &volumes {
                        let before = self.volumes.insert(*id, *volume);
                        assert!(self.accepts_volumes || before == Some(*volume));
                    }
                    self.served = volumes.into_iter().map(|(id, _)| id).collect();
                }
                TierAction::Tell { ticket, answer } => self.told_admin.push((ticket, answer)),
                TierAction::Report(news) => self.hear(news),
            }
        }
    }

    fn channel(&mut self, channel: Channel) {
        let (number, server) = (channel.channel.0, usize::from(at_port(channel.channel.0)) - 1);
        let is_gone = |is: &ChannelIs| is.channel == channel.channel && is.state == ChannelState::Gone;
        if channel.what == ChannelWhat::Close && self.channel_events.iter().any(is_gone) {
            // It is told once.
            return;
        }
        let state = if channel.what == ChannelWhat::Close {
            ChannelState::Gone
        } else if self.servers[server].is_down {
            ChannelState::Refused
        } else {
            assert!(self.channels.insert(number, server).is_none(), "it is connected");
            ChannelState::Up
        };
        self.channel_events.push(channel_is(number, state));
    }

    fn set(&mut self, set: Set) {
        let is_named = self.running.iter().any(|running| slots_of(&running.plan).contains(&set.slot.0));
        assert!(!is_named, "plans under way name {:?}", set.slot);
        if set.what == SetWhat::Append {
            for server in set.channels.iter().filter_map(|channel| self.server_of(*channel)) {
                let end = self.servers[server].chunks[&set.chunk].end();
                assert_eq!(set.offset, end, "the chunk ends elsewhere");
            }
        }
        let chunk = SetChunk { set, next: set.offset, is_stopped: false };
        let before = self.slots.insert(set.slot.0, chunk);
        self.resets += usize::from(before.is_some_and(|before| before.set.chunk != set.chunk));
    }

    fn post(&mut self, plan: PostedPlan) {
        let welcome = self.welcome();
        self.check_room(plan.handle, welcome.plans_max);
        let definitions = ob_volume::plans::definitions().unwrap();
        let definition = definitions.iter().find(|definition| definition.id() == plan.plan).unwrap();
        assert_eq!(definition.entry_len(plan.argument), 8 + plan.arguments.len());
        assert!(self.running.iter().all(|running| running.plan.handle != plan.handle), "one plan at a time");
        for slot in slots_of(&plan) {
            assert!(self.slots.contains_key(&slot), "{slot} was never set");
        }
        if let Ok(VolumePlan::Given(given)) = VolumePlan::decode(&plan.entry()) {
            let pieces = (0..given.len()).filter_map(|at| given.piece(at)).filter(|piece| piece.is_back);
            for piece in pieces {
                let is_there = self.pressed[&plan.handle.0].contains(&(piece.at, piece.stored));
                assert!(is_there, "{piece:?} is none that the card has looked at");
            }
        }
        self.posted.push(plan.clone());
        let mut expected = Vec::new();
        if let Ok(VolumePlan::Read { first, runs, .. }) = VolumePlan::decode(&plan.entry()) {
            let (id, command) = self.command(plan.handle);
            let from = (command.start + u64::from(first.unwrap_or(0))) as usize;
            expected = self.model[&id][from..from + runs.blocks() as usize].to_vec();
        }
        self.check_overlaps(&plan);
        self.running.push(Running { plan, placed: None, reply: Vec::new(), expected });
    }

    pub(crate) fn command(&self, handle: Handle) -> (VolumeId, BlockCommand) {
        let command = BlockCommand::parse(&self.messages[&handle.0].entry).unwrap();
        (VolumeId(command.namespace.0.into()), command)
    }

    pub(crate) fn block_len(&self, id: VolumeId) -> BlockLen {
        self.volumes[&id].block_len
    }

    /// An initiator sends a command.
    pub(crate) fn send(&mut self, opcode: IoOpcode, id: VolumeId, start: u64, blocks: u32) -> u32 {
        let command = BlockCommand::new(NamespaceId(id.0 as u32), start, blocks);
        let entry = command.encode(opcode, CommandId(1), DataPointer::None);
        let len = if opcode == IoOpcode::Write { blocks * self.block_len(id).bytes() } else { 0 };
        self.send_entry(entry, len)
    }

    pub(crate) fn send_entry(&mut self, entry: SubmissionEntry, length: u32) -> u32 {
        let handle = self.next_handle;
        self.next_handle += 1;
        let command = BlockCommand::parse(&entry).unwrap();
        let count = if entry.opcode == IoOpcode::Write.code() { u64::from(command.blocks) } else { 0 };
        let values = (self.next_value..self.next_value + count).collect();
        self.next_value += count;
        let (read, may_be, was_sent) = (Vec::new(), Vec::new(), false);
        let message = Message { entry, values, read, may_be, length, was_sent };
        self.messages.insert(handle, message);
        self.expect_of(handle);
        let (port, message) = self.message_at_port(handle);
        self.tell(TierEvent::Header { port, header: header_of(&entry, message, length) });
        handle
    }

    /// What blocks of a read may be: what they are, and what is being written there; and of a write, which reads may see it.
    fn expect_of(&mut self, handle: u32) {
        let (id, command) = self.command(Handle(handle));
        let opcode = IoOpcode::try_from(self.messages[&handle].entry.opcode).unwrap();
        let Some(blocks) = self.model.get(&id).map(|model| model.len() as u64) else { return };
        if command.end() > blocks {
            return;
        }
        let written = |message: &Message, block: u64| message.written(id, block);
        if opcode == IoOpcode::Read {
            let may_be = (command.start..command.end()).map(|block| {
                let now = self.model[&id][block as usize];
                let pending = self.messages.values().filter_map(|message| written(message, block));
                // What was given up may count in the end.
                let undecided = self.undecided.iter().filter(|(chunk, _)| chunk.volume == id);
                let left = undecided.flat_map(|(_, records)| records).filter_map(|record| {
                    record.values.get((block as usize).checked_sub(record.start)?).copied()
                });
                std::iter::once(now).chain(pending).chain(left).collect()
            });
            let may_be = may_be.collect();
            let message = self.messages.get_mut(&handle).unwrap();
            message.may_be = may_be;
            message.read = vec![u64::MAX; command.blocks as usize];
            return;
        }
        let news: Vec<Option<u64>> =
            (command.start..command.end()).map(|block| written(&self.messages[&handle], block)).collect();
        for message in self.messages.values_mut().filter(|message| !message.may_be.is_empty()) {
            let read = BlockCommand::parse(&message.entry).unwrap();
            for (block, new) in (command.start..command.end()).zip(&news) {
                if read.namespace.0 == id.0 as u32 && (read.start..read.end()).contains(&block) {
                    message.may_be[(block - read.start) as usize].extend(*new);
                }
            }
        }
    }

    /// Lets one thing happen that is under way; `false` if there is nothing.
    pub(crate) fn step(&mut self) -> bool {
        if self.note_gate() {
            return true;
        }
        let ops = if self.is_store_silent { 0 } else { self.ops.len() };
        let (holds_index, held) = (self.holds_index, self.held);
        let is_held = |running: &Running| {
            let is_index = running.plan.plan == ob_volume::plans::id::INDEX;
            (holds_index && is_index) || Some(running.plan.handle.0) == held
        };
        if holds_index || held.is_some() {
            // Those that are held come last, and are not reached.
            self.running.sort_by_key(is_held);
        }
        let held = self.running.iter().filter(|running| is_held(running)).count();
        let counts = [self.running.len() - held, ops, self.channel_events.len(), self.broken.len()];
        let all: usize = counts.iter().sum();
        if !self.late.is_empty() && self.dice.below(20) == 0 {
            let op = self.late.remove(0);
            self.run_late(op);
        }
        let Some(mut at) = (all > 0).then(|| self.dice.below(all as u64) as usize) else { return false };
        if at < counts[0] {
            self.run_plan(at);
            return true;
        }
        at -= counts[0];
        if at < ops {
            self.run_op(at);
            return true;
        }
        at -= ops;
        if at < counts[2] {
            // In their order.
            let is = self.channel_events.remove(0);
            if is.state == ChannelState::Gone {
                self.channels.remove(&is.channel.0);
            }
            let port = port_of_channel(is.channel.0);
            self.tell(TierEvent::Channel { port, is: channel_at_port(is) });
        } else {
            let mut broken = self.broken.remove(0);
            let port = port_of_slot(broken.slot.0);
            (broken.slot, broken.channel.0) = (slot_at_port(broken.slot), at_port(broken.channel.0));
            self.tell(TierEvent::Broken { port, broken });
        }
        true
    }

    /// Until nothing is under way.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.store.set_time(self.now);
        if self.tier.next_due().is_some_and(|due| due <= self.now) {
            self.tell(TierEvent::Tick);
        }
    }

    /// Until all that was sent is answered.
    pub(crate) fn finish(&mut self) {
        for _ in 0..100_000 {
            self.settle();
            if self.messages.is_empty() {
                return;
            }
            self.pass(Duration::from_millis(20));
        }
        panic!("{} commands are not answered: {:?}", self.messages.len(), self.tier.status());
    }

    fn run_op(&mut self, at: usize) {
        let (token, op) = self.ops.swap_remove(at);
        let trouble = self.dice.below(self.unknown);
        if trouble == 1 {
            // It was not done.
            let result = Err(MetadataError::Unreachable);
            return self.tell(TierEvent::Metadata(MetadataCompletion { token, result }));
        }
        self.store.submit(token, op).unwrap();
        let mut completion = self.store.poll().unwrap();
        if trouble == 0 && !matches!(completion.result, Ok(MetadataAnswer::Session(_))) {
            // It was, and nobody knows.
            completion.result = Err(MetadataError::Unknown);
        }
        self.tell(TierEvent::Metadata(completion));
    }

    /// What the store has for a key.
    pub(crate) fn stored(&mut self, name: Name) -> Option<ob_volume::metadata::MetadataValue> {
        let key = Keys::new("default").unwrap().key(name);
        self.store.submit(Token(u64::MAX), MetadataOp::Get { key }).unwrap();
        let Ok(MetadataAnswer::Value(value)) = self.store.poll().unwrap().result else { panic!("no value") };
        value.map(|(value, _)| ob_volume::metadata::MetadataValue::decode(&name, value.bytes()).unwrap())
    }

    fn run_plan(&mut self, at: usize) {
        let plan = self.running[at].plan.clone();
        match VolumePlan::decode(&plan.entry()).unwrap() {
            VolumePlan::Write { .. } | VolumePlan::Given(_) | VolumePlan::Trim { .. }
                if self.running[at].placed.is_none() =>
            {
                if self.whim() {
                    // Its peer has given it up before anything was sent.
                    self.running.remove(at);
                    return self.complete(&[done(plan.handle, CompletionStatus::GivenUp)], None);
                }
                let placed = self.place(&plan);
                self.running[at].placed = Some(placed);
            }
            VolumePlan::Index(_) | VolumePlan::Move(_) if self.running[at].placed.is_none() => {
                let placed = self.place_maintenance(&plan);
                self.running[at].placed = Some(placed);
            }
            VolumePlan::Write { .. }
            | VolumePlan::Given(_)
            | VolumePlan::Trim { .. }
            | VolumePlan::Index(_)
            | VolumePlan::Move(_) => self.change_over(at),
            VolumePlan::Look(look) => {
                self.running.remove(at);
                self.run_look(plan.handle, &look);
            }
            VolumePlan::Read { first, runs, .. } => {
                let runs: Vec<Run> = runs.iter().collect();
                self.read(at, first, &runs);
            }
            VolumePlan::Answer { status, has_bytes } => {
                self.running.remove(at);
                if self.whim() || (status.is_success() && self.is_gate_late()) {
                    return self.complete(&[done(plan.handle, CompletionStatus::Withheld)], None);
                }
                self.finish_message(&plan, status, has_bytes);
                self.complete(&[done(plan.handle, CompletionStatus::Good)], None);
            }
            VolumePlan::Call { channel, header, payload } => {
                let request = RequestMessage::decode(header).unwrap();
                assert_eq!(request.payload_len as usize, payload.len());
                let reply = self.serve(channel, &request, payload);
                let running = self.running.remove(at);
                let status =
                    if reply.is_some() { CompletionStatus::Good } else { CompletionStatus::NoMember };
                let reply = reply.unwrap_or(running.reply);
                let reply = Some(&reply[..]).filter(|reply| !reply.is_empty());
                self.complete(&[done(plan.handle, status)], reply);
            }
            VolumePlan::Copy(copy) => {
                self.running.remove(at);
                self.copy(plan.handle, &copy);
            }
            VolumePlan::Take { .. } => {
                self.running.remove(at);
                self.complete(&[done(plan.handle, CompletionStatus::Good)], None);
            }
            VolumePlan::Press(press) => {
                self.running.remove(at);
                let shrinks = self.dice.below(3) > 0;
                let status = if shrinks { CompletionStatus::Good } else { CompletionStatus::Engine };
                let offset = if shrinks { press.length / 2 } else { 0 };
                let stored = if shrinks { (press.into, offset) } else { (press.at, press.length) };
                self.pressed.entry(plan.handle.0).or_default().insert(stored);
                self.complete(&[Completion { offset, ..done(plan.handle, status) }], None);
            }
        }
    }

    pub(crate) fn whim(&mut self) -> bool {
        self.has_whims && self.dice.below(8) == 0
    }

    /// Completions go to the tier, one behind the other.
    pub(crate) fn complete(&mut self, completions: &[Completion], reply: Option<&[u8]>) {
        for completion in completions {
            let (port, completion) = self.lower(completion);
            self.tell(TierEvent::Done { port, completion, reply });
        }
    }

    /// The server behind a channel, while it lives.
    pub(crate) fn server_of(&self, channel: ChannelId) -> Option<usize> {
        self.channels.get(&channel.0).copied().filter(|server| !self.servers[*server].is_down)
    }

    fn serve(&mut self, channel: ChannelId, request: &RequestMessage, sent: &[u8]) -> Option<Vec<u8>> {
        let place = self.server_of(channel)?;
        self.note_request(place, &request.request);
        self.servers[place].serve(place, request, sent)
    }

    /// Records get their places, and go to all members; what becomes of each.
    fn place(&mut self, plan: &PostedPlan) -> Vec<Completion> {
        let mut completions = Vec::new();
        let mut is_full = false;
        for (sequence, range, values, is_trim) in self.records_of(plan) {
            is_full |= self.whim();
            let chunk = self.slots.get_mut(&plan.slot.0).unwrap();
            assert_eq!(chunk.set.what, SetWhat::Append);
            let block_len = self.volumes[&chunk.set.chunk.volume].block_len;
            let (name, offset) = (chunk.set.chunk, chunk.next);
            let mut payload = Vec::new();
            for value in &values {
                let at = payload.len();
                payload.resize(at + block_len.bytes() as usize, 0);
                payload[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            let header = RecordHeader {
                chunk: name,
                offset,
                sequence,
                version: sequence,
                lba: range.lba,
                blocks: range.blocks,
                stored: payload.len() as u32,
                payload_crc: crc32c::crc32c(&payload),
                kind: if is_trim { RecordKind::Trim } else { RecordKind::Write },
                encoding: Encoding::None,
                behind: None,
            };
            let units = header.units();
            let mut completion = done(plan.handle, CompletionStatus::Good);
            completion.has_more = true;
            if chunk.is_stopped {
                completion.status = CompletionStatus::Broken;
            } else if is_full || offset.0 + units.0 > chunk.set.length.0 {
                completion.status = CompletionStatus::ChunkFull;
            } else {
                chunk.next = Units(offset.0 + units.0);
                (completion.units, completion.offset) = (units.0 as u16, offset.0);
                let mut bytes = Vec::new();
                Record { header, payload: &payload }.encode_into(&mut bytes).unwrap();
                assert!(self.stored(Name::Chunk(name)).is_some(), "C2: {name:?} is not in the store");
                let start = name.segment.0 as usize * 1024 + range.lba.0 as usize;
                let becomes = if is_trim { vec![0; range.blocks as usize] } else { values.clone() };
                let record = Undecided { sequence, offset, units, start, values: becomes };
                self.undecided.entry(name).or_default().push(record);
                self.messages.get_mut(&plan.handle.0).unwrap().was_sent = true;
                for value in &values {
                    self.written.entry(*value).or_default().push((name, offset));
                }
                self.append(plan.slot, offset, &bytes, &mut completion);
            }
            completions.push(completion);
        }
        completions.last_mut().unwrap().has_more = false;
        completions
    }

    /// Sequence, blocks within the segment, what they have, and whether they are gone.
    pub(crate) fn records_of(&self, plan: &PostedPlan) -> Vec<(Sequence, TrimRange, Vec<u64>, bool)> {
        match VolumePlan::decode(&plan.entry()).unwrap() {
            VolumePlan::Trim { sequence, ranges, .. } => {
                vec![(sequence, ranges.iter().next().unwrap(), Vec::new(), true)]
            }
            VolumePlan::Write { sequence, part, .. } | VolumePlan::Given(Given { sequence, part, .. }) => {
                let (id, command) = self.command(plan.handle);
                let part = part.unwrap_or(Part { first: 0, blocks: command.blocks });
                let values = &self.messages[&plan.handle.0].values;
                let values = &values[part.first as usize..(part.first + part.blocks) as usize];
                let per_piece = piece_blocks(self.block_len(id)) as usize;
                let pieces = values.chunks(per_piece).enumerate().map(|(number, values)| {
                    let block = command.start + u64::from(part.first) + (number * per_piece) as u64;
                    let segment = u64::from(self.slots[&plan.slot.0].set.chunk.segment.0);
                    assert_eq!(block / 1024, segment, "of another segment");
                    assert_eq!((block + values.len() as u64 - 1) / 1024, segment, "of another segment");
                    let range =
                        TrimRange { lba: ob_core::Lba((block % 1024) as u32), blocks: values.len() as u32 };
                    (Sequence(sequence.0 + number as u64), range, values.to_vec(), false)
                });
                pieces.collect()
            }
            _ => Vec::new(),
        }
    }

    fn change_over(&mut self, at: usize) {
        let Running { plan, placed, .. } = self.running.remove(at);
        let mut completions = placed.unwrap();
        let chunk = self.slots[&plan.slot.0].set.chunk;
        for completion in completions.iter().filter(|completion| completion.status == CompletionStatus::Good)
        {
            self.decide(chunk, Units(completion.offset));
            let told = self.told.entry(chunk).or_default();
            *told = (*told).max(Units(completion.offset));
        }
        let is_good = completions.iter().all(|completion| completion.status == CompletionStatus::Good);
        use ob_volume::plans::id;
        let answers = matches!(plan.plan, id::WRITE | id::WRITE_RAW | id::WRITE_GIVEN | id::TRIM);
        if is_good && answers && (self.whim() || self.is_gate_late()) {
            completions.iter_mut().for_each(|completion| completion.status = CompletionStatus::Withheld);
        } else if is_good && answers {
            self.finish_message(&plan, Status::SUCCESS, false);
        }
        self.complete(&completions, None);
    }

    /// The initiator is answered.
    pub(crate) fn finish_message(&mut self, plan: &PostedPlan, status: Status, has_bytes: bool) {
        let message = self.messages.remove(&plan.handle.0).expect("a message is answered once");
        if status.is_success() {
            message.values.iter().for_each(|value| self.check_acknowledged(*value));
        }
        if has_bytes && status.is_success() {
            for (at, (value, may_be)) in message.read.iter().zip(&message.may_be).enumerate() {
                assert!(may_be.contains(value), "block {at} reads {value}, and can be {may_be:?}");
            }
        }
        self.answered.push(Answered { handle: plan.handle.0, status, read: message.read });
    }

    pub(crate) fn status_of(&self, handle: u32) -> Option<Status> {
        self.answered.iter().find(|answered| answered.handle == handle).map(|answered| answered.status)
    }
}

pub(crate) fn channel_is(number: u16, state: ChannelState) -> ChannelIs {
    ChannelIs {
        channel: ChannelId(number),
        state,
        port: 4440,
        listener: ChannelId(0),
        incarnation: Incarnation(1),
    }
}

pub(crate) fn done(handle: Handle, status: CompletionStatus) -> Completion {
    Completion { handle, status, has_more: false, bad_members: 0, units: 0, offset: 0, word: 0 }
}

pub(crate) fn header_of(entry: &SubmissionEntry, handle: u32, length: u32) -> HeaderEntry {
    let descriptor =
        Descriptor { handle: Handle(handle), length, front: 0, was_parked: false, was_sent: false };
    HeaderEntry::new(entry.as_bytes().try_into().unwrap(), descriptor)
}
