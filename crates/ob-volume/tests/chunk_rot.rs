//! What a chunk server does with chunks of which something is broken: it never makes it worse.

use ob_core::{DeviceOp, Units};
use ob_format::volume::RECORDS_START;
use ob_volume::wire::{CreateState, EndState, Refusal, ReplicaState, Reply, Request, decode_entries};

use super::support::{
    CHUNK_UNITS, Client, FIRST, Rig, chunk, create, epoch, record, record_behind, records, result, units,
};

/// Where a chunk's header lies on the disk, and the first bytes of it.
fn header_place(rig: &Rig, bytes: &[u8]) -> usize {
    // Small chunks lie in one piece.
    rig.disk.find(bytes).unwrap() - RECORDS_START.bytes() as usize
}

fn with_a_chunk() -> (Rig, Client, Vec<u8>) {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    let bytes = records(chunk(1), RECORDS_START, &[1, 2, 5]);
    rig.append(client, chunk(1), FIRST, RECORDS_START, &bytes).unwrap();
    (rig, client, bytes)
}

fn stat(rig: &mut Rig, client: Client) -> Result<Reply, Refusal> {
    rig.get(client, Request::Stat { chunk: chunk(1), epoch: FIRST })
}

#[test]
fn a_chunk_whose_header_has_rotted_is_left_alone() {
    for flipped in [0, 9, 14, 40] {
        let (rig, _, bytes) = with_a_chunk();
        let place = header_place(&rig, &bytes);
        assert!(rig.disk.is_at(place, b"OBCH"));
        rig.disk.flip(place + flipped);
        let mut rig = rig.restart();
        let client = rig.greet(0, 1);
        assert_eq!(stat(&mut rig, client), Err(Refusal::Medium), "byte {flipped}");
        assert_eq!(rig.create(client, chunk(1), FIRST), Err(Refusal::Exists));
        let told = rig.append(client, chunk(1), FIRST, RECORDS_START, &bytes);
        assert_eq!(told, Err(Refusal::Medium));
        // When it can be read again, it is there.
        rig.disk.flip(place + flipped);
        let mut rig = rig.restart();
        let client = rig.greet(0, 1);
        assert_eq!(rig.read(client, chunk(1), RECORDS_START, bytes.len() as u32).unwrap(), bytes);
    }
}

#[test]
fn a_header_of_zeros_before_records_or_facts_is_left_alone() {
    let (rig, _, bytes) = with_a_chunk();
    let place = header_place(&rig, &bytes);
    rig.disk.clear(place, RECORDS_START.bytes() as usize);
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(stat(&mut rig, client), Err(Refusal::Medium), "a record follows");

    let (mut rig, client, bytes) = with_a_chunk();
    let place = header_place(&rig, &bytes);
    rig.get(client, Request::Stop { chunk: chunk(1), epoch: FIRST }).unwrap();
    rig.disk.clear(place, 3 * 4096);
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(stat(&mut rig, client), Err(Refusal::Medium), "the ledger knows of it");

    let (rig, _, bytes) = with_a_chunk();
    let place = header_place(&rig, &bytes);
    rig.disk.clear(place, 3 * 4096);
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(stat(&mut rig, client), Err(Refusal::NoChunk), "nobody was told of it");
}

#[test]
fn a_chunk_that_cannot_be_read_is_neither_made_anew_nor_removed() {
    let (rig, _, bytes) = with_a_chunk();
    let place = header_place(&rig, &bytes);
    let mut rig = rig.restart_unreadable(place);
    let client = rig.greet(0, 1);
    assert_eq!(stat(&mut rig, client), Err(Refusal::Medium));
    assert_eq!(rig.create(client, chunk(1), FIRST), Err(Refusal::Exists));
    assert_eq!(rig.get(client, create(chunk(1), FIRST, CreateState::Filling)), Err(Refusal::Exists));
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(rig.read(client, chunk(1), RECORDS_START, bytes.len() as u32).unwrap(), bytes);
    assert_eq!(rig.stat(client, chunk(1), FIRST).1, ReplicaState::Open);
}

#[test]
fn who_owns_a_chunk_that_cannot_be_read_can_delete_it() {
    let (rig, _, bytes) = with_a_chunk();
    let place = header_place(&rig, &bytes);
    let mut rig = rig.restart_unreadable(place);
    let client = rig.greet(0, 1);
    let delete = Request::Delete { chunk: chunk(1), epoch: FIRST };
    assert_eq!(rig.get(client, delete), Ok(Reply::Delete));
    assert!(matches!(rig.create(client, chunk(1), FIRST), Ok(Reply::Create { .. })));
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(rig.stat(client, chunk(1), FIRST).0.end, RECORDS_START);
}

#[test]
fn what_the_ledger_says_of_a_chunk_that_cannot_be_read_is_kept() {
    let (mut rig, client, bytes) = with_a_chunk();
    rig.get(client, Request::Stop { chunk: chunk(1), epoch: FIRST }).unwrap();
    let place = header_place(&rig, &bytes);
    let mut rig = rig.restart_unreadable(place);
    // The ledger is full, and written anew, while the chunk is left alone.
    let client = rig.greet(0, 1);
    for round in 0..330u32 {
        let tags: Vec<u64> = (0..50)
            .map(|number| {
                let mut segment = chunk(1).segment_name();
                segment.segment.0 = 1000 + number;
                rig.send(client, Request::Fence { segment, epoch: epoch(round + 1) }, &[])
            })
            .collect();
        rig.run();
        tags.iter().for_each(|tag| drop(rig.take(client, *tag)));
    }
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(rig.stat(client, chunk(1), FIRST).1, ReplicaState::Stopped);
    let end = Units(RECORDS_START.0 + units(&bytes).0);
    let more = records(chunk(1), end, &[1]);
    assert_eq!(rig.append(client, chunk(1), FIRST, end, &more), Err(Refusal::Stopped));
}

#[test]
fn a_chunk_that_has_run_since_it_was_opened_stays_known_when_it_is_filled() {
    let (mut rig, client, bytes) = with_a_chunk();
    rig.get(client, Request::Stop { chunk: chunk(1), epoch: FIRST }).unwrap();
    let mut at = Units(RECORDS_START.0 + units(&bytes).0);
    // The second time it is not known what lies behind.
    for round in 0..2 {
        let more = records(chunk(1), at, &[3]);
        if round == 1 {
            let lost = more.clone();
            rig.disk.fail_half_done(move |op| {
                matches!(op, DeviceOp::Write { from, .. } if from.windows(64).any(|unit| unit == &lost[..64]))
            });
            let told = rig.ask(client, Request::Fill { chunk: chunk(1), epoch: FIRST, offset: at }, &more).0;
            assert_eq!(result(told), Err(Refusal::Medium));
            rig.disk.heal();
        }
        let told = rig.ask(client, Request::Fill { chunk: chunk(1), epoch: FIRST, offset: at }, &more).0;
        at = Units(at.0 + units(&more).0);
        assert_eq!(result(told), Ok(Reply::Fill { durable: at }));
        assert_eq!(rig.stat(client, chunk(1), FIRST).0.state, EndState::Known);
    }
}

#[test]
fn what_a_fill_finds_behind_it_is_durable_before_it_is_told() {
    let (mut rig, client, bytes) = with_a_chunk();
    let at = Units(RECORDS_START.0 + units(&bytes).0);
    // The second lies in other blocks than the end of the first.
    let two = records(chunk(1), at, &[40, 30]);
    let lost = two.clone();
    // Both reach the device's memory, and the write fails.
    rig.disk.fail_half_done(move |op| {
        matches!(op, DeviceOp::Write { from, .. } if from.windows(64).any(|unit| unit == &lost[..64]))
    });
    assert_eq!(rig.append(client, chunk(1), FIRST, at, &two), Err(Refusal::Medium));
    rig.disk.heal();
    let fill = Request::Fill { chunk: chunk(1), epoch: FIRST, offset: at };
    let told = rig.ask(client, fill, &two[..64 + 40 * 512]).0;
    let Ok(Reply::Fill { durable }) = result(told) else { panic!("{told:?}") };
    let mut rig = rig.lose_power();
    let client = rig.greet(0, 1);
    assert_eq!(durable, Units(at.0 + units(&two).0), "it finds the second behind the first");
    assert!(rig.stat(client, chunk(1), FIRST).0.end >= durable, "{durable:?} was told");
}

#[test]
fn a_start_reads_no_more_than_it_needs_of_sealed_chunks() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    for number in 1..=8 {
        let name = chunk(number);
        rig.create(client, name, FIRST).unwrap();
        let (mut at, mut all) = (RECORDS_START, Vec::new());
        for _ in 0..5 {
            let bytes = records(name, at, &[100]);
            rig.append(client, name, FIRST, at, &bytes).unwrap();
            at = Units(at.0 + units(&bytes).0);
            all.extend(bytes);
        }
        rig.get(client, Request::Stop { chunk: name, epoch: FIRST }).unwrap();
        let content_crc = crc32c::crc32c(&all);
        rig.get(client, Request::Seal { chunk: name, epoch: FIRST, length: at, content_crc }).unwrap();
    }
    rig.run();
    let disk = rig.disk.clone();
    drop(rig);
    let mut rig = Rig::start(disk, super::support::config());
    let mounted = rig.disk.0.borrow().read_bytes;
    rig.run();
    let read = rig.disk.0.borrow().read_bytes - mounted;
    // The ledger is a megabyte.
    assert!(read < (1 << 20) + (100 << 10), "{read} bytes");
}

#[test]
fn a_list_reads_headers_and_not_what_they_announce() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let bytes = records(name, RECORDS_START, &[100, 2]);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    let place = rig.disk.find(&bytes).unwrap();
    rig.disk.fail_reads_at(place + 20_000);
    let list = Request::List { chunk: name, epoch: FIRST, from: RECORDS_START, to: CHUNK_UNITS, most: 9 };
    let (told, payload) = rig.ask(client, list, &[]);
    assert_eq!(result(told), Ok(Reply::List { next: CHUNK_UNITS }));
    assert_eq!(decode_entries(&payload).unwrap().len(), 2);
}

/// A payload that looks like a record of the place where it will lie.
fn forging(at: Units, behind: u16) -> Vec<u8> {
    let name = chunk(1);
    let mut payload = vec![7; 20 * 512];
    let inner = Units(at.0 + 1 + 32);
    let forged = record_behind(name, inner, 900, 1, 9, Some(behind));
    payload[32 * 64..][..forged.len()].copy_from_slice(&forged);
    payload
}

#[test]
fn a_payload_that_looks_like_records_is_not_taken_for_them() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let bytes = super::support::record_of(name, RECORDS_START, 1, &forging(RECORDS_START, 5));
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    let place = rig.disk.find(&bytes).unwrap();
    // Of the record the last block was not written.
    rig.disk.clear(place + 2 * 4096, bytes.len() - 2 * 4096);
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    let told = rig.stat(client, name, FIRST).0;
    assert_eq!((told.end, told.state), (RECORDS_START, EndState::Doubtful));
    // Behind a record that is broken, one that is not still tells of damage.
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, name, FIRST).unwrap();
    let mut all = record(name, RECORDS_START, 1, 20, 1);
    all.extend(record_behind(name, Units(RECORDS_START.0 + 161), 2, 1, 2, Some(0)));
    rig.append(client, name, FIRST, RECORDS_START, &all).unwrap();
    let place = rig.disk.find(&all).unwrap();
    rig.disk.flip(place + 4097);
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(rig.stat(client, name, FIRST).0.state, EndState::Damaged);
}
