//! A card in a thread, with a service that answers each request with the request.

#![allow(dead_code, unreachable_pub)] // Each test target uses its own part.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::type_complexity)] // A test stops at the first surprise.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ob_core::{AttachmentId, Incarnation};
use ob_io::{Config, Reactor, Waker};
use ob_link::{
    AddressRange, CardLink, CardLinkConfig, CardLoop, CardService, Costs, Endpoint, GroupKey, HostLink,
    HostLinkConfig, Listen,
};
use ob_ring::{Batch, CardSender, Message, Outgoing, PushError};
use ob_wire_link::ring::Shape;

/// The only service there is here.
pub const ECHO: u32 = 7;

/// Answers each request with its own bytes.
#[derive(Default)]
pub struct Echo {
    waiting: BTreeMap<GroupKey, VecDeque<Message>>,
    pub requests: Arc<AtomicU64>,
    pub channel: Arc<Mutex<Vec<(AttachmentId, Vec<u8>)>>>,
    /// Answers nobody, as one whose device hangs.
    pub is_held: bool,
    /// Hosts that it was told not to begin anything of.
    pub suspended: BTreeSet<AttachmentId>,
}

impl Echo {
    /// Requests without an answer.
    pub fn held(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    fn answer(message: &Message, responses: &mut CardSender) -> bool {
        let payload = message.payload.as_ref().map(|payload| (payload.len() as u32, 512));
        let shape = Shape { inline_len: message.inline.len() as u16, payload };
        let Ok(mut reservation) = responses.reserve(shape) else { return false };
        if let (Some(to), Some(from)) = (&mut reservation.payload, &message.payload) {
            to.copy_from_slice(from);
        }
        responses.commit(reservation, &message.inline, payload.map_or(0, |(len, _)| len));
        true
    }
}

impl CardService for Echo {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if service != ECHO {
            return Err(format!("there is no service {service}"));
        }
        self.waiting.insert(key, VecDeque::new());
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, mut batch: Batch, responses: &mut CardSender) {
        let waiting = self.waiting.entry(key).or_default();
        while let Some(message) = batch.take_next() {
            self.requests.fetch_add(1, Ordering::Relaxed);
            waiting.push_back(message);
        }
        self.responses(key, responses);
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        let Some(waiting) = self.waiting.get_mut(&key).filter(|_| !self.is_held) else { return };
        while waiting.front().is_some_and(|message| Self::answer(message, responses)) {
            waiting.pop_front();
        }
    }

    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        if is_suspended {
            self.suspended.insert(attachment);
        } else {
            self.suspended.remove(&attachment);
        }
    }

    fn closed(&mut self, key: GroupKey) {
        self.waiting.remove(&key);
    }

    fn channel(&mut self, attachment: AttachmentId, message: &[u8]) {
        self.channel.lock().unwrap().push((attachment, message.to_vec()));
    }
}

/// A card on a thread of its own.
pub struct Card {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    pub socket: PathBuf,
    pub tcp: Option<SocketAddr>,
    pub requests: Arc<AtomicU64>,
    pub channel: Arc<Mutex<Vec<(AttachmentId, Vec<u8>)>>>,
    /// Messages to send to hosts.
    outbox: Sender<(AttachmentId, Vec<u8>)>,
    _directory: Option<tempfile::TempDir>,
}

pub fn config(listen: Vec<Listen>) -> CardLinkConfig {
    CardLinkConfig {
        incarnation: Incarnation(1),
        listen,
        costs: None,
        pollers: 1,
        dead_after: Duration::from_secs(5),
        memory_max: 64 << 20,
        host_memory_max: 64 << 20,
        hosts_max: 8,
        allow_users: Vec::new(),
        allow_addresses: Vec::new(),
    }
}

/// Names the network namespace that cards live in, and the address they have there: so that the whole suite can run
/// with card and host in different ones.
pub const CARD_NAMESPACE: &str = "OUTBOARD_TEST_CARD_NAMESPACE";
pub const CARD_ADDRESS: &str = "OUTBOARD_TEST_CARD_ADDRESS";

/// Moves this thread, and with it the sockets that it makes, into the card's namespace if there is one.
fn enter_namespace() {
    let Ok(name) = std::env::var(CARD_NAMESPACE) else { return };
    let namespace = std::fs::File::open(format!("/run/netns/{name}")).unwrap();
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind)).unwrap();
}

impl Card {
    /// A card that listens on a Unix socket and on a TCP port.
    pub fn start(costs: Option<Costs>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("link.sock");
        let tcp = std::env::var(CARD_ADDRESS).unwrap_or_else(|_| "127.0.0.1:0".to_owned());
        let listen = vec![Listen::Unix(socket.clone()), Listen::Tcp(tcp.parse().unwrap())];
        let everybody = AddressRange { address: "0.0.0.0".parse().unwrap(), prefix_bits: 0 };
        let allow_addresses =
            if std::env::var(CARD_NAMESPACE).is_ok() { vec![everybody] } else { Vec::new() };
        let mut card = Self::start_with(CardLinkConfig { costs, allow_addresses, ..config(listen) });
        card.socket = socket;
        card._directory = Some(directory);
        card
    }

    pub fn start_with(config: CardLinkConfig) -> Self {
        let (ready, is_ready) = channel();
        let (outbox, letters) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let echo = Echo::default();
        let (requests, channel) = (echo.requests.clone(), echo.channel.clone());
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            enter_namespace();
            let reactor = Reactor::new(&Config::default()).unwrap();
            let link = CardLink::new(&reactor.handle(), config).unwrap();
            ready.send((reactor.handle().waker(), link.tcp_address())).unwrap();
            let mut card = CardLoop::new(reactor, link, echo, Duration::from_micros(50));
            run(&mut card, &stopped, &letters);
            card.link.shut_down(&mut card.service);
        });
        let (waker, tcp) = is_ready.recv().unwrap();
        let socket = PathBuf::new();
        Self { stop, waker, thread: Some(thread), socket, tcp, requests, channel, outbox, _directory: None }
    }

    pub fn unix(&self) -> Endpoint {
        Endpoint::Unix(self.socket.clone())
    }

    pub fn tcp(&self) -> Endpoint {
        Endpoint::Tcp(self.tcp.unwrap())
    }

    /// Sends a message on a host's ordered channel.
    pub fn send(&self, attachment: AttachmentId, message: &[u8]) {
        self.outbox.send((attachment, message.to_vec())).unwrap();
        self.waker.wake();
    }
}

fn run(card: &mut CardLoop<Echo>, stop: &AtomicBool, letters: &Receiver<(AttachmentId, Vec<u8>)>) {
    let mut others = Vec::new();
    let mut letter = None;
    while !stop.load(Ordering::Acquire) {
        letter = letter.or_else(|| letters.try_recv().ok());
        while let Some((attachment, message)) = &letter
            && card.link.send(*attachment, message)
        {
            letter = letters.try_recv().ok();
        }
        let soon = letter.as_ref().map(|_| card.reactor.handle().now());
        card.turn(soon, &mut others);
        others.clear();
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking(), "the card panicked");
    }
}

pub fn host_config(endpoint: Endpoint) -> HostLinkConfig {
    HostLinkConfig {
        endpoint,
        name: "test host".to_owned(),
        incarnation: Incarnation(1),
        pollers: 0,
        attach_within: Duration::from_secs(20),
        dead_after: Duration::from_secs(10),
    }
}

pub fn attach(endpoint: Endpoint) -> HostLink {
    HostLink::attach(&host_config(endpoint)).unwrap()
}

pub const LONG: Duration = Duration::from_secs(60);

/// Sends one request, asleep while there is no room.
pub fn push(group: &ob_link::HostGroup, inline: &[u8], payload: Option<&[u8]>) {
    let pieces = payload.map(|payload| [payload]);
    let message = Outgoing { inline, payload: pieces.as_ref().map(|pieces| (&pieces[..], 512)) };
    let attempt = || match group.sender.push(message) {
        Ok(()) => Some(()),
        Err(PushError::Retry) => None,
        Err(error) => panic!("{error}"),
    };
    group.wait_room(LONG, attempt).unwrap();
}

/// Takes one response, asleep while there is none.
pub fn take(group: &ob_link::HostGroup) -> (Vec<u8>, Vec<u8>) {
    let attempt = || {
        let claimed = group.receiver.receive().unwrap()?;
        let (mut inline, mut payload) = (vec![0; claimed.inline_len()], vec![0; claimed.payload_len()]);
        claimed.inline(&mut inline);
        claimed.payload(0, &mut payload);
        Some((inline, payload))
    };
    group.wait_response(LONG, attempt).unwrap()
}

pub mod frames;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod scenes;
pub mod watched;

/// A small generator: the same seed throws the same numbers.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// Looks until `seen` gives something; panics if it never does.
pub fn observe<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + LONG;
    loop {
        if let Some(value) = seen() {
            return value;
        }
        assert!(std::time::Instant::now() < deadline, "never seen: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
