//! Keys whose time is over, and whose expiry found no place in the list of what is over when.
//!
//! ```text
//!   tick ─▶ the next keys of the index that expire some day ─▶ records, in memory or read ─┬─ over ─▶ forgotten
//!             ▲                                                                              └─ not ──▶ listed, if all find a place
//!             └──────────── a few at a time, sooner if many of the last ones were over ◀────────────────────┘
//! ```
//!
//! The walk begins when the list has refused a record. If by then there is room for everything that expires, the list is made anew on
//! the way, and the walk is the last one; else it begins again after its end.

use std::time::Duration;

use ob_core::Instant;
use ob_format::kv::RecordPlace;

use super::Store;
use super::expiry::is_over;
use super::index::{KeyHash, Place};
use super::ops::LogFailure;
use super::tasks::ReadUse;

/// Keys that expire that are looked at in one step, and while the list is made anew.
const KEYS_A_STEP: usize = 64;
const LISTED_A_STEP: usize = 256;
/// How many times as many keys that never expire may be passed over: the index alone tells.
const SCANS_A_STEP: usize = 64;
/// Bytes that a step reads, unless its first record is longer.
const READ_LEN_A_STEP: usize = 1 << 20;
/// From a step to the next, where many keys were over or the list is made anew, and else.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_millis(100);
/// From a walk to the next.
const PAUSE: Duration = Duration::from_secs(10);

/// How the walk stands.
#[derive(Debug, Default)]
pub(crate) struct Overdue {
    /// Where the next step begins, while there is a walk.
    cursor: Option<u64>,
    /// Whether what is not over is listed.
    is_listing: bool,
    due: Instant,
    reads: usize,
    /// Keys of the last step: looked at, and over.
    seen: usize,
    over: usize,
    found: Vec<(KeyHash, Place)>,
}

impl Store {
    /// Takes the next step of the walk, if it is due.
    pub(super) fn walk_overdue(&mut self) {
        if self.overdue_due().is_none_or(|due| due > self.now) {
            return;
        }
        let cursor = self.overdue.cursor.unwrap_or_else(|| {
            self.overdue.is_listing = self.expiry.relist(self.index.expiring());
            0
        });
        let mut found = std::mem::take(&mut self.overdue.found);
        let mut next = self.find_expiring(cursor, &mut found);
        (self.overdue.seen, self.overdue.over) = (0, 0);
        let mut len_left = READ_LEN_A_STEP;
        for (hash, place) in found.drain(..) {
            self.overdue.seen += 1;
            let in_memory = self.log.in_memory(place.address).map(RecordPlace::trusted);
            if let Some(Ok(record)) = in_memory {
                self.judge_overdue(hash, place.address, record.expires);
                continue;
            }
            if place.len_max > len_left && self.overdue.reads > 0 {
                next = hash.tag;
                break;
            }
            len_left = len_left.saturating_sub(place.len_max);
            let token = self.log.read(place.address, place.len_max);
            self.reads.insert(token, ReadUse::Overdue { hash, address: place.address });
            self.overdue.reads += 1;
        }
        self.overdue.found = found;
        self.overdue.cursor = (next != 0).then_some(next);
        self.pause_overdue();
    }

    /// Finds the next keys that expire some day; gives where to go on.
    fn find_expiring(&self, cursor: u64, found: &mut Vec<(KeyHash, Place)>) -> u64 {
        found.clear();
        let keys_max = if self.overdue.is_listing { LISTED_A_STEP } else { KEYS_A_STEP };
        let mut next = cursor;
        for _ in 0..SCANS_A_STEP {
            let before = found.len();
            next = self.index.scan(next, before + KEYS_A_STEP, self.log.begin(), found);
            let is_barren = found.len() == before;
            found.retain(|(_, place)| place.expires);
            if next == 0 || found.len() >= keys_max || is_barren {
                break;
            }
        }
        next
    }

    /// A record was read.
    pub(super) fn overdue_read(&mut self, hash: KeyHash, address: u64, result: Result<Vec<u8>, LogFailure>) {
        self.overdue.reads -= 1;
        // What cannot be read is met by the requests that ask for it.
        if let Some(record) = result.ok().and_then(|bytes| RecordPlace::decode(&bytes).ok()) {
            self.judge_overdue(hash, address, record.expires);
        }
        if self.overdue.reads == 0 {
            self.pause_overdue();
        }
    }

    /// When the next step is due, if there is one and nothing is read for the last.
    pub(super) fn overdue_due(&self) -> Option<Instant> {
        let is_wanted = self.overdue.cursor.is_some() || self.expiry.has_unlisted();
        (is_wanted && self.overdue.reads == 0).then_some(self.overdue.due)
    }

    fn judge_overdue(&mut self, hash: KeyHash, address: u64, expires: Option<u64>) {
        let is_current = self.find(hash).is_some_and(|place| place.address == address);
        let Some(expires) = expires.filter(|_| is_current) else { return };
        if is_over(Some(expires), self.now_ms) {
            self.overdue.over += 1;
            self.stats.keys_expired += 1;
            self.forget(hash);
        } else if self.overdue.is_listing {
            self.expiry.add(expires, hash, address);
        }
    }

    fn pause_overdue(&mut self) {
        let Overdue { cursor, is_listing, seen, over, .. } = self.overdue;
        let are_many = over * 4 > seen;
        self.overdue.due = self.now
            + match cursor {
                _ if are_many => SOON,
                // Until its end, the list lacks what it had before.
                Some(_) if is_listing => SOON,
                Some(_) => LATER,
                None => PAUSE,
            };
    }
}
