//! Directories and names as they should be: what each request about names does to them, and what it needs to stay as
//! it is meanwhile.

use std::collections::BTreeMap;

use ob_core::NodeKind;
use ob_wire_link::files::{FileError, path_names};

/// A node, by the model's own number: it has one before the card has given it an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) u32);

/// The root directory.
pub(crate) const ROOT_KEY: Key = Key(0);

/// Where a node is, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) parent: Key,
    pub(crate) name: Vec<u8>,
    pub(crate) kind: NodeKind,
}

/// A request that may change names.
#[derive(Clone, Debug)]
pub(crate) enum NameOp {
    Create { base: Key, path: Vec<u8>, exclusive: bool },
    MakeDirectory { base: Key, path: Vec<u8> },
    Remove { base: Key, path: Vec<u8>, only: Option<NodeKind> },
    Rename { base: Key, path: Vec<u8>, to_base: Key, to_path: Vec<u8>, replace: bool },
}

/// A change of the tree, which takes effect as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    Insert { key: Key, place: Place },
    Remove { key: Key },
    Move { key: Key, parent: Key, name: Vec<u8>, replaced: Option<Key> },
}

impl NameChange {
    /// The node that is gone afterwards.
    pub(crate) fn removes(&self) -> Option<Key> {
        match self {
            Self::Insert { .. } => None,
            Self::Remove { key } => Some(*key),
            Self::Move { replaced, .. } => *replaced,
        }
    }
}

/// What a request about names must come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Change(NameChange),
    Found(Key),
    Unchanged,
    Refused(FileError),
}

/// What a request relies on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Resource {
    Node(Key),
    Slot(Key, Vec<u8>),
}

/// What a request relies on, and whether it changes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Vec<(Resource, bool)>);

impl Locks {
    fn node(&mut self, key: Key, changes: bool) {
        self.0.push((Resource::Node(key), changes));
    }

    fn slot(&mut self, parent: Key, name: &[u8], changes: bool) {
        self.0.push((Resource::Slot(parent, name.to_vec()), changes));
    }

    /// Whether the outcome of one could depend on the other.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        self.0.iter().any(|(one, changes)| {
            other.0.iter().any(|(another, changes_too)| one == another && (*changes || *changes_too))
        })
    }
}

/// All nodes, and where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    nodes: BTreeMap<Key, Place>,
    children: BTreeMap<(Key, Vec<u8>), Key>,
}

impl Tree {
    /// Whether the node is there.
    pub(crate) fn contains(&self, key: Key) -> bool {
        key == ROOT_KEY || self.nodes.contains_key(&key)
    }

    pub(crate) fn kind(&self, key: Key) -> Option<NodeKind> {
        if key == ROOT_KEY { Some(NodeKind::Directory) } else { self.nodes.get(&key).map(|place| place.kind) }
    }

    pub(crate) fn parent(&self, key: Key) -> Option<Key> {
        self.nodes.get(&key).map(|place| place.parent)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = (Key, &Place)> {
        self.nodes.iter().map(|(key, place)| (*key, place))
    }

    /// Names in a directory and the nodes that have them, in order.
    pub(crate) fn entries(&self, directory: Key) -> impl Iterator<Item = (&[u8], Key)> {
        let from = (directory, Vec::new());
        let here = self.children.range(from..).take_while(move |((parent, _), _)| *parent == directory);
        here.map(|((_, name), key)| (name.as_slice(), *key))
    }

    /// The path of every node but the root.
    pub(crate) fn paths(&self) -> BTreeMap<Vec<u8>, Key> {
        let mut paths = BTreeMap::new();
        for key in self.nodes.keys() {
            let (mut names, mut at) = (Vec::new(), *key);
            while let Some(place) = self.nodes.get(&at) {
                names.push(place.name.as_slice());
                at = place.parent;
            }
            names.reverse();
            paths.insert(names.join(&b'/'), *key);
        }
        paths
    }

    fn child(&self, directory: Key, name: &[u8]) -> Option<Key> {
        self.children.get(&(directory, name.to_vec())).copied()
    }

    /// The node that a path leads to.
    pub(crate) fn find(&self, base: Key, path: &[u8], locks: &mut Locks) -> Result<Key, FileError> {
        locks.node(base, false);
        if !self.contains(base) {
            return Err(FileError::NotFound);
        }
        let mut at = base;
        for name in path_names(path)? {
            at = self.step(at, name, locks)?.ok_or(FileError::NotFound)?;
        }
        Ok(at)
    }

    fn step(&self, directory: Key, name: &[u8], locks: &mut Locks) -> Result<Option<Key>, FileError> {
        if self.kind(directory) == Some(NodeKind::File) {
            return Err(FileError::NotADirectory);
        }
        locks.slot(directory, name, false);
        let found = self.child(directory, name);
        if let Some(found) = found {
            locks.node(found, false);
        }
        Ok(found)
    }

    /// The directory of a path's last name, that name, and what has it.
    fn find_place<'a>(
        &self,
        base: Key,
        path: &'a [u8],
        locks: &mut Locks,
    ) -> Result<(Key, &'a [u8], Option<Key>), FileError> {
        path_names(path)?;
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (self.find(base, &path[..slash], locks)?, &path[slash + 1..]),
            None => (base, path),
        };
        if name.is_empty() {
            return Err(FileError::BadName);
        }
        locks.node(directory, false);
        if !self.contains(directory) {
            return Err(FileError::NotFound);
        }
        let holder = self.step(directory, name, locks)?;
        Ok((directory, name, holder))
    }

    /// What a request comes to; a node that it creates has the number `new`.
    pub(crate) fn judge(&self, op: &NameOp, new: Key) -> (Verdict, Locks) {
        let mut locks = Locks::default();
        let verdict = match op {
            NameOp::Create { base, path, exclusive } => {
                self.judge_create(*base, path, *exclusive, new, &mut locks)
            }
            NameOp::MakeDirectory { base, path } => self.judge_directory(*base, path, new, &mut locks),
            NameOp::Remove { base, path, only } => self.judge_remove(*base, path, *only, &mut locks),
            NameOp::Rename { base, path, to_base, to_path, replace } => {
                self.judge_rename((*base, path), (*to_base, to_path), *replace, &mut locks)
            }
        };
        (verdict.unwrap_or_else(Verdict::Refused), locks)
    }

    fn judge_create(
        &self,
        base: Key,
        path: &[u8],
        exclusive: bool,
        new: Key,
        locks: &mut Locks,
    ) -> Result<Verdict, FileError> {
        match self.find_place(base, path, locks)? {
            (_, _, Some(_)) if exclusive => Err(FileError::Exists),
            (_, _, Some(found)) => Ok(Verdict::Found(found)),
            (parent, name, None) => {
                locks.slot(parent, name, true);
                let place = Place { parent, name: name.to_vec(), kind: NodeKind::File };
                Ok(Verdict::Change(NameChange::Insert { key: new, place }))
            }
        }
    }

    fn judge_directory(
        &self,
        base: Key,
        path: &[u8],
        new: Key,
        locks: &mut Locks,
    ) -> Result<Verdict, FileError> {
        let (parent, name, holder) = self.find_place(base, path, locks)?;
        if holder.is_some() {
            return Err(FileError::Exists);
        }
        locks.slot(parent, name, true);
        let place = Place { parent, name: name.to_vec(), kind: NodeKind::Directory };
        Ok(Verdict::Change(NameChange::Insert { key: new, place }))
    }

    fn judge_remove(
        &self,
        base: Key,
        path: &[u8],
        only: Option<NodeKind>,
        locks: &mut Locks,
    ) -> Result<Verdict, FileError> {
        let key = self.find(base, path, locks)?;
        match (only, self.kind(key)) {
            (Some(NodeKind::File), Some(NodeKind::Directory)) => return Err(FileError::IsADirectory),
            (Some(NodeKind::Directory), Some(NodeKind::File)) => return Err(FileError::NotADirectory),
            _ => {}
        }
        self.may_remove(key, locks)?;
        Ok(Verdict::Change(NameChange::Remove { key }))
    }

    fn may_remove(&self, key: Key, locks: &mut Locks) -> Result<(), FileError> {
        if key == ROOT_KEY {
            return Err(FileError::Invalid);
        }
        // Whether it is empty must not change, so nobody may do anything in it.
        locks.node(key, true);
        if let Some(place) = self.nodes.get(&key) {
            locks.node(place.parent, false);
            locks.slot(place.parent, &place.name, true);
        }
        if self.entries(key).next().is_some() { Err(FileError::NotEmpty) } else { Ok(()) }
    }

    fn judge_rename(
        &self,
        from: (Key, &[u8]),
        to: (Key, &[u8]),
        replace: bool,
        locks: &mut Locks,
    ) -> Result<Verdict, FileError> {
        let key = self.find(from.0, from.1, locks)?;
        let (parent, name, holder) = self.find_place(to.0, to.1, locks)?;
        if key == ROOT_KEY {
            return Err(FileError::Invalid);
        }
        locks.node(key, true);
        if let Some(place) = self.nodes.get(&key) {
            locks.node(place.parent, false);
            locks.slot(place.parent, &place.name, true);
        }
        let mut above = Some(parent);
        while let Some(at) = above {
            locks.node(at, false);
            if at == key {
                return Err(FileError::WithinItself);
            }
            above = self.parent(at);
        }
        locks.slot(parent, name, true);
        let Some(holder) = holder else {
            let change = NameChange::Move { key, parent, name: name.to_vec(), replaced: None };
            return Ok(Verdict::Change(change));
        };
        if holder == key {
            return Ok(Verdict::Unchanged);
        }
        if !replace {
            return Err(FileError::Exists);
        }
        self.may_remove(holder, locks)?;
        match (self.kind(key), self.kind(holder)) {
            (Some(NodeKind::File), Some(NodeKind::Directory)) => Err(FileError::IsADirectory),
            (Some(NodeKind::Directory), Some(NodeKind::File)) => Err(FileError::NotADirectory),
            _ => {
                let replaced = Some(holder);
                Ok(Verdict::Change(NameChange::Move { key, parent, name: name.to_vec(), replaced }))
            }
        }
    }

    /// Makes a change.
    pub(crate) fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Insert { key, place } => self.insert(*key, place.clone()),
            NameChange::Remove { key } => drop(self.remove(*key)),
            NameChange::Move { key, parent, name, replaced } => {
                if let Some(replaced) = replaced {
                    self.remove(*replaced);
                }
                if let Some(place) = self.remove(*key) {
                    self.insert(*key, Place { parent: *parent, name: name.clone(), ..place });
                }
            }
        }
    }

    fn insert(&mut self, key: Key, place: Place) {
        self.children.insert((place.parent, place.name.clone()), key);
        self.nodes.insert(key, place);
    }

    fn remove(&mut self, key: Key) -> Option<Place> {
        let place = self.nodes.remove(&key)?;
        self.children.remove(&(place.parent, place.name.clone()));
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(tree: &Tree, path: &[u8], new: u32) -> (Verdict, Locks) {
        tree.judge(&NameOp::Create { base: ROOT_KEY, path: path.to_vec(), exclusive: true }, Key(new))
    }

    fn tree() -> Tree {
        let mut tree = Tree::default();
        let directory = NameOp::MakeDirectory { base: ROOT_KEY, path: b"d".to_vec() };
        for (verdict, _) in [tree.judge(&directory, Key(1)), create(&tree, b"a", 2)] {
            let Verdict::Change(change) = verdict else { panic!("{verdict:?}") };
            tree.apply(&change);
        }
        tree
    }

    #[test]
    fn a_rename_replaces_in_one_change() {
        let mut tree = tree();
        let Verdict::Change(change) = create(&tree, b"d/b", 3).0 else { panic!("refused") };
        tree.apply(&change);
        let rename = NameOp::Rename {
            base: ROOT_KEY,
            path: b"a".to_vec(),
            to_base: Key(1),
            to_path: b"b".to_vec(),
            replace: true,
        };
        let (verdict, locks) = tree.judge(&rename, Key(9));
        let Verdict::Change(change) = verdict else { panic!("{verdict:?}") };
        assert_eq!(change.removes(), Some(Key(3)));
        assert!(locks.conflicts(&create(&tree, b"a", 4).1) && !locks.conflicts(&create(&tree, b"z", 4).1));
        tree.apply(&change);
        assert_eq!(tree.paths(), BTreeMap::from([(b"d".to_vec(), Key(1)), (b"d/b".to_vec(), Key(2))]));
        let remove = NameOp::Remove { base: ROOT_KEY, path: b"d".to_vec(), only: None };
        assert_eq!(tree.judge(&remove, Key(9)).0, Verdict::Refused(FileError::NotEmpty));
    }

    #[test]
    fn two_that_want_one_name_conflict() {
        let tree = tree();
        assert!(create(&tree, b"x", 3).1.conflicts(&create(&tree, b"x", 4).1));
        assert!(!create(&tree, b"x", 3).1.conflicts(&create(&tree, b"d/x", 4).1));
    }
}
