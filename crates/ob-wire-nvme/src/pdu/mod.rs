//! Protocol data units: what a connection's bytes are cut into (TCP §3.6).
//!
//! ```text
//!   │ common │ rest of the │ header │ padding │  data   │ data   │
//!   │ header │ header      │ digest │         │         │ digest │
//!   0        8             HLEN               PDO                PLEN
//! ```
//!
//! [`receive`] is the line that hostile bytes stop at, for both sides: it looks at the begin of a PDU as soon as it
//! is there, and gives the [`Layout`] of the rest and the header's content as a [`Pdu`]. [`Framing`] writes headers.

mod check;
mod digest;
mod encode;
mod value;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod tests;

use zerocopy::little_endian::{U16, U32};

use crate::command::{CompletionEntry, SubmissionEntry};

pub use check::{FatalStatus, Layout, PduError, Progress, ReceiveRules, Role, receive};
pub use digest::{DIGEST_LEN, DataDigest, digest};
pub use encode::{Framing, HEADER_MAX, HeaderBytes};
pub use value::{DataTransfer, IcRequest, IcResponse, Pdu, ReadyToTransfer, Termination};

/// Where the I/O controllers listen (TCP §3.1).
pub const PORT: u16 = 4420;
/// Where discovery controllers listen (TCP §3.1).
pub const DISCOVERY_PORT: u16 = 8009;
/// Bytes of the header that all PDUs share.
pub const COMMON_LEN: usize = 8;
/// Bytes of ICReq and ICResp.
pub const IC_LEN: usize = 128;
/// Most bytes of the broken PDU that a terminate request quotes (TCP §3.6.2.4).
pub const TERMINATION_DATA_MAX: usize = 128;
/// In-capsule data that every admin queue takes (TCP §3.6.2.6: 8 KiB).
pub const ADMIN_CAPSULE_DATA_MAX: u32 = 8192;
/// The least MAXH2CDATA (TCP §3.6.2.3).
pub const H2C_DATA_MIN: u32 = 4096;
/// The largest HPDA or CPDA (TCP §3.6.2.2).
pub const ALIGNMENT_MAX: u8 = 31;

layout! {
    /// The header that all PDUs share (TCP §3.6.2.1).
    CommonHeader[8] {
        /// PDU-Type.
        0 => kind: u8,
        /// FLAGS, see [`flag`].
        1 => flags: u8,
        /// HLEN: bytes of the header, without its digest.
        2 => header_len: u8,
        /// PDO: where the data begins, counted from the begin of the PDU.
        3 => data_at: u8,
        /// PLEN: bytes of the whole PDU.
        4 => total_len: U32,
    }

    /// ICReq (TCP §3.6.2.2).
    IcReq[128] {
        /// The common header.
        0 => common: CommonHeader,
        /// PFV: version of the PDU format, 0.
        8 => format_version: U16,
        /// HPDA: the host's data alignment in dwords, less one.
        10 => alignment: u8,
        /// DGST: bit 0 the header's, bit 1 the data's.
        11 => digests: u8,
        /// MAXR2T: R2Ts that may be outstanding for a command, less one.
        12 => r2t_max: U32,
        /// Reserved.
        16 => reserved: [u8; 112],
    }

    /// ICResp (TCP §3.6.2.3).
    IcResp[128] {
        /// The common header.
        0 => common: CommonHeader,
        /// PFV: version of the PDU format, 0.
        8 => format_version: U16,
        /// CPDA: the controller's data alignment in dwords, less one.
        10 => alignment: u8,
        /// DGST: bit 0 the header's, bit 1 the data's.
        11 => digests: u8,
        /// MAXH2CDATA: most bytes of data in an H2CData PDU.
        12 => data_max: U32,
        /// Reserved.
        16 => reserved: [u8; 112],
    }

    /// H2CTermReq and C2HTermReq (TCP §3.6.2.4, §3.6.2.5), without the quoted bytes behind.
    TermReq[24] {
        /// The common header.
        0 => common: CommonHeader,
        /// FES: fatal error status.
        8 => status: U16,
        /// FEI: fatal error information.
        10 => info: U32,
        /// Reserved.
        14 => reserved: [u8; 10],
    }

    /// CapsuleCmd (TCP §3.6.2.6), without the data behind.
    CapsuleCommand[72] {
        /// The common header.
        0 => common: CommonHeader,
        /// CCSQE.
        8 => entry: SubmissionEntry,
    }

    /// CapsuleResp (TCP §3.6.2.7).
    CapsuleResponse[24] {
        /// The common header.
        0 => common: CommonHeader,
        /// RCCQE.
        8 => entry: CompletionEntry,
    }

    /// H2CData and C2HData (TCP §3.6.2.8, §3.6.2.9), without the data behind.
    DataHeader[24] {
        /// The common header.
        0 => common: CommonHeader,
        /// CCCID: the command.
        8 => command_id: U16,
        /// TTAG: from the R2T; reserved in C2HData.
        10 => tag: U16,
        /// DATAO: where in the command's data this belongs.
        12 => offset: U32,
        /// DATAL: bytes of data in this PDU.
        16 => length: U32,
        /// Reserved.
        20 => reserved: [u8; 4],
    }

    /// R2T (TCP §3.6.2.10).
    R2t[24] {
        /// The common header.
        0 => common: CommonHeader,
        /// CCCID: the command.
        8 => command_id: U16,
        /// TTAG: to be repeated in the data PDUs.
        10 => tag: U16,
        /// R2TO: where in the command's data the wanted bytes begin.
        12 => offset: U32,
        /// R2TL: wanted bytes.
        16 => length: U32,
        /// Reserved.
        20 => reserved: [u8; 4],
    }
}

codes! {
    /// PDU types (TCP §3.6.2.1).
    PduType: u8, "PDU type" {
        /// ICReq: the host's first.
        IcReq = 0x00,
        /// ICResp: the controller's answer.
        IcResp = 0x01,
        /// H2CTermReq: the host gives up.
        H2cTermReq = 0x02,
        /// C2HTermReq: the controller gives up.
        C2hTermReq = 0x03,
        /// CapsuleCmd.
        Command = 0x04,
        /// CapsuleResp.
        Response = 0x05,
        /// H2CData.
        H2cData = 0x06,
        /// C2HData.
        C2hData = 0x07,
        /// R2T.
        R2t = 0x09,
    }
}

impl PduType {
    /// Who receives such PDUs.
    #[must_use]
    pub const fn receiver(self) -> Role {
        match self {
            Self::IcReq | Self::H2cTermReq | Self::Command | Self::H2cData => Role::Target,
            Self::IcResp | Self::C2hTermReq | Self::Response | Self::C2hData | Self::R2t => Role::Initiator,
        }
    }

    /// HLEN, which each type has only one of.
    #[must_use]
    pub const fn header_len(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => IC_LEN,
            Self::Command => size_of::<CapsuleCommand>(),
            Self::H2cTermReq
            | Self::C2hTermReq
            | Self::Response
            | Self::H2cData
            | Self::C2hData
            | Self::R2t => 24,
        }
    }

    /// Whether the agreed digests apply: they are agreed on by the first two PDUs, and the last cannot rely on them
    /// (TCP §3.3.1.1).
    #[must_use]
    pub const fn has_digests(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }
}

/// Bits of [`CommonHeader::flags`].
pub mod flag {
    /// HDGSTF: a header digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a data digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// LAST_PDU of H2CData and C2HData: no more data for this R2T or command.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS of C2HData: the command succeeded and no response follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Which digests a connection uses (DGST in ICReq and ICResp).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Over headers.
    pub header: bool,
    /// Over data.
    pub data: bool,
}

impl Digests {
    /// None at all.
    pub const NONE: Self = Self { header: false, data: false };
    /// Both.
    pub const BOTH: Self = Self { header: true, data: true };

    /// From the DGST byte, whose other bits are reserved.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    /// The DGST byte.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.header as u8 | (self.data as u8) << 1
    }

    /// Those that both sides want.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { header: self.header && other.header, data: self.data && other.data }
    }
}

/// The alignment that a receiver wants for the data within a PDU: HPDA or CPDA (TCP §3.6.2.2, §3.6.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataAlignment(u8);

impl DataAlignment {
    /// Four bytes, the least.
    pub const DWORD: Self = Self(0);

    /// From HPDA or CPDA, which is at most 31.
    #[must_use]
    pub const fn new(dwords_less_one: u8) -> Option<Self> {
        if dwords_less_one <= ALIGNMENT_MAX { Some(Self(dwords_less_one)) } else { None }
    }

    /// HPDA or CPDA.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Bytes: 4 to 128.
    #[must_use]
    pub const fn bytes(self) -> usize {
        (self.0 as usize + 1) * 4
    }
}
