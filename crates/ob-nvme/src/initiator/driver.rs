//! A [`Session`] on sockets: one thread, `poll`, nothing else.
//!
//! ```text
//!   bell ─┐
//!         ├─▶ poll ─▶ requests ─▶ Session ─▶ sockets
//!   sockets┘            ▲                      │
//!                       └── outcomes, events ◀─┘
//! ```

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use ob_core::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::rand::{GetRandomFlags, getrandom};

use super::error::Unreachable;
use super::options::Options;
use super::session::{Action, LinkKey, Request, RequestId, Session};
use super::shared::{Shared, State};

/// Receives that one socket gets before the others have their turn.
const RECEIVES_A_TURN: usize = 4;
/// Slices that one send takes at most.
const SEND_SLICES: usize = 64;

/// Starts the thread. It ends when the session does.
pub(super) fn start(options: Options, shared: Arc<Shared>) -> io::Result<()> {
    let builder = std::thread::Builder::new().name("nvme-initiator".to_owned());
    builder.spawn(move || Driver::new(options, shared).run())?;
    Ok(())
}

struct Socket {
    key: LinkKey,
    stream: TcpStream,
    is_connecting: bool,
    /// The network takes no more now.
    is_full: bool,
    may_be_readable: bool,
}

struct Driver {
    address: SocketAddr,
    shared: Arc<Shared>,
    session: Session,
    sockets: Vec<Socket>,
    incoming: VecDeque<(RequestId, Request)>,
    origin: std::time::Instant,
    is_closing: bool,
    /// What the others were told last.
    told_ready: bool,
}

/// Fills the bytes with what nobody can guess.
pub(super) fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // The system answers, or a signal came in between; on a system without the call nothing gets this far.
        filled += getrandom(rest, GetRandomFlags::empty()).unwrap_or(0);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Whatever ends the thread, nobody waits for it.
        self.shared.abandon();
    }
}

impl Driver {
    fn new(options: Options, shared: Arc<Shared>) -> Self {
        let origin = std::time::Instant::now();
        let address = options.address;
        let session = Session::new(options, Box::new(fill_random), Instant::default());
        Self {
            address,
            shared,
            session,
            sockets: Vec::new(),
            incoming: VecDeque::new(),
            origin,
            is_closing: false,
            told_ready: false,
        }
    }

    fn now(&self) -> Instant {
        Instant::default() + self.origin.elapsed()
    }

    fn run(mut self) {
        let mut heard_at = self.now();
        loop {
            let now = self.now();
            self.take_requests(now);
            self.receive_all(now);
            // What had come by then is received: after a pause, answers that lay in the sockets have come in time.
            if self.session.next_due().is_some_and(|due| due <= heard_at) {
                self.session.tick(heard_at);
            }
            self.act(now);
            self.send_all(now);
            self.act(now);
            self.report();
            if let Some(error) = self.session.over() {
                self.shared.set_state(State::Over(error.clone()));
                // What came in before the state was known is answered now.
                self.take_requests(now);
                self.report();
                return;
            }
            heard_at = self.wait();
        }
    }

    fn take_requests(&mut self, now: Instant) {
        let closes = self.shared.take_incoming(&mut self.incoming);
        for (id, request) in self.incoming.drain(..) {
            self.session.submit(now, id, request);
        }
        if closes && !self.is_closing {
            self.is_closing = true;
            self.session.shutdown(now);
        }
    }

    fn report(&mut self) {
        let session = &mut self.session;
        if session.is_ready() != self.told_ready {
            self.told_ready = session.is_ready();
            if let Some(facts) = session.facts().filter(|_| self.told_ready) {
                self.shared.set_state(State::Started(facts.clone()));
            }
        }
        let mut outcomes = std::iter::from_fn(|| session.next_outcome()).peekable();
        if outcomes.peek().is_some() {
            self.shared.finish(outcomes);
        }
        while let Some(event) = self.session.next_event() {
            self.shared.tell(event);
        }
    }

    fn act(&mut self, now: Instant) {
        while let Some(action) = self.session.next_action() {
            match action {
                Action::Open(key) => match dial(self.address) {
                    Ok((stream, is_connecting)) => {
                        let may_be_readable = false;
                        let is_full = false;
                        self.sockets.push(Socket { key, stream, is_connecting, is_full, may_be_readable });
                        if !is_connecting {
                            self.session.dialed(now, key);
                        }
                    }
                    Err(error) => self.session.broken(now, key, Unreachable::System(error.kind())),
                },
                Action::Close { key, farewell } => {
                    let socket = self.sockets.iter_mut().find(|socket| socket.key == key);
                    if let Some(socket) = socket.filter(|_| !farewell.is_empty()) {
                        // Nobody waits for a target that broke the protocol to listen.
                        let _ = socket.stream.write(&farewell);
                    }
                    self.sockets.retain(|socket| socket.key != key);
                }
            }
        }
    }

    fn receive_all(&mut self, now: Instant) {
        for index in 0..self.sockets.len() {
            let Some(socket) = self.sockets.get_mut(index).filter(|socket| socket.may_be_readable) else {
                continue;
            };
            for attempt in 1..=RECEIVES_A_TURN {
                let Some([direct, scratch]) = self.session.receive_into(socket.key) else { break };
                let offered = direct.len() + scratch.len();
                let mut slices = [IoSliceMut::new(direct), IoSliceMut::new(scratch)];
                match socket.stream.read_vectored(&mut slices) {
                    Ok(0) => {
                        socket.may_be_readable = false;
                        self.session.ended(now, socket.key);
                        break;
                    }
                    Ok(count) => {
                        self.session.received(now, socket.key, count);
                        if count < offered {
                            socket.may_be_readable = false;
                            break;
                        }
                        socket.may_be_readable = attempt == RECEIVES_A_TURN;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        socket.may_be_readable = false;
                        if error.kind() != ErrorKind::WouldBlock {
                            self.session.broken(now, socket.key, Unreachable::System(error.kind()));
                        }
                        break;
                    }
                }
            }
        }
    }

    fn send_all(&mut self, now: Instant) {
        for index in 0..self.sockets.len() {
            let Some(socket) = self.sockets.get_mut(index) else { continue };
            if socket.is_connecting || socket.is_full {
                continue;
            }
            if let Err(error) = send(&mut self.session, socket) {
                self.session.broken(now, socket.key, Unreachable::System(error.kind()));
            }
        }
    }

    /// Sleeps until something happens. What had come before the instant that is returned is known.
    fn wait(&mut self) -> Instant {
        let can_go_on = self.sockets.iter().any(|socket| socket.may_be_readable);
        let may_sleep = !can_go_on && self.shared.fall_asleep(self.is_closing);
        let before = self.now();
        let timeout = match self.session.next_due() {
            _ if !may_sleep => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            Some(due) => Timespec::try_from(due.since(before)).ok(),
            None => None,
        };
        let bell = self.shared.bell();
        let mut waited = Vec::with_capacity(self.sockets.len() + 1);
        waited.push(PollFd::new(&bell, PollFlags::IN));
        for socket in &self.sockets {
            let wants_out = socket.is_connecting || socket.is_full;
            let flags = if wants_out { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            waited.push(PollFd::from_borrowed_fd(socket.stream.as_fd(), flags));
        }
        // Interrupted or not, everything is looked at again.
        let _ = poll(&mut waited, timeout.as_ref());
        let found: Vec<PollFlags> = waited.iter().map(PollFd::revents).collect();
        drop(waited);
        if found.first().is_some_and(|flags| !flags.is_empty()) {
            let _ = rustix::io::read(self.shared.bell(), &mut [0_u8; 8]);
        }
        let now = self.now();
        for index in 0..self.sockets.len() {
            if let Some(flags) = found.get(index + 1).filter(|flags| !flags.is_empty()) {
                self.ready(now, index, *flags);
            }
        }
        before
    }

    fn ready(&mut self, now: Instant, index: usize, flags: PollFlags) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        if socket.is_connecting {
            match socket.stream.take_error() {
                Ok(None) if flags.contains(PollFlags::OUT) => {
                    socket.is_connecting = false;
                    self.session.dialed(now, socket.key);
                }
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => {
                    self.session.broken(now, socket.key, Unreachable::System(error.kind()));
                }
            }
            return;
        }
        socket.is_full &= !flags.contains(PollFlags::OUT);
        socket.may_be_readable |= flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
    }
}

/// Sends what there is, until the network takes no more.
fn send(session: &mut Session, socket: &mut Socket) -> io::Result<()> {
    loop {
        let mut slices = [IoSlice::new(&[]); SEND_SLICES];
        let count = session.transmit(socket.key, &mut slices);
        let offered = slices.get(..count).unwrap_or_default();
        let wanted: usize = offered.iter().map(|slice| slice.len()).sum();
        if wanted == 0 {
            return Ok(());
        }
        match socket.stream.write_vectored(offered) {
            Ok(sent) => session.sent(socket.key, sent),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                socket.is_full = true;
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Begins to connect; whether it is still under way.
fn dial(address: SocketAddr) -> io::Result<(TcpStream, bool)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    let is_connecting = match rustix::net::connect(&socket, &address) {
        Ok(()) => false,
        Err(Errno::INPROGRESS) => true,
        Err(error) => return Err(error.into()),
    };
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok((stream, is_connecting))
}
