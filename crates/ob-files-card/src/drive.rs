//! Doing things with a device one after the other: formatting, mounting, checking.
//!
//! The engine never waits. These do, because nothing else goes on while they run; how to wait is the caller's: turn a
//! reactor, or advance a simulation.

use ob_core::{Device, DeviceCompletion, DeviceError, DeviceOp, Token};
use ob_memory::{Pool, Slice};

/// A device and a way to wait for it.
pub trait Drive {
    /// The device.
    fn device(&mut self) -> &mut dyn Device;

    /// Waits until the device may have completed something.
    fn wait(&mut self);
}

/// The token of an operation that is waited for by itself; sections that are read have their own numbers.
const ALONE: Token = Token(u64::MAX);

/// Submits an operation, or gives it back if the device is busy.
pub(crate) fn submit(
    drive: &mut dyn Drive,
    token: Token,
    op: DeviceOp,
) -> Result<Option<DeviceOp>, DeviceError> {
    match drive.device().submit(token, op) {
        Ok(()) => Ok(None),
        Err(refused) if refused.reason == ob_core::RefusedReason::Gone => Err(DeviceError::Gone),
        Err(refused) => Ok(Some(refused.op)),
    }
}

/// The next completion.
pub(crate) fn complete(drive: &mut dyn Drive) -> DeviceCompletion {
    loop {
        if let Some(completion) = drive.device().poll() {
            return completion;
        }
        drive.wait();
    }
}

/// One operation, alone.
pub(crate) fn perform(drive: &mut dyn Drive, op: DeviceOp) -> Result<DeviceOp, DeviceError> {
    let mut op = op;
    while let Some(back) = submit(drive, ALONE, op)? {
        op = back;
        drive.wait();
    }
    loop {
        let completion = complete(drive);
        if completion.token == ALONE {
            return completion.result.map(|()| completion.op);
        }
    }
}

/// Reads so many bytes, a multiple of the block, into memory of their own.
pub(crate) fn read(drive: &mut dyn Drive, offset: u64, len: usize) -> Result<Slice, DeviceError> {
    let pool = Pool::new(len, 1);
    let Some(mut whole) = pool.take() else { return Err(DeviceError::NoSpace) };
    let into = whole.split_to(len);
    match perform(drive, DeviceOp::Read { offset, into })? {
        DeviceOp::Read { into, .. } => Ok(into),
        _ => Err(DeviceError::Io),
    }
}

/// Writes bytes at the start of a block, the rest of it zero; durable when this returns.
pub(crate) fn write_block(drive: &mut dyn Drive, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
    let block_len = drive.device().info().block_len as usize;
    let pool = Pool::new(block_len, 1);
    let Some(mut whole) = pool.take() else { return Err(DeviceError::NoSpace) };
    let mut from = whole.split_to(block_len);
    from.fill(0);
    from[..bytes.len()].copy_from_slice(bytes);
    perform(drive, DeviceOp::Write { offset, from: from.into(), durable: true }).map(|_| ())
}
