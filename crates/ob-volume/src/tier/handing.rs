//! Segments that follow their clients: a tier says in the store that it wants one, and its owner hands it over
//! (`docs/volumes-safety.md`, "Taking a segment", step 1, and "Handing over").
//!
//! ```text
//!   this tier wants it:   Wanted ─ its owner lives ─▶ put wanted/V/G ─▶ look at it now and then ─ released, or its owner gone ─▶ taken
//!   another one does:     Owned ─ nothing new begins ─▶ what is under way ends ─▶ chunks are sealed ─▶ Releasing (L9) ─▶ forgotten
//!                           ▲── it took longer than a lease ──┘
//! ```
//!
//! Nobody watches the store: who wants what is asked with each renewal of the session. What nobody owns, and no client asks for, is found by
//! the tier with the lowest number, which looks for that now and then: it may miss replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{ChunkId, Instant, Revision, SegmentName, TierId};
use ob_format::volume::ChunkKind;
use ob_format::volume::metadata::{Segment, SegmentState as Held};

use super::chunks::ChunkIs;
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::is_chunk_named;
use super::segments::{SegmentCore, Standing};
use super::status::Trouble;
use super::store::{LOOK_EVERY, Listing, Phase, Purpose, RETRY, Then};
use crate::metadata::{
    Change, Expect, KeyValue, LIST_MAX, MetadataOp, MetadataValue, Name, Transaction, Value,
};

/// How long an owner has a segment before it hands it over, so that two who want it both get on.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// How often a segment is looked at that another tier has, as long as somebody waits for it here.
const WANTED_AGAIN: Duration = Duration::from_millis(200);

/// What the store has of this tier's wish for a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wish {
    #[default]
    None,
    /// It is being put there.
    Putting,
    /// It is there, as of this revision.
    There(Revision),
}

/// Segments without an owner, as they were when it was looked last.
#[derive(Debug, Default)]
pub(super) struct Unowned {
    /// Tiers that live, while it is looked, and the revisions of what they have put.
    tiers: BTreeMap<TierId, Revision>,
    before: BTreeMap<SegmentName, Revision>,
    now: BTreeMap<SegmentName, Revision>,
    /// Those that were so twice.
    found: Vec<SegmentName>,
}

impl TierCore {
    /// Who owns a segment lives. It is asked for it as long as a command waits here; else nobody here needs to know of it.
    pub(super) fn owner_lives(&mut self, now: Instant, name: SegmentName) {
        let is_asked_for = self.is_asked_for(name);
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if !is_asked_for {
            return self.forget_segment(name);
        }
        (segment.standing, segment.again) = (Standing::Wanted, Some(now + WANTED_AGAIN));
        if segment.wish == Wish::None {
            self.put_wish(name);
        }
    }

    /// It is found again when somebody asks for it.
    pub(super) fn forget_segment(&mut self, name: SegmentName) {
        self.drop_segment(name);
        self.give_index_back(name);
        self.segments.remove(&name);
        self.handing.remove(&name);
        // Another may have waited for the memory.
        self.continue_takings(self.now);
    }

    fn put_wish(&mut self, name: SegmentName) {
        let (Some(session), (tier, ..)) = (self.store.session, self.identity()) else { return };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        segment.wish = Wish::Putting;
        let value = MetadataValue::Wanted(tier).encode();
        let of = Name::Wanted(name);
        self.commit(of, Expect::Absent, Vec::new(), value, Then::Wished(name), Some(session));
    }

    /// The wish is in the store, or another's is. (One that nobody has any more goes when it is seen there.)
    pub(super) fn wished(&mut self, name: SegmentName, revision: Option<Revision>) {
        if let Some(segment) = self.segments.get_mut(&name).filter(|segment| segment.wish == Wish::Putting) {
            segment.wish = revision.map_or(Wish::None, Wish::There);
        }
    }

    /// The session is over, and what it has put there is gone.
    pub(super) fn forget_wishes(&mut self) {
        for segment in self.segments.values_mut() {
            segment.wish = Wish::None;
        }
    }

    /// Asks which segments tiers want, unless that is being asked.
    pub(super) fn ask_wanted(&mut self) {
        if self.store.phase == Phase::Open && !std::mem::replace(&mut self.store.is_asking_wanted, true) {
            self.list_wanted(None);
        }
    }

    fn list_wanted(&mut self, after: Option<crate::metadata::Key>) {
        let prefix = self.config.keys.wanted();
        self.submit(Purpose::Wanted, MetadataOp::List { prefix, after, most: LIST_MAX });
    }

    /// Which segments tiers want.
    pub(super) fn wanted_listed(&mut self, now: Instant, entries: &[KeyValue], has_more: bool) {
        self.store.is_asking_wanted = false;
        if self.store.phase != Phase::Open {
            return;
        }
        let (own, ..) = self.identity();
        for entry in entries {
            let name = self.config.keys.parse(&entry.key);
            let value = name.map(|name| MetadataValue::decode(&name, entry.value.bytes()));
            match (name, value) {
                (Some(Name::Wanted(name)), Some(Ok(MetadataValue::Wanted(tier)))) if tier == own => {
                    self.look_at_wish(name, entry);
                }
                (Some(Name::Wanted(name)), Some(Ok(MetadataValue::Wanted(_)))) => self.asked_for(now, name),
                // What another version has put there is not for this one to judge.
                _ => {}
            }
        }
        if let Some(last) = entries.last().filter(|_| has_more) {
            self.store.is_asking_wanted = true;
            self.list_wanted(Some(last.key.clone()));
        }
    }

    /// A wish of this tier is in the store: if it has the segment, or nobody here asks for it any more, it is taken back.
    fn look_at_wish(&mut self, name: SegmentName, entry: &KeyValue) {
        if let Some(segment) = self.segments.get_mut(&name) {
            let is_before = matches!(segment.standing, Standing::Wanted | Standing::Reading);
            match segment.wish {
                Wish::None if is_before => return segment.wish = Wish::There(entry.revision),
                Wish::There(_) if is_before => return,
                // It goes with the commit that takes the segment; or it is just being put there.
                _ if segment.standing == Standing::Committing => return,
                Wish::Putting if is_before => return,
                _ => segment.wish = Wish::None,
            }
        }
        let compare = vec![(entry.key.clone(), Expect::At(entry.revision))];
        let change = vec![Change::Delete { key: entry.key.clone() }];
        self.commit_changes(compare, change, Then::Nobody);
    }

    /// Another tier wants a segment.
    fn asked_for(&mut self, now: Instant, name: SegmentName) {
        match self.segments.get(&name).map(|segment| (segment.standing, segment.owned_since)) {
            Some((Standing::Owned, since)) => {
                let is_kept = since.is_some_and(|since| now.since(since) < KEPT_FOR);
                if !is_kept && !self.handing.contains_key(&name) {
                    self.handing.insert(name, now + self.config.lease);
                }
            }
            // The store may say that it is this tier's all the same.
            None | Some((Standing::Unserved(Trouble::NoMemory), _)) => {
                let key = self.config.keys.key(Name::Segment(name));
                self.submit(Purpose::Left(name), MetadataOp::Get { key });
            }
            Some(_) => {}
        }
    }

    /// A segment that another tier wants, and of which this one knows nothing: if the store calls it this tier's, it is released.
    pub(super) fn left_read(&mut self, now: Instant, name: SegmentName, found: Option<&(Value, Revision)>) {
        let standing = self.segments.get(&name).map(|segment| segment.standing);
        if !matches!(standing, None | Some(Standing::Unserved(Trouble::NoMemory))) {
            return;
        }
        let Some((value, revision)) = found else { return };
        let decoded = MetadataValue::decode(&Name::Segment(name), value.bytes());
        let Ok(MetadataValue::Segment(record)) = decoded else { return };
        let (tier, ..) = self.identity();
        if record.owner != tier || Some(record.session_revision) != self.store.tier_revision {
            return;
        }
        match record.state {
            Held::Released => {}
            Held::Owned => {
                let record = released_record(&record, record.chunk_next);
                let value = MetadataValue::Segment(record).encode();
                let expect = Expect::At(*revision);
                self.commit(Name::Segment(name), expect, Vec::new(), value, Then::LeftReleased, None);
            }
            // Whoever is waited for is waited for by this tier, and then it is released.
            Held::Taken if standing.is_none() => {
                self.note_segment(name);
                if let Some(segment) = self.segments.get_mut(&name) {
                    segment.again = Some(now);
                }
            }
            Held::Taken | Held::Behind => {}
        }
    }

    /// Whether nothing new of a segment begins, because it is handed over.
    pub(super) fn is_handed_over(&self, name: SegmentName) -> bool {
        self.is_leaving() || self.handing.contains_key(&name)
    }

    pub(super) fn handing_next_due(&self) -> Option<Instant> {
        self.handing.values().min().copied()
    }

    /// Segments that are handed over go on.
    pub(super) fn continue_handing(&mut self, now: Instant) {
        let names: Vec<SegmentName> = self.handing.keys().copied().collect();
        for name in names {
            self.hand_over(now, name);
        }
    }

    fn hand_over(&mut self, now: Instant, name: SegmentName) {
        let Some(until) = self.handing.get(&name).copied() else { return };
        match self.segments.get_mut(&name) {
            Some(segment) if segment.standing == Standing::Owned => {
                if until <= now {
                    // It stays where it is, and others get on with it for a while.
                    segment.owned_since = Some(now);
                    self.handing.remove(&name);
                    self.wake(name);
                    return;
                }
            }
            // It is another's, or taken anew.
            _ => {
                self.handing.remove(&name);
                return;
            }
        }
        if !self.is_still(now, name) {
            return;
        }
        let Some(segment) = self.segments.get(&name) else { return };
        let open = segment.chunks.iter().enumerate();
        let open = open.filter(|(_, chunk)| chunk.is_open() && chunk.kind == ChunkKind::Data);
        for place in open.map(|(place, _)| place).collect::<Vec<_>>() {
            self.close_chunk(now, name, place);
        }
        self.release_if_sealed(name);
    }

    /// Whether nothing of a segment is under way, but for the seals of its chunks. What can be ended is.
    fn is_still(&mut self, now: Instant, name: SegmentName) -> bool {
        if self.is_checkpoint_there(name) {
            self.give_checkpoint_up(name);
            self.continue_checkpoint(now, name);
        }
        self.end_compaction_of(now, name);
        let Some(segment) = self.segments.get_mut(&name) else { return false };
        // What servers have made of them goes when they say so, or is swept.
        segment.openings.retain(|_, opening| opening.is_committing());
        let is_quiet = segment.changes == 0
            && segment.openings.is_empty()
            && !segment.is_committing
            && !segment.wants_adoption
            && segment.chunks.iter().all(|chunk| chunk.changes == 0);
        is_quiet && !self.is_checkpoint_there(name)
    }

    /// If all chunks are sealed, and no plan names any of them, the segment is nobody's from the moment that this is sent (L9).
    fn release_if_sealed(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get(&name) else { return };
        let is_whole = |place: usize, chunk: &super::chunks::TierChunk| {
            let is_sealing =
                chunk.kind == ChunkKind::Data && matches!(chunk.is, ChunkIs::Open | ChunkIs::Closing(_));
            !is_sealing && chunk.unresolved.is_empty() && !is_chunk_named(&self.ports, (name, place))
        };
        let is_ready = segment.chunks.iter().enumerate().all(|(place, chunk)| is_whole(place, chunk));
        let (Some(record), Some(revision)) = (segment.record, segment.revision) else { return };
        // L12: one that was waited for says so in the store before it is given away.
        if !is_ready || segment.is_committing || record.state != Held::Owned {
            return;
        }
        let record = released_record(&record, ChunkId(segment.next_chunk));
        self.drop_repair_of(name);
        // It is not given up any more, however long the store takes.
        self.handing.remove(&name);
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.standing = Standing::Releasing;
        }
        if is_planted(Bug::AnswersAfterRelease) {
            self.keep_on(name);
        }
        let value = MetadataValue::Segment(record).encode();
        let expect = Expect::At(revision);
        self.commit(Name::Segment(name), expect, Vec::new(), value, Then::Released(name), None);
    }

    /// It goes on answering until it hears that it has nothing any more.
    fn keep_on(&mut self, name: SegmentName) {
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.standing = Standing::Owned;
        }
        self.wake(name);
    }

    /// The segment is released, or somebody else's: either way nothing that was known of it counts.
    pub(super) fn released(&mut self, now: Instant, name: SegmentName) {
        self.handing.remove(&name);
        if !self.segments.contains_key(&name) {
            return;
        }
        self.counts.segments_released += 1;
        self.drop_segment(name);
        // Whoever waits for it here asks for it like anybody else.
        self.owner_lives(now, name);
    }

    /// Nobody has a segment. Who wants it comes first.
    pub(super) fn read_wanter(&mut self, name: SegmentName, found: Segment, revision: Revision) {
        let key = self.config.keys.key(Name::Wanted(name));
        let found = Box::new(found);
        self.submit(Purpose::Wanter { name, found, revision }, MetadataOp::Get { key });
    }

    /// Who wants a segment that nobody has.
    pub(super) fn wanter_read(
        &mut self,
        now: Instant,
        name: SegmentName,
        found: &Segment,
        revision: Revision,
        wanter: Option<&(Value, Revision)>,
    ) {
        let wanted = wanter.map(|(value, _)| MetadataValue::decode(&Name::Wanted(name), value.bytes()));
        let (tier, ..) = self.identity();
        match wanted {
            Some(Ok(MetadataValue::Wanted(other))) if other != tier => self.owner_lives(now, name),
            _ => self.put_taken(name, found, revision, None),
        }
    }

    /// It is looked for segments that nobody has, if this is the tier that does.
    pub(super) fn look_for_unowned(&mut self, _: Instant) {
        if self.store.phase == Phase::Open {
            self.unowned.tiers.clear();
            self.list_tiers(None);
        }
    }

    fn list_tiers(&mut self, after: Option<crate::metadata::Key>) {
        let prefix = self.config.keys.tiers();
        self.submit(Purpose::Tiers, MetadataOp::List { prefix, after, most: LIST_MAX });
    }

    /// Which tiers there are. The one with the lowest number looks for what nobody has.
    pub(super) fn tiers_listed(&mut self, now: Instant, entries: &[KeyValue], has_more: bool) {
        if self.store.phase != Phase::Open {
            return;
        }
        for entry in entries {
            if let Some(Name::Tier(tier)) = self.config.keys.parse(&entry.key) {
                self.unowned.tiers.insert(tier, entry.revision);
            }
        }
        if let Some(last) = entries.last().filter(|_| has_more) {
            return self.list_tiers(Some(last.key.clone()));
        }
        let (tier, ..) = self.identity();
        let is_lowest = self.unowned.tiers.keys().next() == Some(&tier);
        if is_lowest {
            self.forget_history(now);
        }
        match self.volumes.keys().next().copied().filter(|_| is_lowest) {
            Some(volume) => self.list_segments_of(volume, Listing::Looks, None),
            None => self.take_unowned(now),
        }
    }

    /// A segment is in the store. If nobody has it, and that was so the last time, it is taken: whoever has clients for it has had time to.
    pub(super) fn note_unowned(&mut self, name: SegmentName, value: &Value, revision: Revision) {
        let Ok(MetadataValue::Segment(record)) = MetadataValue::decode(&Name::Segment(name), value.bytes())
        else {
            return;
        };
        let owner = self.unowned.tiers.get(&record.owner);
        let is_owned = record.state != Held::Released && owner == Some(&record.session_revision);
        if is_owned || self.segments.contains_key(&name) {
            return;
        }
        if self.unowned.before.get(&name) == Some(&revision) {
            self.unowned.found.push(name);
        }
        self.unowned.now.insert(name, revision);
    }

    /// All were looked at.
    pub(super) fn take_unowned(&mut self, now: Instant) {
        self.store.look_at = Some(now + LOOK_EVERY);
        self.unowned.before = std::mem::take(&mut self.unowned.now);
        for name in std::mem::take(&mut self.unowned.found) {
            self.note_segment(name);
            self.want_again(now, name);
        }
    }

    /// A segment that is not looked at is, as soon as that can be.
    pub(super) fn want_again(&mut self, now: Instant, name: SegmentName) {
        let segment = self.segments.get_mut(&name);
        if let Some(segment) = segment.filter(|segment| segment.standing == Standing::Wanted) {
            segment.again = segment.again.or(Some(now));
        }
    }

    /// The commit that takes a segment, and takes this tier's wish for it back.
    pub(super) fn commit_taking(
        &mut self,
        name: SegmentName,
        revision: Revision,
        record: Segment,
        others: Vec<(crate::metadata::Key, Expect)>,
        then: Then,
    ) {
        let Ok(value) = MetadataValue::Segment(record).encode() else { return self.fail(Trouble::Value) };
        let key = self.config.keys.key(Name::Segment(name));
        let mut compare = vec![(key.clone(), Expect::At(revision))];
        compare.extend(others);
        let mut change = vec![Change::Put { key, value, session: None }];
        if let Some(SegmentCore { wish: Wish::There(revision), .. }) = self.segments.get(&name) {
            let key = self.config.keys.key(Name::Wanted(name));
            compare.push((key.clone(), Expect::At(*revision)));
            change.push(Change::Delete { key });
        }
        debug_assert!(Transaction { compare: compare.clone(), change: change.clone() }.check().is_ok());
        self.commit_changes(compare, change, then);
    }

    /// When a segment that another has is looked at again.
    pub(super) fn look_at_wanted_again(&mut self, now: Instant, name: SegmentName) {
        if let Some(segment) = self.segments.get_mut(&name) {
            // Whatever the store had of the wish may be gone.
            segment.wish = Wish::None;
            segment.record = None;
            (segment.standing, segment.again) = (Standing::Wanted, Some(now + RETRY));
        }
    }
}

/// What the store is to have of a segment that is nobody's. Numbers of chunks that were reserved and not used are given back.
fn released_record(record: &Segment, chunk_next: ChunkId) -> Segment {
    Segment { state: Held::Released, wait_ms: 0, chunk_next, ..*record }
}
