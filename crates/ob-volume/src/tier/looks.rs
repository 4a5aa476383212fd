//! Which headers may be looked up, of those that have come (I2).
//!
//! ```text
//!   look at port 0, 1, … ─▶ look at port 0, 1, … once more ─▶ headers that the first look has found ─▶ looked up
//!                                                            those of the second ─▶ the next round
//! ```
//!
//! What was answered before a header was sent is a completion in some ring by then, perhaps of a port that was just looked at. The second
//! look finds it for all headers that were found before that began, and for no other.

use std::collections::VecDeque;

use super::plant::{Bug, is_planted};

/// Headers, from when they were found until they may be looked up.
#[derive(Debug)]
pub struct Looks<T> {
    headers: VecDeque<T>,
    /// So many were found before the second look.
    found: usize,
    /// So many may be looked up.
    ripe: usize,
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Self { headers: VecDeque::new(), found: 0, ripe: 0 }
    }
}

impl<T> Looks<T> {
    /// A header was found.
    pub fn find(&mut self, header: T) {
        self.headers.push_back(header);
    }

    /// The one port there is was looked at: what comes by it is in the order in which it was said.
    pub fn only_over(&mut self) {
        self.ripe = self.headers.len();
    }

    /// All ports were looked at.
    pub fn first_over(&mut self) {
        self.found = self.headers.len();
    }

    /// All were looked at once more; whether nothing was left at any of them.
    pub fn second_over(&mut self, are_empty: bool) {
        let is_hasty = is_planted(Bug::HeadersFirst);
        let found = if is_hasty { self.headers.len() } else { self.found };
        self.ripe = if are_empty || is_hasty { found } else { 0 };
    }

    /// The next one that may be looked up.
    pub fn next_ripe(&mut self) -> Option<T> {
        self.ripe = self.ripe.checked_sub(1)?;
        self.headers.pop_front()
    }

    /// Whether there are none, ripe or not.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }
}
