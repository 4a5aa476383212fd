//! A plain file driven by io_uring at a fixed depth: what benchmarks measure against.
//!
//! ```text
//!   submit(slot, …) ─▶ queue ─┐
//!                             ├─ wait: one io_uring_enter ─▶ every completion that is there ─▶ slots
//!   submit(slot, …) ─▶ queue ─┘
//! ```
//!
//! Tuned as its own users would: `O_DIRECT`, a registered file, a registered buffer for each operation that may be out,
//! completions worked on only when this thread asks, and one system call for a whole batch of submissions and
//! completions. Two things that are faster elsewhere are left out on purpose. Polled completions (`IOPOLL`) need a driver
//! with queues for it, which virtual disks do not have. A kernel thread that submits (`SQPOLL`) burns a core that
//! no process is billed for.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use io_uring::types::Fixed;
use io_uring::{Builder, IoUring, opcode};
use ob_memory::{Pool, Slice};
use rustix::fs::OFlags;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectOp {
    /// From the file into the slot's buffer.
    Read,
    /// From the slot's buffer into the file.
    Write,
}

/// A file, and a fixed number of slots for operations of one length.
pub struct DirectFile {
    uring: IoUring,
    file: File,
    slots: Vec<Slot>,
    in_flight: usize,
    is_direct: bool,
}

struct Slot {
    /// As long as one operation.
    buffer: Slice,
    in_flight: bool,
}

impl DirectFile {
    /// Opens an existing file for operations of `len` bytes, of which `depth` may be out at once. Where the file system
    /// has no `O_DIRECT`, the file is opened without.
    pub fn open(path: &Path, depth: usize, len: usize) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true);
        let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        let (file, is_direct) = match direct {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => (options.open(path)?, false),
            Err(error) => return Err(error),
        };
        let depth = depth.max(1);
        let entries = u32::try_from(depth).map_err(io::Error::other)?;
        let uring = build(entries)?;
        let pool = Pool::new(len, depth);
        let slots: Vec<Slot> = std::iter::from_fn(|| pool.take())
            .map(|mut whole| Slot { buffer: whole.split_to(len), in_flight: false })
            .collect();
        let buffers: Vec<libc::iovec> = slots
            .iter()
            .map(|slot| libc::iovec { iov_base: slot.buffer.as_ptr().cast_mut().cast(), iov_len: len })
            .collect();
        uring.submitter().register_files(&[file.as_raw_fd()])?;
        // SAFETY: the buffers are the slots' own. They are freed only after `drop` has waited for every operation, or
        // not at all, and the ring, which pins them, goes with them.
        unsafe { uring.submitter().register_buffers(&buffers) }?;
        Ok(Self { uring, file, slots, in_flight: 0, is_direct })
    }

    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The file itself, for what is not measured.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The buffer of a slot that has no operation out.
    pub fn buffer(&mut self, slot: usize) -> Option<&mut [u8]> {
        let slot = self.slots.get_mut(slot).filter(|slot| !slot.in_flight)?;
        Some(&mut slot.buffer)
    }

    /// Queues an operation on a slot's whole buffer; it goes to the kernel with the next [`DirectFile::wait`].
    pub fn submit(&mut self, slot: usize, op: DirectOp, offset: u64) -> io::Result<()> {
        let Some(free) = self.slots.get_mut(slot).filter(|slot| !slot.in_flight) else {
            return Err(io::Error::other("the slot has an operation out"));
        };
        let len = u32::try_from(free.buffer.len()).map_err(io::Error::other)?;
        let index = u16::try_from(slot).map_err(io::Error::other)?;
        let start = free.buffer.as_mut_ptr();
        let entry = match op {
            DirectOp::Read => opcode::ReadFixed::new(Fixed(0), start, len, index).offset(offset).build(),
            DirectOp::Write => opcode::WriteFixed::new(Fixed(0), start, len, index).offset(offset).build(),
        };
        // SAFETY: the slot's buffer stays where it is and is lent to nobody until its completion has been reaped:
        // `buffer` and `submit` look at the mark that is set below, and `drop` waits.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(slot as u64)) };
        pushed.map_err(io::Error::other)?;
        free.in_flight = true;
        self.in_flight += 1;
        Ok(())
    }

    /// Submits what is queued, sleeps until something is complete, and calls `done` with every slot whose operation is.
    /// An operation that failed or was cut short is an error.
    pub fn wait(&mut self, mut done: impl FnMut(usize)) -> io::Result<()> {
        if self.in_flight == 0 {
            return Ok(());
        }
        match self.uring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut outcome = Ok(());
        for completion in self.uring.completion() {
            let index = completion.user_data() as usize;
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.in_flight = false;
            self.in_flight -= 1;
            let result = completion.result();
            match usize::try_from(result) {
                Ok(moved) if moved == slot.buffer.len() => done(index),
                Ok(_) => outcome = Err(io::ErrorKind::UnexpectedEof.into()),
                Err(_) => outcome = Err(io::Error::from_raw_os_error(-result)),
            }
        }
        outcome
    }
}

impl Drop for DirectFile {
    fn drop(&mut self) {
        let mut patience = self.slots.len() * 2;
        while self.in_flight > 0 && patience > 0 {
            // Errors of single operations end those operations all the same.
            let _ = self.wait(|_| {});
            patience -= 1;
        }
        if self.in_flight > 0 {
            // The kernel may still write there, so the memory is given up rather than freed.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

fn build(entries: u32) -> io::Result<IoUring> {
    // From the newest kernels (6.1, 5.19) down, as the reactor does.
    let levels: [fn(&mut Builder) -> &mut Builder; 3] = [
        |builder| builder.setup_single_issuer().setup_defer_taskrun(),
        |builder| builder.setup_coop_taskrun(),
        |builder| builder,
    ];
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for level in levels {
        let mut builder = IoUring::builder();
        builder.setup_clamp().dontfork();
        match level(&mut builder).build(entries) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            outcome => return outcome,
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4096;

    fn file_of(blocks: usize) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((blocks * LEN) as u64).unwrap();
        file
    }

    fn wait_all(file: &mut DirectFile, count: usize) -> Vec<usize> {
        let mut done = Vec::new();
        while done.len() < count {
            file.wait(|slot| done.push(slot)).unwrap();
        }
        done.sort_unstable();
        done
    }

    #[test]
    fn what_is_written_at_depth_is_read_at_depth() {
        let backing = file_of(4);
        let mut file = DirectFile::open(backing.path(), 4, LEN).unwrap();
        for slot in 0..4 {
            file.buffer(slot).unwrap().fill(slot as u8 + 1);
            file.submit(slot, DirectOp::Write, (slot * LEN) as u64).unwrap();
            assert!(file.buffer(slot).is_none(), "the kernel has it");
            assert!(file.submit(slot, DirectOp::Write, 0).is_err(), "one operation a slot");
        }
        assert_eq!(wait_all(&mut file, 4), [0, 1, 2, 3]);
        for slot in 0..4 {
            file.submit(slot, DirectOp::Read, ((3 - slot) * LEN) as u64).unwrap();
        }
        assert_eq!(wait_all(&mut file, 4), [0, 1, 2, 3]);
        for slot in 0..4 {
            let expected = 4 - slot as u8;
            assert!(file.buffer(slot).unwrap().iter().all(|byte| *byte == expected));
        }
        assert!(file.submit(4, DirectOp::Read, 0).is_err(), "there is no such slot");
    }

    #[test]
    fn a_read_beyond_the_end_is_an_error_and_the_slot_is_free_again() {
        let backing = file_of(1);
        let mut file = DirectFile::open(backing.path(), 1, LEN).unwrap();
        file.submit(0, DirectOp::Read, 8 * LEN as u64).unwrap();
        assert!(file.wait(|_| {}).is_err());
        assert!(file.buffer(0).is_some());
        file.submit(0, DirectOp::Read, 0).unwrap();
        assert_eq!(wait_all(&mut file, 1), [0]);
        file.wait(|_| {}).unwrap();
    }

    #[test]
    fn dropping_it_with_operations_out_waits_for_them() {
        let backing = file_of(64);
        let mut file = DirectFile::open(backing.path(), 32, LEN).unwrap();
        for slot in 0..32 {
            file.buffer(slot).unwrap().fill(7);
            file.submit(slot, DirectOp::Write, (slot * LEN) as u64).unwrap();
        }
        drop(file);
        let written = std::fs::read(backing.path()).unwrap();
        assert!(written[..32 * LEN].iter().all(|byte| *byte == 7));
    }
}
