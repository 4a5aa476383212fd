//! Blocks that are compressed. What comes out is bounded before it is made.

use std::io::Read;

use crate::bytes::Input;
use crate::error::{Damage, ParseError, Unsupported};

/// The largest block that is made from a compressed one. RocksDB allows 4 GiB; those who use it have kilobytes.
pub const BLOCK_LEN_MAX: usize = 256 << 20;

/// What a block is compressed with, by the byte behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// It is not.
    None,
    /// Snappy.
    Snappy,
    /// LZ4, fast or thorough: both are decoded alike.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// The compression with this number.
    ///
    /// # Errors
    /// When there is none, or it is not read here.
    pub const fn from_number(number: u8) -> Result<Self, ParseError> {
        let refused = match number {
            0 => return Ok(Self::None),
            1 => return Ok(Self::Snappy),
            4 | 5 => return Ok(Self::Lz4),
            7 | 0x40 => return Ok(Self::Zstd),
            2 => Unsupported::Compression("zlib"),
            3 => Unsupported::Compression("bzip2"),
            6 => Unsupported::Compression("xpress"),
            _ => {
                return Err(ParseError::Damaged(Damage::Malformed("there is no such kind of compression")));
            }
        };
        Err(ParseError::Unsupported(refused))
    }

    /// The block's content. Before format version 2, LZ4 had its size in eight bytes.
    ///
    /// # Errors
    /// When it is damaged, or would be too large.
    pub fn decompress(self, bytes: &[u8], format_version: u32) -> Result<Vec<u8>, ParseError> {
        match self {
            Self::None => Ok(bytes.to_vec()),
            Self::Snappy => {
                let len = snap::raw::decompress_len(bytes)
                    .map_err(|_| Damage::Malformed("a Snappy block has no length"))?;
                check_len(len as u64)?;
                let content = snap::raw::Decoder::new().decompress_vec(bytes);
                Ok(content.map_err(|_| Damage::Malformed("a Snappy block is malformed"))?)
            }
            Self::Lz4 => {
                let (len, packed) = take_len(bytes, format_version)?;
                let mut content = vec![0; len];
                let filled = lz4_flex::block::decompress_into(packed, &mut content);
                exactly(filled.ok(), len, content, "an LZ4 block is malformed")
            }
            Self::Zstd => {
                let (len, packed) = take_len(bytes, 2)?;
                unpack_zstd(packed, len)
            }
        }
    }
}

fn unpack_zstd(packed: &[u8], len: usize) -> Result<Vec<u8>, ParseError> {
    const MALFORMED: &str = "a Zstandard block is malformed";
    let mut decoder =
        ruzstd::decoding::StreamingDecoder::new(packed).map_err(|_| Damage::Malformed(MALFORMED))?;
    let mut content = vec![0; len];
    decoder.read_exact(&mut content).map_err(|_| Damage::Malformed(MALFORMED))?;
    let more = decoder.read(&mut [0]).map_err(|_| Damage::Malformed(MALFORMED))?;
    exactly(Some(len + more), len, content, MALFORMED)
}

fn exactly(
    filled: Option<usize>,
    len: usize,
    content: Vec<u8>,
    otherwise: &'static str,
) -> Result<Vec<u8>, ParseError> {
    if filled == Some(len) { Ok(content) } else { Err(Damage::Malformed(otherwise).into()) }
}

fn take_len(bytes: &[u8], format_version: u32) -> Result<(usize, &[u8]), ParseError> {
    let mut input = Input::new(bytes, "a compressed block");
    let len = if format_version < 2 { input.fixed64()? } else { u64::from(input.varint32()?) };
    Ok((check_len(len)?, input.rest()))
}

fn check_len(len: u64) -> Result<usize, Damage> {
    let too_large = Damage::TooLarge { what: "a block", len, len_max: BLOCK_LEN_MAX as u64 };
    usize::try_from(len).ok().filter(|len| *len <= BLOCK_LEN_MAX).ok_or(too_large)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bytes::put_varint;

    fn snappy(content: &[u8]) -> Vec<u8> {
        snap::raw::Encoder::new().compress_vec(content).unwrap()
    }

    fn lz4(content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, content.len() as u64);
        bytes.extend(lz4_flex::block::compress(content));
        bytes
    }

    proptest! {
        #[test]
        fn what_was_compressed_comes_back(content in prop::collection::vec(0..4_u8, 0..2000)) {
            prop_assert_eq!(Compression::Snappy.decompress(&snappy(&content), 5), Ok(content.clone()));
            prop_assert_eq!(Compression::Lz4.decompress(&lz4(&content), 5), Ok(content));
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused(bytes: Vec<u8>, version in 0..7_u32) {
            for kind in [Compression::Snappy, Compression::Lz4, Compression::Zstd] {
                if let Ok(content) = kind.decompress(&bytes, version) {
                    prop_assert!(content.len() <= BLOCK_LEN_MAX);
                }
            }
        }
    }

    #[test]
    fn a_length_that_lies_is_refused() {
        let mut bytes = lz4(b"abcabcabcabcabc");
        bytes[0] += 1;
        assert!(Compression::Lz4.decompress(&bytes, 5).is_err());
        let mut bytes = Vec::new();
        put_varint(&mut bytes, u64::from(u32::MAX));
        for kind in [Compression::Lz4, Compression::Zstd, Compression::Snappy] {
            assert!(matches!(
                kind.decompress(&bytes, 5),
                Err(ParseError::Damaged(Damage::TooLarge { .. } | Damage::Malformed(_)))
            ));
        }
    }

    #[test]
    fn others_are_named() {
        assert_eq!(Compression::from_number(2), Err(Unsupported::Compression("zlib").into()));
        assert!(matches!(Compression::from_number(99), Err(ParseError::Damaged(_))));
    }
}
