//! How far what is missing has been made anew, for who asks how the tier is doing.

use std::collections::VecDeque;
use std::time::Duration;

use ob_core::{Instant, Units};
use ob_format::volume::RECORDS_START;

use super::core::TierCore;
use super::status::RebuildStatus;

/// Over how long it is seen how fast it goes, and how often that is noted.
const WINDOW: Duration = Duration::from_secs(30);
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// What was copied to replicas that are made anew.
#[derive(Debug, Default)]
pub(super) struct Rebuilding {
    /// Bytes, since the tier was made; and how many there were when something began to be missing.
    copied: u64,
    before: u64,
    /// How many there were, of late.
    notes: VecDeque<(Instant, u64)>,
}

impl Rebuilding {
    /// Units were copied.
    pub(super) fn note(&mut self, now: Instant, units: u32) {
        self.forget(now);
        if self.notes.back().is_none_or(|(last, _)| now.since(*last) >= NOTE_EVERY) {
            self.notes.push_back((now, self.copied));
        }
        self.copied += Units(units).bytes();
    }

    fn forget(&mut self, now: Instant) {
        while self.notes.front().is_some_and(|(at, _)| now.since(*at) > WINDOW) {
            self.notes.pop_front();
        }
    }

    /// Nothing is missing any more: what is next is another rebuild.
    pub(super) fn end(&mut self) {
        self.before = self.copied;
        self.notes.clear();
    }

    /// Bytes that were copied in a second, of late.
    fn rate(&self, now: Instant) -> u64 {
        let Some((first, copied)) = self.notes.iter().find(|(at, _)| now.since(*at) <= WINDOW) else {
            return 0;
        };
        let millis = now.since(*first).max(NOTE_EVERY).as_millis();
        u64::try_from(u128::from(self.copied - copied) * 1000 / millis).unwrap_or(u64::MAX)
    }
}

impl TierCore {
    /// Bytes that replicas lack which are to be made.
    pub(super) fn rebuild_left(&self, now: Instant) -> u64 {
        let lacks = self.sealed_chunks().map(|((name, _), chunk)| {
            let missing = self.replicas(name).saturating_sub(self.kept_members(now, chunk).len());
            missing as u64 * Units(chunk.length.0 - RECORDS_START.0).bytes()
        });
        let done = self.repair.as_ref().map_or(0, |repair| repair.copied().bytes());
        lacks.sum::<u64>().saturating_sub(done)
    }

    /// How far it is.
    pub(super) fn rebuild_status(&self) -> RebuildStatus {
        let of = &self.rebuilding;
        let (left, rate) = (self.rebuild_left(self.now), of.rate(self.now));
        let done = if left == 0 { 0 } else { of.copied - of.before };
        RebuildStatus { done, left, rate }
    }
}
