//! What can be typed after `outboard nvme`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ob_wire_nvme::text::{Nqn, NqnError};

use super::connect::{HostId, SecretSource};
use super::error::InitiatorError;
use super::{discovery, identity, transfer};
use crate::config::{ByteSize, QuantityError, TimeSpan};

/// The commands about NVMe/TCP targets.
#[derive(Debug, Subcommand)]
pub enum NvmeCommand {
    /// Ask a target which subsystems it has, and where
    #[command(after_help = "\
Examples:
  outboard nvme discover
  outboard nvme discover --address 192.0.2.7:8009
  outboard nvme discover --json | jq -r '.[].subsystem'")]
    Discover(DiscoverOptions),
    /// List the namespaces of a subsystem, or of all that a target has
    #[command(after_help = "\
Examples:
  outboard nvme list
  outboard nvme list --address 192.0.2.7:4420 --nqn nqn.2026-11.io.outboard:card
  outboard nvme list --json | jq '.[].uuid'

Without --nqn the address is asked for its subsystems first.")]
    List(ListOptions),
    /// Show what a controller says of itself, and of a namespace
    #[command(after_help = "\
Examples:
  outboard nvme id
  outboard nvme id --nsid 1 --json | jq .namespace.blocks")]
    Id(IdOptions),
    /// Read bytes of a namespace
    #[command(after_help = "\
Examples:
  outboard nvme read --length 4KiB | xxd | head
  outboard nvme read --offset 1GiB --length 64MiB --out part.img

Offset and length are multiples of the namespace's block. A local file appears whole or not at all,
and is replaced only with --force.")]
    Read(ReadOptions),
    /// Write bytes to a namespace
    #[command(after_help = "\
Examples:
  outboard nvme write --input disk.img --flush
  dd if=/dev/urandom bs=1M count=4 | outboard nvme write --offset 1GiB

Offset and length are multiples of the namespace's block. What was written survives a loss of power
with --flush or --fua, and with neither only when somebody flushes later.")]
    Write(WriteOptions),
}

/// Who asks, and how.
#[derive(Clone, Debug, Args)]
pub struct HostOptions {
    /// The host's name [default: made from its id]
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    pub hostnqn: Option<Nqn>,
    /// The host's id, a UUID [default: another one each time]
    ///
    /// A target takes one that it knows for the same host, connected anew, and ends that host's earlier connection.
    #[arg(long, value_name = "UUID", value_parser = HostId::parse)]
    pub hostid: Option<HostId>,
    /// What this host proves that it knows: DHHC-1:…, or @FILE that holds it [env: OUTBOARD_DHCHAP_SECRET]
    #[arg(long, value_name = "KEY", value_parser = SecretSource::parse)]
    pub dhchap_secret: Option<SecretSource>,
    /// What the controller has to prove that it knows, the same way [env: OUTBOARD_DHCHAP_CTRL_SECRET]
    #[arg(long, value_name = "KEY", value_parser = SecretSource::parse)]
    pub dhchap_ctrl_secret: Option<SecretSource>,
    /// Have a digest over every header
    #[arg(long)]
    pub header_digest: bool,
    /// Have a digest over all data
    #[arg(long)]
    pub data_digest: bool,
    /// How long the target may take to connect, and for each command
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timeout)]
    pub timeout: TimeSpan,
}

/// Which subsystem.
#[derive(Clone, Debug, Args)]
pub struct SubsystemOptions {
    /// Where the target is [default: 127.0.0.1:4420]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// The subsystem's name [default: the one that a card has unless told otherwise]
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    pub nqn: Option<Nqn>,
    /// Who asks.
    #[command(flatten)]
    pub host: HostOptions,
}

/// `outboard nvme discover`.
#[derive(Clone, Debug, Args)]
pub struct DiscoverOptions {
    /// Where the discovery service is [default: 127.0.0.1:8009]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Who asks.
    #[command(flatten)]
    pub host: HostOptions,
}

/// `outboard nvme list`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// Where the target is [default: 127.0.0.1:4420, and without --nqn 127.0.0.1:8009]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// The subsystem's name [default: all that are found]
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    pub nqn: Option<Nqn>,
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Who asks.
    #[command(flatten)]
    pub host: HostOptions,
}

/// `outboard nvme id`.
#[derive(Clone, Debug, Args)]
pub struct IdOptions {
    /// Show this namespace too
    #[arg(long)]
    pub nsid: Option<u32>,
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Which subsystem.
    #[command(flatten)]
    pub subsystem: SubsystemOptions,
}

/// Which bytes, and how they travel.
#[derive(Clone, Debug, Args)]
pub struct TransferOptions {
    /// The namespace
    #[arg(long, default_value_t = 1)]
    pub nsid: u32,
    /// Where the bytes begin, such as 4KiB
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = offset)]
    pub offset: ByteSize,
    /// I/O queues, each a connection of its own
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub queues: u16,
    /// Tell what was done as JSON
    #[arg(long)]
    pub json: bool,
    /// Which subsystem.
    #[command(flatten)]
    pub subsystem: SubsystemOptions,
}

/// `outboard nvme read`.
#[derive(Clone, Debug, Args)]
pub struct ReadOptions {
    /// How many bytes, such as 64MiB
    #[arg(long, value_name = "BYTES", value_parser = ByteSize::parse)]
    pub length: ByteSize,
    /// The local file that they go to; `-` is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub out: PathBuf,
    /// Replace a local file that is there already
    #[arg(long)]
    pub force: bool,
    /// Which bytes.
    #[command(flatten)]
    pub transfer: TransferOptions,
}

/// `outboard nvme write`.
#[derive(Clone, Debug, Args)]
pub struct WriteOptions {
    /// The local file that they come from; `-` is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub input: PathBuf,
    /// Make each command durable by itself
    #[arg(long)]
    pub fua: bool,
    /// Make everything durable at the end
    #[arg(long)]
    pub flush: bool,
    /// Which bytes.
    #[command(flatten)]
    pub transfer: TransferOptions,
}

fn nqn(text: &str) -> Result<Nqn, NqnError> {
    Nqn::new(text)
}

/// The beginning needs no unit.
fn offset(text: &str) -> Result<ByteSize, QuantityError> {
    if text.trim() == "0" { Ok(ByteSize(0)) } else { ByteSize::parse(text) }
}

fn timeout(text: &str) -> Result<TimeSpan, String> {
    match TimeSpan::parse(text) {
        Ok(span) if span.0.is_zero() => Err("no target answers in no time".to_owned()),
        Ok(span) => Ok(span),
        Err(error) => Err(error.to_string()),
    }
}

/// Does what was typed.
pub(crate) fn run(command: &NvmeCommand) -> Result<(), InitiatorError> {
    match command {
        NvmeCommand::Discover(options) => discovery::discover(options),
        NvmeCommand::List(options) => discovery::list(options),
        NvmeCommand::Id(options) => identity::identify(options),
        NvmeCommand::Read(options) => transfer::read(options),
        NvmeCommand::Write(options) => transfer::write(options),
    }
}
