//! The reader follows a database that RocksDB goes on writing, flushing and compacting.

use ob_rocksdb::{Error, MergeObstacle, Options, Unsupported};

use crate::support::{Peer, block_on, compare, open, value_of};

#[test]
fn batches_are_seen_whole_and_in_order_while_everything_moves() {
    let Some(mut peer) = Peer::start(31, "filter=bloom compression=lz4 manifest=20000") else { return };
    let database = open(&peer.path(), Options::default());
    peer.tell("churn");
    let (mut last, mut changes) = (0, 0);
    while changes < 150 {
        let acknowledged: u64 = peer.tell("churned")[0].parse().unwrap();
        block_on(database.catch_up()).unwrap();
        // One view for all keys: a second look may be another one.
        let view = database.view();
        let version = view.family("churn").unwrap();
        let values: Vec<Option<Vec<u8>>> = (0..5)
            .map(|key| {
                let key = format!("b{key}").into_bytes();
                let plan = version.plan_get(database.cache(), &key, view.last_sequence()).unwrap();
                let found = block_on(plan.execute_ordinary(database.reader())).unwrap();
                version.value(&key, found, None).unwrap()
            })
            .collect();
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        let round = values[0].as_ref().map_or(0, |value| String::from_utf8_lossy(value).parse().unwrap());
        assert!(round >= acknowledged, "{acknowledged} was acknowledged, and {round} is seen");
        assert!(round >= last, "{round} behind {last}");
        changes += u64::from(round > last);
        last = round;
    }
    let end: u64 = peer.tell("calm")[0].parse().unwrap();
    block_on(database.catch_up()).unwrap();
    assert_eq!(value_of(&database, "churn", "b0"), Some(end.to_string()));
    compare(&database, &peer.tell("ask_all"));
}

#[test]
fn an_old_view_stays_as_it_was() {
    let Some(mut peer) = Peer::start(32, "") else { return };
    peer.tell("put default key before");
    peer.tell("flush_all");
    let database = open(&peer.path(), Options::default());
    let old = database.view().family("default").unwrap();
    peer.tell("put default key behind");
    peer.tell("flush_all");
    peer.tell("compact");
    peer.tell("compact");
    block_on(database.catch_up()).unwrap();
    let read = |version: &ob_rocksdb::Version<_>| {
        let plan = version.plan_get(database.cache(), b"key", ob_rocksdb::Sequence::MAX).unwrap();
        version.value(b"key", block_on(plan.execute_ordinary(database.reader())).unwrap(), None).unwrap()
    };
    assert_eq!(read(&old), Some(b"before".to_vec()), "its table is gone from the directory, and still open");
    assert_eq!(read(&database.view().family("default").unwrap()), Some(b"behind".to_vec()));
}

#[test]
fn families_come_and_go() {
    let Some(mut peer) = Peer::start(33, "") else { return };
    let database = open(&peer.path(), Options::default());
    assert_eq!(database.view().family("more").err(), Some(Error::NoColumnFamily("more".into())));
    peer.tell("add more");
    peer.tell("put more key value");
    block_on(database.catch_up()).unwrap();
    assert_eq!(value_of(&database, "more", "key").as_deref(), Some("value"));
    peer.tell("drop more");
    peer.tell("put default key value");
    block_on(database.catch_up()).unwrap();
    assert!(database.view().family("more").is_err());
    assert_eq!(value_of(&database, "default", "key").as_deref(), Some("value"));
    peer.tell("add more");
    block_on(database.catch_up()).unwrap();
    assert_eq!(value_of(&database, "more", "key"), None, "it is another one of the same name");
}

#[test]
fn a_writer_that_died_leaves_what_it_wrote() {
    let Some(mut peer) = Peer::start(34, "filter=bloom") else { return };
    for _ in 0..4 {
        peer.tell("write 700");
        peer.tell("snapshot");
    }
    let answers = [peer.tell("ask 150"), peer.tell("ask_all")].concat();
    let directory = peer.kill();
    let database = open(&directory.path().join("db"), Options::default());
    compare(&database, &answers);
}

#[test]
fn what_rocksdb_alone_can_read_is_named() {
    for (options, what) in [
        ("compression=zlib", Unsupported::Compression("zlib")),
        ("compression=zstd dictionary=1", Unsupported::CompressionDictionary),
        ("blob=1", Unsupported::Blob),
        ("wal_compression=1", Unsupported::CompressedLog),
    ] {
        let Some(mut peer) = Peer::start(35, options) else { return };
        peer.tell("write 3000");
        peer.tell("flush_all");
        peer.tell("compact");
        peer.tell("put default zzz valueinalog");
        let opened = block_on(ob_rocksdb::Database::open(
            ob_rocksdb::LocalDirectory::new(peer.path()),
            Options::default(),
        ));
        let refused = opened.and_then(|database| {
            block_on(async {
                let mut iterator = database.iterate("default", ob_rocksdb::Scan::default()).await?;
                iterator.seek_to_first().await?;
                while iterator.current().is_some() {
                    iterator.next().await?;
                }
                Ok(())
            })
        });
        match refused {
            Err(Error::Unsupported { what: refused, .. }) => assert_eq!(refused, what, "{options}"),
            other => panic!("{options}: {other:?}"),
        }
    }
}

#[test]
fn merges_need_an_operator() {
    let Some(mut peer) = Peer::start(36, "") else { return };
    peer.tell("write 3000");
    let answers = peer.tell("ask 50");
    peer.tell("close");
    let database = open(&peer.path(), Options::default());
    compare(&database, &answers);
    for entry in std::fs::read_dir(peer.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("OPTIONS") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let database = open(&peer.path(), Options::default());
    let scanned = block_on(async {
        let mut iterator = database.iterate("sum", ob_rocksdb::Scan::default()).await?;
        iterator.seek_to_first().await?;
        while iterator.current().is_some() {
            iterator.next().await?;
        }
        Ok(())
    });
    let reason = MergeObstacle::NotNamed;
    assert_eq!(scanned, Err(Error::MergeOperator { family: "sum".into(), reason }));
}
