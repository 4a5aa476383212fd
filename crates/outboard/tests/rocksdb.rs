//! RocksDB's databases, whose tables a real card reads: what requests find is what RocksDB itself says.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ob_nvme::initiator::{Initiator, Namespace, block_on};
use ob_pushdown::client::{File, FileMap, MapExtent, MapSource, Session};
use ob_pushdown::rocksdb::{LookupCounts, Lookups, PushedFile};
use ob_rocksdb::{CacheOptions, Database, Files, LocalDirectory, LocalFile, Options, ReadError};
use ob_wire_nvme::NamespaceId;
use peer::{Lookup, Peer, said};

use crate::pushdown::Card;
use crate::support::Place;

#[path = "../../ob-rocksdb/tests/support/mod.rs"]
pub(crate) mod peer;

const CONFIG: &str = "[nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"512MiB\"\n[status]\nlisten = \"127.0.0.1:0\"\n";
/// Bytes of a table that lie together in the namespace: less than a block of the table has.
const PIECE: usize = 4096;

/// A directory whose tables lie in a namespace as well, in pieces.
struct Tables<'a> {
    local: LocalDirectory,
    session: &'a Session<Initiator>,
    namespace: Namespace,
    /// Where the next table begins.
    free: &'a AtomicU64,
}

#[derive(Clone)]
struct Table {
    local: LocalFile,
    pushed: Option<File>,
}

impl PushedFile for Table {
    fn pushed(&self) -> Option<&File> {
        self.pushed.as_ref()
    }
}

struct Fixed(Arc<FileMap>);

impl MapSource for Fixed {
    fn current(&self) -> Option<Arc<FileMap>> {
        Some(self.0.clone())
    }
}

impl Tables<'_> {
    /// Copies a table into the namespace: every second piece of what is free.
    async fn copy(&self, bytes: &[u8]) -> File {
        let block = u64::from(self.namespace.block_len());
        let mut extents = Vec::new();
        for (number, part) in bytes.chunks(PIECE).enumerate() {
            let offset = self.free.fetch_add(2 * PIECE as u64, Ordering::Relaxed);
            let mut part = part.to_vec();
            part.resize(PIECE, 0xee);
            self.namespace.write(offset / block, part).await.unwrap();
            extents.push(MapExtent { at: (number * PIECE) as u64, offset, len: PIECE as u64 });
        }
        let len = bytes.len() as u64;
        let map = FileMap { namespace: NamespaceId(1), version: 1, identity: len, len, extents };
        self.session.mapped(Arc::new(Fixed(Arc::new(map))))
    }
}

impl Files for Tables<'_> {
    type File = Table;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.local.list().await
    }

    async fn open(&self, name: &str) -> Result<Table, ReadError> {
        let local = self.local.open(name).await?;
        let pushed = match name.ends_with(".sst") {
            true => {
                let len = self.local.len(&local).await?;
                Some(self.copy(&self.local.read(&local, 0, len as usize).await?).await)
            }
            false => None,
        };
        Ok(Table { local, pushed })
    }

    async fn len(&self, file: &Table) -> Result<u64, ReadError> {
        self.local.len(&file.local).await
    }

    async fn read(&self, file: &Table, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        self.local.read(&file.local, offset, len).await
    }
}

/// So little that blocks go while they are used; with indexes, and without.
const CACHES: [CacheOptions; 2] =
    [CacheOptions { len_max: 2000, pin_indexes: true }, CacheOptions { len_max: 0, pin_indexes: false }];

/// Lets RocksDB make a database in rounds and asks for what it says of keys, while RocksDB has it open.
fn asked(card: &Card, seed: u64, options: &str) -> Option<LookupCounts> {
    let mut peer = Peer::start(seed, options)?;
    let initiator = card.connect(1);
    let free = AtomicU64::new(0);
    Some(block_on(async {
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let session = Session::begin(initiator.clone(), NamespaceId(1)).await.unwrap();
        let lookups = Lookups::new(&session);
        let open = async |cache: CacheOptions, path: &Path| {
            let (local, namespace) = (LocalDirectory::new(path), namespace.clone());
            let files = Tables { local, session: &session, namespace, free: &free };
            Database::open(files, Options { cache, ..Options::default() }).await.unwrap()
        };
        let mut databases = Vec::new();
        for cache in CACHES {
            databases.push(open(cache, &peer.path()).await);
        }
        for round in 0..6 {
            peer.tell("write 400");
            match round {
                0 | 2 => drop(peer.tell("flush")),
                1 => drop(peer.tell("compact")),
                3 => drop(peer.tell("ingest")),
                4 => drop(peer.tell("flush_all")),
                _ => {}
            }
            peer.tell("snapshot");
            peer.tell("write 60");
            for line in peer.tell("ask 80") {
                let Some((Lookup { family, snapshot, key }, expected)) = Lookup::parse(&line) else {
                    continue;
                };
                for database in &databases {
                    database.catch_up().await.unwrap();
                    let got = lookups.get(database, &family, &key, snapshot, None).await;
                    let (value, path) = got.unwrap();
                    assert_eq!(said(value), expected, "{options:?}, {path:?}: {line}");
                }
            }
        }
        lookups.counts()
    }))
}

#[test]
fn requests_find_what_rocksdb_finds() {
    let card = Card::start(Place::with_config(CONFIG));
    let kinds = [
        "lengths=7",
        "lengths=7 filter=bloom ranges=25",
        "lengths=7 index=two_level filter=partitioned block=300",
        "lengths=7 index=first_key index_restart=4 checksum=crc32c",
        "lengths=7 format=4 checksum=none auto=0 ranges=6",
        "lengths=7 keys=40 ranges=4 filter=bloom index_restart=16",
        "lengths=7 format=2 checksum=crc32c restart=1",
        "lengths=7 index=hash filter=ribbon",
    ];
    for (seed, options) in (1..).zip(kinds) {
        let Some(counts) = asked(&card, seed, options) else { return };
        let all = counts.from_memory + counts.pushed + counts.ordinary;
        println!("{options:?}: {counts:?}");
        assert!(counts.pushed > all / 4, "{options:?}: {counts:?}");
        assert!(counts.sampled > 0 && counts.ordinary > counts.sampled, "{options:?}: {counts:?}");
    }
}

#[test]
fn what_the_program_does_not_read_takes_the_ordinary_path() {
    let card = Card::start(Place::with_config(CONFIG));
    for options in ["compression=lz4 filter=bloom", "checksum=xxhash64"] {
        let Some(counts) = asked(&card, 9, options) else { return };
        assert_eq!(counts.pushed, 0, "{options:?}: {counts:?}");
        assert!(counts.not_pushed > 0, "{options:?}: {counts:?}");
    }
    // Here it is the program that gives up, at some blocks.
    let Some(counts) = asked(&card, 10, "hash_data=1") else { return };
    assert!(counts.ordinary > counts.pushed, "{counts:?}");
}
