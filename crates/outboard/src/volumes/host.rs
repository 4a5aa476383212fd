//! The tier's decisions on the host: a thread with the core of a tier, behind the ports of a card.
//!
//! ```text
//!   attach ─▶ group ─▶ HELLO … WELCOME ─▶ plans ─▶ rounds: completions, metadata ─▶ headers ─▶ actions ─▶ flush ─▶ sleep ─┐
//!      ▲                                               ▲──────────────────────────────────────────────────────────────────┘
//!      └── the card is gone, or does not want this host ◀┘
//! ```
//!
//! Each time its ports are opened they are served by a tier that knows nothing but what the metadata store has, and takes its segments
//! from there. The first port gives a gate to the others; when one of them is over all are, as nobody knows what its ring still had (I2).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ob_core::{BlockLen, Clock, GateId, Incarnation, PoolId, Token, VolumeId};
use ob_format::volume::metadata::{Class, Text, Volume, VolumeState};
use ob_io::{BootClock, doorbell};
use ob_link::{AttachError, HostGroup, HostLink, HostLinkConfig, OpenGroupError};
use ob_ring::AreaError;
use ob_split::host::{HostEnds, Port, PortError, PortEvent, PortOptions, PostError, Ticket};
use ob_split::wire::{Completion, HeaderEntry, RefusedCode, SPLIT_SERVICE, Welcome};
use ob_volume::metadata::{Keys, MetadataOp, MetadataStore};
use ob_volume::plans::{PostedPlan, definitions};
use ob_volume::press::{PressError, Presser};
use ob_volume::tier::{
    LEAVES_WITHIN, Looks, Placement, PortNumber, Press, SEGMENT_BLOCKS, TierAction, TierConfig,
    TierConfigError, TierCore, TierError, TierEvent, TierNews,
};
use ob_wire_link::group::GroupSizes;
use ob_wire_nvme::NamespaceId;

use super::admin::{Came, Counter, Defaults, answer_messages, answer_of};
use super::disk::{Disk, encode_disks};
use super::ends::GroupEnds;
use super::metadata::{MetadataClient, MetadataThreads};
use super::report::VolumesReport;
use super::{BLOCK_LEN, DISK, DISK_LEN, NSID, VOLUME, VolumesError};
use crate::config::HostConfig;
use crate::kv::WatchedThread;
use crate::random;

/// Bytes of the port's rings.
const RING: u32 = 256 << 10;
/// Bytes of the areas in which the card puts what servers tell at length, and from which it takes the index.
const CARD_AREA: u64 = 2 << 20;
const HOST_AREA: u64 = 1 << 20;
/// Messages of the port that are taken before its answers go out.
const EVENTS_A_ROUND: usize = 2048;
/// The longest sleep: whatever the thread might wait for by mistake, it looks again.
const SLEEP_MAX: Duration = Duration::from_secs(10);
/// How often the card is told how volumes are doing, if that has changed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Pauses between attempts to reach the card, or to get its port.
const RETRY: Duration = Duration::from_millis(100);
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// How long a host that ends waits for the store to hear of it, when all is given back.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// Commands that the tier has at a time.
const COMMANDS_MAX: usize = 1024;
/// Bytes of the volume's chunks.
const CHUNK_LEN: u32 = 64 << 20;
/// The port that is opened first.
const MAIN: PortNumber = PortNumber(0);

/// The threads of volumes.
pub(crate) struct VolumesHost {
    stop: Arc<Stop>,
    thread: WatchedThread,
    metadata: Arc<MetadataThreads>,
}

#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    bell: AtomicU64,
}

impl Stop {
    /// Wakes the thread, wherever it sleeps.
    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::AcqRel);
        doorbell::futex_wake_all(&self.bell);
    }

    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Sleeps for so long, or until somebody asks; whether somebody has.
    fn sleep(&self, time: Duration) -> bool {
        let seen = self.bell.load(Ordering::Acquire) as u32;
        if !self.is_asked() {
            doorbell::futex_wait(&self.bell, seen, Some(time));
        }
        self.is_asked()
    }
}

impl VolumesHost {
    /// Starts the threads, of a host in this life.
    pub(crate) fn start(
        config: &HostConfig,
        link: HostLinkConfig,
        incarnation: Incarnation,
    ) -> Result<Self, VolumesError> {
        // What a pool is called that this host makes, in a store that has none: chunk servers that have another's data refuse it.
        let pool = PoolId(random::uuid()?);
        let stop = Arc::new(Stop::default());
        let rung = Arc::clone(&stop);
        let (place, bell) = (&config.volumes.metadata, Arc::new(move || rung.ring()));
        let metadata = Arc::new(MetadataThreads::start(place, &config.directory, bell)?);
        let (config, asked, store) = (config.clone(), Arc::clone(&stop), Arc::clone(&metadata));
        let run = move || {
            let mut serving = Serving { config, link, incarnation, pool, store, stop: &asked };
            let mut told = String::new();
            while !asked.is_asked() {
                let Err(error) = serving.serve() else { continue };
                let text = error.to_string();
                if error.is_news() && told != text {
                    tracing::warn!("volumes: {text}; trying again");
                    told = text;
                }
                asked.sleep(error.pause());
            }
            // Where the port was over first.
            serving.store.end_sessions(HEARD_WITHIN);
        };
        Ok(Self { stop, thread: WatchedThread::start("volumes", run)?, metadata })
    }

    /// Each becomes readable when a thread has ended, though nobody has asked it to.
    pub(crate) fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.thread.as_fd()).chain(self.metadata.ends())
    }
}

impl Drop for VolumesHost {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.ring();
        self.thread.join();
    }
}

/// Why volumes are not served now.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot attach to the card: {0}")]
    Attach(#[from] AttachError),
    #[error("port {number} of the card cannot be had (has it as many `ports` in `[volumes]`?): {error}")]
    AttachPort {
        /// As people count them.
        number: usize,
        error: AttachError,
    },
    #[error("the card does not give the port: {0}")]
    Group(#[from] OpenGroupError),
    #[error("the port is over: {0}")]
    Port(#[from] PortError),
    #[error("the card refuses the host: {0:?}")]
    Refused(RefusedCode),
    #[error("what volumes need was not said to the card: {0}")]
    Post(#[from] PostError),
    #[error("the card has lost its way: {0}")]
    Tier(#[from] TierError),
    #[error("volumes cannot be as they are configured: {0}")]
    Config(#[from] TierConfigError),
    #[error("a plan of volumes cannot be defined: {0}")]
    Plan(#[from] ob_split::wire::PlanError),
    #[error("a payload cannot be written: {0}")]
    Press(#[from] PressError),
    #[error("{0}")]
    Text(&'static str),
}

impl ServeError {
    /// How long to wait before the next attempt.
    fn pause(&self) -> Duration {
        match self {
            Self::Attach(_) => RETRY,
            Self::AttachPort { .. }
            | Self::Group(_)
            | Self::Port(_)
            | Self::Post(_)
            | Self::Tier(_)
            | Self::Press(_) => REFUSED_PAUSE,
            // That does not change by itself.
            // Another port of it is over by now.
            Self::Refused(RefusedCode::GateClosed) => REFUSED_PAUSE,
            Self::Refused(_) | Self::Config(_) | Self::Plan(_) | Self::Text(_) => Duration::from_secs(30),
        }
    }

    /// Whether nobody else tells people of it.
    fn is_news(&self) -> bool {
        !matches!(self, Self::Attach(_))
    }
}

struct Serving<'a> {
    config: HostConfig,
    link: HostLinkConfig,
    incarnation: Incarnation,
    pool: PoolId,
    store: Arc<MetadataThreads>,
    stop: &'a Arc<Stop>,
}

impl Serving<'_> {
    /// Serves all ports, until one is over or somebody asks.
    fn serve(&mut self) -> Result<(), ServeError> {
        let link = HostLink::attach(&self.link_of(0))?;
        let others = (1..self.config.volumes.ports.len()).map(|number| {
            let link = HostLink::attach(&self.link_of(number));
            link.map_err(|error| ServeError::AttachPort { number: number + 1, error })
        });
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let links: Vec<HostLink> = std::iter::once(link).chain(others).collect();
        let link = links.first().ok_or(ServeError::Text("no port"))?;
        let (rung, stop) = (Arc::new(AtomicBool::new(false)), Arc::clone(self.stop));
        let ring = Arc::clone(&rung);
        link.on_message(move || {
            ring.store(true, Ordering::Release);
            stop.ring();
        });
        let sizes = sizes(self.config.volumes.placement);
        let groups = links.iter().map(|link| link.open_group_of(SPLIT_SERVICE, sizes));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        let tier = TierCore::new(self.tier_config()?)?;
        let mut round = Round {
            ends: Vec::new(),
            incarnation: self.incarnation,
            tier,
            store: self.store.client(),
            waiting: VecDeque::new(),
            looks: Looks::default(),
            brought: Vec::new(),
            outbox: VecDeque::new(),
            tellings: 0,
            counter: Counter::new(self.defaults()),
            rung,
            link,
            report_at: ob_core::Instant::default(),
            has_news: true,
            reported: VolumesReport::default(),
            groups: &groups,
            presser: Presser::default(),
            stop: self.stop,
            is_leaving: false,
        };
        round.open(MAIN, None)?;
        round.run()?;
        round.leave(self.config.volumes.lease.0.min(LEAVES_WITHIN) + HEARD_WITHIN)
    }

    /// Where a port is, counted from 0.
    fn link_of(&self, number: usize) -> HostLinkConfig {
        let link = self.config.link.of_port(number);
        HostLinkConfig { endpoint: crate::halves::endpoint(&link), ..self.link.clone() }
    }

    /// What a volume has of which its maker says nothing.
    fn defaults(&self) -> Defaults {
        let replicas = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        let volumes = &self.config.volumes;
        Defaults {
            replicas: replicas(volumes.replicas),
            replicas_min: replicas(volumes.replicas_min),
            chunk_len: CHUNK_LEN,
        }
    }

    fn tier_config(&self) -> Result<TierConfig, ServeError> {
        let volumes = &self.config.volumes;
        let replicas = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        // What the store has is what counts: it is made so if that has none.
        let disk = Volume {
            state: VolumeState::Serving,
            class: Class::Standard,
            replicas: replicas(volumes.replicas),
            replicas_min: replicas(volumes.replicas_min),
            uuid: random::uuid().map_err(|_| ServeError::Text("the kernel gives no random bytes"))?,
            size: DISK_LEN,
            cut_from: None,
            segment_len: SEGMENT_BLOCKS * u64::from(BLOCK_LEN),
            chunk_len: CHUNK_LEN,
            block_len: BlockLen::Large,
            namespace: NamespaceId(NSID),
            generation: 1,
            name: Text::new(DISK).ok_or(ServeError::Text("a disk whose name is no text"))?,
        };
        let keys = Keys::new("default").map_err(|_| ServeError::Text("a pool whose name is none"))?;
        let addresses = addresses(&volumes.ports).ok_or(ServeError::Text("an address that is no text"))?;
        Ok(TierConfig {
            // Half of the time a command may be held here, and half by the card.
            hold: volumes.hold.0 / 2,
            ports: u32::try_from(volumes.ports.len()).unwrap_or(u32::MAX),
            commands_max: COMMANDS_MAX,
            placement: volumes.placement,
            lease: volumes.lease.0,
            index_memory: volumes.index_memory.0,
            lost_after: volumes.lost_after.0,
            rebuild_rate: volumes.rebuild_rate.0,
            compact_rate: volumes.compact_rate.0,
            compact_share: volumes.compact_share.0,
            compact_writes: volumes.compact_writes as u64,
            keeps_history: volumes.metadata_history,
            card_area: CARD_AREA,
            host_area: HOST_AREA,
            ..TierConfig::new(
                self.pool,
                keys,
                addresses,
                volumes.servers.clone(),
                vec![(VolumeId(VOLUME), disk)],
            )
        })
    }
}

/// As many of the ports' addresses as the tier's record has room for: they are for people.
fn addresses(ports: &[SocketAddr]) -> Option<Text<128>> {
    let all: Vec<String> = ports.iter().map(SocketAddr::to_string).collect();
    (1..=all.len()).rev().find_map(|count| Text::new(&all.get(..count)?.join(",")))
}

/// Rings, and areas: for what goes at length, as the tier is told of, and behind that for payloads, if the host takes them.
fn sizes(placement: Placement) -> GroupSizes {
    let (card, host) = placement.area_lens();
    let (card_area, host_area) = (CARD_AREA.max(card), HOST_AREA.max(host));
    GroupSizes { card_area, host_area, ..GroupSizes::rings(RING, RING) }
}

/// A port that is open, or about to be.
struct End<'a> {
    number: PortNumber,
    port: Port<GroupEnds<'a>>,
    /// Commands that the tier has of it at a time, once it is open.
    commands_max: usize,
}

/// The ports that are served, round by round.
struct Round<'a> {
    ends: Vec<End<'a>>,
    incarnation: Incarnation,
    tier: TierCore,
    store: MetadataClient,
    /// What a port, or the store, had no room for.
    waiting: VecDeque<TierAction>,
    looks: Looks<(PortNumber, HeaderEntry)>,
    /// What a server has told, out of the card's area.
    brought: Vec<u8>,
    /// What the card is to be told of disks, and administrators, in this order; and how often it was told of disks.
    outbox: VecDeque<Vec<u8>>,
    tellings: u64,
    counter: Counter,
    /// Whether the card may have said something on the channel.
    rung: Arc<AtomicBool>,
    link: &'a HostLink,
    /// When the card is told next how volumes are doing, and what it was told last.
    report_at: ob_core::Instant,
    /// Whether something has happened since.
    has_news: bool,
    reported: VolumesReport,
    /// Those of all ports, in their order.
    groups: &'a [HostGroup],
    presser: Presser,
    stop: &'a Stop,
    /// It was asked to stop, and gives back what it has.
    is_leaving: bool,
}

impl<'a> Round<'a> {
    /// Opens a port: with the gate that the first one was given, if it is another.
    fn open(&mut self, number: PortNumber, gate: Option<GateId>) -> Result<(), ServeError> {
        let group = self.groups.get(number.0 as usize).ok_or(ServeError::Text("a port without a link"))?;
        let options = PortOptions { incarnation: self.incarnation, gate, ..PortOptions::default() };
        let port = Port::open(GroupEnds::new(group, &self.stop.bell), &options)?;
        self.ends.push(End { number, port, commands_max: 0 });
        Ok(())
    }

    fn end(&mut self, number: PortNumber) -> Result<&mut End<'a>, Undone> {
        let end = self.ends.iter_mut().find(|end| end.number == number);
        end.ok_or(Undone::Failed(ServeError::Text("a port that is not open")))
    }

    fn run(&mut self) -> Result<(), ServeError> {
        while !self.stop.is_asked() {
            let moved = self.round()?;
            if !moved {
                self.sleep()?;
            }
        }
        Ok(())
    }

    /// Gives back what this tier has, so that nobody has to wait for its lease; if that takes longer than so, it is left as it is.
    fn leave(&mut self, within: Duration) -> Result<(), ServeError> {
        let until = BootClock.now() + within;
        self.is_leaving = true;
        self.tier.handle(BootClock.now(), TierEvent::Leave)?;
        while !self.tier.has_left() && BootClock.now() < until {
            let moved = self.round()?;
            if !moved {
                self.sleep()?;
            }
        }
        Ok(())
    }

    /// Takes what has come, decides, and says what is to be done; whether there was anything.
    fn round(&mut self) -> Result<bool, ServeError> {
        let mut moved = self.look()?;
        moved |= self.take_answers()?;
        moved |= self.take_requests()?;
        for end in &self.ends {
            self.tier.set_load(end.number, end.port.load());
        }
        while let Some((port, header)) = self.looks.next_ripe() {
            let now = BootClock.now();
            self.tier.handle(now, TierEvent::Header { port, header })?;
        }
        let now = BootClock.now();
        if self.tier.next_due().is_some_and(|due| due <= now) {
            self.tier.handle(now, TierEvent::Tick)?;
            moved = true;
        }
        moved |= self.perform()?;
        // (What the card has no room for it is told the next time.)
        while self.outbox.front().is_some_and(|message| self.link.send(message)) {
            self.outbox.pop_front();
        }
        self.has_news |= moved;
        if self.has_news && self.report_at <= now {
            self.report(now);
        }
        self.grant()?;
        for end in &mut self.ends {
            end.port.flush()?;
        }
        Ok(moved)
    }

    /// Takes what has come at all ports; whether there was anything.
    fn look(&mut self) -> Result<bool, ServeError> {
        let mut moved = !self.looks.is_empty();
        if self.ends.len() == 1 {
            moved |= self.take_events(0)?.0;
            self.looks.only_over();
            return Ok(moved);
        }
        for place in 0..self.ends.len() {
            moved |= self.take_events(place)?.0;
        }
        self.looks.first_over();
        let mut are_empty = true;
        for place in 0..self.ends.len() {
            let (more, is_empty) = self.take_events(place)?;
            moved |= more;
            are_empty &= is_empty;
        }
        self.looks.second_over(are_empty);
        Ok(moved)
    }

    /// The card shows how volumes are doing. (What it has no room for it is told the next time.)
    fn report(&mut self, now: ob_core::Instant) {
        (self.report_at, self.has_news) = (now + REPORT_EVERY, false);
        let report = VolumesReport::of(&self.tier.status());
        if report != self.reported && self.link.send(&report.encode()) {
            self.reported = report;
        }
    }

    /// Takes what has come at a port; whether there was anything, and whether nothing is left of it.
    fn take_events(&mut self, place: usize) -> Result<(bool, bool), ServeError> {
        let mut moved = false;
        for _ in 0..EVENTS_A_ROUND {
            let Some(end) = self.ends.get_mut(place) else { break };
            let port = end.number;
            let Some(event) = end.port.next_event()? else { return Ok((moved, true)) };
            moved = true;
            let now = BootClock.now();
            match event {
                PortEvent::Welcome(welcome) => self.welcome(now, place, welcome)?,
                PortEvent::Refused(code) => return Err(ServeError::Refused(code)),
                PortEvent::Header(header) => self.looks.find((port, header)),
                PortEvent::Done(done) => {
                    let (completion, reply) = (done.completion, done.reply);
                    match self.tier.brought(&completion) {
                        None => self.tier.handle(now, TierEvent::Done { port, completion, reply })?,
                        Some(at) => self.bring(now, place, completion, at)?,
                    }
                }
                PortEvent::Channel(is) => self.tier.handle(now, TierEvent::Channel { port, is })?,
                PortEvent::Broken(broken) => {
                    tracing::warn!(
                        slot = broken.slot.0,
                        channel = broken.channel.0,
                        "volumes: a chunk has lost a member; what is written next goes to another"
                    );
                    self.tier.handle(now, TierEvent::Broken { port, broken })?;
                }
                PortEvent::Noted(noted) => {
                    self.tier.handle(now, TierEvent::Noted { port, number: noted.number })?;
                }
                // It is not asked for: memory is the card's.
                PortEvent::Memory(_) => {}
            }
        }
        Ok((moved, false))
    }

    /// A port is open. Behind the first one the others are opened, by its gate.
    fn welcome(&mut self, now: ob_core::Instant, place: usize, welcome: Welcome) -> Result<(), ServeError> {
        let Some(end) = self.ends.get_mut(place) else { return Ok(()) };
        for definition in definitions()? {
            end.port.define(&definition)?;
        }
        end.commands_max = COMMANDS_MAX.min(welcome.handles_max as usize);
        let port = end.number;
        self.tier.handle(now, TierEvent::PortOpened { port, welcome })?;
        let (tier, gate) = (welcome.tier.0, welcome.gate.0);
        tracing::info!(tier, gate, "volumes: port {} is open", port.0 + 1);
        if port == MAIN {
            for number in (1u32..).take(self.groups.len().saturating_sub(1)) {
                self.open(PortNumber(number), Some(welcome.gate))?;
            }
        }
        Ok(())
    }

    /// What a server has told lies in the card's area.
    fn bring(
        &mut self,
        now: ob_core::Instant,
        place: usize,
        completion: Completion,
        (at, len): (u64, usize),
    ) -> Result<(), ServeError> {
        let Some(end) = self.ends.get(place) else { return Ok(()) };
        self.brought.resize(len, 0);
        end.port.ends().copy_out(at, &mut self.brought).map_err(|error| out_of_area(&error))?;
        let reply = Some(&self.brought[..]);
        Ok(self.tier.handle(now, TierEvent::Done { port: end.number, completion, reply })?)
    }

    /// What the metadata store has to say.
    fn take_answers(&mut self) -> Result<bool, ServeError> {
        let mut moved = false;
        while let Some(completion) = self.store.poll() {
            moved = true;
            self.tier.handle(BootClock.now(), TierEvent::Metadata(completion))?;
        }
        Ok(moved)
    }

    /// What administrators ask, by way of the card.
    fn take_requests(&mut self) -> Result<bool, ServeError> {
        let mut moved = false;
        if !self.rung.swap(false, Ordering::AcqRel) {
            return Ok(moved);
        }
        while let Ok(message) = self.link.receive(Duration::ZERO) {
            moved = true;
            match self.counter.take(&message) {
                Came::Request(ticket, request) => {
                    self.tier.handle(BootClock.now(), TierEvent::Administer { ticket, request })?;
                }
                Came::Answered(messages) => self.outbox.extend(messages),
                Came::Nothing => {}
            }
        }
        Ok(moved)
    }

    /// Does what the tier wants, in its order, as far as there is room.
    fn perform(&mut self) -> Result<bool, ServeError> {
        let mut moved = false;
        while let Some(action) = self.waiting.pop_front().or_else(|| self.tier.next_action()) {
            // What was made of a payload is kept, if there is no room for its plan.
            let action = match action {
                TierAction::Press { port, press } => {
                    TierAction::Post { port, plan: self.press(port, &press)? }
                }
                action => action,
            };
            match self.do_one(&action) {
                Ok(()) => moved = true,
                Err(Undone::NoRoom) => {
                    self.waiting.push_front(action);
                    break;
                }
                Err(Undone::Failed(error)) => return Err(error),
            }
        }
        Ok(moved)
    }

    fn do_one(&mut self, action: &TierAction) -> Result<(), Undone> {
        match action {
            TierAction::Post { port, plan } => Ok(self.end(*port)?.port.post(&plan.entry())?),
            TierAction::Press { port, press } => {
                let plan = self.press(*port, press).map_err(Undone::Failed)?;
                Ok(self.end(*port)?.port.post(&plan.entry())?)
            }
            TierAction::Set { port, set } => Ok(self.end(*port)?.port.set(set)?),
            TierAction::Channel { port, channel } => Ok(self.end(*port)?.port.channel(channel)?),
            TierAction::Gate { port, gate } => Ok(self.end(*port)?.port.gate(gate)?),
            TierAction::Upload { port, at, bytes } => {
                let areas = self.end(*port)?.port.ends();
                areas.copy_in(*at, bytes).map_err(|error| Undone::Failed(out_of_area(&error)))
            }
            TierAction::Metadata(token, op) => self.submit(*token, op.clone()),
            TierAction::Report(news) => {
                Self::tell(news);
                Ok(())
            }
            TierAction::Serve(volumes) => {
                tracing::info!(volumes = volumes.len(), "volumes: served");
                let disks: Vec<Disk> = volumes.iter().map(|(_, volume)| Disk::of(volume)).collect();
                self.tellings += 1;
                self.outbox.extend(encode_disks(self.tellings, &disks));
                Ok(())
            }
            TierAction::Tell { ticket, answer } => {
                self.outbox.extend(answer_messages(*ticket, &answer_of(answer)));
                Ok(())
            }
        }
    }

    fn tell(news: &TierNews) {
        match news {
            TierNews::ServerRefused { address, trouble } => {
                tracing::warn!("volumes: the chunk server at {address} cannot be used: {trouble}");
            }
            TierNews::Sealed { chunk, length, members, resolved } => {
                tracing::info!(?chunk, units = length.0, members, resolved, "volumes: a chunk is sealed");
            }
            TierNews::Repaired { chunk, members } => {
                tracing::info!(?chunk, members, "volumes: a chunk has a replica more");
            }
            TierNews::Mended { chunk, at } => {
                tracing::warn!(
                    ?chunk,
                    unit = at.0,
                    "volumes: a record had rotted at a chunk server, and is mended"
                );
            }
            TierNews::Dropped { chunk, members } => {
                tracing::warn!(?chunk, members, "volumes: a replica had rotted and is made anew");
            }
        }
    }

    /// The host's processor makes of a payload what is stored.
    fn press(&mut self, port: PortNumber, press: &Press) -> Result<PostedPlan, ServeError> {
        let end = self.ends.iter().find(|end| end.number == port);
        let areas = end.ok_or(ServeError::Text("a port that is not open"))?.port.ends();
        let out = |at, into: &mut [u8]| areas.copy_out(at, into);
        Ok(self.presser.press(press, out, |at, from| areas.copy_in(at, from))?)
    }

    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Undone> {
        self.store.submit(token, op).map_err(|_| Undone::NoRoom)
    }

    /// The card may send as many commands by each port as the tier has room for.
    fn grant(&mut self) -> Result<(), ServeError> {
        for end in &mut self.ends {
            let taken = self.tier.commands_of(end.number) + end.port.granted() as usize;
            let free = end.commands_max.saturating_sub(taken);
            // A few at a time would be a message each.
            if free > end.commands_max / 4 {
                end.port.grant(u32::try_from(free).unwrap_or(u32::MAX))?;
            }
        }
        Ok(())
    }

    /// Sleeps until the card has said something by any port, or it is time.
    fn sleep(&mut self) -> Result<(), ServeError> {
        let tickets: Vec<Ticket> = self.ends.iter_mut().map(|end| end.port.register()).collect();
        // Once more, now that whoever brings something rings.
        let is_over = if self.is_leaving { self.tier.has_left() } else { self.stop.is_asked() };
        if self.round()? || is_over || self.groups.iter().any(HostGroup::is_closed) {
            return Ok(());
        }
        let now = BootClock.now();
        let due = self.tier.next_due();
        // What has changed is told of soon, though nothing else is to be done.
        let due = due.into_iter().chain(self.has_news.then_some(self.report_at));
        let due = due.chain(self.outbox.front().map(|_| now + RETRY)).min();
        let within = due.map_or(SLEEP_MAX, |due| due.since(now)).min(SLEEP_MAX);
        if !within.is_zero() {
            let ends = self.ends.iter().map(|end| end.port.ends());
            GroupEnds::sleep_on_all(ends.zip(tickets), Some(within));
        }
        Ok(())
    }
}

/// The group is over, or the tier gives out what there is not.
const fn out_of_area(error: &AreaError) -> ServeError {
    match error {
        AreaError::Closed => ServeError::Port(PortError::Closed),
        _ => ServeError::Text("an area of the port is shorter than it should be"),
    }
}

/// Why something was not done.
enum Undone {
    NoRoom,
    Failed(ServeError),
}

impl From<PostError> for Undone {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::NoRoom,
            error => Self::Failed(error.into()),
        }
    }
}
