//! Byte streams to clients and peers.

use std::io::{IoSlice, IoSliceMut};
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

    /// The address that a connection has on this side, where that is known: one that listens on all of a machine's
    /// addresses was reached at one of them.
    fn local_address(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let _ = connection;
        None
    }

    /// Begins to connect.
    fn connect(&mut self, address: SocketAddr) -> Result<ConnectionId, NetError>;

    /// Copies what has arrived. Asked for nothing (an empty buffer), it gives `Bytes(0)`.
    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError>;

    /// Sends some of `bytes`.
    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError>;

    /// Copies what has arrived into one slice after the other, as [`Net::receive`] does into one buffer.
    ///
    /// A short count says nothing about what there is left: go on until [`Received::Nothing`].
    fn receive_vectored(
        &mut self,
        connection: ConnectionId,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Received, NetError> {
        let mut total = 0;
        for slice in into.iter_mut().filter(|slice| !slice.is_empty()) {
            match self.receive(connection, slice) {
                Ok(Received::Bytes(count)) => {
                    total += count;
                    if count < slice.len() {
                        break;
                    }
                }
                // What there is besides the bytes (nothing, the end, an error) is there the next time too.
                _ if total > 0 => break,
                other => return other,
            }
        }
        // Nothing was asked for. Whether the connection is still there is answered all the same.
        if total == 0 { self.receive(connection, &mut []) } else { Ok(Received::Bytes(total)) }
    }

    /// Sends some of the bytes of the slices, one slice after the other, as [`Net::send`] does of one buffer.
    fn send_vectored(&mut self, connection: ConnectionId, slices: &[IoSlice<'_>]) -> Result<Sent, NetError> {
        let mut total = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            match self.send(connection, slice) {
                Ok(Sent(count)) => {
                    total += count;
                    if count < slice.len() {
                        return Ok(Sent(total));
                    }
                }
                // The error is still there the next time, and its event follows.
                Err(_) if total > 0 => return Ok(Sent(total)),
                Err(error) => return Err(error),
            }
        }
        if total == 0 { self.send(connection, &[]) } else { Ok(Sent(total)) }
    }

    /// Sends no more, still receives.
    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError>;

    /// Ends a connection at once. No event follows.
    fn close(&mut self, connection: ConnectionId);

    /// The next event.
    fn poll(&mut self) -> Option<NetEvent>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One connection that is scripted: what has arrived, and how much each call moves at most.
    #[derive(Default)]
    struct Scripted {
        arrived: Vec<u8>,
        sent: Vec<u8>,
        /// How much each of the coming calls moves; none when this is used up.
        moves: Vec<usize>,
        error: Option<NetError>,
        calls: usize,
    }

    impl Scripted {
        fn next_move(&mut self, most: usize) -> Result<usize, NetError> {
            self.calls += 1;
            if self.moves.is_empty() {
                return self.error.map_or(Ok(0), Err);
            }
            Ok(self.moves.remove(0).min(most))
        }
    }

    impl Net for Scripted {
        fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
            Err(NetListenError::InUse(address))
        }

        fn listener_address(&self, _: ListenerId) -> Option<SocketAddr> {
            None
        }

        fn connect(&mut self, _: SocketAddr) -> Result<ConnectionId, NetError> {
            Err(NetError::Refused)
        }

        fn receive(&mut self, _: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
            let count = self.next_move(into.len().min(self.arrived.len()))?;
            into[..count].copy_from_slice(&self.arrived[..count]);
            self.arrived.drain(..count);
            let nothing = count == 0 && !into.is_empty();
            Ok(if nothing { Received::Nothing } else { Received::Bytes(count) })
        }

        fn send(&mut self, _: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
            let count = self.next_move(bytes.len())?;
            self.sent.extend_from_slice(&bytes[..count]);
            Ok(Sent(count))
        }

        fn finish(&mut self, _: ConnectionId) -> Result<(), NetError> {
            Ok(())
        }

        fn close(&mut self, _: ConnectionId) {}

        fn poll(&mut self) -> Option<NetEvent> {
            None
        }
    }

    const ID: ConnectionId = ConnectionId(1);

    fn receive(net: &mut Scripted, lens: [usize; 3]) -> (Result<Received, NetError>, [Vec<u8>; 3]) {
        let mut buffers = lens.map(|len| vec![0; len]);
        let [a, b, c] = &mut buffers;
        let result = net.receive_vectored(ID, &mut [a, b, c].map(|buffer| IoSliceMut::new(buffer)));
        (result, buffers)
    }

    #[test]
    fn receiving_goes_on_from_slice_to_slice_until_one_is_not_filled() {
        let net = |moves: &[usize], error| Scripted {
            arrived: vec![1, 2, 3, 4, 5, 6],
            moves: moves.to_vec(),
            error,
            ..Scripted::default()
        };
        let (result, [a, b, c]) = receive(&mut net(&[9, 9, 9], None), [2, 0, 9]);
        assert_eq!((result, a, b), (Ok(Received::Bytes(6)), vec![1, 2], vec![]));
        assert_eq!(c, [3, 4, 5, 6, 0, 0, 0, 0, 0]);
        let mut short = net(&[2, 1, 9], None);
        assert_eq!(receive(&mut short, [2, 2, 2]).0, Ok(Received::Bytes(3)));
        assert_eq!(short.calls, 2, "a slice that is not filled is the last");
        assert_eq!(receive(&mut net(&[2], None), [2, 2, 2]).0, Ok(Received::Bytes(2)), "then nothing");
        let mut broken = net(&[2], Some(NetError::Reset));
        assert_eq!(receive(&mut broken, [2, 2, 2]).0, Ok(Received::Bytes(2)), "bytes come before the error");
        assert_eq!(receive(&mut broken, [2, 2, 2]).0, Err(NetError::Reset));
        assert_eq!(receive(&mut broken, [0, 0, 0]).0, Err(NetError::Reset));
        assert_eq!(receive(&mut net(&[], None), [2, 2, 2]).0, Ok(Received::Nothing));
        assert_eq!(receive(&mut net(&[], None), [0, 0, 0]).0, Ok(Received::Bytes(0)));
        assert_eq!(net(&[], None).receive_vectored(ID, &mut []), Ok(Received::Bytes(0)));
    }

    #[test]
    fn sending_goes_on_from_slice_to_slice_until_one_is_not_taken_whole() {
        let slices = [&[1u8, 2][..], &[], &[3, 4, 5]].map(IoSlice::new);
        let send = |moves: &[usize], error| {
            let mut net = Scripted { moves: moves.to_vec(), error, ..Scripted::default() };
            let result = net.send_vectored(ID, &slices);
            (result, net.sent)
        };
        assert_eq!(send(&[9, 9], None), (Ok(Sent(5)), vec![1, 2, 3, 4, 5]));
        assert_eq!(send(&[1, 9], None), (Ok(Sent(1)), vec![1]));
        assert_eq!(send(&[2, 2, 9], None), (Ok(Sent(4)), vec![1, 2, 3, 4]));
        assert_eq!(send(&[], None), (Ok(Sent(0)), vec![]));
        assert_eq!(send(&[2], Some(NetError::Reset)), (Ok(Sent(2)), vec![1, 2]));
        assert_eq!(send(&[], Some(NetError::Reset)), (Err(NetError::Reset), vec![]));
        let mut closed = Scripted { error: Some(NetError::Unknown), ..Scripted::default() };
        assert_eq!(closed.send_vectored(ID, &[]), Err(NetError::Unknown));
    }
}
