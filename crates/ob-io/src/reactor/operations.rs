//! Device operations in flight, and the devices they belong to.
//!
//! ```text
//!   Device::submit ─▶ slot (owns op and bytes) ─▶ SQE ─▶ kernel ─▶ CQE ─┬─ done ──▶ the device's queue ─▶ poll
//!                        ▲                                              │
//!                        └────── short transfer, EINTR: the rest ◀──────┘
//! ```
//!
//! A slot owns its operation, and with it the memory the kernel reads or writes, from submission to completion,
//! whatever happens to the device or the reactor meanwhile.
//!
//! Of writes that it has lost the kernel tells one of those that ask, and whoever asks beside that one hears of success. So
//! one flush or durable write of a device is with the kernel at a time. Those that come meanwhile share the flush after it,
//! a durable write with its bytes written before:
//!
//! ```text
//!   durable write, alone ─▶ write with RWF_DSYNC ───────────────────────────────┐
//!   durable write, beside others ─▶ write ─┬─▶ waiting ─▶ one fdatasync for all ─┴─▶ done
//!   flush ─────────────────────────────────┘
//! ```

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use ob_core::{DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, Refused, RefusedReason, Token};
use ob_memory::{Pool, Slice, Source};
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
    /// The operations that the kernel makes durable now: one write, or all that share a flush, the first of them in the name of all.
    syncing: Vec<u32>,
    /// Those that share the next flush. Nobody waits where nobody syncs.
    waiting: Vec<u32>,
    /// Another thread gives the file its length.
    resizing: bool,
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
    syncs: Syncs,
}

/// What an operation has the kernel make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syncs {
    /// Nothing: also a durable write that will share a flush, until its bytes are written.
    Nothing,
    /// Its own bytes (`RWF_DSYNC`).
    Itself,
    /// Everything that is complete (`fdatasync`).
    Everything,
}

enum Slot {
    Free { next: Option<u32> },
    Busy(Operation),
}

/// What became of an operation that was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// Its slot is to be submitted.
    Submit(u32),
    /// It waits for a flush.
    Waits,
    /// It is in its device's queue.
    Done,
}

/// What to do after a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// A slot to submit: there is more to transfer, or a flush that some have waited for begins.
    pub(super) submit: Option<u32>,
    /// How many operations are in their device's queue now.
    pub(super) finished: usize,
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
            syncing: Vec::with_capacity(device.depth),
            waiting: Vec::with_capacity(device.depth),
            resizing: false,
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
        let file = device.file.try_clone()?;
        slot.resizing = true;
        Ok((file, len))
    }

    /// A device's file has another length now, and what was written there may not have been made durable with it.
    pub(super) fn device_resized(&mut self, index: u32, len: u64, is_flush_failed: bool) {
        if let Some(slot) = self.devices[index as usize].as_mut() {
            slot.device.info.capacity = len;
            slot.resizing = false;
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

    /// Takes an operation in.
    pub(super) fn add(
        &mut self,
        device: u32,
        token: Token,
        op: DeviceOp,
    ) -> Result<Added, Refused<DeviceOp>> {
        let refused = |op, reason| Err(Refused { op, reason });
        let Some(owner) = self.devices[device as usize].as_mut() else {
            return refused(op, RefusedReason::Gone);
        };
        if owner.queue.len() + owner.in_flight >= owner.device.depth {
            return refused(op, RefusedReason::Busy);
        }
        if let Some(result) = owner.verdict(&op) {
            owner.queue.push_back(DeviceCompletion { token, op, result });
            return Ok(Added::Done);
        }
        let Some(index) = self.free else { return refused(op, RefusedReason::Busy) };
        if let Slot::Free { next } = self.slots[index as usize] {
            self.free = next;
        }
        owner.in_flight += 1;
        self.in_flight += 1;
        let syncs = match op {
            DeviceOp::Flush => Syncs::Everything,
            DeviceOp::Write { durable: true, .. } if owner.syncing.is_empty() => Syncs::Itself,
            _ => Syncs::Nothing,
        };
        let submit = match syncs {
            Syncs::Nothing => Some(index),
            Syncs::Itself => {
                owner.syncing.push(index);
                Some(index)
            }
            Syncs::Everything => owner.share_flush(index),
        };
        let by_writing = owner.zeroes_by_writing;
        self.slots[index as usize] =
            Slot::Busy(Operation { device, token, op, done: 0, retries: 0, by_writing, syncs });
        Ok(submit.map_or(Added::Waits, Added::Submit))
    }

    /// The kernel's words for what is left of an operation. The memory it names is owned by the slot until
    /// `complete` has put it into its device's queue.
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
            DeviceOp::Write { offset, from, .. } if operation.syncs != Syncs::Everything => {
                write_entry(ring, fd, *offset, from, done as usize, operation.syncs == Syncs::Itself)
            }
            DeviceOp::Write { .. } | DeviceOp::Flush => {
                opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()
            }
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
        let Some(Slot::Busy(operation)) = self.slots.get_mut(index as usize) else { return Step::default() };
        let device = operation.device;
        let Some(owner) = self.devices[device as usize].as_mut() else { return Step::default() };
        let Some(outcome) = owner.advance(operation, result) else {
            return Step { submit: Some(index), finished: 0 };
        };
        let mut step = Step::default();
        match (operation.syncs, &operation.op) {
            (Syncs::Nothing, DeviceOp::Write { durable: true, .. }) if outcome.is_ok() => {
                operation.syncs = Syncs::Everything;
                step.submit = owner.share_flush(index);
            }
            (Syncs::Nothing, _) => {
                self.finish(index, outcome);
                step.finished = 1;
            }
            (Syncs::Itself | Syncs::Everything, _) => {
                // (Put back when it is empty: a turn allocates nothing.)
                let mut synced = std::mem::take(&mut owner.syncing);
                step.finished = synced.len();
                synced.drain(..).for_each(|index| self.finish(index, outcome));
                if let Some(owner) = self.devices[device as usize].as_mut() {
                    owner.syncing = synced;
                    step.submit = owner.begin_flush();
                }
            }
        }
        self.release_if_over(ring, device);
        step
    }

    /// Puts an operation into its device's queue, and frees its slot.
    fn finish(&mut self, index: u32, result: Result<(), DeviceError>) {
        let freed = Slot::Free { next: self.free };
        let Slot::Busy(operation) = std::mem::replace(&mut self.slots[index as usize], freed) else { return };
        self.free = Some(index);
        self.in_flight -= 1;
        let Operation { device, token, op, .. } = operation;
        if let Some(owner) = self.devices[device as usize].as_mut() {
            owner.in_flight -= 1;
            if !owner.orphaned {
                owner.queue.push_back(DeviceCompletion { token, op, result });
            }
        }
    }

    /// Every slot that is with the kernel, or waits for a flush.
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
        // The kernel closes a registered file in its own time; the lock must not wait for that. Whoever gives the file its
        // length, though, has it open too, and keeps the lock until that is over.
        if !self.resizing {
            let _ = flock(&self.device.file, FlockOperation::Unlock);
        }
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
        let misaligned = |memory: &[u8]| !memory.as_ptr().addr().is_multiple_of(self.device.memory_align);
        match op {
            DeviceOp::Read { into, .. } if misaligned(into) => Some(Err(DeviceError::Misaligned)),
            DeviceOp::Write { from, .. } if misaligned(from) => Some(Err(DeviceError::Misaligned)),
            DeviceOp::Flush | DeviceOp::Write { durable: true, .. } if self.flush_failed => {
                Some(Err(DeviceError::Io))
            }
            _ if op.extent().is_some_and(|(_, len)| len == 0) => Some(Ok(())),
            _ => None,
        }
    }

    /// Has an operation share the next flush. The slot to submit, if that one can begin.
    fn share_flush(&mut self, index: u32) -> Option<u32> {
        self.waiting.push(index);
        self.begin_flush()
    }

    /// Begins the flush that some wait for, unless the kernel makes others durable: the slot to submit for all of them. Everything
    /// that they are to make durable was complete before.
    fn begin_flush(&mut self) -> Option<u32> {
        if self.syncing.is_empty() {
            std::mem::swap(&mut self.syncing, &mut self.waiting);
            return self.syncing.first().copied();
        }
        None
    }

    /// What a success of the kernel's says of durability.
    fn synced(&self) -> Result<(), DeviceError> {
        if self.flush_failed { Err(DeviceError::Io) } else { Ok(()) }
    }

    /// Counts a result in; `None` when the rest of the operation is to be submitted.
    fn advance(&mut self, operation: &mut Operation, result: i32) -> Option<Result<(), DeviceError>> {
        if result < 0 {
            return self.advance_error(operation, Errno::from_raw_os_error(-result));
        }
        operation.retries = 0;
        if operation.syncs == Syncs::Everything {
            return Some(self.synced());
        }
        let len = match &operation.op {
            DeviceOp::Read { into, .. } => into.len() as u64,
            DeviceOp::Write { from, .. } => from.len() as u64,
            DeviceOp::WriteZeroes { len, .. } if operation.by_writing => *len,
            DeviceOp::Flush | DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => return Some(Ok(())),
        };
        let before = operation.done;
        operation.done += result as u64;
        if operation.done >= len {
            return Some(if operation.syncs == Syncs::Itself { self.synced() } else { Ok(()) });
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
            (Errno::NOSPC | Errno::DQUOT | Errno::FBIG, DeviceOp::Write { .. })
                if self.device.direct && operation.syncs != Syncs::Everything =>
            {
                tracing::debug!(%errno, "a device has no space for a write");
            }
            _ if operation.syncs != Syncs::Nothing && errno != Errno::CANCELED => {
                tracing::error!(%errno, "a device failed to make writes durable; it will not be trusted again");
                self.flush_failed = true;
            }
            _ => tracing::debug!(%errno, op = ?operation.op, "a device operation failed"),
        }
        let failed = if operation.syncs == Syncs::Everything { &DeviceOp::Flush } else { &operation.op };
        Some(Err(device_error(errno, failed)))
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
    let buffer = ring.buffer_of(into.arena(), into.start() + done, len);
    let start = into[done..].as_mut_ptr();
    match buffer {
        Some(index) => opcode::ReadFixed::new(fd, start, len as u32, index).offset(offset).build(),
        None => opcode::Read::new(fd, start, len as u32).offset(offset).build(),
    }
}

fn write_entry(ring: &Ring, fd: Fd, offset: u64, from: &Source, done: usize, durable: bool) -> squeue::Entry {
    let len = (from.len() - done).min(TRANSFER_MAX);
    let offset = offset + done as u64;
    let start = from[done..].as_ptr();
    let flags = if durable { ReadWriteFlags::DSYNC.bits() as i32 } else { 0 };
    match ring.buffer_of(from.arena(), from.start() + done, len) {
        Some(index) => {
            opcode::WriteFixed::new(fd, start, len as u32, index).offset(offset).rw_flags(flags).build()
        }
        None => opcode::Write::new(fd, start, len as u32).offset(offset).rw_flags(flags).build(),
    }
}

fn fallocate_entry(fd: Fd, offset: u64, len: u64, mode: FallocateFlags) -> squeue::Entry {
    opcode::Fallocate::new(fd, len).offset(offset).mode(mode.bits() as i32).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::Config;

    const IO: i32 = -libc::EIO;
    const LEN: usize = 4096;

    /// A device whose kernel is the test.
    struct Rig {
        ring: Ring,
        operations: Operations,
        pool: Pool,
        next: u64,
    }

    impl Rig {
        fn new() -> Self {
            let config = Config::default();
            let mut ring = Ring::new(&config).unwrap();
            let mut operations = Operations::new(config.operations_max, config.devices_max);
            let info =
                DeviceInfo { capacity: 1 << 20, block_len: 512, volatile_cache: true, discard_unit: 512 };
            let file = OwnedFd::from(tempfile::tempfile().unwrap());
            let device =
                DeviceFile { file, info, memory_align: 512, read_only: false, direct: true, depth: 16 };
            assert!(matches!(operations.add_device(&mut ring, device), Ok(0)));
            Self { ring, operations, pool: Pool::new(LEN, 16), next: 0 }
        }

        /// Operations are numbered from 0.
        fn submit(&mut self, op: DeviceOp) -> Added {
            let token = Token(self.next);
            self.next += 1;
            self.operations.add(0, token, op).unwrap()
        }

        fn write(&mut self, durable: bool) -> DeviceOp {
            DeviceOp::Write { offset: 0, from: self.pool.take().unwrap().into(), durable }
        }

        /// Submits what the kernel has to hear of at once.
        fn begin(&mut self, op: DeviceOp) -> u32 {
            let Added::Submit(slot) = self.submit(op) else { panic!("it waits, or is done") };
            slot
        }

        fn complete(&mut self, slot: u32, result: i32) -> Option<u32> {
            let before = self.operations.devices[0].as_ref().unwrap().queue.len();
            let step = self.operations.complete(&mut self.ring, slot, result);
            let after = self.operations.devices[0].as_ref().unwrap().queue.len();
            assert_eq!(step.finished, after - before, "all are counted");
            step.submit
        }

        /// What is done, by its number.
        fn done(&mut self) -> Vec<(u64, bool)> {
            let next = || self.operations.next_completion(0);
            std::iter::from_fn(next).map(|done| (done.token.0, done.result.is_ok())).collect()
        }
    }

    #[test]
    fn the_failure_of_a_flush_is_that_of_all_that_ran_beside_it() {
        let mut rig = Rig::new();
        let flush = rig.begin(DeviceOp::Flush);
        let write = rig.write(true);
        let write = rig.begin(write);
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Waits, "the kernel would tell one of both");
        assert_eq!(rig.complete(write, LEN as i32), None, "its bytes are written, and not durable");
        assert!(rig.done().is_empty());
        let next = rig.complete(flush, IO).expect("what waited goes on");
        // Now the kernel has told it, and says no more of it.
        assert_eq!(rig.complete(next, 0), None);
        assert_eq!(rig.done(), [(0, false), (2, false), (1, false)]);
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Done);
        assert_eq!(rig.done(), [(3, false)]);
        assert_eq!(rig.operations.in_flight(), 0);
    }

    #[test]
    fn the_failure_of_a_durable_write_is_that_of_a_flush_beside_it() {
        let mut rig = Rig::new();
        let write = rig.write(true);
        let write = rig.begin(write);
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Waits);
        let flush = rig.complete(write, IO).unwrap();
        assert_eq!(rig.complete(flush, 0), None);
        assert_eq!(rig.done(), [(0, false), (1, false)]);
    }

    #[test]
    fn those_that_wait_share_one_flush() {
        let mut rig = Rig::new();
        let first = rig.write(true);
        let first = rig.begin(first);
        // A part of it is written: it goes on, and nobody else.
        assert_eq!(rig.complete(first, 1024), Some(first));
        let durable = rig.write(true);
        let durable = rig.begin(durable);
        let plain = rig.write(false);
        let plain = rig.begin(plain);
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Waits);
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Waits);
        assert_eq!(rig.complete(plain, LEN as i32), None);
        assert_eq!(rig.done(), [(2, true)], "who promises nothing waits for nobody");
        let flush = rig.complete(first, 3072).unwrap();
        assert_eq!(rig.done(), [(0, true)]);
        // Too late for the flush that has begun.
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Waits);
        assert_eq!(rig.complete(durable, LEN as i32), None);
        assert_eq!(rig.complete(flush, -libc::EINTR), Some(flush), "it is tried again");
        let next = rig.complete(flush, 0).unwrap();
        assert_eq!(rig.done(), [(3, true), (4, true)]);
        assert_eq!(rig.complete(next, 0), None);
        assert_eq!(rig.done(), [(5, true), (1, true)]);
        assert_eq!(rig.operations.in_flight(), 0);
        // Nobody is left who would be in the way.
        let write = rig.write(true);
        let write = rig.begin(write);
        assert_eq!(rig.complete(write, LEN as i32), None);
        assert_eq!(rig.done(), [(6, true)]);
    }

    #[test]
    fn a_durable_write_whose_bytes_are_refused_fails_alone() {
        let mut rig = Rig::new();
        let flush = rig.begin(DeviceOp::Flush);
        let write = rig.write(true);
        let write = rig.begin(write);
        assert_eq!(rig.complete(write, -libc::ENOSPC), None);
        assert_eq!(rig.complete(flush, 0), None);
        assert_eq!(rig.done(), [(1, false), (0, true)]);
        // Where it is the flush that finds no space, what was written before may be lost.
        let write = rig.write(true);
        let first = rig.begin(DeviceOp::Flush);
        let write = rig.begin(write);
        assert_eq!(rig.complete(write, LEN as i32), None);
        let flush = rig.complete(first, 0).unwrap();
        assert_eq!(rig.complete(flush, -libc::ENOSPC), None);
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Done);
        assert_eq!(rig.done(), [(2, true), (3, false), (4, false)]);
    }

    #[test]
    fn a_device_whose_owner_is_gone_goes_with_the_last_that_waited() {
        let mut rig = Rig::new();
        let flush = rig.begin(DeviceOp::Flush);
        assert_eq!(rig.submit(DeviceOp::Flush), Added::Waits);
        rig.operations.orphan_device(&mut rig.ring, 0);
        let step = rig.operations.complete(&mut rig.ring, flush, 0);
        let step = rig.operations.complete(&mut rig.ring, step.submit.unwrap(), -libc::ECANCELED);
        assert_eq!(step, Step { submit: None, finished: 1 });
        assert!(rig.operations.devices[0].is_none());
        assert_eq!(rig.operations.in_flight(), 0);
    }
}
