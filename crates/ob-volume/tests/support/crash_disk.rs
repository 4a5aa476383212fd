//! A disk of the simulator that loses its power at a chosen write.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Clock, Device, DeviceCompletion, DeviceInfo, DeviceOp, Instant, Refused, Token};
use ob_files_card::Drive;
use ob_sim::{DiskPlan, Rng, SimClock, SimDisk, Trace};

use super::TestDisk;

struct Inner {
    disk: SimDisk,
    clock: SimClock,
    rng: Rng,
    /// Changes that were submitted since they are counted, and at which of them the power goes.
    changes: u32,
    cut_at: Option<u32>,
    is_off: bool,
}

/// The disk. Its writes take their time, in blocks, and in any order.
#[derive(Clone)]
pub(crate) struct CrashDisk(Rc<RefCell<Inner>>);

impl CrashDisk {
    pub(crate) fn new(seed: u64, block_len: u32, capacity: u64) -> Self {
        let (clock, rng) = (SimClock::new(), Rng::new(seed));
        let plan = DiskPlan { capacity, block_len, ..DiskPlan::default() };
        let disk = SimDisk::new(plan, rng.fork("disk"), Trace::new(clock.clone()));
        Self(Rc::new(RefCell::new(Inner {
            disk,
            clock,
            rng: rng.fork("power"),
            changes: 0,
            cut_at: None,
            is_off: false,
        })))
    }

    /// Counts from now on, and cuts the power with a change if that is said.
    pub(crate) fn count(&self, cut_at: Option<u32>) {
        let mut inner = self.0.borrow_mut();
        (inner.changes, inner.cut_at) = (0, cut_at);
    }

    pub(crate) fn changes(&self) -> u32 {
        self.0.borrow().changes
    }

    /// The power goes, at some moment after the last change was submitted, and comes back.
    pub(crate) fn lose_power(&self) {
        let mut inner = self.0.borrow_mut();
        let later = inner.rng.duration(Duration::ZERO..Duration::from_micros(250));
        inner.clock.advance_to(inner.clock.now() + later);
        inner.disk.lose_power();
        (inner.is_off, inner.cut_at) = (false, None);
    }
}

impl Device for CrashDisk {
    fn info(&self) -> DeviceInfo {
        self.0.borrow().disk.info()
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        let mut inner = self.0.borrow_mut();
        let is_change = !matches!(op, DeviceOp::Read { .. });
        inner.disk.submit(token, op)?;
        if is_change {
            inner.changes += 1;
            inner.is_off |= inner.cut_at == Some(inner.changes);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        let mut inner = self.0.borrow_mut();
        if inner.is_off { None } else { inner.disk.poll() }
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.borrow().disk.next_due()
    }
}

impl Drive for CrashDisk {
    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn wait(&mut self) {
        self.pass();
    }
}

impl TestDisk for CrashDisk {
    fn pass(&self) -> Option<Instant> {
        let inner = self.0.borrow();
        let due = inner.disk.next_due()?;
        inner.clock.advance_to(due);
        Some(inner.clock.now())
    }

    fn is_off(&self) -> bool {
        self.0.borrow().is_off
    }
}
