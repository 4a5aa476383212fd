//! Logs that earlier builds wrote: every later one recovers them, finds every key, goes on writing and recovers that.
//!
//! Made once, with the build that first wrote their version, and never again:
//!
//! ```sh
//! cargo test -p ob-kv earlier_builds::make -- --ignored
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use std::collections::BTreeSet;
use std::path::Path;

use ob_format::kv::{BLOCK_LEN, GroupHeader, part_name, part_number};
use ob_kv::store::{Config, Durability};
use ob_sim::Dump;
use support::client::{Client, recovered_as, small};

/// What is kept, by the version of the format that it is of.
const DUMPS: [(&str, &str); 2] = [
    ("kv-log-v2.txt", include_str!("earlier/kv-log-v2.txt")),
    ("kv-log-v3.txt", include_str!("earlier/kv-log-v3.txt")),
];
/// The one that today's build makes.
const NEWEST: &str = "kv-log-v3.txt";
/// Milliseconds since 1970 at which what is to expire late does.
const LATE: u64 = 4_000_000_000_000;

fn config() -> Config {
    Config { durability: Durability::Always, part_len: 32 << 10, name: *b"an earlier build", ..small() }
}

/// A log of several parts with every kind of record, of two lives; nothing of it is compacted away.
fn written() -> Client {
    let config = || Config { garbage_percent: 100, ..config() };
    let mut client = Client::new(config());
    client.says("set forgotten v", "+OK");
    client.says("flushall", "+OK");
    for number in 0..12 {
        client.says(&format!("set key{number} value{number}"), "+OK");
    }
    client.says("del key3", ":1");
    client.says("set key4 newer", "+OK");
    client.says(&format!("set late v pxat {LATE}"), "+OK");
    client.says(&format!("set soon v pxat {}", client.now + 5), "+OK");
    client.says("mset one 1 two 2", "+OK");
    client.settle();
    client.store = recovered_as(&mut client, config()).unwrap();
    client.session = client.store.open(5);
    client.says("set second life", "+OK");
    client.says(&format!("set long {}", "l".repeat(9000)), "+OK");
    client.settle();
    client
}

/// What every dump holds, asked of a store that was recovered from it.
fn assert_holds(client: &mut Client) {
    for number in 0..12 {
        let value = match number {
            3 => "$-1".to_owned(),
            4 => "$5\r\nnewer".to_owned(),
            _ => format!("${}\r\nvalue{number}", format!("value{number}").len()),
        };
        client.says(&format!("get key{number}"), &value);
    }
    for (key, value) in [("forgotten", "$-1"), ("soon", "$-1"), ("late", "$1\r\nv"), ("second", "$4\r\nlife")]
    {
        client.says(&format!("get {key}"), value);
    }
    client.says("mget one two", "*2\r\n$1\r\n1\r\n$1\r\n2");
    client.says("get long", &format!("$9000\r\n{}", "l".repeat(9000)));
    let left = LATE - client.now;
    client.says("pttl late", &format!(":{left}"));
    client.says("pttl one", ":-1");
    // Time goes by, and what has expired is removed.
    client.settle();
    client.says("dbsize", ":16");
}

/// The kinds of records that there are.
const KINDS: [&str; 4] = ["all removed", "removed", "value", "value that expires"];

/// That the parts have a record of each kind: what a dump has none of, it says nothing about.
fn assert_has_every_kind<'a>(parts: impl Iterator<Item = &'a [u8]>, what: &str) {
    let mut found = BTreeSet::new();
    for part in parts {
        for at in (0..part.len()).step_by(BLOCK_LEN) {
            let Ok(group) = GroupHeader::decode(&part[at..]) else { continue };
            let records = group.records(&part[at..]).unwrap();
            found.extend(records.map(|(_, record)| match (&record.value, record.expires) {
                (Some(_), None) => "value",
                (Some(_), Some(_)) => "value that expires",
                (None, _) if record.key.is_empty() => "all removed",
                (None, _) => "removed",
            }));
        }
    }
    assert_eq!(found, BTreeSet::from(KINDS), "{what}");
}

/// Recovers what the files hold, as the next life does.
fn begin_life(client: &mut Client) {
    client.store = recovered_as(client, config()).unwrap();
    client.session = client.store.open(5);
}

#[test]
fn logs_of_earlier_builds_are_recovered_read_and_written_on() {
    for (name, text) in DUMPS {
        let dump = Dump::parse(text).unwrap();
        assert_has_every_kind(dump.pieces().map(|(_, bytes)| bytes), name);
        let mut client = Client::new(config());
        client.files.edit(|files| {
            files.clear();
            files.extend(dump.pieces().map(|(name, bytes)| (part_number(name).unwrap(), bytes.to_vec())));
        });
        let parts = client.files.parts();
        assert!(parts.len() > 1 && parts[0].0 == 0, "{name} has all parts from the first on, and several");
        // Later than everything in it.
        (client.stamp, client.now) = (1000, 2_000_000);
        begin_life(&mut client);
        assert_holds(&mut client);
        client.says("set key0 anew", "+OK");
        client.says("del late", ":1");
        client.says("set more v", "+OK");
        client.settle();
        begin_life(&mut client);
        for (key, value) in
            [("key0", "$4\r\nanew"), ("late", "$-1"), ("more", "$1\r\nv"), ("key1", "$6\r\nvalue1")]
        {
            client.says(&format!("get {key}"), value);
        }
        client.settle();
        client.says("dbsize", ":16");
    }
}

#[test]
fn what_makes_the_dumps_still_does() {
    let mut client = written();
    let parts = client.files.parts();
    assert_has_every_kind(parts.iter().map(|(part, _)| client.files.bytes(*part, 0)), "today's");
    client.now = 2_000_000;
    begin_life(&mut client);
    assert_holds(&mut client);
}

#[test]
#[ignore = "writes the dump of a new version, once"]
fn make() {
    let client = written();
    let parts = client.files.parts();
    let dump = parts
        .iter()
        .fold(Dump::default(), |dump, (part, _)| dump.with(&part_name(*part), client.files.bytes(*part, 0)));
    let comment = "A log of the key-value store, format version 3: tests/earlier_builds.rs says what is in it.\n\
                   Never made again: a later version gets a file of its own.";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier").join(NEWEST);
    let is_empty = std::fs::read(&path).is_ok_and(|bytes| bytes.is_empty());
    assert!(is_empty || !path.exists(), "{} is there, and stays as it is", path.display());
    std::fs::write(path, dump.to_text(comment)).unwrap();
}
