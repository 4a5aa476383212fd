//! A million files, files of terabytes, deep directories, long names: what a change costs does not grow with them.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::time::{Duration, Instant};

use ob_core::NodeId;
use ob_files_card::{FilesOptions, FormatOptions, MetadataOp, Op};
use ob_wire_link::files::{FileError, NAME_LEN_MAX, ROOT};
use support::device::Done;
use support::{MemoryDevice, Rig, SMALL, create, pattern, slice_of, small_format};

const MILLION: u64 = 1_000_000;
const BLOCK: u32 = 4096;
const SECTION: u32 = 512 << 10;
/// Requests in flight together while nothing is measured.
const BATCH: u64 = 1000;

fn name(index: u64) -> Vec<u8> {
    format!("file {index:07}").into_bytes()
}

/// Device writes, and bytes of them, from one moment to another.
fn written(rig: &Rig, before: &Done) -> (u64, u64) {
    let done = &rig.device.done;
    (done.writes - before.writes, done.written_bytes - before.written_bytes)
}

/// What this thread has computed so far, where Linux tells. Machines that run tests are busy with other things too.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    // The fields after the command's name, of which the 12th and 13th count hundredths of seconds.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// Runs these operations, many at a time.
fn run_all(rig: &mut Rig, ops: impl Iterator<Item = MetadataOp>) {
    let mut out = 0;
    for op in ops {
        rig.submit(Op::Metadata(op));
        out += 1;
        if out == BATCH {
            while out > 0 {
                assert!(rig.next().result.is_ok());
                out -= 1;
            }
        }
    }
    while out > 0 {
        assert!(rig.next().result.is_ok());
        out -= 1;
    }
}

/// Creates files one after the other; the most device writes that one of them took, and the mean bytes.
fn create_serially(rig: &mut Rig, range: std::ops::Range<u64>) -> (u64, u64) {
    let (mut most, mut bytes, count) = (0, 0, range.end - range.start);
    for index in range {
        let before = rig.device.done;
        rig.create(ROOT, &name(index)).unwrap();
        let (writes, len) = written(rig, &before);
        most = most.max(writes);
        bytes += len;
    }
    (most, bytes / count)
}

#[test]
fn the_millionth_file_costs_what_the_first_did() {
    let format =
        FormatOptions { segment_len: Some(64 << 10), section_len: Some(SECTION), log_len: Some(256 << 20) };
    let device = MemoryDevice::new(300 << 20, BLOCK);
    let mut rig = Rig::format(device, &format, &FilesOptions::default());
    let options = FilesOptions { clean_len: 1 << 20, ..FilesOptions::default() };
    rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), BLOCK), &options);
    rig.settle();
    let (free, live) = (rig.files.space_info().free, rig.files.space_info().log_live);
    assert_eq!(live, 0);

    let first = create_serially(&mut rig, 0..1000);
    let second = create_serially(&mut rig, 1000..2000);
    let started = Instant::now();
    let before = rig.device.done;
    run_all(&mut rig, (2000..MILLION - 3000).map(|index| create(ROOT, &name(index))));
    let (writes, bytes) = written(&rig, &before);
    let batched = (writes as f64 / (MILLION - 5000) as f64, bytes / (MILLION - 5000));
    println!("created in {:?}, {batched:?} writes and bytes a file", started.elapsed());
    let last = create_serially(&mut rig, MILLION - 3000..MILLION);
    println!(
        "one at a time: first {first:?}, next {second:?}, last {last:?} (most writes of one, mean bytes)"
    );
    for (most, bytes) in [first, second, last] {
        assert!(most <= 8, "a file took {most} writes");
        assert!(bytes <= 6 * u64::from(BLOCK), "a file took {bytes} bytes");
    }
    assert!(batched.0 < 0.1 && batched.1 < 1000, "many at a time share their frames: {batched:?}");

    let info = rig.files.space_info();
    assert_eq!((info.files, info.directories, info.free), (MILLION, 1, free));
    let proportional =
        |rig: &Rig| rig.files.log_used() <= 4 * rig.files.space_info().log_live + 16 * u64::from(SECTION);
    println!("log: {} bytes used, {} alive", rig.files.log_used(), info.log_live);
    assert!(proportional(&rig));

    rig.flush().unwrap();
    rig.settle();
    let (started, computed) = (Instant::now(), processor_time());
    let mut rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), BLOCK), &options);
    let took = started.elapsed();
    let worked = processor_time() - computed;
    println!("mounted in {took:?}, of which the processor worked {worked:?}");
    assert!(took.as_secs() < 30, "a mount takes {took:?}");
    // What is promised holds for programs as they are shipped, on a machine that is not busy with others.
    assert!(cfg!(debug_assertions) || worked.as_secs_f64() < 2.0, "a mount computes for {worked:?}");
    assert_eq!(rig.files.space_info().files, MILLION);
    assert_eq!(rig.files.space_info().log_live, info.log_live, "what is alive is counted the same");
    for index in [0, 1, 999, 500_000, MILLION - 1] {
        rig.stat(ROOT, &name(index)).unwrap();
    }
    assert_eq!(create_serially(&mut rig, MILLION..MILLION + 100).0.min(9), 1, "and it goes on as it was");

    let started = Instant::now();
    let remove = |index| MetadataOp::Remove { base: ROOT, path: name(index), only: None };
    run_all(&mut rig, (0..MILLION + 100).map(remove));
    println!("removed in {:?}", started.elapsed());
    rig.settle();
    let info = rig.files.space_info();
    assert_eq!((info.files, info.log_live, info.free), (0, 0, free));
    assert!(proportional(&rig), "{} bytes of the log are used for nothing", rig.files.log_used());
}

#[test]
fn a_file_of_terabytes_takes_the_space_of_what_was_written() {
    const TERABYTE: u64 = 1_000_000_000_000;
    let format = FormatOptions { segment_len: Some(64 << 10), ..FormatOptions::default() };
    let mut rig = Rig::format(MemoryDevice::new(32 << 20, BLOCK), &format, &SMALL);
    let free = rig.files.space_info().free;
    let file = rig.create(ROOT, b"sparse").unwrap().id;
    rig.resize(file, 20 * TERABYTE).unwrap();
    assert_eq!(rig.files.space_info().free, free);
    let far = 20 * TERABYTE - 1000;
    rig.write(file, far, &pattern(1, far, 1000)).unwrap();
    rig.write(file, 7 * TERABYTE + 1, &pattern(2, 0, 100)).unwrap();
    let grown = rig.write(file, 20 * TERABYTE, b"beyond");
    assert!(grown.is_ok());
    assert_eq!(rig.stat(file, b"").unwrap().size, 20 * TERABYTE + 6);
    rig.flush().unwrap();
    for mounted in [false, true] {
        if mounted {
            rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), BLOCK), &SMALL);
        }
        assert_eq!(rig.read(file, far, 1000).unwrap(), pattern(1, far, 1000));
        assert_eq!(rig.read(file, far - 8000, 8000).unwrap(), [0; 8000]);
        assert_eq!(rig.read(file, 7 * TERABYTE, 102).unwrap()[1..101], pattern(2, 0, 100));
        for offset in [0, 4096, 12_345, 19 * TERABYTE + 77] {
            assert_eq!(rig.read(file, offset, 1 << 20).unwrap(), vec![0; 1 << 20]);
        }
        assert_eq!(rig.read(file, 20 * TERABYTE, 100).unwrap(), b"beyond");
        let allocated = rig.stat(file, b"").unwrap().allocated;
        assert!(allocated <= 4 * (64 << 10));
        assert_eq!(rig.files.space_info().free, free - allocated);
    }
    let largest = rig.files.card_info().file_len_max;
    assert!(largest > 200 * TERABYTE);
    rig.resize(file, largest).unwrap();
    rig.write(file, largest - 10, &[5; 10]).unwrap();
    assert_eq!(rig.read(file, largest - 20, 100).unwrap(), [[0; 10], [5; 10]].concat());
    assert_eq!(rig.write(file, largest - 9, &[5; 10]).err(), Some(FileError::TooLarge));
    rig.resize(file, 0).unwrap();
    assert_eq!(rig.files.space_info().free, free);
}

#[test]
fn a_file_in_a_thousand_pieces() {
    let format =
        FormatOptions { segment_len: Some(4096), section_len: Some(64 << 10), log_len: Some(2 << 20) };
    let mut rig = Rig::format(MemoryDevice::new(16 << 20, 512), &format, &SMALL);
    let file = rig.create(ROOT, b"scattered").unwrap().id;
    let mut most = 0;
    // Every other segment, from both ends and from the middle, so that parts of the map split everywhere.
    for index in 0..1000u64 {
        let at = [index / 3, 999 - index / 3, 333 + index / 3][index as usize % 3] * 2;
        let before = rig.device.done;
        rig.write(file, at * 4096, &pattern(at, 0, 512)).unwrap();
        let (_, bytes) = written(&rig, &before);
        most = most.max(bytes);
    }
    println!("one more piece of a scattered file takes at most {most} bytes");
    assert!(most < 32 << 10, "a change of a large map is a small change");
    let allocated = rig.stat(file, b"").unwrap().allocated;
    rig.flush().unwrap();
    let mut rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), 512), &SMALL);
    assert_eq!(rig.stat(file, b"").unwrap().allocated, allocated);
    let size = rig.stat(file, b"").unwrap().size;
    for segment in 0..size.div_ceil(4096) {
        let bytes = rig.read(file, segment * 4096, 512).unwrap();
        let written = pattern(segment, 0, 512);
        assert!(bytes == written || bytes == [0; 512]);
        assert_eq!(segment % 2 == 0 && bytes == written, bytes != [0; 512]);
    }
    rig.assert_space_is_exact();
}

#[test]
fn directories_a_thousand_deep() {
    let format = FormatOptions { section_len: Some(64 << 10), log_len: Some(2 << 20), ..small_format(4096) };
    let mut rig = Rig::format(MemoryDevice::new(8 << 20, 512), &format, &SMALL);
    let mut directories = vec![ROOT];
    for depth in 0..1000 {
        let parent = directories[depth];
        directories.push(rig.make_directory(parent, b"d").unwrap().id);
    }
    let deepest = directories[1000];
    let file = rig.create(deepest, b"file").unwrap().id;
    rig.write(file, 0, b"deep").unwrap();
    let into = |rig: &mut Rig, base: NodeId, to_base: NodeId| {
        rig.metadata(MetadataOp::Rename {
            base,
            path: Vec::new(),
            to_base,
            to_path: b"moved".to_vec(),
            replace: false,
        })
    };
    assert_eq!(into(&mut rig, directories[1], deepest), Err(FileError::WithinItself));
    into(&mut rig, directories[500], ROOT).unwrap();
    rig.flush().unwrap();
    let mut rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), 512), &SMALL);
    let path = [b"moved/".to_vec(), b"d/".repeat(500), b"file".to_vec()].concat();
    assert_eq!(rig.stat(ROOT, &path).unwrap().id, file);
    assert_eq!(rig.read(file, 0, 10).unwrap(), b"deep");
    assert_eq!(rig.walk().len(), 1001);
    let longest = b"d/".repeat(2048);
    assert_eq!(rig.stat(ROOT, &longest[..4095]).err(), Some(FileError::NotFound), "4096 bytes are a path");
    assert_eq!(rig.stat(ROOT, &b"d/".repeat(2049)[..4097]).err(), Some(FileError::BadName));
    rig.remove(deepest, b"file").unwrap();
    for directory in directories[1..].iter().rev() {
        rig.remove(*directory, b"").unwrap();
    }
    assert_eq!(rig.files.space_info().directories, 1);
}

#[test]
fn names_of_every_legal_byte_and_length() {
    let mut rig = Rig::format(MemoryDevice::new(2 << 20, 512), &small_format(4096), &SMALL);
    let legal: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let mut names: Vec<Vec<u8>> = Vec::new();
    for (index, byte) in legal.iter().enumerate() {
        // A name of one byte, except where that is no name, and now and then one of 255.
        let len = if index % 4 == 0 { NAME_LEN_MAX } else { 1 + index % 20 };
        let mut name: Vec<u8> = legal.iter().cycle().skip(index).take(len).copied().collect();
        name[0] = *byte;
        if name != b"." {
            names.push(name);
        }
    }
    names.extend([b"...".to_vec(), b" ".repeat(NAME_LEN_MAX), vec![255; NAME_LEN_MAX]]);
    for name in &names {
        rig.create(ROOT, name).unwrap();
    }
    for bad in [&b"."[..], b"..", b"\0", b"a\0b", &[b'x'; NAME_LEN_MAX + 1]] {
        assert_eq!(rig.create(ROOT, bad).err(), Some(FileError::BadName));
    }
    rig.flush().unwrap();
    let mut rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), 512), &SMALL);
    names.sort();
    let listed: Vec<Vec<u8>> = rig.list(ROOT).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, names, "in the order of their bytes");
    for name in &names {
        rig.stat(ROOT, name).unwrap();
        rig.remove(ROOT, name).unwrap();
    }
    assert_eq!(rig.files.space_info().log_live, 0);
}

#[test]
fn many_requests_of_one_process_share_flushes() {
    let mut rig = Rig::format(MemoryDevice::new(2 << 20, 512), &small_format(4096), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    rig.write(file, 0, &[1; 4096]).unwrap();
    rig.flush().unwrap();
    rig.settle();
    let before = rig.device.done.flushes;
    let mut out = 0;
    for index in 0..100 {
        let from = slice_of(&[index as u8; 512], 0);
        rig.submit(Op::Write { file, offset: 512 * (index % 8), from, durable: false });
        rig.submit(Op::Flush);
        out += 2;
    }
    while out > 0 {
        assert!(rig.next().result.is_ok());
        out -= 1;
    }
    let flushes = rig.device.done.flushes - before;
    assert!(flushes <= 3, "100 flushes that came together took {flushes} of the device");
}
