//! Byte streams to clients and peers.

use std::net::SocketAddr;

use crate::{ConnectionId, ListenerId};

/// What happened on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// A peer connected to one of our listeners.
    Accepted {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        connection: ConnectionId,
        /// The peer's address.
        peer: SocketAddr,
    },
    /// A connection that [`Net::connect`] began is established.
    Connected(ConnectionId),
    /// There may be bytes, or the end of the stream, to receive.
    Readable(ConnectionId),
    /// There may be room to send again after a [`Sent`] of fewer bytes than offered.
    Writable(ConnectionId),
    /// The connection broke, or could not be established. It is gone; the id is not used again.
    Closed {
        /// Which.
        connection: ConnectionId,
        /// Why.
        error: NetError,
    },
}

/// What [`Net::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes were copied, at least one.
    Bytes(usize),
    /// Nothing yet; a [`NetEvent::Readable`] will follow.
    Nothing,
    /// The peer will send no more. It may still receive.
    End,
}

/// What [`Net::send`] took: maybe fewer bytes than offered, maybe none; then a [`NetEvent::Writable`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent(pub usize);

/// Why a connection is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// Nobody listens there.
    #[error("connection refused")]
    Refused,
    /// The peer, or something in between, reset the connection.
    #[error("connection reset")]
    Reset,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// There is no way to the peer.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// This side has no connection of that id (any more).
    #[error("no such connection")]
    Unknown,
    /// This side is out of descriptors or memory.
    #[error("out of descriptors or memory")]
    Exhausted,
}

/// Why an address cannot be listened on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetListenError {
    /// Another process has the port.
    #[error("{0} is in use by another process")]
    InUse(SocketAddr),
    /// This machine has no such address, or the port needs a privilege.
    #[error("cannot listen on {0}: {1}")]
    Unavailable(SocketAddr, String),
}

/// Connected byte streams, TCP in the real world.
///
/// Readiness is told once: after [`Received::Nothing`] or a short [`Sent`] the next event says when to go on.
pub trait Net {
    /// Begins to accept connections.
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError>;

    /// The address a listener really has (port 0 asks for any).
    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr>;

    /// Begins to connect.
    fn connect(&mut self, address: SocketAddr) -> Result<ConnectionId, NetError>;

    /// Copies what has arrived.
    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError>;

    /// Sends some of `bytes`.
    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError>;

    /// Sends no more, still receives.
    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError>;

    /// Ends a connection at once. No event follows.
    fn close(&mut self, connection: ConnectionId);

    /// The next event.
    fn poll(&mut self) -> Option<NetEvent>;
}
