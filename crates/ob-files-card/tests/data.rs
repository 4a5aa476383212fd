//! Bytes of files beside a model, on a device that completes in any order and refuses when it likes.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ob_core::{DeviceError, DeviceOp, NodeId, Token};
use ob_files_card::{Completion, FileVersion, FilesOptions, MetadataOp, Op, Outcome};
use ob_sim::Rng;
use ob_wire_link::files::{FileError, ROOT};
use proptest::collection::vec;
use proptest::prelude::*;
use support::journal::{Journal, Medium};
use support::{MemoryDevice, Rig, SMALL, pattern, read_bytes, slice, slice_of, small_format};

const BLOCK: usize = 512;
const SEGMENT: u64 = 4096;
const FILE_LEN_MAX: u64 = 30_000;
const FILES: usize = 3;

/// Something done to one of a few files.
#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, len: usize, skew: usize, durable: bool },
    Read { offset: u64, len: usize, skew: usize },
    Resize { size: u64 },
    Zero { offset: u64, len: u64 },
    Rename,
    Remove,
    Flush,
}

fn steps() -> impl Strategy<Value = Step> {
    let aligned = |number: u64| number / BLOCK as u64 * BLOCK as u64;
    let offset = prop_oneof![0..FILE_LEN_MAX, (0..FILE_LEN_MAX).prop_map(aligned)];
    let len = prop_oneof![1..2000usize, 1..12_000usize, (1..16usize).prop_map(|blocks| blocks * BLOCK)];
    let skew = prop_oneof![3 => Just(0usize), 1 => 1..600usize];
    let write = (offset.clone(), len.clone(), skew.clone(), proptest::bool::weighted(0.1))
        .prop_map(|(offset, len, skew, durable)| Step::Write { offset, len, skew, durable });
    let read = (offset.clone(), len, skew).prop_map(|(offset, len, skew)| Step::Read { offset, len, skew });
    prop_oneof![
        10 => write,
        6 => read,
        3 => offset.clone().prop_map(|size| Step::Resize { size }),
        3 => (offset, prop_oneof![1..2000u64, 1..20_000u64, (1..6u64).prop_map(|count| count * SEGMENT)])
            .prop_map(|(offset, len)| Step::Zero { offset, len }),
        1 => Just(Step::Rename),
        1 => Just(Step::Remove),
        1 => Just(Step::Flush),
    ]
}

/// Steps that are in flight together, each at a file.
fn rounds() -> impl Strategy<Value = Vec<Vec<(usize, Step)>>> {
    vec(vec((0..FILES, steps()), 1..7), 1..14)
}

/// A file of the model: what it holds after each order of what was in flight.
struct File {
    id: NodeId,
    name: Vec<u8>,
    bytes: Vec<u8>,
    /// Which version has these bytes.
    version: FileVersion,
}

/// One change of a file's bytes.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Resize { size: u64 },
    Zero { offset: u64, len: u64 },
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { offset, bytes: new } => {
            let (start, end) = (*offset as usize, *offset as usize + new.len());
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(new);
        }
        Change::Resize { size } => bytes.resize(*size as usize, 0),
        Change::Zero { offset, len } => {
            let end = bytes.len().min((offset + len) as usize);
            bytes[end.min(*offset as usize)..end].fill(0);
        }
    }
}

/// Every state that changes in any order pass through, and those they can end in.
fn states(start: &[u8], changes: &[Change]) -> (BTreeSet<Vec<u8>>, BTreeSet<Vec<u8>>) {
    let (mut passed, mut ends) = (BTreeSet::new(), BTreeSet::new());
    let mut open = vec![(start.to_vec(), (0..changes.len()).collect::<Vec<_>>())];
    while let Some((bytes, left)) = open.pop() {
        for (at, index) in left.iter().enumerate() {
            let mut next = bytes.clone();
            apply(&mut next, &changes[*index]);
            let mut rest = left.clone();
            rest.remove(at);
            open.push((next, rest));
        }
        if left.is_empty() {
            ends.insert(bytes.clone());
        }
        passed.insert(bytes);
    }
    (passed, ends)
}

/// Whether each block of what was found is so in one of the states.
fn is_explained(found: &[u8], offset: u64, states: &BTreeSet<Vec<u8>>) -> Result<(), String> {
    let mut at = 0;
    while at < found.len() {
        let place = offset as usize + at;
        let len = (BLOCK - place % BLOCK).min(found.len() - at);
        let part = &found[at..at + len];
        if !states.iter().any(|state| state.get(place..place + len) == Some(part)) {
            return Err(format!("bytes {place}..{} are so in no order of what was in flight", place + len));
        }
        at += len;
    }
    Ok(())
}

struct Bench {
    rig: Rig,
    files: Vec<File>,
    next: u64,
}

impl Bench {
    fn new(seed: u64, options: &FilesOptions) -> Self {
        let mut device = MemoryDevice::new((384 << 10) + 256 * SEGMENT, BLOCK as u32);
        let mut order = Rng::new(seed).fork("order");
        device.order = Some(Box::new(move |limit| order.below(limit)));
        let mut rig = Rig::format(device, &small_format(SEGMENT), options);
        rig.device.credit = Some(0);
        rig.device.refuses_one_in = Some(3);
        rig.device.depth = 7;
        let mut bench = Self { rig, files: Vec::new(), next: 0 };
        for _ in 0..FILES {
            let file = bench.create();
            bench.files.push(file);
        }
        bench
    }

    fn create(&mut self) -> File {
        self.next += 1;
        let name = format!("file {}", self.next).into_bytes();
        let id = self.rig.create(ROOT, &name).unwrap().id;
        let (bytes, version) = self.read_all(id);
        File { id, name, bytes, version }
    }

    /// A file's bytes while nothing is at it, and their version.
    fn read_all(&mut self, file: NodeId) -> (Vec<u8>, FileVersion) {
        let len = 64 << 10;
        let completion = self.rig.run(Op::Read { file, offset: 0, len, into: slice(len as usize, 0) });
        let Ok(Outcome::Read { version: Some(version), .. }) = completion.result else {
            panic!("a file that nobody changes was read with {:?}", completion.result);
        };
        (read_bytes(&completion).unwrap(), version)
    }

    fn start(&mut self, index: usize, step: &Step, changes: &mut [Vec<Change>]) -> Token {
        let file = self.files[index].id;
        self.next += 1;
        let op = match step {
            Step::Write { offset, len, skew, durable } => {
                let bytes = pattern(self.next, *offset, *len);
                let from = slice_of(&bytes, *skew);
                changes[index].push(Change::Write { offset: *offset, bytes });
                Op::Write { file, offset: *offset, from, durable: *durable }
            }
            Step::Read { offset, len, skew } => {
                // Room for whole blocks, as a reader has it whose memory is aligned.
                let into = slice(len.next_multiple_of(BLOCK), *skew);
                Op::Read { file, offset: *offset, len: *len as u32, into }
            }
            Step::Resize { size } => {
                changes[index].push(Change::Resize { size: *size });
                Op::Resize { file, size: *size }
            }
            Step::Zero { offset, len } => {
                changes[index].push(Change::Zero { offset: *offset, len: *len });
                Op::Zero { file, offset: *offset, len: *len }
            }
            Step::Rename => {
                let name = format!("renamed {}", self.next).into_bytes();
                let path = std::mem::replace(&mut self.files[index].name, name.clone());
                Op::Metadata(support::rename(&path, &name))
            }
            Step::Remove => {
                let path = self.files[index].name.clone();
                Op::Metadata(MetadataOp::Remove { base: ROOT, path, only: None })
            }
            Step::Flush => Op::Flush,
        };
        self.rig.submit(op)
    }

    /// One round; everything in it is in flight together.
    fn round(&mut self, steps: &[(usize, Step)]) {
        let mut changes = vec![Vec::new(); FILES];
        let mut gone = [false; FILES];
        let mut out = BTreeMap::new();
        for (index, step) in steps {
            // There are no more orders than one can look at, and nobody renames what is gone.
            let is_change = matches!(step, Step::Write { .. } | Step::Resize { .. } | Step::Zero { .. });
            let is_name = matches!(step, Step::Rename | Step::Remove);
            if (is_change && changes[*index].len() >= 4) || (is_name && gone[*index]) {
                continue;
            }
            gone[*index] |= matches!(step, Step::Remove);
            let token = self.start(*index, step, &mut changes);
            out.insert(token, (*index, step.clone()));
        }
        let mut completions = Vec::new();
        while !out.is_empty() {
            let completion = self.rig.next();
            let (index, step) = out.remove(&completion.token).expect("answered once");
            completions.push((index, step, completion));
        }
        let orders: Vec<_> =
            self.files.iter().zip(&changes).map(|(file, changes)| states(&file.bytes, changes)).collect();
        for (index, step, completion) in &completions {
            check_answer(step, completion, gone[*index], &orders[*index].0);
        }
        for index in 0..FILES {
            if gone[index] {
                let op = MetadataOp::Stat { base: self.files[index].id, path: Vec::new() };
                assert_eq!(self.rig.node(op), Err(FileError::NotFound));
                self.files[index] = self.create();
                continue;
            }
            let (found, version) = self.read_all(self.files[index].id);
            let mut ends = orders[index].1.clone();
            ends.retain(|state| state.len() == found.len());
            assert!(!ends.is_empty(), "{} bytes is no size that {steps:?} can end with", found.len());
            is_explained(&found, 0, &ends).unwrap_or_else(|error| panic!("{error}: {steps:?}"));
            let file = &mut self.files[index];
            let reads = completions.iter().filter(|(at, ..)| *at == index);
            for (_, step, completion) in reads {
                let known = [(file.version, &file.bytes), (version, &found)];
                check_version(step, completion, known, &orders[index].0);
            }
            (file.bytes, file.version) = (found, version);
        }
    }
}

/// A read with a version saw one state as a whole: that of before, that of afterwards, or one in between.
fn check_version(
    step: &Step,
    completion: &Completion,
    known: [(FileVersion, &Vec<u8>); 2],
    states: &BTreeSet<Vec<u8>>,
) {
    let (Step::Read { offset, len, .. }, Ok(Outcome::Read { version: Some(version), .. })) =
        (step, &completion.result)
    else {
        return;
    };
    let found = read_bytes(completion).unwrap();
    let is_so = |state: &Vec<u8>| {
        let at = |place: u64| state.len().min(place as usize);
        state[at(*offset)..at(offset + *len as u64)] == found
    };
    match known.iter().find(|(known, _)| known == version) {
        Some((_, bytes)) => assert!(is_so(bytes), "{step:?} saw another state than its version has"),
        None => assert!(states.iter().any(is_so), "{step:?} saw several states at once"),
    }
}

fn check_answer(step: &Step, completion: &Completion, gone: bool, states: &BTreeSet<Vec<u8>>) {
    if gone && completion.result == Err(FileError::NotFound) {
        return;
    }
    let outcome = completion.result.clone().unwrap_or_else(|error| panic!("{step:?}: {error}"));
    match (step, outcome) {
        (Step::Read { offset, len, .. }, Outcome::Read { len: found, .. }) => {
            let sizes: BTreeSet<u64> = states.iter().map(|state| state.len() as u64).collect();
            let clamp = |size: &u64| size.saturating_sub(*offset).min(*len as u64) == u64::from(found);
            assert!(sizes.iter().any(clamp), "{found} bytes were read of {sizes:?} by {step:?}");
            let bytes = read_bytes(completion).unwrap();
            is_explained(&bytes, *offset, states).unwrap_or_else(|error| panic!("{step:?}: {error}"));
            let buffer = completion.buffer.as_ref().unwrap();
            assert_eq!(buffer.len(), len.next_multiple_of(BLOCK), "the buffer comes back whole");
        }
        (Step::Write { len, .. }, Outcome::Written { len: written, size }) => {
            assert_eq!(written as usize, *len);
            assert!(gone || states.iter().any(|state| state.len() as u64 == size));
        }
        (Step::Resize { .. }, Outcome::Node(_) | Outcome::Done) => {}
        (Step::Rename | Step::Remove | Step::Flush | Step::Zero { .. }, Outcome::Done) => {}
        (step, outcome) => panic!("{step:?} was answered with {outcome:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_in_flight_together_is_as_if_one_came_after_the_other(
        rounds in rounds(), seed in any::<u64>(), copies in any::<bool>(),
    ) {
        let mut bench = Bench::new(seed, &FilesOptions { copy_everything: copies, bounce_buffers: 2, ..SMALL });
        for round in &rounds {
            bench.round(round);
        }
        bench.rig.assert_space_is_exact();
        bench.rig.flush().unwrap();
        bench.rig.settle();
        let image = bench.rig.device.image().clone();
        let mut rig = Rig::mount(MemoryDevice::with(image, BLOCK as u32), &SMALL);
        for file in &bench.files {
            prop_assert!(rig.read(file.id, 0, 64 << 10).unwrap() == file.bytes, "after a mount it is the same");
        }
        prop_assert_eq!(rig.files.space_info().free, bench.rig.files.space_info().free);
    }
}

/// Bytes, most of them few and some of them many.
fn some_length(rng: &mut Rng, most: u64) -> u64 {
    let bits = rng.below(u64::from(64 - most.leading_zeros())) + 1;
    1 + rng.below(most.min(1 << bits))
}

#[test]
fn requests_of_any_size_across_segments() {
    const LARGE: u64 = 8 << 20;
    let mut rng = Rng::new(11);
    let mut device = MemoryDevice::new(64 << 20, 4096);
    let mut order = rng.fork("order");
    device.order = Some(Box::new(move |limit| order.below(limit)));
    let format = ob_files_card::FormatOptions { segment_len: Some(256 << 10), ..Default::default() };
    let mut rig = Rig::format(device, &format, &FilesOptions { bounce_buffers: 8, ..SMALL });
    rig.device.refuses_one_in = Some(4);
    rig.device.depth = 20;
    let file = rig.create(ROOT, b"file").unwrap().id;
    let mut model: Vec<u8> = Vec::new();
    let mut expected: BTreeMap<Token, Option<Vec<u8>>> = BTreeMap::new();
    let mut busy: Vec<(u64, u64)> = Vec::new();
    for round in 0..250 {
        let len = some_length(&mut rng, LARGE);
        let offset = rng.below(2 * LARGE);
        let (start, end) = (offset / 4096 * 4096, (offset + len).next_multiple_of(4096));
        let overlaps = busy.iter().any(|(other, other_end)| start < *other_end && *other < end);
        if overlaps || round % 16 == 0 {
            while !expected.is_empty() {
                let completion = rig.next();
                match expected.remove(&completion.token).unwrap() {
                    Some(bytes) => assert!(read_bytes(&completion).unwrap() == bytes),
                    None => assert!(completion.result.is_ok()),
                }
            }
            busy.clear();
        }
        busy.push((start, end));
        let skew = if rng.one_in(3) { rng.index(4096) } else { 0 };
        if rng.one_in(2) && !model.is_empty() {
            // Reads see at most what was there before this round's writes.
            let size = model.len() as u64;
            let offset = offset.min(size - 1);
            let len = len.min(size - offset);
            if busy.len() > 1 {
                continue;
            }
            let into = slice(len as usize, skew);
            let token = rig.submit(Op::Read { file, offset, len: len as u32, into });
            expected.insert(token, Some(model[offset as usize..][..len as usize].to_vec()));
        } else {
            let bytes = pattern(round, offset, len as usize);
            let token = rig.submit(Op::Write { file, offset, from: slice_of(&bytes, skew), durable: false });
            expected.insert(token, None);
            apply(&mut model, &Change::Write { offset, bytes });
        }
    }
    while !expected.is_empty() {
        let completion = rig.next();
        expected.remove(&completion.token).unwrap();
    }
    assert!(rig.read(file, 0, model.len() + 5).unwrap() == model);
    rig.assert_space_is_exact();
}

#[test]
fn segments_of_a_removed_file_are_not_used_while_a_request_is_at_them() {
    for hold_reads in [false, true] {
        let mut device = MemoryDevice::new((384 << 10) + 16 * SEGMENT, BLOCK as u32);
        ob_files_card::format(&mut device, &small_format(SEGMENT), support::UUID).unwrap();
        let mut rig = Rig::mount(device, &SMALL);
        let old = rig.create(ROOT, b"old").unwrap().id;
        let len = 10 * SEGMENT as usize;
        rig.write(old, 0, &pattern(1, 0, len)).unwrap();
        rig.flush().unwrap();
        rig.settle();
        let data_start = 384 << 10;
        rig.device.holds = Some(Box::new(move |op| match op {
            DeviceOp::Read { .. } => hold_reads,
            DeviceOp::Write { offset, .. } => !hold_reads && *offset >= data_start,
            _ => false,
        }));
        let slow = if hold_reads {
            rig.submit(Op::Read { file: old, offset: 0, len: len as u32, into: slice(len, 0) })
        } else {
            rig.submit(Op::Write { file: old, offset: 0, from: slice_of(&vec![9; len], 0), durable: false })
        };
        rig.files.poll(&mut rig.device);
        let held = rig.device.queued().count();
        assert!(held > 0, "the device has it");
        rig.remove(ROOT, b"old").unwrap();
        rig.flush().unwrap();
        assert_eq!(rig.files.space_info().free, 16 * SEGMENT, "to a user they are free");
        let new = rig.create(ROOT, b"new").unwrap().id;
        // More than is free without them: it waits, and so does nobody else.
        let bytes = pattern(2, 0, 16 * SEGMENT as usize);
        let waits = rig.submit(Op::Write { file: new, offset: 0, from: slice_of(&bytes, 0), durable: false });
        for _ in 0..50 {
            rig.files.poll(&mut rig.device);
        }
        assert!(rig.files.next_completion().is_none());
        rig.device.holds = None;
        let (first, second) = (rig.next(), rig.next());
        assert_eq!((first.token, second.token), (slow, waits));
        if hold_reads {
            assert!(read_bytes(&first).unwrap() == pattern(1, 0, len), "what it began to read it reads");
        }
        assert!(second.result.is_ok());
        assert!(rig.read(new, 0, bytes.len()).unwrap() == bytes);
        rig.assert_space_is_exact();
    }
}

#[test]
fn growth_reads_as_zeros_whatever_was_there_before() {
    let mut rig =
        Rig::format(MemoryDevice::new((384 << 10) + 16 * SEGMENT, 512), &small_format(SEGMENT), &SMALL);
    for round in 0..40u64 {
        let file = rig.create(ROOT, b"file").unwrap().id;
        rig.write(file, 0, &pattern(round, 0, 14 * SEGMENT as usize + 100)).unwrap();
        let keep = round * 997 % (13 * SEGMENT);
        rig.resize(file, keep).unwrap();
        rig.resize(file, 12 * SEGMENT).unwrap();
        let mut expected = pattern(round, 0, keep as usize);
        expected.resize(12 * SEGMENT as usize, 0);
        expected.truncate(12 * SEGMENT as usize);
        assert!(rig.read(file, 0, 12 * SEGMENT as usize).unwrap() == expected, "round {round}");
        rig.remove(ROOT, b"file").unwrap();
        let sparse = rig.create(ROOT, b"sparse").unwrap().id;
        for segment in 0..15 {
            rig.write(sparse, segment * SEGMENT + 2000, b"x").unwrap();
        }
        let bytes = rig.read(sparse, 0, 15 * SEGMENT as usize).unwrap();
        let strange =
            bytes.iter().enumerate().find(|(at, byte)| **byte != 0 && at % SEGMENT as usize != 2000);
        assert_eq!(strange, None, "no byte of another file is ever seen");
        rig.remove(ROOT, b"sparse").unwrap();
    }
}

#[test]
fn readers_see_no_size_that_is_not_in_the_log() {
    let mut rig =
        Rig::format(MemoryDevice::new((384 << 10) + 16 * SEGMENT, 512), &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    rig.settle();
    let in_log = |op: &DeviceOp| match op {
        DeviceOp::Write { offset, .. } if *offset < 384 << 10 => Some(*offset),
        _ => None,
    };
    rig.device.holds = Some(Box::new(move |op| in_log(op).is_some()));
    let resize = rig.submit(Op::Resize { file, size: 200 });
    rig.files.poll(&mut rig.device);
    let first = rig.device.queued().find_map(in_log).expect("its frame is at the device");
    let from = slice_of(&[7; 100], 0);
    let write = rig.submit(Op::Write { file, offset: 200, from, durable: false });
    rig.files.poll(&mut rig.device);
    assert_eq!(rig.read(file, 0, 512).unwrap().len(), 0, "nothing of it is in the log");
    // The frame of the resize is written, that of the write is not.
    rig.device.holds = Some(Box::new(move |op| in_log(op).is_some_and(|offset| offset != first)));
    assert_eq!(rig.next().token, resize);
    assert_eq!(
        rig.read(file, 0, 512).unwrap(),
        [0; 200],
        "what is not in the log may be lost, and is not shown"
    );
    rig.device.holds = None;
    assert_eq!(rig.next().token, write);
    assert_eq!(rig.read(file, 0, 512).unwrap().len(), 300);

    // A hole that is filled is a hole to readers until the log says otherwise.
    rig.resize(file, 3 * SEGMENT).unwrap();
    rig.device.holds = Some(Box::new(move |op| in_log(op).is_some()));
    let from = slice_of(&[7; 512], 0);
    rig.submit(Op::Write { file, offset: SEGMENT, from, durable: false });
    rig.files.poll(&mut rig.device);
    assert!(rig.device.queued().all(|op| in_log(op).is_some()), "the bytes themselves are written");
    assert_eq!(rig.read(file, SEGMENT, 512).unwrap(), [0; 512]);
    rig.device.holds = None;
    assert!(rig.next().result.is_ok());
    assert_eq!(rig.read(file, SEGMENT, 512).unwrap(), [7; 512]);
}

#[test]
fn segments_that_cannot_be_zeroed_are_told_of_and_others_are_used() {
    for good in [0, 5, 16u64] {
        let mut device = MemoryDevice::new((384 << 10) + 16 * SEGMENT, 512);
        let limit = (384 << 10) + good * SEGMENT;
        device.fails = Some(Box::new(move |op| match op {
            DeviceOp::WriteZeroes { offset, len } => (offset + len > limit).then_some(DeviceError::Io),
            _ => None,
        }));
        let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
        let file = rig.create(ROOT, b"file").unwrap().id;
        let (mut written, mut failed) = (0, 0);
        for segment in 0..20 {
            match rig.write(file, segment * SEGMENT, &pattern(1, segment * SEGMENT, 100)) {
                Ok(_) => written += 1,
                Err(FileError::Io | FileError::NoSpace) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(
            written <= good && failed > 0 && (good < 16 || written == good),
            "{written} of {good} were written"
        );
        let size = if written == 0 { 0 } else { (written - 1) * SEGMENT + 100 };
        assert_eq!(rig.stat(file, b"").unwrap().size, size);
        for segment in 0..written {
            assert_eq!(rig.read(file, segment * SEGMENT, 100).unwrap(), pattern(1, segment * SEGMENT, 100));
        }
        rig.assert_space_is_exact();
    }
}

#[test]
fn a_device_that_fails_for_a_moment_loses_no_free_segment() {
    let (fails, tries) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
    let (failing, tried) = (Rc::clone(&fails), Rc::clone(&tries));
    let mut device = MemoryDevice::new((384 << 10) + 16 * SEGMENT, 512);
    device.fails = Some(Box::new(move |op| {
        let is_hit = matches!(op, DeviceOp::WriteZeroes { .. }) && failing.get();
        tried.set(tried.get() + u32::from(is_hit));
        is_hit.then_some(DeviceError::NoSpace)
    }));
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    rig.settle();
    for _ in 0..100 {
        let before = tries.get();
        assert_eq!(rig.write(file, 0, &pattern(1, 0, 100)).map(drop), Err(FileError::Io));
        rig.settle();
        assert!((1..=5).contains(&(tries.get() - before)), "it is asked again, and not for ever");
    }
    rig.assert_space_is_exact();
    fails.set(false);
    for segment in 0..16 {
        rig.write(file, segment * SEGMENT, &pattern(1, segment * SEGMENT, 100)).unwrap();
    }
    assert_eq!(rig.write(file, 16 * SEGMENT, &[1]).map(drop), Err(FileError::NoSpace));
    rig.assert_space_is_exact();
}

/// A file of ten segments on a device of sixteen, all of it flushed.
fn ten_segments() -> (Rig, NodeId, Vec<u8>) {
    let device = MemoryDevice::new((384 << 10) + 16 * SEGMENT, 512);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    let bytes = pattern(1, 0, 10 * SEGMENT as usize);
    rig.write(file, 0, &bytes).unwrap();
    rig.flush().unwrap();
    rig.settle();
    (rig, file, bytes)
}

#[test]
fn zeroing_gives_whole_segments_back_and_touches_no_other_byte() {
    // Where the range begins and ends, and how many segments of ten it frees.
    let cases = [
        (0, 10 * SEGMENT, 10),
        (SEGMENT, SEGMENT, 1),
        (1, SEGMENT, 0),
        (SEGMENT - 1, SEGMENT + 2, 1),
        (100, 200, 0),
        (3 * SEGMENT + 512, 4 * SEGMENT, 3),
        (9 * SEGMENT, u64::MAX, 1),
        (10 * SEGMENT, 5, 0),
        (u64::MAX, u64::MAX, 0),
        (5 * SEGMENT, 0, 0),
    ];
    for (offset, len, freed) in cases {
        let (mut rig, file, mut bytes) = ten_segments();
        rig.run(Op::Zero { file, offset, len }).result.unwrap();
        let end = offset.saturating_add(len).min(bytes.len() as u64) as usize;
        bytes[end.min(offset as usize)..end].fill(0);
        assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes, "{offset}, {len}");
        let info = rig.stat(file, b"").unwrap();
        assert_eq!((info.size, info.allocated), (10 * SEGMENT, (10 - freed) * SEGMENT), "{offset}, {len}");
        rig.flush().unwrap();
        rig.settle();
        // All of it can be used again, and is not mixed up.
        let other = rig.create(ROOT, b"other").unwrap().id;
        let more = pattern(2, 0, (6 + freed as usize) * SEGMENT as usize);
        rig.write(other, 0, &more).unwrap();
        assert_eq!(rig.write(other, 16 * SEGMENT, b"x"), Err(FileError::NoSpace));
        let mut rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), 512), &SMALL);
        assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes, "{offset}, {len} after a mount");
        assert!(rig.read(other, 0, more.len()).unwrap() == more);
        rig.assert_space_is_exact();
    }
}

#[test]
fn a_scattered_file_gets_holes_across_parts_of_its_map() {
    const COUNT: u64 = 240;
    let device = MemoryDevice::new((384 << 10) + 2 * COUNT * SEGMENT, 512);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    let (file, other) = (rig.create(ROOT, b"file").unwrap().id, rig.create(ROOT, b"other").unwrap().id);
    // Runs of two segments, more than one part of the map holds.
    for index in 0..COUNT / 2 {
        for one in [file, other] {
            let offset = index * 2 * SEGMENT;
            rig.write(one, offset, &pattern(one.0, offset, 2 * SEGMENT as usize)).unwrap();
        }
    }
    let mut bytes = pattern(file.0, 0, (COUNT * SEGMENT) as usize);
    // The middle of runs first, which splits parts; then a hole over several parts, and one that is there already.
    let holes = (0..40).map(|index| (4 * index + 1, 2)).chain([(170, 1), (30, 150), (0, 100), (100, 30)]);
    for (first, count) in holes {
        rig.run(Op::Zero { file, offset: first * SEGMENT, len: count * SEGMENT }).result.unwrap();
        bytes[(first * SEGMENT) as usize..((first + count) * SEGMENT) as usize].fill(0);
    }
    assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes);
    assert_eq!(rig.stat(file, b"").unwrap().allocated, (COUNT - 180) * SEGMENT);
    rig.assert_space_is_exact();
    rig.flush().unwrap();
    let mut rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), 512), &SMALL);
    assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes, "and so it is after a mount");
    let whole = pattern(other.0, 0, bytes.len());
    assert!(rig.read(other, 0, bytes.len()).unwrap() == whole, "the other file has lost nothing");
    rig.run(Op::Zero { file, offset: 0, len: u64::MAX }).result.unwrap();
    assert_eq!(rig.stat(file, b"").unwrap().allocated, 0);
    rig.assert_space_is_exact();
}

#[test]
fn segments_that_are_zeroed_wait_for_who_reads_them() {
    let (mut rig, file, bytes) = ten_segments();
    rig.device.holds = Some(Box::new(|op| matches!(op, DeviceOp::Read { .. })));
    let len = bytes.len();
    let reads = rig.submit(Op::Read { file, offset: 0, len: len as u32, into: slice(len, 0) });
    let zeroes = rig.submit(Op::Zero { file, offset: 0, len: len as u64 });
    let late = rig.submit(Op::Read { file, offset: 0, len: 512, into: slice(512, 0) });
    for _ in 0..50 {
        rig.files.poll(&mut rig.device);
    }
    assert!(rig.files.next_completion().is_none());
    rig.device.holds = None;
    let (first, second, third) = (rig.next(), rig.next(), rig.next());
    assert_eq!((first.token, second.token, third.token), (reads, zeroes, late));
    assert!(read_bytes(&first).unwrap() == bytes, "what it began to read it reads");
    assert_eq!(read_bytes(&third).unwrap(), [0; 512]);
}

#[test]
fn segments_of_a_hole_are_not_used_before_the_hole_is_durable() {
    let (mut rig, file, mut bytes) = ten_segments();
    let other = rig.create(ROOT, b"other").unwrap().id;
    rig.flush().unwrap();
    let in_log = |op: &DeviceOp| matches!(op, DeviceOp::Write { offset, .. } if *offset < 384 << 10);
    rig.device.holds = Some(Box::new(in_log));
    let zeroes = rig.submit(Op::Zero { file, offset: SEGMENT, len: 8 * SEGMENT });
    // It needs all that is free, and the hole.
    let more = pattern(2, 0, 14 * SEGMENT as usize);
    let writes = rig.submit(Op::Write { file: other, offset: 0, from: slice_of(&more, 0), durable: false });
    for _ in 0..50 {
        rig.files.poll(&mut rig.device);
    }
    assert!(rig.device.queued().any(in_log), "the hole is not in the log");
    assert!(rig.files.next_completion().is_none());
    let image = rig.device.image().clone();
    let mut without = Rig::mount(MemoryDevice::with(image, 512), &SMALL);
    assert!(
        without.read(file, 0, bytes.len()).unwrap() == bytes,
        "a loss of power brings the file back whole"
    );
    rig.device.holds = None;
    let answers = [rig.next(), rig.next()].map(|answer| (answer.token, answer.result.is_ok()));
    assert!(answers.contains(&(zeroes, true)) && answers.contains(&(writes, true)), "{answers:?}");
    bytes[SEGMENT as usize..9 * SEGMENT as usize].fill(0);
    assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes);
    assert!(rig.read(other, 0, more.len()).unwrap() == more);
    rig.assert_space_is_exact();
}

#[test]
fn who_zeroes_when_the_device_fails_or_the_file_goes_is_answered() {
    let (mut rig, file, bytes) = ten_segments();
    rig.device.fails = Some(Box::new(|op| match op {
        DeviceOp::WriteZeroes { .. } => Some(DeviceError::Io),
        _ => None,
    }));
    let whole = Op::Zero { file, offset: 512, len: 3 * SEGMENT };
    assert_eq!(rig.run(whole).result, Err(FileError::Io));
    assert_eq!(
        rig.read(file, SEGMENT, 512).unwrap(),
        bytes[SEGMENT as usize..][..512],
        "no hole without its edges"
    );
    rig.device.fails = None;
    rig.device.holds = Some(Box::new(|op| matches!(op, DeviceOp::Read { .. })));
    let zeroes = rig.submit(Op::Zero { file, offset: 5, len: 10 });
    rig.files.poll(&mut rig.device);
    rig.remove(ROOT, b"file").unwrap();
    rig.device.holds = None;
    let answer = rig.next();
    assert_eq!((answer.token, answer.result), (zeroes, Err(FileError::NotFound)));
    assert_eq!(rig.run(Op::Zero { file, offset: 5, len: 10 }).result, Err(FileError::NotFound));
    assert_eq!(rig.run(Op::Zero { file: ROOT, offset: 5, len: 10 }).result, Err(FileError::IsADirectory));
    rig.settle();
    rig.assert_space_is_exact();
}

/// A file of 100 bytes, with more behind them in its segment; all of it flushed.
fn with_remains(journal: Option<Journal>) -> (Rig, NodeId) {
    let device = MemoryDevice::new((384 << 10) + 16 * SEGMENT, 512);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    rig.write(file, 0, &pattern(1, 0, 3000)).unwrap();
    rig.resize(file, 100).unwrap();
    rig.flush().unwrap();
    rig.settle();
    rig.device.journal = journal;
    (rig, file)
}

#[test]
fn who_tidies_up_when_the_log_fails_is_answered() {
    let holds: [fn(&DeviceOp) -> bool; 3] = [
        |op| matches!(op, DeviceOp::Read { .. }),
        |op| matches!(op, DeviceOp::WriteZeroes { .. }),
        |op| matches!(op, DeviceOp::Flush),
    ];
    for hold in holds {
        let (mut rig, file) = with_remains(None);
        rig.device.holds = Some(Box::new(hold));
        let grows = rig.submit(Op::Resize { file, size: 9000 });
        rig.files.poll(&mut rig.device);
        assert!(rig.device.queued().any(hold), "it is being tidied");
        let waits = rig.submit(Op::Read { file, offset: 0, len: 100, into: slice(512, 0) });
        rig.device.fails = Some(Box::new(|op| match op {
            DeviceOp::Write { offset, .. } if *offset < 384 << 10 => Some(DeviceError::Io),
            _ => None,
        }));
        assert_eq!(rig.create(ROOT, b"other").err(), Some(FileError::ReadOnly));
        rig.device.holds = None;
        let (first, second) = (rig.next(), rig.next());
        assert_eq!((first.token, first.result), (grows, Err(FileError::ReadOnly)));
        assert_eq!((second.token, read_bytes(&second)), (waits, Ok(pattern(1, 0, 100))));
    }
}

#[test]
fn a_file_removed_while_it_is_tidied_comes_back_whole_if_power_is_lost() {
    let journal = Journal::default();
    let (mut rig, file) = with_remains(Some(journal.clone()));
    let start = rig.device.image().clone();
    rig.device.holds = Some(Box::new(|op| matches!(op, DeviceOp::Read { .. })));
    let grows = rig.submit(Op::Resize { file, size: 9000 });
    rig.files.poll(&mut rig.device);
    assert!(rig.device.queued().any(|op| matches!(op, DeviceOp::Read { .. })), "it is being tidied");
    rig.remove(ROOT, b"file").unwrap();
    rig.device.holds = Some(Box::new(|op| matches!(op, DeviceOp::Flush)));
    let answer = rig.next();
    assert_eq!((answer.token, answer.result), (grows, Err(FileError::NotFound)));
    let mut medium = Medium::new(start, 512);
    for event in journal.take() {
        medium.apply(&event);
    }
    // All that was written to segments survives, and nothing of the log.
    let kept = medium.at_risk().into_iter().filter(|(_, block)| block * 512 >= 384 << 10).collect();
    let mut rig = Rig::mount(MemoryDevice::with(medium.image(&kept), 512), &SMALL);
    assert_eq!(rig.read(file, 0, 512).unwrap(), pattern(1, 0, 100));
}
