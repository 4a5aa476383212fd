//! Messages that are split, as a middle tier will: the header goes to the host, the payload stays in card memory, and the host says by
//! one plan of several steps what becomes of it. Over every kind of link; `docs/next.md` says what this is for.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

use crate::common;
use crate::pair;
use crate::split_rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Dice, LONG, config, host_config};
use ob_core::Instant;
use ob_io::{Config, Reactor};
use ob_link::{CardLink, CardLoop, CardService, Endpoint, HostLink, LinkKind, Listen};
use ob_ring::Outgoing;
use pair::{KINDS, Pair};
use split_rig::{
    BLOCK, ClientMessage, PAYLOAD_MAX, PAYLOADS, Planner, SHOWN, SIZES, SPLITS, STEPS_MAX, Splitter, Step,
};

/// More than the card has memory for at once, from the shortest to the longest.
fn messages() -> Vec<ClientMessage> {
    (1..=40).map(|id| ClientMessage::new(id, [1, 128, 8, 32, 3][id as usize % 5])).collect()
}

fn play(pair: &mut Pair<Splitter>, mut between: impl FnMut(&mut Pair<Splitter>)) -> Planner {
    let wanted = pair.service.inbox.len();
    let group = pair.open_group_of(SPLITS, SIZES);
    let mut planner = Planner::new();
    for _ in 0..100_000 {
        between(pair);
        pair.service.poll(Instant::default());
        pair.turn();
        planner.turn(&group.sender, &group.receiver, group.areas.as_ref().unwrap());
        if planner.done.len() == wanted {
            pair.run_until_asleep();
            assert!(pair.closed.is_empty(), "{:?}", pair.closed);
            return planner;
        }
    }
    panic!("{} messages were answered", pair.service.answers.len());
}

/// Whether everything is where the plans have put it, each client was told once, and all memory is back.
fn check(service: &Splitter, planner: &Planner, messages: &[ClientMessage]) {
    let mut answers = service.answers.clone();
    answers.sort_unstable();
    let expected: Vec<_> =
        messages.iter().map(|message| (message.id, !message.id.is_multiple_of(11))).collect();
    assert_eq!(answers, expected, "one answer each");
    assert_eq!((service.plans, planner.headers), (messages.len(), messages.len()), "one plan each");
    assert_eq!(service.pool.blocks_out(), 0);
    for message in messages.iter().filter(|message| !message.id.is_multiple_of(11)) {
        let offset = planner.placed[&message.id] as usize;
        for device in &service.devices {
            assert!(device.bytes()[offset..].starts_with(&message.payload), "message {}", message.id);
        }
        if let Some(seen) = planner.seen.get(&message.id) {
            assert!(message.payload.starts_with(seen));
        }
    }
    assert!(planner.seen.len() > messages.len() / 4, "the host has looked at some");
}

#[test]
fn headers_cross_the_link_and_payloads_do_not() {
    let messages = messages();
    for kind in KINDS {
        let mut pair = Pair::new(kind, Splitter::new(&messages));
        let planner = play(&mut pair, |_| {});
        check(&pair.service, &planner, &messages);
        let counts = pair.card.counts();
        let seen = messages.iter().filter(|message| message.id.is_multiple_of(3)).count();
        let most = (messages.len() * 2 * 64 + seen * SHOWN) as u64;
        assert!(counts.written_bytes <= most, "{kind:?}: {} bytes went to the host", counts.written_bytes);
    }
}

#[test]
fn the_steps_of_a_plan_are_begun_in_order_on_the_same_bytes() {
    let messages = messages();
    let mut pair = Pair::new(LinkKind::Shm, Splitter::new(&messages));
    let planner = play(&mut pair, |_| {});
    for message in &messages {
        let of_message = pair.service.begun.iter().filter(|(id, ..)| *id == message.id);
        let (steps, places): (Vec<Step>, Vec<usize>) =
            of_message.map(|(_, step, address)| (*step, *address)).unzip();
        let offset = planner.placed[&message.id];
        let mut expected = vec![Step::Check { sum: message.sum }];
        expected.extend([0, 1].map(|device| Step::Write { device, offset }));
        if message.id.is_multiple_of(3) {
            assert!(matches!(steps[3], Step::Show { .. }));
            expected.push(steps[3]);
        }
        if !message.id.is_multiple_of(11) {
            expected.push(Step::Answer);
        }
        assert_eq!(steps, expected, "a step that fails keeps the answer back");
        assert!(places.iter().all(|place| *place == places[0]), "the payload stays where it was received");
    }
    let begun: Vec<u64> = pair.service.begun.iter().map(|(id, ..)| *id).collect();
    assert!(!begun.is_sorted(), "plans are under way beside each other");
}

#[test]
fn one_payload_is_written_to_both_devices_and_shown_to_the_host_at_once() {
    // As many as the card has memory for.
    let messages = messages()[1..=PAYLOADS].to_vec();
    for kind in KINDS {
        let mut service = Splitter::new(&messages);
        service.held = Some(0);
        let mut pair = Pair::new(kind, service);
        // Whoever waited for the first device would wait for ever: it says nothing before all the others were begun.
        let planner = play(&mut pair, |pair| {
            let begun = |message: &ClientMessage| pair.service.at_once.get(&message.id).copied();
            let has_all = |message: &ClientMessage| {
                begun(message) == Some(if message.id.is_multiple_of(3) { 3 } else { 2 })
            };
            if messages.iter().all(has_all) && pair.service.held.take().is_some() {
                assert!(pair.service.answers.is_empty(), "no answer is given before all of them are over");
                assert_eq!(
                    pair.service.pool.blocks_out(),
                    PAYLOADS,
                    "one block for all readers of a payload"
                );
            }
        });
        check(&pair.service, &planner, &messages);
    }
}

#[test]
fn a_payload_that_is_not_what_its_header_says_goes_nowhere() {
    let mut messages = messages();
    messages[4].payload[BLOCK - 1] ^= 1;
    let wrong = messages[4].id;
    let mut pair = Pair::new(LinkKind::Shm, Splitter::new(&messages));
    play(&mut pair, |_| {});
    assert!(pair.service.answers.contains(&(wrong, false)));
    let steps = pair.service.begun.iter().filter(|(id, ..)| *id == wrong).count();
    assert_eq!((steps, pair.service.pool.blocks_out()), (1, 0));
}

#[test]
fn cuts_neither_lose_nor_double_a_plan() {
    let messages = messages();
    for seed in 0..8 {
        let mut pair = Pair::new(LinkKind::Tcp, Splitter::new(&messages));
        let (mut dice, mut cuts) = (Dice::new(seed), 0);
        let planner = play(&mut pair, |pair| {
            if dice.below(3) == 0 {
                cuts += 1;
                pair.cut_after(dice.below(20) as usize);
            }
        });
        assert!(cuts > 3, "{cuts}");
        check(&pair.service, &planner, &messages);
    }
}

#[test]
fn a_plan_that_cannot_be_ends_the_group_and_leaves_nothing_behind() {
    let answer = Step::Answer;
    let write = Step::Write { device: 0, offset: 0 };
    let plans: [Vec<u8>; 7] = [
        split_rig::plan(1, &[answer]),
        split_rig::plan(100, &[]),
        split_rig::plan(100, &[write]),
        split_rig::plan(100, &[answer, write]),
        split_rig::plan(100, &[Step::Write { device: 2, offset: 0 }, answer]),
        split_rig::plan(100, &[write, answer])[..40].to_vec(),
        split_rig::plan(100, &[&[write; STEPS_MAX][..], &[answer]].concat()),
    ];
    for plan in plans {
        let messages = messages();
        let mut pair = Pair::new(LinkKind::Shm, Splitter::new(&messages));
        let group = pair.open_group_of(SPLITS, SIZES);
        // One that is good, so that a device has a payload when the group ends.
        pair.service.poll(Instant::default());
        for inline in [split_rig::plan(101, &[write, answer]), plan] {
            group.sender.push(Outgoing { inline: &inline, payload: None }).unwrap();
        }
        for _ in 0..20 {
            pair.turn();
        }
        assert_eq!((pair.closed.len(), pair.service.answers.len()), (1, PAYLOADS - 1));
        pair.service.poll(Instant::default());
        assert_eq!((pair.service.answers.len(), pair.service.pool.blocks_out()), (PAYLOADS, 0));
        let kept = pair.service.inbox.len();
        assert_eq!(kept, messages.len() - PAYLOADS, "nothing is read for which there is no host");
    }
}

/// A card on a thread, with real sockets and memory.
fn over_a_real_link(tcp: bool) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("link.sock");
    let listen = vec![Listen::Unix(socket.clone()), Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    let stop = Arc::new(AtomicBool::new(false));
    let (ready, is_ready) = channel();
    let is_over = Arc::clone(&stop);
    let messages = messages();
    let sent = messages.clone();
    let card = std::thread::spawn(move || {
        let reactor = Reactor::new(&Config::default()).unwrap();
        let link = CardLink::new(&reactor.handle(), config(listen)).unwrap();
        ready.send((reactor.handle().waker(), link.tcp_address())).unwrap();
        let mut card = CardLoop::new(reactor, link, Splitter::new(&sent), Duration::from_micros(50));
        let mut others = Vec::new();
        while !is_over.load(Ordering::Acquire) {
            card.turn(None, &mut others);
            others.clear();
        }
        card.link.shut_down(&mut card.service);
        card.service
    });
    let (waker, address) = is_ready.recv().unwrap();
    let endpoint = if tcp { Endpoint::Tcp(address.unwrap()) } else { Endpoint::Unix(socket) };
    let link = HostLink::attach(&host_config(endpoint)).unwrap();
    let group = link.open_group_of(SPLITS, SIZES).unwrap();
    let mut planner = Planner::new();
    let areas = group.areas.as_ref().unwrap();
    while planner.done.len() < messages.len() {
        let turn = || planner.turn(&group.sender, &group.receiver, areas).then_some(());
        group.wait_response(LONG, turn).unwrap();
    }
    drop(link);
    stop.store(true, Ordering::Release);
    waker.wake();
    check(&card.join().unwrap(), &planner, &messages);
    assert!(messages.iter().any(|message| message.payload.len() == PAYLOAD_MAX));
}

#[test]
fn over_shared_memory() {
    over_a_real_link(false);
}

#[test]
fn over_tcp() {
    over_a_real_link(true);
}
