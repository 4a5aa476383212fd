//! Who calls its program next: each tenant once, then the next one, as long as it has some of its share of a core left.

use std::collections::VecDeque;

use ob_core::Instant;
use ob_nvme::target::ForeignKey;
use ob_programs::Meter;

use crate::plant::{Bug, is_planted};

/// A tenant's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TurnKey(usize);

/// All who have something to run.
#[derive(Default)]
pub(super) struct Turns {
    places: Vec<Place>,
    /// Tenants with something to run, who is next first.
    order: VecDeque<TurnKey>,
    /// The same, of those who have used their share.
    resting: Vec<TurnKey>,
}

struct Place {
    tenant: String,
    meter: Meter,
    /// Requests whose read is over.
    ready: VecDeque<ForeignKey>,
    /// Controllers that have this place.
    users: usize,
    is_listed: bool,
    /// It has used its share, and has not run since.
    is_waiting: bool,
}

impl Place {
    /// Whether another tenant may have it. What was spent stays with who has spent it until it has come back: a host that
    /// connects anew, or takes its programs out in between, has no more of a core than one that stays.
    fn is_free(&self, now: Instant) -> bool {
        self.users == 0 && !self.is_listed && self.meter.is_rested(now)
    }
}

impl Turns {
    /// The place of a tenant, of which a controller has come.
    pub(super) fn came(&mut self, tenant: &str, share: u32, now: Instant) -> TurnKey {
        let is_kept = |place: &Place| place.users > 0 || !is_planted(Bug::ShareForgotten);
        let known = self.places.iter().position(|place| place.tenant == tenant && is_kept(place));
        if let Some((at, place)) = known.and_then(|at| Some((at, self.places.get_mut(at)?))) {
            place.users += 1;
            return TurnKey(at);
        }
        let place = Place {
            tenant: tenant.to_owned(),
            meter: Meter::new(share),
            ready: VecDeque::new(),
            users: 1,
            is_listed: false,
            is_waiting: false,
        };
        let free = self.places.iter().position(|place| place.is_free(now));
        match free.and_then(|at| self.places.get_mut(at)) {
            Some(old) => *old = place,
            None => self.places.push(place),
        }
        TurnKey(free.unwrap_or(self.places.len() - 1))
    }

    /// A controller of the tenant is gone.
    pub(super) fn left(&mut self, key: TurnKey) {
        if let Some(place) = self.places.get_mut(key.0) {
            place.users = place.users.saturating_sub(1);
        }
    }

    /// A request has something to run.
    pub(super) fn push(&mut self, key: TurnKey, request: ForeignKey) {
        let Some(place) = self.places.get_mut(key.0) else { return };
        place.ready.push_back(request);
        if !place.is_listed {
            place.is_listed = true;
            self.order.push_back(key);
        }
    }

    /// Whose turn it is. Tenants who have to wait are counted, once for each time that they do.
    pub(super) fn next(&mut self, now: Instant, over_share: &mut u64) -> Option<(TurnKey, ForeignKey)> {
        while let Some(key) = self.order.pop_front() {
            let Some(place) = self.places.get_mut(key.0) else { continue };
            if place.ready.is_empty() {
                place.is_listed = false;
                continue;
            }
            if !place.meter.admits(|| now) {
                // It is asked again in every turn, and has waited once.
                if !std::mem::replace(&mut place.is_waiting, true) {
                    *over_share += 1;
                }
                self.resting.push(key);
                continue;
            }
            place.is_waiting = false;
            let request = place.ready.pop_front()?;
            if place.ready.is_empty() {
                place.is_listed = false;
            } else {
                self.order.push_back(key);
            }
            return Some((key, request));
        }
        None
    }

    /// A call has cost so much.
    pub(super) fn spend(&self, key: TurnKey, fuel: u32) {
        if let Some(place) = self.places.get(key.0) {
            place.meter.spend(fuel);
        }
    }

    /// Has those who rested asked again.
    pub(super) fn wake(&mut self) {
        self.order.extend(self.resting.drain(..));
    }

    /// When somebody may run, if nothing happens before.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.order.is_empty() {
            return Some(now);
        }
        let ready_at = |key: &TurnKey| self.places.get(key.0)?.meter.ready_at(now);
        self.resting.iter().filter_map(ready_at).min()
    }
}
