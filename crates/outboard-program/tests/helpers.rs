//! The helpers that authors test with give what the card's do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use ob_ebpf::helpers as card;
use outboard_program::helpers;
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes of which many go on: varints of every length.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![any::<u8>(), Just(0x80), Just(0xff), Just(0), Just(1)], 0..24)
}

proptest! {
    #[test]
    fn helpers_are_the_cards(left in bytes(), right in bytes(), earlier in any::<u32>()) {
        prop_assert_eq!(u64::from(helpers::crc32c(earlier, &left)), card::crc32c(earlier.into(), &left));
        prop_assert_eq!(helpers::xxh3(&left), card::xxh3(&left));
        prop_assert_eq!(helpers::compare(&left, &right) as i64 as u64, card::compare(&left, &right));
        prop_assert_eq!(helpers::compare(&left, &left) as i64 as u64, card::compare(&left, &left));
        let mut value = [0; 8];
        let len = card::varint(&left, &mut value);
        let found = (len > 0).then(|| (u64::from_le_bytes(value), len as usize));
        prop_assert_eq!(helpers::varint(&left), found);
        let (mut here, mut there) = (right.clone(), right);
        prop_assert_eq!(helpers::copy(&mut here, &left) as u64, card::copy(&mut there, &left));
        prop_assert_eq!(here, there);
    }
}
