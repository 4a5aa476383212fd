//! Devices that earlier builds wrote: every later one opens, checks and reads them, and goes on writing.
//!
//! Encoder and decoder of one build always agree with each other; only bytes of another build tell whether they still say
//! what they said. A dump is made once, with the build that first wrote its version, and never again:
//!
//! ```sh
//! cargo test -p ob-files-card earlier_builds::make -- --ignored
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ob_core::NodeKind;
use ob_files_card::{Op, check};
use ob_format::files::{Frame, Record};
use ob_sim::Dump;
use ob_wire_link::files::ROOT;
use support::{Image, MemoryDevice, Rig, SMALL, small_format};

/// What is kept, by the version of the format that it is of.
const DUMPS: [(&str, &str); 1] = [("files-v1.txt", include_str!("earlier/files-v1.txt"))];
/// The one that today's build makes.
const NEWEST: &str = "files-v1.txt";
const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const CAPACITY: u64 = (384 << 10) + 64 * SEGMENT;

/// What lies where: bytes of files, nothing of directories.
type Tree = BTreeMap<&'static str, Option<Vec<u8>>>;

/// Bytes that a dump has room for, however many they are.
fn text(tag: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + tag + (at % 8) as u8).collect()
}

/// What is on every dump.
fn expected() -> Tree {
    let mut scattered = vec![0; 39 * SEGMENT as usize + 1];
    for segment in 0..40 {
        scattered[segment * SEGMENT as usize] = segment as u8 + 1;
    }
    // It was cut off in the middle of a segment, and made longer again.
    scattered.truncate(35 * SEGMENT as usize + 100);
    scattered.resize(38 * SEGMENT as usize, 0);
    let mut zeroed = text(7, 3 * SEGMENT as usize);
    zeroed[500..2 * SEGMENT as usize].fill(0);
    Tree::from([
        ("empty", Some(Vec::new())),
        ("short", Some(b"a file of a few bytes".to_vec())),
        ("a", None),
        ("a/b", None),
        ("a/b/renamed", Some(text(3, 1000))),
        ("a/replaced", Some(b"the newer one".to_vec())),
        ("scattered", Some(scattered)),
        ("zeroed", Some(zeroed)),
        ("another directory", None),
    ])
}

/// Makes a device that holds that, with every kind of record in its log.
fn written() -> Rig {
    let device = MemoryDevice::new(CAPACITY, BLOCK);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    rig.make_directory(ROOT, b"a").unwrap();
    rig.make_directory(ROOT, b"a/b").unwrap();
    rig.make_directory(ROOT, b"another directory").unwrap();
    rig.create(ROOT, b"empty").unwrap();
    for (path, bytes) in [
        (&b"short"[..], b"a file of a few bytes".to_vec()),
        (b"old name", text(3, 1000)),
        (b"a/replaced", b"the older one".to_vec()),
        (b"newer", b"the newer one".to_vec()),
        (b"gone", text(5, 600)),
        (b"zeroed", text(7, 3 * SEGMENT as usize)),
    ] {
        let file = rig.create(ROOT, path).unwrap().id;
        rig.write(file, 0, &bytes).unwrap();
    }
    let scattered = rig.create(ROOT, b"scattered").unwrap().id;
    // Backwards, so that no two of its segments lie side by side in order: its map has more than one part.
    for segment in (0..40).rev() {
        rig.write(scattered, segment * SEGMENT, &[segment as u8 + 1]).unwrap();
    }
    rig.resize(scattered, 35 * SEGMENT + 100).unwrap();
    rig.resize(scattered, 38 * SEGMENT).unwrap();
    let zeroed = rig.stat(ROOT, b"zeroed").unwrap().id;
    rig.run(Op::Zero { file: zeroed, offset: 500, len: 2 * SEGMENT - 500 }).result.unwrap();
    rig.rename(b"old name", b"a/b/renamed").unwrap();
    rig.rename(b"newer", b"a/replaced").unwrap();
    rig.remove(ROOT, b"gone").unwrap();
    rig.flush().unwrap();
    rig.settle();
    rig
}

fn assert_holds(rig: &mut Rig, expected: &Tree, what: &str) {
    let found = rig.walk();
    let paths: Vec<_> = found.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    assert_eq!(paths, expected.keys().copied().collect::<Vec<_>>(), "{what}");
    for (path, bytes) in expected {
        let entry = &found[path.as_bytes()];
        let Some(bytes) = bytes else {
            assert_eq!(entry.kind, NodeKind::Directory, "{what}: {path}");
            continue;
        };
        assert_eq!((entry.kind, entry.size), (NodeKind::File, bytes.len() as u64), "{what}: {path}");
        let read = rig.read(entry.id, 0, bytes.len()).unwrap();
        assert!(read == *bytes, "{what}: {path} has other bytes");
    }
    rig.assert_space_is_exact();
}

fn assert_sound(device: &mut MemoryDevice, what: &str) {
    let report = check(device, &mut |_, _| {}).unwrap();
    assert_eq!((&report.findings[..], &report.superblocks[..]), (&[][..], &[][..]), "{what}");
}

/// The kinds of records that there are, as [`kind_of`] tells them apart.
const KINDS: [&str; 5] = ["cut", "directory", "file", "map", "remove"];

fn kind_of(record: &Record<'_>) -> &'static str {
    match record {
        Record::Node(node) if node.kind == NodeKind::Directory => "directory",
        Record::Node(_) => "file",
        Record::Map { .. } => "map",
        Record::Remove { .. } => "remove",
        Record::Cut { .. } => "cut",
    }
}

/// That the log on a device has a record of each kind: what a dump has none of, it says nothing about.
fn assert_has_every_kind(device: &[u8], what: &str) {
    let mut found = BTreeSet::new();
    for at in (0..device.len()).step_by(BLOCK as usize) {
        let Ok(frame) = Frame::decode(&device[at..], device.len()) else { continue };
        found.extend(frame.records().map(|record| kind_of(&record.unwrap())));
    }
    assert_eq!(found, BTreeSet::from(KINDS), "{what}");
}

#[test]
fn devices_of_earlier_builds_are_opened_read_and_written_on() {
    for (what, text) in DUMPS {
        let dump = Dump::parse(text).unwrap();
        let bytes = dump.piece("device").unwrap();
        assert_has_every_kind(bytes, what);
        let mut image = Image::new(bytes.len() as u64);
        image.write(0, bytes);
        let mut device = MemoryDevice::with(image, BLOCK);
        assert_sound(&mut device, what);
        let mut rig = Rig::mount(device, &SMALL);
        let mut tree = expected();
        assert_holds(&mut rig, &tree, what);
        // It is written on: new records behind the old ones, about nodes that those made.
        let added = rig.create(ROOT, b"a/b/added").unwrap().id;
        rig.write(added, 0, b"by a later build").unwrap();
        let short = rig.stat(ROOT, b"short").unwrap().id;
        rig.write(short, 0, b"A").unwrap();
        rig.rename(b"a/b", b"b").unwrap();
        rig.remove(ROOT, b"scattered").unwrap();
        rig.flush().unwrap();
        rig.settle();
        let moved = tree.remove("a/b/renamed").unwrap();
        tree.remove("a/b");
        tree.remove("scattered");
        tree.insert("short", Some(b"A file of a few bytes".to_vec()));
        tree.extend([("b", None), ("b/renamed", moved), ("b/added", Some(b"by a later build".to_vec()))]);
        assert_holds(&mut rig, &tree, what);
        let (_, mut device) = rig.into_parts();
        assert_sound(&mut device, what);
        assert_holds(&mut Rig::mount(device, &SMALL), &tree, what);
    }
}

#[test]
fn what_makes_the_dumps_still_does() {
    let mut rig = written();
    assert_holds(&mut rig, &expected(), "today's");
    assert_has_every_kind(&rig.device.image().bytes(0, CAPACITY as usize), "today's");
    let (_, mut device) = rig.into_parts();
    assert_sound(&mut device, "today's");
}

#[test]
#[ignore = "writes the dump of a new version, once"]
fn make() {
    let mut rig = written();
    assert_holds(&mut rig, &expected(), "today's");
    let dump = Dump::default().with("device", &rig.device.image().bytes(0, CAPACITY as usize));
    let comment = "A device of the card's file system, format version 1: tests/earlier_builds.rs says what is on it.\n\
                   Never made again: a later version gets a file of its own.";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier").join(NEWEST);
    let is_empty = std::fs::read(&path).is_ok_and(|bytes| bytes.is_empty());
    assert!(is_empty || !path.exists(), "{} is there, and stays as it is", path.display());
    std::fs::write(path, dump.to_text(comment)).unwrap();
}
