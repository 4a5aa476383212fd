//! The table, and the maps that it is measured against.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use ob_table::{Hit, Item, Key, Stamp, Table, TableConfig, TableWriter};

use super::BenchFailure;
use super::load::BATCH;

/// A key, as every map gets it.
pub(super) type KeyBytes = [u8; 16];

type ItemBytes = [u8; 24];

/// How full the card's table is when it is filled: it takes more, but then it displaces for each of them.
const FILL_PERCENT: u64 = 85;

/// A map that can be measured.
pub(super) trait Contender: Sync + Sized {
    /// What it is called in the names of cases.
    const NAME: &'static str;

    /// With items for the keys of all numbers below `items`.
    fn filled(items: u64) -> Result<Self, BenchFailure>;

    /// The number in a key's item.
    fn lookup(&self, key: &KeyBytes) -> Option<u64>;

    /// How many of the keys are there.
    fn lookup_batch(&self, keys: &[KeyBytes; BATCH]) -> usize;

    /// What replaces the item of a number's key. One thread has it at a time.
    fn updater(&self) -> Box<dyn FnMut(u64) + '_>;
}

/// The key of a number: hashes must not find an order in keys.
pub(super) fn key_of(number: u64) -> KeyBytes {
    let mixed = mix(number);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mixed.to_le_bytes());
    bytes[8..].copy_from_slice(&mix(mixed).to_le_bytes());
    bytes
}

/// SplitMix64's last step.
pub(in crate::bench) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn item_of(number: u64, version: u64) -> ItemBytes {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn number_in(item: &[u8]) -> Option<u64> {
    item.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The card's table.
pub(super) struct CardTable {
    table: Arc<Table>,
    writer: Mutex<TableWriter>,
    /// The last stamp that was given.
    stamp: AtomicU64,
}

impl Contender for CardTable {
    const NAME: &'static str = "table";

    fn filled(items: u64) -> Result<Self, BenchFailure> {
        let buckets = u32::try_from((items * 100 / FILL_PERCENT / 5 + 2).next_multiple_of(2))?;
        let config = TableConfig { buckets, overflow: buckets / 64, ..TableConfig::with_memory_max(0) };
        let (table, mut writer) = Table::new(config)?;
        for number in 0..items {
            writer.admit(&Key::new(&key_of(number))?, &Item::new(&item_of(number, 0))?, Stamp::ZERO)?;
        }
        Ok(Self { table, writer: Mutex::new(writer), stamp: AtomicU64::new(0) })
    }

    #[inline]
    fn lookup(&self, key: &KeyBytes) -> Option<u64> {
        let hit: Hit = self.table.lookup(&Key::new(key).ok()?)?;
        number_in(hit.item.bytes())
    }

    #[inline]
    fn lookup_batch(&self, keys: &[KeyBytes; BATCH]) -> usize {
        let Ok(first) = Key::new(&keys[0]) else { return 0 };
        let keys = keys.each_ref().map(|key| Key::new(key).unwrap_or(first));
        let mut hits = [None; BATCH];
        self.table.lookup_many(&keys, &mut hits);
        hits.iter().flatten().filter(|hit| number_in(hit.item.bytes()).is_some()).count()
    }

    fn updater(&self) -> Box<dyn FnMut(u64) + '_> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(move |number| {
            let version = self.stamp.fetch_add(1, Ordering::Relaxed) + 1;
            // As a request does: it is invalidated on its way to the host, and admitted when its record is written.
            let key = Key::new(&key_of(number));
            let item = Item::new(&item_of(number, version));
            if let (Ok(key), Ok(item), Ok(stamp)) = (key, item, Stamp::new(version)) {
                self.table.invalidate(&key, stamp);
                let _ = writer.admit(&key, &item, stamp);
            }
        })
    }
}

/// A map cut into parts with a lock each.
pub(super) struct Sharded(DashMap<KeyBytes, ItemBytes, RandomState>);

impl Contender for Sharded {
    const NAME: &'static str = "dashmap";

    fn filled(items: u64) -> Result<Self, BenchFailure> {
        let map = DashMap::with_capacity_and_hasher(usize::try_from(items)?, RandomState::default());
        for number in 0..items {
            map.insert(key_of(number), item_of(number, 0));
        }
        Ok(Self(map))
    }

    #[inline]
    fn lookup(&self, key: &KeyBytes) -> Option<u64> {
        number_in(self.0.get(key)?.value())
    }

    #[inline]
    fn lookup_batch(&self, keys: &[KeyBytes; BATCH]) -> usize {
        keys.iter().filter(|key| self.lookup(key).is_some()).count()
    }

    fn updater(&self) -> Box<dyn FnMut(u64) + '_> {
        let mut version = 0;
        Box::new(move |number| {
            version += 1;
            self.0.insert(key_of(number), item_of(number, version));
        })
    }
}

/// A map without locks, whose entries are freed when no guard is left.
pub(super) struct Concurrent(papaya::HashMap<KeyBytes, ItemBytes, RandomState>);

impl Contender for Concurrent {
    const NAME: &'static str = "papaya";

    fn filled(items: u64) -> Result<Self, BenchFailure> {
        let map = papaya::HashMap::with_capacity_and_hasher(usize::try_from(items)?, RandomState::default());
        let guarded = map.pin();
        for number in 0..items {
            guarded.insert(key_of(number), item_of(number, 0));
        }
        drop(guarded);
        Ok(Self(map))
    }

    #[inline]
    fn lookup(&self, key: &KeyBytes) -> Option<u64> {
        number_in(self.0.pin().get(key)?)
    }

    #[inline]
    fn lookup_batch(&self, keys: &[KeyBytes; BATCH]) -> usize {
        let guarded = self.0.pin();
        keys.iter().filter(|key| guarded.get(*key).is_some_and(|item| number_in(item).is_some())).count()
    }

    fn updater(&self) -> Box<dyn FnMut(u64) + '_> {
        let mut version = 0;
        Box::new(move |number| {
            version += 1;
            self.0.pin().insert(key_of(number), item_of(number, version));
        })
    }
}

/// The standard library's map behind its lock.
pub(super) struct Locked(RwLock<HashMap<KeyBytes, ItemBytes, RandomState>>);

impl Contender for Locked {
    const NAME: &'static str = "rwlock";

    fn filled(items: u64) -> Result<Self, BenchFailure> {
        let mut map = HashMap::with_capacity_and_hasher(usize::try_from(items)?, RandomState::default());
        map.extend((0..items).map(|number| (key_of(number), item_of(number, 0))));
        Ok(Self(RwLock::new(map)))
    }

    #[inline]
    fn lookup(&self, key: &KeyBytes) -> Option<u64> {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        number_in(map.get(key)?)
    }

    #[inline]
    fn lookup_batch(&self, keys: &[KeyBytes; BATCH]) -> usize {
        let map = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().filter(|key| map.get(*key).is_some_and(|item| number_in(item).is_some())).count()
    }

    fn updater(&self) -> Box<dyn FnMut(u64) + '_> {
        let mut version = 0;
        Box::new(move |number| {
            version += 1;
            let mut map = self.0.write().unwrap_or_else(PoisonError::into_inner);
            map.insert(key_of(number), item_of(number, version));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaves<C: Contender>() {
        let contender = C::filled(1000).unwrap();
        assert!((0..1000).all(|number| contender.lookup(&key_of(number)) == Some(number)), "{}", C::NAME);
        assert_eq!(contender.lookup(&key_of(1000)), None);
        let keys: [KeyBytes; BATCH] = std::array::from_fn(|place| key_of(992 + place as u64));
        assert_eq!(contender.lookup_batch(&keys), 8, "{}", C::NAME);
        let mut update = contender.updater();
        (0..2000).for_each(|number| update(number % 1000));
        drop(update);
        assert!((0..1000).all(|number| contender.lookup(&key_of(number)) == Some(number)), "{}", C::NAME);
    }

    #[test]
    fn all_contenders_hold_what_they_are_given() {
        behaves::<CardTable>();
        behaves::<Sharded>();
        behaves::<Concurrent>();
        behaves::<Locked>();
    }
}
