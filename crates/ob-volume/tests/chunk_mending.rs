//! Blocks that cannot be read: what lies beside them is given, and what lies in them is written anew, with nothing that was guessed.

use ob_core::{ChunkName, Units};
use ob_format::volume::{RECORDS_START, Record};
use ob_volume::chunk::ChunkServerConfig;
use ob_volume::wire::{CreateState, Refusal, Reply, Request};

use super::support::{Client, FIRST, Rig, chunk, config, create, record, records, result, units};

/// Bytes of the disk's blocks.
const BLOCK: usize = 4096;
/// Records of all lengths that there are, in blocks of 512 bytes: many in a block of the disk, and many blocks to one.
const LENGTHS: [u32; 16] = [1, 2, 40, 3, 100, 1, 1, 1, 1, 1, 1, 1, 1, 128, 128, 5];

/// A sealed chunk, its records, and where they lie on the disk.
fn with_a_sealed_chunk(config: ChunkServerConfig) -> (Rig, Client, Vec<u8>, usize) {
    let mut rig = Rig::with(config, 64 << 20);
    let client = rig.greet(0, 1);
    let name = chunk(1);
    let mut request = create(name, FIRST, CreateState::Open);
    if let Request::Create { may_use_reserve, .. } = &mut request {
        *may_use_reserve = true;
    }
    rig.get(client, request).unwrap();
    let bytes = records(name, RECORDS_START, &LENGTHS);
    rig.append(client, name, FIRST, RECORDS_START, &bytes).unwrap();
    rig.get(client, Request::Stop { chunk: name, epoch: FIRST }).unwrap();
    let length = Units(RECORDS_START.0 + units(&bytes).0);
    let content_crc = crc32c::crc32c(&bytes);
    rig.get(client, Request::Seal { chunk: name, epoch: FIRST, length, content_crc }).unwrap();
    rig.run();
    let place = rig.disk.find(&bytes).unwrap();
    assert!(rig.disk.is_at(place, &bytes) && place.is_multiple_of(BLOCK), "it lies in one piece");
    (rig, client, bytes, place)
}

/// Where records begin, and their bytes.
fn split(bytes: &[u8]) -> Vec<(Units, Vec<u8>)> {
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(record) = Record::decode(&bytes[at..]) {
        let end = at + record.header.len();
        found.push((Units(RECORDS_START.0 + at as u32 / 64), bytes[at..end].to_vec()));
        at = end;
    }
    found
}

fn repair(rig: &mut Rig, client: Client, at: Units, record: &[u8]) -> Result<Reply, Refusal> {
    result(rig.ask(client, Request::Repair { chunk: chunk(1), epoch: FIRST, offset: at }, record).0)
}

/// Writes a record over what is broken, and before it what lies beside it, as the server says. The places that it was sent.
fn mend(rig: &mut Rig, client: Client, bytes: &[u8], at: Units) -> Vec<Units> {
    let all = split(bytes);
    let of = |at: Units| all.iter().find(|(place, _)| *place == at).expect("a record begins there").1.clone();
    let mut sent = Vec::new();
    for _ in 0..200 {
        match repair(rig, client, at, &of(at)) {
            Ok(_) => return sent,
            Err(Refusal::Beside { at: other }) => {
                assert!(sent.last().is_none_or(|last| *last < other), "each of them once, in their order");
                sent.push(other);
                let told = repair(rig, client, other, &of(other));
                assert!(matches!(told, Ok(Reply::Repair) | Err(Refusal::Beside { .. })), "{told:?}");
            }
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
    panic!("it is never done");
}

fn read(rig: &mut Rig, client: Client, at: Units, len: usize) -> Result<Vec<u8>, Refusal> {
    let read = Request::Read { chunk: chunk(1), epoch: FIRST, offset: at, len: len as u32 };
    let (told, payload) = rig.ask(client, read, &[]);
    result(told).map(|_| payload)
}

#[test]
fn a_read_gives_what_lies_before_a_block_that_cannot_be_read() {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(config());
    for broken in (0..bytes.len()).step_by(BLOCK) {
        rig.disk.fail_reads_at(place + broken);
        for from in [0, 64, 4096, 4160, 20_032] {
            let at = Units(RECORDS_START.0 + from as u32 / 64);
            let whole = (bytes.len() - from) & !63;
            let told = read(&mut rig, client, at, whole);
            if from / BLOCK == broken / BLOCK {
                assert_eq!(told, Err(Refusal::Medium), "{broken} from {from}");
            } else {
                let end = if broken > from { broken } else { bytes.len() };
                assert_eq!(told.unwrap().len(), end - from, "{broken} from {from}");
            }
        }
        let before = read(&mut rig, client, RECORDS_START, broken.max(64));
        assert_eq!(before.ok(), (broken > 0).then(|| bytes[..broken].to_vec()));
        rig.disk.heal();
    }
    // The first of two counts.
    rig.disk.break_block(place + 9 * BLOCK);
    rig.disk.break_block(place + 5 * BLOCK);
    assert_eq!(read(&mut rig, client, RECORDS_START, bytes.len()).unwrap(), bytes[..5 * BLOCK]);
    assert_eq!(read(&mut rig, client, Units(64 + 6 * 64), 8 * BLOCK).unwrap(), bytes[6 * BLOCK..9 * BLOCK]);
}

/// One whose chunks have no directory: there is no room for it.
fn without_directories() -> ChunkServerConfig {
    ChunkServerConfig { reserve_len: 1 << 40, ..config() }
}

/// Whichever block cannot be read: each record that has a part of it can be mended, with what lies beside it, as the directory says, or as
/// headers do.
#[test]
fn a_record_is_mended_with_what_lies_in_its_blocks() {
    mend_each(config());
    mend_each(without_directories());
}

fn mend_each(config: ChunkServerConfig) {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(config);
    let all = split(&bytes);
    assert_eq!(all.len(), LENGTHS.len());
    let mut besides = 0;
    for broken in (0..bytes.len()).step_by(BLOCK) {
        for (at, record) in &all {
            let start = (at.0 - RECORDS_START.0) as usize * 64;
            if start >= broken + BLOCK || start + record.len() <= broken {
                continue;
            }
            rig.disk.break_block(place + broken);
            besides += mend(&mut rig, client, &bytes, *at).len();
            assert_eq!(rig.disk.broken_blocks(), 0, "block {broken}, record {at:?}");
            assert!(rig.disk.is_at(place, &bytes));
        }
    }
    assert!(besides > 40, "{besides} records lay beside others");
    // It is as long as it was, in the next life too.
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(read(&mut rig, client, RECORDS_START, bytes.len() + 64).unwrap(), bytes);
}

/// However long the stretch is that cannot be read.
#[test]
fn records_of_many_blocks_that_cannot_be_read_are_mended() {
    mend_many(config());
    mend_many(without_directories());
}

fn mend_many(config: ChunkServerConfig) {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(config);
    for (from, to) in [(0, bytes.len()), (BLOCK, 4 * BLOCK), (6 * BLOCK, 40 * BLOCK)] {
        (from..to).step_by(BLOCK).for_each(|at| rig.disk.break_block(place + at));
        for (at, _) in split(&bytes) {
            mend(&mut rig, client, &bytes, at);
            let record = read(&mut rig, client, at, 65_600).unwrap();
            let start = (at.0 - RECORDS_START.0) as usize * 64;
            assert!(bytes[start..].starts_with(&record[..64]), "it can be read again");
        }
        assert_eq!(rig.disk.broken_blocks(), 0);
        assert!(rig.disk.is_at(place, &bytes));
    }
}

/// What cannot be read now may be the last there is of what lies beside: nothing is written over it that was not sent.
#[test]
fn what_lies_beside_a_record_is_not_guessed() {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(config());
    let all = split(&bytes);
    // The second record ends in the block in which the third begins.
    rig.disk.break_block(place);
    let (at, record) = &all[1];
    assert_eq!(repair(&mut rig, client, *at, record), Err(Refusal::Beside { at: all[0].0 }));
    assert_eq!(rig.disk.broken_blocks(), 1, "it is not written");
    // What is kept is in memory alone.
    let mut rig = rig.restart();
    let client = rig.greet(0, 1);
    assert_eq!(repair(&mut rig, client, all[0].0, &all[0].1), Err(Refusal::Beside { at: *at }));
    assert_eq!(repair(&mut rig, client, *at, record), Err(Refusal::Beside { at: all[2].0 }));
    assert_eq!(repair(&mut rig, client, all[2].0, &all[2].1), Ok(Reply::Repair));
    assert!(rig.disk.is_at(place, &bytes));
}

#[test]
fn what_was_kept_of_a_chunk_goes_with_it() {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(config());
    let all = split(&bytes);
    rig.disk.break_block(place);
    assert!(repair(&mut rig, client, all[0].0, &all[0].1).is_err());
    rig.get(client, Request::Delete { chunk: chunk(1), epoch: FIRST }).unwrap();
    assert_eq!(repair(&mut rig, client, all[1].0, &all[1].1), Err(Refusal::NoChunk));
}

/// Where no header can be read before a record, that one is wanted first; and what does not lie there by the headers is not taken.
#[test]
fn without_a_directory_records_are_mended_in_their_order() {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(without_directories());
    let all = split(&bytes);
    rig.disk.break_block(place);
    assert_eq!(repair(&mut rig, client, all[1].0, &all[1].1), Err(Refusal::Beside { at: all[0].0 }));
    assert_eq!(repair(&mut rig, client, all[0].0, &all[0].1), Err(Refusal::Beside { at: all[1].0 }));
    let nowhere = Units(all[1].0.0 + 1);
    let moved = record(chunk(1), nowhere, 1, 1, 2);
    assert_eq!(repair(&mut rig, client, nowhere, &moved), Err(Refusal::Beside { at: all[1].0 }));
    assert_eq!(rig.disk.broken_blocks(), 1, "nothing is written");
    assert_eq!(repair(&mut rig, client, all[1].0, &all[1].1), Err(Refusal::Beside { at: all[2].0 }));
    assert_eq!(repair(&mut rig, client, all[2].0, &all[2].1), Ok(Reply::Repair));
    assert!(rig.disk.broken_blocks() == 0 && rig.disk.is_at(place, &bytes));
}

/// A header that can be read and has rotted is the same to what lies behind it: nobody can say where that begins.
#[test]
fn without_a_directory_headers_that_have_rotted_are_mended_first() {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(without_directories());
    let all = split(&bytes);
    let of = |number: usize| (all[number].0.0 - RECORDS_START.0) as usize * 64;
    let far = of(14);
    assert!(far / BLOCK > of(4) / BLOCK + 1, "it lies far behind those that have rotted");
    rig.disk.flip(place + of(1) + 9);
    rig.disk.flip(place + of(3) + 9);
    rig.disk.break_block(place + far / BLOCK * BLOCK);
    let (at, record) = &all[14];
    assert_eq!(repair(&mut rig, client, *at, record), Err(Refusal::Beside { at: all[1].0 }));
    // A record whose header is whole is not written over by another, nor what lies within one.
    let later = record_like(all[0].0, 999);
    assert_eq!(repair(&mut rig, client, all[0].0, &later), Err(Refusal::Conflict));
    let within = Units(all[2].0.0 + 1);
    assert_eq!(repair(&mut rig, client, all[1].0, &all[1].1), Ok(Reply::Repair));
    assert_eq!(repair(&mut rig, client, within, &record_like(within, 2)), Err(Refusal::Conflict));
    assert!(mend(&mut rig, client, &bytes, *at).starts_with(&[all[3].0]));
    assert_eq!(rig.disk.broken_blocks(), 0);
    assert!(rig.disk.is_at(place, &bytes));
}

/// A record of one block, which another has been at this place.
fn record_like(at: Units, sequence: u64) -> Vec<u8> {
    record(chunk(1), at, sequence, 1, 2)
}

/// What is no record of the place is not taken, whatever can be read there, and is not kept.
#[test]
fn what_is_not_of_the_place_is_refused_where_nothing_can_be_read() {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(config());
    let all = split(&bytes);
    rig.disk.break_block(place);
    let other = ChunkName { chunk: ob_core::ChunkId(2), ..chunk(1) };
    let (at, longer) = (all[1].0, record(chunk(1), all[1].0, u64::from(all[1].0.0) + 1, 3, 2));
    assert_eq!(repair(&mut rig, client, at, &longer), Err(Refusal::Conflict), "another length");
    let later = record(chunk(1), at, 999, 2, 2);
    assert_eq!(repair(&mut rig, client, at, &later), Err(Refusal::Conflict), "another sequence");
    let nowhere = Units(at.0 + 1);
    let moved = record(chunk(1), nowhere, 1, 1, 2);
    assert_eq!(repair(&mut rig, client, nowhere, &moved), Err(Refusal::Conflict), "no record begins there");
    let foreign = record(other, at, u64::from(at.0) + 1, 2, 2);
    assert_eq!(repair(&mut rig, client, at, &foreign), Err(Refusal::Bad), "of another chunk");
    let mut rotten = all[1].1.clone();
    rotten[100] ^= 1;
    assert_eq!(repair(&mut rig, client, at, &rotten), Err(Refusal::Bad), "its sum is wrong");
    // Two at once are none.
    assert_eq!(repair(&mut rig, client, all[0].0, &bytes[..576 + 1088]), Err(Refusal::Bad));
    // Of all that nothing was kept.
    assert_eq!(repair(&mut rig, client, all[0].0, &all[0].1), Err(Refusal::Beside { at }));
}

fn check(rig: &mut Rig, client: Client, at: Units) -> Result<Units, Refusal> {
    let told = rig.ask(client, Request::Check { chunk: chunk(1), epoch: FIRST, offset: at }, &[]).0;
    result(told).map(|reply| match reply {
        Reply::Check { sound } => sound,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_check_says_how_far_records_are_whole_on_the_device() {
    let (mut rig, client, bytes, place) = with_a_sealed_chunk(config());
    let end = Units(RECORDS_START.0 + units(&bytes).0);
    let all = split(&bytes);
    for (at, record) in &all {
        assert_eq!(check(&mut rig, client, *at), Ok(end));
        let start = (at.0 - RECORDS_START.0) as usize * 64;
        // In its header, and in what it has.
        for flipped in [9, record.len() - 1] {
            rig.disk.flip(place + start + flipped);
            let before = (*at > RECORDS_START).then_some(*at).ok_or(Refusal::Damaged);
            assert_eq!(check(&mut rig, client, RECORDS_START), before);
            assert_eq!(check(&mut rig, client, *at), Err(Refusal::Damaged));
            rig.disk.flip(place + start + flipped);
        }
        rig.disk.fail_reads_at(place + start + record.len() - 1);
        assert_eq!(check(&mut rig, client, *at), Err(Refusal::Medium));
        rig.disk.heal();
    }
    assert_eq!(
        check(&mut rig, client, Units(all[1].0.0 + 1)),
        Err(Refusal::Damaged),
        "no record begins there"
    );
    assert_eq!(check(&mut rig, client, end), Err(Refusal::Bad));
}

#[test]
fn a_chunk_that_is_not_sealed_is_not_checked() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    let bytes = records(chunk(1), RECORDS_START, &[4]);
    rig.append(client, chunk(1), FIRST, RECORDS_START, &bytes).unwrap();
    assert_eq!(check(&mut rig, client, RECORDS_START), Err(Refusal::Bad));
    rig.get(client, Request::Delete { chunk: chunk(1), epoch: FIRST }).unwrap();
    assert_eq!(check(&mut rig, client, RECORDS_START), Err(Refusal::NoChunk));
}
