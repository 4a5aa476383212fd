//! The metadata store of volumes, on a thread of its own: what it agrees to waits for a disk, and the tier's thread does not.
//!
//! ```text
//!   thread volumes                                   thread metadata
//!   MetadataClient ── submit ─▶ lines: submitted ──wake──▶ RedbStore ─▶ reactor ─▶ volumes.redb
//!                  ◀─ poll ─── lines: answers ◀──bell──────────┘
//! ```
//!
//! Where several machines share it, it is in etcd ([`super::etcd`]), and there are a few threads that wait for its answers.
//!
//! The store lives as long as its process. Ports come and go meanwhile, each with a tier and a client of its own: what an earlier one has
//! asked is answered to nobody, and sessions that it was given are revoked.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ob_core::{Clock, Refused, RefusedReason, SessionId, Token};
use ob_io::{
    Config as ReactorConfig, FileDevice, FileDeviceOptions, MonotonicClock, OpenError, Reactor, Space, Wait,
    Waker,
};
use ob_volume::metadata::{
    MetadataAnswer, MetadataCompletion, MetadataOp, MetadataStore, RedbError, RedbStore, Standing,
};

use super::etcd::{self, Etcd};
use crate::config::MetadataPlace;
use crate::durable;
use crate::files::open_patiently;
use crate::kv::WatchedThread;

/// The file, in the host's data directory, and what it is called until it is whole.
const FILE: &str = "volumes.redb";
const FILE_NEW: &str = "volumes.redb.new";
/// How long it looks: it takes space as it is written.
const FILE_LEN: u64 = 4 << 30;
/// The first is for sessions.
const ETCD_THREADS: [&str; 4] = ["metadata-1", "metadata-2", "metadata-3", "metadata-4"];
/// Operations that wait for the thread, or are with the store.
const OPERATIONS_MAX: usize = 128;

/// Why there is no metadata store.
#[derive(Debug, thiserror::Error)]
pub enum MetadataStoreError {
    /// Its file cannot be opened or made.
    #[error("cannot open the metadata store of volumes: {0}")]
    Open(#[from] OpenError),
    /// What the file has cannot be used.
    #[error("{}: {source}\nhint: {hint}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: RedbError,
        /// What to do.
        hint: &'static str,
    },
    /// The system refused something that should always work.
    #[error("the metadata store of volumes: {0}")]
    System(#[from] io::Error),
}

/// Wakes whoever takes the answers.
pub(super) type Bell = Arc<dyn Fn() + Send + Sync>;

/// The threads, and what they share with clients.
pub(super) struct MetadataThreads {
    shared: Arc<Shared>,
    threads: Vec<WatchedThread>,
}

/// What they share.
pub(super) struct Shared {
    lines: Mutex<Lines>,
    is_ended: AtomicBool,
    /// Wakes the thread that sleeps on a reactor, if there is one, and those that wait for something to do.
    waker: Option<Waker>,
    has_more: Condvar,
    /// Tells who waits for all to be answered.
    has_less: Condvar,
    bell: Bell,
}

/// An operation, and who wants it.
pub(super) struct Errand {
    pub(super) asker: Asker,
    pub(super) op: MetadataOp,
}

/// What is asked, and what was answered.
#[derive(Default)]
struct Lines {
    submitted: VecDeque<(Asker, MetadataOp)>,
    answers: VecDeque<MetadataCompletion>,
    /// Operations that the store has.
    out: usize,
    /// The client of now, and sessions that it was given.
    client: u64,
    sessions: Vec<SessionId>,
}

/// Who asks, and by which number he knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    client: u64,
    pub(super) token: Token,
}

/// A tier's end of the store.
pub(super) struct MetadataClient {
    shared: Arc<Shared>,
    client: u64,
}

impl MetadataThreads {
    /// Starts the threads of a store.
    pub(super) fn start(
        place: &MetadataPlace,
        directory: &Path,
        bell: Bell,
    ) -> Result<Self, MetadataStoreError> {
        match place {
            MetadataPlace::Embedded => Self::embedded(directory, bell),
            MetadataPlace::Etcd(endpoints) => Self::etcd(endpoints.clone(), bell),
        }
    }

    /// Whether it can be reached shows when it is asked.
    fn etcd(endpoints: Vec<SocketAddr>, bell: Bell) -> Result<Self, MetadataStoreError> {
        let (shared, etcd) = (Arc::new(Shared::new(None, bell)), Arc::new(Etcd::new(endpoints)));
        let start = |name: &&'static str| {
            let (shared, etcd) = (Arc::clone(&shared), Arc::clone(&etcd));
            let is_for_sessions = *name == ETCD_THREADS[0];
            WatchedThread::start(name, move || etcd::serve(&etcd, &shared, is_for_sessions))
        };
        let threads = ETCD_THREADS.iter().map(start).collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// Opens the store in this directory, or makes it.
    fn embedded(directory: &Path, bell: Bell) -> Result<Self, MetadataStoreError> {
        let (opened, result) = sync_channel(1);
        let directory = directory.to_owned();
        let thread = WatchedThread::start("metadata", move || {
            let (store, reactor) = match open(&directory) {
                Ok(opened) => opened,
                Err(error) => return drop(opened.send(Err(error))),
            };
            let shared = Arc::new(Shared::new(Some(reactor.handle().waker()), bell));
            if opened.send(Ok(Arc::clone(&shared))).is_ok() {
                run(store, reactor, &shared);
            }
        })?;
        let ended = |_| MetadataStoreError::System(io::Error::other("its thread has ended"));
        let shared = result.recv().map_err(ended)??;
        Ok(Self { shared, threads: vec![thread] })
    }

    /// The next client: the one before hears nothing more, and its sessions end.
    pub(super) fn client(&self) -> MetadataClient {
        let mut lines = self.shared.lock();
        lines.client += 1;
        let (client, asker) = (lines.client, Asker { client: 0, token: Token(0) });
        lines.answers.clear();
        let revoked = std::mem::take(&mut lines.sessions);
        lines.submitted.extend(revoked.into_iter().map(|session| (asker, MetadataOp::Revoke { session })));
        drop(lines);
        self.shared.wake();
        MetadataClient { shared: Arc::clone(&self.shared), client }
    }

    /// Nobody is there any more: the sessions of the last client end, if the store says so within this time.
    pub(super) fn end_sessions(&self, within: Duration) {
        drop(self.client());
        let (until, mut lines) = (Instant::now() + within, self.shared.lock());
        while !lines.submitted.is_empty() || lines.out > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.shared.is_ended.load(Ordering::Acquire) {
                return;
            }
            let waited = self.shared.has_less.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Each becomes readable when a thread has ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.threads.iter().map(AsFd::as_fd)
    }
}

impl Drop for MetadataThreads {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::Release);
        // Whoever looks whether that is so, and then waits, does both with the lines in his hand.
        drop(self.shared.lock());
        self.shared.wake();
        self.threads.iter_mut().for_each(WatchedThread::join);
    }
}

impl Shared {
    fn new(waker: Option<Waker>, bell: Bell) -> Self {
        Self {
            lines: Mutex::default(),
            is_ended: AtomicBool::new(false),
            waker,
            has_more: Condvar::new(),
            has_less: Condvar::new(),
            bell,
        }
    }

    fn wake(&self) {
        self.has_more.notify_all();
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    /// The next operation of this kind, when there is one; none when all is over.
    pub(super) fn wait_for(&self, is_meant: impl Fn(&MetadataOp) -> bool) -> Option<Errand> {
        let mut lines = self.lock();
        while !self.is_ended.load(Ordering::Acquire) {
            let found = lines.submitted.iter().position(|(_, op)| is_meant(op));
            if let Some((asker, op)) = found.and_then(|place| lines.submitted.remove(place)) {
                lines.out += 1;
                return Some(Errand { asker, op });
            }
            lines = self.has_more.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever has asked, if he is still there.
    pub(super) fn answer(&self, asker: Asker, completion: MetadataCompletion) {
        let mut lines = self.lock();
        lines.out = lines.out.saturating_sub(1);
        self.has_less.notify_all();
        if asker.client != lines.client {
            // Nobody knows of a session that an earlier client was given.
            if let Ok(MetadataAnswer::Session(session)) = completion.result {
                let nobody = Asker { client: 0, token: Token(0) };
                lines.submitted.push_back((nobody, MetadataOp::Revoke { session }));
                self.wake();
            }
            drop(lines);
            // There is room for another.
            (self.bell)();
            return;
        }
        if let Ok(MetadataAnswer::Session(session)) = completion.result {
            lines.sessions.push(session);
        }
        lines.answers.push_back(MetadataCompletion { token: asker.token, ..completion });
        drop(lines);
        (self.bell)();
    }
}

impl MetadataStore for MetadataClient {
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        let mut lines = self.shared.lock();
        if lines.submitted.len() + lines.out + lines.answers.len() >= OPERATIONS_MAX {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        lines.submitted.push_back((Asker { client: self.client, token }, op));
        drop(lines);
        self.shared.wake();
        Ok(())
    }

    fn poll(&mut self) -> Option<MetadataCompletion> {
        let mut lines = self.shared.lock();
        if lines.client == self.client { lines.answers.pop_front() } else { None }
    }
}

/// The store's part of the thread.
fn run(mut store: RedbStore<FileDevice>, mut reactor: Reactor, shared: &Shared) {
    let mut askers: BTreeMap<Token, Asker> = BTreeMap::new();
    let (mut last, mut events) = (0, Vec::new());
    while !shared.is_ended.load(Ordering::Acquire) {
        take(&mut store, shared, &mut askers, &mut last);
        store.set_time(MonotonicClock.now());
        while let Some(completion) = store.poll() {
            if let Some(asker) = askers.remove(&completion.token) {
                shared.answer(asker, completion);
            }
        }
        if shared.lock().submitted.is_empty() || askers.len() >= OPERATIONS_MAX {
            reactor.turn(Wait::Until(store.next_due()), &mut events);
            events.clear();
        }
    }
}

/// Gives the store what was asked, as much as it takes.
fn take(
    store: &mut RedbStore<FileDevice>,
    shared: &Shared,
    askers: &mut BTreeMap<Token, Asker>,
    last: &mut u64,
) {
    let mut lines = shared.lock();
    while let Some((asker, op)) = lines.submitted.pop_front() {
        *last += 1;
        if let Err(refused) = store.submit(Token(*last), op) {
            lines.submitted.push_front((asker, refused.op));
            break;
        }
        lines.out += 1;
        askers.insert(Token(*last), asker);
    }
}

/// Opens the store, or makes one where there is none.
fn open(directory: &Path) -> Result<(RedbStore<FileDevice>, Reactor), MetadataStoreError> {
    let path = directory.join(FILE);
    let mut reactor = Reactor::new(&ReactorConfig::default()).map_err(io::Error::other)?;
    let (handle, options) = (reactor.handle(), FileDeviceOptions::default());
    let explain = |source| {
        let hint = match source {
            RedbError::Damaged(_) => {
                "it says what volumes there are and where their data lie. A copy from before does not know what was written since, and is not accepted by chunk servers that do: have its disk looked at first. To begin with empty volumes move it away, and give chunk servers empty data directories"
            }
            RedbError::Version { .. } => "use a program that knows this version",
            _ => "see the disk that it is on",
        };
        MetadataStoreError::Store { path: path.clone(), source, hint }
    };
    let store = match open_patiently(&path, |path| FileDevice::open(&handle, path, &options)) {
        Ok(device) => settle(RedbStore::open(device).map_err(explain)?, &mut reactor).map_err(explain)?,
        Err(OpenError::Missing(_)) => {
            let beside = directory.join(FILE_NEW);
            match std::fs::remove_file(&beside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
            let device = FileDevice::create(&handle, &beside, FILE_LEN, Space::Sparse, &options)?;
            let store = settle(RedbStore::create(device).map_err(explain)?, &mut reactor).map_err(explain)?;
            durable::put(&beside, &path)?;
            tracing::info!("made the metadata store of volumes in {}", path.display());
            store
        }
        Err(error) => return Err(error.into()),
    };
    Ok((store, reactor))
}

/// Waits until a store is open.
fn settle(
    mut store: RedbStore<FileDevice>,
    reactor: &mut Reactor,
) -> Result<RedbStore<FileDevice>, RedbError> {
    let mut events = Vec::new();
    loop {
        store.set_time(MonotonicClock.now());
        match store.standing() {
            Standing::Open => return Ok(store),
            Standing::Failed(error) | Standing::Broken(error) => return Err(error.clone()),
            Standing::Opening => {}
        }
        reactor.turn(Wait::Until(store.next_due()), &mut events);
        events.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use ob_volume::metadata::{Change, Expect, Key, MetadataError, Transaction, Value};

    use super::*;

    fn start(directory: &Path) -> (MetadataThreads, Receiver<()>) {
        let (rings, rung) = channel();
        let rings = Mutex::new(rings);
        let bell = move || {
            let _ = rings.lock().unwrap().send(());
        };
        (MetadataThreads::start(&MetadataPlace::Embedded, directory, Arc::new(bell)).unwrap(), rung)
    }

    fn ask(
        client: &mut MetadataClient,
        rung: &Receiver<()>,
        op: MetadataOp,
    ) -> Result<MetadataAnswer, MetadataError> {
        client.submit(Token(5), op).unwrap();
        loop {
            if let Some(completion) = client.poll() {
                assert_eq!(completion.token, Token(5));
                return completion.result;
            }
            rung.recv().unwrap();
        }
    }

    fn put(key: &str, session: Option<SessionId>) -> MetadataOp {
        let (key, value) = (Key::new(key).unwrap(), Value::new(b"value").unwrap());
        let change = vec![Change::Put { key: key.clone(), value, session }];
        MetadataOp::Commit(Transaction { compare: vec![(key, Expect::Absent)], change })
    }

    fn get(client: &mut MetadataClient, rung: &Receiver<()>, key: &str) -> bool {
        match ask(client, rung, MetadataOp::Get { key: Key::new(key).unwrap() }) {
            Ok(MetadataAnswer::Value(value)) => value.is_some(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_agreed_on_is_there_over_lives_and_sessions_end_with_their_client() {
        let directory = tempfile::tempdir().unwrap();
        let (thread, rung) = start(directory.path());
        let mut client = thread.client();
        let grant = MetadataOp::Grant { ttl: Duration::from_secs(60) };
        let Ok(MetadataAnswer::Session(session)) = ask(&mut client, &rung, grant.clone()) else {
            panic!("none")
        };
        assert!(ask(&mut client, &rung, put("/lasting", None)).is_ok());
        assert!(ask(&mut client, &rung, put("/owned", Some(session))).is_ok());
        assert!(get(&mut client, &rung, "/owned"));
        // Another port: another client, of a tier that knows nothing.
        client.submit(Token(9), MetadataOp::Renew { session }).unwrap();
        let mut next = thread.client();
        assert!(get(&mut next, &rung, "/lasting") && !get(&mut next, &rung, "/owned"));
        assert_eq!(client.poll(), None, "nobody answers the one before");
        assert_eq!(ask(&mut next, &rung, MetadataOp::Renew { session }), Err(MetadataError::NoSession));
        let Ok(MetadataAnswer::Session(session)) = ask(&mut next, &rung, grant) else { panic!("none") };
        assert!(ask(&mut next, &rung, put("/owned", Some(session))).is_ok());
        drop((client, next, thread));
        // Another process.
        let (thread, rung) = start(directory.path());
        let mut client = thread.client();
        assert!(get(&mut client, &rung, "/lasting") && !get(&mut client, &rung, "/owned"));
    }

    #[test]
    fn a_file_that_is_none_is_left_alone_and_one_that_was_not_finished_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE_NEW), b"half").unwrap();
        drop(start(directory.path()));
        let path = directory.path().join(FILE);
        assert!(!directory.path().join(FILE_NEW).exists());
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], 0).unwrap();
        let again = MetadataThreads::start(&MetadataPlace::Embedded, directory.path(), Arc::new(|| {}));
        let error = again.map(drop).unwrap_err().to_string();
        assert!(error.contains("volumes.redb: the metadata store is damaged"), "{error}");
        assert!(error.contains("hint: "), "{error}");
    }

    /// Where nobody listens, everybody is told so, and the threads end when they are to.
    #[test]
    fn an_etcd_that_is_not_there_is_told_of_and_ends() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (rings, rung) = channel();
        let rings = Mutex::new(rings);
        let bell = move || {
            let _ = rings.lock().unwrap().send(());
        };
        let place = MetadataPlace::Etcd(vec![nobody]);
        let threads = MetadataThreads::start(&place, Path::new("nowhere"), Arc::new(bell)).unwrap();
        let mut client = threads.client();
        let grant = MetadataOp::Grant { ttl: Duration::from_secs(60) };
        for op in [grant, put("/a", None), MetadataOp::Renew { session: SessionId(5) }] {
            assert_eq!(ask(&mut client, &rung, op), Err(MetadataError::Unreachable));
        }
        assert_eq!(threads.ends().count(), 4);
    }
}
