//! A chunk server's sockets, and what it is seen to promise there (`docs/simulation-volumes.md`, monitors): to no epoch below one that it has
//! answered, to no connection whose place another has taken, and of no place two contents. What it says that it has of a chunk is kept, to be compared with
//! what tiers believe.
//!
//! Nothing is changed on its way. Only what was answered *good* counts, of requests that had come when the server had promised otherwise.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::net::SocketAddr;
use std::rc::Rc;

use ob_core::{
    ChunkName, ConnectionId, Epoch, ListenerId, Net, NetError, NetEvent, NetListenError, Received,
    SegmentName, Sent, ServerId, TierId, Units,
};
use ob_format::volume::Record;
use ob_sim::SimNet;
use ob_volume::wire::{Answer, HEADER_LEN, Kind, Reply, ReplyMessage, Request, RequestMessage};

/// What all servers have said.
pub(super) type Spoken = Rc<RefCell<Telling>>;

#[derive(Debug, Default)]
pub(super) struct Telling {
    /// What lies at places: the sum of the record there.
    places: BTreeMap<(ChunkName, Units), u64>,
    /// How much of a chunk a server has said that it has.
    ends: BTreeMap<(ServerId, ChunkName), Units>,
}

impl Telling {
    /// How much of a chunk a server has, as it has said itself.
    pub(super) fn end_of(&self, server: ServerId, chunk: ChunkName) -> Units {
        self.ends.get(&(server, chunk)).copied().unwrap_or_default()
    }

    fn note_end(&mut self, server: ServerId, request: &Request, reply: &Reply) {
        let (chunk, end) = match (request, reply) {
            (Request::Append { chunk, .. }, Reply::Append { durable, .. })
            | (Request::Fill { chunk, .. }, Reply::Fill { durable }) => (*chunk, *durable),
            (Request::Stop { chunk, .. }, Reply::Stop(end))
            | (Request::Stat { chunk, .. }, Reply::Stat { end, .. }) => (*chunk, end.end),
            (Request::Seal { chunk, length, .. }, Reply::Seal) => (*chunk, *length),
            (Request::Delete { chunk, .. }, Reply::Delete) => {
                self.ends.remove(&(server, *chunk));
                return;
            }
            _ => return,
        };
        let known = self.ends.entry((server, chunk)).or_default();
        *known = (*known).max(end);
    }
}

/// What a server has promised, over all of its lives on one disk.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// The highest epoch of a segment that was answered.
    epochs: BTreeMap<SegmentName, Epoch>,
    /// Requests that came in this life, by what they ask.
    pub(super) came: Vec<&'static str>,
    /// What it has promised and not kept.
    pub(super) broken: Option<String>,
}

/// A server's way to the network, in one life.
pub(super) struct Sockets {
    net: SimNet,
    streams: BTreeMap<ConnectionId, Stream>,
    /// Whose connection each was that said hello last.
    greeted: BTreeMap<(TierId, u32), ConnectionId>,
    promises: Rc<RefCell<Promises>>,
    told: Spoken,
    /// Who it is, as it says.
    id: Option<ServerId>,
}

/// A connection, both ways.
#[derive(Default)]
struct Stream {
    requests: Cutter,
    replies: Cutter,
    /// What waits for its answer, by its tag.
    waiting: BTreeMap<u64, Asked>,
    /// Another has its place.
    is_replaced: bool,
}

struct Asked {
    request: Request,
    /// A higher epoch that was answered before it came.
    above: Option<Epoch>,
    was_replaced: bool,
    /// Records that it brings: where, and their sums.
    records: Vec<(Units, u64)>,
}

/// Cuts a stream of bytes into messages.
#[derive(Default)]
struct Cutter {
    bytes: Vec<u8>,
    /// Those of them that were messages.
    used: usize,
}

impl Cutter {
    fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.used));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, header and payload; `len` tells from its header how much follows.
    fn next(&mut self, len: impl Fn(&[u8]) -> Option<u32>) -> Option<(&[u8], &[u8])> {
        let rest = self.bytes.get(self.used..)?;
        let (header, behind) = rest.split_at_checked(HEADER_LEN)?;
        let payload = behind.get(..len(header)? as usize)?;
        self.used += HEADER_LEN + payload.len();
        Some((header, payload))
    }
}

impl Sockets {
    pub(super) fn new(net: SimNet, promises: Rc<RefCell<Promises>>, told: Spoken) -> Self {
        Self { net, streams: BTreeMap::new(), greeted: BTreeMap::new(), promises, told, id: None }
    }

    fn came(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let stream = self.streams.entry(connection).or_default();
        stream.requests.feed(bytes);
        let len = |header: &[u8]| RequestMessage::decode(header).ok().map(|message| message.payload_len);
        while let Some((header, payload)) = stream.requests.next(len) {
            let Ok(RequestMessage { tag, request, .. }) = RequestMessage::decode(header) else { break };
            let mut promises = self.promises.borrow_mut();
            promises.came.push(name_of(request.kind()));
            let known = request.fence().and_then(|(segment, _)| promises.epochs.get(&segment).copied());
            let above = known.filter(|known| request.fence().is_some_and(|(_, epoch)| *known > epoch));
            let asked = Asked {
                request,
                above,
                was_replaced: stream.is_replaced,
                records: records_of(&request, payload),
            };
            stream.waiting.insert(tag, asked);
        }
    }

    fn went(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let Some(stream) = self.streams.get_mut(&connection) else { return };
        stream.replies.feed(bytes);
        let len = |header: &[u8]| ReplyMessage::decode(header).ok().map(|message| message.payload_len);
        let mut good = Vec::new();
        while let Some((header, _)) = stream.replies.next(len) {
            let Ok(ReplyMessage { tag, answer, .. }) = ReplyMessage::decode(header) else { break };
            let asked = stream.waiting.remove(&tag);
            if let (Some(asked), Answer::Good(reply)) = (asked, answer) {
                good.push((asked, reply));
            }
        }
        for (asked, reply) in good {
            self.promised(connection, &asked);
            if let Reply::Hello { server, .. } = reply {
                self.id = Some(server);
            }
            if let Some(id) = self.id {
                self.told.borrow_mut().note_end(id, &asked.request, &reply);
            }
        }
    }

    /// It has said that it has done what was asked.
    fn promised(&mut self, connection: ConnectionId, asked: &Asked) {
        let mut promises = self.promises.borrow_mut();
        let mut broken = |what: String| {
            promises.broken.get_or_insert(what);
        };
        if let Some(above) = asked.above {
            broken(format!("it has done {:?}, and had answered {above:?} before that came", asked.request));
        }
        if asked.was_replaced {
            broken(format!("it has done {:?} for a connection that another had replaced", asked.request));
        }
        if let Request::Hello { tier, port, .. } = asked.request {
            let before = self.greeted.insert((tier, port), connection);
            let before = before.filter(|before| *before != connection);
            if let Some(stream) = before.and_then(|before| self.streams.get_mut(&before)) {
                stream.is_replaced = true;
            }
        }
        if let Some(chunk) = chunk_of(&asked.request) {
            let mut told = self.told.borrow_mut();
            for (offset, sum) in &asked.records {
                if *told.places.entry((chunk, *offset)).or_insert(*sum) != *sum {
                    broken(format!("it has taken another record at {offset:?} of {chunk:?} than was there"));
                }
            }
        }
        if let Some((segment, epoch)) = asked.request.fence() {
            let known = promises.epochs.entry(segment).or_insert(epoch);
            *known = (*known).max(epoch);
        }
    }
}

/// Which chunk gets records.
fn chunk_of(request: &Request) -> Option<ChunkName> {
    match *request {
        Request::Append { chunk, .. } | Request::Fill { chunk, .. } | Request::Repair { chunk, .. } => {
            Some(chunk)
        }
        _ => None,
    }
}

fn records_of(request: &Request, payload: &[u8]) -> Vec<(Units, u64)> {
    let mut records = Vec::new();
    let mut rest = payload;
    while chunk_of(request).is_some() && !rest.is_empty() {
        let Ok(record) = Record::decode(rest) else { break };
        let Some((bytes, behind)) = rest.split_at_checked(record.header.units().bytes() as usize) else {
            break;
        };
        let mut sum = DefaultHasher::new();
        sum.write(bytes);
        records.push((record.header.offset, sum.finish()));
        rest = behind;
    }
    records
}

/// What is asked, as a point in a story.
fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Hello => "server: hello",
        Kind::Ping => "server: ping",
        Kind::Create => "server: create",
        Kind::Append => "server: append",
        Kind::Read => "server: read",
        Kind::Stop => "server: stop",
        Kind::Fill => "server: fill",
        Kind::Seal => "server: seal",
        Kind::Delete => "server: delete",
        Kind::Stat => "server: stat",
        Kind::List => "server: list",
        Kind::Chunks => "server: chunks",
        Kind::Fence => "server: fence",
        Kind::Repair => "server: repair",
        Kind::Check => "server: check",
    }
}

impl Net for Sockets {
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        self.net.listen(address)
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.net.listener_address(listener)
    }

    fn connect(&mut self, address: SocketAddr) -> Result<ConnectionId, NetError> {
        self.net.connect(address)
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        let received = self.net.receive(connection, into)?;
        if let Received::Bytes(count) = received {
            self.came(connection, into.get(..count).unwrap_or_default());
        }
        Ok(received)
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        let sent = self.net.send(connection, bytes)?;
        self.went(connection, bytes.get(..sent.0).unwrap_or_default());
        Ok(sent)
    }

    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError> {
        self.net.finish(connection)
    }

    fn close(&mut self, connection: ConnectionId) {
        self.streams.remove(&connection);
        self.net.close(connection);
    }

    fn poll(&mut self) -> Option<NetEvent> {
        let event = self.net.poll();
        if let Some(NetEvent::Closed { connection, .. }) = event {
            self.streams.remove(&connection);
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_cut_where_messages_end() {
        let ping = RequestMessage { tag: 7, payload_len: 0, request: Request::Ping }.encode().unwrap();
        let len = |header: &[u8]| RequestMessage::decode(header).ok().map(|message| message.payload_len);
        let mut cutter = Cutter::default();
        let stream = [ping, ping].concat();
        let mut found = 0;
        for part in stream.chunks(24) {
            cutter.feed(part);
            while let Some((header, payload)) = cutter.next(len) {
                assert!(header == ping && payload.is_empty());
                found += 1;
            }
        }
        assert_eq!(found, 2);
    }
}
