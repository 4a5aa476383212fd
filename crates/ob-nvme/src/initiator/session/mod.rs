//! One host's association with a controller, again and again.
//!
//! ```text
//!              ┌──────────────── Reconnect::give_up_after ────────────────▶ Over
//!              │                                                            ▲
//!   Starting ──┼─▶ admin queue ─▶ I/O queues ─▶ Ready ─── shutdown ─▶ Closing
//!       ▲      │                                 │
//!       └── Waiting (back-off) ◀──── lost ───────┘
//! ```
//!
//! Pure: sockets are the driver's, who opens and closes them as [`Action`] says and moves their bytes. All connections
//! of an association live and die together. A request that was not sent waits for the next association; one that
//! was sent is repeated or fails, as [`RetryPolicy`](super::RetryPolicy) says.

mod background;
mod loss;
mod setup;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::IoSlice;

use ob_core::Instant;
use ob_wire_nvme::fabrics::{Capabilities, ControllerConfiguration};
use ob_wire_nvme::identify::NamespaceIds;
use ob_wire_nvme::io::AsyncEvent;
use ob_wire_nvme::{ControllerId, NamespaceId, SubmissionEntry};

use super::connection::{Completion, Connection, ConnectionConfig, DEPTH_MAX, Data, Submission};
use super::error::{Cause, Error, Unreachable};
use super::options::Options;
use setup::Step;

/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Slots of the admin queue that the session keeps for itself: keep-alive, an event or its log, ids, shutdown.
const ADMIN_RESERVED: usize = 4;
/// Bytes that a connection receives at once, besides data.
const RECEIVE_LEN: usize = 64 << 10;
/// Events that nobody took; later ones are not kept.
const EVENTS_MAX: usize = 64;

/// A connection of this session. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkKey(pub u64);

/// A request of the session's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the target, and say [`Session::dialed`] or [`Session::broken`].
    Open(LinkKey),
    /// Close the connection.
    Close {
        /// Which.
        key: LinkKey,
        /// The last words, if there are any: to be sent if that goes at once.
        farewell: Vec<u8>,
    },
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The admin queue.
    Admin,
    /// Any I/O queue.
    Io,
}

/// A command of the session's user.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where it goes.
    pub queue: Queue,
    /// The command; its identifier and data pointer are filled in.
    pub entry: SubmissionEntry,
    /// Its data.
    pub data: Data,
    /// Whether to execute it twice is the same as once.
    pub is_idempotent: bool,
    /// Whether the controller may succeed with less data than was offered.
    pub may_be_short: bool,
    /// The namespace that it is meant for: another one under the same number does not get it.
    pub expects: Option<NamespaceIds>,
}

/// What a command that succeeded gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The association that executed it, counted from 1.
    pub association: u64,
    /// DW0 and DW1.
    pub result: u64,
    /// What the controller sent.
    pub data: Vec<u8>,
}

/// Something to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The association is there (again).
    Connected,
    /// The association was lost.
    Disconnected(Cause),
    /// These namespaces were added, removed or changed; [`NamespaceId::ALL`] for more than can be told.
    NamespacesChanged(Vec<NamespaceId>),
    /// Asymmetric access states changed.
    AccessChanged,
    /// The discovery log changed.
    DiscoveryChanged,
    /// Another event of the controller.
    Other(AsyncEvent),
    /// Events were lost, because nobody took them.
    Missed,
}

/// What is known of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// CNTLID.
    pub controller: ControllerId,
    /// SN.
    pub serial: String,
    /// MN.
    pub model: String,
    /// FR.
    pub firmware: String,
    /// SUBNQN as the controller says it.
    pub subsystem: String,
    /// I/O queues.
    pub queues: u16,
    /// Commands under way in each.
    pub depth: u16,
    /// Most bytes of one command.
    pub transfer_max: u32,
    /// Data that a capsule of an I/O queue carries.
    pub capsule_data_max: u32,
    /// ONCS: optional I/O commands.
    pub commands: u16,
    /// OAES: events that the controller tells.
    pub async_events: u32,
    /// Most bytes of a Write Zeroes, 0 for no limit.
    pub write_zeroes_max: u64,
    /// Most ranges of a deallocation.
    pub deallocate_ranges_max: u16,
    /// Most blocks of a range of a deallocation.
    pub deallocate_blocks_max: u32,
}

/// Why a command was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Request(RequestId),
    Setup,
    KeepAlive,
    AsyncEvent,
    EventLog(AsyncEvent),
    Verify(NamespaceId),
    Shutdown,
    ShutdownStatus,
}

/// A request that is not answered.
struct Held {
    request: Request,
    attempts: u32,
}

struct Link {
    key: LinkKey,
    queue: u16,
    /// None until the socket is connected.
    connection: Option<Connection<Purpose>>,
    /// None when the queue is set up.
    step: Option<Step>,
    /// Nothing is asked before.
    ask_at: Option<Instant>,
    is_asked: bool,
}

enum Stage {
    /// No association yet, or not any more: the next one begins then.
    Waiting {
        until: Instant,
    },
    /// Connections are being made and queues set up.
    Starting {
        deadline: Instant,
    },
    Ready,
    /// No further requests; then the controller is shut down.
    Closing {
        deadline: Instant,
        is_told: bool,
        /// When the controller, which was told, is asked again whether it is done.
        ask_at: Option<Instant>,
    },
    Over(Error),
}

/// A source of randomness, for authentication.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// The association, and its successors.
pub struct Session {
    options: Options,
    random: Random,
    stage: Stage,
    links: Vec<Link>,
    next_link: u64,
    next_transaction: u16,
    requests: HashMap<RequestId, Held>,
    waiting_admin: VecDeque<RequestId>,
    waiting_io: VecDeque<RequestId>,
    /// Requests that the controller refused for the moment.
    delayed: Vec<(Instant, RequestId)>,
    outcomes: VecDeque<(RequestId, Result<Answer, Error>)>,
    events: VecDeque<Event>,
    actions: VecDeque<Action>,
    controller: ControllerId,
    capabilities: Option<Capabilities>,
    configuration: ControllerConfiguration,
    facts: Option<Facts>,
    /// Whether there was an association before.
    was_ready: bool,
    /// How many there were, the present one included.
    associations: u64,
    attempts: u32,
    lost_at: Option<Instant>,
    keep_alive_at: Option<Instant>,
    is_keep_alive_out: bool,
    /// The namespaces that were asked for, and what they are now.
    namespaces: BTreeMap<NamespaceId, NamespaceIds>,
    /// Those of them that have to be asked for again before anything is sent to any.
    unverified: VecDeque<NamespaceId>,
    is_verifying: bool,
    /// Before when none of them is asked for, because the controller could not answer for the moment; and how often that
    /// was so without an answer in between.
    verify_at: Option<Instant>,
    verify_failures: u32,
}

impl Session {
    /// Begins to connect.
    #[must_use]
    pub fn new(options: Options, random: Random, now: Instant) -> Self {
        let mut session = Self {
            options,
            random,
            stage: Stage::Waiting { until: now },
            links: Vec::new(),
            next_link: 0,
            next_transaction: 0,
            requests: HashMap::new(),
            waiting_admin: VecDeque::new(),
            waiting_io: VecDeque::new(),
            delayed: Vec::new(),
            outcomes: VecDeque::new(),
            events: VecDeque::new(),
            actions: VecDeque::new(),
            controller: ControllerId::DYNAMIC,
            capabilities: None,
            configuration: ControllerConfiguration::default(),
            facts: None,
            was_ready: false,
            associations: 0,
            attempts: 0,
            lost_at: None,
            keep_alive_at: None,
            is_keep_alive_out: false,
            namespaces: BTreeMap::new(),
            unverified: VecDeque::new(),
            is_verifying: false,
            verify_at: None,
            verify_failures: 0,
        };
        session.tick(now);
        session
    }

    /// What is known of the controller, once it was ready.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref().filter(|_| self.was_ready)
    }

    /// Whether commands are executed now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready)
    }

    /// Why nothing will ever come of this session again.
    #[must_use]
    pub fn over(&self) -> Option<&Error> {
        match &self.stage {
            Stage::Over(error) => Some(error),
            Stage::Waiting { .. } | Stage::Starting { .. } | Stage::Ready | Stage::Closing { .. } => None,
        }
    }

    /// Takes a request. Its outcome comes with [`Session::next_outcome`].
    pub fn submit(&mut self, now: Instant, id: RequestId, request: Request) {
        let closed = match &self.stage {
            Stage::Over(error) => Some(error.clone()),
            Stage::Closing { .. } => Some(Error::Closed),
            Stage::Waiting { .. } | Stage::Starting { .. } | Stage::Ready => None,
        };
        let has_no_queue = request.queue == Queue::Io && self.facts().is_some_and(|facts| facts.queues == 0);
        let closed = closed.or(has_no_queue.then_some(Error::Unsuitable("it has no I/O queues")));
        if let Some(error) = closed {
            self.outcomes.push_back((id, Err(error)));
            return;
        }
        self.enqueue(id, request.queue);
        self.requests.insert(id, Held { request, attempts: 0 });
        self.dispatch(now);
    }

    /// The next request that is over.
    pub fn next_outcome(&mut self) -> Option<(RequestId, Result<Answer, Error>)> {
        self.outcomes.pop_front()
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A connection is made.
    pub fn dialed(&mut self, now: Instant, key: LinkKey) {
        let depth = self.depth_of(key);
        let config = ConnectionConfig {
            digests: self.options.digests,
            depth,
            receive_len: RECEIVE_LEN,
            command_timeout: self.options.command_timeout,
        };
        if let Some(link) = self.link_mut(key) {
            link.connection = Some(Connection::new(config, now));
        }
    }

    /// A connection could not be made, or broke.
    pub fn broken(&mut self, now: Instant, key: LinkKey, why: Unreachable) {
        if self.link_mut(key).is_some() {
            self.lose(now, &Cause::Broken(why));
        }
    }

    /// The target will send no more on this connection.
    pub fn ended(&mut self, now: Instant, key: LinkKey) {
        if self.link_mut(key).is_some() {
            self.lose(now, &Cause::Ended);
        }
    }

    /// Where a connection's bytes go.
    pub fn receive_into(&mut self, key: LinkKey) -> Option<[&mut [u8]; 2]> {
        self.link_mut(key)?.connection.as_mut().map(Connection::receive_into)
    }

    /// So many bytes were put there.
    pub fn received(&mut self, now: Instant, key: LinkKey, count: usize) {
        if let Some(connection) = self.link_mut(key).and_then(|link| link.connection.as_mut()) {
            connection.received(count);
            self.pump(now);
        }
    }

    /// What a connection has to send.
    pub fn transmit<'output>(&'output self, key: LinkKey, into: &mut [IoSlice<'output>]) -> usize {
        let link = self.links.iter().find(|link| link.key == key);
        link.and_then(|link| link.connection.as_ref()).map_or(0, |connection| connection.transmit(into))
    }

    /// Whether a connection has something to send.
    #[must_use]
    pub fn has_output(&self, key: LinkKey) -> bool {
        let link = self.links.iter().find(|link| link.key == key);
        link.and_then(|link| link.connection.as_ref()).is_some_and(Connection::has_output)
    }

    /// So many bytes were sent.
    pub fn sent(&mut self, key: LinkKey, count: usize) {
        if let Some(connection) = self.link_mut(key).and_then(|link| link.connection.as_mut()) {
            connection.sent(count);
        }
    }

    /// Does what the time demands.
    pub fn tick(&mut self, now: Instant) {
        match self.stage {
            Stage::Waiting { until } if until <= now => self.start(now),
            Stage::Starting { deadline } if deadline <= now => {
                self.lose(now, &Cause::Broken(Unreachable::TimedOut));
            }
            Stage::Closing { deadline, .. } if deadline <= now => self.finish(Error::Closed),
            Stage::Closing { ask_at: Some(at), .. } if at <= now => self.ask_whether_shut_down(now),
            _ => {}
        }
        for connection in self.links.iter_mut().filter_map(|link| link.connection.as_mut()) {
            connection.tick(now);
        }
        let mut due: Vec<RequestId> =
            self.delayed.iter().filter(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        self.delayed.retain(|(at, _)| *at > now);
        due.sort_unstable();
        for id in due {
            if let Some(queue) = self.requests.get(&id).map(|held| held.request.queue) {
                self.enqueue(id, queue);
            }
        }
        self.pump(now);
    }

    /// When [`Session::tick`] is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let stage = match self.stage {
            Stage::Waiting { until } => Some(until),
            Stage::Starting { deadline } => Some(deadline),
            Stage::Closing { deadline, ask_at, .. } => Some(ask_at.map_or(deadline, |at| at.min(deadline))),
            Stage::Ready | Stage::Over(_) => None,
        };
        let connections =
            self.links.iter().filter_map(|link| link.connection.as_ref()).filter_map(Connection::next_due);
        let asks = self.links.iter().filter_map(|link| link.ask_at);
        let delayed = self.delayed.iter().map(|(at, _)| *at);
        let timers = [stage, self.keep_alive_at, self.verify_at].into_iter().flatten();
        connections.chain(asks).chain(delayed).chain(timers).min()
    }

    fn link_mut(&mut self, key: LinkKey) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.key == key)
    }

    fn depth_of(&self, key: LinkKey) -> u16 {
        let is_admin = self.links.first().is_some_and(|link| link.key == key);
        let io = self.facts.as_ref().map_or(1, |facts| facts.depth);
        if is_admin { ADMIN_ENTRIES - 1 } else { io.clamp(1, DEPTH_MAX) }
    }

    fn enqueue(&mut self, id: RequestId, queue: Queue) {
        match queue {
            Queue::Admin => self.waiting_admin.push_back(id),
            Queue::Io => self.waiting_io.push_back(id),
        }
    }

    /// Opens a connection for a queue.
    fn open(&mut self, queue: u16) {
        let key = LinkKey(self.next_link);
        self.next_link += 1;
        let step = Some(Step::Connect);
        self.links.push(Link { key, queue, connection: None, step, ask_at: None, is_asked: false });
        self.actions.push_back(Action::Open(key));
    }

    fn start(&mut self, now: Instant) {
        self.stage = Stage::Starting { deadline: now + self.options.connect_timeout };
        self.open(0);
    }

    /// Moves everything on that can move.
    fn pump(&mut self, now: Instant) {
        for index in 0..self.links.len() {
            while let Some(completion) = self.completion_of(index) {
                if let Err(cause) = self.completed(now, index, completion) {
                    self.lose(now, &cause);
                    return;
                }
            }
        }
        let ended = self.links.iter().find_map(|link| link.connection.as_ref()?.ended().cloned());
        if let Some(cause) = ended {
            self.lose(now, &cause);
            return;
        }
        if let Err(cause) = self.set_up(now) {
            self.lose(now, &cause);
            return;
        }
        self.background(now);
        self.dispatch(now);
        self.close(now);
    }

    fn completion_of(&mut self, index: usize) -> Option<Completion<Purpose>> {
        self.links.get_mut(index)?.connection.as_mut()?.next_completion()
    }

    fn completed(
        &mut self,
        now: Instant,
        index: usize,
        completion: Completion<Purpose>,
    ) -> Result<(), Cause> {
        match completion.key {
            Purpose::Request(id) => self.answered(now, id, completion),
            Purpose::Setup => return self.setup_completed(now, index, &completion),
            Purpose::KeepAlive => self.keep_alive_answered(),
            Purpose::AsyncEvent => self.event_came(now, &completion),
            Purpose::EventLog(event) => self.event_log_came(now, event, &completion),
            Purpose::Verify(namespace) => self.verified(now, namespace, &completion),
            Purpose::Shutdown => self.shutdown_answered(now, &completion),
            Purpose::ShutdownStatus => self.shutdown_status_came(now, &completion),
        }
        Ok(())
    }

    /// Sends what waits, as far as there is room.
    fn dispatch(&mut self, now: Instant) {
        if !self.is_ready() {
            return;
        }
        let admin_room = |links: &[Link]| {
            links.first().and_then(|link| link.connection.as_ref()).map_or(0, Connection::room)
        };
        while let Some(id) = self.waiting_admin.front().copied() {
            if admin_room(&self.links) <= ADMIN_RESERVED || !self.send(now, 0, id) {
                break;
            }
            self.waiting_admin.pop_front();
        }
        let may_send = self.unverified.is_empty() && !self.is_verifying;
        while let Some(id) = self.waiting_io.front().copied().filter(|_| may_send) {
            if let Some(changed) = self.changed_namespace(id) {
                self.waiting_io.pop_front();
                self.requests.remove(&id);
                self.outcomes.push_back((id, Err(Error::NamespaceChanged(changed))));
                continue;
            }
            let room = |link: &Link| link.connection.as_ref().map_or(0, Connection::room);
            let io = self.links.iter().enumerate().skip(1);
            let best = io.map(|(index, link)| (room(link), index)).max_by_key(|(room, _)| *room);
            let Some((1.., index)) = best else { break };
            if !self.send(now, index, id) {
                break;
            }
            self.waiting_io.pop_front();
        }
    }

    /// Sends a request on a link; false when there is no room. A request that is gone counts as sent.
    fn send(&mut self, now: Instant, index: usize, id: RequestId) -> bool {
        let Some(held) = self.requests.get_mut(&id) else { return true };
        let Request { entry, data, may_be_short, .. } = &held.request;
        let (key, is_patient) = (Purpose::Request(id), false);
        let submission =
            Submission { key, entry: *entry, data: data.clone(), may_be_short: *may_be_short, is_patient };
        let connection = self.links.get_mut(index).and_then(|link| link.connection.as_mut());
        let is_sent = connection.is_some_and(|connection| connection.submit(now, submission).is_ok());
        held.attempts += u32::from(is_sent);
        is_sent
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        } else if let Some(last) = self.events.back_mut() {
            *last = Event::Missed;
        }
    }
}
