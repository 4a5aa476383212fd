//! Frames: what the log is written in.

use ob_core::{NodeId, checksum_of, layout};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::record::{self, ALIGNMENT};
use super::{NodeRecord, Record, RecordError, Run};

/// Bytes of a frame before its records.
pub const FRAME_HEADER_LEN: usize = 64;

pub(super) const MAGIC: [u8; 4] = *b"OBFR";

layout!(FrameHeaderBody, FRAME_HEADER_LEN, {
    magic: [u8; 4], checksum: U32, length: U32, records: U32, sequence: U64, epoch: U64, durable: U64,
    next_node: U64, previous: U32, reserved: U32, format: U64,
});

const CHECKSUM_AT: usize = std::mem::offset_of!(FrameHeaderBody, checksum);

/// What binds a frame to its place and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStamp {
    /// Grows by one with each frame.
    pub sequence: u64,
    /// The mount that wrote it.
    pub epoch: u64,
    /// All frames up to this sequence were durable when this one was made.
    pub durable: u64,
    /// Ids from here on have never been given.
    pub next_node: NodeId,
    /// The checksum of the frame before it.
    pub previous: u32,
    /// What says that it belongs to this format: [`Superblock::format_tag`](super::Superblock::format_tag).
    pub format: u64,
}

/// Makes frames, one after the other, in the same memory.
#[derive(Debug)]
pub struct FrameBuilder {
    bytes: Vec<u8>,
    frame_max: usize,
    records: u32,
    sealed: bool,
}

/// A frame whose checksum was right.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// What binds it to its place and its history.
    pub stamp: FrameStamp,
    /// Its checksum, which the next frame carries.
    pub checksum: u32,
    /// Bytes of header and records, without the filling.
    pub length: u32,
    count: u32,
    records: &'a [u8],
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes do not begin like one.
    #[error("there is no frame")]
    Missing,
    /// The length cannot be that of a frame.
    #[error("a frame of {length} bytes cannot be, the longest has {frame_max}")]
    Length {
        /// What the frame says.
        length: u32,
        /// What it may say at most.
        frame_max: usize,
    },
    /// There are fewer bytes than the frame's.
    #[error("the frame has {length} bytes, and {available} are there")]
    Cut {
        /// What the frame says.
        length: u32,
        /// What is there.
        available: usize,
    },
    /// It is damaged.
    #[error("the frame's checksum is wrong")]
    Checksum,
    /// The checksum is right and reserved bytes are not zero.
    #[error("reserved bytes of the frame's header are not zero")]
    Reserved,
}

impl FrameBuilder {
    /// An empty frame that may grow to `frame_max` bytes.
    pub fn new(frame_max: usize) -> Self {
        assert!(frame_max >= FRAME_HEADER_LEN, "a frame has at least a header");
        let mut bytes = Vec::with_capacity(frame_max);
        bytes.resize(FRAME_HEADER_LEN, 0);
        Self { bytes, frame_max, records: 0, sealed: false }
    }

    /// Bytes of records that can still be added.
    pub fn room(&self) -> usize {
        self.frame_max - self.bytes.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// How many records there are.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Bytes of header and records.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds that a file or directory is now so. Needs [`node_record_len`](super::node_record_len) bytes of room.
    ///
    /// # Panics
    ///
    /// When there is no room, or the record is one that could not be read again.
    pub fn push_node(&mut self, node: &NodeRecord<'_>) {
        self.push(|bytes| record::encode_node(node, bytes));
    }

    /// Adds that a part of a file's map is now so. Needs [`map_record_len`](super::map_record_len) bytes of room.
    ///
    /// # Panics
    ///
    /// When there is no room, or the record is one that could not be read again.
    pub fn push_map(&mut self, file: NodeId, first: u32, runs: &[Run]) {
        self.push(|bytes| record::encode_map(file, first, runs, bytes));
    }

    /// Adds that a node is gone. Needs [`REMOVE_LEN`](super::REMOVE_LEN) bytes of room.
    ///
    /// # Panics
    ///
    /// When there is no room, or the record is one that could not be read again.
    pub fn push_remove(&mut self, id: NodeId) {
        self.push(|bytes| record::encode_remove(id, bytes));
    }

    /// Adds that a file's map ends before `first`. Needs [`CUT_LEN`](super::CUT_LEN) bytes of room.
    ///
    /// # Panics
    ///
    /// When there is no room, or the record is one that could not be read again.
    pub fn push_cut(&mut self, file: NodeId, first: u32) {
        self.push(|bytes| record::encode_cut(file, first, bytes));
    }

    /// Writes header and checksum, and returns the checksum. [`FrameBuilder::bytes`] are then the frame without
    /// its filling.
    pub fn seal(&mut self, stamp: &FrameStamp) -> u32 {
        let header = FrameHeaderBody {
            magic: MAGIC,
            checksum: 0.into(),
            length: (self.bytes.len() as u32).into(),
            records: self.records.into(),
            sequence: stamp.sequence.into(),
            epoch: stamp.epoch.into(),
            durable: stamp.durable.into(),
            next_node: stamp.next_node.0.into(),
            previous: stamp.previous.into(),
            reserved: 0.into(),
            format: stamp.format.into(),
        };
        self.bytes[..FRAME_HEADER_LEN].copy_from_slice(header.as_bytes());
        let checksum = checksum_of(&self.bytes, CHECKSUM_AT);
        self.bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        self.sealed = true;
        checksum
    }

    /// The frame, without its filling.
    ///
    /// # Panics
    ///
    /// When it is not sealed: it would be written with a header that is not its own.
    pub fn bytes(&self) -> &[u8] {
        assert!(self.sealed, "the frame is not sealed");
        &self.bytes
    }

    /// Begins the next frame.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(FRAME_HEADER_LEN, 0);
        self.records = 0;
        self.sealed = false;
    }

    // What cannot be read again must not reach the device, where it would end the log: hence the assertions.
    fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), &'static str>) {
        if let Err(what) = encode(&mut self.bytes) {
            panic!("the record cannot be: {what}");
        }
        assert!(self.bytes.len() <= self.frame_max, "the frame has no room for the record");
        self.records += 1;
        self.sealed = false;
    }
}

impl<'a> Frame<'a> {
    /// Checks header and checksum of the frame that `bytes` begin with. There may be more bytes than the frame's.
    ///
    /// # Errors
    ///
    /// When there is no frame of at most `frame_max` bytes, or it is damaged.
    pub fn decode(bytes: &'a [u8], frame_max: usize) -> Result<Self, FrameError> {
        let (header, _) = FrameHeaderBody::ref_from_prefix(bytes).map_err(|_| FrameError::Missing)?;
        if header.magic != MAGIC {
            return Err(FrameError::Missing);
        }
        let length = header.length.get();
        let legal = (FRAME_HEADER_LEN..=frame_max).contains(&(length as usize));
        if !legal || !(length as usize).is_multiple_of(ALIGNMENT) {
            return Err(FrameError::Length { length, frame_max });
        }
        let frame = bytes.get(..length as usize);
        let frame = frame.ok_or(FrameError::Cut { length, available: bytes.len() })?;
        let checksum = header.checksum.get();
        if checksum != checksum_of(frame, CHECKSUM_AT) {
            return Err(FrameError::Checksum);
        }
        if header.reserved != 0 {
            return Err(FrameError::Reserved);
        }
        let stamp = FrameStamp {
            sequence: header.sequence.get(),
            epoch: header.epoch.get(),
            durable: header.durable.get(),
            next_node: NodeId(header.next_node.get()),
            previous: header.previous.get(),
            format: header.format.get(),
        };
        let records = frame.get(FRAME_HEADER_LEN..).unwrap_or_default();
        Ok(Self { stamp, checksum, length, count: header.records.get(), records })
    }

    /// The records in their order, up to the first that cannot be. That there are as many as the header says is
    /// checked with the last one.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'a>, RecordError>> + use<'a> {
        Records { rest: self.records, offset: FRAME_HEADER_LEN, remaining: self.count }
    }

    /// How many records the header speaks of.
    pub fn record_count(&self) -> u32 {
        self.count
    }
}

/// What of a frame was not yet read; empty and with nothing remaining after the end and after an error.
struct Records<'a> {
    rest: &'a [u8],
    offset: usize,
    remaining: u32,
}

impl<'a> Records<'a> {
    fn take_first(&mut self) -> Result<Record<'a>, &'static str> {
        if self.remaining == 0 {
            return Err("the header does not count it");
        }
        if self.rest.is_empty() {
            return Err("the header counts it, and it is not there");
        }
        let (record, rest) = Record::decode(self.rest)?;
        self.offset += self.rest.len() - rest.len();
        self.rest = rest;
        self.remaining -= 1;
        Ok(record)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() && self.remaining == 0 {
            return None;
        }
        let offset = self.offset;
        let record = self.take_first().map_err(|what| {
            (self.rest, self.remaining) = (&[], 0);
            RecordError { offset, what }
        });
        Some(record)
    }
}

impl std::iter::FusedIterator for Records<'_> {}
