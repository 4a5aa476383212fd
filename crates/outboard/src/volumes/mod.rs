//! Volumes: what the card runs of a tier, and what the host runs.
//!
//! ```text
//!   initiators ─▶ VolumesCard: Target ─▶ VolumeFront ─▶ SplitCard ══ VolumesGroup, link ══▶ VolumesHost: Port ─▶ TierCore
//!                                                        │                                                   MemoryStore
//!                                                        └── channels ──▶ chunk servers
//! ```
//!
//! A preview: the host keeps in memory what is where, so that a restart of the host half leaves a new, empty disk. The card gives it
//! another identity then, so that nobody takes it for the disk that was there.

mod card;
mod ends;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod front_tests;
mod host;
mod report;

use std::net::SocketAddr;

use ob_core::NetListenError;

pub use card::VolumesFacts;
pub(crate) use card::{PortGroup, VolumesCard, WATCHES_MAX};
pub(crate) use host::VolumesHost;
pub use report::{ServerReport, VolumesReport};

use crate::nvme::NvmeError;

/// The only volume.
pub const DISK: &str = "disk0";
/// Its size.
pub const DISK_LEN: u64 = 16 << 30;
/// Its block.
pub const BLOCK_LEN: u32 = 4096;
/// Its NSID, as the host knows it.
pub const NSID: u32 = 1;
/// What initiators know it by is one of so many, and another with each disk that is empty: what they send again of an earlier one finds
/// nothing.
const NSIDS: u64 = 1024;
/// How many of these a life of the card has before it comes to those of the next.
const NSIDS_A_LIFE: u64 = 32;

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
    /// The system refused something that should always work.
    #[error("volumes: {0}")]
    System(#[from] std::io::Error),
    /// The thread of the host has ended.
    #[error("the thread of volumes has ended")]
    Ended,
}
