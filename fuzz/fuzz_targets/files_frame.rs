//! Any bytes as what lies on a device: refused, or the same after a round trip.

#![no_main]

use ob_format::files::{
    FRAME_HEADER_LEN, Frame, FrameBuilder, FrameStamp, Record, SUPERBLOCK_LEN, Superblock,
};

const FRAME_MAX: usize = 64 << 10;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check_superblock(bytes);
    check_frame(bytes);
    // Nobody guesses a checksum, so what lies behind it is reached with one that is right.
    if let Some(sealed) = sealed(bytes, 12, SUPERBLOCK_LEN) {
        check_superblock(&sealed);
    }
    if let Some(sealed) = sealed_frame(bytes) {
        check_frame(&sealed);
    }
});

fn check_superblock(bytes: &[u8]) {
    let Ok(superblock) = Superblock::decode(bytes) else { return };
    assert_eq!(superblock.encode(), bytes[..SUPERBLOCK_LEN]);
    let geometry = superblock.geometry;
    assert!(geometry.section_offset(geometry.log_sections) <= geometry.segment_offset(0));
    assert!(geometry.segment_offset(geometry.data_segments) <= geometry.capacity);
}

fn check_frame(bytes: &[u8]) {
    let Ok(frame) = Frame::decode(bytes, FRAME_MAX) else { return };
    let records: Result<Vec<_>, _> = frame.records().collect();
    let Ok(records) = records else { return };
    let mut builder = FrameBuilder::new(FRAME_MAX);
    for record in &records {
        push(&mut builder, record);
    }
    assert_eq!(builder.records(), frame.record_count());
    assert_eq!(builder.seal(&frame.stamp), frame.checksum);
    assert_eq!(builder.bytes(), &bytes[..frame.length as usize]);
}

fn push(builder: &mut FrameBuilder, record: &Record<'_>) {
    match record {
        Record::Node(node) => builder.push_node(node),
        Record::Map { file, first, runs } => {
            builder.push_map(*file, *first, &runs.iter().collect::<Vec<_>>());
        }
        Record::Remove { id } => builder.push_remove(*id),
        Record::Cut { file, first } => builder.push_cut(*file, *first),
    }
}

/// A frame around the bytes as its records; the first byte says how many there are.
fn sealed_frame(bytes: &[u8]) -> Option<Vec<u8>> {
    let (count, records) = bytes.split_first()?;
    let stamp = FrameStamp {
        sequence: 1,
        epoch: 1,
        durable: 0,
        next_node: Default::default(),
        previous: 0,
        format: 0,
    };
    let mut builder = FrameBuilder::new(FRAME_MAX);
    builder.seal(&stamp);
    let mut frame = builder.bytes().to_vec();
    frame.extend_from_slice(records);
    frame.truncate(frame.len().min(FRAME_MAX) / 8 * 8);
    let length = frame.len();
    frame[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    frame[12..16].copy_from_slice(&u32::from(*count).to_le_bytes());
    assert!(length >= FRAME_HEADER_LEN);
    sealed(&frame, 4, length)
}

/// The first `length` bytes, with the checksum at `at` set right.
fn sealed(bytes: &[u8], at: usize, length: usize) -> Option<Vec<u8>> {
    let mut bytes = bytes.get(..length)?.to_vec();
    bytes[at..at + 4].fill(0);
    let checksum = crc32c::crc32c(&bytes);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    Some(bytes)
}
