//! Commands and completions: the queue entries that capsules carry (Base §3.3.3).
//!
//! ```text
//!   byte 0      1      2    4     8       16     24      40            64
//!   │ opcode │ flags │ CID │ NSID │ DW2,3 │ MPTR │ SGL   │ CDW10 … 15  │
//! ```

use zerocopy::little_endian::{U16, U32, U64};

use crate::id::{CommandId, NamespaceId, QueueId};
use crate::status::Status;

/// Opcode of every fabrics command, on any queue (Base §6).
pub const FABRICS_OPCODE: u8 = 0x7F;

/// Most bytes that a command's SGL can name in whole dwords.
pub(crate) const TRANSFER_MAX: u64 = u32::MAX as u64 - 3;

layout! {
    /// A submission queue entry (Base §3.3.3.1).
    SubmissionEntry[64] {
        /// CDW0.OPC.
        0 => opcode: u8,
        /// CDW0 bits 15:8: FUSE in 1:0, PSDT in 7:6.
        1 => flags: u8,
        /// CDW0.CID.
        2 => command_id: U16,
        /// NSID; a fabrics command has its FCTYPE in the lowest byte (Base §6).
        4 => namespace: U32,
        /// CDW2.
        8 => dword2: U32,
        /// CDW3.
        12 => dword3: U32,
        /// MPTR, unused over TCP.
        16 => metadata: U64,
        /// DPTR.SGL1.
        24 => sgl: SglDescriptor,
        /// CDW10.
        40 => dword10: U32,
        /// CDW11.
        44 => dword11: U32,
        /// CDW12.
        48 => dword12: U32,
        /// CDW13.
        52 => dword13: U32,
        /// CDW14.
        56 => dword14: U32,
        /// CDW15.
        60 => dword15: U32,
    }

    /// A scatter gather list descriptor (Base §4.1.2).
    SglDescriptor[16] {
        /// Address, or the offset into the capsule's data.
        0 => address: U64,
        /// Bytes.
        8 => length: U32,
        /// Reserved.
        12 => reserved: [u8; 3],
        /// SGL identifier: type in bits 7:4, subtype in 3:0.
        15 => identifier: u8,
    }

    /// A completion queue entry (Base §3.3.3.2).
    CompletionEntry[16] {
        /// DW0, command specific.
        0 => dword0: U32,
        /// DW1, command specific.
        4 => dword1: U32,
        /// SQHD: how far the controller has taken entries from the queue.
        8 => queue_head: U16,
        /// SQID; reserved over fabrics.
        10 => queue: U16,
        /// CID.
        12 => command_id: U16,
        /// Status in bits 15:1; bit 0, the phase tag, is 0 over fabrics.
        14 => status: U16,
    }
}

codes! {
    /// Admin commands (Base §5).
    AdminOpcode: u8, "admin opcode" {
        /// Delete I/O Submission Queue; not over fabrics.
        DeleteSubmissionQueue = 0x00,
        /// Create I/O Submission Queue; not over fabrics.
        CreateSubmissionQueue = 0x01,
        /// Get Log Page.
        GetLogPage = 0x02,
        /// Delete I/O Completion Queue; not over fabrics.
        DeleteCompletionQueue = 0x04,
        /// Create I/O Completion Queue; not over fabrics.
        CreateCompletionQueue = 0x05,
        /// Identify.
        Identify = 0x06,
        /// Abort.
        Abort = 0x08,
        /// Set Features.
        SetFeatures = 0x09,
        /// Get Features.
        GetFeatures = 0x0A,
        /// Asynchronous Event Request.
        AsyncEventRequest = 0x0C,
        /// Namespace Management.
        NamespaceManagement = 0x0D,
        /// Firmware Commit.
        FirmwareCommit = 0x10,
        /// Firmware Image Download.
        FirmwareDownload = 0x11,
        /// Device Self-test.
        DeviceSelfTest = 0x14,
        /// Namespace Attachment.
        NamespaceAttachment = 0x15,
        /// Keep Alive.
        KeepAlive = 0x18,
        /// Directive Send.
        DirectiveSend = 0x19,
        /// Directive Receive.
        DirectiveReceive = 0x1A,
        /// Virtualization Management.
        VirtualizationManagement = 0x1C,
        /// NVMe-MI Send.
        ManagementSend = 0x1D,
        /// NVMe-MI Receive.
        ManagementReceive = 0x1E,
        /// Capacity Management.
        CapacityManagement = 0x20,
        /// Lockdown.
        Lockdown = 0x24,
        /// Doorbell Buffer Config; not over fabrics.
        DoorbellBufferConfig = 0x7C,
        /// A fabrics command, see [`FabricsKind`].
        Fabrics = 0x7F,
        /// Format NVM.
        FormatNvm = 0x80,
        /// Security Send.
        SecuritySend = 0x81,
        /// Security Receive.
        SecurityReceive = 0x82,
        /// Sanitize.
        Sanitize = 0x84,
        /// Get LBA Status.
        GetLbaStatus = 0x86,
    }

    /// I/O commands of the NVM command set (Base §7, NVM §3.2).
    IoOpcode: u8, "I/O opcode" {
        /// Flush.
        Flush = 0x00,
        /// Write.
        Write = 0x01,
        /// Read.
        Read = 0x02,
        /// Write Uncorrectable.
        WriteUncorrectable = 0x04,
        /// Compare.
        Compare = 0x05,
        /// Write Zeroes.
        WriteZeroes = 0x08,
        /// Dataset Management.
        DatasetManagement = 0x09,
        /// Verify.
        Verify = 0x0C,
        /// Reservation Register.
        ReservationRegister = 0x0D,
        /// Reservation Report.
        ReservationReport = 0x0E,
        /// Reservation Acquire.
        ReservationAcquire = 0x11,
        /// Reservation Release.
        ReservationRelease = 0x15,
        /// Cancel.
        Cancel = 0x18,
        /// Copy.
        Copy = 0x19,
        /// A fabrics command, see [`FabricsKind`].
        Fabrics = 0x7F,
    }

    /// FCTYPE of a fabrics command (Base §6).
    FabricsKind: u8, "fabrics command type" {
        /// Property Set, on the admin queue.
        PropertySet = 0x00,
        /// Connect, the first command of every queue.
        Connect = 0x01,
        /// Property Get, on the admin queue.
        PropertyGet = 0x04,
        /// Authentication Send.
        AuthenticationSend = 0x05,
        /// Authentication Receive.
        AuthenticationReceive = 0x06,
        /// Disconnect, on an I/O queue.
        Disconnect = 0x08,
    }

    /// CDW0.FUSE (Base §3.3.3.1).
    Fuse: u8, "fused operation" {
        /// Not fused.
        None = 0,
        /// The first of two.
        First = 1,
        /// The second of two.
        Second = 2,
    }

    /// Which way data goes: the two lowest bits of an opcode, or of FCTYPE (Base §3.3.3.1, §6).
    DataDirection: u8, "data direction" {
        /// No data.
        None = 0,
        /// Host to controller.
        ToController = 1,
        /// Controller to host.
        ToHost = 2,
        /// Both ways; of a vendor's commands alone.
        Both = 3,
    }
}

/// PSDT in the flags of a submission entry (Base §3.3.3.1).
pub mod psdt {
    /// The bits.
    pub const MASK: u8 = 0b1100_0000;
    /// SGLs for data, a contiguous buffer for metadata: what fabrics demand.
    pub const SGL: u8 = 0b0100_0000;
}

/// SGL identifiers that NVMe/TCP uses (Base §4.1.2, TCP §3.3).
pub mod sgl {
    /// Data block with an offset: the data is in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport data block, transport specific: the data comes in data PDUs.
    pub const TRANSPORT: u8 = 0x5A;
}

/// Where a command's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// There is none.
    None,
    /// Within the capsule's data.
    InCapsule {
        /// First byte, counted from the begin of the capsule's data.
        offset: u32,
        /// Bytes, never 0, and all of them in the capsule.
        len: u32,
    },
    /// In data PDUs.
    Transport {
        /// Bytes, never 0.
        len: u32,
    },
}

impl DataPointer {
    /// Bytes of data.
    #[must_use]
    pub const fn len(self) -> u32 {
        match self {
            Self::None => 0,
            Self::InCapsule { len, .. } | Self::Transport { len } => len,
        }
    }

    /// Whether there is no data.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The descriptor for a submission entry.
    #[must_use]
    pub fn to_sgl(self) -> SglDescriptor {
        let (address, length, identifier) = match self {
            // What hosts send when there is nothing to send: a transport block of length 0.
            Self::None => (0, 0, sgl::TRANSPORT),
            Self::InCapsule { offset, len } => (u64::from(offset), len, sgl::IN_CAPSULE),
            Self::Transport { len } => (0, len, sgl::TRANSPORT),
        };
        SglDescriptor { address: address.into(), length: length.into(), reserved: [0; 3], identifier }
    }
}

impl DataDirection {
    /// The direction in an opcode or FCTYPE.
    #[must_use]
    pub const fn of(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Self::None,
            1 => Self::ToController,
            2 => Self::ToHost,
            _ => Self::Both,
        }
    }
}

impl SubmissionEntry {
    /// A command without data.
    #[must_use]
    pub fn new(opcode: u8, command: CommandId, namespace: NamespaceId) -> Self {
        Self {
            opcode,
            flags: psdt::SGL,
            command_id: command.0.into(),
            namespace: namespace.0.into(),
            sgl: DataPointer::None.to_sgl(),
            ..Self::default()
        }
    }

    /// The same with data.
    #[must_use]
    pub fn with_data(self, data: DataPointer) -> Self {
        Self { sgl: data.to_sgl(), ..self }
    }

    /// The same as a half of a fused operation.
    #[must_use]
    pub const fn with_fuse(mut self, fuse: Fuse) -> Self {
        self.flags = (self.flags & !3) | fuse.code();
        self
    }

    /// CID.
    #[must_use]
    pub const fn command(&self) -> CommandId {
        CommandId(self.command_id.get())
    }

    /// NSID.
    #[must_use]
    pub const fn namespace(&self) -> NamespaceId {
        NamespaceId(self.namespace.get())
    }

    /// FCTYPE, of a fabrics command.
    #[must_use]
    pub fn fabrics_kind(&self) -> u8 {
        self.namespace.get() as u8
    }

    /// FUSE.
    pub fn fuse(&self) -> Result<Fuse, Status> {
        Fuse::try_from(self.flags & 3).map_err(|_| Status::INVALID_FIELD.with_do_not_retry())
    }

    /// Which way the data goes.
    #[must_use]
    pub fn direction(&self) -> DataDirection {
        DataDirection::of(if self.opcode == FABRICS_OPCODE { self.fabrics_kind() } else { self.opcode })
    }

    /// Where the data is, given how many bytes of it the capsule brought. A status is what the command fails with.
    pub fn data_pointer(&self, capsule_data_len: u32) -> Result<DataPointer, Status> {
        if self.flags & psdt::MASK != psdt::SGL {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let len = self.sgl.length.get();
        match self.sgl.identifier {
            sgl::TRANSPORT if len == 0 => Ok(DataPointer::None),
            sgl::TRANSPORT => Ok(DataPointer::Transport { len }),
            sgl::IN_CAPSULE => {
                let offset = self.sgl.address.get();
                if offset > u64::from(capsule_data_len) {
                    return Err(Status::INVALID_SGL_OFFSET.with_do_not_retry());
                }
                // The comparison above makes it fit.
                let offset = offset as u32;
                if len > capsule_data_len - offset {
                    return Err(Status::INVALID_SGL_LENGTH.with_do_not_retry());
                }
                Ok(if len == 0 { DataPointer::None } else { DataPointer::InCapsule { offset, len } })
            }
            _ => Err(Status::INVALID_SGL_TYPE.with_do_not_retry()),
        }
    }

    /// CDW10 and CDW11 as one number, as most commands use them.
    #[must_use]
    pub const fn dwords10_11(&self) -> u64 {
        self.dword10.get() as u64 | (self.dword11.get() as u64) << 32
    }

    /// CDW12 and CDW13 as one number.
    #[must_use]
    pub const fn dwords12_13(&self) -> u64 {
        self.dword12.get() as u64 | (self.dword13.get() as u64) << 32
    }
}

impl CompletionEntry {
    /// A completion. `result` is what goes into DW0 and DW1.
    #[must_use]
    pub fn new(command: CommandId, queue: QueueId, queue_head: u16, status: Status, result: u64) -> Self {
        Self {
            dword0: (result as u32).into(),
            dword1: ((result >> 32) as u32).into(),
            queue_head: queue_head.into(),
            queue: queue.0.into(),
            command_id: command.0.into(),
            status: status.to_field().into(),
        }
    }

    /// CID.
    #[must_use]
    pub const fn command(&self) -> CommandId {
        CommandId(self.command_id.get())
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }

    /// DW0 and DW1 as one number.
    #[must_use]
    pub const fn result(&self) -> u64 {
        self.dword0.get() as u64 | (self.dword1.get() as u64) << 32
    }
}
