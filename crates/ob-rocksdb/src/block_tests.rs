use proptest::prelude::*;

use super::*;
use crate::bytes::put_varint;
use crate::keys::{Kind, Sequence};

/// A block as RocksDB would write it, with a restart every so many entries.
fn built(entries: &[(Vec<u8>, Vec<u8>)], interval: usize, buckets: Option<u16>) -> Vec<u8> {
    let (mut bytes, mut restarts, mut last): (Vec<u8>, Vec<u32>, &[u8]) = (Vec::new(), Vec::new(), &[]);
    for (index, (key, value)) in entries.iter().enumerate() {
        let mut shared = 0;
        if index % interval == 0 {
            restarts.push(u32::try_from(bytes.len()).unwrap());
        } else {
            shared = key.iter().zip(last).take_while(|(left, right)| left == right).count();
        }
        for number in [shared, key.len() - shared, value.len()] {
            put_varint(&mut bytes, number as u64);
        }
        bytes.extend(&key[shared..]);
        bytes.extend(value);
        last = key;
    }
    if restarts.is_empty() {
        restarts.push(0);
    }
    for restart in &restarts {
        bytes.extend(restart.to_le_bytes());
    }
    let mut footer = u32::try_from(restarts.len()).unwrap();
    if let Some(buckets) = buckets {
        bytes.extend(vec![0xfe; usize::from(buckets)]);
        bytes.extend(buckets.to_le_bytes());
        footer |= HASH_INDEX;
    }
    bytes.extend(footer.to_le_bytes());
    bytes
}

fn cursor(bytes: Vec<u8>) -> Result<BlockCursor, ParseError> {
    Ok(BlockCursor::new(Block::parse(Arc::new(bytes))?, Keys::Internal, Values::Plain))
}

proptest! {
    #[test]
    fn a_cursor_goes_as_over_a_map(
        map in prop::collection::btree_map(prop::collection::vec(0..3_u8, 0..6), any::<Vec<u8>>(), 0..40),
        interval in 1..9_usize,
        buckets in prop::option::of(1..20_u16),
        probes in prop::collection::vec(prop::collection::vec(0..4_u8, 0..6), 1..20),
    ) {
        let internal = |user: &[u8]| keys::encode(user, Sequence(7), Kind::Value);
        let all: Vec<_> = map.iter().map(|(key, value)| (internal(key), value.clone())).collect();
        let mut cursor = cursor(built(&all, interval, buckets)).unwrap();
        let mut forwards = Vec::new();
        let mut is_there = cursor.first().unwrap();
        while is_there {
            forwards.push((cursor.key().to_vec(), cursor.value().to_vec()));
            is_there = cursor.advance().unwrap();
        }
        prop_assert_eq!(&forwards, &all);
        let mut backwards = Vec::new();
        let mut is_there = cursor.last().unwrap();
        while is_there {
            backwards.push((cursor.key().to_vec(), cursor.value().to_vec()));
            is_there = cursor.back().unwrap();
        }
        backwards.reverse();
        prop_assert_eq!(&backwards, &all);
        for probe in probes {
            let found = cursor.seek(&keys::encode_target(&probe, Sequence::MAX)).unwrap();
            let expected = map.range(probe..).next();
            prop_assert_eq!(found.then(|| cursor.value()), expected.map(|(_, value)| &value[..]));
            if found {
                // From the middle, one back and one on.
                let here = cursor.key().to_vec();
                if cursor.back().unwrap() {
                    cursor.advance().unwrap();
                    prop_assert_eq!(cursor.key(), &here[..]);
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_a_block_or_not(mut bytes: Vec<u8>, footer: u32, target: [u8; 12], few: bool) {
        bytes.extend(if few { footer % 4 } else { footer }.to_le_bytes());
        let Ok(block) = Block::parse(Arc::new(bytes)) else { return Ok(()) };
        for values in [Values::Plain, Values::Differences { with_first_key: false }] {
            let mut cursor = BlockCursor::new(block.clone(), Keys::Internal, values);
            let _ = cursor.seek(&target);
            let _ = cursor.last();
            let _ = cursor.back();
            let mut is_there = cursor.first();
            while let Ok(true) = is_there {
                let _ = cursor.handle();
                is_there = cursor.advance();
            }
        }
    }
}

#[test]
fn handles_are_differences_where_keys_share() {
    let mut bytes = Vec::new();
    // "a", with a whole handle.
    bytes.extend([0, 1, b'a', 100, 50]);
    // "ab", shares one byte: 4 bytes shorter, directly behind.
    bytes.extend([1, 1, b'b', 7]);
    // "c", shares nothing: a whole handle.
    bytes.extend([0, 1, b'c', 9, 8]);
    bytes.extend([0, 0, 0, 0, 1, 0, 0, 0]);
    let block = Block::parse(Arc::new(bytes)).unwrap();
    let mut cursor = BlockCursor::new(block, Keys::Bytes, Values::Differences { with_first_key: false });
    let mut seen = Vec::new();
    let mut is_there = cursor.first().unwrap();
    while is_there {
        seen.push((cursor.key().to_vec(), cursor.handle().unwrap()));
        is_there = cursor.advance().unwrap();
    }
    let expected = [("a", 100, 50), ("ab", 155, 46), ("c", 9, 8)];
    let expected = expected.map(|(key, offset, len)| (key.as_bytes().to_vec(), Handle { offset, len }));
    assert_eq!(seen, expected);
}

#[test]
fn later_features_are_named() {
    let footer = 1_u32 << 28 | 1;
    let mut bytes = vec![0; 4];
    bytes.extend(footer.to_le_bytes());
    assert_eq!(Block::parse(Arc::new(bytes)).err(), Some(Unsupported::BlockFeature(footer).into()));
}

#[test]
fn a_small_block_does_not_become_a_large_one() {
    // A key of 64 KiB, and as many that share all of it as come to `len` bytes at least, in five bytes each.
    let of = |len: usize| {
        let key_len = 1 << 16;
        let mut bytes = Vec::new();
        for (shared, rest) in std::iter::once((0, key_len)).chain((0..len / key_len).map(|_| (key_len, 0))) {
            for number in [shared, rest, 0] {
                put_varint(&mut bytes, number as u64);
            }
            bytes.resize(bytes.len() + rest, 7);
        }
        bytes.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        bytes
    };
    assert_eq!(entries(of(4 << 20)).unwrap().len(), 65);
    let bytes = of(BLOCK_LEN_MAX);
    assert!(bytes.len() < 100 << 10, "{} bytes", bytes.len());
    let failed = entries(bytes).unwrap_err();
    assert!(matches!(failed, ParseError::Damaged(Damage::TooLarge { .. })), "{failed}");
    // Entries of nothing take room, too.
    let mut bytes = vec![0; 3 * (BLOCK_LEN_MAX / size_of::<Pair>() + 1)];
    bytes.extend([0, 0, 0, 0, 1, 0, 0, 0]);
    let failed = entries(bytes).unwrap_err();
    assert!(matches!(failed, ParseError::Damaged(Damage::TooLarge { .. })), "{failed}");
}
