//! What a supervisor tells: to people in words, to scripts as lines of JSON.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::halves::{Readiness, Role};
use crate::terminal::{BAD, FAINT, GOOD, HEADING, duration, say, styled, table, timestamp, warn};

/// Something worth telling.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Notice<'notice> {
    /// The card's device was formatted, as was asked for.
    Formatted { message: &'notice str },
    /// Both halves serve, and all chunk servers.
    Ready {
        data: &'notice Path,
        card: &'notice Readiness,
        host: &'notice Readiness,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        servers: &'notice [&'notice Readiness],
    },
    /// A half serves again.
    Back(&'notice Readiness),
    /// A half ended, and will be started again.
    Died {
        half: Role,
        pid: Option<u32>,
        /// How it ended.
        end: &'notice str,
        /// Why, if it said so.
        reason: Option<&'notice str>,
        /// Whether it said the same the last time.
        same_reason: bool,
        /// When.
        time: String,
        /// After how long a life.
        lived_ms: u64,
        /// When it will be started again.
        restart_in_ms: u64,
    },
    /// Everything is being stopped.
    Stopping,
    /// A half did not stop by itself.
    Killed { half: Role, pid: u32 },
    /// A half ended as it was told to.
    HalfStopped { half: Role, pid: Option<u32>, end: &'notice str },
    /// Nothing runs any more.
    Stopped,
}

/// Tells notices.
#[derive(Debug)]
pub(super) struct Teller {
    pub(super) json: bool,
}

impl Teller {
    /// Tells a notice. A reader that went away is no reason to stop serving.
    pub(super) fn tell(&self, notice: &Notice<'_>) {
        let told = if self.json {
            serde_json::to_string(notice).map_err(io::Error::from).and_then(|line| say(&line))
        } else if let Notice::Ready { data, card, host, servers } = notice {
            say(&welcome(data, card, host, servers))
        } else {
            warn(&format!("{} | {}", styled(HEADING, "up  "), in_words(notice)));
            Ok(())
        };
        if let Err(error) = told {
            tracing::debug!(%error, "nobody reads what up tells");
        }
    }

    /// Passes a half's log line on, marked as its own.
    pub(super) fn pass_on(&self, half: Role, line: &str) {
        warn(&format!("{} | {line}", styled(FAINT, &half.to_string())));
    }
}

/// The time of now, as notices have it.
pub(super) fn now_in_words() -> String {
    timestamp(SystemTime::now())
}

fn in_words(notice: &Notice<'_>) -> String {
    let process = |half: &Role, pid: &Option<u32>| match pid {
        Some(pid) => format!("the {half} (pid {pid})"),
        None => format!("the {half}"),
    };
    let milliseconds = |count: &u64| duration(Duration::from_millis(*count));
    match notice {
        Notice::Formatted { message } => (*message).to_owned(),
        Notice::Ready { .. } => "both halves are ready".to_owned(),
        Notice::Back(readiness) => back_in_words(readiness),
        Notice::Died { half, pid, end, reason, same_reason, time, lived_ms, restart_in_ms } => {
            let reason = match reason {
                Some(_) if *same_reason => ", for the same reason".to_owned(),
                Some(reason) => format!(": {reason}"),
                None => String::new(),
            };
            format!(
                "{} {end} at {time} after {}{}\n     | starting it again in {}",
                styled(BAD, &process(half, pid)),
                milliseconds(lived_ms),
                reason.replace('\n', "\n     | "),
                milliseconds(restart_in_ms)
            )
        }
        Notice::Stopping => "stopping both halves; a second Ctrl-C kills them".to_owned(),
        Notice::Killed { half, pid } => {
            format!("{} has not stopped yet: killing it", styled(BAD, &process(half, &Some(*pid))))
        }
        Notice::HalfStopped { half, pid, end } => format!("{} {end}", process(half, pid)),
        Notice::Stopped => styled(GOOD, "stopped"),
    }
}

fn back_in_words(readiness: &Readiness) -> String {
    let Readiness { half, pid, incarnation, status, .. } = readiness;
    let mut text = format!("the {half} is back: pid {pid}, incarnation {incarnation}");
    if let Some(address) = status {
        text += &format!(", status http://{address}/status");
    }
    text
}

fn welcome(data: &Path, card: &Readiness, host: &Readiness, servers: &[&Readiness]) -> String {
    let mut rows = vec![vec!["link".to_owned(), card.link.clone()]];
    if let Some(address) = card.status {
        rows.push(vec!["status".to_owned(), format!("http://{address}/status")]);
    }
    let servers = servers.iter().flat_map(|server| &server.services);
    let services = card.services.iter().chain(&host.services).chain(servers);
    rows.extend(services.clone().map(|service| vec![service.service.clone(), service.address.clone()]));
    if services.clone().next().is_none() {
        rows.push(vec!["services".to_owned(), "none yet".to_owned()]);
    }
    let mut commands = vec![status_command(card)];
    commands.extend(services.map(|service| service.next.clone()).filter(|next| !next.is_empty()));
    format!(
        "{}: card (pid {}, incarnation {}) and host (pid {}, incarnation {}), data in {}\n\n{}\n\n{}\n  {}\n\n{}",
        styled(GOOD, "Outboard is up"),
        card.pid,
        card.incarnation,
        host.pid,
        host.incarnation,
        data.display(),
        table(&["endpoint", "address"], &rows),
        styled(HEADING, "What to type next, in another terminal:"),
        commands.join("\n  "),
        styled(FAINT, "Ctrl-C stops both halves.")
    )
}

fn status_command(card: &Readiness) -> String {
    let default = crate::config::Config::default().status.listen;
    match card.status {
        Some(address) if address != default => format!("outboard status --endpoint {address}"),
        _ => "outboard status".to_owned(),
    }
}
