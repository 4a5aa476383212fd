//! What a director did.

use ob_offload::ReasonCounts;

/// What a director did, and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectorCounts {
    /// Connections that there are.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections for which there was no room.
    pub refused: u64,
    /// Requests that the card answered.
    pub card: u64,
    /// Requests that went to the host, by reason.
    pub host: ReasonCounts,
    /// Requests that were told to try again, because the host is away.
    pub unavailable: u64,
    /// Connections that were told that they make no sense.
    pub wrong: u64,
    /// Connections that were closed because their long message did not come on and others waited for its memory.
    pub starved: u64,
    /// Connections that were closed because all together had too much to take, and they most.
    pub closed_for_memory: u64,
    /// Bytes of replies that wait for clients.
    pub unread: u64,
    /// Lives of the host that began.
    pub host_lives: u64,
    /// Hosts that were sent away because they said what cannot be.
    pub host_refused: u64,
    /// Bytes that long messages may still take.
    pub long_left: u64,
    /// Messages whose long list of requests and keys is kept because a part of them is done, or comes next.
    pub long_lists: u64,
}
