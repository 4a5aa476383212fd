//! What the one writer does. The argument why it is right is at the top of the crate.

use std::sync::Arc;

use crate::config::{ConfigError, WhenFull};
use crate::memory::Bucket;
use crate::overflow::Overflow;
use crate::placement::{Place, Tag};
use crate::plant::{Bug, is_planted};
use crate::state::{Floor, State};
use crate::sync::{ATTEMPTS, Ordering, SLOTS, fence};
use crate::table::{CHAIN_MAX, Table};
use crate::{Item, Key, Stamp};

/// The one who fills the table.
pub struct TableWriter {
    pub(crate) table: Arc<Table>,
    when_full: WhenFull,
    /// Nothing older is admitted anywhere; what is older in a slot was cleared.
    floor: Stamp,
    /// The greatest stamp of anything that this has filled.
    newest: Stamp,
    /// The next bucket that what was cleared is taken out of; at the end of the table, of none.
    reaped: u32,
    pub(crate) overflow: Overflow,
    pub(crate) tally: Tally,
}

/// Why an entry was not admitted. The request for it goes to the host, as it would have without a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A newer request may have changed the key.
    #[error("a newer request may have changed the key")]
    Stale,
    /// There is no place for it.
    #[error("there is no place for it")]
    Full,
}

/// What a table holds, and what its writer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that can be found now.
    pub entries: u64,
    /// Tombstones now: keys of which the table knows only that they changed.
    pub tombstones: u64,
    /// Overflow buckets in use now.
    pub chained: u64,
    /// Entries admitted.
    pub admitted: u64,
    /// Entries refused because a newer request may have changed the key.
    pub refused_stale: u64,
    /// Entries refused because there was no place.
    pub refused_full: u64,
    /// Entries and tombstones that made room for others.
    pub evicted: u64,
    /// Entries moved to their other bucket to make room.
    pub kicks: u64,
    /// Invalidations that gave up looking; see [`Table::hardened`].
    pub hardened: u64,
}

/// Counted by the writer. Entries go in and out by its hand only; what becomes of them between is the invalidators' count.
/// What was cleared is not counted any more.
#[derive(Default)]
pub(crate) struct Tally {
    occupied: i64,
    valid: i64,
    /// What the invalidators had counted at the last clearing.
    struck_before: u64,
    revived_before: u64,
    admitted: u64,
    refused_stale: u64,
    refused_full: u64,
    evicted: u64,
    pub(crate) kicks: u64,
}

/// A slot: the bucket that keys are hashed to, and the bucket of its chain that the slot is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) main: u32,
    pub(crate) bucket: u32,
    pub(crate) slot: usize,
}

impl TableWriter {
    pub(crate) fn new(table: Arc<Table>, when_full: WhenFull) -> Self {
        let overflow = Overflow::new(&table);
        let (floor, newest, reaped) = (Stamp::ZERO, Stamp::ZERO, table.hashed);
        Self { table, when_full, floor, newest, reaped, overflow, tally: Tally::default() }
    }

    /// The table that this fills.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The writer of another table of the same size, without entries and without floors: for stamps that begin anew, which no floor can
    /// let through that was raised by greater ones. Who has this table has an old one then.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn anew(&self) -> Result<Self, ConfigError> {
        Ok(Self::new(Arc::new(self.table.anew()?), self.when_full))
    }

    /// Lets readers find the item, which the request of that stamp made.
    ///
    /// # Errors
    /// When a newer request may have changed the key, or there is no place; then the table is as if this had not been called,
    /// but for an older item of the key, which may be gone.
    pub fn admit(&mut self, key: &Key, item: &Item, stamp: Stamp) -> Result<(), Refused> {
        let place = self.place(key);
        self.settle(&place);
        self.reap();
        let outcome = self.admit_at(&place, key, item, stamp);
        match outcome {
            Ok(()) => self.tally.admitted += 1,
            Err(Refused::Stale) => self.tally.refused_stale += 1,
            Err(Refused::Full) => self.tally.refused_full += 1,
        }
        outcome
    }

    /// As [`Table::invalidate`], and more exact: where the key is not in the table and there is room, a tombstone keeps
    /// the stamp for it alone.
    pub fn invalidate(&mut self, key: &Key, stamp: Stamp) {
        let place = self.place(key);
        self.settle(&place);
        if let Some(spot) = self.find(&place, key) {
            let tombstone = State::tombstone(stamp);
            let before = self.table.bucket(spot.bucket).strike(spot.slot, tombstone);
            self.table.count_struck(before, tombstone);
            return;
        }
        if stamp <= self.floor_of(&place) {
            return;
        }
        match self.room_for_tombstone(&place, stamp) {
            Some(spot) => self.fill(spot, place.tag, key, &Item::EMPTY, stamp),
            None => self.table.raise_floor(place.first, stamp),
        }
    }

    /// Takes a key's entry out, if there is one, and says whether. An item at least as new can be admitted again.
    pub fn remove(&mut self, key: &Key) -> bool {
        let place = self.place(key);
        self.settle(&place);
        let Some(spot) = self.find(&place, key) else { return false };
        if spot.main == place.second && is_planted(Bug::RemovedStays) {
            self.table.bucket(spot.bucket).strike(spot.slot, State::tombstone(Stamp::MAX));
            return true;
        }
        self.take(spot);
        self.unlink_if_empty(spot.main, spot.bucket);
        true
    }

    /// Takes everything out, and admits nothing older than the stamp from now on.
    ///
    /// With a stamp that is greater than those of all that was admitted, as that of a request that is just being made, this
    /// takes no time: lookups compare with the stamp, and slots are emptied as others need them. Otherwise it touches a cache
    /// line of each bucket.
    pub fn clear(&mut self, stamp: Stamp) {
        self.floor = self.floor.max(stamp);
        self.table.cleared.store(self.floor.number(), Ordering::Release);
        if stamp <= self.newest {
            self.take_all();
        }
        let outside = &self.table.outside;
        self.tally.struck_before = outside.struck.load(Ordering::Relaxed);
        self.tally.revived_before = outside.revived.load(Ordering::Relaxed);
        (self.tally.occupied, self.tally.valid) = (0, 0);
        self.reaped = 0;
    }

    fn take_all(&mut self) {
        for main in 0..self.table.hashed {
            let table = Arc::clone(&self.table);
            for (bucket, entries) in table.chain(main) {
                for slot in (0..SLOTS).filter(|slot| !entries.state(*slot, Ordering::Relaxed).is_free()) {
                    self.take(Spot { main, bucket, slot });
                }
            }
            self.overflow.unlink_all(&table, main);
        }
    }

    /// Takes out what was cleared, of one bucket at a time, so that chains do not stay longer than they need be.
    fn reap(&mut self) {
        if self.reaped >= self.table.hashed {
            return;
        }
        let main = self.reaped;
        self.reaped += 1;
        let table = Arc::clone(&self.table);
        let mut chained = [None; CHAIN_MAX];
        for (at, (bucket, _)) in table.chain(main).enumerate() {
            for spot in (0..SLOTS).map(|slot| Spot { main, bucket, slot }) {
                if self.was_cleared(self.state(spot)) {
                    self.take(spot);
                }
            }
            if let Some(place) = at.checked_sub(1).and_then(|at| chained.get_mut(at)) {
                *place = Some(bucket);
            }
        }
        chained.into_iter().flatten().for_each(|bucket| self.unlink_if_empty(main, bucket));
    }

    /// Whether a slot has what was there when everything was taken out.
    fn was_cleared(&self, state: State) -> bool {
        !state.is_free() && state.stamp() < self.floor
    }

    /// Moves a key's entry to its other bucket, if there is a free slot, and says whether. Admitting does this where it has
    /// to; by itself it is of use to tests.
    pub fn displace(&mut self, key: &Key) -> bool {
        let place = self.table.placement.place(key);
        let Some(from) = self.find(&place, key) else { return false };
        let other = if from.main == place.first { place.second } else { place.first };
        let Some(to) = self.free_slot(other) else { return false };
        self.relocate(from, to);
        true
    }

    /// What the table holds, and what was done. Exact while nobody invalidates.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Tally { occupied, valid, struck_before, revived_before, .. } = self.tally;
        let struck = self.table.outside.struck.load(Ordering::Relaxed) - struck_before;
        let revived = self.table.outside.revived.load(Ordering::Relaxed) - revived_before;
        let entries = valid.saturating_sub_unsigned(struck).max(0);
        let tombstones = occupied.saturating_add_unsigned(revived) - entries;
        Counts {
            entries: entries.unsigned_abs(),
            tombstones: tombstones.max(0).unsigned_abs(),
            chained: self.overflow.used(),
            admitted: self.tally.admitted,
            refused_stale: self.tally.refused_stale,
            refused_full: self.tally.refused_full,
            evicted: self.tally.evicted,
            kicks: self.tally.kicks,
            hardened: self.table.hardened(),
        }
    }

    fn admit_at(&mut self, place: &Place, key: &Key, item: &Item, stamp: Stamp) -> Result<(), Refused> {
        if stamp < self.floor_of(place) {
            return Err(Refused::Stale);
        }
        let spot = match self.find(place, key) {
            Some(spot) => self.take_for_replacement(spot, stamp)?,
            None => self.make_room(place, stamp)?,
        };
        self.fill(spot, place.tag, key, item, stamp);
        // Between publishing and the look at the floors, as an invalidator has one between the floor and its second look.
        fence(Ordering::SeqCst);
        if stamp < self.floor_of(place) && !is_planted(Bug::FloorUnchecked) {
            self.take(spot);
            self.unlink_if_empty(spot.main, spot.bucket);
            return Err(Refused::Stale);
        }
        if self.make_valid(spot, stamp) { Ok(()) } else { Err(Refused::Stale) }
    }

    /// Takes the key's entry out to put a newer one in its place.
    fn take_for_replacement(&mut self, spot: Spot, stamp: Stamp) -> Result<Spot, Refused> {
        let bucket = self.table.bucket(spot.bucket);
        let is_newer = |state: State| state.stamp() > stamp && !is_planted(Bug::StaleReplaces);
        if is_newer(bucket.state(spot.slot, Ordering::Acquire)) {
            return Err(Refused::Stale);
        }
        let old = bucket.take_out(spot.slot);
        if is_newer(old) {
            // An invalidation came between. Nobody else touches a free slot, so the entry can simply be put back; whoever
            // missed it meanwhile has raised the floor.
            bucket.publish(spot.slot, old);
            return Err(Refused::Stale);
        }
        self.count_out(old);
        Ok(spot)
    }

    /// A free slot for an entry, by whatever means.
    fn make_room(&mut self, place: &Place, stamp: Stamp) -> Result<Spot, Refused> {
        if let Some(spot) = self.free_home(place) {
            return Ok(spot);
        }
        for main in place.buckets() {
            if let Some(spot) = self.free_slot(main) {
                return Ok(spot);
            }
        }
        if let Some(spot) = self.displace_for(place) {
            return Ok(spot);
        }
        if let Some(bucket) = self.overflow.link(&self.table, place.first) {
            return Ok(Spot { main: place.first, bucket, slot: 0 });
        }
        // To evict something newer would raise the floor above the very entry that it makes room for.
        let tombstone = self.oldest(place, State::is_tombstone, stamp);
        let victim = match self.when_full {
            WhenFull::Refuse => tombstone,
            WhenFull::Evict => tombstone.or_else(|| self.oldest(place, State::is_valid, stamp)),
        };
        victim.map(|victim| self.evict(victim)).ok_or(Refused::Full)
    }

    fn room_for_tombstone(&mut self, place: &Place, stamp: Stamp) -> Option<Spot> {
        let free = place.buckets().into_iter().find_map(|main| self.free_slot(main));
        free.or_else(|| {
            let tombstone = self.oldest(place, State::is_tombstone, stamp)?;
            Some(self.evict(tombstone))
        })
    }

    /// The slot with the smallest stamp, among those of a kind in both buckets that are not newer than a stamp.
    fn oldest(&self, place: &Place, is_kind: fn(State) -> bool, newest: Stamp) -> Option<Spot> {
        let spots = place.buckets().into_iter().flat_map(|main| self.spots(main));
        let kind = spots.map(|spot| (spot, self.state(spot))).filter(|(_, state)| is_kind(*state));
        let old = kind.map(|(spot, state)| (spot, state.stamp())).filter(|(_, stamp)| *stamp <= newest);
        old.min_by_key(|(_, stamp)| *stamp).map(|(spot, _)| spot)
    }

    /// A slot for which readers ask the memory before they know where the entry is, if it is free.
    fn free_home(&mut self, place: &Place) -> Option<Spot> {
        let slot = place.tag.home();
        let homes = place.buckets().into_iter().map(|main| Spot { main, bucket: main, slot });
        let spot = homes.into_iter().find(|spot| {
            let state = self.state(*spot);
            state.is_free() || self.was_cleared(state)
        })?;
        self.take_if_any(spot);
        Some(spot)
    }

    fn take_if_any(&mut self, spot: Spot) {
        if !self.state(spot).is_free() {
            self.take(spot);
        }
    }

    /// A slot of the bucket or its chain that is free, or can be without losing anything: the floor says as much as the
    /// tombstone in it.
    pub(crate) fn free_slot(&mut self, main: u32) -> Option<Spot> {
        let floor = self.floor.max(self.floor_word(main).stamp());
        let (mut idle, mut cleared) = (None, None);
        for (bucket, entries) in self.table.chain(main) {
            for slot in 0..SLOTS {
                let state = entries.state(slot, Ordering::Relaxed);
                if state.is_free() {
                    return Some(Spot { main, bucket, slot });
                }
                if self.was_cleared(state) {
                    cleared = Some(Spot { main, bucket, slot });
                }
                if state.is_tombstone() && state.stamp() <= floor {
                    idle = Some(Spot { main, bucket, slot });
                }
            }
        }
        if let Some(spot) = cleared {
            self.take(spot);
            return Some(spot);
        }
        idle.map(|spot| self.evict(spot))
    }

    fn evict(&mut self, spot: Spot) -> Spot {
        self.tally.evicted += 1;
        self.take(spot);
        spot
    }

    /// Takes an entry out for good. What it knew, the floor of its bucket knows from now on.
    fn take(&mut self, spot: Spot) {
        let old = self.table.bucket(spot.bucket).take_out(spot.slot);
        self.count_out(old);
        if old.stamp() > self.floor && !is_planted(Bug::EvictionForgets) {
            self.table.raise_floor(spot.main, old.stamp());
        }
    }

    /// Writes a free slot, and publishes it as a tombstone of that stamp.
    fn fill(&mut self, spot: Spot, tag: Tag, key: &Key, item: &Item, stamp: Stamp) {
        let head = self.table.bucket(spot.main);
        let bucket = self.table.bucket(spot.bucket);
        let seq = head.seq.load(Ordering::Relaxed);
        head.seq.store(seq.wrapping_add(1), Ordering::Release);
        fence(Ordering::Release);
        bucket.write(spot.slot, tag, key, item);
        bucket.publish(spot.slot, State::tombstone(stamp));
        head.seq.store(seq.wrapping_add(2), Ordering::Release);
        self.tally.occupied += 1;
        self.newest = self.newest.max(stamp);
    }

    /// Makes an entry valid that was published with this stamp, unless an invalidation came.
    fn make_valid(&mut self, spot: Spot, stamp: Stamp) -> bool {
        let state = &self.table.bucket(spot.bucket).states[spot.slot];
        let (before, after) = (State::tombstone(stamp).0, State::valid(stamp).0);
        let is_made = state.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.tally.valid += i64::from(is_made);
        is_made
    }

    /// Moves an entry to a free slot of its other bucket.
    pub(crate) fn relocate(&mut self, from: Spot, to: Spot) {
        let table = Arc::clone(&self.table);
        let source = table.bucket(from.bucket);
        let before = source.state(from.slot, Ordering::Acquire);
        if self.was_cleared(before) {
            return self.take(from);
        }
        let stamp = before.stamp();
        self.fill(to, source.tag(from.slot), &source.key(from.slot), &source.item(from.slot), stamp);
        // As in `admit_at`, for an invalidator that has given up looking.
        fence(Ordering::SeqCst);
        let mut old = source.take_out(from.slot);
        self.count_out(old);
        self.tally.kicks += 1;
        if is_planted(Bug::MoveForgets) {
            old = before;
        }
        if old.is_tombstone() {
            table.bucket(to.bucket).strike(to.slot, old);
            return;
        }
        let is_stopped = [from.main, to.main].into_iter().any(|main| self.floor_word(main).stops(stamp));
        if !is_stopped || is_planted(Bug::MoveUnchecked) {
            self.make_valid(to, stamp);
        }
    }

    /// Makes hard floors soft again, by taking out what they would stop.
    fn settle(&mut self, place: &Place) {
        for main in place.buckets() {
            for _ in 0..ATTEMPTS {
                let floor = self.floor_word(main);
                if !floor.is_hard() {
                    break;
                }
                let table = Arc::clone(&self.table);
                for (bucket, entries) in table.chain(main) {
                    let is_stopped = |slot: &usize| {
                        let state = entries.state(*slot, Ordering::Acquire);
                        !state.is_free() && state.stamp() < floor.stamp()
                    };
                    for slot in (0..SLOTS).filter(is_stopped) {
                        self.take(Spot { main, bucket, slot });
                    }
                }
                // Whoever raised it meanwhile wants another round.
                let word = &table.bucket(main).floor;
                let soft = floor.softened().0;
                let _ = word.compare_exchange(floor.0, soft, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    fn unlink_if_empty(&mut self, main: u32, bucket: u32) {
        let is_free = |slot| self.table.bucket(bucket).state(slot, Ordering::Relaxed).is_free();
        if bucket != main && (0..SLOTS).all(is_free) {
            self.overflow.unlink(&self.table, main, bucket);
        }
    }

    fn count_out(&mut self, old: State) {
        if !self.was_cleared(old) {
            self.tally.occupied -= 1;
            self.tally.valid -= i64::from(old.is_valid());
        }
    }

    /// Where a key can be; both headers are on their way.
    fn place(&self, key: &Key) -> Place {
        let place = self.table.placement.place(key);
        self.table.prefetch_headers(&place);
        place
    }

    /// The entry of a key, valid or not.
    fn find(&self, place: &Place, key: &Key) -> Option<Spot> {
        place.buckets().into_iter().flat_map(|main| self.spots(main)).find(|spot| {
            let bucket = self.table.bucket(spot.bucket);
            let is_taken = !bucket.state(spot.slot, Ordering::Relaxed).is_free();
            is_taken && bucket.tag(spot.slot) == place.tag && bucket.has_key(spot.slot, key)
        })
    }

    fn spots(&self, main: u32) -> impl Iterator<Item = Spot> + '_ {
        self.table.chain(main).flat_map(move |(bucket, _): (u32, &Bucket)| {
            (0..SLOTS).map(move |slot| Spot { main, bucket, slot })
        })
    }

    fn state(&self, spot: Spot) -> State {
        self.table.bucket(spot.bucket).state(spot.slot, Ordering::Relaxed)
    }

    fn floor_word(&self, main: u32) -> Floor {
        Floor(self.table.bucket(main).floor.load(Ordering::Acquire))
    }

    /// Nothing older is admitted for a key of this place.
    fn floor_of(&self, place: &Place) -> Stamp {
        place.buckets().into_iter().fold(self.floor, |floor, main| floor.max(self.floor_word(main).stamp()))
    }
}
