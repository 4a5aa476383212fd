//! Which version of a file a read saw: what makes another one, and when there is none.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use ob_core::{DeviceError, DeviceOp, NodeId, Token};
use ob_files_card::{Completion, FileVersion, MetadataOp, Op, Outcome};
use ob_wire_link::files::{FileError, ROOT};
use support::{MemoryDevice, Rig, SMALL, create, pattern, read_bytes, slice, slice_of, small_format};

const BLOCK: usize = 512;
const SEGMENT: u64 = 4096;

/// A device, and a file of two segments on it.
fn bench() -> (Rig, NodeId) {
    let device = MemoryDevice::new((384 << 10) + 256 * SEGMENT, BLOCK as u32);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    rig.write(file, 0, &pattern(1, 0, 2 * SEGMENT as usize)).unwrap();
    (rig, file)
}

fn read(file: NodeId) -> Op {
    Op::Read { file, offset: 0, len: SEGMENT as u32, into: slice(SEGMENT as usize, 0) }
}

fn write(file: NodeId, tag: u64, len: usize) -> Op {
    Op::Write { file, offset: 0, from: slice_of(&pattern(tag, 0, len), 0), durable: false }
}

fn version_of(completion: &Completion) -> Option<FileVersion> {
    match completion.result {
        Ok(Outcome::Read { version, .. }) => version,
        ref other => panic!("{other:?} is no read"),
    }
}

fn version(rig: &mut Rig, file: NodeId) -> FileVersion {
    version_of(&rig.run(read(file))).expect("nothing is at the file")
}

/// The answers of these requests, whichever comes first.
fn answers<const COUNT: usize>(rig: &mut Rig, tokens: [Token; COUNT]) -> [Completion; COUNT] {
    let mut found: Vec<_> = tokens.iter().map(|_| rig.next()).collect();
    tokens.map(|token| {
        let at = found.iter().position(|completion| completion.token == token).expect("it is answered");
        found.remove(at)
    })
}

#[test]
fn everything_that_changes_a_file_makes_another_version_of_it_and_nothing_else_does() {
    let (mut rig, file) = bench();
    let other = rig.create(ROOT, b"other").unwrap().id;
    let mut last = version(&mut rig, file);
    type Change = fn(&mut Rig, NodeId);
    let changes: [Change; 6] = [
        |rig, file| drop(rig.write(file, 5, b"within").unwrap()),
        |rig, file| drop(rig.write(file, 3 * SEGMENT, b"behind the end").unwrap()),
        |rig, file| drop(rig.resize(file, 9 * SEGMENT).unwrap()),
        |rig, file| drop(rig.resize(file, 5000).unwrap()),
        |rig, file| drop(rig.run(Op::Zero { file, offset: 10, len: 600 }).result.unwrap()),
        |rig, file| drop(rig.run(Op::Zero { file, offset: 0, len: SEGMENT }).result.unwrap()),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        change(&mut rig, file);
        let now = version(&mut rig, file);
        assert!(now > last, "change {number}");
        assert_eq!(version(&mut rig, file), now, "reading changes nothing");
        last = now;
    }
    rig.flush().unwrap();
    rig.rename(b"file", b"renamed").unwrap();
    rig.write(other, 0, b"another file").unwrap();
    rig.settle();
    assert_eq!(version(&mut rig, file), last);
}

#[test]
fn a_change_that_failed_may_have_changed_something() {
    let (mut rig, file) = bench();
    let before = version(&mut rig, file);
    let is_write = |op: &DeviceOp| matches!(op, DeviceOp::Write { .. });
    rig.device.fails = Some(Box::new(move |op| is_write(op).then_some(DeviceError::Io)));
    let failed = rig.write(file, 0, &pattern(2, 0, BLOCK));
    rig.device.fails = None;
    assert_eq!(failed, Err(FileError::Io));
    assert!(version(&mut rig, file) > before);
}

#[test]
fn a_file_that_is_being_changed_has_no_version() {
    let (mut rig, file) = bench();
    rig.device.credit = Some(0);
    // A change that began before the read, one that begins while it is under way, and one that waits for it to end.
    let tokens = [rig.submit(write(file, 2, BLOCK)), rig.submit(read(file))];
    let [written, early] = answers(&mut rig, tokens);
    assert!(written.result.is_ok());
    assert_eq!(version_of(&early), None);
    for change in [write(file, 3, BLOCK), Op::Resize { file, size: 5000 }] {
        let tokens = [rig.submit(read(file)), rig.submit(change)];
        let [late, changed] = answers(&mut rig, tokens);
        assert!(changed.result.is_ok());
        assert_eq!(version_of(&late), None);
    }
    rig.device.credit = None;
    let now = version(&mut rig, file);
    assert_eq!(version(&mut rig, file), now, "it has one again");
}

#[test]
fn a_file_that_is_gone_has_no_version_and_what_took_its_name_is_another_node() {
    let (mut rig, file) = bench();
    let next = rig.create(ROOT, b"next").unwrap().id;
    version(&mut rig, file);
    rig.device.credit = Some(0);
    let rename = Op::Metadata(support::rename(b"next", b"file"));
    let tokens = [rig.submit(read(file)), rig.submit(rename)];
    let [late, renamed] = answers(&mut rig, tokens);
    assert_eq!(renamed.result, Ok(Outcome::Done));
    assert_eq!(read_bytes(&late).unwrap(), pattern(1, 0, SEGMENT as usize), "its segments are still its own");
    assert_eq!(version_of(&late), None);
    rig.device.credit = None;
    assert_eq!(rig.read(file, 0, 10), Err(FileError::NotFound));
    assert_eq!(rig.stat(ROOT, b"file").unwrap().id, next);
}

#[test]
fn whoever_guesses_a_node_before_it_is_there_does_not_upset_its_versions() {
    let (mut rig, file) = bench();
    let guessed = NodeId(file.0 + 2);
    rig.device.credit = Some(0);
    // The refusal waits for a frame, and before that is written there is a file with this number.
    let tokens = [
        rig.submit(Op::Metadata(create(ROOT, b"one"))),
        rig.submit(write(guessed, 2, BLOCK)),
        rig.submit(Op::Metadata(create(ROOT, b"two"))),
    ];
    let [_, refused, made] = answers(&mut rig, tokens);
    assert_eq!(refused.result, Err(FileError::NotFound));
    assert!(matches!(made.result, Ok(Outcome::Node(info)) if info.id == guessed), "{:?}", made.result);
    rig.device.credit = None;
    let before = version(&mut rig, guessed);
    rig.write(guessed, 0, b"bytes").unwrap();
    assert!(version(&mut rig, guessed) > before);
    let op = MetadataOp::Stat { base: guessed, path: Vec::new() };
    assert!(rig.node(op).is_ok());
}
