//! A [`Director`] on sockets, rings and files.
//!
//! ```text
//!          ┌───────────────── turn ──────────────────┐
//!   Net ──▶│ events ─▶ receive ─▶ Director ─▶ send    │──▶ Net
//!          │                      ▲      │            │
//!          └──────────────────────┼──────┼────────────┘
//!                     HostPort, Files    ▼
//! ```
//!
//! One turn takes what there is, up to a bound a connection, and sends the replies of the whole turn with one vectored send a
//! connection.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;

use ob_core::{ConnectionId, IdMap, Instant, ListenerId, Net, NetEvent, NetListenError, Received};
use ob_offload::{Application, Files};
use ob_wire_link::stream::FRAGMENT_LEN;

use crate::connection::ConnectionKey;
use crate::director::{ConnectionAction, Director, Now};
use crate::host::HostPort;
use crate::signature::{Flow, Protocol, Signature};

/// Receives a connection gets in one turn; the others are not to wait for one that always has more.
const RECEIVES_A_TURN: usize = 4;
/// Slices that one send takes at most.
const SEND_SLICES: usize = 128;
/// Slices that are looked for at first: there are seldom more, and room for all of them takes time to make.
const FEW_SLICES: usize = 8;

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Events, receives and sends that brought anything.
    pub events: usize,
    /// Whether there is more that can be done at once.
    pub has_more: bool,
}

/// Sockets, the way to the host, the card's files, and a director.
pub struct DirectorDriver<N, P, F, A: Application> {
    net: N,
    port: P,
    files: F,
    director: Director<A>,
    /// Where it listens, and for what.
    listeners: HashMap<ListenerId, (SocketAddr, Signature)>,
    connections: IdMap<ConnectionId, ConnectionKey>,
    /// Connections that may have bytes.
    readable: VecDeque<(ConnectionId, ConnectionKey)>,
}

impl<N: Net, P: HostPort, F: Files, A: Application> DirectorDriver<N, P, F, A> {
    /// Nothing is served before [`DirectorDriver::listen`].
    pub fn new(net: N, port: P, files: F, director: Director<A>) -> Self {
        let (listeners, connections, readable) = (HashMap::new(), IdMap::default(), VecDeque::new());
        Self { net, port, files, director, listeners, connections, readable }
    }

    /// Accepts the connections of a signature; the addresses that it really has.
    ///
    /// # Errors
    /// When one of them cannot be listened on.
    pub fn listen(&mut self, signature: &Signature) -> Result<Vec<SocketAddr>, NetListenError> {
        let mut addresses = Vec::new();
        for address in signature.listens() {
            let listener = self.net.listen(*address)?;
            let address = self.net.listener_address(listener).unwrap_or(*address);
            self.listeners.insert(listener, (address, signature.clone()));
            addresses.push(address);
        }
        Ok(addresses)
    }

    /// The sockets; a reactor's events go there first.
    pub fn net_mut(&mut self) -> &mut N {
        &mut self.net
    }

    /// The way to the host.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The card's files.
    pub fn files_mut(&mut self) -> &mut F {
        &mut self.files
    }

    /// The director.
    pub fn director(&self) -> &Director<A> {
        &self.director
    }

    /// When the next turn is due, if nothing happens before; a reactor's events need one too.
    pub fn next_due(&self) -> Option<Instant> {
        let has_room = self.director.awaits_room() && self.port.has_room(FRAGMENT_LEN);
        if !self.readable.is_empty() || has_room {
            return Some(Instant::default());
        }
        self.director.next_due()
    }

    /// Does what there is to do.
    pub fn turn(&mut self, now: Now) -> Turn {
        let mut turn = Turn::default();
        while let Some(event) = self.net.poll() {
            turn.events += 1;
            self.handle(event);
        }
        turn.events += self.receive_all();
        turn.events += usize::from(self.director.turn(now, &mut self.port, &mut self.files));
        self.send_all();
        self.act();
        turn.has_more = !self.readable.is_empty() || self.director.can_go_on();
        turn
    }

    fn handle(&mut self, event: NetEvent) {
        match event {
            NetEvent::Accepted { listener, connection, peer } => self.accept(listener, connection, peer),
            NetEvent::Readable(connection) => {
                if let Some(key) = self.connections.get(&connection) {
                    self.readable.push_back((connection, *key));
                }
            }
            NetEvent::Writable(connection) => {
                if let Some(key) = self.connections.get(&connection) {
                    self.director.writable(*key);
                }
            }
            NetEvent::Closed { connection, .. } => {
                if let Some(key) = self.connections.remove(&connection) {
                    self.director.broken(key);
                }
            }
            NetEvent::Connected(_) => {}
        }
    }

    fn accept(&mut self, listener: ListenerId, connection: ConnectionId, client: SocketAddr) {
        let is_matched = self.listeners.get(&listener).is_some_and(|(local, signature)| {
            signature.matches(&Flow { protocol: Protocol::Tcp, client, local: *local })
        });
        match self.director.accept(connection, client, is_matched) {
            Some(key) => {
                self.connections.insert(connection, key);
                self.readable.push_back((connection, key));
            }
            None => self.turn_away(connection),
        }
    }

    /// Tells a client that there is no room for it. Whether it hears that is left to the network: nothing is kept of it.
    fn turn_away(&mut self, connection: ConnectionId) {
        let said = self.director.full();
        if !said.is_empty() && self.net.send(connection, said).is_ok() {
            let _ = self.net.finish(connection);
        }
        self.net.close(connection);
    }

    fn receive_all(&mut self) -> usize {
        let mut received = 0;
        for _ in 0..self.readable.len() {
            let Some((connection, key)) = self.readable.pop_front() else { break };
            for attempt in 1..=RECEIVES_A_TURN {
                let Some(room) = self.director.receive_into(key) else { break };
                match self.net.receive(connection, room) {
                    Ok(Received::Bytes(count)) => {
                        received += 1;
                        self.director.received(key, count);
                        // Whether there is more is asked at once: a network that has said all says so for nothing, and no
                        // turn is due for it.
                        if attempt == RECEIVES_A_TURN {
                            self.readable.push_back((connection, key));
                        }
                    }
                    Ok(Received::Nothing) => break,
                    Ok(Received::End) => {
                        self.director.ended(key);
                        break;
                    }
                    Err(_) => {
                        self.connections.remove(&connection);
                        self.director.broken(key);
                        self.net.close(connection);
                        break;
                    }
                }
            }
        }
        received
    }

    fn send_all(&mut self) {
        while let Some((key, connection)) = self.director.next_dirty() {
            self.send(key, connection);
        }
    }

    fn send(&mut self, key: ConnectionKey, connection: ConnectionId) {
        loop {
            let mut few = [IoSlice::new(&[]); FEW_SLICES];
            let mut many;
            let mut offered = few.as_mut_slice();
            let mut count = self.director.transmit(key, offered);
            if count == FEW_SLICES {
                many = [IoSlice::new(&[]); SEND_SLICES];
                offered = &mut many;
                count = self.director.transmit(key, offered);
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
            if !self.director.sent(key, sent.0, wanted) {
                return;
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.director.next_action() {
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
