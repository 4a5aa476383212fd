//! `SCAN` whatever happens meanwhile: each key that stays is found once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use std::collections::BTreeSet;

use ob_kv::store::Config;
use support::client::{Client, recovered_as, small};
use support::encoded;

/// The strings of a reply.
fn strings(reply: &[u8]) -> Vec<String> {
    let lines = reply.split(|byte| *byte == b'\n').map(|line| line.trim_ascii_end());
    let strings = lines.filter(|line| !line.is_empty() && !matches!(line[0], b'*' | b'$'));
    strings.map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
}

/// Goes through all keys, so many at a time; `between` happens after each call.
fn scanned(client: &mut Client, count: &str, mut between: impl FnMut(&mut Client)) -> Vec<String> {
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let reply = client.reply(&encoded(&["scan", &cursor, "count", count]));
        let mut strings = strings(&reply).into_iter();
        cursor = strings.next().unwrap();
        found.extend(strings);
        if cursor == "0" {
            return found;
        }
        between(client);
    }
}

#[test]
fn a_cursor_holds_in_the_next_life_of_the_store() {
    let mut client = Client::new(Config { name: [1; 16], ..small() });
    let keys: BTreeSet<String> = (0..300).map(|number| format!("key{number}")).collect();
    keys.iter().for_each(|key| client.says(&format!("set {key} v"), "+OK"));
    client.settle();
    let mut life = 1;
    let found = scanned(&mut client, "10", |client| {
        // Each life draws a name, in case that there is no store yet.
        life += 1;
        client.store = recovered_as(client, Config { name: [life; 16], ..small() }).unwrap();
    });
    assert!(life > 20);
    assert_eq!((found.len(), found.into_iter().collect()), (300, keys));
}

#[test]
fn what_cannot_be_read_is_left_out_and_keeps_nobody_from_the_rest() {
    let mut client = Client::new(Config { garbage_percent: 100, memory_len: 0, ..small() });
    client.says("set short v px 1000000", "+OK");
    for number in 0..60 {
        client.says(&format!("set key{number} {}", "v".repeat(3000)), "+OK");
    }
    client.settle();
    client.files.unreadable.push((0, 0..4096));
    let found = scanned(&mut client, "5", |_| {});
    let unreadable = client.store.stats().records_unreadable;
    assert!((2..5).contains(&unreadable), "{unreadable}");
    assert_eq!(found.len() as u64 + unreadable, 61);
    assert!(client.ask("info stats").contains(&format!("records_unreadable:{unreadable}\r\n")));
    // Nor is such a key there for ever.
    client.says("get short", "-ERR a record could not be read: the log's device failed");
    client.says("del short key59", ":2");
    client.says("exists short key59", ":0");
}
