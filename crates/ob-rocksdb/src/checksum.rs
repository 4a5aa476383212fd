//! Checksums of blocks, footers and log records.

use twox_hash::{XxHash3_64, XxHash32, XxHash64};

use crate::error::Damage;

/// What a table's blocks are checked with; the footer says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumKind {
    /// Nothing.
    None,
    /// CRC-32C, masked.
    Crc32c,
    /// xxHash of 32 bits.
    XxHash,
    /// The lower half of xxHash of 64 bits.
    XxHash64,
    /// The lower half of XXH3, with the last byte mixed in apart.
    Xxh3,
}

impl ChecksumKind {
    /// The kind with this number in a footer.
    ///
    /// # Errors
    /// When there is none.
    pub const fn from_number(number: u8) -> Result<Self, Damage> {
        Ok(match number {
            0 => Self::None,
            1 => Self::Crc32c,
            2 => Self::XxHash,
            3 => Self::XxHash64,
            4 => Self::Xxh3,
            _ => return Err(Damage::Malformed("there is no such kind of checksum")),
        })
    }

    /// The checksum of bytes. The last one is a block's compression type; XXH3 takes it apart from the others.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> u32 {
        match self {
            Self::None => 0,
            Self::Crc32c => mask(crc32c::crc32c(bytes)),
            Self::XxHash => XxHash32::oneshot(0, bytes),
            Self::XxHash64 => lower_half(XxHash64::oneshot(0, bytes)),
            Self::Xxh3 => bytes.split_last().map_or(0, |(last, before)| {
                lower_half(XxHash3_64::oneshot(before)) ^ u32::from(*last).wrapping_mul(0x6b90_83d9)
            }),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
const fn lower_half(hash: u64) -> u32 {
    hash as u32
}

/// What is added to the checksum of a block at `offset` in a table whose footer has this base (format version 6): so a
/// block that was moved, or belongs to another file, is noticed.
#[must_use]
pub const fn context(base: u32, offset: u64) -> u32 {
    if base == 0 {
        return 0;
    }
    base ^ lower_half(offset).wrapping_add(lower_half(offset >> 32))
}

/// A CRC as it is stored: rotated and shifted, as a CRC of bytes that contain CRCs would be a poor one.
#[must_use]
pub const fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // The CRC of the nine digits is in every table of CRCs.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(mask(0xe306_9283), 0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8));
        assert_eq!(ChecksumKind::XxHash.of(b""), 0x02cc_5d05);
        assert_eq!(ChecksumKind::XxHash64.of(b""), 0x51d8_e999);
        assert_eq!(ChecksumKind::Xxh3.of(b"\0"), lower_half(0x2d06_8005_38d3_94c2));
        assert_eq!(ChecksumKind::Xxh3.of(b""), 0);
    }

    #[test]
    fn a_place_changes_the_checksum() {
        assert_eq!(context(0, 77), 0);
        assert_ne!(context(5, 77), context(5, 78));
        assert_ne!(context(5, 77), context(5, 77 + (1 << 32)));
    }
}
