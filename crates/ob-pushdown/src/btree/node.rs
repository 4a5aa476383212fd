//! A node, as it lies in the file.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a node.
pub const NODE_LEN: usize = 512;
/// Bytes of a value.
pub const VALUE_LEN: usize = 64;
/// Entries of a node.
pub const ENTRIES_MAX: usize = 31;
/// Set in every pointer.
pub const POINTER_MARK: u64 = 1 << 63;

/// The type of a leaf; that of an inner node is 0.
pub(super) const LEAF: u64 = 1;

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Node {
    /// Where the next node of the level is, or 0.
    pub next: U64,
    /// 0: an inner node; 1: a leaf.
    pub kind: U64,
    /// The keys, ascending; zeros behind them.
    pub keys: [U64; ENTRIES_MAX],
    /// Where each entry leads to.
    pub pointers: [U64; ENTRIES_MAX],
}

const _: () = assert!(size_of::<Node>() == NODE_LEN);

/// A node that cannot be one of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNode {
    /// A pointer without its mark, or to the root.
    #[error("a pointer of the node leads nowhere")]
    Pointer,
    /// Not as long as a node.
    #[error("a node has {NODE_LEN} bytes")]
    Length,
    /// More levels than a tree can have: nodes lead around in a circle.
    #[error("the nodes lead around in a circle")]
    Circle,
}

/// What a node says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It is below this node, or nowhere.
    Child(u64),
    /// Its value is there.
    Value(u64),
    /// There is no such key.
    Absent,
}

impl Node {
    /// Reads a node.
    ///
    /// # Errors
    ///
    /// When the bytes are not as many as a node has.
    pub fn parse(bytes: &[u8]) -> Result<&Self, BadNode> {
        Self::ref_from_bytes(bytes).map_err(|_| BadNode::Length)
    }

    /// Whether it is a leaf.
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        self.kind.get() == LEAF
    }

    /// How many entries it has.
    #[must_use]
    pub fn len(&self) -> usize {
        let ascends = |two: &[U64]| matches!(two, [one, next] if one.get() < next.get());
        1 + self.keys.windows(2).take_while(|two| ascends(two)).count()
    }

    /// Whether it has none, which cannot be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of an entry; 0 behind the last.
    #[must_use]
    pub fn key(&self, at: usize) -> u64 {
        self.keys.get(at).map_or(0, |key| key.get())
    }

    /// The last entry whose key is not above this one.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<usize> {
        let keys = self.keys.get(..self.len())?;
        keys.partition_point(|have| have.get() <= key).checked_sub(1)
    }

    /// Where an entry leads to.
    ///
    /// # Errors
    ///
    /// When that cannot be.
    pub fn pointer(&self, at: usize) -> Result<u64, BadNode> {
        let pointer = self.pointers.get(at).map_or(0, |pointer| pointer.get());
        let place = pointer & !POINTER_MARK;
        // The root is nobody's child.
        if pointer & POINTER_MARK == 0 || place == 0 { Err(BadNode::Pointer) } else { Ok(place) }
    }

    /// Where to look for a key next.
    ///
    /// # Errors
    ///
    /// When the node cannot be one of a tree.
    pub fn follow(&self, key: u64) -> Result<Followed, BadNode> {
        let Some(at) = self.find(key) else { return Ok(Followed::Absent) };
        let place = self.pointer(at)?;
        let is_same = self.keys.get(at).is_some_and(|have| have.get() == key);
        Ok(match (self.is_leaf(), is_same) {
            (false, _) => Followed::Child(place),
            (true, true) => Followed::Value(place),
            (true, false) => Followed::Absent,
        })
    }
}
