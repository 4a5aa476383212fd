//! Requests to files that are aligned, and change no metadata, have the card allocate nothing: from the ring to the device and back.
//! Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod support;

use counting::allocations;
use ob_core::NodeId;
use ob_files_card::FilesService;
use ob_wire_link::files::{Operation, RESPONSE_LEN, ROOT, RequestHeader, flag};
use support::rings::{House, Request};
use support::{MemoryDevice, SMALL, UUID, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const LEN: usize = 4096;
const TOGETHER: u64 = 8;
const WARM: u64 = 50;
const ROUNDS: u64 = 500;

#[test]
fn aligned_reads_and_writes_allocate_nothing() {
    let mut device = MemoryDevice::new((384 << 10) + 64 * SEGMENT, BLOCK);
    ob_files_card::format(&mut device, &small_format(SEGMENT), UUID).unwrap();
    let files = ob_files_card::mount(&mut device, &SMALL).unwrap();
    let mut house = House::new(FilesService::new(files, device));
    let group = house.greeted(256 << 10, 256 << 10);
    let create = Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(b"file");
    let file = house.call(group, create).node().id;
    let bytes = pattern(1, 0, TOGETHER as usize * LEN);
    house.call(group, Request::new(Operation::Write).node(file).payload(&bytes, BLOCK));
    house.groups[group].reads = false;
    let (mut answers, mut counted) = (0, 0);
    for round in 0..WARM + ROUNDS {
        for number in 0..TOGETHER {
            push(&house, group, Operation::Read, file, number, None);
            push(&house, group, Operation::Write, file, number, Some(&bytes[..LEN]));
        }
        let before = allocations();
        for _ in 0..20 {
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
    assert_eq!(answers, (WARM + ROUNDS) * 2 * TOGETHER, "each is answered");
    assert_eq!(house.service.counts().unaligned, 0, "none takes the detour");
    assert_eq!(counted, 0, "in {} requests", ROUNDS * 2 * TOGETHER);
}

fn push(house: &House, group: usize, operation: Operation, file: NodeId, number: u64, bytes: Option<&[u8]>) {
    let header = RequestHeader {
        id: number,
        operation: operation.code(),
        node: file,
        offset: number * LEN as u64,
        length: LEN as u32,
        ..RequestHeader::default()
    };
    house.groups[group].push_raw(&header.encode(), bytes.map(|bytes| (bytes, BLOCK))).unwrap();
}
