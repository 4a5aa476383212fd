//! Holds `docs/split.md` and the plans of volumes together.

use ob_core::document::{field_tables, number_tables, rows};
use ob_split::wire::{Answers, ENTRY_LEN_MIN, Otherwise, Register, Step};

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/split.md");

type Fields = Vec<(&'static str, usize, usize)>;

/// Fields of an entry: the layout's begin behind what every entry has.
fn entry(layout: &[(&'static str, usize, usize)]) -> Fields {
    layout.iter().map(|(name, at, len)| (*name, at + usize::from(ENTRY_LEN_MIN), *len)).collect()
}

/// Every layout, in the order of the document's tables.
fn coded() -> Vec<Fields> {
    vec![
        entry(WritePartBody::FIELDS),
        RunBody::FIELDS.to_vec(),
        entry(ReadPartBody::FIELDS),
        RangeBody::FIELDS.to_vec(),
        entry(CallBody::FIELDS),
        entry(super::take::TAKE_FIELDS),
        entry(super::copy::FIELDS),
        entry(super::look::FIELDS),
        entry(super::index::FIELDS),
        entry(super::moves::FIELDS),
        entry(super::given::FIELDS),
        super::given::EACH_FIELDS.to_vec(),
        entry(super::take::PRESS_FIELDS),
    ]
}

/// A step as the document writes it.
fn text(step: Step) -> String {
    let number = Register::number;
    match step {
        Step::Each => "Each".to_owned(),
        Step::EndEach => "EndEach".to_owned(),
        Step::Compress { from, into, otherwise } => {
            let otherwise = if otherwise == Otherwise::Copy { " or Copy" } else { "" };
            format!("Compress {}→{}{otherwise}", number(from), number(into))
        }
        Step::Copy { from, into } => format!("Copy {}→{}", number(from), number(into)),
        Step::Checksum { of } => format!("Checksum {}", number(of)),
        Step::Send { payload: Some(payload) } => format!("Send {}", number(payload)),
        Step::Send { payload: None } => "Send".to_owned(),
        Step::Merge { answers: Answers::All } => "Merge All".to_owned(),
        Step::Merge { answers: Answers::First } => "Merge First".to_owned(),
        Step::Fetch { into } => format!("Fetch {}", number(into)),
        Step::Decode { from, into } => format!("Decode {}→{}", number(from), number(into)),
        Step::Zero { into } => format!("Zero {}", number(into)),
        Step::ToHost { from } => format!("ToHost {}", number(from)),
        Step::FromHost { into } => format!("FromHost {}", number(into)),
        Step::Keep { what } => format!("Keep {}", number(what)),
        Step::Answer { payload: Some(payload) } => format!("Answer {}", number(payload)),
        Step::Answer { payload: None } => "Answer".to_owned(),
    }
}

/// Name, number, bytes, bytes more for each, and steps.
fn table() -> Vec<[String; 5]> {
    let plans = definitions().unwrap();
    assert_eq!(plans.len(), id::ALL.len());
    let lines = id::ALL.iter().zip(plans).map(|((name, number), definition)| {
        assert_eq!(definition.id(), *number);
        let (none, one) = (definition.entry_len(0), definition.entry_len(1));
        let steps: Vec<String> = definition.plan().steps().iter().map(|step| text(*step)).collect();
        let each = if definition.has_count() { (one - none).to_string() } else { String::new() };
        [(*name).to_owned(), number.0.to_string(), none.to_string(), each, steps.join(" · ")]
    });
    lines.collect()
}

fn documented(document: &str) -> Vec<[String; 5]> {
    let plans = rows(document).skip_while(|cells| !matches!(cells[..], ["plan", "number", ..])).skip(2);
    let plans = plans.take_while(|cells| cells.len() == 6);
    plans.map(|cells| [0, 1, 2, 3, 5].map(|cell| cells[cell].to_owned())).collect()
}

#[test]
fn plans_are_the_documents() {
    assert_eq!(documented(DOCUMENT), table());
    let numbers: Vec<_> = id::ALL.iter().map(|(name, id)| (*name, u64::from(id.0))).collect();
    assert_eq!(number_tables(DOCUMENT, "plan"), [numbers]);
}

#[test]
fn every_field_is_where_the_document_says() {
    assert_eq!(field_tables(DOCUMENT), coded());
    // What is not a part begins like one.
    assert_eq!(WriteBody::FIELDS[..], WritePartBody::FIELDS[..1]);
}

#[test]
fn a_document_that_says_otherwise_is_noticed() {
    for (from, to) in [
        ("| `first` | 16 | 4 |", "| `first` | 20 | 4 |"),
        ("| `lba` | 12 | 4 |", "| `lba` | 12 | 8 |"),
        ("| `length` | 12 | 4 |", "| `len` | 12 | 4 |"),
    ] {
        assert!(DOCUMENT.contains(from), "{from}");
        let other = DOCUMENT.replacen(from, to, 1);
        assert_ne!(field_tables(&other), coded(), "{to}");
    }
    for (from, to) in [
        ("| `TRIM` | 7 | 16 | 8 |", "| `TRIM` | 7 | 16 | 4 |"),
        ("Fetch 2 · Decode 2→1 · EndEach · Answer 1", "Fetch 2 · Decode 2→1 · EndEach · Answer"),
    ] {
        assert!(DOCUMENT.contains(from), "{from}");
        assert_ne!(documented(&DOCUMENT.replacen(from, to, 1)), table(), "{to}");
    }
}

#[test]
fn constants_are_the_documents() {
    assert!(DOCUMENT.contains(&format!("`PIECE_LEN` = {PIECE_LEN} bytes")));
    assert!(
        DOCUMENT
            .contains(&format!("at most `RUNS_MAX` = {RUNS_MAX} runs or `RANGES_MAX` = {RANGES_MAX} ranges"))
    );
    let split = include_str!("../../../../docs/wire/split.md");
    assert!(split.contains("a plan has at most 254 runs or 255 ranges"));
    assert_eq!(HOST_HANDLES, 1 << 31);
    assert!(split.contains("from 2³¹ on"));
    assert!(DOCUMENT.contains(&format!("at most `LOOK_BYTES_MAX` = {LOOK_BYTES_MAX} bytes")));
    assert!(DOCUMENT.contains(&format!("`LOOK_ENTRIES_MAX` = {LOOK_ENTRIES_MAX}")));
    assert!(DOCUMENT.contains(&format!("and of each piece, {GIVEN_MAX} at most")));
}
