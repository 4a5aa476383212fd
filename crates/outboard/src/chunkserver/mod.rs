//! `outboard chunkserver`: keeps chunks of volumes on a device of its own.
//!
//! ```text
//!   lock the directory ─▶ mount its device ─▶ listen ─▶ look what is there ─▶ ready ─▶ serve ─▶ SIGTERM ─▶ drain ─▶ flush
//!
//!   tiers' cards ─▶ TcpNet ─▶ ChunkServerDriver ─▶ LocalFiles ─▶ FilesService ─▶ device        (one reactor, one thread)
//! ```
//!
//! A card without a host: the same device file, file system and reactor, and nothing that is served but chunks.

mod command;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ob_core::{Clock, Instant, NetListenError, ServerId};
use ob_files_card::FilesService;
use ob_format::volume::metadata::Text;
use ob_io::{
    Config as ReactorConfig, Decision, Event, Handle, IdlePolicy, Interest, MonotonicClock, Reactor, TcpNet,
    Wait, available_cores,
};
use ob_ring::CardService;
use ob_volume::chunk::{ChunkServerConfig as ServerConfig, ChunkServerDriver, ServerState, StartError};

use crate::config::{ByteSize, ChunkServerConfig};
use crate::files::{CardDevice, DeviceOf, DeviceWanted, Formatted, Mounted, flush_device, mount};
use crate::halves::{Announcement, HalfError, Life, Readiness, Role, ServiceEndpoint, allow_descriptors};
use crate::random;
use crate::signals::StopSignal;
use crate::terminal::bytes;

pub use command::ChunkServerOptions;
pub(crate) use command::run;

/// Connections at once, and some at the door.
const WATCHES: u32 = 256 + 16;
/// How long one that stops waits for what it has taken. A supervisor kills it some seconds later.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);
/// What is kept for maintenance, and at most which share of the device.
const RESERVE: u64 = 1 << 30;
const RESERVE_SHARE: u64 = 8;

/// Why a chunk server does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ChunkServerError {
    /// Its address cannot be listened on.
    #[error("cannot listen on {address} for chunks: {source}\nhint: {fix}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: NetListenError,
        /// What to do.
        fix: String,
    },
    /// Others could connect, whom nothing keeps out.
    #[error(
        "{0} is not an address of this machine alone, and nothing keeps strangers away from chunks yet\n\
         hint: listen on 127.0.0.1 or [::1]"
    )]
    Strangers(SocketAddr),
    /// What it has cannot be served.
    #[error("{0}")]
    Start(StartError),
}

impl ChunkServerError {
    /// Whether it stays so until a person has changed something.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Strangers(_) | Self::Start(StartError::Server(_) | StartError::Ledger(_)))
    }
}

/// Runs a chunk server until SIGTERM, and announces once that it serves. With `format`, its device is formatted first, whatever it
/// holds.
pub fn run_chunk_server(
    config: &ChunkServerConfig,
    format: bool,
    announce: &mut dyn FnMut(Announcement),
) -> Result<(), HalfError> {
    let stop = StopSignal::install().map_err(HalfError::system("catch signals"))?;
    allow_descriptors();
    let refused = |error| HalfError::ChunkServer(Box::new(error));
    if !is_loopback(config.listen.ip()) {
        return Err(refused(ChunkServerError::Strangers(config.listen)));
    }
    let life = Life::begin(Role::ChunkServer(0), &config.directory)?;
    let (mut serving, formatted) = Serving::start(config, format)?;
    if let Some(formatted) = formatted {
        announce(Announcement::Formatted(formatted));
    }
    serving.watch(&stop)?;
    let address = serving.listen(config)?;
    while serving.state() == ServerState::Starting {
        if serving.turn_until_stopped(&stop)? {
            return Ok(());
        }
    }
    if let ServerState::Failed(error) = serving.state() {
        return Err(refused(ChunkServerError::Start(error)));
    }
    announce(Announcement::Ready(Readiness {
        half: Role::ChunkServer(0),
        pid: std::process::id(),
        incarnation: life.incarnation().0,
        link: String::new(),
        status: None,
        services: vec![serving.endpoint(address)],
    }));
    tracing::info!(incarnation = life.incarnation().0, %address, "chunk server ready");
    serving.say();
    while !serving.turn_until_stopped(&stop)? && serving.state() == ServerState::Serving {}
    let state = serving.state();
    tracing::info!("chunk server stopping");
    serving.say();
    serving.wind_down();
    match state {
        // It can promise nothing any more. Another life, which its supervisor begins, looks what there is.
        ServerState::Failed(error) => Err(refused(ChunkServerError::Start(error))),
        _ => Ok(()),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|address| address.is_loopback())
        }
    }
}

/// Everything of a running chunk server.
struct Serving {
    reactor: Reactor,
    files: FilesService<CardDevice>,
    driver: ChunkServerDriver<TcpNet>,
    policy: IdlePolicy,
    events: Vec<Event>,
    has_more: bool,
}

impl Serving {
    fn start(config: &ChunkServerConfig, format: bool) -> Result<(Self, Option<Formatted>), HalfError> {
        let sizes = ReactorConfig::default();
        let watches_max = sizes.watches_max + WATCHES;
        let mut reactor = Reactor::new(&ReactorConfig { watches_max, ..sizes })
            .map_err(|error| HalfError::Link(Box::new(error)))?;
        let wanted = DeviceWanted { files: &config.files, source: &config.source, of: DeviceOf::ChunkServer };
        let Mounted { files, device, formatted } =
            mount(wanted, &mut reactor, format).map_err(|error| HalfError::Files(Box::new(error)))?;
        let capacity = files.space_info().total;
        let files = FilesService::new(files, device);
        let driver = Self::driver(config, &reactor.handle(), &files, capacity)?;
        let policy = IdlePolicy::new(config.reactor.spin.0, available_cores(), config.pollers);
        let serving = Self { reactor, files, driver, policy, events: Vec::new(), has_more: true };
        Ok((serving, formatted))
    }

    fn driver(
        config: &ChunkServerConfig,
        handle: &Handle,
        files: &FilesService<CardDevice>,
        capacity: u64,
    ) -> Result<ChunkServerDriver<TcpNet>, HalfError> {
        let fresh = random::bytes().map_err(HalfError::system("draw a number"))?;
        // 0 is none, which is drawn once in 2⁶⁴ times.
        let fresh = ServerId(u64::from_le_bytes(fresh).max(1));
        let domain = domain().map_err(HalfError::system("find the machine's name"))?;
        let server_config = ServerConfig {
            reserve_len: RESERVE.min(capacity / RESERVE_SHARE),
            ..sized(&ServerConfig::new(fresh, domain), config.memory)
        };
        let driver = ChunkServerDriver::new(TcpNet::new(handle, WATCHES), files.local(), server_config);
        for arena in driver.server().arenas() {
            // Without it the kernel maps the memory for each operation: slower, and as right.
            if let Err(error) = handle.register_arena(arena) {
                tracing::debug!("buffers are not registered: {error}");
            }
        }
        Ok(driver)
    }

    fn watch(&self, stop: &StopSignal) -> Result<(), HalfError> {
        let watch = self.reactor.handle().watch(stop, Interest::Readable);
        watch.map(drop).map_err(|error| HalfError::Link(Box::new(error)))
    }

    fn listen(&mut self, config: &ChunkServerConfig) -> Result<SocketAddr, HalfError> {
        let address = config.listen;
        self.driver.listen(address).map_err(|source| {
            let line = config.source.line_to_change("chunkserver", "listen", "\"127.0.0.1:4450\"");
            let fix = format!("give another with --listen ADDRESS, or {line}");
            HalfError::ChunkServer(Box::new(ChunkServerError::Listen { address, source, fix }))
        })
    }

    fn state(&self) -> ServerState {
        self.driver.server().state().clone()
    }

    fn endpoint(&self, address: SocketAddr) -> ServiceEndpoint {
        let facts = self.driver.server().facts();
        ServiceEndpoint {
            service: "chunks".to_owned(),
            address: format!("{address}, {} of {} free", bytes(facts.free), bytes(facts.capacity)),
            next: String::new(),
        }
    }

    /// One line of how it is.
    fn say(&self) {
        let facts = self.driver.server().facts();
        tracing::info!(
            server = facts.server.map(|server| format!("{:016x}", server.0)),
            chunks = facts.chunks,
            free = bytes(facts.free),
            capacity = bytes(facts.capacity),
            connections = facts.connections,
            appends = facts.counts.appends,
            append_bytes = facts.counts.append_bytes,
            reads = facts.counts.reads,
            read_bytes = facts.counts.read_bytes,
            refusals = facts.counts.refusals,
            "chunks"
        );
    }

    /// One turn, which sleeps if there is nothing to do; whether it is to stop.
    fn turn_until_stopped(&mut self, stop: &StopSignal) -> Result<bool, HalfError> {
        self.turn(None);
        stop.take().map_err(HalfError::system("read signals"))
    }

    fn turn(&mut self, until: Option<Instant>) -> bool {
        let now = MonotonicClock.now();
        let due = [self.files.next_due(), self.driver.next_due(), until, self.reactor.handle().next_timer()];
        let wait = match self.policy.decide(now, due.into_iter().flatten().min()) {
            Decision::Sleep { until } if !self.has_more => Wait::Until(until),
            Decision::Sleep { .. } | Decision::Spin => Wait::Poll,
        };
        self.events.clear();
        self.reactor.turn(wait, &mut self.events);
        let now = MonotonicClock.now();
        let mut worked = !self.events.is_empty();
        for event in self.events.drain(..) {
            self.driver.net_mut().handle(&event);
        }
        worked |= self.files.poll(now);
        let turn = self.driver.turn(now);
        worked |= turn.events > 0;
        // What the server asks of its files goes out now, not with the next turn. What they have at once no event tells of.
        let has_moved = self.files.poll(now);
        self.has_more = turn.has_more || has_moved;
        worked |= self.has_more;
        if worked {
            self.policy.on_event(now);
        }
        worked
    }

    /// Finishes what is on its way, and makes everything durable. What was answered is safe without this.
    fn wind_down(mut self) {
        let deadline = MonotonicClock.now() + DRAIN_WITHIN;
        while MonotonicClock.now() < deadline {
            let worked = self.turn(Some(deadline));
            if !worked && self.files.is_idle() && self.driver.is_idle() {
                break;
            }
        }
        let Self { mut reactor, files, driver, .. } = self;
        drop(driver);
        if !files.files().is_frozen() {
            flush_device(&mut reactor, &mut files.into_device());
        }
    }
}

/// What fails together: the machine.
fn domain() -> io::Result<Text<32>> {
    let system = rustix::system::uname();
    let name: String = system.nodename().to_string_lossy().chars().take(32).collect();
    // A name that is longer, or of other letters than bytes have room for, says nothing.
    Text::new(&name)
        .or_else(|| Text::new(""))
        .ok_or_else(|| io::Error::other("the machine's name is no text"))
}

/// Buffers for so much memory: what the default has takes some 100 MiB.
fn sized(config: &ServerConfig, memory: ByteSize) -> ServerConfig {
    const WHOLE: u64 = 100 << 20;
    let scale = |count: usize| {
        let scaled = count as u64 * memory.0 / WHOLE;
        usize::try_from(scaled).unwrap_or(count).clamp(2, count.saturating_mul(16))
    };
    ServerConfig {
        short_buffers: scale(config.short_buffers),
        long_buffers: scale(config.long_buffers),
        batches: scale(config.batches),
        jobs: scale(config.jobs),
        ..config.clone()
    }
}
