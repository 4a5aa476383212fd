//! A card in a thread that can be looked into, and a bystander: a host that behaves and measures how it is served.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ob_core::AttachmentId;
use ob_io::{Config, Reactor, Waker};
use ob_link::{
    CardLink, CardLinkConfig, CardLoop, Endpoint, GroupRefusal, HostGroup, HostReport, Listen, OpenGroupError,
};

use super::{ECHO, Echo, LONG, attach, config, observe, push, take};

type Question = Box<dyn FnOnce(&mut CardLoop<Echo>) + Send>;

/// A card whose loop answers questions about itself, and sends every channel message back to where it came from.
pub struct WatchedCard {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    questions: Sender<Question>,
    pub socket: PathBuf,
    pub tcp: SocketAddr,
    /// The loop's thread, as the kernel calls it.
    pub thread_id: i32,
    _directory: tempfile::TempDir,
}

impl WatchedCard {
    pub fn start(change: impl FnOnce(&mut CardLinkConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("link.sock");
        let listen = vec![Listen::Unix(socket.clone()), Listen::Tcp("127.0.0.1:0".parse().unwrap())];
        let mut config = config(listen);
        change(&mut config);
        let (ready, is_ready) = channel();
        let (questions, asked) = channel::<Question>();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let reactor = Reactor::new(&Config::default()).unwrap();
            let link = CardLink::new(&reactor.handle(), config).unwrap();
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            ready.send((reactor.handle().waker(), link.tcp_address().unwrap(), id)).unwrap();
            let mut card = CardLoop::new(reactor, link, Echo::default(), Duration::from_micros(50));
            run(&mut card, &stopped, &asked);
            card.link.shut_down(&mut card.service);
        });
        let (waker, tcp, thread_id) = is_ready.recv().unwrap();
        Self { stop, waker, thread: Some(thread), questions, socket, tcp, thread_id, _directory: directory }
    }

    pub fn unix(&self) -> Endpoint {
        Endpoint::Unix(self.socket.clone())
    }

    pub fn tcp(&self) -> Endpoint {
        Endpoint::Tcp(self.tcp)
    }

    /// Asks the loop something, between two of its turns.
    pub fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut CardLoop<Echo>) -> T + Send + 'static,
    ) -> T {
        let (tell, told) = channel();
        let question: Question = Box::new(move |card| drop(tell.send(question(card))));
        self.questions.send(question).unwrap();
        self.waker.wake();
        told.recv_timeout(LONG).unwrap()
    }

    pub fn hosts(&self) -> Vec<HostReport> {
        self.ask(|card| card.link.hosts())
    }

    /// Waits until exactly so many hosts are attached.
    pub fn wait_hosts(&self, count: usize) {
        observe(&format!("{count} hosts"), || (self.hosts().len() == count).then_some(()));
    }

    /// How much processor time the loop has taken, in nanoseconds.
    pub fn processor_time(&self) -> u64 {
        let statistics = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.thread_id));
        statistics.unwrap().split(' ').next().unwrap().parse().unwrap()
    }

    /// How many groups of this capacity a new host can open before the budget is used up: what the card holds for
    /// hosts that are gone would be missing here.
    pub fn groups_possible(&self, capacity: u32) -> usize {
        let link = attach(self.unix());
        let mut groups: Vec<HostGroup> = Vec::new();
        loop {
            match link.open_group(ECHO, capacity, capacity) {
                Ok(group) => groups.push(group),
                Err(OpenGroupError::Refused(GroupRefusal::Budget(_))) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let before = self.hosts().len();
        let count = groups.len();
        drop((groups, link));
        self.wait_hosts(before - 1);
        count
    }
}

impl Drop for WatchedCard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking(), "the card panicked");
    }
}

fn run(card: &mut CardLoop<Echo>, stop: &AtomicBool, asked: &Receiver<Question>) {
    let mut others = Vec::new();
    let mut letters = VecDeque::new();
    while !stop.load(Ordering::Acquire) {
        asked.try_iter().for_each(|question| question(card));
        turn(card, &mut letters, &mut others);
    }
}

/// One turn of a loop that sends channel messages back. Those of a host that is gone are forgotten.
pub fn turn(
    card: &mut CardLoop<Echo>,
    letters: &mut VecDeque<(AttachmentId, Vec<u8>)>,
    others: &mut Vec<ob_io::Event>,
) {
    letters.extend(card.service.channel.lock().unwrap().drain(..));
    let mut behind = Vec::new();
    for _ in 0..letters.len() {
        let Some((attachment, message)) = letters.pop_front() else { break };
        if behind.contains(&attachment) || !card.link.send(attachment, &message) {
            behind.push(attachment);
            letters.push_back((attachment, message));
        }
    }
    if !behind.is_empty() {
        let known: Vec<_> = card.link.hosts().into_iter().map(|host| host.identity.attachment).collect();
        letters.retain(|(attachment, _)| known.contains(attachment));
    }
    // A host that was behind acknowledges with a frame, and that wakes the loop.
    card.turn(None, others);
    others.clear();
}

/// A host that behaves: exchanges messages and checks each, until told to stop.
pub struct Bystander {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Duration>>,
}

/// The longest that a bystander may wait for one answer on a machine that is busy with other things too.
pub const BEARABLE: Duration = Duration::from_secs(10);

impl Bystander {
    pub fn start(endpoint: Endpoint) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let link = attach(endpoint);
        let group = link.open_group(ECHO, 1 << 14, 1 << 14).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut rounds, mut longest) = (0u64, Duration::ZERO);
            // At least once, also where the others were quick: or nothing would be shown.
            while rounds == 0 || !stopped.load(Ordering::Acquire) {
                let payload = vec![rounds as u8; (rounds as usize * 131) % 3000];
                let start = Instant::now();
                push(&group, &rounds.to_le_bytes(), Some(&payload));
                assert_eq!(take(&group), (rounds.to_le_bytes().to_vec(), payload));
                longest = longest.max(start.elapsed());
                rounds += 1;
            }
            assert_eq!(link.over(), None);
            longest
        });
        Self { stop, thread: Some(thread) }
    }

    /// Stops, and checks that it was served all the time.
    pub fn finish(mut self) {
        self.stop.store(true, Ordering::Release);
        let longest = self.thread.take().unwrap().join().unwrap();
        assert!(longest < BEARABLE, "the bystander waited {longest:?} for one answer");
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
