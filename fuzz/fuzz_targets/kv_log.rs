//! Any bytes as the key-value store's log: recovery refuses it with an error, or makes a store that it makes again, and
//! that can be used.

#![no_main]

use ob_format::kv::{BLOCK_LEN, GROUP_HEADER_LEN, GroupHeader, RECORD_ALIGNMENT, RECORD_HEADER_LEN};
use ob_kv::resp::Request;
use ob_kv::store::{Config, LogCompletion, LogFailure, LogOp, Recovery, RecoveryError, Store};

/// Bytes of a part of an image.
const PART_LEN: usize = 4 * BLOCK_LEN;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // The first byte says what is to be right, and which part is the first.
    let Some((&setting, bytes)) = input.split_first() else { return };
    let mut image = bytes.to_vec();
    image.resize(bytes.len().next_multiple_of(BLOCK_LEN), 0);
    let first = u64::from(setting >> 4);
    if setting & 1 == 0 {
        mend(&mut image, first, setting & 2 == 0);
    }
    let is_broken = setting & 4 != 0;
    let Ok(store) = recovered(&image, first, is_broken) else { return };
    let keys = store.stats().keys;
    let again = recovered(&image, first, is_broken).map(|store| store.stats().keys);
    assert_eq!(again, Ok(keys));
    use_it(store, keys);
});

/// Nobody guesses a checksum, nor where a group says that it is: they are set right, and (with `is_chained`) everything that
/// binds a group to the one before.
fn mend(image: &mut [u8], first: u64, is_chained: bool) {
    let (mut at, mut previous) = (0, 0u64);
    while at + GROUP_HEADER_LEN <= image.len() {
        let address = first * PART_LEN as u64 + at as u64;
        let group = &mut image[at..];
        group[..4].copy_from_slice(b"OBKG");
        group[4..8].copy_from_slice(&2u32.to_le_bytes());
        if is_chained {
            group[12..16].copy_from_slice(&1u32.to_le_bytes());
            group[16..32].fill(7);
            group[32..40].copy_from_slice(&address.to_le_bytes());
            group[52..56].copy_from_slice(&((PART_LEN / BLOCK_LEN) as u32).to_le_bytes());
            group[56..64].copy_from_slice(&previous.to_le_bytes());
            let durable = number(group, 64).min(address as u32);
            group[64..72].copy_from_slice(&u64::from(durable).to_le_bytes());
            // Few blocks, and few records.
            let length = (group[40] as usize % 3 + 1) * BLOCK_LEN;
            let records = group[48] % 8;
            group[48..52].copy_from_slice(&u32::from(records).to_le_bytes());
            let used = seal_records(group, records.into());
            let length = length.max(used.next_multiple_of(BLOCK_LEN));
            let used = used.max(length - BLOCK_LEN + 1);
            group[40..44].copy_from_slice(&(length as u32).to_le_bytes());
            group[44..48].copy_from_slice(&(used as u32).to_le_bytes());
        }
        group[8..12].fill(0);
        let checksum = crc32c::crc32c(&group[..GROUP_HEADER_LEN]);
        group[8..12].copy_from_slice(&checksum.to_le_bytes());
        previous = address;
        at += GroupHeader::decode(group).map_or(BLOCK_LEN, |header| header.length.max(BLOCK_LEN));
    }
}

/// Gives so many records their checksums; where the last of them ends.
fn seal_records(group: &mut [u8], records: usize) -> usize {
    let mut end = GROUP_HEADER_LEN;
    for _ in 0..records {
        let begin = end.next_multiple_of(RECORD_ALIGNMENT);
        let Some(record) = group.get_mut(begin..).filter(|record| record.len() >= RECORD_HEADER_LEN) else { break };
        let key_len = usize::from(u16::from_le_bytes([record[4], record[5]]));
        let len = RECORD_HEADER_LEN + key_len + number(record, 8) as usize;
        let Some(record) = record.get_mut(..len) else { break };
        let checksum = crc32c::crc32c(&record[4..]);
        record[..4].copy_from_slice(&checksum.to_le_bytes());
        end = begin + len;
    }
    end
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn recovered(image: &[u8], first: u64, is_broken: bool) -> Result<Store, RecoveryError> {
    let parts: Vec<&[u8]> = image.chunks(PART_LEN).collect();
    let sizes = (first..).zip(parts.iter().map(|part| part.len() as u64));
    let config = Config { part_len: PART_LEN as u64, group_len: BLOCK_LEN, memory_len: BLOCK_LEN, ..Config::default() };
    let mut recovery = Recovery::new(config, sizes)?;
    while let Some(op) = recovery.next_op() {
        let result = match &op {
            LogOp::Read { part, offset, len, .. } => {
                let part = parts.get((part - first) as usize).copied().unwrap_or_default();
                let begin = (*offset as usize).min(part.len());
                // A device may fail behind the first block.
                if is_broken && begin > 0 { Err(LogFailure::Device) } else { Ok(part[begin..part.len().min(begin + len)].to_vec()) }
            }
            _ => Ok(Vec::new()),
        };
        recovery.completed(LogCompletion { token: op.token(), result })?;
    }
    let progress = recovery.progress();
    assert!(progress.read <= progress.total, "{progress:?}");
    Ok(recovery.finish().unwrap_or_else(|_| panic!("there is nothing to do, and it is not over")))
}

/// The keys are counted as they were found, whatever they are.
fn use_it(mut store: Store, keys: u64) {
    let mut session = store.open(5);
    let request = Request::of_line(b"dbsize").unwrap_or_else(|_| panic!("no request"));
    store.apply(ob_core::Now::default(), (1 << 63) - 1, 1, &mut session, &request);
    let answer = store.next_answer().unwrap_or_else(|| panic!("no answer"));
    assert_eq!(answer.bytes, format!(":{keys}\r\n").into_bytes());
}
