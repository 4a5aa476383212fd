//! A card with chunk servers, and a metadata store, in memory: plans are done in any order, and what they do is checked.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ob_core::{
    BlockLen, ChunkName, GateId, Incarnation, Instant, LockId, PoolId, Sequence, TierId, Token, Units,
    VolumeId,
};
use ob_format::volume::metadata::{Class, Text, Volume, VolumeState};
use ob_format::volume::{Encoding, Record, RecordHeader, RecordKind, TrimRange};
use ob_split::wire::{
    Broken, Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat, Completion, CompletionStatus,
    Descriptor, Handle, HeaderEntry, Set, SetWhat, Welcome,
};
use ob_volume::metadata::{
    Keys, MemoryStore, MetadataAnswer, MetadataCompletion, MetadataError, MetadataOp, MetadataStore, Name,
};
use ob_volume::plans::{Part, PostedPlan, Run, VolumePlan, piece_blocks};
use ob_volume::tier::{PortNumber, TierAction, TierConfig, TierCore, TierEvent, TierNews};
use ob_volume::wire::RequestMessage;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};
use zerocopy::IntoBytes;

use crate::tier_servers::Server;

pub(crate) const PORT: PortNumber = PortNumber(0);
pub(crate) const POOL: PoolId = PoolId([7; 16]);

/// Numbers that look random, the same each time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }
}

pub(crate) fn volume(id: u64, block_len: BlockLen, blocks: u64) -> (VolumeId, Volume) {
    let volume = Volume {
        state: VolumeState::Serving,
        class: Class::Plain,
        replicas: 3,
        replicas_min: 2,
        uuid: [id as u8; 16],
        size: blocks * u64::from(block_len.bytes()),
        cut_from: None,
        segment_len: 1024 * u64::from(block_len.bytes()),
        chunk_len: 128 << 10,
        block_len,
        namespace: NamespaceId(id as u32),
        generation: 1,
        name: Text::new(&format!("disk{id}")).unwrap(),
    };
    (VolumeId(id), volume)
}

pub(crate) fn config(volumes: Vec<(VolumeId, Volume)>, servers: u16) -> TierConfig {
    let servers = (0..servers).map(|server| SocketAddr::from((Ipv4Addr::LOCALHOST, 4440 + server))).collect();
    let keys = Keys::new("default").unwrap();
    TierConfig::new(POOL, keys, Text::new("127.0.0.1:4421").unwrap(), servers, volumes)
}

/// A chunk of a slot.
pub(crate) struct SetChunk {
    pub(crate) set: Set,
    next: Units,
    pub(crate) is_stopped: bool,
}

/// A command, as its initiator and the card see it.
pub(crate) struct Message {
    pub(crate) entry: SubmissionEntry,
    pub(crate) values: Vec<u64>,
    pub(crate) read: Vec<u64>,
    /// What each block of a read may be, as its initiator sees it.
    pub(crate) may_be: Vec<Vec<u64>>,
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
    expected: Vec<u64>,
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
    /// How often a slot was set to another chunk.
    pub(crate) resets: usize,
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
    /// Where the value of a block was written.
    pub(crate) written: BTreeMap<u64, Vec<(ChunkName, Units)>>,
    /// Numbers of chunks that servers were asked to make.
    pub(crate) asked: BTreeMap<(ChunkName, usize), usize>,
    pub(crate) posted: Vec<PostedPlan>,
    next_handle: u32,
    next_value: u64,
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
            tier: TierCore::new(config).unwrap(),
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
            resets: 0,
            channels: BTreeMap::new(),
            slots: BTreeMap::new(),
            running: Vec::new(),
            channel_events: Vec::new(),
            broken: Vec::new(),
            news: Vec::new(),
            undecided: BTreeMap::new(),
            told: BTreeMap::new(),
            written: BTreeMap::new(),
            asked: BTreeMap::new(),
            posted: Vec::new(),
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
            tier: TierId(1),
            lock: LockId([3; 16]),
        }
    }

    pub(crate) fn tell(&mut self, event: TierEvent<'_>) {
        self.tier.handle(self.now, event).unwrap();
        self.obey();
    }

    pub(crate) fn open(&mut self) {
        self.gate += 1;
        let welcome = self.welcome();
        self.tell(TierEvent::PortOpened { port: PORT, welcome });
    }

    /// The group ends: the card forgets plans, slots and channels, and keeps messages.
    pub(crate) fn close(&mut self) {
        self.channels.clear();
        self.slots.clear();
        self.running.clear();
        self.channel_events.clear();
        self.broken.clear();
        self.tell(TierEvent::PortClosed { port: PORT });
    }

    /// Does what the tier asks for, as far as that takes no time.
    fn obey(&mut self) {
        while let Some(action) = self.tier.next_action() {
            match action {
                TierAction::Post { plan, .. } => self.post(plan),
                TierAction::Set { set, .. } => self.set(set),
                TierAction::Channel { channel, .. } => self.channel(channel),
                TierAction::Metadata(token, op) => self.ops.push((token, op)),
                TierAction::Serve(id, volume) => assert_eq!(self.volumes[&id], volume),
                TierAction::Report(news) => self.hear(news),
            }
        }
    }

    fn channel(&mut self, channel: Channel) {
        let (number, server) = (channel.channel.0, usize::from(channel.channel.0) - 1);
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
        assert!(self.running.len() < welcome.plans_max as usize, "more plans than there may be");
        let definitions = ob_volume::plans::definitions().unwrap();
        let definition = definitions.iter().find(|definition| definition.id() == plan.plan).unwrap();
        assert_eq!(definition.entry_len(plan.argument), 8 + plan.arguments.len());
        assert!(self.running.iter().all(|running| running.plan.handle != plan.handle), "one plan at a time");
        for slot in slots_of(&plan) {
            assert!(self.slots.contains_key(&slot), "{slot} was never set");
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

    /// I3: of changes that overlap one is under way at a time.
    fn check_overlaps(&self, plan: &PostedPlan) {
        let Some((volume, blocks)) = self.changed(plan) else { return };
        for other in &self.running {
            let Some((of, others)) = self.changed(&other.plan) else { continue };
            let overlap = of == volume && blocks.start < others.end && others.start < blocks.end;
            assert!(!overlap, "{blocks:?} and {others:?} of {volume} are changed at once");
        }
    }

    fn changed(&self, plan: &PostedPlan) -> Option<(VolumeId, std::ops::Range<u64>)> {
        match VolumePlan::decode(&plan.entry()).unwrap() {
            VolumePlan::Write { part, .. } => {
                let (id, command) = self.command(plan.handle);
                let part = part.unwrap_or(Part { first: 0, blocks: command.blocks });
                let start = command.start + u64::from(part.first);
                Some((id, start..start + u64::from(part.blocks)))
            }
            VolumePlan::Trim { ranges, slot, .. } => {
                let set = &self.slots[&slot.0].set;
                let id = set.chunk.volume;
                let range = ranges.iter().next().unwrap();
                let start = u64::from(set.chunk.segment.0) * 1024 + u64::from(range.lba.0);
                Some((id, start..start + u64::from(range.blocks)))
            }
            _ => None,
        }
    }

    fn command(&self, handle: Handle) -> (VolumeId, BlockCommand) {
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
        let message = Message { entry, values, read: Vec::new(), may_be: Vec::new() };
        self.messages.insert(handle, message);
        self.expect_of(handle);
        self.tell(TierEvent::Header { port: PORT, header: header_of(&entry, handle, length) });
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
        let written = |message: &Message, block: u64| {
            let other = BlockCommand::parse(&message.entry).unwrap();
            let is_there = other.namespace.0 == id.0 as u32 && (other.start..other.end()).contains(&block);
            match IoOpcode::try_from(message.entry.opcode) {
                Ok(IoOpcode::Write) if is_there => Some(message.values[(block - other.start) as usize]),
                Ok(IoOpcode::WriteZeroes) if is_there => Some(0),
                _ => None,
            }
        };
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
        let ops = if self.is_store_silent { 0 } else { self.ops.len() };
        let counts = [self.running.len(), ops, self.channel_events.len(), self.broken.len()];
        let all: usize = counts.iter().sum();
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
            self.tell(TierEvent::Channel { port: PORT, is });
        } else {
            let broken = self.broken.remove(0);
            self.tell(TierEvent::Broken { port: PORT, broken });
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
            VolumePlan::Write { .. } | VolumePlan::Trim { .. } if self.running[at].placed.is_none() => {
                if self.whim() {
                    // Its peer has given it up before anything was sent.
                    self.running.remove(at);
                    return self.complete(&[done(plan.handle, CompletionStatus::GivenUp)], None);
                }
                let placed = self.place(&plan);
                self.running[at].placed = Some(placed);
            }
            VolumePlan::Write { .. } | VolumePlan::Trim { .. } => self.change_over(at),
            VolumePlan::Read { first, runs, .. } => {
                let runs: Vec<Run> = runs.iter().collect();
                self.read(at, first, &runs);
            }
            VolumePlan::Answer { status, has_bytes } => {
                self.running.remove(at);
                if self.whim() {
                    return self.complete(&[done(plan.handle, CompletionStatus::Withheld)], None);
                }
                self.finish_message(&plan, status, has_bytes);
                self.complete(&[done(plan.handle, CompletionStatus::Good)], None);
            }
            VolumePlan::Call { channel, header, payload } => {
                let request = RequestMessage::decode(header).unwrap();
                assert_eq!(request.payload_len as usize, payload.len());
                let reply = self.serve(channel, &request);
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
            VolumePlan::Take { .. } => panic!("nobody takes anything yet"),
        }
    }

    pub(crate) fn whim(&mut self) -> bool {
        self.has_whims && self.dice.below(8) == 0
    }

    /// Completions go to the tier, one behind the other.
    pub(crate) fn complete(&mut self, completions: &[Completion], reply: Option<&[u8]>) {
        for completion in completions {
            self.tell(TierEvent::Done { port: PORT, completion: *completion, reply });
        }
    }

    /// The server behind a channel, while it lives.
    pub(crate) fn server_of(&self, channel: ChannelId) -> Option<usize> {
        self.channels.get(&channel.0).copied().filter(|server| !self.servers[*server].is_down)
    }

    fn serve(&mut self, channel: ChannelId, request: &RequestMessage) -> Option<Vec<u8>> {
        let place = self.server_of(channel)?;
        self.note_request(place, &request.request);
        self.servers[place].serve(place, request)
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
            VolumePlan::Write { sequence, part, .. } => {
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
        let answers = matches!(plan.plan, id::WRITE | id::WRITE_RAW | id::TRIM);
        if is_good && answers && self.whim() {
            completions.iter_mut().for_each(|completion| completion.status = CompletionStatus::Withheld);
        } else if is_good && answers {
            self.finish_message(&plan, Status::SUCCESS, false);
        }
        self.complete(&completions, None);
    }

    fn read(&mut self, at: usize, first: Option<u32>, runs: &[Run]) {
        let Running { plan, expected, .. } = self.running.remove(at);
        let (id, _) = self.command(plan.handle);
        let mut values = Vec::new();
        let mut status = if self.whim() { CompletionStatus::NotVerified } else { CompletionStatus::Good };
        let mut bad = 0;
        for run in runs {
            match run {
                Run::Zeros { blocks } => values.resize(values.len() + *blocks as usize, 0),
                Run::Record { .. } => match self.fetch(id, run) {
                    Ok(found) => values.extend(found),
                    Err((of, members)) => {
                        (status, bad) = (of, bad | members);
                        break;
                    }
                },
            }
        }
        if status == CompletionStatus::Good {
            assert_eq!(values, expected, "blocks are not what they were when they were looked up");
            let from = first.unwrap_or(0) as usize;
            let message = self.messages.get_mut(&plan.handle.0).unwrap();
            message.read[from..from + values.len()].copy_from_slice(&values);
            if first.is_none() {
                self.finish_message(&plan, Status::SUCCESS, true);
            }
        }
        self.complete(&[Completion { bad_members: bad, ..done(plan.handle, status) }], None);
    }

    /// The blocks of a run, as a member has them; or why nobody gives them, and which members are wrong.
    fn fetch(&self, id: VolumeId, run: &Run) -> Result<Vec<u64>, (CompletionStatus, u8)> {
        let Run::Record { slot, place, units, lba, blocks } = *run else { panic!("{run:?}") };
        let set = &self.slots[&slot.0].set;
        assert_eq!(set.chunk.volume, id);
        let mut bad = 0;
        for (number, channel) in set.channels[..usize::from(set.members)].iter().enumerate() {
            let server = self.server_of(*channel).map(|server| &self.servers[server]);
            let Some(server) = server.filter(|server| !server.hangs) else { continue };
            let replica = server.chunks.get(&set.chunk).filter(|replica| !replica.rotten.contains(&place));
            let bytes = replica.and_then(|replica| replica.records.get(&place));
            let Some(record) = bytes.and_then(|bytes| Record::decode(bytes).ok()) else {
                bad |= 1 << number;
                continue;
            };
            let header = record.header;
            assert_eq!((header.chunk, header.offset, header.units()), (set.chunk, place, units));
            assert!(
                header.lba <= lba && lba.0 + blocks <= header.lba.0 + header.blocks,
                "{run:?} of {header:?}"
            );
            let all = record.payload.chunks(self.block_len(id).bytes() as usize).map(value_of);
            return Ok(all.skip((lba.0 - header.lba.0) as usize).take(blocks as usize).collect());
        }
        Err((if bad == 0 { CompletionStatus::NoMember } else { CompletionStatus::NotVerified }, bad))
    }

    /// The initiator is answered.
    fn finish_message(&mut self, plan: &PostedPlan, status: Status, has_bytes: bool) {
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

fn slots_of(plan: &PostedPlan) -> Vec<u16> {
    match VolumePlan::decode(&plan.entry()).unwrap() {
        VolumePlan::Write { slot, .. } | VolumePlan::Trim { slot, .. } => vec![slot.0],
        VolumePlan::Read { runs, .. } => {
            let slots = runs.iter().filter_map(|run| match run {
                Run::Record { slot, .. } => Some(slot.0),
                Run::Zeros { .. } => None,
            });
            slots.collect()
        }
        _ => Vec::new(),
    }
}
