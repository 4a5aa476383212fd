//! A client of a store, in one thread with it and its files.

use ob_kv::resp::Request;
use ob_kv::store::{Config, Recovery, RecoveryError, Session, Store};
use ob_sim::Rng;

use super::at;
use super::files::Files;

pub(crate) struct Client {
    pub(crate) store: Store,
    pub(crate) files: Files,
    pub(crate) session: Session,
    pub(crate) rng: Rng,
    pub(crate) stamp: u64,
    pub(crate) now: u64,
}

impl Client {
    pub(crate) fn new(config: Config) -> Self {
        let store = Store::create(config);
        let session = store.open(5);
        Self { store, files: Files::default(), session, rng: Rng::new(1), stamp: 0, now: 1_000_000 }
    }

    pub(crate) fn send(&mut self, request: &[u8]) {
        self.stamp += 1;
        self.store.apply(at(self.now), self.stamp, 1, &mut self.session, &Request::new(request));
    }

    /// The reply to a request.
    pub(crate) fn reply(&mut self, request: &[u8]) -> Vec<u8> {
        self.send(request);
        for _ in 0..10_000 {
            if let Some(answer) = self.store.next_answer() {
                assert_eq!(answer.stamp, self.stamp);
                return answer.bytes;
            }
            self.step();
        }
        panic!("no answer");
    }

    pub(crate) fn submit(&mut self) {
        if self.store.wants_measure() {
            self.store.measured(self.files.left());
        }
        while let Some(op) = self.store.next_op() {
            self.files.submit(op);
        }
    }

    pub(crate) fn step(&mut self) {
        self.submit();
        if let Some(completion) = self.files.complete(&mut self.rng) {
            self.store.completed(completion);
        }
    }

    /// Lets everything become complete.
    pub(crate) fn settle(&mut self) {
        self.now += 10_000;
        self.store.tick(at(self.now));
        for _ in 0..10_000 {
            self.step();
            self.submit();
            if self.files.is_idle() {
                return;
            }
        }
        panic!("it never comes to an end");
    }

    /// The reply to a line of words.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        let request = Request::of_line(line.as_bytes()).unwrap();
        String::from_utf8(self.reply(request.bytes())).unwrap()
    }

    /// Asks a line, and compares.
    pub(crate) fn says(&mut self, line: &str, reply: &str) {
        assert_eq!(self.ask(line), format!("{reply}\r\n"), "{line}");
    }
}

pub(crate) fn small() -> Config {
    Config { part_len: 64 << 10, group_len: 8 << 10, memory_len: 8 << 10, ..Config::default() }
}

pub(crate) fn recovered(client: &mut Client) -> Result<Store, RecoveryError> {
    recovered_as(client, small())
}

pub(crate) fn recovered_as(client: &mut Client, config: Config) -> Result<Store, RecoveryError> {
    let mut recovery = Recovery::new(config, client.files.parts())?;
    while let Some(op) = recovery.next_op() {
        client.files.submit(op);
        recovery.completed(client.files.complete(&mut client.rng).unwrap())?;
    }
    let progress = recovery.progress();
    assert!(progress.read <= progress.total);
    Ok(recovery.finish().ok().unwrap())
}
