//! The ledger: which facts are durable, and how they get there.
//!
//! ```text
//!   push(fact) ─▶ ticket      pending ─▶ one durable write of the last block ─▶ durable up to a ticket
//!                                     └▶ no room: all that counts into a new file, renamed over the old one
//! ```

use std::collections::VecDeque;

use ob_core::{NodeId, ServerId};
use ob_files_card::MetadataOp;
use ob_format::files::ROOT;
use ob_format::volume::{LEDGER_ENTRY_LEN, LayoutError, LedgerEntry, LedgerFact};
use ob_memory::Slice;
use ob_wire_link::files::FileError;

use super::jobs::Io;
use crate::plant::{Bug, is_planted};

/// Where it lies, and where a new one is made.
pub(super) const PATH: &str = "chunks/ledger";
const PATH_NEW: &str = "chunks/ledger.new";
/// Bytes of its file at least.
const LEN_LEAST: u64 = 1 << 20;
/// Facts that one write takes at most.
const FACTS_A_WRITE: usize = 4096;

/// A ledger's file.
#[derive(Clone, Debug, Default)]
pub(super) struct LedgerFile {
    pub(super) file: NodeId,
    pub(super) len: u64,
    /// Bytes of entries.
    pub(super) at: u64,
    /// Those of them in the last block, if it is not full.
    pub(super) tail: Vec<u8>,
    /// Number of the last entry.
    pub(super) number: u64,
}

/// What is to be remembered.
#[derive(Default)]
pub(super) struct Ledger {
    server: ServerId,
    file: LedgerFile,
    pending: VecDeque<LedgerFact>,
    /// Ticket of the last fact that was pushed.
    last: u64,
    /// All tickets up to this one are durable.
    pub(super) durable: u64,
    /// What the file will be when the write under way is done, and how many facts it has.
    writing: Option<(LedgerFile, usize)>,
    /// How many of the facts a new file has that is being made.
    rewriting: Option<usize>,
    /// The files did not take a fact: nothing can be promised any more.
    pub(super) failed: Option<FileError>,
    /// It says what is not needed any more: it is written anew though it is not full.
    pub(super) is_outdated: bool,
}

impl Ledger {
    pub(super) fn new(server: ServerId, file: LedgerFile) -> Self {
        Self { server, file, ..Self::default() }
    }

    /// Something that must not be forgotten; it is durable when the ticket is.
    pub(super) fn push(&mut self, fact: LedgerFact) -> u64 {
        if is_planted(Bug::FenceForgotten) {
            return self.durable;
        }
        if self.failed.is_none() {
            self.pending.push_back(fact);
        }
        self.last += 1;
        self.last
    }

    /// Whether nothing will be durable that is not yet.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Bytes of its file, which a new one may have as well.
    pub(super) fn len(&self) -> u64 {
        self.file.len
    }

    /// The ticket of everything that was pushed.
    pub(super) fn latest(&self) -> u64 {
        self.last
    }

    /// Whether facts wait that no write has, or it is to be written anew.
    pub(super) fn is_wanting(&self) -> bool {
        let is_wanting = !self.pending.is_empty() || self.is_outdated;
        is_wanting && self.is_at_rest() && self.failed.is_none()
    }

    /// Whether nothing is on its way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.writing.is_none() && self.rewriting.is_none()
    }

    /// Whether what is pending finds no room, or it says too much.
    pub(super) fn is_to_be_rewritten(&self) -> bool {
        if self.is_outdated {
            return true;
        }
        let room = self.file.len.saturating_sub(self.file.at) / LEDGER_ENTRY_LEN as u64;
        (self.pending.len().min(FACTS_A_WRITE) as u64) > room
    }

    /// Begins a write: the file, the place, and the bytes.
    pub(super) fn begin_write(
        &mut self,
        mut buffer: Slice,
        block_len: usize,
    ) -> Result<(NodeId, u64, Slice), LayoutError> {
        let mut file = self.file.clone();
        let start = file.at - file.tail.len() as u64;
        let (mut bytes, durable) = (std::mem::take(&mut file.tail), file.number);
        let facts = self.pending.len().min(FACTS_A_WRITE);
        for fact in self.pending.iter().take(facts) {
            file.number += 1;
            let entry = LedgerEntry { number: file.number, durable, server: self.server, fact: *fact };
            bytes.extend_from_slice(&entry.encode()?);
        }
        file.at = start + bytes.len() as u64;
        file.tail = bytes.get(bytes.len() - bytes.len() % block_len..).unwrap_or_default().to_vec();
        buffer.truncate(bytes.len().next_multiple_of(block_len));
        buffer.fill(0);
        buffer.get_mut(..bytes.len()).ok_or(LayoutError::Missing)?.copy_from_slice(&bytes);
        let node = file.file;
        self.writing = Some((file, facts));
        Ok((node, start, buffer))
    }

    /// A write is over; whether it went well.
    pub(super) fn written(&mut self, result: Result<(), FileError>) {
        let Some((file, facts)) = self.writing.take() else { return };
        match result {
            Ok(()) => {
                self.file = file;
                self.forget(facts);
            }
            Err(error) => self.fail(error),
        }
    }

    fn forget(&mut self, facts: usize) {
        self.pending.drain(..facts.min(self.pending.len()));
        self.durable += facts as u64;
    }

    pub(super) fn fail(&mut self, error: FileError) {
        tracing::error!(%error, "the ledger cannot be written: this server promises nothing any more");
        self.failed = Some(error);
        self.pending.clear();
        (self.writing, self.rewriting) = (None, None);
    }

    /// Begins to write it anew with all that counts, of which the pending facts are a part: the server and the number that come
    /// first.
    pub(super) fn begin_rewrite(&mut self) -> (ServerId, u64) {
        self.is_outdated = false;
        self.rewriting = Some(self.pending.len());
        (self.server, self.file.number + 1)
    }

    /// It was written anew.
    pub(super) fn rewritten(&mut self, result: Result<LedgerFile, FileError>) {
        let Some(facts) = self.rewriting.take() else { return };
        match result {
            Ok(file) => {
                self.file = file;
                self.forget(facts);
            }
            Err(error) => self.fail(error),
        }
    }
}

/// Writes a ledger of these facts and puts it in the place of the one before.
pub(super) async fn rewrite(
    io: Io,
    server: ServerId,
    first: u64,
    facts: Vec<LedgerFact>,
) -> Result<LedgerFile, FileError> {
    let mut bytes = Vec::with_capacity((facts.len() + 1) * LEDGER_ENTRY_LEN);
    let mut number = first.max(1) - 1;
    for fact in std::iter::once(LedgerFact::Begin).chain(facts) {
        // Nobody sees the file before all of it is durable.
        let entry = LedgerEntry { number: number + 1, durable: number, server, fact };
        bytes.extend_from_slice(&entry.encode().map_err(|_| FileError::Invalid)?);
        number += 1;
    }
    io.remove(PATH_NEW).await?;
    let node = io.create(PATH_NEW).await?;
    let len = LEN_LEAST.max(2 * bytes.len() as u64).next_multiple_of(io.block_len as u64);
    io.resize(node.id, len).await?;
    for (index, piece) in bytes.chunks(io.piece_len()).enumerate() {
        io.write_block(node.id, (index * io.piece_len()) as u64, piece).await?;
    }
    io.flush().await?;
    let replace = MetadataOp::Rename {
        base: ROOT,
        path: PATH_NEW.into(),
        to_base: ROOT,
        to_path: PATH.into(),
        replace: true,
    };
    io.metadata(replace).await?;
    io.flush().await?;
    let tail = bytes.get(bytes.len() - bytes.len() % io.block_len..).unwrap_or_default().to_vec();
    Ok(LedgerFile { file: node.id, len, at: bytes.len() as u64, tail, number })
}
