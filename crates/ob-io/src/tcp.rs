//! TCP on plain non-blocking sockets, driven by the reactor's readiness.
//!
//! ```text
//!   Reactor::turn ─▶ Event ─▶ TcpNet::handle ─▶ flags on the connection ─▶ Net::poll ─▶ NetEvent
//!                                   │
//!                                   └─ a listener is ready: poll accepts, one a call, while there is room
//! ```
//!
//! The kernel tells of changes, once. A connection remembers what its owner has been told and not yet used up:
//! `Readable` is told again only after `receive` found nothing, `Writable` only after a short `send`. It remembers as
//! well what a short call says about the kernel's buffers, so that nothing is asked whose answer is known: a request
//! that arrives and is answered costs one receive and one send.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ob_core::{ConnectionId, ListenerId, Net, NetError, NetEvent, NetListenError, Received, Sent};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags,
    SocketType, acceptfrom_with, bind, connect, getsockname, listen, recv, recvmsg, send, sendmsg, shutdown,
    socket_with, sockopt,
};

use crate::reactor::{Event, Handle, Interest, Readiness, WatchId};
use crate::timers::TimerId;

/// Connections that wait to be accepted in the kernel.
const BACKLOG: i32 = 1024;
/// How long accepting pauses when this process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How many connections are accepted before the rest of the reactor gets its turn.
const ACCEPT_BURST: usize = 64;
/// How long a peer may leave the kernel's own question whether it is there unanswered, or bytes untaken that were sent to it: also
/// one that is there, and does not read. Without it one that lost its power, or its cable, would keep its connection for ever.
const SILENT_MAX: Duration = Duration::from_secs(120);
/// How many slices the kernel takes in one call (`UIO_MAXIOV`).
const SLICES_MAX: usize = 1024;

/// Connected byte streams over TCP.
///
/// When a connection breaks, `receive` and `send` say why, and [`NetEvent::Closed`] follows; after that, or after
/// `close`, its id means nothing. `receive` into an empty buffer gives `Bytes(0)`. A peer that vanished is noticed within
/// some two minutes, also when nobody has anything to say.
pub struct TcpNet {
    handle: Handle,
    listeners: Vec<Listener>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots with something to tell.
    queue: VecDeque<u32>,
    /// Whom a watch belongs to, by the watch's index.
    targets: Vec<Option<(WatchId, Target)>>,
    /// Set while accepting has to go on later.
    accept_later: Option<TimerId>,
    accept_burst: usize,
}

#[derive(Clone, Copy)]
enum Target {
    Listener(u32),
    Connection(u32),
}

struct Listener {
    socket: OwnedFd,
    watch: WatchId,
    address: SocketAddr,
    /// There may be connections to accept.
    ready: bool,
    /// The kernel does not watch it any more.
    is_deaf: bool,
}

struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

struct Connection {
    socket: OwnedFd,
    watch: WatchId,
    connecting: bool,
    /// The owner was told to read, and has not come to the end of it.
    readable_told: bool,
    /// The last look left nothing in the kernel's buffer, and the kernel told of nothing since: looking again would
    /// find nothing. (A peer that sends urgent data can make this wrong, and then waits until it sends again.)
    drained: bool,
    /// The peer has ended its half or the connection. The kernel tells of that once, maybe together with the last
    /// bytes, so from here on only the socket itself knows what is left.
    hung_up: bool,
    /// The last send filled the kernel's buffer, and the kernel told of no room since.
    full: bool,
    /// The owner waits for room to send.
    wants_room: bool,
    tell_connected: bool,
    tell_readable: bool,
    tell_writable: bool,
    failed: Option<NetError>,
    queued: bool,
}

impl TcpNet {
    /// A network with room for `connections_max` connections; when all are taken, further ones wait in the kernel.
    pub fn new(handle: &Handle, connections_max: u32) -> Self {
        Self {
            handle: handle.clone(),
            listeners: Vec::new(),
            slots: (0..connections_max).map(|_| Slot { generation: 1, connection: None }).collect(),
            free: (0..connections_max).rev().collect(),
            queue: VecDeque::with_capacity(connections_max as usize),
            targets: Vec::new(),
            accept_later: None,
            accept_burst: ACCEPT_BURST,
        }
    }

    /// Takes an event of the reactor, if it is for this network.
    pub fn handle(&mut self, event: &Event) -> bool {
        match event {
            Event::Timer(timer) if self.accept_later == Some(*timer) => {
                self.accept_later = None;
                self.accept_burst = ACCEPT_BURST;
                true
            }
            Event::Ready { watch, readiness } => self.handle_ready(*watch, *readiness),
            _ => false,
        }
    }

    fn handle_ready(&mut self, watch: WatchId, readiness: Readiness) -> bool {
        match self.targets.get(watch.index()) {
            Some(Some((known, target))) if *known == watch => match *target {
                Target::Listener(index) => {
                    let listener = &mut self.listeners[index as usize];
                    listener.ready = true;
                    listener.is_deaf |= readiness.is_lost();
                }
                Target::Connection(index) => {
                    if let Some(connection) = &mut self.slots[index as usize].connection {
                        connection.on_ready(readiness);
                        self.enqueue(index);
                    }
                }
            },
            _ => return false,
        }
        true
    }

    /// Queues a connection that has something to tell.
    fn enqueue(&mut self, index: u32) {
        let Some(connection) = &mut self.slots[index as usize].connection else { return };
        if connection.has_news() && !connection.queued {
            connection.queued = true;
            self.queue.push_back(index);
        }
    }

    /// After a call on a connection. One that failed has an event of its end to tell, which must not wait until
    /// something else gets the reactor out of its sleep.
    fn told_by_a_call<T>(&mut self, index: u32, result: Result<T, NetError>) -> Result<T, NetError> {
        if result.is_err() {
            self.enqueue(index);
            self.accept_after(Duration::ZERO);
        }
        result
    }

    /// The next event of a connection that is queued.
    fn next_news(&mut self) -> Option<NetEvent> {
        while let Some(index) = self.queue.pop_front() {
            let slot = &mut self.slots[index as usize];
            let id = connection_id(index, slot.generation);
            let Some(connection) = &mut slot.connection else { continue };
            connection.queued = false;
            let Some(event) = connection.next_news(id) else { continue };
            match event {
                NetEvent::Closed { .. } => self.remove(index),
                _ => self.enqueue(index),
            }
            return Some(event);
        }
        None
    }

    fn accept(&mut self) -> Option<NetEvent> {
        if self.accept_later.is_some() {
            return None;
        }
        for index in 0..self.listeners.len() {
            if self.listeners[index].is_deaf {
                self.watch_again(index);
            }
            while self.listeners[index].ready && !self.free.is_empty() {
                if self.accept_burst == 0 {
                    self.accept_after(Duration::ZERO);
                    return None;
                }
                self.accept_burst -= 1;
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                match acceptfrom_with(&self.listeners[index].socket, flags) {
                    Ok((socket, peer)) => {
                        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                        let Some(peer) = peer else { continue };
                        // A failure here is this side's exhaustion: the peer sees its connection closed.
                        let Ok(connection) = self.adopt(socket, false) else { continue };
                        return Some(NetEvent::Accepted {
                            listener: ListenerId(index as u32),
                            connection,
                            peer,
                        });
                    }
                    Err(Errno::AGAIN) => self.listeners[index].ready = false,
                    // The peer of one connection gave up, or we were interrupted: on to the next.
                    Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                    Err(errno) => {
                        // EMFILE above all. The connection stays in the backlog, which stays ready: looking
                        // again at once would spin.
                        tracing::warn!(%errno, "cannot accept connections for now");
                        self.accept_after(ACCEPT_PAUSE);
                        return None;
                    }
                }
            }
        }
        None
    }

    /// Has the kernel watch a listener that it has let go of; where it does not, it is tried again.
    fn watch_again(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        self.handle.unwatch(listener.watch);
        match self.handle.watch(&listener.socket, Interest::Readable) {
            Ok(watch) => {
                (listener.watch, listener.is_deaf, listener.ready) = (watch, false, true);
                self.aim(watch, Target::Listener(index as u32));
            }
            Err(_) => self.accept_after(ACCEPT_PAUSE),
        }
    }

    fn accept_after(&mut self, pause: Duration) {
        if self.accept_later.is_none() {
            self.accept_later = self.handle.set_timer(self.handle.now() + pause).ok();
        }
    }

    /// Gives a socket a slot and a watch.
    fn adopt(&mut self, socket: OwnedFd, connecting: bool) -> Result<ConnectionId, NetError> {
        // Small answers must not wait for acknowledgements; a socket without the options is still a socket.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let _ = end_when_silent(&socket, SILENT_MAX);
        let index = self.free.pop().ok_or(NetError::Exhausted)?;
        let Ok(watch) = self.handle.watch(&socket, Interest::Both) else {
            self.free.push(index);
            return Err(NetError::Exhausted);
        };
        self.aim(watch, Target::Connection(index));
        let slot = &mut self.slots[index as usize];
        slot.connection = Some(Connection {
            socket,
            watch,
            connecting,
            readable_told: false,
            drained: false,
            hung_up: false,
            full: false,
            wants_room: false,
            tell_connected: false,
            tell_readable: false,
            tell_writable: false,
            failed: None,
            queued: false,
        });
        Ok(connection_id(index, slot.generation))
    }

    fn aim(&mut self, watch: WatchId, target: Target) {
        if self.targets.len() <= watch.index() {
            self.targets.resize(watch.index() + 1, None);
        }
        self.targets[watch.index()] = Some((watch, target));
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
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.targets[connection.watch.index()] = None;
        self.handle.unwatch(connection.watch);
        // The kernel holds the socket until it has let go of the watch; the peer should hear of it now.
        let _ = shutdown(&connection.socket, Shutdown::Both);
        let was_full = self.free.is_empty();
        self.free.push(index);
        if was_full && self.listeners.iter().any(|listener| listener.ready) {
            self.accept_after(Duration::ZERO);
        }
    }

    fn open_listener(&mut self, address: SocketAddr) -> Result<Listener, Errno> {
        let socket = stream_socket(address)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        let address = SocketAddr::try_from(getsockname(&socket)?)?;
        let watch = self.handle.watch(&socket, Interest::Readable).map_err(|_| Errno::NOBUFS)?;
        Ok(Listener { socket, watch, address, ready: true, is_deaf: false })
    }
}

/// The longest that the kernel waits before it sends a probe, and between two of them.
const PROBE_AFTER_MAX: Duration = Duration::from_secs(32767);

/// Has the kernel end a connection whose peer has not answered its probes for this long, which it sends when the
/// connection is idle, or has had no room for bytes, though it is there (`TCP_USER_TIMEOUT` counts that too). Longer than the kernel can wait is as long as it can.
pub fn end_when_silent(socket: impl AsFd, silent_max: Duration) -> Result<(), Errno> {
    let socket = socket.as_fd();
    // The kernel takes it for a signed number.
    let milliseconds = i32::try_from(silent_max.as_millis()).unwrap_or(i32::MAX).max(1);
    sockopt::set_tcp_user_timeout(socket, milliseconds.unsigned_abs())?;
    sockopt::set_socket_keepalive(socket, true)?;
    let probe = (silent_max / 4).clamp(Duration::from_secs(1), PROBE_AFTER_MAX);
    sockopt::set_tcp_keepidle(socket, probe)?;
    sockopt::set_tcp_keepintvl(socket, probe)?;
    sockopt::set_tcp_keepcnt(socket, 3)
}

impl Net for TcpNet {
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        let listener = self.open_listener(address).map_err(|errno| match errno {
            Errno::ADDRINUSE => NetListenError::InUse(address),
            _ => NetListenError::Unavailable(address, errno.to_string()),
        })?;
        let index = self.listeners.len() as u32;
        self.aim(listener.watch, Target::Listener(index));
        self.listeners.push(listener);
        Ok(ListenerId(index))
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.listeners.get(listener.0 as usize).map(|listener| listener.address)
    }

    fn local_address(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let slot = self.slots.get(connection.0 as u32 as usize)?;
        let found = slot.connection.as_ref().filter(|_| slot.generation == (connection.0 >> 32) as u32)?;
        SocketAddr::try_from(getsockname(&found.socket).ok()?).ok()
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
            self.enqueue(index);
        }
        Ok(id)
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        let (index, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        let result = connection.receive(into);
        self.told_by_a_call(index, result)
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        let (index, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        let result = connection.send(bytes);
        self.told_by_a_call(index, result)
    }

    fn receive_vectored(
        &mut self,
        connection: ConnectionId,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<Received, NetError> {
        let (index, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        let result = connection.receive_vectored(into);
        self.told_by_a_call(index, result)
    }

    fn send_vectored(&mut self, connection: ConnectionId, slices: &[IoSlice<'_>]) -> Result<Sent, NetError> {
        let (index, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        let result = connection.send_vectored(slices);
        self.told_by_a_call(index, result)
    }

    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError> {
        let (_, connection) = self.find(connection).ok_or(NetError::Unknown)?;
        if let Some(error) = connection.failed {
            return Err(error);
        }
        match shutdown(&connection.socket, Shutdown::Write) {
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
        let event = self.next_news().or_else(|| self.accept());
        if event.is_none() && self.accept_later.is_none() {
            self.accept_burst = ACCEPT_BURST;
        }
        event
    }
}

impl Drop for TcpNet {
    fn drop(&mut self) {
        // No listener may accept in place of the connections that end.
        for listener in self.listeners.drain(..) {
            self.handle.unwatch(listener.watch);
            let _ = shutdown(&listener.socket, Shutdown::Both);
        }
        for index in 0..self.slots.len() {
            self.remove(index as u32);
        }
        if let Some(timer) = self.accept_later.take() {
            self.handle.cancel_timer(timer);
        }
    }
}

impl Connection {
    fn on_ready(&mut self, readiness: Readiness) {
        if readiness.is_lost() {
            self.failed = Some(NetError::Exhausted);
        }
        if self.failed.is_some() {
            return;
        }
        if self.connecting && readiness.is_writable() {
            match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => {
                    self.connecting = false;
                    self.tell_connected = true;
                }
                Ok(Err(errno)) | Err(errno) => self.failed = Some(net_error(errno)),
            }
        }
        if self.connecting || self.failed.is_some() {
            return;
        }
        self.hung_up |= readiness.is_hangup() || readiness.is_error();
        if readiness.is_readable() {
            self.drained = false;
            if !self.readable_told {
                self.readable_told = true;
                self.tell_readable = true;
            }
        }
        if readiness.is_writable() {
            self.full = false;
            if self.wants_room {
                self.wants_room = false;
                self.tell_writable = true;
            }
        }
    }

    fn has_news(&self) -> bool {
        self.tell_connected || self.tell_readable || self.tell_writable || self.failed.is_some()
    }

    fn next_news(&mut self, id: ConnectionId) -> Option<NetEvent> {
        if std::mem::take(&mut self.tell_connected) {
            return Some(NetEvent::Connected(id));
        }
        if let Some(error) = self.failed {
            return Some(NetEvent::Closed { connection: id, error });
        }
        if std::mem::take(&mut self.tell_readable) {
            return Some(NetEvent::Readable(id));
        }
        std::mem::take(&mut self.tell_writable).then_some(NetEvent::Writable(id))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, NetError> {
        let asked = into.len();
        self.receive_with(asked, |socket| {
            recv(socket, &mut *into, RecvFlags::DONTWAIT).map(|(count, _)| count)
        })
    }

    fn receive_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<Received, NetError> {
        // The kernel must see the first slice that takes a byte, or it would say that there are none.
        let first = into.iter().position(|slice| !slice.is_empty()).unwrap_or(into.len());
        let end = into.len().min(first + SLICES_MAX);
        let into = match &mut into[first..end] {
            [only] => return self.receive(only),
            many => many,
        };
        let asked = into.iter().map(|slice| slice.len()).sum();
        self.receive_with(asked, |socket| {
            let mut control = RecvAncillaryBuffer::default();
            recvmsg(socket, into, &mut control, RecvFlags::DONTWAIT).map(|message| message.bytes)
        })
    }

    /// Receives at most `asked` bytes by one call that is repeated only when it was interrupted.
    fn receive_with(
        &mut self,
        asked: usize,
        mut call: impl FnMut(&OwnedFd) -> Result<usize, Errno>,
    ) -> Result<Received, NetError> {
        if asked == 0 {
            return Ok(Received::Bytes(0));
        }
        loop {
            if let Some(error) = self.failed {
                return Err(error);
            }
            if self.connecting || self.drained {
                self.readable_told = false;
                return Ok(Received::Nothing);
            }
            match call(&self.socket) {
                Ok(0) => return Ok(Received::End),
                Ok(count) => {
                    self.drained = count < asked && !self.hung_up;
                    return Ok(Received::Bytes(count));
                }
                Err(Errno::AGAIN) => self.drained = true,
                Err(Errno::INTR) => {}
                Err(errno) => self.failed = Some(net_error(errno)),
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<Sent, NetError> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.send_with(bytes.len(), |socket| send(socket, bytes, flags))
    }

    fn send_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<Sent, NetError> {
        if let [only] = slices {
            return self.send(only);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut total = 0;
        for part in slices.chunks(SLICES_MAX) {
            let offered = part.iter().map(|slice| slice.len()).sum();
            let sent = self.send_with(offered, |socket| {
                sendmsg(socket, part, &mut SendAncillaryBuffer::default(), flags)
            });
            match sent {
                Ok(Sent(count)) => {
                    total += count;
                    if count < offered {
                        break;
                    }
                }
                // What is wrong is told by the next call, and by the event that follows.
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Sent(total))
    }

    /// Sends at most `offered` bytes by one call that is repeated only when it was interrupted.
    fn send_with(
        &mut self,
        offered: usize,
        mut call: impl FnMut(&OwnedFd) -> Result<usize, Errno>,
    ) -> Result<Sent, NetError> {
        loop {
            if let Some(error) = self.failed {
                return Err(error);
            }
            if offered == 0 {
                return Ok(Sent(0));
            }
            if self.connecting || self.full {
                // Told by the event that says that this is over.
                self.wants_room = true;
                return Ok(Sent(0));
            }
            match call(&self.socket) {
                Ok(count) => {
                    // Only a full buffer cuts a call short that does not wait, and the kernel remembers then that
                    // somebody wants to hear of room. So asking again would find nothing.
                    self.full = count < offered;
                    self.wants_room = self.full;
                    return Ok(Sent(count));
                }
                Err(Errno::AGAIN) => self.full = true,
                Err(Errno::INTR) => {}
                Err(errno) => self.failed = Some(net_error(errno)),
            }
        }
    }
}

fn connection_id(index: u32, generation: u32) -> ConnectionId {
    ConnectionId(u64::from(generation) << 32 | u64::from(index))
}

fn stream_socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}

fn net_error(errno: Errno) -> NetError {
    match errno {
        Errno::CONNREFUSED => NetError::Refused,
        Errno::TIMEDOUT => NetError::TimedOut,
        Errno::NETUNREACH
        | Errno::HOSTUNREACH
        | Errno::NETDOWN
        | Errno::HOSTDOWN
        | Errno::ADDRNOTAVAIL
        | Errno::AFNOSUPPORT
        | Errno::ACCESS
        | Errno::PERM
        | Errno::INVAL => NetError::Unreachable,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN => NetError::Exhausted,
        // ECONNRESET, EPIPE, ECONNABORTED, and whatever else ends a stream in the middle.
        _ => NetError::Reset,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::reactor::{Config, Reactor, Wait};

    /// The next connection that is accepted.
    fn accepted(reactor: &mut Reactor, net: &mut TcpNet) -> ConnectionId {
        let deadline = reactor.handle().now() + Duration::from_secs(60);
        loop {
            if let Some(NetEvent::Accepted { connection, .. }) = net.poll() {
                return connection;
            }
            assert!(reactor.handle().now() < deadline, "nobody is accepted");
            let mut events = Vec::new();
            reactor.turn(Wait::Until(Some(deadline)), &mut events);
            events.iter().for_each(|event| assert!(net.handle(event)));
        }
    }

    #[test]
    fn the_kernel_asks_an_accepted_peer_whether_it_is_there() {
        let mut reactor = Reactor::new(&Config::default()).unwrap();
        let mut net = TcpNet::new(&reactor.handle(), 1);
        let listener = net.listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let _peer = TcpStream::connect(net.listener_address(listener).unwrap()).unwrap();
        let accepted = accepted(&mut reactor, &mut net);
        let (_, connection) = net.find(accepted).unwrap();
        let socket = &connection.socket;
        assert_eq!(sockopt::socket_keepalive(socket), Ok(true));
        let idle = sockopt::tcp_keepidle(socket).unwrap();
        let probes = sockopt::tcp_keepintvl(socket).unwrap() * sockopt::tcp_keepcnt(socket).unwrap();
        assert_eq!(idle + probes, SILENT_MAX);
        assert_eq!(sockopt::tcp_user_timeout(socket), Ok(SILENT_MAX.as_millis() as u32));
    }

    #[test]
    fn a_listener_that_the_kernel_has_let_go_of_is_watched_again() {
        let mut reactor = Reactor::new(&Config::default()).unwrap();
        let mut net = TcpNet::new(&reactor.handle(), 1);
        let listener = net.listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        assert_eq!(net.poll(), None);
        let watch = net.listeners[0].watch;
        reactor.handle().unwatch(watch);
        assert!(net.handle(&Event::Ready { watch, readiness: Readiness::LOST }));
        assert_eq!(net.poll(), None);
        let _peer = TcpStream::connect(net.listener_address(listener).unwrap()).unwrap();
        accepted(&mut reactor, &mut net);
    }

    #[test]
    fn a_peer_may_be_silent_for_longer_than_the_kernel_can_count() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let years = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        for silent_max in [Duration::ZERO, Duration::from_nanos(1), years, Duration::MAX] {
            assert_eq!(end_when_silent(&peer, silent_max), Ok(()), "{silent_max:?}");
        }
        assert_eq!(sockopt::tcp_user_timeout(&peer), Ok(i32::MAX as u32));
        assert_eq!(sockopt::tcp_keepidle(&peer), Ok(PROBE_AFTER_MAX));
    }
}
