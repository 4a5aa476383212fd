//! What programs call: the card's helpers. On the machine of an author they are plain Rust, which gives the same.
//!
//! A helper takes at most [`LEN_MAX`] bytes of each range; the card ends a call that hands it more.

use core::cmp::Ordering;

#[cfg(target_arch = "bpf")]
#[path = "card.rs"]
mod implementation;
#[cfg(not(target_arch = "bpf"))]
#[path = "author.rs"]
mod implementation;

/// The longest range of bytes that a helper takes.
pub const LEN_MAX: usize = 64 << 10;

/// Copies as many bytes as the shorter of both ranges has; how many.
#[inline(always)]
pub fn copy(to: &mut [u8], from: &[u8]) -> usize {
    implementation::copy(to, from)
}

/// The CRC32C of bytes that follow others whose CRC32C is given, or 0.
#[inline(always)]
#[must_use]
pub fn crc32c(earlier: u32, bytes: &[u8]) -> u32 {
    implementation::crc32c(earlier, bytes)
}

/// The XXH3 of bytes: 64 bits, without a seed.
#[inline(always)]
#[must_use]
pub fn xxh3(bytes: &[u8]) -> u64 {
    implementation::xxh3(bytes)
}

/// How two ranges follow each other, byte by byte, the shorter first.
#[inline(always)]
#[must_use]
pub fn compare(left: &[u8], right: &[u8]) -> Ordering {
    implementation::compare(left, right)
}

/// The number of seven bits a byte, the lowest first, that bytes begin with, and how many bytes it has; none if they end within it, or
/// it has more than 64 bits.
#[inline(always)]
#[must_use]
pub fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    implementation::varint(bytes)
}

/// Tells the card's log two numbers; not every time, if it is often. On the machine of an author nobody listens.
#[inline(always)]
pub fn log(first: u64, second: u64) {
    implementation::log(first, second);
}
