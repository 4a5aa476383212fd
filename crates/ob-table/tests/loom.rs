//! Every interleaving of small scenes, under loom: `cargo xtask loom`.
//!
//! The table is the real one with two buckets of one slot, so that a key's two buckets are all there are, and keys and items of
//! one word.

#![cfg(loom)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use ob_table::{Hit, Item, Key, Stamp, Table, TableConfig, TableWriter, WhenFull};

fn stamp(number: u64) -> Stamp {
    Stamp::new(number).unwrap()
}

/// An item that tells which key and stamp it belongs to.
fn item(key: &Key, number: u64) -> Item {
    let mut bytes = [0; 8];
    bytes[..key.bytes().len()].copy_from_slice(key.bytes());
    bytes[7] = number as u8;
    Item::new(&bytes).unwrap()
}

fn table(overflow: u32) -> (Arc<Table>, TableWriter) {
    let config = TableConfig { buckets: 2, overflow, when_full: WhenFull::Evict, seed: Some(1) };
    Table::new(config).unwrap()
}

/// The `nth` key with this primary bucket.
fn key(table: &Table, primary: u32, nth: usize) -> Key {
    let all = (0..=255u8).map(|byte| Key::new(&[byte]).unwrap());
    all.filter(|key| table.buckets_of(key)[0] == primary).nth(nth).unwrap()
}

fn admit(writer: &mut TableWriter, key: &Key, number: u64) -> bool {
    writer.admit(key, &item(key, number), stamp(number)).is_ok()
}

/// Looks a key up after an invalidation with this stamp was complete.
fn check(table: &Table, key: &Key, invalidated: u64) {
    if let Some(hit) = table.lookup(key) {
        assert!(hit.stamp >= stamp(invalidated), "{hit:?} was invalidated with {invalidated}");
        assert_eq!(hit.item, item(key, hit.stamp.number()), "torn");
    }
}

/// Scenes of three threads, and those in which one thread does much, have so many more interleavings that they get one
/// preemption less.
fn model_of_much(scene: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.saturating_sub(1).max(1));
    builder.check(scene);
}

/// One thread writes, another invalidates `key` with stamp 2; nothing older is found afterwards.
fn invalidated_while(
    overflow: u32,
    prepare: impl Fn(&mut TableWriter, &Key) + Send + Sync + 'static,
    write: impl Fn(&mut TableWriter, &Key) + Copy + Send + Sync + 'static,
) {
    loom::model(move || invalidate_beside(overflow, &prepare, write));
}

fn invalidate_beside(
    overflow: u32,
    prepare: impl Fn(&mut TableWriter, &Key),
    write: impl Fn(&mut TableWriter, &Key) + Copy + Send + Sync + 'static,
) {
    let (table, mut writer) = table(overflow);
    let subject = key(&table, 0, 0);
    prepare(&mut writer, &subject);
    let thread = thread::spawn(move || {
        write(&mut writer, &subject);
        writer
    });
    table.invalidate(&subject, stamp(2));
    check(&table, &subject, 2);
    let mut writer = thread.join().unwrap();
    check(&table, &subject, 2);
    admit(&mut writer, &subject, 1);
    check(&table, &subject, 2);
}

#[test]
fn an_invalidation_beats_an_admission() {
    invalidated_while(
        0,
        |_, _| {},
        |writer, key| {
            admit(writer, key, 1);
        },
    );
}

#[test]
fn an_invalidation_beats_an_admission_over_an_older_entry() {
    let prepare = |writer: &mut TableWriter, key: &Key| assert!(admit(writer, key, 0));
    invalidated_while(0, prepare, |writer, key| {
        admit(writer, key, 1);
    });
}

#[test]
fn a_newer_admission_beats_an_invalidation() {
    loom::model(|| {
        let (table, mut writer) = table(0);
        let subject = key(&table, 0, 0);
        let thread = thread::spawn(move || assert!(admit(&mut writer, &subject, 3)));
        table.invalidate(&subject, stamp(2));
        thread.join().unwrap();
        assert_eq!(table.lookup(&subject), Some(Hit { item: item(&subject, 3), stamp: stamp(3) }));
    });
}

#[test]
fn an_invalidation_follows_a_displaced_entry() {
    let prepare = |writer: &mut TableWriter, key: &Key| assert!(admit(writer, key, 1));
    invalidated_while(0, prepare, |writer, key| assert!(writer.displace(key)));
}

#[test]
fn an_invalidation_follows_an_entry_to_the_first_bucket() {
    let prepare =
        |writer: &mut TableWriter, key: &Key| assert!(admit(writer, key, 1) && writer.displace(key));
    invalidated_while(0, prepare, |writer, key| assert!(writer.displace(key)));
}

/// A preparation for an invalidator that gives up before it has looked.
fn gives_up(is_in_second_bucket: bool) -> impl Fn(&mut TableWriter, &Key) + Copy + Send + Sync + 'static {
    move |writer: &mut TableWriter, key: &Key| {
        assert!(admit(writer, key, 1));
        assert!(!is_in_second_bucket || writer.displace(key));
        writer.table().give_up_at_once();
    }
}

#[test]
fn an_invalidation_that_gives_up_stops_a_move() {
    for is_in_second_bucket in [false, true] {
        invalidated_while(0, gives_up(is_in_second_bucket), |writer, key| assert!(writer.displace(key)));
    }
}

#[test]
fn an_invalidation_that_gives_up_stops_two_moves() {
    for is_in_second_bucket in [false, true] {
        let move_twice = |writer: &mut TableWriter, key: &Key| {
            writer.displace(key);
            writer.displace(key);
        };
        model_of_much(move || invalidate_beside(0, gives_up(is_in_second_bucket), move_twice));
    }
}

#[test]
fn a_floor_that_is_settled_between_two_moves_has_stopped_them() {
    for is_in_second_bucket in [false, true] {
        let settle_between_moves = |writer: &mut TableWriter, key: &Key| {
            writer.displace(key);
            // Any key settles the floors of its buckets, and here they are those of all keys.
            let other = self::key(writer.table(), 0, 1);
            writer.remove(&other);
            writer.displace(key);
        };
        model_of_much(move || invalidate_beside(0, gives_up(is_in_second_bucket), settle_between_moves));
    }
}

#[test]
fn an_invalidation_that_gives_up_beats_an_admission() {
    loom::model(|| {
        let (table, mut writer) = table(0);
        table.give_up_at_once();
        let subject = key(&table, 0, 0);
        let thread = thread::spawn(move || admit(&mut writer, &subject, 1));
        table.invalidate(&subject, stamp(2));
        check(&table, &subject, 2);
        thread.join().unwrap();
        check(&table, &subject, 2);
        assert_eq!(table.hardened(), 1);
    });
}

#[test]
fn an_invalidation_outlives_an_eviction() {
    let prepare = |writer: &mut TableWriter, key: &Key| assert!(admit(writer, key, 1));
    invalidated_while(0, prepare, |writer, key| {
        writer.remove(key);
    });
}

#[test]
fn an_invalidation_between_an_eviction_and_an_admission_is_not_lost() {
    let prepare = |writer: &mut TableWriter, key: &Key| assert!(admit(writer, key, 1));
    invalidated_while(0, prepare, |writer, key| {
        writer.remove(key);
        admit(writer, key, 1);
    });
}

/// Fills both buckets with other keys.
fn fill(writer: &mut TableWriter) {
    for bucket in 0..2 {
        let filler = key(writer.table(), bucket, 1);
        assert!(admit(writer, &filler, 1));
    }
}

#[test]
fn an_invalidation_sees_an_entry_in_a_new_chain() {
    let prepare = |writer: &mut TableWriter, _: &Key| fill(writer);
    invalidated_while(1, prepare, |writer, key| {
        admit(writer, key, 1);
    });
}

#[test]
fn an_invalidation_outlives_a_chain() {
    let prepare = |writer: &mut TableWriter, key: &Key| {
        fill(writer);
        assert!(admit(writer, key, 1));
        assert_eq!(writer.counts().chained, 1);
    };
    invalidated_while(1, prepare, |writer, key| {
        writer.remove(key);
        assert_eq!(writer.counts().chained, 0);
    });
}

#[test]
fn two_invalidations_and_an_admission_between_them() {
    model_of_much(|| {
        let (table, mut writer) = table(0);
        let subject = key(&table, 0, 0);
        let older = {
            let table = Arc::clone(&table);
            thread::spawn(move || table.invalidate(&subject, stamp(1)))
        };
        let thread = thread::spawn(move || admit(&mut writer, &subject, 2));
        table.invalidate(&subject, stamp(3));
        check(&table, &subject, 3);
        thread.join().unwrap();
        older.join().unwrap();
        check(&table, &subject, 3);
    });
}

#[test]
fn a_reader_on_a_third_thread_finds_nothing_that_was_invalidated() {
    model_of_much(|| {
        let (table, mut writer) = table(0);
        let subject = key(&table, 0, 0);
        assert!(admit(&mut writer, &subject, 1));
        let is_done = Arc::new(AtomicBool::new(false));
        let reader = {
            let (table, is_done) = (Arc::clone(&table), Arc::clone(&is_done));
            thread::spawn(move || {
                let invalidated = if is_done.load(Ordering::Acquire) { 2 } else { 0 };
                check(&table, &subject, invalidated);
            })
        };
        let thread = thread::spawn(move || writer.displace(&subject));
        table.invalidate(&subject, stamp(2));
        is_done.store(true, Ordering::Release);
        thread.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_finds_nothing_that_was_cleared() {
    model_of_much(|| {
        let (table, mut writer) = table(0);
        let (subject, other) = (key(&table, 0, 0), key(&table, 0, 1));
        assert!(admit(&mut writer, &subject, 1));
        let is_done = Arc::new(AtomicBool::new(false));
        let thread = {
            let is_done = Arc::clone(&is_done);
            thread::spawn(move || {
                writer.clear(stamp(2));
                is_done.store(true, Ordering::Release);
                // Whose slot the other one takes.
                assert!(admit(&mut writer, &other, 3));
                assert!(admit(&mut writer, &subject, 3));
            })
        };
        let invalidated = if is_done.load(Ordering::Acquire) { 2 } else { 0 };
        check(&table, &subject, invalidated);
        thread.join().unwrap();
        check(&table, &subject, 3);
    });
}

#[test]
fn an_invalidation_of_what_was_cleared_is_not_lost() {
    invalidated_while(
        0,
        |writer, subject| {
            assert!(admit(writer, subject, 0));
        },
        |writer, subject| {
            writer.clear(stamp(1));
            let _ = admit(writer, subject, 1);
        },
    );
}

#[test]
fn a_clearing_takes_all_keys_at_one_instant() {
    model_of_much(|| {
        let (table, mut writer) = table(0);
        // Admissions take out what was cleared from the first bucket on: the second keeps its entry for a while.
        let both = [key(&table, 1, 0), key(&table, 0, 0)];
        for key in &both {
            assert!(admit(&mut writer, key, 1));
        }
        let thread = {
            thread::spawn(move || {
                writer.clear(stamp(2));
                // The one that is looked up last, when the other was found already.
                assert!(admit(&mut writer, &both[1], 2));
            })
        };
        let mut hits = [None; 2];
        if table.lookup_all_at_once(&both, &mut hits) {
            assert_eq!(hits.map(|hit| hit.map(|hit| hit.stamp)), [Some(stamp(1)); 2]);
        }
        thread.join().unwrap();
    });
}

/// A reader beside a writer never sees a mixture.
fn read_while(write: impl Fn(&mut TableWriter, &Key, &Key) + Copy + Send + Sync + 'static) {
    loom::model(move || {
        let (table, mut writer) = table(0);
        let (first, second) = (key(&table, 0, 0), key(&table, 0, 1));
        assert!(admit(&mut writer, &first, 1));
        let thread = thread::spawn(move || write(&mut writer, &first, &second));
        for subject in [&first, &second] {
            check(&table, subject, 0);
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_reader_sees_the_old_entry_or_the_new_one() {
    read_while(|writer, first, _| assert!(admit(writer, first, 2)));
}

#[test]
fn a_reader_sees_one_key_or_the_other() {
    // The same stamp for both, so that the state alone does not tell them apart.
    read_while(|writer, first, second| {
        assert!(writer.remove(first));
        assert!(admit(writer, second, 1));
    });
}

#[test]
fn a_reader_sees_what_was_displaced_whole() {
    read_while(|writer, first, second| {
        assert!(writer.displace(first));
        assert!(admit(writer, second, 1));
    });
}

#[test]
fn keys_are_looked_up_at_one_instant() {
    model_of_much(|| {
        let (table, mut writer) = table(0);
        let both = [key(&table, 0, 0), key(&table, 1, 0)];
        for key in &both {
            assert!(admit(&mut writer, key, 1));
        }
        let thread = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                for key in &both {
                    table.invalidate(key, stamp(2));
                }
                for key in &both {
                    assert!(admit(&mut writer, key, 2));
                }
            })
        };
        let mut hits = [None; 2];
        if table.lookup_all_at_once(&both, &mut hits) {
            let [Some(first), Some(second)] = hits else { panic!("all were said to be there") };
            assert_eq!(first.stamp, second.stamp);
            assert_eq!(
                (first.item, second.item),
                (item(&both[0], first.stamp.number()), item(&both[1], first.stamp.number()))
            );
        }
        thread.join().unwrap();
    });
}
