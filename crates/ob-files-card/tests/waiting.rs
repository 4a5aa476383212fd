//! Requests that wait for others: what they are told is so on the device too, and all of them go on.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use ob_core::{DeviceError, DeviceOp, NodeId};
use ob_files_card::{MetadataOp, Op};
use ob_wire_link::files::{FileError, ROOT};
use support::{MemoryDevice, Rig, SMALL, create, pattern, read_bytes, rename, slice, slice_of, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const CAPACITY: u64 = DATA_START + 64 * SEGMENT;
const DATA_START: u64 = 384 << 10;

fn remove(path: &[u8]) -> MetadataOp {
    MetadataOp::Remove { base: ROOT, path: path.to_vec(), only: None }
}

fn is_frame(op: &DeviceOp) -> bool {
    matches!(op, DeviceOp::Write { offset, .. } if *offset < DATA_START)
}

/// A device with a file, a file of the same bytes in a directory, and nothing under way.
fn bench() -> (Rig, NodeId) {
    let mut rig = Rig::format(MemoryDevice::new(CAPACITY, BLOCK), &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    rig.make_directory(ROOT, b"directory").unwrap();
    let inner = rig.create(ROOT, b"directory/inner").unwrap().id;
    for file in [file, inner] {
        rig.write(file, 0, &pattern(1, 0, 100_000)).unwrap();
    }
    rig.flush().unwrap();
    rig.settle();
    (rig, file)
}

fn fail_frames(rig: &mut Rig) {
    rig.device.fails = Some(Box::new(|op| is_frame(op).then_some(DeviceError::Io)));
}

#[test]
fn names_are_not_said_to_be_changed_whose_change_was_refused() {
    let refused = Err(FileError::ReadOnly);
    for (was, op) in [
        ("removed", remove(b"file")),
        ("renamed", rename(b"file", b"renamed")),
        ("replaced", rename(b"directory/inner", b"file")),
    ] {
        let (mut rig, file) = bench();
        fail_frames(&mut rig);
        assert_eq!(rig.metadata(op).map(drop), refused, "{was}");
        rig.device.fails = None;
        // Nobody knows here, so nobody is told: neither that the name is free, nor that it is taken.
        assert_eq!(rig.stat(ROOT, b"file").map(drop), refused, "{was}");
        assert_eq!(rig.create(ROOT, b"file").map(drop), refused, "{was}");
        assert_eq!(rig.list(ROOT).map(drop), refused, "{was}");
        if was == "removed" {
            assert_eq!(rig.read(file, 0, 10).map(drop), refused, "it is there");
            assert_eq!(rig.stat(file, b"").map(drop), refused);
            assert!(rig.read(file, 0, 0).is_err());
        }
        if was == "replaced" {
            assert_eq!(rig.stat(ROOT, b"directory/inner").map(drop), refused);
        } else {
            // What has nothing to do with it is told as ever.
            let inner = rig.stat(ROOT, b"directory/inner").unwrap().id;
            assert!(rig.read(inner, 0, 100_000).unwrap() == pattern(1, 0, 100_000));
        }
        assert_eq!(rig.stat(ROOT, b"nowhere").map(drop), Err(FileError::NotFound));
        assert_eq!(rig.read(NodeId(12345), 0, 1).map(drop), Err(FileError::NotFound));
        let mut next = Rig::mount(MemoryDevice::with(rig.device.image().clone(), BLOCK), &SMALL);
        assert_eq!(next.stat(ROOT, b"file").unwrap().id, file, "it is as it was");
        assert!(next.read(file, 0, 100_000).unwrap() == pattern(1, 0, 100_000));
    }
}

#[test]
fn a_file_that_was_not_made_is_not_shown() {
    let (mut rig, _) = bench();
    fail_frames(&mut rig);
    assert_eq!(rig.create(ROOT, b"directory/new").map(drop), Err(FileError::ReadOnly));
    rig.device.fails = None;
    for op in [
        MetadataOp::Stat { base: ROOT, path: b"directory/new".to_vec() },
        MetadataOp::Open { base: ROOT, path: b"directory/new".to_vec(), create: true, exclusive: false },
        create(ROOT, b"directory/new"),
    ] {
        assert_eq!(rig.metadata(op).map(drop), Err(FileError::ReadOnly));
    }
    // Nor is it counted: neither where the directory is described, nor where it is listed.
    let open = MetadataOp::Open { base: ROOT, path: b"directory".to_vec(), create: false, exclusive: false };
    assert_eq!(rig.stat(ROOT, b"directory").map(drop), Err(FileError::ReadOnly));
    assert_eq!(rig.metadata(open).map(drop), Err(FileError::ReadOnly));
    assert_eq!(rig.list(ROOT).map(drop), Err(FileError::ReadOnly));
    let inner = rig.stat(ROOT, b"directory/inner").unwrap();
    assert_eq!(rig.stat(inner.parent.unwrap(), b"").map(drop), Err(FileError::ReadOnly));
    assert_eq!(rig.stat(inner.parent.unwrap(), b"inner"), Ok(inner));
    assert_eq!(rig.stat(ROOT, b"").unwrap().size, 2);
    assert!(rig.stat(ROOT, b"file").is_ok());
}

#[test]
fn a_file_is_not_said_to_be_shorter_whose_cutting_was_refused() {
    let (mut rig, file) = bench();
    fail_frames(&mut rig);
    assert_eq!(rig.resize(file, 10).map(drop), Err(FileError::ReadOnly));
    rig.device.fails = None;
    assert_eq!(rig.stat(ROOT, b"file").map(drop), Err(FileError::ReadOnly));
    assert_eq!(rig.stat(file, b"").map(drop), Err(FileError::ReadOnly));
    assert_eq!(rig.list(ROOT).map(drop), Err(FileError::ReadOnly));
    assert_eq!(rig.stat(ROOT, b"directory/inner").unwrap().size, 100_000);
    let mut next = Rig::mount(MemoryDevice::with(rig.device.image().clone(), BLOCK), &SMALL);
    assert_eq!(next.stat(ROOT, b"file").unwrap().size, 100_000);
}

/// A request that is at a file when it is removed is told that it is gone when that is so on the device, and not before.
#[test]
fn who_is_at_a_file_that_is_removed_hears_of_it_when_it_is_so() {
    for fails in [false, true] {
        let (mut rig, file) = bench();
        // More than there are buffers for: the rest of it waits.
        let into = slice(90_000, 0);
        rig.device.holds =
            Some(Box::new(|op: &DeviceOp| is_frame(op) || matches!(op, DeviceOp::Read { .. })));
        let read = rig.submit(Op::Read { file, offset: 3, len: 90_000, into });
        rig.files.poll(&mut rig.device);
        let removal = rig.submit(Op::Metadata(remove(b"file")));
        rig.files.poll(&mut rig.device);
        rig.device.holds = Some(Box::new(is_frame));
        while rig.files.poll(&mut rig.device) {}
        assert!(rig.files.next_completion().is_none(), "the removal is not on the device");
        rig.device.holds = None;
        if fails {
            fail_frames(&mut rig);
        }
        let answers: Vec<_> = (0..2).map(|_| rig.next()).collect();
        for answer in answers {
            let told = match (answer.token == read, fails) {
                (_, true) => Err(FileError::ReadOnly),
                (true, false) => Err(FileError::NotFound),
                (false, false) => Ok(()),
            };
            assert!(answer.token == read || answer.token == removal);
            assert_eq!(answer.result.map(drop), told);
        }
    }
}

/// What has changed a file and waits to be told so is not told of the file's removal before that is on the device, neither by an error
/// nor by a size of nothing.
#[test]
fn who_has_changed_a_file_that_is_removed_hears_of_it_when_it_is_so() {
    let write = |file, durable| {
        let from = slice_of(&pattern(2, 100_000, 5000), 0);
        Op::Write { file, offset: 100_000, from, durable }
    };
    let ops: [(&str, &dyn Fn(NodeId) -> Op); 4] = [
        ("resize", &|file| Op::Resize { file, size: 200_000 }),
        ("write", &|file| write(file, false)),
        ("durable write", &|file| write(file, true)),
        ("flushed write", &|file| write(file, true)),
    ];
    for (what, op) in ops {
        for fails in [false, true] {
            let (mut rig, file) = bench();
            let is_flush = |op: &DeviceOp| matches!(op, DeviceOp::Flush);
            let at_flush = what == "flushed write";
            rig.device.holds = Some(if at_flush { Box::new(is_flush) } else { Box::new(is_frame) });
            let change = rig.submit(op(file));
            while rig.files.poll(&mut rig.device) {}
            let is_awaited = rig.device.queued().any(|op| if at_flush { is_flush(op) } else { is_frame(op) });
            assert!(is_awaited, "{what}: what it waits for is under way");
            let removal = rig.submit(Op::Metadata(remove(b"file")));
            // What the change waits for comes to its end, and the removal's frame does not.
            let mut frames = u32::from(at_flush);
            rig.device.holds = Some(Box::new(move |op| {
                frames += u32::from(is_frame(op));
                is_frame(op) && frames > 1
            }));
            while rig.files.poll(&mut rig.device) {}
            assert!(rig.files.next_completion().is_none(), "{what}: the removal is not on the device");
            rig.device.holds = None;
            if fails {
                fail_frames(&mut rig);
            }
            for answer in [rig.next(), rig.next()] {
                let told = match (answer.token == change, fails) {
                    (_, true) => Err(FileError::ReadOnly),
                    (true, false) => Err(FileError::NotFound),
                    (false, false) => Ok(()),
                };
                assert!(answer.token == change || answer.token == removal);
                assert_eq!(answer.result.map(drop), told, "{what}");
            }
        }
    }
}

/// However many wait for the same blocks, each is let on when it can, without anything else having to happen.
#[test]
fn all_who_wait_for_the_same_blocks_go_on() {
    let (mut rig, file) = bench();
    let is_first = |op: &DeviceOp| matches!(op, DeviceOp::Read { .. });
    rig.device.holds = Some(Box::new(is_first));
    let write = |offset: u64, len: usize, tag| Op::Write {
        file,
        offset,
        from: slice_of(&pattern(tag, offset, len), 0),
        durable: false,
    };
    // Parts of one block, the block itself, and more than it.
    let tokens = [(10, 20), (40, 20), (70, 20), (0, 512), (100, 20), (0, 1024), (130, 20), (500, 30)]
        .map(|(offset, len)| rig.submit(write(offset, len, 2)));
    while rig.files.poll(&mut rig.device) {}
    assert!(rig.files.next_completion().is_none(), "the first of them is not done");
    assert_eq!(rig.files.in_flight(), tokens.len());
    rig.device.holds = None;
    while rig.files.poll(&mut rig.device) {}
    let answered = std::iter::from_fn(|| rig.files.next_completion()).filter(|done| done.result.is_ok());
    assert_eq!(answered.count(), tokens.len());
    let done = rig.run(Op::Read { file, offset: 0, len: 1024, into: slice(1024, 0) });
    assert!(read_bytes(&done).unwrap() == pattern(2, 0, 1024));
}

/// Who writes a whole block is not kept waiting by those who want to change parts of it and came later.
#[test]
fn a_whole_block_is_written_however_many_change_parts_of_it() {
    for copy_everything in [false, true] {
        let options = ob_files_card::FilesOptions { copy_everything, ..SMALL };
        let mut rig = Rig::format(MemoryDevice::new(CAPACITY, BLOCK), &small_format(SEGMENT), &options);
        let file = rig.create(ROOT, b"file").unwrap().id;
        rig.write(file, 0, &pattern(1, 0, 4096)).unwrap();
        let write = |offset: u64, len: usize, tag| Op::Write {
            file,
            offset,
            from: slice_of(&pattern(tag, offset, len), 0),
            durable: false,
        };
        // There is never a moment without somebody who waits for the block: each answer brings the next one.
        let submit_part = |rig: &mut Rig| rig.submit(write(10, 20, 2));
        for _ in 0..16 {
            submit_part(&mut rig);
        }
        let whole = rig.submit(write(0, 1024, 3));
        submit_part(&mut rig);
        let answered = (0..200).any(|_| {
            let answer = rig.next();
            assert!(answer.result.is_ok());
            submit_part(&mut rig);
            answer.token == whole
        });
        assert!(answered, "it waits for ever");
        for _ in 0..17 {
            rig.next().result.unwrap();
        }
        assert_eq!(rig.files.in_flight(), 1);
    }
}

/// How long it takes when all that a card takes at once is for one block: to be run by hand, before and after a change.
#[test]
#[ignore = "it measures"]
fn time_of_many_who_wait_for_one_block() {
    let options = ob_files_card::FilesOptions { requests_max: 4096, ..SMALL };
    let mut rig = Rig::format(MemoryDevice::new(CAPACITY, BLOCK), &small_format(SEGMENT), &options);
    let file = rig.create(ROOT, b"file").unwrap().id;
    rig.write(file, 0, &pattern(1, 0, 512)).unwrap();
    for count in [256u64, 1024, 4096] {
        let begun = std::time::Instant::now();
        for index in 0..count {
            let (offset, from) = (index % 500, slice_of(&pattern(2, index % 500, 3), 0));
            rig.submit(Op::Write { file, offset, from, durable: false });
        }
        for _ in 0..count {
            rig.next().result.unwrap();
        }
        println!("{count} writes: {:?}", begun.elapsed());
    }
}

#[test]
fn who_tidies_up_is_not_answered_while_the_device_has_its_memory() {
    let (mut rig, file) = bench();
    rig.resize(file, 100).unwrap();
    rig.flush().unwrap();
    rig.settle();
    rig.device.holds = Some(Box::new(|op| matches!(op, DeviceOp::Read { .. }) || is_frame(op)));
    let grows = rig.submit(Op::Resize { file, size: 9000 });
    rig.submit(Op::Metadata(create(ROOT, b"other")));
    rig.files.poll(&mut rig.device);
    assert_eq!(rig.device.queued().count(), 2, "a block is read, and a frame written");
    // In one turn the file goes, which wakes who has it for itself, and the log fails.
    rig.submit(Op::Metadata(remove(b"file")));
    fail_frames(&mut rig);
    rig.device.holds = Some(Box::new(|op| matches!(op, DeviceOp::Read { .. })));
    rig.files.poll(&mut rig.device);
    assert!(rig.files.is_frozen());
    for _ in 0..2 {
        assert_ne!(rig.files.next_completion().unwrap().token, grows, "its read is under way");
    }
    assert!(rig.files.next_completion().is_none());
    rig.device.holds = None;
    assert_eq!(rig.next().token, grows);
    assert!(rig.files.is_idle());
}
