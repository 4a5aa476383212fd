//! Records of one chunk that become one durable write.

use ob_core::{Epoch, Units};
use ob_memory::Slice;

use super::chunk::Front;
use super::peers::ReplyTo;
use crate::plant::{Bug, is_planted};
use crate::wire::RECORDS_MAX;

/// Records that are written together.
pub(super) struct Batch {
    /// None while it is being written.
    buffer: Option<Slice>,
    /// Where the buffer belongs in the file.
    start: u64,
    /// Bytes before the records, which lie there already.
    head: usize,
    /// Bytes of records.
    len: usize,
    /// Whether whole blocks are written: nothing but zeros lies behind.
    is_whole: bool,
    pub(super) entries: Vec<Entry>,
    /// How far the chunk is with it.
    pub(super) front: Front,
}

/// A request whose records are in a batch.
pub(super) struct Entry {
    pub(super) to: ReplyTo,
    pub(super) epoch: Epoch,
    pub(super) is_fill: bool,
}

impl Batch {
    /// A batch that begins where the chunk will end, in a buffer that is long enough for the longest.
    ///
    /// With the bytes between the beginning of the last block and the end, blocks are written whole, and nothing is copied further
    /// below; without them the files keep what is beside the records.
    pub(super) fn new(mut buffer: Slice, front: Front, tail: Option<&[u8]>, entries: Vec<Entry>) -> Self {
        let end = front.end.bytes();
        let head = tail.map_or(0, <[u8]>::len);
        if let (Some(tail), Some(place)) = (tail, buffer.get_mut(..head)) {
            place.copy_from_slice(tail);
        }
        Self {
            buffer: Some(buffer),
            start: end - head as u64,
            head,
            len: 0,
            is_whole: tail.is_some(),
            entries,
            front,
        }
    }

    /// Whether there is room for so many bytes of records.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.len + len <= RECORDS_MAX as usize
    }

    /// Bytes of records.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes records that were checked, which end there.
    pub(super) fn push(&mut self, entry: Entry, records: &[u8], (end, everywhere): (Units, Units)) {
        let at = self.head + self.len;
        let place = self.buffer.as_mut().and_then(|buffer| buffer.get_mut(at..at + records.len()));
        let Some(place) = place else { return };
        place.copy_from_slice(records);
        self.len += records.len();
        self.front = Front {
            end,
            everywhere: self.front.everywhere.max(everywhere),
            content_crc: crc32c::crc32c_append(self.front.content_crc, records),
        };
        self.entries.push(entry);
    }

    /// What is to be written, and where. The chunk's tail becomes that of the next batch.
    pub(super) fn seal(&mut self, block_len: usize, tail: &mut Option<Vec<u8>>) -> Option<(u64, Slice)> {
        let mut buffer = self.buffer.take()?;
        let filled = self.head + self.len;
        if !self.is_whole {
            *tail = None;
            if is_planted(Bug::FillWipes) {
                let wiped = (filled + 2 * block_len).min(buffer.len());
                buffer.get_mut(filled..wiped)?.fill(0);
                buffer.truncate(wiped);
                return Some((self.start, buffer));
            }
            buffer.truncate(filled);
            return Some((self.start, buffer));
        }
        let whole = filled.next_multiple_of(block_len);
        buffer.get_mut(filled..whole)?.fill(0);
        let kept = tail.get_or_insert_default();
        kept.clear();
        kept.extend_from_slice(buffer.get(filled - filled % block_len..filled)?);
        buffer.truncate(whole);
        Some((self.start, buffer))
    }
}
