//! How a chunk server is run, and what it tells of itself.

use std::time::Duration;

use ob_core::{Incarnation, PoolId, ServerId};
use ob_format::volume::metadata::Text;

use super::start::StartError;

/// How a chunk server is run.
#[derive(Clone, Debug)]
pub struct ChunkServerConfig {
    /// Who it is, if its files do not say so yet: drawn for each start, and used by the first.
    pub fresh: ServerId,
    /// What fails together with it.
    pub domain: Text<32>,
    /// Bytes that only who may use the reserve gets.
    pub reserve_len: u64,
    /// Connections at once.
    pub connections_max: usize,
    /// Buffers for short messages and short reads, a record's length each; for each of the two.
    pub short_buffers: usize,
    /// Buffers for the longest; for each of the two.
    pub long_buffers: usize,
    /// Chunks that are written at once: each has a buffer of the longest batch.
    pub batches: usize,
    /// Operations of many steps at once: each has a buffer of the longest.
    pub jobs: usize,
    /// Segments of which it knows an epoch. When there are more, the oldest are forgotten of which it has no chunk.
    pub segments_max: usize,
    /// Ports of tiers whose session it knows. When there are more, the oldest are forgotten whose connection is over.
    pub sessions_max: usize,
    /// Until when the first message has to be there.
    pub hello_timeout: Duration,
    /// Until when all of a message has to be there that has begun.
    pub message_timeout: Duration,
    /// Until when a peer has to take an answer, since it has taken the one before.
    pub send_timeout: Duration,
}

impl ChunkServerConfig {
    /// What docs/wire/chunk.md says, and some 100 MiB of memory.
    #[must_use]
    pub fn new(fresh: ServerId, domain: Text<32>) -> Self {
        Self {
            fresh,
            domain,
            reserve_len: 0,
            connections_max: 256,
            short_buffers: 256,
            long_buffers: 16,
            batches: 16,
            jobs: 8,
            segments_max: 1_000_000,
            sessions_max: 65_536,
            hello_timeout: Duration::from_secs(5),
            message_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
        }
    }
}

/// How far a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It looks what it has. Nobody is answered.
    Starting,
    /// It serves.
    Serving,
    /// It cannot: its operator has to do something.
    Failed(StartError),
}

/// What a server is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkServerFacts {
    /// How far it is.
    pub state: ServerState,
    /// Who it is, once that is known.
    pub server: Option<ServerId>,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Whose it is, if it is of a pool.
    pub pool: Option<PoolId>,
    /// Bytes of its device.
    pub capacity: u64,
    /// Bytes that neither chunks nor promises have.
    pub free: u64,
    /// Chunks that it has.
    pub chunks: u64,
    /// Connections that are open.
    pub connections: usize,
    /// What it has done in this life.
    pub counts: ChunkServerCounts,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkServerCounts {
    /// Requests answered, refusals too.
    pub requests: u64,
    /// Of them, refused.
    pub refusals: u64,
    /// Appends and fills that were answered as durable.
    pub appends: u64,
    /// Bytes of their records.
    pub append_bytes: u64,
    /// Durable writes that they took.
    pub batches: u64,
    /// Reads answered.
    pub reads: u64,
    /// Bytes that they gave.
    pub read_bytes: u64,
    /// Connections that were cut off: for what they sent, or for being late.
    pub cut_off: u64,
    /// How often a connection was held up for want of memory.
    pub hold_ups: u64,
}
