//! `cargo xtask spdk`: SPDK's own initiator as the client of our NVMe/TCP target.
//!
//! ```text
//!   spdk_nvme_identify, spdk_nvme_perf,
//!   bdevperf, abort ──▶ 127.0.0.1:PORT ──▶ outboard card
//!        │                                    ▲
//!        ▼ what they print                    │ kill, restart
//!   this verb ────────────────────────────────┘
//! ```
//!
//! SPDK is somebody else's build: the verb looks for its programs in a folder that it is told, and builds nothing of it.

pub mod output;
pub mod steps;
pub mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;

use self::steps::{Bench, STEPS, Step};
use self::tools::Tools;
use crate::kernel;
use crate::kernel::target::{CONFIGURATION, Commands, Target, free_port};
use crate::outcome::Outcome;
use crate::program;
use crate::repository::Repository;

const FOLDER_VARIABLE: &str = "SPDK_DIR";

/// SPDK's own initiator as the client.
///
/// Starts a card, and has SPDK's programs discover it, read, write, check what they read, authenticate, and lose it.
/// They run on one core without huge pages, over loopback. Where SPDK is not there the verb says SKIPPED, loudly, and
/// succeeds; docs/testing.md says what it needs.
#[derive(Args)]
pub struct Arguments {
    /// Which steps; all of them by default.
    #[arg(value_name = "STEP", value_parser = PossibleValuesParser::new(STEPS.iter().map(|step| step.name)))]
    steps: Vec<String>,
    /// List the steps, and run nothing.
    #[arg(long)]
    list: bool,
    /// SPDK's folder, built: the one that `configure` is in.
    #[arg(long, value_name = "FOLDER", env = FOLDER_VARIABLE)]
    spdk: Option<PathBuf>,
    /// Keep the outputs even when all is well.
    #[arg(long)]
    keep: bool,
}

/// Runs every step, where SPDK is there.
///
/// # Errors
/// As [`run`].
pub fn run_with_defaults(repository: &Repository) -> Result<Outcome> {
    let spdk = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
    run(repository, &Arguments { steps: Vec::new(), list: false, spdk, keep: false })
}

/// Runs the chosen steps.
///
/// # Errors
/// When a step fails; the others run all the same.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    if arguments.list {
        for step in STEPS {
            println!("{:<15} {}", step.name, step.purpose);
        }
        return Ok(Outcome::Done);
    }
    let Some(spdk) = &arguments.spdk else {
        let reason =
            format!("no SPDK: neither --spdk nor {FOLDER_VARIABLE} names a folder where it is built");
        return Ok(Outcome::skipped("spdk", &reason));
    };
    let tools = match Tools::find(spdk) {
        Ok(tools) => tools,
        Err(error) => return Ok(Outcome::skipped("spdk", &format!("no SPDK: {error:#}"))),
    };
    // Figures of a build without optimisation say nothing, and they are printed.
    let outboard = program::released(repository)?;
    let mut bench = prepare(repository, tools, &outboard)?;
    let is_chosen =
        |step: &&Step| arguments.steps.is_empty() || arguments.steps.iter().any(|name| name == step.name);
    let failed = run_steps(&mut bench, STEPS.iter().filter(is_chosen));
    bench.target.stop();
    if !failed.is_empty() {
        bail!("{} failed; what was said is in {}", failed.join(", "), bench.folder.display());
    }
    if arguments.keep {
        println!("spdk: kept in {}", bench.folder.display());
    } else {
        fs::remove_dir_all(&bench.folder)?;
    }
    Ok(Outcome::Done)
}

fn prepare(repository: &Repository, tools: Tools, outboard: &Path) -> Result<Bench> {
    let folder = repository.target_folder("spdk");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let port = free_port()?;
    let data = folder.join("target");
    let commands = Commands {
        serve: "{outboard} card --config {config}".to_owned(),
        ready: None,
        resize: kernel::OWN_RESIZE.to_owned(),
        remove: kernel::OWN_REMOVE.to_owned(),
    };
    let words = kernel::words(outboard, &data, port);
    let target = Target::new(commands, &data, port, words);
    Ok(Bench { tools, target, port, folder, data, repository: repository.clone() })
}

fn run_steps<'step>(bench: &mut Bench, steps: impl Iterator<Item = &'step Step>) -> Vec<&'static str> {
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    for step in steps {
        println!("\n==== spdk {}: {} ====", step.name, step.purpose);
        let start = Instant::now();
        let result = bench.target.start_afresh(CONFIGURATION).and_then(|()| (step.run)(bench));
        let seconds = start.elapsed().as_secs_f64();
        let verdict = match &result {
            Ok(()) => "ok".to_owned(),
            Err(error) => {
                println!("spdk: {} FAILED: {error:#}", step.name);
                println!("---- the end of the card's output\n{}", bench.target.last_words());
                failed.push(step.name);
                "FAILED".to_owned()
            }
        };
        lines.push(format!("spdk: {:<15} {seconds:>6.1} s  {verdict}", step.name));
    }
    println!("\n{}", lines.join("\n"));
    failed
}
