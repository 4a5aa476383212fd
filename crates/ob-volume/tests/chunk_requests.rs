//! What a chunk server answers, and when.

use ob_core::{DeviceError, DeviceOp, Units};
use ob_format::volume::RECORDS_START;
use ob_volume::wire::{
    Answer, CreateState, EndState, HelloPayload, READ_MAX, Refusal, ReplicaState, Reply, Request,
    WelcomePayload, decode_chunks, decode_entries,
};

use super::support::{
    CHUNK_UNITS, FIRST, POOL, Rig, TIER, chunk, config, create, epoch, record, record_behind, records,
    result, units,
};

#[test]
fn a_hello_tells_who_the_server_is() {
    let mut rig = Rig::new();
    let client = rig.connect();
    let (told, payload) = rig.hello(client, 0, 1);
    let Answer::Good(Reply::Hello { server, incarnation }) = told.answer else { panic!("{told:?}") };
    assert_eq!((server.0, incarnation.0), (99, 1));
    let welcome = WelcomePayload::decode(&payload).unwrap();
    assert_eq!((welcome.pool, welcome.block_len, welcome.domain.as_str()), (None, 4096, "rack 1"));
    assert!(welcome.free > 0 && welcome.free <= welcome.capacity);
}

#[test]
fn what_is_appended_is_read_back() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    assert!(matches!(rig.create(client, name, FIRST), Ok(Reply::Create { .. })));
    let (mut at, mut all) = (RECORDS_START, Vec::new());
    for blocks in [&[1, 2, 3][..], &[128], &[7, 1], &[16; 20]] {
        let bytes = records(name, at, blocks);
        let reply = rig.append(client, name, FIRST, at, &bytes);
        at = Units(at.0 + units(&bytes).0);
        assert!(matches!(reply, Ok(Reply::Append { durable, .. }) if durable == at), "{reply:?}");
        all.extend(bytes);
    }
    for (from, len) in [(0, all.len()), (64, 64), (640, 5 * 4096), (all.len() - 64, 64)] {
        let offset = Units(RECORDS_START.0 + from as u32 / 64);
        assert_eq!(rig.read(client, name, offset, len as u32).unwrap(), &all[from..from + len]);
    }
    // Behind its end a chunk is zeros, and behind its file there is nothing.
    assert_eq!(rig.read(client, name, at, 128).unwrap(), [0; 128]);
    assert_eq!(rig.read(client, name, Units(CHUNK_UNITS.0 - 1), 4096).unwrap().len(), 64);
    assert!(rig.read(client, name, CHUNK_UNITS, READ_MAX).unwrap().is_empty());
    let (end, state) = rig.stat(client, name, FIRST);
    assert_eq!((end.end, end.content_crc, end.state), (at, crc32c::crc32c(&all), EndState::Known));
    assert_eq!(state, ReplicaState::Open);
}

#[test]
fn appends_are_taken_at_the_end_and_nowhere_else() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, chunk(2), FIRST).unwrap();
    let bytes = records(name, RECORDS_START, &[1, 2]);
    assert_eq!(rig.append(client, name, FIRST, RECORDS_START, &bytes), Err(Refusal::NoChunk));
    rig.create(client, name, FIRST).unwrap();
    let late = Units(RECORDS_START.0 + 9);
    let behind = record(name, late, 5, 1, 5);
    let gap = Err(Refusal::Gap { end: RECORDS_START });
    assert_eq!(rig.append(client, name, FIRST, late, &behind), gap);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    let end = Units(RECORDS_START.0 + units(&bytes).0);
    // The same once more is as good as the first time, and what is not the same is told.
    let again = rig.append(client, name, FIRST, RECORDS_START, &bytes);
    assert!(matches!(again, Ok(Reply::Append { durable, .. }) if durable == end));
    let other = record(name, RECORDS_START, 1, 1, 9);
    assert_eq!(rig.append(client, name, FIRST, RECORDS_START, &other), Err(Refusal::Conflict));
    // What is only there in part is to be sent from the end.
    let longer = records(name, RECORDS_START, &[1, 2, 3]);
    assert_eq!(rig.append(client, name, FIRST, RECORDS_START, &longer), Err(Refusal::Gap { end }));
    assert_eq!(rig.stat(client, name, FIRST).0.end, end);
}

#[test]
fn records_that_cannot_be_are_refused_and_not_written() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let good = records(name, RECORDS_START, &[1, 2]);
    let mut broken = good.clone();
    broken[700] ^= 1;
    let foreign = records(chunk(2), RECORDS_START, &[1]);
    let elsewhere = record(name, Units(RECORDS_START.0 + 1), 1, 1, 1);
    for bad in [broken, foreign, elsewhere, good[..good.len() - 64].to_vec()] {
        assert_eq!(rig.append(client, name, FIRST, RECORDS_START, &bad), Err(Refusal::Bad));
    }
    let (end, _) = rig.stat(client, name, FIRST);
    assert_eq!((end.end, end.content_crc), (RECORDS_START, 0));
    assert_eq!(rig.read(client, name, RECORDS_START, 4096).unwrap(), [0; 4096]);
    rig.append(client, name, FIRST, RECORDS_START, &good).unwrap();
}

#[test]
fn a_chunk_takes_no_more_than_its_length() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let mut at = RECORDS_START;
    loop {
        let bytes = records(name, at, &[120]);
        if at.0 + units(&bytes).0 > CHUNK_UNITS.0 {
            assert_eq!(rig.append(client, name, FIRST, at, &bytes), Err(Refusal::Bad));
            return;
        }
        rig.append(client, name, FIRST, at, &bytes).unwrap();
        at = Units(at.0 + units(&bytes).0);
    }
}

#[test]
fn an_append_is_answered_when_it_is_durable_and_not_before() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    rig.disk.hold_writes();
    let bytes = records(name, RECORDS_START, &[1, 2]);
    let append = Request::Append { chunk: name, epoch: FIRST, offset: RECORDS_START };
    let tag = rig.send(client, append, &bytes);
    rig.run();
    assert_eq!(rig.take(client, tag), None, "nothing is durable yet");
    rig.disk.release();
    rig.run();
    assert!(rig.take(client, tag).is_some());
    let mut rig = rig.lose_power();
    let client = rig.greet(0, 2);
    assert_eq!(rig.read(client, name, RECORDS_START, bytes.len() as u32).unwrap(), bytes);
}

#[test]
fn appends_that_come_meanwhile_are_one_write_and_are_answered_in_their_order() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    // The segment that the file takes is not part of what is counted.
    rig.append(client, name, FIRST, RECORDS_START, &records(name, RECORDS_START, &[1])).unwrap();
    rig.disk.hold_writes();
    let mut at = Units(RECORDS_START.0 + 9);
    let mut tags = Vec::new();
    for index in 0..20 {
        let bytes = records(name, at, &[1 + index % 3]);
        tags.push(rig.send(client, Request::Append { chunk: name, epoch: FIRST, offset: at }, &bytes));
        at = Units(at.0 + units(&bytes).0);
        if index == 0 {
            rig.run();
        }
    }
    rig.run();
    let before = rig.disk.0.borrow().writes;
    rig.disk.release();
    rig.run();
    assert_eq!(rig.disk.0.borrow().writes - before, 2, "the first, and all others");
    assert_eq!(rig.told(client), tags);
    assert_eq!(rig.stat(client, name, FIRST).0.end, at);
}

#[test]
fn a_read_of_what_is_durable_does_not_wait_for_appends_and_one_of_the_rest_does() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let first = records(name, RECORDS_START, &[1]);
    rig.append(client, name, FIRST, RECORDS_START, &first).unwrap();
    let at = Units(RECORDS_START.0 + 9);
    let second = records(name, at, &[1]);
    rig.disk.hold_writes();
    let append = rig.send(client, Request::Append { chunk: name, epoch: FIRST, offset: at }, &second);
    rig.run();
    let read = |offset| Request::Read { chunk: name, epoch: FIRST, offset, len: 576 };
    let (early, late) = (rig.send(client, read(RECORDS_START), &[]), rig.send(client, read(at), &[]));
    rig.run();
    assert_eq!(rig.take(client, early).unwrap().1, first);
    assert_eq!((rig.take(client, append), rig.take(client, late)), (None, None));
    rig.disk.release();
    rig.run();
    assert!(rig.take(client, append).is_some());
    assert_eq!(rig.take(client, late).unwrap().1, second);
}

#[test]
fn older_epochs_are_refused_whatever_they_ask() {
    let mut rig = Rig::new();
    let (old, new) = (rig.greet(0, 1), rig.greet(1, 1));
    let name = chunk(1);
    rig.create(old, name, FIRST).unwrap();
    let bytes = records(name, RECORDS_START, &[1]);
    let segment = name.segment_name();
    assert_eq!(rig.get(new, Request::Fence { segment, epoch: epoch(3) }), Ok(Reply::Fence));
    let stale = Err(Refusal::Stale { known: 3 });
    assert_eq!(rig.append(old, name, FIRST, RECORDS_START, &bytes), stale);
    assert_eq!(rig.append(old, name, epoch(2), RECORDS_START, &bytes), stale);
    for request in [
        create(chunk(2), epoch(2), CreateState::Open),
        Request::Read { chunk: name, epoch: FIRST, offset: RECORDS_START, len: 64 },
        Request::Stop { chunk: name, epoch: FIRST },
        Request::Stat { chunk: name, epoch: FIRST },
        Request::Delete { chunk: name, epoch: FIRST },
        Request::Seal { chunk: name, epoch: FIRST, length: RECORDS_START, content_crc: 0 },
        Request::Fence { segment, epoch: epoch(2) },
    ] {
        assert_eq!(rig.get(old, request).err(), stale.err(), "{request:?}");
    }
    assert_eq!(rig.stat(new, name, epoch(3)).0.end, RECORDS_START);
    // Other segments are others' affair.
    let mut other = chunk(1);
    other.segment.0 += 1;
    rig.create(old, other, FIRST).unwrap();
}

#[test]
fn an_append_that_has_not_begun_when_a_later_owner_comes_is_refused() {
    let mut rig = Rig::new();
    let (old, new) = (rig.greet(0, 1), rig.greet(1, 1));
    let name = chunk(1);
    rig.create(old, name, FIRST).unwrap();
    rig.disk.hold_writes();
    let first = records(name, RECORDS_START, &[1]);
    let begun = rig.send(old, Request::Append { chunk: name, epoch: FIRST, offset: RECORDS_START }, &first);
    rig.run();
    let at = Units(RECORDS_START.0 + 9);
    let waiting =
        rig.send(old, Request::Append { chunk: name, epoch: FIRST, offset: at }, &records(name, at, &[1]));
    rig.run();
    let fence = rig.send(new, Request::Fence { segment: name.segment_name(), epoch: epoch(2) }, &[]);
    let stop = rig.send(new, Request::Stop { chunk: name, epoch: epoch(2) }, &[]);
    rig.run();
    assert_eq!((rig.take(new, fence), rig.take(new, stop)), (None, None), "it is not durable yet");
    rig.disk.release();
    rig.run();
    assert!(result(rig.take(old, begun).unwrap().0).is_ok());
    assert_eq!(result(rig.take(old, waiting).unwrap().0), Err(Refusal::Stale { known: 2 }));
    assert_eq!(result(rig.take(new, fence).unwrap().0), Ok(Reply::Fence));
    let Ok(Reply::Stop(end)) = result(rig.take(new, stop).unwrap().0) else { panic!("it stops") };
    assert_eq!((end.end, end.content_crc), (at, crc32c::crc32c(&first)));
}

#[test]
fn a_stopped_chunk_takes_no_appends_and_is_filled_and_sealed() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let first = records(name, RECORDS_START, &[1, 2]);
    rig.append(client, name, FIRST, RECORDS_START, &first).unwrap();
    let at = Units(RECORDS_START.0 + units(&first).0);
    let second = records(name, at, &[5]);
    let fill = Request::Fill { chunk: name, epoch: FIRST, offset: at };
    let told = rig.ask(client, fill, &second).0;
    assert_eq!(result(told), Err(Refusal::Bad), "an open chunk is appended to");
    assert!(matches!(rig.get(client, Request::Stop { chunk: name, epoch: FIRST }), Ok(Reply::Stop(_))));
    assert_eq!(rig.append(client, name, FIRST, at, &second), Err(Refusal::Stopped));
    let end = Units(at.0 + units(&second).0);
    let told = rig.ask(client, fill, &second).0;
    assert_eq!(result(told), Ok(Reply::Fill { durable: end }));
    let all = [first.clone(), second].concat();
    let seal = |length, crc| Request::Seal { chunk: name, epoch: FIRST, length, content_crc: crc };
    assert_eq!(rig.get(client, seal(Units(end.0 + 1), 0)), Err(Refusal::Gap { end }));
    assert_eq!(rig.get(client, seal(end, 1)), Err(Refusal::Conflict));
    assert_eq!(rig.get(client, seal(at, crc32c::crc32c(&first))), Ok(Reply::Seal));
    assert_eq!(rig.get(client, seal(at, crc32c::crc32c(&first))), Ok(Reply::Seal), "once more is good");
    assert_eq!(rig.get(client, seal(end, crc32c::crc32c(&all))), Err(Refusal::Conflict));
    let (told, state) = rig.stat(client, name, FIRST);
    assert_eq!((told.end, state), (at, ReplicaState::Sealed));
    assert_eq!(rig.read(client, name, RECORDS_START, 4096).unwrap(), first, "what lies behind is cut");
    // A later owner knows of a longer one, and brings what is missing.
    let later = |length, crc| Request::Seal { chunk: name, epoch: epoch(2), length, content_crc: crc };
    assert_eq!(rig.get(client, later(end, crc32c::crc32c(&all))), Err(Refusal::Gap { end: at }));
    let fill = Request::Fill { chunk: name, epoch: epoch(2), offset: at };
    let told = rig.ask(client, fill, &all[first.len()..]).0;
    assert_eq!(result(told), Ok(Reply::Fill { durable: end }));
    assert_eq!(rig.get(client, later(end, crc32c::crc32c(&all))), Ok(Reply::Seal));
    assert_eq!(rig.stat(client, name, epoch(2)).0.content_crc, crc32c::crc32c(&all));
}

#[test]
fn records_and_chunks_are_listed() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    for number in [1, 2, 5] {
        rig.create(client, chunk(number), FIRST).unwrap();
    }
    let name = chunk(2);
    let bytes = records(name, RECORDS_START, &[1, 2, 3]);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    let list = |from, most| Request::List { chunk: name, epoch: FIRST, from, to: CHUNK_UNITS, most };
    let (told, payload) = rig.ask(client, list(RECORDS_START, 2), &[]);
    let next = Units(RECORDS_START.0 + 9 + 17);
    assert_eq!(result(told), Ok(Reply::List { next }));
    let blocks: Vec<u32> = decode_entries(&payload).unwrap().map(|entry| entry.blocks).collect();
    assert_eq!(blocks, [1, 2]);
    let (told, payload) = rig.ask(client, list(next, 2), &[]);
    assert_eq!(result(told), Ok(Reply::List { next: CHUNK_UNITS }));
    assert_eq!(decode_entries(&payload).unwrap().next().unwrap().blocks, 3);
    let (told, _) = rig.ask(client, list(Units(RECORDS_START.0 + 1), 2), &[]);
    assert_eq!(result(told), Err(Refusal::Damaged), "no record begins there");
    let chunks = Request::Chunks { after: chunk(1), is_of_segment: true, most: 1 };
    let (told, payload) = rig.ask(client, chunks, &[]);
    assert_eq!(result(told), Ok(Reply::Chunks { has_more: true }));
    let line = decode_chunks(&payload).unwrap().next().unwrap();
    assert_eq!((line.chunk, line.state), (name, ReplicaState::Open));
    assert_eq!(line.end, Units(RECORDS_START.0 + units(&bytes).0));
}

#[test]
fn creating_and_deleting_are_good_twice() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    for _ in 0..2 {
        assert!(matches!(rig.create(client, name, FIRST), Ok(Reply::Create { .. })));
    }
    assert_eq!(rig.get(client, create(name, FIRST, CreateState::Filling)), Err(Refusal::Exists));
    rig.append(client, name, FIRST, RECORDS_START, &records(name, RECORDS_START, &[1])).unwrap();
    assert_eq!(rig.create(client, name, FIRST), Err(Refusal::Exists));
    for _ in 0..2 {
        assert_eq!(rig.get(client, Request::Delete { chunk: name, epoch: FIRST }), Ok(Reply::Delete));
    }
    assert_eq!(rig.get(client, Request::Stat { chunk: name, epoch: FIRST }), Err(Refusal::NoChunk));
    assert!(matches!(rig.get(client, create(name, FIRST, CreateState::Filling)), Ok(Reply::Create { .. })));
}

#[test]
fn a_record_is_mended_where_its_header_is() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let bytes = records(name, RECORDS_START, &[3]);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    let end = Units(RECORDS_START.0 + units(&bytes).0);
    let repair = Request::Repair { chunk: name, epoch: FIRST, offset: RECORDS_START };
    let told = rig.ask(client, repair, &bytes).0;
    assert_eq!(result(told), Err(Refusal::Bad), "it is not sealed");
    rig.get(client, Request::Stop { chunk: name, epoch: FIRST }).unwrap();
    let content_crc = crc32c::crc32c(&bytes);
    rig.get(client, Request::Seal { chunk: name, epoch: FIRST, length: end, content_crc }).unwrap();
    let place = rig.disk.find(&bytes).unwrap();
    rig.disk.flip(place + 200);
    assert_ne!(rig.read(client, name, RECORDS_START, bytes.len() as u32).unwrap(), bytes);
    let other = record(name, RECORDS_START, 1, 3, 9);
    let told = rig.ask(client, repair, &other).0;
    assert_eq!(result(told), Err(Refusal::Conflict));
    let told = rig.ask(client, repair, &bytes).0;
    assert_eq!(result(told), Ok(Reply::Repair));
    assert_eq!(rig.read(client, name, RECORDS_START, bytes.len() as u32).unwrap(), bytes);
}

#[test]
fn what_all_members_have_is_told_by_records() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let mut at = RECORDS_START;
    for (count, behind) in [(1, Some(0)), (2, Some(9)), (3, Some(9)), (4, None)] {
        let bytes = record_behind(name, at, count, 1, 1, behind);
        rig.append(client, name, FIRST, at, &bytes).unwrap();
        at = Units(at.0 + units(&bytes).0);
    }
    assert_eq!(rig.stat(client, name, FIRST).0.everywhere, Units(RECORDS_START.0 + 9));
}

#[test]
fn a_full_device_refuses_chunks_and_keeps_its_promises() {
    let mut rig = Rig::with(config(), 16 << 20);
    let client = rig.greet(0, 1);
    let mut made = 0;
    let free = loop {
        match rig.create(client, chunk(made + 1), FIRST) {
            Ok(Reply::Create { .. }) => made += 1,
            Err(Refusal::Full { free }) => break free,
            other => panic!("{other:?}"),
        }
    };
    assert!(made > 5 && free < CHUNK_UNITS.bytes(), "{made} chunks, {free} bytes");
    // What was promised is there, to the last byte.
    for number in 1..=made {
        let (name, mut at) = (chunk(number), RECORDS_START);
        loop {
            let bytes = records(name, at, &[100]);
            if at.0 + units(&bytes).0 > CHUNK_UNITS.0 {
                break;
            }
            rig.append(client, name, FIRST, at, &bytes).unwrap();
            at = Units(at.0 + units(&bytes).0);
        }
    }
    assert!(matches!(rig.create(client, chunk(99), FIRST), Err(Refusal::Full { .. })));
    rig.get(client, Request::Delete { chunk: chunk(1), epoch: FIRST }).unwrap();
    rig.run();
    assert!(matches!(rig.create(client, chunk(99), FIRST), Ok(Reply::Create { .. })));
}

#[test]
fn a_device_that_fails_stops_the_chunk() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let first = records(name, RECORDS_START, &[1]);
    rig.append(client, name, FIRST, RECORDS_START, &first).unwrap();
    let at = Units(RECORDS_START.0 + 9);
    let marked = records(name, at, &[1]);
    let lost = marked.clone();
    rig.disk.fail(move |op| match op {
        DeviceOp::Write { from, .. } if from.windows(64).any(|unit| unit == &lost[..64]) => {
            Some(DeviceError::Io)
        }
        _ => None,
    });
    assert_eq!(rig.append(client, name, FIRST, at, &marked), Err(Refusal::Medium));
    assert_eq!(rig.append(client, name, FIRST, at, &marked), Err(Refusal::Stopped));
    let (end, state) = rig.stat(client, name, FIRST);
    assert_eq!((end.end, state), (at, ReplicaState::Stopped));
    assert_eq!(rig.read(client, name, RECORDS_START, first.len() as u32).unwrap(), first);
    rig.disk.fail(|op| matches!(op, DeviceOp::Read { .. }).then_some(DeviceError::Io));
    assert_eq!(rig.read(client, name, RECORDS_START, 64), Err(Refusal::Medium));
}

#[test]
fn a_later_session_ends_the_one_before_when_what_it_began_is_over() {
    let mut rig = Rig::new();
    let old = rig.greet(4, 1);
    let name = chunk(1);
    rig.create(old, name, FIRST).unwrap();
    rig.append(old, name, FIRST, RECORDS_START, &records(name, RECORDS_START, &[1])).unwrap();
    rig.disk.hold_writes();
    let at = Units(RECORDS_START.0 + 9);
    rig.send(old, Request::Append { chunk: name, epoch: FIRST, offset: at }, &records(name, at, &[1]));
    rig.run();
    // This one waits for the append, and is not executed any more.
    rig.send(old, Request::Delete { chunk: name, epoch: FIRST }, &[]);
    rig.run();
    let new = rig.connect();
    let hello = HelloPayload { pool: POOL, version_least: 1, version_most: 1, server: None };
    let tag = rig.send(new, Request::Hello { port: 4, tier: TIER, session: 2 }, &hello.encode().unwrap());
    rig.run();
    assert!(rig.is_closed(old));
    assert_eq!(rig.take(new, tag), None, "an append of the old connection is under way");
    rig.disk.release();
    rig.run();
    assert!(rig.take(new, tag).is_some());
    assert_eq!(rig.stat(new, name, FIRST).0.end, Units(at.0 + 9));
    let late = rig.connect();
    let (told, _) = rig.hello(late, 4, 2);
    assert_eq!(result(told), Err(Refusal::Stale { known: 2 }));
    rig.greet(5, 1);
    assert!(!rig.is_closed(new), "another port is another session");
}

#[test]
fn who_belongs_elsewhere_is_told() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    let hello = HelloPayload { pool: POOL, version_least: 1, version_most: 3, server: None };
    let mut say = |port, hello: HelloPayload| {
        let client = rig.connect();
        let request = Request::Hello { port, tier: TIER, session: 1 };
        result(rig.ask(client, request, &hello.encode().unwrap()).0)
    };
    let mut other = POOL;
    other.0[0] = 0;
    assert_eq!(say(1, HelloPayload { pool: other, ..hello }), Err(Refusal::WrongPool));
    let versions = HelloPayload { version_least: 2, ..hello };
    assert_eq!(say(1, versions), Err(Refusal::Version { least: 1, most: 1 }));
    let server = Some(ob_core::ServerId(5));
    let wrong = Refusal::WrongServer { server: ob_core::ServerId(99) };
    assert_eq!(say(1, HelloPayload { server, ..hello }), Err(wrong));
    assert!(say(1, hello).is_ok());
}

#[test]
fn connections_append_to_chunks_of_their_own_side_by_side() {
    let mut rig = Rig::new();
    let clients: Vec<_> = (0..4).map(|port| rig.greet(port, 1)).collect();
    let mut ends = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        rig.create(*client, chunk(index as u32 + 1), FIRST).unwrap();
        ends.push(RECORDS_START);
    }
    for round in 0..10u32 {
        let mut tags = Vec::new();
        for (index, client) in clients.iter().enumerate() {
            let (name, offset) = (chunk(index as u32 + 1), ends[index]);
            let bytes = records(name, offset, &[1 + (round + index as u32) % 4]);
            tags.push(rig.send(*client, Request::Append { chunk: name, epoch: FIRST, offset }, &bytes));
            ends[index] = Units(offset.0 + units(&bytes).0);
        }
        rig.run();
        for (client, tag) in clients.iter().zip(tags) {
            assert!(result(rig.take(*client, tag).unwrap().0).is_ok());
        }
    }
    for (index, client) in clients.iter().enumerate() {
        assert_eq!(rig.stat(*client, chunk(index as u32 + 1), FIRST).0.end, ends[index]);
    }
}

#[test]
fn a_chunk_whose_maker_is_gone_is_made_anew_by_the_next() {
    let mut rig = Rig::new();
    let (gone, other) = (rig.greet(0, 1), rig.greet(1, 1));
    // With the epoch known, only that it is filling has to become durable before it is made.
    rig.create(other, chunk(9), FIRST).unwrap();
    rig.run();
    let free = rig.server.facts().free;
    rig.disk.hold_writes();
    rig.send(gone, create(chunk(1), FIRST, CreateState::Filling), &[]);
    rig.run();
    let waiting = rig.send(other, Request::Stat { chunk: chunk(1), epoch: FIRST }, &[]);
    rig.run();
    rig.cut(gone);
    rig.disk.release();
    rig.run();
    assert_eq!(result(rig.take(other, waiting).unwrap().0), Err(Refusal::NoChunk));
    assert_eq!(rig.server.facts().free, free, "its promise is taken back");
    let made = rig.get(other, create(chunk(1), FIRST, CreateState::Open));
    assert_eq!(made, Err(Refusal::Exists), "the ledger says otherwise");
    assert!(matches!(
        rig.get(other, create(chunk(1), FIRST, CreateState::Filling)),
        Ok(Reply::Create { .. })
    ));
}
