//! What a command costs on the way through a socket, by one network of the reactor's and by the other.
//!
//! ```text
//!   client thread ── 72 bytes (+ 4 KiB written) ──▶ server thread: reactor, network
//!        ▲                                                 │
//!        └────────── 24 bytes (+ 4 KiB read) ◀─────────────┘  gathered, as many as there are
//! ```
//!
//! The shapes are those of NVMe/TCP. Rounds of the networks take turns, and medians are shown, because other things
//! run on the machine. `cargo run --release -p ob-io --example socket_path -- [ROUNDS] [MILLISECONDS]`

#![allow(clippy::unwrap_used)] // A measurement stops at the first thing that is not as it should be.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use ob_core::{ConnectionId, Net, NetEvent, Received, Sent};
use ob_io::{
    Config, Decision, Event, Handle, IdlePolicy, Reactor, SPIN_DEFAULT, TcpNet, UringNet, UringNetBuffers,
    Wait, available_cores,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

const COMMAND: usize = 72;
const COMPLETION: usize = 24;
const PAYLOAD: usize = 4096;
/// How many answers go into one send at most.
const GATHER_MAX: usize = 128;
/// Room for what arrives at once.
const RECEIVE_LEN: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Read,
    Write,
}

impl Shape {
    fn request_len(self) -> usize {
        COMMAND + if self == Self::Write { PAYLOAD } else { 0 }
    }

    fn answer_len(self) -> usize {
        COMPLETION + if self == Self::Read { PAYLOAD } else { 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Uring,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    shape: Shape,
    connections: usize,
    depth: usize,
}

trait Driven: Net {
    fn handle(&mut self, event: &Event) -> bool;
}

impl Driven for TcpNet {
    fn handle(&mut self, event: &Event) -> bool {
        Self::handle(self, event)
    }
}

impl Driven for UringNet {
    fn handle(&mut self, event: &Event) -> bool {
        Self::handle(self, event)
    }
}

fn make(kind: Kind, handle: &Handle) -> Box<dyn Driven> {
    match kind {
        Kind::Tcp => Box::new(TcpNet::new(handle, 16)),
        Kind::Uring => Box::new(UringNet::new(handle, 16, UringNetBuffers::default()).unwrap()),
    }
}

struct Peer {
    id: ConnectionId,
    /// Bytes of a request that is not complete.
    part: usize,
    /// Bytes of answers that are to be sent, and how far into one that is.
    unsent: usize,
    offset: usize,
    may_send: bool,
}

struct Server {
    shape: Shape,
    spin: bool,
    net: Box<dyn Driven>,
    peers: Vec<Peer>,
    buffer: Vec<u8>,
    header: [u8; COMPLETION],
    payload: Vec<u8>,
}

impl Server {
    fn readable(&mut self, id: ConnectionId) -> bool {
        let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == id) else { return false };
        loop {
            let (front, back) = self.buffer.split_at_mut(PAYLOAD);
            let mut slices = [IoSliceMut::new(front), IoSliceMut::new(back)];
            match self.net.receive_vectored(id, &mut slices) {
                Ok(Received::Bytes(count)) => {
                    peer.part += count;
                    let request = self.shape.request_len();
                    peer.unsent += peer.part / request * self.shape.answer_len();
                    peer.part %= request;
                }
                Ok(Received::End) => {
                    self.net.close(id);
                    return true;
                }
                // A client that leaves with answers unread resets, and the event of that follows.
                Ok(Received::Nothing) | Err(_) => return false,
            }
        }
    }

    /// Sends what is due to each, gathered.
    fn flush(&mut self) {
        let answer = self.shape.answer_len();
        for peer in &mut self.peers {
            while peer.unsent > 0 && peer.may_send {
                let mut slices = [IoSlice::new(&[]); 2 * GATHER_MAX];
                let (mut used, mut offered, mut skip) = (0, 0, peer.offset);
                let parts = [&self.header[..], &self.payload[..answer - COMPLETION]];
                while offered < peer.unsent && used < slices.len() {
                    for part in parts {
                        let part = &part[skip.min(part.len())..];
                        skip = skip.saturating_sub(COMPLETION);
                        offered += part.len();
                        slices[used] = IoSlice::new(part);
                        used += 1;
                    }
                    skip = 0;
                }
                let Ok(Sent(sent)) = self.net.send_vectored(peer.id, &slices[..used]) else {
                    peer.unsent = 0;
                    break;
                };
                peer.may_send = sent == offered;
                peer.unsent -= sent;
                peer.offset = (peer.offset + sent) % answer;
            }
        }
    }

    /// Serves until its last connection ended. Gives the processor time it took.
    fn run(mut self, mut reactor: Reactor) -> Duration {
        let handle = reactor.handle();
        let spin = if self.spin { SPIN_DEFAULT } else { Duration::ZERO };
        let mut policy = IdlePolicy::new(spin, available_cores());
        let mut events = Vec::with_capacity(Config::default().events_max());
        let mut ended = 0;
        loop {
            let wait = match policy.decide(handle.now(), handle.next_timer()) {
                Decision::Spin => Wait::Poll,
                Decision::Sleep { until } => Wait::Until(until),
            };
            if reactor.turn(wait, &mut events) > 0 {
                policy.on_event(handle.now());
            }
            for event in events.drain(..) {
                self.net.handle(&event);
            }
            while let Some(event) = self.net.poll() {
                match event {
                    NetEvent::Accepted { connection: id, .. } => {
                        self.peers.push(Peer { id, part: 0, unsent: 0, offset: 0, may_send: true });
                    }
                    NetEvent::Readable(id) => ended += usize::from(self.readable(id)),
                    NetEvent::Writable(id) => {
                        self.peers
                            .iter_mut()
                            .filter(|peer| peer.id == id)
                            .for_each(|peer| peer.may_send = true);
                    }
                    NetEvent::Closed { .. } | NetEvent::Connected(_) => ended += 1,
                }
            }
            self.flush();
            if ended > 0 && ended == self.peers.len() {
                return thread_time();
            }
        }
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Client {
    stream: TcpStream,
    /// When each request in flight was sent.
    sent: VecDeque<Instant>,
    part: usize,
    /// Bytes of requests that the socket did not take yet.
    owed: usize,
}

/// Keeps its requests in flight for so long, and gives the latency of each that was answered.
fn drive(address: SocketAddr, load: Load, time: Duration) -> Vec<Duration> {
    let connect = |_| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client { stream, sent: VecDeque::new(), part: 0, owed: load.depth * load.shape.request_len() }
    };
    let mut clients: Vec<Client> = (0..load.connections).map(connect).collect();
    let requests = vec![7; load.depth * load.shape.request_len()];
    let mut buffer = vec![0; 256 << 10];
    let mut latencies = Vec::with_capacity(1 << 20);
    let begun = Instant::now();
    for client in &mut clients {
        client.sent.extend(std::iter::repeat_n(begun, load.depth));
    }
    while begun.elapsed() < time {
        for client in &mut clients {
            client.send(&requests);
        }
        let interest =
            |client: &Client| if client.owed > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut polled: Vec<PollFd<'_>> =
            clients.iter().map(|client| PollFd::new(&client.stream, interest(client))).collect();
        poll(&mut polled, None).unwrap();
        let ready: Vec<bool> = polled.iter().map(|poll| poll.revents().contains(PollFlags::IN)).collect();
        for (client, ready) in clients.iter_mut().zip(ready) {
            if ready {
                client.receive(load.shape, &mut buffer, &mut latencies);
            }
        }
    }
    latencies
}

impl Client {
    fn send(&mut self, requests: &[u8]) {
        while self.owed > 0 {
            // All bytes are alike, so where a request was cut does not matter.
            match self.stream.write(&requests[..self.owed.min(requests.len())]) {
                Ok(count) => self.owed -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn receive(&mut self, shape: Shape, buffer: &mut [u8], latencies: &mut Vec<Duration>) {
        let count = match self.stream.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        };
        self.part += count;
        let now = Instant::now();
        while self.part >= shape.answer_len() {
            self.part -= shape.answer_len();
            let sent = self.sent.pop_front().unwrap();
            latencies.push(now - sent);
            self.sent.push_back(now);
            self.owed += shape.request_len();
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Figures {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    /// Processor time of the server's thread for an operation.
    cost_us: f64,
}

fn measure(kind: Kind, load: Load, spin: bool, time: Duration) -> Figures {
    let (tell, told) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let reactor = Reactor::new(&Config::default()).unwrap();
        let mut net = make(kind, &reactor.handle());
        let listener = net.listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        tell.send(net.listener_address(listener).unwrap()).unwrap();
        let server = Server {
            shape: load.shape,
            spin,
            net,
            peers: Vec::new(),
            buffer: vec![0; RECEIVE_LEN],
            header: [1; COMPLETION],
            payload: vec![2; PAYLOAD],
        };
        server.run(reactor)
    });
    let mut latencies = drive(told.recv().unwrap(), load, time);
    let busy = server.join().unwrap();
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = ((latencies.len() - 1) as f64 * share) as usize;
        latencies[index].as_secs_f64() * 1e6
    };
    Figures {
        rate: latencies.len() as f64 / time.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        cost_us: busy.as_secs_f64() * 1e6 / latencies.len() as f64,
    }
}

fn median(rounds: &[Figures], of: fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let rounds = arguments.next().unwrap_or(5);
    let time = Duration::from_millis(arguments.next().unwrap_or(300));
    println!("medians of {rounds} rounds of {time:?}");
    println!("server  shape  connections depth network    ops/s   p50 us   p99 us  cpu us/op   ops/s to tcp");
    for spin in [true, false] {
        for shape in [Shape::Read, Shape::Write] {
            for (connections, depth) in [(1, 1), (1, 32), (1, 128), (4, 1), (4, 32), (4, 128)] {
                let load = Load { shape, connections, depth };
                let kinds = [Kind::Tcp, Kind::Uring];
                let mut all = kinds.map(|_| Vec::new());
                for _ in 0..rounds {
                    for (kind, figures) in kinds.iter().zip(&mut all) {
                        figures.push(measure(*kind, load, spin, time));
                    }
                }
                let first = median(&all[0], |figures| figures.rate);
                for (kind, figures) in kinds.iter().zip(&all) {
                    let rate = median(figures, |figures| figures.rate);
                    println!(
                        "{:7} {:6} {connections:11} {depth:5} {:7} {rate:8.0} {:8.1} {:8.1} {:10.2} {:14.3}",
                        if spin { "spins" } else { "sleeps" },
                        format!("{shape:?}"),
                        format!("{kind:?}"),
                        median(figures, |figures| figures.p50_us),
                        median(figures, |figures| figures.p99_us),
                        median(figures, |figures| figures.cost_us),
                        rate / first,
                    );
                }
            }
        }
    }
}
