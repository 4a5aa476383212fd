//! What can be typed after `outboard pushdown`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ob_ebpf::hooks::STORAGE_DATA_LEN_MAX;
use ob_nvme::initiator::block_on;
use ob_pushdown::client::{Answer, Listed, Read, Session};
use ob_wire_nvme::pushdown::SCRATCH_LEN;
use serde_json::json;

use super::btree::{self, BtreeCommand};
use super::carrier::{Carrier, begin, within};
use super::error::PushdownError;
use super::mounted::Mounted;
use super::rocksdb::{self, RocksdbCommand};
use crate::config::ByteSize;
use crate::initiator::SubsystemOptions;
use crate::terminal::{say, table};

/// Reads that a request may make, at most.
const READS_MAX: i64 = 1024;

/// The commands about storage functions.
#[derive(Debug, Subcommand)]
pub enum PushdownCommand {
    /// Load an object into a target; one of the same name is replaced
    #[command(after_help = "\
Examples:
  clang -target bpf -O2 -g -c -I crates/ob-ebpf/include examples/programs/bpfkv_get.c -o bpfkv_get.o
  outboard pushdown load bpfkv_get.o
  sudo outboard pushdown load bpfkv_get.o --device /dev/nvme0n1     over the kernel's own connection

The target verifies and compiles it, and says what is wrong if it is refused. Programs are a host's, by its
NQN: over the kernel's connection they are those of the name that it was connected with.")]
    Load(LoadOptions),
    /// List the programs that this host has at a target
    #[command(after_help = "\
Examples:
  outboard pushdown ls
  outboard pushdown ls --json | jq '.[].fuel'
  sudo outboard pushdown ls --device /dev/nvme0n1")]
    Ls(ListOptions),
    /// Take an object out
    #[command(after_help = "\
Examples:
  outboard pushdown rm bpfkv_get
  sudo outboard pushdown rm bpfkv_get --device /dev/nvme0n1

Requests that run end as they would have.")]
    Rm(RemoveOptions),
    /// Run a program once, and show its scratch
    #[command(after_help = "\
Examples:
  outboard files put tree.bpfkv /pushdown/tree.bpfkv
  outboard pushdown run bpfkv_get --file tree.bpfkv --length 512 --u64 4711 --answer 88

The program is called with what was read at --offset of the first file, and leads on from there;
its scratch begins with what --input, --hex or --u64 say.

Files of a file system that this machine has mounted from the card, with the kernel's own initiator:
  sudo nvme connect -t tcp -a 192.0.2.7 -s 4420 -n nqn.2026-11.io.outboard:card
  sudo mount /dev/nvme0n1 /mnt
  sudo outboard pushdown load count_lines.o --device /dev/nvme0n1
  sudo outboard pushdown run count_lines --device /dev/nvme0n1 --mounted /mnt/words --length 4KiB \\
      --u64 250000 --answer 40

The card reads the blocks that such a file has, past the file system, while a lease says that nobody writes
it. Whoever opens it for writing wins: there is no answer then. Programs that link ob_pushdown read the file
in the ordinary way instead; `run` has no other way, and says so.")]
    Run(RunOptions),
    /// Make trees in BPF-KV's format, and ask them where they lie
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard pushdown btree make tree.bpfkv --sample 100000
  outboard files mkdir /pushdown
  outboard files put tree.bpfkv /pushdown/tree.bpfkv
  outboard pushdown btree get 4711 --file tree.bpfkv --verbose"
    )]
    Btree(BtreeCommand),
    /// Read directories of RocksDB's, also while it writes them, and have their tables looked up where they lie
    #[command(
        subcommand,
        after_help = "\
Examples:
  outboard pushdown rocksdb ls /srv/db
  outboard pushdown rocksdb get /srv/db some-key
  sudo outboard pushdown rocksdb get /mnt/db some-key --device /dev/nvme0n1 --verbose

Nothing is written. docs/rocksdb.md has what is read, and what is refused."
    )]
    Rocksdb(RocksdbCommand),
}

/// Which target, and who asks.
#[derive(Clone, Debug, Args)]
pub struct TargetOptions {
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// The namespace that requests name
    #[arg(long, default_value_t = 1)]
    pub nsid: u32,
    /// A namespace that this machine's kernel has connected, such as /dev/nvme0n1: commands go over that connection
    ///
    /// Only root may send them. Everything about the connection is the kernel's: address, names, secrets, digests.
    #[arg(long, conflicts_with_all = OF_A_CONNECTION)]
    pub device: Option<PathBuf>,
    /// Which subsystem.
    #[command(flatten)]
    pub subsystem: SubsystemOptions,
}

/// What a connection of our own is told.
pub(super) const OF_A_CONNECTION: [&str; 10] = [
    "nsid",
    "address",
    "nqn",
    "hostnqn",
    "hostid",
    "dhchap_secret",
    "dhchap_ctrl_secret",
    "header_digest",
    "data_digest",
    "timeout",
];

/// `outboard pushdown load`.
#[derive(Clone, Debug, Args)]
pub struct LoadOptions {
    /// An object that clang has made for eBPF
    pub file: PathBuf,
    /// What it is called there [default: the file's name, without what follows its last dot]
    #[arg(long)]
    pub name: Option<String>,
    /// Where.
    #[command(flatten)]
    pub target: TargetOptions,
}

/// `outboard pushdown ls`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// Where.
    #[command(flatten)]
    pub target: TargetOptions,
}

/// `outboard pushdown rm`.
#[derive(Clone, Debug, Args)]
pub struct RemoveOptions {
    /// What `ls` calls it
    pub name: String,
    /// Where.
    #[command(flatten)]
    pub target: TargetOptions,
}

/// `outboard pushdown run`.
#[derive(Clone, Debug, Args)]
pub struct RunOptions {
    /// The object, or OBJECT/FUNCTION
    pub program: String,
    /// A file of the card's, below the folder that its subsystem allows; may be given more than once
    #[arg(long, value_name = "NAME", required_unless_present = "mounted")]
    pub file: Vec<String>,
    /// A file of an ext4 or xfs that is mounted from --device; may be given more than once
    ///
    /// A program knows files by their numbers: those of --file come first, then these. All together are 64 at most.
    #[arg(long, value_name = "PATH", requires = "device")]
    pub mounted: Vec<PathBuf>,
    /// Which of the files is read first, counted from 0
    #[arg(long, default_value_t = 0)]
    pub first: u16,
    /// Where the first read begins
    #[arg(long, default_value_t = 0)]
    pub offset: u64,
    /// Bytes of the first read, such as 512 or 4KiB
    #[arg(long, value_parser = length)]
    pub length: u32,
    /// Reads that the program may make, the first one too, up to 1024 [default: 64]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=READS_MAX))]
    pub reads: Option<u16>,
    /// A local file that the scratch begins with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hex", "u64"])]
    pub input: Option<PathBuf>,
    /// Bytes that the scratch begins with, in hexadecimal
    #[arg(long, conflicts_with = "u64")]
    pub hex: Option<String>,
    /// Numbers of eight bytes that the scratch begins with; may be given more than once
    #[arg(long = "u64", value_name = "NUMBER")]
    pub u64: Vec<u64>,
    /// Bytes of the scratch that are shown
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub answer: u32,
    /// A local file that they go to; `-` is standard output, as they are
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Where.
    #[command(flatten)]
    pub target: TargetOptions,
}

/// Bytes, with a unit or without.
fn length(text: &str) -> Result<u32, String> {
    let bytes = match text.trim().parse::<u64>() {
        Ok(bytes) => bytes,
        Err(_) => ByteSize::parse(text).map_err(|error| error.to_string())?.0,
    };
    let is_read = |bytes: &u32| (1..=STORAGE_DATA_LEN_MAX).contains(bytes);
    u32::try_from(bytes).ok().filter(is_read).ok_or_else(|| "a read has 1B to 128KiB".to_owned())
}

/// Does what was typed.
pub(crate) fn run(command: &PushdownCommand) -> Result<(), PushdownError> {
    match command {
        PushdownCommand::Load(options) => load(options),
        PushdownCommand::Ls(options) => block_on(async {
            within(begin(&options.target).await?, async |session| list(session, &options.target).await).await
        }),
        PushdownCommand::Rm(options) => block_on(async {
            within(begin(&options.target).await?, async |session| {
                session.unload(&options.name).await?;
                list(session, &options.target).await
            })
            .await
        }),
        PushdownCommand::Run(options) => run_once(options),
        PushdownCommand::Btree(command) => btree::run(command),
        PushdownCommand::Rocksdb(command) => rocksdb::run(command),
    }
}

fn read_local(path: &Path) -> Result<Vec<u8>, PushdownError> {
    std::fs::read(path).map_err(|source| PushdownError::Local { path: path.to_owned(), source })
}

fn load(options: &LoadOptions) -> Result<(), PushdownError> {
    let object = read_local(&options.file)?;
    let stem = options.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = options.name.clone().or(stem).unwrap_or_default();
    block_on(async {
        within(begin(&options.target).await?, async |session| {
            session.load(&name, &object).await?;
            list(session, &options.target).await
        })
        .await
    })
}

async fn list(session: &Session<Carrier>, options: &TargetOptions) -> Result<(), PushdownError> {
    let programs = session.list().await?;
    if options.json {
        let told: Vec<_> = programs.iter().map(told).collect();
        say(&format!("{:#}", json!(told)))?;
        return Ok(());
    }
    if programs.is_empty() {
        say("This host has no programs there. `outboard pushdown load FILE` loads some.")?;
        return Ok(());
    }
    let heads = ["PROGRAM", "INSTRUCTIONS", "CHECKS", "CALLS", "FAULTS", "FUEL A CALL"];
    let rows = programs.iter().map(|program| {
        let average = program.fuel.checked_div(program.calls).unwrap_or_default();
        vec![
            format!("{}/{}", program.object, program.function),
            program.instructions.to_string(),
            program.checks.to_string(),
            program.calls.to_string(),
            program.faults.to_string(),
            average.to_string(),
        ]
    });
    say(table(&heads, &rows.collect::<Vec<_>>()).trim_end())?;
    Ok(())
}

fn told(program: &Listed) -> serde_json::Value {
    json!({
        "object": program.object, "function": program.function, "instructions": program.instructions,
        "checks": program.checks, "calls": program.calls, "faults": program.faults, "fuel": program.fuel,
    })
}

fn input(options: &RunOptions) -> Result<Vec<u8>, PushdownError> {
    let bytes = match (&options.input, &options.hex) {
        (Some(path), _) => read_local(path)?,
        (None, Some(digits)) => crate::nvme::unhex(digits).ok_or_else(|| PushdownError::Request {
            problem: format!("`{digits}` are no bytes in hexadecimal"),
            hint: "two digits a byte, such as 0a1b".into(),
        })?,
        (None, None) => options.u64.iter().flat_map(|number| number.to_le_bytes()).collect(),
    };
    if bytes.len() > SCRATCH_LEN {
        return Err(PushdownError::Request {
            problem: format!("{} bytes are more than a scratch has", bytes.len()),
            hint: "it has 4096".into(),
        });
    }
    Ok(bytes)
}

fn run_once(options: &RunOptions) -> Result<(), PushdownError> {
    let input = input(options)?;
    let answer = block_on(async {
        within(begin(&options.target).await?, async |session| ask(session, options, &input).await).await
    })?;
    show(options, &answer)
}

async fn ask(
    session: &Session<Carrier>,
    options: &RunOptions,
    input: &[u8],
) -> Result<Answer, PushdownError> {
    let mounted = Mounted::open(&options.mounted, session.transport())?;
    let named = options.file.iter().map(|name| session.named(name));
    let files: Vec<_> = named.chain(mounted.sources().map(|source| session.mapped(source))).collect();
    let query = session.query(&session.program(&options.program, None), &files)?;
    let query = query.with_read_len_max(options.length.max(READ_LEN_MIN));
    let query = query.with_reads_max(options.reads.unwrap_or_default());
    let first = Read { file: options.first, offset: options.offset, len: options.length };
    let answer = session.ask(&query, first, input, options.answer).await;
    answer.map_err(|error| mounted.explain(error))
}

/// Bytes of reads that any program may make.
const READ_LEN_MIN: u32 = 16 << 10;

fn show(options: &RunOptions, answer: &Answer) -> Result<(), PushdownError> {
    let Answer { scratch, reads } = answer;
    if let Some(path) = &options.out {
        if path.as_os_str() == "-" {
            return Ok(io::stdout().write_all(scratch)?);
        }
        std::fs::write(path, scratch)
            .map_err(|source| PushdownError::Local { path: path.clone(), source })?;
    }
    let hex = crate::nvme::hex(scratch);
    if options.target.json {
        say(&format!("{:#}", json!({ "reads": reads, "scratch": hex })))?;
        return Ok(());
    }
    say(&format!("{reads} {}, {} bytes", if *reads == 1 { "read" } else { "reads" }, scratch.len()))?;
    if options.out.is_none() {
        for (line, bytes) in scratch.chunks(16).enumerate() {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let letter = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
            let letters: String = bytes.iter().map(letter).collect();
            say(&format!("{:04x}  {:<47}  {letters}", line * 16, digits.join(" ")))?;
        }
    }
    Ok(())
}
