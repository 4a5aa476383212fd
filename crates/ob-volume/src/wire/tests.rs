//! Golden bytes (`golden.txt`, put together from the document's tables, not by this code), round trips, and what cannot be.

use ob_core::{
    BlockLen, ChunkId, ChunkName, Epoch, Incarnation, Lba, PoolId, SegmentId, Sequence, ServerId, TierId,
    Units, VolumeId, checksum_of,
};
use ob_format::volume::metadata::Text;
use ob_format::volume::{ChunkKind, Encoding, Entry, LayoutError, Record, RecordHeader, RecordKind};
use proptest::prelude::*;

use super::*;

const CHUNK: ChunkName = ChunkName {
    volume: VolumeId(0x1122_3344_5566_7788),
    segment: SegmentId(0x0a0b_0c0d),
    chunk: ChunkId(0x0102_0304),
};
const TAG: u64 = 0x0102_0304_0506_0708;
const CRC: u32 = 0xcafe_f00d;

fn golden(name: &str) -> Vec<u8> {
    let line = include_str!("golden.txt").lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    let digits = line.unwrap_or_else(|| panic!("there is no {name}"));
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn epoch() -> Epoch {
    Epoch::new(9).unwrap()
}

fn pool() -> PoolId {
    PoolId(std::array::from_fn(|at| at as u8 + 0x10))
}

/// Requests of each shape, with the length of their payloads.
fn requests() -> Vec<(&'static str, u32, Request)> {
    let (chunk, epoch) = (CHUNK, epoch());
    let create = Request::Create {
        chunk,
        epoch,
        length: Units(1 << 20),
        block_len: BlockLen::Large,
        state: CreateState::Filling,
        kind: ChunkKind::Index,
        may_use_reserve: true,
    };
    let after = ChunkName { chunk: ChunkId(0), ..chunk };
    vec![
        ("hello", 36, Request::Hello { port: 2, tier: TierId(0x77), session: 5 }),
        ("create", 0, create),
        ("append", 128, Request::Append { chunk, epoch, offset: Units(70) }),
        ("read", 0, Request::Read { chunk, epoch, offset: Units(64), len: 1 << 20 }),
        ("seal", 0, Request::Seal { chunk, epoch, length: Units(92), content_crc: CRC }),
        ("list", 0, Request::List { chunk, epoch, from: Units(64), to: Units(92), most: 32768 }),
        ("chunks", 0, Request::Chunks { after, is_of_segment: true, most: 1000 }),
        ("fence", 0, Request::Fence { segment: chunk.segment_name(), epoch }),
    ]
}

fn replies() -> Vec<(&'static str, u32, Answer)> {
    let end = End { end: Units(92), everywhere: Units(90), state: EndState::Clean, content_crc: CRC };
    let refused = |kind: u8, refusal| Answer::Refused { kind, refusal };
    vec![
        (
            "good_hello",
            84,
            Answer::Good(Reply::Hello { server: ServerId(0x99), incarnation: Incarnation(3) }),
        ),
        ("good_append", 0, Answer::Good(Reply::Append { durable: Units(72), free: 1 << 40 })),
        ("good_stat", 0, Answer::Good(Reply::Stat { end, state: ReplicaState::Stopped })),
        ("good_list", 68, Answer::Good(Reply::List { next: Units(92) })),
        ("stale", 0, refused(4, Refusal::Stale { known: 10 })),
        ("gap", 0, refused(4, Refusal::Gap { end: Units(80) })),
        ("version", 0, refused(1, Refusal::Version { least: 2, most: 3 })),
        ("unknown_kind", 0, refused(0x63, Refusal::UnknownKind)),
    ]
}

#[test]
fn requests_and_replies_have_these_bytes() {
    for (name, payload_len, request) in requests() {
        let message = RequestMessage { tag: TAG, payload_len, request };
        assert_eq!(message.encode().unwrap()[..], golden(name), "{name}");
        assert_eq!(RequestMessage::decode(&golden(name)), Ok(message), "{name}");
    }
    for (name, payload_len, answer) in replies() {
        let message = ReplyMessage { tag: TAG, payload_len, answer };
        assert_eq!(message.encode().unwrap()[..], golden(name), "{name}");
        assert_eq!(ReplyMessage::decode(&golden(name)), Ok(message), "{name}");
    }
}

fn lines() -> [ChunkLine; 1] {
    let (state, kind) = (ReplicaState::Sealed, ChunkKind::Data);
    [ChunkLine { chunk: CHUNK, epoch: epoch(), state, kind, end: Units(92), allocated_kib: 8 }]
}

fn entries() -> [Entry; 2] {
    let entry = Entry {
        offset: Units(64),
        stored: 512,
        sequence: Sequence(9 << 36 | 5),
        lba: Lba(3),
        blocks: 1,
        kind: RecordKind::Write,
        encoding: Encoding::None,
    };
    let moved = Entry {
        offset: Units(73),
        stored: 700,
        sequence: Sequence(9 << 36 | 4),
        lba: Lba(16),
        blocks: 16,
        kind: RecordKind::Move,
        encoding: Encoding::Lz4,
    };
    [entry, moved]
}

#[test]
fn payloads_have_these_bytes() {
    let hello =
        HelloPayload { pool: pool(), version_least: 1, version_most: 2, server: Some(ServerId(0x99)) };
    assert_eq!(hello.encode().unwrap()[..], golden("hello_payload"));
    assert_eq!(HelloPayload::decode(&golden("hello_payload")), Ok(hello));
    let welcome = WelcomePayload {
        pool: Some(pool()),
        version: 1,
        block_len: 4096,
        capacity: 1 << 40,
        free: 1 << 39,
        requests_max: 256,
        window_len: WINDOW_LEN,
        domain: Text::new("rack 7").unwrap(),
    };
    assert_eq!(welcome.encode().unwrap()[..], golden("welcome_payload"));
    assert_eq!(WelcomePayload::decode(&golden("welcome_payload")), Ok(welcome));
    assert_eq!(encode_entries(&entries()).unwrap(), golden("entries"));
    assert!(decode_entries(&golden("entries")).unwrap().eq(entries()));
    assert_eq!(encode_chunks(&lines()).unwrap(), golden("lines"));
    assert!(decode_chunks(&golden("lines")).unwrap().eq(lines()));
}

#[test]
fn a_byte_that_has_changed_is_noticed() {
    type IsRead = fn(&[u8]) -> bool;
    let is_header: IsRead =
        |bytes| RequestMessage::decode(bytes).is_ok() || ReplyMessage::decode(bytes).is_ok();
    let read: [(&str, IsRead); 6] = [
        ("create", is_header),
        ("good_stat", is_header),
        ("hello_payload", |bytes| HelloPayload::decode(bytes).is_ok()),
        ("welcome_payload", |bytes| WelcomePayload::decode(bytes).is_ok()),
        ("entries", |bytes| decode_entries(bytes).is_ok()),
        ("lines", |bytes| decode_chunks(bytes).is_ok()),
    ];
    for (name, is_read) in read {
        let bytes = golden(name);
        assert!(is_read(&bytes), "{name}");
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut broken = bytes.clone();
                broken[at] ^= flip;
                assert!(!is_read(&broken), "{name}, byte {at}");
            }
            assert!(!is_read(&bytes[..at]), "{name}, {at} bytes");
        }
    }
}

/// A golden header with other bytes at a place, and a checksum that is right.
fn altered(name: &str, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut header = golden(name);
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = checksum_of(&header, 20);
    header[20..24].copy_from_slice(&crc.to_le_bytes());
    header
}

#[test]
fn what_cannot_be_asked_is_refused_and_answered() {
    for (name, at, bytes) in [
        ("hello", 16, &[35][..]),
        ("hello", 24, &[1]),
        ("hello", 40, &[1]),
        ("hello", 48, &[0]),
        ("create", 6, &[2]),
        ("create", 24, &[0; 8]),
        ("create", 36, &[0; 4]),
        ("create", 40, &[0; 4]),
        ("create", 43, &[0x10]),
        ("create", 44, &[64, 0, 0, 0]),
        ("create", 44, &[0xff; 4]),
        ("create", 48, &[1]),
        ("create", 52, &[3]),
        ("create", 56, &[3]),
        ("create", 57, &[1]),
        ("append", 16, &[0]),
        ("append", 16, &[1]),
        ("append", 16, &[64, 0, 0x10]),
        ("append", 44, &[63]),
        ("append", 4, &[1]),
        ("append", 6, &[1]),
        ("append", 48, &[1]),
        ("read", 16, &[64]),
        ("read", 48, &[1]),
        ("read", 48, &[0; 8]),
        ("read", 48, &[0, 0, 0x20]),
        ("read", 52, &[1]),
        ("seal", 44, &[63]),
        ("seal", 52, &[1]),
        ("list", 48, &[63]),
        ("list", 56, &[1]),
        ("list", 56, &[0; 8]),
        ("chunks", 44, &[0; 4]),
        ("chunks", 44, &[0, 0, 1]),
        ("chunks", 40, &[1]),
        ("fence", 36, &[1]),
        ("fence", 40, &[0]),
    ] {
        let found = RequestMessage::decode(&altered(name, at, bytes));
        let Err(error @ WireError::Field { .. }) = found else {
            panic!("{name} with {bytes:?} at {at}: {found:?}")
        };
        let Some((kind, TAG, Refusal::Bad)) = error.refusal() else { panic!("{error} is not answered") };
        assert_eq!(kind, golden(name)[3]);
    }
    let unknown = RequestMessage::decode(&altered("fence", 3, &[16])).unwrap_err();
    assert_eq!(unknown.refusal(), Some((16, TAG, Refusal::UnknownKind)));
    for (at, byte) in [(0, b'X'), (2, 2), (18, 0x12), (3, 0x84)] {
        let error = RequestMessage::decode(&altered("append", at, &[byte])).unwrap_err();
        assert_eq!(error.refusal(), None, "{error}");
    }
}

#[test]
fn what_cannot_be_answered_is_refused() {
    for (name, at, bytes) in [
        ("good_hello", 16, &[0][..]),
        ("good_hello", 48, &[0]),
        ("good_append", 16, &[1]),
        ("good_append", 44, &[63]),
        ("good_append", 24, &[1]),
        ("good_append", 40, &[1]),
        ("good_append", 3, &[0x04]),
        ("good_append", 3, &[0x8f]),
        ("good_append", 4, &[16]),
        ("good_stat", 6, &[0]),
        ("good_stat", 6, &[5]),
        ("good_stat", 44, &[63]),
        ("good_stat", 48, &[63]),
        ("good_stat", 52, &[4]),
        ("good_stat", 60, &[1]),
        ("good_list", 16, &[67]),
        ("good_list", 16, &[0]),
        ("stale", 44, &[1]),
        ("stale", 16, &[1]),
        ("gap", 48, &[1]),
        ("version", 45, &[1]),
        ("unknown_kind", 4, &[9]),
    ] {
        let found = ReplyMessage::decode(&altered(name, at, bytes));
        assert!(found.is_err(), "{name} with {bytes:?} at {at}: {found:?}");
    }
}

#[test]
fn what_would_be_refused_is_not_sent() {
    let append = Request::Append { chunk: CHUNK, epoch: epoch(), offset: Units(64) };
    assert!(RequestMessage { tag: 1, payload_len: 65, request: append }.encode().is_err());
    assert!(RequestMessage { tag: 1, payload_len: RECORDS_MAX + 64, request: append }.encode().is_err());
    let answer = Answer::Refused { kind: 99, refusal: Refusal::Busy };
    assert!(ReplyMessage { tag: 1, payload_len: 0, answer }.encode().is_err());
    let [first, second] = entries();
    assert!(encode_entries(&[second, first]).is_err());
    let [line] = lines();
    assert!(encode_chunks(&[line, line]).is_err());
    assert!(encode_entries(&vec![first; LIST_MAX as usize + 1]).is_err());
}

#[test]
fn lists_that_cannot_be_are_refused_though_their_sums_fit() {
    let sealed = |mut bytes: Vec<u8>| {
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    };
    let golden_entries = golden("entries");
    let (first, second) = (&golden_entries[..32], &golden_entries[32..64]);
    assert!(decode_entries(&sealed([first, second].concat())).is_ok());
    assert!(decode_entries(&sealed([second, first].concat())).is_err());
    assert!(decode_entries(&sealed(first[..31].to_vec())).is_err());
    assert!(decode_entries(&sealed(first.repeat(LIST_MAX as usize + 1))).is_err());
    assert_eq!(decode_entries(&sealed(Vec::new())).unwrap().len(), 0);
    let line = &golden("lines")[..32];
    for (at, byte) in [(20, 0), (20, 5), (21, 3), (22, 1), (16, 0), (24, 63)] {
        let mut broken = line.to_vec();
        broken[at] = byte;
        assert!(decode_chunks(&sealed(broken)).is_err(), "{byte} at {at}");
    }
}

fn record(offset: u32, payload: &[u8], into: &mut Vec<u8>) {
    let header = RecordHeader {
        chunk: CHUNK,
        offset: Units(offset),
        sequence: Sequence(9 << 36),
        version: Sequence(9 << 36),
        lba: Lba(1),
        blocks: 1,
        stored: payload.len() as u32,
        payload_crc: crc32c::crc32c(payload),
        kind: RecordKind::Write,
        encoding: Encoding::Lz4,
        behind: None,
    };
    Record { header, payload }.encode_into(into).unwrap();
}

#[test]
fn records_of_an_append_are_of_its_place() {
    let mut payload = Vec::new();
    record(70, &[1; 100], &mut payload);
    record(73, &[2; 10], &mut payload);
    assert_eq!(check_records(CHUNK, Units(70), &payload), Ok(Units(75)));
    assert!(check_records(CHUNK, Units(71), &payload).is_err());
    assert!(check_records(ChunkName { chunk: ChunkId(1), ..CHUNK }, Units(70), &payload).is_err());
    assert!(check_records(CHUNK, Units(70), &payload[..payload.len() - 64]).is_err());
    assert!(check_records(CHUNK, Units(70), &[]).is_err());
    record(76, &[2; 10], &mut payload);
    assert!(check_records(CHUNK, Units(70), &payload).is_err());
    let mut broken = payload.clone();
    broken[64] ^= 1;
    assert_eq!(check_records(CHUNK, Units(70), &broken), Err(LayoutError::Checksum));
}

proptest! {
    #[test]
    fn changed_headers_are_refused_or_come_back(
        which in 0..16usize,
        changes in proptest::collection::vec((0..64usize, any::<u8>()), 1..4),
    ) {
        let names: Vec<&str> =
            requests().iter().map(|(name, ..)| *name).chain(replies().iter().map(|(name, ..)| *name)).collect();
        let mut header = golden(names[which]);
        for (at, byte) in changes {
            header[at] = byte;
        }
        let crc = checksum_of(&header, 20);
        header[20..24].copy_from_slice(&crc.to_le_bytes());
        if let Ok(message) = RequestMessage::decode(&header) {
            prop_assert_eq!(message.encode().unwrap().to_vec(), header.clone());
        }
        if let Ok(message) = ReplyMessage::decode(&header) {
            prop_assert_eq!(message.encode().unwrap().to_vec(), header);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = RequestMessage::decode(&bytes);
        let _ = ReplyMessage::decode(&bytes);
        let _ = HelloPayload::decode(&bytes);
        let _ = WelcomePayload::decode(&bytes);
        let _ = decode_entries(&bytes).map(Iterator::count);
        let _ = decode_chunks(&bytes).map(Iterator::count);
        let _ = check_records(CHUNK, Units(64), &bytes);
    }
}
