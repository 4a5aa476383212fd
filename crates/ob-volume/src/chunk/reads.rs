//! Reads: into a buffer that is sent as it is.

use ob_core::{NodeId, Units};
use ob_files_card::{Completion, Op, Outcome};
use ob_memory::Slice;
use ob_wire_link::files::FileError;

use super::chunk::{Chunk, Task};
use super::connection::Payload;
use super::memory::{Class, UNIT_LEN};
use super::peers::ReplyTo;
use super::server::{ChunkServer, Out};
use super::steps::refusal_of;
use crate::plant::{Bug, is_planted};
use crate::wire::{Refusal, Reply, Request};

/// A read that is under way, or waits for a buffer.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) to: ReplyTo,
    file: NodeId,
    /// Where the bytes are in the file, and how many.
    offset: u64,
    len: usize,
    search: Search,
}

/// Where the first block is that cannot be read, as far as that is known: bytes of whole blocks from the first one on.
#[derive(Clone, Copy, Default)]
struct Search {
    /// So many can be read.
    sound: usize,
    /// So many cannot; nothing: that was never so.
    broken: Option<usize>,
}

impl Search {
    /// How many are read next, of so many.
    fn next(&self, all: usize, block_len: usize) -> usize {
        let Some(broken) = self.broken else { return all };
        let between = broken.saturating_sub(self.sound) / block_len;
        self.sound + between / 2 * block_len
    }

    /// So many could not be read; whether there may be some before them that can.
    fn failed(&mut self, tried: usize) -> bool {
        self.broken = Some(tried);
        // What was read a moment ago need not be there for ever.
        if self.sound >= tried {
            self.sound = 0;
        }
        tried > 0
    }

    /// So many were read; whether they are all there are before the block that cannot be.
    const fn read(&mut self, tried: usize, block_len: usize) -> bool {
        self.sound = tried;
        match self.broken {
            None => true,
            Some(broken) => broken <= tried + block_len,
        }
    }
}

impl Reading {
    /// The whole blocks that are read, which the device puts where they are sent from: where they begin, and how long they are.
    fn blocks(&self, block_len: usize) -> (u64, usize) {
        let start = self.offset - self.offset % block_len as u64;
        let end = (self.offset + self.len as u64).next_multiple_of(block_len as u64);
        (start, (end - start) as usize)
    }

    /// How many of these bytes are read next.
    fn next_len(&self, block_len: usize) -> usize {
        self.search.next(self.blocks(block_len).1, block_len)
    }
}

/// Where the bytes of a read end.
pub(super) fn read_end(offset: Units, len: u32) -> u64 {
    offset.bytes() + u64::from(len)
}

impl ChunkServer {
    /// Begins a read of what the chunk has.
    pub(super) fn begin_read(&mut self, task: &Task, chunk: (NodeId, Units)) {
        let Request::Read { offset, len, .. } = task.request else { return };
        let (file, readable) = chunk;
        let end = read_end(offset, len).min(readable.bytes());
        let len = end.saturating_sub(offset.bytes()) as usize;
        if len == 0 {
            return self.answer(task.to, Reply::Read);
        }
        let search = Search::default();
        let reading = Reading { to: task.to, file, offset: offset.bytes(), len, search };
        // It counts as one of this class since it was taken.
        match task.to.share.read {
            Some(Class::Short) => self.reads[Class::Short as usize].push_back(reading),
            _ => self.reads[Class::Long as usize].push_back(reading),
        }
        self.feed_reads();
    }

    /// Begins reads for which there are buffers; whether there was one.
    pub(super) fn feed_reads(&mut self) -> bool {
        self.feed_reads_of(Class::Short) | self.feed_reads_of(Class::Long)
    }

    fn feed_reads_of(&mut self, class: Class) -> bool {
        let mut did = false;
        while let Some(reading) = self.reads[class as usize].front().copied() {
            let (offset, len) = reading.blocks(self.block_len);
            let Some(into) = self.memory.take_out(class, len) else { break };
            self.reads[class as usize].pop_front();
            let op = Op::Read { file: reading.file, offset, len: len as u32, into };
            self.send(Out::Read(reading), op);
            did = true;
        }
        did
    }

    /// Which buffer a read needs at most.
    pub(super) fn class_of_read(&self, len: u32) -> Class {
        self.memory.class_of(len as usize + 2 * self.block_len)
    }

    /// A read is over, or a part of one: where a block cannot be read, all that lies before it is given.
    pub(super) fn read(&mut self, mut reading: Reading, completion: Completion) {
        let tried = reading.next_len(self.block_len);
        let (len, mut buffer) = match (completion.result, completion.buffer) {
            (Ok(Outcome::Read { len, .. }), Some(buffer)) => {
                if !reading.search.read(tried, self.block_len) {
                    return self.read_again(reading, buffer);
                }
                (len as usize, buffer)
            }
            (Err(FileError::Io), Some(buffer))
                if reading.search.failed(tried)
                    && reading.next_len(self.block_len) > 0
                    && !is_planted(Bug::ReadAllOrNothing) =>
            {
                return self.read_again(reading, buffer);
            }
            (Err(error), _) => return self.refuse(reading.to, refusal_of(error, self.space.free())),
            (Ok(_), _) => return self.refuse(reading.to, Refusal::Medium),
        };
        let skip = (reading.offset % self.block_len as u64) as usize;
        let len = len.min(buffer.len()).saturating_sub(skip).min(reading.len);
        let len = len - len % UNIT_LEN;
        if len == 0 {
            return self.answer(reading.to, Reply::Read);
        }
        buffer.advance(skip);
        buffer.truncate(len);
        self.peers.counts.reads += 1;
        self.peers.counts.read_bytes += len as u64;
        self.peers.answer(self.now, reading.to, Reply::Read, Payload::Slice(buffer));
    }

    /// Looks, in a few steps, how much lies before the first block that cannot be read.
    fn read_again(&mut self, reading: Reading, into: Slice) {
        let (offset, len) = (reading.blocks(self.block_len).0, reading.next_len(self.block_len));
        let op = Op::Read { file: reading.file, offset, len: len as u32, into };
        self.send(Out::Read(reading), op);
    }
}

/// Whether a read is only of what is durable.
pub(super) fn is_durable(chunk: &Chunk, offset: Units, len: u32) -> bool {
    read_end(offset, len) <= chunk.end.bytes()
}
