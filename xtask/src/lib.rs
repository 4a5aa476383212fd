//! Repository chores that cargo itself does not reach, one verb a module.
//!
//! ```text
//!   cargo xtask ci ──┬─ fmt, clippy, test, doc    plain cargo; `test` is the command that the README shows
//!                    ├─ tidy                      taste and layering, read from the sources
//!                    ├─ sim                       some seeds of every scenario, the same each time
//!                    ├─ loom ─ planted            every interleaving; then bugs put in on purpose must be found
//!                    ├─ miri                      undefined behaviour in the homes of unsafe
//!                    └─ arm                       weak memory ordering, other alignment: aarch64 under qemu
//!   cargo xtask fuzz                              parsers against hostile bytes, for as long as you like
//!   cargo xtask kernel                            an unmodified Linux kernel as the client of our NVMe/TCP target
//!   cargo xtask spdk                              SPDK's initiator as its client
//!   cargo xtask redis                             Redis' own programs as clients of the key-value store
//!   cargo xtask etcd                              a real etcd as the metadata store of volumes
//!   cargo xtask peers                             what programs on the card are measured against
//!   cargo xtask paths                             what a request costs, counted
//!   cargo xtask results                           every figure that was expected, and what is measured: docs/results.md
//! ```
//!
//! People and CI use the same verbs. It is a library only so that `cargo test --workspace` can run `tidy` over
//! the real repository (`tests/tidy.rs`); `main.rs` parses the command line and calls in here.

#![forbid(unsafe_code)]

pub mod apt;
pub mod arm;
pub mod ci;
pub mod command;
pub mod etcd;
pub mod fuzz;
pub mod kernel;
pub mod loom;
pub mod miri;
pub mod outcome;
pub mod paths;
pub mod peers;
pub mod planted;
pub mod program;
pub mod readme;
pub mod redis;
pub mod repository;
pub mod results;
pub mod sim;
pub mod spdk;
pub mod tidy;
