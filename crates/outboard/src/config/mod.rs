//! The configuration: what may be set, what holds when nothing is, and where each value came from.
//!
//! ```text
//!   file ── read ──▶ Config ──▶ CardConfig ──▶ run_card
//!     │               │   └───▶ HostConfig ──▶ run_host
//!     ▼               ▼
//!   Explanation     config show
//! ```
//!
//! The reader walks the parsed document itself instead of deriving a deserializer: so it finds every mistake in one
//! pass, and keeps the place of each value for errors that show only later, such as a port in use.

mod explain;
mod files;
mod kv;
mod network;
mod nvme;
mod programs;
mod quantity;
mod read;
mod split;
#[cfg(test)]
mod tests;
mod together;
mod volumes;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use explain::{Explanation, Mistake, Place};
pub use files::{FilesConfig, FilesDevice, SegmentSize};
pub use kv::{Durability, KvConfig, Password, Placement};
pub use network::Network;
pub(crate) use nvme::{KEY_WITHOUT_HOSTS, TWO_THREADS};
pub use nvme::{NamespaceDevice, NvmeConfig, SubsystemConfig};
pub use programs::ProgramsConfig;
pub use quantity::{ByteRate, ByteSize, QuantityError, Share, TimeSpan};
pub use split::{Magic, SplitConfig};
pub use volumes::{ChunkServerConfig, ChunkServerSection, MetadataPlace, VolumesConfig};

/// The names that `[link] model` accepts.
pub const LINK_MODELS: &[(&str, ob_link::Costs)] = ob_link::Costs::PRESETS;

// `sun_path` has 108 bytes, and the last one ends the string.
const SOCKET_PATH_BYTES_MAX: usize = 107;

// A configuration is a page of text; whatever is larger is another file given by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Everything that can be set.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Where both halves keep what outlives them.
    pub data: PathBuf,
    /// What joins the halves.
    pub link: LinkConfig,
    /// How the reactors wait.
    pub reactor: ReactorConfig,
    /// The card's files.
    pub files: FilesConfig,
    /// What NVMe/TCP initiators reach.
    pub nvme: NvmeConfig,
    /// The store that Redis clients use.
    pub kv: KvConfig,
    /// Disks that chunk servers keep.
    pub volumes: VolumesConfig,
    /// How a chunk server keeps them.
    pub chunkserver: ChunkServerSection,
    /// What an application has of the card that splits messages.
    pub split: SplitConfig,
    /// What programs may take.
    pub programs: ProgramsConfig,
    /// The status endpoint.
    pub status: StatusConfig,
    /// What is logged.
    pub log: LogConfig,
    /// Where the values came from.
    #[serde(skip)]
    pub source: ConfigSource,
}

/// `[link]`: what joins card and host.
#[derive(Clone, Debug, Serialize)]
pub struct LinkConfig {
    /// Which kind of link.
    pub kind: LinkKind,
    /// The socket on which the halves meet (shm and model). Relative to the data directory in a [`Config`], ready for
    /// use in a [`CardConfig`] or [`HostConfig`].
    pub socket: PathBuf,
    /// The preset of the modelled link, one of [`LINK_MODELS`].
    pub model: String,
    /// Where the card listens (tcp).
    pub listen: SocketAddr,
    /// Where the host finds the card (tcp).
    pub card: SocketAddr,
    /// After how long a silence the other half counts as dead.
    pub dead_after: TimeSpan,
    /// Users that may use the socket besides the card's own.
    pub allow_users: Vec<u32>,
    /// Who may attach over tcp; nobody listed means loopback only.
    pub allow_addresses: Vec<Network>,
    /// The most region memory that the card grants to all hosts together.
    pub memory: ByteSize,
    /// The most region memory that the card grants to one host.
    pub memory_per_host: ByteSize,
}

impl LinkConfig {
    /// The link of a port of volumes, counted from 0: the first one has the card's own, and others sockets, or numbers, behind that.
    #[must_use]
    pub fn of_port(&self, number: usize) -> Self {
        let mut link = self.clone();
        if number == 0 {
            return link;
        }
        let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let (stem, extension) = (part(self.socket.file_stem()), part(self.socket.extension()));
        let dot = if extension.is_empty() { "" } else { "." };
        // People count ports from 1 on.
        link.socket = self.socket.with_file_name(format!("{stem}-{}{dot}{extension}", number + 1));
        for address in [&mut link.listen, &mut link.card] {
            let port = usize::from(address.port()).saturating_add(number);
            address.set_port(u16::try_from(port).unwrap_or(u16::MAX));
        }
        link
    }
}

/// The kinds of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// Shared memory on one machine.
    Shm,
    /// Shared memory with the costs of PCIe added.
    Model,
    /// Card and host on two machines.
    Tcp,
}

impl LinkKind {
    /// All kinds, as they are written.
    pub const NAMES: &'static [(&'static str, Self)] =
        &[("shm", Self::Shm), ("model", Self::Model), ("tcp", Self::Tcp)];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Model => "model",
            Self::Tcp => "tcp",
        }
    }
}

/// `[reactor]`: how a half waits for work.
#[derive(Clone, Debug, Serialize)]
pub struct ReactorConfig {
    /// How long a reactor polls after its last event before it sleeps; 0 means never.
    pub spin: TimeSpan,
}

/// `[status]`: the card's status endpoint.
#[derive(Clone, Debug, Serialize)]
pub struct StatusConfig {
    /// Where it listens; port 0 takes any that is free.
    pub listen: SocketAddr,
}

/// `[log]`: what goes to standard error.
#[derive(Clone, Debug, Serialize)]
pub struct LogConfig {
    /// The least important messages that are still written.
    pub level: LogLevel,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the levels of every logger")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// All levels, as they are written.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }
}

/// What the card needs of the configuration, its paths ready for use.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// The data directory of both halves.
    pub data: PathBuf,
    /// The card's own directory in it.
    pub directory: PathBuf,
    /// What joins it with the host.
    pub link: LinkConfig,
    /// How its reactor waits.
    pub reactor: ReactorConfig,
    /// Where its files are.
    pub files: FilesConfig,
    /// What NVMe/TCP initiators reach.
    pub nvme: NvmeConfig,
    /// The store that Redis clients use.
    pub kv: KvConfig,
    /// Disks that chunk servers keep.
    pub volumes: VolumesConfig,
    /// What an application has of it that splits messages.
    pub split: SplitConfig,
    /// What programs may take.
    pub programs: ProgramsConfig,
    /// Where its status is served.
    pub status: StatusConfig,
    /// Where the values came from, for errors that show only when they are used.
    pub source: ConfigSource,
}

impl CardConfig {
    /// Where a running card is administered.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// What a command about this card needs besides its name, with a blank before it: nothing, if the defaults do.
    #[must_use]
    pub fn command_options(&self) -> String {
        let mut options = String::new();
        if let Some(file) = self.source.file() {
            options += &format!(" --config {}", file.display());
        }
        if self.source.file().is_some() || self.data != Config::default().data {
            options += &format!(" --data {}", self.data.display());
        }
        options
    }
}

/// What the host needs of the configuration, its paths ready for use.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The data directory of both halves.
    pub data: PathBuf,
    /// The host's own directory in it.
    pub directory: PathBuf,
    /// What joins it with the card.
    pub link: LinkConfig,
    /// How its reactor waits.
    pub reactor: ReactorConfig,
    /// The store that Redis clients use.
    pub kv: KvConfig,
    /// Disks that chunk servers keep.
    pub volumes: VolumesConfig,
    /// Where the values came from, for errors that show only when they are used.
    pub source: ConfigSource,
}

/// Where values came from: a file, or the defaults.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    file: Option<PathBuf>,
    places: BTreeMap<String, Place>,
}

impl ConfigSource {
    /// The file, unless the defaults hold.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Says in words which line to change in order to change a value, or which to add.
    #[must_use]
    pub fn line_to_change(&self, section: &str, key: &str, example: &str) -> String {
        let place = self.places.get(&format!("{section}.{key}"));
        let section = shown_section(section);
        match (&self.file, place) {
            (Some(file), Some(place)) => {
                format!(
                    "change `{section} {key}` at {}:{}: {}",
                    file.display(),
                    place.line,
                    place.text.trim()
                )
            }
            (Some(file), None) => {
                format!("set `{section} {key}` in {}, such as {key} = {example}", file.display())
            }
            (None, _) => format!(
                "`{section} {key}` has its default: write a file with the lines `{section}` and \
                 `{key} = {example}`, and give it with --config FILE"
            ),
        }
    }
}

/// A section as it is written; one of several of a kind is known by its number.
fn shown_section(section: &str) -> String {
    match section.rsplit_once('.') {
        Some((name, number)) if number.parse::<usize>().is_ok() => format!("[[{name}]] (number {number})"),
        _ => format!("[{section}]"),
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}\nhint: {hint}", path.display(), hint = unreadable_hint(source))]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file has mistakes.
    #[error("{0}")]
    Mistakes(Box<Explanation>),
    /// The socket's path is longer than the kernel allows.
    #[error(
        "the link's socket {} has a path of {} bytes, and the kernel allows {SOCKET_PATH_BYTES_MAX}\n\
         hint: use a shorter data directory, or {fix}",
        path.display(), path.as_os_str().len()
    )]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
        /// The line to change.
        fix: String,
    },
}

fn unreadable_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "`outboard config show > FILE` writes one to begin with; `outboard up` needs none"
        }
        _ => "it has to be a text file that this user may read",
    }
}

impl Default for Config {
    fn default() -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            data: PathBuf::from("outboard-data"),
            link: LinkConfig {
                kind: LinkKind::Shm,
                socket: PathBuf::from("link.sock"),
                model: "pcie4".to_owned(),
                listen: local(4421),
                card: local(4421),
                dead_after: TimeSpan(Duration::from_secs(10)),
                allow_users: Vec::new(),
                allow_addresses: Vec::new(),
                memory: ByteSize(256 << 20),
                memory_per_host: ByteSize(64 << 20),
            },
            reactor: ReactorConfig { spin: TimeSpan(ob_io::SPIN_DEFAULT) },
            files: FilesConfig::default(),
            nvme: NvmeConfig::default(),
            kv: KvConfig::default(),
            volumes: VolumesConfig::default(),
            chunkserver: ChunkServerSection::default(),
            split: SplitConfig::default(),
            programs: ProgramsConfig::default(),
            status: StatusConfig { listen: local(9160) },
            log: LogConfig { level: LogLevel::Info },
            source: ConfigSource::default(),
        }
    }
}

impl Config {
    /// Reads the file, or takes the defaults if there is none; a data directory given apart wins.
    pub fn load(file: Option<&Path>, data: Option<&Path>) -> Result<Self, ConfigError> {
        let mut config = match file {
            None => Self::default(),
            Some(path) => Self::parse(path, &read_text(path)?)?,
        };
        if let Some(data) = data {
            config.data = data.to_owned();
        }
        config.check_socket_path()?;
        Ok(config)
    }

    /// Reads a text; the file's name serves the explanations.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        match read::read(text) {
            Ok((mut config, places)) => {
                config.source = ConfigSource { file: Some(file.to_owned()), places };
                Ok(config)
            }
            Err(mistakes) => Err(ConfigError::Mistakes(Box::new(Explanation::new(file, text, mistakes)))),
        }
    }

    /// The whole of it as a file that would say the same.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        if self.nvme.subsystems.is_empty() {
            return toml::to_string(self);
        }
        // What `[nvme]` would say of its own subsystem is a mistake beside sections for several.
        let mut whole = toml::Table::try_from(self)?;
        if let Some(toml::Value::Table(nvme)) = whole.get_mut("nvme") {
            nvme.retain(|key, _| !nvme::ONE_SUBSYSTEM.contains(&key));
        }
        toml::to_string(&whole)
    }

    /// The card's part.
    #[must_use]
    pub fn card(&self) -> CardConfig {
        CardConfig {
            data: self.data.clone(),
            directory: self.data.join("card"),
            link: self.resolved_link(),
            reactor: self.reactor.clone(),
            files: FilesConfig { device: self.files.device.below(&self.data), ..self.files.clone() },
            nvme: self.nvme.below(&self.data),
            kv: self.kv.clone(),
            volumes: self.volumes.clone(),
            split: self.split.clone(),
            programs: self.programs.clone(),
            status: self.status.clone(),
            source: self.source.clone(),
        }
    }

    /// The host's part.
    #[must_use]
    pub fn host(&self) -> HostConfig {
        HostConfig {
            data: self.data.clone(),
            directory: self.data.join("host"),
            link: self.resolved_link(),
            reactor: self.reactor.clone(),
            kv: self.kv.clone(),
            volumes: self.volumes.clone(),
            source: self.source.clone(),
        }
    }

    fn resolved_link(&self) -> LinkConfig {
        LinkConfig { socket: self.data.join(&self.link.socket), ..self.link.clone() }
    }

    fn check_socket_path(&self) -> Result<(), ConfigError> {
        let path = self.resolved_link().of_port(self.volumes.ports.len().saturating_sub(1)).socket;
        if self.link.kind == LinkKind::Tcp || path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
            return Ok(());
        }
        let fix = self.source.line_to_change("link", "socket", "\"/run/outboard/link.sock\"");
        Err(ConfigError::SocketPathTooLong { path, fix })
    }
}

fn read_text(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        let message = format!("it has {bytes} bytes; a configuration has at most {FILE_BYTES_MAX}");
        return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, message)));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}
