//! The thread that keeps a host's connection to the card.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use ob_io::doorbell;
use ob_memory::Region;
use ob_wire_link::frame::Frame;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Endpoint, HostLinkConfig, INBOX_MAX, OpenGroupError, Over, Shared, State, after};
use crate::connection::{self, Arrived, Connection, ConnectionError};
use crate::host_core::HostEvent;
use crate::{ProtocolError, memory_file};

/// Bytes that may wait for a card that does not read them; beyond, nothing more is read from it.
const OUT_MAX: usize = 4 << 20;
/// The first pause between two attempts to connect again, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The thread that keeps the connection.
pub(super) struct AgentThread {
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Option<Connection>,
    pub(super) config: HostLinkConfig,
    pub(super) inbox: SyncSender<Vec<u8>>,
    /// Since when the card has not welcomed this host (back).
    pub(super) cut_at: Option<Instant>,
    /// How long to wait before the next attempt to connect.
    pub(super) pause: Duration,
}

/// Why the agent stops.
enum Stop {
    Over(Over),
    Cut(ConnectionError),
}

impl From<ProtocolError> for Stop {
    fn from(error: ProtocolError) -> Self {
        ended(format!("the card broke the protocol: {error}"))
    }
}

fn ended(text: impl Into<String>) -> Stop {
    Stop::Over(Over::Ended(text.into()))
}

impl AgentThread {
    pub(super) fn run(&mut self) {
        let reason = loop {
            let stop = match self.serve() {
                Ok(()) => continue,
                Err(Stop::Cut(error)) => self.reconnect(&error).err(),
                Err(stop) => Some(stop),
            };
            match stop {
                Some(Stop::Over(reason)) => break reason,
                Some(Stop::Cut(error)) => break Over::Ended(error.to_string()),
                None => {}
            }
        };
        let bells = {
            let mut state = self.shared.lock();
            state.over = Some(reason);
            state.core.close_all()
        };
        wake_sleepers(bells.into_iter());
        self.shared.changed.notify_all();
        let _ = rustix::io::write(&self.shared.over, &1u64.to_ne_bytes());
    }

    /// Waits for something to do and does it.
    fn serve(&mut self) -> Result<(), Stop> {
        let all_sent = self.send()?;
        // A card that does not read is not read either: answers to it would pile up.
        let stuck = !all_sent && self.shared.lock().core.outgoing().len() > OUT_MAX;
        self.wait(all_sent, stuck).map_err(|error| ended(error.to_string()))?;
        let mut drained = [0; 8];
        while rustix::io::read(&self.shared.agent_bell.descriptor, &mut drained) == Err(Errno::INTR) {}
        if self.shared.agent_bell.card.swap(false, Ordering::AcqRel) {
            self.shared.lock().core.ring_card();
        }
        if self.shared.lock().stopping {
            return self.say_goodbye();
        }
        if self.cut_at.is_some_and(|since| since.elapsed() >= self.config.dead_after) {
            return Err(self.unreachable());
        }
        if stuck { Ok(()) } else { self.receive() }
    }

    fn unreachable(&self) -> Stop {
        ended(format!("the card could not be reached for {:?}", self.config.dead_after))
    }

    fn wait(&self, all_sent: bool, stuck: bool) -> Result<(), Errno> {
        let Some(connection) = self.connection.as_ref().filter(|connection| !connection.is_broken()) else {
            return Ok(());
        };
        let interest = match (all_sent, stuck) {
            (true, _) => PollFlags::IN,
            (false, false) => PollFlags::IN | PollFlags::OUT,
            (false, true) => PollFlags::OUT,
        };
        let socket = connection.socket();
        let mut watched = [
            PollFd::from_borrowed_fd(socket, interest),
            PollFd::from_borrowed_fd(self.shared.agent_bell.descriptor.as_fd(), PollFlags::IN),
        ];
        // A card that accepts a connection and then says nothing has not taken this host back.
        let left = self.cut_at.map(|since| self.config.dead_after.saturating_sub(since.elapsed()));
        match poll(&mut watched, left.map(timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self) -> Result<bool, Stop> {
        let Some(connection) = &mut self.connection else { return Ok(true) };
        let mut state = self.shared.lock();
        connection.send(state.core.outgoing(), |_| None).map_err(Stop::Cut)
    }

    fn receive(&mut self) -> Result<(), Stop> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            match connection.receive(true).map_err(Stop::Cut)? {
                Arrived::Nothing => return Ok(()),
                Arrived::Frame => {}
            }
            let (frame, memory) = connection.frame().map_err(ProtocolError::from)?;
            let region = match memory.as_ref().map(memory_file::open).transpose() {
                // What this process has no room for; the core gives the group up.
                Err(Errno::NOMEM | Errno::AGAIN) => None,
                other => other.map_err(|error| ended(format!("the card's memory is no good: {error}")))?,
            };
            let mut state = self.shared.lock();
            let event = state.core.handle(&frame, region)?;
            let bells: Vec<_> = state.core.take_bells().collect();
            let attached = matches!(event, Some(HostEvent::Attached(_)));
            let message = match event {
                Some(event) => note(&mut state, event)?,
                None => None,
            };
            let backlog = state.core.outgoing().len();
            drop(state);
            if attached {
                (self.cut_at, self.pause) = (None, Duration::ZERO);
            }
            self.shared.changed.notify_all();
            wake_sleepers(bells.into_iter());
            if let Some(message) = message {
                self.deliver(message)?;
            }
            // Answers to transfers must not pile up behind a long run of frames.
            if backlog > 1 << 20 && !self.send()? {
                return Ok(());
            }
        }
    }

    /// Hands a channel message to the application. One that does not take its messages is cut off from them, not
    /// allowed to stop the transfers that share this connection.
    fn deliver(&self, message: Vec<u8>) -> Result<(), Stop> {
        match self.inbox.try_send(message) {
            Ok(()) => {
                if let Some(ring) = &*self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner) {
                    ring();
                }
                Ok(())
            }
            Err(TrySendError::Full(_)) => {
                Err(ended(format!("{INBOX_MAX} messages of the card were not taken by this host")))
            }
            Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }

    fn say_goodbye(&mut self) -> Result<(), Stop> {
        let mut state = self.shared.lock();
        Frame::Goodbye { code: 1, text: "" }.encode(state.core.outgoing());
        drop(state);
        let _ = self.send();
        Err(ended("this host left"))
    }

    /// Goes on with the attachment over a new connection, for as long as the card keeps it.
    fn reconnect(&mut self, error: &ConnectionError) -> Result<(), Stop> {
        let Endpoint::Tcp(_) = self.config.endpoint else { return Err(ended(error.to_string())) };
        let attached = {
            let mut state = self.shared.lock();
            state.core.disconnected();
            state.core.welcome().is_some()
        };
        self.connection = None;
        if !attached || matches!(error, ConnectionError::Frame(_)) {
            return Err(ended(error.to_string()));
        }
        tracing::warn!("the connection to the card broke ({error}); connecting again");
        // Both go on from one attempt to the next until the card has said `WELCOME`: a connection that is accepted
        // and cut again is no success.
        let since = *self.cut_at.get_or_insert_with(Instant::now);
        loop {
            let left = self.config.dead_after.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(self.unreachable());
            }
            self.pause(self.pause.min(left));
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            let stopping = || self.shared.lock().stopping;
            if stopping() {
                return Err(ended("this host left"));
            }
            let left = self.config.dead_after.saturating_sub(since.elapsed());
            if let Ok(connection) = connect(&self.config, left, stopping) {
                self.shared.lock().core.reconnect();
                self.connection = Some(connection);
                return Ok(());
            }
        }
    }

    /// Sleeps, but not longer than until this link is dropped.
    fn pause(&self, time: Duration) {
        let bell = self.shared.agent_bell.descriptor.as_fd();
        let mut watched = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        if time.is_zero() || self.shared.lock().stopping {
            return;
        }
        let _ = poll(&mut watched, Some(&timespec(time)));
        let mut drained = [0; 8];
        let _ = rustix::io::read(bell, &mut drained);
    }
}

/// Notes what the card told; a channel message is handed back, to be delivered without the lock.
fn note(state: &mut State, event: HostEvent) -> Result<Option<Vec<u8>>, Stop> {
    match event {
        HostEvent::Attached(_) => {}
        HostEvent::Refused { code, text } => {
            return Err(Stop::Over(Over::Refused { code, text }));
        }
        HostEvent::GroupOpened(opened) if state.given_up.remove(&opened.request) => {
            state.core.close_group(opened.id);
        }
        HostEvent::GroupOpened(opened) => {
            state.answers.insert(opened.request, Ok(*opened));
        }
        HostEvent::GroupRefused { request, refusal } => {
            if !state.given_up.remove(&request) {
                state.answers.insert(request, Err(OpenGroupError::Refused(refusal)));
            }
        }
        HostEvent::GroupWithoutMemory { request } => {
            if !state.given_up.remove(&request) {
                state.answers.insert(request, Err(OpenGroupError::NoMemory));
            }
        }
        HostEvent::GroupClosed { group, reason, text } => {
            tracing::debug!(group = group.0, ?reason, "group closed: {text}");
        }
        HostEvent::Channel(message) => return Ok(Some(message)),
        HostEvent::Goodbye { text } => return Err(ended(format!("the card left: {text}"))),
    }
    Ok(None)
}

fn wake_sleepers(bells: impl Iterator<Item = (Region, usize)>) {
    for (region, offset) in bells {
        doorbell::futex_wake_all(region.word(offset));
    }
}

/// Connects and waits until that has worked or failed, not longer than `within`, and not once it is `given_up`.
pub(super) fn connect(
    config: &HostLinkConfig,
    within: Duration,
    given_up: impl Fn() -> bool,
) -> Result<Connection, Errno> {
    let deadline = after(within);
    match &config.endpoint {
        Endpoint::Unix(path) => loop {
            match connection::connect_unix(path) {
                // More hosts than the card can take note of at once. Nothing tells when there is room again.
                Err(Errno::AGAIN) if Instant::now() < deadline && !given_up() => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                connected => return connected.map(Connection::packet),
            }
        },
        Endpoint::Tcp(address) => {
            let socket = connection::connect_tcp(*address)?;
            let mut watched = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match poll(&mut watched, Some(&timespec(left.min(GIVE_UP_WITHIN)))) {
                    Ok(0) if left.is_zero() => return Err(Errno::TIMEDOUT),
                    Ok(0) if given_up() => return Err(Errno::CANCELED),
                    Ok(0) | Err(Errno::INTR) => {}
                    Ok(_) => break,
                    Err(error) => return Err(error),
                }
            }
            rustix::net::sockopt::socket_error(&socket)??;
            if SocketAddr::try_from(rustix::net::getsockname(&socket)?) == Ok(*address) {
                // Where nobody listens, TCP can connect a socket to itself.
                return Err(Errno::CONNREFUSED);
            }
            Connection::stream(socket, config.dead_after)
        }
    }
}

/// An attempt to connect ends so soon after it was given up.
const GIVE_UP_WITHIN: Duration = Duration::from_millis(100);

fn timespec(time: Duration) -> Timespec {
    // Rounded up, so that nobody wakes before the time and looks in vain.
    let time = time + Duration::from_micros(1);
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}
