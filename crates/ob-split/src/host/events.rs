//! What is posted, and how it ends.

use super::memory::{CardMemory, CardRange};
use super::port::{PortError, PostError};
use crate::engine::Effort;
use crate::wire::{self, ChannelId, CompletionStatus, HEADER_LEN, RefusedCode};

/// Something that was posted. It has exactly one completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Event(pub(super) u64);

/// Whose messages are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Those of every peer.
    Any,
    /// Those of one channel.
    Of(ChannelId),
}

/// What an engine is to do on card memory.
#[derive(Clone, Copy, Debug)]
pub enum CardTask<'a> {
    /// Compresses into the front of other memory; [`SplitFailure::Engine`] if it does not shrink.
    Compress {
        /// How hard.
        effort: Effort,
        /// What.
        from: CardRange,
        /// Into what.
        into: &'a CardMemory,
    },
    /// Computes CRC32C.
    Checksum {
        /// Of what.
        from: CardRange,
        /// The checksum of what lies before it.
        seed: u32,
    },
}

/// How something that was posted ended.
#[derive(Debug, PartialEq)]
pub enum Completion {
    /// A message has come.
    Received {
        /// Who sent it: the channel, or the front's queue.
        from: u32,
        /// Its header, with zeros where its descriptor was.
        header: [u8; HEADER_LEN],
        /// Its payload, which stays on the card; and the message, for plans about it.
        payload: CardMemory,
        /// Bytes of the payload.
        len: u32,
    },
    /// A message was sent.
    Sent,
    /// An engine has done its task: the bytes that it wrote, or the checksum.
    Engine(u32),
    /// A plan went well.
    Plan {
        /// How each piece went.
        pieces: Vec<wire::Completion>,
        /// Header and payload of a peer's reply, if the plan brings one.
        reply: Vec<u8>,
    },
    /// A listener listens.
    Listening {
        /// Which.
        listener: ChannelId,
        /// On which port.
        port: u16,
    },
    /// A channel is there, connected or accepted.
    Connected(ChannelId),
    /// It did not go well.
    Failed(SplitFailure),
}

/// Why something that was posted did not go well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitFailure {
    /// The message is longer than was asked for; it was given back.
    #[error("the message has {len} bytes, more than was asked for")]
    Oversize {
        /// Who sent it: the channel, or the front's queue.
        from: u32,
        /// Its header, with zeros where its descriptor was.
        header: [u8; HEADER_LEN],
        /// Bytes of its payload.
        len: u32,
    },
    /// The channel was refused, or has ended.
    #[error("the channel is gone")]
    ChannelGone,
    /// An engine failed, or what was to be compressed does not shrink.
    #[error("the engine failed")]
    Engine,
    /// The plan ended early.
    #[error("the plan ended with {0:?}")]
    Plan(CompletionStatus),
    /// The port is over: attach again.
    #[error("the port is over")]
    Closed,
}

/// Why a port cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The card does not want this host.
    #[error("the card does not welcome this host: {0:?}")]
    Refused(RefusedCode),
    /// The port is over.
    #[error(transparent)]
    Port(#[from] PortError),
    /// What this layer needs cannot be said.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// No card memory of that length was granted, or no slots of the area are free side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory of {0} bytes")]
pub struct NoMemory(pub usize);
