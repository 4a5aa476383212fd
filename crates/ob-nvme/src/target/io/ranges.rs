//! Ranges that somebody has for himself: writes of connections that are gone, and fused pairs.
//!
//! Most of the time there are none, and asking costs one comparison.

use super::super::control::BackendId;
use super::super::flight::FlightKey;

#[derive(Clone, Copy, Debug)]
struct Held {
    backend: BackendId,
    start: u64,
    end: u64,
    holder: FlightKey,
}

/// The ranges that are held, on all devices.
#[derive(Default)]
pub(in crate::target) struct Ranges {
    held: Vec<Held>,
}

impl Ranges {
    pub(in crate::target) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(in crate::target) fn hold(&mut self, backend: BackendId, offset: u64, len: u64, holder: FlightKey) {
        self.held.push(Held { backend, start: offset, end: offset.saturating_add(len), holder });
    }

    /// Gives back what a command holds; whether it held anything.
    pub(in crate::target) fn release(&mut self, holder: FlightKey) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.holder != holder);
        before != self.held.len()
    }

    /// Whether somebody else holds a part of this range.
    pub(in crate::target) fn blocks(
        &self,
        backend: BackendId,
        offset: u64,
        len: u64,
        own: &[FlightKey],
    ) -> bool {
        let end = offset.saturating_add(len);
        self.held.iter().any(|held| {
            held.backend == backend && held.start < end && offset < held.end && !own.contains(&held.holder)
        })
    }
}
