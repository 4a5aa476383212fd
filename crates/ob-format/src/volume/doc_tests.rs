//! Holds `docs/format/volume.md` and the types together.

use ob_core::document::{field_tables, number_tables, rows};
use ob_core::{Epoch, Units};

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/format/volume.md");
const WIRE: &str = include_str!("../../../../docs/wire/chunk.md");

type Fields = &'static [(&'static str, usize, usize)];

/// Bytes that every metadata value begins with: a table of their own.
const BEGINNING: usize = 4;

/// Every layout, in the order of the document's tables.
fn coded() -> Vec<Vec<(&'static str, usize, usize)>> {
    let own = [
        chunk::ServerBody::FIELDS,
        chunk::ChunkBody::FIELDS,
        record::RecordBody::FIELDS,
        directory::DirectoryBody::FIELDS,
        ledger::LedgerBody::FIELDS,
        page::PageBody::FIELDS,
        root::RootBody::FIELDS,
        root::SlotBody::FIELDS,
        root::PlaceBody::FIELDS,
        metadata::ValueBody::FIELDS,
    ];
    let values = values().map(|(_, _, fields)| &fields[BEGINNING..]);
    own.into_iter().chain(values).map(<[_]>::to_vec).collect()
}

/// Magic, length and fields of each value.
fn values() -> [(&'static str, usize, Fields); 6] {
    let named = |magic: &'static [u8; 4]| std::str::from_utf8(magic).unwrap();
    [
        (named(&metadata::POOL_MAGIC), metadata::POOL_LEN, metadata::PoolBody::FIELDS),
        (named(&metadata::TIER_MAGIC), metadata::TIER_LEN, metadata::TierBody::FIELDS),
        (named(&metadata::SERVER_MAGIC), metadata::SERVER_LEN, metadata::ServerBody::FIELDS),
        (named(&metadata::VOLUME_MAGIC), metadata::VOLUME_LEN, metadata::VolumeBody::FIELDS),
        (named(&metadata::SEGMENT_MAGIC), metadata::SEGMENT_LEN, metadata::SegmentBody::FIELDS),
        (named(&metadata::CHUNK_MAGIC), metadata::CHUNK_LEN, metadata::ChunkBody::FIELDS),
    ]
}

#[test]
fn every_field_is_where_the_document_says() {
    assert_eq!(field_tables(DOCUMENT), coded());
}

#[test]
fn a_document_that_says_otherwise_is_noticed() {
    for (from, to) in [
        ("| `sequence` | 32 | 8 |", "| `sequence` | 40 | 8 |"),
        ("| `joining` | 80 | 8 |", "| `joining` | 80 | 4 |"),
        ("| `as_of` | 16 | 8 |", "| `as_off` | 16 | 8 |"),
    ] {
        assert!(DOCUMENT.contains(from), "{from}");
        assert_ne!(field_tables(&DOCUMENT.replacen(from, to, 1)), coded(), "{to}");
    }
}

#[test]
fn every_value_begins_alike() {
    for (magic, len, fields) in values() {
        // A chunk has a length of its own, so the value's is called otherwise there.
        let begins = fields[..BEGINNING].iter().map(|(_, offset, len)| (*offset, *len));
        let common = metadata::ValueBody::FIELDS.iter().map(|(_, offset, len)| (*offset, *len));
        assert!(begins.eq(common), "{magic}");
        assert!(DOCUMENT.contains(&format!("`: `{magic}`, {len} bytes\n")), "{magic}");
    }
}

#[test]
fn entries_of_directories_are_those_of_the_wire() {
    let tables = field_tables(WIRE);
    assert!(tables.iter().any(|table| table == directory::EntryBody::FIELDS), "{tables:?}");
}

#[test]
fn constants_are_the_documents() {
    for (name, value) in [
        ("CHUNK_HEADER_LEN", CHUNK_HEADER_LEN),
        ("RECORD_HEADER_LEN", RECORD_HEADER_LEN),
        ("DIRECTORY_HEADER_LEN", DIRECTORY_HEADER_LEN),
        ("LEDGER_ENTRY_LEN", LEDGER_ENTRY_LEN),
        ("PAGE_HEADER_LEN", PAGE_HEADER_LEN),
        ("ROOT_HEADER_LEN", ROOT_HEADER_LEN),
    ] {
        assert!(DOCUMENT.contains(&format!("`{name}` = {value} bytes")), "{name}");
    }
    assert!(DOCUMENT.contains(&format!("version {VERSION}. Everything")));
    assert!(DOCUMENT.contains(&format!("from byte {} (unit {}) on", RECORDS_START.bytes(), RECORDS_START.0)));
    assert!(DOCUMENT.contains(&format!("| `unit` | 44 | 4 | {} |", Units::LEN)));
    assert!(DOCUMENT.contains(&format!("bytes of payload, at most {STORED_MAX}")));
    assert!(DOCUMENT.contains(&format!("up to {TRIM_RANGES_MAX} pairs")));
    assert!(DOCUMENT.contains(&format!("{PAGE_ENTRIES} entries of 8")));
    assert!(DOCUMENT.contains(&format!("A slot, {SLOT_LEN} bytes")));
    assert!(DOCUMENT.contains(&format!("A place of a page, {PAGE_PLACE_LEN} bytes")));
    assert!(DOCUMENT.contains("epochs are 1 to 2²⁸ − 1"));
    assert_eq!(Epoch::END, 1 << 28);
    assert!(DOCUMENT.contains("a power of two from 64 KiB to 1 GiB"));
    assert_eq!((metadata::CHUNK_LEN_MIN, metadata::CHUNK_LEN_MAX), (64 << 10, 1 << 30));
}

#[test]
fn bits_of_entries_are_the_documents() {
    let bits: Vec<String> = rows(DOCUMENT)
        .skip_while(|cells| cells[0] != "bits")
        .skip(2)
        .take(4)
        .map(|cells| cells[0].to_owned())
        .collect();
    let ends = [page::OFFSET_BITS, page::UNITS_BITS, page::SLOT_BITS, 64 - page::STATE_AT];
    let mut at = 0;
    let coded = ends.map(|width| {
        at += width;
        format!("{}–{}", at - width, at - 1)
    });
    assert_eq!(bits, coded);
    assert!(DOCUMENT.contains(&format!("2 to {}: it has at least a block", RECORD_UNITS_MAX.0)));
}

#[test]
fn kinds_are_the_documents() {
    let tables = number_tables(DOCUMENT, "kind");
    let records: Vec<(String, u64)> =
        RecordKind::ALL.iter().map(|(name, kind)| (name.to_uppercase(), u64::from(kind.code()))).collect();
    let ledger = [
        ("BEGIN", ledger::kind::BEGIN),
        ("EPOCH", ledger::kind::EPOCH),
        ("STOPPED", ledger::kind::STOPPED),
        ("SEALED", ledger::kind::SEALED),
        ("FILLING", ledger::kind::FILLING),
        ("GONE", ledger::kind::GONE),
    ];
    let ledger: Vec<(String, u64)> =
        ledger.iter().map(|(name, code)| ((*name).to_owned(), u64::from(*code))).collect();
    let documented: Vec<Vec<(String, u64)>> = tables
        .iter()
        .map(|table| table.iter().map(|(name, code)| ((*name).to_owned(), *code)).collect())
        .collect();
    assert_eq!(documented, [records, ledger]);
}

/// Numbers of states, kinds, classes and encodings, as the tables have them: `1 open, 2 sealed`.
#[test]
fn what_fields_may_hold_is_the_documents() {
    fn list<T: Copy>(all: &[(&str, T)], code: impl Fn(T) -> u8) -> String {
        let names = all.iter().map(|(name, value)| format!("{} {}", code(*value), name.to_lowercase()));
        names.collect::<Vec<_>>().join(", ")
    }
    for expected in [
        format!("| `kind` | 12 | 1 | {} |", list(ChunkKind::ALL, ChunkKind::code)),
        format!("| `kind` | 13 | 1 | {} |", list(ChunkKind::ALL, ChunkKind::code)),
        format!("| `state` | 12 | 1 | {} |", list(metadata::ServerState::ALL, metadata::ServerState::code)),
        format!("| `state` | 12 | 1 | {} |", list(metadata::VolumeState::ALL, metadata::VolumeState::code)),
        format!("| `class` | 13 | 1 | {} |", list(metadata::Class::ALL, metadata::Class::code)),
        format!("| `state` | 12 | 1 | {}:", list(metadata::SegmentState::ALL, metadata::SegmentState::code)),
        format!("| `state` | 12 | 1 | {} |", list(metadata::ChunkState::ALL, metadata::ChunkState::code)),
    ] {
        assert!(DOCUMENT.contains(&expected), "{expected}");
    }
    assert_eq!(list(Encoding::ALL, Encoding::code), "0 none, 1 lz4");
    assert!(DOCUMENT.contains("| `encoding` | 61 | 1 | 0 none, 1 LZ4 block |"));
    let magics: Vec<&str> =
        rows(DOCUMENT).filter(|cells| cells[0] == "magic").map(|cells| cells[3]).collect();
    let coded = [
        chunk::SERVER_MAGIC,
        chunk::CHUNK_MAGIC,
        record::MAGIC,
        directory::MAGIC,
        ledger::MAGIC,
        page::MAGIC,
        root::MAGIC,
    ];
    let coded = coded.iter().map(|magic| std::str::from_utf8(magic).unwrap()).chain(["below"]);
    assert!(magics.iter().copied().eq(coded), "{magics:?}");
}
