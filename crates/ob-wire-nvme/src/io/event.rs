//! Asynchronous events and Abort.

use crate::command::{AdminOpcode, SubmissionEntry};
use crate::id::{CommandId, NamespaceId, QueueId};

codes! {
    /// Asynchronous event types (Base §5.2.1).
    AsyncEventKind: u8, "asynchronous event type" {
        /// An error.
        Error = 0,
        /// SMART, health.
        Smart = 1,
        /// Something to know.
        Notice = 2,
        /// At once.
        Immediate = 3,
        /// Once.
        OneShot = 4,
        /// Of an I/O command set.
        CommandSet = 6,
        /// Of the vendor.
        Vendor = 7,
    }
}

/// Information of notices (Base §5.2.1).
pub mod notice {
    /// Namespaces changed; the log is 04h.
    pub const NAMESPACES: u8 = 0x00;
    /// Firmware is being activated; the log is 03h.
    pub const FIRMWARE: u8 = 0x01;
    /// ANA changed; the log is 0Ch.
    pub const ANA: u8 = 0x03;
    /// The discovery log changed; the log is 70h.
    pub const DISCOVERY: u8 = 0xF0;
}

/// Information of events of an I/O command set (Base §5.2.1).
pub mod command_set_event {
    /// A reservation notification waits; the log is 80h.
    pub const RESERVATION: u8 = 0x00;
}

/// What completes an Asynchronous Event Request: DW0 and DW1 (Base §5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// Bits 2:0. Kept as it came, because an initiator must bear any.
    pub kind: u8,
    /// Bits 15:8.
    pub information: u8,
    /// Bits 23:16: reading this log clears the event.
    pub log_page: u8,
    /// DW1: event specific, such as a namespace.
    pub specific: u32,
}

impl AsyncEvent {
    /// Namespaces were added, removed or resized.
    pub const NAMESPACES_CHANGED: Self = Self::new(AsyncEventKind::Notice, notice::NAMESPACES, 0x04);
    /// ANA states changed.
    pub const ANA_CHANGED: Self = Self::new(AsyncEventKind::Notice, notice::ANA, 0x0C);
    /// The discovery log changed.
    pub const DISCOVERY_CHANGED: Self = Self::new(AsyncEventKind::Notice, notice::DISCOVERY, 0x70);
    /// A reservation notification waits.
    pub const RESERVATION: Self = Self::new(AsyncEventKind::CommandSet, command_set_event::RESERVATION, 0x80);

    /// An event without anything specific.
    #[must_use]
    pub const fn new(kind: AsyncEventKind, information: u8, log_page: u8) -> Self {
        Self { kind: kind.code(), information, log_page, specific: 0 }
    }

    /// From DW0 and DW1.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        let (information, log_page) = ((bits >> 8) as u8, (bits >> 16) as u8);
        Self { kind: bits as u8 & 7, information, log_page, specific: (bits >> 32) as u32 }
    }

    /// DW0 and DW1.
    #[must_use]
    pub const fn bits(self) -> u64 {
        let low = (self.kind & 7) as u64 | (self.information as u64) << 8 | (self.log_page as u64) << 16;
        low | (self.specific as u64) << 32
    }
}

/// An Abort (Base §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// SQID.
    pub queue: QueueId,
    /// CID.
    pub command: CommandId,
}

impl Abort {
    /// DW0 of an Abort that came too late.
    pub const NOT_ABORTED: u64 = 1;

    /// Reads the entry.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        let dword10 = entry.dword10.get();
        Self { queue: QueueId(dword10 as u16), command: CommandId((dword10 >> 16) as u16) }
    }

    /// The entry.
    #[must_use]
    pub fn encode(&self, command: CommandId) -> SubmissionEntry {
        SubmissionEntry {
            dword10: (u32::from(self.queue.0) | u32::from(self.command.0) << 16).into(),
            ..SubmissionEntry::new(AdminOpcode::Abort.code(), command, NamespaceId::NONE)
        }
    }
}
