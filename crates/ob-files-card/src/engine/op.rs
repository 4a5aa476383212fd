//! What the engine is asked, and what it answers.

use ob_core::{NodeId, NodeKind, Token};
use ob_memory::{Slice, Source};
use ob_wire_link::files::{FileError, NodeInfo, SpaceInfo};

/// How the card's files are run.
#[derive(Clone, Copy, Debug)]
pub struct FilesOptions {
    /// Requests in flight at once.
    pub requests_max: usize,
    /// Buffers for requests that are not aligned.
    pub bounce_buffers: usize,
    /// Bytes of each of them.
    pub bounce_len: usize,
    /// Bytes of free space that are kept zeroed, ready to be given to files.
    pub clean_len: u64,
    /// Bytes of one read or write at most.
    pub transfer_max: u32,
    /// Copies every read and write through a buffer: what the paper measures its zero-copy path against.
    pub copy_everything: bool,
}

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            requests_max: 4096,
            bounce_buffers: 64,
            bounce_len: 64 << 10,
            clean_len: 128 << 20,
            transfer_max: 1 << 20,
            copy_everything: false,
        }
    }
}

/// A request.
#[derive(Debug)]
pub enum Op {
    /// Reads up to `len` bytes into `into`, which has room for as many blocks as they lie in, or at least for them.
    Read {
        /// The file.
        file: NodeId,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        len: u32,
        /// Where they go.
        into: Slice,
    },
    /// Writes all of `from`.
    Write {
        /// The file.
        file: NodeId,
        /// Where in it.
        offset: u64,
        /// The bytes, which others may read meanwhile if they are shared.
        from: Source,
        /// Answer only when it will survive a loss of power.
        durable: bool,
    },
    /// Makes everything that was answered before durable.
    Flush,
    /// Changes a file's size.
    Resize {
        /// The file.
        file: NodeId,
        /// Its new size.
        size: u64,
    },
    /// Makes a range read as zeros, as far as the file reaches, and gives back the segments that lie in it as a whole.
    Zero {
        /// The file.
        file: NodeId,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Names and directories.
    Metadata(MetadataOp),
}

impl Op {
    /// The file that may have more or less space afterwards, or that is told of for the first time.
    pub(crate) fn space_of(&self) -> Option<NodeId> {
        match self {
            Self::Write { file, .. }
            | Self::Resize { file, .. }
            | Self::Zero { file, .. }
            | Self::Metadata(MetadataOp::Hold { file }) => Some(*file),
            Self::Read { .. } | Self::Flush | Self::Metadata(_) => None,
        }
    }
}

/// A request about names.
#[derive(Debug)]
pub enum MetadataOp {
    /// Finds a node, or creates a file.
    Open {
        /// Where the path starts.
        base: NodeId,
        /// The path.
        path: Vec<u8>,
        /// Create it if it is missing.
        create: bool,
        /// With `create`: it must be missing.
        exclusive: bool,
    },
    /// Creates a directory.
    MakeDirectory {
        /// Where the path starts.
        base: NodeId,
        /// The path.
        path: Vec<u8>,
    },
    /// Removes a file or an empty directory.
    Remove {
        /// Where the path starts.
        base: NodeId,
        /// The path.
        path: Vec<u8>,
        /// Only if it is one of these.
        only: Option<NodeKind>,
    },
    /// Gives a node another name.
    Rename {
        /// Where the old path starts.
        base: NodeId,
        /// The old path.
        path: Vec<u8>,
        /// Where the new path starts.
        to_base: NodeId,
        /// The new path.
        to_path: Vec<u8>,
        /// Whether what has that name is replaced.
        replace: bool,
    },
    /// Lists a directory.
    List {
        /// The directory.
        directory: NodeId,
        /// The name after which to go on; empty to begin.
        after: Vec<u8>,
        /// Most bytes of entries.
        most: u32,
    },
    /// Describes a node.
    Stat {
        /// Where the path starts.
        base: NodeId,
        /// The path; empty for the node it starts from.
        path: Vec<u8>,
    },
    /// Tells the free space.
    Space,
    /// Keeps a file from being changed through rings, renamed and removed, until it is let go. Answered when whatever was
    /// changing it is over.
    Hold {
        /// The file.
        file: NodeId,
    },
    /// Lets a file go that was held.
    LetGo {
        /// The file.
        file: NodeId,
    },
}

/// What a file holds, by number: its bytes and its size.
///
/// Two reads of one file that have the same version saw the same file: it was not written, resized, zeroed or
/// removed from before the first of them to after the last. So a chain of reads, each of which goes where the one before
/// it pointed, is as good as one read at one moment if all of them have the version of the first. A file that took another
/// one's name is another node, and versions of two nodes have nothing to do with each other.
///
/// Nothing of it is on the device: a version means nothing in the next life of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileVersion(pub(crate) u64);

/// What a request that went well brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to tell.
    Done,
    /// Bytes read.
    Read {
        /// How many.
        len: u32,
        /// What the file was like from the read's beginning to its end; nothing if it was being changed meanwhile, or is
        /// gone.
        version: Option<FileVersion>,
    },
    /// Bytes written, and the file's size.
    Written {
        /// Bytes.
        len: u32,
        /// The size.
        size: u64,
    },
    /// A node.
    Node(NodeInfo),
    /// Entries, as they go over the wire.
    Entries {
        /// The bytes.
        bytes: Vec<u8>,
        /// Whether there are more.
        more: bool,
    },
    /// The free space.
    Space(SpaceInfo),
}

/// An answer.
#[derive(Debug)]
pub struct Completion {
    /// As given.
    pub token: Token,
    /// How it went.
    pub result: Result<Outcome, FileError>,
    /// A read's buffer, whole again.
    pub buffer: Option<Slice>,
}

/// What the engine has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesCounts {
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes answered.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Pieces of reads and writes that were copied because they were not aligned.
    pub unaligned: u64,
    /// Metadata requests answered.
    pub metadata: u64,
    /// Flushes that requests asked for.
    pub flushes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Frames of the log written.
    pub frames: u64,
    /// Flushes of the device.
    pub device_flushes: u64,
}
