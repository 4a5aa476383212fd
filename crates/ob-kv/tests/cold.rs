//! Requests for many records that are on the device alone.

use crate::support;

use ob_kv::store::Store;
use support::client::{Client, small};
use support::encoded;

/// Reads of one request that may be under way at a time.
const READS_AT_ONCE: usize = 64;

/// A client of a store that has written so many keys so long ago that their records are no longer in memory.
fn with_cold_keys(count: usize) -> Client {
    let mut client = Client::new(small());
    for number in 0..count {
        assert_eq!(client.reply(&encoded(&["SET", &format!("cold{number}"), &value(number)])), b"+OK\r\n");
        if number % 16 == 0 {
            client.settle();
        }
    }
    for number in 0..40 {
        client.reply(&encoded(&["SET", &format!("hot{number}"), &"h".repeat(1000)]));
        client.settle();
    }
    client
}

fn value(number: usize) -> String {
    format!("{number}-{}", "c".repeat(number % 50))
}

/// Sends a request, and gives its reply and the greatest number of its reads that were under way at once.
fn watched(client: &mut Client, request: &[u8]) -> (Vec<u8>, usize) {
    client.send(request);
    let mut most = 0;
    for _ in 0..100_000 {
        client.submit();
        most = most.max(client.files.reads_in_flight());
        if let Some(answer) = client.store.next_answer() {
            return (answer.bytes, most);
        }
        client.step();
    }
    panic!("no answer");
}

fn reads(store: &Store) -> u64 {
    store.stats().records_read
}

#[test]
fn a_record_is_read_once_for_a_request_that_names_it_a_hundred_thousand_times() {
    let mut client = with_cold_keys(2);
    let before = reads(&client.store);
    let mut words = vec!["MGET", "hot39"];
    words.resize(100_000, "cold1");
    words.extend(["hot39", "none", "cold0"]);
    let (reply, _) = watched(&mut client, &encoded(&words));
    assert_eq!(reads(&client.store) - before, 2);
    let bulk = |value: &str| format!("${}\r\n{value}\r\n", value.len());
    let hot = bulk(&"h".repeat(1000));
    let expected =
        format!("*100002\r\n{hot}{}{hot}$-1\r\n{}", bulk(&value(1)).repeat(99_998), bulk(&value(0)));
    assert!(reply == expected.as_bytes());
    assert_eq!(client.store.stats().waiting_len, 0);
}

#[test]
fn a_request_for_many_records_reads_a_few_of_them_at_a_time() {
    let mut client = with_cold_keys(300);
    let names: Vec<String> = (0..300).rev().map(|number| format!("cold{number}")).collect();
    let words: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
    let (reply, most) = watched(&mut client, &encoded(&words));
    assert_eq!(most, READS_AT_ONCE);
    let expected: String = (0..300)
        .rev()
        .map(value)
        .fold("*300\r\n".to_owned(), |all, value| format!("{all}${}\r\n{value}\r\n", value.len()));
    assert!(reply == expected.as_bytes());
    let (reply, most) = watched(&mut client, &encoded(&["SCAN", "0", "COUNT", "1000"]));
    assert!(most <= READS_AT_ONCE && most > 1, "{most}");
    assert!(reply.starts_with(b"*2\r\n$1\r\n0\r\n*340\r\n"));
}

#[test]
fn a_part_stays_while_a_request_has_records_in_it_that_are_not_asked_for_yet() {
    let mut client = with_cold_keys(1000);
    // The oldest are named last, and are in another part than those that are named first.
    let names: Vec<String> = (0..1000).rev().map(|number| format!("cold{number}")).collect();
    let words: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
    client.send(&encoded(&words));
    client.submit();
    let (stamp, removed) = (client.stamp, client.store.stats().parts_removed);
    // Everything is outdated, and compaction would have every part but the last removed at once.
    client.send(&encoded(&["FLUSHALL"]));
    client.now += 10;
    client.store.tick(support::at(client.now));
    let mut answers = Vec::new();
    while answers.len() < 2 {
        client.step();
        answers.extend(client.store.next_answer());
    }
    let answer = answers.iter().find(|answer| answer.stamp == stamp).unwrap();
    assert!(answer.bytes.ends_with(b"$3\r\n1-c\r\n$2\r\n0-\r\n"), "what was there at its instant");
    client.settle();
    assert!(client.store.stats().parts_removed > removed, "and then they go");
}
