//! Tables with sound checksums whose keys are out of order, as nobody but an attacker writes them: walks over them end.

use std::sync::Arc;

use ob_rocksdb::footer::{self, Footer, Handle};
use ob_rocksdb::table::open_block;
use ob_rocksdb::{Damage, Database, Error, Options, Scan, block};

use crate::support::block_on;
use crate::support::golden::golden;
use crate::support::memory::MemoryFiles;

/// The data blocks of a table.
fn data_blocks(table: &[u8], footer: &Footer) -> Vec<Handle> {
    let index = footer.index.unwrap();
    let start = usize::try_from(index.offset).unwrap();
    let end = start + usize::try_from(index.len).unwrap() + 5;
    let raw = open_block(table[start..end].to_vec(), index, footer, false).unwrap();
    let frame = block::Block::parse(Arc::new(raw)).unwrap();
    let values = block::Values::Differences { with_first_key: false };
    let mut cursor = block::BlockCursor::new(frame, block::Keys::Bytes, values);
    let mut handles = Vec::new();
    let mut is_there = cursor.first().unwrap();
    while is_there {
        handles.push(cursor.handle().unwrap());
        is_there = cursor.advance().unwrap();
    }
    handles
}

/// The same database, with a block of a table whose keys are behind all others.
fn mixed_up(files: &MemoryFiles, name: &str, footer: &Footer, handle: Handle) -> MemoryFiles {
    files.with(name, |table| {
        let start = usize::try_from(handle.offset).unwrap();
        let end = start + usize::try_from(handle.len).unwrap();
        // The first entry shares nothing: three lengths, and its key, with which the others begin.
        assert_eq!((table[start], table[start + 3], table[end]), (0, b'k', 0), "it is not compressed");
        table[start + 3] = b'z';
        let checksum = footer.checksum.of(&table[start..=end]);
        table[end + 1..end + 5].copy_from_slice(&checksum.to_le_bytes());
    })
}

/// Goes back over all keys.
fn walk(files: MemoryFiles) -> Result<usize, Error> {
    let database = block_on(Database::open(files, Options::default()))?;
    block_on(async {
        let mut keys = 0;
        let mut iterator = database.iterate("default", Scan::default()).await?;
        iterator.seek_to_last().await?;
        while iterator.current().is_some() {
            keys += 1;
            assert!(keys < 10_000, "it goes round and round");
            iterator.prev().await?;
        }
        Ok(keys)
    })
}

#[test]
fn a_walk_backwards_over_keys_that_are_out_of_order_ends() {
    let (files, _) = golden("plain");
    walk(files.clone()).unwrap();
    let (mut refused, mut blocks) = (0, 0);
    for (name, table) in files.files.iter().filter(|(name, _)| name.ends_with(".sst")) {
        let footer = footer::parse(&table[table.len() - 53..], table.len() as u64).unwrap();
        for handle in data_blocks(table, &footer) {
            let start = usize::try_from(handle.offset).unwrap();
            if table[start + 3] != b'k' {
                continue;
            }
            blocks += 1;
            match walk(mixed_up(&files, name, &footer, handle)) {
                Err(Error::Damaged { file, damage: Damage::Malformed("keys are out of order"), .. }) => {
                    assert_eq!(&file, name);
                    refused += 1;
                }
                other => assert!(matches!(other, Ok(_) | Err(Error::Damaged { .. })), "{other:?}"),
            }
        }
    }
    assert!(refused > 0, "of {blocks} blocks");
}
