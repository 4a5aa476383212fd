//! Requests that nobody should send: each gets one answer, and nobody else notices.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use ob_core::NodeId;
use ob_files_card::{FilesService, FormatOptions};
use ob_ring::PushError;
use ob_wire_link::files::{CardInfo, FileError, Operation, REQUEST_LEN, ROOT, RequestHeader, VERSION, flag};
use proptest::collection::vec;
use proptest::prelude::*;
use support::rings::{House, Request};
use support::{MemoryDevice, Rig, SMALL, UUID, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 8 << 10;
const CAPACITY: u64 = (384 << 10) + 64 * SEGMENT;
const RING: u32 = 256 << 10;
/// The name of the file that must not change. Hostile requests of these tests do not know it, nor its id.
const BYSTANDER: &[u8] = b"a file of somebody else";
const BYSTANDER_LEN: usize = 20_000;

fn house() -> House {
    let mut device = MemoryDevice::new(CAPACITY, BLOCK);
    // Ids begin with 2 in this format, so that they can be guessed.
    ob_files_card::format(&mut device, &small_format(SEGMENT), [0; 16]).unwrap();
    let files = ob_files_card::mount(&mut device, &SMALL).unwrap();
    House::new(FilesService::new(files, device))
}

/// Bytes of a message.
type Raw = (Vec<u8>, Option<(Vec<u8>, u32)>);

fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..70_000u64,
        1 => Just(0),
        1 => (0..64u32).prop_map(|shift| 1 << shift),
        1 => (0..1000u64).prop_map(|below| u64::MAX - below),
        1 => (0..1000u64).prop_map(|below| SEGMENT * u64::from(u32::MAX) - below),
        1 => any::<u64>(),
    ]
}

/// Node 2 is the bystander's file.
fn nodes() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(1), 5 => 3..12u64, 1 => Just(0), 1 => 3..=u64::MAX]
}

fn paths() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        8 => (0..4u8).prop_map(|letter| vec![b'a' + letter]),
        1 => vec(any::<u8>(), 0..12),
        1 => (250..260usize).prop_map(|len| vec![b'n'; len]),
        1 => Just(b"..".to_vec()),
    ];
    prop_oneof![
        8 => vec(name, 0..4).prop_map(|names| names.join(&b'/')),
        1 => vec(any::<u8>(), 0..200),
        1 => (4000..4200usize).prop_map(|len| b"x/".repeat(len / 2)),
    ]
}

fn messages() -> impl Strategy<Value = Raw> {
    let operations = prop_oneof![15 => 1..=13u16, 1 => any::<u16>()];
    let flags = prop_oneof![6 => Just(0), 4 => 0..4u16, 1 => any::<u16>()];
    let header = (any::<u64>(), operations, flags, numbers(), nodes(), numbers(), nodes());
    let payload = proptest::option::of((vec(any::<u8>(), 0..3000), 0..4u32));
    let shaped =
        (header, paths(), paths(), payload, any::<bool>()).prop_map(|(header, one, two, payload, fits)| {
            let (id, operation, flags, length, node, offset, node_more) = header;
            let payload = payload.map(|(bytes, align)| (bytes, 8 << (3 * align)));
            let payload_len = payload.as_ref().map_or(one.len(), |(bytes, _)| bytes.len());
            let length = if fits { payload_len as u32 } else { length as u32 };
            let (node, node_more) = (NodeId(node), NodeId(node_more));
            let header = RequestHeader { id, operation, flags, length, node, offset, node_more };
            ([&header.encode()[..], &one, &two].concat(), payload)
        });
    prop_oneof![12 => shaped, 1 => vec(any::<u8>(), 0..REQUEST_LEN + 20).prop_map(|bytes| (bytes, None))]
}

/// Sends everything, however long it takes; every message gets an answer with a status that the document knows.
fn send_all(house: &mut House, group: usize, messages: &[Raw]) -> Vec<Option<FileError>> {
    for (inline, payload) in messages {
        let payload = payload.as_ref().map(|(bytes, align)| (&bytes[..], *align));
        let mut result = house.groups[group].push_raw(inline, payload);
        if result == Err(PushError::Retry) {
            house.settle();
            result = house.groups[group].push_raw(inline, payload);
        }
        assert_eq!(result, Ok(()), "a ring that was full is empty when everything is answered");
    }
    house.settle();
    let responses = std::mem::take(&mut house.groups[group].responses);
    assert_eq!(responses.len(), messages.len(), "one answer each");
    let mut ids: Vec<u64> = responses.iter().map(|response| response.header.id).collect();
    let id = |(inline, _): &Raw| RequestHeader::decode(inline).map_or(0, |(header, _)| header.id);
    let mut expected: Vec<u64> = messages.iter().map(id).collect();
    ids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    for response in &responses {
        let status = response.header.status.err();
        assert!(!matches!(status, Some(FileError::Other(_))), "{response:?}");
        assert!(status.is_none() || (response.more.is_empty() && response.payload.is_empty()));
    }
    responses.iter().map(|response| response.header.status.err()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_sent_is_answered_and_harms_nobody(messages in vec(messages(), 1..120), greeted in any::<bool>()) {
        let mut house = house();
        let bystander = house.greeted(RING, RING);
        let create = Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(BYSTANDER);
        let file = house.call(bystander, create).node().id;
        prop_assert_eq!(file, NodeId(2));
        let bytes = pattern(1, 0, BYSTANDER_LEN);
        house.call(bystander, Request::new(Operation::Write).node(file).payload(&bytes, BLOCK));
        let hostile = if greeted { house.greeted(RING, RING) } else { house.open(RING, RING) };
        let statuses = send_all(&mut house, hostile, &messages);
        let says_hello = |(inline, _): &Raw| {
            RequestHeader::decode(inline).is_some_and(|(header, _)| header.operation == Operation::Hello.code())
        };
        if !greeted && !messages.iter().any(says_hello) {
            let refused = |status: &Option<FileError>| {
                matches!(status, Some(FileError::Unsupported | FileError::Invalid))
            };
            prop_assert!(statuses.iter().all(refused));
        }
        let read = Request::new(Operation::Read).node(file).length(BYSTANDER_LEN as u32 + 1);
        prop_assert!(house.call(bystander, read).payload == bytes);
        prop_assert_eq!(house.call(bystander, Request::new(Operation::Flush)).error(), None);
        prop_assert!(house.service.is_idle());

        let mut device = MemoryDevice::with(house.service.device().image().clone(), BLOCK);
        let report = ob_files_card::check(&mut device, &mut |_, _| {}).unwrap();
        prop_assert_eq!(report.findings, []);
        let mut rig = Rig::mount(device, &SMALL);
        prop_assert!(rig.read(file, 0, BYSTANDER_LEN + 1).unwrap() == bytes);
        prop_assert_eq!(rig.files.space_info().free, house.service.files().space_info().free);
        rig.assert_space_is_exact();
    }
}

#[test]
fn lists_that_nobody_takes_do_not_pile_up() {
    let format =
        FormatOptions { segment_len: Some(64 << 10), section_len: Some(64 << 10), log_len: Some(4 << 20) };
    let mut device = MemoryDevice::new(16 << 20, 4096);
    ob_files_card::format(&mut device, &format, UUID).unwrap();
    let mut rig = Rig::mount(device, &SMALL);
    for index in 0..1000 {
        rig.create(ROOT, format!("{index:0>250}").as_bytes()).unwrap();
    }
    let (files, device) = rig.into_parts();
    let mut house = House::new(FilesService::new(files, device));
    let (deaf, other) = (house.greeted(64 << 10, 1 << 20), house.greeted(RING, RING));
    house.groups[deaf].reads = false;
    let before = house.service.counts().metadata;
    let list = Request::new(Operation::List).node(ROOT).length(100_000);
    let mut pushed = 0u64;
    while house.groups[deaf].push(list.clone()).is_ok() {
        pushed += 1;
        house.turn();
    }
    house.settle();
    let made = house.service.counts().metadata - before;
    assert!(pushed > 1000 && made < 60, "{made} lists of {pushed} were made before there was room for them");
    let stat = Request::new(Operation::Stat).node(ROOT);
    assert_eq!(house.call(other, stat).node().size, 1000, "others go on");
    house.groups[deaf].reads = true;
    house.settle();
    let responses = std::mem::take(&mut house.groups[deaf].responses);
    assert_eq!(responses.len() as u64, pushed);
    assert!(responses.iter().all(|response| response.payload.len() > 90_000 && response.header.value == 1));
}

#[test]
fn flags_that_an_operation_does_not_have_are_refused() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let create = Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(b"file");
    let file = house.call(group, create).node().id;
    for operation in Operation::ALL.iter().copied() {
        let known = match operation {
            Operation::Open | Operation::Remove => 3,
            Operation::Write | Operation::Rename => 1,
            _ => 0,
        };
        for bit in 0..16 {
            let mut request = Request::new(operation).flags(1 << bit).node(file);
            match operation {
                Operation::Hello => request = request.offset(u64::from(VERSION)),
                Operation::Write => request = request.payload(b"bytes", BLOCK),
                Operation::Remove if 1 << bit & known != 0 => request = request.more(b"nothing"),
                _ => {}
            }
            let error = house.call(group, request).error();
            if 1 << bit & known == 0 {
                assert_eq!(error, Some(FileError::Invalid), "{operation:?}, bit {bit}");
            }
        }
    }
    let exclusive = Request::new(Operation::Open).node(ROOT).flags(flag::EXCLUSIVE).more(b"file");
    assert_eq!(house.call(group, exclusive).error(), Some(FileError::Invalid), "it means nothing by itself");
    // Nothing of it was done.
    assert_eq!(house.call(group, Request::new(Operation::Stat).node(ROOT).more(b"file")).node().size, 5);
}

#[test]
fn numbers_at_the_end_of_all_numbers_are_refused_or_mean_nothing() {
    let mut house = house();
    let group = house.greeted(RING, RING);
    let create = Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(b"file");
    let file = house.call(group, create).node().id;
    let bytes = pattern(1, 0, 3000);
    house.call(group, Request::new(Operation::Write).node(file).payload(&bytes, BLOCK));
    for offset in [u64::MAX, u64::MAX - 2999, u64::MAX - 4095, i64::MAX as u64, 1 << 63] {
        let at = |operation| Request::new(operation).node(file).offset(offset);
        let read = house.call(group, at(Operation::Read).length(3000));
        assert_eq!((read.error(), read.payload.len()), (None, 0), "{offset}");
        let write = house.call(group, at(Operation::Write).payload(&bytes, BLOCK));
        assert_eq!(write.error(), Some(FileError::TooLarge), "{offset}");
        assert_eq!(house.call(group, at(Operation::Resize)).error(), Some(FileError::TooLarge), "{offset}");
        assert_eq!(house.call(group, at(Operation::Zero).length(u32::MAX)).error(), None, "{offset}");
    }
    for length in [u32::MAX, 1 << 31] {
        let read = Request::new(Operation::Read).node(file).length(length);
        assert_eq!(house.call(group, read).error(), Some(FileError::TooLarge));
    }
    let nothing = Request::new(Operation::Write).node(file).offset(3000);
    assert_eq!(house.call(group, nothing).error(), None);
    let whole = house.call(group, Request::new(Operation::Read).node(file).length(4000));
    assert!(whole.payload == bytes, "nothing of it was changed");
}

#[test]
fn a_group_whose_rings_are_too_small_is_told_so() {
    let mut house = house();
    for ring in [4096, 8192, 16 << 10, 32 << 10, 64 << 10] {
        let group = house.open(ring, ring);
        let hello = house.call(group, Request::new(Operation::Hello).offset(u64::from(VERSION)));
        if ring < 32 << 10 {
            assert_eq!(hello.error(), Some(FileError::Invalid));
            continue;
        }
        let info = CardInfo::decode(&hello.more).expect("the answer is legal");
        let name = ring.to_string();
        let create = Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(name.as_bytes());
        let file = house.call(group, create).node().id;
        let bytes = pattern(2, 0, info.transfer_max as usize);
        let write = Request::new(Operation::Write).node(file).payload(&bytes, BLOCK);
        assert_eq!(house.call(group, write).error(), None);
        let read = Request::new(Operation::Read).node(file).length(info.transfer_max);
        assert!(house.call(group, read).payload == bytes, "rings of {ring} bytes");
    }
}
