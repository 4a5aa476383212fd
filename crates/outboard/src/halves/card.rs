//! The card: serves clients and status, and carries the link's far end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ob_io::{Config as ReactorConfig, Event, Interest, Reactor};
use ob_link::{CardLink, CardLinkConfig, CardLinkError, CardLoop, Costs, HostReport, Listen};

use super::{Half, HalfError, Life, Readiness};
use crate::config::{CardConfig, LinkKind};
use crate::probe::ProbeService;
use crate::signals::StopSignal;
use crate::status::{
    CardFacts, HostCpu, HostFacts, LinkFacts, RequestCount, Snapshot, StatusBoard, StatusServer,
};

/// Hosts that may be attached at once.
const HOSTS_MAX: usize = 64;

/// Runs the card until SIGTERM: calls `ready` once, when everything that it serves can be reached.
pub fn run_card(config: &CardConfig, ready: &mut dyn FnMut(Readiness)) -> Result<(), HalfError> {
    let stop = StopSignal::install().map_err(HalfError::system("catch signals"))?;
    let life = Life::begin(Half::Card, &config.directory)?;
    let mut card = open_link(config, &life)?;
    let board = Arc::new(StatusBoard::new(first_snapshot(config, &life)));
    let asked = Arc::new(AtomicBool::new(false));
    let (flag, waker) = (Arc::clone(&asked), card.reactor.handle().waker());
    board.on_ask(move || {
        flag.store(true, Ordering::Release);
        waker.wake();
    });
    let server = StatusServer::start(config.status.listen, Arc::clone(&board), &config.source)?;
    ready(Readiness {
        half: Half::Card,
        pid: std::process::id(),
        incarnation: life.incarnation().0,
        link: link_endpoint(config, &card.link),
        status: Some(server.address()),
        services: Vec::new(),
    });
    tracing::info!(incarnation = life.incarnation().0, status = %server.address(), "card ready");
    serve(config, &mut card, &stop, &board, &asked)?;
    tracing::info!("card stopping");
    card.link.shut_down(&mut card.service);
    Ok(())
}

fn open_link(config: &CardConfig, life: &Life) -> Result<CardLoop<ProbeService>, HalfError> {
    let link_error = |error| HalfError::Link(Box::new(error));
    let reactor = Reactor::new(&ReactorConfig::default()).map_err(link_error)?;
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
    let link = CardLinkConfig {
        incarnation: life.incarnation(),
        listen: vec![listen],
        costs,
        pollers: u16::from(!config.reactor.spin.0.is_zero()),
        dead_after: config.link.dead_after.0,
        memory_max: config.link.memory.0,
        host_memory_max: config.link.memory_per_host.0,
        hosts_max: HOSTS_MAX,
        allow_users: config.link.allow_users.clone(),
        allow_addresses: config.link.allow_addresses.iter().map(|network| network.0).collect(),
    };
    let link = CardLink::new(&reactor.handle(), link).map_err(|error| explain_listen(config, error))?;
    Ok(CardLoop::new(reactor, link, ProbeService::default(), config.reactor.spin.0))
}

/// A port that is taken names the line to change; a socket that is taken has another card behind it.
fn explain_listen(config: &CardConfig, error: CardLinkError) -> HalfError {
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
    card: &mut CardLoop<ProbeService>,
    stop: &StopSignal,
    board: &StatusBoard,
    asked: &AtomicBool,
) -> Result<(), HalfError> {
    let watch = card.reactor.handle().watch(stop, Interest::Readable);
    let watch = watch.map_err(|error| HalfError::Link(Box::new(error)))?;
    let mut events = Vec::new();
    let mut hosts = None;
    loop {
        card.turn(None, &mut events);
        for event in events.drain(..) {
            let stopping = matches!(event, Event::Ready { watch: ready, .. } if ready == watch);
            if stopping && stop.take().map_err(HalfError::system("read signals"))? {
                return Ok(());
            }
        }
        let changed = hosts.replace(card.link.host_count()) != Some(card.link.host_count());
        if asked.swap(false, Ordering::AcqRel) || changed {
            let endpoint = link_endpoint(config, &card.link);
            board.publish(|snapshot| describe(snapshot, card, endpoint));
        }
    }
}

/// Brings a snapshot up to date.
fn describe(snapshot: &mut Snapshot, card: &CardLoop<ProbeService>, endpoint: String) {
    let hosts = card.link.hosts();
    let connected: Vec<&HostReport> = hosts.iter().filter(|host| host.connected).collect();
    let first = connected.first();
    snapshot.host = first.map(|host| host_facts(host, &card.service));
    let probe = first.and_then(|host| card.service.report(host.identity.attachment));
    snapshot.link = LinkFacts {
        kind: snapshot.link.kind,
        endpoint,
        dma: card.link.counts(),
        hosts: connected.len(),
        probe: probe.map(|report| report.probe),
    };
    snapshot.requests = vec![RequestCount {
        service: "probe".to_owned(),
        half: Half::Card,
        reason: "always".to_owned(),
        count: card.service.answered(),
    }];
}

fn host_facts(host: &HostReport, service: &ProbeService) -> HostFacts {
    let report = service.report(host.identity.attachment);
    let same_machine = host.pid.and_then(|pid| u32::try_from(pid).ok());
    let cpu = match (same_machine, report) {
        (Some(_), _) => HostCpu::SameMachine,
        (None, Some(report)) => HostCpu::Told(report.cpu),
        (None, None) => HostCpu::Unknown,
    };
    HostFacts {
        pid: same_machine.or(report.map(|report| report.pid)),
        incarnation: host.identity.host_incarnation,
        attached_for: host.attached_for,
        cpu,
    }
}

fn first_snapshot(config: &CardConfig, life: &Life) -> Snapshot {
    Snapshot {
        card: CardFacts { pid: std::process::id(), incarnation: life.incarnation(), started: Instant::now() },
        host: None,
        host_command: host_command(config),
        link: LinkFacts {
            kind: config.link.kind,
            endpoint: String::new(),
            dma: ob_core::DmaCounts::default(),
            hosts: 0,
            probe: None,
        },
        requests: Vec::new(),
    }
}

/// Where a host finds this card.
fn link_endpoint(config: &CardConfig, link: &CardLink) -> String {
    let kind = config.link.kind;
    match kind {
        LinkKind::Shm | LinkKind::Model => format!("{} {}", kind.name(), config.link.socket.display()),
        LinkKind::Tcp => format!("{} {}", kind.name(), link.tcp_address().unwrap_or(config.link.listen)),
    }
}

/// What to type to start the host of this card.
fn host_command(config: &CardConfig) -> String {
    let mut command = "outboard host".to_owned();
    if let Some(file) = config.source.file() {
        command += &format!(" --config {}", file.display());
    }
    command + &format!(" --data {}", config.data.display())
}
