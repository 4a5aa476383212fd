//! What can go wrong, as something a caller can act on.

use ob_wire_nvme::pdu::{PduError, Termination};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{NamespaceId, Status};

use crate::auth::HostFailure;

/// Why a command, or the whole initiator, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The controller executed the command and said no.
    #[error("the controller answered: {status}")]
    Command {
        /// The status.
        status: Status,
        /// What the completion said besides: DW0 and DW1.
        result: u64,
    },
    /// The target does not let this host in, or not to this subsystem.
    #[error("the target refused the connection to {subsystem}: {status}{}", parameter(*.result))]
    Refused {
        /// What was asked for.
        subsystem: Nqn,
        /// The status of Connect.
        status: Status,
        /// What Connect's completion said besides, for instance which parameter was wrong.
        result: u32,
    },
    /// The target wants to know a secret, and [`Options::secrets`](super::Options) has none.
    #[error("the target demands authentication: give the initiator a secret")]
    AuthenticationRequired,
    /// One of the two sides could not prove who it is.
    #[error(transparent)]
    Authentication(#[from] HostFailure),
    /// There is no connection to the target.
    #[error("the target cannot be reached: {0}")]
    Unreachable(Unreachable),
    /// The target answers, but no association came about.
    #[error("the target cannot be used: {0}")]
    NotConnected(Cause),
    /// The association ended with the command under way and the [`RetryPolicy`](super::RetryPolicy) does not
    /// repeat it: whether it was executed is not known.
    #[error("the connection was lost with the command under way ({0}): it may or may not have been executed")]
    Lost(Cause),
    /// Changes were completed by an earlier association, and whether they were durable when that ended is not known: the
    /// target may have lost power. They have to be made again.
    #[error(
        "the connection was lost since the last flush: what was written before may not be durable, write it again"
    )]
    Unflushed,
    /// The association ended, and could not be restored within the time that was given for it.
    #[error("the target did not come back: {0}")]
    GaveUp(Cause),
    /// The target that came back is another, and nothing is sent to it.
    #[error("another subsystem or controller answers at the target's address")]
    TargetChanged,
    /// The controller lacks what this initiator needs.
    #[error("the controller cannot be used: {0}")]
    Unsuitable(&'static str),
    /// There is no such namespace, or one whose blocks cannot be read (metadata, block lengths).
    #[error("there is no usable namespace {0}")]
    NoSuchNamespace(NamespaceId),
    /// Another namespace has this number by now, or none: the one that was asked for is gone.
    #[error("namespace {0} is not the one that it was: ask for it again")]
    NamespaceChanged(NamespaceId),
    /// The range reaches beyond the namespace's end, or is empty.
    #[error("{blocks} blocks from block {start} on are not within the namespace's {capacity} blocks")]
    OutOfRange {
        /// First block.
        start: u64,
        /// Blocks.
        blocks: u64,
        /// The namespace's blocks.
        capacity: u64,
    },
    /// The data is not a whole number of blocks.
    #[error("{len} bytes are not a whole number of blocks of {block_len} bytes")]
    NotWholeBlocks {
        /// Bytes of data.
        len: usize,
        /// Bytes of a block.
        block_len: u32,
    },
    /// More data than the controller takes in one command, where nothing can be split.
    #[error("a transfer of {len} bytes is more than the controller's limit of {limit}")]
    TooLong {
        /// Bytes of data.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The discovery log changed each time it was read, or is larger than anything sensible.
    #[error("the discovery log could not be read: {0}")]
    Discovery(&'static str),
    /// [`Initiator::disconnect`](super::Initiator::disconnect) was called.
    #[error("the initiator was disconnected")]
    Closed,
}

fn parameter(result: u32) -> String {
    if result == 0 {
        return String::new();
    }
    let place = if result & 1 << 16 != 0 { "data" } else { "command" };
    format!(" (byte {} of the {place})", result & 0xFFFF)
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The system's word for it.
    #[error("{0}")]
    System(std::io::ErrorKind),
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
}

/// Why an association ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The target closed a connection.
    #[error("the target closed the connection")]
    Ended,
    /// The connection broke, or could not be made.
    #[error("{0}")]
    Broken(Unreachable),
    /// A command was not answered in time.
    #[error("a command was not answered in time")]
    CommandTimeout,
    /// The target gave the connection up and said why.
    #[error("the target terminated the connection: status {}, information {:#x}", .0.status, .0.info)]
    Terminated(Termination),
    /// The target broke the protocol.
    #[error("the target broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The association could not be set up.
    #[error("{0}")]
    Setup(Box<Error>),
}

/// What a target did that no target may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A PDU that cannot be.
    #[error("a malformed PDU: {0}")]
    Pdu(#[from] PduError),
    /// A PDU at the wrong time.
    #[error("an unexpected PDU")]
    Sequence,
    /// Digests that were not asked for, or not those that were.
    #[error("other digests than were asked for")]
    Digests,
    /// A completion, data or a request for data for a command that is not under way.
    #[error("command {0:#06x} is not under way")]
    UnknownCommand(u16),
    /// Data for a command that reads nothing, beyond its end, twice, or with a gap.
    #[error("data that was not asked for")]
    UnexpectedData,
    /// A command succeeded without all of its data.
    #[error("a command succeeded without all of its data")]
    MissingData,
    /// The data's digest does not fit the data.
    #[error("a wrong data digest")]
    DataDigest,
    /// Data is asked for that the command does not have, or twice.
    #[error("a request for data that the command does not have")]
    UnexpectedTransfer,
    /// Data is asked for before what was asked for earlier is sent.
    #[error("more requests for data at once than were allowed")]
    TransferLimit,
    /// Connect gave another controller than before.
    #[error("the controller's number changed")]
    Controller,
}

impl Error {
    /// The status, where a controller gave one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Command { status, .. } | Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}
