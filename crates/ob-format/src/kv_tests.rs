use ob_core::document::field_tables;
use proptest::prelude::*;

use super::*;

const DOCUMENT: &str = include_str!("../../../docs/format/kv-log.md");
const ORIGIN: Origin = Origin { store: *b"store of the one", life: 3, part_len: 1 << 20 };

#[test]
fn the_document_says_what_the_code_does() {
    let layouts = [GroupBody::FIELDS, RecordBody::FIELDS, ItemBody::FIELDS];
    assert_eq!(field_tables(DOCUMENT), layouts.map(<[_]>::to_vec));
    for (name, value) in [
        ("BLOCK_LEN", BLOCK_LEN),
        ("GROUP_HEADER_LEN", GROUP_HEADER_LEN),
        ("RECORD_HEADER_LEN", RECORD_HEADER_LEN),
        ("RECORD_ALIGNMENT", RECORD_ALIGNMENT),
    ] {
        assert!(DOCUMENT.contains(&format!("`{name}` = {value} bytes")), "{name}");
    }
    let kinds = [("VALUE", kind::VALUE), ("REMOVED", kind::REMOVED), ("FLUSHED", kind::FLUSHED)];
    for (name, kind) in kinds {
        assert!(DOCUMENT.contains(&format!("`{name}` = {kind}")), "{name}");
    }
    assert!(DOCUMENT.contains(&format!("version {VERSION}. Everything")));
    assert!(DOCUMENT.contains(std::str::from_utf8(&MAGIC).unwrap()));
}

#[test]
fn a_record_has_these_bytes() {
    let mut bytes = Vec::new();
    let record = Record { key: b"key", value: Some(b"value"), stamp: 0x0102, expires: Some(7) };
    assert!(record.encode(&mut bytes));
    let checksum = crc32c::crc32c(&bytes[4..]).to_le_bytes();
    assert_eq!(bytes[..4], checksum);
    let expected = b"\x03\x00\x01\x00\x05\x00\x00\x00\0\0\0\0\x02\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0keyvalue";
    assert_eq!(bytes[4..], expected[..]);
}

#[test]
fn what_cannot_be_kept_is_not() {
    let long = vec![0; KEY_LEN_MAX + 1];
    for record in [
        Record { key: b"", value: Some(b""), stamp: 1, expires: None },
        Record { key: &long, value: None, stamp: 1, expires: None },
        Record { key: b"k", value: None, stamp: STAMP_END, expires: None },
        Record { key: b"k", value: None, stamp: 1, expires: Some(0) },
    ] {
        let mut group = GroupWriter::default();
        assert_eq!(group.push(&record), None);
        assert!(group.is_empty());
        assert_eq!(GroupHeader::decode(&group.finish(ORIGIN, 0)).unwrap().records, 0);
    }
}

#[test]
fn a_record_without_a_key_says_that_all_keys_were_removed() {
    let mut bytes = Vec::new();
    let record = Record { key: b"", value: None, stamp: 5, expires: None };
    assert!(record.encode(&mut bytes));
    assert_eq!((bytes.len(), bytes[6]), (RECORD_HEADER_LEN, kind::FLUSHED));
    assert_eq!(RecordPlace::decode(&bytes).unwrap().of(&bytes), record);
}

#[test]
fn a_group_says_which_one_is_before_it_and_what_is_durable() {
    let mut group = GroupWriter::default();
    group.follow(8192);
    group.attest_durable(4096);
    let bytes = group.finish(ORIGIN, 12288);
    let header = GroupHeader::decode(&bytes).unwrap();
    assert_eq!((header.previous, header.durable), (8192, 4096));
    let mut group = GroupWriter::default();
    group.attest_durable(16384);
    assert!(matches!(GroupHeader::decode(&group.finish(ORIGIN, 12288)), Err(LogError::Illegal(_))));
}

#[test]
fn a_record_is_replaced_by_one_that_is_as_long() {
    let record =
        |value: &'static [u8], stamp| Record { key: b"key", value: Some(value), stamp, expires: None };
    let mut group = GroupWriter::default();
    let at = group.push(&record(b"first", 1)).unwrap();
    group.push(&record(b"behind", 2)).unwrap();
    assert!(group.replace(at, &record(b"other", 3)));
    assert!(!group.replace(at, &record(b"longer", 4)));
    assert!(!group.replace(at, &Record { key: b"kay", ..record(b"other", 4) }));
    assert!(!group.replace(at, &Record { value: None, ..record(b"", 4) }));
    assert!(!group.replace(4000, &record(b"other", 4)));
    let bytes = group.finish(ORIGIN, 0);
    let places = GroupHeader::decode(&bytes).unwrap().records(&bytes).unwrap();
    let found: Vec<Record<'_>> = places.map(|(at, place)| place.of(&bytes[at..])).collect();
    assert_eq!(found, [record(b"other", 3), record(b"behind", 2)]);
}

/// A group of so many records of 56 bytes, of which each 146th begins with a block: 72 + 145 * 56 is two of them.
fn even(count: usize, value: &[u8; 8]) -> Vec<u8> {
    let mut group = GroupWriter::default();
    for number in 0..count {
        let key = format!("key{number:0>13}");
        group.push(&Record { key: key.as_bytes(), value: Some(value), stamp: 1, expires: None }).unwrap();
    }
    group.finish(ORIGIN, 0)
}

#[test]
fn a_torn_group_with_blocks_of_a_lost_one_in_it_is_not_whole() {
    let (lost, mut torn) = (even(1000, b"of a lost"[..8].try_into().unwrap()), even(218, b"of today"));
    let (block, of_lost) = (2 * BLOCK_LEN, 9 * BLOCK_LEN);
    for (group, at) in [(&torn, block), (&lost, of_lost)] {
        assert!(RecordPlace::decode(&group[at..]).is_ok(), "a record begins with the block");
    }
    torn[block..].copy_from_slice(&lost[of_lost..of_lost + BLOCK_LEN]);
    let mut header = GroupHeader::decode(&torn).unwrap();
    assert_eq!(header.records(&torn).err(), Some(LogError::Checksum));
    // Each record by itself is.
    header.contents = None;
    assert_eq!(header.records(&torn).unwrap().count(), 218);
}

/// Key, value, stamp and expiry.
type Owned = (Vec<u8>, Option<Vec<u8>>, u64, Option<u64>);

fn records() -> impl Strategy<Value = Vec<Owned>> {
    let bytes = |len: Range<usize>| prop::collection::vec(any::<u8>(), len);
    let value = prop::option::of(prop_oneof![bytes(0..50), bytes(4000..9000)]);
    let record = (bytes(1..40), value, 0..STAMP_END, prop::option::of(1..u64::MAX));
    prop::collection::vec(record, 0..12)
}

fn written(records: &[Owned], address: u64) -> Vec<u8> {
    let mut group = GroupWriter::default();
    for (key, value, stamp, expires) in records {
        let record = Record { key, value: value.as_deref(), stamp: *stamp, expires: *expires };
        assert_eq!(group.push(&record).unwrap() % RECORD_ALIGNMENT, 0);
    }
    let len = group.len();
    let bytes = group.finish(ORIGIN, address);
    assert_eq!(bytes.len(), len);
    bytes
}

proptest! {
    #[test]
    fn groups_come_back_as_they_were(records in records(), block in 0u64..1 << 40) {
        let address = block * BLOCK_LEN as u64;
        let bytes = written(&records, address);
        let header = GroupHeader::decode(&bytes).unwrap();
        prop_assert_eq!((header.origin, header.address, header.length), (ORIGIN, address, bytes.len()));
        let places: Vec<_> = header.records(&bytes).unwrap().collect();
        prop_assert_eq!(places.len(), records.len());
        for ((at, place), (key, value, stamp, expires)) in places.iter().zip(&records) {
            let expected = Record { key, value: value.as_deref(), stamp: *stamp, expires: *expires };
            prop_assert_eq!(place.of(&bytes[*at..]), expected);
            // As the card reads it: by itself, and not a byte more.
            let alone = &bytes[*at..*at + expected.len()];
            prop_assert_eq!(RecordPlace::decode(alone).unwrap().of(alone), expected);
            prop_assert!(RecordPlace::decode(&alone[..alone.len() - 1]).is_err());
            let key_end = RECORD_HEADER_LEN + key.len();
            prop_assert_eq!(RecordPlace::key_alone(&alone[..key_end]), Some((&key[..], *expires)));
            prop_assert_eq!(RecordPlace::key_alone(&alone[..key_end - 1]), None);
        }
    }

    #[test]
    fn a_changed_bit_is_noticed(records in records(), at: prop::sample::Index, bit in 0u8..8) {
        let bytes = written(&records, 4096);
        let whole = GroupHeader::decode(&bytes).unwrap();
        let mut damaged = bytes.clone();
        let at = at.index(whole.used);
        damaged[at] ^= 1 << bit;
        let read = GroupHeader::decode(&damaged).and_then(|header| header.records(&damaged));
        prop_assert!(read.is_err());
    }

    #[test]
    fn no_bytes_are_too_wild(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = GroupHeader::decode(&bytes).and_then(|header| header.records(&bytes));
        let _ = RecordPlace::decode(&bytes);
    }
}

#[test]
fn parts_are_known_by_their_names() {
    assert_eq!(part_name(0x1f), "part-000000000000001f");
    assert_eq!(part_number("part-000000000000001f"), Some(0x1f));
    assert_eq!(part_number(&part_name(u64::MAX)), Some(u64::MAX));
    for other in
        ["part-1f", "part-000000000000001F", "part-+00000000000001f", "000000000000001f", "part-", "x"]
    {
        assert_eq!(part_number(other), None, "{other}");
    }
}

#[test]
fn items_say_where_a_record_lies_and_know_it_again() {
    let record = Record { key: b"k", value: Some(b"value"), stamp: 0x1_2345_6789, expires: Some(77) };
    let item = Item::new(7, 4096 + 64, &record).unwrap();
    assert_eq!(Item::decode(&item.encode()), Some(item));
    #[rustfmt::skip]
    assert_eq!(item.encode(), [
        7, 0, 0, 0,  8, 2, 0, 0,  5, 0, 0, 0,  0x89, 0x67, 0x45, 0x23,  77, 0, 0, 0, 0, 0, 0, 0,
    ]);
    assert!(item.means(&record));
    for other in [
        Record { value: Some(b"valu"), ..record },
        Record { value: None, ..record },
        Record { stamp: record.stamp + 1, ..record },
        Record { expires: None, ..record },
    ] {
        assert!(!item.means(&other), "{other:?}");
    }
    assert_eq!(Item::new(1 << 32, 64, &record), None, "a part beyond all parts");
    assert_eq!(Item::new(1, 60, &record), None, "between two places");
    assert_eq!(Item::new(1, 1 << 35, &record), None, "beyond the longest part");
    assert_eq!(Item::new(1, 64, &Record { value: None, ..record }), None, "nothing to read");
    assert_eq!(Item::decode(&[0; 23]), None);
}
