//! What the host's library says to the card's file service (`docs/wire/files.md`).
//!
//! ```text
//!   library ── RequestHeader, path or payload ──▶ card
//!   library ◀── ResponseHeader, information or payload ── card
//! ```
//!
//! Both sides distrust the other: every `decode` takes any bytes, and what it returns holds only legal values. Only
//! the meaning of a request's numbers (is there such a node, does the range fit) is left to the card.

mod entry;
mod error;
mod info;
mod path;

#[cfg(test)]
mod tests;

use ob_core::{NodeId, layout};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32, U64};

pub use entry::{ENTRY_LEN, Entries, Entry, EntryError, entry_len, push_entry};
pub use error::FileError;
pub use info::{CARD_INFO_LEN, CardInfo, NODE_INFO_LEN, NodeInfo, SPACE_INFO_LEN, SpaceInfo};
pub use ob_core::{NAME_LEN_MAX, NodeKind};
pub use path::{PATH_LEN_MAX, PathNames, path_names, rename_paths};

/// The service that groups are opened for.
pub const FILES_SERVICE: u32 = 2;
/// Version of the requests.
pub const VERSION: u32 = 1;
/// Longer transfers go through a second group, so that they do not hold up the answers of short ones.
pub const LANE_LEN: usize = 131_072;
/// Bytes of a request before what the operation adds.
pub const REQUEST_LEN: usize = 40;
/// Bytes of a response before what the operation adds.
pub const RESPONSE_LEN: usize = 24;
/// The root directory, where paths begin unless the library has another node.
pub const ROOT: NodeId = NodeId(1);

layout!(RequestBody, REQUEST_LEN, {
    id: U64, operation: U16, flags: U16, length: U32, node: U64, offset: U64, node_more: U64,
});
layout!(ResponseBody, RESPONSE_LEN, { id: U64, status: U16, reserved: U16, length: U32, value: U64 });

/// Every layout, in the order of the document's tables.
#[cfg(test)]
pub(crate) const LAYOUTS: [&[(&str, usize, usize)]; 6] = [
    RequestBody::FIELDS,
    ResponseBody::FIELDS,
    info::CardInfoBody::FIELDS,
    info::NodeInfoBody::FIELDS,
    info::SpaceInfoBody::FIELDS,
    entry::EntryBody::FIELDS,
];

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $word:literal;)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Operation { $($(#[$doc])* $name = $code),* }

        impl Operation {
            /// Every operation, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The operation that has this number.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its name in the document.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $word),* }
            }
        }
    };
}

operations! {
    /// The first request of a group; answered with [`CardInfo`].
    Hello = 1, "HELLO";
    /// Bytes of a file.
    Read = 2, "READ";
    /// New bytes for a file.
    Write = 3, "WRITE";
    /// Everything that was answered becomes durable.
    Flush = 4, "FLUSH";
    /// A file or directory by its path; answered with [`NodeInfo`].
    Open = 5, "OPEN";
    /// A new directory; answered with [`NodeInfo`].
    MakeDirectory = 6, "MAKE_DIRECTORY";
    /// A file or an empty directory goes.
    Remove = 7, "REMOVE";
    /// Another name, perhaps in another directory.
    Rename = 8, "RENAME";
    /// Entries of a directory; answered with [`Entries`] as payload.
    List = 9, "LIST";
    /// What a node is; answered with [`NodeInfo`].
    Stat = 10, "STAT";
    /// Another size for a file; answered with [`NodeInfo`].
    Resize = 11, "RESIZE";
    /// What is used and free; answered with [`SpaceInfo`].
    Space = 12, "SPACE";
    /// A range of a file becomes zeros, and its space is given back.
    Zero = 13, "ZERO";
}

impl Operation {
    /// Its number.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

/// Flags of requests. What one means depends on the operation.
pub mod flag {
    /// `WRITE`: answer when the bytes, and the file, are durable.
    pub const DURABLE: u16 = 1;
    /// `OPEN`: create the file if it is missing.
    pub const CREATE: u16 = 1;
    /// `OPEN`, with [`CREATE`]: the file must be missing.
    pub const EXCLUSIVE: u16 = 2;
    /// `REMOVE`: only a file.
    pub const ONLY_FILE: u16 = 1;
    /// `REMOVE`: only an empty directory.
    pub const ONLY_DIRECTORY: u16 = 2;
    /// `RENAME`: the target must be missing.
    pub const NO_REPLACE: u16 = 1;
}

/// What every request begins with. The numbers are as they came: what they may be depends on the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// The library's own; the answer carries it.
    pub id: u64,
    /// See [`Operation`].
    pub operation: u16,
    /// See [`flag`].
    pub flags: u16,
    /// Bytes to read, write or zero; bytes of the first path; most bytes of a list.
    pub length: u32,
    /// A file; for names, the directory that a path starts from.
    pub node: NodeId,
    /// In the file; the new size.
    pub offset: u64,
    /// The second path's directory.
    pub node_more: NodeId,
}

impl RequestHeader {
    /// The bytes that a request begins with.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let body = RequestBody {
            id: self.id.into(),
            operation: self.operation.into(),
            flags: self.flags.into(),
            length: self.length.into(),
            node: self.node.0.into(),
            offset: self.offset.into(),
            node_more: self.node_more.0.into(),
        };
        zerocopy::transmute!(body)
    }

    /// The header of a request, and what the operation adds to it; none, if the bytes are too few.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (body, rest) = RequestBody::ref_from_prefix(bytes).ok()?;
        let header = Self {
            id: body.id.get(),
            operation: body.operation.get(),
            flags: body.flags.get(),
            length: body.length.get(),
            node: NodeId(body.node.get()),
            offset: body.offset.get(),
            node_more: NodeId(body.node_more.get()),
        };
        Some((header, rest))
    }
}

/// What every response begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The request's.
    pub id: u64,
    /// How it went.
    pub status: Result<(), FileError>,
    /// See the operation.
    pub length: u32,
    /// See the operation.
    pub value: u64,
}

impl ResponseHeader {
    /// The answer to a request that went well and has nothing to tell.
    pub const fn done(id: u64) -> Self {
        Self { id, status: Ok(()), length: 0, value: 0 }
    }

    /// The answer to a request that failed.
    pub const fn failed(id: u64, error: FileError) -> Self {
        Self { id, status: Err(error), length: 0, value: 0 }
    }

    /// The bytes that a response begins with.
    pub fn encode(&self) -> [u8; RESPONSE_LEN] {
        let body = ResponseBody {
            id: self.id.into(),
            status: self.status.map_or_else(FileError::code, |()| 0).into(),
            reserved: 0.into(),
            length: self.length.into(),
            value: self.value.into(),
        };
        zerocopy::transmute!(body)
    }

    /// The header of a response, and what the operation adds to it; none, if there is no such response.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (body, rest) = ResponseBody::ref_from_prefix(bytes).ok()?;
        if body.reserved != 0 {
            return None;
        }
        let header = Self {
            id: body.id.get(),
            status: FileError::from_code(body.status.get()).map_or(Ok(()), Err),
            length: body.length.get(),
            value: body.value.get(),
        };
        Some((header, rest))
    }
}
