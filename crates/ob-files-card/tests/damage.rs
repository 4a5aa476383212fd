//! Damage on the device: what is mounted is right, or the mount is refused and says where it is wrong.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::collections::BTreeMap;

use ob_core::{NodeId, NodeKind};
use ob_files_card::{Contents, Finding, FormatError, FormatOptions, MountError, check, identify, mount};
use ob_format::files::{
    Frame, FrameBuilder, FrameStamp, Geometry, GeometryError, LogStart, NodeRecord, Run, SUPERBLOCK_LEN,
    SUPERBLOCK_SLOTS, Superblock,
};
use ob_sim::Rng;
use ob_wire_link::files::ROOT;
use support::{Image, Listed, MemoryDevice, Rig, SMALL, UUID, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const CAPACITY: u64 = (384 << 10) + 64 * SEGMENT;

/// What a device holds, as a user sees it.
type State = BTreeMap<Vec<u8>, (Listed, Vec<u8>)>;

fn state_of(rig: &mut Rig) -> State {
    let mut state = State::new();
    for (path, entry) in rig.walk() {
        let bytes = match entry.kind {
            NodeKind::File => rig.read(entry.id, 0, 64 << 10).unwrap(),
            NodeKind::Directory => Vec::new(),
        };
        state.insert(path, (entry, bytes));
    }
    state
}

/// A device that was used in several lives, with everything flushed, and then once more with one frame behind it.
struct Sample {
    image: Image,
    /// After the flush and after what followed it.
    flushed: State,
    last: State,
    superblock: Superblock,
    frames: Vec<FrameAt>,
    /// The last frame that the flush covered.
    durable: u64,
}

#[derive(Clone, Copy, Debug)]
struct FrameAt {
    offset: u64,
    length: u32,
    stamp: FrameStamp,
}

fn superblock_of(image: &Image) -> Superblock {
    match identify(&mut MemoryDevice::with(image.clone(), BLOCK)).unwrap() {
        Contents::Files(superblock) => *superblock,
        other => panic!("the device holds {other:?}"),
    }
}

/// The frames of the log as the document describes it.
fn frames_of(image: &Image, superblock: &Superblock) -> Vec<FrameAt> {
    let geometry = &superblock.geometry;
    let (mut frames, mut section) = (Vec::new(), superblock.tail.section);
    let (mut sequence, mut previous) = (superblock.tail.sequence, superblock.tail.previous);
    loop {
        let bytes = image.bytes(geometry.section_offset(section), geometry.section_len as usize);
        let mut at = Some(0);
        while let Some(start) = at {
            let frame = Frame::decode(&bytes[start as usize..], geometry.frame_max());
            let Ok(frame) = frame.map_err(|_| ()).and_then(|frame| {
                let stamp = frame.stamp;
                let next = stamp.sequence == sequence && stamp.previous == previous;
                next.then_some(frame).ok_or(())
            }) else {
                return frames;
            };
            let offset = geometry.section_offset(section) + u64::from(start);
            frames.push(FrameAt { offset, length: frame.length, stamp: frame.stamp });
            (sequence, previous) = (sequence + 1, frame.checksum);
            at = geometry.next_in_section(start + geometry.padded(frame.length as usize) as u32);
        }
        section = geometry.next_section(section);
    }
}

/// Some files, with a log of more than one section; `flushes` between the changes or not.
fn sample(flushes: bool) -> Sample {
    let mut rig = Rig::format(MemoryDevice::new(CAPACITY, BLOCK), &small_format(SEGMENT), &SMALL);
    for life in 0..3u64 {
        let directory = rig.make_directory(ROOT, format!("life {life}").as_bytes()).unwrap().id;
        for index in 0..25u64 {
            let name = format!("{index:0>180}");
            let file = rig.create(directory, name.as_bytes()).unwrap().id;
            rig.write(file, index * 100, &pattern(life * 100 + index, 0, 50)).unwrap();
            if index % 3 == 0 {
                rig.remove(directory, name.as_bytes()).unwrap();
            }
            if flushes && index % 8 == 0 {
                rig.flush().unwrap();
            }
        }
        if life < 2 {
            rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), BLOCK), &SMALL);
        }
    }
    rig.flush().unwrap();
    rig.settle();
    let flushed = state_of(&mut rig);
    let image = rig.device.image().clone();
    let durable = frames_of(&image, &superblock_of(&image)).last().unwrap().stamp.sequence;
    rig.create(ROOT, b"behind the flush").unwrap();
    let last = state_of(&mut rig);
    let image = rig.device.image().clone();
    let superblock = superblock_of(&image);
    let frames = frames_of(&image, &superblock);
    assert_eq!(frames.last().unwrap().stamp.sequence, durable + 1);
    assert!(frames.last().unwrap().stamp.durable >= durable, "the last frame says what was flushed");
    assert!(frames.len() > 100);
    Sample { image, flushed, last, superblock, frames, durable }
}

/// What became of a damaged device.
fn mounted(image: &Image) -> Result<State, MountError> {
    let mut device = MemoryDevice::with(image.clone(), BLOCK);
    let report = check(&mut device, &mut |_, _| {});
    let found = mount(&mut device, &SMALL).map(|files| state_of(&mut Rig::from_parts(files, device)));
    match (&report, &found) {
        (Ok(report), Ok(_)) => assert_eq!(report.findings, [], "a mount refuses what a check finds"),
        (Ok(report), Err(MountError::Damaged { first, more })) => {
            assert_eq!((report.findings.first(), report.findings.len()), (Some(&**first), more + 1));
        }
        (Err(one), Err(other)) => assert_eq!(one, other),
        other => panic!("check and mount disagree: {other:?}"),
    }
    found
}

impl Sample {
    /// Mounts what is left after damage that hit no frame at or before the flush, or only some bytes of others.
    fn assert_right(&self, image: &Image, what: &str) {
        match mounted(image) {
            Ok(state) => assert!(state == self.last, "{what}: an older state is shown"),
            Err(error) => panic!("{what} is harmless, but: {error}"),
        }
    }

    /// Damage that hit this frame: refused and named, where the flush covered it.
    fn assert_refused(&self, image: &Image, frame: &FrameAt, what: &str) {
        let FrameAt { offset, stamp, .. } = *frame;
        match mounted(image) {
            Ok(state) if stamp.sequence > self.durable => {
                assert!(state == self.flushed || state == self.last, "{what}: no state that ever was");
            }
            Ok(_) => panic!("{what} in frame {} of {} goes unnoticed", stamp.sequence, self.durable),
            Err(MountError::Damaged { first, .. }) => {
                assert_eq!(*first, Finding::LogDamaged { sequence: stamp.sequence, offset }, "{what}");
                let text = first.to_string();
                assert!(text.contains(&offset.to_string()) && text.contains(&stamp.sequence.to_string()));
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

fn flip(image: &Image, byte: u64, bit: u32) -> Image {
    let mut image = image.clone();
    let mut bytes = image.bytes(byte, 1);
    bytes[0] ^= 1 << bit;
    image.write(byte, &bytes);
    image
}

#[test]
fn a_damaged_log_is_refused_where_it_is_damaged() {
    for flushes in [true, false] {
        let sample = sample(flushes);
        let mut rng = Rng::new(5);
        for frame in &sample.frames {
            for _ in 0..3 {
                let image = flip(
                    &sample.image,
                    frame.offset + rng.below(u64::from(frame.length)),
                    rng.index(8) as u32,
                );
                sample.assert_refused(&image, frame, "a flipped bit");
            }
            for block in 0..u64::from(frame.length).div_ceil(u64::from(BLOCK)) {
                let mut image = sample.image.clone();
                image.zero(frame.offset + block * u64::from(BLOCK), u64::from(BLOCK));
                sample.assert_refused(&image, frame, "a zeroed block");
                image.write(frame.offset + block * u64::from(BLOCK), &[0xa5; BLOCK as usize]);
                sample.assert_refused(&image, frame, "an overwritten block");
            }
            // Two frames change places, or one is there twice.
            let other = &sample.frames[rng.index(sample.frames.len())];
            if other.offset != frame.offset {
                let (one, two) =
                    (sample.image.bytes(frame.offset, 512), sample.image.bytes(other.offset, 512));
                let mut image = sample.image.clone();
                image.write(other.offset, &one);
                sample.assert_refused(&image, other, "a frame that is there twice");
                image.write(frame.offset, &two);
                let first = if frame.offset < other.offset { frame } else { other };
                sample.assert_refused(&image, first, "two frames that changed places");
            }
        }
    }
}

#[test]
fn a_flush_long_after_is_enough_to_know_that_a_frame_was_durable() {
    let format = FormatOptions { log_len: Some(16 * (32 << 10)), ..small_format(SEGMENT) };
    let mut rig = Rig::format(MemoryDevice::new(2 << 20, BLOCK), &format, &SMALL);
    rig.settle();
    let flushes = rig.device.done.flushes;
    for index in 0..300 {
        rig.create(ROOT, format!("{index}").as_bytes()).unwrap();
    }
    assert_eq!(rig.device.done.flushes, flushes, "nothing is flushed for several sections");
    rig.flush().unwrap();
    rig.create(ROOT, b"behind the flush").unwrap();
    let image = rig.device.image().clone();
    for frame in frames_of(&image, &superblock_of(&image)).iter().take(300).step_by(7) {
        let FrameAt { offset, stamp, .. } = *frame;
        let expected = Finding::LogDamaged { sequence: stamp.sequence, offset };
        let Err(MountError::Damaged { first, .. }) = mounted(&flip(&image, offset + 9, 1)) else {
            panic!("frame {} of 300 was flushed, and is not missed", stamp.sequence);
        };
        assert_eq!(*first, expected);
    }
}

#[test]
fn whole_sections_of_the_log_may_be_gone() {
    let sample = sample(true);
    let geometry = &sample.superblock.geometry;
    let section_len = u64::from(geometry.section_len);
    for section in 0..geometry.log_sections {
        let start = geometry.section_offset(section);
        let mut image = sample.image.clone();
        image.zero(start, section_len);
        let first = sample.frames.iter().find(|frame| (start..start + section_len).contains(&frame.offset));
        match first {
            Some(frame) if sample.frames.last().unwrap().offset >= start + section_len => {
                sample.assert_refused(&image, frame, "a section that is gone");
            }
            // Nothing behind it can tell that it was there.
            Some(_) => assert!(mounted(&image).is_ok_and(|state| state.len() < sample.last.len())),
            None => sample.assert_right(&image, "an unused section that is gone"),
        }
    }
}

#[test]
fn what_is_not_used_may_hold_anything() {
    let sample = sample(true);
    let mut rng = Rng::new(6);
    let geometry = &sample.superblock.geometry;
    let used = |offset: u64| {
        let block = u64::from(BLOCK);
        let holds = |frame: &FrameAt| {
            (frame.offset..frame.offset + u64::from(frame.length).next_multiple_of(block)).contains(&offset)
        };
        SUPERBLOCK_SLOTS.contains(&offset) || sample.frames.iter().any(holds)
    };
    let mut tried = 0;
    while tried < 300 {
        let offset = rng.below(geometry.data_start / u64::from(BLOCK)) * u64::from(BLOCK);
        if used(offset) {
            continue;
        }
        tried += 1;
        let mut image = sample.image.clone();
        let mut bytes = vec![0; BLOCK as usize];
        rng.fill(&mut bytes);
        image.write(offset, &bytes);
        sample.assert_right(&image, "garbage where nothing is");
    }
}

#[test]
fn one_superblock_may_be_damaged() {
    for flushes in [true, false] {
        let sample = sample(flushes);
        let newer = SUPERBLOCK_SLOTS[(sample.superblock.sequence % 2) as usize];
        let mut rng = Rng::new(7);
        for slot in SUPERBLOCK_SLOTS {
            for byte in 0..SUPERBLOCK_LEN as u64 {
                let image = flip(&sample.image, slot + byte, rng.index(8) as u32);
                // What says that it is of another version may be right: nothing is touched then.
                if (8..12).contains(&byte) {
                    assert!(matches!(mounted(&image), Err(MountError::Version { known: 1, .. })));
                    continue;
                }
                let report = check(&mut MemoryDevice::with(image.clone(), BLOCK), &mut |_, _| {}).unwrap();
                assert_eq!(report.superblocks.len(), 1, "a check tells of it");
                assert!(report.superblocks[0].contains(&slot.to_string()));
                match mounted(&image) {
                    Ok(state) => {
                        assert!(state == sample.last, "slot {slot}, byte {byte}: an older state is shown");
                    }
                    Err(MountError::Damaged { first, .. }) if slot == newer => {
                        assert!(matches!(*first, Finding::LogDamaged { .. }));
                    }
                    Err(error) => panic!("slot {slot}, byte {byte}: {error}"),
                }
            }
        }
        // And what is mounted from one superblock can be used on.
        let image = flip(&sample.image, newer + 33, 0);
        let mut device = MemoryDevice::with(image, BLOCK);
        if let Ok(files) = mount(&mut device, &SMALL) {
            let mut rig = Rig::from_parts(files, device);
            rig.create(ROOT, b"later").unwrap();
            rig.flush().unwrap();
            let expected = state_of(&mut rig);
            assert!(mounted(rig.device.image()).is_ok_and(|state| state == expected));
        }
    }
}

#[test]
fn the_newer_superblock_may_be_damaged_right_after_a_mount() {
    let sample = sample(true);
    for frames in 0..4u64 {
        let mut rig = Rig::mount(MemoryDevice::with(sample.image.clone(), BLOCK), &SMALL);
        for index in 0..frames {
            rig.create(ROOT, format!("new {index}").as_bytes()).unwrap();
        }
        rig.flush().unwrap();
        let expected = state_of(&mut rig);
        let newer = SUPERBLOCK_SLOTS[(superblock_of(rig.device.image()).sequence % 2) as usize];
        match mounted(&flip(rig.device.image(), newer, 0)) {
            Ok(state) => assert!(state == expected, "{frames} frames that were flushed are gone"),
            Err(MountError::Damaged { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn two_damaged_superblocks_are_told_of() {
    let sample = sample(true);
    let image = flip(&flip(&sample.image, 20, 3), 65_536 + 40, 3);
    assert_eq!(identify(&mut MemoryDevice::with(image.clone(), BLOCK)), Ok(Contents::Damaged));
    assert_eq!(mounted(&image).err(), Some(MountError::Superblocks));
    // Superblocks with right checksums whose numbers cannot be.
    let wild: [fn(&mut Superblock); 6] = [
        |superblock| superblock.sequence = u64::MAX,
        |superblock| superblock.epoch = u64::MAX,
        |superblock| superblock.tail.sequence = 0,
        |superblock| superblock.tail.sequence = u64::MAX,
        |superblock| superblock.geometry.data_segments += 1,
        |superblock| superblock.tail.section = superblock.geometry.log_sections,
    ];
    for change in wild {
        let mut superblock = sample.superblock;
        change(&mut superblock);
        let mut image = Image::new(CAPACITY);
        image.write(0, &superblock.encode());
        assert_eq!(mounted(&image).err(), Some(MountError::Superblocks), "{superblock:?}");
    }
}

#[test]
fn data_of_somebody_else_is_known_for_what_it_is() {
    let held_by = |image: &Image| identify(&mut MemoryDevice::with(image.clone(), BLOCK)).unwrap();
    let blank = Image::new(CAPACITY);
    assert_eq!((held_by(&blank), mounted(&blank).err()), (Contents::Blank, Some(MountError::Blank)));
    let (mut ext4, mut gzip, mut random) = (blank.clone(), blank.clone(), blank.clone());
    // The superblock of ext4 stands at byte 1024, its magic 56 bytes into it.
    ext4.write(1024 + 56, &[0x53, 0xef]);
    gzip.write(0, &[0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0, 3]);
    let mut bytes = vec![0; 200_000];
    Rng::new(8).fill(&mut bytes);
    random.write(0, &bytes);
    let mut late = blank.clone();
    late.write((128 << 10) - 1, &[1]);
    for image in [&ext4, &gzip, &random, &late] {
        assert_eq!((held_by(image), mounted(image).err()), (Contents::Foreign, Some(MountError::Foreign)));
    }
    // A device too small for superblocks is somebody's too, or empty.
    let mut tiny = Image::new(4096);
    assert_eq!(held_by(&tiny), Contents::Blank);
    tiny.write(100, &[1]);
    assert_eq!(held_by(&tiny), Contents::Foreign);
}

#[test]
fn another_version_is_refused_with_both_named() {
    let sample = sample(true);
    let mut image = Image::new(CAPACITY);
    let mut bytes = sample.superblock.encode();
    bytes[8] = 9;
    image.write(0, &bytes);
    for second in [false, true] {
        if second {
            image.write(65_536, &bytes);
        }
        let held = identify(&mut MemoryDevice::with(image.clone(), BLOCK));
        assert_eq!(held, Ok(Contents::OtherVersion(9)));
        let error = mounted(&image).unwrap_err();
        assert_eq!(error, MountError::Version { found: 9, known: 1 });
        assert!(error.to_string().contains("version 9") && error.to_string().contains("version 1"));
    }
}

#[test]
fn a_device_that_changed_is_refused() {
    let sample = sample(true);
    let mount_with = |image: Image, block_len| mount(&mut MemoryDevice::with(image, block_len), &SMALL).err();
    let shrunk = mount_with(sample.image.clone().with_capacity(CAPACITY - u64::from(BLOCK)), BLOCK);
    let Some(MountError::Changed { found, formatted }) = shrunk else { panic!("{shrunk:?}") };
    assert!(found.contains(&(CAPACITY - 512).to_string()) && formatted.contains(&CAPACITY.to_string()));
    let other_block = mount_with(sample.image.clone(), 4096);
    assert!(matches!(other_block, Some(MountError::Changed { .. })), "{other_block:?}");
    assert_eq!(mount_with(sample.image.clone().with_capacity(2 * CAPACITY), BLOCK), None, "it may grow");
}

#[test]
fn a_device_whose_blocks_became_smaller_is_used_as_before() {
    let mut rig = Rig::format(MemoryDevice::new(CAPACITY, 4096), &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    let mut bytes = pattern(1, 0, 30_000);
    rig.write(file, 0, &bytes).unwrap();
    for (block_len, at) in [(512, 5000), (1024, 9999), (4096, 20_001)] {
        let mut device = MemoryDevice::with(rig.device.image().clone(), block_len);
        assert_eq!(check(&mut device, &mut |_, _| {}).unwrap().findings, []);
        rig = Rig::mount(device, &SMALL);
        assert_eq!(rig.files.card_info().block_len, 4096, "blocks of the format stay what they are");
        assert!(rig.read(file, 0, 40_000).unwrap() == bytes);
        bytes[at..at + 700].copy_from_slice(&pattern(2, at as u64, 700));
        rig.write(file, at as u64, &bytes[at..at + 700]).unwrap();
        rig.flush().unwrap();
    }
    assert!(state_of(&mut rig)[&b"file"[..]].1 == bytes);
    let larger = mount(&mut MemoryDevice::with(rig.device.image().clone(), 8192), &SMALL).err();
    assert!(matches!(larger, Some(MountError::Changed { .. })), "{larger:?}");
}

#[test]
fn a_device_too_small_says_how_large_it_should_be() {
    for (block_len, format) in
        [(512, FormatOptions::default()), (4096, FormatOptions::default()), (512, small_format(8192))]
    {
        let mut needed = 4096;
        for _ in 0..10 {
            let mut device = MemoryDevice::new(needed, block_len);
            match ob_files_card::format(&mut device, &format, UUID) {
                Ok(_) => break,
                Err(FormatError::Geometry(GeometryError::TooSmall { needed: more, capacity })) => {
                    assert!(capacity == needed && more > needed, "{more} are needed of {needed}");
                    assert_eq!(device.done.writes, 0, "what cannot be formatted is not touched");
                    needed = more.next_multiple_of(u64::from(block_len));
                }
                Err(error) => panic!("{error}"),
            }
        }
        let mut device = MemoryDevice::new(needed, block_len);
        ob_files_card::format(&mut device, &format, UUID).unwrap();
        let mut rig = Rig::mount(device, &SMALL);
        let file = rig.create(ROOT, b"file").unwrap().id;
        rig.write(file, 0, b"fits").unwrap();
    }
}

/// A device whose log holds one frame with these records.
fn with_records(push: impl FnOnce(&mut FrameBuilder, &Geometry)) -> Image {
    let mut device = MemoryDevice::new(CAPACITY, BLOCK);
    let superblock = ob_files_card::format(&mut device, &small_format(SEGMENT), UUID).unwrap();
    let LogStart { sequence, previous, section } = superblock.tail;
    let geometry = superblock.geometry;
    let mut builder = FrameBuilder::new(geometry.frame_max());
    push(&mut builder, &geometry);
    let next_node = NodeId(100);
    builder.seal(&FrameStamp {
        sequence,
        epoch: 0,
        durable: 0,
        next_node,
        previous,
        format: superblock.format_tag(),
    });
    let mut image = device.image().clone();
    image.write(geometry.section_offset(section), builder.bytes());
    image
}

fn node(id: u64, parent: u64, kind: NodeKind, name: &[u8]) -> NodeRecord<'_> {
    NodeRecord { id: NodeId(id), parent: NodeId(parent), kind, size: 0, name }
}

/// The first thing that is wrong with a log of one frame.
fn finding(push: &dyn Fn(&mut FrameBuilder, &Geometry)) -> Finding {
    match mounted(&with_records(push)) {
        Err(MountError::Damaged { first, .. }) => *first,
        other => panic!("it is mounted: {other:?}"),
    }
}

const fn run(logical: u32, physical: u32, count: u32) -> Run {
    Run { logical, physical, count }
}

#[test]
fn nodes_that_cannot_be_are_found() {
    let (file, directory) = (NodeKind::File, NodeKind::Directory);
    let fine = with_records(|builder, _| {
        builder.push_node(&node(7, 8, file, b"first"));
        builder.push_node(&node(8, 1, directory, b"its directory comes later"));
        builder.push_map(NodeId(7), 0, &[run(0, 3, 2), run(5, 9, 1)]);
    });
    assert_eq!(mounted(&fine).unwrap().len(), 2);

    let found = finding(&|builder, _| builder.push_node(&node(100, 1, file, b"x")));
    assert_eq!(found, Finding::IdNotGiven { node: NodeId(100), next: 100 });
    let found = finding(&|builder, _| builder.push_node(&node(7, 50, file, b"x")));
    assert!(matches!(found, Finding::Orphan { node: NodeId(7), parent: NodeId(50), .. }), "{found}");
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 1, file, b"x"));
        builder.push_node(&node(8, 7, file, b"in a file"));
    });
    assert!(matches!(found, Finding::Orphan { node: NodeId(8), .. }), "{found}");
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 1, file, b"same"));
        builder.push_node(&node(8, 1, directory, b"same"));
    });
    assert!(matches!(found, Finding::TwoOfOneName { directory: ROOT, .. }), "{found}");
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 8, directory, b"a"));
        builder.push_node(&node(8, 7, directory, b"b"));
    });
    assert!(matches!(found, Finding::Unreachable { .. }), "{found}");
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 7, directory, b"in itself"));
    });
    assert!(matches!(found, Finding::Unreachable { node: NodeId(7), .. }), "{found}");
    let found = finding(&|builder, geometry| {
        let size = geometry.file_len_max() + 1;
        builder.push_node(&NodeRecord { size, ..node(7, 1, file, b"too large") });
    });
    assert!(matches!(found, Finding::BadRecord { sequence: 1, .. }), "{found}");
}

#[test]
fn maps_that_cannot_be_are_found() {
    let (file, directory) = (NodeKind::File, NodeKind::Directory);
    let found = finding(&|builder, _| builder.push_map(NodeId(7), 0, &[run(0, 0, 1)]));
    assert_eq!(found, Finding::MapWithoutFile { node: NodeId(7) });
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 1, directory, b"d"));
        builder.push_map(NodeId(7), 0, &[run(0, 0, 1)]);
    });
    assert_eq!(found, Finding::MapWithoutFile { node: NodeId(7) });
    for runs in [vec![run(0, 64, 1)], vec![run(0, 60, 5)], vec![run(0, 5, 2), run(9, 6, 1)]] {
        let found = finding(&|builder, _| {
            builder.push_node(&node(7, 1, file, b"x"));
            builder.push_map(NodeId(7), 0, &runs);
        });
        assert!(matches!(found, Finding::SegmentTaken { node: NodeId(7), .. }), "{found}");
    }
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 1, file, b"x"));
        builder.push_node(&node(8, 1, file, b"y"));
        builder.push_map(NodeId(7), 0, &[run(0, 5, 2)]);
        builder.push_map(NodeId(8), 0, &[run(0, 6, 1)]);
    });
    assert!(matches!(found, Finding::SegmentTaken { segment: 6, .. }), "{found}");
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 1, file, b"x"));
        builder.push_map(NodeId(7), 0, &[run(0, 5, 9)]);
        builder.push_map(NodeId(7), 8, &[run(8, 20, 1)]);
    });
    assert!(matches!(found, Finding::BadMap { node: NodeId(7), .. }), "{found}");
    let found = finding(&|builder, _| {
        builder.push_node(&node(7, 1, file, b"x"));
        builder.push_map(NodeId(7), 8, &[run(8, 20, 1)]);
    });
    assert!(matches!(found, Finding::BadMap { node: NodeId(7), .. }), "{found}");
}
