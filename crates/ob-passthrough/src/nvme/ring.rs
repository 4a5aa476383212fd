//! Commands by io_uring: many in flight, driven by one thread.
//!
//! The kernel keeps to no lifetime, so a command's buffer belongs to its slot, by raw pointer and not by anything that frees it,
//! until the completion has been reaped. A ring that is dropped before leaves such buffers to the kernel for good.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use io_uring::cqueue::Entry32;
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::opcode as ioctl_opcode;

use super::{Command, Completion, PassthroughError, Prepared, UringCommand};

/// NVME_URING_CMD_IO.
const COMMAND_IO: u32 = ioctl_opcode::read_write::<UringCommand>(b'N', 0x80);

const _: () = assert!(COMMAND_IO == 0xC048_4E80);

/// The deepest queue that can be asked for.
pub(super) const DEPTH_MAX: u32 = 4096;

/// Names a command between its submission and its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingToken(pub(super) u32);

/// What the bell's poll reports; no slot has this number.
const BELL: u64 = u64::MAX;

/// What a completion was for.
#[derive(Debug)]
pub(super) enum Reaped {
    Bell,
    Command(RingToken, Result<Completion, PassthroughError>),
}

/// A ring on a namespace's generic device (`/dev/ngXnY`), for one thread: it submits and reaps.
pub struct Ring {
    uring: IoUring<Entry128, Entry32>,
    device: OwnedFd,
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
}

/// A buffer that the kernel has. Nothing is freed when this is dropped.
struct InFlight {
    buffer: *mut [u8],
    receives: bool,
}

// SAFETY: the pointer is that of a box which this value alone may take back.
unsafe impl Send for InFlight {}

impl std::fmt::Debug for Ring {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Ring").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Ring {
    /// Opens a generic device with a queue for `depth` commands.
    pub fn open(path: &Path, depth: u32) -> Result<Self, PassthroughError> {
        // Not O_NONBLOCK: then io_uring would fail a command that has to wait for a tag, where it now waits in the kernel.
        let device = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Self::of(device.map_err(PassthroughError::of_errno)?, depth)
    }

    /// A ring on a device that is open.
    pub fn of(device: OwnedFd, depth: u32) -> Result<Self, PassthroughError> {
        let depth = depth.clamp(1, DEPTH_MAX);
        // One more for the bell. Completions of the kernel's commands are worked on when this thread asks for them.
        let mut builder = IoUring::<Entry128, Entry32>::builder();
        builder.setup_clamp().setup_cqsize((depth + 1).saturating_mul(2)).dontfork();
        let mut modern = builder.clone();
        modern.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        let uring = modern.build(depth + 1).or_else(|_| builder.build(depth + 1));
        let uring = uring.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::INVAL | Errno::NOSYS) => {
                PassthroughError::Unsupported("this kernel has no io_uring with large entries (5.19 has)")
            }
            Some(Errno::PERM) => PassthroughError::Unsupported("io_uring is switched off here"),
            errno => PassthroughError::Os(errno.unwrap_or(Errno::IO)),
        })?;
        let slots = (0..depth).map(|_| None).collect();
        Ok(Self { uring, device, slots, free: (0..depth).rev().collect() })
    }

    /// How many commands are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Queues a command. It goes to the kernel with the next [`Ring::reap`], or [`Ring::flush`].
    pub fn submit(&mut self, command: Command) -> Result<RingToken, PassthroughError> {
        if self.free.is_empty() {
            return Err(PassthroughError::Full);
        }
        let Prepared { mut command, buffer, receives } = command.into_kernel()?;
        let has_data = !buffer.is_empty();
        let buffer = Box::into_raw(buffer.into_boxed_slice());
        if has_data {
            command.address = buffer.cast::<u8>().expose_provenance() as u64;
        }
        let entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), COMMAND_IO).cmd(command.to_bytes());
        // SAFETY: the entry names the buffer alone, at its full length, and `send` keeps it for as long as the kernel may use it.
        unsafe { self.send(entry.build(), InFlight { buffer, receives }) }
    }

    /// Puts an entry into a free slot.
    ///
    /// # Safety
    ///
    /// The entry must name no memory but the buffer, which must be a box that was made raw.
    unsafe fn send(&mut self, entry: Entry128, owned: InFlight) -> Result<RingToken, PassthroughError> {
        let Some(slot) = self.free.pop() else {
            // SAFETY: the caller made it raw, and the kernel has not seen it.
            drop(unsafe { Box::from_raw(owned.buffer) });
            return Err(PassthroughError::Full);
        };
        let entry = entry.user_data(u64::from(slot));
        // SAFETY: the device is open as long as the ring is, and the buffer is held by the slot until the completion is reaped.
        if unsafe { self.uring.submission().push(&entry) }.is_err() {
            // The queue holds as many as there are slots, and a bell; a kernel that gave less is asked to take what is there.
            self.flush();
            // SAFETY: as above; the first attempt queued nothing.
            if unsafe { self.uring.submission().push(&entry) }.is_err() {
                self.free.push(slot);
                // SAFETY: as above, and no queue has an entry that names it.
                drop(unsafe { Box::from_raw(owned.buffer) });
                return Err(PassthroughError::Full);
            }
        }
        self.slots[slot as usize] = Some(owned);
        Ok(RingToken(slot))
    }

    /// Hands what is queued to the kernel, without waiting.
    pub fn flush(&mut self) {
        self.enter(0, None);
    }

    /// Hands what is queued to the kernel, waits for a completion if there is a `wait` and none is there yet, and gives out what
    /// has completed.
    pub fn reap(
        &mut self,
        wait: Option<Duration>,
        mut each: impl FnMut(RingToken, Result<Completion, PassthroughError>),
    ) {
        self.turn(wait, &mut |reaped| {
            if let Reaped::Command(token, outcome) = reaped {
                each(token, outcome);
            }
        });
    }

    /// As [`Ring::reap`], bell and all. `Duration::MAX` waits for ever.
    pub(super) fn turn(&mut self, wait: Option<Duration>, each: &mut dyn FnMut(Reaped)) {
        let is_waiting = wait.is_some() && self.uring.completion().is_empty();
        self.enter(usize::from(is_waiting), wait.filter(|_| is_waiting));
        loop {
            let Some(entry) = self.uring.completion().next() else { return };
            if let Some(reaped) = self.complete(&entry) {
                each(reaped);
            }
        }
    }

    fn complete(&mut self, entry: &Entry32) -> Option<Reaped> {
        if entry.user_data() == BELL {
            return Some(Reaped::Bell);
        }
        let slot = u32::try_from(entry.user_data()).ok()?;
        let InFlight { buffer, receives } = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        // SAFETY: `send` has it from a box, the slot gave it out once, and the kernel has answered: nobody else has it.
        let buffer = unsafe { Box::from_raw(buffer) };
        let result = entry.big_cqe()[0];
        let outcome = PassthroughError::check(entry.result(), result)
            .map(|()| Completion { result, data: if receives { buffer.into_vec() } else { Vec::new() } });
        Some(Reaped::Command(RingToken(slot), outcome))
    }

    /// Has the ring report, once, that a bell can be read.
    pub(super) fn watch_bell(&mut self, bell: &OwnedFd) {
        let entry = opcode::PollAdd::new(Fd(bell.as_raw_fd()), libc::POLLIN as u32).build().user_data(BELL);
        let entry = Entry128::from(entry);
        // SAFETY: the entry names no memory.
        if unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.flush();
            // SAFETY: the entry names no memory.
            let _ = unsafe { self.uring.submission().push(&entry) };
        }
    }

    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        let submitter = self.uring.submitter();
        let result = match timeout {
            Some(timeout) if timeout != Duration::MAX => {
                let timespec = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                submitter.submit_with_args(want, &SubmitArgs::new().timespec(&timespec))
            }
            _ => submitter.submit_and_wait(want),
        };
        match result.map_err(|error| Errno::from_io_error(&error)) {
            Ok(_) | Err(Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN)) => {}
            Err(errno) => {
                tracing::error!(?errno, "the kernel refused to enter the io_uring of NVMe commands");
                // Whatever it is (out of memory, most likely), it must not become a loop that burns a core.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight() > 0 {
            // Their buffers are left to the kernel, which cannot be made to give NVMe commands up.
            tracing::warn!(
                commands = self.in_flight(),
                "an io_uring was dropped with NVMe commands in flight"
            );
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
