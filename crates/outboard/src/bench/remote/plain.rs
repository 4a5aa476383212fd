//! Remote files as an application has them that knows of no card: sockets, and a file behind them.
//!
//! ```text
//!   TcpNet ─▶ messages ─▶ requests ─▶ Backend ─▶ replies ─▶ TcpNet        one thread, which sleeps when there is nothing to do
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use ob_core::{Clock, ConnectionId, Net, NetEvent, Received};
use ob_io::{Decision, Event, IdlePolicy, MonotonicClock, Reactor, TcpNet, Wait, available_cores};
use ob_offload::remote::{MESSAGE_HEAD_LEN, RemoteFiles, RemoteRequest, Status, reply};
use ob_offload::{Application, Cut, Standing};

use super::SPIN;
use crate::bench::BenchFailure;

/// Connections at once.
const CONNECTIONS_MAX: u32 = 64;
/// What is said before an address.
pub(super) const LISTENING: &str = "listening on ";
/// Bytes of one receive.
const RECEIVE_LEN: usize = 256 << 10;

/// Says where clients are served.
pub(super) fn say_listening(address: SocketAddr) {
    println!("{LISTENING}{address}");
}

/// A request, and whom to answer.
pub(super) struct Task {
    pub(super) connection: ConnectionId,
    pub(super) request: RemoteRequest,
    /// What it writes.
    pub(super) data: Vec<u8>,
}

/// A task that is done: with what was read, or nothing if it cannot be done.
pub(super) type Done = (Task, Option<Vec<u8>>);

/// A file.
pub(super) trait Backend {
    /// Begins a task, or hands it back if there is no room now.
    fn begin(&mut self, task: Task) -> Result<(), Task>;

    /// The next that is done.
    fn next_done(&mut self) -> Option<Done>;
}

#[derive(Default)]
struct Client {
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

/// The server.
pub(super) struct Plain<B> {
    reactor: Reactor,
    net: TcpNet,
    backend: B,
    address: SocketAddr,
    clients: HashMap<ConnectionId, Client>,
    /// What found no room.
    waiting: VecDeque<Task>,
    buffer: Vec<u8>,
}

impl<B: Backend> Plain<B> {
    /// Listens.
    pub(super) fn new(reactor: Reactor, backend: B, address: SocketAddr) -> Result<Self, BenchFailure> {
        let mut net = TcpNet::new(&reactor.handle(), CONNECTIONS_MAX);
        let listener = net.listen(address)?;
        let address = net.listener_address(listener).unwrap_or(address);
        let (clients, waiting) = (HashMap::new(), VecDeque::new());
        Ok(Self { reactor, net, backend, address, clients, waiting, buffer: vec![0; RECEIVE_LEN] })
    }

    /// Says where, and serves until the process is ended.
    pub(super) fn run(mut self) -> Result<(), BenchFailure> {
        say_listening(self.address);
        let mut policy = IdlePolicy::new(SPIN, available_cores(), 1);
        let mut events: Vec<Event> = Vec::new();
        loop {
            let wait = match policy.decide(MonotonicClock.now(), None) {
                Decision::Sleep { until } => Wait::Until(until),
                Decision::Spin => Wait::Poll,
            };
            self.reactor.turn(wait, &mut events);
            for event in events.drain(..) {
                self.net.handle(&event);
            }
            if self.turn()? {
                policy.on_event(MonotonicClock.now());
            }
        }
    }

    /// Does what there is to do; whether there was anything.
    fn turn(&mut self) -> Result<bool, BenchFailure> {
        let mut worked = false;
        let mut answered = HashSet::new();
        while let Some(event) = self.net.poll() {
            worked = true;
            match event {
                NetEvent::Accepted { connection, .. } => {
                    self.clients.insert(connection, Client::default());
                    self.receive(connection)?;
                }
                NetEvent::Readable(connection) => self.receive(connection)?,
                NetEvent::Writable(connection) => {
                    answered.insert(connection);
                }
                NetEvent::Closed { connection, .. } => {
                    self.clients.remove(&connection);
                }
                NetEvent::Connected(_) => {}
            }
        }
        while let Some((task, read)) = self.backend.next_done() {
            worked = true;
            let Some(client) = self.clients.get_mut(&task.connection) else { continue };
            let (status, data) = match &read {
                Some(data) => (Status::Done, data.as_slice()),
                None => (Status::Wrong, &[][..]),
            };
            client.output.extend_from_slice(&reply(task.request.id, status, data.len() as u32));
            client.output.extend_from_slice(data);
            answered.insert(task.connection);
        }
        while let Some(task) = self.waiting.pop_front() {
            if let Err(task) = self.backend.begin(task) {
                self.waiting.push_front(task);
                break;
            }
        }
        for connection in answered {
            self.send(connection);
        }
        Ok(worked)
    }

    fn receive(&mut self, connection: ConnectionId) -> Result<(), BenchFailure> {
        loop {
            match self.net.receive(connection, &mut self.buffer) {
                Ok(Received::Bytes(count)) => {
                    let Some(client) = self.clients.get_mut(&connection) else { return Ok(()) };
                    client.input.extend_from_slice(&self.buffer[..count]);
                    self.requests(connection)?;
                }
                Ok(Received::Nothing) => return Ok(()),
                Ok(Received::End) | Err(_) => {
                    self.net.close(connection);
                    self.clients.remove(&connection);
                    return Ok(());
                }
            }
        }
    }

    /// Begins the requests of every message that is there whole.
    fn requests(&mut self, connection: ConnectionId) -> Result<(), BenchFailure> {
        let Some(client) = self.clients.get_mut(&connection) else { return Ok(()) };
        let mut at = 0;
        loop {
            let rest = &client.input[at..];
            let cut = RemoteFiles::default().cut(&mut (), rest, Standing(1), &mut Vec::new());
            let len = match cut {
                Cut::Message(len) => len,
                Cut::Part(_) => break,
                Cut::Nothing(_) | Cut::Wrong => return Err("the client says what it never would".into()),
            };
            let mut requests = &rest[MESSAGE_HEAD_LEN..len];
            while let Some((request, len)) = RemoteRequest::decode(requests) {
                let data = requests[ob_offload::remote::REQUEST_LEN..len].to_vec();
                let task = Task { connection, request, data };
                match self.waiting.is_empty() {
                    true => self.waiting.extend(self.backend.begin(task).err()),
                    false => self.waiting.push_back(task),
                }
                requests = &requests[len..];
            }
            at += len;
        }
        client.input.drain(..at);
        Ok(())
    }

    fn send(&mut self, connection: ConnectionId) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        if let Ok(sent) = self.net.send(connection, &client.output[client.sent..]) {
            client.sent += sent.0;
            if client.sent == client.output.len() {
                client.output.clear();
                client.sent = 0;
            }
        }
    }
}
