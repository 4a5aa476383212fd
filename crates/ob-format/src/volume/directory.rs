//! The directory of a sealed chunk: what its records are, without reading them.

use ob_core::{Lba, Sequence, Units, checksum_of, layout};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::record::{TRIM_RANGES_MAX, check_content};
use super::{
    CHUNK_UNITS_MAX, Encoding, LayoutError, RECORDS_START, Record, RecordKind, STORED_MAX, VERSION, must,
};

/// Bytes of a directory before its entries.
pub const DIRECTORY_HEADER_LEN: usize = 32;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 32;

pub(super) const MAGIC: [u8; 4] = *b"OBCD";

layout!(DirectoryBody, DIRECTORY_HEADER_LEN, {
    magic: [u8; 4], version: U32, crc: U32, entries: U32, length: U32, content_crc: U32, blocks: U32, reserved: U32,
});
layout!(EntryBody, ENTRY_LEN, {
    offset: U32, stored: U32, sequence: U64, lba: U32, blocks: U32, kind: u8, encoding: u8, reserved: [u8; 6],
});

const CRC_AT: usize = std::mem::offset_of!(DirectoryBody, crc);

/// A record in a list; a trim of several ranges has one for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the record begins.
    pub offset: Units,
    /// Bytes of its payload.
    pub stored: u32,
    /// Its place in the order of the segment.
    pub sequence: Sequence,
    /// The first block, or the page.
    pub lba: Lba,
    /// How many blocks; of the index, bytes before encoding.
    pub blocks: u32,
    /// What the record says.
    pub kind: RecordKind,
    /// How its payload is stored.
    pub encoding: Encoding,
}

/// What a directory says of its chunk as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectorySummary {
    /// How long the sealed chunk is.
    pub length: Units,
    /// Its CRC32C, from its first record on.
    pub content_crc: u32,
}

/// A directory whose checksum and entries are right.
#[derive(Clone, Copy, Debug)]
pub struct Directory<'a> {
    /// The chunk as a whole.
    pub summary: DirectorySummary,
    /// Blocks that were written or moved there.
    pub blocks: u32,
    entries: &'a [u8],
}

impl Entry {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When no record has such an entry.
    pub fn encode(&self) -> Result<[u8; ENTRY_LEN], LayoutError> {
        self.check()?;
        let body = EntryBody {
            offset: self.offset.0.into(),
            stored: self.stored.into(),
            sequence: self.sequence.0.into(),
            lba: self.lba.0.into(),
            blocks: self.blocks.into(),
            kind: self.kind.code(),
            encoding: self.encoding.code(),
            reserved: [0; 6],
        };
        Ok(zerocopy::transmute!(body))
    }

    /// Checks the entry that the bytes begin with.
    ///
    /// # Errors
    ///
    /// When no record has such an entry.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let wrong = LayoutError::Length { needed: ENTRY_LEN, available: bytes.len() };
        let (body, _) = EntryBody::ref_from_prefix(bytes).map_err(|_| wrong)?;
        must(body.reserved == [0; 6], "reserved bytes are not zero")?;
        let kind =
            RecordKind::from_code(body.kind).ok_or(LayoutError::Illegal("a kind that is not known"))?;
        let encoding = Encoding::from_code(body.encoding);
        let entry = Self {
            offset: Units(body.offset.get()),
            stored: body.stored.get(),
            sequence: Sequence(body.sequence.get()),
            lba: Lba(body.lba.get()),
            blocks: body.blocks.get(),
            kind,
            encoding: encoding.ok_or(LayoutError::Illegal("an encoding that is not known"))?,
        };
        entry.check()?;
        Ok(entry)
    }

    /// Where the record ends.
    #[must_use]
    pub fn end(&self) -> Units {
        Units(self.offset.0 + 1 + Units::of_bytes(self.stored).0)
    }

    /// Whether an entry that follows this one can be right: it is of a record behind, or of another range of the same trim.
    #[must_use]
    pub fn may_precede(&self, next: &Self) -> bool {
        let is_same_trim = (next.offset, next.sequence, next.stored, next.kind)
            == (self.offset, self.sequence, self.stored, RecordKind::Trim)
            && self.kind == RecordKind::Trim
            && self.stored > 0;
        next.offset >= self.end() || is_same_trim
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.offset >= RECORDS_START && self.offset < CHUNK_UNITS_MAX, "a place that no record has")?;
        must(self.stored <= STORED_MAX && self.end() <= CHUNK_UNITS_MAX, "a record beyond its chunk's end")?;
        must(self.sequence.epoch().is_some(), "a sequence of no epoch")?;
        let mut stored = self.stored;
        if self.kind == RecordKind::Trim {
            let is_whole = stored.is_multiple_of(8) && stored as usize <= TRIM_RANGES_MAX * 8;
            must(is_whole, "a trim of ranges that are not whole")?;
            stored = 0;
        }
        check_content(self.kind, self.encoding, self.lba, self.blocks, stored)
    }
}

/// The entries that a record has in a list.
pub fn entries_of<'a>(record: &Record<'a>) -> impl Iterator<Item = Entry> + use<'a> {
    let header = record.header;
    let entry = Entry {
        offset: header.offset,
        stored: header.stored,
        sequence: header.sequence,
        lba: header.lba,
        blocks: header.blocks,
        kind: header.kind,
        encoding: header.encoding,
    };
    let is_trim = header.kind == RecordKind::Trim;
    let ranges =
        record.trim_ranges().map(move |range| Entry { lba: range.lba, blocks: range.blocks, ..entry });
    ranges.chain((!is_trim).then_some(entry))
}

/// The file of a directory.
///
/// # Errors
///
/// When the entries are not those of one chunk, in the order of their places.
pub fn encode_directory(summary: &DirectorySummary, entries: &[Entry]) -> Result<Vec<u8>, LayoutError> {
    let count =
        u32::try_from(entries.len()).map_err(|_| LayoutError::Illegal("more entries than can be counted"))?;
    let mut bytes = Vec::with_capacity(DIRECTORY_HEADER_LEN + entries.len() * ENTRY_LEN);
    bytes.resize(DIRECTORY_HEADER_LEN, 0);
    for entry in entries {
        bytes.extend_from_slice(&entry.encode()?);
    }
    let body = DirectoryBody {
        magic: MAGIC,
        version: VERSION.into(),
        crc: 0.into(),
        entries: count.into(),
        length: summary.length.0.into(),
        content_crc: summary.content_crc.into(),
        blocks: check_entries(summary, entries.iter().map(|entry| Ok(*entry)))?.into(),
        reserved: 0.into(),
    };
    if let Some(header) = bytes.get_mut(..DIRECTORY_HEADER_LEN) {
        header.copy_from_slice(body.as_bytes());
    }
    let crc = checksum_of(&bytes, CRC_AT);
    if let Some(field) = bytes.get_mut(CRC_AT..CRC_AT + 4) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
    Ok(bytes)
}

impl<'a> Directory<'a> {
    /// Checks the bytes of a directory's file, all of them.
    ///
    /// # Errors
    ///
    /// When they are not a directory, whole and in order.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let (body, entries) = DirectoryBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
        if body.magic != MAGIC {
            return Err(LayoutError::Missing);
        }
        if body.version != VERSION {
            return Err(LayoutError::Version(body.version.get()));
        }
        let needed = (body.entries.get() as usize)
            .checked_mul(ENTRY_LEN)
            .and_then(|len| len.checked_add(DIRECTORY_HEADER_LEN))
            .ok_or(LayoutError::Illegal("more entries than can be counted"))?;
        if needed != bytes.len() {
            return Err(LayoutError::Length { needed, available: bytes.len() });
        }
        if body.crc != checksum_of(bytes, CRC_AT) {
            return Err(LayoutError::Checksum);
        }
        must(body.reserved == 0, "reserved bytes are not zero")?;
        let summary =
            DirectorySummary { length: Units(body.length.get()), content_crc: body.content_crc.get() };
        let blocks = check_entries(&summary, entries.chunks_exact(ENTRY_LEN).map(Entry::decode))?;
        must(body.blocks == blocks, "another number of blocks")?;
        Ok(Self { summary, blocks, entries })
    }

    /// How many entries there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.entries.len() / ENTRY_LEN
    }

    /// The entries, in the order of their places.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + use<'a> {
        // They were checked when it was decoded.
        self.entries.chunks_exact(ENTRY_LEN).filter_map(|entry| Entry::decode(entry).ok())
    }
}

/// That entries are of one chunk, and in order; how many blocks they write.
fn check_entries(
    summary: &DirectorySummary,
    entries: impl Iterator<Item = Result<Entry, LayoutError>>,
) -> Result<u32, LayoutError> {
    must(
        summary.length >= RECORDS_START && summary.length <= CHUNK_UNITS_MAX,
        "a length that no sealed chunk has",
    )?;
    let (mut last, mut blocks): (Option<Entry>, u32) = (None, 0);
    for entry in entries {
        let entry = entry?;
        must(last.is_none_or(|last| last.may_precede(&entry)), "entries out of their order")?;
        let is_like = last.is_none_or(|last| last.kind.chunk_kind() == entry.kind.chunk_kind());
        must(is_like, "data and index in one chunk")?;
        must(entry.end() <= summary.length, "an entry beyond the chunk's length")?;
        if matches!(entry.kind, RecordKind::Write | RecordKind::Move) {
            let sum = blocks.checked_add(entry.blocks);
            blocks = sum.ok_or(LayoutError::Illegal("more blocks than can be counted"))?;
        }
        last = Some(entry);
    }
    Ok(blocks)
}
