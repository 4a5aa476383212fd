//! What can be typed after `outboard pushdown rocksdb`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ob_rocksdb::{Database, Error, Files, Options, ReadError, Sequence};

use super::counted::Counted;
use super::{get, list, scan};
use crate::pushdown::error::PushdownError;
use crate::pushdown::text::escaped;

/// The commands about RocksDB's directories.
#[derive(Debug, Subcommand)]
pub enum RocksdbCommand {
    /// Look keys up: the value of one, or a line for each that is there
    #[command(after_help = "\
Examples:
  outboard pushdown rocksdb get /srv/db some-key
  outboard pushdown rocksdb get /srv/db 6b31 6b32 --hex --family sums
  sudo outboard pushdown rocksdb get /mnt/db some-key --device /dev/nvme0n1 --verbose

Of a mounted directory the card that has its tables looks into them, with one request a key; what it does not
answer is read in the ordinary way, and the value is the same. Writes that are only in RocksDB's log are seen too.
Of several keys each line is a key, a tab and its value. Bytes that are no text are shown as \\x1b; --hex has all
of them. The exit code is 1 if a key is not there.")]
    Get(GetOptions),
    /// Show keys with their values, in order
    #[command(after_help = "\
Examples:
  outboard pushdown rocksdb scan /srv/db --limit 10
  outboard pushdown rocksdb scan /srv/db --from user: --to user;
  outboard pushdown rocksdb scan /srv/db --reverse --limit 1 --hex

Each line is a key, a tab and its value. It goes over what the directory had when it began, also while RocksDB
writes. Ordinary reads do it all.")]
    Scan(ScanOptions),
    /// List column families, their levels and tables, and the newest write
    #[command(after_help = "\
Examples:
  outboard pushdown rocksdb ls /srv/db
  outboard pushdown rocksdb ls /srv/db --tables
  outboard pushdown rocksdb ls /srv/db --json | jq .last_sequence")]
    Ls(ListOptions),
}

/// Which part of a database, at which instant, and how it is written.
#[derive(Clone, Debug, Args)]
pub struct FamilyOptions {
    /// The column family
    #[arg(long, default_value = "default")]
    pub family: String,
    /// What writes up to this sequence number have left [default: all of them]
    ///
    /// Only while RocksDB itself holds a snapshot of that number does it keep what only that one sees.
    #[arg(long, value_name = "SEQUENCE")]
    pub snapshot: Option<u64>,
    /// Keys and values are hexadecimal digits, as typed and as shown
    #[arg(long)]
    pub hex: bool,
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Say on standard error who answered, and with how many reads
    #[arg(long, short)]
    pub verbose: bool,
}

/// `outboard pushdown rocksdb get`.
#[derive(Clone, Debug, Args)]
pub struct GetOptions {
    /// The database's directory
    pub directory: PathBuf,
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<OsString>,
    /// Which.
    #[command(flatten)]
    pub family: FamilyOptions,
    /// The namespace that the directory is mounted from, such as /dev/nvme0n1: its card looks into the tables
    ///
    /// Only root may ask it.
    #[arg(long)]
    pub device: Option<PathBuf>,
}

/// `outboard pushdown rocksdb scan`.
#[derive(Clone, Debug, Args)]
pub struct ScanOptions {
    /// The database's directory
    pub directory: PathBuf,
    /// The first key that may be shown
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// The key before which the last one is
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// So many keys at most [default: all]
    #[arg(long, value_name = "KEYS")]
    pub limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Which.
    #[command(flatten)]
    pub family: FamilyOptions,
}

/// `outboard pushdown rocksdb ls`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// The database's directory
    pub directory: PathBuf,
    /// A line for each table
    #[arg(long)]
    pub tables: bool,
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
}

impl FamilyOptions {
    pub(super) fn snapshot(&self) -> Option<Sequence> {
        self.snapshot.map(Sequence)
    }

    /// The bytes of a key that was typed.
    pub(super) fn bytes(&self, typed: &OsString) -> Result<Vec<u8>, PushdownError> {
        if !self.hex {
            return Ok(typed.as_bytes().to_vec());
        }
        let digits = typed.to_string_lossy();
        crate::nvme::unhex(&digits).ok_or_else(|| PushdownError::Request {
            problem: format!("`{digits}` are no bytes in hexadecimal"),
            hint: "two digits a byte, such as 0a1b; without --hex a key is the text that was typed".into(),
        })
    }

    /// Bytes as they are shown.
    pub(super) fn show(&self, bytes: &[u8]) -> String {
        if self.hex { crate::nvme::hex(bytes) } else { escaped(bytes) }
    }
}

/// The file that every database has, at every instant.
const CURRENT: &str = "CURRENT";

/// Opens a database for one command.
pub(super) async fn open<F: Files>(path: &Path, files: F) -> Result<Database<Counted<F>>, PushdownError> {
    // A directory that is not there is told as such, and not as a file that it would have.
    path.read_dir().map_err(|source| PushdownError::Local { path: path.to_owned(), source })?;
    // The reader would take it for a directory that changes, and look again and again.
    if !path.join(CURRENT).exists() {
        return Err(failed(path, Error::Read(ReadError::NotFound(CURRENT.to_owned()))));
    }
    // A command ends before the cache would have learnt anything from a sample.
    let options = Options { sample_one_in: 0, ..Options::default() };
    Database::open(Counted::new(files), options).await.map_err(|error| failed(path, error))
}

pub(super) fn failed(path: &Path, error: Error) -> PushdownError {
    PushdownError::Database { path: path.to_owned(), error: Box::new(error) }
}

/// Does what was typed.
pub(crate) fn run(command: &RocksdbCommand) -> Result<(), PushdownError> {
    match command {
        RocksdbCommand::Get(options) => get::get(options),
        RocksdbCommand::Scan(options) => scan::scan(options),
        RocksdbCommand::Ls(options) => list::list(options),
    }
}
