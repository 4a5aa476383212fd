//! The root of the index: which chunks there are, and where its pages lie.

use ob_core::{BlockLen, ChunkId, ChunkName, SegmentId, Sequence, Units, VolumeId, checksum_of, layout};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    CHUNK_UNITS_MAX, LayoutError, PAGE_ENTRIES, PAGE_LEN, RECORDS_START, SLOT_END, VERSION, check_chunk_name,
    must,
};

/// Bytes of a root before its table of slots.
pub const ROOT_HEADER_LEN: usize = 64;
/// Bytes of a slot.
pub const SLOT_LEN: usize = 32;
/// Bytes of a page's place.
pub const PAGE_PLACE_LEN: usize = 16;

pub(super) const MAGIC: [u8; 4] = *b"OBIR";

layout!(RootBody, ROOT_HEADER_LEN, {
    magic: [u8; 4], version: U32, crc: U32, slots: U32, pages: U32, block_len: U32, head_sequence: U64, mapped: U64,
    reserved: [u8; 24],
});
layout!(SlotBody, SLOT_LEN, { volume: U64, segment: U32, chunk: U32, live: U32, blocks: U32, last_sequence: U64 });
layout!(PlaceBody, PAGE_PLACE_LEN, { page: U32, chunk: U32, offset: U32, stored: U32 });

const CRC_AT: usize = std::mem::offset_of!(RootBody, crc);

/// What a root says of the index as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootSummary {
    /// The volume's blocks.
    pub block_len: BlockLen,
    /// Records above it are to be replayed.
    pub head_sequence: Sequence,
    /// Blocks that are mapped, or lost.
    pub mapped: u64,
}

/// A chunk that entries of the index name by its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which chunk.
    pub chunk: ChunkName,
    /// Blocks that lay there when the root was made.
    pub live: u32,
    /// Blocks that were written there.
    pub blocks: u32,
    /// The greatest sequence of its records.
    pub last_sequence: Sequence,
}

/// Where a page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// Which page.
    pub page: u32,
    /// The index chunk, of the same segment.
    pub chunk: ChunkId,
    /// Where its record begins.
    pub offset: Units,
    /// Bytes of the record's payload.
    pub stored: u32,
}

/// A root whose checksum and tables are right.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a> {
    /// The index as a whole.
    pub summary: RootSummary,
    /// Its checksum, which the segment's record has too.
    pub crc: u32,
    slots: &'a [SlotBody],
    places: &'a [PlaceBody],
}

impl Slot {
    fn check(&self) -> Result<(), LayoutError> {
        check_chunk_name(self.chunk)?;
        must(self.live <= self.blocks, "more live blocks than were written")
    }

    fn body(slot: Option<&Self>) -> SlotBody {
        let none = Self { chunk: ChunkName::default(), live: 0, blocks: 0, last_sequence: Sequence(0) };
        let slot = slot.unwrap_or(&none);
        SlotBody {
            volume: slot.chunk.volume.0.into(),
            segment: slot.chunk.segment.0.into(),
            chunk: slot.chunk.chunk.0.into(),
            live: slot.live.into(),
            blocks: slot.blocks.into(),
            last_sequence: slot.last_sequence.0.into(),
        }
    }

    fn of(body: &SlotBody) -> Result<Option<Self>, LayoutError> {
        if body.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let slot = Self {
            chunk: ChunkName {
                volume: VolumeId(body.volume.get()),
                segment: SegmentId(body.segment.get()),
                chunk: ChunkId(body.chunk.get()),
            },
            live: body.live.get(),
            blocks: body.blocks.get(),
            last_sequence: Sequence(body.last_sequence.get()),
        };
        slot.check()?;
        Ok(Some(slot))
    }
}

impl PagePlace {
    fn of(body: &PlaceBody) -> Self {
        Self {
            page: body.page.get(),
            chunk: ChunkId(body.chunk.get()),
            offset: Units(body.offset.get()),
            stored: body.stored.get(),
        }
    }

    fn check(&self, before: Option<u32>) -> Result<(), LayoutError> {
        must(before.is_none_or(|before| before < self.page), "pages out of their order")?;
        must(self.page < u32::MAX / PAGE_ENTRIES as u32, "a page beyond all segments")?;
        must(self.chunk.0 != 0, "a chunk without a number")?;
        must(self.offset >= RECORDS_START && self.offset < CHUNK_UNITS_MAX, "a place that no record has")?;
        must(self.stored > 0 && self.stored as usize <= PAGE_LEN, "a page that is too long, or empty")
    }
}

/// The bytes of a root; in parts of at most 64 KiB they are the payloads of its records.
///
/// # Errors
///
/// When there can be no such root.
pub fn encode_root(
    summary: &RootSummary,
    slots: &[Option<Slot>],
    places: &[PagePlace],
) -> Result<Vec<u8>, LayoutError> {
    check_counts(summary, slots.len(), places.len())?;
    let mut before = None;
    for place in places {
        place.check(before)?;
        before = Some(place.page);
    }
    slots.iter().flatten().try_for_each(Slot::check)?;
    let mut bytes =
        Vec::with_capacity(ROOT_HEADER_LEN + slots.len() * SLOT_LEN + places.len() * PAGE_PLACE_LEN);
    let mut body = RootBody {
        magic: MAGIC,
        version: VERSION.into(),
        crc: 0.into(),
        slots: (slots.len() as u32).into(),
        pages: (places.len() as u32).into(),
        block_len: summary.block_len.bytes().into(),
        head_sequence: summary.head_sequence.0.into(),
        mapped: summary.mapped.into(),
        reserved: [0; 24],
    };
    bytes.extend_from_slice(body.as_bytes());
    for slot in slots {
        bytes.extend_from_slice(Slot::body(slot.as_ref()).as_bytes());
    }
    for place in places {
        let body = PlaceBody {
            page: place.page.into(),
            chunk: place.chunk.0.into(),
            offset: place.offset.0.into(),
            stored: place.stored.into(),
        };
        bytes.extend_from_slice(body.as_bytes());
    }
    body.crc = checksum_of(&bytes, CRC_AT).into();
    if let Some(header) = bytes.get_mut(..ROOT_HEADER_LEN) {
        header.copy_from_slice(body.as_bytes());
    }
    Ok(bytes)
}

impl<'a> Root<'a> {
    /// Checks the bytes of a root, put together from its parts.
    ///
    /// # Errors
    ///
    /// When they are not a root, whole and with legal tables.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let (body, tables) = RootBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
        if body.magic != MAGIC {
            return Err(LayoutError::Missing);
        }
        if body.version != VERSION {
            return Err(LayoutError::Version(body.version.get()));
        }
        let (slots, pages) = (u64::from(body.slots.get()), u64::from(body.pages.get()));
        // No sum of such products is too large for 64 bits.
        let needed = ROOT_HEADER_LEN as u64 + slots * SLOT_LEN as u64 + pages * PAGE_PLACE_LEN as u64;
        let wrong = LayoutError::Length {
            needed: usize::try_from(needed).unwrap_or(usize::MAX),
            available: bytes.len(),
        };
        if needed != bytes.len() as u64 {
            return Err(wrong);
        }
        if body.crc != checksum_of(bytes, CRC_AT) {
            return Err(LayoutError::Checksum);
        }
        must(body.reserved == [0; 24], "reserved bytes are not zero")?;
        let block_len = BlockLen::from_bytes(body.block_len.get());
        let summary = RootSummary {
            block_len: block_len.ok_or(LayoutError::Illegal("blocks of a length that there is not"))?,
            head_sequence: Sequence(body.head_sequence.get()),
            mapped: body.mapped.get(),
        };
        check_counts(&summary, slots as usize, pages as usize)?;
        let (slots, places) = tables.split_at_checked(slots as usize * SLOT_LEN).ok_or(wrong)?;
        let slots = <[SlotBody]>::ref_from_bytes(slots).map_err(|_| wrong)?;
        let places = <[PlaceBody]>::ref_from_bytes(places).map_err(|_| wrong)?;
        for slot in slots {
            Slot::of(slot)?;
        }
        let mut before = None;
        for place in places.iter().map(PagePlace::of) {
            place.check(before)?;
            before = Some(place.page);
        }
        Ok(Self { summary, crc: body.crc.get(), slots, places })
    }

    /// The slots in their order; free ones are nothing.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = Option<Slot>> + use<'a> {
        // They were checked when the root was decoded.
        self.slots.iter().map(|slot| Slot::of(slot).ok().flatten())
    }

    /// Where pages lie, in their order.
    pub fn places(&self) -> impl ExactSizeIterator<Item = PagePlace> + use<'a> {
        self.places.iter().map(PagePlace::of)
    }
}

fn check_counts(summary: &RootSummary, slots: usize, pages: usize) -> Result<(), LayoutError> {
    must(slots <= SLOT_END as usize, "more slots than entries can name")?;
    let blocks = pages as u64 * PAGE_ENTRIES as u64;
    must(summary.mapped <= blocks, "more mapped blocks than pages have")
}
