//! Directories of sealed chunks: lists come from them, and broken records are mended by them; nothing depends on them.

use ob_core::{ChunkName, DeviceOp, Units};
use ob_format::volume::{Entry, RECORDS_START, Record, entries_of};
use ob_volume::chunk::ChunkServerConfig;
use ob_volume::wire::{CreateState, EndState, Refusal, Reply, Request, decode_entries};

use super::support::{
    CHUNK_UNITS, Client, FIRST, Rig, chunk, config, create, epoch, record, records, result, units,
};

const PATH: &str = "chunks/0000000000000003/00000001/00000001.dir";

fn end_of(bytes: &[u8]) -> Units {
    Units(RECORDS_START.0 + units(bytes).0)
}

fn seal(rig: &mut Rig, client: Client, name: ChunkName, bytes: &[u8]) {
    let content_crc = crc32c::crc32c(bytes);
    let seal = Request::Seal { chunk: name, epoch: FIRST, length: end_of(bytes), content_crc };
    assert_eq!(rig.get(client, seal), Ok(Reply::Seal));
    rig.run();
}

/// A sealed chunk, and its records.
fn with_a_sealed_chunk(config: ChunkServerConfig) -> (Rig, Client, Vec<u8>) {
    let mut rig = Rig::with(config, 64 << 20);
    let client = rig.greet(0, 1);
    let name = chunk(1);
    let mut request = create(name, FIRST, CreateState::Open);
    if let Request::Create { may_use_reserve, .. } = &mut request {
        *may_use_reserve = true;
    }
    rig.get(client, request).unwrap();
    let bytes = records(name, RECORDS_START, &[1, 2, 40, 3, 100]);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    rig.get(client, Request::Stop { chunk: name, epoch: FIRST }).unwrap();
    seal(&mut rig, client, name, &bytes);
    (rig, client, bytes)
}

/// All entries, asked for in pieces.
fn list(rig: &mut Rig, client: Client, most: u32) -> Result<Vec<Entry>, Refusal> {
    let (mut entries, mut from) = (Vec::new(), RECORDS_START);
    loop {
        let request = Request::List { chunk: chunk(1), epoch: FIRST, from, to: CHUNK_UNITS, most };
        let (told, payload) = rig.ask(client, request, &[]);
        let Reply::List { next } = result(told)? else { panic!("{told:?}") };
        entries.extend(decode_entries(&payload).unwrap());
        if next == CHUNK_UNITS {
            return Ok(entries);
        }
        from = next;
    }
}

fn entries(bytes: &[u8]) -> Vec<Entry> {
    let mut rest = bytes;
    let mut entries = Vec::new();
    while let Ok(record) = Record::decode(rest) {
        entries.extend(entries_of(&record));
        rest = &rest[record.header.len()..];
    }
    entries
}

#[test]
fn a_sealed_chunk_is_listed_by_its_directory() {
    let (mut rig, client, bytes) = with_a_sealed_chunk(config());
    assert!(rig.has_path(PATH));
    for most in [1, 2, 5, 100] {
        assert_eq!(list(&mut rig, client, most).unwrap(), entries(&bytes));
    }
    // No record is needed for it, in other lives neither.
    let place = rig.disk.find(&bytes).unwrap();
    rig.disk.flip(place + 8);
    rig.disk.flip(place + 576 + 8);
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(list(&mut rig, client, 2).unwrap(), entries(&bytes));
    let nowhere = Request::List {
        chunk: chunk(1),
        epoch: FIRST,
        from: Units(RECORDS_START.0 + 1),
        to: CHUNK_UNITS,
        most: 9,
    };
    assert_eq!(rig.get(client, nowhere), Err(Refusal::Damaged));
    rig.get(client, Request::Delete { chunk: chunk(1), epoch: FIRST }).unwrap();
    assert!(!rig.has_path(PATH));
}

#[test]
fn a_directory_that_is_broken_or_missing_is_made_anew() {
    // In the first life there is no room for it.
    let (mut rig, client, bytes) =
        with_a_sealed_chunk(ChunkServerConfig { reserve_len: 1 << 40, ..config() });
    assert!(!rig.has_path(PATH));
    assert_eq!(list(&mut rig, client, 2).unwrap(), entries(&bytes));
    assert!(!rig.has_path(PATH));
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert!(!rig.has_path(PATH));
    assert_eq!(list(&mut rig, client, 2).unwrap(), entries(&bytes));
    rig.run();
    assert!(rig.has_path(PATH));
    let place = find(&rig, b"OBCD").unwrap();
    rig.disk.flip(place + 40);
    assert_eq!(list(&mut rig, client, 2).unwrap(), entries(&bytes));
    rig.run();
    // It is whole again: the records are not needed.
    let records = rig.disk.find(&bytes).unwrap();
    rig.disk.flip(records + 8);
    assert_eq!(list(&mut rig, client, 2).unwrap(), entries(&bytes));
}

/// Where a block begins like this.
fn find(rig: &Rig, start: &[u8]) -> Option<usize> {
    (0..(64 << 20) / 4096).map(|block| block * 4096).find(|at| rig.disk.is_at(*at, start))
}

#[test]
fn a_directory_of_an_earlier_length_is_not_listed_by() {
    let (mut rig, client, mut bytes) = with_a_sealed_chunk(config());
    let at = end_of(&bytes);
    let more = records(chunk(1), at, &[7, 7]);
    bytes.extend(&more);
    let content_crc = crc32c::crc32c(&bytes);
    let longer = Request::Seal { chunk: chunk(1), epoch: epoch(2), length: end_of(&bytes), content_crc };
    assert_eq!(rig.get(client, longer), Err(Refusal::Gap { end: at }));
    let fill = Request::Fill { chunk: chunk(1), epoch: epoch(2), offset: at };
    assert!(result(rig.ask(client, fill, &more).0).is_ok());
    // The power goes when the ledger has it, and nothing else is durable.
    rig.disk.hold(|op| match op {
        DeviceOp::Write { from, .. } => !from.starts_with(b"OBCL"),
        DeviceOp::Read { .. } => false,
        _ => true,
    });
    assert_eq!(rig.get(client, longer), Ok(Reply::Seal));
    let mut rig = rig.lose_power();
    assert!(rig.has_path(PATH));
    let client = rig.greet(0, 1);
    rig.get(client, Request::Fence { segment: chunk(1).segment_name(), epoch: epoch(2) }).unwrap();
    let request =
        Request::List { chunk: chunk(1), epoch: epoch(2), from: RECORDS_START, to: CHUNK_UNITS, most: 99 };
    let (told, payload) = rig.ask(client, request, &[]);
    assert!(result(told).is_ok(), "{told:?}");
    assert!(decode_entries(&payload).unwrap().eq(entries(&bytes)));
}

#[test]
fn a_record_whose_header_is_gone_is_mended_by_the_directory() {
    let (mut rig, client, bytes) = with_a_sealed_chunk(config());
    let place = rig.disk.find(&bytes).unwrap();
    let repair = Request::Repair { chunk: chunk(1), epoch: FIRST, offset: RECORDS_START };
    rig.disk.clear(place, 64);
    let others = [record(chunk(1), RECORDS_START, 77, 1, 1), record(chunk(1), RECORDS_START, 65, 2, 1)];
    for other in others {
        assert_eq!(result(rig.ask(client, repair, &other).0), Err(Refusal::Conflict));
    }
    assert_eq!(result(rig.ask(client, repair, &bytes[..576]).0), Ok(Reply::Repair));
    assert_eq!(rig.read(client, chunk(1), RECORDS_START, bytes.len() as u32).unwrap(), bytes);
    // Without it the headers before a place say what begins there (R8), and before the first there are none.
    let directory = find(&rig, b"OBCD").unwrap();
    rig.disk.flip(directory + 33);
    rig.disk.clear(place, 64);
    let second = Request::Repair { chunk: chunk(1), epoch: FIRST, offset: Units(RECORDS_START.0 + 9) };
    let first = Err(Refusal::Beside { at: RECORDS_START });
    rig.disk.clear(place + 576, 64);
    assert_eq!(result(rig.ask(client, second, &bytes[576..576 + 1088]).0), first);
    assert_eq!(result(rig.ask(client, repair, &bytes[..576]).0), Ok(Reply::Repair));
    assert_eq!(result(rig.ask(client, second, &bytes[576..576 + 1088]).0), Ok(Reply::Repair));
    assert_eq!(rig.read(client, chunk(1), RECORDS_START, bytes.len() as u32).unwrap(), bytes);
    let (end, _) = rig.stat(client, chunk(1), FIRST);
    assert_eq!(end.state, EndState::Known);
}

#[test]
fn reads_do_not_wait_for_a_directory() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let bytes = records(name, RECORDS_START, &[100, 100]);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    rig.get(client, Request::Stop { chunk: name, epoch: FIRST }).unwrap();
    rig.disk.hold(|op| matches!(op, DeviceOp::Write { from, .. } if from.starts_with(b"OBCD")));
    seal(&mut rig, client, name, &bytes);
    assert_eq!(rig.read(client, name, RECORDS_START, 4096).unwrap(), bytes[..4096]);
    rig.disk.release();
    rig.run();
    assert!(rig.has_path(PATH));
}
