//! Lookups of several keys: memory is asked for all of them before any is waited for.

use crate::placement::Place;
use crate::plant::{Bug, is_planted};
use crate::sync::{Ordering, fence};
use crate::table::{Candidate, Found, Probe, Table};
use crate::{Hit, Key};

/// How many keys are looked up together; longer batches are cut into these.
pub const BATCH_MAX: usize = 64;

/// Where the keys of a batch can be.
struct Located {
    places: [Place; BATCH_MAX],
    candidates: [Candidate; BATCH_MAX],
}

impl Table {
    /// Looks up each key, as [`Table::lookup`] does, and puts what it finds at the same place of `hits`.
    ///
    /// # Panics
    /// When `hits` is not as long as `keys`.
    pub fn lookup_many(&self, keys: &[Key], hits: &mut [Option<Hit>]) {
        assert_eq!(keys.len(), hits.len(), "every key has a place for its hit");
        for (keys, hits) in keys.chunks(BATCH_MAX).zip(hits.chunks_mut(BATCH_MAX)) {
            let located = self.locate(keys);
            let places = located.places.iter().zip(&located.candidates);
            for ((key, (place, candidate)), hit) in keys.iter().zip(places).zip(hits) {
                // Written to its place at once, from registers: a copy on the way there would be read in larger pieces than
                // it was written in, and wait until everything before it is done, the memory's answers included.
                match self.probe_candidate(*candidate, key) {
                    Some(Probe::Found(found)) => *hit = Some(found.hit),
                    _ => *hit = self.find_with_care(*place, key).map(|found| found.hit),
                }
            }
        }
    }

    /// Looks up all keys at one instant: `true` if all of them were there then, and `hits` has what was found. Otherwise
    /// `false`, and nothing of what is in `hits` may be used. More than [`BATCH_MAX`] keys are never there at once.
    ///
    /// # Panics
    /// When `hits` is not as long as `keys`.
    #[must_use]
    pub fn lookup_all_at_once(&self, keys: &[Key], hits: &mut [Option<Hit>]) -> bool {
        assert_eq!(keys.len(), hits.len(), "every key has a place for its hit");
        if keys.len() > BATCH_MAX {
            return false;
        }
        let located = self.locate(keys);
        let places = located.places.iter().zip(&located.candidates);
        let mut all: [Option<Found>; BATCH_MAX] = [None; BATCH_MAX];
        for (((key, (place, candidate)), hit), found) in keys.iter().zip(places).zip(hits).zip(&mut all) {
            *found = match self.probe_candidate(*candidate, key) {
                Some(Probe::Found(found)) => Some(found),
                _ => self.find_with_care(*place, key),
            };
            *hit = found.map(|found| found.hit);
            if found.is_none() {
                return false;
            }
        }
        // Each was valid when it was found, and still is when it is looked at again: so all were, between the two loops.
        fence(Ordering::Acquire);
        is_planted(Bug::NotAtOnce) || all.iter().flatten().all(|found| self.is_still_valid(found))
    }

    /// Where the keys can be; the lines that a lookup of them will touch are on their way.
    #[inline(always)]
    fn locate(&self, keys: &[Key]) -> Located {
        let mut places = [Place::NOWHERE; BATCH_MAX];
        let mut candidates = [Candidate { main: 0, seq: 0, slot: 0 }; BATCH_MAX];
        for (key, place) in keys.iter().zip(&mut places) {
            *place = self.placement.place(key);
            self.bucket(place.first).prefetch();
        }
        // Most keys lie in their first bucket, and what bounds a batch is how many lines it asks the memory for: so
        // the second header is asked for only where the first does not have the tag.
        let mut left = 0u64;
        for (index, (place, candidate)) in places[..keys.len()].iter().zip(&mut candidates).enumerate() {
            match self.candidate(place.first, place.tag) {
                Some(found) => {
                    self.bucket(found.main).prefetch_slot(found.slot as usize);
                    *candidate = found;
                }
                None => {
                    self.bucket(place.second).prefetch();
                    left |= 1 << index;
                }
            }
        }
        while left != 0 {
            let index = left.trailing_zeros() as usize % BATCH_MAX;
            let place = &places[index];
            if let Some(found) = self.candidate(place.second, place.tag) {
                self.bucket(found.main).prefetch_slot(found.slot as usize);
                candidates[index] = found;
            }
            left &= left - 1;
        }
        Located { places, candidates }
    }
}
