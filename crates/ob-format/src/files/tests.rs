//! Golden bytes, round trips, damage, and bytes that nobody wrote.

use ob_core::checksum_of;
use proptest::prelude::*;

use super::*;

const FRAME_MAX: usize = 64 << 10;

const GOLDEN_SUPERBLOCK: [&str; 8] = [
    "4f55544246494c45010000002315ca67",
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf",
    "07000000000000000300000000000000",
    "00100000000008000000010000000000",
    "00000004000000001000000005000000",
    "8877665544332211efbeadde00000000",
    "00008800000000007803000000000000",
    "00000000000000000000000000000000",
];

const GOLDEN_FRAME: [&str; 16] = [
    "4f424652508fefe1f800000005000000",
    "08070605040302010300000000000000",
    "00070605040302010400000000000000",
    "0df0feca00000000a0a1a2a3a4a5a6a7",
    "28000102080000000200000000000000",
    "01000000000000007011010000000000",
    "646174612e62696e2800010101000000",
    "03000000000000000100000000000000",
    "00000000000000006400000000000000",
    "40000200030000000200000000000000",
    "04000000000000000400000064000000",
    "02000000060000003200000001000000",
    "10000000feffffff0100000000000000",
    "10000300000000000300000000000000",
    "18000400000000000200000000000000",
    "0900000000000000",
];

fn from_hex(lines: &[&str]) -> Vec<u8> {
    let digits = lines.concat();
    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn example_superblock() -> Superblock {
    Superblock {
        geometry: Geometry::plan(4096, 64 << 20, &FormatOptions::default()).unwrap(),
        uuid: std::array::from_fn(|index| 0xa0 + index as u8),
        sequence: 7,
        epoch: 3,
        tail: LogStart { section: 5, sequence: 0x1122_3344_5566_7788, previous: 0xdead_beef },
    }
}

fn example_stamp() -> FrameStamp {
    FrameStamp {
        sequence: 0x0102_0304_0506_0708,
        epoch: 3,
        durable: 0x0102_0304_0506_0700,
        next_node: NodeId(4),
        previous: 0xcafe_f00d,
        format: example_superblock().format_tag(),
    }
}

const EXAMPLE_FILE: NodeRecord<'_> =
    NodeRecord { id: NodeId(2), parent: ROOT, kind: NodeKind::File, size: 70_000, name: b"data.bin" };

const EXAMPLE_RUNS: [Run; 3] = [
    Run { logical: 4, physical: 100, count: 2 },
    Run { logical: 6, physical: 50, count: 1 },
    Run { logical: 16, physical: u32::MAX - 1, count: 1 },
];

fn example_builder() -> FrameBuilder {
    let mut builder = FrameBuilder::new(FRAME_MAX);
    builder.push_node(&EXAMPLE_FILE);
    builder.push_node(&NodeRecord {
        id: NodeId(3),
        kind: NodeKind::Directory,
        size: 0,
        name: b"d",
        ..EXAMPLE_FILE
    });
    builder.push_map(NodeId(2), 4, &EXAMPLE_RUNS);
    builder.push_remove(NodeId(3));
    builder.push_cut(NodeId(2), 9);
    builder
}

/// Adds a record again that was read from a frame.
fn push_again(builder: &mut FrameBuilder, record: &Record<'_>) {
    match record {
        Record::Node(node) => builder.push_node(node),
        Record::Map { file, first, runs } => {
            builder.push_map(*file, *first, &runs.iter().collect::<Vec<_>>());
        }
        Record::Remove { id } => builder.push_remove(*id),
        Record::Cut { file, first } => builder.push_cut(*file, *first),
    }
}

/// A frame around bytes that need not be records.
fn sealed_around(records: &[u8], count: u32) -> Vec<u8> {
    let mut builder = FrameBuilder::new(FRAME_MAX);
    builder.seal(&example_stamp());
    let mut bytes = builder.bytes().to_vec();
    bytes.extend_from_slice(records);
    let length = bytes.len() as u32;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..16].copy_from_slice(&count.to_le_bytes());
    mend(&mut bytes, 4);
    bytes
}

/// Gives changed bytes a checksum that is right again.
fn mend(bytes: &mut [u8], at: usize) {
    let checksum = checksum_of(bytes, at);
    bytes[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
}

fn first_error(bytes: &[u8]) -> Option<RecordError> {
    Frame::decode(bytes, FRAME_MAX).unwrap().records().find_map(Result::err)
}

#[test]
fn a_superblock_has_these_bytes() {
    let golden = from_hex(&GOLDEN_SUPERBLOCK);
    assert_eq!(example_superblock().encode().to_vec(), golden);
    assert_eq!(Superblock::decode(&golden), Ok(example_superblock()));
    assert_eq!(example_superblock().format_tag(), 0xa7a6_a5a4_a3a2_a1a0);
}

#[test]
fn a_frame_has_these_bytes() {
    let golden = from_hex(&GOLDEN_FRAME);
    let mut builder = example_builder();
    let checksum = builder.seal(&example_stamp());
    assert_eq!(builder.bytes(), golden);
    assert_eq!((builder.len(), builder.records()), (golden.len(), 5));
    let frame = Frame::decode(&golden, FRAME_MAX).unwrap();
    assert_eq!((frame.stamp, frame.checksum), (example_stamp(), checksum));
    assert_eq!((frame.length as usize, frame.record_count()), (golden.len(), 5));
    let records: Vec<_> = frame.records().map(Result::unwrap).collect();
    assert_eq!(records[0], Record::Node(EXAMPLE_FILE));
    let Record::Map { file: NodeId(2), first: 4, runs } = records[2] else { panic!("{:?}", records[2]) };
    assert_eq!(runs.iter().collect::<Vec<_>>(), EXAMPLE_RUNS);
    assert_eq!(records[3..], [Record::Remove { id: NodeId(3) }, Record::Cut { file: NodeId(2), first: 9 }]);
}

#[test]
fn a_superblock_that_cannot_be_is_refused() {
    let bytes = example_superblock().encode();
    assert_eq!(Superblock::decode(&[0; SUPERBLOCK_LEN]), Err(SuperblockError::Missing));
    assert_eq!(Superblock::decode(&bytes[..SUPERBLOCK_LEN - 1]), Err(SuperblockError::Missing));
    let changed = |at: usize, value: u8| {
        let mut bytes = bytes;
        bytes[at] = value;
        mend(&mut bytes, 12);
        Superblock::decode(&bytes)
    };
    assert_eq!(changed(8, 2), Err(SuperblockError::Version { found: 2 }));
    assert!(matches!(changed(49, 3), Err(SuperblockError::Geometry(GeometryError::BlockLen { .. }))));
    assert!(matches!(changed(76, 16), Err(SuperblockError::Illegal(_))), "the tail lies in the log");
    assert!(matches!(changed(92, 1), Err(SuperblockError::Illegal(_))), "reserved");
    assert!(matches!(changed(108, 1), Err(SuperblockError::Illegal(_))), "segments are counted in 32 bits");
    assert!(matches!(changed(127, 1), Err(SuperblockError::Illegal(_))), "reserved");
    assert_eq!(changed(76, 15).unwrap().tail.section, 15);
}

#[test]
fn a_frame_that_cannot_be_is_refused() {
    let mut builder = example_builder();
    builder.seal(&example_stamp());
    let bytes = builder.bytes();
    let length = bytes.len() as u32;
    let refused = |bytes: &[u8], frame_max| Frame::decode(bytes, frame_max).unwrap_err();
    assert_eq!(refused(&[0; 512], FRAME_MAX), FrameError::Missing);
    assert_eq!(refused(&bytes[..FRAME_HEADER_LEN - 1], FRAME_MAX), FrameError::Missing);
    assert_eq!(refused(bytes, 64), FrameError::Length { length, frame_max: 64 });
    let available = bytes.len() - 8;
    assert_eq!(refused(&bytes[..available], FRAME_MAX), FrameError::Cut { length, available });
    let mut reserved = bytes.to_vec();
    reserved[52] = 1;
    mend(&mut reserved, 4);
    assert_eq!(refused(&reserved, FRAME_MAX), FrameError::Reserved);
    for wrong in [0u32, 63, length - 1] {
        let mut short = bytes.to_vec();
        short[8..12].copy_from_slice(&wrong.to_le_bytes());
        assert_eq!(refused(&short, FRAME_MAX), FrameError::Length { length: wrong, frame_max: FRAME_MAX });
    }
}

#[test]
fn the_count_of_records_is_checked() {
    let frame = from_hex(&GOLDEN_FRAME);
    let records = &frame[FRAME_HEADER_LEN..];
    assert_eq!(first_error(&sealed_around(records, 5)), None);
    let last = frame.len() - CUT_LEN;
    assert_eq!(first_error(&sealed_around(records, 4)).unwrap().offset, last);
    assert_eq!(first_error(&sealed_around(records, 6)).unwrap().offset, frame.len());
    let more = sealed_around(records, 6);
    let results: Vec<_> = Frame::decode(&more, FRAME_MAX).unwrap().records().collect();
    assert_eq!(results.len(), 6, "nothing comes after an error");
}

/// Each change of the golden frame, by offset and new byte, makes the record there one that cannot be.
#[test]
fn records_that_cannot_be_are_refused() {
    let (file, directory, map, remove, cut) = (64, 104, 144, 208, 224);
    let changes = [
        (file, 0, 48),         // a length that is not the name's
        (file, 2, 5),          // no such kind of record
        (file, 2, 2),          // another kind's contents
        (file, 3, 3),          // no such kind of node
        (file, 4, 0),          // no name
        (file, 5, 1),          // reserved
        (file, 6, 1),          // reserved
        (file, 8, 1),          // the root has no record
        (file, 16, 0),         // no parent
        (file, 31, 0x80),      // larger than any file
        (file, 32, b'/'),      // no such name
        (directory, 7, 1),     // reserved
        (directory, 24, 1),    // a directory with bytes
        (directory, 33, b'x'), // filling
        (map, 3, 1),           // reserved
        (map, 4, 2),           // fewer runs than the length says
        (map, 6, 1),           // reserved
        (map, 8, 0),           // no such file
        (map, 16, 5),          // the first run begins before the part
        (map, 20, 1),          // reserved
        (map, 24 + 8, 0),      // an empty run
        (map, 24 + 8, 3),      // overlapping runs
        (map, 24 + 32, 2),     // beyond the largest device
        (map, 60, 1),          // filling
        (remove, 0, 24),       // not its length
        (remove, 3, 1),        // reserved
        (remove, 8, 1),        // the root stays
        (cut, 0, 16),          // not its length
        (cut, 7, 1),           // reserved
        (cut, 8, 0),           // no such file
        (cut, 20, 1),          // reserved
        (cut, 1, 1),           // longer than the frame
    ];
    for (record, at, value) in changes {
        let mut bytes = from_hex(&GOLDEN_FRAME);
        assert_ne!(bytes[record + at], value, "{record} + {at} is no change");
        bytes[record + at] = value;
        mend(&mut bytes, 4);
        assert_eq!(first_error(&bytes).map(|error| error.offset), Some(record), "{record} + {at}");
    }
    let mut beyond = from_hex(&GOLDEN_FRAME);
    beyond[map + 48..map + 52].copy_from_slice(&u32::MAX.to_le_bytes());
    mend(&mut beyond, 4);
    assert_eq!(first_error(&beyond).unwrap().what, "a run ends beyond the largest file");
}

#[test]
fn too_many_runs_are_refused() {
    let runs: Vec<Run> =
        (0..RUNS_MAX as u32).map(|index| Run { logical: index, physical: index, count: 1 }).collect();
    let mut builder = FrameBuilder::new(FRAME_MAX);
    builder.push_map(NodeId(2), 0, &runs);
    builder.seal(&example_stamp());
    assert_eq!(builder.len(), FRAME_HEADER_LEN + map_record_len(RUNS_MAX));
    assert_eq!(first_error(builder.bytes()), None);
    let mut records = builder.bytes()[FRAME_HEADER_LEN..].to_vec();
    let last = [RUNS_MAX as u32, 0, 1].map(u32::to_le_bytes).concat();
    records.extend_from_slice(&last);
    records.resize(map_record_len(RUNS_MAX + 1), 0);
    let length = records.len() as u16;
    records[..2].copy_from_slice(&length.to_le_bytes());
    records[4] += 1;
    assert_eq!(first_error(&sealed_around(&records, 1)).unwrap().what, "it has too many runs");
}

#[test]
fn a_builder_is_used_again() {
    let mut builder = FrameBuilder::new(128);
    assert!(builder.is_empty());
    builder.push_node(&EXAMPLE_FILE);
    assert_eq!(builder.room(), 128 - FRAME_HEADER_LEN - node_record_len(EXAMPLE_FILE.name.len()));
    builder.push_cut(NodeId(2), 0);
    assert_eq!(builder.room(), 0);
    let checksum = builder.seal(&example_stamp());
    assert_eq!(builder.seal(&example_stamp()), checksum, "sealing again changes nothing");
    builder.clear();
    assert!(builder.is_empty());
    builder.seal(&example_stamp());
    assert_eq!(Frame::decode(builder.bytes(), 128).unwrap().records().count(), 0);
}

#[test]
#[should_panic(expected = "no room")]
fn a_frame_does_not_grow_beyond_its_limit() {
    let mut builder = FrameBuilder::new(FRAME_HEADER_LEN + REMOVE_LEN);
    builder.push_cut(NodeId(2), 0);
}

#[test]
#[should_panic(expected = "its name cannot be")]
fn what_could_not_be_read_again_is_not_written() {
    FrameBuilder::new(FRAME_MAX).push_node(&NodeRecord { name: b"..", ..EXAMPLE_FILE });
}

#[test]
#[should_panic(expected = "not sealed")]
fn a_frame_with_an_old_header_is_not_given_out() {
    let mut builder = example_builder();
    builder.seal(&example_stamp());
    builder.push_remove(NodeId(2));
    builder.bytes();
}

/// A record that owns what it is about.
#[derive(Clone, Debug)]
enum Owned {
    Node { id: u64, parent: u64, size: Option<u64>, name: Vec<u8> },
    Map { file: u64, skip: u32, runs: Vec<Run> },
    Remove(u64),
    Cut(u64, u32),
}

impl Owned {
    fn push(&self, builder: &mut FrameBuilder) {
        match self {
            Self::Node { .. } => builder.push_node(&self.node().unwrap()),
            Self::Map { file, skip, runs } => builder.push_map(NodeId(*file), first_of(*skip, runs), runs),
            Self::Remove(id) => builder.push_remove(NodeId(*id)),
            Self::Cut(file, first) => builder.push_cut(NodeId(*file), *first),
        }
    }

    fn node(&self) -> Option<NodeRecord<'_>> {
        let Self::Node { id, parent, size, name } = self else { return None };
        Some(NodeRecord {
            id: NodeId(*id),
            parent: NodeId(*parent),
            kind: if size.is_some() { NodeKind::File } else { NodeKind::Directory },
            size: size.unwrap_or(0),
            name,
        })
    }

    fn is(&self, record: &Record<'_>) -> bool {
        match (self, record) {
            (Self::Node { .. }, Record::Node(node)) => self.node() == Some(*node),
            (Self::Map { file, skip, runs }, Record::Map { file: other, first, runs: others }) => {
                *file == other.0 && first_of(*skip, runs) == *first && runs.iter().copied().eq(others.iter())
            }
            (Self::Remove(id), Record::Remove { id: other }) => *id == other.0,
            (Self::Cut(file, first), Record::Cut { file: other, first: others }) => {
                *file == other.0 && first == others
            }
            _ => false,
        }
    }
}

/// The start of a part, with a hole before its first run.
fn first_of(skip: u32, runs: &[Run]) -> u32 {
    runs.first().map_or(skip, |run| run.logical.saturating_sub(skip))
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no part of a name", |byte| *byte != 0 && *byte != b'/');
    proptest::collection::vec(byte, 1..=NAME_LEN_MAX)
        .prop_filter("the way to another directory", |name| name != b"." && name != b"..")
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let piece = (0..1000u32, any::<u32>(), 1..1000u32);
    (0..1_000_000u32, proptest::collection::vec(piece, 0..=RUNS_MAX)).prop_map(|(start, pieces)| {
        let mut logical = start;
        let place = |(hole, physical, count): (u32, u32, u32)| {
            let run = Run { logical: logical + hole, physical: physical.min(u32::MAX - count), count };
            logical = run.logical + count;
            run
        };
        pieces.into_iter().map(place).collect()
    })
}

fn owned_record() -> impl Strategy<Value = Owned> {
    let id = 2..=u64::MAX;
    let size = proptest::option::of(0..=i64::MAX as u64);
    prop_oneof![
        (id.clone(), 1..=u64::MAX, size, name()).prop_map(|(id, parent, size, name)| Owned::Node {
            id,
            parent,
            size,
            name
        }),
        (id.clone(), any::<u32>(), runs()).prop_map(|(file, skip, runs)| Owned::Map { file, skip, runs }),
        id.clone().prop_map(Owned::Remove),
        (id, any::<u32>()).prop_map(|(file, first)| Owned::Cut(file, first)),
    ]
}

prop_compose! {
    fn stamp()(
        numbers in any::<[u64; 5]>(),
        previous in any::<u32>(),
    ) -> FrameStamp {
        let [sequence, epoch, durable, next_node, format] = numbers;
        FrameStamp { sequence, epoch, durable, next_node: NodeId(next_node), previous, format }
    }
}

prop_compose! {
    fn superblock()(
        block in 9..=12u32,
        capacity in (1u64 << 20)..(1 << 50),
        uuid in any::<[u8; 16]>(),
        numbers in any::<[u64; 3]>(),
        section in any::<u32>(),
        previous in any::<u32>(),
    ) -> Superblock {
        let geometry = Geometry::plan(1 << block, capacity, &FormatOptions::default()).unwrap();
        let [sequence, epoch, tail_sequence] = numbers;
        let tail = LogStart { section: section % geometry.log_sections, sequence: tail_sequence, previous };
        Superblock { geometry, uuid, sequence, epoch, tail }
    }
}

proptest! {
    #[test]
    fn frames_come_back_as_they_went(
        stamp in stamp(),
        records in proptest::collection::vec(owned_record(), 0..20),
        filling in 0..512usize,
    ) {
        let mut builder = FrameBuilder::new(FRAME_MAX);
        records.iter().for_each(|record| record.push(&mut builder));
        let checksum = builder.seal(&stamp);
        let mut bytes = builder.bytes().to_vec();
        bytes.resize(bytes.len() + filling, 0);
        let frame = Frame::decode(&bytes, FRAME_MAX).unwrap();
        prop_assert_eq!((frame.stamp, frame.checksum), (stamp, checksum));
        let read: Vec<_> = frame.records().map(Result::unwrap).collect();
        prop_assert_eq!(read.len(), records.len());
        prop_assert!(records.iter().zip(&read).all(|(record, read)| record.is(read)));
    }

    #[test]
    fn superblocks_come_back_as_they_went(superblock in superblock()) {
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Superblock::decode(&bytes);
        let _ = Frame::decode(&bytes, FRAME_MAX);
    }

    /// With checksums that are right, so that what lies behind them is reached.
    #[test]
    fn any_sealed_bytes_are_refused_or_read(
        mut bytes in proptest::collection::vec(any::<u8>(), 128..600),
        numbers in any::<[u8; 112]>(),
    ) {
        let mut superblock = example_superblock().encode();
        superblock[16..].copy_from_slice(&numbers);
        mend(&mut superblock, 12);
        let _ = Superblock::decode(&superblock);
        bytes.truncate(bytes.len() / 8 * 8);
        let sealed = sealed_around(&bytes, 3);
        prop_assert!(Frame::decode(&sealed, FRAME_MAX).unwrap().records().count() <= 4);
    }

    /// One changed byte in good records: refused, or read as what would be written so.
    #[test]
    fn what_is_read_is_what_would_be_written(
        records in proptest::collection::vec(owned_record(), 1..4),
        place in any::<proptest::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut builder = FrameBuilder::new(FRAME_MAX);
        records.iter().for_each(|record| record.push(&mut builder));
        builder.seal(&example_stamp());
        let mut bytes = builder.bytes().to_vec();
        let at = FRAME_HEADER_LEN + place.index(bytes.len() - FRAME_HEADER_LEN);
        bytes[at] = value;
        mend(&mut bytes, 4);
        let read: Result<Vec<_>, _> = Frame::decode(&bytes, FRAME_MAX).unwrap().records().collect();
        if let Ok(read) = read {
            let mut again = FrameBuilder::new(FRAME_MAX);
            read.iter().for_each(|record| push_again(&mut again, record));
            again.seal(&example_stamp());
            prop_assert_eq!(again.bytes(), bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_flipped_bit_of_a_frame_is_found(
        stamp in stamp(),
        records in proptest::collection::vec(owned_record(), 0..4),
    ) {
        let mut builder = FrameBuilder::new(FRAME_MAX);
        records.iter().for_each(|record| record.push(&mut builder));
        builder.seal(&stamp);
        let mut bytes = builder.bytes().to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Frame::decode(&bytes, FRAME_MAX).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_superblock_is_found(superblock in superblock()) {
        let mut bytes = superblock.encode();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
