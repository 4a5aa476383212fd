//! Messages as the card holds them: a copy of its own, checked when it was fetched, and taken apart by the function that checked it.

use ob_memory::Slice;
use ob_wire_link::ring::{HEADER_LEN, Header, MessageError, PAYLOAD_HEADER_LEN, PayloadWord};

/// Some whole messages, fetched in one transfer.
#[derive(Debug)]
pub struct Batch {
    bytes: Slice,
}

/// A message in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRef<'a> {
    /// The inline part.
    pub inline: &'a [u8],
    /// The payload.
    pub payload: Option<&'a [u8]>,
}

/// A message taken out of its batch without copying; its bytes stay reserved until it is dropped.
#[derive(Debug)]
pub struct Message {
    /// The inline part.
    pub inline: Slice,
    /// The payload, aligned as the sender asked.
    pub payload: Option<Slice>,
}

/// Where the parts of the message at the start of some bytes lie.
#[derive(Clone, Copy)]
struct Parts {
    span: usize,
    inline: (usize, usize),
    payload: Option<(usize, usize)>,
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

/// Parts of the message at the start of `bytes`; `None` for a skip.
fn parts(bytes: &[u8]) -> Result<(usize, Option<Parts>), MessageError> {
    let available = bytes.len() as u64;
    let header = Header::decode(word_at(bytes, 0).unwrap_or(0), available)?;
    let span = header.span() as usize;
    let parts = match header {
        Header::Skip { .. } => None,
        Header::Inline { inline_len, .. } => {
            let inline = (HEADER_LEN, HEADER_LEN + usize::from(inline_len));
            Some(Parts { span, inline, payload: None })
        }
        Header::Payload { span: wire_span, inline_len } => {
            let word = word_at(bytes, HEADER_LEN).unwrap_or(0);
            let payload = PayloadWord::decode(word, wire_span, inline_len)?;
            let start = payload.offset as usize;
            let inline = (PAYLOAD_HEADER_LEN, PAYLOAD_HEADER_LEN + usize::from(inline_len));
            Some(Parts { span, inline, payload: Some((start, start + payload.len as usize)) })
        }
    };
    Ok((span, parts))
}

/// What a first look over fetched bytes found.
pub(crate) struct Scan {
    /// Bytes of whole messages.
    pub(crate) whole: usize,
    /// Bytes that the message after them needs; 0 if the bytes end with a whole message.
    pub(crate) needed: usize,
}

/// Checks every message of `bytes`. Where `more` bytes are settled beyond them, the last message may be cut off;
/// none may span more than `message_max`, or it could never be fetched whole.
pub(crate) fn scan(bytes: &[u8], more: u64, message_max: u32) -> Result<Scan, (usize, MessageError)> {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        // The header alone says how long the message is; whether that is legal depends on all that is settled.
        let available = (rest.len() as u64 + more).min(u64::from(message_max));
        let header = Header::decode(word_at(rest, 0).unwrap_or(0), available);
        let span = header.map_err(|error| (at, error))?.span() as usize;
        if span > rest.len() {
            return Ok(Scan { whole: at, needed: span });
        }
        parts(&rest[..span]).map_err(|error| (at, error))?;
        at += span;
    }
    Ok(Scan { whole: at, needed: 0 })
}

impl Batch {
    /// `bytes` were scanned and are whole messages.
    pub(crate) fn new(bytes: Slice) -> Self {
        Self { bytes }
    }

    /// The messages, to look at in place.
    pub fn iter(&self) -> impl Iterator<Item = MessageRef<'_>> {
        let mut rest: &[u8] = &self.bytes;
        std::iter::from_fn(move || {
            loop {
                let (span, found) = parts(rest).ok()?;
                let message = &rest[..span];
                rest = &rest[span..];
                if let Some(parts) = found {
                    let inline = &message[parts.inline.0..parts.inline.1];
                    let payload = parts.payload.map(|(start, end)| &message[start..end]);
                    return Some(MessageRef { inline, payload });
                }
            }
        })
    }

    /// Takes the next message out, to be kept for as long as its payload is needed.
    pub fn take_next(&mut self) -> Option<Message> {
        loop {
            let (span, found) = parts(&self.bytes).ok()?;
            let mut message = self.bytes.split_to(span);
            if let Some(parts) = found {
                let payload = parts.payload.map(|(start, end)| {
                    let mut payload = message.split_off(parts.inline.1);
                    payload.advance(start - parts.inline.1);
                    payload.truncate(end - start);
                    payload
                });
                let mut inline = message;
                inline.truncate(parts.inline.1);
                inline.advance(parts.inline.0);
                debug_assert_eq!(parts.span, span);
                return Some(Message { inline, payload });
            }
        }
    }
}
