//! Reads a RocksDB directory, of a database that is closed or that another process writes; nothing is ever written.
//!
//! ```text
//!   Database::catch_up                                      Version::plan_get
//!     CURRENT ─▶ MANIFEST ─▶ State ─▶ tables, levels ─▶ View ─▶ Version ─▶ GetPlan ─┬─▶ execute_ordinary ─▶ Found
//!     *.log ─▶ WriteBatch ─▶ Memory ───────────────────────┘       ▲                └─▶ steps ─▶ resolve ──▶ Found
//!     OPTIONS ─▶ merge operators ──────────────────────────┘   BlockCache ◀─ blocks of *.sst, through Files
//! ```
//!
//! It is the ordinary path of a client that can also push a lookup down to the server that has the files (BPF-oF §5): a lookup is
//! split in what memory knows ([`Version::plan_get`]) and what is left to read ([`GetPlan::steps`]), and whoever does the reading, the
//! answer is the same.
//!
//! All parsing is pure functions over bytes ([`log::scan`], [`manifest::parse`], [`write_batch::parse`], [`footer::parse`],
//! [`block::Block`], [`filter::may_have`], [`table::open_block`], …); files are reached through [`Files`] alone. What is read, and what
//! is refused, is in `docs/rocksdb.md`.

#![forbid(unsafe_code)]

pub mod block;
pub mod bytes;
pub mod cache;
pub mod checksum;
pub mod compression;
mod cursor;
mod database;
pub mod error;
pub mod files;
pub mod filter;
mod follow;
pub mod footer;
mod iterator;
pub mod keys;
mod local;
pub mod log;
pub mod lookup;
pub mod manifest;
mod memory;
pub mod merge;
pub mod options_file;
mod plan;
mod plant;
pub mod preview_hash;
pub mod properties;
mod reader;
pub mod state;
pub mod table;
pub mod tombstones;
mod version;
pub mod write_batch;

pub use cache::{BlockCache, CacheOptions, CacheStats, Class};
pub use database::{Database, Options};
pub use error::{Damage, Error, MergeObstacle, ParseError, Unsupported};
pub use files::{Files, ReadError};
pub use iterator::{Scan, VersionIterator};
pub use keys::{Kind, Sequence};
pub use local::{LocalDirectory, LocalFile};
pub use lookup::{Entry, Finding, Found, Lookup};
pub use merge::MergeOperator;
pub use plan::{GetPlan, Step};
pub use reader::{Reader, TableFile};
pub use table::{Entrance, FilterSays, Table};
pub use version::{Version, View};
