//! One half as a process: `outboard card` and `outboard host`, by hand or below `outboard up`.
//!
//! Below `up`, and for scripts, it speaks in lines of JSON on standard output ([`WorkerMessage`]); its log goes to
//! standard error either way.

use std::io;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::cli::{CommandError, ConfigOptions};
use crate::config::Config;
use crate::halves::{Half, HalfError, Readiness, run_card, run_host};
use crate::logging;
use crate::terminal::say;

/// What a half says about itself, one line of JSON each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerMessage {
    /// It serves.
    Ready(Readiness),
    /// It gives up.
    Failed {
        /// Why, for people.
        message: String,
    },
}

/// Runs a half until SIGTERM. With a supervisor, it does not outlive it.
pub fn run(
    half: Half,
    options: &ConfigOptions,
    json: bool,
    supervisor: Option<i32>,
) -> Result<(), CommandError> {
    if let Some(pid) = supervisor {
        die_with(pid)?;
    }
    let outcome = run_inner(half, options, json);
    match outcome {
        Err(error) if json => {
            tell(&WorkerMessage::Failed { message: error.to_string() })?;
            Err(CommandError::Told { exit_code: error.exit_code() })
        }
        outcome => outcome,
    }
}

fn run_inner(half: Half, options: &ConfigOptions, json: bool) -> Result<(), CommandError> {
    let config = Config::load(options.config.as_deref(), options.data.as_deref())?;
    logging::start(config.log.level);
    let mut announce = |readiness: Readiness| {
        let told = if json { tell(&WorkerMessage::Ready(readiness)) } else { say(&in_words(&readiness)) };
        if let Err(error) = told {
            // Nobody listens, which is no reason not to serve.
            tracing::warn!(%error, "cannot say that this half is ready");
        }
    };
    match half {
        Half::Card => run_card(&config.card(), &mut announce)?,
        Half::Host => run_host(&config.host(), &mut announce)?,
    }
    Ok(())
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
    let Readiness { half, pid, incarnation, link, status, .. } = readiness;
    let mut text = format!("The {half} is ready: pid {pid}, incarnation {incarnation}, link {link}");
    if let Some(address) = status {
        text += &format!(", status http://{address}/status");
    }
    text + ". Ctrl-C stops it."
}
