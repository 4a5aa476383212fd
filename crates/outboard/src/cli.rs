//! The command line: what can be typed, and where it leads.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::bench::files::{FilesCardOptions, run_files_card};
use crate::bench::hog::{HogOptions, run_hog};
use crate::bench::paths::{PathOptions, run_path};
use crate::bench::remote::{RemoteCardOptions, RemoteHostOptions, run_remote_card, run_remote_host};
use crate::bench::ring::{DoorbellOptions, ProducerOptions, run_doorbell, run_producers};
use crate::bench::{self, BENCHES, BenchError, BenchFailure, BenchOptions};
use crate::bpf::{self, BpfCommand, BpfError};
use crate::chunkserver::{self, ChunkServerOptions};
use crate::config::{Config, ConfigError};
use crate::control::ControlError;
use crate::files::{self, FilesCommand, FilesError};
use crate::halves::HalfError;
use crate::initiator::{self, InitiatorError, NvmeCommand};
use crate::nvme::{self, NamespaceCommand};
use crate::programs::{self, OffloadCommand, OffloadError};
use crate::pushdown::{self, PushdownCommand, PushdownError};
use crate::sim::{self, SCENARIOS, SimError, SimOptions};
use crate::status::{Health, StatusError, fetch, show};
use crate::supervise::{self, UpError};
use crate::terminal::{GOOD, say, styled};
use crate::volumes;
use crate::volumes::admin::command::VolumeCommand;
use crate::worker::{self, HalfToRun};

/// Ended as asked.
pub const EXIT_SUCCESS: u8 = 0;
/// Something failed.
pub const EXIT_FAILURE: u8 = 1;
/// The command line or the configuration is wrong: trying again without a change will not help.
pub const EXIT_CONFIGURATION: u8 = 2;

/// A disaggregated storage server, split between a card and a host.
#[derive(Debug, Parser)]
#[command(version, about, long_about = None, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  outboard up                       start card and host on this machine, data in ./outboard-data
  outboard status                   see how they are (from another terminal)
  outboard files put FILE /         store a file on the card; `outboard files --help` tells more
  redis-cli set key value           use the key-value store, as any Redis client does
  outboard config show > my.toml    get a configuration to edit
  outboard config check my.toml     have it checked
  outboard up --config my.toml      use it

The environment variable OUTBOARD_LOG overrides the log level: OUTBOARD_LOG=debug outboard up
Exit codes: 0 success, 1 failure, 2 a mistake in the command line or the configuration";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start card and host, and keep them running
    #[command(after_help = "\
Examples:
  outboard up
  outboard up --data /srv/outboard --config outboard.toml
  outboard up --json                one line of JSON for each event, for scripts
  outboard up --format              begin anew: destroys the files on the card's device

Ctrl-C or SIGTERM stops both halves. A half that dies is started again.")]
    Up(UpOptions),
    /// Run the card alone, in the foreground
    #[command(after_help = "\
Examples:
  outboard card --config outboard.toml
  outboard card --data /srv/outboard --json
  outboard card --data /srv/outboard --format    begin anew: destroys the files on its device")]
    Card(CardOptions),
    /// Run the host alone, in the foreground
    #[command(after_help = "\
Examples:
  outboard host --config outboard.toml
  outboard host --data /srv/outboard --json")]
    Host(HalfOptions),
    /// Keep chunks of volumes, in the foreground
    #[command(after_help = "\
Examples:
  outboard chunkserver --data /srv/chunks
  outboard chunkserver --data /srv/chunks --listen 127.0.0.1:4441 --json

`outboard up --volumes` starts three of them. Each has a directory of its own, with its device in it.")]
    Chunkserver(ChunkServerOptions),
    /// Check a configuration, or show the one in effect
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Ask a running card how everything is
    #[command(after_help = "\
Examples:
  outboard status
  outboard status --json | jq .health
  outboard status --endpoint 127.0.0.1:9161

The exit code is 0 unless the card cannot be asked or its health is `failing`.")]
    Status(StatusOptions),
    /// Use the files on a running card, or check the device that they lie on
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard files put report.pdf /
  outboard files ls -l
  outboard files get /report.pdf copy.pdf
  outboard files df -h
  outboard files check              with the card stopped

Paths on the card are written /a/b or a/b. The card is looked for where `outboard up` has its
data: in ./outboard-data, or where --data DIR and --config FILE say.
What a command has done is durable when it ends."
    )]
    Files(FilesCommand),
    /// Add, remove, resize or list the namespaces that a running card serves over NVMe/TCP
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard namespace list
  outboard namespace add --size 100GiB
  outboard namespace resize 1 32GiB
  outboard namespace rm 2

Hosts that are connected see each change at once."
    )]
    Namespace(NamespaceCommand),
    /// Make, list, show, resize and remove the volumes of a running card
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard volume create data --size 100GiB
  outboard volume ls
  outboard volume resize data --size 200GiB
  outboard volume rm data

A volume is a disk for any NVMe/TCP initiator, compressed and kept on several chunk servers.
`outboard up --volumes` serves them; what a command has done is durable when it ends."
    )]
    Volume(VolumeCommand),
    /// Use an NVMe/TCP target, ours or another: find it, look at it, read and write its namespaces
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard nvme discover
  outboard nvme list
  outboard nvme id --nsid 1
  outboard nvme read --length 4KiB | xxd | head
  outboard nvme write --input disk.img --flush

Without options this is the card that `outboard up` starts on this machine, as any host finds it."
    )]
    Nvme(NvmeCommand),
    /// Work on programs for the card (eBPF): have them verified, run them, look at them
    #[command(
        subcommand,
        after_help = "\
Examples:
  clang -target bpf -O2 -g -c get.c -o get.o
  outboard bpf verify get.o
  outboard bpf run get.o --data node.bin --scratch query.bin
  outboard bpf run get.o --data node.bin --trace
  outboard bpf disasm get.o

No card is needed. `outboard offload` loads programs into a running one."
    )]
    Bpf(BpfCommand),
    /// Load programs (eBPF) into a running card, which then asks them about a service's requests
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard offload load examples/programs/kv_get.o
  outboard offload ls
  outboard offload rm kv_get

A program that is loaded answers from the next request on, until it is taken out, and stays
over restarts of the card. What it leaves or fails at, the service answers itself.
docs/programs.md tells how to write one."
    )]
    Offload(OffloadCommand),
    /// Send storage functions (eBPF) to a target over NVMe/TCP, and run them over its files
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard files put README.md /pushdown/README.md
  outboard pushdown load examples/programs/count_lines.o
  outboard pushdown run count_lines --file README.md --length 4096 --u64 1000000 --answer 40
  outboard pushdown ls
  outboard pushdown btree --help    trees to look keys up in
  outboard pushdown rocksdb --help  databases of RocksDB's

One request is a whole chain of reads, which the program leads on the card: docs/pushdown.md."
    )]
    Pushdown(PushdownCommand),
    /// Measure, each time against a baseline in the same run
    #[command(after_help = "\
Examples:
  outboard bench                    list the benchmarks
  outboard bench NAME --quick
  outboard bench NAME --json report.json --plot report.svg")]
    Bench(BenchOptions),
    /// Simulate, from a seed
    #[command(after_help = "\
Examples:
  outboard sim                      list the scenarios
  outboard sim NAME --seed 42
  outboard sim NAME --seed 42 --trace 10000
  outboard sim NAME --seeds 0..1000 --steps 20000")]
    Sim(SimOptions),
    /// The host's half of `bench ring`, which that starts by itself
    #[command(hide = true)]
    BenchRingProducers(ProducerOptions),
    /// The host's half of the doorbell's round trip
    #[command(hide = true)]
    BenchRingDoorbell(DoorbellOptions),
    /// The card of `bench files`, which that starts by itself
    #[command(hide = true)]
    BenchFilesCard(FilesCardOptions),
    /// Other work on the host's core, which `bench kv` starts by itself
    #[command(hide = true)]
    BenchHog(HogOptions),
    /// Requests of one kind, for `cargo xtask paths`
    #[command(hide = true)]
    BenchPath(PathOptions),
    /// The card of `bench remote`, which that starts by itself
    #[command(hide = true)]
    BenchRemoteCard(RemoteCardOptions),
    /// The host of `bench remote`, which that starts by itself
    #[command(hide = true)]
    BenchRemoteHost(RemoteHostOptions),
}

/// Where the configuration comes from.
#[derive(Clone, Debug, Args)]
pub struct ConfigOptions {
    /// The configuration; without it, the defaults hold
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The data directory, whatever the configuration says [default: ./outboard-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

impl ConfigOptions {
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        Config::load(self.config.as_deref(), self.data.as_deref())
    }
}

/// `outboard up`.
#[derive(Clone, Debug, Args)]
pub struct UpOptions {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigOptions,
    /// Format the device of the card's files first, which destroys whatever it holds
    #[arg(long)]
    pub format: bool,
    /// Serve volumes too, kept by three chunk servers
    #[arg(long)]
    pub volumes: bool,
    /// Tell each event as a line of JSON instead
    #[arg(long)]
    pub json: bool,
}

/// `outboard card`.
#[derive(Clone, Debug, Args)]
pub struct CardOptions {
    /// What both halves can be told.
    #[command(flatten)]
    pub half: HalfOptions,
    /// Format the device of the card's files first, which destroys whatever it holds
    #[arg(long)]
    pub format: bool,
}

/// `outboard card` and `outboard host`.
#[derive(Clone, Debug, Args)]
pub struct HalfOptions {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigOptions,
    /// Say as a line of JSON when it is ready, or why it failed
    #[arg(long)]
    pub json: bool,
    /// Serve volumes too, whatever the configuration says
    #[arg(long)]
    pub volumes: bool,
    // Set by `outboard up`: the process to die with.
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) supervisor: Option<i32>,
}

/// `outboard config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Explain every mistake in a configuration
    #[command(after_help = "\
Examples:
  outboard config check my.toml
  outboard config check my.toml --json")]
    Check {
        /// The file to check
        file: PathBuf,
        /// Report the mistakes as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the configuration in effect, as a file that can be edited
    #[command(after_help = "\
Examples:
  outboard config show > my.toml
  outboard config show --config my.toml --data /srv/outboard")]
    Show {
        /// The configuration.
        #[command(flatten)]
        config: ConfigOptions,
        /// Show it as JSON
        #[arg(long)]
        json: bool,
    },
}

/// `outboard status`.
#[derive(Clone, Debug, Args)]
pub struct StatusOptions {
    /// Where to ask [default: the address in the configuration]
    #[arg(long, value_name = "ADDRESS")]
    pub endpoint: Option<SocketAddr>,
    /// The configuration that says where to ask
    #[arg(long, value_name = "FILE", conflicts_with = "endpoint")]
    pub config: Option<PathBuf>,
    /// Show the answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A half.
    #[error(transparent)]
    Half(#[from] HalfError),
    /// The supervisor.
    #[error(transparent)]
    Up(#[from] UpError),
    /// The status.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// A command about files.
    #[error(transparent)]
    Files(FilesError),
    /// A command that a running card was to carry out.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A command about a service's programs.
    #[error(transparent)]
    Offload(OffloadError),
    /// A command about a target.
    #[error(transparent)]
    Initiator(InitiatorError),
    /// A command about storage functions.
    #[error(transparent)]
    Pushdown(PushdownError),
    /// A command about a program.
    #[error(transparent)]
    Bpf(BpfError),
    /// The host's half of a benchmark.
    #[error("the host's half of the benchmark: {0}")]
    BenchHalf(BenchFailure),
    /// The status came, and is bad.
    #[error("the card is failing: see the checks above")]
    Failing,
    /// What failed has been told already, in the form that was asked for.
    #[error("failed")]
    Told {
        /// What the process ends with.
        exit_code: u8,
    },
    /// A benchmark.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A simulation.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl From<FilesError> for CommandError {
    fn from(error: FilesError) -> Self {
        match error {
            FilesError::Told => Self::Told { exit_code: EXIT_FAILURE },
            FilesError::Output(error) => Self::Output(error),
            error => Self::Files(error),
        }
    }
}

impl From<PushdownError> for CommandError {
    fn from(error: PushdownError) -> Self {
        match error {
            PushdownError::Told => Self::Told { exit_code: EXIT_FAILURE },
            PushdownError::Output(error) => Self::Output(error),
            error => Self::Pushdown(error),
        }
    }
}

impl From<InitiatorError> for CommandError {
    fn from(error: InitiatorError) -> Self {
        match error {
            InitiatorError::Told => Self::Told { exit_code: EXIT_FAILURE },
            InitiatorError::Output(error) => Self::Output(error),
            error => Self::Initiator(error),
        }
    }
}

impl From<BpfError> for CommandError {
    fn from(error: BpfError) -> Self {
        match error {
            BpfError::Refused => Self::Told { exit_code: EXIT_FAILURE },
            BpfError::Output(error) => Self::Output(error),
            error => Self::Bpf(error),
        }
    }
}

impl CommandError {
    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let configuration = match self {
            Self::Config(_) => true,
            Self::Half(error) => error.is_configuration(),
            Self::Up(error) => error.is_configuration(),
            Self::Files(error) => error.is_configuration(),
            Self::Initiator(error) => error.is_configuration(),
            Self::Pushdown(error) => error.is_configuration(),
            Self::Bench(error) => matches!(error, BenchError::Unknown { .. }),
            Self::Sim(error) => matches!(error, SimError::Unknown { .. } | SimError::NoSeed),
            Self::Told { exit_code } => return *exit_code,
            Self::Control(_)
            | Self::Offload(_)
            | Self::Bpf(_)
            | Self::Status(_)
            | Self::BenchHalf(_)
            | Self::Failing
            | Self::Output(_) => false,
        };
        if configuration { EXIT_CONFIGURATION } else { EXIT_FAILURE }
    }

    /// Whether there is nothing to say: it has been said, or the reader of the output went away.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        if matches!(self, Self::Told { .. }) {
            return true;
        }
        let (Self::Output(error)
        | Self::Bench(BenchError::Output(error))
        | Self::Sim(SimError::Output(error))) = self
        else {
            return false;
        };
        error.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Does what was typed.
pub fn run(cli: Cli) -> Result<(), CommandError> {
    match cli.command {
        Command::Up(options) => up(&options),
        Command::Card(CardOptions { half, format }) => worker::run(HalfToRun::Card { format }, &half),
        Command::Host(options) => worker::run(HalfToRun::Host, &options),
        Command::Chunkserver(options) => chunkserver::run(&options),
        Command::Config(ConfigCommand::Check { file, json }) => check_config(&file, json),
        Command::Config(ConfigCommand::Show { config, json }) => show_config(&config, json),
        Command::Status(options) => status(&options),
        Command::Files(command) => Ok(files::run(&command)?),
        Command::Namespace(command) => nvme::run(&command),
        Command::Volume(command) => volumes::admin::command::run(&command),
        Command::Nvme(command) => Ok(initiator::run(&command)?),
        Command::Bpf(command) => Ok(bpf::run(&command)?),
        Command::Offload(command) => programs::run(&command),
        Command::Pushdown(command) => Ok(pushdown::run(&command)?),
        Command::Bench(options) => Ok(bench::run(BENCHES, &options)?),
        Command::Sim(options) => Ok(sim::run(SCENARIOS, &options)?),
        Command::BenchRingProducers(options) => run_producers(&options).map_err(CommandError::BenchHalf),
        Command::BenchRingDoorbell(options) => run_doorbell(&options).map_err(CommandError::BenchHalf),
        Command::BenchFilesCard(options) => run_files_card(&options).map_err(CommandError::BenchHalf),
        Command::BenchPath(options) => run_path(&options).map_err(CommandError::BenchHalf),
        Command::BenchHog(options) => run_hog(&options).map_err(CommandError::BenchHalf),
        Command::BenchRemoteCard(options) => run_remote_card(&options).map_err(CommandError::BenchHalf),
        Command::BenchRemoteHost(options) => run_remote_host(&options).map_err(CommandError::BenchHalf),
    }
}

fn up(options: &UpOptions) -> Result<(), CommandError> {
    let mut config = options.config.load()?;
    config.volumes.enabled |= options.volumes;
    Ok(supervise::up(&config, options.format, options.json)?)
}

fn check_config(file: &Path, json: bool) -> Result<(), CommandError> {
    let outcome = Config::load(Some(file), None);
    if json {
        let mistakes = match &outcome {
            Err(ConfigError::Mistakes(explanation)) => explanation
                .mistakes()
                .map(|(mistake, place)| {
                    serde_json::json!({
                        "file": explanation.file(), "line": place.line, "column": place.column,
                        "text": place.text, "message": mistake.message, "hint": mistake.hint,
                    })
                })
                .collect(),
            Err(error) => vec![serde_json::json!({ "file": file, "message": error.to_string() })],
            Ok(_) => Vec::new(),
        };
        say(&serde_json::json!({ "ok": outcome.is_ok(), "mistakes": mistakes }).to_string())?;
    } else if outcome.is_ok() {
        say(&format!("{}: {}", file.display(), styled(GOOD, "ok")))?;
    }
    outcome.map(drop).map_err(CommandError::from)
}

fn show_config(options: &ConfigOptions, json: bool) -> Result<(), CommandError> {
    let config = options.load()?;
    let text = if json {
        serde_json::to_string_pretty(&config).map_err(io::Error::from)?
    } else {
        config.to_toml().map_err(io::Error::other)?
    };
    Ok(say(text.trim_end())?)
}

fn status(options: &StatusOptions) -> Result<(), CommandError> {
    let address = match options.endpoint {
        Some(address) => address,
        None => Config::load(options.config.as_deref(), None)?.status.listen,
    };
    let status = fetch(address)?;
    if options.json {
        say(&serde_json::to_string_pretty(&status).map_err(io::Error::from)?)?;
    } else {
        say(&show(&status))?;
    }
    if status.health == Health::Failing { Err(CommandError::Failing) } else { Ok(()) }
}
