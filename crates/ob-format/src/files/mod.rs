//! Files, directories and free space of one device (`docs/format/files.md`).
//!
//! ```text
//!   device   │ superblocks │ log: sections of frames of records │ data: segments │
//!               Superblock        FrameBuilder, Frame, Record        Geometry
//! ```

mod frame;
mod geometry;
mod record;
mod superblock;

#[cfg(test)]
mod doc_tests;
#[cfg(test)]
mod geometry_tests;
#[cfg(test)]
mod tests;

use ob_core::NodeId;

pub use frame::{FRAME_HEADER_LEN, Frame, FrameBuilder, FrameError, FrameStamp};
pub use geometry::{
    DATA_SEGMENTS_MIN, FormatOptions, Geometry, GeometryError, LOG_SECTIONS_MIN, SUPERBLOCK_AREA_LEN,
};
pub use ob_core::{NAME_LEN_MAX, NameError, NodeKind, check_name};
pub use record::{
    CUT_LEN, MAP_LEN, NODE_LEN, NodeRecord, REMOVE_LEN, RUN_LEN, RUNS_MAX, Record, RecordError, Run, Runs,
    map_record_len, node_record_len,
};
pub use superblock::{LogStart, SUPERBLOCK_LEN, SUPERBLOCK_SLOTS, Superblock, SuperblockError};

/// Version of the format.
pub const VERSION: u32 = 1;
/// The root directory: always there, without a record.
pub const ROOT: NodeId = NodeId(1);
