//! Records of which nobody knows whether they count: their blocks are kept from other changes until their chunks are sealed.
//!
//! Whoever is answered before that, because its initiator has given it up or it has waited for too long, leaves a keeper of its blocks
//! behind: what the sealed chunk has of it enters the index all the same (I9), and a later change must come behind it (I3).

use ob_core::{SegmentName, VolumeId};
use ob_split::wire::Handle;
use ob_wire_nvme::Status;

use super::chunks::Unresolved;
use super::command::{Command, Span};
use super::core::TierCore;
use crate::plans::{HOST_HANDLES, Part};

/// Keeps the blocks of a command that was answered.
#[derive(Debug)]
pub(super) struct Keeper {
    volume: VolumeId,
    /// Records that are not resolved.
    left: u32,
}

impl Keeper {
    /// Of the blocks of a move.
    pub(super) const fn of_move(volume: VolumeId) -> Self {
        Self { volume, left: 1 }
    }
}

impl TierCore {
    /// Nobody knows what becomes of a record of a command.
    pub(super) fn leave_unresolved(&mut self, span: &Span, chunk: usize, record: Unresolved) {
        let owner = record.owner;
        let segment = self.segments.get_mut(&span.segment);
        let Some(chunk) = segment.and_then(|segment| segment.chunks.get_mut(chunk)) else { return };
        chunk.unresolved.push(record);
        if let Some(command) = self.commands.get_mut(&owner.0) {
            command.unresolved += 1;
        }
    }

    /// A command is answered, though records of it are unresolved: its blocks are kept by another.
    pub(super) fn keep_blocks(&mut self, handle: Handle) {
        let Some(command) = self.commands.get_mut(&handle.0) else { return };
        let (volume, left) = (command.volume, std::mem::take(&mut command.unresolved));
        (command.is_change, command.is_behind) = (false, false);
        let keeper = self.free_keeper();
        self.keepers.insert(keeper.0, Keeper { volume, left });
        if let Some(overlaps) = self.overlaps.get_mut(&volume) {
            overlaps.hand_over(handle, keeper);
        }
        for (name, place) in &self.closing {
            let Some(segment) = self.segments.get_mut(name) else { continue };
            let Some(chunk) = segment.chunks.get_mut(*place) else { continue };
            for record in chunk.unresolved.iter_mut().filter(|record| record.owner == handle) {
                record.owner = keeper;
            }
        }
    }

    /// Whether these records count the next owner decides: their commands are sent back, to be sent anew (I8).
    pub(super) fn give_unresolved_up(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let unresolved: Vec<Unresolved> =
            segment.chunks.iter_mut().flat_map(|chunk| std::mem::take(&mut chunk.unresolved)).collect();
        for record in unresolved {
            if let Some(command) = self.commands.get_mut(&record.owner.0) {
                command.fail(Status::NAMESPACE_NOT_READY);
            }
            self.record_resolved(record.owner, record.part, true);
        }
    }

    /// A number that no command can have.
    pub(super) fn free_keeper(&mut self) -> Handle {
        loop {
            self.last_keeper = self.last_keeper.wrapping_add(1) % HOST_HANDLES;
            let keeper = HOST_HANDLES + self.last_keeper;
            let is_taken = self.keepers.contains_key(&keeper) || self.movers.contains_key(&keeper);
            if !is_taken && !self.is_cutter(Handle(keeper)) {
                return Handle(keeper);
            }
        }
    }

    /// A record is done, or is to be done anew.
    pub(super) fn record_resolved(&mut self, owner: Handle, part: Part, is_done: bool) {
        if let Some(command) = self.commands.get_mut(&owner.0) {
            command.unresolved = command.unresolved.saturating_sub(1);
            if !is_done {
                command.put_back(part);
            }
            if command.unresolved == 0 {
                self.ready.push_back(owner);
            }
            return;
        }
        let Some(keeper) = self.keepers.get_mut(&owner.0) else { return };
        keeper.left = keeper.left.saturating_sub(1);
        if keeper.left > 0 {
            return;
        }
        let volume = keeper.volume;
        self.keepers.remove(&owner.0);
        self.blocks_free(volume, owner);
    }
}

impl Command {
    /// Blocks are to be done after all: before those behind them.
    pub(super) fn put_back(&mut self, part: Part) {
        let at = self.todo.iter().position(|other| other.first > part.first).unwrap_or(self.todo.len());
        self.todo.insert(at, part);
        // What follows each other is one again.
        let mut joined: Vec<Part> = Vec::with_capacity(self.todo.len());
        for part in self.todo.drain(..) {
            match joined.last_mut() {
                Some(last) if last.first + last.blocks == part.first => last.blocks += part.blocks,
                _ => joined.push(part),
            }
        }
        self.todo.extend(joined);
    }
}
