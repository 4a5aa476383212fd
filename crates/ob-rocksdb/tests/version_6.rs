//! Format version 6, which the RocksDB of the tests does not write: a table of version 5, with its checksums bound to their places and
//! its index named by the metaindex, as that version has it.

use std::sync::Arc;

use ob_rocksdb::bytes::put_varint;
use ob_rocksdb::checksum::{ChecksumKind, context};
use ob_rocksdb::footer::{self, Footer, Handle};
use ob_rocksdb::keys::{Sequence, encode};
use ob_rocksdb::manifest::TableFacts;
use ob_rocksdb::table::{open_block, parse_metaindex};
use ob_rocksdb::{BlockCache, Error, Kind, Reader, TableFile, block};

use crate::support::block_on;
use crate::support::golden::golden;
use crate::support::memory::MemoryFiles;

const BASE: u32 = 0x1234_5678;
const TRAILER_LEN: usize = 5;

fn range(handle: Handle) -> std::ops::Range<usize> {
    let start = usize::try_from(handle.offset).unwrap();
    start..start + usize::try_from(handle.len).unwrap() + TRAILER_LEN
}

/// A block with the checksum that it has at its place.
fn seal(mut content: Vec<u8>, kind: ChecksumKind, offset: usize) -> Vec<u8> {
    let checksum = kind.of(&content).wrapping_add(context(BASE, offset as u64));
    content.extend(checksum.to_le_bytes());
    content
}

/// A block of entries that share nothing.
fn built(entries: &[block::Pair]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut restarts = Vec::new();
    for (key, value) in entries {
        restarts.push(u32::try_from(bytes.len()).unwrap());
        for number in [0, key.len(), value.len()] {
            put_varint(&mut bytes, number as u64);
        }
        bytes.extend(key);
        bytes.extend(value);
    }
    restarts.iter().for_each(|restart| bytes.extend(restart.to_le_bytes()));
    bytes.extend(u32::try_from(restarts.len()).unwrap().to_le_bytes());
    bytes
}

/// All blocks but the metaindex stand one behind the other, from the first on.
fn converted(old: &[u8], footer: &Footer) -> Vec<u8> {
    let metaindex_at = usize::try_from(footer.metaindex.offset).unwrap();
    let content = open_block(old[range(footer.metaindex)].to_vec(), footer.metaindex, footer, false).unwrap();
    let mut entries = block::entries(content.clone()).unwrap();
    let mut handles: Vec<Handle> = entries
        .iter()
        .map(|(_, value)| Handle::parse(&mut ob_rocksdb::bytes::Input::new(value, "a handle")).unwrap())
        .collect();
    let index = footer.index.unwrap();
    handles.push(index);
    let raw = open_block(old[range(index)].to_vec(), index, footer, false).unwrap();
    let table = parse_metaindex(content).unwrap();
    assert!(table.properties.is_some() && table.index.is_none());
    // The index of a table with few blocks, each entry with a whole handle behind a key.
    let mut new = old[..metaindex_at].to_vec();
    let frame = block::Block::parse(Arc::new(raw)).unwrap();
    let values = block::Values::Differences { with_first_key: false };
    let mut cursor = block::BlockCursor::new(frame, block::Keys::Bytes, values);
    let mut is_there = cursor.first().unwrap();
    while is_there {
        handles.push(cursor.handle().unwrap());
        is_there = cursor.advance().unwrap();
    }
    for handle in handles {
        let place = range(handle);
        let content = old[place.start..place.end - 4].to_vec();
        new[place.clone()].copy_from_slice(&seal(content, footer.checksum, place.start));
    }
    let mut value = Vec::new();
    put_varint(&mut value, index.offset);
    put_varint(&mut value, index.len);
    entries.push((b"rocksdb.index".to_vec(), value));
    entries.sort();
    let metaindex = built(&entries);
    let metaindex_len = u32::try_from(metaindex.len()).unwrap();
    new.extend(seal([&metaindex[..], &[0]].concat(), footer.checksum, metaindex_at));
    let footer_at = new.len();
    let mut tail = vec![1, 0x3e, 0, 0x7a, 0, 0, 0, 0, 0];
    tail.extend(BASE.to_le_bytes());
    tail.extend(metaindex_len.to_le_bytes());
    tail.extend([0; 24]);
    tail.extend(6_u32.to_le_bytes());
    tail.extend(&old[old.len() - 8..]);
    let checksum = footer.checksum.of(&tail).wrapping_add(context(BASE, footer_at as u64));
    tail[5..9].copy_from_slice(&checksum.to_le_bytes());
    new.extend(tail);
    new
}

fn found(name: &str, content: &[u8], key: &[u8]) -> Result<Vec<(Kind, Vec<u8>)>, Error> {
    let files = MemoryFiles { files: [(name.to_owned(), Arc::new(content.to_vec()))].into() };
    let facts = TableFacts {
        number: 1,
        len: content.len() as u64,
        smallest: encode(b"", Sequence(0), Kind::Value),
        largest: encode(b"zzz", Sequence(0), Kind::Value),
        smallest_sequence: Sequence(0),
        largest_sequence: Sequence::MAX,
        epoch: 0,
    };
    let file = (name.to_owned(), files.files[name].clone());
    let file = TableFile::new(facts, name.to_owned(), file)?;
    let cache = BlockCache::default();
    let reader = Reader { files: &files, cache: &cache };
    let finding = block_on(reader.find(&file, key, Sequence::MAX))?;
    Ok(finding.entries.into_iter().map(|entry| (entry.kind, entry.value)).collect())
}

#[test]
fn tables_of_version_6_have_their_checksums_at_their_places() {
    let (files, _) = golden("bloom");
    let (mut tables, mut entries) = (0, 0);
    for (name, old) in files.files.iter().filter(|(name, _)| name.ends_with(".sst")) {
        let footer = footer::parse(&old[old.len() - 53..], old.len() as u64).unwrap();
        assert_eq!((footer.format_version, footer.checksum), (5, ChecksumKind::Crc32c));
        let keys: Vec<Vec<u8>> = (0..25_usize)
            .map(|index| {
                let letter = char::from(b'a' + u8::try_from(index).unwrap() % 26);
                let padding = letter.to_string().repeat([0, 1, 4, 11][index % 4]);
                format!("k{index:05}{padding}").into_bytes()
            })
            .collect();
        let before: Vec<_> = keys.iter().map(|key| found(name, old, key)).collect();
        if before.iter().any(Result::is_err) {
            // Taken in by ingestion: its sequence number is in the manifest.
            continue;
        }
        let new = converted(old, &footer);
        assert_eq!(footer::parse(&new[new.len() - 53..], new.len() as u64).unwrap().format_version, 6);
        let after: Vec<_> = keys.iter().map(|key| found(name, &new, key)).collect();
        assert_eq!(after, before, "{name}");
        tables += 1;
        entries += before.iter().flatten().map(Vec::len).sum::<usize>();
        // A byte more before everything: each block is sound, and none is at its place.
        let moved = [&[0], &new[..]].concat();
        assert!(found(name, &moved, &keys[0]).is_err());
    }
    assert!(tables >= 5 && entries >= 20, "{tables} tables with {entries} entries");
}
