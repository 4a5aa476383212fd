//! Files that requests may read: those of a client's file system, by a map of its own, and those of the card's, by name.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use ob_core::NodeId;
use ob_nvme::target::control::{Namespace, NamespaceKey};
use ob_wire_nvme::pushdown::{Extent, MapHeader};

use crate::plant::{Bug, is_planted};

/// A file that a client has open.
pub(super) struct OpenFile {
    pub(super) place: Place,
    /// Closed, or mapped anew: requests that have it end.
    is_withdrawn: Cell<bool>,
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

#[derive(Clone, Copy)]
struct Piece {
    at: u64,
    offset: u64,
    len: u64,
}

/// A map that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadMap;

impl OpenFile {
    /// A file whose extents are counted among those that are held.
    pub(super) fn new(place: Place, held: &Rc<Cell<usize>>) -> Self {
        let file = Self { place, is_withdrawn: Cell::new(false), held: Rc::clone(held) };
        held.set(held.get() + file.extents());
        file
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
            Place::Map(map) => map.extents.borrow().len(),
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
    /// Takes a map that a client sent, all of which is checked here.
    pub(super) fn new(header: &MapHeader, extents: &[Extent], namespace: &Namespace) -> Result<Self, BadMap> {
        let block = u64::from(namespace.block_len);
        let capacity = namespace.blocks.checked_mul(block).ok_or(BadMap)?;
        let (version, len) = (header.version.get(), header.len.get());
        if version == 0 || header.reserved.get() != 0 || header.extents.get() as usize != extents.len() {
            return Err(BadMap);
        }
        let mut pieces = Vec::with_capacity(extents.len());
        let mut end = 0;
        for extent in extents {
            let piece = Piece { at: extent.at.get(), offset: extent.offset.get(), len: extent.len.get() };
            let is_whole = [piece.at, piece.offset, piece.len].iter().all(|part| part.is_multiple_of(block));
            if !is_whole || piece.len == 0 || piece.at < end || piece.at >= len {
                return Err(BadMap);
            }
            end = piece.at.checked_add(piece.len).ok_or(BadMap)?;
            if piece.offset.checked_add(piece.len).is_none_or(|last| last > capacity) {
                return Err(BadMap);
            }
            pieces.push(piece);
        }
        // No byte of the namespace is two of the file's.
        let mut places: Vec<(u64, u64)> = pieces.iter().map(|piece| (piece.offset, piece.len)).collect();
        places.sort_unstable();
        if places.windows(2).any(|two| matches!(two, [one, next] if one.0 + one.1 > next.0)) {
            return Err(BadMap);
        }
        let (nsid, namespace) = (namespace.nsid, namespace.key);
        Ok(Self { nsid, namespace, version, len, extents: RefCell::new(pieces) })
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
