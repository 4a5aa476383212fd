//! The superblock: where a mount begins.

use ob_core::{checksum_of, layout};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{Geometry, GeometryError, VERSION};

/// Bytes of a superblock; the rest of its block is zero.
pub const SUPERBLOCK_LEN: usize = 128;
/// Where on the device the two superblocks are, in bytes.
pub const SUPERBLOCK_SLOTS: [u64; 2] = [0, 65536];

pub(super) const MAGIC: [u8; 8] = *b"OUTBFILE";

layout!(SuperblockBody, SUPERBLOCK_LEN, {
    magic: [u8; 8], version: U32, checksum: U32, uuid: [u8; 16], sequence: U64, epoch: U64, block_len: U32,
    section_len: U32, segment_len: U64, capacity: U64, log_sections: U32, tail_section: U32, tail_sequence: U64,
    tail_previous: U32, reserved: U32, data_start: U64, data_segments: U64, reserved_end: [u8; 16],
});

const CHECKSUM_AT: usize = std::mem::offset_of!(SuperblockBody, checksum);

/// Where the log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStart {
    /// The section whose first frame it is.
    pub section: u32,
    /// That frame's sequence.
    pub sequence: u64,
    /// The checksum of the frame before it.
    pub previous: u32,
}

/// What one slot of the superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Where everything lies.
    pub geometry: Geometry,
    /// Drawn at formatting.
    pub uuid: [u8; 16],
    /// Grows by one with each superblock written.
    pub sequence: u64,
    /// Grows by one with each mount.
    pub epoch: u64,
    /// Where the log begins.
    pub tail: LogStart,
}

/// Why bytes are not a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// The bytes do not begin like one.
    #[error("there is no superblock")]
    Missing,
    /// It is of a version that this build does not know.
    #[error("the format's version is {found}, and this outboard knows version {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It is damaged.
    #[error("the superblock's checksum is wrong")]
    Checksum,
    /// The checksum is right and the lengths cannot be.
    #[error("the superblock cannot be right: {0}")]
    Geometry(#[from] GeometryError),
    /// The checksum is right and something else cannot be.
    #[error("the superblock cannot be right: {0}")]
    Illegal(&'static str),
}

impl Superblock {
    /// The bytes that go to the start of a slot's block.
    pub fn encode(&self) -> [u8; SUPERBLOCK_LEN] {
        let geometry = &self.geometry;
        let mut body = SuperblockBody {
            magic: MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            uuid: self.uuid,
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            block_len: geometry.block_len.into(),
            section_len: geometry.section_len.into(),
            segment_len: geometry.segment_len.into(),
            capacity: geometry.capacity.into(),
            log_sections: geometry.log_sections.into(),
            tail_section: self.tail.section.into(),
            tail_sequence: self.tail.sequence.into(),
            tail_previous: self.tail.previous.into(),
            reserved: 0.into(),
            data_start: geometry.data_start.into(),
            data_segments: u64::from(geometry.data_segments).into(),
            reserved_end: [0; 16],
        };
        body.checksum = checksum_of(body.as_bytes(), CHECKSUM_AT).into();
        zerocopy::transmute!(body)
    }

    /// Checks the bytes of a slot, which may be more than the superblock.
    ///
    /// # Errors
    ///
    /// When they are not a superblock of this version, whole and with legal numbers.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let (body, _) = SuperblockBody::ref_from_prefix(bytes).map_err(|_| SuperblockError::Missing)?;
        if body.magic != MAGIC {
            return Err(SuperblockError::Missing);
        }
        // Before the checksum: another version may have it elsewhere.
        if body.version != VERSION {
            return Err(SuperblockError::Version { found: body.version.get() });
        }
        if body.checksum != checksum_of(body.as_bytes(), CHECKSUM_AT) {
            return Err(SuperblockError::Checksum);
        }
        let data_segments = u32::try_from(body.data_segments.get())
            .map_err(|_| SuperblockError::Illegal("more segments than can be counted"))?;
        let geometry = Geometry {
            block_len: body.block_len.get(),
            section_len: body.section_len.get(),
            segment_len: body.segment_len.get(),
            capacity: body.capacity.get(),
            log_sections: body.log_sections.get(),
            data_start: body.data_start.get(),
            data_segments,
        };
        geometry.check()?;
        if body.tail_section.get() >= geometry.log_sections {
            return Err(SuperblockError::Illegal("the log begins in a section that is not there"));
        }
        if body.reserved != 0 || body.reserved_end != [0; 16] {
            return Err(SuperblockError::Illegal("reserved bytes are not zero"));
        }
        let tail = LogStart {
            section: body.tail_section.get(),
            sequence: body.tail_sequence.get(),
            previous: body.tail_previous.get(),
        };
        Ok(Self { geometry, uuid: body.uuid, sequence: body.sequence.get(), epoch: body.epoch.get(), tail })
    }

    /// What each frame carries to say that it belongs to this format: the first 8 bytes of the uuid.
    pub fn format_tag(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.uuid;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}
