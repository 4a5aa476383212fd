//! Cuckoo displacement: entries move to their other bucket until one of a key's two buckets has a free slot.
//!
//! ```text
//!   b1 ─┬─ slot 0 ─▶ its other bucket ─┬─ slot 0 ─▶ ...
//!       ├─ slot 1 ─▶ ...               └─ ... a free slot: move along the path, last step first
//!   b2 ─┴─ ...
//! ```
//!
//! The search is breadth first, so paths are short, and it needs the header lines only, because a tag and a bucket give
//! the other bucket. It is bounded by the number of buckets that it looks at.

use crate::placement::{Place, Tag};
use crate::sync::{Ordering, SLOTS};
use crate::writer::{Spot, TableWriter};

/// Buckets that one search looks at.
const SEARCH_MAX: usize = 64;

/// A bucket that the search has reached.
#[derive(Clone, Copy)]
struct Reached {
    bucket: u32,
    /// The bucket that it was reached from, by its place in the search, and the slot whose entry would move here.
    from: Option<(usize, usize)>,
}

impl TableWriter {
    /// Makes a free slot in one of the two buckets, which are both full.
    pub(crate) fn displace_for(&mut self, place: &Place) -> Option<Spot> {
        let mut reached = [Reached { bucket: 0, from: None }; SEARCH_MAX];
        let mut count = 0;
        for bucket in place.buckets() {
            reached[count] = Reached { bucket, from: None };
            count += 1;
        }
        let mut next = 0;
        while next < count {
            let bucket = reached[next].bucket;
            if reached[next].from.is_some()
                && let Some(free) = self.free_slot(bucket)
            {
                return Some(self.move_along(&reached, next, free));
            }
            if count == SEARCH_MAX {
                next += 1;
                continue;
            }
            let tags = self.table.bucket(bucket).tags.load(Ordering::Relaxed);
            for slot in 0..SLOTS {
                let other = self.table.placement.other(bucket, Tag::of(tags, slot));
                // Twice the same bucket on one path would move an entry that is there no more.
                if count < SEARCH_MAX && !is_on_path(&reached, next, other) {
                    self.table.bucket(other).prefetch();
                    reached[count] = Reached { bucket: other, from: Some((next, slot)) };
                    count += 1;
                }
            }
            next += 1;
        }
        None
    }

    /// Moves each entry of the path one step on, from the free slot back to the beginning.
    fn move_along(&mut self, reached: &[Reached; SEARCH_MAX], last: usize, free: Spot) -> Spot {
        let mut free = free;
        let mut at = last;
        while let Some((from, slot)) = reached[at].from {
            let main = reached[from].bucket;
            let source = Spot { main, bucket: main, slot };
            self.relocate(source, free);
            free = source;
            at = from;
        }
        free
    }
}

/// Whether the path to what was reached leads through a bucket.
fn is_on_path(reached: &[Reached; SEARCH_MAX], last: usize, bucket: u32) -> bool {
    let mut at = last;
    loop {
        match reached[at].from {
            _ if reached[at].bucket == bucket => return true,
            Some((from, _)) => at = from,
            None => return false,
        }
    }
}
