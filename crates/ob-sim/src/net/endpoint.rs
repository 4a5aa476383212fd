//! One end of a connection.

use std::collections::VecDeque;

use ob_core::{ConnectionId, Instant, NetError};

use crate::NodeId;

/// What travels from one end to the other, in order.
#[derive(Clone, Debug)]
pub(super) enum Segment {
    /// May I connect to this port?
    Syn(u16),
    /// You may; the accepting end.
    Accept(ConnectionId),
    Bytes(Vec<u8>),
    /// So many bytes were received by the program.
    Ack(usize),
    /// No more bytes.
    End,
}

/// How far an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Open,
    /// The program closed it; what it sent before is still on its way.
    Closing,
    /// Broken; the program is told by an event, and then it is gone.
    Broken(NetError),
}

pub(super) struct Endpoint {
    pub(super) node: NodeId,
    pub(super) peer_node: NodeId,
    /// The other end, once it exists.
    pub(super) peer: Option<ConnectionId>,
    pub(super) phase: Phase,
    /// On the way to the peer, with the time each arrives at the earliest.
    pub(super) outgoing: VecDeque<(Instant, Segment)>,
    /// When the line is free for the next bytes, and when the last segment arrives.
    pub(super) line_free: Instant,
    /// Since when the first of them does not get through.
    pub(super) held_up_since: Option<Instant>,
    /// Sent and not yet received by the peer's program.
    pub(super) unacknowledged: usize,
    pub(super) arrived: VecDeque<u8>,
    pub(super) end_arrived: bool,
    pub(super) finished: bool,
    /// Whether the program is to be told of bytes, and of room.
    pub(super) wants_read: bool,
    pub(super) wants_write: bool,
}

impl Endpoint {
    pub(super) fn new(node: NodeId, peer_node: NodeId, peer: Option<ConnectionId>, phase: Phase) -> Self {
        Self {
            node,
            peer_node,
            peer,
            phase,
            outgoing: VecDeque::new(),
            line_free: Instant::default(),
            held_up_since: None,
            unacknowledged: 0,
            arrived: VecDeque::new(),
            end_arrived: false,
            finished: false,
            wants_read: true,
            wants_write: false,
        }
    }

    /// Moves what has arrived into a buffer.
    pub(super) fn take(&mut self, into: &mut [u8]) {
        let (front, back) = self.arrived.as_slices();
        let (head, tail) = into.split_at_mut(front.len().min(into.len()));
        head.copy_from_slice(&front[..head.len()]);
        tail.copy_from_slice(&back[..tail.len()]);
        self.arrived.drain(..into.len());
    }
}
