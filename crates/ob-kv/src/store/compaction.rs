//! Compaction: the oldest part's current records are copied to the log's end, then the part is removed.
//!
//! ```text
//!   Idle ─ enough is outdated ─▶ Reading a piece of the oldest part ─▶ copies appended ─┐
//!    ▲                               ▲──────────────── more ─────────────────────────────┤
//!    │                                                                                   ▼
//!    └──────────── Removing ◀── what was there when the last was copied is durable ── Waiting
//! ```
//!
//! A piece that the device could not read is asked for again after a while. One that was read and is damaged is the end of compaction.
//!
//! A record is current if the index names its address. The copy is the newest record of its key at the instant at which it is
//! appended, and so it stays true that of two records the later one counts. Records that have expired, and removals, are not
//! copied: there is nothing older that they could hide. The part may go when what *replaces* its records is durable; not
//! only the copies, but whatever has outdated the others.

use ob_core::Instant;
use ob_format::kv::{BLOCK_LEN, Record};

use super::expiry::is_over;
use super::log::Log;
use super::ops::LogFailure;
use super::room::{RETRY_AFTER, Space};
use super::sweep::{self, Damaged, Piece};
use super::tasks::{ReadUse, SweepUse};
use super::{Store, UNWRITTEN_GROUPS_MAX};
use crate::plant::{Bug, is_planted};

/// How compaction stands.
#[derive(Debug, Default)]
pub(crate) enum Compaction {
    #[default]
    Idle,
    /// What to read next.
    Sweeping(Piece),
    /// A read is on its way.
    Reading(Piece),
    /// The device could not read it, and is asked again then.
    Paused { piece: Piece, until: Instant },
    /// Everything was copied; the part may go when the log is durable up to there.
    Waiting { needs: u64 },
    /// The part goes.
    Removing { part: u64 },
    /// The part is damaged. It stays, and so do all behind it.
    Stuck,
}

/// What keeps compaction from going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The device cannot read a part of the log. It is asked again, and again.
    Unreadable,
    /// A part of the log is not what was written.
    Damaged,
}

impl Store {
    /// Takes the next steps, as many as there are to take.
    pub(super) fn compact(&mut self) {
        // Nobody comes back for a step that could have been taken at once.
        while self.log.failure().is_none() && self.step_compaction() {}
    }

    /// Takes the next step; whether there may be another one at once.
    fn step_compaction(&mut self) -> bool {
        match self.compaction {
            Compaction::Idle => {
                self.begin_compaction();
                return !matches!(self.compaction, Compaction::Idle);
            }
            Compaction::Sweeping(piece) => {
                // Clients' records come first, and copies wait while the log is behind; unless there is little space, and copies
                // are what makes more of it.
                let is_first = self.space() != Space::Plenty;
                let groups_max = if is_first { UNWRITTEN_GROUPS_MAX } else { 4 };
                let is_behind = self.log.unwritten_len() > groups_max * self.config.group_len;
                if !is_behind && !self.log.is_out_of_space() {
                    let Piece { address, len } = piece;
                    let token = self.log.read(address, len);
                    self.reads.insert(token, ReadUse::Sweep { address, sweep: SweepUse::Compaction });
                    self.compaction = Compaction::Reading(piece);
                    self.compaction_stepped();
                }
            }
            Compaction::Paused { piece, until } if until <= self.now => {
                self.compaction = Compaction::Sweeping(piece);
                return true;
            }
            Compaction::Waiting { needs } => {
                if self.log.durable() >= needs || is_planted(Bug::PartRemovedEarly) {
                    self.remove_part();
                } else if self.log.settled() >= needs {
                    self.log.flush();
                }
            }
            Compaction::Removing { part } => {
                if self.log.parts().next().is_none_or(|oldest| oldest.number != part) {
                    self.stats.parts_removed += 1;
                    self.compaction = Compaction::Idle;
                    self.part_was_removed();
                    return true;
                }
                // The device may have refused it.
                self.log.remove_oldest();
            }
            Compaction::Reading(_) | Compaction::Paused { .. } | Compaction::Stuck => {}
        }
        false
    }

    fn begin_compaction(&mut self) {
        let count = self.log.parts().len();
        // With little room left, less has to do.
        let is_short_of_parts = count + 3 > self.config.parts_max;
        let (percent, share) = match self.space() {
            Space::Plenty if is_short_of_parts => (100, 8),
            Space::Plenty => (self.config.garbage_percent, 1),
            Space::Short if !self.room.has_refused() => (100, 8),
            Space::Short | Space::Full | Space::Refused => (100, 32),
        };
        let is_round_due = self.is_round_due() && !is_planted(Bug::RoundsLeftOut);
        let is_worth_it = self.is_outdated_by(percent, share) || is_round_due;
        let Some(oldest) = self.log.parts().next() else { return };
        let (begin, end) = (self.log.begin(), self.log.begin() + oldest.used);
        let is_empty = oldest.live == 0;
        let is_written = end <= self.log.settled();
        // Copies that the device has no room for would keep everything else from being written.
        let fits = self.room_left().is_none_or(|left| left >= self.compaction_need());
        let has_room = is_empty || (fits && !self.log.is_out_of_space());
        if count < 2 || !is_written || !has_room || !(is_empty || is_worth_it) {
            return;
        }
        self.compaction = if is_empty {
            Compaction::Waiting { needs: self.needed() }
        } else {
            Compaction::Sweeping(Piece { address: begin, len: self.config.group_len })
        };
    }

    /// Whether more than so many percent of a share of the log are outdated, or would be gained by writing it more tightly. What
    /// copying itself may lose does not count; and what was written since the last change are copies, or it would never end.
    fn is_outdated_by(&self, percent: u64, share: u64) -> bool {
        let (used, kept, live) = (self.log.used(), self.log.kept(), self.log.live());
        let is_more = |part: u64, whole: u64| part * 100 * share > whole * percent;
        let is_changed = self.log.begin() < self.log.changed();
        // Of the groups that copies fill, each leaves less than a block empty.
        let loss = used / self.config.group_len as u64 * BLOCK_LEN as u64;
        is_more(kept.saturating_sub(live), kept)
            || (is_changed && is_more(used.saturating_sub(live + loss), used))
    }

    /// A piece of the part was read.
    pub(super) fn swept(&mut self, address: u64, result: Result<Vec<u8>, LogFailure>) {
        let Compaction::Reading(piece) = self.compaction else { return };
        self.is_sweep_failing = result.is_err();
        let Ok(bytes) = result else {
            self.stats.sweeps_failed += 1;
            self.compaction = Compaction::Paused { piece, until: self.now + RETRY_AFTER };
            return;
        };
        let (end, len) = (self.log.end_of_part(address).unwrap_or(address), self.config.group_len);
        let copy = |address, record: &Record<'_>| self.copy_if_current(address, record);
        self.compaction = match sweep::visit(&bytes, address, end, len, copy) {
            Err(Damaged) => {
                self.stats.parts_damaged += 1;
                Compaction::Stuck
            }
            Ok(piece) if piece.address < end => Compaction::Sweeping(piece),
            Ok(_) => Compaction::Waiting { needs: self.needed() },
        };
    }

    /// When a piece is asked for again.
    pub(super) fn compaction_due(&self) -> Option<Instant> {
        match self.compaction {
            Compaction::Paused { until, .. } if self.log.failure().is_none() => Some(until),
            _ => None,
        }
    }

    /// What keeps compaction from going on, if anything does: the log grows until then.
    #[must_use]
    pub fn obstacle(&self) -> Option<Obstacle> {
        match self.compaction {
            Compaction::Stuck => Some(Obstacle::Damaged),
            _ => self.is_sweep_failing.then_some(Obstacle::Unreadable),
        }
    }

    fn copy_if_current(&mut self, address: u64, record: &Record<'_>) {
        if record.value.is_none() {
            return;
        }
        let hash = self.hash(record.key);
        let is_current = self.find(hash).is_some_and(|place| place.address == address);
        if !is_current && !is_planted(Bug::CompactionCopiesOld) {
            return;
        }
        if is_planted(Bug::CompactionDropsLive) && record.key.len() % 4 == 1 {
            return;
        }
        if is_over(record.expires, self.now_ms) {
            self.stats.keys_expired += 1;
            return self.forget(hash);
        }
        // It fitted into a part before, and does again.
        if self.log.reserve(self.now, Log::aligned(record.len())).is_ok() {
            self.put(hash, record);
            self.stats.records_copied += 1;
        }
    }

    /// Whether a part's records are being copied. What was copied is there twice until the part is removed, so nobody waits
    /// for the copies alone, and they fill whole groups.
    pub(super) fn is_copying(&self) -> bool {
        matches!(self.compaction, Compaction::Sweeping(_) | Compaction::Reading(_))
    }

    /// What must be durable before the oldest part may go: all that was appended, and something of the part behind it. A log is found by
    /// its first group, and the one that marks a life is not among what was appended.
    fn needed(&self) -> u64 {
        let part_len = self.config.part_len;
        self.log.appended().max((self.log.begin() / part_len + 1) * part_len + 1)
    }

    fn remove_part(&mut self) {
        let Some(part) = self.log.parts().next().map(|part| part.number) else { return };
        if self.log.remove_oldest() {
            self.compaction = Compaction::Removing { part };
        }
    }
}
