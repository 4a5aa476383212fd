//! The helpers on the card: calls by name, which the loader makes calls by number.

use core::cmp::Ordering;

use raw::{ob_compare, ob_copy, ob_crc32c, ob_log, ob_varint, ob_xxh3};

#[path = "raw.rs"]
mod raw;

#[inline(always)]
pub(super) fn copy(to: &mut [u8], from: &[u8]) -> usize {
    // SAFETY: both are ranges of bytes, the first of which is ours alone.
    unsafe { ob_copy(to.as_mut_ptr(), to.len() as u64, from.as_ptr(), from.len() as u64) as usize }
}

#[inline(always)]
pub(super) fn crc32c(earlier: u32, bytes: &[u8]) -> u32 {
    // SAFETY: it is a range of bytes.
    unsafe { ob_crc32c(earlier.into(), bytes.as_ptr(), bytes.len() as u64) as u32 }
}

#[inline(always)]
pub(super) fn xxh3(bytes: &[u8]) -> u64 {
    // SAFETY: it is a range of bytes.
    unsafe { ob_xxh3(bytes.as_ptr(), bytes.len() as u64) }
}

#[inline(always)]
pub(super) fn compare(left: &[u8], right: &[u8]) -> Ordering {
    // SAFETY: both are ranges of bytes.
    let order = unsafe { ob_compare(left.as_ptr(), left.len() as u64, right.as_ptr(), right.len() as u64) };
    order.cmp(&0)
}

#[inline(always)]
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = [0u8; 8];
    // SAFETY: both are ranges of bytes, the second of which is ours alone.
    let len =
        unsafe { ob_varint(bytes.as_ptr(), bytes.len() as u64, value.as_mut_ptr(), value.len() as u64) };
    (len != 0).then_some((u64::from_le_bytes(value), len as usize))
}

#[inline(always)]
pub(super) fn log(first: u64, second: u64) {
    // SAFETY: it takes numbers.
    unsafe { ob_log(first, second) };
}
