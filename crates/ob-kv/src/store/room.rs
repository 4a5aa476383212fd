//! How much the log may still grow, and what is done when that is little.
//!
//! ```text
//!   bytes left:   │ compaction's own: one part's copies, and a round's losses │ removals │ short: compaction comes first │ plenty
//!                 0                                                        reserve      full
//! ```
//!
//! The driver measures what the device has left, and the store takes off what it has appended since. Values are refused while
//! there is room enough for removals and for compaction: so whatever the store is full of, keys can be removed, compaction
//! can copy a part to the end and remove it, and the store goes on.
//!
//! What removals append, and what they outdate, is behind everything else: compaction gets at the former only when it has gone
//! through the whole log. So it begins a *round* when removals have taken half of their room, however little is outdated. Copies
//! are packed as tightly as the records were, but for what a part's begin and end lose; a round has room for that loss in every part.
//! Removals may not take it. Where they are faster than a round, they are refused until it has come to what they left
//! behind. To remove everything takes one block, which nothing else may have.
//!
//! Others may fill the device all the same. What it refuses then is asked for again after a while. Until it is taken, nothing
//! can be changed: memory is no place for what was promised to be on a device.

use std::time::Duration;

use ob_core::Instant;
use ob_format::kv::{BLOCK_LEN, GROUP_HEADER_LEN};

use super::errors::{self, Refusal};
use super::ops::LogFailure;
use super::{Durability, Store};
use crate::plant::{Bug, is_planted};

/// How often the device is measured while the log grows, or is short of space.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// How long after a refusal, or a read that failed, the device is asked again.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(500);
/// How long answers wait for a device without space before they become errors.
const PATIENCE: Duration = Duration::from_secs(5);
/// Compaction comes first when less is left than this many times one part's copies, beyond what values may take.
const SHORT_COPIES: u64 = 2;
/// What removals may take beyond the reserve: these parts of a part and of the log, and so many blocks.
const REMOVALS_OF_PART: u64 = 8;
const REMOVALS_OF_LOG: u64 = 64;
const REMOVAL_BLOCKS: u64 = 16;
/// Blocks that compaction may lose with each part of a round: its copies begin and end in the middle of others.
const ROUND_BLOCKS: u64 = 2;

/// How the log stands with the device's space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Space {
    /// There is enough.
    #[default]
    Plenty,
    /// It is little: compaction comes before clients.
    Short,
    /// No values are taken. Keys can be removed, and everything can be read.
    Full,
    /// The device has refused a write, though there should have been room. Nothing is changed until it takes it.
    Refused,
}

impl Space {
    /// A word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plenty => "ok",
            Self::Short => "short",
            Self::Full => "full",
            Self::Refused => "refused",
        }
    }
}

/// What the device had left when it was measured.
#[derive(Debug)]
pub(crate) struct Room {
    /// Bytes, and how much of the log was surely counted as taken then.
    measured: Option<(u64, u64)>,
    /// A measurement that is on its way, with what it surely counts.
    asked: Option<u64>,
    is_wanted: bool,
    /// When the next one is due; nothing before the first.
    due: Option<Instant>,
    /// How far the log had grown when the device was measured last.
    grown: u64,
    /// How far the log had grown when compaction took its last step.
    grown_at_step: u64,
    /// Whether changes were refused that need more than there was, and none has been made since.
    has_refused: bool,
    refused_since: Option<Instant>,
    retry: Instant,
}

impl Room {
    /// Whether somebody wants more than there is.
    pub(super) fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Changes were made, or refused for want of space.
    pub(super) fn changed(&mut self, is_refused: bool) {
        self.has_refused = is_refused;
    }
}

impl Default for Room {
    fn default() -> Self {
        Self {
            measured: None,
            asked: None,
            is_wanted: true,
            due: None,
            grown: 0,
            grown_at_step: 0,
            has_refused: false,
            refused_since: None,
            retry: Instant::default(),
        }
    }
}

impl Store {
    /// Whether the device is to be measured now: how many bytes it has for the log's files, beside what they have. What comes
    /// of it is for [`Store::measured`]; until then this is `false`.
    pub fn wants_measure(&mut self) -> bool {
        let is_wanted = self.room.is_wanted && self.room.asked.is_none();
        if is_wanted {
            self.room.is_wanted = false;
            self.room.asked = Some(self.log.completed_len());
        }
        is_wanted
    }

    /// Takes how many bytes the device has left, if that could be found out.
    pub fn measured(&mut self, left: Option<u64>) {
        let Some(counted) = self.room.asked.take() else { return };
        self.room.due = Some(self.now + MEASURE_EVERY);
        self.room.grown = self.log.grown_len();
        if let Some(left) = left {
            self.room.measured = Some((left, counted));
        }
    }

    /// How the log stands with the device's space.
    #[must_use]
    pub fn space(&self) -> Space {
        if self.log.is_out_of_space() {
            return Space::Refused;
        }
        match self.room_left() {
            Some(left) if left < self.reserve_for_values() + BLOCK_LEN as u64 => Space::Full,
            Some(left) if left < self.reserve_for_values() + SHORT_COPIES * self.copies_len() => Space::Short,
            _ => Space::Plenty,
        }
    }

    /// Bytes that the log may still grow by, as far as is known.
    pub(super) fn room_left(&self) -> Option<u64> {
        let (left, counted) = self.room.measured?;
        Some(left.saturating_sub(self.log.grown_len() - counted))
    }

    /// Whether the changes of a request may be appended, which take `len` bytes.
    pub(super) fn check_room(&self, kind: Growth, len: usize) -> Result<(), Refusal> {
        if self.log.is_out_of_space() {
            return Err(errors::read_only(LogFailure::Space));
        }
        let Some(left) = self.room_left() else { return Ok(()) };
        let reserve = match kind {
            Growth::Values if is_planted(Bug::ReserveGivenAway) => 0,
            Growth::Values => self.reserve_for_values(),
            Growth::Removals if is_planted(Bug::RemovalsUnbounded) => 0,
            Growth::Removals => self.reserve(),
            Growth::RemoveAll => 0,
        };
        let len = (GROUP_HEADER_LEN + len).next_multiple_of(BLOCK_LEN) as u64;
        if left < reserve + len { Err(errors::OUT_OF_SPACE) } else { Ok(()) }
    }

    /// Bytes that compaction needs for the copies of the oldest part.
    pub(super) fn compaction_need(&self) -> u64 {
        let Some(oldest) = self.log.parts().next() else { return 0 };
        if oldest.live == 0 { 0 } else { oldest.live.min(oldest.used) + self.copying_loss(oldest.used) }
    }

    /// Bytes that the copies of a part take at most.
    fn copies_len(&self) -> u64 {
        self.config.part_len + self.copying_loss(self.config.part_len)
    }

    /// What only compaction may take, and the removal of everything.
    fn reserve(&self) -> u64 {
        let round = ROUND_BLOCKS * self.log.parts().len() as u64;
        self.copies_len() + (round + 1) * BLOCK_LEN as u64
    }

    /// What removals may take beyond that.
    fn removals_len(&self) -> u64 {
        let of_part = self.config.part_len / REMOVALS_OF_PART;
        of_part + self.log.used() / REMOVALS_OF_LOG + REMOVAL_BLOCKS * BLOCK_LEN as u64
    }

    /// What has to be left when values are appended.
    fn reserve_for_values(&self) -> u64 {
        self.reserve() + self.removals_len()
    }

    /// Whether removals have taken half of their room since compaction has gone through everything that was there.
    pub(super) fn is_round_due(&self) -> bool {
        let is_low = self.room_left().is_some_and(|left| left < self.reserve() + self.removals_len() / 2);
        is_low && self.log.begin() < self.log.changed()
    }

    /// A part is copied in pieces. The copies of each may begin a group, and leave most of a block empty.
    pub(super) fn copying_loss(&self, len: u64) -> u64 {
        (len / self.config.group_len as u64 + 2) * 2 * BLOCK_LEN as u64
    }

    /// Whether clients have appended as much since compaction's last step as they may where space is short.
    pub(super) fn is_ahead_of_compaction(&self) -> bool {
        self.is_copying()
            && self.log.grown_len() - self.room.grown_at_step > self.config.group_len as u64 / 4
            && matches!(self.space(), Space::Short | Space::Full)
    }

    /// Compaction has taken a step.
    pub(super) fn compaction_stepped(&mut self) {
        self.room.grown_at_step = self.log.grown_len();
    }

    /// A part was removed: what there is room for is to be found out anew.
    pub(super) fn part_was_removed(&mut self) {
        self.room.is_wanted = true;
    }

    /// Does what is due by the clock.
    pub(super) fn tick_room(&mut self) {
        if self.log.is_held() && self.room.retry <= self.now {
            self.log.try_again();
        }
        let is_moving = self.log.grown_len() > self.room.grown || self.space() != Space::Plenty;
        // Where it could not be found out, it is asked for again.
        let is_due = self.room.due.is_some_and(|due| due <= self.now);
        if is_due && (is_moving || self.room.measured.is_none()) {
            self.room.is_wanted = true;
        }
    }

    /// When there is something to do by the clock.
    pub(super) fn room_due(&self) -> Option<Instant> {
        let retry = self.log.is_held().then_some(self.room.retry);
        let is_measured = self.room.measured.is_some() && self.room.asked.is_none();
        let measure = self.room.due.filter(|_| is_measured && self.space() != Space::Plenty);
        retry.into_iter().chain(measure).min()
    }

    /// Looks whether the device has refused something just now, or has taken everything.
    pub(super) fn watch_refusals(&mut self, was_held: bool) {
        if !self.log.is_out_of_space() {
            self.room.refused_since = None;
            return;
        }
        self.room.refused_since.get_or_insert(self.now);
        if self.log.is_held() && !was_held {
            self.room.retry = self.now + RETRY_AFTER;
            self.room.is_wanted = true;
        }
    }

    /// Why answers that wait for the log become errors, if they do.
    pub(super) fn failure_of_waiting(&self) -> Option<LogFailure> {
        let refused_for = self.room.refused_since.map(|since| self.now - since);
        let is_hopeless = refused_for.is_some_and(|time| time >= PATIENCE);
        let failure = self.log.failure().or(is_hopeless.then_some(LogFailure::Space));
        failure.filter(|_| self.config.durability == Durability::Always)
    }
}

/// What changes append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    Values,
    Removals,
    RemoveAll,
}
