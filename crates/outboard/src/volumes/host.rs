//! The tier's decisions on the host: a thread with the core of a tier, behind a port of the card.
//!
//! ```text
//!   attach ─▶ group ─▶ HELLO … WELCOME ─▶ plans ─▶ rounds: completions, metadata ─▶ headers ─▶ actions ─▶ flush ─▶ sleep ─┐
//!      ▲                                               ▲──────────────────────────────────────────────────────────────────┘
//!      └── the card is gone, or does not want this host ◀┘        (the next port begins with an empty disk)
//! ```
//!
//! What is where is kept in memory, by this thread alone: a preview. Each port that is opened is therefore served by a tier that knows
//! nothing, and its disk has a number that no other had; the card gives it another identity likewise.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ob_core::{BlockLen, Clock, Incarnation, PoolId, Token, VolumeId};
use ob_format::volume::metadata::{Class, Text, Volume, VolumeState};
use ob_io::{MonotonicClock, doorbell};
use ob_link::{AttachError, HostGroup, HostLink, HostLinkConfig, OpenGroupError};
use ob_split::host::{Port, PortError, PortEvent, PortOptions, PostError};
use ob_split::wire::{HeaderEntry, RefusedCode, SPLIT_SERVICE};
use ob_volume::metadata::{Keys, MemoryStore, MetadataOp, MetadataStore};
use ob_volume::plans::definitions;
use ob_volume::tier::{
    PortNumber, SEGMENT_BLOCKS, TierAction, TierConfig, TierConfigError, TierCore, TierError, TierEvent,
    TierNews,
};
use ob_wire_link::group::GroupSizes;
use ob_wire_nvme::NamespaceId;

use super::ends::GroupEnds;
use super::report::VolumesReport;
use super::{BLOCK_LEN, DISK, DISK_LEN, NSID};
use crate::config::HostConfig;
use crate::durable;
use crate::kv::WatchedThread;
use crate::nvme::{hex, unhex};
use crate::random;

/// Bytes of the port's rings.
const RING: u32 = 256 << 10;
/// Messages of the port that are taken before its answers go out.
const EVENTS_A_ROUND: usize = 2048;
/// The longest sleep: whatever the thread might wait for by mistake, it looks again.
const SLEEP_MAX: Duration = Duration::from_secs(10);
/// How often the card is told how volumes are doing, if that has changed.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Pauses between attempts to reach the card, or to get its port.
const RETRY: Duration = Duration::from_millis(100);
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// Commands that the tier has at a time.
const COMMANDS_MAX: usize = 1024;
/// Bytes of the volume's chunks.
const CHUNK_LEN: u32 = 64 << 20;
/// The card has one port.
const PORT: PortNumber = PortNumber(0);
/// Where the host keeps the pool's name.
const POOL_FILE: &str = "pool";

/// The thread of volumes.
pub(crate) struct VolumesHost {
    stop: Arc<Stop>,
    thread: WatchedThread,
}

#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    bell: AtomicU64,
}

impl Stop {
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
    /// Starts the thread, of a host in this life.
    pub(crate) fn start(
        config: &HostConfig,
        link: HostLinkConfig,
        incarnation: Incarnation,
    ) -> std::io::Result<Self> {
        let pool = pool(&config.directory)?;
        let stop = Arc::new(Stop::default());
        let (config, asked) = (config.clone(), Arc::clone(&stop));
        let run = move || {
            let mut serving = Serving { config, link, incarnation, pool, ports: 0, stop: &asked };
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
        };
        Ok(Self { stop, thread: WatchedThread::start("volumes", run)? })
    }

    /// Becomes readable when its thread has ended, though nobody has asked it to.
    pub(crate) fn end(&self) -> BorrowedFd<'_> {
        self.thread.as_fd()
    }
}

impl Drop for VolumesHost {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.bell.fetch_add(1, Ordering::AcqRel);
        doorbell::futex_wake_all(&self.stop.bell);
        self.thread.join();
    }
}

/// The pool that this host's chunk servers belong to: drawn once, and known over restarts, because they do not change it.
fn pool(directory: &Path) -> std::io::Result<PoolId> {
    let path = directory.join(POOL_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let bytes = unhex(text.trim()).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
            let wrong = || {
                let text = format!("{} should hold 32 hexadecimal digits; remove it", path.display());
                std::io::Error::new(std::io::ErrorKind::InvalidData, text)
            };
            bytes.map(PoolId).ok_or_else(wrong)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let pool = random::uuid()?;
            durable::replace(&directory.join("pool.new"), &path, hex(&pool).as_bytes())?;
            Ok(PoolId(pool))
        }
        Err(error) => Err(error),
    }
}

/// Why volumes are not served now.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot attach to the card: {0}")]
    Attach(#[from] AttachError),
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
    #[error("{0}")]
    Text(&'static str),
}

impl ServeError {
    /// How long to wait before the next attempt.
    fn pause(&self) -> Duration {
        match self {
            Self::Attach(_) => RETRY,
            Self::Group(_) | Self::Port(_) | Self::Post(_) | Self::Tier(_) => REFUSED_PAUSE,
            // That does not change by itself.
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
    /// Ports that were opened in this life.
    ports: u32,
    stop: &'a Stop,
}

impl Serving<'_> {
    /// Serves one port, until it is over or somebody asks.
    fn serve(&mut self) -> Result<(), ServeError> {
        let link = HostLink::attach(&self.link)?;
        let group = link.open_group_of(SPLIT_SERVICE, sizes())?;
        self.ports += 1;
        let tier = TierCore::new(self.tier_config()?)?;
        let options = PortOptions { incarnation: self.incarnation, ..PortOptions::default() };
        let port = Port::open(GroupEnds::new(&group, &self.stop.bell), &options)?;
        let mut round = Round {
            port,
            tier,
            store: MemoryStore::new(),
            waiting: VecDeque::new(),
            headers: Vec::new(),
            commands_max: 0,
            link: &link,
            report_at: ob_core::Instant::default(),
            has_news: true,
            reported: VolumesReport::default(),
            group: &group,
            stop: self.stop,
        };
        round.run()
    }

    fn tier_config(&self) -> Result<TierConfig, ServeError> {
        let volumes = &self.config.volumes;
        let text = |text: &str| Text::new(text).ok_or(ServeError::Text("an address that is no text"));
        // No two lives of the disk have one number, so that chunks of an earlier one are never taken for this one's.
        let id = VolumeId(self.incarnation.0 << 24 | u64::from(self.ports));
        let replicas = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
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
        let addresses = volumes.ports.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        Ok(TierConfig {
            // Half of the time a command may be held here, and half by the card.
            hold: volumes.hold.0 / 2,
            commands_max: COMMANDS_MAX,
            ..TierConfig::new(self.pool, keys, text(&addresses)?, volumes.servers.clone(), vec![(id, disk)])
        })
    }
}

fn sizes() -> GroupSizes {
    GroupSizes::rings(RING, RING)
}

/// One port that is served, round by round.
struct Round<'a> {
    port: Port<GroupEnds<'a>>,
    tier: TierCore,
    store: MemoryStore,
    /// What the port, or the store, had no room for.
    waiting: VecDeque<TierAction>,
    headers: Vec<HeaderEntry>,
    /// Commands that the tier has at a time, once the port is open.
    commands_max: usize,
    link: &'a HostLink,
    /// When the card is told next how volumes are doing, and what it was told last.
    report_at: ob_core::Instant,
    /// Whether something has happened since.
    has_news: bool,
    reported: VolumesReport,
    group: &'a HostGroup,
    stop: &'a Stop,
}

impl Round<'_> {
    fn run(&mut self) -> Result<(), ServeError> {
        while !self.stop.is_asked() {
            let moved = self.round()?;
            if !moved {
                self.sleep()?;
            }
        }
        Ok(())
    }

    /// Takes what has come, decides, and says what is to be done; whether there was anything.
    fn round(&mut self) -> Result<bool, ServeError> {
        let mut moved = false;
        // Twice: what came while the first look went on is older than the headers that it has found (I2).
        for _ in 0..2 {
            moved |= self.take_events()?;
        }
        moved |= self.take_answers()?;
        self.tier.set_load(self.port.load());
        for header in std::mem::take(&mut self.headers) {
            let now = MonotonicClock.now();
            self.tier.handle(now, TierEvent::Header { port: PORT, header })?;
        }
        let now = MonotonicClock.now();
        if self.tier.next_due().is_some_and(|due| due <= now) {
            self.tier.handle(now, TierEvent::Tick)?;
            moved = true;
        }
        moved |= self.perform()?;
        self.has_news |= moved;
        if self.has_news && self.report_at <= now {
            self.report(now);
        }
        self.grant()?;
        self.port.flush()?;
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

    fn take_events(&mut self) -> Result<bool, ServeError> {
        let mut moved = false;
        for _ in 0..EVENTS_A_ROUND {
            let Some(event) = self.port.next_event()? else { break };
            moved = true;
            let now = MonotonicClock.now();
            match event {
                PortEvent::Welcome(welcome) => {
                    for definition in definitions()? {
                        self.port.define(&definition)?;
                    }
                    self.commands_max = COMMANDS_MAX.min(welcome.handles_max as usize);
                    self.tier.handle(now, TierEvent::PortOpened { port: PORT, welcome })?;
                    tracing::info!(tier = welcome.tier.0, gate = welcome.gate.0, "volumes: the port is open");
                }
                PortEvent::Refused(code) => return Err(ServeError::Refused(code)),
                PortEvent::Header(header) => self.headers.push(header),
                PortEvent::Done(done) => {
                    let (completion, reply) = (done.completion, done.reply);
                    self.tier.handle(now, TierEvent::Done { port: PORT, completion, reply })?;
                }
                PortEvent::Channel(is) => self.tier.handle(now, TierEvent::Channel { port: PORT, is })?,
                PortEvent::Broken(broken) => {
                    tracing::warn!(
                        slot = broken.slot.0,
                        channel = broken.channel.0,
                        "volumes: a chunk has lost a member; what is written next goes to another"
                    );
                    self.tier.handle(now, TierEvent::Broken { port: PORT, broken })?;
                }
                // Neither is asked for: the gate of this version has no deadline, and memory is the card's.
                PortEvent::Noted(_) | PortEvent::Memory(_) => {}
            }
        }
        Ok(moved)
    }

    /// What the metadata store has to say.
    fn take_answers(&mut self) -> Result<bool, ServeError> {
        let mut moved = false;
        self.store.set_time(MonotonicClock.now());
        while let Some(completion) = self.store.poll() {
            moved = true;
            self.tier.handle(MonotonicClock.now(), TierEvent::Metadata(completion))?;
        }
        Ok(moved)
    }

    /// Does what the tier wants, in its order, as far as there is room.
    fn perform(&mut self) -> Result<bool, ServeError> {
        let mut moved = false;
        while let Some(action) = self.waiting.pop_front().or_else(|| self.tier.next_action()) {
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
            TierAction::Post { plan, .. } => Ok(self.port.post(&plan.entry())?),
            TierAction::Set { set, .. } => Ok(self.port.set(set)?),
            TierAction::Channel { channel, .. } => Ok(self.port.channel(channel)?),
            TierAction::Metadata(token, op) => self.submit(*token, op.clone()),
            TierAction::Report(news) => {
                Self::tell(news);
                Ok(())
            }
            TierAction::Serve(id, volume) => {
                // The card shows its one namespace from the beginning.
                tracing::info!(volume = id.0, name = volume.name.as_str(), "volumes: served");
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
        }
    }

    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Undone> {
        self.store.submit(token, op).map_err(|_| Undone::NoRoom)
    }

    /// The card may send as many commands as the tier has room for.
    fn grant(&mut self) -> Result<(), ServeError> {
        let taken = self.tier.commands() + self.port.granted() as usize;
        let free = self.commands_max.saturating_sub(taken);
        // A few at a time would be a message each.
        if free > self.commands_max / 4 {
            self.port.grant(u32::try_from(free).unwrap_or(u32::MAX))?;
        }
        Ok(())
    }

    /// Sleeps until the card has said something, or it is time.
    fn sleep(&mut self) -> Result<(), ServeError> {
        let ticket = self.port.register();
        // Once more, now that whoever brings something rings.
        if self.round()? || self.stop.is_asked() || self.group.is_closed() {
            return Ok(());
        }
        let now = MonotonicClock.now();
        let due = [self.tier.next_due(), self.store.next_due()].into_iter().flatten().min();
        // What has changed is told of soon, though nothing else is to be done.
        let due = due.into_iter().chain(self.has_news.then_some(self.report_at)).min();
        let within = due.map_or(SLEEP_MAX, |due| due.since(now)).min(SLEEP_MAX);
        if !within.is_zero() {
            self.port.sleep(ticket, Some(within));
        }
        Ok(())
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
