//! Any bytes as a key and a value of the metadata store: refused, or the same after a round trip.

#![no_main]

use ob_core::{ChunkId, ChunkName, SegmentId, ServerId, TierId, VolumeId};
use ob_format::volume::metadata::Text;
use ob_volume::metadata::{Key, Keys, MetadataValue, Name};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(keys) = Keys::new("default") else { panic!("no such pool") };
    if let Some(key) = std::str::from_utf8(bytes).ok().and_then(|text| Key::new(&format!("/outboard/default/{text}")))
        && let Some(name) = keys.parse(&key)
    {
        assert_eq!(keys.key(name), key);
    }
    for name in names() {
        assert_eq!(keys.parse(&keys.key(name)), Some(name));
        check(&name, bytes);
        // Nobody guesses a checksum, so what lies behind it is reached with one that is right.
        if bytes.len() >= 12 {
            let mut sealed = bytes.to_vec();
            sealed[8..12].fill(0);
            let checksum = crc32c::crc32c(&sealed);
            sealed[8..12].copy_from_slice(&checksum.to_le_bytes());
            check(&name, &sealed);
        }
    }
});

fn names() -> Vec<Name> {
    let chunk = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(1) };
    let segment = chunk.segment_name();
    let mut names = vec![
        Name::Pool,
        Name::Tier(TierId(1)),
        Name::Server(ServerId(1)),
        Name::Volume(VolumeId(1)),
        Name::Segment(segment),
        Name::Chunk(chunk),
        Name::Wanted(segment),
    ];
    names.extend(Text::new("disk0").map(Name::VolumeName));
    names
}

fn check(name: &Name, bytes: &[u8]) {
    let Ok(value) = MetadataValue::decode(name, bytes) else { return };
    let again = value.encode();
    assert_eq!(again.as_ref().map(|value| value.bytes()), Ok(bytes));
}
