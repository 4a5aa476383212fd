//! Where a file's segments are.
//!
//! ```text
//!   FileMap ── parts, by first logical segment ──▶ Part ── at most RUNS_MAX runs ──▶ (logical, physical, count)
//! ```
//!
//! A part is what one record of the log holds, so that a change to the map of a large, scattered file costs one small
//! record. What no run names is a hole.

use std::collections::BTreeMap;

use ob_format::files::{RUNS_MAX, Run, map_record_len};

/// The sequence of a part that is in no frame yet.
pub(crate) const NOT_LOGGED: u64 = 0;

/// The map of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileMap {
    parts: Vec<Part>,
    segments: u32,
    runs: u32,
    /// The parts that changed since they were logged, by their first segment.
    dirty: Vec<u32>,
}

/// One record's worth of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) first: u32,
    pub(crate) runs: Vec<Run>,
    /// The frame that holds it as it now is.
    pub(crate) home: u64,
}

/// The parts of a map as far as the log is read. A device may name millions, in any order, and cut them as often.
#[derive(Debug, Default)]
pub(crate) struct Parts(BTreeMap<u32, Part>);

/// What lies at a logical segment, and how far that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Mapped { physical: u32, count: u32 },
    Hole { count: u32 },
}

/// Consecutive physical segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) start: u32,
    pub(crate) count: u32,
}

/// What making a hole did to one part of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Punched {
    pub(crate) freed: Vec<Stretch>,
    /// The parts that must go into one frame.
    pub(crate) parts: Vec<u32>,
    /// The segment from which on there may be more to do.
    pub(crate) next: u32,
}

/// Why a map that was read from a device cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// A part reaches into the next.
    #[error("the part of its map at segment {0} overlaps the next one")]
    Overlap(u32),
    /// The first part does not begin at 0.
    #[error("its map begins at segment {0}, not at 0")]
    Start(u32),
}

impl Parts {
    /// A record of the log says that a part is so.
    pub(crate) fn replay(&mut self, part: Part) {
        // Earlier builds cut parts without runs off their maps and not off the log. One that another reaches over was gone by then.
        if let Some(end) = part.runs.last().map(|run| run.logical + run.count) {
            let within = part.first.saturating_add(1)..end.max(part.first.saturating_add(1));
            while let Some((&first, left)) = self.0.range(within.clone()).next()
                && left.runs.is_empty()
            {
                self.0.remove(&first);
            }
        }
        self.0.insert(part.first, part);
    }

    /// A record of the log says that the map ends here.
    pub(crate) fn replay_cut(&mut self, first: u32) {
        self.0.split_off(&first.max(1));
        // Only the last one that is left reaches beyond, unless parts overlap: that is found when the log has been read.
        if let Some(mut last) = self.0.last_entry() {
            last.get_mut().runs.retain_mut(|run| {
                run.count = run.count.min(first.saturating_sub(run.logical));
                run.count > 0
            });
        }
    }
}

/// Not to be used before it is settled.
impl From<Parts> for FileMap {
    fn from(parts: Parts) -> Self {
        Self { parts: parts.0.into_values().collect(), ..Self::default() }
    }
}

impl FileMap {
    /// Segments that the file has.
    pub(crate) fn segments(&self) -> u32 {
        self.segments
    }

    /// Bytes of the records that hold it.
    pub(crate) fn record_bytes(&self) -> u64 {
        let parts = self.parts.len() as u64;
        parts * map_record_len(0) as u64 + u64::from(self.runs) * ob_format::files::RUN_LEN as u64 + parts * 4
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The part that begins at `first`.
    pub(crate) fn part(&self, first: u32) -> Option<&Part> {
        let index = self.parts.binary_search_by_key(&first, |part| part.first).ok()?;
        self.parts.get(index)
    }

    pub(crate) fn part_mut(&mut self, first: u32) -> Option<&mut Part> {
        let index = self.parts.binary_search_by_key(&first, |part| part.first).ok()?;
        self.parts.get_mut(index)
    }

    /// All runs, ascending.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.parts.iter().flat_map(|part| part.runs.iter().copied())
    }

    /// What lies at `logical`.
    pub(crate) fn extent(&self, logical: u32) -> Extent {
        let to_end = Extent::Hole { count: u32::MAX - logical };
        let Some(index) = self.part_index(logical) else { return to_end };
        let runs = &self.parts[index].runs;
        let after = runs.partition_point(|run| run.logical <= logical);
        if let Some(run) = after.checked_sub(1).and_then(|index| runs.get(index)) {
            let within = logical - run.logical;
            if within < run.count {
                return Extent::Mapped { physical: run.physical + within, count: run.count - within };
            }
        }
        let next_here = runs.get(after);
        let next = next_here
            .or_else(|| self.parts[index + 1..].iter().find_map(|part| part.runs.first()))
            .map(|run| run.logical);
        next.map_or(to_end, |next| Extent::Hole { count: next - logical })
    }

    /// The physical segment before `logical`, if it is mapped: what follows it is the best place for `logical`.
    pub(crate) fn physical_before(&self, logical: u32) -> Option<u32> {
        match self.extent(logical.checked_sub(1)?) {
            Extent::Mapped { physical, .. } => Some(physical),
            Extent::Hole { .. } => None,
        }
    }

    /// The segment behind the last one that is mapped.
    pub(crate) fn end(&self) -> u32 {
        let last = self.parts.iter().rev().find_map(|part| part.runs.last());
        last.map_or(0, |run| run.logical + run.count)
    }

    /// Maps a hole. If that splits a part, both halves must go into one frame: then their first segments are given
    /// back.
    pub(crate) fn insert(&mut self, logical: u32, stretch: Stretch) -> Vec<(u32, u32)> {
        let mut splits = Vec::new();
        let (mut logical, mut start, mut left) = (logical, stretch.start, stretch.count);
        while left > 0 {
            if self.parts.is_empty() {
                self.parts.push(Part { first: 0, runs: Vec::new(), home: NOT_LOGGED });
            }
            let index = self.part_index(logical).unwrap_or(0);
            let end = self.parts.get(index + 1).map_or(u32::MAX, |next| next.first);
            let count = left.min(end - logical);
            self.insert_into(index, Run { logical, physical: start, count });
            splits.extend(self.split_if_full(index));
            (logical, start, left) = (logical + count, start + count, left - count);
        }
        self.segments += stretch.count;
        splits
    }

    fn insert_into(&mut self, index: usize, new: Run) {
        let part = &mut self.parts[index];
        if !self.dirty.contains(&part.first) {
            self.dirty.push(part.first);
        }
        let at = part.runs.partition_point(|run| run.logical < new.logical);
        let joins = |left: Run, right: Run| {
            left.logical + left.count == right.logical && left.physical + left.count == right.physical
        };
        let before = at.checked_sub(1).map(|index| part.runs[index]).filter(|before| joins(*before, new));
        let after = part.runs.get(at).copied().filter(|after| joins(new, *after));
        match (before, after) {
            (Some(_), Some(after)) => {
                part.runs[at - 1].count += new.count + after.count;
                part.runs.remove(at);
                self.runs -= 1;
            }
            (Some(_), None) => part.runs[at - 1].count += new.count,
            (None, Some(after)) => {
                part.runs[at] = Run { count: new.count + after.count, ..new };
            }
            (None, None) => {
                part.runs.insert(at, new);
                self.runs += 1;
            }
        }
    }

    fn split_if_full(&mut self, index: usize) -> Option<(u32, u32)> {
        let part = &mut self.parts[index];
        if part.runs.len() <= RUNS_MAX {
            return None;
        }
        // A file that grows at its end leaves full parts behind it.
        let at = if index + 1 == self.parts.len() { RUNS_MAX } else { RUNS_MAX / 2 };
        let part = &mut self.parts[index];
        let right = part.runs.split_off(at);
        let (left_first, right_first) = (part.first, right[0].logical);
        self.parts.insert(index + 1, Part { first: right_first, runs: right, home: NOT_LOGGED });
        self.dirty.push(right_first);
        Some((left_first, right_first))
    }

    /// Ends the map before `first`, and gives back what lay beyond; `None` if there was nothing, not even a part without segments: the
    /// log must not keep one that the map has no more, because the part before it may grow over that place.
    pub(crate) fn cut(&mut self, first: u32) -> Option<Vec<Stretch>> {
        let mut freed = Vec::new();
        let index = self.part_index(first)?;
        let parts_before = self.parts.len();
        let whole_from = if self.parts[index].first == first && first > 0 { index } else { index + 1 };
        for part in self.parts.drain(whole_from..) {
            self.runs -= part.runs.len() as u32;
            freed.extend(part.runs.iter().map(|run| Stretch { start: run.physical, count: run.count }));
        }
        if let Some(part) = self.parts.get_mut(index) {
            let keep = part.runs.partition_point(|run| run.logical < first);
            for run in part.runs.drain(keep..) {
                self.runs -= 1;
                freed.push(Stretch { start: run.physical, count: run.count });
            }
            if let Some(last) = part.runs.last_mut()
                && last.logical + last.count > first
            {
                let kept = first - last.logical;
                freed.push(Stretch { start: last.physical + kept, count: last.count - kept });
                last.count = kept;
            }
        }
        self.segments -= freed.iter().map(|stretch| stretch.count).sum::<u32>();
        let parts = &self.parts;
        self.dirty.retain(|dirty| parts.binary_search_by_key(dirty, |part| part.first).is_ok());
        (!freed.is_empty() || parts.len() < parts_before).then_some(freed)
    }

    /// Makes a hole of the segments from `start` to `end`, in the first part that has any of them.
    pub(crate) fn punch(&mut self, start: u32, end: u32) -> Punched {
        let mut punched = Punched { next: end, ..Punched::default() };
        let first_mapped = match self.extent(start) {
            Extent::Mapped { .. } => start,
            Extent::Hole { count } => start.saturating_add(count),
        };
        let index = self.part_index(first_mapped).filter(|_| first_mapped < end);
        let Some(index) = index else { return punched };
        let end = self.parts.get(index + 1).map_or(end, |next| end.min(next.first));
        let part = &mut self.parts[index];
        let before = part.runs.len() as u32;
        let mut left = Vec::with_capacity(part.runs.len() + 1);
        for run in part.runs.drain(..) {
            let run_end = run.logical + run.count;
            let (from, until) = (run.logical.clamp(start, end), run_end.clamp(start, end));
            if from >= until {
                left.push(run);
                continue;
            }
            punched.freed.push(Stretch { start: run.physical + (from - run.logical), count: until - from });
            if run.logical < from {
                left.push(Run { count: from - run.logical, ..run });
            }
            if until < run_end {
                let physical = run.physical + (until - run.logical);
                left.push(Run { logical: until, physical, count: run_end - until });
            }
        }
        part.runs = left;
        let first = part.first;
        self.runs = self.runs - before + part.runs.len() as u32;
        self.segments -= punched.freed.iter().map(|stretch| stretch.count).sum::<u32>();
        if !self.dirty.contains(&first) {
            self.dirty.push(first);
        }
        punched.parts.push(first);
        punched.parts.extend(self.split_if_full(index).map(|(_, right)| right));
        punched.next = end;
        punched
    }

    /// The parts that changed since this was last asked.
    pub(crate) fn take_dirty(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dirty)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The part is in a frame now.
    pub(crate) fn logged(&mut self, first: u32, home: u64) {
        self.dirty.retain(|dirty| *dirty != first);
        if let Some(part) = self.part_mut(first) {
            part.home = home;
        }
    }

    /// The log is read: checks that parts do not overlap, and counts.
    pub(crate) fn settle(&mut self) -> Result<(), MapError> {
        if let Some(part) = self.parts.first()
            && part.first != 0
        {
            return Err(MapError::Start(part.first));
        }
        for pair in self.parts.windows(2) {
            if pair[0].runs.last().is_some_and(|run| run.logical + run.count > pair[1].first) {
                return Err(MapError::Overlap(pair[0].first));
            }
        }
        self.segments = self.runs().fold(0u32, |sum, run| sum.saturating_add(run.count));
        self.runs = self.parts.iter().map(|part| part.runs.len() as u32).sum();
        Ok(())
    }

    fn part_index(&self, logical: u32) -> Option<usize> {
        self.parts.partition_point(|part| part.first <= logical).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the log makes of a map, and of it cut there.
    fn replayed(map: &FileMap, cut: Option<u32>) -> FileMap {
        let mut parts = Parts::default();
        for part in map.parts() {
            parts.replay(part.clone());
        }
        if let Some(first) = cut {
            parts.replay_cut(first);
        }
        let mut copy = FileMap::from(parts);
        copy.settle().unwrap();
        copy
    }

    proptest! {
        #[test]
        fn a_map_is_like_a_map(steps in prop::collection::vec((0u32..400, 1u32..20, any::<bool>()), 1..300)) {
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            let mut map = FileMap::default();
            let mut log = Parts::default();
            let mut next_physical = 0;
            for (at, count, cut) in steps {
                if cut && count >= 4 {
                    let (mut from, mut freed, end) = (at, Vec::new(), at + 3 * count);
                    while from < end {
                        let punched = map.punch(from, end);
                        prop_assert!(punched.next > from);
                        freed.extend(punched.freed.iter().flat_map(|s| s.start..s.start + s.count));
                        from = punched.next;
                    }
                    let gone: Vec<u32> = (at..end).filter_map(|logical| model.remove(&logical)).collect();
                    prop_assert_eq!(freed, gone);
                } else if cut && count < 3 {
                    let cut = map.cut(at);
                    if cut.is_some() {
                        log.replay_cut(at);
                    }
                    let freed = cut.unwrap_or_default();
                    let mut freed: Vec<u32> = freed.iter().flat_map(|s| s.start..s.start + s.count).collect();
                    freed.sort_unstable();
                    let mut gone: Vec<u32> = model.split_off(&at).into_values().collect();
                    gone.sort_unstable();
                    prop_assert_eq!(freed, gone);
                } else if let Extent::Hole { count: hole } = map.extent(at) {
                    let count = count.min(hole);
                    // Now and then the next stretch continues the last one.
                    next_physical += u32::from(count % 3 == 0);
                    map.insert(at, Stretch { start: next_physical, count });
                    model.extend((0..count).map(|index| (at + index, next_physical + index)));
                    next_physical += count;
                }
                for first in map.take_dirty() {
                    log.replay(map.part(first).unwrap().clone());
                }
                prop_assert_eq!(map.segments() as usize, model.len());
                prop_assert!(map.parts().iter().all(|part| part.runs.len() <= RUNS_MAX));
            }
            prop_assert_eq!(map.end(), model.last_key_value().map_or(0, |(logical, _)| logical + 1));
            for logical in 0..450 {
                let found = match map.extent(logical) {
                    Extent::Mapped { physical, .. } => Some(physical),
                    Extent::Hole { .. } => None,
                };
                prop_assert_eq!(found, model.get(&logical).copied(), "at {}", logical);
            }
            let mut recovered = FileMap::from(log);
            prop_assert_eq!(recovered.settle(), Ok(()));
            prop_assert_eq!(&recovered, &map, "what was logged step by step");
            for cut in [None].into_iter().chain((0..450).step_by(7).map(Some)) {
                let (mut map, copy) = (map.clone(), replayed(&map, cut));
                if let Some(first) = cut {
                    map.cut(first);
                }
                prop_assert_eq!(copy.parts(), map.parts());
                prop_assert_eq!(copy.segments(), map.segments());
                prop_assert_eq!(copy.record_bytes(), map.record_bytes());
            }
        }
    }

    #[test]
    fn growth_at_the_end_is_one_run() {
        let mut map = FileMap::default();
        for index in 0..10_000 {
            map.insert(index, Stretch { start: 7 + index, count: 1 });
        }
        assert_eq!(map.parts().len(), 1);
        assert_eq!(map.runs().collect::<Vec<_>>(), [Run { logical: 0, physical: 7, count: 10_000 }]);
    }

    #[test]
    fn parts_that_reach_into_each_other_are_found() {
        let part = |first, physical, count| Part {
            first,
            runs: vec![Run { logical: first, physical, count }],
            home: 1,
        };
        for cut in [None, Some(10)] {
            let mut parts = Parts::default();
            parts.replay(part(8, 50, 1));
            parts.replay(part(0, 0, 99));
            if let Some(first) = cut {
                parts.replay_cut(first);
            }
            assert_eq!(FileMap::from(parts).settle(), Err(MapError::Overlap(0)));
        }
    }

    #[test]
    fn a_part_without_segments_is_cut_off_the_log_too() {
        let mut map = FileMap::default();
        for index in 0..=RUNS_MAX as u32 {
            map.insert(2 * index, Stretch { start: 2 * index, count: 1 });
        }
        let last = 2 * RUNS_MAX as u32;
        map.punch(last, last + 1);
        assert_eq!(map.parts().len(), 2);
        assert_eq!(map.cut(last), Some(Vec::new()), "nothing is freed, and the log must hear of it");
        assert_eq!(map.cut(last), None);
    }

    #[test]
    fn what_earlier_builds_left_of_a_part_without_segments_is_no_overlap() {
        let part = |first, count| Part {
            first,
            runs: (count > 0).then_some(Run { logical: first, physical: first, count }).into_iter().collect(),
            home: 1,
        };
        for cut in [None, Some(6)] {
            let mut parts = Parts::default();
            for (first, count) in [(4, 0), (8, 0), (10, 0), (12, 3), (0, 10)] {
                parts.replay(part(first, count));
            }
            if let Some(first) = cut {
                parts.replay_cut(first);
            }
            let mut map = FileMap::from(parts);
            assert_eq!(map.settle(), Ok(()));
            let (firsts, segments) = if cut.is_none() { (&[0, 10, 12][..], 13) } else { (&[0][..], 6) };
            assert_eq!(map.parts().iter().map(|part| part.first).collect::<Vec<_>>(), firsts);
            assert_eq!(map.segments(), segments);
        }
    }

    /// With a list of parts that is searched through for each, this would go on for hours.
    #[test]
    fn a_log_that_names_parts_backwards_and_cuts_them_often_is_read_all_the_same() {
        let mut parts = Parts::default();
        for first in (0..500_000).rev() {
            parts.replay(Part { first, runs: Vec::new(), home: 1 });
            parts.replay_cut(u32::MAX);
        }
        assert_eq!(FileMap::from(parts).settle(), Ok(()));
    }
}
