//! What goes to the card: entries, put together to as few messages as their order allows, and kept while the ring is full.

use std::collections::VecDeque;

use ob_ring::PushError;

use super::ends::HostEnds;
use crate::wire::{Definition, INLINE_MAX, MessageBuilder, kind};

/// Buffers of messages that are kept for the next ones that must wait.
const SPARE_MAX: usize = 16;

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsaid {
    /// What waits for the ring is as much as may.
    Full,
    /// No message has room for it.
    TooLong,
    /// The ring takes nothing any more.
    Over(PushError),
}

impl From<PushError> for Unsaid {
    fn from(error: PushError) -> Self {
        Self::Over(error)
    }
}

/// Entries on their way.
pub(super) struct Outbox {
    /// The message that is being put together, of this kind; it has no entries if there is none.
    open: MessageBuilder,
    kind: u8,
    /// Messages that the ring had no room for, in their order.
    waiting: VecDeque<Vec<u8>>,
    waiting_len: usize,
    waiting_max: usize,
    spare: Vec<Vec<u8>>,
    /// Receives granted since the beginning, and how many of them the card was told.
    credit: u32,
    told: u32,
}

impl Outbox {
    /// Nothing. Of messages for which the ring has no room so many bytes wait at most.
    pub(super) fn new(waiting_max: usize) -> Self {
        Self {
            open: MessageBuilder::default(),
            kind: 0,
            waiting: VecDeque::new(),
            waiting_len: 0,
            // One message may always wait: the one that is being put together.
            waiting_max: waiting_max.max(INLINE_MAX),
            spare: Vec::new(),
            credit: 0,
            told: 0,
        }
    }

    /// Receives granted since the beginning, modulo 2³².
    pub(super) const fn credit(&self) -> u32 {
        self.credit
    }

    /// As if so many had been granted and told.
    #[cfg(test)]
    pub(super) const fn count_from(&mut self, credit: u32) {
        (self.credit, self.told) = (credit, credit);
    }

    /// Receives that the card was told of, modulo 2³².
    pub(super) const fn told(&self) -> u32 {
        self.told
    }

    /// Grants more. The card hears of it with the next message, or by `flush`.
    pub(super) const fn grant(&mut self, count: u32) {
        self.credit = self.credit.wrapping_add(count);
    }

    /// Whether something waits for room in the ring.
    pub(super) fn wants_room(&self) -> bool {
        !self.waiting.is_empty() || self.credit != self.told
    }

    /// Bytes of messages that wait.
    pub(super) const fn waiting_len(&self) -> usize {
        self.waiting_len
    }

    /// Adds an entry of this kind by `push`, to the message that is open or to the next one.
    pub(super) fn add(
        &mut self,
        ends: &mut impl HostEnds,
        kind: u8,
        mut push: impl FnMut(&mut MessageBuilder) -> bool,
    ) -> Result<(), Unsaid> {
        let is_open = self.kind == kind && self.open.count() > 0;
        if is_open && push(&mut self.open) {
            return Ok(());
        }
        self.make_room(ends)?;
        self.begin(kind);
        if push(&mut self.open) { Ok(()) } else { Err(Unsaid::TooLong) }
    }

    /// Adds the definition of a plan, which is a message of its own.
    pub(super) fn define(&mut self, ends: &mut impl HostEnds, definition: &Definition) -> Result<(), Unsaid> {
        self.make_room(ends)?;
        self.open.define(definition);
        self.kind = kind::DEFINE;
        Ok(())
    }

    /// Puts into the ring what it has room for, and ends the message that is open.
    pub(super) fn flush(&mut self, ends: &mut impl HostEnds) -> Result<(), PushError> {
        self.pump(ends)?;
        self.finish(ends)?;
        if self.credit != self.told && self.waiting.is_empty() {
            // A message without entries tells the credit.
            self.begin(kind::PLANS);
            match ends.push(self.open.finish(0, self.credit)) {
                Ok(()) => self.told = self.credit,
                Err(PushError::Retry) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn begin(&mut self, kind: u8) {
        self.kind = kind;
        self.open.begin(kind);
    }

    /// Ends the open message, and sees that the next one could wait.
    fn make_room(&mut self, ends: &mut impl HostEnds) -> Result<(), Unsaid> {
        self.pump(ends)?;
        self.finish(ends)?;
        if self.waiting_len + INLINE_MAX > self.waiting_max { Err(Unsaid::Full) } else { Ok(()) }
    }

    fn pump(&mut self, ends: &mut impl HostEnds) -> Result<(), PushError> {
        while let Some(message) = self.waiting.front() {
            match ends.push(message) {
                Ok(()) => {}
                Err(PushError::Retry) => break,
                Err(error) => return Err(error),
            }
            let Some(message) = self.waiting.pop_front() else { break };
            self.waiting_len -= message.len();
            if self.spare.len() < SPARE_MAX {
                self.spare.push(message);
            }
        }
        Ok(())
    }

    fn finish(&mut self, ends: &mut impl HostEnds) -> Result<(), PushError> {
        if self.open.count() == 0 {
            return Ok(());
        }
        let message = self.open.finish(0, self.credit);
        let pushed = if self.waiting.is_empty() { ends.push(message) } else { Err(PushError::Retry) };
        match pushed {
            Ok(()) => {}
            Err(PushError::Retry) => {
                let mut kept = self.spare.pop().unwrap_or_default();
                kept.clear();
                kept.extend_from_slice(message);
                self.waiting_len += kept.len();
                self.waiting.push_back(kept);
            }
            Err(error) => return Err(error),
        }
        self.told = self.credit;
        self.begin(0);
        Ok(())
    }
}
