//! What a receiver decides by the begin of a PDU.

use zerocopy::FromBytes;

use super::value::Pdu;
use super::{
    COMMON_LEN, CommonHeader, DIGEST_LEN, DataAlignment, Digests, PduType, TERMINATION_DATA_MAX, digest, flag,
};

codes! {
    /// FES: why a connection is given up (TCP §3.6.2.4, §3.6.2.5).
    FatalStatus: u16, "fatal error status" {
        /// A header field is wrong; FEI is its byte offset.
        InvalidHeader = 1,
        /// A PDU came when it must not.
        Sequence = 2,
        /// The header digest is wrong; FEI is the digest that came.
        HeaderDigest = 3,
        /// Data for bytes that were not asked for.
        OutOfRange = 4,
        /// To the controller: more data than MAXH2CDATA. To the host: more R2Ts than MAXR2T.
        LimitExceeded = 5,
        /// A parameter is not supported; FEI is its byte offset.
        UnsupportedParameter = 6,
    }
}

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The controller's side.
    Target,
    /// The host's side.
    Initiator,
}

/// What was agreed on, and what the receiver has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRules {
    /// Who receives.
    pub role: Role,
    /// Digests in use; none before ICReq and ICResp were exchanged.
    pub digests: Digests,
    /// What the receiver asked for: CPDA on a target, HPDA on an initiator.
    pub alignment: DataAlignment,
    /// Most bytes of data in a command capsule: what Identify's IOCCSZ says, 8 KiB on the admin queue.
    pub capsule_data_max: u32,
    /// Most bytes of data in a data PDU: MAXH2CDATA on a target, the largest read on an initiator.
    pub data_max: u32,
}

/// Where the parts of a PDU are. Every number was checked: nothing reaches beyond `total_len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The type, which is one of the receiver's.
    pub kind: PduType,
    /// The flags as they came.
    pub flags: u8,
    /// Bytes of the header, without its digest.
    pub header_len: usize,
    /// Whether four bytes of digest follow the header.
    pub has_header_digest: bool,
    /// First byte of data; where the PDU ends if it has none.
    pub data_at: usize,
    /// Bytes of data.
    pub data_len: usize,
    /// Whether four bytes of digest follow the data.
    pub has_data_digest: bool,
    /// Bytes of the whole PDU.
    pub total_len: usize,
}

impl Layout {
    /// Bytes that are needed before the header can be read: the header and its digest.
    #[must_use]
    pub const fn head_len(&self) -> usize {
        self.header_len + if self.has_header_digest { DIGEST_LEN } else { 0 }
    }

    /// First byte behind the data: where its digest is, if there is one.
    #[must_use]
    pub const fn data_end(&self) -> usize {
        self.data_at + self.data_len
    }

    /// LAST_PDU.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.flags & flag::LAST != 0
    }

    /// SUCCESS.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.flags & flag::SUCCESS != 0
    }
}

/// Why a PDU ends its connection: the content of the terminate request to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status:?} (information {info:#x})")]
pub struct PduError {
    /// FES.
    pub status: FatalStatus,
    /// FEI: the wrong field's byte offset, or the digest that came.
    pub info: u32,
}

impl PduError {
    /// A header field has an impossible value.
    #[must_use]
    pub const fn invalid(offset: u32) -> Self {
        Self { status: FatalStatus::InvalidHeader, info: offset }
    }

    /// A parameter that is legal and not supported.
    #[must_use]
    pub const fn unsupported(offset: u32) -> Self {
        Self { status: FatalStatus::UnsupportedParameter, info: offset }
    }

    /// A PDU at the wrong time.
    #[must_use]
    pub const fn sequence() -> Self {
        Self { status: FatalStatus::Sequence, info: 0 }
    }

    /// Data that was not asked for; the offset is of the field that says so.
    #[must_use]
    pub const fn out_of_range(offset: u32) -> Self {
        Self { status: FatalStatus::OutOfRange, info: offset }
    }

    /// More than was allowed.
    #[must_use]
    pub const fn limit(offset: u32) -> Self {
        Self { status: FatalStatus::LimitExceeded, info: offset }
    }
}

/// How far the begin of a PDU has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing can be said before this many bytes of the PDU are there.
    Need(usize),
    /// The header, and where the rest is.
    Header(Layout, Pdu),
}

/// Looks at the first bytes of a PDU: more than the header may be there, or less. The header's digest is checked; of
/// the data nothing is looked at.
pub fn receive(bytes: &[u8], rules: &ReceiveRules) -> Result<Progress, PduError> {
    let Ok((common, _)) = CommonHeader::read_from_prefix(bytes) else {
        return Ok(Progress::Need(COMMON_LEN));
    };
    let layout = common.check(rules)?;
    let head_len = layout.head_len();
    let Some((header, received)) =
        bytes.get(..head_len).and_then(|head| head.split_at_checked(layout.header_len))
    else {
        return Ok(Progress::Need(head_len));
    };
    if layout.has_header_digest && received != digest(header) {
        let info = received.first_chunk().map_or(0, |digest| u32::from_le_bytes(*digest));
        return Err(PduError { status: FatalStatus::HeaderDigest, info });
    }
    Ok(Progress::Header(layout, Pdu::parse(&layout, header)?))
}

const AT_KIND: u32 = 0;
const AT_FLAGS: u32 = 1;
const AT_HEADER_LEN: u32 = 2;
const AT_DATA_AT: u32 = 3;
const AT_TOTAL_LEN: u32 = 4;

impl CommonHeader {
    /// Decides whether a PDU that begins so is one that the receiver takes, and where its parts are.
    ///
    /// Fields that are reserved for the type are not looked at, as the specification demands: PDO where there is
    /// no data, and flags that the type does not have.
    pub fn check(&self, rules: &ReceiveRules) -> Result<Layout, PduError> {
        let kind = PduType::try_from(self.kind).map_err(|_| PduError::invalid(AT_KIND))?;
        if kind.receiver() != rules.role {
            return Err(PduError::invalid(AT_KIND));
        }
        let header_len = kind.header_len();
        if usize::from(self.header_len) != header_len {
            return Err(PduError::invalid(AT_HEADER_LEN));
        }
        let has_header_digest = kind.has_digests() && rules.digests.header;
        if kind.has_digests() && (self.flags & flag::HEADER_DIGEST != 0) != has_header_digest {
            return Err(PduError::invalid(AT_FLAGS));
        }
        let total_len = self.total_len.get() as usize;
        let bare = Layout {
            kind,
            flags: self.flags,
            header_len,
            has_header_digest,
            data_at: total_len,
            data_len: 0,
            has_data_digest: false,
            total_len,
        };
        let head_len = bare.head_len();
        match kind {
            PduType::IcReq | PduType::IcResp | PduType::Response | PduType::R2t => {
                if total_len == head_len {
                    Ok(bare)
                } else {
                    Err(PduError::invalid(AT_TOTAL_LEN))
                }
            }
            PduType::H2cTermReq | PduType::C2hTermReq => {
                let quoted = total_len.checked_sub(head_len).filter(|len| *len <= TERMINATION_DATA_MAX);
                let data_len = quoted.ok_or(PduError::invalid(AT_TOTAL_LEN))?;
                Ok(Layout { data_at: head_len, data_len, ..bare })
            }
            PduType::Command if total_len == head_len => Ok(bare),
            PduType::Command => {
                let layout = self.check_data(rules, bare)?;
                if layout.data_len > rules.capsule_data_max as usize {
                    return Err(PduError::invalid(AT_TOTAL_LEN));
                }
                Ok(layout)
            }
            PduType::H2cData | PduType::C2hData => {
                let layout = self.check_data(rules, bare)?;
                if layout.data_len > rules.data_max as usize {
                    return Err(match rules.role {
                        Role::Target => PduError::limit(AT_TOTAL_LEN),
                        Role::Initiator => PduError::out_of_range(AT_TOTAL_LEN),
                    });
                }
                // SUCCESS stands for the response, which comes after the last data (TCP §3.6.2.9).
                if kind == PduType::C2hData && layout.is_success() && !layout.is_last() {
                    return Err(PduError::invalid(AT_FLAGS));
                }
                Ok(layout)
            }
        }
    }

    /// The part of the check that PDUs with data share.
    fn check_data(&self, rules: &ReceiveRules, bare: Layout) -> Result<Layout, PduError> {
        let has_data_digest = rules.digests.data;
        if (self.flags & flag::DATA_DIGEST != 0) != has_data_digest {
            return Err(PduError::invalid(AT_FLAGS));
        }
        let data_at = usize::from(self.data_at);
        if data_at < bare.head_len() || !data_at.is_multiple_of(rules.alignment.bytes()) {
            return Err(PduError::invalid(AT_DATA_AT));
        }
        let behind = if has_data_digest { DIGEST_LEN } else { 0 };
        // A PDU that is made for data and brings none is refused: it would keep a transfer busy for ever.
        let data_len = bare.total_len.checked_sub(data_at + behind).filter(|len| *len > 0);
        let data_len = data_len.ok_or(PduError::invalid(AT_TOTAL_LEN))?;
        Ok(Layout { data_at, data_len, has_data_digest, ..bare })
    }
}
