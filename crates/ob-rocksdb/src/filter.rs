//! Filters: whether a table may have a key at all.
//!
//! The last five bytes of a filter say what it is. A filter that is not understood never says no: so do Ribbon filters here, and
//! everything that a later RocksDB may write.

use crate::plant::{Bug, is_planted};
use crate::preview_hash::hash64;

const METADATA_LEN: usize = 5;
// What stands where older filters have how many bits they probe.
const MARK_NEW_BLOOM: u8 = 0xff;
const LINE_LEN: usize = 64;

/// What a filter says of a key.
#[must_use]
pub fn may_have(filter: &[u8], key: &[u8]) -> bool {
    let Some((bits, metadata)) = filter.split_last_chunk::<METADATA_LEN>() else {
        // As short a filter was made from no keys.
        return filter.is_empty();
    };
    if bits.is_empty() {
        return false;
    }
    match metadata[0] {
        MARK_NEW_BLOOM => local_bloom(bits, metadata, key).unwrap_or(true),
        probes @ 1..=127 => {
            let lines = u32::from_le_bytes([metadata[1], metadata[2], metadata[3], metadata[4]]);
            old_bloom(bits, probes, lines, key).unwrap_or(true)
        }
        // Zero is a filter that says yes to all, 0xfe is Ribbon.
        _ => true,
    }
}

/// The filter of format version 5: all bits of a key are in one cache line. Nothing if it is of a kind that came later.
fn local_bloom(bits: &[u8], metadata: &[u8; METADATA_LEN], key: &[u8]) -> Option<bool> {
    let [_, kind, lines_and_probes, rest @ ..] = *metadata;
    let probes = lines_and_probes & 31;
    if kind != 0 || lines_and_probes >> 5 != 0 || rest != [0, 0] || !(1..=30).contains(&probes) {
        return None;
    }
    let today = is_planted(Bug::HashOfToday);
    let hash = if today { twox_hash::XxHash3_64::oneshot(key) } else { hash64(key) };
    let (low, high) = (hash & 0xffff_ffff, hash >> 32);
    let lines = (bits.len() / LINE_LEN) as u64;
    let line = usize::try_from((low * lines) >> 32).ok()? * LINE_LEN;
    let line = bits.get(line..line + LINE_LEN)?;
    let mut hash = u32::try_from(high).ok()?;
    for _ in 0..probes {
        let bit = (hash >> 23) as usize;
        if line[bit / 8] & 1 << (bit % 8) == 0 {
            return Some(false);
        }
        hash = hash.wrapping_mul(0x9e37_79b9);
    }
    Some(true)
}

/// The filter before: lines as long as a cache line of the machine that wrote it.
fn old_bloom(bits: &[u8], probes: u8, lines: u32, key: &[u8]) -> Option<bool> {
    let line_len = bits.len().checked_div(lines as usize)?;
    if !line_len.is_power_of_two() || line_len * lines as usize != bits.len() {
        return None;
    }
    let mut hash = murmur(key, 0xbc9f_1d34);
    let step = hash.rotate_right(17);
    let line = &bits[(hash % lines) as usize * line_len..][..line_len];
    for _ in 0..probes {
        let bit = hash as usize & (line_len * 8 - 1);
        if line[bit / 8] & 1 << (bit % 8) == 0 {
            return Some(false);
        }
        hash = hash.wrapping_add(step);
    }
    Some(true)
}

/// LevelDB's hash, a first version of Murmur. The bytes at the end count as signed ones.
fn murmur(bytes: &[u8], seed: u32) -> u32 {
    const FACTOR: u32 = 0xc6a4_a793;
    #[expect(clippy::cast_possible_truncation, reason = "the hash is of 32 bits")]
    let mut hash = seed ^ (bytes.len() as u32).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        hash = hash.wrapping_add(u32::from_le_bytes(*word)).wrapping_mul(FACTOR);
        hash ^= hash >> 16;
    }
    for (index, byte) in rest.iter().enumerate().rev() {
        let signed = i32::from(byte.cast_signed()).cast_unsigned();
        hash = hash.wrapping_add(signed << (8 * index));
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(FACTOR);
        hash ^= hash >> 24;
    }
    hash
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_say_something(filter: Vec<u8>, key: Vec<u8>, mark: u8, rest: [u8; 4], lines in 0..9_u32) {
            let _ = may_have(&filter, &key);
            let mut marked = filter.clone();
            marked.push(mark);
            marked.extend(rest);
            let _ = may_have(&marked, &key);
            let mut old = filter.clone();
            old.push(6);
            old.extend(lines.to_le_bytes());
            let _ = may_have(&old, &key);
            let mut new = filter;
            new.extend([MARK_NEW_BLOOM, 0, 6, 0, 0]);
            let _ = may_have(&new, &key);
        }
    }

    #[test]
    fn full_says_yes_and_empty_says_no() {
        let of = |byte: u8, metadata: [u8; 5]| [&[byte; 128][..], &metadata].concat();
        for metadata in [[MARK_NEW_BLOOM, 0, 6, 0, 0], [6, 2, 0, 0, 0]] {
            assert!(may_have(&of(0xff, metadata), b"key"));
            assert!(!may_have(&of(0, metadata), b"key"));
        }
        let ribbon = of(0, [0xfe, 0, 2, 0, 0]);
        assert!(may_have(&ribbon, b"key"), "Ribbon is not understood, so it never says no");
        assert!(!may_have(&[6, 0, 0, 0, 0], b"key"), "a filter of no keys");
    }
}
