//! Files that requests read.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ob_wire_nvme::NamespaceId;
use ob_wire_nvme::pushdown::Function;

use super::gate::Gate;
use super::maps::{Chores, ending};

/// What is called when a map ends before its file is dropped. What it is given is to be held until nobody reads by the map any more.
pub type OnEnd = Arc<dyn Fn(Hold) + Send + Sync>;

/// Where a file of the client's file system lies, and how long that is so.
///
/// A request is sent with the map that is current before it, and its answer is believed if the same one is current after it (BPF-oF,
/// algorithms 1 and 2). So from before a byte of the file, or a block of it, becomes another's, no map may be current whose version
/// was given out earlier.
pub trait MapSource: Send + Sync {
    /// The map as it is now; nothing while the file may change.
    fn current(&self) -> Option<Arc<FileMap>>;

    /// The version of what [`MapSource::current`] would give, without giving it.
    fn version(&self) -> Option<u64> {
        self.current().map(|map| map.version)
    }

    /// Whether it is worth the while to ask for a map that is not there: not right after one could not be made.
    fn may_have_map(&self) -> bool {
        true
    }

    /// Has somebody told, once, when the map that is current ends; for each map, if the source can tell.
    ///
    /// One [`File`] has a source: of several, only the last hears it, and at the target the maps of the others are not withdrawn before somebody writes,
    /// but with their next request. What is read by them is not believed, all the same.
    fn on_end(&self, _told: OnEnd) {}

    /// What a request keeps for as long as it reads by a map of this version; nothing if that is not current. Whoever is about to change
    /// the file waits until it is given back, if the source can have him wait, so that no program sees what is another's by then.
    fn hold(&self, version: u64) -> Option<Hold> {
        (self.version() == Some(version)).then(Hold::default)
    }
}

/// What a request has while it reads by a map.
#[derive(Default)]
pub struct Hold(Option<Box<dyn Send>>);

impl Hold {
    /// Something that is dropped when the request has ended.
    pub fn new(held: impl Send + 'static) -> Self {
        Self(Some(Box::new(held)))
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Hold").field(&self.0.is_some()).finish()
    }
}

/// Where a file lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMap {
    /// Of which namespace.
    pub namespace: NamespaceId,
    /// Higher than that of every earlier map of the file, and never 0.
    pub version: u64,
    /// What the client knows the file by.
    pub identity: u64,
    /// Bytes of the file.
    pub len: u64,
    /// What lies together, in the file's order.
    pub extents: Vec<MapExtent>,
}

/// Bytes of a file that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapExtent {
    /// Where in the file.
    pub at: u64,
    /// Where in the namespace.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// A file, for requests. Cheap to clone.
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    kind: Kind,
    /// What the target knows it by; shared with who hears that its map ends.
    opened: Arc<Mutex<Option<Opened>>>,
    /// One opens it, and the others wait.
    opening: Gate,
    /// Whether somebody was told to map it.
    is_waiting: AtomicBool,
    /// Requests that are to do without it.
    skips: AtomicU32,
    chores: Arc<Chores>,
}

/// A file that may be gone.
pub(super) struct WeakFile(Weak<Inner>);

impl WeakFile {
    pub(super) fn upgrade(&self) -> Option<File> {
        self.0.upgrade().map(|inner| File { inner })
    }
}

pub(super) enum Kind {
    Named(String),
    Mapped(Arc<dyn MapSource>),
}

/// A file's number at the target, and the version of its map there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) number: u64,
    pub(super) version: u64,
}

impl File {
    pub(super) fn new(kind: Kind, chores: &Arc<Chores>) -> Self {
        let (opened, opening, is_waiting, skips) = Default::default();
        let file = Self {
            inner: Arc::new(Inner { kind, opened, opening, is_waiting, skips, chores: Arc::clone(chores) }),
        };
        if let Kind::Mapped(source) = &file.inner.kind {
            source.on_end(ending(Arc::clone(&file.inner.opened), chores));
        }
        file
    }

    /// Has so many requests do without it.
    pub(super) fn skip(&self, requests: u32) {
        self.inner.skips.store(requests, Ordering::Relaxed);
    }

    /// Whether this request is one of those.
    pub(super) fn is_skipped(&self) -> bool {
        let one_less = |skips: u32| skips.checked_sub(1);
        self.inner.skips.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    pub(super) fn downgrade(&self) -> WeakFile {
        WeakFile(Arc::downgrade(&self.inner))
    }

    /// Whether nobody was told to map it: somebody is, now.
    pub(super) fn begin_to_wait(&self) -> bool {
        !self.inner.is_waiting.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_to_wait(&self) {
        self.inner.is_waiting.store(false, Ordering::Relaxed);
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.inner.kind
    }

    pub(super) fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        lock(&self.inner.opened)
    }

    /// What a request keeps while it reads what was opened; nothing if it has changed since.
    pub(super) fn hold(&self, opened: &Opened) -> Option<Hold> {
        match &self.inner.kind {
            Kind::Named(_) => Some(Hold::default()),
            Kind::Mapped(source) => source.hold(opened.version),
        }
    }

    pub(super) fn opening(&self) -> &Gate {
        &self.inner.opening
    }

    /// What the target knows it by, if its map there is the current one.
    pub(super) fn current(&self) -> Option<Opened> {
        let opened = (*self.opened())?;
        (self.version() == Some(opened.version)).then_some(opened)
    }

    /// The version of its map, which is made if there is none.
    pub(crate) fn map_now(&self) -> Option<u64> {
        match &self.inner.kind {
            Kind::Named(_) => None,
            Kind::Mapped(source) => source.current().map(|map| map.version),
        }
    }

    /// Whether it has versions, by which what was read of it earlier can be told from what it has now.
    pub(crate) fn has_versions(&self) -> bool {
        matches!(self.inner.kind, Kind::Mapped(_))
    }

    /// What tells it from what it was or will be: the version of its map; of a file by name the number that it has at the target, which a file
    /// that takes its name does not have. Nothing while that is not known.
    pub(crate) fn incarnation(&self) -> Option<u64> {
        match &self.inner.kind {
            Kind::Named(_) => self.opened().map(|opened| opened.number),
            Kind::Mapped(source) => source.version(),
        }
    }

    /// The version of the map that is current; of a file by name, 0.
    pub(crate) fn version(&self) -> Option<u64> {
        match &self.inner.kind {
            Kind::Named(_) => Some(0),
            Kind::Mapped(source) => source.version(),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(opened) = lock(&self.opened).take() {
            self.chores.tell(Function::Close(opened.number));
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half changed under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
