//! What is to be done for a session besides requests, and what it is let go of by: the keeper's whole mind, without a lock, a thread or a clock.
//!
//! ```text
//!   a file without a map (map) ──┐
//!   something to close (tell) ───┼─▶ ChoreList ── next ──▶ Next::{Do(Chore), Wait, Over}
//!   a keeper comes, is to leave, ┘        └──────────────▶ what is to be dropped, when no lock is held any more
//!   is gone (claim, leave, unclaim)
//! ```
//!
//! The last one who has a file says more here as he goes. So nothing is dropped here: what is not needed any more is given to the caller.

use std::collections::VecDeque;

use ob_wire_nvme::pushdown::Function;

use super::file::{File, Hold, WeakFile};
use crate::plant::{Bug, is_planted};

/// What is to be done.
#[derive(Default)]
pub(super) struct ChoreList {
    /// Whether somebody does it.
    is_kept: bool,
    /// Whether he is to leave.
    is_over: bool,
    /// Whether he makes a map, which takes as long as a file system takes to write a file out.
    is_mapping: bool,
    /// Files without a current map. No file is here twice.
    files: VecDeque<WeakFile>,
    /// What the target is to be told, and what is held until it was.
    telling: VecDeque<(Function, Hold)>,
}

/// One of the chores.
pub(super) enum Chore {
    Map(File),
    Tell(Function, Hold),
}

/// What the keeper does.
pub(super) enum Next {
    Do(Chore),
    /// Nothing, until he is told.
    Wait,
    /// He leaves.
    Over,
}

/// What is left to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// There is none.
    NotKept,
    /// He knows already.
    Known,
    /// He is to be told.
    New,
}

/// What a keeper who is gone has held and was to do, to be dropped where no lock is held.
#[must_use]
pub(super) struct Abandoned {
    files: VecDeque<WeakFile>,
    holds: Vec<Hold>,
}

impl Abandoned {
    /// Who waits to write does not wait for a request that may never come, and files may be left to another keeper.
    pub(super) fn let_go(self) {
        drop(self.holds);
        for file in self.files.iter().filter_map(WeakFile::upgrade) {
            if !is_planted(Bug::LeavesWaiting) {
                file.end_to_wait();
            }
        }
    }
}

impl ChoreList {
    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(super) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Somebody wants to do it; whether nobody did.
    pub(super) const fn claim(&mut self) -> bool {
        !std::mem::replace(&mut self.is_kept, true)
    }

    /// Whoever did it is to leave.
    pub(super) const fn leave(&mut self) {
        self.is_over = self.is_kept;
    }

    /// Whoever did it is gone.
    pub(super) fn unclaim(&mut self) -> Abandoned {
        (self.is_kept, self.is_over, self.is_mapping) = (false, false, false);
        let holds = self.telling.iter_mut().map(|(_, hold)| std::mem::take(hold)).collect();
        Abandoned { files: std::mem::take(&mut self.files), holds }
    }

    /// A file has no current map.
    pub(super) fn map(&mut self, file: &File) -> Left {
        if !self.is_kept {
            return Left::NotKept;
        }
        if !file.begin_to_wait() {
            return Left::Known;
        }
        self.files.push_back(file.downgrade());
        Left::New
    }

    /// The target is to be told something, some time. What is held until then; or what is let go of at once, if nobody does this before the next
    /// request, or whoever does is busy with a file for as long as that takes.
    pub(super) fn tell(&mut self, function: Function, hold: Hold) -> Hold {
        let waits = self.is_kept && !self.is_mapping;
        let (hold, let_go) = if waits { (hold, Hold::default()) } else { (Hold::default(), hold) };
        self.telling.push_back((function, hold));
        let_go
    }

    /// What the target is to be told next, whoever does it.
    pub(super) fn next_told(&mut self) -> Option<(Function, Hold)> {
        self.telling.pop_front()
    }

    /// What the keeper does next, who has done what he was given before.
    pub(super) fn next(&mut self) -> Next {
        self.is_mapping = false;
        if self.is_over {
            return Next::Over;
        }
        // Somebody may wait for it, to write.
        if let Some((function, hold)) = self.telling.pop_front() {
            return Next::Do(Chore::Tell(function, hold));
        }
        // Some are gone by now.
        while let Some(file) = self.files.pop_front() {
            if let Some(file) = file.upgrade() {
                // Whoever finds it without a map from now on may be too late for the one that is made.
                file.end_to_wait();
                self.is_mapping = true;
                return Next::Do(Chore::Map(file));
            }
        }
        Next::Wait
    }
}

#[cfg(test)]
#[path = "chores_tests.rs"]
mod tests;
