//! What must be atomic is: wherever the frames of the log happen to end, and whenever power is lost.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use ob_core::NodeId;
use ob_files_card::Op;
use ob_wire_link::files::ROOT;
use support::journal::{Event, Journal, Medium};
use support::{MemoryDevice, Rig, SMALL, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const CAPACITY: u64 = (384 << 10) + 32 * SEGMENT;
/// Bytes of a record with the longest name, and of all records that fit into a frame.
const RECORD: usize = 288;
const FRAME: usize = 4096 - 64;

/// A device with `from` and `to`, each of which says who it is, and a journal of what is done to it.
fn prepared() -> (Rig, Journal, NodeId, NodeId) {
    let mut rig = Rig::format(MemoryDevice::new(CAPACITY, BLOCK), &small_format(SEGMENT), &SMALL);
    let from = rig.create(ROOT, b"from").unwrap().id;
    let to = rig.create(ROOT, b"to").unwrap().id;
    rig.write(from, 0, &pattern(1, 0, 4 * SEGMENT as usize)).unwrap();
    rig.write(to, 0, &pattern(2, 0, 100)).unwrap();
    rig.flush().unwrap();
    rig.settle();
    let journal = Journal::default();
    rig.device.journal = Some(journal.clone());
    (rig, journal, from, to)
}

/// Fills the frame that is open with so many bytes of records.
fn fill(rig: &mut Rig, len: usize) -> usize {
    let (mut left, mut count) = (len, 0);
    while left >= 40 {
        // A record is 32 bytes and the name, in units of 8.
        let record = if left >= RECORD + 40 || left == RECORD { RECORD } else { left.min(RECORD - 8) };
        let name = format!("{count:0>width$}", width = (record - 32).min(255));
        rig.submit(Op::Metadata(support::create(ROOT, name.as_bytes())));
        (left, count) = (left - record, count + 1);
    }
    count
}

/// Every image that a loss of power leaves when the log is cut off before one of its frames.
fn images(start: support::Image, journal: &Journal, mut check: impl FnMut(&mut Rig)) -> usize {
    let mut medium = Medium::new(start, BLOCK);
    let mut frames = 0;
    for event in journal.take() {
        if matches!(event, Event::Started(_)) {
            let kept = medium.at_risk().into_iter().collect();
            check(&mut Rig::mount(MemoryDevice::with(medium.image(&kept), BLOCK), &SMALL));
            frames += 1;
        }
        medium.apply(&event);
    }
    let kept = medium.at_risk().into_iter().collect();
    check(&mut Rig::mount(MemoryDevice::with(medium.image(&kept), BLOCK), &SMALL));
    frames
}

#[test]
fn a_rename_replaces_its_target_in_the_same_moment() {
    let mut seen = [0, 0];
    for len in (FRAME - 160..=FRAME).step_by(8) {
        let (mut rig, journal, from, to) = prepared();
        let start = rig.device.image().clone();
        let count = fill(&mut rig, len);
        rig.submit(Op::Metadata(support::rename(b"from", b"to")));
        for _ in 0..=count {
            assert!(rig.next().result.is_ok());
        }
        images(start, &journal, |rig| {
            let (old, new) = (rig.stat(ROOT, b"from").map(|info| info.id), rig.stat(ROOT, b"to").unwrap().id);
            let before = old == Ok(from) && new == to;
            let after = old.is_err() && new == from;
            assert!(before || after, "{len} bytes before it: {old:?} and {new}");
            seen[usize::from(after)] += 1;
        });
    }
    assert!(seen[0] > 10 && seen[1] > 10, "power is lost before and after: {seen:?}");
}

#[test]
fn a_file_becomes_smaller_in_one_moment() {
    let mut seen = [0, 0];
    for len in (FRAME - 160..=FRAME).step_by(8) {
        let (mut rig, journal, from, _) = prepared();
        let start = rig.device.image().clone();
        let count = fill(&mut rig, len);
        rig.submit(Op::Resize { file: from, size: SEGMENT + 50 });
        for _ in 0..=count {
            assert!(rig.next().result.is_ok());
        }
        images(start, &journal, |rig| {
            let info = rig.stat(from, b"").unwrap();
            let after = info.size == SEGMENT + 50;
            assert!(after || info.size == 4 * SEGMENT);
            assert_eq!(
                info.allocated,
                if after { 2 * SEGMENT } else { 4 * SEGMENT },
                "{len} bytes before it"
            );
            let bytes = rig.read(from, 0, info.size as usize).unwrap();
            assert!(bytes == pattern(1, 0, info.size as usize));
            seen[usize::from(after)] += 1;
        });
    }
    assert!(seen[0] > 10 && seen[1] > 10, "power is lost before and after: {seen:?}");
}
