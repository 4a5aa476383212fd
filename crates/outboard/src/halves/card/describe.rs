//! What the card knows of itself, for the status.

use std::time::Instant;

use ob_core::DmaCounts;
use ob_link::{CardLink, HostReport};

use super::parts::Parts;
use super::{Card, CardServices};
use crate::config::{CardConfig, LinkKind};
use crate::halves::{Half, Life};
use crate::kv::{KvCard, KvFacts};
use crate::probe::ProbeService;
use crate::status::{CardFacts, FilesFacts, HostCpu, HostFacts, LinkFacts, RequestCount, Snapshot};
use crate::volumes::VolumesCard;

/// Brings a snapshot up to date.
pub(super) fn describe(snapshot: &mut Snapshot, card: &Card, parts: &Parts, endpoint: String) {
    let Parts { nvme, kv, volumes, .. } = parts;
    let CardServices { probe, files, .. } = card.service.services();
    let hosts = card.link.hosts();
    let connected: Vec<&HostReport> = hosts.iter().filter(|host| host.connected).collect();
    // Applications that use files attach like the host does; only the host probes.
    let first = connected.iter().find(|host| probe.knows(host.identity.attachment));
    snapshot.host = first.map(|host| host_facts(host, probe));
    let report = first.and_then(|host| probe.report(host.identity.attachment));
    snapshot.link = LinkFacts {
        kind: snapshot.link.kind,
        endpoint,
        dma: volumes.iter().flat_map(VolumesCard::links).fold(card.link.counts(), and),
        hosts: connected.len(),
        probe: report.map(|report| report.probe),
    };
    let counts = files.counts();
    let nvme = nvme.facts();
    let always = |service: &str, count| RequestCount {
        service: service.to_owned(),
        half: Half::Card,
        reason: "always".to_owned(),
        count,
    };
    snapshot.requests = vec![
        always("probe", probe.answered()),
        always("files", counts.reads + counts.writes + counts.metadata + counts.flushes),
        always("nvme", nvme.counts.io_commands() + nvme.counts.control_commands),
    ];
    snapshot.kv = kv.as_ref().map(KvCard::facts);
    snapshot.requests.extend(snapshot.kv.iter().flat_map(kv_requests));
    snapshot.requests.extend(volumes.iter().map(volumes_requests));
    snapshot.volumes = volumes.as_ref().map(VolumesCard::facts);
    snapshot.nvme = Some(nvme);
    if let Some(facts) = &mut snapshot.files {
        facts.space = files.files().space_info();
        facts.log_used = files.files().log_used();
        facts.card = Some(files.files().card_info());
        facts.frozen = files.files().is_frozen();
        facts.counts = counts;
    }
}

/// What has crossed two links.
const fn and(one: DmaCounts, other: DmaCounts) -> DmaCounts {
    DmaCounts {
        reads: one.reads + other.reads,
        writes: one.writes + other.writes,
        read_bytes: one.read_bytes + other.read_bytes,
        written_bytes: one.written_bytes + other.written_bytes,
        word_bytes: one.word_bytes + other.word_bytes,
    }
}

/// Who answered clients of the key-value store, and why.
fn kv_requests(facts: &KvFacts) -> Vec<RequestCount> {
    let counted = |half, reason: &str, count| RequestCount {
        service: "kv".to_owned(),
        half,
        reason: reason.to_owned(),
        count,
    };
    let by_host = facts.reasons().map(move |(reason, count)| counted(Half::Host, reason, count));
    std::iter::once(counted(Half::Card, "stored", facts.director.card)).chain(by_host).collect()
}

/// Commands of volumes: the host decides about every one, from 64 bytes of it.
fn volumes_requests(volumes: &VolumesCard) -> RequestCount {
    let (service, reason) = ("volumes".to_owned(), "header".to_owned());
    RequestCount { service, half: Half::Host, reason, count: volumes.commands() }
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

pub(super) fn first_snapshot(config: &CardConfig, life: &Life) -> Snapshot {
    Snapshot {
        card: CardFacts { pid: std::process::id(), incarnation: life.incarnation(), started: Instant::now() },
        host: None,
        host_command: format!("outboard host{}", config.command_options()),
        link: LinkFacts {
            kind: config.link.kind,
            endpoint: String::new(),
            dma: DmaCounts::default(),
            hosts: 0,
            probe: None,
        },
        requests: Vec::new(),
        files: Some(FilesFacts { device: config.files.device.to_string(), ..FilesFacts::default() }),
        nvme: None,
        kv: None,
        volumes: None,
    }
}

/// Where a host finds this card.
pub(super) fn link_endpoint(config: &CardConfig, link: &CardLink) -> String {
    let kind = config.link.kind;
    match kind {
        LinkKind::Shm | LinkKind::Model => format!("{} {}", kind.name(), config.link.socket.display()),
        LinkKind::Tcp => format!("{} {}", kind.name(), link.tcp_address().unwrap_or(config.link.listen)),
    }
}
