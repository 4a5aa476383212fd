//! Our own target on loopback sockets, in a thread of its own, with disks in memory.

// Each test crate uses its own part of this, and none exports it.
#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::Poll;
use std::thread::JoinHandle;

use ob_core::{
    ConnectionId, DeviceCompletion, DeviceInfo, DeviceOp, Instant, ListenerId, Net, NetError, NetEvent,
    NetListenError, Received, Refused, Sent, Token,
};
use ob_nvme::driver::{Store, TargetDriver};
pub use ob_nvme::initiator::block_on;
use ob_nvme::initiator::{Initiator, Options};
use ob_nvme::target::control::{
    AddressFamily, BackendId, Control, ControlConfig, HostPolicy, NamespaceSpec, PortKey, PortSpec,
    SubsystemKey, SubsystemSpec, TransportAddress,
};
use ob_nvme::target::{Target, TargetConfig};
use ob_wire_nvme::text::Nqn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub const NQN: &str = "nqn.2026-01.example:one";
pub const BLOCK: usize = 512;
pub const BLOCKS: u64 = 16384;

/// Plain sockets as a [`Net`].
#[derive(Default)]
pub struct PlainNet {
    listeners: Vec<TcpListener>,
    streams: BTreeMap<u64, Stream>,
    next: u64,
    events: VecDeque<NetEvent>,
    /// Bytes that may still be received before every connection is cut.
    pub cut_after: Option<usize>,
}

struct Stream {
    stream: TcpStream,
    is_full: bool,
}

impl PlainNet {
    /// Waits for something to happen, at most some milliseconds.
    pub fn wait(&mut self) {
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        let listeners = self.listeners.iter().map(|listener| (listener.as_fd(), PollFlags::IN));
        let streams = self.streams.values().map(|stream| {
            let flags = if stream.is_full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            (stream.stream.as_fd(), flags)
        });
        let mut waited: Vec<PollFd<'_>> =
            listeners.chain(streams).map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)).collect();
        let _ = poll(&mut waited, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
        let found: Vec<PollFlags> = waited.iter().map(PollFd::revents).collect();
        drop(waited);
        let (listening, streaming) = found.split_at(self.listeners.len());
        for (id, flags) in ids.into_iter().zip(streaming) {
            if flags.contains(PollFlags::OUT) {
                self.streams.get_mut(&id).unwrap().is_full = false;
                self.events.push_back(NetEvent::Writable(ConnectionId(id)));
            }
            if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.events.push_back(NetEvent::Readable(ConnectionId(id)));
            }
        }
        for (index, _) in listening.iter().enumerate().filter(|(_, flags)| !flags.is_empty()) {
            while let Ok((stream, peer)) = self.listeners[index].accept() {
                stream.set_nonblocking(true).unwrap();
                stream.set_nodelay(true).unwrap();
                let connection = ConnectionId(self.next);
                self.streams.insert(self.next, Stream { stream, is_full: false });
                self.next += 1;
                let listener = ListenerId(index as u32);
                self.events.push_back(NetEvent::Accepted { listener, connection, peer });
            }
        }
    }

    /// Cuts every connection, at once and without a word.
    pub fn cut(&mut self) {
        for (id, stream) in std::mem::take(&mut self.streams) {
            let _ = stream.stream.shutdown(Shutdown::Both);
            let connection = ConnectionId(id);
            self.events.push_back(NetEvent::Closed { connection, error: NetError::Reset });
        }
    }

    fn stream(&mut self, connection: ConnectionId) -> Result<&mut Stream, NetError> {
        self.streams.get_mut(&connection.0).ok_or(NetError::Unknown)
    }
}

impl Net for PlainNet {
    fn listen(&mut self, address: SocketAddr) -> Result<ListenerId, NetListenError> {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.listeners.push(listener);
        Ok(ListenerId(self.listeners.len() as u32 - 1))
    }

    fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.listeners[listener.0 as usize].local_addr().ok()
    }

    fn connect(&mut self, _: SocketAddr) -> Result<ConnectionId, NetError> {
        Err(NetError::Refused)
    }

    fn receive(&mut self, connection: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        let stream = self.stream(connection)?;
        if into.is_empty() {
            return Ok(Received::Bytes(0));
        }
        let received = match stream.stream.read(into) {
            Ok(0) => Ok(Received::End),
            Ok(count) => Ok(Received::Bytes(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Received::Nothing),
            Err(_) => Err(NetError::Reset),
        };
        if let (Ok(Received::Bytes(count)), Some(left)) = (&received, self.cut_after) {
            self.cut_after = left.checked_sub(*count);
            if self.cut_after.is_none() {
                self.cut();
            }
        }
        received
    }

    fn send(&mut self, connection: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        let stream = self.stream(connection)?;
        match stream.stream.write(bytes) {
            Ok(count) => {
                stream.is_full = count < bytes.len();
                Ok(Sent(count))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stream.is_full = true;
                Ok(Sent(0))
            }
            Err(_) => Err(NetError::Reset),
        }
    }

    fn finish(&mut self, connection: ConnectionId) -> Result<(), NetError> {
        self.stream(connection)?.stream.shutdown(Shutdown::Write).map_err(|_| NetError::Reset)
    }

    fn close(&mut self, connection: ConnectionId) {
        self.streams.remove(&connection.0);
    }

    fn poll(&mut self) -> Option<NetEvent> {
        self.events.pop_front()
    }
}

/// Disks in memory.
#[derive(Default)]
pub struct Memory {
    pub disks: HashMap<BackendId, Vec<u8>>,
    done: VecDeque<(BackendId, DeviceCompletion)>,
    /// How often each kind of operation came.
    pub counts: BTreeMap<&'static str, usize>,
    /// Operations are kept, and completed when this is false again.
    pub is_held: bool,
}

impl Store for Memory {
    fn info(&self, backend: BackendId) -> Option<DeviceInfo> {
        let capacity = self.disks.get(&backend)?.len() as u64;
        let block_len = BLOCK as u32;
        Some(DeviceInfo { capacity, block_len, volatile_cache: true, discard_unit: block_len })
    }

    fn submit(
        &mut self,
        backend: BackendId,
        token: Token,
        mut op: DeviceOp,
    ) -> Result<(), Refused<DeviceOp>> {
        let (offset, len) = op.extent().unwrap_or((0, 0));
        let disk = self.disks.get_mut(&backend).unwrap();
        let range = &mut disk[offset as usize..][..len as usize];
        let name = match &mut op {
            DeviceOp::Read { into, .. } => {
                into.copy_from_slice(range);
                "read"
            }
            DeviceOp::Write { from, durable, .. } => {
                range.copy_from_slice(from);
                if *durable { "durable write" } else { "write" }
            }
            DeviceOp::Flush => "flush",
            DeviceOp::Discard { .. } => "discard",
            DeviceOp::WriteZeroes { .. } => {
                range.fill(0);
                "zeroes"
            }
        };
        *self.counts.entry(name).or_default() += 1;
        self.done.push_back((backend, DeviceCompletion { token, op, result: Ok(()) }));
        Ok(())
    }

    fn poll(&mut self) -> Option<(BackendId, DeviceCompletion)> {
        if self.is_held { None } else { self.done.pop_front() }
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }
}

pub type Driver = TargetDriver<PlainNet, Memory>;
type Job = Box<dyn FnOnce(&mut Driver) + Send>;

/// A target in a thread.
pub struct Served {
    pub address: SocketAddr,
    pub subsystem: SubsystemKey,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

pub fn namespace(nsid: u32) -> NamespaceSpec {
    NamespaceSpec {
        nsid: Some(nsid),
        backing: BackendId(nsid).into(),
        blocks: BLOCKS,
        block_len: BLOCK as u32,
        uuid: [nsid as u8; 16],
        nguid: [0; 16],
        volatile_cache: true,
        deallocated_reads_zero: false,
        deallocate_len: 0,
        ana_group: 1,
        read_only: false,
    }
}

impl Served {
    pub fn new() -> Self {
        Self::with(HostPolicy::Any)
    }

    pub fn with(hosts: HostPolicy) -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), hosts, "SN1")
    }

    pub fn at(address: SocketAddr, hosts: HostPolicy, serial: &str) -> Self {
        // Nobody attacks a test: any bytes are random enough.
        let random = |bytes: &mut [u8]| bytes.fill(0xA5);
        let mut control = Control::new(ControlConfig::default()).with_random(random);
        let transport =
            TransportAddress { family: AddressFamily::Ipv4, address: "127.0.0.1".into(), service: 4420 };
        control.add_port(PortSpec { port: PortKey(1), address: transport, discovery_only: false }).unwrap();
        let spec = SubsystemSpec { hosts, ..SubsystemSpec::open(Nqn::new(NQN).unwrap(), serial) };
        let subsystem = control.add_subsystem(spec).unwrap();
        control.add_namespace(subsystem, &namespace(1)).unwrap();
        let mut store = Memory::default();
        for nsid in 1..=2 {
            store.disks.insert(BackendId(nsid), vec![0; BLOCK * BLOCKS as usize]);
        }
        let target = Target::new(TargetConfig::default(), control);
        let mut driver = TargetDriver::new(PlainNet::default(), store, target);
        let address = driver.listen(address, PortKey(1)).unwrap();
        let (jobs, todo) = channel();
        let thread = std::thread::spawn(move || serve(driver, &todo));
        Self { address, subsystem, jobs: Some(jobs), thread: Some(thread) }
    }

    /// Does something to the target, in its thread, and gives the result.
    pub fn ask<T: Send + 'static>(&self, job: impl FnOnce(&mut Driver) -> T + Send + 'static) -> T {
        let (answer, result) = channel();
        let job = move |driver: &mut Driver| answer.send(job(driver)).unwrap();
        self.jobs.as_ref().unwrap().send(Box::new(job)).unwrap();
        result.recv().unwrap()
    }

    pub fn count(&self, name: &'static str) -> usize {
        self.ask(move |driver| driver.store().counts.get(name).copied().unwrap_or(0))
    }

    pub fn options(&self) -> Options {
        let mut options = Options::new(self.address, NQN, [5; 16]).unwrap();
        options.reconnect.delay_first = std::time::Duration::from_millis(5);
        options
    }

    pub fn connect(&self) -> Initiator {
        block_on(Initiator::connect(self.options())).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.jobs = None;
        let ended = self.thread.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok(), "the target panicked");
    }
}

fn serve(mut driver: Driver, todo: &Receiver<Job>) {
    let origin = std::time::Instant::now();
    loop {
        let now = Instant::from_nanoseconds(1) + origin.elapsed();
        let has_more = driver.turn(now).has_more;
        match todo.try_recv() {
            Ok(job) => job(&mut driver),
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) if has_more => {}
            Err(TryRecvError::Empty) => driver.net_mut().wait(),
        }
    }
}

/// Runs all of them at once.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(move |context| {
        let mut is_done = true;
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *output = Some(value),
                Poll::Pending => is_done = false,
            }
        }
        if is_done {
            Poll::Ready(running.drain(..).filter_map(|(_, output)| output).collect())
        } else {
            Poll::Pending
        }
    })
    .await
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
