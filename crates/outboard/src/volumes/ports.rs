//! Ports of volumes after the first: each has a thread with a reactor, a link, a target and an engine of its own.
//!
//! ```text
//!   card's reactor: first port ── shown disks ──▶ Together ──▶ thread volumes-2: port, link-2.sock ══▶ the same host
//!                                                  │  gate     thread volumes-3: …
//!                                                  └── which all of them look at before they answer
//! ```
//!
//! What administrators ask, and which disks there are, goes by the first port: the others show what that has shown, when their host is the
//! same, and tell their host of no command before.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ob_core::{Clock, GateId, Incarnation};
use ob_io::{Config as ReactorConfig, Event, MonotonicClock, Reactor, Waker};
use ob_link::{CardLink, CardLoop, CardService, Turn};
use ob_split::card::SharedGate;
use ob_split::wire::SPLIT_SERVICE;

use super::VolumesError;
use super::card::{PortFacts, PortGroup, VolumesPort, WATCHES_MAX};
use super::disk::ShownDisks;
use crate::config::CardConfig;
use crate::halves::{ServiceEndpoint, explain_listen, link_config};
use crate::router::{Router, Services};

/// How long a thread that ends waits for what it has taken.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);
/// How old the numbers of a port may be.
const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// What the ports of a card have together.
#[derive(Default)]
pub(super) struct Together {
    gate: SharedGate,
    shown: Mutex<Shown>,
}

/// What the first port has shown, of which host, and how often it has.
#[derive(Default)]
struct Shown {
    version: u64,
    gate: GateId,
    disks: ShownDisks,
}

impl Together {
    pub(super) const fn gate(&self) -> &SharedGate {
        &self.gate
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first port shows the disks of the host that has this gate.
    pub(super) fn show(&self, gate: GateId, disks: &ShownDisks) {
        let mut shown = self.shown();
        *shown = Shown { version: shown.version + 1, gate, disks: disks.clone() };
    }

    /// What it has shown of that host, if it was not seen yet.
    pub(super) fn shown_by(&self, gate: GateId, seen: u64) -> Option<(u64, ShownDisks)> {
        let shown = self.shown();
        (shown.version != seen && shown.gate == gate).then(|| (shown.version, shown.disks.clone()))
    }
}

/// What a port's link serves.
struct PortServices(PortGroup);

impl Services for PortServices {
    const DIRECTORY: &'static [(u32, &'static str)] = &[(SPLIT_SERVICE, "split")];

    fn service(&self, _: usize) -> &dyn CardService {
        &self.0
    }

    fn service_mut(&mut self, _: usize) -> &mut dyn CardService {
        &mut self.0
    }
}

type PortLoop = CardLoop<Router<PortServices>>;

/// What both sides look at.
struct Signs {
    stop: AtomicBool,
    controllers: AtomicUsize,
    /// What it told a moment ago.
    facts: Mutex<PortFacts>,
}

/// What a thread says once it serves.
struct Started {
    waker: Waker,
    signs: Arc<Signs>,
    endpoint: ServiceEndpoint,
}

/// The thread of a port.
pub(super) struct PortThread {
    started: Started,
    thread: JoinHandle<()>,
}

impl PortThread {
    /// Starts it, and waits until it serves. `main` is woken when it ends.
    pub(super) fn start(
        config: &CardConfig,
        number: usize,
        incarnation: Incarnation,
        together: &Arc<Together>,
        main: Waker,
    ) -> Result<Self, VolumesError> {
        let (tell, told) = sync_channel(1);
        let (config, together, farewell) = (config.clone(), Arc::clone(together), Farewell(main));
        let body = move || {
            let _farewell = farewell;
            match open(&config, number, incarnation, &together) {
                Err(error) => _ = tell.send(Err(error)),
                Ok((card, port, started)) => {
                    let signs = Arc::clone(&started.signs);
                    if tell.send(Ok(started)).is_ok() {
                        live(card, port, &signs);
                    }
                }
            }
        };
        // People count ports from 1 on.
        let thread = std::thread::Builder::new().name(format!("volumes-{}", number + 1)).spawn(body)?;
        let started = told.recv().unwrap_or(Err(VolumesError::PortEnded))?;
        Ok(Self { started, thread })
    }

    pub(super) fn facts(&self) -> PortFacts {
        *self.started.signs.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Controllers of hosts that are connected to it, as of a moment ago.
    pub(super) fn controllers(&self) -> usize {
        self.started.signs.controllers.load(Ordering::Relaxed)
    }

    pub(super) fn endpoint(&self) -> ServiceEndpoint {
        self.started.endpoint.clone()
    }

    /// Whether it has ended though nobody told it to.
    pub(super) fn has_failed(&self) -> bool {
        self.thread.is_finished() && !self.started.signs.stop.load(Ordering::Relaxed)
    }

    /// There is something new that is of all ports.
    pub(super) fn wake(&self) {
        self.started.waker.wake();
    }

    /// Tells it to end: it finishes what it has.
    pub(super) fn stop(&self) {
        self.started.signs.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Waits for its end.
    pub(super) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!("a thread that served volumes has failed");
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
    config: &CardConfig,
    number: usize,
    incarnation: Incarnation,
    together: &Arc<Together>,
) -> Result<(PortLoop, VolumesPort, Started), VolumesError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| VolumesError::Port(error);
    let sizes = ReactorConfig::default();
    let watches_max = sizes.watches_max + WATCHES_MAX;
    let reactor =
        Reactor::new(&ReactorConfig { watches_max, ..sizes }).map_err(|error| failed(error.into()))?;
    let handle = reactor.handle();
    let (port, group) = VolumesPort::start(config, number, incarnation, &handle, together)?;
    let config = CardConfig { link: config.link.of_port(number), ..config.clone() };
    let link = link_config(&config, incarnation).map_err(|error| failed(error.into()))?;
    let link = CardLink::new(&handle, link).map_err(|error| failed(explain_listen(&config, error).into()))?;
    let services = Router::new(PortServices(group));
    let card = CardLoop::new(reactor, link, services, config.reactor.spin.0);
    let signs = Arc::new(Signs {
        stop: AtomicBool::new(false),
        controllers: AtomicUsize::new(0),
        facts: Mutex::new(port.facts(card.link.counts())),
    });
    let started = Started { waker: handle.waker(), signs, endpoint: port.endpoint() };
    Ok((card, port, started))
}

fn live(mut card: PortLoop, mut port: VolumesPort, signs: &Signs) {
    let mut events = Vec::new();
    let mut publish_at = Some(MonotonicClock.now());
    while !signs.stop.load(Ordering::Acquire) {
        let now = MonotonicClock.now();
        if publish_at.is_some_and(|at| at <= now) {
            *signs.facts.lock().unwrap_or_else(PoisonError::into_inner) = port.facts(card.link.counts());
            signs.controllers.store(port.controllers(), Ordering::Relaxed);
            publish_at = None;
        }
        if turn(&mut card, &mut port, publish_at, &mut events) {
            publish_at.get_or_insert(MonotonicClock.now() + PUBLISH_EVERY);
        }
    }
    card.service.drain();
    let deadline = MonotonicClock.now() + DRAIN_WITHIN;
    while MonotonicClock.now() < deadline {
        let worked = turn(&mut card, &mut port, Some(deadline), &mut events);
        if !worked && port.is_idle() {
            break;
        }
    }
    card.link.shut_down(&mut card.service);
}

/// One turn of a port and its link; whether there was anything.
fn turn(
    card: &mut PortLoop,
    port: &mut VolumesPort,
    until: Option<ob_core::Instant>,
    events: &mut Vec<Event>,
) -> bool {
    let due = [port.next_due(), port.follow_due(), until].into_iter().flatten().min();
    let turn = card.turn(due, events);
    for event in events.drain(..) {
        port.handle(&event);
    }
    let now = MonotonicClock.now();
    port.follow(now);
    let worked = port.serve(now);
    if worked {
        card.worked(now);
    }
    card.follow(now);
    worked || turn == Turn::Worked
}
