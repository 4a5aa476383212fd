//! Storage functions over NVMe/TCP (BPF-oF): a program goes to the data, and one request is a whole chain of reads.
//!
//! ```text
//!   client                                        card
//!   Session ── load, open, prepare ──────────────▶ Functions ─▶ Programs, files, plans
//!   Session::ask ── one command ────────────────▶ Request ─┬─▶ read ─▶ program ─┬─▶ the scratch is the answer
//!      ▲                                                   └──────── next ◀─────┘
//!      └────────────── scratch ◀───────────────────────────────────────────────
//! ```
//!
//! `docs/wire/pushdown.md` has the commands, `docs/pushdown.md` what may be relied on.

#![forbid(unsafe_code)]

pub mod btree;
pub mod client;
pub mod kernel;
pub mod rocksdb;
pub mod target;

mod plant;
