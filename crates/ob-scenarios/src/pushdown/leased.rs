//! Files of a client's file system, under leases as a kernel gives them and `ob_passthrough::lease` keeps them (`docs/leases.md`). What is made of
//! them, `ob_pushdown::client::LeasedMaps`, is what ships.
//!
//! ```text
//!   LeasedMaps ── lease, extents, is it held ──▶ Opening ──▶ SimFile ◀── open, lies, close ── a writer
//!        ▲                                                      │
//!        └──────────── a break: told, with a hold ──────────────┘ the writer goes on when nobody holds it, or the grace is over
//! ```

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ob_core::Instant;
use ob_pushdown::client::{FileMap, Hold, LeasedFile, LeasedMaps, MapSource, OnEnd};
use ob_sim::Rng;

use super::crowd::{now, pause, seam, seam_for_writers};
use super::mapped::map_of;
use super::node::{Content, Entry};

/// How a kernel and its file system are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leasing {
    /// How long a writer waits for requests.
    pub(super) grace: Duration,
    /// Whether blocks can be moved under a lease.
    pub(super) can_be_remapped: bool,
    /// How long after a refusal a map is tried again.
    pub(super) pause: Duration,
}

/// A file.
#[derive(Default)]
pub(super) struct SimFile(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Nothing while somebody has it open for writing.
    content: Option<Content>,
    blocks: Vec<u64>,
    /// What was in it from when until when.
    states: Vec<(Content, u64, u64)>,
    leases: Vec<Arc<LeaseState>>,
    /// Somebody has it open for writing, or waits for that.
    is_open: bool,
    /// A host is about to change it, in whichever way.
    is_busy: bool,
    /// Stamps of writers who waited until the target had no map any more; and the last command that was sent before.
    polite: Vec<(u64, u64)>,
}

struct LeaseState {
    is_broken: AtomicBool,
    in_flight: AtomicUsize,
    on_break: Mutex<Option<OnEnd>>,
}

/// A lease, as who has taken it has it.
pub(super) struct SimLease(Arc<LeaseState>);

/// A request under a lease.
struct Request(Arc<LeaseState>);

/// Nobody may have a lease now, or the file lies nowhere.
#[derive(Debug)]
pub(super) struct Refused;

/// What became of a wish to write.
pub(super) struct Open {
    /// Whether everybody who had a map has withdrawn it before.
    pub(super) is_polite: bool,
    /// Whether there was a map to be withdrawn.
    pub(super) was_leased: bool,
    /// Whether requests were not waited for any more.
    pub(super) was_late: bool,
}

/// A file that a program has opened, to have requests read it.
struct Opening {
    file: Arc<SimFile>,
    leasing: Leasing,
}

/// Its maps, with seams.
pub(super) struct Source(LeasedMaps<Opening>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source {
    pub(super) fn new(file: &Arc<SimFile>, leasing: Leasing) -> Self {
        Self(LeasedMaps::new(Opening { file: Arc::clone(file), leasing }))
    }
}

impl MapSource for Source {
    fn current(&self) -> Option<Arc<FileMap>> {
        seam();
        let map = self.0.current();
        seam();
        map
    }

    fn version(&self) -> Option<u64> {
        seam();
        let version = self.0.version();
        seam();
        version
    }

    fn may_have_map(&self) -> bool {
        seam();
        self.0.may_have_map()
    }

    fn on_end(&self, told: OnEnd) {
        self.0.on_end(told);
    }

    fn hold(&self, version: u64) -> Option<Hold> {
        seam();
        let hold = self.0.hold(version);
        seam();
        hold
    }
}

impl LeasedFile for Opening {
    type Lease = SimLease;
    type Extents = (Vec<u64>, Content);
    type Refusal = Refused;

    fn lease(&self, told: Option<OnEnd>) -> Result<SimLease, Refused> {
        seam_for_writers();
        let mut inner = self.file.lock();
        if inner.is_open {
            return Err(Refused);
        }
        let (is_broken, in_flight) = Default::default();
        let lease = Arc::new(LeaseState { is_broken, in_flight, on_break: Mutex::new(told) });
        inner.leases.push(Arc::clone(&lease));
        Ok(SimLease(lease))
    }

    fn extents(&self) -> Result<(Vec<u64>, Content), Refused> {
        seam_for_writers();
        let inner = self.file.lock();
        let last = inner.states.last().map(|(content, ..)| content.clone());
        let content = last.filter(|_| !inner.blocks.is_empty()).ok_or(Refused)?;
        Ok((inner.blocks.clone(), content))
    }

    fn map_of(&self, (blocks, content): &(Vec<u64>, Content), version: u64) -> FileMap {
        map_of(blocks, version, content)
    }

    fn is_held(&self, lease: &SimLease) -> bool {
        lease.0.is_held()
    }

    fn is_there(&self, (blocks, _): &(Vec<u64>, Content)) -> bool {
        !self.leasing.can_be_remapped || self.file.lock().blocks == *blocks
    }

    fn begin(&self, lease: &SimLease) -> Option<Hold> {
        let request = Request::enter(&lease.0);
        lease.0.is_held().then(|| Hold::new(request))
    }

    fn pause_after(&self, _: &Refused) -> Duration {
        self.leasing.pause
    }

    fn now(&self) -> Instant {
        now()
    }
}

impl LeaseState {
    fn is_held(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed)
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
    }
}

impl Request {
    fn enter(lease: &Arc<LeaseState>) -> Self {
        lease.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(lease))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for SimLease {
    fn drop(&mut self) {
        // Requests under it are waited for all the same.
        self.0.is_broken.store(true, Ordering::Relaxed);
        drop(lock(&self.0.on_break).take());
    }
}

impl SimFile {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.0)
    }

    /// What is in it, if that can be said now.
    pub(super) fn content(&self) -> Option<Content> {
        self.lock().content.clone()
    }

    /// Makes it this host's to change; whether it was free.
    pub(super) fn begin_change(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_busy, true)
    }

    pub(super) fn end_change(&self) {
        self.lock().is_busy = false;
    }

    pub(super) fn blocks(&self) -> Vec<u64> {
        self.lock().blocks.clone()
    }

    /// Opens it for writing: whoever has a lease is told, and those who read under one are waited for.
    pub(super) async fn open(&self, leasing: &Leasing, rng: &mut Rng) -> Open {
        let leases: Vec<Arc<LeaseState>> = {
            let mut inner = self.lock();
            inner.is_open = true;
            inner.leases.retain(|lease| lease.is_held() || !lease.is_idle());
            inner.leases.iter().for_each(|lease| lease.is_broken.store(true, Ordering::Relaxed));
            std::mem::take(&mut inner.leases)
        };
        // The keeper of leases comes when it comes.
        for _ in 0..rng.below(4) {
            pause().await;
        }
        let mut is_polite = !leases.is_empty();
        for lease in &leases {
            let told = lock(&lease.on_break).take();
            let others = lease.in_flight.load(Ordering::Relaxed);
            told.into_iter().for_each(|told| told(Hold::new(Request::enter(lease))));
            // Who lets go at once has told nobody yet.
            is_polite &= lease.in_flight.load(Ordering::Relaxed) > others;
        }
        let deadline = now() + leasing.grace;
        let is_idle = || leases.iter().all(|lease| lease.is_idle());
        while !is_idle() && now() < deadline {
            pause().await;
        }
        let was_late = !is_idle();
        Open { is_polite: is_polite && !was_late, was_leased: !leases.is_empty(), was_late }
    }

    /// From now on its bytes change.
    pub(super) fn begin_to_write(&self, at: u64) {
        let mut inner = self.lock();
        inner.content = None;
        if let Some((_, _, until)) = inner.states.last_mut() {
            *until = (*until).min(at);
        }
    }

    /// Nobody writes it any more, and it has this in it; or what it had.
    pub(super) fn close(&self, content: Option<Content>, at: u64) {
        let mut inner = self.lock();
        let content = content.or_else(|| inner.states.last().map(|(content, ..)| content.clone()));
        inner.states.extend(content.iter().map(|content| (content.clone(), at, u64::MAX)));
        (inner.content, inner.is_open) = (content, false);
    }

    /// Nobody writes it any more, and nobody knows what is in it: it has no blocks either.
    pub(super) fn lose(&self) {
        let mut inner = self.lock();
        inner.blocks.clear();
        (inner.content, inner.is_open) = (None, false);
    }

    /// It lies there from now on; the blocks that it had before.
    pub(super) fn lies(&self, blocks: Vec<u64>) -> Vec<u64> {
        std::mem::replace(&mut self.lock().blocks, blocks)
    }

    /// This is written where it lay, by somebody who waited until the target had no map of it. Requests up to this command were sent before.
    pub(super) fn is_written_politely(&self, stamp: u64, command: u64) {
        self.lock().polite.push((stamp, command));
    }

    /// Whether a request of that command has seen what it cannot have seen, if maps are withdrawn before somebody writes.
    pub(super) fn has_seen_too_much(&self, entry: &Entry, command: u64) -> bool {
        let inner = self.lock();
        let is_own = inner.states.last().is_some_and(|(content, ..)| content.owner == entry.owner);
        is_own && inner.polite.iter().any(|(stamp, last)| *stamp == entry.stamp && command <= *last)
    }

    /// When all of these were in it, within a time.
    pub(super) fn had(&self, entries: &[Entry], read_len: u32, (from, to): (u64, u64)) -> Vec<(u64, u64)> {
        let inner = self.lock();
        let during = inner.states.iter().filter(|(_, begin, end)| *begin <= to && *end >= from);
        let agreeing =
            during.filter(|(content, ..)| entries.iter().all(|entry| content.agrees(entry, read_len)));
        agreeing.map(|(_, begin, end)| ((*begin).max(from), (*end).min(to))).collect()
    }
}
