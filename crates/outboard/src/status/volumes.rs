//! What the status says of volumes.

use serde::{Deserialize, Serialize};

use super::{Check, Severity};
use crate::terminal::{BAD, HEADING, bytes, counted, styled};
use crate::volumes::{ServerReport, VolumesFacts};

/// Volumes: what initiators have asked for, and how the chunk servers are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumesStatus {
    /// Where they are served.
    pub address: String,
    /// The NSID of the disk; another one after each restart of the host half, which empties it.
    pub namespace: u32,
    /// Commands of initiators.
    pub commands: u64,
    /// Commands that no host has taken in time.
    pub timed_out: u64,
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
    /// The chunk servers.
    pub servers: Vec<ChunkServerStatus>,
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
        let report = facts.report.clone().unwrap_or_default();
        Self {
            address: facts.address.to_string(),
            namespace: facts.namespace,
            commands: facts.front.commands,
            timed_out: facts.front.timed_out,
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
            servers: report.servers.iter().map(ChunkServerStatus::of).collect(),
        }
    }

    /// For people.
    pub(super) fn lines(&self) -> String {
        let servers = self.servers.iter().map(|server| {
            let state =
                if server.state == "ready" { server.state.clone() } else { styled(BAD, &server.state) };
            format!("\n  server     {} {state}, {} free", server.address, bytes(server.free_bytes))
        });
        format!(
            "{} {}, NSID {}\n  commands   {}; {} answered with an error, {} taken by no host in time\n  \
             chunks     {}: {} being sealed, {} with too few replicas; so far {} sealed, {} of them for a lost member\n  \
             replicas   {} made anew; {} gave wrong bytes, {} reads were tried again{}",
            styled(HEADING, "volumes:"),
            self.address,
            self.namespace,
            self.commands,
            self.errors,
            self.timed_out,
            self.chunks,
            self.closing,
            self.degraded,
            self.sealed,
            self.broken,
            self.replicas_made,
            self.bad_members,
            self.reads_again,
            servers.collect::<String>()
        )
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
        let summary = format!("{chunks} fewer replicas than they should");
        checks.push(warning(
            "OB010",
            summary,
            "wait while they are copied; there must be servers enough to copy to",
        ));
    }
    for server in report.servers.iter().filter(|server| !server.is_ready) {
        let why =
            server.trouble.map_or_else(|| "does not answer".to_owned(), |why| format!("is not used: {why}"));
        let summary = format!("the chunk server at {} {why}", server.address);
        checks.push(warning("OB011", summary, "start it, with the data that it had; what it has is made anew elsewhere meanwhile, if there is another"));
    }
    let full = report.servers.iter().filter(|server| server.is_full).count();
    if full > 0 {
        let summary = format!(
            "{} no room for another chunk",
            counted(full as u64, "chunk server has", "chunk servers have")
        );
        checks.push(warning("OB013", summary, "trim, remove, or add a server"));
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
    checks
}

#[cfg(test)]
mod tests {
    use ob_volume::card::VolumeFrontCounts;
    use ob_volume::tier::ServerTrouble;

    use super::*;
    use crate::volumes::VolumesReport;

    fn codes(report: Option<VolumesReport>) -> Vec<String> {
        let address = ([127, 0, 0, 1], 4421).into();
        let facts = VolumesFacts { address, namespace: 1, front: VolumeFrontCounts::default(), report };
        let status = VolumesStatus::of(&facts);
        assert!(status.lines().contains("127.0.0.1:4421, NSID 1"), "{}", status.lines());
        volumes_checks(&facts).into_iter().map(|check| check.code).collect()
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
        assert_eq!(codes(Some(VolumesReport { waiting: 1, ..good })), ["OB015"]);
        let refused = ServerReport { trouble: Some(ServerTrouble::WrongPool), ..server(false) };
        let shown = ChunkServerStatus::of(&refused);
        assert_eq!((shown.state.as_str(), shown.trouble.is_some()), ("refused", true));
    }
}
