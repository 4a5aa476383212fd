//! The table beside a model of what it promises, on tables so small that displacement, chains, eviction and floors all happen.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on fails.
#![cfg(not(loom))]

use std::collections::HashMap;
use std::sync::Arc;

use ob_table::{BATCH_MAX, Hit, Item, Key, Refused, Stamp, Table, TableConfig, TableWriter, WhenFull};
use proptest::prelude::*;

const KEYS: u8 = if cfg!(miri) { 12 } else { 40 };
const OPS_MAX: usize = if cfg!(miri) { 20 } else { 300 };

/// How long ago a stamp was given: 0 is one that is newer than all before.
type Age = u64;

#[derive(Clone, Debug)]
enum Op {
    Admit(u8, Age),
    Invalidate(u8, Age),
    InvalidateByWriter(u8, Age),
    Remove(u8),
    Displace(u8),
    Clear(Age),
}

fn op() -> impl Strategy<Value = Op> {
    let age = prop_oneof![2 => Just(0), 1 => 1u64..30];
    prop_oneof![
        40 => (0..KEYS, age.clone()).prop_map(|(key, age)| Op::Admit(key, age)),
        10 => (0..KEYS, age.clone()).prop_map(|(key, age)| Op::Invalidate(key, age)),
        15 => (0..KEYS, age.clone()).prop_map(|(key, age)| Op::InvalidateByWriter(key, age)),
        10 => (0..KEYS).prop_map(Op::Remove),
        10 => (0..KEYS).prop_map(Op::Displace),
        1 => age.prop_map(Op::Clear),
    ]
}

fn key(number: u8) -> Key {
    // Of many lengths, and some that differ in zeroes at the end only.
    let mut bytes = vec![number / 4; 1 + usize::from(number / 4) % 20];
    bytes.resize(bytes.len() + usize::from(number % 4), 0);
    Key::new(&bytes).unwrap()
}

/// An item that differs for each key and each admission.
fn item(number: u8, admission: u64) -> Item {
    let mut bytes = vec![number; usize::from(number) % 16];
    bytes.extend(admission.to_le_bytes());
    Item::new(&bytes).unwrap()
}

fn stamp(number: u64) -> Stamp {
    Stamp::new(number).unwrap()
}

/// What the table may answer for a key.
#[derive(Clone, Default)]
struct Known {
    /// The greatest stamp of an invalidation.
    invalidated: u64,
    /// The last admission that was not refused.
    admitted: Option<Hit>,
}

struct Beside {
    table: Arc<Table>,
    writer: TableWriter,
    when_full: WhenFull,
    known: HashMap<u8, Known>,
    newest: u64,
    admissions: u64,
}

impl Beside {
    fn new(buckets: u32, overflow: u32, when_full: WhenFull, seed: u64) -> Self {
        let config = TableConfig { buckets, overflow, when_full, seed: Some(seed) };
        let (table, writer) = Table::new(config).unwrap();
        Self { table, writer, when_full, known: HashMap::new(), newest: 0, admissions: 0 }
    }

    fn stamp(&mut self, age: Age) -> u64 {
        if age == 0 {
            self.newest += 1;
        }
        self.newest.saturating_sub(age)
    }

    fn found(&self) -> HashMap<u8, Hit> {
        (0..KEYS).filter_map(|number| Some((number, self.table.lookup(&key(number))?))).collect()
    }

    fn apply(&mut self, op: &Op) {
        let before = self.found();
        let counts = self.writer.counts();
        let mut touched = None;
        match *op {
            Op::Admit(number, age) => {
                touched = Some(number);
                self.admit(number, age);
            }
            Op::Invalidate(number, age) | Op::InvalidateByWriter(number, age) => {
                touched = Some(number);
                let at = self.stamp(age);
                match op {
                    Op::Invalidate(..) => self.table.invalidate(&key(number), stamp(at)),
                    _ => self.writer.invalidate(&key(number), stamp(at)),
                }
                let known = self.known.entry(number).or_default();
                known.invalidated = known.invalidated.max(at);
            }
            Op::Remove(number) => {
                touched = Some(number);
                let was_found = before.contains_key(&number);
                let was_there = self.writer.remove(&key(number));
                assert!(was_there || !was_found);
                assert_eq!(self.table.lookup(&key(number)), None, "removed");
                assert!(!self.writer.remove(&key(number)), "removed twice");
            }
            Op::Displace(number) => {
                self.writer.displace(&key(number));
            }
            Op::Clear(age) => {
                let at = self.stamp(age);
                self.writer.clear(stamp(at));
                for number in 0..KEYS {
                    let known = self.known.entry(number).or_default();
                    known.invalidated = known.invalidated.max(at);
                }
                assert_eq!(self.found(), HashMap::new());
                assert_eq!((self.writer.counts().entries, self.writer.counts().tombstones), (0, 0));
                return;
            }
        }
        self.check(&before, counts.evicted, touched);
    }

    fn admit(&mut self, number: u8, age: Age) {
        let at = self.stamp(age);
        self.admissions += 1;
        let item = item(number, self.admissions);
        let outcome = self.writer.admit(&key(number), &item, stamp(at));
        let hit = Hit { item, stamp: stamp(at) };
        match outcome {
            Ok(()) => {
                assert_eq!(self.table.lookup(&key(number)), Some(hit), "what was just admitted is found");
                self.known.entry(number).or_default().admitted = Some(hit);
            }
            // What is newer than everything is refused only where nothing may make room for it.
            Err(refused) if age == 0 => {
                assert_eq!((refused, self.when_full), (Refused::Full, WhenFull::Refuse));
            }
            Err(_) => {}
        }
    }

    /// No wrong hit; and nothing else is lost, but for what made room.
    fn check(&self, before: &HashMap<u8, Hit>, evicted_before: u64, touched: Option<u8>) {
        let found = self.found();
        for (number, hit) in &found {
            let known = &self.known[number];
            assert!(hit.stamp >= stamp(known.invalidated), "{hit:?} of {number} was invalidated");
            assert_eq!(Some(*hit), known.admitted, "a newer one was admitted");
        }
        let counts = self.writer.counts();
        let lost =
            before.keys().filter(|number| Some(**number) != touched && !found.contains_key(number)).count();
        let may_be_lost = match self.when_full {
            WhenFull::Refuse => 0,
            WhenFull::Evict => counts.evicted - evicted_before,
        };
        assert!(lost as u64 <= may_be_lost, "{lost} lost, {may_be_lost} evicted");
        assert_eq!(counts.entries, found.len() as u64);
        assert_eq!(counts.hardened, 0, "with one thread nobody is in the way");
    }

    fn check_batches(&self) {
        let keys: Vec<Key> = (0..KEYS).chain(0..KEYS).map(key).collect();
        let mut hits = vec![None; keys.len()];
        self.table.lookup_many(&keys, &mut hits);
        for (key, hit) in keys.iter().zip(&hits) {
            assert_eq!(*hit, self.table.lookup(key));
        }
        let found: Vec<Key> = self.found().keys().map(|number| key(*number)).collect();
        let mut hits = vec![None; found.len()];
        assert!(self.table.lookup_all_at_once(&found, &mut hits));
        assert!(found.iter().zip(&hits).all(|(key, hit)| *hit == self.table.lookup(key) && hit.is_some()));
        let absent = (0..KEYS).map(key).find(|key| self.table.lookup(key).is_none());
        if let Some(absent) = absent {
            let keys = [&found[..], &[absent]].concat();
            assert!(!self.table.lookup_all_at_once(&keys, &mut vec![None; keys.len()]));
        }
        assert!(!self.table.lookup_all_at_once(&vec![key(1); BATCH_MAX + 1], &mut [None; BATCH_MAX + 1]));
    }
}

proptest! {
    // Nothing is kept of failures, for planted bugs fail on purpose.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_keeps_to_the_model(
        half in 1u32..4,
        overflow in 0u32..4,
        evicts: bool,
        seed in 0u64..1000,
        ops in proptest::collection::vec(op(), 1..OPS_MAX),
    ) {
        let when_full = if evicts { WhenFull::Evict } else { WhenFull::Refuse };
        let mut beside = Beside::new(half * 2, overflow, when_full, seed);
        for op in &ops {
            beside.apply(op);
        }
        beside.check_batches();
    }
}

/// A long run, which must have come through every part.
#[test]
fn a_long_run_comes_through_every_part() {
    let mut state = 7u64;
    let mut random = move |below: u64| {
        // Xorshift: the run is the same each time.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let steps = if cfg!(miri) { 15 } else { 20_000 };
    for when_full in [WhenFull::Refuse, WhenFull::Evict] {
        let mut beside = Beside::new(4, 1, when_full, 3);
        let mut chained = 0;
        for _ in 0..steps {
            let number = random(u64::from(KEYS)) as u8;
            let age = if random(3) == 0 { random(30) } else { 0 };
            beside.apply(&match random(20) {
                0..12 => Op::Admit(number, age),
                12..14 => Op::Invalidate(number, age),
                14..16 => Op::InvalidateByWriter(number, age),
                16..18 => Op::Remove(number),
                _ => Op::Displace(number),
            });
            chained = chained.max(beside.writer.counts().chained);
        }
        let counts = beside.writer.counts();
        if !cfg!(miri) {
            assert!(counts.kicks > 0 && counts.evicted > 0 && chained > 0, "{counts:?}");
            assert!(counts.refused_stale > 0, "{counts:?}");
            assert!(counts.refused_full > 0, "{counts:?}");
        }
        beside.check_batches();
    }
}

/// What was cleared by its stamp alone leaves room for as much again, and its chains.
#[test]
fn what_was_cleared_is_in_nobodys_way() {
    let buckets = if cfg!(miri) { 4 } else { 64 };
    let config = TableConfig { buckets, overflow: buckets, when_full: WhenFull::Refuse, seed: Some(5) };
    let (table, mut writer) = Table::new(config).unwrap();
    let key = |number: u32| Key::new(&number.to_le_bytes()).unwrap();
    // More than there are slots outside of chains.
    let count = buckets * 6;
    for at in 1..=4 {
        let next = count * at as u32;
        for number in next - count..next {
            writer.admit(&key(number), &Item::new(b"item").unwrap(), stamp(at * 10)).unwrap();
        }
        let counts = writer.counts();
        assert_eq!((counts.entries, counts.tombstones, counts.evicted), (u64::from(count), 0, 0));
        writer.clear(stamp(at * 10 + 5));
        assert_eq!((writer.counts().entries, writer.counts().tombstones), (0, 0));
        assert!((0..next).all(|number| table.lookup(&key(number)).is_none()));
        assert!(writer.counts().chained > 0, "it takes no time");
        // An invalidation finds what is there no more, and is kept all the same.
        table.invalidate(&key(next - 1), stamp(at * 10 + 7));
        writer.invalidate(&key(next - 2), stamp(at * 10 + 7));
        assert_eq!((writer.counts().entries, writer.counts().tombstones), (0, 2));
        for number in [next - 1, next - 2] {
            let item = Item::new(b"old").unwrap();
            assert_eq!(writer.admit(&key(number), &item, stamp(at * 10 + 6)), Err(Refused::Stale));
            assert_eq!(writer.admit(&key(number), &item, stamp(at * 10 + 7)), Ok(()));
            assert!(writer.remove(&key(number)));
        }
    }
    // Each admission takes what was cleared out of one bucket more.
    for number in 0..buckets {
        writer.admit(&key(number), &Item::new(b"item").unwrap(), stamp(100)).unwrap();
        writer.remove(&key(number));
    }
    let counts = writer.counts();
    assert_eq!((counts.entries, counts.tombstones, counts.chained), (0, 0, 0));
}

#[test]
fn a_table_that_begins_anew_knows_of_no_stamps() {
    let (table, mut writer) = small(WhenFull::Refuse, 2);
    let (key, item) = (key(3), item(3, 1));
    writer.admit(&key, &item, stamp(70)).unwrap();
    table.invalidate(&key, stamp(90));
    writer.clear(stamp(80));
    assert_eq!(writer.admit(&key, &item, stamp(1)), Err(Refused::Stale));
    let mut anew = writer.anew().unwrap();
    let size = |table: &Table| (table.bytes(), table.slots(), table.buckets_of(&key));
    assert_eq!(size(anew.table()), size(&table));
    assert_eq!(anew.admit(&key, &item, stamp(1)), Ok(()));
    assert_eq!(anew.table().lookup(&key), Some(Hit { item, stamp: stamp(1) }));
    assert_eq!(table.lookup(&key), None, "who has the old one sees nothing of it");
}

fn small(when_full: WhenFull, overflow: u32) -> (Arc<Table>, TableWriter) {
    Table::new(TableConfig { buckets: 2, overflow, when_full, seed: Some(11) }).unwrap()
}

fn numbered(number: u32) -> Key {
    Key::new(&number.to_le_bytes()).unwrap()
}

#[test]
fn an_older_record_does_not_come_in_after_a_newer_one_was_evicted() {
    let (table, mut writer) = small(WhenFull::Evict, 0);
    let subject = numbered(0);
    writer.admit(&subject, &Item::EMPTY, stamp(5)).unwrap();
    // Ten newer ones fill the table, and the oldest makes room.
    for number in 1..=10 {
        writer.admit(&numbered(number), &Item::EMPTY, stamp(5 + u64::from(number))).unwrap();
    }
    assert_eq!((table.lookup(&subject), writer.counts().evicted), (None, 1));
    assert_eq!(writer.admit(&subject, &Item::EMPTY, stamp(4)), Err(Refused::Stale));
}

#[test]
fn an_invalidation_of_an_evicted_key_is_remembered() {
    let (table, mut writer) = small(WhenFull::Evict, 0);
    let subject = numbered(0);
    writer.admit(&subject, &Item::EMPTY, stamp(5)).unwrap();
    table.invalidate(&subject, stamp(7));
    // The tombstone is the first to go.
    for number in 1..=10 {
        writer.admit(&numbered(number), &Item::EMPTY, stamp(10 + u64::from(number))).unwrap();
    }
    assert_eq!((writer.counts().tombstones, writer.counts().entries), (0, 10));
    assert_eq!(writer.admit(&subject, &Item::EMPTY, stamp(6)), Err(Refused::Stale));
}

#[test]
fn an_older_invalidation_takes_nothing_back() {
    let (table, mut writer) = small(WhenFull::Evict, 0);
    let subject = numbered(0);
    table.invalidate(&subject, stamp(1));
    writer.admit(&subject, &Item::EMPTY, stamp(5)).unwrap();
    table.invalidate(&subject, stamp(5));
    table.invalidate(&subject, stamp(4));
    assert!(table.lookup(&subject).is_some(), "neither its own request nor an older one");
    table.invalidate(&subject, stamp(9));
    table.invalidate(&subject, stamp(6));
    assert_eq!(
        writer.admit(&subject, &Item::EMPTY, stamp(8)),
        Err(Refused::Stale),
        "9 is not forgotten for 6"
    );
    writer.admit(&subject, &Item::EMPTY, stamp(9)).unwrap();
    assert!(table.lookup(&subject).is_some());
}

#[test]
fn the_writers_invalidation_touches_no_other_key() {
    let (table, mut writer) = small(WhenFull::Evict, 0);
    writer.invalidate(&numbered(0), stamp(9));
    for number in 1..=5 {
        writer.admit(&numbered(number), &Item::EMPTY, stamp(1)).unwrap();
    }
    assert_eq!(writer.counts().tombstones, 1);
    assert_eq!(writer.admit(&numbered(0), &Item::EMPTY, stamp(8)), Err(Refused::Stale));
    assert!((1..=5).all(|number| table.lookup(&numbered(number)).is_some()));
}

/// The published prototype of DDS leaves a bucket busy for ever when it deletes through the second hash.
#[test]
fn removing_from_the_second_bucket_leaves_it_as_usable_as_before() {
    let (table, mut writer) = small(WhenFull::Refuse, 0);
    for round in 0..20 {
        let subject = numbered(round);
        writer.admit(&subject, &Item::EMPTY, stamp(1)).unwrap();
        assert!(writer.displace(&subject), "to its second bucket");
        assert!(table.lookup(&subject).is_some());
        assert!(writer.remove(&subject));
        assert_eq!(table.lookup(&subject), None);
        assert_eq!((writer.counts().entries, writer.counts().tombstones), (0, 0));
    }
    for number in 0..10 {
        writer.admit(&numbered(number), &Item::EMPTY, stamp(1)).unwrap();
    }
    assert!((0..10).all(|number| table.lookup(&numbered(number)).is_some()), "all ten slots");
    assert_eq!(writer.admit(&numbered(10), &Item::EMPTY, stamp(1)), Err(Refused::Full));
}

#[test]
fn chains_hold_what_displacement_cannot_place_and_come_back() {
    let (table, mut writer) = small(WhenFull::Refuse, 2);
    let all: Vec<Key> = (0..if cfg!(miri) { 25 } else { 100 }).map(numbered).collect();
    let admitted: Vec<&Key> =
        all.iter().filter(|key| writer.admit(key, &Item::EMPTY, stamp(1)).is_ok()).collect();
    assert_eq!((admitted.len(), writer.counts().chained), (20, 2), "two buckets, and two in chains");
    assert!(admitted.iter().all(|key| table.lookup(key).is_some()));
    assert!(admitted.iter().all(|key| writer.remove(key)));
    assert_eq!((writer.counts().chained, writer.counts().entries), (0, 0));
    let again = all.iter().filter(|key| writer.admit(key, &Item::EMPTY, stamp(1)).is_ok()).count();
    assert_eq!((again, writer.counts().chained), (20, 2), "the same room as before");
}

#[test]
fn a_large_table_takes_nearly_as_many_as_it_has_slots() {
    let buckets = if cfg!(miri) { 8 } else { 20_000 };
    let config = TableConfig { buckets, overflow: 0, when_full: WhenFull::Refuse, seed: Some(5) };
    let (table, mut writer) = Table::new(config).unwrap();
    let slots = buckets * 5;
    let mut admitted = Vec::new();
    for number in 0..slots {
        let item = Item::new(&number.to_le_bytes()).unwrap();
        match writer.admit(&numbered(number), &item, stamp(1)) {
            Ok(()) => admitted.push(number),
            Err(refused) => {
                assert!(cfg!(miri) || number > slots / 100 * 85, "{refused} after {number}");
            }
        }
    }
    assert!(cfg!(miri) || admitted.len() as u32 > slots / 100 * 97, "{} of {slots}", admitted.len());
    for number in &admitted {
        assert_eq!(table.lookup(&numbered(*number)).unwrap().item.bytes(), number.to_le_bytes());
    }
    assert_eq!(writer.counts().entries, admitted.len() as u64);
    assert_eq!(table.lookup(&numbered(slots)), None);
}
