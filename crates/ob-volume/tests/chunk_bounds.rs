//! What one peer can make a chunk server hold, and how long others wait for it.

use std::time::Duration;

use ob_core::{DeviceError, DeviceOp, PoolId, SegmentId, SegmentName, Units};
use ob_format::volume::RECORDS_START;
use ob_volume::chunk::{ChunkServerConfig, ServerState};
use ob_volume::wire::{
    CreateState, READ_MAX, REQUESTS_MAX, Refusal, Reply, Request, RequestMessage, WINDOW_LEN,
};

use super::support::{
    CHUNK_UNITS, Client, FIRST, Rig, chunk, config, create, epoch, record, records, result, units,
};

/// A chunk of a megabyte and more of records; where they end.
fn fill_a_chunk(rig: &mut Rig, client: Client, number: u32) -> Units {
    let name = chunk(number);
    let mut length = create(name, FIRST, CreateState::Open);
    if let Request::Create { length, .. } = &mut length {
        *length = Units(40_000);
    }
    rig.get(client, length).unwrap();
    let mut at = RECORDS_START;
    while at.0 < 33_000 {
        let bytes = records(name, at, &[120; 8]);
        rig.append(client, name, FIRST, at, &bytes).unwrap();
        at = Units(at.0 + units(&bytes).0);
    }
    at
}

#[test]
fn who_takes_no_answers_is_not_listened_to() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let many = 300u32;
    for number in 1..=many {
        let mut request = create(chunk(number), FIRST, CreateState::Open);
        if let Request::Create { length, .. } = &mut request {
            *length = Units(128);
        }
        rig.get(client, request).unwrap();
    }
    rig.set_room(client, Some(0));
    let before = rig.server.facts().counts.requests;
    let zero = ob_core::ChunkName::default();
    // Each is answered with ten kilobytes.
    for _ in 0..2000 {
        rig.send(client, Request::Chunks { after: zero, is_of_segment: false, most: 32_768 }, &[]);
    }
    rig.run();
    let answered = rig.server.facts().counts.requests - before;
    assert!(answered <= u64::from(REQUESTS_MAX), "{answered} answers are kept");
    assert!(rig.is_held(client) && !rig.is_closed(client) && rig.unreceived(client) > 0);
    // When it takes them, it is listened to again.
    rig.set_room(client, None);
    rig.run();
    assert_eq!((rig.told(client).len(), rig.unreceived(client)), (2000, 0));
}

#[test]
fn long_answers_that_are_not_taken_are_few() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let mut at = RECORDS_START;
    for _ in 0..6 {
        let bytes = records(name, at, &[1; 110]);
        rig.append(client, name, FIRST, at, &bytes).unwrap();
        at = Units(at.0 + units(&bytes).0);
    }
    rig.set_room(client, Some(0));
    let before = rig.server.facts().counts.requests;
    for _ in 0..200 {
        let list = Request::List { chunk: name, epoch: FIRST, from: RECORDS_START, to: at, most: 32_768 };
        rig.send(client, list, &[]);
    }
    rig.run();
    let answered = rig.server.facts().counts.requests - before;
    // Of 660 entries each.
    assert!(answered * 660 * 32 <= 3 << 20, "{answered} lists are kept");
    rig.set_room(client, None);
    rig.run();
    assert_eq!(rig.told(client).len(), 200);
}

#[test]
fn requests_that_cannot_be_count_until_their_answers_are_taken() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.set_room(client, Some(0));
    let before = rig.server.facts().counts.requests;
    for tag in 0..2000 {
        let message = RequestMessage { tag, payload_len: 0, request: Request::Ping };
        let mut header = message.encode().unwrap();
        header[3] = 99;
        header[20..24].fill(0);
        let crc = crc32c::crc32c(&header);
        header[20..24].copy_from_slice(&crc.to_le_bytes());
        rig.send_bytes(client, &header);
    }
    rig.run();
    let answered = rig.server.facts().counts.requests - before;
    assert!(answered <= u64::from(REQUESTS_MAX), "{answered} refusals are kept");
}

#[test]
fn who_takes_a_byte_now_and_then_is_given_up() {
    let mut rig = Rig::new();
    let (slow, other) = (rig.greet(0, 1), rig.greet(1, 1));
    let end = fill_a_chunk(&mut rig, other, 1);
    rig.set_room(slow, Some(0));
    let len = READ_MAX.min((end.0 - RECORDS_START.0) * 64);
    rig.send(slow, Request::Read { chunk: chunk(1), epoch: FIRST, offset: RECORDS_START, len }, &[]);
    rig.run();
    for _ in 0..4 {
        rig.set_room(slow, Some(1));
        rig.pass(Duration::from_secs(15));
    }
    assert!(rig.is_closed(slow), "a minute for some bytes");
}

#[test]
fn reads_of_others_do_not_wait_for_one_that_takes_nothing() {
    let mut rig = Rig::new();
    let (slow, quick) = (rig.greet(0, 1), rig.greet(1, 1));
    let end = fill_a_chunk(&mut rig, quick, 1);
    rig.set_room(slow, Some(0));
    let read = |len| Request::Read { chunk: chunk(1), epoch: FIRST, offset: RECORDS_START, len };
    for len in [4096, READ_MAX] {
        for _ in 0..100 {
            rig.send(slow, read(len), &[]);
        }
        rig.run();
        let tag = rig.send(quick, read(len), &[]);
        rig.run();
        assert!(rig.take(quick, tag).is_some(), "{len} bytes of {end:?}");
    }
    rig.set_room(slow, None);
    rig.run();
    assert_eq!(rig.told(slow).len(), 200);
}

#[test]
fn short_messages_do_not_wait_for_those_who_do_not_finish_long_ones() {
    let mut rig = Rig::new();
    let quick = rig.greet(9, 1);
    for number in 1..=20 {
        rig.create(quick, chunk(number), FIRST).unwrap();
    }
    let long = |rig: &mut Rig, port| {
        let slow = rig.greet(port, 1);
        let request = Request::Append { chunk: chunk(20), epoch: FIRST, offset: RECORDS_START };
        let message = RequestMessage { tag: 1, payload_len: 1 << 20, request };
        rig.send_bytes(slow, &message.encode().unwrap());
        rig.send_bytes(slow, &[0; 1000]);
        rig.run();
    };
    // All long buffers are taken by those who send no more, and one waits for another.
    (0..3).for_each(|port| long(&mut rig, port));
    // All short buffers are taken as well, until writes are done.
    rig.disk.hold_writes();
    let tags: Vec<u64> = (1..=19)
        .map(|number| {
            let bytes = records(chunk(number), RECORDS_START, &[3]);
            let append = Request::Append { chunk: chunk(number), epoch: FIRST, offset: RECORDS_START };
            rig.send(quick, append, &bytes)
        })
        .collect();
    rig.run();
    assert!(rig.unreceived(quick) > 0, "it waits too");
    rig.disk.release();
    rig.run();
    for tag in tags {
        assert!(rig.take(quick, tag).is_some());
    }
}

#[test]
fn one_connection_does_not_keep_all_buffers_of_long_messages() {
    let mut rig = Rig::new();
    let (busy, other) = (rig.greet(0, 1), rig.greet(1, 1));
    for number in 1..=3 {
        let mut request = create(chunk(number), FIRST, CreateState::Open);
        if let Request::Create { length, .. } = &mut request {
            *length = Units(70_000);
        }
        rig.get(busy, request).unwrap();
    }
    rig.disk.hold_writes();
    let mut at = RECORDS_START;
    // The first is written, the others wait for it.
    for _ in 0..4 {
        let bytes = records(chunk(1), at, &[120; 16]);
        assert!(bytes.len() > 900_000 && bytes.len() < WINDOW_LEN as usize / 4);
        rig.send(busy, Request::Append { chunk: chunk(1), epoch: FIRST, offset: at }, &bytes);
        rig.run();
        at = Units(at.0 + units(&bytes).0);
    }
    let bytes = records(chunk(2), RECORDS_START, &[120; 16]);
    rig.send(other, Request::Append { chunk: chunk(2), epoch: FIRST, offset: RECORDS_START }, &bytes);
    rig.run();
    assert_eq!(rig.unreceived(other), 0, "its message is taken");
    rig.disk.release();
    rig.run();
    assert_eq!(rig.stat(busy, chunk(1), FIRST).0.end, at);
}

#[test]
fn a_chunk_that_waits_for_a_buffer_is_not_passed_by_others_for_ever() {
    let mut rig = Rig::new();
    let clients = [rig.greet(0, 1), rig.greet(1, 1), rig.greet(2, 1), rig.greet(3, 1)];
    for (index, client) in clients.iter().enumerate() {
        rig.create(*client, chunk(index as u32 + 1), FIRST).unwrap();
    }
    let mut ends = [RECORDS_START; 4];
    rig.disk.hold_writes();
    let mut waiting = None;
    let mut rounds = 0;
    // Three chunks always have something to write; the fourth asks once. There are two buffers.
    for round in 0..60 {
        for index in 0..3 {
            let (name, offset) = (chunk(index as u32 + 1), ends[index]);
            let bytes = records(name, offset, &[1]);
            if offset.0 + units(&bytes).0 < CHUNK_UNITS.0 {
                rig.send(clients[index], Request::Append { chunk: name, epoch: FIRST, offset }, &bytes);
                ends[index] = Units(offset.0 + units(&bytes).0);
            }
        }
        if round == 3 {
            let bytes = records(chunk(4), RECORDS_START, &[1]);
            let append = Request::Append { chunk: chunk(4), epoch: FIRST, offset: RECORDS_START };
            waiting = Some(rig.send(clients[3], append, &bytes));
        }
        // One write is let go, and no more.
        let mut left = 1;
        rig.disk.hold(move |op| {
            if matches!(op, DeviceOp::Write { .. }) && left > 0 {
                left -= 1;
                return false;
            }
            matches!(op, DeviceOp::Write { .. } | DeviceOp::Flush | DeviceOp::WriteZeroes { .. })
        });
        rig.run();
        rounds = round;
        if waiting.is_some_and(|tag| rig.take(clients[3], tag).is_some()) {
            waiting = None;
            break;
        }
    }
    assert_eq!(waiting, None, "it waits after {rounds} writes of others");
    assert!(rounds < 16, "{rounds} writes of others came before");
}

#[test]
fn connections_of_another_pool_end_when_the_server_has_one() {
    let mut rig = Rig::new();
    let stranger = rig.connect();
    let other = PoolId(*b"some other pool.");
    let (told, _) = rig.hello_of(stranger, other, 5, 1);
    assert!(result(told).is_ok());
    let client = rig.greet(0, 1);
    let segment = chunk(1).segment_name();
    // Before it is of a pool, nobody can fence it, nor ask for what is not there.
    for request in [
        Request::Fence { segment, epoch: epoch(9) },
        Request::Delete { chunk: chunk(1), epoch: epoch(9) },
        Request::Stat { chunk: chunk(1), epoch: epoch(9) },
    ] {
        assert_eq!(rig.get(stranger, request), Err(Refusal::WrongPool), "{request:?}");
    }
    rig.create(client, chunk(1), FIRST).unwrap();
    assert!(rig.is_closed(stranger) && !rig.is_closed(client));
    assert!(
        rig.append(client, chunk(1), FIRST, RECORDS_START, &records(chunk(1), RECORDS_START, &[1])).is_ok()
    );
}

#[test]
fn without_a_ledger_nobody_waits_and_the_server_ends() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    rig.disk.fail(|op| match op {
        DeviceOp::Write { from, .. } if from.starts_with(b"OBCL") => Some(DeviceError::Io),
        _ => None,
    });
    let mut tags = vec![rig.send(client, Request::Stop { chunk: chunk(1), epoch: FIRST }, &[])];
    for number in 2..5 {
        tags.push(rig.send(client, create(chunk(number), FIRST, CreateState::Filling), &[]));
    }
    rig.run();
    for number in 5..8 {
        tags.push(rig.send(client, create(chunk(number), FIRST, CreateState::Filling), &[]));
        rig.run();
    }
    for tag in tags {
        assert!(rig.is_closed(client) || rig.take(client, tag).is_some(), "{tag} hangs");
    }
    assert!(matches!(rig.server.facts().state, ServerState::Failed(_)), "a supervisor starts it anew");
    rig.run();
    assert!(rig.server.is_idle());
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    rig.stat(client, chunk(1), FIRST);
}

#[test]
fn others_that_come_and_go_do_not_keep_a_chunk_from_being_made() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    rig.disk.hold_writes();
    let tag = rig.send(client, create(chunk(2), FIRST, CreateState::Filling), &[]);
    rig.run();
    for port in 1..40 {
        let other = rig.greet(port, 1);
        rig.cut(other);
        rig.run();
        // One write of the ledger is let go, and all that is of other things.
        let mut left = 1;
        rig.disk.hold(move |op| {
            let is_ledger = matches!(op, DeviceOp::Write { from, .. } if from.starts_with(b"OBCL"));
            let is_held = is_ledger && left == 0;
            left -= u32::from(is_ledger && !is_held);
            is_held
        });
        rig.run();
    }
    let told = rig.take(client, tag).expect("it is made").0;
    assert!(matches!(result(told), Ok(Reply::Create { .. })), "{told:?}");
}

#[test]
fn reads_do_not_wait_for_what_only_looks() {
    let mut rig = Rig::new();
    let (client, other) = (rig.greet(0, 1), rig.greet(1, 1));
    let end = fill_a_chunk(&mut rig, client, 1);
    // Reads of a megabyte, as lists have them, are held up; others are not.
    rig.disk.hold(|op| matches!(op, DeviceOp::Read { into, .. } if into.len() > 100_000));
    let list = Request::List { chunk: chunk(1), epoch: FIRST, from: RECORDS_START, to: end, most: 100 };
    let listed = rig.send(client, list, &[]);
    rig.run();
    assert_eq!(rig.take(client, listed), None);
    let read = Request::Read { chunk: chunk(1), epoch: FIRST, offset: RECORDS_START, len: 576 };
    let tag = rig.send(other, read, &[]);
    rig.run();
    assert_eq!(rig.take(other, tag).unwrap().1.len(), 576);
    rig.disk.release();
    rig.run();
    assert!(rig.take(client, listed).is_some());
}

#[test]
fn a_number_that_was_deleted_is_not_used_before_the_ledger_has_forgotten_it() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    rig.get(client, Request::Stop { chunk: name, epoch: FIRST }).unwrap();
    rig.get(client, Request::Delete { chunk: name, epoch: FIRST }).unwrap();
    assert_eq!(rig.create(client, name, FIRST), Err(Refusal::Exists));
    // Entries until the next ones find no room.
    let mut segment = name.segment_name();
    let mut sent = 0u32;
    let mut fence = |rig: &mut Rig| {
        sent += 1;
        segment.segment.0 = 1000 + sent % 50;
        rig.send(client, Request::Fence { segment, epoch: epoch(sent) }, &[])
    };
    for _ in 0..327 {
        let tags: Vec<u64> = (0..50).map(|_| fence(&mut rig)).collect();
        rig.run();
        tags.iter().for_each(|tag| drop(rig.take(client, *tag)));
    }
    // Nothing of the ledger that is written anew is durable.
    rig.disk.hold(|op| matches!(op, DeviceOp::Write { from, .. } if from.starts_with(b"OBCL")));
    let tag = (0..60).map(|_| fence(&mut rig)).last().unwrap();
    rig.run();
    assert_eq!(rig.take(client, tag), None);
    assert_eq!(rig.create(client, name, FIRST), Err(Refusal::Exists));
    rig.disk.release();
    rig.run();
    assert!(matches!(rig.create(client, name, FIRST), Ok(Reply::Create { .. })));
    let mut rig = rig.lose_power();
    let client = rig.greet(0, 2);
    let bytes = record(name, RECORDS_START, 1, 1, 1);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
}

#[test]
fn of_very_many_segments_those_are_forgotten_of_which_nothing_is_here() {
    let mut rig = Rig::with(ChunkServerConfig { segments_max: 64, ..config() }, 64 << 20);
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    let own = chunk(1).segment_name();
    rig.get(client, Request::Fence { segment: own, epoch: epoch(5) }).unwrap();
    for number in 0..1000 {
        let segment = SegmentName { segment: SegmentId(1000 + number), ..own };
        assert_eq!(
            rig.get(client, Request::Fence { segment, epoch: epoch(2) }),
            Ok(Reply::Fence),
            "{number}"
        );
        let stale = Err(Refusal::Stale { known: 2 });
        assert_eq!(rig.get(client, Request::Fence { segment, epoch: FIRST }), stale);
    }
    let stale = Err(Refusal::Stale { known: 5 });
    assert_eq!(rig.get(client, Request::Fence { segment: own, epoch: epoch(4) }), stale);
    let mut rig = rig.lose_power();
    let client = rig.greet(0, 1);
    assert_eq!(rig.get(client, Request::Fence { segment: own, epoch: epoch(4) }), stale);
}

#[test]
fn of_very_many_sessions_those_are_forgotten_whose_connection_is_over() {
    let mut rig = Rig::with(ChunkServerConfig { sessions_max: 16, ..config() }, 64 << 20);
    let kept = rig.greet(0, 7);
    for port in 1..200 {
        let client = rig.greet(port, 1);
        rig.cut(client);
    }
    assert!(!rig.is_closed(kept));
    let again = rig.connect();
    let (told, _) = rig.hello(again, 0, 7);
    assert_eq!(result(told), Err(Refusal::Stale { known: 7 }));
}

#[test]
fn directories_in_which_nothing_is_left_are_removed() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = |number: u32| {
        let mut name = chunk(1);
        (name.volume.0, name.segment.0) = (u64::from(number) + 10, number);
        name
    };
    rig.create(client, chunk(1), FIRST).unwrap();
    for number in 0..20 {
        rig.create(client, name(number), FIRST).unwrap();
        rig.get(client, Request::Delete { chunk: name(number), epoch: FIRST }).unwrap();
    }
    assert!(rig.has_path("chunks/0000000000000003/00000001"));
    for number in 0..20 {
        assert!(!rig.has_path(&format!("chunks/{:016x}", number + 10)), "{number}");
    }
    // A chunk that is made while its directories go is there.
    for number in 0..20 {
        let other = ob_core::ChunkName { chunk: ob_core::ChunkId(2), ..name(number) };
        rig.create(client, name(number), FIRST).unwrap();
        let gone = rig.send(client, Request::Delete { chunk: name(number), epoch: FIRST }, &[]);
        let made = rig.send(client, create(other, FIRST, CreateState::Open), &[]);
        rig.run();
        assert!(rig.take(client, gone).is_some());
        assert!(result(rig.take(client, made).unwrap().0).is_ok());
        assert_eq!(rig.stat(client, other, FIRST).0.end, RECORDS_START);
    }
}
