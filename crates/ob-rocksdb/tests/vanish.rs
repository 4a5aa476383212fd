//! Files that vanish while a directory is followed, as they do when the writer compacts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use ob_rocksdb::{Database, Error, Files, Options, ReadError};

use crate::support::golden::{expected, golden};
use crate::support::memory::MemoryFiles;
use crate::support::{answered, block_on};

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
    opened.retain(|name| name != "CURRENT");
    let len = opened.len();
    opened.sort();
    opened.dedup();
    assert_eq!(opened.len(), len, "following costs nothing where nothing happens");
}
