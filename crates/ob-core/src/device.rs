//! Block devices.

use ob_memory::{Slice, Source};

use crate::{Instant, Refused, Token};

/// One operation on a device. Offsets and lengths are multiples of the device's block.
#[derive(Debug)]
pub enum DeviceOp {
    /// Fills `into` from `offset`.
    Read {
        /// Byte offset on the device.
        offset: u64,
        /// Where the bytes go.
        into: Slice,
    },
    /// Writes all of `from` at `offset`.
    Write {
        /// Byte offset on the device.
        offset: u64,
        /// The bytes, which others may read meanwhile if they are shared.
        from: Source,
        /// Complete only when the bytes are durable.
        durable: bool,
    },
    /// Makes durable every write that completed before the flush was submitted.
    Flush,
    /// Gives the space back; what is read there afterwards is zeros or the old bytes.
    Discard {
        /// Byte offset on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Makes the range read as zeros.
    WriteZeroes {
        /// Byte offset on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl DeviceOp {
    /// The range of the device that the operation touches, if any.
    pub fn extent(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, into } => Some((*offset, into.len() as u64)),
            Self::Write { offset, from, .. } => Some((*offset, from.len() as u64)),
            Self::Flush => None,
            Self::Discard { offset, len } | Self::WriteZeroes { offset, len } => Some((*offset, *len)),
        }
    }
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Capacity in bytes, a multiple of `block_len`.
    pub capacity: u64,
    /// Smallest unit of reading and writing; one aligned block is written as a whole or not at all.
    pub block_len: u32,
    /// Whether completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// What [`DeviceOp::Discard`] gives back: whole units of so many bytes, at multiples of them; at least `block_len`.
    /// What it covers in part may stay taken.
    pub discard_unit: u32,
}

impl DeviceInfo {
    /// Checks alignment and bounds of an operation, whatever its numbers.
    pub fn check(&self, op: &DeviceOp) -> Result<(), DeviceError> {
        let Some((offset, len)) = op.extent() else { return Ok(()) };
        let block = u64::from(self.block_len);
        if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(DeviceError::Misaligned);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.capacity => Ok(()),
            _ => Err(DeviceError::OutOfRange),
        }
    }
}

/// A finished operation, handed back with its buffer.
#[derive(Debug)]
pub struct DeviceCompletion {
    /// As given at submission.
    pub token: Token,
    /// As given; a successful read has filled its slice.
    pub op: DeviceOp,
    /// How it went. After a failed write any of its blocks may hold old or new bytes.
    pub result: Result<(), DeviceError>,
}

/// Why a device operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Offset or length is not a multiple of the block.
    #[error("offset or length is not a multiple of the device's block")]
    Misaligned,
    /// The range leaves the device.
    #[error("the range lies outside the device")]
    OutOfRange,
    /// The medium could not read or write.
    #[error("the device reported an I/O error")]
    Io,
    /// What backs the device has no room left.
    #[error("the device is out of space")]
    NoSpace,
    /// The device cannot do this operation.
    #[error("the device does not support this operation")]
    Unsupported,
    /// The device is gone.
    #[error("the device is gone")]
    Gone,
}

/// A block device.
///
/// Operations complete in any order and may overlap; who needs an order waits for a completion.
pub trait Device {
    /// Its size, block and cache.
    fn info(&self) -> DeviceInfo;

    /// Starts an operation, or hands it back.
    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>>;

    /// The next finished operation.
    fn poll(&mut self) -> Option<DeviceCompletion>;

    /// When the next completion is due at the earliest, if that is known and nothing else will wake the caller.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_alignment_hold_for_any_numbers() {
        let info = DeviceInfo { capacity: 8192, block_len: 512, volatile_cache: true, discard_unit: 512 };
        let discard = |offset, len| info.check(&DeviceOp::Discard { offset, len });
        assert_eq!(discard(0, 8192), Ok(()));
        assert_eq!(discard(7680, 1024), Err(DeviceError::OutOfRange));
        assert_eq!(discard(u64::MAX - 511, 512), Err(DeviceError::OutOfRange));
        assert_eq!(discard(1, 512), Err(DeviceError::Misaligned));
        assert_eq!(info.check(&DeviceOp::Flush), Ok(()));
    }
}
