//! Volumes that are made smaller: what lies beyond the new end is forgotten, for good, before the volume may grow again
//! (`docs/volumes-safety.md`, "Compaction and garbage").
//!
//! ```text
//!   the volume's record is another ─▶ changes beyond the end come to theirs (I3) ─▶ the index has nothing there ─▶ checkpoint ─▶ generation
//!                                                                                       all segments have it ─▶ commit: nothing is cut off
//! ```
//!
//! The checkpoint begins when nothing is under way that is older than the cut, so that its head is past every record beyond the end: whoever
//! replays finds none of them. Until all segments have such a head a larger size is refused, or what was cut off would be there again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ob_core::{Instant, Revision, SegmentName, Sequence, VolumeId};
use ob_format::volume::IndexEntry;
use ob_format::volume::metadata::Volume;
use ob_split::wire::Handle;

use super::core::TierCore;
use super::index::chunk_of;
use super::plant::{Bug, is_planted};
use super::segments::{SegmentCore, Standing};
use super::store::{Listing, Phase, Then};
use crate::metadata::{Expect, Key, KeyValue, MetadataValue, Name};

/// Segments of volumes that were cut that are taken for it at a time, beside those that this tier had.
const CUT_AT_ONCE: usize = 8;

/// What is being cut off.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// By segment.
    of: BTreeMap<SegmentName, Cut>,
    /// By the handles that keep blocks until it is their turn.
    cutters: BTreeMap<u32, SegmentName>,
    /// Volumes whose segments are being listed, and whether all so far have the generation.
    listing: BTreeMap<VolumeId, bool>,
    /// Volumes of which it is being said that nothing is cut off any more.
    ending: BTreeSet<VolumeId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    /// Of the volume's record.
    generation: u32,
    /// What lies beyond the end that it says.
    blocks: Range<u32>,
    /// The last sequence that anything had when the index lost what is beyond; nothing before that.
    cleared: Option<Sequence>,
}

impl Cuts {
    /// Whether blocks of a segment may be in its head still that its index has no more.
    pub(super) fn is_under_way(&self, name: SegmentName) -> bool {
        self.of.contains_key(&name)
    }
}

/// Whether what was begun in a segment counts: it is owned, or is being kept by a new session. (If it is not kept, it is dropped with all that
/// was begun.)
fn keeps_cuts(segment: &SegmentCore) -> bool {
    matches!(segment.standing, Standing::Owned | Standing::Committing)
}

/// Blocks of a segment that are beyond the end of its volume.
fn beyond(volume: &Volume, name: SegmentName) -> Range<u32> {
    let blocks = volume.segment_blocks();
    let first = super::command::blocks_of(volume, name);
    first.min(blocks) as u32..blocks as u32
}

impl SegmentCore {
    /// Blocks lie nowhere any more, though no record says so.
    pub(super) fn clear(&mut self, blocks: Range<u32>) {
        let chunks = &mut self.chunks;
        self.index.put(blocks, IndexEntry::UNMAPPED, |was| {
            if let Some(from) = chunk_of(was).and_then(|from| chunks.get_mut(from)) {
                from.live -= 1;
            }
        });
    }
}

impl TierCore {
    /// All volumes that were cut go on.
    pub(super) fn continue_cuts(&mut self, now: Instant) {
        self.forget_cuts();
        let cut = self.volumes.iter().filter(|(_, served)| served.volume.cut_from.is_some());
        let ids: Vec<VolumeId> = cut.map(|(id, _)| *id).filter(|id| self.is_served(*id)).collect();
        for id in ids {
            let owned = self.segments.iter().filter(|(name, segment)| {
                name.volume == id && segment.standing == Standing::Owned && !segment.wants_adoption
            });
            let names: Vec<SegmentName> = owned.map(|(name, _)| *name).collect();
            for name in names {
                self.cut_segment(now, name);
            }
            if !self.cuts.listing.contains_key(&id) && !self.cuts.ending.contains(&id) {
                self.cuts.listing.insert(id, true);
                self.list_segments_of(id, Listing::Cuts, None);
            }
        }
    }

    /// What was begun in segments that are not this tier's any more is nothing.
    fn forget_cuts(&mut self) {
        let segments = &self.segments;
        let is_kept = |name: &SegmentName| segments.get(name).is_some_and(keeps_cuts);
        self.cuts.of.retain(|name, _| is_kept(name));
        let cuts = &self.cuts.of;
        let over = self.cuts.cutters.iter().filter(|(_, name)| !cuts.contains_key(name));
        let over: Vec<(u32, SegmentName)> = over.map(|(handle, name)| (*handle, *name)).collect();
        for (handle, name) in over {
            self.cuts.cutters.remove(&handle);
            self.blocks_free(name.volume, Handle(handle));
        }
    }

    /// Nothing is known of a segment any more.
    pub(super) fn drop_cut(&mut self, name: SegmentName) {
        self.cuts.of.remove(&name);
        let cutters = self.cuts.cutters.iter().filter(|(_, of)| **of == name).map(|(handle, _)| *handle);
        for cutter in cutters.collect::<Vec<_>>() {
            self.cuts.cutters.remove(&cutter);
            self.blocks_free(name.volume, Handle(cutter));
        }
    }

    /// The port is closed: nothing that was under way is heard of again.
    pub(super) fn end_cuts(&mut self) {
        (self.cuts.of, self.cuts.cutters) = (BTreeMap::new(), BTreeMap::new());
    }

    fn cut_segment(&mut self, now: Instant, name: SegmentName) {
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return };
        let Some(record) = self.segments.get(&name).and_then(|segment| segment.record) else { return };
        let is_begun = self.cuts.of.get(&name).is_some_and(|cut| cut.generation == volume.generation);
        if record.generation == volume.generation || is_begun {
            return;
        }
        if beyond(&volume, name).is_empty() {
            return self.put_generation(name, volume.generation);
        }
        // An earlier one has waited for less than what is beyond the end by now.
        self.drop_cut(name);
        let blocks = beyond(&volume, name);
        let cut = Cut { generation: volume.generation, blocks: blocks.clone(), cleared: None };
        self.cuts.of.insert(name, cut);
        let before = volume.segment_blocks() * u64::from(name.segment.0);
        let blocks = before + u64::from(blocks.start)..before + u64::from(blocks.end);
        let cutter = self.free_keeper();
        self.cuts.cutters.insert(cutter.0, name);
        if self.overlaps.entry(name.volume).or_default().come(cutter, blocks) {
            self.cut_off(now, cutter);
        }
    }

    /// Whether a number is of one that cuts.
    pub(super) fn is_cutter(&self, handle: Handle) -> bool {
        self.cuts.cutters.contains_key(&handle.0)
    }

    /// Nothing is under way beyond the end: the index has nothing there any more.
    pub(super) fn cut_off(&mut self, now: Instant, cutter: Handle) {
        let Some(name) = self.cuts.cutters.remove(&cutter.0) else { return };
        self.blocks_free(name.volume, cutter);
        let Some(segment) = self.segments.get_mut(&name).filter(|segment| keeps_cuts(segment)) else {
            return;
        };
        let Some(cut) = self.cuts.of.get_mut(&name) else { return };
        segment.clear(cut.blocks.clone());
        cut.cleared = segment.last_given();
        self.continue_checkpoint(now, name);
    }

    /// Whether a checkpoint is to begin because of a cut, and which generation its head has then.
    pub(super) fn cut_to_write(&self, name: SegmentName) -> Option<u32> {
        let cut = self.cuts.of.get(&name)?;
        let floor = self.segments.get(&name)?.floor()?;
        // What is older than the cut would be replayed by whoever begins with that head.
        (cut.cleared? <= floor || is_planted(Bug::CutReplayed)).then_some(cut.generation)
    }

    /// A head is in the store that has nothing beyond the end.
    pub(super) fn cut_written(&mut self, name: SegmentName, generation: u32) {
        self.cuts.of.retain(|of, cut| *of != name || cut.generation != generation);
    }

    /// Nothing of a segment is beyond the end.
    fn put_generation(&mut self, name: SegmentName, generation: u32) {
        let Some(segment) = self.segments.get_mut(&name).filter(|segment| !segment.is_committing) else {
            return;
        };
        let (Some(record), Some(revision)) = (&mut segment.record, segment.revision) else { return };
        record.generation = generation;
        segment.is_committing = true;
        let value = MetadataValue::Segment(*record).encode();
        self.commit(Name::Segment(name), Expect::At(revision), Vec::new(), value, Then::Reserved(name), None);
    }

    /// The store has told segments of a volume that was cut: those that nobody has are taken; when all have the generation, nothing is cut
    /// off any more.
    pub(super) fn cuts_listed(
        &mut self,
        now: Instant,
        id: VolumeId,
        entries: &[KeyValue],
        more: Option<Key>,
    ) {
        let Some(is_cut) = self.cuts.listing.remove(&id) else { return };
        let Some(served) = self.volumes.get(&id).copied().filter(|_| self.is_served(id)) else { return };
        if self.store.phase != Phase::Open || served.volume.cut_from.is_none() {
            return;
        }
        let mut left = Vec::new();
        for entry in entries {
            let name = self.config.keys.parse(&entry.key);
            let record = name.map(|name| MetadataValue::decode(&name, entry.value.bytes()));
            match (name, record) {
                (Some(Name::Segment(_)), Some(Ok(MetadataValue::Segment(record))))
                    if record.generation == served.volume.generation => {}
                (Some(Name::Segment(name)), _) => left.push(name),
                _ => return,
            }
        }
        let is_cut = is_cut && (left.is_empty() || is_planted(Bug::CutForgotten));
        let taken = left.into_iter().filter(|name| !self.segments.contains_key(name)).take(CUT_AT_ONCE);
        for name in taken.collect::<Vec<_>>() {
            self.note_segment(name);
            self.want_again(now, name);
        }
        if more.is_some() {
            self.cuts.listing.insert(id, is_cut);
            return self.list_segments_of(id, Listing::Cuts, more);
        }
        if !is_cut {
            return;
        }
        self.cuts.ending.insert(id);
        let generation = served.volume.generation.saturating_add(1);
        let whole = Volume { cut_from: None, generation, ..served.volume };
        let value = MetadataValue::Volume(whole).encode();
        let expect = Expect::At(served.revision);
        self.commit(Name::Volume(id), expect, Vec::new(), value, Then::CutEnded(id), None);
    }

    /// The volume's record says that nothing is cut off, or is another.
    pub(super) fn cut_ended(&mut self, id: VolumeId, _: Option<Revision>) {
        self.cuts.ending.remove(&id);
        self.read_volume(id);
    }
}
