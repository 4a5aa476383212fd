//! The controller's properties: registers, if this were PCIe (Base §3.1.3).

/// Written to NSSR, it resets the subsystem: "NVMe" (Base §3.1.3.7).
pub const SUBSYSTEM_RESET: u32 = 0x4E56_4D65;

codes! {
    /// Properties by their offset (Base §3.1.3); those that only PCIe has are missing.
    Property: u32, "property" {
        /// CAP, eight bytes.
        Capabilities = 0x00,
        /// VS.
        Version = 0x08,
        /// CC.
        Configuration = 0x14,
        /// CSTS.
        Status = 0x1C,
        /// NSSR.
        SubsystemReset = 0x20,
        /// CRTO.
        ReadyTimeouts = 0x68,
    }

    /// CC.SHN (Base §3.1.3.5).
    ShutdownNotification: u8, "shutdown notification" {
        /// None.
        None = 0,
        /// A normal shutdown is wanted.
        Normal = 1,
        /// An abrupt shutdown is wanted.
        Abrupt = 2,
    }

    /// CSTS.SHST (Base §3.1.3.6).
    ShutdownStatus: u8, "shutdown status" {
        /// Normal operation.
        Running = 0,
        /// Shutdown goes on.
        Occurring = 1,
        /// Shutdown is complete.
        Complete = 2,
    }
}

impl Property {
    /// Bytes: 4 or 8.
    #[must_use]
    pub const fn size(self) -> u32 {
        if matches!(self, Self::Capabilities) { 8 } else { 4 }
    }
}

/// VS, and VER in Identify (Base §3.1.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// MJR.
    pub major: u16,
    /// MNR.
    pub minor: u8,
    /// TER.
    pub tertiary: u8,
}

impl Version {
    /// 1.3.
    pub const V1_3: Self = Self { major: 1, minor: 3, tertiary: 0 };
    /// 1.4.
    pub const V1_4: Self = Self { major: 1, minor: 4, tertiary: 0 };
    /// 2.0.
    pub const V2_0: Self = Self { major: 2, minor: 0, tertiary: 0 };

    /// From the property.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self { major: (bits >> 16) as u16, minor: (bits >> 8) as u8, tertiary: bits as u8 }
    }

    /// The property.
    #[must_use]
    pub const fn bits(self) -> u32 {
        (self.major as u32) << 16 | (self.minor as u32) << 8 | self.tertiary as u32
    }
}

/// CAP (Base §3.1.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// MQES (bits 15:0) plus one: most entries of an I/O queue, 2 to 65536.
    pub queue_entries_max: u32,
    /// CQR (bit 16): queues are contiguous, as they always are over fabrics.
    pub contiguous_queues: bool,
    /// TO (bits 31:24): how long CC.EN may take, in units of 500 ms.
    pub timeout_500ms: u8,
    /// NSSRS (bit 36): NSSR does something.
    pub subsystem_reset: bool,
    /// CSS (bits 44:37): bit 0 the NVM command set, bit 6 command sets by CSI, bit 7 no I/O at all.
    pub command_sets: u8,
    /// MPSMIN (bits 51:48): the least page is `4096 << this`.
    pub page_shift_min: u8,
    /// MPSMAX (bits 55:52).
    pub page_shift_max: u8,
    /// CRMS (bits 60:59): which ready modes there are.
    pub ready_modes: u8,
}

impl Capabilities {
    /// CSS bit 0: the NVM command set.
    pub const COMMAND_SET_NVM: u8 = 1 << 0;
    /// CSS bit 6: one or more I/O command sets, chosen by CC.CSS = 110b.
    pub const COMMAND_SET_BY_ID: u8 = 1 << 6;
    /// CSS bit 7: no I/O command set.
    pub const COMMAND_SET_NONE: u8 = 1 << 7;

    /// From the property.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            queue_entries_max: bits as u16 as u32 + 1,
            contiguous_queues: bits & 1 << 16 != 0,
            timeout_500ms: (bits >> 24) as u8,
            subsystem_reset: bits & 1 << 36 != 0,
            command_sets: (bits >> 37) as u8,
            page_shift_min: (bits >> 48) as u8 & 0xF,
            page_shift_max: (bits >> 52) as u8 & 0xF,
            ready_modes: (bits >> 59) as u8 & 3,
        }
    }

    /// The property. What does not fit into its field is cut off.
    #[must_use]
    pub const fn bits(self) -> u64 {
        let entries = match self.queue_entries_max {
            0 => 0,
            count if count > 0x1_0000 => 0xFFFF,
            count => count as u64 - 1,
        };
        entries
            | (self.contiguous_queues as u64) << 16
            | (self.timeout_500ms as u64) << 24
            | (self.subsystem_reset as u64) << 36
            | (self.command_sets as u64) << 37
            | (self.page_shift_min as u64 & 0xF) << 48
            | (self.page_shift_max as u64 & 0xF) << 52
            | (self.ready_modes as u64 & 3) << 59
    }
}

/// CC (Base §3.1.3.5), any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerConfiguration(pub u32);

impl ControllerConfiguration {
    /// CC.CSS for the NVM command set.
    pub const COMMAND_SET_NVM: u8 = 0;
    /// CC.CSS for all that the controller supports.
    pub const COMMAND_SET_ALL: u8 = 6;
    /// CC.CSS for admin commands alone.
    pub const COMMAND_SET_NONE: u8 = 7;

    /// What a host writes to start a controller: enabled, pages of 4 KiB, entries of 64 and 16 bytes.
    #[must_use]
    pub const fn enabled(command_set: u8) -> Self {
        Self(1 | (command_set as u32 & 7) << 4 | 6 << 16 | 4 << 20)
    }

    /// EN (bit 0).
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// CSS (bits 6:4): 0 the NVM command set, 6 all supported, 7 admin only.
    #[must_use]
    pub const fn command_set(self) -> u8 {
        (self.0 >> 4) as u8 & 7
    }

    /// MPS (bits 10:7): a page is `4096 << this`.
    #[must_use]
    pub const fn page_shift(self) -> u8 {
        (self.0 >> 7) as u8 & 0xF
    }

    /// AMS (bits 13:11): how the controller arbitrates between queues.
    #[must_use]
    pub const fn arbitration(self) -> u8 {
        (self.0 >> 11) as u8 & 7
    }

    /// SHN (bits 15:14); the reserved value reads as none.
    #[must_use]
    pub const fn shutdown(self) -> ShutdownNotification {
        match (self.0 >> 14) & 3 {
            1 => ShutdownNotification::Normal,
            2 => ShutdownNotification::Abrupt,
            _ => ShutdownNotification::None,
        }
    }

    /// The same with SHN.
    #[must_use]
    pub const fn with_shutdown(self, shutdown: ShutdownNotification) -> Self {
        Self((self.0 & !(3 << 14)) | (shutdown.code() as u32) << 14)
    }

    /// IOSQES (bits 19:16): a submission entry has `1 << this` bytes.
    #[must_use]
    pub const fn submission_entry_shift(self) -> u8 {
        (self.0 >> 16) as u8 & 0xF
    }

    /// IOCQES (bits 23:20): a completion entry has `1 << this` bytes.
    #[must_use]
    pub const fn completion_entry_shift(self) -> u8 {
        (self.0 >> 20) as u8 & 0xF
    }

    /// CRIME (bit 24): ready before the media are.
    #[must_use]
    pub const fn ready_independent_of_media(self) -> bool {
        self.0 & 1 << 24 != 0
    }
}

/// CSTS (Base §3.1.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerStatus {
    /// RDY (bit 0).
    pub is_ready: bool,
    /// CFS (bit 1): the controller is broken.
    pub is_fatal: bool,
    /// SHST (bits 3:2).
    pub shutdown: ShutdownStatus,
    /// NSSRO (bit 4): a subsystem reset happened.
    pub subsystem_was_reset: bool,
}

impl ControllerStatus {
    /// From the property; the reserved value of SHST reads as complete, so that nobody waits for it.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        let shutdown = match (bits >> 2) & 3 {
            0 => ShutdownStatus::Running,
            1 => ShutdownStatus::Occurring,
            _ => ShutdownStatus::Complete,
        };
        Self {
            is_ready: bits & 1 != 0,
            is_fatal: bits & 2 != 0,
            shutdown,
            subsystem_was_reset: bits & 1 << 4 != 0,
        }
    }

    /// The property.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.is_ready as u32
            | (self.is_fatal as u32) << 1
            | (self.shutdown.code() as u32) << 2
            | (self.subsystem_was_reset as u32) << 4
    }
}
