//! A connection: what was received of a message, and what is to be sent.
//!
//! ```text
//!   bytes ─▶ inbox ─▶ header ─▶ payload, received where it stays ─▶ Step::Message
//!   bytes ◀── pieces: header, and a payload that lies where the device has put it
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;

use ob_core::{ConnectionId, Instant, PoolId};
use ob_memory::Slice;

use super::memory::Class;
use super::peers::ReplyTo;
use crate::wire::{HEADER_LEN, HELLO_LEN, REQUESTS_MAX, Refusal, RequestMessage, WINDOW_LEN};

/// Bytes that are received besides payloads: some headers at once.
const INBOX_LEN: usize = 16 * HEADER_LEN;
/// Bytes of answers that are kept for a connection, or may come to be, before nothing is received of it any more.
const ANSWERS_LEN: u64 = 2 << 20;

/// By what the server knows a connection. It refers to nothing once the connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionKey {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// What follows a header.
enum Body {
    /// Nothing; a header comes next.
    Header,
    Hello {
        message: RequestMessage,
        bytes: [u8; HELLO_LEN],
        filled: usize,
    },
    Records {
        message: RequestMessage,
        into: Slice,
        filled: usize,
    },
    /// Bytes of a message that is refused.
    Skip {
        left: usize,
        kind: u8,
        tag: u64,
        refusal: Refusal,
    },
}

/// What the bytes that are there make necessary.
pub(super) enum Step {
    /// More of them.
    Wait,
    /// A header is there whose payload needs a buffer of so many bytes.
    Buffer(RequestMessage),
    Hello(RequestMessage, [u8; HELLO_LEN]),
    Message(RequestMessage, Option<Slice>),
    Refuse {
        kind: u8,
        tag: u64,
        refusal: Refusal,
    },
    /// The connection cannot go on.
    CutOff,
}

/// A reply's payload.
pub(super) enum Payload {
    None,
    /// Where the device has put it.
    Slice(Slice),
    Bytes(Vec<u8>),
}

struct Piece {
    header: [u8; HEADER_LEN],
    payload: Payload,
    /// Which buffer it has for as long as it is not sent.
    class: Option<Class>,
}

impl Piece {
    fn len(&self) -> usize {
        HEADER_LEN + self.payload.bytes().len()
    }
}

impl Payload {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Slice(slice) => slice,
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// A hello that is answered when the connection before this one is over.
pub(super) struct Greeting {
    pub(super) to: ReplyTo,
    pub(super) after: Option<ConnectionKey>,
}

/// A connection.
pub(super) struct Connection {
    pub(super) net: ConnectionId,
    pub(super) since: Instant,
    /// Of which pool they are.
    pub(super) pool: PoolId,
    pub(super) greeting: Option<Greeting>,
    pub(super) is_greeted: bool,
    /// It waits for memory.
    pub(super) is_starving: bool,
    /// Nothing is received before it takes what it is sent.
    pub(super) is_held_up: bool,
    /// Nothing is received or sent any more; what had begun is being finished.
    pub(super) is_ended: bool,
    pub(super) is_dirty: bool,
    pub(super) within_since: Option<Instant>,
    pub(super) unsent_since: Option<Instant>,
    /// Requests that are not answered, and bytes of their payloads.
    unanswered: u32,
    window: u32,
    /// Bytes that the answers to them may have, but for what is read.
    owed: u64,
    /// Bytes of answers that are not sent.
    unsent: u64,
    /// Buffers of each class that it has for what it reads; of the longer ones, for what it sends.
    reads: [u32; 2],
    pub(super) long_in: u32,
    inbox: Box<[u8; INBOX_LEN]>,
    inbox_at: usize,
    inbox_len: usize,
    body: Body,
    output: VecDeque<Piece>,
    sent_of_front: usize,
}

impl Connection {
    pub(super) fn new(now: Instant, net: ConnectionId) -> Self {
        Self {
            net,
            since: now,
            pool: PoolId::default(),
            greeting: None,
            is_greeted: false,
            is_starving: false,
            is_held_up: false,
            is_ended: false,
            is_dirty: false,
            within_since: None,
            unsent_since: None,
            unanswered: 0,
            window: 0,
            owed: 0,
            unsent: 0,
            reads: [0; 2],
            long_in: 0,
            inbox: Box::new([0; INBOX_LEN]),
            inbox_at: 0,
            inbox_len: 0,
            body: Body::Header,
            output: VecDeque::new(),
            sent_of_front: 0,
        }
    }

    /// Where the next bytes go: the rest of a payload, and what follows it.
    pub(super) fn receive_into(&mut self) -> Option<[&mut [u8]; 2]> {
        if self.is_ended || self.is_starving || self.is_held_up || self.greeting.is_some() {
            return None;
        }
        self.inbox.copy_within(self.inbox_at..self.inbox_len, 0);
        self.inbox_len -= self.inbox_at;
        self.inbox_at = 0;
        let inbox = self.inbox.get_mut(self.inbox_len..)?;
        match &mut self.body {
            Body::Records { into, filled, .. } => Some([into.get_mut(*filled..)?, inbox]),
            _ => Some([inbox, &mut []]),
        }
    }

    /// So many bytes are there.
    pub(super) fn received(&mut self, count: usize) {
        let mut rest = count;
        if let Body::Records { into, filled, .. } = &mut self.body {
            let direct = rest.min(into.len() - *filled);
            *filled += direct;
            rest -= direct;
        }
        self.inbox_len = (self.inbox_len + rest).min(INBOX_LEN);
    }

    /// Whether a part of a message is there.
    pub(super) fn is_within(&self) -> bool {
        !matches!(self.body, Body::Header) || self.inbox_at < self.inbox_len
    }

    fn inbox(&self) -> &[u8] {
        self.inbox.get(self.inbox_at..self.inbox_len).unwrap_or_default()
    }

    /// What comes next.
    pub(super) fn step(&mut self) -> Step {
        let inbox = self.inbox.get(self.inbox_at..self.inbox_len).unwrap_or_default();
        match std::mem::replace(&mut self.body, Body::Header) {
            Body::Header => self.header_step(),
            Body::Hello { message, mut bytes, filled } => {
                let room = bytes.get_mut(filled..).unwrap_or_default();
                let count = copy(inbox, room);
                self.inbox_at += count;
                if filled + count < HELLO_LEN {
                    self.body = Body::Hello { message, bytes, filled: filled + count };
                    return Step::Wait;
                }
                Step::Hello(message, bytes)
            }
            Body::Records { message, mut into, filled } => {
                let room = into.get_mut(filled..).unwrap_or_default();
                let count = copy(inbox, room);
                self.inbox_at += count;
                if filled + count < into.len() {
                    self.body = Body::Records { message, into, filled: filled + count };
                    return Step::Wait;
                }
                Step::Message(message, Some(into))
            }
            Body::Skip { left, kind, tag, refusal } => {
                let count = left.min(inbox.len());
                self.inbox_at += count;
                if count < left {
                    self.body = Body::Skip { left: left - count, kind, tag, refusal };
                    return Step::Wait;
                }
                Step::Refuse { kind, tag, refusal }
            }
        }
    }

    fn header_step(&mut self) -> Step {
        let Some(bytes) = self.inbox().get(..HEADER_LEN) else { return Step::Wait };
        let message = match RequestMessage::decode(bytes) {
            Ok(message) => message,
            Err(error) => return self.wrong(&error),
        };
        if message.payload_len == 0 {
            self.inbox_at += HEADER_LEN;
            return Step::Message(message, None);
        }
        if matches!(message.request, crate::wire::Request::Hello { .. }) {
            self.inbox_at += HEADER_LEN;
            self.body = Body::Hello { message, bytes: [0; HELLO_LEN], filled: 0 };
            return self.step();
        }
        // The header stays until there is a place for what follows it.
        Step::Buffer(message)
    }

    fn wrong(&mut self, error: &crate::wire::WireError) -> Step {
        use crate::wire::WireError;
        let (WireError::Kind { payload_len, .. } | WireError::Field { payload_len, .. }) = *error else {
            tracing::debug!(%error, "a connection is cut off");
            return Step::CutOff;
        };
        match error.refusal() {
            Some((kind, tag, refusal)) if self.is_greeted => {
                tracing::warn!(%error, "a request is refused");
                self.inbox_at += HEADER_LEN;
                self.body = Body::Skip { left: payload_len as usize, kind, tag, refusal };
                self.step()
            }
            _ => Step::CutOff,
        }
    }

    /// The payload of the header that is there goes here.
    pub(super) fn begin_records(&mut self, message: RequestMessage, into: Slice) {
        self.inbox_at += HEADER_LEN;
        self.body = Body::Records { message, into, filled: 0 };
    }

    /// Whether one more request, with so many bytes, is within what the other side may send. A request counts until its answer is
    /// sent.
    pub(super) fn may_begin(&self, payload_len: u32) -> bool {
        let requests = self.unanswered as usize + self.output.len();
        requests < REQUESTS_MAX as usize && self.window + payload_len <= WINDOW_LEN
    }

    /// Counts a request that is to be answered.
    pub(super) fn begin(&mut self, to: &ReplyTo) {
        self.unanswered += 1;
        self.window += to.payload_len;
        self.owed += u64::from(to.share.answer);
        self.reads_of(to.share.read, 1);
    }

    /// A request is over; whether it was the last one. The buffer of its answer counts on, where it is on its way to the other side.
    pub(super) fn finish(&mut self, to: &ReplyTo, is_buffer_kept: bool) -> bool {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.window = self.window.saturating_sub(to.payload_len);
        self.owed = self.owed.saturating_sub(to.share.answer.into());
        self.long_in = self.long_in.saturating_sub(to.share.is_long.into());
        if !is_buffer_kept {
            self.reads_of(to.share.read, -1);
        }
        self.unanswered == 0
    }

    /// Nobody waits for the answer to its hello any more; whether nothing else is unanswered.
    pub(super) fn forget_greeting(&mut self) -> bool {
        self.unanswered = self.unanswered.saturating_sub(self.greeting.take().is_some().into());
        self.unanswered == 0
    }

    fn reads_of(&mut self, class: Option<Class>, more: i32) {
        if let Some(count) = class.and_then(|class| self.reads.get_mut(class as usize)) {
            *count = count.saturating_add_signed(more);
        }
    }

    /// Whether it has to take answers before it is listened to again, as it has so much of what others need as well. Between two
    /// messages: what has begun is received.
    pub(super) fn has_its_share(&self, shares: [u32; 2]) -> bool {
        let is_between = matches!(self.body, Body::Header);
        let is_much = self.unsent + self.owed >= ANSWERS_LEN;
        is_between && (is_much || self.reads.iter().zip(shares).any(|(count, share)| *count >= share))
    }

    /// Puts a reply behind the others.
    pub(super) fn push(
        &mut self,
        now: Instant,
        header: [u8; HEADER_LEN],
        payload: Payload,
        class: Option<Class>,
    ) {
        self.unsent_since.get_or_insert(now);
        let piece = Piece { header, payload, class };
        self.unsent += piece.len() as u64;
        self.output.push_back(piece);
    }

    /// What is to be sent.
    pub(super) fn transmit<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.sent_of_front;
        let parts = self.output.iter().flat_map(|piece| [&piece.header[..], piece.payload.bytes()]);
        let mut count = 0;
        for part in parts {
            let rest = part.get(skip.min(part.len())..).unwrap_or_default();
            skip = skip.saturating_sub(part.len());
            if rest.is_empty() {
                continue;
            }
            let Some(place) = into.get_mut(count) else { break };
            *place = IoSlice::new(rest);
            count += 1;
        }
        count
    }

    /// So many bytes were sent; whether a buffer came back.
    pub(super) fn sent(&mut self, now: Instant, count: usize) -> bool {
        let mut is_freed = false;
        self.sent_of_front += count;
        while let Some(front) = self.output.front() {
            let (len, class) = (front.len(), front.class);
            if self.sent_of_front < len {
                break;
            }
            self.sent_of_front -= len;
            self.unsent = self.unsent.saturating_sub(len as u64);
            is_freed |= class.is_some();
            self.reads_of(class, -1);
            self.output.pop_front();
            // Each answer has its own time: some bytes now and then are not enough.
            self.unsent_since = Some(now);
        }
        if self.output.is_empty() {
            self.unsent_since = None;
        }
        is_freed
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Gives everything up that needs the network.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        (self.is_starving, self.is_held_up) = (false, false);
        self.body = Body::Header;
        (self.inbox_at, self.inbox_len, self.sent_of_front) = (0, 0, 0);
        (self.output, self.unsent) = (VecDeque::new(), 0);
        (self.within_since, self.unsent_since) = (None, None);
    }
}

/// Copies as much as there is, and room for it.
fn copy(from: &[u8], into: &mut [u8]) -> usize {
    let count = from.len().min(into.len());
    if let (Some(into), Some(from)) = (into.get_mut(..count), from.get(..count)) {
        into.copy_from_slice(from);
    }
    count
}
