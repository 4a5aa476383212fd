//! The first bytes of a chunk's file, and who a chunk server is.

use ob_core::{
    BlockLen, ChunkId, ChunkName, Epoch, Incarnation, PoolId, SegmentId, ServerId, Units, VolumeId,
    checksum_of, layout,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{CHUNK_UNITS_MAX, LayoutError, RECORDS_START, VERSION, check_chunk_name, epoch, must};

/// Bytes of a chunk's header; the rest of its block is zero.
pub const CHUNK_HEADER_LEN: usize = 64;
/// Bytes of the server's file.
pub const SERVER_FILE_LEN: usize = 64;

pub(super) const CHUNK_MAGIC: [u8; 4] = *b"OBCH";
pub(super) const SERVER_MAGIC: [u8; 4] = *b"OBCS";

layout!(ChunkBody, CHUNK_HEADER_LEN, {
    magic: [u8; 4], version: U32, crc: U32, kind: u8, reserved: [u8; 3], volume: U64, segment: U32, chunk: U32,
    epoch: U32, length: U32, block_len: U32, unit: U32, pool: [u8; 16],
});
layout!(ServerBody, SERVER_FILE_LEN, {
    magic: [u8; 4], version: U32, crc: U32, reserved: U32, server: U64, incarnation: U64, pool: [u8; 16],
    reserved_end: [u8; 16],
});

const CHUNK_CRC_AT: usize = std::mem::offset_of!(ChunkBody, crc);
const SERVER_CRC_AT: usize = std::mem::offset_of!(ServerBody, crc);

codes!(
    /// What a chunk's records are.
    ChunkKind {
        /// Blocks of the volume, and trims.
        Data = 1,
        /// The index' pages and roots.
        Index = 2,
    }
);

/// What a chunk's file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Which chunk it is.
    pub name: ChunkName,
    /// In which epoch it was created.
    pub epoch: Epoch,
    /// What its records are.
    pub kind: ChunkKind,
    /// How long the file is.
    pub length: Units,
    /// The volume's blocks.
    pub block_len: BlockLen,
    /// Whose it is.
    pub pool: PoolId,
}

/// Who a chunk server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerFile {
    /// Drawn once.
    pub server: ServerId,
    /// Grows by one with each start.
    pub incarnation: Incarnation,
    /// Of which pool, if it is of one yet.
    pub pool: Option<PoolId>,
}

impl ChunkHeader {
    /// The bytes that the file begins with.
    ///
    /// # Errors
    ///
    /// When there can be no such chunk.
    pub fn encode(&self) -> Result<[u8; CHUNK_HEADER_LEN], LayoutError> {
        self.check()?;
        let mut body = ChunkBody {
            magic: CHUNK_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            kind: self.kind.code(),
            reserved: [0; 3],
            volume: self.name.volume.0.into(),
            segment: self.name.segment.0.into(),
            chunk: self.name.chunk.0.into(),
            epoch: self.epoch.number().into(),
            length: self.length.0.into(),
            block_len: self.block_len.bytes().into(),
            unit: Units::LEN.into(),
            pool: self.pool.0,
        };
        body.crc = checksum_of(body.as_bytes(), CHUNK_CRC_AT).into();
        Ok(zerocopy::transmute!(body))
    }

    /// Checks the bytes of a file, which may be more than its header.
    ///
    /// # Errors
    ///
    /// When they are not a chunk's header, whole and with legal numbers.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let (body, _) = ChunkBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
        if body.magic != CHUNK_MAGIC {
            return Err(LayoutError::Missing);
        }
        if body.version != VERSION {
            return Err(LayoutError::Version(body.version.get()));
        }
        if body.crc != checksum_of(body.as_bytes(), CHUNK_CRC_AT) {
            return Err(LayoutError::Checksum);
        }
        must(body.reserved == [0; 3], "reserved bytes are not zero")?;
        must(body.unit == Units::LEN, "units of another length")?;
        let block_len = BlockLen::from_bytes(body.block_len.get());
        let header = Self {
            name: ChunkName {
                volume: VolumeId(body.volume.get()),
                segment: SegmentId(body.segment.get()),
                chunk: ChunkId(body.chunk.get()),
            },
            epoch: epoch(body.epoch.get())?,
            kind: ChunkKind::from_code(body.kind).ok_or(LayoutError::Illegal("a kind that is not known"))?,
            length: Units(body.length.get()),
            block_len: block_len.ok_or(LayoutError::Illegal("blocks of a length that there is not"))?,
            pool: PoolId(body.pool),
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), LayoutError> {
        check_chunk_name(self.name)?;
        must(self.pool != PoolId::default(), "a chunk of no pool")?;
        let is_legal = self.length > RECORDS_START && self.length <= CHUNK_UNITS_MAX;
        must(is_legal, "a length that no chunk has")
    }
}

impl ServerFile {
    /// The file.
    ///
    /// # Errors
    ///
    /// When there can be no such server.
    pub fn encode(&self) -> Result<[u8; SERVER_FILE_LEN], LayoutError> {
        self.check()?;
        let mut body = ServerBody {
            magic: SERVER_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            reserved: 0.into(),
            server: self.server.0.into(),
            incarnation: self.incarnation.0.into(),
            pool: self.pool.unwrap_or_default().0,
            reserved_end: [0; 16],
        };
        body.crc = checksum_of(body.as_bytes(), SERVER_CRC_AT).into();
        Ok(zerocopy::transmute!(body))
    }

    /// Checks the bytes of the file, which may be more.
    ///
    /// # Errors
    ///
    /// When they do not say who a server is.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let (body, _) = ServerBody::ref_from_prefix(bytes).map_err(|_| LayoutError::Missing)?;
        if body.magic != SERVER_MAGIC {
            return Err(LayoutError::Missing);
        }
        if body.version != VERSION {
            return Err(LayoutError::Version(body.version.get()));
        }
        if body.crc != checksum_of(body.as_bytes(), SERVER_CRC_AT) {
            return Err(LayoutError::Checksum);
        }
        must(body.reserved == 0 && body.reserved_end == [0; 16], "reserved bytes are not zero")?;
        let file = Self {
            server: ServerId(body.server.get()),
            incarnation: Incarnation(body.incarnation.get()),
            pool: Some(PoolId(body.pool)).filter(|pool| *pool != PoolId::default()),
        };
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), LayoutError> {
        must(self.server.0 != 0, "a server without a number")?;
        must(self.pool != Some(PoolId::default()), "a pool without a number")
    }
}
