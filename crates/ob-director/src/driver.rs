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

use std::collections::HashMap;
use std::io::IoSlice;
use std::net::SocketAddr;

use ob_core::{
    Arrival, ConnectionAction, ConnectionId, Instant, ListenerId, Net, NetListenError, Now, StreamProtocol,
    Streams,
};
use ob_offload::{Application, Files};
use ob_wire_link::stream::FRAGMENT_LEN;

use crate::connection::ConnectionKey;
use crate::director::Director;
use crate::host::HostPort;
use crate::signature::{Flow, Protocol, Signature};

/// Receives a connection gets in one turn; the others are not to wait for one that always has more.
const RECEIVES_A_TURN: usize = 4;

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
    streams: Streams<N, ConnectionKey>,
    port: P,
    files: F,
    director: Director<A>,
    /// Where it listens, and for what.
    listeners: HashMap<ListenerId, (SocketAddr, Signature)>,
}

impl<N: Net, P: HostPort, F: Files, A: Application> DirectorDriver<N, P, F, A> {
    /// Nothing is served before [`DirectorDriver::listen`].
    pub fn new(net: N, port: P, files: F, director: Director<A>) -> Self {
        let streams = Streams::new(net, RECEIVES_A_TURN);
        Self { streams, port, files, director, listeners: HashMap::new() }
    }

    /// Accepts the connections of a signature; the addresses that it really has.
    ///
    /// # Errors
    /// When one of them cannot be listened on.
    pub fn listen(&mut self, signature: &Signature) -> Result<Vec<SocketAddr>, NetListenError> {
        let mut addresses = Vec::new();
        for address in signature.listens() {
            let listener = self.streams.net_mut().listen(*address)?;
            let address = self.streams.net().listener_address(listener).unwrap_or(*address);
            self.listeners.insert(listener, (address, signature.clone()));
            addresses.push(address);
        }
        Ok(addresses)
    }

    /// The sockets; a reactor's events go there first.
    pub fn net_mut(&mut self) -> &mut N {
        self.streams.net_mut()
    }

    /// The way to the host.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The director.
    pub fn director(&self) -> &Director<A> {
        &self.director
    }

    /// When the next turn is due, if nothing happens before; a reactor's events need one too.
    pub fn next_due(&self) -> Option<Instant> {
        let has_room = self.director.awaits_room() && self.port.has_room(FRAGMENT_LEN);
        if self.streams.is_readable() || has_room {
            return Some(Instant::default());
        }
        self.director.next_due()
    }

    /// Does what there is to do.
    pub fn turn(&mut self, now: Now) -> Turn {
        let mut turn = Turn::default();
        while let Some(arrival) = self.streams.take_events(now, &mut self.director, &mut turn.events) {
            self.accept(arrival);
        }
        turn.events += self.streams.receive(now, &mut self.director);
        turn.events += usize::from(self.director.turn(now, &mut self.port, &mut self.files));
        self.streams.send(now, &mut self.director);
        self.streams.act(&mut self.director);
        turn.has_more = self.streams.is_readable() || self.director.can_go_on();
        turn
    }

    fn accept(&mut self, arrival: Arrival) {
        let Arrival { listener, connection, peer: client } = arrival;
        let is_matched = self.listeners.get(&listener).is_some_and(|(local, signature)| {
            signature.matches(&Flow { protocol: Protocol::Tcp, client, local: *local })
        });
        match self.director.accept(connection, client, is_matched) {
            Some(key) => self.streams.admit(connection, key),
            None => self.turn_away(connection),
        }
    }

    /// Tells a client that there is no room for it. Whether it hears that is left to the network: nothing is kept of it.
    fn turn_away(&mut self, connection: ConnectionId) {
        let said = self.director.full();
        let net = self.streams.net_mut();
        if !said.is_empty() && net.send(connection, said).is_ok() {
            let _ = net.finish(connection);
        }
        net.close(connection);
    }
}

impl<A: Application> StreamProtocol for Director<A> {
    type Key = ConnectionKey;
    type Now = Now;

    fn receive_into(&mut self, key: ConnectionKey) -> Option<[&mut [u8]; 2]> {
        Some([Self::receive_into(self, key)?, &mut []])
    }

    fn received(&mut self, _now: Now, key: ConnectionKey, count: usize) {
        Self::received(self, key, count);
    }

    fn ended(&mut self, _now: Now, key: ConnectionKey) {
        Self::ended(self, key);
    }

    fn broken(&mut self, _now: Now, key: ConnectionKey) {
        Self::broken(self, key);
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

    fn sent(&mut self, _now: Now, key: ConnectionKey, count: usize, offered: usize) -> bool {
        Self::sent(self, key, count, offered)
    }

    fn next_action(&mut self) -> Option<ConnectionAction> {
        Self::next_action(self)
    }
}
