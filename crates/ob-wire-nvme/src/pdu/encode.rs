//! Writing headers.

use std::ops::Deref;

use zerocopy::IntoBytes;

use super::{
    CapsuleCommand, CapsuleResponse, CommonHeader, DIGEST_LEN, DataAlignment, DataHeader, DataTransfer,
    Digests, IC_LEN, IcReq, IcRequest, IcResp, IcResponse, PduError, PduType, R2t, ReadyToTransfer, Role,
    TERMINATION_DATA_MAX, TermReq, digest, flag,
};
use crate::command::{CompletionEntry, SubmissionEntry};

/// Most bytes before a PDU's data: a command's header and digest (76 bytes) lie on a boundary of 72 bytes at 144; a
/// terminate request with all that it may quote has 152 bytes.
pub const HEADER_MAX: usize = 152;

/// Everything of a PDU that comes before its data: header, digest and padding.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    bytes: [u8; HEADER_MAX],
    len: usize,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl AsRef<[u8]> for HeaderBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl HeaderBytes {
    fn new(header: &[u8]) -> Self {
        let mut new = Self { bytes: [0; HEADER_MAX], len: 0 };
        new.append(header);
        new
    }

    fn append(&mut self, bytes: &[u8]) {
        let space = self.bytes.get_mut(self.len..self.len + bytes.len());
        debug_assert!(space.is_some(), "a header has at most {HEADER_MAX} bytes");
        if let Some(space) = space {
            space.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

/// How a sender makes PDUs once ICReq and ICResp were exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Who sends.
    pub role: Role,
    /// The digests that were agreed on.
    pub digests: Digests,
    /// What the *other* side wants: HPDA for a target, CPDA for an initiator.
    pub alignment: DataAlignment,
}

impl Framing {
    /// CapsuleCmd; the data and, if agreed, its digest are to follow.
    #[must_use]
    pub fn command(&self, entry: &SubmissionEntry, capsule_data_len: u32) -> HeaderBytes {
        let common = self.common(PduType::Command, 0, Some(capsule_data_len));
        self.finish(common, CapsuleCommand { common, entry: *entry }.as_bytes())
    }

    /// CapsuleResp.
    #[must_use]
    pub fn response(&self, entry: &CompletionEntry) -> HeaderBytes {
        let common = self.common(PduType::Response, 0, None);
        self.finish(common, CapsuleResponse { common, entry: *entry }.as_bytes())
    }

    /// C2HData from a target, H2CData from an initiator; the data and, if agreed, its digest are to follow.
    #[must_use]
    pub fn data(&self, transfer: &DataTransfer) -> HeaderBytes {
        let kind = match self.role {
            Role::Target => PduType::C2hData,
            Role::Initiator => PduType::H2cData,
        };
        let last = if transfer.is_last { flag::LAST } else { 0 };
        let success = if transfer.is_success { flag::SUCCESS } else { 0 };
        let common = self.common(kind, last | success, Some(transfer.len));
        let header = DataHeader {
            common,
            command_id: transfer.command.0.into(),
            tag: transfer.tag.0.into(),
            offset: transfer.offset.into(),
            length: transfer.len.into(),
            reserved: [0; 4],
        };
        self.finish(common, header.as_bytes())
    }

    /// R2T.
    #[must_use]
    pub fn ready_to_transfer(&self, wanted: &ReadyToTransfer) -> HeaderBytes {
        let common = self.common(PduType::R2t, 0, None);
        let header = R2t {
            common,
            command_id: wanted.command.0.into(),
            tag: wanted.tag.0.into(),
            offset: wanted.offset.into(),
            length: wanted.len.into(),
            reserved: [0; 4],
        };
        self.finish(common, header.as_bytes())
    }

    /// Bytes before the data of a PDU with data.
    #[must_use]
    pub fn data_at(&self, kind: PduType) -> usize {
        self.head_len(kind).next_multiple_of(self.alignment.bytes())
    }

    fn head_len(&self, kind: PduType) -> usize {
        kind.header_len() + if self.digests.header { DIGEST_LEN } else { 0 }
    }

    /// The common header of a PDU with digests; `data_len` is `None` for types that have no data.
    fn common(&self, kind: PduType, flags: u8, data_len: Option<u32>) -> CommonHeader {
        let data_len = data_len.filter(|len| *len > 0);
        let header_digest = if self.digests.header { flag::HEADER_DIGEST } else { 0 };
        let data_digest = if self.digests.data && data_len.is_some() { flag::DATA_DIGEST } else { 0 };
        let behind = if data_digest != 0 { DIGEST_LEN as u32 } else { 0 };
        let data_at = data_len.map_or(0, |_| self.data_at(kind));
        let before = if data_at == 0 { self.head_len(kind) } else { data_at };
        CommonHeader {
            kind: kind.code(),
            flags: flags | header_digest | data_digest,
            header_len: kind.header_len() as u8,
            data_at: data_at as u8,
            // Our own senders keep to MDTS and MAXH2CDATA, far below where this saturates.
            total_len: data_len.unwrap_or(0).saturating_add(before as u32 + behind).into(),
        }
    }

    fn finish(&self, common: CommonHeader, header: &[u8]) -> HeaderBytes {
        let mut bytes = HeaderBytes::new(header);
        if self.digests.header {
            bytes.append(&digest(header));
        }
        // The padding is zeros, which the buffer is made of.
        bytes.len = bytes.len.max(usize::from(common.data_at));
        bytes
    }
}

/// A header without digests and data.
fn plain(kind: PduType, total_len: usize) -> CommonHeader {
    CommonHeader {
        kind: kind.code(),
        flags: 0,
        header_len: kind.header_len() as u8,
        data_at: 0,
        total_len: (total_len as u32).into(),
    }
}

impl IcRequest {
    /// ICReq, the first bytes from a host.
    #[must_use]
    pub fn encode(&self) -> HeaderBytes {
        let header = IcReq {
            common: plain(PduType::IcReq, IC_LEN),
            alignment: self.alignment.code(),
            digests: self.digests.bits(),
            r2t_max: self.r2t_max.saturating_sub(1).into(),
            ..IcReq::default()
        };
        HeaderBytes::new(header.as_bytes())
    }
}

impl IcResponse {
    /// ICResp, the first bytes from a controller.
    #[must_use]
    pub fn encode(&self) -> HeaderBytes {
        let header = IcResp {
            common: plain(PduType::IcResp, IC_LEN),
            alignment: self.alignment.code(),
            digests: self.digests.bits(),
            data_max: self.data_max.into(),
            ..IcResp::default()
        };
        HeaderBytes::new(header.as_bytes())
    }
}

impl PduError {
    /// The whole terminate request: C2HTermReq from a target, H2CTermReq from an initiator. It quotes the begin of the
    /// PDU that was wrong, which may be as long as it likes.
    #[must_use]
    pub fn encode(&self, sender: Role, wrong: &[u8]) -> HeaderBytes {
        let kind = match sender {
            Role::Target => PduType::C2hTermReq,
            Role::Initiator => PduType::H2cTermReq,
        };
        let quoted = wrong.get(..TERMINATION_DATA_MAX).unwrap_or(wrong);
        let header = TermReq {
            common: plain(kind, kind.header_len() + quoted.len()),
            status: self.status.code().into(),
            info: self.info.into(),
            reserved: [0; 10],
        };
        let mut bytes = HeaderBytes::new(header.as_bytes());
        bytes.append(quoted);
        bytes
    }
}
