//! The helpers on the machine of an author, where programs are tested.

use core::cmp::Ordering;

/// The polynomial of CRC32C, its bits the other way round.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// Bytes of the longest varint.
const VARINT_LEN_MAX: usize = 10;

pub(super) fn copy(to: &mut [u8], from: &[u8]) -> usize {
    to.iter_mut().zip(from).map(|(to, from)| *to = *from).count()
}

pub(super) fn crc32c(earlier: u32, bytes: &[u8]) -> u32 {
    let with_byte = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 })
    };
    !bytes.iter().fold(!earlier, with_byte)
}

pub(super) fn xxh3(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

pub(super) fn compare(left: &[u8], right: &[u8]) -> Ordering {
    left.cmp(right)
}

pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().take(VARINT_LEN_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // Of the tenth byte there is room for the lowest bit.
        if at + 1 == VARINT_LEN_MAX && bits > 1 {
            return None;
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

pub(super) fn log(_first: u64, _second: u64) {}
