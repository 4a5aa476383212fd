//! Requests to files that change no metadata have the card allocate nothing: from the ring to the device and back, and from a volume.
//! Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod support;

use std::cell::RefCell;
use std::rc::Rc;

use counting::allocations;
use ob_core::{Device, DeviceOp, NodeId, Token};
use ob_files_card::{FilesService, OpeningVolume};
use ob_memory::Pool;
use ob_wire_link::files::{Operation, RESPONSE_LEN, ROOT, RequestHeader, flag};
use support::rings::{House, Request};
use support::{MemoryDevice, SMALL, UUID, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const LEN: usize = 4096;
const TOGETHER: u64 = 8;
/// A table in which ids come and go may grow once more when it has seen many.
const WARM: u64 = 600;
const ROUNDS: u64 = 500;

fn house() -> House {
    let mut device = MemoryDevice::new((384 << 10) + 64 * SEGMENT, BLOCK);
    ob_files_card::format(&mut device, &small_format(SEGMENT), UUID).unwrap();
    let files = ob_files_card::mount(&mut device, &SMALL).unwrap();
    House::new(FilesService::new(files, device))
}

/// A card, and a group of it that has a file with these bytes.
fn with_file(bytes: &[u8]) -> (House, usize, NodeId) {
    let mut house = house();
    let group = house.greeted(256 << 10, 256 << 10);
    let create = Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(b"file");
    let file = house.call(group, create).node().id;
    house.call(group, Request::new(Operation::Write).node(file).payload(bytes, BLOCK));
    house.groups[group].reads = false;
    (house, group, file)
}

/// Has `push` put requests into the ring again and again; how many were answered, and how often the card asked for memory when it had
/// done so before.
fn rounds(house: &mut House, group: usize, push: impl Fn(&House)) -> (u64, u64) {
    let (mut answers, mut counted) = (0, 0);
    for round in 0..WARM + ROUNDS {
        push(house);
        let before = allocations();
        for _ in 0..60 {
            house.turn();
        }
        if round >= WARM {
            counted += allocations() - before;
        }
        let mut head = [0; RESPONSE_LEN];
        while let Some(claimed) = house.groups[group].host_receiver.receive().unwrap() {
            claimed.inline(&mut head);
            assert!(claimed.payload_len() == LEN || claimed.payload_len() == 0);
            answers += 1;
        }
    }
    (answers, counted)
}

#[test]
fn aligned_reads_and_writes_allocate_nothing() {
    let bytes = pattern(1, 0, TOGETHER as usize * LEN);
    let (mut house, group, file) = with_file(&bytes);
    let (answers, counted) = rounds(&mut house, group, |house| {
        for number in 0..TOGETHER {
            let offset = number * LEN as u64;
            push(house, group, Operation::Read, (file, offset), None);
            push(house, group, Operation::Write, (file, offset), Some(&bytes[..LEN]));
        }
    });
    assert_eq!(answers, (WARM + ROUNDS) * 2 * TOGETHER, "each is answered");
    assert_eq!(house.service.counts().unaligned, 0, "none takes the detour");
    assert_eq!(counted, 0, "in {} requests", ROUNDS * 2 * TOGETHER);
}

/// By the places in memory, for a copy need not count itself.
#[test]
fn the_device_reads_into_the_answer_and_writes_from_the_request() {
    let bytes = pattern(1, 0, LEN);
    let (mut house, group, file) = with_file(&bytes);
    house.groups[group].reads = true;
    let places = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&places);
    house.service.device().holds = Some(Box::new(move |op| {
        noted.borrow_mut().push(match op {
            DeviceOp::Read { into, .. } => into.arena(),
            DeviceOp::Write { from, .. } => from.arena(),
            _ => return false,
        });
        false
    }));
    let read = Request::new(Operation::Read).node(file).length(LEN as u32);
    let write = Request::new(Operation::Write).node(file).payload(&bytes, BLOCK);
    let [of_requests, of_answers] = house.groups[group].arenas();
    for (request, place) in [(read, of_answers), (write, of_requests)] {
        assert_eq!(house.call(group, request).error(), None);
        assert_eq!(places.take(), [place], "one operation, without a copy");
    }
}

#[test]
fn writes_that_wait_for_each_others_blocks_allocate_nothing() {
    let bytes = pattern(1, 0, LEN);
    let (mut house, group, file) = with_file(&bytes);
    let (answers, counted) = rounds(&mut house, group, |house| {
        for number in 0..TOGETHER {
            push(house, group, Operation::Write, (file, number), Some(&bytes[..100]));
        }
    });
    assert_eq!(answers, (WARM + ROUNDS) * TOGETHER, "each is answered");
    assert_eq!(house.service.counts().unaligned, answers, "each is a part of one block");
    assert_eq!(counted, 0, "in {} requests", ROUNDS * TOGETHER);
}

#[test]
fn a_volume_allocates_nothing() {
    let at_once = 3 * TOGETHER;
    let mut house = house();
    let mut opening = OpeningVolume::new(house.service.local(), b"volume", Some(at_once * LEN as u64));
    let mut volume = loop {
        if let Some(opened) = opening.poll() {
            break opened.unwrap();
        }
        house.turn();
    };
    let pool = Pool::new(LEN, at_once as usize);
    let mut counted = 0;
    for round in 0..WARM + ROUNDS {
        let before = allocations();
        for number in 0..at_once {
            let (offset, from) = (number * LEN as u64, pool.take().unwrap().into());
            volume.submit(Token(number), DeviceOp::Write { offset, from, durable: false }).unwrap();
        }
        let mut answers = 0;
        while answers < at_once {
            house.turn();
            while let Some(completion) = volume.poll() {
                completion.result.unwrap();
                answers += 1;
            }
        }
        if round >= WARM {
            counted += allocations() - before;
        }
    }
    assert_eq!(counted, 0, "in {} writes", ROUNDS * at_once);
}

fn push(house: &House, group: usize, operation: Operation, at: (NodeId, u64), bytes: Option<&[u8]>) {
    let header = RequestHeader {
        operation: operation.code(),
        node: at.0,
        offset: at.1,
        length: bytes.map_or(LEN, <[u8]>::len) as u32,
        ..RequestHeader::default()
    };
    house.groups[group].push_raw(&header.encode(), bytes.map(|bytes| (bytes, BLOCK))).unwrap();
}
