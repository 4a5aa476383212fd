//! A port without machines: a host that speaks the bytes of the wire over real rings in one thread, a front and a dialect that are
//! scripted, and a network whose peers a test plays.

#![allow(dead_code, unreachable_pub, unused_imports)] // Each test program uses a part of it.

mod net;
mod service;
pub mod split;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ob_core::{
    AttachmentId, ChunkId, ChunkName, Dma, Epoch, GateId, GroupId, Incarnation, Instant, RegionId, SegmentId,
    Token, Units, VolumeId,
};
use ob_memory::{Pool, Region, Slice};
use ob_ring::{
    CardBell, CardReceiver, CardSender, CardService, Closed, GroupKey, HostAreas, HostReceiver, HostSender,
    LocalDma, Outgoing, Received as RingReceived, RingError,
};
use ob_split::card::{Arrived, Dialect, Front, FrontKey, PortConfig, SplitCard};
use ob_split::engine::SoftEngine;
use ob_split::wire::{
    Broken, CardMessage, Channel, ChannelId, ChannelIs, ChannelWhat, Completion, Definition, Entry, FromCard,
    Gate, HEADER_LEN, Handle, Header, HeaderEntry, Hello, Memory, MessageBuilder, PlanEntry, PlanId,
    RefusedCode, SPLIT_SERVICE, Set, SetWhat, Slot, Welcome, kind,
};
use ob_wire_link::group::{GroupSizes, GroupSpec};

pub use net::{Pipe, TestNet, address};
pub use service::{
    ANSWER, BULK, CALL, MAGIC, NOTE, PACK, PATIENCE, READ, RECORD, Run, Said, TWICE, TestDialect, TestFront,
    WRITE, ask, definitions, reply_to, request,
};

/// Whether the host has rung since the card has looked.
#[derive(Default)]
struct Bell(AtomicBool);

impl CardBell for Bell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the host has heard.
#[derive(Default)]
pub struct Heard {
    pub welcome: Vec<Welcome>,
    pub refused: Vec<RefusedCode>,
    pub headers: Vec<HeaderEntry>,
    pub done: Vec<(Completion, Option<Vec<u8>>)>,
    pub channels: Vec<ChannelIs>,
    pub broken: Vec<Broken>,
    pub noted: Vec<u64>,
    pub memory: Vec<Memory>,
    pub messages: usize,
}

/// The host's end of a group, and the card's ends of its rings.
pub struct Group {
    key: GroupKey,
    dma: LocalDma,
    receiver: CardReceiver,
    sender: CardSender,
    host_sender: HostSender,
    host_receiver: HostReceiver,
    pub areas: HostAreas,
    bell: Arc<Bell>,
}

const REGION: RegionId = RegionId(0);
const RESPONSES: u64 = 4;
const AREA_LEN: u64 = 64 << 10;

impl Group {
    fn new(number: u32, ring_len: u32) -> Self {
        let sizes =
            GroupSizes { request: ring_len, response: ring_len, card_area: AREA_LEN, host_area: AREA_LEN };
        let spec = GroupSpec::new(REGION, sizes, 2 << 20).unwrap();
        let region = Region::on_heap(spec.region_len as usize);
        let mut dma = LocalDma::new(1024, 2 << 20);
        dma.register(REGION, region.clone());
        let (closed, bell) = (Closed::default(), Arc::<Bell>::default());
        Self {
            key: GroupKey { attachment: AttachmentId(1), group: GroupId(number) },
            dma,
            receiver: CardReceiver::of_group(&spec, Token(0)).unwrap(),
            sender: CardSender::of_group(&spec, Token(RESPONSES)).unwrap(),
            host_sender: HostSender::new(region.clone(), spec.request, closed.clone(), bell.clone()),
            host_receiver: HostReceiver::new(region.clone(), spec.response, closed.clone(), bell.clone()),
            areas: HostAreas::new(region, &spec, closed).unwrap(),
            bell,
        }
    }
}

pub type TestCard<F = TestFront, D = TestDialect> = SplitCard<TestNet, F, D, SoftEngine>;

/// A port, its host, and its peers.
pub struct Rig<F = TestFront, D = TestDialect> {
    pub card: TestCard<F, D>,
    pub group: Option<Group>,
    pub heard: Heard,
    pub now: Instant,
    /// Completions of transfers are not looked at: nobody knows what has been delivered.
    pub holds_completions: bool,
    /// The host does not look at its ring.
    pub is_deaf: bool,
    /// Why the card has closed the group.
    pub closed: Option<RingError>,
    pub payloads: Pool,
    pub credit: u32,
    groups: u32,
    builder: MessageBuilder,
    next_key: u64,
}

pub fn config() -> PortConfig {
    PortConfig {
        handles_max: 64,
        plans_max: 32,
        channels_max: 4,
        slots_max: 16,
        memory: vec![(4 << 10, 16), (64 << 10, 20)],
        heads: 40,
        ..PortConfig::default()
    }
}

pub fn set(slot: u16, what: SetWhat, channels: &[u16]) -> Set {
    let mut all = [ChannelId(0); 4];
    for (place, channel) in all.iter_mut().zip(channels) {
        *place = ChannelId(*channel);
    }
    let chunk = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(u32::from(slot) + 1) };
    let (members, epoch) = (channels.len() as u8, Epoch::new(1));
    Set {
        slot: Slot(slot),
        what,
        epoch,
        chunk,
        channels: all,
        members,
        offset: Units(64),
        length: Units(1 << 20),
    }
}

impl Rig {
    /// Its engine does nothing at once. (Those of volumes do.)
    pub fn new(config: PortConfig) -> Self {
        Self::of(config, TestFront::default(), TestDialect::default())
    }

    /// A port with a host that is welcome, and whose plans are defined.
    pub fn with_host() -> Self {
        let mut rig = Self::new(config());
        rig.attach();
        rig
    }

    /// The same, and peers at ports 1, 2 and 3, as channels 1, 2 and 3, which are the members of the chunk in slot 1.
    pub fn with_peers() -> Self {
        let mut rig = Self::with_host();
        rig.connect(&[1, 2, 3]);
        rig.say_all(kind::SET, &[set(1, SetWhat::Append, &[1, 2, 3])]);
        rig.run();
        rig
    }

    /// A message with this payload, and so much memory for its answer.
    pub fn arrive(&mut self, payload: &[u8], answer_len: usize) -> FrontKey {
        let key = FrontKey(self.next_key);
        self.next_key += 1;
        let take = |len: usize| -> Option<Slice> {
            (len > 0).then(|| {
                let mut slice = self.payloads.take().unwrap();
                slice.truncate(len);
                slice
            })
        };
        let payload = take(payload.len()).map(|mut slice| {
            slice.copy_from_slice(payload);
            slice
        });
        let answer = take(answer_len);
        let header = [key.0 as u8; HEADER_LEN];
        self.card.front_mut().inbox.push_back(Arrived {
            key,
            from: 7,
            since: self.now,
            header,
            payload,
            answer,
        });
        key
    }

    /// A message that has arrived: its handle, once the host was told.
    pub fn arrived(&mut self, payload: &[u8], answer_len: usize) -> (FrontKey, Handle) {
        let key = self.arrive(payload, answer_len);
        self.run();
        (key, self.heard.headers.last().unwrap().descriptor().handle)
    }

    pub fn answers(&mut self) -> Vec<(FrontKey, Said)> {
        std::mem::take(&mut self.card.front_mut().answers)
    }
}

impl<F: Front, D: Dialect> Rig<F, D> {
    /// A port with such messages, whose host says such things.
    pub fn of(config: PortConfig, front: F, dialect: D) -> Self {
        let card = SplitCard::new(config, TestNet::default(), front, dialect, SoftEngine::queued(8));
        Self {
            card,
            group: None,
            heard: Heard::default(),
            now: Instant::from_nanoseconds(1_000_000_000),
            holds_completions: false,
            is_deaf: false,
            closed: None,
            payloads: Pool::new(1 << 20, 80),
            credit: 0,
            groups: 0,
            builder: MessageBuilder::default(),
            next_key: 1,
        }
    }

    pub fn open(&mut self, ring_len: u32) {
        self.groups += 1;
        self.credit = 0;
        let group = Group::new(self.groups, ring_len);
        self.card.open(group.key, SPLIT_SERVICE).unwrap();
        self.group = Some(group);
    }

    /// A host comes, and says what plans it has.
    pub fn attach(&mut self) {
        self.open(64 << 10);
        self.credit = 16;
        self.say(kind::HELLO, &hello());
        for definition in definitions() {
            self.builder.define(&definition);
            let credit = self.credit;
            let bytes = self.builder.finish(0, credit).to_vec();
            self.push(&bytes);
        }
        self.run();
        assert!(self.heard.welcome.pop().is_some());
    }

    pub fn connect(&mut self, ports: &[u16]) {
        let connect = |port: &u16| Channel {
            channel: ChannelId(*port),
            what: ChannelWhat::Connect,
            address: Some(address(*port)),
        };
        let channels: Vec<_> = ports.iter().map(connect).collect();
        self.say_all(kind::CHANNEL, &channels);
        self.run();
    }

    pub fn define(&mut self, definition: &Definition) {
        self.builder.define(definition);
        let bytes = self.builder.finish(0, self.credit).to_vec();
        self.push(&bytes);
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let group = self.group.as_ref().unwrap();
        group.host_sender.push(Outgoing { inline: bytes, payload: None }).unwrap();
    }

    pub fn say<E: Entry>(&mut self, kind: u8, entry: &E) {
        self.say_all(kind, std::slice::from_ref(entry));
    }

    pub fn say_all<E: Entry>(&mut self, kind: u8, entries: &[E]) {
        self.builder.begin(kind);
        for entry in entries {
            assert!(self.builder.push(entry));
        }
        let bytes = self.builder.finish(0, self.credit).to_vec();
        self.push(&bytes);
    }

    pub fn grant(&mut self, more: u32) {
        self.credit = self.credit.wrapping_add(more);
        self.say_all::<Gate>(kind::GATE, &[]);
    }

    pub fn post(&mut self, plan: PlanId, argument: u8, slot: u16, handle: Handle, arguments: &[u8]) {
        self.builder.begin(kind::PLANS);
        let entry = PlanEntry { plan, argument, slot: Slot(slot), handle, arguments };
        assert!(self.builder.push_plan(&entry));
        let bytes = self.builder.finish(0, self.credit).to_vec();
        self.push(&bytes);
    }

    pub fn write(&mut self, handle: Handle) {
        self.post(WRITE, 0, 1, handle, &[0; 8]);
    }

    pub fn read(&mut self, handle: Handle, runs: &[Run]) {
        let mut arguments = Vec::new();
        runs.iter().for_each(|run| run.encode(&mut arguments));
        self.post(READ, runs.len() as u8, 0, handle, &arguments);
    }

    pub fn call(&mut self, channel: u16, handle: Handle, header: Header, payload: &[u8]) {
        let header = Header { payload_len: payload.len() as u32, ..header };
        let arguments = [&header.encode()[..], payload].concat();
        self.post(CALL, (payload.len() / 4) as u8, channel, handle, &arguments);
    }

    /// One turn of the card's loop.
    pub fn turn(&mut self) -> bool {
        let mut worked = self.card.poll(self.now);
        let Some(group) = &mut self.group else { return worked };
        if let Err(error) = step(group, &mut self.card, self.holds_completions) {
            self.closed = Some(error);
            self.detach();
            return true;
        }
        if !self.is_deaf {
            worked |= self.hear();
        }
        worked
    }

    /// Turns until nothing moves.
    pub fn run(&mut self) {
        let mut idle = 0;
        for _ in 0..10_000 {
            idle = if self.turn() { 0 } else { idle + 1 };
            // What a turn has submitted is seen in the one after.
            if idle > 3 {
                return;
            }
        }
        panic!("the port never comes to rest");
    }

    /// Whether the host was told something that it may sleep beside.
    pub fn is_unheard(&self) -> bool {
        self.group.as_ref().unwrap().sender.has_unheard()
    }

    /// The host is gone.
    pub fn detach(&mut self) {
        if let Some(group) = self.group.take() {
            self.card.closed(group.key);
        }
    }

    /// The host's ends of the rings, for a host of its own: the rig's is then deaf.
    pub fn ends(&mut self) -> (HostSender, HostReceiver) {
        self.is_deaf = true;
        let group = self.group.as_ref().unwrap();
        (group.host_sender.clone(), group.host_receiver.clone())
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    fn hear(&mut self) -> bool {
        let Some(group) = &self.group else { return false };
        let mut moved = false;
        while let Some(claimed) = group.host_receiver.receive().unwrap() {
            let mut bytes = vec![0; claimed.inline_len()];
            claimed.inline(&mut bytes);
            drop(claimed);
            moved = true;
            self.heard.messages += 1;
            match FromCard::decode(&bytes).unwrap().message {
                CardMessage::Welcome(welcome, _) => self.heard.welcome.push(welcome),
                CardMessage::Refused(code) => self.heard.refused.push(code),
                CardMessage::Headers(headers) => self.heard.headers.extend(headers.iter()),
                CardMessage::Done(done) => {
                    let done = done.iter().map(|done| (done.completion, done.reply.map(<[u8]>::to_vec)));
                    self.heard.done.extend(done);
                }
                CardMessage::ChannelIs(channels) => self.heard.channels.extend(channels.iter()),
                CardMessage::Broken(broken) => self.heard.broken.extend(broken.iter()),
                CardMessage::GateNoted(noted) => {
                    self.heard.noted.extend(noted.iter().map(|noted| noted.number));
                }
                CardMessage::Memory(memory) => self.heard.memory.extend(memory.iter()),
            }
        }
        moved
    }

    pub fn done(&mut self) -> Vec<(Completion, Option<Vec<u8>>)> {
        std::mem::take(&mut self.heard.done)
    }

    /// Every peer says this to everything that it has heard.
    pub fn all_say(&mut self, status: u16) {
        for port in 1..=3 {
            self.peer_says(port, status);
        }
        self.run();
    }

    pub fn peer_says(&mut self, port: u16, status: u16) -> usize {
        let net = self.card.net_mut();
        let heard = net.heard(port);
        for (header, _) in &heard {
            net.say(port, &reply_to(header, status, &[]));
        }
        heard.len()
    }

    /// Whether nothing is under way and all memory is back.
    pub fn assert_empty(&mut self) {
        let counts = self.card.counts();
        assert_eq!((counts.messages, counts.plans, counts.blocks_out), (0, 0, 0));
        assert_eq!(self.payloads.blocks_out(), 0);
        self.card.forget_retained();
        assert_eq!(self.card.counts().retained.blocks, 0);
    }
}

/// Bytes that do not shrink.
pub fn filler(seed: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn hello() -> Hello {
    Hello { slots: 0, incarnation: Incarnation(1), gate: None::<GateId> }
}

fn step<F: Front, D: Dialect>(
    group: &mut Group,
    card: &mut TestCard<F, D>,
    holds: bool,
) -> Result<(), RingError> {
    if group.bell.0.swap(false, Ordering::Relaxed) {
        group.receiver.wake();
        group.sender.wake();
    }
    for _ in 0..4 {
        group.receiver.step(&mut group.dma)?;
        card.responses(group.key, &mut group.sender);
        group.sender.step(&mut group.dma)?;
        if holds {
            return Ok(());
        }
        while let Some(completion) = group.dma.poll() {
            if completion.token.0 & RESPONSES != 0 {
                if let Some(done) = group.sender.complete(completion)? {
                    card.transferred(group.key, done, &mut group.sender);
                }
            } else if let RingReceived::Batch(batch) = group.receiver.complete(&mut group.dma, completion)? {
                card.requests(group.key, batch, &mut group.sender);
            }
        }
    }
    Ok(())
}
