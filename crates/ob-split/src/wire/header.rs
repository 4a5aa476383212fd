//! How a message of peers begins.

use ob_core::{checksum_of, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 64;
/// Of these, bytes that mean the same in every protocol.
pub const COMMON_LEN: usize = 24;
/// The bit of `kind` that a reply has.
pub const REPLY: u8 = 0x80;

layout!(CommonBody, COMMON_LEN, {
    magic: [u8; 2], version: u8, kind: u8, status: U16, flags: U16, tag: U64, payload_len: U32, header_crc: U32,
});
layout!(HeaderBody, HEADER_LEN, { common: CommonBody, rest: [u8; 40] });

const CRC_AT: usize = std::mem::offset_of!(CommonBody, header_crc);

/// The first 64 bytes of a message, whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of which protocol.
    pub magic: [u8; 2],
    /// Its version.
    pub version: u8,
    /// What is asked, or with [`REPLY`] answered.
    pub kind: u8,
    /// How it went.
    pub status: u16,
    /// By kind.
    pub flags: u16,
    /// Which request is answered.
    pub tag: u64,
    /// Bytes that follow.
    pub payload_len: u32,
    /// What the protocol has besides.
    pub rest: [u8; 40],
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There are too few.
    #[error("a header has {HEADER_LEN} bytes, and there are {0}")]
    Cut(usize),
    /// They are of another protocol, or of none.
    #[error("the message begins with {found:02x?}, not with {wanted:02x?}")]
    Magic {
        /// What it begins with.
        found: [u8; 2],
        /// What it should begin with.
        wanted: [u8; 2],
    },
    /// They have changed on the way.
    #[error("the header's checksum is wrong")]
    Checksum,
}

impl Header {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let common = CommonBody {
            magic: self.magic,
            version: self.version,
            kind: self.kind,
            status: self.status.into(),
            flags: self.flags.into(),
            tag: self.tag.into(),
            payload_len: self.payload_len.into(),
            header_crc: 0.into(),
        };
        let mut body = HeaderBody { common, rest: self.rest };
        body.common.header_crc = checksum_of(body.as_bytes(), CRC_AT).into();
        zerocopy::transmute!(body)
    }

    /// Checks the header that the bytes begin with, of a protocol.
    ///
    /// # Errors
    ///
    /// When there is none of that protocol. What its fields say is for the protocol to check.
    pub fn decode(bytes: &[u8], magic: [u8; 2]) -> Result<Self, HeaderError> {
        let (body, _) = HeaderBody::ref_from_prefix(bytes).map_err(|_| HeaderError::Cut(bytes.len()))?;
        let common = &body.common;
        if common.magic != magic {
            return Err(HeaderError::Magic { found: common.magic, wanted: magic });
        }
        if common.header_crc != checksum_of(body.as_bytes(), CRC_AT) {
            return Err(HeaderError::Checksum);
        }
        Ok(Self {
            magic,
            version: common.version,
            kind: common.kind,
            status: common.status.get(),
            flags: common.flags.get(),
            tag: common.tag.get(),
            payload_len: common.payload_len.get(),
            rest: body.rest,
        })
    }

    /// Whether it is a reply.
    #[must_use]
    pub const fn is_reply(&self) -> bool {
        self.kind & REPLY != 0
    }
}
