//! Chunks, the index and the metadata of volumes (`docs/format/volume.md`).
//!
//! ```text
//!   chunk server   /chunks/server          ServerFile       metadata store   pool, tiers, servers, volumes,
//!                  /chunks/ledger          LedgerEntry                       segments, chunks: metadata
//!                  /chunks/V/G/C           ChunkHeader, then Records: blocks, trims,
//!                                          and of the index Pages and the parts of a Root
//!                  /chunks/V/G/C.dir       Directory
//! ```
//!
//! What cannot be read again is not written: `encode` refuses what `decode` would.

/// States and kinds, and their numbers.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every one, with its name.
            #[cfg(test)]
            pub(crate) const ALL: &[(&str, Self)] = &[$((stringify!($variant), Self::$variant)),*];

            /// Its number.
            #[must_use]
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code,)* }
            }

            /// What this number means.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

mod chunk;
mod digits;
mod directory;
mod ledger;
pub mod metadata;
mod page;
mod record;
mod root;

#[cfg(test)]
mod doc_tests;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;

pub use chunk::{CHUNK_HEADER_LEN, ChunkHeader, ChunkKind, SERVER_FILE_LEN, ServerFile};
pub use digits::{long_digits, parse_long, parse_short, short_digits};
pub use directory::{
    DIRECTORY_HEADER_LEN, Directory, DirectorySummary, ENTRY_LEN, Entry, encode_directory, entries_of,
};
pub use ledger::{LEDGER_ENTRY_LEN, LedgerEntry, LedgerError, LedgerFact, read_ledger};
pub use page::{
    EntryState, IndexEntry, PAGE_ENTRIES, PAGE_HEADER_LEN, PAGE_LEN, Page, SLOT_END, encode_page,
};
pub use record::{
    Encoding, RECORD_HEADER_LEN, RECORD_UNITS_MAX, Record, RecordHeader, RecordKind, Records, STORED_MAX,
    TRIM_RANGES_MAX, TrimRange, TrimRanges,
};
pub use root::{PAGE_PLACE_LEN, PagePlace, ROOT_HEADER_LEN, Root, RootSummary, SLOT_LEN, Slot, encode_root};

use ob_core::{ChunkName, Epoch, Units};

/// Version of all of it.
pub const VERSION: u32 = 1;
/// Where a chunk's records begin: its header has a block for itself.
pub const RECORDS_START: Units = Units(64);
/// Chunks are no longer than this.
pub const CHUNK_UNITS_MAX: Units = Units(1 << 26);

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// They do not begin like it.
    #[error("there is none")]
    Missing,
    /// They are of a version that this build does not know.
    #[error("the format's version is {0}, and this outboard knows version {VERSION}")]
    Version(u32),
    /// There are fewer bytes than it has, or more.
    #[error("it has {needed} bytes, and there are {available}")]
    Length {
        /// How many it has.
        needed: usize,
        /// How many are there.
        available: usize,
    },
    /// They are damaged.
    #[error("the checksum is wrong")]
    Checksum,
    /// The checksum is right, and something cannot be.
    #[error("it cannot be right: {0}")]
    Illegal(&'static str),
}

/// Says what cannot be, unless it can.
fn must(can_be: bool, what: &'static str) -> Result<(), LayoutError> {
    if can_be { Ok(()) } else { Err(LayoutError::Illegal(what)) }
}

fn epoch(number: u32) -> Result<Epoch, LayoutError> {
    Epoch::new(number).ok_or(LayoutError::Illegal("an epoch that there is not"))
}

fn check_chunk_name(name: ChunkName) -> Result<(), LayoutError> {
    must(name.volume.0 != 0, "a volume without a number")?;
    must(name.chunk.0 != 0, "a chunk without a number")
}
