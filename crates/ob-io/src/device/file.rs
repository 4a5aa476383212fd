//! A file or raw block device, read and written through the reactor's ring.

use std::path::Path;

use ob_core::{Device, DeviceCompletion, DeviceInfo, DeviceOp, Refused, Token};

use super::open::{OpenError, Opened, Space, create_new, open_existing};
use crate::reactor::{DeviceFile, Handle};

/// How a file device is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDeviceOptions {
    /// How many operations may be submitted and not yet polled.
    pub depth: usize,
}

impl Default for FileDeviceOptions {
    fn default() -> Self {
        Self { depth: 256 }
    }
}

/// A file or a raw disk, opened with `O_DIRECT` and for this process alone.
///
/// - A durable write is `RWF_DSYNC`, a flush is `fdatasync`. After a flush has failed once, every later flush and
///   durable write fails too: the kernel tells of lost writes a single time, so only what is read back from
///   scratch can be believed again.
/// - A slice whose address is not a multiple of [`FileDevice::memory_align`] completes as
///   [`ob_core::DeviceError::Misaligned`]; a multiple of the block always suffices.
/// - Dropping the device forgets its completions; the file stays open and locked until operations in flight are
///   over.
pub struct FileDevice {
    handle: Handle,
    index: u32,
    info: DeviceInfo,
    memory_align: usize,
    direct: bool,
}

impl FileDevice {
    /// Opens an existing file or block device.
    pub fn open(handle: &Handle, path: &Path, options: &FileDeviceOptions) -> Result<Self, OpenError> {
        Self::adopt(handle, path, open_existing(path)?, options)
    }

    /// Creates a file of `len` bytes (rounded down to whole blocks) and opens it. Refuses a path that exists.
    pub fn create(
        handle: &Handle,
        path: &Path,
        len: u64,
        space: Space,
        options: &FileDeviceOptions,
    ) -> Result<Self, OpenError> {
        let opened = create_new(path, len, space)?;
        Self::adopt(handle, path, opened, options).inspect_err(|_| {
            // It did not exist before; the next attempt should find it so.
            let _ = rustix::fs::unlink(path);
        })
    }

    /// Whether I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// What the addresses of slices must be multiples of.
    pub fn memory_align(&self) -> usize {
        self.memory_align
    }

    fn adopt(
        handle: &Handle,
        path: &Path,
        opened: Opened,
        options: &FileDeviceOptions,
    ) -> Result<Self, OpenError> {
        let Opened { file, info, memory_align, direct } = opened;
        let device = DeviceFile { file, info, memory_align, depth: options.depth.max(1) };
        let index =
            handle.add_device(device).map_err(|reason| OpenError::Reactor { path: path.into(), reason })?;
        Ok(Self { handle: handle.clone(), index, info, memory_align, direct })
    }
}

impl Device for FileDevice {
    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        self.handle.submit(self.index, token, op)
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.handle.next_completion(self.index)
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        self.handle.remove_device(self.index);
    }
}
