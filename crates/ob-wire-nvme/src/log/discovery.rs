//! Discovery, LID 70h (Base §5.16.1).

use zerocopy::little_endian::{U16, U64};

use crate::id::ControllerId;
use crate::text::{NQN_FIELD_LEN, Nqn, NqnError, padded, unpadded};

/// Bytes of the log's header.
pub const DISCOVERY_HEADER_LEN: usize = 1024;
/// Bytes of each entry.
pub const DISCOVERY_ENTRY_LEN: usize = 1024;
/// ASQSZ: the least that a host may be told.
const ADMIN_QUEUE_MIN: u16 = 32;

layout! {
    /// Begins the discovery log; entries follow.
    DiscoveryHeader[1024] {
        /// GENCTR: another number whenever the log changed.
        0 => generation: U64,
        /// NUMREC: entries.
        8 => records: U64,
        /// RECFMT, 0.
        16 => record_format: U16,
        /// Reserved.
        18 => reserved: [u8; 1006],
    }

    /// An entry of the discovery log.
    DiscoveryEntryLayout[1024] {
        /// TRTYPE.
        0 => transport: u8,
        /// ADRFAM.
        1 => family: u8,
        /// SUBTYPE.
        2 => subtype: u8,
        /// TREQ, see [`requirement`].
        3 => requirements: u8,
        /// PORTID.
        4 => port: U16,
        /// CNTLID.
        6 => controller: U16,
        /// ASQSZ: entries of an admin queue.
        8 => admin_queue: U16,
        /// EFLAGS, see [`discovery_flag`].
        10 => flags: U16,
        /// Reserved.
        12 => reserved12: [u8; 20],
        /// TRSVCID: the TCP port in decimal.
        32 => service: [u8; 32],
        /// Reserved.
        64 => reserved64: [u8; 192],
        /// SUBNQN.
        256 => subsystem: [u8; NQN_FIELD_LEN],
        /// TRADDR.
        512 => address: [u8; 256],
        /// TSAS: for TCP, byte 0 is SECTYPE (TCP §3.4), 0 for no TLS.
        768 => transport_specific: [u8; 256],
    }
}

codes! {
    /// TRTYPE.
    TransportKind: u8, "transport" {
        /// RDMA.
        Rdma = 1,
        /// Fibre Channel.
        FibreChannel = 2,
        /// TCP.
        Tcp = 3,
        /// Within a host.
        Loop = 254,
    }

    /// ADRFAM.
    AddressFamily: u8, "address family" {
        /// IPv4.
        Ipv4 = 1,
        /// IPv6.
        Ipv6 = 2,
    }

    /// SUBTYPE.
    DiscoverySubtype: u8, "discovery subtype" {
        /// Another discovery service.
        Referral = 1,
        /// A subsystem.
        Nvm = 2,
        /// This discovery service.
        Current = 3,
    }
}

/// Values of [`DiscoveryEntryLayout::requirements`], TREQ.
pub mod requirement {
    /// A secure channel is neither demanded nor refused.
    pub const SECURE_NOT_SPECIFIED: u8 = 0;
    /// A secure channel is demanded.
    pub const SECURE_REQUIRED: u8 = 1;
    /// A secure channel is not needed.
    pub const SECURE_NOT_REQUIRED: u8 = 2;
    /// The host may do without SQ flow control.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;
}

/// Bits of [`DiscoveryEntryLayout::flags`], EFLAGS.
pub mod discovery_flag {
    /// Another port gives the same information.
    pub const DUPLICATE: u16 = 1 << 0;
    /// A discovery controller that may be stayed connected to.
    pub const PERSISTENT: u16 = 1 << 1;
}

impl DiscoveryHeader {
    /// Of a log with so many entries.
    #[must_use]
    pub fn new(generation: u64, records: u64) -> Self {
        Self { generation: generation.into(), records: records.into(), ..Self::default() }
    }
}

/// A place that can be connected to, by TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// ADRFAM.
    pub family: AddressFamily,
    /// SUBTYPE.
    pub subtype: DiscoverySubtype,
    /// TREQ.
    pub requirements: u8,
    /// PORTID.
    pub port: u16,
    /// CNTLID: [`ControllerId::DYNAMIC`] for any.
    pub controller: ControllerId,
    /// ASQSZ.
    pub admin_queue: u16,
    /// EFLAGS.
    pub flags: u16,
    /// TRADDR.
    pub address: String,
    /// TRSVCID.
    pub service: u16,
    /// SUBNQN.
    pub subsystem: Nqn,
}

/// What is wrong with an entry, or why it is of no use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryEntryError {
    /// Not by TCP.
    #[error("transport {0} is not TCP")]
    Transport(u8),
    /// Another address family or subtype.
    #[error(transparent)]
    Code(#[from] crate::UnknownCode),
    /// The service is no port.
    #[error("the service is no TCP port")]
    Service,
    /// The subsystem's name is none.
    #[error(transparent)]
    Subsystem(#[from] NqnError),
}

impl DiscoveryEntry {
    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self) -> DiscoveryEntryLayout {
        DiscoveryEntryLayout {
            transport: TransportKind::Tcp.code(),
            family: self.family.code(),
            subtype: self.subtype.code(),
            requirements: self.requirements,
            port: self.port.into(),
            controller: self.controller.0.into(),
            admin_queue: self.admin_queue.max(ADMIN_QUEUE_MIN).into(),
            flags: self.flags.into(),
            service: padded(&self.service.to_string()),
            subsystem: self.subsystem.to_field(),
            address: padded(&self.address),
            ..DiscoveryEntryLayout::default()
        }
    }

    /// Reads an entry, as an initiator has to.
    pub fn parse(layout: &DiscoveryEntryLayout) -> Result<Self, DiscoveryEntryError> {
        if layout.transport != TransportKind::Tcp.code() {
            return Err(DiscoveryEntryError::Transport(layout.transport));
        }
        let service = unpadded(&layout.service).parse().map_err(|_| DiscoveryEntryError::Service)?;
        Ok(Self {
            family: AddressFamily::try_from(layout.family)?,
            subtype: DiscoverySubtype::try_from(layout.subtype)?,
            requirements: layout.requirements,
            port: layout.port.get(),
            controller: ControllerId(layout.controller.get()),
            admin_queue: layout.admin_queue.get(),
            flags: layout.flags.get(),
            address: unpadded(&layout.address),
            service,
            subsystem: Nqn::parse(&layout.subsystem)?,
        })
    }
}
