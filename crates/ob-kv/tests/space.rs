//! A device that is full: of the store's own, of somebody else's, and not any more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use std::collections::BTreeMap;

use ob_kv::store::{Config, Durability, Space};
use ob_sim::Rng;
use support::client::{Client, recovered_as, small};
use support::{at, encoded, ms};

const FULL: &str = "-OOM command not allowed when the log has no space left.";
const REFUSED: &str = "-MISCONF Errors writing to the log: no space left for the log";
const PART: u64 = 64 << 10;

fn config(durability: Durability) -> Config {
    Config { durability, group_len: 16 << 10, ..small() }
}

fn client(durability: Durability, parts: u64) -> Client {
    let mut client = Client::new(config(durability));
    client.files.capacity = Some(parts * PART);
    // What there is room for is known before anybody asks for anything.
    client.submit();
    client
}

fn value(number: usize) -> String {
    format!("{number}-{}", "v".repeat(1000))
}

/// Sets keys from a number on until there is no more room; gives the number of the one that was refused.
fn fill(client: &mut Client, from: usize) -> usize {
    for number in from..from + 10_000 {
        let line = format!("set key{number} {}", value(number));
        let mut reply = client.ask(&line);
        client.step();
        if reply != "+OK\r\n" {
            // Compaction may have something to gain.
            client.settle();
            reply = client.ask(&line);
        }
        if reply != "+OK\r\n" {
            assert_eq!(reply, format!("{FULL}\r\n"));
            return number;
        }
        client.now += 1;
        client.store.tick(at(client.now));
    }
    panic!("the device never fills");
}

/// Removes a key. Removals that are faster than compaction are refused, and taken when that has come to what they left behind: so it
/// depends on the order in which the device does things.
fn remove(client: &mut Client, number: usize) {
    let line = format!("del key{number}");
    let reply = client.ask(&line);
    if reply == format!("{FULL}\r\n") {
        client.settle();
        client.says(&line, ":1");
    } else {
        assert_eq!(reply, ":1\r\n");
    }
}

fn has(client: &mut Client, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let value = value(number);
        client.says(&format!("get key{number}"), &format!("${}\r\n{value}", value.len()));
    }
}

#[test]
fn a_full_device_is_read_and_emptied_and_filled_again() {
    let durabilities = [Durability::Always, Durability::EverySecond, Durability::No];
    for (durability, seed) in
        durabilities.into_iter().flat_map(|durability| (0..10).map(move |seed| (durability, seed)))
    {
        let mut client = client(durability, 20);
        client.rng = Rng::new(seed);
        let (mut first, mut end) = (0, fill(&mut client, 0));
        assert!(end > 400, "{end} keys are few for so much space");
        for _ in 0..4 {
            client.says(&format!("set key{end} {}", value(end)), FULL);
            assert_eq!(client.store.stats().refused_for_space, client.store.stats().errors);
            assert!(client.ask("info persistence").contains("log_space:full"));
            has(&mut client, first..end);
            // Half of them go, and compaction makes room of them.
            for number in first..(first + end) / 2 {
                remove(&mut client, number);
            }
            client.settle();
            first = (first + end) / 2;
            let until = fill(&mut client, end);
            assert!(until > end + 100, "there was room for {} keys only", until - end);
            end = until;
        }
        client.settle();
        client.store = recovered_as(&mut client, config(durability)).unwrap();
        has(&mut client, first..end);
        client.says("dbsize", &format!(":{}", end - first));
        assert_eq!(client.files.refusals, 0, "{durability:?}, seed {seed}: the store has run into the wall");
    }
}

#[test]
fn everything_can_be_removed_from_a_full_device() {
    let mut client = client(Durability::Always, 10);
    let end = fill(&mut client, 0);
    client.says("flushall", "+OK");
    client.settle();
    assert_eq!(client.store.space(), Space::Plenty);
    assert!(fill(&mut client, 0) + 10 >= end);
    assert_eq!(client.files.refusals, 0);
}

#[test]
fn a_device_that_has_grown_takes_more() {
    let mut client = client(Durability::EverySecond, 10);
    let end = fill(&mut client, 0);
    client.files.capacity = Some(20 * PART);
    // It is found out without anybody asking for anything.
    client.now = client.store.next_due().map(ms).unwrap();
    client.settle();
    assert!(fill(&mut client, end) > end + 100);
}

#[test]
fn a_device_that_cannot_be_measured_is_measured_later() {
    let mut client = Client::new(config(Durability::EverySecond));
    assert!(client.store.wants_measure());
    client.store.measured(None);
    assert!(!client.store.wants_measure(), "not at once");
    client.says("set k v", "+OK");
    client.now += 1000;
    client.store.tick(at(client.now));
    assert!(client.store.wants_measure());
    client.store.measured(Some(0));
    client.says("set k v", FULL);
    client.says("get k", "$1\r\nv");
}

#[test]
fn compaction_keeps_up_with_changes_where_space_is_short() {
    let mut client = client(Durability::EverySecond, 24);
    let keys = 500;
    for round in 0..30 {
        for number in 0..keys {
            let mut waits = 0;
            while !client.store.has_room() {
                client.step();
                waits += 1;
                assert!(waits < 10_000, "it takes nothing any more");
            }
            client.says(&format!("set key{number} {}", value(number + round)), "+OK");
            client.now += 1;
            client.store.tick(at(client.now));
            client.step();
        }
    }
    assert!(client.store.stats().parts_removed > 100);
    assert_eq!(client.files.refusals, 0);
}

#[test]
fn a_device_that_others_have_filled_is_tried_again() {
    for durability in [Durability::Always, Durability::EverySecond] {
        let is_always = durability == Durability::Always;
        let mut client = client(durability, 20);
        client.says("set before v", "+OK");
        client.settle();
        client.files.foreign = client.files.capacity.unwrap();
        client.send(&encoded(&["set", "k", "v"]));
        for _ in 0..8 {
            client.now += 100;
            client.store.tick(at(client.now));
            client.submit();
            client.step();
        }
        assert_eq!(client.store.space(), Space::Refused);
        let answer = client.store.next_answer().map(|answer| answer.bytes);
        assert_eq!(
            answer,
            (!is_always).then(|| b"+OK\r\n".to_vec()),
            "nothing is promised, and nothing lost"
        );
        assert!(client.store.has_room() && client.store.failure().is_none());
        client.send(&encoded(&["set", "other", "v"]));
        // Nobody waits for ever, but for a while there is hope.
        for _ in 0..60 {
            client.now = client.store.next_due().map(ms).unwrap();
            client.store.tick(at(client.now));
            client.submit();
            client.step();
        }
        let answers: Vec<_> = std::iter::from_fn(|| client.store.next_answer()).collect();
        assert_eq!(answers.len(), if is_always { 2 } else { 1 });
        assert!(answers.iter().all(|answer| answer.bytes == format!("{REFUSED}\r\n").as_bytes()));
        client.says("get before", if is_always { REFUSED } else { "$1\r\nv" });
        let info = client.ask("info persistence");
        assert!(info.contains("log_space:refused") && info.contains("aof_last_write_status:err"), "{info}");
        let refusals = client.files.refusals;
        assert!(refusals > 3 && refusals < 100, "{refusals} attempts");
        // And when there is space, everything goes on by itself.
        client.files.foreign = 0;
        client.settle();
        assert_eq!(client.store.space(), Space::Plenty);
        client.says("get k", "$1\r\nv");
        client.says("set other w", "+OK");
        client.settle();
        client.store = recovered_as(&mut client, config(durability)).unwrap();
        client.says("mget before k other", "*3\r\n$1\r\nv\r\n$1\r\nv\r\n$1\r\nw");
    }
}

/// Requests one after the other on a device that is nearly full all the time, and that others fill and empty too.
#[test]
fn nothing_that_was_answered_is_lost_on_a_device_that_is_never_large_enough() {
    let (mut full, mut refused, mut went_on, mut losses) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut client = client(Durability::Always, rng.range(8..20));
        let mut map: BTreeMap<u64, u64> = BTreeMap::new();
        let mut was_full = false;
        for step in 0..600_u64 {
            if rng.one_in(40) {
                let capacity = client.files.capacity.unwrap();
                let foreign = if rng.one_in(2) { 0 } else { rng.below(capacity) };
                client.files.foreign = foreign;
            }
            if rng.one_in(100) {
                client.files = std::mem::take(&mut client.files).lose_power(&mut rng);
                client.store = recovered_as(&mut client, config(Durability::Always)).unwrap();
                client.submit();
                losses += 1;
            }
            let key = rng.below(400);
            let line = match rng.below(10) {
                0..6 => format!("set key{key} {step}-{}", "v".repeat(rng.below(3000) as usize)),
                6..9 => format!("del key{key}"),
                _ => format!("getrange key{key} 0 6"),
            };
            let reply = patient(&mut client, &line);
            let is_oom = reply == format!("{FULL}\r\n");
            full += u64::from(is_oom);
            went_on += u64::from(was_full && line.starts_with("set") && reply == "+OK\r\n");
            was_full = is_oom || (was_full && !line.starts_with("set"));
            if reply == format!("{REFUSED}\r\n") {
                // Whether it was done shows when there is space again.
                client.files.foreign = 0;
                client.settle();
                refused += 1;
                let reply = patient(&mut client, &format!("getrange key{key} 0 6"));
                match stepped(&reply) {
                    Some(step) => map.insert(key, step),
                    None => map.remove(&key),
                };
            } else if line.starts_with("set") && !is_oom {
                assert_eq!(reply, "+OK\r\n");
                map.insert(key, step);
            } else if line.starts_with("del") && !is_oom {
                assert_eq!(reply == ":1\r\n", map.remove(&key).is_some(), "seed {seed}: {line}: {reply}");
            } else if line.starts_with("getrange") {
                assert_eq!(stepped(&reply), map.get(&key).copied(), "seed {seed}: {line}: {reply}");
            }
        }
        client.files.foreign = 0;
        client.settle();
        for key in 0..400 {
            let reply = patient(&mut client, &format!("getrange key{key} 0 6"));
            assert_eq!(stepped(&reply), map.get(&key).copied(), "seed {seed}: key{key}: {reply}");
        }
    }
    assert!(
        [full, refused, went_on, losses].iter().all(|count| *count > 20),
        "{full} {refused} {went_on} {losses}"
    );
}

/// The number that a value begins with, of a reply that has its begin.
fn stepped(reply: &str) -> Option<u64> {
    reply.lines().nth(1)?.split('-').next()?.parse().ok()
}

/// The reply, while time passes.
fn patient(client: &mut Client, line: &str) -> String {
    let request = ob_kv::resp::Request::of_line(line.as_bytes()).unwrap();
    client.send(request.bytes());
    for _ in 0..10_000 {
        if let Some(answer) = client.store.next_answer() {
            return String::from_utf8(answer.bytes).unwrap();
        }
        client.step();
        if client.files.is_idle() {
            client.now += 50;
            client.store.tick(at(client.now));
        }
    }
    panic!("no answer");
}

#[test]
fn copies_of_compaction_are_no_changes_that_could_be_lost() {
    let mut client = Client::new(small());
    assert!(!client.store.has_unsettled_changes());
    for round in 0..10 {
        for number in 0..100 {
            client.reply(&encoded(&["SET", &format!("changed{number}"), &"v".repeat(500)]));
        }
        // These are copied when their part goes.
        for number in 0..10 {
            client.reply(&encoded(&["SET", &format!("kept{round}-{number}"), &"v".repeat(500)]));
        }
    }
    assert!(client.store.has_unsettled_changes());
    let (mut settled, mut copies_alone) = (0, 0);
    for _ in 0..5000 {
        client.now += 1;
        client.store.tick(at(client.now));
        client.step();
        let has_changes = client.store.has_unsettled_changes();
        assert!(!has_changes || settled == 0, "nobody has changed anything since");
        settled += u64::from(!has_changes);
        copies_alone += u64::from(!has_changes && client.store.stats().log_unsettled_len > 0);
    }
    assert!(settled > 0 && copies_alone > 0, "{:?}", client.store.stats());
}
