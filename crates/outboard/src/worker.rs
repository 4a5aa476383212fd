//! One half as a process: `outboard card` and `outboard host`, by hand or below `outboard up`; and chunk servers likewise.
//!
//! Below `up`, and for scripts, it speaks in lines of JSON on standard output ([`WorkerMessage`]); its log goes to
//! standard error either way.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::cli::{CommandError, HalfOptions};
use crate::halves::{Announcement, HalfError, Readiness, ServiceEndpoint, run_card, run_host};
use crate::logging;
use crate::terminal::say;

/// What a half says about itself, one line of JSON each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerMessage {
    /// The card formatted its device, because that was asked for: from now on it must not be asked again.
    Formatted {
        /// What, and over what, for people.
        message: String,
    },
    /// It serves.
    Ready(Readiness),
    /// It gives up.
    Failed {
        /// Why, for people.
        message: String,
        /// Whether another start fails the same way until a person has changed something.
        #[serde(default)]
        lasting: bool,
    },
}

/// Which half, and what only that half is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfToRun {
    /// The card.
    Card {
        /// Whether its device is formatted, whatever it holds.
        format: bool,
    },
    /// The host.
    Host,
}

/// Runs a half until SIGTERM. With a supervisor, it does not outlive it.
pub fn run(half: HalfToRun, options: &HalfOptions) -> Result<(), CommandError> {
    run_as(options.supervisor, options.json, || run_inner(half, options))
}

/// Runs a process of Outboard's, whose failure is told as it was asked for.
pub(crate) fn run_as(
    supervisor: Option<i32>,
    json: bool,
    run: impl FnOnce() -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    if let Some(pid) = supervisor {
        die_with(pid)?;
    }
    match run() {
        Err(error) if json => {
            let lasting = matches!(&error, CommandError::Half(error) if error.is_lasting());
            tell(&WorkerMessage::Failed { message: error.to_string(), lasting })?;
            Err(CommandError::Told { exit_code: error.exit_code() })
        }
        outcome => outcome,
    }
}

fn run_inner(half: HalfToRun, options: &HalfOptions) -> Result<(), CommandError> {
    let HalfOptions { config, volumes, json, .. } = options;
    let (mut config, json) = (config.load()?, *json);
    config.volumes.enabled |= *volumes;
    logging::start(config.log.level);
    match half {
        HalfToRun::Card { format } => {
            run_card(&config.card(), format, &mut |announcement| announce(announcement, json))?;
        }
        HalfToRun::Host => {
            run_host(&config.host(), &mut |readiness| announce(Announcement::Ready(readiness), json))?;
        }
    }
    Ok(())
}

pub(crate) fn announce(announcement: Announcement, json: bool) {
    let told = match announcement {
        Announcement::Ready(readiness) if json => tell(&WorkerMessage::Ready(readiness)),
        Announcement::Ready(readiness) => say(&in_words(&readiness)),
        Announcement::Formatted(formatted) if json => {
            tell(&WorkerMessage::Formatted { message: formatted.to_string() })
        }
        // The log has told it.
        Announcement::Formatted(_) => Ok(()),
    };
    if let Err(error) = told {
        // Nobody listens, which is no reason not to serve.
        tracing::warn!(%error, "cannot say how far this half is");
    }
}

/// The kernel kills this process when its supervisor ends in whatever way. No farewell: a half left behind would hold its
/// locks against the next supervisor, and being killed loses nothing that was promised.
fn die_with(supervisor: i32) -> Result<(), HalfError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(io::Error::from)
        .map_err(HalfError::system("tie this process to its supervisor"))?;
    // It may have ended before the line above.
    if getppid().map(Pid::as_raw_pid) != Some(supervisor) {
        let gone = io::Error::new(io::ErrorKind::NotFound, format!("the process {supervisor} is gone"));
        return Err(HalfError::system("run below a supervisor")(gone));
    }
    Ok(())
}

fn tell(message: &WorkerMessage) -> io::Result<()> {
    say(&serde_json::to_string(message)?)
}

fn in_words(readiness: &Readiness) -> String {
    let Readiness { half, pid, incarnation, link, status, services } = readiness;
    let mut text = format!("The {half} is ready: pid {pid}, incarnation {incarnation}");
    if !link.is_empty() {
        text += &format!(", link {link}");
    }
    if let Some(address) = status {
        text += &format!(", status http://{address}/status");
    }
    for ServiceEndpoint { service, address, .. } in services {
        text += &format!(", {service} on {address}");
    }
    text + ". Ctrl-C stops it."
}
