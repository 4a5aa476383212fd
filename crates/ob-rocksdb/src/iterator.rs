//! Iterators: all sources of a version at once, by key, forwards and backwards.
//!
//! Forwards, each source stands at its next entry; the smallest user's key is taken from all of them, and decided as a lookup would.
//! Backwards, the largest user's key before the last one is found first, and its entries are then read forwards, newest first: that
//! costs a second search a key and needs no second way of deciding.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::cursor::{LevelCursor, Source, TableCursor};
use crate::error::{Damage, Error};
use crate::files::Files;
use crate::keys::{Kind, Sequence};
use crate::lookup::{Entry, Finding, Found, Lookup};
use crate::merge::MergeOperator;
use crate::reader::{Reader, TableFile};
use crate::version::Version;

/// What an iterator shows.
#[derive(Clone, Default)]
pub struct Scan {
    /// What is visible; everything if nothing is said.
    pub snapshot: Option<Sequence>,
    /// The first key that may be shown.
    pub lower: Option<Vec<u8>>,
    /// The key before which the last one must be.
    pub upper: Option<Vec<u8>>,
    /// The merge operator; the one that the OPTIONS file names if nothing is said.
    pub operator: Option<Arc<dyn MergeOperator>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// Goes over the keys of a version.
pub struct VersionIterator<'a, F: Files> {
    reader: Reader<'a, F>,
    version: Arc<Version<F::File>>,
    snapshot: Sequence,
    scan: Scan,
    sources: Vec<Source<F::File>>,
    direction: Direction,
    current: Option<(Vec<u8>, Vec<u8>)>,
}

impl<'a, F: Files> VersionIterator<'a, F> {
    /// An iterator that is at no key yet.
    ///
    /// # Errors
    /// When a table of level 0 cannot be read.
    pub async fn new(
        reader: Reader<'a, F>,
        version: Arc<Version<F::File>>,
        scan: Scan,
    ) -> Result<Self, Error> {
        let mut sources = Vec::new();
        for chunk in version.memory().chunks() {
            sources.push(Source::Chunk { chunk: chunk.clone(), at: None });
        }
        for (level, files) in version.levels().iter().enumerate() {
            if level == 0 {
                for file in files {
                    sources.push(Source::Table(TableCursor::new(reader, file.clone()).await?));
                }
            } else if !files.is_empty() {
                sources.push(Source::Level(LevelCursor::new(files.clone())));
            }
        }
        let snapshot = scan.snapshot.unwrap_or(Sequence::MAX);
        Ok(Self { reader, version, snapshot, scan, sources, direction: Direction::Forward, current: None })
    }

    /// The key and value that it is at.
    #[must_use]
    pub fn current(&self) -> Option<(&[u8], &[u8])> {
        self.current.as_ref().map(|(key, value)| (&key[..], &value[..]))
    }

    /// Goes to the first key.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn seek_to_first(&mut self) -> Result<(), Error> {
        self.seek(&[]).await
    }

    /// Goes to the last key.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn seek_to_last(&mut self) -> Result<(), Error> {
        self.settle_backward(None).await
    }

    /// Goes to the first key that is not before `key`.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        let from = self.scan.lower.as_deref().map_or(key, |lower| lower.max(key)).to_vec();
        for source in &mut self.sources {
            source.seek(self.reader, &from).await?;
        }
        self.settle_forward().await
    }

    /// Goes to the last key that is not behind `key`.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn seek_for_prev(&mut self, key: &[u8]) -> Result<(), Error> {
        self.settle_backward(Some(successor(key))).await
    }

    /// Goes to the next key.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn next(&mut self) -> Result<(), Error> {
        let Some((key, _)) = self.current.take() else { return Ok(()) };
        match self.direction {
            Direction::Forward => self.settle_forward().await,
            Direction::Backward => self.seek(&successor(&key)).await,
        }
    }

    /// Goes to the key before.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn prev(&mut self) -> Result<(), Error> {
        let Some((key, _)) = self.current.take() else { return Ok(()) };
        self.settle_backward(Some(key)).await
    }

    /// All sources stand at or behind the place: goes on to the first key that has a value.
    async fn settle_forward(&mut self) -> Result<(), Error> {
        self.current = None;
        self.direction = Direction::Forward;
        loop {
            let mut smallest: Option<&[u8]> = None;
            for source in &self.sources {
                if let Some(user) = source.user()? {
                    smallest = Some(smallest.map_or(user, |smallest| smallest.min(user)));
                }
            }
            let Some(user) = smallest.map(<[u8]>::to_vec) else { return Ok(()) };
            if self.scan.upper.as_ref().is_some_and(|upper| user >= *upper) {
                return Ok(());
            }
            let entries = self.take_entries(&user).await?;
            if self.decide(user, entries).await? {
                return Ok(());
            }
        }
    }

    /// Goes to the last key before `bound` that has a value.
    async fn settle_backward(&mut self, bound: Option<Vec<u8>>) -> Result<(), Error> {
        self.current = None;
        self.direction = Direction::Backward;
        let mut bound = match (bound, self.scan.upper.clone()) {
            (Some(bound), Some(upper)) => Some(bound.min(upper)),
            (bound, upper) => bound.or(upper),
        };
        loop {
            let mut largest: Option<Vec<u8>> = None;
            for source in &mut self.sources {
                source.seek_before(self.reader, bound.as_deref()).await?;
                if let Some(user) = source.user()? {
                    // A search in keys that are out of order leads anywhere: back to where it began, too, without end.
                    if bound.as_deref().is_some_and(|bound| user >= bound) {
                        return Err(source.refused(Damage::Malformed("keys are out of order")));
                    }
                    largest = largest.max(Some(user.to_vec()));
                }
            }
            let Some(user) = largest else { return Ok(()) };
            if self.scan.lower.as_ref().is_some_and(|lower| user < *lower) {
                return Ok(());
            }
            for source in &mut self.sources {
                source.seek(self.reader, &user).await?;
            }
            let entries = self.take_entries(&user).await?;
            if self.decide(user.clone(), entries).await? {
                return Ok(());
            }
            bound = Some(user);
        }
    }

    /// The visible entries of a user's key, newest first; the sources stand behind them.
    async fn take_entries(&mut self, user: &[u8]) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        for source in &mut self.sources {
            while source.user()? == Some(user) {
                entries.extend(source.entry(self.snapshot)?);
                source.advance(self.reader).await?;
            }
        }
        entries.sort_by_key(|entry| Reverse(entry.sequence));
        Ok(entries)
    }

    /// Whether a user's key has a value; then the iterator is at it.
    async fn decide(&mut self, user: Vec<u8>, mut entries: Vec<Entry>) -> Result<bool, Error> {
        if entries.is_empty() {
            return Ok(false);
        }
        let covering = self.covering(&user).await?;
        for entry in &mut entries {
            let is_covered = covering.iter().any(|(sequence, file)| {
                let holds = |file: &Arc<TableFile<F::File>>| file.bounds.hold_for(&user, entry.sequence);
                *sequence > entry.sequence && file.as_ref().is_none_or(holds)
            });
            if is_covered {
                entry.kind = Kind::Deletion;
            }
        }
        let mut lookup = Lookup::default();
        let finding = Finding { entries, covering: Sequence(0) };
        lookup.absorb(&finding, true).map_err(|what| self.version.refused(what))?;
        let found = lookup.finish();
        if found == Found::Absent {
            return Ok(false);
        }
        let value = self.version.value(&user, found, self.scan.operator.as_ref())?;
        self.current = value.map(|value| (user, value));
        Ok(self.current.is_some())
    }

    /// The tombstones that span a user's key, each with its table, which bounds it.
    async fn covering(&self, user: &[u8]) -> Result<Vec<(Sequence, Option<Arc<TableFile<F::File>>>)>, Error> {
        let mut all = vec![(self.version.memory().covering(user, self.snapshot), None)];
        for level in 0..self.version.levels().len() {
            let files: Vec<_> = self.version.overlapping(level, user).cloned().collect();
            for file in files {
                let table = self.reader.table(&file).await?;
                let sequence = table.tombstones.covering(user, self.snapshot);
                if sequence > Sequence(0) {
                    all.push((sequence, Some(file)));
                }
            }
        }
        Ok(all)
    }
}

/// The first key behind a key.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    key.push(0);
    key
}
