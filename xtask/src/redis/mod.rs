//! `cargo xtask redis`: Redis' own programs, and a library of another language, as clients of the key-value store.
//!
//! ```text
//!   redis-cli, redis-benchmark, python3-redis ──▶ 127.0.0.1:PORT ──▶ outboard up
//!                                                      ▲
//!   commands.txt ──▶ this verb ──┬─────────────────────┘    the same bytes come back
//!                                └──▶ 127.0.0.1:PORT ──▶ redis-server
//! ```
//!
//! With `--self-test` Redis stands where we do: it shows that what fails otherwise is not the harness.

pub mod compare;
pub mod reply;
pub mod script;
pub mod steps;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;

use self::steps::{Bench, STEPS, Server, Step};
use crate::kernel;
use crate::kernel::target::{Commands, Target, free_port};
use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{apt, command, program};

const PACKAGES: &[&str] = &["redis-server", "redis-tools", "python3-redis"];
const PROGRAMS: &[&str] = &["redis-server", "redis-cli", "redis-benchmark"];
/// The system's own, which has the package's library; one of another make may come first on the path.
const PYTHON: &str = "/usr/bin/python3";

const OURS: &str = "{outboard} up --config {config}";
const ORACLE: &str = "redis-server {config}";

/// Redis' own programs, and a Python library, as clients of the key-value store.
///
/// Starts `outboard up`, has redis-cli, redis-benchmark and a Python program use it, and compares what it answers with what
/// Redis answers, byte by byte. What that needs is installed with apt-get where it is missing and we are root; where
/// that is impossible the verb says SKIPPED, loudly, and succeeds.
#[derive(Args)]
pub struct Arguments {
    /// Which steps; all of them by default.
    #[arg(value_name = "STEP", value_parser = PossibleValuesParser::new(STEPS.iter().map(|step| step.name)))]
    steps: Vec<String>,
    /// List the steps, and run nothing.
    #[arg(long)]
    list: bool,
    /// Put Redis in our place, to try the harness itself.
    #[arg(long)]
    self_test: bool,
    /// Take a release build, for figures that say something; it takes minutes to build.
    #[arg(long)]
    release: bool,
    /// Keep data and outputs even when all is well.
    #[arg(long)]
    keep: bool,
}

/// Runs every step.
///
/// # Errors
/// As [`run`].
pub fn run_with_defaults(repository: &Repository) -> Result<Outcome> {
    let arguments =
        Arguments { steps: Vec::new(), list: false, self_test: false, release: false, keep: false };
    run(repository, &arguments)
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
    if let Err(error) = apt::install(repository, PACKAGES, has_programs) {
        return Ok(Outcome::skipped("redis", &format!("{error:#}")));
    }
    let outboard = match arguments {
        Arguments { self_test: true, .. } => None,
        Arguments { release: true, .. } => Some(program::released(repository)?),
        Arguments { .. } => {
            println!("redis: the program is the tests' own; figures that say something need --release");
            Some(program::of_the_tests(repository)?)
        }
    };
    let mut bench = prepare(repository, outboard.as_deref())?;
    let is_chosen =
        |step: &&Step| arguments.steps.is_empty() || arguments.steps.iter().any(|name| name == step.name);
    let failed = run_steps(&mut bench, STEPS.iter().filter(is_chosen));
    bench.ours.target.stop();
    bench.oracle.target.stop();
    if !failed.is_empty() {
        bail!("{} failed; what was said is in {}", failed.join(", "), bench.folder.display());
    }
    if arguments.keep {
        println!("redis: kept in {}", bench.folder.display());
    } else {
        fs::remove_dir_all(&bench.folder)?;
    }
    Ok(Outcome::Done)
}

fn has_programs() -> bool {
    PROGRAMS.iter().all(|program| command::is_installed(program))
        && command::succeeds(Command::new(PYTHON).args(["-c", "import redis"]))
}

/// The two servers, neither of them started; without a program of ours Redis stands where it would.
fn prepare(repository: &Repository, outboard: Option<&Path>) -> Result<Bench> {
    let folder = repository.target_folder("redis");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let redis = |name: &str| {
        let line = "requirepass {password}";
        server(ORACLE, include_str!("redis.conf"), line, Path::new(""), &folder.join(name))
    };
    let ours = match outboard {
        None => redis("ours")?,
        Some(outboard) => {
            let line = "password = \"{password}\"";
            server(OURS, include_str!("outboard.toml"), line, outboard, &folder.join("ours"))?
        }
    };
    Ok(Bench { ours, oracle: redis("oracle")?, is_self_test: outboard.is_none(), folder })
}

fn server(
    serve: &str,
    configuration: &'static str,
    password_line: &'static str,
    outboard: &Path,
    folder: &Path,
) -> Result<Server> {
    let port = free_port()?;
    // Namespaces are not what is tried here.
    let none = "false".to_owned();
    let commands = Commands { serve: serve.to_owned(), ready: None, resize: none.clone(), remove: none };
    let target = Target::new(commands, folder, port, kernel::words(outboard, folder, port));
    Ok(Server { target, port, configuration, password_line })
}

fn run_steps<'step>(bench: &mut Bench, steps: impl Iterator<Item = &'step Step>) -> Vec<&'static str> {
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    for step in steps {
        println!("\n==== redis {}: {} ====", step.name, step.purpose);
        let start = Instant::now();
        let verdict = match (step.run)(bench) {
            Ok(()) => "ok",
            Err(error) => {
                println!("redis: {} FAILED: {error:#}", step.name);
                println!("---- the end of the server's output\n{}", bench.ours.target.last_words());
                failed.push(step.name);
                "FAILED"
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        lines.push(format!("redis: {:<15} {seconds:>6.1} s  {verdict}", step.name));
    }
    println!("\n{}", lines.join("\n"));
    failed
}
