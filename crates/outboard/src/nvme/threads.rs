//! Reactor threads besides the card's own, each with the subsystems that it owns.
//!
//! ```text
//!   start: spawn ─▶ Shard::start ─▶ Started ─▶ (all have) ─▶ tell_of ─▶ turn … turn ─▶ stop ─▶ drain ─▶ flush ─▶ join
//! ```
//!
//! A subsystem belongs to one thread, and subsystems that share an address to the same one: its namespaces, reservations,
//! controllers and the order of its commands then need no lock. By connection it could not be done so, since any queue of
//! a controller may reach any namespace, and a lost association's commands have to be known to the next.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ob_core::Clock;
use ob_io::{
    Config as ReactorConfig, Decision, Event, Handle, IdlePolicy, MonotonicClock, Reactor, Wait, Waker,
    available_cores,
};

use ob_programs::Workshop;
use ob_pushdown::target::Shelf;

use super::NvmeError;
use super::admin::{self, AdminOutbox};
use super::recorder::{Recorder, RecorderJobs};
use super::serving::AnnouncedSubsystem;
use super::shard::{Planned, Shard, ShardFacts, Tools};
use crate::config::CardConfig;
use crate::files::flush_device;

/// How long a thread that stops waits for what it has taken.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// How old its numbers may be. They are looked at by others, so there is a lock around them, which is not taken more often
/// than this.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// What a thread says once it can serve.
struct Started {
    waker: Waker,
    outbox: AdminOutbox,
    subsystems: Vec<AnnouncedSubsystem>,
}

/// What both sides look at.
#[derive(Default)]
struct Signs {
    stop: AtomicBool,
    /// What it told a moment ago.
    facts: Mutex<ShardFacts>,
}

/// One thread.
pub(super) struct ShardThread {
    signs: Arc<Signs>,
    waker: Waker,
    tell: SyncSender<Vec<AnnouncedSubsystem>>,
    thread: JoinHandle<()>,
}

impl ShardThread {
    /// Starts a thread, and waits until it could serve. It does when [`ShardThread::tell_of`] has told it of the others.
    pub(super) fn start(
        number: usize,
        threads: usize,
        config: &CardConfig,
        (jobs, programs): (RecorderJobs, Option<(Shelf, Workshop)>),
        planned: Vec<Planned>,
        main: &Handle,
    ) -> Result<(Self, AdminOutbox, Vec<AnnouncedSubsystem>), NvmeError> {
        let (started, starting) = sync_channel(1);
        let (tell, told) = sync_channel(1);
        let signs = Arc::new(Signs::default());
        let (own_signs, config) = (Arc::clone(&signs), config.clone());
        let farewell = Farewell(main.waker());
        let body = move || {
            let _farewell = farewell;
            match open(threads, &config, (jobs, programs), planned) {
                Err(error) => _ = started.send(Err(error)),
                Ok((reactor, shard, ready)) => {
                    if started.send(Ok(ready)).is_ok() {
                        live(reactor, shard, (&config, threads), &own_signs, &told);
                    }
                }
            }
        };
        let builder = std::thread::Builder::new().name(format!("nvme-{number}"));
        let thread = builder.spawn(body).map_err(|_| NvmeError::Thread)?;
        let Started { waker, outbox, subsystems } = starting.recv().unwrap_or(Err(NvmeError::Thread))?;
        Ok((Self { signs, waker, tell, thread }, outbox, subsystems))
    }

    /// Tells it of all subsystems, whereupon it serves.
    pub(super) fn tell_of(&self, all: Vec<AnnouncedSubsystem>) -> Result<(), NvmeError> {
        self.tell.send(all).map_err(|_| NvmeError::Thread)
    }

    pub(super) fn facts(&self) -> ShardFacts {
        self.signs.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has ended though nobody told it to.
    pub(super) fn has_failed(&self) -> bool {
        self.thread.is_finished() && !self.signs.stop.load(Ordering::Relaxed)
    }

    /// Tells it to end: it finishes what it has, and makes it durable.
    pub(super) fn stop(&self) {
        self.signs.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Waits for its end.
    pub(super) fn join(self) {
        drop(self.tell);
        if self.thread.join().is_err() {
            tracing::error!("a thread that served namespaces has failed");
        }
    }
}

/// Wakes the card's own thread when this one ends, in whatever way: it has to know.
struct Farewell(Waker);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.wake();
    }
}

fn open(
    threads: usize,
    config: &CardConfig,
    (jobs, programs): (RecorderJobs, Option<(Shelf, Workshop)>),
    planned: Vec<Planned>,
) -> Result<(Reactor, Shard, Started), NvmeError> {
    let reactor =
        Reactor::new(&ReactorConfig::default()).map_err(|error| NvmeError::Reactor(Box::new(error)))?;
    let handle = reactor.handle();
    let (waker, for_recorder, for_admin) = (handle.waker(), handle.waker(), handle.waker());
    let recorder = Recorder::new(jobs, move || for_recorder.wake());
    let (outbox, inbox) = admin::mailbox(move || for_admin.wake());
    let shard = Shard::start(
        Tools { config, handle: &handle, recorder, inbox, threads, programs, files: None },
        planned,
    )?;
    let subsystems = shard.subsystems();
    Ok((reactor, shard, Started { waker, outbox, subsystems }))
}

fn live(
    mut reactor: Reactor,
    mut shard: Shard,
    (config, threads): (&CardConfig, usize),
    signs: &Signs,
    told: &Receiver<Vec<AnnouncedSubsystem>>,
) {
    let Ok(all) = told.recv() else { return };
    if let Err(error) = shard.tell_of(&all) {
        tracing::error!("discovery tells of less than there is: {error}");
    }
    // All threads that there are, which may be fewer than the configuration allows; and a core is left to whoever they serve.
    let mut policy = IdlePolicy::new(config.reactor.spin.0, available_cores(), threads + 1);
    let mut events = Vec::new();
    let mut publish_at = Some(MonotonicClock.now());
    while !signs.stop.load(Ordering::Acquire) {
        let now = MonotonicClock.now();
        if publish_at.is_some_and(|at| at <= now) {
            *signs.facts.lock().unwrap_or_else(PoisonError::into_inner) = shard.facts();
            publish_at = None;
        }
        let due = [shard.next_due(), reactor.handle().next_timer(), publish_at].into_iter().flatten().min();
        let wait = match policy.decide(now, due) {
            Decision::Sleep { until } => Wait::Until(until),
            Decision::Spin => Wait::Poll,
        };
        if turn(&mut reactor, &mut shard, wait, &mut events) {
            // It may have slept.
            let now = MonotonicClock.now();
            policy.on_event(now);
            publish_at.get_or_insert(now + PUBLISH_EVERY);
        }
    }
    let deadline = MonotonicClock.now() + DRAIN_WITHIN;
    let mut worked = turn(&mut reactor, &mut shard, Wait::Poll, &mut events);
    while (worked || !shard.is_idle()) && MonotonicClock.now() < deadline {
        let wait = if worked { Wait::Poll } else { Wait::Until(Some(deadline)) };
        worked = turn(&mut reactor, &mut shard, wait, &mut events);
    }
    for device in shard.into_devices().iter_mut() {
        flush_device(&mut reactor, device);
    }
}

fn turn(reactor: &mut Reactor, shard: &mut Shard, wait: Wait, events: &mut Vec<Event>) -> bool {
    reactor.turn(wait, events);
    let has_events = !events.is_empty();
    for event in events.drain(..) {
        shard.handle(&event);
    }
    shard.turn(MonotonicClock.now()) || has_events
}
