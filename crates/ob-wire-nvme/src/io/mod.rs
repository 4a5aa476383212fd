//! I/O commands of the NVM command set (NVM §3.2), asynchronous events (Base §5.2) and Abort (Base §5.1).

mod event;
mod reservation;

#[cfg(test)]
mod tests;

use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use crate::command::{DataPointer, IoOpcode, SubmissionEntry};
use crate::id::{CommandId, NamespaceId};
use crate::status::Status;

pub use event::{Abort, AsyncEvent, AsyncEventKind, command_set_event, notice};
pub use reservation::{
    PersistChange, RegisteredController, RegisteredControllerExtended, Registrant, ReservationAcquire,
    ReservationAcquireAction, ReservationKeys, ReservationRegister, ReservationRegisterAction,
    ReservationRelease, ReservationReleaseAction, ReservationReport, ReservationReportHeader,
    ReservationStatus, ReservationType,
};

/// Most ranges of a Dataset Management (NVM §3.2.3).
pub const RANGES_MAX: usize = 256;

layout! {
    /// A range of a Dataset Management (NVM §3.2.3).
    RangeLayout[16] {
        /// Context attributes, which are hints.
        0 => attributes: U32,
        /// Length in blocks.
        4 => blocks: U32,
        /// Starting LBA.
        8 => start: U64,
    }
}

/// The fields that Read, Write, Compare, Write Zeroes and Verify share (NVM §3.2). `start + blocks` does not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// NSID.
    pub namespace: NamespaceId,
    /// SLBA.
    pub start: u64,
    /// NLB plus one: 1 to 65536.
    pub blocks: u32,
    /// FUA (CDW12 bit 30).
    pub force_unit_access: bool,
    /// LR (CDW12 bit 31): rather fail than try for long.
    pub limited_retry: bool,
    /// DEAC of Write Zeroes (CDW12 bit 25).
    pub deallocate: bool,
    /// PRINFO (CDW12 bits 29:26).
    pub protection: u8,
}

impl BlockCommand {
    /// Reads the entry.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let dword12 = entry.dword12.get();
        let (start, blocks) = (entry.dwords10_11(), (dword12 & 0xFFFF) + 1);
        if start.checked_add(u64::from(blocks)).is_none() {
            return Err(Status::LBA_OUT_OF_RANGE.with_do_not_retry());
        }
        Ok(Self {
            namespace: entry.namespace(),
            start,
            blocks,
            force_unit_access: dword12 & 1 << 30 != 0,
            limited_retry: dword12 & 1 << 31 != 0,
            deallocate: dword12 & 1 << 25 != 0,
            protection: (dword12 >> 26) as u8 & 0xF,
        })
    }

    /// A command of nothing but a range.
    #[must_use]
    pub const fn new(namespace: NamespaceId, start: u64, blocks: u32) -> Self {
        Self {
            namespace,
            start,
            blocks,
            force_unit_access: false,
            limited_retry: false,
            deallocate: false,
            protection: 0,
        }
    }

    /// The entry of such a command.
    #[must_use]
    pub fn encode(&self, opcode: IoOpcode, command: CommandId, data: DataPointer) -> SubmissionEntry {
        let dword12 = (self.blocks.saturating_sub(1) & 0xFFFF)
            | u32::from(self.deallocate) << 25
            | u32::from(self.protection & 0xF) << 26
            | u32::from(self.force_unit_access) << 30
            | u32::from(self.limited_retry) << 31;
        SubmissionEntry {
            dword10: (self.start as u32).into(),
            dword11: ((self.start >> 32) as u32).into(),
            dword12: dword12.into(),
            ..SubmissionEntry::new(opcode.code(), command, self.namespace)
        }
        .with_data(data)
    }

    /// The first block behind the range.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start + self.blocks as u64
    }
}

/// A Dataset Management (NVM §3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// NSID.
    pub namespace: NamespaceId,
    /// NR plus one: 1 to 256.
    pub ranges: usize,
    /// AD: deallocate.
    pub deallocate: bool,
    /// IDW: the host will write all of it.
    pub integral_write: bool,
    /// IDR: the host will read all of it.
    pub integral_read: bool,
}

/// A range of blocks, which may be empty. Whether there are such blocks has to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub start: u64,
    /// Blocks.
    pub blocks: u32,
}

impl DatasetManagement {
    /// Reads the entry.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dword11 = entry.dword11.get();
        Self {
            namespace: entry.namespace(),
            ranges: usize::from(entry.dword10.get() as u8) + 1,
            deallocate: dword11 & 4 != 0,
            integral_write: dword11 & 2 != 0,
            integral_read: dword11 & 1 != 0,
        }
    }

    /// Bytes of data that the ranges have.
    #[must_use]
    pub const fn data_len(&self) -> usize {
        self.ranges * size_of::<RangeLayout>()
    }

    /// The entry; its data are the ranges of [`BlockRange::encode`].
    #[must_use]
    pub fn encode(&self, command: CommandId, data: DataPointer) -> SubmissionEntry {
        let count = self.ranges.clamp(1, RANGES_MAX) as u32 - 1;
        let attributes = u32::from(self.integral_read)
            | u32::from(self.integral_write) << 1
            | u32::from(self.deallocate) << 2;
        SubmissionEntry {
            dword10: count.into(),
            dword11: attributes.into(),
            ..SubmissionEntry::new(IoOpcode::DatasetManagement.code(), command, self.namespace)
        }
        .with_data(data)
    }
}

impl BlockRange {
    /// The range at this place of the data; none where the data end before it does.
    #[must_use]
    pub fn parse(data: &[u8], index: usize) -> Option<Self> {
        let data = data.get(index.checked_mul(size_of::<RangeLayout>())?..)?;
        let (range, _) = RangeLayout::ref_from_prefix(data).ok()?;
        Some(Self { start: range.start.get(), blocks: range.blocks.get() })
    }

    /// The range's bytes.
    #[must_use]
    pub fn encode(&self) -> RangeLayout {
        RangeLayout { attributes: 0.into(), blocks: self.blocks.into(), start: self.start.into() }
    }
}
