//! A database that is read: opened once, followed as it changes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cache::{BlockCache, CacheOptions};
use crate::error::Error;
use crate::files::{Files, ReadError};
use crate::follow::{Bounds, Follower, Obstacle};
use crate::iterator::{Scan, VersionIterator};
use crate::keys::Sequence;
use crate::merge::MergeOperator;
use crate::reader::{Reader, TABLE_CUT};
use crate::version::View;

/// How a database is read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cache of blocks.
    pub cache: CacheOptions,
    /// Bytes that the content of write-ahead logs may take in memory, and each of their records.
    pub logs_len_max: usize,
    /// Bytes that tables and column families, as the manifest has them, may take in memory.
    pub manifest_len_max: usize,
    /// How often it is tried to follow a directory whose files vanish meanwhile.
    pub attempts_max: u32,
    /// One lookup in so many goes the ordinary way though it could be pushed down, so that the cache learns what is used (BPF-oF
    /// §5.2.2). At 0 none does.
    pub sample_one_in: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache: CacheOptions::default(),
            logs_len_max: 1 << 30,
            manifest_len_max: 1 << 30,
            attempts_max: 64,
            sample_one_in: 100,
        }
    }
}

/// A database. What it shows is what [`Database::catch_up`] found last; lookups and iterators keep what they began with.
pub struct Database<F: Files> {
    files: F,
    options: Options,
    cache: BlockCache,
    view: Mutex<Arc<View<F::File>>>,
    // Taken by whoever follows, for as long as it takes.
    follower: Mutex<Option<Follower<F::File>>>,
    lookups: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values are replaced as a whole, so one is sound whoever has panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the follower back, even if following was given up half-way.
struct Following<'a, F: Files> {
    database: &'a Database<F>,
    follower: Follower<F::File>,
}

impl<F: Files> Drop for Following<'_, F> {
    fn drop(&mut self) {
        *lock(&self.database.follower) = Some(std::mem::take(&mut self.follower));
    }
}

impl<F: Files> Database<F> {
    /// Opens a database: reads its manifest and its logs, and opens its tables.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn open(files: F, options: Options) -> Result<Self, Error> {
        let cache = BlockCache::new(options.cache);
        let view = View { families: std::collections::BTreeMap::new(), last_sequence: Sequence(0) };
        let database = Self {
            files,
            options,
            cache,
            view: Mutex::new(Arc::new(view)),
            follower: Mutex::new(Some(Follower::default())),
            lookups: AtomicU64::new(0),
        };
        database.catch_up().await?;
        Ok(database)
    }

    /// Goes to where the directory is now. If somebody else is at it already, nothing is done: what they find is shown.
    ///
    /// # Errors
    /// When it cannot be read. What was shown before is shown further.
    pub async fn catch_up(&self) -> Result<Arc<View<F::File>>, Error> {
        Ok(self.try_catch_up().await?.unwrap_or_else(|| self.view()))
    }

    /// The same; nothing if somebody else is at it.
    async fn try_catch_up(&self) -> Result<Option<Arc<View<F::File>>>, Error> {
        let Some(follower) = lock(&self.follower).take() else { return Ok(None) };
        let mut following = Following { database: self, follower };
        let Options { logs_len_max, manifest_len_max, .. } = self.options;
        let bounds = Bounds { logs_len_max, manifest_len_max };
        let mut attempts = 0;
        loop {
            attempts += 1;
            match following.follower.follow(&self.files, bounds).await {
                Ok(view) => {
                    let view = Arc::new(view);
                    *lock(&self.view) = view.clone();
                    following.follower.forget_tables(&self.cache);
                    return Ok(Some(view));
                }
                Err(Obstacle::Vanished(_)) if attempts < self.options.attempts_max => {}
                Err(Obstacle::Vanished(file)) => return Err(Error::Vanished { file, attempts }),
                Err(Obstacle::Failed(error)) => return Err(error),
            }
        }
    }

    /// What is shown now.
    #[must_use]
    pub fn view(&self) -> Arc<View<F::File>> {
        lock(&self.view).clone()
    }

    /// The cache of blocks.
    #[must_use]
    pub const fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// What plans and iterators read with.
    #[must_use]
    pub const fn reader(&self) -> Reader<'_, F> {
        Reader { files: &self.files, cache: &self.cache }
    }

    /// Whether the next lookup that could be pushed down should go the ordinary way, so that the cache learns from it.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        let count = self.lookups.fetch_add(1, Ordering::Relaxed);
        self.options.sample_one_in != 0 && count.is_multiple_of(self.options.sample_one_in)
    }

    /// The value of a key, by the ordinary way; with the newest snapshot if none is given. The operator is the one that the OPTIONS file
    /// names if none is given.
    ///
    /// # Errors
    /// When something cannot be read or merged.
    pub async fn get(
        &self,
        family: &str,
        key: &[u8],
        snapshot: Option<Sequence>,
        operator: Option<&Arc<dyn MergeOperator>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut attempts = 0;
        loop {
            let version = self.view().family(family)?;
            let plan = version.plan_get(&self.cache, key, snapshot.unwrap_or(Sequence::MAX))?;
            match plan.execute_ordinary(self.reader()).await {
                Ok(found) => return version.value(key, found, operator),
                Err(error) => self.follow_after(error, snapshot.is_some(), &mut attempts).await?,
            }
        }
    }

    /// After a lookup that has failed because a table was gone: goes to where the directory is now, so that it can be tried again. Files may
    /// not outlive their removal; what has replaced the table has the same keys, but maybe not their past, which an older snapshot sees.
    ///
    /// RocksDB may cut a table before it removes it. So one that is too short is as good as gone, if the directory as it is now does not need
    /// it; if it does, it is damaged.
    ///
    /// # Errors
    /// What it has failed with, if to try again would not help; or when it was tried too often.
    pub async fn follow_after(
        &self,
        error: Error,
        is_of_snapshot: bool,
        attempts: &mut u32,
    ) -> Result<(), Error> {
        let (file, is_cut) = match &error {
            Error::Read(ReadError::NotFound(file)) => (file.clone(), false),
            Error::Damaged { file, damage, .. } if *damage == TABLE_CUT => (file.clone(), true),
            _ => return Err(error),
        };
        *attempts += 1;
        let is_last = is_of_snapshot || *attempts >= self.options.attempts_max;
        if is_cut {
            match self.try_catch_up().await? {
                Some(view) if view.has_table(&file) => return Err(error),
                // Who is at it will tell whether the table is needed.
                None if is_last && self.view().has_table(&file) => return Err(error),
                _ => {}
            }
        }
        if is_last {
            return Err(Error::Vanished { file, attempts: *attempts });
        }
        if !is_cut {
            self.catch_up().await?;
        }
        Ok(())
    }

    /// An iterator over a column family as it is shown now.
    ///
    /// # Errors
    /// When a table of level 0 cannot be read.
    pub async fn iterate(&self, family: &str, scan: Scan) -> Result<VersionIterator<'_, F>, Error> {
        VersionIterator::new(self.reader(), self.view().family(family)?, scan).await
    }
}
