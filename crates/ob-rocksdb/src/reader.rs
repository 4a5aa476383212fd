//! Reads tables and their blocks, through the cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::cache::{BlockCache, Class};
use crate::error::{Damage, Error};
use crate::files::{Files, ReadError};
use crate::footer::{self, FOOTER_LEN_MAX, Footer, Handle};
use crate::keys::Sequence;
use crate::lookup::Finding;
use crate::manifest::TableFacts;
use crate::properties;
use crate::table::{self, Probe, Table, TableError, extent, open_block, parse_metaindex, probe};
use crate::tombstones::Bounds;

/// A table is shorter than the manifest says.
pub(crate) const TABLE_CUT: Damage = Damage::Truncated("a table");

/// A table of a version: what the manifest says of it, and what was read of it.
#[derive(Debug)]
pub struct TableFile<H> {
    /// What the manifest says.
    pub facts: TableFacts,
    /// Its first and last key.
    pub bounds: Bounds,
    /// The file's name.
    pub name: String,
    /// The open file.
    pub file: H,
    table: OnceLock<Arc<Table>>,
    // What the cache knows its blocks by. Not its number: a database that is made anew begins to count again.
    id: u64,
    // Nothing of it is cached any more.
    is_forgotten: AtomicBool,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl<H> TableFile<H> {
    /// A table of which nothing has been read.
    ///
    /// # Errors
    /// When its first or last key is none.
    pub fn new(facts: TableFacts, name: String, file: H) -> Result<Self, Error> {
        let bounds =
            Bounds::new(&facts.smallest, &facts.largest).map_err(|error| Error::at(&name, 0, error))?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            facts,
            bounds,
            name,
            file,
            table: OnceLock::new(),
            id,
            is_forgotten: AtomicBool::new(false),
        })
    }

    /// What was read of it, if it has been used.
    #[must_use]
    pub fn table(&self) -> Option<&Arc<Table>> {
        self.table.get()
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// Has a cache forget its blocks, for good: views that still have the table read it past the cache.
    pub(crate) fn forget(&self, cache: &BlockCache) {
        self.is_forgotten.store(true, Ordering::Release);
        cache.forget(self.id);
    }

    fn keep(&self, cache: &BlockCache, offset: u64, class: Class, block: &Arc<Vec<u8>>) {
        if !self.is_forgotten.load(Ordering::Acquire) {
            cache.insert(self.id, offset, class, block);
        }
        // Whoever forgets it marks it first, and then takes the cache's lock: either this is seen here, or the block is seen there.
        if self.is_forgotten.load(Ordering::Acquire) {
            cache.forget(self.id);
        }
    }

    pub(crate) fn error(&self, error: TableError) -> Error {
        Error::at(&self.name, error.offset, error.error)
    }
}

/// Where files are, and where their blocks are kept.
#[derive(Debug)]
pub struct Reader<'a, F> {
    /// Where files are.
    pub files: &'a F,
    /// Where their blocks are kept.
    pub cache: &'a BlockCache,
}

impl<F> Clone for Reader<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Reader<'_, F> {}

impl<F: Files> Reader<'_, F> {
    /// What a table says of itself, read if nobody has used it yet.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn table(self, file: &TableFile<F::File>) -> Result<Arc<Table>, Error> {
        if let Some(table) = file.table.get() {
            return Ok(table.clone());
        }
        let table = Arc::new(self.load(file).await?);
        // Whoever else has read it meanwhile has read the same.
        Ok(file.table.get_or_init(|| table).clone())
    }

    async fn load(self, file: &TableFile<F::File>) -> Result<Table, Error> {
        let len = file.facts.len;
        let tail_len = usize::try_from(len).map_or(FOOTER_LEN_MAX, |len| len.min(FOOTER_LEN_MAX));
        let tail_at = len - tail_len as u64;
        let tail = self.read(file, tail_at, tail_len).await?;
        let footer = footer::parse(&tail, len).map_err(|error| Error::at(&file.name, tail_at, error))?;
        let failed = |handle: Handle| move |error| Error::at(&file.name, handle.offset, error);
        let metaindex = self.content(file, &footer, footer.metaindex, false).await?;
        let metaindex = parse_metaindex(metaindex).map_err(failed(footer.metaindex))?;
        let handle = metaindex.properties.ok_or(Damage::Malformed("a table has no properties"));
        let handle = handle.map_err(|damage| failed(footer.metaindex)(damage.into()))?;
        let raw = self.raw(file, handle).await?;
        let properties = properties::parse(&raw, handle, &footer).map_err(failed(handle))?;
        let tombstones = match metaindex.tombstones {
            Some(handle) => Some(self.content(file, &footer, handle, false).await?),
            None => None,
        };
        Table::new(footer, metaindex, properties, tombstones, file.facts.largest_sequence)
            .map_err(failed(footer.metaindex))
    }

    /// A block, from the cache or the file.
    pub(crate) async fn block(
        self,
        file: &TableFile<F::File>,
        table: &Table,
        handle: Handle,
        class: Class,
    ) -> Result<Arc<Vec<u8>>, Error> {
        if let Some(content) = self.cache.get(file.id, handle.offset, class) {
            return Ok(content);
        }
        self.fetch(file, table, handle, class).await
    }

    /// A block from the file, which the cache has from now on.
    async fn fetch(
        self,
        file: &TableFile<F::File>,
        table: &Table,
        handle: Handle,
        class: Class,
    ) -> Result<Arc<Vec<u8>>, Error> {
        let has_dictionary = table.has_dictionary && class == Class::Data;
        let content = Arc::new(self.content(file, &table.footer, handle, has_dictionary).await?);
        file.keep(self.cache, handle.offset, class, &content);
        Ok(content)
    }

    /// All that a table knows of a key, reading what is needed: what a step of a plan has to find out.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub async fn find(
        self,
        file: &TableFile<F::File>,
        user: &[u8],
        snapshot: Sequence,
    ) -> Result<Finding, Error> {
        let table = self.table(file).await?;
        // Kept apart from the cache, which may drop one block for the next.
        let mut held: Vec<(Handle, Arc<Vec<u8>>)> = Vec::new();
        loop {
            let step = {
                let mut at_hand = |handle: Handle, class: Class| {
                    if let Some((_, content)) = held.iter().find(|(held, _)| *held == handle) {
                        return Some(content.clone());
                    }
                    let content = self.cache.get(file.id, handle.offset, class)?;
                    held.push((handle, content.clone()));
                    Some(content)
                };
                probe(&table, &mut at_hand, user, snapshot, true).map_err(|error| file.error(error))?
            };
            match step {
                Probe::Done(finding) => return Ok(finding),
                Probe::Missing { block, class, .. } => {
                    let content = self.fetch(file, &table, block, class).await?;
                    held.push((block, content));
                }
            }
        }
    }

    async fn content(
        self,
        file: &TableFile<F::File>,
        footer: &Footer,
        handle: Handle,
        has_dictionary: bool,
    ) -> Result<Vec<u8>, Error> {
        let raw = self.raw(file, handle).await?;
        open_block(raw, handle, footer, has_dictionary)
            .map_err(|error| Error::at(&file.name, handle.offset, error))
    }

    async fn raw(self, file: &TableFile<F::File>, handle: Handle) -> Result<Vec<u8>, Error> {
        let len = extent(handle, file.facts.len)
            .map_err(|damage| Error::at(&file.name, handle.offset, damage.into()))?;
        self.read(file, handle.offset, len).await
    }

    async fn read(self, file: &TableFile<F::File>, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        match self.files.read(&file.file, offset, len).await {
            Ok(bytes) if bytes.len() == len => Ok(bytes),
            // The manifest knows how long the table is.
            Ok(_) | Err(ReadError::PastEnd { .. }) => Err(Error::at(&file.name, offset, TABLE_CUT.into())),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a table knows of a key without reading: all of it, or where to go on.
pub(crate) fn look<H>(
    file: &TableFile<H>,
    cache: &BlockCache,
    user: &[u8],
    snapshot: Sequence,
) -> Result<Option<(Probe, Sequence)>, Error> {
    let Some(table) = file.table() else { return Ok(None) };
    let mut at_hand = |handle: Handle, class: Class| cache.get(file.id, handle.offset, class);
    let probe =
        table::probe(table, &mut at_hand, user, snapshot, false).map_err(|error| file.error(error))?;
    Ok(Some((probe, table.tombstones.covering(user, snapshot))))
}
