//! The paper's API over both halves of a port: peers connect, their headers go to the host, their payloads stay on the card, and what they
//! send takes no more of it than it may.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use card_rig::split::{
    ANSWER, DOOR, GRANTED, OTHER, STALL, STORAGE, VM, accept, blocks_out, compressible, heard, host,
    host_with_ring, listen, message, port_config, received, rig, say, settle, unpacked, unread,
};
use card_rig::{Rig, address, config, filler, reply_to};
use ob_split::card::{IntakeConfig, NoFront, PortConfig, SplitDialect};
use ob_split::engine::Effort;
use ob_split::host::{CardTask, Completion, Incoming, NoMemory, PostError, SplitFailure, arguments};
use ob_split::wire::{
    Answers, ChannelId, ChannelState, CompletionStatus, Definition, HEADER_LEN, Handle, Memory, OVERSIZE,
    Otherwise, PACKED, Plan, PlanId, REPLY, Register, Slot, Step, USER_LEN, kind,
};
use proptest::prelude::*;

#[test]
fn listing_1_keeps_payloads_on_the_card() {
    let port = rig(port_config());
    let mut split = host(&port);
    let compressed = split.card_memory(64 << 10).unwrap();
    let listener = listen(&mut split);
    let from_vm = accept(&port, &mut split, listener, VM);
    let to_storage = split.connect_and_wait(address(STORAGE)).unwrap();
    let block = compressible(30_000);
    for tag in [7, 8] {
        say(&port, VM, &message(tag, &block));
        let event = split.mixed_recv(Incoming::Of(from_vm), 64 << 10).unwrap();
        let (found, payload, len) = received(split.wait(event));
        assert_eq!((found, len), (tag, 30_000));
        let task = CardTask::Compress { effort: Effort::DEFAULT, from: payload.all(), into: &compressed };
        let event = split.engine(task).unwrap();
        let Completion::Engine(len) = split.wait(event) else { panic!() };
        let packed = compressed.range(0..len).unwrap();
        let event = split.engine(CardTask::Checksum { from: packed, seed: 0 }).unwrap();
        let Completion::Engine(sum) = split.wait(event) else { panic!() };
        let header: [u8; HEADER_LEN] = message(0, &[])[..].try_into().unwrap();
        let event = split.mixed_send(to_storage, &header, Some(packed)).unwrap();
        settle(&port, &mut split);
        let [(asked, bytes)] = &heard(&port, STORAGE)[..] else { panic!() };
        assert_eq!((unpacked(bytes, block.len()), crc32c::crc32c(bytes)), (block.clone(), sum));
        assert_eq!(split.take(event), None, "it is sent when its peer has it");
        say(&port, STORAGE, &reply_to(asked, 0, &[]));
        assert_eq!(split.wait(event), Completion::Sent);
        // An answer to the peer is sent when it is out: nobody answers that.
        let event = split.mixed_send(from_vm, &ANSWER(tag), None).unwrap();
        assert_eq!(split.wait(event), Completion::Sent);
        assert_eq!(heard(&port, VM)[0].0.tag, tag);
    }
    drop(compressed);
    settle(&port, &mut split);
    assert_eq!(blocks_out(&port), 0);
    assert_eq!(port.borrow().card.counts().messages, GRANTED as usize, "it is granted anew");
}

#[test]
fn who_is_not_awaited_is_not_read() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let (one, other) = (accept(&port, &mut split, listener, VM), accept(&port, &mut split, listener, OTHER));
    let (vm, others) = ([[1; 4000]; 20], [[2; 4000]; 20]);
    for (at, (of_one, of_other)) in vm.iter().zip(&others).enumerate() {
        say(&port, VM, &message(at as u64, of_one));
        say(&port, OTHER, &message(at as u64, of_other));
    }
    settle(&port, &mut split);
    let all = vm.len() * (HEADER_LEN + 4000);
    for peer in [VM, OTHER] {
        let read = all - unread(&port, peer);
        assert!(read <= 2 * (HEADER_LEN + 4000), "{read} bytes were read, and nobody awaits a message");
    }
    assert_eq!((blocks_out(&port), port.borrow().card.counts().messages), (2, GRANTED as usize));
    // One is awaited, and waits for nobody else.
    for tag in 0..20 {
        let event = split.mixed_recv(Incoming::Any, 4096).unwrap();
        let Completion::Received { from, header, .. } = split.wait(event) else { panic!() };
        assert_eq!(from, u32::from(if tag % 2 == 0 { one } else { other }.0), "they take turns");
        assert_eq!(u64::from(header[8]), tag / 2);
    }
    split.close(one).unwrap();
    split.close(other).unwrap();
    settle(&port, &mut split);
    assert_eq!(blocks_out(&port), 0);
}

#[test]
fn memory_that_is_out_is_waited_for() {
    // Of a peer with whose messages nothing is done half of the blocks are out at most.
    let intake = port_config().intake.map(|intake| IntakeConfig { memory: vec![(64 << 10, 4)], ..intake });
    let port = rig(PortConfig { intake, ..port_config() });
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    (0..9).for_each(|tag| say(&port, VM, &message(tag, &[5; 50_000])));
    let mut held = Vec::new();
    let events: Vec<_> = (0..9).map(|_| split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap()).collect();
    settle(&port, &mut split);
    for (at, event) in events.into_iter().enumerate() {
        settle(&port, &mut split);
        assert_eq!(blocks_out(&port), 2, "there are no more, and what waits takes what comes back");
        let (tag, payload, _) = received(split.take(event).unwrap());
        assert_eq!(tag, at as u64);
        held.push(payload);
        if held.len() > 1 {
            held.remove(0);
            settle(&port, &mut split);
        }
        if at == 7 {
            break;
        }
    }
}

#[test]
fn what_is_too_long_is_told_and_the_next_comes() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    say(&port, VM, &message(1, &[1; 1001]));
    // Longer than the card has room for at all: its host never hears of it, and its peer does.
    say(&port, VM, &message(2, &vec![2; 200_000]));
    say(&port, VM, &message(3, &[3; 1000]));
    let event = split.mixed_recv(Incoming::Of(from), 1000).unwrap();
    // Whoever receives it knows whom to tell.
    let Completion::Failed(SplitFailure::Oversize { from: who, header, len: 1001 }) = split.wait(event)
    else {
        panic!()
    };
    assert_eq!((who, header[8], &header[24..40]), (from.0.into(), 1, &[0; 16][..]));
    let event = split.mixed_recv(Incoming::Of(from), 1000).unwrap();
    let (tag, payload, len) = received(split.wait(event));
    assert_eq!((tag, len), (3, 1000));
    let [(refused, _)] = &heard(&port, VM)[..] else { panic!() };
    assert_eq!((refused.tag, refused.status, refused.kind), (2, OVERSIZE, 1 | REPLY));
    drop(payload);
    settle(&port, &mut split);
    assert_eq!(blocks_out(&port), 0);
}

#[test]
fn what_a_peer_has_said_before_it_goes_is_heard_before_that() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    (0..3).for_each(|tag| say(&port, VM, &message(tag, &[9; 100])));
    port.borrow_mut().card.net_mut().end(VM);
    for wanted in 0..3 {
        let event = split.mixed_recv(Incoming::Of(from), 1000).unwrap();
        assert_eq!(received(split.wait(event)).0, wanted);
    }
    match split.mixed_recv(Incoming::Of(from), 1000) {
        Ok(event) => assert_eq!(split.wait(event), Completion::Failed(SplitFailure::ChannelGone)),
        Err(error) => assert_eq!(error, PostError::Channel(from)),
    }
    settle(&port, &mut split);
    assert_eq!(blocks_out(&port), 0);
    // Its place is another's.
    for peer in 50..80 {
        let channel = accept(&port, &mut split, listener, peer);
        port.borrow_mut().card.net_mut().end(peer);
        settle(&port, &mut split);
        split.poll();
        assert!(split.mixed_recv(Incoming::Of(channel), 1).is_err());
    }
}

#[test]
fn a_host_whose_ring_is_full_hears_all_that_a_peer_has_said_before_it_went() {
    const MESSAGES: u64 = 400;
    // All that a peer says comes, whatever the host does with it.
    let intake = port_config().intake.map(|intake| IntakeConfig { idle_max: 512, ..intake });
    let few = PortConfig { handles_max: 2048, channels_max: 2, granted: Vec::new(), ..port_config() };
    let port = rig(PortConfig { intake, ..few });
    let mut split = host_with_ring(&port, 16 << 10);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    let events: Vec<_> = (0..420).map(|_| split.mixed_recv(Incoming::Of(from), 0).unwrap()).collect();
    split.flush();
    (0..MESSAGES).for_each(|tag| say(&port, VM, &message(tag, &[])));
    port.borrow_mut().card.net_mut().end(VM);
    port.borrow_mut().run();
    assert!(port.borrow().card.counts().messages as u64 == MESSAGES, "all has come");
    for (at, event) in events.into_iter().enumerate() {
        let completion = split.wait(event);
        if (at as u64) < MESSAGES {
            assert_eq!(received(completion).0, at as u64);
        } else {
            assert_eq!(completion, Completion::Failed(SplitFailure::ChannelGone));
        }
    }
}

#[test]
fn no_more_peers_come_than_there_is_room_for() {
    let port = rig(port_config());
    let mut split = host(&port);
    listen(&mut split);
    let wanted = usize::from(config().channels_max);
    for peer in 0..20 {
        port.borrow_mut().card.net_mut().arrive(DOOR, 100 + peer);
    }
    settle(&port, &mut split);
    let open = port.borrow_mut().card.net_mut().pipes.values().filter(|pipe| !pipe.is_closed).count();
    assert_eq!(open, wanted);
}

#[test]
fn the_next_host_listens_where_the_last_did() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    accept(&port, &mut split, listener, VM);
    say(&port, VM, &message(1, &[1; 100]));
    split.mixed_recv(Incoming::Any, 1000).unwrap();
    settle(&port, &mut split);
    port.borrow_mut().detach();
    drop(split);
    port.borrow_mut().run();
    assert_eq!((blocks_out(&port), port.borrow().card.counts().messages), (0, 0));
    assert!(port.borrow_mut().card.net_mut().pipes.values().all(|pipe| pipe.is_closed));
    // Nobody listens.
    port.borrow_mut().card.net_mut().arrive(DOOR, OTHER);
    port.borrow_mut().run();
    assert!(port.borrow_mut().card.net_mut().pipes.values().all(|pipe| pipe.is_closed));
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    say(&port, VM, &message(2, &[1; 100]));
    let event = split.mixed_recv(Incoming::Of(from), 1000).unwrap();
    assert_eq!(received(split.wait(event)).0, 2, "what was said to the last host is over");
    assert_eq!(split.card_memory(64 << 10).unwrap().len(), 64 << 10);
}

#[test]
fn a_port_without_memory_for_peers_does_not_listen() {
    let port = rig(PortConfig { intake: None, ..port_config() });
    let mut split = host(&port);
    // The number of one that was refused is used again, or closed.
    for _ in 0..10 {
        let event = split.listen(address(DOOR)).unwrap();
        assert_eq!(split.wait(event), Completion::Failed(SplitFailure::ChannelGone));
    }
    split.close(ChannelId(1)).unwrap();
    assert!(split.connect_and_wait(address(STORAGE)).is_ok());
    let port = rig(port_config());
    let mut split = host(&port);
    listen(&mut split);
    let twice = split.listen(address(DOOR)).unwrap();
    assert_eq!(split.wait(twice), Completion::Failed(SplitFailure::ChannelGone));
}

#[test]
fn peers_that_stand_still_amidst_a_message_are_ended() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let (slow, idle) = (accept(&port, &mut split, listener, VM), accept(&port, &mut split, listener, OTHER));
    say(&port, VM, &message(1, &[1; 1000])[..500]);
    settle(&port, &mut split);
    assert_eq!(blocks_out(&port), 1);
    port.borrow_mut().pass(STALL / 2);
    say(&port, VM, &[1]);
    settle(&port, &mut split);
    port.borrow_mut().pass(STALL / 2);
    settle(&port, &mut split);
    assert_eq!(blocks_out(&port), 1, "it goes on");
    port.borrow_mut().pass(STALL);
    settle(&port, &mut split);
    assert_eq!(blocks_out(&port), 0);
    split.poll();
    assert_eq!(split.mixed_recv(Incoming::Of(slow), 1), Err(PostError::Channel(slow)));
    assert!(split.mixed_recv(Incoming::Of(idle), 1).is_ok(), "who says nothing owes nothing");
}

fn register(number: u8) -> Register {
    Register::new(number).unwrap()
}

/// One plan for a message: compressed, sent to all, answered.
fn write_plan() -> Plan {
    Plan::new(vec![
        Step::Compress { from: Register::PAYLOAD, into: register(2), otherwise: Otherwise::Copy },
        Step::Send { payload: Some(register(2)) },
        Step::Merge { answers: Answers::All },
        Step::Answer { payload: None },
    ])
    .unwrap()
}

#[test]
fn one_plan_does_it_all() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    let stores = [1, 2, 3].map(|store| split.connect_and_wait(address(store)).unwrap());
    let write = split.define(&write_plan(), USER_LEN, 0).unwrap();
    for (tag, block) in [compressible(20_000), filler(3, 20_000)].iter().enumerate() {
        say(&port, VM, &message(tag as u64, block));
        let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
        let (_, payload, _) = received(split.wait(event));
        let header: [u8; HEADER_LEN] = message(0, &[])[..].try_into().unwrap();
        let event = split.post(write, Some(&payload), 1, Slot(0), &arguments(&stores, &header)).unwrap();
        settle(&port, &mut split);
        for store in 1..=3 {
            let [(asked, bytes)] = &heard(&port, store)[..] else { panic!() };
            let is_packed = asked.flags & PACKED != 0;
            assert_eq!((is_packed, asked.rest), (tag == 0, [3; 40]));
            let stored = if is_packed { unpacked(bytes, block.len()) } else { bytes.clone() };
            assert_eq!(stored, *block);
            assert!(heard(&port, VM).is_empty(), "it is answered when all have it");
            say(&port, store, &reply_to(asked, 0, &[]));
        }
        let Completion::Plan { pieces, reply } = split.wait(event) else { panic!() };
        assert_eq!((pieces.len(), reply.len()), (1, HEADER_LEN));
        settle(&port, &mut split);
        let [(answer, _)] = &heard(&port, VM)[..] else { panic!() };
        assert_eq!((answer.tag, answer.kind, answer.status), (tag as u64, 1 | REPLY, 0));
    }
    settle(&port, &mut split);
    assert_eq!((blocks_out(&port), port.borrow().card.counts().messages), (0, GRANTED as usize));
}

#[test]
fn pieces_of_a_long_payload_say_which_they_are() {
    let memory = vec![(256 << 10, 2)];
    let port = rig(PortConfig {
        payload_max: 256 << 10,
        intake: Some(IntakeConfig { memory, stall: STALL, ..IntakeConfig::default() }),
        ..port_config()
    });
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    let store = split.connect_and_wait(address(STORAGE)).unwrap();
    let plan = Plan::new(vec![
        Step::Each,
        Step::Send { payload: Some(Register::PAYLOAD) },
        Step::Merge { answers: Answers::All },
        Step::EndEach,
        Step::Answer { payload: None },
    ]);
    let write = split.define(&plan.unwrap(), USER_LEN, 0).unwrap();
    let block = filler(9, 150_000);
    say(&port, VM, &message(5, &block));
    let event = split.mixed_recv(Incoming::Of(from), 256 << 10).unwrap();
    let (_, payload, _) = received(split.wait(event));
    let header: [u8; HEADER_LEN] = message(0, &[])[..].try_into().unwrap();
    let event = split.post(write, Some(&payload), 0, Slot(0), &arguments(&[store], &header)).unwrap();
    settle(&port, &mut split);
    let mut all = heard(&port, STORAGE);
    all.sort_by_key(|(asked, _)| asked.status);
    assert_eq!(all.iter().map(|(asked, _)| asked.status).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(all.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>(), block);
    all.iter().for_each(|(asked, _)| say(&port, STORAGE, &reply_to(asked, 0, &[])));
    let Completion::Plan { pieces, .. } = split.wait(event) else { panic!() };
    assert_eq!(pieces.len(), 3);
}

#[test]
fn memory_has_what_was_written_there_and_no_more() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    let store = split.connect_and_wait(address(STORAGE)).unwrap();
    let memory = split.card_memory(1000).unwrap();
    let header: [u8; HEADER_LEN] = message(0, &[])[..].try_into().unwrap();
    let refused = Completion::Failed(SplitFailure::Plan(CompletionStatus::Refused));
    let event = split.mixed_send(store, &header, memory.range(0..1)).unwrap();
    settle(&port, &mut split);
    assert_eq!(split.take(event), Some(refused), "nothing is written there");
    say(&port, VM, &message(1, &filler(1, 5000)));
    let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
    let (_, payload, _) = received(split.wait(event));
    let task = |into| CardTask::Compress { effort: Effort::DEFAULT, from: payload.all(), into };
    let event = split.engine(task(&memory)).unwrap();
    assert_eq!(split.wait(event), Completion::Failed(SplitFailure::Engine), "it does not shrink");
    let event = split.mixed_send(store, &header, memory.range(0..1)).unwrap();
    settle(&port, &mut split);
    let refused = Completion::Failed(SplitFailure::Plan(CompletionStatus::Refused));
    assert_eq!(split.take(event), Some(refused), "nor is it now");
    assert!(split.card_memory(65 << 10).is_err());
    let rest: Vec<_> = (1..GRANTED).map(|_| split.card_memory(1).unwrap()).collect();
    assert_eq!(split.card_memory(1).err(), Some(NoMemory(1)));
    drop(rest);
    settle(&port, &mut split);
    assert!(split.card_memory(1).is_ok(), "what goes back is granted anew");
}

#[test]
fn what_a_host_has_written_leaves_room_to_write_more() {
    // It is granted more pieces than there are blocks for records, and there is no other memory.
    let few = PortConfig {
        records: 5,
        memory: Vec::new(),
        granted: vec![(32 << 10, 1), (8 << 10, 16)],
        ..port_config()
    };
    let port = rig(few);
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    let pieces: Vec<_> = std::iter::from_fn(|| split.card_memory(1).ok()).collect();
    assert_eq!(pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(), [8 << 10, 32 << 10]);
    // About 10 KiB of it do not shrink.
    let block = [filler(1, 10_000), compressible(50_000)].concat();
    say(&port, VM, &message(1, &block));
    let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
    let (_, payload, _) = received(split.wait(event));
    for _ in 0..20 {
        for piece in &pieces {
            let task = CardTask::Compress { effort: Effort::DEFAULT, from: payload.all(), into: piece };
            let event = split.engine(task).unwrap();
            (0..3).for_each(|_| settle(&port, &mut split));
            match split.take(event).unwrap() {
                Completion::Engine(len) => assert!(piece.len() == 32 << 10 && piece.range(0..len).is_some()),
                other => {
                    assert_eq!(other, Completion::Failed(SplitFailure::Engine), "there is no room for it");
                    assert_eq!(piece.len(), 8 << 10);
                }
            }
        }
    }
}

#[test]
fn a_message_without_payload_is_sent_on_as_others() {
    let port = rig(port_config());
    let mut split = host(&port);
    let listener = listen(&mut split);
    let from = accept(&port, &mut split, listener, VM);
    let store = split.connect_and_wait(address(STORAGE)).unwrap();
    let write = split.define(&write_plan(), USER_LEN, 0).unwrap();
    let header: [u8; HEADER_LEN] = message(0, &[])[..].try_into().unwrap();
    for by_plan in [false, true] {
        say(&port, VM, &message(1, &[]));
        let event = split.mixed_recv(Incoming::Of(from), 64 << 10).unwrap();
        let (_, payload, _) = received(split.wait(event));
        let event = if by_plan {
            split.post(write, Some(&payload), 1, Slot(0), &arguments(&[store], &header)).unwrap()
        } else {
            split.mixed_send(store, &header, Some(payload.all())).unwrap()
        };
        settle(&port, &mut split);
        let [(asked, bytes)] = &heard(&port, STORAGE)[..] else { panic!() };
        assert_eq!((asked.payload_len, asked.flags & PACKED, bytes.len()), (0, 0, 0));
        say(&port, STORAGE, &reply_to(asked, 0, &[]));
        let went_well = match split.wait(event) {
            Completion::Sent => !by_plan,
            Completion::Plan { .. } => by_plan,
            _ => false,
        };
        assert!(went_well);
    }
}

/// What a host posts that keeps to nothing, after it was told of a message and granted memory.
fn is_closed_by(tell: impl Fn(&mut Rig<NoFront, SplitDialect>, &[Memory], Handle)) -> bool {
    let port = rig(port_config());
    let mut rig = port.borrow_mut();
    rig.open(64 << 10);
    rig.credit = 4;
    rig.say(kind::HELLO, &card_rig::hello());
    rig.run();
    let listen = |number| ob_split::wire::Channel {
        channel: ChannelId(number),
        what: ob_split::wire::ChannelWhat::Listen,
        address: Some(address(DOOR)),
    };
    rig.say(kind::CHANNEL, &listen(1));
    rig.run();
    assert_eq!(rig.heard.channels.pop().unwrap().state, ChannelState::Listening);
    rig.card.net_mut().arrive(DOOR, VM);
    rig.run();
    rig.card.net_mut().say(VM, &message(1, &compressible(3000)));
    rig.run();
    let handle = rig.heard.headers.pop().unwrap().descriptor().handle;
    let memory = std::mem::take(&mut rig.heard.memory);
    assert_eq!(memory.len(), GRANTED as usize);
    tell(&mut rig, &memory, handle);
    rig.run();
    rig.closed.is_some()
}

#[test]
fn a_host_that_keeps_to_nothing_has_its_group_closed() {
    let back = |rig: &mut Rig<NoFront, SplitDialect>, handle, length| {
        rig.say(kind::MEMORY, &Memory { handle, length });
    };
    let compress = |rig: &mut Rig<NoFront, SplitDialect>, from: Handle, into: u32| {
        let plan = vec![Step::Compress {
            from: Register::PAYLOAD,
            into: Register::ANSWER,
            otherwise: Otherwise::Fail,
        }];
        rig.define(&Definition::new(PlanId(254), Plan::new(plan).unwrap(), 24, 0).unwrap());
        let words = [0, 3000, into, 0].map(u32::to_le_bytes).concat();
        rig.post(PlanId(254), 1, 0, from, &words);
    };
    assert!(!is_closed_by(|rig, memory, handle| {
        back(rig, handle, 3000);
        back(rig, memory[0].handle, memory[0].length);
    }));
    assert!(!is_closed_by(|rig, memory, handle| compress(rig, handle, memory[0].handle.0)));
    assert!(is_closed_by(|rig, _, handle| back(rig, handle, 2999)), "it was longer");
    assert!(is_closed_by(|rig, _, handle| (0..2).for_each(|_| back(rig, handle, 3000))), "twice");
    assert!(is_closed_by(|rig, _, _| back(rig, Handle(77), 0)));
    assert!(is_closed_by(|rig, _, handle| compress(rig, handle, handle.0)), "into itself");
    assert!(is_closed_by(|rig, _, handle| compress(rig, handle, 9999)));
    assert!(is_closed_by(|rig, _, _| compress(rig, Handle::of_host(1), 1)));
    assert!(is_closed_by(|rig, memory, _| {
        rig.define(
            &Definition::new(PlanId(1), Plan::new(vec![Step::Answer { payload: None }]).unwrap(), 8, 0)
                .unwrap(),
        );
        rig.post(PlanId(1), 0, 0, memory[0].handle, &[]);
    }));
}

#[derive(Clone, Debug)]
enum Deed {
    /// A message, whole and right.
    Good(usize),
    /// One that is longer than may be.
    Long,
    /// A reply that nobody has asked for.
    Stray,
    /// A header with one byte of it changed.
    Wrong(usize, u8),
    /// Any bytes.
    Noise(Vec<u8>),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        6 => prop_oneof![Just(0usize), 1usize..5000, Just(60_000usize)].prop_map(Deed::Good),
        1 => Just(Deed::Long),
        1 => Just(Deed::Stray),
        1 => (0usize..HEADER_LEN, 1u8..).prop_map(|(at, by)| Deed::Wrong(at, by)),
        1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Deed::Noise),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever peers send, and however it is cut: what is a message comes whole and in order up to the first thing that is none, nothing
    /// else comes, and all memory is back when they are gone.
    #[test]
    fn hostile_peers_are_heard_up_to_what_is_no_message(
        deeds in prop::collection::vec(prop::collection::vec(deed(), 1..8), 1..4),
        cuts in prop::collection::vec(1usize..3000, 1..8),
    ) {
        let port = rig(port_config());
        let mut split = host(&port);
        let listener = listen(&mut split);
        let mut cuts = cuts.iter().cycle();
        let mut wanted = Vec::new();
        let mut unsent = Vec::new();
        for (number, deeds) in deeds.iter().enumerate() {
            let channel = accept(&port, &mut split, listener, VM + number as u16);
            let (mut bytes, mut tags) = (Vec::new(), Vec::new());
            let mut is_right = true;
            for (tag, deed) in deeds.iter().enumerate() {
                match deed {
                    Deed::Good(len) => {
                        bytes.extend(message(tag as u64, &filler(tag as u8, *len)));
                        tags.extend(is_right.then_some((tag as u64, *len as u32)));
                    }
                    Deed::Long => bytes.extend(message(tag as u64, &vec![0; 70_000])),
                    Deed::Stray => {
                        bytes.extend(ANSWER(tag as u64 + 77));
                        is_right = false;
                    }
                    Deed::Wrong(at, by) => {
                        let mut header = message(tag as u64, &[]);
                        header[*at] ^= by;
                        bytes.extend(header);
                        is_right = false;
                    }
                    Deed::Noise(noise) => {
                        bytes.extend(noise);
                        is_right = is_right && noise.is_empty();
                    }
                }
            }
            wanted.push((u32::from(channel.0), tags));
            unsent.push((VM + number as u16, bytes));
        }
        let mut events: Vec<_> = (0..6).map(|_| split.mixed_recv(Incoming::Any, 64 << 10).unwrap()).collect();
        let mut found: Vec<(u32, Vec<(u64, u32)>)> =
            wanted.iter().map(|(channel, _)| (*channel, Vec::new())).collect();
        let mut idle = 0;
        while idle < 3 {
            idle += 1;
            for (peer, bytes) in &mut unsent {
                let count = (*cuts.next().unwrap()).min(bytes.len());
                let is_open = port.borrow_mut().card.net_mut().pipes.values().any(|pipe| pipe.port == *peer && !pipe.is_closed);
                if count > 0 && is_open {
                    idle = 0;
                    let now: Vec<u8> = bytes.drain(..count).collect();
                    say(&port, *peer, &now);
                }
            }
            settle(&port, &mut split);
            let mut again = Vec::new();
            for event in &events {
                let Some(completion) = split.take(*event) else { again.push(*event); continue };
                idle = 0;
                let Completion::Received { from, header, len, .. } = completion else { panic!("{completion:?}") };
                let tag = u64::from_le_bytes(header[8..16].try_into().unwrap());
                found.iter_mut().find(|(channel, _)| *channel == from).unwrap().1.push((tag, len));
                again.push(split.mixed_recv(Incoming::Any, 64 << 10).unwrap());
            }
            again.sort();
            events = again;
            prop_assert!(port.borrow().closed.is_none());
        }
        prop_assert_eq!(found, wanted);
        for (peer, _) in unsent {
            let is_open = port.borrow_mut().card.net_mut().pipes.values().any(|pipe| pipe.port == peer && !pipe.is_closed);
            if is_open {
                port.borrow_mut().card.net_mut().cut(peer);
            }
        }
        settle(&port, &mut split);
        prop_assert_eq!(blocks_out(&port), 0);
    }
}
