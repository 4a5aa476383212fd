//! Any bytes as what a chunk server has on its device: refused, or the same after a round trip.

#![no_main]

use ob_format::volume::{
    ChunkHeader, Directory, IndexEntry, LEDGER_ENTRY_LEN, LedgerEntry, PAGE_ENTRIES, PAGE_LEN, Page, RECORD_HEADER_LEN,
    Record, Records, Root, ServerFile, encode_directory, encode_page, encode_root, read_ledger,
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // Nobody guesses a checksum, so what lies behind it is reached with one that is right.
    if let Some(whole) = sealed(bytes, bytes.len(), 8) {
        check(&whole);
    }
    if let Some(header) = sealed(bytes, 64, 8) {
        check(&header);
    }
    if let Some(record) = sealed_record(bytes) {
        check_records(&record);
    }
    let entries: Vec<u8> =
        bytes.chunks_exact(LEDGER_ENTRY_LEN).filter_map(|entry| sealed(entry, LEDGER_ENTRY_LEN, 4)).flatten().collect();
    check_ledger(&entries);
});

fn check(bytes: &[u8]) {
    if let Ok(file) = ServerFile::decode(bytes) {
        assert_eq!(file.encode().as_ref().map(|file| &file[..]), Ok(&bytes[..64]));
    }
    if let Ok(header) = ChunkHeader::decode(bytes) {
        assert_eq!(header.encode().as_ref().map(|header| &header[..]), Ok(&bytes[..64]));
    }
    if let Ok(directory) = Directory::decode(bytes) {
        let entries: Vec<_> = directory.entries().collect();
        assert_eq!(encode_directory(&directory.summary, &entries).as_deref(), Ok(bytes));
    }
    if let Ok(root) = Root::decode(bytes) {
        let (slots, places): (Vec<_>, Vec<_>) = (root.slots().collect(), root.places().collect());
        assert_eq!(encode_root(&root.summary, &slots, &places).as_deref(), Ok(bytes));
    }
    check_page(bytes);
    check_records(bytes);
    check_ledger(bytes);
}

fn check_page(bytes: &[u8]) {
    // Its length is known, and a fuzzer rarely finds it.
    let mut whole = bytes.to_vec();
    whole.resize(PAGE_LEN, 0);
    for bytes in [bytes, &whole] {
        let Ok(page) = Page::decode(bytes) else { continue };
        let mut entries = [IndexEntry::UNMAPPED; PAGE_ENTRIES];
        for (place, entry) in entries.iter_mut().zip(page.entries()) {
            *place = entry;
        }
        let mut again = [0; PAGE_LEN];
        assert_eq!(encode_page(page.page, page.as_of, &entries, &mut again), Ok(()));
        assert_eq!(again[..], *bytes);
    }
}

fn check_records(bytes: &[u8]) {
    let mut again = Vec::new();
    for record in Records::new(bytes).map_while(Result::ok) {
        assert_eq!(record.encode_into(&mut again), Ok(()));
    }
    assert_eq!(again, bytes[..again.len()]);
}

fn check_ledger(bytes: &[u8]) {
    let Ok(entries) = read_ledger(bytes) else { return };
    for (entry, place) in entries.iter().zip(bytes.chunks(LEDGER_ENTRY_LEN)) {
        assert_eq!(entry.encode().as_ref().map(|entry| &entry[..]), Ok(place));
        assert_eq!(LedgerEntry::decode(place), Ok(*entry));
    }
    assert!(entries.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
}

/// A record of the bytes, its payload's sum right too, and as long as its header says where there are so many.
fn sealed_record(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut record = bytes.to_vec();
    record.resize(bytes.len().max(RECORD_HEADER_LEN).next_multiple_of(64), 0);
    let stored = u32::from_le_bytes(record.get(28..32)?.try_into().ok()?) as usize;
    let stored = stored.min(record.len() - RECORD_HEADER_LEN);
    record[28..32].copy_from_slice(&(stored as u32).to_le_bytes());
    let end = RECORD_HEADER_LEN + stored;
    let filled = end.next_multiple_of(64);
    record[end..filled].fill(0);
    let payload_crc = crc32c::crc32c(&record[RECORD_HEADER_LEN..end]);
    record[56..60].copy_from_slice(&payload_crc.to_le_bytes());
    let header = sealed(&record, RECORD_HEADER_LEN, 4)?;
    record[..RECORD_HEADER_LEN].copy_from_slice(&header);
    let _ = Record::decode(&record);
    Some(record)
}

/// The first `length` bytes, with the checksum at `at` set right.
fn sealed(bytes: &[u8], length: usize, at: usize) -> Option<Vec<u8>> {
    let mut bytes = bytes.get(..length)?.to_vec();
    bytes.get_mut(at..at + 4)?.fill(0);
    let checksum = crc32c::crc32c(&bytes);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    Some(bytes)
}
