//! Names and directories: done in memory at once, answered when the log has it.

use std::sync::Arc;

use ob_core::{NodeId, NodeKind};
use ob_format::files::{FRAME_HEADER_LEN, REMOVE_LEN, node_record_len};
use ob_wire_link::files::{FileError, entry_len, path_names, push_entry};

use super::{CardFiles, Draining, FlightId, Ghost, Kind, MetadataOp, Outcome, Unheard};
use crate::map::Stretch;
use crate::plant::{self, Bug};
use crate::tree::{Body, Renaming};

impl MetadataOp {
    fn changes(&self) -> bool {
        match self {
            Self::Open { create, .. } => *create,
            Self::MakeDirectory { .. } | Self::Remove { .. } | Self::Rename { .. } => true,
            Self::List { .. } | Self::Stat { .. } | Self::Space | Self::Hold { .. } | Self::LetGo { .. } => {
                false
            }
        }
    }

    /// Whether it makes the log longer for good.
    fn adds(&self) -> bool {
        matches!(self, Self::Open { create: true, .. } | Self::MakeDirectory { .. })
    }
}

impl CardFiles {
    pub(super) fn start_metadata(&mut self, id: FlightId) {
        let Some(Kind::Metadata(op)) = self.flights.get(id).map(|flight| &flight.kind) else { return };
        if let MetadataOp::Hold { file } = *op
            && self.must_drain(id, file)
        {
            return;
        }
        let Some(Kind::Metadata(op)) = self.flights.get_mut(id).map(|flight| &mut flight.kind) else {
            return;
        };
        let room = if matches!(op, MetadataOp::Remove { .. }) {
            self.log.has_room_to_remove()
        } else {
            self.log.has_room()
        };
        if op.changes() && !self.frozen && !room {
            self.waits.log.push_back(id);
            return;
        }
        // The flight's own copy is not needed any more: it is done once, here.
        let op = std::mem::replace(op, MetadataOp::Space);
        let result = self.run_metadata(id, &op);
        // What the answer tells must be on the device, whoever brought it about, and so must what an error saw.
        let sequence = if plant::is_planted(Bug::AnswerBeforeLog) { 0 } else { self.log.pending() };
        self.answer_after(id, sequence, result);
    }

    fn run_metadata(&mut self, id: FlightId, op: &MetadataOp) -> Result<Outcome, FileError> {
        if op.changes() && self.frozen && !self.finds(op) {
            return Err(FileError::ReadOnly);
        }
        if self.frozen && self.is_unsaid(op) {
            return Err(FileError::ReadOnly);
        }
        let crowded = self.tree.live_bytes() > self.log.live_max();
        if crowded && op.adds() && !self.finds(op) {
            return Err(FileError::NoSpace);
        }
        match op {
            MetadataOp::Open { base, path, create, exclusive } => self.open(*base, path, *create, *exclusive),
            MetadataOp::MakeDirectory { base, path } => {
                let (directory, name, holder) = self.tree.find_place(*base, path)?;
                if holder.is_some() {
                    return Err(FileError::Exists);
                }
                self.create(directory, name, NodeKind::Directory)
            }
            MetadataOp::Remove { base, path, only } => {
                let node = self.tree.find(*base, path)?;
                let kind = self.tree.node(node).map(crate::tree::Node::kind);
                match (only, kind) {
                    (Some(NodeKind::File), Some(NodeKind::Directory)) => return Err(FileError::IsADirectory),
                    (Some(NodeKind::Directory), Some(NodeKind::File)) => {
                        return Err(FileError::NotADirectory);
                    }
                    _ => {}
                }
                self.tree.may_remove(node)?;
                self.may_change(node)?;
                let sequence = self.log.push_remove(node);
                self.unheard(node, sequence);
                self.bury(node, sequence);
                Ok(Outcome::Done)
            }
            MetadataOp::Rename { base, path, to_base, to_path, replace } => {
                self.rename((*base, path), (*to_base, to_path), *replace)
            }
            MetadataOp::List { directory, after, most } => self.list(*directory, after, *most),
            MetadataOp::Stat { base, path } => {
                let node = self.tree.find(*base, path)?;
                self.node_info(node).map(Outcome::Node).ok_or(FileError::NotFound)
            }
            MetadataOp::Space => Ok(Outcome::Space(self.space_info())),
            MetadataOp::Hold { file } => {
                self.tree.file(*file)?;
                // Whose changes it waited for, that one has the file already.
                let has_waited = self.draining.get(file).is_some_and(|draining| draining.flight == id);
                if has_waited {
                    self.draining.remove(file);
                } else {
                    self.may_change(*file)?;
                    self.held.insert(*file, ());
                }
                self.node_info(*file).map(Outcome::Node).ok_or(FileError::NotFound)
            }
            MetadataOp::LetGo { file } => {
                self.held.remove(file);
                Ok(Outcome::Done)
            }
        }
    }

    /// Whether a file that is to be held is still being changed by requests that came before. No more of them are taken
    /// from here on; readers may stay, because they change nothing.
    fn must_drain(&mut self, id: FlightId, file: NodeId) -> bool {
        if let Some(draining) = self.draining.get(&file).filter(|draining| draining.flight == id) {
            return draining.changes > 0;
        }
        let changes = self.flights.iter().filter(|flight| flight.changes(file)).count();
        if changes == 0 || self.is_held(file) || self.tree.file(file).is_err() {
            return false;
        }
        self.held.insert(file, ());
        self.draining.insert(file, Draining { flight: id, changes });
        true
    }

    /// A request that changed a file is over.
    pub(super) fn drained_one(&mut self, file: NodeId) {
        if let Some(draining) = self.draining.get_mut(&file) {
            draining.changes = draining.changes.saturating_sub(1);
            if draining.changes == 0 {
                self.ready.push_back(draining.flight);
            }
        }
    }

    fn may_change(&self, node: NodeId) -> Result<(), FileError> {
        if self.is_held(node) { Err(FileError::InUse) } else { Ok(()) }
    }

    /// Whether a node is held, or a directory with one that is somewhere below it.
    fn holds_below(&self, node: NodeId) -> bool {
        self.held.keys().any(|held| {
            let mut at = Some(*held);
            while let Some(above) = at.filter(|above| *above != node) {
                at = self.tree.node(above).map(|found| found.parent);
            }
            at.is_some()
        })
    }

    /// Whether a request that may create something finds it there.
    fn finds(&self, op: &MetadataOp) -> bool {
        match op {
            MetadataOp::Open { base, path, .. } => self.tree.find(*base, path).is_ok(),
            _ => false,
        }
    }

    fn open(
        &mut self,
        base: NodeId,
        path: &[u8],
        create: bool,
        exclusive: bool,
    ) -> Result<Outcome, FileError> {
        if !create {
            let node = self.tree.find(base, path)?;
            return self.node_info(node).map(Outcome::Node).ok_or(FileError::NotFound);
        }
        match self.tree.find_place(base, path)? {
            (_, _, Some(_)) if exclusive => Err(FileError::Exists),
            (_, _, Some(node)) => self.node_info(node).map(Outcome::Node).ok_or(FileError::NotFound),
            (directory, name, None) => self.create(directory, name, NodeKind::File),
        }
    }

    fn create(&mut self, directory: NodeId, name: &[u8], kind: NodeKind) -> Result<Outcome, FileError> {
        let node = self.log.new_node();
        self.tree.insert(node, directory, name, kind);
        let sequence = self.log_node(node);
        self.unheard(node, sequence);
        self.node_info(node).map(Outcome::Node).ok_or(FileError::NotFound)
    }

    fn rename(
        &mut self,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        replace: bool,
    ) -> Result<Outcome, FileError> {
        let node = self.tree.find(from.0, from.1)?;
        let (directory, name, holder) = self.tree.find_place(to.0, to.1)?;
        let Renaming { node, replaced } = self.tree.may_rename(node, directory, holder, replace)?;
        if holder == Some(node) {
            return Ok(Outcome::Done);
        }
        if self.holds_below(node) || replaced.is_some_and(|replaced| self.is_held(replaced)) {
            return Err(FileError::InUse);
        }
        let longer = self.tree.node(node).is_some_and(|node| name.len() > node.name.len());
        if longer && self.tree.live_bytes() > self.log.live_max() {
            return Err(FileError::NoSpace);
        }
        self.log.reserve(REMOVE_LEN + node_record_len(name.len()));
        if let Some(replaced) = replaced {
            let sequence = self.log.push_remove(replaced);
            self.unheard(replaced, sequence);
            self.bury(replaced, sequence);
            if plant::is_planted(Bug::RenameInTwoFrames) {
                self.log.reserve(self.geometry.frame_max() - FRAME_HEADER_LEN);
            }
        }
        self.unheard(node, self.log.pending());
        self.tree.rename(node, directory, name);
        let sequence = self.log_node(node);
        self.unheard(node, sequence);
        Ok(Outcome::Done)
    }

    /// With this frame the name that a node has is given or taken away, or what is told under it becomes less.
    pub(super) fn unheard(&mut self, node: NodeId, sequence: u64) {
        if let Some(found) = self.tree.node(node) {
            let (directory, name) = (found.parent, Arc::clone(&found.name));
            self.unheard.push_back(Unheard { sequence, directory, name, node });
        }
    }

    /// Nothing is told from here on of what the log may not have. There may be thousands of such names, and a path may have as many:
    /// so they are looked up, and not gone through for each.
    pub(super) fn leave_unsaid(&mut self) {
        for Unheard { directory, name, node, .. } in self.unheard.drain(..) {
            self.unsaid.names.entry(directory).or_default().insert(name);
            self.unsaid.nodes.insert(node, ());
            self.unsaid.directories.insert(directory, ());
            if let Some(found) = self.tree.node(directory) {
                self.unsaid.above.insert(found.parent, ());
            }
        }
    }

    /// Whether what is asked for hangs on a name that was changed here and not on the device, or would tell of it.
    fn is_unsaid(&self, op: &MetadataOp) -> bool {
        let unsaid = &self.unsaid;
        match op {
            MetadataOp::Open { base, path, .. } | MetadataOp::Stat { base, path } => {
                if unsaid.nodes.contains_key(base) {
                    return true;
                }
                let mut at = *base;
                for name in path_names(path).into_iter().flatten() {
                    if unsaid.names.get(&at).is_some_and(|names| names.contains(name)) {
                        return true;
                    }
                    // What is behind a name that is not there is not there either.
                    let Ok(next) = self.tree.find(at, name) else { return false };
                    at = next;
                }
                unsaid.nodes.contains_key(&at) || unsaid.directories.contains_key(&at)
            }
            MetadataOp::List { directory, .. } => [&unsaid.nodes, &unsaid.directories, &unsaid.above]
                .into_iter()
                .any(|nodes| nodes.contains_key(directory)),
            MetadataOp::Hold { file } => unsaid.nodes.contains_key(file),
            // Whatever changes something is refused.
            MetadataOp::MakeDirectory { .. }
            | MetadataOp::Remove { .. }
            | MetadataOp::Rename { .. }
            | MetadataOp::Space
            | MetadataOp::LetGo { .. } => false,
        }
    }

    fn list(&self, directory: NodeId, after: &[u8], most: u32) -> Result<Outcome, FileError> {
        let (mut bytes, mut more) = (Vec::new(), false);
        for entry in self.tree.list(directory, after)? {
            if bytes.len() + entry_len(entry.name.len()) > most as usize {
                more = true;
                break;
            }
            push_entry(&mut bytes, &entry);
        }
        // Not even one entry fits: the caller would ask for the same for ever.
        if more && bytes.is_empty() { Err(FileError::Invalid) } else { Ok(Outcome::Entries { bytes, more }) }
    }

    /// Puts a node as it now is into the log.
    pub(super) fn log_node(&mut self, id: NodeId) -> u64 {
        let Some(node) = self.tree.node_mut(id) else { return 0 };
        let sequence = self.log.push_node(&node.record(id));
        node.home = sequence;
        if let Body::File(file) = &mut node.body {
            file.sequence = sequence;
        }
        sequence
    }

    /// Takes a node out of the tree. Its segments stay where they are until no request is at them.
    fn bury(&mut self, id: NodeId, sequence: u64) {
        let Some(node) = self.tree.remove(id) else { return };
        let Body::File(file) = node.body else { return };
        let runs = file.map.runs().map(|run| Stretch { start: run.physical, count: run.count });
        let stretches: Vec<Stretch> = runs.collect();
        for stretch in &stretches {
            self.space.unmap(*stretch);
        }
        if file.in_flight > 0 && !plant::is_planted(Bug::GhostIgnored) {
            self.ghosts.insert(id, Ghost { stretches, sequence, in_flight: file.in_flight });
        } else {
            for stretch in stretches {
                self.space.release(sequence, stretch);
            }
        }
        self.fresh.remove(&id);
        // Whoever waits for the file, or has it for itself, finds out that it is gone.
        let owner = self.exclusive.remove(&id);
        let waiting = self.waits.file.remove(&id).unwrap_or_default();
        self.ready.extend(waiting.into_iter().chain(owner));
    }
}
