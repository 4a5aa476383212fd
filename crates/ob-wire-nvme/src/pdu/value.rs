//! The content of headers as legal values.

use zerocopy::FromBytes;

use super::{
    CapsuleCommand, CapsuleResponse, DataAlignment, DataHeader, Digests, FatalStatus, H2C_DATA_MIN, IcReq,
    IcResp, Layout, PduError, PduType, R2t, TermReq,
};
use crate::command::{CompletionEntry, SubmissionEntry};
use crate::id::{CommandId, TransferTag};

/// A header's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// ICReq.
    IcRequest(IcRequest),
    /// ICResp.
    IcResponse(IcResponse),
    /// H2CTermReq or C2HTermReq.
    Termination(Termination),
    /// CapsuleCmd.
    Command(SubmissionEntry),
    /// CapsuleResp.
    Response(CompletionEntry),
    /// H2CData or C2HData.
    Data(DataTransfer),
    /// R2T.
    ReadyToTransfer(ReadyToTransfer),
}

/// What a host wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcRequest {
    /// How data is to lie in the C2HData PDUs for the host.
    pub alignment: DataAlignment,
    /// Digests it wants.
    pub digests: Digests,
    /// R2Ts it bears for one command, at least 1.
    pub r2t_max: u32,
}

/// What a controller makes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResponse {
    /// How data is to lie in the PDUs for the controller.
    pub alignment: DataAlignment,
    /// Digests that are used from here on.
    pub digests: Digests,
    /// Most bytes of data in one H2CData PDU: at least 4096, a multiple of 4.
    pub data_max: u32,
}

/// Why the other side gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    /// FES as it came: nothing depends on its being a known one.
    pub status: u16,
    /// FEI.
    pub info: u32,
}

/// Data for a part of a command. `offset + len` does not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTransfer {
    /// The command.
    pub command: CommandId,
    /// From the R2T; meaningless in C2HData.
    pub tag: TransferTag,
    /// Where in the command's data this belongs.
    pub offset: u32,
    /// Bytes, never 0: exactly those that the PDU brings.
    pub len: u32,
    /// LAST_PDU.
    pub is_last: bool,
    /// SUCCESS, which only the last C2HData of a command has.
    pub is_success: bool,
}

/// A controller asks for data. `offset + len` does not wrap, `len` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// The command.
    pub command: CommandId,
    /// To be repeated in the data PDUs.
    pub tag: TransferTag,
    /// Where in the command's data the wanted bytes begin.
    pub offset: u32,
    /// Wanted bytes.
    pub len: u32,
}

const AT_FORMAT_VERSION: u32 = 8;
const AT_ALIGNMENT: u32 = 10;
const AT_DATA_MAX: u32 = 12;
const AT_OFFSET: u32 = 12;
const AT_LENGTH: u32 = 16;

impl Pdu {
    /// Reads the header, which is exactly `layout.header_len` bytes long.
    pub(super) fn parse(layout: &Layout, header: &[u8]) -> Result<Self, PduError> {
        Ok(match layout.kind {
            PduType::IcReq => Self::IcRequest(IcRequest::parse(&read::<IcReq>(header)?)?),
            PduType::IcResp => Self::IcResponse(IcResponse::parse(&read::<IcResp>(header)?)?),
            PduType::H2cTermReq | PduType::C2hTermReq => {
                let TermReq { status, info, .. } = read(header)?;
                Self::Termination(Termination { status: status.get(), info: info.get() })
            }
            PduType::Command => Self::Command(read::<CapsuleCommand>(header)?.entry),
            PduType::Response => Self::Response(read::<CapsuleResponse>(header)?.entry),
            PduType::H2cData | PduType::C2hData => {
                Self::Data(DataTransfer::parse(layout, &read::<DataHeader>(header)?)?)
            }
            PduType::R2t => Self::ReadyToTransfer(ReadyToTransfer::parse(&read::<R2t>(header)?)?),
        })
    }
}

/// The layout's check makes the length right; were it not, HLEN would be the field to blame.
fn read<T: FromBytes>(header: &[u8]) -> Result<T, PduError> {
    T::read_from_bytes(header).map_err(|_| PduError::invalid(2))
}

impl IcRequest {
    fn parse(header: &IcReq) -> Result<Self, PduError> {
        if header.format_version.get() != 0 {
            return Err(PduError::unsupported(AT_FORMAT_VERSION));
        }
        let alignment = DataAlignment::new(header.alignment).ok_or(PduError::invalid(AT_ALIGNMENT))?;
        let digests = Digests::from_bits(header.digests);
        // The field counts from zero; the largest value means more than anyone sends at once in any case.
        Ok(Self { alignment, digests, r2t_max: header.r2t_max.get().saturating_add(1) })
    }
}

impl IcResponse {
    fn parse(header: &IcResp) -> Result<Self, PduError> {
        if header.format_version.get() != 0 {
            return Err(PduError::unsupported(AT_FORMAT_VERSION));
        }
        let alignment = DataAlignment::new(header.alignment).ok_or(PduError::invalid(AT_ALIGNMENT))?;
        let data_max = header.data_max.get();
        if data_max < H2C_DATA_MIN || !data_max.is_multiple_of(4) {
            return Err(PduError::invalid(AT_DATA_MAX));
        }
        Ok(Self { alignment, digests: Digests::from_bits(header.digests), data_max })
    }
}

impl Termination {
    /// FES, if it is a known one.
    #[must_use]
    pub fn known_status(&self) -> Option<FatalStatus> {
        FatalStatus::try_from(self.status).ok()
    }
}

impl DataTransfer {
    fn parse(layout: &Layout, header: &DataHeader) -> Result<Self, PduError> {
        let (offset, len) = (header.offset.get(), header.length.get());
        if len as usize != layout.data_len {
            return Err(PduError::invalid(AT_LENGTH));
        }
        if offset.checked_add(len).is_none() {
            return Err(PduError::out_of_range(AT_OFFSET));
        }
        Ok(Self {
            command: CommandId(header.command_id.get()),
            tag: TransferTag(header.tag.get()),
            offset,
            len,
            is_last: layout.is_last(),
            is_success: layout.kind == PduType::C2hData && layout.is_success(),
        })
    }
}

impl ReadyToTransfer {
    fn parse(header: &R2t) -> Result<Self, PduError> {
        let (offset, len) = (header.offset.get(), header.length.get());
        if len == 0 {
            return Err(PduError::invalid(AT_LENGTH));
        }
        if offset.checked_add(len).is_none() {
            return Err(PduError::out_of_range(AT_OFFSET));
        }
        let (command, tag) = (CommandId(header.command_id.get()), TransferTag(header.tag.get()));
        Ok(Self { command, tag, offset, len })
    }
}
