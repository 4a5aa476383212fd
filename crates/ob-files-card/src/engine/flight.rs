//! What the engine keeps of a request, and of what is under way.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ob_core::{NodeId, Token};
use ob_format::files::Superblock;
use ob_memory::{Slice, Source};
use ob_wire_link::files::FileError;

use super::op::{MetadataOp, Outcome};
use super::tidy;
use super::zero::ZeroRange;
use crate::map::Stretch;
use crate::tree::ById;

pub(super) type FlightId = u64;

/// Flights that wait, by what for.
#[derive(Default)]
pub(super) struct Waits {
    /// For a frame to be written; ascending.
    pub(super) written: VecDeque<(u64, FlightId)>,
    pub(super) segments: VecDeque<FlightId>,
    pub(super) log: VecDeque<FlightId>,
    pub(super) bounce: VecDeque<FlightId>,
    pub(super) flush: Vec<FlightId>,
    /// Nobody: the list of the last flush, for its memory.
    pub(super) spare: Vec<FlightId>,
    /// For a file that another flight has for itself.
    pub(super) file: ById<VecDeque<FlightId>>,
}

pub(super) struct Fresh {
    pub(super) logical: u32,
    pub(super) count: u32,
    /// The frame that maps it; `u64::MAX` if it is in none yet.
    pub(super) sequence: u64,
}

pub(super) struct Ghost {
    pub(super) stretches: Vec<Stretch>,
    pub(super) sequence: u64,
    pub(super) in_flight: u32,
}

/// A name that a node has had or was given, or whose file became shorter. If the frame cannot be written, nobody here knows whether
/// that is so: who wanted it was told that it is not, and the device may say otherwise.
pub(super) struct Unheard {
    pub(super) sequence: u64,
    pub(super) directory: NodeId,
    pub(super) name: Arc<[u8]>,
    pub(super) node: NodeId,
}

/// What became of the names in [`Unheard`] when the card froze.
#[derive(Default)]
pub(super) struct Unsaid {
    /// Names, by their directory.
    pub(super) names: ById<BTreeSet<Arc<[u8]>>>,
    /// The nodes that had or have them.
    pub(super) nodes: ById<()>,
    /// Their directories: how many entries they have is not known.
    pub(super) directories: ById<()>,
    /// The directories of those, whose lists would tell of that.
    pub(super) above: ById<()>,
}

/// A file that is held as soon as nothing changes it any more.
pub(super) struct Draining {
    /// Who is to hold it.
    pub(super) flight: FlightId,
    /// Requests that change it and are not over.
    pub(super) changes: usize,
}

pub(super) struct RangeLock {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) flight: FlightId,
    pub(super) held: bool,
}

impl RangeLock {
    pub(super) fn range(&self) -> (u64, u64) {
        (self.start, self.end)
    }
}

pub(super) struct FlushInFlight {
    pub(super) flights: Vec<FlightId>,
    pub(super) written: u64,
    pub(super) blank: Vec<Stretch>,
}

/// One request on its way.
pub(super) struct Flight {
    pub(super) token: Token,
    pub(super) kind: Kind,
    pub(super) stage: Stage,
    pub(super) pinned: bool,
    /// Its file counts it among those that change it.
    pub(super) is_counted: bool,
    pub(super) error: Option<FileError>,
    pub(super) outcome: Option<Outcome>,
}

pub(super) enum Kind {
    Read(Transfer),
    Write(Transfer),
    Flush,
    Resize { file: NodeId, size: u64 },
    Zero(ZeroRange),
    Metadata(MetadataOp),
}

/// The data part of a flight.
pub(super) struct Transfer {
    pub(super) file: NodeId,
    pub(super) offset: u64,
    /// Bytes to move.
    pub(super) len: u32,
    /// Bytes that are in pieces already.
    pub(super) cursor: u32,
    /// Pieces at the device.
    pub(super) out: u32,
    pub(super) durability: Durability,
    /// Segments promised and not yet taken.
    pub(super) promised: u32,
    /// Bytes of the log promised.
    pub(super) log_promised: u64,
    /// What is not in pieces yet. A read's is always its own.
    pub(super) buffer: Option<Source>,
    /// What came back, by where it belongs.
    pub(super) parts: Vec<(u32, Slice)>,
    /// Whether this write moved the file's end.
    pub(super) grew: bool,
}

/// What makes a write durable before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// Nothing: nobody asked for it.
    Unasked,
    /// The device, with each piece; and a flush, if something that the log says of the file is not durable.
    Pieces,
    /// A flush that begins when all pieces are complete.
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Start,
    /// Waits for the file's other requests to end.
    Draining,
    Tidying(tidy::Tidying),
    /// A range is being zeroed.
    Zeroing,
    /// Pieces are at the device, or wait for something.
    Data,
    /// Waits for its frame.
    Logged,
    /// Waits for a flush.
    Flushing,
}

/// One operation at the device.
pub(super) enum Piece {
    /// Bytes that go straight between the request's buffer and the device.
    Direct {
        flight: FlightId,
        at: u32,
        range: Option<(u64, u64)>,
    },
    /// Bytes that are copied: of a read, `data` is where they go; of a write, where they come from.
    Bounced {
        flight: FlightId,
        at: u32,
        data: Source,
        skip: u32,
        range: Option<(u64, u64)>,
        reading: bool,
    },
    /// A step of tidying up beyond a file's end.
    Tidy {
        flight: FlightId,
    },
    /// Zeros for a part of a segment.
    Edge {
        flight: FlightId,
    },
    Frame {
        sequence: u64,
    },
    Flush,
    Superblock(Superblock),
    Zero(Stretch),
}

impl Kind {
    /// The file whose data it is about.
    pub(super) fn file(&self) -> Option<NodeId> {
        match self {
            Self::Read(transfer) | Self::Write(transfer) => Some(transfer.file),
            Self::Resize { file, .. } => Some(*file),
            Self::Zero(range) => Some(range.file),
            Self::Flush | Self::Metadata(_) => None,
        }
    }

    /// Whether it changes the data of the file that it is about.
    pub(super) fn changes_data(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Resize { .. } | Self::Zero(_))
    }
}

impl Flight {
    /// The file whose data it is about.
    pub(super) fn file(&self) -> Option<NodeId> {
        self.kind.file()
    }

    /// Whether it changes this file's data.
    pub(super) fn changes(&self, file: NodeId) -> bool {
        self.kind.changes_data() && self.file() == Some(file)
    }

    pub(super) fn transfer_mut(&mut self) -> Option<&mut Transfer> {
        match &mut self.kind {
            Kind::Read(transfer) | Kind::Write(transfer) => Some(transfer),
            _ => None,
        }
    }
}

impl Transfer {
    pub(super) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}
