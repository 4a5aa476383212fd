//! NVMe/TCP at the card: a target on the card's reactor, and the devices behind its namespaces.
//!
//! ```text
//!   initiators ─▶ TcpNet ─▶ TargetDriver ─▶ Devices ─▶ a file, a disk, memory, a file of the card's file system
//!                              │                                                       (a Shard, one a thread)
//!                              │
//!                              └─▶ Recorder ─▶ Catalogue: ids and reservations that outlive the card
//!   outboard namespace ─▶ control socket ─▶ Directory ─▶ the Shard whose subsystem it is
//! ```

pub mod admin;
mod catalogue;
mod command;
mod devices;
mod hints;
mod recorder;
mod serving;
mod shard;
mod threads;
mod volumes;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ob_core::{Instant, NetListenError};
use ob_files_card::LocalFiles;
use ob_io::{Event, Handle, ReactorError, TcpNet};
use ob_nvme::driver::TargetDriver;
use ob_nvme::target::TargetCounts;
use ob_nvme::target::control::{AdminError, PortKey};

use ob_programs::Workshop;
use ob_pushdown::target::{FunctionCounts, Functions, Shelf};

use crate::config::CardConfig;
use crate::halves::{CardPart, ServiceEndpoint};
use crate::status::NvmeFacts;
use admin::{AdminAnswer, AdminMessage, AdminOutbox, AdminRequest};
use catalogue::{Catalogue, NamespacePlace};
pub(crate) use catalogue::{hex, unhex, uuid_text};
pub use command::NamespaceCommand;
pub(crate) use command::run;
use devices::Devices;
pub use devices::NamespaceDeviceError;
use recorder::Recorder;
use serving::AnnouncedSubsystem;
pub(crate) use serving::{connect_command, port_spec, subsystem_spec};
pub(crate) use shard::challenge;
use shard::{Planned, Shard, Tools};
use threads::ShardThread;

/// What a thread serves with.
type Driver = TargetDriver<TcpNet, Devices, Option<Functions>>;

/// The namespace that the configuration names.
const CONFIGURED: u32 = 1;
/// The first port; others that serve subsystems come after the discovery service's.
const SUBSYSTEM_PORT: PortKey = PortKey(1);
const DISCOVERY_PORT: PortKey = PortKey(2);

/// Why nothing is served over NVMe/TCP.
#[derive(Debug, thiserror::Error)]
pub enum NvmeError {
    /// The namespace's device cannot be used.
    #[error(transparent)]
    Device(#[from] NamespaceDeviceError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {purpose}: {source}\nhint: {fix}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What would have been served there.
        purpose: &'static str,
        /// Why not.
        source: Box<NetListenError>,
        /// The line to change.
        fix: String,
    },
    /// What the card knows of its namespaces cannot be read or written.
    #[error("cannot use {}: {source}\nhint: it holds the ids and reservations of namespaces; {hint}", path.display())]
    Catalogue {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The configuration contradicts itself.
    #[error("{what}\nhint: {fix}")]
    Configuration {
        /// How.
        what: &'static str,
        /// The line to change.
        fix: String,
    },
    /// The target refuses what it is to serve.
    #[error("cannot serve that: {0}\nhint: {hint}", hint = hints::of_refusal(.0))]
    Refused(#[from] AdminError),
    /// There is no such namespace.
    #[error("there is no namespace {0}\nhint: `outboard namespace list` shows those that there are")]
    Unknown(u32),
    /// The thread that writes the catalogue has ended.
    #[error("the thread that writes down what is known of namespaces has ended\nhint: restart the card")]
    Recorder,
    /// A thread that serves subsystems cannot be started, or has ended.
    #[error("a thread that serves namespaces has ended\nhint: its last lines in the log say why")]
    Thread,
    /// A thread's reactor cannot be made.
    #[error(
        "cannot make a reactor for a thread that serves namespaces: {0}\nhint: `[nvme] threads` says how many there are"
    )]
    Reactor(Box<ReactorError>),
    /// What it is to lie on cannot be.
    #[error("{} is neither a path nor `memory` nor a file of the card\nhint: such as file:/volumes/a", .0.display())]
    BadDevice(PathBuf),
    /// Another thread has the card's files.
    #[error(
        "file:/{0} lies on the card's own files, which only the card's own thread reaches\n\
         hint: `thread = 1` in the [[nvme.subsystem]] that it is for"
    )]
    FilesElsewhere(String),
    /// A namespace that was removed, or could not be added, has left its file.
    #[error(
        "{} is there already, of a namespace that was removed or could not be added\n\
         hint: `--device {}` serves it, with what it holds; or move it away first", .0.display(), .0.display()
    )]
    LeftOver(PathBuf),
    /// A namespace cannot get another size.
    #[error("cannot resize namespace {nsid}: {source}\nhint: {fix}")]
    Resize {
        /// Which.
        nsid: u32,
        /// Why not.
        source: io::Error,
        /// What to do.
        fix: &'static str,
    },
}

/// What the card serves over NVMe/TCP.
pub(crate) struct NvmeService {
    /// What the card's own reactor serves.
    first: Shard,
    others: Vec<ShardThread>,
    /// All subsystems, in the order of the configuration.
    subsystems: Vec<AnnouncedSubsystem>,
    discovery: SocketAddr,
}

impl NvmeService {
    /// Opens the devices, and listens; who is to be asked about namespaces comes with it. The card's files are mounted; `wait` lets
    /// them go on.
    pub(crate) fn start(
        config: &CardConfig,
        handle: &Handle,
        workshop: &Workshop,
        files: LocalFiles,
        wait: &mut dyn FnMut(),
    ) -> Result<(Self, Directory), NvmeError> {
        let mut catalogue = Catalogue::load(&config.directory.join("nvme.json"))?;
        let mut planned = plan(config, &mut catalogue)?.into_iter();
        let threads = planned.len();
        let jobs = recorder::start(catalogue).map_err(|_| NvmeError::Recorder)?;
        let (waker, for_admin) = (handle.waker(), handle.waker());
        let recorder = Recorder::new(jobs.clone(), move || waker.wake());
        let (outbox, inbox) = admin::mailbox(move || for_admin.wake());
        let shelf = Shelf::default();
        let programs = || config.nvme.functions.then(|| (shelf.clone(), workshop.clone()));
        let (programs_here, files) = (programs(), Some((files, wait as &mut dyn FnMut())));
        let tools = Tools { config, handle, recorder, inbox, threads, programs: programs_here, files };
        let mut first = Shard::start(tools, planned.next().unwrap_or_default())?;
        let discovery = first.listen_for_discovery()?;
        let mut all = vec![(outbox, first.subsystems())];
        let mut others = Vec::new();
        for (number, planned) in (2..).zip(planned) {
            // One that failed to start ends those before it: nobody tells them to serve.
            let (thread, outbox, subsystems) =
                ShardThread::start(number, threads, config, (jobs.clone(), programs()), planned, handle)?;
            others.push(thread);
            all.push((outbox, subsystems));
        }
        let mut subsystems: Vec<AnnouncedSubsystem> =
            all.iter().flat_map(|(_, of_one)| of_one.clone()).collect();
        let names: Vec<String> =
            config.nvme.all_subsystems().iter().map(|one| one.nqn.as_str().to_owned()).collect();
        subsystems.sort_by_key(|one| names.iter().position(|name| name == one.nqn()));
        first.tell_of(&subsystems)?;
        for other in &others {
            other.tell_of(subsystems.clone())?;
        }
        let directory = Directory { names, threads: all };
        Ok((Self { first, others, subsystems, discovery }, directory))
    }

    /// What there is to know, for the status; what the other threads tell is a moment old.
    pub(crate) fn facts(&self) -> NvmeFacts {
        let mut all = vec![self.first.facts()];
        all.extend(self.others.iter().map(ShardThread::facts));
        let mut counts = TargetCounts::default();
        let mut functions: Option<FunctionCounts> = None;
        let (mut threads, mut failing, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for one in all {
            counts += one.counts;
            if let Some(of_one) = one.functions {
                *functions.get_or_insert_default() += of_one;
            }
            threads.push((one.counts.connections, one.connections_max));
            failing.extend(one.failing);
            left_out.extend(one.left_out);
        }
        NvmeFacts {
            address: self.subsystems.first().map_or(self.discovery, AnnouncedSubsystem::address),
            discovery: self.discovery,
            namespaces: counts.namespaces as usize,
            connections_max: shard::CONNECTIONS_MAX as u64,
            threads,
            failing,
            left_out,
            counts,
            functions,
        }
    }

    /// Whether all threads serve.
    pub(crate) fn check(&self) -> Result<(), NvmeError> {
        if self.others.iter().any(ShardThread::has_failed) { Err(NvmeError::Thread) } else { Ok(()) }
    }

    /// Tells the other threads to finish.
    pub(crate) fn stop_others(&self) {
        self.others.iter().for_each(ShardThread::stop);
    }

    /// Waits for the other threads, and gives the devices of the card's own reactor back.
    pub(crate) fn into_devices(self) -> Devices {
        self.others.into_iter().for_each(ShardThread::join);
        self.first.into_devices()
    }
}

/// What the card's own reactor serves; the other threads have theirs.
impl CardPart for NvmeService {
    fn handle(&mut self, event: &Event) -> bool {
        self.first.handle(event)
    }

    fn turn(&mut self, now: Instant) -> bool {
        self.first.turn(now)
    }

    fn next_due(&self) -> Option<Instant> {
        self.first.next_due()
    }

    fn is_idle(&self) -> bool {
        self.first.is_idle()
    }

    fn endpoints(&self) -> Vec<ServiceEndpoint> {
        let endpoint = |subsystem: &AnnouncedSubsystem| ServiceEndpoint {
            service: "nvme".to_owned(),
            address: format!(
                "{} ({}), discovery at {}",
                subsystem.address(),
                subsystem.device(),
                self.discovery
            ),
            next: subsystem.connect_command(),
        };
        self.subsystems.iter().map(endpoint).collect()
    }
}

/// Who serves which subsystem, for requests of administrators.
pub(crate) struct Directory {
    /// Names of subsystems, in the order of the configuration.
    names: Vec<String>,
    threads: Vec<(AdminOutbox, Vec<AnnouncedSubsystem>)>,
}

impl Directory {
    /// Has a request answered by the thread that it is about.
    pub(crate) fn ask(&self, message: AdminMessage) -> AdminAnswer {
        match message {
            AdminMessage { subsystem: None, request: AdminRequest::ListNamespaces } => {
                let listed = self.names.iter().map(|name| self.ask_of(name, AdminRequest::ListNamespaces));
                Ok(listed.collect::<Result<Vec<_>, _>>()?.concat())
            }
            AdminMessage { subsystem: Some(name), request } => self.ask_of(&name, request),
            AdminMessage { subsystem: None, request } => {
                self.ask_of(self.names.first().map_or("", String::as_str), request)
            }
        }
    }

    fn ask_of(&self, name: &str, request: AdminRequest) -> AdminAnswer {
        let owner = self.threads.iter().find(|(_, served)| served.iter().any(|one| one.nqn() == name));
        match owner {
            Some((outbox, _)) => outbox.ask(AdminMessage { subsystem: Some(name.to_owned()), request }),
            None => Err(format!("there is no subsystem {name}\nhint: there are {}", self.names.join(", "))),
        }
    }
}

/// What each thread is to serve, the card's own first; threads that would have nothing are left out.
fn plan(config: &CardConfig, catalogue: &mut Catalogue) -> Result<Vec<Vec<Planned>>, NvmeError> {
    let configs = config.nvme.all_subsystems();
    let is_only = configs.len() == 1;
    let ports = serving::ports(config, &configs);
    let threads = serving::threads(config, &configs)?;
    let mut planned: Vec<Vec<Planned>> = (0..config.nvme.threads.max(1)).map(|_| Vec::new()).collect();
    for ((subsystem, port), thread) in configs.into_iter().zip(ports).zip(threads) {
        let number = catalogue.adopt(&subsystem.nqn, is_only)?;
        let serial = catalogue.serial(number);
        let place = NamespacePlace { subsystem: number, nsid: CONFIGURED };
        let configured = catalogue.configured(place, &serving::lies_on(config, &subsystem.device))?;
        let added = catalogue.added(number)?;
        if let Some(of_thread) = planned.get_mut(thread) {
            of_thread.push(Planned { config: subsystem, port, number, serial, configured, added });
        }
    }
    catalogue.catch_up()?;
    let mut is_first = true;
    planned.retain(|of_thread| std::mem::take(&mut is_first) || !of_thread.is_empty());
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use ob_files_card::VolumeError;
    use ob_io::OpenError;
    use ob_wire_link::files::FileError;

    use super::*;
    use crate::config::ByteSize;

    /// What went wrong, for a person: what, where, and what to do about it.
    #[test]
    fn every_error_says_what_to_do() {
        let path = || PathBuf::from("/a/path");
        let source = || io::Error::from(io::ErrorKind::PermissionDenied);
        let fix = || "a fix".to_owned();
        let devices = [
            NamespaceDeviceError::Open { source: OpenError::Missing(path()), fix: fix() },
            NamespaceDeviceError::Lost { path: path() },
            NamespaceDeviceError::Blocks { device: fix(), device_block: 4096, block: 512 },
            NamespaceDeviceError::Volume { path: fix(), source: VolumeError::TooSmall, fix: fix() },
            NamespaceDeviceError::Place { path: path(), source: source(), fix: fix() },
            NamespaceDeviceError::TooMuchMemory { size: ByteSize(2), memory: ByteSize(1), fix: fix() },
        ];
        let refusals = [
            AdminError::UnknownSubsystem,
            AdminError::UnknownPort(1),
            AdminError::SubsystemExists(ob_wire_nvme::text::Nqn::discovery()),
            AdminError::PortExists(1),
            AdminError::ControllerRange { first: 1, last: 0 },
            AdminError::BadText("serial"),
            AdminError::UnknownNamespace(2),
            AdminError::BadNamespaceId { nsid: 0, max: 1 },
            AdminError::NamespacesFull,
            AdminError::DuplicateId,
            AdminError::BadBlockLen(1),
            AdminError::BadBlocks(0),
            AdminError::BadAnaGroup { group: 0, max: 1 },
            AdminError::BadReservations("cut off"),
        ];
        let kinds = [
            io::ErrorKind::Unsupported,
            io::ErrorKind::InvalidInput,
            io::ErrorKind::StorageFull,
            io::ErrorKind::FileTooLarge,
            io::ErrorKind::Other,
        ];
        let sizes = kinds.map(|kind| NvmeError::Resize {
            nsid: 1,
            fix: hints::of_resizing(&kind.into()),
            source: kind.into(),
        });
        let volumes =
            [FileError::NoSpace, FileError::TooLarge, FileError::ReadOnly, FileError::Busy, FileError::Io];
        let volumes = volumes.map(|error| NvmeError::Resize {
            nsid: 1,
            fix: hints::of_resizing_volume(error),
            source: io::Error::other(error),
        });
        let others = [
            NvmeError::Catalogue { path: path(), source: source(), hint: "put it back" },
            NvmeError::Configuration { what: "no", fix: fix() },
            NvmeError::Unknown(1),
            NvmeError::Recorder,
            NvmeError::Thread,
            NvmeError::BadDevice(path()),
            NvmeError::FilesElsewhere(fix()),
            NvmeError::LeftOver(path()),
        ];
        let errors =
            devices.into_iter().map(NvmeError::from).chain(refusals.into_iter().map(NvmeError::from));
        for error in errors.chain(sizes).chain(volumes).chain(others) {
            let told = error.to_string();
            let (what, hint) = told.split_once("\nhint: ").unwrap_or_else(|| panic!("no hint: {told}"));
            assert!(!what.is_empty() && hint.len() > 4 && !hint.ends_with('.'), "{told}");
        }
    }
}
