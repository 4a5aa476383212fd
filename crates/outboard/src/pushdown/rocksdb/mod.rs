//! RocksDB's directories, from a shell: listed, looked up, gone through; closed, or open in another process.
//!
//! ```text
//!   ls, scan, get ───── Database<Counted<LocalDirectory>> ── ordinary reads
//!   get --device ────── Lookups over Database<Counted<MountedDirectory>> ─┬─ requests ──▶ the card that has the tables
//!                                                                         └─ ordinary reads
//! ```

mod command;
mod counted;
mod get;
mod list;
mod scan;

pub use command::RocksdbCommand;
pub(super) use command::run;
