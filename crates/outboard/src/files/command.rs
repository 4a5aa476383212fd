//! What can be typed after `outboard files`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, Subcommand};

use super::error::FilesError;
use super::{check, get, names, put};
use crate::cli::ConfigOptions;

/// The commands about files.
#[derive(Debug, Subcommand)]
pub enum FilesCommand {
    /// List a directory
    #[command(after_help = "\
Examples:
  outboard files ls
  outboard files ls -l /backups
  outboard files ls --json | jq '.[].name'

Names come in the order of their bytes. On a terminal, control characters in them are shown
as escapes.")]
    Ls(ListOptions),
    /// Store a local file on the card
    #[command(after_help = "\
Examples:
  outboard files put report.pdf /              as /report.pdf
  outboard files put report.pdf /2026/q3.pdf -p
  tar c src | outboard files put - /src.tar
  outboard files put -- -odd-name /

When it ends, the file is whole and durable under its name; one that had the name before
is replaced in one step. If the card dies meanwhile and comes back, it begins again (but not
from standard input, which cannot be read twice).")]
    Put(PutOptions),
    /// Fetch a file from the card
    #[command(after_help = "\
Examples:
  outboard files get /report.pdf               as ./report.pdf
  outboard files get /report.pdf /tmp/
  outboard files get /src.tar - | tar x

A local file is written under another name first, and replaced only with --force.")]
    Get(GetOptions),
    /// Remove files and directories
    #[command(after_help = "\
Examples:
  outboard files rm /report.pdf /notes.txt
  outboard files rm -r /backups")]
    Rm(RemoveOptions),
    /// Rename or move a file or directory
    #[command(after_help = "\
Examples:
  outboard files mv /draft.txt /final.txt
  outboard files mv /final.txt /archive        into the directory, if there is one

A file that has the new name already is replaced, in one step.")]
    Mv(MoveOptions),
    /// Make directories
    #[command(after_help = "\
Examples:
  outboard files mkdir /backups
  outboard files mkdir -p /backups/2026/q3")]
    Mkdir(MakeDirectoryOptions),
    /// Tell how much space there is
    #[command(
        disable_help_flag = true,
        after_help = "\
Examples:
  outboard files df -h
  outboard files df --json | jq .free_bytes"
    )]
    Df(SpaceOptions),
    /// Tell what a path stands for
    #[command(after_help = "\
Examples:
  outboard files stat /report.pdf
  outboard files stat / --json")]
    Stat(StatOptions),
    /// Check a device's files, without a card and without changing anything
    #[command(after_help = "\
Examples:
  outboard files check
  outboard files check --device /dev/nvme0n1 --json

The card must not run meanwhile. The exit code is 0 if nothing is wrong, and 1 if something is.")]
    Check(CheckOptions),
}

/// `outboard files ls`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// The directory, or a file
    #[arg(default_value = "/", value_parser = card_path())]
    pub path: OsString,
    /// Show kinds and sizes
    #[arg(short)]
    pub long: bool,
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files put`.
#[derive(Clone, Debug, Args)]
pub struct PutOptions {
    /// The local file; `-` is standard input
    pub local: PathBuf,
    /// Its path on the card; a directory gets it under its own name
    #[arg(value_parser = card_path())]
    pub remote: OsString,
    /// Make directories that are missing
    #[arg(short, long)]
    pub parents: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files get`.
#[derive(Clone, Debug, Args)]
pub struct GetOptions {
    /// The file's path on the card
    #[arg(value_parser = card_path())]
    pub remote: OsString,
    /// Where it goes; a directory gets it under its own name, and `-` is standard output
    #[arg(default_value = ".")]
    pub local: PathBuf,
    /// Replace a local file that is there already
    #[arg(short, long)]
    pub force: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files rm`.
#[derive(Clone, Debug, Args)]
pub struct RemoveOptions {
    /// What to remove
    #[arg(required = true, value_name = "PATH", value_parser = card_path())]
    pub paths: Vec<OsString>,
    /// Directories too, with everything in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files mv`.
#[derive(Clone, Debug, Args)]
pub struct MoveOptions {
    /// What it is called now
    #[arg(value_parser = card_path())]
    pub from: OsString,
    /// What it will be called; a directory gets it under its own name
    #[arg(value_parser = card_path())]
    pub to: OsString,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files mkdir`.
#[derive(Clone, Debug, Args)]
pub struct MakeDirectoryOptions {
    /// The directories
    #[arg(required = true, value_name = "PATH", value_parser = card_path())]
    pub paths: Vec<OsString>,
    /// Make those they are in too, and mind none that is there already
    #[arg(short, long)]
    pub parents: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files df`.
#[derive(Clone, Debug, Args)]
pub struct SpaceOptions {
    /// Show sizes for people, such as 1.5 GiB
    #[arg(short = 'h', long)]
    pub human: bool,
    /// Show it as JSON
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files stat`.
#[derive(Clone, Debug, Args)]
pub struct StatOptions {
    /// The file or directory
    #[arg(value_parser = card_path())]
    pub path: OsString,
    /// Show it as JSON
    #[arg(long)]
    pub json: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard files check`.
#[derive(Clone, Debug, Args)]
pub struct CheckOptions {
    /// The device [default: the one that the configuration names]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["config", "data"])]
    pub device: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Which card's device.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// A path on the card. None at all is more likely a variable that is not set than the root.
fn card_path() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|text| {
        if text.is_empty() {
            Err("the path is empty\nhint: the root directory is written as /")
        } else {
            Ok(text)
        }
    })
}

/// Does what was typed.
pub(crate) fn run(command: &FilesCommand) -> Result<(), FilesError> {
    match command {
        FilesCommand::Ls(options) => names::list(options),
        FilesCommand::Put(options) => put::put(options),
        FilesCommand::Get(options) => get::get(options),
        FilesCommand::Rm(options) => names::remove(options),
        FilesCommand::Mv(options) => names::rename(options),
        FilesCommand::Mkdir(options) => names::make_directories(options),
        FilesCommand::Df(options) => names::space(options),
        FilesCommand::Stat(options) => names::stat(options),
        FilesCommand::Check(options) => check::check(options),
    }
}
