//! The metadata store of one machine: `RedbStore` on a disk of its own, whose power goes in the middle of an operation.
//!
//! Its disk has a clock of its own, by which it goes on while one operation lasts: how long a store takes is drawn where it is asked (`store`).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Device, DeviceCompletion, DeviceInfo, DeviceOp, Instant, Refused, Token};
use ob_sim::{DiskPlan, Failure, Rng, SimClock, SimDisk, Trace};
use ob_volume::metadata::{Key, MetadataAnswer, MetadataError, MetadataOp, MetadataStore, RedbStore};

/// Bytes of its disk.
const CAPACITY: u64 = 4 << 20;
/// Times that it is asked whether it is done.
const POLLS_MAX: u32 = 1_000_000;

/// A disk that outlives what uses it.
#[derive(Clone)]
struct Shared(Rc<RefCell<SimDisk>>);

impl Device for Shared {
    fn info(&self) -> DeviceInfo {
        self.0.borrow().info()
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        self.0.borrow_mut().submit(token, op)
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.0.borrow_mut().poll()
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.borrow().next_due()
    }
}

/// The store, over all lives of its process.
pub(super) struct Embedded {
    disk: Shared,
    store: RedbStore<Shared>,
    clock: SimClock,
    /// After how many of its disk's operations the power goes.
    cut_in: Option<u64>,
    /// Whether it has gone, which nobody has noticed yet.
    pub(super) has_lost_power: bool,
}

impl Embedded {
    pub(super) fn new(rng: &Rng) -> Result<Self, Failure> {
        let clock = SimClock::new();
        let plan = DiskPlan { capacity: CAPACITY, block_len: 4096, ..DiskPlan::default() };
        let disk = SimDisk::new(plan, rng.fork("store's disk"), Trace::new(clock.clone()));
        let disk = Shared(Rc::new(RefCell::new(disk)));
        let store = RedbStore::create(disk.clone())
            .map_err(|error| Failure::new(format!("a metadata store is not made: {error}")))?;
        let mut made = Self { disk, store, clock, cut_in: None, has_lost_power: false };
        // It is in its place when all of it is durable, and not before.
        let key = Key::new("/").ok_or_else(|| Failure::new("a key is none"))?;
        made.execute(Instant::default(), MetadataOp::Get { key })
            .map_err(|error| Failure::new(format!("a new metadata store does not answer: {error}")))?;
        Ok(made)
    }

    /// The power goes when its disk has done so much more.
    pub(super) fn cut_power(&mut self, after: u64) {
        self.cut_in = Some(after);
    }

    /// Its power does not go any more.
    pub(super) fn mend(&mut self) {
        self.cut_in = None;
    }

    /// Its process ends, and another begins.
    pub(super) fn restart(&mut self) {
        self.disk.0.borrow_mut().lose_process();
        self.open();
    }

    fn open(&mut self) {
        // It refuses only disks that are none of its own, and this one was.
        if let Ok(store) = RedbStore::open(self.disk.clone()) {
            self.store = store;
        }
    }

    /// Does what is asked, and waits for it.
    pub(super) fn execute(&mut self, now: Instant, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
        self.store.set_time(now);
        if self.store.submit(Token(0), op).is_err() {
            return Err(MetadataError::Unreachable);
        }
        for _ in 0..POLLS_MAX {
            if let Some(done) = self.store.poll() {
                return done.result;
            }
            if self.cut_in == Some(0) {
                (self.cut_in, self.has_lost_power) = (None, true);
                self.disk.0.borrow_mut().lose_power();
                self.open();
                return Err(MetadataError::Unknown);
            }
            self.cut_in = self.cut_in.map(|left| left - 1);
            let due = self.disk.next_due();
            self.clock.advance_to(due.unwrap_or(self.clock_now() + Duration::from_millis(1)));
        }
        Err(MetadataError::Unreachable)
    }

    fn clock_now(&self) -> Instant {
        ob_core::Clock::now(&self.clock)
    }
}
