//! What the head of a segment names is read back: the root, then its pages, which the replay begins with.
//!
//! ```text
//!   the head's place ─ READ, part behind part ─▶ the root: slots, places ─ READ, several at a time ─▶ pages ─▶ Replay, each as of its own
//! ```
//!
//! All is verified by the card, and once more here: a root has its checksum, and each page says which one it is. What a member does not
//! give is asked of another, until one does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ob_core::{ChunkId, ChunkName, Instant, SegmentName, Units};
use ob_format::volume::metadata::Head;
use ob_format::volume::{
    EntryState, IndexEntry, PAGE_ENTRIES, Page, PagePlace, RECORD_UNITS_MAX, Root, SLOT_END,
};

use super::areas::{LookFor, Looked};
use super::chunks::{ChunkIs, TierChunk};
use super::command::blocks_of;
use super::core::TierCore;
use super::replay::Replay;
use super::segments::SegmentCore;
use crate::wire::Request;

/// Pages that are read at a time.
const PAGES_MAX: usize = 8;
/// How long after nobody has given something it is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// A head that is being read.
#[derive(Debug)]
pub(super) struct Loading {
    attempt: u64,
    head: Head,
    root: Vec<u8>,
    /// Where the next part of the root is.
    next: Units,
    /// Whether the root is there, and of each of its slots the place of the chunk that it names.
    slots: Option<Vec<Option<usize>>>,
    pages: VecDeque<PagePlace>,
    /// With whom each is asked of.
    under_way: BTreeMap<u32, (PagePlace, usize)>,
    /// Index chunks that the head names, by their places.
    chunks: BTreeSet<usize>,
    /// Who is asked next.
    source: usize,
    again: Option<Instant>,
}

/// What was read of a head cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wrong;

impl Loading {
    pub(super) const fn new(attempt: u64, head: Head) -> Self {
        Self {
            attempt,
            head,
            root: Vec::new(),
            next: head.offset,
            slots: None,
            pages: VecDeque::new(),
            under_way: BTreeMap::new(),
            chunks: BTreeSet::new(),
            source: 0,
            again: None,
        }
    }

    pub(super) const fn next_due(&self) -> Option<Instant> {
        self.again
    }

    fn is_whole(&self) -> bool {
        self.slots.is_some() && self.pages.is_empty() && self.under_way.is_empty()
    }

    /// An entry with the place of its chunk among the segment's. One whose chunk has gone since is overwritten by what is replayed: until
    /// then it lies nowhere that there is.
    fn placed(slots: &[Option<usize>], entry: IndexEntry) -> Result<IndexEntry, Wrong> {
        let EntryState::Mapped { offset, units, slot } = entry.state() else { return Ok(entry) };
        let place = slots.get(slot as usize).copied().ok_or(Wrong)?;
        let place = place.map_or(SLOT_END - 1, |place| place as u32);
        IndexEntry::mapped(offset, units, place).ok_or(Wrong)
    }
}

impl SegmentCore {
    /// The place of a chunk by its number, if it is an index chunk that is sealed.
    fn index_chunk(&self, number: ChunkId) -> Option<(usize, &TierChunk)> {
        let is_it = |(_, chunk): &(usize, &TierChunk)| chunk.number == number;
        let (place, chunk) = self.chunks.iter().enumerate().find(is_it)?;
        let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. });
        (is_sealed && chunk.kind == ob_format::volume::ChunkKind::Index).then_some((place, chunk))
    }

    /// The root is whole: which chunks its slots mean, and which pages are to be read.
    fn root_read(&self, name: SegmentName, loading: &mut Loading) -> Result<(), Wrong> {
        let root = Root::decode(&loading.root).map_err(|_| Wrong)?;
        let is_it = root.crc == loading.head.crc && root.summary.head_sequence == loading.head.sequence;
        if !is_it {
            return Err(Wrong);
        }
        let by_number: BTreeMap<ChunkId, usize> =
            self.chunks.iter().enumerate().map(|(place, chunk)| (chunk.number, place)).collect();
        let place_of = |chunk: ChunkName| {
            let place = by_number.get(&chunk.chunk).copied().filter(|_| chunk.segment_name() == name)?;
            let is_dead = matches!(self.chunks.get(place)?.is, ChunkIs::Dead(_) | ChunkIs::Gone);
            (!is_dead).then_some(place)
        };
        let slots = root.slots().map(|slot| slot.and_then(|slot| place_of(slot.chunk))).collect();
        let (at, _) = self.index_chunk(loading.head.chunk).ok_or(Wrong)?;
        loading.chunks.insert(at);
        for place in root.places() {
            loading.chunks.insert(self.index_chunk(place.chunk).ok_or(Wrong)?.0);
            loading.pages.push_back(place);
        }
        loading.slots = Some(slots);
        Ok(())
    }
}

impl TierCore {
    /// How much memory is needed beside the index of a segment while it is replayed.
    pub(super) fn replay_memory_of(&self, name: SegmentName) -> u64 {
        let volume = self.volumes.get(&name.volume).map(|served| served.volume);
        volume.map_or(0, |volume| Replay::memory_of(blocks_of(&volume, name)))
    }

    /// Whether the memory of the index has room for what is kept beside it while the segment is replayed; nothing: not now, since
    /// others are replayed, which wait for servers.
    pub(super) fn replay_fits(&self, name: SegmentName) -> Option<bool> {
        let is_replayed =
            |segment: &SegmentCore| segment.taking.as_ref().is_some_and(super::taking::Taking::is_replayed);
        let others = self.segments.iter().filter(|(of, segment)| **of != name && is_replayed(segment));
        let others: u64 = others.map(|(of, _)| self.replay_memory_of(*of)).sum();
        let needed = self.index_reserved + others + self.replay_memory_of(name);
        (needed <= self.config.index_memory).then_some(true).or((others == 0).then_some(false))
    }

    /// Reads on; `true` if all of the head is there.
    pub(super) fn continue_loading(&mut self, now: Instant, name: SegmentName) -> bool {
        loop {
            let Some(segment) = self.segments.get_mut(&name) else { return false };
            let Some(loading) = segment.taking.as_mut().and_then(|taking| taking.loading.as_mut()) else {
                return true;
            };
            if loading.is_whole() {
                segment.space.head_chunks = loading.chunks.iter().copied().collect();
                self.counts.heads_loaded += 1;
                return true;
            }
            if loading.again.is_some_and(|again| again > now) {
                return false;
            }
            loading.again = None;
            let asked = match loading.slots {
                None if loading.under_way.is_empty() => {
                    // How long its parts are is not known: none is longer than a record.
                    let (chunk, offset) = (loading.head.chunk, loading.next);
                    let place = PagePlace { page: u32::MAX, chunk, offset, stored: u32::MAX };
                    Some(place)
                }
                None => None,
                Some(_) if loading.under_way.len() < PAGES_MAX => loading.pages.pop_front(),
                Some(_) => None,
            };
            let Some(place) = asked else { return false };
            loading.under_way.insert(place.page, (place, loading.source));
            if !self.read_index(name, &place) {
                self.load_later(now, name, place.page);
                return false;
            }
        }
    }

    /// Asks a member for a record of an index chunk.
    fn read_index(&mut self, name: SegmentName, place: &PagePlace) -> bool {
        let Some(segment) = self.segments.get(&name) else { return false };
        let Some(loading) = segment.taking.as_ref().and_then(|taking| taking.loading.as_ref()) else {
            return false;
        };
        let (Some(epoch), Some((_, chunk))) = (segment.epoch(), segment.index_chunk(place.chunk)) else {
            return false;
        };
        let there = self.givers(chunk);
        let Some(server) = there.get(loading.source % there.len().max(1)).copied() else { return false };
        let left = chunk.length.0.saturating_sub(place.offset.0);
        let units = match place.stored {
            u32::MAX => RECORD_UNITS_MAX.0,
            stored => 1 + Units::of_bytes(stored).0,
        };
        let len = units.min(left) * Units::LEN;
        let (of, offset) = (ChunkName::new(name, chunk.number), place.offset);
        let (attempt, page) = (loading.attempt, place.page);
        if len == 0 {
            return false;
        }
        let request = Request::Read { chunk: of, epoch, offset, len };
        self.look(server, LookFor::Head { segment: name, attempt, page }, request);
        true
    }

    /// Nobody gives it now: another member is asked, a little later.
    fn load_later(&mut self, now: Instant, name: SegmentName, page: u32) {
        self.sweep_for_strays(now);
        let segment = self.segments.get_mut(&name);
        let Some(loading) = segment.and_then(|segment| segment.taking.as_mut()?.loading.as_mut()) else {
            return;
        };
        loading.again = Some(now + AGAIN);
        let Some((place, source)) = loading.under_way.remove(&page) else { return };
        if source == loading.source {
            // Of several that were asked of one, the first that it does not give speaks for all.
            loading.source += 1;
        }
        if loading.slots.is_some() {
            loading.pages.push_back(place);
        }
    }

    /// A member has given a record of the index, or has not.
    pub(super) fn index_read(
        &mut self,
        now: Instant,
        (name, attempt, page): (SegmentName, u64, u32),
        looked: Looked<'_>,
    ) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(taking) = &mut segment.taking else { return };
        let is_its = |loading: &mut Loading| loading.attempt == attempt;
        if matches!(looked, Looked::Stale) && taking.loading.as_mut().is_some_and(is_its) {
            return self.segment_stale(now, name, None);
        }
        let Some(mut loading) = taking.loading.take_if(is_its) else { return };
        let read = match looked {
            Looked::Brought { bytes, units, .. } if loading.slots.is_none() => {
                loading.root.extend_from_slice(bytes);
                loading.next = Units(loading.next.0.saturating_add(units));
                loading.under_way.clear();
                let len = loading.head.length as usize;
                match loading.root.len() {
                    so_far if so_far < len => Ok(()),
                    so_far if so_far == len => segment.root_read(name, &mut loading),
                    _ => Err(Wrong),
                }
            }
            Looked::Brought { bytes, .. } => {
                let slots = loading.slots.as_deref().unwrap_or_default();
                let read = page_read(bytes, page, slots).map(|(as_of, entries)| {
                    taking.replay.load(page, as_of, &entries);
                });
                if read.is_ok() {
                    loading.under_way.remove(&page);
                }
                read
            }
            Looked::Stale | Looked::Failed => Err(Wrong),
        };
        if read.is_err() && loading.slots.is_none() {
            // From its beginning: what came may be of another time.
            (loading.root, loading.next) = (Vec::new(), loading.head.offset);
        }
        if let Some(taking) = self.segments.get_mut(&name).and_then(|segment| segment.taking.as_mut()) {
            taking.loading = Some(loading);
            if read.is_ok() {
                taking.moved = now;
            }
        }
        if read.is_err() {
            self.load_later(now, name, page);
        }
        self.continue_taking(now, name);
    }
}

type Entries = [IndexEntry; PAGE_ENTRIES];

/// A page, if it is this one: up to where it has everything, and where its blocks lie.
fn page_read(
    bytes: &[u8],
    number: u32,
    slots: &[Option<usize>],
) -> Result<(ob_core::Sequence, Entries), Wrong> {
    let page = Page::decode(bytes).map_err(|_| Wrong)?;
    if page.page != number {
        return Err(Wrong);
    }
    let mut entries = [IndexEntry::UNMAPPED; PAGE_ENTRIES];
    for (to, entry) in entries.iter_mut().zip(page.entries()) {
        *to = Loading::placed(slots, entry)?;
    }
    Ok((page.as_of, entries))
}
