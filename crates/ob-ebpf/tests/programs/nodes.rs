//! Trees of nodes with numbers, and lines.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use crate::rig::{Request, Rig, Said};

const MARK: u64 = 1 << 63;

/// The same program from two compilers.
const BTREE_SEARCHES: [&str; 2] = ["btree_search", "btree_search_rust"];

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap())
}

pub(crate) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The value of a key in the files that are made here.
fn value_of(key: u64) -> [u8; 64] {
    std::array::from_fn(|at| (key >> (at % 8 * 8)) as u8 ^ at as u8)
}

/// A file of BPF-KV with these keys, in order.
pub(crate) fn bpfkv_file(keys: &[u64]) -> Vec<u8> {
    // From the leaves up: the first keys of each level's nodes.
    let mut levels = vec![keys.to_vec()];
    while levels.last().is_some_and(|level| level.len() > 31) {
        let firsts = levels[levels.len() - 1].chunks(31).map(|node| node[0]).collect();
        levels.push(firsts);
    }
    levels.reverse();
    let counts: Vec<u64> = levels.iter().map(|level| level.len().div_ceil(31).max(1) as u64).collect();
    let nodes: u64 = counts.iter().sum();
    let mut file = Vec::new();
    let mut level_begin = 0;
    for (depth, level) in levels.iter().enumerate() {
        let children = level_begin + counts[depth];
        for node in 0..counts[depth] as usize {
            let is_leaf = depth + 1 == levels.len();
            let is_last = node as u64 + 1 == counts[depth];
            let next = if is_last { 0 } else { (level_begin + node as u64 + 1) * 512 };
            let mut words = [0; 64];
            (words[0], words[1]) = (next, u64::from(is_leaf));
            for (at, key) in level.iter().enumerate().skip(node * 31).take(31) {
                let child = if is_leaf { nodes * 512 + at as u64 * 64 } else { (children + at as u64) * 512 };
                (words[2 + at % 31], words[33 + at % 31]) = (*key, child | MARK);
            }
            file.extend(bytes_of(&words));
        }
        level_begin = children;
    }
    file.extend(keys.iter().flat_map(|key| value_of(*key)));
    file.resize(file.len().next_multiple_of(512), 0);
    file
}

/// What `bpfkv_get` makes of a node at the file's begin, whatever is in it: nothing, if there is no such key; else the next read and
/// where the value is.
fn bpfkv_step(node: &[u8], key: u64) -> Result<Option<(u64, u64)>, u64> {
    let keys: Vec<u64> = (2..33).map(|at| word(node, at)).collect();
    let kind = word(node, 1);
    if kind > 1 {
        return Err(1);
    }
    if key < keys[0] {
        return Ok(None);
    }
    let behind = (1..31).find(|at| keys[*at] > key || keys[*at] <= keys[at - 1]).unwrap_or(31);
    if behind < 31 && keys[behind] <= key && keys[behind] != 0 {
        return Err(1);
    }
    let at = behind - 1;
    let pointer = word(node, 33 + at);
    let whole = if kind == 1 { 64 } else { 512 };
    if pointer <= MARK || !pointer.is_multiple_of(whole) {
        return Err(1);
    }
    let pointer = pointer & !MARK;
    match (kind, keys[at] == key) {
        (1, false) => Ok(None),
        (1, true) => Ok(Some((pointer / 512 * 512, pointer))),
        _ => Ok(Some((pointer, 0))),
    }
}

#[test]
fn bpfkv_finds_every_key_and_no_other() {
    let rig = Rig::new("bpfkv_get");
    for count in [1, 2, 31, 32, 961, 2000] {
        let keys: Vec<u64> = (0..count).map(|at| at * 7 + 3).collect();
        let file = bpfkv_file(&keys);
        let depth = if count <= 31 {
            1
        } else if count <= 961 {
            2
        } else {
            3
        };
        for key in (0..count * 7 + 10).step_by(if count > 100 { 13 } else { 1 }).chain([u64::MAX]) {
            let mut request = Request::of(&[key]);
            let (reads, said) = rig.request(&mut request, &file, (0, 512));
            let is_there = keys.binary_search(&key).is_ok();
            assert_eq!((said, request.word(1)), (Said::Done, u64::from(is_there)), "{key} of {count}");
            if is_there {
                assert_eq!(request.scratch[24..88], value_of(key));
                assert_eq!(reads, depth + 1);
            }
        }
    }
}

fn small_or_any() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..40, any::<u64>()]
}

proptest! {
    #[test]
    fn bpfkv_makes_the_same_of_any_node(
        mut words in vec(small_or_any(), 64),
        is_sorted in any::<bool>(),
        is_marked in any::<bool>(),
        len in 1usize..40,
        whole in prop_oneof![Just(1u64), Just(64), Just(512)],
        key in small_or_any(),
    ) {
        if is_sorted {
            words[2..33].sort_unstable();
            words[2..33].iter_mut().skip(len).for_each(|word| *word = 0);
        }
        if is_marked {
            words[33..].iter_mut().for_each(|word| *word = (*word).wrapping_mul(whole) | MARK);
            words[1] &= 1;
        }
        let node = bytes_of(&words);
        let mut request = Request::of(&[key]);
        let said = Rig::new("bpfkv_get").ask(&mut request, &node);
        match bpfkv_step(&node, key) {
            Err(failed) => prop_assert_eq!(said, Said::Failed(failed)),
            Ok(None) => prop_assert_eq!((said, request.word(1)), (Said::Done, 0)),
            Ok(Some((offset, value_at))) => {
                prop_assert_eq!(said, Said::Next { file: 0, offset, len: 512 });
                prop_assert_eq!(request.word(2), value_at);
            }
        }
    }

    #[test]
    fn the_btree_is_searched_as_a_map(
        entries in btree_map(0u64..2000, any::<u64>(), 0..255),
        keys in vec(0u64..2100, 1..20),
        is_leaf in any::<bool>(),
    ) {
        let mut words = vec![u64::from(is_leaf), entries.len() as u64];
        let padded = |mut words: Vec<u64>| { words.resize(255, 0); words };
        words.extend(padded(entries.keys().copied().collect()));
        words.extend(padded(entries.values().copied().collect()));
        let node = bytes_of(&words);
        let rigs = BTREE_SEARCHES.map(Rig::new);
        for (rig, key) in rigs.iter().flat_map(|rig| keys.iter().map(move |key| (rig, *key))) {
            let mut request = Request::of(&[key]);
            let said = rig.ask(&mut request, &node);
            let found = entries.range(..=key).next_back();
            match (found, is_leaf) {
                (Some((_, offset)), false) => {
                    prop_assert_eq!(said, Said::Next { file: 0, offset: *offset, len: 4096 });
                }
                (found, _) => {
                    let value = found.filter(|(found, _)| **found == key).map(|(_, value)| *value);
                    prop_assert_eq!(said, Said::Done);
                    let expected = (u64::from(value.is_some()), value.unwrap_or(0));
                    prop_assert_eq!((request.word(1), request.word(2)), expected);
                }
            }
        }
    }

    #[test]
    fn a_btree_node_of_anything_is_searched_in_bounds(
        mut words in vec(small_or_any(), 512),
        count in prop_oneof![0u64..600, any::<u64>()],
        key in small_or_any(),
    ) {
        words[1] = count;
        for name in BTREE_SEARCHES {
            let mut request = Request::of(&[key]);
            let said = Rig::new(name).ask(&mut request, &bytes_of(&words));
            prop_assert_eq!(said == Said::Failed(1), count > 255);
        }
    }

    #[test]
    fn what_was_read_is_brought(file in vec(any::<u8>(), 0..9000), offset in 0u64..9500, len in 1u64..6000) {
        let mut request = Request::of(&[]);
        let (reads, said) = Rig::new("fetch").request(&mut request, &file, (offset, len));
        prop_assert_eq!((reads, said), (1, Said::Done));
        let begin = (offset as usize).min(file.len());
        let expected = &file[begin..(begin + len.min(4088) as usize).min(file.len())];
        prop_assert_eq!(request.word(0), expected.len() as u64);
        let (found, rest) = request.scratch[8..].split_at(expected.len());
        prop_assert_eq!(found, expected);
        prop_assert!(rest.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn lines_are_counted_over_reads(
        newlines in btree_set(0usize..20_000, 0..300),
        file_len in 0usize..20_000,
        read_len in 1u64..5000,
        len in 0u64..22_000,
    ) {
        let mut file = vec![b'x'; file_len];
        newlines.iter().filter_map(|at| file.get_mut(*at).map(|byte| *byte = b'\n')).for_each(drop);
        let mut request = Request::of(&[len]);
        let rig = Rig::new("count_lines");
        // The card may read less than it was asked for, and nothing behind the end.
        prop_assume!(len / read_len < 900 && file_len as u64 / read_len < 900);
        let (_, said) = rig.request(&mut request, &file, (0, read_len));
        let seen = &file[..file_len.min(len as usize)];
        let longest = seen.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0);
        let lines = seen.iter().filter(|byte| **byte == b'\n').count();
        prop_assert_eq!(said, Said::Done);
        let found = (request.word(1), request.word(2), request.word(4));
        prop_assert_eq!(found, (lines as u64, longest as u64, seen.len() as u64));
    }
}
