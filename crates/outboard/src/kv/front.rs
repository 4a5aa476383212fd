//! The whole service on the host: `placement = "host"`.
//!
//! ```text
//!   clients ─▶ TcpNet ─▶ director, which offers nothing to a card ─▶ InProcess ─▶ HostStream ─▶ store ─▶ OsLog
//! ```
//!
//! The same director and the same store as with a card, without a link between them: the baseline, and for those who have no
//! card. Everything runs on one thread, which polls for a moment after its last event and then sleeps.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use ob_core::{Clock, Instant, Token};
use ob_director::{Director, DirectorConfig, DirectorDriver, HostEvent, HostFrame, HostPort, Now, Signature};
use ob_io::{
    Config as ReactorConfig, Decision, Event, IdlePolicy, MonotonicClock, Reactor, TcpNet, Wait, Waker,
    available_cores,
};
use ob_kv::card::KvApplication;
use ob_kv::host::{HostLimits, HostStream};
use ob_kv::store::{Config as StoreConfig, Recovery, Store};
use ob_offload::{BlockRead, BlocksRead, Engine, EngineConfig, Files};
use ob_table::{Table, TableConfig};
use ob_wire_link::stream::{FromCard, FromHost, HEADER_LEN};
use rustix::process::{Resource, getrlimit};

use super::card::{CONNECTIONS_MAX, WATCHES_MAX};
use super::os_log::OsLog;
use super::thread::WatchedThread;
use super::{KvError, LogNews, fitted_part_len, now, recover, store_config, unwritten};
use crate::config::HostConfig;

/// Frames of the stream that wait for the director.
const FRAMES_MAX: usize = 256;
/// The directory of the log, in the host's own.
const DIRECTORY: &str = "kv";
/// How long a thread that starts sleeps at most before it looks whether its log is marked.
const MARK_LOOK: Duration = Duration::from_millis(10);
/// How long a thread that stops waits for its last writes.
const WIND_DOWN_WITHIN: Duration = Duration::from_secs(5);
/// Parts of the log that there may be. All of them are open, so there may be fewer: see [`parts_max`].
const PARTS_MAX: u32 = 16 << 10;
/// Descriptors that are neither clients' nor of parts.
const DESCRIPTORS_ELSEWHERE: u64 = 256;
/// No entry is ever admitted to it.
const TABLE_BYTES: u64 = 4096;

/// The thread that has the service.
pub struct KvFront {
    address: SocketAddr,
    asked: Arc<Asked>,
    waker: Waker,
    thread: WatchedThread,
}

/// What is asked of the thread, and told it.
#[derive(Default)]
struct Asked {
    stops: AtomicBool,
    /// Threads that poll on the same cores, beside this one.
    other_pollers: AtomicUsize,
}

impl KvFront {
    /// Recovers the store, listens, and serves.
    pub fn start(config: &HostConfig) -> Result<Self, KvError> {
        let (tell, told) = channel();
        let asked = Arc::new(Asked::default());
        let (own, for_thread) = (config.clone(), Arc::clone(&asked));
        let run = move || match Front::open(&own) {
            Ok(front) => front.run(&for_thread, &tell),
            Err(error) => drop(tell.send(Err(error))),
        };
        let thread = WatchedThread::start("kv", run)?;
        let (address, waker) = told.recv().map_err(|_| KvError::Ended)??;
        Ok(Self { address, asked, waker, thread })
    }

    /// Tells it how many other threads would poll on its cores: with more pollers than cores, none polls.
    pub fn set_other_pollers(&self, count: usize) {
        self.asked.other_pollers.store(count, Ordering::Relaxed);
    }

    /// Becomes readable when its thread has ended, though nobody has asked it to.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.thread.as_fd()
    }

    /// Where clients reach it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for KvFront {
    fn drop(&mut self) {
        self.asked.stops.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.join();
    }
}

type Shared = Rc<RefCell<HostStream<Store>>>;

struct Front {
    reactor: Reactor,
    driver: DirectorDriver<TcpNet, InProcess, NoFiles, KvApplication>,
    stream: Shared,
    log: OsLog,
    news: LogNews,
    policy: IdlePolicy,
    address: SocketAddr,
    /// The last turn has left something that the next one can do at once: nothing will wake a thread that sleeps on it.
    has_more: bool,
}

impl Front {
    fn open(config: &HostConfig) -> Result<Self, KvError> {
        let section = &config.kv;
        let sizes = ReactorConfig::default();
        let watches_max = sizes.watches_max + WATCHES_MAX;
        let sizes = ReactorConfig { devices_max: PARTS_MAX, watches_max, ..sizes };
        let mut reactor = Reactor::new(&sizes).map_err(|error| KvError::System(io::Error::other(error)))?;
        let handle = reactor.handle();
        let mut log = OsLog::open(&handle, &config.directory.join(DIRECTORY))?;
        let parts_max = parts_max(getrlimit(Resource::Nofile).current);
        let mut store_config = StoreConfig { parts_max, ..store_config(section)? };
        if let (None, Some(left)) = (log.parts().next(), log.left()) {
            store_config.part_len = fitted_part_len(store_config.part_len, left);
        }
        let recovery = Recovery::new(store_config, log.parts())?;
        let store = recover(recovery, |op| Some(log.run(&mut reactor, op)))?;
        let stream = Rc::new(RefCell::new(HostStream::new(
            store,
            HostLimits { attests: false, ..HostLimits::default() },
        )));
        let application = Rc::new(KvApplication {
            offloads: false,
            needs_password: section.password.is_some(),
            ..KvApplication::default()
        });
        let table = Table::new(TableConfig::with_memory_max(TABLE_BYTES));
        let (_, writer) = table.map_err(|error| KvError::Table { error, fix: String::new() })?;
        let engine =
            Engine::new(Rc::clone(&application), writer, EngineConfig::default(), NoFiles.block_len());
        let connections_max = CONNECTIONS_MAX as usize;
        let director = Director::new(
            application,
            engine,
            DirectorConfig { connections_max, ..DirectorConfig::default() },
        );
        let port = InProcess::new(Rc::clone(&stream));
        let net = TcpNet::new(&handle, WATCHES_MAX);
        let mut driver = DirectorDriver::new(net, port, NoFiles, director);
        let listening = driver.listen(&Signature::new([section.listen])).map_err(|error| {
            KvError::Listen { error, fix: config.source.line_to_change("kv", "listen", "\"127.0.0.1:6380\"") }
        })?;
        let address = listening.first().copied().unwrap_or(section.listen);
        let policy = IdlePolicy::new(config.reactor.spin.0, available_cores(), 1);
        let news = LogNews::default();
        let mut front = Self { reactor, driver, stream, log, news, policy, address, has_more: false };
        front.mark_life()?;
        Ok(front)
    }

    /// Marks the log as this life's, before anybody is served: half a group of an earlier life may lie where this one writes first.
    fn mark_life(&mut self) -> Result<(), KvError> {
        self.stream.borrow_mut().service_mut().mark_life();
        let mut events = Vec::new();
        loop {
            self.turn(Wait::Until(Some(MonotonicClock.now() + MARK_LOOK)), &mut events);
            let stream = self.stream.borrow();
            let store = stream.service();
            if store.is_life_marked() {
                return Ok(());
            }
            if let Some(failure) = store.failure() {
                return Err(KvError::Unmarked(failure));
            }
        }
    }

    fn run(mut self, asked: &Asked, tell: &Sender<Result<(SocketAddr, Waker), KvError>>) {
        let _ = tell.send(Ok((self.address, self.reactor.handle().waker())));
        let mut events = Vec::new();
        while !asked.stops.load(Ordering::Acquire) {
            let now = MonotonicClock.now();
            self.policy.set_pollers(1 + asked.other_pollers.load(Ordering::Relaxed));
            let wait = match self.policy.decide(now, self.next_due()) {
                Decision::Sleep { until } if !self.has_more => Wait::Until(until),
                Decision::Sleep { .. } | Decision::Spin => Wait::Poll,
            };
            self.turn(wait, &mut events);
        }
        self.wind_down();
    }

    fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) {
        self.reactor.turn(wait, events);
        let mut worked = !events.is_empty();
        for event in events.drain(..) {
            self.driver.net_mut().handle(&event);
        }
        let now = now();
        worked |= self.move_log(now);
        let turn = self.driver.turn(now);
        worked |= turn.events > 0;
        let has_moved = self.move_log(now);
        self.has_more = has_moved || turn.has_more || self.driver.port_mut().fetch();
        if worked || self.has_more {
            self.policy.on_event(now.instant);
        }
    }

    /// Moves operations of the store to the log and completions back; whether anything moved.
    fn move_log(&mut self, now: Now) -> bool {
        let mut stream = self.stream.borrow_mut();
        let store = stream.service_mut();
        store.tick(now);
        if store.wants_measure() {
            store.measured(self.log.left());
        }
        let mut moved = self.log.poll();
        while let Some(done) = self.log.next_done() {
            store.completed(done);
            moved = true;
        }
        while let Some(op) = store.next_op() {
            self.log.submit(op);
            moved = true;
        }
        self.news.tell(store);
        moved
    }

    /// When the next turn is due, if nothing happens before.
    fn next_due(&self) -> Option<Instant> {
        let store = self.stream.borrow().service().next_due();
        [self.driver.next_due(), store].into_iter().flatten().min()
    }

    /// Makes what was answered durable.
    fn wind_down(mut self) {
        let deadline = MonotonicClock.now() + WIND_DOWN_WITHIN;
        let mut events = Vec::new();
        while MonotonicClock.now() < deadline && !self.stream.borrow_mut().service_mut().wind_down() {
            self.move_log(now());
            self.reactor
                .turn(Wait::Until(Some(MonotonicClock.now() + Duration::from_millis(10))), &mut events);
            events.clear();
        }
        if let Some(told) = unwritten(self.stream.borrow().service()) {
            tracing::error!("{told}");
        }
    }
}

/// How many parts a log may have in a process that may have so many descriptors: no more than clients leave, or half of all where
/// they would leave less. The store then refuses values in time, as on a full device; who finds no descriptor at all could not go on.
fn parts_max(descriptors: Option<u64>) -> usize {
    let descriptors = descriptors.unwrap_or(u64::MAX);
    let left = descriptors.saturating_sub(u64::from(WATCHES_MAX) + DESCRIPTORS_ELSEWHERE);
    left.max(descriptors / 2).min(u64::from(PARTS_MAX)) as usize
}

/// A frame of the host's half that waits for the director.
struct OwnFrame {
    inline: [u8; HEADER_LEN],
    payload: Vec<u8>,
}

impl HostFrame for OwnFrame {
    fn inline(&self) -> &[u8] {
        &self.inline
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// The way to a host's half that is in the same thread.
struct InProcess {
    stream: Shared,
    frames: VecDeque<OwnFrame>,
    has_arrived: bool,
    is_gone: bool,
}

impl InProcess {
    fn new(stream: Shared) -> Self {
        Self { stream, frames: VecDeque::new(), has_arrived: false, is_gone: false }
    }

    /// Takes what the host's half has to say; whether there is anything. No bell tells of it: answers come when the log has
    /// moved, but also when a client has taken what there was credit for.
    fn fetch(&mut self) -> bool {
        if self.frames.is_empty() {
            let frames = &mut self.frames;
            self.stream.borrow_mut().send(&mut |frame: &FromHost<'_>| {
                if frames.len() >= FRAMES_MAX {
                    return false;
                }
                let (inline, payload) = frame.encode();
                frames.push_back(OwnFrame { inline, payload: payload.bytes().to_vec() });
                true
            });
        }
        !self.frames.is_empty()
    }
}

impl HostPort for InProcess {
    type Frame = OwnFrame;

    fn has_room(&self, _payload_len: usize) -> bool {
        self.stream.borrow().has_room()
    }

    fn send(&mut self, frame: &FromCard<'_>) {
        if self.is_gone {
            return;
        }
        let received = self.stream.borrow_mut().received(now(), frame);
        if let Err(fault) = received {
            self.close(&fault.to_string());
        }
    }

    fn poll(&mut self) -> Option<HostEvent<OwnFrame>> {
        if std::mem::take(&mut self.is_gone) {
            self.has_arrived = false;
            return Some(HostEvent::Gone);
        }
        if !std::mem::replace(&mut self.has_arrived, true) {
            return Some(HostEvent::Arrived);
        }
        self.fetch();
        self.frames.pop_front().map(HostEvent::Frame)
    }

    fn close(&mut self, why: &str) {
        tracing::error!("the key-value store's own stream: {why}");
        self.stream.borrow_mut().ended();
        self.frames.clear();
        self.is_gone = true;
    }
}

/// What a director reads whose engine is never asked.
struct NoFiles;

impl Files for NoFiles {
    fn block_len(&self) -> u32 {
        4096
    }

    fn read(&mut self, _token: Token, read: BlockRead) -> Result<(), BlockRead> {
        Err(read)
    }

    fn poll(&mut self) -> Option<BlocksRead> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;
    use crate::config::{Config, TimeSpan};

    /// Whether a thread of this process sleeps.
    fn is_asleep(thread: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
    }

    /// Half a group of an earlier life may lie where the first group goes: that one is of a single block, and durable before there are answers.
    #[test]
    fn the_log_is_marked_before_anybody_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config { data: directory.path().to_owned(), ..Config::default() };
        config.kv.listen = "127.0.0.1:0".parse().unwrap();
        let config = config.host();
        let front = Front::open(&config).unwrap();
        assert!(front.stream.borrow().service().is_life_marked());
        let parts = std::fs::read_dir(config.directory.join(DIRECTORY)).unwrap();
        let marks = parts.filter_map(|part| std::fs::read(part.unwrap().path()).ok());
        let marks: Vec<bool> = marks.map(|bytes| bytes.iter().take(64).any(|byte| *byte != 0)).collect();
        assert!(marks.contains(&true), "nothing was written: {marks:?}");
    }

    #[test]
    fn with_more_pollers_than_cores_it_does_not_poll() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config { data: directory.path().to_owned(), ..Config::default() };
        config.kv.listen = "127.0.0.1:0".parse().unwrap();
        config.reactor.spin = TimeSpan(Duration::from_secs(3600));
        let config = config.host();
        let asked = Arc::new(Asked::default());
        asked.other_pollers.store(available_cores(), Ordering::Relaxed);
        let ((tell, told), (tell_id, told_id), for_thread) = (channel(), channel(), Arc::clone(&asked));
        let thread = std::thread::spawn(move || {
            tell_id.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            Front::open(&config).unwrap().run(&for_thread, &tell);
        });
        let id = told_id.recv().unwrap();
        let (address, waker) = told.recv().unwrap().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"PING\r\n").unwrap();
        client.read_exact(&mut [0; 7]).unwrap();
        // Several looks in a row: one that polls may wait for a lock for once.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let mut in_a_row = 0;
        while in_a_row < 5 {
            assert!(std::time::Instant::now() < deadline, "it polls");
            in_a_row = if is_asleep(id) { in_a_row + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
        asked.stops.store(true, Ordering::Release);
        waker.wake();
        thread.join().unwrap();
    }

    #[test]
    fn parts_and_clients_find_descriptors_together() {
        let clients = u64::from(WATCHES_MAX);
        for descriptors in [8192, 16 << 10, 20 << 10] {
            let parts = parts_max(Some(descriptors)) as u64;
            assert!(parts >= descriptors / 2 && parts <= (descriptors - clients).max(descriptors / 2));
        }
        for descriptors in [Some(32 << 10), Some(u64::MAX), None] {
            assert_eq!(parts_max(descriptors), PARTS_MAX as usize);
        }
        assert_eq!(parts_max(Some(1024)), 512, "a shell's limit");
    }
}
