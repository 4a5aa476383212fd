//! Files in memory, as a card answers for them.

use std::collections::BTreeMap;

use ob_core::{NodeId, NodeKind};
use ob_wire_link::files::{
    Entry, FileError, NodeInfo, Operation, ROOT, RequestHeader, SpaceInfo, entry_len, flag, path_names,
    push_entry, rename_paths,
};

pub struct Store {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    pub flushes: u64,
}

struct Node {
    parent: Option<u64>,
    content: Content,
}

enum Content {
    Directory(BTreeMap<Vec<u8>, u64>),
    File(Vec<u8>),
}

#[derive(Default)]
pub struct Done {
    pub length: u32,
    pub value: u64,
    pub info: Vec<u8>,
    pub payload: Option<Vec<u8>>,
}

impl Default for Store {
    fn default() -> Self {
        let root = Node { parent: None, content: Content::Directory(BTreeMap::new()) };
        Self { nodes: BTreeMap::from([(ROOT.0, root)]), next: 2, flushes: 0 }
    }
}

impl Store {
    pub fn content(&mut self, path: &str) -> Vec<u8> {
        let id = self.find(ROOT, path.trim_matches('/').as_bytes()).unwrap();
        self.file(NodeId(id)).unwrap().clone()
    }

    pub fn execute(
        &mut self,
        header: &RequestHeader,
        rest: &[u8],
        payload: &[u8],
    ) -> Result<Done, FileError> {
        let node = header.node;
        match Operation::from_code(header.operation).ok_or(FileError::Unsupported)? {
            Operation::Hello => Err(FileError::Invalid),
            Operation::Read => self.read(header),
            Operation::Write => self.write(header, payload),
            Operation::Flush => {
                self.flushes += 1;
                Ok(Done::default())
            }
            Operation::Open => self.open(header, rest),
            Operation::MakeDirectory => self.make_directory(node, rest),
            Operation::Remove => self.remove(header, rest),
            Operation::Rename => self.rename(header, rest),
            Operation::List => self.list(header, rest),
            Operation::Stat => self.find(node, rest).and_then(|id| self.info(id)),
            Operation::Resize => {
                self.file(node)?.resize(header.offset as usize, 0);
                self.info(node.0)
            }
            Operation::Zero => {
                let bytes = self.file(node)?;
                let end = bytes.len().min(header.offset as usize + header.length as usize);
                bytes[end.min(header.offset as usize)..end].fill(0);
                Ok(Done::default())
            }
            Operation::Space => {
                let files = self.nodes.values().filter(|node| matches!(node.content, Content::File(_)));
                let files = files.count() as u64;
                let directories = self.nodes.len() as u64 - files;
                let space =
                    SpaceInfo { total: 1 << 30, free: 1 << 29, files, directories, ..SpaceInfo::default() };
                Ok(Done { info: space.encode().to_vec(), ..Done::default() })
            }
        }
    }

    fn read(&mut self, header: &RequestHeader) -> Result<Done, FileError> {
        let bytes = self.file(header.node)?;
        let from = (header.offset as usize).min(bytes.len());
        let to = (from + header.length as usize).min(bytes.len());
        let payload = bytes[from..to].to_vec();
        Ok(Done { length: payload.len() as u32, payload: Some(payload), ..Done::default() })
    }

    fn write(&mut self, header: &RequestHeader, payload: &[u8]) -> Result<Done, FileError> {
        let bytes = self.file(header.node)?;
        let from = header.offset as usize;
        bytes.resize(bytes.len().max(from + payload.len()), 0);
        bytes[from..from + payload.len()].copy_from_slice(payload);
        Ok(Done { length: payload.len() as u32, value: bytes.len() as u64, ..Done::default() })
    }

    fn open(&mut self, header: &RequestHeader, path: &[u8]) -> Result<Done, FileError> {
        match self.find(header.node, path) {
            Ok(_) if header.flags & flag::EXCLUSIVE != 0 => Err(FileError::Exists),
            Ok(id) if matches!(self.nodes[&id].content, Content::Directory(_)) => {
                Err(FileError::IsADirectory)
            }
            Ok(id) => self.info(id),
            Err(FileError::NotFound) if header.flags & flag::CREATE != 0 => {
                let id = self.insert(header.node, path, Content::File(Vec::new()))?;
                self.info(id)
            }
            Err(error) => Err(error),
        }
    }

    fn make_directory(&mut self, node: NodeId, path: &[u8]) -> Result<Done, FileError> {
        if self.find(node, path).is_ok() {
            return Err(FileError::Exists);
        }
        let id = self.insert(node, path, Content::Directory(BTreeMap::new()))?;
        self.info(id)
    }

    fn remove(&mut self, header: &RequestHeader, path: &[u8]) -> Result<Done, FileError> {
        let id = self.find(header.node, path)?;
        match &self.nodes[&id].content {
            Content::File(_) if header.flags & flag::ONLY_DIRECTORY != 0 => {
                return Err(FileError::NotADirectory);
            }
            Content::Directory(_) if header.flags & flag::ONLY_FILE != 0 => {
                return Err(FileError::IsADirectory);
            }
            Content::Directory(entries) if !entries.is_empty() => return Err(FileError::NotEmpty),
            _ => {}
        }
        let (directory, name) = self.parent(header.node, path)?;
        self.entries(directory)?.remove(&name);
        self.nodes.remove(&id);
        Ok(Done::default())
    }

    fn rename(&mut self, header: &RequestHeader, rest: &[u8]) -> Result<Done, FileError> {
        let (from, to) = rename_paths(header, rest)?;
        let id = self.find(header.node, from)?;
        if self.find(header.node_more, to).is_ok() {
            if header.flags & flag::NO_REPLACE != 0 {
                return Err(FileError::Exists);
            }
            self.remove(&RequestHeader { node: header.node_more, flags: 0, ..*header }, to)?;
        }
        let (directory, name) = self.parent(header.node_more, to)?;
        let (old_directory, old_name) = self.parent(header.node, from)?;
        self.entries(old_directory)?.remove(&old_name);
        self.entries(directory)?.insert(name, id);
        self.nodes.get_mut(&id).unwrap().parent = Some(directory);
        Ok(Done::default())
    }

    fn list(&mut self, header: &RequestHeader, after: &[u8]) -> Result<Done, FileError> {
        let all = self.entries(header.node.0)?.clone();
        let (mut payload, mut more) = (Vec::new(), false);
        for (name, id) in all.iter().filter(|(name, _)| name.as_slice() > after) {
            // Short pages, so that small directories have several too.
            if payload.len() + entry_len(name.len()) > (header.length as usize).min(256) {
                more = true;
                break;
            }
            let (kind, size) = self.kind_and_size(*id);
            push_entry(&mut payload, &Entry { id: NodeId(*id), kind, size, name });
        }
        let length = payload.len() as u32;
        Ok(Done { length, value: u64::from(more), payload: Some(payload), ..Done::default() })
    }

    fn kind_and_size(&self, id: u64) -> (NodeKind, u64) {
        match &self.nodes[&id].content {
            Content::Directory(entries) => (NodeKind::Directory, entries.len() as u64),
            Content::File(bytes) => (NodeKind::File, bytes.len() as u64),
        }
    }

    fn info(&self, id: u64) -> Result<Done, FileError> {
        let (kind, size) = self.kind_and_size(id);
        let parent = self.nodes[&id].parent.map(NodeId);
        let info = NodeInfo { id: NodeId(id), kind, size, allocated: size, parent };
        Ok(Done { info: info.encode().to_vec(), ..Done::default() })
    }

    fn insert(&mut self, node: NodeId, path: &[u8], content: Content) -> Result<u64, FileError> {
        let (directory, name) = self.parent(node, path)?;
        let id = self.next;
        self.next += 1;
        self.entries(directory)?.insert(name, id);
        self.nodes.insert(id, Node { parent: Some(directory), content });
        Ok(id)
    }

    fn parent(&mut self, node: NodeId, path: &[u8]) -> Result<(u64, Vec<u8>), FileError> {
        let name = path_names(path)?.last().ok_or(FileError::Invalid)?.to_vec();
        let above = path[..path.len() - name.len()].strip_suffix(b"/").unwrap_or(&[]);
        let directory = self.find(node, above)?;
        self.entries(directory)?;
        Ok((directory, name))
    }

    fn find(&mut self, node: NodeId, path: &[u8]) -> Result<u64, FileError> {
        let mut id = node.0;
        self.nodes.get(&id).ok_or(FileError::NotFound)?;
        for name in path_names(path)? {
            id = *self.entries(id)?.get(name).ok_or(FileError::NotFound)?;
        }
        Ok(id)
    }

    fn entries(&mut self, id: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, FileError> {
        match &mut self.nodes.get_mut(&id).ok_or(FileError::NotFound)?.content {
            Content::Directory(entries) => Ok(entries),
            Content::File(_) => Err(FileError::NotADirectory),
        }
    }

    fn file(&mut self, node: NodeId) -> Result<&mut Vec<u8>, FileError> {
        match &mut self.nodes.get_mut(&node.0).ok_or(FileError::NotFound)?.content {
            Content::File(bytes) => Ok(bytes),
            Content::Directory(_) => Err(FileError::IsADirectory),
        }
    }
}
