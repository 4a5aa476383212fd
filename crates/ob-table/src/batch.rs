//! Lookups of several keys: memory is asked for all of them before any is waited for.

use crate::placement::Place;
use crate::plant::{Bug, is_planted};
use crate::sync::{Ordering, fence};
use crate::table::{Found, Table};
use crate::{Hit, Key};

/// How many keys are looked up together; longer batches are cut into these.
pub const BATCH_MAX: usize = 64;

impl Table {
    /// Looks up each key, as [`Table::lookup`] does, and puts what it finds at the same place of `hits`.
    ///
    /// # Panics
    /// When `hits` is not as long as `keys`.
    pub fn lookup_many(&self, keys: &[Key], hits: &mut [Option<Hit>]) {
        assert_eq!(keys.len(), hits.len(), "every key has a place for its hit");
        for (keys, hits) in keys.chunks(BATCH_MAX).zip(hits.chunks_mut(BATCH_MAX)) {
            let mut places = [Place::NOWHERE; BATCH_MAX];
            self.locate(keys, &mut places);
            for ((key, place), hit) in keys.iter().zip(&places).zip(hits) {
                *hit = self.find_valid(place, key).map(|found| found.hit);
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
        let mut places = [Place::NOWHERE; BATCH_MAX];
        self.locate(keys, &mut places);
        let mut all: [Option<Found>; BATCH_MAX] = [None; BATCH_MAX];
        for (((key, place), hit), found) in keys.iter().zip(&places).zip(hits).zip(&mut all) {
            *found = self.find_valid(place, key);
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
    #[inline]
    fn locate(&self, keys: &[Key], places: &mut [Place; BATCH_MAX]) {
        for (key, place) in keys.iter().zip(&mut *places) {
            *place = self.placement.place(key);
            self.prefetch_headers(place);
        }
        for place in &places[..keys.len()] {
            for index in [place.first, place.second] {
                let bucket = self.bucket(index);
                for slot in place.tag.matches(bucket.tags.load(Ordering::Relaxed)) {
                    bucket.prefetch_slot(slot);
                }
            }
        }
    }
}
