//! Records: what a chunk consists of, and what the index is replayed from.

use ob_core::{BlockLen, ChunkId, ChunkName, Lba, SegmentId, Sequence, Units, VolumeId, checksum_of, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{CHUNK_UNITS_MAX, ChunkKind, LayoutError, PAGE_LEN, RECORDS_START, check_chunk_name, must};

/// Bytes of a record before its payload.
pub const RECORD_HEADER_LEN: usize = 64;
/// Bytes of the longest payload.
pub const STORED_MAX: u32 = 65536;
/// Units of the longest record, its header included.
pub const RECORD_UNITS_MAX: Units = Units(1 + STORED_MAX / Units::LEN);
/// Most ranges of one trim.
pub const TRIM_RANGES_MAX: usize = 255;

pub(super) const MAGIC: [u8; 4] = *b"OBRC";
/// What `behind` has where more is, or nothing is known.
pub(super) const BEHIND_UNKNOWN: u16 = u16::MAX;

layout!(RecordBody, RECORD_HEADER_LEN, {
    magic: [u8; 4], header_crc: U32, volume: U64, segment: U32, chunk: U32, offset: U32, stored: U32, sequence: U64,
    version: U64, lba: U32, blocks: U32, payload_crc: U32, kind: u8, encoding: u8, behind: U16,
});
layout!(RangeBody, 8, { lba: U32, blocks: U32 });

const CRC_AT: usize = std::mem::offset_of!(RecordBody, header_crc);

codes!(
    /// What a record says.
    RecordKind {
        /// Blocks have these bytes.
        Write = 1,
        /// Blocks that compaction moved here have these bytes.
        Move = 2,
        /// Blocks have no bytes any more.
        Trim = 3,
        /// A page of the index.
        Page = 4,
        /// A part of a root.
        Root = 5,
    }
);
codes!(
    /// How a payload is stored.
    Encoding {
        /// As it is.
        None = 0,
        /// As a block of LZ4.
        Lz4 = 1,
    }
);

/// What a record begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// In which chunk it lies.
    pub chunk: ChunkName,
    /// Where it begins there.
    pub offset: Units,
    /// Its place in the order of the segment.
    pub sequence: Sequence,
    /// The sequence under which these bytes were first written.
    pub version: Sequence,
    /// The first block; of a page which one it is.
    pub lba: Lba,
    /// How many blocks; of the index, bytes before encoding. Of a trim with several ranges nothing, and so is `lba`.
    pub blocks: u32,
    /// Bytes of the payload.
    pub stored: u32,
    /// Their CRC32C.
    pub payload_crc: u32,
    /// What it says.
    pub kind: RecordKind,
    /// How the payload is stored.
    pub encoding: Encoding,
    /// Units between `offset` and how far all members had the chunk when this was made, if that is known and not too many.
    pub behind: Option<u16>,
}

/// A record whose checksums are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it begins with.
    pub header: RecordHeader,
    /// As it is stored.
    pub payload: &'a [u8],
}

/// Blocks that a trim clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRange {
    /// The first.
    pub lba: Lba,
    /// How many, at least one.
    pub blocks: u32,
}

impl RecordKind {
    /// Which chunks have such records.
    #[must_use]
    pub const fn chunk_kind(self) -> ChunkKind {
        match self {
            Self::Write | Self::Move | Self::Trim => ChunkKind::Data,
            Self::Page | Self::Root => ChunkKind::Index,
        }
    }
}

impl RecordHeader {
    /// The bytes before the payload.
    ///
    /// # Errors
    ///
    /// When there can be no such record.
    pub fn encode(&self) -> Result<[u8; RECORD_HEADER_LEN], LayoutError> {
        self.check()?;
        let mut body = RecordBody {
            magic: MAGIC,
            header_crc: 0.into(),
            volume: self.chunk.volume.0.into(),
            segment: self.chunk.segment.0.into(),
            chunk: self.chunk.chunk.0.into(),
            offset: self.offset.0.into(),
            stored: self.stored.into(),
            sequence: self.sequence.0.into(),
            version: self.version.0.into(),
            lba: self.lba.0.into(),
            blocks: self.blocks.into(),
            payload_crc: self.payload_crc.into(),
            kind: self.kind.code(),
            encoding: self.encoding.code(),
            behind: self.behind.unwrap_or(BEHIND_UNKNOWN).into(),
        };
        body.header_crc = checksum_of(body.as_bytes(), CRC_AT).into();
        Ok(zerocopy::transmute!(body))
    }

    /// Checks the header that the bytes begin with. Whether the payload is right is another matter.
    ///
    /// # Errors
    ///
    /// When there is none, or it says what cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let (body, _) = RecordBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
        if body.magic != MAGIC {
            return Err(LayoutError::Missing);
        }
        if body.header_crc != checksum_of(body.as_bytes(), CRC_AT) {
            return Err(LayoutError::Checksum);
        }
        let kind =
            RecordKind::from_code(body.kind).ok_or(LayoutError::Illegal("a kind that is not known"))?;
        let encoding = Encoding::from_code(body.encoding);
        let header = Self {
            chunk: ChunkName {
                volume: VolumeId(body.volume.get()),
                segment: SegmentId(body.segment.get()),
                chunk: ChunkId(body.chunk.get()),
            },
            offset: Units(body.offset.get()),
            sequence: Sequence(body.sequence.get()),
            version: Sequence(body.version.get()),
            lba: Lba(body.lba.get()),
            blocks: body.blocks.get(),
            stored: body.stored.get(),
            payload_crc: body.payload_crc.get(),
            kind,
            encoding: encoding.ok_or(LayoutError::Illegal("an encoding that is not known"))?,
            behind: Some(body.behind.get()).filter(|behind| *behind != BEHIND_UNKNOWN),
        };
        header.check()?;
        Ok(header)
    }

    /// Units of all of it, the payload's filling included.
    #[must_use]
    pub const fn units(&self) -> Units {
        Units(1 + Units::of_bytes(self.stored).0)
    }

    /// Bytes of all of it, the payload's filling included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.units().bytes() as usize
    }

    /// Never: a record has a header.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Where the next record begins.
    #[must_use]
    pub fn end(&self) -> Units {
        // Both are checked to be far below all numbers.
        Units(self.offset.0 + self.units().0)
    }

    /// How far all members had the chunk when this was made, if that is known.
    #[must_use]
    pub fn everywhere(&self) -> Option<Units> {
        self.behind.map(|behind| Units(self.offset.0.saturating_sub(u32::from(behind))))
    }

    /// Bytes that the payload must give when it is decoded; none can be right for blocks of another length.
    #[must_use]
    pub fn decoded_len(&self, block_len: BlockLen) -> Option<u32> {
        let len = match self.kind {
            RecordKind::Write | RecordKind::Move => self.blocks.checked_mul(block_len.bytes())?,
            RecordKind::Trim => self.stored,
            RecordKind::Page | RecordKind::Root => self.blocks,
        };
        let is_plain = self.encoding == Encoding::None;
        (len <= STORED_MAX && (!is_plain || len == self.stored)).then_some(len)
    }

    fn check(&self) -> Result<(), LayoutError> {
        check_chunk_name(self.chunk)?;
        must(self.offset >= RECORDS_START && self.offset < CHUNK_UNITS_MAX, "a place that no record has")?;
        must(self.stored <= STORED_MAX, "more bytes than a record has")?;
        must(self.end() <= CHUNK_UNITS_MAX, "a record beyond its chunk's end")?;
        must(self.sequence.epoch().is_some(), "a sequence of no epoch")?;
        let is_version = match self.kind {
            RecordKind::Move => self.version < self.sequence && self.version.epoch().is_some(),
            _ => self.version == self.sequence,
        };
        must(is_version, "a version that it cannot have")?;
        let is_behind = self.behind.is_none_or(|behind| {
            behind != BEHIND_UNKNOWN && u32::from(behind) <= self.offset.0 - RECORDS_START.0
        });
        must(is_behind, "more behind it than the chunk has")?;
        if self.kind == RecordKind::Trim && self.stored > 0 {
            must(self.encoding == Encoding::None, "an encoded trim")?;
            must(self.lba.0 == 0 && self.blocks == 0, "a trim of one range and of several")?;
            let is_whole = self.stored.is_multiple_of(8) && self.stored as usize <= TRIM_RANGES_MAX * 8;
            return must(is_whole, "a trim of ranges that are not whole");
        }
        check_content(self.kind, self.encoding, self.lba, self.blocks, self.stored)
    }
}

/// What blocks and bytes of a record say, or of its entry in a list; not of trims that have a payload.
pub(super) fn check_content(
    kind: RecordKind,
    encoding: Encoding,
    lba: Lba,
    blocks: u32,
    stored: u32,
) -> Result<(), LayoutError> {
    must(blocks > 0, "a record of nothing")?;
    let is_plain = encoding == Encoding::None;
    match kind {
        RecordKind::Write | RecordKind::Move => {
            must(lba.0.checked_add(blocks).is_some(), "blocks beyond all segments")?;
            must(
                stored > 0 && blocks <= STORED_MAX / BlockLen::Small.bytes(),
                "blocks that a record has no room for",
            )?;
            let of = |block_len: BlockLen| blocks * block_len.bytes() == stored;
            must(!is_plain || of(BlockLen::Small) || of(BlockLen::Large), "bytes that are no blocks")
        }
        RecordKind::Trim => {
            must(lba.0.checked_add(blocks).is_some(), "blocks beyond all segments")?;
            must(is_plain && stored == 0, "a trim with a payload")
        }
        RecordKind::Page => {
            must(blocks as usize == PAGE_LEN, "a page of another length")?;
            must(stored > 0 && (!is_plain || stored == blocks), "a page that is not whole")
        }
        RecordKind::Root => {
            must(lba.0 == 0 && blocks <= STORED_MAX, "a part of a root that cannot be")?;
            must(stored > 0 && (!is_plain || stored == blocks), "a part of a root that is not whole")
        }
    }
}

impl<'a> Record<'a> {
    /// Checks the record that the bytes begin with, header, payload and filling. There may be more bytes.
    ///
    /// # Errors
    ///
    /// When there is none, or it is damaged, or says what cannot be.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let header = RecordHeader::decode(bytes)?;
        let wrong = LayoutError::Length { needed: header.len(), available: bytes.len() };
        let rest = bytes.get(RECORD_HEADER_LEN..header.len()).ok_or(wrong)?;
        let (payload, filling) = rest.split_at_checked(header.stored as usize).ok_or(wrong)?;
        let record = Self { header, payload };
        record.check()?;
        // The chunk's own checksum covers it, so that one who copies record by record must look at it.
        must(filling.iter().all(|byte| *byte == 0), "bytes behind the payload")?;
        Ok(record)
    }

    /// Appends its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such record, or the payload is another one.
    pub fn encode_into(&self, into: &mut Vec<u8>) -> Result<(), LayoutError> {
        let header = self.header.encode()?;
        let needed = self.header.stored as usize;
        if needed != self.payload.len() {
            return Err(LayoutError::Length { needed, available: self.payload.len() });
        }
        self.check()?;
        let end = into.len() + self.header.len();
        into.extend_from_slice(&header);
        into.extend_from_slice(self.payload);
        into.resize(end, 0);
        Ok(())
    }

    /// What a trim clears; of other records nothing.
    #[must_use]
    pub fn trim_ranges(&self) -> TrimRanges<'a> {
        let (single, payload) = match (self.header.kind, self.header.stored) {
            (RecordKind::Trim, 0) => {
                (Some(TrimRange { lba: self.header.lba, blocks: self.header.blocks }), &[][..])
            }
            (RecordKind::Trim, _) => (None, self.payload),
            _ => (None, &[][..]),
        };
        TrimRanges { single, payload }
    }

    fn check(&self) -> Result<(), LayoutError> {
        if crc32c::crc32c(self.payload) != self.header.payload_crc {
            return Err(LayoutError::Checksum);
        }
        let is_legal = |range: TrimRange| range.blocks > 0 && range.lba.0.checked_add(range.blocks).is_some();
        must(self.trim_ranges().all(is_legal), "a trim of blocks that there are not")
    }
}

/// The ranges of a trim, in their order.
#[derive(Clone, Debug)]
pub struct TrimRanges<'a> {
    single: Option<TrimRange>,
    payload: &'a [u8],
}

impl TrimRange {
    /// Appends its bytes to the payload of a trim of several.
    pub fn encode_into(&self, into: &mut Vec<u8>) {
        let body = RangeBody { lba: self.lba.0.into(), blocks: self.blocks.into() };
        into.extend_from_slice(body.as_bytes());
    }
}

impl Iterator for TrimRanges<'_> {
    type Item = TrimRange;

    fn next(&mut self) -> Option<TrimRange> {
        if let Some(single) = self.single.take() {
            return Some(single);
        }
        let (body, rest) = RangeBody::ref_from_prefix(self.payload).ok()?;
        self.payload = rest;
        Some(TrimRange { lba: Lba(body.lba.get()), blocks: body.blocks.get() })
    }
}

/// Records one behind the other, up to the first that cannot be.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Of bytes that begin with a record, and should consist of them.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, LayoutError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = Record::decode(self.rest);
        let len = record.as_ref().map_or(usize::MAX, |record| record.header.len());
        self.rest = self.rest.get(len..).unwrap_or_default();
        Some(record)
    }
}

impl std::iter::FusedIterator for Records<'_> {}
