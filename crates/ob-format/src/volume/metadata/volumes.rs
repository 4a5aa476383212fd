//! What there is: volumes, their segments, their chunks.

use ob_core::{
    BlockLen, ChunkId, Epoch, GateId, LockId, Revision, Sequence, ServerId, TierId, Units, check_name, layout,
};
use ob_wire_nvme::NamespaceId;
use zerocopy::little_endian::{U16, U32, U64};

use super::super::{
    CHUNK_UNITS_MAX, ChunkKind, LayoutError, PAGE_ENTRIES, RECORDS_START, ROOT_HEADER_LEN, epoch, must,
};
use super::{Text, beginning, open, seal};

/// Bytes of a volume's value.
pub const VOLUME_LEN: usize = 192;
/// Bytes of a segment's value.
pub const SEGMENT_LEN: usize = 128;
/// Bytes of a chunk's value.
pub const CHUNK_LEN: usize = 96;
/// Most members of a chunk.
pub const MEMBERS_MAX: usize = 4;
/// Bytes of the shortest chunks.
pub const CHUNK_LEN_MIN: u32 = 64 << 10;
/// Bytes of the longest chunks.
pub const CHUNK_LEN_MAX: u32 = 1 << 30;

pub(crate) const VOLUME_MAGIC: [u8; 4] = *b"OBMV";
pub(crate) const SEGMENT_MAGIC: [u8; 4] = *b"OBMG";
pub(crate) const CHUNK_MAGIC: [u8; 4] = *b"OBMC";

/// Roots that need a chunk: in this version the head's alone.
const REFERENCES: u32 = 1;

layout!(VolumeBody, VOLUME_LEN, {
    magic: [u8; 4], version: U16, length: U16, crc: U32, state: u8, class: u8, replicas: u8, replicas_min: u8,
    uuid: [u8; 16], size: U64, cut_from: U64, segment_len: U64, chunk_len: U32, block_len: U32, namespace: U32,
    generation: U32, parent: U64, reserved: [u8; 48], name: [u8; 64],
});
layout!(SegmentBody, SEGMENT_LEN, {
    magic: [u8; 4], version: U16, length: U16, crc: U32, state: u8, reserved: [u8; 3], epoch: U32, lease_ms: U32,
    owner: U64, session_revision: U64, gate: U64, chunk_next: U32, generation: U32, head_sequence: U64,
    head_chunk: U32, head_offset: U32, head_length: U32, head_crc: U32, lock: [u8; 16], wait_ms: U32,
    reserved_end: [u8; 28],
});
layout!(ChunkBody, CHUNK_LEN, {
    magic: [u8; 4], version: U16, value_length: U16, crc: U32, state: u8, kind: u8, members: u8, reserved: u8,
    epoch: U32, length: U32, last_sequence: U64, blocks: U32, records: U32, content_crc: U32, references: U32,
    member: [U64; MEMBERS_MAX], joining: U64, reserved_end: [u8; 8],
});

codes!(
    /// What becomes of a volume.
    VolumeState {
        /// It is served.
        Serving = 1,
        /// It is being removed.
        Removing = 2,
    }
);
codes!(
    /// How hard a volume is compressed.
    Class {
        /// Not at all.
        Plain = 0,
        /// Quickly.
        Fast = 1,
        /// As LZ4 does.
        Standard = 2,
        /// High compression.
        Dense = 3,
    }
);
codes!(
    /// Who may answer for a segment.
    SegmentState {
        /// Its owner, while its lease holds.
        Owned = 1,
        /// Nobody: its owner has given it back.
        Released = 2,
        /// Its owner, which may still have to wait.
        Taken = 3,
        /// Nobody, for good: chunk servers have more of it than the store that this is in.
        Behind = 4,
    }
);
codes!(
    /// What becomes of a chunk.
    ChunkState {
        /// It is appended to.
        Open = 1,
        /// It stays as it is.
        Sealed = 2,
        /// It is deleted.
        Dead = 3,
    }
);

/// A volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What becomes of it.
    pub state: VolumeState,
    /// How hard it is compressed.
    pub class: Class,
    /// Members that its chunks should have.
    pub replicas: u8,
    /// Members without which none is opened.
    pub replicas_min: u8,
    /// UUID and NGUID.
    pub uuid: [u8; 16],
    /// Bytes.
    pub size: u64,
    /// Bytes that it had before it was cut, until all beyond is trimmed.
    pub cut_from: Option<u64>,
    /// Bytes of its segments.
    pub segment_len: u64,
    /// Bytes of its chunks.
    pub chunk_len: u32,
    /// Its blocks.
    pub block_len: BlockLen,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Grows with each change.
    pub generation: u32,
    /// What people call it.
    pub name: Text<64>,
}

/// Where the last checkpoint of a segment's index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Records above it are to be replayed.
    pub sequence: Sequence,
    /// The index chunk that has the root.
    pub chunk: ChunkId,
    /// Where the root's first part begins.
    pub offset: Units,
    /// Bytes of the root, put together.
    pub length: u32,
    /// The root's checksum.
    pub crc: u32,
}

/// Whose a segment is, and where its index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Who may answer for it.
    pub state: SegmentState,
    /// How often it has changed hands.
    pub epoch: Epoch,
    /// How long the owner's lease is.
    pub lease_ms: u32,
    /// The owner, or the last one.
    pub owner: TierId,
    /// The revision of the owner's own record.
    pub session_revision: Revision,
    /// Which life of the owner's host.
    pub gate: GateId,
    /// Numbers of chunks below it are taken.
    pub chunk_next: ChunkId,
    /// The generation of the volume to whose end the segment is trimmed.
    pub generation: u32,
    /// The last checkpoint, if there is one.
    pub head: Option<Head>,
    /// What keeps lives of the owner's card apart.
    pub lock: LockId,
    /// What the next owner waits.
    pub wait_ms: u32,
}

/// The chunk servers that have a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Members {
    servers: [ServerId; MEMBERS_MAX],
    count: u8,
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// What becomes of it.
    pub state: ChunkState,
    /// What its records are.
    pub kind: ChunkKind,
    /// Who has it.
    pub members: Members,
    /// In which epoch it was created.
    pub epoch: Epoch,
    /// How long it is; 0 while it is open.
    pub length: Units,
    /// The greatest sequence of its records; 0 while it is open.
    pub last_sequence: Sequence,
    /// Blocks that were written there; 0 while it is open.
    pub blocks: u32,
    /// Entries of its directory; 0 while it is open.
    pub records: u32,
    /// The CRC32C of its records; 0 while it is open.
    pub content_crc: u32,
    /// A server that is being filled.
    pub joining: Option<ServerId>,
}

impl Volume {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such volume.
    pub fn encode(&self) -> Result<[u8; VOLUME_LEN], LayoutError> {
        self.check()?;
        let begin = beginning(VOLUME_MAGIC, VOLUME_LEN);
        let mut body = VolumeBody {
            magic: begin.magic,
            version: begin.version,
            length: begin.length,
            crc: begin.crc,
            state: self.state.code(),
            class: self.class.code(),
            replicas: self.replicas,
            replicas_min: self.replicas_min,
            uuid: self.uuid,
            size: self.size.into(),
            cut_from: self.cut_from.unwrap_or(0).into(),
            segment_len: self.segment_len.into(),
            chunk_len: self.chunk_len.into(),
            block_len: self.block_len.bytes().into(),
            namespace: self.namespace.0.into(),
            generation: self.generation.into(),
            parent: 0.into(),
            reserved: [0; 48],
            name: self.name.field(),
        };
        seal(&mut body);
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// When it is not a volume's.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let body: &VolumeBody = open(bytes, VOLUME_MAGIC)?;
        must(body.reserved == [0; 48] && body.parent == 0, "reserved bytes are not zero")?;
        let state = VolumeState::from_code(body.state);
        let class = Class::from_code(body.class);
        let block_len = BlockLen::from_bytes(body.block_len.get());
        let volume = Self {
            state: state.ok_or(LayoutError::Illegal("a state that is not known"))?,
            class: class.ok_or(LayoutError::Illegal("a class that is not known"))?,
            replicas: body.replicas,
            replicas_min: body.replicas_min,
            uuid: body.uuid,
            size: body.size.get(),
            cut_from: Some(body.cut_from.get()).filter(|size| *size != 0),
            segment_len: body.segment_len.get(),
            chunk_len: body.chunk_len.get(),
            block_len: block_len.ok_or(LayoutError::Illegal("blocks of a length that there is not"))?,
            namespace: NamespaceId(body.namespace.get()),
            generation: body.generation.get(),
            name: Text::from_field(&body.name)?,
        };
        volume.check()?;
        Ok(volume)
    }

    /// Blocks of a whole segment.
    #[must_use]
    pub fn segment_blocks(&self) -> u64 {
        self.segment_len / u64::from(self.block_len.bytes())
    }

    fn check(&self) -> Result<(), LayoutError> {
        let replicas = 1..=MEMBERS_MAX as u8;
        must(replicas.contains(&self.replicas), "replicas that a chunk cannot have")?;
        must((1..=self.replicas).contains(&self.replicas_min), "fewest replicas that cannot be")?;
        must(self.segment_len.is_power_of_two(), "segments of a length that there is not")?;
        let blocks = self.segment_blocks();
        let is_segment = blocks >= PAGE_ENTRIES as u64 && blocks < u64::from(u32::MAX);
        must(is_segment, "segments of too few blocks, or too many")?;
        let is_chunk = (CHUNK_LEN_MIN..=CHUNK_LEN_MAX).contains(&self.chunk_len);
        must(is_chunk && self.chunk_len.is_power_of_two(), "chunks of a length that there is not")?;
        for size in [Some(self.size), self.cut_from].into_iter().flatten() {
            let segments = size.div_ceil(self.segment_len);
            let is_whole = size > 0 && size.is_multiple_of(self.block_len.bytes().into());
            must(is_whole && segments <= u64::from(u32::MAX), "a size that no volume has")?;
        }
        must(self.cut_from.is_none_or(|before| before > self.size), "a volume that was cut and is longer")?;
        let is_namespace = self.namespace != NamespaceId::NONE && self.namespace != NamespaceId::ALL;
        must(is_namespace, "a namespace without a number")?;
        must(check_name(self.name.as_str().as_bytes()).is_ok(), "a name that cannot be")
    }
}

impl Segment {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such segment.
    pub fn encode(&self) -> Result<[u8; SEGMENT_LEN], LayoutError> {
        self.check()?;
        let begin = beginning(SEGMENT_MAGIC, SEGMENT_LEN);
        let none = Head { sequence: Sequence(0), chunk: ChunkId(0), offset: Units(0), length: 0, crc: 0 };
        let head = self.head.unwrap_or(none);
        let mut body = SegmentBody {
            magic: begin.magic,
            version: begin.version,
            length: begin.length,
            crc: begin.crc,
            state: self.state.code(),
            reserved: [0; 3],
            epoch: self.epoch.number().into(),
            lease_ms: self.lease_ms.into(),
            owner: self.owner.0.into(),
            session_revision: self.session_revision.0.into(),
            gate: self.gate.0.into(),
            chunk_next: self.chunk_next.0.into(),
            generation: self.generation.into(),
            head_sequence: head.sequence.0.into(),
            head_chunk: head.chunk.0.into(),
            head_offset: head.offset.0.into(),
            head_length: head.length.into(),
            head_crc: head.crc.into(),
            lock: self.lock.0,
            wait_ms: self.wait_ms.into(),
            reserved_end: [0; 28],
        };
        seal(&mut body);
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// When it is not a segment's.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let body: &SegmentBody = open(bytes, SEGMENT_MAGIC)?;
        must(body.reserved == [0; 3] && body.reserved_end == [0; 28], "reserved bytes are not zero")?;
        let state = SegmentState::from_code(body.state);
        let head = Head {
            sequence: Sequence(body.head_sequence.get()),
            chunk: ChunkId(body.head_chunk.get()),
            offset: Units(body.head_offset.get()),
            length: body.head_length.get(),
            crc: body.head_crc.get(),
        };
        let is_none = head.sequence.0 == 0;
        let numbers = [head.chunk.0, head.offset.0, head.length, head.crc];
        must(!is_none || numbers == [0; 4], "a place of no checkpoint")?;
        let segment = Self {
            state: state.ok_or(LayoutError::Illegal("a state that is not known"))?,
            epoch: epoch(body.epoch.get())?,
            lease_ms: body.lease_ms.get(),
            owner: TierId(body.owner.get()),
            session_revision: Revision(body.session_revision.get()),
            gate: GateId(body.gate.get()),
            chunk_next: ChunkId(body.chunk_next.get()),
            generation: body.generation.get(),
            head: (!is_none).then_some(head),
            lock: LockId(body.lock),
            wait_ms: body.wait_ms.get(),
        };
        segment.check()?;
        Ok(segment)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.owner.0 != 0, "an owner without a number")?;
        must(self.lease_ms > 0, "a lease of no time")?;
        let is_wait = match self.state {
            SegmentState::Owned | SegmentState::Behind => self.wait_ms == self.lease_ms,
            SegmentState::Released => self.wait_ms == 0,
            SegmentState::Taken => self.wait_ms >= self.lease_ms,
        };
        must(is_wait, "a wait that does not go with the state")?;
        must(self.chunk_next.0 != 0, "a chunk without a number")?;
        let Some(head) = self.head else { return Ok(()) };
        must(head.sequence.0 != 0, "a checkpoint of no sequence")?;
        let is_chunk = head.chunk.0 != 0 && head.chunk < self.chunk_next;
        must(is_chunk, "a checkpoint in a chunk that there is not")?;
        let is_place = head.offset >= RECORDS_START && head.offset < CHUNK_UNITS_MAX;
        must(is_place, "a place that no record has")?;
        must(head.length as usize >= ROOT_HEADER_LEN, "a root that is too short")
    }
}

impl Members {
    /// So many servers, if a chunk can have them: at most [`MEMBERS_MAX`], each once.
    #[must_use]
    pub fn new(servers: &[ServerId]) -> Option<Self> {
        let mut members = Self::default();
        for server in servers {
            if server.0 == 0 || members.contains(*server) {
                return None;
            }
            *members.servers.get_mut(usize::from(members.count))? = *server;
            members.count += 1;
        }
        Some(members)
    }

    /// The servers.
    #[must_use]
    pub fn servers(&self) -> &[ServerId] {
        self.servers.get(..usize::from(self.count)).unwrap_or_default()
    }

    /// Whether this one is among them.
    #[must_use]
    pub fn contains(&self, server: ServerId) -> bool {
        self.servers().contains(&server)
    }
}

impl std::fmt::Debug for Members {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.servers().fmt(formatter)
    }
}

impl Chunk {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When there can be no such chunk.
    pub fn encode(&self) -> Result<[u8; CHUNK_LEN], LayoutError> {
        self.check()?;
        let begin = beginning(CHUNK_MAGIC, CHUNK_LEN);
        let mut body = ChunkBody {
            magic: begin.magic,
            version: begin.version,
            value_length: begin.length,
            crc: begin.crc,
            state: self.state.code(),
            kind: self.kind.code(),
            members: self.members.count,
            reserved: 0,
            epoch: self.epoch.number().into(),
            length: self.length.0.into(),
            last_sequence: self.last_sequence.0.into(),
            blocks: self.blocks.into(),
            records: self.records.into(),
            content_crc: self.content_crc.into(),
            references: REFERENCES.into(),
            member: self.members.servers.map(|server| server.0.into()),
            joining: self.joining.unwrap_or_default().0.into(),
            reserved_end: [0; 8],
        };
        seal(&mut body);
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// When it is not a chunk's.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let body: &ChunkBody = open(bytes, CHUNK_MAGIC)?;
        must(body.reserved == 0 && body.reserved_end == [0; 8], "reserved bytes are not zero")?;
        must(body.references == REFERENCES, "a chunk of several roots")?;
        let servers = body.member.map(|server| ServerId(server.get()));
        let (members, rest) = servers
            .split_at_checked(body.members.into())
            .ok_or(LayoutError::Illegal("more members than a chunk has"))?;
        must(rest.iter().all(|server| server.0 == 0), "members that are not counted")?;
        let members =
            Members::new(members).ok_or(LayoutError::Illegal("a member twice, or without a number"))?;
        let state = ChunkState::from_code(body.state);
        let kind = ChunkKind::from_code(body.kind);
        let chunk = Self {
            state: state.ok_or(LayoutError::Illegal("a state that is not known"))?,
            kind: kind.ok_or(LayoutError::Illegal("a kind that is not known"))?,
            members,
            epoch: epoch(body.epoch.get())?,
            length: Units(body.length.get()),
            last_sequence: Sequence(body.last_sequence.get()),
            blocks: body.blocks.get(),
            records: body.records.get(),
            content_crc: body.content_crc.get(),
            joining: Some(ServerId(body.joining.get())).filter(|server| server.0 != 0),
        };
        chunk.check()?;
        Ok(chunk)
    }

    fn check(&self) -> Result<(), LayoutError> {
        let is_member = |server: ServerId| server.0 == 0 || self.members.contains(server);
        must(!self.joining.is_some_and(is_member), "a member that joins")?;
        let numbers = [self.length.0, self.blocks, self.records, self.content_crc];
        let is_unset = numbers == [0; 4] && self.last_sequence.0 == 0 && self.joining.is_none();
        let is_sealed = self.length >= RECORDS_START && self.length <= CHUNK_UNITS_MAX;
        match self.state {
            ChunkState::Open => {
                must(!self.members.servers().is_empty(), "an open chunk that nobody has")?;
                must(is_unset, "an open chunk with what only sealed ones have")
            }
            ChunkState::Sealed => must(is_sealed, "a length that no sealed chunk has"),
            // It may have been open.
            ChunkState::Dead => must(is_unset || is_sealed, "a length that no sealed chunk has"),
        }
    }
}
