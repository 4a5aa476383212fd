//! What a service tells the card about its requests, and the engine that answers them there (DDS §6).
//!
//! ```text
//!   stream ─▶ cut ─▶ message ─▶ predicate ─┬─ Route::Host ─▶ (the director forwards it)
//!                                          └─ Route::Card ─▶ Engine: Table ─▶ function ─▶ Files ─▶ check ─▶ reply
//!                                                                      ▲
//!            the host's writes ─▶ Watcher ─▶ cache ─▶ until settled ───┘
//! ```
//!
//! A service is an [`Application`]: pure functions over bytes. The [`Engine`] has the table, the buffers that reads land in and
//! are sent from, and the records that wait until the log is settled behind them. It never waits: whatever it cannot do at
//! once is the host's to do. A service in some fifty lines is `examples/pages.rs`: page reads of a database, as in DDS §9.1. Why the
//! answers are right is `docs/linearizable-offload.md`; the order of requests is the director's.

#![forbid(unsafe_code)]

mod application;
mod buffers;
mod engine;
mod files;
mod plant;
mod programmed;
mod reason;
pub mod remote;
mod reply;
mod watch;

pub use application::{
    Application, Candidate, Candidates, Changes, Cut, FileRead, ReplyOrder, Request, Requests, Route,
    Standing, Terms, Verdict, cut_by_length,
};
pub use buffers::BufferClass;
pub use engine::{ContextId, Engine, EngineConfig, EngineCounts, State};
pub use files::{BlockRead, BlocksRead, Files};
pub use ob_table::{Hit, Item, Key, Stamp};
pub use programmed::{HookCounts, ProgramCounts, ProgramSlot, Programmed};
pub use reason::{Reason, ReasonCounts};
pub use reply::{ReadBytes, Reads, Reply, ReplySink};
pub use watch::Watcher;
