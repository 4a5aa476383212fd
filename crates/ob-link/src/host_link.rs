//! The host's driver: one thread that keeps the connection to the card, for an application with any number of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ob_core::{GroupId, Incarnation};
use ob_io::doorbell::{self, WaitResult};
use ob_memory::Region;
use ob_ring::{CardBell, Closed, HostAreas, HostReceiver, HostSender, SleepTicket};
use ob_wire_link::frame::{Frame, Welcome};
use ob_wire_link::group::GroupSizes;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::connection::{self, Arrived, Connection, ConnectionError};
use crate::group::GroupRefusal;
use crate::host_core::{HostCore, HostEvent, OpenedGroup};
use crate::{ProtocolError, memory_file};

/// Channel messages that may wait for the application. The card stops sending long before, unless it breaks the
/// protocol or a connection was cut again and again.
const INBOX_MAX: usize = 1024;
/// Bytes that may wait for a card that does not read them; beyond, nothing more is read from it.
const OUT_MAX: usize = 4 << 20;
/// The first pause between two attempts to connect again, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// A goodbye that is not said by then is not waited for.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Where the card is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// On this machine: `shm` or `model`.
    Unix(PathBuf),
    /// On another machine: `tcp`.
    Tcp(SocketAddr),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "{}", path.display()),
            Self::Tcp(address) => write!(formatter, "{address}"),
        }
    }
}

/// How a host meets its card.
#[derive(Clone, Debug)]
pub struct HostLinkConfig {
    /// Where the card is.
    pub endpoint: Endpoint,
    /// This host's name, for people.
    pub name: String,
    /// Which life of this host it is.
    pub incarnation: Incarnation,
    /// Threads of this host that poll.
    pub pollers: u16,
    /// How long attaching may take.
    pub attach_within: Duration,
    /// How long the connection to a `tcp` card may be broken before the attachment is given up.
    pub dead_after: Duration,
}

/// Why a host could not attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Nothing answers there.
    #[error("no card answers at {0}: {1}; is `outboard card` running there?")]
    NoCard(Endpoint, Errno),
    /// The card said no.
    #[error("the card refused this host: {text}")]
    Refused {
        /// Its reason.
        code: u32,
        /// Its words.
        text: String,
    },
    /// The card did not answer in time.
    #[error("the card at {0} did not answer within {1:?}")]
    TimedOut(Endpoint, Duration),
    /// The connection ended before the card answered.
    #[error("the connection to the card at {0} ended before it answered: {1}")]
    Ended(Endpoint, String),
    /// This process is out of something.
    #[error("{0}")]
    System(Errno),
}

/// Why a group could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenGroupError {
    /// The card said no.
    #[error("the card refused the group: {0}")]
    Refused(GroupRefusal),
    /// The attachment is over.
    #[error("the card is gone")]
    Gone,
    /// The card is behind with answering.
    #[error("too many requests wait for the card")]
    Busy,
    /// This process cannot have it.
    #[error("this process has no descriptor or memory left for the group")]
    NoMemory,
    /// The card did not answer in time. If it opens the group after all, it is closed again.
    #[error("the card did not answer in time")]
    TimedOut,
}

/// Why a wait ended without what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The time is up.
    #[error("the time is up")]
    TimedOut,
    /// The attachment or group is over.
    #[error("the card is gone, or the group is closed")]
    Gone,
}

/// One host attached to one card.
pub struct HostLink {
    shared: Arc<Shared>,
    inbox: Mutex<Receiver<Vec<u8>>>,
    agent: Option<JoinHandle<()>>,
    welcome: Welcome,
    patience: Duration,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the agent thread: there is something to send, or it should stop.
    agent_bell: Arc<AgentBell>,
    /// Readable when the attachment is over.
    over: OwnedFd,
}

struct State {
    core: HostCore,
    answers: BTreeMap<u32, Result<OpenedGroup, OpenGroupError>>,
    /// Requests that nobody waits for any more.
    given_up: BTreeSet<u32>,
    /// Why the attachment is over.
    over: Option<Over>,
    stopping: bool,
}

/// Why an attachment is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The card refused it.
    #[error("the card refused this host: {text}")]
    Refused {
        /// Its reason.
        code: u32,
        /// Its words.
        text: String,
    },
    /// The card or this host left, or the connection was lost for good.
    #[error("{0}")]
    Ended(String),
}

/// Wakes the agent thread, and through it the card on a `tcp` link.
struct AgentBell {
    descriptor: OwnedFd,
    card: AtomicBool,
}

impl AgentBell {
    fn wake(&self) {
        // The count cannot reach its limit: the agent takes it to zero each time it wakes.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }
}

impl CardBell for AgentBell {
    fn ring(&self) {
        if !self.card.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }
}

/// Wakes a card on this machine directly: a packet is sent whole or not at all, by any thread.
struct PacketBell {
    socket: OwnedFd,
    packet: Vec<u8>,
    agent: Arc<AgentBell>,
}

impl CardBell for PacketBell {
    fn ring(&self) {
        // A full socket means that the card has packets to read and is awake. Anything else (memory is short, the card
        // is gone) is the agent's to deal with: the ticket is taken, so nobody else will ring.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(&self.socket, &self.packet, flags) {
                Err(Errno::INTR) => {}
                Ok(_) | Err(Errno::AGAIN) => return,
                Err(_) => return self.agent.ring(),
            }
        }
    }
}

impl HostLink {
    /// Attaches to a card, or says why not.
    pub fn attach(config: &HostLinkConfig) -> Result<Self, AttachError> {
        let deadline = after(config.attach_within);
        let connection = connect(config, config.attach_within, || false)
            .map_err(|error| AttachError::NoCard(config.endpoint.clone(), error))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(AttachError::System)?;
        let over = eventfd(0, flags).map_err(AttachError::System)?;
        let agent_bell = Arc::new(AgentBell { descriptor, card: AtomicBool::new(false) });
        let card: Arc<dyn CardBell> = if connection.is_stream() {
            agent_bell.clone()
        } else {
            let socket = connection.socket().try_clone_to_owned();
            let socket = socket.map_err(|_| AttachError::System(Errno::MFILE))?;
            let mut packet = Vec::new();
            Frame::Doorbell.encode(&mut packet);
            Arc::new(PacketBell { socket, packet, agent: Arc::clone(&agent_bell) })
        };
        let core = HostCore::new(&config.name, config.incarnation, config.pollers, card);
        let (inbox_in, inbox) = sync_channel(INBOX_MAX);
        let state =
            State { core, answers: BTreeMap::new(), given_up: BTreeSet::new(), over: None, stopping: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), agent_bell, over });
        let mut agent = AgentThread {
            shared: Arc::clone(&shared),
            connection: Some(connection),
            config: config.clone(),
            inbox: inbox_in,
            cut_at: None,
            pause: Duration::ZERO,
        };
        let spawned = std::thread::Builder::new().name("outboard-link".to_owned()).spawn(move || agent.run());
        let agent = Some(spawned.map_err(|_| AttachError::System(Errno::AGAIN))?);
        let link = Self::await_welcome(shared, config, deadline);
        link.map(|(shared, welcome)| Self {
            shared,
            inbox: Mutex::new(inbox),
            agent,
            welcome,
            patience: config.attach_within,
        })
    }

    fn await_welcome(
        shared: Arc<Shared>,
        config: &HostLinkConfig,
        deadline: Instant,
    ) -> Result<(Arc<Shared>, Welcome), AttachError> {
        let mut state = shared.lock();
        let error = loop {
            if let Some(welcome) = state.core.welcome().copied() {
                drop(state);
                return Ok((shared, welcome));
            }
            if let Some(reason) = &state.over {
                break match reason.clone() {
                    Over::Refused { code, text } => AttachError::Refused { code, text },
                    Over::Ended(text) => AttachError::Ended(config.endpoint.clone(), text),
                };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break AttachError::TimedOut(config.endpoint.clone(), config.attach_within);
            }
            let waited = shared.changed.wait_timeout(state, left);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        };
        state.stopping = true;
        drop(state);
        shared.agent_bell.wake();
        Err(error)
    }

    /// What the card said when it accepted this host.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Why the attachment is over, if it is.
    pub fn over(&self) -> Option<Over> {
        self.shared.lock().over.clone()
    }

    /// Opens a group with rings of these sizes. Waits for the card's answer, as long as attaching might have taken.
    pub fn open_group(
        &self,
        service: u32,
        request_capacity: u32,
        response_capacity: u32,
    ) -> Result<HostGroup, OpenGroupError> {
        self.open_group_of(service, GroupSizes::rings(request_capacity, response_capacity))
    }

    /// Opens a group with rings and areas of these sizes, as [`HostLink::open_group`] does.
    pub fn open_group_of(&self, service: u32, sizes: GroupSizes) -> Result<HostGroup, OpenGroupError> {
        let mut state = self.shared.lock();
        if state.over.is_some() {
            return Err(OpenGroupError::Gone);
        }
        let request = state.core.request_group(service, sizes);
        let request = request.ok_or(OpenGroupError::Busy)?;
        self.shared.agent_bell.wake();
        let deadline = after(self.patience);
        loop {
            if let Some(answer) = state.answers.remove(&request) {
                let OpenedGroup { id, sender, receiver, areas, closed, .. } = answer?;
                let shared = Arc::clone(&self.shared);
                return Ok(HostGroup { id, sender, receiver, areas, closed, shared });
            }
            if state.over.is_some() {
                return Err(OpenGroupError::Gone);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.given_up.insert(request);
                return Err(OpenGroupError::TimedOut);
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }

    /// Sends a message on the ordered channel. `false` if the card is gone or behind with reading.
    pub fn send(&self, message: &[u8]) -> bool {
        let mut state = self.shared.lock();
        let accepted = state.over.is_none() && state.core.send(message);
        drop(state);
        if accepted {
            self.shared.agent_bell.wake();
        }
        accepted
    }

    /// The next message of the ordered channel.
    pub fn receive(&self, within: Duration) -> Result<Vec<u8>, WaitError> {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let message = inbox.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => WaitError::TimedOut,
            RecvTimeoutError::Disconnected => WaitError::Gone,
        })?;
        let mut state = self.shared.lock();
        let waiting = state.core.outgoing().len();
        state.core.took_message();
        let more = state.core.outgoing().len() > waiting;
        drop(state);
        if more {
            self.shared.agent_bell.wake();
        }
        Ok(message)
    }

    /// A descriptor that is readable once the attachment is over, for programs that poll.
    pub fn over_descriptor(&self) -> BorrowedFd<'_> {
        self.shared.over.as_fd()
    }

    /// Says goodbye to the card, also where others have this link too: the attachment is over then.
    pub fn leave(&self) {
        self.shared.lock().stopping = true;
        self.shared.agent_bell.wake();
        self.wait_over(LEAVE_WITHIN);
    }

    /// Waits until the attachment is over, at most so long; why it is over.
    pub fn wait_over(&self, within: Duration) -> Option<Over> {
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, within, |state| state.over.is_none());
        waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state).over.clone()
    }
}

impl Drop for HostLink {
    fn drop(&mut self) {
        self.leave();
        if let Some(agent) = self.agent.take() {
            let _ = agent.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open group: its rings, and how to sleep on them. Threads may share it.
pub struct HostGroup {
    id: GroupId,
    /// Puts requests in.
    pub sender: HostSender,
    /// Takes responses out.
    pub receiver: HostReceiver,
    /// For bulk, if the group was asked for with areas.
    pub areas: Option<HostAreas>,
    closed: Closed,
    shared: Arc<Shared>,
}

impl HostGroup {
    /// The group's id.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Whether the group is over.
    pub fn is_closed(&self) -> bool {
        self.closed.is_closed()
    }

    /// Calls `attempt` until it gives something, asleep in between until the card has delivered responses.
    pub fn wait_response<T>(
        &self,
        within: Duration,
        attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, WaitError> {
        let register = || self.receiver.register_sleeper();
        self.wait(within, attempt, register, |ticket, left| {
            doorbell::futex_wait(self.receiver.bell(), ticket.bell, Some(left))
        })
    }

    /// Calls `attempt` until it gives something, asleep in between until the card has made room for requests.
    pub fn wait_room<T>(&self, within: Duration, attempt: impl FnMut() -> Option<T>) -> Result<T, WaitError> {
        let register = || self.sender.register_sleeper();
        self.wait(within, attempt, register, |ticket, left| {
            doorbell::futex_wait(self.sender.bell(), ticket.bell, Some(left))
        })
    }

    fn wait<T>(
        &self,
        within: Duration,
        mut attempt: impl FnMut() -> Option<T>,
        register: impl Fn() -> SleepTicket,
        sleep: impl Fn(SleepTicket, Duration) -> WaitResult,
    ) -> Result<T, WaitError> {
        if let Some(value) = attempt() {
            return Ok(value);
        }
        let deadline = after(within);
        loop {
            let ticket = register();
            // Once more between registering and sleeping: what came before the card saw us is found here.
            if let Some(value) = attempt() {
                return Ok(value);
            }
            if self.closed.is_closed() {
                return Err(WaitError::Gone);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WaitError::TimedOut);
            }
            sleep(ticket, left);
        }
    }
}

impl Drop for HostGroup {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.over.is_none() && state.core.close_group(self.id) {
            drop(state);
            self.shared.agent_bell.wake();
        }
    }
}

/// The thread that keeps the connection.
struct AgentThread {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    config: HostLinkConfig,
    inbox: SyncSender<Vec<u8>>,
    /// Since when the card has not welcomed this host (back).
    cut_at: Option<Instant>,
    /// How long to wait before the next attempt to connect.
    pause: Duration,
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
    fn run(&mut self) {
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
            Ok(()) => Ok(()),
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

/// A time so far ahead that it cannot be said is a year ahead.
fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}

fn wake_sleepers(bells: impl Iterator<Item = (Region, usize)>) {
    for (region, offset) in bells {
        doorbell::futex_wake_all(region.word(offset));
    }
}

/// Connects and waits until that has worked or failed, not longer than `within`, and not once it is `given_up`.
fn connect(
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
