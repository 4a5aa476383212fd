//! The one binary of Outboard: everything around the two halves.
//!
//! ```text
//!   outboard up ── supervise ──┬─ outboard card ── halves::run_card ── status endpoint ◀── outboard status
//!                              ├─ outboard host ── halves::run_host
//!                              └─ outboard chunkserver ── chunkserver::run_chunk_server, of volumes
//!   outboard files ── files ── ob_files_host::Session ── rings ──▶ the card's FilesService
//!   outboard nvme ─── initiator ── ob_nvme::initiator ── TCP ──▶ the card's NvmeService, or any target
//!   outboard bpf ──── bpf ──── ob_ebpf: verify, run, disassemble, without a card
//!   outboard offload ─ programs ── control socket ──▶ the card's programs::CardPrograms
//!   outboard config ── config ── what is set, and what is wrong with it
//!   outboard bench ── bench ── Report (table, JSON, SVG)
//!   outboard sim ──── sim ──── scenarios, seed by seed
//! ```
//!
//! It is a library so that tests and benchmarks reach the parts; `main.rs` only parses the command line and wires.

#![forbid(unsafe_code)]

pub mod accounting;
pub mod bench;
pub mod bpf;
pub mod chunkserver;
pub mod cli;
pub mod config;
pub mod control;
mod deadline;
mod durable;
pub mod files;
pub mod halves;
pub mod initiator;
pub mod kv;
pub mod lock;
pub mod logging;
pub mod nvme;
pub mod probe;
pub mod programs;
pub mod pushdown;
mod random;
pub mod router;
pub mod signals;
pub mod sim;
mod spelling;
mod split;
pub mod status;
pub mod supervise;
pub mod terminal;
pub mod volumes;
pub mod worker;
