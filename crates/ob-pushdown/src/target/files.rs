//! Files that requests may read: those of a client's file system, by a map of its own, and those of the card's, by name.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use ob_core::{Instant, NodeId};
use ob_nvme::target::control::NamespaceKey;

use crate::plant::{Bug, is_planted};

/// A file that a client has open.
pub(super) struct OpenFile {
    pub(super) place: Place,
    /// Closed, or mapped anew: requests that have it end.
    is_withdrawn: Cell<bool>,
    /// When it was named last.
    named_at: Cell<Instant>,
    /// Requests that have it.
    pub(super) requests: Cell<u32>,
    /// Where its extents are counted, for as long as there are any.
    held: Rc<Cell<usize>>,
}

/// Where a file lies.
pub(super) enum Place {
    Map(Map),
    Node(NodeId),
}

/// A client's file, as it says.
pub(super) struct Map {
    pub(super) nsid: u32,
    /// Which namespace it was: another may have its number later.
    pub(super) namespace: NamespaceKey,
    pub(super) version: u64,
    pub(super) len: u64,
    /// None once the file is withdrawn: plans and requests that name it keep nothing of its map.
    extents: RefCell<Vec<Piece>>,
}

/// Bytes of a file that lie together: where in the file, where in the namespace, and how many.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A map that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadMap;

impl OpenFile {
    /// A file whose extents are counted among those that are held.
    pub(super) fn new(place: Place, held: &Rc<Cell<usize>>, now: Instant) -> Self {
        let (is_withdrawn, requests) = Default::default();
        let file = Self { place, is_withdrawn, named_at: Cell::new(now), requests, held: Rc::clone(held) };
        held.set(held.get() + file.extents());
        file
    }

    /// Somebody makes use of it.
    pub(super) fn name(&self, now: Instant) {
        self.named_at.set(now);
    }

    /// When somebody made use of it last: now, while a request has it.
    pub(super) fn used_at(&self, now: Instant) -> Instant {
        if self.requests.get() > 0 { now } else { self.named_at.get() }
    }

    /// Ends the file. Whoever still has it reads nothing of it, so its extents need not stay.
    pub(super) fn withdraw(&self) {
        self.is_withdrawn.set(true);
        if !is_planted(Bug::WithdrawnMapRead) {
            self.free();
        }
    }

    fn free(&self) {
        if let Place::Map(map) = &self.place {
            let extents = map.extents.take();
            self.held.set(self.held.get() - extents.len());
        }
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.get()
    }

    /// The version of its map; 0 of a file by name.
    pub(super) fn version(&self) -> u64 {
        match &self.place {
            Place::Map(map) => map.version,
            Place::Node(_) => 0,
        }
    }

    /// How many extents the card keeps for it.
    pub(super) fn extents(&self) -> usize {
        match &self.place {
            Place::Map(map) => map.extents(),
            Place::Node(_) => 0,
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.free();
    }
}

impl Map {
    /// A map whose extents were checked.
    pub(super) fn new(
        (nsid, namespace): (u32, NamespaceKey),
        version: u64,
        len: u64,
        extents: Vec<Piece>,
    ) -> Self {
        Self { nsid, namespace, version, len, extents: RefCell::new(extents) }
    }

    /// How many extents the card keeps for it.
    pub(super) fn extents(&self) -> usize {
        self.extents.borrow().len()
    }

    /// Where the first bytes of a range of the file lie that lie together: where in the namespace, and how many. Nothing in a hole.
    pub(super) fn find(&self, range: &Range<u64>) -> Option<(u64, u64)> {
        let extents = self.extents.borrow();
        let behind = extents.partition_point(|piece| piece.at <= range.start);
        let piece = extents.get(behind.checked_sub(1)?)?;
        let within = range.start - piece.at;
        if within >= piece.len {
            return None;
        }
        Some((piece.offset + within, (piece.len - within).min(range.end.saturating_sub(range.start))))
    }
}
