//! Blocks of RocksDB: made here, read by the program, and read by the same steps in Rust.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::rig::{Executed, Request, Rig, Said};

pub(crate) const INDEX: u32 = 0;
pub(crate) const DATA: u32 = 1;
const OF_USER_KEYS: u32 = 1;
const OF_DELTAS: u32 = 2;
const CORRUPT: u64 = 1;
const UNSUPPORTED: u64 = 2;
const VALUE_MAX: usize = 2048;
const DATA_LEN_MAX: u64 = 128 << 10;

/// What is asked, as the scratch has it.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) stage: u32,
    pub(crate) index_format: u32,
    pub(crate) sequence: u64,
    pub(crate) key: Vec<u8>,
}

impl Query {
    pub(crate) fn request(&self) -> Request {
        let stage = u64::from(self.stage) | u64::from(self.index_format) << 32;
        let mut request = Request::of(&[stage, self.sequence, self.key.len() as u64]);
        request.scratch[24..24 + self.key.len()].copy_from_slice(&self.key);
        request
    }

    fn trailer_len(&self) -> usize {
        if self.stage == INDEX && self.index_format & OF_USER_KEYS != 0 { 0 } else { 8 }
    }

    fn has_deltas(&self) -> bool {
        self.stage == INDEX && self.index_format & OF_DELTAS != 0
    }

    fn is_before(&self, key: &[u8]) -> bool {
        let (user_key, trailer) = key.split_at(key.len() - self.trailer_len());
        let sequence = trailer.try_into().map_or(0, |trailer| u64::from_le_bytes(trailer) >> 8);
        user_key < &*self.key || (user_key == self.key && !trailer.is_empty() && sequence > self.sequence)
    }
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Absent,
    Entry { kind: u8, value: Vec<u8> },
    Block { offset: u64, size: u64 },
    Failed(u64),
}

fn put_varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 128 {
        into.push(number as u8 | 128);
        number >>= 7;
    }
    into.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if shift == 63 && *byte > 1 {
            return None;
        }
        number |= u64::from(byte & 127) << shift;
        if *byte < 128 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    *bytes = rest;
    Some(taken)
}

pub(crate) fn internal_key(user_key: &[u8], sequence: u64, kind: u8) -> Vec<u8> {
    [user_key, &(sequence << 8 | u64::from(kind)).to_le_bytes()].concat()
}

/// A block of entries that are in order, with what is behind it.
pub(crate) fn block(entries: &[(Vec<u8>, Vec<u8>)], interval: usize) -> Vec<u8> {
    build(entries, interval, |shared, rest, value| {
        let mut header = Vec::new();
        [shared, rest, value.len()].iter().for_each(|number| put_varint(&mut header, *number as u64));
        (header, value.to_vec())
    })
}

/// An index block that says of all but restarts only how the size differs from that of the block before. Blocks lie one behind the other.
fn delta_index(keys: &[Vec<u8>], handles: &[(u64, u64)], interval: usize) -> Vec<u8> {
    let mut handles = handles.iter();
    let mut before = 0;
    let entries: Vec<_> = keys.iter().map(|key| (key.clone(), Vec::new())).collect();
    build(&entries, interval, |shared, rest, _| {
        let (offset, size) = handles.next().unwrap();
        let (mut header, mut value) = (Vec::new(), Vec::new());
        [shared, rest].iter().for_each(|number| put_varint(&mut header, *number as u64));
        if shared == 0 {
            put_varint(&mut value, *offset);
            put_varint(&mut value, *size);
        } else {
            let delta = size.wrapping_sub(before) as i64;
            put_varint(&mut value, (delta << 1 ^ delta >> 63) as u64);
        }
        before = *size;
        (header, value)
    })
}

fn build(
    entries: &[(Vec<u8>, Vec<u8>)],
    interval: usize,
    mut write: impl FnMut(usize, usize, &[u8]) -> (Vec<u8>, Vec<u8>),
) -> Vec<u8> {
    let (mut block, mut restarts, mut before) = (Vec::new(), Vec::new(), &[][..]);
    for (at, (key, value)) in entries.iter().enumerate() {
        let mut shared = key.iter().zip(before).take_while(|(own, before)| own == before).count();
        if at % interval == 0 {
            restarts.push(block.len() as u32);
            shared = 0;
        }
        let (header, value) = write(shared, key.len() - shared, value);
        block.extend([&header, &key[shared..], &value].concat());
        before = key;
    }
    restarts.resize(restarts.len().max(1), 0);
    restarts.iter().for_each(|restart| block.extend(restart.to_le_bytes()));
    block.extend((restarts.len() as u32).to_le_bytes());
    block.extend([0, 0xc, 0xc, 0xc, 0xc]);
    block
}

/// The program's steps in Rust.
fn search(read: &[u8], query: &Query) -> Result<Answer, u64> {
    let content = &read[..read.len() - 5];
    let word = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap());
    let count = word(content.len() - 4) as usize;
    if read[content.len()] != 0 || count >> 31 != 0 {
        return Err(UNSUPPORTED);
    }
    if count == 0 || count > (content.len() - 4) / 4 {
        return Err(CORRUPT);
    }
    let limit = content.len() - 4 - 4 * count;
    let (mut left, mut right) = (0, count - 1);
    loop {
        let middle = (left + right).div_ceil(2);
        let mut rest = content[..limit].get(word(limit + 4 * middle) as usize..).ok_or(CORRUPT)?;
        if left >= right {
            return scan(rest, query);
        }
        let (shared, unshared, _) = header(&mut rest, query.has_deltas()).ok_or(CORRUPT)?;
        if shared != 0 || unshared < query.trailer_len() as u64 {
            return Err(CORRUPT);
        }
        if unshared > 72 {
            return Err(UNSUPPORTED);
        }
        let key = take(&mut rest, unshared).ok_or(CORRUPT)?;
        if query.is_before(key) { left = middle } else { right = middle - 1 }
    }
}

fn header(rest: &mut &[u8], has_deltas: bool) -> Option<(u64, u64, u64)> {
    let (shared, unshared) = (take_varint(rest)?, take_varint(rest)?);
    let value_len = if has_deltas { 0 } else { take_varint(rest)? };
    // No block is so long, whatever else is wrong with the entry.
    (value_len <= DATA_LEN_MAX).then_some((shared, unshared, value_len))
}

fn scan(mut rest: &[u8], query: &Query) -> Result<Answer, u64> {
    let (mut key, mut handle) = (Vec::new(), (0u64, 0u64));
    while !rest.is_empty() {
        let (shared, unshared, value_len) = header(&mut rest, query.has_deltas()).ok_or(CORRUPT)?;
        if shared > key.len() as u64 {
            return Err(CORRUPT);
        }
        if unshared > 72 - shared {
            return Err(UNSUPPORTED);
        }
        if shared + unshared < query.trailer_len() as u64 {
            return Err(CORRUPT);
        }
        key.truncate(shared as usize);
        key.extend(take(&mut rest, unshared).ok_or(CORRUPT)?);
        let mut value = if query.has_deltas() { rest } else { take(&mut rest, value_len).ok_or(CORRUPT)? };
        if query.stage == INDEX {
            handle = next_handle(&mut value, handle, query.has_deltas() && shared != 0).ok_or(CORRUPT)?;
        }
        if query.has_deltas() {
            rest = value;
        }
        if query.is_before(&key) {
            continue;
        }
        if query.stage == INDEX {
            let (offset, size) = handle;
            let is_readable = size <= DATA_LEN_MAX - 5;
            return if is_readable { Ok(Answer::Block { offset, size }) } else { Err(UNSUPPORTED) };
        }
        let (user_key, trailer) = key.split_at(key.len() - 8);
        if user_key != query.key {
            let kinds = [0, 1, 2, 7, 0x0f, 0x11, 0x14, 0x16, 0x18];
            return if kinds.contains(&trailer[0]) { Ok(Answer::Absent) } else { Err(UNSUPPORTED) };
        }
        let value = value.to_vec();
        return if value.len() > VALUE_MAX {
            Err(UNSUPPORTED)
        } else {
            Ok(Answer::Entry { kind: trailer[0], value })
        };
    }
    Ok(Answer::Absent)
}

fn next_handle(value: &mut &[u8], before: (u64, u64), is_delta: bool) -> Option<(u64, u64)> {
    if !is_delta {
        return Some((take_varint(value)?, take_varint(value)?));
    }
    let delta = take_varint(value)?;
    let delta = (delta >> 1) as i64 ^ -((delta & 1) as i64);
    let offset = before.0.wrapping_add(before.1).wrapping_add(5);
    Some((offset, before.1.wrapping_add(delta as u64)))
}

fn ask(rig: &Rig, read: &[u8], query: &Query) -> Answer {
    let mut request = query.request();
    match rig.ask(&mut request, read) {
        Said::Failed(failed) => Answer::Failed(failed),
        Said::Next { offset, len, .. } => {
            assert_eq!((request.word(14), request.word(15)), (offset, len - 5));
            assert_eq!(request.scratch[0], DATA as u8);
            Answer::Block { offset, size: len - 5 }
        }
        Said::Done if request.word(11) == 0 => Answer::Absent,
        Said::Done => {
            let kind = request.word(12) as u8;
            assert_eq!(
                request.word(11),
                match kind {
                    1 => 1,
                    0 => 2,
                    _ => 3,
                }
            );
            let value = request.scratch[128..128 + request.word(13) as usize].to_vec();
            Answer::Entry { kind, value }
        }
    }
}

fn user_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(prop_oneof![Just(b'a'), Just(b'b')], 0..8),
        (0u32..400).prop_map(|number| format!("user{number:08}").into_bytes()),
        vec(any::<u8>(), 0..=64),
    ]
}

type Versions = BTreeMap<(Vec<u8>, std::cmp::Reverse<u64>), (u8, Vec<u8>)>;

/// Entries in the order of keys, and of one key the newest first.
fn versions() -> impl Strategy<Value = Versions> {
    let version = (user_key(), prop_oneof![0u64..6, 0u64..1 << 56]);
    let value = (
        prop_oneof![Just(1u8), Just(0), Just(2)],
        prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..300)],
    );
    let version = version.prop_map(|(key, sequence)| (key, std::cmp::Reverse(sequence)));
    btree_map(version, value, 0..60)
}

fn entries(versions: &Versions) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries = versions.iter();
    entries
        .map(|((key, sequence), (kind, value))| (internal_key(key, sequence.0, *kind), value.clone()))
        .collect()
}

thread_local! {
    static RIG: Rig = Rig::new("rocksdb_block");
}

proptest! {
    #[test]
    fn a_data_block_is_searched_as_a_map(
        versions in versions(),
        interval in 1usize..20,
        others in vec(user_key(), 5),
        sequence in prop_oneof![0u64..8, Just(u64::MAX), any::<u64>()],
    ) {
        let read = block(&entries(&versions), interval);
        let keys = versions.keys().map(|(key, _)| key.clone()).chain(others);
        for key in keys {
            let query = Query { stage: DATA, index_format: 0, sequence, key: key.clone() };
            let mut newest = versions.range((key.clone(), std::cmp::Reverse(sequence))..);
            let found = newest.next().filter(|((found, _), _)| *found == key);
            let expected = found.map_or(Answer::Absent, |(_, (kind, value))| {
                Answer::Entry { kind: *kind, value: value.clone() }
            });
            prop_assert_eq!(RIG.with(|rig| ask(rig, &read, &query)), expected.clone());
            prop_assert_eq!(search(&read, &query), Ok(expected));
        }
    }

    #[test]
    fn an_index_block_leads_to_the_first_block_that_may_have_the_key(
        keys in btree_map(user_key(), 1u64..100_000, 1..60),
        others in vec(user_key(), 5),
        interval in 1usize..20,
        (begin, format) in (0u64..1 << 63, 0u32..4),
    ) {
        let mut offset = begin;
        let handles: Vec<_> = keys.values().map(|size| {
            let handle = (offset, *size);
            offset += size + 5;
            handle
        }).collect();
        let with_trailer = |key: &Vec<u8>| match format & OF_USER_KEYS {
            0 => internal_key(key, 0, 1),
            _ => key.clone(),
        };
        let separators: Vec<_> = keys.keys().map(with_trailer).collect();
        let read = if format & OF_DELTAS != 0 {
            delta_index(&separators, &handles, interval)
        } else {
            let values = handles.iter().map(|(offset, size)| {
                let mut value = Vec::new();
                put_varint(&mut value, *offset);
                put_varint(&mut value, *size);
                value
            });
            block(&separators.into_iter().zip(values).collect::<Vec<_>>(), interval)
        };
        for key in keys.keys().cloned().chain(others) {
            let at = keys.range(..key.clone()).count();
            let expected = handles.get(at).map_or(Answer::Absent, |(offset, size)| {
                Answer::Block { offset: *offset, size: *size }
            });
            let query = Query { stage: INDEX, index_format: format, sequence: 9, key };
            prop_assert_eq!(RIG.with(|rig| ask(rig, &read, &query)), expected.clone());
            prop_assert_eq!(search(&read, &query), Ok(expected));
        }
    }

    #[test]
    fn broken_blocks_give_the_same_as_in_rust(
        versions in versions(),
        interval in 1usize..20,
        damage in vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), 0u8..4, Just(255)]), 0..8),
        cut in prop_oneof![Just(0usize), 0usize..40],
        (key, sequence) in (user_key(), any::<u64>()),
        (stage, index_format) in (0u32..2, 0u32..4),
    ) {
        let mut read = block(&entries(&versions), interval);
        for (at, byte) in damage {
            let at = at.index(read.len());
            read[at] = byte;
        }
        read.truncate((read.len() - cut.min(read.len())).max(13));
        let mut keys: Vec<_> = versions.keys().map(|(key, _)| key.clone()).take(3).collect();
        keys.push(key);
        for key in keys {
            let query = Query { stage, index_format, sequence, key };
            let expected = search(&read, &query).unwrap_or_else(Answer::Failed);
            prop_assert_eq!(RIG.with(|rig| ask(rig, &read, &query)), expected);
        }
    }

    #[test]
    fn any_bytes_give_the_same_as_in_rust(
        mut read in vec(prop_oneof![0u8..20, any::<u8>()], 13..200),
        count in 0u8..6,
        key in user_key(),
        (stage, index_format) in (0u32..2, 0u32..4),
    ) {
        let behind = read.len() - 9;
        read[behind..].copy_from_slice(&[count, 0, 0, 0, 0, 0, 0, 0, 0]);
        let query = Query { stage, index_format, sequence: u64::MAX, key };
        let expected = search(&read, &query).unwrap_or_else(Answer::Failed);
        prop_assert_eq!(RIG.with(|rig| ask(rig, &read, &query)), expected);
    }
}

/// Of two reasons to refuse an entry, a value longer than any block comes before a key that is only too long for the program.
#[test]
fn a_value_longer_than_any_block_is_broken_whatever_its_key() {
    let mut read = Vec::new();
    [0, 128, DATA_LEN_MAX + 1].iter().for_each(|number| put_varint(&mut read, *number));
    read.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let query = Query { stage: DATA, index_format: 0, sequence: 0, key: Vec::new() };
    assert_eq!(search(&read, &query), Err(CORRUPT));
    assert_eq!(RIG.with(|rig| ask(rig, &read, &query)), Answer::Failed(CORRUPT));
}

/// A block of 4 KiB as RocksDB makes them: keys of 12 bytes and eight more, values of 100, a restart every 16 entries.
pub(crate) fn usual_block() -> Vec<u8> {
    let entry =
        |number: u32| (internal_key(format!("user{number:08}").as_bytes(), 7, 1), vec![number as u8; 100]);
    block(&(0..36).map(entry).collect::<Vec<_>>(), 16)
}

#[test]
fn few_checks_are_executed() {
    let rig = Rig::new("rocksdb_block");
    let read = usual_block();
    let mut all = Executed::default();
    for number in 0..36 {
        let key = format!("user{number:08}").into_bytes();
        let query = Query { stage: DATA, index_format: 0, sequence: 8, key };
        let (outcome, executed) = rig.call(&mut query.request(), &read);
        assert_eq!(outcome, Ok(0));
        all.accesses += executed.accesses;
        all.checks += executed.checks;
    }
    println!("{} of {} instructions with accesses were checked", all.checks, all.accesses);
    assert!(all.checks * 100 <= all.accesses * 30, "{all:?}");
}
