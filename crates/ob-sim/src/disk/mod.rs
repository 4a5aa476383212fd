//! A disk with a memory that forgets: writes are seen at once, but survive a loss of power only when flushed.
//!
//! ```text
//!   submit ──▶ each block at its own moment ──▶ versions (seen by reads, volatile)
//!                                                  │ flush done: those whose write was polled before the
//!                                                  │ flush was submitted;  durable write done: its own
//!                                                  ▼
//!                                               image (survives)
//!   lose_power: in-flight writes stop between blocks; of each block any version since the image, or none
//! ```
//!
//! A write counts as complete when its completion was polled: only then can the caller know.

mod media;
mod plan;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ob_core::{
    Clock, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Instant, Refused, RefusedReason,
    Token,
};

use crate::{Rng, Trace};
pub use media::DiskImage;
use media::{Media, Version};
pub use plan::{Discarding, DiskPlan, DiskStats};

/// Number of an operation, growing with each submission.
type Number = u64;

/// A block device in virtual time, with faults.
pub struct SimDisk {
    plan: DiskPlan,
    trace: Trace,
    rng: Rng,
    media: Media,
    /// Blocks that cannot be read before they are written anew, by their numbers.
    unreadable: BTreeSet<u64>,
    flights: BTreeMap<Number, Flight>,
    actions: BTreeMap<(Instant, u64), Action>,
    completions: BTreeSet<(Instant, u64)>,
    done: VecDeque<(Number, DeviceCompletion)>,
    planned: u64,
    submitted: Number,
    stats: DiskStats,
}

struct Flight {
    token: Token,
    op: DeviceOp,
    result: Result<(), DeviceError>,
    /// For a flush: the newest version of each block that it must make durable.
    covers: Vec<(u64, Version)>,
}

enum Action {
    /// One block of an operation, by its place in the operation.
    Block {
        number: Number,
        index: u64,
    },
    Complete(Number),
}

impl SimDisk {
    /// An empty disk.
    pub fn new(plan: DiskPlan, rng: Rng, trace: Trace) -> Self {
        let image = DiskImage::new(plan.block_len, plan.capacity);
        Self::from_image(image, plan, rng, trace)
    }

    /// The disk that an earlier life left behind.
    pub fn from_image(image: DiskImage, plan: DiskPlan, rng: Rng, trace: Trace) -> Self {
        Self {
            plan,
            trace,
            rng,
            media: Media::new(image),
            unreadable: BTreeSet::new(),
            flights: BTreeMap::new(),
            actions: BTreeMap::new(),
            completions: BTreeSet::new(),
            done: VecDeque::new(),
            planned: 0,
            submitted: 0,
            stats: DiskStats::default(),
        }
    }

    /// What would survive if power were lost now and every unflushed block with it.
    pub fn image(&self) -> DiskImage {
        self.media.image.clone()
    }

    /// Power is lost: writes in flight stop between two blocks, and each block that is not durable keeps any of
    /// the bytes it had since, or none of them. Then the disk is there again, empty-handed.
    pub fn lose_power(&mut self) {
        self.catch_up();
        self.forget_operations();
        let (lost, kept) = self.media.lose_power(&mut self.rng);
        self.stats.blocks_lost += lost;
        self.stats.blocks_kept += kept;
        self.trace.note("power lost", &[lost, kept]);
    }

    /// The process that used the disk died, and the disk did not: writes in flight stop between two blocks or go
    /// on to their end; what was written stays in the disk's memory. No completion comes any more.
    pub fn lose_process(&mut self) {
        self.catch_up();
        let actions = std::mem::take(&mut self.actions);
        for action in actions.into_values() {
            if let Action::Block { number, index } = action
                && self.rng.one_in(2)
            {
                self.touch_block(number, index);
            }
        }
        self.forget_operations();
        self.media.caller_lost();
        self.trace.note("process lost", &[]);
    }

    fn forget_operations(&mut self) {
        for flight in self.flights.values() {
            self.stats.writes_cut += u64::from(matches!(flight.op, DeviceOp::Write { .. }));
        }
        self.flights.clear();
        self.actions.clear();
        self.completions.clear();
        self.done.clear();
    }

    /// Flips one bit in each of so many blocks at rest, silently.
    pub fn rot(&mut self, blocks: usize) {
        self.catch_up();
        for _ in 0..blocks {
            if let Some(block) = self.media.flip_a_bit(&mut self.rng) {
                self.stats.bits_flipped += 1;
                self.trace.note("bit flipped", &[block]);
            }
        }
    }

    /// Flips one bit at rest, silently, in the first block in which `pick` names a byte: it is given blocks by their numbers, from a random
    /// one on, as they are on the medium. Those that have something newer in the disk's memory are left out. Whether there was one.
    pub fn rot_where(&mut self, mut pick: impl FnMut(u64, &[u8]) -> Option<usize>) -> bool {
        self.catch_up();
        let found = self.media.flip_where(&mut self.rng, &mut pick);
        if let Some(block) = found {
            self.stats.bits_flipped += 1;
            self.trace.note("bit flipped", &[block]);
        }
        found.is_some()
    }

    /// From now on the first block that `pick` wants, as [`SimDisk::rot_where`] gives them, cannot be read, until it is written anew; its
    /// number, if there was one.
    pub fn break_where(&mut self, mut pick: impl FnMut(u64, &[u8]) -> bool) -> Option<u64> {
        self.catch_up();
        let mut pick = |number: u64, block: &[u8]| pick(number, block).then_some(0);
        let (block, _) = self.media.find_where(&mut self.rng, &mut pick)?;
        self.unreadable.insert(block);
        self.trace.note("block unreadable", &[block]);
        Some(block)
    }

    /// A block can be read again, as it was; whether it could not.
    pub fn heal_block(&mut self, block: u64) -> bool {
        self.unreadable.remove(&block)
    }

    /// Lets operations that got stuck complete.
    pub fn unstick(&mut self) {
        let stuck: Vec<Number> =
            self.flights.keys().copied().filter(|number| !self.is_due(*number)).collect();
        for number in stuck {
            // Its work may not be done yet.
            let is_of_it =
                |action: &Action| matches!(action, Action::Block { number: of, .. } if *of == number);
            let blocks = self.actions.iter().filter(|(_, action)| is_of_it(action)).map(|((at, _), _)| *at);
            let at = blocks.max().unwrap_or_default().max(self.now());
            self.plan_completion(number, at);
        }
    }

    fn is_due(&self, number: Number) -> bool {
        self.actions.values().any(|action| matches!(action, Action::Complete(due) if *due == number))
    }

    /// Changes how the disk behaves from now on. Size and block stay.
    pub fn change_plan(&mut self, change: impl FnOnce(&mut DiskPlan)) {
        let (capacity, block_len) = (self.plan.capacity, self.plan.block_len);
        change(&mut self.plan);
        (self.plan.capacity, self.plan.block_len) = (capacity, block_len);
    }

    /// What happened so far.
    pub fn stats(&self) -> DiskStats {
        self.stats
    }

    fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    fn catch_up(&mut self) {
        let now = self.now();
        while let Some(entry) = self.actions.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove_entry() {
                (_, Action::Block { number, index }) => self.touch_block(number, index),
                (key, Action::Complete(number)) => {
                    self.completions.remove(&key);
                    self.complete(number);
                }
            }
        }
    }

    fn plan_action(&mut self, at: Instant, action: Action) -> (Instant, u64) {
        let key = (at, self.planned);
        self.planned += 1;
        self.actions.insert(key, action);
        key
    }

    fn plan_completion(&mut self, number: Number, at: Instant) {
        let key = self.plan_action(at, Action::Complete(number));
        self.completions.insert(key);
    }

    fn refuses(&mut self) -> bool {
        let in_flight = self.flights.len() + self.done.len();
        in_flight >= self.plan.depth || (in_flight > 0 && self.rng.chance(self.plan.busy))
    }

    fn start(&mut self, token: Token, op: DeviceOp) {
        let number = self.submitted;
        self.submitted += 1;
        let (offset, len) = op.extent().unwrap_or((0, 0));
        self.trace.note("disk submit", &[token.0, kind(&op), offset, len]);
        let checked = self.info().check(&op);
        let result = checked.and_then(|()| self.plan_fault(&op));
        let legal = checked.is_ok();
        let covers = if matches!(op, DeviceOp::Flush) { self.media.completed() } else { Vec::new() };
        let refused = !legal || result == Err(DeviceError::NoSpace);
        self.flights.insert(number, Flight { token, op, result, covers });
        let due = self.now() + self.latency();
        if !refused {
            self.plan_blocks(number, len / u64::from(self.plan.block_len), due, result.is_err());
        }
        if legal && self.rng.chance(self.plan.stuck) {
            self.stats.stuck += 1;
            self.trace.note("disk stuck", &[token.0]);
        } else {
            self.plan_completion(number, due);
        }
    }

    fn latency(&mut self) -> std::time::Duration {
        let latency = self.rng.skewed(self.plan.latency.clone());
        if !self.rng.chance(self.plan.slow) {
            return latency;
        }
        self.stats.slow += 1;
        latency * self.plan.slow_factor
    }

    /// Each block has its moment between submission and completion; of an operation that fails, some have none.
    fn plan_blocks(&mut self, number: Number, blocks: u64, due: Instant, fails: bool) {
        let now = self.now();
        for index in 0..blocks {
            if fails && self.rng.one_in(2) {
                continue;
            }
            let at = now + self.rng.duration(std::time::Duration::ZERO..due.since(now));
            self.plan_action(at, Action::Block { number, index });
        }
    }

    fn plan_fault(&mut self, op: &DeviceOp) -> Result<(), DeviceError> {
        if matches!(op, DeviceOp::Discard { .. }) && self.plan.discard == Discarding::Unsupported {
            return Err(DeviceError::Unsupported);
        }
        let (likely, count) = match op {
            DeviceOp::Read { .. } => (self.plan.read_error, &mut self.stats.read_errors),
            DeviceOp::Flush => (self.plan.flush_error, &mut self.stats.flush_errors),
            DeviceOp::Write { .. } | DeviceOp::WriteZeroes { .. } | DeviceOp::Discard { .. } => {
                (self.plan.write_error, &mut self.stats.write_errors)
            }
        };
        let touches = |bad: &std::ops::Range<u64>| {
            op.extent().is_some_and(|(offset, len)| offset < bad.end && bad.start < offset + len)
        };
        let is_read = matches!(op, DeviceOp::Read { .. });
        let block_len = u64::from(self.plan.block_len);
        let blocks = op.extent().map(|(offset, len)| offset / block_len..(offset + len).div_ceil(block_len));
        let is_unreadable = blocks.is_some_and(|blocks| self.unreadable.range(blocks).next().is_some());
        let bad = if is_read { &self.plan.bad_to_read } else { &self.plan.bad_to_write };
        if bad.iter().any(touches) || (is_read && is_unreadable) || self.rng.chance(likely) {
            *count += 1;
            return Err(DeviceError::Io);
        }
        if let (DeviceOp::Write { offset, from, .. }, Some(limit)) = (op, self.plan.space) {
            let wanted = self.media.blocks_missing(*offset, from.len() as u64);
            if self.media.blocks_held() + wanted > limit / u64::from(self.plan.block_len) {
                self.stats.no_space += 1;
                return Err(DeviceError::NoSpace);
            }
        }
        Ok(())
    }

    /// Does to one block what its operation says.
    fn touch_block(&mut self, number: Number, index: u64) {
        let block_len = self.plan.block_len as usize;
        let Some(flight) = self.flights.get_mut(&number) else { return };
        let Some((offset, _)) = flight.op.extent() else { return };
        let mut block = offset / block_len as u64 + index;
        let range = index as usize * block_len..(index as usize + 1) * block_len;
        let bytes = match &mut flight.op {
            DeviceOp::Read { into, .. } => {
                self.media.read(block, &mut into[range]);
                return;
            }
            DeviceOp::Write { from, .. } => from[range].to_vec(),
            DeviceOp::WriteZeroes { .. } => vec![0; block_len],
            DeviceOp::Discard { .. } => match self.plan.discard {
                Discarding::Zeroes => vec![0; block_len],
                Discarding::Either if self.rng.one_in(2) => vec![0; block_len],
                Discarding::Either | Discarding::Unsupported => return,
            },
            DeviceOp::Flush => return,
        };
        if self.rng.chance(self.plan.misdirected) {
            block = self.rng.below(self.plan.capacity / block_len as u64);
            self.stats.misdirected += 1;
            self.trace.note("write misdirected", &[block]);
        }
        self.unreadable.remove(&block);
        self.media.write(block, bytes, number);
    }

    fn complete(&mut self, number: Number) {
        let Some(flight) = self.flights.remove(&number) else { return };
        let Flight { token, op, result, covers } = flight;
        match op {
            DeviceOp::Flush if self.rng.chance(self.plan.flush_lies) => self.stats.flush_lies += 1,
            DeviceOp::Flush => self.flush(&covers, result.is_err()),
            DeviceOp::Write { durable, .. } if result.is_ok() && (durable || !self.plan.volatile_cache) => {
                self.media.make_durable(number);
            }
            DeviceOp::WriteZeroes { .. } | DeviceOp::Discard { .. } if !self.plan.volatile_cache => {
                self.media.make_durable(number);
            }
            _ => {}
        }
        self.done.push_back((number, DeviceCompletion { token, op, result }));
    }

    /// A flush that fails may have done a part of its work.
    fn flush(&mut self, covers: &[(u64, Version)], fails: bool) {
        for (block, version) in covers {
            if !fails || self.rng.one_in(2) {
                self.media.settle(*block, *version);
            }
        }
    }
}

fn kind(op: &DeviceOp) -> u64 {
    match op {
        DeviceOp::Read { .. } => 0,
        DeviceOp::Write { durable, .. } => 1 + u64::from(*durable),
        DeviceOp::Flush => 3,
        DeviceOp::Discard { .. } => 4,
        DeviceOp::WriteZeroes { .. } => 5,
    }
}

impl Device for SimDisk {
    fn info(&self) -> DeviceInfo {
        let DiskPlan { capacity, block_len, volatile_cache, .. } = self.plan;
        DeviceInfo { capacity, block_len, volatile_cache, discard_unit: block_len }
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        self.catch_up();
        if self.refuses() {
            self.stats.busy += 1;
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.start(token, op);
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.catch_up();
        let (number, completion) = self.done.pop_front()?;
        self.media.completed_write(number, completion.result.is_ok());
        self.trace.note("disk done", &[completion.token.0, u64::from(completion.result.is_err())]);
        Some(completion)
    }

    fn next_due(&self) -> Option<Instant> {
        if self.done.is_empty() { self.completions.first().map(|(at, _)| *at) } else { Some(self.now()) }
    }
}

#[cfg(test)]
mod tests;
