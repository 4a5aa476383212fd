//! Fabrics commands (Base §6): how queues come to be, and the controller's properties.
//!
//! ```text
//!   Connect (every queue) ──▶ authentication, if asked for ──▶ properties: CAP, CC.EN = 1, CSTS.RDY (admin queue)
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, transmute};

use crate::command::{DataPointer, FABRICS_OPCODE, FabricsKind, SglDescriptor, SubmissionEntry};
use crate::id::{CommandId, ControllerId, NamespaceId, QueueId};
use crate::status::Status;
use crate::text::{NQN_FIELD_LEN, Nqn, NqnError};

mod property;

pub use property::{
    Capabilities, ControllerConfiguration, ControllerStatus, Property, SUBSYSTEM_RESET, ShutdownNotification,
    ShutdownStatus, Version,
};

layout! {
    /// Connect (Base §6.3).
    ConnectEntry[64] {
        /// 7Fh.
        0 => opcode: u8,
        /// PSDT.
        1 => flags: u8,
        /// CID.
        2 => command_id: U16,
        /// FCTYPE, 01h.
        4 => kind: u8,
        /// Reserved.
        5 => reserved: [u8; 19],
        /// SGL1, which names the 1024 bytes of [`ConnectData`].
        24 => sgl: SglDescriptor,
        /// RECFMT: format of the command, 0.
        40 => record_format: U16,
        /// QID.
        42 => queue: U16,
        /// SQSIZE: entries, less one.
        44 => queue_size: U16,
        /// CATTR: bits 1:0 priority, bit 2 no flow control, bit 3 queues may be deleted one by one.
        46 => attributes: u8,
        /// Reserved.
        47 => reserved2: u8,
        /// KATO in milliseconds, on the admin queue.
        48 => keep_alive_ms: U32,
        /// Reserved.
        52 => reserved3: [u8; 12],
    }

    /// The data of Connect (Base §6.3).
    ConnectData[1024] {
        /// HOSTID.
        0 => host_id: [u8; 16],
        /// CNTLID.
        16 => controller: U16,
        /// Reserved.
        18 => reserved: [u8; 238],
        /// SUBNQN.
        256 => subsystem: [u8; NQN_FIELD_LEN],
        /// HOSTNQN.
        512 => host: [u8; NQN_FIELD_LEN],
        /// Reserved.
        768 => reserved2: [u8; 256],
    }

    /// Property Get and Property Set (Base §6.5, §6.6).
    PropertyEntry[64] {
        /// 7Fh.
        0 => opcode: u8,
        /// PSDT.
        1 => flags: u8,
        /// CID.
        2 => command_id: U16,
        /// FCTYPE: 04h to get, 00h to set.
        4 => kind: u8,
        /// Reserved.
        5 => reserved: [u8; 35],
        /// ATTRIB: bits 2:0 are 0 for four bytes, 1 for eight.
        40 => attributes: u8,
        /// Reserved.
        41 => reserved2: [u8; 3],
        /// OFST.
        44 => offset: U32,
        /// VALUE, of a Property Set.
        48 => value: U64,
        /// Reserved.
        56 => reserved3: [u8; 8],
    }

    /// Authentication Send and Authentication Receive (Base §6.2, §6.1).
    AuthenticationEntry[64] {
        /// 7Fh.
        0 => opcode: u8,
        /// PSDT.
        1 => flags: u8,
        /// CID.
        2 => command_id: U16,
        /// FCTYPE: 05h to send, 06h to receive.
        4 => kind: u8,
        /// Reserved.
        5 => reserved: [u8; 19],
        /// SGL1.
        24 => sgl: SglDescriptor,
        /// Reserved.
        40 => reserved2: u8,
        /// SPSP0, 1.
        41 => specific0: u8,
        /// SPSP1, 1.
        42 => specific1: u8,
        /// SECP, E9h.
        43 => protocol: u8,
        /// TL or AL: bytes of the message, or room for it.
        44 => length: U32,
        /// Reserved.
        48 => reserved3: [u8; 16],
    }

    /// Disconnect (Base §6.4).
    DisconnectEntry[64] {
        /// 7Fh.
        0 => opcode: u8,
        /// PSDT.
        1 => flags: u8,
        /// CID.
        2 => command_id: U16,
        /// FCTYPE, 08h.
        4 => kind: u8,
        /// Reserved.
        5 => reserved: [u8; 35],
        /// RECFMT: format of the command, 0.
        40 => record_format: U16,
        /// Reserved.
        42 => reserved2: [u8; 22],
    }
}

/// SECP of NVMe in-band authentication (Base §6.2).
pub const SECURITY_PROTOCOL: u8 = 0xE9;

const AT_QUEUE: u16 = 42;
const AT_QUEUE_SIZE: u16 = 44;
const AT_CONTROLLER: u16 = 16;
const AT_SUBSYSTEM: u16 = 256;
const AT_HOST: u16 = 512;

/// Why a Connect fails: what goes into its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} (result {result:#x})")]
pub struct ConnectError {
    /// The status.
    pub status: Status,
    /// DW0: for invalid parameters, which (Base §6.3: IPO in bits 15:0, IATTR in bit 16).
    pub result: u32,
}

impl ConnectError {
    /// A field of the command is wrong.
    #[must_use]
    pub const fn in_command(offset: u16) -> Self {
        Self { status: Status::CONNECT_INVALID_PARAMETERS.with_do_not_retry(), result: offset as u32 }
    }

    /// A field of the data is wrong.
    #[must_use]
    pub const fn in_data(offset: u16) -> Self {
        let result = offset as u32 | 1 << 16;
        Self { status: Status::CONNECT_INVALID_PARAMETERS.with_do_not_retry(), result }
    }

    /// QID is wrong, or in use.
    #[must_use]
    pub const fn queue() -> Self {
        Self::in_command(AT_QUEUE)
    }

    /// SQSIZE is wrong.
    #[must_use]
    pub const fn queue_size() -> Self {
        Self::in_command(AT_QUEUE_SIZE)
    }

    /// CNTLID names no controller of this host.
    #[must_use]
    pub const fn controller() -> Self {
        Self::in_data(AT_CONTROLLER)
    }

    /// There is no such subsystem.
    #[must_use]
    pub const fn subsystem() -> Self {
        Self::in_data(AT_SUBSYSTEM)
    }

    /// HOSTNQN cannot be a name.
    #[must_use]
    pub const fn host() -> Self {
        Self::in_data(AT_HOST)
    }

    /// Another status, without more.
    #[must_use]
    pub const fn other(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

/// The fields of a Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Which queue.
    pub queue: QueueId,
    /// Entries: at least 2, at most 65536.
    pub queue_entries: u32,
    /// The host wants SQHD left alone (CATTR bit 2).
    pub no_flow_control: bool,
    /// KATO in milliseconds, 0 for none; only on the admin queue.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// Reads a Connect's entry.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, ConnectError> {
        let entry: ConnectEntry = transmute!(*entry);
        if entry.record_format.get() != 0 {
            return Err(ConnectError::other(Status::CONNECT_INCOMPATIBLE_FORMAT.with_do_not_retry()));
        }
        if entry.queue_size.get() == 0 {
            return Err(ConnectError::queue_size());
        }
        Ok(Self {
            queue: QueueId(entry.queue.get()),
            queue_entries: u32::from(entry.queue_size.get()) + 1,
            no_flow_control: entry.attributes & 4 != 0,
            keep_alive_ms: entry.keep_alive_ms.get(),
        })
    }

    /// The entry. `data` says how the [`ConnectData`] travels.
    #[must_use]
    pub fn encode(&self, command: CommandId, data: DataPointer) -> SubmissionEntry {
        let base: ConnectEntry = transmute!(fabrics_entry(FabricsKind::Connect, command, data));
        let queue_size = self.queue_entries.saturating_sub(1).min(u32::from(u16::MAX)) as u16;
        transmute!(ConnectEntry {
            queue: self.queue.0.into(),
            queue_size: queue_size.into(),
            attributes: if self.no_flow_control { 4 } else { 0 },
            keep_alive_ms: self.keep_alive_ms.into(),
            ..base
        })
    }
}

/// Who connects to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectParties {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID: [`ControllerId::DYNAMIC`], or the controller that an I/O queue belongs to.
    pub controller: ControllerId,
    /// SUBNQN.
    pub subsystem: Nqn,
    /// HOSTNQN; where it is empty, [`Nqn::of_host_id`].
    pub host: Nqn,
}

impl ConnectParties {
    /// Reads a Connect's data.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConnectError> {
        let data = ConnectData::ref_from_bytes(bytes)
            .map_err(|_| ConnectError::other(Status::INVALID_SGL_LENGTH.with_do_not_retry()))?;
        Ok(Self {
            host_id: data.host_id,
            controller: ControllerId(data.controller.get()),
            subsystem: Nqn::parse(&data.subsystem).map_err(|_| ConnectError::subsystem())?,
            host: match Nqn::parse(&data.host) {
                // SPDK's programs connect without a name unless they are given one, and other targets let them. Such a
                // host goes by its number; it gets no further than with that name.
                Err(NqnError::Empty) => Nqn::of_host_id(&data.host_id),
                name => name.map_err(|_| ConnectError::host())?,
            },
        })
    }

    /// The data.
    #[must_use]
    pub fn encode(&self) -> ConnectData {
        ConnectData {
            host_id: self.host_id,
            controller: self.controller.0.into(),
            subsystem: self.subsystem.to_field(),
            host: self.host.to_field(),
            ..ConnectData::default()
        }
    }
}

/// DW0 of a Connect that succeeded (Base §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// CNTLID.
    pub controller: ControllerId,
    /// AUTHREQ.ATR: the host has to authenticate before anything else.
    pub must_authenticate: bool,
    /// AUTHREQ.ASCR: and with a secure channel, too.
    pub must_secure_channel: bool,
}

impl ConnectResult {
    /// From DW0.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self {
            controller: ControllerId(bits as u16),
            must_authenticate: bits & 1 << 17 != 0,
            must_secure_channel: bits & 1 << 18 != 0,
        }
    }

    /// DW0.
    #[must_use]
    pub const fn bits(self) -> u32 {
        let authentication = (self.must_authenticate as u32) << 17 | (self.must_secure_channel as u32) << 18;
        self.controller.0 as u32 | authentication
    }
}

/// A Property Get, or a Property Set with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// Which.
    pub property: Property,
    /// The value to set; a property of four bytes uses the lower half.
    pub value: Option<u64>,
}

impl PropertyAccess {
    /// Reads the entry of either command: a property that does not exist, or has another size, is an invalid field.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let is_set = entry.fabrics_kind() == FabricsKind::PropertySet.code();
        let entry: PropertyEntry = transmute!(*entry);
        let invalid = Status::INVALID_FIELD.with_do_not_retry();
        let property = Property::try_from(entry.offset.get()).map_err(|_| invalid)?;
        let size: u32 = match entry.attributes & 7 {
            0 => 4,
            1 => 8,
            _ => return Err(invalid),
        };
        if size != property.size() {
            return Err(invalid);
        }
        Ok(Self { property, value: is_set.then(|| entry.value.get()) })
    }

    /// The entry.
    #[must_use]
    pub fn encode(&self, command: CommandId) -> SubmissionEntry {
        let kind = if self.value.is_some() { FabricsKind::PropertySet } else { FabricsKind::PropertyGet };
        let base: PropertyEntry = transmute!(fabrics_entry(kind, command, DataPointer::None));
        transmute!(PropertyEntry {
            attributes: u8::from(self.property.size() == 8),
            offset: self.property.code().into(),
            value: self.value.unwrap_or(0).into(),
            ..base
        })
    }
}

/// An Authentication Send or Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticationTransfer {
    /// Whether the host receives.
    pub to_host: bool,
    /// TL or AL: bytes of the message, or room for it; never 0.
    pub len: u32,
}

impl AuthenticationTransfer {
    /// Reads the entry of either command.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let to_host = entry.fabrics_kind() == FabricsKind::AuthenticationReceive.code();
        let entry: AuthenticationEntry = transmute!(*entry);
        let is_ours = entry.protocol == SECURITY_PROTOCOL && entry.specific0 == 1 && entry.specific1 == 1;
        let len = entry.length.get();
        if !is_ours || len == 0 {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        Ok(Self { to_host, len })
    }

    /// The entry.
    #[must_use]
    pub fn encode(&self, command: CommandId, data: DataPointer) -> SubmissionEntry {
        let kind =
            if self.to_host { FabricsKind::AuthenticationReceive } else { FabricsKind::AuthenticationSend };
        let base: AuthenticationEntry = transmute!(fabrics_entry(kind, command, data));
        transmute!(AuthenticationEntry {
            specific0: 1,
            specific1: 1,
            protocol: SECURITY_PROTOCOL,
            length: self.len.into(),
            ..base
        })
    }
}

/// A Disconnect, which says nothing but that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect;

impl Disconnect {
    /// Reads the entry.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let entry: DisconnectEntry = transmute!(*entry);
        if entry.record_format.get() != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_do_not_retry());
        }
        Ok(Self)
    }

    /// The entry.
    #[must_use]
    pub fn encode(self, command: CommandId) -> SubmissionEntry {
        fabrics_entry(FabricsKind::Disconnect, command, DataPointer::None)
    }
}

fn fabrics_entry(kind: FabricsKind, command: CommandId, data: DataPointer) -> SubmissionEntry {
    let kind = NamespaceId(u32::from(kind.code()));
    let entry = SubmissionEntry::new(FABRICS_OPCODE, command, kind);
    // Commands that never have data have no SGL at all (Base §6.4 to §6.6: the bytes are reserved).
    if data.is_empty() {
        return SubmissionEntry { sgl: SglDescriptor::default(), ..entry };
    }
    entry.with_data(data)
}
