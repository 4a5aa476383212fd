//! What the store asks of whoever keeps the log's files, and what it is told.

use std::sync::Arc;

use ob_core::Token;

/// Something to do with the files of the log.
///
/// Operations may be executed side by side, and completed in any order. Each is completed once.
#[derive(Clone, Debug)]
pub enum LogOp {
    /// Make the file of a part, so long, with zeros. If it is there already, it only gets its length, which is no less than it had.
    Create {
        /// Which operation it is.
        token: Token,
        /// The part.
        part: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// Write whole blocks.
    Write {
        /// Which operation it is.
        token: Token,
        /// The part to write to. It is there, and as long as it was to be made.
        part: u64,
        /// Where in the part.
        offset: u64,
        /// What to write. The store reads it too, as long as it likes.
        bytes: Arc<Vec<u8>>,
        /// Whether it must outlast a loss of power before it is complete.
        is_durable: bool,
    },
    /// Make everything outlast a loss of power whose completion the store was told before.
    Flush {
        /// Which operation it is.
        token: Token,
    },
    /// Read bytes that were written.
    Read {
        /// Which operation it is.
        token: Token,
        /// The part to read from.
        part: u64,
        /// Where in the part.
        offset: u64,
        /// How many bytes; fewer are given where the file ends.
        len: usize,
    },
    /// Remove the file of a part. Whoever was told of it is told before.
    Remove {
        /// Which operation it is.
        token: Token,
        /// The part.
        part: u64,
    },
}

impl LogOp {
    /// Which operation it is.
    #[must_use]
    pub fn token(&self) -> Token {
        match self {
            Self::Create { token, .. }
            | Self::Write { token, .. }
            | Self::Flush { token }
            | Self::Read { token, .. }
            | Self::Remove { token, .. } => *token,
        }
    }
}

/// How an operation went.
#[derive(Debug)]
pub struct LogCompletion {
    /// Which one.
    pub token: Token,
    /// What was read (nothing, for other operations), or why it failed.
    pub result: Result<Vec<u8>, LogFailure>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogFailure {
    /// There is no room on the device.
    #[error("no space left for the log")]
    Space,
    /// The device failed.
    #[error("the log's device failed")]
    Device,
    /// The card is gone; the log is to be recovered when it is back.
    #[error("the card that keeps the log is gone")]
    Gone,
}
