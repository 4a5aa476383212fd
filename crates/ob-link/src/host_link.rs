//! The host's driver: one thread that keeps the connection to the card, for an application with any number of them.

mod agent;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ob_core::{GroupId, Incarnation};
use ob_io::doorbell::{self, WaitResult};
use ob_ring::{CardBell, Closed, HostAreas, HostReceiver, HostSender, SleepTicket};
use ob_wire_link::frame::{Frame, Welcome};
use ob_wire_link::group::GroupSizes;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::group::GroupRefusal;
use crate::host_core::{HostCore, OpenedGroup};
use agent::{AgentThread, connect};

/// Channel messages that may wait for the application. The card stops sending long before, unless it breaks the
/// protocol or a connection was cut again and again.
const INBOX_MAX: usize = 1024;
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
    /// Called with each message of the ordered channel.
    ring: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
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
        let (state, ring) = (Mutex::new(state), Mutex::new(None));
        let shared = Arc::new(Shared { state, changed: Condvar::new(), agent_bell, over, ring });
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

    /// Has this called with each message of the card, which is to be taken then with [`HostLink::receive`]: for who sleeps elsewhere. It must
    /// not wait. What has come before is not told of.
    pub fn on_message(&self, ring: impl Fn() + Send + Sync + 'static) {
        *self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(ring));
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

/// A time so far ahead that it cannot be said is a year ahead.
fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}
