//! A file or raw block device, read and written through the reactor's ring.

use std::os::fd::OwnedFd;
use std::path::Path;

use ob_core::{Device, DeviceCompletion, DeviceInfo, DeviceOp, Refused, Token};

use super::open::{Access, OpenError, Opened, Space, create_new, open_existing};
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

/// A file or a raw disk, opened with `O_DIRECT` and, unless it is only read, for this process alone.
///
/// - A durable write is `RWF_DSYNC`, a flush is `fdatasync`. One of them is with the kernel at a time; those that come
///   meanwhile, durable writes when their bytes are written, share one flush after it. After a flush has failed once, every
///   later flush and durable write fails too: the kernel tells of lost writes a single time, so only what is read back from
///   scratch can be believed again.
/// - A slice whose address is not a multiple of [`FileDevice::memory_align`] completes as
///   [`ob_core::DeviceError::Misaligned`]; a multiple of the block always suffices.
/// - Dropping the device forgets its completions; the file stays open and locked until operations in flight, and a
///   [`Resize`], are over.
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
        Self::adopt(handle, path, open_existing(path, Access::ReadWrite)?, options)
    }

    /// Opens an existing file or block device to be read, which needs no right to write it. Others may do the same, but
    /// nobody may have it open as [`FileDevice::open`] does. Every operation but a read completes as
    /// [`ob_core::DeviceError::Unsupported`].
    pub fn open_read_only(
        handle: &Handle,
        path: &Path,
        options: &FileDeviceOptions,
    ) -> Result<Self, OpenError> {
        Self::adopt(handle, path, open_existing(path, Access::ReadOnly)?, options)
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

    /// Another length for the file, rounded down to whole blocks. A block device has the length that it has. Nothing changes
    /// before [`Resize::run`], and nobody reaches more or less of the file before [`FileDevice::resized`].
    ///
    /// Operations in flight beyond a shorter end would make the file longer again: they have to be over before it runs, and
    /// none may be submitted until it has. For any length the same holds of flushes and durable writes: of lost writes the kernel
    /// tells but one of those that ask at the same time.
    pub fn resize(&self, len: u64) -> std::io::Result<Resize> {
        let (file, len) = self.handle.resize_device(self.index, len)?;
        Ok(Resize { file, len })
    }

    /// The file has another length now, or why not: see [`FileDevice::resize`].
    ///
    /// One that could not be made durable is a flush that failed: writes may be lost, and the kernel will not say so again.
    pub fn resized(&mut self, outcome: ResizeOutcome) -> std::io::Result<()> {
        let ResizeOutcome { len, done, is_flush_failed } = outcome;
        self.info.capacity = len - len % u64::from(self.info.block_len);
        self.handle.device_resized(self.index, self.info.capacity, is_flush_failed);
        done
    }

    fn adopt(
        handle: &Handle,
        path: &Path,
        opened: Opened,
        options: &FileDeviceOptions,
    ) -> Result<Self, OpenError> {
        let Opened { file, info, memory_align, direct, access } = opened;
        let read_only = access == Access::ReadOnly;
        let depth = options.depth.max(1);
        let device = DeviceFile { file, info, memory_align, read_only, direct, depth };
        let index =
            handle.add_device(device).map_err(|reason| OpenError::Reactor { path: path.into(), reason })?;
        Ok(Self { handle: handle.clone(), index, info, memory_align, direct })
    }
}

/// A file's new length, on its way to a thread that may wait: a file system takes its time to give much space back, and waits
/// for what is in flight there.
#[derive(Debug)]
#[must_use = "nothing changes before it is run"]
pub struct Resize {
    file: OwnedFd,
    len: u64,
}

impl Resize {
    /// Gives the file its length, and makes that durable. [`FileDevice::resized`] is to hear of it.
    pub fn run(&self) -> ResizeOutcome {
        self.run_with(|file| rustix::fs::fsync(file))
    }

    fn run_with(&self, sync: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>) -> ResizeOutcome {
        let cut = rustix::fs::ftruncate(&self.file, self.len);
        let synced = cut.map(|()| sync(&self.file));
        let found = rustix::fs::fstat(&self.file).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
        ResizeOutcome {
            len: found.unwrap_or(self.len),
            is_flush_failed: matches!(synced, Ok(Err(_))),
            done: synced.flatten().map_err(Into::into),
        }
    }
}

/// How a resize went.
#[derive(Debug)]
#[must_use = "the device has to hear of it"]
pub struct ResizeOutcome {
    /// The file's length, which may be the new one though it failed.
    len: u64,
    done: std::io::Result<()>,
    /// The file got its length, and was not made durable.
    is_flush_failed: bool,
}

impl ResizeOutcome {
    /// A resize that never ran, of a file that still has this length.
    pub fn not_run(len: u64, error: std::io::Error) -> Self {
        Self { len, done: Err(error), is_flush_failed: false }
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

#[cfg(test)]
mod tests {
    use ob_core::DeviceError;
    use ob_memory::Pool;

    use super::*;
    use crate::{Config, Reactor, Wait};

    #[test]
    fn a_file_grows_and_shrinks_and_its_bounds_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let mut reactor = Reactor::new(&Config::default()).unwrap();
        let (handle, options) = (reactor.handle(), FileDeviceOptions::default());
        let mut device = FileDevice::create(&handle, &path, 1 << 20, Space::Sparse, &options).unwrap();
        let mut discard = |device: &mut FileDevice, offset: u64| {
            device.submit(Token(1), DeviceOp::Discard { offset, len: 4096 }).unwrap();
            loop {
                match device.poll() {
                    Some(completion) => break completion.result,
                    None => drop(reactor.turn(Wait::Until(None), &mut Vec::new())),
                }
            }
        };
        // As another thread would, which may wait for it.
        let resize = |device: &mut FileDevice, len: u64| {
            let resize = device.resize(len).unwrap();
            let outcome = std::thread::spawn(move || resize.run()).join().unwrap();
            device.resized(outcome).unwrap();
        };
        assert_eq!(discard(&mut device, 1 << 20), Err(DeviceError::OutOfRange));
        resize(&mut device, (2 << 20) + 100);
        assert_eq!(device.info().capacity, 2 << 20);
        assert_eq!(discard(&mut device, 1 << 20), Ok(()));
        resize(&mut device, 1 << 20);
        assert_eq!(discard(&mut device, 1 << 20), Err(DeviceError::OutOfRange));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
        assert!(device.resize(100).is_err(), "at least one block is left");
    }

    #[test]
    fn a_resize_that_could_not_be_made_durable_is_a_flush_that_failed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let reactor = Reactor::new(&Config::default()).unwrap();
        let (handle, options) = (reactor.handle(), FileDeviceOptions::default());
        let mut device = FileDevice::create(&handle, &path, 1 << 20, Space::Sparse, &options).unwrap();
        let resize = device.resize(2 << 20).unwrap();
        // The only time that the kernel tells of writes that it has lost.
        let outcome = resize.run_with(|_| Err(rustix::io::Errno::IO));
        assert!(device.resized(outcome).is_err());
        assert_eq!(device.info().capacity, 2 << 20, "it has its length");
        let from = Pool::new(4096, 1).take().unwrap();
        for op in [DeviceOp::Flush, DeviceOp::Write { offset: 0, from: from.into(), durable: true }] {
            device.submit(Token(1), op).unwrap();
            let result = device.poll().map(|completion| completion.result);
            assert_eq!(result, Some(Err(DeviceError::Io)), "no later one can be believed");
        }
    }

    /// Nobody else may have a file that still gets its length.
    #[test]
    fn a_file_stays_locked_until_its_resize_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let mut reactor = Reactor::new(&Config::default()).unwrap();
        let (handle, options) = (reactor.handle(), FileDeviceOptions::default());
        let device = FileDevice::create(&handle, &path, 1 << 20, Space::Sparse, &options).unwrap();
        let resize = device.resize(2 << 20).unwrap();
        drop(device);
        let is_locked = || matches!(FileDevice::open(&handle, &path, &options), Err(OpenError::InUse(_)));
        assert!(is_locked());
        assert!(resize.run().done.is_ok());
        assert!(is_locked());
        drop(resize);
        // (The kernel lets go of the device's own descriptor in its own time.)
        while is_locked() {
            reactor.turn(Wait::Poll, &mut Vec::new());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_resize_that_was_refused_says_nothing_of_writes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let reactor = Reactor::new(&Config::default()).unwrap();
        let (handle, options) = (reactor.handle(), FileDeviceOptions::default());
        let mut device = FileDevice::create(&handle, &path, 1 << 20, Space::Sparse, &options).unwrap();
        let resize = device.resize(u64::MAX).unwrap();
        assert!(device.resized(resize.run()).is_err(), "no file is that long");
        assert_eq!(device.info().capacity, 1 << 20);
        device.submit(Token(1), DeviceOp::Flush).unwrap();
        assert!(device.poll().is_none(), "the kernel is asked");
    }

    #[test]
    fn a_device_that_is_only_read_changes_nothing_and_keeps_writers_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let contents = vec![7; 64 << 10];
        std::fs::write(&path, &contents).unwrap();
        let mut reactor = Reactor::new(&Config::default()).unwrap();
        let (handle, options) = (reactor.handle(), FileDeviceOptions::default());
        let mut device = FileDevice::open_read_only(&handle, &path, &options).unwrap();
        assert!(FileDevice::open_read_only(&handle, &path, &options).is_ok(), "readers share");
        let writer = FileDevice::open(&handle, &path, &options);
        assert!(matches!(writer, Err(OpenError::InUse(_))));

        let (len, pool) = (u64::from(device.info().block_len), Pool::new(64 << 10, 1));
        let slice = || pool.take().unwrap();
        for op in [
            DeviceOp::Write { offset: 0, from: slice().into(), durable: false },
            DeviceOp::Flush,
            DeviceOp::WriteZeroes { offset: 0, len },
            DeviceOp::Discard { offset: 0, len },
        ] {
            device.submit(Token(1), op).unwrap();
            assert_eq!(device.poll().unwrap().result, Err(DeviceError::Unsupported));
        }
        device.submit(Token(2), DeviceOp::Read { offset: 0, into: slice() }).unwrap();
        let completion = loop {
            match device.poll() {
                Some(completion) => break completion,
                None => drop(reactor.turn(Wait::Until(None), &mut Vec::new())),
            }
        };
        assert_eq!(completion.result, Ok(()));
        let DeviceOp::Read { into, .. } = completion.op else { panic!("not the read") };
        assert!(into[..] == contents[..]);
        drop(device);
        let writer = FileDevice::open(&handle, &path, &options).unwrap();
        assert!(matches!(FileDevice::open_read_only(&handle, &path, &options), Err(OpenError::InUse(_))));
        drop(writer);
        assert!(std::fs::read(&path).unwrap() == contents);
    }
}
