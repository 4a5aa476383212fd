//! `outboard up`: both halves, and chunk servers, as child processes, kept running.
//!
//! ```text
//!   signals ─┐
//!   ends ────┼─▶ poll ─▶ Event ─▶ Supervision (policy, pure) ─▶ Action ─▶ start, signal, tell
//!   pipes ───┘
//! ```
//!
//! One thread, the main one, does everything: the halves ask the kernel to die with the thread that started them.

mod child;
mod notice;
mod policy;

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use self::child::{Child, Output, Recipe, end_in_words, own_executable, timespec};
use self::notice::{Notice, Teller, now_in_words};
use self::policy::{Action, Cause, Event, Supervision};
use crate::cli::EXIT_CONFIGURATION;
use crate::config::Config;
use crate::halves::{Readiness, Role};
use crate::lock::{LockError, PidLock, holder_in_words};
use crate::logging;
use crate::signals::StopSignal;
use crate::worker::WorkerMessage;

/// Why `up` ended otherwise than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The data directory cannot be used.
    #[error("cannot use the data directory {}: {source}", path.display())]
    Directory {
        /// Which directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another `up` runs there.
    #[error(
        "{} runs `outboard up` on the data directory {} already\n\
         hint: stop it, or use another directory with --data DIR",
        holder_in_words(*.pid), data.display()
    )]
    Busy {
        /// The directory.
        data: PathBuf,
        /// Who holds it, if that is known.
        pid: Option<u32>,
    },
    /// A half cannot run as it is configured.
    #[error("the {half} {}: {message}", failures_in_words(*.failures))]
    GaveUp {
        /// Which half.
        half: Role,
        /// How often it failed.
        failures: usize,
        /// What it said.
        message: String,
    },
    /// A half did not stop by itself.
    #[error("the {half} had to be killed")]
    Killed {
        /// Which half, the first if it was both.
        half: Role,
    },
    /// The kernel refused something that should always work.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl UpError {
    /// Whether a person must change something before another start can go better.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Directory { .. } | Self::Busy { .. } | Self::GaveUp { .. })
    }

    fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}

/// Starts both halves, and chunk servers if volumes are served, and keeps them running until SIGTERM or Ctrl-C. With `format`, the card formats its device when it
/// is started first, and never again.
pub fn up(config: &Config, format: bool, json: bool) -> Result<(), UpError> {
    logging::start(config.log.level);
    let stop = StopSignal::install().map_err(UpError::system("catch signals"))?;
    let directory = |source| UpError::Directory { path: config.data.clone(), source };
    std::fs::create_dir_all(&config.data).map_err(directory)?;
    let _lock = PidLock::acquire(&config.data.join("up.lock")).map_err(|error| match error {
        LockError::Held { pid, .. } => UpError::Busy { data: config.data.clone(), pid },
        LockError::Io { source, .. } => directory(source),
    })?;
    let servers = if config.volumes.enabled { config.volumes.servers.clone() } else { Vec::new() };
    let roles = roles(servers.len());
    let recipe = Recipe {
        executable: own_executable().map_err(UpError::system("find the file of this process"))?,
        config: config.source.file().map(ToOwned::to_owned),
        data: config.data.clone(),
        volumes: config.volumes.enabled,
        servers,
    };
    Supervisor {
        recipe,
        stop,
        teller: Teller { json },
        policy: Supervision::new(Instant::now(), &roles),
        seats: roles.iter().map(|role| Seat::new(*role, is_begun_anew(*role, format))).collect(),
        verdict: Ok(()),
    }
    .run()
}

/// Both halves, and so many chunk servers.
fn roles(servers: usize) -> Vec<Role> {
    let servers = (1..).take(servers).map(Role::ChunkServer);
    [Role::Card, Role::Host].into_iter().chain(servers).collect()
}

/// Whether a device is formatted when its process is started first: never what volumes lie on.
fn is_begun_anew(role: Role, format: bool) -> bool {
    format && role == Role::Card
}

/// The processes, and what the policy decides about them.
struct Supervisor {
    recipe: Recipe,
    stop: StopSignal,
    teller: Teller,
    policy: Supervision,
    seats: Vec<Seat>,
    /// What `run` will return.
    verdict: Result<(), UpError>,
}

/// One half's place, taken or not.
struct Seat {
    half: Role,
    /// Whether the next process is told to format its device. Over once it has, and once it served: what is there from
    /// then on was put there afterwards.
    format: bool,
    child: Option<Child>,
    readiness: Option<Readiness>,
    /// What the last process said about its failure.
    failure: Option<String>,
    /// Whether it said that only a person can change that.
    lasting: bool,
    /// What has been told of it already.
    told: Option<String>,
    /// How the last process ended.
    last_end: LastEnd,
}

#[derive(Default)]
struct LastEnd {
    pid: Option<u32>,
    lived: Duration,
    words: String,
    by_kill: bool,
}

impl Seat {
    fn new(half: Role, format: bool) -> Self {
        Self {
            half,
            format,
            child: None,
            readiness: None,
            failure: None,
            lasting: false,
            told: None,
            last_end: LastEnd::default(),
        }
    }
}

impl Supervisor {
    fn run(mut self) -> Result<(), UpError> {
        let mut events = vec![Event::Tick];
        loop {
            for event in std::mem::take(&mut events) {
                for action in self.policy.apply(Instant::now(), event) {
                    if action == Action::Finish {
                        self.teller.tell(&Notice::Stopped);
                        return self.verdict;
                    }
                    events.extend(self.perform(action)?);
                }
            }
            if events.is_empty() {
                self.sleep().map_err(UpError::system("wait for the halves"))?;
                events = self.gather()?;
            }
        }
    }

    /// Waits until something can be read, or the policy wants to know that time has passed.
    fn sleep(&self) -> io::Result<()> {
        let children = self.seats.iter().filter_map(|seat| seat.child.as_ref());
        let mut descriptors = vec![PollFd::new(&self.stop, PollFlags::IN)];
        descriptors.extend(
            children
                .flat_map(Child::descriptors)
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)),
        );
        let timeout =
            self.policy.next_tick().map(|tick| timespec(tick.saturating_duration_since(Instant::now())));
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Everything that has happened.
    fn gather(&mut self) -> Result<Vec<Event>, UpError> {
        let mut events = vec![Event::Tick];
        if self.stop.take().map_err(UpError::system("read signals"))? {
            events.push(Event::StopRequested);
        }
        for seat in &mut self.seats {
            events.extend(seat.gather(&self.teller).map_err(UpError::system("follow the halves"))?);
        }
        Ok(events)
    }

    fn perform(&mut self, action: Action) -> Result<Option<Event>, UpError> {
        match action {
            Action::Start(half) => return Ok(self.start(half)),
            Action::Terminate(half) => self.signal(half, Signal::TERM)?,
            Action::Kill(half) => self.kill(half)?,
            Action::AnnounceReady => self.announce_ready(),
            Action::AnnounceBack(half) => {
                if let Some(readiness) = self.readiness(half) {
                    self.teller.tell(&Notice::Back(readiness));
                }
            }
            Action::AnnounceRestart(half, delay) => self.announce_restart(half, delay),
            Action::AnnounceStopping => self.teller.tell(&Notice::Stopping),
            Action::AnnounceStopped(half) => self.announce_stopped(half),
            Action::GiveUp(half, failures) => {
                let why = |seat: &Seat| seat.failure.clone().unwrap_or_else(|| seat.last_end.words.clone());
                let message = self.seat(half).map(why).unwrap_or_default();
                self.verdict = Err(UpError::GaveUp { half, failures, message });
            }
            // The loop ends with it.
            Action::Finish => {}
        }
        Ok(None)
    }

    fn start(&mut self, half: Role) -> Option<Event> {
        let format = self.seat(half).is_some_and(|seat| seat.format);
        let started = Child::start(&self.recipe, half, format);
        let seat = self.seat_mut(half)?;
        seat.readiness = None;
        match started {
            Ok(child) => {
                seat.child = Some(child);
                None
            }
            Err(error) => {
                seat.failure = None;
                seat.lasting = false;
                seat.last_end =
                    LastEnd { words: format!("could not be started ({error})"), ..LastEnd::default() };
                Some(Event::Exited { half, cause: Cause::Crash })
            }
        }
    }

    fn signal(&self, half: Role, signal: Signal) -> Result<(), UpError> {
        match self.seat(half).and_then(|seat| seat.child.as_ref()) {
            Some(child) => child.signal(signal).map_err(UpError::system("signal a half")),
            None => Ok(()),
        }
    }

    fn kill(&self, half: Role) -> Result<(), UpError> {
        let child = self.seat(half).and_then(|seat| seat.child.as_ref());
        let Some(pid) = child.map(Child::pid) else { return Ok(()) };
        self.teller.tell(&Notice::Killed { half, pid });
        self.signal(half, Signal::KILL)
    }

    fn readiness(&self, half: Role) -> Option<&Readiness> {
        self.seat(half)?.readiness.as_ref()
    }

    fn announce_ready(&self) {
        let is_chunk_server = |seat: &&Seat| matches!(seat.half, Role::ChunkServer(_));
        let servers: Vec<&Readiness> =
            self.seats.iter().filter(is_chunk_server).filter_map(|seat| seat.readiness.as_ref()).collect();
        if let (Some(card), Some(host)) = (self.readiness(Role::Card), self.readiness(Role::Host)) {
            let data = &self.recipe.data;
            self.teller.tell(&Notice::Ready { data, card, host, servers: &servers });
        }
    }

    fn announce_stopped(&mut self, half: Role) {
        let Some(seat) = self.seat(half) else { return };
        let LastEnd { pid, words, by_kill, .. } = &seat.last_end;
        let by_kill = *by_kill;
        self.teller.tell(&Notice::HalfStopped { half, pid: *pid, end: words });
        if by_kill && self.verdict.is_ok() {
            self.verdict = Err(UpError::Killed { half });
        }
    }

    fn announce_restart(&mut self, half: Role, delay: Duration) {
        let Some(Seat { failure, told, last_end, .. }) = self.seat(half) else { return };
        self.teller.tell(&Notice::Died {
            half,
            pid: last_end.pid,
            end: &last_end.words,
            reason: failure.as_deref(),
            same_reason: failure.is_some() && failure == told,
            time: now_in_words(),
            lived_ms: milliseconds(last_end.lived),
            restart_in_ms: milliseconds(delay),
        });
        if let Some(seat) = self.seat_mut(half) {
            seat.told.clone_from(&seat.failure);
        }
    }

    fn seat(&self, half: Role) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.half == half)
    }

    fn seat_mut(&mut self, half: Role) -> Option<&mut Seat> {
        self.seats.iter_mut().find(|seat| seat.half == half)
    }
}

impl Seat {
    /// What the half's process said and whether it ended. Its end comes last, after all that it said.
    fn gather(&mut self, teller: &Teller) -> io::Result<Vec<Event>> {
        let Some(child) = &mut self.child else { return Ok(Vec::new()) };
        let exit = child.exit_status()?;
        let mut output = child.read()?;
        if exit.is_some() {
            // What it wrote before its end is all in the pipes by now.
            while let more = child.read()?
                && !more.is_empty()
            {
                output.messages.extend(more.messages);
                output.log.extend(more.log);
            }
        }
        let (pid, lived) = (child.pid(), child.started.elapsed());
        let mut events = self.listen(output, teller);
        if let Some(status) = exit {
            self.child = None;
            let by_kill = status.signal() == Some(Signal::KILL.as_raw());
            self.last_end = LastEnd { pid: Some(pid), lived, words: end_in_words(status), by_kill };
            let cause = match status.code() == Some(i32::from(EXIT_CONFIGURATION)) {
                true if self.lasting => Cause::Lasting,
                true => Cause::Configuration,
                false => Cause::Crash,
            };
            events.push(Event::Exited { half: self.half, cause });
        }
        Ok(events)
    }

    fn listen(&mut self, output: Output, teller: &Teller) -> Vec<Event> {
        let mut events = Vec::new();
        for line in output.log {
            teller.pass_on(self.half, &line);
        }
        for line in output.messages {
            match serde_json::from_str(&line) {
                Ok(WorkerMessage::Formatted { message }) => {
                    self.format = false;
                    teller.tell(&Notice::Formatted { message: &message });
                }
                Ok(WorkerMessage::Ready(readiness)) => {
                    self.format = false;
                    // A chunk server does not know which one it is.
                    self.readiness = Some(Readiness { half: self.half, ..readiness });
                    self.failure = None;
                    self.lasting = false;
                    events.push(Event::Ready(self.half));
                }
                Ok(WorkerMessage::Failed { message, lasting }) => {
                    self.failure = Some(message);
                    self.lasting = lasting;
                }
                // Something else printed to standard output; it may still help somebody.
                Err(_) => teller.pass_on(self.half, &line),
            }
        }
        events
    }
}

fn failures_in_words(failures: usize) -> String {
    if failures == 1 { "cannot run".to_owned() } else { format!("failed {failures} times in a row") }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
