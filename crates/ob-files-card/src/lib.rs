//! The card's file system: a device cut into segments, a log of metadata, and the service that hosts reach through rings.
//!
//! ```text
//!   rings ─▶ FilesService ─▶ Op ─▶ CardFiles ─▶ pieces ─▶ Device
//!     ▲          │                  │  tree   directories, names, sizes (in memory, all of it)
//!     └──────────┘                  │  map    where a file's segments are
//!       Completion                  │  space  which segments are free, which are zeroed
//!                                   │  log    frames of records: the only place on the device where metadata is
//!                                   ▼
//!                    mount, format, check (one after the other, through Drive)
//! ```
//!
//! After DDS §4.3. What lies on the device, and in which order it gets there, is `docs/format/files.md`; what is said
//! over the rings is `docs/wire/files.md`. The paper's prototype keeps its metadata in one segment that it writes over;
//! here every change is one record appended to a log that is cleaned as it goes, so that a change costs the same with
//! one file and with a million, and is there as a whole or not at all.
//!
//! Everything is a state machine over [`ob_core::Device`]: no thread, no clock, no file descriptor. It runs unchanged on
//! a disk, in memory and in the simulator.

#![forbid(unsafe_code)]

mod drive;
mod engine;
mod local;
mod log;
mod map;
mod mount;
mod observer;
mod plant;
mod replay;
mod service;
mod space;
mod tree;
mod volume;

pub use drive::Drive;
pub use engine::{CardFiles, Completion, FileVersion, FilesCounts, FilesOptions, MetadataOp, Op, Outcome};
pub use local::LocalFiles;
pub use map::MapError;
pub use mount::{CheckReport, Contents, FormatError, MountError, check, format, identify, mount};
pub use ob_format::files::FormatOptions;
pub use observer::WriteObserver;
pub use replay::Finding;
pub use service::FilesService;
pub use volume::{FileVolume, OpeningVolume, VolumeError};
