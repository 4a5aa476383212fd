//! A director over a network, files and a host that tests script.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

pub mod lines;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ob_core::{
    ConnectionId, Instant, ListenerId, Net, NetError, NetEvent, NetListenError, NodeId, Received, Sent, Token,
};
use ob_director::{Director, DirectorConfig, DirectorDriver, HostEvent, HostFrame, HostPort, Now, Signature};
use ob_files_card::WriteObserver;
use ob_offload::{BlockRead, BlocksRead, BufferClass, Engine, EngineConfig, Files, Stamp};
use ob_table::{Table, TableConfig, WhenFull};
use ob_wire_link::files::FileError;
use ob_wire_link::stream::{Entries, Fragment, FromCard, FromHost, Recovered, push_entry};

use lines::{Lines, Place, key, record};

pub const BLOCK: u32 = 4096;
pub const FILE: u32 = 1;
pub const NODE: NodeId = NodeId(71);
pub const STORE: [u8; 16] = [9; 16];

/// A client as the network sees it.
#[derive(Default)]
pub struct Client {
    pub arriving: VecDeque<u8>,
    pub got: Vec<u8>,
    /// How many bytes it still takes.
    pub window: usize,
    pub is_ended: bool,
    pub is_finished: bool,
    pub is_closed: bool,
    is_known: bool,
    wants_writable: bool,
}

#[derive(Default)]
pub struct Network {
    pub clients: BTreeMap<u64, Client>,
    /// Where in memory the longest of the slices lay that were sent: its address and its length.
    pub longest_sent: (usize, usize),
    events: VecDeque<NetEvent>,
}

#[derive(Clone, Default)]
pub struct ScriptedNet(pub Rc<RefCell<Network>>);

impl Net for ScriptedNet {
    fn listen(&mut self, _: SocketAddr) -> Result<ListenerId, NetListenError> {
        Ok(ListenerId(1))
    }

    fn listener_address(&self, _: ListenerId) -> Option<SocketAddr> {
        None
    }

    fn connect(&mut self, _: SocketAddr) -> Result<ConnectionId, NetError> {
        Err(NetError::Refused)
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        let mut network = self.0.borrow_mut();
        let client = network.clients.get_mut(&connection.0).ok_or(NetError::Unknown)?;
        if client.is_closed {
            return Err(NetError::Reset);
        }
        let count = into.len().min(client.arriving.len());
        for (place, byte) in into.iter_mut().zip(client.arriving.drain(..count)) {
            *place = byte;
        }
        Ok(match count {
            0 if client.is_ended => Received::End,
            0 => Received::Nothing,
            count => Received::Bytes(count),
        })
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        let mut network = self.0.borrow_mut();
        let network = &mut *network;
        let client = network.clients.get_mut(&connection.0).ok_or(NetError::Unknown)?;
        assert!(!client.is_finished, "nothing is sent behind the end");
        if client.is_closed {
            return Err(NetError::Reset);
        }
        let count = bytes.len().min(client.window);
        if bytes.len() > network.longest_sent.1 {
            network.longest_sent = (bytes.as_ptr().addr(), bytes.len());
        }
        client.got.extend_from_slice(&bytes[..count]);
        client.window -= count;
        client.wants_writable = count < bytes.len();
        Ok(Sent(count))
    }

    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError> {
        self.0.borrow_mut().clients.get_mut(&connection.0).unwrap().is_finished = true;
        Ok(())
    }

    fn close(&mut self, connection: ConnectionId) {
        self.0.borrow_mut().clients.get_mut(&connection.0).unwrap().is_closed = true;
    }

    fn poll(&mut self) -> Option<NetEvent> {
        self.0.borrow_mut().events.pop_front()
    }
}

/// Files in memory, whose reads are answered when the test wants it.
#[derive(Default)]
pub struct Disk {
    pub contents: HashMap<u64, Vec<u8>>,
    reads: VecDeque<(Token, BlockRead)>,
    done: VecDeque<BlocksRead>,
    /// Reads are answered at once.
    pub is_quick: bool,
    pub fails: bool,
    /// Where in memory the last read landed.
    pub read_into: std::ops::Range<usize>,
}

impl Disk {
    pub fn waiting(&self) -> usize {
        self.reads.len()
    }

    /// Answers the read at a place among those that wait, with what the file has now.
    pub fn answer(&mut self, at: usize) {
        let (token, mut read) = self.reads.remove(at).unwrap();
        let content = self.contents.get(&read.file.0).map(Vec::as_slice).unwrap_or_default();
        let found = content.get(read.offset as usize..).unwrap_or_default();
        let len = found.len().min(read.into.len());
        read.into[..len].copy_from_slice(&found[..len]);
        assert!(
            read.offset.is_multiple_of(u64::from(BLOCK)) && read.into.len().is_multiple_of(BLOCK as usize)
        );
        let begin = read.into.as_ptr().addr();
        self.read_into = begin..begin + read.into.len();
        let len = if self.fails { Err(FileError::Io) } else { Ok(len as u32) };
        self.done.push_back(BlocksRead { token, len, version: None, buffer: Some(read.into) });
    }

    pub fn answer_all(&mut self) {
        while !self.reads.is_empty() {
            self.answer(0);
        }
    }
}

#[derive(Clone, Default)]
pub struct ScriptedFiles(pub Rc<RefCell<Disk>>);

impl Files for ScriptedFiles {
    fn block_len(&self) -> u32 {
        BLOCK
    }

    fn read(&mut self, token: Token, read: BlockRead) -> Result<(), BlockRead> {
        let mut disk = self.0.borrow_mut();
        disk.reads.push_back((token, read));
        if disk.is_quick {
            disk.answer(0);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<BlocksRead> {
        self.0.borrow_mut().done.pop_front()
    }
}

/// What the card has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Begin(u64),
    Opened(u64, SocketAddr),
    /// A whole request: connection, stamp, bytes.
    Request(u64, u64, String),
    Closed(u64),
    Credit(u64, u32),
}

#[derive(Default)]
pub struct Wire {
    pub said: VecDeque<Said>,
    /// How many files the card has heard of, if it has said so.
    pub named: Option<u32>,
    parts: HashMap<u64, Vec<u8>>,
    pub fragments: usize,
    /// How many more frames there is room for.
    pub room: usize,
    /// The longest payload that there is room for, if not any is.
    pub room_len: Option<usize>,
    events: VecDeque<HostEvent<Frame>>,
    pub closed: Option<String>,
    /// What is asked of the table at the moment of each frame.
    table: Option<Arc<Table>>,
}

#[derive(Debug)]
pub struct Frame(Vec<u8>, Vec<u8>);

impl HostFrame for Frame {
    fn inline(&self) -> &[u8] {
        &self.0
    }

    fn payload(&self) -> &[u8] {
        &self.1
    }
}

#[derive(Clone, Default)]
pub struct ScriptedHost(pub Rc<RefCell<Wire>>);

impl HostPort for ScriptedHost {
    type Frame = Frame;

    fn has_room(&self, len: usize) -> bool {
        let wire = self.0.borrow();
        wire.room > 0 && wire.room_len.is_none_or(|longest| len <= longest)
    }

    fn send(&mut self, frame: &FromCard<'_>) {
        let mut wire = self.0.borrow_mut();
        assert!(wire.room > 0, "whoever sends has asked for room");
        wire.room -= 1;
        let (inline, payload) = frame.encode();
        match FromCard::decode(&inline, payload.bytes()).unwrap() {
            FromCard::Begin { stamp } => {
                // This life may have another one.
                wire.table = None;
                wire.said.push_back(Said::Begin(stamp));
            }
            FromCard::Opened { connection, address } => {
                wire.said.push_back(Said::Opened(connection.0, address));
            }
            FromCard::Closed { connection } => {
                wire.parts.remove(&connection.0);
                wire.said.push_back(Said::Closed(connection.0));
            }
            FromCard::Credit { connection, length } => {
                wire.said.push_back(Said::Credit(connection.0, length));
            }
            FromCard::Named { count } => wire.named = Some(count),
            FromCard::Request(fragment) => wire.take(&fragment),
        }
    }

    fn poll(&mut self) -> Option<HostEvent<Frame>> {
        self.0.borrow_mut().events.pop_front()
    }

    fn close(&mut self, why: &str) {
        let mut wire = self.0.borrow_mut();
        wire.closed = Some(why.to_owned());
        wire.events.clear();
        wire.events.push_back(HostEvent::Gone);
    }
}

impl Wire {
    fn take(&mut self, fragment: &Fragment<'_>) {
        self.fragments += 1;
        let connection = fragment.connection.0;
        let whole = self.parts.entry(connection).or_default();
        assert_eq!(whole.len(), fragment.offset as usize, "fragments follow each other");
        whole.extend_from_slice(fragment.bytes);
        if !fragment.is_last() {
            assert_eq!(fragment.stamp, 0);
            return;
        }
        let text = String::from_utf8(self.parts.remove(&connection).unwrap()).unwrap();
        // Rule 2, at the very moment when it has to hold: from here on the host may apply the request.
        if let (Some(table), [command, name, ..]) =
            (&self.table, text.split(' ').collect::<Vec<_>>().as_slice())
            && matches!(*command, "SET" | "DEL")
        {
            assert_eq!(table.lookup(&key(name)), None, "a key is invalidated before its change is forwarded");
        }
        self.said.push_back(Said::Request(connection, fragment.stamp, text));
    }
}

/// All of it.
pub struct World<const BY_ID: bool = false> {
    pub driver: DirectorDriver<ScriptedNet, ScriptedHost, ScriptedFiles, Lines<BY_ID>>,
    pub net: ScriptedNet,
    pub disk: ScriptedFiles,
    pub host: ScriptedHost,
    pub application: Rc<Lines<BY_ID>>,
    watcher: Box<dyn WriteObserver>,
    pub now: Now,
    next_client: u64,
    /// Bytes of the file that were written.
    written: usize,
}

pub fn engine_config() -> EngineConfig {
    EngineConfig {
        contexts: 32,
        buffers: vec![BufferClass { len: 4096, count: 24 }, BufferClass { len: 16384, count: 2 }],
        copy_len_max: 8,
        candidates_max: 16,
        ..EngineConfig::default()
    }
}

/// Replies wait for no others: most tests look at what there is after a turn.
pub fn director_config() -> DirectorConfig {
    DirectorConfig {
        connections_max: 64,
        pending_max: 64,
        gather: Duration::ZERO,
        ..DirectorConfig::default()
    }
}

impl<const BY_ID: bool> World<BY_ID> {
    pub fn new() -> Self {
        Self::with(engine_config(), director_config())
    }

    pub fn with(engine: EngineConfig, config: DirectorConfig) -> Self {
        Self::with_signature(engine, config, &Signature::new([SocketAddr::from(([127, 0, 0, 1], 1))]))
    }

    pub fn with_signature(engine: EngineConfig, config: DirectorConfig, signature: &Signature) -> Self {
        let table = TableConfig { buckets: 64, overflow: 8, when_full: WhenFull::Evict, seed: Some(1) };
        let (table, writer) = Table::new(table).unwrap();
        let application = Rc::new(Lines::default());
        let engine = Engine::new(Rc::clone(&application), writer, engine, BLOCK);
        let watcher = Box::new(engine.watcher());
        let director = Director::new(Rc::clone(&application), engine, config);
        let (net, disk, host) = (ScriptedNet::default(), ScriptedFiles::default(), ScriptedHost::default());
        host.0.borrow_mut().room = usize::MAX;
        host.0.borrow_mut().table = Some(Arc::clone(&table));
        let mut driver = DirectorDriver::new(net.clone(), host.clone(), disk.clone(), director);
        driver.listen(signature).unwrap();
        let now = Now { instant: Instant::from_nanoseconds(1), unix_ms: 1_000_000 };
        Self { driver, net, disk, host, application, watcher, now, next_client: 1, written: 0 }
    }

    /// A world whose host is there, with one client that it has admitted.
    pub fn admitted() -> (Self, u64) {
        let mut world = Self::new();
        world.meet(0, 0);
        let client = world.connect();
        world.admit(client);
        (world, client)
    }

    /// Turns until nothing happens.
    pub fn turn(&mut self) {
        for _ in 0..1000 {
            let turn = self.driver.turn(self.now);
            self.host.0.borrow_mut().table = Some(self.table());
            if turn.events == 0 && !turn.has_more {
                return;
            }
        }
        panic!("it goes on for ever");
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        self.now.instant = self.now.instant + time;
        self.turn();
    }

    pub fn say(&mut self, frame: &FromHost<'_>) {
        let (inline, payload) = frame.encode();
        self.say_bytes(&inline, payload.bytes());
    }

    /// Bytes of the host that need not be a frame.
    pub fn say_bytes(&mut self, inline: &[u8], payload: &[u8]) {
        self.say_later(inline, payload);
        self.turn();
    }

    /// The same, for the next turn.
    pub fn say_later(&mut self, inline: &[u8], payload: &[u8]) {
        let frame = Frame(inline.to_vec(), payload.to_vec());
        self.host.0.borrow_mut().events.push_back(HostEvent::Frame(frame));
    }

    pub fn arrive_host(&mut self) {
        self.host.0.borrow_mut().parts.clear();
        self.host.0.borrow_mut().events.push_back(HostEvent::Arrived);
    }

    pub fn meet(&mut self, stamp: u64, end: u64) {
        self.arrive_host();
        self.say(&FromHost::Meet { stamp, recovered: Recovered { store: STORE, end }, terms: 7 });
        self.say(&FromHost::File { name: FILE, node: NODE });
    }

    pub fn host_dies(&mut self) {
        self.host.0.borrow_mut().events.push_back(HostEvent::Gone);
        self.turn();
    }

    pub fn connect(&mut self) -> u64 {
        let id = self.next_client;
        self.next_client += 1;
        let mut network = self.net.0.borrow_mut();
        network.clients.insert(id, Client { window: usize::MAX, ..Client::default() });
        let (connection, listener) = (ConnectionId(id), ListenerId(1));
        let peer = SocketAddr::from(([10, 0, 0, 1], 1000 + id as u16));
        network.events.push_back(NetEvent::Accepted { listener, connection, peer });
        drop(network);
        self.turn();
        id
    }

    /// Has the host admit a client, with a request of it.
    pub fn admit(&mut self, client: u64) {
        self.send(client, "HI\n");
        let (connection, stamp) = self.expect_request("HI");
        self.say(&FromHost::Standing { connection: ConnectionId(connection), stamp, word: 2 });
        self.reply(connection, stamp, "+HI\n");
        assert_eq!(self.got(client), "+HI\n");
    }

    /// The same for a client that is there when another life begins.
    pub fn admit_again(&mut self, client: u64) {
        self.said();
        self.admit(client);
    }

    pub fn arrive(&mut self, client: u64, bytes: &[u8]) {
        let mut network = self.net.0.borrow_mut();
        network.clients.get_mut(&client).unwrap().arriving.extend(bytes);
        network.events.push_back(NetEvent::Readable(ConnectionId(client)));
    }

    pub fn send(&mut self, client: u64, text: &str) {
        self.arrive(client, text.as_bytes());
        self.turn();
    }

    pub fn end(&mut self, client: u64) {
        self.net.0.borrow_mut().clients.get_mut(&client).unwrap().is_ended = true;
        self.net.0.borrow_mut().events.push_back(NetEvent::Readable(ConnectionId(client)));
        self.turn();
    }

    pub fn reset(&mut self, client: u64) {
        let (connection, error) = (ConnectionId(client), NetError::Reset);
        self.net.0.borrow_mut().events.push_back(NetEvent::Closed { connection, error });
        self.turn();
    }

    /// Lets a client take so many bytes more.
    pub fn open_window(&mut self, client: u64, bytes: usize) {
        let mut network = self.net.0.borrow_mut();
        network.clients.get_mut(&client).unwrap().window += bytes;
        network.events.push_back(NetEvent::Writable(ConnectionId(client)));
        drop(network);
        self.turn();
    }

    /// What a client got since the last time.
    pub fn got(&mut self, client: u64) -> String {
        let got = std::mem::take(&mut self.net.0.borrow_mut().clients.get_mut(&client).unwrap().got);
        String::from_utf8(got).unwrap()
    }

    pub fn is_closed(&self, client: u64) -> bool {
        self.net.0.borrow().clients[&client].is_closed
    }

    pub fn is_finished(&self, client: u64) -> bool {
        self.net.0.borrow().clients[&client].is_finished
    }

    /// What the card has said since the last time.
    pub fn said(&mut self) -> Vec<Said> {
        self.host.0.borrow_mut().said.drain(..).collect()
    }

    /// The requests among that.
    pub fn requests(&mut self) -> Vec<(u64, u64, String)> {
        let requests = self.said().into_iter().filter_map(|said| match said {
            Said::Request(connection, stamp, text) => Some((connection, stamp, text)),
            _ => None,
        });
        requests.collect()
    }

    pub fn texts(&mut self) -> Vec<String> {
        self.requests().into_iter().map(|(_, _, text)| text).collect()
    }

    /// The one request that was forwarded: its connection and stamp.
    pub fn expect_request(&mut self, text: &str) -> (u64, u64) {
        let requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0].2, text);
        (requests[0].0, requests[0].1)
    }

    pub fn reply(&mut self, connection: u64, stamp: u64, text: &str) {
        self.reply_part(connection, stamp, text.as_bytes(), 0, text.len());
    }

    pub fn reply_part(&mut self, connection: u64, stamp: u64, bytes: &[u8], offset: usize, length: usize) {
        self.say(&FromHost::Reply(Fragment {
            connection: ConnectionId(connection),
            stamp,
            length: length as u32,
            offset: offset as u32,
            bytes,
        }));
    }

    /// The host writes a record to its file: taken, not settled.
    pub fn write(&mut self, name: &str, value: &str, stamp: u64) -> Place {
        let bytes = record(name, value, stamp);
        let offset = self.written;
        let mut disk = self.disk.0.borrow_mut();
        let content = disk.contents.entry(NODE.0).or_default();
        let end = offset + bytes.len();
        content.resize(end.next_multiple_of(BLOCK as usize), 0);
        content[offset..end].copy_from_slice(bytes.as_bytes());
        drop(disk);
        self.watcher.write_taken(NODE, offset as u64, bytes.as_bytes());
        self.written = end;
        self.turn();
        let (len, value_len) = (bytes.len() as u32, value.len() as u32);
        Place { file: FILE, offset: offset as u32, len, value_len, stamp }
    }

    /// The host reads a record from its file.
    pub fn read_by_host(&mut self, place: &Place) {
        self.watcher.read_taken(NODE, u64::from(place.offset), u64::from(place.len));
    }

    pub fn written(&self) -> u64 {
        self.written as u64
    }

    /// What lies behind an address is lost.
    pub fn cut_log(&mut self, end: u64) {
        self.written = end as usize;
        if let Some(content) = self.disk.0.borrow_mut().contents.get_mut(&NODE.0) {
            content.truncate(self.written);
        }
    }

    pub fn settle(&mut self) {
        let address = self.written();
        self.say(&FromHost::Settled { address });
    }

    /// Writes a record and settles it.
    pub fn store(&mut self, name: &str, value: &str, stamp: u64) -> Place {
        let place = self.write(name, value, stamp);
        self.settle();
        place
    }

    pub fn attest(&mut self, name: &str, place: Place, as_of: u64) {
        let mut bytes = Vec::new();
        assert!(push_entry(&mut bytes, name.as_bytes(), place.item().bytes()));
        self.say(&FromHost::Attest { stamp: as_of, entries: Entries::new(&bytes) });
    }

    pub fn answer_reads(&mut self) {
        self.disk.0.borrow_mut().answer_all();
        self.turn();
    }

    pub fn answer_read(&mut self, at: usize) {
        self.disk.0.borrow_mut().answer(at);
        self.turn();
    }

    pub fn reads(&self) -> usize {
        self.disk.0.borrow().waiting()
    }

    pub fn set_room(&mut self, frames: usize) {
        self.host.0.borrow_mut().room = frames;
    }

    pub fn find(&self, name: &str) -> Option<Stamp> {
        self.table().lookup(&key(name)).map(|hit| hit.stamp)
    }

    pub fn table(&self) -> Arc<Table> {
        Arc::clone(self.driver.director().engine().writer().table())
    }
}
