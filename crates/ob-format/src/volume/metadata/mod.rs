//! Values in the metadata store: what several machines must agree on.
//!
//! ```text
//!   pool ─ Pool    tiers/T ─ Tier    servers/S ─ Server    volumes/V ─ Volume ─ segments/V/G ─ Segment ─ chunks/V/G/C ─ Chunk
//! ```

mod members;
mod volumes;

pub use members::{POOL_LEN, Pool, SERVER_LEN, Server, ServerState, TIER_LEN, Tier};
pub use volumes::{
    CHUNK_LEN, CHUNK_LEN_MAX, CHUNK_LEN_MIN, Chunk, ChunkState, Class, Head, MEMBERS_MAX, Members,
    SEGMENT_LEN, Segment, SegmentState, VOLUME_LEN, Volume, VolumeState,
};

#[cfg(test)]
pub(super) use members::{POOL_MAGIC, PoolBody, SERVER_MAGIC, ServerBody, TIER_MAGIC, TierBody};
#[cfg(test)]
pub(super) use volumes::{CHUNK_MAGIC, ChunkBody, SEGMENT_MAGIC, SegmentBody, VOLUME_MAGIC, VolumeBody};

use std::fmt;

use ob_core::checksum_of;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LayoutError, VERSION};

ob_core::layout!(ValueBody, 12, { magic: [u8; 4], version: U16, length: U16, crc: U32 });

const CRC_AT: usize = std::mem::offset_of!(ValueBody, crc);

/// What a value of so many bytes begins with, but for its checksum.
fn beginning(magic: [u8; 4], len: usize) -> ValueBody {
    ValueBody { magic, version: (VERSION as u16).into(), length: (len as u16).into(), crc: 0.into() }
}

/// Puts the checksum into a value.
fn seal<T: IntoBytes + FromBytes + KnownLayout + Immutable>(value: &mut T) {
    let crc = checksum_of(value.as_bytes(), CRC_AT);
    if let Ok((body, _)) = ValueBody::mut_from_prefix(value.as_mut_bytes()) {
        body.crc = crc.into();
    }
}

/// The bytes as a value of this magic, if they are whole and of this version.
fn open<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
    magic: [u8; 4],
) -> Result<&T, LayoutError> {
    let (body, _) = ValueBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
    if body.magic != magic {
        return Err(LayoutError::Missing);
    }
    // Before length and checksum: another version may have them elsewhere.
    if u32::from(body.version.get()) != VERSION {
        return Err(LayoutError::Version(body.version.get().into()));
    }
    let wrong = LayoutError::Length { needed: size_of::<T>(), available: bytes.len() };
    let value = T::ref_from_bytes(bytes).map_err(|_| wrong)?;
    if body.length.get() as usize != bytes.len() {
        return Err(wrong);
    }
    if body.crc != checksum_of(bytes, CRC_AT) {
        return Err(LayoutError::Checksum);
    }
    Ok(value)
}

/// Text in a field of fixed length, zeros behind it: UTF-8 without control characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<const LEN: usize>([u8; LEN]);

impl<const LEN: usize> Text<LEN> {
    /// Takes a text, if it fits and can be shown to people.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut field = [0; LEN];
        field.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        (!text.chars().any(char::is_control)).then_some(Self(field))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(LEN);
        // It was one when it was made.
        std::str::from_utf8(self.0.get(..end).unwrap_or_default()).unwrap_or_default()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_str().is_empty()
    }

    /// The field's bytes.
    #[must_use]
    pub const fn field(&self) -> [u8; LEN] {
        self.0
    }

    /// Checks the bytes of a field.
    ///
    /// # Errors
    ///
    /// When they are not such a text.
    pub fn from_field(field: &[u8; LEN]) -> Result<Self, LayoutError> {
        let wrong = LayoutError::Illegal("what should be text is none");
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(LEN);
        let text = field.get(..end).and_then(|text| std::str::from_utf8(text).ok()).ok_or(wrong)?;
        Self::new(text).filter(|text| text.0 == *field).ok_or(wrong)
    }
}

impl<const LEN: usize> fmt::Debug for Text<LEN> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

impl<const LEN: usize> fmt::Display for Text<LEN> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
