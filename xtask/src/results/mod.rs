//! `cargo xtask results`: every figure that was expected, beside what is measured, as a document.
//!
//! ```text
//!   outboard bench NAME --json ──▶ target/results/NAME.RUN.json ──┐
//!                                  target/results/facts.json      ├──▶ docs/results.md
//!   expectations.toml ────────────────────────────────────────────┘
//! ```
//!
//! All benchmarks are run once, one after the other, and then all of them again: what the machine does to one run it does to
//! every part. A report that is there is not measured again, so that a run that was broken off can go on.

pub mod document;
pub mod expected;
pub mod facts;
pub mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use self::document::Chapter;
use self::expected::{Part, Table};
use self::facts::{Facts, Machine};
use self::report::{Circumstances, Report, find};
use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{command, peers, program};

/// The document, when everything was measured.
const DOCUMENT: &str = "docs/results.md";
/// Its name otherwise, beside the reports.
const TRIAL: &str = "results.md";
/// How often benchmarks are run, unless somebody says it.
const RUNS: u32 = 3;
/// Where benchmarks put their files.
const DIRECTORY_VARIABLE: &str = "OUTBOARD_BENCH_DIR";
/// What leaves cases out.
const ONLY_VARIABLE: &str = "OUTBOARD_BENCH_ONLY";
const SPDK_VARIABLE: &str = "SPDK_DIR";
/// Benchmarks that take the folder of peers.
const WITH_PEERS: [&str; 2] = ["bpf", "pushdown"];
/// What `nvme` starts of SPDK.
const SPDK_TARGET: &str = "build/bin/nvmf_tgt";
/// From here on, work that is waiting or done on the machine is worth a warning.
const LOAD_MAX: f64 = 0.5;

/// Measure every figure that was expected, and write docs/results.md.
///
/// Builds outboard in release mode, runs all of its benchmarks, one after the other, as often as --runs says, and sets the median of each figure beside what
/// was expected of it (xtask/src/results/expectations.toml). A run of all takes some 36 minutes on two cores, so three take about two
/// hours, on a machine that should do nothing else: `table` alone wants 14 GB of memory.
///
/// Reports are kept in target/results. When something broke off, or to write the document anew from what was measured:
///
///   cargo xtask results --from target/results
///
/// which measures only what is missing there, if the program's sources, the machine and the options are the same. A benchmark
/// that fails does not stop the others. Peers have to be named, or their figures are `not measured`:
///
///   cargo xtask peers                                        # prints the folder for --peers
///   cargo xtask results --spdk FOLDER --peers FOLDER
///
/// To see whether all of this works, in some two minutes beside the build: cargo xtask results --quick.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Arguments {
    /// How often each benchmark is run [default: 3, or as often as in --from; with --quick 1]; 0 measures nothing, and says
    /// what is expected.
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
    /// Take the reports that this folder has, and measure only what is missing there.
    #[arg(long, value_name = "FOLDER", conflicts_with = "anew")]
    from: Option<PathBuf>,
    /// Throw away what an earlier run has left.
    #[arg(long)]
    anew: bool,
    /// Only this benchmark; give it several times for several. The document is then written beside the reports.
    #[arg(long, value_name = "BENCH")]
    only: Vec<String>,
    /// Only enough to see that everything works. The figures mean nothing, and the document, which says so, is written to
    /// target/results-quick.
    #[arg(long)]
    quick: bool,
    /// Write the document to this file.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// SPDK's folder, built, for `nvme` to be measured against.
    #[arg(long, value_name = "FOLDER", env = SPDK_VARIABLE)]
    spdk: Option<PathBuf>,
    /// The folder of what `cargo xtask peers` builds, for `bpf` to be measured against, and RocksDB for `pushdown`.
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Measure this binary instead of building one. The document is then written beside the reports.
    #[arg(long, value_name = "PROGRAM")]
    outboard: Option<PathBuf>,
}

/// Measures what is missing, and writes the document.
///
/// # Errors
/// When a benchmark fails, or a report lacks a figure.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    let table = Table::own()?;
    let parts = chosen(&table, &arguments.only)?;
    let folder = match &arguments.from {
        Some(folder) => std::path::absolute(folder)?,
        None => repository.target_folder(if arguments.quick { "results-quick" } else { "results" }),
    };
    let earlier = earlier(&folder, arguments)?;
    let default_runs = if arguments.quick { 1 } else { RUNS };
    let runs = arguments.runs.unwrap_or_else(|| earlier.as_ref().map_or(default_runs, |facts| facts.runs));
    let jobs = jobs(&parts, runs, &folder);
    if let Some(job) = jobs.iter().find(|job| earlier.is_none() && job.is_done()) {
        bail!("nobody knows of what {} is a report; `--anew` throws it away", job.report.display());
    }
    let facts = if jobs.iter().all(Job::is_done) {
        earlier
    } else {
        Some(measure(repository, &folder, earlier, facts_of_now(repository, arguments, runs)?, &jobs)?)
    };
    // What was measured more often than is asked for now is not shown.
    let facts = facts.filter(|_| runs > 0).map(|facts| Facts { runs, ..facts });
    let chapters = chapters(&table, &jobs, facts.as_ref())?;
    let text = document::write(&chapters, &table.elsewhere, facts.as_ref());
    let is_of_commit = facts.is_some_and(|facts| !facts.quick && facts.program.is_none());
    let is_whole = parts.len() == table.parts.len() && is_of_commit;
    let path = match &arguments.to {
        Some(path) => path.clone(),
        None if is_whole => repository.root().join(DOCUMENT),
        None => folder.join(TRIAL),
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("results: written to {}", path.display());
    Ok(Outcome::Done)
}

/// The parts that were asked for; all, if none was.
fn chosen<'table>(table: &'table Table, only: &[String]) -> Result<Vec<&'table Part>> {
    if let Some(unknown) = only.iter().find(|name| !table.parts.iter().any(|part| part.bench == **name)) {
        let names: Vec<&str> = table.parts.iter().map(|part| part.bench.as_str()).collect();
        bail!("there is no benchmark `{unknown}`; there are {}", names.join(", "));
    }
    Ok(table.parts.iter().filter(|part| only.is_empty() || only.contains(&part.bench)).collect())
}

/// What is known of reports that are there, if they are to be used; what is not to be used must not be there.
fn earlier(folder: &Path, arguments: &Arguments) -> Result<Option<Facts>> {
    let facts = Facts::read(folder)?;
    if arguments.from.is_some() {
        let missing =
            || format!("{} has no {}: this verb has put no reports there", folder.display(), facts::FILE);
        return facts.with_context(missing).map(Some);
    }
    if arguments.anew && folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        return Ok(None);
    }
    match facts {
        Some(facts) if arguments.runs != Some(0) => bail!(
            "{} has reports of commit {} already: `--from {0}` goes on with them, `--anew` throws them away",
            folder.display(),
            facts.commit
        ),
        _ => Ok(None),
    }
}

/// One run of one benchmark.
struct Job<'table> {
    part: &'table Part,
    /// Such as `ring.1`.
    name: String,
    report: PathBuf,
}

impl Job<'_> {
    fn is_done(&self) -> bool {
        self.report.is_file()
    }
}

/// Run by run, and in each every part.
fn jobs<'table>(parts: &[&'table Part], runs: u32, folder: &Path) -> Vec<Job<'table>> {
    let all = (1..=runs).flat_map(|run| parts.iter().map(move |part| (*part, run)));
    all.map(|(part, run)| {
        let name = format!("{}.{run}", part.bench);
        let report = folder.join(format!("{name}.json"));
        Job { part, name, report }
    })
    .collect()
}

/// Runs the jobs that are not done.
fn measure(
    repository: &Repository,
    folder: &Path,
    earlier: Option<Facts>,
    now: Facts,
    jobs: &[Job<'_>],
) -> Result<Facts> {
    if let Some(earlier) = &earlier {
        earlier.require_the_same(&now, earlier.is_source_changed(repository))?;
    }
    warn_if_busy();
    let outboard = match &now.program {
        Some(program) => program.clone(),
        None => program::released(repository)?,
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut facts = Facts { runs: now.runs, ..earlier.unwrap_or(now) };
    facts.write(folder)?;
    let missing: Vec<&Job<'_>> = jobs.iter().filter(|job| !job.is_done()).collect();
    let mut failed = Vec::new();
    for (index, job) in missing.iter().enumerate() {
        announce(job, &missing[index..], jobs.len(), facts.quick);
        let begin = Instant::now();
        let result =
            command::run(&mut bench(repository, &outboard, job, &facts)).and_then(|()| keep(job, &facts));
        match result {
            Ok(()) => {
                facts.seconds.insert(job.name.clone(), begin.elapsed().as_secs_f64());
                facts.write(folder)?;
            }
            Err(error) => {
                println!("results: {} FAILED: {error:#}", job.name);
                failed.push(job.name.as_str());
            }
        }
    }
    if !failed.is_empty() {
        bail!(
            "{} failed, see above; the other reports are kept: `cargo xtask results --from {}` goes on",
            failed.join(", "),
            folder.display()
        );
    }
    Ok(facts)
}

fn facts_of_now(repository: &Repository, arguments: &Arguments, runs: u32) -> Result<Facts> {
    let (commit, is_changed) = Facts::commit(repository)?;
    Ok(Facts {
        commit,
        is_changed,
        program: there(arguments.outboard.as_deref(), None)?,
        day: facts::today()?,
        machine: Machine::here(&scratch(repository))?,
        quick: arguments.quick,
        runs,
        spdk: there(arguments.spdk.as_deref(), Some(SPDK_TARGET))?,
        peers: there(arguments.peers.as_deref(), Some(peers::PROGRAMS))?,
        seconds: std::collections::BTreeMap::new(),
    })
}

/// What was given, if the program that it stands for is there: a typing error must not cost hours.
fn there(given: Option<&Path>, inside: Option<&str>) -> Result<Option<PathBuf>> {
    let Some(given) = given else { return Ok(None) };
    let program = inside.map_or_else(|| given.to_owned(), |inside| given.join(inside));
    if !program.is_file() {
        bail!("there is no program `{}`", program.display());
    }
    Ok(Some(std::path::absolute(given)?))
}

/// Where benchmarks put their files: below it lie sockets, whose paths must be short.
fn scratch(repository: &Repository) -> PathBuf {
    std::env::var_os(DIRECTORY_VARIABLE).map_or_else(|| repository.target_folder(""), PathBuf::from)
}

fn warn_if_busy() {
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load = load.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    if let Some(load) = load.filter(|load| *load > LOAD_MAX) {
        println!("results: this machine has other work (load {load}): figures will be worse than they are");
    }
}

fn announce(job: &Job<'_>, missing: &[&Job<'_>], all: usize, is_quick: bool) {
    let minutes: u32 = missing.iter().map(|job| job.part.minutes).sum();
    let left = if is_quick { String::new() } else { format!(", about {minutes} minutes to go") };
    println!("\n==== results: {}, {} of {all}{left} ====", job.name, all - missing.len() + 1);
}

/// The report is written beside its place, and comes there when it is whole.
fn unfinished(job: &Job<'_>) -> PathBuf {
    job.report.with_extension("part")
}

fn bench(repository: &Repository, outboard: &Path, job: &Job<'_>, facts: &Facts) -> Command {
    let mut command = Command::new(outboard);
    command.current_dir(repository.root()).args(["bench", &job.part.bench, "--json"]).arg(unfinished(job));
    if facts.quick {
        command.arg("--quick");
    }
    if let Some(peers) = facts.peers.as_ref().filter(|_| WITH_PEERS.contains(&job.part.bench.as_str())) {
        command.arg("--peers").arg(peers);
    }
    match &facts.spdk {
        Some(spdk) => command.env(SPDK_VARIABLE, spdk),
        None => command.env_remove(SPDK_VARIABLE),
    };
    command.env(DIRECTORY_VARIABLE, scratch(repository)).env_remove(ONLY_VARIABLE);
    command
}

/// Puts a report where it belongs. What it lacks is told now, and not hours later.
fn keep(job: &Job<'_>, facts: &Facts) -> Result<()> {
    fs::rename(unfinished(job), &job.report)?;
    let reports = [Report::read(&job.report, &job.part.bench)?];
    job.part.figures.iter().try_for_each(|figure| find(figure, &reports, circumstances(facts)).map(drop))
}

fn circumstances(facts: &Facts) -> Circumstances {
    let has_rocksdb = facts.peers.as_ref().is_some_and(|folder| folder.join(peers::ROCKSDB).is_file());
    Circumstances {
        is_quick: facts.quick,
        has_spdk: facts.spdk.is_some(),
        has_peers: facts.peers.is_some(),
        has_rocksdb,
    }
}

/// Every part of the table, whether it was measured or not.
fn chapters<'table>(
    table: &'table Table,
    jobs: &[Job<'_>],
    facts: Option<&Facts>,
) -> Result<Vec<Chapter<'table>>> {
    let chapter = |part: &'table Part| {
        let of_part = jobs.iter().filter(|job| job.part.bench == part.bench);
        let reports: Vec<Report> =
            of_part.map(|job| Report::read(&job.report, &part.bench)).collect::<Result<_>>()?;
        let findings = part.figures.iter().map(|figure| match facts {
            Some(facts) => find(figure, &reports, circumstances(facts)),
            None => Ok(report::Finding::NotMeasured("not in this run".to_owned())),
        });
        Ok(Chapter { part, findings: findings.collect::<Result<_>>()? })
    };
    table.parts.iter().map(chapter).collect()
}

#[cfg(test)]
mod tests;
