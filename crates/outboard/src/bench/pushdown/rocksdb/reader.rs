//! Who reads the database, and in which way.

use ob_nvme::initiator::block_on;
use ob_pushdown::rocksdb::{LookupCounts, Lookups};
use ob_rocksdb::{CacheOptions, Database, Error, Files, LocalDirectory, Options, Scan, Sequence};

use super::records::key;
use super::shelf::Shelf;
use crate::bench::pushdown::link::Link;
use crate::bench::pushdown::polled::Polled;
use crate::bench::{BenchFailure, Case};

/// The column family that has everything.
const FAMILY: &str = "default";

/// How lookups go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By ordinary reads of the namespace.
    Reads,
    /// By requests.
    Pushed,
    /// By reads of files of this machine.
    Here,
}

impl Way {
    /// What a contender is called that goes this way, over a connection of this name.
    pub(super) fn name(self, question: &str, connection: &str) -> String {
        match self {
            Self::Reads => format!("{question}.reads{connection}"),
            Self::Pushed => format!("{question}.pushed{connection}"),
            Self::Here => format!("{question}.here"),
        }
    }
}

/// What a reader keeps of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    Nothing,
    Indexes,
    /// Indexes, and so many bytes of data.
    Data(usize),
}

impl Cached {
    fn options(self) -> Options {
        let (len_max, pin_indexes) = match self {
            Self::Nothing => (0, false),
            Self::Indexes => (0, true),
            Self::Data(len_max) => (len_max, true),
        };
        Options { cache: CacheOptions { len_max, pin_indexes }, ..Options::default() }
    }
}

/// A reader with a cache of its own.
pub(super) enum Reader<'run> {
    Reads(Database<&'run Shelf<'run>>),
    Pushed(Database<&'run Shelf<'run>>, Lookups<'run, &'run Polled>),
    Here(Database<LocalDirectory>),
}

/// Keys and values.
type Range = Vec<(Vec<u8>, Vec<u8>)>;

impl<'run> Reader<'run> {
    pub(super) fn open(
        way: Way,
        cached: Cached,
        link: &'run Link<'run>,
        shelf: &'run Shelf<'run>,
    ) -> Result<Self, BenchFailure> {
        let options = cached.options();
        let reader = match way {
            Way::Reads => Self::Reads(block_on(Database::open(shelf, options))?),
            Way::Pushed => {
                Self::Pushed(block_on(Database::open(shelf, options))?, Lookups::new(&link.session))
            }
            Way::Here => Self::Here(block_on(Database::open(shelf.directory().clone(), options))?),
        };
        reader.look_at_tables()?;
        Ok(reader)
    }

    /// The value of a key.
    pub(super) fn get(&self, number: u32) -> Result<Option<Vec<u8>>, BenchFailure> {
        let key = key(number);
        Ok(match self {
            Self::Reads(database) => block_on(database.get(FAMILY, &key, None, None))?,
            Self::Pushed(database, lookups) => block_on(lookups.get(database, FAMILY, &key, None, None))?.0,
            Self::Here(database) => block_on(database.get(FAMILY, &key, None, None))?,
        })
    }

    /// The same by ordinary reads whatever the way is, which fills the cache.
    pub(super) fn get_ordinary(&self, number: u32) -> Result<Option<Vec<u8>>, BenchFailure> {
        let key = key(number);
        Ok(match self {
            Self::Reads(database) | Self::Pushed(database, _) => {
                block_on(database.get(FAMILY, &key, None, None))?
            }
            Self::Here(database) => block_on(database.get(FAMILY, &key, None, None))?,
        })
    }

    /// So many keys from one on, with their values. Nobody has programs for this: it is the same in both ways.
    pub(super) fn scan(&self, from: u32, count: usize) -> Result<Range, BenchFailure> {
        let from = key(from);
        Ok(match self {
            Self::Reads(database) | Self::Pushed(database, _) => block_on(scan(database, &from, count))?,
            Self::Here(database) => block_on(scan(database, &from, count))?,
        })
    }

    /// Goes to where the writer is, and looks at new tables, as RocksDB does when it opens them.
    pub(super) fn catch_up(&self) -> Result<(), BenchFailure> {
        match self {
            Self::Reads(database) | Self::Pushed(database, _) => block_on(database.catch_up()).map(drop)?,
            Self::Here(database) => block_on(database.catch_up()).map(drop)?,
        }
        self.look_at_tables()
    }

    /// Says in a case who has answered since, in shares of all lookups, and how often it was asked in the ordinary way to learn.
    pub(super) fn tell_counts(&self, before: Option<LookupCounts>, case: &mut Case) {
        let Some((before, now)) = before.zip(self.counts()) else { return };
        let pushed = (now.pushed - before.pushed) as f64;
        let ordinary = (now.ordinary - before.ordinary) as f64;
        let memory = (now.from_memory - before.from_memory) as f64;
        let all = (pushed + ordinary + memory).max(1.0);
        case.extra.insert("pushed".to_owned(), pushed / all);
        case.extra.insert("from_memory".to_owned(), memory / all);
        case.extra.insert("not_pushed".to_owned(), (now.not_pushed - before.not_pushed) as f64 / all);
        case.extra.insert("sampled".to_owned(), (now.sampled - before.sampled) as f64 / all);
    }

    /// Who has answered how often, where the card could have been asked.
    pub(super) fn counts(&self) -> Option<LookupCounts> {
        match self {
            Self::Pushed(_, lookups) => Some(lookups.counts()),
            Self::Reads(_) | Self::Here(_) => None,
        }
    }

    /// Reads what is known once of a new table, and its index, which stays where indexes are kept.
    fn look_at_tables(&self) -> Result<(), BenchFailure> {
        match self {
            Self::Reads(database) | Self::Pushed(database, _) => block_on(look_at_tables(database))?,
            Self::Here(database) => block_on(look_at_tables(database))?,
        }
        Ok(())
    }
}

async fn scan<F: Files>(database: &Database<F>, from: &[u8], count: usize) -> Result<Range, Error> {
    let mut found = Vec::with_capacity(count);
    let mut iterator = database.iterate(FAMILY, Scan::default()).await?;
    iterator.seek(from).await?;
    while let Some((key, value)) = iterator.current() {
        found.push((key.to_vec(), value.to_vec()));
        if found.len() == count {
            break;
        }
        iterator.next().await?;
    }
    Ok(found)
}

async fn look_at_tables<F: Files>(database: &Database<F>) -> Result<(), Error> {
    let version = database.view().family(FAMILY)?;
    for file in version.levels().iter().flatten().filter(|file| file.table().is_none()) {
        database.reader().find(file, file.bounds.smallest(), Sequence::MAX).await?;
    }
    Ok(())
}
