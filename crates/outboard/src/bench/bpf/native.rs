//! The same searches in safe Rust, as one would write them where nobody has to hand a program over: what a program could cost if it were
//! part of the card.

use super::contenders::{Context, SCRATCH_LEN};

/// A search: what was read, the scratch, and the context to fill in; 0, or why it failed.
pub(super) type Search = fn(&[u8], &mut [u8; SCRATCH_LEN], &mut Context) -> u64;

const CORRUPT: u64 = 1;
const UNSUPPORTED: u64 = 2;
const BAD_QUERY: u64 = 3;

/// The search that a program does.
pub(super) fn search_of(workload: &str) -> Search {
    match workload {
        "btree" => btree,
        "bpfkv" => bpfkv,
        "rocksdb_block" => rocksdb_block,
        _ => |_, _, _| 0,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn put(scratch: &mut [u8; SCRATCH_LEN], at: usize, word: u64) {
    if let Some(place) = scratch.get_mut(at..at + 8) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

fn btree(data: &[u8], scratch: &mut [u8; SCRATCH_LEN], context: &mut Context) -> u64 {
    try_btree(data, scratch, context).map_or(CORRUPT, |()| 0)
}

fn try_btree(data: &[u8], scratch: &mut [u8; SCRATCH_LEN], context: &mut Context) -> Option<()> {
    const ENTRIES: usize = 255;
    let key = word(scratch, 0)?;
    let (header, rest) = data.split_at_checked(16)?;
    let (keys, values) = rest.get(..2 * ENTRIES * 8)?.split_at(ENTRIES * 8);
    let count = usize::try_from(word(header, 8)?).ok()?;
    let (keys, _) = keys.get(..count.checked_mul(8)?)?.as_chunks::<8>();
    let behind = keys.partition_point(|found| u64::from_le_bytes(*found) <= key);
    let Some(at) = behind.checked_sub(1) else {
        context.finish();
        return Some(());
    };
    let value = word(values, at * 8)?;
    if word(header, 0)? == 1 {
        let is_found = keys.get(at).is_some_and(|found| u64::from_le_bytes(*found) == key);
        put(scratch, 8, is_found.into());
        put(scratch, 16, if is_found { value } else { 0 });
        context.finish();
    } else {
        context.read_next(value, 4096);
    }
    Some(())
}

fn bpfkv(data: &[u8], scratch: &mut [u8; SCRATCH_LEN], context: &mut Context) -> u64 {
    try_bpfkv(data, scratch, context).map_or(CORRUPT, |()| 0)
}

fn try_bpfkv(data: &[u8], scratch: &mut [u8; SCRATCH_LEN], context: &mut Context) -> Option<()> {
    const ENTRIES: usize = 31;
    const MARK: u64 = 1 << 63;
    let data: &[u8; 512] = data.first_chunk()?;
    let (key, value_at) = (word(scratch, 0)?, word(scratch, 16)?);
    if value_at != 0 {
        let begin = value_at as usize % 512 / 64 * 64;
        scratch.get_mut(24..88)?.copy_from_slice(data.get(begin..begin + 64)?);
        put(scratch, 8, 1);
        context.finish();
        return Some(());
    }
    let (words, _) = data.as_chunks::<8>();
    let (keys, pointers) = words.get(2..)?.split_at_checked(ENTRIES)?;
    let key_of = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    if key < key_of(keys.first()?) {
        context.finish();
        return Some(());
    }
    let ends = |pair: &[[u8; 8]; 2]| key_of(&pair[1]) > key || key_of(&pair[1]) <= key_of(&pair[0]);
    let at = keys.array_windows().position(ends).unwrap_or(ENTRIES - 1);
    let pointer = key_of(pointers.get(at)?);
    if pointer <= MARK {
        return None;
    }
    let pointer = pointer & !MARK;
    if word(data, 8)? != 1 {
        context.read_next(pointer, 512);
    } else if key_of(keys.get(at)?) == key {
        put(scratch, 16, pointer);
        context.read_next(pointer / 512 * 512, 512);
    } else {
        context.finish();
    }
    Some(())
}

const KEY_MAX: usize = 64;
const TRAILER_LEN: usize = 8;
const VALUE_MAX: usize = 2048;
const VALUE_AT: usize = 24 + KEY_MAX + 5 * 8;

/// A data block; what the program makes of an index block is measured nowhere, and not written again here.
fn rocksdb_block(data: &[u8], scratch: &mut [u8; SCRATCH_LEN], context: &mut Context) -> u64 {
    let query = scratch.first_chunk::<{ 24 + KEY_MAX }>().copied().unwrap_or([0; 24 + KEY_MAX]);
    match find(data, &query) {
        Err(failed) => failed,
        Ok(found) => {
            if let Some((kind, value)) = found {
                let status = [2, 1].get(usize::from(kind)).copied().unwrap_or(3);
                put(scratch, 88, status);
                put(scratch, 96, kind.into());
                put(scratch, 104, value.len() as u64);
                let Some(place) = scratch.get_mut(VALUE_AT..VALUE_AT + value.len()) else {
                    return UNSUPPORTED;
                };
                place.copy_from_slice(value);
            }
            context.finish();
            0
        }
    }
}

struct Wanted<'a> {
    key: &'a [u8],
    sequence: u64,
}

impl Wanted<'_> {
    /// Whether an entry comes before the one that is looked for.
    fn is_behind(&self, key: &[u8]) -> Result<bool, u64> {
        let (user_key, trailer) = key.split_last_chunk::<TRAILER_LEN>().ok_or(CORRUPT)?;
        Ok(match user_key.cmp(self.key) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal => u64::from_le_bytes(*trailer) >> 8 > self.sequence,
        })
    }
}

/// The kind of the entry that was looked for, and its value.
fn find<'a>(data: &'a [u8], query: &[u8; 24 + KEY_MAX]) -> Result<Option<(u8, &'a [u8])>, u64> {
    let key_len = word(query, 16).filter(|len| *len <= KEY_MAX as u64).ok_or(BAD_QUERY)? as usize;
    let key = query.get(24..24 + key_len).ok_or(BAD_QUERY)?;
    let wanted = Wanted { key, sequence: word(query, 8).ok_or(BAD_QUERY)? };
    let (content, trailer) = data.split_last_chunk::<5>().ok_or(CORRUPT)?;
    let (content, count) = content.split_last_chunk::<4>().ok_or(CORRUPT)?;
    let count = u32::from_le_bytes(*count) as usize;
    if trailer[0] != 0 || count >> 31 != 0 {
        return Err(UNSUPPORTED);
    }
    let limit = content.len().checked_sub(4 * count).filter(|_| count > 0).ok_or(CORRUPT)?;
    let (entries, restarts) = content.split_at(limit);
    scan(from_restart(entries, restarts.as_chunks::<4>().0, &wanted)?, &wanted)
}

/// The entries from the last restart on whose key is before the one that is looked for.
fn from_restart<'a>(entries: &'a [u8], restarts: &[[u8; 4]], wanted: &Wanted<'_>) -> Result<&'a [u8], u64> {
    let (mut left, mut right) = (0, restarts.len() - 1);
    loop {
        let middle = (left + right).div_ceil(2);
        let offset = restarts.get(middle).map(|offset| u32::from_le_bytes(*offset)).ok_or(CORRUPT)?;
        let mut rest = entries.get(offset as usize..).ok_or(CORRUPT)?;
        if left >= right {
            return Ok(rest);
        }
        let [shared, len, _] = take_header(&mut rest)?;
        if shared != 0 {
            return Err(CORRUPT);
        }
        if len > (KEY_MAX + TRAILER_LEN) as u64 {
            return Err(UNSUPPORTED);
        }
        let key = rest.get(..len as usize).ok_or(CORRUPT)?;
        if wanted.is_behind(key)? { left = middle } else { right = middle - 1 }
    }
}

fn scan<'a>(mut rest: &'a [u8], wanted: &Wanted<'_>) -> Result<Option<(u8, &'a [u8])>, u64> {
    let mut key = [0; KEY_MAX + TRAILER_LEN];
    let mut key_len = 0;
    while !rest.is_empty() {
        let [shared, len, value_len] = take_header(&mut rest)?;
        if shared > key_len as u64 {
            return Err(CORRUPT);
        }
        let shared = shared as usize;
        let len = usize::try_from(len).ok().filter(|len| *len <= key.len() - shared).ok_or(UNSUPPORTED)?;
        let (own, behind) = rest.split_at_checked(len).ok_or(CORRUPT)?;
        let value_len = usize::try_from(value_len).map_err(|_| CORRUPT)?;
        let (value, behind) = behind.split_at_checked(value_len).ok_or(CORRUPT)?;
        rest = behind;
        key_len = shared + len;
        key.get_mut(shared..key_len).ok_or(CORRUPT)?.copy_from_slice(own);
        let found = key.get(..key_len).ok_or(CORRUPT)?;
        if wanted.is_behind(found)? {
            continue;
        }
        let (user_key, trailer) = found.split_last_chunk::<TRAILER_LEN>().ok_or(CORRUPT)?;
        return match value.len() {
            _ if user_key != wanted.key => Ok(None),
            ..=VALUE_MAX => Ok(Some((trailer[0], value))),
            _ => Err(UNSUPPORTED),
        };
    }
    Ok(None)
}

/// What stands before an entry's key: how much is shared, how much is not, how long the value is.
fn take_header(bytes: &mut &[u8]) -> Result<[u64; 3], u64> {
    if let Some((&header, rest)) = bytes.split_first_chunk::<3>()
        && header.iter().all(|byte| *byte < 128)
    {
        *bytes = rest;
        return Ok(header.map(u64::from));
    }
    Ok([take_varint(bytes)?, take_varint(bytes)?, take_varint(bytes)?])
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or(CORRUPT)?;
        *bytes = rest;
        if shift == 63 && *byte > 1 {
            return Err(CORRUPT);
        }
        number |= u64::from(byte & 127) << shift;
        if *byte < 128 {
            return Ok(number);
        }
    }
    Err(CORRUPT)
}
