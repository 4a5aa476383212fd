//! Peers that say what they must not, or too much of it, or too slowly.

use std::time::Duration;

use ob_core::Units;
use ob_format::volume::RECORDS_START;
use ob_volume::wire::{HelloPayload, REQUESTS_MAX, Refusal, Reply, Request, RequestMessage};
use proptest::prelude::*;

use super::support::{CHUNK_UNITS, FIRST, POOL, Rig, TIER, chunk, record, records, result, units};

#[test]
fn nothing_is_taken_before_a_hello() {
    let mut rig = Rig::new();
    let client = rig.connect();
    rig.send(client, Request::Ping, &[]);
    rig.run();
    assert!(rig.is_closed(client));
    let client = rig.connect();
    rig.send_bytes(client, &[0x55; 200]);
    rig.run();
    assert!(rig.is_closed(client));
}

#[test]
fn who_sends_more_than_the_window_is_cut_off() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    rig.disk.hold_writes();
    for _ in 0..=REQUESTS_MAX {
        rig.send(client, Request::Stop { chunk: chunk(1), epoch: FIRST }, &[]);
    }
    rig.run();
    assert!(rig.is_closed(client));
    rig.disk.release();
    rig.run();
    let client = rig.greet(0, 2);
    assert!(matches!(rig.get(client, Request::Ping), Ok(Reply::Ping { .. })));
    assert_eq!(rig.server.facts().counts.cut_off, 1);
}

#[test]
fn without_memory_a_connection_waits_and_goes_on_when_there_is_some() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let names = [1, 2, 3, 4].map(chunk);
    for name in names {
        rig.create(client, name, FIRST).unwrap();
    }
    rig.disk.hold_writes();
    let (mut tags, mut ends) = (Vec::new(), [RECORDS_START; 4]);
    // Three times what the buffers and the batches take.
    for index in 0..120usize {
        let (name, offset) = (names[index % 4], ends[index % 4]);
        let bytes = records(name, offset, &[16]);
        ends[index % 4] = Units(offset.0 + units(&bytes).0);
        if ends[index % 4] > CHUNK_UNITS {
            break;
        }
        tags.push(rig.send(client, Request::Append { chunk: name, epoch: FIRST, offset }, &bytes));
    }
    rig.run();
    assert!(rig.unreceived(client) > 0, "the server stops reading");
    assert!(rig.server.facts().counts.hold_ups > 0);
    assert!(rig.told(client).is_empty());
    rig.disk.release();
    rig.run();
    assert_eq!((rig.unreceived(client), rig.is_closed(client)), (0, false));
    for tag in tags {
        assert!(result(rig.take(client, tag).unwrap().0).is_ok());
    }
}

#[test]
fn who_does_not_take_what_it_has_asked_for_is_given_up() {
    let mut rig = Rig::new();
    let slow = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(slow, name, FIRST).unwrap();
    rig.append(slow, name, FIRST, RECORDS_START, &records(name, RECORDS_START, &[16])).unwrap();
    rig.set_room(slow, Some(0));
    let read = Request::Read { chunk: name, epoch: FIRST, offset: RECORDS_START, len: 4096 };
    for _ in 0..100 {
        rig.send(slow, read, &[]);
    }
    rig.run();
    rig.pass(Duration::from_secs(20));
    assert!(!rig.is_closed(slow));
    rig.pass(Duration::from_secs(11));
    assert!(rig.is_closed(slow));
    assert!(rig.server.is_idle());
}

#[test]
fn who_is_silent_in_the_middle_of_a_message_is_cut_off() {
    let mut rig = Rig::new();
    let (silent, within, idle) = (rig.connect(), rig.greet(1, 1), rig.greet(2, 1));
    rig.create(within, chunk(1), FIRST).unwrap();
    let bytes = records(chunk(1), RECORDS_START, &[4]);
    let request = Request::Append { chunk: chunk(1), epoch: FIRST, offset: RECORDS_START };
    let message = RequestMessage { tag: 1, payload_len: bytes.len() as u32, request };
    rig.send_bytes(within, &message.encode().unwrap());
    rig.send_bytes(within, &bytes[..100]);
    rig.run();
    rig.pass(Duration::from_secs(6));
    assert_eq!([silent, within, idle].map(|client| rig.is_closed(client)), [true, false, false]);
    rig.pass(Duration::from_secs(31));
    assert_eq!([within, idle].map(|client| rig.is_closed(client)), [true, false]);
}

#[test]
fn unknown_kinds_are_refused_and_read_away() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let message = RequestMessage { tag: 77, payload_len: 0, request: Request::Ping };
    let mut header = message.encode().unwrap();
    (header[3], header[16]) = (99, 200);
    header[20..24].fill(0);
    let crc = crc32c::crc32c(&header);
    header[20..24].copy_from_slice(&crc.to_le_bytes());
    rig.send_bytes(client, &header);
    rig.send_bytes(client, &[0; 200]);
    rig.run();
    assert_eq!(result(rig.take(client, 77).unwrap().0), Err(Refusal::UnknownKind));
    assert!(matches!(rig.get(client, Request::Ping), Ok(Reply::Ping { .. })));
}

#[test]
fn there_is_room_for_so_many_connections() {
    let mut rig = Rig::new();
    let first = rig.greet(0, 1);
    for _ in 1..256 {
        rig.connect();
    }
    assert!(rig.try_connect().is_none());
    rig.cut(first);
    rig.run();
    assert!(rig.try_connect().is_some());
}

/// Something that a peer does.
#[derive(Clone, Debug)]
enum Act {
    Bytes(Vec<u8>),
    /// A message, of which so many bytes are turned over, at these places.
    Message {
        kind: u8,
        number: u32,
        offset: u32,
        len: u32,
        flips: Vec<u16>,
    },
    Hello(u32, u64),
    Cut,
    /// A chunk is stopped, and sealed at the end that it tells, or where it begins.
    Seal(u32, bool),
    Step(u8),
    Hold(bool),
}

fn act() -> impl Strategy<Value = Act> {
    let flips = prop::collection::vec(any::<u16>(), 0..2);
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Act::Bytes),
        14 => (0u8..16, 1u32..4, 0u32..200, 1u32..20, flips)
            .prop_map(|(kind, number, offset, len, flips)| Act::Message { kind, number, offset, len, flips }),
        3 => (0u32..3, 1u64..5).prop_map(|(port, session)| Act::Hello(port, session)),
        1 => Just(Act::Cut),
        2 => (1u32..4, any::<bool>()).prop_map(|(number, is_shorter)| Act::Seal(number, is_shorter)),
        4 => (0u8..6).prop_map(Act::Step),
        2 => any::<bool>().prop_map(Act::Hold),
    ]
}

fn message(kind: u8, number: u32, offset: u32, len: u32) -> (Request, Vec<u8>) {
    let (name, epoch) = (chunk(number), super::support::epoch(1 + len % 3));
    let place = Units(RECORDS_START.0 + offset / 9 * 9);
    let mut payload = Vec::new();
    let request = match kind {
        0 => super::support::create(name, epoch, ob_volume::wire::CreateState::Open),
        1 => super::support::create(name, epoch, ob_volume::wire::CreateState::Filling),
        2 | 3 => {
            payload = record(name, place, u64::from(offset) + 1, 1, offset as u8);
            Request::Append { chunk: name, epoch, offset: place }
        }
        4 => {
            payload = record(name, place, u64::from(offset) + 1, 1, offset as u8);
            Request::Fill { chunk: name, epoch, offset: place }
        }
        5 => Request::Read { chunk: name, epoch, offset: Units(offset), len: len * 64 },
        6 => Request::Stop { chunk: name, epoch },
        7 => Request::Seal { chunk: name, epoch, length: place, content_crc: offset },
        8 => Request::Delete { chunk: name, epoch },
        9 => Request::List { chunk: name, epoch, from: place, to: CHUNK_UNITS, most: len },
        10 => Request::Chunks { after: name, is_of_segment: offset > 100, most: len },
        11 | 12 => {
            payload = record(name, place, u64::from(offset) + 1, 1, offset as u8);
            Request::Repair { chunk: name, epoch, offset: place }
        }
        13 => Request::Stat { chunk: name, epoch },
        14 => Request::Ping,
        _ => Request::Fence { segment: name.segment_name(), epoch },
    };
    (request, payload)
}

/// What becomes of chunks that are not empty when they are sealed, and mended afterwards.
fn seal_as_told(rig: &mut Rig, name: ob_core::ChunkName, is_shorter: bool) {
    let of = super::support::epoch(3);
    rig.disk.release();
    let session = rig.next_session();
    let client = rig.greet(8, session);
    if let Ok(Reply::Stop(end)) = rig.get(client, Request::Stop { chunk: name, epoch: of }) {
        let (length, content_crc) = if is_shorter { (RECORDS_START, 0) } else { (end.end, end.content_crc) };
        let told = rig.get(client, Request::Seal { chunk: name, epoch: of, length, content_crc });
        assert!(matches!(told, Ok(Reply::Seal) | Err(Refusal::Conflict)), "{told:?}");
    }
    rig.cut(client);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever peers send: nobody panics, everything comes to rest, and a well-behaved one is served afterwards.
    #[test]
    fn any_bytes_in_any_pieces(acts in prop::collection::vec((0usize..3, act()), 1..80)) {
        let mut rig = Rig::new();
        let mut clients: Vec<_> = (0..3).map(|port| rig.greet(port, 1)).collect();
        for (who, act) in acts {
            let client = clients[who];
            if rig.is_closed(client) {
                clients[who] = rig.connect();
                continue;
            }
            match act {
                Act::Bytes(bytes) => rig.send_bytes(client, &bytes),
                Act::Message { kind, number, offset, len, flips } => {
                    let (request, payload) = message(kind, number, offset, len);
                    let header = RequestMessage { tag: 1, payload_len: payload.len() as u32, request };
                    let mut bytes = header.encode().unwrap().to_vec();
                    bytes.extend(payload);
                    for flip in flips {
                        let at = usize::from(flip) % bytes.len();
                        bytes[at] ^= 1 << (flip % 8);
                    }
                    rig.send_bytes(client, &bytes);
                }
                Act::Hello(port, session) => {
                    let hello = HelloPayload { pool: POOL, version_least: 1, version_most: 1, server: None };
                    rig.send(client, Request::Hello { port, tier: TIER, session }, &hello.encode().unwrap());
                }
                Act::Cut => rig.cut(client),
                Act::Seal(number, is_shorter) => seal_as_told(&mut rig, chunk(number), is_shorter),
                Act::Step(steps) => (0..steps).for_each(|_| { rig.step(); }),
                Act::Hold(true) => rig.disk.hold_writes(),
                Act::Hold(false) => rig.disk.release(),
            }
        }
        rig.disk.release();
        rig.run();
        let client = rig.greet(9, 1);
        let name = chunk(50);
        let of = super::support::epoch(9);
        rig.create(client, name, of).unwrap();
        let bytes = records(name, RECORDS_START, &[1, 2]);
        rig.append(client, name, of, RECORDS_START, &bytes).unwrap();
        for client in clients {
            if !rig.is_closed(client) {
                rig.cut(client);
            }
        }
        rig.run();
        prop_assert!(rig.server.is_idle());
        prop_assert_eq!(rig.server.facts().connections, 1);
        let mut rig = rig.lose_power();
        let client = rig.greet(9, 2);
        prop_assert_eq!(rig.stat(client, name, of).0.end, Units(RECORDS_START.0 + units(&bytes).0));
    }
}
