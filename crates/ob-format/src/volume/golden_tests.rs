//! Bytes that were put together from the document's tables, not by this code: `golden.txt` has them, a line each, with `0*N`
//! for N zeros. Every layout is written as they are, is read from them, and notices a byte that has changed.

use ob_core::{
    BlockLen, ChunkId, ChunkName, Epoch, GateId, Incarnation, Lba, LockId, PoolId, Revision, SegmentId,
    SegmentName, Sequence, ServerId, SessionId, TierId, Units, VolumeId,
};
use ob_wire_nvme::NamespaceId;

use super::metadata::{
    Chunk, ChunkState, Class, Head, Members, Pool, Segment, SegmentState, Server, ServerState, Text, Tier,
    Volume, VolumeState,
};
use super::*;

const NAME: ChunkName = ChunkName {
    volume: VolumeId(0x1122_3344_5566_7788),
    segment: SegmentId(0x0a0b_0c0d),
    chunk: ChunkId(0x0102_0304),
};
const SEGMENT: SegmentName = SegmentName { volume: NAME.volume, segment: NAME.segment };
const SERVER: ServerId = ServerId(0xdead_beef_0102_0304);
const CRC: u32 = 0xcafe_f00d;

pub(super) fn golden(name: &str) -> Vec<u8> {
    let line = include_str!("golden.txt").lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    let words = line.unwrap_or_else(|| panic!("there is no {name}")).split(' ');
    let bytes = words.flat_map(|word| match word.strip_prefix("0*") {
        Some(count) => vec![0; count.parse().unwrap()],
        None => {
            (0..word.len() / 2).map(|at| u8::from_str_radix(&word[2 * at..2 * at + 2], 16).unwrap()).collect()
        }
    });
    bytes.collect()
}

fn epoch(number: u32) -> Epoch {
    Epoch::new(number).unwrap()
}

fn sequence(epoch_number: u32, count: u64) -> Sequence {
    Sequence::new(epoch(epoch_number), count).unwrap()
}

fn pool() -> PoolId {
    PoolId(std::array::from_fn(|at| at as u8 + 0x10))
}

fn lock() -> LockId {
    LockId(std::array::from_fn(|at| at as u8 + 0x40))
}

/// Whatever byte is another one, it is noticed; so are bytes that are missing.
fn is_guarded<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, LayoutError>) {
    assert!(decode(bytes).is_ok());
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut broken = bytes.to_vec();
            broken[at] ^= flip;
            assert!(decode(&broken).is_err(), "byte {at} is another one");
        }
        assert!(decode(&bytes[..at]).is_err(), "there are {at} bytes");
    }
}

#[test]
fn files_of_a_server() {
    let file = ServerFile { server: SERVER, incarnation: Incarnation(7), pool: Some(pool()) };
    assert_eq!(file.encode().unwrap()[..], golden("server_file"));
    assert_eq!(ServerFile::decode(&golden("server_file")), Ok(file));
    is_guarded(&golden("server_file"), ServerFile::decode);

    let header = ChunkHeader {
        name: NAME,
        epoch: epoch(9),
        kind: ChunkKind::Index,
        length: Units(1024),
        block_len: BlockLen::Large,
        pool: pool(),
    };
    assert_eq!(header.encode().unwrap()[..], golden("chunk_header"));
    assert_eq!(ChunkHeader::decode(&golden("chunk_header")), Ok(header));
    is_guarded(&golden("chunk_header"), ChunkHeader::decode);
}

/// Records of each shape, with their payloads.
fn records() -> Vec<(&'static str, RecordHeader, Vec<u8>)> {
    let of = |payload: &[u8]| RecordHeader {
        chunk: NAME,
        offset: Units(64),
        sequence: sequence(9, 5),
        version: sequence(9, 5),
        lba: Lba(3),
        blocks: 1,
        stored: payload.len() as u32,
        payload_crc: crc32c::crc32c(payload),
        kind: RecordKind::Write,
        encoding: Encoding::None,
        behind: None,
    };
    let mut ranges = Vec::new();
    TrimRange { lba: Lba(1), blocks: 2 }.encode_into(&mut ranges);
    TrimRange { lba: Lba(30), blocks: 40 }.encode_into(&mut ranges);
    let compressed = b"lz4 of some blocks".repeat(4);
    let write = RecordHeader {
        offset: Units(70),
        lba: Lba(1000),
        blocks: 16,
        encoding: Encoding::Lz4,
        behind: Some(6),
        ..of(&compressed)
    };
    let moved = RecordHeader { version: sequence(8, 77), kind: RecordKind::Move, ..of(&[0; 512]) };
    let trim = RecordHeader { blocks: 100_000, kind: RecordKind::Trim, behind: Some(0), ..of(&[]) };
    let trims = RecordHeader {
        offset: Units(100),
        lba: Lba(0),
        blocks: 0,
        kind: RecordKind::Trim,
        behind: Some(36),
        ..of(&ranges)
    };
    vec![
        ("record_write", write, compressed),
        ("record_move", moved, vec![0; 512]),
        ("record_trim", trim, Vec::new()),
        ("record_trims", trims, ranges),
    ]
}

#[test]
fn records_of_each_shape() {
    for (name, header, payload) in records() {
        let record = Record { header, payload: &payload };
        let mut bytes = Vec::new();
        record.encode_into(&mut bytes).unwrap();
        assert_eq!(bytes, golden(name), "{name}");
        assert_eq!(Record::decode(&bytes), Ok(record), "{name}");
        is_guarded(&bytes, |bytes| Record::decode(bytes).map(|_| ()));
    }
    let (_, header, payload) = records().pop().unwrap();
    let ranges: Vec<TrimRange> = Record { header, payload: &payload }.trim_ranges().collect();
    assert_eq!(ranges, [TrimRange { lba: Lba(1), blocks: 2 }, TrimRange { lba: Lba(30), blocks: 40 }]);
}

#[test]
fn a_directory() {
    let entry = |offset, stored, count, lba, blocks, kind| Entry {
        offset: Units(offset),
        stored,
        sequence: sequence(9, count),
        lba: Lba(lba),
        blocks,
        kind,
        encoding: Encoding::None,
    };
    let entries = [
        entry(64, 512, 5, 3, 1, RecordKind::Write),
        entry(73, 16, 6, 1, 2, RecordKind::Trim),
        entry(73, 16, 6, 30, 40, RecordKind::Trim),
        Entry { encoding: Encoding::Lz4, ..entry(75, 1000, 7, 16, 16, RecordKind::Move) },
    ];
    let summary = DirectorySummary { length: Units(92), content_crc: CRC };
    let bytes = encode_directory(&summary, &entries).unwrap();
    assert_eq!(bytes, golden("directory"));
    let directory = Directory::decode(&bytes).unwrap();
    assert_eq!((directory.summary, directory.blocks, directory.count()), (summary, 17, 4));
    assert!(directory.entries().eq(entries));
    is_guarded(&bytes, |bytes| Directory::decode(bytes).map(|_| ()));
}

#[test]
fn a_ledger() {
    let entry = |number, durable, fact| LedgerEntry { number, durable, server: SERVER, fact };
    let sealed = LedgerFact::Sealed { chunk: NAME, epoch: epoch(9), length: Units(92), content_crc: CRC };
    let entries = [
        entry(41, 40, LedgerFact::Begin),
        entry(42, 41, LedgerFact::Epoch { segment: SEGMENT, epoch: epoch(9) }),
        entry(43, 41, LedgerFact::Stopped { chunk: NAME, epoch: epoch(9) }),
        entry(44, 43, sealed),
        entry(45, 44, LedgerFact::Filling { chunk: NAME, epoch: epoch(10), length: Units(1024) }),
        entry(46, 45, LedgerFact::Gone { segment: SEGMENT }),
    ];
    let bytes = golden("ledger");
    assert_eq!(entries.map(|entry| entry.encode().unwrap()).concat(), bytes);
    assert_eq!(read_ledger(&bytes).as_deref(), Ok(&entries[..]));
    for place in bytes.chunks(LEDGER_ENTRY_LEN) {
        is_guarded(place, LedgerEntry::decode);
    }
}

#[test]
fn a_page() {
    let mut entries = [IndexEntry::UNMAPPED; PAGE_ENTRIES];
    entries[3] = IndexEntry::mapped(Units(0x3ff_ff00), Units(9), 0xab_cdef).unwrap();
    entries[1023] = IndexEntry::LOST;
    let mut bytes = [0; PAGE_LEN];
    encode_page(5, sequence(9, 5), &entries, &mut bytes).unwrap();
    assert_eq!(bytes[..], golden("page"));
    let page = Page::decode(&bytes).unwrap();
    assert_eq!((page.page, page.as_of, page.mapped), (5, sequence(9, 5), 2));
    assert!(page.entries().eq(entries));
    // It has no checksum of its own: its record has. Whatever is read is legal all the same.
    for at in 0..bytes.len() {
        let mut broken = bytes;
        broken[at] ^= 0xff;
        let _ = Page::decode(&broken).map(|page| page.entries().map(IndexEntry::state).count());
    }
}

#[test]
fn a_root() {
    let summary = RootSummary { block_len: BlockLen::Small, head_sequence: sequence(9, 4), mapped: 12 };
    let slot = Slot { chunk: NAME, live: 10, blocks: 17, last_sequence: sequence(9, 5) };
    let place = |page, offset, stored| PagePlace {
        page,
        chunk: ChunkId(NAME.chunk.0 + 1),
        offset: Units(offset),
        stored,
    };
    let places = [place(5, 64, 700), place(6, 76, 8224)];
    let bytes = encode_root(&summary, &[None, Some(slot)], &places).unwrap();
    assert_eq!(bytes, golden("root"));
    let root = Root::decode(&bytes).unwrap();
    assert_eq!(root.summary, summary);
    assert!(root.slots().eq([None, Some(slot)]));
    assert!(root.places().eq(places));
    is_guarded(&bytes, |bytes| Root::decode(bytes).map(|_| ()));
}

#[test]
fn values_of_members() {
    let pool = Pool { drift_ppm: 10_000, pool: pool(), volume_next: 0x99, namespace_next: 12 };
    assert_eq!(pool.encode().unwrap()[..], golden("pool"));
    assert_eq!(Pool::decode(&golden("pool")), Ok(pool));
    is_guarded(&golden("pool"), Pool::decode);

    let tier = Tier {
        lease_ms: 3000,
        session: SessionId(0x7766),
        gate: GateId(5 << 32 | 2),
        incarnation: Incarnation(5),
        lock: lock(),
        addresses: Text::new("10.0.0.1:4421,10.0.0.1:4422").unwrap(),
    };
    assert_eq!(tier.encode().unwrap()[..], golden("tier"));
    assert_eq!(Tier::decode(&golden("tier")), Ok(tier));
    is_guarded(&golden("tier"), Tier::decode);

    let server = Server {
        state: ServerState::Draining,
        capacity: 1 << 40,
        domain: Text::new("rack 7").unwrap(),
        address: Text::new("10.0.0.9:4440").unwrap(),
    };
    assert_eq!(server.encode().unwrap()[..], golden("server"));
    assert_eq!(Server::decode(&golden("server")), Ok(server));
    is_guarded(&golden("server"), Server::decode);
}

#[test]
fn values_of_volumes() {
    let volume = Volume {
        state: VolumeState::Serving,
        class: Class::Dense,
        replicas: 3,
        replicas_min: 2,
        uuid: lock().0,
        size: 16 << 30,
        cut_from: Some(32 << 30),
        segment_len: 32 << 30,
        chunk_len: 64 << 20,
        block_len: BlockLen::Large,
        namespace: NamespaceId(12),
        generation: 4,
        name: Text::new("disk0").unwrap(),
    };
    assert_eq!(volume.encode().unwrap()[..], golden("volume"));
    assert_eq!(Volume::decode(&golden("volume")), Ok(volume));
    is_guarded(&golden("volume"), Volume::decode);

    let head =
        Head { sequence: sequence(9, 4), chunk: ChunkId(1000), offset: Units(80), length: 160, crc: CRC };
    let segment = Segment {
        state: SegmentState::Taken,
        epoch: epoch(9),
        lease_ms: 3000,
        owner: TierId(0x1234),
        session_revision: Revision(77),
        gate: GateId(5 << 32 | 2),
        chunk_next: ChunkId(1025),
        generation: 4,
        head: Some(head),
        lock: lock(),
        wait_ms: 60_000,
    };
    assert_eq!(segment.encode().unwrap()[..], golden("segment"));
    assert_eq!(Segment::decode(&golden("segment")), Ok(segment));
    is_guarded(&golden("segment"), Segment::decode);

    let chunk = Chunk {
        state: ChunkState::Sealed,
        kind: ChunkKind::Data,
        members: Members::new(&[ServerId(11), ServerId(12), ServerId(13)]).unwrap(),
        epoch: epoch(9),
        length: Units(92),
        last_sequence: sequence(9, 7),
        blocks: 17,
        records: 4,
        content_crc: CRC,
        joining: Some(ServerId(14)),
    };
    assert_eq!(chunk.encode().unwrap()[..], golden("chunk"));
    assert_eq!(Chunk::decode(&golden("chunk")), Ok(chunk));
    is_guarded(&golden("chunk"), Chunk::decode);
}
