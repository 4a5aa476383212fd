//! Where a database's files are read from.

use std::future::Future;

use thiserror::Error;

/// Why a file could not be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// It is not there: a compaction may have removed it.
    #[error("there is no file {0}")]
    NotFound(String),
    /// It is shorter than what was to be read.
    #[error("{file} ends before {end}")]
    PastEnd {
        /// The file's name.
        file: String,
        /// Where the reading should have ended.
        end: u64,
    },
    /// The file system, or the server that has the file, refused.
    #[error("{file} cannot be read: {reason}")]
    Refused {
        /// The file's name.
        file: String,
        /// What it said.
        reason: String,
    },
}

/// A directory of files that can be read, wherever it is.
///
/// A file that was opened can be read though it was removed since, if the implementation can see to it; if it cannot, reads of it are
/// [`ReadError::NotFound`].
pub trait Files: Send + Sync {
    /// An open file.
    type File: Clone + Send + Sync + 'static;

    /// All files: names, and lengths at some instant.
    fn list(&self) -> impl Future<Output = Result<Vec<(String, u64)>, ReadError>> + Send;

    /// Opens a file.
    fn open(&self, name: &str) -> impl Future<Output = Result<Self::File, ReadError>> + Send;

    /// How long a file is now.
    fn len(&self, file: &Self::File) -> impl Future<Output = Result<u64, ReadError>> + Send;

    /// Reads `len` bytes at `offset`, or fails: there are no short reads.
    fn read(
        &self,
        file: &Self::File,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Vec<u8>, ReadError>> + Send;
}
