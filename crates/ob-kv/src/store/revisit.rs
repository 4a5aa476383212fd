//! Whether the log on the device is still what a store has in memory of it: asked whenever the two meet again, before anything
//! is written.
//!
//! ```text
//!        what the store has:   … │ durable          │ complete          │ written, or about to be
//!   what the device may have:  … │ the same         │ the same, or less │ any of them, or another host's
//! ```
//!
//! Another host can have come meanwhile, written to the log, and gone; and a device that has lost its power may have lost what was
//! complete and not durable. Both show in the groups behind the last durable one, so those are looked at, and nothing else: see
//! "Lives" in `docs/linearizable-offload.md`.

use std::sync::Arc;

use ob_format::kv::{GroupHeader, Origin};

use super::Store;
use super::ops::{LogCompletion, LogOp};
use super::recovery::{Recovery, RecoveryError};
use crate::plant::{Bug, is_planted};

/// What became of the log while its store was away from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revisited {
    /// It is as the store has left it: the store may go on, from [`Store::rejoined`].
    Same,
    /// What was complete and not durable is gone, or some of it. The store has to be recovered.
    Lost,
    /// Somebody else has written to it. The store has to be recovered.
    Overtaken,
}

/// A look at the log.
pub struct Revisit {
    /// Nothing, once it has failed.
    recovery: Option<Recovery>,
    /// What has become of the log then.
    otherwise: Revisited,
}

/// What a store has in memory of its log, and how far that was found.
#[derive(Debug)]
pub(crate) struct Known {
    origin: Origin,
    /// Where the last group begins that is durable, if there is one, and where it ends.
    pub(crate) durable_group: Option<u64>,
    durable: u64,
    complete: u64,
    /// The groups behind what is complete, with their addresses.
    pub(crate) groups: Vec<(u64, Arc<Vec<u8>>)>,
    found: Found,
}

#[derive(Debug, Default)]
struct Found {
    /// Where the last group ends that was found.
    end: Option<u64>,
    is_foreign: bool,
}

impl Known {
    pub(crate) fn new(origin: Origin, durable_group: Option<u64>, durable: u64, complete: u64) -> Self {
        Self { origin, durable_group, durable, complete, groups: Vec::new(), found: Found::default() }
    }

    /// A good group is on the device.
    pub(crate) fn meets(&mut self, address: u64, header: &GroupHeader, group: &[u8]) {
        let (origin, end) = (header.origin, address + group.len() as u64);
        let is_own = if Some(address) == self.durable_group {
            end == self.durable && origin.store == self.origin.store
        } else if address < self.complete {
            // Whoever has seen a group of this life has taken a greater number; and nothing is complete beyond what is durable
            // before the first of the life is.
            origin == self.origin
        } else {
            // Of a group that was being written its last block may be missing, and what lay there before end like its records: it is
            // as good as written, whatever is behind them.
            let used = ..header.used;
            let is_same = |bytes: &[u8]| bytes.len() == group.len() && bytes.get(used) == group.get(used);
            self.groups.iter().any(|(own, bytes)| *own == address && is_same(bytes))
        };
        self.found.is_foreign |= !is_own;
        self.found.end = Some(end);
    }

    fn judge(&self) -> Revisited {
        let end = self.found.end.unwrap_or(0);
        if self.found.is_foreign || end < self.durable {
            Revisited::Overtaken
        } else if end < self.complete {
            Revisited::Lost
        } else {
            Revisited::Same
        }
    }
}

impl Revisit {
    /// The next read to make. There is one at a time.
    pub fn next_op(&mut self) -> Option<LogOp> {
        self.recovery.as_mut()?.next_op()
    }

    /// Takes what was read.
    pub fn completed(&mut self, completion: LogCompletion) {
        // What cannot be read any more is somebody else's by now; if it is not, recovery says what it is.
        if self.recovery.as_mut().is_some_and(|recovery| recovery.completed(completion).is_err()) {
            self.recovery = None;
        }
    }

    /// What was found, when there is nothing more to read.
    #[must_use]
    pub fn outcome(&self) -> Option<Revisited> {
        if is_planted(Bug::NotRevisited) {
            return Some(Revisited::Same);
        }
        match &self.recovery {
            None => Some(self.otherwise),
            Some(recovery) => recovery.known().map(Known::judge),
        }
    }
}

impl Store {
    /// Has the log marked as this life's before anybody is served. Another host that has the log in memory and comes back knows by
    /// that mark that somebody was here, even if nothing was changed: what it has applied and not written was lost, and clients may
    /// have seen that it was.
    pub fn mark_life(&mut self) {
        if !is_planted(Bug::LifeUnmarked) {
            self.log.mark_life();
        }
    }

    /// Whether the mark is durable, if there is to be one.
    #[must_use]
    pub fn is_life_marked(&self) -> bool {
        self.log.is_marked()
    }

    /// Goes on with the log, which was found to be [`Revisited::Same`]; what was asked of it before and is not complete is asked again.
    pub fn rejoined(&mut self) {
        if !is_planted(Bug::GapLeft) {
            self.log.rejoined();
        }
    }

    /// Looks whether the log is still what this store takes it for. `parts` are those whose files are there, with the lengths of
    /// the files. Nothing else may be done with the log before there is an outcome.
    #[must_use]
    pub fn revisit(&self, parts: impl IntoIterator<Item = (u64, u64)>) -> Revisit {
        let parts: Vec<(u64, u64)> = parts.into_iter().collect();
        let is_there = |number: u64| parts.iter().any(|(part, _)| *part == number);
        let missing = self.log.parts_to_stay().find(|part| !is_there(*part));
        // A part that was removed is back: the device has lost that with its power. Whoever went on would leave it there, and a gap
        // behind it when the next one goes.
        let is_back = self.log.first_part().is_some_and(|first| parts.iter().any(|(part, _)| *part < first));
        // Before its mark is durable a life cannot be told from another that begins with the same one; and it has served nobody.
        if is_back || !self.is_life_marked() {
            return Revisit { recovery: None, otherwise: Revisited::Lost };
        }
        let recovery = match missing {
            Some(part) => Err(RecoveryError::Missing { part }),
            None => Recovery::of_known(self.config.clone(), parts, self.log.known()),
        };
        Revisit { recovery: recovery.ok(), otherwise: Revisited::Overtaken }
    }

    /// Up to where the log is one that a card can have seen. The mark of this life is not: behind a log that has become shorter it lies where
    /// something else was.
    pub(crate) fn known_end(&self) -> u64 {
        self.recovered_end.unwrap_or_else(|| self.settled())
    }

    /// A card has met this life.
    pub(crate) fn met(&mut self) {
        self.recovered_end = None;
    }
}
