//! Any messages to the file service, through rings: each is answered once, the device stays sound, and a file that the
//! messages cannot name stays as it is.

#![no_main]

#[path = "../../crates/ob-files-card/tests/support/mod.rs"]
mod support;

use std::cell::RefCell;

use ob_core::NodeId;
use ob_files_card::FilesService;
use ob_ring::PushError;
use ob_wire_link::files::{Operation, REQUEST_LEN, ROOT, RequestHeader, flag};
use support::rings::{House, Request};
use support::{Image, MemoryDevice, SMALL, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const RING: u32 = 64 << 10;
const BYSTANDER_LEN: usize = 5000;
const MESSAGES_MAX: usize = 200;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut house = house();
    let bystander = house.greeted(RING, RING);
    let create =
        Request::new(Operation::Open).node(ROOT).flags(flag::CREATE).more(b"a file of somebody else");
    let file = house.call(bystander, create).node().id;
    let bytes = pattern(1, 0, BYSTANDER_LEN);
    house.call(bystander, Request::new(Operation::Write).node(file).payload(&bytes, BLOCK));
    let mut script = Script(input);
    let hostile = if script.number() % 4 == 0 { house.open(RING, RING) } else { house.greeted(RING, RING) };
    let mut pushed = 0;
    while let Some((inline, payload)) = script.message(file).filter(|_| pushed < MESSAGES_MAX) {
        let payload = payload.as_ref().map(|(bytes, align)| (&bytes[..], *align));
        match house.groups[hostile].push_raw(&inline, payload) {
            Ok(()) => pushed += 1,
            Err(PushError::Retry) => house.settle(),
            Err(PushError::TooLarge { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if script.number() % 4 == 0 {
            house.turn();
        }
    }
    house.settle();
    assert_eq!(house.groups[hostile].responses.len(), pushed, "one answer each");
    assert!(house.service.is_idle());
    let read = Request::new(Operation::Read).node(file).length(BYSTANDER_LEN as u32 + 1);
    assert!(house.call(bystander, read).payload == bytes);
    let mut device = MemoryDevice::with(house.service.device().image().clone(), BLOCK);
    let report = ob_files_card::check(&mut device, &mut |_, _| {}).expect("it is ours");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.free, house.service.files().space_info().free);
});

/// A formatted device is the same every time, so it is made once.
fn house() -> House {
    thread_local! {
        static FORMATTED: RefCell<Option<Image>> = const { RefCell::new(None) };
    }
    let image = FORMATTED.with_borrow_mut(|formatted| {
        let image = formatted.get_or_insert_with(|| {
            let mut device = MemoryDevice::new((384 << 10) + 64 * SEGMENT, BLOCK);
            ob_files_card::format(&mut device, &small_format(SEGMENT), [0; 16]).expect("it is large enough");
            device.image().clone()
        });
        image.clone()
    });
    let mut device = MemoryDevice::with(image, BLOCK);
    let files = ob_files_card::mount(&mut device, &SMALL).expect("it is formatted");
    House::new(FilesService::new(files, device))
}

type Raw = (Vec<u8>, Option<(Vec<u8>, u32)>);

/// What is left of the input.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn number(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }

    /// The next message: bytes as they are, or with numbers that have a chance to mean something.
    fn message(&mut self, spared: NodeId) -> Option<Raw> {
        if self.0.is_empty() {
            return None;
        }
        let shape = self.number();
        let inline_len = usize::from(self.number());
        let payload_len = usize::from(self.number()) * 16;
        let mut inline = self.bytes(if shape & 1 == 0 { inline_len } else { REQUEST_LEN + inline_len % 32 });
        let payload = (shape & 2 != 0).then(|| (vec![shape; payload_len], 8 << (shape >> 5)));
        if let Some((mut header, rest)) = RequestHeader::decode(&inline) {
            if shape & 4 != 0 {
                header.operation %= 14;
                header.flags %= 4;
                header.node.0 %= 12;
                header.node_more.0 %= 12;
            }
            if shape & 8 != 0 {
                header.offset %= 40_000;
                header.length = payload_len as u32;
            }
            // The bystander's file is for the bystander.
            header.node = if header.node == spared { ROOT } else { header.node };
            header.node_more = if header.node_more == spared { ROOT } else { header.node_more };
            inline = [&header.encode()[..], rest].concat();
        }
        Some((inline, payload))
    }
}
