//! Holds the keys of `docs/volumes-safety.md` and the code together; and keys and values that are not as they should be.

use ob_core::document::rows;
use ob_core::{ChunkId, ChunkName, SegmentId, SegmentName, ServerId, TierId, VolumeId};
use ob_format::volume::LayoutError;
use ob_format::volume::metadata::{Pool, Text};
use proptest::prelude::*;

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/volumes-safety.md");

const SEGMENT: SegmentName = SegmentName { volume: VolumeId(0xabc), segment: SegmentId(0x12) };
const CHUNK: ChunkName =
    ChunkName { volume: VolumeId(0xabc), segment: SegmentId(0x12), chunk: ChunkId(0x34) };

fn keys() -> Keys {
    Keys::new("default").unwrap()
}

fn names() -> [Name; 8] {
    [
        Name::Pool,
        Name::Tier(TierId(0xdef)),
        Name::Server(ServerId(0x99)),
        Name::VolumeName(Text::new("disk0").unwrap()),
        Name::Volume(VolumeId(0xabc)),
        Name::Segment(SEGMENT),
        Name::Chunk(CHUNK),
        Name::Wanted(SEGMENT),
    ]
}

#[test]
fn keys_are_the_documents() {
    let table =
        rows(DOCUMENT).skip_while(|cells| !cells[0].starts_with("key, below `/outboard/POOL/")).skip(2);
    let documented: Vec<&str> =
        table.take(7).flat_map(|cells| cells[0].split("`, `").collect::<Vec<_>>()).collect();
    let coded = names().map(|name| {
        let key = keys().key(name);
        let path = key.as_str().strip_prefix("/outboard/default/").unwrap().to_owned();
        let path =
            path.replace("0000000000000def", "T").replace("0000000000000099", "S").replace("disk0", "NAME");
        path.replace("0000000000000abc", "V").replace("00000012", "G").replace("00000034", "C")
    });
    assert_eq!(documented, coded);
    assert!(DOCUMENT.contains("T, S, V are 16 hexadecimal digits, G and C 8."));
    assert!(DOCUMENT.contains(&format!("at most TRANSACTION_MAX = {TRANSACTION_MAX} of each")));
    assert!(
        DOCUMENT.contains(&format!("at\nmost {} KiB, keys {KEY_LEN_MAX} bytes of text", VALUE_LEN_MAX >> 10))
    );
    assert!(DOCUMENT.contains(&format!("one moment for all of a page; {LIST_MAX} at most")));
}

#[test]
fn keys_are_known_again_and_others_are_not() {
    let keys = keys();
    for name in names() {
        assert_eq!(keys.parse(&keys.key(name)), Some(name));
        assert_eq!(Keys::new("other").unwrap().parse(&keys.key(name)), None);
    }
    for path in [
        "",
        "pool/",
        "pools",
        "tiers/0000000000000000",
        "tiers/0000000000000DEF",
        "tiers/def",
        "tiers/0000000000000def/",
        "names/",
        "names/a/b",
        "volumes",
        "segments/0000000000000abc",
        "segments/0000000000000abc/12",
        "chunks/0000000000000abc/00000012",
        "chunks/0000000000000abc/00000012/00000000",
        "chunks/0000000000000abc/00000012/00000034/00000056",
    ] {
        let key = Key::new(&format!("/outboard/default/{path}")).unwrap();
        assert_eq!(keys.parse(&key), None, "{path}");
    }
    for (prefix, name) in [
        (keys.tiers(), names()[1]),
        (keys.servers(), names()[2]),
        (keys.volumes(), names()[4]),
        (keys.segments(SEGMENT.volume), names()[5]),
        (keys.chunks(SEGMENT), names()[6]),
        (keys.wanted(), names()[7]),
    ] {
        assert!(keys.key(name).as_str().starts_with(prefix.as_str()), "{prefix}");
    }
}

#[test]
fn no_key_is_too_long() {
    let keys = Keys::new(&"p".repeat(POOL_NAME_LEN_MAX)).unwrap();
    let longest = Name::VolumeName(Text::new(&"n".repeat(64)).unwrap());
    for name in names().into_iter().chain([longest]) {
        assert!(Key::new(keys.key(name).as_str()).is_some(), "{name:?}");
    }
    for pool in ["", "a/b", "a\n", &"p".repeat(POOL_NAME_LEN_MAX + 1)] {
        assert_eq!(Keys::new(pool), Err(KeysError), "{pool}");
    }
    assert_eq!(Key::new(""), None);
    assert_eq!(Key::new(&"k".repeat(KEY_LEN_MAX + 1)), None);
    assert!(Value::new(&[0; VALUE_LEN_MAX]).is_some());
    assert_eq!(Value::new(&[0; VALUE_LEN_MAX + 1]), None);
}

#[test]
fn values_are_those_of_their_keys() {
    let volume = MetadataValue::VolumeName(VolumeId(0xabc));
    assert_eq!(volume.encode().unwrap().bytes(), b"0000000000000abc");
    let name = names()[3];
    assert_eq!(MetadataValue::decode(&name, b"0000000000000abc"), Ok(volume));
    for wrong in [
        &b""[..],
        b"0000000000000000",
        b"0000000000000ABC",
        b"abc",
        b"\xff\xff\xff\xff",
        b"0000000000000abc\n",
    ] {
        assert!(MetadataValue::decode(&name, wrong).is_err(), "{wrong:?}");
    }
    assert!(MetadataValue::Wanted(TierId(0)).encode().is_err());
    let pool = Pool { drift_ppm: 10_000, pool: ob_core::PoolId([7; 16]), volume_next: 1, namespace_next: 1 };
    let bytes = MetadataValue::Pool(pool).encode().unwrap();
    assert_eq!(MetadataValue::decode(&Name::Pool, bytes.bytes()), Ok(MetadataValue::Pool(pool)));
    // What another key has is not taken for it.
    for name in &names()[1..] {
        assert!(MetadataValue::decode(name, bytes.bytes()).is_err(), "{name:?}");
    }
    let mut newer = bytes.bytes().to_vec();
    newer[4] = 2;
    assert_eq!(MetadataValue::decode(&Name::Pool, &newer), Err(LayoutError::Version(2)));
}

proptest! {
    #[test]
    fn hostile_values_and_keys_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in ".{0,80}") {
        for name in names() {
            if let Ok(value) = MetadataValue::decode(&name, &bytes) {
                prop_assert_eq!(value.encode().unwrap().bytes().to_vec(), bytes.clone());
            }
        }
        if let Some(key) = Key::new(&format!("/outboard/default/{text}"))
            && let Some(name) = keys().parse(&key)
        {
            prop_assert_eq!(keys().key(name), key);
        }
    }
}
