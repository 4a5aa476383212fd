//! What was read, and whether it is what the table meant.

use std::cell::Cell;

use ob_format::kv::{Item, Record};
use ob_offload::{Hit, Stamp};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{RIG, get};

const KEY_LENGTH_AT: usize = 4;
const KIND_AT: usize = 6;
const VALUE_LENGTH_AT: usize = 8;
const STAMP_AT: usize = 16;
const EXPIRES_AT: usize = 24;
/// Beyond the margin, for a clock that says 0.
const EXPIRES: u64 = 5000;

/// A key, what the table has for it, and what was read.
#[derive(Clone, Debug)]
struct Case {
    key: Vec<u8>,
    item: Item,
    read: Vec<u8>,
}

impl Case {
    fn new(key: &[u8], value: &[u8], stamp: u64, expires: Option<u64>) -> Self {
        let record = Record { key, value: Some(value), stamp, expires };
        let mut read = Vec::new();
        assert!(record.encode(&mut read));
        Self { key: key.to_vec(), item: Item::new(2, 64, &record).unwrap(), read }
    }

    /// Writes into the record, and makes the checksum right again.
    fn write(mut self, at: usize, bytes: &[u8]) -> Self {
        self.read[at..at + bytes.len()].copy_from_slice(bytes);
        self.seal();
        self
    }

    fn seal(&mut self) {
        let checksum = crc32c::crc32c(&self.read[4..]);
        self.read[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    fn with_item(self, change: impl FnOnce(&mut Item)) -> Self {
        let mut item = self.item;
        change(&mut item);
        Self { item, ..self }
    }

    /// What the client gets; the host is asked if that is nothing.
    fn reply(&self) -> Option<Vec<u8>> {
        let item = ob_offload::Item::new(&self.item.encode()).unwrap();
        let hit = Hit { item, stamp: Stamp::new(9).unwrap() };
        RIG.with(|rig| rig.check(&get(&self.key), &hit, &self.read))
    }
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

#[test]
fn values_of_every_number_of_digits_are_answered() {
    let ends = [1, 10, 100, 1000, 10_000, 100_000].into_iter().flat_map(|end| [end - 1, end, end + 1]);
    // A helper takes 64 KiB at once, of a record without its checksum; the longest has to fit into the fuel of one call.
    let chunks = (65_536 - 40..65_536 + 8).chain([131_072 - 31, 196_608, 262_143, 262_144]);
    for len in ends.chain(chunks) {
        let value: Vec<u8> = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
        for key in [&b"k"[..], &[b'k'; 32]] {
            assert_eq!(Case::new(key, &value, 7, None).reply(), Some(bulk(&value)), "{len} bytes");
        }
    }
}

#[test]
fn a_record_that_is_another_one_is_not_answered() {
    let right = Case::new(b"key", b"value", 1 << 32 | 7, Some(EXPIRES));
    assert_eq!(right.reply(), Some(bulk(b"value")));
    let cases = [
        ("another key", right.clone().write(32, b"kez")),
        ("another stamp", right.clone().write(STAMP_AT, &[8])),
        ("another stamp in the item", right.clone().with_item(|item| item.stamp = 8)),
        ("a shorter value in the item", right.clone().with_item(|item| item.value_length = 4)),
        ("a longer value in the item", right.clone().with_item(|item| item.value_length = 6)),
        ("another expiry", right.clone().write(EXPIRES_AT, &[1])),
        ("no expiry", right.clone().write(EXPIRES_AT, &[0; 8])),
        ("no expiry in the item", right.clone().with_item(|item| item.expires = None)),
        ("a stamp beyond all stamps", right.clone().write(STAMP_AT + 7, &[0x80])),
        ("no kind", right.clone().write(KIND_AT, &[0])),
        ("a removed key", right.clone().write(KIND_AT, &[2])),
        ("all keys removed", right.clone().write(KIND_AT, &[3])),
        ("an unknown kind", right.clone().write(KIND_AT, &[4])),
        ("a shorter key", right.clone().write(KEY_LENGTH_AT, &[2])),
        ("no key", right.clone().write(KEY_LENGTH_AT, &[0])),
        ("a key beyond the end", right.clone().write(KEY_LENGTH_AT, &[0xff, 0xff])),
        ("a value beyond the end", right.clone().write(VALUE_LENGTH_AT, &[6])),
        ("a value far beyond the end", right.clone().write(VALUE_LENGTH_AT, &[0xff; 4])),
        (
            "a key that takes from the value",
            right.clone().write(KEY_LENGTH_AT, &[4]).write(VALUE_LENGTH_AT, &[4]),
        ),
    ];
    for (what, case) in cases {
        assert_eq!(case.reply(), None, "{what}");
    }
    let removed = Record { key: b"key", value: None, stamp: 1 << 32 | 7, expires: None };
    let mut case = right.with_item(|item| (item.value_length, item.expires) = (0, None));
    case.read.clear();
    assert!(removed.encode(&mut case.read));
    assert_eq!(case.reply(), None, "a record of the key's removal");
}

#[test]
fn what_does_not_matter_is_not_asked() {
    let right = Case::new(b"key", b"value", 7, None);
    let same = [
        ("the upper half of the stamp", right.clone().write(STAMP_AT + 4, &[1])),
        ("a reserved byte", right.clone().write(KIND_AT + 1, &[1])),
        ("a reserved word", right.clone().write(VALUE_LENGTH_AT + 4, &[1])),
    ];
    for (what, case) in same {
        assert_eq!(case.reply(), Some(bulk(b"value")), "{what}");
    }
    let mut longer = right;
    longer.read.extend_from_slice(b"and more");
    assert_eq!(longer.reply(), Some(bulk(b"value")), "bytes behind the record");
}

#[test]
fn damage_anywhere_and_a_missing_end_are_found() {
    let right = Case::new(b"key", b"value", 7, Some(EXPIRES));
    for at in 0..right.read.len() {
        for bit in 0..8 {
            let mut case = right.clone();
            case.read[at] ^= 1 << bit;
            assert_eq!(case.reply(), None, "bit {bit} of byte {at}");
        }
        let mut case = right.clone();
        case.read.truncate(at);
        assert_eq!(case.reply(), None, "{at} bytes");
    }
}

/// What may have become of a record.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    /// A byte of it is another one, and the checksum fits.
    Sealed(prop::sample::Index, u8),
    Damaged(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Longer(Vec<u8>),
    Item([u8; 4]),
    Anything(Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => Just(Change::Nothing),
        4 => (index(), any::<u8>()).prop_map(|(at, byte)| Change::Sealed(at, byte)),
        1 => (index(), any::<u8>()).prop_map(|(at, byte)| Change::Damaged(at, byte)),
        1 => index().prop_map(Change::Cut),
        1 => vec(any::<u8>(), 1..20).prop_map(Change::Longer),
        1 => any::<[u8; 4]>().prop_map(Change::Item),
        1 => vec(any::<u8>(), 0..100).prop_map(Change::Anything),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let expires = prop_oneof![Just(None), (101..u64::MAX).prop_map(Some)];
    let record = (vec(any::<u8>(), 1..33), vec(any::<u8>(), 0..80), 0..1u64 << 63, expires);
    (record, change()).prop_map(|((key, value, stamp, expires), change)| {
        let mut case = Case::new(&key, &value, stamp, expires);
        match change {
            Change::Nothing => {}
            // Of the header mostly, which has the most to be wrong.
            Change::Sealed(at, byte) => {
                case = case.clone().write(4 + at.index((case.read.len() - 4).min(40)), &[byte]);
            }
            Change::Damaged(at, byte) => {
                let at = at.index(case.read.len());
                case.read[at] = byte;
            }
            Change::Cut(at) => case.read.truncate(at.index(case.read.len())),
            Change::Longer(more) => case.read.extend(more),
            Change::Item([part, value_length, stamp, expires]) => {
                case.item.part = part.into();
                case.item.value_length ^= u32::from(value_length % 3);
                case.item.stamp ^= u32::from(stamp % 2);
                case.item.expires = case.item.expires.filter(|_| expires % 2 == 0);
            }
            Change::Anything(bytes) => case.read = bytes,
        }
        case
    })
}

thread_local! {
    static ANSWERED: Cell<[u32; 2]> = const { Cell::new([0; 2]) };
}

#[test]
fn any_record_is_what_the_store_says() {
    const CASES: u32 = 10_000;
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) };
    proptest!(config, |(case in case())| {
        let [mut answered, mut left] = ANSWERED.get();
        *if case.reply().is_some() { &mut answered } else { &mut left } += 1;
        ANSWERED.set([answered, left]);
    });
    let [answered, left] = ANSWERED.get();
    assert!(answered > CASES / 5 && left > CASES / 5, "{answered} answered, {left} left");
}
