//! A database that RocksDB writes, and that is read by requests or by ordinary reads.
//!
//! ```text
//!   RocksDB, a child process ─▶ directory ─▶ Shelf ─┬─▶ Database::get ── n reads ──▶ namespace of the card
//!      ▲ what to write                              └─▶ Lookups::get ── 1 request ─▶
//!      └── this process: the client, which checks every value
//! ```
//!
//! The client is the machine that runs RocksDB, as in BPF-oF §5. `get` has lookups in a database that stays as it is, `ycsb` the six
//! workloads of YCSB, whose writes RocksDB does itself.

mod get;
mod places;
mod reader;
mod records;
mod shelf;
mod writer;
mod ycsb;

use std::path::Path;

use super::Arrangement;
use crate::bench::{BenchFailure, Case};

/// What `cargo xtask peers` calls the writer.
const WRITER: &str = "rocksdb-peer";
/// What is said where it is missing.
const HOW_TO_BUILD_THE_WRITER: &str = "lookups in RocksDB and YCSB are not measured: build RocksDB's writer with `cargo xtask peers`, and give its folder with --peers";

/// Measures all of it; nothing where RocksDB is not there, which is said.
pub(super) fn measure(arrangement: &Arrangement<'_>) -> Result<Vec<Case>, BenchFailure> {
    let Some(program) = arrangement.setting.peer(WRITER).filter(|program| program.is_file()) else {
        arrangement.setting.progress.suspend(|| eprintln!("note: {HOW_TO_BUILD_THE_WRITER}"));
        return Ok(Vec::new());
    };
    let program = std::path::absolute(program)?;
    let mut cases = get::measure(arrangement, &program)?;
    cases.extend(ycsb::measure(arrangement, &program)?);
    Ok(cases)
}

/// The writer's options in both databases: blocks of 4 KiB in tables of so many bytes, neither compressed nor filtered.
fn options(table_len: u64, more: &[&str]) -> Vec<String> {
    let shared = ["alone=1", "block=4096", "compression=none", "filter=none", "multiplier=10"];
    let mut options: Vec<String> = shared.iter().chain(more).map(|&option| option.to_owned()).collect();
    options.push(format!("file={table_len}"));
    options
}

/// Bytes of all tables.
fn tables_len(directory: &Path) -> Result<u64, BenchFailure> {
    let mut len = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "sst") {
            len += entry.metadata()?.len();
        }
    }
    Ok(len)
}

/// What the target calls mebibytes, and some room.
fn namespace_len(len: u64) -> u64 {
    (len + (16 << 20)).next_multiple_of(1 << 20)
}
