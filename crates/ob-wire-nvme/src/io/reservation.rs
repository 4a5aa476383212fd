//! Reservations (Base §7.2 to §7.5, §8.19).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::command::{DataPointer, IoOpcode, SubmissionEntry, TRANSFER_MAX};
use crate::id::{CommandId, ControllerId, NamespaceId};
use crate::status::Status;

codes! {
    /// RTYPE (Base §7.2).
    ReservationType: u8, "reservation type" {
        /// Only the holder writes.
        WriteExclusive = 1,
        /// Only the holder reads and writes.
        ExclusiveAccess = 2,
        /// Only registrants write.
        WriteExclusiveRegistrants = 3,
        /// Only registrants read and write.
        ExclusiveAccessRegistrants = 4,
        /// Only registrants write, and all of them hold it.
        WriteExclusiveAll = 5,
        /// Only registrants read and write, and all of them hold it.
        ExclusiveAccessAll = 6,
    }

    /// RREGA (Base §7.3).
    ReservationRegisterAction: u8, "registration action" {
        /// Register NRKEY.
        Register = 0,
        /// Unregister.
        Unregister = 1,
        /// Replace the key by NRKEY.
        Replace = 2,
    }

    /// RACQA (Base §7.2).
    ReservationAcquireAction: u8, "acquire action" {
        /// Acquire.
        Acquire = 0,
        /// Preempt.
        Preempt = 1,
        /// Preempt and abort.
        PreemptAndAbort = 2,
    }

    /// RRELA (Base §7.4).
    ReservationReleaseAction: u8, "release action" {
        /// Release.
        Release = 0,
        /// Clear.
        Clear = 1,
    }

    /// CPTPL (Base §7.3).
    PersistChange: u8, "persistence change" {
        /// Leave it.
        Keep = 0,
        /// Registrations and reservations end with the power.
        Clear = 2,
        /// They survive a loss of power.
        Set = 3,
    }
}

layout! {
    /// Data of Reservation Register and Reservation Acquire (Base §7.2, §7.3).
    ReservationKeys[16] {
        /// CRKEY: the host's key.
        0 => current: U64,
        /// NRKEY, the new key; or PRKEY, the key to preempt.
        8 => other: U64,
    }

    /// Begins the data of Reservation Report (Base §7.5); 40 bytes more are reserved if it is extended.
    ReservationReportHeader[24] {
        /// GEN: counts changes of registrations.
        0 => generation: U32,
        /// RTYPE, 0 for none.
        4 => kind: u8,
        /// REGCTL: registered controllers.
        5 => registrants: U16,
        /// Reserved.
        7 => reserved7: [u8; 2],
        /// PTPLS: 1 if they survive a loss of power.
        9 => is_persistent: u8,
        /// Reserved.
        10 => reserved10: [u8; 14],
    }

    /// A registered controller (Base §7.5).
    RegisteredController[24] {
        /// CNTLID.
        0 => controller: U16,
        /// RCSTS: bit 0, it holds the reservation.
        2 => status: u8,
        /// Reserved.
        3 => reserved3: [u8; 5],
        /// HOSTID of 64 bits.
        8 => host_id: [u8; 8],
        /// RKEY.
        16 => key: U64,
    }

    /// A registered controller, with a host identifier of 128 bits (Base §7.5).
    RegisteredControllerExtended[64] {
        /// CNTLID.
        0 => controller: U16,
        /// RCSTS: bit 0, it holds the reservation.
        2 => status: u8,
        /// Reserved.
        3 => reserved3: [u8; 5],
        /// RKEY.
        8 => key: U64,
        /// HOSTID of 128 bits.
        16 => host_id: [u8; 16],
        /// Reserved.
        32 => reserved32: [u8; 32],
    }
}

/// Where the registrants begin in an extended report.
const EXTENDED_HEADER_LEN: usize = 64;

/// A Reservation Register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRegister {
    /// RREGA.
    pub action: ReservationRegisterAction,
    /// IEKEY: CRKEY does not matter.
    pub ignore_key: bool,
    /// CPTPL.
    pub persist: PersistChange,
}

/// A Reservation Acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationAcquire {
    /// RACQA.
    pub action: ReservationAcquireAction,
    /// IEKEY: CRKEY does not matter; newer versions have it no more.
    pub ignore_key: bool,
    /// RTYPE.
    pub kind: ReservationType,
}

/// A Reservation Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationRelease {
    /// RRELA.
    pub action: ReservationReleaseAction,
    /// IEKEY.
    pub ignore_key: bool,
    /// RTYPE, which Clear has none of.
    pub kind: Option<ReservationType>,
}

/// A Reservation Report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// NUMD as bytes: at least 4, a multiple of 4.
    pub len: u64,
    /// EDS: host identifiers of 128 bits.
    pub is_extended: bool,
}

fn invalid<T>(_: T) -> Status {
    Status::INVALID_FIELD.with_do_not_retry()
}

fn action<T: TryFrom<u8>>(dword10: u32) -> Result<T, Status> {
    T::try_from(dword10 as u8 & 7).map_err(invalid)
}

const fn ignores_key(dword10: u32) -> bool {
    dword10 & 1 << 3 != 0
}

fn entry_of(opcode: IoOpcode, dword10: u32, command: CommandId, namespace: NamespaceId) -> SubmissionEntry {
    SubmissionEntry { dword10: dword10.into(), ..SubmissionEntry::new(opcode.code(), command, namespace) }
}

impl ReservationRegister {
    /// Reads the entry. The keys are in the data, see [`ReservationKeys::parse`].
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let dword10 = entry.dword10.get();
        let persist = PersistChange::try_from((dword10 >> 30) as u8).map_err(invalid)?;
        Ok(Self { action: action(dword10)?, ignore_key: ignores_key(dword10), persist })
    }

    /// The entry.
    #[must_use]
    pub fn encode(&self, command: CommandId, namespace: NamespaceId, data: DataPointer) -> SubmissionEntry {
        let dword10 = u32::from(self.action.code())
            | u32::from(self.ignore_key) << 3
            | u32::from(self.persist.code()) << 30;
        entry_of(IoOpcode::ReservationRegister, dword10, command, namespace).with_data(data)
    }
}

impl ReservationAcquire {
    /// Reads the entry. The keys are in the data, see [`ReservationKeys::parse`].
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let dword10 = entry.dword10.get();
        let kind = ReservationType::try_from((dword10 >> 8) as u8).map_err(invalid)?;
        Ok(Self { action: action(dword10)?, ignore_key: ignores_key(dword10), kind })
    }

    /// The entry.
    #[must_use]
    pub fn encode(&self, command: CommandId, namespace: NamespaceId, data: DataPointer) -> SubmissionEntry {
        let dword10 = u32::from(self.action.code())
            | u32::from(self.ignore_key) << 3
            | u32::from(self.kind.code()) << 8;
        entry_of(IoOpcode::ReservationAcquire, dword10, command, namespace).with_data(data)
    }
}

impl ReservationRelease {
    /// Reads the entry. The key is the data, see [`ReservationKeys::parse_current`].
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let dword10 = entry.dword10.get();
        let action = action(dword10)?;
        let kind = match action {
            ReservationReleaseAction::Release => {
                Some(ReservationType::try_from((dword10 >> 8) as u8).map_err(invalid)?)
            }
            ReservationReleaseAction::Clear => None,
        };
        Ok(Self { action, ignore_key: ignores_key(dword10), kind })
    }

    /// The entry.
    #[must_use]
    pub fn encode(&self, command: CommandId, namespace: NamespaceId, data: DataPointer) -> SubmissionEntry {
        let dword10 = u32::from(self.action.code())
            | u32::from(self.ignore_key) << 3
            | u32::from(self.kind.map_or(0, ReservationType::code)) << 8;
        entry_of(IoOpcode::ReservationRelease, dword10, command, namespace).with_data(data)
    }
}

impl ReservationReport {
    /// Reads the entry.
    #[must_use]
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self { len: (u64::from(entry.dword10.get()) + 1) * 4, is_extended: entry.dword11.get() & 1 != 0 }
    }

    /// The entry; `len` is rounded up to whole dwords, and is 4 at least and 4 GiB at most, which an SGL can name.
    #[must_use]
    pub fn encode(&self, command: CommandId, namespace: NamespaceId) -> SubmissionEntry {
        let len = self.len.clamp(4, TRANSFER_MAX).next_multiple_of(4) as u32;
        SubmissionEntry {
            dword11: u32::from(self.is_extended).into(),
            ..entry_of(IoOpcode::ReservationReport, len / 4 - 1, command, namespace)
        }
        .with_data(DataPointer::Transport { len })
    }
}

impl ReservationKeys {
    /// The keys in the data of Register and Acquire.
    pub fn parse(data: &[u8]) -> Result<Self, Status> {
        let keys =
            Self::read_from_prefix(data).map_err(|_| Status::INVALID_SGL_LENGTH.with_do_not_retry())?;
        Ok(keys.0)
    }

    /// The only key in the data of Release.
    pub fn parse_current(data: &[u8]) -> Result<u64, Status> {
        let key = data.first_chunk().ok_or(Status::INVALID_SGL_LENGTH.with_do_not_retry())?;
        Ok(u64::from_le_bytes(*key))
    }
}

/// Who is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The controller, or [`ControllerId::DYNAMIC`] if the host has none at present.
    pub controller: ControllerId,
    /// Whether its host holds the reservation.
    pub is_holder: bool,
    /// RKEY.
    pub key: u64,
    /// HOSTID.
    pub host_id: [u8; 16],
}

/// The data of a Reservation Report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationStatus {
    /// GEN.
    pub generation: u32,
    /// RTYPE.
    pub kind: Option<ReservationType>,
    /// PTPLS.
    pub is_persistent: bool,
    /// Registered controllers, at most 65535.
    pub registrants: Vec<Registrant>,
}

impl ReservationStatus {
    /// The data. Without `is_extended` a host identifier is cut to its first eight bytes.
    #[must_use]
    pub fn encode(&self, is_extended: bool) -> Vec<u8> {
        let count = self.registrants.len().min(usize::from(u16::MAX));
        let header = ReservationReportHeader {
            generation: self.generation.into(),
            kind: self.kind.map_or(0, ReservationType::code),
            registrants: (count as u16).into(),
            is_persistent: u8::from(self.is_persistent),
            ..ReservationReportHeader::default()
        };
        let mut data = header.as_bytes().to_vec();
        if is_extended {
            data.resize(EXTENDED_HEADER_LEN, 0);
        }
        for registrant in self.registrants.iter().take(count) {
            registrant.encode(is_extended, &mut data);
        }
        data
    }

    /// Reads the data, as an initiator has to. The report may be cut short by the length that was asked for: then
    /// the registrants that are there are given.
    pub fn parse(data: &[u8], is_extended: bool) -> Result<Self, Status> {
        let wrong = Status::DATA_TRANSFER_ERROR;
        let (header, mut rest) = ReservationReportHeader::read_from_prefix(data).map_err(|_| wrong)?;
        if is_extended {
            rest = data.get(EXTENDED_HEADER_LEN..).unwrap_or_default();
        }
        let kind = match header.kind {
            0 => None,
            kind => Some(ReservationType::try_from(kind).map_err(|_| wrong)?),
        };
        let mut registrants = Vec::new();
        for _ in 0..header.registrants.get() {
            let Some((registrant, behind)) = Registrant::parse(rest, is_extended) else { break };
            registrants.push(registrant);
            rest = behind;
        }
        let is_persistent = header.is_persistent & 1 != 0;
        Ok(Self { generation: header.generation.get(), kind, is_persistent, registrants })
    }
}

impl Registrant {
    fn encode(&self, is_extended: bool, data: &mut Vec<u8>) {
        let (controller, status, key) = (self.controller.0.into(), u8::from(self.is_holder), self.key.into());
        if is_extended {
            let host_id = self.host_id;
            let entry =
                RegisteredControllerExtended { controller, status, key, host_id, ..Default::default() };
            data.extend_from_slice(entry.as_bytes());
        } else {
            let [a, b, c, d, e, f, g, h, ..] = self.host_id;
            let host_id = [a, b, c, d, e, f, g, h];
            let entry = RegisteredController { controller, status, key, host_id, ..Default::default() };
            data.extend_from_slice(entry.as_bytes());
        }
    }

    fn parse(bytes: &[u8], is_extended: bool) -> Option<(Self, &[u8])> {
        let mut host_id = [0; 16];
        if is_extended {
            let (entry, rest) = RegisteredControllerExtended::read_from_prefix(bytes).ok()?;
            let registrant = Self {
                controller: ControllerId(entry.controller.get()),
                is_holder: entry.status & 1 != 0,
                key: entry.key.get(),
                host_id: entry.host_id,
            };
            return Some((registrant, rest));
        }
        let (entry, rest) = RegisteredController::read_from_prefix(bytes).ok()?;
        let (first, _) = host_id.split_at_mut(entry.host_id.len());
        first.copy_from_slice(&entry.host_id);
        let registrant = Self {
            controller: ControllerId(entry.controller.get()),
            is_holder: entry.status & 1 != 0,
            key: entry.key.get(),
            host_id,
        };
        Some((registrant, rest))
    }
}
