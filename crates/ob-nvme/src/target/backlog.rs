//! Operations that devices have no room for yet.
//!
//! ```text
//!   submit ─▶ │ backend 0: ops … │ long … │ ─▶ next ─▶ device        refused: back to the front, until something is done
//!             │ backend 1: ops … │ long … │
//! ```
//!
//! They are kept here and not with the devices, so that a command can still be taken back: those of connections that end
//! are, and what they leave behind is no more than what a device has taken. Backends take turns, so a slow one holds
//! nobody up. Giving space back and writing zeros can keep a device busy for long: a backend gets one of those at a time,
//! and other commands do not wait behind them.

use std::collections::{BTreeMap, VecDeque};

use ob_core::DeviceOp;

use super::control::BackendId;
use super::flight::FlightKey;

/// Backends that are remembered with the room that their lists took.
const BACKENDS_KEPT: usize = 64;

/// All that waits.
#[derive(Default)]
pub(super) struct Backlog {
    backends: BTreeMap<BackendId, Waiting>,
    /// Backends that have something and may take it.
    ready: VecDeque<BackendId>,
    /// Backends that had no room lately.
    full: Vec<BackendId>,
    len: usize,
}

#[derive(Default)]
struct Waiting {
    ops: VecDeque<(FlightKey, DeviceOp)>,
    long: VecDeque<(FlightKey, DeviceOp)>,
    /// The long one that the device has.
    long_out: Option<FlightKey>,
    is_full: bool,
    is_ready: bool,
}

impl Waiting {
    fn queue(&mut self, op: &DeviceOp) -> &mut VecDeque<(FlightKey, DeviceOp)> {
        if is_long(op) { &mut self.long } else { &mut self.ops }
    }

    fn has_next(&self) -> bool {
        !self.is_full && (!self.ops.is_empty() || (self.long_out.is_none() && !self.long.is_empty()))
    }

    fn next(&mut self) -> Option<(FlightKey, DeviceOp)> {
        if !self.has_next() {
            return None;
        }
        // The long one first: there is at most one, so it holds nobody up, and it would wait for ever behind the others.
        if self.long_out.is_none()
            && let Some((key, op)) = self.long.pop_front()
        {
            self.long_out = Some(key);
            return Some((key, op));
        }
        self.ops.pop_front()
    }
}

impl Backlog {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether a device may take one now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds one behind the others.
    pub(super) fn push(&mut self, backend: BackendId, key: FlightKey, op: DeviceOp) {
        if self.backends.len() >= BACKENDS_KEPT && !self.backends.contains_key(&backend) {
            // Namespaces come and go; those that are gone have nothing here.
            self.backends
                .retain(|_, waiting| waiting.is_ready || waiting.is_full || waiting.long_out.is_some());
        }
        self.len += 1;
        let waiting = self.backends.entry(backend).or_default();
        waiting.queue(&op).push_back((key, op));
        self.wake(backend);
    }

    fn wake(&mut self, backend: BackendId) {
        if let Some(waiting) = self.backends.get_mut(&backend)
            && waiting.has_next()
            && !waiting.is_ready
        {
            waiting.is_ready = true;
            self.ready.push_back(backend);
        }
    }

    /// Takes the next one for a device.
    pub(super) fn next(&mut self) -> Option<(BackendId, FlightKey, DeviceOp)> {
        while let Some(backend) = self.ready.pop_front() {
            let Some(waiting) = self.backends.get_mut(&backend) else { continue };
            waiting.is_ready = false;
            let next = waiting.next();
            self.wake(backend);
            if let Some((key, op)) = next {
                self.len -= 1;
                return Some((backend, key, op));
            }
        }
        None
    }

    /// Takes one back that its device had no room for. Nothing more of this backend is given out before
    /// [`Backlog::retry`].
    pub(super) fn put_back(&mut self, backend: BackendId, key: FlightKey, op: DeviceOp) {
        self.len += 1;
        let waiting = self.backends.entry(backend).or_default();
        if is_long(&op) {
            waiting.long_out = None;
        }
        waiting.queue(&op).push_front((key, op));
        if !waiting.is_full {
            waiting.is_full = true;
            self.full.push(backend);
        }
    }

    /// Devices may have room again.
    pub(super) fn retry(&mut self) {
        while let Some(backend) = self.full.pop() {
            if let Some(waiting) = self.backends.get_mut(&backend) {
                waiting.is_full = false;
            }
            self.wake(backend);
        }
    }

    /// A device has done what a command gave it.
    pub(super) fn done(&mut self, backend: BackendId, key: FlightKey) {
        let Some(waiting) = self.backends.get_mut(&backend) else { return };
        if waiting.long_out == Some(key) {
            waiting.long_out = None;
            self.wake(backend);
        }
        // What had no room may have some now.
        if !self.full.is_empty() {
            self.retry();
        }
    }

    /// Drops the operations of commands that are not wanted any more.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(FlightKey) -> bool) {
        for waiting in self.backends.values_mut() {
            waiting.ops.retain(|(key, _)| is_wanted(*key));
            waiting.long.retain(|(key, _)| is_wanted(*key));
        }
        self.len = self.backends.values().map(|waiting| waiting.ops.len() + waiting.long.len()).sum();
    }
}

fn is_long(op: &DeviceOp) -> bool {
    matches!(op, DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_core::Token;

    const ZEROS: DeviceOp = DeviceOp::WriteZeroes { offset: 0, len: 512 };

    fn key(number: u64) -> FlightKey {
        FlightKey::from_token(Token(number))
    }

    fn drain(backlog: &mut Backlog) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| backlog.next()).map(|(backend, key, _)| (backend.0, key.token().0)).collect()
    }

    #[test]
    fn backends_take_turns_and_one_without_room_keeps_its_order() {
        let mut backlog = Backlog::default();
        for number in 0..6 {
            backlog.push(BackendId(number as u32 % 2), key(number), DeviceOp::Flush);
        }
        let (backend, first, op) = backlog.next().unwrap();
        assert_eq!((backend, first), (BackendId(0), key(0)));
        backlog.put_back(backend, first, op);
        assert_eq!(backlog.len(), 6);
        assert_eq!(drain(&mut backlog), [(1, 1), (1, 3), (1, 5)]);
        assert!(!backlog.is_ready() && backlog.len() == 3);
        backlog.retry();
        assert_eq!(drain(&mut backlog), [(0, 0), (0, 2), (0, 4)]);
        assert_eq!(backlog.len(), 0);
    }

    #[test]
    fn one_long_operation_at_a_time_and_others_do_not_wait_behind_it() {
        let mut backlog = Backlog::default();
        for number in 0..3 {
            backlog.push(BackendId(0), key(number), ZEROS);
        }
        backlog.push(BackendId(0), key(3), DeviceOp::Flush);
        assert_eq!(drain(&mut backlog), [(0, 0), (0, 3)]);
        backlog.done(BackendId(0), key(3));
        assert!(!backlog.is_ready());
        backlog.done(BackendId(0), key(0));
        let (backend, second, op) = backlog.next().unwrap();
        assert_eq!(second, key(1));
        // Refused, it is not the one that the device has.
        backlog.put_back(backend, second, op);
        backlog.retry();
        assert_eq!(drain(&mut backlog), [(0, 1)]);
        backlog.retain(|wanted| wanted != key(2));
        backlog.done(BackendId(0), key(1));
        assert_eq!((drain(&mut backlog), backlog.len()), (vec![], 0));
    }

    #[test]
    fn backends_that_are_gone_are_forgotten() {
        let mut backlog = Backlog::default();
        for number in 0..1000 {
            backlog.push(BackendId(number), key(u64::from(number)), DeviceOp::Flush);
            assert!(backlog.next().is_some() && backlog.backends.len() <= BACKENDS_KEPT);
        }
    }
}
