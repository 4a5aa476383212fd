//! The two halves as processes: what each does from start to stop.
//!
//! ```text
//!   lock the directory ─▶ count the incarnation ─▶ open the endpoints ─▶ ready(…) ─▶ serve ─▶ SIGTERM ─▶ return
//! ```

mod card;
mod descriptors;
mod host;
mod incarnation;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ob_core::Incarnation;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use card::run_card;
pub(crate) use card::{CardPart, explain_listen, link_config};
pub(crate) use descriptors::allow_descriptors;
pub(crate) use host::endpoint;
pub use host::run_host;
pub use incarnation::{IncarnationError, next_incarnation};

use crate::chunkserver::ChunkServerError;
use crate::files::{FilesDeviceError, Formatted};
use crate::kv::KvError;
use crate::lock::{LockError, PidLock, holder_in_words};
use crate::nvme::NvmeError;
use crate::volumes::VolumesError;

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Half {
    /// Clients talk to it.
    Card,
    /// The application's logic runs in it.
    Host,
}

impl Half {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Card, Self::Host];

    /// The word for it, on command lines as in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Half {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A process of Outboard's, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Clients talk to it.
    Card,
    /// The application's logic runs in it.
    Host,
    /// It keeps chunks of volumes. Those of one machine are counted from 1; 0 is one that nobody has counted.
    ChunkServer(u8),
}

impl Role {
    /// The command that is it.
    #[must_use]
    pub fn command(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Host => "host",
            Self::ChunkServer(_) => "chunkserver",
        }
    }
}

impl From<Half> for Role {
    fn from(half: Half) -> Self {
        match half {
            Half::Card => Self::Card,
            Half::Host => Self::Host,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Card | Self::Host | Self::ChunkServer(0) => formatter.pad(self.command()),
            Self::ChunkServer(number) => formatter.pad(&format!("chunk-{number}")),
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbered = || text.strip_prefix("chunk-")?.parse().ok().map(Self::ChunkServer);
        match text {
            "card" => Ok(Self::Card),
            "host" => Ok(Self::Host),
            "chunkserver" => Ok(Self::ChunkServer(0)),
            _ => numbered().ok_or_else(|| format!("there is no process {text}")),
        }
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What a half, or another process, says once it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// Who.
    pub half: Role,
    /// Its process.
    pub pid: u32,
    /// Which life of it this is.
    pub incarnation: u64,
    /// Where the halves meet: a socket's path or an address, after the link's kind.
    pub link: String,
    /// Where the status is served; only the card does.
    pub status: Option<SocketAddr>,
    /// What clients can reach.
    pub services: Vec<ServiceEndpoint>,
}

/// A service that clients can reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceEndpoint {
    /// The service's name.
    pub service: String,
    /// Where it listens.
    pub address: String,
    /// A command that tries it.
    pub next: String,
}

impl ServiceEndpoint {
    /// The key-value store's.
    pub(crate) fn kv(address: SocketAddr) -> Self {
        let next = format!("redis-cli -h {} -p {}", address.ip(), address.port());
        Self { service: "kv".to_owned(), address: address.to_string(), next }
    }
}

/// What a card says while it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// Its device was formatted, because that was asked for.
    Formatted(Formatted),
    /// It serves.
    Ready(Readiness),
}

/// Why a half ended otherwise than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum HalfError {
    /// The data directory cannot be used.
    #[error("cannot use the data directory {}: {source}{}", path.display(), incarnation::hint(source))]
    Directory {
        /// Which directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The same half runs there already.
    #[error(
        "{} runs the {half} of this data directory already ({} is locked)\n\
         hint: stop it, or use another directory with --data DIR",
        holder_in_words(*.pid), path.display()
    )]
    Busy {
        /// Which half.
        half: Role,
        /// The lock.
        path: PathBuf,
        /// Who holds it, if that is known.
        pid: Option<u32>,
    },
    /// The incarnation cannot be counted on.
    #[error(transparent)]
    Incarnation(#[from] IncarnationError),
    /// An address of the configuration cannot be listened on.
    #[error("cannot listen on {address} for {purpose}: {source}\nhint: {fix}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What would have been served there.
        purpose: &'static str,
        /// Why not.
        source: io::Error,
        /// The line to change.
        fix: String,
    },
    /// The link's socket cannot be listened on.
    #[error("cannot listen on {} for the link: {source}\nhint: stop the card that uses it, move away what else is there, or {fix}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// The line to change.
        fix: String,
    },
    /// The card cannot be administered.
    #[error(
        "cannot listen on {} for administration: {source}\n\
         hint: the card's directory must be writable and its path short; --data DIR gives another", path.display()
    )]
    Control {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The card's files cannot be used.
    #[error(transparent)]
    Files(Box<FilesDeviceError>),
    /// Nothing can be served over NVMe/TCP.
    #[error(transparent)]
    Nvme(Box<NvmeError>),
    /// The key-value store cannot be served.
    #[error(transparent)]
    Kv(Box<KvError>),
    /// A chunk server cannot serve what it has.
    #[error(transparent)]
    ChunkServer(Box<ChunkServerError>),
    /// Volumes cannot be served.
    #[error(transparent)]
    Volumes(Box<VolumesError>),
    /// The link cannot be opened, or ended for good.
    #[error("the link failed: {0}")]
    Link(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The kernel refused something that should always work.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl HalfError {
    /// Whether a person must change something before another start can go better.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Directory { .. } | Self::Busy { .. } | Self::Incarnation(_) => true,
            Self::Listen { .. }
            | Self::Socket { .. }
            | Self::Control { .. }
            | Self::Files(_)
            | Self::Nvme(_)
            | Self::Kv(_)
            | Self::ChunkServer(_)
            | Self::Volumes(_) => true,
            Self::Link(_) | Self::System { .. } => false,
        }
    }

    /// Whether nothing but that change helps: what others hold now, such as a port, they may let go.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Files(error) => error.is_lasting(),
            Self::ChunkServer(error) => error.is_lasting(),
            Self::Volumes(error) => error.is_lasting(),
            _ => false,
        }
    }

    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}

/// A life of a half: its directory is locked, and its incarnation counted and written down.
#[derive(Debug)]
pub struct Life {
    incarnation: Incarnation,
    _lock: PidLock,
}

impl Life {
    /// Makes the directory if need be, and begins a new life in it.
    pub fn begin(half: impl Into<Role>, directory: &Path) -> Result<Self, HalfError> {
        let half = half.into();
        make_directory(directory)
            .map_err(|source| HalfError::Directory { path: directory.to_owned(), source })?;
        let lock = PidLock::acquire(&directory.join("lock")).map_err(|error| match error {
            LockError::Held { path, pid } => HalfError::Busy { half, path, pid },
            LockError::Io { path, source } => HalfError::Directory { path, source },
        })?;
        let incarnation = next_incarnation(directory)?;
        Ok(Self { incarnation, _lock: lock })
    }

    /// Which life this is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
}

/// Makes the directory if need be, and its name durable: after a crash an empty one in its place would begin to count from one again,
/// and what was made durable in it would be gone.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    make_directory_on(directory, |path| std::fs::File::open(path)?.sync_all())
}

fn make_directory_on(directory: &Path, mut sync: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let made = directory.ancestors().take_while(is_missing).count();
    std::fs::create_dir_all(directory)?;
    let directory = std::fs::canonicalize(directory)?;
    // An earlier start may have died between making and syncing, so it is tried where nothing was made. That may be refused: of the
    // folders above one's own one need not be allowed to do more than pass through, and not every file system syncs them.
    for (level, folder) in directory.ancestors().skip(1).take(made.max(2)).enumerate() {
        let synced = sync(folder);
        if level < made {
            synced?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_directories_that_were_made_are_durable() {
        let place = tempfile::tempdir().unwrap();
        let place = std::fs::canonicalize(place.path()).unwrap();
        let deep = place.join("a/b/c");
        let mut synced = Vec::new();
        make_directory_on(&deep, |path| {
            synced.push(path.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(synced, [place.join("a/b"), place.join("a"), place.clone()]);
        let refused = |_: &Path| Err(io::Error::other("no"));
        assert!(make_directory_on(&place.join("d"), refused).is_err());
        assert!(make_directory_on(&deep, refused).is_ok(), "nothing was made");
    }

    #[test]
    fn a_full_file_system_is_told_with_what_to_do() {
        let source = io::Error::from(io::ErrorKind::StorageFull);
        let told = HalfError::Directory { path: PathBuf::from("there"), source }.to_string();
        assert!(told.contains("hint: make room"), "{told}");
    }

    /// Of the folders above one may be allowed to do nothing but pass through, or they cannot be synced.
    #[test]
    fn directories_that_are_there_are_taken_as_they_are() {
        make_directory(Path::new("/proc/self/fdinfo")).unwrap();
    }
}
