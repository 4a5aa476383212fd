//! Memory of records: they are made one behind the other in long blocks, sent from there, and stay there for a while.
//!
//! ```text
//!   block 256 KiB: │ record │ record │ record │ … tail │      lend ─▶ an engine writes to the front of a tail ─▶ cut, give back
//!                    ▲ ▲ ▲                                    exact ─▶ a part of it at once, of bytes whose number is known
//!            channels, retained
//! ```
//!
//! A block comes back when nobody reads anything in it any more. What is retained goes, the oldest first, when a block is wanted and
//! none is there, and before that when more than three quarters are out. Whoever has a record waits for peers alone, or is a host, which has
//! half of the blocks at most: so those who wait for room get it.

use ob_memory::{Pool, Shared, Slice};

use super::config::PortConfig;
use super::retained::{Kept, Label, Retained};

/// Bytes of a block for records.
pub const RECORD_BLOCK_LEN: u32 = 256 << 10;
pub(super) const BLOCK_LEN: usize = RECORD_BLOCK_LEN as usize;
/// Blocks that are written to at a time, each by one engine's task.
const TAILS_MAX: usize = 4;
/// Records begin at multiples of this.
const ALIGNMENT: usize = 64;
/// One record is retained for each so many bytes: shorter ones do not fill the memory.
const RECORD_LEN: usize = 2048;
/// Longest record of somebody else's memory that is copied, to be retained.
const COPY_MAX: usize = 16 << 10;

/// What a port has retained, and what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedCounts {
    /// Records that are retained.
    pub records: u64,
    /// Their bytes, as they were sent.
    pub bytes: u64,
    /// Records that were found.
    pub hits: u64,
    /// Records that were looked for, and not found.
    pub misses: u64,
    /// Blocks of their memory that are out, those of records under way included.
    pub blocks: u32,
}

/// The memory of a port's records.
pub(super) struct RecordMemory {
    pool: Pool,
    /// What nobody has of the blocks that are written to.
    tails: Vec<Slice>,
    /// Tails that engines have.
    lent: usize,
    /// Blocks that were ever taken, modulo 2³².
    taken: u32,
    /// What had come back when those that wait for room have looked for it last.
    returned: u32,
    /// So many blocks may be out before what is retained goes.
    blocks_kept: u32,
    retained: Retained,
    hits: u64,
    misses: u64,
}

impl RecordMemory {
    pub(super) fn new(config: &PortConfig) -> Self {
        let blocks = config.records.max(1);
        let most = if config.retains { blocks as usize * BLOCK_LEN / RECORD_LEN } else { 0 };
        Self {
            pool: Pool::new(BLOCK_LEN, blocks as usize),
            tails: Vec::with_capacity(TAILS_MAX + 1),
            lent: 0,
            taken: 0,
            returned: 0,
            blocks_kept: blocks - blocks / 4,
            retained: Retained::new(most),
            hits: 0,
            misses: 0,
        }
    }

    /// Sees to it that there is a tail of so many bytes; `false` if there can be none now.
    pub(super) fn make_room(&mut self, len: usize) -> bool {
        if len > BLOCK_LEN {
            return false;
        }
        if self.tails.iter().any(|tail| tail.len() >= len) {
            return true;
        }
        // All are too short: the shortest is over.
        if self.tails.len() + self.lent >= TAILS_MAX {
            let shortest = self.tails.iter().enumerate().min_by_key(|(_, tail)| tail.len());
            let Some((shortest, _)) = shortest else { return false };
            self.tails.swap_remove(shortest);
        }
        loop {
            if let Some(block) = self.take_block() {
                self.tails.push(block);
                return true;
            }
            // It may be tails alone that have blocks.
            if self.tails.pop().is_none() {
                return false;
            }
        }
    }

    fn take_block(&mut self) -> Option<Slice> {
        loop {
            if let Some(block) = self.pool.take() {
                self.taken = self.taken.wrapping_add(1);
                return Some(block);
            }
            if !self.retained.evict() {
                return None;
            }
        }
    }

    /// Lends a tail, of so many bytes at least: who has it gives it back, without the record at its front.
    pub(super) fn lend(&mut self, len: usize) -> Option<Slice> {
        if !self.make_room(len) {
            return None;
        }
        let place = self.tails.iter().position(|tail| tail.len() >= len)?;
        self.lent += 1;
        Some(self.tails.swap_remove(place))
    }

    /// A tail comes back; the bytes in front that are a record.
    pub(super) fn give_back(&mut self, mut tail: Slice, record_len: Option<usize>) -> Option<Slice> {
        self.lent = self.lent.saturating_sub(1);
        let record = record_len.filter(|len| *len <= tail.len()).map(|len| {
            let mut record = tail.split_to(len.next_multiple_of(ALIGNMENT).min(tail.len()));
            record.truncate(len);
            record
        });
        if !tail.is_empty() {
            self.tails.push(tail);
        }
        record
    }

    /// Memory for a record of just so many bytes.
    pub(super) fn exact(&mut self, len: usize) -> Option<Slice> {
        let tail = self.lend(len)?;
        self.give_back(tail, Some(len))
    }

    /// Whether records are ever retained.
    pub(super) fn retains(&self) -> bool {
        self.retained.is_on()
    }

    /// These bytes, to be retained: as they are if they lie here, which needs no more memory; else copied, if that may be, they are few and
    /// there is room. What is somebody else's is wanted back.
    pub(super) fn own_or_copy(&mut self, payload: Shared, may_copy: bool) -> Option<Shared> {
        if payload.arena() == self.pool.arena() {
            return Some(payload);
        }
        if payload.len() > COPY_MAX || !may_copy {
            return None;
        }
        let mut copy = self.exact(payload.len())?;
        copy.copy_from_slice(&payload);
        Some(copy.share())
    }

    /// All have it: it is found from now on.
    pub(super) fn retain(&mut self, kept: Kept) {
        self.retained.retain(kept);
        while self.blocks_out() > self.blocks_kept && self.retained.evict() {}
    }

    /// What is retained under this name.
    pub(super) fn find(&mut self, label: Label) -> Option<&Kept> {
        let kept = self.retained.find(label);
        self.hits += u64::from(kept.is_some());
        self.misses += u64::from(kept.is_none());
        kept
    }

    /// What was found is not what it should be.
    pub(super) fn forget(&mut self, label: Label) {
        self.retained.forget(label);
        self.hits = self.hits.saturating_sub(1);
        self.misses += 1;
    }

    /// Nothing is retained any more.
    pub(super) fn clear(&mut self) {
        self.retained.clear();
        self.tails.clear();
    }

    /// How many there are.
    pub(super) fn blocks(&self) -> u32 {
        self.pool.blocks() as u32
    }

    /// Those that wait for room look for it now.
    pub(super) fn look(&mut self) {
        self.returned = self.pool.returned();
    }

    /// Whether memory has come back since they have looked.
    pub(super) fn has_returned(&self) -> bool {
        self.pool.returned() != self.returned
    }

    fn blocks_out(&self) -> u32 {
        self.taken.wrapping_sub(self.pool.returned())
    }

    pub(super) fn counts(&self) -> RetainedCounts {
        RetainedCounts {
            records: self.retained.len() as u64,
            bytes: self.retained.bytes(),
            hits: self.hits,
            misses: self.misses,
            blocks: self.blocks_out(),
        }
    }
}
