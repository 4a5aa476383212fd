//! Volumes that are removed: every segment is taken once more, to be emptied, and when there is none left the volume is gone
//! (`docs/volumes-safety.md`, "Compaction and garbage").
//!
//! ```text
//!   Removing ─▶ its segments are let go of ─▶ taken again ─ chunks listed ─▶ Emptying ─ dead, deleted, no key ─▶ no key of the segment
//!      ▲                                                                                                           │
//!      └────────────────────────────── listed once more, every second ─────────────────────────────────────────────┘
//!                                                  └─ none left ─▶ commit: neither volume nor name
//! ```
//!
//! Nothing is replayed and nobody is waited for: what is emptied is answered for by nobody (S1). What a server that was away still has of
//! a volume that is gone goes when it tells of it (G5).

use std::collections::BTreeSet;

use ob_core::{Epoch, Instant, Revision, SegmentName, VolumeId};
use ob_format::volume::metadata::VolumeState;

use super::chunks::ChunkIs;
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::segments::{SegmentCore, Standing};
use super::status::Trouble;
use super::store::{Listing, Phase, Purpose, Then};
use super::taking::Taking;
use crate::metadata::{Change, Expect, KeyValue, MetadataOp, MetadataValue, Name, Value};

/// Segments of removed volumes that are emptied at a time, beside those that this tier had.
const EMPTIED_AT_ONCE: usize = 8;
/// Volumes that servers tell of and nobody here knows, that are asked for at a time; and those that are known to be gone, at most.
const ASKED_MAX: usize = 64;
const GONE_MAX: usize = 4096;

/// Volumes that are gone, and those that are being removed.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// Those of which it is being asked which segments are left, or whether their name is still theirs.
    listing: BTreeSet<VolumeId>,
    /// Those of which servers may still have something.
    gone: BTreeSet<VolumeId>,
    /// Those of which servers tell, and of which it is being asked whether they are gone.
    asked: BTreeSet<VolumeId>,
}

impl TierCore {
    /// Whether a volume is being removed, so that its segments are taken to be emptied.
    pub(super) fn is_removing(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_some_and(|served| served.volume.state == VolumeState::Removing)
    }

    /// A volume is to go.
    pub(super) fn begin_removal(&mut self, now: Instant, id: VolumeId) {
        self.refuse_commands_of(id);
        self.take_segments_anew(now, id);
        if self.store.phase == Phase::Open {
            self.continue_removal(now, id);
        }
    }

    /// What is known of a volume's segments does not count any more.
    pub(super) fn take_segments_anew(&mut self, now: Instant, id: VolumeId) {
        let of = self.segments.iter().filter(|(name, _)| name.volume == id);
        let is_held = |segment: &SegmentCore| match segment.standing {
            Standing::Owned => true,
            // One that is just being taken to be emptied is.
            Standing::Taking => !segment.taking.as_ref().is_some_and(Taking::is_listing),
            // What nobody could answer for can be emptied all the same.
            Standing::Unserved(trouble) => matches!(trouble, Trouble::Impossible | Trouble::NoMemory),
            _ => false,
        };
        let held = of.filter(|(_, segment)| is_held(segment));
        let names: Vec<SegmentName> = held.map(|(name, _)| *name).collect();
        for name in names {
            self.handing.remove(&name);
            self.take_anew(now, name);
        }
    }

    /// All volumes that are being removed go on.
    pub(super) fn continue_removals(&mut self, now: Instant) {
        let ids: Vec<VolumeId> = self.volumes.keys().copied().filter(|id| self.is_removing(*id)).collect();
        for id in ids {
            self.take_segments_anew(now, id);
            self.continue_removal(now, id);
        }
    }

    fn continue_removal(&mut self, _: Instant, id: VolumeId) {
        if self.removals.listing.insert(id) {
            self.list_segments_of(id, Listing::Removes, None);
        }
    }

    /// The store has told which segments of a volume are left: those that nobody lives for are taken, and when there is none the volume goes.
    pub(super) fn left_listed(&mut self, now: Instant, id: VolumeId, entries: &[KeyValue]) {
        self.removals.listing.remove(&id);
        if self.store.phase != Phase::Open || !self.is_removing(id) {
            return;
        }
        let names = entries.iter().filter_map(|entry| match self.config.keys.parse(&entry.key) {
            Some(Name::Segment(name)) => Some(name),
            _ => None,
        });
        let names: Vec<SegmentName> = names.collect();
        if names.is_empty() && entries.is_empty() {
            let Some(volume) = self.volumes.get(&id).map(|served| served.volume) else { return };
            self.removals.listing.insert(id);
            let key = self.config.keys.key(Name::VolumeName(volume.name));
            return self.submit(Purpose::NameOf(id), MetadataOp::Get { key });
        }
        for name in names {
            let emptied = self.segments.keys().filter(|name| self.is_removing(name.volume)).count();
            if emptied >= EMPTIED_AT_ONCE {
                break;
            }
            self.note_segment(name);
            self.want_again(now, name);
        }
    }

    /// Nothing is left of a volume but its record, and its name, if that is its own.
    pub(super) fn name_read(&mut self, id: VolumeId, found: Option<&(Value, Revision)>) {
        self.removals.listing.remove(&id);
        let Some(served) = self.volumes.get(&id).copied().filter(|_| self.is_removing(id)) else { return };
        let key = self.config.keys.key(Name::Volume(id));
        let mut compare = vec![(key.clone(), Expect::At(served.revision))];
        let mut change = vec![Change::Delete { key }];
        let name = Name::VolumeName(served.volume.name);
        if let Some((value, revision)) = found
            && matches!(MetadataValue::decode(&name, value.bytes()), Ok(MetadataValue::VolumeName(of)) if of == id)
        {
            let key = self.config.keys.key(name);
            compare.push((key.clone(), Expect::At(*revision)));
            change.push(Change::Delete { key });
        }
        self.commit_changes(compare, change, Then::VolumeEnded(id));
    }

    /// A volume is gone, or is not as it was known.
    pub(super) fn volume_ended(&mut self, now: Instant, id: VolumeId, revision: Option<Revision>) {
        if revision.is_none() {
            return self.read_volume(id);
        }
        self.counts.volumes_removed += 1;
        self.volume_gone(now, id);
        self.note_gone(now, id);
        self.tell_volumes();
    }

    /// The chunks of a segment are listed that is taken to be emptied.
    pub(super) fn begin_emptying(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.taking = None;
        segment.standing = Standing::Emptying;
        self.space_at.get_or_insert(now);
        self.continue_space(now, name);
    }

    /// If nothing is left of a segment's chunks, the segment has no key any more.
    pub(super) fn end_segment(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let is_empty = segment.chunks.iter().all(|chunk| matches!(chunk.is, ChunkIs::Gone));
        let is_emptied = segment.standing == Standing::Emptying && !segment.is_committing;
        let (true, true, Some(revision)) = (is_empty, is_emptied, segment.revision) else { return };
        segment.is_committing = true;
        let key = self.config.keys.key(Name::Segment(name));
        let compare = vec![(key.clone(), Expect::At(revision))];
        self.commit_changes(compare, vec![Change::Delete { key }], Then::SegmentEnded(name));
    }

    /// A segment has no key any more, or is somebody else's.
    pub(super) fn segment_ended(&mut self, now: Instant, name: SegmentName, revision: Option<Revision>) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.is_committing = false;
        if revision.is_none() {
            return self.lose_segment(name);
        }
        self.forget_segment(name);
        self.continue_removal(now, name.volume);
    }

    fn note_gone(&mut self, now: Instant, id: VolumeId) {
        if self.removals.gone.len() >= GONE_MAX {
            self.removals.gone.pop_first();
        }
        self.removals.gone.insert(id);
        self.sweep_again(now);
    }

    /// A server has a chunk of a volume that this tier does not know: if that is gone, so is the chunk (G5).
    pub(super) fn stray_of_unknown(&mut self, server: usize, chunk: ob_core::ChunkName) {
        if self.removals.gone.contains(&chunk.volume) {
            // Nobody has an epoch of it any more, and nobody will.
            let Some(last) = Epoch::new(Epoch::END - 1) else { return };
            self.counts.strays_deleted += 1;
            return self.delete(server, chunk, last);
        }
        let has_room = self.removals.asked.len() < ASKED_MAX && self.store.phase == Phase::Open;
        if has_room && self.removals.asked.insert(chunk.volume) {
            let key = self.config.keys.key(Name::Volume(chunk.volume));
            self.submit(Purpose::Gone(chunk.volume), MetadataOp::Get { key });
        }
    }

    /// Whether the store has a volume of which a server tells.
    pub(super) fn unknown_read(&mut self, id: VolumeId, found: Option<&(Value, Revision)>) {
        if found.is_some() && !is_planted(Bug::SweepTooEager) {
            self.removals.asked.remove(&id);
            return;
        }
        // One that was never made is of another time of the store, and is left alone.
        let key = self.config.keys.key(Name::Pool);
        self.submit(Purpose::GonePool(id), MetadataOp::Get { key });
    }

    /// Which volumes there ever were.
    pub(super) fn pool_of_unknown_read(
        &mut self,
        now: Instant,
        id: VolumeId,
        found: Option<&(Value, Revision)>,
    ) {
        self.removals.asked.remove(&id);
        let pool = found.map(|(value, _)| MetadataValue::decode(&Name::Pool, value.bytes()));
        let Some(Ok(MetadataValue::Pool(pool))) = pool else { return };
        let is_this = self.pool == Some(pool.pool);
        if is_this && (id.0 < pool.volume_next || is_planted(Bug::SweepTooEager)) {
            self.note_gone(now, id);
        }
    }
}
