//! One read or write: what it sends next, and what an answer means for it.
//!
//! ```text
//!   start ──▶ one part ─────────────── answer ──▶ done
//!        └──▶ parts, a window at a time ── answers ──▶ last answer ──▶ done
//! ```
//!
//! A transfer that is longer than one request may be goes in parts. It is done once, when its last part is; it has moved
//! what lies before the first short part, and it fails with the error of the first part that failed.

use ob_core::NodeId;
use ob_ring::{Outgoing, PushError};
use ob_wire_link::files::{Operation, RequestHeader, ResponseHeader, flag};

use crate::buffer::Buffer;
use crate::error::{Error, Fault, Result};
use crate::lane::{Limits, lane_of};
use crate::request::{RequestId, Sending, Source, Step, Value};

/// Parts of one transfer that may be out at once.
pub(crate) const WINDOW: usize = 16;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the card into the buffer.
    Read,
    /// From the card to a callback that looks at them in the ring.
    ReadInPlace,
    /// From the buffer to the card.
    Write {
        /// It is to be durable when it is answered.
        durable: bool,
    },
}

/// A read or write.
pub(crate) struct Transfer {
    direction: Direction,
    node: NodeId,
    offset: u64,
    len: usize,
    /// Bytes that were put into requests.
    sent: usize,
    /// Where the first short part ends.
    end: usize,
    /// Which places of the window have a part out.
    flying: u16,
    window: Option<Box<Window>>,
}

/// What a transfer in parts has to remember.
struct Window {
    parts: [Part; WINDOW],
    /// The error of the first part that failed, and where that part begins.
    error: Option<(usize, Error)>,
}

#[derive(Clone, Copy, Default)]
struct Part {
    start: usize,
    len: usize,
}

impl Transfer {
    /// A transfer of `len` bytes at `offset`, or what is wrong with these numbers.
    pub(crate) fn new(direction: Direction, node: NodeId, offset: u64, len: usize) -> Result<Self> {
        let end = offset.checked_add(len as u64).ok_or(Error::Invalid)?;
        if i64::try_from(end).is_err() {
            return Err(Error::TooLarge);
        }
        Ok(Self { direction, node, offset, len, sent: 0, end: len, flying: 0, window: None })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn lane(&self) -> usize {
        lane_of(self.len)
    }

    pub(crate) fn is_out(&self) -> bool {
        self.flying != 0
    }

    /// Whether parts are still to be sent; after a failed or short part none are.
    fn is_unsent(&self) -> bool {
        let failed = self.window.as_ref().is_some_and(|window| window.error.is_some());
        self.sent < self.len && self.end == self.len && !failed
    }

    pub(crate) fn send(
        &mut self,
        id: RequestId,
        limits: Limits,
        buffer: &Buffer,
        mut push: impl FnMut(Outgoing<'_>) -> std::result::Result<(), PushError>,
    ) -> Sending {
        while self.is_unsent() {
            let place = self.flying.trailing_ones() as usize;
            if place >= WINDOW {
                return Sending::Done;
            }
            let part = self.next_part(limits);
            if part.len < self.len && self.direction == Direction::ReadInPlace {
                return Sending::Failed(Error::TooLarge);
            }
            match self.push_part(part, id.at(place), limits, buffer, &mut push) {
                Ok(()) => {}
                Err(PushError::Retry) => return Sending::Full,
                Err(PushError::Closed | PushError::Corrupt { .. }) => return Sending::Closed,
                Err(PushError::TooLarge { .. }) => return Sending::Failed(Error::TooLarge),
            }
            if part.len < self.len {
                let window = self.window.get_or_insert_with(|| {
                    Box::new(Window { parts: [Part::default(); WINDOW], error: None })
                });
                window.parts[place] = part;
            }
            self.flying |= 1 << place;
            self.sent += part.len;
        }
        Sending::Done
    }

    /// The part that begins where the last one ended. All but the last end at a block of the file, so that the next one
    /// begins there.
    fn next_part(&self, limits: Limits) -> Part {
        let most = match self.direction {
            Direction::Read | Direction::ReadInPlace => limits.read_max,
            Direction::Write { .. } => limits.write_max,
        };
        let (start, left) = (self.sent, self.len - self.sent);
        if left <= most {
            return Part { start, len: left };
        }
        let beyond_block = ((self.offset + (start + most) as u64) % limits.block_len as u64) as usize;
        Part { start, len: if beyond_block < most { most - beyond_block } else { most } }
    }

    fn push_part(
        &self,
        part: Part,
        id: u64,
        limits: Limits,
        buffer: &Buffer,
        push: &mut impl FnMut(Outgoing<'_>) -> std::result::Result<(), PushError>,
    ) -> std::result::Result<(), PushError> {
        let offset = self.offset + part.start as u64;
        let mut header = RequestHeader {
            id,
            operation: Operation::Read.code(),
            length: part.len as u32,
            node: self.node,
            offset,
            ..RequestHeader::default()
        };
        let Direction::Write { durable } = self.direction else {
            return push(Outgoing { inline: &header.encode(), payload: None });
        };
        header.operation = Operation::Write.code();
        header.flags = if durable { flag::DURABLE } else { 0 };
        // Only what can be written to the device from where it lies is worth the padding.
        let block_len = limits.block_len;
        let aligned = part.len >= block_len && offset.is_multiple_of(block_len as u64);
        let align = if aligned { limits.payload_align() } else { 8 };
        buffer.gather(part.start, part.len, |pieces| {
            push(Outgoing { inline: &header.encode(), payload: Some((pieces, align)) })
        })
    }

    /// Takes the answer to the part at `place`.
    pub(crate) fn answer(
        &mut self,
        place: usize,
        response: &ResponseHeader,
        source: &impl Source,
        buffer: &mut Buffer,
    ) -> Step {
        if place >= WINDOW || self.flying & 1 << place == 0 {
            return Step::Stray;
        }
        self.flying &= !(1 << place);
        let whole = Part { start: 0, len: self.len };
        let part = self.window.as_ref().map_or(whole, |window| window.parts[place]);
        let moved = self.take_part(part, response, source, buffer);
        let Some(window) = &mut self.window else {
            return Step::Done(moved.map(Value::Count));
        };
        match moved {
            Ok(count) if count < part.len => self.end = self.end.min(part.start + count),
            Ok(_) => {}
            Err(error) => {
                if window.error.as_ref().is_none_or(|(start, _)| part.start < *start) {
                    window.error = Some((part.start, error));
                }
            }
        }
        if self.is_unsent() {
            return Step::Send;
        }
        if self.flying != 0 {
            return Step::Waiting;
        }
        let error = self.window.take().and_then(|window| window.error);
        match error {
            Some((start, error)) if start < self.end => Step::Done(Err(error)),
            _ => Step::Done(Ok(Value::Count(self.end))),
        }
    }

    /// Checks an answer against what was asked for; how many bytes it moved.
    fn take_part(
        &self,
        part: Part,
        response: &ResponseHeader,
        source: &impl Source,
        buffer: &mut Buffer,
    ) -> Result<usize> {
        response.status?;
        let count = response.length as usize;
        if count > part.len {
            return Err(Error::Protocol(Fault::Length));
        }
        if matches!(self.direction, Direction::Write { .. }) {
            return Ok(count);
        }
        if source.len() != count {
            return Err(Error::Protocol(Fault::Length));
        }
        if self.direction == Direction::ReadInPlace {
            return Ok(count);
        }
        let filled = buffer.scatter(part.start, count, |at, into| {
            source.copy(at, into);
        });
        if filled < count { Err(Error::Invalid) } else { Ok(count) }
    }
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
