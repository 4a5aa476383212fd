//! What a port retains of what it has sent: what is read from it, and what never is.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use card_rig::{PACK, Rig, Run, Said, ask, config, filler, reply_to, set};
use ob_core::{ChunkId, ChunkName, Epoch};
use ob_split::card::PortConfig;
use ob_split::wire::{CompletionStatus, Handle, Set, SetWhat, Slot, kind};

const KIB: usize = 1024;

fn rig() -> Rig {
    rig_with(config())
}

fn rig_with(config: PortConfig) -> Rig {
    let mut rig = Rig::new(config);
    rig.attach();
    rig.connect(&[1, 2, 3]);
    rig.say_all(kind::SET, &[set(1, SetWhat::Append, &[1, 2, 3])]);
    rig.run();
    rig.card.dialect_mut().seeks = true;
    rig
}

fn text(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| b"the same words again and again "[(at + usize::from(seed)) % 31] ^ seed).collect()
}

/// A write that all have: where it lies.
fn write(rig: &mut Rig, bytes: &[u8], effort: u8) -> u32 {
    let (_, handle) = rig.arrived(bytes, 0);
    rig.post(PACK, effort, 1, handle, &[0; 8]);
    rig.run();
    rig.all_say(0);
    rig.credit += 1;
    let done = rig.done();
    assert_eq!((done.len(), done[0].0.status), (1, CompletionStatus::Good));
    assert_eq!(rig.answers().len(), 1);
    done[0].0.offset
}

/// Posts a read of a record; what is answered to it at once, and what peers are asked.
fn read(rig: &mut Rig, slot: u16, from: u32, len: usize) -> (Option<Said>, usize, Handle) {
    let (_, handle) = rig.arrived(&[], len);
    rig.read(handle, &[Run { slot, from, len: len as u32, into: 0 }]);
    rig.run();
    rig.credit += 1;
    let asked = (1..=3).map(|port| rig.card.net_mut().heard(port)).collect::<Vec<_>>();
    let count = asked.iter().flatten().filter(|(header, _)| header.kind == ask::READ).count();
    for (port, asked) in (1..=3).zip(&asked) {
        for (header, _) in asked {
            rig.card.net_mut().say(port, &reply_to(header, 0, &vec![0xEE; len]));
        }
    }
    let said = rig.answers().pop().map(|(_, said)| said);
    rig.run();
    rig.done();
    (said, count, handle)
}

#[test]
fn what_was_written_is_read_without_asking_anybody() {
    let mut rig = rig();
    for (effort, bytes) in [(2, text(1, 64 * KIB)), (0, filler(2, 4 * KIB)), (2, filler(3, 16 * KIB))] {
        let place = write(&mut rig, &bytes, effort);
        let (said, asked, _) = read(&mut rig, 1, place, bytes.len());
        assert_eq!((said, asked), (Some(Said::Bytes(bytes)), 0));
    }
    // What is somebody else's, and long, is not kept.
    let long = filler(4, 64 * KIB);
    let place = write(&mut rig, &long, 0);
    let (said, asked, _) = read(&mut rig, 1, place, long.len());
    assert_eq!((said, asked), (None, 1));
    rig.answers();
    let retained = rig.card.counts().retained;
    assert_eq!((retained.hits, retained.misses, retained.records), (3, 1, 3));
    rig.assert_empty();
}

#[test]
fn by_a_slot_that_is_set_to_another_chunk_nothing_of_the_first_is_read() {
    let mut rig = rig();
    let bytes = text(1, 4 * KIB);
    let place = write(&mut rig, &bytes, 2);
    let here = set(1, SetWhat::ReadOnly, &[1, 2, 3]);
    let another = |number: u32| ChunkName { chunk: ChunkId(number), ..here.chunk };
    // Another chunk, another epoch, and the same again, by this slot and by another one.
    for (to, is_it) in [
        (Set { chunk: another(9), ..here }, false),
        (Set { epoch: Epoch::new(2), ..here }, false),
        (here, true),
        (Set { slot: Slot(5), ..here }, true),
        (Set { slot: Slot(5), chunk: another(9), ..here }, false),
    ] {
        rig.say_all(kind::SET, &[to]);
        rig.run();
        let (said, asked, _) = read(&mut rig, to.slot.0, place, bytes.len());
        match is_it {
            true => assert_eq!((said, asked), (Some(Said::Bytes(bytes.clone())), 0), "{to:?}"),
            false => assert_eq!((said, asked), (None, 1), "{to:?}"),
        }
        rig.answers();
    }
    rig.assert_empty();
}

#[test]
fn the_next_host_finds_nothing_of_what_was_before() {
    let mut rig = rig();
    let bytes = text(1, 4 * KIB);
    let place = write(&mut rig, &bytes, 2);
    rig.detach();
    rig.run();
    assert_eq!((rig.card.counts().retained.records, rig.card.counts().retained.blocks), (0, 0));
    rig.attach();
    rig.connect(&[1, 2, 3]);
    rig.say_all(kind::SET, &[set(1, SetWhat::Append, &[1, 2, 3])]);
    rig.run();
    assert_eq!(read(&mut rig, 1, place, bytes.len()).1, 1);
    rig.answers();
    // What was under way when its host went is not there for the next one either.
    let (_, handle) = rig.arrived(&bytes, 0);
    rig.post(PACK, 2, 1, handle, &[0; 8]);
    rig.run();
    let heard: Vec<_> = (1..=3).map(|port| rig.card.net_mut().heard(port)).collect();
    assert!(heard.iter().all(|heard| heard.len() == 1));
    rig.detach();
    rig.attach();
    rig.run();
    assert_eq!(rig.card.counts().retained.records, 0);
}

#[test]
fn what_a_member_has_not_taken_is_not_retained() {
    for status in [0, 4] {
        let mut rig = rig();
        let bytes = text(1, 4 * KIB);
        let (_, handle) = rig.arrived(&bytes, 0);
        rig.post(PACK, 2, 1, handle, &[0; 8]);
        rig.run();
        assert_eq!(rig.card.counts().retained.records, 0, "nor before they have said anything");
        rig.peer_says(1, 0);
        rig.peer_says(2, 0);
        rig.peer_says(3, status);
        rig.run();
        assert_eq!(rig.done()[0].0.status == CompletionStatus::Good, status == 0);
        assert_eq!(rig.card.counts().retained.records, u64::from(status == 0));
    }
}

#[test]
fn what_is_not_what_it_should_be_is_forgotten_and_fetched() {
    let mut rig = rig();
    let bytes = text(1, 4 * KIB);
    let place = write(&mut rig, &bytes, 2);
    rig.card.dialect_mut().is_rotten = true;
    assert_eq!(read(&mut rig, 1, place, bytes.len()).1, 1);
    assert_eq!(rig.answers().pop().unwrap().1, Said::Bytes(vec![0xEE; bytes.len()]));
    rig.card.dialect_mut().is_rotten = false;
    assert_eq!(read(&mut rig, 1, place, bytes.len()).1, 1, "it is not looked at again");
    rig.answers();
    let retained = rig.card.counts().retained;
    assert_eq!((retained.hits, retained.misses), (0, 2));
    rig.assert_empty();
}

#[test]
fn what_does_not_decode_is_fetched() {
    let mut rig = rig();
    let bytes = text(1, 4 * KIB);
    let place = write(&mut rig, &bytes, 2);
    // More is asked for than it is.
    assert_eq!(read(&mut rig, 1, place, bytes.len() + 64).1, 1);
    assert_eq!(rig.answers().pop().unwrap().1, Said::Bytes(vec![0xEE; bytes.len() + 64]));
    rig.assert_empty();
}

#[test]
fn what_does_not_decode_is_forgotten_and_its_room_is_not_anothers_before() {
    // Memory for what one read fetches.
    let mut rig = rig_with(PortConfig { memory: vec![(64 << 10, 1)], ..config() });
    let bytes = text(1, 4 * KIB);
    let place = write(&mut rig, &bytes, 2);
    let len = bytes.len() + 64;
    // Something hard is before them, so that it is a while until it shows that they do not decode.
    let (_, hard) = rig.arrived(&text(2, 64 * KIB), 0);
    let handles = [0, 1].map(|_| rig.arrived(&[], len).1);
    rig.post(PACK, 4, 1, hard, &[0; 8]);
    for handle in handles {
        rig.read(handle, &[Run { slot: 1, from: place, len: len as u32, into: 0 }]);
    }
    rig.run();
    // The one is fetched while the other waits for memory, and then does not look again for what was wrong.
    for _ in handles {
        let mut asked = 0;
        for port in 1..=3 {
            for (header, _) in rig.card.net_mut().heard(port) {
                let is_read = header.kind == ask::READ;
                asked += usize::from(is_read);
                let payload = vec![0xEE; if is_read { len } else { 0 }];
                rig.card.net_mut().say(port, &reply_to(&header, 0, &payload));
            }
        }
        assert_eq!(asked, 1);
        rig.run();
    }
    assert!(rig.done().iter().all(|(done, _)| done.status == CompletionStatus::Good));
    assert_eq!(rig.answers().len(), 3);
    assert_eq!(rig.card.dialect_mut().known_before, [0, 0], "nothing was known of what was asked for");
    let retained = rig.card.counts().retained;
    assert_eq!((retained.hits, retained.misses), (0, 2));
    rig.assert_empty();
}

#[test]
fn what_lies_in_memory_of_records_is_retained_whoever_waits_for_some() {
    // An engine with a queue has all that is written to at a time, and the others wait for as long as it takes.
    let mut rig = rig_with(PortConfig { heads: 80, ..config() });
    let handles: Vec<_> = (0..12).map(|seed| rig.arrived(&text(seed, 64 * KIB), 0).1).collect();
    for handle in handles {
        rig.post(PACK, 4, 1, handle, &[0; 8]);
    }
    rig.run();
    for _ in 0..12 {
        rig.all_say(0);
    }
    assert_eq!((rig.done().len(), rig.card.counts().retained.records), (12, 12));
}

#[test]
fn writes_go_on_for_ever_in_little_memory_and_the_newest_are_found() {
    // Two blocks of 256 KiB: what is retained goes all the time.
    let mut rig = rig_with(PortConfig { records: 2, ..config() });
    let mut written = Vec::new();
    for round in 0..200usize {
        let len = [4 * KIB, 64 * KIB, 12 * KIB][round % 3];
        let bytes = if round % 4 == 0 { filler(round as u8, len) } else { text(round as u8, len) };
        let place = write(&mut rig, &bytes, 2);
        written.push((place, bytes));
        let (place, bytes) = written[round - round.min(round % 7)].clone();
        let (said, asked, _) = read(&mut rig, 1, place, bytes.len());
        // Either it is asked for, or it is what it was.
        assert!(asked == 1 || said == Some(Said::Bytes(bytes)), "round {round}");
        rig.answers();
    }
    let retained = rig.card.counts().retained;
    assert!(retained.hits > 50 && retained.misses > 0, "{retained:?}");
    rig.assert_empty();
}

#[test]
fn who_waits_for_room_gets_it_in_order() {
    // One block: of 64 KiB that shrink a little, some are under way at a time.
    let mut rig = rig_with(PortConfig { records: 1, heads: 40, ..config() });
    let mixed = |seed: u8| [filler(seed, 40 * KIB), text(seed, 24 * KIB)].concat();
    let mut handles = Vec::new();
    for seed in 0..12 {
        let (_, handle) = rig.arrived(&mixed(seed), 0);
        rig.post(PACK, 2, 1, handle, &[0; 8]);
        handles.push(handle);
    }
    rig.run();
    let sent = rig.card.net_mut().heard(1);
    assert!((1..12).contains(&sent.len()), "{}", sent.len());
    for (header, _) in &sent {
        rig.card.net_mut().say(1, &reply_to(header, 0, &[]));
    }
    for _ in 0..12 {
        rig.all_say(0);
    }
    let done: Vec<Handle> = rig.done().iter().map(|(completion, _)| completion.handle).collect();
    assert_eq!(done, handles);
    assert_eq!(rig.answers().len(), 12);
    rig.assert_empty();
}

#[test]
fn plans_that_wait_for_room_end_with_their_host() {
    let mut rig = rig_with(PortConfig { records: 1, heads: 40, ..config() });
    let mut handles = Vec::new();
    for seed in 0..8 {
        let (_, handle) = rig.arrived(&[filler(seed, 40 * KIB), text(seed, 24 * KIB)].concat(), 0);
        rig.post(PACK, 2, 1, handle, &[0; 8]);
        handles.push(handle);
    }
    rig.run();
    rig.detach();
    rig.run();
    let counts = rig.card.counts();
    assert_eq!((counts.plans, counts.blocks_out, counts.retained.blocks), (0, 0, 0));
    // The messages are still there, for the next host.
    assert_eq!(counts.messages, 8);
}
