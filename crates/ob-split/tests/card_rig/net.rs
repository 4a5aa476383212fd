//! A network whose peers a test plays.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use ob_core::{ConnectionId, ListenerId, Net, NetError, NetEvent, NetListenError, Received, Sent};
use ob_split::wire::{HEADER_LEN, Header};

use super::MAGIC;

/// Where the peer at a port is.
pub fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A connection as its peer sees it.
#[derive(Default)]
pub struct Pipe {
    pub port: u16,
    pub to_peer: Vec<u8>,
    pub to_card: VecDeque<u8>,
    /// So much more is taken from the card; all, if nothing is said.
    pub room: Option<usize>,
    pub is_closed: bool,
    /// Slices of each send.
    pub sends: Vec<usize>,
    /// Its peer sends no more.
    pub is_ended: bool,
}

#[derive(Default)]
pub struct TestNet {
    pub pipes: BTreeMap<u64, Pipe>,
    pub refused: Vec<u16>,
    /// Ports that are listened on, each once.
    pub listening: Vec<u16>,
    pub(super) events: VecDeque<NetEvent>,
}

impl TestNet {
    /// The connection to a port that is there, the last.
    pub fn pipe(&mut self, port: u16) -> (u64, &mut Pipe) {
        let pipe = self.pipes.iter_mut().rev().find(|(_, pipe)| pipe.port == port && !pipe.is_closed);
        let (id, pipe) = pipe.unwrap();
        (*id, pipe)
    }

    /// A peer connects to a port that is listened on, and is then the one at another.
    pub fn arrive(&mut self, to: u16, port: u16) {
        let id = self.pipes.len() as u64 + 1;
        self.pipes.insert(id, Pipe { port, ..Pipe::default() });
        let listener = self.listening.iter().position(|other| *other == to).unwrap() as u32;
        let (listener, connection, peer) = (ListenerId(listener), ConnectionId(id), address(port));
        self.events.push_back(NetEvent::Accepted { listener, connection, peer });
    }

    /// The peer at a port sends no more.
    pub fn end(&mut self, port: u16) {
        let (id, pipe) = self.pipe(port);
        pipe.is_ended = true;
        self.events.push_back(NetEvent::Readable(ConnectionId(id)));
    }

    /// The peer at a port sends bytes.
    pub fn say(&mut self, port: u16, bytes: &[u8]) {
        let (id, pipe) = self.pipe(port);
        pipe.to_card.extend(bytes);
        self.events.push_back(NetEvent::Readable(ConnectionId(id)));
    }

    /// The peer at a port goes away.
    pub fn cut(&mut self, port: u16) {
        let (id, pipe) = self.pipe(port);
        pipe.is_closed = true;
        self.events.push_back(NetEvent::Closed { connection: ConnectionId(id), error: NetError::Reset });
    }

    pub fn widen(&mut self, port: u16, room: usize) {
        let (id, pipe) = self.pipe(port);
        pipe.room = Some(room);
        self.events.push_back(NetEvent::Writable(ConnectionId(id)));
    }

    /// What the peer at a port has received, message by message.
    pub fn heard(&mut self, port: u16) -> Vec<(Header, Vec<u8>)> {
        let (_, pipe) = self.pipe(port);
        let mut messages = Vec::new();
        while let Ok(header) = Header::decode(&pipe.to_peer, MAGIC) {
            let end = HEADER_LEN + header.payload_len as usize;
            if pipe.to_peer.len() < end {
                break;
            }
            let rest = pipe.to_peer.split_off(end);
            messages.push((header, pipe.to_peer[HEADER_LEN..].to_vec()));
            pipe.to_peer = rest;
        }
        messages
    }
}

impl Net for TestNet {
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        if self.listening.contains(&address.port()) {
            return Err(NetListenError::InUse(address));
        }
        self.listening.push(address.port());
        Ok(ListenerId(self.listening.len() as u32 - 1))
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.listening.get(listener.0 as usize).map(|port| address(*port))
    }

    fn connect(&mut self, address: SocketAddr) -> Result<ConnectionId, NetError> {
        let id = self.pipes.len() as u64 + 1;
        let (port, connection) = (address.port(), ConnectionId(id));
        self.pipes.insert(id, Pipe { port, ..Pipe::default() });
        self.events.push_back(if self.refused.contains(&port) {
            NetEvent::Closed { connection, error: NetError::Refused }
        } else {
            NetEvent::Connected(connection)
        });
        Ok(connection)
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        let pipe = self.pipes.get_mut(&connection.0).ok_or(NetError::Unknown)?;
        let count = into.len().min(pipe.to_card.len());
        for (place, byte) in into.iter_mut().zip(pipe.to_card.drain(..count)) {
            *place = byte;
        }
        if count == 0 && pipe.is_ended {
            return Ok(Received::End);
        }
        Ok(if count == 0 && !into.is_empty() { Received::Nothing } else { Received::Bytes(count) })
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        let pipe =
            self.pipes.get_mut(&connection.0).filter(|pipe| !pipe.is_closed).ok_or(NetError::Unknown)?;
        let count = pipe.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        pipe.room = pipe.room.map(|room| room - count);
        pipe.to_peer.extend_from_slice(&bytes[..count]);
        Ok(Sent(count))
    }

    fn finish(&mut self, _: ConnectionId) -> Result<(), NetError> {
        Ok(())
    }

    fn close(&mut self, connection: ConnectionId) {
        self.pipes.get_mut(&connection.0).unwrap().is_closed = true;
    }

    fn poll(&mut self) -> Option<NetEvent> {
        self.events.pop_front()
    }
}
