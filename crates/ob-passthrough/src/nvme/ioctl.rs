//! Commands by ioctl: one call a command, which blocks until it is answered.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use super::{Command, Completion, IoctlCommand, PassthroughError, Prepared};

/// NVME_IOCTL_IO64_CMD.
const IO64_COMMAND: Opcode = opcode::read_write::<IoctlCommand>(b'N', 0x48);
/// NVME_IOCTL_ID.
const ID: Opcode = opcode::none(b'N', 0x40);

const _: () = assert!(IO64_COMMAND == 0xC050_4E48 && ID == 0x4E40);

/// A namespace's device, `/dev/nvmeXnY` or `/dev/ngXnY`. Many threads may use it at once; each waits for its own command.
#[derive(Debug)]
pub struct IoctlPassthrough {
    device: OwnedFd,
}

impl IoctlPassthrough {
    /// Opens a device, for reading: commands need rights (CAP_SYS_ADMIN), not a mode.
    pub fn open(path: &Path) -> Result<Self, PassthroughError> {
        let device = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self { device: device.map_err(PassthroughError::of_errno)? })
    }

    /// Uses a device that is open.
    #[must_use]
    pub const fn of(device: OwnedFd) -> Self {
        Self { device }
    }

    /// The namespace's id, as the kernel has it.
    pub fn nsid(&self) -> Result<u32, PassthroughError> {
        // SAFETY: the request has no argument, and a device that does not know it says so.
        let answer = unsafe { rustix::ioctl::ioctl(self.device.as_fd(), Id) };
        answer.map_err(PassthroughError::of_errno)
    }

    /// Sends a command and waits for its end.
    pub fn run(&self, command: Command) -> Result<Completion, PassthroughError> {
        let Prepared { mut command, mut buffer, receives } = command.into_kernel()?;
        if !buffer.is_empty() {
            command.address = buffer.as_mut_ptr().expose_provenance() as u64;
        }
        let mut passed = IoctlCommand { command, result: 0 };
        // SAFETY: the opcode takes an `nvme_passthru_cmd64`, whose layout is asserted. The address is that of `buffer`, which is
        // as long as the command says (`into_kernel`), may be written, is borrowed by nobody else, and outlives the call: the
        // kernel has let go of it when the call returns, whatever it returns.
        let returned = unsafe { rustix::ioctl::ioctl(self.device.as_fd(), Io64(&mut passed)) };
        PassthroughError::check(returned.map_err(PassthroughError::of_errno)?, passed.result)?;
        Ok(Completion { result: passed.result, data: if receives { buffer } else { Vec::new() } })
    }
}

struct Io64<'call>(&'call mut IoctlCommand);

// SAFETY: the opcode reads and writes exactly an `nvme_passthru_cmd64`, to which the pointer points. What it returns is no
// pointer.
unsafe impl Ioctl for Io64<'_> {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        IO64_COMMAND
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    /// # Safety
    ///
    /// As the trait asks; nothing is read through the pointer.
    unsafe fn output_from_ptr(returned: IoctlOutput, _: *mut c_void) -> Result<i32, Errno> {
        Ok(returned)
    }
}

struct Id;

// SAFETY: the opcode takes no argument; the id is what it returns.
unsafe impl Ioctl for Id {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        ID
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    /// # Safety
    ///
    /// As the trait asks; nothing is read through the pointer.
    unsafe fn output_from_ptr(returned: IoctlOutput, _: *mut c_void) -> Result<u32, Errno> {
        u32::try_from(returned).map_err(|_| Errno::RANGE)
    }
}

#[cfg(test)]
mod tests {
    // A test that cannot go on should say where.
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_no_namespace_is_told() {
        let null = IoctlPassthrough::open(Path::new("/dev/null")).unwrap();
        assert!(matches!(null.nsid(), Err(PassthroughError::Unsupported(_))));
        let sent = null.run(Command::read(1, 0, 1, 512));
        assert!(matches!(sent, Err(PassthroughError::Unsupported(_))), "{sent:?}");
        let missing = IoctlPassthrough::open(Path::new("/dev/ng99n99"));
        assert!(matches!(missing, Err(PassthroughError::Os(Errno::NOENT))));
    }
}
