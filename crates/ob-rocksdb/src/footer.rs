//! The last bytes of a table, and handles of its blocks.
//!
//! ```text
//!   version 0:      metaindex handle, index handle, padded to 40 bytes │ old magic number (8)
//!   versions 1–5:   checksum kind (1) │ the same 40 bytes │ version (4) │ magic number (8)
//!   version 6:      checksum kind (1) │ 3e 00 7a 00 │ checksum of the footer (4) │ base of checksums (4) │ metaindex size (4)
//!                   │ zeros (24) │ version (4) │ magic number (8)
//! ```
//!
//! From version 6 on the index is found by the metaindex, which stands directly before the footer.

use crate::bytes::Input;
use crate::checksum::{ChecksumKind, context};
use crate::error::{Damage, ParseError, Unsupported};

/// Bytes behind a block: its compression, and a checksum of both.
pub const TRAILER_LEN: u64 = 5;

/// Bytes of the longest footer; as many as a table has, if it has fewer, are enough to read it.
pub const FOOTER_LEN_MAX: usize = 53;

const FOOTER_LEN_OLD: usize = 48;
const MAGIC: u64 = 0x88e2_41b7_85f4_cff7;
const MAGIC_OLD: u64 = 0xdb47_7524_8b80_fb57;
const EXTENDED_MAGIC: [u8; 4] = [0x3e, 0x00, 0x7a, 0x00];

/// Where a block is, without its trailer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

impl Handle {
    /// Reads a handle.
    ///
    /// # Errors
    /// When it is cut off.
    pub fn parse(input: &mut Input<'_>) -> Result<Self, Damage> {
        Ok(Self { offset: input.varint64()?, len: input.varint64()? })
    }

    /// Where the block behind this one begins, which is behind the trailer.
    ///
    /// # Errors
    /// When there can be no such place.
    pub fn end(self) -> Result<u64, Damage> {
        let end = self.offset.checked_add(self.len).and_then(|end| end.checked_add(TRAILER_LEN));
        end.ok_or(Damage::Malformed("a block ends behind all files"))
    }
}

/// A footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The table's format.
    pub format_version: u32,
    /// What its blocks are checked with.
    pub checksum: ChecksumKind,
    /// What makes checksums depend on the place; 0 before version 6.
    pub context_base: u32,
    /// The block that says where the others are.
    pub metaindex: Handle,
    /// The index, unless the metaindex has it.
    pub index: Option<Handle>,
}

/// Reads the footer of a table of `file_len` bytes from its last ones.
///
/// # Errors
/// When it is damaged, or that of a table that is not read.
pub fn parse(tail: &[u8], file_len: u64) -> Result<Footer, ParseError> {
    let too_short = Damage::Truncated("a table");
    let (before, magic) = tail.split_last_chunk::<8>().ok_or(too_short.clone())?;
    match u64::from_le_bytes(*magic) {
        MAGIC_OLD => {
            let start = tail.len().checked_sub(FOOTER_LEN_OLD).ok_or(too_short)?;
            let (metaindex, index) = handles(&tail[start..])?;
            Ok(Footer {
                format_version: 0,
                checksum: ChecksumKind::Crc32c,
                context_base: 0,
                metaindex,
                index: Some(index),
            })
        }
        MAGIC => {
            let version = before.last_chunk::<4>().map(|version| u32::from_le_bytes(*version));
            let start = tail.len().checked_sub(FOOTER_LEN_MAX).ok_or(too_short.clone())?;
            match version.ok_or(too_short)? {
                version @ 1..=5 => {
                    let checksum = ChecksumKind::from_number(tail[start])?;
                    let (metaindex, index) = handles(&tail[start + 1..])?;
                    let index = Some(index);
                    Ok(Footer { format_version: version, checksum, context_base: 0, metaindex, index })
                }
                6 => parse_checked(&tail[start..], file_len),
                other => Err(Unsupported::FormatVersion(other).into()),
            }
        }
        other => Err(Unsupported::TableKind(other).into()),
    }
}

fn handles(bytes: &[u8]) -> Result<(Handle, Handle), Damage> {
    let mut input = Input::new(bytes, "a footer");
    let (metaindex, index) = (Handle::parse(&mut input)?, Handle::parse(&mut input)?);
    // No block is empty; a footer of version 6 whose version is damaged looks as if one were.
    if metaindex.len == 0 || index.len == 0 {
        return Err(Damage::Malformed("a footer has an empty block"));
    }
    Ok((metaindex, index))
}

/// A footer of version 6, which has a checksum of its own.
fn parse_checked(bytes: &[u8], file_len: u64) -> Result<Footer, ParseError> {
    let mut input = Input::new(bytes, "a footer");
    let checksum = ChecksumKind::from_number(input.byte()?)?;
    if input.take(EXTENDED_MAGIC.len())? != EXTENDED_MAGIC {
        return Err(Damage::Malformed("the footer's second magic number is wrong").into());
    }
    let stored = input.fixed32()?;
    let context_base = input.fixed32()?;
    let metaindex_len = u64::from(input.fixed32()?);
    input.take(16)?;
    if input.fixed64()? != 0 {
        return Err(Unsupported::FormatVersion(6).into());
    }
    let footer_at = file_len.checked_sub(FOOTER_LEN_MAX as u64).ok_or(Damage::Truncated("a table"))?;
    let mut unsigned = bytes.to_vec();
    unsigned[5..9].fill(0);
    let expected = checksum.of(&unsigned).wrapping_add(context(context_base, footer_at));
    if stored != expected {
        return Err(Damage::Checksum("the footer").into());
    }
    let outside = Damage::Malformed("the metaindex begins before the table does");
    let offset = footer_at.checked_sub(TRAILER_LEN + metaindex_len).ok_or(outside)?;
    let metaindex = Handle { offset, len: metaindex_len };
    Ok(Footer { format_version: 6, checksum, context_base, metaindex, index: None })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bytes::put_varint;

    fn sealed(version: u32, kind: u8) -> Vec<u8> {
        let mut bytes = vec![kind];
        for number in [1000, 200, 800, 195] {
            put_varint(&mut bytes, number);
        }
        bytes.resize(41, 0);
        bytes.extend(version.to_le_bytes());
        bytes.extend(MAGIC.to_le_bytes());
        bytes
    }

    fn checked(kind: ChecksumKind, number: u8, file_len: u64) -> Vec<u8> {
        let mut bytes = vec![number];
        bytes.extend(EXTENDED_MAGIC);
        bytes.extend([0; 4]);
        bytes.extend(77_u32.to_le_bytes());
        bytes.extend(300_u32.to_le_bytes());
        bytes.extend([0; 24]);
        bytes.extend(6_u32.to_le_bytes());
        bytes.extend(MAGIC.to_le_bytes());
        let checksum = kind.of(&bytes).wrapping_add(context(77, file_len - 53));
        bytes[5..9].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn versions_are_told_apart() {
        let footer = parse(&sealed(5, 4), 2000).unwrap();
        assert_eq!((footer.format_version, footer.checksum), (5, ChecksumKind::Xxh3));
        assert_eq!(footer.metaindex, Handle { offset: 1000, len: 200 });
        assert_eq!(footer.index, Some(Handle { offset: 800, len: 195 }));
        let mut old = sealed(5, 4)[1..41].to_vec();
        old.extend(MAGIC_OLD.to_le_bytes());
        assert_eq!(parse(&old, 2000).unwrap().format_version, 0);
        assert_eq!(parse(&sealed(7, 1), 2000), Err(Unsupported::FormatVersion(7).into()));
        assert_eq!(parse(&[0; 53], 2000), Err(Unsupported::TableKind(0).into()));
    }

    #[test]
    fn a_checked_footer_notices_every_bit() {
        let bytes = checked(ChecksumKind::Xxh3, 4, 5000);
        let footer = parse(&bytes, 5000).unwrap();
        assert_eq!(footer.metaindex, Handle { offset: 5000 - 53 - 5 - 300, len: 300 });
        assert_eq!(footer.index, None);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&flipped, 5000).is_err(), "bit {bit}");
        }
        assert!(parse(&bytes, 5001).is_err(), "the footer knows its place");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_footer_or_not(mut bytes: Vec<u8>, version in 0..8_u32, file_len: u64) {
            let _ = parse(&bytes, file_len);
            bytes.extend(version.to_le_bytes());
            bytes.extend(MAGIC.to_le_bytes());
            let _ = parse(&bytes, file_len);
        }
    }
}
