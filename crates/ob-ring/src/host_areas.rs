//! The host's side of a group's areas.

use std::sync::atomic::Ordering;

use ob_memory::{Region, acquire_fence};
use ob_wire_link::group::{AreaSpec, GroupSpec};
use ob_wire_link::ring::control;

use crate::many::Closed;

/// The areas of one group: what the card put into its area is copied out, what the host puts into its own is copied in.
///
/// Where what lies, and when a place may be used again, is said by messages of the rings. There are no references into
/// the memory: the card may write to its area at any time. Threads may share it.
#[derive(Clone)]
pub struct HostAreas {
    region: Region,
    card: AreaSpec,
    host: AreaSpec,
    /// Offset of the response ring's bound: there were messages, so it is not zero while the memory is there.
    bound: usize,
    closed: Closed,
}

/// Why nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    /// The bytes would leave the area, or there is none.
    #[error("the bytes leave the area")]
    OutOfArea,
    /// The group is over; its memory may be gone.
    #[error("the group is closed")]
    Closed,
}

impl HostAreas {
    /// The areas of a group, if it has any. `region` has at least the group's length.
    pub fn new(region: Region, spec: &GroupSpec, closed: Closed) -> Option<Self> {
        let (card, host) = (spec.card_area, spec.host_area);
        let bound = spec.response.word(control::BOUND) as usize;
        (!card.is_empty() || !host.is_empty()).then_some(Self { region, card, host, bound, closed })
    }

    /// Bytes of the card's area.
    pub fn card_len(&self) -> u64 {
        self.card.len()
    }

    /// Bytes of the host's area.
    pub fn host_len(&self) -> u64 {
        self.host.len()
    }

    /// Copies bytes out of the card's area: those that a message named. As of messages, see [`Claimed::check`](crate::Claimed::check),
    /// what is copied is good if the bound is there afterwards.
    pub fn copy_out(&self, at: u64, into: &mut [u8]) -> Result<(), AreaError> {
        let offset = self.card.place(at, into.len() as u64).ok_or(AreaError::OutOfArea)?;
        // A place inside a region fits the address space.
        self.region.copy_out(offset as usize, into);
        acquire_fence();
        let is_there = self.region.load(self.bound, Ordering::Acquire) != 0;
        if is_there { self.check_open() } else { Err(AreaError::Closed) }
    }

    /// Copies bytes into the host's area; a message pushed afterwards may name them.
    pub fn copy_in(&self, at: u64, from: &[u8]) -> Result<(), AreaError> {
        self.check_open()?;
        let offset = self.host.place(at, from.len() as u64).ok_or(AreaError::OutOfArea)?;
        self.region.copy_in(offset as usize, from);
        Ok(())
    }

    fn check_open(&self) -> Result<(), AreaError> {
        if self.closed.is_closed() { Err(AreaError::Closed) } else { Ok(()) }
    }
}
