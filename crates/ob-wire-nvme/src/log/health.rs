//! Errors, health, firmware and reservation notifications.

use zerocopy::little_endian::{U16, U32, U64, U128};

use crate::id::{CommandId, NamespaceId, QueueId};
use crate::status::Status;
use crate::text::padded;

layout! {
    /// An entry of the error log, LID 01h, newest first (Base §5.16.1.2).
    ErrorEntry[64] {
        /// Error count: this error's number, from 1.
        0 => count: U64,
        /// SQID.
        8 => queue: U16,
        /// CID.
        10 => command_id: U16,
        /// Status field, with the phase tag in bit 0.
        12 => status: U16,
        /// Which byte (7:0) and bit (10:8) of the command is to blame; `FFFFh` for none.
        14 => parameter: U16,
        /// LBA.
        16 => block: U64,
        /// NSID.
        24 => namespace: U32,
        /// Vendor specific log.
        28 => vendor_log: u8,
        /// TRTYPE.
        29 => transport: u8,
        /// Reserved; CSI and opcode of Base 2.1.
        30 => reserved30: [u8; 2],
        /// Command specific information.
        32 => specific: U64,
        /// Transport specific information.
        40 => transport_specific: U16,
        /// Reserved.
        42 => reserved42: [u8; 22],
    }

    /// SMART and health information, LID 02h (Base §5.16.1.3).
    SmartLog[512] {
        /// Critical warning, see [`critical_warning`].
        0 => critical_warning: u8,
        /// Composite temperature in kelvins.
        1 => temperature: U16,
        /// Available spare in percent.
        3 => spare_percent: u8,
        /// Available spare threshold in percent.
        4 => spare_threshold_percent: u8,
        /// Percentage used.
        5 => used_percent: u8,
        /// Endurance group critical warning summary.
        6 => endurance_warning: u8,
        /// Reserved.
        7 => reserved7: [u8; 25],
        /// Data units read, of 512000 bytes each.
        32 => units_read: U128,
        /// Data units written.
        48 => units_written: U128,
        /// Host read commands.
        64 => reads: U128,
        /// Host write commands.
        80 => writes: U128,
        /// Controller busy time in minutes.
        96 => busy_minutes: U128,
        /// Power cycles.
        112 => power_cycles: U128,
        /// Power on hours.
        128 => power_on_hours: U128,
        /// Unsafe shutdowns.
        144 => unsafe_shutdowns: U128,
        /// Media and data integrity errors.
        160 => media_errors: U128,
        /// Error log entries over the controller's life.
        176 => error_entries: U128,
        /// Minutes above the warning temperature.
        192 => warning_minutes: U32,
        /// Minutes above the critical temperature.
        196 => critical_minutes: U32,
        /// Temperature sensors 1 to 8 in kelvins, 0 for none.
        200 => sensors: [U16; 8],
        /// Thermal management transition counts and times.
        216 => thermal: [U32; 4],
        /// Reserved.
        232 => reserved232: [u8; 280],
    }

    /// Firmware slots, LID 03h (Base §5.16.1.4).
    FirmwareSlots[512] {
        /// AFI: bits 2:0 the active slot, 6:4 the next.
        0 => active: u8,
        /// Reserved.
        1 => reserved1: [u8; 7],
        /// FRS1 to FRS7.
        8 => revisions: [[u8; 8]; 7],
        /// Reserved.
        64 => reserved64: [u8; 448],
    }

    /// A reservation notification, LID 80h (Base §5.16.1).
    ReservationNotification[64] {
        /// Log page count: this notification's number, from 1.
        0 => count: U64,
        /// Type, see [`ReservationNotificationKind`].
        8 => kind: u8,
        /// Notifications that wait behind this one, 255 for more.
        9 => waiting: u8,
        /// Reserved.
        10 => reserved10: [u8; 2],
        /// NSID.
        12 => namespace: U32,
        /// Reserved.
        16 => reserved16: [u8; 48],
    }
}

codes! {
    /// What happened to a reservation (LID 80h).
    ReservationNotificationKind: u8, "reservation notification" {
        /// Nothing: the log is empty.
        Empty = 0,
        /// A registration was preempted.
        RegistrationPreempted = 1,
        /// The reservation was released.
        ReservationReleased = 2,
        /// The reservation was preempted.
        ReservationPreempted = 3,
    }
}

/// Bits of [`SmartLog::critical_warning`].
pub mod critical_warning {
    /// Spare is below its threshold.
    pub const SPARE: u8 = 1 << 0;
    /// Temperature is beyond a threshold.
    pub const TEMPERATURE: u8 = 1 << 1;
    /// Media errors make the subsystem unreliable.
    pub const RELIABILITY: u8 = 1 << 2;
    /// All media are read only.
    pub const READ_ONLY: u8 = 1 << 3;
}

impl ErrorEntry {
    /// An error of a command, number `count` of this controller.
    #[must_use]
    pub fn new(
        count: u64,
        queue: QueueId,
        command: CommandId,
        namespace: NamespaceId,
        status: Status,
    ) -> Self {
        Self {
            count: count.into(),
            queue: queue.0.into(),
            command_id: command.0.into(),
            status: status.to_field().into(),
            parameter: 0xFFFF.into(),
            namespace: namespace.0.into(),
            // TRTYPE of TCP.
            transport: 3,
            ..Self::default()
        }
    }
}

impl SmartLog {
    /// A healthy device of nothing but memory or files: no wear, all spare, a temperature that alarms nobody.
    #[must_use]
    pub fn healthy() -> Self {
        Self { temperature: 300.into(), spare_percent: 100, spare_threshold_percent: 10, ..Self::default() }
    }

    /// Data units of 1000 sectors of 512 bytes, rounded up.
    #[must_use]
    pub const fn units(bytes: u128) -> u128 {
        bytes.div_ceil(512_000)
    }
}

impl FirmwareSlots {
    /// One slot, which is active.
    #[must_use]
    pub fn new(firmware: &str) -> Self {
        let mut slots = Self { active: 1, ..Self::default() };
        slots.revisions[0] = padded(firmware);
        slots
    }
}

impl ReservationNotification {
    /// A notification, number `count` of this controller.
    #[must_use]
    pub fn new(count: u64, kind: ReservationNotificationKind, waiting: u8, namespace: NamespaceId) -> Self {
        Self {
            count: count.into(),
            kind: kind.code(),
            waiting,
            namespace: namespace.0.into(),
            ..Self::default()
        }
    }
}
