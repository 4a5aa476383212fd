//! Telling the card again what it may serve, after its table was lost: a walk through the log, from its begin to its end.
//!
//! What is attested is current *as of* the last request that was applied, whatever stamp its record has, so it passes the
//! floors that the card's restart has raised (`docs/linearizable-offload.md`, "Refilling"). A key that a request waits to change
//! is left out, for that request has a lesser stamp than the last one; and while requests are held back as a whole, nothing
//! is attested.

use std::collections::VecDeque;

use ob_core::Instant;
use ob_format::kv::Record;

use super::Store;
use super::answers::{ATTESTED_KEY_LEN_MAX, Attestation};
use super::expiry;
use super::ops::LogFailure;
use super::sweep::{self, Piece};
use super::tasks::{ReadUse, SweepUse};
use crate::plant::{Bug, is_planted};

/// Attestations that may wait before the walk does.
const WAITING_MAX: usize = 4096;

/// How the walk stands.
#[derive(Debug, Default)]
pub(crate) struct Refill {
    step: Step,
    /// Where the log ended when the walk began. What is written later is shown to the card that is there by then, and a walk that
    /// had to catch up with it would have no end.
    until: u64,
    /// Whether the walk begins anew when the read is done that is on its way.
    begins_anew: bool,
    waiting: VecDeque<(u64, Attestation)>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Step {
    #[default]
    Idle,
    Next(Piece),
    /// A read is on its way. What was settled when it began ends there: whatever has been written since may not be in it.
    Reading {
        end: u64,
    },
}

impl Store {
    /// Begins to attest all keys whose records the card could serve, from the first on. `begins` is the stamp at which this
    /// life of the stream begins: whatever has a lesser one has been applied, is a request that waits here, or is lost.
    pub fn begin_refill(&mut self, begins: u64) {
        self.stamp_max = self.stamp_max.max(begins.saturating_sub(1));
        self.refill.waiting.clear();
        if matches!(self.refill.step, Step::Reading { .. }) {
            self.refill.begins_anew = true;
        } else {
            self.walk_from_begin();
        }
    }

    fn walk_from_begin(&mut self) {
        self.refill.until = self.log.appended();
        self.refill.step = Step::Next(Piece { address: self.log.begin(), len: self.config.group_len });
    }

    /// The next attestation of a walk through the log, with the stamp as of which it holds.
    pub fn next_attestation(&mut self) -> Option<(u64, Attestation)> {
        self.refill.waiting.pop_front()
    }

    /// Whether a walk through the log has not come to its end.
    #[must_use]
    pub fn is_refilling(&self) -> bool {
        !matches!(self.refill.step, Step::Idle) || !self.refill.waiting.is_empty()
    }

    /// Takes the next steps, as many as there are to take: nobody comes back for one that could have been taken at once.
    pub(super) fn step_refill(&mut self) {
        while let Step::Next(piece) = self.refill.step
            && self.may_refill()
        {
            let address = piece.address.max(self.log.begin_to_stay());
            let is_over = address >= self.refill.until || self.log.failure().is_some();
            self.refill.step = match self.log.end_of_part(address).map(|end| end.min(self.log.settled())) {
                Some(end) if address < end && !is_over => {
                    let token = self.log.read(address, piece.len);
                    self.reads.insert(token, ReadUse::Sweep { address, sweep: SweepUse::Refill });
                    Step::Reading { end }
                }
                Some(_) if address < self.log.settled() && !is_over => self.next_part(address),
                // The rest is on its way to the device.
                Some(_) if !is_over => return,
                _ => Step::Idle,
            };
        }
    }

    fn may_refill(&self) -> bool {
        self.refill.waiting.len() < WAITING_MAX && self.held.is_empty()
    }

    /// When there is a step to take: at once, if attestations have left that it waited for.
    pub(super) fn refill_due(&self) -> Option<Instant> {
        let Step::Next(piece) = self.refill.step else { return None };
        // As the step sees it, or one would be due that cannot be taken.
        let address = piece.address.max(self.log.begin_to_stay());
        let is_there = address < self.log.settled() || address >= self.refill.until;
        (is_there && self.may_refill()).then_some(self.now)
    }

    fn next_part(&self, address: u64) -> Step {
        let address = (address / self.config.part_len + 1) * self.config.part_len;
        Step::Next(Piece { address, len: self.config.group_len })
    }

    /// A piece of the log was read.
    pub(super) fn refill(&mut self, address: u64, result: Result<Vec<u8>, LogFailure>) {
        let Step::Reading { end } = self.refill.step else { return };
        if std::mem::take(&mut self.refill.begins_anew) {
            return self.walk_from_begin();
        }
        let len = self.config.group_len;
        let visited = result.ok().and_then(|bytes| {
            let visit = |address, record: &Record<'_>| self.attest_if_current(address, record);
            sweep::visit(&bytes, address, end, len, visit).ok()
        });
        // What cannot be read here is met by the requests that ask for it; the card does without the rest of the part.
        self.refill.step = visited.map_or_else(|| self.next_part(address), Step::Next);
    }

    fn attest_if_current(&mut self, address: u64, record: &Record<'_>) {
        let hash = self.hash(record.key);
        let is_current = self.find(hash).is_some_and(|place| place.address == address);
        let is_over = expiry::is_over(record.expires, self.now_ms);
        let is_locked = self.locks.contains_key(&hash) && !is_planted(Bug::AttestsLocked);
        let is_held_back = is_locked || !self.held.is_empty();
        let Some(value) = record.value else { return };
        if is_current && !is_over && !is_held_back && record.key.len() <= ATTESTED_KEY_LEN_MAX {
            let attestation = Attestation {
                key: record.key.to_vec(),
                part: address / self.config.part_len,
                offset: address % self.config.part_len,
                value_len: value.len(),
                stamp: record.stamp,
                expires: record.expires,
            };
            self.refill.waiting.push_back((self.stamp_max, attestation));
        }
    }
}
