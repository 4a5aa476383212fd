//! A chunk server over the card's files on a disk in memory, and clients that say exactly what they are told to.

mod crash_disk;
mod disk;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Duration;

use ob_core::{
    BlockLen, ChunkId, ChunkName, ConnectionAction, ConnectionId, Device, Epoch, Instant, Lba, PoolId,
    SegmentId, Sequence, ServerId, StreamProtocol, TierId, Token, Units, VolumeId,
};
use ob_files_card::{Drive, FilesOptions, FilesService, FormatOptions, LocalFiles, MetadataOp, Op};
use ob_format::volume::metadata::Text;
use ob_format::volume::{ChunkKind, Encoding, Record, RecordHeader, RecordKind};
use ob_ring::CardService;
use ob_volume::chunk::{ChunkServer, ChunkServerConfig, ConnectionKey, ServerState};
use ob_volume::wire::{
    Answer, CreateState, End, HEADER_LEN, HelloPayload, Refusal, ReplicaState, Reply, ReplyMessage, Request,
    RequestMessage,
};

pub(crate) use crash_disk::CrashDisk;
pub(crate) use disk::SharedDisk;

pub(crate) const POOL: PoolId = PoolId(*b"a pool for tests");
pub(crate) const TIER: TierId = TierId(7);
pub(crate) const FIRST: Epoch = Epoch::FIRST;
/// Units of a test's chunk.
pub(crate) const CHUNK_UNITS: Units = Units(8192);

pub(crate) fn epoch(number: u32) -> Epoch {
    Epoch::new(number).unwrap()
}

pub(crate) fn chunk(number: u32) -> ChunkName {
    ChunkName { volume: VolumeId(3), segment: SegmentId(1), chunk: ChunkId(number) }
}

/// A record of a chunk at a place, of so many blocks of 512 bytes, which are this byte.
pub(crate) fn record(name: ChunkName, offset: Units, count: u64, blocks: u32, byte: u8) -> Vec<u8> {
    record_behind(name, offset, count, blocks, byte, None)
}

pub(crate) fn record_behind(
    name: ChunkName,
    offset: Units,
    count: u64,
    blocks: u32,
    byte: u8,
    behind: Option<u16>,
) -> Vec<u8> {
    record_with(name, offset, count, &vec![byte; blocks as usize * 512], behind)
}

/// A record with these bytes of blocks.
pub(crate) fn record_of(name: ChunkName, offset: Units, count: u64, payload: &[u8]) -> Vec<u8> {
    record_with(name, offset, count, payload, None)
}

fn record_with(name: ChunkName, offset: Units, count: u64, payload: &[u8], behind: Option<u16>) -> Vec<u8> {
    let blocks = payload.len() as u32 / 512;
    let sequence = Sequence::new(FIRST, count).unwrap();
    let header = RecordHeader {
        chunk: name,
        offset,
        sequence,
        version: sequence,
        lba: Lba(count as u32),
        blocks,
        stored: payload.len() as u32,
        payload_crc: crc32c::crc32c(payload),
        kind: RecordKind::Write,
        encoding: Encoding::None,
        behind,
    };
    let mut bytes = Vec::new();
    Record { header, payload }.encode_into(&mut bytes).unwrap();
    bytes
}

/// Records one behind the other, as long as these say.
pub(crate) fn records(name: ChunkName, offset: Units, blocks: &[u32]) -> Vec<u8> {
    let (mut bytes, mut at) = (Vec::new(), offset);
    for (index, blocks) in blocks.iter().enumerate() {
        let count = u64::from(at.0) + 1;
        bytes.extend(record(name, at, count, *blocks, index as u8 + 1));
        at = Units(offset.0 + bytes.len() as u32 / Units::LEN);
    }
    bytes
}

pub(crate) fn units(bytes: &[u8]) -> Units {
    Units(bytes.len() as u32 / Units::LEN)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(usize);

/// A reply with its payload.
pub(crate) type Told = (ReplyMessage, Vec<u8>);

struct Wire {
    key: ConnectionKey,
    net: ConnectionId,
    to_server: Vec<u8>,
    from_server: Vec<u8>,
    replies: VecDeque<Told>,
    is_closed: bool,
    /// The server takes no bytes of it before it says so.
    is_held: bool,
    /// Bytes that the network takes of the server; all if nothing is said.
    room: Option<usize>,
}

/// A disk that the tests have in their hands.
pub(crate) trait TestDisk: Device + Drive + Clone {
    /// Lets time pass until it has done something more: the time it is then. Nothing if it has nothing to do.
    fn pass(&self) -> Option<Instant> {
        None
    }

    /// Whether its power is gone.
    fn is_off(&self) -> bool {
        false
    }
}

/// All of it.
pub(crate) struct Rig<D: TestDisk = SharedDisk> {
    pub(crate) disk: D,
    pub(crate) service: FilesService<D>,
    files: LocalFiles,
    pub(crate) server: ChunkServer,
    pub(crate) now: Instant,
    wires: Vec<Wire>,
    next_tag: u64,
}

pub(crate) fn config() -> ChunkServerConfig {
    let config = ChunkServerConfig::new(ServerId(99), Text::new("rack 1").unwrap());
    ChunkServerConfig { short_buffers: 16, long_buffers: 2, batches: 2, jobs: 2, ..config }
}

impl Rig {
    /// A new server, that serves.
    pub(crate) fn new() -> Self {
        Self::with(config(), 64 << 20)
    }

    pub(crate) fn with(config: ChunkServerConfig, capacity: usize) -> Self {
        let mut rig = Self::formatted(SharedDisk::new(capacity), config);
        rig.run();
        assert_eq!(rig.server.facts().state, ServerState::Serving);
        rig
    }

    /// Another life over what is on the disk: the process died.
    pub(crate) fn restart(self) -> Self {
        let Self { disk, .. } = self;
        disk.0.borrow_mut().lose_queue();
        Self::restarted(disk)
    }

    /// Another life after a loss of power.
    pub(crate) fn lose_power(self) -> Self {
        let Self { disk, .. } = self;
        disk.0.borrow_mut().lose_power();
        Self::restarted(disk)
    }

    /// Another life on a disk whose reads fail at a place.
    pub(crate) fn restart_unreadable(self, at: usize) -> Self {
        let Self { disk, .. } = self;
        disk.0.borrow_mut().lose_queue();
        let mut rig = Self::start(disk, config());
        rig.disk.fail_reads_at(at);
        rig.run();
        assert_eq!(rig.server.facts().state, ServerState::Serving);
        rig.disk.heal();
        rig
    }

    fn restarted(disk: SharedDisk) -> Self {
        let mut rig = Self::start(disk, config());
        rig.run();
        assert_eq!(rig.server.facts().state, ServerState::Serving);
        rig
    }
}

impl<D: TestDisk> Rig<D> {
    /// A server on an empty disk.
    pub(crate) fn formatted(mut disk: D, config: ChunkServerConfig) -> Self {
        let format = FormatOptions {
            segment_len: Some(64 << 10),
            section_len: Some(32 << 10),
            log_len: Some(16 * (32 << 10)),
        };
        ob_files_card::format(&mut disk, &format, [1; 16]).unwrap();
        Self::start(disk, config)
    }

    /// A server on what a disk has.
    pub(crate) fn start(mut disk: D, config: ChunkServerConfig) -> Self {
        let options = FilesOptions { clean_len: 1 << 20, ..FilesOptions::default() };
        let mounted = ob_files_card::mount(&mut disk, &options).unwrap();
        let service = FilesService::new(mounted, disk.clone());
        let files = service.local();
        let server = ChunkServer::new(config, files.card_info());
        let now = Instant::from_nanoseconds(1);
        Self { disk, service, files, server, now, wires: Vec::new(), next_tag: 1 }
    }

    pub(crate) fn disk_is_off(&self) -> bool {
        self.disk.is_off()
    }

    /// A connection that has said nothing.
    pub(crate) fn connect(&mut self) -> Client {
        let net = ConnectionId(self.wires.len() as u64 + 1);
        let key = self.server.accept(self.now, net).expect("there is room");
        let (to_server, from_server, replies) = Default::default();
        self.wires.push(Wire {
            key,
            net,
            to_server,
            from_server,
            replies,
            is_closed: false,
            is_held: false,
            room: None,
        });
        Client(self.wires.len() - 1)
    }

    pub(crate) fn try_connect(&mut self) -> Option<ConnectionKey> {
        self.server.accept(self.now, ConnectionId(1_000_000))
    }

    /// A connection of a port that was greeted.
    pub(crate) fn greet(&mut self, port: u32, session: u64) -> Client {
        let client = self.connect();
        let (told, _) = self.hello(client, port, session);
        assert!(matches!(told.answer, Answer::Good(Reply::Hello { .. })), "{told:?}");
        client
    }

    /// A number that is above all sessions before.
    pub(crate) fn next_session(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    pub(crate) fn hello(&mut self, client: Client, port: u32, session: u64) -> Told {
        self.hello_of(client, POOL, port, session)
    }

    pub(crate) fn hello_of(&mut self, client: Client, pool: PoolId, port: u32, session: u64) -> Told {
        let hello = HelloPayload { pool, version_least: 1, version_most: 1, server: None };
        self.ask(client, Request::Hello { port, tier: TIER, session }, &hello.encode().unwrap())
    }

    /// Sends bytes as they are.
    pub(crate) fn send_bytes(&mut self, client: Client, bytes: &[u8]) {
        self.wires[client.0].to_server.extend_from_slice(bytes);
    }

    /// Sends a request; its tag.
    pub(crate) fn send(&mut self, client: Client, request: Request, payload: &[u8]) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let message = RequestMessage { tag, payload_len: payload.len() as u32, request };
        let header = message.encode().unwrap();
        self.send_bytes(client, &header);
        self.send_bytes(client, payload);
        tag
    }

    /// A request that is answered.
    pub(crate) fn ask(&mut self, client: Client, request: Request, payload: &[u8]) -> Told {
        let tag = self.send(client, request, payload);
        self.run();
        let told = self.take(client, tag);
        told.unwrap_or_else(|| panic!("{request:?} is not answered"))
    }

    /// What a request without a payload brings.
    pub(crate) fn get(&mut self, client: Client, request: Request) -> Result<Reply, Refusal> {
        result(self.ask(client, request, &[]).0)
    }

    /// The reply with this tag, if it is there.
    pub(crate) fn take(&mut self, client: Client, tag: u64) -> Option<Told> {
        let replies = &mut self.wires[client.0].replies;
        let place = replies.iter().position(|(reply, _)| reply.tag == tag)?;
        replies.remove(place)
    }

    /// Tags that were answered and not taken, in the order of their replies.
    pub(crate) fn told(&self, client: Client) -> Vec<u64> {
        self.wires[client.0].replies.iter().map(|(reply, _)| reply.tag).collect()
    }

    pub(crate) fn is_closed(&self, client: Client) -> bool {
        self.wires[client.0].is_closed
    }

    /// The network breaks.
    pub(crate) fn cut(&mut self, client: Client) {
        let key = self.wires[client.0].key;
        self.server.broken(self.now, key);
        self.wires[client.0].is_closed = true;
    }

    /// Bytes that the network takes from the server for this client from now on.
    pub(crate) fn set_room(&mut self, client: Client, room: Option<usize>) {
        self.wires[client.0].room = room;
        let key = self.wires[client.0].key;
        self.server.writable(key);
    }

    /// Whether there is a file or directory.
    pub(crate) fn has_path(&mut self, path: &str) -> bool {
        let op = MetadataOp::Stat { base: ob_format::files::ROOT, path: path.into() };
        let token = Token(u64::MAX);
        assert!(self.files.submit(token, Op::Metadata(op)).is_ok());
        loop {
            self.service.poll(self.now);
            if let Some(completion) = self.files.poll() {
                assert_eq!(completion.token, token, "the server is at rest");
                return completion.result.is_ok();
            }
        }
    }

    /// The server takes no bytes of this client now.
    pub(crate) fn is_held(&self, client: Client) -> bool {
        self.wires[client.0].is_held
    }

    pub(crate) fn unreceived(&self, client: Client) -> usize {
        self.wires[client.0].to_server.len()
    }

    /// One step of everything; whether anything moved.
    pub(crate) fn step(&mut self) -> bool {
        let mut moved = false;
        for index in 0..self.wires.len() {
            moved |= self.receive(index);
        }
        moved |= self.server.turn(self.now, &mut self.files);
        moved |= self.service.poll(self.now);
        self.transmit();
        while let Some(action) = self.server.next_action() {
            let (ConnectionAction::Close(net)
            | ConnectionAction::Finish(net)
            | ConnectionAction::Resume(net)) = action;
            for wire in self.wires.iter_mut().filter(|wire| wire.net == net) {
                wire.is_closed |= matches!(action, ConnectionAction::Close(_));
                wire.is_held = false;
            }
            moved = true;
        }
        moved | self.server.can_go_on()
    }

    fn receive(&mut self, index: usize) -> bool {
        let mut moved = false;
        loop {
            let wire = &mut self.wires[index];
            if wire.is_closed || wire.is_held || wire.to_server.is_empty() {
                return moved;
            }
            let Some(places) = self.server.receive_into(wire.key) else {
                wire.is_held = true;
                return moved;
            };
            let mut count = 0;
            for place in places {
                let part = place.len().min(wire.to_server.len() - count);
                place[..part].copy_from_slice(&wire.to_server[count..count + part]);
                count += part;
            }
            assert!(count > 0, "there is room for something");
            wire.to_server.drain(..count);
            self.server.received(self.now, wire.key, count);
            moved = true;
        }
    }

    fn transmit(&mut self) {
        while let Some((key, net)) = self.server.next_dirty() {
            let wire = self.wires.iter_mut().find(|wire| wire.net == net).unwrap();
            loop {
                let mut slices = [IoSlice::new(&[]); 8];
                let count = self.server.transmit(key, &mut slices);
                let offered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let sent = offered.len().min(wire.room.unwrap_or(usize::MAX));
                wire.room = wire.room.map(|room| room - sent);
                wire.from_server.extend(&offered[..sent]);
                if offered.is_empty() || !self.server.sent(self.now, key, sent, offered.len()) {
                    break;
                }
            }
            wire.parse();
        }
    }

    /// Does everything that can be done.
    pub(crate) fn run(&mut self) {
        let mut idle = 0;
        for _ in 0..1_000_000 {
            if self.disk.is_off() {
                return;
            }
            if self.step() {
                idle = 0;
            } else if let Some(now) = self.disk.pass() {
                (self.now, idle) = (self.now.max(now), 0);
            } else {
                idle += 1;
            }
            if idle == 3 {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.run();
    }

    /// A new open chunk.
    pub(crate) fn create(&mut self, client: Client, name: ChunkName, of: Epoch) -> Result<Reply, Refusal> {
        self.get(client, create(name, of, CreateState::Open))
    }

    pub(crate) fn append(
        &mut self,
        client: Client,
        name: ChunkName,
        of: Epoch,
        offset: Units,
        records: &[u8],
    ) -> Result<Reply, Refusal> {
        result(self.ask(client, Request::Append { chunk: name, epoch: of, offset }, records).0)
    }

    pub(crate) fn read(
        &mut self,
        client: Client,
        name: ChunkName,
        offset: Units,
        len: u32,
    ) -> Result<Vec<u8>, Refusal> {
        let (told, bytes) = self.ask(client, Request::Read { chunk: name, epoch: FIRST, offset, len }, &[]);
        result(told).map(|_| bytes)
    }

    pub(crate) fn stat(&mut self, client: Client, name: ChunkName, of: Epoch) -> (End, ReplicaState) {
        match self.get(client, Request::Stat { chunk: name, epoch: of }) {
            Ok(Reply::Stat { end, state }) => (end, state),
            other => panic!("{other:?}"),
        }
    }
}

impl Wire {
    fn parse(&mut self) {
        while let Some(header) = self.from_server.get(..HEADER_LEN) {
            let reply = ReplyMessage::decode(header).expect("the server sends replies");
            let end = HEADER_LEN + reply.payload_len as usize;
            let Some(payload) = self.from_server.get(HEADER_LEN..end) else { return };
            self.replies.push_back((reply, payload.to_vec()));
            self.from_server.drain(..end);
        }
    }
}

pub(crate) fn result(told: ReplyMessage) -> Result<Reply, Refusal> {
    match told.answer {
        Answer::Good(reply) => Ok(reply),
        Answer::Refused { refusal, .. } => Err(refusal),
    }
}

pub(crate) fn create(name: ChunkName, of: Epoch, state: CreateState) -> Request {
    Request::Create {
        chunk: name,
        epoch: of,
        length: CHUNK_UNITS,
        block_len: BlockLen::Small,
        state,
        kind: ChunkKind::Data,
        may_use_reserve: false,
    }
}
