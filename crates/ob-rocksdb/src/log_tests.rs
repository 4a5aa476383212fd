use proptest::prelude::*;

use super::*;

/// A log as RocksDB writes it.
fn written(records: &[Vec<u8>], recycled: Option<u32>) -> Vec<u8> {
    let header_len = if recycled.is_some() { RECYCLED_HEADER_LEN } else { HEADER_LEN };
    let block_len = usize::try_from(BLOCK_LEN).unwrap();
    let mut log: Vec<u8> = Vec::new();
    for record in records {
        let (mut rest, mut is_first) = (&record[..], true);
        loop {
            let left = block_len - log.len() % block_len;
            if left < header_len {
                log.resize(log.len() + left, 0);
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(left - header_len));
            let kind = match (is_first, later.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut checked = vec![kind + if recycled.is_some() { 4 } else { 0 }];
            checked.extend(recycled.map(u32::to_le_bytes).into_iter().flatten());
            checked.extend(now);
            log.extend(mask(crc32c::crc32c(&checked)).to_le_bytes());
            log.extend(u16::try_from(now.len()).unwrap().to_le_bytes());
            log.extend(checked);
            (rest, is_first) = (later, false);
            if rest.is_empty() {
                break;
            }
        }
    }
    log
}

fn contents(scan: &Scan) -> Vec<Vec<u8>> {
    scan.records.iter().map(|(_, record)| record.clone()).collect()
}

fn some_records() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let record = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..50),
        (30_000..70_000_usize, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
    ];
    prop::collection::vec(record, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_come_back_however_the_log_grows(records in some_records(), number in prop::option::of(any::<u32>()), cut: prop::sample::Index) {
        let log = written(&records, number);
        let number = number.unwrap_or(9);
        let whole = scan(&log, Position::default(), number).unwrap();
        prop_assert_eq!(contents(&whole), records.clone());
        prop_assert_eq!(whole.end, End::Clean);
        // In two steps, cut anywhere.
        let cut = cut.index(log.len() + 1);
        let before = scan(&log[..cut], Position::default(), number).unwrap();
        let at = usize::try_from(before.position.offset).unwrap();
        let stop = Position { offset: before.stop_offset, ..before.position };
        prop_assert!(!has_whole_frame(&log[usize::try_from(stop.offset).unwrap()..cut], stop, number));
        let behind = scan(&log[at..], before.position, number).unwrap();
        let both = [contents(&before), contents(&behind)].concat();
        prop_assert_eq!(both, records);
    }

    #[test]
    fn any_bytes_are_scanned(bytes: Vec<u8>, offset in 0..100_000_u64, is_recycled: bool) {
        let _ = scan(&bytes, Position { offset, is_recycled }, 3);
        let _ = has_whole_frame(&bytes, Position { offset, is_recycled }, 3);
    }
}

#[test]
fn a_flipped_bit_is_noticed() {
    let records: Vec<Vec<u8>> = (1..6_u8).map(|index| vec![index; usize::from(index) * 9]).collect();
    let log = written(&records, None);
    for bit in 0..log.len() * 8 {
        let mut flipped = log.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let Ok(scan) = scan(&flipped, Position::default(), 1) else { continue };
        // A length that became longer looks like an end, but for what stands behind it.
        assert_eq!(scan.end, End::Torn, "bit {bit}");
        let at = usize::try_from(scan.stop_offset).unwrap();
        let is_last = scan.records.len() + 1 == records.len();
        assert!(is_last || has_whole_frame(&flipped[at..], scan.position, 1), "bit {bit}");
    }
}

#[test]
fn zeros_and_older_logs_end_a_log() {
    let mut log = written(&[b"first".to_vec()], None);
    let len = log.len() as u64;
    log.resize(70_000, 0);
    let found = scan(&log, Position::default(), 1).unwrap();
    assert_eq!((found.records.len(), found.position.offset, found.end), (1, len, End::Clean));
    log[60_000] = 1;
    assert!(scan(&log, Position::default(), 1).is_err(), "zeros in the middle");

    let mut recycled = written(&[b"new".to_vec()], Some(8));
    recycled.extend(written(&[b"old".to_vec()], Some(7)));
    recycled.extend(b"whatever the older log has here");
    let found = scan(&recycled, Position::default(), 8).unwrap();
    assert_eq!((contents(&found), found.end), (vec![b"new".to_vec()], End::Torn));
    assert!(found.position.is_recycled);
}

#[test]
fn compressed_logs_are_named() {
    let mut checked = vec![9];
    checked.push(7);
    let mut log = mask(crc32c::crc32c(&checked)).to_le_bytes().to_vec();
    log.extend([1, 0]);
    log.extend(checked);
    let error = scan(&log, Position::default(), 1).unwrap_err();
    assert_eq!(error.error, Unsupported::CompressedLog.into());
}
