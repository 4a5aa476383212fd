//! Holds `docs/wire/split.md` and the types together.

use ob_core::document::{field_tables, number_tables, rows};

use super::control::{BrokenBody, ChannelBody, ChannelIsBody, GateBody, MemoryBody, NotedBody, SetBody};
use super::entries::{CompletionBody, DescriptorBody, EngineBody, HelloBody, RefusedBody, WelcomeBody};
use super::header::CommonBody;
use super::message::MessageBody;
use super::plan::{DefineBody, PlanBody, StepBody, step};
use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/wire/split.md");

/// Every layout, in the order of the document's tables.
fn coded() -> Vec<Vec<(&'static str, usize, usize)>> {
    // On the host it stands amidst the message's header.
    let descriptor = DescriptorBody::FIELDS.iter().map(|(name, at, len)| (*name, at + DESCRIPTOR_AT, *len));
    let fixed = |fields: &[(&'static str, usize, usize)]| fields.to_vec();
    vec![
        fixed(CommonBody::FIELDS),
        fixed(MessageBody::FIELDS),
        fixed(HelloBody::FIELDS),
        fixed(WelcomeBody::FIELDS),
        fixed(EngineBody::FIELDS),
        fixed(RefusedBody::FIELDS),
        descriptor.collect(),
        fixed(CompletionBody::FIELDS),
        fixed(PlanBody::FIELDS),
        fixed(DefineBody::FIELDS),
        fixed(StepBody::FIELDS),
        fixed(ChannelBody::FIELDS),
        fixed(ChannelIsBody::FIELDS),
        fixed(SetBody::FIELDS),
        fixed(GateBody::FIELDS),
        fixed(NotedBody::FIELDS),
        fixed(BrokenBody::FIELDS),
        fixed(MemoryBody::FIELDS),
    ]
}

#[test]
fn every_field_is_where_the_document_says() {
    assert_eq!(field_tables(DOCUMENT), coded());
}

#[test]
fn a_document_that_says_otherwise_is_noticed() {
    for (from, to) in [
        ("| `handle` | 24 | 4 |", "| `handle` | 28 | 4 |"),
        ("| `gate` | 16 | 8 |", "| `gate` | 16 | 4 |"),
        ("| `each_len` | 3 | 1 |", "| `more` | 3 | 1 |"),
    ] {
        assert!(DOCUMENT.contains(from), "{from}");
        assert_ne!(field_tables(&DOCUMENT.replacen(from, to, 1)), coded(), "{to}");
    }
}

#[test]
fn kinds_and_steps_are_the_documents() {
    let kinds: Vec<(&str, u64)> = kind::ALL.iter().map(|(name, code, _)| (*name, u64::from(*code))).collect();
    assert_eq!(number_tables(DOCUMENT, "kind"), [kinds]);
    for (name, _, from) in kind::ALL {
        assert!(rows(DOCUMENT).any(|cells| cells[0] == *name && cells[2] == *from), "{name}");
    }
    let steps = [
        ("EACH", step::EACH),
        ("END_EACH", step::END_EACH),
        ("COMPRESS", step::COMPRESS),
        ("COPY", step::COPY),
        ("CHECKSUM", step::CHECKSUM),
        ("SEND", step::SEND),
        ("MERGE", step::MERGE),
        ("FETCH", step::FETCH),
        ("DECODE", step::DECODE),
        ("ZERO", step::ZERO),
        ("TO_HOST", step::TO_HOST),
        ("FROM_HOST", step::FROM_HOST),
        ("KEEP", step::KEEP),
        ("ANSWER", step::ANSWER),
    ];
    assert_eq!(number_tables(DOCUMENT, "step"), [steps.map(|(name, code)| (name, u64::from(code)))]);
}

#[test]
fn constants_are_the_documents() {
    assert!(DOCUMENT.contains(&format!("`SPLIT_SERVICE` = {SPLIT_SERVICE} a port")));
    assert!(DOCUMENT.contains(&format!("version {VERSION}, in one")));
    assert!(DOCUMENT.contains(&format!("`MESSAGE_LEN` = {MESSAGE_LEN} bytes")));
    assert!(DOCUMENT.contains(&format!("`INLINE_MAX` = {INLINE_MAX} bytes")));
    assert!(DOCUMENT.contains(&format!("`STEPS_MAX` = {STEPS_MAX}:")));
    assert!(DOCUMENT.contains(&format!("`ENGINES_MAX` = {ENGINES_MAX}:")));
    assert!(DOCUMENT.contains(&format!("`REPLY_PAYLOAD_MAX` = {REPLY_PAYLOAD_MAX},")));
    assert!(
        DOCUMENT.contains(&format!("a header of {HEADER_LEN} bytes, of which the first {COMMON_LEN} are"))
    );
    assert!(DOCUMENT.contains(&format!("from {ACCEPTED_FROM} on, is the card's")));
    assert!(DOCUMENT.contains(&format!("a register, 0 to {}", Register::END - 1)));
    assert_eq!(MEMBERS_MAX, 4);
}

#[test]
fn codes_are_the_documents() {
    let lists = |wanted: &str| DOCUMENT.contains(wanted);
    let codes = |all: &[u32]| all.iter().enumerate().all(|(at, code)| *code as usize == at + 1);
    assert!(codes(&RefusedCode::ALL.iter().map(|code| code.code()).collect::<Vec<_>>()));
    assert!(lists(
        "| 1 version, 2 this port has a group of this service already, 3 the gate it names is closed |"
    ));
    assert!(codes(&ChannelWhat::ALL.iter().map(|what| what.code().into()).collect::<Vec<_>>()));
    assert!(lists("| 1 connect, 2 listen, 3 close"));
    assert!(codes(&ChannelState::ALL.iter().map(|state| state.code().into()).collect::<Vec<_>>()));
    assert!(lists("| 1 up, 2 gone, 3 refused, 4 listening, 5 accepted:"));
    assert_eq!(SetWhat::ALL.iter().map(|what| what.code()).collect::<Vec<_>>(), [1, 2, 4]);
    assert!(lists("| one of 1 append, 2 read only, 4 forget:"));
    assert!(CompletionStatus::ALL.iter().enumerate().all(|(at, status)| usize::from(status.code()) == at));
    assert!(lists(
        "| 0 good; 1 chunk full; 2 broken; 3 no member; 4 not verified; 5 answer withheld; 6 given up by its peer; 7 refused; 8 engine |"
    ));
}
