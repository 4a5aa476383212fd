//! A cache of blocks, bounded in bytes; the least recently used goes first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A part of an index.
    Index,
    /// A filter, or the index of filters.
    Filter,
    /// Keys and values.
    Data,
}

/// How a cache is kept.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Bytes of blocks that it holds, beside those that are pinned.
    pub len_max: usize,
    /// Whether parts of indexes stay, as long as their tables do: then a lookup begins with data (BPF-oF §5.2.3).
    pub pin_indexes: bool,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { len_max: 64 << 20, pin_indexes: false }
    }
}

/// What happened to blocks of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// How often a block was there.
    pub hits: u64,
    /// How often it was not.
    pub misses: u64,
    /// How many blocks had to go.
    pub evictions: u64,
}

/// What a cache has done, and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Of indexes.
    pub index: ClassStats,
    /// Of filters.
    pub filter: ClassStats,
    /// Of data.
    pub data: ClassStats,
    /// Bytes of blocks that may go.
    pub len: usize,
    /// Bytes of blocks that stay.
    pub pinned_len: usize,
}

impl CacheStats {
    const fn class(&mut self, class: Class) -> &mut ClassStats {
        match class {
            Class::Index => &mut self.index,
            Class::Filter => &mut self.filter,
            Class::Data => &mut self.data,
        }
    }
}

// By table first, so that a table's blocks stand together. A table is known by a number that no other table in this process has.
type Key = (u64, u64);

#[derive(Debug)]
struct Cached {
    class: Class,
    block: Arc<Vec<u8>>,
    // Its place in the order of use; nothing if it is pinned.
    used: Option<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: HashMap<u64, HashMap<u64, Cached>>,
    by_use: BTreeMap<u64, Key>,
    clock: u64,
    stats: CacheStats,
}

/// Blocks as they are after decompression, by table and offset. Tables go by a number of this process, not by that of their file.
#[derive(Debug, Default)]
pub struct BlockCache {
    options: CacheOptions,
    inner: Mutex<Inner>,
}

impl BlockCache {
    /// An empty cache.
    #[must_use]
    pub fn new(options: CacheOptions) -> Self {
        Self { options, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing in here is half done when somebody panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block, if it is there.
    #[must_use]
    pub fn get(&self, table: u64, offset: u64, class: Class) -> Option<Arc<Vec<u8>>> {
        let inner = &mut *self.lock();
        let Some(cached) = inner.blocks.get_mut(&table).and_then(|blocks| blocks.get_mut(&offset)) else {
            inner.stats.class(class).misses += 1;
            return None;
        };
        inner.stats.class(class).hits += 1;
        if let Some(used) = &mut cached.used {
            inner.by_use.remove(used);
            inner.clock += 1;
            *used = inner.clock;
            inner.by_use.insert(inner.clock, (table, offset));
        }
        Some(cached.block.clone())
    }

    /// Keeps a block, and lets others go for it.
    pub fn insert(&self, table: u64, offset: u64, class: Class, block: &Arc<Vec<u8>>) {
        let inner = &mut *self.lock();
        inner.remove(table, offset);
        let is_pinned = class == Class::Index && self.options.pin_indexes;
        if !is_pinned && block.len() > self.options.len_max {
            return;
        }
        let used = if is_pinned {
            inner.stats.pinned_len += block.len();
            None
        } else {
            inner.clock += 1;
            inner.by_use.insert(inner.clock, (table, offset));
            inner.stats.len += block.len();
            Some(inner.clock)
        };
        inner.blocks.entry(table).or_default().insert(offset, Cached { class, block: block.clone(), used });
        while inner.stats.len > self.options.len_max
            && let Some((_, (table, offset))) =
                inner.by_use.first_key_value().map(|(used, key)| (*used, *key))
        {
            if let Some(class) = inner.remove(table, offset) {
                inner.stats.class(class).evictions += 1;
            }
        }
    }

    /// Forgets the blocks of a table that is gone.
    pub fn forget(&self, table: u64) {
        let inner = &mut *self.lock();
        let offsets: Vec<u64> =
            inner.blocks.get(&table).map(|blocks| blocks.keys().copied().collect()).unwrap_or_default();
        for offset in offsets {
            inner.remove(table, offset);
        }
    }

    /// What it has done, and holds.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.lock().stats
    }
}

impl Inner {
    fn remove(&mut self, table: u64, offset: u64) -> Option<Class> {
        let blocks = self.blocks.get_mut(&table)?;
        let cached = blocks.remove(&offset)?;
        if blocks.is_empty() {
            self.blocks.remove(&table);
        }
        match cached.used {
            Some(used) => {
                self.by_use.remove(&used);
                self.stats.len -= cached.block.len();
            }
            None => self.stats.pinned_len -= cached.block.len(),
        }
        Some(cached.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_goes_and_pins_stay() {
        let cache = BlockCache::new(CacheOptions { len_max: 100, pin_indexes: true });
        let block = |len: usize| Arc::new(vec![0; len]);
        cache.insert(1, 0, Class::Index, &block(500));
        cache.insert(1, 10, Class::Data, &block(40));
        cache.insert(1, 20, Class::Data, &block(40));
        assert!(cache.get(1, 10, Class::Data).is_some());
        cache.insert(2, 10, Class::Filter, &block(40));
        assert!(cache.get(1, 20, Class::Data).is_none(), "it was used least");
        assert!(cache.get(1, 10, Class::Data).is_some());
        assert!(cache.get(1, 0, Class::Index).is_some(), "it is pinned");
        cache.insert(3, 0, Class::Data, &block(101));
        assert!(cache.get(3, 0, Class::Data).is_none(), "too large to keep");
        let stats = cache.stats();
        assert_eq!((stats.len, stats.pinned_len), (80, 500));
        assert_eq!(stats.data, ClassStats { hits: 2, misses: 2, evictions: 1 });
        cache.forget(1);
        let stats = cache.stats();
        assert_eq!((stats.len, stats.pinned_len), (40, 0));
        // The same block twice counts once.
        cache.insert(2, 10, Class::Filter, &block(30));
        assert_eq!(cache.stats().len, 30);
    }
}
