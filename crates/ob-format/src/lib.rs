//! How things lie on a device.
//!
//! ```text
//!   card's services ── values ──▶ encode, checksum ──▶ bytes ──▶ device      files: docs/format/files.md
//!                                                                     kv:    docs/format/kv-log.md
//!                                                                     volume: docs/format/volume.md
//!   card's services ◀── values ── decode, check    ◀── bytes ◀── device
//! ```
//!
//! Layouts and codecs only: nothing is read from a device and nothing is written to one here. What `decode` takes
//! may be any bytes, and what it returns holds only legal values. The documents came first; a test reads their
//! tables and holds them against the types.

#![forbid(unsafe_code)]

pub mod files;
pub mod kv;
mod plant;
pub mod volume;
