//! The connections of a protocol on a network: one loop that receives, sends and closes, whichever protocol it is.
//!
//! ```text
//!          ┌─────────────── Streams ────────────────┐
//!   Net ──▶│ take_events ─▶ receive ─▶ StreamProtocol│
//!       ◀──│ act ◀── send ◀────────────┘             │
//!          └─────────────────────────────────────────┘
//! ```
//!
//! The protocol has no sockets: it says where bytes go, takes them, and offers others. What a turn takes of one connection is
//! bounded, so that the others do not wait for one that always has more; what it has for a connection leaves with one vectored
//! send.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use crate::plant::{Bug, is_planted};
use crate::{ConnectionId, IdMap, ListenerId, Net, NetError, NetEvent, Received};

/// Slices that one send takes at most.
const SEND_SLICES: usize = 128;
/// Slices that are looked for at first: there are seldom more, and room for all of them takes time to make.
const FEW_SLICES: usize = 8;

/// A protocol on connections, without sockets.
pub trait StreamProtocol {
    /// By what it knows a connection. It refers to nothing once the connection is gone.
    type Key: Copy;
    /// The time, as it is told to the protocol.
    type Now: Copy;

    /// Where a connection's next bytes go: into the first, then the second. Nothing if it is to wait: then
    /// [`ConnectionAction::Resume`] follows.
    fn receive_into(&mut self, key: Self::Key) -> Option<[&mut [u8]; 2]>;

    /// So many bytes came.
    fn received(&mut self, now: Self::Now, key: Self::Key, count: usize);

    /// The peer has ended its side.
    fn ended(&mut self, now: Self::Now, key: Self::Key);

    /// The connection is gone, and closed here: to close it again is no harm.
    fn broken(&mut self, now: Self::Now, key: Self::Key);

    /// The network takes bytes again: if there are any, the connection is one of the next that are dirty.
    fn writable(&mut self, key: Self::Key);

    /// A connection that [`Streams::connect`] began is there: if there is something to send, it is one of the next that are dirty.
    fn connected(&mut self, now: Self::Now, key: Self::Key) {
        let _ = (now, key);
    }

    /// The next connection that has something to send.
    fn next_dirty(&mut self) -> Option<(Self::Key, ConnectionId)>;

    /// What is to be sent, from the front; how many of the slices were filled.
    fn transmit<'a>(&'a self, key: Self::Key, into: &mut [IoSlice<'a>]) -> usize;

    /// So many of the bytes that were offered were sent: fewer, if the network takes no more now. Whether there are more that it
    /// may take.
    fn sent(&mut self, now: Self::Now, key: Self::Key, count: usize, offered: usize) -> bool;

    /// What is to be done with a connection next.
    fn next_action(&mut self) -> Option<ConnectionAction>;
}

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionAction {
    /// Receive again: it is no longer held up.
    Resume(ConnectionId),
    /// Everything is sent and nothing more will be: end the sending half, and receive until the peer ends too.
    Finish(ConnectionId),
    /// Close it. The protocol knows it no more.
    Close(ConnectionId),
}

/// Somebody has connected, and is to be given a key ([`Streams::admit`]) or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Where.
    pub listener: ListenerId,
    /// The connection.
    pub connection: ConnectionId,
    /// From where.
    pub peer: SocketAddr,
}

/// A network, and by what a protocol knows its connections.
pub struct Streams<N, K> {
    net: N,
    connections: IdMap<ConnectionId, Known<K>>,
    /// Connections that may have bytes, each once; some may be closed.
    readable: VecDeque<ConnectionId>,
    receives_a_turn: usize,
}

struct Known<K> {
    key: K,
    /// Whether it waits to be received from: nobody has two turns in one.
    is_queued: bool,
}

impl<N: Net, K: Copy> Streams<N, K> {
    /// No connections yet; one of them is received from so often in a turn.
    pub fn new(net: N, receives_a_turn: usize) -> Self {
        Self { net, connections: IdMap::default(), readable: VecDeque::new(), receives_a_turn }
    }

    /// The network.
    pub fn net(&self) -> &N {
        &self.net
    }

    /// The network; a reactor's events go there first.
    pub fn net_mut(&mut self) -> &mut N {
        &mut self.net
    }

    /// Gives the network up, for another life of the half.
    pub fn into_net(self) -> N {
        self.net
    }

    /// Whether some connection may have bytes.
    pub fn is_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Takes events, of which there were `count`, up to the next arrival.
    pub fn take_events<P: StreamProtocol<Key = K>>(
        &mut self,
        now: P::Now,
        protocol: &mut P,
        count: &mut usize,
    ) -> Option<Arrival> {
        while let Some(event) = self.net.poll() {
            *count += 1;
            match event {
                NetEvent::Accepted { listener, connection, peer } => {
                    return Some(Arrival { listener, connection, peer });
                }
                NetEvent::Readable(connection) => {
                    self.queue(connection);
                }
                NetEvent::Writable(connection) => {
                    if let Some(known) = self.connections.get(&connection) {
                        protocol.writable(known.key);
                    }
                }
                NetEvent::Closed { connection, .. } => {
                    if let Some(known) = self.connections.remove(&connection) {
                        protocol.broken(now, known.key);
                    }
                }
                NetEvent::Connected(connection) => {
                    if let Some(known) = self.connections.get(&connection) {
                        protocol.connected(now, known.key);
                    }
                }
            }
        }
        None
    }

    /// The protocol knows a connection by this key; it may have bytes already.
    pub fn admit(&mut self, connection: ConnectionId, key: K) {
        self.connections.insert(connection, Known { key, is_queued: false });
        self.queue(connection);
    }

    /// Begins to connect; the protocol knows the connection by this key from now on. [`StreamProtocol::connected`] follows, or
    /// [`StreamProtocol::broken`].
    ///
    /// # Errors
    ///
    /// When it is known at once that nothing comes of it.
    pub fn connect(&mut self, address: SocketAddr, key: K) -> Result<ConnectionId, NetError> {
        let connection = self.net.connect(address)?;
        self.connections.insert(connection, Known { key, is_queued: false });
        Ok(connection)
    }

    fn queue(&mut self, connection: ConnectionId) {
        if let Some(known) = self.connections.get_mut(&connection)
            && !known.is_queued
        {
            known.is_queued = true;
            self.readable.push_back(connection);
        }
    }

    /// Receives of each connection that may have bytes; how many receives brought any.
    pub fn receive<P: StreamProtocol<Key = K>>(&mut self, now: P::Now, protocol: &mut P) -> usize {
        let mut received = 0;
        for _ in 0..self.readable.len() {
            let Some(connection) = self.readable.pop_front() else { break };
            if let Some(known) = self.connections.get_mut(&connection) {
                known.is_queued = false;
                let key = known.key;
                received += self.receive_of(now, protocol, connection, key);
            }
        }
        received
    }

    fn receive_of<P: StreamProtocol<Key = K>>(
        &mut self,
        now: P::Now,
        protocol: &mut P,
        connection: ConnectionId,
        key: K,
    ) -> usize {
        for received in 0..self.receives_a_turn {
            let Some([first, second]) = protocol.receive_into(key) else { return received };
            let outcome = if second.is_empty() {
                self.net.receive(connection, first)
            } else {
                self.net.receive_vectored(connection, &mut [IoSliceMut::new(first), IoSliceMut::new(second)])
            };
            match outcome {
                // Whether there is more is asked at once: a network that has said all says so for nothing, and no turn is due for
                // it.
                Ok(Received::Bytes(count)) => protocol.received(now, key, count),
                Ok(Received::Nothing) => return received,
                Ok(Received::End) => {
                    protocol.ended(now, key);
                    return received;
                }
                Err(_) => {
                    self.connections.remove(&connection);
                    protocol.broken(now, key);
                    self.net.close(connection);
                    return received;
                }
            }
        }
        if !is_planted(Bug::RestUnread) {
            self.queue(connection);
        }
        self.receives_a_turn
    }

    /// Sends what there is for every connection.
    pub fn send<P: StreamProtocol<Key = K>>(&mut self, now: P::Now, protocol: &mut P) {
        while let Some((key, connection)) = protocol.next_dirty() {
            while self.send_some(now, protocol, key, connection) {}
        }
    }

    /// One send; whether there is more that the network may take.
    fn send_some<P: StreamProtocol<Key = K>>(
        &mut self,
        now: P::Now,
        protocol: &mut P,
        key: K,
        connection: ConnectionId,
    ) -> bool {
        let mut few = [IoSlice::new(&[]); FEW_SLICES];
        let mut many;
        let mut offered = few.as_mut_slice();
        let mut count = protocol.transmit(key, offered);
        if count == FEW_SLICES {
            many = [IoSlice::new(&[]); SEND_SLICES];
            offered = &mut many;
            count = protocol.transmit(key, offered);
        }
        let offered = offered.get(..count).unwrap_or_default();
        let wanted: usize = offered.iter().map(|slice| slice.len()).sum();
        if wanted == 0 {
            return false;
        }
        match self.net.send_vectored(connection, offered) {
            Ok(sent) => protocol.sent(now, key, sent.0, wanted),
            // What broke the connection is told by receiving, or by an event.
            Err(_) => false,
        }
    }

    /// Does with connections what the protocol wants done.
    pub fn act<P: StreamProtocol<Key = K>>(&mut self, protocol: &mut P) {
        while let Some(action) = protocol.next_action() {
            match action {
                ConnectionAction::Resume(_) if is_planted(Bug::ResumeUnheard) => {}
                ConnectionAction::Resume(connection) => self.queue(connection),
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{NetListenError, Sent};

    const ONE: ConnectionId = ConnectionId(1);
    const OTHER: ConnectionId = ConnectionId(2);

    /// Connections whose bytes, and the room for bytes to them, are set by hand.
    #[derive(Default)]
    struct Wires {
        events: VecDeque<NetEvent>,
        arrived: HashMap<ConnectionId, Vec<u8>>,
        room: HashMap<ConnectionId, usize>,
        failed: Vec<ConnectionId>,
        closed: Vec<ConnectionId>,
        sends: usize,
        /// Where somebody listens.
        reachable: Option<SocketAddr>,
    }

    impl Net for Wires {
        fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
            Err(NetListenError::InUse(address))
        }

        fn listener_address(&self, _: ListenerId) -> Option<SocketAddr> {
            None
        }

        fn connect(&mut self, address: SocketAddr) -> Result<ConnectionId, NetError> {
            if self.reachable == Some(address) { Ok(ONE) } else { Err(NetError::Unreachable) }
        }

        fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
            if self.failed.contains(&connection) {
                return Err(NetError::TimedOut);
            }
            let arrived = self.arrived.entry(connection).or_default();
            let count = into.len().min(arrived.len());
            into[..count].copy_from_slice(&arrived[..count]);
            arrived.drain(..count);
            Ok(if count == 0 { Received::Nothing } else { Received::Bytes(count) })
        }

        fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
            self.sends += 1;
            let room = self.room.entry(connection).or_default();
            let count = bytes.len().min(*room);
            *room -= count;
            Ok(Sent(count))
        }

        fn finish(&mut self, _: ConnectionId) -> Result<(), NetError> {
            Ok(())
        }

        fn close(&mut self, connection: ConnectionId) {
            self.closed.push(connection);
        }

        fn poll(&mut self) -> Option<NetEvent> {
            self.events.pop_front()
        }
    }

    /// Knows a connection by its id, and answers each byte with one.
    #[derive(Default)]
    struct Echo {
        room: [u8; 2],
        output: HashMap<ConnectionId, Vec<u8>>,
        dirty: VecDeque<ConnectionId>,
        received: HashMap<ConnectionId, usize>,
        broken: Vec<ConnectionId>,
        connected: Vec<ConnectionId>,
        actions: VecDeque<ConnectionAction>,
    }

    impl StreamProtocol for Echo {
        type Key = ConnectionId;
        type Now = ();

        fn receive_into(&mut self, _: ConnectionId) -> Option<[&mut [u8]; 2]> {
            let (first, second) = self.room.split_at_mut(1);
            Some([first, second])
        }

        fn received(&mut self, (): (), key: ConnectionId, count: usize) {
            *self.received.entry(key).or_default() += count;
            self.output.entry(key).or_default().extend(&self.room[..count]);
            self.dirty.push_back(key);
        }

        fn ended(&mut self, (): (), _: ConnectionId) {}

        fn broken(&mut self, (): (), key: ConnectionId) {
            self.broken.push(key);
        }

        fn writable(&mut self, key: ConnectionId) {
            self.dirty.push_back(key);
        }

        fn connected(&mut self, (): (), key: ConnectionId) {
            self.connected.push(key);
        }

        fn next_dirty(&mut self) -> Option<(ConnectionId, ConnectionId)> {
            self.dirty.pop_front().map(|key| (key, key))
        }

        fn transmit<'a>(&'a self, key: ConnectionId, into: &mut [IoSlice<'a>]) -> usize {
            let pieces = self.output.get(&key).map_or(&[][..], Vec::as_slice).chunks(1);
            into.iter_mut().zip(pieces).map(|(place, piece)| *place = IoSlice::new(piece)).count()
        }

        fn sent(&mut self, (): (), key: ConnectionId, count: usize, offered: usize) -> bool {
            let Some(output) = self.output.get_mut(&key) else { return false };
            output.drain(..count);
            !output.is_empty() && count == offered
        }

        fn next_action(&mut self) -> Option<ConnectionAction> {
            self.actions.pop_front()
        }
    }

    fn streams(arrived: &[(ConnectionId, usize)], receives_a_turn: usize) -> Streams<Wires, ConnectionId> {
        let mut streams = Streams::new(Wires::default(), receives_a_turn);
        for (connection, count) in arrived {
            streams.net_mut().arrived.insert(*connection, (0..*count).map(|byte| byte as u8).collect());
            streams.admit(*connection, *connection);
        }
        streams
    }

    #[test]
    fn who_always_has_more_does_not_keep_others_waiting_and_is_not_forgotten() {
        let (mut streams, mut echo) = (streams(&[(ONE, 100), (OTHER, 3)], 4), Echo::default());
        assert_eq!(streams.receive((), &mut echo), 6, "four receives of the one, two of the other");
        assert_eq!((echo.received[&ONE], echo.received[&OTHER]), (8, 3));
        assert!(streams.is_readable(), "nothing will say again that the one has more");
        for _ in 0..12 {
            streams.receive((), &mut echo);
        }
        assert_eq!(echo.received[&ONE], 100);
        assert!(!streams.is_readable());
    }

    #[test]
    fn what_the_network_does_not_take_goes_on_when_it_does() {
        let (mut streams, mut echo) = (streams(&[(ONE, 200)], 1000), Echo::default());
        streams.receive((), &mut echo);
        echo.dirty.truncate(1);
        streams.net_mut().room.insert(ONE, 150);
        streams.send((), &mut echo);
        assert_eq!(
            echo.output[&ONE].len(),
            50,
            "more than one send takes, and not more than there was room for"
        );
        streams.net_mut().room.insert(ONE, 1000);
        streams.net_mut().events.push_back(NetEvent::Writable(ONE));
        assert_eq!(streams.take_events((), &mut echo, &mut 0), None);
        streams.send((), &mut echo);
        assert_eq!(echo.output[&ONE], []);
    }

    #[test]
    fn a_connection_that_fails_is_told_of_once_and_closed() {
        let (mut streams, mut echo) = (streams(&[(ONE, 5), (OTHER, 1)], 8), Echo::default());
        streams.net_mut().failed.push(ONE);
        streams.receive((), &mut echo);
        streams.net_mut().events.push_back(NetEvent::Readable(ONE));
        let end = NetEvent::Closed { connection: ONE, error: NetError::TimedOut };
        streams.net_mut().events.push_back(end);
        let mut events = 0;
        assert_eq!(streams.take_events((), &mut echo, &mut events), None);
        assert_eq!((&echo.broken[..], &streams.net().closed[..], events), (&[ONE][..], &[ONE][..], 2));
        assert!(!streams.is_readable());
        assert_eq!(echo.received[&OTHER], 1);
    }

    #[test]
    fn who_arrives_is_handed_on_between_events() {
        let (mut streams, mut echo) = (streams(&[], 8), Echo::default());
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let arrival = Arrival { listener: ListenerId(7), connection: ONE, peer };
        let accepted = NetEvent::Accepted { listener: ListenerId(7), connection: ONE, peer };
        streams.net_mut().events.extend([accepted, NetEvent::Readable(ONE)]);
        let mut events = 0;
        assert_eq!(streams.take_events((), &mut echo, &mut events), Some(arrival));
        streams.admit(ONE, ONE);
        assert_eq!(streams.receive((), &mut echo), 0);
        assert!(!streams.is_readable());
        assert_eq!(streams.take_events((), &mut echo, &mut events), None);
        assert_eq!(events, 2);
        assert!(streams.is_readable());
    }

    #[test]
    fn a_connection_of_our_own_is_told_when_it_is_there_and_when_it_is_not() {
        let (mut streams, mut echo) = (streams(&[], 8), Echo::default());
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(streams.connect(address, OTHER), Err(NetError::Unreachable));
        streams.net_mut().reachable = Some(address);
        // The key is the protocol's own.
        assert_eq!(streams.connect(address, OTHER), Ok(ONE));
        assert!(!streams.is_readable());
        let end = NetEvent::Closed { connection: ONE, error: NetError::Reset };
        streams.net_mut().events.extend([NetEvent::Connected(ONE), NetEvent::Readable(ONE), end]);
        assert_eq!(streams.take_events((), &mut echo, &mut 0), None);
        assert_eq!((&echo.connected[..], &echo.broken[..]), (&[OTHER][..], &[OTHER][..]));
        streams.net_mut().events.push_back(NetEvent::Connected(ONE));
        assert_eq!(streams.take_events((), &mut echo, &mut 0), None);
        assert_eq!(echo.connected.len(), 1, "nobody is told of what is gone");
    }

    #[test]
    fn who_is_told_of_twice_has_one_turn_in_a_turn() {
        let (mut streams, mut echo) = (streams(&[(ONE, 100)], 4), Echo::default());
        streams.net_mut().events.extend([NetEvent::Readable(ONE), NetEvent::Readable(ONE)]);
        assert_eq!(streams.take_events((), &mut echo, &mut 0), None);
        assert_eq!(streams.receive((), &mut echo), 4);
        echo.actions.push_back(ConnectionAction::Resume(ONE));
        streams.act(&mut echo);
        assert_eq!(streams.receive((), &mut echo), 4);
    }
}
