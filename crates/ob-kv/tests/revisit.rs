//! A store that meets its log again: goes on if it is what it has left, and notices whoever was there meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use ob_kv::host::Service;
use ob_kv::resp::Request;
use ob_kv::store::{Config, Durability, LogOp, Recovery, Revisited, Store};
use ob_sim::Rng;
use support::files::Files;
use support::{at, encoded};

const NOW: u64 = 1_000_000;

fn config(durability: Durability) -> Config {
    Config { durability, part_len: 16 << 10, memory_len: 0, ..Config::default() }
}

/// Sets a key, without a look at what becomes of it.
fn set(store: &mut Store, stamp: u64, key: &str) {
    let mut session = store.open(1);
    let request = encoded(&["set", key, &format!("{stamp:0>1000}")]);
    store.apply(at(NOW + 100 * stamp), stamp, 1, &mut session, &Request::new(&request));
}

/// Writes everything, and makes it durable where it was asked for.
fn settle(store: &mut Store, files: &mut Files, rng: &mut Rng) {
    // Groups are closed by the clock.
    store.tick(at(NOW + 100 * store.stamp_max() + 50));
    loop {
        while let Some(op) = store.next_op() {
            files.submit(op);
        }
        match files.complete(rng) {
            Some(completion) => store.completed(completion),
            None => return,
        }
    }
}

fn recover(files: &mut Files, config: Config, rng: &mut Rng) -> Store {
    let mut recovery = Recovery::new(config, files.parts()).unwrap();
    while let Some(op) = recovery.next_op() {
        files.submit(op);
        recovery.completed(files.complete(rng).unwrap()).unwrap();
    }
    recovery.finish().ok().unwrap()
}

fn revisit(store: &Store, files: &mut Files, rng: &mut Rng) -> Revisited {
    let mut revisit = store.revisit(files.parts());
    while let Some(op) = revisit.next_op() {
        assert!(matches!(op, LogOp::Read { .. }), "nothing is changed by a look");
        files.submit(op);
        revisit.completed(files.complete(rng).unwrap());
    }
    revisit.outcome().expect("there is nothing more to read")
}

fn written(durability: Durability, keys: u64) -> (Store, Files, Rng) {
    let (mut store, mut files, mut rng) = (Store::create(config(durability)), Files::default(), Rng::new(3));
    for stamp in 1..=keys {
        set(&mut store, stamp, &format!("key{stamp}"));
        settle(&mut store, &mut files, &mut rng);
    }
    (store, files, rng)
}

/// A log is found by the first group of its first part: until there is one in the next part, the part before it stays.
#[test]
fn a_part_stays_until_the_mark_of_a_life_in_the_next_one_is_durable() {
    let (mut store, mut files, mut rng) = written(Durability::Always, 3);
    let mut session = store.open(1);
    store.apply(at(NOW + 400), 4, 1, &mut session, &Request::new(&encoded(&["flushall"])));
    settle(&mut store, &mut files, &mut rng);
    let mut next = recover(&mut files, config(Durability::Always), &mut rng);
    next.mark_life();
    let asked: Vec<LogOp> = std::iter::from_fn(|| next.next_op()).collect();
    assert!(asked.iter().any(|op| matches!(op, LogOp::Create { .. })), "the part was full: {asked:?}");
    assert!(!asked.iter().any(|op| matches!(op, LogOp::Remove { .. })), "{asked:?}");
    asked.into_iter().for_each(|op| files.submit(op));
    settle(&mut next, &mut files, &mut rng);
    assert_eq!(files.parts().len(), 1, "it goes in the end, because nothing in it counts");
    recover(&mut files, config(Durability::Always), &mut rng);
}

#[test]
fn a_log_that_nobody_has_touched_is_the_same() {
    for durability in [Durability::Always, Durability::EverySecond, Durability::No] {
        // None at all, one, and several parts.
        for keys in [0, 1, 3, 4, 9, 30] {
            let (mut store, mut files, mut rng) = written(durability, keys);
            assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Same, "{durability:?}, {keys}");
            // What is applied and not on its way is nobody's business, and nor is what is on its way.
            set(&mut store, keys + 1, "open");
            assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Same, "{durability:?}, {keys}");
            store.tick(at(NOW + 100 * store.stamp_max() + 50));
            let asked: Vec<LogOp> = std::iter::from_fn(|| store.next_op()).collect();
            assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Same, "{durability:?}, {keys}");
            // It was done, and nobody has said so.
            for op in asked {
                files.submit(op);
                files.complete(&mut rng);
            }
            assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Same, "{durability:?}, {keys}");
        }
    }
}

#[test]
fn another_host_is_noticed_even_if_it_has_changed_nothing() {
    for durability in [Durability::Always, Durability::EverySecond, Durability::No] {
        for keys in [0, 1, 3, 9] {
            for changes in [0, 1, 40] {
                let (mut store, mut files, mut rng) = written(durability, keys);
                set(&mut store, keys + 1, "unwritten");
                let name = if keys == 0 { [7; 16] } else { [0; 16] };
                let visiting = Config { name, ..config(durability) };
                let mut visitor = recover(&mut files, visiting, &mut rng);
                visitor.mark_life();
                assert!(!visitor.is_life_marked());
                settle(&mut visitor, &mut files, &mut rng);
                assert!(visitor.is_life_marked());
                for stamp in 0..changes {
                    set(&mut visitor, keys + 1 + stamp, &format!("key{}", stamp % 3));
                    settle(&mut visitor, &mut files, &mut rng);
                }
                let found = revisit(&store, &mut files, &mut rng);
                assert_eq!(found, Revisited::Overtaken, "{durability:?}, {keys} keys, {changes} changes");
                // Nor does a third one, to which the second is what the first is to it.
                let mut third = recover(&mut files, config(durability), &mut rng);
                third.mark_life();
                settle(&mut third, &mut files, &mut rng);
                assert_eq!(revisit(&visitor, &mut files, &mut rng), Revisited::Overtaken);
                assert_eq!(revisit(&third, &mut files, &mut rng), Revisited::Same);
            }
        }
    }
}

#[test]
fn what_was_complete_and_is_gone_is_noticed() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..60 {
        let (mut store, mut files, mut rng) = written(Durability::No, 3);
        let complete = store.settled();
        rng = rng.fork_numbered("power", seed);
        files = files.lose_power(&mut rng);
        let found = revisit(&store, &mut files, &mut rng);
        let recovered = recover(&mut files, config(Durability::No), &mut rng);
        let is_there = recovered.settled() >= complete;
        assert_eq!(found, if is_there { Revisited::Same } else { Revisited::Lost }, "seed {seed}");
        if is_there {
            kept += 1;
            // Whatever is written behind it now is not lost with it.
            set(&mut store, 10, "later");
            settle(&mut store, &mut files, &mut rng);
            assert_eq!(recover(&mut files, config(Durability::No), &mut rng).stamp_max(), 10);
        } else {
            lost += 1;
        }
    }
    assert!(lost > 0 && kept > 0, "{lost} lost, {kept} kept");
}

#[test]
fn what_was_complete_behind_a_gap_is_written_again() {
    for seed in 0..20 {
        let (mut store, mut files, mut rng) = written(Durability::No, 1);
        rng = rng.fork_numbered("power", seed);
        for stamp in 2..=3 {
            set(&mut store, stamp, &format!("key{stamp}"));
            store.tick(at(NOW + 100 * stamp + 50));
        }
        let asked: Vec<LogOp> = std::iter::from_fn(|| store.next_op()).collect();
        let [first, second] = asked.try_into().expect("two groups side by side");
        files.submit(second);
        store.completed(files.complete(&mut rng).unwrap());
        files = files.lose_power(&mut rng);
        assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Same, "seed {seed}");
        store.rejoined();
        files.submit(first);
        set(&mut store, 4, "later");
        settle(&mut store, &mut files, &mut rng);
        let left = recover(&mut files, config(Durability::No), &mut rng);
        assert_eq!((left.stamp_max(), left.stats().keys), (4, 4), "seed {seed}");
    }
}

/// The card died while a group was written whose last block ends like the one that lay there: its records are whole, and behind them is what
/// the older group had. It is the store's own all the same, and nothing that the store has beside it may be given up.
#[test]
fn what_is_behind_the_records_of_a_group_says_nothing() {
    let (mut store, mut files, mut rng) = written(Durability::No, 1);
    set(&mut store, 2, "key2");
    store.tick(at(NOW + 250));
    let Some(LogOp::Write { part, offset, bytes, .. }) = store.next_op() else {
        panic!("a group is written")
    };
    let mut found = bytes.to_vec();
    assert_eq!(found.last(), Some(&0), "there is something behind the records");
    *found.last_mut().unwrap() = 0x78;
    files.edit(|files| {
        let file = files.get_mut(&part).unwrap();
        file.resize(offset as usize, 0);
        file.extend_from_slice(&found);
    });
    assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Same);
}

#[test]
fn what_is_lost_with_the_cards_power_is_never_taken_for_damage() {
    let mut lost = 0;
    for (seed, durability) in
        (0..40).flat_map(|seed| [(seed, Durability::EverySecond), (seed, Durability::No)])
    {
        let (mut store, mut files, mut rng) = written(durability, 5);
        rng = rng.fork_numbered("power", seed);
        for _ in 0..6 {
            for _ in 0..rng.below(30) {
                let stamp = store.stamp_max() + 1;
                set(&mut store, stamp, &format!("key{}", stamp % 7));
                settle(&mut store, &mut files, &mut rng);
            }
            files = files.lose_power(&mut rng);
            match revisit(&store, &mut files, &mut rng) {
                Revisited::Same => {}
                Revisited::Lost => {
                    lost += 1;
                    let mut recovery = Recovery::new(config(durability), files.parts()).unwrap();
                    while let Some(op) = recovery.next_op() {
                        files.submit(op);
                        let read = recovery.completed(files.complete(&mut rng).unwrap());
                        assert_eq!(read, Ok(()), "seed {seed}, {durability:?}");
                    }
                    store = recovery.finish().ok().unwrap();
                    store.mark_life();
                    settle(&mut store, &mut files, &mut rng);
                }
                Revisited::Overtaken => panic!("seed {seed}, {durability:?}: nobody was there"),
            }
        }
    }
    assert!(lost > 100, "{lost} times something was lost");
}

#[test]
fn what_recovery_has_found_is_durable_before_anything_follows() {
    for seed in 0..40 {
        let (_, mut files, mut rng) = written(Durability::No, 3);
        rng = rng.fork_numbered("power", seed);
        let mut store = recover(&mut files, config(Durability::No), &mut rng);
        set(&mut store, 4, "first");
        settle(&mut store, &mut files, &mut rng);
        files = files.lose_power(&mut rng);
        let left = recover(&mut files, config(Durability::No), &mut rng);
        assert_eq!(
            (left.stamp_max(), left.stats().keys),
            (4, 4),
            "seed {seed}: the first group of a life is durable"
        );
    }
}

#[test]
fn the_mark_of_a_life_is_not_taken_for_what_lay_there_before() {
    let (store, mut files, mut rng) = written(Durability::Always, 3);
    let admitted = store.settled();
    // Somebody has cut the log, or the device has lost what it had promised.
    files.edit(|files| files.get_mut(&0).unwrap().truncate(admitted as usize - 4096));
    let mut next = recover(&mut files, config(Durability::Always), &mut rng);
    next.mark_life();
    settle(&mut next, &mut files, &mut rng);
    assert_eq!(next.settled(), admitted, "the mark is as long as what was lost");
    assert_eq!(next.recovered().end, admitted - 4096);
    // A card that has begun this life has compared, and has nothing in its table that is not there.
    next.begins(10);
    assert_eq!(next.recovered().end, admitted);
}

#[test]
fn files_of_another_store_are_noticed() {
    let (store, _, mut rng) = written(Durability::Always, 5);
    let mut other = Store::create(Config { name: [8; 16], ..config(Durability::Always) });
    let mut files = Files::default();
    assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Overtaken, "none at all");
    for stamp in 1..=5 {
        set(&mut other, stamp, &format!("key{stamp}"));
        settle(&mut other, &mut files, &mut rng);
    }
    assert_eq!(revisit(&other, &mut files, &mut rng), Revisited::Same);
    assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Overtaken);
}

#[test]
fn a_removed_part_that_is_back_is_not_left_behind() {
    let (mut store, mut files, mut rng) = written(Durability::Always, 30);
    // The same keys again and again: the oldest part is compacted, and goes.
    let mut stamp = 30;
    while files.parts().iter().any(|(part, _)| *part == 0) {
        stamp += 1;
        assert!(stamp < 10_000, "the log is compacted");
        set(&mut store, stamp, &format!("key{}", stamp % 30));
        settle(&mut store, &mut files, &mut rng);
    }
    assert_eq!(revisit(&store, &mut files, &mut rng), Revisited::Same);
    // The card has lost its power, and with it that the part was removed.
    let parts = files.parts().into_iter().chain([(0, 16 << 10)]);
    assert_eq!(store.revisit(parts).outcome(), Some(Revisited::Lost));
}

#[test]
fn a_life_without_its_mark_does_not_go_on() {
    let (store, mut files, mut rng) = written(Durability::Always, 3);
    drop(store);
    let mut next = recover(&mut files, config(Durability::Always), &mut rng);
    next.mark_life();
    assert_eq!(revisit(&next, &mut files, &mut rng), Revisited::Lost);
    settle(&mut next, &mut files, &mut rng);
    assert_eq!(revisit(&next, &mut files, &mut rng), Revisited::Same);
}
