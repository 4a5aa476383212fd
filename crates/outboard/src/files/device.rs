//! The device that the card's files lie on: made, formatted or recognised, and mounted, when the card starts.
//!
//! ```text
//!   missing ──▶ made under another name ──▶ formatted ──▶ renamed ──┐
//!   ours ───────────────────────────────────────────────────────────┼──▶ mounted
//!   anything else ── only when asked: --format ──▶ formatted ───────┘
//! ```
//!
//! A card that dies while it makes a file leaves nothing under the file's own name, so that a file of that name is
//! either whole or somebody else's, and is never formatted over by guessing.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ob_core::{Clock, Device, DeviceCompletion, DeviceInfo, DeviceOp, Instant, Refused, Token};
use ob_files_card::{
    CardFiles, CheckReport, Contents, Drive, FilesOptions, FormatError, FormatOptions, MountError,
};
use ob_io::{
    Event, FileDevice, FileDeviceOptions, Handle, MemoryDevice, MonotonicClock, OpenError, Reactor, Space,
    Wait,
};
use rustix::fs::{RenameFlags, renameat_with};

use crate::config::{ByteSize, ConfigSource, FilesConfig, FilesDevice};
use crate::random;
use crate::terminal::{bytes, counted};

/// The block of a device in memory.
const MEMORY_BLOCK: u32 = 4096;

/// How long somebody must hold a device before that is an error.
const IN_USE_AFTER: Duration = Duration::from_secs(3);
/// How long the last flush may take.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const IN_USE_PAUSE: Duration = Duration::from_millis(10);

/// Where the card's files lie.
pub enum CardDevice {
    /// In a file, or on a block device.
    File(FileDevice),
    /// In memory.
    Memory(MemoryDevice),
}

impl Device for CardDevice {
    fn info(&self) -> DeviceInfo {
        match self {
            Self::File(device) => device.info(),
            Self::Memory(device) => device.info(),
        }
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        match self {
            Self::File(device) => device.submit(token, op),
            Self::Memory(device) => device.submit(token, op),
        }
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        match self {
            Self::File(device) => device.poll(),
            Self::Memory(device) => device.poll(),
        }
    }

    fn next_due(&self) -> Option<Instant> {
        match self {
            Self::File(device) => device.next_due(),
            Self::Memory(device) => device.next_due(),
        }
    }
}

/// A device and the reactor that it works in, for those who do one thing after the other. Events that are not the
/// device's are lost: nothing else may be watched yet, or any more.
pub(crate) struct ReactorDrive<'drive> {
    pub(crate) reactor: &'drive mut Reactor,
    pub(crate) device: &'drive mut CardDevice,
    events: Vec<Event>,
}

impl<'drive> ReactorDrive<'drive> {
    pub(crate) fn new(reactor: &'drive mut Reactor, device: &'drive mut CardDevice) -> Self {
        Self { reactor, device, events: Vec::new() }
    }
}

impl Drive for ReactorDrive<'_> {
    fn device(&mut self) -> &mut dyn Device {
        self.device
    }

    fn wait(&mut self) {
        // What is due without the kernel's doing would be slept beside.
        let wait = if self.device.next_due().is_some() { Wait::Poll } else { Wait::Until(None) };
        self.reactor.turn(wait, &mut self.events);
        self.events.clear();
    }
}

/// A device that is mounted.
pub(crate) struct Mounted {
    pub(crate) files: CardFiles,
    pub(crate) device: CardDevice,
    /// What was formatted over, if that was asked for.
    pub(crate) formatted: Option<Formatted>,
}

/// A device was formatted because somebody asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// The device.
    pub device: String,
    /// What it held before, in words; nothing if it was empty.
    pub destroyed: Option<String>,
}

impl fmt::Display for Formatted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.destroyed {
            Some(destroyed) => write!(formatter, "formatted {}: {destroyed} destroyed", self.device),
            None => write!(formatter, "formatted {}, which was empty", self.device),
        }
    }
}

/// Why the card has no files.
#[derive(Debug, thiserror::Error)]
pub enum FilesDeviceError {
    /// The device cannot be opened or made.
    #[error("cannot open the device of the card's files: {source}\nhint: {hint}")]
    Open {
        /// Why not.
        source: OpenError,
        /// What to do.
        hint: String,
    },
    /// There is nothing, and a file there would be of no use.
    #[error("{} does not exist, and {why}\nhint: {fix}", path.display())]
    NotMade {
        /// The device.
        path: PathBuf,
        /// Why none is made.
        why: &'static str,
        /// The line to change.
        fix: String,
    },
    /// The machine has less memory than the device would take.
    #[error("a device of {size} in memory is more than this machine has, which is {memory}\nhint: {fix}")]
    TooMuchMemory {
        /// What was asked for.
        size: ByteSize,
        /// What there is.
        memory: ByteSize,
        /// The line to change.
        fix: String,
    },
    /// The device exists, and is not to be formatted over by accident.
    #[error("{device} {contents}; it was left as it is\nhint: {hint}")]
    NotOurs {
        /// The device.
        device: String,
        /// What it holds.
        contents: String,
        /// What to do.
        hint: String,
    },
    /// It cannot be formatted.
    #[error("cannot format {device}: {source}\nhint: {fix}")]
    Format {
        /// The device.
        device: String,
        /// Why not.
        source: FormatError,
        /// The line to change.
        fix: String,
    },
    /// It is ours, and cannot be used.
    #[error("cannot mount {device}: {source}\nhint: {hint}")]
    Mount {
        /// The device.
        device: String,
        /// Why not.
        source: MountError,
        /// What to do.
        hint: String,
    },
    /// The kernel refused.
    #[error("cannot {action} {}: {source}", path.display())]
    System {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl FilesDeviceError {
    /// Whether it stays so until a person has changed the configuration or the device.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::NotMade { .. } | Self::TooMuchMemory { .. } | Self::NotOurs { .. } => true,
            Self::Open { source, .. } => {
                matches!(source, OpenError::WrongKind(_) | OpenError::TooSmall { .. })
            }
            Self::Format { source, .. } => !matches!(source, FormatError::Device(_)),
            Self::Mount { source, .. } => !matches!(source, MountError::Device(_)),
            Self::System { .. } => false,
        }
    }
}

/// Which device, and whose configuration speaks of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceWanted<'config> {
    pub(crate) files: &'config FilesConfig,
    pub(crate) source: &'config ConfigSource,
    pub(crate) of: DeviceOf,
}

/// Whose files lie on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceOf {
    /// The card's: `[files]` says which.
    Card,
    /// A chunk server's: it is in its data directory.
    ChunkServer,
}

impl DeviceWanted<'_> {
    /// What to do to have another device.
    fn other(&self) -> String {
        match self.of {
            DeviceOf::Card => self.source.line_to_change("files", "device", "\"card/files.img\""),
            DeviceOf::ChunkServer => "use another directory with --data DIR".to_owned(),
        }
    }

    /// What to do to have it made with another size.
    fn other_size(&self, example: &str) -> String {
        self.source.line_to_change(self.section(), "size", example)
    }

    fn section(&self) -> &'static str {
        match self.of {
            DeviceOf::Card => "files",
            DeviceOf::ChunkServer => "chunkserver",
        }
    }

    /// What formats it.
    fn format(&self) -> &'static str {
        match self.of {
            DeviceOf::Card => "`outboard up --format` or `outboard card --format` formats it",
            DeviceOf::ChunkServer => "`outboard chunkserver --format` formats it",
        }
    }
}

/// Opens the device that the configuration names, or makes it; formats it if it is new, or if that is asked for; and
/// mounts it.
pub(crate) fn mount(
    wanted: DeviceWanted<'_>,
    reactor: &mut Reactor,
    format: bool,
) -> Result<Mounted, FilesDeviceError> {
    let opening = Opening { name: wanted.files.device.to_string(), wanted };
    let handle = reactor.handle();
    let (mut device, formatted) = match &wanted.files.device {
        FilesDevice::Memory => (opening.make_in_memory(reactor)?, None),
        FilesDevice::Path(path) => {
            match open_patiently(path, |path| FileDevice::open(&handle, path, &options())) {
                Ok(device) => opening.recognise(reactor, CardDevice::File(device), format)?,
                Err(OpenError::Missing(_)) => (opening.make_file(reactor, path)?, None),
                Err(source) => return Err(opening.open_error(source, Age::Existing)),
            }
        }
    };
    let mut drive = ReactorDrive::new(reactor, &mut device);
    let files = ob_files_card::mount(&mut drive, &FilesOptions::default())
        .map_err(|source| opening.mount_error(source))?;
    let space = files.space_info();
    tracing::info!(
        device = opening.name,
        files = space.files,
        directories = space.directories,
        free = bytes(space.free),
        "files mounted"
    );
    Ok(Mounted { files, device, formatted })
}

/// Reads all that is known about a device's files and changes nothing. `progress` is told sections of the log read, and
/// how many there are at most.
pub(crate) fn check(
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, FilesDeviceError> {
    let system = |source| FilesDeviceError::System { action: "check", path: path.to_owned(), source };
    let mut reactor =
        Reactor::new(&ob_io::Config::default()).map_err(|error| system(io::Error::other(error)))?;
    let handle = reactor.handle();
    let opened = open_patiently(path, |path| FileDevice::open_read_only(&handle, path, &options()));
    let device = opened.map_err(|source| {
        let hint = match &source {
            OpenError::InUse(_) => "stop the card that uses it first: files that change cannot be checked",
            OpenError::Missing(_) => {
                "--device PATH names another one; a card makes its device when it starts"
            }
            _ => "--device PATH names another one",
        };
        FilesDeviceError::Open { source, hint: hint.to_owned() }
    })?;
    let mut device = CardDevice::File(device);
    let mut drive = ReactorDrive::new(&mut reactor, &mut device);
    ob_files_card::check(&mut drive, progress).map_err(|source| {
        let hint = match source {
            MountError::Blank | MountError::Foreign => "--device PATH names another one".to_owned(),
            MountError::Version { .. } => "use a program that knows this version".to_owned(),
            MountError::Superblocks | MountError::Exhausted { .. } | MountError::Damaged { .. } => {
                "what was there must come from a copy; the start of the device, 128 KiB, tells more to those who \
                 know the format (docs/format/files.md)"
                    .to_owned()
            }
            MountError::Changed { .. } | MountError::Device(_) => "look at the device itself".to_owned(),
        };
        FilesDeviceError::Mount { device: path.display().to_string(), source, hint }
    })
}

/// Opens a device, and gives the kernel a moment to take it from a card that was killed: what that card had in flight
/// holds the device, lock and all, until it is finished. So nothing that it wrote can arrive after the device is opened.
pub(crate) fn open_patiently(
    path: &Path,
    open_once: impl Fn(&Path) -> Result<FileDevice, OpenError>,
) -> Result<FileDevice, OpenError> {
    let started = std::time::Instant::now();
    let mut is_told = false;
    loop {
        match open_once(path) {
            Err(OpenError::InUse(_)) if started.elapsed() < IN_USE_AFTER => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::info!("waiting for another program to let go of {}", path.display());
                }
                std::thread::sleep(IN_USE_PAUSE);
            }
            opened => return opened,
        }
    }
}

fn options() -> FileDeviceOptions {
    FileDeviceOptions::default()
}

/// Whether a device was there before, with a size that the configuration does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    New,
    Existing,
}

/// The work of opening one device.
struct Opening<'config> {
    wanted: DeviceWanted<'config>,
    /// The device, for people.
    name: String,
}

impl Opening<'_> {
    fn make_in_memory(&self, reactor: &mut Reactor) -> Result<CardDevice, FilesDeviceError> {
        let (size, memory) = (self.wanted.files.size, machine_memory());
        let capacity = usize::try_from(size.0).ok().filter(|_| size <= memory);
        let Some(capacity) = capacity else {
            let fix = self.wanted.other_size("\"256MiB\"");
            return Err(FilesDeviceError::TooMuchMemory { size, memory, fix });
        };
        let mut device = CardDevice::Memory(MemoryDevice::new(capacity, MEMORY_BLOCK));
        self.format(reactor, &mut device, Age::New)?;
        Ok(device)
    }

    /// Makes the file whole before it has its name.
    fn make_file(&self, reactor: &mut Reactor, path: &Path) -> Result<CardDevice, FilesDeviceError> {
        self.check_place(path)?;
        let unfinished = unfinished_path(path);
        let system = |action, source| FilesDeviceError::System { action, path: path.to_owned(), source };
        let made = self.create(&reactor.handle(), &unfinished);
        let made = made.map_err(|source| self.open_error(source, Age::New))?;
        let mut device = CardDevice::File(made);
        let finished = self.format(reactor, &mut device, Age::New).and_then(|()| {
            put_in_place(&unfinished, path).map_err(|source| system("put in place the new file", source))
        });
        if finished.is_err() {
            // It did not exist before; the next start shall find it so.
            let _ = std::fs::remove_file(&unfinished);
        }
        finished?;
        tracing::info!(device = self.name, size = %self.wanted.files.size, "made and formatted a file");
        Ok(device)
    }

    /// A file is made only where one can be meant.
    fn check_place(&self, path: &Path) -> Result<(), FilesDeviceError> {
        let not_made = |why| {
            let fix = self.wanted.other();
            Err(FilesDeviceError::NotMade { path: path.to_owned(), why, fix })
        };
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            return not_made("no file is made where the system keeps its devices");
        }
        let directory = directory_of(path);
        if !directory.is_dir() { not_made("neither does the directory that it is in") } else { Ok(()) }
    }

    fn create(&self, handle: &Handle, unfinished: &Path) -> Result<FileDevice, OpenError> {
        let create =
            || FileDevice::create(handle, unfinished, self.wanted.files.size.0, Space::Sparse, &options());
        match create() {
            // A card died while it made one. Another that is at it right now holds the file's lock.
            Err(OpenError::Exists(_)) => {
                match open_patiently(unfinished, |path| FileDevice::open(handle, path, &options())) {
                    Err(error @ OpenError::InUse(_)) => Err(error),
                    _ => {
                        let _ = std::fs::remove_file(unfinished);
                        create()
                    }
                }
            }
            made => made,
        }
    }

    /// Looks at what an existing device holds. Only what is asked for is formatted.
    fn recognise(
        &self,
        reactor: &mut Reactor,
        mut device: CardDevice,
        format: bool,
    ) -> Result<(CardDevice, Option<Formatted>), FilesDeviceError> {
        let mut drive = ReactorDrive::new(reactor, &mut device);
        let contents = ob_files_card::identify(&mut drive).map_err(|error| self.mount_error(error.into()))?;
        if format {
            let destroyed = destroyed_in_words(&mut drive, &contents);
            self.format(reactor, &mut device, Age::Existing)?;
            let formatted = Formatted { device: self.name.clone(), destroyed };
            tracing::warn!("{formatted}");
            return Ok((device, Some(formatted)));
        }
        match contents {
            Contents::Files(_) => Ok((device, None)),
            other => Err(self.not_ours(&other)),
        }
    }

    fn not_ours(&self, contents: &Contents) -> FilesDeviceError {
        let (format, other) = (self.wanted.format(), self.wanted.other());
        let (contents, hint) = match contents {
            Contents::Blank | Contents::Files(_) => (
                "exists and is empty, and what outboard did not make is formatted only when asked".to_owned(),
                format.to_owned(),
            ),
            Contents::Foreign => (
                "holds data that is not Outboard's".to_owned(),
                format!("{other}; {format}, which destroys what it holds"),
            ),
            Contents::OtherVersion(found) => (
                format!("holds files of format version {found}, which this outboard does not know"),
                format!("use a program that does; {format}, which destroys the files"),
            ),
            Contents::Damaged => (
                "holds files, but both superblocks are damaged".to_owned(),
                format!("take the device from a copy; {format}, which destroys what is left"),
            ),
        };
        FilesDeviceError::NotOurs { device: self.name.clone(), contents, hint }
    }

    fn format(
        &self,
        reactor: &mut Reactor,
        device: &mut CardDevice,
        age: Age,
    ) -> Result<(), FilesDeviceError> {
        let options =
            FormatOptions { segment_len: self.wanted.files.segment.bytes(), ..FormatOptions::default() };
        let uuid = random::uuid().map_err(|source| FilesDeviceError::System {
            action: "draw a number for",
            path: PathBuf::from(&self.name),
            source,
        })?;
        let mut drive = ReactorDrive::new(reactor, device);
        match ob_files_card::format(&mut drive, &options, uuid) {
            Ok(_) => Ok(()),
            Err(source) => {
                let fix = match source {
                    FormatError::Geometry(_) if options.segment_len.is_some() => {
                        let line = self.wanted.source.line_to_change("files", "segment", "\"auto\"");
                        format!("{line}, or {}", self.larger(age))
                    }
                    FormatError::Geometry(_) => self.larger(age),
                    FormatError::Device(_) => self.wanted.other(),
                };
                Err(FilesDeviceError::Format { device: self.name.clone(), source, fix })
            }
        }
    }

    fn open_error(&self, source: OpenError, age: Age) -> FilesDeviceError {
        let hint = match source {
            OpenError::NoSpace { .. } => self.wanted.other_size("\"16GiB\""),
            OpenError::TooSmall { .. } => self.larger(age),
            _ => self.wanted.other(),
        };
        FilesDeviceError::Open { source, hint }
    }

    /// What to do about a device that is too small.
    fn larger(&self, age: Age) -> String {
        match age {
            Age::New => self.wanted.other_size("\"16GiB\""),
            Age::Existing => format!(
                "`[{}] size` is for files that are made, and this was there: a file becomes larger with \
                 `truncate -s 16G {}`; for another device {}",
                self.wanted.section(),
                self.name,
                self.wanted.other()
            ),
        }
    }

    fn mount_error(&self, source: MountError) -> FilesDeviceError {
        let hint = match source {
            MountError::Damaged { .. } => {
                format!("`outboard files check --device {}` tells everything that is wrong", self.name)
            }
            MountError::Changed { .. } => {
                "files stay on the device that they were formatted on: give it its size and block back"
                    .to_owned()
            }
            _ => self.wanted.other(),
        };
        FilesDeviceError::Mount { device: self.name.clone(), source, hint }
    }
}

/// What formatting will destroy; nothing if the device is empty.
fn destroyed_in_words(drive: &mut ReactorDrive<'_>, contents: &Contents) -> Option<String> {
    match contents {
        Contents::Blank => None,
        Contents::Foreign => Some("data that was not Outboard's".to_owned()),
        Contents::OtherVersion(version) => Some(format!("files of format version {version}")),
        Contents::Damaged => Some("files with damaged superblocks".to_owned()),
        Contents::Files(_) => Some(match ob_files_card::check(drive, &mut |_, _| {}) {
            Ok(report) => {
                // The root is there in any case, and again afterwards.
                let directories = report.directories.saturating_sub(1);
                let files = counted(report.files, "file", "files");
                format!("{files} and {}", counted(directories, "directory", "directories"))
            }
            Err(error) => format!("files that could not be read ({error})"),
        }),
    }
}

/// All memory that this machine has.
pub(crate) fn machine_memory() -> ByteSize {
    let system = rustix::system::sysinfo();
    ByteSize(system.totalram.saturating_mul(u64::from(system.mem_unit)))
}

/// Makes everything durable that a device has taken, before it is let go.
pub(crate) fn flush_device(reactor: &mut Reactor, device: &mut CardDevice) {
    // Operations that did not finish in time are still out, with tokens that count up from 0.
    let token = Token(u64::MAX);
    let deadline = MonotonicClock.now() + FLUSH_WITHIN;
    let mut waiting = Some(DeviceOp::Flush);
    let mut events = Vec::new();
    while MonotonicClock.now() < deadline {
        if let Some(op) = waiting.take() {
            waiting = device.submit(token, op).err().map(|refused| refused.op);
        }
        while let Some(completion) = device.poll() {
            match completion.result {
                Err(error) if completion.token == token => {
                    tracing::error!("the device could not be flushed: {error}");
                    return;
                }
                Ok(()) if completion.token == token => return,
                _ => {}
            }
        }
        let wait = if device.next_due().is_some() { Wait::Poll } else { Wait::Until(Some(deadline)) };
        reactor.turn(wait, &mut events);
        events.clear();
    }
    tracing::error!("the device was not flushed within {FLUSH_WITHIN:?}");
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name of a file that is not finished: hidden, and beside where it is going to be.
pub(crate) fn unfinished_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".unfinished");
    path.with_file_name(name)
}

/// Gives a finished file its name, durably, and never takes that name from another.
pub(crate) fn put_in_place(unfinished: &Path, path: &Path) -> io::Result<()> {
    let here = rustix::fs::CWD;
    match renameat_with(here, unfinished, here, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // Some file systems cannot do both at once. The file was missing a moment ago.
        Err(rustix::io::Errno::INVAL) if !path.exists() => std::fs::rename(unfinished, path)?,
        Err(error) => return Err(error.into()),
    }
    sync_directory_of(path)
}

/// The same, but with `force` a file that has the name already is replaced.
pub(crate) fn put_or_replace(unfinished: &Path, path: &Path, force: bool) -> io::Result<()> {
    if !force {
        return put_in_place(unfinished, path);
    }
    std::fs::rename(unfinished, path)?;
    sync_directory_of(path)
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    std::fs::File::open(directory_of(path))?.sync_all()
}
