//! The host: attaches to the card over the link, and answers what the card does not answer by itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ob_link::{AttachError, Endpoint, HostGroup, HostLink, HostLinkConfig, WaitError};
use ob_ring::{Outgoing, PushError, ReceiveError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::descriptors::allow_descriptors;
use super::{Half, HalfError, Life, Readiness, ServiceEndpoint};
use crate::accounting;
use crate::config::{HostConfig, KvConfig, LinkConfig, LinkKind, Placement, ReactorConfig};
use crate::kv::{KvError, KvFront, KvHost};
use crate::probe::{PROBE_SERVICE, Report};
use crate::signals::StopSignal;
use crate::volumes::{VolumesError, VolumesHost};

/// How often the link is probed.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How long a probe may take before the card counts as stuck.
const PROBE_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of each of the probe's rings.
const PROBE_RING: u32 = 4096;
/// Pauses between attempts to attach.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_secs(1);
/// A card that is not there yet is worth a word only after so long: both halves may have been started together.
const SILENT_FOR: Duration = Duration::from_secs(1);

/// Runs the host until SIGTERM: calls `ready` once, when it is attached to its card. If the card goes away, the host
/// says so and attaches again.
pub fn run_host(config: &HostConfig, ready: &mut dyn FnMut(Readiness)) -> Result<(), HalfError> {
    let stop = StopSignal::install().map_err(HalfError::system("catch signals"))?;
    // Clients of the key-value store may come here.
    allow_descriptors();
    let life = Life::begin(Half::Host, &config.directory)?;
    let link_config = link_config(config, &life);
    let parts = HostParts::start(config, &link_config, &life)?;
    let kv = &parts.kv;
    let mut told_ready = false;
    while let Some(link) = attach(&link_config, &stop, &parts)? {
        kv.attached(Some(&link));
        tracing::info!(
            card_incarnation = link.welcome().card_incarnation.0,
            attachment = link.welcome().attachment.0,
            "attached to the card"
        );
        if !std::mem::replace(&mut told_ready, true) {
            ready(Readiness {
                half: Half::Host.into(),
                pid: std::process::id(),
                incarnation: life.incarnation().0,
                link: link_endpoint(config),
                status: None,
                services: kv.endpoint().into_iter().collect(),
            });
        }
        let ended = serve(&link, &stop, &parts)?;
        kv.attached(None);
        match ended {
            Ended::Asked => break,
            Ended::CardGone(reason) => tracing::warn!("the card is gone ({reason}); attaching again"),
        }
    }
    tracing::info!("host stopping");
    Ok(())
}

/// What this half serves, each with a thread of its own.
struct HostParts {
    kv: Kv,
    /// Volumes, if they are served.
    volumes: Option<VolumesHost>,
}

/// What becomes readable when a thread has ended, and what that means.
type End<'a> = (BorrowedFd<'a>, fn() -> HalfError);

impl HostParts {
    fn start(config: &HostConfig, link: &HostLinkConfig, life: &Life) -> Result<Self, HalfError> {
        let kv = Kv::start(config)?;
        if !config.volumes.enabled {
            return Ok(Self { kv, volumes: None });
        }
        let volumes = VolumesHost::start(config, link.clone(), life.incarnation());
        Ok(Self { kv, volumes: Some(volumes.map_err(|error| HalfError::Volumes(Box::new(error)))?) })
    }

    /// Each becomes readable when its thread has ended by mistake. Then this half ends too: whoever goes on without it looks healthy,
    /// and answers nobody.
    fn ends(&self) -> Vec<End<'_>> {
        let kv = self.kv.end().map(|end| (end, kv_ended as fn() -> HalfError));
        let volumes = self.volumes.iter().flat_map(VolumesHost::ends);
        kv.into_iter().chain(volumes.map(|end| (end, volumes_ended as fn() -> HalfError))).collect()
    }
}

fn kv_ended() -> HalfError {
    HalfError::Kv(Box::new(KvError::Ended))
}

fn volumes_ended() -> HalfError {
    HalfError::Volumes(Box::new(VolumesError::Ended))
}

/// This half's part of the key-value store.
enum Kv {
    Off,
    /// The store, behind a card.
    Behind(KvHost),
    /// All of it.
    Whole(KvFront),
}

impl Kv {
    fn start(config: &HostConfig) -> Result<Self, HalfError> {
        if !config.kv.enabled {
            return Ok(Self::Off);
        }
        match config.kv.placement {
            Placement::Card => {
                KvHost::start(config).map(Self::Behind).map_err(HalfError::system("start a thread"))
            }
            Placement::Host => {
                KvFront::start(config).map(Self::Whole).map_err(|error| HalfError::Kv(Box::new(error)))
            }
        }
    }

    /// Becomes readable when its thread has ended by mistake.
    fn end(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Off => None,
            Self::Behind(host) => Some(host.end()),
            Self::Whole(front) => Some(front.end()),
        }
    }

    /// Which card there is, if any: where it shares this machine, its threads poll on the same cores.
    fn attached(&self, link: Option<&HostLink>) {
        let local = link.map(HostLink::welcome).filter(|welcome| welcome.kind != ob_link::LinkKind::Tcp);
        if let Self::Whole(front) = self {
            front.set_other_pollers(local.map_or(0, |welcome| usize::from(welcome.pollers)));
        }
    }

    /// Where clients reach it, if that is here.
    fn endpoint(&self) -> Option<ServiceEndpoint> {
        match self {
            Self::Off | Self::Behind(_) => None,
            Self::Whole(front) => Some(ServiceEndpoint::kv(front.address())),
        }
    }
}

fn link_config(config: &HostConfig, life: &Life) -> HostLinkConfig {
    let endpoint = endpoint(&config.link);
    let system = rustix::system::uname();
    HostLinkConfig {
        endpoint,
        name: system.nodename().to_string_lossy().into_owned(),
        incarnation: life.incarnation(),
        pollers: pollers(&config.kv, &config.reactor),
        attach_within: Duration::from_secs(5),
        dead_after: config.link.dead_after.0,
    }
}

/// Where a host finds a link.
pub(crate) fn endpoint(link: &LinkConfig) -> Endpoint {
    match link.kind {
        LinkKind::Shm | LinkKind::Model => Endpoint::Unix(link.socket.clone()),
        LinkKind::Tcp => Endpoint::Tcp(link.card),
    }
}

/// Threads of this half that poll. Whoever waits for the card sleeps on the bell; only the one that has the sockets of clients
/// does.
fn pollers(kv: &KvConfig, reactor: &ReactorConfig) -> u16 {
    u16::from(kv.enabled && kv.placement == Placement::Host && !reactor.spin.0.is_zero())
}

/// Tries until there is a card, or a request to stop (then none).
fn attach(
    config: &HostLinkConfig,
    stop: &StopSignal,
    parts: &HostParts,
) -> Result<Option<HostLink>, HalfError> {
    let mut pause = RETRY_FIRST;
    let mut told = String::new();
    let started = Instant::now();
    loop {
        let error = match HostLink::attach(config) {
            Ok(link) => return Ok(Some(link)),
            Err(error) => error,
        };
        // A card that does not want this host, or speaks another version, will not change its mind by itself; but it
        // may be replaced by one that does, so the host says so and goes on trying, at ease.
        let hopeless = matches!(error, AttachError::Refused { .. });
        let text = error.to_string();
        if told != text && (hopeless || started.elapsed() >= SILENT_FOR) {
            tracing::warn!("cannot attach: {text}; trying again");
            told = text;
        }
        if wait(stop, &parts.ends(), None, if hopeless { RETRY_MOST } else { pause })? == Woken::Asked {
            return Ok(None);
        }
        pause = (pause * 2).min(RETRY_MOST);
    }
}

/// Why serving ended.
enum Ended {
    Asked,
    CardGone(String),
}

fn serve(link: &HostLink, stop: &StopSignal, parts: &HostParts) -> Result<Ended, HalfError> {
    let gone = |link: &HostLink| {
        Ended::CardGone(
            link.over().map_or_else(|| "it closed the probe's group".to_owned(), |over| over.to_string()),
        )
    };
    let Ok(group) = link.open_group(PROBE_SERVICE, PROBE_RING, PROBE_RING) else { return Ok(gone(link)) };
    let mut number = 0;
    loop {
        number += 1;
        match probe(&group, number) {
            Ok(round_trip) => {
                let report =
                    Report { pid: std::process::id(), cpu: accounting::own_cpu(), probe: round_trip };
                // A card that is behind with reading gets the next one.
                link.send(&report.encode());
            }
            Err(WaitError::TimedOut) => {
                tracing::warn!("the card did not answer a probe within {PROBE_WITHIN:?}");
            }
            Err(WaitError::Gone) => return Ok(gone(link)),
        }
        match wait(stop, &parts.ends(), Some(link), PROBE_EVERY)? {
            Woken::Asked => return Ok(Ended::Asked),
            Woken::Over => return Ok(gone(link)),
            Woken::Time => {}
        }
    }
}

/// Sends a number and waits for it to come back; how long that took. An answer to an earlier probe that was given up
/// on is passed over.
fn probe(group: &HostGroup, number: u64) -> Result<Duration, WaitError> {
    let started = Instant::now();
    group.wait_room(PROBE_WITHIN, || {
        match group.sender.push(Outgoing { inline: &number.to_le_bytes(), payload: None }) {
            Ok(()) => Some(Ok(())),
            Err(PushError::Retry) => None,
            Err(PushError::Closed | PushError::TooLarge { .. } | PushError::Corrupt { .. }) => {
                Some(Err(WaitError::Gone))
            }
        }
    })??;
    group.wait_response(PROBE_WITHIN, || {
        loop {
            match group.receiver.receive() {
                Ok(None) => return None,
                Ok(Some(response)) => {
                    let mut bytes = [0; 8];
                    response.inline(&mut bytes);
                    if response.check().is_ok() && u64::from_le_bytes(bytes) == number {
                        return Some(Ok(started.elapsed()));
                    }
                }
                Err(ReceiveError::Closed | ReceiveError::Corrupt(_) | ReceiveError::Pointers { .. }) => {
                    return Some(Err(WaitError::Gone));
                }
            }
        }
    })?
}

/// What ended a wait.
#[derive(PartialEq, Eq)]
enum Woken {
    Asked,
    Over,
    Time,
}

/// Sleeps until asked to stop, until the attachment is over, or for so long. The end of a service's thread is an error.
fn wait(
    stop: &StopSignal,
    ends: &[End<'_>],
    link: Option<&HostLink>,
    time: Duration,
) -> Result<Woken, HalfError> {
    let over = link.map(HostLink::over_descriptor);
    let threads = ends.iter().map(|(end, _)| *end);
    let watched = [Some(stop.as_fd()), over].into_iter().flatten().chain(threads);
    let mut watched: Vec<PollFd<'_>> =
        watched.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    match poll(&mut watched, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(HalfError::system("wait for signals")(error.into())),
    }
    if stop.take().map_err(HalfError::system("read signals"))? {
        return Ok(Woken::Asked);
    }
    let mut happened = watched.iter().skip(1).map(|descriptor| !descriptor.revents().is_empty());
    let is_over = over.is_some() && happened.next() == Some(true);
    if let Some((_, (_, ended))) = happened.zip(ends).find(|(happened, _)| *happened) {
        return Err(ended());
    }
    Ok(if is_over { Woken::Over } else { Woken::Time })
}

/// Where this host looks for its card.
fn link_endpoint(config: &HostConfig) -> String {
    let kind = config.link.kind;
    match kind {
        LinkKind::Shm | LinkKind::Model => format!("{} {}", kind.name(), config.link.socket.display()),
        LinkKind::Tcp => format!("{} {}", kind.name(), config.link.card),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::config::TimeSpan;

    #[test]
    fn a_host_that_has_the_clients_polls_and_says_so() {
        let polls = |spin| ReactorConfig { spin: TimeSpan(spin) };
        let reactor = polls(Duration::from_micros(50));
        let kv = |placement| KvConfig { placement, ..KvConfig::default() };
        assert_eq!(pollers(&kv(Placement::Host), &reactor), 1);
        assert_eq!(pollers(&kv(Placement::Card), &reactor), 0);
        assert_eq!(pollers(&KvConfig { enabled: false, ..kv(Placement::Host) }, &reactor), 0);
        assert_eq!(pollers(&kv(Placement::Host), &polls(Duration::ZERO)), 0);
    }

    #[test]
    fn a_host_whose_store_has_ended_ends_too() {
        let stop = StopSignal::install().unwrap();
        let (end, alive) = UnixStream::pair().unwrap();
        let (other, _alive) = UnixStream::pair().unwrap();
        let ends: [End<'_>; 2] = [(other.as_fd(), volumes_ended), (end.as_fd(), kv_ended)];
        assert!(matches!(wait(&stop, &ends, None, Duration::from_millis(1)), Ok(Woken::Time)));
        drop(alive);
        let ended = wait(&stop, &ends, None, Duration::from_secs(600)).err().unwrap().to_string();
        assert_eq!(ended, "the thread of the key-value store has ended");
    }
}
