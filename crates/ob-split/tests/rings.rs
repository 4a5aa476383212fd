//! A port over the rings of a group: what is said comes through, a full ring is waited for, and nobody sleeps beside work.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

#[path = "../../ob-ring/tests/rig/mod.rs"]
mod rig;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ob_core::{ChunkName, GateId, LockId, TierId, Units};
use ob_ring::{AreaError, PushError};
use ob_split::host::{HostEnds, Port, PortError, PortEvent, PortOptions, PostError, RingEnds, Ticket};
use ob_split::wire::{
    ChannelId, Definitions, FromHost, Gate, Handle, HostMessage, INLINE_MAX, Memory, MessageBuilder, Set,
    SetWhat, Slot, Welcome, kind,
};
use rig::{Card, Group};

const TRANSFER_MAX: u32 = 2 << 20;
const RING: u32 = 32 << 10;
const WELCOME: Welcome = Welcome {
    engines: 0,
    payload_max: 1 << 20,
    gate: GateId(9),
    handles_max: 100,
    plans_max: 100,
    parked: 0,
    channels_max: 10,
    tier: TierId(1),
    lock: LockId([7; 16]),
};

/// Which words a thread would have slept on: whether each was still as expected.
type Slept = Rc<RefCell<Vec<Vec<bool>>>>;

fn ends(group: &Group, slept: &Slept) -> impl HostEnds + use<> {
    let slept = Rc::clone(slept);
    let sleeper = move |words: &[(&AtomicU64, u32)], _: Option<Duration>| {
        let is_same = |(word, expected): &(&AtomicU64, u32)| word.load(Ordering::Acquire) as u32 == *expected;
        slept.borrow_mut().push(words.iter().map(is_same).collect());
    };
    RingEnds::new(group.sender(), group.receiver(), None, sleeper)
}

fn forget(slot: u16) -> Set {
    Set {
        slot: Slot(slot),
        what: SetWhat::Forget,
        epoch: None,
        chunk: ChunkName::default(),
        channels: [ChannelId(0); 4],
        members: 0,
        offset: Units(0),
        length: Units(0),
    }
}

/// Slots and numbers that the host has said, in their order.
fn said(card: &mut Card) -> Vec<u64> {
    let definitions = Definitions::new();
    let mut all = Vec::new();
    for batch in card.run_until_armed() {
        for message in batch.iter() {
            assert!(message.payload.is_none());
            match FromHost::decode(message.inline, &definitions).unwrap().message {
                HostMessage::Set(entries) => all.extend(entries.iter().map(|set| u64::from(set.slot.0))),
                HostMessage::Gate(entries) => all.extend(entries.iter().map(|gate| match gate {
                    Gate::Prepare { number } | Gate::Extend { number, .. } => number,
                })),
                HostMessage::Hello(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    all
}

fn say(card: &mut Card, message: &[u8]) {
    card.sender.push(message).unwrap();
    card.run_until_armed();
}

fn welcome(card: &mut Card) {
    assert!(said(card).is_empty());
    let mut builder = MessageBuilder::default();
    builder.welcome(&WELCOME, &[]);
    say(card, builder.finish(0, 0));
}

/// Posts this number in one of two kinds, so that each is a message.
fn post(port: &mut Port<impl HostEnds>, number: u16) -> Result<(), PostError> {
    if number.is_multiple_of(2) {
        port.set(&forget(number))
    } else {
        port.gate(&Gate::Extend { number: number.into(), milliseconds: 1 })
    }
}

#[test]
fn entries_come_through_and_a_full_ring_is_waited_for() {
    let group = Group::new(RING, RING, TRANSFER_MAX);
    let (mut card, slept) = (group.card(16, TRANSFER_MAX), Slept::default());
    let mut port = Port::open(ends(&group, &slept), &PortOptions::default()).unwrap();
    let ticket = port.register();
    assert_eq!(port.next_event(), Ok(None));
    port.sleep(ticket, None);
    welcome(&mut card);
    port.sleep(ticket, None);
    assert_eq!(*slept.borrow(), [[true], [false]], "the answer wakes who sleeps");
    assert_eq!(port.next_event(), Ok(Some(PortEvent::Welcome(WELCOME))));
    // Now as much as there is room for, and more.
    let mut count = 0;
    let refused = loop {
        match post(&mut port, count) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(refused == PostError::Full && port.wants_room());
    let mut all = Vec::new();
    slept.borrow_mut().clear();
    for _ in 0..100 {
        let ticket: Ticket = port.register();
        port.flush().unwrap();
        if !port.wants_room() {
            break;
        }
        assert!(ticket.room.is_some());
        port.sleep(ticket, None);
        all.extend(said(&mut card));
        port.sleep(ticket, None);
    }
    all.extend(said(&mut card));
    assert_eq!(all, (0..u64::from(count)).collect::<Vec<_>>());
    let slept = slept.borrow();
    assert!(!slept.is_empty());
    assert!(slept.iter().step_by(2).all(|words| words[..] == [true, true]), "nothing had come before");
    assert!(
        slept.iter().skip(1).step_by(2).all(|words| words[..] == [true, false]),
        "room wakes who wants it"
    );
}

#[test]
fn what_is_in_the_ring_and_no_message_ends_the_port() {
    let memory = Memory { handle: Handle(1), length: 5 };
    for extra in [0, 1, INLINE_MAX] {
        let group = Group::new(RING, RING, TRANSFER_MAX);
        let (mut card, slept) = (group.card(16, TRANSFER_MAX), Slept::default());
        let mut port = Port::open(ends(&group, &slept), &PortOptions::default()).unwrap();
        welcome(&mut card);
        assert!(port.next_event().unwrap().is_some());
        let mut builder = MessageBuilder::default();
        builder.begin(kind::MEMORY);
        assert!(builder.push(&memory));
        let mut bytes = builder.finish(0, 0).to_vec();
        bytes.resize(bytes.len() + extra, 0);
        say(&mut card, &bytes);
        let event = port.next_event();
        if extra == 0 {
            assert_eq!(event, Ok(Some(PortEvent::Memory(memory))));
        } else {
            assert!(matches!(event, Err(PortError::Message(_))), "{event:?}");
        }
    }
}

#[test]
fn a_ring_that_has_no_room_for_a_message_ever_is_an_error() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let (mut card, slept) = (group.card(16, TRANSFER_MAX), Slept::default());
    let mut port = Port::open(ends(&group, &slept), &PortOptions::default()).unwrap();
    welcome(&mut card);
    assert!(port.next_event().unwrap().is_some());
    for slot in 0..100 {
        port.set(&forget(slot)).unwrap();
    }
    assert!(matches!(port.flush(), Err(PortError::Push(PushError::TooLarge { .. }))));
}

#[test]
fn a_group_without_areas_has_none_and_a_closed_one_is_over() {
    let group = Group::new(RING, RING, TRANSFER_MAX);
    let (mut card, slept) = (group.card(16, TRANSFER_MAX), Slept::default());
    let mut port = Port::open(ends(&group, &slept), &PortOptions::default()).unwrap();
    welcome(&mut card);
    assert_eq!(port.ends().area_lens(), (0, 0));
    assert_eq!(port.ends().copy_in(0, &[]), Err(AreaError::OutOfArea));
    assert_eq!(port.ends().copy_out(0, &mut []), Err(AreaError::OutOfArea));
    group.closed.close();
    assert!(port.next_event().unwrap().is_some(), "what came before is taken");
    assert_eq!(port.next_event(), Err(PortError::Closed));
}
