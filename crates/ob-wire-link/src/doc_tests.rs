//! Holds `docs/wire/` and the constants together.

use ob_core::document::{field_tables, rows};

use crate::files::{self, FileError, Operation, flag};
use crate::frame::{self, kind};
use crate::ring::{self, control};
use crate::stream;

const FILES: &str = include_str!("../../../docs/wire/files.md");
const RING: &str = include_str!("../../../docs/wire/ring.md");
const STREAM: &str = include_str!("../../../docs/wire/stream.md");
const LINK: &str = include_str!("../../../docs/wire/link.md");

/// The number beside a name in the table that names it.
fn number_beside(document: &str, name: &str) -> usize {
    let row = rows(document).find(|cells| cells[0] == name);
    let cells = row.unwrap_or_else(|| panic!("{name} is in no table"));
    cells[1].parse().unwrap_or_else(|_| panic!("{name} has no number"))
}

#[test]
fn the_control_block_is_the_documents() {
    for (name, value) in [
        ("PROGRESS", control::PROGRESS),
        ("CLAIM", control::CLAIM),
        ("SLEEPERS", control::SLEEPERS),
        ("BOUND", control::BOUND),
        ("CARD_ASLEEP", control::CARD_ASLEEP),
        ("BELL", control::BELL),
    ] {
        assert_eq!(number_beside(RING, name), value, "{name}");
    }
    assert!(RING.contains(&format!("`CONTROL_LEN` = {} bytes", ring::CONTROL_LEN)));
    assert_eq!(number_beside(RING, "response control block"), ring::CONTROL_LEN);
    assert_eq!(number_beside(RING, "request data"), ring::DATA_START);
    assert_eq!(number_beside(RING, "payload_offset"), ring::HEADER_LEN);
}

#[test]
fn frame_types_are_the_documents() {
    let documented: Vec<(String, u8)> = rows(LINK)
        .filter(|cells| {
            cells.len() == 4 && cells[2].contains("host") || cells.len() == 4 && cells[2] == "both"
        })
        .filter_map(|cells| Some((cells[1].to_owned(), cells[0].parse().ok()?)))
        .collect();
    let coded: Vec<(String, u8)> =
        kind::ALL.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!(documented, coded);
    assert!(LINK.contains(&format!("`FRAME_MAX` = {} bytes", frame::FRAME_MAX)));
    assert!(LINK.contains(&format!("`PACKET_MAX` = {} bytes", frame::PACKET_MAX)));
    assert!(LINK.contains(&format!("The version is {}", frame::VERSION)));
}

#[test]
fn file_requests_are_the_documents() {
    let documented = field_tables(FILES);
    assert_eq!(documented.len(), files::LAYOUTS.len());
    for (documented, coded) in documented.iter().zip(files::LAYOUTS) {
        assert_eq!(documented, coded);
    }
    for (name, value) in [
        ("LANE_LEN", files::LANE_LEN),
        ("REQUEST_LEN", files::REQUEST_LEN),
        ("RESPONSE_LEN", files::RESPONSE_LEN),
        ("CARD_INFO_LEN", files::CARD_INFO_LEN),
        ("NODE_INFO_LEN", files::NODE_INFO_LEN),
        ("SPACE_INFO_LEN", files::SPACE_INFO_LEN),
        ("ENTRY_LEN", files::ENTRY_LEN),
        ("PATH_LEN_MAX", files::PATH_LEN_MAX),
    ] {
        assert!(FILES.contains(&format!("`{name}` = {value} bytes")), "{name}");
    }
    assert!(FILES.contains(&format!("`FILES_SERVICE` = {}. ", files::FILES_SERVICE)));
    assert!(FILES.contains(&format!("version {}. Requests", files::VERSION)));
    assert!(FILES.contains(&format!("is longer than {} bytes", files::NAME_LEN_MAX)));
    assert!(FILES.contains(&format!("({}: the root)", files::ROOT.0)));
    let (directory, file) = (files::NodeKind::Directory.code(), files::NodeKind::File.code());
    assert_eq!(FILES.matches(&format!("{directory}: a directory, {file}: a file")).count(), 2);
}

#[test]
fn file_operations_are_the_documents() {
    let documented: Vec<(&str, u16, &str)> = rows(FILES)
        .filter(|cells| cells.len() == 6)
        .filter_map(|cells| Some((cells[0], cells[1].parse().ok()?, cells[3])))
        .collect();
    let flags = |operation| match operation {
        Operation::Write => format!("{}: durable", flag::DURABLE),
        Operation::Open => {
            let (create, exclusive) = (flag::CREATE, flag::EXCLUSIVE);
            format!("{create}: create it if it is missing; {exclusive}: with {create}: it must be missing")
        }
        Operation::Remove => {
            format!("{}: only a file; {}: only an empty directory", flag::ONLY_FILE, flag::ONLY_DIRECTORY)
        }
        Operation::Rename => format!("{}: the target must be missing", flag::NO_REPLACE),
        _ => String::new(),
    };
    assert_eq!(documented.len(), Operation::ALL.len());
    for (documented, coded) in documented.iter().zip(Operation::ALL) {
        assert_eq!(*documented, (coded.name(), coded.code(), flags(*coded).as_str()));
    }
}

#[test]
fn file_errors_are_the_documents() {
    let documented: Vec<(&str, u16)> = rows(FILES)
        .skip_while(|cells| cells[0] != "status" || cells[1] != "number")
        .filter_map(|cells| Some((cells[0], cells[1].parse().ok()?)))
        .collect();
    let coded: Vec<(&str, u16)> =
        FileError::ALL.iter().map(|error| (error.name().unwrap(), error.code())).collect();
    assert_eq!(documented, coded);
}

#[test]
fn the_stream_is_the_documents() {
    assert_eq!(field_tables(STREAM), stream::LAYOUTS.map(<[_]>::to_vec));
    for (name, value) in [
        ("FRAGMENT_LEN", stream::FRAGMENT_LEN),
        ("CREDIT_LEN", stream::CREDIT_LEN as usize),
        ("HEADER_LEN", stream::HEADER_LEN),
        ("ADDRESS_LEN", stream::ADDRESS_LEN),
        ("RECOVERED_LEN", stream::RECOVERED_LEN),
        ("NUMBER_LEN", stream::NUMBER_LEN),
        ("ENTRY_LEN", stream::ENTRY_LEN),
    ] {
        assert!(STREAM.contains(&format!("`{name}` = {value} bytes")), "{name}");
    }
    assert!(STREAM.contains(&format!("`SEEN_END` = {},", stream::SEEN_END)));
    assert!(STREAM.contains(&format!("`KV_SERVICE` = {} is", stream::KV_SERVICE)));
    assert!(STREAM.contains(&format!("version {}. Frames", stream::VERSION)));
    let documented: Vec<(&str, u16, &str)> = rows(STREAM)
        .filter(|cells| cells.len() == 4 && matches!(cells[2], "card" | "host"))
        .filter_map(|cells| Some((cells[0], cells[1].parse().ok()?, cells[2])))
        .collect();
    assert_eq!(documented, stream::kind::ALL);
}
