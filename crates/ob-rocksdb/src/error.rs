//! What can go wrong, in two layers: what the bytes say ([`ParseError`]), and where they were ([`enum@Error`]).

use thiserror::Error;

use crate::files::ReadError;

/// Bytes that are not what RocksDB writes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Damage {
    /// The bytes end within something.
    #[error("{0} ends too early")]
    Truncated(&'static str),
    /// A checksum does not match.
    #[error("the checksum of {0} does not match")]
    Checksum(&'static str),
    /// Something has a value that it cannot have.
    #[error("{0}")]
    Malformed(&'static str),
    /// Something is larger than this reader takes.
    #[error("{what} would take {len} bytes, more than {len_max}")]
    TooLarge {
        /// What it is.
        what: &'static str,
        /// Its size as the bytes give it.
        len: u64,
        /// The largest that is read.
        len_max: u64,
    },
}

/// What RocksDB can write and this reader does not read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unsupported {
    /// A comparator other than the bytewise one.
    #[error("keys are ordered by the comparator {0:?}, and only leveldb.BytewiseComparator is read")]
    Comparator(String),
    /// A table that is not block-based, by its magic number.
    #[error("the table's magic number is {0:#018x}, which is not that of a block-based table")]
    TableKind(u64),
    /// A block-based table of a later format.
    #[error("the table has format version {0}, and 0 to 6 are read")]
    FormatVersion(u32),
    /// A compression that RocksDB itself has to undo.
    #[error("blocks are compressed with {0}, which by RocksDB itself only are read")]
    Compression(&'static str),
    /// A compression dictionary.
    #[error("blocks are compressed with a dictionary")]
    CompressionDictionary,
    /// A log whose records are compressed.
    #[error("the log's records are compressed")]
    CompressedLog,
    /// A value in a blob file.
    #[error("the value is in a blob file (BlobDB)")]
    Blob,
    /// An entity of several columns.
    #[error("the entry is a wide-column entity")]
    WideColumns,
    /// User-defined timestamps.
    #[error("keys have user-defined timestamps")]
    Timestamps,
    /// A value with a preferred sequence number.
    #[error("the value was written with a write time (TimedPut)")]
    PreferredSequence,
    /// Transactions in two phases.
    #[error("the log has transactions in two phases ({0})")]
    TwoPhase(&'static str),
    /// A kind of entry of a later version.
    #[error("an entry has the kind {0:#04x}, which is not known")]
    EntryKind(u8),
    /// A record of the manifest of a later version, which may not be left out.
    #[error("the manifest has a field {0}, which is not known and may not be ignored")]
    ManifestField(u32),
    /// Tables in other directories.
    #[error("tables are in other directories than the database's (db_paths)")]
    OtherPath,
    /// Logs in another directory.
    #[error(
        "the OPTIONS file says that logs are in {0:?} (wal_dir), and none that is needed is here: what was written last would not be seen"
    )]
    OtherLogs(String),
    /// Blocks that keep keys and values apart.
    #[error("a block keeps keys and values apart, or has a later feature (footer {0:#010x})")]
    BlockFeature(u32),
    /// A kind of index of a later version.
    #[error("the table has an index of kind {0}, which is not known")]
    IndexKind(u32),
}

/// Why bytes were not taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// They are damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// They are well, and not supported.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// Why a database was not read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The files could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file's bytes are damaged: restore it, or ask RocksDB to repair the database.
    #[error("{file}, at {offset}: {damage}")]
    Damaged {
        /// The file's name.
        file: String,
        /// Where in it, as far as that is known.
        offset: u64,
        /// What is wrong.
        damage: Damage,
    },
    /// A file has what this reader does not read: use RocksDB itself.
    #[error("{file}: {what}")]
    Unsupported {
        /// The file's name.
        file: String,
        /// What it has.
        what: Unsupported,
    },
    /// The database has no such column family.
    #[error("there is no column family {0:?}")]
    NoColumnFamily(String),
    /// The value is merged from operands, and nobody says how: pass an operator.
    #[error("the column family {family:?} has merged values, and {reason}")]
    MergeOperator {
        /// The column family's name.
        family: String,
        /// Why no operator is known.
        reason: MergeObstacle,
    },
    /// The directory changed faster than it could be read, or a file is gone for good.
    #[error("files vanished {attempts} times while they were read, the last of them {file}")]
    Vanished {
        /// The file that was gone last.
        file: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// Somebody else's answer to a plan does not fit the plan.
    #[error("the outcome does not fit the plan: {0}")]
    Outcome(&'static str),
}

/// Why merged values cannot be put together.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MergeObstacle {
    /// No OPTIONS file says which operator it has.
    #[error("no OPTIONS file says by which operator")]
    NotNamed,
    /// The operator is not one of those built in.
    #[error("its operator {0:?} is not built in")]
    NotBuiltIn(String),
    /// The operator refused the operands.
    #[error("its operator refused the operands")]
    Refused,
}

impl Error {
    /// An error of parsing, with the place.
    pub(crate) fn at(file: &str, offset: u64, error: ParseError) -> Self {
        let file = file.to_owned();
        match error {
            ParseError::Damaged(damage) => Self::Damaged { file, offset, damage },
            ParseError::Unsupported(what) => Self::Unsupported { file, what },
        }
    }
}
