//! Volumes, as the store has them: those of a new pool are made with it, and what others change is seen within a second.
//!
//! ```text
//!   no pool ─▶ commit: the pool and its first volumes ─▶ list ─▶ Serve(all that are served) ─ every second ─▶ list ─ something is another ─▶ Serve
//! ```
//!
//! A volume that was removed is never made again: only who makes the pool makes those that are configured.

use std::collections::BTreeSet;
use std::time::Duration;

use ob_core::{Instant, Revision, VolumeId};
use ob_format::volume::metadata::{Volume, VolumeState};
use ob_wire_nvme::Status;

use super::TierAction;
use super::command::NO_NAMESPACE;
use super::core::{ServedVolume, TierCore};
use super::status::Trouble;
use super::store::{Listing, Phase, Purpose};
use crate::metadata::{
    Change, Expect, Key, KeyValue, LIST_MAX, MetadataOp, MetadataValue, Name, Transaction, Value,
};

/// How often it is looked whether somebody else has changed volumes.
pub(super) const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Volumes of the store, while they are listed.
#[derive(Debug, Default)]
pub(super) struct Watch {
    is_under_way: bool,
    seen: BTreeSet<VolumeId>,
    /// Whether what is served is another than was said last.
    is_untold: bool,
}

impl TierCore {
    pub(super) fn list_volumes(&mut self) {
        self.store.phase = Phase::Volumes;
        self.watch.seen.clear();
        self.watch.is_untold = true;
        self.ask_volumes(Listing::Begins, None);
    }

    fn ask_volumes(&mut self, listing: Listing, after: Option<Key>) {
        let prefix = self.config.keys.volumes();
        self.submit(Purpose::Volumes(listing), MetadataOp::List { prefix, after, most: LIST_MAX });
    }

    /// It is looked whether volumes are as they were.
    pub(super) fn watch_volumes(&mut self) {
        if self.store.phase == Phase::Open && !std::mem::replace(&mut self.watch.is_under_way, true) {
            self.watch.seen.clear();
            self.ask_volumes(Listing::Looks, None);
        }
    }

    pub(super) fn volumes_listed(
        &mut self,
        now: Instant,
        listing: Listing,
        entries: Vec<KeyValue>,
        has_more: bool,
    ) {
        let is_beginning = listing == Listing::Begins;
        self.watch.is_under_way &= is_beginning;
        let while_in = if is_beginning { Phase::Volumes } else { Phase::Open };
        if self.store.phase != while_in {
            return;
        }
        let last = entries.last().map(|entry| entry.key.clone());
        for entry in entries {
            let name = self.config.keys.parse(&entry.key);
            let value = name.map(|name| MetadataValue::decode(&name, entry.value.bytes()));
            match (name, value) {
                (Some(Name::Volume(id)), Some(Ok(MetadataValue::Volume(volume)))) => {
                    self.watch.seen.insert(id);
                    self.volume_known(now, id, volume, entry.revision);
                }
                // What another version has put there while this tier serves is for others.
                (Some(Name::Volume(id)), _) if !is_beginning => _ = self.watch.seen.insert(id),
                _ => return self.fail(Trouble::Value),
            }
        }
        if has_more && last.is_some() {
            self.watch.is_under_way = !is_beginning;
            return self.ask_volumes(listing, last);
        }
        // One that this tier has heard of meanwhile may not have been there when the list was made: it is asked for by itself.
        let missing: Vec<VolumeId> =
            self.volumes.keys().copied().filter(|id| !self.watch.seen.contains(id)).collect();
        for id in missing {
            self.read_volume(id);
        }
        self.tell_volumes();
        if is_beginning {
            self.list_segments();
        } else {
            self.store.watch_at = Some(now + WATCH_EVERY);
        }
    }

    /// What is compared and changed to make the volumes that are configured, beside the pool's own record.
    pub(super) fn first_volumes(&self) -> Option<Transaction> {
        let (mut compare, mut change) = (Vec::new(), Vec::new());
        for (id, volume) in &self.config.volumes {
            let values = [
                (Name::Volume(*id), MetadataValue::Volume(*volume)),
                (Name::VolumeName(volume.name), MetadataValue::VolumeName(*id)),
            ];
            for (name, value) in values {
                let key = self.config.keys.key(name);
                compare.push((key.clone(), Expect::Absent));
                change.push(Change::Put { key, value: value.encode().ok()?, session: None });
            }
        }
        Some(Transaction { compare, change })
    }

    /// The store has a volume so, as of a revision.
    pub(super) fn volume_known(&mut self, now: Instant, id: VolumeId, volume: Volume, revision: Revision) {
        let before = self.volumes.get(&id).copied();
        if before.is_some_and(|before| before.revision >= revision) {
            return;
        }
        self.volumes.insert(id, ServedVolume { volume, revision });
        if before.is_some_and(|before| before.volume == volume) {
            return;
        }
        if let Some(before) = before {
            self.namespaces.remove(&before.volume.namespace.0);
        }
        if volume.state == VolumeState::Serving {
            self.namespaces.insert(volume.namespace.0, id);
        }
        self.watch.is_untold = true;
        if volume.state == VolumeState::Removing {
            self.begin_removal(now, id);
        }
    }

    /// Whoever shows disks is told which there are, if that has changed.
    pub(super) fn tell_volumes(&mut self) {
        if !std::mem::take(&mut self.watch.is_untold) {
            return;
        }
        let served = self.volumes.iter().filter(|(_, served)| served.volume.state == VolumeState::Serving);
        let served = served.map(|(id, served)| (*id, served.volume)).collect();
        self.actions.push_back(TierAction::Serve(served));
    }

    /// Whether commands of a volume are answered.
    pub(super) fn is_served(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_some_and(|served| served.volume.state == VolumeState::Serving)
    }

    /// A commit was not met because a volume is not as it was known (S1): nothing of its segments can be taken before that is known.
    pub(super) fn read_volume(&mut self, id: VolumeId) {
        let key = self.config.keys.key(Name::Volume(id));
        self.submit(Purpose::Volume(id), MetadataOp::Get { key });
    }

    /// The store has told what a volume is now.
    pub(super) fn volume_read(&mut self, now: Instant, id: VolumeId, found: Option<&(Value, Revision)>) {
        match found
            .map(|(value, revision)| (MetadataValue::decode(&Name::Volume(id), value.bytes()), *revision))
        {
            // Ids are never used again.
            None => self.volume_gone(now, id),
            Some((Ok(MetadataValue::Volume(volume)), revision)) => {
                self.volume_known(now, id, volume, revision);
            }
            Some(_) => return self.fail(Trouble::Value),
        }
        self.tell_volumes();
    }

    /// A volume is gone, and nobody takes a segment of it again.
    pub(super) fn volume_gone(&mut self, now: Instant, id: VolumeId) {
        if let Some(before) = self.volumes.remove(&id) {
            self.namespaces.remove(&before.volume.namespace.0);
            self.watch.is_untold = true;
        }
        self.refuse_commands_of(id);
        self.take_segments_anew(now, id);
        let volumes = &self.volumes;
        self.overlaps.retain(|id, overlaps| volumes.contains_key(id) || !overlaps.is_empty());
    }

    /// A volume is not served any more: its commands are told so, as soon as nothing of them is under way.
    pub(super) fn refuse_commands_of(&mut self, id: VolumeId) {
        let of = self.commands.iter_mut().filter(|(_, command)| command.volume == id);
        for (handle, command) in of {
            command.fail(NO_NAMESPACE);
            self.ready.push_back(ob_split::wire::Handle(*handle));
        }
    }

    /// What a command is told whose volume is not served.
    pub(super) fn status_of_volume(&self, id: VolumeId) -> Result<(), Status> {
        // A flush of all namespaces is of none.
        if id.0 == 0 || self.is_served(id) { Ok(()) } else { Err(NO_NAMESPACE) }
    }

    /// Segments of all volumes that were ever written to.
    pub(super) fn list_segments(&mut self) {
        self.store.phase = Phase::Segments;
        match self.volumes.keys().next().copied() {
            Some(volume) => self.list_segments_of(volume, Listing::Begins, None),
            None => self.open(),
        }
    }

    pub(super) fn list_segments_of(&mut self, volume: VolumeId, listing: Listing, after: Option<Key>) {
        let prefix = self.config.keys.segments(volume);
        self.submit(Purpose::Segments(volume, listing), MetadataOp::List { prefix, after, most: LIST_MAX });
    }

    pub(super) fn segments_listed(
        &mut self,
        now: Instant,
        (volume, listing): (VolumeId, Listing),
        entries: &[KeyValue],
        has_more: bool,
    ) {
        if listing == Listing::Removes {
            return self.left_listed(now, volume, entries);
        }
        if listing == Listing::Cuts {
            let last = entries.last().filter(|_| has_more).map(|entry| entry.key.clone());
            return self.cuts_listed(now, volume, entries, last);
        }
        let while_in = if listing == Listing::Begins { Phase::Segments } else { Phase::Open };
        if self.store.phase != while_in {
            return;
        }
        for entry in entries {
            match (self.config.keys.parse(&entry.key), listing) {
                (Some(Name::Segment(name)), Listing::Begins) => self.note_segment(name),
                (Some(Name::Segment(name)), Listing::Looks) => {
                    self.note_unowned(name, &entry.value, entry.revision);
                }
                _ => return self.fail(Trouble::Value),
            }
        }
        if let Some(last) = entries.last().filter(|_| has_more) {
            return self.list_segments_of(volume, listing, Some(last.key.clone()));
        }
        let next = (std::ops::Bound::Excluded(volume), std::ops::Bound::Unbounded);
        match (self.volumes.range(next).next().map(|(next, _)| *next), listing) {
            (Some(next), _) => self.list_segments_of(next, listing, None),
            (None, Listing::Looks) => self.take_unowned(now),
            (None, _) => self.open(),
        }
    }
}
