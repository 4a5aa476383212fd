//! One client's connection.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ob_core::{ConnectionId, Instant};
use ob_offload::{ContextId, Reason, Requests, Standing};
use ob_wire_link::stream::CREDIT_LEN;

use crate::input::Input;
use crate::output::Output;

/// A connection of a director. Its number is not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey(pub(crate) u64);

/// Bits of a key that say where the connection is.
const INDEX_BITS: u32 = 24;
/// Connections that there can be at once.
pub(crate) const CONNECTIONS_END: usize = 1 << INDEX_BITS;

impl ConnectionKey {
    pub(crate) fn new(serial: u64, index: usize) -> Self {
        Self(serial << INDEX_BITS | index as u64)
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & (CONNECTIONS_END as u64 - 1)) as usize
    }

    /// What the host calls it.
    pub(crate) fn number(self) -> ConnectionId {
        ConnectionId(self.0)
    }
}

/// A request that has no complete reply yet, or whose reply waits for those before it.
#[derive(Debug)]
pub(crate) enum Pending {
    /// The engine has it.
    Card(ContextId),
    /// The host has it.
    Host(Forwarded),
    /// The director itself answers it.
    Said(Vec<u8>),
}

/// A request that the host has.
#[derive(Debug)]
pub(crate) struct Forwarded {
    pub(crate) stamp: u64,
    pub(crate) id: u64,
    /// Bytes of the reply, once its first fragment is there, and how many of them have come.
    pub(crate) length: Option<u32>,
    pub(crate) received: u32,
    /// What has come and waits for replies before it.
    pub(crate) held: Vec<u8>,
}

impl Forwarded {
    pub(crate) fn new(stamp: u64, id: u64) -> Self {
        Self { stamp, id, length: None, received: 0, held: Vec::new() }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.length == Some(self.received)
    }
}

/// How a connection comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It does not.
    Open,
    /// When what waits was answered and sent.
    AfterReplies,
    /// All was sent, and so was the end; the client has not ended its side.
    Finished {
        /// When it is closed all the same.
        until: Instant,
    },
    /// The client is gone, but the host has not been told.
    Gone,
}

/// A message whose requests are being routed.
#[derive(Debug, Default)]
pub(crate) struct Underway {
    /// Bytes of it; 0 if there is none.
    pub(crate) len: usize,
    /// The requests of it. A long message goes in many turns, and is not looked through again in each of them.
    pub(crate) requests: Requests,
    /// The standing that they were listed under, as long as they are.
    pub(crate) listed_under: Option<Standing>,
    /// They were listed, and the list was too long to be kept until they can be routed.
    pub(crate) is_put_off: bool,
    /// The request that is next.
    pub(crate) request: usize,
    /// Where in the message it begins: those before are routed, however they were listed.
    pub(crate) routed_to: usize,
    /// Bytes of it that the host has.
    pub(crate) forwarded: usize,
    /// Why the card does not answer it, if it was asked.
    pub(crate) refused: Option<Reason>,
}

impl Underway {
    /// Whether the next to be forwarded is the rest of this message, because its list is long and cannot be made again.
    pub(crate) fn keeps_turn(&self) -> bool {
        self.forwarded > 0 && self.requests.is_long()
    }

    /// Nothing can be routed for now. A long list is made again when something can, unless that is this connection's turn next:
    /// thousands of connections may wait at once. Where a part is done, making it again and again would take too long.
    pub(crate) fn spare_memory(&mut self, is_next: bool) {
        if self.requests.is_long() && self.request == 0 && self.forwarded == 0 && !is_next {
            self.requests.clear();
            self.listed_under = None;
            self.is_put_off = true;
        }
    }
}

/// A client.
pub(crate) struct Connection<C> {
    pub(crate) key: ConnectionKey,
    pub(crate) net: ConnectionId,
    pub(crate) peer: SocketAddr,
    /// The card looks for answers to its requests.
    pub(crate) is_matched: bool,
    pub(crate) cutter: C,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// Replies in the output that were not there when it was last sent.
    pub(crate) gathered: usize,
    /// Bytes of replies that the client has not taken: the output's, and those of the host that wait for others.
    pub(crate) unread: usize,
    pub(crate) pending: VecDeque<Pending>,
    /// How many at the front of `pending` do not depend on a read any more.
    pub(crate) settled: usize,
    /// Bytes of the engine's memory that its requests have.
    pub(crate) held: usize,
    pub(crate) underway: Underway,
    pub(crate) standing: Standing,
    /// The stamp of the last request that may have changed the standing.
    pub(crate) standing_from: u64,
    /// The request that decided the standing.
    pub(crate) standing_told: u64,
    /// That request has no reply yet: nothing behind it is looked at.
    pub(crate) awaits_standing: bool,
    /// The host keeps something of this connection that the next host will not know.
    pub(crate) has_session: bool,
    /// The client has ended its side.
    pub(crate) is_ended: bool,
    pub(crate) ending: Ending,
    /// The host knows of it.
    pub(crate) is_announced: bool,
    /// Bytes of replies that the host may still send.
    pub(crate) credit: u32,
    /// Bytes of replies that were sent on, for which the host has got no credit back.
    pub(crate) credit_due: u32,
    /// Bytes that came, and bytes that the client took.
    pub(crate) progress: u64,
    /// How many those were when somebody began to wait for memory, if this connection had some and was not held up since.
    pub(crate) progress_from: Option<u64>,
    pub(crate) flags: Flags,
}

/// In which of the director's queues a connection is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) is_ready: bool,
    pub(crate) is_dirty: bool,
    /// Its replies wait for others.
    pub(crate) is_gathering: bool,
    pub(crate) is_in_control: bool,
    /// The driver has been told not to receive.
    pub(crate) is_held_up: bool,
    /// The network takes nothing more until it says so.
    pub(crate) is_clogged: bool,
    /// It may go on, or end, when something was sent.
    pub(crate) awaits_output: bool,
    /// It has a request for which the stream has no room.
    pub(crate) awaits_stream: bool,
}

impl<C: Default> Connection<C> {
    pub(crate) fn new(key: ConnectionKey, net: ConnectionId, peer: SocketAddr) -> Self {
        Self {
            key,
            net,
            peer,
            is_matched: true,
            cutter: C::default(),
            input: Input::default(),
            output: Output::default(),
            gathered: 0,
            unread: 0,
            pending: VecDeque::new(),
            settled: 0,
            held: 0,
            underway: Underway::default(),
            standing: Standing::NONE,
            standing_from: 0,
            standing_told: 0,
            awaits_standing: false,
            has_session: false,
            is_ended: false,
            ending: Ending::Open,
            is_announced: false,
            credit: CREDIT_LEN,
            credit_due: 0,
            progress: 0,
            progress_from: None,
            flags: Flags::default(),
        }
    }

    /// Whether everything before what comes next is settled (rule 5).
    pub(crate) fn is_settled(&self) -> bool {
        self.settled == self.pending.len()
    }

    /// Whether there is something to send that nobody has been told of, and that the network takes.
    pub(crate) fn is_to_be_sent(&self) -> bool {
        !(self.output.is_empty() || self.flags.is_dirty || self.flags.is_clogged)
    }

    /// Whether the next reply is one that the card reads.
    pub(crate) fn is_reading(&self) -> bool {
        !self.is_settled() && !matches!(self.pending.front(), Some(Pending::Host(_)))
    }

    /// Where the request with this stamp is.
    pub(crate) fn find(&self, stamp: u64) -> Option<usize> {
        self.pending.iter().position(|pending| match pending {
            Pending::Host(forwarded) => forwarded.stamp == stamp,
            Pending::Card(_) | Pending::Said(_) => false,
        })
    }
}

impl<C> Connection<C> {
    /// Bytes of memory for its message that it waits for.
    pub(crate) fn starves_for(&self) -> usize {
        if self.flags.is_held_up { self.input.lacks() } else { 0 }
    }

    /// The reply that is in the output in part: nothing else may come between.
    pub(crate) fn within_reply(&self) -> Option<usize> {
        (0..self.pending.len()).find(|at| self.is_within(*at))
    }

    /// Whether the reply at this place is that one.
    pub(crate) fn is_within(&self, at: usize) -> bool {
        match self.pending.get(at) {
            Some(Pending::Host(forwarded)) => forwarded.received as usize > forwarded.held.len(),
            Some(Pending::Card(_) | Pending::Said(_)) | None => false,
        }
    }
}
