//! Makes a tree, of keys that come in order.

use std::io::{self, Write};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::node::{ENTRIES_MAX, INNER, LEAF, NODE_LEN, Node, POINTER_MARK, VALUE_LEN};

/// What a tree of so many keys looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    keys: u64,
    fanout: u64,
    /// Nodes of each level, the root's first.
    levels: Vec<u64>,
}

/// Why there is no tree.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No key, or more than can be.
    #[error("a tree has at least one key, and a node 2 to {ENTRIES_MAX} entries")]
    Shape,
    /// Keys do not ascend.
    #[error("the keys do not ascend: {key} comes after {before}")]
    Order {
        /// This one.
        key: u64,
        /// The one before it.
        before: u64,
    },
    /// Where it goes to.
    #[error(transparent)]
    Output(#[from] io::Error),
}

impl Shape {
    /// A tree of so many keys, with so many entries in each node.
    ///
    /// # Errors
    ///
    /// When there can be none.
    pub fn new(keys: u64, fanout: usize) -> Result<Self, LoadError> {
        if keys == 0 || keys > 1 << 48 || !(2..=ENTRIES_MAX).contains(&fanout) {
            return Err(LoadError::Shape);
        }
        let fanout = fanout as u64;
        let mut levels = vec![keys.div_ceil(fanout)];
        while let Some(below) = levels.last().copied().filter(|nodes| *nodes > 1) {
            levels.push(below.div_ceil(fanout));
        }
        levels.reverse();
        Ok(Self { keys, fanout, levels })
    }

    /// How many keys it has.
    #[must_use]
    pub const fn keys(&self) -> u64 {
        self.keys
    }

    /// How many levels of nodes it has.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// How many nodes.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        self.levels.iter().sum()
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        // Values are read by sectors, and the last one of a file is whole, too.
        self.values_at() + (self.keys * VALUE_LEN as u64).next_multiple_of(NODE_LEN as u64)
    }

    /// Where the values begin.
    fn values_at(&self) -> u64 {
        self.nodes() * NODE_LEN as u64
    }

    /// Keys that are below a node of a level.
    fn keys_below(&self, level: usize) -> u64 {
        let below = self.levels.len() - level;
        (0..below).fold(1, |keys: u64, _| keys.saturating_mul(self.fanout))
    }

    /// The first node of a level, counted from the root.
    fn first_node(&self, level: usize) -> u64 {
        self.levels.iter().take(level).sum()
    }
}

/// Writes a tree from its begin to its end: keys are asked for level by level, and values last, so that nothing is kept.
pub struct BulkLoad<K, V> {
    shape: Shape,
    key: K,
    value: V,
}

impl<K: Fn(u64) -> u64, V: FnMut(u64) -> [u8; VALUE_LEN]> BulkLoad<K, V> {
    /// A tree whose keys and values are these, by number: keys ascend.
    pub fn new(shape: Shape, key: K, value: V) -> Self {
        Self { shape, key, value }
    }

    /// Writes all of it.
    ///
    /// # Errors
    ///
    /// When keys do not ascend, or it cannot be written.
    pub fn write(mut self, mut output: impl Write) -> Result<(), LoadError> {
        for level in 0..self.shape.levels() {
            self.write_level(level, &mut output)?;
        }
        for number in 0..self.shape.keys {
            output.write_all(&(self.value)(number))?;
        }
        let values_len = self.shape.keys * VALUE_LEN as u64;
        let rest = (self.shape.file_len() - self.shape.values_at() - values_len) as usize;
        output.write_all([0; NODE_LEN].get(..rest).unwrap_or_default())?;
        output.flush()?;
        Ok(())
    }

    fn write_level(&self, level: usize, output: &mut impl Write) -> Result<(), LoadError> {
        let shape = &self.shape;
        let nodes = shape.levels.get(level).copied().unwrap_or_default();
        let is_leaf = level + 1 == shape.levels();
        let (first, below) = (shape.first_node(level), shape.first_node(level + 1));
        // How many keys lie below an entry of this level.
        let each = shape.keys_below(level + 1);
        let place = |entry: u64| {
            let values = shape.values_at() + entry * VALUE_LEN as u64;
            POINTER_MARK | if is_leaf { values } else { (below + entry) * NODE_LEN as u64 }
        };
        let mut before = None;
        for number in 0..nodes {
            let is_last = number + 1 == nodes;
            let next = if is_last { 0 } else { (first + number + 1) * NODE_LEN as u64 };
            let mut node = Node {
                next: next.into(),
                kind: if is_leaf { LEAF } else { INNER }.into(),
                keys: [U64::ZERO; ENTRIES_MAX],
                pointers: [U64::ZERO; ENTRIES_MAX],
            };
            let entries = (0..shape.fanout).map(|entry| number * shape.fanout + entry);
            let entries = entries.take_while(|entry| entry.saturating_mul(each) < shape.keys);
            for ((to_key, to_pointer), entry) in node.keys.iter_mut().zip(&mut node.pointers).zip(entries) {
                let key = (self.key)(entry * each);
                if let Some(before) = before.filter(|before| *before >= key) {
                    return Err(LoadError::Order { key, before });
                }
                before = Some(key);
                (*to_key, *to_pointer) = (key.into(), place(entry).into());
            }
            output.write_all(node.as_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::{BadNode, Followed};
    use super::*;

    fn tree(keys: u64, fanout: usize) -> Vec<u8> {
        let shape = Shape::new(keys, fanout).unwrap();
        let len = shape.file_len();
        let mut bytes = Vec::new();
        let value = |number: u64| {
            let mut value = [0; VALUE_LEN];
            value[..8].copy_from_slice(&number.to_le_bytes());
            value
        };
        BulkLoad::new(shape, |number| 10 + 3 * number, value).write(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, len);
        bytes
    }

    fn get(tree: &[u8], key: u64) -> Option<u64> {
        let mut at = 0;
        for _ in 0..64 {
            let node = Node::parse(&tree[at..at + NODE_LEN]).unwrap();
            match node.follow(at as u64, key).unwrap() {
                Followed::Child(next) => at = next as usize,
                Followed::Value(value) => {
                    let bytes = tree[value as usize..][..8].try_into().unwrap();
                    return Some(u64::from_le_bytes(bytes));
                }
                Followed::Absent => return None,
            }
        }
        panic!("the nodes lead around in a circle")
    }

    #[test]
    fn every_key_is_found_and_no_other() {
        for (keys, fanout) in [(1, 2), (2, 2), (31, 31), (32, 31), (961, 31), (962, 31), (1000, 7), (5000, 3)]
        {
            let tree = tree(keys, fanout);
            for number in 0..keys {
                assert_eq!(get(&tree, 10 + 3 * number), Some(number), "{keys} {fanout}");
                assert_eq!(get(&tree, 11 + 3 * number), None, "{keys} {fanout}");
            }
            assert_eq!(get(&tree, 9), None);
            assert_eq!(get(&tree, u64::MAX), None);
        }
    }

    #[test]
    fn levels_are_linked() {
        let tree = tree(1000, 7);
        let shape = Shape::new(1000, 7).unwrap();
        assert_eq!((shape.levels(), shape.levels.clone()), (4, vec![1, 3, 21, 143]));
        let mut at = shape.first_node(3) * NODE_LEN as u64;
        let mut keys = 0;
        while at != 0 {
            let node = Node::parse(&tree[at as usize..][..NODE_LEN]).unwrap();
            assert!(node.is_leaf().unwrap());
            keys += node.entries().unwrap().len();
            at = node.next().unwrap().unwrap_or(0);
        }
        assert_eq!(keys, 1000);
    }

    #[test]
    fn what_cannot_be_a_tree_is_refused() {
        assert!(Shape::new(0, 31).is_err() && Shape::new(1, 32).is_err() && Shape::new(1, 1).is_err());
        let load = BulkLoad::new(Shape::new(10, 4).unwrap(), |_| 5, |_| [0; VALUE_LEN]);
        assert!(matches!(load.write(io::sink()), Err(LoadError::Order { key: 5, before: 5 })));
        assert_eq!(Node::parse(&[0; 511]).unwrap_err(), BadNode::Length);
        let node = Node::parse(&[0; NODE_LEN]).unwrap();
        assert_eq!(node.follow(0, 7), Err(BadNode::Pointer), "zeros are no tree");
    }
}
