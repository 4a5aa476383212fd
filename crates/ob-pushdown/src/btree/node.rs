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

/// The types of nodes.
pub(super) const INNER: u64 = 0;
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
    /// Neither an inner node nor a leaf.
    #[error("a node is of no type that there is")]
    Kind,
    /// Keys do not ascend, and no zeros are behind them.
    #[error("the keys of a node do not ascend")]
    Keys,
    /// A pointer without its mark, not to the begin of something, or back.
    #[error("a pointer of a node leads nowhere")]
    Pointer,
    /// Not as long as a node.
    #[error("a node has {NODE_LEN} bytes")]
    Length,
    /// More levels than a tree can have, or leaves that lead to keys that were there before.
    #[error("the nodes lead around in a circle")]
    Circle,
    /// A leaf is followed by something else.
    #[error("a leaf is followed by a node that is none")]
    Leaf,
    /// The card has seen one, and nobody else can look.
    #[error("the card has come upon a node that cannot be one")]
    Card,
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
    ///
    /// # Errors
    ///
    /// When it is no inner node either.
    pub fn is_leaf(&self) -> Result<bool, BadNode> {
        match self.kind.get() {
            INNER => Ok(false),
            LEAF => Ok(true),
            _ => Err(BadNode::Kind),
        }
    }

    /// The entries that it has: keys, and where each leads to. There is at least one.
    ///
    /// # Errors
    ///
    /// When keys do not ascend.
    pub fn entries(&self) -> Result<&[U64], BadNode> {
        let len = self.count_until(|_| false)?;
        self.keys.get(..len).ok_or(BadNode::Keys)
    }

    /// The last entry whose key is not above this one. Keys behind it are not looked at.
    ///
    /// # Errors
    ///
    /// When the keys up to there do not ascend.
    pub fn find(&self, key: u64) -> Result<Option<usize>, BadNode> {
        if self.keys.first().is_none_or(|first| key < first.get()) {
            return Ok(None);
        }
        Ok(self.count_until(|have| have > key)?.checked_sub(1))
    }

    /// How many entries there are before one that is not wanted, with the first.
    fn count_until(&self, is_behind: impl Fn(u64) -> bool) -> Result<usize, BadNode> {
        for (at, two) in self.keys.windows(2).enumerate() {
            let [before, key] = two else { continue };
            if is_behind(key.get()) {
                return Ok(at + 1);
            }
            if key.get() <= before.get() {
                return if key.get() == 0 { Ok(at + 1) } else { Err(BadNode::Keys) };
            }
        }
        Ok(ENTRIES_MAX)
    }

    /// Where the child of an entry is, if this inner node is there.
    ///
    /// # Errors
    ///
    /// When that cannot be.
    pub fn child(&self, here: u64, at: usize) -> Result<u64, BadNode> {
        self.pointer(here, at, NODE_LEN as u64)
    }

    /// Where the value of an entry is, if this leaf is there.
    ///
    /// # Errors
    ///
    /// When that cannot be.
    pub fn value(&self, here: u64, at: usize) -> Result<u64, BadNode> {
        self.pointer(here, at, VALUE_LEN as u64)
    }

    /// Levels follow each other, and values follow them: every pointer leads forward, to the begin of something.
    fn pointer(&self, here: u64, at: usize, len: u64) -> Result<u64, BadNode> {
        let pointer = self.pointers.get(at).map_or(0, |pointer| pointer.get());
        let place = pointer & !POINTER_MARK;
        let is_one = pointer & POINTER_MARK != 0 && place > here && place.is_multiple_of(len);
        if is_one { Ok(place) } else { Err(BadNode::Pointer) }
    }

    /// Where the next node of the level is, if there is one.
    ///
    /// # Errors
    ///
    /// When no node can be there.
    pub fn next(&self) -> Result<Option<u64>, BadNode> {
        match self.next.get() {
            0 => Ok(None),
            next if next.is_multiple_of(NODE_LEN as u64) => Ok(Some(next)),
            _ => Err(BadNode::Pointer),
        }
    }

    /// Where to look for a key next, if this node is there. What is looked at, and in which order, is what the program looks at: a node that
    /// is damaged elsewhere has the same answer by both.
    ///
    /// # Errors
    ///
    /// When the node cannot be one of a tree.
    pub fn follow(&self, here: u64, key: u64) -> Result<Followed, BadNode> {
        let is_leaf = self.is_leaf()?;
        let Some(at) = self.find(key)? else { return Ok(Followed::Absent) };
        if !is_leaf {
            return Ok(Followed::Child(self.child(here, at)?));
        }
        let place = self.value(here, at)?;
        let is_same = self.keys.get(at).is_some_and(|have| have.get() == key);
        Ok(if is_same { Followed::Value(place) } else { Followed::Absent })
    }
}
