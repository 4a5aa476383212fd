//! The gate: whether this life of the host may still answer (`docs/volumes-safety.md`, the gate).

use std::time::Duration;

use ob_core::{GateId, Incarnation, Instant};

use crate::plant::{Bug, is_planted};
use crate::wire;

/// The gate of a port's host.
///
/// One that was never prepared has no deadline: its host has no lease that could end. From the first preparation on it is open only
/// until the time that an extension has set.
#[derive(Debug, Default)]
pub(super) struct Gate {
    count: u32,
    id: Option<GateId>,
    /// The last preparation, and when it was.
    prepared: Option<(u64, Instant)>,
    open_until: Option<Instant>,
}

impl Gate {
    /// A new gate, for a host that has come. The one before is closed for good.
    pub(super) fn open(&mut self, incarnation: Incarnation) -> GateId {
        self.count += 1;
        let id = GateId(incarnation.0 << 32 | u64::from(self.count));
        (self.id, self.prepared, self.open_until) = (Some(id), None, None);
        id
    }

    /// Nothing is answered any more by this one.
    pub(super) fn close(&mut self) {
        self.id = None;
    }

    /// Does as the host says; the number of a preparation that is noted.
    pub(super) fn told(&mut self, now: Instant, gate: wire::Gate) -> Option<u64> {
        match gate {
            wire::Gate::Prepare { number } => {
                self.prepared = Some((number, now));
                Some(number)
            }
            wire::Gate::Extend { number, milliseconds } => {
                // Of an earlier preparation the time is not known any more.
                let is_its =
                    |(last, _): &(u64, Instant)| *last == number || is_planted(Bug::ExtendedByAnother);
                if let Some((_, noted)) = self.prepared.filter(is_its) {
                    let until = noted + Duration::from_millis(milliseconds.into());
                    self.open_until = self.open_until.max(Some(until));
                }
                None
            }
        }
    }

    /// Whether it is there at all: one that is late lets refusals out, which tell of nothing that another host could have changed.
    pub(super) fn is_there(&self) -> bool {
        self.id.is_some() || is_planted(Bug::GateOpen)
    }

    pub(super) fn is_open(&self, now: Instant) -> bool {
        let in_time = self.prepared.is_none() || self.open_until.is_some_and(|until| now < until);
        (self.id.is_some() && in_time) || is_planted(Bug::GateOpen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanoseconds(milliseconds * 1_000_000)
    }

    #[test]
    fn a_gate_is_open_until_the_last_preparation_plus_what_was_granted() {
        let mut gate = Gate::default();
        assert!(!gate.is_open(at(0)));
        let first = gate.open(Incarnation(3));
        assert_eq!(first, GateId(3 << 32 | 1));
        assert!(gate.is_open(at(1_000_000)), "without preparations there is no deadline");
        assert_eq!(gate.told(at(100), wire::Gate::Prepare { number: 1 }), Some(1));
        assert!(!gate.is_open(at(100)));
        gate.told(at(150), wire::Gate::Extend { number: 1, milliseconds: 1000 });
        assert!(gate.is_open(at(1099)) && !gate.is_open(at(1100)), "from the noted time on");
        gate.told(at(900), wire::Gate::Prepare { number: 2 });
        gate.told(at(950), wire::Gate::Extend { number: 1, milliseconds: 5000 });
        assert!(!gate.is_open(at(1100)), "the first renewal's answer came late");
        gate.told(at(960), wire::Gate::Extend { number: 2, milliseconds: 1000 });
        assert!(gate.is_open(at(1899)) && !gate.is_open(at(1900)));
        gate.close();
        assert!(!gate.is_open(at(1000)));
        assert_ne!(gate.open(Incarnation(3)), first);
        assert!(gate.is_open(at(5000)), "a new one begins anew");
    }
}
