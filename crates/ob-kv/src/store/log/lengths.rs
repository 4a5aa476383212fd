//! Files that are made longer before anything is written to where they end.
//!
//! A write that makes its file longer is three operations of the card's device, one after the other: its bytes, the frame that
//! says the new length, and the flush of that frame if the write is to be durable. One that does not is the first of these alone. So
//! files grow by steps, each of which pays for many groups, and the next step is asked for before the last one is used up.
//!
//! Whoever makes a file longer names its new length, and a file that was longer already would be cut. Therefore the new length is
//! beyond everything that was sealed, and as long as the answer is not there, nothing is written beyond the new length. What lies
//! before it may be written at once: it is kept whichever of the two comes first.

use ob_core::Token;

use super::{Log, WriteState};
use crate::plant::{Bug, is_planted};
use crate::store::ops::{LogFailure, LogOp};

/// A file that is being made longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengthening {
    token: Token,
    part: u64,
    len: u64,
}

impl Log {
    /// Asks for the file to be made longer that the first write goes to, or else for the last one, if its end is near.
    pub(super) fn issue_lengthen(&mut self) {
        let (step, part_len) = (self.config.part_step, self.config.part_len);
        if step == 0 || self.lengthening.is_some() {
            return;
        }
        let mut waiting = self.writes.iter().filter(|write| write.state == WriteState::Waiting);
        let first = waiting.next().map(|write| write.address / part_len);
        let last = self.parts.back().map(|part| part.number);
        for number in first.into_iter().chain(last) {
            let Some(part) = self.part_of(number * part_len).filter(|part| part.is_made) else { continue };
            let wanted = part.used.saturating_add(step / 2);
            if wanted <= part.len || part.len >= part_len {
                continue;
            }
            let len = wanted.checked_next_multiple_of(step).unwrap_or(part_len).min(part_len);
            let token = self.token();
            self.lengthening = Some(Lengthening { token, part: number, len });
            self.ops.push_back(LogOp::Lengthen { token, part: number, len });
            return;
        }
    }

    /// Takes the completion of that; whether it was one.
    pub(super) fn lengthened(&mut self, token: Token, result: Result<(), LogFailure>) -> bool {
        let Some(done) = self.lengthening.take_if(|lengthening| lengthening.token == token) else {
            return false;
        };
        let len = match result {
            Ok(()) => done.len,
            Err(LogFailure::Gone) => {
                self.failure.get_or_insert(LogFailure::Gone);
                return true;
            }
            // Then writes make it longer, as they can, and say what is wrong if they cannot.
            Err(LogFailure::Space | LogFailure::Device) => u64::MAX,
        };
        // It may have been removed meanwhile.
        if let Some(part) = self.part_of(done.part * self.config.part_len) {
            part.len = part.len.max(len);
        }
        true
    }

    /// Whether the part of an address has a file, and that may be written to up to this offset.
    pub(super) fn has_file_for(&mut self, address: u64, end: u64) -> bool {
        let number = address / self.config.part_len;
        let would_cut = |lengthening: &Lengthening| lengthening.part == number && lengthening.len < end;
        let waits = self.lengthening.as_ref().is_some_and(would_cut) && !is_planted(Bug::LengthUnawaited);
        !waits && self.part_of(address).is_some_and(|part| part.is_made)
    }
}
