//! Holds `docs/wire/chunk.md` and the types together.

use ob_core::document::{field_tables, number_tables};

use super::header::RestBody;
use super::payloads::{HelloBody, LineBody, WelcomeBody};
use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/wire/chunk.md");
/// The first bytes of the header are those of every split message, and entries those of directories; both have tests of their own.
const COMMON: usize = 8;
const ENTRIES: usize = 3;

type Fields = Vec<(&'static str, usize, usize)>;

fn coded() -> Vec<Fields> {
    let rest = RestBody::FIELDS.iter().map(|(name, at, len)| (*name, at + 24, *len));
    vec![rest.collect(), HelloBody::FIELDS.to_vec(), WelcomeBody::FIELDS.to_vec(), LineBody::FIELDS.to_vec()]
}

fn documented(document: &'static str) -> Vec<Fields> {
    let mut tables = field_tables(document);
    tables.remove(ENTRIES);
    tables[0].drain(..COMMON);
    tables
}

#[test]
fn every_field_is_where_the_document_says() {
    assert_eq!(documented(DOCUMENT), coded());
    let split = include_str!("../../../../docs/wire/split.md");
    assert_eq!(field_tables(DOCUMENT)[0][..COMMON], field_tables(split)[0][..]);
}

#[test]
fn a_document_that_says_otherwise_is_noticed() {
    for (from, to) in [
        ("| `b` | 48 | 8 |", "| `b` | 48 | 4 |"),
        ("| `server` | 24 | 8 |", "| `server` | 16 | 8 |"),
        ("| `allocated` | 28 | 4 |", "| `size` | 28 | 4 |"),
    ] {
        assert!(DOCUMENT.contains(from), "{from}");
        let other = DOCUMENT.replacen(from, to, 1).leak();
        assert_ne!(documented(other), coded(), "{to}");
    }
}

#[test]
fn numbers_are_the_documents() {
    let kinds: Vec<_> = Kind::ALL.iter().map(|(name, kind)| (*name, u64::from(kind.code()))).collect();
    assert_eq!(number_tables(DOCUMENT, "kind"), [kinds]);
    let states: Vec<_> = EndState::ALL.iter().map(|(name, state)| (*name, u64::from(state.code()))).collect();
    assert_eq!(number_tables(DOCUMENT, "state"), [states]);
    let statuses = Refusal::STATUSES.iter().map(|(name, status)| (*name, u64::from(*status)));
    assert_eq!(
        number_tables(DOCUMENT, "status"),
        [[("OK", 0)].into_iter().chain(statuses).collect::<Vec<_>>()]
    );
    let list = |all: Vec<(&str, u32)>| {
        all.iter().map(|(name, code)| format!("{code} {name}")).collect::<Vec<_>>().join(", ")
    };
    let replicas = ReplicaState::ALL.iter().map(|(name, state)| (*name, state.code().into())).collect();
    assert!(DOCUMENT.contains(&format!("`flags`: state: {}", list(replicas))));
    let created = CreateState::ALL.iter().map(|(name, state)| (*name, state.code())).collect();
    assert!(DOCUMENT.contains(&format!("in the upper half the state: {}", list(created))));
}

#[test]
fn constants_are_the_documents() {
    assert!(DOCUMENT.contains(&format!("version {VERSION}. Everything")));
    assert!(DOCUMENT.contains(&format!("`HEADER_LEN` = {HEADER_LEN} bytes")));
    assert!(DOCUMENT.contains(&format!("`PAYLOAD_MAX` = {PAYLOAD_MAX} |")));
    assert!(DOCUMENT.contains(&format!("`REQUESTS_MAX` = {REQUESTS_MAX} requests")));
    assert!(DOCUMENT.contains(&format!("`WINDOW_LEN` = {WINDOW_LEN} bytes")));
    assert!(DOCUMENT.contains(&format!("most entries, at most {LIST_MAX}")));
    assert!(DOCUMENT.contains(&format!("`a`: most, at most {LIST_MAX};")));
    assert!(DOCUMENT.contains(&format!("| `magic` | 0 | 2 | `{}` |", std::str::from_utf8(&MAGIC).unwrap())));
    assert_eq!((READ_MAX, RECORDS_MAX), (1 << 20, 1 << 20));
    assert!(
        DOCUMENT.contains("a multiple of 64, at most 1 MiB")
            && DOCUMENT.contains("| records in a message | 1 MiB |")
    );
}
