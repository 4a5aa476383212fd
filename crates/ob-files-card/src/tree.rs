//! Directories, names and files, as the card holds them in memory.
//!
//! The tree knows nothing of the log or the device: it says what is, and what may be. Everything that changes it is
//! called by the engine, which logs the change.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ob_core::{IdMap, NodeId, NodeKind};
use ob_format::files::{NodeRecord, ROOT, node_record_len};
use ob_wire_link::files::{Entry, FileError, PATH_LEN_MAX, path_names};

use crate::engine::FileVersion;
use crate::map::FileMap;
use crate::plant::{self, Bug};

/// How far up a rename looks for what it moves, which is as deep as a path from the root can lead. Requests may name a directory by
/// its id and make others below it, deeper and deeper, and one rename is not to go through all of them.
const LOOK_UP_MAX: usize = PATH_LEN_MAX / 2 + 1;

/// What the root says is its parent.
pub(crate) const NO_NODE: NodeId = NodeId(0);

/// A table by node.
pub(crate) type ById<T> = IdMap<NodeId, T>;

/// All nodes of a device.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: ById<Node>,
    files: u64,
    /// Bytes of the records of all nodes and maps.
    live_bytes: u64,
}

/// A file or directory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) parent: NodeId,
    pub(crate) name: Arc<[u8]>,
    /// The frame that holds it as it now is.
    pub(crate) home: u64,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Directory(BTreeMap<Arc<[u8]>, NodeId>),
    File(File),
}

/// What the card knows of a file.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// The size that is logged, or about to be.
    pub(crate) size: u64,
    /// The size that readers see: its frame is written.
    pub(crate) visible: u64,
    pub(crate) map: FileMap,
    /// The last frame that says something about this file.
    pub(crate) sequence: u64,
    /// The last frame that takes bytes away from it. Until it is written, the file has less here than on the device.
    pub(crate) taken_away: u64,
    /// Requests that are at the file's data.
    pub(crate) in_flight: u32,
    /// What lies beyond the size, in segments that the file has, may not be zero.
    pub(crate) garbage: bool,
    /// Some segments were mapped so recently that their frame may not be written: see `fresh` of the engine.
    pub(crate) fresh: bool,
    /// Requests that changed what readers see, or may: how many have begun, and how many of them are not over.
    pub(crate) begun: u64,
    pub(crate) changing: u32,
}

impl File {
    /// A request begins that may change what readers see. It is one even if it fails later, since what a failed write has
    /// left behind is known to nobody.
    pub(crate) fn begin_change(&mut self) {
        self.begun += 1;
        self.changing += 1;
    }

    /// It is over, and nothing of it is at the device any more.
    pub(crate) fn end_change(&mut self) {
        self.changing -= 1;
    }

    /// What readers see. While it changes it has none: counting beginnings alone would give two reads the same version
    /// of which one came before the bytes of a write that had begun, and the other one after them.
    pub(crate) fn version(&self) -> Option<FileVersion> {
        let still = self.changing == 0 || plant::is_planted(Bug::VersionWhileChanging);
        still.then_some(FileVersion(self.begun))
    }
}

impl Node {
    pub(crate) fn kind(&self) -> NodeKind {
        match self.body {
            Body::Directory(_) => NodeKind::Directory,
            Body::File(_) => NodeKind::File,
        }
    }

    pub(crate) fn record(&self, id: NodeId) -> NodeRecord<'_> {
        let size = match &self.body {
            Body::Directory(_) => 0,
            Body::File(file) => file.size,
        };
        NodeRecord { id, parent: self.parent, kind: self.kind(), size, name: &self.name }
    }

    fn live_bytes(&self) -> u64 {
        let map = match &self.body {
            Body::Directory(_) => 0,
            Body::File(file) => file.map.record_bytes(),
        };
        node_record_len(self.name.len()) as u64 + map
    }
}

/// What a rename does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renaming {
    pub(crate) node: NodeId,
    /// What had the name before, and is removed.
    pub(crate) replaced: Option<NodeId>,
}

impl Tree {
    /// A tree of the root and these nodes. Directories know nothing of what is in them until they [adopt](Self::adopt)
    /// it.
    pub(crate) fn of(mut nodes: ById<Node>) -> Self {
        let root = Node {
            parent: NO_NODE,
            name: Arc::from(&b""[..]),
            home: 0,
            body: Body::Directory(BTreeMap::new()),
        };
        nodes.insert(ROOT, root);
        let files = nodes.values().filter(|node| node.kind() == NodeKind::File).count() as u64;
        let live_bytes = nodes.iter().filter(|(id, _)| **id != ROOT).map(|(_, node)| node.live_bytes()).sum();
        Self { nodes, files, live_bytes }
    }

    pub(crate) fn files(&self) -> u64 {
        self.files
    }

    pub(crate) fn directories(&self) -> u64 {
        self.nodes.len() as u64 - self.files
    }

    /// Bytes of the log that count.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// A file, to work on its data.
    pub(crate) fn file_mut(&mut self, id: NodeId) -> Result<&mut File, FileError> {
        match self.nodes.get_mut(&id).map(|node| &mut node.body) {
            Some(Body::File(file)) => Ok(file),
            Some(Body::Directory(_)) => Err(FileError::IsADirectory),
            None => Err(FileError::NotFound),
        }
    }

    pub(crate) fn file(&self, id: NodeId) -> Result<&File, FileError> {
        match self.nodes.get(&id).map(|node| &node.body) {
            Some(Body::File(file)) => Ok(file),
            Some(Body::Directory(_)) => Err(FileError::IsADirectory),
            None => Err(FileError::NotFound),
        }
    }

    /// Changes a file's map, and keeps count of what is alive.
    pub(crate) fn change_map<T>(&mut self, id: NodeId, change: impl FnOnce(&mut FileMap) -> T) -> Option<T> {
        let Some(Body::File(file)) = self.nodes.get_mut(&id).map(|node| &mut node.body) else { return None };
        self.live_bytes -= file.map.record_bytes();
        let result = change(&mut file.map);
        self.live_bytes += file.map.record_bytes();
        Some(result)
    }

    fn children(&self, id: NodeId) -> Result<&BTreeMap<Arc<[u8]>, NodeId>, FileError> {
        match self.nodes.get(&id).map(|node| &node.body) {
            Some(Body::Directory(children)) => Ok(children),
            Some(Body::File(_)) => Err(FileError::NotADirectory),
            None => Err(FileError::NotFound),
        }
    }

    fn children_mut(&mut self, id: NodeId) -> Option<&mut BTreeMap<Arc<[u8]>, NodeId>> {
        match self.nodes.get_mut(&id).map(|node| &mut node.body) {
            Some(Body::Directory(children)) => Some(children),
            _ => None,
        }
    }

    /// The node that a path leads to.
    pub(crate) fn find(&self, base: NodeId, path: &[u8]) -> Result<NodeId, FileError> {
        let mut at = base;
        if !self.nodes.contains_key(&base) {
            return Err(FileError::NotFound);
        }
        for name in path_names(path)? {
            at = *self.children(at)?.get(name).ok_or(FileError::NotFound)?;
        }
        Ok(at)
    }

    /// The directory of a path's last name, that name, and what has it.
    pub(crate) fn find_place<'a>(
        &self,
        base: NodeId,
        path: &'a [u8],
    ) -> Result<(NodeId, &'a [u8], Option<NodeId>), FileError> {
        path_names(path)?;
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (self.find(base, &path[..slash])?, &path[slash + 1..]),
            None => (base, path),
        };
        if name.is_empty() {
            return Err(FileError::BadName);
        }
        let holder = self.children(directory)?.get(name).copied();
        Ok((directory, name, holder))
    }

    /// Adds a node. The place was found free.
    pub(crate) fn insert(&mut self, id: NodeId, parent: NodeId, name: &[u8], kind: NodeKind) {
        let name: Arc<[u8]> = Arc::from(name);
        let body = match kind {
            NodeKind::Directory => Body::Directory(BTreeMap::new()),
            NodeKind::File => Body::File(File::default()),
        };
        if let Some(children) = self.children_mut(parent) {
            children.insert(Arc::clone(&name), id);
        }
        self.place(id, Node { parent, name, home: 0, body });
    }

    /// Puts a node in place. Its directory knows already.
    fn place(&mut self, id: NodeId, node: Node) {
        self.files += u64::from(node.kind() == NodeKind::File);
        self.live_bytes += node.live_bytes();
        self.nodes.insert(id, node);
    }

    /// Fills a directory with the nodes that say they are in it. `false` if it is none, or two have one name.
    pub(crate) fn adopt(&mut self, directory: NodeId, children: Vec<(Arc<[u8]>, NodeId)>) -> bool {
        let Some(adopted) = self.children_mut(directory) else { return false };
        let count = children.len();
        *adopted = children.into_iter().collect();
        adopted.len() == count
    }

    /// Whether a node may be removed.
    pub(crate) fn may_remove(&self, id: NodeId) -> Result<NodeKind, FileError> {
        if id == ROOT {
            return Err(FileError::Invalid);
        }
        match &self.nodes.get(&id).ok_or(FileError::NotFound)?.body {
            Body::Directory(children) if children.is_empty() => Ok(NodeKind::Directory),
            Body::Directory(_) => Err(FileError::NotEmpty),
            Body::File(_) => Ok(NodeKind::File),
        }
    }

    /// Takes a node out.
    pub(crate) fn remove(&mut self, id: NodeId) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        if let Some(children) = self.children_mut(node.parent)
            && children.get(&node.name) == Some(&id)
        {
            children.remove(&node.name);
        }
        self.files -= u64::from(node.kind() == NodeKind::File);
        self.live_bytes -= node.live_bytes();
        Some(node)
    }

    /// Whether a rename may be, and what it does.
    pub(crate) fn may_rename(
        &self,
        node: NodeId,
        directory: NodeId,
        holder: Option<NodeId>,
        replace: bool,
    ) -> Result<Renaming, FileError> {
        if node == ROOT {
            return Err(FileError::Invalid);
        }
        let found = self.nodes.get(&node).ok_or(FileError::NotFound)?;
        let kind = found.kind();
        // A file has nothing in it to be moved into, and what stays in its directory is not moved.
        if kind == NodeKind::Directory && found.parent != directory {
            self.may_hold(directory, node)?;
        }
        let Some(holder) = holder.filter(|holder| *holder != node) else {
            return Ok(Renaming { node, replaced: None });
        };
        if !replace {
            return Err(FileError::Exists);
        }
        match (kind, self.may_remove(holder)?) {
            (NodeKind::File, NodeKind::Directory) => Err(FileError::IsADirectory),
            (NodeKind::Directory, NodeKind::File) => Err(FileError::NotADirectory),
            _ => Ok(Renaming { node, replaced: Some(holder) }),
        }
    }

    /// Whether a directory may be moved into another one: it is not that one, and not above it.
    fn may_hold(&self, directory: NodeId, moved: NodeId) -> Result<(), FileError> {
        let mut above = directory;
        for _ in 0..LOOK_UP_MAX {
            if above == NO_NODE {
                return Ok(());
            }
            if above == moved {
                return Err(FileError::WithinItself);
            }
            above = self.nodes.get(&above).map_or(NO_NODE, |node| node.parent);
        }
        // No path leads here from the root.
        if above == NO_NODE { Ok(()) } else { Err(FileError::BadName) }
    }

    /// Gives a node another place. What had it before was removed.
    pub(crate) fn rename(&mut self, id: NodeId, directory: NodeId, name: &[u8]) {
        let Some(mut node) = self.remove(id) else { return };
        node.parent = directory;
        node.name = Arc::from(name);
        if let Some(children) = self.children_mut(directory) {
            children.insert(Arc::clone(&node.name), id);
        }
        self.place(id, node);
    }

    /// The entries of a directory behind a name, in order.
    pub(crate) fn list(
        &self,
        directory: NodeId,
        after: &[u8],
    ) -> Result<impl Iterator<Item = Entry<'_>>, FileError> {
        let children = self.children(directory)?;
        let from: Bound<&[u8]> = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(after) };
        Ok(children.range::<[u8], _>((from, Bound::Unbounded)).filter_map(|(name, id)| {
            let node = self.nodes.get(id)?;
            Some(Entry { id: *id, name, kind: node.kind(), size: node.size() })
        }))
    }
}

impl Node {
    /// Bytes of a file, entries of a directory.
    pub(crate) fn size(&self) -> u64 {
        match &self.body {
            Body::Directory(children) => children.len() as u64,
            Body::File(file) => file.visible,
        }
    }

    /// Segments that it has.
    pub(crate) fn segments(&self) -> u32 {
        match &self.body {
            Body::Directory(_) => 0,
            Body::File(file) => file.map.segments(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::of(ById::default());
        tree.insert(NodeId(2), ROOT, b"a", NodeKind::Directory);
        tree.insert(NodeId(3), NodeId(2), b"b", NodeKind::Directory);
        tree.insert(NodeId(4), NodeId(3), b"file", NodeKind::File);
        tree
    }

    #[test]
    fn paths_lead_to_nodes() {
        let tree = tree();
        assert_eq!(tree.find(ROOT, b""), Ok(ROOT));
        assert_eq!(tree.find(ROOT, b"a/b/file"), Ok(NodeId(4)));
        assert_eq!(tree.find(NodeId(3), b"file"), Ok(NodeId(4)));
        assert_eq!(tree.find(ROOT, b"a/c"), Err(FileError::NotFound));
        assert_eq!(tree.find(ROOT, b"a/b/file/x"), Err(FileError::NotADirectory));
        assert_eq!(tree.find(ROOT, b"a//b"), Err(FileError::BadName));
        assert_eq!(tree.find(NodeId(99), b""), Err(FileError::NotFound));
        assert_eq!(tree.find_place(ROOT, b"a/new"), Ok((NodeId(2), &b"new"[..], None)));
        assert_eq!(tree.find_place(ROOT, b""), Err(FileError::BadName));
    }

    #[test]
    fn a_directory_never_ends_up_in_itself() {
        let tree = tree();
        assert_eq!(tree.may_rename(NodeId(2), NodeId(3), None, true), Err(FileError::WithinItself));
        assert_eq!(tree.may_rename(NodeId(2), NodeId(2), None, true), Err(FileError::WithinItself));
        assert_eq!(tree.may_rename(ROOT, NodeId(3), None, true), Err(FileError::Invalid));
        let ok = Renaming { node: NodeId(3), replaced: None };
        assert_eq!(tree.may_rename(NodeId(3), ROOT, None, true), Ok(ok));
    }

    #[test]
    fn directories_are_moved_as_deep_as_a_path_leads_and_no_deeper() {
        let mut tree = Tree::of(ById::default());
        tree.insert(NodeId(2), ROOT, b"moved", NodeKind::Directory);
        tree.insert(NodeId(3), ROOT, b"file", NodeKind::File);
        let deepest = PATH_LEN_MAX as u64 / 2;
        let at = |depth: u64| if depth == 0 { ROOT } else { NodeId(100 + depth) };
        for depth in 1..=10 * deepest {
            tree.insert(at(depth), at(depth - 1), b"d", NodeKind::Directory);
        }
        let path = b"d/".repeat(deepest as usize);
        assert_eq!(tree.find(ROOT, &path[..path.len() - 1]), Ok(at(deepest)), "a path leads there");
        let into = |node, depth| tree.may_rename(node, at(depth), None, true).map(|_| ());
        assert_eq!(into(NodeId(2), deepest), Ok(()));
        assert_eq!(into(NodeId(2), deepest + 1), Err(FileError::BadName));
        assert_eq!(into(NodeId(2), 10 * deepest), Err(FileError::BadName));
        assert_eq!(into(at(1), deepest), Err(FileError::WithinItself));
        assert_eq!(into(at(1), 10 * deepest), Err(FileError::BadName));
        assert_eq!(into(at(10 * deepest), 0), Ok(()), "what is deeper comes up again");
        assert_eq!(into(NodeId(3), 10 * deepest), Ok(()), "a file holds nothing");
        assert_eq!(into(at(10 * deepest), 10 * deepest - 1), Ok(()), "it stays where it is");
    }

    #[test]
    fn renaming_replaces_like_with_like() {
        let mut tree = tree();
        tree.insert(NodeId(5), ROOT, b"other", NodeKind::File);
        let onto = |tree: &Tree, node, holder, replace| tree.may_rename(node, ROOT, Some(holder), replace);
        assert_eq!(onto(&tree, NodeId(4), NodeId(5), false), Err(FileError::Exists));
        assert_eq!(onto(&tree, NodeId(4), NodeId(2), true), Err(FileError::NotEmpty));
        assert_eq!(onto(&tree, NodeId(3), NodeId(5), true), Err(FileError::NotADirectory));
        let replaces = Renaming { node: NodeId(4), replaced: Some(NodeId(5)) };
        assert_eq!(onto(&tree, NodeId(4), NodeId(5), true), Ok(replaces));
        assert_eq!(onto(&tree, NodeId(5), NodeId(5), false).unwrap().replaced, None, "onto itself");
        tree.remove(NodeId(5));
        tree.rename(NodeId(4), ROOT, b"other");
        assert_eq!(tree.find(ROOT, b"other"), Ok(NodeId(4)));
        assert_eq!(tree.find(ROOT, b"a/b/file"), Err(FileError::NotFound));
        assert_eq!((tree.files(), tree.directories()), (1, 3));
    }

    #[test]
    fn what_is_alive_is_counted_back_to_nothing() {
        let mut tree = tree();
        tree.rename(NodeId(4), ROOT, b"a much longer name than before");
        assert!(tree.live_bytes() > 0);
        for id in [4, 3, 2] {
            assert!(tree.may_remove(NodeId(id)).is_ok());
            tree.remove(NodeId(id));
        }
        assert_eq!((tree.live_bytes(), tree.files(), tree.directories()), (0, 0, 1));
    }

    #[test]
    fn lists_go_on_where_they_stopped() {
        let mut tree = tree();
        for (index, name) in [b"x", b"y", b"z"].into_iter().enumerate() {
            tree.insert(NodeId(10 + index as u64), NodeId(3), name, NodeKind::File);
        }
        let names = |after: &[u8]| -> Vec<Vec<u8>> {
            tree.list(NodeId(3), after).unwrap().map(|entry| entry.name.to_vec()).collect()
        };
        assert_eq!(names(b""), [&b"file"[..], b"x", b"y", b"z"]);
        assert_eq!(names(b"x"), [b"y", b"z"]);
        assert_eq!(names(b"gone"), [b"x", b"y", b"z"], "a name that is gone is still a place to go on from");
        assert_eq!(tree.list(NodeId(4), b"").err(), Some(FileError::NotADirectory));
    }
}
