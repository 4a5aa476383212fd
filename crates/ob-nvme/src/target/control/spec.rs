//! What the administrator says: limits, ports, subsystems, hosts, namespaces.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ob_wire_nvme::log::AddressFamily;
use ob_wire_nvme::text::Nqn;

use crate::auth::{Policy, Secret};

macro_rules! key {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, " {}"), self.0)
            }
        }
    };
}

key!(
    /// A port of the target, PORTID in discovery: an address that hosts connect to.
    PortKey(u16),
    "port"
);
key!(
    /// A subsystem, for as long as the target runs.
    SubsystemKey(u32),
    "subsystem"
);
key!(
    /// A device or file that holds a namespace's blocks.
    BackendId(u32),
    "backend"
);
key!(
    /// A namespace from its addition to its removal. Never used twice, unlike its NSID.
    NamespaceKey(u64),
    "namespace"
);
key!(
    /// A controller from Connect to its end. Never used twice, unlike its CNTLID.
    ControllerKey(u64),
    "controller"
);

/// The way that a host's association takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The port that it came in on.
    pub port: PortKey,
    /// The host's address.
    pub peer: IpAddr,
    /// The address that it reached, if that is known.
    pub local: Option<IpAddr>,
}

/// A path of peers without addresses, which are taken for one.
impl From<PortKey> for Path {
    fn from(port: PortKey) -> Self {
        Self { port, peer: Ipv4Addr::UNSPECIFIED.into(), local: None }
    }
}

/// The limits that [`super::Control`] keeps.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// I/O queues of one controller at most.
    pub queues_max: u16,
    /// Entries of one queue at most, at least 2.
    pub queue_depth_max: u16,
    /// Controllers at once, in all subsystems together; at most 65536.
    pub controllers_max: u32,
    /// Namespaces of one subsystem: NN and MNAN, and the highest NSID.
    pub namespaces_max: u32,
    /// ANA groups: ANAGRPMAX and NANAGRPID, and the highest ANAGRPID.
    pub ana_groups_max: u32,
    /// ANATT: how long a change of access state may take at most, in whole seconds.
    pub ana_transition_time: Duration,
    /// Data that an I/O capsule may bring along, in bytes, a multiple of 16.
    pub in_capsule_len: u32,
    /// WZSL: Write Zeroes covers at most `4096 << this` bytes; 0 for no limit.
    pub write_zeroes_shift: u8,
    /// DMRSL and DMSL: Dataset Management is to name at most so many blocks; not 0.
    pub deallocate_blocks_max: u32,
    /// How long a discovery controller without keep-alive may be silent.
    pub discovery_idle: Duration,
    /// How long an association outlives a shutdown or a reset by its host.
    pub association_linger: Duration,
    /// How long a host has to prove who it is, from its Connect.
    pub authentication_timeout: Duration,
    /// Which hash functions and groups hosts may use to do so.
    pub authentication_policy: Policy,
    /// Keep-alive timeouts above this are refused. A host may still ask for none at all (KATO 0): one that vanishes
    /// without a word then stays until its connections end, which is for the network to notice.
    pub keep_alive_max: Duration,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            queues_max: 16,
            queue_depth_max: 128,
            controllers_max: 1024,
            namespaces_max: 1024,
            ana_groups_max: 32,
            ana_transition_time: Duration::from_secs(10),
            in_capsule_len: 8192,
            // As much as a command can name of the smallest blocks: the target cuts long ones by itself. Linux takes none
            // for MDTS, and cuts off what does not fit into a command's number of blocks.
            write_zeroes_shift: 13,
            // 64 MiB of the smallest blocks. Linux sends up to 4 GiB in a command where there is no limit, and a hundred of those
            // at once; what waits for all of them must not wait longer than it has patience.
            deallocate_blocks_max: 128 << 10,
            discovery_idle: Duration::from_secs(120),
            association_linger: Duration::from_secs(120),
            authentication_timeout: Duration::from_secs(30),
            authentication_policy: Policy::default(),
            keep_alive_max: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// An address as discovery tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportAddress {
    /// ADRFAM.
    pub family: AddressFamily,
    /// TRADDR, without a port number.
    pub address: String,
    /// TRSVCID, the port number.
    pub service: u16,
}

impl TransportAddress {
    /// An address and a port number.
    #[must_use]
    pub fn of(address: IpAddr, service: u16) -> Self {
        let family = if address.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 };
        Self { family, address: address.to_string(), service }
    }

    /// The same as a host can use it who was reached there: "all addresses" is no address to connect to.
    #[must_use]
    pub(super) fn seen_at(&self, local: Option<IpAddr>) -> Self {
        let is_any = self.address.parse().is_ok_and(|address: IpAddr| address.is_unspecified());
        match local.filter(|_| is_any) {
            Some(local) => Self::of(local.to_canonical(), self.service),
            None => self.clone(),
        }
    }
}

/// A port.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Its number.
    pub port: PortKey,
    /// As hosts reach it.
    pub address: TransportAddress,
    /// Serves only the discovery service (port 8009); discovery then does not offer it for subsystems.
    pub discovery_only: bool,
}

/// The secrets of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSecrets {
    /// What the host proves that it knows.
    pub host: Secret,
    /// What this target proves that it knows, if the host asks. A host that asks in vain is refused.
    pub controller: Option<Secret>,
}

/// A host that may connect.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// HOSTNQN.
    pub nqn: Nqn,
    /// With secrets, the host has to authenticate.
    pub secrets: Option<HostSecrets>,
}

/// Who may connect to a subsystem.
#[derive(Clone, Debug)]
pub enum HostPolicy {
    /// Everybody, without authentication.
    Any,
    /// These.
    Listed(Vec<HostSpec>),
}

/// A subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemSpec {
    /// Its name.
    pub nqn: Nqn,
    /// SN, up to 20 characters.
    pub serial: String,
    /// MN, up to 40 characters.
    pub model: String,
    /// FR, up to 8 characters.
    pub firmware: String,
    /// Who may connect.
    pub hosts: HostPolicy,
    /// The ports on which it is served; none named means all that are not for discovery alone.
    pub ports: Vec<PortKey>,
    /// The first CNTLID that this target gives out. Two targets that serve one subsystem have ranges apart.
    pub controller_first: u16,
    /// The last one, below FFF0h.
    pub controller_last: u16,
}

impl SubsystemSpec {
    /// A subsystem that everybody may connect to, with every CNTLID.
    #[must_use]
    pub fn open(nqn: Nqn, serial: &str) -> Self {
        Self {
            nqn,
            serial: serial.to_owned(),
            model: "Outboard".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            hosts: HostPolicy::Any,
            ports: Vec::new(),
            controller_first: 1,
            controller_last: 0xFFEF,
        }
    }
}

/// What serves the blocks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A device or file.
    Device(BackendId),
    /// A service: its commands are handed out, as [`super::super::Target::next_foreign`] says.
    Foreign,
}

impl From<BackendId> for Backing {
    fn from(backend: BackendId) -> Self {
        Self::Device(backend)
    }
}

/// A namespace.
#[derive(Clone, Debug)]
pub struct NamespaceSpec {
    /// NSID; without it, the lowest that no namespace has had.
    pub nsid: Option<u32>,
    /// Where its blocks are.
    pub backing: Backing,
    /// How many.
    pub blocks: u64,
    /// Bytes of each: 512 or 4096.
    pub block_len: u32,
    /// Its UUID, which must stay the same for as long as the data is the same.
    pub uuid: [u8; 16],
    /// Its NGUID, likewise; all zeroes for none.
    pub nguid: [u8; 16],
    /// Whether completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// Whether deallocated blocks read as zeroes (DLFEAT).
    pub deallocated_reads_zero: bool,
    /// By what space is given back, in bytes (NPDG, NPDA); no more than a block says nothing.
    pub deallocate_len: u32,
    /// ANAGRPID.
    pub ana_group: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Why something cannot be administered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// No subsystem has this key.
    #[error("there is no such subsystem")]
    UnknownSubsystem,
    /// No port has this number.
    #[error("there is no port {0}")]
    UnknownPort(u16),
    /// A subsystem of this name exists, or it is the discovery service's.
    #[error("the subsystem {0} exists already")]
    SubsystemExists(Nqn),
    /// A port of this number exists.
    #[error("port {0} exists already")]
    PortExists(u16),
    /// CNTLIDs must be a range below FFF0h.
    #[error("controllers {first:#x} to {last:#x} are no range below 0xfff0")]
    ControllerRange {
        /// As given.
        first: u16,
        /// As given.
        last: u16,
    },
    /// Serial, model or firmware is too long or no printable ASCII.
    #[error("the {0} is too long, empty or no printable ASCII")]
    BadText(&'static str),
    /// The subsystem has no namespace of this NSID.
    #[error("there is no namespace {0}")]
    UnknownNamespace(u32),
    /// NSID 0, or above the limit, or in use.
    #[error("namespace id {nsid} is in use or not between 1 and {max}")]
    BadNamespaceId {
        /// As given.
        nsid: u32,
        /// The limit.
        max: u32,
    },
    /// All NSIDs are in use.
    #[error("the subsystem has no room for another namespace")]
    NamespacesFull,
    /// Another namespace has this UUID or NGUID: Linux would hide one of the two.
    #[error("another namespace has the same unique id")]
    DuplicateId,
    /// Blocks must be 512 or 4096 bytes.
    #[error("a block of {0} bytes is neither 512 nor 4096")]
    BadBlockLen(u32),
    /// A namespace has at least one block, and its bytes fit into 63 bits.
    #[error("a namespace cannot have {0} blocks")]
    BadBlocks(u64),
    /// ANAGRPID 0, or above the limit.
    #[error("ANA group {group} is not between 1 and {max}")]
    BadAnaGroup {
        /// As given.
        group: u32,
        /// The limit.
        max: u32,
    },
    /// The saved reservations cannot be read or contradict themselves.
    #[error("the saved reservations are damaged: {0}")]
    BadReservations(&'static str),
}
