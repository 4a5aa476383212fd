//! `outboard bench`: baseline and contender in the same run, interleaved, with an account of every half's work.
//!
//! ```text
//!   BENCHES ── run(Setting) ──▶ Report ──┬─▶ table on the terminal
//!                                        ├─▶ --json FILE
//!                                        └─▶ --plot FILE.svg
//! ```
//!
//! A new benchmark is a module here, a value that implements [`Bench`], and a line in [`BENCHES`]. Its contenders measure
//! by turns (`turns::by_turns`).

pub mod bpf;
mod cores;
pub mod director;
pub mod files;
pub mod hog;
pub mod kv;
mod latency;
mod load;
mod meter;
pub mod nvme;
pub mod paths;
mod plot;
mod process;
pub mod pushdown;
pub mod remote;
mod report;
pub mod ring;
pub mod table;
mod talk;
mod turns;
pub mod volumes;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

pub use latency::Latencies;
pub use meter::{CpuMeter, CpuPerOperation};
pub use plot::plot;
pub use report::{Case, Report};

use crate::spelling::nearest;
use crate::terminal::{say, table};

/// All benchmarks, in the order in which they are listed.
pub const BENCHES: &[&dyn Bench] = &[
    &ring::RingBench,
    &files::FilesBench,
    &nvme::NvmeBench,
    &table::TableBench,
    &bpf::BpfBench,
    &kv::KvBench,
    &director::DirectorBench,
    &remote::RemoteBench,
    &pushdown::PushdownBench,
    &volumes::VolumesBench,
];

/// One benchmark.
pub trait Bench: Sync {
    /// What to type.
    fn name(&self) -> &'static str;

    /// What it measures, in one line.
    fn about(&self) -> &'static str;

    /// Measures.
    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure>;
}

/// What a benchmark is given.
#[derive(Debug)]
pub struct Setting<'run> {
    /// Whether to do only enough to see that it works: seconds, not minutes.
    pub quick: bool,
    /// To say how far it is: set the length, then count up. Invisible without a terminal.
    pub progress: &'run ProgressBar,
    /// The folder with programs of other hands, which `cargo xtask peers` builds.
    pub peers: Option<&'run Path>,
}

impl Setting<'_> {
    /// One of these programs, whether it is there or not; nothing if no folder was given.
    #[must_use]
    pub fn peer(&self, name: &str) -> Option<PathBuf> {
        self.peers.map(|folder| folder.join(name))
    }
}

/// What a benchmark ends with when it cannot measure.
pub type BenchFailure = Box<dyn std::error::Error + Send + Sync>;

/// The command line of `outboard bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchOptions {
    /// Which benchmark; without it, they are listed
    #[arg(value_name = "NAME")]
    pub what: Option<String>,
    /// Write the report to FILE as JSON as well
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the report into FILE as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Measure for seconds only, to see that it works; the figures mean little
    #[arg(long)]
    pub quick: bool,
    /// For `bpf` and `pushdown`: the folder of what `cargo xtask peers` builds, which is no part of outboard
    #[arg(long, value_name = "FOLDER")]
    pub peers: Option<PathBuf>,
}

/// Why there is no report, or not everywhere that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No benchmark of that name.
    #[error("there is no benchmark `{name}`\nhint: {hint}")]
    Unknown {
        /// What was typed.
        name: String,
        /// What could have been.
        hint: String,
    },
    /// It could not measure.
    #[error("the benchmark `{name}` failed: {source}")]
    Failed {
        /// Which one.
        name: &'static str,
        /// Why.
        source: BenchFailure,
    },
    /// The report could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Runs what the options ask for, out of the given benchmarks.
pub fn run(benches: &[&dyn Bench], options: &BenchOptions) -> Result<(), BenchError> {
    let Some(name) = &options.what else {
        return list(benches).map_err(BenchError::Output);
    };
    let Some(bench) = benches.iter().find(|bench| bench.name() == name) else {
        return Err(BenchError::Unknown { name: name.clone(), hint: hint(benches, name) });
    };
    let progress = progress_bar();
    let outcome =
        bench.run(&Setting { quick: options.quick, progress: &progress, peers: options.peers.as_deref() });
    progress.finish_and_clear();
    let report = outcome.map_err(|source| BenchError::Failed { name: bench.name(), source })?;
    say(&report.table())?;
    if let Some(path) = &options.json {
        write(path, &report.json().map_err(io::Error::from)?)?;
    }
    if let Some(path) = &options.plot {
        write(path, &plot(&report).map_err(io::Error::other)?)?;
    }
    Ok(())
}

fn list(benches: &[&dyn Bench]) -> io::Result<()> {
    let rows: Vec<_> =
        benches.iter().map(|bench| vec![bench.name().to_owned(), bench.about().to_owned()]).collect();
    say(&table(&["benchmark", "measures"], &rows))
}

fn hint(benches: &[&dyn Bench], typed: &str) -> String {
    match nearest(typed, benches.iter().map(|bench| bench.name())) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`outboard bench` lists them".to_owned(),
    }
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    std::fs::write(path, text).map_err(|source| BenchError::Write { path: path.to_owned(), source })
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    // A benchmark's own thread must not be disturbed by drawing: ten times a second is plenty.
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Bench for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }

        fn about(&self) -> &'static str {
            "nothing"
        }

        fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
            if setting.quick { Ok(report::tests::sample()) } else { Err("too slow".into()) }
        }
    }

    fn options(what: &str, quick: bool) -> BenchOptions {
        BenchOptions { what: Some(what.to_owned()), json: None, plot: None, quick, peers: None }
    }

    #[test]
    fn a_report_goes_wherever_it_was_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        let (json, plot) = (directory.path().join("r.json"), directory.path().join("r.svg"));
        let options =
            BenchOptions { json: Some(json.clone()), plot: Some(plot.clone()), ..options("fixed", true) };
        run(&[&Fixed], &options).unwrap();
        let value: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(value["bench"], "sample");
        assert!(std::fs::read_to_string(plot).unwrap().contains("</svg>"));
    }

    #[test]
    fn failures_and_unknown_names_are_told_apart() {
        assert!(matches!(run(&[&Fixed], &options("fixed", false)), Err(BenchError::Failed { .. })));
        let error = run(&[&Fixed], &options("fixd", true)).unwrap_err();
        assert_eq!(error.to_string(), "there is no benchmark `fixd`\nhint: did you mean `fixed`?");
    }
}
