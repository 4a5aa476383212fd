//! What a client links: sessions, programs, files, requests.
//!
//! ```text
//!   Session ─┬─ program(name, object) ─▶ Program ─┐
//!            ├─ named(path) ───────────▶ File ────┤
//!            └─ mapped(source) ────────▶ File ────┴─▶ Query ── ask ──▶ Answer, or a Detour: the ordinary path takes over
//!                  │
//!                  ▼ Transport: our initiator, or a stock kernel's
//! ```
//!
//! Numbers at the target end with a connection. Programs and files know what they are made of and get new ones when they have to, so nothing
//! of this is seen by who asks.

mod chores;
mod error;
mod file;
mod gate;
mod held;
mod initiator;
mod join;
mod leased;
mod maps;
mod session;
mod transport;

pub use error::{Detour, PushError};
pub(crate) use file::lock;
pub use file::{File, FileMap, Hold, MapExtent, MapSource, OnEnd};
pub(crate) use join::join_all;
pub use leased::{FileCounts, LeasedFile, LeasedMaps};
pub use maps::AlreadyKept;
pub use session::{Answer, Listed, Program, Query, Read, Session, SessionCounts, name_by_content};
pub use transport::{Command, CommandAnswer, CommandData, Transport, TransportError};
