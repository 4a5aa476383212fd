//! Payloads: what follows a header.

use ob_core::{ChunkId, ChunkName, Epoch, PoolId, SegmentId, ServerId, Units, VolumeId, layout};
use ob_format::volume::metadata::Text;
use ob_format::volume::{CHUNK_UNITS_MAX, ChunkKind, ENTRY_LEN, Entry, LayoutError, RECORDS_START, Records};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::header::{REQUESTS_MAX, WINDOW_LEN};
use super::messages::LIST_MAX;
use super::replies::ReplicaState;

/// Bytes of a hello.
pub const HELLO_LEN: usize = 36;
/// Bytes of a welcome.
pub const WELCOME_LEN: usize = 84;
/// Bytes of a chunk in the answer to `CHUNKS`.
pub const CHUNK_LINE_LEN: usize = 32;
/// Bytes of the checksum at the end.
const CRC_LEN: usize = 4;

layout!(HelloBody, HELLO_LEN, {
    pool: [u8; 16], version_least: u8, version_most: u8, reserved: [u8; 6], server: U64, crc: U32,
});
layout!(WelcomeBody, WELCOME_LEN, {
    pool: [u8; 16], version: u8, reserved: [u8; 3], block_len: U32, capacity: U64, free: U64, requests_max: U32,
    window_len: U32, domain: [u8; 32], crc: U32,
});
layout!(LineBody, CHUNK_LINE_LEN, {
    volume: U64, segment: U32, chunk: U32, epoch: U32, state: u8, kind: u8, reserved: [u8; 2], end: U32, allocated: U32,
});

/// What a tier says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloPayload {
    /// Its pool.
    pub pool: PoolId,
    /// The least version that it speaks.
    pub version_least: u8,
    /// The most.
    pub version_most: u8,
    /// Whom it takes the server for, if it knows.
    pub server: Option<ServerId>,
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WelcomePayload {
    /// Its pool, if it is of one.
    pub pool: Option<PoolId>,
    /// The version that it has chosen.
    pub version: u8,
    /// Bytes of its device's blocks.
    pub block_len: u32,
    /// Bytes of its device.
    pub capacity: u64,
    /// Bytes that neither chunks nor promises have.
    pub free: u64,
    /// Requests that may be unanswered.
    pub requests_max: u32,
    /// Bytes of their payloads.
    pub window_len: u32,
    /// What fails together with it.
    pub domain: Text<32>,
}

/// A chunk that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLine {
    /// Which.
    pub chunk: ChunkName,
    /// In which epoch it was created.
    pub epoch: Epoch,
    /// How the server has it.
    pub state: ReplicaState,
    /// What its records are.
    pub kind: ChunkKind,
    /// Where it ends.
    pub end: Units,
    /// KiB that it takes on the device.
    pub allocated_kib: u32,
}

fn must(can_be: bool, what: &'static str) -> Result<(), LayoutError> {
    if can_be { Ok(()) } else { Err(LayoutError::Illegal(what)) }
}

/// Puts the checksum behind a payload.
fn seal(bytes: &mut Vec<u8>) {
    let crc = crc32c::crc32c(bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
}

/// The payload before its checksum, which is right.
fn open(bytes: &[u8]) -> Result<&[u8], LayoutError> {
    let wrong = LayoutError::Length { needed: CRC_LEN, available: bytes.len() };
    let (covered, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or(wrong)?;
    if crc32c::crc32c(covered) == u32::from_le_bytes(*crc) { Ok(covered) } else { Err(LayoutError::Checksum) }
}

/// Whether a payload that is no records ends with its checksum.
#[must_use]
pub fn is_summed(payload: &[u8]) -> bool {
    open(payload).is_ok()
}

impl HelloPayload {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When no tier says so.
    pub fn encode(&self) -> Result<[u8; HELLO_LEN], LayoutError> {
        self.check()?;
        let mut body = HelloBody {
            pool: self.pool.0,
            version_least: self.version_least,
            version_most: self.version_most,
            reserved: [0; 6],
            server: self.server.unwrap_or_default().0.into(),
            crc: 0.into(),
        };
        body.crc = crc32c::crc32c(&body.as_bytes()[..HELLO_LEN - CRC_LEN]).into();
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a payload, all of it.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let wrong = LayoutError::Length { needed: HELLO_LEN, available: bytes.len() };
        let body = HelloBody::ref_from_bytes(bytes).map_err(|_| wrong)?;
        open(bytes)?;
        must(body.reserved == [0; 6], "reserved bytes are not zero")?;
        let hello = Self {
            pool: PoolId(body.pool),
            version_least: body.version_least,
            version_most: body.version_most,
            server: Some(ServerId(body.server.get())).filter(|server| server.0 != 0),
        };
        hello.check()?;
        Ok(hello)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.pool != PoolId::default(), "a tier of no pool")?;
        must(self.server != Some(ServerId(0)), "a server without a number")?;
        must(self.version_least <= self.version_most, "versions that are none")
    }
}

impl WelcomePayload {
    /// Its bytes.
    ///
    /// # Errors
    ///
    /// When no server says so.
    pub fn encode(&self) -> Result<[u8; WELCOME_LEN], LayoutError> {
        self.check()?;
        let mut body = WelcomeBody {
            pool: self.pool.unwrap_or_default().0,
            version: self.version,
            reserved: [0; 3],
            block_len: self.block_len.into(),
            capacity: self.capacity.into(),
            free: self.free.into(),
            requests_max: self.requests_max.into(),
            window_len: self.window_len.into(),
            domain: self.domain.field(),
            crc: 0.into(),
        };
        body.crc = crc32c::crc32c(&body.as_bytes()[..WELCOME_LEN - CRC_LEN]).into();
        Ok(zerocopy::transmute!(body))
    }

    /// Checks a payload, all of it.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let wrong = LayoutError::Length { needed: WELCOME_LEN, available: bytes.len() };
        let body = WelcomeBody::ref_from_bytes(bytes).map_err(|_| wrong)?;
        open(bytes)?;
        must(body.reserved == [0; 3], "reserved bytes are not zero")?;
        let welcome = Self {
            pool: Some(PoolId(body.pool)).filter(|pool| *pool != PoolId::default()),
            version: body.version,
            block_len: body.block_len.get(),
            capacity: body.capacity.get(),
            free: body.free.get(),
            requests_max: body.requests_max.get(),
            window_len: body.window_len.get(),
            domain: Text::from_field(&body.domain)?,
        };
        welcome.check()?;
        Ok(welcome)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.pool != Some(PoolId::default()), "a pool without a number")?;
        must(
            self.block_len.is_power_of_two() && self.block_len >= 512,
            "blocks of a length that there is not",
        )?;
        must(self.free <= self.capacity, "more free than there is")?;
        must((1..=REQUESTS_MAX).contains(&self.requests_max), "requests that nobody may send")?;
        must((1..=WINDOW_LEN).contains(&self.window_len), "a window that is too large, or none")
    }
}

impl ChunkLine {
    fn body(&self) -> Result<LineBody, LayoutError> {
        self.check()?;
        Ok(LineBody {
            volume: self.chunk.volume.0.into(),
            segment: self.chunk.segment.0.into(),
            chunk: self.chunk.chunk.0.into(),
            epoch: self.epoch.number().into(),
            state: self.state.code(),
            kind: self.kind.code(),
            reserved: [0; 2],
            end: self.end.0.into(),
            allocated: self.allocated_kib.into(),
        })
    }

    fn of(bytes: &[u8]) -> Result<Self, LayoutError> {
        let wrong = LayoutError::Length { needed: CHUNK_LINE_LEN, available: bytes.len() };
        let body = LineBody::ref_from_bytes(bytes).map_err(|_| wrong)?;
        must(body.reserved == [0; 2], "reserved bytes are not zero")?;
        let epoch = Epoch::new(body.epoch.get());
        let state = ReplicaState::from_code(body.state);
        let kind = ChunkKind::from_code(body.kind);
        let line = Self {
            chunk: ChunkName {
                volume: VolumeId(body.volume.get()),
                segment: SegmentId(body.segment.get()),
                chunk: ChunkId(body.chunk.get()),
            },
            epoch: epoch.ok_or(LayoutError::Illegal("an epoch that there is not"))?,
            state: state.ok_or(LayoutError::Illegal("a state that is not known"))?,
            kind: kind.ok_or(LayoutError::Illegal("a kind that is not known"))?,
            end: Units(body.end.get()),
            allocated_kib: body.allocated.get(),
        };
        line.check()?;
        Ok(line)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.chunk.volume.0 != 0 && self.chunk.chunk.0 != 0, "a volume or chunk without a number")?;
        must(self.end >= RECORDS_START && self.end <= CHUNK_UNITS_MAX, "an end that no chunk has")
    }
}

/// That so many may be in one message.
fn check_count(count: usize) -> Result<(), LayoutError> {
    must(count <= LIST_MAX as usize, "more than one message may have")
}

/// The payload of an answer to `LIST`.
///
/// # Errors
///
/// When there are too many, or not in the order of their places.
pub fn encode_entries(entries: &[Entry]) -> Result<Vec<u8>, LayoutError> {
    check_count(entries.len())?;
    must(entries.is_sorted_by(Entry::may_precede), "entries out of their order")?;
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_LEN + CRC_LEN);
    for entry in entries {
        bytes.extend_from_slice(&entry.encode()?);
    }
    seal(&mut bytes);
    Ok(bytes)
}

/// Checks the payload of an answer to `LIST`.
///
/// # Errors
///
/// When it is none, or not in the order of places.
pub fn decode_entries(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = Entry>, LayoutError> {
    decode_all(bytes, ENTRY_LEN, Entry::decode, Entry::may_precede)
}

/// The payload of an answer to `CHUNKS`.
///
/// # Errors
///
/// When there are too many, or not in the order of their names.
pub fn encode_chunks(lines: &[ChunkLine]) -> Result<Vec<u8>, LayoutError> {
    check_count(lines.len())?;
    must(lines.is_sorted_by(|line, next| line.chunk < next.chunk), "chunks out of their order")?;
    let mut bytes = Vec::with_capacity(lines.len() * CHUNK_LINE_LEN + CRC_LEN);
    for line in lines {
        bytes.extend_from_slice(line.body()?.as_bytes());
    }
    seal(&mut bytes);
    Ok(bytes)
}

/// Checks the payload of an answer to `CHUNKS`.
///
/// # Errors
///
/// When it is none, or not in the order of names.
pub fn decode_chunks(bytes: &[u8]) -> Result<impl ExactSizeIterator<Item = ChunkLine>, LayoutError> {
    decode_all(bytes, CHUNK_LINE_LEN, ChunkLine::of, |line, next| line.chunk < next.chunk)
}

fn decode_all<T>(
    bytes: &[u8],
    len: usize,
    decode: impl Fn(&[u8]) -> Result<T, LayoutError>,
    may_precede: impl Fn(&T, &T) -> bool,
) -> Result<std::vec::IntoIter<T>, LayoutError> {
    let covered = open(bytes)?;
    check_count(covered.len() / len)?;
    let (all, rest) = (covered.chunks_exact(len), covered.len() % len);
    must(rest == 0, "a part of one")?;
    let all: Vec<T> = all.map(decode).collect::<Result<_, _>>()?;
    must(all.is_sorted_by(may_precede), "out of their order")?;
    Ok(all.into_iter())
}

/// What records that were checked say together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsSummary {
    /// Where they end.
    pub end: Units,
    /// What they are.
    pub kind: ChunkKind,
    /// How far all members had the chunk, as far as one of them says so.
    pub everywhere: Units,
    /// How many they are.
    pub count: u32,
}

/// That a payload consists of whole records, of this chunk and from this place on; where they end.
///
/// # Errors
///
/// When one of them is broken, or of another place: then nothing of the message is written.
pub fn check_records(chunk: ChunkName, offset: Units, payload: &[u8]) -> Result<Units, LayoutError> {
    sum_up_records(chunk, offset, payload).map(|summary| summary.end)
}

/// The same, and what they say.
///
/// # Errors
///
/// As [`check_records`].
pub fn sum_up_records(
    chunk: ChunkName,
    offset: Units,
    payload: &[u8],
) -> Result<RecordsSummary, LayoutError> {
    let mut summary: Option<RecordsSummary> = None;
    for record in Records::new(payload) {
        let header = record?.header;
        let kind = header.kind.chunk_kind();
        let before = summary.unwrap_or(RecordsSummary { end: offset, kind, everywhere: Units(0), count: 0 });
        must(header.chunk == chunk && header.offset == before.end, "a record of another place")?;
        must(kind == before.kind, "data and index in one chunk")?;
        let everywhere = header.everywhere().unwrap_or_default().max(before.everywhere);
        summary = Some(RecordsSummary { end: header.end(), kind, everywhere, count: before.count + 1 });
    }
    summary.ok_or(LayoutError::Illegal("no records"))
}
