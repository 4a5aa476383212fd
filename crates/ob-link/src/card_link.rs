//! The card's driver: sockets, memory files and process descriptors around [`CardAttachment`].

mod admission;
mod arrivals;
mod memory;
mod pace;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use ob_core::{AttachmentId, DmaCounts, GroupId, Incarnation, Instant, RegionId};
use ob_io::{Event, Handle, Interest, MonotonicClock, ReactorError, WatchId, doorbell};
use ob_memory::ArenaSpan;
use ob_ring::{Armed, CardService, GroupKey, LocalDma};
use ob_wire_link::frame::{Frame, Hello, LinkKind, RefusedCode, VERSION};
use ob_wire_link::group::GroupSizes;
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::attachment::{CardAttachment, CardEvent, Identity};
use crate::card_dma::CardDma;
use crate::connection::{self, Arrived, Connection, ConnectionError, PeerProcess};
use crate::frame_dma::FrameDma;
use crate::group::{GroupClosedReason, GroupRefusal};
use crate::memory_file;
use crate::model::{Costs, ModelDma};
use ob_core::AddressRange;
use pace::Pace;

/// Transfers in flight for one host.
const TRANSFERS_MAX: usize = 1024;
/// The largest transfer where the card copies by itself.
const TRANSFER_MAX: usize = 2 << 20;
/// Frames handled for one host before the others get their turn.
const FRAMES_A_TURN: usize = 64;
/// Groups that one host may have asked for and not have an answer to.
const WISHES_MAX: usize = 64;
/// How long a connection may take to say `HELLO`.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection keeps its place without saying `HELLO` when others want it.
const PLACE_FOR: Duration = Duration::from_millis(200);
/// Connections that have not said `HELLO` yet.
const STRANGERS_MAX: usize = 64;
/// How long a host that is asked whether it lives keeps others from attaching until it has answered: so long, or twice as long as
/// it took the last time.
const ANSWER_WITHIN: Duration = Duration::from_millis(100);
/// What it took the last time counts up to this: nobody holds others up for as long as it likes.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// Connections that one listener accepts before hosts get their turn: those that are turned away take no place.
const ACCEPTS_A_TURN: usize = 16;
/// How long something else must listen there before that is an error.
const IN_USE_AFTER: Duration = Duration::from_secs(1);
/// Accepting is tried again so long after it failed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How a card meets its hosts.
#[derive(Clone, Debug)]
pub struct CardLinkConfig {
    /// Which life of the card this is.
    pub incarnation: Incarnation,
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// Costs to put on Unix-socket attachments, which makes them `model`.
    pub costs: Option<Costs>,
    /// Threads of the card that poll.
    pub pollers: u16,
    /// How long a `tcp` host may be away.
    pub dead_after: Duration,
    /// Bytes of region memory granted to all hosts together.
    pub memory_max: u64,
    /// Bytes of region memory granted to one host, so that it cannot starve the others.
    pub host_memory_max: u64,
    /// Hosts attached at once.
    pub hosts_max: usize,
    /// Users that may attach besides the card's own and root.
    pub allow_users: Vec<u32>,
    /// Addresses that may attach over `tcp`; none means loopback only.
    pub allow_addresses: Vec<AddressRange>,
}

/// One place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket: `shm` or `model`.
    Unix(PathBuf),
    /// A TCP address: `tcp`.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "{}", path.display()),
            Self::Tcp(address) => write!(formatter, "{address}"),
        }
    }
}

/// Why the card cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum CardLinkError {
    /// Another process has the socket or port.
    #[error("{0} is in use by another process")]
    InUse(Listen),
    /// Something else is in the way.
    #[error("cannot listen on {0}: {1}")]
    Listen(Listen, Errno),
    /// The reactor cannot watch one more descriptor.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
}

/// What the card knows of one host.
#[derive(Clone, Debug)]
pub struct HostReport {
    /// Who it is.
    pub identity: Identity,
    /// Whether there is a connection now (a `tcp` host may be away for a while).
    pub connected: bool,
    /// Its process, where that is known.
    pub pid: Option<i32>,
    /// Transfers so far.
    pub counts: DmaCounts,
    /// How long it has been attached.
    pub attached_for: Duration,
    /// Open groups.
    pub groups: usize,
    /// Bytes of its regions.
    pub region_bytes: u64,
}

/// All hosts of a card, driven by one reactor.
pub struct CardLink {
    reactor: Handle,
    config: CardLinkConfig,
    listeners: Vec<Listener>,
    /// Counts on, so that each of them is asked first in its turn.
    first_listener: usize,
    strangers: Vec<Stranger>,
    hosts: Vec<Host>,
    next_attachment: u64,
    memory_used: u64,
    events: Vec<CardEvent>,
    /// What hosts that are gone have carried.
    past: DmaCounts,
    shutting_down: bool,
    /// When the next group may be opened, and which host's turn it is.
    pace: Pace,
}

struct Listener {
    socket: OwnedFd,
    watch: WatchId,
    listen: Listen,
    /// There may be connections to accept.
    readable: bool,
    /// Accepting failed for want of something; it is tried again then.
    again_at: Option<Instant>,
    /// The kernel does not watch it any more.
    is_deaf: bool,
}

/// A connection that has not said `HELLO` yet, or has not been answered.
struct Stranger {
    wire: Wire,
    peer: Peer,
    since: Instant,
    /// What it said, if that has to wait.
    hello: Option<Hello>,
}

/// A connection and the reactor's watch on it.
struct Wire {
    connection: Connection,
    watch: WatchId,
    readable: bool,
    writable: bool,
}

enum Peer {
    Process(PeerProcess),
    Machine,
}

struct Host {
    core: CardAttachment<MonotonicClock>,
    wire: Option<Wire>,
    process: Option<(OwnedFd, WatchId, i32)>,
    /// Memory files to hand over, by region.
    files: BTreeMap<RegionId, OwnedFd>,
    /// Memory of groups that the reactor knows.
    arenas: Vec<(GroupId, ArenaSpan)>,
    /// Bytes of groups that were closed without the host asking for it.
    lingering: u64,
    /// Groups that it asked for and has no answer to yet.
    wishes: VecDeque<Wish>,
    attached_at: Instant,
    /// When something last came from it.
    heard_at: Instant,
    away_since: Option<Instant>,
    /// The question whether it lives that it has not answered, and since when that is on its way.
    asked: Option<(u64, Instant)>,
    /// The question that it was asked because it came back. Nobody waits for the answer: it could come back again and again.
    asked_back: Option<u64>,
    /// How long its last answer took.
    answers_after: Duration,
    over: Option<String>,
}

impl Host {
    /// Keeps account of when it was asked, and of how long it took to answer.
    fn note_question(&mut self, now: Instant) {
        let answered = self.core.answered();
        if let Some((_, since)) = self.asked.take_if(|(nonce, _)| *nonce == answered) {
            self.answers_after = now - since;
        }
        if let Some(nonce) = self.core.asked()
            && self.asked.is_none_or(|(last, _)| last != nonce)
        {
            self.asked = Some((nonce, now));
        }
    }

    /// Until when an answer to the question whether it lives is waited for, if there is one. Nobody waits for a host without groups:
    /// nothing of it is held back.
    fn awaited_until(&self, now: Instant) -> Option<Instant> {
        let nonce = self.core.asked().filter(|nonce| self.asked_back != Some(*nonce))?;
        let since = self.asked.filter(|(asked, _)| *asked == nonce).map_or(now, |(_, since)| since);
        let patience = ANSWER_WITHIN.max(self.answers_after.min(ANSWER_MAX) * 2);
        Some(since + patience).filter(|until| now < *until && self.core.group_count() > 0)
    }

    /// Whether it is over, or will be when what it has said before is read.
    fn is_ending(&self) -> bool {
        self.over.is_some() || self.wire.as_ref().is_some_and(|wire| wire.connection.is_broken())
    }

    /// Since when it is silent, where only what it says shows that it lives: since it was last heard, or asked.
    fn silent_since(&self) -> Option<Instant> {
        self.wire.as_ref().filter(|wire| wire.connection.is_stream())?;
        Some(self.asked.map_or(self.heard_at, |(_, asked_at)| asked_at.max(self.heard_at)))
    }
}

/// A group that a host asked for.
#[derive(Clone, Copy)]
struct Wish {
    request: u32,
    service: u32,
    sizes: GroupSizes,
}

impl CardLink {
    /// Begins to listen.
    pub fn new(reactor: &Handle, config: CardLinkConfig) -> Result<Self, CardLinkError> {
        let mut listeners = Vec::new();
        for listen in &config.listen {
            let socket =
                listen_patiently(listen, !config.allow_users.is_empty()).map_err(|error| match error {
                    Errno::ADDRINUSE => CardLinkError::InUse(listen.clone()),
                    error => CardLinkError::Listen(listen.clone(), error),
                })?;
            let watch = reactor.watch(&socket, Interest::Readable)?;
            let listen = listen.clone();
            listeners.push(Listener {
                socket,
                watch,
                listen,
                readable: true,
                again_at: None,
                is_deaf: false,
            });
        }
        Ok(Self {
            reactor: reactor.clone(),
            config,
            listeners,
            first_listener: 0,
            strangers: Vec::new(),
            hosts: Vec::new(),
            next_attachment: 1,
            memory_used: 0,
            events: Vec::new(),
            past: DmaCounts::default(),
            shutting_down: false,
            pace: Pace::default(),
        })
    }

    /// Where a TCP listener really listens (port 0 asks for any).
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        let tcp = self.listeners.iter().find(|listener| matches!(listener.listen, Listen::Tcp(_)))?;
        SocketAddr::try_from(rustix::net::getsockname(&tcp.socket).ok()?).ok()
    }

    /// Takes an event of the reactor. `false` if it is not the link's.
    pub fn handle(&mut self, event: &Event) -> bool {
        let Event::Ready { watch, readiness } = event else { return false };
        if readiness.is_lost() && self.lose_watched(*watch) {
            return true;
        }
        if let Some(listener) = self.listeners.iter_mut().find(|listener| listener.watch == *watch) {
            listener.readable = true;
            listener.is_deaf |= readiness.is_lost();
            return true;
        }
        let wires = self.strangers.iter_mut().map(|stranger| &mut stranger.wire);
        let wires = wires.chain(self.hosts.iter_mut().filter_map(|host| host.wire.as_mut()));
        for wire in wires {
            if wire.watch == *watch {
                wire.readable |= readiness.is_readable();
                wire.writable |= readiness.is_writable();
                return true;
            }
        }
        for host in &mut self.hosts {
            if host.process.as_ref().is_some_and(|(_, process, _)| process == watch) {
                host.over = Some("its process died".to_owned());
                // It may have said goodbye before.
                host.wire.iter_mut().for_each(|wire| wire.readable = true);
                return true;
            }
        }
        false
    }

    /// Moves everything on. `true` if requests or responses moved, or a host came or went.
    pub fn poll(&mut self, now: Instant, service: &mut dyn CardService) -> bool {
        let mut worked = self.meet_strangers(now);
        // Not always the same first, or it would have every place that comes free.
        self.first_listener += 1;
        for index in 0..self.listeners.len() {
            self.accept((self.first_listener + index) % self.listeners.len(), now);
        }
        worked |= self.meet_strangers(now);
        for index in 0..self.hosts.len() {
            worked |= self.read_frames(index, now, service);
            let host = &mut self.hosts[index];
            worked |= host.core.poll(service, &mut self.events);
            self.act(index);
            self.write_frames(index, now);
        }
        worked |= self.grant_wish(now, service);
        self.doubt_silent(now);
        worked | self.bury(now, service)
    }

    /// Sends what the service has for one group, without a look at the other groups and hosts. `true` if there was anything to
    /// do.
    pub fn deliver(&mut self, now: Instant, key: GroupKey, service: &mut dyn CardService) -> bool {
        let of_key = |host: &Host| host.core.identity().attachment == key.attachment;
        let Some(index) = self.hosts.iter().position(of_key) else { return false };
        let delivered = self.hosts[index].core.deliver(key.group, service, &mut self.events);
        self.act(index);
        self.write_frames(index, now);
        // A host that ended by that is to be buried before anybody sleeps.
        delivered || self.hosts[index].is_ending()
    }

    /// Gets every ring ready for the card to sleep: `Yes` when each either is ready, or waits for a transfer whose
    /// completion wakes the card anyway.
    pub fn arm(&mut self, now: Instant, service: &mut dyn CardService) -> Armed {
        let accepting = self.has_place(now) && self.listeners.iter().any(|listener| listener.readable);
        let greeting = self.strangers.iter().any(|stranger| stranger.hello.is_some()) && !self.is_asking(now);
        let mut all = if accepting || greeting { Armed::NotYet } else { Armed::Yes };
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            let armed = host.core.arm(service, &mut self.events);
            if armed == Armed::NotYet && !host.core.is_waiting() {
                all = Armed::NotYet;
            }
            if host.wire.as_ref().is_some_and(|wire| wire.readable) {
                all = Armed::NotYet;
            }
            self.act(index);
            self.write_frames(index, now);
            // As in `deliver`.
            if self.hosts[index].is_ending() {
                all = Armed::NotYet;
            }
        }
        all
    }

    /// Whether a sleeping card would be woken in time by descriptors alone: transfers that only time completes are
    /// not, and `next_due` tells of them.
    pub fn next_due(&self) -> Option<Instant> {
        let transfers = self.hosts.iter().filter_map(|host| host.core.next_due());
        let wishing = self.hosts.iter().any(|host| !host.wishes.is_empty());
        let grants = wishing.then_some(self.pace.next());
        let unheard =
            |host: &Host| Some(host.away_since.or_else(|| host.silent_since())? + self.config.dead_after);
        let unheard = self.hosts.iter().filter_map(unheard);
        let crowded = self.is_crowded() && self.listeners.iter().any(|listener| listener.readable);
        let patience = if crowded { PLACE_FOR } else { HELLO_WITHIN };
        let strangers = self.silent().map(|(_, since)| since + patience);
        let listeners = self.listeners.iter().filter_map(|listener| listener.again_at);
        let answers = self.answers_due();
        transfers.chain(grants).chain(unheard).chain(strangers).chain(listeners).chain(answers).min()
    }

    /// Every ring is looked at again. A card that wakes need not: rings that were got ready stay so, and whoever
    /// settles something in one rings for it.
    pub fn wake(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.core.wake());
    }

    /// Threads that poll on this machine: the card's own and those of hosts that share its cores.
    pub fn pollers(&self) -> usize {
        let local = self.hosts.iter().map(|host| host.core.identity());
        let local = local.filter(|identity| identity.kind != LinkKind::Tcp);
        usize::from(self.config.pollers)
            + local.map(|identity| usize::from(identity.host_pollers)).sum::<usize>()
    }

    /// What the link has carried, over all attachments that are or were.
    pub fn counts(&self) -> DmaCounts {
        self.hosts.iter().fold(self.past, |sum, host| sum + host.core.counts())
    }

    /// How many hosts are attached, connected or away.
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// The attached hosts.
    pub fn hosts(&self) -> Vec<HostReport> {
        let report = |host: &Host| HostReport {
            identity: host.core.identity().clone(),
            connected: host.wire.is_some(),
            pid: host.process.as_ref().map(|(_, _, pid)| *pid),
            counts: host.core.counts(),
            attached_for: self.reactor.now() - host.attached_at,
            groups: host.core.group_count(),
            region_bytes: host.core.region_bytes(),
        };
        self.hosts.iter().map(report).collect()
    }

    /// Sends a message on a host's ordered channel. `false` if it is gone or behind with reading.
    pub fn send(&mut self, attachment: AttachmentId, message: &[u8]) -> bool {
        let index = self.hosts.iter().position(|host| host.core.identity().attachment == attachment);
        let Some(index) = index else { return false };
        let accepted = self.hosts[index].core.send(message);
        self.write_frames(index, self.reactor.now());
        accepted
    }

    /// Says goodbye to everyone and stops listening.
    pub fn shut_down(&mut self, service: &mut dyn CardService) {
        self.shutting_down = true;
        for index in 0..self.hosts.len() {
            self.hosts[index].core.say_goodbye(1, "the card is shutting down");
            self.write_frames(index, self.reactor.now());
            self.hosts[index].over = Some("the card is shutting down".to_owned());
        }
        self.bury(self.reactor.now(), service);
        for listener in self.listeners.drain(..) {
            self.reactor.unwatch(listener.watch);
            if let Listen::Unix(path) = &listener.listen {
                let _ = rustix::fs::unlink(path);
            }
        }
    }

    fn read_frames(&mut self, index: usize, now: Instant, service: &mut dyn CardService) -> bool {
        let mut worked = false;
        for _ in 0..FRAMES_A_TURN {
            let host = &mut self.hosts[index];
            let Some(wire) = host.wire.as_mut().filter(|wire| wire.readable) else { break };
            let handled = match wire.connection.receive(false) {
                Ok(Arrived::Nothing) => {
                    wire.readable = false;
                    break;
                }
                Ok(Arrived::Frame) => {
                    host.heard_at = now;
                    if !wire.connection.is_stream() {
                        // A doorbell that found the socket full was not sent: what filled it stands for it.
                        host.core.wake();
                    }
                    let frame = wire.connection.frame().map_err(crate::ProtocolError::from);
                    frame.and_then(|(frame, _)| {
                        // Answers to our own polling are no reason to poll on.
                        worked |=
                            !matches!(frame, Frame::DmaDone { .. } | Frame::Ack { .. } | Frame::Pong { .. });
                        host.core.handle(&frame, service)
                    })
                }
                Err(error) => {
                    self.lose_wire(index, &error);
                    return true;
                }
            };
            match handled {
                Ok(event) => {
                    let is_last = matches!(event, Some(CardEvent::Goodbye));
                    self.events.extend(event);
                    self.act(index);
                    if is_last {
                        break;
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    host.core.say_goodbye(2, &text);
                    host.over = Some(text);
                    break;
                }
            }
        }
        worked
    }

    /// A connection that the kernel does not watch any more would never be heard again.
    fn lose_watched(&mut self, watch: WatchId) -> bool {
        let is_watched = |wire: &Wire| wire.watch == watch;
        if let Some(index) = self.hosts.iter().position(|host| host.wire.as_ref().is_some_and(is_watched)) {
            self.lose_wire(index, &ConnectionError::Broken(Errno::NOMEM));
            return true;
        }
        let Some(index) = self.strangers.iter().position(|stranger| is_watched(&stranger.wire)) else {
            return false;
        };
        let stranger = self.strangers.remove(index);
        self.drop_wire(stranger.wire);
        true
    }

    /// A connection is gone: the end on one machine, a pause on two.
    fn lose_wire(&mut self, index: usize, error: &ConnectionError) {
        let host = &mut self.hosts[index];
        let Some(wire) = host.wire.take() else { return };
        if wire.connection.is_stream() && !matches!(error, ConnectionError::Frame(_)) {
            tracing::warn!(attachment = host.core.identity().attachment.0, "host is away: {error}");
            host.core.disconnected();
            host.away_since = Some(self.reactor.now());
        } else {
            host.over.get_or_insert_with(|| error.to_string());
        }
        self.drop_wire(wire);
    }

    fn write_frames(&mut self, index: usize, now: Instant) {
        let host = &mut self.hosts[index];
        host.note_question(now);
        for wake in host.core.take_wakes(now) {
            doorbell::futex_wake_all(wake.region.word(wake.offset));
        }
        let out = match host.core.outgoing() {
            Ok(out) => out,
            Err(error) => {
                host.over = Some(error.to_string());
                return;
            }
        };
        let Some(wire) = host.wire.as_mut().filter(|wire| wire.writable && !out.is_empty()) else { return };
        let files = &host.files;
        let memory = |frame: &Frame<'_>| match frame {
            Frame::GroupOpened(opened) => files.get(&opened.region).map(AsFd::as_fd),
            _ => None,
        };
        match wire.connection.send(out, memory) {
            Ok(all) => {
                wire.writable = all;
                wire.readable |= wire.connection.is_broken();
            }
            Err(error) => self.lose_wire(index, &error),
        }
    }

    /// Does what the core asked of its driver.
    fn act(&mut self, index: usize) {
        for event in std::mem::take(&mut self.events) {
            match event {
                CardEvent::OpenGroup { request, service, sizes } => {
                    let wish = Wish { request, service, sizes };
                    let host = &mut self.hosts[index];
                    if host.wishes.len() < WISHES_MAX {
                        host.wishes.push_back(wish);
                    } else {
                        let text = format!("{WISHES_MAX} groups that this host asked for are not open yet");
                        host.core.refuse_group(request, &GroupRefusal::Budget(text));
                    }
                }
                CardEvent::GroupClosed { group, region_len, reason } => {
                    self.forget_group(index, group, region_len, reason);
                }
                CardEvent::Goodbye => self.hosts[index].over = Some("it said goodbye".to_owned()),
            }
        }
    }

    /// Asks hosts of which nothing came for `dead_after` whether they live, and hangs up on those that then say nothing for as long: one
    /// that lives comes back. The kernel does not tell of a dead process whose children hold its connection.
    fn doubt_silent(&mut self, now: Instant) {
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            if host.silent_since().is_none_or(|since| now.since(since) < self.config.dead_after) {
                continue;
            }
            if host.asked.is_some() {
                self.lose_wire(index, &ConnectionError::Broken(Errno::TIMEDOUT));
            } else {
                host.core.doubt();
                self.write_frames(index, now);
            }
        }
    }

    /// Ends the attachments that are over. Their memory goes back when the last slice of it is dropped.
    fn bury(&mut self, now: Instant, service: &mut dyn CardService) -> bool {
        let mut worked = false;
        let mut index = 0;
        while index < self.hosts.len() {
            let host = &mut self.hosts[index];
            if host.away_since.is_some_and(|since| now.since(since) >= self.config.dead_after) {
                host.over = Some("it did not come back".to_owned());
            }
            if host.over.is_none() {
                index += 1;
                continue;
            }
            self.unregister(index, None);
            let mut host = self.hosts.swap_remove(index);
            let reason = host.over.take().unwrap_or_default();
            tracing::info!(attachment = host.core.identity().attachment.0, "host detached: {reason}");
            self.memory_used = self.memory_used.saturating_sub(host.core.region_bytes() + host.lingering);
            if let (Some(wire), Ok(out)) = (host.wire.as_mut(), host.core.outgoing()) {
                let _ = wire.connection.send(out, |_| None);
            }
            self.past = self.past + host.core.counts();
            if !self.shutting_down {
                // A host that is alive and lets its attachment end has no claim on the memory any more. When the card
                // stops, though, hosts may still read what was delivered.
                let files: Vec<OwnedFd> = std::mem::take(&mut host.files).into_values().collect();
                self.release(&files);
            }
            host.core.shut_down(service);
            if let Some(wire) = host.wire {
                self.drop_wire(wire);
            }
            if let Some((_, watch, _)) = host.process {
                self.reactor.unwatch(watch);
            }
            worked = true;
        }
        worked
    }

    #[allow(clippy::needless_pass_by_value)] // The connection ends here.
    fn drop_wire(&self, wire: Wire) {
        self.reactor.unwatch(wire.watch);
        // The kernel lets go of a watched descriptor a little later; the peer is told now.
        let _ = rustix::net::shutdown(wire.connection.socket(), rustix::net::Shutdown::Both);
    }
}

impl Drop for CardLink {
    fn drop(&mut self) {
        for index in 0..self.hosts.len() {
            self.unregister(index, None);
        }
        let wires = self.strangers.drain(..).map(|stranger| stranger.wire);
        for wire in wires.chain(self.hosts.drain(..).filter_map(|host| host.wire)).collect::<Vec<_>>() {
            self.drop_wire(wire);
        }
        for listener in &self.listeners {
            self.reactor.unwatch(listener.watch);
        }
    }
}

impl Wire {
    /// The `HELLO`, if it has arrived.
    fn hello(&mut self) -> Result<Option<Hello>, String> {
        match self.connection.receive(false).map_err(|error| error.to_string())? {
            Arrived::Nothing => {
                self.readable = false;
                Ok(None)
            }
            Arrived::Frame => match self.connection.frame().map_err(|error| error.to_string())?.0 {
                Frame::Hello(hello) => Ok(Some(hello)),
                _ => Err("its first frame is no HELLO".to_owned()),
            },
        }
    }

    fn refuse(&mut self, code: RefusedCode, text: &str) {
        let mut out = Vec::new();
        Frame::Refused { code: code as u32, text }.encode(&mut out);
        // If it does not take even that, it will see the connection end.
        let _ = self.connection.send(&mut out, |_| None);
    }
}

/// Listens. A card that was killed just now may seem to listen still: the kernel lets go of what a reactor watched
/// a little after the process is gone.
fn listen_patiently(listen: &Listen, shared: bool) -> Result<OwnedFd, Errno> {
    let deadline = std::time::Instant::now() + IN_USE_AFTER;
    loop {
        let socket = match listen {
            Listen::Unix(path) => connection::listen_unix(path, shared),
            Listen::Tcp(address) => connection::listen_tcp(*address),
        };
        if socket.as_ref().err() != Some(&Errno::ADDRINUSE) || std::time::Instant::now() >= deadline {
            return socket;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A number that nobody can guess; without randomness, nobody can resume.
fn random_secret() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(_) => u64::from_ne_bytes(bytes),
        Err(_) => 0,
    }
}
