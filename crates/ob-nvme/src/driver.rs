//! A [`Target`] on sockets and devices.
//!
//! ```text
//!          ┌──────────────────────────── turn ────────────────────────────────┐
//!   Net ──▶│ events ─▶ receive ─▶ Target ─▶ service ─▶ submit ─▶ poll ─▶ send │──▶ Net
//!          │                        ▲                    │         ▲  │       │
//!          └────────────────────────┼────────────────────┼─────────┼──┼───────┘
//!                                   └── rounds ──────────┼─────────┼──┘
//!                                                        ▼  Store  │
//! ```
//!
//! A service behind the target ([`ForeignService`]) has its turn in each round with the devices, so that what it asks of them
//! because of what it was told goes out in the same turn.
//!
//! One turn takes what there is, up to a bound a connection, then looks who is late, and sends the answers of the whole turn with
//! one vectored send a connection. The arithmetic of one authentication comes after that, and its answer with a second send. Who
//! calls it decides when: after events of a reactor, when [`TargetDriver::next_due`] is reached, or in the steps of a simulation.

use std::cell::RefCell;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::rc::Rc;

use ob_core::{
    Arrival, ConnectionAction, ConnectionId, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp,
    Instant, ListenerId, Net, NetListenError, Refused, RefusedReason, StreamProtocol, Streams, Token,
};
use ob_wire_nvme::Status;

use crate::target::control::{BackendId, Path, PortKey};
use crate::target::{ConnectionKey, ForeignCommand, ForeignEvent, Target};

/// Receives a connection gets in one turn; the others are not to wait for one that always has more.
const RECEIVES_A_TURN: usize = 8;
/// Rounds of operations and completions in one turn.
const ROUNDS_A_TURN: usize = 8;

/// The devices behind namespaces, by number.
pub trait Store {
    /// A backend's size, block and cache.
    fn info(&self, backend: BackendId) -> Option<DeviceInfo>;

    /// Starts an operation on a backend, or hands it back.
    fn submit(&mut self, backend: BackendId, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>>;

    /// The next finished operation.
    fn poll(&mut self) -> Option<(BackendId, DeviceCompletion)>;

    /// When the next completion is due at the earliest, if that is known and nothing else will wake the caller.
    fn next_due(&self) -> Option<Instant>;
}

/// One device, which somebody has besides: a simulation, that loses its power.
impl<D: Device> Store for Rc<RefCell<D>> {
    fn info(&self, _: BackendId) -> Option<DeviceInfo> {
        Some(self.borrow().info())
    }

    fn submit(&mut self, _: BackendId, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        self.borrow_mut().submit(token, op)
    }

    fn poll(&mut self) -> Option<(BackendId, DeviceCompletion)> {
        self.borrow_mut().poll().map(|completion| (BackendId(0), completion))
    }

    fn next_due(&self) -> Option<Instant> {
        self.borrow().next_due()
    }
}

/// A service behind the target, which answers what the target hands out: see [`Target::next_foreign`].
pub trait ForeignService {
    /// Takes some of what the target has for it, and does some of what it has to do; whether that was anything. What it leaves it
    /// is asked for again; others have their turn in between.
    fn turn(&mut self, now: Instant, target: &mut Target) -> bool;

    /// When it has something to do, if the target has nothing for it before.
    fn next_due(&self) -> Option<Instant>;
}

/// No service. What a target hands out all the same, because its configuration speaks of one, is refused.
impl ForeignService for () {
    fn turn(&mut self, _: Instant, target: &mut Target) -> bool {
        let mut did = false;
        while let Some(event) = target.next_foreign() {
            did = true;
            if let ForeignEvent::Command(ForeignCommand { key, .. }) | ForeignEvent::Ended(key) = event {
                target.foreign_done(key, Err(Status::INVALID_OPCODE.with_do_not_retry()), 0);
            }
        }
        did
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }
}

/// A service that may not be there.
impl<F: ForeignService> ForeignService for Option<F> {
    fn turn(&mut self, now: Instant, target: &mut Target) -> bool {
        match self {
            Some(service) => service.turn(now, target),
            None => ().turn(now, target),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.as_ref().and_then(F::next_due)
    }
}

/// A service that somebody else has to do with too, on the same thread: who takes its commands further.
impl<F: ForeignService> ForeignService for Rc<RefCell<F>> {
    fn turn(&mut self, now: Instant, target: &mut Target) -> bool {
        self.borrow_mut().turn(now, target)
    }

    fn next_due(&self) -> Option<Instant> {
        self.borrow().next_due()
    }
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Network events, receives, completions and sends that brought anything.
    pub events: usize,
    /// Whether there is more that can be done at once.
    pub has_more: bool,
}

/// Sockets, devices, a target, and the service behind it.
pub struct TargetDriver<N, S, F = ()> {
    streams: Streams<N, ConnectionKey>,
    store: S,
    target: Target,
    service: F,
    ports: Vec<(ListenerId, PortKey)>,
    in_store: usize,
}

impl<N: Net, S: Store> TargetDriver<N, S> {
    /// A target without a service behind it. Nothing is served before [`TargetDriver::listen`].
    pub fn new(net: N, store: S, target: Target) -> Self {
        Self::with_service(net, store, target, ())
    }
}

impl<N: Net, S: Store, F: ForeignService> TargetDriver<N, S, F> {
    /// A target whose commands for others go to this service.
    pub fn with_service(net: N, store: S, target: Target, service: F) -> Self {
        let streams = Streams::new(net, RECEIVES_A_TURN);
        Self { streams, store, target, service, ports: Vec::new(), in_store: 0 }
    }

    /// Accepts connections at an address, as a port that [`crate::target::control::Control`] knows.
    pub fn listen(&mut self, address: SocketAddr, port: PortKey) -> Result<SocketAddr, NetListenError> {
        let listener = self.streams.net_mut().listen(address)?;
        self.ports.push((listener, port));
        Ok(self.streams.net().listener_address(listener).unwrap_or(address))
    }

    /// The sockets; a reactor's events go there first.
    pub fn net_mut(&mut self) -> &mut N {
        self.streams.net_mut()
    }

    /// The devices.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The devices; a reactor's completions go there first.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The target, to administer it.
    pub fn target_mut(&mut self) -> &mut Target {
        &mut self.target
    }

    /// The service behind the target.
    pub fn service(&self) -> &F {
        &self.service
    }

    /// The same, to be changed.
    pub fn service_mut(&mut self) -> &mut F {
        &mut self.service
    }

    /// Operations that are on backends or wait for room there.
    pub fn in_store(&self) -> usize {
        self.in_store + self.target.backlog_len()
    }

    /// Gives everything up for another life of the card: the devices and the sockets.
    pub fn into_parts(self) -> (N, S, Target) {
        (self.streams.into_net(), self.store, self.target)
    }

    /// When the next turn is due, if nothing happens before; a reactor's events need one too.
    pub fn next_due(&self) -> Option<Instant> {
        if self.streams.is_readable() || self.target.can_go_on() {
            return Some(Instant::default());
        }
        [self.target.next_due(), self.store.next_due(), self.service.next_due()].into_iter().flatten().min()
    }

    /// Does what there is to do.
    pub fn turn(&mut self, now: Instant) -> Turn {
        let mut turn = Turn::default();
        while let Some(arrival) = self.streams.take_events(now, &mut self.target, &mut turn.events) {
            self.accept(now, arrival);
        }
        // After a pause hosts have taken what they had left, and there is room for more: nobody is late who has. What this gives
        // back, who sends now can have.
        self.streams.send(now, &mut self.target);
        turn.events += self.streams.receive(now, &mut self.target);
        // After a pause Keep Alives and data lie in the sockets: nobody is late who has sent them.
        if self.target.next_due().is_some_and(|due| due <= now) {
            self.target.tick(now);
        }
        self.target.pump(now);
        turn.events += self.serve_devices(now);
        self.streams.send(now, &mut self.target);
        // One a turn, after the answers of everybody else.
        self.target.prove(now);
        // What was sent has given buffers back, and what waited for them may go on.
        self.target.pump(now);
        turn.events += self.serve_devices(now);
        self.streams.send(now, &mut self.target);
        self.streams.act(&mut self.target);
        turn.has_more = self.streams.is_readable() || self.target.can_go_on();
        turn
    }

    fn accept(&mut self, now: Instant, arrival: Arrival) {
        let Arrival { listener, connection, peer } = arrival;
        let port = self.ports.iter().find(|(known, _)| *known == listener);
        let local = self.streams.net().local_address(connection).map(|address| address.ip());
        let path = port.map(|(_, port)| Path { port: *port, peer: peer.ip(), local });
        match path.and_then(|path| self.target.accept_from(now, connection, path)) {
            Some(key) => self.streams.admit(connection, key),
            None => self.streams.net_mut().close(connection),
        }
    }

    /// Has the service do what it has to, and moves operations to backends and completions back, until there is nothing to move, or
    /// others have waited long enough: a device that does its work at once has always more to move for a command of many parts.
    fn serve_devices(&mut self, now: Instant) -> usize {
        let mut completed = 0;
        for _ in 0..ROUNDS_A_TURN {
            let served = self.service.turn(now, &mut self.target);
            self.submit_all();
            let before = completed;
            while let Some((_, completion)) = self.store.poll() {
                self.in_store = self.in_store.saturating_sub(1);
                completed += 1;
                self.target.completed(completion);
            }
            if completed == before && !served {
                break;
            }
            self.target.pump(now);
        }
        completed
    }

    fn submit_all(&mut self) {
        self.target.retry_devices();
        while let Some((backend, token, op)) = self.target.next_device_op() {
            self.submit(backend, token, op);
        }
    }

    fn submit(&mut self, backend: BackendId, token: Token, op: DeviceOp) {
        match self.store.submit(backend, token, op) {
            Ok(()) => self.in_store += 1,
            Err(Refused { op, reason: RefusedReason::Busy }) => self.target.put_back(backend, token, op),
            Err(Refused { op, reason: RefusedReason::Gone }) => {
                self.target.completed(DeviceCompletion { token, op, result: Err(DeviceError::Gone) });
            }
        }
    }
}

impl StreamProtocol for Target {
    type Key = ConnectionKey;
    type Now = Instant;

    fn receive_into(&mut self, key: ConnectionKey) -> Option<[&mut [u8]; 2]> {
        Self::receive_into(self, key)
    }

    fn received(&mut self, now: Instant, key: ConnectionKey, count: usize) {
        Self::received(self, now, key, count);
    }

    fn ended(&mut self, now: Instant, key: ConnectionKey) {
        Self::ended(self, now, key);
    }

    /// What a host has sent last is of no use without a way to answer it: the same as an end.
    fn broken(&mut self, now: Instant, key: ConnectionKey) {
        Self::ended(self, now, key);
    }

    fn writable(&mut self, key: ConnectionKey) {
        Self::writable(self, key);
    }

    fn next_dirty(&mut self) -> Option<(ConnectionKey, ConnectionId)> {
        Self::next_dirty(self)
    }

    fn transmit<'a>(&'a self, key: ConnectionKey, into: &mut [IoSlice<'a>]) -> usize {
        Self::transmit(self, key, into)
    }

    fn sent(&mut self, now: Instant, key: ConnectionKey, count: usize, offered: usize) -> bool {
        Self::sent(self, now, key, count) && count == offered
    }

    fn next_action(&mut self) -> Option<ConnectionAction> {
        Self::next_action(self)
    }
}
