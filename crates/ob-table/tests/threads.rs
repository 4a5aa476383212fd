//! Real threads on a small table: the rule, with the stamps in the items.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on fails.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use ob_table::{Item, Key, Stamp, Table, TableConfig, TableWriter, WhenFull};

const KEYS: u64 = 48;
const REQUESTS: u64 = if cfg!(miri) { 25 } else { 30_000 };

/// What everybody sees of the requests.
struct Requests {
    next: AtomicU64,
    /// For each key the greatest stamp whose invalidation is complete.
    invalidated: [AtomicU64; KEYS as usize],
}

fn key(number: u64) -> Key {
    Key::new(format!("key {number}").as_bytes()).unwrap()
}

fn item(number: u64, stamp: u64) -> Item {
    Item::new(&[number.to_le_bytes(), stamp.to_le_bytes(), (number ^ stamp).to_le_bytes()].concat()).unwrap()
}

fn stamp(number: u64) -> Stamp {
    Stamp::new(number).unwrap()
}

/// Takes stamps, invalidates, and hands the request on.
fn invalidate(table: &Table, requests: &Requests, seed: u64, forward: &SyncSender<(u64, u64)>) {
    let mut state = seed;
    for _ in 0..REQUESTS {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (state >> 33) % KEYS;
        let at = requests.next.fetch_add(1, Ordering::Relaxed);
        table.invalidate(&key(number), stamp(at));
        requests.invalidated[number as usize].fetch_max(at, Ordering::Release);
        forward.send((number, at)).unwrap();
    }
}

/// Admits what was forwarded, late and out of order, and moves things about.
fn write(writer: &mut TableWriter, forwarded: &Receiver<(u64, u64)>) {
    let mut waiting = Vec::new();
    while let Ok(request) = forwarded.recv() {
        waiting.push(request);
        if waiting.len() == 7 {
            for (number, at) in waiting.drain(..).rev() {
                let _ = writer.admit(&key(number), &item(number, at), stamp(at));
                writer.displace(&key(at % KEYS));
                if at % 11 == 0 {
                    writer.remove(&key(at / 11 % KEYS));
                }
            }
        }
    }
}

/// Looks keys up, and holds what it finds to the rule; how many it found.
fn read(table: &Table, requests: &Requests, is_done: &AtomicBool) -> u64 {
    let mut found = 0;
    let mut number = 0;
    while !is_done.load(Ordering::Relaxed) {
        number = (number + 1) % KEYS;
        let invalidated = requests.invalidated[number as usize].load(Ordering::Acquire);
        if let Some(hit) = table.lookup(&key(number)) {
            found += 1;
            assert!(hit.stamp >= stamp(invalidated), "key {number}: {hit:?}, invalidated with {invalidated}");
            assert_eq!(hit.item, item(number, hit.stamp.number()), "torn");
        }
        if cfg!(miri) {
            thread::yield_now();
        }
    }
    found
}

fn run(buckets: u32, overflow: u32, when_full: WhenFull) {
    let config = TableConfig { buckets, overflow, when_full, seed: Some(9) };
    let (table, mut writer) = Table::new(config).unwrap();
    let requests =
        Requests { next: AtomicU64::new(1), invalidated: [const { AtomicU64::new(0) }; KEYS as usize] };
    let is_done = AtomicBool::new(false);
    let (forward, forwarded) = sync_channel(16);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| read(&table, &requests, &is_done))).collect();
        for seed in 1..=2 {
            let (forward, table, requests) = (forward.clone(), &table, &requests);
            scope.spawn(move || invalidate(table, requests, seed, &forward));
        }
        drop(forward);
        write(&mut writer, &forwarded);
        is_done.store(true, Ordering::Relaxed);
        let found: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        let counts = writer.counts();
        assert!(
            cfg!(miri) || (found > 0 && counts.admitted > 0 && counts.kicks > 0),
            "{found} found, {counts:?}"
        );
    });
    let counts = writer.counts();
    let found = (0..KEYS).filter(|number| table.lookup(&key(*number)).is_some()).count();
    assert!(found as u64 <= counts.entries, "hidden ones at most: {found} found, {counts:?}");
}

#[test]
fn the_rule_holds_where_everything_fits() {
    run(32, 2, WhenFull::Refuse);
}

#[test]
fn the_rule_holds_where_little_fits() {
    run(4, 1, WhenFull::Evict);
}

#[test]
fn pairs_are_found_as_they_were_at_one_instant() {
    let config = TableConfig { buckets: 4, overflow: 0, when_full: WhenFull::Evict, seed: Some(9) };
    let (table, mut writer) = Table::new(config).unwrap();
    let pair = [key(1), key(2)];
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut found, mut hits) = (0u64, [None; 2]);
            while !is_done.load(Ordering::Relaxed) {
                if table.lookup_all_at_once(&pair, &mut hits) {
                    found += 1;
                    assert_eq!(hits[0].unwrap().stamp, hits[1].unwrap().stamp);
                }
                thread::yield_now();
            }
            found
        });
        for at in 1..=REQUESTS {
            for key in &pair {
                table.invalidate(key, stamp(at));
            }
            for (number, key) in (1..).zip(&pair) {
                writer.admit(key, &item(number, at), stamp(at)).unwrap();
            }
            if at % 8 == 0 {
                // Time for the reader to find both.
                thread::yield_now();
            }
        }
        is_done.store(true, Ordering::Relaxed);
        let found = reader.join().unwrap();
        assert!(cfg!(miri) || found > 0, "both were there most of the time");
    });
}
