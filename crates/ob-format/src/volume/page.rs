//! Pages of the index: where each of 1024 blocks lies.

use ob_core::{Sequence, Units, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{CHUNK_UNITS_MAX, LayoutError, RECORD_UNITS_MAX, RECORDS_START, VERSION, must};

/// Bytes of a page before its entries.
pub const PAGE_HEADER_LEN: usize = 32;
/// Entries of a page.
pub const PAGE_ENTRIES: usize = 1024;
/// Bytes of a page.
pub const PAGE_LEN: usize = PAGE_HEADER_LEN + PAGE_ENTRIES * 8;
/// Slots of chunks are below this.
pub const SLOT_END: u32 = 1 << SLOT_BITS;

pub(super) const MAGIC: [u8; 4] = *b"OBIP";

pub(super) const OFFSET_BITS: u32 = 26;
pub(super) const UNITS_BITS: u32 = 11;
pub(super) const SLOT_BITS: u32 = 24;
const MAPPED: u64 = 1;
const LOST: u64 = 2;
const UNITS_AT: u32 = OFFSET_BITS;
const SLOT_AT: u32 = UNITS_AT + UNITS_BITS;
pub(super) const STATE_AT: u32 = SLOT_AT + SLOT_BITS;

layout!(PageBody, PAGE_HEADER_LEN, {
    magic: [u8; 4], version: U16, reserved: U16, page: U32, mapped: U32, as_of: U64, reserved_end: [u8; 8],
});

/// Where a block lies, in the 8 bytes that the index has for it, on devices and in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IndexEntry(u64);

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// The block was never written, or deallocated.
    Unmapped,
    /// It lies in a record.
    Mapped {
        /// Where the record begins.
        offset: Units,
        /// How long the record is, its header included.
        units: Units,
        /// Whose record it is, by the table of the root.
        slot: u32,
    },
    /// It lay in a chunk that was given up.
    Lost,
}

/// A page whose entries are right. It has no checksum of its own: the record that it is the payload of has one.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Which page it is.
    pub page: u32,
    /// Every record up to this one is in it, as far as it concerns the page.
    pub as_of: Sequence,
    /// Entries that are not unmapped.
    pub mapped: u32,
    entries: &'a [U64],
}

impl IndexEntry {
    /// The block was never written, or deallocated.
    pub const UNMAPPED: Self = Self(0);
    /// The block lay in a chunk that was given up.
    pub const LOST: Self = Self(LOST << STATE_AT);

    /// In a record of a chunk, if an entry can say so.
    #[must_use]
    pub fn mapped(offset: Units, units: Units, slot: u32) -> Option<Self> {
        let ends_within = offset.checked_add(units).is_some_and(|end| end <= CHUNK_UNITS_MAX);
        // A record with a block in it has more than a header.
        let is_legal =
            offset >= RECORDS_START && ends_within && units >= Units(2) && units <= RECORD_UNITS_MAX;
        let bits = u64::from(offset.0) | u64::from(units.0) << UNITS_AT | u64::from(slot) << SLOT_AT;
        (is_legal && slot < SLOT_END).then_some(Self(bits | MAPPED << STATE_AT))
    }

    /// What 8 bytes say.
    ///
    /// # Errors
    ///
    /// When no entry has such bits.
    pub fn from_bits(bits: u64) -> Result<Self, LayoutError> {
        let field = |at: u32, width: u32| (bits >> at) as u32 & ((1 << width) - 1);
        let entry = match bits >> STATE_AT {
            0 => Some(Self::UNMAPPED),
            MAPPED => Self::mapped(
                Units(field(0, OFFSET_BITS)),
                Units(field(UNITS_AT, UNITS_BITS)),
                field(SLOT_AT, SLOT_BITS),
            ),
            LOST => Some(Self::LOST),
            _ => None,
        };
        entry.filter(|entry| entry.0 == bits).ok_or(LayoutError::Illegal("an entry that cannot be"))
    }

    /// The 8 bytes.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// What it says.
    #[must_use]
    pub const fn state(self) -> EntryState {
        match self.0 >> STATE_AT {
            0 => EntryState::Unmapped,
            LOST => EntryState::Lost,
            _ => EntryState::Mapped {
                offset: Units((self.0 as u32) & ((1 << OFFSET_BITS) - 1)),
                units: Units((self.0 >> UNITS_AT) as u32 & ((1 << UNITS_BITS) - 1)),
                slot: (self.0 >> SLOT_AT) as u32 & (SLOT_END - 1),
            },
        }
    }

    /// Whether the block is mapped, or lost.
    #[must_use]
    pub const fn is_unmapped(self) -> bool {
        self.0 == 0
    }
}

/// Writes a page.
///
/// # Errors
///
/// When it has no entry that is not unmapped: such pages are not written.
pub fn encode_page(
    page: u32,
    as_of: Sequence,
    entries: &[IndexEntry; PAGE_ENTRIES],
    into: &mut [u8; PAGE_LEN],
) -> Result<(), LayoutError> {
    let mapped = entries.iter().filter(|entry| !entry.is_unmapped()).count();
    check_page(page, mapped)?;
    let body = PageBody {
        magic: MAGIC,
        version: (VERSION as u16).into(),
        reserved: 0.into(),
        page: page.into(),
        mapped: (mapped as u32).into(),
        as_of: as_of.0.into(),
        reserved_end: [0; 8],
    };
    let (header, rest) = into.split_at_mut(PAGE_HEADER_LEN);
    header.copy_from_slice(body.as_bytes());
    for (bytes, entry) in rest.chunks_exact_mut(8).zip(entries) {
        bytes.copy_from_slice(&entry.0.to_le_bytes());
    }
    Ok(())
}

impl<'a> Page<'a> {
    /// Checks the payload of a page's record, as it is after decoding.
    ///
    /// # Errors
    ///
    /// When it is not a page, whole and with legal entries.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let (body, rest) = PageBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
        if body.magic != MAGIC {
            return Err(LayoutError::Missing);
        }
        if u32::from(body.version.get()) != VERSION {
            return Err(LayoutError::Version(body.version.get().into()));
        }
        if bytes.len() != PAGE_LEN {
            return Err(LayoutError::Length { needed: PAGE_LEN, available: bytes.len() });
        }
        must(body.reserved == 0 && body.reserved_end == [0; 8], "reserved bytes are not zero")?;
        let entries = <[U64]>::ref_from_bytes(rest).map_err(|_| LayoutError::Missing)?;
        let mut mapped = 0;
        for entry in entries {
            mapped += usize::from(!IndexEntry::from_bits(entry.get())?.is_unmapped());
        }
        check_page(body.page.get(), mapped)?;
        must(body.mapped.get() as usize == mapped, "another number of entries")?;
        let as_of = Sequence(body.as_of.get());
        Ok(Self { page: body.page.get(), as_of, mapped: body.mapped.get(), entries })
    }

    /// The entries, of the page's blocks in their order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = IndexEntry> + use<'a> {
        // They were checked when the page was decoded.
        self.entries.iter().map(|entry| IndexEntry(entry.get()))
    }
}

fn check_page(page: u32, mapped: usize) -> Result<(), LayoutError> {
    must(page < u32::MAX / PAGE_ENTRIES as u32, "a page beyond all segments")?;
    must(mapped > 0, "a page without entries")
}
