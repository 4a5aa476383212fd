//! Where the blocks of a segment lie: a page for each 1024 of them, made when one of them is first written.

use std::ops::Range;

use ob_core::Lba;
use ob_format::volume::{EntryState, IndexEntry, PAGE_ENTRIES};

type Page = Box<[IndexEntry; PAGE_ENTRIES]>;

/// The index of a segment.
#[derive(Debug, Default)]
pub(super) struct Index {
    pages: Vec<Option<Page>>,
    mapped: u64,
}

/// Blocks that follow each other and lie in one record, or are all unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) lba: Lba,
    pub(super) blocks: u32,
    pub(super) entry: IndexEntry,
}

const fn place(lba: u32) -> (usize, usize) {
    (lba as usize / PAGE_ENTRIES, lba as usize % PAGE_ENTRIES)
}

impl Index {
    /// Nothing is mapped.
    pub(super) const fn new() -> Self {
        Self { pages: Vec::new(), mapped: 0 }
    }

    /// Bytes that the index of so many blocks has at most.
    pub(super) const fn memory_of(blocks: u64) -> u64 {
        blocks.div_ceil(PAGE_ENTRIES as u64)
            * (size_of::<[IndexEntry; PAGE_ENTRIES]>() + size_of::<Page>()) as u64
    }

    /// Blocks that are mapped.
    pub(super) const fn mapped(&self) -> u64 {
        self.mapped
    }

    fn page(&self, number: usize) -> Option<&Page> {
        self.pages.get(number).and_then(Option::as_ref)
    }

    /// Where a block lies.
    pub(super) fn get(&self, lba: u32) -> IndexEntry {
        let (page, at) = place(lba);
        self.page(page).and_then(|page| page.get(at)).copied().unwrap_or_default()
    }

    /// Puts blocks into a record, or nowhere. Tells where each of them was.
    pub(super) fn put(&mut self, blocks: Range<u32>, entry: IndexEntry, mut was: impl FnMut(IndexEntry)) {
        let mut lba = blocks.start;
        while lba < blocks.end {
            let (number, at) = place(lba);
            let count = (PAGE_ENTRIES - at).min((blocks.end - lba) as usize);
            lba += count as u32;
            // Where there is no page, nothing is mapped.
            if entry.is_unmapped() && self.page(number).is_none() {
                continue;
            }
            if self.pages.len() <= number {
                self.pages.resize_with(number + 1, || None);
            }
            let Some(page) = self.pages.get_mut(number) else { continue };
            let page = page.get_or_insert_with(|| Box::new([IndexEntry::UNMAPPED; PAGE_ENTRIES]));
            for place in page.iter_mut().skip(at).take(count) {
                was(*place);
                self.mapped += u64::from(!entry.is_unmapped());
                self.mapped -= u64::from(!place.is_unmapped());
                *place = entry;
            }
        }
    }

    /// Where those blocks lie whose pages were made.
    pub(super) fn entries(&self) -> impl Iterator<Item = IndexEntry> {
        self.pages.iter().flatten().flat_map(|page| page.iter().copied())
    }

    /// The first page from this one on that has an entry.
    pub(super) fn page_from(&self, first: u32) -> Option<(u32, &[IndexEntry; PAGE_ENTRIES])> {
        let pages = self.pages.iter().enumerate().skip(first as usize);
        let made = pages.filter_map(|(number, page)| Some((number as u32, &**page.as_ref()?)));
        made.into_iter().find(|(_, page)| page.iter().any(|entry| !entry.is_unmapped()))
    }

    /// Whether none of these blocks is mapped.
    pub(super) fn is_unmapped(&self, blocks: &Range<u32>) -> bool {
        let mut lba = blocks.start;
        while lba < blocks.end {
            let (number, at) = place(lba);
            let count = (PAGE_ENTRIES - at).min((blocks.end - lba) as usize);
            lba += count as u32;
            let page = self.page(number);
            if page.is_some_and(|page| page.iter().skip(at).take(count).any(|entry| !entry.is_unmapped())) {
                return false;
            }
        }
        true
    }

    /// The longest stretch that begins the range.
    pub(super) fn stretch(&self, blocks: &Range<u32>) -> Stretch {
        let entry = self.get(blocks.start);
        let mut end = blocks.start + 1;
        while end < blocks.end && self.get(end) == entry {
            end += 1;
        }
        Stretch { lba: Lba(blocks.start), blocks: end - blocks.start, entry }
    }
}

/// The chunk of an entry, by its place among the segment's.
pub(super) const fn chunk_of(entry: IndexEntry) -> Option<usize> {
    match entry.state() {
        EntryState::Mapped { slot, .. } => Some(slot as usize),
        EntryState::Unmapped | EntryState::Lost => None,
    }
}

#[cfg(test)]
mod tests {
    use ob_core::Units;
    use proptest::prelude::*;

    use super::*;

    fn entry(number: u32) -> IndexEntry {
        if number == 0 {
            return IndexEntry::UNMAPPED;
        }
        IndexEntry::mapped(Units(64 + number * 2), Units(2), number).unwrap()
    }

    proptest! {
        /// The index is an array of entries.
        #[test]
        fn blocks_lie_where_they_were_put_last(
            puts in prop::collection::vec((0u32..5000, 1u32..3000, 0u32..4), 1..40),
            looks in prop::collection::vec((0u32..8000, 1u32..3000), 1..20),
        ) {
            let mut index = Index::new();
            let mut array = vec![IndexEntry::UNMAPPED; 16_384];
            for (lba, blocks, number) in puts {
                let mut were = Vec::new();
                index.put(lba..lba + blocks, entry(number), |was| were.push(was));
                let range = lba as usize..(lba + blocks) as usize;
                let mapped = |entries: &[IndexEntry]| entries.iter().filter(|entry| !entry.is_unmapped()).count();
                prop_assert_eq!(mapped(&were), mapped(&array[range.clone()]));
                array[range].fill(entry(number));
                prop_assert_eq!(index.mapped(), mapped(&array) as u64);
            }
            for (lba, blocks) in looks {
                let range = lba..lba + blocks;
                let there = &array[lba as usize..(lba + blocks) as usize];
                prop_assert_eq!(index.is_unmapped(&range), there.iter().all(|entry| entry.is_unmapped()));
                let same = there.iter().take_while(|entry| **entry == there[0]).count() as u32;
                prop_assert_eq!(index.stretch(&range), Stretch { lba: Lba(lba), blocks: same, entry: there[0] });
            }
        }
    }
}
