//! What is written: every word says which write it belongs to and where it lies, so that bytes in a wrong place give
//! themselves away.

/// Number of a write or resize, unique in a run; from 1 on.
pub(crate) type OpNumber = u32;

const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const SPREAD_MORE: u64 = 0xd6e8_feb8_6659_fd93;

/// The word of a write at a place in the file, given in words. Each of its bytes depends on both.
fn word(op: OpNumber, place: u64) -> u64 {
    let plain = u64::from(op) << 32 | (place & 0xffff_ffff);
    let mixed = plain.wrapping_mul(SPREAD);
    (mixed ^ (mixed >> 32)).wrapping_mul(SPREAD_MORE)
}

/// The write and the place (in words) that a word comes from, if it is the word of one.
pub(crate) fn origin(word: u64) -> (OpNumber, u32) {
    let mixed = word.wrapping_mul(inverse(SPREAD_MORE));
    let plain = (mixed ^ (mixed >> 32)).wrapping_mul(inverse(SPREAD));
    ((plain >> 32) as u32, plain as u32)
}

/// The inverse of an odd number modulo 2^64, by Newton's method.
const fn inverse(odd: u64) -> u64 {
    let mut result = odd;
    let mut round = 0;
    while round < 6 {
        result = result.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(result)));
        round += 1;
    }
    result
}

/// Fills `into` with what a write puts at `offset` of a file.
pub(crate) fn fill(op: OpNumber, offset: u64, into: &mut [u8]) {
    let mut at = 0;
    while at < into.len() {
        let place = offset + at as u64;
        let skip = (place % 8) as usize;
        let bytes = word(op, place / 8).to_le_bytes();
        let len = (8 - skip).min(into.len() - at);
        into[at..at + len].copy_from_slice(&bytes[skip..skip + len]);
        at += len;
    }
}

/// Whether `bytes` are what a write puts at `offset`.
pub(crate) fn is(op: OpNumber, offset: u64, bytes: &[u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        let place = offset + at as u64;
        let skip = (place % 8) as usize;
        let expected = word(op, place / 8).to_le_bytes();
        let len = (8 - skip).min(bytes.len() - at);
        if bytes[at..at + len] != expected[skip..skip + len] {
            return false;
        }
        at += len;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_where_it_comes_from() {
        for (op, place) in [(1, 0), (7, 12345), (u32::MAX, 0xffff_ffff)] {
            assert_eq!(origin(word(op, place)), (op, place as u32));
        }
    }

    #[test]
    fn any_piece_of_a_write_is_recognised_and_no_other() {
        let mut bytes = [0; 100];
        fill(9, 1003, &mut bytes);
        assert!(is(9, 1003, &bytes) && is(9, 1010, &bytes[7..20]));
        assert!(!is(8, 1003, &bytes) && !is(9, 1004, &bytes));
    }
}
