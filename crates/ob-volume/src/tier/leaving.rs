//! A process that ends gives back what it has, so that nobody waits for its lease (`docs/volumes-safety.md`, "Handing over").
//!
//! ```text
//!   Leave ─▶ all that is owned is handed over ─ done, or a lease is over ─▶ the session is revoked ─ answered ─▶ gone
//! ```
//!
//! What this tier had to wait for itself it leaves as it is: whoever takes it waits. Nothing is begun any more, and nothing is answered
//! from the moment that the end of the session is asked for.
//!
//! A segment that nobody has asked for is given back as well when another has no room for its index.

use std::time::Duration;

use ob_core::{Instant, SegmentName};
use ob_split::wire::Handle;

use super::core::TierCore;
use super::segments::{SegmentCore, Standing};
use super::store::{Phase, Purpose};
use crate::metadata::MetadataOp;

/// How long nobody has asked for a segment that is given back for another.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// A tier that ends gives back what it has for as long as its lease, and no longer than that: somebody waits for its process.
pub const LEAVES_WITHIN: Duration = Duration::from_secs(5);

/// How far a tier is that ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    #[default]
    Not,
    /// Segments are handed over, and this long.
    Giving {
        until: Instant,
    },
    /// Its session ends.
    Ending,
    Gone,
}

impl TierCore {
    /// Whether nothing is left to do for a tier that was told to leave.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.leaving == Leaving::Gone
    }

    /// Whether nothing new is begun.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving != Leaving::Not
    }

    /// The process ends.
    pub(super) fn leave(&mut self, now: Instant) {
        if self.is_leaving() {
            return;
        }
        let until = now + self.config.lease.min(LEAVES_WITHIN);
        self.leaving = Leaving::Giving { until };
        let owned = self.segments.iter().filter(|(_, segment)| segment.standing == Standing::Owned);
        let owned: Vec<SegmentName> = owned.map(|(name, _)| *name).collect();
        self.handing.extend(owned.into_iter().map(|name| (name, until)));
    }

    /// When a tier that leaves waits for its segments no longer.
    pub(super) fn leaving_next_due(&self) -> Option<Instant> {
        match self.leaving {
            Leaving::Giving { until } => Some(until),
            _ => None,
        }
    }

    /// If all that can be given back is, or it has taken too long, the session ends.
    pub(super) fn continue_leaving(&mut self, now: Instant) {
        let Leaving::Giving { until } = self.leaving else { return };
        let is_releasing = self.segments.values().any(|segment| segment.standing == Standing::Releasing);
        if now < until && (is_releasing || !self.handing.is_empty()) {
            return;
        }
        // From here on nothing is answered, whenever the store hears of it.
        if self.store.phase == Phase::Open {
            self.store.phase = Phase::Closed;
        }
        match self.end_lease() {
            Some(session) => {
                self.leaving = Leaving::Ending;
                self.submit(Purpose::Leave, MetadataOp::Revoke { session });
            }
            None => self.left(),
        }
    }

    /// The session is over.
    pub(super) fn left(&mut self) {
        self.leaving = Leaving::Gone;
    }

    /// Whether a command waits for a segment.
    pub(super) fn is_asked_for(&self, name: SegmentName) -> bool {
        let waits = |handle: &Handle| self.commands.contains_key(&handle.0);
        self.segments.get(&name).is_some_and(|segment| segment.waiting.iter().any(waits))
    }

    /// There is no room for the index of a segment that somebody asks for: of those that nobody has asked for in a while the one that was
    /// left alone longest is given back. Whether there is one.
    pub(super) fn give_idle_back(&mut self, wanted: SegmentName) -> bool {
        let now = self.now;
        if !self.handing.is_empty() {
            return true;
        }
        let is_idle = |segment: &SegmentCore| {
            segment.standing == Standing::Owned
                && segment.reserved.is_some()
                && segment.changes == 0
                && now.since(segment.asked_at.max(segment.owned_since.unwrap_or_default())) >= IDLE_AFTER
        };
        let idle = self.segments.iter().filter(|(name, segment)| **name != wanted && is_idle(segment));
        let Some(longest) = idle.min_by_key(|(_, segment)| segment.asked_at).map(|(name, _)| *name) else {
            return false;
        };
        self.handing.insert(longest, now + self.config.lease);
        true
    }
}
