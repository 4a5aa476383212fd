//! Nobody sleeps beside work (`docs/wire/ring.md`, "Sleeping and waking"), whatever the link is busy with.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod rig;

use std::sync::atomic::Ordering;

use ob_core::Dma;
use ob_ring::{
    Armed, CardSender, HostReceiver, HostSender, PushError, ReceiveError, Received, ReserveError, SleepTicket,
};
use ob_wire_link::ring::{DATA_START, Shape};
use proptest::prelude::*;
use rig::{Card, Content, Group};

const TRANSFER_MAX: u32 = 2 << 20;

fn bytes(len: usize) -> Content {
    Content { inline: vec![5; len], payload: None }
}

/// Fills the request ring with four messages of a quarter of it each.
fn fill(sender: &HostSender) {
    for _ in 0..4 {
        assert_eq!(bytes(1016).push(sender), Ok(()));
    }
    assert_eq!(bytes(0).push(sender), Err(PushError::Retry));
}

/// A consumer registers, looks once more, finds nothing, and sleeps.
fn fall_asleep(receiver: &HostReceiver) -> SleepTicket {
    let ticket = receiver.register_sleeper();
    assert!(receiver.receive().unwrap().is_none());
    ticket
}

#[test]
fn a_consumer_that_sleeps_is_woken_by_a_response() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
    for _ in 0..3 {
        let ticket = fall_asleep(&receiver);
        card.sender.push(b"response").unwrap();
        card.run_until_armed();
        assert_ne!(receiver.bell_now(), ticket.bell);
        assert!(receiver.receive().unwrap().is_some());
    }
}

/// What is said quietly is there for whoever looks, and wakes nobody; what is not, or a second word, wakes those who sleep.
#[test]
fn a_consumer_that_sleeps_is_left_in_peace_over_what_is_said_quietly() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
    let ticket = fall_asleep(&receiver);
    card.sender.push_quietly(b"quiet").unwrap();
    assert!(!card.sender.has_unheard(), "it is not out yet");
    card.run_until_armed();
    assert!(card.sender.has_unheard());
    assert_eq!(receiver.bell_now(), ticket.bell);
    // It is there all the same, and delivered.
    assert_eq!(card.sender.delivered_bytes(), card.sender.committed_bytes());
    card.sender.push(b"loud").unwrap();
    card.run_until_armed();
    assert_ne!(receiver.bell_now(), ticket.bell);
    assert!(!card.sender.has_unheard());
    assert_eq!(std::iter::from_fn(|| receiver.receive().unwrap()).count(), 2);
    let ticket = fall_asleep(&receiver);
    for _ in 0..3 {
        card.sender.push_quietly(b"quiet").unwrap();
        card.run_until_armed();
    }
    assert_eq!(receiver.bell_now(), ticket.bell);
    card.sender.rouse();
    card.run_until_armed();
    assert_ne!(receiver.bell_now(), ticket.bell, "it is woken for what was said quietly before");
    assert!(!card.sender.has_unheard());
}

/// What waits behind something quiet is not taken for quiet.
#[test]
fn what_is_urgent_wakes_however_much_is_quiet_around_it() {
    for loud in 0..4 {
        let group = Group::new(4096, 4096, TRANSFER_MAX);
        let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
        let ticket = fall_asleep(&receiver);
        for number in 0..4 {
            let push = if number == loud { CardSender::push } else { CardSender::push_quietly };
            push(&mut card.sender, b"word").unwrap();
        }
        card.run_until_armed();
        assert_ne!(receiver.bell_now(), ticket.bell, "the one that wakes is number {loud}");
    }
}

/// What was committed counts as delivered when the bound is written that shows it, and not before; around the end of the ring, too.
#[test]
fn what_is_delivered_is_known_when_its_bound_is_written() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
    assert_eq!((card.sender.committed_bytes(), card.sender.delivered_bytes()), (0, 0));
    for round in 0..50u64 {
        let before = card.sender.committed_bytes();
        card.sender.push(&[7; 300]).unwrap();
        card.sender.push(&[8; 100]).unwrap();
        let committed = card.sender.committed_bytes();
        assert!(committed >= before + 400);
        card.sender.step(&mut card.dma).unwrap();
        assert_eq!(
            card.sender.delivered_bytes(),
            before,
            "round {round}: what is under way is not delivered"
        );
        // Submitted behind it, and not seen with it.
        card.sender.push(&[9; 50]).unwrap();
        card.drain();
        assert_eq!(card.sender.delivered_bytes(), committed, "round {round}");
        card.run_until_armed();
        assert_eq!(card.sender.delivered_bytes(), card.sender.committed_bytes(), "round {round}");
        assert_eq!(std::iter::from_fn(|| receiver.receive().unwrap()).count(), 3);
    }
}

/// A response that is submitted while the pointers of the one before are still being read.
#[test]
fn a_response_behind_a_read_of_the_pointers_wakes_its_consumer() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
    card.sender.push(b"first").unwrap();
    card.sender.step(&mut card.dma).unwrap();
    assert!(receiver.receive().unwrap().is_some());
    // The card has read that nobody sleeps, but has not seen that answer yet.
    let ticket = fall_asleep(&receiver);
    card.sender.push(b"second").unwrap();
    card.run_until_armed();
    assert_ne!(receiver.bell_now(), ticket.bell, "the card sleeps, and so does the consumer of `second`");
}

/// The link takes the response but not the bound; the bound follows later, with no response to go with it.
#[test]
fn a_response_whose_bound_was_held_up_by_the_link_wakes_its_consumer() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(2, TRANSFER_MAX));
    let ticket = fall_asleep(&receiver);
    card.receiver.step(&mut card.dma).unwrap();
    card.sender.push(b"response").unwrap();
    card.sender.step(&mut card.dma).unwrap();
    card.drain();
    assert_eq!(card.sender.arm(), Armed::NotYet, "the bound is not written yet");
    card.run_until_armed();
    assert_ne!(receiver.bell_now(), ticket.bell);
}

/// A producer sleeps for room; the card makes some, and then its mirror is full of messages that it holds.
#[test]
fn a_producer_that_sleeps_for_room_is_woken_though_the_card_stalls() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (sender, mut card) = (group.sender(), group.card(16, 2048));
    fill(&sender);
    let mut held = card.run_until_armed();
    assert_eq!(held.len(), 2, "half the ring a transfer");
    fill(&sender);
    card.run_until_armed();
    assert!(card.receiver.is_stalled());
    let ticket = sender.register_sleeper();
    assert_eq!(bytes(1016).push(&sender), Err(PushError::Retry));
    drop(held.remove(0));
    held.extend(card.run_until_armed());
    assert!(card.receiver.is_stalled(), "half the ring came, the rest has no room");
    assert_ne!(sender.bell_now(), ticket.bell, "there is room, and the producer sleeps on");
    assert_eq!(bytes(1016).push(&sender), Ok(()));
}

/// A response finds no room while the pointers are being read for another reason.
#[test]
fn a_card_that_waits_for_room_is_woken_when_the_host_makes_some() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
    for _ in 0..4 {
        card.sender.push(&[1; 1016]).unwrap();
    }
    card.sender.step(&mut card.dma).unwrap();
    let shape = Shape { inline_len: 8, payload: None };
    assert_eq!(card.sender.reserve(shape).unwrap_err(), ReserveError::Full);
    card.run_until_armed();
    let rung = group.doorbell.count();
    while let Some(claimed) = receiver.receive().unwrap() {
        drop(claimed);
    }
    assert_ne!(group.doorbell.count(), rung, "there is room, and the card sleeps on");
    card.run_until_armed();
    assert!(card.sender.reserve(shape).is_ok());
}

/// With no memory left the oldest response lies right behind the newest. They may be sent side by side, but their memory
/// is used again in its own order.
#[test]
fn memory_is_used_again_in_order_when_all_of_it_was_out() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
    card.sender.push(&[0; 1016]).unwrap();
    for lap in 1..20u8 {
        card.run_until_armed();
        while let Some(claimed) = receiver.receive().unwrap() {
            drop(claimed);
        }
        // Every other lap takes all memory; the others end with a piece that does not fit before the end.
        let lens = [if lap % 2 == 1 { 1528 } else { 1016 }, 1528, 1016];
        let mut reserved = Vec::new();
        for attempt in 0.. {
            let Some(len) = lens.get(reserved.len()) else { break };
            match card.sender.reserve(Shape { inline_len: *len, payload: None }) {
                Ok(reservation) => reserved.push((reservation, *len)),
                // How far the host is, the card learns when it wants room.
                Err(ReserveError::Full) if attempt < 10 => _ = card.run_until_armed(),
                Err(error) => panic!("lap {lap}: {error}"),
            }
        }
        let mut sent = Vec::new();
        for index in [2, 0, 0] {
            let (reservation, len) = reserved.remove(index);
            sent.push(vec![4 * lap + sent.len() as u8; len.into()]);
            card.sender.commit(reservation, &sent[sent.len() - 1], 0);
        }
        for expected in sent {
            // The end of the ring costs room, which the host makes by taking what is there.
            card.run_until_armed();
            let claimed = receiver.receive().unwrap().unwrap();
            let mut inline = vec![0; expected.len()];
            assert_eq!(claimed.inline(&mut inline), expected.len());
            assert_eq!(inline, expected);
        }
    }
}

/// A link that takes one transfer at a time carries the ticket and the read of the pointers one after the other.
#[test]
fn a_link_of_depth_one_does_not_keep_the_card_awake() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (sender, mut card) = (group.sender(), group.card(1, TRANSFER_MAX));
    bytes(8).push(&sender).unwrap();
    let mut armed = Armed::NotYet;
    for _ in 0..100 {
        card.receiver.step(&mut card.dma).unwrap();
        card.drain();
        armed = card.receiver.arm(&mut card.dma).unwrap();
        card.drain();
    }
    assert_eq!(armed, Armed::Yes);
}

/// A group with so many responses in its ring, each with a payload of eight bytes.
fn group_with_payloads(count: usize) -> (Group, HostReceiver) {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (receiver, mut card) = (group.receiver(), group.card(16, TRANSFER_MAX));
    for _ in 0..count {
        let reservation = card.sender.reserve(Shape { inline_len: 0, payload: Some((8, 8)) }).unwrap();
        card.sender.commit(reservation, &[], 8);
    }
    card.run_until_armed();
    (group, receiver)
}

/// Asking for bytes that are not there gives none.
#[test]
fn a_payload_is_not_read_beyond_its_end() {
    let (_group, receiver) = group_with_payloads(1);
    let claimed = receiver.receive().unwrap().unwrap();
    for offset in [8, 9, 1 << 20, usize::MAX] {
        assert_eq!(claimed.payload(offset, &mut [0; 4]), 0);
    }
}

/// A card that takes its memory back begins with the pointers, and a thread may be copying then.
#[test]
fn what_is_copied_out_of_memory_that_was_taken_back_is_no_message() {
    let (group, receiver) = group_with_payloads(1);
    let claimed = receiver.receive().unwrap().unwrap();
    assert_eq!(claimed.check(), Ok(()));
    for word in (0..DATA_START).step_by(8) {
        group.region.store(word, 0, Ordering::Relaxed);
    }
    assert_eq!(claimed.check(), Err(ReceiveError::Closed));
}

/// Of a first message whose memory is gone the pointers look as they did: the bound, which was further on, does not.
#[test]
fn memory_that_is_taken_back_while_somebody_receives_is_no_fault_of_the_card() {
    for is_first in [true, false] {
        // Miri draws what threads do in which order by itself, and a thread costs it seconds.
        for _ in 0..if cfg!(miri) { 6 } else { 200 } {
            let (group, receiver) = group_with_payloads(if is_first { 1 } else { 2 });
            if !is_first {
                drop(receiver.receive().unwrap().unwrap());
            }
            let (region, data) = (group.region.clone(), group.response.at(0) as usize);
            let taking = std::thread::spawn(move || {
                for word in (0..DATA_START).chain(data..data + 256).step_by(8) {
                    region.store(word, 0, Ordering::SeqCst);
                }
            });
            loop {
                match receiver.receive() {
                    Ok(None) | Err(ReceiveError::Closed) => break,
                    Ok(Some(claimed)) => drop(claimed),
                    Err(error) => panic!("{error}"),
                }
            }
            taking.join().unwrap();
        }
    }
}

/// One step of the search below.
#[derive(Clone, Copy, Debug)]
enum Action {
    Push(usize),
    Respond(usize),
    StepReceiver,
    StepSender,
    Complete,
    Receive,
    HoldBatches(bool),
    SleepForRoom,
    SleepForResponse,
    Rest,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (0usize..1500).prop_map(Action::Push),
        4 => (0usize..1500).prop_map(Action::Respond),
        3 => Just(Action::StepReceiver),
        3 => Just(Action::StepSender),
        5 => Just(Action::Complete),
        4 => Just(Action::Receive),
        1 => any::<bool>().prop_map(Action::HoldBatches),
        2 => Just(Action::SleepForRoom),
        2 => Just(Action::SleepForResponse),
        2 => Just(Action::Rest),
    ]
}

/// A producer and a consumer, each awake or asleep, and a card that rests now and then.
struct Sleepers {
    group: Group,
    sender: HostSender,
    receiver: HostReceiver,
    card: Card,
    held: Vec<ob_ring::Batch>,
    holding: bool,
    producer: Option<(SleepTicket, usize)>,
    consumer: Option<SleepTicket>,
    /// A response that found no room: it is offered again whenever the card is awake.
    blocked: Option<usize>,
}

impl Sleepers {
    fn new(depth: usize) -> Self {
        let group = Group::new(4096, 4096, TRANSFER_MAX);
        let (sender, receiver) = (group.sender(), group.receiver());
        let card = group.card(depth, TRANSFER_MAX);
        let (held, producer, consumer, blocked) = (Vec::new(), None, None, None);
        Self { group, sender, receiver, card, held, holding: false, producer, consumer, blocked }
    }

    fn act(&mut self, action: Action) {
        if self.producer.is_some_and(|(ticket, _)| ticket.bell != self.sender.bell_now()) {
            self.producer = None;
        }
        if self.consumer.is_some_and(|ticket| ticket.bell != self.receiver.bell_now()) {
            self.consumer = None;
        }
        match action {
            Action::Push(len) if self.producer.is_none() => _ = bytes(len).push(&self.sender),
            Action::Respond(len) if self.blocked.is_none() => self.respond(len),
            Action::StepReceiver => _ = self.card.receiver.step(&mut self.card.dma).unwrap(),
            Action::StepSender => _ = self.card.sender.step(&mut self.card.dma).unwrap(),
            Action::Complete => {
                if let Some(Received::Batch(batch)) = self.card.complete_one()
                    && self.holding
                {
                    self.held.push(batch);
                }
            }
            Action::Receive if self.consumer.is_none() => drop(self.receiver.receive().unwrap()),
            Action::HoldBatches(holding) => {
                self.holding = holding;
                self.held.clear();
            }
            Action::SleepForRoom if self.producer.is_none() => {
                let ticket = self.sender.register_sleeper();
                self.producer = bytes(1016).push(&self.sender).is_err().then_some((ticket, 1016));
            }
            Action::SleepForResponse if self.consumer.is_none() => {
                let ticket = self.receiver.register_sleeper();
                self.consumer = self.receiver.receive().unwrap().is_none().then_some(ticket);
            }
            Action::Rest => self.rest(),
            _ => {}
        }
    }

    fn run_until_armed(&mut self) {
        let batches = self.card.run_until_armed();
        if self.holding {
            self.held.extend(batches);
        }
    }

    fn respond(&mut self, len: usize) {
        self.blocked = self.card.sender.push(&vec![6; len]).is_err().then_some(len);
    }

    /// The card comes to rest; now whoever sleeps must have nothing to wake for.
    fn rest(&mut self) {
        self.run_until_armed();
        // What found no room is offered once more before the card sleeps, as any service would.
        if let Some(len) = self.blocked.take() {
            self.respond(len);
            self.run_until_armed();
        }
        assert!(self.card.dma.poll().is_none());
        if let Some((ticket, len)) = self.producer
            && ticket.bell == self.sender.bell_now()
        {
            assert_eq!(bytes(len).push(&self.sender), Err(PushError::Retry), "a producer sleeps beside room");
        }
        if let Some(ticket) = self.consumer
            && ticket.bell == self.receiver.bell_now()
        {
            assert!(self.receiver.receive().unwrap().is_none(), "a consumer sleeps beside a response");
        }
        if self.blocked.is_some() && self.consumer.is_none() {
            let rung = self.group.doorbell.count();
            let mut taken = 0;
            while let Some(claimed) = self.receiver.receive().unwrap() {
                taken += usize::from(claimed.inline_len() < usize::MAX);
            }
            assert!(taken == 0 || self.group.doorbell.count() != rung, "the card sleeps beside room");
        }
        self.card.receiver.wake();
        self.card.sender.wake();
        if let Some(len) = self.blocked.take() {
            self.respond(len);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 1000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nobody_sleeps_beside_work(
        actions in prop::collection::vec(action(), 1..if cfg!(miri) { 60 } else { 300 }),
        depth in 2usize..10,
    ) {
        let mut sleepers = Sleepers::new(depth);
        for action in actions {
            sleepers.act(action);
        }
        sleepers.rest();
    }
}
