//! The card: serves files, namespaces, the key-value store, control and status, and carries the link's far end.
//!
//! ```text
//!   device mounted ─▶ link, NVMe/TCP and status listen ─▶ ready ─▶ serve ─▶ SIGTERM ─▶ drain ─▶ goodbye ─▶ flush
//! ```

mod describe;
mod parts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ob_core::{Clock, Incarnation};
use ob_files_card::FilesService;
use ob_io::{Config as ReactorConfig, Event, Interest, MonotonicClock, Reactor, Wait};
use ob_link::{CardLink, CardLinkConfig, CardLinkError, CardLoop, CardService, Costs, Listen, Turn};
use ob_offload::ProgramSlot;
use ob_programs::Workshop;
use ob_split::wire::SPLIT_SERVICE;
use ob_wire_link::files::FILES_SERVICE;
use ob_wire_link::stream::KV_SERVICE;

use super::descriptors::allow_descriptors;
use super::{Announcement, Half, HalfError, Life, Readiness, ServiceEndpoint};
use crate::config::{CardConfig, LinkKind, Placement};
use crate::control::{ControlRequest, ControlServer, answer_of};
use crate::files::{CardDevice, DeviceOf, DeviceWanted, Mounted, flush_device, mount};
use crate::kv::{Attachments, KvCard, KvGroup};
use crate::nvme::{Directory, NvmeError, NvmeService};
use crate::probe::{PROBE_SERVICE, ProbeService};
use crate::programs::CardPrograms;
use crate::router::{Router, Services};
use crate::signals::StopSignal;
use crate::split::{SplitGroup, SplitPort};
use crate::status::{StatusBoard, StatusServer};
use crate::terminal::bytes;
use crate::volumes::admin::Desk;
use crate::volumes::{PortGroup, VolumesCard};
use describe::{describe, first_snapshot, link_endpoint};
pub(crate) use parts::CardPart;
use parts::Parts;

/// Hosts that may be attached at once.
const HOSTS_MAX: usize = 64;
/// How long a card that stops waits for what it has taken. A supervisor kills it some seconds later.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// What this card serves.
struct CardServices {
    probe: ProbeService,
    files: FilesService<CardDevice>,
    kv: KvGroup,
    volumes: PortGroup,
    /// Where an application has the port, and not volumes.
    split: Option<SplitGroup>,
}

impl Services for CardServices {
    const DIRECTORY: &'static [(u32, &'static str)] =
        &[(PROBE_SERVICE, "probe"), (FILES_SERVICE, "files"), (KV_SERVICE, "kv"), (SPLIT_SERVICE, "split")];

    fn service(&self, index: usize) -> &dyn CardService {
        match index {
            0 => &self.probe,
            1 => &self.files,
            2 => &self.kv,
            _ => self.split.as_ref().map_or(&self.volumes, |split| split),
        }
    }

    fn service_mut(&mut self, index: usize) -> &mut dyn CardService {
        match index {
            0 => &mut self.probe,
            1 => &mut self.files,
            2 => &mut self.kv,
            _ => self.split.as_mut().map_or(&mut self.volumes, |split| split),
        }
    }
}

type Card = CardLoop<Router<CardServices>>;

/// Runs the card until SIGTERM, and announces once that everything that it serves can be reached. With `format`, its
/// device is formatted first, whatever it holds.
pub fn run_card(
    config: &CardConfig,
    format: bool,
    announce: &mut dyn FnMut(Announcement),
) -> Result<(), HalfError> {
    let stop = StopSignal::install().map_err(HalfError::system("catch signals"))?;
    allow_descriptors();
    let life = Life::begin(Half::Card, &config.directory)?;
    let link_error = |error| HalfError::Link(Box::new(error));
    let sizes = ReactorConfig::default();
    let port_watches = crate::volumes::WATCHES_MAX.max(crate::split::WATCHES_MAX);
    let watches_max = sizes.watches_max + crate::kv::WATCHES_MAX + port_watches;
    let mut reactor = Reactor::new(&ReactorConfig { watches_max, ..sizes }).map_err(link_error)?;
    let Mounted { files, device, formatted } = mount(device_wanted(config), &mut reactor, format)
        .map_err(|error| HalfError::Files(Box::new(error)))?;
    if let Some(formatted) = formatted {
        announce(Announcement::Formatted(formatted));
    }
    let mut services = CardServices {
        probe: ProbeService::default(),
        files: FilesService::new(files, device),
        kv: KvGroup::default(),
        volumes: PortGroup::default(),
        split: None,
    };
    let programs = Arc::new(CardPrograms::start(config).map_err(HalfError::system("start a thread"))?);
    let kv = start_kv(config, &reactor, &mut services, programs.slot())?;
    let (volumes, desk) = start_volumes(config, &life, &reactor, &mut services)?;
    let split = has_split(config).then(|| SplitPort::start(config, life.incarnation(), &reactor.handle()));
    services.split = split.as_ref().map(SplitPort::group);
    let mut card = open_link(config, &life, reactor, services)?;
    let (nvme, namespaces) = start_nvme(config, &mut card, &programs.workshop())
        .map_err(|error| HalfError::Nvme(Box::new(error)))?;
    let mut parts = Parts { nvme, kv, volumes, split };
    let _control = start_control(config, namespaces, Arc::clone(&programs), desk)?;
    programs.restore();
    let board = Arc::new(StatusBoard::new(first_snapshot(config, &life)));
    let asked = Arc::new(AtomicBool::new(false));
    let (flag, waker) = (Arc::clone(&asked), card.reactor.handle().waker());
    board.on_ask(move || {
        flag.store(true, Ordering::Release);
        waker.wake();
    });
    let server = StatusServer::start(config.status.listen, Arc::clone(&board), &config.source)?;
    announce(Announcement::Ready(Readiness {
        half: Half::Card.into(),
        pid: std::process::id(),
        incarnation: life.incarnation().0,
        link: link_endpoint(config, &card.link),
        status: Some(server.address()),
        services: std::iter::once(files_endpoint(config, &card)).chain(parts.endpoints()).collect(),
    }));
    tracing::info!(incarnation = life.incarnation().0, status = %server.address(), "card ready");
    serve(config, &mut card, &mut parts, &stop, &board, &asked)?;
    tracing::info!("card stopping");
    wind_down(card, parts);
    Ok(())
}

fn device_wanted(config: &CardConfig) -> DeviceWanted<'_> {
    DeviceWanted { files: &config.files, source: &config.source, of: DeviceOf::Card }
}

/// Namespaces may lie on files, so files go on while namespaces are opened. Hosts are heard and not served yet: one of
/// them could take a file away before its namespace holds it.
fn start_nvme(
    config: &CardConfig,
    card: &mut Card,
    workshop: &Workshop,
) -> Result<(NvmeService, Directory), NvmeError> {
    let (handle, files) = (card.reactor.handle(), card.service.services().files.local());
    let mut events = Vec::new();
    NvmeService::start(config, &handle, workshop, files, &mut || {
        let wait = if card.service.next_due().is_some() { Wait::Poll } else { Wait::Until(None) };
        card.reactor.turn(wait, &mut events);
        for event in events.drain(..) {
            card.link.handle(&event);
        }
        card.service.poll(MonotonicClock.now());
    })
}

/// From here on the card can be administered.
fn start_control(
    config: &CardConfig,
    namespaces: Directory,
    programs: Arc<CardPrograms>,
    volumes: Desk,
) -> Result<ControlServer, HalfError> {
    let path = config.control_socket();
    let started = ControlServer::start(&path, move |request, body| match request {
        ControlRequest::Namespaces(message) => answer_of(namespaces.ask(message)),
        ControlRequest::Programs(request) => answer_of(programs.ask(request, body)),
        ControlRequest::Volumes(request) => answer_of(volumes.ask(request)),
    });
    started.map_err(|source| HalfError::Control { path, source })
}

/// The key-value store, if clients reach it through this half.
fn start_kv(
    config: &CardConfig,
    reactor: &Reactor,
    services: &mut CardServices,
    programs: Arc<ProgramSlot>,
) -> Result<Option<KvCard>, HalfError> {
    if !config.kv.enabled || config.kv.placement != Placement::Card {
        return Ok(None);
    }
    let started = KvCard::start(config, &reactor.handle(), services.files.local(), programs);
    let (kv, Attachments { group, observer }) = started.map_err(|error| HalfError::Kv(Box::new(error)))?;
    services.kv = group;
    services.files.observe_writes(observer);
    Ok(Some(kv))
}

/// Volumes, if they are served.
fn start_volumes(
    config: &CardConfig,
    life: &Life,
    reactor: &Reactor,
    services: &mut CardServices,
) -> Result<(Option<VolumesCard>, Desk), HalfError> {
    if !config.volumes.enabled {
        return Ok((None, Desk::closed()));
    }
    let started = VolumesCard::start(config, life.incarnation(), &reactor.handle());
    let (volumes, group, desk) = started.map_err(|error| HalfError::Volumes(Box::new(error)))?;
    services.volumes = group;
    Ok((Some(volumes), desk))
}

/// Whether an application may have the port. A command line that asks for volumes goes before a configuration that does not.
fn has_split(config: &CardConfig) -> bool {
    if config.split.enabled && config.volumes.enabled {
        tracing::warn!("[split] is left out: volumes have the card's port");
    }
    config.split.enabled && !config.volumes.enabled
}

fn files_endpoint(config: &CardConfig, card: &Card) -> ServiceEndpoint {
    let space = card.service.services().files.files().space_info();
    ServiceEndpoint {
        service: "files".to_owned(),
        address: format!("{}, {} of {} free", config.files.device, bytes(space.free), bytes(space.total)),
        next: format!("outboard files put FILE /{}", config.command_options()),
    }
}

/// Takes nothing more, finishes what is on its way, says goodbye, and makes everything durable. What is answered is
/// safe in the log without this; it only spares those who forgot to flush.
///
/// Initiators are not asked: their commands are answered while the card drains, and what comes later they send again to
/// the card's next life.
fn wind_down(mut card: Card, mut parts: Parts) {
    card.service.drain();
    parts.nvme.stop_others();
    if let Some(volumes) = &mut parts.volumes {
        volumes.stop_others();
    }
    let deadline = MonotonicClock.now() + DRAIN_WITHIN;
    let mut events = Vec::new();
    while MonotonicClock.now() < deadline {
        let turn = parts.turn(&mut card, Some(deadline), &mut events);
        events.clear();
        if turn != Turn::Worked && card.service.services().files.is_idle() && parts.is_idle() {
            break;
        }
    }
    card.link.shut_down(&mut card.service);
    let CardLoop { mut reactor, link, service, .. } = card;
    drop(link);
    for device in parts.nvme.into_devices().iter_mut() {
        flush_device(&mut reactor, device);
    }
    let CardServices { files, .. } = service.into_services();
    if files.files().is_frozen() {
        return;
    }
    flush_device(&mut reactor, &mut files.into_device());
}

fn open_link(
    config: &CardConfig,
    life: &Life,
    reactor: Reactor,
    services: CardServices,
) -> Result<Card, HalfError> {
    let link = CardLink::new(&reactor.handle(), link_config(config, life.incarnation())?)
        .map_err(|error| explain_listen(config, error))?;
    Ok(CardLoop::new(reactor, link, Router::new(services), config.reactor.spin.0))
}

/// How hosts attach to this card, or to a port of it that has a link of its own.
pub(crate) fn link_config(
    config: &CardConfig,
    incarnation: Incarnation,
) -> Result<CardLinkConfig, HalfError> {
    let listen = match config.link.kind {
        LinkKind::Shm | LinkKind::Model => Listen::Unix(config.link.socket.clone()),
        LinkKind::Tcp => Listen::Tcp(config.link.listen),
    };
    let costs =
        match config.link.kind {
            LinkKind::Model => {
                // The configuration was checked against the same presets.
                let costs = Costs::preset(&config.link.model);
                Some(costs.ok_or_else(|| {
                    HalfError::Link(format!("no link model `{}`", config.link.model).into())
                })?)
            }
            LinkKind::Shm | LinkKind::Tcp => None,
        };
    Ok(CardLinkConfig {
        incarnation,
        listen: vec![listen],
        costs,
        pollers: match config.reactor.spin.0.is_zero() {
            true => 0,
            // The threads of NVMe/TCP, and of other ports of volumes, are on the same cores.
            false => {
                u16::try_from(config.nvme.threads_in_use() + config.volumes.threads()).unwrap_or(u16::MAX)
            }
        },
        dead_after: config.link.dead_after.0,
        memory_max: config.link.memory.0,
        host_memory_max: config.link.memory_per_host.0,
        hosts_max: HOSTS_MAX,
        allow_users: config.link.allow_users.clone(),
        allow_addresses: config.link.allow_addresses.iter().map(|network| network.0).collect(),
    })
}

/// A port that is taken names the line to change; a socket that is taken has another card behind it.
pub(crate) fn explain_listen(config: &CardConfig, error: CardLinkError) -> HalfError {
    let (listen, source) = match &error {
        CardLinkError::InUse(listen) => (listen, std::io::ErrorKind::AddrInUse.into()),
        CardLinkError::Listen(listen, errno) => (listen, (*errno).into()),
        CardLinkError::Reactor(_) => return HalfError::Link(Box::new(error)),
    };
    match listen {
        Listen::Tcp(address) => HalfError::Listen {
            address: *address,
            purpose: "the link",
            source,
            fix: config.source.line_to_change("link", "listen", "\"127.0.0.1:4422\""),
        },
        Listen::Unix(path) => HalfError::Socket {
            path: path.clone(),
            source,
            fix: config.source.line_to_change("link", "socket", "\"other.sock\""),
        },
    }
}

fn serve(
    config: &CardConfig,
    card: &mut Card,
    parts: &mut Parts,
    stop: &StopSignal,
    board: &StatusBoard,
    asked: &AtomicBool,
) -> Result<(), HalfError> {
    let watch = card.reactor.handle().watch(stop, Interest::Readable);
    let watch = watch.map_err(|error| HalfError::Link(Box::new(error)))?;
    let mut events = Vec::new();
    let mut hosts = None;
    loop {
        parts.turn(card, None, &mut events);
        for event in events.drain(..) {
            let stopping = matches!(event, Event::Ready { watch: ready, .. } if ready == watch);
            if stopping && stop.take().map_err(HalfError::system("read signals"))? {
                return Ok(());
            }
        }
        parts.nvme.check().map_err(|error| HalfError::Nvme(Box::new(error)))?;
        let volumes = parts.volumes.as_ref().map_or(Ok(()), VolumesCard::check);
        volumes.map_err(|error| HalfError::Volumes(Box::new(error)))?;
        // A host is known for one when it probes, a moment after it has attached.
        let known = (card.link.host_count(), card.service.services().probe.group_count());
        let changed = hosts.replace(known) != Some(known);
        // Loaded first: only the rare one that asks makes it worth to have the word to oneself.
        let is_asked = asked.load(Ordering::Relaxed) && asked.swap(false, Ordering::AcqRel);
        if is_asked || changed {
            let endpoint = link_endpoint(config, &card.link);
            board.publish(|snapshot| describe(snapshot, card, parts, endpoint));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, TimeSpan};

    #[test]
    fn the_link_is_told_of_the_threads_of_nvme_that_poll() {
        let text = r#"
            [nvme]
            threads = 3
            [[nvme.subsystem]]
            nqn = "nqn.2026-01.example:one"
            device = "memory"
            thread = 2
            [[nvme.subsystem]]
            nqn = "nqn.2026-01.example:two"
            device = "memory"
            listen = "127.0.0.1:4501"
            thread = 3
        "#;
        let pollers = |config: &CardConfig| link_config(config, Incarnation(1)).unwrap().pollers;
        let mut config = Config::parse(Path::new("outboard.toml"), text).unwrap().card();
        assert_eq!(pollers(&config), 3, "the card's own, and one for each subsystem");
        assert_eq!(pollers(&Config::default().card()), 1);
        (config.volumes.enabled, config.volumes.ports) = (true, vec![config.status.listen; 4]);
        assert_eq!(pollers(&config), 6, "and one for each port of volumes but the first");
        config.reactor.spin = TimeSpan(Duration::ZERO);
        assert_eq!(pollers(&config), 0);
    }
}
