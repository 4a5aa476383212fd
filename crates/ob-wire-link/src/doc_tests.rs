//! Holds `docs/wire/` and the constants together.

use crate::frame::{self, kind};
use crate::ring::{self, control};

const RING: &str = include_str!("../../../docs/wire/ring.md");
const LINK: &str = include_str!("../../../docs/wire/link.md");

/// Cells of every table row of a document.
fn rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = document.lines().filter(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
}

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
