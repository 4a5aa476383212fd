//! Any bytes as a message of the chunk protocol, from either side: refused, or the same after a round trip.

#![no_main]

use ob_core::{ChunkId, ChunkName, SegmentId, Units, VolumeId};
use ob_volume::wire::{
    HEADER_LEN, HelloPayload, ReplyMessage, RequestMessage, WelcomePayload, check_records, decode_chunks, decode_entries,
    encode_chunks, encode_entries,
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check_header(bytes);
    check_payload(bytes);
    // Nobody guesses a checksum, so what lies behind it is reached with one that is right.
    if let Some(header) = bytes.get(..HEADER_LEN) {
        let mut header = header.to_vec();
        header[..3].copy_from_slice(b"OC\x01");
        header[20..24].fill(0);
        let checksum = crc32c::crc32c(&header);
        header[20..24].copy_from_slice(&checksum.to_le_bytes());
        check_header(&header);
    }
    let payload = bytes.get(HEADER_LEN..).unwrap_or(bytes);
    let sealed = [payload, &crc32c::crc32c(payload).to_le_bytes()].concat();
    check_payload(&sealed);
});

fn check_header(bytes: &[u8]) {
    match RequestMessage::decode(bytes) {
        Ok(message) => {
            assert_eq!(message.encode().as_ref().map(|header| &header[..]), Ok(&bytes[..HEADER_LEN]));
            // The epoch is compared before anything else, so what has one must tell it.
            assert_eq!(message.request.fence().is_some(), bytes[40..44] != [0; 4]);
        }
        Err(error) => {
            // Whatever is answered can be.
            if let Some((kind, tag, refusal)) = error.refusal() {
                let answer = ob_volume::wire::Answer::Refused { kind, refusal };
                let reply = ReplyMessage { tag, payload_len: 0, answer };
                assert_eq!(reply.encode().and_then(|bytes| ReplyMessage::decode(&bytes)), Ok(reply));
            }
        }
    }
    if let Ok(message) = ReplyMessage::decode(bytes) {
        assert_eq!(message.encode().as_ref().map(|header| &header[..]), Ok(&bytes[..HEADER_LEN]));
    }
}

fn check_payload(bytes: &[u8]) {
    if let Ok(hello) = HelloPayload::decode(bytes) {
        assert_eq!(hello.encode().as_ref().map(|hello| &hello[..]), Ok(bytes));
    }
    if let Ok(welcome) = WelcomePayload::decode(bytes) {
        assert_eq!(welcome.encode().as_ref().map(|welcome| &welcome[..]), Ok(bytes));
    }
    if let Ok(entries) = decode_entries(bytes) {
        assert_eq!(encode_entries(&entries.collect::<Vec<_>>()).as_deref(), Ok(bytes));
    }
    if let Ok(lines) = decode_chunks(bytes) {
        assert_eq!(encode_chunks(&lines.collect::<Vec<_>>()).as_deref(), Ok(bytes));
    }
    let chunk = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(1) };
    if let Ok(end) = check_records(chunk, Units(64), bytes) {
        assert_eq!(end.bytes(), Units(64).bytes() + bytes.len() as u64);
    }
}
