//! What can go wrong, as one type.

use std::io::ErrorKind;

use ob_wire_link::files::FileError;

use crate::path::PathError;

/// Why an operation failed, was refused, or could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name does not exist, or the file behind a handle was removed.
    #[error("there is no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name is taken")]
    Exists,
    /// A directory is needed.
    #[error("a directory is needed, and this is a file")]
    NotADirectory,
    /// A file is needed.
    #[error("a file is needed, and this is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The card does not take this name.
    #[error("the card does not take this name")]
    BadName,
    /// The path cannot be; nothing was sent.
    #[error("the path cannot be: {0}")]
    Path(#[from] PathError),
    /// A directory cannot be moved into itself.
    #[error("a directory cannot be moved into itself")]
    WithinItself,
    /// An offset, length or handle that cannot be.
    #[error("an offset, length or handle that cannot be")]
    Invalid,
    /// Beyond the largest file, or more than one request takes where it cannot be split.
    #[error("beyond the largest file, or larger than a request can be")]
    TooLarge,
    /// No space is left on the device.
    #[error("no space is left on the device")]
    NoSpace,
    /// The device failed.
    #[error("the card's device failed")]
    Io,
    /// The card takes no more changes until it is started again: its log could not be written.
    #[error("the card takes no more changes until it is started again, because its log could not be written")]
    ReadOnly,
    /// The card does not know the operation or the version.
    #[error("the card does not support this")]
    Unsupported,
    /// The card has too much in flight; try again.
    #[error("the card has too much in flight; try again")]
    Busy,
    /// A namespace lies on the file, and nobody else may change it.
    #[error("a namespace lies on this file, and only that namespace may change it")]
    InUse,
    /// The card died, closed the group, or could not be reached any more, before it answered. A change that was asked
    /// for may have happened or not.
    #[error(
        "the card died, or the link to it broke, before it answered: what was asked for may have happened or not"
    )]
    CardGone,
    /// There is no card at the moment; nothing was sent. The session goes on trying to attach.
    #[error("there is no card at the moment, and nothing was sent; the session goes on trying to attach")]
    Detached,
    /// The group was closed by the application.
    #[error("the group was closed")]
    Closed,
    /// The request ring is full; nothing was sent. There is room again when completions have been taken.
    #[error("the request ring is full; there is room again when completions have been taken")]
    RingFull,
    /// As many operations are out as the group allows; nothing was sent.
    #[error("as many operations are out as the group allows")]
    TooManyOutstanding,
    /// The time is up.
    #[error("the time is up")]
    TimedOut,
    /// The card answered something that cannot be. What was asked for may have happened or not.
    #[error("the card answered what it must not: {0}")]
    Protocol(Fault),
    /// The card could not be attached to, or refused a group.
    #[error("{0}")]
    Attach(String),
    /// This process is out of threads or descriptors.
    #[error("this process is out of threads or descriptors")]
    System,
}

/// How a card broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A status that is in no document.
    #[error("an unknown status")]
    Status,
    /// More bytes than were asked for, or another number than it said.
    #[error("a length that does not fit the request")]
    Length,
    /// An answer that cannot be parsed.
    #[error("an answer that cannot be parsed")]
    Answer,
    /// A list of entries that cannot be parsed or does not get on.
    #[error("a list that cannot be parsed, or that does not get on")]
    List,
    /// A ring whose pointers or messages cannot be.
    #[error("a ring that cannot be")]
    Ring,
}

/// What most calls give.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The kind that `std` knows this by.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Exists => ErrorKind::AlreadyExists,
            Self::NotADirectory => ErrorKind::NotADirectory,
            Self::IsADirectory => ErrorKind::IsADirectory,
            Self::NotEmpty => ErrorKind::DirectoryNotEmpty,
            Self::BadName | Self::Path(_) => ErrorKind::InvalidFilename,
            Self::WithinItself | Self::Invalid => ErrorKind::InvalidInput,
            Self::TooLarge => ErrorKind::FileTooLarge,
            Self::NoSpace => ErrorKind::StorageFull,
            Self::ReadOnly => ErrorKind::ReadOnlyFilesystem,
            Self::InUse => ErrorKind::ResourceBusy,
            Self::Unsupported => ErrorKind::Unsupported,
            Self::Busy | Self::RingFull | Self::TooManyOutstanding => ErrorKind::WouldBlock,
            Self::CardGone => ErrorKind::ConnectionAborted,
            Self::Detached | Self::Closed | Self::Attach(_) => ErrorKind::NotConnected,
            Self::TimedOut => ErrorKind::TimedOut,
            Self::Protocol(_) => ErrorKind::InvalidData,
            Self::Io | Self::System => ErrorKind::Other,
        }
    }

    /// Whether the same call may succeed later without anything else being done about it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Busy | Self::RingFull | Self::TooManyOutstanding | Self::Detached)
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::NotFound => Self::NotFound,
            FileError::Exists => Self::Exists,
            FileError::NotADirectory => Self::NotADirectory,
            FileError::IsADirectory => Self::IsADirectory,
            FileError::NotEmpty => Self::NotEmpty,
            FileError::BadName => Self::BadName,
            FileError::WithinItself => Self::WithinItself,
            FileError::Invalid => Self::Invalid,
            FileError::TooLarge => Self::TooLarge,
            FileError::NoSpace => Self::NoSpace,
            FileError::Io => Self::Io,
            FileError::ReadOnly => Self::ReadOnly,
            FileError::Unsupported => Self::Unsupported,
            FileError::Busy => Self::Busy,
            FileError::InUse => Self::InUse,
            FileError::Other(_) => Self::Protocol(Fault::Status),
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

/// A call that was not started, with everything that was given to it.
#[derive(Debug)]
#[must_use = "the buffer is in here"]
pub struct Refused<B> {
    /// The buffer, unchanged.
    pub buffer: B,
    /// Why: [`Error::RingFull`], [`Error::TooManyOutstanding`], [`Error::Detached`] or what is wrong with the call.
    pub reason: Error,
}

impl<B> From<Refused<B>> for Error {
    fn from(refused: Refused<B>) -> Self {
        refused.reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_error() {
        let errors: Vec<Error> = FileError::ALL.iter().map(|error| Error::from(*error)).collect();
        for (index, error) in errors.iter().enumerate() {
            assert!(!errors[..index].contains(error), "{error}");
            assert!(!matches!(error, Error::Protocol(_)), "{error}");
        }
        assert_eq!(Error::from(FileError::NoSpace).kind(), ErrorKind::StorageFull);
        let unknown = FileError::from_code(999).unwrap();
        assert_eq!(Error::from(unknown), Error::Protocol(Fault::Status));
    }

    #[test]
    fn the_errors_of_std_keep_kind_and_words() {
        let error = std::io::Error::from(Error::CardGone);
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        assert!(error.to_string().contains("may have happened or not"), "{error}");
        assert_eq!(std::io::Error::from(Error::Detached).kind(), ErrorKind::NotConnected);
    }
}
