//! What can be typed after `outboard pushdown btree`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ob_pushdown::btree::{ENTRIES_MAX, VALUE_LEN};

use super::values::Values;
use super::{ask, make};
use crate::pushdown::command::{OF_A_CONNECTION, TargetOptions};
use crate::pushdown::error::PushdownError;

/// The commands about trees.
#[derive(Debug, Subcommand)]
pub enum BtreeCommand {
    /// Make a tree in a local file, of lines with a key and a value each
    #[command(after_help = "\
Examples:
  outboard pushdown btree make tree.bpfkv --sample 100000
  printf '7 seven\\n4711 some text\\n' | outboard pushdown btree make tree.bpfkv -
  outboard pushdown btree make prices.bpfkv prices.txt --values numbers
  outboard files put tree.bpfkv /pushdown/tree.bpfkv          then a card can be asked

A line is a key, a blank and a value. Keys are numbers from 0 to 18446744073709551615, in any order, each
once; values have up to 64 bytes. All of them are kept in memory, in 72 bytes each, while the file is written.
It appears whole or not at all, and is replaced only with --force.")]
    Make(MakeOptions),
    /// Look keys up: a line for each that is there
    #[command(after_help = "\
Examples:
  outboard pushdown btree get 7 4711 --file tree.bpfkv
  sudo outboard pushdown btree get 7 --device /dev/nvme0n1 --mounted /mnt/tree.bpfkv --verbose
  outboard pushdown btree get 7 --local tree.bpfkv

The programs that it takes are loaded into the card when it does not have them. Whenever they do not answer, the file
is read in the ordinary way, and --verbose says why: a mounted one by the file system, and one of the card's piece by
piece, by requests that bring its bytes. The exit code is 1 if a key is not there.")]
    Get(GetOptions),
    /// Show the keys of a range with their values, both ends included
    #[command(after_help = "\
Examples:
  outboard pushdown btree range 1000 2000 --file tree.bpfkv
  outboard pushdown btree range 0 18446744073709551615 --limit 10 --local tree.bpfkv --values hex

What is shown is what `make` takes. A request brings up to 46 keys; a file that is replaced between two of them is
seen as both.")]
    Range(RangeOptions),
    /// Count, add up, and find the least and the greatest of a number in the values of a range
    #[command(after_help = "\
Examples:
  outboard pushdown btree make tree.bpfkv --sample 100000 --values numbers
  outboard pushdown btree aggregate --file tree.bpfkv
  outboard pushdown btree aggregate 1000 2000 --field 8 --low 90 --only count --file tree.bpfkv

The number has eight bytes, little-endian, and begins at --field of each value; those below --low or above --high do not
count. The sum is modulo 2^64. The values stay where they are: the card answers with four numbers.")]
    Aggregate(AggregateOptions),
}

/// `outboard pushdown btree make`.
#[derive(Clone, Debug, Args)]
pub struct MakeOptions {
    /// The local file that it becomes
    pub file: PathBuf,
    /// Of what.
    #[command(flatten)]
    pub source: TreeSource,
    /// How values are written in the lines
    #[arg(long, value_enum, default_value_t = Values::Text)]
    pub values: Values,
    /// Entries of a node: fewer make a higher tree
    #[arg(long, default_value_t = ENTRIES_MAX as u8, value_parser = clap::value_parser!(u8).range(2..=ENTRIES_MAX as i64))]
    pub fanout: u8,
    /// Replace the file if it is there
    #[arg(long)]
    pub force: bool,
    /// Show what was made as JSON
    #[arg(long)]
    pub json: bool,
}

/// What a tree is made of.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TreeSource {
    /// A local file with the lines; `-` is standard input
    pub input: Option<PathBuf>,
    /// So many keys to try things with, from 1 on, instead of lines
    #[arg(long, value_name = "KEYS")]
    pub sample: Option<u64>,
}

/// Which file a tree is in.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TreeFile {
    /// A file of the card's, by its name below the subsystem's folder
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// A file of a file system that this machine has mounted from --device
    #[arg(long, value_name = "PATH", requires = "device")]
    pub mounted: Option<PathBuf>,
    /// A file of this machine, by ordinary reads alone
    #[arg(long, value_name = "PATH", conflicts_with_all = OF_A_CONNECTION, conflicts_with = "device")]
    pub local: Option<PathBuf>,
}

/// Where a tree is, and how its answers are shown.
#[derive(Clone, Debug, Args)]
pub struct TreeOptions {
    /// Which file.
    #[command(flatten)]
    pub file: TreeFile,
    /// Read nodes and values one by one, without the card's programs for trees: what these are to be compared with
    #[arg(long)]
    pub ordinary: bool,
    /// Say on standard error who answered, and with how many reads
    #[arg(long, short)]
    pub verbose: bool,
    /// Where.
    #[command(flatten)]
    pub target: TargetOptions,
}

/// `outboard pushdown btree get`.
#[derive(Clone, Debug, Args)]
pub struct GetOptions {
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<u64>,
    /// How values are shown
    #[arg(long, value_enum, default_value_t = Values::Text)]
    pub values: Values,
    /// Where it is.
    #[command(flatten)]
    pub tree: TreeOptions,
}

/// `outboard pushdown btree range`.
#[derive(Clone, Debug, Args)]
pub struct RangeOptions {
    /// The least key that is shown
    pub from: u64,
    /// The greatest key that is shown
    pub to: u64,
    /// So many keys at most [default: all]
    #[arg(long, value_name = "KEYS")]
    pub limit: Option<u64>,
    /// How values are shown
    #[arg(long, value_enum, default_value_t = Values::Text)]
    pub values: Values,
    /// Where it is.
    #[command(flatten)]
    pub tree: TreeOptions,
}

/// `outboard pushdown btree aggregate`.
#[derive(Clone, Debug, Args)]
pub struct AggregateOptions {
    /// The least key whose value counts
    #[arg(default_value_t = 0)]
    pub from: u64,
    /// The greatest key whose value counts [default: the greatest that can be]
    #[arg(default_value_t = u64::MAX, hide_default_value = true)]
    pub to: u64,
    /// Where in a value the number begins
    #[arg(long, value_name = "BYTE", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=FIELD_MAX))]
    pub field: u8,
    /// The least number that counts
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub low: u64,
    /// The greatest number that counts [default: the greatest that can be]
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX, hide_default_value = true)]
    pub high: u64,
    /// Show one of the four alone
    #[arg(long, value_enum, conflicts_with = "json")]
    pub only: Option<Only>,
    /// Where it is.
    #[command(flatten)]
    pub tree: TreeOptions,
}

/// Where the last number of a value begins.
const FIELD_MAX: i64 = VALUE_LEN as i64 - 8;

/// What comes of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Only {
    /// How many there are
    Count,
    /// Their sum
    Sum,
    /// The least
    Least,
    /// The greatest
    Greatest,
}

/// Does what was typed.
pub(crate) fn run(command: &BtreeCommand) -> Result<(), PushdownError> {
    match command {
        BtreeCommand::Make(options) => make::make(options),
        BtreeCommand::Get(options) => ask::get(options),
        BtreeCommand::Range(options) => ask::range(options),
        BtreeCommand::Aggregate(options) => ask::aggregate(options),
    }
}
