//! Files as block devices, beside groups that use the same files.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::collections::BTreeSet;

use ob_core::{Device, DeviceCompletion, DeviceError, DeviceOp, Instant, NodeId, Token};
use ob_files_card::{FileVolume, FilesService, OpeningVolume, VolumeError};
use ob_ring::CardService;
use ob_sim::Rng;
use ob_wire_link::files::{FileError, Operation, ROOT};
use support::journal::{Journal, Medium};
use support::rings::{House, Request};
use support::{MemoryDevice, SMALL, UUID, pattern, slice, slice_of, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const SEGMENTS: u64 = 32;
const RING: u32 = 64 << 10;

fn device() -> MemoryDevice {
    let mut device = MemoryDevice::new((384 << 10) + SEGMENTS * SEGMENT, BLOCK);
    ob_files_card::format(&mut device, &small_format(SEGMENT), UUID).unwrap();
    device
}

fn house_on(mut device: MemoryDevice) -> House {
    let files = ob_files_card::mount(&mut device, &SMALL).unwrap();
    House::new(FilesService::new(files, device))
}

fn open(house: &mut House, path: &[u8], make: Option<u64>) -> Result<FileVolume, VolumeError> {
    let mut opening = OpeningVolume::new(house.service.local(), path, make);
    for _ in 0..10_000 {
        if let Some(opened) = opening.poll() {
            return opened;
        }
        house.turn();
    }
    panic!("a volume is never opened");
}

fn run(house: &mut House, volume: &mut FileVolume, op: DeviceOp) -> DeviceCompletion {
    volume.submit(Token(77), op).unwrap();
    for _ in 0..10_000 {
        if let Some(completion) = volume.poll() {
            assert_eq!(completion.token, Token(77));
            return completion;
        }
        house.turn();
    }
    panic!("an operation is never answered");
}

fn write(house: &mut House, volume: &mut FileVolume, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
    run(house, volume, DeviceOp::Write { offset, from: slice_of(bytes, 0), durable: false }).result
}

fn read(house: &mut House, volume: &mut FileVolume, offset: u64, len: usize) -> Vec<u8> {
    let completion = run(house, volume, DeviceOp::Read { offset, into: slice(len, 0) });
    assert_eq!(completion.result, Ok(()));
    let DeviceOp::Read { into, .. } = completion.op else { panic!("{:?}", completion.op) };
    into.to_vec()
}

/// Bytes that the volume says that it has, which is what is not free.
fn allocated(house: &House, volume: &FileVolume) -> u64 {
    let allocated = volume.allocated().load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(allocated, (SEGMENTS - free_segments(house)) * SEGMENT);
    allocated
}

fn free_segments(house: &House) -> u64 {
    house.service.files().space_info().free / SEGMENT
}

#[test]
fn a_volume_is_like_memory_and_takes_space_as_it_is_written() {
    const LEN: u64 = 24 * SEGMENT;
    let mut house = house_on(device());
    let mut volume = open(&mut house, b"volumes/deep/a", Some(LEN)).unwrap();
    assert_eq!((volume.info().capacity, volume.info().block_len), (LEN, BLOCK));
    assert_eq!(u64::from(volume.info().discard_unit), SEGMENT, "what is given back is a segment");
    assert_eq!(free_segments(&house), SEGMENTS, "nothing is written, nothing is taken");
    let mut rng = Rng::new(5);
    let mut model = vec![0; LEN as usize];
    for round in 0..600u64 {
        let block = u64::from(BLOCK);
        let offset = rng.below(LEN / block) * block;
        let most = if rng.one_in(4) { 60 } else { 8 };
        let len = (1 + rng.below(most)) * block;
        let len = len.min(LEN - offset);
        let range = offset as usize..(offset + len) as usize;
        let result = match rng.below(8) {
            0..=2 => {
                let bytes = pattern(round, offset, len as usize);
                model[range].copy_from_slice(&bytes);
                let durable = rng.one_in(4);
                run(&mut house, &mut volume, DeviceOp::Write { offset, from: slice_of(&bytes, 0), durable })
                    .result
            }
            3 | 4 => {
                model[range].fill(0);
                run(&mut house, &mut volume, DeviceOp::WriteZeroes { offset, len }).result
            }
            5 => {
                let result = run(&mut house, &mut volume, DeviceOp::Discard { offset, len }).result;
                let found = read(&mut house, &mut volume, offset, len as usize);
                for (old, new) in model[range].chunks_mut(BLOCK as usize).zip(found.chunks(BLOCK as usize)) {
                    assert!(old == new || new.iter().all(|byte| *byte == 0), "zeros or the old bytes");
                    old.copy_from_slice(new);
                }
                result
            }
            6 => run(&mut house, &mut volume, DeviceOp::Flush).result,
            _ => {
                assert!(read(&mut house, &mut volume, offset, len as usize) == model[range]);
                Ok(())
            }
        };
        assert_eq!(result, Ok(()));
    }
    assert!(read(&mut house, &mut volume, 0, LEN as usize) == model);
    assert_eq!(house.service.counts().unaligned, 0, "no byte is copied");
    assert_eq!(run(&mut house, &mut volume, DeviceOp::Discard { offset: 0, len: LEN }).result, Ok(()));
    assert_eq!(free_segments(&house), SEGMENTS, "all of it is given back");
    assert!(read(&mut house, &mut volume, 0, LEN as usize).iter().all(|byte| *byte == 0));
    let outside = DeviceOp::Read { offset: LEN, into: slice(512, 0) };
    assert_eq!(run(&mut house, &mut volume, outside).result, Err(DeviceError::OutOfRange));
    let skewed = DeviceOp::WriteZeroes { offset: 100, len: 512 };
    assert_eq!(run(&mut house, &mut volume, skewed).result, Err(DeviceError::Misaligned));
}

#[test]
fn what_was_flushed_is_there_after_another_mount() {
    let mut house = house_on(device());
    let mut volume = open(&mut house, b"a", Some(8 * SEGMENT)).unwrap();
    let bytes = pattern(3, 0, SEGMENT as usize + 512);
    write(&mut house, &mut volume, SEGMENT, &bytes).unwrap();
    assert_eq!(run(&mut house, &mut volume, DeviceOp::Flush).result, Ok(()));
    drop(volume);
    let image = house.service.into_device().image().clone();
    let mut house = house_on(MemoryDevice::with(image, BLOCK));
    let mut volume = open(&mut house, b"a", None).unwrap();
    assert_eq!(volume.info().capacity, 8 * SEGMENT, "it keeps its size");
    assert!(read(&mut house, &mut volume, SEGMENT, bytes.len()) == bytes);
    assert_eq!(open(&mut house, b"b", None).err(), Some(VolumeError::Missing));
    assert_eq!(open(&mut house, b"a/b", Some(512)).err(), Some(FileError::NotADirectory.into()));
    assert_eq!(open(&mut house, b"b//c", Some(512)).err(), Some(FileError::BadName.into()));
    assert_eq!(open(&mut house, b"tiny", Some(100)).err(), Some(VolumeError::TooSmall));
}

/// What a loss of power now leaves of a device at the worst: nothing that is not promised.
fn at_the_worst(medium: &mut Medium, journal: &Journal) -> support::Image {
    journal.take().iter().for_each(|event| medium.apply(event));
    medium.image(&BTreeSet::new())
}

fn read_after_loss(image: support::Image, offset: u64, len: usize) -> Vec<u8> {
    let mut house = house_on(MemoryDevice::with(image, BLOCK));
    let mut volume = open(&mut house, b"a", None).unwrap();
    read(&mut house, &mut volume, offset, len)
}

#[test]
fn what_was_flushed_or_written_durably_survives_a_loss_of_power() {
    let mut device = device();
    let (journal, mut medium) = (Journal::default(), Medium::new(device.image().clone(), BLOCK));
    device.journal = Some(journal.clone());
    let mut house = house_on(device);
    let mut volume = open(&mut house, b"a", Some(8 * SEGMENT)).unwrap();
    assert_eq!(run(&mut house, &mut volume, DeviceOp::Flush).result, Ok(()));
    let zeros = vec![0; SEGMENT as usize];
    for round in 0..4u64 {
        let offset = 2 * round * SEGMENT;
        let bytes = pattern(round + 1, 0, SEGMENT as usize);
        write(&mut house, &mut volume, offset, &bytes).unwrap();
        // This device loses what it may, or the test could not fail.
        let lost = at_the_worst(&mut medium, &journal);
        assert!(read_after_loss(lost, offset, bytes.len()) == zeros, "round {round}");
        // Data, and the map that leads to them.
        assert_eq!(run(&mut house, &mut volume, DeviceOp::Flush).result, Ok(()));
        let kept = at_the_worst(&mut medium, &journal);
        assert!(read_after_loss(kept, offset, bytes.len()) == bytes, "round {round}");
        let from = slice_of(&bytes, 0);
        let offset = offset + SEGMENT;
        let durably = DeviceOp::Write { offset, from, durable: true };
        assert_eq!(run(&mut house, &mut volume, durably).result, Ok(()));
        let kept = at_the_worst(&mut medium, &journal);
        assert!(read_after_loss(kept, offset, bytes.len()) == bytes, "round {round}");
    }
    let zero = DeviceOp::WriteZeroes { offset: 512, len: SEGMENT };
    assert_eq!(run(&mut house, &mut volume, zero).result, Ok(()));
    assert_eq!(run(&mut house, &mut volume, DeviceOp::Flush).result, Ok(()));
    let kept = at_the_worst(&mut medium, &journal);
    assert!(read_after_loss(kept, 512, SEGMENT as usize) == zeros);
}

#[test]
fn volumes_write_one_payload_at_once_and_nothing_changes_it() {
    let mut house = house_on(device());
    let paths: [&[u8]; 2] = [b"a", b"b"];
    let mut volumes = paths.map(|path| open(&mut house, path, Some(8 * SEGMENT)).unwrap());
    let bytes = pattern(1, 0, 3 * SEGMENT as usize);
    // From where it lies; and copied, where a device cannot take it from there.
    for (skew, offset, taken) in [(0, 512, 2 * bytes.len()), (4, 4 * SEGMENT, 0)] {
        let mut payload = slice(bytes.len(), skew);
        payload.copy_from_slice(&bytes);
        let payload = payload.share();
        let is_data = |op: &DeviceOp| matches!(op, DeviceOp::Write { offset, .. } if *offset >= 384 << 10);
        house.service.device().holds = Some(Box::new(is_data));
        for volume in &mut volumes {
            let op = DeviceOp::Write { offset, from: payload.clone().into(), durable: false };
            volume.submit(Token(77), op).unwrap();
        }
        house.settle();
        let under_way = house.service.device().queued().filter_map(|op| match op {
            DeviceOp::Write { from, .. } if payload.as_ptr_range().contains(&from.as_ptr()) => {
                Some(from.len())
            }
            _ => None,
        });
        assert_eq!(under_way.sum::<usize>(), taken);
        assert!(volumes.iter_mut().all(|volume| volume.poll().is_none()));
        house.service.device().holds = None;
        for volume in &mut volumes {
            house.settle();
            assert_eq!(volume.poll().unwrap().result, Ok(()));
            assert!(read(&mut house, volume, offset, bytes.len()) == bytes);
        }
        assert!(payload[..] == bytes);
    }
}

#[test]
fn a_full_device_is_told_and_loses_nothing() {
    let mut house = house_on(device());
    let mut volume = open(&mut house, b"a", Some(2 * SEGMENTS * SEGMENT)).unwrap();
    let bytes = |segment: u64| pattern(segment, 0, SEGMENT as usize);
    for segment in 0..SEGMENTS {
        write(&mut house, &mut volume, segment * SEGMENT, &bytes(segment)).unwrap();
    }
    for segment in SEGMENTS..SEGMENTS + 3 {
        let full = write(&mut house, &mut volume, segment * SEGMENT, &bytes(segment));
        assert_eq!(full, Err(DeviceError::NoSpace));
        assert!(read(&mut house, &mut volume, segment * SEGMENT, 512) == [0; 512]);
    }
    write(&mut house, &mut volume, 0, &bytes(99)).unwrap();
    let discard = DeviceOp::Discard { offset: SEGMENT, len: SEGMENT };
    assert_eq!(run(&mut house, &mut volume, discard).result, Ok(()));
    write(&mut house, &mut volume, SEGMENTS * SEGMENT, &bytes(SEGMENTS)).unwrap();
    for segment in 0..=SEGMENTS {
        let expected = match segment {
            0 => bytes(99),
            1 => vec![0; SEGMENT as usize],
            other => bytes(other),
        };
        assert!(read(&mut house, &mut volume, segment * SEGMENT, SEGMENT as usize) == expected);
    }
}

/// How a change of size went.
fn resized(house: &mut House, volume: &mut FileVolume) -> Result<(), FileError> {
    for _ in 0..10_000 {
        volume.sort_answers();
        if let Some(resized) = volume.take_resized() {
            return resized;
        }
        house.turn();
    }
    panic!("a volume is never resized");
}

#[test]
fn sizes_change_and_nothing_beyond_the_end_can_be_reached() {
    let mut house = house_on(device());
    let mut volume = open(&mut house, b"a", Some(4 * SEGMENT)).unwrap();
    let bytes = pattern(1, 0, 4 * SEGMENT as usize);
    write(&mut house, &mut volume, 0, &bytes).unwrap();
    volume.begin_resize(SEGMENT + 512);
    assert_eq!(volume.info().capacity, SEGMENT + 512, "at once, if it becomes smaller");
    let late = DeviceOp::Write { offset: 2 * SEGMENT, from: slice(512, 0).into(), durable: false };
    assert_eq!(run(&mut house, &mut volume, late).result, Err(DeviceError::OutOfRange));
    assert_eq!(resized(&mut house, &mut volume), Ok(()));
    assert_eq!(free_segments(&house), SEGMENTS - 2);
    volume.begin_resize(8 * SEGMENT);
    assert_eq!(volume.info().capacity, SEGMENT + 512, "when it is done, if it becomes larger");
    assert_eq!((resized(&mut house, &mut volume), volume.info().capacity), (Ok(()), 8 * SEGMENT));
    let mut expected = bytes[..SEGMENT as usize + 512].to_vec();
    expected.resize(8 * SEGMENT as usize, 0);
    assert!(read(&mut house, &mut volume, 0, 8 * SEGMENT as usize) == expected, "and new bytes are zeros");
}

#[test]
fn a_volume_tells_how_much_it_has() {
    let mut house = house_on(device());
    let mut volume = open(&mut house, b"a", Some(16 * SEGMENT)).unwrap();
    assert_eq!(allocated(&house, &volume), 0);
    write(&mut house, &mut volume, 3 * SEGMENT + 512, &[1; 512]).unwrap();
    assert_eq!(allocated(&house, &volume), SEGMENT);
    write(&mut house, &mut volume, 8 * SEGMENT, &[2; 3 * SEGMENT as usize]).unwrap();
    assert_eq!(allocated(&house, &volume), 4 * SEGMENT);
    let discard = DeviceOp::Discard { offset: 9 * SEGMENT, len: SEGMENT };
    assert_eq!(run(&mut house, &mut volume, discard).result, Ok(()));
    assert_eq!(allocated(&house, &volume), 3 * SEGMENT);
    volume.begin_resize(9 * SEGMENT);
    assert_eq!(resized(&mut house, &mut volume), Ok(()));
    assert_eq!(allocated(&house, &volume), 2 * SEGMENT);
    // Another one begins with what the file has.
    drop(volume);
    let volume = open(&mut house, b"a", None).unwrap();
    assert_eq!(allocated(&house, &volume), 2 * SEGMENT);
}

#[test]
fn a_volume_that_cannot_shrink_keeps_its_size() {
    let mut house = house_on(device());
    let mut volume = open(&mut house, b"a", Some(4 * SEGMENT)).unwrap();
    // Its end takes no more requests.
    for token in 0.. {
        if volume.submit(Token(token), DeviceOp::Flush).is_err() {
            break;
        }
    }
    volume.begin_resize(SEGMENT);
    assert_eq!(volume.take_resized(), Some(Err(FileError::Busy)));
    assert_eq!(volume.info().capacity, 4 * SEGMENT);
    house.settle();
    while volume.poll().is_some() {
        house.settle();
    }
    // The log cannot be written, and nothing can be changed any more.
    let fails = |op: &DeviceOp| matches!(op, DeviceOp::Write { .. }).then_some(DeviceError::Io);
    house.service.device().fails = Some(Box::new(fails));
    assert!(write(&mut house, &mut volume, 0, &[1; 512]).is_err());
    house.settle();
    assert!(house.service.files().is_frozen());
    volume.begin_resize(SEGMENT);
    assert_eq!(volume.info().capacity, SEGMENT, "as long as it may be smaller");
    assert_eq!(resized(&mut house, &mut volume), Err(FileError::ReadOnly));
    assert_eq!(volume.info().capacity, 4 * SEGMENT, "what a host wrote there is in reach again");
    assert!(read(&mut house, &mut volume, 3 * SEGMENT, 512) == [0; 512]);
}

#[test]
fn requests_that_find_no_room_do_not_keep_the_card_awake() {
    let mut house = house_on(device());
    let mut volumes: Vec<FileVolume> =
        [b"a", b"b", b"c"].map(|path: &[u8; 1]| open(&mut house, path, Some(SEGMENT)).unwrap()).into();
    house.settle();
    house.service.device().credit = Some(0);
    let asked = 80 * volumes.len();
    for volume in &mut volumes {
        for token in 0..80 {
            volume.submit(Token(token), DeviceOp::Flush).unwrap();
        }
    }
    assert_eq!(house.service.next_due(), Some(Instant::from_nanoseconds(0)), "nothing else tells of them");
    while house.service.poll(Instant::default()) {}
    let taken = house.service.files().in_flight();
    assert!(taken < asked && house.service.files().has_room(), "some wait, so that others find room");
    assert_eq!(house.service.next_due(), None, "until the device answers there is nothing to do");
    house.service.device().credit = None;
    house.settle();
    let answered: usize = volumes.iter_mut().map(|volume| std::iter::from_fn(|| volume.poll()).count()).sum();
    assert_eq!(answered, asked);
}

#[test]
fn nobody_else_changes_a_file_that_is_a_volume() {
    let mut house = house_on(device());
    let volume = open(&mut house, b"volumes/a", Some(8 * SEGMENT)).unwrap();
    let group = house.greeted(RING, RING);
    let stat = Request::new(Operation::Stat).node(ROOT).more(b"volumes/a");
    let file: NodeId = house.call(group, stat).node().id;
    let rename = |from: &[u8], to: &[u8]| {
        let request = Request::new(Operation::Rename).node(ROOT).length(from.len() as u32);
        let mut request = request.more(&[from, to].concat());
        request.header.node_more = ROOT;
        request
    };
    let other = Request::new(Operation::Open).flags(1).node(ROOT).more(b"other");
    house.call(group, other).node();
    let changes = [
        Request::new(Operation::Write).node(file).payload(&[1; 512], BLOCK),
        Request::new(Operation::Resize).node(file).offset(0),
        Request::new(Operation::Zero).node(file).length(512),
        Request::new(Operation::Remove).node(ROOT).more(b"volumes/a"),
        rename(b"volumes/a", b"b"),
        rename(b"volumes", b"elsewhere"),
        rename(b"other", b"volumes/a"),
    ];
    for change in &changes {
        assert_eq!(house.call(group, change.clone()).error(), Some(FileError::InUse), "{change:?}");
    }
    let reads = house.call(group, Request::new(Operation::Read).node(file).length(512));
    assert_eq!(reads.payload, [0; 512], "reading it is fine");
    assert_eq!(open(&mut house, b"volumes/a", None).err(), Some(FileError::InUse.into()));
    drop(volume);
    for change in &changes[..3] {
        assert_eq!(house.call(group, change.clone()).error(), None, "{change:?}");
    }
    assert_eq!(house.call(group, rename(b"volumes", b"elsewhere")).error(), None);
    assert_eq!(house.call(group, rename(b"other", b"elsewhere/a")).error(), None);
}

/// A file with bytes in it, made through a group's rings.
fn written(house: &mut House, group: usize, name: &[u8], bytes: &[u8]) -> NodeId {
    let file = house.call(group, Request::new(Operation::Open).flags(1).node(ROOT).more(name)).node().id;
    let write = Request::new(Operation::Write).node(file).payload(bytes, BLOCK);
    assert_eq!(house.call(group, write).error(), None);
    file
}

#[test]
fn a_file_becomes_a_volume_when_what_was_changing_it_is_over_and_not_before() {
    let mut house = house_on(device());
    let group = house.greeted(RING, RING);
    let file = written(&mut house, group, b"a", &pattern(1, 0, 4 * SEGMENT as usize));
    // A write beyond the end is at the device, and a change of size waits for it.
    let is_late = |op: &DeviceOp| matches!(op, DeviceOp::Write { from, .. } if from[..] == [7; 512]);
    house.service.device().holds = Some(Box::new(is_late));
    let late = Request::new(Operation::Write).node(file).offset(6 * SEGMENT).payload(&[7; 512], BLOCK);
    let late = house.push(group, late);
    house.settle();
    let shrink = house.push(group, Request::new(Operation::Resize).node(file).offset(3 * SEGMENT));
    house.settle();
    let mut opening = OpeningVolume::new(house.service.local(), b"a", None);
    for _ in 0..8 {
        house.settle();
        assert!(opening.poll().is_none(), "both are still to come");
    }
    let mut another = OpeningVolume::new(house.service.local(), b"a", None);
    let refused = loop {
        house.settle();
        if let Some(opened) = another.poll() {
            break opened.err();
        }
    };
    assert!(refused.is_some() && opening.poll().is_none(), "who comes later does not get it before");
    let refused = Request::new(Operation::Zero).node(file).length(512);
    assert_eq!(house.call(group, refused).error(), Some(FileError::InUse), "and nothing more is let at it");
    assert!(house.groups[group].take(late).is_none() && house.groups[group].take(shrink).is_none());
    house.service.device().holds = None;
    let mut volume = loop {
        house.settle();
        if let Some(opened) = opening.poll() {
            break opened.unwrap();
        }
    };
    for id in [late, shrink] {
        assert_eq!(house.groups[group].take(id).unwrap().error(), None);
    }
    assert_eq!(volume.info().capacity, 3 * SEGMENT, "it has the size that they left");
    assert!(read(&mut house, &mut volume, 0, SEGMENT as usize) == pattern(1, 0, SEGMENT as usize));
}

#[test]
fn who_only_reads_a_file_does_not_keep_it_from_becoming_a_volume() {
    let mut house = house_on(device());
    let group = house.greeted(RING, RING);
    let file = written(&mut house, group, b"a", &pattern(1, 0, SEGMENT as usize));
    house.service.device().holds = Some(Box::new(|op| matches!(op, DeviceOp::Read { .. })));
    let slow = house.push(group, Request::new(Operation::Read).node(file).length(512));
    house.settle();
    let volume = open(&mut house, b"a", None).unwrap();
    assert!(house.groups[group].take(slow).is_none(), "it still reads");
    drop(volume);
}
