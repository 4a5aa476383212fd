//! What the reactor tells, and the server reads.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ob_core::{DmaCounts, Incarnation};
use ob_files_card::FilesCounts;
use ob_nvme::target::TargetCounts;
use ob_pushdown::target::FunctionCounts;
use ob_wire_link::files::{CardInfo, SpaceInfo};
use tokio::sync::watch;

use super::checks::{checks, health};
use super::{
    FilesStatus, FunctionStatus, HalfState, HalfStatus, KvStatus, LinkStatus, NvmeHoldUps, NvmeStatus,
    RequestCount, Status, VolumesStatus,
};
use crate::accounting;
use crate::config::LinkKind;
use crate::kv::KvFacts;
use crate::volumes::VolumesFacts;

// A snapshot this young is as good as a new one, so that a busy monitor cannot keep the reactor awake.
const YOUNG: Duration = Duration::from_millis(250);

// A reactor never blocks for longer than a request takes; one that is silent for so long is stuck.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// What the reactor knows at one moment. Times and processor time are worked out when somebody asks.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The card itself.
    pub card: CardFacts,
    /// The host, while one is attached.
    pub host: Option<HostFacts>,
    /// What to type to start the host.
    pub host_command: String,
    /// The link.
    pub link: LinkFacts,
    /// Who answered clients' requests.
    pub requests: Vec<RequestCount>,
    /// The files, on a card that has some.
    pub files: Option<FilesFacts>,
    /// What is served over NVMe/TCP; none until the first snapshot.
    pub nvme: Option<NvmeFacts>,
    /// The key-value store, if clients reach it through the card; none until the first snapshot.
    pub kv: Option<KvFacts>,
    /// Volumes, if they are served; none until the first snapshot.
    pub volumes: Option<VolumesFacts>,
}

/// What a card knows of itself.
#[derive(Clone, Debug)]
pub struct CardFacts {
    /// Its process.
    pub pid: u32,
    /// Which life of it this is.
    pub incarnation: Incarnation,
    /// When this life began.
    pub started: Instant,
}

/// What a card knows of the host that is attached.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// Its process, on its own machine, if that is known yet.
    pub pid: Option<u32>,
    /// Which life of it this is.
    pub incarnation: Incarnation,
    /// How long it had been attached when the snapshot was taken.
    pub attached_for: Duration,
    /// Where to learn its processor time.
    pub cpu: HostCpu,
}

/// Where to learn a host's processor time.
#[derive(Clone, Copy, Debug)]
pub enum HostCpu {
    /// From this machine's kernel, by the process number.
    SameMachine,
    /// From what the host itself told last.
    Told(Duration),
    /// Nowhere.
    Unknown,
}

/// What a card knows of its link.
#[derive(Clone, Debug)]
pub struct LinkFacts {
    /// Its kind.
    pub kind: LinkKind,
    /// Where a host attaches.
    pub endpoint: String,
    /// What it has carried, over all attachments.
    pub dma: DmaCounts,
    /// Hosts that are attached and connected.
    pub hosts: usize,
    /// The round trip of the host's last probe.
    pub probe: Option<Duration>,
}

/// What a card knows of its files.
#[derive(Clone, Debug, Default)]
pub struct FilesFacts {
    /// The device.
    pub device: String,
    /// What every host is told; none until the first snapshot.
    pub card: Option<CardInfo>,
    /// What is used and free.
    pub space: SpaceInfo,
    /// Bytes of the log that a mount would read.
    pub log_used: u64,
    /// Whether nothing can be changed any more.
    pub frozen: bool,
    /// What was done.
    pub counts: FilesCounts,
}

/// What a card knows of its NVMe/TCP target.
#[derive(Clone, Debug)]
pub struct NvmeFacts {
    /// Where subsystems are served.
    pub address: SocketAddr,
    /// Where discovery is.
    pub discovery: SocketAddr,
    /// Namespaces.
    pub namespaces: usize,
    /// Connections that there can be.
    pub connections_max: u64,
    /// Of each thread: connections, and how many it can have.
    pub threads: Vec<(u64, u64)>,
    /// Namespaces whose device keeps nothing that is written to it any more.
    pub failing: Vec<String>,
    /// Namespaces that are known and not served.
    pub left_out: Vec<String>,
    /// What was done, and what is under way.
    pub counts: TargetCounts,
    /// The same of storage functions, if hosts may bring any.
    pub functions: Option<FunctionCounts>,
}

/// Whether a snapshot can be trusted to be of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It is of now, or nearly.
    Fresh,
    /// The reactor was asked for a new one and did not answer in time.
    Stale,
}

/// The latest snapshot, and a way to ask for a newer one.
pub struct StatusBoard {
    latest: watch::Sender<(Instant, Snapshot)>,
    ask: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl StatusBoard {
    /// A board that shows the first snapshot.
    #[must_use]
    pub fn new(first: Snapshot) -> Self {
        Self { latest: watch::Sender::new((Instant::now(), first)), ask: OnceLock::new() }
    }

    /// Says how to ask the reactor for a snapshot, from another thread and without waiting: as a rule it sets a flag and
    /// wakes the reactor, which then calls [`StatusBoard::publish`]. Without this the board takes its word for current.
    /// Only the first call counts.
    pub fn on_ask(&self, ask: impl Fn() + Send + Sync + 'static) {
        // A second way to ask would never be used: the reactor lives as long as the board.
        let _ = self.ask.set(Box::new(ask));
    }

    /// Shows what the change makes of the snapshot. It holds a lock that readers take only to copy.
    pub fn publish(&self, change: impl FnOnce(&mut Snapshot)) {
        self.latest.send_modify(|(time, snapshot)| {
            change(snapshot);
            *time = Instant::now();
        });
    }

    /// The state of now: asks the reactor if the latest snapshot is old.
    pub async fn status(&self) -> Status {
        let freshness = self.refresh().await;
        let snapshot = self.latest.borrow().1.clone();
        describe(&snapshot, freshness)
    }

    async fn refresh(&self) -> Freshness {
        let Some(ask) = self.ask.get() else { return Freshness::Fresh };
        let mut latest = self.latest.subscribe();
        if latest.borrow_and_update().0.elapsed() < YOUNG {
            return Freshness::Fresh;
        }
        ask();
        match tokio::time::timeout(ANSWER_TIMEOUT, latest.changed()).await {
            Ok(Ok(())) => Freshness::Fresh,
            Ok(Err(_)) | Err(_) => Freshness::Stale,
        }
    }
}

impl std::fmt::Debug for StatusBoard {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("StatusBoard").field("latest", &*self.latest.borrow()).finish_non_exhaustive()
    }
}

fn describe(snapshot: &Snapshot, freshness: Freshness) -> Status {
    let checks = checks(snapshot, freshness);
    Status {
        health: health(&checks),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        card: HalfStatus {
            state: HalfState::Running,
            pid: Some(snapshot.card.pid),
            incarnation: Some(snapshot.card.incarnation.0),
            uptime_s: Some(snapshot.card.started.elapsed().as_secs_f64()),
            cpu_us: Some(microseconds(accounting::own_cpu())),
        },
        host: describe_host(snapshot.host.as_ref()),
        link: LinkStatus {
            kind: snapshot.link.kind.name().to_owned(),
            endpoint: snapshot.link.endpoint.clone(),
            dma_reads: snapshot.link.dma.reads,
            dma_writes: snapshot.link.dma.writes,
            dma_read_bytes: snapshot.link.dma.read_bytes,
            dma_written_bytes: snapshot.link.dma.written_bytes,
            dma_word_bytes: snapshot.link.dma.word_bytes,
            hosts: snapshot.link.hosts,
            probe_ns: snapshot.link.probe.map(|probe| u64::try_from(probe.as_nanos()).unwrap_or(u64::MAX)),
        },
        requests: snapshot.requests.clone(),
        files: snapshot.files.as_ref().map(describe_files),
        nvme: snapshot.nvme.as_ref().map(describe_nvme),
        kv: snapshot.kv.as_ref().map(describe_kv),
        volumes: snapshot.volumes.as_ref().map(VolumesStatus::of),
        checks,
    }
}

fn describe_files(facts: &FilesFacts) -> FilesStatus {
    let FilesFacts { device, card, space, log_used, frozen, counts } = facts;
    let uuid = card.map(|card| card.uuid).unwrap_or_default();
    FilesStatus {
        device: device.clone(),
        uuid: uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        mounts: card.map_or(0, |card| card.epoch),
        block_bytes: card.map_or(0, |card| card.block_len),
        segment_bytes: card.map_or(0, |card| card.segment_len),
        total_bytes: space.total,
        free_bytes: space.free,
        files: space.files,
        directories: space.directories,
        log_bytes: space.log_total,
        log_used_bytes: *log_used,
        log_live_bytes: space.log_live,
        read_only: *frozen,
        reads: counts.reads,
        read_bytes: counts.read_bytes,
        writes: counts.writes,
        written_bytes: counts.written_bytes,
        metadata: counts.metadata,
        flushes: counts.flushes,
        unaligned: counts.unaligned,
        errors: counts.errors,
        log_frames: counts.frames,
        device_flushes: counts.device_flushes,
    }
}

fn describe_kv(facts: &KvFacts) -> KvStatus {
    let KvFacts { address, director, engine, table, table_slots, table_bytes } = facts;
    KvStatus {
        address: address.to_string(),
        connections: director.connections,
        accepted: director.accepted,
        refused: director.refused,
        protocol_errors: director.wrong,
        starved: director.starved,
        closed_for_memory: director.closed_for_memory,
        unread_bytes: director.unread,
        long_free_bytes: director.long_left,
        unavailable: director.unavailable,
        host_lives: director.host_lives,
        host_refused: director.host_refused,
        reads: engine.reads,
        table_bytes: *table_bytes,
        table_slots: *table_slots,
        table_entries: table.entries,
        table_tombstones: table.tombstones,
        table_admitted: table.admitted,
        table_refused_stale: table.refused_stale,
        table_refused_full: table.refused_full,
        table_evicted: table.evicted,
        offered: engine.offered,
        attested: engine.attested,
        dropped: engine.dropped,
    }
}

fn describe_nvme(facts: &NvmeFacts) -> NvmeStatus {
    let NvmeFacts { address, discovery, namespaces, connections_max, counts, functions, .. } = facts;
    NvmeStatus {
        address: address.to_string(),
        discovery: discovery.to_string(),
        namespaces: *namespaces,
        hosts: counts.hosts,
        controllers: counts.controllers,
        connections: counts.connections,
        connections_max: *connections_max,
        accepted: counts.accepted,
        refused: counts.refused,
        protocol_errors: counts.protocol_errors,
        timeouts: counts.timeouts,
        digest_errors: counts.digest_errors,
        control_commands: counts.control_commands,
        reads: counts.reads,
        read_bytes: counts.bytes_read,
        writes: counts.writes,
        written_bytes: counts.bytes_written,
        flushes: counts.flushes,
        write_zeroes: counts.write_zeroes,
        dataset_managements: counts.dataset,
        compares: counts.compares,
        verifies: counts.verifies,
        failed: counts.failed,
        received_bytes: counts.bytes_received,
        sent_bytes: counts.bytes_sent,
        in_flight: counts.in_flight,
        orphans: counts.orphans,
        waiting_for_buffer: counts.waiting_for_buffer,
        waiting_for_range: counts.waiting_for_range,
        waits_for_buffer: counts.waits_for_buffer,
        waits_for_range: counts.waits_for_range,
        held_up: counts.held_up,
        hold_ups: NvmeHoldUps {
            buffer: counts.hold_ups_for_buffer,
            queue_full: counts.hold_ups_for_queue,
            unsent: counts.hold_ups_for_unsent,
            connect: counts.hold_ups_for_connect,
        },
        connects_delayed: counts.connects_delayed,
        buffer_bytes: counts.buffer_memory,
        buffer_used_bytes: counts.buffer_memory_used,
        buffers_exhausted: counts.buffers_exhausted,
        functions: functions.as_ref().map(describe_functions),
    }
}

fn describe_functions(counts: &FunctionCounts) -> FunctionStatus {
    FunctionStatus {
        programs: counts.programs,
        files: counts.files,
        plans: counts.plans,
        running: counts.running,
        requests: counts.requests,
        answered: counts.answered,
        changed: counts.changed,
        given_up: counts.given_up,
        failed: counts.failed,
        reads: counts.reads,
        read_bytes: counts.read_bytes,
        over_share: counts.over_share,
        displaced: counts.displaced,
    }
}

fn describe_host(host: Option<&HostFacts>) -> HalfStatus {
    let Some(host) = host else {
        return HalfStatus {
            state: HalfState::NotAttached,
            pid: None,
            incarnation: None,
            uptime_s: None,
            cpu_us: None,
        };
    };
    let cpu = match host.cpu {
        HostCpu::SameMachine => host.pid.and_then(|pid| accounting::process_cpu(pid).ok()),
        HostCpu::Told(cpu) => Some(cpu),
        HostCpu::Unknown => None,
    };
    HalfStatus {
        state: HalfState::Attached,
        pid: host.pid,
        incarnation: Some(host.incarnation.0),
        uptime_s: Some(host.attached_for.as_secs_f64()),
        cpu_us: cpu.map(microseconds),
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Health;
    use super::*;
    use std::sync::Arc;

    /// A snapshot without a host.
    pub(in crate::status) fn snapshot() -> Snapshot {
        Snapshot {
            card: CardFacts { pid: std::process::id(), incarnation: Incarnation(7), started: Instant::now() },
            host: None,
            host_command: "outboard host --data d".to_owned(),
            link: LinkFacts {
                kind: LinkKind::Shm,
                endpoint: "shm d/link.sock".to_owned(),
                dma: DmaCounts::default(),
                hosts: 0,
                probe: None,
            },
            requests: Vec::new(),
            files: None,
            nvme: None,
            kv: None,
            volumes: None,
        }
    }

    /// A target that has nothing to do.
    pub(in crate::status) fn nvme_facts() -> NvmeFacts {
        NvmeFacts {
            address: ([127, 0, 0, 1], 4420).into(),
            discovery: ([127, 0, 0, 1], 8009).into(),
            namespaces: 1,
            connections_max: 100,
            threads: vec![(0, 100)],
            failing: Vec::new(),
            left_out: Vec::new(),
            counts: TargetCounts::default(),
            functions: Some(FunctionCounts { requests: 7, ..FunctionCounts::default() }),
        }
    }

    fn status_of(board: &StatusBoard) -> Status {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(board.status())
    }

    #[test]
    fn without_a_reactor_the_snapshot_is_taken_as_it_is() {
        let status = status_of(&StatusBoard::new(snapshot()));
        assert_eq!(status.card.incarnation, Some(7));
        assert_eq!(status.host.state, HalfState::NotAttached);
        assert_eq!(status.health, Health::Degraded);
    }

    #[test]
    fn files_that_are_read_only_or_full_want_attention() {
        let codes = |space: SpaceInfo, frozen| -> Vec<String> {
            let files = FilesFacts { space, frozen, ..FilesFacts::default() };
            let status = status_of(&StatusBoard::new(Snapshot { files: Some(files), ..snapshot() }));
            status.checks.into_iter().map(|check| check.code).collect()
        };
        let roomy =
            SpaceInfo { total: 1000, free: 50, log_total: 1000, log_live: 800, ..SpaceInfo::default() };
        assert_eq!(codes(roomy, false), ["OB001"]);
        assert_eq!(codes(roomy, true), ["OB001", "OB003"]);
        assert_eq!(codes(SpaceInfo { free: 49, ..roomy }, false), ["OB001", "OB004"]);
        assert_eq!(codes(SpaceInfo { log_live: 801, ..roomy }, false), ["OB001", "OB005"]);
    }

    #[test]
    fn a_target_without_buffers_or_room_for_connections_wants_attention() {
        let codes = |counts: TargetCounts| nvme_codes(NvmeFacts { counts, ..nvme_facts() });
        let busy = TargetCounts {
            reads: 50_000,
            writes: 49_999,
            buffers_exhausted: 1000,
            ..TargetCounts::default()
        };
        assert_eq!(
            codes(TargetCounts { writes: 50_000, ..busy }),
            ["OB001"],
            "one in a hundred is no reason"
        );
        assert_eq!(codes(busy), ["OB001", "OB006"]);
        let young = TargetCounts { reads: 10, buffers_exhausted: 9, ..TargetCounts::default() };
        assert_eq!(codes(young), ["OB001"], "a few prove nothing");
        // Each thread refuses for itself.
        let taken = |threads: &[(u64, u64)]| {
            let counts = TargetCounts { connections: threads.iter().map(|one| one.0).sum(), ..young };
            let connections_max = threads.iter().map(|one| one.1).sum();
            nvme_codes(NvmeFacts { counts, connections_max, threads: threads.to_vec(), ..nvme_facts() })
        };
        assert_eq!(taken(&[(90, 100)]), ["OB001"]);
        assert_eq!(taken(&[(91, 100)]), ["OB001", "OB007"]);
        assert_eq!(taken(&[(512, 512), (0, 512)]), ["OB001", "OB007"]);
        assert_eq!(taken(&[(256, 512), (256, 512), (0, 0)]), ["OB001"]);
    }

    #[test]
    fn namespaces_that_fail_or_are_not_served_want_attention() {
        let name = || vec!["2 of nqn.2026-11.io.outboard:card on /dev/sdb".to_owned()];
        let failing = NvmeFacts { failing: name(), ..nvme_facts() };
        assert_eq!(nvme_codes(failing), ["OB001", "OB008"]);
        let left_out = NvmeFacts { left_out: name(), ..nvme_facts() };
        let status = status_of(&StatusBoard::new(Snapshot { nvme: Some(left_out), ..snapshot() }));
        assert_eq!(status.health, Health::Failing);
        assert!(
            status.checks.iter().any(|check| check.code == "OB009" && check.summary.contains("/dev/sdb"))
        );
    }

    fn nvme_codes(nvme: NvmeFacts) -> Vec<String> {
        let status = status_of(&StatusBoard::new(Snapshot { nvme: Some(nvme), ..snapshot() }));
        status.checks.into_iter().map(|check| check.code).collect()
    }

    #[test]
    fn an_old_snapshot_is_renewed_on_request() {
        let board = Arc::new(StatusBoard::new(snapshot()));
        let reactor = Arc::downgrade(&board);
        board.on_ask(move || {
            let board = reactor.upgrade().unwrap();
            board.publish(|snapshot| snapshot.link.dma.reads += 1);
        });
        board.latest.send_modify(|(time, _)| *time = Instant::now().checked_sub(YOUNG).unwrap());
        assert_eq!(status_of(&board).link.dma_reads, 1);
        // The second request finds the snapshot of the first still young, unless this thread was held up in between.
        assert!(status_of(&board).link.dma_reads >= 1);
    }

    #[test]
    fn a_reactor_that_does_not_answer_is_reported() {
        let board = StatusBoard::new(snapshot());
        board.on_ask(|| {});
        board.latest.send_modify(|(time, _)| *time = Instant::now().checked_sub(YOUNG).unwrap());
        let status = status_of(&board);
        assert_eq!(status.health, Health::Failing);
        assert!(status.checks.iter().any(|check| check.code == "OB002"), "{:?}", status.checks);
    }
}
