//! NVMe commands to a namespace through the kernel that has it connected.
//!
//! ```text
//!   Command ─┬─▶ IoctlPassthrough::run      a call that blocks, from any thread
//!            ├─▶ RingPassthrough::submit    a future; a thread of ours drives the ring
//!            └─▶ Ring::submit, Ring::reap   the same ring, driven by the caller's thread
//! ```
//!
//! The kernel puts the command into a queue of its own choice, adds its command id and the data pointer, and gives back the
//! status and the first eight bytes of the completion. It moves data one way a command, by the lowest bit of the opcode.

mod find;
mod ioctl;
mod ring;
mod thread;

use std::time::Duration;

use ob_wire_nvme::status::Status;
use rustix::io::Errno;

pub(crate) use find::numbers_of;
pub use find::{Controller, FindError, Namespace};
pub use ioctl::IoctlPassthrough;
pub use ring::{Ring, RingToken};
pub use thread::{Pending, RingPassthrough};

/// The most bytes that one command may carry here. The kernel and the controller have limits of their own, which are lower.
pub const DATA_LEN_MAX: usize = 16 << 20;

/// What a command carries besides its dwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing.
    None,
    /// So many bytes come from the controller.
    In(usize),
    /// These bytes go to the controller.
    Out(Vec<u8>),
}

/// An I/O command. What is not here (flags, command id, data pointer) is the kernel's: it refuses a command with flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// OPC. Its lowest bit says which way data goes: set, to the controller.
    pub opcode: u8,
    /// The namespace, which must be that of the device.
    pub nsid: u32,
    /// Dword 2.
    pub cdw2: u32,
    /// Dword 3.
    pub cdw3: u32,
    /// Dwords 10 to 15.
    pub cdw10_15: [u32; 6],
    /// What it carries.
    pub data: Data,
    /// After which the kernel gives the command up, and the connection with it; its own (30 s) if there is none.
    pub timeout: Option<Duration>,
}

impl Command {
    /// A command without data and with every dword zero.
    #[must_use]
    pub const fn new(opcode: u8, nsid: u32) -> Self {
        Self { opcode, nsid, cdw2: 0, cdw3: 0, cdw10_15: [0; 6], data: Data::None, timeout: None }
    }

    /// A read of `blocks` logical blocks, at least one, of `block_len` bytes each (NVM §3.3.4).
    #[must_use]
    pub fn read(nsid: u32, first: u64, blocks: u16, block_len: u32) -> Self {
        let mut command = Self::new(0x02, nsid);
        command.cdw10_15[0] = first as u32;
        command.cdw10_15[1] = (first >> 32) as u32;
        command.cdw10_15[2] = u32::from(blocks.max(1) - 1);
        command.data = Data::In(usize::from(blocks.max(1)) * block_len as usize);
        command
    }

    /// The command as the kernel takes it, and the buffer that goes with it: the bytes to send, or as many zeros as shall come.
    /// Whoever sends it puts in the buffer's address; the length is the buffer's, by this one line of descent.
    fn into_kernel(self) -> Result<Prepared, PassthroughError> {
        let to_controller = self.opcode & 1 == 1;
        let (len, receives) = match &self.data {
            Data::None => (0, false),
            Data::In(len) if !to_controller => (*len, true),
            Data::Out(bytes) if to_controller => (bytes.len(), false),
            Data::In(_) | Data::Out(_) => return Err(PassthroughError::Direction { opcode: self.opcode }),
        };
        // Nothing is allocated for what is refused.
        if len > DATA_LEN_MAX {
            return Err(PassthroughError::TooLong { len });
        }
        let buffer = match self.data {
            Data::None => Vec::new(),
            Data::In(len) => vec![0; len],
            Data::Out(bytes) => bytes,
        };
        let timeout_ms = self.timeout.map_or(0, |timeout| {
            // Zero would be the kernel's own.
            u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1)
        });
        let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = self.cdw10_15;
        let command = UringCommand {
            opcode: self.opcode,
            nsid: self.nsid,
            cdw2: self.cdw2,
            cdw3: self.cdw3,
            data_len: buffer.len() as u32,
            cdw10,
            cdw11,
            cdw12,
            cdw13,
            cdw14,
            cdw15,
            timeout_ms,
            ..UringCommand::default()
        };
        Ok(Prepared { command, buffer, receives })
    }
}

/// A command ready to be sent but for the address of its buffer.
struct Prepared {
    command: UringCommand,
    buffer: Vec<u8>,
    /// Whether the buffer is what the controller fills.
    receives: bool,
}

/// What the controller has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// What came from the controller: as long as was asked for; what it did not send is zero. Empty for other commands.
    pub data: Vec<u8>,
}

/// Why a command has no completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassthroughError {
    /// The controller, or the kernel in its place, has answered with a status.
    #[error("the controller answered: {status}")]
    Status {
        /// How it ended.
        status: Status,
        /// Dwords 0 and 1 of the completion all the same.
        result: u64,
    },
    /// The opcode moves data the other way.
    #[error(
        "opcode {opcode:#04x} moves data the other way: its lowest bit must be set to send, and clear to receive"
    )]
    Direction {
        /// The command's.
        opcode: u8,
    },
    /// More data than a command may carry.
    #[error("{len} bytes are more than the {DATA_LEN_MAX} that a command may carry")]
    TooLong {
        /// So many.
        len: usize,
    },
    /// The queue has no room: wait for a completion.
    #[error("as many commands are in flight as the queue was made for")]
    Full,
    /// The caller may not.
    #[error("the kernel lets only the administrator (CAP_SYS_ADMIN) send such commands to this device")]
    Permission,
    /// The kernel has given the command up (its timeout, or the connection was reset): nobody knows whether it was executed.
    #[error("the kernel gave the command up: it timed out, or the connection was reset")]
    Cancelled,
    /// The kernel, or this device, cannot do it.
    #[error("{0}")]
    Unsupported(&'static str),
    /// Anything else that the kernel says.
    #[error("the kernel refused the command: {0}")]
    Os(Errno),
}

impl PassthroughError {
    fn of_errno(errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => Self::Permission,
            Errno::INTR => Self::Cancelled,
            Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS => {
                Self::Unsupported("this is no NVMe namespace, or a kernel without passthrough (5.19 has it)")
            }
            other => Self::Os(other),
        }
    }

    /// What the kernel's return value means: below zero an errno, above a status.
    fn check(returned: i32, result: u64) -> Result<(), Self> {
        match returned {
            0 => Ok(()),
            // Fifteen bits, as in a completion but without the phase tag.
            1.. => {
                Err(Self::Status { status: Status::from_field(((returned & 0x7FFF) << 1) as u16), result })
            }
            _ => Err(Self::of_errno(Errno::from_raw_os_error(returned.saturating_neg()))),
        }
    }
}

/// `struct nvme_uring_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UringCommand {
    opcode: u8,
    flags: u8,
    reserved1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    reserved2: u32,
}

/// `struct nvme_passthru_cmd64` of linux/nvme_ioctl.h: the same, and the result behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IoctlCommand {
    command: UringCommand,
    result: u64,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<UringCommand>() == 72);
    assert!(offset_of!(UringCommand, nsid) == 4);
    assert!(offset_of!(UringCommand, cdw2) == 8);
    assert!(offset_of!(UringCommand, metadata) == 16);
    assert!(offset_of!(UringCommand, address) == 24);
    assert!(offset_of!(UringCommand, metadata_len) == 32);
    assert!(offset_of!(UringCommand, data_len) == 36);
    assert!(offset_of!(UringCommand, cdw10) == 40);
    assert!(offset_of!(UringCommand, cdw15) == 60);
    assert!(offset_of!(UringCommand, timeout_ms) == 64);
    assert!(size_of::<IoctlCommand>() == 80);
    assert!(offset_of!(IoctlCommand, result) == 72);
};

impl UringCommand {
    /// Its bytes at the head of the 80 that an entry of 128 has for a command.
    fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        for (place, word) in [(4, self.nsid), (8, self.cdw2), (12, self.cdw3)] {
            bytes[place..place + 4].copy_from_slice(&word.to_ne_bytes());
        }
        for (place, long) in [(16, self.metadata), (24, self.address)] {
            bytes[place..place + 8].copy_from_slice(&long.to_ne_bytes());
        }
        let words = [
            self.metadata_len,
            self.data_len,
            self.cdw10,
            self.cdw11,
            self.cdw12,
            self.cdw13,
            self.cdw14,
            self.cdw15,
            self.timeout_ms,
        ];
        for (index, word) in words.into_iter().enumerate() {
            bytes[32 + 4 * index..][..4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
