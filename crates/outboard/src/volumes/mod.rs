//! Volumes: what the card runs of a tier, and what the host runs.
//!
//! ```text
//!   initiators ─▶ VolumesCard: Target ─▶ VolumeFront ─▶ SplitCard ══ VolumesGroup, link ══▶ VolumesHost: Port ─▶ TierCore
//!                                                        │                                   threads metadata: RedbStore, or etcd
//!                                                        └── channels ──▶ chunk servers
//! ```
//!
//! Which disks there are is in the store, and the host tells the card, which remembers them: initiators see the same ones after restarts
//! of either half, and what they have sent meanwhile waits.

pub(crate) mod admin;
mod card;
mod disk;
mod ends;
mod etcd;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod front_tests;
mod host;
mod identity;
mod metadata;
mod ports;
mod report;

use std::net::SocketAddr;

use ob_core::NetListenError;
use ob_volume::metadata::RedbError;

pub use admin::{
    ClassName, CreateRequest, OwnSegmentFacts, SegmentFacts, VolumeFacts, VolumesReply, VolumesRequest,
};
pub use card::{DiskFacts, MaintenanceBytes, PortFacts, VolumesFacts};
pub(crate) use card::{PortGroup, VolumesCard, WATCHES_MAX};
pub(crate) use host::VolumesHost;
pub use metadata::MetadataStoreError;
pub use report::{ServerReport, VolumesReport};

use crate::nvme::NvmeError;

/// The volume that a new pool has.
pub const DISK: &str = "disk0";
/// Its size.
pub const DISK_LEN: u64 = 16 << 30;
/// Its block.
pub const BLOCK_LEN: u32 = 4096;
/// Its number in the pool.
pub const VOLUME: u64 = 1;
/// Its NSID.
pub const NSID: u32 = 1;

/// Why volumes are not served.
#[derive(Debug, thiserror::Error)]
pub enum VolumesError {
    /// Their address cannot be listened on.
    #[error("cannot listen on {address} for volumes: {source}\nhint: {fix}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: NetListenError,
        /// The line to change.
        fix: String,
    },
    /// The target refuses what it is to serve.
    #[error("cannot serve volumes: {0}")]
    Nvme(#[from] NvmeError),
    /// There is no metadata store.
    #[error("{0}")]
    Metadata(#[from] MetadataStoreError),
    /// The system refused something that should always work.
    #[error("volumes: {0}")]
    System(#[from] std::io::Error),
    /// The link of a port after the first cannot be opened.
    #[error("a port of volumes cannot be opened: {0}")]
    Port(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The thread of such a port has ended.
    #[error("the thread of a port of volumes has ended")]
    PortEnded,
    /// The thread of the host has ended.
    #[error("the thread of volumes has ended")]
    Ended,
}

impl VolumesError {
    /// Whether it stays so until a person has changed something.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::Metadata(MetadataStoreError::Store { source, .. })
            if matches!(source, RedbError::Damaged(_) | RedbError::Version { .. }))
    }
}
