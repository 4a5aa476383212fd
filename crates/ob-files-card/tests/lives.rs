//! Hosts that may be dead, and others that may be their next lives. (What is done for the sake of those who are is in `requests`.)

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use crate::support;

use ob_core::{AttachmentId, DeviceOp, NodeId};
use ob_files_card::FilesService;
use ob_ring::CardService;
use ob_wire_link::files::{Operation, ROOT, VERSION, flag};
use support::rings::{House, Request};
use support::{MemoryDevice, SMALL, UUID, pattern, small_format};

const BLOCK: u32 = 4096;
const SEGMENT: u64 = 16 << 10;
const RING: u32 = 1 << 20;
const OLD: AttachmentId = AttachmentId(8);
const NEW: AttachmentId = AttachmentId(9);

fn house() -> House {
    let mut device = MemoryDevice::new((384 << 10) + 128 * SEGMENT, BLOCK);
    ob_files_card::format(&mut device, &small_format(SEGMENT), UUID).unwrap();
    let files = ob_files_card::mount(&mut device, &SMALL).unwrap();
    House::new(FilesService::new(files, device))
}

fn hello() -> Request {
    Request::new(Operation::Hello).offset(u64::from(VERSION))
}

fn write(file: NodeId) -> Request {
    Request::new(Operation::Write).node(file).payload(&pattern(1, 0, 4096), BLOCK)
}

/// Who has shown that it lives is no earlier life of anybody who came before that, however often it is doubted later.
#[test]
fn nobody_waits_again_for_a_host_that_was_there_before_and_lives() {
    let mut house = house();
    let old = house.open_for(OLD, RING, RING);
    assert_eq!(house.call(old, hello()).error(), None);
    let open = Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(b"file");
    let file = house.call(old, open).node().id;
    let is_write =
        |op: &DeviceOp| matches!(op, DeviceOp::Write { from, .. } if from[..] == pattern(1, 0, 4096));
    house.service.device().holds = Some(Box::new(is_write));
    house.push(old, write(file));
    house.settle();
    house.service.suspended(OLD, true);
    let new = house.open_for(NEW, RING, RING);
    let first = house.push(new, hello());
    house.settle();
    assert!(house.groups[new].take(first).is_none(), "the old one may be its last life");
    house.service.suspended(OLD, false);
    house.settle();
    assert_eq!(house.groups[new].take(first).unwrap().error(), None, "it is not");
    // What the old one has begun since then is none of the new one's concern.
    house.push(old, write(file));
    house.settle();
    house.service.suspended(OLD, true);
    let stat = Request::new(Operation::Stat).node(ROOT).more(b"file");
    assert_eq!(house.call(new, stat).error(), None);
    // Nor is it when the old one goes.
    house.close(old);
    house.service.suspended(OLD, false);
    let stat = Request::new(Operation::Stat).node(ROOT).more(b"file");
    assert_eq!(house.call(new - 1, stat).error(), None);
}
