//! What the helpers of [`world`](crate::world) do, over plain bytes: the one definition, for the interpreter and for compiled code.
//!
//! A call of a helper goes in this order, whatever runs it:
//!
//! 1. lengths are compared with the most that the signature allows, from the first argument to the last
//!    ([`FaultKind::RangeTooLong`](crate::call::FaultKind::RangeTooLong));
//! 2. [`fuel_of`] is paid;
//! 3. ranges are checked, from the first argument to the last. A range without bytes has to begin in its region, too, or where
//!    that ends;
//! 4. the helper does its work. Nothing was written before.
//!
//! Of what a helper may write it has written afterwards: `ob_varint` all of it, `ob_copy` as many bytes as it says. A lookup
//! that found nothing has left the value of the last one.

use std::cmp::Ordering;

use twox_hash::XxHash3_64;

use crate::world::{Argument, Helper};

/// Bytes of the longest varint: nine of seven bits, and one more bit.
pub const VARINT_LEN_MAX: usize = 10;
/// Bytes that [`varint`] puts its number into.
pub const VARINT_VALUE_LEN: usize = 8;

/// Fuel that a call of a helper costs: what its signature says, and one for each eight bytes of a range. `arguments` are those
/// of the call; only lengths are looked at, which are within what the signature allows.
#[must_use]
pub fn fuel_of(helper: Helper, arguments: &[u64]) -> u32 {
    let signature = helper.signature();
    let lens = signature.arguments.iter().zip(arguments).map(|(argument, value)| match argument {
        Argument::Len { max } => (*value).min((*max).into()) as u32,
        _ => 0,
    });
    lens.fold(signature.fuel, |fuel, len| fuel + len / 8)
}

/// `ob_copy`, where the ranges do not overlap. Where they may, [`copy_len`] bytes are moved as if by way of a third place.
pub fn copy(to: &mut [u8], from: &[u8]) -> u64 {
    let len = copy_len(to.len(), from.len());
    if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
        to.copy_from_slice(from);
    }
    len as u64
}

/// How many bytes `ob_copy` copies.
#[must_use]
pub fn copy_len(to: usize, from: usize) -> usize {
    to.min(from)
}

/// `ob_crc32c`. Of the earlier CRC the lower 32 bits count.
#[must_use]
pub fn crc32c(earlier: u64, bytes: &[u8]) -> u64 {
    crc32c::crc32c_append(earlier as u32, bytes).into()
}

/// `ob_xxh3`.
#[must_use]
pub fn xxh3(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// `ob_compare`: -1, 0 or 1, as a register holds it.
#[must_use]
pub fn compare(left: &[u8], right: &[u8]) -> u64 {
    let is_short = left.len().min(right.len()) <= SHORT_LEN_MAX;
    let order = if is_short { compare_short(left, right) } else { left.cmp(right) };
    order as i64 as u64
}

/// What is compared here and not by the C library.
const SHORT_LEN_MAX: usize = 64;

/// The order of bytes of which a part may have been written just now, as a parser does that puts a key together from pieces. The C
/// library reads as much at once as it can, and a processor then waits until all of the writes have reached the cache; words and
/// single bytes it gets from the writes themselves.
fn compare_short(left: &[u8], right: &[u8]) -> Ordering {
    let len = left.len().min(right.len());
    let common = |bytes| <[u8]>::get(bytes, ..len).unwrap_or_default().as_chunks::<8>();
    let ((left_words, left_rest), (right_words, right_rest)) = (common(left), common(right));
    for (left, right) in left_words.iter().zip(right_words) {
        let (left, right) = (u64::from_be_bytes(*left), u64::from_be_bytes(*right));
        if left != right {
            return left.cmp(&right);
        }
    }
    for (left, right) in left_rest.iter().zip(right_rest) {
        if left != right {
            return left.cmp(right);
        }
    }
    left.len().cmp(&right.len())
}

/// `ob_varint`. How many bytes the number has, of which the value was put into `into`; 0 if there is none, because the bytes
/// end too early, it has more than 64 bits, or `into` has not eight bytes; then all of that is zero.
pub fn varint(bytes: &[u8], into: &mut [u8]) -> u64 {
    into.fill(0);
    let Some((value, len)) = read_varint(bytes) else { return 0 };
    let Ok(into) = <&mut [u8; VARINT_VALUE_LEN]>::try_from(into) else { return 0 };
    *into = value.to_le_bytes();
    len
}

fn read_varint(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().take(VARINT_LEN_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // Of the tenth byte there is room for the lowest bit.
        if at + 1 == VARINT_LEN_MAX && bits > 1 {
            return None;
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at as u64 + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::HELPER_LEN_MAX;

    #[test]
    fn fuel_counts_every_range_and_nothing_else() {
        assert_eq!(fuel_of(Helper::Log, &[u64::MAX, u64::MAX]), 100);
        assert_eq!(fuel_of(Helper::Crc32c, &[800, 800, 7]), 20);
        assert_eq!(fuel_of(Helper::Crc32c, &[800, 800, 8]), 21);
        assert_eq!(fuel_of(Helper::Copy, &[0, 64, 0, HELPER_LEN_MAX.into()]), 20 + 8 + HELPER_LEN_MAX / 8);
        assert_eq!(fuel_of(Helper::TableLookup, &[0, u64::MAX]), 204);
    }

    #[test]
    fn a_copy_is_as_long_as_the_shorter_range() {
        let mut to = [0; 4];
        assert_eq!(copy(&mut to, b"ab"), 2);
        assert_eq!(&to, b"ab\0\0");
        assert_eq!(copy(&mut to, b"cdefgh"), 4);
        assert_eq!(&to, b"cdef");
        assert_eq!(copy(&mut [], b"a"), 0);
    }

    #[test]
    fn checksums_go_on_from_earlier_ones() {
        // RFC 3720, B.4: the CRC32C of 32 bytes of zeroes.
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(crc32c(1 << 32, b"123456789"), 0xe306_9283, "upper bits do not count");
        assert_eq!(crc32c(77, b""), 77);
        // As the reference implementation has them.
        assert_eq!(xxh3(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(xxh3(b"a"), 0xe6c6_32b6_1e96_4e1f);
    }

    #[test]
    fn comparison_is_that_of_bytes_and_the_shorter_comes_first() {
        assert_eq!(compare(b"ab", b"ab"), 0);
        assert_eq!(compare(b"ab", b"abc") as i64, -1);
        assert_eq!(compare(b"\xff", b"\x01zz"), 1);
        assert_eq!(compare(b"", b""), 0);
    }

    #[test]
    fn comparison_is_that_of_slices_at_every_length_and_place() {
        for len in 0..=2 * SHORT_LEN_MAX + 1 {
            let left: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert_eq!(compare(&left, &left), 0);
            for at in 0..len {
                for byte in [0, at as u8 ^ 1, 0xff] {
                    let mut right = left.clone();
                    right[at] = byte;
                    assert_eq!(
                        compare(&left, &right),
                        left.cmp(&right) as i64 as u64,
                        "{byte} at {at} of {len}"
                    );
                }
                assert_eq!(compare(&left[..at], &left) as i64, -1, "{at} of {len}");
                assert_eq!(compare(&left, &left[..at]), 1, "{at} of {len}");
            }
        }
    }

    #[test]
    fn varints_of_every_length_are_read() {
        for bits in 0..64 {
            for value in [1u64 << bits, (1 << bits) - 1, u64::MAX >> bits] {
                let mut bytes = Vec::new();
                let mut rest = value;
                while rest > 0x7f {
                    bytes.push(rest as u8 | 0x80);
                    rest >>= 7;
                }
                bytes.push(rest as u8);
                let mut into = [0xff; 8];
                for cut in 0..bytes.len() {
                    assert_eq!(varint(&bytes[..cut], &mut into), 0, "{value:#x} cut to {cut}");
                    assert_eq!(into, [0; 8]);
                }
                let len = bytes.len() as u64;
                bytes.push(0xff);
                assert_eq!(varint(&bytes, &mut into), len, "{value:#x}");
                assert_eq!(u64::from_le_bytes(into), value);
            }
        }
    }

    #[test]
    fn a_varint_beyond_64_bits_is_none() {
        let mut bytes = [0xff; 10];
        let mut into = [1; 8];
        for last in 0..=0xff {
            bytes[9] = last;
            assert_eq!(varint(&bytes, &mut into), if last <= 1 { 10 } else { 0 }, "{last:#x}");
        }
        assert_eq!(varint(&[0x80; 11], &mut into), 0, "eleven bytes");
        assert_eq!(varint(&[0x80, 0], &mut into), 2, "a number may have zeroes above it");
        assert_eq!(into, [0; 8]);
        let mut short = [1; 7];
        assert_eq!(varint(&[5], &mut short), 0);
        assert_eq!(short, [0; 7]);
    }
}
