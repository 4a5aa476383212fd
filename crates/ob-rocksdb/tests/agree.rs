//! The reader answers as RocksDB does: databases of many kinds, by seeds, live and closed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use ob_rocksdb::{CacheOptions, Options};
use support::golden::{GOLDEN, expected, golden, read_all, write_golden};
use support::{Peer, block_on, compare, open};

/// Lets RocksDB make a database in rounds, and compares after each, while RocksDB has it open; then after it was closed.
/// `OB_SEED` moves all seeds, for campaigns.
fn agree(seed: u64, options: &str) {
    let moved = std::env::var("OB_SEED").map_or(0, |moved| moved.parse().unwrap());
    let seed = seed + 1000 * moved;
    let Some(mut peer) = Peer::start(seed, options) else { return };
    let database = open(&peer.path(), Options::default());
    // So small a cache that blocks go while they are used.
    let cache = CacheOptions { len_max: 2000, pin_indexes: true };
    let starved = open(&peer.path(), Options { cache, ..Options::default() });
    let mut asked = 0;
    for round in 0..8 {
        peer.tell("write 400");
        match round % 8 {
            0 | 3 => drop(peer.tell("flush")),
            2 => drop(peer.tell("compact")),
            4 => drop(peer.tell("write_without_log 100")),
            5 => drop(peer.tell("ingest")),
            6 => drop(peer.tell("release")),
            _ => {}
        }
        peer.tell("snapshot");
        peer.tell("write 60");
        let answers = peer.tell("ask 60");
        for database in [&database, &starved] {
            block_on(database.catch_up()).unwrap();
            asked += compare(database, &answers);
        }
    }
    // A snapshot ends with the process that holds it, and what only it saw may go as the database is closed.
    peer.tell("release_all");
    let mut answers = peer.tell("ask 150");
    answers.extend(peer.tell("ask_all"));
    peer.tell("close");
    for database in [&open(&peer.path(), Options::default()), &database] {
        block_on(database.catch_up()).unwrap();
        asked += compare(database, &answers);
    }
    assert!(asked > 1000, "{asked}");
    let stats = database.cache().stats();
    let has_tables = !options.contains("flushes=0");
    assert!(!has_tables || stats.data.hits > 0 && stats.data.misses > 0, "{stats:?}");
    assert!(starved.cache().stats().len <= 2000);
}

macro_rules! agree {
    ($($name:ident: $seed:literal, $options:literal;)*) => {
        $(#[test]
        fn $name() {
            agree($seed, $options);
        })*
    };
}

agree! {
    plain: 1, "";
    bloom_and_snappy: 2, "compression=snappy filter=bloom";
    partitioned_and_lz4: 3, "compression=lz4 filter=partitioned index=two_level index_restart=8";
    ribbon_and_zstd: 4, "compression=zstd filter=ribbon restart=1";
    lz4hc_with_first_keys: 5, "compression=lz4hc index=first_key filter=bloom index_restart=4";
    hash_index_and_hashed_blocks: 6, "index=hash hash_data=1 filter=bloom";
    oldest_format: 7, "format=0 checksum=crc32c compression=lz4 filter=bloom";
    format_1: 8, "format=1 checksum=xxhash compression=zstd filter=bloom";
    format_2: 9, "format=2 checksum=xxhash64 compression=lz4 filter=bloom restart=3";
    format_3: 10, "format=3 checksum=crc32c compression=snappy filter=partitioned index=two_level";
    format_4: 11, "format=4 checksum=none filter=bloom index_restart=16";
    prefixes_alone_are_filtered: 12, "whole_key=0 filter=bloom";
    many_ranges: 13, "ranges=25 filter=bloom";
    nothing_is_compacted: 14, "auto=0 ranges=6 filter=bloom";
    logs_are_tracked: 15, "track=1 atomic=1";
    logs_with_numbers: 16, "recycle=4 buffer=100000000 flushes=0";
    manifests_are_replaced: 17, "manifest=2000 ranges=5";
    large_blocks: 18, "block=100000 hash_data=1 compression=zstd buffer=400000";
    few_keys: 19, "keys=40 ranges=4 filter=bloom";
    indexes_are_not_compressed: 20, "index_compression=0 compression=snappy index=two_level filter=partitioned";
}

#[test]
fn golden_databases_are_read() {
    if std::env::var_os("OB_BLESS").is_some() {
        write_golden();
    }
    for (name, _) in GOLDEN {
        let (files, answers) = golden(name);
        let expected: Vec<String> = answers.iter().map(|line| expected(line)).collect();
        assert!(expected.len() > 60, "{name}");
        assert_eq!(read_all(files, &answers).unwrap(), expected, "{name}");
    }
}
