//! A file of a mounted namespace: its map while nobody writes it, and the ordinary path always.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ob_passthrough::System;
use ob_passthrough::extents::{Extents, ExtentsError, ExtentsOptions};
use ob_passthrough::lease::{GRACE_DEFAULT, Lease, LeaseError, LeaseKeeper, LeaseOptions, OnBreak};
use ob_wire_nvme::NamespaceId;

use crate::client::{FileMap, Hold, MapExtent, MapSource, OnEnd};
use crate::plant::{Bug, is_planted};

/// How long after a try that has failed it is tried again to map a file: somebody writes it, and will for a while.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The same where the file would have to become another one first.
const RETRY_HARDLY_AFTER: Duration = Duration::from_secs(5);

/// A file that requests may read where it lies, as long as nobody writes it.
pub struct MountedFile {
    file: File,
    system: System,
    keeper: Arc<LeaseKeeper>,
    namespace: NamespaceId,
    /// What the kernel calls it.
    device: String,
    /// How long a writer waits for requests.
    grace: Duration,
    /// Whoever has this makes a map.
    making: Mutex<()>,
    /// Who is told when a lease breaks.
    told: Mutex<Option<OnEnd>>,
    state: Mutex<State>,
}

struct State {
    mapped: Option<Mapped>,
    /// The last version that a map had.
    version: u64,
    /// Not before then it is tried again.
    retry_at: Option<Instant>,
    refusal: Option<Arc<NotMapped>>,
    counts: FileCounts,
}

struct Mapped {
    lease: Option<Lease>,
    extents: Extents,
    map: Arc<FileMap>,
}

/// What became of a file's maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Maps that were made.
    pub maps: u64,
    /// Those that ended because somebody wanted to write, or blocks were moved.
    pub ended: u64,
    /// Attempts to make one that failed.
    pub refused: u64,
}

/// Why a file cannot be opened for requests.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read at all.
    #[error("cannot open {path}: {source}")]
    Open {
        /// Which.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// Nobody watches leases.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// Why a file has no map now.
#[derive(Debug, thiserror::Error)]
pub enum NotMapped {
    /// There is no lease on it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// It does not lie where it could be read.
    #[error(transparent)]
    Extents(#[from] ExtentsError),
    /// It cannot be opened once more.
    #[error("cannot open the file once more: {0}")]
    Again(io::Error),
    /// It lies elsewhere.
    #[error("the file lies on {found}, and the session is of {expected}")]
    Elsewhere {
        /// There.
        found: String,
        /// It should be there.
        expected: String,
    },
}

impl NotMapped {
    /// Whether it is because somebody writes the file now, or has just done so.
    fn may_pass(&self) -> bool {
        match self {
            Self::Lease(error) => matches!(error, LeaseError::Busy),
            Self::Extents(ExtentsError::Unsuitable(why)) => why.may_pass(),
            Self::Extents(_) | Self::Again(_) | Self::Elsewhere { .. } => false,
        }
    }
}

impl MountedFile {
    /// Opens a file of the file system on a namespace, which the kernel calls so. It is mapped when it is first asked for.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn open(
        path: &Path,
        (namespace, device): (NamespaceId, &str),
        system: &System,
        keeper: &Arc<LeaseKeeper>,
    ) -> Result<Self, OpenError> {
        let file = File::open(path)
            .map_err(|source| OpenError::Open { path: path.display().to_string(), source })?;
        let state =
            State { mapped: None, version: 0, retry_at: None, refusal: None, counts: FileCounts::default() };
        Ok(Self {
            file,
            system: system.clone(),
            keeper: Arc::clone(keeper),
            namespace,
            device: device.to_owned(),
            grace: GRACE_DEFAULT,
            making: Mutex::new(()),
            told: Mutex::new(None),
            state: Mutex::new(state),
        })
    }

    /// With another time that requests under way may hold up who wants to write the file: what they say is not believed either way.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The ordinary path: what the kernel reads. Fewer bytes at the file's end.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// How long it is now.
    ///
    /// # Errors
    ///
    /// When the file system does not say.
    pub fn file_len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// What became of its maps.
    #[must_use]
    pub fn counts(&self) -> FileCounts {
        self.lock().counts
    }

    /// Why it has no map, if it was tried to make one and has failed since the last that it had.
    pub fn refusal(&self) -> Option<Arc<NotMapped>> {
        self.lock().refusal.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a map. The lease comes first: what is found under it stays so until it is broken.
    fn make(&self, version: u64) -> Result<Mapped, NotMapped> {
        // Opened anew, whatever its name is by now: a lease belongs to one opening, and an earlier one may still be given back.
        let again = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        let held = OwnedFd::from(File::open(again).map_err(NotMapped::Again)?);
        let lease = if is_planted(Bug::LeaseSkipped) { None } else { Some(self.lease(held)?) };
        let extents = Extents::of(self.file.as_fd(), &self.system, &ExtentsOptions::default())?;
        if extents.device.name != self.device {
            let (found, expected) = (extents.device.name, self.device.clone());
            return Err(NotMapped::Elsewhere { found, expected });
        }
        let pieces = extents.list.iter().map(|extent| MapExtent {
            at: extent.file_offset,
            offset: extent.device_offset,
            len: extent.len,
        });
        let map = FileMap {
            namespace: self.namespace,
            version,
            identity: extents.inode_id,
            len: extents.len,
            extents: pieces.collect(),
        };
        Ok(Mapped { lease, extents, map: Arc::new(map) })
    }

    fn lease(&self, held: OwnedFd) -> Result<Lease, LeaseError> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let on_break = told.map(|told| Box::new(move |request| told(Hold::new(request))) as OnBreak);
        self.keeper.lease_with(held, LeaseOptions { grace: self.grace, on_break })
    }

    /// The map that there is, if it is true. One that is not ends here.
    fn known(&self) -> Option<Arc<FileMap>> {
        let mut state = self.lock();
        let mapped = state.mapped.take()?;
        if !self.is_true(&mapped) {
            state.counts.ended += 1;
            return None;
        }
        let map = Arc::clone(&mapped.map);
        state.mapped = Some(mapped);
        Some(map)
    }

    /// Whether a map is still true.
    fn is_true(&self, mapped: &Mapped) -> bool {
        let is_held = mapped.lease.as_ref().is_none_or(Lease::is_held);
        // On some file systems blocks can be moved under a lease.
        is_held
            && (!mapped.extents.can_be_remapped
                || mapped.extents.is_current(self.file.as_fd()).unwrap_or(false))
    }
}

impl MapSource for MountedFile {
    fn current(&self) -> Option<Arc<FileMap>> {
        if let Some(map) = self.known() {
            return Some(map);
        }
        // One makes it, which takes a while: who asks for no more than the version does not wait.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = self.known() {
            return Some(map);
        }
        if !self.may_have_map() {
            return None;
        }
        let version = self.lock().version + 1;
        let made = self.make(version);
        let mut state = self.lock();
        match made {
            Ok(mapped) => {
                let map = Arc::clone(&mapped.map);
                state.counts.maps += 1;
                (state.mapped, state.version) = (Some(mapped), version);
                (state.retry_at, state.refusal) = (None, None);
                Some(map)
            }
            Err(refusal) => {
                state.counts.refused += 1;
                let pause = if refusal.may_pass() { RETRY_AFTER } else { RETRY_HARDLY_AFTER };
                let retry_at = Instant::now() + pause;
                (state.retry_at, state.refusal) = (Some(retry_at), Some(Arc::new(refusal)));
                None
            }
        }
    }

    fn may_have_map(&self) -> bool {
        self.lock().retry_at.is_none_or(|at| at <= Instant::now())
    }

    fn on_end(&self, told: OnEnd) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    /// A writer is told to wait: the lease is given up when the last request under it has ended.
    fn hold(&self, version: u64) -> Option<Hold> {
        let state = self.lock();
        let mapped = state.mapped.as_ref().filter(|mapped| mapped.map.version == version)?;
        match &mapped.lease {
            Some(lease) => lease.begin().map(Hold::new),
            None => Some(Hold::default()),
        }
    }

    /// Without making one: what is asked for after an answer must be the map that it was asked by.
    fn version(&self) -> Option<u64> {
        let state = self.lock();
        state.mapped.as_ref().filter(|mapped| self.is_true(mapped)).map(|mapped| mapped.map.version)
    }
}
