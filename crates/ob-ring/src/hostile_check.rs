//! "What the card believes" and "Messages" of `docs/wire/ring.md`, read a second time: byte by byte and on purpose
//! without the types that the card itself uses.

use crate::Message;

/// The document forbids what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forbidden;

/// What a ring's pointers may be, given what they were.
#[derive(Clone, Copy, Debug, Default)]
pub struct PointersOracle {
    progress: u64,
    claim: u64,
    /// Everything below is settled.
    pub settled: u64,
    /// How far the card is.
    pub bound: u64,
}

impl PointersOracle {
    /// Takes progress and claim as the card read them, if they can be.
    pub fn believe(&mut self, [progress, claim]: [u64; 2], limit: u64) -> Result<(), Forbidden> {
        let whole = progress % 8 == 0 && claim % 8 == 0;
        let falling = progress < self.progress || claim < self.claim;
        if !whole || falling || progress > claim || claim > limit {
            return Err(Forbidden);
        }
        (self.progress, self.claim) = (progress, claim);
        if progress == claim {
            self.settled = claim;
        }
        Ok(())
    }
}

/// Some bytes of a request ring, as they arrived in the mirror.
#[derive(Clone, Debug)]
pub struct Fetched {
    start: usize,
    bytes: Vec<u8>,
    /// Settled bytes from the first one on, up to the end of the ring.
    settled: u64,
}

/// What lies in them: whole messages and where their parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Bytes of whole messages.
    pub whole: usize,
    /// Inline part and payload of each, skips left out.
    messages: Vec<(Range, Option<Range>)>,
}

/// Start and length, counted from the first byte fetched.
type Range = (usize, usize);

/// One message as the card handed it out: where its parts lie in the mirror, and their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The inline part.
    pub inline: (usize, Vec<u8>),
    /// The payload.
    pub payload: Option<(usize, Vec<u8>)>,
}

impl Part {
    /// Notes down where a message lies.
    pub fn of_message(message: &Message) -> Self {
        let note = |slice: &ob_memory::Slice| (slice.start(), slice.to_vec());
        Self { inline: note(&message.inline), payload: message.payload.as_ref().map(note) }
    }
}

impl Fetched {
    /// Bytes that arrived at `start` of the mirror.
    pub fn new(start: usize, bytes: Vec<u8>, settled: u64) -> Self {
        Self { start, bytes, settled }
    }

    /// Reads the messages, of which none may span more than `message_max`.
    pub fn parse(&self, message_max: u64) -> Result<Parsed, Forbidden> {
        let (mut at, mut messages) = (0, Vec::new());
        while at < self.bytes.len() {
            let field = |offset: usize, len: usize| {
                let bytes = self.bytes.get(at + offset..at + offset + len);
                bytes.map(|bytes| bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
            };
            let (Some(span), Some(inline_len), Some(kind)) = (field(0, 4), field(4, 2), field(6, 2)) else {
                return Err(Forbidden);
            };
            let left = (self.settled - at as u64).min(message_max);
            let head = if kind == 2 { 16 } else { 8 };
            let parts_end = if kind == 3 { 0 } else { head + inline_len };
            if span == 0 || span % 8 != 0 || span > left || !(1..=3).contains(&kind) || parts_end > span {
                return Err(Forbidden);
            }
            if at as u64 + span > self.bytes.len() as u64 {
                break;
            }
            let inline = (at + head as usize, inline_len as usize);
            let mut payload = None;
            if let (2, Some(offset), Some(len)) = (kind, field(8, 4), field(12, 4)) {
                if offset < parts_end || offset + len > span {
                    return Err(Forbidden);
                }
                payload = Some((at + offset as usize, len as usize));
            }
            if kind != 3 {
                messages.push((inline, payload));
            }
            at += span as usize;
        }
        Ok(Parsed { whole: at, messages })
    }

    /// Whether what the card handed out is exactly what was fetched.
    pub fn check(&self, parsed: &Parsed, parts: &[Part]) -> Result<(), String> {
        if parts.len() != parsed.messages.len() {
            return Err(format!("{} messages handed out of {}", parts.len(), parsed.messages.len()));
        }
        for (part, (inline, payload)) in parts.iter().zip(&parsed.messages) {
            self.check_range("inline part", &part.inline, *inline)?;
            match (&part.payload, payload) {
                (None, None) => {}
                (Some(part), Some(payload)) => self.check_range("payload", part, *payload)?,
                _ => return Err("a payload came from nowhere or went missing".to_owned()),
            }
        }
        Ok(())
    }

    fn check_range(&self, what: &str, part: &(usize, Vec<u8>), range: Range) -> Result<(), String> {
        let (start, bytes) = part;
        let inside = start.checked_sub(self.start).and_then(|from| self.bytes.get(from..from + bytes.len()));
        if inside.is_none() {
            return Err(format!(
                "{what} at {start} with {} bytes lies outside what was fetched",
                bytes.len()
            ));
        }
        if (start - self.start, bytes.len()) != range || inside != Some(bytes) {
            return Err(format!("{what} at {start} is not the one at {range:?}"));
        }
        Ok(())
    }
}
