//! A card on a thread, with files in memory: it speaks `docs/wire/files.md`, and can delay, fail, reorder, answer
//! nonsense, or die.

#![allow(dead_code, unreachable_pub)] // Each test target uses its own part.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

pub mod store;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ob_core::{AttachmentId, Incarnation};
use ob_files_host::{GroupOptions, Session, SessionOptions};
use ob_io::{Config, Reactor, Waker};
use ob_link::{CardLink, CardLinkConfig, CardLoop, CardService, GroupKey, Listen};
use ob_ring::{Batch, CardSender, Message};
use ob_wire_link::files::{
    CardInfo, FILES_SERVICE, FileError, Operation, RequestHeader, ResponseHeader, VERSION,
};
use ob_wire_link::ring::Shape;

use store::Store;

pub const LONG: Duration = Duration::from_secs(60);
pub const BLOCK: u32 = 4096;

/// What the card does with a request.
pub enum Act {
    /// What it should.
    Answer,
    /// Nothing, until it is told to.
    Hold,
    /// Fails it.
    Fail(FileError),
    /// Answers these bytes, and this payload.
    Raw(Vec<u8>, Option<Vec<u8>>),
    /// Answers as it should, but with another header.
    Change(fn(&mut ResponseHeader)),
    /// Answers as it should, twice.
    Twice,
    /// Ends the group, by not being a card that holds to the protocol.
    Die,
}

type Rule = Box<dyn FnMut(&RequestHeader) -> Act + Send>;

/// What the test and its card share.
pub struct Shared {
    pub store: Mutex<Store>,
    rule: Mutex<Rule>,
    /// Answers those that wait in the reverse order.
    pub reversed: AtomicBool,
    /// Answers what is held.
    released: AtomicBool,
    /// The most bytes of one transfer that the card says it takes.
    pub transfer_max: AtomicU64,
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    requests: Vec<RequestHeader>,
    held: usize,
    /// Payloads of writes that did not lie at a block.
    misaligned: usize,
    stop: Option<Ending>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Goodbye,
    Vanish,
}

struct Fake {
    shared: Arc<Shared>,
    groups: BTreeMap<GroupKey, FakeGroup>,
}

#[derive(Default)]
struct FakeGroup {
    greeted: bool,
    held: VecDeque<Message>,
    answers: VecDeque<Answer>,
}

struct Answer {
    inline: Vec<u8>,
    payload: Option<Vec<u8>>,
}

impl CardService for Fake {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if service != FILES_SERVICE {
            return Err(format!("there is no service {service}"));
        }
        self.groups.insert(key, FakeGroup::default());
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, mut batch: Batch, responses: &mut CardSender) {
        let Some(mut group) = self.groups.remove(&key) else { return };
        while let Some(message) = batch.take_next() {
            self.take(&mut group, message);
        }
        if self.shared.reversed.load(Ordering::Relaxed) {
            group.answers.make_contiguous().reverse();
        }
        self.groups.insert(key, group);
        self.responses(key, responses);
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        if self.shared.released.load(Ordering::Acquire) {
            self.release(key);
        }
        let Some(group) = self.groups.get_mut(&key) else { return };
        while let Some(answer) = group.answers.front() {
            let payload = answer.payload.as_ref().map(|payload| (payload.len() as u32, 512));
            let shape = Shape { inline_len: answer.inline.len() as u16, payload };
            let Ok(mut reservation) = responses.reserve(shape) else { return };
            if let (Some(to), Some(from)) = (&mut reservation.payload, &answer.payload) {
                to.copy_from_slice(from);
            }
            responses.commit(reservation, &answer.inline, payload.map_or(0, |(len, _)| len));
            group.answers.pop_front();
        }
    }

    fn closed(&mut self, key: GroupKey) {
        self.groups.remove(&key);
    }

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

impl Fake {
    fn take(&self, group: &mut FakeGroup, message: Message) {
        let (header, rest) = RequestHeader::decode(&message.inline).expect("the library sends whole headers");
        if header.operation == Operation::Hello.code() {
            assert_eq!(header.offset, u64::from(VERSION));
            group.greeted = true;
            group.answers.push_back(self.hello(&header));
            return;
        }
        assert!(group.greeted, "the first request of a group is HELLO");
        self.check(&header, &message);
        let act = (self.shared.rule.lock().unwrap())(&header);
        match act {
            Act::Answer => group.answers.push_back(self.execute(&header, rest, &message)),
            Act::Hold => {
                group.held.push_back(message);
                self.shared.seen.lock().unwrap().held += 1;
            }
            Act::Fail(error) => {
                let inline = ResponseHeader::failed(header.id, error).encode().to_vec();
                group.answers.push_back(Answer { inline, payload: None });
            }
            Act::Raw(inline, payload) => group.answers.push_back(Answer { inline, payload }),
            Act::Change(change) => {
                let mut answer = self.execute(&header, rest, &message);
                let (mut response, info) = ResponseHeader::decode(&answer.inline).unwrap();
                change(&mut response);
                answer.inline = [&response.encode()[..], info].concat();
                group.answers.push_back(answer);
            }
            Act::Twice => {
                for _ in 0..2 {
                    group.answers.push_back(self.execute(&header, rest, &message));
                }
            }
            Act::Die => self.shared.seen.lock().unwrap().stop = Some(Ending::Vanish),
        }
        let mut seen = self.shared.seen.lock().unwrap();
        seen.requests.push(header);
        self.shared.changed.notify_all();
    }

    /// What every request of this library keeps to.
    fn check(&self, header: &RequestHeader, message: &Message) {
        if header.operation == Operation::Read.code() || header.operation == Operation::Write.code() {
            assert!(u64::from(header.length) <= self.shared.transfer_max.load(Ordering::Relaxed));
        }
        if header.operation == Operation::Write.code() {
            let payload = message.payload.as_ref().expect("a write has a payload");
            assert_eq!(payload.len(), header.length as usize);
            let whole = header.offset.is_multiple_of(u64::from(BLOCK)) && header.length.is_multiple_of(BLOCK);
            if whole && !payload.as_ptr().addr().is_multiple_of(BLOCK as usize) {
                self.shared.seen.lock().unwrap().misaligned += 1;
            }
        }
    }

    fn hello(&self, header: &RequestHeader) -> Answer {
        let info = CardInfo {
            version: VERSION,
            block_len: BLOCK,
            transfer_max: self.shared.transfer_max.load(Ordering::Relaxed) as u32,
            segment_len: 1 << 20,
            epoch: 1,
            uuid: [7; 16],
            file_len_max: 1 << 40,
        };
        let inline = [&ResponseHeader::done(header.id).encode()[..], &info.encode()].concat();
        Answer { inline, payload: None }
    }

    fn execute(&self, header: &RequestHeader, rest: &[u8], message: &Message) -> Answer {
        let payload = message.payload.as_deref().unwrap_or(&[]);
        let mut store = self.shared.store.lock().unwrap();
        match store.execute(header, rest, payload) {
            Ok(done) => {
                let mut response = ResponseHeader::done(header.id);
                (response.length, response.value) = (done.length, done.value);
                Answer { inline: [&response.encode()[..], &done.info].concat(), payload: done.payload }
            }
            Err(error) => {
                let inline = ResponseHeader::failed(header.id, error).encode().to_vec();
                Answer { inline, payload: None }
            }
        }
    }

    fn release(&mut self, key: GroupKey) {
        let Some(mut group) = self.groups.remove(&key) else { return };
        let reversed = self.shared.reversed.load(Ordering::Relaxed);
        while let Some(message) = if reversed { group.held.pop_back() } else { group.held.pop_front() } {
            let (header, rest) = RequestHeader::decode(&message.inline).unwrap();
            group.answers.push_back(self.execute(&header, rest, &message));
            self.shared.seen.lock().unwrap().held -= 1;
        }
        self.groups.insert(key, group);
    }
}

/// A card on a thread of its own. Its files survive it.
pub struct FakeCard {
    pub shared: Arc<Shared>,
    pub socket: PathBuf,
    pub tcp: Option<SocketAddr>,
    running: Option<Running>,
    life: u64,
    _directory: tempfile::TempDir,
}

struct Running {
    waker: Waker,
    thread: JoinHandle<()>,
}

impl FakeCard {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("link.sock");
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::default()),
            rule: Mutex::new(Box::new(|_| Act::Answer)),
            reversed: AtomicBool::new(false),
            released: AtomicBool::new(false),
            transfer_max: AtomicU64::new(1 << 20),
            seen: Mutex::new(Seen::default()),
            changed: Condvar::new(),
        });
        let mut card = Self { shared, socket, tcp: None, running: None, life: 0, _directory: directory };
        card.revive();
        card
    }

    /// Starts the next life of the card.
    pub fn revive(&mut self) {
        assert!(self.running.is_none());
        self.life += 1;
        self.shared.seen.lock().unwrap().stop = None;
        self.shared.seen.lock().unwrap().held = 0;
        let config = self.config();
        let shared = Arc::clone(&self.shared);
        let (ready, is_ready) = channel();
        let thread = std::thread::spawn(move || {
            let reactor = Reactor::new(&Config::default()).unwrap();
            let link = CardLink::new(&reactor.handle(), config).unwrap();
            ready.send((reactor.handle().waker(), link.tcp_address())).unwrap();
            let fake = Fake { shared: Arc::clone(&shared), groups: BTreeMap::new() };
            let mut card = CardLoop::new(reactor, link, fake, Duration::from_micros(20));
            let mut others = Vec::new();
            loop {
                let stop = shared.seen.lock().unwrap().stop;
                match stop {
                    Some(Ending::Vanish) => return,
                    Some(Ending::Goodbye) => break,
                    None => {}
                }
                card.turn(None, &mut others);
                others.clear();
            }
            card.link.shut_down(&mut card.service);
        });
        let (waker, tcp) = is_ready.recv().unwrap();
        self.tcp = tcp;
        self.running = Some(Running { waker, thread });
    }

    fn config(&self) -> CardLinkConfig {
        let tcp = self.tcp.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        CardLinkConfig {
            incarnation: Incarnation(self.life),
            listen: vec![Listen::Unix(self.socket.clone()), Listen::Tcp(tcp)],
            costs: None,
            pollers: 1,
            dead_after: Duration::from_secs(5),
            memory_max: 256 << 20,
            host_memory_max: 256 << 20,
            hosts_max: 8,
            allow_users: Vec::new(),
            allow_addresses: Vec::new(),
        }
    }

    /// Ends this life without a word.
    pub fn vanish(&mut self) {
        self.end(Ending::Vanish);
    }

    /// Ends this life in order.
    pub fn leave(&mut self) {
        self.end(Ending::Goodbye);
    }

    fn end(&mut self, ending: Ending) {
        let Some(running) = self.running.take() else { return };
        self.shared.seen.lock().unwrap().stop.get_or_insert(ending);
        running.waker.wake();
        let joined = running.thread.join();
        assert!(joined.is_ok() || std::thread::panicking(), "the card panicked");
    }

    /// Waits for a card that was told to die by a rule.
    pub fn wait_dead(&mut self) {
        let running = self.running.take().unwrap();
        running.thread.join().unwrap();
    }

    /// From now on the card does this with each request.
    pub fn rule(&self, rule: impl FnMut(&RequestHeader) -> Act + Send + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// As [`FakeCard::rule`], for requests of one kind.
    pub fn rule_for(
        &self,
        operation: Operation,
        mut rule: impl FnMut(&RequestHeader) -> Act + Send + 'static,
    ) {
        self.rule(
            move |header| if header.operation == operation.code() { rule(header) } else { Act::Answer },
        );
    }

    pub fn obey(&self) {
        self.rule(|_| Act::Answer);
    }

    /// Answers what is held, and holds nothing from now on.
    pub fn release(&self) {
        self.obey();
        self.shared.released.store(true, Ordering::Release);
        if let Some(running) = &self.running {
            running.waker.wake();
        }
    }

    /// Waits until so many requests are held.
    pub fn wait_held(&self, count: usize) {
        self.shared.released.store(false, Ordering::Release);
        self.wait_seen(|seen| seen.held >= count);
    }

    fn wait_seen(&self, enough: impl Fn(&Seen) -> bool) {
        let seen = self.shared.seen.lock().unwrap();
        let waited = self.shared.changed.wait_timeout_while(seen, LONG, |seen| !enough(seen));
        assert!(!waited.unwrap().1.timed_out(), "the card never saw that");
    }

    pub fn requests(&self) -> Vec<RequestHeader> {
        self.shared.seen.lock().unwrap().requests.clone()
    }

    pub fn requests_of(&self, operation: Operation) -> Vec<RequestHeader> {
        let mut requests = self.requests();
        requests.retain(|header| header.operation == operation.code());
        requests
    }

    pub fn misaligned(&self) -> usize {
        self.shared.seen.lock().unwrap().misaligned
    }

    pub fn options(&self) -> SessionOptions {
        SessionOptions { attach_within: LONG, ..SessionOptions::unix(&self.socket) }
    }

    /// A session whose own group has no thread of the library's.
    pub fn session(&self) -> Session {
        Session::open(self.options().group(GroupOptions::polled())).unwrap()
    }

    /// The bytes of a file.
    pub fn content(&self, path: &str) -> Vec<u8> {
        self.shared.store.lock().unwrap().content(Path::new(path).to_str().unwrap())
    }
}

impl Drop for FakeCard {
    fn drop(&mut self) {
        self.end(Ending::Goodbye);
    }
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

/// Waits until so many completions by tag are there.
pub fn collect(group: &ob_files_host::Group, count: usize) -> Vec<ob_files_host::Completion> {
    let mut completions = Vec::new();
    let deadline = Instant::now() + LONG;
    while completions.len() < count {
        group.wait_into(&mut completions, LONG);
        assert!(Instant::now() < deadline, "{} of {count} completions came", completions.len());
    }
    assert_eq!(completions.len(), count);
    completions
}
