//! What card and host say to each other: the rings in shared memory, the frames of the link, and the requests of the
//! services.
//!
//! ```text
//!   host threads ── messages ──▶ [request ring ] ── DMA ──▶ card        ring:  docs/wire/ring.md
//!   host threads ◀── messages ── [response ring] ◀─ DMA ─── card
//!   host agent   ◀───────────── frames ───────────────────▶ card        frame: docs/wire/link.md
//!   messages of the file service: requests and responses                files: docs/wire/files.md
//!   messages of the services that clients reach by the director         stream: docs/wire/stream.md
//! ```
//!
//! Layouts and codecs only: no memory is touched and no byte is moved here. The documents came first; a test
//! reads their tables and holds them against the constants.

#![forbid(unsafe_code)]

pub mod files;
pub mod frame;
pub mod group;
pub mod ring;
pub mod stream;

/// The service of a port of split messages, whose own messages are `docs/wire/split.md`.
pub const SPLIT_SERVICE: u32 = 4;

#[cfg(test)]
mod doc_tests;
