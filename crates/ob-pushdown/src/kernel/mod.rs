//! A stock Linux kernel as the client: its initiator carries the commands, and files lie in a file system on its namespace.
//!
//! ```text
//!   MountedFile ── lease, extents ──▶ FileMap, while nobody writes the file ──▶ Session
//!        └─ read_at: the ordinary path                                              │
//!   MapKeeper: a thread in which maps are made and sent, so that no request waits for them
//!   MountedDirectory: RocksDB's files, whose tables are such                         │
//!   KernelTransport ◀── commands ───────────────────────────────────────────────────┘
//!        └─ io_uring or ioctl on the namespace ──▶ nvme-tcp ──▶ card
//! ```
//!
//! `docs/leases.md` says why a map is true while its lease is held.

mod directory;
mod file;
mod keeper;
mod transport;

pub use crate::client::FileCounts;
pub use directory::{DirectoryFile, MountedDirectory};
pub use file::{MountedFile, NotMapped, OpenError};
pub use keeper::MapKeeper;
pub use transport::{KernelTransport, KernelTransportError};
