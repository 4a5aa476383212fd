//! What readers and invalidators do. The argument why it is right is at the top of the crate.

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Count;

use crate::config::{ConfigError, TableConfig};
use crate::memory::{Bucket, Buckets};
use crate::placement::{Place, Placement, Tag};
use crate::plant::{Bug, is_planted};
use crate::state::{Floor, State};
use crate::sync::{ATTEMPTS, AtomicU64, Ordering, SLOTS, fence};
use crate::writer::TableWriter;
use crate::{Hit, Key, Stamp};

/// Overflow buckets that can be chained to one bucket. More would make lookups longer than constant.
pub(crate) const CHAIN_MAX: usize = 2;

/// The table, as readers and invalidators share it. [`TableWriter`] fills it.
pub struct Table {
    pub(crate) buckets: Buckets,
    /// Buckets that keys are hashed to; those for chains come behind them.
    pub(crate) hashed: u32,
    pub(crate) placement: Placement,
    /// The stamp of the last clearing: what is older is not there, whatever its slot says.
    pub(crate) cleared: AtomicU64,
    pub(crate) outside: OutsideCounts,
}

/// Counted by threads other than the writer, on a cache line of their own: readers do not pay for it.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct OutsideCounts {
    /// Entries that were valid until an invalidation came.
    pub(crate) struck: Count,
    /// Entries that had been cleared, and are tombstones of a later invalidation.
    pub(crate) revived: Count,
    /// Invalidations that gave up looking.
    pub(crate) hardened: Count,
    #[cfg(loom)]
    gives_up_at_once: std::sync::atomic::AtomicBool,
}

/// A valid entry, and where it was seen.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) hit: Hit,
    main: u32,
    bucket: u32,
    slot: usize,
    seq: u32,
}

/// A slot that may have a key: its tag is the same.
#[derive(Clone, Copy)]
pub(crate) struct Candidate {
    pub(crate) main: u32,
    /// The sequence before the tag was looked at.
    pub(crate) seq: u32,
    pub(crate) slot: u32,
}

pub(crate) enum Probe {
    Found(Found),
    /// The key is not there; the sequence that this holds for.
    Absent(u32),
    /// The writer was at work.
    Torn,
}

enum Strike {
    /// Every entry of the key that there was is older than the stamp no more.
    Struck,
    /// There was no entry of the key.
    Absent,
    /// The writer was at work.
    Unstable,
}

impl Table {
    /// Makes an empty table, and the one writer that it has.
    ///
    /// # Errors
    /// When the configuration cannot be, or there is not so much memory.
    pub fn new(config: TableConfig) -> Result<(Arc<Self>, TableWriter), ConfigError> {
        let config = config.checked()?;
        let placement = Placement::new(config.buckets, config.seed);
        let table = Arc::new(Self::empty(config.buckets + config.overflow, config.buckets, placement)?);
        let writer = TableWriter::new(Arc::clone(&table), config.when_full);
        Ok((table, writer))
    }

    fn empty(buckets: u32, hashed: u32, placement: Placement) -> Result<Self, ConfigError> {
        let (buckets, cleared) = (Buckets::new(buckets)?, AtomicU64::new(0));
        Ok(Self { buckets, hashed, placement, cleared, outside: OutsideCounts::default() })
    }

    /// One of the same size, with the same places for keys.
    pub(crate) fn anew(&self) -> Result<Self, ConfigError> {
        Self::empty(self.buckets.len() as u32, self.hashed, self.placement.clone())
    }

    /// How much memory the buckets take, once all of them were touched.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        size_of_val::<[Bucket]>(&self.buckets) as u64
    }

    /// How many entries have a slot in buckets that keys are hashed to.
    #[must_use]
    pub fn slots(&self) -> u64 {
        u64::from(self.hashed) * SLOTS as u64
    }

    /// The two buckets in which a key can be, the primary one first.
    #[must_use]
    pub fn buckets_of(&self, key: &Key) -> [u32; 2] {
        self.placement.place(key).buckets()
    }

    /// The key's item, if it is there and no invalidation with a greater stamp was complete when this began.
    ///
    /// It never waits. That it finds nothing means nothing: the writer may have been in the way.
    #[inline(always)]
    #[must_use]
    pub fn lookup(&self, key: &Key) -> Option<Hit> {
        let place = self.placement.place(key);
        // All that will be needed is asked for at once: both headers, and the slots where most entries are.
        self.prefetch_headers(&place);
        let home = place.tag.home();
        self.bucket(place.first).prefetch_slot(home);
        self.bucket(place.second).prefetch_slot(home);
        self.find_valid(&place, key).map(|found| found.hit)
    }

    /// Asks the memory for what a lookup of the key will need.
    #[inline(always)]
    pub fn prefetch(&self, key: &Key) {
        let place = self.placement.place(key);
        self.prefetch_headers(&place);
        let home = place.tag.home();
        self.bucket(place.first).prefetch_slot(home);
        self.bucket(place.second).prefetch_slot(home);
    }

    /// From the moment when this returns, no lookup that begins finds an item of the key with a smaller stamp, whatever is
    /// admitted, moved or evicted.
    ///
    /// It never waits and allocates nothing; call it from any thread. Where the key is not in the table, nothing older than
    /// the stamp is admitted to its primary bucket any more, for this key or another: the writer's own
    /// [`TableWriter::invalidate`] is more exact.
    pub fn invalidate(&self, key: &Key, stamp: Stamp) {
        let place = self.placement.place(key);
        self.prefetch_headers(&place);
        let tombstone = State::tombstone(stamp);
        let mut is_floor_raised = false;
        for _ in 0..self.invalidation_attempts() {
            match self.strike(&place, key, tombstone) {
                Strike::Struck => return,
                Strike::Absent if is_floor_raised => return,
                Strike::Absent => {
                    self.raise_floor(place.first, stamp);
                    is_floor_raised = true;
                    if is_planted(Bug::NoSecondLook) {
                        return;
                    }
                    // Between the floor and the second look, as the writer has one between publishing and its look at the
                    // floors: one of the two sees the other.
                    fence(Ordering::SeqCst);
                }
                Strike::Unstable if is_planted(Bug::MovedUnseen) => return,
                Strike::Unstable => {}
            }
        }
        self.outside.hardened.fetch_add(1, Ordering::Relaxed);
        for bucket in place.buckets() {
            self.harden(bucket, stamp);
        }
        fence(Ordering::SeqCst);
        // What the writer published before it could see these floors is seen here; what it moves later stays invalid.
        let _ = self.strike(&place, key, tombstone);
    }

    /// Invalidations that gave up looking, because the writer filled slots of the very buckets each time they looked, and
    /// hardened the floors of both. More than a few in a table's life would be strange.
    #[must_use]
    pub fn hardened(&self) -> u64 {
        self.outside.hardened.load(Ordering::Relaxed)
    }

    #[cfg(not(loom))]
    #[inline]
    fn invalidation_attempts(&self) -> usize {
        ATTEMPTS
    }

    #[cfg(loom)]
    fn invalidation_attempts(&self) -> usize {
        if self.outside.gives_up_at_once.load(Ordering::Relaxed) { 0 } else { ATTEMPTS }
    }

    /// From now on invalidators do not look before they give up: loom would need too many preemptions to get there.
    #[cfg(loom)]
    pub fn give_up_at_once(&self) {
        self.outside.gives_up_at_once.store(true, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn prefetch_headers(&self, place: &Place) {
        self.bucket(place.first).prefetch();
        self.bucket(place.second).prefetch();
    }

    #[inline(always)]
    pub(crate) fn bucket(&self, index: u32) -> &Bucket {
        self.buckets.at(index)
    }

    /// The bucket and those chained to it, with their indices.
    #[inline]
    pub(crate) fn chain(&self, main: u32) -> Chain<'_> {
        Chain { table: self, next: main + 1, left: 1 + CHAIN_MAX }
    }

    #[inline(always)]
    fn find_valid(&self, place: &Place, key: &Key) -> Option<Found> {
        match self.find_at_once(place, key) {
            Some(found) => Some(found),
            None => self.find_with_care(*place, key),
        }
    }

    /// Finds most entries: those in the first slot that has the tag. It is short, and inlined with all that it uses, so that
    /// the processor can be at several lookups while the memory is at the first.
    #[inline(always)]
    fn find_at_once(&self, place: &Place, key: &Key) -> Option<Found> {
        for main in [place.first, place.second] {
            let Some(candidate) = self.candidate(main, place.tag) else { continue };
            if let Some(Probe::Found(found)) = self.probe_candidate(candidate, key) {
                return Some(found);
            }
        }
        None
    }

    /// The first slot of a bucket that has the tag.
    #[inline(always)]
    pub(crate) fn candidate(&self, main: u32, tag: Tag) -> Option<Candidate> {
        let head = self.bucket(main);
        let seq = head.seq.load(Ordering::Acquire);
        let slot = tag.matches(head.tags.load(Ordering::Relaxed)).next()?;
        Some(Candidate { main, seq, slot: slot as u32 })
    }

    #[inline(always)]
    pub(crate) fn probe_candidate(&self, candidate: Candidate, key: &Key) -> Option<Probe> {
        let Candidate { main, seq, slot } = candidate;
        self.probe_slot(main, (main, self.bucket(main)), slot as usize, seq, key)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn find_with_care(&self, place: Place, key: &Key) -> Option<Found> {
        for _ in 0..ATTEMPTS {
            let mut seqs = [0; 2];
            let mut is_torn = false;
            for (seq, main) in seqs.iter_mut().zip(place.buckets()) {
                match self.probe(main, place.tag, key) {
                    Probe::Found(found) => return Some(found),
                    Probe::Absent(seen) => *seq = seen,
                    Probe::Torn => is_torn = true,
                }
            }
            // An entry on its way from the second bucket to the first is easily missed.
            if !is_torn && self.are_unchanged(&place, seqs) {
                return None;
            }
        }
        None
    }

    #[inline]
    fn probe(&self, main: u32, tag: Tag, key: &Key) -> Probe {
        let head = self.bucket(main);
        let seq = head.seq.load(Ordering::Acquire);
        for (index, bucket) in self.chain(main) {
            for slot in tag.matches(bucket.tags.load(Ordering::Relaxed)) {
                if let Some(probe) = self.probe_slot(main, (index, bucket), slot, seq, key) {
                    return probe;
                }
            }
        }
        Probe::Absent(seq)
    }

    /// Looks at one slot; `None` if it has no valid entry of the key.
    #[inline(always)]
    fn probe_slot(
        &self,
        main: u32,
        (index, bucket): (u32, &Bucket),
        slot: usize,
        seq: u32,
        key: &Key,
    ) -> Option<Probe> {
        let state = bucket.state(slot, Ordering::Acquire);
        if !state.is_valid() || self.is_cleared(state.stamp()) || !bucket.has_key(slot, key) {
            return None;
        }
        let item = bucket.item(slot);
        fence(Ordering::Acquire);
        if self.bucket(main).seq.load(Ordering::Relaxed) != seq && !is_planted(Bug::TornRead) {
            return Some(Probe::Torn);
        }
        let hit = Hit { item, stamp: state.stamp() };
        Some(Probe::Found(Found { hit, main, bucket: index, slot, seq }))
    }

    /// Whether an entry is as valid as it was when it was found.
    pub(crate) fn is_still_valid(&self, found: &Found) -> bool {
        let head = self.bucket(found.main);
        let state = self.bucket(found.bucket).state(found.slot, Ordering::Acquire);
        let is_same = head.seq.load(Ordering::Relaxed) == found.seq;
        let is_cleared = self.is_cleared(found.hit.stamp) && !is_planted(Bug::ClearedBetween);
        is_same && state == State::valid(found.hit.stamp) && !is_cleared
    }

    /// Whether an entry of this stamp is older than the last clearing. Asked after the entry's state was loaded: whoever has
    /// seen an entry that was admitted after a clearing sees the clearing.
    #[inline(always)]
    pub(crate) fn is_cleared(&self, stamp: Stamp) -> bool {
        stamp.number() < self.cleared.load(Ordering::Acquire) && !is_planted(Bug::ClearedUnseen)
    }

    #[inline]
    fn are_unchanged(&self, place: &Place, seqs: [u32; 2]) -> bool {
        fence(Ordering::Acquire);
        let now = place.buckets().map(|main| self.bucket(main).seq.load(Ordering::Relaxed));
        now == seqs
    }

    /// Strikes every entry of the key that is in sight.
    fn strike(&self, place: &Place, key: &Key, tombstone: State) -> Strike {
        let mut seqs = [0; 2];
        let (mut is_struck, mut is_lost) = (false, false);
        for (seq, main) in seqs.iter_mut().zip(place.buckets()) {
            *seq = self.bucket(main).seq.load(Ordering::Acquire);
            for (_, bucket) in self.chain(main) {
                // First the states, then the tags: a tag is at least as new as the state that it is taken for.
                let states: [State; SLOTS] =
                    std::array::from_fn(|slot| bucket.state(slot, Ordering::Acquire));
                let tags = bucket.tags.load(Ordering::Acquire);
                for slot in place.tag.matches(tags) {
                    if states[slot].is_free() || !bucket.has_key(slot, key) {
                        continue;
                    }
                    let before = bucket.strike(slot, tombstone);
                    if before.is_free() {
                        is_lost = true;
                    } else {
                        is_struck = true;
                        self.count_struck(before, tombstone);
                    }
                }
            }
        }
        let is_stable = self.are_unchanged(place, seqs);
        match (is_stable && !is_lost, is_struck) {
            (false, _) => Strike::Unstable,
            (true, true) => Strike::Struck,
            (true, false) => Strike::Absent,
        }
    }

    pub(crate) fn count_struck(&self, before: State, tombstone: State) {
        if tombstone.0 >= before.0 {
            return;
        }
        if self.is_cleared(before.stamp()) {
            let is_revived = !self.is_cleared(tombstone.stamp());
            self.outside.revived.fetch_add(u64::from(is_revived), Ordering::Relaxed);
        } else if before.is_valid() {
            self.outside.struck.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets nothing older than the stamp be admitted to a bucket any more.
    pub(crate) fn raise_floor(&self, bucket: u32, stamp: Stamp) {
        let word = &self.bucket(bucket).floor;
        let mut floor = Floor(word.load(Ordering::Relaxed));
        for _ in 0..ATTEMPTS {
            if floor.stamp() >= stamp {
                return;
            }
            let raised = floor.at(stamp);
            match word.compare_exchange(floor.0, raised.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => floor = Floor(now),
            }
        }
        // Others raise it all the time. What is harder than it need be is still right, and takes two steps at most.
        self.harden(bucket, stamp);
    }

    /// As [`Table::raise_floor`]; and nothing older than the stamp that is moved to the bucket, or from it, stays valid.
    fn harden(&self, bucket: u32, stamp: Stamp) {
        let word = &self.bucket(bucket).floor;
        word.fetch_or(Floor::HARD, Ordering::AcqRel);
        word.fetch_max(Floor::hard(stamp).0, Ordering::AcqRel);
    }
}

/// A bucket and those chained to it.
pub(crate) struct Chain<'table> {
    table: &'table Table,
    /// The index of the next one, and 1; or 0.
    next: u32,
    left: usize,
}

impl<'table> Iterator for Chain<'table> {
    type Item = (u32, &'table Bucket);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // The bound is for those who walk a chain while the writer links it anew.
        if self.next == 0 || self.left == 0 {
            return None;
        }
        let index = self.next - 1;
        let bucket = self.table.bucket(index);
        self.left -= 1;
        self.next = bucket.chain.load(Ordering::Acquire);
        Some((index, bucket))
    }
}
