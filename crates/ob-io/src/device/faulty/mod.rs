//! Any device, with errors, torn writes, delays, stuck operations, and crashes that lose what was not flushed.
//!
//! ```text
//!   submit ─▶ pending ─(delay)─▶ fault? ──▶ error, torn, stuck
//!                                  │
//!                                  ├─ write ────────▶ overlay (volatile)
//!                                  ├─ read ─────────▶ device below, corrected by the overlay
//!                                  └─ flush, durable write ─▶ one job at a time ─▶ device below
//!
//!   crash: each unflushed block becomes any of its versions, or stays; writes in flight are torn
//! ```
//!
//! A tool for tests: it allocates, and remembers every block written since the last crash. The device below gets
//! only what is durable, which is why it can be looked at after a crash as the disk it stands for.

mod overlay;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use ob_core::{
    Clock, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Instant, Refused, RefusedReason,
    Token,
};
use ob_memory::Pool;

use overlay::{Bytes, Overlay};
pub use plan::{Delay, Fault, FaultPlan, OpKind, Scripted};
use plan::{Fate, Random};

/// Operations submitted and not yet polled.
const DEPTH: usize = 256;
/// Blocks on their way to the device below.
const BLOCKS_IN_FLIGHT: usize = 32;

/// A device that fails as its [`FaultPlan`] says, the same way for the same seed and the same operations.
pub struct FaultyDevice<D: Device> {
    below: D,
    info: DeviceInfo,
    fate: Fate,
    clock: Option<Rc<dyn Clock>>,
    overlay: Overlay,
    pool: Pool,
    polls: u64,
    pending: VecDeque<Pending>,
    done: VecDeque<DeviceCompletion>,
    /// Flushes and durable writes; the first is being worked on.
    jobs: VecDeque<Job>,
    /// What the device below is working on.
    asked: HashMap<u64, Asked>,
    next_token: u64,
    recovering: bool,
}

/// An operation that has not begun.
struct Pending {
    token: Token,
    op: DeviceOp,
    fault: Option<Fault>,
    due: Due,
    /// Writes up to here were complete when the operation was submitted.
    sequence: u64,
}

#[derive(Clone, Copy)]
enum Due {
    Poll(u64),
    At(Instant),
}

/// What an operation of the device below is for.
enum Asked {
    Read(Token),
    JobWrite {
        number: u64,
        bytes: Bytes,
    },
    JobFlush,
    /// Of a life before the last crash.
    Nothing,
}

/// Blocks to bring to the device below.
struct Job {
    /// Whose operation this is; none after a crash.
    owner: Option<(Token, DeviceOp)>,
    sequence: u64,
    /// Not computed before the job's turn has come.
    writes: Option<VecDeque<(u64, Bytes)>>,
    written: Vec<(u64, Bytes)>,
    outstanding: usize,
    flushing: bool,
    failed: Option<DeviceError>,
}

impl<D: Device> FaultyDevice<D> {
    /// Wraps a device. From here on only this wrapper may use it.
    pub fn new(below: D, plan: FaultPlan) -> Self {
        let info = DeviceInfo { volatile_cache: true, ..below.info() };
        Self {
            info,
            fate: Fate::new(plan),
            clock: None,
            overlay: Overlay::new(info.block_len),
            pool: Pool::new(info.block_len as usize, BLOCKS_IN_FLIGHT),
            polls: 0,
            pending: VecDeque::new(),
            done: VecDeque::new(),
            jobs: VecDeque::new(),
            asked: HashMap::new(),
            next_token: 0,
            recovering: false,
            below,
        }
    }

    /// The same, with the clock that [`Delay::Time`] needs. Without one, such delays are none.
    pub fn with_clock(mut self, clock: Rc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Lets every stuck operation go on.
    pub fn release_stuck(&mut self) {
        for pending in self.pending.iter_mut().filter(|pending| pending.fault == Some(Fault::Stuck)) {
            pending.fault = None;
        }
    }

    /// Loses power and comes back: nothing that is pending completes, every unflushed block (and every block of a
    /// write in flight) by itself becomes one of its versions or stays what the medium held, all as `seed` says.
    ///
    /// Returns whether the device is ready again. It is not yet when the device below still works (on a reactor,
    /// say): then it refuses operations as busy until [`Device::poll`] has finished the rest.
    pub fn crash(&mut self, seed: u64) -> bool {
        let mut random = Random::new(seed);
        self.crash_choosing(|_, versions| match random.below(versions as u64 + 1) {
            0 => None,
            version => Some(version as usize - 1),
        })
    }

    /// A crash in which `choose(block, versions)` says which of so many versions (oldest first) of a block
    /// survives; `None`: what the medium held.
    pub fn crash_choosing(&mut self, mut choose: impl FnMut(u64, usize) -> Option<usize>) -> bool {
        let mut candidates = self.overlay.crash();
        self.add_writes_in_flight(&mut candidates);
        let mut writes = VecDeque::new();
        for (number, mut versions) in candidates {
            if let Some(version) = choose(number, versions.len()).filter(|version| *version < versions.len())
            {
                writes.push_back((number, versions.swap_remove(version)));
            }
        }
        self.pending.clear();
        self.done.clear();
        self.jobs.clear();
        self.asked.values_mut().for_each(|asked| *asked = Asked::Nothing);
        self.jobs.push_back(Job::new(None, 0, Some(writes)));
        self.recovering = true;
        // A device below that completes on polling is through in one go.
        while self.recovering && self.drive() {}
        !self.recovering
    }

    /// Whether a crash is still being recovered from.
    pub fn is_recovering(&self) -> bool {
        self.recovering
    }

    /// The device below, as it is: without what was not flushed.
    pub fn into_below(self) -> D {
        self.below
    }

    /// The device below.
    pub fn below(&self) -> &D {
        &self.below
    }

    fn add_writes_in_flight(&self, candidates: &mut BTreeMap<u64, Vec<Bytes>>) {
        let block_len = self.info.block_len as usize;
        let pending = self.pending.iter().map(|pending| &pending.op);
        let jobs = self.jobs.iter().filter_map(|job| job.owner.as_ref().map(|(_, op)| op));
        for op in pending.chain(jobs) {
            let DeviceOp::Write { offset, from, .. } = op else { continue };
            for (number, block) in (*offset / block_len as u64..).zip(from.chunks(block_len)) {
                candidates.entry(number).or_default().push(block.into());
            }
        }
    }

    /// Does whatever can be done now; `false` when that is nothing.
    fn drive(&mut self) -> bool {
        let mut moved = false;
        while let Some(completion) = self.below.poll() {
            self.take_from_below(completion);
            moved = true;
        }
        moved |= !self.recovering && self.start_due();
        moved |= self.drive_job();
        moved
    }

    /// Starts every operation whose time has come.
    fn start_due(&mut self) -> bool {
        let now = self.clock.as_ref().map(|clock| clock.now());
        let mut moved = false;
        let mut index = 0;
        while index < self.pending.len() {
            let pending = &self.pending[index];
            let due = match pending.due {
                Due::Poll(poll) => poll <= self.polls,
                Due::At(at) => now.is_none_or(|now| at <= now),
            };
            if !due || pending.fault == Some(Fault::Stuck) {
                index += 1;
                continue;
            }
            let Some(pending) = self.pending.remove(index) else { break };
            match self.start(pending) {
                Ok(()) => moved = true,
                Err(back) => {
                    // The device below is full; nothing behind it fares better.
                    self.pending.insert(index, back);
                    break;
                }
            }
        }
        moved
    }

    fn start(&mut self, pending: Pending) -> Result<(), Pending> {
        let Pending { token, op, fault, due, sequence } = pending;
        let result = match (fault, &op) {
            (Some(Fault::Torn(error)), DeviceOp::Write { offset, from, .. }) => {
                let random = &mut self.fate.random;
                self.overlay.write(*offset, from, || random.one_in(2));
                Err(error)
            }
            (Some(Fault::Error(error) | Fault::Torn(error)), _) => Err(error),
            (_, DeviceOp::Read { .. }) => {
                let ask = self.ask(op, Asked::Read(token));
                return ask.map_err(|op| Pending { token, op, fault, due, sequence });
            }
            (_, DeviceOp::Flush | DeviceOp::Write { durable: true, .. }) => {
                self.jobs.push_back(Job::new(Some((token, op)), sequence, None));
                return Ok(());
            }
            (_, DeviceOp::Write { offset, from, .. }) => {
                self.overlay.write(*offset, from, || true);
                Ok(())
            }
            (_, DeviceOp::WriteZeroes { offset, len }) => {
                self.overlay.write(*offset, &vec![0; *len as usize], || true);
                Ok(())
            }
            (_, DeviceOp::Discard { offset, len }) => {
                // Zeros or the old bytes, as the contract has it, block by block.
                let random = &mut self.fate.random;
                self.overlay.write(*offset, &vec![0; *len as usize], || random.one_in(2));
                Ok(())
            }
        };
        self.done.push_back(DeviceCompletion { token, op, result });
        Ok(())
    }

    fn ask(&mut self, op: DeviceOp, what: Asked) -> Result<(), DeviceOp> {
        let token = self.next_token;
        self.below.submit(Token(token), op).map_err(|refused| refused.op)?;
        self.next_token += 1;
        self.asked.insert(token, what);
        Ok(())
    }

    fn take_from_below(&mut self, completion: DeviceCompletion) {
        let DeviceCompletion { token, mut op, result } = completion;
        match self.asked.remove(&token.0) {
            Some(Asked::Read(token)) => {
                if let DeviceOp::Read { offset, into } = &mut op {
                    self.overlay.patch(*offset, into);
                }
                self.done.push_back(DeviceCompletion { token, op, result });
            }
            Some(Asked::JobWrite { number, bytes }) => {
                let Some(job) = self.jobs.front_mut() else { return };
                job.outstanding -= 1;
                match result {
                    Ok(()) => job.written.push((number, bytes)),
                    Err(error) => job.failed = Some(error),
                }
            }
            Some(Asked::JobFlush) => {
                let Some(job) = self.jobs.front_mut() else { return };
                job.outstanding -= 1;
                job.failed = job.failed.or(result.err());
            }
            Some(Asked::Nothing) | None => {}
        }
    }

    /// Works on the first job. Jobs go one by one, so that two versions of a block never race to the medium.
    fn drive_job(&mut self) -> bool {
        if self.recovering && self.asked.values().any(|asked| matches!(asked, Asked::Nothing)) {
            // A write of the life before must not land on what this one restores.
            return false;
        }
        let Some(job) = self.jobs.front_mut() else { return false };
        let writes = job.writes.get_or_insert_with(|| match &job.owner {
            Some((_, DeviceOp::Write { offset, from, .. })) => {
                let block_len = self.info.block_len as usize;
                (*offset / block_len as u64..).zip(from.chunks(block_len).map(Bytes::from)).collect()
            }
            _ => self.overlay.unflushed(job.sequence).into(),
        });
        if let Some((number, bytes)) = writes.pop_front() {
            return self.push_down(number, bytes);
        }
        if job.outstanding > 0 {
            return false;
        }
        if !job.flushing && job.failed.is_none() {
            return self.flush_below();
        }
        self.finish_job();
        true
    }

    fn push_down(&mut self, number: u64, bytes: Bytes) -> bool {
        let back = match self.pool.take() {
            None => Some(bytes),
            Some(mut from) => {
                drop(from.split_off(bytes.len()));
                from.copy_from_slice(&bytes);
                let offset = number * u64::from(self.info.block_len);
                let op = DeviceOp::Write { offset, from, durable: false };
                match self.ask(op, Asked::JobWrite { number, bytes: bytes.clone() }) {
                    Ok(()) => None,
                    Err(_) => Some(bytes),
                }
            }
        };
        let Some(job) = self.jobs.front_mut() else { return false };
        match back {
            None => job.outstanding += 1,
            Some(bytes) => {
                job.writes.get_or_insert_default().push_front((number, bytes));
                return false;
            }
        }
        true
    }

    fn flush_below(&mut self) -> bool {
        let asked = self.ask(DeviceOp::Flush, Asked::JobFlush).is_ok();
        if let (true, Some(job)) = (asked, self.jobs.front_mut()) {
            job.flushing = true;
            job.outstanding += 1;
        }
        asked
    }

    fn finish_job(&mut self) {
        let Some(job) = self.jobs.pop_front() else { return };
        let result = job.failed.map_or(Ok(()), Err);
        if result.is_ok() {
            for (number, bytes) in job.written {
                self.overlay.settle(number, bytes, job.sequence);
            }
        }
        match job.owner {
            Some((token, op)) => self.done.push_back(DeviceCompletion { token, op, result }),
            None => {
                self.overlay = Overlay::new(self.info.block_len);
                self.recovering = false;
            }
        }
    }

    fn due(&mut self) -> Due {
        match (self.fate.delay(), &self.clock) {
            (Delay::Polls(most), _) => Due::Poll(self.polls + self.fate.random.below(u64::from(most) + 1)),
            (Delay::Time(most), Some(clock)) => {
                let nanoseconds = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
                let delay = self.fate.random.below(nanoseconds.saturating_add(1));
                Due::At(clock.now() + std::time::Duration::from_nanos(delay))
            }
            _ => Due::Poll(self.polls),
        }
    }
}

impl Job {
    fn new(owner: Option<(Token, DeviceOp)>, sequence: u64, writes: Option<VecDeque<(u64, Bytes)>>) -> Self {
        Self { owner, sequence, writes, written: Vec::new(), outstanding: 0, flushing: false, failed: None }
    }
}

impl<D: Device> Device for FaultyDevice<D> {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        let reading = self.asked.values().filter(|asked| matches!(asked, Asked::Read(_))).count();
        let outstanding = self.pending.len() + self.done.len() + self.jobs.len() + reading;
        if self.recovering || outstanding >= DEPTH {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        if let Err(error) = self.info.check(&op) {
            self.done.push_back(DeviceCompletion { token, op, result: Err(error) });
            return Ok(());
        }
        let fault = self.fate.decide(&op);
        let (due, sequence) = (self.due(), self.overlay.sequence());
        self.pending.push_back(Pending { token, op, fault, due, sequence });
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.polls += 1;
        while self.drive() {}
        self.done.pop_front()
    }

    fn next_due(&self) -> Option<Instant> {
        // A job that waits for the device below is woken as that device wakes its owner.
        if !self.done.is_empty() || self.jobs.front().is_some_and(|job| job.outstanding == 0) {
            return Some(Instant::from_nanoseconds(0));
        }
        let waiting = self.pending.iter().filter(|pending| pending.fault != Some(Fault::Stuck));
        let own = waiting.map(|pending| match pending.due {
            Due::Poll(_) => Instant::from_nanoseconds(0),
            Due::At(at) => at,
        });
        own.chain(self.below.next_due()).min()
    }
}
