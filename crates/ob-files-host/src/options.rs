//! How sessions and groups are opened.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use ob_link::Endpoint;

/// How a session meets its card, and what it does without one.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Where the card is: a Unix socket on this machine, or a TCP address.
    pub endpoint: Endpoint,
    /// This application's name, for people who look at the card.
    pub name: String,
    /// How long attaching may take.
    pub attach_within: Duration,
    /// How long the connection to a `tcp` card may be broken before it counts as dead.
    pub dead_after: Duration,
    /// How long futures and waited-for calls that are made while there is no card wait for one to come back, before
    /// they end with [`crate::Error::Detached`]. Zero: they end at once. Calls by tag or callback never wait.
    pub patience: Duration,
    /// The group that the session's own calls use.
    pub group: GroupOptions,
}

impl SessionOptions {
    /// The card at this endpoint, and the defaults for everything else.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            name: application_name(),
            attach_within: Duration::from_secs(5),
            dead_after: Duration::from_secs(10),
            patience: Duration::ZERO,
            group: GroupOptions::default(),
        }
    }

    /// The card behind a Unix socket on this machine.
    #[must_use]
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::new(Endpoint::Unix(path.into()))
    }

    /// The card at a TCP address.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self::new(Endpoint::Tcp(address))
    }

    /// With this patience.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// With these options of the session's own group.
    #[must_use]
    pub fn group(mut self, group: GroupOptions) -> Self {
        self.group = group;
        self
    }
}

/// What the program was called as.
fn application_name() -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let end = (0..=name.len().min(NAME_LEN_MAX)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    if end == 0 { "application".to_owned() } else { name[..end].to_owned() }
}

/// The longest name that the link takes.
const NAME_LEN_MAX: usize = 64;

/// Who takes completions out of the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// A thread of the library: it is started when the first future is awaited or the first callback is given, sleeps
    /// while there is nothing to do, wakes futures and runs callbacks. A group without either has no such thread.
    #[default]
    Thread,
    /// The application, in [`crate::Group::poll`] and [`crate::Group::wait`]. Futures are woken, and callbacks run, by
    /// the thread that is in there.
    Caller,
}

/// Bytes of a lane's rings: powers of two, from 4096 to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Requests, with the bytes of writes.
    pub requests: u32,
    /// Responses, with the bytes of reads.
    pub responses: u32,
}

impl RingSizes {
    /// Both of the same size.
    #[must_use]
    pub fn both(bytes: u32) -> Self {
        Self { requests: bytes, responses: bytes }
    }
}

/// How a notification group is opened.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// Operations that may be out at once; at least 1, at most [`OUTSTANDING_MAX`].
    pub outstanding: usize,
    /// The rings for small transfers and everything that is no transfer.
    pub small: RingSizes,
    /// The rings for transfers above 128 KiB, so that they hold up nothing else.
    pub bulk: RingSizes,
    /// Who takes completions out of the rings.
    pub driver: Driver,
    /// How long a wait polls before it sleeps. Zero by default: polling takes a core away from somebody.
    pub spin: Duration,
}

/// The most operations that may be out at once in a group.
pub const OUTSTANDING_MAX: usize = (1 << 20) - 1;

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            outstanding: 1024,
            small: RingSizes::both(1 << 20),
            bulk: RingSizes::both(4 << 20),
            driver: Driver::Thread,
            spin: Duration::ZERO,
        }
    }
}

impl GroupOptions {
    /// The defaults, for an application that polls or waits by itself.
    #[must_use]
    pub fn polled() -> Self {
        Self { driver: Driver::Caller, ..Self::default() }
    }

    /// With so many operations out at once.
    #[must_use]
    pub fn outstanding(mut self, outstanding: usize) -> Self {
        self.outstanding = outstanding;
        self
    }

    /// With rings of these sizes for small transfers.
    #[must_use]
    pub fn small(mut self, sizes: RingSizes) -> Self {
        self.small = sizes;
        self
    }

    /// With rings of these sizes for large transfers.
    #[must_use]
    pub fn bulk(mut self, sizes: RingSizes) -> Self {
        self.bulk = sizes;
        self
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) truncate: bool,
}

impl OpenOptions {
    /// A file that exists.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It is created if it is missing.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// It is created, and must be missing.
    #[must_use]
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// It is cut to no bytes. That is a second request: who dies in between leaves the file as it was.
    #[must_use]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }
}
