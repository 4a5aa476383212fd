//! What the records of a segment say together: where its blocks lie.
//!
//! Beside each block stands the sequence of what was last applied to it, and only a higher one counts; so chunks may be replayed in any
//! order, their lists are not kept, and nothing is sorted.

use std::ops::Range;

use ob_core::{Sequence, Units};
use ob_format::volume::{Entry, IndexEntry, PAGE_ENTRIES, RecordKind};

use super::index::{Index, chunk_of};

type Page = Box<[Sequence; PAGE_ENTRIES]>;

/// The index of a segment, as it is put together.
#[derive(Debug, Default)]
pub(super) struct Replay {
    index: Index,
    /// What was last applied to each block.
    latest: Vec<Option<Page>>,
    /// Up to where all is in what is not written: the head's, on which nothing stands of it.
    since: Sequence,
}

/// Why an entry of a chunk's list cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impossible;

impl Replay {
    /// All up to a sequence is known: what is not loaded is empty as of it.
    pub(super) fn since(since: Sequence) -> Self {
        Self { since, ..Self::default() }
    }

    /// A page of the head, with everything in it up to a sequence.
    pub(super) fn load(&mut self, number: u32, as_of: Sequence, entries: &[IndexEntry; PAGE_ENTRIES]) {
        let first = number * PAGE_ENTRIES as u32;
        for (at, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.is_unmapped()) {
            let lba = first + at as u32;
            self.index.put(lba..lba + 1, *entry, |_| {});
        }
        let number = number as usize;
        if self.latest.len() <= number {
            self.latest.resize_with(number + 1, || None);
        }
        if let Some(page) = self.latest.get_mut(number) {
            *page = Some(Box::new([as_of; PAGE_ENTRIES]));
        }
    }

    /// A record of the chunk that stands at this place among the segment's: its blocks lie there, or are gone, unless a later record
    /// says otherwise.
    pub(super) fn apply(&mut self, chunk: usize, entry: &Entry, blocks: u64) -> Result<(), Impossible> {
        let (end, place) = Self::check(chunk, entry, blocks)?;
        let mut lba = entry.lba.0;
        while lba < end {
            let newer = self.note(lba..end, entry.sequence);
            if newer > 0 {
                self.index.put(lba..lba + newer, place, |_| {});
            }
            // The next one has something later.
            lba += newer.max(1);
        }
        Ok(())
    }

    /// Where the blocks of a record end, and lie, if there can be such a record in a segment of so many blocks.
    pub(super) fn check(chunk: usize, entry: &Entry, blocks: u64) -> Result<(u32, IndexEntry), Impossible> {
        let end = entry.lba.0.checked_add(entry.blocks).filter(|end| u64::from(*end) <= blocks);
        let end = end.ok_or(Impossible)?;
        let place = match entry.kind {
            RecordKind::Write | RecordKind::Move => {
                let units = Units(entry.end().0.saturating_sub(entry.offset.0));
                let slot = u32::try_from(chunk).map_err(|_| Impossible)?;
                IndexEntry::mapped(entry.offset, units, slot).ok_or(Impossible)?
            }
            RecordKind::Trim => IndexEntry::UNMAPPED,
            RecordKind::Page | RecordKind::Root => return Err(Impossible),
        };
        Ok((end, place))
    }

    /// Bytes that are kept beside the index of so many blocks, until all is applied.
    pub(super) const fn memory_of(blocks: u64) -> u64 {
        let pages = blocks.div_ceil(PAGE_ENTRIES as u64);
        pages * (size_of::<[Sequence; PAGE_ENTRIES]>() + size_of::<Option<Page>>()) as u64
    }

    /// How many blocks at the beginning of a range have nothing later, which from now on have this.
    fn note(&mut self, blocks: Range<u32>, sequence: Sequence) -> u32 {
        let mut lba = blocks.start;
        while lba < blocks.end {
            let (number, at) = (lba as usize / PAGE_ENTRIES, lba as usize % PAGE_ENTRIES);
            let count = (PAGE_ENTRIES - at).min((blocks.end - lba) as usize);
            if self.latest.len() <= number {
                self.latest.resize_with(number + 1, || None);
            }
            let Some(page) = self.latest.get_mut(number) else { break };
            let since = self.since;
            let page = page.get_or_insert_with(|| Box::new([since; PAGE_ENTRIES]));
            for latest in page.iter_mut().skip(at).take(count) {
                if *latest >= sequence {
                    return lba - blocks.start;
                }
                *latest = sequence;
                lba += 1;
            }
        }
        lba - blocks.start
    }

    /// All is applied: the index, and how many blocks lie in each of so many chunks. Nothing, if one lies in none of them.
    pub(super) fn finish(self, chunks: usize) -> Option<(Index, Vec<u64>)> {
        let mut live = vec![0; chunks];
        for entry in self.index.entries() {
            if let Some(chunk) = chunk_of(entry) {
                *live.get_mut(chunk)? += 1;
            }
        }
        Some((self.index, live))
    }
}

#[cfg(test)]
mod tests {
    use ob_core::{Epoch, Lba};
    use ob_format::volume::Encoding;
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 4096;

    fn entry(number: usize, epoch: u32, lba: u32, blocks: u32, is_trim: bool) -> Entry {
        Entry {
            offset: Units(64 + number as u32 * 9),
            stored: if is_trim { 0 } else { 512 },
            sequence: Sequence::new(Epoch::new(epoch).unwrap(), number as u64 + 1).unwrap(),
            lba: Lba(lba),
            blocks,
            kind: if is_trim { RecordKind::Trim } else { RecordKind::Write },
            encoding: Encoding::None,
        }
    }

    proptest! {
        /// In whatever order records are applied, the last one of each block counts.
        #[test]
        fn the_order_of_lists_does_not_matter(
            records in prop::collection::vec((1u32..3, 0u32..3000, 1u32..1200, 0usize..3, any::<bool>()), 1..40),
            shuffle in prop::collection::vec(any::<u32>(), 40),
        ) {
            let mut entries: Vec<(usize, Entry)> = records.iter().enumerate().map(|(number, record)| {
                let &(epoch, lba, blocks, chunk, is_trim) = record;
                (chunk, entry(number, epoch, lba, blocks.min(BLOCKS as u32 - lba), is_trim))
            }).collect();
            let mut array = vec![IndexEntry::UNMAPPED; BLOCKS as usize];
            entries.sort_by_key(|(_, entry)| entry.sequence);
            for (chunk, entry) in &entries {
                let units = Units(entry.end().0 - entry.offset.0);
                let place = match entry.kind {
                    RecordKind::Trim => IndexEntry::UNMAPPED,
                    _ => IndexEntry::mapped(entry.offset, units, *chunk as u32).unwrap(),
                };
                array[entry.lba.0 as usize..(entry.lba.0 + entry.blocks) as usize].fill(place);
            }
            let mut order: Vec<usize> = (0..entries.len()).collect();
            order.sort_by_key(|at| shuffle[*at]);
            let mut replay = Replay::default();
            for at in order {
                replay.apply(entries[at].0, &entries[at].1, BLOCKS).unwrap();
            }
            let (index, live) = replay.finish(3).unwrap();
            for (lba, place) in array.iter().enumerate() {
                prop_assert_eq!(index.get(lba as u32), *place, "block {}", lba);
            }
            for (chunk, live) in live.into_iter().enumerate() {
                let there = array.iter().filter(|place| chunk_of(**place) == Some(chunk)).count();
                prop_assert_eq!(live, there as u64);
            }
        }
    }

    #[test]
    fn what_no_segment_has_is_refused() {
        let mut replay = Replay::default();
        let beyond = entry(0, 1, 4090, 7, false);
        assert_eq!(replay.apply(0, &beyond, BLOCKS), Err(Impossible));
        let page = Entry { kind: RecordKind::Page, ..entry(0, 1, 0, 1, false) };
        assert_eq!(replay.apply(0, &page, BLOCKS), Err(Impossible));
        let wrapping = Entry { lba: Lba(u32::MAX), ..entry(0, 1, 0, 2, true) };
        assert_eq!(replay.apply(0, &wrapping, BLOCKS), Err(Impossible));
        replay.apply(5, &entry(0, 1, 0, 1, false), BLOCKS).unwrap();
        assert!(replay.finish(5).is_none(), "there is no such chunk");
    }
}
