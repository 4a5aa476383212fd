//! Any bytes as a frame: refused, or a frame that is the same after a round trip.

#![no_main]

use ob_wire_link::frame::{FRAME_MAX, Frame, PACKET_MAX};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for max in [FRAME_MAX, PACKET_MAX] {
        check_length(bytes, max);
    }
    let Ok(frame) = Frame::decode(bytes) else { return };
    let length = Frame::length(bytes, FRAME_MAX);
    assert_eq!(length, Ok(Some(bytes.len())), "what decodes has the length it says");
    let mut encoded = Vec::new();
    frame.encode(&mut encoded);
    assert_eq!(Frame::decode(&encoded).as_ref(), Ok(&frame));
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert_eq!(encoded, again);
});

/// A length is known from the first bytes alone, is never more than the limit, and never too small for a header.
fn check_length(bytes: &[u8], max: usize) {
    match Frame::length(bytes, max) {
        Ok(None) => assert!(bytes.len() < 4),
        Ok(Some(length)) => {
            assert!((8..=max).contains(&length));
            assert_eq!(Frame::length(&bytes[..4], max), Ok(Some(length)));
        }
        Err(_) => {}
    }
}
