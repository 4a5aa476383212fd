//! The gate: whether this life of the host may still answer, at any port of the card (`docs/volumes-safety.md`, the gate).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ob_core::{GateId, Incarnation, Instant};

use crate::plant::{Bug, is_planted};
use crate::wire;

/// The gate of a card, which all of its ports look at before they answer. Nothing else is theirs together.
///
/// ```text
///   id         0, or the gate that is open: one that was closed never is again
///   open_until when it is late: never, before it was prepared for the first time
/// ```
#[derive(Clone, Debug, Default)]
pub struct SharedGate(Arc<Words>);

#[derive(Debug)]
struct Words {
    id: AtomicU64,
    count: AtomicU32,
    open_until: AtomicU64,
}

impl Default for Words {
    fn default() -> Self {
        Self { id: AtomicU64::new(0), count: AtomicU32::new(0), open_until: AtomicU64::new(NEVER) }
    }
}

const NEVER: u64 = u64::MAX;

impl Words {
    /// The one before is closed before the new one has a deadline, and has it before anybody can have the new one.
    fn open(&self, incarnation: Incarnation) -> GateId {
        let count = self.count.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let id = GateId(incarnation.0 << 32 | u64::from(count));
        self.id.store(0, Ordering::SeqCst);
        self.open_until.store(NEVER, Ordering::SeqCst);
        self.id.store(id.0, Ordering::SeqCst);
        id
    }

    fn is(&self, id: GateId) -> bool {
        self.id.load(Ordering::SeqCst) == id.0 || is_planted(Bug::GateAlone)
    }

    /// Whether this one is open. It is looked at twice: what lies between may be the next one's deadline.
    fn is_open(&self, id: GateId, now: Instant) -> bool {
        self.is(id) && now.nanoseconds() < self.open_until.load(Ordering::SeqCst) && self.is(id)
    }
}

/// The gate of a port's host.
///
/// One that was never prepared has no deadline: its host has no lease that could end. From the first preparation on it is open only
/// until the time that an extension has set.
#[derive(Debug, Default)]
pub(super) struct Gate {
    shared: SharedGate,
    id: Option<GateId>,
    /// The last preparation, and when it was.
    prepared: Option<(u64, Instant)>,
}

impl Gate {
    /// That of a port which has it together with others.
    pub(super) const fn of(shared: SharedGate) -> Self {
        Self { shared, id: None, prepared: None }
    }

    /// A new gate, for a host that has come. The one before is closed for good, at all ports.
    pub(super) fn open(&mut self, incarnation: Incarnation) -> GateId {
        let id = self.shared.0.open(incarnation);
        (self.id, self.prepared) = (Some(id), None);
        id
    }

    /// The gate that another port has given this host; whether it is open still.
    pub(super) fn join(&mut self, id: GateId) -> bool {
        let is_there = self.shared.0.is(id);
        (self.id, self.prepared) = (Some(id).filter(|_| is_there), None);
        is_there
    }

    /// Nothing is answered any more by this one, at any port.
    pub(super) fn close(&mut self) {
        if let Some(id) = self.id.take() {
            let _ = self.shared.0.id.compare_exchange(id.0, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    pub(super) const fn id(&self) -> Option<GateId> {
        self.id
    }

    /// Whether another port has closed it: the host is to begin anew here, too.
    pub(super) fn has_ended(&self) -> bool {
        self.id.is_some_and(|id| !self.shared.0.is(id))
    }

    /// Does as the host says; the number of a preparation that is noted.
    pub(super) fn told(&mut self, now: Instant, gate: wire::Gate) -> Option<u64> {
        let open_until = &self.shared.0.open_until;
        match gate {
            wire::Gate::Prepare { number } => {
                self.prepared = Some((number, now));
                // From now on it has a deadline.
                let _ = open_until.compare_exchange(NEVER, 0, Ordering::SeqCst, Ordering::SeqCst);
                Some(number)
            }
            wire::Gate::Extend { number, milliseconds } => {
                // Of an earlier preparation the time is not known any more.
                let is_its =
                    |(last, _): &(u64, Instant)| *last == number || is_planted(Bug::ExtendedByAnother);
                if let Some((_, noted)) = self.prepared.filter(is_its) {
                    let until = noted + Duration::from_millis(milliseconds.into());
                    open_until.fetch_max(until.nanoseconds(), Ordering::SeqCst);
                }
                None
            }
        }
    }

    /// Whether it is there at all: one that is late lets refusals out, which tell of nothing that another host could have changed.
    pub(super) fn is_there(&self) -> bool {
        self.id.is_some_and(|id| self.shared.0.is(id)) || is_planted(Bug::GateOpen)
    }

    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.id.is_some_and(|id| self.shared.0.is_open(id, now)) || is_planted(Bug::GateOpen)
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

    /// What ends at one port ends at all, and what one is told holds for all.
    #[test]
    fn ports_have_one_gate() {
        let shared = SharedGate::default();
        let (mut one, mut other) = (Gate::of(shared.clone()), Gate::of(shared.clone()));
        let id = one.open(Incarnation(3));
        assert!(!other.join(GateId(id.0 + 1)) && !other.is_there());
        assert!(other.join(id) && other.is_open(at(1)));
        one.told(at(100), wire::Gate::Prepare { number: 1 });
        assert!(!other.is_open(at(100)) && other.is_there() && !other.has_ended(), "it is late");
        one.told(at(150), wire::Gate::Extend { number: 1, milliseconds: 1000 });
        assert!(other.is_open(at(1099)) && !other.is_open(at(1100)));
        other.close();
        assert!(!one.is_open(at(200)) && !one.is_there() && one.has_ended());
        assert!(!other.join(id), "it is closed for good");
        let next = other.open(Incarnation(3));
        assert!(next > id && other.is_open(at(5000)));
        one.close();
        assert!(other.is_open(at(5000)), "the end of an old one closes none");
        assert!(one.join(next) && one.is_open(at(5000)));
        one.open(Incarnation(3));
        assert!(other.has_ended() && !other.is_open(at(1)), "a new one closes the one before");
    }

    /// An answer that two ports are asked for at once is given by no gate that was closed before either looked.
    #[test]
    fn a_gate_is_closed_for_all_threads_at_once() {
        let shared = SharedGate::default();
        let mut main = Gate::of(shared.clone());
        for _ in 0..200 {
            let id = main.open(Incarnation(1));
            let mut port = Gate::of(shared.clone());
            assert!(port.join(id));
            let is_closed = Arc::new(AtomicU32::new(0));
            let seen = Arc::clone(&is_closed);
            let answers = std::thread::spawn(move || {
                loop {
                    let was_closed = seen.load(Ordering::SeqCst) == 1;
                    let is_open = port.is_open(at(1));
                    assert!(!(was_closed && is_open), "it answers by a gate that is closed");
                    if was_closed {
                        return;
                    }
                }
            });
            main.close();
            is_closed.store(1, Ordering::SeqCst);
            main.open(Incarnation(1));
            answers.join().expect("the port's thread ends well");
        }
    }
}
