//! Any bytes as a frame of the stream between card and host, seen from either side: refused, or the same after a round
//! trip.

#![no_main]

use ob_wire_link::stream::{FromCard, FromHost, HEADER_LEN, push_entry};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // A header that is too short is refused, whatever comes with it.
    let (header, payload) = input.split_at_checked(HEADER_LEN).unwrap_or((input, &[]));
    if let Ok(frame) = FromCard::decode(header, payload) {
        let (header, payload) = frame.encode();
        assert_eq!(FromCard::decode(&header, payload.bytes()), Ok(frame));
    }
    if let Ok(frame) = FromHost::decode(header, payload) {
        check_entries(&frame);
        let (header, payload) = frame.encode();
        assert_eq!(FromHost::decode(&header, payload.bytes()), Ok(frame));
    }
});

/// What is read of an `ATTEST` are its first bytes, written again.
fn check_entries(frame: &FromHost<'_>) {
    let FromHost::Attest { entries, .. } = frame else { return };
    let (_, payload) = frame.encode();
    let mut again = Vec::new();
    for (key, item) in *entries {
        assert!(push_entry(&mut again, key, item));
    }
    assert!(payload.bytes().starts_with(&again));
}
