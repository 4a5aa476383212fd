//! The library and the card's own file system, over a device in memory.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use ob_core::{Device, Incarnation};
use ob_files_card::{Drive, FilesOptions, FilesService, FormatOptions, format, mount};
use ob_files_host::{Error, GroupOptions, OpenOptions, Session, SessionOptions};
use ob_io::{Config, MemoryDevice, Reactor, Waker};
use ob_link::{CardLink, CardLinkConfig, CardLoop, Listen};

const CAPACITY: usize = 256 << 20;

/// A device that is complete at once.
struct AtOnce<'a>(&'a mut MemoryDevice);

impl Drive for AtOnce<'_> {
    fn device(&mut self) -> &mut dyn Device {
        self.0
    }

    fn wait(&mut self) {}
}

struct Card {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    options: SessionOptions,
    _directory: tempfile::TempDir,
}

impl Card {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("link.sock");
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = channel();
        let (stopped, path) = (Arc::clone(&stop), socket.clone());
        let thread = std::thread::spawn(move || {
            let mut device = MemoryDevice::new(CAPACITY, 4096);
            format(&mut AtOnce(&mut device), &FormatOptions::default(), [3; 16]).unwrap();
            let files = mount(&mut AtOnce(&mut device), &FilesOptions::default()).unwrap();
            let reactor = Reactor::new(&Config::default()).unwrap();
            let config = CardLinkConfig {
                incarnation: Incarnation(1),
                listen: vec![Listen::Unix(path)],
                costs: None,
                pollers: 1,
                dead_after: Duration::from_secs(5),
                memory_max: 128 << 20,
                host_memory_max: 128 << 20,
                hosts_max: 8,
                allow_users: Vec::new(),
                allow_addresses: Vec::new(),
            };
            let link = CardLink::new(&reactor.handle(), config).unwrap();
            ready.send(reactor.handle().waker()).unwrap();
            let service = FilesService::new(files, device);
            let mut card = CardLoop::new(reactor, link, service, Duration::from_micros(20));
            let mut others = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                card.turn(None, &mut others);
                others.clear();
            }
            card.link.shut_down(&mut card.service);
        });
        let waker = is_ready.recv().unwrap();
        let options = SessionOptions::unix(socket).group(GroupOptions::polled());
        Self { stop, waker, thread: Some(thread), options, _directory: directory }
    }

    fn session(&self) -> Session {
        Session::open(self.options.clone()).unwrap()
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

#[test]
fn names_work_as_the_library_says() {
    let card = Card::start();
    let session = card.session();
    assert_eq!(session.card().unwrap().block_len, 4096);
    session.make_directory("/a").wait().unwrap();
    session.make_directory("/a/b").wait().unwrap();
    let file = session.create("/a/b/f").wait().unwrap();
    assert_eq!(session.stat("/a/b/f").wait().unwrap().id, file.node());
    assert_eq!(session.open_file("/a/b", OpenOptions::new()).wait().unwrap_err(), Error::IsADirectory);
    assert_eq!(session.create("/a/b/f/g").wait().unwrap_err(), Error::NotADirectory);
    assert_eq!(session.remove_directory("/a").wait().unwrap_err(), Error::NotEmpty);
    assert_eq!(session.rename("/a", "/a/b/c").wait().unwrap_err(), Error::WithinItself);
    session.rename("/a/b/f", "/g").wait().unwrap();
    let names: Vec<_> = session.list("/").wait().unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [b"a", b"g"]);
    for number in 0..2000 {
        session.create(format!("/a/b/{number:04}")).wait().unwrap();
    }
    assert_eq!(session.list("/a/b").wait().unwrap().len(), 2000);
    let space = session.space().wait().unwrap();
    assert_eq!((space.files, space.directories), (2001, 3));
    session.remove_file("/g").wait().unwrap();
    assert_eq!(file.read_at(vec![0; 1], 0).wait().0.unwrap_err(), Error::NotFound);
}

#[test]
fn transfers_of_all_sizes_come_back_from_many_threads() {
    let card = Card::start();
    let session = card.session();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let session = session.clone();
            scope.spawn(move || {
                let group = session.group(GroupOptions::polled()).unwrap();
                let file = group.create(format!("/{thread}")).wait().unwrap();
                let mut model = Vec::new();
                let mut state = thread + 1;
                let mut dice = move |limit: u64| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) % limit
                };
                for round in 0..60u64 {
                    let len = if round % 20 == 0 { 8 << 20 } else { 1 << dice(18) } + dice(1000) as usize;
                    let at = dice(4 << 20) as usize;
                    let fill = (round as u8).wrapping_add(1);
                    let bytes: Vec<u8> = (0..len).map(|byte| fill ^ (byte % 251) as u8).collect();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                    let (written, _) = file.write_at(bytes, at as u64).wait();
                    assert_eq!(written, Ok(len));
                    let from = dice(model.len() as u64) as usize;
                    let (read, buffer) = file.read_at(vec![0; len], from as u64).wait();
                    let expected = &model[from..model.len().min(from + len)];
                    assert_eq!(read, Ok(expected.len()));
                    assert!(buffer[..expected.len()] == *expected, "round {round}");
                }
                assert_eq!(file.stat().wait().unwrap().size, model.len() as u64);
            });
        }
    });
    session.flush().wait().unwrap();
}

#[test]
fn a_full_device_says_so_and_goes_on() {
    let card = Card::start();
    let session = card.session();
    let file = session.create("/large").wait().unwrap();
    let (written, _) = file.write_at(vec![1; CAPACITY + (1 << 20)], 0).wait();
    assert_eq!(written, Err(Error::NoSpace));
    session.remove_file("/large").wait().unwrap();
    let file = session.create("/small").wait().unwrap();
    assert_eq!(file.write_at(vec![1; 100_000], 0).wait().0, Ok(100_000));
}
