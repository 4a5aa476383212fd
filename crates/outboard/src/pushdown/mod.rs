//! Storage functions, as a client uses them from a shell: loaded into a target, listed, taken out, run once.
//!
//! ```text
//!   outboard pushdown load, ls, rm, run ── Session ── Carrier ─┬─ our initiator ── TCP ──▶ a card
//!                                                              └─ --device: the kernel's ──▶ the same
//!   outboard pushdown btree ──── BTree ────────── the same Session, or ordinary reads
//!   outboard pushdown rocksdb ── Lookups, Database ── the same with --device
//! ```

mod btree;
mod carrier;
mod command;
mod error;
mod mounted;
mod rocksdb;
mod text;

pub use btree::BtreeCommand;
pub use command::PushdownCommand;
pub(crate) use command::run;
pub use error::PushdownError;
pub use rocksdb::RocksdbCommand;
