//! Which messages are GETs, and what these are to read.

use ob_format::kv::Item;
use ob_kv::EXPIRY_MARGIN_MS as MARGIN;
use ob_offload::{Hit, Standing};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{RIG, array, get};

const ADMITTED: Standing = Standing(2);
/// The longest value that the programs check.
const VALUE_LEN_MAX: u32 = 256 << 10;
const ITEM: Item = Item { part: 3, offset: 4096 + 64, value_length: 100, stamp: 9, expires: None };

fn hit(item: &Item) -> Hit {
    let item = ob_offload::Item::new(&item.encode()).unwrap();
    Hit { item, stamp: ob_offload::Stamp::new(9).unwrap() }
}

/// What both hooks that look at a request make of it. They understand the same.
fn is_understood(message: &[u8]) -> bool {
    RIG.with(|rig| {
        let is_understood = rig.predicate(message, ADMITTED);
        assert!(!rig.predicate(message, Standing::NONE), "nobody has admitted the client");
        assert_eq!(rig.function(message, &[hit(&ITEM)], 0), is_understood, "{}", message.escape_ascii());
        is_understood
    })
}

#[test]
fn every_plain_get_is_understood() {
    for len in 1..=32 {
        let keys = [vec![b'k'; len], b"\r\n$1".iter().copied().cycle().take(len).collect(), vec![0xff; len]];
        for (key, command) in
            keys.iter().flat_map(|key| [b"GET", b"get", b"gEt", b"GeT"].map(|get| (key, get)))
        {
            assert!(is_understood(&array(&[command, key])), "{}", key.escape_ascii());
        }
    }
}

#[test]
fn what_is_no_plain_get_is_left() {
    let (empty, long): (&[u8], &[u8]) = (&[], &[b'k'; 33]);
    let near: [&[u8]; 20] = [
        b"",
        b"*",
        b"GET k\r\n",
        b"get \"a key\"\r\n",
        b"*2\r\n",
        b"*02\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*+2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*-2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*3\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*1\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*2\r\n$4\r\nGET\r\n$1\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$01\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$+1\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$-1\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$001\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\nkk\r\n",
        b"*2\r\n$3\r\nGET\r\n$2\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$1k\r\n",
        b"*2\n$3\nGET\n$1\nk\n",
    ];
    let others = [
        array(&[b"GET"]),
        array(&[b"GET", b"a", b"b"]),
        array(&[b"GET", empty]),
        array(&[b"GET", long]),
        array(&[b"SET", b"k"]),
        array(&[b"SET", b"k", b"v"]),
        array(&[b"DEL", b"k"]),
        array(&[b"MGET", b"k"]),
        array(&[b"STRLEN", b"k"]),
        array(&[b"EXISTS", b"k"]),
        array(&[b"GETDEL", b"k"]),
        array(&[b"PING"]),
        array(&[b"FLUSHALL"]),
    ];
    for message in near.iter().copied().chain(others.iter().map(Vec::as_slice)) {
        assert!(!is_understood(message), "{}", message.escape_ascii());
    }
}

#[test]
fn a_get_with_one_byte_another_one_is_what_the_store_says() {
    let (mut understood, mut left, mut expected) = (0, 0, 0);
    for len in [1, 9, 10, 32] {
        let whole = get(&vec![b'k'; len]);
        for cut in 0..whole.len() {
            assert!(!is_understood(&whole[..cut]));
        }
        for (at, byte) in (0..whole.len()).flat_map(|at| (0..=0xff).map(move |byte| (at, byte))) {
            let mut message = whole.clone();
            message[at] = byte;
            *if is_understood(&message) { &mut understood } else { &mut left } += 1;
        }
        // Every byte in the key; what is there anyway elsewhere; and each letter of the command in the other case.
        expected += 256 * len + (whole.len() - len) + 3;
    }
    assert_eq!(understood, expected);
    assert!(left > expected);
}

#[test]
fn items_are_read_where_they_lie_unless_they_expire_soon_or_are_long() {
    let now = 1_000_000;
    let plans = |item: Item, now: u64| RIG.with(|rig| rig.function(&get(b"key"), &[hit(&item)], now));
    assert!(plans(ITEM, now));
    assert!(plans(Item { part: u32::MAX, offset: u64::from(u32::MAX) * 8, ..ITEM }, now));
    for value_length in [0, 1, VALUE_LEN_MAX] {
        assert!(plans(Item { value_length, ..ITEM }, now));
    }
    for value_length in [VALUE_LEN_MAX + 1, u32::MAX - 34, u32::MAX] {
        assert!(!plans(Item { value_length, ..ITEM }, now));
    }
    let expires = |expires, now| plans(Item { expires: Some(expires), ..ITEM }, now);
    for at in [1, MARGIN - 1, MARGIN, MARGIN + 1, now, now + MARGIN - 1, now + MARGIN] {
        assert!(!expires(at, now), "{at}");
    }
    assert!(expires(now + MARGIN + 1, now) && expires(u64::MAX, now) && expires(MARGIN + 1, 0));
    for at in [1, MARGIN, u64::MAX - 1, u64::MAX] {
        assert!(!expires(at, u64::MAX) && !expires(at, u64::MAX - (MARGIN - 1)), "{at}");
    }
    let last = u64::MAX - MARGIN;
    assert!(!expires(MARGIN, 0) && expires(u64::MAX, last - 1) && !expires(u64::MAX, last));
}

#[test]
fn the_source_has_the_margin_of_the_store() {
    let source = include_str!("../../../../examples/programs/kv_get.c");
    let margin = source.lines().find_map(|line| line.strip_prefix("#define EXPIRY_MARGIN "));
    assert_eq!(margin.and_then(|margin| margin.parse().ok()), Some(MARGIN));
}

#[test]
fn what_the_table_has_for_others_is_left() {
    RIG.with(|rig| {
        let item = |bytes: &[u8]| {
            let item = ob_offload::Item::new(bytes).unwrap();
            Hit { item, stamp: ob_offload::Stamp::new(9).unwrap() }
        };
        assert!(!rig.function(&get(b"key"), &[item(b"")], 0));
        assert!(!rig.function(&get(b"key"), &[item(&[1; 23])], 0));
        assert!(!rig.function(&get(b"key"), &[], 0));
        assert!(!rig.function(&get(b"key"), &[hit(&ITEM); 2], 0));
        assert!(!rig.function(&array(&[b"MGET", b"a", b"b"]), &[hit(&ITEM); 2], 0));
    });
}

/// A number as somebody might write it.
fn number(number: usize) -> impl Strategy<Value = String> {
    prop_oneof![
        8 => Just(number.to_string()),
        1 => Just(format!("+{number}")),
        1 => Just(format!("-{number}")),
        1 => Just(format!("0{number}")),
        1 => Just(format!(" {number}")),
        1 => Just(String::new()),
        1 => any::<usize>().prop_map(|number| number.to_string()),
        1 => Just((number + 1).to_string()),
    ]
}

fn string() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: &[&str] =
        &["get", "GET", "gEt", "mget", "set", "del", "strlen", "exists", "getx", "ge", "flushall", "hello"];
    prop_oneof![
        3 => prop::sample::select(WORDS).prop_map(|word| word.as_bytes().to_vec()),
        2 => vec(any::<u8>(), 0..40),
    ]
}

/// An array that may be one, or nearly.
fn near_array() -> impl Strategy<Value = Vec<u8>> {
    let ends =
        prop_oneof![12 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("\r\r"), 1 => Just("")];
    let strings = vec((string(), ends), 0..4);
    strings
        .prop_flat_map(|strings| {
            let counts: Vec<_> = strings.iter().map(|(string, _)| number(string.len())).collect();
            (number(strings.len()), counts, Just(strings))
        })
        .prop_map(|(count, lengths, strings)| {
            let mut bytes = format!("*{count}\r\n").into_bytes();
            for (length, (string, end)) in lengths.iter().zip(strings) {
                bytes.extend(format!("${length}\r\n").into_bytes());
                bytes.extend(string);
                bytes.extend_from_slice(end.as_bytes());
            }
            bytes
        })
}

/// A GET in which some bytes were lost, added or changed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), 0..3u8, any::<u8>());
    (vec(any::<u8>(), 1..34), vec(change, 1..4)).prop_map(|(key, changes)| {
        let mut message = get(&key);
        for (at, what, byte) in changes {
            let at = at.index(message.len());
            match what {
                0 => message[at] = byte,
                1 => message.insert(at, byte),
                _ => _ = message.remove(at),
            }
        }
        message
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn gets_of_any_key_are_understood(key in vec(any::<u8>(), 1..33)) {
        prop_assert!(is_understood(&get(&key)));
    }

    #[test]
    fn arrays_are_what_the_store_says(message in near_array()) {
        is_understood(&message);
    }

    #[test]
    fn mutated_gets_are_what_the_store_says(message in mutated()) {
        is_understood(&message);
    }

    #[test]
    fn any_bytes_are_what_the_store_says(message in vec(any::<u8>(), 0..64)) {
        prop_assert!(!is_understood(&message));
    }

    #[test]
    fn any_item_is_planned_as_the_store_plans_it(item in any::<[u8; 24]>(), now: u64, len in 0..25usize) {
        let item = ob_offload::Item::new(&item[..len]).unwrap();
        let hit = Hit { item, stamp: ob_offload::Stamp::new(9).unwrap() };
        RIG.with(|rig| rig.function(&get(b"key"), &[hit], now));
    }
}
