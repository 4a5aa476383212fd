//! A RocksDB directory whose tables lie in the namespace.
//!
//! ```text
//!   RocksDB ─▶ directory of this machine ─┬─ CURRENT, MANIFEST, OPTIONS, logs ─▶ read there
//!                                         └─ *.sst ─▶ written to the namespace once, when it is opened first
//!                                                      ├─▶ ordinary NVMe reads
//!                                                      └─▶ a map, by which requests read it
//! ```
//!
//! A table never changes, so its map is current for as long as somebody has the table open. Then first the map goes, and then its
//! places are free.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ob_nvme::initiator::Payload;
use ob_pushdown::client::{File, FileMap, MapExtent, MapSource};
use ob_pushdown::rocksdb::PushedFile;
use ob_rocksdb::{Files, LocalDirectory, LocalFile, ReadError};

use super::places::{GRAIN, Places};
use crate::bench::pushdown::link::Link;
use crate::bench::pushdown::polled::NAMESPACE;

/// The directory, for all readers over one connection.
pub(super) struct Shelf<'run> {
    link: &'run Link<'run>,
    path: PathBuf,
    directory: LocalDirectory,
    places: Arc<Mutex<Places>>,
    tables: Mutex<HashMap<String, Weak<ShelvedTable>>>,
    identities: AtomicU64,
}

/// A table that lies in the namespace.
pub(super) struct ShelvedTable {
    name: String,
    map: Arc<TableMap>,
    file: File,
    places: Arc<Mutex<Places>>,
}

/// Where a table lies, until it does not.
struct TableMap {
    map: Arc<FileMap>,
    is_gone: AtomicBool,
}

/// An open file.
#[derive(Clone)]
pub(super) enum ShelfFile {
    /// Of the directory.
    Here(LocalFile),
    /// In the namespace.
    Table(Arc<ShelvedTable>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is half changed under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MapSource for TableMap {
    fn current(&self) -> Option<Arc<FileMap>> {
        (!self.is_gone.load(Ordering::Acquire)).then(|| Arc::clone(&self.map))
    }

    fn version(&self) -> Option<u64> {
        (!self.is_gone.load(Ordering::Acquire)).then_some(self.map.version)
    }
}

impl Drop for ShelvedTable {
    fn drop(&mut self) {
        // Whoever kept the file for requests is refused from now on.
        self.map.is_gone.store(true, Ordering::Release);
        let extents = self.map.map.extents.iter();
        let places: Vec<(u64, u64)> = extents.map(|extent| (extent.offset, extent.len)).collect();
        lock(&self.places).give_back(&places);
    }
}

impl PushedFile for ShelfFile {
    fn pushed(&self) -> Option<&File> {
        match self {
            Self::Here(_) => None,
            Self::Table(table) => Some(&table.file),
        }
    }
}

impl ShelvedTable {
    /// Where in the namespace bytes of it are: offsets and lengths; nothing if it ends before.
    fn find(&self, offset: u64, len: usize) -> Option<Vec<(u64, usize)>> {
        let (end, map) = (offset.checked_add(len as u64)?, &self.map.map);
        if end > map.len {
            return None;
        }
        let first = map.extents.partition_point(|extent| extent.at + extent.len <= offset);
        let touched = map.extents.get(first..)?.iter().take_while(|extent| extent.at < end);
        let part = |extent: &MapExtent| {
            let (from, to) = (offset.max(extent.at), end.min(extent.at + extent.len));
            (extent.offset + (from - extent.at), (to - from) as usize)
        };
        Some(touched.map(part).collect())
    }
}

impl<'run> Shelf<'run> {
    /// The tables of the directory at a path are put into a namespace of so many bytes.
    pub(super) fn new(link: &'run Link<'run>, path: PathBuf, len: u64) -> Self {
        Self {
            link,
            directory: LocalDirectory::new(&path),
            path,
            places: Arc::new(Mutex::new(Places::new(len))),
            tables: Mutex::default(),
            identities: AtomicU64::new(1),
        }
    }

    /// The directory alone.
    pub(super) fn directory(&self) -> &LocalDirectory {
        &self.directory
    }

    /// A table; written to the namespace if nobody has it open.
    fn table(&self, name: &str) -> Result<Arc<ShelvedTable>, ReadError> {
        if let Some(table) = lock(&self.tables).get(name).and_then(Weak::upgrade) {
            return Ok(table);
        }
        let refused = |reason: String| ReadError::Refused { file: name.to_owned(), reason };
        let mut bytes = std::fs::read(self.path.join(name)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ReadError::NotFound(name.to_owned()),
            _ => refused(error.to_string()),
        })?;
        let len = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(GRAIN as usize), 0);
        let bytes = Payload::from(bytes);
        let places = lock(&self.places).take(len);
        let places = places.ok_or_else(|| refused("the namespace has no room for it".to_owned()))?;
        let (mut extents, mut at) = (Vec::with_capacity(places.len()), 0);
        for (offset, piece) in places {
            // Whole blocks: what lies behind the end of the file in the last one nobody sees.
            extents.push(MapExtent { at, offset, len: piece });
            at += piece;
        }
        let identity = self.identities.fetch_add(1, Ordering::Relaxed);
        let map = FileMap { namespace: NAMESPACE, version: 1, identity, len, extents };
        let map = Arc::new(TableMap { map: Arc::new(map), is_gone: AtomicBool::new(false) });
        let file = self.link.session.mapped(Arc::clone(&map) as Arc<dyn MapSource>);
        // From here on its places are given back, whatever happens.
        let table =
            Arc::new(ShelvedTable { name: name.to_owned(), map, file, places: Arc::clone(&self.places) });
        for extent in &table.map.map.extents {
            let from = extent.at as usize;
            let part = bytes.part(from..from + extent.len as usize);
            self.link.polled.write(extent.offset, &part).map_err(|error| refused(error.to_string()))?;
        }
        let mut tables = lock(&self.tables);
        tables.retain(|_, table| table.strong_count() > 0);
        tables.insert(name.to_owned(), Arc::downgrade(&table));
        Ok(table)
    }
}

impl Files for &Shelf<'_> {
    type File = ShelfFile;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.directory.list().await
    }

    async fn open(&self, name: &str) -> Result<ShelfFile, ReadError> {
        if name.ends_with(".sst") {
            self.table(name).map(ShelfFile::Table)
        } else {
            self.directory.open(name).await.map(ShelfFile::Here)
        }
    }

    async fn len(&self, file: &ShelfFile) -> Result<u64, ReadError> {
        match file {
            ShelfFile::Here(file) => self.directory.len(file).await,
            ShelfFile::Table(table) => Ok(table.map.map.len),
        }
    }

    async fn read(&self, file: &ShelfFile, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let table = match file {
            ShelfFile::Here(file) => return self.directory.read(file, offset, len).await,
            ShelfFile::Table(table) => table,
        };
        let name = || table.name.clone();
        let end = offset.saturating_add(len as u64);
        let places = table.find(offset, len).ok_or_else(|| ReadError::PastEnd { file: name(), end })?;
        let refused = |reason: String| ReadError::Refused { file: name(), reason };
        self.link.polled.read(&places).map_err(|error| refused(error.to_string()))
    }
}
