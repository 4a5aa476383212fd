//! Lookups in a RocksDB database whose tables the card can read (BPF-oF §5).
//!
//! ```text
//!   Lookups::get ─▶ Version::plan_get: logs, and every block that is cached ─┬─ all of it ───────────▶ Path::Memory
//!                                                                            ├─ one in a hundred ────▶ Path::Ordinary, which fills the cache
//!                                                                            └─ what is left ─▶ Question ─▶ Session::ask ─┬─▶ Path::Pushed
//!                                                                                                 a detour ───────────────┴─▶ Path::Ordinary
//! ```
//!
//! Whoever finds it, what was found goes through [`GetPlan::resolve`](ob_rocksdb::GetPlan::resolve) or the same [`Lookup`](ob_rocksdb::Lookup) behind it:
//! the answers are the same. What no request asks for is read the ordinary way: values of merges, tables whose blocks are compressed, iterators.

mod lookups;
mod question;

use crate::client::File;

pub use lookups::{LookupCounts, LookupError, Lookups, Path};
pub use question::{NotPushed, Question};

/// An open file of an implementation of [`Files`](ob_rocksdb::Files).
pub trait PushedFile {
    /// What requests name it by; nothing if the card cannot read it.
    fn pushed(&self) -> Option<&File>;
}
