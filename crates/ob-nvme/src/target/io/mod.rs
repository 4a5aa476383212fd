//! Commands of the NVM command set, and what devices do for them.
//!
//! ```text
//!   entry ─▶ Io::parse ─▶ data is there ─▶ step ─▶ DeviceOp ─▶ completed ─┬─▶ step …    (ranges, chunks, a flush behind)
//!            bounds         (R2T, capsule)  │                             └─▶ answer
//!                                           └─ Ranges: waits while an orphan or a fused pair has the range
//! ```

mod pair;
mod ranges;
mod run;

use ob_core::{DeviceError, DeviceOp};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::{BlockCommand, DatasetManagement, RANGES_MAX, RangeLayout};
use ob_wire_nvme::{Status, SubmissionEntry};

use super::config::TRANSFER_LEN_MIN;
use super::control::{Access, IoCount, Namespace, NamespaceKey};
use super::flight::FlightKey;

pub(super) use ranges::{Place, Ranges};

/// Bytes of a range of Dataset Management.
const RANGE_LEN: usize = size_of::<RangeLayout>();

/// The commands that devices serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoKind {
    Read,
    Write,
    Flush,
    WriteZeroes,
    /// Dataset Management with the deallocate attribute.
    Discard,
    /// Dataset Management that only tells how data will be used.
    Hint,
    Compare,
    Verify,
}

/// One such command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub(super) kind: IoKind,
    pub(super) nsid: u32,
    pub(super) namespace: NamespaceKey,
    pub(super) place: Place,
    /// Bytes on the device that the command is about; of Dataset Management, its present range.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Done only when durable; of a read, when what it has seen is.
    pub(super) is_durable: bool,
    /// Write Zeroes that is to give the space back.
    pub(super) deallocates: bool,
    /// How many ranges of Dataset Management there are.
    pub(super) ranges: u64,
    /// How far it has come: bytes of a chain of operations, or ranges.
    pub(super) done: u64,
    /// How far Dataset Management has come in its present range.
    pub(super) part: u64,
    /// A flush that belongs to the command is under way or done.
    pub(super) has_flushed: bool,
    /// A half of a fused pair.
    pub(super) is_fused: bool,
    /// The other half, once it is known.
    pub(super) partner: Option<FlightKey>,
    /// Bytes of a block.
    pub(super) block_len: u32,
    /// Bytes by which the namespace gives space back: whole blocks.
    pub(super) unit_len: u32,
}

impl Io {
    /// Reads a command, and checks it against the namespace that it names, and the longest transfer that there is.
    pub(super) fn parse(
        opcode: IoOpcode,
        entry: &SubmissionEntry,
        namespace: &Namespace,
        transfer_len_max: usize,
    ) -> Result<Self, Status> {
        let kind = match opcode {
            IoOpcode::Read => IoKind::Read,
            IoOpcode::Write => IoKind::Write,
            IoOpcode::Flush => IoKind::Flush,
            IoOpcode::WriteZeroes => IoKind::WriteZeroes,
            IoOpcode::DatasetManagement if DatasetManagement::parse(entry).deallocate => IoKind::Discard,
            IoOpcode::DatasetManagement => IoKind::Hint,
            IoOpcode::Compare => IoKind::Compare,
            IoOpcode::Verify => IoKind::Verify,
            _ => return Err(Status::INVALID_OPCODE.with_do_not_retry()),
        };
        let mut io = Self::new(kind, namespace);
        match kind {
            IoKind::Flush => {}
            // The ranges are in the data.
            IoKind::Discard | IoKind::Hint => io.ranges = DatasetManagement::parse(entry).ranges as u64,
            _ => {
                let command = BlockCommand::parse(entry)?;
                io.is_durable = command.force_unit_access;
                io.deallocates = command.deallocate && namespace.deallocated_reads_zero;
                (io.offset, io.len) = extent(namespace, command.start, u64::from(command.blocks))?;
            }
        }
        let has_data = matches!(kind, IoKind::Read | IoKind::Write | IoKind::Compare);
        if has_data && io.len > transfer_len_max as u64 {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        Ok(io)
    }

    /// A command that names no blocks.
    pub(super) fn new(kind: IoKind, namespace: &Namespace) -> Self {
        Self {
            kind,
            nsid: namespace.nsid,
            namespace: namespace.key,
            place: Place::of(namespace),
            offset: 0,
            len: 0,
            is_durable: false,
            deallocates: false,
            ranges: 0,
            done: 0,
            part: 0,
            has_flushed: false,
            is_fused: false,
            partner: None,
            block_len: namespace.block_len,
            unit_len: unit_len(namespace),
        }
    }

    /// Bytes of data that the command moves over the network, if the host has named so many.
    pub(super) fn transfer_len(&self, named: usize) -> Result<usize, Status> {
        let (least, most) = match self.kind {
            IoKind::Read | IoKind::Write | IoKind::Compare => (self.len as usize, self.len as usize),
            // Linux names room for all the ranges there may be, whatever their number.
            IoKind::Discard | IoKind::Hint => (self.ranges as usize * RANGE_LEN, RANGES_MAX * RANGE_LEN),
            IoKind::Flush | IoKind::WriteZeroes | IoKind::Verify => (0, 0),
        };
        if named < least { Err(Status::INVALID_SGL_LENGTH.with_do_not_retry()) } else { Ok(named.min(most)) }
    }

    /// What it does, as far as permission goes.
    pub(super) fn access(&self) -> Access {
        match self.kind {
            IoKind::Read | IoKind::Compare | IoKind::Verify => Access::Read,
            // Dataset Management is one whatever it tells (Base §8.19).
            IoKind::Write | IoKind::WriteZeroes | IoKind::Discard | IoKind::Hint => Access::Write,
            IoKind::Flush => Access::Flush,
        }
    }

    /// For the health log.
    pub(super) fn count(&self) -> IoCount {
        match self.kind {
            IoKind::Read | IoKind::Compare => IoCount::Read(self.len),
            IoKind::Write => IoCount::Write(self.len),
            _ => IoCount::Other,
        }
    }

    /// Bytes that Verify reads next.
    pub(super) fn chunk_len(&self) -> u64 {
        (self.len - self.done.min(self.len)).min(TRANSFER_LEN_MIN as u64)
    }

    /// What one operation does of a long range, from this byte of it on: its offset on the device and its length. Parts
    /// are of whole units, one at least, and end where units do, so that those can be given back as a whole.
    fn part_from(&self, done: u64, at_once: u64) -> (u64, u64) {
        let unit = u64::from(self.unit_len.max(1));
        let (offset, part_len) = (self.offset + done, (at_once / unit).max(1) * unit);
        (offset, (self.len - done).min(part_len - offset % part_len))
    }

    fn next_discard(&self, at_once: u64) -> DeviceOp {
        let (offset, len) = self.part_from(self.part, at_once);
        DeviceOp::Discard { offset, len }
    }

    /// Whether it changes what is on its range.
    pub(super) fn changes_data(&self) -> bool {
        matches!(self.kind, IoKind::Write | IoKind::WriteZeroes | IoKind::Discard)
    }

    /// What the host is told when a device failed.
    pub(super) fn status(&self, error: DeviceError) -> Status {
        match (error, self.kind) {
            (DeviceError::Io, IoKind::Read | IoKind::Compare | IoKind::Verify) => {
                Status::UNRECOVERED_READ_ERROR
            }
            (DeviceError::Io, _) => Status::WRITE_FAULT,
            (DeviceError::NoSpace, _) => Status::CAPACITY_EXCEEDED,
            (DeviceError::OutOfRange, _) => Status::LBA_OUT_OF_RANGE.with_do_not_retry(),
            (DeviceError::Unsupported, _) => Status::INVALID_OPCODE.with_do_not_retry(),
            (DeviceError::Misaligned, _) => Status::INTERNAL_ERROR.with_do_not_retry(),
            // Another path to the namespace may still reach it.
            (DeviceError::Gone, _) => Status::INTERNAL_PATH_ERROR,
        }
    }
}

/// By how much a namespace gives space back; a block where it does not say, or what it says are no whole blocks.
fn unit_len(namespace: &Namespace) -> u32 {
    let Namespace { block_len, deallocate_len, .. } = *namespace;
    let is_whole = deallocate_len > 0 && block_len > 0 && deallocate_len.is_multiple_of(block_len);
    if is_whole { deallocate_len } else { block_len }
}

/// The bytes of a run of blocks, if the namespace has them.
pub(super) fn extent(namespace: &Namespace, block: u64, blocks: u64) -> Result<(u64, u64), Status> {
    let out_of_range = Status::LBA_OUT_OF_RANGE.with_do_not_retry();
    match block.checked_add(blocks) {
        Some(end) if end <= namespace.blocks => {}
        _ => return Err(out_of_range),
    }
    let block_len = u64::from(namespace.block_len);
    // A namespace's bytes fit into 63 bits, and the run lies within it.
    block.checked_mul(block_len).zip(blocks.checked_mul(block_len)).ok_or(out_of_range)
}
