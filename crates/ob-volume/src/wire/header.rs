//! The 64 bytes that a message begins with.

use ob_core::{ChunkId, ChunkName, Epoch, SegmentId, SegmentName, Units, VolumeId, layout};
pub use ob_split::wire::HEADER_LEN;
use ob_split::wire::{COMMON_LEN, Header, HeaderError};
use zerocopy::little_endian::{U32, U64};

use super::replies::Refusal;

/// What a message begins with.
pub const MAGIC: [u8; 2] = *b"OC";
/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Bytes of the longest payload.
pub const PAYLOAD_MAX: u32 = 1_114_112;
/// Requests of a connection that may be unanswered.
pub const REQUESTS_MAX: u32 = 256;
/// Bytes of their payloads.
pub const WINDOW_LEN: u32 = 4_194_304;
/// Bytes of records that one message has at most.
pub const RECORDS_MAX: u32 = 1 << 20;
/// Bytes that one read gives at most.
pub const READ_MAX: u32 = 1 << 20;

layout!(RestBody, HEADER_LEN - COMMON_LEN, {
    volume: U64, segment: U32, chunk: U32, epoch: U32, a: U32, b: U64, c: U64,
});

/// Why bytes are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// They are no header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// They are of a version that was not agreed on.
    #[error("the message is of version {0} of the chunk protocol, this outboard speaks {VERSION}")]
    Version(u8),
    /// More follows than anybody may send.
    #[error("a payload of {0} bytes cannot be, the longest has {PAYLOAD_MAX}")]
    Oversize(u32),
    /// A reply where requests are awaited, or the other way round.
    #[error("a message of kind {0} comes from the other side")]
    Direction(u8),
    /// Nobody knows what is asked.
    #[error("there is no message of kind {kind}")]
    Kind {
        /// The kind.
        kind: u8,
        /// Whose answer says so.
        tag: u64,
        /// Bytes that follow, and are to be read away.
        payload_len: u32,
    },
    /// A field has a value that it cannot have.
    #[error("the {field} of a message of kind {kind} cannot be {value}")]
    Field {
        /// The message.
        kind: u8,
        /// Whose answer says so.
        tag: u64,
        /// Bytes that follow, and are to be read away.
        payload_len: u32,
        /// The field.
        field: &'static str,
        /// What it has.
        value: u64,
    },
}

impl WireError {
    /// What a server answers, and to which kind and tag; nothing if the connection cannot go on.
    #[must_use]
    pub const fn refusal(&self) -> Option<(u8, u64, Refusal)> {
        match *self {
            Self::Kind { kind, tag, .. } => Some((kind, tag, Refusal::UnknownKind)),
            Self::Field { kind, tag, .. } => Some((kind, tag, Refusal::Bad)),
            Self::Header(_) | Self::Version(_) | Self::Oversize(_) | Self::Direction(_) => None,
        }
    }
}

/// The fields of a header, all zero unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) kind: u8,
    pub(super) status: u16,
    pub(super) flags: u16,
    pub(super) tag: u64,
    pub(super) payload_len: u32,
    pub(super) chunk: ChunkName,
    pub(super) epoch: u32,
    pub(super) a: u32,
    pub(super) b: u64,
    pub(super) c: u64,
}

impl Fields {
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let rest = RestBody {
            volume: self.chunk.volume.0.into(),
            segment: self.chunk.segment.0.into(),
            chunk: self.chunk.chunk.0.into(),
            epoch: self.epoch.into(),
            a: self.a.into(),
            b: self.b.into(),
            c: self.c.into(),
        };
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            kind: self.kind,
            status: self.status,
            flags: self.flags,
            tag: self.tag,
            payload_len: self.payload_len,
            rest: zerocopy::transmute!(rest),
        };
        header.encode()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let header = Header::decode(bytes, MAGIC)?;
        if header.version != VERSION {
            return Err(WireError::Version(header.version));
        }
        if header.payload_len > PAYLOAD_MAX {
            return Err(WireError::Oversize(header.payload_len));
        }
        let rest: RestBody = zerocopy::transmute!(header.rest);
        Ok(Self {
            kind: header.kind,
            status: header.status,
            flags: header.flags,
            tag: header.tag,
            payload_len: header.payload_len,
            chunk: ChunkName {
                volume: VolumeId(rest.volume.get()),
                segment: SegmentId(rest.segment.get()),
                chunk: ChunkId(rest.chunk.get()),
            },
            epoch: rest.epoch.get(),
            a: rest.a.get(),
            b: rest.b.get(),
            c: rest.c.get(),
        })
    }

    pub(super) fn wrong(&self, field: &'static str, value: impl Into<u64>) -> WireError {
        let (kind, tag, payload_len) = (self.kind, self.tag, self.payload_len);
        WireError::Field { kind, tag, payload_len, field, value: value.into() }
    }

    pub(super) fn must(
        &self,
        is_legal: bool,
        field: &'static str,
        value: impl Into<u64>,
    ) -> Result<(), WireError> {
        if is_legal { Ok(()) } else { Err(self.wrong(field, value)) }
    }

    /// The chunk that is meant, and the epoch in which it is.
    pub(super) fn of_chunk(&self) -> Result<(ChunkName, Epoch), WireError> {
        self.must(self.chunk.chunk.0 != 0, "chunk", self.chunk.chunk.0)?;
        let (_, epoch) = self.of_volume()?;
        Ok((self.chunk, epoch))
    }

    /// The segment that is meant, and the epoch in which it is.
    pub(super) fn of_segment(&self) -> Result<(SegmentName, Epoch), WireError> {
        self.must(self.chunk.chunk.0 == 0, "chunk", self.chunk.chunk.0)?;
        self.of_volume()
    }

    fn of_volume(&self) -> Result<(SegmentName, Epoch), WireError> {
        self.must(self.chunk.volume.0 != 0, "volume", self.chunk.volume.0)?;
        let epoch = Epoch::new(self.epoch).ok_or(self.wrong("epoch", self.epoch))?;
        Ok((self.chunk.segment_name(), epoch))
    }

    /// A number that has more bits in its field than it needs.
    pub(super) fn word(&self, field: &'static str, value: u64) -> Result<u32, WireError> {
        u32::try_from(value).map_err(|_| self.wrong(field, value))
    }

    pub(super) const fn units(&self) -> Units {
        Units(self.a)
    }
}
