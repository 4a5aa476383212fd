//! What the status says of volumes.

use std::time::Duration;

use ob_split::card::RetainedCounts;
use ob_volume::tier::{Fullness, RebuildStatus};
use serde::{Deserialize, Serialize};

use super::{Check, Severity};
use crate::terminal::{BAD, HEADING, bytes, counted, duration, styled};
use crate::volumes::{DiskFacts, MaintenanceBytes, PortFacts, ServerReport, VolumesFacts};

/// Volumes: what initiators have asked for, and how the chunk servers are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumesStatus {
    /// Where they are served, and what is done there.
    pub ports: Vec<PortStatus>,
    /// The disks that initiators see.
    pub disks: Vec<DiskStatus>,
    /// Commands of initiators, at all ports; and so what follows.
    pub commands: u64,
    /// Commands that no host has taken in time.
    pub timed_out: u64,
    /// What is retained of what was written, in the card's memory.
    pub retained: Retained,
    /// Whether a host decides, and has said how it is doing; what follows is zero without one.
    pub has_host: bool,
    /// Whether it may answer.
    pub open: bool,
    /// Commands that it has answered with an error.
    pub errors: u64,
    /// Chunks.
    pub chunks: u32,
    /// Those that are being sealed.
    pub closing: u32,
    /// Those that wait for a chunk server with that.
    pub waiting: u32,
    /// Those with fewer replicas than they should have.
    pub degraded: u32,
    /// Records of which nobody knows yet whether they count.
    pub unresolved: u32,
    /// Chunks that were sealed.
    pub sealed: u64,
    /// Chunks that lost a member while they were written to.
    pub broken: u64,
    /// Replicas that were made anew.
    pub replicas_made: u64,
    /// Members that gave bytes which were wrong.
    pub bad_members: u64,
    /// Reads that were tried again, because not all members had answered.
    pub reads_again: u64,
    /// Records that members did not have as they should.
    pub rotten_found: u64,
    /// Those of them that were mended.
    pub mended: u64,
    /// Those that could not be, so far.
    pub mends_given_up: u64,
    /// Members that were dropped for it.
    pub members_dropped: u64,
    /// What is missing, as far as it is made anew; nothing if nothing is.
    pub rebuild: Option<Rebuild>,
    /// The chunk servers.
    pub servers: Vec<ChunkServerStatus>,
    /// What of the link's bytes was for no command.
    pub link: MaintenanceStatus,
}

/// Bytes that have crossed the link for no command, which the link's own counts have besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceStatus {
    /// For checkpoints of indexes.
    pub checkpoints_bytes: u64,
    /// For compaction.
    pub compaction_bytes: u64,
    /// For requests to chunk servers, replicas that are made anew, and records that are mended.
    pub others_bytes: u64,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Where it is.
    pub address: String,
    /// Whether the host half has it.
    pub has_host: bool,
    /// Commands of its initiators.
    pub commands: u64,
    /// Those that no host has taken in time.
    pub timed_out: u64,
    /// What is retained there.
    pub retained: Retained,
    /// Bytes that have crossed its own link; of the first port 0, as its link is the card's.
    pub link_bytes: u64,
}

impl PortStatus {
    fn of(facts: &PortFacts) -> Self {
        Self {
            address: facts.address.to_string(),
            has_host: facts.has_host,
            commands: facts.front.commands,
            timed_out: facts.front.timed_out,
            retained: Retained::of(&facts.retained),
            link_bytes: facts.link.read_bytes + facts.link.written_bytes + facts.link.word_bytes,
        }
    }

    fn line(&self) -> String {
        let retained = self.retained;
        let host = if self.has_host { String::new() } else { format!(", {}", styled(BAD, "no host")) };
        format!(
            "\n  port       {} {} commands, {} records retained, {}{host}",
            self.address,
            self.commands,
            retained.records,
            bytes(retained.bytes)
        )
    }
}

/// What is retained of what was written, so that nobody is asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retained {
    /// Records.
    pub records: u64,
    /// Their bytes, as they are stored.
    pub bytes: u64,
    /// Records that were read or moved from there.
    pub hits: u64,
    /// Records that were looked for there, and then read from a chunk server.
    pub misses: u64,
}

impl Retained {
    const fn of(counts: &RetainedCounts) -> Self {
        let RetainedCounts { records, bytes, hits, misses, .. } = *counts;
        Self { records, bytes, hits, misses }
    }

    const fn and(self, other: Self) -> Self {
        Self {
            records: self.records + other.records,
            bytes: self.bytes + other.bytes,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
        }
    }
}

/// A disk, as initiators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its NSID.
    pub namespace: u32,
    /// Bytes.
    pub size_bytes: u64,
}

/// Replicas that are made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuild {
    /// Bytes that were copied.
    pub done_bytes: u64,
    /// Those that are still to be.
    pub left_bytes: u64,
    /// How much of all that is.
    pub percent: u8,
    /// How long it takes at the rate of the last thirty seconds; nothing if nothing was copied in them.
    pub seconds_left: Option<u64>,
}

impl Rebuild {
    fn of(report: &RebuildStatus) -> Option<Self> {
        let RebuildStatus { done, left, rate } = *report;
        let all = u128::from(done) + u128::from(left);
        // What is not over is not told to be.
        let percent = (u128::from(done) * 100).checked_div(all).map_or(0, |percent| percent.min(99) as u8);
        let seconds_left = left.checked_add(rate.saturating_sub(1)).and_then(|left| left.checked_div(rate));
        (left > 0).then_some(Self { done_bytes: done, left_bytes: left, percent, seconds_left })
    }

    /// For people.
    fn told(&self) -> String {
        let left = self
            .seconds_left
            .map(|seconds| format!(", about {} left", duration(Duration::from_secs(seconds))));
        let (percent, left) = (self.percent, left.unwrap_or_default());
        format!("{percent} % of {}{left}", bytes(self.done_bytes.saturating_add(self.left_bytes)))
    }
}

/// A chunk server, as the tier sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkServerStatus {
    /// Where it is.
    pub address: String,
    /// `ready`, `failing`, `full`, `away`, or `refused`.
    pub state: String,
    /// Why it is refused, if it is.
    pub trouble: Option<String>,
    /// Bytes that are free.
    pub free_bytes: u64,
}

impl VolumesStatus {
    /// What a card knows.
    #[must_use]
    pub fn of(facts: &VolumesFacts) -> Self {
        let maintenance =
            |of: fn(&MaintenanceBytes) -> u64| facts.ports.iter().map(|port| of(&port.maintenance)).sum();
        let report = facts.report.clone().unwrap_or_default();
        let ports: Vec<PortStatus> = facts.ports.iter().map(PortStatus::of).collect();
        Self {
            disks: facts.disks.iter().map(DiskStatus::of).collect(),
            commands: ports.iter().map(|port| port.commands).sum(),
            timed_out: ports.iter().map(|port| port.timed_out).sum(),
            retained: ports.iter().fold(Retained::default(), |all, port| all.and(port.retained)),
            ports,
            has_host: facts.report.is_some(),
            open: report.is_open,
            errors: report.errors,
            chunks: report.chunks,
            closing: report.closing,
            waiting: report.waiting,
            degraded: report.degraded,
            unresolved: report.unresolved,
            sealed: report.sealed,
            broken: report.broken,
            replicas_made: report.replicas,
            bad_members: report.bad_members,
            reads_again: report.reads_again,
            rotten_found: report.rotten_found,
            mended: report.mended,
            mends_given_up: report.mends_given_up,
            members_dropped: report.members_dropped,
            rebuild: Rebuild::of(&report.rebuild),
            servers: report.servers.iter().map(ChunkServerStatus::of).collect(),
            link: MaintenanceStatus {
                checkpoints_bytes: maintenance(|bytes| bytes.checkpoints),
                compaction_bytes: maintenance(|bytes| bytes.compaction),
                others_bytes: maintenance(|bytes| bytes.others),
            },
        }
    }

    fn ports_text(&self) -> String {
        match self.ports.as_slice() {
            [port] => port.address.clone(),
            ports => counted(ports.len() as u64, "port", "ports"),
        }
    }

    fn disks_text(&self) -> String {
        match self.disks.as_slice() {
            [] => "no disk".to_owned(),
            [disk] => format!("NSID {}", disk.namespace),
            disks => counted(disks.len() as u64, "disk", "disks"),
        }
    }

    /// For people.
    pub(super) fn lines(&self) -> String {
        let servers = self.servers.iter().map(|server| {
            let state =
                if server.state == "ready" { server.state.clone() } else { styled(BAD, &server.state) };
            format!("\n  server     {} {state}, {} free", server.address, bytes(server.free_bytes))
        });
        // One is told of by the rest.
        let ports = self.ports.iter().filter(|_| self.ports.len() > 1).map(PortStatus::line);
        let rebuild = self.rebuild.map(|rebuild| format!("\n  rebuilding {}", rebuild.told()));
        format!(
            "{} {}, {}{}\n  commands   {}; {} answered with an error, {} taken by no host in time\n  \
             retained   {} records, {}; retained hits {} of {} that were looked for\n  \
             chunks     {}: {} being sealed, {} with too few replicas; so far {} sealed, {} of them for a lost member\n  \
             replicas   {} made anew; {} gave wrong bytes, {} reads were tried again\n  \
             rot        {} records found, {} mended, {} given up; {} replicas dropped for it{}{}",
            styled(HEADING, "volumes:"),
            self.ports_text(),
            self.disks_text(),
            ports.collect::<String>(),
            self.commands,
            self.errors,
            self.timed_out,
            self.retained.records,
            bytes(self.retained.bytes),
            self.retained.hits,
            self.retained.hits.saturating_add(self.retained.misses),
            self.chunks,
            self.closing,
            self.degraded,
            self.sealed,
            self.broken,
            self.replicas_made,
            self.bad_members,
            self.reads_again,
            self.rotten_found,
            self.mended,
            self.mends_given_up,
            self.members_dropped,
            rebuild.unwrap_or_default(),
            servers.collect::<String>()
        )
    }
}

impl DiskStatus {
    const fn of(facts: &DiskFacts) -> Self {
        Self { namespace: facts.namespace, size_bytes: facts.bytes }
    }
}

impl ChunkServerStatus {
    fn of(server: &ServerReport) -> Self {
        let state = match () {
            () if server.trouble.is_some() => "refused",
            () if !server.is_ready => "away",
            () if server.is_full => "full",
            () if server.has_failed => "failing",
            () => "ready",
        };
        Self {
            address: server.address.to_string(),
            state: state.to_owned(),
            trouble: server.trouble.map(|trouble| trouble.to_string()),
            free_bytes: server.free,
        }
    }
}

fn warning(code: &str, summary: String, hint: &str) -> Check {
    Check { code: code.to_owned(), severity: Severity::Warning, summary, hint: hint.to_owned() }
}

/// What of volumes wants attention (`docs/volumes.md`).
pub(super) fn volumes_checks(facts: &VolumesFacts) -> Vec<Check> {
    let Some(report) = &facts.report else {
        let summary = "no host half decides about volumes: commands are held".to_owned();
        return vec![warning(
            "OB017",
            summary,
            "it is started again by `up`; else start it: `outboard host`",
        )];
    };
    let mut checks = Vec::new();
    if report.degraded > 0 {
        let chunks = counted(report.degraded.into(), "chunk has", "chunks have");
        let is_copied = Rebuild::of(&report.rebuild).filter(|_| report.rebuild.rate > 0);
        let how = is_copied.map(|rebuild| format!(": rebuilding, {}", rebuild.told())).unwrap_or_default();
        let summary = format!("{chunks} fewer replicas than they should{how}");
        let hint = "wait while they are copied; there must be servers enough to copy to";
        checks.push(warning("OB010", summary, hint));
    }
    for server in report.servers.iter().filter(|server| !server.is_ready) {
        let why =
            server.trouble.map_or_else(|| "does not answer".to_owned(), |why| format!("is not used: {why}"));
        let summary = format!("the chunk server at {} {why}", server.address);
        checks.push(warning("OB011", summary, "start it, with the data that it had; what it has is made anew elsewhere meanwhile, if there is another"));
    }
    let full = report.servers.iter().filter(|server| server.is_full).count();
    if full > 0 || report.fullness == Fullness::Full {
        let summary = match full {
            0 => "the pool is full: writes are refused".to_owned(),
            full => format!(
                "{} no room for another chunk",
                counted(full as u64, "chunk server has", "chunk servers have")
            ),
        };
        checks.push(warning("OB013", summary, "trim, remove, or add a server"));
    } else if report.fullness == Fullness::Short {
        let summary = "four fifths of the pool are used, or promised".to_owned();
        checks.push(warning("OB012", summary, "trim, remove, or add a server"));
    }
    if !report.is_open {
        let summary = "the lease was lost, or is not there yet: nothing is answered".to_owned();
        checks.push(warning("OB014", summary, "see the host's log"));
    }
    if report.waiting > 0 {
        let chunks = counted(report.waiting.into(), "chunk waits", "chunks wait");
        let summary = format!("{chunks} for a chunk server that has what was acknowledged");
        checks.push(warning("OB015", summary, "start the chunk servers that are missing"));
    }
    if report.unindexed > 0 {
        let segments = counted(report.unindexed.into(), "segment does", "segments do");
        let summary = format!("the index of {segments} not fit into memory: its blocks are not served");
        checks.push(warning("OB016", summary, "raise `index_memory`, or start another tier"));
    }
    checks
}

#[cfg(test)]
mod tests {
    use ob_core::DmaCounts;
    use ob_volume::card::VolumeFrontCounts;
    use ob_volume::tier::ServerTrouble;

    use super::*;
    use crate::volumes::VolumesReport;

    fn port(retained: RetainedCounts) -> PortFacts {
        let front = VolumeFrontCounts { commands: 40, timed_out: 2, ..VolumeFrontCounts::default() };
        let link = DmaCounts { read_bytes: 100, written_bytes: 20, word_bytes: 3, ..DmaCounts::default() };
        let maintenance = MaintenanceBytes { checkpoints: 5, compaction: 7, others: 11 };
        PortFacts {
            address: ([127, 0, 0, 1], 4421).into(),
            has_host: true,
            front,
            retained,
            maintenance,
            link,
        }
    }

    #[test]
    fn several_ports_are_a_line_each_and_their_sums() {
        let retained = RetainedCounts { records: 7, bytes: 2 << 20, hits: 30, misses: 12, blocks: 9 };
        let other = PortFacts {
            address: ([127, 0, 0, 1], 4422).into(),
            has_host: false,
            ..port(RetainedCounts { records: 1, ..retained })
        };
        let facts = VolumesFacts { ports: vec![port(retained), other], disks: Vec::new(), report: None };
        let status = VolumesStatus::of(&facts);
        assert_eq!((status.commands, status.timed_out, status.retained.records), (80, 4, 8));
        assert_eq!(status.ports[1].link_bytes, 123);
        let MaintenanceStatus { checkpoints_bytes, compaction_bytes, others_bytes } = status.link;
        assert_eq!((checkpoints_bytes, compaction_bytes, others_bytes), (10, 14, 22));
        let lines = status.lines();
        assert!(
            lines.contains("2 ports, no disk\n  port       127.0.0.1:4421 40 commands, 7 records"),
            "{lines}"
        );
        assert!(lines.contains("127.0.0.1:4422 40 commands, 1 records retained, 2.0 MiB, "), "{lines}");
    }

    fn codes(report: Option<VolumesReport>) -> Vec<String> {
        let disks = vec![DiskFacts { namespace: 1, bytes: 1 << 30 }];
        let retained = RetainedCounts { records: 7, bytes: 2 << 20, hits: 30, misses: 12, blocks: 9 };
        let facts = VolumesFacts { ports: vec![port(retained)], disks, report };
        let status = VolumesStatus::of(&facts);
        assert!(status.lines().contains("127.0.0.1:4421, NSID 1"), "{}", status.lines());
        let retained = "7 records, 2.0 MiB; retained hits 30 of 42 that were looked for";
        assert!(status.lines().contains(retained), "{}", status.lines());
        volumes_checks(&facts).into_iter().map(|check| check.code).collect()
    }

    #[test]
    fn what_is_rebuilt_says_how_far_it_is() {
        let of = |done, left, rate| Rebuild::of(&RebuildStatus { done, left, rate });
        assert_eq!(of(5, 0, 7), None, "nothing is missing");
        let told = |done, left, rate| of(done, left, rate).map(|of| (of.percent, of.seconds_left)).unwrap();
        assert_eq!(told(0, 100, 0), (0, None), "nobody knows when it is over");
        assert_eq!(told(30, 70, 8), (30, Some(9)));
        assert_eq!(told(1 << 40, 1, 1 << 20), (99, Some(1)), "it is not over");
        assert_eq!(told(u64::MAX, u64::MAX, 1).0, 50);
        let report = VolumesReport {
            is_open: true,
            degraded: 2,
            rebuild: RebuildStatus { done: 3 << 20, left: 1 << 20, rate: 1 << 18 },
            ..VolumesReport::default()
        };
        let ports = vec![port(RetainedCounts::default())];
        let facts = VolumesFacts { ports, disks: Vec::new(), report: Some(report) };
        let summary = &volumes_checks(&facts)[0].summary;
        assert!(summary.contains("rebuilding, 75 % of") && summary.contains("about 4"), "{summary}");
        assert!(VolumesStatus::of(&facts).lines().contains("rebuilding 75 %"));
    }

    #[test]
    fn what_wants_attention_has_a_code() {
        let server = |is_ready: bool| ServerReport {
            address: ([127, 0, 0, 1], 4440).into(),
            is_ready,
            has_failed: false,
            is_full: false,
            trouble: None,
            free: 1 << 30,
        };
        let good = VolumesReport { is_open: true, servers: vec![server(true)], ..VolumesReport::default() };
        assert_eq!(codes(None), ["OB017"]);
        assert_eq!(codes(Some(good.clone())), [""; 0]);
        assert_eq!(codes(Some(VolumesReport { degraded: 1, ..good.clone() })), ["OB010"]);
        assert_eq!(codes(Some(VolumesReport { servers: vec![server(false)], ..good.clone() })), ["OB011"]);
        let full = ServerReport { is_full: true, ..server(true) };
        assert_eq!(codes(Some(VolumesReport { servers: vec![full], ..good.clone() })), ["OB013"]);
        assert_eq!(codes(Some(VolumesReport { is_open: false, ..good.clone() })), ["OB014"]);
        assert_eq!(codes(Some(VolumesReport { waiting: 1, ..good.clone() })), ["OB015"]);
        let short = VolumesReport { fullness: Fullness::Short, ..good.clone() };
        assert_eq!(codes(Some(short.clone())), ["OB012"]);
        assert_eq!(codes(Some(VolumesReport { servers: vec![full], ..short })), ["OB013"]);
        assert_eq!(codes(Some(VolumesReport { fullness: Fullness::Full, ..good.clone() })), ["OB013"]);
        assert_eq!(codes(Some(VolumesReport { unindexed: 1, ..good })), ["OB016"]);
        let refused = ServerReport { trouble: Some(ServerTrouble::WrongPool), ..server(false) };
        let shown = ChunkServerStatus::of(&refused);
        assert_eq!((shown.state.as_str(), shown.trouble.is_some()), ("refused", true));
    }
}
