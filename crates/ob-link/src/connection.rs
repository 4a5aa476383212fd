//! A control connection: frames over a packet socket (one machine) or over TCP (two).
//!
//! Every call asks for non-blocking behaviour by itself: the flag on a descriptor can be changed by whoever shares it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use ob_wire_link::frame::{FRAME_MAX, Frame, FrameError, PACKET_MAX};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt,
};

/// Bytes read from a stream at once.
const READ_LEN: usize = 256 << 10;
/// What has been sent is removed from the buffer when it is more than this.
const SENT_MAX: usize = 1 << 20;

/// One connection.
pub(crate) struct Connection {
    socket: OwnedFd,
    kind: Kind,
    /// Bytes of the outgoing buffer that are sent already.
    sent: usize,
    /// Room for what arrives: one packet, or on a stream what is not handled yet and some more.
    input: Vec<u8>,
    /// What arrived and is not handled yet lies from here …
    handled: usize,
    /// … to here.
    filled: usize,
    /// The memory that came along with the packet.
    descriptor: Option<OwnedFd>,
    /// What has broken it.
    broken: Option<Errno>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Packet,
    Stream,
}

/// What there was to receive.
pub(crate) enum Arrived {
    /// A frame: [`Connection::frame`] has its bytes.
    Frame,
    /// Nothing until the socket is readable again.
    Nothing,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the peer closed the connection")]
    Closed,
    #[error("{0}")]
    Broken(#[from] Errno),
    #[error("{0}")]
    Frame(#[from] FrameError),
}

impl Connection {
    pub(crate) fn packet(socket: OwnedFd) -> Self {
        Self::new(socket, Kind::Packet)
    }

    /// `silent_max`: how long unacknowledged bytes may linger before the kernel gives the connection up.
    pub(crate) fn stream(socket: OwnedFd, silent_max: Duration) -> Result<Self, Errno> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        ob_io::end_when_silent(&socket, silent_max)?;
        Ok(Self::new(socket, Kind::Stream))
    }

    fn new(socket: OwnedFd, kind: Kind) -> Self {
        Self {
            socket,
            kind,
            sent: 0,
            input: Vec::new(),
            handled: 0,
            filled: 0,
            descriptor: None,
            broken: None,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.kind == Kind::Stream
    }

    /// Whether it has broken, which [`Connection::receive`] tells behind the last frame: nothing else may tell of it.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Receives the next frame. `descriptors` says whether memory may come along (on the host).
    ///
    /// A peer that says goodbye and closes breaks the connection for whoever has more to say to it, and where it has not read
    /// everything the kernel tells of that first. So frames that arrived before come before the error.
    pub(crate) fn receive(&mut self, descriptors: bool) -> Result<Arrived, ConnectionError> {
        loop {
            let received = match self.kind {
                Kind::Packet if descriptors => self.receive_with_descriptor(),
                Kind::Packet => self.receive_packet(),
                Kind::Stream => self.receive_stream(),
            };
            match (received, self.broken) {
                (Err(ConnectionError::Broken(error)), None) => self.broken = Some(error),
                (Ok(Arrived::Nothing), Some(error)) => return Err(error.into()),
                (received, _) => return received,
            }
        }
    }

    /// The frame that [`Connection::receive`] found, and the memory that came with it.
    pub(crate) fn frame(&mut self) -> Result<(Frame<'_>, Option<OwnedFd>), FrameError> {
        let start = self.handled;
        let len = Frame::length(&self.input[start..self.filled], FRAME_MAX)?.unwrap_or(0);
        self.handled += len;
        let frame = Frame::decode(&self.input[start..start + len])?;
        Ok((frame, self.descriptor.take()))
    }

    fn receive_packet(&mut self) -> Result<Arrived, ConnectionError> {
        self.start_packet();
        // Without room for them, descriptors that a host sends along are closed by the kernel.
        let received = retry(|| rustix::net::recv(&self.socket, &mut self.input[..], RecvFlags::DONTWAIT));
        self.packet_arrived(received.map(|(len, _)| len))
    }

    fn receive_with_descriptor(&mut self) -> Result<Arrived, ConnectionError> {
        self.start_packet();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = retry(|| {
            let mut parts = [IoSliceMut::new(&mut self.input)];
            rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)
        });
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        self.descriptor = descriptor;
        self.packet_arrived(received.map(|message| message.bytes))
    }

    fn start_packet(&mut self) {
        self.input.resize(PACKET_MAX, 0);
        (self.handled, self.filled) = (0, 0);
    }

    fn packet_arrived(&mut self, received: Result<usize, Errno>) -> Result<Arrived, ConnectionError> {
        let len = match received {
            Ok(0) => return Err(ConnectionError::Closed),
            Ok(len) => len,
            Err(Errno::AGAIN) => return Ok(Arrived::Nothing),
            Err(error) => return Err(error.into()),
        };
        self.filled = len;
        match Frame::length(&self.input[..len], PACKET_MAX)? {
            Some(claimed) if claimed == len => Ok(Arrived::Frame),
            _ => Err(FrameError::Length(len as u32).into()),
        }
    }

    fn receive_stream(&mut self) -> Result<Arrived, ConnectionError> {
        loop {
            let waiting = self.filled - self.handled;
            let wanted = Frame::length(&self.input[self.handled..self.filled], FRAME_MAX)?;
            if wanted.is_some_and(|len| waiting >= len) {
                return Ok(Arrived::Frame);
            }
            // What is handled makes room for what follows; at most one frame's bytes are moved.
            self.input.copy_within(self.handled..self.filled, 0);
            (self.handled, self.filled) = (0, waiting);
            if self.input.len() < waiting + READ_LEN {
                self.input.resize(waiting + READ_LEN, 0);
            }
            let room = &mut self.input[waiting..];
            match retry(|| rustix::net::recv(&self.socket, &mut room[..], RecvFlags::DONTWAIT)) {
                Ok((0, _)) => return Err(ConnectionError::Closed),
                Ok((len, _)) => self.filled += len,
                Err(Errno::AGAIN) => return Ok(Arrived::Nothing),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends frames from `out` for as long as the peer takes them; `true` when none is left: all are sent, or the connection
    /// [is broken](Connection::is_broken). `descriptor` gives the memory to send along with a frame.
    pub(crate) fn send<'a>(
        &mut self,
        out: &mut Vec<u8>,
        descriptor: impl Fn(&Frame<'_>) -> Option<BorrowedFd<'a>>,
    ) -> Result<bool, ConnectionError> {
        while self.sent < out.len() && !self.is_broken() {
            let waiting = &out[self.sent..];
            let result = match self.kind {
                Kind::Stream => retry(|| rustix::net::send(&self.socket, waiting, SEND)),
                Kind::Packet => {
                    let len = Frame::length(waiting, PACKET_MAX)?.unwrap_or(waiting.len());
                    send_packet(self.socket.as_fd(), &waiting[..len], &descriptor)
                }
            };
            match result {
                Ok(len) => self.sent += len,
                Err(Errno::AGAIN) => {
                    if self.sent > SENT_MAX {
                        out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(false);
                }
                Err(error) => self.broken = Some(error),
            }
        }
        out.clear();
        self.sent = 0;
        Ok(true)
    }
}

const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

fn send_packet<'a>(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: &impl Fn(&Frame<'_>) -> Option<BorrowedFd<'a>>,
) -> Result<usize, Errno> {
    let memory = Frame::decode(bytes).ok().and_then(|frame| descriptor(&frame));
    let Some(memory) = memory else { return retry(|| rustix::net::send(socket, bytes, SEND)) };
    retry(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [memory];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SEND)
    })
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

const SOCKET: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Connects to a card's Unix socket.
pub(crate) fn connect_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Begins to connect to a card's TCP address; `Ok` may mean that it is still under way.
pub(crate) fn connect_tcp(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SOCKET, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Listens on a Unix socket; unless `shared`, only the card's user and root reach it (either way the card looks at
/// who connects). A socket file that nobody listens on any more, left
/// by an earlier life, is replaced.
pub(crate) fn listen_unix(path: &Path, shared: bool) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None)?;
    refuse_descriptors(&socket);
    let address = SocketAddrUnix::new(path)?;
    if let Err(error) = rustix::net::bind(&socket, &address) {
        if error != Errno::ADDRINUSE {
            return Err(error);
        }
        // Whatever else is there refuses connections too, and is not ours to take away.
        // (What is not there any more has been a card that ends: it is tried again.)
        match rustix::fs::lstat(path) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => {}
            Ok(_) => return Err(Errno::EXIST),
            Err(_) => return Err(error),
        }
        if !matches!(connect_unix(path), Err(Errno::CONNREFUSED)) {
            return Err(error);
        }
        rustix::fs::unlink(path)?;
        rustix::net::bind(&socket, &address)?;
    }
    let everyone = Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    let mode = Mode::RUSR | Mode::WUSR | if shared { everyone } else { Mode::empty() };
    rustix::fs::chmod(path, mode)?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// Has the kernel refuse descriptors that a host wants to send (Linux 6.16 and later). The card does not take them
/// anyway, but where they arrive it is the card's thread that closes them, and some are slow to close: a socket
/// with `SO_LINGER` can take as long as its owner likes. Connections inherit this from the listener.
fn refuse_descriptors(listener: &OwnedFd) {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    // SAFETY: the value is an integer of the length given; the kernel only reads it. Needed because rustix does not
    // know the option. An older kernel says so, and is used as it is.
    unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const no).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Who is at the other end of a Unix socket.
pub(crate) struct PeerProcess {
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    /// Refers to that very process, even if its number is used again.
    pub(crate) handle: OwnedFd,
}

/// Asks the kernel who connected. A process that this one cannot see (in another pid namespace) has no number here and
/// cannot be watched; it is an error.
pub(crate) fn peer_process(socket: &OwnedFd) -> Result<PeerProcess, Errno> {
    const SO_PEERPIDFD: libc::c_int = 77;
    // rustix takes for granted that the number is not 0, so it is not asked.
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    socket_option(socket, libc::SO_PEERCRED, &mut peer)?;
    let pid = rustix::process::Pid::from_raw(peer.pid).ok_or(Errno::SRCH)?;
    let mut handle: libc::c_int = -1;
    let handle = match socket_option(socket, SO_PEERPIDFD, &mut handle) {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(()) => unsafe { OwnedFd::from_raw_fd(handle) },
        // Before Linux 6.5 the number must do.
        Err(Errno::NOPROTOOPT) => rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?,
        Err(error) => return Err(error),
    };
    Ok(PeerProcess { uid: peer.uid, pid: peer.pid, handle })
}

fn socket_option<T>(socket: &OwnedFd, option: libc::c_int, value: &mut T) -> Result<(), Errno> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let value: *mut T = value;
    // SAFETY: the kernel writes at most `len` bytes, which the value has; both types used here are plain integers.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.cast(), &raw mut len) };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// Listens on a TCP address.
pub(crate) fn listen_tcp(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SOCKET, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 64)?;
    Ok(socket)
}

/// Accepts one connection, if there is one. One that was given up before (`CONNABORTED`, `PROTO`) is an error, and says nothing
/// of those behind it.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<Option<(OwnedFd, Option<SocketAddr>)>, Errno> {
    match retry(|| rustix::net::acceptfrom_with(listener, SOCKET)) {
        Ok((socket, address)) => {
            Ok(Some((socket, address.and_then(|address| SocketAddr::try_from(address).ok()))))
        }
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    fn packets() -> (Connection, Connection) {
        let kind = SocketType::SEQPACKET;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, SOCKET, None).unwrap();
        (Connection::packet(one), Connection::packet(other))
    }

    fn streams() -> (Connection, Connection) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let stream = |socket: TcpStream| Connection::stream(socket.into(), Duration::from_secs(60)).unwrap();
        (stream(one), stream(other))
    }

    fn say(connection: &mut Connection, frame: &Frame<'_>) {
        let mut out = Vec::new();
        frame.encode(&mut out);
        assert!(connection.send(&mut out, |_| None).unwrap() && out.is_empty());
    }

    #[test]
    fn what_a_peer_said_before_it_closed_comes_before_the_broken_connection() {
        for pair in [packets, streams] {
            for (unread, more) in [(false, true), (true, false), (true, true)] {
                let (mut ours, mut theirs) = pair();
                if unread {
                    say(&mut ours, &Frame::Doorbell);
                }
                say(&mut theirs, &Frame::Doorbell);
                say(&mut theirs, &Frame::Goodbye { code: 1, text: "" });
                drop(theirs);
                if more {
                    // A stream notices with the second.
                    say(&mut ours, &Frame::Doorbell);
                    say(&mut ours, &Frame::Doorbell);
                    assert!(ours.is_broken());
                }
                assert!(matches!(ours.receive(false), Ok(Arrived::Frame)));
                assert!(matches!(ours.frame().unwrap().0, Frame::Doorbell));
                assert!(matches!(ours.receive(false), Ok(Arrived::Frame)));
                assert!(matches!(ours.frame().unwrap().0, Frame::Goodbye { .. }));
                assert!(ours.receive(false).is_err());
            }
        }
    }

    /// As a peer does that shuts only its receiving half: nothing arrives from it that would say so.
    #[test]
    fn a_broken_connection_on_which_nothing_arrives_is_over() {
        let (mut ours, theirs) = packets();
        rustix::net::shutdown(theirs.socket(), rustix::net::Shutdown::Read).unwrap();
        assert!(matches!(ours.receive(false), Ok(Arrived::Nothing)));
        say(&mut ours, &Frame::Doorbell);
        assert!(matches!(ours.receive(false), Err(ConnectionError::Broken(Errno::PIPE))));
    }
}
