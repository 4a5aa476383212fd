//! Bulk beside the rings: bytes are there before the message that names them, in whatever order transfers complete, and
//! one that fails harms nobody.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

use std::collections::VecDeque;
use std::sync::Arc;

use ob_core::{Dma, DmaCompletion, DmaCounts, DmaError, DmaOp, Refused, RefusedReason, RegionId, Token};
use ob_memory::{Pool, Region, Slice, Source};
use ob_ring::{
    AreaError, Armed, BULK_MAX, Bulk, BulkDone, BulkRefusal, CardBell, CardSender, Closed, HostAreas,
    HostReceiver, LocalDma,
};
use ob_wire_link::group::{GroupSizes, GroupSpec};
use proptest::prelude::*;

const REGION: RegionId = RegionId(3);
const SIZES: GroupSizes = GroupSizes { request: 4096, response: 4096, card_area: 65536, host_area: 65536 };
const TRANSFER_MAX: u32 = 8192;
const BULK: u64 = 3;

struct NoBell;

impl CardBell for NoBell {
    fn ring(&self) {}
}

/// A link whose every answer is the test's to give.
struct Link {
    inner: LocalDma,
    /// What is refused now: bulk, or responses.
    bulk_is_busy: bool,
    responses_are_busy: bool,
    /// Completions that the card has not been told of.
    held: Vec<DmaCompletion>,
    /// Kinds of the transfers submitted, by the low bits of their tokens.
    submitted: Vec<u64>,
}

impl Dma for Link {
    fn largest_transfer(&self) -> usize {
        self.inner.largest_transfer()
    }

    fn submit(&mut self, token: Token, op: DmaOp) -> Result<(), Refused<DmaOp>> {
        let is_response = token.0 & 3 == 1;
        if (token.0 & 3 == BULK && self.bulk_is_busy) || (is_response && self.responses_are_busy) {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        self.inner.submit(token, op)?;
        self.submitted.push(token.0 & 3);
        self.held.extend(self.inner.poll());
        Ok(())
    }

    fn poll(&mut self) -> Option<DmaCompletion> {
        None
    }

    fn counts(&self) -> DmaCounts {
        self.inner.counts()
    }
}

struct Rig {
    link: Link,
    region: Region,
    spec: GroupSpec,
    sender: CardSender,
    receiver: HostReceiver,
    areas: HostAreas,
    closed: Closed,
    pool: Pool,
}

impl Rig {
    fn new() -> Self {
        let spec = GroupSpec::new(REGION, SIZES, TRANSFER_MAX).unwrap();
        let region = Region::on_heap(spec.region_len as usize);
        let mut inner = LocalDma::new(1024, TRANSFER_MAX as usize);
        inner.register(REGION, region.clone());
        let closed = Closed::default();
        Self {
            link: Link {
                inner,
                bulk_is_busy: false,
                responses_are_busy: false,
                held: Vec::new(),
                submitted: Vec::new(),
            },
            sender: CardSender::of_group(&spec, Token(4)).unwrap(),
            receiver: HostReceiver::new(region.clone(), spec.response, closed.clone(), Arc::new(NoBell)),
            areas: HostAreas::new(region.clone(), &spec, closed.clone()).unwrap(),
            region,
            spec,
            closed,
            pool: Pool::new(TRANSFER_MAX as usize, 64),
        }
    }

    fn slice(&self, len: usize, byte: u8) -> Slice {
        let mut slice = self.pool.take().unwrap().split_to(len);
        slice.fill(byte);
        slice
    }

    fn write(&mut self, tag: u64, at: u64, byte: u8) -> Result<(), BulkRefusal> {
        let from = self.slice(512, byte).into();
        self.sender.transfer(tag, Bulk::Write { from, at }).map_err(|refused| refused.reason)
    }

    fn step(&mut self) {
        self.sender.step(&mut self.link).unwrap();
    }

    /// Tells the card of the transfer at `index` among those it has not heard of.
    fn complete(&mut self, index: usize) -> Option<BulkDone> {
        let completion = self.link.held.swap_remove(index);
        self.sender.complete(completion).unwrap()
    }

    fn complete_all(&mut self) -> Vec<BulkDone> {
        let mut done = Vec::new();
        for _ in 0..100 {
            self.step();
            while !self.link.held.is_empty() {
                done.extend(self.complete(0));
            }
            if self.sender.arm() == Armed::Yes {
                return done;
            }
        }
        panic!("the sender never comes to rest");
    }

    fn receive(&self) -> Option<Vec<u8>> {
        let message = self.receiver.receive().unwrap()?;
        let mut inline = vec![0; 16];
        let len = message.inline(&mut inline);
        inline.truncate(len);
        Some(inline)
    }
}

#[test]
fn messages_wait_for_the_bulk_before_them_and_for_no_other() {
    let mut rig = Rig::new();
    rig.link.bulk_is_busy = true;
    rig.sender.push(b"before").unwrap();
    rig.write(7, 512, 0xaa).unwrap();
    rig.sender.push(b"after").unwrap();
    rig.step();
    assert_eq!(rig.receive().as_deref(), Some(&b"before"[..]));
    assert_eq!(rig.receive(), None, "its bytes are not there");
    assert_eq!(rig.sender.arm(), Armed::NotYet, "there is something to do");
    rig.link.bulk_is_busy = false;
    let done = rig.complete_all();
    assert_eq!((done.len(), done[0].tag, done[0].result), (1, 7, Ok(())));
    assert!(matches!(&done[0].bulk, Bulk::Write { from, at: 512 } if from.len() == 512));
    assert_eq!(rig.receive().as_deref(), Some(&b"after"[..]));
    let mut bytes = [0; 512];
    rig.areas.copy_out(512, &mut bytes).unwrap();
    assert_eq!(bytes, [0xaa; 512]);
}

#[test]
fn what_is_given_in_an_order_is_submitted_in_it() {
    let mut rig = Rig::new();
    rig.sender.push(b"one").unwrap();
    rig.write(1, 0, 1).unwrap();
    rig.sender.push(b"two").unwrap();
    rig.sender.push(b"three").unwrap();
    rig.write(2, 512, 2).unwrap();
    rig.write(3, 1024, 3).unwrap();
    rig.sender.push(b"four").unwrap();
    rig.step();
    let order: Vec<u64> =
        rig.link.submitted.iter().copied().filter(|kind| [1, BULK].contains(kind)).collect();
    // Two and three go in one write; nothing is joined across bulk.
    assert_eq!(order, [1, BULK, 1, BULK, BULK, 1]);
    for expected in ["one", "two", "three", "four"] {
        assert_eq!(rig.receive().as_deref(), Some(expected.as_bytes()));
    }
}

#[test]
fn reads_hold_no_message_back() {
    let mut rig = Rig::new();
    rig.areas.copy_in(4096, &[9; 100]).unwrap();
    rig.link.bulk_is_busy = true;
    let into = rig.slice(100, 0);
    rig.sender.transfer(5, Bulk::Read { at: 4096, into }).map_err(|refused| refused.reason).unwrap();
    rig.sender.push(b"after").unwrap();
    rig.step();
    assert_eq!(rig.receive().as_deref(), Some(&b"after"[..]));
    assert_eq!(rig.sender.arm(), Armed::NotYet);
    rig.link.bulk_is_busy = false;
    let done = rig.complete_all();
    assert!(matches!(&done[0].bulk, Bulk::Read { at: 4096, into } if into[..] == [9; 100]));
}

#[test]
fn what_was_put_into_the_cards_area_comes_back() {
    let mut rig = Rig::new();
    rig.areas.copy_in(4096, &[9; 100]).unwrap();
    rig.write(1, 4096, 7).unwrap();
    assert_eq!(rig.complete_all().len(), 1);
    // Of one place in both areas each read has what is in its own, whichever is refused first.
    rig.link.bulk_is_busy = true;
    for (tag, is_back) in [(2, true), (3, false), (4, true)] {
        let into = rig.slice(100, 0);
        let bulk = if is_back { Bulk::ReadBack { at: 4096, into } } else { Bulk::Read { at: 4096, into } };
        rig.sender.transfer(tag, bulk).map_err(|refused| refused.reason).unwrap();
    }
    rig.step();
    rig.link.bulk_is_busy = false;
    let mut done = rig.complete_all();
    done.sort_by_key(|done| done.tag);
    assert!(matches!(&done[0].bulk, Bulk::ReadBack { at: 4096, into } if into[..] == [7; 100]));
    assert!(matches!(&done[1].bulk, Bulk::Read { at: 4096, into } if into[..] == [9; 100]));
    assert!(matches!(&done[2].bulk, Bulk::ReadBack { at: 4096, into } if into[..] == [7; 100]));
    let into = rig.slice(100, 0);
    let beyond = Bulk::ReadBack { at: SIZES.card_area - 99, into };
    let refused = rig.sender.transfer(5, beyond).map_err(|refused| refused.reason);
    assert_eq!(refused, Err(BulkRefusal::OutOfArea));
}

#[test]
fn a_failed_transfer_is_told_and_closes_nothing() {
    let mut rig = Rig::new();
    rig.write(1, 0, 1).unwrap();
    rig.write(2, 512, 2).unwrap();
    rig.step();
    let failed = rig.link.held.iter().position(|done| done.token.0 & 3 == BULK).unwrap();
    rig.link.held[failed].result = Err(DmaError::OutOfRegion);
    let done = rig.complete(failed).unwrap();
    assert_eq!((done.tag, done.result), (1, Err(DmaError::OutOfRegion)));
    // Again, with the buffer that came back; everything else goes on.
    rig.sender.transfer(1, done.bulk).map_err(|refused| refused.reason).unwrap();
    rig.sender.push(b"both are there").unwrap();
    let tags: Vec<u64> = rig.complete_all().iter().map(|done| done.tag).collect();
    assert_eq!(tags.len(), 2);
    assert_eq!(rig.receive().as_deref(), Some(&b"both are there"[..]));
}

#[test]
fn one_payload_goes_to_two_places_at_once() {
    let mut rig = Rig::new();
    let payload = rig.slice(512, 7).share();
    for (tag, at) in [(1, 0), (2, 1024)] {
        let bulk = Bulk::Write { from: payload.clone().into(), at };
        rig.sender.transfer(tag, bulk).map_err(|refused| refused.reason).unwrap();
    }
    rig.step();
    assert_eq!(rig.link.held.iter().filter(|done| done.token.0 & 3 == BULK).count(), 2, "both are under way");
    rig.sender.push(b"both").unwrap();
    for done in rig.complete_all() {
        let Bulk::Write { from: Source::Shared(from), at } = done.bulk else { panic!("not as given") };
        assert_eq!((from.as_ptr(), done.result), (payload.as_ptr(), Ok(())));
        let mut bytes = [0; 512];
        rig.areas.copy_out(at, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 512]);
    }
    drop(payload);
    assert_eq!(rig.pool.blocks_out(), 0);
}

#[test]
fn what_cannot_be_is_refused_and_the_rest_is_bounded() {
    let mut rig = Rig::new();
    for at in [65536 - 511, 65536, u64::MAX, u64::MAX - 511] {
        assert_eq!(rig.write(0, at, 1), Err(BulkRefusal::OutOfArea), "{at}");
    }
    let long = Pool::new(16384, 1).take().unwrap();
    let refused = rig.sender.transfer(0, Bulk::Write { from: long.into(), at: 0 }).unwrap_err();
    assert_eq!(refused.reason, BulkRefusal::TooLarge { limit: TRANSFER_MAX });
    for tag in 0..BULK_MAX as u64 {
        assert_eq!(rig.sender.transfer_room(), BULK_MAX - tag as usize);
        rig.write(tag, tag * 512, 1).unwrap();
    }
    assert_eq!(rig.write(99, 0, 1), Err(BulkRefusal::Full));
    rig.step();
    assert_eq!(rig.write(99, 0, 1), Err(BulkRefusal::Full), "under way counts too");
    assert_eq!(rig.complete_all().len(), BULK_MAX);
    assert_eq!(rig.sender.transfer_room(), BULK_MAX);
    let mut plain = CardSender::new(rig.spec.response, Token(4));
    let refused = plain.transfer(0, Bulk::Write { from: rig.slice(1, 0).into(), at: 0 }).unwrap_err();
    assert_eq!(refused.reason, BulkRefusal::OutOfArea);
}

#[test]
fn a_place_is_written_again_only_when_the_write_before_is_over() {
    let mut rig = Rig::new();
    rig.write(1, 1024, 1).unwrap();
    for at in [1024, 1024 - 511, 1024 + 511] {
        assert_eq!(rig.write(2, at, 2), Err(BulkRefusal::Overlapping), "waits at {at}");
    }
    rig.step();
    assert_eq!(rig.write(2, 1024, 2), Err(BulkRefusal::Overlapping), "under way");
    rig.write(3, 512, 3).unwrap();
    rig.write(4, 1536, 4).unwrap();
    let into = rig.slice(512, 0);
    rig.sender.transfer(5, Bulk::Read { at: 1024, into }).map_err(|refused| refused.reason).unwrap();
    let nothing = Bulk::Write { from: rig.slice(0, 0).into(), at: 1100 };
    rig.sender.transfer(6, nothing).map_err(|refused| refused.reason).unwrap();
    rig.complete_all();
    rig.write(2, 1024, 2).unwrap();
    rig.sender.push(b"it is there").unwrap();
    rig.complete_all();
    let mut bytes = [0; 512];
    rig.areas.copy_out(1024, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 512]);
}

#[test]
fn a_host_stays_in_its_areas() {
    let mut rig = Rig::new();
    let mut bytes = [0; 64];
    assert_eq!(rig.areas.copy_out(0, &mut bytes), Err(AreaError::Closed), "no message has named it");
    rig.sender.push(b"all of it").unwrap();
    rig.complete_all();
    for at in [65536 - 63, u64::MAX, 1 << 40] {
        assert_eq!(rig.areas.copy_out(at, &mut bytes), Err(AreaError::OutOfArea));
        assert_eq!(rig.areas.copy_in(at, &bytes), Err(AreaError::OutOfArea));
    }
    rig.areas.copy_in(65536 - 64, &[7; 64]).unwrap();
    rig.areas.copy_out(65536 - 64, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64], "each half has an area of its own");
    let end = rig.region.len();
    rig.region.copy_out(end - 64, &mut bytes);
    assert_eq!(bytes, [7; 64]);
    rig.closed.close();
    assert_eq!(rig.areas.copy_out(0, &mut bytes), Err(AreaError::Closed));
    assert_eq!(rig.areas.copy_in(0, &bytes), Err(AreaError::Closed));
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Bulk into the next place, and the message that names it.
    Post(u8),
    Message,
    Step {
        bulk_is_busy: bool,
        responses_are_busy: bool,
    },
    Complete(usize),
    Receive,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => any::<u8>().prop_map(Action::Post),
        1 => Just(Action::Message),
        4 => any::<(bool, bool)>().prop_map(|(bulk_is_busy, responses_are_busy)| {
            Action::Step { bulk_is_busy, responses_are_busy }
        }),
        6 => any::<usize>().prop_map(Action::Complete),
        3 => Just(Action::Receive),
    ]
}

/// Checks a message: if it names a place, the bytes are there.
fn check(rig: &Rig, message: &[u8], expected: &mut VecDeque<(u64, u8)>, freed: &mut VecDeque<u64>) {
    if message == b"plain" {
        return;
    }
    let (place, byte) = expected.pop_front().unwrap();
    assert_eq!(message, [place as u8, byte]);
    let mut bytes = [0; 512];
    rig.areas.copy_out(place * 512, &mut bytes).unwrap();
    assert_eq!(bytes, [byte; 512], "the message was there before its bytes");
    freed.push_back(place);
}

const ACTIONS_MAX: usize = if cfg!(miri) { 30 } else { 200 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]
    #[test]
    fn bytes_are_there_before_the_message_that_names_them(
        actions in prop::collection::vec(action(), 1..ACTIONS_MAX)
    ) {
        let mut rig = Rig::new();
        let mut free: VecDeque<u64> = (0..16).collect();
        let (mut expected, mut given, mut done) = (VecDeque::new(), 0, 0);
        for action in actions {
            match action {
                Action::Post(byte) => {
                    let Some(place) = free.pop_front() else { continue };
                    if rig.write(given, place * 512, byte).is_err() {
                        free.push_back(place);
                        continue;
                    }
                    given += 1;
                    expected.push_back((place, byte));
                    rig.sender.push(&[place as u8, byte]).unwrap();
                }
                Action::Message => drop(rig.sender.push(b"plain")),
                Action::Step { bulk_is_busy, responses_are_busy } => {
                    (rig.link.bulk_is_busy, rig.link.responses_are_busy) = (bulk_is_busy, responses_are_busy);
                    rig.step();
                }
                Action::Complete(index) => {
                    if !rig.link.held.is_empty() {
                        let index = index % rig.link.held.len();
                        done += u64::from(rig.complete(index).is_some());
                    }
                }
                Action::Receive => {
                    if let Some(message) = rig.receive() {
                        check(&rig, &message, &mut expected, &mut free);
                    }
                }
            }
        }
        (rig.link.bulk_is_busy, rig.link.responses_are_busy) = (false, false);
        for _ in 0..20 {
            while let Some(message) = rig.receive() {
                check(&rig, &message, &mut expected, &mut free);
            }
            done += rig.complete_all().len() as u64;
        }
        prop_assert_eq!(done, given, "each is over once");
        prop_assert!(expected.is_empty(), "every message arrived");
    }
}
