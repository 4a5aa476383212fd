//! A full device of many parts, from which keys go one by one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use ob_kv::store::{Config, Durability, LogFailure, Space};
use ob_sim::Rng;
use support::client::{Client, recovered_as, small};
use support::{at, encoded};

const FULL: &str = "-OOM command not allowed when the log has no space left.\r\n";
const PART: u64 = 128 << 10;
const GROUP: usize = 64 << 10;
/// Bytes of a record, and a little more.
const RECORD: usize = 1280;

fn config(group_len: usize) -> Config {
    Config { durability: Durability::Always, part_len: PART, group_len, ..small() }
}

/// A store whose device is full of keys, and what is left of them, in their order.
struct Full {
    client: Client,
    keys: Vec<usize>,
    next: usize,
    /// Keys of one request, which fill a group.
    at_once: usize,
    parts: u64,
}

impl Full {
    fn new(group_len: usize, parts: u64) -> Self {
        let mut client = Client::new(config(group_len));
        client.files.capacity = Some(parts * PART);
        client.submit();
        let mut full = Self { client, keys: Vec::new(), next: 0, at_once: group_len / RECORD, parts };
        full.fill();
        let stats = full.client.store.stats();
        assert!(stats.log_len > (parts - parts / 4) * PART, "{stats:?}");
        full
    }

    /// Asks when the store lets it.
    fn ask(&mut self, line: &str) -> String {
        for _ in 0..100_000 {
            if self.client.store.has_room() {
                self.client.now += 1;
                self.client.store.tick(at(self.client.now));
                return self.client.ask(line);
            }
            self.client.step();
        }
        panic!("it takes nothing any more");
    }

    /// Sets keys until there is no more room.
    fn fill(&mut self) {
        for _ in 0..100_000 {
            let keys = self.next..self.next + self.at_once;
            let pairs: Vec<_> =
                keys.clone().map(|key| format!("key{key} {key}-{}", "v".repeat(1200))).collect();
            let line = format!("mset {}", pairs.join(" "));
            let mut reply = self.ask(&line);
            if reply == FULL {
                // Compaction may have something to gain.
                self.client.settle();
                reply = self.ask(&line);
            }
            if reply == FULL {
                return;
            }
            assert_eq!(reply, "+OK\r\n");
            self.keys.extend(keys);
            self.next += self.at_once;
        }
        panic!("the device never fills");
    }

    /// Removes one key; whether it was taken at once. Where it was not, compaction makes room for it without further changes.
    fn remove(&mut self, at: usize) -> bool {
        let line = format!("del key{}", self.keys.remove(at));
        let mut reply = self.ask(&line);
        let is_at_once = reply != FULL;
        if !is_at_once {
            self.client.settle();
            reply = self.ask(&line);
        }
        assert_eq!(reply, ":1\r\n", "{line}: {:?} of {} parts", self.client.store.stats(), self.parts);
        is_at_once
    }

    fn has_all(&mut self) {
        let Self { keys, .. } = self;
        for key in keys.clone() {
            let value = format!("{key}-{}", "v".repeat(1200));
            assert_eq!(self.ask(&format!("get key{key}")), format!("${}\r\n{value}\r\n", value.len()));
        }
        assert_eq!(self.ask("dbsize"), format!(":{}\r\n", self.keys.len()));
    }
}

#[test]
fn keys_go_one_by_one_whichever_they_are_and_others_come_in_their_place() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut full = Full::new(GROUP, rng.range(70..100));
        let first = full.keys.len();
        for round in 0..3 {
            let count = full.keys.len() / 3;
            for _ in 0..count {
                // Any, the newest, the oldest.
                let at = match seed % 3 {
                    0 => rng.index(full.keys.len()),
                    1 => full.keys.len() - 1,
                    _ => 0,
                };
                full.remove(at);
                // A read shows copies that were not written yet, and does not have them written.
                if rng.one_in(4) {
                    let key = full.keys[rng.index(full.keys.len())];
                    let line = format!("strlen key{key}");
                    let len = format!("{key}-").len() + 1200;
                    assert_eq!(full.ask(&line), format!(":{len}\r\n"));
                }
            }
            if round == 1 {
                let client = &mut full.client;
                client.files = std::mem::take(&mut client.files).lose_power(&mut rng);
                client.store = recovered_as(client, config(GROUP)).unwrap();
                client.submit();
            }
            full.client.settle();
            full.fill();
            let keys = full.keys.len();
            assert!(keys > first - first / 8, "seed {seed}: {keys} keys, where {first} were");
        }
        full.has_all();
        assert_eq!(full.client.files.refusals, 0, "seed {seed}: the store has run into the wall");
    }
}

#[test]
fn everything_can_be_removed_whatever_removals_have_taken() {
    let mut refused = 0;
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut full = Full::new(GROUP, rng.range(70..100));
        let first = full.keys.len();
        for _ in 0..500 {
            let line = format!("del key{}", full.keys[rng.index(first)]);
            // Without regard to what the store would like.
            if full.client.ask(&line) == FULL {
                refused += 1;
                break;
            }
        }
        assert_eq!(full.client.ask("flushall"), "+OK\r\n");
        full.client.settle();
        assert_eq!(full.client.store.space(), Space::Plenty);
        full.keys.clear();
        full.fill();
        assert!(full.keys.len() + first / 8 > first);
        full.has_all();
        assert_eq!(full.client.files.refusals, 0);
    }
    assert!(refused > 0, "removals were never faster than compaction");
}

#[test]
fn a_device_that_fails_while_parts_are_copied_lets_everybody_know() {
    let mut was_behind = 0;
    for moment in 0..12 {
        let mut full = Full::new(16 << 10, 70);
        while full.client.store.stats().records_copied == 0 {
            full.remove(0);
        }
        for _ in 0..moment {
            full.client.step();
        }
        was_behind += u32::from(!full.client.store.has_room());
        full.client.files.is_read_only = true;
        let line = format!("del key{}", full.keys[7]);
        full.client.send(&encoded(&line.split(' ').collect::<Vec<_>>()));
        full.client.settle();
        assert_eq!(full.client.store.failure(), Some(LogFailure::Device), "moment {moment}");
        while full.client.store.next_answer().is_some() {}
        let reply = full.ask("set k v");
        assert!(reply.starts_with("-MISCONF "), "moment {moment}: {reply}");
    }
    assert!(was_behind > 1, "nobody ever waited for compaction");
}

#[test]
fn copies_fill_groups_whoever_reads_meanwhile() {
    let with = |garbage_percent| Config { garbage_percent, part_len: 1 << 20, ..config(GROUP) };
    let mut client = Client::new(with(100));
    for number in 0..2000 {
        client.says(&format!("set key{number} {}", "v".repeat(100)), "+OK");
    }
    client.settle();
    client.store = recovered_as(&mut client, with(50)).unwrap();
    client.files.written_len = 0;
    for number in 0..2000 {
        // A reader sees copies that are not written yet, and does not have them written.
        client.says(&format!("strlen key{number}"), ":100");
        client.step();
    }
    client.settle();
    let (copied, written) = (client.store.stats().records_copied, client.files.written_len);
    assert!(copied > 1000, "{copied}");
    assert!(written < copied * 180, "{written} bytes for {copied} records");
}
