//! A chunk, as the server has it in memory.

use std::collections::VecDeque;

use ob_core::{BlockLen, Epoch, NodeId, Units};
use ob_format::volume::{ChunkKind, DirectorySummary, LedgerFact, RECORDS_START};
use ob_memory::Slice;

use super::batch::Batch;
use super::directory::DirectoryState;
use super::peers::ReplyTo;
use crate::wire::{End, EndState, ReplicaState, Request};

/// A request whose bytes were checked.
pub(super) struct Task {
    pub(super) to: ReplyTo,
    pub(super) request: Request,
    pub(super) payload: Option<Slice>,
    /// Of records: where they end, how far all members had the chunk by them, and what they are.
    pub(super) end: Units,
    pub(super) everywhere: Units,
    pub(super) records: Option<ChunkKind>,
}

impl Task {
    /// The epoch in which it was asked.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.request.fence().map(|(_, epoch)| epoch)
    }
}

/// A chunk.
pub(super) struct Chunk {
    pub(super) file: NodeId,
    pub(super) epoch: Epoch,
    pub(super) kind: ChunkKind,
    pub(super) block_len: BlockLen,
    /// Of the file, as it was made.
    pub(super) length: Units,
    pub(super) state: ReplicaState,
    /// By which epoch it was stopped or sealed.
    pub(super) by: Epoch,
    /// How far it is durable.
    pub(super) end: Units,
    pub(super) everywhere: Units,
    pub(super) end_state: EndState,
    pub(super) content_crc: u32,
    /// The bytes between the beginning of a device block and the end of what was sent to the device, if nothing but zeros lies
    /// behind them: then a write can be of whole blocks.
    pub(super) tail: Option<Vec<u8>>,
    /// It was made, and its header is durable.
    pub(super) is_here: bool,
    /// Nothing goes on with it before the ledger is durable up to this ticket.
    pub(super) gate: u64,
    /// The file is longer than it was sealed.
    pub(super) is_to_be_cut: bool,
    /// Of a sealed one.
    pub(super) directory: DirectoryState,
    /// Its file is there, and is none that can be served: it stays as it is until its owner deletes it.
    pub(super) left_alone: Option<LeftAlone>,
    pub(super) work: Option<Box<Work>>,
}

/// What is known of a chunk that cannot be served.
pub(super) struct LeftAlone {
    /// What the ledger says of it.
    pub(super) fact: Option<LedgerFact>,
}

/// What is to be done with a chunk.
#[derive(Default)]
pub(super) struct Work {
    pub(super) queue: VecDeque<Task>,
    /// It is among those that are looked at next.
    pub(super) is_ready: bool,
    /// It is among those that wait for a buffer to write from.
    pub(super) is_unbuffered: bool,
    /// It is among those that wait for the ledger.
    pub(super) is_gated: bool,
    /// Its place among the chunks with which something goes on.
    pub(super) busy_at: Option<usize>,
    /// The buffer that it has waited for.
    pub(super) granted: Option<Slice>,
    /// Records that are written next.
    pub(super) batch: Option<Batch>,
    /// Records that are being written; their buffer is on its way.
    pub(super) writing: Option<Batch>,
    /// What is being done in many steps.
    pub(super) running: Option<Running>,
}

/// What is being done in many steps.
pub(super) enum Running {
    Create(Task),
    Delete(Task),
    /// Compares records that were sent with those that are there.
    Compare(Task),
    /// Looks how far the chunk reaches behind records that were filled in.
    Scan(Vec<ReplyTo>),
    Seal(Task),
    Cut,
    /// Makes the directory, for which so many bytes are promised.
    Directory(u64),
    List(Task),
    Repair(Task),
    /// Looks whether records are whole.
    Check(Task),
}

/// How far a chunk will be when everything that was taken is written.
#[derive(Clone, Copy)]
pub(super) struct Front {
    pub(super) end: Units,
    pub(super) everywhere: Units,
    pub(super) content_crc: u32,
}

impl Chunk {
    /// A chunk that is being made.
    pub(super) fn new(
        epoch: Epoch,
        kind: ChunkKind,
        block_len: BlockLen,
        length: Units,
        state: ReplicaState,
    ) -> Self {
        Self {
            file: NodeId(0),
            epoch,
            kind,
            block_len,
            length,
            state,
            by: epoch,
            end: RECORDS_START,
            everywhere: RECORDS_START,
            end_state: EndState::Known,
            content_crc: 0,
            tail: Some(Vec::new()),
            is_here: false,
            gate: 0,
            is_to_be_cut: false,
            directory: DirectoryState::Unknown,
            left_alone: None,
            work: None,
        }
    }

    /// A chunk whose file cannot be served. Of what it is nothing is known but its name and what the ledger says.
    pub(super) fn left_alone(file: NodeId, fact: Option<LedgerFact>) -> Self {
        let mut chunk = Self::new(
            Epoch::FIRST,
            ChunkKind::Data,
            BlockLen::Small,
            RECORDS_START,
            // Nothing was promised to it.
            ReplicaState::Sealed,
        );
        (chunk.file, chunk.is_here, chunk.left_alone) = (file, true, Some(LeftAlone { fact }));
        chunk
    }

    pub(super) fn front(&self) -> Front {
        let work = self.work.as_deref();
        let last = work.and_then(|work| work.batch.as_ref().or(work.writing.as_ref()));
        let here = Front { end: self.end, everywhere: self.everywhere, content_crc: self.content_crc };
        last.map_or(here, |batch| batch.front)
    }

    pub(super) fn end(&self) -> End {
        End {
            end: self.end,
            everywhere: self.everywhere,
            state: self.end_state,
            content_crc: self.content_crc,
        }
    }

    /// What the directory of a sealed one has to fit.
    pub(super) fn summary(&self) -> Option<DirectorySummary> {
        let summary = DirectorySummary { length: self.end, content_crc: self.content_crc };
        (self.state == ReplicaState::Sealed).then_some(summary)
    }

    /// Where reads end.
    pub(super) fn readable(&self) -> Units {
        if self.state == ReplicaState::Sealed { self.end } else { self.length }
    }

    pub(super) fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Whether nothing is being done with it.
    pub(super) fn is_at_rest(&self) -> bool {
        self.work
            .as_deref()
            .is_none_or(|work| work.batch.is_none() && work.writing.is_none() && work.running.is_none())
    }

    /// Whether nothing goes on or waits that takes away what is durable, so that a read of it need not wait.
    pub(super) fn may_be_read(&self) -> bool {
        let is_there = self.is_here && self.left_alone.is_none();
        let Some(work) = self.work.as_deref() else { return is_there };
        let only_looks = |task: &Task| {
            matches!(
                task.request,
                Request::Append { .. }
                    | Request::Fill { .. }
                    | Request::Read { .. }
                    | Request::Stat { .. }
                    | Request::List { .. }
                    | Request::Check { .. }
                    | Request::Stop { .. }
            )
        };
        let is_changed = matches!(
            work.running,
            Some(Running::Create(_) | Running::Delete(_) | Running::Cut | Running::Repair(_))
        );
        is_there && !is_changed && work.queue.iter().all(only_looks)
    }
}
