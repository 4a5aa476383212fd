//! `[volumes]` and `[chunkserver]`: disks that are kept three times, and who keeps them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ob_format::volume::metadata::Text;
use ob_nvme::auth::Secret;
use ob_volume::tier::Placement;
use ob_wire_nvme::text::Nqn;
use serde::{Serialize, Serializer};

use super::nvme::{as_text, as_texts};
use super::{
    ByteRate, ByteSize, ConfigSource, FilesConfig, FilesDevice, LogConfig, Network, ReactorConfig,
    SegmentSize, Share, SubsystemConfig, TimeSpan,
};

/// The subsystem's name where nothing else is said.
const NQN_DEFAULT: &str = "nqn.2026-11.io.outboard:volumes";
/// What says that metadata are in a file.
pub(super) const EMBEDDED: &str = "embedded";
/// The port of the first chunk server where nothing else is said; others of `up` follow it.
const CHUNK_PORT: u16 = 4440;
/// The device of a chunk server, in its data directory.
const CHUNK_DEVICE: &str = "chunks.img";

/// How volumes are served.
#[derive(Clone, Debug, Serialize)]
pub struct VolumesConfig {
    /// Whether they are. A section `[volumes]` switches them on.
    pub enabled: bool,
    /// Where they are served: each address is a port with a thread, an engine and connections of its own; port number 0 takes any that is
    /// free.
    pub ports: Vec<SocketAddr>,
    /// The subsystem's name.
    #[serde(serialize_with = "as_text")]
    pub nqn: Nqn,
    /// Names of the hosts that may connect; none listed means every host.
    #[serde(serialize_with = "as_texts")]
    pub hosts: Vec<Nqn>,
    /// What those hosts have to prove that they know.
    #[serde(skip_serializing)]
    pub key: Option<Secret>,
    /// What the card proves that it knows, to hosts that ask.
    #[serde(skip_serializing)]
    pub controller_key: Option<Secret>,
    /// Where the chunk servers are. `up` starts one for each.
    pub servers: Vec<SocketAddr>,
    /// Where it is agreed on what volumes there are, and where their data lie.
    pub metadata: MetadataPlace,
    /// What the pool is called: its keys begin so.
    pub pool: String,
    /// Whether etcd's history of changes is left alone, because others read it.
    pub metadata_history: bool,
    /// Chunk servers that have each record of a new volume.
    pub replicas: usize,
    /// With fewer that answer, no chunk is opened.
    pub replicas_min: usize,
    /// How long the card holds a command that nobody can answer yet.
    pub hold: TimeSpan,
    /// Memory of the card for records under way, replies, and payloads that are retained.
    pub card_memory: ByteSize,
    /// Where payloads are made what is stored.
    #[serde(serialize_with = "as_name")]
    pub placement: Placement,
    /// How long a tier owns its segments without renewing that.
    pub lease: TimeSpan,
    /// Memory of a tier's index, and for its replay.
    pub index_memory: ByteSize,
    /// How long a chunk server is silent before its replicas are made anew elsewhere.
    pub lost_after: TimeSpan,
    /// How much is copied a second to make replicas anew.
    pub rebuild_rate: ByteRate,
    /// How much compaction moves a second.
    pub compact_rate: ByteRate,
    /// Which share of a chunk's blocks is overwritten before it is compacted.
    pub compact_share: Share,
    /// Or how many of them.
    pub compact_writes: usize,
}

/// Where the metadata of volumes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetadataPlace {
    /// In a file of the host's.
    Embedded,
    /// In etcd, whose JSON gateway is at these addresses.
    Etcd(Vec<SocketAddr>),
}

impl Serialize for MetadataPlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Embedded => serializer.serialize_str(EMBEDDED),
            Self::Etcd(endpoints) => {
                serializer.collect_seq(endpoints.iter().map(|endpoint| format!("http://{endpoint}")))
            }
        }
    }
}

impl VolumesConfig {
    /// The subsystem, as NVMe/TCP knows those of `[nvme]`.
    pub(crate) fn subsystem(&self) -> SubsystemConfig {
        SubsystemConfig {
            nqn: self.nqn.clone(),
            hosts: self.hosts.clone(),
            key: self.key.clone(),
            controller_key: self.controller_key.clone(),
            section: "volumes".to_owned(),
            ..SubsystemConfig::numbered(1)
        }
    }

    /// Threads of the card that serve them, besides its own.
    pub(crate) fn threads(&self) -> usize {
        if self.enabled { self.ports.len().saturating_sub(1) } else { 0 }
    }

    /// Where a port serves them, counted from 0.
    pub(crate) fn port(&self, number: usize) -> SocketAddr {
        self.ports.get(number).copied().unwrap_or_else(port_default)
    }
}

impl Default for VolumesConfig {
    fn default() -> Self {
        let server = |number| SocketAddr::from((Ipv4Addr::LOCALHOST, CHUNK_PORT + number));
        Self {
            enabled: false,
            ports: vec![port_default()],
            // The default is a legal name; were it none, discovery's would be refused at start.
            nqn: Nqn::new(NQN_DEFAULT).unwrap_or_else(|_| Nqn::discovery()),
            hosts: Vec::new(),
            key: None,
            controller_key: None,
            servers: (0..3).map(server).collect(),
            metadata: MetadataPlace::Embedded,
            pool: "default".to_owned(),
            metadata_history: false,
            replicas: 3,
            replicas_min: 2,
            hold: TimeSpan(Duration::from_secs(20)),
            card_memory: ByteSize(128 << 20),
            placement: Placement::Split,
            lease: TimeSpan(Duration::from_secs(3)),
            index_memory: ByteSize(1 << 30),
            lost_after: TimeSpan(Duration::from_secs(300)),
            rebuild_rate: ByteRate(64 << 20),
            compact_rate: ByteRate(64 << 20),
            compact_share: Share(500),
            compact_writes: 16_384,
        }
    }
}

fn as_name<S: Serializer>(placement: &Placement, serializer: S) -> Result<S::Ok, S::Error> {
    let name = Placement::NAMES.iter().find(|(_, of)| of == placement).map_or("", |(name, _)| name);
    serializer.serialize_str(name)
}

fn port_default() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4421))
}

/// `[chunkserver]`: how chunks are kept.
#[derive(Clone, Debug, Serialize)]
pub struct ChunkServerSection {
    /// Where it listens; port 0 takes any that is free. `up` gives each of its own another one.
    pub listen: SocketAddr,
    /// How large its device is made, if that is not there yet.
    pub size: ByteSize,
    /// Networks that may connect.
    pub allow: Vec<Network>,
    /// What fails together with it; the machine, if nothing is said.
    #[serde(serialize_with = "as_domain", skip_serializing_if = "Option::is_none")]
    pub domain: Option<Text<32>>,
    /// Memory for appends and reads.
    pub memory: ByteSize,
    /// What is kept for maintenance; of a small device an eighth.
    pub reserve: ByteSize,
}

/// The part of a device that can be reserved at most.
pub(crate) const RESERVE_SHARE: u64 = 8;

impl Default for ChunkServerSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, CHUNK_PORT)),
            size: ByteSize(16 << 30),
            allow: ["127.0.0.0/8", "::1"].into_iter().filter_map(Network::parse).collect(),
            domain: None,
            memory: ByteSize(64 << 20),
            reserve: ByteSize(1 << 30),
        }
    }
}

fn as_domain<S: Serializer>(domain: &Option<Text<32>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(domain.as_ref().map_or("", Text::as_str))
}

/// Whether an address is reached by others, and nobody else may connect to it.
pub(crate) fn is_for_nobody(listen: SocketAddr, allow: &[Network]) -> bool {
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    let is_own = |network: &Network| {
        // Of IPv4 a whole network is this machine's.
        let least = if network.0.address.is_ipv4() { 8 } else { 128 };
        is_loopback(network.0.address) && network.0.prefix_bits >= least
    };
    !is_loopback(listen.ip()) && allow.iter().all(is_own)
}

/// What a chunk server needs of the configuration, its paths ready for use.
#[derive(Clone, Debug)]
pub struct ChunkServerConfig {
    /// Its own directory.
    pub directory: PathBuf,
    /// Its device.
    pub files: FilesConfig,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Networks that may connect.
    pub allow: Vec<Network>,
    /// What fails together with it; the machine, if nothing is said.
    pub domain: Option<Text<32>>,
    /// Memory for appends and reads.
    pub memory: ByteSize,
    /// What is kept for maintenance.
    pub reserve: ByteSize,
    /// Threads that may poll on the same cores, its own among them: on one machine there are other servers, and a card.
    pub pollers: usize,
    /// How its reactor waits.
    pub reactor: ReactorConfig,
    /// What is logged.
    pub log: LogConfig,
    /// Where the values came from, for errors that show only when they are used.
    pub source: ConfigSource,
}

impl super::Config {
    /// A chunk server's part. Its data directory is its own, and no other process' of Outboard.
    #[must_use]
    pub fn chunk_server(&self, listen: Option<SocketAddr>) -> ChunkServerConfig {
        let ChunkServerSection { size, memory, domain, reserve, .. } = self.chunkserver;
        let device = FilesDevice::Path(self.data.join(CHUNK_DEVICE));
        ChunkServerConfig {
            directory: self.data.clone(),
            files: FilesConfig { device, size, segment: SegmentSize::Auto },
            listen: listen.unwrap_or(self.chunkserver.listen),
            allow: self.chunkserver.allow.clone(),
            domain,
            memory,
            reserve,
            pollers: self.volumes.servers.len() + 1,
            reactor: self.reactor.clone(),
            log: self.log.clone(),
            source: self.source.clone(),
        }
    }
}
