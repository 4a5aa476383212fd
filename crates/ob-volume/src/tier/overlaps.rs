//! Of writes and trims that overlap one is under way at a time, in the order of their arrival (I3).

use std::collections::VecDeque;
use std::ops::Range;

use ob_split::wire::Handle;

use super::plant::{Bug, is_planted};

/// What changes blocks of a volume, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Overlaps {
    all: VecDeque<Change>,
}

#[derive(Debug)]
struct Change {
    handle: Handle,
    blocks: Range<u64>,
    /// How many earlier ones it overlaps.
    behind: u32,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Overlaps {
    /// A change has come; whether it may begin.
    pub(super) fn come(&mut self, handle: Handle, blocks: Range<u64>) -> bool {
        let behind = self.all.iter().filter(|earlier| overlap(&earlier.blocks, &blocks)).count() as u32;
        let behind = if is_planted(Bug::OverlapsRace) { 0 } else { behind };
        self.all.push_back(Change { handle, blocks, behind });
        behind == 0
    }

    /// Somebody else keeps the blocks of a change.
    pub(super) fn hand_over(&mut self, from: Handle, to: Handle) {
        for change in self.all.iter_mut().filter(|change| change.handle == from) {
            change.handle = to;
        }
    }

    /// Whether nothing changes any block.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A change is over. Tells those that may begin now.
    pub(super) fn over(&mut self, handle: Handle, mut may_begin: impl FnMut(Handle)) {
        let Some(place) = self.all.iter().position(|change| change.handle == handle) else { return };
        let Some(over) = self.all.remove(place) else { return };
        for later in self.all.iter_mut().skip(place) {
            if overlap(&later.blocks, &over.blocks) && later.behind > 0 {
                later.behind -= 1;
                if later.behind == 0 {
                    may_begin(later.handle);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(overlaps: &mut Overlaps, handle: u32) -> Vec<u32> {
        let mut begun = Vec::new();
        overlaps.over(Handle(handle), |handle| begun.push(handle.0));
        begun
    }

    #[test]
    fn what_overlaps_waits_for_all_before_it_and_for_nothing_else() {
        let mut overlaps = Overlaps::default();
        assert!(overlaps.come(Handle(1), 0..10));
        assert!(overlaps.come(Handle(2), 10..20));
        assert!(!overlaps.come(Handle(3), 5..15));
        assert!(!overlaps.come(Handle(4), 14..15), "behind one that waits");
        assert!(overlaps.come(Handle(5), 20..21));
        assert_eq!(over(&mut overlaps, 1), []);
        assert_eq!(over(&mut overlaps, 5), []);
        assert_eq!(over(&mut overlaps, 2), [3]);
        assert_eq!(over(&mut overlaps, 9), [], "nobody knows it");
        assert_eq!(over(&mut overlaps, 3), [4]);
        assert_eq!(over(&mut overlaps, 4), []);
        assert!(overlaps.all.is_empty());
    }
}
