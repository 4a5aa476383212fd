//! Files executed on the card, for applications: the library that they link (DDS §4.2).
//!
//! ```text
//!   application threads                  this library                                    the card
//!  ┌────────────────────┐   start   ┌───────────────────────────┐
//!  │ file.read_at(…)    │ ────────▶ │ slot, request id          │ ──▶ [ request ring  ] ──▶ DMA
//!  │ file.submit_read(…)│           │ (operation table)         │      small and bulk lane
//!  │ group.poll, wait   │ ◀──────── │ slot by id, one copy      │ ◀── [ response ring ] ◀── DMA
//!  │ futures, callbacks │ complete  └───────────────────────────┘
//!  └────────────────────┘                Group: rings of its own, shared by any threads
//! ```
//!
//! An application opens a [`Session`], opens files, and reads and writes at offsets. A [`Group`] is a notification group
//! with rings of its own. Each call puts a request into the ring and returns; the kernel is entered only to wake a card
//! that sleeps, or to sleep. Completions come
//!
//! - as futures: `file.read_at(buffer, 0).await`, on any executor;
//! - from a thread that waits: `file.read_at(buffer, 0).wait()`;
//! - by tag: [`File::submit_read`], then [`Group::poll`] or [`Group::wait`];
//! - by callback: [`File::read_then`].
//!
//! Buffers belong to the operation while it is out and come back with it. When the card dies, operations that are out
//! complete with [`Error::CardGone`], and the session attaches to the next life of the card by itself. `docs/wire/files.md`
//! says what goes through the rings, and `docs/files-library.md` how to use all of this.
//!
//! ```no_run
//! # fn main() -> Result<(), ob_files_host::Error> {
//! use ob_files_host::{Session, SessionOptions};
//!
//! let session = Session::open(SessionOptions::unix("/run/outboard/link.sock"))?;
//! let file = session.create("/greeting").wait()?;
//! let (written, _) = file.write_at(b"hello".to_vec(), 0).wait();
//! assert_eq!(written?, 5);
//! session.flush().wait()?;
//! let (read, buffer) = file.read_at(vec![0; 16], 0).wait();
//! assert_eq!(&buffer[..read?], b"hello");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

// The card of `tests/common` is met by tests of the inside too, and calls this crate by its name.
#[cfg(test)]
extern crate self as ob_files_host;

mod bell;
mod buffer;
mod control;
mod core;
mod deliver;
mod error;
mod file;
mod group;
mod lane;
mod options;
mod pace;
mod path;
mod pending;
mod request;
mod session;
mod table;
mod transfer;

pub use buffer::{Buffer, ForeignBuffer, OwnedBuffer};
pub use deliver::{Completion, Payload};
pub use error::{Error, Fault, Refused, Result};
pub use file::{File, Moved};
pub use group::Group;
pub use ob_core::{NodeId, NodeKind};
pub use ob_wire_link::files::{CardInfo, NodeInfo, ROOT, SpaceInfo};
pub use options::{Driver, Endpoint, GroupOptions, OUTSTANDING_MAX, OpenOptions, RingSizes, SessionOptions};
pub use path::{AsPath, PathError};
pub use pending::Pending;
pub use request::{DirectoryEntry, DirectoryPage};
pub use session::Session;
