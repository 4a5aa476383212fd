//! What makes a durable write durable, and what that costs the device.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::collections::BTreeSet;

use ob_core::{DeviceError, DeviceOp, NodeId, Token};
use ob_files_card::{Completion, Op, Outcome};
use ob_wire_link::files::ROOT;
use support::journal::{Event, Journal, Medium};
use support::{Image, MemoryDevice, Rig, SMALL, pattern, slice_of, small_format};

const BLOCK: usize = 512;
const SEGMENT: u64 = 4096;
const DATA_START: u64 = 384 << 10;

/// A device whose changes are written down from here on, and an empty file on it.
struct Bench {
    rig: Rig,
    file: NodeId,
    start: Image,
    journal: Journal,
}

/// What a request has cost.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cost {
    /// Writes of data, and those of them that the device had to make durable.
    data: usize,
    durable: usize,
    frames: usize,
    flushes: usize,
}

impl Bench {
    fn new() -> Self {
        let device = MemoryDevice::new(DATA_START + 256 * SEGMENT, BLOCK as u32);
        let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
        let file = rig.create(ROOT, b"file").unwrap().id;
        rig.flush().unwrap();
        rig.settle();
        let (start, journal) = (rig.device.image().clone(), Journal::default());
        rig.device.journal = Some(journal.clone());
        Self { rig, file, start, journal }
    }

    fn begin(&mut self, tag: u64, offset: u64, len: usize) -> Token {
        let from = slice_of(&pattern(tag, offset, len), 0);
        self.rig.submit(Op::Write { file: self.file, offset, from, durable: true })
    }

    fn write(&mut self, tag: u64, offset: u64, len: usize) -> Cost {
        self.journal.take();
        let token = self.begin(tag, offset, len);
        let answer = self.rig.next();
        assert_eq!(answer.token, token);
        assert_written(&answer, len);
        let mut cost = Cost::default();
        for event in self.journal.take() {
            match event {
                Event::Started(change) if change.offset >= DATA_START && change.bytes.is_some() => {
                    cost.data += 1;
                    cost.durable += usize::from(change.durable);
                }
                Event::Started(change) => cost.frames += usize::from(change.bytes.is_some()),
                Event::FlushStarted(_) => cost.flushes += 1,
                _ => {}
            }
        }
        cost
    }

    /// Files as they are after a loss of power now that takes all that can be lost.
    fn lose_power(&mut self) -> Rig {
        let mut medium = Medium::new(self.start.clone(), BLOCK as u32);
        for event in self.journal.take() {
            medium.apply(&event);
        }
        Rig::mount(MemoryDevice::with(medium.image(&BTreeSet::new()), BLOCK as u32), &SMALL)
    }
}

fn assert_written(answer: &Completion, len: usize) {
    assert!(matches!(answer.result, Ok(Outcome::Written { len: written, .. }) if written as usize == len));
}

#[test]
fn a_write_is_made_durable_once() {
    let mut bench = Bench::new();
    let in_place = Cost { data: 1, durable: 1, ..Cost::default() };
    let behind_a_frame = Cost { data: 1, frames: 1, flushes: 1, ..Cost::default() };
    assert_eq!(bench.write(1, 0, BLOCK), behind_a_frame, "a segment, and a size");
    assert_eq!(bench.write(2, BLOCK as u64, BLOCK), behind_a_frame, "a size");
    assert_eq!(bench.write(3, 0, 2 * BLOCK), in_place);
    let file = bench.file;
    bench.rig.resize(file, 4 * SEGMENT).unwrap();
    let with_the_size = Cost { data: 1, flushes: 1, ..Cost::default() };
    assert_eq!(bench.write(4, 0, BLOCK), with_the_size, "its file is not durable as it is");
    assert_eq!(bench.write(5, 0, BLOCK), in_place, "and now it is");
    assert_eq!(bench.write(6, SEGMENT, BLOCK), behind_a_frame, "a segment within the size");
    assert_eq!(bench.write(7, SEGMENT, 2 * BLOCK), in_place);
    // A part of a block is read, changed and written back.
    assert_eq!(bench.write(8, 10, 100), in_place);
}

#[test]
fn what_is_answered_as_durable_is_there_after_a_loss_of_power() {
    for (offset, len) in [(0, BLOCK), (100, 50), (0, 3 * SEGMENT as usize), (SEGMENT - 100, 200)] {
        let mut bench = Bench::new();
        let token = bench.begin(1, offset, len);
        let answer = bench.rig.next();
        assert_eq!(answer.token, token);
        assert_written(&answer, len);
        let file = bench.file;
        let found = bench.lose_power().read(file, offset, len).unwrap();
        assert!(found == pattern(1, offset, len), "{offset}, {len}");
    }
}

/// The bytes of one write are under way until everything else is done, flushed and answered.
fn with_another_before(held: (u64, usize), other: (u64, usize)) {
    let mut bench = Bench::new();
    let late = pattern(1, held.0, held.1);
    let first_block = late[..BLOCK].to_vec();
    bench.rig.device.holds = Some(Box::new(
        move |op| matches!(op, DeviceOp::Write { from, .. } if from.starts_with(&first_block)),
    ));
    let late_token = bench.begin(1, held.0, held.1);
    let early_token = bench.begin(2, other.0, other.1);
    let early = bench.rig.next();
    assert_eq!(early.token, early_token);
    assert_written(&early, other.1);
    // What the log says of the file is durable now, of both writes.
    bench.rig.flush().unwrap();
    bench.rig.device.holds = None;
    let answer = bench.rig.next();
    assert_eq!(answer.token, late_token);
    assert_written(&answer, held.1);
    let file = bench.file;
    let mut left = bench.lose_power();
    let found = left.read(file, held.0, held.1).unwrap();
    assert!(found == late, "{held:?} was answered as durable, and is lost");
    let found = left.read(file, other.0, other.1).unwrap();
    assert!(found == pattern(2, other.0, other.1), "{other:?} was answered as durable, and is lost");
}

#[test]
fn a_flush_of_another_writes_frame_is_none_of_this_writes_bytes() {
    // Both make the file longer, and the other one goes beyond this.
    with_another_before((0, BLOCK), (BLOCK as u64, BLOCK));
    // Both fill segments of their own, and one frame maps both.
    with_another_before((0, BLOCK), (2 * SEGMENT, BLOCK));
    with_another_before((0, 2 * SEGMENT as usize), (2 * SEGMENT, SEGMENT as usize));
}

/// The beginning of a frame survives a loss of power without its end, so that the next life does not find it. That life writes another frame there, with the
/// same end, and of that one a loss of power leaves only the end: the first one is not whole again.
#[test]
fn what_one_life_did_not_find_is_not_back_in_the_next() {
    const LOG: u64 = 128 << 10;
    // Two names that end alike make one frame of two blocks.
    let create_two = |rig: &mut Rig, digits: [u8; 2]| {
        for digit in digits {
            let name = [&[digit][..], &[b'x'; 254]].concat();
            rig.submit(Op::Metadata(support::create(ROOT, &name)));
        }
        rig.settle();
        rig.device.image().bytes(LOG, 2 * BLOCK)
    };
    let mount = |image: &Image| Rig::mount(MemoryDevice::with(image.clone(), BLOCK as u32), &SMALL);
    let device = MemoryDevice::new(DATA_START + 256 * SEGMENT, BLOCK as u32);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    let mut image = rig.device.image().clone();
    let first = create_two(&mut rig, [b'1', b'2']);
    image.write(LOG, &first[..BLOCK]);

    let mut rig = mount(&image);
    assert!(rig.walk().is_empty(), "half a frame is none");
    let mut image = rig.device.image().clone();
    let second = create_two(&mut rig, [b'3', b'4']);
    assert_eq!(first[BLOCK..], second[BLOCK..], "both end alike");
    image.write(LOG + BLOCK as u64, &second[BLOCK..]);

    assert!(mount(&image).walk().is_empty(), "nothing of the first life takes effect in the third");
}

/// Where that place cannot be written, nothing is, and all that is there can be read; where nothing lies, nothing is written.
#[test]
fn a_log_that_cannot_be_cleared_is_read_only() {
    let device = MemoryDevice::new(DATA_START + 256 * SEGMENT, BLOCK as u32);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    rig.create(ROOT, b"file").unwrap();
    rig.flush().unwrap();
    rig.settle();
    let head = (128 << 10) + BLOCK as u64;
    let mut image = rig.device.image().clone();
    let mount = |image: &Image| {
        let mut device = MemoryDevice::with(image.clone(), BLOCK as u32);
        let is_head = move |op: &DeviceOp| matches!(op, DeviceOp::Write { offset, .. } if *offset == head);
        device.fails = Some(Box::new(move |op| is_head(op).then_some(DeviceError::Io)));
        Rig::mount(device, &SMALL)
    };
    assert!(!mount(&image).files.is_frozen(), "there is nothing to overwrite");
    image.write(head, b"OBFR, and not all of it");
    let mut rig = mount(&image);
    assert!(rig.files.is_frozen());
    assert_eq!(rig.walk().len(), 1);
    assert!(rig.create(ROOT, b"another").is_err());
}
