//! Work on programs: have them verified, run them, look at them. Nothing of this needs a card.
//!
//! ```text
//!   FILE (object, text or bare instructions) ── load ──▶ Program, World ─┬─▶ verify: a verdict for people
//!                                                                        ├─▶ run: compiled or interpreted, on files
//!                                                                        └─▶ disasm, stats
//! ```

mod load;
mod run;
mod verify;

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand};

pub use load::LoadFailure;
pub use run::RunFailure;

use crate::terminal::say;
use ob_ebpf::text::{Listing, disassemble};

/// `outboard bpf`.
#[derive(Clone, Debug, Subcommand)]
pub enum BpfCommand {
    /// Say whether a program would be accepted, and why not, or what is left to be checked when it runs
    Verify(VerifyOptions),
    /// Verify a program and run it, on data from a file
    Run(RunOptions),
    /// Show a program's instructions, with the source lines that they were compiled from
    Disasm(FileOptions),
    /// Count what a program has: instructions, accesses, checks, and what compiling it takes
    Stats(StatsOptions),
}

/// Which program.
#[derive(Clone, Debug, Args)]
pub struct FileOptions {
    /// An object of `clang -target bpf`, a text of instructions, or bare instructions
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Which program, if the object has several
    #[arg(long, value_name = "NAME")]
    pub entry: Option<String>,
    /// For which hook; without it, what the object's section says, or `storage`
    #[arg(long, value_name = "NAME")]
    pub hook: Option<String>,
}

/// `outboard bpf verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyOptions {
    /// Which program.
    #[command(flatten)]
    pub file: FileOptions,
    /// Refuse what would have to be checked when it runs
    #[arg(long)]
    pub strict: bool,
    /// Answer for scripts
    #[arg(long)]
    pub json: bool,
}

/// `outboard bpf run`.
#[derive(Clone, Debug, Args)]
pub struct RunOptions {
    /// Which program.
    #[command(flatten)]
    pub file: FileOptions,
    /// What the program is to look at
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// What the scratch holds at first; zeroes follow
    #[arg(long, value_name = "FILE")]
    pub scratch: Option<PathBuf>,
    /// Write the scratch there afterwards
    #[arg(long, value_name = "FILE")]
    pub scratch_out: Option<PathBuf>,
    /// A number of the context, such as offset=4096; may be given several times
    #[arg(long = "context", value_name = "FIELD=NUMBER")]
    pub context: Vec<String>,
    /// What the call may cost; a card without a configuration gives the default
    #[arg(long, value_name = "N", default_value_t = ob_programs::Limits::default().call_fuel)]
    pub fuel: u32,
    /// Interpret it instead of running compiled code
    #[arg(long)]
    pub interpret: bool,
    /// Show each instruction and what the registers hold before it; interprets
    #[arg(long)]
    pub trace: bool,
    /// Answer for scripts
    #[arg(long)]
    pub json: bool,
}

/// `outboard bpf stats`.
#[derive(Clone, Debug, Args)]
pub struct StatsOptions {
    /// Which program.
    #[command(flatten)]
    pub file: FileOptions,
    /// Answer for scripts
    #[arg(long)]
    pub json: bool,
}

/// Why a command about a program failed.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// There is no program.
    #[error(transparent)]
    Load(#[from] Box<LoadFailure>),
    /// It was refused; that has been told.
    #[error("refused")]
    Refused,
    /// It could not be run, or was stopped.
    #[error(transparent)]
    Run(#[from] RunFailure),
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Does what was typed.
pub fn run(command: &BpfCommand) -> Result<(), BpfError> {
    match command {
        BpfCommand::Verify(options) => verify::verify(options),
        BpfCommand::Run(options) => run::run(options),
        BpfCommand::Stats(options) => verify::stats(options),
        BpfCommand::Disasm(options) => {
            let loaded = load::load(options)?;
            let listing = Listing { has_lines: true, has_data: true };
            Ok(say(disassemble(&loaded.program, listing).trim_end())?)
        }
    }
}
