//! Device operations in flight, and the devices they belong to.
//!
//! ```text
//!   Device::submit ─▶ slot (owns op and slice) ─▶ SQE ─▶ kernel ─▶ CQE ─┬─ done ──▶ the device's queue ─▶ poll
//!                        ▲                                              │
//!                        └────── short transfer, EINTR: the rest ◀──────┘
//! ```
//!
//! A slot owns its operation, and with it the memory the kernel reads or writes, from submission to completion,
//! whatever happens to the device or the reactor meanwhile.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use ob_core::{DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Refused, RefusedReason, Token};
use ob_memory::{Pool, Slice};
use rustix::fs::{FallocateFlags, FlockOperation, flock};
use rustix::io::{Errno, ReadWriteFlags};

use super::ring::Ring;

/// The kernel moves less than 2 GiB a call; whole blocks of any size fit this.
const TRANSFER_MAX: usize = 1 << 30;
/// How often an operation that the kernel would rather have later is tried again before it fails.
const RETRIES_MAX: u8 = 100;
/// Size of the buffer of zeros, for devices that cannot zero a range by themselves.
const ZEROS_LEN: usize = 256 << 10;

/// What the reactor knows about a device.
pub(crate) struct DeviceFile {
    /// The open file; its lock is ours.
    pub(crate) file: OwnedFd,
    pub(crate) info: DeviceInfo,
    /// What addresses of buffers must be multiples of.
    pub(crate) memory_align: usize,
    /// Only reads are carried out.
    pub(crate) read_only: bool,
    /// Whether I/O bypasses the page cache.
    pub(crate) direct: bool,
    /// How many operations may be submitted and not yet polled.
    pub(crate) depth: usize,
}

struct DeviceSlot {
    device: DeviceFile,
    /// Place in the table of registered files.
    registered: Option<u32>,
    queue: VecDeque<DeviceCompletion>,
    in_flight: usize,
    /// The owner is gone; the slot goes with the last operation in flight.
    orphaned: bool,
    /// A flush failed once. The kernel reports lost writes a single time, so no later flush can be believed.
    flush_failed: bool,
    /// The file system cannot zero a range.
    zeroes_by_writing: bool,
}

struct Operation {
    device: u32,
    token: Token,
    op: DeviceOp,
    /// Bytes transferred so far.
    done: u64,
    retries: u8,
    /// Zeroes are written, because the file system cannot zero a range. Decided for each operation when it starts:
    /// others may be in flight when the first is refused.
    by_writing: bool,
}

enum Slot {
    Free { next: Option<u32> },
    Busy(Operation),
}

/// What to do after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Submit the slot again: there is more to transfer.
    Again,
    /// The operation is in its device's queue.
    Done,
}

pub(super) struct Operations {
    slots: Vec<Slot>,
    free: Option<u32>,
    in_flight: usize,
    devices: Vec<Option<DeviceSlot>>,
    zeros: Option<Slice>,
}

impl Operations {
    pub(super) fn new(capacity: u32, devices: u32) -> Self {
        let next = |index: u32| (index + 1 < capacity).then_some(index + 1);
        Self {
            slots: (0..capacity).map(|index| Slot::Free { next: next(index) }).collect(),
            free: (capacity > 0).then_some(0),
            in_flight: 0,
            devices: (0..devices).map(|_| None).collect(),
            zeros: Pool::new(ZEROS_LEN, 1).take(),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a device in; `None` when there is no room.
    pub(super) fn add_device(&mut self, ring: &mut Ring, device: DeviceFile) -> Result<u32, DeviceFile> {
        let Some(index) = self.devices.iter().position(Option::is_none) else { return Err(device) };
        let slot = DeviceSlot {
            registered: ring.register_file(device.file.as_fd()),
            queue: VecDeque::with_capacity(device.depth),
            in_flight: 0,
            orphaned: false,
            flush_failed: false,
            zeroes_by_writing: false,
            device,
        };
        self.devices[index] = Some(slot);
        Ok(index as u32)
    }

    /// A device's file, for another thread to give it this length, in whole blocks.
    pub(super) fn resize_device(&mut self, index: u32, len: u64) -> std::io::Result<(OwnedFd, u64)> {
        let invalid = |text: &str| std::io::Error::new(std::io::ErrorKind::InvalidInput, text.to_owned());
        let slot = self.devices[index as usize].as_mut().ok_or_else(|| invalid("the device is gone"))?;
        let device = &mut slot.device;
        let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&device.file)?.st_mode);
        if kind != rustix::fs::FileType::RegularFile || device.read_only {
            return Err(invalid("only a file that may be written has a length that can be changed"));
        }
        let len = len - len % u64::from(device.info.block_len);
        if len == 0 {
            return Err(invalid("a device has at least one block"));
        }
        Ok((device.file.try_clone()?, len))
    }

    /// A device's file has another length now, and what was written there may not have been made durable with it.
    pub(super) fn device_resized(&mut self, index: u32, len: u64, is_flush_failed: bool) {
        if let Some(slot) = self.devices[index as usize].as_mut() {
            slot.device.info.capacity = len;
            if is_flush_failed {
                tracing::error!("a device failed to make its length durable; it will not be trusted again");
                slot.flush_failed = true;
            }
        }
    }

    /// The device's owner is gone.
    pub(super) fn orphan_device(&mut self, ring: &mut Ring, index: u32) {
        if let Some(slot) = self.devices[index as usize].as_mut() {
            slot.orphaned = true;
            slot.queue.clear();
        }
        self.release_if_over(ring, index);
    }

    pub(super) fn next_completion(&mut self, device: u32) -> Option<DeviceCompletion> {
        self.devices[device as usize].as_mut()?.queue.pop_front()
    }

    /// Takes an operation in. `Ok(Some(slot))`: to be submitted; `Ok(None)`: already complete.
    pub(super) fn add(
        &mut self,
        device: u32,
        token: Token,
        op: DeviceOp,
    ) -> Result<Option<u32>, Refused<DeviceOp>> {
        let refused = |op, reason| Err(Refused { op, reason });
        let Some(owner) = self.devices[device as usize].as_mut() else {
            return refused(op, RefusedReason::Gone);
        };
        if owner.queue.len() + owner.in_flight >= owner.device.depth {
            return refused(op, RefusedReason::Busy);
        }
        if let Some(result) = owner.verdict(&op) {
            owner.queue.push_back(DeviceCompletion { token, op, result });
            return Ok(None);
        }
        let Some(index) = self.free else { return refused(op, RefusedReason::Busy) };
        if let Slot::Free { next } = self.slots[index as usize] {
            self.free = next;
        }
        owner.in_flight += 1;
        self.in_flight += 1;
        let by_writing = self
            .devices
            .get(device as usize)
            .and_then(Option::as_ref)
            .is_some_and(|owner| owner.zeroes_by_writing);
        self.slots[index as usize] =
            Slot::Busy(Operation { device, token, op, done: 0, retries: 0, by_writing });
        Ok(Some(index))
    }

    /// The kernel's words for what is left of an operation. The memory it names is owned by the slot until
    /// `complete` says `Done`.
    pub(super) fn entry(&mut self, ring: &Ring, index: u32) -> Option<squeue::Entry> {
        let Slot::Busy(operation) = &mut self.slots[index as usize] else { return None };
        let owner = self.devices[operation.device as usize].as_ref()?;
        let fd = match owner.registered {
            Some(place) => Fd(place as i32),
            None => Fd(owner.device.file.as_raw_fd()),
        };
        let done = operation.done;
        let entry = match &mut operation.op {
            DeviceOp::Read { offset, into } => read_entry(ring, fd, *offset, into, done as usize),
            DeviceOp::Write { offset, from, durable } => {
                write_entry(ring, fd, *offset, from, done as usize, *durable)
            }
            DeviceOp::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            DeviceOp::Discard { offset, len } => {
                fallocate_entry(fd, *offset, *len, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
            }
            DeviceOp::WriteZeroes { offset, len } => match &self.zeros {
                Some(zeros) if operation.by_writing => {
                    let left = usize::try_from(*len - done).unwrap_or(usize::MAX).min(zeros.len());
                    opcode::Write::new(fd, zeros.as_ptr(), left as u32).offset(*offset + done).build()
                }
                _ => {
                    fallocate_entry(fd, *offset, *len, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE)
                }
            },
        };
        let entry = if owner.registered.is_some() { entry.flags(squeue::Flags::FIXED_FILE) } else { entry };
        Some(entry)
    }

    /// The kernel's answer for a slot.
    pub(super) fn complete(&mut self, ring: &mut Ring, index: u32, result: i32) -> Step {
        let Some(Slot::Busy(operation)) = self.slots.get_mut(index as usize) else { return Step::Done };
        let device = operation.device;
        let Some(owner) = self.devices[device as usize].as_mut() else { return Step::Done };
        let Some(outcome) = owner.advance(operation, result) else { return Step::Again };
        let freed = Slot::Free { next: self.free };
        if let Slot::Busy(Operation { token, op, .. }) =
            std::mem::replace(&mut self.slots[index as usize], freed)
        {
            self.free = Some(index);
            self.in_flight -= 1;
            owner.in_flight -= 1;
            if !owner.orphaned {
                owner.queue.push_back(DeviceCompletion { token, op, result: outcome });
            }
        }
        self.release_if_over(ring, device);
        Step::Done
    }

    /// Every slot with the kernel.
    pub(super) fn busy(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.slots).filter(|(_, slot)| matches!(slot, Slot::Busy(_))).map(|(index, _)| index)
    }

    /// Gives up on what the kernel will not let go of: the memory stays, for ever, so that a late transfer lands
    /// in nobody's.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
        std::mem::forget(self.zeros.take());
        self.free = None;
    }

    fn release_if_over(&mut self, ring: &mut Ring, index: u32) {
        let slot = &mut self.devices[index as usize];
        if let Some(mut over) = slot.take_if(|slot| slot.orphaned && slot.in_flight == 0) {
            over.let_go(ring);
        }
    }

    /// Lets other processes have every device that has nothing in flight. Nothing is submitted after this.
    pub(super) fn let_go(&mut self, ring: &mut Ring) {
        for slot in self.devices.iter_mut().flatten().filter(|slot| slot.in_flight == 0) {
            slot.let_go(ring);
        }
    }
}

impl DeviceSlot {
    fn let_go(&mut self, ring: &mut Ring) {
        // The kernel closes a registered file in its own time; the lock must not wait for that.
        let _ = flock(&self.device.file, FlockOperation::Unlock);
        if let Some(place) = self.registered.take() {
            ring.unregister_file(place);
        }
    }

    /// What is known about an operation without asking the kernel.
    fn verdict(&self, op: &DeviceOp) -> Option<Result<(), DeviceError>> {
        if let Err(error) = self.device.info.check(op) {
            return Some(Err(error));
        }
        if self.device.read_only && !matches!(op, DeviceOp::Read { .. }) {
            return Some(Err(DeviceError::Unsupported));
        }
        let misaligned = |slice: &Slice| !slice.as_ptr().addr().is_multiple_of(self.device.memory_align);
        match op {
            DeviceOp::Read { into: slice, .. } | DeviceOp::Write { from: slice, .. } if misaligned(slice) => {
                Some(Err(DeviceError::Misaligned))
            }
            DeviceOp::Flush | DeviceOp::Write { durable: true, .. } if self.flush_failed => {
                Some(Err(DeviceError::Io))
            }
            _ if op.extent().is_some_and(|(_, len)| len == 0) => Some(Ok(())),
            _ => None,
        }
    }

    /// Counts a result in; `None` when the rest of the operation is to be submitted.
    fn advance(&mut self, operation: &mut Operation, result: i32) -> Option<Result<(), DeviceError>> {
        if result < 0 {
            return self.advance_error(operation, Errno::from_raw_os_error(-result));
        }
        operation.retries = 0;
        let len = match &operation.op {
            DeviceOp::Read { into: slice, .. } | DeviceOp::Write { from: slice, .. } => slice.len() as u64,
            DeviceOp::WriteZeroes { len, .. } if operation.by_writing => *len,
            DeviceOp::Flush | DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => return Some(Ok(())),
        };
        let before = operation.done;
        operation.done += result as u64;
        if operation.done >= len {
            return Some(Ok(()));
        }
        // A short transfer goes on from a whole block; one that got nowhere has met the end of a file that
        // somebody cut short.
        operation.done -= operation.done % u64::from(self.device.info.block_len);
        if operation.done == before { Some(Err(DeviceError::Io)) } else { None }
    }

    fn advance_error(&mut self, operation: &mut Operation, errno: Errno) -> Option<Result<(), DeviceError>> {
        match (errno, &operation.op) {
            // EFAULT: the buffer was registered when the entry was made and no longer when the kernel looked.
            (Errno::INTR | Errno::AGAIN | Errno::FAULT, _) if operation.retries < RETRIES_MAX => {
                operation.retries += 1;
                return None;
            }
            (Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL, DeviceOp::WriteZeroes { .. })
                if !operation.by_writing =>
            {
                (self.zeroes_by_writing, operation.by_writing) = (true, true);
                return None;
            }
            // Past the page cache a write finds its space before anything is made durable: it is refused, and what was complete
            // before is as durable as it was.
            (Errno::NOSPC | Errno::DQUOT | Errno::FBIG, DeviceOp::Write { .. }) if self.device.direct => {
                tracing::debug!(%errno, "a device has no space for a write");
            }
            (_, DeviceOp::Flush | DeviceOp::Write { durable: true, .. }) if errno != Errno::CANCELED => {
                tracing::error!(%errno, "a device failed to make writes durable; it will not be trusted again");
                self.flush_failed = true;
            }
            _ => tracing::debug!(%errno, op = ?operation.op, "a device operation failed"),
        }
        Some(Err(device_error(errno, &operation.op)))
    }
}

/// What an errno means to whoever submitted the operation.
fn device_error(errno: Errno, op: &DeviceOp) -> DeviceError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => DeviceError::NoSpace,
        Errno::OPNOTSUPP | Errno::NOSYS => DeviceError::Unsupported,
        Errno::NODEV | Errno::NXIO | Errno::BADF | Errno::CANCELED | Errno::SHUTDOWN => DeviceError::Gone,
        Errno::INVAL => match op {
            DeviceOp::Read { .. } | DeviceOp::Write { .. } => DeviceError::Misaligned,
            _ => DeviceError::Unsupported,
        },
        _ => DeviceError::Io,
    }
}

fn read_entry(ring: &Ring, fd: Fd, offset: u64, into: &mut Slice, done: usize) -> squeue::Entry {
    let len = (into.len() - done).min(TRANSFER_MAX);
    let offset = offset + done as u64;
    let buffer = ring.buffer_of(into, done, len);
    let start = into[done..].as_mut_ptr();
    match buffer {
        Some(index) => opcode::ReadFixed::new(fd, start, len as u32, index).offset(offset).build(),
        None => opcode::Read::new(fd, start, len as u32).offset(offset).build(),
    }
}

fn write_entry(ring: &Ring, fd: Fd, offset: u64, from: &Slice, done: usize, durable: bool) -> squeue::Entry {
    let len = (from.len() - done).min(TRANSFER_MAX);
    let offset = offset + done as u64;
    let start = from[done..].as_ptr();
    let flags = if durable { ReadWriteFlags::DSYNC.bits() as i32 } else { 0 };
    match ring.buffer_of(from, done, len) {
        Some(index) => {
            opcode::WriteFixed::new(fd, start, len as u32, index).offset(offset).rw_flags(flags).build()
        }
        None => opcode::Write::new(fd, start, len as u32).offset(offset).rw_flags(flags).build(),
    }
}

fn fallocate_entry(fd: Fd, offset: u64, len: u64, mode: FallocateFlags) -> squeue::Entry {
    opcode::Fallocate::new(fd, len).offset(offset).mode(mode.bits() as i32).build()
}
