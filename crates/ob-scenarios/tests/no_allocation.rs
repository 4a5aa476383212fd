//! A client's `GET` and `SET`, through both halves as they ship, but for sockets and the link: director, engine, stream, store, log and
//! files, with rings between. The card allocates nothing for a `GET` or a `SET`, the host for a `SET` what it keeps; and one operation of the
//! device makes a `SET` durable. Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counting::allocations;
use ob_core::{
    AttachmentId, ConnectionId, Device, DeviceCompletion, DeviceInfo, DeviceOp, Dma, GroupId, Instant,
    ListenerId, Net, NetError, NetEvent, NetListenError, NodeId, Now, Received, Refused, RegionId, Sent,
    Token,
};
use ob_director::ring::{RingPort, RingService, pair};
use ob_director::{Director, DirectorConfig, DirectorDriver, Signature};
use ob_files_card::{Drive, FilesOptions, FilesService, FormatOptions, LocalFiles};
use ob_format::kv::part_name;
use ob_io::MemoryDevice;
use ob_kv::card::KvApplication;
use ob_kv::host::{HostLimits, HostStream};
use ob_kv::store::{Config, Durability, LogCompletion, LogOp, Store};
use ob_memory::Region;
use ob_offload::{BufferClass, Engine, EngineConfig};
use ob_ring::{
    CardBell, CardReceiver, CardSender, CardService, Closed, GroupKey, HostReceiver, HostSender, LocalDma,
    Outgoing,
};
use ob_table::{Table, TableConfig};
use ob_wire_link::files::{
    FILES_SERVICE, NODE_INFO_LEN, NodeInfo, Operation, RESPONSE_LEN, ROOT, RequestHeader, ResponseHeader,
    VERSION, flag,
};
use ob_wire_link::ring::RingSpec;
use ob_wire_link::stream::{FRAGMENT_LEN, FromCard, HEADER_LEN, KV_SERVICE};

const NOW: Now = Now { instant: Instant::from_nanoseconds(1), unix_ms: 1_000_000 };
const CLIENT: ConnectionId = ConnectionId(1);
const BLOCK: u32 = 4096;
/// What is written in most tests is one segment: more would change the file's map.
const SEGMENT: u64 = 16 << 20;
const PART: u64 = 256 << 20;
const REGION: RegionId = RegionId(0);
const RING: u32 = 1 << 18;
const RESPONSE: u64 = 4;
/// The id of the only request that has no operation of the log behind it.
const HELLO: u64 = u64::MAX;

const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$10\r\n0123456789\r\n";
const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
const WARM: u64 = 100;
const ROUNDS: u64 = 500;

/// The socket of one client.
#[derive(Default)]
struct Socket {
    arriving: VecDeque<u8>,
    got: Vec<u8>,
    events: VecDeque<NetEvent>,
}

#[derive(Clone, Default)]
struct OneClient(Rc<RefCell<Socket>>);

impl Net for OneClient {
    fn listen(&mut self, _: SocketAddr) -> Result<ListenerId, NetListenError> {
        Ok(ListenerId(1))
    }

    fn listener_address(&self, _: ListenerId) -> Option<SocketAddr> {
        None
    }

    fn connect(&mut self, _: SocketAddr) -> Result<ConnectionId, NetError> {
        Err(NetError::Refused)
    }

    fn receive(&mut self, _: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        let arriving = &mut self.0.borrow_mut().arriving;
        let count = into.len().min(arriving.len());
        into.iter_mut().zip(arriving.drain(..count)).for_each(|(place, byte)| *place = byte);
        Ok(if count == 0 { Received::Nothing } else { Received::Bytes(count) })
    }

    fn send(&mut self, _: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        self.0.borrow_mut().got.extend_from_slice(bytes);
        Ok(Sent(bytes.len()))
    }

    fn finish(&mut self, _: ConnectionId) -> Result<(), NetError> {
        Ok(())
    }

    fn close(&mut self, _: ConnectionId) {}

    fn poll(&mut self) -> Option<NetEvent> {
        self.0.borrow_mut().events.pop_front()
    }
}

#[derive(Default)]
struct Doorbell(AtomicBool);

impl CardBell for Doorbell {
    fn ring(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A group, both halves of it.
struct Group {
    key: GroupKey,
    dma: LocalDma,
    bell: Arc<Doorbell>,
    receiver: CardReceiver,
    sender: CardSender,
    host_sender: HostSender,
    host_receiver: HostReceiver,
}

impl Group {
    fn open(number: u32, service: &mut dyn CardService) -> Self {
        let key = GroupKey { attachment: AttachmentId(1), group: GroupId(number) };
        service.open(key, number).unwrap();
        let (request, response, len) = RingSpec::group(REGION, RING, RING, 2 << 20).unwrap();
        let region = Region::on_heap(len as usize);
        let (closed, bell) = (Closed::default(), Arc::<Doorbell>::default());
        let mut dma = LocalDma::new(64, 2 << 20);
        dma.register(REGION, region.clone());
        Self {
            key,
            dma,
            receiver: CardReceiver::new(request, Token(0)),
            sender: CardSender::new(response, Token(RESPONSE)),
            host_sender: HostSender::new(region.clone(), request, closed.clone(), bell.clone()),
            host_receiver: HostReceiver::new(region, response, closed, bell.clone()),
            bell,
        }
    }

    /// The card's turn.
    fn turn(&mut self, service: &mut dyn CardService) {
        if self.bell.0.swap(false, Ordering::Relaxed) {
            self.receiver.wake();
            self.sender.wake();
        }
        self.receiver.step(&mut self.dma).unwrap();
        service.responses(self.key, &mut self.sender);
        self.sender.step(&mut self.dma).unwrap();
        while let Some(completion) = self.dma.poll() {
            if completion.token.0 & RESPONSE != 0 {
                self.sender.complete(completion).unwrap();
            } else if let ob_ring::Received::Batch(batch) =
                self.receiver.complete(&mut self.dma, completion).unwrap()
            {
                service.requests(self.key, batch, &mut self.sender);
            }
        }
    }

    fn push(&self, inline: &[u8], payload: &[u8], align: u32) {
        let pieces = [payload];
        let payload = (!payload.is_empty()).then_some((&pieces[..], align));
        self.host_sender.push(Outgoing { inline, payload }).unwrap();
    }

    /// Takes a response; how many bytes of both parts there were.
    fn hear(&self, inline: &mut [u8], payload: &mut [u8]) -> Option<(usize, usize)> {
        let claimed = self.host_receiver.receive().unwrap()?;
        Some((claimed.inline(inline), claimed.payload(0, payload)))
    }
}

/// A device that is complete at once, and counts what it is asked for.
struct Counted {
    device: MemoryDevice,
    asked: Asked,
}

/// Operations, but for reads, and for zeros, which the card writes when it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Asked {
    writes: u64,
    durable_writes: u64,
    flushes: u64,
}

impl Device for Counted {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        match &op {
            DeviceOp::Write { durable: false, .. } => self.asked.writes += 1,
            DeviceOp::Write { durable: true, .. } => self.asked.durable_writes += 1,
            DeviceOp::Flush => self.asked.flushes += 1,
            _ => {}
        }
        self.device.submit(token, op)
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.device.poll()
    }

    fn next_due(&self) -> Option<Instant> {
        self.device.next_due()
    }
}

impl Drive for Counted {
    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn wait(&mut self) {}
}

struct Card {
    files: FilesService<Counted>,
    stream: RingService,
    driver: DirectorDriver<OneClient, RingPort, LocalFiles, KvApplication>,
    of_files: Group,
    of_stream: Group,
}

impl Card {
    fn new(net: OneClient, segment_len: u64) -> Self {
        let mut device = Counted { device: MemoryDevice::new(256 << 20, BLOCK), asked: Asked::default() };
        let format = FormatOptions { segment_len: Some(segment_len), ..FormatOptions::default() };
        ob_files_card::format(&mut device, &format, [3; 16]).unwrap();
        let files = ob_files_card::mount(&mut device, &FilesOptions::default()).unwrap();
        let mut files = FilesService::new(files, device);
        let application = Rc::new(KvApplication::default());
        let (_, writer) = Table::new(TableConfig::with_memory_max(1 << 16)).unwrap();
        let config = EngineConfig {
            contexts: 16,
            buffers: vec![BufferClass { len: 8192, count: 16 }],
            candidates_max: 64,
            ..EngineConfig::default()
        };
        let engine = Engine::new(Rc::clone(&application), writer, config, BLOCK);
        files.observe_writes(Box::new(engine.watcher()));
        let config = DirectorConfig { gather: Duration::ZERO, ..DirectorConfig::default() };
        let director = Director::new(application, engine, config);
        let (port, mut stream) = pair(KV_SERVICE);
        let mut driver = DirectorDriver::new(net, port, files.local(), director);
        driver.listen(&Signature::new([SocketAddr::from(([127, 0, 0, 1], 1))])).unwrap();
        let of_files = Group::open(FILES_SERVICE, &mut files);
        let of_stream = Group::open(KV_SERVICE, &mut stream);
        Self { files, stream, driver, of_files, of_stream }
    }

    fn turn(&mut self) {
        self.files.poll(NOW.instant);
        self.of_files.turn(&mut self.files);
        self.of_stream.turn(&mut self.stream);
        self.driver.turn(NOW);
    }
}

struct Host {
    stream: HostStream<Store>,
    /// The file of the only part, once it is made.
    part: NodeId,
    payload: Vec<u8>,
}

impl Host {
    fn new() -> Self {
        let config = Config { durability: Durability::Always, part_len: PART, ..Config::default() };
        let mut store = Store::create(config);
        store.mark_life();
        let stream = HostStream::new(store, HostLimits::default());
        Self { stream, part: NodeId(0), payload: vec![0; FRAGMENT_LEN] }
    }

    fn turn(&mut self, card: &Card) {
        let mut inline = [0; HEADER_LEN];
        while let Some((inline_len, len)) = card.of_stream.hear(&mut inline, &mut self.payload) {
            let frame = FromCard::decode(&inline[..inline_len], &self.payload[..len]).unwrap();
            self.stream.received(NOW, &frame).unwrap();
        }
        self.stream.service_mut().tick(NOW);
        if self.stream.service_mut().wants_measure() {
            self.stream.service_mut().measured(None);
        }
        while self.stream.may_write()
            && let Some(op) = self.stream.service_mut().next_op()
        {
            self.submit(&card.of_files, &op);
        }
        self.take_answers(&card.of_files);
        self.stream.set_clock(NOW.unix_ms);
        self.stream.send(&mut |frame| {
            let (inline, payload) = frame.encode();
            card.of_stream.push(&inline, payload.bytes(), 8);
            true
        });
    }

    fn submit(&self, files: &Group, op: &LogOp) {
        let mut header = RequestHeader { id: op.token().0, ..RequestHeader::default() };
        match op {
            LogOp::Create { part, .. } => {
                (header.operation, header.flags) = (Operation::Open.code(), flag::CREATE);
                header.node = ROOT;
                files.push(&[&header.encode()[..], part_name(*part).as_bytes()].concat(), &[], 8);
            }
            LogOp::Write { offset, bytes, is_durable, .. } => {
                header.operation = Operation::Write.code();
                header.flags = if *is_durable { flag::DURABLE } else { 0 };
                (header.node, header.offset, header.length) = (self.part, *offset, bytes.len() as u32);
                files.push(&header.encode(), bytes, BLOCK);
            }
            other => panic!("{other:?}"),
        }
    }

    fn take_answers(&mut self, files: &Group) {
        let mut inline = [0; RESPONSE_LEN + NODE_INFO_LEN];
        while let Some((len, _)) = files.hear(&mut inline, &mut []) {
            let (response, rest) = ResponseHeader::decode(&inline[..len]).unwrap();
            response.status.unwrap();
            if response.id == HELLO {
                continue;
            }
            if let Some(made) = NodeInfo::decode(rest) {
                self.part = made.id;
                if made.size < PART {
                    // The part is there, and gets its length.
                    let resize = RequestHeader { id: response.id, node: made.id, ..RequestHeader::default() };
                    let operation = Operation::Resize.code();
                    files.push(&RequestHeader { operation, offset: PART, ..resize }.encode(), &[], 8);
                    continue;
                }
                self.stream.name_file(0, made.id);
            }
            let done = LogCompletion { token: Token(response.id), result: Ok(Vec::new()) };
            self.stream.service_mut().completed(done);
        }
    }
}

struct World {
    client: OneClient,
    card: Card,
    host: Host,
}

impl World {
    fn new() -> Self {
        Self::with_segments(SEGMENT)
    }

    /// Both halves have met, and a client has set the key.
    fn with_segments(segment_len: u64) -> Self {
        let client = OneClient::default();
        let (card, host) = (Card::new(client.clone(), segment_len), Host::new());
        let hello =
            RequestHeader { id: HELLO, operation: Operation::Hello.code(), ..RequestHeader::default() };
        let hello = RequestHeader { offset: u64::from(VERSION), ..hello };
        card.of_files.push(&hello.encode(), &[], 8);
        let (listener, peer) = (ListenerId(1), SocketAddr::from(([10, 0, 0, 1], 7)));
        let accepted = NetEvent::Accepted { listener, connection: CLIENT, peer };
        client.0.borrow_mut().events.push_back(accepted);
        let mut world = Self { client, card, host };
        for _ in 0..50 {
            world.card.turn();
            world.host.turn(&world.card);
        }
        world.ask(SET, b"+OK\r\n");
        world
    }

    /// One request, and its reply; how often card and host asked for memory.
    fn ask(&mut self, request: &[u8], reply: &[u8]) -> (u64, u64) {
        let mut socket = self.client.0.borrow_mut();
        socket.arriving.extend(request);
        socket.events.push_back(NetEvent::Readable(CLIENT));
        drop(socket);
        let (mut of_card, mut of_host) = (0, 0);
        // The last of these turns find nothing to do any more.
        for _ in 0..30 {
            let before = allocations();
            self.card.turn();
            let between = allocations();
            self.host.turn(&self.card);
            (of_card, of_host) = (of_card + between - before, of_host + allocations() - between);
        }
        let mut socket = self.client.0.borrow_mut();
        assert_eq!(socket.got, reply);
        socket.got.clear();
        (of_card, of_host)
    }

    /// The same many times, once memory has grown as far as it does.
    fn ask_often(&mut self, request: &[u8], reply: &[u8]) -> (u64, u64) {
        for _ in 0..WARM {
            self.ask(request, reply);
        }
        (0..ROUNDS).map(|_| self.ask(request, reply)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

#[test]
fn a_stored_value_is_answered_without_memory() {
    let mut world = World::new();
    let before = world.card.driver.director().counts().card;
    assert_eq!(world.ask_often(GET, b"$10\r\n0123456789\r\n"), (0, 0), "in {ROUNDS} requests");
    let answered = world.card.driver.director().counts().card - before;
    assert_eq!(answered, WARM + ROUNDS, "by the card, all of them");
}

#[test]
fn what_is_set_costs_the_memory_that_it_is_kept_in_and_no_more() {
    let (of_card, of_host) = World::new().ask_often(SET, b"+OK\r\n");
    assert_eq!(of_card, 0, "in {ROUNDS} requests");
    // The bytes of each group, and the count of those who have them; rarely, a longer list of groups.
    let groups = 2 * ROUNDS;
    assert!((groups..groups + 4).contains(&of_host), "{of_host} times in {ROUNDS} requests");
}

#[test]
fn what_is_set_is_durable_with_one_operation_of_the_device() {
    const GROUPS_A_SEGMENT: u64 = 16;
    const SEGMENTS: u64 = 10;
    let mut world = World::with_segments(GROUPS_A_SEGMENT * u64::from(BLOCK));
    let (mut once, mut more) = (0, 0);
    for _ in 0..SEGMENTS * GROUPS_A_SEGMENT {
        let before = world.card.files.device().asked;
        world.ask(SET, b"+OK\r\n");
        let after = world.card.files.device().asked;
        match (after.writes - before.writes, after.durable_writes - before.durable_writes) {
            (0, 1) => once += 1,
            // The first group of a segment: its bytes, the frame that gives the segment to the file, and a flush behind both.
            (2, 0) if after.flushes > before.flushes => more += 1,
            writes => panic!("{writes:?}"),
        }
    }
    assert_eq!((once, more), (SEGMENTS * (GROUPS_A_SEGMENT - 1), SEGMENTS));
}
