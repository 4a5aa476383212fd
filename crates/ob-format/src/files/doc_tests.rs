//! Holds `docs/format/files.md` and the types together.

use ob_core::document::{field_tables, rows};

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/format/files.md");

#[test]
fn every_field_is_where_the_document_says() {
    let mut node = record::NodeBody::FIELDS.to_vec();
    node.push(("name", NODE_LEN, 0));
    let coded = [
        superblock::SuperblockBody::FIELDS,
        frame::FrameHeaderBody::FIELDS,
        &node,
        record::MapBody::FIELDS,
        record::RemoveBody::FIELDS,
        record::CutBody::FIELDS,
    ];
    let documented = field_tables(DOCUMENT);
    assert_eq!(documented.len(), coded.len());
    for (documented, coded) in documented.iter().zip(coded) {
        assert_eq!(documented, coded);
    }
}

#[test]
fn a_run_is_what_the_document_says() {
    let names = ["logical", "physical", "count"];
    let expected: Vec<_> = names.iter().enumerate().map(|(place, name)| (*name, 4 * place, 4)).collect();
    assert_eq!(record::RunBody::FIELDS, expected);
    assert!(DOCUMENT.contains("(logical segment, physical segment, count: 4 bytes each)"));
}

#[test]
fn constants_are_the_documents() {
    for (name, value) in [
        ("SUPERBLOCK_LEN", SUPERBLOCK_LEN),
        ("FRAME_HEADER_LEN", FRAME_HEADER_LEN),
        ("NODE_LEN", NODE_LEN),
        ("MAP_LEN", MAP_LEN),
        ("RUN_LEN", RUN_LEN),
        ("REMOVE_LEN", REMOVE_LEN),
        ("CUT_LEN", CUT_LEN),
    ] {
        assert!(DOCUMENT.contains(&format!("`{name}` = {value} bytes")), "{name}");
    }
    for (name, value) in [
        ("NODE", record::kind::NODE),
        ("MAP", record::kind::MAP),
        ("REMOVE", record::kind::REMOVE),
        ("CUT", record::kind::CUT),
    ] {
        assert!(DOCUMENT.contains(&format!("\n`{name}` = {value}: ")), "{name}");
    }
    assert!(DOCUMENT.contains(&format!("`RUNS_MAX` = {RUNS_MAX} runs")));
    assert!(DOCUMENT.contains(&format!("version {VERSION}. Everything")));
    assert!(DOCUMENT.contains(&format!("The root directory has id {}", ROOT.0)));
    let [first, second] = SUPERBLOCK_SLOTS;
    assert!(DOCUMENT.contains(&format!("Two slots, at byte {first} and at byte {second}")));
}

#[test]
fn what_fields_may_hold_is_the_documents() {
    let meaning = |name: &str, place: usize| {
        let mut found = rows(DOCUMENT).filter(|cells| cells[0] == name);
        found.nth(place).unwrap_or_else(|| panic!("{name} is in no table"))[3].to_owned()
    };
    assert_eq!(meaning("magic", 0).as_bytes(), superblock::MAGIC);
    assert_eq!(meaning("magic", 1).as_bytes(), frame::MAGIC);
    assert_eq!(meaning("version", 0), VERSION.to_string());
    assert_eq!(meaning("name_len", 0), format!("1 to {NAME_LEN_MAX}"));
    let (directory, file) = (NodeKind::Directory.code(), NodeKind::File.code());
    assert_eq!(meaning("node_kind", 0), format!("{directory}: a directory, {file}: a file"));
    assert_eq!(meaning("length", 3), REMOVE_LEN.to_string());
    assert_eq!(meaning("length", 4), CUT_LEN.to_string());
}
