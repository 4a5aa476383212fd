//! A [`Target`] on sockets and devices.
//!
//! ```text
//!          ┌──────────────────────── turn ─────────────────────────┐
//!   Net ──▶│ events ─▶ receive ─▶ Target ─▶ submit ─▶ poll ─▶ send │──▶ Net
//!          │                                  │         ▲          │
//!          └──────────────────────────────────┼─────────┼──────────┘
//!                                             ▼  Store  │
//! ```
//!
//! One turn takes what there is, up to a bound a connection, then looks who is late, and sends the answers of the whole turn with
//! one vectored send a connection. The arithmetic of one authentication comes after that, and its answer with a second send. Who
//! calls it decides when: after events of a reactor, when [`TargetDriver::next_due`] is reached, or in the steps of a simulation.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use ob_core::{
    ConnectionId, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, IdMap, Instant, ListenerId, Net,
    NetEvent, NetListenError, Received, Refused, RefusedReason, Token,
};

use crate::target::control::{BackendId, Path, PortKey};
use crate::target::{ConnectionAction, ConnectionKey, Target};

/// Receives a connection gets in one turn; the others are not to wait for one that always has more.
const RECEIVES_A_TURN: usize = 8;
/// Rounds of operations and completions in one turn.
const ROUNDS_A_TURN: usize = 8;
/// Slices that one send takes at most.
const SEND_SLICES: usize = 128;
/// Slices that are looked for at first: there are seldom more, and room for all of them takes time to make.
const FEW_SLICES: usize = 8;

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

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Network events, receives, completions and sends that brought anything.
    pub events: usize,
    /// Whether there is more that can be done at once.
    pub has_more: bool,
}

/// Sockets, devices and a target.
pub struct TargetDriver<N, S> {
    net: N,
    store: S,
    target: Target,
    ports: Vec<(ListenerId, PortKey)>,
    connections: IdMap<ConnectionId, ConnectionKey>,
    /// Connections that may have bytes.
    readable: VecDeque<(ConnectionId, ConnectionKey)>,
    in_store: usize,
}

impl<N: Net, S: Store> TargetDriver<N, S> {
    /// Nothing is served before [`TargetDriver::listen`].
    pub fn new(net: N, store: S, target: Target) -> Self {
        Self {
            net,
            store,
            target,
            ports: Vec::new(),
            connections: IdMap::default(),
            readable: VecDeque::new(),
            in_store: 0,
        }
    }

    /// Accepts connections at an address, as a port that [`crate::target::control::Control`] knows.
    pub fn listen(&mut self, address: SocketAddr, port: PortKey) -> Result<SocketAddr, NetListenError> {
        let listener = self.net.listen(address)?;
        self.ports.push((listener, port));
        Ok(self.net.listener_address(listener).unwrap_or(address))
    }

    /// The sockets; a reactor's events go there first.
    pub fn net_mut(&mut self) -> &mut N {
        &mut self.net
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

    /// Operations that are on backends or wait for room there.
    pub fn in_store(&self) -> usize {
        self.in_store + self.target.backlog_len()
    }

    /// Gives everything up for another life of the program: the devices and the sockets.
    pub fn into_parts(self) -> (N, S, Target) {
        (self.net, self.store, self.target)
    }

    /// When the next turn is due, if nothing happens before; a reactor's events need one too.
    pub fn next_due(&self) -> Option<Instant> {
        if !self.readable.is_empty() || self.target.can_go_on() {
            return Some(Instant::default());
        }
        [self.target.next_due(), self.store.next_due()].into_iter().flatten().min()
    }

    /// Does what there is to do.
    pub fn turn(&mut self, now: Instant) -> Turn {
        let mut turn = Turn::default();
        while let Some(event) = self.net.poll() {
            turn.events += 1;
            self.handle(now, event);
        }
        turn.events += self.receive_all(now);
        // After a pause Keep Alives and data lie in the sockets: nobody is late who has sent them.
        if self.target.next_due().is_some_and(|due| due <= now) {
            self.target.tick(now);
        }
        self.target.pump(now);
        turn.events += self.serve_devices(now);
        self.send_all(now);
        // One a turn, after the answers of everybody else.
        self.target.prove(now);
        // What was sent has given buffers back, and what waited for them may go on.
        self.target.pump(now);
        turn.events += self.serve_devices(now);
        self.send_all(now);
        self.act();
        turn.has_more = !self.readable.is_empty() || self.target.can_go_on();
        turn
    }

    fn handle(&mut self, now: Instant, event: NetEvent) {
        match event {
            NetEvent::Accepted { listener, connection, peer } => {
                let port = self.ports.iter().find(|(known, _)| *known == listener);
                let local = self.net.local_address(connection).map(|address| address.ip());
                let path = port.map(|(_, port)| Path { port: *port, peer: peer.ip(), local });
                let key = path.and_then(|path| self.target.accept_from(now, connection, path));
                match key {
                    Some(key) => {
                        self.connections.insert(connection, key);
                        self.readable.push_back((connection, key));
                    }
                    None => self.net.close(connection),
                }
            }
            NetEvent::Readable(connection) => {
                if let Some(key) = self.connections.get(&connection) {
                    self.readable.push_back((connection, *key));
                }
            }
            NetEvent::Writable(connection) => {
                if let Some(key) = self.connections.get(&connection).copied() {
                    self.send(now, key, connection);
                }
            }
            NetEvent::Closed { connection, .. } => {
                if let Some(key) = self.connections.remove(&connection) {
                    self.target.ended(now, key);
                }
            }
            NetEvent::Connected(_) => {}
        }
    }

    fn receive_all(&mut self, now: Instant) -> usize {
        let mut received = 0;
        for _ in 0..self.readable.len() {
            let Some((connection, key)) = self.readable.pop_front() else { break };
            for attempt in 1..=RECEIVES_A_TURN {
                let Some([direct, scratch]) = self.target.receive_into(key) else { break };
                let mut slices = [IoSliceMut::new(direct), IoSliceMut::new(scratch)];
                match self.net.receive_vectored(connection, &mut slices) {
                    Ok(Received::Bytes(count)) => {
                        received += 1;
                        self.target.received(now, key, count);
                        // Whether there is more is asked at once: a network that has said all says so for nothing, and no
                        // turn is due for it.
                        if attempt == RECEIVES_A_TURN {
                            self.readable.push_back((connection, key));
                        }
                    }
                    Ok(Received::Nothing) => break,
                    Ok(Received::End) | Err(_) => {
                        self.target.ended(now, key);
                        break;
                    }
                }
            }
        }
        received
    }

    /// Moves operations to backends and completions back, until there is nothing to move, or others have waited long
    /// enough: a device that does its work at once has always more to move for a command of many parts.
    fn serve_devices(&mut self, now: Instant) -> usize {
        let mut completed = 0;
        for _ in 0..ROUNDS_A_TURN {
            self.submit_all();
            let before = completed;
            while let Some((_, completion)) = self.store.poll() {
                self.in_store = self.in_store.saturating_sub(1);
                completed += 1;
                self.target.completed(completion);
            }
            if completed == before {
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

    fn send_all(&mut self, now: Instant) {
        while let Some((key, connection)) = self.target.next_dirty() {
            self.send(now, key, connection);
        }
    }

    fn send(&mut self, now: Instant, key: ConnectionKey, connection: ConnectionId) {
        loop {
            let mut few = [IoSlice::new(&[]); FEW_SLICES];
            let mut many;
            let mut offered = few.as_mut_slice();
            let mut count = self.target.transmit(key, offered);
            if count == FEW_SLICES {
                many = [IoSlice::new(&[]); SEND_SLICES];
                offered = &mut many;
                count = self.target.transmit(key, offered);
            }
            let offered = offered.get(..count).unwrap_or_default();
            let wanted: usize = offered.iter().map(|slice| slice.len()).sum();
            if wanted == 0 {
                return;
            }
            let Ok(sent) = self.net.send_vectored(connection, offered) else {
                // What broke the connection is told by receiving, or by an event.
                return;
            };
            let has_more = self.target.sent(now, key, sent.0);
            if sent.0 < wanted || !has_more {
                return;
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.target.next_action() {
            match action {
                ConnectionAction::Resume(key, connection) => self.readable.push_back((connection, key)),
                ConnectionAction::Finish(connection) => {
                    let _ = self.net.finish(connection);
                }
                ConnectionAction::Close(connection) => {
                    self.connections.remove(&connection);
                    self.net.close(connection);
                }
            }
        }
    }
}
