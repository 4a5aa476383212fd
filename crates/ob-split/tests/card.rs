//! The card's half of a port: writes to several peers, reads from one after the other, calls, and what hosts and peers do that they
//! should not.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use card_rig::{
    ANSWER, BULK, PACK, PATIENCE, RECORD, Rig, Run, Said, WRITE, ask, config, filler, hello, reply_to,
    request, set,
};
use ob_ring::RingError;
use ob_split::card::PortConfig;
use ob_split::wire::{
    Channel, ChannelId, ChannelState, ChannelWhat, CompletionStatus, Gate, Handle, Hello, Memory, SetWhat,
    kind,
};

const KIB: usize = 1024;

/// The payload of an append, checked: where it goes, its bytes, whether they are packed.
fn record(payload: &[u8]) -> (u32, Vec<u8>, bool) {
    let word = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
    let (offset, crc, is_packed) = (word(0), word(4), payload[8] == 1);
    let bytes = &payload[RECORD..RECORD + word(9) as usize];
    assert_eq!(crc32c::crc32c(bytes), crc, "the checksum is that of the bytes");
    assert!(payload[RECORD + bytes.len()..].iter().all(|byte| *byte == 0));
    assert!(payload.len().is_multiple_of(64));
    (offset, bytes.to_vec(), is_packed)
}

#[test]
fn a_write_goes_to_three_channels_and_is_answered_once_after_all_three() {
    let mut rig = Rig::with_peers();
    let bytes = filler(1, 4 * KIB);
    let (key, handle) = rig.arrived(&bytes, 0);
    let descriptor = rig.heard.headers[0].descriptor();
    assert_eq!((descriptor.length, descriptor.front, descriptor.was_parked), (4 * KIB as u32, 7, false));
    assert!(rig.heard.headers[0].bytes().starts_with(&[key.0 as u8; 24]));
    rig.write(handle);
    rig.run();
    let mut asked = Vec::new();
    for port in 1..=3 {
        let heard = rig.card.net_mut().heard(port);
        let [(header, payload)] = &heard[..] else { panic!("{} messages", heard.len()) };
        assert_eq!((header.kind, record(payload)), (ask::APPEND, (64, bytes.clone(), false)));
        asked.push(*header);
    }
    for (port, header) in (1..=3).zip(&asked) {
        assert_eq!((rig.done(), rig.answers()), (vec![], vec![]), "not before all have it");
        rig.card.net_mut().say(port, &reply_to(header, 0, &[]));
        rig.run();
    }
    let done = rig.done();
    let [(completion, None)] = &done[..] else { panic!("{done:?}") };
    assert_eq!((completion.handle, completion.status), (handle, CompletionStatus::Good));
    assert_eq!((completion.offset, completion.word), (64, crc32c::crc32c(&bytes)));
    assert_eq!(rig.answers(), [(key, Said::Status(0))]);
    rig.assert_empty();
}

#[test]
fn a_write_of_a_mebibyte_is_sixteen_records_and_one_answer() {
    let mut rig = Rig::with_peers();
    let bytes = filler(2, 1 << 20);
    let (key, handle) = rig.arrived(&bytes, 0);
    rig.write(handle);
    rig.run();
    let heard = rig.card.net_mut().heard(2);
    assert_eq!(heard.len(), 16);
    for (at, (header, payload)) in heard.iter().enumerate() {
        let piece = &bytes[at * 64 * KIB..(at + 1) * 64 * KIB];
        assert_eq!(record(payload), (64 + at as u32 * 1025, piece.to_vec(), false));
        rig.card.net_mut().say(2, &reply_to(header, 0, &[]));
    }
    rig.run();
    assert_eq!(rig.answers(), []);
    rig.all_say(0);
    let done = rig.done();
    assert_eq!(done.len(), 16);
    for (at, (completion, _)) in done.iter().enumerate() {
        assert_eq!((completion.has_more, completion.offset), (at < 15, 64 + at as u32 * 1025));
    }
    assert_eq!(rig.answers(), [(key, Said::Status(0))]);
    rig.assert_empty();
}

#[test]
fn a_member_that_fails_is_named_and_nobody_is_answered() {
    for how in 0..4 {
        let mut rig = Rig::with_peers();
        let (_, handle) = rig.arrived(&filler(3, 4 * KIB), 0);
        if how == 3 {
            rig.card.net_mut().cut(2);
            rig.run();
        }
        rig.write(handle);
        rig.run();
        rig.peer_says(1, 0);
        rig.peer_says(3, 0);
        rig.run();
        match how {
            0 => _ = rig.peer_says(2, 4),
            1 => rig.card.net_mut().cut(2),
            2 => rig.pass(PATIENCE),
            _ => {}
        }
        rig.run();
        let done = rig.done();
        let [(completion, None)] = &done[..] else { panic!("{how}: {done:?}") };
        assert_eq!((completion.status, completion.bad_members), (CompletionStatus::Broken, 0b010), "{how}");
        assert_eq!(completion.word, 6, "the merge has failed");
        assert_eq!((rig.answers(), rig.heard.broken.len()), (vec![], 1), "{how}");
        assert_eq!(rig.card.counts().blocks_out, 0, "{how}");
        // It stays on the card for another plan.
        rig.post(ANSWER, 0, 0x82, handle, &[]);
        rig.run();
        assert_eq!(rig.answers().len(), 1);
        rig.assert_empty();
        assert!(rig.closed.is_none());
    }
}

#[test]
fn the_completion_is_delivered_before_the_answer_leaves() {
    let mut rig = Rig::with_peers();
    let (key, handle) = rig.arrived(&filler(4, 512), 0);
    rig.write(handle);
    rig.run();
    rig.holds_completions = true;
    for port in 1..=3 {
        rig.peer_says(port, 0);
    }
    for _ in 0..10 {
        rig.turn();
    }
    assert_eq!(rig.answers(), [], "nobody knows yet that the host can see it");
    rig.holds_completions = false;
    rig.run();
    assert_eq!((rig.answers(), rig.done().len()), (vec![(key, Said::Status(0))], 1));
    rig.assert_empty();
}

#[test]
fn what_shrinks_is_sent_compressed_and_what_does_not_as_it_is() {
    let mut rig = Rig::with_peers();
    for (bytes, is_packed) in [(vec![7; 64 * KIB], true), (filler(5, 64 * KIB), false)] {
        let (_, handle) = rig.arrived(&bytes, 0);
        rig.post(PACK, 2, 1, handle, &[0; 8]);
        rig.run();
        let heard = rig.card.net_mut().heard(1);
        let (_, sent, was_packed) = record(&heard[0].1);
        assert_eq!((was_packed, sent.len() < bytes.len()), (is_packed, is_packed));
        if !is_packed {
            assert_eq!(sent, bytes);
        }
        rig.card.net_mut().say(1, &reply_to(&heard[0].0, 0, &[]));
        rig.all_say(0);
        assert_eq!(rig.answers().len(), 1);
    }
    rig.assert_empty();
}

#[test]
fn a_read_comes_from_one_channel_and_falls_over_to_the_next() {
    let bytes = filler(6, 8 * KIB);
    for fails in 0..4 {
        let mut rig = Rig::with_peers();
        let (key, handle) = rig.arrived(&[], 12 * KIB);
        let (first, zeros) = (
            Run { slot: 1, from: 640, len: 8 * KIB as u32, into: 0 },
            Run { slot: u16::MAX, from: 0, len: 4096, into: 8192 },
        );
        rig.read(handle, &[first, zeros]);
        rig.run();
        let heard = rig.card.net_mut().heard(1);
        assert_eq!((heard.len(), heard[0].0.kind, heard[0].0.rest[0]), (1, ask::READ, 128));
        match fails {
            0 => rig.card.net_mut().say(1, &reply_to(&heard[0].0, 7, &[])),
            1 => rig.card.net_mut().cut(1),
            2 => rig.pass(PATIENCE),
            // In the middle of its payload.
            _ => {
                let reply = reply_to(&heard[0].0, 0, &filler(7, 8 * KIB));
                rig.card.net_mut().say(1, &reply[..5000]);
                rig.run();
                rig.pass(PATIENCE);
            }
        }
        rig.run();
        let second = rig.card.net_mut().heard(2);
        assert_eq!(second.len(), 1, "{fails}");
        if fails == 3 {
            // What comes too late is read away.
            rig.card.net_mut().say(1, &filler(8, 8 * KIB + 64 - 5000));
            rig.run();
        }
        // In pieces, as they come.
        for part in reply_to(&second[0].0, 0, &bytes).chunks(1000) {
            rig.card.net_mut().say(2, part);
            rig.run();
        }
        let answers = rig.answers();
        let [(answered, Said::Bytes(answer))] = &answers[..] else { panic!("{fails}: {answers:?}") };
        assert_eq!((*answered, &answer[..8 * KIB]), (key, &bytes[..]));
        assert!(answer[8 * KIB..].iter().all(|byte| *byte == 0) && answer.len() == 12 * KIB);
        let done = rig.done();
        assert_eq!((done.len(), done[0].0.status), (1, CompletionStatus::Good));
        rig.assert_empty();
    }
}

#[test]
fn a_read_that_no_channel_gives_is_told_and_not_answered() {
    let mut rig = Rig::with_peers();
    let (_, handle) = rig.arrived(&[], 4 * KIB);
    let run = Run { slot: 1, from: 64, len: 4 * KIB as u32, into: 0 };
    rig.read(handle, &[run]);
    for port in 1..=3 {
        rig.run();
        assert_eq!(rig.peer_says(port, 8), 1);
    }
    rig.run();
    assert_eq!(rig.done()[0].0.status, CompletionStatus::NoMember);
    // Shorter than what was to be had is wrong, and the member is named.
    rig.read(handle, &[run]);
    for port in 1..=3 {
        rig.run();
        let heard = rig.card.net_mut().heard(port);
        rig.card.net_mut().say(port, &reply_to(&heard[0].0, 0, &[1; 1000]));
    }
    rig.run();
    let completion = rig.done()[0].0;
    assert_eq!((completion.status, completion.bad_members), (CompletionStatus::NotVerified, 0b111));
    // An answer with bytes that nobody has written is none.
    rig.read(handle, &[]);
    rig.run();
    assert_eq!((rig.done()[0].0.status, rig.answers()), (CompletionStatus::Refused, vec![]));
    rig.post(ANSWER, 0, 1, handle, &[]);
    rig.run();
    assert_eq!(rig.answers().len(), 1);
    rig.assert_empty();
}

#[test]
fn what_was_compressed_is_decoded_into_the_answer_and_hostile_bytes_are_not() {
    let bytes = [vec![3; 30 * KIB], filler(9, 2 * KIB)].concat();
    let mut rig = Rig::with_peers();
    rig.card.dialect_mut().is_packed = true;
    let (_, handle) = rig.arrived(&bytes, 0);
    rig.post(PACK, 2, 1, handle, &[0; 8]);
    rig.run();
    let (header, payload) = rig.card.net_mut().heard(1).remove(0);
    let (_, packed, was_packed) = record(&payload);
    assert!(was_packed);
    rig.card.net_mut().say(1, &reply_to(&header, 0, &[]));
    rig.all_say(0);
    assert_eq!((rig.done().len(), rig.answers().len()), (1, 1));
    // As many as so many members give what cannot be decoded: another one is asked then.
    for hostile in 0..4 {
        let (_, handle) = rig.arrived(&[], bytes.len());
        rig.read(handle, &[Run { slot: 1, from: 64, len: bytes.len() as u32, into: 0 }]);
        for member in 1..=3 {
            rig.run();
            let Some((header, _)) = rig.card.net_mut().heard(member).pop() else { break };
            let is_hostile = member <= hostile;
            let sent = if is_hostile { &filler(10, packed.len())[..] } else { &packed[..] };
            rig.card.net_mut().say(member, &reply_to(&header, 0, sent));
        }
        rig.run();
        let completion = rig.done()[0].0;
        let answers = rig.answers();
        assert_eq!(completion.bad_members, (1 << hostile) - 1);
        if hostile == 3 {
            assert_eq!((completion.status, answers), (CompletionStatus::NotVerified, vec![]));
        } else {
            assert_eq!(completion.status, CompletionStatus::Good);
            assert_eq!(answers[0].1, Said::Bytes(bytes.clone()));
        }
    }
}

#[test]
fn a_call_brings_the_reply_whatever_it_says() {
    let mut rig = Rig::with_host();
    rig.connect(&[9]);
    assert_eq!(rig.heard.channels.last().unwrap().state, ChannelState::Up);
    for (status, len) in [(0, 36), (5, 0), (0, 1024)] {
        let handle = Handle::of_host(77);
        rig.call(9, handle, request(ask::HELLO), &[5; 36]);
        rig.run();
        let heard = rig.card.net_mut().heard(9);
        assert_eq!((heard.len(), heard[0].0.kind, &heard[0].1[..]), (1, ask::HELLO, &[5; 36][..]));
        let (payload, header) = (filler(11, len), heard[0].0);
        let reply = reply_to(&header, status, &payload);
        rig.card.net_mut().say(9, &reply);
        rig.run();
        let done = rig.done();
        let [(completion, Some(bytes))] = &done[..] else { panic!("{done:?}") };
        assert_eq!((completion.handle, completion.status), (handle, CompletionStatus::Good));
        assert_eq!((completion.offset as usize, bytes), (len, &reply));
    }
    // Nobody there, and nobody who answers.
    rig.call(9, Handle::of_host(1), request(ask::HELLO), &[]);
    rig.run();
    rig.pass(PATIENCE);
    rig.run();
    rig.call(8, Handle::of_host(2), request(ask::HELLO), &[]);
    rig.run();
    let done = rig.done();
    assert!(done.iter().all(|(done, reply)| done.status == CompletionStatus::NoMember && reply.is_none()));
    assert_eq!(done.len(), 2);
    rig.assert_empty();
}

#[test]
fn a_peer_that_sends_garbage_ends_its_channel_only() {
    for how in 0..6 {
        let mut rig = Rig::with_peers();
        let (_, handle) = rig.arrived(&filler(12, 4 * KIB), 0);
        rig.write(handle);
        rig.run();
        let header = rig.card.net_mut().heard(2)[0].0;
        let garbage = match how {
            0 => vec![0xaa; 200],
            // Of another request, twice, no reply, with more than was asked for, and changed on its way.
            1 => reply_to(&ob_split::wire::Header { tag: header.tag + 1000, ..header }, 0, &[]),
            2 => [reply_to(&header, 0, &[]), reply_to(&header, 0, &[])].concat(),
            3 => header.encode().to_vec(),
            4 => reply_to(&header, 0, &[0; 1]),
            _ => {
                let mut bytes = reply_to(&header, 0, &[]);
                bytes[50] ^= 1;
                bytes
            }
        };
        rig.card.net_mut().say(2, &garbage);
        rig.run();
        let gone = rig.heard.channels.last().unwrap();
        assert_eq!((gone.channel, gone.state), (ChannelId(2), ChannelState::Gone), "{how}");
        assert_eq!(rig.card.dialect_mut().gone, [ChannelId(2)]);
        rig.peer_says(1, 0);
        rig.peer_says(3, 0);
        rig.run();
        let status = if how == 2 { CompletionStatus::Good } else { CompletionStatus::Broken };
        assert_eq!((rig.done()[0].0.status, rig.answers().len()), (status, usize::from(how == 2)));
        assert!(rig.closed.is_none() && rig.card.counts().blocks_out == 0);
        // It can be made again under its number.
        rig.connect(&[2]);
        assert_eq!(rig.heard.channels.last().unwrap().state, ChannelState::Up);
    }
}

#[test]
fn a_reply_to_what_was_not_sent_yet_is_garbage() {
    let mut rig = Rig::with_peers();
    rig.card.net_mut().widen(2, 100);
    let (_, handle) = rig.arrived(&filler(13, 4 * KIB), 0);
    rig.write(handle);
    rig.run();
    let tag = rig.card.net_mut().heard(1)[0].0.tag + 1;
    rig.card.net_mut().say(2, &reply_to(&ob_split::wire::Header { tag, ..request(ask::APPEND) }, 0, &[]));
    rig.run();
    assert_eq!(rig.heard.channels.last().unwrap().state, ChannelState::Gone);
}

#[test]
fn a_peer_that_takes_nothing_keeps_no_memory_longer_than_it_is_waited_for() {
    let mut rig = Rig::with_peers();
    rig.card.net_mut().widen(2, 100);
    for seed in 0..4 {
        let (_, handle) = rig.arrived(&filler(seed, 4 * KIB), 0);
        rig.write(handle);
    }
    rig.run();
    rig.all_say(0);
    assert_eq!(rig.done().len(), 0);
    rig.pass(PATIENCE);
    rig.run();
    assert!(rig.done().iter().all(|(done, _)| done.status == CompletionStatus::Broken));
    // One is on its way, in part.
    assert_eq!(rig.card.counts().blocks_out, 2);
    rig.card.net_mut().widen(2, 1 << 20);
    rig.run();
    assert_eq!(rig.card.counts().blocks_out, 0);
    assert_eq!(rig.card.net_mut().heard(2).len(), 1);
    assert!(rig.card.next_due().is_none());
}

#[test]
fn requests_beyond_the_window_wait() {
    let config = PortConfig { requests_max: 2, ..config() };
    let mut rig = Rig::new(config);
    rig.attach();
    rig.connect(&[1]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1]));
    for seed in 0..5 {
        let (_, handle) = rig.arrived(&filler(seed, 512), 0);
        rig.write(handle);
    }
    rig.run();
    let mut offsets = Vec::new();
    for wanted in [2, 2, 1, 0] {
        let heard = rig.card.net_mut().heard(1);
        assert_eq!(heard.len(), wanted);
        for (header, payload) in heard {
            offsets.push(record(&payload).0);
            rig.card.net_mut().say(1, &reply_to(&header, 0, &[]));
        }
        rig.run();
    }
    assert!(offsets.is_sorted());
    assert_eq!(rig.answers().len(), 5);
    rig.assert_empty();
}

#[test]
fn plans_wait_in_line_for_memory_and_one_that_could_never_have_it_is_refused() {
    let memory = vec![(64 << 10, 2)];
    let mut rig = Rig::new(PortConfig { memory, ..config() });
    rig.attach();
    rig.connect(&[1]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1]));
    let handles: Vec<_> = (0..5).map(|seed| rig.arrived(&filler(seed, 64 * KIB), 0).1).collect();
    handles.iter().for_each(|handle| rig.write(*handle));
    rig.run();
    for wanted in [2, 2, 1] {
        assert_eq!((rig.card.counts().blocks_out, rig.peer_says(1, 0)), (wanted, wanted));
        rig.run();
    }
    assert_eq!(rig.answers().len(), 5);
    let (_, handle) = rig.arrived(&filler(6, 192 * KIB), 0);
    rig.write(handle);
    rig.run();
    let done = rig.done();
    assert_eq!(done.last().unwrap().0.status, CompletionStatus::Refused);
    assert_eq!((rig.card.counts().plans, rig.card.counts().blocks_out), (0, 0));
}

#[test]
fn nothing_is_taken_that_was_not_granted() {
    let mut rig = Rig::with_host();
    for seed in 0..40 {
        rig.arrive(&[seed; 10], 0);
    }
    rig.run();
    assert_eq!((rig.heard.headers.len(), rig.card.front_mut().inbox.len()), (16, 24));
    rig.grant(3);
    rig.run();
    assert_eq!((rig.heard.headers.len(), rig.heard.messages < 12), (19, true), "few messages for many");
    let handles: Vec<_> = rig.heard.headers.iter().map(|header| header.descriptor().handle).collect();
    handles.iter().for_each(|handle| rig.post(ANSWER, 0, 0, *handle, &[]));
    rig.run();
    assert_eq!((rig.answers().len(), rig.done().len()), (19, 19));
    assert_eq!(rig.heard.headers.len(), 19, "an answer grants nothing");
}

#[test]
fn a_host_that_does_not_look_gets_no_more_than_its_ring_holds_and_loses_nothing() {
    let mut rig = Rig::new(PortConfig { handles_max: 1000, ..config() });
    rig.open(16 << 10);
    rig.credit = 1000;
    rig.is_deaf = true;
    rig.say(kind::HELLO, &hello());
    (0..1000).for_each(|_| _ = rig.arrive(&[], 0));
    rig.run();
    assert_eq!(rig.card.counts().messages, 1000);
    rig.is_deaf = false;
    rig.run();
    assert!(rig.closed.is_none(), "{:?}", rig.closed);
    assert_eq!((rig.heard.welcome.len(), rig.heard.headers.len()), (1, 1000));
    let handles: Vec<_> = rig.heard.headers.iter().map(|header| header.descriptor().handle.0).collect();
    assert!(handles.is_sorted(), "in their order");
    // A ring that has no room for the longest message is of no use.
    let mut rig = Rig::new(config());
    rig.open(4096);
    rig.credit = 64;
    rig.say(kind::HELLO, &hello());
    (0..64).for_each(|_| _ = rig.arrive(&[], 0));
    rig.run();
    assert_eq!(rig.closed, Some(RingError::Refused));
}

/// What a hostile host does, after a good one has begun a write.
fn hostile(what: impl FnOnce(&mut Rig, Handle)) -> Rig {
    let mut rig = Rig::with_peers();
    let (_, handle) = rig.arrived(&filler(14, 4 * KIB), 0);
    rig.write(handle);
    rig.run();
    let (_, other) = rig.arrived(&filler(15, 4 * KIB), 0);
    what(&mut rig, other);
    rig.run();
    rig
}

#[test]
fn hostile_hosts_have_their_group_closed() {
    type What = fn(&mut Rig, Handle);
    let all: &[What] = &[
        |rig, _| rig.write(Handle(0)),
        |rig, _| rig.write(Handle(u32::MAX)),
        |rig, handle| rig.write(Handle(handle.0 + (1 << 16))),
        |rig, handle| rig.post(ANSWER, 0, 0, Handle(handle.0 + 1), &[]),
        |rig, handle| rig.post(ob_split::wire::PlanId(99), 0, 0, handle, &[]),
        |rig, handle| rig.post(WRITE, 0, 2, handle, &[0; 8]),
        |rig, handle| rig.post(WRITE, 0, u16::MAX, handle, &[0; 8]),
        |rig, handle| rig.post(WRITE, 0, 1, handle, &[0; 7]),
        |rig, handle| rig.post(WRITE, 0, 1, handle, &[0; 9]),
        |rig, handle| rig.post(PACK, 5, 1, handle, &[0; 8]),
        |rig, handle| rig.read(handle, &[Run { slot: 1, from: 0, len: 1, into: 0 }]),
        |rig, handle| rig.post(card_rig::CALL, 0, 1, handle, &[0; 64]),
        |rig, _| rig.push(&[0; 3]),
        |rig, _| rig.push(&[0xff; 64]),
        |rig, _| rig.say(kind::HELLO, &hello()),
        |rig, _| rig.say(kind::SET, &set(2, SetWhat::Append, &[1, 4])),
        |rig, _| rig.say(kind::SET, &set(16, SetWhat::Append, &[1])),
        |rig, _| {
            // A plan under way names it.
            let other = set(2, SetWhat::Append, &[1]);
            rig.say(kind::SET, &ob_split::wire::Set { slot: ob_split::wire::Slot(1), ..other });
        },
        |rig, _| rig.connect(&[1]),
        |rig, _| rig.connect(&[4, 5]),
        |rig, _| {
            let what = ChannelWhat::Close;
            rig.say(kind::CHANNEL, &Channel { channel: ChannelId(30), what, address: None });
        },
        |rig, _| rig.say(kind::MEMORY, &Memory { handle: Handle(1), length: 1 }),
        |rig, _| {
            rig.credit = 1000;
            rig.say_all::<Gate>(kind::GATE, &[]);
        },
        |rig, _| {
            rig.credit = 3;
            rig.say_all::<Gate>(kind::GATE, &[]);
        },
        |rig, handle| {
            // More than may be under way.
            (0..40).for_each(|_| rig.write(handle));
        },
        |rig, handle| {
            // One answer each.
            rig.post(ANSWER, 0, 0, handle, &[]);
            rig.run();
            rig.post(ANSWER, 0, 0, handle, &[]);
        },
    ];
    for (number, what) in all.iter().enumerate() {
        let mut rig = hostile(what);
        assert_eq!(rig.closed, Some(RingError::Refused), "host {number}");
        let counts = rig.card.counts();
        assert_eq!((counts.plans, counts.blocks_out), (0, 0), "host {number}");
        // The next host finds what was not answered.
        rig.heard.headers.clear();
        rig.attach();
        assert_eq!(rig.heard.headers.len(), counts.messages, "host {number}");
        rig.answers();
        for header in std::mem::take(&mut rig.heard.headers) {
            rig.post(ANSWER, 0, 0, header.descriptor().handle, &[]);
        }
        rig.run();
        assert_eq!(rig.answers().len(), counts.messages, "host {number}");
        rig.assert_empty();
    }
}

#[test]
fn a_host_speaks_first_and_in_our_version() {
    let mut rig = Rig::new(config());
    rig.open(4096);
    rig.say(kind::SET, &set(1, SetWhat::Forget, &[]));
    rig.run();
    assert_eq!(rig.closed, Some(RingError::Refused));
    let mut rig = Rig::new(config());
    rig.open(4096);
    let mut other = Vec::new();
    ob_split::wire::Entry::encode_into(&hello(), &mut other);
    other[0] = 2;
    rig.push(&[&[kind::HELLO, 1, 0, 0, 0, 0, 0, 0][..], &other].concat());
    rig.run();
    assert_eq!(rig.heard.refused, [ob_split::wire::RefusedCode::Version]);
    assert!(rig.heard.welcome.is_empty());
    let gate = Some(ob_core::GateId(5));
    rig.say(kind::HELLO, &Hello { gate, ..hello() });
    rig.run();
    assert_eq!(rig.heard.refused[1..], [ob_split::wire::RefusedCode::GateClosed]);
    rig.say(kind::HELLO, &hello());
    rig.run();
    assert_eq!(rig.heard.welcome[0].gate, ob_core::GateId(1 << 32 | 1));
}

#[test]
fn when_the_group_ends_nobody_is_answered_and_the_next_host_is_offered_it() {
    let mut rig = Rig::with_peers();
    let (sent_key, sent) = rig.arrived(&filler(16, 4 * KIB), 0);
    let (_, unsent) = rig.arrived(&filler(17, 512), 4 * KIB);
    rig.write(sent);
    rig.run();
    // Two of three have it.
    rig.peer_says(1, 0);
    rig.peer_says(2, 0);
    rig.turn();
    let late = rig.arrive(&[1; 100], 0);
    rig.detach();
    rig.run();
    let counts = rig.card.counts();
    assert_eq!((rig.answers(), counts.plans, counts.blocks_out), (vec![], 0, 0));
    assert!(rig.card.net().pipes.values().all(|pipe| pipe.is_closed), "its channels end with it");
    rig.heard = card_rig::Heard::default();
    rig.attach();
    let offered = rig.heard.headers.iter().map(|header| header.descriptor());
    let offered: Vec<_> = offered.map(|of| (of.handle, of.was_parked, of.was_sent)).collect();
    assert_eq!(offered[..2], [(sent, true, true), (unsent, true, false)]);
    assert_eq!((offered.len(), offered[2].1), (3, false), "{late:?} comes for the first time");
    rig.connect(&[1, 2, 3]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1, 2, 3]));
    rig.write(sent);
    rig.run();
    rig.all_say(0);
    assert_eq!(rig.answers(), [(sent_key, Said::Status(0))]);
    for (handle, ..) in &offered[1..] {
        rig.post(ANSWER, 0, 0, *handle, &[]);
    }
    rig.run();
    rig.assert_empty();
}

#[test]
fn parked_messages_take_receives_as_others_do() {
    let mut rig = Rig::with_host();
    rig.grant(24);
    (0..40).for_each(|_| _ = rig.arrive(&[], 0));
    rig.run();
    assert_eq!(rig.heard.headers.len(), 40);
    rig.detach();
    rig.heard.headers.clear();
    rig.arrive(&[], 0);
    rig.attach();
    assert_eq!(rig.heard.headers.len(), 16, "as many as were granted");
    rig.grant(24);
    rig.run();
    assert!(rig.heard.headers.iter().all(|header| header.descriptor().was_parked));
    assert_eq!((rig.heard.headers.len(), rig.card.front_mut().inbox.len()), (40, 1));
    rig.grant(1);
    rig.run();
    assert_eq!((rig.heard.headers.len(), rig.card.front_mut().inbox.len()), (41, 0));
}

#[test]
fn an_answer_that_was_decided_and_not_given_is_parked_with_its_memory() {
    let mut rig = Rig::with_peers();
    let (key, handle) = rig.arrived(&[], 4 * KIB);
    rig.holds_completions = false;
    rig.read(handle, &[Run { slot: 1, from: 64, len: 4 * KIB as u32, into: 0 }]);
    rig.run();
    let header = rig.card.net_mut().heard(1)[0].0;
    rig.holds_completions = true;
    rig.card.net_mut().say(1, &reply_to(&header, 0, &filler(18, 4 * KIB)));
    (0..10).for_each(|_| _ = rig.turn());
    assert_eq!(rig.answers(), []);
    rig.detach();
    rig.holds_completions = false;
    rig.attach();
    let run = Run { slot: u16::MAX, from: 0, len: 4 * KIB as u32, into: 0 };
    rig.read(handle, &[run]);
    rig.run();
    assert_eq!(rig.answers(), [(key, Said::Bytes(vec![0; 4 * KIB]))]);
    rig.assert_empty();
}

#[test]
fn the_gate_keeps_answers_back_and_lets_them_out_when_it_is_extended() {
    let mut rig = Rig::with_peers();
    let (_, handle) = rig.arrived(&filler(19, 512), 0);
    rig.say(kind::GATE, &Gate::Prepare { number: 1 });
    rig.run();
    assert_eq!(rig.heard.noted, [1]);
    rig.write(handle);
    rig.run();
    rig.all_say(0);
    let completion = rig.done()[0].0;
    assert_eq!((completion.status, completion.offset), (CompletionStatus::Withheld, 64));
    assert_eq!(rig.answers(), []);
    rig.say(kind::GATE, &Gate::Extend { number: 1, milliseconds: 1000 });
    rig.post(ANSWER, 0, 0, handle, &[]);
    rig.run();
    assert_eq!(rig.answers().len(), 1);
    rig.assert_empty();
}

/// Whose time an extension counts from is the preparation that it names, and no later one; what refuses may leave all the same.
#[test]
fn an_extension_names_its_preparation() {
    let mut rig = Rig::with_peers();
    let (key, handle) = rig.arrived(&filler(19, 512), 0);
    rig.say(kind::GATE, &Gate::Prepare { number: 1 });
    rig.say(kind::GATE, &Gate::Prepare { number: 2 });
    rig.say(kind::GATE, &Gate::Extend { number: 1, milliseconds: 1000 });
    rig.post(ANSWER, 0, 0, handle, &[]);
    rig.run();
    assert_eq!(rig.heard.noted, [1, 2]);
    assert_eq!(rig.done()[0].0.status, CompletionStatus::Withheld);
    assert_eq!(rig.answers(), []);
    rig.post(ANSWER, 0, 7, handle, &[]);
    rig.run();
    assert_eq!(rig.answers(), [(key, Said::Status(7))]);
    rig.assert_empty();
}

#[test]
fn bytes_go_to_the_hosts_areas_and_come_from_there() {
    let mut rig = Rig::with_host();
    let bytes = filler(21, 50);
    rig.group.as_ref().unwrap().areas.copy_in(128, &bytes).unwrap();
    rig.post(BULK, 50, 2, Handle::of_host(3), &[]);
    rig.run();
    let completion = rig.done()[0].0;
    assert_eq!((completion.handle, completion.status), (Handle::of_host(3), CompletionStatus::Good));
    let mut seen = vec![0; 50];
    rig.group.as_ref().unwrap().areas.copy_out(128, &mut seen).unwrap();
    assert_eq!(seen, bytes);
    // A service that has no place for it.
    rig.post(BULK, 50, u16::MAX, Handle::of_host(4), &[]);
    rig.run();
    assert_eq!((rig.done()[0].0.status, rig.closed), (CompletionStatus::Refused, None));
    rig.assert_empty();
    // As many as the link does not take at once, and a host that goes away meanwhile.
    for number in 0..20 {
        rig.post(BULK, 50, 2, Handle::of_host(number), &[]);
    }
    rig.run();
    assert_eq!(rig.done().len(), 20);
    rig.post(BULK, 50, 2, Handle::of_host(3), &[]);
    rig.turn();
    rig.holds_completions = true;
    rig.turn();
    rig.detach();
    rig.holds_completions = false;
    rig.run();
    rig.assert_empty();
    // Beyond the area, and more than there is room for.
    for (slot, len) in [(1024, 1), (0, 65)] {
        rig.attach();
        rig.post(BULK, len, slot, Handle::of_host(5), &[]);
        rig.run();
        assert_eq!(rig.closed.take(), Some(RingError::Refused));
        rig.assert_empty();
    }
}

#[test]
fn a_message_that_is_given_back_nobody_answers() {
    let mut rig = Rig::with_host();
    let (key, handle) = rig.arrived(&[1; 100], 0);
    rig.say(kind::MEMORY, &Memory { handle, length: 100 });
    rig.run();
    assert_eq!(rig.answers(), [(key, Said::Nobody)]);
    rig.assert_empty();
}

#[test]
fn plans_that_wait_for_memory_end_with_their_host() {
    let mut rig = Rig::new(PortConfig { memory: vec![(64 << 10, 1)], ..config() });
    rig.attach();
    rig.connect(&[1]);
    rig.say(kind::SET, &set(1, SetWhat::Append, &[1]));
    for seed in 0..3 {
        let (_, handle) = rig.arrived(&filler(seed, 64 * KIB), 0);
        rig.write(handle);
    }
    rig.run();
    assert_eq!(rig.card.counts().plans, 3);
    rig.detach();
    rig.run();
    let counts = rig.card.counts();
    assert_eq!((counts.messages, counts.plans, counts.blocks_out), (3, 0, 0));
}

#[test]
fn a_channel_that_cannot_be_made_is_told() {
    let mut rig = Rig::with_host();
    rig.card.net_mut().refused.push(9);
    rig.connect(&[9]);
    let told = rig.heard.channels.last().unwrap();
    assert_eq!((told.channel, told.state), (ChannelId(9), ChannelState::Refused));
    rig.card.net_mut().refused.clear();
    rig.connect(&[9]);
    assert_eq!(rig.heard.channels.last().unwrap().state, ChannelState::Up);
}

#[test]
fn a_port_has_one_host_and_knows_its_service() {
    use ob_ring::CardService;
    let mut rig = Rig::with_host();
    let key = ob_ring::GroupKey { attachment: ob_core::AttachmentId(9), group: ob_core::GroupId(9) };
    assert!(rig.card.open(key, 4).is_err());
    rig.detach();
    assert!(rig.card.open(key, 3).is_err());
    assert!(rig.card.open(key, 4).is_ok());
}
