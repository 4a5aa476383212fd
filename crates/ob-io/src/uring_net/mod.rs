//! TCP where the kernel accepts and receives by itself, into buffers that lie ready for whichever connection has
//! bytes first.
//!
//! ```text
//!   kernel ─ accepts, receives ─▶ News ─▶ UringNet::poll ─▶ pieces of each connection ─▶ NetEvent
//!     ▲                                                            │
//!     │  buffers                                                   ▼
//!     └────────────────────────────────────────────── receive copies them out
//! ```
//!
//! A turn of the reactor brings the bytes along with the news of them, which saves the call that fetches them; they
//! are copied once more instead. Sends are plain calls that do not wait: a send of the ring's would have to own its
//! bytes, and [`ob_core::Net`] only lends them.
//!
//! The buffers are shared, so a connection that nobody reads is stopped before it has them all; and when there are
//! none, connections are watched and read by calls, as [`crate::TcpNet`] does always. Nobody waits for a buffer.

mod connection;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{ConnectionId, ListenerId, Net, NetError, NetEvent, NetListenError, Received, Sent};
use rustix::io::Errno;
use rustix::net::{Shutdown, bind, connect, getpeername, getsockname, listen, shutdown, sockopt};

use crate::reactor::{Event, Handle, Interest, News, ReactorError, Readiness, StreamId, StreamWork, WatchId};
use crate::tcp::{ACCEPT_PAUSE, BACKLOG, connection_id, net_error, stream_socket};
use crate::timers::TimerId;
use connection::{Connection, Source};

/// The memory that a [`UringNet`] receives into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringNetBuffers {
    /// How many buffers lie ready; as many again are in reserve.
    pub count: u16,
    /// The length of each, whole pages.
    pub len: usize,
}

impl Default for UringNetBuffers {
    fn default() -> Self {
        // Few and large: they are used in turn, so all of them together have to stay in a core's cache.
        Self { count: 8, len: 64 << 10 }
    }
}

/// Connected byte streams over TCP, like [`crate::TcpNet`] to its owner.
pub struct UringNet {
    handle: Handle,
    group: u16,
    listeners: Vec<Listener>,
    /// Accepted by the kernel, and not yet told of.
    accepted: VecDeque<(u32, OwnedFd)>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    queue: VecDeque<u32>,
    /// Counts the times that there were news.
    round: u64,
    /// Which connection a watch belongs to, by the watch's index.
    targets: Vec<Option<(WatchId, u32)>>,
    /// Set while accepting has to go on later.
    accept_later: Option<TimerId>,
}

struct Listener {
    socket: Rc<OwnedFd>,
    address: SocketAddr,
    accepting: Option<StreamId>,
    stopping: bool,
}

struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

/// Tags of listeners; those of connections are their ids, whose generations leave this bit free.
const LISTENER_TAG: u64 = 1 << 63;

impl UringNet {
    /// A network with room for `connections_max` connections; when all are taken, further ones wait in the kernel.
    /// Refused by kernels before 6.0, where a [`crate::TcpNet`] does the same.
    pub fn new(
        handle: &Handle,
        connections_max: u32,
        buffers: UringNetBuffers,
    ) -> Result<Self, ReactorError> {
        Ok(Self {
            group: handle.add_stream_group(buffers.len, buffers.count)?,
            handle: handle.clone(),
            listeners: Vec::new(),
            accepted: VecDeque::new(),
            slots: (0..connections_max).map(|_| Slot { generation: 1, connection: None }).collect(),
            free: (0..connections_max).rev().collect(),
            queue: VecDeque::with_capacity(connections_max as usize),
            round: 0,
            targets: Vec::new(),
            accept_later: None,
        })
    }

    /// Takes an event of the reactor, if it is for this network.
    pub fn handle(&mut self, event: &Event) -> bool {
        match event {
            Event::Timer(timer) if self.accept_later == Some(*timer) => {
                self.accept_later = None;
                true
            }
            Event::Ready { watch, readiness } => self.handle_ready(*watch, *readiness),
            _ => false,
        }
    }

    fn handle_ready(&mut self, watch: WatchId, readiness: Readiness) -> bool {
        let Some(Some((known, index))) = self.targets.get(watch.index()).copied() else { return false };
        if known != watch {
            return false;
        }
        if let Some(connection) = &mut self.slots[index as usize].connection {
            connection.on_ready(readiness);
            self.settle(index);
        }
        true
    }

    /// After anything happened to a connection: sees to its stream and its watch, and queues what it has to tell.
    fn settle(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(connection) = &mut slot.connection else { return };
        if connection.wants_stream() {
            if self.handle.has_stream_buffers(self.group) {
                let tag = connection_id(index, slot.generation).0;
                let work = StreamWork::Receive;
                match self.handle.start_stream(self.group, tag, work, &connection.socket) {
                    Ok(stream) => connection.source = Source::Ring(Some(stream)),
                    Err(_) => connection.failed = Some(NetError::Exhausted),
                }
            } else {
                connection.source = Source::Watch { ready: false };
            }
        }
        if let Some(stream) = connection.stream_to_stop(self.round) {
            self.handle.stop_stream(stream);
        }
        match (connection.watch, connection.wants_watch() && connection.failed.is_none()) {
            (None, true) => match self.handle.watch(&*connection.socket, Interest::Both) {
                Ok(watch) => {
                    connection.watch = Some(watch);
                    if self.targets.len() <= watch.index() {
                        self.targets.resize(watch.index() + 1, None);
                    }
                    self.targets[watch.index()] = Some((watch, index));
                }
                Err(_) => connection.failed = Some(NetError::Exhausted),
            },
            (Some(watch), false) => {
                connection.watch = None;
                self.targets[watch.index()] = None;
                self.handle.unwatch(watch);
            }
            _ => {}
        }
        if connection.has_news() && !connection.queued {
            connection.queued = true;
            self.queue.push_back(index);
        }
    }

    /// After a call on a connection. One that failed has an event of its end to tell, which must not wait until
    /// something else gets the reactor out of its sleep.
    fn told_by_a_call<T>(&mut self, result: Result<T, NetError>) -> Result<T, NetError> {
        if result.is_err() {
            self.accept_after(Duration::ZERO);
        }
        result
    }

    /// Takes everything that the kernel did since the last time.
    fn take_news(&mut self) {
        let mut next = self.handle.next_stream_news(self.group);
        self.round += u64::from(next.is_some());
        let round = self.round;
        while let Some((tag, news)) = next {
            next = self.handle.next_stream_news(self.group);
            if tag & LISTENER_TAG != 0 {
                self.take_listener_news(tag as u32, news);
                continue;
            }
            // News of a connection that was closed meanwhile end here, and their buffers go back.
            let Some((index, connection)) = self.find(ConnectionId(tag)) else { continue };
            match news {
                News::Received(slice, len) => connection.on_received(slice, len, round),
                News::Over(result) => connection.on_stream_over(result),
                News::Accepted(_) => {}
            }
            self.settle(index);
        }
    }

    fn take_listener_news(&mut self, index: u32, news: News) {
        let listener = &mut self.listeners[index as usize];
        match news {
            News::Accepted(socket) => {
                self.accepted.push_back((index, socket));
                if self.accepted.len() >= self.free.len()
                    && let Some(stream) = listener.accepting
                    && !listener.stopping
                {
                    listener.stopping = true;
                    self.handle.stop_stream(stream);
                }
            }
            News::Over(result) => {
                (listener.accepting, listener.stopping) = (None, false);
                if let Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) = result {
                    tracing::warn!(%errno, "cannot accept connections for now");
                    self.accept_after(ACCEPT_PAUSE);
                }
            }
            News::Received(..) => {}
        }
    }

    /// Has the kernel accept wherever it does not and there is room.
    fn start_accepting(&mut self) {
        if self.accept_later.is_some() || self.accepted.len() >= self.free.len() {
            return;
        }
        for (index, listener) in (0u64..).zip(&mut self.listeners) {
            if listener.accepting.is_none() {
                let tag = LISTENER_TAG | index;
                let started = self.handle.start_stream(self.group, tag, StreamWork::Accept, &listener.socket);
                listener.accepting = started.ok();
            }
        }
        if self.listeners.iter().any(|listener| listener.accepting.is_none()) {
            self.accept_after(ACCEPT_PAUSE);
        }
    }

    fn next_accepted(&mut self) -> Option<NetEvent> {
        while !self.free.is_empty() {
            let (listener, socket) = self.accepted.pop_front()?;
            // A peer that is gone already has no address any more.
            let peer = getpeername(&socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
            let Some(peer) = peer else { continue };
            let Ok(connection) = self.adopt(socket, false) else { continue };
            return Some(NetEvent::Accepted { listener: ListenerId(listener), connection, peer });
        }
        None
    }

    fn next_news(&mut self) -> Option<NetEvent> {
        while let Some(index) = self.queue.pop_front() {
            let slot = &mut self.slots[index as usize];
            let id = connection_id(index, slot.generation);
            let Some(connection) = &mut slot.connection else { continue };
            connection.queued = false;
            let Some(event) = connection.next_news(id) else { continue };
            match event {
                NetEvent::Closed { .. } => self.remove(index),
                _ => self.settle(index),
            }
            return Some(event);
        }
        None
    }

    fn accept_after(&mut self, pause: Duration) {
        if self.accept_later.is_none() {
            self.accept_later = self.handle.set_timer(self.handle.now() + pause).ok();
        }
    }

    fn adopt(&mut self, socket: OwnedFd, connecting: bool) -> Result<ConnectionId, NetError> {
        // Small answers must not wait for acknowledgements; a socket without the option is still a socket.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let index = self.free.pop().ok_or(NetError::Exhausted)?;
        let slot = &mut self.slots[index as usize];
        slot.connection = Some(Connection::new(socket, connecting));
        let id = connection_id(index, slot.generation);
        self.settle(index);
        Ok(id)
    }

    fn find(&mut self, id: ConnectionId) -> Option<(u32, &mut Connection)> {
        let index = id.0 as u32;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != (id.0 >> 32) as u32 {
            return None;
        }
        slot.connection.as_mut().map(|connection| (index, connection))
    }

    fn remove(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let Some(connection) = slot.connection.take() else { return };
        // The highest bit marks the tags of listeners.
        slot.generation = ((slot.generation + 1) & 0x7fff_ffff).max(1);
        if let Some(watch) = connection.watch {
            self.targets[watch.index()] = None;
            self.handle.unwatch(watch);
        }
        if let Source::Ring(Some(stream)) = connection.source
            && !connection.stopping
        {
            self.handle.stop_stream(stream);
        }
        // The kernel holds the socket until it has let go of stream and watch; the peer should hear of it now.
        let _ = shutdown(&*connection.socket, Shutdown::Both);
        self.free.push(index);
        if !self.accepted.is_empty() || self.listeners.iter().any(|listener| listener.accepting.is_none()) {
            self.accept_after(Duration::ZERO);
        }
    }

    fn open_listener(&mut self, address: SocketAddr) -> Result<Listener, Errno> {
        let socket = stream_socket(address)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        let address = SocketAddr::try_from(getsockname(&socket)?)?;
        Ok(Listener { socket: Rc::new(socket), address, accepting: None, stopping: false })
    }
}

impl Net for UringNet {
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        let listener = self.open_listener(address).map_err(|errno| match errno {
            Errno::ADDRINUSE => NetListenError::InUse(address),
            _ => NetListenError::Unavailable(address, errno.to_string()),
        })?;
        self.listeners.push(listener);
        self.start_accepting();
        Ok(ListenerId(self.listeners.len() as u32 - 1))
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(listener.0 as usize).map(|listener| listener.address)
    }

    fn connect(&mut self, address: SocketAddr) -> Result<ConnectionId, NetError> {
        let socket = stream_socket(address).map_err(net_error)?;
        let connecting = match connect(&socket, &address) {
            Ok(()) => false,
            Err(Errno::INPROGRESS | Errno::INTR) => true,
            Err(errno) => return Err(net_error(errno)),
        };
        let id = self.adopt(socket, connecting)?;
        if !connecting && let Some((index, connection)) = self.find(id) {
            connection.tell_connected = true;
            self.settle(index);
        }
        Ok(id)
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        self.receive_vectored(connection, &mut [IoSliceMut::new(into)])
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        self.send_vectored(connection, &[IoSlice::new(bytes)])
    }

    fn receive_vectored(
        &mut self,
        connection: ConnectionId,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Received, NetError> {
        let (index, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        let result = connection.receive(into);
        self.settle(index);
        self.told_by_a_call(result)
    }

    fn send_vectored(&mut self, connection: ConnectionId, slices: &[IoSlice<'_>]) -> Result<Sent, NetError> {
        let (index, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        let result = connection.send(slices);
        self.settle(index);
        self.told_by_a_call(result)
    }

    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError> {
        let (_, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        if let Some(error) = connection.failed {
            return Err(error);
        }
        match shutdown(&*connection.socket, Shutdown::Write) {
            // Not connected (any more): what broke it is told by receiving, or by the event of its end.
            Ok(()) | Err(Errno::NOTCONN) => Ok(()),
            Err(errno) => Err(net_error(errno)),
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        if let Some((index, _)) = self.find(connection) {
            self.remove(index);
        }
    }

    fn poll(&mut self) -> Option<NetEvent> {
        self.take_news();
        self.start_accepting();
        self.next_news().or_else(|| self.next_accepted())
    }
}

impl Drop for UringNet {
    fn drop(&mut self) {
        for listener in self.listeners.drain(..) {
            let _ = shutdown(&*listener.socket, Shutdown::Both);
        }
        for index in 0..self.slots.len() {
            self.remove(index as u32);
        }
        if let Some(timer) = self.accept_later.take() {
            self.handle.cancel_timer(timer);
        }
        self.handle.remove_stream_group(self.group);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use super::*;
    use crate::reactor::{Config, Reactor, Wait};

    /// Lets something happen; gives what the network has to tell.
    fn step(reactor: &mut Reactor, net: &mut UringNet) -> Vec<NetEvent> {
        let mut events = Vec::new();
        reactor.turn(Wait::Until(None), &mut events);
        events.iter().for_each(|event| assert!(net.handle(event)));
        std::iter::from_fn(|| net.poll()).collect()
    }

    #[test]
    fn what_is_not_read_stops_the_stream_and_reading_it_goes_on() {
        let mut reactor = Reactor::new(&Config::default()).unwrap();
        let buffers = UringNetBuffers { count: 64, len: 4096 };
        let mut net = UringNet::new(&reactor.handle(), 4, buffers).unwrap();
        let listener = net.listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let mut stream = TcpStream::connect(net.listener_address(listener).unwrap()).unwrap();
        let id = loop {
            let accepted = |event| match event {
                NetEvent::Accepted { connection, .. } => Some(connection),
                _ => None,
            };
            if let Some(id) = step(&mut reactor, &mut net).into_iter().find_map(accepted) {
                break id;
            }
        };
        let mut written = 0;
        // Each write is a round of its own, and nobody reads.
        while net.find(id).unwrap().1.source != Source::Ring(None) {
            assert!(written < 50 * 4096, "the kernel goes on receiving");
            if !net.find(id).unwrap().1.stopping {
                stream.write_all(&[written as u8; 4096]).unwrap();
                written += 4096;
            }
            step(&mut reactor, &mut net);
        }
        stream.write_all(&[9; 4096]).unwrap();
        written += 4096;
        let (mut read, mut buffer) = (0, [0; 1000]);
        while read < written {
            match net.receive(id, &mut buffer).unwrap() {
                Received::Bytes(count) => read += count,
                Received::Nothing => drop(step(&mut reactor, &mut net)),
                Received::End => panic!("nobody ended it"),
            }
        }
        assert_eq!(read, written);
    }
}
