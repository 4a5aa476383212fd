//! Requests as they come through rings: each is answered as the document says, whoever sends it and however.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::collections::VecDeque;

use ob_core::{AttachmentId, DeviceError, DeviceOp, NodeId, NodeKind};
use ob_files_card::{FilesOptions, FilesService};
use ob_ring::{CardService, PushError};
use ob_wire_link::files::{
    CardInfo, Entries, FileError, Operation, PATH_LEN_MAX, ROOT, SpaceInfo, VERSION, flag,
};
use support::rings::{House, Request, Response};
use support::{MemoryDevice, Rig, SMALL, UUID, pattern, small_format};

const BLOCK: u32 = 4096;
const SEGMENT: u64 = 16 << 10;
const CAPACITY: u64 = (384 << 10) + 128 * SEGMENT;
const RING: u32 = 1 << 20;

fn house_with(options: &FilesOptions) -> House {
    let mut device = MemoryDevice::new(CAPACITY, BLOCK);
    ob_files_card::format(&mut device, &small_format(SEGMENT), UUID).unwrap();
    let files = ob_files_card::mount(&mut device, options).unwrap();
    House::new(FilesService::new(files, device))
}

fn house() -> House {
    house_with(&SMALL)
}

fn open(path: &[u8]) -> Request {
    Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(path)
}

fn make_directory(path: &[u8]) -> Request {
    Request::new(Operation::MakeDirectory).node(ROOT).more(path)
}

fn remove(path: &[u8]) -> Request {
    Request::new(Operation::Remove).node(ROOT).more(path)
}

fn rename(path: &[u8], to: &[u8]) -> Request {
    let mut request = Request::new(Operation::Rename).node(ROOT).length(path.len() as u32);
    request.header.node_more = ROOT;
    request.more(&[path, to].concat())
}

fn stat(path: &[u8]) -> Request {
    Request::new(Operation::Stat).node(ROOT).more(path)
}

fn list(directory: NodeId, after: &[u8], most: u32) -> Request {
    Request::new(Operation::List).node(directory).length(most).more(after)
}

fn read(node: NodeId, offset: u64, length: u32) -> Request {
    Request::new(Operation::Read).node(node).offset(offset).length(length)
}

fn write(node: NodeId, offset: u64, bytes: &[u8]) -> Request {
    Request::new(Operation::Write).node(node).offset(offset).payload(bytes, BLOCK)
}

fn names(response: &Response) -> Vec<Vec<u8>> {
    Entries::new(&response.payload).map(|entry| entry.unwrap().name.to_vec()).collect()
}

#[test]
fn nothing_is_answered_before_hello_but_hello() {
    let mut house = house();
    let group = house.open(RING, RING);
    for operation in Operation::ALL.iter().filter(|operation| **operation != Operation::Hello) {
        let response = house.call(group, Request::new(*operation).node(ROOT));
        assert_eq!(response.error(), Some(FileError::Unsupported), "{operation:?} before HELLO");
    }
    let other = Request::new(Operation::Hello).offset(u64::from(VERSION) + 1);
    let refusal = house.call(group, other);
    assert_eq!(refusal.error(), Some(FileError::Unsupported));
    assert_eq!(refusal.header.value, u64::from(VERSION), "it says which version it speaks");
    assert_eq!(house.call(group, stat(b"")).error(), Some(FileError::Unsupported), "that was no HELLO");
    let hello = house.call(group, Request::new(Operation::Hello).offset(u64::from(VERSION)));
    let info = CardInfo::decode(&hello.more).unwrap();
    assert_eq!((info.version, info.block_len, info.segment_len), (VERSION, BLOCK, SEGMENT));
    assert_eq!((info.uuid, info.epoch), (UUID, 1));
    assert_eq!(info.file_len_max, SEGMENT * u64::from(u32::MAX));
    assert!(info.transfer_max > 0 && info.transfer_max <= SMALL.transfer_max);
    assert_eq!(house.call(group, stat(b"")).node().id, ROOT);
    let info = house.call(group, Request::new(Operation::Space));
    assert_eq!(SpaceInfo::decode(&info.more).unwrap().directories, 1);
}

#[test]
fn what_is_too_short_has_no_id_and_is_invalid() {
    let mut house = house();
    for greeted in [false, true] {
        let group = if greeted { house.greeted(RING, RING) } else { house.open(RING, RING) };
        for len in [0, 1, 39] {
            house.groups[group].push_raw(&[0xff; 39][..len], None).unwrap();
            house.settle();
            let response = house.groups[group].take(0).unwrap();
            assert_eq!(response.error(), Some(FileError::Invalid));
        }
        assert!(house.groups[group].responses.is_empty(), "one answer each");
    }
}

#[test]
fn names_are_made_moved_listed_and_removed() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let directory = house.call(group, make_directory(b"a")).node();
    assert_eq!((directory.kind, directory.size, directory.parent), (NodeKind::Directory, 0, Some(ROOT)));
    let file = house.call(group, open(b"a/file")).node();
    assert_eq!((file.kind, file.size, file.allocated), (NodeKind::File, 0, 0));
    assert_eq!(file.parent, Some(directory.id));
    assert_eq!(house.call(group, open(b"a/file")).node(), file, "it is not made twice");
    let from_here = Request::new(Operation::Open).node(directory.id).more(b"file");
    assert_eq!(house.call(group, from_here).node(), file);
    assert_eq!(house.call(group, stat(b"a")).node().size, 1);
    let by_id = house.call(group, Request::new(Operation::Stat).node(file.id));
    assert_eq!(by_id.node(), file, "no path: the node itself");
    assert_eq!(house.call(group, stat(b"")).node().parent, None, "the root is in no directory");

    let moved = house.call(group, rename(b"a/file", b"moved"));
    assert_eq!((moved.header.status, moved.more.len(), moved.payload.len()), (Ok(()), 0, 0));
    assert_eq!(house.call(group, stat(b"moved")).node().id, file.id);
    let other = house.call(group, open(b"other")).node();
    let unwanted = rename(b"other", b"moved").flags(flag::NO_REPLACE);
    assert_eq!(house.call(group, unwanted).error(), Some(FileError::Exists));
    assert_eq!(house.call(group, rename(b"other", b"moved")).error(), None);
    assert_eq!(house.call(group, stat(b"moved")).node().id, other.id, "replaced");
    let gone = Request::new(Operation::Stat).node(file.id);
    assert_eq!(house.call(group, gone).error(), Some(FileError::NotFound));
    house.call(group, make_directory(b"b")).node();
    assert_eq!(house.call(group, rename(b"a", b"b")).error(), None, "an empty directory is replaced too");

    for index in 0..20 {
        house.call(group, open(format!("b/{index:02}").as_bytes())).node();
    }
    let all = house.call(group, list(directory.id, b"", 4096));
    assert_eq!((all.header.length as usize, all.header.value), (all.payload.len(), 0));
    assert_eq!(names(&all).len(), 20);
    let (mut paged, mut after) = (Vec::new(), Vec::new());
    loop {
        let page = house.call(group, list(directory.id, &after, 100));
        assert!(page.payload.len() <= 100 && page.header.length as usize == page.payload.len());
        paged.extend(names(&page));
        after.clone_from(paged.last().unwrap());
        if page.header.value == 0 {
            break;
        }
    }
    assert_eq!(paged, names(&all));
    let nothing = house.call(group, list(directory.id, b"zz", 4096));
    assert_eq!((nothing.error(), nothing.payload.len(), nothing.header.value), (None, 0, 0));

    assert_eq!(house.call(group, remove(b"moved").flags(flag::ONLY_FILE)).error(), None);
    assert_eq!(house.call(group, remove(b"b/00")).error(), None);
    house.call(group, make_directory(b"c")).node();
    assert_eq!(house.call(group, remove(b"c").flags(flag::ONLY_DIRECTORY)).error(), None);
    let space = SpaceInfo::decode(&house.call(group, Request::new(Operation::Space)).more).unwrap();
    assert_eq!((space.files, space.directories), (19, 2));
    assert_eq!((space.total, space.free), (128 * SEGMENT, 128 * SEGMENT));
    assert!(space.log_live > 0 && space.log_live < space.log_total);
}

#[test]
fn bytes_are_written_read_resized_and_flushed() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"file")).node().id;
    let bytes = pattern(1, 0, 3 * SEGMENT as usize + 777);
    let written = house.call(group, write(file, 5, &bytes)).header;
    assert_eq!((written.length as usize, written.value), (bytes.len(), 5 + bytes.len() as u64));
    let response = house.call(group, read(file, 5, bytes.len() as u32));
    assert_eq!(response.header.length as usize, bytes.len());
    assert!(response.payload == bytes);
    let end = house.call(group, read(file, written.value - 10, 4096));
    assert_eq!(end.header.length, 10, "short at the end of the file");
    assert!(end.payload == bytes[bytes.len() - 10..]);
    for offset in [written.value, written.value + 1, u64::MAX] {
        let beyond = house.call(group, read(file, offset, 4096));
        assert_eq!((beyond.error(), beyond.header.length, beyond.payload.len()), (None, 0, 0));
    }
    assert_eq!(house.call(group, read(file, 0, 0)).header.length, 0);
    let nothing = house.call(group, Request::new(Operation::Write).node(file).offset(0));
    assert_eq!((nothing.error(), nothing.header.length), (None, 0));

    let resize = |size| Request::new(Operation::Resize).node(file).offset(size);
    let shrunk = house.call(group, resize(100)).node();
    assert_eq!((shrunk.size, shrunk.allocated), (100, SEGMENT));
    let grown = house.call(group, resize(SEGMENT * 2)).node();
    assert_eq!((grown.size, grown.allocated), (SEGMENT * 2, SEGMENT));
    let response = house.call(group, read(file, 0, SEGMENT as u32 * 2));
    let expected: Vec<u8> = [&[0; 5], &bytes[..95], &vec![0; 2 * SEGMENT as usize - 100]].concat();
    assert!(response.payload == expected, "what was cut off does not come back");

    let flushes = house.service.device().done.flushes;
    assert_eq!(house.call(group, Request::new(Operation::Flush)).header.status, Ok(()));
    assert!(house.service.device().done.flushes > flushes);
    let durable = write(file, 0, &[7; BLOCK as usize]).flags(flag::DURABLE);
    assert_eq!(house.call(group, durable).header.length, BLOCK);
    let image = house.service.device().image().clone();
    let mut rig = Rig::mount(MemoryDevice::with(image, BLOCK), &SMALL);
    assert!(rig.read(file, 0, 4096).unwrap() == [7; 4096]);
}

/// Checks a list of requests against the errors they must bring.
fn expect_errors(house: &mut House, group: usize, cases: Vec<(Request, FileError)>) {
    for (request, error) in cases {
        let response = house.call(group, request.clone());
        assert_eq!(response.error(), Some(error), "{request:?}");
        assert_eq!((response.more.len(), response.payload.len()), (0, 0), "an error has nothing to add");
    }
}

#[test]
fn every_error_about_names_has_its_cause() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let directory = house.call(group, make_directory(b"a")).node().id;
    house.call(group, make_directory(b"a/b")).node();
    let file = house.call(group, open(b"file")).node().id;
    let long_name = [b'x'; 256];
    let long_path = b"x/".repeat(PATH_LEN_MAX / 2 + 1);
    let exclusive = flag::CREATE | flag::EXCLUSIVE;
    let missing = NodeId(u64::MAX);
    let mut cases = vec![
        (stat(b"missing"), FileError::NotFound),
        (stat(b"").node(missing), FileError::NotFound),
        (stat(b"").node(NodeId(0)), FileError::NotFound),
        (open(b"missing/file"), FileError::NotFound),
        (open(b"file").node(missing), FileError::NotFound),
        (Request::new(Operation::Open).node(ROOT).more(b"missing"), FileError::NotFound),
        (make_directory(b"missing/a"), FileError::NotFound),
        (remove(b"missing"), FileError::NotFound),
        (rename(b"missing", b"x"), FileError::NotFound),
        (rename(b"file", b"missing/x"), FileError::NotFound),
        (list(missing, b"", 4096), FileError::NotFound),
        (open(b"file").flags(exclusive), FileError::Exists),
        (make_directory(b"a"), FileError::Exists),
        (make_directory(b"file"), FileError::Exists),
        (rename(b"a/b", b"file").flags(flag::NO_REPLACE), FileError::Exists),
        (open(b"file/x"), FileError::NotADirectory),
        (stat(b"file/x"), FileError::NotADirectory),
        (list(file, b"", 4096), FileError::NotADirectory),
        (rename(b"a", b"file"), FileError::NotADirectory),
        (rename(b"a", b"file/x"), FileError::NotADirectory),
        (remove(b"file").flags(flag::ONLY_DIRECTORY), FileError::NotADirectory),
        (remove(b"a/b").flags(flag::ONLY_FILE), FileError::IsADirectory),
        (rename(b"file", b"a/b"), FileError::IsADirectory),
        (remove(b"a"), FileError::NotEmpty),
        (rename(b"file", b"a"), FileError::NotEmpty),
        (rename(b"a", b"a/b/c"), FileError::WithinItself),
        (rename(b"a", b"a/c"), FileError::WithinItself),
        (remove(b""), FileError::Invalid),
        (remove(b"file").flags(flag::ONLY_FILE | flag::ONLY_DIRECTORY), FileError::Invalid),
        (rename(b"a", b"x").length(3), FileError::Invalid),
        (rename(b"a", b"x").length(u32::MAX), FileError::Invalid),
        (list(ROOT, b"", 0), FileError::Invalid),
        (list(ROOT, b"", 31), FileError::Invalid),
        (make_directory(b""), FileError::BadName),
        (rename(b"file", b""), FileError::BadName),
    ];
    let bad: [&[u8]; 9] =
        [b"/", b"/a", b"a/", b"a//b", b".", b"a/..", b"nul\0", &long_name, &long_path[..PATH_LEN_MAX + 1]];
    for path in bad {
        cases.push((stat(path), FileError::BadName));
        cases.push((open(path), FileError::BadName));
        cases.push((make_directory(path), FileError::BadName));
        cases.push((remove(path), FileError::BadName));
        cases.push((rename(b"file", path), FileError::BadName));
        cases.push((rename(path, b"x"), FileError::BadName));
    }
    for number in [0, 14, 99, u16::MAX] {
        let mut request = Request::new(Operation::Stat).node(ROOT);
        request.header.operation = number;
        cases.push((request, FileError::Unsupported));
    }
    expect_errors(&mut house, group, cases);
    let unchanged: Vec<_> = [b"a".to_vec(), b"file".to_vec()].into();
    assert_eq!(names(&house.call(group, list(ROOT, b"", 4096))), unchanged);
    assert_eq!(names(&house.call(group, list(directory, b"", 4096))), [b"b"]);
    assert_eq!(house.call(group, stat(&long_name[..255])).error(), Some(FileError::NotFound), "255 is legal");
}

#[test]
fn every_error_about_bytes_has_its_cause() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let hello = house.call(group, Request::new(Operation::Hello).offset(u64::from(VERSION)));
    let info = CardInfo::decode(&hello.more).unwrap();
    let file = house.call(group, open(b"file")).node().id;
    let bytes = [1; 100];
    let resize = |node, size| Request::new(Operation::Resize).node(node).offset(size);
    let short = write(file, 0, &bytes).length(99);
    let without = Request::new(Operation::Write).node(file).length(5);
    let cases = vec![
        (read(NodeId(99), 0, 10), FileError::NotFound),
        (write(NodeId(99), 0, &bytes), FileError::NotFound),
        (resize(NodeId(99), 5), FileError::NotFound),
        (read(ROOT, 0, 10), FileError::IsADirectory),
        (write(ROOT, 0, &bytes), FileError::IsADirectory),
        (resize(ROOT, 5), FileError::IsADirectory),
        (short, FileError::Invalid),
        (without, FileError::Invalid),
        (read(file, 0, info.transfer_max + 1), FileError::TooLarge),
        (read(file, 0, u32::MAX), FileError::TooLarge),
        (write(file, 0, &bytes).length(u32::MAX), FileError::TooLarge),
        (write(file, info.file_len_max - 99, &bytes), FileError::TooLarge),
        (write(file, u64::MAX - 50, &bytes), FileError::TooLarge),
        (write(file, u64::MAX, &bytes), FileError::TooLarge),
        (resize(file, info.file_len_max + 1), FileError::TooLarge),
        (resize(file, u64::MAX), FileError::TooLarge),
    ];
    expect_errors(&mut house, group, cases);
    assert_eq!(house.call(group, resize(file, info.file_len_max)).node().size, info.file_len_max);
    assert_eq!(house.call(group, resize(file, 0)).node().size, 0);

    // The largest transfer that was promised can be made.
    let large = pattern(3, 0, info.transfer_max as usize);
    for offset in [0, 1] {
        let written = house.call(group, write(file, offset, &large));
        assert_eq!((written.error(), written.header.length), (None, info.transfer_max));
        assert!(house.call(group, read(file, offset, info.transfer_max)).payload == large);
    }
}

#[test]
fn a_full_device_says_so_and_takes_removals() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"file")).node().id;
    let bytes = pattern(4, 0, 8 * SEGMENT as usize);
    let mut offset = 0;
    let full = loop {
        let response = house.call(group, write(file, offset, &bytes));
        if let Some(error) = response.error() {
            break error;
        }
        offset += bytes.len() as u64;
    };
    assert_eq!((full, offset), (FileError::NoSpace, 128 * SEGMENT));
    let space = |house: &mut House| {
        SpaceInfo::decode(&house.call(group, Request::new(Operation::Space)).more).unwrap()
    };
    assert_eq!(space(&mut house).free, 0);
    assert_eq!(house.call(group, stat(b"file")).node().size, offset, "a write that failed leaves no trace");
    assert_eq!(house.call(group, write(file, 100, &bytes)).error(), None, "what is there can be written");
    let other = house.call(group, open(b"other")).node().id;
    assert_eq!(house.call(group, write(other, 0, b"x")).error(), Some(FileError::NoSpace));
    assert_eq!(house.call(group, remove(b"file")).error(), None);
    assert_eq!(space(&mut house).free, 128 * SEGMENT);
    assert_eq!(house.call(group, write(other, 3 * SEGMENT - 1, b"xy")).error(), None);
    assert!(house.call(group, read(other, 0, SEGMENT as u32)).payload == vec![0; SEGMENT as usize]);
    assert_eq!(space(&mut house).free, 126 * SEGMENT);
}

#[test]
fn a_full_log_says_so_and_takes_removals() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let name = |index: u32| format!("{index:0>200}").into_bytes();
    let mut made = 0;
    while house.call(group, open(&name(made))).error().is_none_or(|error| {
        assert_eq!(error, FileError::NoSpace);
        false
    }) {
        made += 1;
        assert!(made < 2000, "the log has 256 KiB");
    }
    assert!(made > 100, "{made} names fit");
    assert_eq!(house.call(group, make_directory(b"d")).error(), Some(FileError::NoSpace));
    assert_eq!(house.call(group, open(&name(0))).error(), None, "what is there is found");
    assert_eq!(house.call(group, rename(&name(0), b"short")).error(), None);
    assert_eq!(house.call(group, remove(b"short")).error(), None);
    for index in 1..made {
        assert_eq!(house.call(group, remove(&name(index))).error(), None);
    }
    let space = SpaceInfo::decode(&house.call(group, Request::new(Operation::Space)).more).unwrap();
    assert_eq!((space.files, space.log_live), (0, 0));
    for index in 0..made {
        assert_eq!(house.call(group, open(&name(index))).error(), None, "all of it can be used again");
    }
}

#[test]
fn bytes_that_are_still_there_are_not_said_to_be_gone() {
    for taking_away in [
        Request::new(Operation::Zero).offset(SEGMENT).length(SEGMENT as u32),
        Request::new(Operation::Zero).length(4 * SEGMENT as u32),
        Request::new(Operation::Resize).offset(SEGMENT),
    ] {
        let mut house = house();
        let group = house.greeted(RING, RING);
        let [file, other] = [b"file", b"else"].map(|name| house.call(group, open(name)).node().id);
        let bytes = pattern(5, 0, 4 * SEGMENT as usize);
        for file in [file, other] {
            house.call(group, write(file, 0, &bytes));
        }
        house.settle();
        let data_start = CAPACITY - 128 * SEGMENT;
        house.service.device().fails = Some(Box::new(move |op| {
            matches!(op, DeviceOp::Write { offset, .. } if *offset < data_start).then_some(DeviceError::Io)
        }));
        let refused = house.call(group, taking_away.node(file)).error();
        assert_eq!(refused, Some(FileError::ReadOnly));
        house.service.device().fails = None;
        let whole = read(file, 0, bytes.len() as u32);
        assert_eq!(house.call(group, whole).error(), Some(FileError::ReadOnly));
        assert!(house.call(group, read(other, 0, bytes.len() as u32)).payload == bytes);
        let image = house.service.device().image().clone();
        let mut rig = Rig::mount(MemoryDevice::with(image, BLOCK), &SMALL);
        assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes, "the next life has them");
    }
}

#[test]
fn a_device_that_fails_is_told_of() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"file")).node().id;
    let bytes = pattern(5, 0, 2 * SEGMENT as usize);
    house.call(group, write(file, 0, &bytes));
    house.settle();
    let data_start = CAPACITY - 128 * SEGMENT;
    house.service.device().fails = Some(Box::new(move |op| {
        op.extent().filter(|(offset, _)| *offset >= data_start).map(|_| DeviceError::Io)
    }));
    for (offset, length) in [(0, 100), (0, 2 * SEGMENT as u32), (7, 100), (SEGMENT - 1, 2)] {
        assert_eq!(house.call(group, read(file, offset, length)).error(), Some(FileError::Io));
    }
    assert_eq!(house.call(group, write(file, 0, &bytes)).error(), Some(FileError::Io));
    assert_eq!(house.call(group, write(file, 3, b"abc")).error(), Some(FileError::Io));
    house.service.device().fails = None;
    assert_eq!(house.call(group, stat(b"file")).node().size, bytes.len() as u64);
    assert_eq!(house.call(group, write(file, 0, &bytes)).error(), None);
    assert!(house.call(group, read(file, 0, bytes.len() as u32)).payload == bytes);

    // A log that cannot be written is the end of changes, and not of reading.
    house.service.device().fails = Some(Box::new(move |op| {
        matches!(op, DeviceOp::Write { offset, .. } if *offset < data_start).then_some(DeviceError::Io)
    }));
    assert_eq!(house.call(group, open(b"new")).error(), Some(FileError::ReadOnly));
    house.service.device().fails = None;
    let resize = Request::new(Operation::Resize).node(file).offset(5);
    let changes = [
        open(b"newer"),
        make_directory(b"d"),
        remove(b"file"),
        rename(b"file", b"g"),
        resize,
        write(file, 0, &bytes),
        Request::new(Operation::Flush),
    ];
    for change in changes {
        assert_eq!(house.call(group, change.clone()).error(), Some(FileError::ReadOnly), "{change:?}");
    }
    assert!(house.call(group, read(file, 0, bytes.len() as u32)).payload == bytes);
    assert_eq!(house.call(group, stat(b"file")).node().id, file);
    assert_eq!(house.call(group, Request::new(Operation::Space)).error(), None);
    // The next start takes changes again.
    let image = house.service.device().image().clone();
    let mut rig = Rig::mount(MemoryDevice::with(image, BLOCK), &SMALL);
    assert!(rig.read(file, 0, bytes.len()).unwrap() == bytes);
    rig.create(ROOT, b"new").unwrap();
}

#[test]
fn aligned_requests_are_not_copied_and_others_are_counted() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"file")).node().id;
    let bytes = pattern(6, 0, 3 * SEGMENT as usize);
    house.call(group, write(file, 0, &bytes));
    for (offset, length) in [(0, BLOCK), (SEGMENT - u64::from(BLOCK), 2 * BLOCK), (0, 3 * SEGMENT as u32)] {
        let response = house.call(group, read(file, offset, length));
        assert!(response.payload == bytes[offset as usize..][..length as usize]);
    }
    // Not a whole block is wanted, but there is room for one.
    assert_eq!(house.call(group, read(file, 0, 100)).payload, bytes[..100]);
    house.call(group, Request::new(Operation::Write).node(file).payload(&bytes[..8192], 4096));
    assert_eq!(house.service.counts().unaligned, 0);
    let mut counted = 0;
    let mut more = |house: &House, why: &str| {
        let now = house.service.counts().unaligned;
        assert!(now > counted, "{why} is counted");
        counted = now;
    };
    assert_eq!(house.call(group, read(file, 1, BLOCK)).payload, bytes[1..=BLOCK as usize]);
    more(&house, "a read that does not begin with a block");
    house.call(group, write(file, 0, &bytes[..100]));
    more(&house, "a write of a part of a block");
    house.call(group, write(file, 10, &bytes[10..8000]));
    more(&house, "a write that begins within a block");
    house.call(group, Request::new(Operation::Write).node(file).payload(&bytes[..4096], 8));
    more(&house, "a write whose payload is not aligned in the ring");
    assert!(house.call(group, read(file, 0, bytes.len() as u32)).payload == bytes);
}

#[test]
fn what_hangs_at_the_device_holds_up_nothing_else() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"file")).node().id;
    house.call(group, write(file, 0, &pattern(7, 0, 8192)));
    let other = house.call(group, open(b"other")).node().id;
    house.call(group, write(other, 0, &pattern(7, 0, 4096)));
    // Neither flushes nor frames of the log come back.
    let data_start = CAPACITY - 128 * SEGMENT;
    house.service.device().holds = Some(Box::new(move |op| match op {
        DeviceOp::Flush => true,
        DeviceOp::Write { offset, .. } => *offset < data_start,
        _ => false,
    }));
    let flush = house.push(group, Request::new(Operation::Flush));
    let durable = house.push(group, write(file, 20_000, b"grows").flags(flag::DURABLE));
    let slow = [open(b"new"), rename(b"new", b"newer"), make_directory(b"d")];
    let slow: Vec<u64> = slow.into_iter().map(|request| house.push(group, request)).collect();
    for round in 0..50 {
        let response = house.call(group, read(file, 0, 4096));
        assert!(response.payload == pattern(7, 0, 4096), "round {round}");
        let written = house.call(group, write(other, 0, &pattern(round, 0, 4096)));
        assert_eq!(written.error(), None, "what changes no metadata is not held up either");
    }
    assert!(house.groups[group].responses.is_empty());
    house.service.device().holds = None;
    house.settle();
    for id in slow.into_iter().chain([flush, durable]) {
        assert_eq!(house.groups[group].take(id).unwrap().error(), None);
    }
}

#[test]
fn a_read_that_hangs_holds_up_no_other_until_the_ring_is_full() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"file")).node().id;
    house.call(group, write(file, 0, &pattern(7, 0, 65_536)));
    let hangs = |op: &DeviceOp| matches!(op, DeviceOp::Read { into, .. } if into.len() == 4096);
    house.service.device().holds = Some(Box::new(hangs));
    let hanging = house.push(group, read(file, 0, 4096));
    // Their answers together have room behind it.
    for round in 0..RING / (3 * 8192) {
        let response = house.call(group, read(file, 8192, 8192));
        assert!(response.payload == pattern(7, 8192, 8192), "round {round}");
        assert_eq!(house.call(group, stat(b"file")).error(), None);
    }
    assert!(house.groups[group].take(hanging).is_none());
    house.service.device().holds = None;
    house.settle();
    assert!(house.groups[group].take(hanging).unwrap().payload == pattern(7, 0, 4096));
}

#[test]
fn a_long_list_finds_room_beside_short_reads() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"file")).node().id;
    house.call(group, write(file, 0, &pattern(7, 0, 65_536)));
    for index in 0..200 {
        house.call(group, open(format!("{index:0>200}").as_bytes())).node();
    }
    // As many reads as the ring has room for, and more behind them all the time; the host takes one after the other.
    house.groups[group].takes_max = 1;
    let mut waiting = VecDeque::new();
    for _ in 0..2 * RING / 8192 {
        waiting.push_back(house.push(group, read(file, 0, 8192)));
    }
    let listed = house.push(group, list(ROOT, b"", 32_768));
    for _ in 0..20_000 {
        house.turn();
        while waiting.front().is_some_and(|id| house.groups[group].take(*id).is_some()) {
            waiting.pop_front();
            waiting.push_back(house.push(group, read(file, 0, 8192)));
        }
        if house.groups[group].take(listed).is_some() {
            return;
        }
    }
    panic!("the list is still not answered");
}

#[test]
fn a_host_that_never_reads_is_pushed_back_and_harms_nobody() {
    let mut house = house();
    let (deaf, other) = (house.greeted(RING, RING), house.greeted(RING, RING));
    let file = house.call(other, open(b"file")).node().id;
    house.call(other, write(file, 0, &pattern(8, 0, 65_536)));
    for index in 0..60 {
        house.call(other, open(format!("{index:0>200}").as_bytes())).node();
    }
    house.groups[deaf].reads = false;
    let requests = [
        read(file, 0, 65_536),
        list(ROOT, b"", 65_536),
        stat(b"file"),
        Request::new(Operation::Flush),
        read(file, 1, 100),
        write(file, 65_536, b"more"),
    ];
    let (mut pushed, mut refused) = (0u64, 0);
    for round in 0..40_000 {
        match house.groups[deaf].push(requests[round % requests.len()].clone()) {
            Ok(_) => pushed += 1,
            Err(PushError::Retry) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if round % 16 == 0 {
            house.turn();
        }
        if round % 1000 == 0 {
            assert_eq!(house.call(other, read(file, 0, 4096)).payload, pattern(8, 0, 4096));
            assert_eq!(house.call(other, open(b"file")).node().id, file);
        }
    }
    assert!(refused > 30_000, "{pushed} requests found room, and then no more");
    house.groups[deaf].reads = true;
    house.settle();
    let responses = std::mem::take(&mut house.groups[deaf].responses);
    assert_eq!(responses.len() as u64, pushed, "nothing was dropped");
    assert!(responses.iter().all(|response| response.error().is_none()));
}

#[test]
fn a_group_may_go_with_requests_in_flight() {
    let mut house = house();
    let other = house.greeted(RING, RING);
    let file = house.call(other, open(b"file")).node().id;
    house.call(other, write(file, 0, &pattern(9, 0, 65_536)));
    house.call(other, Request::new(Operation::Flush));
    let total = house.service.files().space_info().total;
    for round in 0..30 {
        let group = house.greeted(RING, RING);
        house.service.device().credit = Some(round);
        for index in 0..20u64 {
            house.push(group, read(file, index * 512, 30_000));
            house.push(group, write(file, index * 3000, &pattern(9, index * 3000, 3000)));
            house.push(group, open(format!("{}", index % 4).as_bytes()));
            house.push(group, remove(format!("{}", index % 3).as_bytes()));
            house.push(group, Request::new(Operation::Flush));
            house.turn();
        }
        house.close(group);
        house.turn();
        house.service.device().credit = None;
        house.settle();
        assert!(house.service.is_idle(), "nothing of the group is left");
        assert_eq!(house.service.group_count(), 1);
        assert!(house.call(other, read(file, 0, 65_536)).payload == pattern(9, 0, 65_536));
    }
    assert_eq!(house.service.files().space_info().free, total - 4 * SEGMENT);
}

#[test]
fn writes_and_reads_of_hosts_are_shown_to_who_wants_to_see_them() {
    use std::cell::RefCell;
    use std::rc::Rc;

    type Seen = Rc<RefCell<Vec<(NodeId, u64, Vec<u8>)>>>;
    struct Recorder(Seen);
    impl ob_files_card::WriteObserver for Recorder {
        fn write_taken(&mut self, file: NodeId, offset: u64, bytes: &[u8]) {
            self.0.borrow_mut().push((file, offset, bytes.to_vec()));
        }

        fn read_taken(&mut self, file: NodeId, offset: u64, len: u64) {
            self.0.borrow_mut().push((file, offset, format!("{len} bytes").into_bytes()));
        }
    }

    let mut house = house();
    let seen = Seen::default();
    house.service.observe_writes(Box::new(Recorder(Rc::clone(&seen))));
    let group = house.greeted(RING, RING);
    let file = house.call(group, open(b"log")).node().id;
    house.call(group, write(file, 4096, b"some bytes"));
    house.call(group, read(file, 4096, 10));
    // What is refused was not taken.
    let without = Request::new(Operation::Write).node(file).length(5);
    assert_eq!(house.call(group, without).error(), Some(FileError::Invalid));
    assert_eq!(*seen.borrow(), [(file, 4096, b"some bytes".to_vec()), (file, 4096, b"10 bytes".to_vec())]);
    // It is shown before any of it is read.
    house.service.device().holds = Some(Box::new(|op: &DeviceOp| matches!(op, DeviceOp::Read { .. })));
    let held = house.push(group, read(file, 4096, 4));
    house.settle();
    assert_eq!(seen.borrow().last(), Some(&(file, 4096, b"4 bytes".to_vec())));
    assert!(house.groups[group].take(held).is_none());
    house.service.device().holds = None;
    house.settle();
    assert_eq!(house.groups[group].take(held).unwrap().payload, b"some");
}

#[test]
fn nothing_of_a_new_group_begins_before_what_a_gone_one_had_begun_is_over() {
    let mut house = house();
    let beside = house.greeted(RING, RING);
    let first = house.greeted(RING, RING);
    let file = house.call(first, open(b"file")).node().id;
    house.call(first, write(file, 0, &pattern(1, 0, 4096)));
    let is_old =
        |op: &DeviceOp| matches!(op, DeviceOp::Write { from, .. } if from[..] == pattern(2, 0, 4096));
    house.service.device().holds = Some(Box::new(is_old));
    house.push(first, write(file, 0, &pattern(2, 0, 4096)));
    house.settle();
    house.close(first);
    // The next life of the same host: what it writes must not be under what the last one wrote.
    let next = house.open(RING, RING);
    let hello = house.push(next, Request::new(Operation::Hello).offset(u64::from(VERSION)));
    house.settle();
    assert!(house.groups[next].take(hello).is_none(), "it waits");
    assert_eq!(house.call(beside, stat(b"file")).error(), None, "who was there before does not");
    house.service.device().holds = None;
    house.settle();
    assert_eq!(house.groups[next].take(hello).unwrap().error(), None);
    house.call(next, write(file, 0, &pattern(3, 0, 4096)));
    assert!(house.call(next, read(file, 0, 4096)).payload == pattern(3, 0, 4096));
}

#[test]
fn nothing_of_a_host_that_may_be_dead_is_done_beside_what_its_next_life_does() {
    const DEAD: AttachmentId = AttachmentId(8);
    let mut house = house();
    let beside = house.greeted(RING, RING);
    let file = house.call(beside, open(b"file")).node().id;
    let first = house.open_for(DEAD, RING, RING);
    house.call(first, Request::new(Operation::Hello).offset(u64::from(VERSION)));
    let is_old =
        |op: &DeviceOp| matches!(op, DeviceOp::Write { from, .. } if from[..] == pattern(1, 0, 4096));
    house.service.device().holds = Some(Box::new(is_old));
    house.push(first, write(file, 0, &pattern(1, 0, 4096)));
    house.settle();
    // It is not known to live any more, and what it asked for comes late.
    house.service.suspended(DEAD, true);
    let late = house.push(first, write(file, 0, &pattern(2, 0, 4096)));
    house.settle();
    let next = house.open_for(AttachmentId(9), RING, RING);
    let hello = house.push(next, Request::new(Operation::Hello).offset(u64::from(VERSION)));
    house.settle();
    assert!(house.groups[next].take(hello).is_none(), "what had begun comes first");
    assert_eq!(house.call(beside, stat(b"file")).error(), None, "who was there before does not wait");
    house.service.device().holds = None;
    house.settle();
    assert_eq!(house.groups[next].take(hello).unwrap().error(), None);
    house.call(next, write(file, 0, &pattern(3, 0, 4096)));
    house.settle();
    assert!(house.call(next, read(file, 0, 4096)).payload == pattern(3, 0, 4096), "nothing comes late");
    assert!(house.groups[first].take(late).is_none() && house.service.is_idle());
    // It was only slow: then it is no earlier life of anybody, and gets what it asked for.
    house.service.suspended(DEAD, false);
    house.settle();
    assert_eq!(house.groups[first].take(late).unwrap().error(), None);
    assert!(house.call(next, read(file, 0, 4096)).payload == pattern(2, 0, 4096));
}

#[test]
fn what_a_dead_host_had_begun_is_waited_for_after_its_end_too() {
    const DEAD: AttachmentId = AttachmentId(8);
    let mut house = house();
    let beside = house.greeted(RING, RING);
    let file = house.call(beside, open(b"file")).node().id;
    let first = house.open_for(DEAD, RING, RING);
    house.call(first, Request::new(Operation::Hello).offset(u64::from(VERSION)));
    let is_old =
        |op: &DeviceOp| matches!(op, DeviceOp::Write { from, .. } if from[..] == pattern(1, 0, 4096));
    house.service.device().holds = Some(Box::new(is_old));
    house.push(first, write(file, 0, &pattern(1, 0, 4096)));
    house.settle();
    house.service.suspended(DEAD, true);
    let next = house.open_for(AttachmentId(9), RING, RING);
    house.close(first);
    house.service.suspended(DEAD, false);
    let next = next - 1;
    let hello = house.push(next, Request::new(Operation::Hello).offset(u64::from(VERSION)));
    house.settle();
    assert!(house.groups[next].take(hello).is_none(), "it was opened before the other was given up");
    house.service.device().holds = None;
    house.settle();
    assert_eq!(house.groups[next].take(hello).unwrap().error(), None);
    house.call(next, write(file, 0, &pattern(3, 0, 4096)));
    assert!(house.call(next, read(file, 0, 4096)).payload == pattern(3, 0, 4096));
}
