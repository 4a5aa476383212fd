//! The card's side of a port allocates nothing for a write to three peers, nor for a read of what was compressed. Alone in its
//! process: it counts what the allocator does.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use counting::allocations;
use ob_core::{
    AttachmentId, ChunkId, ChunkName, ConnectionId, Dma, Epoch, GroupId, Incarnation, Instant, ListenerId,
    Net, NetError, NetEvent, NetListenError, Received as NetReceived, RegionId, SegmentId, Sent, Token,
    Units, VolumeId,
};
use ob_memory::{Pool, Region, Slice};
use ob_ring::{
    CardBell, CardReceiver, CardSender, CardService, Closed, GroupKey, HostReceiver, HostSender, LocalDma,
    Outgoing, Received,
};
use ob_split::card::{
    Arrived, Channels, Dialect, Encoding, Found, Front, FrontAnswer, FrontKey, Judgement, Name, Outcome,
    Part, Parts, Pieces, Place, PortConfig, Posted, Reject, SplitCard, Told, Words,
};
use ob_split::engine::SoftEngine;
use ob_split::wire::{
    Answers, CardMessage, Channel, ChannelId, ChannelWhat, Definition, Entry, FromCard, HEADER_LEN, Handle,
    Header, Hello, MessageBuilder, Otherwise, Plan, PlanEntry, PlanId, REPLY, Register, SPLIT_SERVICE, Set,
    SetWhat, Slot, Step, kind,
};
use ob_wire_link::group::{GroupSizes, GroupSpec};

const MAGIC: [u8; 2] = *b"OX";
const WRITE: PlanId = PlanId(1);
const READ: PlanId = PlanId(2);
/// A message that is sent on, of which the host has the reply.
const CALL: PlanId = PlanId(3);
const LEN: usize = 16 << 10;
const RESPONSES: u64 = 4;

#[derive(Default)]
struct Bell;

impl CardBell for Bell {
    fn ring(&self) {}
}

/// Peers that have what the test gives them to say.
struct Peers {
    to_card: [VecDeque<u8>; 3],
    to_peer: [Vec<u8>; 3],
    events: VecDeque<NetEvent>,
    connected: u64,
}

impl Net for Peers {
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        Err(NetListenError::InUse(address))
    }

    fn listener_address(&self, _: ListenerId) -> Option<SocketAddr> {
        None
    }

    fn connect(&mut self, _: SocketAddr) -> Result<ConnectionId, NetError> {
        let connection = ConnectionId(self.connected);
        self.connected += 1;
        self.events.push_back(NetEvent::Connected(connection));
        Ok(connection)
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<NetReceived, NetError> {
        let from = &mut self.to_card[connection.0 as usize];
        let count = into.len().min(from.len());
        for (place, byte) in into.iter_mut().zip(from.drain(..count)) {
            *place = byte;
        }
        Ok(if count == 0 { NetReceived::Nothing } else { NetReceived::Bytes(count) })
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        self.to_peer[connection.0 as usize].extend_from_slice(bytes);
        Ok(Sent(bytes.len()))
    }

    fn finish(&mut self, _: ConnectionId) -> Result<(), NetError> {
        Ok(())
    }

    fn close(&mut self, _: ConnectionId) {}

    fn poll(&mut self) -> Option<NetEvent> {
        self.events.pop_front()
    }
}

#[derive(Default)]
struct One {
    next: Option<Arrived>,
    answered: usize,
}

impl Front for One {
    fn next(&mut self, _: Instant) -> Option<Arrived> {
        self.next.take()
    }

    fn answer(&mut self, _: FrontKey, answer: FrontAnswer) {
        self.answered += usize::from(matches!(answer, FrontAnswer::Data(_) | FrontAnswer::Status(0)));
    }

    fn gone(&mut self) -> Option<FrontKey> {
        None
    }
}

/// Records are retained under the numbers of their writes; what is looked for, and what is copied to be retained, a test says.
struct Words3 {
    written: u32,
    sought: Option<u32>,
    /// Of each plan, side by side: of so many bytes each.
    pieces: u16,
}

impl Words3 {
    fn len(&self) -> u32 {
        LEN as u32 / u32::from(self.pieces)
    }

    fn name(&self, plan: &Posted<'_>, number: u32, piece: u16) -> Name {
        Name { slot: plan.slot, place: number * u32::from(self.pieces) + u32::from(piece) }
    }
}

impl Dialect for Words3 {
    fn magic(&self) -> [u8; 2] {
        MAGIC
    }

    fn set(&mut self, _: &Set) -> Result<(), Reject> {
        Ok(())
    }

    fn slots(&self, plan: &Posted<'_>, visit: &mut dyn FnMut(Slot)) {
        visit(plan.slot);
    }

    fn pieces(&mut self, plan: &Posted<'_>, notes: &mut Vec<u32>) -> Result<Pieces, Reject> {
        notes.push(1);
        let is_call = plan.plan == CALL;
        let count = if is_call { 1 } else { self.pieces };
        Ok(Pieces { count, told: if is_call { Told::Reply } else { Told::Each } })
    }

    fn piece(&self, _: &Posted<'_>, piece: u16) -> std::ops::Range<u32> {
        let from = u32::from(piece) * self.len();
        from..from + self.len()
    }

    fn memory(&self, _: &Posted<'_>, _: u16, _: Register) -> u32 {
        self.len()
    }

    fn place(
        &mut self,
        _: Instant,
        _: &Posted<'_>,
        _: u16,
        _: &Found,
        before: &mut [u8],
    ) -> Result<Place, Reject> {
        before[..64].fill(7);
        let channels = Channels::new(&[ChannelId(1), ChannelId(2), ChannelId(3)]).unwrap();
        let patience = Duration::from_secs(1);
        Ok(Place {
            channels,
            first: 0,
            skipped: 0,
            before_len: 64,
            zeros: 3,
            reply_len_max: LEN as u32,
            patience,
        })
    }

    fn header(&mut self, plan: &Posted<'_>, _: u16, _: ChannelId) -> Header {
        let kind = plan.plan.0;
        Header { magic: MAGIC, version: 1, kind, status: 0, flags: 0, tag: 0, payload_len: 0, rest: [0; 40] }
    }

    fn judge(&mut self, _: &Posted<'_>, _: u16, _: ChannelId, _: &Header) -> Judgement {
        Judgement::Good
    }

    fn accept(
        &mut self,
        _: &Posted<'_>,
        piece: u16,
        _: Option<(ChannelId, &Header)>,
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        let (stored, len) = (payload.len() as u32, self.len());
        let (encoding, into) = (Encoding::Lz4, u32::from(piece) * len);
        assert!(parts.push(Part { from: 0, stored, encoding, decoded: len, skip: 0, take: len, into }));
        Judgement::Good
    }

    fn kept(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        Some(self.name(plan, self.written, piece))
    }

    fn sought(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        Some(self.name(plan, self.sought?, piece))
    }

    fn accept_kept(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        _: &[u8],
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        self.accept(plan, piece, None, payload, parts)
    }

    fn status(&self, _: &Posted<'_>) -> u16 {
        0
    }

    fn may_answer(&self, _: Instant, _: &Posted<'_>) -> bool {
        true
    }

    fn words(&mut self, _: &Posted<'_>, _: u16, _: &Outcome) -> Words {
        Words::default()
    }

    fn ended(&mut self) {}
}

struct Rig {
    card: SplitCard<Peers, One, Words3, SoftEngine>,
    key: GroupKey,
    dma: LocalDma,
    receiver: CardReceiver,
    sender: CardSender,
    host_sender: HostSender,
    host_receiver: HostReceiver,
    builder: MessageBuilder,
    credit: u32,
    handle: Handle,
    done: usize,
    /// What the card has allocated.
    allocated: Cell<u64>,
}

fn definitions() -> [Definition; 3] {
    let two = Register::new(2).unwrap();
    let write = vec![
        Step::Each,
        Step::Compress { from: Register::PAYLOAD, into: two, otherwise: Otherwise::Copy },
        Step::Checksum { of: two },
        Step::Send { payload: Some(two) },
        Step::Keep { what: two },
        Step::Merge { answers: Answers::All },
        Step::EndEach,
        Step::Answer { payload: None },
    ];
    let read = vec![
        Step::Each,
        Step::Fetch { into: two },
        Step::Decode { from: two, into: Register::ANSWER },
        Step::EndEach,
        Step::Answer { payload: Some(Register::ANSWER) },
    ];
    let define = |id, steps| Definition::new(id, Plan::new(steps).unwrap(), 8, 0).unwrap();
    let send = Step::Send { payload: Some(Register::PAYLOAD) };
    let call = vec![send, Step::Merge { answers: Answers::All }, Step::Answer { payload: None }];
    [define(WRITE, write), define(READ, read), define(CALL, call)]
}

impl Rig {
    fn new(pieces: u16) -> Self {
        let peers = Peers {
            to_card: std::array::from_fn(|_| VecDeque::with_capacity(1 << 20)),
            to_peer: std::array::from_fn(|_| Vec::with_capacity(1 << 20)),
            events: VecDeque::with_capacity(64),
            connected: 0,
        };
        let sizes = GroupSizes { request: 64 << 10, response: 64 << 10, card_area: 0, host_area: 0 };
        let spec = GroupSpec::new(RegionId(0), sizes, 2 << 20).unwrap();
        let region = Region::on_heap(spec.region_len as usize);
        let mut dma = LocalDma::new(1024, 2 << 20);
        dma.register(RegionId(0), region.clone());
        let (closed, bell) = (Closed::default(), Arc::new(Bell));
        // Eight blocks for records are full soon, and what is retained goes again and again.
        let config = PortConfig { memory: vec![(LEN as u32, 16)], records: 8, ..PortConfig::default() };
        let mut rig = Self {
            card: SplitCard::new(
                config,
                peers,
                One::default(),
                Words3 { written: 0, sought: None, pieces },
                SoftEngine::new(8),
            ),
            key: GroupKey { attachment: AttachmentId(1), group: GroupId(1) },
            dma,
            receiver: CardReceiver::of_group(&spec, Token(0)).unwrap(),
            sender: CardSender::of_group(&spec, Token(RESPONSES)).unwrap(),
            host_sender: HostSender::new(region.clone(), spec.request, closed.clone(), bell.clone()),
            host_receiver: HostReceiver::new(region, spec.response, closed, bell),
            builder: MessageBuilder::default(),
            credit: 1,
            handle: Handle(0),
            done: 0,
            allocated: Cell::new(0),
        };
        rig.card.open(rig.key, SPLIT_SERVICE).unwrap();
        rig.say(kind::HELLO, &Hello { slots: 0, incarnation: Incarnation(1), gate: None });
        for definition in definitions() {
            rig.builder.define(&definition);
            let bytes = rig.builder.finish(0, rig.credit).to_vec();
            rig.push(&bytes);
        }
        for number in 1..=3 {
            let address = Some(SocketAddr::from(([127, 0, 0, 1], number)));
            let what = ChannelWhat::Connect;
            rig.say(kind::CHANNEL, &Channel { channel: ChannelId(number), what, address });
        }
        let chunk = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(2) };
        let channels = [ChannelId(1), ChannelId(2), ChannelId(3), ChannelId(0)];
        let (what, epoch, slot) = (SetWhat::Append, Epoch::new(1), Slot(1));
        let (offset, length) = (Units(64), Units(1 << 20));
        rig.say(kind::SET, &Set { slot, what, epoch, chunk, channels, members: 3, offset, length });
        rig.run();
        rig
    }

    fn push(&self, bytes: &[u8]) {
        self.host_sender.push(Outgoing { inline: bytes, payload: None }).unwrap();
    }

    fn say<E: Entry>(&mut self, kind: u8, entry: &E) {
        self.builder.begin(kind);
        assert!(self.builder.push(entry));
        let bytes = self.builder.finish(0, self.credit).to_vec();
        self.push(&bytes);
    }

    /// Counts what the card does.
    fn counted<T>(
        &mut self,
        run: impl FnOnce(&mut SplitCard<Peers, One, Words3, SoftEngine>, &mut CardSender) -> T,
    ) -> T {
        let before = allocations();
        let result = run(&mut self.card, &mut self.sender);
        self.allocated.set(self.allocated.get() + (allocations() - before));
        result
    }

    fn run(&mut self) {
        let (now, key) = (Instant::from_nanoseconds(1_000_000_000), self.key);
        for _ in 0..12 {
            self.counted(|card, _| card.poll(now));
            self.receiver.wake();
            self.sender.wake();
            self.receiver.step(&mut self.dma).unwrap();
            self.counted(|card, sender| card.responses(key, sender));
            self.sender.step(&mut self.dma).unwrap();
            while let Some(completion) = self.dma.poll() {
                if completion.token.0 & RESPONSES != 0 {
                    assert!(self.sender.complete(completion).unwrap().is_none());
                } else if let Received::Batch(batch) =
                    self.receiver.complete(&mut self.dma, completion).unwrap()
                {
                    self.counted(|card, sender| card.requests(key, batch, sender));
                }
            }
            self.hear();
        }
    }

    fn hear(&mut self) {
        let host = self.host_receiver.clone();
        while let Some(claimed) = host.receive().unwrap() {
            let mut bytes = vec![0; claimed.inline_len()];
            claimed.inline(&mut bytes);
            drop(claimed);
            match FromCard::decode(&bytes).unwrap().message {
                CardMessage::Headers(headers) => {
                    self.handle = headers.iter().last().unwrap().descriptor().handle;
                }
                CardMessage::Done(done) => self.done += done.iter().count(),
                _ => {}
            }
        }
    }

    /// A message, its plan, what its peers say to that, and its answer.
    fn message(&mut self, plan: PlanId, payload: Option<Slice>, answer: Option<Slice>, given: &[u8]) {
        let header = [1; HEADER_LEN];
        self.card.front_mut().next =
            Some(Arrived { key: FrontKey(5), from: 1, since: Instant::default(), header, payload, answer });
        self.run();
        self.builder.begin(kind::PLANS);
        let entry = PlanEntry { plan, argument: 2, slot: Slot(1), handle: self.handle, arguments: &[] };
        assert!(self.builder.push_plan(&entry));
        self.credit += 1;
        let bytes = self.builder.finish(0, self.credit).to_vec();
        self.push(&bytes);
        self.run();
        let peers = self.card.net_mut();
        for number in 0..3 {
            let mut at = 0;
            while let Some(asked) = peers.to_peer[number].get(at..at + HEADER_LEN) {
                let asked = Header::decode(asked, MAGIC).unwrap();
                at += HEADER_LEN + asked.payload_len as usize;
                let reply = Header { kind: asked.kind | REPLY, payload_len: given.len() as u32, ..asked };
                peers.to_card[number].extend(reply.encode());
                peers.to_card[number].extend(given);
            }
            if at > 0 {
                peers.to_peer[number].clear();
                peers.events.push_back(NetEvent::Readable(ConnectionId(number as u64)));
            }
        }
        self.run();
    }
}

/// A long write is many records, and a read may be of many.
#[test]
fn a_write_and_a_read_of_many_records_allocate_nothing() {
    const PIECES: u16 = 16;
    let mut rig = Rig::new(PIECES);
    let pool = Pool::new(LEN, 4);
    let text: Vec<u8> = b"the same words again and again ".iter().copied().cycle().take(LEN).collect();
    let compressed = lz4::block::compress(&text[..LEN / usize::from(PIECES)], None, false).unwrap();
    for round in 1..=200 {
        let dialect = rig.card.dialect_mut();
        (dialect.written, dialect.sought) = (round as u32, (round % 2 == 0).then_some(round as u32));
        if round == 101 {
            rig.allocated.set(0);
        }
        let mut payload = pool.take().unwrap();
        payload.copy_from_slice(&text);
        rig.message(WRITE, Some(payload), None, &[]);
        rig.message(READ, None, Some(pool.take().unwrap()), &compressed);
        assert_eq!(rig.card.front_mut().answered, 2 * round);
        assert_eq!(rig.done, 2 * round * usize::from(PIECES));
    }
    assert_eq!(rig.allocated.get(), 0);
    assert_eq!((rig.card.counts().blocks_out, pool.blocks_out()), (0, 0));
    assert_eq!(rig.card.counts().retained.hits, 100 * u64::from(PIECES));
}

#[test]
fn a_write_a_read_of_what_was_compressed_and_a_call_allocate_nothing() {
    let mut rig = Rig::new(1);
    let pool = Pool::new(LEN, 4);
    let text: Vec<u8> = b"the same words again and again ".iter().copied().cycle().take(LEN).collect();
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let noise: Vec<u8> = (0..LEN).map(|_| next()).collect();
    let compressed = lz4::block::compress(&text, None, false).unwrap();
    for round in 1..=300 {
        // Every other record does not shrink, and is copied to be retained; every third read is of what was written long ago.
        let is_noise = round % 2 == 0;
        let dialect = rig.card.dialect_mut();
        dialect.written = round as u32;
        dialect.sought = (!is_noise).then_some(if round % 3 == 0 { 1 } else { round as u32 });
        if round == 101 {
            // Whatever is kept from message to message is there by now.
            rig.allocated.set(0);
        }
        let mut payload = pool.take().unwrap();
        payload.copy_from_slice(if is_noise { &noise } else { &text });
        rig.message(WRITE, Some(payload), None, &[]);
        assert_eq!((rig.done, rig.card.front_mut().answered), (3 * round - 2, 3 * round - 2));
        rig.message(READ, None, Some(pool.take().unwrap()), &compressed);
        assert_eq!((rig.done, rig.card.front_mut().answered), (3 * round - 1, 3 * round - 1));
        rig.message(CALL, Some(pool.take().unwrap()), None, &[7; 100]);
        assert_eq!((rig.done, rig.card.front_mut().answered), (3 * round, 3 * round));
    }
    assert_eq!(rig.allocated.get(), 0);
    assert_eq!((rig.card.counts().blocks_out, pool.blocks_out()), (0, 0));
    let retained = rig.card.counts().retained;
    assert_eq!(retained.hits + retained.misses, 150);
    assert!(retained.hits > 100 && retained.misses > 0, "{retained:?}");
    assert!(retained.records < 200, "the oldest have gone: {retained:?}");
}
