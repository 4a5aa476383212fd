//! Damaged files: an error with a type, or the right answer; never a wrong one, and never a panic.

use std::collections::BTreeSet;

use ob_rocksdb::log::{Position, scan};
use ob_rocksdb::{Database, Options};

use crate::support::block_on;
use crate::support::golden::{expected, golden, read_all};
use crate::support::memory::MemoryFiles;

/// Where the last frame of a log begins: if its length is damaged, the log ends before it as far as anybody can tell, RocksDB too.
fn last_frame(name: &str, content: &[u8]) -> usize {
    let number = name.strip_suffix(".log").map_or(0, |number| number.parse().unwrap());
    let records = scan(content, Position::default(), number).unwrap().records;
    usize::try_from(records.last().map_or(0, |(offset, _)| *offset)).unwrap()
}

fn is_log(name: &str) -> bool {
    name.ends_with(".log") || name.starts_with("MANIFEST")
}

/// Names of files whose damage a checksum or a rule can show: the OPTIONS file is plain text.
fn checked_files(files: &MemoryFiles) -> Vec<String> {
    let unchecked = |name: &&String| *name != "answers" && !name.starts_with("OPTIONS");
    files.files.keys().filter(unchecked).cloned().collect()
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    for name in ["bloom", "partitioned", "zstd"] {
        let (files, answers) = golden(name);
        // Scans of everything, and some lookups: each costs for every bit.
        let answers: Vec<String> = answers.into_iter().rev().take(20).collect();
        let right: Vec<String> = answers.iter().map(|line| expected(line)).collect();
        let (mut refused, mut unharmed) = (0, 0);
        for file in checked_files(&files) {
            let content = files.files[&file].clone();
            let tail = if is_log(&file) { last_frame(&file, &content) } else { usize::MAX };
            // Every part of every file is hit, if not every byte: each costs a database.
            for at in (0..content.len()).step_by(if name == "bloom" { 2 } else { 5 }) {
                let bit = (at * 5 + at / 8) % 8;
                let damaged = files.with(&file, |content| content[at] ^= 1 << bit);
                match read_all(damaged, &answers) {
                    Err(_) => refused += 1,
                    Ok(found) if found == right => unharmed += 1,
                    Ok(_) if at >= tail && at < tail + 7 => {}
                    Ok(_) => panic!("{name}/{file}: bit {bit} of byte {at} gives another answer"),
                }
            }
        }
        // The padding of footers, and what is not read at all, may change.
        assert!(refused > 5 * unharmed, "{name}: {refused} refused, {unharmed} unharmed");
    }
}

#[test]
fn a_cut_file_is_an_error_or_an_earlier_state() {
    let (files, answers) = golden("bloom");
    let right: Vec<String> = answers.iter().map(|line| expected(line)).collect();
    let mut states = BTreeSet::new();
    for file in checked_files(&files) {
        let len = files.files[&file].len();
        for cut in (0..len).filter(|cut| cut % 3 == 0 || cut + 80 > len) {
            let found = read_all(files.with(&file, |content| content.truncate(cut)), &answers);
            match found {
                Ok(found) if is_log(&file) => drop(states.insert(found)),
                Ok(found) => assert_eq!(found, right, "{file} cut to {cut}"),
                Err(_) => {}
            }
        }
        if !is_log(&file) {
            let without = MemoryFiles {
                files: files.files.clone().into_iter().filter(|(name, _)| *name != file).collect(),
            };
            assert!(read_all(without, &answers).is_err(), "{file} is not there");
        }
    }
    assert!(states.len() > 5, "a log that is cut shows what was written before: {}", states.len());
}

#[test]
fn a_damaged_log_before_the_last_is_an_error() {
    let (files, answers) = golden("bloom");
    let log = checked_files(&files).into_iter().rfind(|name| name.ends_with(".log")).unwrap();
    let next = format!("{:06}.log", log[..6].parse::<u64>().unwrap() + 1);
    let cut = files.with(&log, |content| content.truncate(content.len() - 3));
    assert!(read_all(cut.clone(), &answers).is_ok(), "it is the last one");
    let mut followed = cut;
    followed.files.insert(next, std::sync::Arc::default());
    assert!(read_all(followed, &answers).is_err());
}

#[test]
fn logs_in_another_directory_are_refused_rather_than_left_out() {
    let (mut files, answers) = golden("bloom");
    let name = files.files.keys().find(|name| name.starts_with("OPTIONS")).unwrap().clone();
    let text = String::from_utf8_lossy(&files.files[&name]).into_owned();
    let elsewhere = text.replacen("  wal_dir=\n", "  wal_dir=/fast\n", 1);
    let elsewhere = match elsewhere == text {
        true => text.replacen("[DBOptions]\n", "[DBOptions]\n  wal_dir=/fast\n", 1),
        false => elsewhere,
    };
    files.files.insert(name, elsewhere.into_bytes().into());
    // With logs beside the tables, as in a copy, it is read.
    read_all(files.clone(), &answers).unwrap();
    let log = files.files.keys().rfind(|name| name.ends_with(".log")).unwrap().clone();
    let needed = files.files.remove(&log).unwrap();
    files.files.retain(|name, _| !name.ends_with(".log"));
    let number: u64 = log[..6].parse().unwrap();
    let left_here = |number: u64| {
        let mut files = files.clone();
        files.files.insert(format!("{number:06}.log"), needed.clone());
        files
    };
    // An empty one is as good: it is where the next write would go.
    let mut empty = files.clone();
    empty.files.insert(log, std::sync::Arc::default());
    assert!(block_on(Database::open(empty, Options::default())).is_ok());
    // None at all, or ones that nobody needs any more.
    for files in [files.clone(), left_here(number - 1), left_here(3)] {
        let error = read_all(files, &answers).unwrap_err();
        assert!(error.to_string().contains("/fast"), "{error}");
    }
}
