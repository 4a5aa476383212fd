//! Log pages (Base §5.16): what a controller remembers.
//!
//! ```text
//!   Get Log Page ──▶ GetLogPage: which log, which bytes of it ──▶ window(len of the log) ──▶ the bytes, zeros behind
//! ```

mod ana;
mod discovery;
mod health;

#[cfg(test)]
mod tests;

use std::ops::Range;

use zerocopy::little_endian::U32;

use crate::command::{AdminOpcode, DataPointer, SubmissionEntry, TRANSFER_MAX};
use crate::id::{CommandId, NamespaceId};
use crate::status::Status;

pub use ana::{AnaGroup, AnaGroupHeader, AnaHeader, AnaLogError, AnaState, ana_log, parse_ana_log};
pub use discovery::{
    AddressFamily, DISCOVERY_ENTRY_LEN, DISCOVERY_HEADER_LEN, DiscoveryEntry, DiscoveryEntryError,
    DiscoveryEntryLayout, DiscoveryHeader, DiscoverySubtype, TransportKind, discovery_flag, requirement,
};
pub use health::{
    ErrorEntry, FirmwareSlots, ReservationNotification, ReservationNotificationKind, SmartLog,
    critical_warning,
};

codes! {
    /// Log page identifiers (Base §5.16.1).
    LogPage: u8, "log page" {
        /// Which logs there are.
        SupportedLogs = 0x00,
        /// Errors.
        Error = 0x01,
        /// SMART, health.
        Smart = 0x02,
        /// Firmware slots.
        Firmware = 0x03,
        /// Changed namespaces, see [`NamespaceList::changed`](crate::identify::NamespaceList::changed).
        ChangedNamespaces = 0x04,
        /// Commands supported and their effects.
        Effects = 0x05,
        /// Device self-test.
        SelfTest = 0x06,
        /// Telemetry that the host began.
        TelemetryHost = 0x07,
        /// Telemetry that the controller began.
        TelemetryController = 0x08,
        /// Endurance group.
        EnduranceGroup = 0x09,
        /// Asymmetric namespace access.
        Ana = 0x0C,
        /// Persistent events.
        PersistentEvents = 0x0D,
        /// Features supported and their effects.
        FeatureEffects = 0x12,
        /// Discovery.
        Discovery = 0x70,
        /// Reservation notifications.
        ReservationNotification = 0x80,
        /// Sanitize status.
        Sanitize = 0x81,
    }
}

layout! {
    /// Supported log pages, LID 00h (Base §5.16.1.1).
    SupportedLogs[1024] {
        /// LID Supported and Effects, by log page: bit 0 there is such a log, bit 1 it has an index offset.
        0 => logs: [U32; 256],
    }

    /// Commands supported and effects, LID 05h (Base §5.16.1.6).
    CommandEffects[4096] {
        /// ACS0 to ACS255, see [`effect`].
        0 => admin: [U32; 256],
        /// IOCS0 to IOCS255.
        1024 => io: [U32; 256],
        /// Reserved.
        2048 => reserved: [u8; 2048],
    }
}

/// Bits of an entry of [`CommandEffects`].
pub mod effect {
    /// CSUPP: there is such a command.
    pub const SUPPORTED: u32 = 1 << 0;
    /// LBCC: it may change data.
    pub const DATA_CHANGES: u32 = 1 << 1;
    /// NCC: it may change a namespace's capabilities.
    pub const NAMESPACE_CHANGES: u32 = 1 << 2;
    /// NIC: it may change which namespaces there are.
    pub const INVENTORY_CHANGES: u32 = 1 << 3;
    /// CCC: it may change the controller's capabilities.
    pub const CONTROLLER_CHANGES: u32 = 1 << 4;
}

impl SupportedLogs {
    /// These.
    #[must_use]
    pub fn new(logs: &[LogPage]) -> Self {
        let mut page = Self::default();
        for log in logs {
            page.logs[usize::from(log.code())] = 1.into();
        }
        page
    }
}

impl CommandEffects {
    /// Says what an admin command does.
    #[must_use]
    pub fn with_admin(mut self, opcode: u8, effects: u32) -> Self {
        self.admin[usize::from(opcode)] = effects.into();
        self
    }

    /// Says what an I/O command does.
    #[must_use]
    pub fn with_io(mut self, opcode: u8, effects: u32) -> Self {
        self.io[usize::from(opcode)] = effects.into();
        self
    }
}

/// The fields of a Get Log Page (Base §5.16). `offset + len` does not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// LID, see [`LogPage`].
    pub page: u8,
    /// LSP.
    pub specific: u8,
    /// RAE: the event that told of this log stays as it is.
    pub retain_event: bool,
    /// LSI.
    pub specific_id: u16,
    /// LPOL and LPOU: the first byte, a multiple of 4.
    pub offset: u64,
    /// NUMDL and NUMDU as bytes: at least 4, a multiple of 4, at most 2^34.
    pub len: u64,
    /// CSI.
    pub command_set: u8,
    /// NSID.
    pub namespace: NamespaceId,
}

impl GetLogPage {
    /// Reads the entry.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let invalid = Status::INVALID_FIELD.with_do_not_retry();
        let (dword10, dword11, dword14) = (entry.dword10.get(), entry.dword11.get(), entry.dword14.get());
        let offset = entry.dwords12_13();
        let dwords = u64::from(dword10 >> 16) | u64::from(dword11 & 0xFFFF) << 16;
        let len = (dwords + 1) * 4;
        let is_index = dword14 & 1 << 23 != 0;
        if is_index || !offset.is_multiple_of(4) || offset.checked_add(len).is_none() {
            return Err(invalid);
        }
        Ok(Self {
            page: dword10 as u8,
            specific: (dword10 >> 8) as u8 & 0x7F,
            retain_event: dword10 & 1 << 15 != 0,
            specific_id: (dword11 >> 16) as u16,
            offset,
            len,
            command_set: (dword14 >> 24) as u8,
            namespace: entry.namespace(),
        })
    }

    /// The entry; `len` is rounded up to whole dwords, and is 4 at least and 4 GiB at most, which an SGL can name.
    #[must_use]
    pub fn encode(&self, command: CommandId) -> SubmissionEntry {
        let len = self.len.clamp(4, TRANSFER_MAX).next_multiple_of(4);
        let dwords = (len / 4 - 1) as u32;
        let low = u32::from(self.page)
            | u32::from(self.specific & 0x7F) << 8
            | u32::from(self.retain_event) << 15
            | dwords << 16;
        SubmissionEntry {
            dword10: low.into(),
            dword11: (dwords >> 16 | u32::from(self.specific_id) << 16).into(),
            dword12: (self.offset as u32).into(),
            dword13: ((self.offset >> 32) as u32).into(),
            dword14: (u32::from(self.command_set) << 24).into(),
            ..SubmissionEntry::new(AdminOpcode::GetLogPage.code(), command, self.namespace)
        }
        .with_data(DataPointer::Transport { len: len as u32 })
    }

    /// The log, if it is a known one: an invalid log page otherwise.
    pub fn log_page(&self) -> Result<LogPage, Status> {
        LogPage::try_from(self.page).map_err(|_| Status::INVALID_LOG_PAGE.with_do_not_retry())
    }

    /// Which bytes of a log of `log_len` bytes are wanted. What the host asked for beyond the end is zeros; to
    /// begin beyond the end is an error (Base §5.16).
    pub fn window(&self, log_len: usize) -> Result<Range<usize>, Status> {
        let start = usize::try_from(self.offset).ok().filter(|start| *start <= log_len);
        let start = start.ok_or(Status::INVALID_FIELD.with_do_not_retry())?;
        let end =
            usize::try_from(self.offset.saturating_add(self.len)).map_or(log_len, |end| end.min(log_len));
        Ok(start..end)
    }
}
