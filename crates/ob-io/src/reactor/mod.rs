//! One thread, one io_uring, and everything that waits on them.
//!
//! ```text
//!      Handle (watch, timers, registration, operations)        Waker (other threads)
//!         │ queues entries                                       │
//!   ┌─────▼──────────────────────── Reactor::turn ──────────────▼────┐
//!   │  submit all queued  ─▶  one io_uring_enter  ─▶  reap           │
//!   └──────┬──────────────────────────┬──────────────────────────────┘
//!          ▼                          ▼
//!    Event::{Ready, Timer, Woken}   completions, each in its own device's queue (Device::poll)
//! ```
//!
//! Everything is sized at start-up: a turn allocates nothing (the caller's `Vec` of events grows to at most
//! [`Config::events_max`] once).

mod operations;
mod ring;
mod watches;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};
use ob_core::{Clock, DeviceCompletion, DeviceOp, Instant, Refused, RefusedReason, Token};
use ob_memory::ArenaSpan;
use rustix::event::PollFlags;

pub(crate) use operations::DeviceFile;
use operations::{Added, Operations};
use ring::{Entered, Ring};
pub use watches::{Interest, Readiness, WatchId};
use watches::{Todo, Watches};

use crate::clock::MonotonicClock;
use crate::timers::{TimerId, Timers};
use crate::waker::Waker;

/// How long a reactor that is dropped waits for the kernel to finish or give up what is in flight.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// The sizes of a reactor. All memory is set aside at start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Entries that are queued between two enters; more are fine, they only cost an enter more.
    pub submissions_max: u32,
    /// Device operations in flight, all devices together.
    pub operations_max: u32,
    /// Watches at one time.
    pub watches_max: u32,
    /// Timers at one time.
    pub timers_max: u32,
    /// Devices at one time.
    pub devices_max: u32,
    /// Registered buffers (an arena takes one for each GiB begun).
    pub buffers_max: u16,
    /// Use what kernels after 5.15 brought, where the kernel has it. `false` is for tests of the older ways.
    pub newest_features: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            submissions_max: 256,
            operations_max: 1024,
            watches_max: 4096,
            timers_max: 4096,
            devices_max: 64,
            buffers_max: 256,
            newest_features: true,
        }
    }
}

impl Config {
    /// The most events one turn can give: a `Vec` of this capacity never grows.
    pub fn events_max(&self) -> usize {
        self.watches_max as usize + self.timers_max as usize + 1
    }
}

/// Why the reactor could not do something.
#[derive(Debug, thiserror::Error)]
pub enum ReactorError {
    /// No io_uring can be had.
    #[error(
        "cannot set up an io_uring: {0} (is it allowed? see /proc/sys/kernel/io_uring_disabled, the container's \
         seccomp profile, and `ulimit -l` on kernels before 5.12)"
    )]
    Setup(io::Error),
    /// The kernel is too old.
    #[error("this kernel's io_uring lacks {0}; Linux 5.15 or newer is needed")]
    Unsupported(&'static str),
    /// A table is full; its size is in [`Config`].
    #[error("the reactor has no room for another {0}")]
    Full(&'static str),
    /// The kernel would not register memory. Everything works without, a little slower.
    #[error("cannot register memory with the kernel: {0} (raise `ulimit -l`, or grant CAP_IPC_LOCK)")]
    Register(io::Error),
    /// The reactor was dropped.
    #[error("the reactor has shut down")]
    Gone,
}

/// How long a turn may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Looks, and never sleeps. No system call when there is nothing to submit and nothing happened.
    Poll,
    /// Sleeps until something happens, or until the given instant or the next timer. May return early, with
    /// nothing.
    Until(Option<Instant>),
}

/// What happened. (Finished device operations are not here: ask the devices.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A watched descriptor may be ready.
    ///
    /// Told when something *changes* (and once at the beginning if it already is): go on until the descriptor
    /// would block, or this was the last you heard of it.
    Ready {
        /// Which watch.
        watch: WatchId,
        /// For what.
        readiness: Readiness,
    },
    /// A timer is due. It is gone.
    Timer(TimerId),
    /// Somebody called [`Waker::wake`].
    Woken,
}

/// The reactor of one thread. Owned by the thread's main loop; everything else holds a [`Handle`].
///
/// Dropping it cancels what is in flight and waits for the kernel to let go of the memory; devices then refuse
/// operations as gone.
pub struct Reactor {
    core: Rc<RefCell<Core>>,
}

/// A cheap reference to a [`Reactor`], for what runs on its thread.
#[derive(Clone)]
pub struct Handle {
    core: Rc<RefCell<Core>>,
}

impl Reactor {
    /// Sets up a reactor on this thread.
    pub fn new(config: &Config) -> Result<Self, ReactorError> {
        Ok(Self { core: Rc::new(RefCell::new(Core::new(config)?)) })
    }

    /// A handle for devices, sockets, and whoever else runs on this thread.
    pub fn handle(&self) -> Handle {
        Handle { core: Rc::clone(&self.core) }
    }

    /// Submits what is queued, waits as told, and collects what happened. Returns how many things did: events
    /// that were added to `events`, and device operations that finished.
    pub fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) -> usize {
        self.core.borrow_mut().turn(wait, events)
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.core.borrow_mut().shut_down();
    }
}

impl Handle {
    /// The time now, as timers see it.
    pub fn now(&self) -> Instant {
        MonotonicClock.now()
    }

    /// Watches a descriptor. Keep it open until [`Handle::unwatch`]: the kernel holds on to the open file (a
    /// closed socket says no goodbye while it is watched), and re-arms by number.
    pub fn watch(&self, fd: impl AsFd, interest: Interest) -> Result<WatchId, ReactorError> {
        let mut core = self.core.borrow_mut();
        core.check_open()?;
        let id = core.watches.add(fd.as_fd().as_raw_fd(), interest).ok_or(ReactorError::Full("watch"))?;
        core.queue(Queued::Arm(id.slot));
        Ok(id)
    }

    /// Ends a watch. No event of it follows, also none that was already on its way. The kernel lets go of the
    /// file in the next turn.
    pub fn unwatch(&self, watch: WatchId) {
        let mut core = self.core.borrow_mut();
        if core.watches.remove(watch) == Todo::Cancel {
            core.queue(Queued::Cancel(watch_data(watch)));
        }
    }

    /// Sets a timer: [`Event::Timer`] comes out of the first turn at or after `at`.
    pub fn set_timer(&self, at: Instant) -> Result<TimerId, ReactorError> {
        let mut core = self.core.borrow_mut();
        core.check_open()?;
        core.timers.set(at).ok_or(ReactorError::Full("timer"))
    }

    /// Takes a timer back; `false` when it has fired already.
    pub fn cancel_timer(&self, timer: TimerId) -> bool {
        self.core.borrow_mut().timers.cancel(timer)
    }

    /// When the next timer is due.
    pub fn next_timer(&self) -> Option<Instant> {
        self.core.borrow().timers.next()
    }

    /// Registers an arena with the kernel: operations on its slices then skip looking up and pinning its pages.
    ///
    /// Unregister it before the memory goes; until then its pages stay pinned, and an arena that is later put at
    /// the same addresses must be registered (which replaces this one) before its slices are used.
    pub fn register_arena(&self, span: ArenaSpan) -> Result<(), ReactorError> {
        let mut core = self.core.borrow_mut();
        core.check_open()?;
        core.ring.register_arena(span)
    }

    /// Undoes [`Handle::register_arena`]; safe with operations in flight.
    pub fn unregister_arena(&self, span: ArenaSpan) {
        self.core.borrow_mut().ring.unregister_arena(span);
    }

    /// A waker for other threads.
    pub fn waker(&self) -> Waker {
        self.core.borrow().waker.clone()
    }

    /// How many device operations are with the kernel.
    pub fn operations_in_flight(&self) -> usize {
        self.core.borrow().operations.in_flight()
    }

    pub(crate) fn add_device(&self, device: DeviceFile) -> Result<u32, ReactorError> {
        let mut core = self.core.borrow_mut();
        core.check_open()?;
        let Core { operations, ring, .. } = &mut *core;
        operations.add_device(ring, device).map_err(|_| ReactorError::Full("device"))
    }

    pub(crate) fn remove_device(&self, device: u32) {
        let mut core = self.core.borrow_mut();
        let Core { operations, ring, .. } = &mut *core;
        operations.orphan_device(ring, device);
    }

    pub(crate) fn resize_device(&self, device: u32, len: u64) -> std::io::Result<(OwnedFd, u64)> {
        self.core.borrow_mut().operations.resize_device(device, len)
    }

    pub(crate) fn device_resized(&self, device: u32, len: u64, is_flush_failed: bool) {
        self.core.borrow_mut().operations.device_resized(device, len, is_flush_failed);
    }

    pub(crate) fn submit(&self, device: u32, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        let mut core = self.core.borrow_mut();
        if !core.open {
            return Err(Refused { op, reason: RefusedReason::Gone });
        }
        match core.operations.add(device, token, op)? {
            Added::Submit(slot) => core.queue(Queued::Operation(slot)),
            Added::Waits => {}
            Added::Done => core.finished_early += 1,
        }
        Ok(())
    }

    pub(crate) fn next_completion(&self, device: u32) -> Option<DeviceCompletion> {
        self.core.borrow_mut().operations.next_completion(device)
    }
}

/// What an entry's completion is about, in the high bits of its user data.
const KIND_SHIFT: u32 = 60;
const KIND_IGNORED: u64 = 0;
const KIND_WAKER: u64 = 1;
const KIND_WATCH: u64 = 2;
const KIND_OPERATION: u64 = 3;

/// Names a watch to the kernel. The generation keeps a late cancel of one watch from hitting the next in its slot.
fn watch_data(watch: WatchId) -> u64 {
    KIND_WATCH << KIND_SHIFT | u64::from(watch.generation & 0x0fff_ffff) << 32 | u64::from(watch.slot)
}

fn operation_data(slot: u32) -> u64 {
    KIND_OPERATION << KIND_SHIFT | u64::from(slot)
}

/// An entry that is to be made and pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    Operation(u32),
    Arm(u32),
    Waker,
    Cancel(u64),
}

struct Core {
    ring: Ring,
    operations: Operations,
    watches: Watches,
    timers: Timers,
    waker: Waker,
    waker_armed: bool,
    /// What did not fit the submission queue, in order.
    deferred: VecDeque<Queued>,
    /// Operations that were complete when they were submitted: they keep the next turn from sleeping.
    finished_early: usize,
    /// The most completions one turn reaps, so that timers and events get their turn too.
    reap_max: usize,
    open: bool,
}

impl Core {
    fn new(config: &Config) -> Result<Self, ReactorError> {
        let waker = Waker::new().map_err(|errno| ReactorError::Setup(errno.into()))?;
        let deferred = config.operations_max + 2 * config.watches_max + 1;
        let mut core = Self {
            ring: Ring::new(config)?,
            operations: Operations::new(config.operations_max, config.devices_max),
            watches: Watches::new(config.watches_max),
            timers: Timers::new(config.timers_max),
            waker,
            waker_armed: false,
            deferred: VecDeque::with_capacity(deferred as usize),
            finished_early: 0,
            reap_max: (config.operations_max + config.watches_max) as usize,
            open: true,
        };
        core.queue(Queued::Waker);
        Ok(core)
    }

    fn check_open(&self) -> Result<(), ReactorError> {
        if self.open { Ok(()) } else { Err(ReactorError::Gone) }
    }

    fn turn(&mut self, wait: Wait, events: &mut Vec<Event>) -> usize {
        let events_before = events.len();
        self.push_deferred();
        self.enter(wait);
        let mut happened = std::mem::take(&mut self.finished_early);
        if self.waker.take_notice() {
            events.push(Event::Woken);
        }
        for _ in 0..self.reap_max {
            let Some(completion) = self.ring.next_completion() else { break };
            happened += self.dispatch(&completion);
        }
        if self.timers.next().is_some() {
            let now = MonotonicClock.now();
            while let Some(timer) = self.timers.pop_due(now) {
                events.push(Event::Timer(timer));
            }
        }
        while let Some((watch, readiness)) = self.watches.next_ready() {
            events.push(Event::Ready { watch, readiness });
        }
        happened + events.len() - events_before
    }

    /// The turn's one system call, or none.
    fn enter(&mut self, wait: Wait) {
        if let Wait::Until(until) = wait
            && self.may_sleep()
        {
            let until = match (until, self.timers.next()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let timeout = until.map(|until| until - MonotonicClock.now());
            if timeout != Some(Duration::ZERO) && self.waker.prepare_sleep() {
                self.ring.enter(true, timeout);
                return;
            }
        }
        if self.ring.needs_enter() {
            self.ring.enter(false, None);
        }
    }

    /// Whether nothing is waiting to be told.
    fn may_sleep(&mut self) -> bool {
        self.finished_early == 0
            && self.deferred.is_empty()
            && !self.watches.has_ready()
            && !self.ring.has_completions()
    }

    /// Handles one completion; how many device operations finished by it.
    fn dispatch(&mut self, completion: &cqueue::Entry) -> usize {
        let (data, result) = (completion.user_data(), completion.result());
        let more = cqueue::more(completion.flags());
        let slot = data as u32;
        match data >> KIND_SHIFT {
            KIND_WAKER => {
                // The notice itself is in the waker's state; the eventfd only got us out of sleep.
                if !more {
                    self.waker_armed = false;
                    self.waker.drain();
                    if self.open {
                        self.queue(Queued::Waker);
                    }
                }
                0
            }
            KIND_WATCH => {
                if self.watches.complete(slot, result, more) == Todo::Arm && self.open {
                    self.queue(Queued::Arm(slot));
                }
                0
            }
            KIND_OPERATION => self.complete(slot, result),
            _ => 0,
        }
    }

    /// The kernel's answer for a device operation; how many finished by it.
    fn complete(&mut self, slot: u32, result: i32) -> usize {
        let mut step = self.operations.complete(&mut self.ring, slot, result);
        let mut finished = step.finished;
        while let Some(slot) = step.submit {
            if self.open {
                self.queue(Queued::Operation(slot));
                break;
            }
            // Shutting down: what is left to do counts as cancelled.
            step = self.operations.complete(&mut self.ring, slot, -libc::ECANCELED);
            finished += step.finished;
        }
        finished
    }

    /// Pushes an entry, or keeps it for when there is room.
    fn queue(&mut self, queued: Queued) {
        if !self.deferred.is_empty() || !self.push(queued) {
            self.deferred.push_back(queued);
        }
    }

    fn push_deferred(&mut self) {
        while let Some(queued) = self.deferred.front().copied() {
            if !self.push(queued) {
                return;
            }
            self.deferred.pop_front();
        }
    }

    /// `false` when the submission queue has no room.
    fn push(&mut self, queued: Queued) -> bool {
        let entry = match queued {
            Queued::Operation(slot) => {
                let entry = self.operations.entry(&self.ring, slot);
                entry.map(|entry| entry.user_data(operation_data(slot)))
            }
            Queued::Arm(slot) => self.watches.to_arm(slot).map(|(watch, fd, flags)| {
                opcode::PollAdd::new(Fd(fd), flags).multi(true).build().user_data(watch_data(watch))
            }),
            Queued::Waker => Some(self.waker_entry()),
            Queued::Cancel(target) => {
                Some(opcode::AsyncCancel::new(target).build().user_data(KIND_IGNORED << KIND_SHIFT))
            }
        };
        // Nothing to push any more: the watch was ended before it was armed.
        let Some(entry) = entry else { return true };
        // SAFETY: polls and cancels name no memory. A device operation names a slice that its slot owns; slots
        // keep operations until the completion with their number was dispatched, survive the device and every
        // handle, and are leaked if the kernel does not let go at shutdown. Zeros are only read, and live as
        // long.
        let pushed = unsafe { self.ring.push(&entry) };
        if pushed {
            match queued {
                Queued::Arm(slot) => self.watches.armed(slot),
                Queued::Waker => self.waker_armed = true,
                Queued::Operation(_) | Queued::Cancel(_) => {}
            }
        }
        pushed
    }

    fn waker_entry(&self) -> squeue::Entry {
        let flags = u32::from(PollFlags::IN.bits());
        let entry = opcode::PollAdd::new(Fd(self.waker.bell().as_raw_fd()), flags).multi(true).build();
        entry.user_data(KIND_WAKER << KIND_SHIFT)
    }

    /// Gets everything back from the kernel, or leaks it.
    fn shut_down(&mut self) {
        self.open = false;
        self.push_deferred();
        let watches = self.watches.held().map(watch_data);
        let operations = self.operations.busy().map(operation_data);
        let targets: Vec<u64> = watches.chain(operations).chain([KIND_WAKER << KIND_SHIFT]).collect();
        for target in targets {
            self.queue(Queued::Cancel(target));
        }
        let deadline = MonotonicClock.now() + SHUTDOWN_MAX;
        loop {
            self.push_deferred();
            while let Some(completion) = self.ring.next_completion() {
                self.dispatch(&completion);
            }
            let held =
                self.operations.in_flight() + self.watches.with_kernel() + usize::from(self.waker_armed);
            let left = deadline - MonotonicClock.now();
            if held == 0 || left.is_zero() {
                break;
            }
            if self.ring.enter(true, Some(left)) == Entered::ReapFirst && !self.ring.has_completions() {
                break;
            }
        }
        if self.operations.in_flight() > 0 {
            tracing::error!(
                count = self.operations.in_flight(),
                "leaking what the kernel does not give back"
            );
            self.operations.leak();
        }
        self.operations.let_go(&mut self.ring);
    }
}
