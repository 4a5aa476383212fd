//! Reads: into a buffer that is sent as it is.

use ob_core::{NodeId, Units};
use ob_files_card::{Completion, Op, Outcome};

use super::chunk::{Chunk, Task};
use super::connection::Payload;
use super::memory::UNIT_LEN;
use super::peers::ReplyTo;
use super::server::{ChunkServer, Out};
use super::steps::refusal_of;
use crate::wire::{Reply, Request};

/// A read that is under way, or waits for a buffer.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) to: ReplyTo,
    file: NodeId,
    /// Where the bytes are in the file, and how many.
    offset: u64,
    len: usize,
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
        self.reads.push_back(Reading { to: task.to, file, offset: offset.bytes(), len });
        self.feed_reads();
    }

    /// Begins reads for which there are buffers; whether there was one.
    pub(super) fn feed_reads(&mut self) -> bool {
        let mut did = false;
        while let Some(reading) = self.reads.front().copied() {
            let block_len = self.block_len as u64;
            // Whole blocks are read, which the device puts where they are sent from.
            let start = reading.offset - reading.offset % block_len;
            let end = (reading.offset + reading.len as u64).next_multiple_of(block_len);
            let len = (end - start) as usize;
            let Some(into) = self.memory.take_out(len) else { break };
            self.reads.pop_front();
            self.reads_under_way += 1;
            let op = Op::Read { file: reading.file, offset: start, len: len as u32, into };
            self.send(Out::Read(reading), op);
            did = true;
        }
        did
    }

    /// A read is over.
    pub(super) fn read(&mut self, reading: Reading, completion: Completion) {
        self.reads_under_way -= 1;
        let read = match (completion.result, completion.buffer) {
            (Ok(Outcome::Read { len, .. }), Some(buffer)) => Ok((len as usize, buffer)),
            (Err(error), _) => Err(error),
            (Ok(_), _) => Err(ob_wire_link::files::FileError::Io),
        };
        let (len, mut buffer) = match read {
            Ok(read) => read,
            Err(error) => return self.refuse(reading.to, refusal_of(error, self.space.free())),
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
}

/// Whether a read is only of what is durable.
pub(super) fn is_durable(chunk: &Chunk, offset: Units, len: u32) -> bool {
    read_end(offset, len) <= chunk.end.bytes()
}
