//! Hosts and cards without manners: frames by hand, over either kind of socket.

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use ob_core::Incarnation;
use ob_memory::Region;
use ob_ring::{CardBell, Closed, HostReceiver, HostSender, Outgoing, PushError};
use ob_wire_link::frame::{FRAME_MAX, Frame, GroupOpened, Hello, PACKET_MAX, VERSION, Welcome};
use ob_wire_link::group::GroupSizes;
use ob_wire_link::ring::RingSpec;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{ECHO, LONG};

/// One end of a control connection.
pub enum Raw {
    Unix(OwnedFd),
    Tcp(TcpStream, Vec<u8>),
}

/// One frame as it came, and the memory that came along.
pub struct Letter {
    pub bytes: Vec<u8>,
    pub memory: Option<OwnedFd>,
}

impl Letter {
    pub fn frame(&self) -> Frame<'_> {
        Frame::decode(&self.bytes).unwrap()
    }
}

pub fn hello(version: u16) -> Hello {
    Hello { version, pollers: 0, host_incarnation: Incarnation(9), resume: None, name: "raw".to_owned() }
}

pub fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn packet_socket() -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

impl Raw {
    pub fn unix(path: &Path) -> Self {
        let socket = packet_socket();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self::from_unix(socket)
    }

    pub fn from_unix(socket: OwnedFd) -> Self {
        set_socket_timeout(&socket, Timeout::Recv, Some(LONG)).unwrap();
        set_socket_timeout(&socket, Timeout::Send, Some(LONG)).unwrap();
        Self::Unix(socket)
    }

    pub fn tcp(address: SocketAddr) -> Self {
        Self::from_tcp(TcpStream::connect(address).unwrap())
    }

    pub fn from_tcp(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self::Tcp(stream, Vec::new())
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(stream, _) => stream.as_fd(),
        }
    }

    pub fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    pub fn send(&mut self, frame: &Frame<'_>) -> Result<(), Errno> {
        self.send_bytes(&encoded(frame))
    }

    /// One packet, or bytes of the stream. Fails when the peer has hung up.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Unix(socket) => rustix::net::send(&*socket, bytes, SendFlags::NOSIGNAL).map(drop),
            Self::Tcp(stream, _) => stream.write_all(bytes).map_err(|error| {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the peer does not read");
                Errno::PIPE
            }),
        }
    }

    /// As [`Raw::send_bytes`], but only what the socket takes now.
    pub fn send_without_waiting(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(self.socket(), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// A packet with descriptors.
    pub fn send_with(&mut self, frame: &Frame<'_>, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        let bytes = encoded(frame);
        rustix::net::sendmsg(self.socket(), &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
            .map(drop)
    }

    /// The next frame; `None` when the peer has hung up. Panics if nothing comes for long.
    pub fn receive(&mut self) -> Option<Letter> {
        match self {
            Self::Unix(socket) => receive_packet(socket),
            Self::Tcp(stream, input) => receive_stream(stream, input),
        }
    }

    /// Frames until the wanted one, which is given back; panics if the peer hangs up before.
    pub fn receive_until(&mut self, wanted: impl Fn(&Frame<'_>) -> bool) -> Letter {
        loop {
            let letter = self.receive().expect("the peer hung up");
            if wanted(&letter.frame()) {
                return letter;
            }
        }
    }

    /// Whether the peer hangs up, whatever it says before.
    pub fn until_hung_up(&mut self) -> Vec<Letter> {
        std::iter::from_fn(|| self.receive()).collect()
    }

    pub fn attach(&mut self) -> Welcome {
        self.send(&Frame::Hello(hello(VERSION))).unwrap();
        let letter = self.receive().expect("hung up instead of a welcome");
        match letter.frame() {
            Frame::Welcome(welcome) => welcome,
            other => panic!("{other:?} instead of a welcome"),
        }
    }

    /// Opens a group over shared memory and keeps everything that came with it.
    pub fn open_group(&mut self, welcome: &Welcome, capacity: u32) -> RawGroup {
        let ask =
            Frame::OpenGroup { request: 1, service: ECHO, sizes: GroupSizes::rings(capacity, capacity) };
        self.send(&ask).unwrap();
        let mut letter = self.receive_until(|frame| matches!(frame, Frame::GroupOpened(_)));
        let memory = letter.memory.take().expect("memory comes along");
        let Frame::GroupOpened(opened) = letter.frame() else { unreachable!() };
        RawGroup::new(opened, memory, welcome, self.socket())
    }
}

fn receive_packet(socket: &OwnedFd) -> Option<Letter> {
    let mut bytes = vec![0; PACKET_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let len = match rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
        Ok(received) => received.bytes,
        Err(Errno::CONNRESET | Errno::PIPE) => 0,
        Err(error) => panic!("{error}"),
    };
    let memory = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    bytes.truncate(len);
    (len > 0).then_some(Letter { bytes, memory })
}

fn receive_stream(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<Letter> {
    loop {
        let len = Frame::length(input, FRAME_MAX).unwrap();
        if let Some(len) = len.filter(|len| input.len() >= *len) {
            let rest = input.split_off(len);
            return Some(Letter { bytes: std::mem::replace(input, rest), memory: None });
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(len) => input.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the peer says nothing"),
            Err(_) => return None,
        }
    }
}

/// A group whose memory file is at hand.
pub struct RawGroup {
    pub opened: GroupOpened,
    pub memory: OwnedFd,
    pub region: Region,
    pub sender: HostSender,
    pub receiver: HostReceiver,
}

struct PacketBell(OwnedFd, Vec<u8>);

impl CardBell for PacketBell {
    fn ring(&self) {
        let _ = rustix::net::send(&self.0, &self.1, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl RawGroup {
    fn new(opened: GroupOpened, memory: OwnedFd, welcome: &Welcome, socket: BorrowedFd<'_>) -> Self {
        let region = map(&memory, opened.region_len as usize);
        let capacities = (opened.sizes.request, opened.sizes.response);
        let (request, response, _) =
            RingSpec::group(opened.region, capacities.0, capacities.1, welcome.transfer_max as u32).unwrap();
        let socket = socket.try_clone_to_owned().unwrap();
        let bell: Arc<dyn CardBell> = Arc::new(PacketBell(socket, encoded(&Frame::Doorbell)));
        let closed = Closed::default();
        let sender = HostSender::new(region.clone(), request, closed.clone(), Arc::clone(&bell));
        let receiver = HostReceiver::new(region.clone(), response, closed, bell);
        Self { opened, memory, region, sender, receiver }
    }

    /// Sends a request if there is room.
    pub fn push(&self, inline: &[u8]) -> Result<(), PushError> {
        self.sender.push(Outgoing { inline, payload: None })
    }

    /// One request and its answer, looking again and again.
    pub fn echo(&self, inline: &[u8]) {
        super::observe("room", || self.push(inline).ok());
        let answer = super::observe("an answer", || {
            let claimed = self.receiver.receive().unwrap()?;
            let mut bytes = vec![0; claimed.inline_len()];
            claimed.inline(&mut bytes);
            Some(bytes)
        });
        assert_eq!(answer, inline);
    }
}

struct Mapping(NonNull<c_void>, usize);

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; it is reached only through `Region`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; the last region on it is gone.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr(), self.1) };
    }
}

/// Maps a memory file.
pub fn map(memory: &OwnedFd, len: usize) -> Region {
    use rustix::mm::{MapFlags, ProtFlags};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, memory, 0) }.unwrap();
    let base = NonNull::new(base).unwrap();
    // SAFETY: readable, writable, page-aligned, sealed against shrinking, and kept by the owner.
    unsafe { Region::from_raw(base.cast(), len, Arc::new(Mapping(base, len))) }
}

/// A listener for a card that the test plays.
pub enum RawCard {
    Unix(OwnedFd, tempfile::TempDir),
    Tcp(TcpListener),
}

impl RawCard {
    pub fn unix() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = packet_socket();
        let address = SocketAddrUnix::new(directory.path().join("link.sock")).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 16).unwrap();
        Self::Unix(socket, directory)
    }

    pub fn tcp() -> Self {
        Self::Tcp(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    pub fn endpoint(&self) -> ob_link::Endpoint {
        match self {
            Self::Unix(_, directory) => ob_link::Endpoint::Unix(directory.path().join("link.sock")),
            Self::Tcp(listener) => ob_link::Endpoint::Tcp(listener.local_addr().unwrap()),
        }
    }

    /// The next host that connects; its `HELLO` is read.
    pub fn accept(&self) -> Raw {
        let mut raw = match self {
            Self::Unix(socket, _) => {
                let accepted = rustix::net::accept_with(socket, SocketFlags::CLOEXEC).unwrap();
                Raw::from_unix(accepted)
            }
            Self::Tcp(listener) => Raw::from_tcp(listener.accept().unwrap().0),
        };
        let letter = raw.receive().unwrap();
        assert!(matches!(letter.frame(), Frame::Hello(_)));
        raw
    }
}
