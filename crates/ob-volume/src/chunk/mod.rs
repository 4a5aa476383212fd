//! The chunk server: append-only chunks in the card's files, for whichever tier has the segment (`docs/wire/chunk.md`, and on its
//! files `docs/format/volume.md`).
//!
//! ```text
//!   bytes ─▶ connection ─▶ Task ─▶ fence: epochs, ledger ─▶ queue of its chunk ─┬─ appends ─▶ one Batch ─▶ durable write ─┐
//!     ▲                      (checked)   waits until durable                    ├─ reads ──▶ a buffer that is sent      ├─▶ LocalFiles
//!     │                                                                         └─ the rest ─▶ Job: steps over files   ─┘
//!     └────── output ◀── answers ◀──────────────────────────────────────────────────────────────── completions ◀──────┘
//! ```
//!
//! [`ChunkServer`] has no sockets and no clock: [`StreamProtocol`](ob_core::StreamProtocol) is for bytes, [`ChunkServer::turn`] for
//! files. [`ChunkServerDriver`] is it with both. What goes on with every write and read are states of the server; what takes many
//! steps and is seldom (starting, making, sealing, listing) are `jobs`, which know nothing of the server: they ask the files for one
//! thing after the other, and give back what they found.

mod batch;
#[allow(clippy::module_inception)] // It is the chunk of a chunk server.
mod chunk;
mod config;
mod connection;
mod directory;
mod driver;
mod fence;
mod found;
mod jobs;
mod ledger;
mod memory;
mod mending;
mod peers;
mod reads;
mod receive;
mod run;
mod scan;
mod server;
mod space;
mod start;
mod steps;

pub use config::{ChunkServerConfig, ChunkServerCounts, ChunkServerFacts, ServerState};
pub use connection::ConnectionKey;
pub use driver::{ChunkServerDriver, Turn};
pub use server::ChunkServer;
pub use start::StartError;
