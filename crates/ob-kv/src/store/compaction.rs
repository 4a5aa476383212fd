//! Compaction: the oldest part's current records are copied to the log's end, then the part is removed.
//!
//! ```text
//!   Idle ─ enough is outdated ─▶ Reading a piece of the oldest part ─▶ copies appended ─┐
//!    ▲                               ▲──────────────── more ─────────────────────────────┤
//!    │                                                                                   ▼
//!    └──────────── Removing ◀── what was there when the last was copied is durable ── Waiting
//! ```
//!
//! A record is current if the index names its address. The copy is the newest record of its key at the instant at which it is
//! appended, and so it stays true that of two records the later one counts. Records that have expired, and removals, are not
//! copied: there is nothing older that they could hide. The part may go when what *replaces* its records is durable; not
//! only the copies, but whatever has outdated the others.

use ob_format::kv::Record;

use super::Store;
use super::index::KeyHash;
use super::log::Log;
use super::ops::LogFailure;
use super::sweep::{self, Piece};
use super::tasks::{ReadUse, SweepUse};
use crate::plant::{Bug, is_planted};

/// How compaction stands.
#[derive(Debug, Default)]
pub(crate) enum Compaction {
    #[default]
    Idle,
    /// What to read next.
    Sweeping(Piece),
    /// A read is on its way.
    Reading,
    /// Everything was copied; the part may go when the log is durable up to there.
    Waiting { needs: u64 },
    /// The part goes.
    Removing { part: u64 },
    /// The part could not be read. It stays, and so do all behind it.
    Stuck,
}

impl Store {
    /// Takes the next step, if there is one to take.
    pub(super) fn compact(&mut self) {
        if self.log.failure().is_some() {
            return;
        }
        match self.compaction {
            Compaction::Idle => self.begin_compaction(),
            Compaction::Sweeping(Piece { address, len }) => {
                // Clients' records come first: copies wait while the log is behind.
                if self.log.unwritten_len() <= 4 * self.config.group_len {
                    let token = self.log.read(address, len);
                    self.reads.insert(token, ReadUse::Sweep { address, sweep: SweepUse::Compaction });
                    self.compaction = Compaction::Reading;
                }
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
                }
            }
            Compaction::Reading | Compaction::Stuck => {}
        }
    }

    fn begin_compaction(&mut self) {
        let count = self.log.parts().len();
        let used = self.log.used();
        let outdated = used.saturating_sub(self.log.live());
        let is_worth_it = outdated * 100 > used * self.config.garbage_percent;
        // With little room left, less has to do; but copying what is current gains nothing.
        let is_short_of_parts = count + 3 > self.config.parts_max && outdated * 8 > used;
        let Some(oldest) = self.log.parts().next() else { return };
        let (begin, end) = (self.log.begin(), self.log.begin() + oldest.used);
        let is_empty = oldest.live == 0;
        let is_written = end <= self.log.settled();
        if count < 2 || !is_written || !(is_worth_it || is_short_of_parts) {
            return;
        }
        self.compaction = if is_empty {
            Compaction::Waiting { needs: self.log.appended() }
        } else {
            Compaction::Sweeping(Piece { address: begin, len: self.config.group_len })
        };
    }

    /// A piece of the part was read.
    pub(super) fn swept(&mut self, address: u64, result: Result<Vec<u8>, LogFailure>) {
        let (end, len) = (self.log.end_of_part(address).unwrap_or(address), self.config.group_len);
        let visited = result.ok().and_then(|bytes| {
            let copy = |address, record: &Record<'_>| self.copy_if_current(address, record);
            sweep::visit(&bytes, address, end, len, copy).ok()
        });
        self.compaction = match visited {
            None => {
                self.stats.parts_damaged += 1;
                Compaction::Stuck
            }
            Some(piece) if piece.address < end => Compaction::Sweeping(piece),
            Some(_) => Compaction::Waiting { needs: self.log.appended() },
        };
    }

    fn copy_if_current(&mut self, address: u64, record: &Record<'_>) {
        if record.value.is_none() {
            return;
        }
        let hash = KeyHash::of(&self.config.secret, record.key);
        let is_current = self.find(hash).is_some_and(|place| place.address == address);
        if !is_current && !is_planted(Bug::CompactionCopiesOld) {
            return;
        }
        if is_planted(Bug::CompactionDropsLive) && record.key.len() % 4 == 1 {
            return;
        }
        if record.expires.is_some_and(|expires| expires <= self.now_ms) {
            self.stats.keys_expired += 1;
            return self.forget(hash);
        }
        // It fitted into a part before, and does again.
        if self.log.reserve(self.now_ms, Log::aligned(record.len())).is_ok() {
            self.put(hash, record);
            self.stats.records_copied += 1;
        }
    }

    fn remove_part(&mut self) {
        let Some(part) = self.log.parts().next().map(|part| part.number) else { return };
        if self.log.remove_oldest() {
            self.compaction = Compaction::Removing { part };
        }
    }
}
