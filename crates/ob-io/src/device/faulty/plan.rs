//! Which operation meets which fault. Everything follows from the seed and the order of operations.

use std::time::Duration;

use ob_core::{DeviceError, DeviceOp};

/// A small generator of pseudo-random numbers (splitmix64), so that a seed is a whole story.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `limit` - 1; 0 when there is no such number.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// True once in `n` times; never for 0.
    pub(super) fn one_in(&mut self, n: u32) -> bool {
        n != 0 && self.next().is_multiple_of(u64::from(n))
    }
}

/// The kinds of operations, for scripts that mean only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// [`DeviceOp::Read`].
    Read,
    /// [`DeviceOp::Write`].
    Write,
    /// [`DeviceOp::Flush`].
    Flush,
    /// [`DeviceOp::Discard`].
    Discard,
    /// [`DeviceOp::WriteZeroes`].
    WriteZeroes,
}

impl OpKind {
    /// The kind of an operation.
    pub fn of(op: &DeviceOp) -> Self {
        match op {
            DeviceOp::Read { .. } => Self::Read,
            DeviceOp::Write { .. } => Self::Write,
            DeviceOp::Flush => Self::Flush,
            DeviceOp::Discard { .. } => Self::Discard,
            DeviceOp::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }
}

/// What can happen to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails, and changes nothing.
    Error(DeviceError),
    /// It fails, and some of its blocks are written, some are not.
    Torn(DeviceError),
    /// It never completes (until [`super::FaultyDevice::release_stuck`], or a crash).
    Stuck,
}

/// A fault for one operation: the `nth` (from 0) of its kind, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scripted {
    /// Which kind is counted; `None` counts all operations.
    pub kind: Option<OpKind>,
    /// How many come before it.
    pub nth: u64,
    /// What happens to it.
    pub fault: Fault,
}

/// How long operations take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// As long as the device below takes.
    None,
    /// Up to so many calls of `poll`, which also mixes up their order.
    Polls(u32),
    /// Up to so long, by the clock given to [`super::FaultyDevice::with_clock`].
    Time(Duration),
}

/// Everything that goes wrong with a device.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Where all chance comes from.
    pub seed: u64,
    /// One operation in so many fails with an I/O error; 0: none.
    pub error_one_in: u32,
    /// One write in so many fails half done; 0: none.
    pub torn_one_in: u32,
    /// One operation in so many never completes; 0: none.
    pub stuck_one_in: u32,
    /// How long the others take.
    pub delay: Delay,
    /// Faults for certain operations, before any chance.
    pub script: Vec<Scripted>,
}

impl FaultPlan {
    /// A plan without faults, to be filled in.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            error_one_in: 0,
            torn_one_in: 0,
            stuck_one_in: 0,
            delay: Delay::None,
            script: Vec::new(),
        }
    }
}

/// A plan in the course of being carried out.
pub(super) struct Fate {
    plan: FaultPlan,
    pub(super) random: Random,
    total: u64,
    of_kind: [u64; 5],
}

impl Fate {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self { random: Random::new(plan.seed), plan, total: 0, of_kind: [0; 5] }
    }

    pub(super) fn delay(&self) -> Delay {
        self.plan.delay
    }

    /// Counts an operation in and says what happens to it.
    pub(super) fn decide(&mut self, op: &DeviceOp) -> Option<Fault> {
        let kind = OpKind::of(op);
        let (nth, nth_of_kind) = (self.total, self.of_kind[kind as usize]);
        self.total += 1;
        self.of_kind[kind as usize] += 1;
        let meant = |entry: &&Scripted| match entry.kind {
            None => entry.nth == nth,
            Some(wanted) => wanted == kind && entry.nth == nth_of_kind,
        };
        if let Some(entry) = self.plan.script.iter().find(meant) {
            return Some(entry.fault);
        }
        // Each is drawn whether or not an earlier one hits, so that one knob does not change what another does.
        let stuck = self.random.one_in(self.plan.stuck_one_in);
        let error = self.random.one_in(self.plan.error_one_in);
        let torn = self.random.one_in(self.plan.torn_one_in) && kind == OpKind::Write;
        match (stuck, error, torn) {
            (true, _, _) => Some(Fault::Stuck),
            (_, _, true) => Some(Fault::Torn(DeviceError::Io)),
            (_, true, _) => Some(Fault::Error(DeviceError::Io)),
            _ => None,
        }
    }
}
