//! Messages of administration on the channel of the link (`docs/wire/probe.md`): a request in one, an answer in as many as it needs.

use ob_core::layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Says that a channel message is a request, or a part of an answer.
const REQUEST_KIND: u32 = 5;
const ANSWER_KIND: u32 = 6;
/// Bytes before the text.
const TALK_LEN: usize = 24;
/// Bytes of text in one message.
const TEXT_MAX: usize = 4096 - TALK_LEN;
/// Parts of the longest answer.
const PARTS_MAX: u32 = 2048;

layout!(TalkBody, TALK_LEN, { kind: U32, part: U32, parts: U32, reserved: U32, ticket: U64 });

fn message(kind: u32, ticket: u64, (part, parts): (u32, u32), text: &[u8]) -> Vec<u8> {
    let body = TalkBody {
        kind: kind.into(),
        part: part.into(),
        parts: parts.into(),
        reserved: 0.into(),
        ticket: ticket.into(),
    };
    let mut message = body.as_bytes().to_vec();
    message.extend_from_slice(text);
    message
}

/// A request; nothing, if it is too long to be one.
pub(super) fn encode_request(ticket: u64, text: &str) -> Option<Vec<u8>> {
    (text.len() <= TEXT_MAX).then(|| message(REQUEST_KIND, ticket, (0, 1), text.as_bytes()))
}

/// Whose request a message is, and what it says.
pub(super) fn decode_request(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (body, text) = TalkBody::ref_from_prefix(bytes).ok()?;
    let is_one = body.kind.get() == REQUEST_KIND && (body.part.get(), body.parts.get()) == (0, 1);
    is_one.then_some((body.ticket.get(), text))
}

/// The messages of an answer; nothing, if it is longer than there can be.
pub(super) fn encode_answer(ticket: u64, text: &str) -> Option<Vec<Vec<u8>>> {
    let parts = text.len().div_ceil(TEXT_MAX).max(1);
    let parts = u32::try_from(parts).ok().filter(|parts| *parts <= PARTS_MAX)?;
    if text.is_empty() {
        return Some(vec![message(ANSWER_KIND, ticket, (0, 1), b"")]);
    }
    let texts = text.as_bytes().chunks(TEXT_MAX);
    Some((0..).zip(texts).map(|(part, text)| message(ANSWER_KIND, ticket, (part, parts), text)).collect())
}

/// An answer, part by part.
#[derive(Debug, Default)]
pub(super) struct Parts {
    text: Vec<u8>,
    next: u32,
}

/// A part of an answer.
pub(super) struct Part<'a> {
    pub(super) ticket: u64,
    part: u32,
    parts: u32,
    text: &'a [u8],
}

/// The part of an answer that a message is, if it is one.
pub(super) fn decode_part(bytes: &[u8]) -> Option<Part<'_>> {
    let (body, text) = TalkBody::ref_from_prefix(bytes).ok()?;
    let (part, parts) = (body.part.get(), body.parts.get());
    let is_one = body.kind.get() == ANSWER_KIND && part < parts && parts <= PARTS_MAX;
    is_one.then_some(Part { ticket: body.ticket.get(), part, parts, text })
}

impl Parts {
    /// A part has come: the answer, if that was the last one; nothing in it, if it cannot be one of this answer.
    pub(super) fn add(&mut self, part: &Part<'_>) -> Option<Result<Vec<u8>, ()>> {
        if part.part != self.next || part.text.len() > TEXT_MAX {
            return Some(Err(()));
        }
        self.next += 1;
        self.text.extend_from_slice(part.text);
        (self.next == part.parts).then(|| Ok(std::mem::take(&mut self.text)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_come_back() {
        let request = encode_request(7, "{}").unwrap();
        assert_eq!(decode_request(&request), Some((7, &b"{}"[..])));
        assert!(decode_part(&request).is_none());
        assert!(encode_request(7, &"a".repeat(TEXT_MAX)).is_some_and(|message| message.len() == 4096));
        assert!(encode_request(7, &"a".repeat(TEXT_MAX + 1)).is_none());
        for len in [0, 1, TEXT_MAX, TEXT_MAX + 1, 100_000] {
            let text = "b".repeat(len);
            let messages = encode_answer(9, &text).unwrap();
            let mut parts = Parts::default();
            for (number, message) in messages.iter().enumerate() {
                assert!(message.len() <= 4096 && decode_request(message).is_none());
                let part = decode_part(message).unwrap();
                assert_eq!(part.ticket, 9);
                let whole = parts.add(&part);
                if number + 1 < messages.len() {
                    assert!(whole.is_none());
                } else {
                    assert_eq!(whole.unwrap().unwrap(), text.as_bytes());
                }
            }
        }
        assert!(encode_answer(9, &"c".repeat(TEXT_MAX * PARTS_MAX as usize + 1)).is_none());
    }

    #[test]
    fn parts_that_do_not_follow_each_other_are_no_answer() {
        let messages = encode_answer(9, &"b".repeat(TEXT_MAX * 3)).unwrap();
        let part = |number: usize| decode_part(&messages[number]).unwrap();
        assert_eq!(Parts::default().add(&part(1)), Some(Err(())));
        let mut parts = Parts::default();
        assert_eq!((parts.add(&part(0)), parts.add(&part(2))), (None, Some(Err(()))));
        for len in 0..TALK_LEN {
            assert!(
                decode_part(&messages[0][..len]).is_none() && decode_request(&messages[0][..len]).is_none()
            );
        }
    }

    /// The table of the document is the layout.
    #[test]
    fn the_document_says_the_same() {
        let text = include_str!("../../../../../docs/wire/probe.md");
        let text = text.split("## Of administration").nth(1).unwrap();
        for (name, at, len) in TalkBody::FIELDS {
            let row = format!("| `{name}` | {at} | {len} |");
            assert!(text.contains(&row), "{row}");
        }
    }
}
