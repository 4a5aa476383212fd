//! A port whose clients, peers and hosts fail in the midst of plans: what is told of them is true piece by piece, and nobody waits for
//! what is not there.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use std::time::Duration;

use card_rig::{
    ANSWER, NOTE, PATIENCE, Rig, Run, Said, TWICE, WRITE, ask, config, filler, reply_to, request, set,
};
use ob_core::Units;
use ob_ring::RingError;
use ob_split::card::PortConfig;
use ob_split::wire::{ChannelId, ChannelState, CompletionStatus, Gate, Handle, Set, SetWhat, Slot, kind};

const KIB: usize = 1024;

/// How pieces ended, and where they lie.
fn ends(rig: &mut Rig) -> Vec<(CompletionStatus, u32)> {
    rig.done().iter().map(|(done, _)| (done.status, done.offset)).collect()
}

#[test]
fn what_was_sent_before_its_peer_gave_it_up_is_written_to_its_end() {
    let mut rig = Rig::with_peers();
    let (key, handle) = rig.arrived(&filler(20, 70 * KIB), 0);
    rig.write(handle);
    rig.run();
    rig.card.front_mut().gone.push_back(key);
    rig.run();
    assert_eq!(rig.done(), []);
    rig.all_say(0);
    // All members have it, and its peer does not hear of it: that is what the host is told.
    assert_eq!(ends(&mut rig), [(CompletionStatus::Withheld, 64), (CompletionStatus::Withheld, 64 + 1025)]);
    assert_eq!((rig.answers(), rig.heard.broken.len()), (vec![], 0));
    rig.post(ANSWER, 0, 7, handle, &[]);
    rig.run();
    assert_eq!(rig.answers(), [(key, Said::Status(7))]);
    rig.assert_empty();
}

#[test]
fn of_what_is_given_up_before_anything_was_sent_nothing_is() {
    let mut rig = Rig::new(PortConfig { memory: vec![(64 << 10, 1)], ..config() });
    rig.attach();
    rig.connect(&[1]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1]));
    let (_, first) = rig.arrived(&filler(1, 64 * KIB), 0);
    let (key, second) = rig.arrived(&filler(2, 64 * KIB), 0);
    rig.write(first);
    rig.write(second);
    rig.run();
    rig.card.front_mut().gone.push_back(key);
    rig.run();
    assert_eq!(rig.peer_says(1, 0), 1);
    rig.run();
    let done = rig.done();
    assert_eq!((done[0].0.handle, done[0].0.status), (first, CompletionStatus::Good));
    assert_eq!((done[1].0.handle, done[1].0.status), (second, CompletionStatus::GivenUp));
    assert_eq!(rig.peer_says(1, 0), 0, "nothing of it was sent");
}

#[test]
fn each_piece_is_told_as_it_went() {
    // There is room for two of three.
    let mut rig = Rig::with_peers();
    rig.say(
        kind::SET,
        &Set { slot: Slot(2), length: Units(64 + 2 * 1025), ..set(2, SetWhat::Append, &[1, 2, 3]) },
    );
    let (_, handle) = rig.arrived(&filler(1, 192 * KIB), 0);
    rig.post(WRITE, 0, 2, handle, &[0; 8]);
    rig.run();
    rig.all_say(0);
    let good = CompletionStatus::Good;
    assert_eq!(ends(&mut rig), [(good, 64), (good, 64 + 1025), (CompletionStatus::ChunkFull, 0)]);
    rig.post(ANSWER, 0, 7, handle, &[]);
    rig.run();
    assert_eq!((rig.answers().len(), rig.done().len()), (1, 1));
    // A member that refuses one of three has the others, and where it lies is told all the same.
    let (_, handle) = rig.arrived(&filler(2, 192 * KIB), 0);
    rig.write(handle);
    rig.run();
    for port in 1..=3 {
        for (at, (header, _)) in rig.card.net_mut().heard(port).into_iter().enumerate() {
            let status = if (port, at) == (2, 1) { 4 } else { 0 };
            rig.card.net_mut().say(port, &reply_to(&header, status, &[]));
        }
        rig.run();
    }
    let done = rig.done();
    let told: Vec<_> = done.iter().map(|(done, _)| (done.status, done.offset, done.bad_members)).collect();
    let broken = (CompletionStatus::Broken, 64 + 1025, 0b010);
    assert_eq!(told, [(good, 64, 0), broken, (good, 64 + 2 * 1025, 0)]);
    assert_eq!(rig.answers(), []);
}

#[test]
fn what_waits_for_room_is_not_late() {
    let mut rig = Rig::new(PortConfig { requests_max: 1, ..config() });
    rig.attach();
    rig.connect(&[1]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1]));
    for seed in 0..5 {
        let (_, handle) = rig.arrived(&filler(seed, 512), 0);
        rig.write(handle);
    }
    // The peer takes most of the time that it has for each.
    for _ in 0..5 {
        rig.run();
        rig.pass(PATIENCE * 9 / 10);
        assert_eq!(rig.peer_says(1, 0), 1);
        rig.run();
    }
    assert_eq!(rig.answers().len(), 5);
    rig.assert_empty();
}

#[test]
fn reads_go_before_appends_that_have_not_begun() {
    let mut rig = Rig::new(PortConfig { requests_max: 2, ..config() });
    rig.attach();
    rig.connect(&[1]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1]));
    rig.card.net_mut().widen(1, 100);
    for seed in 0..3 {
        let (_, handle) = rig.arrived(&filler(seed, 512), 0);
        rig.write(handle);
    }
    rig.run();
    let (_, handle) = rig.arrived(&[], 512);
    rig.read(handle, &[Run { slot: 1, from: 64, len: 512, into: 0 }]);
    rig.run();
    rig.card.net_mut().widen(1, 1 << 20);
    let mut heard = Vec::new();
    for _ in 0..4 {
        rig.run();
        for (header, _) in rig.card.net_mut().heard(1) {
            let payload = if header.kind == ask::READ { vec![1; 512] } else { Vec::new() };
            rig.card.net_mut().say(1, &reply_to(&header, 0, &payload));
            heard.push(header.kind);
        }
    }
    rig.run();
    assert_eq!(rig.answers().len(), 4);
    // Two are in the window, and the first of them is on its way.
    assert!(heard.iter().position(|kind| *kind == ask::READ).unwrap() <= 2, "{heard:?}");
}

#[test]
fn a_peer_that_says_nothing_for_long_is_gone() {
    let mut rig = Rig::with_peers();
    let gone = |rig: &Rig| rig.heard.channels.iter().any(|told| told.state == ChannelState::Gone);
    let mut reads = 0;
    while !gone(&rig) && reads < 20 {
        let (_, handle) = rig.arrived(&[], 512);
        rig.read(handle, &[Run { slot: 1, from: 64, len: 512, into: 0 }]);
        rig.run();
        rig.pass(PATIENCE);
        rig.run();
        for (header, _) in rig.card.net_mut().heard(2) {
            rig.card.net_mut().say(2, &reply_to(&header, 0, &[3; 512]));
        }
        rig.run();
        assert_eq!(rig.answers().len(), 1);
        reads += 1;
    }
    assert_eq!(rig.heard.channels.last().unwrap().channel, ChannelId(1));
    assert!((2..=8).contains(&reads), "after {reads} reads");
    // One that has stood still for a moment is not: all that it was asked meanwhile is late at once.
    let mut rig = Rig::with_peers();
    let handles: Vec<_> = (0..16).map(|_| rig.arrived(&[], 512).1).collect();
    handles.iter().for_each(|handle| rig.read(*handle, &[Run { slot: 1, from: 64, len: 512, into: 0 }]));
    rig.run();
    rig.pass(PATIENCE);
    rig.run();
    assert!(!gone(&rig));
}

#[test]
fn what_a_host_asks_for_and_does_not_hear_is_bounded() {
    let mut rig = Rig::with_host();
    rig.is_deaf = true;
    for number in 0..1000 {
        let gates: Vec<_> = (0..200).map(|at| Gate::Prepare { number: number * 200 + at }).collect();
        if rig.closed.is_some() {
            return;
        }
        rig.say_all(kind::GATE, &gates);
        (0..3).for_each(|_| _ = rig.turn());
    }
    panic!("200,000 preparations are kept");
}

#[test]
fn channels_that_are_made_and_closed_without_hearing_of_it_are_bounded() {
    use ob_split::wire::{Channel, ChannelWhat};
    let mut rig = Rig::with_host();
    rig.is_deaf = true;
    rig.card.net_mut().refused.push(9);
    for _ in 0..5000 {
        let (channel, address) = (ChannelId(9), Some(card_rig::address(9)));
        rig.say(kind::CHANNEL, &Channel { channel, what: ChannelWhat::Connect, address });
        (0..3).for_each(|_| _ = rig.turn());
        if rig.closed == Some(RingError::Refused) {
            return;
        }
        rig.say(kind::CHANNEL, &Channel { channel, what: ChannelWhat::Close, address: None });
        (0..3).for_each(|_| _ = rig.turn());
        if rig.closed == Some(RingError::Refused) {
            return;
        }
    }
    panic!("what became of 5,000 channels is kept");
}

#[test]
fn a_plan_under_a_messages_handle_is_about_it_whatever_its_steps_are() {
    let mut rig = Rig::with_peers();
    let (_, handle) = rig.arrived(&[], 0);
    rig.post(NOTE, 0, 1, handle, &[]);
    rig.run();
    rig.detach();
    rig.run();
    rig.heard = card_rig::Heard::default();
    rig.attach();
    let descriptor = rig.heard.headers[0].descriptor();
    assert_eq!((descriptor.handle, descriptor.was_sent), (handle, true));
    rig.post(ANSWER, 0, 0, handle, &[]);
    rig.run();
    rig.assert_empty();
}

#[test]
fn a_late_answer_to_an_earlier_send_is_not_one_to_a_later() {
    let mut rig = Rig::with_peers();
    let handle = Handle::of_host(5);
    rig.post(TWICE, 0, 1, handle, &[]);
    rig.run();
    let first: Vec<_> = (1..=3).map(|port| rig.card.net_mut().heard(port)[0].0).collect();
    rig.card.net_mut().say(1, &reply_to(&first[0], 0, &[]));
    rig.run();
    let second: Vec<_> = (1..=3).map(|port| rig.card.net_mut().heard(port)[0].0).collect();
    rig.card.net_mut().say(2, &reply_to(&first[1], 0, &[]));
    rig.run();
    assert_eq!(rig.done(), [], "it answers what was sent first");
    rig.card.net_mut().say(3, &reply_to(&first[2], 0, &[]));
    rig.card.net_mut().say(1, &reply_to(&second[0], 4, &[]));
    rig.run();
    assert_eq!(rig.done(), [], "another may still give it");
    rig.card.net_mut().say(3, &reply_to(&second[2], 0, &[]));
    rig.run();
    // Nobody waits for the one that says nothing.
    assert_eq!(rig.done()[0].0.status, CompletionStatus::Good);
    rig.assert_empty();
}

#[test]
fn a_plan_that_needs_no_memory_does_not_wait_for_any() {
    let mut rig = Rig::new(PortConfig { memory: vec![(64 << 10, 1)], ..config() });
    rig.attach();
    rig.connect(&[1]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1]));
    for seed in 0..2 {
        let (_, handle) = rig.arrived(&filler(seed, 64 * KIB), 0);
        rig.write(handle);
    }
    let (key, handle) = rig.arrived(&[], 0);
    rig.post(ANSWER, 0, 5, handle, &[]);
    rig.run();
    assert_eq!(rig.answers(), [(key, Said::Status(5))]);
}

#[test]
fn a_message_whose_plan_could_not_be_is_offered_to_the_next_host() {
    let mut rig = Rig::with_peers();
    let (_, handle) = rig.arrived(&filler(1, 4 * KIB), 0);
    rig.card.dialect_mut().is_beyond = true;
    rig.write(handle);
    rig.run();
    assert_eq!(rig.closed.take(), Some(RingError::Refused));
    rig.card.dialect_mut().is_beyond = false;
    rig.heard = card_rig::Heard::default();
    rig.attach();
    assert_eq!(rig.heard.headers.len(), 1);
    rig.post(ANSWER, 0, 0, handle, &[]);
    rig.run();
    rig.assert_empty();
}

#[test]
fn an_answer_of_which_a_part_was_written_twice_and_another_never_is_none() {
    let mut rig = Rig::with_peers();
    let (_, handle) = rig.arrived(&[], 8 * KIB);
    let zeros = Run { slot: u16::MAX, from: 0, len: 4096, into: 0 };
    rig.read(handle, &[zeros, zeros]);
    rig.run();
    assert_eq!((rig.answers(), rig.done()[0].0.status), (vec![], CompletionStatus::Refused));
    rig.read(handle, &[Run { into: 4096, ..zeros }]);
    rig.run();
    assert_eq!((rig.answers().len(), rig.done()[0].0.status), (1, CompletionStatus::Good));
    rig.assert_empty();
}

#[test]
fn a_handle_has_one_plan_at_a_time() {
    let mut rig = Rig::with_peers();
    let (_, handle) = rig.arrived(&[], 4 * KIB);
    let run = Run { slot: 1, from: 64, len: 4 * KIB as u32, into: 0 };
    rig.read(handle, &[run]);
    rig.read(handle, &[run]);
    rig.run();
    assert_eq!(rig.closed, Some(RingError::Refused));
    let mut rig = Rig::with_peers();
    for _ in 0..2 {
        rig.call(1, Handle::of_host(5), request(ask::HELLO), &[]);
    }
    rig.run();
    assert_eq!(rig.closed, Some(RingError::Refused));
}

#[test]
fn what_a_host_has_left_behind_is_answered_in_time() {
    let mut rig = Rig::with_peers();
    let hold = config().hold;
    let (first, begun) = rig.arrived(&filler(1, 4 * KIB), 0);
    let (given_up, _) = rig.arrived(&filler(2, 4 * KIB), 0);
    let began = rig.now;
    rig.pass(hold / 2);
    let (later, _) = rig.arrived(&[], 512);
    rig.write(begun);
    rig.run();
    rig.detach();
    rig.run();
    rig.pass(PATIENCE);
    rig.run();
    assert_eq!(rig.answers(), [], "another host may come");
    rig.card.front_mut().gone.push_back(given_up);
    rig.run();
    assert_eq!(rig.answers(), [(given_up, Said::Nobody)], "nobody waits for it");
    assert_eq!(rig.card.next_due(), Some(began + hold));
    rig.now = began + hold;
    rig.run();
    assert_eq!(rig.answers(), [(first, Said::Nobody)]);
    // The next host is told of what is left, and no more.
    rig.heard = card_rig::Heard::default();
    rig.open(64 << 10);
    rig.credit = 16;
    rig.say(kind::HELLO, &card_rig::hello());
    rig.run();
    assert_eq!((rig.heard.welcome[0].parked, rig.heard.headers.len()), (1, 1));
    rig.pass(hold);
    rig.run();
    assert_eq!(rig.answers(), [], "it is the host's now");
    rig.detach();
    rig.run();
    assert_eq!(rig.answers(), [(later, Said::Nobody)]);
    rig.assert_empty();
}

#[test]
fn what_has_no_room_at_its_chunk_is_sent_when_something_has_ended() {
    let mut rig = Rig::with_peers();
    let (_, first) = rig.arrived(&filler(1, 4 * KIB), 0);
    let (_, second) = rig.arrived(&filler(2, 70 * KIB), 0);
    rig.write(first);
    rig.run();
    rig.card.dialect_mut().is_full = true;
    rig.write(second);
    rig.run();
    rig.all_say(0);
    assert_eq!((rig.answers().len(), rig.peer_says(1, 0)), (1, 0), "it waits on");
    rig.card.dialect_mut().is_full = false;
    let (_, third) = rig.arrived(&[], 0);
    rig.post(ANSWER, 0, 0, third, &[]);
    rig.run();
    rig.all_say(0);
    assert_eq!(rig.answers().len(), 2);
    rig.assert_empty();
    // Nor does one that waits outlive its host.
    let (_, handle) = rig.arrived(&filler(3, 70 * KIB), 0);
    rig.card.dialect_mut().is_full = true;
    rig.write(handle);
    rig.run();
    rig.detach();
    rig.run();
    assert_eq!((rig.card.counts().plans, rig.card.counts().blocks_out), (0, 0));
}

#[test]
fn a_host_may_sleep_for_a_while_beside_what_went_well_and_beside_nothing_else() {
    let mut rig = Rig::with_host();
    rig.connect(&[1, 2, 3]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1, 2, 3]));
    rig.grant(8);
    let (_, first) = rig.arrived(&filler(3, 512), 0);
    rig.write(first);
    rig.run();
    assert!(!rig.is_unheard());
    rig.all_say(0);
    assert_eq!((rig.answers().len(), rig.is_unheard()), (1, true));
    let due = rig.card.next_due().unwrap();
    assert!(due <= rig.now + Duration::from_millis(1), "it is not left to sleep for long");
    // A command wakes it, and it finds the other.
    let (_, second) = rig.arrived(&filler(4, 512), 0);
    assert!(!rig.is_unheard());
    rig.write(second);
    rig.run();
    rig.all_say(0);
    assert!(rig.is_unheard());
    rig.pass(Duration::from_millis(1));
    rig.run();
    assert!(!rig.is_unheard(), "nothing else has woken it");
    // What a member has refused is told at once.
    let (_, third) = rig.arrived(&filler(5, 512), 0);
    rig.write(third);
    rig.run();
    rig.all_say(3);
    assert!(!rig.is_unheard());
}

#[test]
fn a_host_that_may_not_have_them_is_told_of_no_message_until_it_may() {
    let mut rig = Rig::with_host();
    let parked = rig.arrive(&[], 0);
    rig.run();
    rig.detach();
    rig.heard.headers.clear();
    rig.card.hold_back(true);
    rig.attach();
    rig.arrive(&[], 0);
    rig.grant(8);
    rig.run();
    assert_eq!(rig.heard.headers.len(), 0, "it has granted receives, and may not have them yet");
    rig.card.hold_back(false);
    rig.run();
    let told: Vec<_> = rig.heard.headers.iter().map(|header| header.descriptor()).collect();
    assert_eq!((told.len(), told[0].was_parked, told[1].was_parked), (2, true, false), "{parked:?}");
    assert_eq!(rig.card.front_mut().inbox.len(), 0);
}

/// A host that has so many messages, of which nothing is done yet.
fn busy(count: usize) -> Rig {
    let mut rig = Rig::new(PortConfig { gather: GATHER, ..config() });
    rig.attach();
    rig.grant(40);
    (0..count).for_each(|_| _ = rig.arrive(&[], 0));
    rig.run();
    assert_eq!(rig.heard.headers.len(), count, "all that there are go at once");
    rig
}

const GATHER: Duration = Duration::from_micros(100);

#[test]
fn a_host_is_told_of_a_few_among_many_when_they_are_a_share_or_have_waited() {
    let mut rig = busy(12);
    for more in 1..=3 {
        rig.arrive(&[], 0);
        rig.run();
        assert_eq!(rig.heard.headers.len(), 12, "{more} of {}", 12 + more);
        assert_eq!(rig.card.next_due(), Some(rig.now + GATHER));
    }
    let messages = rig.heard.messages;
    rig.arrive(&[], 0);
    rig.run();
    assert_eq!((rig.heard.headers.len(), rig.heard.messages - messages), (16, 1), "four of sixteen");
    assert_eq!(rig.card.next_due(), None);
    // One that comes alone waits for so long, and no longer.
    rig.arrive(&[], 0);
    rig.run();
    rig.pass(GATHER - Duration::from_nanos(1));
    rig.run();
    assert_eq!(rig.heard.headers.len(), 16);
    rig.pass(Duration::from_nanos(1));
    rig.run();
    assert_eq!((rig.heard.headers.len(), rig.card.next_due()), (17, None));
}

#[test]
fn a_host_with_little_to_do_is_told_of_each_message_at_once() {
    let mut rig = busy(3);
    rig.arrive(&[], 0);
    rig.run();
    assert_eq!(rig.heard.headers.len(), 4, "one of four");
    // When others are answered, one that waits is more of what is left.
    rig.arrive(&[], 0);
    rig.run();
    assert_eq!(rig.heard.headers.len(), 4, "one of five");
    let first = rig.heard.headers[0].descriptor().handle;
    rig.post(ANSWER, 0, 0, first, &[]);
    rig.run();
    assert_eq!((rig.answers().len(), rig.heard.headers.len()), (1, 5));
}
