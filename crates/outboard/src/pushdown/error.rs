//! Why a command about storage functions did not succeed, and what to do about it.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ob_passthrough::extents::ExtentsError;
use ob_passthrough::lease::LeaseError;
use ob_pushdown::btree::{BTreeError, LoadError};
use ob_pushdown::client::{Detour, PushError};
use ob_pushdown::kernel::{KernelTransportError, NotMapped, OpenError};
use ob_rocksdb::{Error as DatabaseError, ReadError};

use crate::initiator::InitiatorError;

/// Why it did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum PushdownError {
    /// The target cannot be used.
    #[error(transparent)]
    Initiator(#[from] InitiatorError),
    /// The kernel carries no commands there.
    #[error(transparent)]
    Device(Box<KernelTransportError>),
    /// The target has said no.
    #[error("{error}{}", hint_of(.error))]
    Push {
        /// Why.
        error: Box<PushError>,
    },
    /// Something of this machine.
    #[error("cannot use {}: {source}", path.display())]
    Local {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file of a mounted file system cannot be read at all.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// Nobody would tell when somebody writes.
    #[error("leases cannot be watched: {0}")]
    Leases(LeaseError),
    /// A file of a mounted file system is not the card's to read now.
    #[error("the card cannot read {}: {why}", path.display())]
    Mounted {
        /// Which.
        path: PathBuf,
        /// Why.
        why: Unmapped,
    },
    /// What was typed cannot be.
    #[error("{problem}\nhint: {hint}")]
    Request {
        /// What.
        problem: String,
        /// What to do.
        hint: Cow<'static, str>,
    },
    /// There is no tree, or it does not answer.
    #[error("{}{}", .0, hint_of_tree(.0))]
    Tree(Box<BTreeProblem>),
    /// A file of the card's that it does not read.
    #[error("the card does not bring its file `{name}` either: {detour}{}", hint_of_unread(*detour))]
    Unread {
        /// Which.
        name: String,
        /// Why it does not.
        detour: Detour,
    },
    /// A database of RocksDB's cannot be read.
    #[error("cannot read {}: {error}{}", path.display(), hint_of_database(error))]
    Database {
        /// Its directory.
        path: PathBuf,
        /// Why not.
        error: Box<DatabaseError>,
    },
    /// What is missing has been told already.
    #[error("not everything was found")]
    Told,
    /// Nobody reads what is shown.
    #[error(transparent)]
    Output(#[from] io::Error),
}

/// What is the matter with a tree.
#[derive(Debug, thiserror::Error)]
pub enum BTreeProblem {
    /// It is not made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It does not answer.
    #[error(transparent)]
    Ask(#[from] BTreeError),
}

fn hint_of_tree(problem: &BTreeProblem) -> &'static str {
    match problem {
        BTreeProblem::Ask(BTreeError::Bad(_) | BTreeError::Short) => {
            "\nhint: a file that `outboard pushdown btree make` has made is meant"
        }
        _ => "",
    }
}

fn hint_of_unread(detour: Detour) -> &'static str {
    match detour {
        Detour::Changed => "\nhint: somebody writes it; ask again when it is done",
        _ => "\nhint: ask again later; or `outboard files get` brings a copy, which --local reads",
    }
}

fn hint_of_database(error: &DatabaseError) -> &'static str {
    match error {
        DatabaseError::Read(ReadError::NotFound(file)) | DatabaseError::Vanished { file, .. }
            if file == "CURRENT" =>
        {
            "\nhint: the directory that RocksDB was told to open is meant; it has a file CURRENT"
        }
        DatabaseError::NoColumnFamily(_) => {
            "\nhint: `outboard pushdown rocksdb ls DIR` lists those that there are"
        }
        DatabaseError::Unsupported { .. } => {
            "\nhint: docs/rocksdb.md lists what is read; RocksDB's own `ldb` reads the rest"
        }
        DatabaseError::MergeOperator { .. } => {
            "\nhint: a program that links ob_rocksdb can bring the operator along"
        }
        DatabaseError::Vanished { .. } => {
            "\nhint: a snapshot that RocksDB does not hold any more may be gone; else try again"
        }
        DatabaseError::Damaged { .. } => {
            "\nhint: `ldb repair` of RocksDB may save the rest; take a copy first"
        }
        _ => "",
    }
}

/// Why a file of a mounted file system has no map.
#[derive(Debug)]
pub enum Unmapped {
    /// It got none.
    Refused(Arc<NotMapped>),
    /// It had one, which ended while the request was under way.
    Meanwhile,
}

impl fmt::Display for Unmapped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(formatter, "{why}{}", hint_of_unmapped(why)),
            Self::Meanwhile => {
                write!(
                    formatter,
                    "it was opened for writing, or moved, while the program read it{WRITERS_WIN}"
                )
            }
        }
    }
}

/// Who wins, and what follows from it.
const WRITERS_WIN: &str = "\nhint: whoever writes wins: blocks are read past the file system only while nobody has the file open for \
    writing. A program that links ob_pushdown reads it in the ordinary way then; `run` has no other way. Run it again when the file \
    is closed: `fuser -v FILE` shows who has it open";

fn hint_of_unmapped(why: &NotMapped) -> Cow<'static, str> {
    match why {
        NotMapped::Lease(LeaseError::Busy) => WRITERS_WIN.into(),
        NotMapped::Lease(LeaseError::Unsupported) => {
            "\nhint: a regular file of an ext4 or xfs is meant".into()
        }
        NotMapped::Elsewhere { found, .. } => format!(
            "\nhint: `--device /dev/{found}` is where it lies; all files of a request are on one namespace"
        )
        .into(),
        NotMapped::Extents(ExtentsError::Unsuitable(_)) => {
            "\nhint: docs/leases.md lists files whose blocks are not their bytes; a copy of it may lie better"
                .into()
        }
        _ => "".into(),
    }
}

impl PushdownError {
    /// Whether what was typed is at fault.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Initiator(error) => error.is_configuration(),
            Self::Request { .. } => true,
            _ => false,
        }
    }
}

impl From<BTreeProblem> for PushdownError {
    fn from(problem: BTreeProblem) -> Self {
        match problem {
            BTreeProblem::Ask(BTreeError::Push(error)) => error.into(),
            problem => Self::Tree(Box::new(problem)),
        }
    }
}

impl From<PushError> for PushdownError {
    fn from(error: PushError) -> Self {
        Self::Push { error: Box::new(error) }
    }
}

fn hint_of(error: &PushError) -> &'static str {
    match error {
        PushError::Detour(Detour::Unsupported) => {
            "\nhint: it may be another's, or a card with `functions = false` in its [nvme]"
        }
        PushError::Detour(Detour::Unknown) => {
            "\nhint: `outboard pushdown ls` lists what this host has loaded there"
        }
        PushError::Detour(Detour::Range) => {
            "\nhint: a read is within a file that was named, and of as many bytes as the program asks for"
        }
        PushError::Detour(Detour::Reads) => "\nhint: --reads allows more, and a longer --length needs fewer",
        PushError::Detour(Detour::Changed | Detour::Unmapped) => {
            "\nhint: somebody writes the file; ask again when it is closed"
        }
        PushError::Detour(Detour::Fuel) => {
            "\nhint: the program computes too long for its reads; `outboard bpf run` says what a call costs"
        }
        PushError::Detour(Detour::Fault(_)) => {
            "\nhint: it reached beyond what it was given; `outboard bpf disasm` shows its instructions by number"
        }
        PushError::Detour(Detour::Program(_)) => {
            "\nhint: the number is what the program returned: see its source"
        }
        PushError::Detour(Detour::Limit) => {
            "\nhint: files that nobody asks for make room after ten seconds, so ask again then; `outboard pushdown ls` and `rm` make room for programs"
        }
        PushError::Detour(Detour::Time) => {
            "\nhint: the card or its device is busy; ask for less at once, or later"
        }
        PushError::NoRoom(_) => {
            "\nhint: `outboard pushdown ls` lists what this host has loaded there, and `rm` takes it out"
        }
        PushError::Invalid(_) => "\nhint: `outboard pushdown run --help` says what a request can be",
        PushError::NoSuchFile(_) => {
            "\nhint: names are below the folder that `folder` of the card's [nvme] says; `outboard files ls /pushdown` lists them"
        }
        _ => "",
    }
}
