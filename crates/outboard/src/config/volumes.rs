//! `[volumes]` and `[chunkserver]`: disks that are kept three times, and who keeps them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ob_nvme::auth::Secret;
use ob_volume::tier::Placement;
use ob_wire_nvme::text::Nqn;
use serde::{Serialize, Serializer};

use super::nvme::{as_text, as_texts};
use super::{
    ByteRate, ByteSize, ConfigSource, FilesConfig, FilesDevice, LogConfig, ReactorConfig, SegmentSize, Share,
    SubsystemConfig, TimeSpan,
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
    /// Memory for appends and reads.
    pub memory: ByteSize,
}

impl Default for ChunkServerSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, CHUNK_PORT)),
            size: ByteSize(16 << 30),
            memory: ByteSize(64 << 20),
        }
    }
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
    /// Memory for appends and reads.
    pub memory: ByteSize,
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
        let ChunkServerSection { size, memory, .. } = self.chunkserver;
        let device = FilesDevice::Path(self.data.join(CHUNK_DEVICE));
        ChunkServerConfig {
            directory: self.data.clone(),
            files: FilesConfig { device, size, segment: SegmentSize::Auto },
            listen: listen.unwrap_or(self.chunkserver.listen),
            memory,
            pollers: self.volumes.servers.len() + 1,
            reactor: self.reactor.clone(),
            log: self.log.clone(),
            source: self.source.clone(),
        }
    }
}
