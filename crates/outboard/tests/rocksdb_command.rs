//! RocksDB's directories from a shell: what is shown of databases that RocksDB wrote is what it answered.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use std::path::Path;

use crate::rocksdb::peer::{Lookup, Peer};
use crate::support::Place;

/// Databases whose tables are of different kinds.
const GOLDEN: [&str; 4] = ["plain", "bloom", "partitioned", "zstd"];

fn folder(name: &str) -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../ob-rocksdb/tests/golden/").to_owned() + name
}

/// What a command says and ends with.
fn rocksdb(place: &Place, arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = place.output(&[&["pushdown", "rocksdb"], arguments].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Types `get` for what RocksDB was asked and compares: how many keys. One process looks up all keys of a family at a snapshot.
fn compare_lookups(place: &Place, directory: &str, lines: &[String]) -> usize {
    let asked: Vec<_> = lines.iter().filter_map(|line| Lookup::parse(line)).collect();
    let mut groups = std::collections::BTreeMap::<_, Vec<_>>::new();
    for (Lookup { family, snapshot, key }, expected) in &asked {
        groups.entry((family, snapshot)).or_default().push((hex(key), expected));
    }
    for ((family, snapshot), keys) in groups {
        let mut arguments = vec!["get", directory, "--hex", "--json", "--family", family];
        let snapshot = snapshot.map(|snapshot| format!("--snapshot={}", snapshot.0));
        arguments.extend(snapshot.as_deref());
        arguments.extend(keys.iter().map(|(key, _)| &key[..]));
        let (shown, told, code) = rocksdb(place, &arguments);
        let json: serde_json::Value = serde_json::from_str(&shown).expect(&told);
        let entries = json["entries"].as_array().unwrap();
        assert_eq!(entries.len(), keys.len());
        let is_missing = keys.iter().any(|(_, expected)| *expected == "none");
        assert_eq!(code, Some(i32::from(is_missing)), "{told}");
        for (entry, (key, expected)) in entries.iter().zip(&keys) {
            let value = entry["value"].as_str();
            let said = value.map_or("none".to_owned(), |value| {
                format!("value {}", if value.is_empty() { "-".to_owned() } else { value.to_uppercase() })
            });
            assert_eq!(
                (entry["key"].as_str().unwrap(), &said),
                (&key[..], *expected),
                "{directory}: {family}"
            );
        }
    }
    asked.len()
}

/// A walk over a whole family, as RocksDB went: family, and key and value of each entry.
fn walk(line: &str) -> Option<(String, Vec<(String, String)>)> {
    let words: Vec<&str> = line.strip_prefix("scan ")?.split(' ').collect();
    let ["now", "none", "none", "first", entries @ ..] = &words[1..] else { return None };
    let mut found = Vec::new();
    for three in entries.chunks(3) {
        match three {
            [key, value, "next"] => {
                found.push((
                    key.to_lowercase(),
                    if *value == "-" { String::new() } else { value.to_lowercase() },
                ));
            }
            ["end"] => {
                let family = words[0].as_bytes().chunks(2);
                let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
                return Some((String::from_utf8(family.map(byte).collect()).unwrap(), found));
            }
            // Such a walk turned back somewhere.
            _ => return None,
        }
    }
    None
}

fn compare_walks(place: &Place, directory: &str, lines: &[String]) -> usize {
    let walks: Vec<_> = lines.iter().filter_map(|line| walk(line)).collect();
    for (family, expected) in &walks {
        let lines: Vec<String> = expected.iter().map(|(key, value)| format!("{key}\t{value}")).collect();
        let scan = |arguments: &[&str]| {
            let (shown, told, code) =
                rocksdb(place, &[&["scan", directory, "--hex", "--family", family], arguments].concat());
            assert_eq!(code, Some(0), "{told}");
            shown.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(scan(&[]), lines, "{directory}: {family}");
        let backwards: Vec<_> = lines.iter().rev().cloned().collect();
        assert_eq!(scan(&["--reverse"]), backwards, "{directory}: {family}");
        let [_, (from, _), middle @ .., (to, _)] = &expected[..] else { continue };
        assert_eq!(scan(&["--from", from, "--to", to]), lines[1..lines.len() - 1], "{directory}: {family}");
        assert_eq!(scan(&["--from", from, "--limit", "2"]), lines[1..lines.len().min(3)], "{middle:?}");
    }
    walks.len()
}

#[test]
fn what_rocksdb_has_answered_is_shown() {
    let place = Place::new();
    for name in GOLDEN {
        let directory = folder(name);
        let answers = std::fs::read_to_string(Path::new(&directory).join("answers")).unwrap();
        let lines: Vec<String> = answers.lines().map(str::to_owned).collect();
        assert!(compare_lookups(&place, &directory, &lines) > 30, "{name}");
        assert!(compare_walks(&place, &directory, &lines) >= 4, "{name}");
    }
}

#[test]
fn a_database_that_rocksdb_has_open_is_read() {
    let place = Place::new();
    let Some(mut peer) = Peer::start(77, "lengths=7 filter=bloom ranges=6") else { return };
    let directory = peer.path().to_str().unwrap().to_owned();
    for command in ["write 300", "flush_all", "write 200", "compact", "snapshot", "write 80"] {
        peer.tell(command);
        let lines = peer.tell("ask 60");
        assert!(compare_lookups(&place, &directory, &lines) > 20);
    }
}

#[test]
fn a_database_is_listed() {
    let place = Place::new();
    let directory = folder("plain");
    let (shown, told, code) = rocksdb(&place, &["ls", &directory]);
    assert_eq!(code, Some(0), "{told}");
    assert!(shown.starts_with("  FAMILY   LEVEL  TABLES  SIZE\n"), "{shown}");
    assert!(shown.contains("5 column families; the newest write is 186\n"), "{shown}");
    let (shown, _, _) = rocksdb(&place, &["ls", &directory, "--tables"]);
    let (listed, _, _) = rocksdb(&place, &["ls", &directory, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(json["last_sequence"], 186);
    let families = json["families"].as_array().unwrap();
    let tables: Vec<&serde_json::Value> = families
        .iter()
        .flat_map(|family| family["levels"].as_array().unwrap())
        .flat_map(|level| level["tables"].as_array().unwrap())
        .collect();
    // All tables of the directory are some family's, and are as long as the files.
    let mut files = 0;
    for entry in std::fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if !name.ends_with(".sst") {
            continue;
        }
        files += 1;
        let table = tables.iter().find(|table| table["table"] == name[..]).unwrap();
        assert_eq!(table["bytes"], entry.metadata().unwrap().len());
        assert!(shown.contains(&name), "{shown}");
    }
    assert_eq!(files, tables.len());
}

#[test]
fn values_are_shown_so_that_a_line_stays_one() {
    let place = Place::new();
    let directory = folder("plain");
    let (shown, _, _) = rocksdb(&place, &["scan", &directory, "--limit", "3"]);
    let keys: Vec<&str> = shown.lines().map(|line| line.split_once('\t').unwrap().0).collect();
    assert_eq!(keys.len(), 3, "{shown:?}");
    let (one, told, code) = rocksdb(&place, &["get", &directory, keys[0], "--verbose"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(format!("{}\t{one}", keys[0]), format!("{}\n", shown.lines().next().unwrap()));
    assert!(told.contains("by ordinary reads: 1 key\n") && told.contains("to open the database: "), "{told}");
    let (both, told, code) = rocksdb(&place, &["get", &directory, keys[0], "no such key", keys[1]]);
    assert_eq!(
        (&both[..], code),
        (&shown.lines().take(2).map(|line| format!("{line}\n")).collect::<String>()[..], Some(1))
    );
    assert_eq!(told, "no such key is not there\n");
}

#[test]
fn what_cannot_be_read_is_told_with_what_to_do() {
    let place = Place::new();
    let directory = folder("plain");
    let here = place.path().to_str().unwrap();
    for (arguments, code, problem, hint) in [
        (&["ls", "/no/such"][..], 1, "cannot use /no/such: No such file or directory", ""),
        (&["ls", here], 1, "there is no file CURRENT", "hint: the directory that RocksDB was told to open"),
        (
            &["get", &directory, "k", "--family", "none"],
            1,
            "no column family \"none\"",
            "rocksdb ls DIR` lists",
        ),
        (&["get", &directory, "xyz", "--hex"], 2, "`xyz` are no bytes", "without --hex"),
        (&["scan", &directory, "--from", "1", "--hex"], 2, "`1` are no bytes", "two digits a byte"),
        (&["get", &directory, "k", "--device", "/dev/null"], 2, "/dev/null is no NVMe namespace", "hint: "),
    ] {
        let (_, told, ended) = rocksdb(&place, arguments);
        assert_eq!(ended, Some(code), "{told}");
        assert!(told.contains(problem) && told.contains(hint), "{told}");
    }
    // A table that is damaged is not read as if it were not.
    let copy = place.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        let mut bytes = std::fs::read(entry.path()).unwrap();
        if entry.path().extension().is_some_and(|extension| extension == "sst") {
            bytes[10] ^= 1;
        }
        std::fs::write(copy.join(entry.file_name()), bytes).unwrap();
    }
    let (_, told, code) = rocksdb(&place, &["scan", copy.to_str().unwrap()]);
    assert!(code == Some(1) && told.contains(".sst, at ") && told.contains("hint: `ldb repair`"), "{told}");
}
