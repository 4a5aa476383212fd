//! Why a file request failed.

use std::num::NonZeroU16;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $word:literal, $text:literal;)*) => {
        /// Why a file request failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum FileError {
            $($(#[$doc])* #[error($text)] $name,)*
            /// A status that this version does not know.
            #[error("the card answered with an error that is not known here: {0}")]
            Other(NonZeroU16),
        }

        impl FileError {
            /// Every error that the document names, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its number; never 0.
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Other(code) => code.get(),
                }
            }

            /// The error that has this number; none for 0, which means that all went well.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => match NonZeroU16::new(code) {
                        Some(code) => Some(Self::Other(code)),
                        None => None,
                    },
                }
            }

            /// Its name in the document; none for one that is not there.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($word),)*
                    Self::Other(_) => None,
                }
            }
        }
    };
}

errors! {
    /// No such name, or the node is gone.
    NotFound = 1, "NOT_FOUND", "no such file or directory";
    /// The name is taken.
    Exists = 2, "EXISTS", "there is already a file or directory of this name";
    /// A directory is needed.
    NotADirectory = 3, "NOT_A_DIRECTORY", "it is not a directory";
    /// A file is needed.
    IsADirectory = 4, "IS_A_DIRECTORY", "it is a directory, and a file is needed";
    /// The directory has entries.
    NotEmpty = 5, "NOT_EMPTY", "the directory is not empty";
    /// A name or path that cannot be.
    BadName = 6, "BAD_NAME", "the name or path cannot be: a part is empty, too long, `.`, `..`, or holds a zero byte";
    /// A directory cannot be moved into itself.
    WithinItself = 7, "WITHIN_ITSELF", "a directory cannot be moved into itself";
    /// Numbers that cannot be.
    Invalid = 8, "INVALID", "the request's numbers cannot be";
    /// More than one transfer may move, or beyond the largest file.
    TooLarge = 9, "TOO_LARGE", "too large: beyond the longest transfer or the largest file";
    /// No segment, or no room in the log, is free.
    NoSpace = 10, "NO_SPACE", "no space is left on the device";
    /// The device failed.
    Io = 11, "IO", "the device failed to read or write";
    /// The log could not be written.
    ReadOnly = 12, "READ_ONLY", "the card could not write its log, and takes no changes until it is started again";
    /// No such operation or version, or no `HELLO`.
    Unsupported = 13, "UNSUPPORTED", "the card does not know this operation or version";
    /// Too much is in flight.
    Busy = 14, "BUSY", "too much is in flight; try again";
    /// A namespace lies on the file.
    InUse = 15, "IN_USE", "a namespace lies on this file, which only that namespace may change";
}
