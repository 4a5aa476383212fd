//! Features (Base §5.15, §5.27): what a host can set, and read back.

use zerocopy::little_endian::U16;

use crate::command::{AdminOpcode, SubmissionEntry};
use crate::id::{CommandId, NamespaceId};
use crate::status::Status;

codes! {
    /// Feature identifiers (Base §5.27.1).
    FeatureId: u8, "feature" {
        /// Arbitration.
        Arbitration = 0x01,
        /// Power management.
        PowerManagement = 0x02,
        /// LBA range type.
        LbaRangeType = 0x03,
        /// Temperature threshold.
        TemperatureThreshold = 0x04,
        /// Error recovery.
        ErrorRecovery = 0x05,
        /// Volatile write cache.
        VolatileWriteCache = 0x06,
        /// Number of queues.
        NumberOfQueues = 0x07,
        /// Interrupt coalescing; not over fabrics.
        InterruptCoalescing = 0x08,
        /// Interrupt vector configuration; not over fabrics.
        InterruptVector = 0x09,
        /// Write atomicity normal.
        WriteAtomicity = 0x0A,
        /// Asynchronous event configuration.
        AsyncEvents = 0x0B,
        /// Autonomous power state transition.
        AutonomousPower = 0x0C,
        /// Host memory buffer.
        HostMemoryBuffer = 0x0D,
        /// Timestamp.
        Timestamp = 0x0E,
        /// Keep alive timer.
        KeepAliveTimer = 0x0F,
        /// Host behavior support.
        HostBehavior = 0x16,
        /// Software progress marker.
        SoftwareProgress = 0x80,
        /// Host identifier.
        HostIdentifier = 0x81,
        /// Reservation notification mask.
        ReservationMask = 0x82,
        /// Reservation persistence.
        ReservationPersistence = 0x83,
        /// Namespace write protection.
        WriteProtection = 0x84,
    }

    /// SEL of Get Features (Base §5.15).
    FeatureSelect: u8, "feature selection" {
        /// The current value.
        Current = 0,
        /// The default value.
        Default = 1,
        /// The saved value.
        Saved = 2,
        /// What can be done with the feature.
        Supported = 3,
    }
}

layout! {
    /// Data of the timestamp feature (Base §5.27.1.11).
    Timestamp[8] {
        /// Milliseconds since 1970, little-endian, in 48 bits.
        0 => milliseconds: [u8; 6],
        /// Bit 0 the clock stopped in between; bits 3:1 where it is from: 0 since reset, 1 set by a host.
        6 => attributes: u8,
        /// Reserved.
        7 => reserved: u8,
    }

    /// Data of the host behavior support feature (Base §5.27.1.18).
    HostBehavior[512] {
        /// ACRE: the host knows of command retry delays.
        0 => advanced_retry: u8,
        /// ETDAS: the host knows of telemetry data area 4.
        1 => extended_telemetry: u8,
        /// LBAFEE: the host knows of extended LBA formats.
        2 => extended_formats: u8,
        /// HDISNS: the host knows of dispersed namespaces.
        3 => dispersed_namespaces: u8,
        /// CDFE: copy descriptor formats that the host uses.
        4 => copy_formats: U16,
        /// Reserved.
        6 => reserved: [u8; 506],
    }
}

/// A Get Features (Base §5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// FID, see [`FeatureId`].
    pub feature: u8,
    /// SEL.
    pub select: FeatureSelect,
    /// CDW11, which some features need.
    pub dword11: u32,
    /// NSID.
    pub namespace: NamespaceId,
}

/// A Set Features (Base §5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// FID, see [`FeatureId`].
    pub feature: u8,
    /// SV: the value is to be kept.
    pub is_saved: bool,
    /// CDW11, the value of most features.
    pub dword11: u32,
    /// CDW12.
    pub dword12: u32,
    /// CDW13.
    pub dword13: u32,
    /// NSID.
    pub namespace: NamespaceId,
}

impl GetFeatures {
    /// Reads the entry.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let dword10 = entry.dword10.get();
        let select = FeatureSelect::try_from((dword10 >> 8) as u8 & 7);
        Ok(Self {
            feature: dword10 as u8,
            select: select.map_err(|_| Status::INVALID_FIELD.with_do_not_retry())?,
            dword11: entry.dword11.get(),
            namespace: entry.namespace(),
        })
    }

    /// The entry, without data.
    #[must_use]
    pub fn encode(&self, command: CommandId) -> SubmissionEntry {
        SubmissionEntry {
            dword10: (u32::from(self.feature) | u32::from(self.select.code()) << 8).into(),
            dword11: self.dword11.into(),
            ..SubmissionEntry::new(AdminOpcode::GetFeatures.code(), command, self.namespace)
        }
    }
}

impl SetFeatures {
    /// Reads the entry.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dword10 = entry.dword10.get();
        Self {
            feature: dword10 as u8,
            is_saved: dword10 >> 31 != 0,
            dword11: entry.dword11.get(),
            dword12: entry.dword12.get(),
            dword13: entry.dword13.get(),
            namespace: entry.namespace(),
        }
    }

    /// The entry, without data.
    #[must_use]
    pub fn encode(&self, command: CommandId) -> SubmissionEntry {
        SubmissionEntry {
            dword10: (u32::from(self.feature) | u32::from(self.is_saved) << 31).into(),
            dword11: self.dword11.into(),
            dword12: self.dword12.into(),
            dword13: self.dword13.into(),
            ..SubmissionEntry::new(AdminOpcode::SetFeatures.code(), command, self.namespace)
        }
    }
}

/// The feature, if it is a known one: an invalid field otherwise.
pub fn feature_id(feature: u8) -> Result<FeatureId, Status> {
    FeatureId::try_from(feature).map_err(|_| Status::INVALID_FIELD.with_do_not_retry())
}

/// What [`FeatureSelect::Supported`] answers.
pub mod capability {
    /// It can be saved.
    pub const SAVEABLE: u32 = 1 << 0;
    /// Each namespace has its own.
    pub const NAMESPACE: u32 = 1 << 1;
    /// It can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// CDW11 of, and the answer to, the number of queues (Base §5.27.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// NSQR or NSQA: submission queues, 1 to 65535.
    pub submission: u16,
    /// NCQR or NCQA: completion queues.
    pub completion: u16,
}

impl QueueCounts {
    /// From the dword, whose halves count from zero and may not be `FFFFh`.
    pub fn parse(dword: u32) -> Result<Self, Status> {
        let count = |half: u16| half.checked_add(1).ok_or(Status::INVALID_FIELD.with_do_not_retry());
        Ok(Self { submission: count(dword as u16)?, completion: count((dword >> 16) as u16)? })
    }

    /// The dword; no queue at all cannot be said, and becomes one.
    #[must_use]
    pub const fn bits(self) -> u32 {
        let low = self.submission.saturating_sub(1) as u32;
        let high = self.completion.saturating_sub(1) as u32;
        low | high << 16
    }
}

/// CDW11 of the host identifier, FID 81h (Base §5.27.1): how long the data is.
#[must_use]
pub const fn host_id_len(dword11: u32) -> usize {
    if dword11 & 1 != 0 { 16 } else { 8 }
}

/// Bits of CDW11 of the reservation notification mask: what is *not* told (FID 82h, Base §5.27.1).
pub mod reservation_mask {
    /// REGPRE.
    pub const REGISTRATION_PREEMPTED: u32 = 1 << 1;
    /// RESREL.
    pub const RESERVATION_RELEASED: u32 = 1 << 2;
    /// RESPRE.
    pub const RESERVATION_PREEMPTED: u32 = 1 << 3;
    /// All of them.
    pub const ALL: u32 = REGISTRATION_PREEMPTED | RESERVATION_RELEASED | RESERVATION_PREEMPTED;
}

impl Timestamp {
    /// Set by a host, at so many milliseconds since 1970.
    #[must_use]
    pub fn new(milliseconds: u64, attributes: u8) -> Self {
        let [a, b, c, d, e, f, _, _] = milliseconds.to_le_bytes();
        Self { milliseconds: [a, b, c, d, e, f], attributes, reserved: 0 }
    }

    /// Milliseconds.
    #[must_use]
    pub const fn milliseconds(&self) -> u64 {
        let [a, b, c, d, e, f] = self.milliseconds;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}
