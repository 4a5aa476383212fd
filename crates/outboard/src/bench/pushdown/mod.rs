//! `outboard bench pushdown`: lookups by storage functions, against ordinary reads of the same client.
//!
//! ```text
//!   this process: the client, one core          child process: the card, another core
//!   ┌──────────────────────────────────┐        ┌──────────────────────────────────────┐
//!   │ reads:  block, block, …, value   │ ─ n ──▶│ namespace in memory, or on a disk    │
//!   │ pushed: one request              │ ─ 1 ──▶│   └ read, program, read, program, …  │
//!   └──────────────────────────────────┘        └──────────────────────────────────────┘
//! ```
//!
//! Both ways share one connection, which the client polls, and take turns; every answer is checked. `delay` adds 15 µs a direction: the
//! client waits for so much longer after each answer. `here` is the same lookup in files of this machine, without a network.
//!
//! Two stores are asked: a tree in one file (`btree`), and a database that RocksDB itself writes (`rocksdb`).

mod btree;
mod link;
mod polled;
mod rocksdb;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ob_nvme::initiator::Payload;
use rustix::thread::sched_setaffinity;

use super::cores::{card_core, leave};
use super::nvme::client::{Client, Shape as Connections};
use super::nvme::target::{Backend, TargetProcess, Who};
use super::process::Place;
use super::{Bench, BenchFailure, Case, Report, Setting};
use polled::Polled;

/// What a way there and back takes longer with `delay`.
const DELAY: Duration = Duration::from_micros(30);
/// Commands that a connection has room for.
const DEPTH: usize = 32;

/// The benchmark.
#[derive(Debug)]
pub struct PushdownBench;

impl Bench for PushdownBench {
    fn name(&self) -> &'static str {
        "pushdown"
    }

    fn about(&self) -> &'static str {
        "lookups in a tree and in RocksDB by storage functions over NVMe/TCP, against ordinary reads"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let place = Place::new()?;
        let core = card_core()?;
        let before = leave(core)?;
        let outcome = measure(&Arrangement { setting, place: &place.0, core });
        sched_setaffinity(None, &before)?;
        outcome
    }
}

/// What all parts of the benchmark work with.
struct Arrangement<'run> {
    setting: &'run Setting<'run>,
    /// Where files go.
    place: &'run Path,
    /// The card's core.
    core: Option<usize>,
}

impl Arrangement<'_> {
    /// A card of its own.
    fn start(&self, backend: &Backend) -> Result<TargetProcess, BenchFailure> {
        TargetProcess::start(Who::Card, backend, &self.place.join("card"), self.core)
    }

    /// Has a contender measure, and shows how far that is.
    fn show<T>(
        &self,
        name: &str,
        measure: impl FnOnce() -> Result<T, BenchFailure>,
    ) -> Result<Option<T>, BenchFailure> {
        self.setting.progress.set_message(name.to_owned());
        let measured = measure()?;
        self.setting.progress.inc(1);
        Ok(Some(measured))
    }
}

/// A connection that takes so much longer each time; the namespace is filled with the image first if that is wanted.
fn connect(
    target: &TargetProcess,
    delay: Duration,
    image: &Payload,
    is_filled: bool,
) -> Result<Polled, BenchFailure> {
    let shape = Connections { connections: 1, digests: false };
    let mut client = Client::connect(target.address(), shape, DEPTH, image)?;
    if is_filled {
        client.fill()?;
    }
    Ok(Polled::new(client, delay))
}

fn measure(arrangement: &Arrangement<'_>) -> Result<Report, BenchFailure> {
    let mut cases = btree::measure(arrangement)?;
    cases.extend(rocksdb::measure(arrangement)?);
    let ratios = ratios(&cases);
    Ok(Report { bench: "pushdown".to_owned(), cases, ratios })
}

/// Requests by ordinary reads, for every question that was asked in both ways.
fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    for reads in cases {
        let Some((question, way)) = reads.case.split_once(".reads.") else { continue };
        let name = format!("{question}.pushed.{way}");
        let Some(pushed) = cases.iter().find(|case| case.case == name) else { continue };
        let question = question.strip_prefix("btree_range").map_or(question, |_| "range");
        let way = if way == "disk.loopback" { "disk" } else { way };
        ratios.insert(format!("{question}_vs_reads.{way}"), pushed.ops_per_s / reads.ops_per_s);
        // Elsewhere the client waits with its processor.
        if way == "loopback"
            && let Some((reads, pushed)) = total_cpu(reads).zip(total_cpu(pushed))
        {
            ratios.insert(format!("total_cpu_vs_reads.{question}"), pushed / reads);
        }
    }
    ratios
}

fn total_cpu(case: &Case) -> Option<f64> {
    Some(case.cpu.client_cpu_us? + case.cpu.card_cpu_us?)
}
