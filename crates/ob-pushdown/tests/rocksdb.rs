//! A database that RocksDB has written, as files of the card: what requests find is what RocksDB has answered, and every table is read.

use std::sync::Arc;

use ob_nvme::initiator::block_on;
use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::client::{File, Session};
use ob_pushdown::kernel::MountedDirectory;
use ob_pushdown::rocksdb::{LookupCounts, Lookups, PushedFile};
use ob_rocksdb::{CacheOptions, Database, Files, LocalDirectory, Options, ReadError};
use ob_wire_nvme::NamespaceId;
use peer::golden::{folder, golden};
use peer::memory::MemoryFiles;
use peer::{Lookup, said};

use super::lab::remote::Remote;

#[path = "../../ob-rocksdb/tests/support/mod.rs"]
pub(crate) mod peer;

/// A card that has these tables.
pub(crate) fn card(files: &MemoryFiles) -> Remote {
    let tables = files.files.iter().filter(|(name, _)| name.ends_with(".sst"));
    Remote::start(tables.map(|(name, content)| (name.clone(), content.to_vec())).collect())
}

/// The directory here, whose files the card has by the same names.
pub(crate) struct Named<'a> {
    pub(crate) here: MemoryFiles,
    pub(crate) session: &'a Session<Remote>,
}

#[derive(Clone)]
pub(crate) struct NamedFile {
    here: <MemoryFiles as Files>::File,
    there: File,
}

impl PushedFile for NamedFile {
    fn pushed(&self) -> Option<&File> {
        Some(&self.there)
    }
}

impl Files for Named<'_> {
    type File = NamedFile;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.here.list().await
    }

    async fn open(&self, name: &str) -> Result<NamedFile, ReadError> {
        Ok(NamedFile { here: self.here.open(name).await?, there: self.session.named(name) })
    }

    async fn len(&self, file: &NamedFile) -> Result<u64, ReadError> {
        self.here.len(&file.here).await
    }

    async fn read(&self, file: &NamedFile, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        self.here.read(&file.here, offset, len).await
    }
}

/// Asks what RocksDB was asked, with these files on the card.
fn ask(here: &MemoryFiles, there: &MemoryFiles, answers: &[String], cache: CacheOptions) -> LookupCounts {
    block_on(async {
        let session = Session::begin(card(there), NamespaceId(1)).await.unwrap();
        let files = Named { here: here.clone(), session: &session };
        let options = Options { cache, sample_one_in: 0, ..Options::default() };
        let database = Database::open(files, options).await.unwrap();
        let lookups = Lookups::new(&session);
        for line in answers {
            let Some((Lookup { family, snapshot, key }, expected)) = Lookup::parse(line) else { continue };
            let (value, path) = lookups.get(&database, &family, &key, snapshot, None).await.unwrap();
            assert_eq!(said(value), expected, "{path:?}: {line}");
        }
        lookups.counts()
    })
}

pub(crate) const NO_CACHE: CacheOptions = CacheOptions { len_max: 0, pin_indexes: false };

#[test]
fn requests_find_what_rocksdb_has_answered() {
    let (files, answers) = golden("plain");
    for pin_indexes in [false, true] {
        let cache = CacheOptions { pin_indexes, ..NO_CACHE };
        let counts = ask(&files, &files, &answers, cache);
        assert!(counts.pushed > 150, "{counts:?}");
        assert!(counts.not_pushed < 30, "tables that were taken in later: {counts:?}");
    }
}

#[test]
fn a_damaged_block_is_not_believed() {
    let (files, answers) = golden("plain");
    let whole = ask(&files, &files, &answers, NO_CACHE);
    // Every byte of every data block is another one on the card: what it reads does not match its checksum.
    let mut damaged = files.clone();
    let tables: Vec<String> = files.files.keys().filter(|name| name.ends_with(".sst")).cloned().collect();
    for table in &tables {
        damaged = damaged.with(table, |bytes| {
            let len = bytes.len();
            // What stands at the end says what the table is; blocks of data are before it.
            bytes[..len / 3].iter_mut().for_each(|byte| *byte ^= 0x10);
        });
    }
    let counts = ask(&files, &damaged, &answers, NO_CACHE);
    assert!(counts.pushed < whole.pushed / 2, "{counts:?}, and {whole:?}");
}

/// Here no namespace is mounted, so nothing can be mapped; `cargo xtask kernel pushdown` has one.
#[test]
fn tables_of_a_directory_that_cannot_be_mapped_are_read_all_the_same() {
    let (there, answers) = golden("plain");
    let (path, keeper) = (folder("plain"), Arc::new(LeaseKeeper::start().unwrap()));
    block_on(async {
        let session = Session::begin(card(&there), NamespaceId(1)).await.unwrap();
        let files =
            || MountedDirectory::new(&path, &session, (NamespaceId(1), "none"), &System::default(), &keeper);
        let options = Options { cache: NO_CACHE, sample_one_in: 0, ..Options::default() };
        let database = Database::open(files(), options).await.unwrap();
        let lookups = Lookups::new(&session);
        for line in &answers {
            let Some((Lookup { family, snapshot, key }, expected)) = Lookup::parse(line) else { continue };
            let (value, path) = lookups.get(&database, &family, &key, snapshot, None).await.unwrap();
            assert_eq!(said(value), expected, "{path:?}: {line}");
        }
        let counts = lookups.counts();
        assert!(counts.pushed == 0 && counts.ordinary > counts.not_pushed + 100, "{counts:?}");
        agrees_with_local(&files(), &LocalDirectory::new(&path)).await;
    });
}

/// All that can be asked of a directory's files, of both.
async fn agrees_with_local<F: Files>(mounted: &F, local: &LocalDirectory)
where
    F::File: PushedFile,
{
    let mut names = mounted.list().await.unwrap();
    let mut expected = local.list().await.unwrap();
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    let mut tables = 0;
    for (name, len) in names {
        let (file, other) = (mounted.open(&name).await.unwrap(), local.open(&name).await.unwrap());
        assert_eq!(file.pushed().is_some(), name.ends_with(".sst"), "{name}");
        tables += usize::from(file.pushed().is_some());
        assert_eq!(mounted.len(&file).await, Ok(len));
        let past_end = [(len, 1), (0, len as usize + 1), (u64::MAX, 2), (0, 1 << 40)];
        for (offset, len) in past_end.into_iter().chain([(0, len as usize), (len / 2, (len / 3) as usize)]) {
            let (read, expected) =
                (mounted.read(&file, offset, len).await, local.read(&other, offset, len).await);
            assert_eq!(read.is_ok(), expected.is_ok(), "{name} {offset} {len}: {read:?}, {expected:?}");
            assert_eq!(read.ok(), expected.ok(), "{name} {offset} {len}");
        }
    }
    assert!(tables > 1);
    let missing = mounted.open("999999.sst").await.err();
    assert_eq!(missing, Some(ReadError::NotFound("999999.sst".to_owned())));
}
