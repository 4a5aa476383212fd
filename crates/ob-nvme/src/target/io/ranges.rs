//! Ranges that somebody has for himself: writes of connections that are gone, and fused pairs.
//!
//! Most of the time there are none, and asking costs one comparison.

use super::super::control::{BackendId, Backing, Namespace, NamespaceKey};
use super::super::flight::FlightKey;

/// What ranges are of. Two namespaces may lie on one device; a service's is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum Place {
    Device(BackendId),
    Foreign(NamespaceKey),
}

impl Place {
    /// Where a namespace's blocks are.
    pub(in crate::target) fn of(namespace: &Namespace) -> Self {
        match namespace.backing {
            Backing::Device(backend) => Self::Device(backend),
            Backing::Foreign => Self::Foreign(namespace.key),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    place: Place,
    start: u64,
    end: u64,
    holder: FlightKey,
}

/// The ranges that are held, on all devices and in all namespaces of services.
#[derive(Default)]
pub(in crate::target) struct Ranges {
    held: Vec<Held>,
}

impl Ranges {
    pub(in crate::target) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(in crate::target) fn hold(&mut self, place: Place, offset: u64, len: u64, holder: FlightKey) {
        self.held.push(Held { place, start: offset, end: offset.saturating_add(len), holder });
    }

    /// Gives back what a command holds; whether it held anything.
    pub(in crate::target) fn release(&mut self, holder: FlightKey) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.holder != holder);
        before != self.held.len()
    }

    /// Whether somebody else holds a part of this range.
    pub(in crate::target) fn blocks(&self, place: Place, offset: u64, len: u64, own: &[FlightKey]) -> bool {
        let end = offset.saturating_add(len);
        self.held.iter().any(|held| {
            held.place == place && held.start < end && offset < held.end && !own.contains(&held.holder)
        })
    }
}
