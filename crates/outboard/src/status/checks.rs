//! Coded checks: what wants attention, and what to do. A code never changes its meaning.

use serde::{Deserialize, Serialize};

use super::volumes::volumes_checks;
use super::{FilesFacts, Freshness, Health, NvmeFacts, Snapshot};
use crate::terminal::bytes;

// Less than one part in so many of the space for files is nearly nothing.
const FREE_PART_MIN: u64 = 20;
// More than this share of the log, in percent, leaves too little room to clean it.
const LOG_LIVE_PERCENT_MAX: u64 = 80;
// Of so many I/O commands one may find no buffer; and so many must have found none before it means something.
const BUFFERS_EXHAUSTED_PART_MAX: u64 = 100;
const BUFFERS_EXHAUSTED_MIN: u64 = 100;
// More than this share of the connections, in percent, leaves too few for another host.
const CONNECTIONS_PERCENT_MAX: u64 = 90;

/// One thing that wants attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// To search for, and to match on in scripts.
    pub code: String,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub summary: String,
    /// What to do.
    pub hint: String,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The card serves what it can.
    Warning,
    /// The card does not serve.
    Error,
}

/// Everything that wants attention.
pub(super) fn checks(snapshot: &Snapshot, freshness: Freshness) -> Vec<Check> {
    let mut checks = Vec::new();
    if snapshot.host.is_none() {
        checks.push(Check {
            code: "OB001".to_owned(),
            severity: Severity::Warning,
            summary: "host not attached".to_owned(),
            hint: format!("start it with `{}`", snapshot.host_command),
        });
    }
    if freshness == Freshness::Stale {
        checks.push(Check {
            code: "OB002".to_owned(),
            severity: Severity::Error,
            summary: "the card's reactor does not answer; what is shown may be old".to_owned(),
            hint: format!("look at the card's log, and at where the process {} waits", snapshot.card.pid),
        });
    }
    checks.extend(snapshot.files.iter().flat_map(files_checks));
    checks.extend(snapshot.nvme.iter().flat_map(nvme_checks));
    checks.extend(snapshot.volumes.iter().flat_map(volumes_checks));
    checks
}

fn files_checks(files: &FilesFacts) -> Vec<Check> {
    let FilesFacts { device, space, .. } = files;
    let mut checks = Vec::new();
    if files.frozen {
        checks.push(Check {
            code: "OB003".to_owned(),
            severity: Severity::Error,
            summary: format!("the files are read-only, because {device} did not keep what was written to it"),
            hint: "see the card's log for the device's error, mend it, and start the card again".to_owned(),
        });
    }
    if space.free < space.total / FREE_PART_MIN {
        checks.push(Check {
            code: "OB004".to_owned(),
            severity: Severity::Warning,
            summary: format!(
                "{device} is nearly full: {} of {} are free",
                bytes(space.free),
                bytes(space.total)
            ),
            hint: "`outboard files ls -l` shows what there is, and `outboard files rm` makes room".to_owned(),
        });
    }
    if space.log_live > space.log_total / 100 * LOG_LIVE_PERCENT_MAX {
        checks.push(Check {
            code: "OB005".to_owned(),
            severity: Severity::Warning,
            summary: format!(
                "the log of {device} is nearly full: names and places take {} of {}",
                bytes(space.log_live),
                bytes(space.log_total)
            ),
            hint: "remove files, or move them to a larger device: its log is larger too".to_owned(),
        });
    }
    checks
}

fn nvme_checks(nvme: &NvmeFacts) -> Vec<Check> {
    let counts = &nvme.counts;
    let mut checks = Vec::new();
    let exhausted = counts.buffers_exhausted;
    if exhausted >= BUFFERS_EXHAUSTED_MIN && exhausted > counts.io_commands() / BUFFERS_EXHAUSTED_PART_MAX {
        checks.push(Check {
            code: "OB006".to_owned(),
            severity: Severity::Warning,
            summary: format!(
                "NVMe commands wait for buffers: {exhausted} times in {} commands none was left of {}",
                counts.io_commands(),
                bytes(counts.buffer_memory)
            ),
            hint: "let hosts send less at once: `nvme connect --queue-size N --nr-io-queues N`".to_owned(),
        });
    }
    // A thread has its own, and none of the others'.
    let is_full = |(taken, max): &&(u64, u64)| taken * 100 > max * CONNECTIONS_PERCENT_MAX;
    if let Some((taken, max)) = nvme.threads.iter().find(is_full) {
        let of_thread = if nvme.threads.len() > 1 { " of a thread" } else { "" };
        checks.push(Check {
            code: "OB007".to_owned(),
            severity: Severity::Warning,
            summary: format!(
                "nearly every NVMe connection{of_thread} is taken: {taken} of {max}; there are {} hosts",
                counts.hosts
            ),
            hint: "let hosts use fewer queues (`nvme connect --nr-io-queues N`), each is a connection"
                .to_owned(),
        });
    }
    if !nvme.failing.is_empty() {
        checks.push(Check {
            code: "OB008".to_owned(),
            severity: Severity::Error,
            summary: format!(
                "a device has not kept what was written to it, and flushes fail: namespace {}",
                nvme.failing.join(", ")
            ),
            hint: "see the card's log for the device's error, mend it, and start the card again".to_owned(),
        });
    }
    if !nvme.left_out.is_empty() {
        checks.push(Check {
            code: "OB009".to_owned(),
            severity: Severity::Error,
            summary: format!(
                "the device has larger blocks, and it is not served: namespace {}",
                nvme.left_out.join(", ")
            ),
            hint: "move it to a device whose blocks fit, or give it up with `outboard namespace rm`"
                .to_owned(),
        });
    }
    checks
}

/// The worst of the checks in one word.
pub(super) fn health(checks: &[Check]) -> Health {
    match checks.iter().map(|check| check.severity).max() {
        None => Health::Ok,
        Some(Severity::Warning) => Health::Degraded,
        Some(Severity::Error) => Health::Failing,
    }
}
