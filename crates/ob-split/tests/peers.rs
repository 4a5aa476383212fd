//! Peers that connect here and mean no good, or are slow, or are many: whoever behaves does not notice, and what they have comes back.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use std::time::Duration;

use card_rig::split::{
    ANSWER, OTHER, Port, STALL, VM, accept, blocks_out, compressible, heard, host, listen, message,
    port_config, received, rig, say, settle, unread,
};
use card_rig::{filler, reply_to};
use ob_ring::CardService;
use ob_split::card::{IntakeConfig, PortConfig};
use ob_split::host::{Completion, Event, HostEnds, Incoming, PostError, Split, SplitFailure};
use ob_split::wire::{HEADER_LEN, Header, OVERSIZE, Otherwise, Plan, Register, Slot, Step};

const KIB: usize = 1024;

/// So much more is taken of what is sent to a peer.
fn widen(port: &Port, peer: u16, room: usize) {
    port.borrow_mut().card.net_mut().widen(peer, room);
}

fn is_open(port: &Port, peer: u16) -> bool {
    let mut port = port.borrow_mut();
    port.card.net_mut().pipes.values().any(|pipe| pipe.port == peer && !pipe.is_closed)
}

fn end(port: &Port, peer: u16) {
    port.borrow_mut().card.net_mut().end(peer);
}

/// How something ends that ends soon.
fn soon(port: &Port, split: &mut Split<impl HostEnds>, event: Event) -> Completion {
    for _ in 0..10 {
        settle(port, split);
        if let Some(completion) = split.take(event) {
            return completion;
        }
    }
    panic!("it does not come to its end");
}

#[test]
fn whoever_is_not_awaited_keeps_nobody_from_being_heard() {
    // One connection that is accepted and awaited, and another that nobody has asked for.
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    port.borrow_mut().card.net_mut().arrive(card_rig::split::DOOR, OTHER);
    settle(&port, &mut split);
    let mut event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
    for round in 0..50 {
        // Of those with a payload a few would fill the memory that there is, of the others more than there are handles.
        let len = [50_000, 0, 3000][round % 3];
        (0..10).for_each(|tag| say(&port, OTHER, &message(tag, &filler(1, len))));
        settle(&port, &mut split);
        assert_eq!(split.take(event), None);
    }
    let counts = port.borrow().card.counts();
    assert!(counts.messages < 20, "{counts:?}");
    for tag in 0..20 {
        say(&port, VM, &message(tag, &filler(2, 50_000)));
        assert_eq!(received(soon(&port, &mut split, event)).0, tag);
        event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
    }
    // When it goes, all that it has said goes with it: nobody knows of it who could ask for that.
    port.borrow_mut().card.net_mut().cut(OTHER);
    for _ in 0..3 {
        settle(&port, &mut split);
        assert_eq!(split.take(event), None);
    }
    assert_eq!(blocks_out(&port), 0);
    // And so with one that comes again and again.
    for _ in 0..200 {
        port.borrow_mut().card.net_mut().arrive(card_rig::split::DOOR, OTHER);
        (0..4).for_each(|tag| say(&port, OTHER, &message(tag, &[])));
        settle(&port, &mut split);
        assert_eq!(split.take(event), None);
        port.borrow_mut().card.net_mut().cut(OTHER);
        settle(&port, &mut split);
        assert_eq!(split.take(event), None);
    }
    say(&port, VM, &message(99, &filler(2, 50_000)));
    assert_eq!(received(soon(&port, &mut split, event)).0, 99);
}

#[test]
fn of_a_peer_as_much_comes_as_the_host_has_plans_for() {
    let port = rig(PortConfig {
        intake: port_config().intake.map(|of| IntakeConfig { idle_max: 2, ..of }),
        ..port_config()
    });
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    (0..9).for_each(|tag| say(&port, VM, &message(tag, &[])));
    let events: Vec<_> = (0..9).map(|_| split.mixed_recv(Incoming::Of(from), 0).unwrap()).collect();
    let mut held = Vec::new();
    for (at, event) in events.into_iter().enumerate() {
        settle(&port, &mut split);
        if at > 1 {
            assert_eq!(split.take(event), None, "two are here");
            drop(held.remove(0));
            settle(&port, &mut split);
        }
        let (tag, payload, _) = received(split.take(event).unwrap());
        assert_eq!(tag, at as u64);
        held.push(payload);
    }
}

#[test]
fn connections_that_nobody_has_claimed_end_with_their_listener() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    port.borrow_mut().card.net_mut().arrive(card_rig::split::DOOR, OTHER);
    settle(&port, &mut split);
    split.poll();
    split.close(listener).unwrap();
    (0..3).for_each(|_| {
        settle(&port, &mut split);
        assert_eq!(split.poll(), None);
    });
    assert_eq!((is_open(&port, OTHER), is_open(&port, VM)), (false, true));
    say(&port, VM, &message(1, &[]));
    let event = split.mixed_recv(Incoming::Of(from), 0).unwrap();
    assert_eq!(received(split.wait(event)).0, 1);
}

/// A peer that has asked for something, of which it takes but a few bytes.
fn unheard(port: &Port, split: &mut Split<impl HostEnds>) -> ob_split::wire::ChannelId {
    let listener = listen(split);
    let from = accept(port, split, listener, VM);
    say(port, VM, &message(1, &filler(1, 3000)));
    let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
    let (_, payload, _) = received(split.wait(event));
    widen(port, VM, 10);
    let answer = Header { payload_len: 3000, ..Header::decode(&ANSWER(1), card_rig::MAGIC).unwrap() };
    split.mixed_send(from, &answer.encode(), Some(payload.all())).unwrap();
    settle(port, split);
    assert_eq!(blocks_out(port), 2, "what it is answered with, and its header");
    from
}

#[test]
fn who_does_not_take_its_answers_is_ended_whatever_it_says_meanwhile() {
    let port = rig(port_config());
    let mut split = host(&port);
    let from = unheard(&port, &mut split);
    // A message that is read away, and that never ends.
    let endless =
        Header { payload_len: u32::MAX, ..Header::decode(&message(2, &[]), card_rig::MAGIC).unwrap() };
    say(&port, VM, &endless.encode());
    for _ in 0..4 {
        settle(&port, &mut split);
        port.borrow_mut().pass(STALL / 3);
        if is_open(&port, VM) {
            say(&port, VM, &[7]);
        }
    }
    settle(&port, &mut split);
    split.poll();
    settle(&port, &mut split);
    assert_eq!((is_open(&port, VM), blocks_out(&port)), (false, 0));
    assert_eq!(split.mixed_recv(Incoming::Of(from), 1), Err(PostError::Channel(from)));
}

#[test]
fn who_stands_still_amidst_a_message_is_ended_whatever_it_is_sent() {
    for begun in [&message(2, &filler(2, 100))[..90], &message(2, &[])[..20]] {
        let port = rig(port_config());
        let mut split = host(&port);
        let listener = listen(&mut split);
        let from = accept(&port, &mut split, listener, VM);
        say(&port, VM, begun);
        for _ in 0..4 {
            settle(&port, &mut split);
            port.borrow_mut().pass(STALL / 3);
            // What is sent to it, it takes.
            let _ = split.mixed_send(from, &ANSWER(9), None);
            settle(&port, &mut split);
            split.poll();
        }
        assert_eq!((is_open(&port, VM), blocks_out(&port)), (false, 0));
    }
}

#[test]
fn who_takes_none_of_many_answers_is_not_heard_until_it_does() {
    const MESSAGES: usize = 200;
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    accept(&port, &mut split, listener, VM);
    widen(&port, VM, 0);
    // Longer than may be: the card itself answers each.
    let long = message(1, &vec![0; 70 * KIB]);
    (0..MESSAGES).for_each(|_| say(&port, VM, &long));
    settle(&port, &mut split);
    let answered = (MESSAGES * long.len() - unread(&port, VM)) / long.len();
    assert!((64..66).contains(&answered), "{answered}");
    let mut refused = Vec::new();
    while refused.len() < MESSAGES {
        port.borrow_mut().pass(STALL / 2);
        widen(&port, VM, 10 * HEADER_LEN);
        settle(&port, &mut split);
        refused.extend(heard(&port, VM));
        assert!(is_open(&port, VM));
    }
    assert!(refused.iter().all(|(header, _)| header.status == OVERSIZE));
    assert_eq!((refused.len(), unread(&port, VM)), (MESSAGES, 0));
}

#[test]
fn who_has_said_all_still_hears_what_it_is_answered() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    (0..3).for_each(|tag| say(&port, VM, &message(tag, &filler(1, 100))));
    end(&port, VM);
    let mut payloads = Vec::new();
    for tag in 0..3 {
        let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
        let (found, payload, _) = received(split.wait(event));
        assert_eq!(found, tag);
        payloads.push((found, payload));
    }
    // Nothing more comes of it, and the host knows that though it has not done with what has come.
    match split.mixed_recv(Incoming::Of(from), 1000) {
        Ok(event) => assert_eq!(split.wait(event), Completion::Failed(SplitFailure::ChannelGone)),
        Err(error) => assert_eq!(error, PostError::Channel(from)),
    }
    assert!(is_open(&port, VM));
    widen(&port, VM, 0);
    for (tag, payload) in payloads {
        let event = split.mixed_send(from, &ANSWER(tag), None).unwrap();
        settle(&port, &mut split);
        assert_eq!(split.take(event), None);
        drop(payload);
        settle(&port, &mut split);
    }
    assert!(is_open(&port, VM), "it has not taken them");
    widen(&port, VM, 1000);
    settle(&port, &mut split);
    let answers: Vec<u64> =
        port.borrow_mut().card.net_mut().pipes.values_mut().flat_map(answers_of).collect();
    assert_eq!(answers, [0, 1, 2]);
    assert_eq!((is_open(&port, VM), blocks_out(&port)), (false, 0));
    // One that has asked nothing is gone at once, and so is one that ends amidst a message.
    for begun in [0, 90] {
        accept(&port, &mut split, listener, OTHER);
        say(&port, OTHER, &message(2, &filler(2, 100))[..begun]);
        end(&port, OTHER);
        settle(&port, &mut split);
        assert_eq!((is_open(&port, OTHER), blocks_out(&port)), (false, 0));
    }
}

fn answers_of(pipe: &mut card_rig::Pipe) -> Vec<u64> {
    let bytes = std::mem::take(&mut pipe.to_peer);
    let headers = bytes.chunks_exact(HEADER_LEN).map(|bytes| Header::decode(bytes, card_rig::MAGIC).unwrap());
    headers.map(|header| header.tag).collect()
}

#[test]
fn who_has_said_all_and_does_not_take_its_answers_is_ended() {
    let port = rig(port_config());
    let mut split = host(&port);
    unheard(&port, &mut split);
    end(&port, VM);
    settle(&port, &mut split);
    assert!(is_open(&port, VM));
    port.borrow_mut().pass(STALL);
    settle(&port, &mut split);
    split.poll();
    settle(&port, &mut split);
    assert_eq!((is_open(&port, VM), blocks_out(&port)), (false, 0));
}

#[test]
fn nothing_is_heard_of_who_has_sent_what_is_no_message() {
    let gather = Duration::from_millis(100);
    let port = rig(PortConfig { gather, ..port_config() });
    let mut split = host(&port);
    let listener = listen(&mut split);
    let (from, other) = (accept(&port, &mut split, listener, VM), accept(&port, &mut split, listener, OTHER));
    // The host has messages of another, so that it is told of one only after a while.
    let mut held = Vec::new();
    for tag in 0..4 {
        say(&port, OTHER, &message(tag, &[]));
        let event = split.mixed_recv(Incoming::Of(other), 0).unwrap();
        settle(&port, &mut split);
        port.borrow_mut().pass(gather);
        held.push(received(split.wait(event)));
    }
    let events: Vec<_> = (0..3).map(|_| split.mixed_recv(Incoming::Of(from), 0).unwrap()).collect();
    split.flush();
    port.borrow_mut().run();
    // A reply that nobody has asked for, and behind it what would be a message.
    let stray = reply_to(&Header::decode(&message(77, &[]), card_rig::MAGIC).unwrap(), 0, &[]);
    let said = [message(1, &[]), stray, message(2, &[]), message(3, &[])].concat();
    say(&port, VM, &said);
    (0..3).for_each(|_| port.borrow_mut().run());
    say(&port, VM, &message(4, &[]));
    (0..3).for_each(|_| port.borrow_mut().run());
    port.borrow_mut().pass(gather);
    settle(&port, &mut split);
    let mut ends = events.into_iter().map(|event| split.take(event).unwrap());
    assert_eq!(received(ends.next().unwrap()).0, 1, "it was said before");
    assert!(ends.all(|end| end == Completion::Failed(SplitFailure::ChannelGone)));
    assert!(!is_open(&port, VM));
}

#[test]
fn what_a_peer_has_said_is_told_before_it_is_ended_for_standing_still() {
    let gather = STALL * 2;
    let port = rig(PortConfig { gather, ..port_config() });
    let mut split = host(&port);
    let listener = listen(&mut split);
    let (from, other) = (accept(&port, &mut split, listener, VM), accept(&port, &mut split, listener, OTHER));
    let mut held = Vec::new();
    for tag in 0..4 {
        say(&port, OTHER, &message(tag, &[]));
        let event = split.mixed_recv(Incoming::Of(other), 0).unwrap();
        settle(&port, &mut split);
        port.borrow_mut().pass(gather);
        held.push(received(split.wait(event)));
    }
    let event = split.mixed_recv(Incoming::Of(from), 0).unwrap();
    split.flush();
    port.borrow_mut().run();
    say(&port, VM, &[&message(1, &[])[..], &message(2, &filler(1, 100))[..90]].concat());
    port.borrow_mut().run();
    port.borrow_mut().pass(STALL);
    port.borrow_mut().run();
    assert_eq!(split.take(event), None);
    port.borrow_mut().pass(gather);
    settle(&port, &mut split);
    assert_eq!(received(split.take(event).unwrap()).0, 1);
    settle(&port, &mut split);
    assert!(!is_open(&port, VM));
}

#[test]
fn who_waits_longest_for_memory_gets_it_and_short_ones_need_not_wait_for_it() {
    // Two long blocks, which somebody has.
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let mut held = Vec::new();
    for peer in [VM, OTHER] {
        let from = accept(&port, &mut split, listener, peer);
        say(&port, peer, &message(0, &filler(1, 50_000)));
        let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
        held.push(received(split.wait(event)).1);
        port.borrow_mut().card.net_mut().cut(peer);
        settle(&port, &mut split);
        split.poll();
    }
    // One waits, and others come behind it.
    let waits = accept(&port, &mut split, listener, 49);
    say(&port, 49, &message(5, &filler(2, 50_000)));
    settle(&port, &mut split);
    let others = [accept(&port, &mut split, listener, 50), accept(&port, &mut split, listener, 51)];
    let event = split.mixed_recv(Incoming::Of(others[0]), 64 << 10).unwrap();
    say(&port, 50, &message(6, &filler(3, 100)));
    settle(&port, &mut split);
    assert_eq!(received(split.take(event).unwrap()).0, 6, "there is a short block for it");
    // One comes back when its message is answered, and in the next turn there is a newcomer who would have it.
    let [long, late] =
        [Incoming::Of(waits), Incoming::Of(others[1])].map(|of| split.mixed_recv(of, 64 << 10).unwrap());
    settle(&port, &mut split);
    let answer = Plan::new(vec![Step::Answer { payload: None }]).unwrap();
    let answer = split.define(&answer, 8, 0).unwrap();
    let out = blocks_out(&port);
    split.post(answer, held.last(), 0, Slot(0), &[]).unwrap();
    split.flush();
    while blocks_out(&port) == out {
        port.borrow_mut().turn();
    }
    say(&port, 51, &message(7, &filler(4, 50_000)));
    assert_eq!(received(soon(&port, &mut split, long)).0, 5);
    assert_eq!(split.take(late), None);
}

#[test]
fn what_a_peer_takes_is_memory_again_for_who_waits_for_it() {
    // One block for records, which are answers that their peer does not take.
    let port = rig(PortConfig { records: 1, granted: Vec::new(), ..port_config() });
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    widen(&port, VM, 0);
    let two = Register::new(2).unwrap();
    let compress = Step::Compress { from: Register::PAYLOAD, into: two, otherwise: Otherwise::Fail };
    let back = Plan::new(vec![compress, Step::Answer { payload: Some(two) }]).unwrap();
    let back = split.define(&back, 8, 0).unwrap();
    let waits = loop {
        say(&port, VM, &message(1, &[filler(1, 40_000), compressible(20_000)].concat()));
        let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
        let (_, payload, _) = received(soon(&port, &mut split, event));
        let event = split.post(back, Some(&payload), 2, Slot(0), &[]).unwrap();
        settle(&port, &mut split);
        match split.take(event) {
            None => break event,
            done => assert!(matches!(done, Some(Completion::Plan { .. }))),
        }
    };
    {
        let mut port = port.borrow_mut();
        port.run();
        let now = port.now;
        assert!(port.card.next_due() > Some(now));
        port.card.net_mut().widen(VM, 1 << 20);
        port.card.poll(now);
        assert_eq!(port.card.next_due(), Some(now), "there is something to do");
    }
    assert!(matches!(soon(&port, &mut split, waits), Completion::Plan { .. }));
}

#[test]
fn a_peer_that_takes_its_answers_late_is_there_all_the_same() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    // Again and again an answer is given up, and the next is taken.
    for round in 0..8 {
        widen(&port, VM, 0);
        let late = split.mixed_send(from, &ANSWER(1), None).unwrap();
        settle(&port, &mut split);
        port.borrow_mut().pass(card_rig::split::PATIENCE);
        settle(&port, &mut split);
        assert!(matches!(split.take(late), Some(Completion::Failed(_))), "round {round}");
        widen(&port, VM, 1000);
        let event = split.mixed_send(from, &ANSWER(2), None).unwrap();
        settle(&port, &mut split);
        assert_eq!(split.take(event), Some(Completion::Sent));
        heard(&port, VM);
    }
}
