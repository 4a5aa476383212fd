//! Coded checks: what wants attention, and what to do. A code never changes its meaning.

use serde::{Deserialize, Serialize};

use super::{Freshness, Health, Snapshot};

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
