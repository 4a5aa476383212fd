//! A file of a mounted namespace: its map while nobody writes it, and the ordinary path always.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ob_passthrough::System;
use ob_passthrough::extents::{Extents, ExtentsError, ExtentsOptions};
use ob_passthrough::lease::{GRACE_DEFAULT, Lease, LeaseError, LeaseKeeper, LeaseOptions, OnBreak};
use ob_wire_nvme::NamespaceId;

use crate::client::{FileCounts, FileMap, Hold, LeasedFile, LeasedMaps, MapExtent, MapSource, OnEnd};
use crate::plant::{Bug, is_planted};

/// How long after a try that has failed it is tried again to map a file: somebody writes it, and will for a while.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The same where the file would have to become another one first.
const RETRY_HARDLY_AFTER: Duration = Duration::from_secs(5);

/// A file that requests may read where it lies, as long as nobody writes it.
pub struct MountedFile {
    maps: LeasedMaps<OpenedFile>,
}

/// It, for [`LeasedMaps`].
struct OpenedFile {
    file: File,
    system: System,
    keeper: Arc<LeaseKeeper>,
    namespace: NamespaceId,
    /// What the kernel calls it.
    device: String,
    /// How long a writer waits for requests.
    grace: Duration,
    /// What time is counted from.
    since: Instant,
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
        Ok(Self {
            maps: LeasedMaps::new(OpenedFile {
                file,
                system: system.clone(),
                keeper: Arc::clone(keeper),
                namespace,
                device: device.to_owned(),
                grace: GRACE_DEFAULT,
                since: Instant::now(),
            }),
        })
    }

    /// With another time that requests under way may hold up who wants to write the file: what they say is not believed either way.
    #[must_use]
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.maps.file_mut().grace = grace;
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
            match self.maps.file().file.read_at(rest, offset + filled as u64) {
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
        Ok(self.maps.file().file.metadata()?.len())
    }

    /// What became of its maps.
    #[must_use]
    pub fn counts(&self) -> FileCounts {
        self.maps.counts()
    }

    /// Why it has no map, if it was tried to make one and has failed since the last that it had.
    pub fn refusal(&self) -> Option<Arc<NotMapped>> {
        self.maps.refusal()
    }
}

impl LeasedFile for OpenedFile {
    /// None where a bug is planted.
    type Lease = Option<Lease>;
    type Extents = Extents;
    type Refusal = NotMapped;

    fn lease(&self, told: Option<OnEnd>) -> Result<Option<Lease>, NotMapped> {
        // Opened anew, whatever its name is by now: a lease belongs to one opening, and an earlier one may still be given back.
        let again = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        let held = OwnedFd::from(File::open(again).map_err(NotMapped::Again)?);
        if is_planted(Bug::LeaseSkipped) {
            return Ok(None);
        }
        let on_break = told.map(|told| Box::new(move |request| told(Hold::new(request))) as OnBreak);
        Ok(Some(self.keeper.lease_with(held, LeaseOptions { grace: self.grace, on_break })?))
    }

    fn extents(&self) -> Result<Extents, NotMapped> {
        let extents = Extents::of(self.file.as_fd(), &self.system, &ExtentsOptions::default())?;
        if extents.device.name != self.device {
            let (found, expected) = (extents.device.name, self.device.clone());
            return Err(NotMapped::Elsewhere { found, expected });
        }
        Ok(extents)
    }

    fn map_of(&self, extents: &Extents, version: u64) -> FileMap {
        let pieces = extents.list.iter().map(|extent| MapExtent {
            at: extent.file_offset,
            offset: extent.device_offset,
            len: extent.len,
        });
        FileMap {
            namespace: self.namespace,
            version,
            identity: extents.inode_id,
            len: extents.len,
            extents: pieces.collect(),
        }
    }

    fn is_held(&self, lease: &Option<Lease>) -> bool {
        lease.as_ref().is_none_or(Lease::is_held)
    }

    fn is_there(&self, extents: &Extents) -> bool {
        !extents.can_be_remapped || extents.is_current(self.file.as_fd()).unwrap_or(false)
    }

    fn begin(&self, lease: &Option<Lease>) -> Option<Hold> {
        lease.as_ref().map_or_else(|| Some(Hold::default()), |lease| lease.begin().map(Hold::new))
    }

    fn pause_after(&self, refusal: &NotMapped) -> Duration {
        if refusal.may_pass() { RETRY_AFTER } else { RETRY_HARDLY_AFTER }
    }

    fn now(&self) -> ob_core::Instant {
        ob_core::Instant::default() + self.since.elapsed()
    }
}

impl MapSource for MountedFile {
    fn current(&self) -> Option<Arc<FileMap>> {
        self.maps.current()
    }

    fn version(&self) -> Option<u64> {
        self.maps.version()
    }

    fn may_have_map(&self) -> bool {
        self.maps.may_have_map()
    }

    fn on_end(&self, told: OnEnd) {
        self.maps.on_end(told);
    }

    fn hold(&self, version: u64) -> Option<Hold> {
        self.maps.hold(version)
    }
}
