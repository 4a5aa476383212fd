//! Somebody sets the clock that people read.

use crate::support;

use std::time::Duration;

use ob_core::Now;
use ob_kv::resp::Request;
use ob_kv::store::{Config, Durability, LogFailure, Space};
use support::at;
use support::client::{Client, small};

const HOUR_MS: u64 = 3_600_000;

/// A client whose store has seen a clock that has been set back by an hour since, and what time it is now.
fn set_back(config: Config) -> (Client, Now) {
    let mut client = Client::new(config);
    client.now += HOUR_MS;
    client.says("set before v", "+OK");
    client.settle();
    let now = at(client.now);
    (client, Now { unix_ms: now.unix_ms - HOUR_MS, ..now })
}

fn send(client: &mut Client, now: Now, line: &str) {
    client.stamp += 1;
    let request = Request::of_line(line.as_bytes()).unwrap();
    client.store.apply(now, client.stamp, 1, &mut client.session, &request);
}

/// So much later by both clocks.
fn later(now: Now, time: Duration) -> Now {
    Now { instant: now.instant + time, unix_ms: now.unix_ms + time.as_millis() as u64 }
}

/// Lets time pass as far as the store wants it to, and everything that is asked of the device be done.
fn follow(client: &mut Client, mut now: Now, time: Duration) -> Now {
    let end = later(now, time);
    while now.instant < end.instant
        && let Some(due) = client.store.next_due().filter(|due| *due <= end.instant)
    {
        now = later(now, (due - now.instant).max(Duration::from_millis(1)));
        client.store.tick(now);
        for _ in 0..100 {
            client.step();
        }
    }
    end
}

#[test]
fn a_clock_that_is_set_back_stops_neither_writes_nor_flushes() {
    let (mut client, now) = set_back(Config { durability: Durability::EverySecond, ..small() });
    send(&mut client, now, "set after v");
    assert_eq!(client.store.next_answer().unwrap().bytes, b"+OK\r\n");
    assert!(client.store.stats().log_unsettled_len > 0);
    let due = client.store.next_due().unwrap() - now.instant;
    assert!(due <= Duration::from_millis(5), "the group would be written after {due:?}");
    follow(&mut client, now, Duration::from_secs(2));
    assert_eq!(client.store.stats().log_unsettled_len, 0, "it was never written");
    assert!(client.files.is_flushed(), "it was never flushed");
}

#[test]
fn nor_does_it_keep_a_device_from_being_asked_again() {
    let (mut client, now) = set_back(Config { durability: Durability::Always, ..small() });
    client.files.failure = Some(LogFailure::Space);
    send(&mut client, now, "set after v");
    client.store.tick(now);
    for _ in 0..10 {
        client.step();
    }
    assert_eq!(client.store.space(), Space::Refused);
    let now = follow(&mut client, now, Duration::from_secs(6));
    let answer = client.store.next_answer().unwrap().bytes;
    assert!(answer.starts_with(b"-MISCONF"), "nobody knows whether it will ever be written");
    client.files.failure = None;
    follow(&mut client, now, Duration::from_secs(2));
    assert_eq!(client.store.space(), Space::Plenty);
}

#[test]
fn nor_does_it_wake_a_store_again_and_again_for_what_expires_later() {
    let (mut client, now) = set_back(Config { durability: Durability::EverySecond, ..small() });
    send(&mut client, now, "set k v px 5000");
    let now = follow(&mut client, now, Duration::from_secs(2));
    client.store.tick(now);
    let due = client.store.next_due().unwrap() - now.instant;
    let hour = Duration::from_millis(HOUR_MS);
    assert!((hour..hour + Duration::from_secs(10)).contains(&due), "it would look again after {due:?}");
    // By then the clock has caught up.
    client.store.tick(later(now, due));
    assert_eq!((client.store.stats().keys, client.store.next_due()), (1, None));
}

#[test]
fn what_is_over_goes_though_the_clock_is_set_back_meanwhile() {
    // More than go at once.
    const KEYS: u64 = 2500;
    let mut client = Client::new(Config { durability: Durability::No, ..small() });
    client.now += HOUR_MS;
    for number in 0..KEYS {
        client.says(&format!("set key{number} v px 1000"), "+OK");
    }
    client.settle();
    let keys = client.store.stats().keys;
    assert!(keys > 0 && keys < KEYS, "{keys} are left");
    let now = at(client.now);
    let now = Now { unix_ms: now.unix_ms - HOUR_MS, ..now };
    client.store.tick(now);
    follow(&mut client, now, Duration::from_secs(1));
    assert_eq!(client.store.stats().keys, 0);
}

#[test]
fn keys_expire_by_the_clock_that_people_read() {
    let mut client = Client::new(small());
    let now = at(HOUR_MS);
    send(&mut client, now, "set k v px 60000");
    // Nothing but time passes: it is there.
    let waited = Now { instant: now.instant + Duration::from_secs(3600), ..now };
    send(&mut client, waited, "exists k");
    // Nothing but the clock was set: it is gone.
    send(&mut client, Now { unix_ms: now.unix_ms + 60_001, ..waited }, "exists k");
    let answers: Vec<_> =
        std::iter::from_fn(|| client.store.next_answer()).map(|answer| answer.bytes).collect();
    assert_eq!(answers, [&b"+OK\r\n"[..], b":1\r\n", b":0\r\n"]);
}
