//! Round trips of whatever is legal, and what is not: with checksums that are right, so that they are not what refuses it.

use ob_core::{
    BlockLen, ChunkId, ChunkName, Epoch, Lba, SegmentId, Sequence, ServerId, Units, VolumeId, checksum_of,
};
use proptest::prelude::*;

use super::golden_tests::golden;
use super::metadata::{Chunk, Members, Pool, Segment, Server, Text, Tier, Volume};
use super::*;

/// Where each golden layout has its checksum, and how it is read.
type Guarded = (&'static str, usize, fn(&[u8]) -> Result<(), LayoutError>);
const GUARDED: &[Guarded] = &[
    ("server_file", 8, |bytes| ServerFile::decode(bytes).map(|_| ())),
    ("chunk_header", 8, |bytes| ChunkHeader::decode(bytes).map(|_| ())),
    ("record_write", 4, |bytes| RecordHeader::decode(bytes).map(|_| ())),
    ("record_move", 4, |bytes| RecordHeader::decode(bytes).map(|_| ())),
    ("record_trim", 4, |bytes| RecordHeader::decode(bytes).map(|_| ())),
    ("record_trims", 4, |bytes| RecordHeader::decode(bytes).map(|_| ())),
    ("directory", 8, |bytes| Directory::decode(bytes).map(|_| ())),
    ("ledger", 4, |bytes| LedgerEntry::decode(bytes).map(|_| ())),
    ("root", 8, |bytes| Root::decode(bytes).map(|_| ())),
    ("pool", 8, |bytes| Pool::decode(bytes).map(|_| ())),
    ("tier", 8, |bytes| Tier::decode(bytes).map(|_| ())),
    ("server", 8, |bytes| Server::decode(bytes).map(|_| ())),
    ("volume", 8, |bytes| Volume::decode(bytes).map(|_| ())),
    ("segment", 8, |bytes| Segment::decode(bytes).map(|_| ())),
    ("chunk", 8, |bytes| Chunk::decode(bytes).map(|_| ())),
];

/// Bytes that one checksum covers: of records and the ledger 64, else all.
fn sealed(name: &str, mut bytes: Vec<u8>, at: usize) -> Vec<u8> {
    if name.starts_with("record") || name == "ledger" {
        bytes.truncate(64);
    }
    let crc = checksum_of(&bytes, at);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The golden layout with other bytes at a place, and a checksum that is right.
fn altered(name: &str, at: usize, bytes: &[u8]) -> Result<(), LayoutError> {
    let (_, crc_at, decode) = GUARDED.iter().find(|(known, ..)| *known == name).unwrap();
    let mut all = golden(name);
    all[at..at + bytes.len()].copy_from_slice(bytes);
    decode(&sealed(name, all, *crc_at))
}

#[test]
fn a_layout_with_its_own_bytes_is_legal() {
    for (name, ..) in GUARDED {
        assert_eq!(altered(name, 0, &[]), Ok(()), "{name}");
    }
}

/// Fields with what they cannot have: of which layout, where, which bytes.
const IMPOSSIBLE: &[(&str, usize, &[u8])] = &[
    ("server_file", 12, &[1]),
    ("server_file", 16, &[0; 8]),
    ("server_file", 63, &[1]),
    ("chunk_header", 12, &[0]),
    ("chunk_header", 12, &[3]),
    ("chunk_header", 15, &[1]),
    ("chunk_header", 16, &[0; 8]),
    ("chunk_header", 28, &[0; 4]),
    ("chunk_header", 32, &[0; 4]),
    ("chunk_header", 35, &[0x10]),
    ("chunk_header", 36, &[64, 0, 0, 0]),
    ("chunk_header", 36, &[1, 0, 0, 4]),
    ("chunk_header", 40, &[0, 8, 0, 0]),
    ("chunk_header", 44, &[32, 0, 0, 0]),
    ("chunk_header", 48, &[0; 16]),
    ("record_write", 8, &[0; 8]),
    ("record_write", 20, &[0; 4]),
    ("record_write", 24, &[63, 0, 0, 0]),
    ("record_write", 24, &[0xff; 4]),
    ("record_write", 28, &[1, 0, 1, 0]),
    ("record_write", 28, &[0; 4]),
    ("record_write", 32, &[5, 0, 0, 0, 0, 0, 0, 0]),
    ("record_write", 40, &[4]),
    ("record_write", 48, &[0xff; 4]),
    ("record_write", 52, &[0; 4]),
    ("record_write", 52, &[129, 0, 0, 0]),
    ("record_write", 60, &[2]),
    ("record_write", 60, &[6]),
    ("record_write", 61, &[2]),
    ("record_write", 61, &[0]),
    ("record_write", 62, &[7]),
    ("record_move", 40, &[6, 0, 0, 0, 0x90]),
    ("record_move", 40, &[0; 8]),
    ("record_move", 28, &[0, 4]),
    ("record_trim", 48, &[0xff; 4]),
    ("record_trim", 61, &[1]),
    ("record_trim", 28, &[8]),
    ("record_trims", 28, &[12]),
    ("record_trims", 28, &[0, 8]),
    ("record_trims", 48, &[1]),
    ("record_trims", 61, &[1]),
    ("directory", 12, &[3]),
    ("directory", 12, &[0xff; 4]),
    ("directory", 16, &[91]),
    ("directory", 16, &[0, 0, 0, 0x10]),
    ("directory", 24, &[16]),
    ("directory", 28, &[1]),
    ("directory", 32, &[66]),
    ("directory", 32 + 26, &[1]),
    ("directory", 64, &[72]),
    ("directory", 96 + 8, &[7]),
    ("directory", 128 + 24, &[4]),
    ("ledger", 8, &[0; 8]),
    ("ledger", 16, &[7]),
    ("ledger", 16, &[2]),
    ("ledger", 17, &[1]),
    ("ledger", 20, &[1]),
    ("ledger", 24, &[1]),
    ("ledger", 44, &[1]),
    ("ledger", 48, &[0; 8]),
    ("ledger", 56, &[41]),
    ("root", 12, &[3]),
    ("root", 12, &[0xff; 4]),
    ("root", 16, &[0xff; 4]),
    ("root", 20, &[1]),
    ("root", 32, &[0, 9]),
    ("root", 40, &[1]),
    ("root", 64, &[1]),
    ("root", 96 + 12, &[0; 4]),
    ("root", 96 + 16, &[18]),
    ("root", 128, &[6]),
    ("root", 128, &[0xff; 4]),
    ("root", 128 + 4, &[0; 4]),
    ("root", 128 + 8, &[63]),
    ("root", 128 + 12, &[0; 4]),
    ("root", 144 + 12, &[33]),
    ("pool", 6, &[65]),
    ("pool", 12, &[0xff; 4]),
    ("pool", 16, &[0; 16]),
    ("pool", 32, &[0; 8]),
    ("pool", 40, &[0; 4]),
    ("pool", 63, &[1]),
    ("tier", 12, &[0; 4]),
    ("tier", 16, &[0; 8]),
    ("tier", 56, &[1]),
    ("tier", 64, &[0xff]),
    ("tier", 66, &[0]),
    ("tier", 65, b"\n"),
    ("server", 12, &[0]),
    ("server", 12, &[4]),
    ("server", 13, &[1]),
    ("server", 24, &[1]),
    ("server", 40, b"x"),
    ("server", 64, &[0; 128]),
    ("volume", 12, &[3]),
    ("volume", 13, &[4]),
    ("volume", 14, &[5]),
    ("volume", 14, &[0]),
    ("volume", 15, &[4]),
    ("volume", 15, &[0]),
    ("volume", 32, &[1]),
    ("volume", 32, &[0; 8]),
    ("volume", 40, &[0, 0, 0, 0, 3]),
    ("volume", 48, &[1]),
    ("volume", 48, &[0; 8]),
    ("volume", 48, &[0, 0, 0x10, 0, 0, 0, 0, 0]),
    ("volume", 48, &[0, 0, 0, 0, 0, 0, 0, 1]),
    ("volume", 56, &[1]),
    ("volume", 56, &[0, 0x80, 0, 0]),
    ("volume", 56, &[0, 0, 0, 0x80]),
    ("volume", 60, &[1]),
    ("volume", 64, &[0; 4]),
    ("volume", 64, &[0xff; 4]),
    ("volume", 72, &[1]),
    ("volume", 80, &[1]),
    ("volume", 128, &[0; 64]),
    ("volume", 129, b"/"),
    ("segment", 12, &[1]),
    ("segment", 12, &[2]),
    ("segment", 12, &[4]),
    ("segment", 13, &[1]),
    ("segment", 16, &[0; 4]),
    ("segment", 20, &[0; 4]),
    ("segment", 24, &[0; 8]),
    ("segment", 48, &[0; 4]),
    ("segment", 48, &[0xe8, 3]),
    ("segment", 56, &[0; 8]),
    ("segment", 64, &[0; 4]),
    ("segment", 68, &[63]),
    ("segment", 72, &[63]),
    ("segment", 96, &[0, 1]),
    ("segment", 127, &[1]),
    ("chunk", 12, &[1]),
    ("chunk", 12, &[0]),
    ("chunk", 13, &[3]),
    ("chunk", 14, &[2]),
    ("chunk", 14, &[4]),
    ("chunk", 14, &[5]),
    ("chunk", 15, &[1]),
    ("chunk", 16, &[0; 4]),
    ("chunk", 20, &[63]),
    ("chunk", 44, &[2]),
    ("chunk", 48, &[12]),
    ("chunk", 80, &[13]),
    ("chunk", 88, &[1]),
];

#[test]
fn what_cannot_be_is_refused_though_the_checksum_is_right() {
    let mut wrong = Vec::new();
    for &(name, at, bytes) in IMPOSSIBLE {
        let found = altered(name, at, bytes);
        let is_refused = matches!(found, Err(LayoutError::Illegal(_) | LayoutError::Length { .. }));
        if !is_refused {
            wrong.push(format!("{name} with {bytes:?} at {at}: {found:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(altered("chunk_header", 4, &[2]), Err(LayoutError::Version(2)));
    assert_eq!(altered("ledger", 40, &[2]), Err(LayoutError::Version(2)));
    assert_eq!(altered("volume", 4, &[2]), Err(LayoutError::Version(2)));
}

#[test]
fn bytes_behind_a_payload_make_a_record_broken() {
    let mut bytes = golden("record_write");
    assert!(Record::decode(&bytes).is_ok());
    *bytes.last_mut().unwrap() = 1;
    assert!(matches!(Record::decode(&bytes), Err(LayoutError::Illegal(_))));
}

#[test]
fn a_trim_of_no_blocks_among_others_is_refused() {
    let mut bytes = golden("record_trims");
    bytes[64 + 12..64 + 16].fill(0);
    let crc = crc32c::crc32c(&bytes[64..80]);
    bytes[56..60].copy_from_slice(&crc.to_le_bytes());
    let header = sealed("record_trims", bytes.clone(), 4);
    bytes[..64].copy_from_slice(&header);
    assert!(matches!(Record::decode(&bytes), Err(LayoutError::Illegal(_))));
}

#[test]
fn decoded_lengths_fit_blocks() {
    let header = RecordHeader::decode(&golden("record_write")).unwrap();
    assert_eq!(header.decoded_len(BlockLen::Small), Some(16 * 512));
    assert_eq!(header.decoded_len(BlockLen::Large), Some(65536));
    assert_eq!(RecordHeader { blocks: 17, ..header }.decoded_len(BlockLen::Large), None);
    let header = RecordHeader::decode(&golden("record_move")).unwrap();
    assert_eq!(header.decoded_len(BlockLen::Small), Some(512));
    // Stored as it is, it cannot be a block of another length.
    assert_eq!(header.decoded_len(BlockLen::Large), None);
}

#[test]
fn index_entries_are_legal_or_refused() {
    let legal = IndexEntry::mapped(Units(64), Units(2), 0).unwrap();
    assert_eq!(legal.state(), EntryState::Mapped { offset: Units(64), units: Units(2), slot: 0 });
    for (offset, units, slot) in [
        (63, 2, 0),
        (64, 1, 0),
        (64, 1026, 0),
        (CHUNK_UNITS_MAX.0 - 1, 2, 0),
        (u32::MAX, 2, 0),
        (64, 2, SLOT_END),
    ] {
        assert_eq!(IndexEntry::mapped(Units(offset), Units(units), slot), None);
    }
    for bits in [1, 3 << 61, 7 << 61, 2 << 61 | 1, 1 << 61, u64::MAX] {
        assert!(IndexEntry::from_bits(bits).is_err(), "{bits:x}");
    }
}

const SERVER: ServerId = ServerId(9);

/// A ledger of so many entries, the last one told to be durable after each.
fn ledger(count: u64, durable: impl Fn(u64) -> u64) -> Vec<u8> {
    let segment = ob_core::SegmentName { volume: VolumeId(1), segment: SegmentId(2) };
    let entries = (1..=count).map(|number| {
        let fact =
            if number == 1 { LedgerFact::Begin } else { LedgerFact::Epoch { segment, epoch: Epoch::FIRST } };
        LedgerEntry { number, durable: durable(number), server: SERVER, fact }.encode().unwrap()
    });
    let mut bytes = entries.collect::<Vec<_>>().concat();
    bytes.resize(1 << 14, 0);
    bytes
}

#[test]
fn a_torn_end_of_a_ledger_is_an_end_and_a_hole_is_damage() {
    let at = |number: usize| (number - 1) * LEDGER_ENTRY_LEN;
    // Entries 6 to 10 were one write, of which the first block is missing.
    let mut torn = ledger(10, |number| if number <= 6 { number - 1 } else { 5 });
    assert_eq!(read_ledger(&torn).unwrap().len(), 10);
    torn[at(6)..at(8)].fill(0);
    assert_eq!(read_ledger(&torn).unwrap().len(), 5);
    // One that was durable when a later one was made.
    let mut broken = ledger(10, |number| number - 1);
    broken[at(6)] ^= 1;
    assert_eq!(read_ledger(&broken), Err(LedgerError::Hole { number: 6 }));
    // Rot of the last one looks like a torn end.
    let mut rotten = ledger(10, |number| number - 1);
    rotten[at(10) + 30] ^= 1;
    assert_eq!(read_ledger(&rotten).unwrap().len(), 9);
}

#[test]
fn a_ledger_has_a_beginning_and_one_server() {
    let whole = ledger(3, |number| number - 1);
    assert_eq!(read_ledger(&[]), Err(LedgerError::Beginning(LayoutError::Missing)));
    assert!(matches!(read_ledger(&whole[LEDGER_ENTRY_LEN..]), Err(LedgerError::Beginning(_))));
    // An entry that lies where another one should is none.
    let mut doubled = whole.clone();
    doubled.copy_within(..LEDGER_ENTRY_LEN, 3 * LEDGER_ENTRY_LEN);
    assert_eq!(read_ledger(&doubled).unwrap().len(), 3);
    let mut foreign = LedgerEntry::decode(&whole[2 * LEDGER_ENTRY_LEN..]).unwrap();
    foreign.server = ServerId(10);
    doubled[2 * LEDGER_ENTRY_LEN..3 * LEDGER_ENTRY_LEN].copy_from_slice(&foreign.encode().unwrap());
    assert_eq!(read_ledger(&doubled).unwrap().len(), 2);
}

#[test]
fn texts_are_shown_as_they_are() {
    assert_eq!(Text::<8>::new("12345678").unwrap().as_str(), "12345678");
    assert_eq!(Text::<8>::new("123456789"), None);
    assert_eq!(Text::<8>::new("a\0b"), None);
    assert_eq!(Text::<8>::new("\x1b[2J"), None);
    assert!(Text::<8>::from_field(b"a\0b\0\0\0\0\0").is_err());
    assert!(Text::<2>::from_field(b"\xc3\x28").is_err());
}

#[test]
fn members_are_different_servers() {
    let of =
        |numbers: &[u64]| Members::new(&numbers.iter().map(|number| ServerId(*number)).collect::<Vec<_>>());
    assert_eq!(of(&[3, 1]).unwrap().servers(), [ServerId(3), ServerId(1)]);
    assert!(of(&[1, 2, 3, 4]).is_some());
    for wrong in [&[1, 1][..], &[0], &[1, 2, 3, 4, 5]] {
        assert_eq!(of(wrong), None, "{wrong:?}");
    }
}

fn names() -> impl Strategy<Value = ChunkName> {
    (1u64.., any::<u32>(), 1u32..).prop_map(|(volume, segment, chunk)| ChunkName {
        volume: VolumeId(volume),
        segment: SegmentId(segment),
        chunk: ChunkId(chunk),
    })
}

fn sequences() -> impl Strategy<Value = Sequence> {
    (1u64 << 36..).prop_map(Sequence)
}

/// What a record of some kind is about: block or page, how many, and its payload.
fn content(
    kind: RecordKind,
    encoding: Encoding,
    lba: u32,
    count: u32,
    bytes: Vec<u8>,
) -> (u32, u32, Vec<u8>) {
    let fill = bytes[0];
    let is_plain = encoding == Encoding::None;
    match kind {
        RecordKind::Write | RecordKind::Move if is_plain => (lba, count, vec![fill; count as usize * 512]),
        RecordKind::Write | RecordKind::Move => (lba, count, bytes),
        RecordKind::Trim if fill.is_multiple_of(2) => (lba, count, Vec::new()),
        RecordKind::Trim => {
            let mut payload = Vec::new();
            let range = TrimRange { lba: Lba(lba), blocks: count };
            (0..count).for_each(|_| range.encode_into(&mut payload));
            (0, 0, payload)
        }
        RecordKind::Page if is_plain => (lba, PAGE_LEN as u32, vec![fill; PAGE_LEN]),
        RecordKind::Page => (lba, PAGE_LEN as u32, bytes),
        RecordKind::Root => (0, if is_plain { bytes.len() as u32 } else { STORED_MAX }, bytes),
    }
}

/// Any legal record, with its payload.
fn records() -> impl Strategy<Value = (RecordHeader, Vec<u8>)> {
    let kinds = proptest::sample::select(RecordKind::ALL).prop_map(|(_, kind)| kind);
    let contents =
        (kinds, any::<bool>(), 0..u32::MAX >> 1, 1u32..=16, proptest::collection::vec(any::<u8>(), 1..600));
    let places = (64u32..(1 << 26) - 1200, proptest::option::of(0u16..u16::MAX));
    (names(), sequences(), contents, places).prop_map(|(chunk, sequence, contents, (offset, behind))| {
        let (kind, is_plain, lba, count, bytes) = contents;
        let is_plain = is_plain || kind == RecordKind::Trim;
        let encoding = if is_plain { Encoding::None } else { Encoding::Lz4 };
        let (lba, blocks, payload) = content(kind, encoding, lba, count, bytes);
        // What was moved was written before.
        let is_move = kind == RecordKind::Move && sequence.0 > 1 << 36;
        let header = RecordHeader {
            chunk,
            offset: Units(offset),
            sequence,
            version: if is_move { Sequence(sequence.0 - 1) } else { sequence },
            lba: Lba(lba),
            blocks,
            stored: payload.len() as u32,
            payload_crc: crc32c::crc32c(&payload),
            kind: if kind == RecordKind::Move && !is_move { RecordKind::Write } else { kind },
            encoding,
            behind: behind.filter(|behind| u32::from(*behind) <= offset - 64),
        };
        (header, payload)
    })
}

proptest! {
    #[test]
    fn records_come_back(all in proptest::collection::vec(records(), 1..5)) {
        let mut bytes = Vec::new();
        for (header, payload) in &all {
            Record { header: *header, payload }.encode_into(&mut bytes).unwrap();
        }
        let found: Vec<Record<'_>> = Records::new(&bytes).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(found.len(), all.len());
        for (record, (header, payload)) in found.iter().zip(&all) {
            prop_assert_eq!(record.header, *header);
            prop_assert_eq!(record.payload, &payload[..]);
        }
    }

    #[test]
    fn directories_of_records_come_back(all in proptest::collection::vec(records(), 0..20), content_crc: u32) {
        let (mut entries, mut end) = (Vec::new(), RECORDS_START);
        for (header, payload) in all.iter().filter(|(header, _)| header.kind.chunk_kind() == ChunkKind::Data) {
            let header = RecordHeader { offset: end, behind: None, ..*header };
            entries.extend(entries_of(&Record { header, payload }));
            end = header.end();
        }
        let summary = DirectorySummary { length: end, content_crc };
        let bytes = encode_directory(&summary, &entries).unwrap();
        let directory = Directory::decode(&bytes).unwrap();
        prop_assert!(directory.entries().eq(entries.iter().copied()));
        prop_assert_eq!(directory.summary, summary);
        // What is not in the order of places is not written.
        if let [first, .., last] = &mut entries[..] && first.offset != last.offset {
            std::mem::swap(first, last);
            prop_assert!(encode_directory(&summary, &entries).is_err());
        }
    }

    #[test]
    fn index_entries_come_back(bits: u64, offset in 64u32..1 << 25, units in 2u32..=1025, slot in 0..SLOT_END) {
        if let Ok(entry) = IndexEntry::from_bits(bits) {
            prop_assert_eq!(entry.bits(), bits);
        }
        let entry = IndexEntry::mapped(Units(offset), Units(units), slot).unwrap();
        prop_assert_eq!(IndexEntry::from_bits(entry.bits()), Ok(entry));
        prop_assert_eq!(entry.state(), EntryState::Mapped { offset: Units(offset), units: Units(units), slot });
    }

    #[test]
    fn whatever_is_read_is_written_as_it_was(
        which in 0..GUARDED.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (name, crc_at, _) = GUARDED[which];
        let mut bytes = golden(name);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let bytes = sealed(name, bytes, crc_at);
        let again = match name {
            "server_file" => ServerFile::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "chunk_header" => ChunkHeader::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "directory" => Directory::decode(&bytes).map(|value| {
                encode_directory(&value.summary, &value.entries().collect::<Vec<_>>()).unwrap()
            }),
            "ledger" => LedgerEntry::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "root" => Root::decode(&bytes).map(|value| {
                let (slots, places): (Vec<_>, Vec<_>) = (value.slots().collect(), value.places().collect());
                encode_root(&value.summary, &slots, &places).unwrap()
            }),
            "pool" => Pool::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "tier" => Tier::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "server" => Server::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "volume" => Volume::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "segment" => Segment::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            "chunk" => Chunk::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
            _ => RecordHeader::decode(&bytes).map(|value| value.encode().unwrap().to_vec()),
        };
        if let Ok(again) = again {
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for (_, _, decode) in GUARDED {
            let _ = decode(&bytes);
        }
        let _ = Page::decode(&bytes);
        let _ = read_ledger(&bytes);
        let _ = Entry::decode(&bytes);
        let _ = Records::new(&bytes).count();
    }
}
