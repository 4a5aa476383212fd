//! Files that vanish while a directory is followed, as they do when the writer compacts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use ob_rocksdb::{CacheOptions, Damage, Database, Error, Files, Options, ReadError, Sequence};

use crate::support::golden::{expected, golden};
use crate::support::memory::MemoryFiles;
use crate::support::{answered, block_on};

/// Files that are others from one moment to the next.
#[derive(Default)]
struct Replaced {
    files: Mutex<MemoryFiles>,
    /// Those that have no byte left, whoever has them open.
    cut: Mutex<BTreeSet<String>>,
}

impl Replaced {
    fn now(&self) -> MemoryFiles {
        self.files.lock().unwrap().clone()
    }

    fn replace(&self, files: &MemoryFiles) {
        *self.files.lock().unwrap() = files.clone();
    }
}

impl Files for Replaced {
    type File = <MemoryFiles as Files>::File;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.now().list().await
    }

    async fn open(&self, name: &str) -> Result<Self::File, ReadError> {
        self.now().open(name).await
    }

    async fn len(&self, file: &Self::File) -> Result<u64, ReadError> {
        self.now().len(file).await
    }

    async fn read(&self, file: &Self::File, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        if self.cut.lock().unwrap().contains(&file.0) {
            return Err(ReadError::PastEnd { file: file.0.clone(), end: offset + len as u64 });
        }
        self.now().read(file, offset, len).await
    }
}

fn check_all(database: &Database<Replaced>, answers: &[String], what: &str) {
    for line in answers {
        assert_eq!(answered(database, line).unwrap(), expected(line), "{what}");
    }
}

/// `plain` and `bloom` have a manifest and tables of the same names.
#[test]
fn a_database_that_is_made_anew_is_another_one() {
    let (plain, plain_answers) = golden("plain");
    let (bloom, bloom_answers) = golden("bloom");
    let options = Options {
        cache: CacheOptions { pin_indexes: true, ..CacheOptions::default() },
        ..Options::default()
    };
    let files = Replaced::default();
    files.replace(&plain);
    let database = block_on(Database::open(files, options)).unwrap();
    for round in 0..3 {
        database.reader().files.replace(&plain);
        block_on(database.catch_up()).unwrap();
        check_all(&database, &plain_answers, &format!("{round}"));
        let (old, pinned) = (database.view(), database.cache().stats().pinned_len);
        assert!(pinned > 0);
        database.reader().files.replace(&bloom);
        block_on(database.catch_up()).unwrap();
        assert_eq!(database.cache().stats().pinned_len, 0, "blocks of tables that are gone");
        // Who still reads the old one has the old one, and leaves nothing behind in the cache.
        for version in old.names().map(|name| old.family(name).unwrap()) {
            for table in version.levels().iter().flatten() {
                let key = table.facts.smallest.split_last_chunk::<8>().unwrap().0;
                block_on(database.reader().find(table, key, Sequence::MAX)).unwrap();
            }
        }
        let stats = database.cache().stats();
        assert_eq!((stats.len, stats.pinned_len), (0, 0), "nothing is kept for tables that are gone");
        check_all(&database, &bloom_answers, &format!("{round}"));
    }
}

/// Two databases in which nothing was flushed have the same manifest, and logs of the same number.
#[test]
fn a_database_is_known_by_its_identity() {
    let (bloom, answers) = golden("bloom");
    let named = |identity: &[u8]| {
        let mut files = bloom.clone();
        files.files.insert("IDENTITY".to_owned(), identity.to_vec().into());
        files
    };
    let files = Replaced::default();
    files.replace(&named(b"one"));
    let database = block_on(Database::open(files, Options::default())).unwrap();
    let sequence = database.view().last_sequence();
    let empty_log = named(b"another").with("000028.log", Vec::clear);
    database.reader().files.replace(&empty_log);
    block_on(database.catch_up()).unwrap();
    assert!(database.view().last_sequence() < sequence, "what the log of the other one had is not seen");
    database.reader().files.replace(&named(b"one"));
    block_on(database.catch_up()).unwrap();
    check_all(&database, &answers, "the first one again");
}

/// Files of which some are not there for a while.
struct Vanishing {
    files: MemoryFiles,
    prefix: &'static str,
    suffix: &'static str,
    times: AtomicU32,
    opened: Mutex<Vec<String>>,
}

impl Vanishing {
    fn new(files: MemoryFiles, prefix: &'static str, suffix: &'static str, times: u32) -> Self {
        Self { files, prefix, suffix, times: AtomicU32::new(times), opened: Mutex::default() }
    }
}

impl Files for Vanishing {
    type File = <MemoryFiles as Files>::File;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.files.list().await
    }

    async fn open(&self, name: &str) -> Result<Self::File, ReadError> {
        if name.starts_with(self.prefix) && name.ends_with(self.suffix) {
            let left =
                self.times.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if left.is_ok() {
                return Err(ReadError::NotFound(name.to_owned()));
            }
        }
        self.opened.lock().unwrap().push(name.to_owned());
        self.files.open(name).await
    }

    async fn len(&self, file: &Self::File) -> Result<u64, ReadError> {
        self.files.len(file).await
    }

    async fn read(&self, file: &Self::File, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        self.files.read(file, offset, len).await
    }
}

/// RocksDB's file manager cuts a table piece by piece before it removes it.
#[test]
fn a_table_that_is_cut_is_gone_or_damaged() {
    let (before, _) = golden("plain");
    let (after, answers) = golden("partitioned");
    let files = Replaced::default();
    files.replace(&before);
    let database = block_on(Database::open(files, Options::default())).unwrap();
    let old = database.view();
    let gone = before.files.keys().filter(|name| name.ends_with(".sst") && !after.files.contains_key(*name));
    *database.reader().files.cut.lock().unwrap() = gone.cloned().collect();
    let mut keys = Vec::new();
    for version in old.names().map(|name| old.family(name).unwrap()) {
        for table in version.levels().iter().flatten() {
            let key = table.facts.smallest.split_last_chunk::<8>().unwrap().0;
            keys.push((version.name().to_owned(), key.to_vec()));
        }
    }
    let get = |snapshot| {
        let all = keys.iter().map(|(family, key)| block_on(database.get(family, key, snapshot, None)));
        all.collect::<Result<Vec<_>, _>>()
    };
    let cut = Damage::Truncated("a table");
    for snapshot in [None, Some(old.last_sequence())] {
        let failed = get(snapshot).unwrap_err();
        assert!(
            matches!(&failed, Error::Damaged { damage, .. } if *damage == cut),
            "it is needed: {failed:?}"
        );
    }
    database.reader().files.replace(&after);
    let failed = get(Some(old.last_sequence())).unwrap_err();
    assert!(matches!(failed, Error::Vanished { .. }), "what the snapshot saw may be gone: {failed:?}");
    *database.reader().files.cut.lock().unwrap() = BTreeSet::new();
    check_all(&database, &answers, "it has been followed");
}

/// The same, of lookups that need no past.
#[test]
fn a_lookup_goes_on_where_a_cut_table_is_not_needed() {
    let (before, _) = golden("plain");
    let (after, answers) = golden("partitioned");
    let files = Replaced::default();
    files.replace(&before);
    let database = block_on(Database::open(files, Options::default())).unwrap();
    let gone = before.files.keys().filter(|name| name.ends_with(".sst") && !after.files.contains_key(*name));
    *database.reader().files.cut.lock().unwrap() = gone.cloned().collect();
    database.reader().files.replace(&after);
    let old = database.view();
    for version in old.names().map(|name| old.family(name).unwrap()) {
        for table in version.levels().iter().flatten() {
            let key = table.facts.smallest.split_last_chunk::<8>().unwrap().0;
            block_on(database.get(version.name(), key, None, None)).unwrap();
        }
    }
    assert!(!Arc::ptr_eq(&old, &database.view()), "a lookup had to follow");
    check_all(&database, &answers, "after it");
}

#[test]
fn it_is_tried_again_and_not_for_ever() {
    let (files, answers) = golden("bloom");
    for (prefix, suffix) in [("", ".sst"), ("", ".log"), ("MANIFEST", ""), ("CURRENT", ""), ("OPTIONS", "")] {
        let options = Options { attempts_max: 5, ..Options::default() };
        let vanishing = Vanishing::new(files.clone(), prefix, suffix, 3);
        let database = block_on(Database::open(vanishing, options.clone())).unwrap();
        for line in &answers {
            assert_eq!(answered(&database, line).unwrap(), expected(line), "{prefix}{suffix}");
        }
        let vanishing = Vanishing::new(files.clone(), prefix, suffix, 5);
        let failed = block_on(Database::open(vanishing, options)).err();
        assert!(matches!(failed, Some(Error::Vanished { attempts: 5, .. })), "{prefix}{suffix}: {failed:?}");
    }
}

#[test]
fn nothing_is_opened_twice() {
    let (files, _) = golden("bloom");
    let vanishing = Vanishing::new(files, "nothing", "", 0);
    let database = block_on(Database::open(vanishing, Options::default())).unwrap();
    for _ in 0..3 {
        block_on(database.catch_up()).unwrap();
    }
    let mut opened = database.reader().files.opened.lock().unwrap().clone();
    // By these it is seen that it is still the same database.
    opened.retain(|name| !["CURRENT", "IDENTITY", "MANIFEST-000005"].contains(&name.as_str()));
    let len = opened.len();
    opened.sort();
    opened.dedup();
    assert_eq!(opened.len(), len, "following costs nothing where nothing happens");
}
